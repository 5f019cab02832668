//! What a client asks, and what it is answered.

use std::{borrow::Cow, collections::BTreeSet};

use serde::Deserialize;
use serde_json::value::RawValue;

use super::{
    Conn, Fact, Server, Wake,
    thread::{Loaded, Message, Status, Thread, View},
};
use crate::sim::plan::Fault;

#[derive(Deserialize)]
struct Frame<'a> {
    #[serde(borrow)]
    id: Option<&'a RawValue>,
    #[serde(borrow)]
    method: Option<Cow<'a, str>>,
    #[serde(borrow)]
    params: Option<&'a RawValue>,
    #[serde(borrow)]
    result: Option<&'a RawValue>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct Params<'a> {
    #[serde(borrow)]
    pub(super) thread_id: Cow<'a, str>,
    #[serde(borrow)]
    pub(super) turn_id: Option<Cow<'a, str>>,
    #[serde(borrow)]
    expected_turn_id: Cow<'a, str>,
    #[serde(borrow)]
    client_user_message_id: Option<Cow<'a, str>>,
    input: Vec<Input<'a>>,
    #[serde(borrow)]
    pub(super) cursor: Option<Cow<'a, str>>,
    pub(super) limit: Option<u32>,
    #[serde(borrow)]
    pub(super) items_view: Option<Cow<'a, str>>,
    #[serde(borrow)]
    pub(super) sort_direction: Option<Cow<'a, str>>,
    exclude_turns: bool,
    include_turns: bool,
    #[serde(borrow)]
    cwd: Option<Cow<'a, str>>,
    #[serde(borrow)]
    thread_source: Option<Cow<'a, str>>,
    #[serde(borrow)]
    approval_policy: Option<Cow<'a, str>>,
    dynamic_tools: Vec<Tool<'a>>,
    #[serde(borrow)]
    name: Option<Cow<'a, str>>,
    pub(super) archived: bool,
    #[serde(borrow)]
    before_turn_id: Option<Cow<'a, str>>,
    #[serde(borrow)]
    pub(super) ancestor_thread_id: Option<Cow<'a, str>>,
}

#[derive(Deserialize)]
struct Input<'a> {
    #[serde(borrow, default)]
    text: Cow<'a, str>,
}

#[derive(Deserialize)]
struct Tool<'a> {
    #[serde(borrow)]
    name: Cow<'a, str>,
}

/// A refusal, in words.
pub(super) type Refused = Result<String, String>;

impl Server {
    /// A line of a client arrives.
    pub fn on_line(&mut self, conn: Conn, line: &[u8], now: u64) {
        self.now = now;
        let Some(pid) = self.sessions.get(&conn).map(|session| session.pid) else {
            return;
        };
        // A malformed line gets no answer at all.
        let Ok(frame) = serde_json::from_slice::<Frame<'_>>(line) else {
            return;
        };
        let Some(method) = &frame.method else {
            let request = frame.id.and_then(|id| id.get().parse().ok());
            if let Some(request) = request {
                self.answered(pid, conn, request, frame.result.map(RawValue::get));
            }
            return;
        };
        let Some(id) = frame.id.map(|id| id.get().to_owned()) else {
            if method == "initialized" {
                if let Some(session) = self.sessions.get_mut(&conn) {
                    session.ready = true;
                }
            }
            return;
        };
        let params = frame.params.map_or("{}", RawValue::get);
        self.request(conn, pid, &id, method, params);
    }

    fn request(&mut self, conn: Conn, pid: u32, id: &str, method: &str, params: &str) {
        let session = self.sessions.get_mut(&conn).expect("it is connected");
        let known = session.initialized;
        if method == "initialize" {
            if known {
                self.refuse(conn, id, -32_600, "Already initialized");
                return;
            }
            session.initialized = true;
            let version = if self.odds.old { "0.163.0" } else { "0.171.0" };
            let result = format!(
                r#"{{"userAgent":"sim/{version} (Debian 12.0.0; x86_64) xterm (sim; 0)","codexHome":"/codex-home","platformFamily":"unix","platformOs":"linux"}}"#
            );
            self.respond(conn, id, &result);
            return;
        }
        if !known {
            self.refuse(conn, id, -32_600, "Not initialized");
            return;
        }
        let read = match serde_json::from_str::<Params<'_>>(params) {
            Ok(read) => read,
            Err(error) => {
                self.refuse(conn, id, -32_600, &format!("Invalid request: {error}"));
                return;
            }
        };
        if self.rng.ppm(self.odds.overloaded) {
            self.fault(Fault::Overloaded);
            self.refuse(conn, id, -32_001, "Server overloaded; retry later.");
            return;
        }
        match method {
            "thread/start" => self.thread_start(conn, pid, id, &read),
            "thread/resume" => self.thread_resume(conn, pid, id, &read),
            "turn/start" => self.turn_start(conn, pid, id, &read),
            "turn/interrupt" => self.turn_interrupt(conn, pid, id, &read),
            "thread/fork" => self.thread_fork(conn, pid, id, &read),
            "thread/compact/start" => self.compact_start(conn, pid, id, &read),
            _ => {
                let outcome = match method {
                    "turn/steer" => self.turn_steer(pid, &read),
                    "thread/unsubscribe" => Ok(self.unsubscribe(conn, pid, &read)),
                    "thread/name/set" => self.name_set(pid, &read),
                    "thread/archive" => self.archive(pid, &read),
                    "thread/read" => self.thread_read(pid, &read),
                    "thread/list" => Ok(self.thread_list(pid, &read)),
                    "thread/loaded/list" => Ok(self.loaded_list(pid)),
                    "thread/turns/list" => self.turns_list(pid, &read),
                    "thread/items/list" => self.items_list(pid, &read),
                    "model/list" => Ok(r#"{"data":[],"nextCursor":null}"#.to_owned()),
                    "thread/backgroundTerminals/list" | "thread/backgroundTerminals/clean" => {
                        Ok(r#"{"data":[],"nextCursor":null}"#.to_owned())
                    }
                    "thread/revert" => self.revert(pid, &read),
                    "thread/delete" => self.delete(pid, &read),
                    _ => Err(format!(
                        "Invalid request: unknown variant `{method}`, expected one of `initialize`, `thread/start`"
                    )),
                };
                match outcome {
                    Ok(result) => self.respond(conn, id, &result),
                    Err(message) if message == super::lists::NOT_YET => {
                        self.refuse(conn, id, -32_601, &message);
                    }
                    Err(message) => self.refuse(conn, id, -32_600, &message),
                }
            }
        }
    }

    /// Answers a request: once, at once, or as the odds say.
    pub(super) fn respond(&mut self, conn: Conn, id: &str, result: &str) {
        let line = format!(r#"{{"id":{id},"result":{result}}}"#);
        let odds = self.odds;
        if self.rng.ppm(odds.no_response) {
            self.fault(Fault::NoResponse);
            return;
        }
        if self.rng.ppm(odds.double_response) {
            self.fault(Fault::DoubleResponse);
            let line = line.clone();
            let pause = self.rng.between(0, 500_000);
            self.wake_in(pause, Wake::Say { conn, line });
        }
        if self.rng.ppm(odds.late_response) {
            self.fault(Fault::LateResponse);
            let pause = self.rng.between(10_000, 90_000_000);
            self.wake_in(pause, Wake::Say { conn, line });
            return;
        }
        self.say(conn, line);
    }

    fn refuse(&mut self, conn: Conn, id: &str, code: i64, message: &str) {
        let message = super::thread::quoted(message);
        let line = format!(r#"{{"error":{{"code":{code},"message":{message}}},"id":{id}}}"#);
        self.say(conn, line);
    }

    fn thread_start(&mut self, conn: Conn, pid: u32, id: &str, params: &Params<'_>) {
        let at = self.threads.len();
        let text = |text: &Option<Cow<'_, str>>| text.as_ref().map(|t| t.clone().into_owned());
        let thread = Thread {
            id: format!("01a20000-0000-7000-8000-{:012x}", at + 1).into(),
            mark: text(&params.thread_source),
            forked_from: None,
            name: None,
            cwd: text(&params.cwd).unwrap_or_else(|| "/workspace".to_owned()),
            approval_policy: text(&params.approval_policy).unwrap_or_else(|| "never".to_owned()),
            tools: params
                .dynamic_tools
                .iter()
                .map(|tool| tool.name.clone().into_owned())
                .collect(),
            created: self.now,
            stored: false,
            archived: false,
            turns: Vec::new(),
            context: Vec::new(),
            requests: 0,
            usage_of: None,
            loaded: Some(Loaded {
                pid,
                subscribers: BTreeSet::from([conn]),
                active: None,
                broken: false,
                interrupted: None,
            }),
        };
        self.made(conn, pid, id, thread, None);
    }

    /// A new thread is there.
    fn made(&mut self, conn: Conn, pid: u32, id: &str, thread: Thread, turns: Option<View>) {
        let at = self.threads.len();
        self.fact(Fact::Thread {
            mark: thread.mark.clone(),
        });
        self.by_id.insert(thread.id.clone(), at);
        let result = attached(&thread, pid, turns, "");
        let started = format!(r#"{{"thread":{}}}"#, thread.json(pid, None));
        self.threads.push(thread);
        self.respond(conn, id, &result);
        self.tell_usage(at, Some(conn));
        self.broadcast(at, "thread/started", &started);
    }

    /// Makes a thread of a stored one. It is stored from the first.
    fn thread_fork(&mut self, conn: Conn, pid: u32, id: &str, params: &Params<'_>) {
        let asked = &params.thread_id;
        let found = self.by_id.get(&**asked).copied();
        let Some(of) = found.filter(|of| self.threads[*of].stored) else {
            let message = format!("no rollout found for thread id {asked}");
            self.refuse(conn, id, -32_600, &message);
            return;
        };
        let at = self.threads.len();
        let mut thread = self.threads[of].clone();
        thread.id = format!("01a20000-0000-7000-8000-{:012x}", at + 1).into();
        thread.forked_from = Some(self.threads[of].id.clone());
        let text = |text: &Option<Cow<'_, str>>| text.as_ref().map(|t| t.clone().into_owned());
        thread.mark = text(&params.thread_source);
        thread.name = None;
        thread.archived = false;
        // What it is not told it takes from the configuration.
        thread.cwd = text(&params.cwd).unwrap_or_else(|| "/workspace".to_owned());
        thread.approval_policy =
            text(&params.approval_policy).unwrap_or_else(|| "never".to_owned());
        thread.created = self.now;
        for turn in &mut thread.turns {
            if turn.status == Status::InProgress {
                turn.status = Status::Interrupted;
            }
        }
        thread.loaded = Some(Loaded {
            pid,
            subscribers: BTreeSet::from([conn]),
            active: None,
            broken: false,
            interrupted: None,
        });
        self.fact(Fact::Forked {
            from: self.threads[of].id.clone(),
            to: thread.id.clone(),
        });
        let turns = (!params.exclude_turns).then_some(View::Full);
        self.made(conn, pid, id, thread, turns);
    }

    /// Makes the history of a thread shorter, in a turn of its own. One that runs is stopped.
    fn compact_start(&mut self, conn: Conn, pid: u32, id: &str, params: &Params<'_>) {
        let Some(at) = self.own(pid, &params.thread_id) else {
            let message = format!("thread not found: {}", params.thread_id);
            self.refuse(conn, id, -32_600, &message);
            return;
        };
        if let Some(serial) = self.threads[at].active().map(|active| active.serial) {
            self.stop(at, serial);
        }
        self.begin_compaction(at);
        self.respond(conn, id, "{}");
    }

    fn thread_resume(&mut self, conn: Conn, pid: u32, id: &str, params: &Params<'_>) {
        let asked = &params.thread_id;
        let found = self.by_id.get(&**asked).copied();
        let Some(at) = found.filter(|at| self.threads[*at].stored) else {
            let message = format!("no rollout found for thread id {asked}");
            self.refuse(conn, id, -32_600, &message);
            return;
        };
        let fresh = match &mut self.threads[at].loaded {
            Some(loaded) if loaded.pid != pid => {
                let message = format!("thread {asked} already has an active writer");
                self.refuse(conn, id, -32_600, &message);
                return;
            }
            Some(loaded) => {
                loaded.subscribers.insert(conn);
                false
            }
            none => {
                *none = Some(Loaded {
                    pid,
                    subscribers: BTreeSet::from([conn]),
                    active: None,
                    broken: false,
                    interrupted: None,
                });
                true
            }
        };
        if fresh {
            self.status_changed(at);
        }
        let turns = (!params.exclude_turns).then_some(View::Full);
        let more = r#","initialTurnsPage":null"#;
        let result = attached(&self.threads[at], pid, turns, more);
        self.respond(conn, id, &result);
        self.tell_usage(at, Some(conn));
        self.replay_open(at, conn);
        let odds = self.odds;
        if self.rng.ppm(odds.foreign_turn) {
            let pause = self.rng.between(1_000, 2_000_000);
            self.wake_in(pause, Wake::Foreign { thread: at });
        }
    }

    /// A thread that this process writes.
    fn own(&self, pid: u32, id: &str) -> Option<usize> {
        let at = *self.by_id.get(id)?;
        self.threads[at].loaded.as_ref().filter(|l| l.pid == pid)?;
        Some(at)
    }

    fn turn_start(&mut self, conn: Conn, pid: u32, id: &str, params: &Params<'_>) {
        let Some(at) = self.own(pid, &params.thread_id) else {
            let message = format!("thread not found: {}", params.thread_id);
            self.refuse(conn, id, -32_600, &message);
            return;
        };
        let message = message(params);
        self.came(&message);
        let turn = match self.active_mut(at) {
            Some(active) => {
                active.pending.push(message);
                let turn = active.turn.clone();
                if self.rng.ppm(self.odds.ghost_turn) {
                    self.fault(Fault::GhostTurn);
                    self.serial += 1;
                    format!("01a3dead-0000-7000-8000-{:012x}", self.serial).into()
                } else {
                    turn
                }
            }
            None => self.begin(at, message),
        };
        let result = format!(
            r#"{{"turn":{{"id":"{turn}","rootTurnId":"{turn}","items":[],"itemsView":"notLoaded","status":"inProgress","error":null,"startedAt":null,"completedAt":null,"durationMs":null}}}}"#
        );
        self.respond(conn, id, &result);
    }

    fn turn_steer(&mut self, pid: u32, params: &Params<'_>) -> Refused {
        let none = || "no active turn to steer".to_owned();
        let at = self.own(pid, &params.thread_id);
        let at = at.ok_or_else(|| format!("thread not found: {}", params.thread_id))?;
        let message = message(params);
        let active = self.active_mut(at).ok_or_else(none)?;
        if *active.turn != *params.expected_turn_id {
            return Err(format!(
                "expected active turn id `{}` but found `{}`",
                params.expected_turn_id, active.turn
            ));
        }
        let result = format!(r#"{{"turnId":"{}"}}"#, active.turn);
        active.pending.push(message.clone());
        self.came(&message);
        Ok(result)
    }

    fn came(&mut self, message: &Message) {
        if let Some(message) = message.client.clone() {
            self.fact(Fact::Came { message });
        }
    }

    fn turn_interrupt(&mut self, conn: Conn, pid: u32, id: &str, params: &Params<'_>) {
        let asked = params.turn_id.clone().unwrap_or_default();
        let mismatch = |found: &str| format!("expected active turn id {asked} but found {found}");
        let Some(at) = self.own(pid, &params.thread_id) else {
            let message = format!("thread not found: {}", params.thread_id);
            self.refuse(conn, id, -32_600, &message);
            return;
        };
        let old = self.odds.old;
        let loaded = self.threads[at].loaded.as_ref().expect("it is our own");
        let message = match (&loaded.active, &loaded.interrupted) {
            (Some(active), _) if *active.turn == *asked => {
                self.wants_stop(at, conn, id);
                return;
            }
            (Some(active), _) => mismatch(&active.turn),
            // 0.163.0 never answers a second interrupt of the same turn.
            (None, Some(last)) if old && **last == *asked => return,
            (None, Some(last)) if old => mismatch(last),
            (None, _) => "no active turn to interrupt".to_owned(),
        };
        self.refuse(conn, id, -32_600, &message);
    }

    fn unsubscribe(&mut self, conn: Conn, pid: u32, params: &Params<'_>) -> String {
        let status = match self.own(pid, &params.thread_id) {
            None => "notLoaded",
            Some(at) => {
                let loaded = self.threads[at].loaded.as_mut().expect("it is our own");
                if loaded.subscribers.remove(&conn) {
                    "unsubscribed"
                } else {
                    "notSubscribed"
                }
            }
        };
        format!(r#"{{"status":"{status}"}}"#)
    }

    fn name_set(&mut self, pid: u32, params: &Params<'_>) -> Refused {
        let at = self.readable(pid, &params.thread_id)?;
        let thread = &mut self.threads[at];
        thread.name = params.name.as_ref().map(|name| name.clone().into_owned());
        thread.stored = true;
        let params = format!(
            r#"{{"threadId":"{}","threadName":{}}}"#,
            thread.id,
            super::thread::quoted_or_null(thread.name.as_deref())
        );
        self.broadcast(at, "thread/name/updated", &params);
        Ok("{}".to_owned())
    }

    fn archive(&mut self, pid: u32, params: &Params<'_>) -> Refused {
        let at = self.readable(pid, &params.thread_id)?;
        if !self.threads[at].stored {
            return Err(format!(
                "no rollout found for thread id {}",
                params.thread_id
            ));
        }
        self.threads[at].archived = true;
        Ok("{}".to_owned())
    }

    /// Takes turns back, from one on: out of the history and out of what the model is given.
    fn revert(&mut self, pid: u32, params: &Params<'_>) -> Refused {
        let at = self.own(pid, &params.thread_id);
        let at = at.ok_or_else(|| format!("thread not found: {}", params.thread_id))?;
        if self.threads[at].active().is_some() {
            return Err("cannot revert while a turn runs".to_owned());
        }
        let before = params.before_turn_id.as_deref().unwrap_or_default();
        let thread = &mut self.threads[at];
        let from = thread.turns.iter().position(|turn| *turn.id == *before);
        let from = from.ok_or_else(|| format!("turn not found: {before}"))?;
        let gone: Vec<_> = thread.turns.drain(from..).map(|turn| turn.id).collect();
        thread.context.retain(|(turn, _)| !gone.contains(turn));
        let json = self.threads[at].json(pid, None);
        let params = format!(r#"{{"threadId":"{}"}}"#, self.threads[at].id);
        self.notify(at, "thread/reverted", &params);
        Ok(format!(r#"{{"thread":{json}}}"#))
    }

    fn delete(&mut self, pid: u32, params: &Params<'_>) -> Refused {
        let gone = format!("no rollout found for thread id {}", params.thread_id);
        let at = self
            .readable(pid, &params.thread_id)
            .map_err(|_| gone.clone())?;
        if !self.threads[at].stored {
            return Err(gone);
        }
        self.forget(at);
        Ok("{}".to_owned())
    }

    fn thread_read(&mut self, pid: u32, params: &Params<'_>) -> Refused {
        let at = self.readable(pid, &params.thread_id)?;
        let turns = params.include_turns.then_some(View::Full);
        let thread = self.threads[at].json(pid, turns);
        Ok(format!(r#"{{"thread":{thread}}}"#))
    }

    /// A thread that is stored, or that this process has loaded.
    pub(super) fn readable(&self, pid: u32, id: &str) -> Result<usize, String> {
        let found = self.by_id.get(id).copied();
        let ours = |at: &usize| {
            let thread = &self.threads[*at];
            thread.stored || thread.loaded.as_ref().is_some_and(|l| l.pid == pid)
        };
        found
            .filter(ours)
            .ok_or_else(|| format!("thread not loaded: {id}"))
    }
}

fn message(params: &Params<'_>) -> Message {
    Message {
        client: params
            .client_user_message_id
            .as_ref()
            .map(|id| id.clone().into_owned()),
        text: params.input.iter().map(|input| &*input.text).collect(),
    }
}

/// The answer of `thread/start` and `thread/resume`.
fn attached(thread: &Thread, pid: u32, turns: Option<View>, more: &str) -> String {
    format!(
        r#"{{"thread":{},"model":"mock-model","modelProvider":"mock","serviceTier":null,"cwd":{},"approvalPolicy":"{}","sandbox":{{"type":"readOnly","networkAccess":false}},"reasoningEffort":null{more}}}"#,
        thread.json(pid, turns),
        super::thread::quoted(&thread.cwd),
        thread.approval_policy,
    )
}
