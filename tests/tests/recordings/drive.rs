//! Drives a recorded session again: the same wishes at the same points, the recorded server.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};
use turnkeep_core::{
    CloseReason, Closed, Command, CommandId, Config, ConversationId, ConversationKey, Event, Input,
    InputItem, Outcome, QuestionId, RawJson, Reply, SendOptions, Settings, Timestamp, Tool,
    ToolCallId, ToolResult, TurnEnd, TurnNo, TurnUpdate,
    command::{Answer, ApprovalPolicy, Questions, RequestEffect, Sandbox},
    config::NEEDED_NOTIFICATIONS,
    thread::is_mark,
};
use turnkeep_tests::{
    by_hand::{ByHand, EPOCH},
    recordings::{Recording, What},
};

use crate::table::{Driven, Special};

/// How the bytes of the server are cut into reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cut {
    /// A line a read.
    Lines,
    /// A byte a read.
    Bytes,
    /// All that came before the client's next frame in one read.
    Runs,
}

struct Session<'a> {
    recording: &'a Recording,
    how: &'a Driven,
    cut: Cut,
    host: ByHand,
    /// Lines that wait for the end of their run.
    run: Vec<u8>,
    /// The recorded id of a request of ours, and the id that it has now.
    ids: BTreeMap<String, Value>,
    /// The recorded id of a message of ours, and the id that it has now.
    messages: BTreeMap<String, String>,
    /// Recorded requests that were not sent: their answers are left out.
    not_sent: BTreeSet<String>,
    raw: BTreeMap<String, CommandId>,
    raw_answers: Vec<(CommandId, Value)>,
    conversations: BTreeMap<String, ConversationId>,
    turns: BTreeMap<String, TurnNo>,
    /// Recorded ids of the server's requests, calls and questions apart.
    calls: Vec<Value>,
    questions: Vec<Value>,
    /// How many frames of the client went by.
    outs: usize,
}

/// Drives a recording and gives the machine back.
pub(crate) fn run(recording: &Recording, how: &Driven, cut: Cut) -> ByHand {
    let mut session = Session {
        recording,
        how,
        cut,
        host: ByHand::new(config(recording)),
        run: Vec::new(),
        ids: BTreeMap::new(),
        messages: BTreeMap::new(),
        not_sent: BTreeSet::new(),
        raw: BTreeMap::new(),
        raw_answers: Vec::new(),
        conversations: BTreeMap::new(),
        turns: BTreeMap::new(),
        calls: Vec::new(),
        questions: Vec::new(),
        outs: 0,
    };
    let start = session.host.now;
    session.host.open();
    for line in &recording.lines {
        let now = Timestamp::from_millis(start.0 / 1_000 + line.at);
        match &line.what {
            What::In(frame) => {
                if cut != Cut::Runs {
                    session.host.wait_until(now);
                }
                session.comes_in(frame);
            }
            What::Out(frame) => {
                session.end_run();
                session.host.wait_until(now);
                session.goes_out(frame);
            }
            What::Killed | What::Exited | What::Disconnected => {
                session.end_run();
                let reason = match line.what {
                    What::Killed => CloseReason::Exited {
                        code: None,
                        signal: Some(9),
                    },
                    What::Exited => CloseReason::Exited {
                        code: Some(0),
                        signal: None,
                    },
                    _ => CloseReason::Lost("cut".into()),
                };
                let closed = Closed::new(reason, String::new());
                session.host.step(Input::Closed(EPOCH, closed.into()));
                break;
            }
        }
    }
    session.end_run();
    session.check_answers();
    let left = &session.host.sent;
    assert!(left.is_empty(), "sent and not recorded: {left:?}");
    session.host
}

fn config(recording: &Recording) -> Config {
    let first = recording.lines.iter().find_map(|line| match &line.what {
        What::Out(frame) => serde_json::from_str::<Value>(frame).ok(),
        _ => None,
    });
    let params = &first.expect("the client speaks first")["params"];
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let mut config = turnkeep_tests::one_connection();
    config.client.name = text(&params["clientInfo"]["name"]);
    config.client.version = text(&params["clientInfo"]["version"]);
    config.client.title = text(&params["clientInfo"]["title"]);
    config.opt_out = params["capabilities"]["optOutNotificationMethods"]
        .as_array()
        .into_iter()
        .flatten()
        .map(text)
        .filter(|method| !NEEDED_NOTIFICATIONS.contains(&method.as_str()))
        .collect();
    config
}

impl Session<'_> {
    fn comes_in(&mut self, frame: &str) {
        let json: Value = serde_json::from_str(frame).expect("a frame is JSON");
        let mut line = frame.to_owned();
        let mut raw = None;
        match (json.get("method"), json.get("id")) {
            (Some(method), Some(id)) => {
                let is_call = method == "item/tool/call";
                let list = if is_call {
                    &mut self.calls
                } else {
                    &mut self.questions
                };
                list.push(id.clone());
            }
            (None, Some(id)) => {
                let id = id.to_string();
                if self.not_sent.contains(&id) {
                    return;
                }
                let now = self.ids.get(&id);
                let now = now.unwrap_or_else(|| panic!("the answer of {id}, which was not sent"));
                line = with_id(frame, &id, &now.to_string());
                raw = self.raw.get(&id).copied();
            }
            _ => {}
        }
        for (recorded, ours) in &self.messages {
            let (from, to) = (
                format!(r#""clientId":"{recorded}""#),
                format!(r#""clientId":"{ours}""#),
            );
            line = line.replace(&from, &to);
        }
        if let Some(command) = raw {
            let answer = serde_json::from_str(&line).expect("a frame is JSON");
            self.raw_answers.push((command, answer));
        }
        line.push('\n');
        match self.cut {
            Cut::Lines => self.host.read(line.as_bytes()),
            Cut::Bytes => {
                for byte in line.into_bytes() {
                    self.host.read(&[byte]);
                }
            }
            Cut::Runs => self.run.extend_from_slice(line.as_bytes()),
        }
    }

    fn end_run(&mut self) {
        if !self.run.is_empty() {
            let run = std::mem::take(&mut self.run);
            self.host.read(&run);
        }
    }

    fn goes_out(&mut self, frame: &str) {
        self.outs += 1;
        let want: Value = serde_json::from_str(frame).expect("a frame is JSON");
        let special = self.how.special.iter().find(|(n, _)| *n == self.outs);
        match special.map(|(_, special)| special) {
            Some(Special::NotSent(answer, _)) => {
                let before = self.host.sent.len();
                let command = self.act(&want).expect("a wish that can be expressed");
                assert_eq!(before, self.host.sent.len(), "{want} was sent");
                assert_eq!(self.name_of_answer(command), *answer, "{want}");
                self.not_sent.insert(want["id"].to_string());
                return;
            }
            Some(Special::Raw(_)) => self.ask(&want),
            Some(Special::AfterFollowUp(text, _)) => {
                let own = self.host.next_sent("turn/start");
                // The calls that the interrupt closed are told with it.
                let said = own["params"]["input"][0]["text"].as_str();
                let said = said.and_then(|said| said.split("\n[Box ").next());
                assert_eq!(said, Some(*text));
                assert!(is_message(&own["params"]["clientUserMessageId"]));
                self.act(&want);
            }
            Some(Special::AfterTimer(_)) => assert!(self.host.wait_for_timer(), "no timer"),
            Some(Special::SaysCancel(_)) => {
                let question = self.question_of(&want["id"]);
                let answer = Answer::Decline;
                self.host.command(Command::Answer { question, answer });
                let result = json!({"decision": "cancel"});
                self.expect(&json!({"id": want["id"], "result": result}));
                return;
            }
            Some(Special::SaysFailed(_)) => {
                let message = want["error"]["message"].as_str().unwrap_or_default();
                let call = self.call_of(&want["id"]);
                let result = ToolResult::failed(message);
                self.host.command(Command::Respond { call, result });
                let content = json!([{"type": "inputText", "text": message}]);
                let result = json!({"contentItems": content, "success": false});
                self.expect(&json!({"id": want["id"], "result": result}));
                return;
            }
            None => {
                self.act(&want);
            }
        }
        self.expect(&want);
    }

    /// Does what made the probe send a frame.
    fn act(&mut self, want: &Value) -> Option<CommandId> {
        let params = &want["params"];
        let thread = params["threadId"].as_str().unwrap_or_default();
        let Some(method) = want["method"].as_str() else {
            return Some(self.answer(want));
        };
        let command = match method {
            "initialize" | "initialized" => return None,
            "thread/start" => {
                self.begin(want);
                return None;
            }
            "turn/start" => {
                let conversation = self.conversations[thread];
                if !self.turns.contains_key(thread) {
                    // The first message went along with the thread.
                    let turn = self.turn_of(conversation);
                    self.turns.insert(thread.to_owned(), turn);
                    return None;
                }
                let command = self.send(conversation, params);
                match self.host.answer(command) {
                    Some(Ok(Reply::Accepted { turn, .. })) => {
                        self.turns.insert(thread.to_owned(), *turn);
                    }
                    other => panic!("turn/start: {other:?}"),
                }
                return Some(command);
            }
            "turn/steer" => Command::Steer {
                turn: self.turns[thread],
                input: input(params),
            },
            "turn/interrupt" => Command::Interrupt {
                turn: match params["turnId"].as_str() {
                    Some("00000000-0000-7000-8000-000000000000") => TurnNo(99),
                    _ => self.turns[thread],
                },
            },
            "thread/unsubscribe" => Command::Close {
                conversation: self.conversations[thread],
            },
            _ => {
                self.ask(want);
                return None;
            }
        };
        Some(self.host.command(command))
    }

    fn ask(&mut self, want: &Value) {
        let command = self.host.command(Command::Request {
            method: want["method"].as_str().unwrap_or_default().to_owned(),
            params: RawJson::of(&want["params"]).expect("parameters are JSON"),
            effect: RequestEffect::Changes,
        });
        self.raw.insert(want["id"].to_string(), command);
    }

    /// Opens the conversation of a `thread/start` and sends the first message that it gets.
    fn begin(&mut self, want: &Value) {
        if self.conversations.contains_key(&self.thread_of(want)) {
            return;
        }
        let starts: Vec<Value> = self
            .outward()
            .filter(|frame| frame["method"] == "thread/start")
            .collect();
        for start in starts {
            if !self.how.together && start["id"] != want["id"] {
                continue;
            }
            let thread = self.thread_of(&start);
            let first = self
                .outward()
                .find(|frame| {
                    frame["method"] == "turn/start" && frame["params"]["threadId"] == *thread
                })
                .expect("a message on the thread");
            let key = ConversationKey::new(&thread).expect("a thread's id is a key");
            let settings = settings(&start["params"]).into();
            let command = self.host.command(Command::Open { key, settings });
            let conversation = match self.host.answer(command) {
                Some(Ok(Reply::Opened { conversation })) => *conversation,
                other => panic!("open: {other:?}"),
            };
            self.conversations.insert(thread, conversation);
            self.send(conversation, &first["params"]);
        }
    }

    fn outward(&self) -> impl Iterator<Item = Value> + '_ {
        self.recording
            .lines
            .iter()
            .filter_map(|line| match &line.what {
                What::Out(frame) => serde_json::from_str(frame).ok(),
                _ => None,
            })
    }

    /// The thread that the recorded answer of a `thread/start` names.
    fn thread_of(&self, start: &Value) -> String {
        self.recording
            .lines
            .iter()
            .find_map(|line| match &line.what {
                What::In(frame) => {
                    let frame: Value = serde_json::from_str(frame).ok()?;
                    let is_it = frame.get("method").is_none() && frame["id"] == start["id"];
                    is_it.then(|| frame["result"]["thread"]["id"].as_str().map(str::to_owned))?
                }
                _ => None,
            })
            .expect("a recorded thread/start is answered")
    }

    fn send(&mut self, conversation: ConversationId, params: &Value) -> CommandId {
        let mut options = SendOptions::new();
        if let Some(schema) = params.get("outputSchema") {
            options = options.output_schema(RawJson::of(schema).expect("a schema is JSON"));
        }
        self.host.command(Command::Send {
            conversation,
            input: input(params),
            options: options.into(),
        })
    }

    /// The turn that the first message of a conversation began.
    fn turn_of(&self, conversation: ConversationId) -> TurnNo {
        let prompts = self.host.machine.durable().prompts();
        prompts
            .filter(|prompt| prompt.fields.conversation == conversation)
            .map(|prompt| prompt.fields.turn)
            .next()
            .expect("a message was sent")
    }

    /// Answers a request of the server.
    fn answer(&mut self, want: &Value) -> CommandId {
        let result = &want["result"];
        if self.calls.contains(&want["id"]) {
            let call = self.call_of(&want["id"]);
            let text = |part: &Value| part["text"].as_str().unwrap_or_default().to_owned();
            let mut given = ToolResult::ok("");
            given.success = result["success"] == true;
            given.content = result["contentItems"]
                .as_array()
                .into_iter()
                .flatten()
                .map(|part| turnkeep_core::command::ToolContent::Text(text(part)))
                .collect();
            let result = given;
            return self.host.command(Command::Respond { call, result });
        }
        let answer = match (result["decision"].as_str(), result.get("answers")) {
            (Some("accept"), _) => Answer::Accept,
            (Some("decline"), _) => Answer::Decline,
            (Some("cancel"), _) => Answer::Cancel,
            (_, Some(answers)) => Answer::Input(
                answers
                    .as_object()
                    .into_iter()
                    .flatten()
                    .map(|(id, answer)| {
                        let texts = serde_json::from_value(answer["answers"].clone());
                        (id.clone(), texts.expect("answers are texts"))
                    })
                    .collect(),
            ),
            _ => panic!("{want} answers nothing that is known"),
        };
        let question = self.question_of(&want["id"]);
        self.host.command(Command::Answer { question, answer })
    }

    fn call_of(&self, id: &Value) -> ToolCallId {
        let at = self.calls.iter().position(|call| call == id);
        let calls = updates(&self.host).filter_map(|(_, update)| match update {
            TurnUpdate::ToolCall(call) => Some(call.id),
            _ => None,
        });
        at.and_then(|at| calls.into_iter().nth(at))
            .unwrap_or_else(|| panic!("call {id} was not told"))
    }

    fn question_of(&self, id: &Value) -> QuestionId {
        let at = self.questions.iter().position(|question| question == id);
        let questions = updates(&self.host).filter_map(|(_, update)| match update {
            TurnUpdate::Question(question) => Some(question.id),
            _ => None,
        });
        at.and_then(|at| questions.into_iter().nth(at))
            .unwrap_or_else(|| panic!("question {id} was not told"))
    }

    /// Compares the next frame that was sent with the recorded one, less the allowed differences.
    fn expect(&mut self, want: &Value) {
        // The recorded client did not ask whose a thread is that it had made by a raw request.
        let asks = |json: &Value| {
            json["method"] == "thread/read" && json["params"]["includeTurns"] == json!(false)
        };
        self.host
            .sent
            .retain(|sent| !asks(&sent.json) || asks(want));
        let sent = self.host.sent.pop_front();
        let sent = sent.unwrap_or_else(|| panic!("not sent: {want}")).json;
        let (mut want, mut got) = (want.clone(), sent.clone());
        if want.get("method").is_some() {
            if let Some(id) = want.get("id") {
                self.ids.insert(id.to_string(), sent["id"].clone());
            }
            remove(&mut want, "id");
            remove(&mut got, "id");
        }
        let raw = want.get("id").is_none() && self.raw.values().len() > 0;
        let recorded_message = want
            .get_mut("params")
            .and_then(|params| remove(params, "clientUserMessageId"));
        match sent["method"].as_str() {
            Some("initialize") => {
                let params = &mut got["params"];
                for (part, member) in [
                    ("clientInfo", "title"),
                    ("capabilities", "requestAttestation"),
                    ("capabilities", "optOutNotificationMethods"),
                ] {
                    if want["params"][part].get(member).is_none() {
                        let ours = remove(&mut params[part], member);
                        let empty = [json!(""), json!(false), json!([])];
                        assert!(ours.is_some_and(|ours| empty.contains(&ours)));
                    }
                }
                let recorded = &mut want["params"]["capabilities"]["optOutNotificationMethods"];
                if let Some(methods) = recorded.as_array_mut() {
                    methods.retain(|method| {
                        !NEEDED_NOTIFICATIONS.contains(&method.as_str().unwrap_or_default())
                    });
                } else {
                    remove(
                        &mut want["params"]["capabilities"],
                        "optOutNotificationMethods",
                    );
                }
            }
            Some("thread/start") => {
                let mark = remove(&mut got["params"], "threadSource");
                assert!(mark.is_some_and(|mark| is_mark(mark.as_str().unwrap_or_default())));
            }
            // We ask for all items, in pages that fit a frame.
            Some("thread/turns/list")
                if want["params"].get("itemsView").is_none()
                    && remove(&mut got["params"], "itemsView").is_some() =>
            {
                remove(&mut got["params"], "limit");
            }
            Some("turn/start" | "turn/steer") => {
                let ours = remove(&mut got["params"], "clientUserMessageId");
                match (ours, recorded_message) {
                    (Some(ours), recorded) if is_message(&ours) => {
                        if let Some(recorded) = recorded {
                            let text = |v: &Value| v.as_str().unwrap_or_default().to_owned();
                            self.messages.insert(text(&recorded), text(&ours));
                        }
                    }
                    // A raw request goes out as the application wrote it.
                    (ours, recorded) => assert!(raw && ours == recorded, "{sent}"),
                }
            }
            _ => {}
        }
        assert_eq!(got, want);
    }

    fn name_of_answer(&self, command: CommandId) -> String {
        let text = match self.host.answer(command) {
            Some(Ok(reply)) => format!("{reply:?}"),
            Some(Err(error)) => format!("{error:?}"),
            None => "no answer".into(),
        };
        let end = text.find([' ', '(', '{']).unwrap_or(text.len());
        text[..end].to_owned()
    }

    /// Raw requests are answered with what the server said, and every command is answered.
    fn check_answers(&self) {
        for (command, recorded) in &self.raw_answers {
            let answer = self.host.answer(*command).expect("an answer");
            match (recorded.get("result"), answer) {
                (Some(result), Ok(Reply::Response(raw))) => {
                    let got: Value = raw.read().expect("a result is JSON");
                    assert_eq!(got, *result);
                }
                (None, Err(turnkeep_core::CommandError::Refused(refusal))) => {
                    assert_eq!(recorded["error"]["code"], refusal.error.code);
                    assert_eq!(recorded["error"]["message"], refusal.error.message);
                }
                other => panic!("{other:?}"),
            }
        }
    }
}

fn updates(host: &ByHand) -> impl Iterator<Item = (TurnNo, &TurnUpdate)> {
    host.events.iter().filter_map(|event| match event {
        Event::Turn(event) => Some((event.turn, &event.update)),
        _ => None,
    })
}

fn remove(object: &mut Value, key: &str) -> Option<Value> {
    object.as_object_mut()?.remove(key)
}

fn is_message(id: &Value) -> bool {
    id.as_str()
        .and_then(|id| id.strip_prefix("msg_"))
        .is_some_and(|hex| {
            hex.len() == 32 && hex.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))
        })
}

/// Exchanges the id of a response, and nothing else of its bytes.
fn with_id(frame: &str, from: &str, to: &str) -> String {
    if let Some(rest) = frame.strip_prefix(&format!(r#"{{"id":{from},"#)) {
        return format!(r#"{{"id":{to},{rest}"#);
    }
    let rest = frame.strip_suffix(&format!(r#","id":{from}}}"#));
    let rest = rest.unwrap_or_else(|| panic!("no id {from} first or last: {frame:.300}"));
    format!(r#"{rest},"id":{to}}}"#)
}

fn input(params: &Value) -> Vec<InputItem> {
    let items = params["input"].as_array().into_iter().flatten();
    items
        .map(|item| {
            let raw = RawJson::of(item).expect("an input item is JSON");
            InputItem::raw(raw).expect("an input item has a type")
        })
        .collect()
}

fn settings(params: &Value) -> Settings {
    let mut settings = Settings::new().questions(Questions::Ask);
    for (key, value) in params.as_object().expect("parameters are an object") {
        let text = value.as_str().unwrap_or_default();
        settings = match key.as_str() {
            "cwd" => settings.cwd(text),
            "approvalPolicy" => settings.approval_policy(match text {
                "never" => ApprovalPolicy::Never,
                "untrusted" => ApprovalPolicy::Untrusted,
                "on-request" => ApprovalPolicy::OnRequest,
                other => panic!("{other:?} is no approval policy"),
            }),
            "sandbox" => {
                assert_eq!(text, "read-only");
                settings.sandbox(Sandbox::ReadOnly)
            }
            "ephemeral" => settings.ephemeral(value == true),
            "dynamicTools" => {
                value
                    .as_array()
                    .into_iter()
                    .flatten()
                    .fold(settings, |settings, tool| {
                        assert_eq!(tool["type"], "function");
                        let text = |key: &str| tool[key].as_str().unwrap_or_default().to_owned();
                        let schema = RawJson::of(&tool["inputSchema"]).expect("a schema is JSON");
                        settings.tool(Tool::function(text("name"), text("description"), schema))
                    })
            }
            other => panic!("{other:?} is no setting of turnkeep"),
        };
    }
    settings
}

/// Events as text, by the conversation that they belong to, with neighbouring deltas of one item
/// joined: what cutting the bytes elsewhere may not change.
pub(crate) fn flat(events: &[Event]) -> BTreeMap<String, Vec<Value>> {
    let mut out: BTreeMap<String, Vec<Value>> = BTreeMap::new();
    for event in events {
        let of = match event {
            Event::Answer { .. } => "answers".to_owned(),
            Event::Connection(_) | Event::Halted => "connection".to_owned(),
            Event::Delta(_) | Event::Turn(_) | Event::Conversation(_) => {
                format!("{:?}", event.conversation())
            }
        };
        let event = serde_json::to_value(event).expect("an event is JSON");
        let list = out.entry(of).or_default();
        if let (Some(last), Some(delta)) = (list.last_mut(), event.get("Delta")) {
            if let Some(before) = last.get_mut("Delta") {
                let same = ["turn", "item", "kind", "part"];
                if same.iter().all(|key| before[*key] == delta[*key]) {
                    let text = |v: &Value| v["text"].as_str().unwrap_or_default().to_owned();
                    before["text"] = json!(text(before) + &text(delta));
                    let count = |v: &Value| v["frames"].as_u64().unwrap_or_default();
                    before["frames"] = json!(count(before) + count(delta));
                    continue;
                }
            }
        }
        list.push(event);
    }
    out
}

/// The ends are those of the table, and texts, errors and usage those of the recorded frames.
pub(crate) fn check_ends(recording: &Recording, how: &Driven, host: &ByHand) {
    let mut ends: BTreeMap<TurnNo, &TurnEnd> = BTreeMap::new();
    for (turn, update) in updates(host) {
        if let TurnUpdate::Ended(end) = update {
            assert!(ends.insert(turn, end).is_none(), "turn {turn} ended twice");
        }
    }
    let mut got: Vec<_> = ends
        .values()
        .map(|end| (end.outcome.name(), end.text.as_deref()))
        .collect();
    if how.together {
        // Which of them the model served first is chance.
        got.sort();
    }
    assert_eq!(got, how.ends);
    for end in ends.values() {
        if let Outcome::Completed { text, structured } = &end.outcome {
            assert_eq!(*text, end.text);
            let asked = recording.name == "structured_output";
            assert_eq!(structured.is_some(), asked);
        }
        let Some(native) = &end.native else { continue };
        let mut usage = None;
        for line in &recording.lines {
            let frame: Value = match &line.what {
                What::In(frame) => serde_json::from_str(frame).expect("a frame is JSON"),
                What::Out(_) => continue,
                What::Killed | What::Exited | What::Disconnected => break,
            };
            let params = &frame["params"];
            if frame["method"] == "thread/tokenUsage/updated" && params["turnId"] == **native {
                usage = Some(params["tokenUsage"].clone());
            }
            if frame["method"] == "turn/completed" && params["turn"]["id"] == **native {
                if let Outcome::Failed { error } = &end.outcome {
                    assert_eq!(params["turn"]["error"]["message"], error.message);
                }
            }
        }
        let got = end.usage.map(|usage| {
            json!({
                "total": usage.thread, "last": usage.last, "modelContextWindow": usage.context_window,
            })
        });
        let has = |usage: &Value, key: &str| usage[key]["totalTokens"].clone();
        match (usage, got) {
            (Some(want), Some(got)) => {
                assert_eq!(has(&want, "total"), has(&got, "total"));
                assert_eq!(has(&want, "last"), has(&got, "last"));
                assert_eq!(want["modelContextWindow"], got["modelContextWindow"]);
            }
            (want, got) => assert_eq!(want, got),
        }
    }
}
