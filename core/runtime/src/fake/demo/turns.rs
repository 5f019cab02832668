//! Turns: begun, streamed, steered, interrupted, ended.

use std::collections::VecDeque;

use serde_json::Value;

use super::Demo;
use super::frames::{self, frame, quote, wall};
use super::model;
use super::state::{Active, Ask, Input, Item, Kind, Open, Step, Thread, Turn, View, shell};

/// How many milliseconds after the beginning of a turn a server that keeps its threads records what began it. The real one takes
/// some too; here it is long enough to be killed in between.
const RECORDED_AFTER: u64 = 300;

impl Active {
    /// When this turn goes on by itself.
    pub(super) fn due(&self) -> Option<u64> {
        (self.open.is_none() && !self.steps.is_empty()).then_some(self.due)
    }
}

fn input(params: &Value) -> Result<Input, String> {
    let Some(parts) = params["input"].as_array() else {
        return Err("Invalid request: missing field `input`".to_owned());
    };
    let mut text = String::new();
    let content = parts.iter().map(|part| match part["text"].as_str() {
        Some(said) => {
            text.push_str(said);
            text.push('\n');
            format!(
                r#"{{"type":"text","text":{},"text_elements":[]}}"#,
                quote(said)
            )
        }
        None => part.to_string(),
    });
    let content = frames::list(content.collect::<Vec<_>>());
    Ok(Input {
        text,
        content,
        client_id: params["clientUserMessageId"].as_str().map(str::to_owned),
    })
}

impl Demo {
    pub(super) fn turn_start(
        &mut self,
        thread: &mut Thread,
        id: &Value,
        params: &Value,
    ) -> Result<(), String> {
        let input = input(params)?;
        if thread.preview.is_empty() {
            input.text.trim_end().clone_into(&mut thread.preview);
        }
        let warning = format!(
            r#"{{"threadId":"{}","message":{}}}"#,
            thread.id,
            quote(frames::MODEL_WARNING)
        );
        if thread.active.is_some() {
            // Folded into the running turn, which is the one that the answer names.
            let turn = thread
                .turns
                .last()
                .map(|turn| frames::turn(turn, View::None))
                .unwrap_or_default();
            self.reply(id, &format!(r#"{{"turn":{turn}}}"#));
            self.add_input(thread, input);
            return Ok(());
        }
        for (field, value) in [
            (&mut thread.model, &params["model"]),
            (&mut thread.cwd, &params["cwd"]),
        ] {
            if let Some(text) = value.as_str() {
                text.clone_into(field);
            }
        }
        if !params["approvalPolicy"].is_null() {
            thread.policy = params["approvalPolicy"].to_string();
        }
        let turn = Turn {
            id: self.uuid(),
            status: "inProgress",
            error: None,
            started: None,
            completed: None,
            items: Vec::new(),
        };
        self.notify("warning", &warning);
        let shown = frames::turn(&turn, View::None);
        self.reply(id, &format!(r#"{{"turn":{shown}}}"#));
        thread.turns.push(turn);
        thread.active = Some(Active {
            steps: VecDeque::from([Step::Begin, Step::Users, Step::Think]),
            due: self.now + self.pace_ms,
            pending: vec![input],
            unread: String::new(),
            schema: Some(params["outputSchema"].clone()).filter(|schema| !schema.is_null()),
            open: None,
            streaming: false,
            results: Vec::new(),
        });
        Ok(())
    }

    pub(super) fn turn_steer(
        &mut self,
        thread: &mut Thread,
        id: &Value,
        params: &Value,
    ) -> Result<(), String> {
        let Some(expected) = params["expectedTurnId"].as_str() else {
            return Err("Invalid request: missing field `expectedTurnId`".to_owned());
        };
        let input = input(params)?;
        let running = thread
            .active
            .as_ref()
            .and(thread.turns.last())
            .ok_or("no active turn to steer")?
            .id
            .clone();
        if running != expected {
            return Err(format!(
                "expected active turn id `{expected}` but found `{running}`"
            ));
        }
        self.reply(id, &format!(r#"{{"turnId":"{running}"}}"#));
        self.add_input(thread, input);
        Ok(())
    }

    /// What the user says in mid-turn. Text that is being streamed is broken off and never completed, as recorded.
    fn add_input(&mut self, thread: &mut Thread, input: Input) {
        let Some(active) = &mut thread.active else {
            return;
        };
        active.pending.push(input);
        if std::mem::take(&mut active.streaming) {
            active.steps = VecDeque::from([Step::Users, Step::Think]);
            active.due = self.now + self.pace_ms;
            if let Some(turn) = thread.turns.last_mut() {
                turn.items.pop();
            }
            self.asked += 1;
            self.note(thread, "account/rateLimits/updated", frames::RATE_LIMITS);
        }
    }

    pub(super) fn turn_interrupt(
        &mut self,
        thread: &mut Thread,
        id: &Value,
        params: &Value,
    ) -> Result<(), String> {
        let named = params["turnId"].as_str().unwrap_or_default();
        let running = thread
            .active
            .as_ref()
            .and(thread.turns.last())
            .ok_or("no active turn to interrupt")?
            .id
            .clone();
        if running != named {
            return Err(format!(
                "expected active turn id {named} but found {running}"
            ));
        }
        let Some(mut active) = thread.active.take() else {
            return Ok(());
        };
        if active.streaming {
            self.item_completed(thread);
        }
        if let Some(open) = active.open.take() {
            if open.ask != Ask::Call {
                self.resolved(thread, open.id);
            }
            if open.ask != Ask::Question {
                self.settle(thread, "failed", "[]", None);
            }
            self.usage(thread);
        } else {
            self.asked += 1;
            self.note(thread, "account/rateLimits/updated", frames::RATE_LIMITS);
            self.read_state(thread);
        }
        self.reply(id, "{}");
        self.end(thread, "interrupted", None);
        Ok(())
    }

    /// Does everything that is due.
    pub(super) fn advance(&mut self) {
        loop {
            let due = self
                .threads
                .values()
                .filter_map(|thread| Some((thread.active.as_ref()?.due()?, &thread.id)));
            let Some((_, key)) = due.filter(|(due, _)| *due <= self.now).min() else {
                return;
            };
            let key = key.clone();
            let Some(mut thread) = self.threads.remove(&key) else {
                return;
            };
            let step = thread
                .active
                .as_mut()
                .and_then(|active| active.steps.pop_front());
            if let Some(step) = step {
                let begins = matches!(step, Step::Begin) && self.keeps.is_some();
                let pause = self.step(&mut thread, step);
                if let Some(active) = &mut thread.active {
                    active.due = self.now
                        + match (begins, pause) {
                            (true, _) => self.pace_ms.max(RECORDED_AFTER),
                            (false, true) => self.pace_ms,
                            (false, false) => 0,
                        };
                }
            }
            self.threads.insert(key, thread);
        }
    }

    /// One step of a turn; true if time passes after it.
    fn step(&mut self, thread: &mut Thread, step: Step) -> bool {
        match step {
            Step::Begin => self.begin(thread),
            Step::Users => self.users(thread),
            Step::Think => {
                let Some(active) = &thread.active else {
                    return false;
                };
                let steps = model::think(&thread.tools, &active.unread.clone());
                if let Some(active) = &mut thread.active {
                    active.steps = steps;
                }
                return true;
            }
            Step::Call {
                tool,
                arguments,
                label,
            } => self.call(thread, &tool, &arguments, label),
            Step::Command(command) => self.command(thread, &command),
            Step::Question(question) => self.question(thread, question),
            Step::Say => self.say(thread),
            Step::Open => {
                let id = format!("msg_{}", self.asked);
                self.item_started(
                    thread,
                    id,
                    Kind::Answer {
                        text: String::new(),
                    },
                );
                if let Some(active) = &mut thread.active {
                    active.streaming = true;
                }
            }
            Step::Delta(delta) => self.delta(thread, &delta),
            Step::Close => {
                if let Some(active) = &mut thread.active {
                    active.streaming = false;
                    active.results.clear();
                }
                self.item_completed(thread);
            }
            Step::Usage => self.usage(thread),
            Step::Fail => self.fail(thread),
            Step::Finish => {
                let Some(active) = &mut thread.active else {
                    return false;
                };
                if !active.pending.is_empty() {
                    active.steps = VecDeque::from([Step::Users, Step::Think]);
                    return false;
                }
                thread.active = None;
                self.read_state(thread);
                self.end(thread, "completed", None);
            }
        }
        matches!(
            thread
                .active
                .as_ref()
                .and_then(|active| active.steps.front()),
            Some(Step::Delta(_) | Step::Say | Step::Users)
        )
    }

    fn begin(&mut self, thread: &mut Thread) {
        self.status(thread);
        let Some(turn) = thread.turns.last_mut() else {
            return;
        };
        turn.started = Some(self.now);
        let params = format!(
            r#"{{"threadId":"{}","turn":{}}}"#,
            thread.id,
            frames::turn(turn, View::None)
        );
        self.note(thread, "turn/started", &params);
    }

    fn users(&mut self, thread: &mut Thread) {
        let Some(active) = &mut thread.active else {
            return;
        };
        let pending = std::mem::take(&mut active.pending);
        active.unread = pending.iter().map(|input| input.text.as_str()).collect();
        for input in pending {
            let id = self.uuid();
            self.item_started(
                thread,
                id,
                Kind::User {
                    client_id: input.client_id,
                    content: input.content,
                },
            );
            self.item_completed(thread);
        }
    }

    fn call(&mut self, thread: &mut Thread, tool: &str, arguments: &str, label: String) {
        let item = self.call_id();
        let kind = Kind::Call {
            tool: tool.to_owned(),
            arguments: arguments.to_owned(),
            status: "inProgress",
            content: "null".to_owned(),
            success: "null",
        };
        self.item_started(thread, item.clone(), kind);
        let values = [("tool", quote(tool)), ("arguments", arguments.to_owned())];
        self.ask(thread, frames::TOOL_CALL, &item, &values, Ask::Call, label);
    }

    fn command(&mut self, thread: &mut Thread, command: &str) {
        let item = self.call_id();
        let asks = thread.policy != "\"never\"";
        if asks {
            // The status changes first, so the request is noted before it is written.
            self.open(thread, Ask::Command, command.to_owned());
            self.status(thread);
        }
        let kind = Kind::Command {
            command: command.to_owned(),
            status: "inProgress",
            output: None,
        };
        self.item_started(thread, item.clone(), kind);
        if !asks {
            return self.run_command(thread, command);
        }
        let words = frames::list(command.split_whitespace().map(quote));
        let values = [
            ("at", wall(self.now).to_string()),
            ("command", quote(&shell(command))),
            ("bare", quote(command)),
            ("cwd", quote(&thread.cwd)),
            ("words", words),
        ];
        self.write_request(thread, frames::COMMAND_REQUEST, &item, &values);
    }

    pub(super) fn run_command(&mut self, thread: &mut Thread, command: &str) {
        let output = format!("(the demo does not really run {command})\n");
        if let Some((turn, item)) = thread
            .turns
            .last()
            .and_then(|turn| Some((turn, turn.items.last()?)))
        {
            let params = format!(
                r#"{{"threadId":"{}","turnId":"{}","itemId":"{}","delta":{}}}"#,
                thread.id,
                turn.id,
                item.id,
                quote(&output)
            );
            self.note(thread, "item/commandExecution/outputDelta", &params);
        }
        self.settle(thread, "completed", "[]", Some(output));
        remember(thread, command.to_owned(), "done".to_owned());
    }

    fn question(&mut self, thread: &mut Thread, question: String) {
        let item = self.call_id();
        self.open(thread, Ask::Question, question.clone());
        self.status(thread);
        self.write_request(
            thread,
            frames::USER_INPUT,
            &item,
            &[("question", quote(&question))],
        );
    }

    fn say(&mut self, thread: &mut Thread) {
        // A turn that was killed before anything of it was recorded has no answer.
        let turns = thread.turns.iter();
        let number = turns.filter(|turn| !turn.items.is_empty()).count();
        let Some(active) = &mut thread.active else {
            return;
        };
        if !active.pending.is_empty() {
            active.steps = VecDeque::from([Step::Users, Step::Think]);
            return;
        }
        let deltas = model::answer(active, number);
        active.steps.push_back(Step::Open);
        active.steps.extend(deltas.into_iter().map(Step::Delta));
        active
            .steps
            .extend([Step::Close, Step::Usage, Step::Finish]);
    }

    fn delta(&mut self, thread: &mut Thread, delta: &str) {
        let Some(turn) = thread.turns.last_mut() else {
            return;
        };
        let Some(item) = turn.items.last_mut() else {
            return;
        };
        if let Kind::Answer { text } = &mut item.kind {
            text.push_str(delta);
        }
        let params = format!(
            r#"{{"threadId":"{}","turnId":"{}","itemId":"{}","delta":{}}}"#,
            thread.id,
            turn.id,
            item.id,
            quote(delta)
        );
        self.note(thread, "item/agentMessage/delta", &params);
    }

    fn fail(&mut self, thread: &mut Thread) {
        let error = r#"{"message":"The demo was told to fail.","codexErrorInfo":"other","additionalDetails":null,"misalignment":null}"#;
        let turn = thread
            .turns
            .last()
            .map(|turn| turn.id.clone())
            .unwrap_or_default();
        thread.active = None;
        self.note(
            thread,
            "thread/status/changed",
            &format!(
                r#"{{"threadId":"{}","status":{{"type":"systemError"}}}}"#,
                thread.id
            ),
        );
        let params = format!(
            r#"{{"error":{error},"willRetry":false,"threadId":"{}","turnId":"{turn}"}}"#,
            thread.id
        );
        self.note(thread, "error", &params);
        self.close_turn(thread, "failed", Some(error.to_owned()));
    }

    pub(super) fn end(&mut self, thread: &mut Thread, status: &'static str, error: Option<String>) {
        self.status(thread);
        self.close_turn(thread, status, error);
    }

    fn close_turn(&mut self, thread: &mut Thread, status: &'static str, error: Option<String>) {
        thread.updated = self.now;
        let Some(turn) = thread.turns.last_mut() else {
            return;
        };
        turn.status = status;
        turn.error = error;
        turn.completed = Some(self.now);
        let params = format!(
            r#"{{"threadId":"{}","turn":{}}}"#,
            thread.id,
            frames::turn(turn, View::End)
        );
        self.note(thread, "turn/completed", &params);
    }

    /// A notification of a thread: only to who listens, but for the two that come all the same.
    fn note(&mut self, thread: &Thread, method: &str, params: &str) {
        if thread.subscribed
            || matches!(method, "thread/status/changed" | "thread/readState/changed")
        {
            self.notify(method, params);
        }
    }

    pub(super) fn status(&mut self, thread: &Thread) {
        let params = format!(
            r#"{{"threadId":"{}","status":{}}}"#,
            thread.id,
            thread.status()
        );
        self.note(thread, "thread/status/changed", &params);
    }

    fn read_state(&mut self, thread: &Thread) {
        let Some(first) = thread.turns.first().map(|turn| turn.id.clone()) else {
            return;
        };
        let revision = self.uuid();
        let unread = format!(
            r#"{{"firstUnread":{{"type":"turn","turnId":"{first}"}},"revision":"{revision}"}}"#
        );
        self.note(
            thread,
            "thread/readState/changed",
            &format!(r#"{{"threadId":"{}","readState":{unread}}}"#, thread.id),
        );
    }

    pub(super) fn resolved(&mut self, thread: &Thread, request: u64) {
        let params = format!(r#"{{"threadId":"{}","requestId":{request}}}"#, thread.id);
        self.note(thread, "serverRequest/resolved", &params);
    }

    /// The end of one request to the model.
    pub(super) fn usage(&mut self, thread: &mut Thread) {
        self.asked += 1;
        self.calls = 0;
        let Some(turn) = thread.turns.last() else {
            return;
        };
        let output = turn.items.last().map_or(5, |item| match &item.kind {
            Kind::Answer { text } => 5 + text.split_whitespace().count() as u64,
            _ => 5,
        });
        let input = 10 + thread.output_tokens;
        thread.input_tokens += input;
        thread.output_tokens += output;
        let params = frame(
            frames::USAGE,
            &[
                ("thread", &quote(&thread.id)),
                ("turn", &quote(&turn.id)),
                (
                    "total",
                    &frames::tokens(thread.input_tokens, thread.output_tokens),
                ),
                ("last", &frames::tokens(input, output)),
            ],
        );
        thread.last_usage = Some(params.clone());
        self.note(thread, "thread/tokenUsage/updated", &params);
        self.note(thread, "account/rateLimits/updated", frames::RATE_LIMITS);
    }

    fn call_id(&mut self) -> String {
        let id = format!("call_{}_{}", self.asked, self.calls);
        self.calls += 1;
        id
    }

    fn open(&mut self, thread: &mut Thread, ask: Ask, label: String) {
        if let Some(active) = &mut thread.active {
            active.open = Some(Open {
                id: self.requests,
                ask,
                label,
            });
            self.requests += 1;
        }
    }

    fn ask(
        &mut self,
        thread: &mut Thread,
        template: &str,
        item: &str,
        values: &[(&str, String)],
        ask: Ask,
        label: String,
    ) {
        self.open(thread, ask, label);
        self.write_request(thread, template, item, values);
    }

    fn write_request(
        &mut self,
        thread: &Thread,
        template: &str,
        item: &str,
        values: &[(&str, String)],
    ) {
        let Some(open) = thread
            .active
            .as_ref()
            .and_then(|active| active.open.as_ref())
        else {
            return;
        };
        let Some(turn) = thread.turns.last() else {
            return;
        };
        let (id, thread, turn, item) = (
            open.id.to_string(),
            quote(&thread.id),
            quote(&turn.id),
            quote(item),
        );
        let common = [
            ("id", id.as_str()),
            ("thread", &thread),
            ("turn", &turn),
            ("item", &item),
        ];
        let values: Vec<(&str, &str)> = common
            .into_iter()
            .chain(values.iter().map(|(name, value)| (*name, value.as_str())))
            .collect();
        self.write(frame(template, &values));
    }

    fn item_started(&mut self, thread: &mut Thread, id: String, kind: Kind) {
        let item = Item {
            id,
            started: self.now,
            completed: None,
            kind,
        };
        let shown = item.json(false);
        let Some(turn) = thread.turns.last_mut() else {
            return;
        };
        turn.items.push(item);
        let params = format!(
            r#"{{"item":{shown},"threadId":"{}","turnId":"{}","startedAtMs":{}}}"#,
            thread.id,
            turn.id,
            wall(self.now)
        );
        self.note(thread, "item/started", &params);
    }

    /// The last item is complete.
    fn item_completed(&mut self, thread: &mut Thread) {
        let Some(turn) = thread.turns.last_mut() else {
            return;
        };
        let Some(item) = turn.items.last_mut() else {
            return;
        };
        item.completed = Some(self.now);
        let params = format!(
            r#"{{"item":{},"threadId":"{}","turnId":"{}","contentTokenCount":null,"completedAtMs":{}}}"#,
            item.json(true),
            thread.id,
            turn.id,
            wall(self.now)
        );
        self.note(thread, "item/completed", &params);
    }

    /// The call or command that is the last item ends this way.
    pub(super) fn settle(
        &mut self,
        thread: &mut Thread,
        how: &'static str,
        items: &str,
        text: Option<String>,
    ) {
        match thread
            .turns
            .last_mut()
            .and_then(|turn| turn.items.last_mut())
            .map(|item| &mut item.kind)
        {
            Some(Kind::Call {
                status,
                content,
                success,
                ..
            }) => {
                *status = how;
                items.clone_into(content);
                *success = if how == "completed" { "true" } else { "false" };
            }
            Some(Kind::Command { status, output, .. }) => {
                *status = how;
                *output = text;
            }
            _ => return,
        }
        self.item_completed(thread);
    }
}

pub(super) fn remember(thread: &mut Thread, label: String, text: String) {
    if let Some(active) = &mut thread.active {
        active.results.push((label, text));
    }
}
