//! The rounds of conversations and what they begin with: jobs and tokens that are stale or foreign, acts at the wrong time, and
//! records that contradict themselves. The whole table of the states stands in `tables.rs`.

#![allow(clippy::unwrap_used, reason = "helpers of tests are tests")]

use turnkeep_core::{
    BoxId, CallId, ConversationId, ConversationKey, Durable, MessageId, Nonce, Record, Settings,
    TurnNo,
    command::Authorization,
    preflight::{Offered, PreflightEntry},
    round::{Action, Round, RoundChange},
    transcript::{BoxBody, BoxSet},
};
use turnkeep_tests::world::json;

/// The job of the round.
const JOB: TurnNo = TurnNo(5);
const STALE: TurnNo = TurnNo(4);
const FRESH: TurnNo = TurnNo(6);

fn message(n: u8) -> MessageId {
    MessageId::new(&format!("msg_{n:032x}")).unwrap()
}

fn boxes() -> BoxSet {
    [BoxId(1)].into_iter().collect()
}

fn begun(turn: TurnNo) -> RoundChange {
    RoundChange::Begun {
        turn,
        message: message(1),
        boxes: boxes(),
    }
}

fn restarted(turn: TurnNo) -> RoundChange {
    RoundChange::Restarted {
        turn,
        message: message(3),
        boxes: boxes(),
    }
}

fn staged(turn: TurnNo, answers: u32) -> RoundChange {
    RoundChange::Staged {
        turn,
        response: "so far".into(),
        answers,
        cut: None,
        actions: vec![Action::Message {
            native: CallId::new("c").unwrap(),
            text: "on it".into(),
        }],
    }
}

fn flushed(turn: TurnNo) -> RoundChange {
    RoundChange::Flushed {
        turn,
        message: message(2),
        boxes: boxes(),
    }
}

fn completed(turn: TurnNo) -> RoundChange {
    RoundChange::Completed {
        turn,
        text: String::new(),
        resume: false,
        after: BoxId(2),
    }
}

fn failed(turn: TurnNo, restartable: bool) -> RoundChange {
    RoundChange::Failed {
        turn,
        message: "the model failed".into(),
        restartable,
        text: None,
    }
}

fn after(changes: &[RoundChange]) -> Round {
    let mut round = Round::default();
    for change in changes {
        round.on(change).unwrap();
    }
    round
}

fn states() -> Vec<(&'static str, Round)> {
    vec![
        ("Idle", Round::default()),
        ("Generating", after(&[begun(JOB)])),
        (
            "Generating after a stage",
            after(&[begun(JOB), staged(JOB, 1)]),
        ),
        (
            "Steering",
            after(&[begun(JOB), staged(JOB, 1), flushed(JOB)]),
        ),
        (
            "Stalled and restartable",
            after(&[begun(JOB), failed(JOB, true)]),
        ),
        ("Stalled", after(&[begun(JOB), failed(JOB, false)])),
    ]
}

fn events() -> Vec<(&'static str, RoundChange)> {
    let answered = |n| RoundChange::FlushAnswered {
        message: message(n),
    };
    let given_up = |n| RoundChange::FlushGivenUp {
        message: message(n),
    };
    vec![
        ("begun", begun(FRESH)),
        ("restarted", restarted(FRESH)),
        ("restarted, old job", restarted(JOB)),
        ("staged", staged(JOB, 1)),
        ("staged, fewer answers", staged(JOB, 0)),
        ("staged, stale job", staged(STALE, 1)),
        ("flushed", flushed(JOB)),
        ("flushed, stale job", flushed(STALE)),
        ("answered", answered(2)),
        ("answered, foreign token", answered(7)),
        ("given up", given_up(2)),
        ("given up, foreign token", given_up(7)),
        ("completed", completed(JOB)),
        ("completed, stale job", completed(STALE)),
        ("failed", failed(JOB, false)),
        ("failed, restartable", failed(JOB, true)),
        ("failed, stale job", failed(STALE, false)),
        ("dismissed", RoundChange::Dismissed),
    ]
}

#[test]
fn a_stale_job_and_a_foreign_token_are_refused_in_every_state() {
    for (label, state) in states() {
        for (event, change) in events() {
            if event.contains("stale job") || event.contains("foreign token") {
                let mut next = state.clone();
                let refused = next.on(&change);
                assert!(refused.is_err(), "{label} x {event}");
                assert_eq!(next, state, "{label} x {event}");
            }
        }
    }
}

#[test]
fn what_the_model_does_is_taken_while_it_generates_only() {
    for (label, mut state) in states() {
        let generates = label.starts_with("Generating");
        assert_eq!(state.on(&staged(JOB, 1)).is_ok(), generates, "{label}");
    }
    for (label, mut state) in states() {
        let generates = label.starts_with("Generating");
        assert_eq!(state.on(&completed(JOB)).is_ok(), generates, "{label}");
    }
}

#[test]
fn a_flush_is_made_at_a_stage_only() {
    for (label, mut state) in states() {
        let stage = label == "Generating after a stage";
        assert_eq!(state.on(&flushed(JOB)).is_ok(), stage, "{label}");
    }
}

#[test]
fn a_preflight_that_contradicts_itself_is_refused() {
    let conversation = ConversationId(1);
    let opened = Record::ConversationOpened {
        conversation,
        key: ConversationKey::new("a").unwrap(),
        nonce: Nonce([7; 12]),
        settings: Box::new(Settings::new()),
        authorization: Authorization::None,
    };
    let call = |sequence| PreflightEntry::Call {
        sequence,
        offered: Offered {
            tool: "look".into(),
            arguments: json("{}"),
            blocking: true,
        },
    };
    let system = || PreflightEntry::System(BoxBody::system("be brief"));
    let preflight = |entries| Record::Preflight {
        conversation,
        entries,
    };
    let mut fresh = Durable::default();
    fresh.apply(&opened).unwrap();
    let bad = [
        ("nothing", vec![]),
        ("sequence 0", vec![call(0)]),
        ("a number twice", vec![call(1), call(1)]),
        ("a number left out", vec![call(2)]),
        ("not in order", vec![call(2), call(1)]),
        (
            "no system message",
            vec![PreflightEntry::System(BoxBody::user("hello"))],
        ),
    ];
    for (what, entries) in bad {
        let mut state = fresh.clone();
        assert!(state.apply(&preflight(entries)).is_err(), "{what}");
    }
    let mut state = fresh.clone();
    state
        .apply(&preflight(vec![system(), call(1), call(2)]))
        .unwrap();
    let second = state.clone().apply(&preflight(vec![call(3)]));
    assert!(second.is_err(), "a second record");
    let again = state.apply(&preflight(vec![system(), call(1), call(2)]));
    assert!(again.is_err(), "the same record again");
}
