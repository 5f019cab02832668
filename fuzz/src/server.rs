//! A server that knows what was asked and what it said, and says whatever it is told to.

use serde_json::{Value, json};

/// Frames of the recordings, one of each shape: `$T` stands for a thread, `$U` for a turn, `$M` for a message, `$ID` for an id.
const RECORDED: &str = include_str!("frames.jsonl");

/// The tools that the conversations of a case have.
pub(super) const TOOLS: [&str; 6] = ["look", "hasty", "fetch", "route", "say", "nothing"];

/// JSON texts that stand where another is looked for.
pub(super) const ODD: [&str; 16] = [
    "null",
    "true",
    "0",
    "-1",
    "7.0",
    "1E400",
    "18446744073709551616",
    r#""""#,
    r#"" x""#,
    r#""\ud800""#,
    r#""\u0000""#,
    "[]",
    "{}",
    r#"{"a":1,"a":2}"#,
    r#"[[[[[[[[{"a":[1,2,{"b":null}]}]]]]]]]]"#,
    r#"{"message":"m","target":"look","tool":"look","name":"look","arguments":{"n":1}}"#,
];

#[derive(Debug, Default)]
struct Thread {
    id: String,
    mark: Value,
    turns: Vec<Turn>,
}

#[derive(Debug)]
struct Turn {
    id: String,
    status: &'static str,
    messages: Vec<Value>,
    text: bool,
}

#[derive(Debug, Default)]
pub(super) struct Server {
    /// Requests that have no answer, oldest first.
    waiting: Vec<Value>,
    threads: Vec<Thread>,
    /// The ids of the messages that came.
    messages: Vec<Value>,
    turns: usize,
    asked: usize,
}

impl Server {
    /// It speaks over another connection.
    pub(super) fn is_new(&mut self) {
        self.waiting.clear();
    }

    /// Takes a frame of ours.
    pub(super) fn hears(&mut self, frame: &Value) {
        let message = &frame["params"]["clientUserMessageId"];
        if !message.is_null() {
            self.messages.push(message.clone());
        }
        if frame.get("method").is_some() && frame.get("id").is_some() {
            self.waiting.push(frame.clone());
        }
    }

    /// Answers one of the requests: which, how, and a number for what the answer says.
    pub(super) fn answer(&mut self, which: usize, how: usize, with: usize) -> Option<String> {
        let at = which.checked_rem(self.waiting.len())?;
        let request = match how {
            7 => self.waiting[at].clone(),
            _ => self.waiting.remove(at),
        };
        let id = &request["id"];
        Some(match how {
            0 => format!(
                r#"{{"id":{id},"error":{{"code":-32001,"message":"Server overloaded; retry later."}}}}"#
            ),
            1 => format!(
                r#"{{"id":{id},"error":{{"code":-32600,"message":"no active turn to steer"}}}}"#
            ),
            2 => format!(
                r#"{{"id":{id},"error":{{"code":-32600,"message":"something","data":{}}}}}"#,
                odd(with)
            ),
            3 => format!(r#"{{"id":{id},"result":{}}}"#, odd(with)),
            4 => format!(r#"{{"id":{id}}}"#),
            5 => format!(r#"{{"id":{id},"error":{}}}"#, odd(with)),
            6 => format!(r#"{{"id":{id},"result":{{}},"error":{{"code":1,"message":"both"}}}}"#),
            _ => json!({"id": id, "result": self.result(&request, with)}).to_string(),
        })
    }

    fn result(&mut self, request: &Value, with: usize) -> Value {
        let params = &request["params"];
        let own = params["threadId"].as_str().unwrap_or_default();
        let at = self.threads.iter().position(|thread| thread.id == own);
        match request["method"].as_str().unwrap_or_default() {
            "initialize" => {
                let version =
                    ["0.171.0", "0.163.0", "0.99.0", "x"][usize::from(with / 64 == 3) * (with % 4)];
                let home = ["/h", "/other"][usize::from(with % 64 == 63)];
                json!({"userAgent": format!("codex/{version} (x)"), "codexHome": home})
            }
            "thread/start" => {
                let id = match with {
                    1 => "thr_1".to_owned(),
                    2 => " ".to_owned(),
                    _ => format!("thr_{}", self.threads.len() + 1),
                };
                let mark = params["threadSource"].clone();
                let said = json!({"thread": {"id": id, "threadSource": mark}, "model": "m"});
                let turns = Vec::new();
                self.threads.push(Thread { id, mark, turns });
                said
            }
            "thread/resume" => {
                let status = ["idle", "active", "systemError", "notLoaded"][with % 4];
                json!({"thread": {"id": own, "status": {"type": status}}, "model": "m"})
            }
            "turn/start" => {
                // Now and then into a turn that runs already.
                self.turns += usize::from(with != 1);
                let id = format!("trn_{}", self.turns);
                if let Some(at) = at {
                    let messages = vec![params["clientUserMessageId"].clone()];
                    let (status, text) = ("inProgress", false);
                    self.threads[at].turns.push(Turn {
                        id: id.clone(),
                        status,
                        messages,
                        text,
                    });
                }
                json!({"turn": {"id": id, "status": "inProgress", "items": [], "error": null}})
            }
            "turn/steer" => {
                let turn = at.and_then(|at| self.threads[at].turns.last_mut());
                if let Some(turn) = turn.filter(|_| with % 4 != 1) {
                    turn.messages.push(params["clientUserMessageId"].clone());
                }
                let turn = match with {
                    2 => json!("x"),
                    _ => params["expectedTurnId"].clone(),
                };
                json!({"turnId": turn})
            }
            "thread/turns/list" => {
                let turns = at.map_or(&[][..], |at| &self.threads[at].turns);
                let all = turns.iter().rev().map(|turn| turn.json(with));
                let cursor = if with == 9 {
                    json!("more")
                } else {
                    json!(null)
                };
                json!({"data": all.collect::<Vec<_>>(), "nextCursor": cursor})
            }
            "thread/list" | "thread/loaded/list" => {
                let threads = self.threads.iter();
                let loaded = request["method"] == "thread/loaded/list";
                let all = threads.map(|t| match loaded {
                    true => json!(t.id),
                    false => {
                        json!({"id": t.id, "threadSource": t.mark, "status": {"type": "idle"}})
                    }
                });
                json!({"data": all.collect::<Vec<_>>(), "nextCursor": null})
            }
            "thread/read" => {
                json!({"thread": {"id": own, "status": {"type": "idle"}, "turns": []}})
            }
            "thread/backgroundTerminals/list" => json!({"data": [], "nextCursor": null}),
            _ => json!({}),
        }
    }

    fn thread(&self, by: usize) -> String {
        match by % 8 {
            6 => "thr_x".to_owned(),
            by => format!("thr_{}", by + 1),
        }
    }

    /// One of the last turns of the thread, or one of nobody.
    fn turn(&self, by: usize) -> String {
        let turn = (self.turns + 1).saturating_sub(by / 8 % 4);
        match by / 32 {
            7 => "trn_x".to_owned(),
            _ => format!("trn_{}", if by < 8 { self.turns } else { turn }),
        }
    }

    fn message(&self, by: usize) -> Value {
        let at = self.messages.len().checked_sub(1 + by % 4);
        at.map_or(json!(null), |at| self.messages[at].clone())
    }

    fn ids(&self, place: usize) -> String {
        format!(
            r#""threadId":"{}","turnId":"{}""#,
            self.thread(place),
            self.turn(place)
        )
    }

    fn ended(&mut self, place: usize, status: &'static str) -> String {
        let (thread, turn) = (self.thread(place), self.turn(place));
        for own in &mut self.threads {
            for known in own.turns.iter_mut().filter(|known| known.id == turn) {
                known.status = status;
            }
        }
        let error = match status {
            "failed" => r#"{"message":"m","codexErrorInfo":{"a":{"httpStatusCode":5}}}"#,
            _ => "null",
        };
        format!(
            r#"{{"threadId":"{thread}","turn":{{"id":"{turn}","items":[],"status":"{status}","error":{error}}}}}"#
        )
    }

    /// A notification: its kind, where, and a number for what it says.
    pub(super) fn notification(&mut self, kind: usize, place: usize, with: usize) -> String {
        let (ids, thread) = (self.ids(place), self.thread(place));
        let (method, params) = match kind % 24 {
            0 | 1 => ("turn/started", self.ended(place, "inProgress")),
            2 | 3 => ("turn/completed", self.ended(place, "completed")),
            4 => ("turn/completed", self.ended(place, "interrupted")),
            5 => ("turn/completed", self.ended(place, "failed")),
            6 => ("turn/completed", self.ended(place, "evaporated")),
            7 | 8 => {
                let item = format!(
                    r#"{{"type":"userMessage","id":"u{with}","clientId":{}}}"#,
                    self.message(with)
                );
                (
                    ["item/completed", "item/started"][kind % 24 % 2],
                    format!(r#"{{{ids},"item":{item}}}"#),
                )
            }
            9 | 10 => {
                let phase = ["null", r#""commentary""#, r#""final_answer""#, "5"][with % 4];
                let item = format!(
                    r#"{{"type":"agentMessage","id":"i{}","text":"said","phase":{phase}}}"#,
                    with % 3
                );
                (
                    ["item/started", "item/completed"][kind % 24 % 2],
                    format!(r#"{{{ids},"item":{item}}}"#),
                )
            }
            11 => ("item/started", format!(r#"{{{ids},"item":{}}}"#, odd(with))),
            12 => (
                "item/completed",
                format!(
                    r#"{{{ids},"item":{{"type":"subAgent","id":"s","agentThreadId":"thr_x","x":{}}}}}"#,
                    odd(with)
                ),
            ),
            13 => (
                "thread/tokenUsage/updated",
                format!(
                    r#"{{{ids},"tokenUsage":{{"total":{{"totalTokens":{with}}},"last":{{"totalTokens":1}}}}}}"#
                ),
            ),
            14 | 15 => {
                let word = ["idle", "active", "systemError", "notLoaded", "odd"][with % 5];
                (
                    "thread/status/changed",
                    format!(r#"{{"threadId":"{thread}","status":{{"type":"{word}"}}}}"#),
                )
            }
            16 => ("thread/closed", format!(r#"{{"threadId":"{thread}"}}"#)),
            17 => (
                "error",
                format!(
                    r#"{{{ids},"willRetry":{},"error":{{"message":"m","codexErrorInfo":{}}}}}"#,
                    with % 2 == 0,
                    odd(with)
                ),
            ),
            18 => (
                "serverRequest/resolved",
                format!(r#"{{"threadId":"{thread}","requestId":{}}}"#, with % 16),
            ),
            19 => ("turn/diff/updated", format!(r#"{{{ids},"diff":"x"}}"#)),
            20 => (
                "turn/plan/updated",
                format!(r#"{{{ids},"plan":{}}}"#, odd(with)),
            ),
            21 => (
                "model/rerouted",
                format!(r#"{{{ids},"fromModel":"a","toModel":"b"}}"#),
            ),
            22 => (
                "thread/started",
                format!(
                    r#"{{"thread":{{"id":"{thread}","source":{},"parentThreadId":"thr_1"}}}}"#,
                    odd(with)
                ),
            ),
            _ => ("some/thing", odd(with).to_owned()),
        };
        format!(r#"{{"method":"{method}","params":{params}}}"#)
    }

    /// A piece of text.
    pub(super) fn delta(&self, kind: usize, place: usize, text: usize) -> String {
        let (method, more) = match kind % 8 {
            0..=2 => ("agentMessage/delta", ""),
            3 => ("reasoning/textDelta", r#","contentIndex":1"#),
            4 => ("reasoning/summaryTextDelta", r#","summaryIndex":0"#),
            5 => ("plan/delta", ""),
            6 => ("commandExecution/outputDelta", ""),
            _ => ("fileChange/outputDelta", ""),
        };
        let text = [
            r#""a""#,
            r#""é中""#,
            r#""\n\ud83d\ude00""#,
            r#""\ud800""#,
            r#""""#,
            "5",
        ][text % 6];
        let tail = ["", r#","emittedAtMs":7"#][kind / 8 % 2];
        format!(
            r#"{{"method":"item/{method}","params":{{{},"itemId":"i{}","delta":{text}{more}}}{tail}}}"#,
            self.ids(place),
            kind / 16 % 3
        )
    }

    fn next_id(&mut self, by: usize) -> String {
        self.asked += 1;
        match by % 16 {
            // One that is open, perhaps.
            12 => (self.asked / 2).to_string(),
            13 => format!(r#""{}""#, self.asked),
            14 => "1E400".to_owned(),
            15 => odd(by / 16).to_owned(),
            _ => self.asked.to_string(),
        }
    }

    /// A call of a tool.
    pub(super) fn call(&mut self, tool: usize, place: usize, with: usize) -> String {
        let id = self.next_id(tool / 8);
        let call = match tool / 64 {
            3 => 1,
            _ => self.asked,
        };
        let arguments = match with % 32 {
            odd @ 0..16 => ODD[odd],
            _ => r#"{"n":1,"message":"hello"}"#,
        };
        format!(
            r#"{{"method":"item/tool/call","id":{id},"params":{{{},"callId":"c{call}","tool":"{}","arguments":{arguments}}}}}"#,
            self.ids(place),
            TOOLS[tool % TOOLS.len()]
        )
    }

    /// A question.
    pub(super) fn ask(&mut self, kind: usize, place: usize, with: usize) -> String {
        let id = self.next_id(kind / 8);
        let ids = format!(r#"{},"itemId":"q{}""#, self.ids(place), with % 4);
        let (method, params) = match kind % 8 {
            0 | 1 => (
                "item/commandExecution/requestApproval",
                format!(
                    r#"{ids},"command":"ls","availableDecisions":["accept","decline",{}]"#,
                    odd(with)
                ),
            ),
            2 => ("item/fileChange/requestApproval", ids),
            3 => (
                "item/permissions/requestApproval",
                format!(
                    r#"{ids},"permissions":{{"network":{{"enabled":true}},"x":{}}}"#,
                    odd(with)
                ),
            ),
            4 => (
                "item/tool/requestUserInput",
                format!(
                    r#"{ids},"questions":[{{"id":"q","header":"h","question":"?","options":[{{"label":"y"}}]}}],"autoResolutionMs":{}"#,
                    odd(with)
                ),
            ),
            5 => (
                "mcpServer/elicitation/request",
                format!(
                    r#""threadId":"{}","turnId":null,"serverName":"s","mode":"form","message":"m","requestedSchema":{}"#,
                    self.thread(place),
                    odd(with)
                ),
            ),
            6 => ("currentTime/read", ids),
            _ => ("something/new", format!(r#"{ids},"x":{}"#, odd(with))),
        };
        format!(r#"{{"id":{id},"method":"{method}","params":{{{params}}}}}"#)
    }

    /// A frame of a recording.
    pub(super) fn recorded(&mut self, which: usize, place: usize, with: usize) -> String {
        let frames: Vec<&str> = RECORDED.lines().collect();
        let frame = frames[which % frames.len()];
        let mut line = frame
            .replace("$T", &self.thread(place))
            .replace("$U", &self.turn(place));
        if frame.contains("$ID") {
            line = line.replace("$ID", &self.next_id(with));
        }
        match self.message(with).as_str() {
            Some(message) => line.replace("$M", message),
            None => line,
        }
    }
}

impl Turn {
    fn json(&self, with: usize) -> Value {
        let messages = self.messages.iter().filter(|_| with != 3);
        let mut items: Vec<Value> = messages
            .map(|id| json!({"type": "userMessage", "id": "u", "clientId": id, "content": []}))
            .collect();
        if self.text || with % 8 == 4 {
            items.push(json!({"type": "agentMessage", "id": "i", "text": "said", "phase": null}));
        }
        let status = match with {
            5 => "inProgress",
            6 => "completed",
            _ => self.status,
        };
        let error = match status {
            "failed" => json!({"message": "m"}),
            _ => json!(null),
        };
        json!({"id": self.id, "status": status, "error": error, "items": items, "itemsView": "full"})
    }
}

fn odd(by: usize) -> &'static str {
    ODD[by % ODD.len()]
}
