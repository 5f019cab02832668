//! Any input at any time: commands, frames that fit and frames that do not, acknowledgements, time
//! and ends, by chance from a seed. Whatever comes, every wait ends, and every turn once.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};
use turnkeep_core::{
    CloseReason, Closed, Command, CommandId, ConversationId, ConversationKey, Event, Input,
    InputItem, QuestionId, RawJson, SendOptions, Settings, Tool, ToolCallId, ToolResult, TurnNo,
    TurnUpdate,
    cleanup::Owner,
    command::{Answer, Questions, RequestEffect},
    event::ConversationUpdate,
};
use turnkeep_tests::by_hand::{ByHand, EPOCH};

struct Chance(u64);

impl Chance {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % bound
    }

    fn of<T: Clone>(&mut self, list: &[T]) -> T {
        list[usize::try_from(self.below(list.len() as u64)).expect("a short list")].clone()
    }
}

struct Shaken {
    host: ByHand,
    chance: Chance,
    /// Those that were asked, for the words of a failure.
    commands: Vec<(CommandId, String)>,
    /// Frames that the machine has sent and that nobody has answered.
    open: Vec<Value>,
    messages: Vec<Value>,
    asked: u64,
    /// Requests of ours, by their id, that wait for the machine's answer.
    asks: BTreeMap<String, u32>,
}

const THREADS: [&str; 3] = ["t1", "t2", "t9"];
const TURNS: [&str; 4] = ["u1", "u2", "u3", "u4"];

impl Shaken {
    fn new(seed: u64) -> Self {
        let mut config = turnkeep_tests::one_connection();
        config.limits.early_frames = 8;
        let mut chance = Chance(seed);
        let mut host = ByHand::ready_with(config);
        host.acks = chance.below(3) > 0;
        Self {
            host,
            chance,
            commands: Vec::new(),
            open: Vec::new(),
            messages: Vec::new(),
            asked: 0,
            asks: BTreeMap::new(),
        }
    }

    fn collect(&mut self) {
        while let Some(sent) = self.host.sent.pop_front() {
            let frame = sent.json;
            let message = &frame["params"]["clientUserMessageId"];
            if !message.is_null() {
                self.messages.push(message.clone());
            }
            if frame.get("method").is_some() {
                self.open.push(frame);
            } else {
                let waits = self.asks.get_mut(&frame["id"].to_string());
                let waits = waits.unwrap_or_else(|| panic!("nobody asked: {frame}"));
                *waits = waits
                    .checked_sub(1)
                    .unwrap_or_else(|| panic!("answered twice: {frame}"));
            }
        }
    }

    fn step(&mut self) {
        match self.chance.below(12) {
            0..=3 => self.command(),
            4..=8 => self.frame(),
            9 => self.respond(),
            10 => self.host.ack(),
            _ => {
                if self.chance.below(3) == 0 {
                    self.host.wait_for_timer();
                }
            }
        }
        self.collect();
    }

    fn command(&mut self) {
        let conversation = ConversationId(self.chance.of(&[1, 1, 1, 2, 3]));
        let turn = TurnNo(u32::try_from(self.chance.below(6)).expect("small"));
        let input = vec![InputItem::text("x")];
        let calls: Vec<ToolCallId> = self.updates(|update| match update {
            TurnUpdate::ToolCall(call) => Some(call.id),
            _ => None,
        });
        let questions: Vec<QuestionId> = self.updates(|update| match update {
            TurnUpdate::Question(question) => Some(question.id),
            _ => None,
        });
        let command = match self.chance.below(16) {
            0 | 1 => {
                let schema = RawJson::parse("{}").expect("JSON");
                let settings = Settings::new()
                    .questions(Questions::Ask)
                    .tool(Tool::function("look", "", schema));
                let key = self.chance.of(&["a", "b", "c"]);
                let settings = settings.workspace(if key == "c" { "v" } else { "w" });
                Command::Open {
                    key: ConversationKey::new(key).expect("a key"),
                    settings: settings.into(),
                }
            }
            2..=4 => {
                let mut options = SendOptions::new();
                if self.chance.below(4) == 0 {
                    options = options.deadline(std::time::Duration::from_secs(3));
                }
                Command::Send {
                    conversation,
                    input,
                    options: options.into(),
                }
            }
            5 | 6 => Command::Steer { turn, input },
            7 => Command::Interrupt { turn },
            8 => Command::Abandon { turn },
            9 if !calls.is_empty() => Command::Respond {
                call: self.chance.of(&calls),
                result: ToolResult::ok("v"),
            },
            10 if !questions.is_empty() => Command::Answer {
                question: self.chance.of(&questions),
                answer: self
                    .chance
                    .of(&[Answer::Accept, Answer::Decline, Answer::Cancel]),
            },
            11 => Command::Close { conversation },
            12 => Command::Acknowledge { turn },
            14 => {
                let workspace = Owner::Workspace("w".into());
                let one = Owner::Conversation(conversation);
                let owner = self
                    .chance
                    .of(&[one.clone(), one, workspace, Owner::Client]);
                match self.chance.below(3) {
                    0 => Command::Detach { owner },
                    1 => Command::Archive { owner },
                    _ => Command::Delete { owner },
                }
            }
            13 if self.chance.below(20) == 0 => Command::Shutdown,
            _ => Command::Request {
                method: "model/list".into(),
                params: RawJson::parse("{}").expect("JSON"),
                effect: self
                    .chance
                    .of(&[RequestEffect::Reads, RequestEffect::Changes]),
            },
        };
        let text = format!("{command:?}");
        let id = self.host.command(command);
        self.commands.push((id, text));
    }

    fn updates<T>(&self, pick: impl Fn(&TurnUpdate) -> Option<T>) -> Vec<T> {
        let updates = self.host.events.iter().filter_map(|event| match event {
            Event::Turn(event) => pick(&event.update),
            _ => None,
        });
        updates.collect()
    }

    /// An answer to what the machine asked, mostly one that fits.
    fn respond(&mut self) {
        if self.open.is_empty() {
            return;
        }
        let at = self.chance.below(self.open.len() as u64);
        let frame = self.open.remove(usize::try_from(at).expect("small"));
        let turn = self.chance.of(&TURNS);
        let thread = self.chance.of(&THREADS);
        let asked = &frame["params"]["threadId"];
        let result = match frame["method"].as_str() {
            Some("thread/start") => json!({"thread": {"id": thread}}),
            Some("thread/resume") => json!({"thread": {"id": asked}}),
            Some("turn/start") => json!({"turn": {"id": turn}}),
            Some("thread/list" | "thread/loaded/list") => {
                let next = self.chance.of(&[json!(null), json!("c"), json!("d")]);
                let row = match frame["method"] == "thread/list" {
                    true => json!({"id": thread}),
                    false => json!(thread),
                };
                json!({"data": [row], "nextCursor": next})
            }
            Some("thread/backgroundTerminals/list") => {
                json!({"data": self.chance.of(&[json!([]), json!([{"processId": "1"}])])})
            }
            Some("thread/turns/list") => {
                json!({"data": [{"id": turn, "status": "completed", "items": []}]})
            }
            _ => json!({}),
        };
        let id = &frame["id"];
        let answer = match self.chance.below(10) {
            0 => json!({"id": id, "error": {"code": -32_001, "message": "overloaded"}}),
            1 => {
                json!({"id": id, "error": {"code": -32_600, "message": "no active turn to steer"}})
            }
            2 => json!({"id": id, "result": self.chance.of(&[json!(null), json!(5), json!({})])}),
            3 => json!({"id": id}),
            _ => json!({"id": id, "result": result}),
        };
        self.host.line(&answer.to_string());
        if self.chance.below(8) == 0 {
            self.host.line(&answer.to_string());
        }
    }

    fn frame(&mut self) {
        let (thread, turn) = (self.chance.of(&THREADS), self.chance.of(&TURNS));
        let client = match self.messages.is_empty() {
            true => json!(null),
            false => self.chance.of(&self.messages.clone()),
        };
        let status = self
            .chance
            .of(&["completed", "interrupted", "failed", "odd"]);
        let word = self
            .chance
            .of(&["idle", "active", "systemError", "notLoaded"]);
        let whole = json!({"id": turn, "status": status, "items": []});
        let user = json!({"type": "userMessage", "id": "m", "clientId": client});
        let agent = json!({"type": "agentMessage", "id": "a", "text": "t"});
        let retry = self.chance.below(2) == 0;
        let number = self.chance.below(4);
        let id = json!(self.chance.below(3) + self.asked / 4);
        let call =
            json!({"callId": format!("c{number}"), "tool": "look", "arguments": {"n": retry}});
        let ask =
            json!({"itemId": format!("i{number}"), "availableDecisions": ["accept", "cancel"]});
        let (method, mut params) = self.chance.of(&[
            ("turn/started", json!({"turn": whole})),
            ("turn/completed", json!({"turn": whole})),
            ("turn/completed", json!({"turn": whole})),
            ("item/started", json!({"item": user})),
            ("item/completed", json!({"item": user})),
            ("item/completed", json!({"item": agent})),
            (
                "item/agentMessage/delta",
                json!({"itemId": "a", "delta": "t"}),
            ),
            ("thread/status/changed", json!({"status": {"type": word}})),
            (
                "error",
                json!({"willRetry": retry, "error": {"message": "e"}}),
            ),
            ("thread/closed", json!({})),
            ("turn/diff/updated", json!({"diff": "d"})),
            ("serverRequest/resolved", json!({"requestId": id})),
            ("item/tool/call", call.clone()),
            ("item/tool/call", call),
            ("item/commandExecution/requestApproval", ask.clone()),
            ("item/fileChange/requestApproval", ask),
            ("currentTime/read", json!({})),
            ("no/such", json!({})),
        ]);
        params["threadId"] = json!(thread);
        if params.get("turn").is_none() {
            params["turnId"] = json!(turn);
        }
        let is_request = matches!(method, "currentTime/read" | "no/such")
            || method.starts_with("item/tool/c")
            || method.ends_with("requestApproval");
        let mut frame = json!({"method": method, "params": params});
        if is_request {
            frame["id"] = id.clone();
            self.asked += 1;
            *self.asks.entry(id.to_string()).or_default() += 1;
        }
        self.host.line(&frame.to_string());
    }

    /// Ends the connection, and holds what must be true then.
    fn finish(mut self) {
        self.host.acks = true;
        self.host.ack();
        let closed = Closed::new(CloseReason::Eof, String::new());
        self.host.step(Input::Closed(EPOCH, closed.into()));
        self.collect();
        for (command, text) in &self.commands {
            assert!(
                self.host.answer(*command).is_some(),
                "{command} has no answer: {text}"
            );
            let answers = self.host.events.iter();
            let answers =
                answers.filter(|e| matches!(e, Event::Answer { id, .. } if id == command));
            assert_eq!(answers.count(), 1, "{command} is answered twice: {text}");
        }
        let (mut told, mut ended) = (BTreeSet::new(), BTreeSet::new());
        let mut gone = BTreeSet::new();
        for event in &self.host.events {
            if let Some(conversation) = event.conversation() {
                assert!(!gone.contains(&conversation), "after the close: {event:?}");
            }
            match event {
                Event::Turn(event) => {
                    let corrects = matches!(event.update, TurnUpdate::Corrected(_));
                    assert!(
                        corrects || !ended.contains(&event.turn),
                        "after the end: {event:?}"
                    );
                    told.insert(event.turn);
                    if let TurnUpdate::Ended(_) = event.update {
                        ended.insert(event.turn);
                    }
                }
                Event::Delta(delta) => assert!(!ended.contains(&delta.turn), "after the end"),
                Event::Conversation(event) => {
                    if event.update == ConversationUpdate::Closed {
                        gone.insert(event.conversation);
                    }
                }
                Event::Answer { answer, .. } => {
                    if let Ok(turnkeep_core::Reply::Accepted { turn, .. }) = &**answer {
                        told.insert(*turn);
                    }
                }
                Event::Connection(_) | Event::Halted => {}
            }
        }
        assert_eq!(told, ended, "turns that were told of and turns that ended");
        let mut durable = turnkeep_core::Durable::default();
        for (at, record) in self.host.records.iter().enumerate() {
            assert_eq!(durable.apply(record), Ok(()), "a record does not fit");
            if at % 16 == 0 {
                let mut again = turnkeep_core::Durable::default();
                assert_eq!(again.apply(&durable.checkpoint()), Ok(()));
                assert_eq!(again, durable, "a checkpoint is the state that was");
            }
        }
        assert_eq!(
            durable,
            *self.host.machine.durable(),
            "the records make the state"
        );
        assert!(
            !self.host.wait_for_timer(),
            "a timer outlives the connection"
        );
    }
}

#[test]
fn whatever_comes_every_wait_ends_and_every_turn_once() {
    let mut failed = Vec::new();
    for seed in 0..600 {
        let run = std::panic::catch_unwind(|| {
            let mut shaken = Shaken::new(seed);
            for _ in 0..120 {
                shaken.step();
            }
            shaken.finish();
        });
        if run.is_err() {
            failed.push(seed);
        }
    }
    assert!(
        failed.is_empty(),
        "{} seeds fail: {:?}",
        failed.len(),
        &failed[..failed.len().min(9)]
    );
}
