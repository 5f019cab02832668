//! The checkers bite: each deliberate bug is noticed within a bounded number of seeds.

use turnkeep_tests::sim::{self, Bug, Fault, Plan};

/// Within how many seeds a bug must be noticed.
const SEEDS: u64 = 400;

/// A plan in which what a bug needs happens often.
fn plan(seed: u64, bug: Bug) -> Plan {
    let mut plan = Plan::of(seed);
    let often: &[(Fault, u32)] = match bug {
        Bug::SyncsNothing => &[(Fault::PowerLoss, 6_000)],
        Bug::TakesEndsOfOthers => &[(Fault::ForeignTurn, 300_000)],
        Bug::ResendsOnFirstAbsence
        | Bug::ResendsWithoutLook
        | Bug::AnswersReplaysTwice
        | Bug::TakesAnswersForRecords => &[(Fault::Reset, 15_000)],
        Bug::KeepsRequestIds | Bug::ResendsWhatWasInterrupted | Bug::LosesWhatWasNeverRecorded => {
            &[(Fault::KillServer, 12_000)]
        }
        Bug::SendsBeforeAppend
        | Bug::ForgetsAcknowledgements
        | Bug::EndsTwice
        | Bug::LaunchesBeforeAppend
        | Bug::SubmitsABoxTwice
        | Bug::LosesAnArrival
        | Bug::InertMessageTriggers
        | Bug::AnswersBeforeTheSteer
        | Bug::BeginsUnbound
        | Bug::ApprovesByDefault => &[],
    };
    for (fault, rate) in often {
        plan.set(*fault, *rate);
    }
    plan.blows = plan.blows.max(4);
    plan
}

#[test]
fn each_deliberate_bug_is_noticed() {
    let mut missed = Vec::new();
    for bug in Bug::ALL {
        let noticed = (0..SEEDS).find_map(|seed| {
            let plan = plan(seed, bug);
            let failure = sim::run_with(seed, &plan, bug).err()?;
            // Without the bug the same seed holds: it is the bug that was noticed.
            sim::run(seed, &plan).is_ok().then_some((seed, failure))
        });
        match noticed {
            Some((seed, failure)) => {
                println!("{bug:?} is noticed at seed {seed}: {}", failure.what);
            }
            None => missed.push(bug),
        }
    }
    assert!(
        missed.is_empty(),
        "within {SEEDS} seeds nobody notices {missed:?}"
    );
}
