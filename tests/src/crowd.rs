//! A server for many conversations at once, which does what raw requests tell it:
//!
//! | request | what it does |
//! | --- | --- |
//! | `test/ping` | is answered at once, as all of these are; the answer holds the numbers of deltas written and of interrupts asked for |
//! | `test/never` | is not answered |
//! | `test/say {from, to, rounds, burst}` | the turns stream so many deltas in a row each, round after round |
//! | `test/mixture {turn, times}` | output of a command, text and a call; its result ends the turn |
//! | `test/flood {turn, least, until, others, after}` | that turn streams at least so many deltas, until a frame with this method comes, and then so many more; meanwhile every other turn streams `others` deltas and ends |
//! | `test/finish {from, to}` | the turns complete |
//! | `test/die` | the server exits |
//!
//! Turns are numbered from 0 in the order of their `turn/start`; what is asked of one that has not
//! begun waits for it. The n-th delta of a turn is [`piece`]. An interrupt ends its turn, and is
//! answered after what streams already.

use std::{collections::VecDeque, fmt::Write as _};

use serde_json::{Value, json};
use turnkeep_runtime::fake::{Action, Server};

/// No flood is longer, whatever comes.
const MOST: u64 = 4_000_000;

/// The n-th delta of a turn.
#[must_use]
pub fn piece(turn: usize, n: u64) -> String {
    format!("{turn}.{n} ")
}

/// All that a turn has said with its first deltas.
#[must_use]
pub fn text(turn: usize, deltas: u64) -> String {
    (0..deltas).map(|n| piece(turn, n)).collect()
}

/// The server.
#[derive(Debug, Default)]
pub struct Crowd {
    threads: usize,
    turns: Vec<Turn>,
    plans: VecDeque<Plan>,
    out: String,
    deltas: u64,
    interrupts: u64,
}

#[derive(Debug)]
struct Turn {
    thread: String,
    said: u64,
    over: bool,
}

#[derive(Debug)]
enum Plan {
    Say {
        from: usize,
        to: usize,
        rounds: u64,
        burst: u64,
    },
    Flood {
        turn: usize,
        least: u64,
        until: String,
        others: u64,
        after: u64,
    },
    Mixture {
        turn: usize,
        times: u64,
    },
    Finish {
        from: usize,
        to: usize,
    },
    Interrupted {
        turn: usize,
        id: Value,
    },
}

impl Plan {
    /// How many turns must have begun.
    fn needs(&self) -> usize {
        match self {
            Self::Say { to, .. } | Self::Finish { to, .. } => *to,
            Self::Mixture { turn, .. }
            | Self::Flood { turn, .. }
            | Self::Interrupted { turn, .. } => turn + 1,
        }
    }
}

impl Crowd {
    fn frame(&mut self, frame: &Value) {
        let _ = writeln!(self.out, "{frame}");
    }

    fn answer(&mut self, id: &Value, result: Value) {
        self.frame(&json!({"id": id, "result": result}));
    }

    fn say(&mut self, turn: usize) {
        let place = &mut self.turns[turn];
        let text = piece(turn, place.said);
        let thread = &place.thread;
        place.said += 1;
        self.deltas += 1;
        let _ = writeln!(
            self.out,
            r#"{{"method":"item/agentMessage/delta","params":{{"threadId":"{thread}","turnId":"trn_{turn}","itemId":"it_{turn}","delta":"{text}"}}}}"#
        );
    }

    fn output(&mut self, turn: usize) {
        let thread = &self.turns[turn].thread;
        let _ = writeln!(
            self.out,
            r#"{{"method":"item/commandExecution/outputDelta","params":{{"threadId":"{thread}","turnId":"trn_{turn}","itemId":"cmd_{turn}","delta":"out\n"}}}}"#
        );
    }

    fn note(&mut self, method: &str, turn: usize, mut params: Value) {
        params["threadId"] = json!(self.turns[turn].thread);
        self.frame(&json!({"method": method, "params": params}));
    }

    fn finish(&mut self, turn: usize, status: &str) {
        if std::mem::replace(&mut self.turns[turn].over, true) {
            return;
        }
        let id = format!("trn_{turn}");
        if status == "completed" {
            let text = text(turn, self.turns[turn].said);
            let item = json!({"type": "agentMessage", "id": format!("it_{turn}"), "text": text, "phase": "final_answer"});
            let params = json!({"turnId": id, "item": item, "completedAtMs": 2});
            self.note("item/completed", turn, params);
        }
        let ended = json!({"id": id, "items": [], "status": status, "error": null});
        self.note("turn/completed", turn, json!({"turn": ended}));
    }

    fn begin(&mut self, id: &Value, params: &Value) {
        let turn = self.turns.len();
        self.turns.push(Turn {
            thread: params["threadId"].as_str().unwrap_or_default().to_owned(),
            said: 0,
            over: false,
        });
        let begun = json!({"id": format!("trn_{turn}"), "items": [], "status": "inProgress", "error": null});
        self.answer(id, json!({"turn": begun}));
        self.note("turn/started", turn, json!({"turn": begun}));
        let said = json!({"type": "userMessage", "id": format!("usr_{turn}"), "clientId": params["clientUserMessageId"], "content": params["input"]});
        let completed = json!({"turnId": format!("trn_{turn}"), "item": said, "completedAtMs": 1});
        self.note("item/completed", turn, completed);
    }

    /// Text and output in turns, each time with the command's end, then a call.
    fn mixture(&mut self, turn: usize, times: u64) {
        for _ in 0..times {
            for _ in 0..5 {
                self.output(turn);
            }
            let item = json!({"type": "commandExecution", "id": format!("cmd_{turn}"), "command": "make", "cwd": "/w", "status": "completed", "commandActions": [], "aggregatedOutput": "out\n", "exitCode": 0});
            let params = json!({"turnId": format!("trn_{turn}"), "item": item, "completedAtMs": 2});
            self.note("item/completed", turn, params);
            for _ in 0..7 {
                self.say(turn);
            }
        }
        let thread = self.turns[turn].thread.clone();
        let params = json!({"threadId": thread, "turnId": format!("trn_{turn}"), "callId": "call_1", "namespace": null, "tool": "lookup", "arguments": {}});
        self.frame(&json!({"id": turn, "method": "item/tool/call", "params": params}));
    }

    fn request(&mut self, method: &str, id: &Value, params: &Value) -> Option<Action> {
        let number = |name: &str| params[name].as_u64().unwrap_or_default();
        let place = |name: &str| usize::try_from(number(name)).unwrap_or_default();
        match method {
            "initialize" => {
                let agent = json!({"userAgent": "turnkeep/0.171.0 (crowd)", "codexHome": "/codex-home", "platformFamily": "unix", "platformOs": "linux"});
                self.answer(id, agent);
            }
            "thread/start" => {
                self.threads += 1;
                let thread = json!({"id": format!("thr_{}", self.threads), "threadSource": params["threadSource"]});
                self.answer(id, json!({"thread": thread}));
            }
            "turn/start" => self.begin(id, params),
            "turn/interrupt" => {
                self.interrupts += 1;
                let turn = params["turnId"]
                    .as_str()
                    .and_then(|t| t.strip_prefix("trn_"));
                let turn = turn.and_then(|n| n.parse().ok()).unwrap_or_default();
                let id = id.clone();
                self.plans.push_back(Plan::Interrupted { turn, id });
            }
            "thread/unsubscribe" => self.answer(id, json!({"status": "unsubscribed"})),
            "test/never" => {}
            "test/die" => return Some(Action::Exit(9)),
            _ => self.answer(
                id,
                json!({"deltas": self.deltas, "interrupts": self.interrupts}),
            ),
        }
        match method {
            "test/say" => self.plans.push_back(Plan::Say {
                from: place("from"),
                to: place("to"),
                rounds: number("rounds"),
                burst: number("burst"),
            }),
            "test/mixture" => self.plans.push_back(Plan::Mixture {
                turn: place("turn"),
                times: number("times"),
            }),
            "test/flood" => self.plans.push_back(Plan::Flood {
                turn: place("turn"),
                least: number("least"),
                until: params["until"].as_str().unwrap_or_default().to_owned(),
                others: number("others"),
                after: number("after"),
            }),
            "test/finish" => self.plans.push_back(Plan::Finish {
                from: place("from"),
                to: place("to"),
            }),
            _ => {}
        }
        None
    }

    fn stop_flood(&mut self, method: &str) {
        if let Some(Plan::Flood { until, .. }) = self.plans.front_mut() {
            if until == method {
                until.clear();
            }
        }
    }

    /// Does a part of what is to be done: about as much as one read takes.
    fn go_on(&mut self) -> Option<Action> {
        if !self.is_busy() {
            return None;
        }
        match self.plans.pop_front()? {
            Plan::Say { rounds: 0, .. } => {}
            Plan::Say {
                from,
                to,
                rounds,
                burst,
            } => {
                for turn in from..to {
                    (0..burst).for_each(|_| self.say(turn));
                }
                let rounds = rounds - 1;
                self.plans.push_front(Plan::Say {
                    from,
                    to,
                    rounds,
                    burst,
                });
            }
            Plan::Flood {
                turn,
                least,
                until,
                others,
                after,
            } => {
                let chunk = 250;
                (0..chunk).for_each(|_| self.say(turn));
                for other in (0..self.turns.len()).filter(|n| *n != turn) {
                    if self.turns[other].said < others {
                        self.say(other);
                    } else if others > 0 {
                        self.finish(other, "completed");
                    }
                }
                let is_asked = until.is_empty();
                let least = least.saturating_sub(chunk);
                let after = if is_asked && least == 0 {
                    after.checked_sub(chunk)
                } else {
                    Some(after)
                };
                if self.turns[turn].said > MOST {
                    return Some(Action::Exit(99));
                }
                match after {
                    Some(after) => self.plans.push_front(Plan::Flood {
                        turn,
                        least,
                        until,
                        others,
                        after,
                    }),
                    None if self.plans.is_empty() => self.finish(turn, "completed"),
                    None => {}
                }
            }
            Plan::Mixture { turn, times } => self.mixture(turn, times),
            Plan::Finish { from, to } => {
                (from..to).for_each(|turn| self.finish(turn, "completed"));
            }
            Plan::Interrupted { turn, id } => {
                self.answer(&id, json!({}));
                self.finish(turn, "interrupted");
            }
        }
        None
    }

    fn is_busy(&self) -> bool {
        let first = self.plans.front();
        first.is_some_and(|plan| plan.needs() <= self.turns.len())
    }

    fn hand_out(&mut self, last: Option<Action>) -> Vec<Action> {
        let out = std::mem::take(&mut self.out).into_bytes();
        let write = (!out.is_empty()).then_some(Action::Write(out));
        write.into_iter().chain(last).collect()
    }
}

impl Server for Crowd {
    fn on_line(&mut self, _: u64, line: &[u8]) -> Vec<Action> {
        let Ok(frame) = serde_json::from_slice::<Value>(line) else {
            return vec![Action::Exit(97)];
        };
        let last = match frame["method"].as_str() {
            Some(method) if !frame["id"].is_null() => {
                self.stop_flood(method);
                self.request(method, &frame["id"], &frame["params"])
            }
            Some(_) => None,
            // The result of a call, which is named like its turn.
            None => {
                let turn = frame["id"].as_u64().and_then(|id| usize::try_from(id).ok());
                if let Some(turn) = turn.filter(|turn| *turn < self.turns.len()) {
                    self.finish(turn, "completed");
                }
                None
            }
        };
        self.hand_out(last)
    }

    fn on_eof(&mut self, _: u64) -> Vec<Action> {
        vec![Action::Exit(0)]
    }

    fn poll(&mut self, _: u64) -> Vec<Action> {
        let last = self.go_on();
        self.hand_out(last)
    }

    fn due(&self) -> Option<u64> {
        self.is_busy().then_some(0)
    }
}
