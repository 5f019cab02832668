//! Properties: whatever the bytes, the order and the cuts.

#![allow(clippy::unwrap_used, reason = "helpers of tests are tests")]

use proptest::{
    collection::vec,
    prelude::*,
    sample::{Index, select},
};
use serde_json::Value;
use turnkeep_core::{
    CloseReason, Command, CommandId, Config, ConversationId, Epoch, Event, Input, InputItem,
    Machine, SendOptions, Settings, TurnNo,
    codec::{journal, lines::LineSplitter, trace},
    command::{Answer, Questions, RequestEffect, ToolKind, ToolResult},
    event::ConnectionEvent,
};
use turnkeep_tests::world::{Journal, Reads, START, Setup, World, json, ms, tool};

/// Few enough for every run; `PROPTEST_CASES` asks for more.
const CASES: u32 = 64;

fn config() -> ProptestConfig {
    let default = ProptestConfig::default();
    let cases = match std::env::var_os("PROPTEST_CASES") {
        Some(_) => default.cases,
        None => CASES,
    };
    ProptestConfig { cases, ..default }
}

/// Reads cut at these places, the lines that come out, and what is left.
fn split(bytes: &[u8], cuts: &[Index]) -> (Vec<Vec<u8>>, Option<Vec<u8>>) {
    let mut at: Vec<usize> = cuts.iter().map(|cut| cut.index(bytes.len() + 1)).collect();
    at.extend([0, bytes.len()]);
    at.sort_unstable();
    let mut splitter = LineSplitter::default();
    let mut lines = Vec::new();
    for pair in at.windows(2) {
        let read = &bytes[pair[0]..pair[1]];
        let mut from = 0;
        while let Some(line) = splitter.next(read, &mut from, 1 << 20).unwrap() {
            lines.push(line.to_vec());
        }
        assert_eq!(from, read.len());
    }
    assert_eq!(
        splitter.examined(),
        bytes.len() as u64,
        "each byte is searched once"
    );
    (lines, splitter.rest())
}

fn any_bytes() -> impl Strategy<Value = Vec<u8>> {
    let piece = prop_oneof![
        Just(b"\n".to_vec()),
        Just(b"\r\n".to_vec()),
        Just(b"\r".to_vec()),
        Just("é中😀\u{2028}\u{85}".as_bytes().to_vec()),
        vec(any::<u8>(), 0..8),
        Just(br#"{"id":1,"result":{}}"#.to_vec()),
    ];
    vec(piece, 0..20).prop_map(|pieces| pieces.concat())
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn lines_do_not_depend_on_the_cuts(bytes in any_bytes(), cuts in vec(any::<Index>(), 0..20)) {
        let (lines, rest) = split(&bytes, &cuts);
        prop_assert_eq!(split(&bytes, &[]), (lines.clone(), rest.clone()));
        // The reference: only LF ends a line, one CR before it is dropped.
        let mut want: Vec<Vec<u8>> = bytes
            .split(|b| *b == b'\n')
            .map(|line| line.strip_suffix(b"\r").unwrap_or(line).to_vec())
            .collect();
        let last = want.pop().filter(|_| bytes.last().is_some_and(|b| *b != b'\n'));
        prop_assert_eq!(lines, want);
        prop_assert_eq!(rest, last);
    }
}

/// A world whose server the test speaks for, with turn `trn_1` of thread `thr_1` running.
fn running() -> World {
    let mut world = Setup::hand().start();
    world.say(r#"{"id":1,"result":{"userAgent":"codex/0.171.0 (x)","codexHome":"/h"}}"#);
    let settings = Settings::new()
        .questions(Questions::Ask)
        .tool(tool("run", ToolKind::Function));
    let conversation = world.open("a", settings);
    world.send(conversation, "go");
    world.say(r#"{"id":2,"result":{"thread":{"id":"thr_1"}}}"#);
    world.say(r#"{"id":3,"result":{"turn":{"id":"trn_1"}}}"#);
    world.say(r#"{"method":"turn/started","params":{"threadId":"thr_1","turn":{"id":"trn_1","status":"inProgress"}}}"#);
    world
}

/// JSON texts of every kind, odd ones among them.
fn any_json() -> impl Strategy<Value = String> {
    let leaf = prop_oneof![
        select(
            &[
                "null",
                "true",
                "false",
                "0",
                "-0",
                "7",
                "7.0",
                "7e0",
                "-1",
                "1E400",
                "1e-400",
                "18446744073709551615",
                "18446744073709551616",
                "100000000000000000000000000000000",
                "0.1000000000000000055511151231257827",
                "\"\"",
                "\"7\"",
                "\" \"",
                "\"\\u0000\"",
                "\"\\ud800\"",
                "\"\\udc00x\"",
                "\"\\ud83d\\ude00\"",
                "\"\u{2028}\"",
                "\"thr_1\"",
                "\"trn_1\"",
                "{}",
                "[]",
            ][..]
        )
        .prop_map(str::to_owned),
        "[a-z ]{0,6}".prop_map(|s| format!("{s:?}")),
    ];
    leaf.prop_recursive(4, 24, 4, |inner| {
        prop_oneof![
            vec(inner.clone(), 0..4).prop_map(|items| format!("[{}]", items.join(","))),
            // Duplicate keys happen.
            vec(
                (select(&["a", "b", "id", "type", "threadId"][..]), inner),
                0..4
            )
            .prop_map(|members| {
                let members: Vec<_> = members
                    .iter()
                    .map(|(k, v)| format!("\"{k}\":{v}"))
                    .collect();
                format!("{{{}}}", members.join(","))
            }),
        ]
    })
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn a_request_is_answered_under_its_own_id_or_is_no_frame(id in any_json()) {
        let mut world = running();
        let before = world.sent().len();
        world.say(&format!(r#"{{"id":{id},"method":"something/new"}}"#));
        let sent = &world.sent()[before..];
        let is_id = id.starts_with(|c: char| c == '"' || c == '-' || c.is_ascii_digit());
        if is_id {
            prop_assert_eq!(sent.len(), 1);
            let head = format!("{{\"id\":{id},\"error\":");
            prop_assert!(sent[0].starts_with(&head), "{}", sent[0]);
        } else {
            prop_assert!(sent.is_empty());
            let noise = matches!(world.events().last(), Some(Event::Connection(e)) if matches!(&**e, ConnectionEvent::Noise { .. }));
            prop_assert!(noise);
        }
        let _ = world.finish();
    }

    #[test]
    fn a_response_settles_only_the_request_with_exactly_its_id(id in any_json()) {
        let mut world = running();
        let asked = world.request("x", "{}", RequestEffect::Reads);
        world.say(&format!(r#"{{"id":{id},"result":{{}}}}"#));
        prop_assert_eq!(world.answer(asked).is_some(), id == "4");
        world.say(r#"{"id":4,"result":{}}"#);
        prop_assert!(world.answer(asked).is_some());
        let _ = world.finish();
    }

    #[test]
    fn whatever_stands_in_a_member_nothing_breaks(
        line in any::<Index>(), place in any::<Index>(), value in any_json(), cut in any::<Index>(),
    ) {
        let lines = sample_lines();
        let line = line.get(&lines);
        let parsed: Value = serde_json::from_str(line).unwrap();
        let mut places = Vec::new();
        members(&parsed, &mut Vec::new(), &mut places);
        let path = place.get(&places);
        let odd = with(&parsed, path, &value);
        let mut world = running();
        world.say(&odd);
        world.note("the same, cut");
        let bytes = odd.as_bytes();
        world.input(Input::Received(Epoch(1), bytes[..cut.index(bytes.len())].to_vec()));
        world.input(Input::Received(Epoch(1), b"\n".to_vec()));
        world.note("it goes on");
        let asked = world.request("x/after", "{}", RequestEffect::Reads);
        let id = world.sent_of("x/after").first().and_then(|f| f.split("\"id\":").nth(1)?.split(',').next().map(str::to_owned));
        if let Some(id) = id {
            world.say(&format!(r#"{{"id":{id},"result":{{}}}}"#));
            prop_assert!(world.answer(asked).is_some());
        }
        let _ = world.finish();
    }

    #[test]
    fn a_conversation_does_not_depend_on_how_its_bytes_are_cut(seed in any::<u64>()) {
        let play = |reads| {
            let mut world = Setup::demo().reads(reads).start();
            let one = world.open("a", Settings::new());
            let two = world.open("b", Settings::new());
            let turns = [world.send(one, "hello there"), world.send(two, "long")];
            for turn in turns {
                world.end_of(turn);
            }
            let told = world.told();
            let _ = world.finish();
            told
        };
        prop_assert_eq!(play(Reads::Writes), play(Reads::Random(seed)));
    }

    #[test]
    fn a_settings_key_or_name_with_white_space_is_refused(text in "\\s?\\PC{0,3}\\s?") {
        let clean = !text.is_empty() && text.trim() == text;
        prop_assert_eq!(turnkeep_core::ConversationKey::new(&text).is_some(), clean);
        prop_assert_eq!(Settings::new().model(text.clone()).validate().is_ok(), clean);
    }
}

/// One line of every kind that the core reads.
fn sample_lines() -> Vec<String> {
    let t = r#""threadId":"thr_1","turnId":"trn_1""#;
    [
        r#"{"method":"turn/started","params":{"threadId":"thr_1","turn":{"id":"trn_1","items":[],"status":"inProgress","error":null}},"emittedAtMs":1}"#.to_owned(),
        r#"{"method":"turn/completed","params":{"threadId":"thr_1","turn":{"id":"trn_1","items":[{"type":"agentMessage","id":"i","text":"t","phase":null}],"status":"completed","error":null}}}"#.to_owned(),
        r#"{"method":"turn/completed","params":{"threadId":"thr_1","turn":{"id":"trn_1","items":[],"status":"failed","error":{"message":"m","codexErrorInfo":{"a":{"httpStatusCode":5}},"additionalDetails":"d"}}}}"#.to_owned(),
        format!(r#"{{"method":"item/started","params":{{{t},"item":{{"type":"commandExecution","id":"i"}}}}}}"#),
        format!(r#"{{"method":"item/completed","params":{{{t},"item":{{"type":"agentMessage","id":"i","text":"t","phase":"final_answer"}}}}}}"#),
        format!(r#"{{"method":"item/completed","params":{{{t},"item":{{"type":"userMessage","id":"i","clientId":"msg_x"}}}}}}"#),
        format!(r#"{{"method":"item/agentMessage/delta","params":{{{t},"itemId":"i","delta":"d"}}}}"#),
        format!(r#"{{"method":"item/reasoning/textDelta","params":{{{t},"itemId":"i","contentIndex":0,"delta":"d"}}}}"#),
        format!(r#"{{"method":"thread/tokenUsage/updated","params":{{{t},"tokenUsage":{{"total":{{"totalTokens":5}},"last":{{"totalTokens":5}},"modelContextWindow":9}}}}}}"#),
        format!(r#"{{"method":"turn/diff/updated","params":{{{t},"diff":"x"}}}}"#),
        format!(r#"{{"method":"turn/plan/updated","params":{{{t},"plan":[]}}}}"#),
        r#"{"method":"thread/status/changed","params":{"threadId":"thr_1","status":{"type":"idle"}}}"#.to_owned(),
        format!(r#"{{"method":"error","params":{{{t},"willRetry":false,"error":{{"message":"m"}}}}}}"#),
        r#"{"method":"warning","params":{"threadId":"thr_1","message":"m"}}"#.to_owned(),
        r#"{"method":"serverRequest/resolved","params":{"threadId":"thr_1","requestId":0}}"#.to_owned(),
        r#"{"method":"thread/closed","params":{"threadId":"thr_1"}}"#.to_owned(),
        r#"{"method":"thread/started","params":{"thread":{"id":"thr_1"}}}"#.to_owned(),
        format!(r#"{{"method":"model/rerouted","params":{{{t},"fromModel":"a","toModel":"b"}}}}"#),
        format!(r#"{{"id":0,"method":"item/tool/call","params":{{{t},"callId":"c","tool":"run","arguments":{{"a":1}}}}}}"#),
        format!(r#"{{"id":0,"method":"item/commandExecution/requestApproval","params":{{{t},"itemId":"i","availableDecisions":["accept","decline"]}}}}"#),
        format!(r#"{{"id":0,"method":"item/fileChange/requestApproval","params":{{{t},"itemId":"i"}}}}"#),
        format!(r#"{{"id":0,"method":"item/permissions/requestApproval","params":{{{t},"itemId":"i","permissions":{{"network":{{"enabled":true}}}}}}}}"#),
        format!(r#"{{"id":0,"method":"item/tool/requestUserInput","params":{{{t},"itemId":"i","questions":[{{"id":"q","header":"h","question":"?","options":[{{"label":"y"}}]}}],"autoResolutionMs":5}}}}"#),
        r#"{"id":0,"method":"mcpServer/elicitation/request","params":{"threadId":"thr_1","turnId":null,"serverName":"s","mode":"form","message":"m","requestedSchema":{}}}"#.to_owned(),
        r#"{"id":0,"method":"currentTime/read","params":{}}"#.to_owned(),
        r#"{"id":99,"result":{}}"#.to_owned(),
        r#"{"id":99,"error":{"code":-32600,"message":"m","data":1}}"#.to_owned(),
    ]
    .into()
}

/// The places of all members and elements.
fn members(value: &Value, path: &mut Vec<String>, out: &mut Vec<Vec<String>>) {
    let inner: Vec<(String, &Value)> = match value {
        Value::Object(map) => map.iter().map(|(k, v)| (k.clone(), v)).collect(),
        Value::Array(all) => all
            .iter()
            .enumerate()
            .map(|(n, v)| (n.to_string(), v))
            .collect(),
        _ => return,
    };
    for (key, value) in inner {
        path.push(key);
        out.push(path.clone());
        members(value, path, out);
        path.pop();
    }
}

/// The value with another text at a place.
fn with(value: &Value, path: &[String], text: &str) -> String {
    let Some((first, rest)) = path.split_first() else {
        return text.to_owned();
    };
    let inner = |key: &str, value: &Value| {
        if key == first {
            with(value, rest, text)
        } else {
            value.to_string()
        }
    };
    match value {
        Value::Object(map) => {
            // The method first, as the server writes it: both ways of reading are met.
            let mut keys: Vec<&String> = map.keys().collect();
            keys.sort_by_key(|key| (*key != "method", *key == "emittedAtMs"));
            let all: Vec<_> = keys
                .into_iter()
                .map(|key| format!("{key:?}:{}", inner(key, &map[key])))
                .collect();
            format!("{{{}}}", all.join(","))
        }
        Value::Array(all) => {
            let all: Vec<_> = all
                .iter()
                .enumerate()
                .map(|(n, value)| inner(&n.to_string(), value))
                .collect();
            format!("[{}]", all.join(","))
        }
        _ => text.to_owned(),
    }
}

#[test]
fn every_line_cut_at_every_byte_changes_nothing() {
    for line in sample_lines() {
        let config = |config: &mut Config| config.limits.noise_lines = u32::MAX;
        let mut world = Setup::hand().config(config).start();
        world.say(r#"{"id":1,"result":{"userAgent":"codex/0.171.0 (x)","codexHome":"/h"}}"#);
        for at in 0..line.len() {
            world.input(Input::Received(Epoch(1), line.as_bytes()[..at].to_vec()));
            world.input(Input::Received(Epoch(1), b"\n".to_vec()));
        }
        let noise = world.machine().counters().noise_lines;
        assert_eq!(noise, line.len() as u64, "each is told as noise: {line}");
        let _ = world.finish();
    }
}

#[test]
fn depth_is_carried_and_overflows_nothing() {
    let deep = |depth: usize| "[".repeat(depth) + &"]".repeat(depth);
    for line in sample_lines() {
        let parsed: Value = serde_json::from_str(&line).unwrap();
        let mut places = Vec::new();
        members(&parsed, &mut Vec::new(), &mut places);
        let mut world = running();
        for path in places {
            for depth in [127, 128, 129, 5_000] {
                world.say(&with(&parsed, &path, &deep(depth)));
            }
        }
        let _ = world.finish();
    }
}

#[test]
fn a_journal_cut_at_every_byte_is_a_prefix_of_it() {
    let mut world = running();
    world.say(r#"{"method":"turn/completed","params":{"threadId":"thr_1","turn":{"id":"trn_1","status":"completed"}}}"#);
    let bytes = world.journal_bytes().to_vec();
    let whole = journal::decode(&bytes).unwrap().entries;
    for at in 0..bytes.len() {
        let cut = journal::decode(&bytes[..at]).unwrap();
        assert_eq!(cut.entries[..], whole[..cut.entries.len()], "cut at {at}");
        let ends_a_line = at == 0 || bytes[at - 1] == b'\n';
        assert_eq!(cut.torn.is_none(), ends_a_line, "cut at {at}");
    }
    let _ = world.finish();
}

#[test]
fn a_trace_cut_or_changed_at_any_byte_is_noticed() {
    let config = turnkeep_tests::one_connection();
    let (mut machine, fx) = Machine::new(config.clone(), 1, START).unwrap();
    let mut text = trace::encode_header(START, 1, &config, &fx);
    for input in [
        Input::Opened(Epoch(1), turnkeep_core::Peer::default()),
        Input::Received(Epoch(1), b"noise\n{\"id\":1}\n\xff".to_vec()),
        Input::Tick,
    ] {
        let fx = machine.step(START, input.clone());
        text.push_str(&trace::encode_step(START, &input, &fx));
    }
    let read = |bytes: &[u8]| -> Result<usize, trace::TraceError> {
        let (reader, _) = trace::Reader::new(bytes)?;
        reader
            .collect::<Result<Vec<_>, _>>()
            .map(|steps| steps.len())
    };
    let bytes = text.into_bytes();
    assert_eq!(read(&bytes), Ok(3));
    for at in 0..bytes.len() {
        let ends_a_line = at > 0 && bytes[at - 1] == b'\n';
        assert_eq!(read(&bytes[..at]).is_ok(), ends_a_line, "cut at {at}");
        for bit in [1, 0x20, 0x80] {
            let mut bad = bytes.clone();
            bad[at] ^= bit;
            assert!(read(&bad).is_err(), "byte {at} changed by {bit}");
        }
    }
}

/// What may happen next.
#[derive(Clone, Debug)]
enum Op {
    Send(u8, u8),
    Steer(Index),
    Interrupt(Index),
    Abandon(Index),
    Acknowledge(Index),
    Respond(Index, bool),
    Reply(Index, u8),
    Close(u8),
    Raw(bool),
    QueueFull(u8),
    /// Answers one of our requests that wait.
    Answer(Index, u8),
    Notify(u8, u8, u8),
    Ask(u8, u8, u8, u8),
    Noise(String),
    Hold,
    ReleaseOne,
    Release,
    FailOne,
    Pass(u32),
    HangUp,
    Shutdown,
}

fn op() -> impl Strategy<Value = Op> {
    let ix = any::<Index>;
    prop_oneof![
        6 => (0..3u8, 0..6u8).prop_map(|(c, o)| Op::Send(c, o)),
        3 => ix().prop_map(Op::Steer),
        2 => ix().prop_map(Op::Interrupt),
        1 => ix().prop_map(Op::Abandon),
        2 => ix().prop_map(Op::Acknowledge),
        2 => (ix(), any::<bool>()).prop_map(|(i, ok)| Op::Respond(i, ok)),
        2 => (ix(), 0..8u8).prop_map(|(i, a)| Op::Reply(i, a)),
        1 => (0..3u8).prop_map(Op::Close),
        1 => any::<bool>().prop_map(Op::Raw),
        1 => (0..3u8).prop_map(Op::QueueFull),
        12 => (ix(), 0..16u8).prop_map(|(i, h)| Op::Answer(i, h)),
        14 => (0..20u8, 0..3u8, 0..4u8).prop_map(|(k, c, t)| Op::Notify(k, c, t)),
        5 => (0..8u8, 0..3u8, 0..4u8, 0..4u8).prop_map(|(k, c, t, i)| Op::Ask(k, c, t, i)),
        1 => any_json().prop_map(Op::Noise),
        1 => Just(Op::Hold),
        1 => Just(Op::ReleaseOne),
        1 => Just(Op::Release),
        3 => (0..70_000u32).prop_map(Op::Pass),
        1 => Just(Op::FailOne),
        1 => Just(Op::HangUp),
        1 => Just(Op::Shutdown),
    ]
}

/// Plays the server's and the application's part at random.
struct Random {
    world: World,
    answered: Vec<String>,
    /// So that both sides meet: names of the server's turns go round.
    turns: u32,
    failed: u32,
}

impl Random {
    fn new() -> Self {
        let config = |config: &mut Config| {
            config.limits.early_frames = 3;
            config.limits.noise_lines = 4;
        };
        let mut world = Setup::hand().config(config).start();
        world.say(r#"{"id":1,"result":{"userAgent":"codex/0.171.0 (x)"}}"#);
        for key in ["a", "b", "c"] {
            let settings = Settings::new()
                .questions(if key == "c" {
                    Questions::Decline
                } else {
                    Questions::Ask
                })
                .tool(tool("run", ToolKind::Function).time_limit(ms(20_000)))
                .tool(tool("route", ToolKind::Router))
                .tool(tool("say", ToolKind::Message));
            world.ask(World::open_command(key, settings));
        }
        let answered = vec!["1".to_owned()];
        Self {
            world,
            answered,
            turns: 0,
            failed: 0,
        }
    }

    /// Our requests that have no answer, each with its id and method.
    fn waiting(&self) -> Vec<(String, String, Value)> {
        let frames = self.world.sent().iter();
        frames
            .filter_map(|frame| {
                // An answer under an id such as 1E400 is none of ours.
                let frame: Value = serde_json::from_str(frame).ok()?;
                let id = frame.get("id")?.to_string();
                let method = frame.get("method")?.as_str()?.to_owned();
                (!self.answered.contains(&id)).then(|| (id, method, frame["params"].clone()))
            })
            .collect()
    }

    fn turn(&self, at: &Index) -> TurnNo {
        let last = self.world.machine().durable().last_turn().0 + 2;
        TurnNo(u32::try_from(at.index(last as usize + 1)).unwrap())
    }

    fn answer(&mut self, at: &Index, how: u8) {
        let waiting = self.waiting();
        if waiting.is_empty() {
            return;
        }
        let (id, method, params) = at.get(&waiting).clone();
        if how != 15 {
            self.answered.push(id.clone());
        }
        let answer = match how {
            0 => {
                r#""error":{"code":-32001,"message":"Server overloaded; retry later."}"#.to_owned()
            }
            1 => r#""error":{"code":-32600,"message":"no active turn to steer"}"#.to_owned(),
            2 => r#""error":{"code":-32600,"message":"something"}"#.to_owned(),
            3 => r#""result":{}"#.to_owned(),
            _ => match method.as_str() {
                "thread/start" => {
                    // Sometimes a thread that another conversation has.
                    let n = if how == 4 {
                        2
                    } else {
                        id.parse::<u32>().unwrap() % 1_000
                    };
                    format!(r#""result":{{"thread":{{"id":"thr_{n}"}},"model":"m"}}"#)
                }
                "turn/start" => {
                    self.turns += u32::from(how > 5);
                    format!(r#""result":{{"turn":{{"id":"trn_{}"}}}}"#, self.turns)
                }
                "thread/turns/list" => {
                    let status =
                        ["completed", "interrupted", "inProgress", "failed"][how as usize % 4];
                    format!(
                        r#""result":{{"data":[{{"id":"trn_{}","status":"{status}","error":null,"items":[]}}],"nextCursor":null}}"#,
                        self.turns
                    )
                }
                _ => r#""result":{"turnId":"x"}"#.to_owned(),
            },
        };
        let _ = params;
        self.world.say(&format!(r#"{{"id":{id},{answer}}}"#));
    }

    /// A thread of a conversation, and one of the last turns.
    fn place(&self, c: u8, t: u8) -> (String, String) {
        let threads: Vec<String> = self
            .world
            .events()
            .iter()
            .filter_map(|event| match event {
                Event::Conversation(event) => match &event.update {
                    turnkeep_core::event::ConversationUpdate::ThreadBound { thread, .. } => {
                        Some(thread.as_str().to_owned())
                    }
                    _ => None,
                },
                _ => None,
            })
            .collect();
        let thread = threads
            .get(c as usize % threads.len().max(1))
            .cloned()
            .unwrap_or_else(|| "thr_x".to_owned());
        let turn = (self.turns + 1).saturating_sub(u32::from(t));
        (thread, format!("trn_{turn}"))
    }

    fn message(&self, at: u8) -> String {
        let sent: Vec<String> = self
            .world
            .sent()
            .iter()
            .filter_map(|frame| {
                let frame: Value = serde_json::from_str(frame).ok()?;
                Some(frame["params"]["clientUserMessageId"].as_str()?.to_owned())
            })
            .collect();
        let back = sent.len().saturating_sub(1 + at as usize % 2);
        sent.get(back)
            .cloned()
            .unwrap_or_else(|| "msg_x".to_owned())
    }

    fn notify(&mut self, kind: u8, c: u8, t: u8) {
        let (thread, turn) = self.place(c, t);
        let ids = format!(r#""threadId":"{thread}","turnId":"{turn}""#);
        let own = |status: &str| {
            format!(r#""threadId":"{thread}","turn":{{"id":"{turn}","status":"{status}"}}"#)
        };
        let (method, params) = match kind {
            0..=2 => ("turn/started", own("inProgress")),
            3 | 4 => ("turn/completed", own("completed")),
            5 => ("turn/completed", own("interrupted")),
            6 => ("turn/completed", own("failed")),
            7 => ("turn/completed", own("evaporated")),
            8 | 9 => (
                "item/completed",
                format!(
                    r#"{ids},"item":{{"type":"userMessage","id":"u","clientId":"{}"}}"#,
                    self.message(t)
                ),
            ),
            10 => (
                "item/completed",
                format!(r#"{ids},"item":{{"type":"agentMessage","id":"i","text":"t"}}"#),
            ),
            11 => (
                "item/started",
                format!(r#"{ids},"item":{{"type":"plan","id":"p{t}"}}"#),
            ),
            12 | 13 => (
                "item/agentMessage/delta",
                format!(r#"{ids},"itemId":"i","delta":"d"}}"#)
                    .trim_end_matches('}')
                    .to_owned(),
            ),
            14 => (
                "thread/tokenUsage/updated",
                format!(
                    r#"{ids},"tokenUsage":{{"total":{{"totalTokens":{}}},"last":{{"totalTokens":1}}}}"#,
                    t as u32 * 7
                ),
            ),
            15 => (
                "thread/status/changed",
                format!(r#""threadId":"{thread}","status":{{"type":"idle"}}"#),
            ),
            16 => (
                "thread/status/changed",
                format!(r#""threadId":"{thread}","status":{{"type":"active"}}"#),
            ),
            17 => ("thread/closed", format!(r#""threadId":"{thread}""#)),
            18 => (
                "error",
                format!(
                    r#"{ids},"willRetry":{},"error":{{"message":"m"}}"#,
                    t % 2 == 0
                ),
            ),
            _ => (
                "serverRequest/resolved",
                format!(r#""threadId":"{thread}","requestId":{t}"#),
            ),
        };
        self.world
            .say(&format!(r#"{{"method":"{method}","params":{{{params}}}}}"#));
    }

    fn ask(&mut self, kind: u8, c: u8, t: u8, id: u8) {
        let (thread, turn) = self.place(c, t);
        let ids = format!(r#""threadId":"{thread}","turnId":"{turn}","itemId":"i{t}""#);
        let (method, params) = match kind {
            0 | 1 => (
                "item/tool/call",
                format!(r#"{ids},"callId":"c{id}","tool":"run","arguments":{{"n":{t}}}"#),
            ),
            2 => (
                "item/tool/call",
                format!(r#"{ids},"callId":"d{id}","tool":"say","arguments":{{"message":"m"}}"#),
            ),
            3 => (
                "item/tool/call",
                format!(r#"{ids},"callId":"e{id}","tool":"route","arguments":[]"#),
            ),
            4 => (
                "item/commandExecution/requestApproval",
                format!(r#"{ids},"command":"ls""#),
            ),
            5 => (
                "item/tool/requestUserInput",
                format!(
                    r#"{ids},"questions":[{{"id":"q","header":"h","question":"?"}}],"autoResolutionMs":5000"#
                ),
            ),
            6 => (
                "mcpServer/elicitation/request",
                format!(
                    r#""threadId":"{thread}","turnId":null,"serverName":"s","mode":"form","message":"m","requestedSchema":{{}}"#
                ),
            ),
            _ => ("something/new", ids),
        };
        self.world.say(&format!(
            r#"{{"id":{id},"method":"{method}","params":{{{params}}}}}"#
        ));
    }

    fn play(&mut self, op: &Op) {
        let conversation = |c: &u8| ConversationId(u32::from(*c) + 1);
        match op {
            Op::Send(c, options) => {
                let options = match options {
                    0 => SendOptions::new().deadline(ms(15_000)),
                    1 => SendOptions::new().output_schema(json(r#"{"a":1}"#)),
                    2 => SendOptions::new().key("k"),
                    _ => SendOptions::new(),
                };
                self.world
                    .ask(World::send_command(conversation(c), "x", options));
            }
            Op::Steer(at) => {
                let (turn, input) = (self.turn(at), vec![InputItem::text("s")]);
                self.world.ask(Command::Steer { turn, input });
            }
            Op::Interrupt(at) => {
                let turn = self.turn(at);
                self.world.interrupt(turn);
            }
            Op::Abandon(at) => {
                let turn = self.turn(at);
                self.world.abandon(turn);
            }
            Op::Acknowledge(at) => {
                let turn = self.turn(at);
                self.world.acknowledge(turn);
            }
            Op::Respond(at, ok) => {
                let calls: Vec<_> = (0..=self.turns + 9)
                    .flat_map(|n| self.world.calls(TurnNo(n)))
                    .collect();
                if !calls.is_empty() {
                    let result = if *ok {
                        ToolResult::ok("r")
                    } else {
                        ToolResult::failed("f")
                    };
                    let call = at.get(&calls).id;
                    self.world.respond(call, result);
                }
            }
            Op::Reply(at, answer) => {
                let last = self.world.machine().durable().last_question().0;
                let question =
                    turnkeep_core::QuestionId(at.index(usize::try_from(last).unwrap() + 2) as u64);
                let answer = match answer {
                    0 => Answer::Accept,
                    1 => Answer::Cancel,
                    2 => Answer::Input(vec![("q".into(), vec!["a".into()])]),
                    3 => Answer::Form(json("{}")),
                    _ => Answer::Decline,
                };
                self.world.reply(question, answer);
            }
            Op::Close(c) => {
                self.world.close(conversation(c));
            }
            Op::Raw(changes) => {
                let effect = if *changes {
                    RequestEffect::Changes
                } else {
                    RequestEffect::Reads
                };
                let method = if *changes { "x/change" } else { "x/read" };
                self.world.request(method, "{}", effect);
            }
            Op::QueueFull(c) => self.world.input(Input::QueueFull(conversation(c))),
            Op::Answer(at, how) => self.answer(at, *how),
            Op::Notify(kind, c, t) => self.notify(*kind, *c, *t),
            Op::Ask(kind, c, t, id) => self.ask(*kind, *c, *t, *id),
            Op::Noise(text) => self.world.say(text),
            Op::Hold => self.world.set_journal(Journal::Held),
            Op::ReleaseOne => self.world.release_one(),
            Op::Release => self.world.release(),
            Op::FailOne => {
                // Rarely: nothing happens after it.
                self.failed += 1;
                if self.failed == 3 {
                    self.world.set_journal(Journal::Failing);
                }
            }
            Op::Pass(ms) => self.world.run(u64::from(*ms)),
            Op::HangUp => {
                self.failed += 1;
                if self.failed == 3 {
                    self.world.hang_up(CloseReason::Lost("reset".into()));
                }
            }
            Op::Shutdown => {
                self.failed += 1;
                if self.failed == 3 {
                    self.world.shut_down();
                }
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 4 * config().cases, ..config() })]

    #[test]
    fn whatever_both_sides_do_everything_holds_and_ends(ops in vec(op(), 1..200)) {
        let mut random = Random::new();
        for op in &ops {
            random.play(op);
        }
        let _ = random.world.finish();
        let _ = CommandId(0);
    }
}
