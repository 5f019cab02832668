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
            let smaller = conversation_model::shrink(&failure, None);
            panic!("{failure}\nand smaller: {smaller}");
        }
    }
    println!("{tally}");
    let often = [
        tally.crashes,
        tally.cuts,
        tally.losses,
        tally.steers,
        tally.launches,
    ];
    assert!(
        often.iter().all(|count| *count > CASES / 10),
        "something hardly ever happens: {tally}"
    );
}

/// What failed once.
#[test]
fn what_failed_once_agrees() {
    let lines = include_str!("conversations.regressions").lines();
    let mut failures = Vec::new();
    for line in lines.filter(|line| line.starts_with('{')) {
        let case = serde_json::from_str(line).expect("a case");
        if let Err(failure) = conversation_model::play(&case, None) {
            failures.push(failure.to_string());
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

/// A case is what its line says.
#[test]
fn a_case_reads_back_as_it_was_printed() {
    for seed in 0..200 {
        let case = Case::of(seed);
        let line = serde_json::to_string(&case).expect("a line");
        assert_eq!(serde_json::from_str::<Case>(&line).expect("a case"), case);
    }
}

/// The comparison bites.
#[cfg(feature = "bugs")]
mod bugs {
    use turnkeep_tests::conversation_model::{self, Bug, Case};

    /// Within how many cases a bug must be noticed.
    const CASES: u64 = 2_000;

    #[test]
    fn each_bug_of_a_conversation_is_noticed() {
        let bugs = [
            Bug::SubmitsABoxTwice,
            Bug::LosesAnArrival,
            Bug::TakesAnswersForRecords,
            Bug::InertMessageTriggers,
            Bug::AnswersBeforeTheSteer,
            Bug::SendsBeforeAppend,
            Bug::LaunchesBeforeAppend,
            Bug::LosesWhatWasNeverRecorded,
        ];
        let mut missed = Vec::new();
        for bug in bugs {
            let noticed = (0..CASES).find_map(|seed| {
                let case = Case::of(seed);
                let failure = conversation_model::play(&case, Some(bug)).err()?;
                // Without the bug the same case holds: it is the bug that was noticed.
                let holds = conversation_model::play(&case, None).is_ok();
                holds.then_some((seed, failure))
            });
            match noticed {
                Some((seed, failure)) => {
                    let smaller = conversation_model::shrink(&failure, Some(bug));
                    println!("{bug:?} is noticed at case {seed}: {smaller}");
                }
                None => missed.push(bug),
            }
        }
        assert!(
            missed.is_empty(),
            "within {CASES} cases nobody notices {missed:?}"
        );
    }
}
