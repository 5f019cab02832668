//! A machine with running turns, for benchmarks and for counting: no server, no journal, no clock.

use serde_json::{Value, json};
use turnkeep_core::{
    Command, CommandId, Config, ConversationId, ConversationKey, Effect, Effects, Epoch, Event,
    Input, InputItem, Machine, Peer, SendOptions, Settings, Timestamp,
};

/// A machine whose server answers every request at once.
#[derive(Debug)]
pub struct Rig {
    /// The machine.
    pub machine: Machine,
    now: u64,
    command: u64,
    turns: usize,
    pending: Vec<Effect>,
}

/// The thread of a conversation, by its place from 0: as long as a real one.
#[must_use]
pub fn thread_id(n: usize) -> String {
    format!("01a2279e-0c12-7f52-9c3b-816d5f29{n:04x}")
}

/// The turn of a conversation, by its place from 0.
#[must_use]
pub fn turn_id(n: usize) -> String {
    format!("01a2279e-0c13-7ab1-8d4e-5f0a11c2{n:04x}")
}

/// The message that streams in a turn.
#[must_use]
pub fn item_id(n: usize) -> String {
    format!("msg_0a1b2c3d4e5f60718293a4b5c6d7e8f90{n:04x}")
}

impl Rig {
    /// A machine with `conversations` conversations, each with a running turn.
    #[must_use]
    pub fn new(config: Config, conversations: usize) -> Self {
        let (machine, effects) =
            Machine::new(config, 7, Timestamp(0)).expect("the configuration is valid");
        let mut rig = Self {
            machine,
            now: 0,
            command: 0,
            turns: 0,
            pending: Vec::new(),
        };
        rig.pending.extend(effects.list);
        rig.settle();
        rig.feed(Input::Opened(Epoch(1), Peer::child(1, None)));
        for n in 0..conversations {
            let key = ConversationKey::new(&format!("conversation {n}")).expect("a clean key");
            rig.command(Command::Open {
                key,
                settings: Box::new(Settings::new()),
            });
            rig.command(Command::Send {
                conversation: ConversationId(u32::try_from(n + 1).expect("few conversations")),
                input: vec![InputItem::text("go")],
                options: Box::new(SendOptions::new()),
            });
        }
        assert_eq!(rig.turns, conversations, "every turn runs");
        rig
    }

    /// Gives a command.
    pub fn command(&mut self, command: Command) {
        self.command += 1;
        let id = CommandId(self.command);
        self.feed(Input::Command { id, command });
    }

    /// Gives an input and performs what it leads to.
    pub fn feed(&mut self, input: Input) {
        self.now += 1;
        let effects = self.machine.step(Timestamp(self.now), input);
        self.pending.extend(effects.list);
        self.settle();
    }

    /// Gives one read and returns what it leads to, performing nothing.
    pub fn read(&mut self, bytes: &[u8]) -> Effects {
        self.now += 1;
        self.machine.step(
            Timestamp(self.now),
            Input::Received(Epoch(1), bytes.to_vec()),
        )
    }

    fn settle(&mut self) {
        while !self.pending.is_empty() {
            for effect in std::mem::take(&mut self.pending) {
                match effect {
                    Effect::Append(batch) => {
                        let through = batch.through;
                        let effects = self
                            .machine
                            .step(Timestamp(self.now), Input::Appended { through });
                        self.pending.extend(effects.list);
                    }
                    Effect::Send(epoch, frame) => {
                        let request: Value =
                            serde_json::from_slice(&frame.bytes).expect("we send JSON");
                        if let Some(answer) = self.answer(&request) {
                            let mut line = answer.to_string().into_bytes();
                            line.push(b'\n');
                            let effects = self
                                .machine
                                .step(Timestamp(self.now), Input::Received(epoch, line));
                            self.pending.extend(effects.list);
                        }
                    }
                    Effect::Emit(Event::Answer { answer, .. }) => {
                        assert!(answer.is_ok(), "{answer:?}");
                    }
                    Effect::Emit(_) | Effect::Open(..) | Effect::Close(..) => {}
                }
            }
        }
    }

    fn answer(&mut self, request: &Value) -> Option<Value> {
        let result = match request["method"].as_str()? {
            "initialize" => json!({"userAgent": "turnkeep/0.171.0 (rig)"}),
            "thread/start" => json!({"thread": {"id": thread_id(self.turns)}}),
            "turn/start" => {
                let id = turn_id(self.turns);
                self.turns += 1;
                json!({"turn": {"id": id, "status": "inProgress"}})
            }
            _ => return None,
        };
        Some(json!({"id": request["id"], "result": result}))
    }
}

/// A text of exactly `n` bytes; one in four has an escape, one in eight is not ASCII.
#[must_use]
pub fn delta_text(i: usize, n: usize) -> String {
    const ESCAPED: [&str; 4] = ["\n", "\"x\"", "\\", "\n\t"];
    const WIDE: [&str; 4] = ["é", "→ ", "日本", "🚀"];
    const FILL: &[u8] =
        b" the tool reads src/main.rs and then writes each value back to its own row in order";
    let mut text = String::new();
    if i % 4 == 1 {
        text.push_str(ESCAPED[(i / 4) % 4]);
    }
    if i % 8 == 3 {
        text.push_str(WIDE[(i / 8) % 4]);
    }
    let mut k = i * 7;
    while text.len() < n {
        text.push(char::from(FILL[k % FILL.len()]));
        k += 1;
    }
    text
}

/// Output of a command, `n` bytes with the odd quote, tab and colour.
#[must_use]
pub fn output_text(seed: usize, n: usize) -> String {
    const LINES: [&str; 4] = [
        "\u{1b}[32m    Finished\u{1b}[0m release profile [optimized] target(s)\n",
        "warning: unused variable: `x` --> src/lib.rs:10:5 \"note\"\n",
        "test protocol::round_trip::thread_start ... ok\n",
        "0123456789abcdef0123456789abcdef0123456789abcdef 1234567 -rw-r--r--\n",
    ];
    let mut text = String::with_capacity(n + 80);
    let mut i = seed;
    while text.len() < n {
        text.push_str(LINES[i % LINES.len()]);
        i += 1;
    }
    text.truncate(n);
    text
}

/// A delta as the real server writes it, with its line feed.
#[must_use]
pub fn delta(method: &str, n: usize, extra: &str, text: &str) -> String {
    let text = Value::from(text);
    format!(
        "{{\"method\":\"{method}\",\"params\":{{\"threadId\":\"{}\",\"turnId\":\"{}\",\
         \"itemId\":\"{}\",\"delta\":{text}{extra}}},\"emittedAtMs\":1795960998921}}\n",
        thread_id(n),
        turn_id(n),
        item_id(n),
    )
}

/// A plain notification of a turn, with its line feed.
#[must_use]
pub fn notification(method: &str, n: usize, members: &str) -> String {
    format!(
        "{{\"method\":\"{method}\",\"params\":{{\"threadId\":\"{}\",\"turnId\":\"{}\",{members}}},\
         \"emittedAtMs\":1795960998921}}\n",
        thread_id(n),
        turn_id(n),
    )
}

/// The end of a turn.
#[must_use]
pub fn completed(n: usize) -> String {
    format!(
        "{{\"method\":\"turn/completed\",\"params\":{{\"threadId\":\"{}\",\"turn\":{{\
         \"id\":\"{}\",\"items\":[],\"status\":\"completed\",\"error\":null}}}}}}\n",
        thread_id(n),
        turn_id(n),
    )
}

/// `count` text deltas of the conversations that `pick` names.
#[must_use]
pub fn deltas(count: usize, mut pick: impl FnMut(usize) -> usize) -> Vec<u8> {
    let mut out = String::new();
    for i in 0..count {
        out.push_str(&delta(
            "item/agentMessage/delta",
            pick(i),
            "",
            &delta_text(i, 24),
        ));
    }
    out.into_bytes()
}

/// A coding turn's proportions: text, reasoning, outputs of 1 to 4 KiB, diffs, usage and a method
/// that nobody knows.
#[must_use]
pub fn mix(blocks: usize) -> Vec<u8> {
    let usage = r#""tokenUsage":{"total":{"totalTokens":12345,"inputTokens":12000,"cachedInputTokens":8000,"outputTokens":345,"reasoningOutputTokens":64},"last":{"totalTokens":12345,"inputTokens":12000,"cachedInputTokens":8000,"outputTokens":345,"reasoningOutputTokens":64},"modelContextWindow":272000}"#;
    let mut block = String::new();
    for r in 0..10 {
        for i in 0..20 {
            let text = delta_text(r * 20 + i, 18);
            block.push_str(&delta(
                "item/reasoning/textDelta",
                0,
                ",\"contentIndex\":0",
                &text,
            ));
        }
        for i in 0..10 {
            let text = delta_text(r + i, 30);
            let method = "item/reasoning/summaryTextDelta";
            block.push_str(&delta(method, 0, ",\"summaryIndex\":0", &text));
        }
        for i in 0..30 {
            let text = delta_text(r * 30 + i, 24);
            block.push_str(&delta("item/agentMessage/delta", 0, "", &text));
        }
        for i in 0..30 {
            let text = output_text(i, 1024 + ((r * 30 + i) * 397) % 3073);
            block.push_str(&delta("item/commandExecution/outputDelta", 0, "", &text));
        }
        for size in [6000 + r * 900, 2000] {
            let diff = Value::from(output_text(r, size));
            block.push_str(&notification(
                "turn/diff/updated",
                0,
                &format!("\"diff\":{diff}"),
            ));
        }
        for _ in 0..4 {
            block.push_str(&notification("thread/tokenUsage/updated", 0, usage));
        }
        for i in 0..4 {
            let value = format!("\"value\":{{\"n\":{i},\"list\":[1,2,3],\"s\":\"x\\ny\"}}");
            block.push_str(&notification("bench/futureThing/updated", 0, &value));
        }
    }
    block.repeat(blocks).into_bytes()
}
