//! Conversations against their reference model.

use turnkeep_tests::conversation_model::{self, Case, Tally};

/// Few enough for every run of all tests; `cargo xtask model --cases 100000` plays the whole.
const CASES: u64 = 4_000;

#[test]
fn machine_and_reference_agree() {
    let halves = [0, 1].map(|half| {
        std::thread::spawn(move || {
            let (mut tally, mut failure) = (Tally::default(), None);
            for seed in (half..CASES).step_by(2) {
                match conversation_model::play(&Case::of(seed), None) {
                    Ok(some) => tally.add(&some),
                    Err(failed) => {
                        failure = Some(*failed);
                        break;
                    }
                }
            }
            (tally, failure)
        })
    });
    let mut tally = Tally::default();
    for half in halves {
        let (some, failure) = half.join().expect("it catches panics");
        tally.add(&some);
        if let Some(failure) = failure {
            panic!(
                "{failure}\nand smaller: {}",
                conversation_model::shrink(&failure, None)
            );
        }
    }
    println!("{tally}");
    let counts = [
        tally.crashes,
        tally.cuts,
        tally.losses,
        tally.steers,
        tally.launches,
    ];
    assert!(
        counts.iter().all(|count| *count > 100),
        "something hardly ever happens: {tally}"
    );
}

/// What failed once.
#[test]
fn what_failed_once_agrees() {
    for line in include_str!("conversations.regressions").lines() {
        let Some(case) = line.strip_prefix('{').map(|_| line) else {
            continue;
        };
        let case = serde_json::from_str(case).expect("a case");
        if let Err(failure) = conversation_model::play(&case, None) {
            panic!("{failure}");
        }
    }
}
