//! The journal's records: how each is written, that it reads back, that its first form does for ever, and that nothing unknown is
//! taken.

#![allow(clippy::unwrap_used, reason = "helpers of tests are tests")]

#[path = "records/threads.rs"]
mod threads;

use std::{collections::BTreeSet, time::Duration};

use insta::assert_snapshot;
use serde_json::Value;
use turnkeep_core::{
    ArrivalNo, Authorization, AutoBegin, BoxBody, BoxId, CallId, CloseReason, CodexHome, CommandId,
    ConversationId, ConversationKey, Durable, InputItem, JournalSeq, MessageId, Nonce, Outcome,
    QuestionId, Record, Rendering, Settings, SteerWhen, ThreadId, Timestamp, ToolCallId,
    ToolDelivery, ToolResult, TurnId, TurnNo, Version,
    attachment::{Attached, Child, Endpoint},
    cleanup::{Action, CleanupChange, Owner},
    codec::journal,
    command::{
        ApprovalPolicy, Metadata, Questions, Refusal, RefusalClass, Reply, RpcError, Sandbox,
        ShutdownReport, ToolContent, ToolKind,
    },
    effect::{Batch, Durability},
    event::{
        CallClosedWhy, EndReason, EndSource, Failure, FailureKind, LostReason, MalformedCall,
        Phasing, ProtocolError, QuestionClosedWhy, Rejection,
    },
    preflight::{Offered, PreflightEntry},
    prompt::{PromptChange, PromptFields, PromptKind},
    question::QuestionAsked,
    record::RequestEnd,
    remembered::Remembered,
    round::{Action as Act, Cut, RoundChange, StagedCall},
    selection::Selection,
    thread::CreationChange,
    tools::{CallAsked, CallChange},
    transcript::BoxSet,
};
use turnkeep_tests::world::{json, tool};

/// As the first turnkeep wrote them. Lines are added when kinds are; none is ever changed.
const FIRST_FORM: &str = include_str!("records/first-form.jsonl");

/// Records that leave something of every kind in the state.
const FULL_STATE: &str = include_str!("records/full-state.jsonl");

fn checkpoint() -> Record {
    let mut durable = Durable::default();
    for line in FULL_STATE.lines() {
        durable.apply(&serde_json::from_str(line).unwrap()).unwrap();
    }
    durable.checkpoint()
}

fn attached(endpoint: Endpoint, child: Option<Child>) -> Record {
    Record::Attached(Box::new(Attached {
        endpoint,
        instructions: child.map(|_| "see the page".into()),
        child,
    }))
}

fn refusal(class: RefusalClass) -> Refusal {
    Refusal {
        method: "turn/start".into(),
        class,
        error: RpcError {
            code: -32_600,
            message: "no".into(),
            data: Some(json(r#"{"why":1}"#)),
        },
    }
}

fn settings() -> Settings {
    Settings::new()
        .model("m")
        .model_provider("p")
        .effort("high")
        .personality("friendly")
        .cwd("/w")
        .approval_policy(ApprovalPolicy::Other(json(r#"{"granular":{}}"#)))
        .sandbox(Sandbox::WorkspaceWrite)
        .base_instructions("b")
        .developer_instructions("d")
        .service_name("s")
        .config(json(r#"{"a":1}"#))
        .tool(tool("t", ToolKind::Function).time_limit(Duration::from_millis(1_500)))
        .tool(tool("u", ToolKind::Router))
        .tool(tool("v", ToolKind::Message))
        .tool(tool("w", ToolKind::Function).deferred())
        .ephemeral(true)
        .questions(Questions::Ask)
        .workspace("w")
        .rendering(Rendering::Boxed)
        .steer(SteerWhen::AtOnce)
        .auto_begin(AutoBegin::Off)
        .authorization(Authorization::None)
}

fn call() -> ToolCallId {
    ToolCallId {
        nonce: Nonce([7; 12]),
        sequence: 3,
    }
}

fn asked(malformed: bool) -> CallAsked {
    CallAsked {
        conversation: ConversationId(1),
        turn: TurnNo(2),
        native: CallId::new("call_1").unwrap(),
        tool: "inner".into(),
        via: Some("route".into()),
        arguments: json(r#"{"a":[1e2]}"#),
        malformed: malformed.then(|| {
            Box::new(MalformedCall {
                id: call(),
                kind: Some("router".into()),
                native_tool: "route".into(),
                attempted_tool: Some("inner".into()),
                code: "invalid_wrapper_fields".into(),
                path: "$".into(),
                expected: "object with exactly name and arguments".into(),
                received: "{}".into(),
                arguments: "{}".into(),
            })
        }),
    }
}

fn outcomes() -> Vec<Outcome> {
    let lost = |reason| Outcome::Lost {
        reason: LostReason::Connection(Box::new(reason)),
    };
    let closed = |reason| {
        lost(EndReason::Closed {
            phase: Phasing::Ready,
            reason,
            stderr_tail: "tail".into(),
        })
    };
    let rejected = |error| Outcome::Rejected { error };
    vec![
        Outcome::Completed {
            text: Some("t".into()),
            structured: Some(json(r#"{"a":1}"#)),
        },
        Outcome::Completed {
            text: None,
            structured: None,
        },
        Outcome::Interrupted,
        Outcome::Failed {
            error: Failure {
                kind: FailureKind::Server,
                message: "m".into(),
                info: Some(json(r#"{"x":{}}"#)),
                details: Some("d".into()),
            },
        },
        rejected(Rejection::Refused(refusal(RefusalClass::TurnMismatch {
            found: "b".into(),
        }))),
        rejected(Rejection::Thread(refusal(RefusalClass::NoRollout))),
        rejected(Rejection::NotSent("n".into())),
        Outcome::TimedOut,
        closed(CloseReason::Exited {
            code: Some(1),
            signal: None,
        }),
        closed(CloseReason::Eof),
        closed(CloseReason::Lost("reset".into())),
        closed(CloseReason::NotFound(vec!["codex".into()])),
        closed(CloseReason::OpenFailed("no".into())),
        closed(CloseReason::ByUs),
        lost(EndReason::HandshakeTimeout {
            limit: Duration::from_secs(30),
            stderr_tail: String::new(),
        }),
        lost(EndReason::HandshakeRefused {
            message: "m".into(),
            stderr_tail: String::new(),
        }),
        lost(EndReason::UnsupportedVersion {
            version: Version::parse("1.0.0-a+b").unwrap(),
            oldest: Version::new(0, 163, 0),
            first_unsupported: Version::new(0, 172, 0),
        }),
        lost(EndReason::Protocol {
            error: ProtocolError::TooMuchNoise { count: 64 },
            stderr_tail: "tail".into(),
        }),
        lost(EndReason::Unfit),
        lost(EndReason::ClosedByUs),
        Outcome::Lost {
            reason: LostReason::InterruptUnanswered,
        },
        Outcome::Lost {
            reason: LostReason::ClosedByUs,
        },
        Outcome::Lost {
            reason: LostReason::ThreadClosed,
        },
        Outcome::Unknown {
            evidence: "e".into(),
        },
    ]
}

fn prompt_changes() -> Vec<PromptChange> {
    use PromptChange as C;
    let turn = TurnId::new("trn_1").unwrap();
    let fields = |kind, full: bool| {
        C::Prepared(Box::new(PromptFields {
            conversation: ConversationId(1),
            turn: TurnNo(2),
            kind,
            place: u32::from(kind == PromptKind::Steer),
            input: vec![InputItem::text("x"), InputItem::image("data:y")],
            key: full.then(|| "k".into()),
            said: full.then_some(9),
            output_schema: full.then(|| json(r#"{"type":"object"}"#)),
            deadline: full.then_some(Duration::from_millis(1_500)),
            until: full.then_some(Timestamp(8)),
        }))
    };
    let mut all = vec![
        fields(PromptKind::Start, true),
        fields(PromptKind::Steer, false),
        C::Dispatched,
        C::Accepted { turn: turn.clone() },
        C::Output { text: "o".into() },
        C::Unrecorded,
        C::CancelRequested,
        C::CancelDispatched { turn },
        C::CancelSettled,
        C::CancelAmbiguous,
        C::Delivering,
        C::Delivered,
        C::TimedOut,
        C::Forsaken,
    ];
    all.extend(outcomes().into_iter().map(|outcome| C::Ended {
        outcome,
        source: EndSource::Live,
        unrecorded: false,
    }));
    all.extend(
        [EndSource::Local, EndSource::Reconciled].map(|source| C::Ended {
            outcome: Outcome::Interrupted,
            source,
            unrecorded: source == EndSource::Reconciled,
        }),
    );
    all
}

fn cleanups() -> Vec<Record> {
    let threads = vec![
        ThreadId::new("thr_1").unwrap(),
        ThreadId::new("thr_2").unwrap(),
    ];
    let mark = format!("turnkeep-create-{}", "0".repeat(32));
    let conversation = Owner::Conversation(ConversationId(1));
    let row = |owner: &Owner, action, change| Record::Cleanup {
        owner: owner.clone(),
        action,
        change,
    };
    let owed = |threads, marks| CleanupChange::Owed { threads, marks };
    let done = CleanupChange::Done {
        thread: threads[0].clone(),
    };
    vec![
        row(
            &conversation,
            Action::Delete,
            owed(threads.clone(), vec![mark.clone()]),
        ),
        row(
            &conversation,
            Action::Delete,
            owed(Vec::new(), vec![mark.clone()]),
        ),
        row(
            &Owner::Workspace("w".into()),
            Action::Archive,
            owed(threads, Vec::new()),
        ),
        row(&Owner::Client, Action::Detach, done),
        row(
            &conversation,
            Action::Delete,
            CleanupChange::MarkDone { mark },
        ),
    ]
}

fn remembered() -> impl Iterator<Item = Remembered> {
    let turn = TurnNo(2);
    let message = MessageId::new("msg_1").unwrap();
    let (first, last) = (ArrivalNo(3), ArrivalNo(4));
    let replies = [
        Reply::Opened {
            conversation: ConversationId(1),
        },
        Reply::Bound {
            thread: ThreadId::new("thr_1").unwrap(),
        },
        Reply::Accepted {
            turn,
            message: message.clone(),
        },
        Reply::Steered { message },
        Reply::Queued {
            refusal: Box::new(refusal(RefusalClass::NoActiveTurn)),
        },
        Reply::Arrived { first, last },
        Reply::Begun { turn: Some(turn) },
        Reply::Begun { turn: None },
        Reply::Preflighted {
            calls: vec![call()],
        },
        Reply::Boxes {
            boxes: Vec::new(),
            last: BoxId(0),
        },
        Reply::Interrupted,
        Reply::Done,
        Reply::AlreadyEnded {
            outcome: "completed".into(),
        },
        Reply::Response(json("{}")),
        Reply::ShutDown(ShutdownReport::default()),
    ];
    replies.into_iter().filter_map(|reply| {
        let remembered = Remembered::of(&reply)?;
        assert_eq!(remembered.reply(), reply);
        Some(remembered)
    })
}

fn rounds() -> Vec<RoundChange> {
    use RoundChange as C;
    let turn = TurnNo(2);
    let message = || MessageId::new("msg_1").unwrap();
    let boxes = || -> BoxSet { [1, 2, 4].map(BoxId).into_iter().collect() };
    let native = || CallId::new("call_1").unwrap();
    let call = |full: bool| {
        let malformed = asked(true).malformed.filter(|_| full);
        Box::new(StagedCall {
            sequence: 3,
            native: native(),
            tool: "inner".into(),
            via: full.then(|| "route".into()),
            arguments: json(r#"{"a":[1e2]}"#),
            delivery: match full {
                true => ToolDelivery::Deferred,
                false => ToolDelivery::Inline,
            },
            malformed,
        })
    };
    vec![
        C::Begun {
            turn,
            message: message(),
            boxes: boxes(),
        },
        C::Restarted {
            turn,
            message: message(),
            boxes: boxes(),
        },
        C::Staged {
            turn,
            response: "r".into(),
            answers: 1,
            cut: Some(Cut { bytes: 4, crc: 9 }),
            actions: vec![
                Act::Call(call(false)),
                Act::Call(call(true)),
                Act::Message {
                    native: native(),
                    text: "m".into(),
                },
            ],
        },
        C::Staged {
            turn,
            response: String::new(),
            answers: 0,
            cut: None,
            actions: Vec::new(),
        },
        C::Flushed {
            turn,
            message: message(),
            boxes: boxes(),
        },
        C::FlushGivenUp { message: message() },
        C::Completed {
            turn,
            text: "t".into(),
            resume: true,
            after: BoxId(5),
        },
        C::Completed {
            turn,
            text: String::new(),
            resume: false,
            after: BoxId(5),
        },
        C::Failed {
            turn,
            message: "m".into(),
            restartable: true,
            text: None,
        },
        C::Failed {
            turn,
            message: "m".into(),
            restartable: false,
            text: Some(String::new()),
        },
        C::Dismissed,
    ]
}

/// What a conversation is told beside its rounds.
fn of_boxes() -> Vec<Record> {
    let conversation = ConversationId(1);
    let body = || BoxBody::new("User Message", "c");
    let call = |blocking| PreflightEntry::Call {
        sequence: 3,
        offered: Offered {
            tool: "t".into(),
            arguments: json(r#"{"a":[1e2]}"#),
            blocking,
        },
    };
    let mut all = vec![
        Record::Arrival {
            conversation,
            first: ArrivalNo(3),
            boxes: vec![body(), body().hidden("h/1", "d")],
            key: Some("k".into()),
        },
        Record::Arrival {
            conversation,
            first: ArrivalNo(3),
            boxes: vec![body()],
            key: None,
        },
    ];
    all.extend(rounds().into_iter().map(|change| Record::Round {
        conversation,
        change,
    }));
    all.extend([
        Record::Submission {
            conversation,
            message: MessageId::new("msg_1").unwrap(),
            boxes: [1, 2, 4].map(BoxId).into_iter().collect(),
        },
        Record::Preflight {
            conversation,
            entries: vec![
                PreflightEntry::System(BoxBody::new("System Message", "s")),
                call(true),
                call(false),
            ],
        },
        Record::Held {
            conversation,
            reason: "r".into(),
        },
        Record::Released { conversation },
    ]);
    all
}

/// Every record with every change; a new variant does not build until it stands here.
fn records() -> Vec<Record> {
    let conversation = ConversationId(1);
    let thread = ThreadId::new("thr_1").unwrap();
    let result = ToolResult::ok("r")
        .with(ToolContent::Image("i".into()))
        .with(ToolContent::Audio("a".into()))
        .metadata(Metadata {
            metadata_type: "t".into(),
            contents: "c".into(),
        });
    let question = QuestionId(4);
    let command = CommandId(5);
    let mut all = vec![
        Record::Start {
            version: "0.1.0".into(),
            seed: u64::MAX,
            at: Timestamp(7),
        },
        checkpoint(),
        Durable::default().checkpoint(),
        attached(
            Endpoint::Spawn,
            Some(Child {
                pid: 7,
                start_time: Some(9),
            }),
        ),
        attached(
            Endpoint::Tcp {
                host: "h".into(),
                port: 1,
            },
            None,
        ),
        attached(Endpoint::Unix { path: "/s".into() }, None),
        attached(Endpoint::Stream, None),
        Record::HomeTold {
            home: CodexHome::new("/h").unwrap(),
        },
        Record::Detached,
        Record::ConversationOpened {
            conversation,
            key: ConversationKey::new("k").unwrap(),
            nonce: Nonce([7; 12]),
            settings: Box::new(settings()),
            authorization: Authorization::Needed,
        },
        Record::ConversationOpened {
            conversation,
            key: ConversationKey::new("k").unwrap(),
            nonce: Nonce([7; 12]),
            settings: Box::new(Settings::new()),
            authorization: Authorization::None,
        },
        Record::SettingsChanged {
            conversation,
            settings: Box::new(settings()),
        },
        Record::ConversationClosed { conversation },
        Record::ServerTurn {
            conversation,
            turn: TurnNo(4),
        },
    ];
    all.extend(threads::records());
    let mark = format!("turnkeep-create-{}", "0".repeat(32));
    all.extend(
        [
            CreationChange::Preparing { mark },
            CreationChange::Ready,
            CreationChange::Dispatched,
            CreationChange::Seen {
                thread: thread.clone(),
            },
            CreationChange::Bound { thread },
            CreationChange::Rejected {
                refusal: refusal(RefusalClass::BadConfiguration),
            },
            CreationChange::Unresolved,
            CreationChange::Gone,
        ]
        .map(|change| Record::ThreadCreation {
            conversation,
            change,
        }),
    );
    all.extend(prompt_changes().into_iter().map(|change| Record::Prompt {
        message: MessageId::new("msg_1").unwrap(),
        change,
    }));
    all.extend([true, false].map(|full| Record::Selection {
        conversation,
        message: MessageId::new("msg_1").unwrap(),
        after: Box::new(match full {
            true => settings().selection(),
            false => Selection::default(),
        }),
    }));
    all.extend(
        [
            CallChange::Asked(Box::new(asked(false))),
            CallChange::Asked(Box::new(asked(true))),
            CallChange::Launched,
            CallChange::Message { text: "t".into() },
            CallChange::Deferred,
            CallChange::Given,
            CallChange::Answered {
                result: result.clone(),
                given: false,
            },
            CallChange::Answered {
                result,
                given: true,
            },
            CallChange::Closed {
                why: CallClosedWhy::TimeLimit,
                given: false,
            },
            CallChange::Closed {
                why: CallClosedWhy::Dismissed,
                given: true,
            },
        ]
        .map(|change| Record::ToolCall {
            call: call(),
            change,
        }),
    );
    all.extend(of_boxes());
    all.extend([
        Record::QuestionAsked {
            question,
            asked: Box::new(QuestionAsked {
                conversation,
                turn: Some(TurnNo(2)),
                thread: None,
                native: None,
                method: "m".into(),
                item: Some("i".into()),
                approval: Some("a".into()),
            }),
        },
        Record::QuestionAnswered {
            question,
            result: json(r#"{"decision":"accept"}"#),
            chosen: true,
        },
        Record::QuestionSettled {
            question,
            why: Some(QuestionClosedWhy::Resolved),
        },
        Record::QuestionSettled {
            question,
            why: None,
        },
        Record::Request {
            command,
            method: "x/y".into(),
        },
    ]);
    all.extend(cleanups());
    all.extend(remembered().map(|answer| Record::Command {
        id: command,
        answer,
    }));
    all.extend(
        [
            RequestEnd::Answered,
            RequestEnd::Refused { code: -32_603 },
            RequestEnd::NotSent,
            RequestEnd::Unknown,
        ]
        .map(|end| Record::RequestEnded { command, end }),
    );
    for record in &all {
        match record {
            Record::Start { .. }
            | Record::Checkpoint(_)
            | Record::Attached(_)
            | Record::HomeTold { .. }
            | Record::Detached
            | Record::ConversationOpened { .. }
            | Record::SettingsChanged { .. }
            | Record::ConversationClosed { .. }
            | Record::Arrival { .. }
            | Record::Round { .. }
            | Record::Submission { .. }
            | Record::Preflight { .. }
            | Record::Held { .. }
            | Record::Released { .. }
            | Record::Forked(_)
            | Record::Naming { .. }
            | Record::Compaction { .. }
            | Record::ServerTurn { .. }
            | Record::ThreadCreation { .. }
            | Record::Prompt { .. }
            | Record::Selection { .. }
            | Record::ToolCall { .. }
            | Record::QuestionAsked { .. }
            | Record::QuestionAnswered { .. }
            | Record::QuestionSettled { .. }
            | Record::Cleanup { .. }
            | Record::Command { .. }
            | Record::Request { .. }
            | Record::RequestEnded { .. } => {}
        }
    }
    all
}

fn written(record: &Record) -> String {
    serde_json::to_string(record).unwrap()
}

#[test]
fn every_record_as_it_is_written() {
    let lines: Vec<String> = records().iter().map(written).collect();
    assert_snapshot!(lines.join("\n"));
}

#[test]
fn every_record_reads_back_through_the_journal() {
    let all = records();
    let kinds: BTreeSet<_> = all.iter().map(Record::kind).collect();
    assert_eq!(kinds.len(), 29);
    let batch = Batch {
        through: JournalSeq(1),
        durability: Durability::Synced,
        at: Timestamp(7),
        records: all.clone(),
    };
    let read = journal::decode(&journal::encode(&batch)).unwrap();
    // A count that is not written is made when the record is taken.
    let again = read.entries[0].1.records.iter().map(written);
    assert!(again.eq(all.iter().map(written)));
}

#[test]
fn the_first_form_reads_for_ever() {
    let read: Vec<Record> = FIRST_FORM
        .lines()
        .map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}")))
        .collect();
    let kinds: BTreeSet<_> = read.iter().map(Record::kind).collect();
    let all: BTreeSet<_> = records().iter().map(Record::kind).collect();
    assert_eq!(kinds, all, "every kind stands in the first form");
}

/// What is opaque: any JSON may stand there.
const OPAQUE: [&str; 11] = [
    "config",
    "input_schema",
    "input",
    "output_schema",
    "arguments",
    "data",
    "info",
    "structured",
    "other",
    "granular",
    "decision",
];

#[test]
fn an_unknown_member_is_refused_wherever_it_stands() {
    for record in records() {
        let value: Value = serde_json::from_str(&written(&record)).unwrap();
        let mut all = Vec::new();
        with_a_stranger(&value, &mut Vec::new(), &value, &mut all);
        for (place, text) in all {
            let read = serde_json::from_str::<Record>(&text);
            assert!(
                read.is_err(),
                "{} takes a stranger at {place}: {text}",
                record.kind()
            );
        }
    }
}

/// The value with one more member in each of its objects.
fn with_a_stranger(
    root: &Value,
    path: &mut Vec<String>,
    at: &Value,
    out: &mut Vec<(String, String)>,
) {
    match at {
        Value::Object(map) => {
            let mut changed = root.clone();
            let mut place = &mut changed;
            for key in path.iter() {
                place = match place {
                    Value::Object(map) => map.get_mut(key).unwrap(),
                    Value::Array(all) => &mut all[key.parse::<usize>().unwrap()],
                    _ => unreachable!("a path goes through objects and lists"),
                };
            }
            place
                .as_object_mut()
                .unwrap()
                .insert("stranger".into(), Value::from(1));
            out.push((path.join("."), changed.to_string()));
            for (key, value) in map {
                let of_question =
                    map.contains_key("question") || path.contains(&"ambiguous".into());
                let is_result = key == "result" && of_question;
                if OPAQUE.contains(&key.as_str()) || is_result {
                    continue;
                }
                path.push(key.clone());
                with_a_stranger(root, path, value, out);
                path.pop();
            }
        }
        Value::Array(all) => {
            for (n, value) in all.iter().enumerate() {
                path.push(n.to_string());
                with_a_stranger(root, path, value, out);
                path.pop();
            }
        }
        _ => {}
    }
}
