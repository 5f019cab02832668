//! What is asked of a thread beside rounds: its name, its compaction, what it was last given.

use insta::assert_snapshot;
use turnkeep_core::{
    CommandId, MessageId, Outcome,
    compaction::{Compaction, CompactionChange, CompactionEnd},
    naming::{Naming, NamingChange},
    record::RequestEnd,
    selection::{Field, Given, Selection, SelectionChange, ThreadSelection},
};

use super::{On, table, turn};

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

#[test]
fn thread_selection() {
    use SelectionChange as C;
    let of = |model: &str| Selection {
        model: Some(model.into()),
        ..Selection::default()
    };
    let touched = [Field::Model].into();
    let message = |id: &str| MessageId::new(id).unwrap();
    let states = [
        ("Nothing known", ThreadSelection::default()),
        ("Known, a", ThreadSelection::Settled(Given::Known(of("a")))),
        (
            "Doubtful, the model",
            ThreadSelection::Settled(Given::Doubtful { touched }),
        ),
        (
            "Sent by 1, before a, after b",
            ThreadSelection::Sent {
                message: message("1"),
                before: Given::Known(of("a")),
                after: Box::new(of("b")),
            },
        ),
    ];
    let sent = |id: &str, model: &str| C::Sent {
        message: message(id),
        after: of(model),
    };
    let events = [
        ("made with a", C::Made(of("a"))),
        ("sent by 1, b", sent("1", "b")),
        ("sent by 1, c", sent("1", "c")),
        ("sent by 2, b", sent("2", "b")),
        ("accepted 1", C::Accepted(message("1"))),
        ("accepted 2", C::Accepted(message("2"))),
        ("refused 1", C::Refused(message("1"))),
        ("refused 2", C::Refused(message("2"))),
        ("doubted 1", C::Doubted(message("1"))),
        ("doubted 2", C::Doubted(message("2"))),
        ("unrecorded 1", C::Unrecorded(message("1"))),
        ("unrecorded 2", C::Unrecorded(message("2"))),
    ];
    for (_, change) in &events {
        match change {
            C::Made(_)
            | C::Sent { .. }
            | C::Accepted(_)
            | C::Refused(_)
            | C::Doubted(_)
            | C::Unrecorded(_) => {}
        }
    }
    let on: On<ThreadSelection, SelectionChange> = ThreadSelection::on;
    assert_snapshot!(table(&states, &events, ThreadSelection::name, on));
}
