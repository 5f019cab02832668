//! The clockwork of a turn: begun, recorded, gone on with, stopped, ended.

use std::{
    collections::{BTreeMap, VecDeque},
    rc::Rc,
};

use super::{
    APPROVAL, Conn, Fact, Server, Status, Step, TOOL_CALL, USER_INPUT, Wake, script,
    thread::{Active, ERROR, Item, Message, Open, Stage, View, quoted},
};
use crate::sim::{marks::marks, plan::Fault};

impl Server {
    /// A turn begins with a message: nothing of it is told or kept yet. Returns its id.
    pub(super) fn begin(&mut self, at: usize, first: Message) -> Rc<str> {
        let serial = self.serial + 1;
        let steps = match self.script_of(&first.text) {
            Some(steps) => steps.clone().into(),
            // Nothing is left to chance: the model says a word and is done.
            None if self.odds.steady => {
                let mut steps = vec![Step::Model];
                steps.extend(script::say(&format!("<w{serial}> well"), None, 1));
                steps.push(Step::Finish);
                steps.into()
            }
            None => {
                let thread = &self.threads[at];
                let asks = thread.approval_policy != "never";
                let odds = self.odds;
                script::draw(&mut self.rng, &odds, &thread.tools, asks, serial)
            }
        };
        self.begin_with(at, Some(first), steps)
    }

    /// A turn begins that makes the history shorter.
    pub(super) fn begin_compaction(&mut self, at: usize) {
        let pause = self.pause(20, 2_000);
        let steps = [
            Step::Compacting,
            Step::Wait(pause),
            Step::Usage,
            Step::Compacted,
            Step::Finish,
        ];
        self.begin_with(at, None, steps.into());
    }

    fn begin_with(&mut self, at: usize, first: Option<Message>, steps: VecDeque<Step>) -> Rc<str> {
        self.serial += 1;
        let serial = self.serial;
        let turn: Rc<str> = format!("01a30000-0000-7000-8000-{serial:012x}").into();
        let Some(loaded) = &mut self.threads[at].loaded else {
            return turn;
        };
        loaded.active = Some(Active {
            serial,
            turn: turn.clone(),
            stage: Stage::Taken,
            first,
            steps,
            pending: Vec::new(),
            open: BTreeMap::new(),
            streaming: None,
            stopping: Vec::new(),
            calls: 0,
        });
        // Now and then a server is slow to begin: what it has taken is nowhere to be seen.
        let pause = match self.rng.below(8) {
            0 if !self.odds.steady => self.rng.between(500_000, 4_000_000),
            _ => self.pause(2_000, 60_000),
        };
        self.wake_in(pause, Wake::Turn { thread: at, serial });
        turn
    }

    /// What a test wants the model to do for a message: by all that it says, or by a mark in it.
    fn script_of(&self, text: &str) -> Option<&Vec<Step>> {
        let by_mark = || marks(text).find_map(|mark| self.scripts.get(mark));
        self.scripts.get(text).or_else(by_mark)
    }

    /// Somebody else begins a turn.
    pub(super) fn begin_foreign(&mut self, at: usize) {
        let idle = self.loaded(at).is_some_and(|l| l.active.is_none());
        if idle && !self.threads[at].archived {
            self.fault(Fault::ForeignTurn);
            let text = format!("of somebody else {}", self.serial);
            self.begin(at, Message { client: None, text });
        }
    }

    /// Does the next thing of a turn.
    pub(super) fn advance(&mut self, at: usize, serial: u64) {
        let Some(active) = self.active_mut(at).filter(|a| a.serial == serial) else {
            return;
        };
        match active.stage {
            Stage::Taken => {
                active.stage = Stage::Begun;
                let id = active.turn.clone();
                let turn = self.new_turn(&id);
                let json = turn.json(View::NotLoaded);
                if let Some(loaded) = &mut self.threads[at].loaded {
                    loaded.broken = false;
                }
                self.threads[at].turns.push(turn);
                self.status_changed(at);
                let id = self.threads[at].id.clone();
                let params = format!(r#"{{"threadId":"{id}","turn":{json}}}"#);
                self.notify(at, "turn/started", &params);
                let pause = self.pause(2_000, 40_000);
                self.wake_in(pause, Wake::Turn { thread: at, serial });
            }
            Stage::Begun => {
                active.stage = Stage::Recorded;
                let first = active.first.clone();
                self.threads[at].stored = true;
                if let Some(first) = first {
                    self.record(at, first);
                }
                let pause = self.pause(1_000, 60_000);
                self.wake_in(pause, Wake::Turn { thread: at, serial });
            }
            Stage::Recorded => self.go_on(at, serial),
        }
    }

    fn go_on(&mut self, at: usize, serial: u64) {
        let Some(active) = self.active_mut(at) else {
            return;
        };
        // What was steered keeps a turn from ending: the model is asked once more.
        let ends = matches!(
            active.steps.front(),
            None | Some(Step::Finish | Step::FinishUntold)
        );
        if ends && !active.pending.is_empty() {
            let more = script::say(&format!("<w{serial}.a{}> and", active.calls), None, 2);
            active.calls += 1;
            for step in more.into_iter().rev() {
                active.steps.push_front(step);
            }
            active.steps.push_front(Step::Model);
        }
        let step = active.steps.pop_front().unwrap_or(Step::Finish);
        let pause = match &step {
            Step::Wait(millis) => millis * 1_000,
            _ => self.pause(500, 20_000),
        };
        match step {
            Step::Model => {
                let pending = self.active_mut(at).map(|a| std::mem::take(&mut a.pending));
                for message in pending.unwrap_or_default() {
                    self.record(at, message);
                }
                self.threads[at].requests += 1;
            }
            Step::Say(phase) => self.say_begins(at, phase),
            Step::Delta(text) => self.delta(at, &text),
            Step::Said => self.said(at),
            Step::Reason(text) => {
                let params = format!(
                    r#""itemId":"rs_{serial}","delta":{},"contentIndex":0"#,
                    quoted(&text)
                );
                self.notify_turn(at, "item/reasoning/textDelta", &params);
            }
            Step::Call { tool, arguments } => {
                self.call(at, tool, arguments);
                return;
            }
            Step::Calls(calls) => {
                for (tool, arguments) in calls {
                    self.call(at, tool, arguments);
                }
                return;
            }
            Step::Approve => {
                self.approve(at);
                return;
            }
            Step::AskUser => {
                self.ask_user(at);
                return;
            }
            Step::Compacting => {
                let id = format!("cp_{serial}");
                self.item(at, "item/started", &Item::Compaction { id });
            }
            Step::Compacted => {
                let id = format!("cp_{serial}");
                self.complete(at, Item::Compaction { id });
                self.fact(Fact::Compacted);
            }
            Step::Usage => self.usage(at),
            Step::Retry => {
                let params = format!(r#""error":{ERROR},"willRetry":true"#);
                self.notify_turn(at, "error", &params);
            }
            Step::Wait(_) => {}
            Step::Hang if self.healed => {}
            Step::Hang => {
                self.fault(Fault::Hang);
                if let Some(active) = self.active_mut(at) {
                    active.steps.push_front(Step::Hang);
                }
                return;
            }
            Step::Fail => {
                self.end(at, Status::Failed, true);
                return;
            }
            Step::Finish => {
                self.end(at, Status::Completed, true);
                return;
            }
            Step::FinishUntold => {
                self.fault(Fault::UntoldEnd);
                self.end(at, Status::Completed, false);
                return;
            }
        }
        self.wake_in(pause, Wake::Turn { thread: at, serial });
    }

    /// A message stands in the history from now on.
    fn record(&mut self, at: usize, message: Message) {
        let Some(turn) = self.threads[at].active().map(|a| a.turn.clone()) else {
            return;
        };
        self.serial += 1;
        let item = Item::User {
            id: format!("01a40000-0000-7000-8000-{:012x}", self.serial),
            client: message.client.clone(),
            text: message.text.clone(),
        };
        self.item(at, "item/started", &item);
        self.item(at, "item/completed", &item);
        if let Some(turn) = self.threads[at].turn(&turn) {
            turn.items.push(item);
        }
        self.give(at, &turn, &message.text);
        self.fact(Fact::Recorded {
            thread: self.threads[at].id.clone(),
            message: message.client,
            text: message.text,
            turn,
        });
    }

    /// The model is given a message from now on.
    pub(super) fn give(&mut self, at: usize, turn: &Rc<str>, text: &str) {
        let thread = &mut self.threads[at];
        let same = |given: &str| given == text || marks(given).any(|m| marks(text).any(|t| t == m));
        let before = thread.context.iter().find(|(_, given)| same(given));
        if let Some((before, _)) = before.cloned() {
            self.fact(Fact::GivenTwice {
                text: text.to_owned(),
                before,
            });
        }
        let given = (turn.clone(), text.to_owned());
        self.threads[at].context.push(given);
    }

    fn item(&mut self, at: usize, method: &str, item: &Item) {
        let when = if method == "item/started" {
            "startedAtMs"
        } else {
            "completedAtMs"
        };
        let params = format!(r#""item":{},"{when}":{}"#, item.json(), self.now / 1_000);
        self.notify_turn(at, method, &params);
    }

    /// Tells those that listen something about the running turn.
    fn notify_turn(&mut self, at: usize, method: &str, members: &str) {
        let Some(turn) = self.threads[at].active().map(|a| a.turn.clone()) else {
            return;
        };
        let id = &self.threads[at].id;
        let params = format!(r#"{{"threadId":"{id}","turnId":"{turn}",{members}}}"#);
        self.notify(at, method, &params);
    }

    fn say_begins(&mut self, at: usize, phase: Option<&'static str>) {
        self.serial += 1;
        let id = format!("msg_{}", self.serial);
        let item = Item::Agent {
            id: id.clone(),
            text: String::new(),
            phase,
        };
        if let Some(active) = self.active_mut(at) {
            active.streaming = Some((id, String::new(), phase));
        }
        self.item(at, "item/started", &item);
    }

    fn delta(&mut self, at: usize, text: &str) {
        let Some((item, so_far, _)) = self.active_mut(at).and_then(|a| a.streaming.as_mut()) else {
            return;
        };
        so_far.push_str(text);
        let members = format!(r#""itemId":"{item}","delta":{}"#, quoted(text));
        self.notify_turn(at, "item/agentMessage/delta", &members);
    }

    fn said(&mut self, at: usize) {
        let Some((id, text, phase)) = self.active_mut(at).and_then(|a| a.streaming.take()) else {
            return;
        };
        self.complete(at, Item::Agent { id, text, phase });
    }

    /// An item is complete, and kept.
    fn complete(&mut self, at: usize, item: Item) {
        self.item(at, "item/completed", &item);
        if let Item::Agent { text, .. } = &item {
            let thread = self.threads[at].id.clone();
            let text = text.clone();
            self.fact(Fact::Said { thread, text });
        }
        let turn = self.threads[at].active().map(|a| a.turn.clone());
        if let Some(turn) = turn.and_then(|turn| self.threads[at].turn(&turn)) {
            turn.items.push(item);
        }
    }

    pub(super) fn usage(&mut self, at: usize) {
        let turn = self.threads[at].active().map(|a| a.turn.clone());
        if turn.is_some() {
            self.threads[at].usage_of = turn;
        }
        self.tell_usage(at, None);
    }

    /// Tells the last usage, to one connection or to all.
    pub(super) fn tell_usage(&mut self, at: usize, only: Option<Conn>) {
        let thread = &self.threads[at];
        let Some(turn) = thread.usage_of.clone() else {
            return;
        };
        let tokens = |requests: u64| {
            format!(
                r#"{{"totalTokens":{},"inputTokens":{},"cachedInputTokens":0,"outputTokens":{},"reasoningOutputTokens":0}}"#,
                15 * requests,
                10 * requests,
                5 * requests
            )
        };
        let params = format!(
            r#"{{"threadId":"{}","turnId":"{turn}","tokenUsage":{{"total":{},"last":{},"modelContextWindow":258400}}}}"#,
            thread.id,
            tokens(thread.requests),
            tokens(1)
        );
        match only {
            Some(conn) => {
                let line = self.notification("thread/tokenUsage/updated", &params);
                self.say(conn, line);
            }
            None => self.notify(at, "thread/tokenUsage/updated", &params),
        }
    }

    fn call(&mut self, at: usize, tool: String, arguments: String) {
        let Some(active) = self.active_mut(at) else {
            return;
        };
        let id = format!("call_{}_{}", active.serial, active.calls);
        active.calls += 1;
        let turn = active.turn.clone();
        let item = Item::Tool {
            id: id.clone(),
            tool: tool.clone(),
            arguments: arguments.clone(),
            done: None,
        };
        self.item(at, "item/started", &item);
        let (thread, text) = (self.threads[at].id.clone(), arguments.clone());
        self.fact(Fact::Said { thread, text });
        let params = format!(
            r#"{{"threadId":"{}","turnId":"{turn}","callId":"{id}","namespace":null,"tool":"{tool}","arguments":{arguments}}}"#,
            self.threads[at].id
        );
        self.ask(at, TOOL_CALL, params, id);
    }

    fn approve(&mut self, at: usize) {
        let Some(active) = self.active_mut(at) else {
            return;
        };
        let id = format!("call_{}_{}", active.serial, active.calls);
        active.calls += 1;
        let turn = active.turn.clone();
        let params = format!(
            r#"{{"threadId":"{}","turnId":"{turn}","itemId":"{id}","startedAtMs":{},"command":"touch {id}","cwd":"/workspace","availableDecisions":["accept",{{"acceptWithExecpolicyAmendment":{{"execpolicy_amendment":["touch"]}}}},"decline","cancel"]}}"#,
            self.threads[at].id,
            self.now / 1_000,
        );
        let status = "inProgress";
        let item = Item::Command {
            id: id.clone(),
            status,
        };
        let line = self.open(at, APPROVAL, params, id);
        self.status_changed(at);
        self.item(at, "item/started", &item);
        self.tell_listeners(at, &line);
    }

    fn ask_user(&mut self, at: usize) {
        let Some(active) = self.active_mut(at) else {
            return;
        };
        let id = format!("call_{}_{}", active.serial, active.calls);
        active.calls += 1;
        let turn = active.turn.clone();
        let params = format!(
            r#"{{"threadId":"{}","turnId":"{turn}","itemId":"{id}","questions":[{{"id":"color","header":"Color","question":"Which?","isOther":true,"isSecret":false,"options":[{{"label":"Red","description":"r"}}]}}],"isBlocking":false,"autoResolutionMs":null}}"#,
            self.threads[at].id,
        );
        let line = self.open(at, USER_INPUT, params, id);
        self.status_changed(at);
        self.tell_listeners(at, &line);
    }

    fn ask(&mut self, at: usize, method: &'static str, params: String, item: String) {
        let line = self.open(at, method, params, item);
        self.tell_listeners(at, &line);
    }

    /// Opens a request; returns its line.
    fn open(&mut self, at: usize, method: &'static str, params: String, item: String) -> String {
        let pid = self.loaded(at).map_or(0, |loaded| loaded.pid);
        let Some(process) = self.processes.get_mut(&pid) else {
            return String::new();
        };
        let request = process.next_request;
        process.next_request += 1;
        let line = request_line(method, request, &params);
        if method == TOOL_CALL {
            let call = item.clone();
            self.fact(Fact::Called { pid, request, call });
        }
        let open = Open {
            request,
            method,
            params,
            item,
        };
        if let Some(active) = self.active_mut(at) {
            active.open.insert(request, open);
        }
        line
    }

    fn tell_listeners(&mut self, at: usize, line: &str) {
        let Some(loaded) = self.loaded(at) else {
            return;
        };
        for conn in loaded.subscribers.clone() {
            self.say(conn, line.to_owned());
        }
    }

    /// A client that came back is asked again what is open, under the same ids.
    pub(super) fn replay_open(&mut self, at: usize, conn: Conn) {
        let Some(active) = self.threads[at].active() else {
            return;
        };
        let lines: Vec<String> = active
            .open
            .values()
            .map(|open| request_line(open.method, open.request, &open.params))
            .collect();
        for line in lines {
            self.say(conn, line);
        }
    }

    /// A client answered one of our requests. What nobody asked is ignored.
    pub(super) fn answered(&mut self, pid: u32, conn: Conn, request: u64, result: Option<&str>) {
        let first = match self.processes.get_mut(&pid) {
            Some(process) => process.answered.insert((request, conn)),
            None => return,
        };
        if !first {
            self.fact(Fact::AnsweredTwice { request });
        }
        let is_it = |thread: &super::Thread| {
            let loaded = thread.loaded.as_ref().filter(|l| l.pid == pid)?;
            loaded.active.as_ref()?.open.get(&request).map(|_| ())
        };
        let Some(at) = self.threads.iter().position(|t| is_it(t).is_some()) else {
            return;
        };
        let Some(active) = self.active_mut(at) else {
            return;
        };
        let Some(open) = active.open.remove(&request) else {
            return;
        };
        let serial = active.serial;
        match open.method {
            TOOL_CALL => {
                let thread = self.threads[at].id.clone();
                self.fact(Fact::CallAnswered {
                    thread,
                    call: open.item.clone(),
                    result: result.map(str::to_owned),
                });
                self.call_done(at, &open, result);
            }
            APPROVAL => {
                let result = result.unwrap_or(r#"{"decision":"decline"}"#);
                self.fact(Fact::Decided {
                    item: open.item.clone(),
                    result: result.to_owned(),
                });
                if self.decided(at, &open, result) {
                    return;
                }
            }
            _ => {
                let params = self.resolved(at, &open);
                self.notify(at, "serverRequest/resolved", &params);
                self.status_changed(at);
            }
        }
        // Calls that were made at once are all waited for.
        let waits = self.active_mut(at).is_some_and(|active| {
            let mut open = active.open.values();
            open.any(|open| open.method == TOOL_CALL)
        });
        if !waits {
            let pause = self.pause(1_000, 20_000);
            self.wake_in(pause, Wake::Turn { thread: at, serial });
        }
    }

    fn resolved(&self, at: usize, open: &Open) -> String {
        let id = &self.threads[at].id;
        format!(r#"{{"threadId":"{id}","requestId":{}}}"#, open.request)
    }

    fn call_done(&mut self, at: usize, open: &Open, result: Option<&str>) {
        #[derive(serde::Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Result<'a> {
            #[serde(borrow)]
            content_items: &'a serde_json::value::RawValue,
            success: bool,
        }
        let failed = r#"[{"type":"inputText","text":"dynamic tool request failed"}]"#;
        let read = result.and_then(|r| serde_json::from_str::<Result<'_>>(r).ok());
        let done = match &read {
            Some(read) => (read.content_items.get().to_owned(), read.success),
            None => (failed.to_owned(), false),
        };
        let item = tool_item(open, done);
        self.complete(at, item);
    }

    /// An approval is decided. Whether that ends the turn.
    fn decided(&mut self, at: usize, open: &Open, result: &str) -> bool {
        let params = self.resolved(at, open);
        self.notify(at, "serverRequest/resolved", &params);
        let accepted = result.contains("accept");
        let status = if accepted { "completed" } else { "declined" };
        let item = Item::Command {
            id: open.item.clone(),
            status,
        };
        if accepted {
            self.status_changed(at);
            self.complete(at, item);
        } else {
            self.complete(at, item);
            self.status_changed(at);
        }
        let cancelled = result.contains(r#""cancel""#);
        if cancelled {
            self.usage(at);
            self.end(at, Status::Interrupted, true);
        }
        cancelled
    }

    /// A client wants the running turn to stop.
    pub(super) fn wants_stop(&mut self, at: usize, conn: Conn, request: &str) {
        let old = self.odds.old;
        if self.rng.ppm(self.odds.deaf_interrupt) {
            self.fault(Fault::DeafInterrupt);
            return;
        }
        let pause = self.pause(1_000, 15_000);
        let Some(active) = self.active_mut(at) else {
            return;
        };
        let first = active.stopping.is_empty();
        if first || !old {
            active.stopping.push((conn, request.to_owned()));
        }
        let serial = active.serial;
        if first {
            self.wake_in(pause, Wake::Stop { thread: at, serial });
        }
    }

    pub(super) fn stop(&mut self, at: usize, serial: u64) {
        let Some(active) = self.active_mut(at).filter(|a| a.serial == serial) else {
            return;
        };
        let taken = active.stage == Stage::Taken;
        let stopping = std::mem::take(&mut active.stopping);
        let open = std::mem::take(&mut active.open);
        if taken {
            // The turn comes and goes without its message.
            self.advance(at, serial);
        }
        self.said(at);
        for open in open.values() {
            match open.method {
                TOOL_CALL => {
                    let item = tool_item(open, ("[]".to_owned(), false));
                    self.complete(at, item);
                }
                APPROVAL => {
                    let params = self.resolved(at, open);
                    self.notify(at, "serverRequest/resolved", &params);
                    let item = Item::Command {
                        id: open.item.clone(),
                        status: "declined",
                    };
                    self.complete(at, item);
                }
                _ => {
                    let params = self.resolved(at, open);
                    self.notify(at, "serverRequest/resolved", &params);
                }
            }
        }
        if !open.is_empty() {
            self.usage(at);
        }
        for (conn, request) in stopping {
            self.respond(conn, &request, "{}");
        }
        let turn = self.threads[at].active().map(|a| a.turn.clone());
        if let Some(loaded) = &mut self.threads[at].loaded {
            loaded.interrupted = turn;
        }
        self.end(at, Status::Interrupted, true);
    }

    /// A turn is over. What was steered and not recorded is lost.
    pub(super) fn end(&mut self, at: usize, status: Status, told: bool) {
        let now = self.now;
        let Some(active) = self.threads[at]
            .loaded
            .as_mut()
            .and_then(|l| l.active.take())
        else {
            return;
        };
        let id = self.threads[at].id.clone();
        let failed = status == Status::Failed;
        if let Some(loaded) = &mut self.threads[at].loaded {
            loaded.broken = failed;
        }
        let Some(turn) = self.threads[at].turn(&active.turn) else {
            return;
        };
        turn.status = status;
        turn.completed = Some(now);
        let (items, view) = match (status, turn.last_agent()) {
            (Status::Completed, Some(item)) => (item, View::Summary),
            _ => (String::new(), View::NotLoaded),
        };
        // The end shows the last message of the agent only.
        let json = turn.json(View::NotLoaded);
        let json = match view {
            View::Summary => json.replacen(
                r#""items":[],"itemsView":"notLoaded""#,
                &format!(r#""items":[{items}],"itemsView":"summary""#),
                1,
            ),
            View::NotLoaded | View::Full => json,
        };
        self.tell_end(at, &active.turn);
        self.status_changed(at);
        if failed {
            let params = format!(
                r#"{{"error":{ERROR},"willRetry":false,"threadId":"{id}","turnId":"{}"}}"#,
                active.turn
            );
            self.notify(at, "error", &params);
        }
        if told {
            let params = format!(r#"{{"threadId":"{id}","turn":{json}}}"#);
            self.notify(at, "turn/completed", &params);
        }
        if self.rng.ppm(self.odds.foreign_turn) {
            let pause = self.rng.between(1_000, 2_000_000);
            self.wake_in(pause, Wake::Foreign { thread: at });
        }
        if self.rng.ppm(self.odds.unload) {
            let pause = self.rng.between(1_000, 5_000_000);
            self.wake_in(pause, Wake::Unload { thread: at });
        }
    }

    /// Lets it be known how a turn ended.
    pub(super) fn tell_end(&mut self, at: usize, turn: &Rc<str>) {
        let Some(turn) = self.threads[at].turn(turn) else {
            return;
        };
        let fact = Fact::Ended {
            turn: turn.id.clone(),
            status: turn.status,
            parts: turn.parts(),
        };
        self.fact(fact);
    }

    /// An idle thread is let go.
    pub(super) fn unload(&mut self, at: usize) {
        let idle = self.loaded(at).is_some_and(|l| l.active.is_none());
        if !idle || !self.threads[at].stored {
            return;
        }
        self.fault(Fault::Unload);
        let id = self.threads[at].id.clone();
        let params = format!(r#"{{"threadId":"{id}","status":{{"type":"notLoaded"}}}}"#);
        self.broadcast(at, "thread/status/changed", &params);
        let params = format!(r#"{{"threadId":"{id}"}}"#);
        self.broadcast(at, "thread/closed", &params);
        self.threads[at].loaded = None;
    }
}

fn request_line(method: &str, request: u64, params: &str) -> String {
    format!(r#"{{"method":"{method}","id":{request},"params":{params}}}"#)
}

/// The item of a call that is done.
fn tool_item(open: &Open, done: (String, bool)) -> Item {
    #[derive(serde::Deserialize)]
    struct Params<'a> {
        tool: &'a str,
        #[serde(borrow)]
        arguments: &'a serde_json::value::RawValue,
    }
    let params: Params<'_> = serde_json::from_str(&open.params).expect("we wrote it");
    Item::Tool {
        id: open.item.clone(),
        tool: params.tool.to_owned(),
        arguments: params.arguments.get().to_owned(),
        done: Some(done),
    }
}
