//! What the life of a message allows, beside the tables of its states: rules that hold between its parts.

#![allow(clippy::unwrap_used, reason = "helpers of tests are tests")]

use turnkeep_core::{
    ConversationId, Durable, InputItem, Outcome, Record, TurnId, TurnNo,
    error::Change,
    event::{EndSource, Failure, FailureKind, LostReason, Rejection},
    prompt::{Cancellation, Delivery, Prompt, PromptChange, PromptFields, PromptKind, PromptState},
};
use turnkeep_tests::world::json;

fn turn(id: &str) -> TurnId {
    TurnId::new(id).unwrap()
}

fn fields() -> PromptFields {
    PromptFields {
        conversation: ConversationId(1),
        turn: TurnNo(1),
        kind: PromptKind::Start,
        place: 0,
        input: vec![InputItem::text("x")],
        key: None,
        said: None,
        output_schema: None,
        deadline: None,
        until: None,
    }
}

/// What became of a message, through all of its records.
fn prompt_after(changes: &[PromptChange]) -> Prompt {
    let mut prompt = Prompt::new(fields());
    for change in changes {
        prompt.on(change).unwrap();
    }
    prompt
}

fn ended(outcome: &str, source: EndSource) -> PromptChange {
    let outcome = match outcome {
        "completed" => Outcome::Completed {
            text: Some("t".into()),
            structured: None,
        },
        "interrupted" => Outcome::Interrupted,
        "failed" => Outcome::Failed {
            error: Failure {
                kind: FailureKind::Server,
                message: "m".into(),
                info: None,
                details: None,
            },
        },
        "rejected" => Outcome::Rejected {
            error: Rejection::NotSent("n".into()),
        },
        "lost" => Outcome::Lost {
            reason: LostReason::ClosedByUs,
        },
        _ => Outcome::Unknown {
            evidence: "e".into(),
        },
    };
    PromptChange::Ended {
        outcome,
        source,
        unrecorded: false,
    }
}

#[test]
fn an_end_keeps_what_was_said_and_where_it_is_known_from() {
    use PromptChange as C;
    let running = [
        C::Dispatched,
        C::Accepted { turn: turn("a") },
        C::Output { text: "o".into() },
    ];
    let after = |change: C| prompt_after(&[&running[..], &[change]].concat());
    let interrupted = after(ended("interrupted", EndSource::Reconciled));
    assert_eq!(interrupted.state.output(), Some("o"));
    assert!(matches!(
        interrupted.state,
        PromptState::Terminal {
            source: EndSource::Reconciled,
            ..
        }
    ));
    // The same text is kept once, another one beside the outcome's.
    let same = after(C::Ended {
        outcome: Outcome::Completed {
            text: Some("o".into()),
            structured: None,
        },
        source: EndSource::Live,
        unrecorded: false,
    });
    assert!(matches!(
        same.state,
        PromptState::Terminal { output: None, .. }
    ));
    assert_eq!(same.state.output(), Some("o"));
    let other = after(ended("completed", EndSource::Live));
    assert_eq!(other.state.output(), Some("o"));
}

#[test]
fn what_is_unknown_becomes_known_once() {
    use PromptChange as C;
    let accepted = [C::Dispatched, C::Accepted { turn: turn("a") }];
    let unknown = [&accepted[..], &[ended("unknown", EndSource::Local)]].concat();
    let mut prompt = prompt_after(&unknown);
    for (no_knowledge, source) in [("lost", EndSource::Local), ("rejected", EndSource::Live)] {
        assert!(prompt.on(&ended(no_knowledge, source)).is_err());
    }
    let known = ended("failed", EndSource::Reconciled);
    assert_eq!(prompt.on(&known), Ok(Change::Applied));
    assert_eq!(prompt.on(&known), Ok(Change::NoOp));
    for again in ["completed", "interrupted", "unknown", "lost"] {
        assert!(prompt.on(&ended(again, EndSource::Reconciled)).is_err());
    }
}

#[test]
fn a_message_that_was_never_recorded_is_still_to_be_stopped() {
    use PromptChange as C;
    let accepted = [C::Dispatched, C::Accepted { turn: turn("a") }];
    let stopping = [
        C::CancelRequested,
        C::CancelDispatched { turn: turn("a") },
        C::CancelAmbiguous,
        C::CancelSettled,
    ];
    for asked in 0..=stopping.len() {
        let mut prompt = prompt_after(&[&accepted[..], &stopping[..asked]].concat());
        assert_eq!(prompt.on(&C::Unrecorded), Ok(Change::Applied), "{asked}");
        let wish = match asked {
            0 => Cancellation::NotRequested,
            _ => Cancellation::Requested,
        };
        assert_eq!((prompt.attempt, prompt.cancellation), (2, wish), "{asked}");
    }
}

#[test]
fn what_ended_did_not_time_out() {
    use PromptChange as C;
    let accepted = [C::Dispatched, C::Accepted { turn: turn("a") }];
    let mut over = prompt_after(&[&accepted[..], &[ended("completed", EndSource::Live)]].concat());
    assert!(over.on(&C::TimedOut).is_err());
    let mut late = prompt_after(&[&accepted[..], &[C::TimedOut]].concat());
    assert_eq!(late.cancellation, Cancellation::Requested);
    assert_eq!(
        late.on(&ended("interrupted", EndSource::Live)),
        Ok(Change::Applied)
    );
    assert!(late.is_at_rest());
    assert_eq!(late.on(&C::TimedOut), Ok(Change::NoOp));
}

/// A start of ours opens again what a crash left between telling and hearing.
#[test]
fn a_start_opens_what_a_crash_left_on_its_way() {
    use PromptChange as C;
    let accepted = [C::Dispatched, C::Accepted { turn: turn("a") }];
    let told = [
        &accepted[..],
        &[ended("completed", EndSource::Live), C::Delivering],
    ]
    .concat();
    let stopping = [
        &accepted[..],
        &[C::CancelRequested, C::CancelDispatched { turn: turn("a") }],
    ]
    .concat();
    for (changes, cancellation) in [
        (told, Cancellation::NotRequested),
        (stopping, Cancellation::Ambiguous),
    ] {
        let mut durable = Durable::default();
        let message = turnkeep_core::MessageId::new("msg_1").unwrap();
        let start = r#"{"start":{"version":"0.1.0","seed":1,"at":7}}"#;
        let start: Record = serde_json::from_str(start).unwrap();
        let opened = r#"{"conversation_opened":{"conversation":1,"key":"k","nonce":"070707070707070707070707","settings":{}}}"#;
        durable.apply(&start).unwrap();
        durable
            .apply(&serde_json::from_str(opened).unwrap())
            .unwrap();
        let prepared = C::Prepared(Box::new(fields()));
        for change in [&[prepared][..], &changes].concat() {
            let message = message.clone();
            durable.apply(&Record::Prompt { message, change }).unwrap();
        }
        durable.apply(&start).unwrap();
        let prompt = durable.prompt(&message).unwrap();
        assert_eq!(
            (prompt.delivery, prompt.cancellation),
            (Delivery::Waiting, cancellation)
        );
    }
}

#[test]
fn a_schema_is_measured_without_its_white_space() {
    let of = |schema: &str| {
        let mut fields = fields();
        fields.output_schema = Some(json(schema));
        fields.validate()
    };
    let long = "x".repeat((64 << 10) - r#"{"a":""}"#.len());
    assert_eq!(of(&format!(r#"{{"a":"{long}"}}"#)), Ok(()));
    assert_eq!(of(&format!("{{ \"a\" :\n\"{long}\" }}")), Ok(()));
    assert!(of(&format!(r#"{{"a":"{long}y"}}"#)).is_err());
    for bad in ["{}", "[]", "1", "{ }"] {
        assert!(of(bad).is_err(), "{bad}");
    }
}

#[test]
fn fields_that_cannot_be_are_refused() {
    type Spoil = fn(&mut PromptFields);
    let wrong: [(&str, Spoil); 4] = [
        ("no input", |fields| fields.input.clear()),
        ("an empty key", |fields| fields.key = Some(String::new())),
        ("a key with white space", |fields| {
            fields.key = Some("k ".into())
        }),
        ("no time", |fields| {
            fields.deadline = Some(core::time::Duration::ZERO)
        }),
    ];
    assert_eq!(fields().validate(), Ok(()));
    for (what, spoil) in wrong {
        let mut fields = fields();
        spoil(&mut fields);
        assert!(fields.validate().is_err(), "{what}");
    }
}
