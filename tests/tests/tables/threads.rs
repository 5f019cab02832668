//! What is asked of a thread beside rounds: its name, its compaction.

use insta::assert_snapshot;
use turnkeep_core::{
    CommandId, Outcome,
    compaction::{Compaction, CompactionChange, CompactionEnd},
    naming::{Naming, NamingChange},
    record::RequestEnd,
};

use super::{table, turn};

#[test]
fn naming() {
    let named = |name: &str| Naming::Named { name: name.into() };
    let asked = |name: &str| Naming::Asked { name: name.into() };
    let states = [
        ("Unnamed", Naming::Unnamed),
        ("Asked a", asked("a")),
        ("Named a", named("a")),
    ];
    let events = [
        ("asked a", NamingChange::Asked { name: "a".into() }),
        ("asked b", NamingChange::Asked { name: "b".into() }),
        ("given", NamingChange::Given),
        ("refused", NamingChange::Refused),
    ];
    assert_snapshot!(table(&states, &events, Naming::state, Naming::on));
}

#[test]
fn compaction() {
    let command = CommandId(1);
    let asked = |after: Option<&str>| Compaction::Asked {
        command,
        after: after.map(turn),
    };
    let states = [
        ("None", Compaction::None),
        ("Asked", asked(None)),
        ("Asked after trn_1", asked(Some("trn_1"))),
        (
            "Running trn_2",
            Compaction::Running {
                command,
                turn: turn("trn_2"),
            },
        ),
    ];
    let done = Outcome::Completed {
        text: None,
        structured: None,
    };
    let ended = |end| CompactionChange::Ended { end };
    let events = [
        (
            "asked",
            CompactionChange::Asked {
                command: CommandId(2),
                after: None,
            },
        ),
        (
            "began trn_2",
            CompactionChange::Began {
                turn: turn("trn_2"),
            },
        ),
        (
            "began trn_3",
            CompactionChange::Began {
                turn: turn("trn_3"),
            },
        ),
        (
            "ended unknown",
            ended(CompactionEnd::Request(RequestEnd::Unknown)),
        ),
        (
            "ended completed",
            ended(CompactionEnd::Turn(Box::new(done))),
        ),
        (
            "ended interrupted",
            ended(CompactionEnd::Turn(Box::new(Outcome::Interrupted))),
        ),
    ];
    assert_snapshot!(table(&states, &events, Compaction::name, Compaction::on));
}
