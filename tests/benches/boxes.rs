//! A conversation that grows: `cargo bench -p turnkeep-tests --bench boxes [-- BOXES]`.
//!
//! One machine, one conversation, rounds one after the other, each with a stage, a deferred call, its
//! steer, a result that is steered in with the next stage, and arrivals at rest. What a box costs is
//! measured in ten blocks of equal numbers of boxes; what counts is the ratio of the last block to the
//! first. Only the time in `Machine::step` counts, and in `Recovery::push`.

use std::{
    collections::VecDeque,
    time::{Duration, Instant},
};

use serde_json::{Value, json};
use turnkeep_core::{
    Authorization, Command, CommandId, Config, ConversationId, ConversationKey, Effect, Epoch,
    Event, Input, InputItem, Machine, Peer, RawJson, Recovery, SendOptions, Settings, Timestamp,
    Tool, ToolCallId, ToolResult, TurnNo, TurnUpdate,
    codec::journal::Entry,
    command::AcceptOptions,
    transcript::{BoxBody, box_type},
};

const BLOCKS: usize = 10;

/// What a step is for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum For {
    Append,
    Stage,
    Rest,
}

struct Bench {
    machine: Machine,
    now: u64,
    command: u64,
    spent: [Duration; 3],
    entries: Vec<Entry>,
    sent: VecDeque<Value>,
    calls: VecDeque<ToolCallId>,
    ended: Vec<TurnNo>,
    server_id: u64,
    turn: u64,
}

const CONVERSATION: ConversationId = ConversationId(1);

impl Bench {
    fn new() -> Self {
        let mut config = Config::default();
        config.authorization = Authorization::None;
        let (machine, effects) = Machine::new(config, 7, Timestamp(0)).expect("a valid one");
        let mut bench = Self {
            machine,
            now: 0,
            command: 0,
            spent: [Duration::ZERO; 3],
            entries: Vec::new(),
            sent: VecDeque::new(),
            calls: VecDeque::new(),
            ended: Vec::new(),
            server_id: 0,
            turn: 0,
        };
        bench.perform(effects.list);
        bench.step(For::Rest, Input::Opened(Epoch(1), Peer::child(1, None)));
        let hello = bench.next("initialize");
        let agent = "turnkeep/0.171.0 (linux)";
        bench.answer(
            For::Rest,
            &hello,
            &json!({"userAgent": agent, "codexHome": "/h"}),
        );
        let tool = Tool::function("slow", "", RawJson::parse("{}").expect("an object"));
        bench.ask(
            For::Rest,
            Command::Open {
                key: ConversationKey::new("a").expect("a clean key"),
                settings: Settings::new().tool(tool.deferred()).into(),
            },
        );
        bench
    }

    fn boxes(&self) -> u64 {
        let known = self.machine.durable().conversation(CONVERSATION);
        known.map_or(0, |known| known.transcript().len())
    }

    fn step(&mut self, what: For, input: Input) {
        self.now += 1;
        let at = Instant::now();
        let effects = self.machine.step(Timestamp(self.now), input);
        self.spent[what as usize] += at.elapsed();
        self.perform(effects.list);
    }

    fn perform(&mut self, list: Vec<Effect>) {
        for effect in list {
            match effect {
                Effect::Append(batch) => {
                    let through = batch.through;
                    self.entries.push(Entry {
                        seq: through,
                        at: batch.at,
                        records: batch.records,
                    });
                    self.step(For::Rest, Input::Appended { through });
                }
                Effect::Send(_, frame) => {
                    let frame = serde_json::from_slice(&frame.bytes).expect("a frame is JSON");
                    self.sent.push_back(frame);
                }
                Effect::Emit(Event::Turn(event)) => match event.update {
                    TurnUpdate::ToolCall(call) => self.calls.push_back(call.id),
                    TurnUpdate::Ended(_) => self.ended.push(event.turn),
                    _ => {}
                },
                Effect::Emit(_) | Effect::Open(..) | Effect::Close(..) => {}
            }
        }
    }

    fn ask(&mut self, what: For, command: Command) {
        self.command += 1;
        let id = CommandId(self.command);
        self.step(what, Input::Command { id, command });
    }

    fn next(&mut self, method: &str) -> Value {
        loop {
            let frame = self.sent.pop_front();
            let frame = frame.unwrap_or_else(|| panic!("{method} was not sent"));
            if frame["method"] == method {
                return frame;
            }
        }
    }

    fn say(&mut self, what: For, frame: &Value) {
        self.step(
            what,
            Input::Received(Epoch(1), format!("{frame}\n").into_bytes()),
        );
    }

    fn answer(&mut self, what: For, request: &Value, result: &Value) {
        self.say(what, &json!({"id": request["id"], "result": result}));
    }

    fn item(&mut self, item: &Value) {
        let params =
            json!({"threadId": "thr_1", "turnId": format!("trn_{}", self.turn), "item": item});
        self.say(
            For::Rest,
            &json!({"method": "item/completed", "params": params}),
        );
    }

    fn recorded(&mut self, request: &Value) {
        let id = &request["params"]["clientUserMessageId"];
        self.item(&json!({"type": "userMessage", "id": id, "clientId": id, "content": []}));
    }

    /// A stage with one deferred call, and the steer that it makes.
    fn stage(&mut self) {
        self.server_id += 1;
        let n = self.server_id;
        self.item(&json!({"type": "agentMessage", "id": format!("it_{n}"), "text": "Let me see what it says."}));
        let params = json!({"threadId": "thr_1", "turnId": format!("trn_{}", self.turn),
            "callId": format!("call_{n}"), "tool": "slow", "arguments": {"n": n}});
        self.say(
            For::Stage,
            &json!({"id": n, "method": "item/tool/call", "params": params}),
        );
        let steer = self.next("turn/steer");
        self.answer(
            For::Stage,
            &steer,
            &json!({"turnId": format!("trn_{}", self.turn)}),
        );
        self.recorded(&steer);
    }

    /// One round: two stages, the first one's result goes in with the second, the second one's comes
    /// at rest.
    fn round(&mut self) {
        self.turn += 1;
        let turn = json!({"id": format!("trn_{}", self.turn), "items": [], "status": "inProgress"});
        if self.turn == 1 {
            let start = self.next("thread/start");
            self.answer(
                For::Rest,
                &start,
                &json!({"thread": {"id": "thr_1", "turns": []}}),
            );
        }
        let start = self.next("turn/start");
        self.answer(For::Rest, &start, &json!({"turn": turn}));
        let params = json!({"threadId": "thr_1", "turn": turn});
        self.say(
            For::Rest,
            &json!({"method": "turn/started", "params": params}),
        );
        self.recorded(&start);
        self.stage();
        self.respond();
        self.stage();
        let mut turn = turn;
        turn["status"] = "completed".into();
        let params = json!({"threadId": "thr_1", "turn": turn});
        self.say(
            For::Rest,
            &json!({"method": "turn/completed", "params": params}),
        );
        for turn in core::mem::take(&mut self.ended) {
            self.ask(For::Rest, Command::Acknowledge { turn });
        }
    }

    fn respond(&mut self) {
        if let Some(call) = self.calls.pop_front() {
            let result = ToolResult::ok("what came out of it");
            self.ask(For::Append, Command::Respond { call, result });
        }
    }
}

/// Nanoseconds a box.
fn each(spent: Duration, boxes: u64) -> f64 {
    spent.as_secs_f64() * 1e9 / f64::from(u32::try_from(boxes.max(1)).unwrap_or(u32::MAX))
}

fn main() {
    let asked = std::env::args().skip(1).find_map(|arg| arg.parse().ok());
    let boxes: u64 = asked.unwrap_or(100_000);
    let block = boxes / BLOCKS as u64;
    let mut bench = Bench::new();
    bench.ask(
        For::Append,
        Command::Send {
            conversation: CONVERSATION,
            input: vec![InputItem::text("go")],
            options: SendOptions::new().into(),
        },
    );
    println!("ns a box       append     stage      rest     total");
    let mut rows = Vec::new();
    for n in 1..=BLOCKS as u64 {
        let before = bench.boxes();
        bench.spent = [Duration::ZERO; 3];
        while bench.boxes() < n * block {
            bench.round();
            for _ in 0..2 {
                let body = BoxBody::new(box_type::TOOL_MESSAGE, "on its way");
                bench.ask(
                    For::Append,
                    Command::Accept {
                        conversation: CONVERSATION,
                        boxes: vec![body],
                        options: AcceptOptions::new().into(),
                    },
                );
            }
            // It comes at rest, and begins the next round.
            bench.respond();
        }
        let count = bench.boxes() - before;
        let row = bench.spent.map(|spent| each(spent, count));
        let total: f64 = row.iter().sum();
        println!(
            "{:>9} boxes {:>7.0} {:>9.0} {:>9.0} {total:>9.0}",
            bench.boxes(),
            row[0],
            row[1],
            row[2]
        );
        rows.push([row[0], row[1], row[2], total]);
    }
    let (first, last) = (rows[0], rows[BLOCKS - 1]);
    println!(
        "last block to first: append {:.2}, stage {:.2}, rest {:.2}, total {:.2}",
        last[0] / first[0],
        last[1] / first[1],
        last[2] / first[2],
        last[3] / first[3]
    );
    recover(&bench);
}

/// The same records read again, in ten parts.
fn recover(bench: &Bench) {
    let mut config = Config::default();
    config.authorization = Authorization::None;
    let mut recovery = Recovery::new(config, 8).expect("a valid one");
    let part = bench.entries.len().div_ceil(BLOCKS);
    let parts: Vec<f64> = bench
        .entries
        .chunks(part)
        .map(|entries| {
            let at = Instant::now();
            for entry in entries {
                recovery.push(entry).expect("the records are good");
            }
            each(at.elapsed(), bench.boxes() / BLOCKS as u64)
        })
        .collect();
    let at = Instant::now();
    let (machine, _) = recovery.finish(Timestamp(0));
    let finished = at.elapsed();
    let known = machine.durable().conversation(CONVERSATION);
    assert_eq!(
        known.map(|known| known.transcript().len()),
        Some(bench.boxes())
    );
    println!(
        "recovering, ns a box: first tenth {:.0}, last tenth {:.0}, ratio {:.2}; then finish {:.1} ms",
        parts[0],
        parts[parts.len() - 1],
        parts[parts.len() - 1] / parts[0],
        finished.as_secs_f64() * 1e3
    );
}
