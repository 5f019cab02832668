//! Seeds: faults first, then everything heals and must come to rest.

use turnkeep_tests::sim::{self, Fault, Plan, Tally};

/// How many seeds a run of all tests plays.
const SEEDS: u64 = 2_000;

#[test]
fn every_seed_holds_what_must_hold() {
    let halves = [0, 1].map(|half| {
        std::thread::spawn(move || {
            let (mut tally, mut failures) = (Tally::default(), Vec::new());
            for seed in (half..SEEDS).step_by(2) {
                match sim::run(seed, &Plan::of(seed)) {
                    Ok(some) => tally.add(&some),
                    Err(failure) => failures.push(failure),
                }
            }
            (tally, failures)
        })
    });
    let (mut tally, mut failures) = (Tally::default(), Vec::new());
    for half in halves {
        let (some, failed) = half.join().unwrap();
        tally.add(&some);
        failures.extend(failed);
    }
    if let Some(first) = failures.first() {
        panic!(
            "{} seeds fail, the first of them:\n{first}\nand with less:\n{}",
            failures.len(),
            sim::shrink(first)
        );
    }
    for fault in Fault::ALL {
        assert!(
            tally.of(*fault) > 0,
            "{} never happens:\n{tally}",
            fault.word()
        );
    }
    println!("{tally}");
}

#[test]
fn a_seed_is_a_run() {
    for seed in 0..20 {
        let plan = Plan::of(seed);
        let (first, second) = (
            sim::run_logged(seed, &plan, None),
            sim::run_logged(seed, &plan, None),
        );
        assert_eq!(first.1, second.1, "seed {seed} gives two runs");
        assert!(first.0.is_ok() == second.0.is_ok());
    }
}

#[test]
fn a_plan_is_changed_by_what_differs_from_another() {
    for seed in 0..200 {
        let (one, other) = (Plan::of(seed), Plan::of(seed + 1));
        let mut changed = other.clone();
        changed.change(&one.changes(&other)).unwrap();
        assert_eq!(changed, one);
    }
    let mut plan = Plan::of(1);
    for bad in ["kill_us", "kill_us=x", "no_such=1", "socket=1"] {
        plan.change(bad).unwrap_err();
    }
}
