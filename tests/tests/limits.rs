//! What no text may do, wherever JSON comes in: 100,000 brackets, numbers without end, halves of characters, the same key twice, ends
//! anywhere. Beside the properties in `props.rs` and what the fuzz targets find.

#![allow(clippy::unwrap_used, reason = "helpers of tests are tests")]

use std::{panic, thread};

use proptest::{collection::vec, prelude::*, sample::Index};
use serde_json::Value;
use turnkeep_core::{
    Command, CommandError, CommandId, Config, ConversationId, ConversationKey, Effects, Epoch,
    Event, Input, InputItem, QuestionId, RawJson, Reply, SendOptions, Settings, Timestamp, Tool,
    TurnUpdate,
    codec::{
        journal::{self, JournalError},
        trace,
    },
    command::{Answer, ApprovalPolicy, Questions, RequestEffect},
    effect::{Batch, Durability},
    json::{CanonicalError, canonical},
    preflight::PreflightItem,
    read_again,
    transcript::{BoxBody, box_type},
};
use turnkeep_fuzz::journal_of;
use turnkeep_tests::by_hand::ByHand;

/// How deep texts go.
const DEEP: usize = 100_000;

/// The stack of the thread that reads them: of a reader that calls itself for each bracket nothing would be left of it.
const STACK: usize = 512 << 10;

/// Arrays in arrays, objects in objects, and both without an end.
fn deep_texts() -> [String; 4] {
    let arrays = "[".repeat(DEEP);
    let objects = r#"{"a":"#.repeat(DEEP);
    [
        format!("{arrays}{}", "]".repeat(DEEP)),
        format!("{objects}1{}", "}".repeat(DEEP)),
        arrays,
        objects,
    ]
}

/// The texts among them that are JSON, and one that looks like a part of a message.
fn deep_values() -> [String; 3] {
    let [arrays, objects, ..] = deep_texts();
    let within = format!(r#"{{"type":"image","url":"u","a":{arrays}}}"#);
    [arrays, objects, within]
}

/// Runs something on a small stack, so that a reader that calls itself is found.
fn on_a_small_stack(work: fn()) {
    let thread = thread::Builder::new().stack_size(STACK).spawn(work);
    if let Err(panic) = thread.unwrap().join() {
        panic::resume_unwind(panic);
    }
}

/// A machine with turn `trn_1` of thread `thr_1` running, whose questions are asked.
fn running() -> ByHand {
    let mut host = ByHand::ready();
    let settings = Settings::new()
        .questions(Questions::Ask)
        .tool(Tool::function("look", "", json("{}")));
    host.command(Command::Open {
        key: ConversationKey::new("a").unwrap(),
        settings: settings.into(),
    });
    host.command(Command::Send {
        conversation: ConversationId(1),
        input: vec!["go".into()],
        options: SendOptions::new().into(),
    });
    let start = host.next_sent("thread/start");
    host.line(&format!(
        r#"{{"id":{},"result":{{"thread":{{"id":"thr_1"}}}}}}"#,
        start["id"]
    ));
    let start = host.next_sent("turn/start");
    host.line(&format!(
        r#"{{"id":{},"result":{{"turn":{{"id":"trn_1"}}}}}}"#,
        start["id"]
    ));
    host.line(r#"{"method":"turn/started","params":{"threadId":"thr_1","turn":{"id":"trn_1","status":"inProgress"}}}"#);
    host
}

/// Shows that the machine still does what it is asked.
fn goes_on(host: &mut ByHand) {
    host.sent.clear();
    let asked = host.command(Command::Request {
        method: "x/after".into(),
        params: json("{}"),
        effect: RequestEffect::Reads,
    });
    let frame = host.next_sent("x/after");
    host.line(&format!(r#"{{"id":{},"result":{{}}}}"#, frame["id"]));
    assert_eq!(host.answer(asked), Some(&Ok(Reply::Response(json("{}")))));
}

fn json(text: &str) -> RawJson {
    RawJson::parse(text).unwrap()
}

const IDS: &str = r#""threadId":"thr_1","turnId":"trn_1""#;

/// Lines in each of which `$` stands for any JSON.
fn lines() -> Vec<String> {
    let mut lines: Vec<String> = [
        "$",
        r#"{"id":$}"#,
        r#"{"id":99,"result":$}"#,
        r#"{"id":99,"error":$}"#,
        r#"{"id":99,"error":{"code":-32600,"message":"m","data":$}}"#,
        r#"{"method":$}"#,
        r#"{"id":$,"method":"x"}"#,
        r#"{"jsonrpc":$,"method":"x"}"#,
        r#"{"method":"some/thing","params":$}"#,
        r#"{"id":7,"method":"some/thing","params":$}"#,
        r#"{"method":"some/thing","id":7,"params":$}"#,
        r#"{"method":"thread/status/changed","params":{"threadId":"thr_1","status":$}}"#,
        r#"{"method":"turn/completed","params":{"threadId":"thr_1","turn":$}}"#,
        r#"{"method":"turn/completed","params":{"threadId":"thr_1","turn":{"id":"trn_2","status":"completed","items":$}}}"#,
        r#"{"method":"turn/completed","params":{"threadId":"thr_1","turn":{"id":"trn_2","status":"completed","items":[$]}}}"#,
        r#"{"method":"turn/completed","params":{"threadId":"thr_1","turn":{"id":"trn_2","status":"failed","error":$}}}"#,
        r#"{"method":"turn/completed","params":{"threadId":"thr_1","turn":{"id":"trn_2","status":"failed","error":{"message":"m","codexErrorInfo":$}}}}"#,
        r#"{"method":"serverRequest/resolved","params":{"threadId":"thr_1","requestId":$}}"#,
        r#"{"method":"thread/started","params":{"thread":$}}"#,
        r#"{"method":"thread/started","params":{"thread":{"id":"x","source":$}}}"#,
        r#"{"method":"warning","params":{"threadId":"thr_1","message":$}}"#,
        r#"{"id":8,"method":"mcpServer/elicitation/request","params":{"threadId":"thr_1","turnId":null,"serverName":"s","mode":"form","message":"m","requestedSchema":$}}"#,
    ]
    .map(str::to_owned)
    .into();
    for (method, params) in [
        ("item/agentMessage/delta", r#""itemId":"i","delta":$"#),
        (
            "item/agentMessage/delta",
            r#""itemId":"i","delta":"d","x":$"#,
        ),
        (
            "item/reasoning/textDelta",
            r#""itemId":"i","contentIndex":$,"delta":"d""#,
        ),
        ("item/started", r#""item":$"#),
        (
            "item/completed",
            r#""item":{"type":"agentMessage","id":"i","text":$}"#,
        ),
        (
            "item/completed",
            r#""item":{"type":"commandExecution","id":"i","x":$}"#,
        ),
        ("thread/tokenUsage/updated", r#""tokenUsage":$"#),
        ("turn/diff/updated", r#""diff":$"#),
        ("turn/plan/updated", r#""plan":$"#),
        ("error", r#""willRetry":true,"error":$"#),
    ] {
        lines.push(format!(
            r#"{{"method":"{method}","params":{{{IDS},{params}}}}}"#
        ));
    }
    for (method, params) in [
        (
            "item/tool/call",
            r#""callId":"c","tool":"look","arguments":$"#,
        ),
        (
            "item/tool/call",
            r#""callId":"c","tool":"look","arguments":{"a":$}"#,
        ),
        ("item/tool/call", r#""callId":"c","tool":$,"arguments":{}"#),
        (
            "item/commandExecution/requestApproval",
            r#""itemId":"i","availableDecisions":$"#,
        ),
        (
            "item/commandExecution/requestApproval",
            r#""itemId":"i","availableDecisions":["accept",$]"#,
        ),
        (
            "item/permissions/requestApproval",
            r#""itemId":"i","permissions":$"#,
        ),
        (
            "item/permissions/requestApproval",
            r#""itemId":"i","permissions":{"network":$}"#,
        ),
        (
            "item/tool/requestUserInput",
            r#""itemId":"i","questions":$"#,
        ),
    ] {
        lines.push(format!(
            r#"{{"id":9,"method":"{method}","params":{{{IDS},{params}}}}}"#
        ));
    }
    lines
}

#[test]
fn no_line_of_the_server_is_too_deep() {
    on_a_small_stack(|| {
        let mut host = running();
        for line in lines() {
            for text in deep_texts() {
                host.line(&line.replace('$', &text));
            }
            goes_on(&mut host);
        }
    });
}

#[test]
fn no_answer_of_the_server_is_too_deep() {
    on_a_small_stack(|| {
        let results: [(&str, &[&str]); 4] = [
            (
                "initialize",
                &["$", r#"{"userAgent":"x/0.171.0 (x)","codexHome":$}"#],
            ),
            (
                "thread/start",
                &[
                    "$",
                    r#"{"thread":$}"#,
                    r#"{"thread":{"id":"thr_1"},"model":$}"#,
                ],
            ),
            (
                "turn/start",
                &[
                    "$",
                    r#"{"turn":$}"#,
                    r#"{"turn":{"id":"trn_1","status":"inProgress","items":[$]}}"#,
                ],
            ),
            ("x/raw", &["$", r#"{"a":$}"#]),
        ];
        for (method, forms) in results {
            for form in forms {
                for deep in deep_values() {
                    let mut host = ByHand::new(turnkeep_tests::unbound());
                    host.open();
                    host.command(Command::Request {
                        method: "x/raw".into(),
                        params: json("{}"),
                        effect: RequestEffect::Changes,
                    });
                    host.command(Command::Open {
                        key: ConversationKey::new("a").unwrap(),
                        settings: Settings::new().into(),
                    });
                    host.command(Command::Send {
                        conversation: ConversationId(1),
                        input: vec!["go".into()],
                        options: SendOptions::new().into(),
                    });
                    while let Some(sent) = host.sent.pop_front() {
                        let plain = match sent.json["method"].as_str().unwrap() {
                            own if own == method => &form.replace('$', &deep),
                            "initialize" => r#"{"userAgent":"x/0.171.0 (x)","codexHome":"/h"}"#,
                            "thread/start" => r#"{"thread":{"id":"thr_1"}}"#,
                            "turn/start" => r#"{"turn":{"id":"trn_1"}}"#,
                            _ => "{}",
                        };
                        if sent.json.get("id").is_some() {
                            host.line(&format!(r#"{{"id":{},"result":{plain}}}"#, sent.json["id"]));
                        }
                    }
                }
            }
        }
    });
}

#[test]
fn deep_arguments_are_refused() {
    on_a_small_stack(|| {
        for deep in deep_values() {
            let mut host = running();
            host.sent.clear();
            host.line(&format!(
                r#"{{"id":9,"method":"item/tool/call","params":{{{IDS},"callId":"c","tool":"look","arguments":{deep}}}}}"#
            ));
            let refusal = host.sent.pop_front().unwrap().json;
            assert_eq!(
                (&refusal["id"], refusal["error"].is_object()),
                (&9.into(), true)
            );
            let offered = updates(&host, |update| match update {
                TurnUpdate::ToolCall(_) => Some(()),
                _ => None,
            });
            assert!(offered.is_empty());
            goes_on(&mut host);
        }
    });
}

fn updates<T>(host: &ByHand, pick: impl Fn(&TurnUpdate) -> Option<T>) -> Vec<T> {
    let all = host.events.iter();
    all.filter_map(|event| match event {
        Event::Turn(event) => pick(&event.update),
        _ => None,
    })
    .collect()
}

/// Commands that carry a JSON value of the application.
fn commands(value: &RawJson) -> Vec<Command> {
    let conversation = ConversationId(1);
    let open = |key: &str, settings: Settings| Command::Open {
        key: ConversationKey::new(key).unwrap(),
        settings: settings.into(),
    };
    let accept = |body: BoxBody| Command::Accept {
        conversation,
        boxes: vec![body],
        options: Box::default(),
    };
    let mut commands = vec![
        open(
            "schema",
            Settings::new().tool(Tool::function("t", "", value.clone())),
        ),
        open("config", Settings::new().config(value.clone())),
        open(
            "policy",
            Settings::new().approval_policy(ApprovalPolicy::Other(value.clone())),
        ),
        Command::Request {
            method: "x/change".into(),
            params: value.clone(),
            effect: RequestEffect::Changes,
        },
        Command::Send {
            conversation,
            input: vec!["b".into()],
            options: SendOptions::new().output_schema(value.clone()).into(),
        },
        Command::Preflight {
            conversation,
            items: vec![PreflightItem::Call {
                tool: "look".into(),
                arguments: value.clone(),
                blocking: true,
            }],
        },
        accept(
            BoxBody::new(box_type::USER_ATTACHMENT, "").hidden("turnkeep.input/image", value.get()),
        ),
    ];
    for answer in [
        Answer::Decision(value.clone()),
        Answer::Permissions(value.clone()),
        Answer::Form(value.clone()),
    ] {
        let question = QuestionId(1);
        commands.push(Command::Answer { question, answer });
    }
    if let Ok(item) = InputItem::raw(value.clone()) {
        commands.push(Command::Send {
            conversation,
            input: vec![item],
            options: SendOptions::new().into(),
        });
    }
    commands
}

#[test]
fn nothing_of_the_application_is_too_deep() {
    on_a_small_stack(|| {
        let questions = [
            r#""itemId":"i","availableDecisions":["accept",{"a":[]}]"#,
            r#""itemId":"i","permissions":{"network":{"enabled":true}}"#,
        ];
        for deep in deep_values() {
            let value = json(&deep);
            assert_eq!(value.clone().compact().get().len(), value.compact_len());
            assert_eq!(canonical(&deep), Err(CanonicalError::TooDeep));
            for (at, command) in commands(&value).into_iter().enumerate() {
                let mut host = running();
                let methods = [
                    "item/commandExecution/requestApproval",
                    "item/permissions/requestApproval",
                ];
                let (method, params) = (methods[at % 2], questions[at % 2]);
                host.line(&format!(
                    r#"{{"id":9,"method":"{method}","params":{{{IDS},{params}}}}}"#
                ));
                let asked = host.command(command.clone());
                // What is taken stands in the journal and is read again from there.
                for (seq, record) in host.records.iter().enumerate() {
                    let batch = Batch {
                        through: turnkeep_core::JournalSeq(seq as u64 + 1),
                        durability: Durability::Synced,
                        at: Timestamp(7),
                        records: vec![record.clone()],
                    };
                    let read = journal::decode_segment(&journal::encode(&batch)).unwrap();
                    assert_eq!(read.entries[0].1.records, batch.records);
                }
                // And in a trace.
                let input = Input::Command { id: asked, command };
                let again = traced(&input);
                assert_eq!(again, input);
                if let Some(Err(error)) = host.answer(asked) {
                    assert!(!matches!(error, CommandError::Forgotten));
                }
                goes_on(&mut host);
            }
        }
        for text in deep_texts() {
            assert!(RawJson::parse(&text).is_err() || deep_values().contains(&text));
        }
    });
}

/// An input as it comes back from a trace.
fn traced(input: &Input) -> Input {
    let config = Config::default();
    let mut text = trace::encode_header(Timestamp(1), 7, &config, &Effects::default());
    text += &trace::encode_step(Timestamp(2), input, &Effects::default());
    let (mut steps, _) = trace::Reader::new(text.as_bytes()).unwrap();
    steps.next().unwrap().unwrap().input
}

/// A line of a journal with any body.
fn journal_line(body: &str) -> Vec<u8> {
    let crc = crc32fast::hash(body.as_bytes());
    let len = body.len();
    format!("{{\"v\":1,\"len\":{len},\"crc\":\"{crc:08x}\",\"body\":{body}}}\n").into_bytes()
}

#[test]
fn no_line_of_a_journal_or_a_trace_is_too_deep() {
    on_a_small_stack(|| {
        let start = r#"{"start":{"version":"0.1.0","seed":1,"at":7}}"#;
        for deep in deep_texts() {
            for body in [
                "$".to_owned(),
                r#"{"seq":$,"at":7,"records":[]}"#.to_owned(),
                r#"{"seq":1,"at":7,"records":$}"#.to_owned(),
                r#"{"seq":1,"at":7,"records":[$]}"#.to_owned(),
                format!(r#"{{"seq":1,"at":7,"records":[{start},{{"checkpoint":$}}]}}"#),
                format!(
                    r#"{{"seq":1,"at":7,"records":[{start},{{"prompt":{{"message":"m","change":$}}}}]}}"#
                ),
                format!(r#"{{"seq":1,"at":7,"records":[{start},{{"unknown":$}}]}}"#),
            ] {
                let line = journal_line(&body.replace('$', &deep));
                let read = journal::decode(&line);
                assert!(matches!(read, Err(JournalError::Damaged { .. })), "{body}");
            }
            // A value of the server or the application is carried, however deep, if it is one.
            let body = r#"{"seq":1,"at":7,"records":[{"question_answered":{"question":1,"result":$,"chosen":true}}]}"#;
            let read = journal::decode(&journal_line(&body.replace('$', &deep)));
            assert_eq!(read.is_ok(), RawJson::parse(&deep).is_ok());

            let header =
                trace::encode_header(Timestamp(1), 7, &Config::default(), &Effects::default());
            for step in [
                r#"{"t":2,"in":$,"fx":[],"due":null"#,
                r#"{"t":2,"in":{"Command":$},"fx":[],"due":null"#,
                r#"{"t":2,"in":{"Command":{"id":1,"command":{"Request":$}}},"fx":[],"due":null"#,
                r#"{"t":2,"recv":1,"b":[$],"fx":[],"due":null"#,
                r#"{"t":2,"recv":1,"b":$,"fx":[],"due":null"#,
                r#"{"t":2,"in":"Tick","fx":[],"due":$"#,
                r#"{"t":2,"in":"Tick","fx":[$],"due":null"#,
            ] {
                let step = step.replace('$', &deep);
                let crc = crc32fast::hash(step.as_bytes());
                let text = format!("{header}{step},\"crc\":\"{crc:08x}\"}}\n");
                let (steps, _) = trace::Reader::new(text.as_bytes()).unwrap();
                let _ = steps.map(|step| step.is_ok()).collect::<Vec<_>>();
            }
        }
    });
}

/// Numbers that a plain reader of JSON loses digits of, or refuses.
fn number() -> impl Strategy<Value = String> {
    (
        "-?",
        "(0|[1-9][0-9]{0,40})",
        "(\\.[0-9]{1,30})?",
        "([eE][+-]?[0-9]{1,5})?",
    )
        .prop_map(|(sign, whole, part, power)| format!("{sign}{whole}{part}{power}"))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn a_number_is_carried_digit_by_digit(number in number()) {
        let mut host = running();
        host.line(&format!(
            r#"{{"id":{number},"method":"item/tool/call","params":{{{IDS},"callId":"c","tool":"look","arguments":{{"n":{number}}}}}}}"#
        ));
        let calls = updates(&host, |update| match update {
            TurnUpdate::ToolCall(call) => Some(call.clone()),
            _ => None,
        });
        prop_assert_eq!(calls.len(), 1);
        prop_assert_eq!(calls[0].arguments.get(), format!(r#"{{"n":{number}}}"#));

        let asked = host.command(Command::Request {
            method: "x".into(),
            params: json("{}"),
            effect: RequestEffect::Reads,
        });
        let id = host.sent.pop_back().unwrap().json["id"].clone();
        host.line(&format!(r#"{{"id":{id},"result":{number}}}"#));
        prop_assert_eq!(host.answer(asked), Some(&Ok(Reply::Response(json(&number)))));
        prop_assert_eq!(canonical(&number), Ok(number));
    }

    #[test]
    fn a_read_comes_back_from_a_trace(bytes in vec(any::<u8>(), 0..300), lines in vec(any::<Index>(), 0..4)) {
        let all = lines_with("{}");
        let lines: Vec<&String> = lines.iter().map(|at| at.get(&all)).collect();
        let lines = lines.into_iter().map(|line| format!("{line}\n")).collect::<String>();
        let input = Input::Received(Epoch(3), [lines.as_bytes(), &bytes].concat());
        prop_assert_eq!(traced(&input), input);
    }

    #[test]
    fn a_journal_is_written_as_it_was_read(steps in vec(any::<u8>(), 0..600)) {
        let bytes = journal_of(&steps);
        let read = journal::decode(&bytes).unwrap();
        prop_assert_eq!(read.torn, None);
        let mut again = Vec::new();
        for (_, entry) in read.entries {
            let (through, at, records) = (entry.seq, entry.at, entry.records);
            journal::encode_into(&Batch { through, durability: Durability::Synced, at, records }, &mut again);
        }
        prop_assert_eq!(again, bytes);
    }
}

fn lines_with(value: &str) -> Vec<String> {
    lines()
        .iter()
        .map(|line| line.replace('$', value))
        .collect()
}

#[test]
fn half_a_character_is_carried_or_reported_and_breaks_nothing() {
    for half in [
        r#""\ud800""#,
        r#""\udc00x""#,
        r#""\ud83d\ud83d""#,
        r#"{"\ud800":1}"#,
    ] {
        let mut host = running();
        for line in lines_with(half) {
            host.line(&line);
            goes_on(&mut host);
        }
        assert_eq!(canonical(half), Err(CanonicalError::NotJson));
    }
}

#[test]
fn the_same_key_twice_is_never_read_as_either() {
    let mut host = running();
    for line in lines_with(r#"{"a":1,"\u0061":2}"#) {
        let value: Value = serde_json::from_str(&line).unwrap();
        let Some(frame) = value.as_object() else {
            continue;
        };
        // A member of the frame, and one of its parameters, a second time with another value.
        for (key, _) in frame {
            let twice = format!(r#"{},"{key}":"other"}}"#, &line[..line.len() - 1]);
            let read = read_again(twice.as_bytes());
            assert!(read.is_err() || key == "jsonrpc", "{twice}");
            host.line(&twice);
        }
        let params = frame.get("params").and_then(Value::as_object);
        for key in params.into_iter().flatten().map(|(key, _)| key) {
            let twice = format!(r#"{},"{key}":"other"}}}}"#, &line[..line.len() - 2]);
            host.line(&twice);
        }
        goes_on(&mut host);
    }
    let calls = updates(&host, |update| match update {
        TurnUpdate::ToolCall(_) => Some(()),
        _ => None,
    });
    assert!(
        calls.is_empty(),
        "arguments with a key twice are no arguments"
    );
}

#[test]
fn a_recorded_frame_cut_at_any_byte_is_no_frame() {
    let mut cut = 0;
    for line in lines_with("{}") {
        for at in 0..line.len() {
            if line.is_char_boundary(at) {
                assert!(read_again(&line.as_bytes()[..at]).is_err(), "{at}: {line}");
                assert!(RawJson::parse(&line[..at]).is_err(), "{at}: {line}");
                assert_eq!(canonical(&line[..at]), Err(CanonicalError::NotJson));
                cut += 1;
            }
        }
    }
    assert!(cut > 2_000, "{cut}");
    let _ = CommandId(0);
}
