//! The other side of a case: an app-server that does nothing by itself. It keeps threads, turns and items as the real one does,
//! and goes on where the case says so.

use std::{borrow::Cow, collections::BTreeSet};

use serde::Deserialize;
use serde_json::value::RawValue;

use super::{boxes, op::Called, reference::Given};
use crate::sim::server::quoted;

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
struct Params {
    thread_id: String,
    turn_id: Option<String>,
    before_turn_id: Option<String>,
    expected_turn_id: String,
    client_user_message_id: Option<String>,
    input: Vec<Box<RawValue>>,
    thread_source: Option<String>,
    cwd: Option<String>,
    sort_direction: Option<String>,
    items_view: Option<String>,
    name: Option<String>,
}

/// A message as it came.
#[derive(Clone, Debug)]
pub(super) struct Got {
    pub(super) steer: bool,
    pub(super) client: String,
    /// On which thread, in the order of their making.
    pub(super) thread: usize,
    pub(super) input: Vec<String>,
}

#[derive(Debug)]
struct Thread {
    id: String,
    mark: Option<String>,
    cwd: String,
    stored: bool,
    loaded: bool,
    turns: Vec<Turn>,
    /// Messages that stand in the history.
    recorded: Vec<Got>,
}

#[derive(Debug)]
struct Turn {
    id: String,
    status: &'static str,
    items: Vec<String>,
    /// Whether it is in the history.
    kept: bool,
}

#[derive(Debug)]
struct Open {
    request: u64,
    native: usize,
    params: String,
}

#[derive(Debug)]
struct Active {
    thread: usize,
    begun: bool,
    start: Option<Got>,
    steers: Vec<Got>,
    open: Vec<Open>,
}

/// A server.
#[derive(Debug, Default)]
pub(super) struct Server {
    threads: Vec<Thread>,
    active: Option<Active>,
    next_request: u64,
    serial: u64,
    /// What the model is saying.
    streaming: Option<(String, String)>,
    silence: bool,
    refuse: bool,
    withheld: Vec<String>,
    pub(super) out: String,
    /// Every message, in the order of coming.
    pub(super) got: Vec<Got>,
    /// What each call was answered.
    pub(super) natives: Vec<Option<Given>>,
    /// Methods that it was asked and does not know.
    pub(super) unknown: BTreeSet<String>,
}

const ERROR: &str =
    r#"{"message":"the model is out of room","codexErrorInfo":null,"additionalDetails":null}"#;

impl Server {
    /// The process is killed; another one has its files.
    pub(super) fn die(&mut self) {
        if let Some(active) = self.active.take() {
            let thread = &mut self.threads[active.thread];
            // Begun and not recorded, a turn leaves a trace or none.
            let kept = self.serial % 2 != 0 || !active.steers.is_empty();
            if let Some(turn) = thread.turns.last_mut() {
                turn.status = "interrupted";
                turn.kept |= kept;
                thread.stored |= kept;
            }
            thread.turns.retain(|turn| turn.kept);
        }
        for thread in &mut self.threads {
            thread.loaded = false;
        }
        self.next_request = 0;
    }

    /// The connection is gone.
    pub(super) fn hang_up(&mut self) {
        (self.silence, self.refuse) = (false, false);
        self.withheld.clear();
        self.out.clear();
    }

    pub(super) fn silence(&mut self) {
        self.silence = true;
    }

    pub(super) fn refuse(&mut self) {
        self.refuse = true;
    }

    pub(super) fn speak(&mut self) {
        (self.silence, self.refuse) = (false, false);
        for line in std::mem::take(&mut self.withheld) {
            self.say(&line);
        }
    }

    fn say(&mut self, line: &str) {
        self.out.push_str(line);
        self.out.push('\n');
    }

    fn id(&mut self, what: &str) -> String {
        self.serial += 1;
        format!("{what}_{}", self.serial)
    }

    /// A line of the client.
    pub(super) fn on_line(&mut self, line: &[u8]) {
        let frame: Frame<'_> = serde_json::from_slice(line).expect("a frame");
        let Some(method) = frame.method.as_deref() else {
            let request = frame
                .id
                .and_then(|id| id.get().parse().ok())
                .expect("an id");
            self.answered(request, frame.result.map(RawValue::get));
            return;
        };
        let Some(id) = frame.id.map(RawValue::get) else {
            return;
        };
        let params = frame.params.map_or("{}", RawValue::get);
        let params: Params = serde_json::from_str(params).expect("parameters");
        let at = self
            .threads
            .iter()
            .position(|thread| thread.id == params.thread_id);
        let answer = match (method, at) {
            ("initialize", _) => {
                Ok(r#"{"userAgent":"codex/0.171.0 (x)","codexHome":"/h"}"#.to_owned())
            }
            ("thread/start", _) => self.thread_start(&params),
            ("thread/list" | "thread/loaded/list", _) => Ok(self.threads_list(method)),
            ("thread/backgroundTerminals/list" | "model/list", _) => {
                Ok(r#"{"data":[],"nextCursor":null}"#.to_owned())
            }
            ("thread/resume", Some(at)) if self.threads[at].stored || self.threads[at].loaded => {
                let fresh = !std::mem::replace(&mut self.threads[at].loaded, true);
                self.answer(id, &Ok(self.attached(at)));
                if fresh {
                    self.status(at);
                }
                self.replay(at);
                return;
            }
            ("thread/resume", _) => Err(format!(
                "no rollout found for thread id {}",
                params.thread_id
            )),
            ("thread/read", Some(at)) => Ok(format!(r#"{{"thread":{}}}"#, self.thread(at))),
            ("thread/unsubscribe", _) => Ok(r#"{"status":"unsubscribed"}"#.to_owned()),
            ("thread/name/set", Some(at)) => {
                self.threads[at].stored |= params.name.is_some();
                Ok("{}".to_owned())
            }
            ("thread/revert", Some(at)) => Ok(self.revert(at, &params)),
            ("thread/turns/list", Some(at)) => Ok(self.turns(at, &params)),
            ("thread/items/list", Some(at)) => Ok(self.items(at, &params)),
            ("turn/start", Some(at)) if self.threads[at].loaded => {
                self.turn_start(at, id, params);
                return;
            }
            ("turn/steer", Some(at)) if self.threads[at].loaded => {
                self.turn_steer(at, id, params);
                return;
            }
            ("turn/interrupt", Some(_)) => {
                let active = self.active.as_ref();
                let named = active.and_then(|active| self.threads[active.thread].turns.last());
                if named.is_some_and(|turn| Some(&turn.id) == params.turn_id.as_ref()) {
                    self.said();
                    self.answer(id, &Ok("{}".to_owned()));
                    self.end("interrupted");
                    return;
                }
                Err("no active turn to interrupt".to_owned())
            }
            ("turn/start" | "turn/steer" | "turn/interrupt", _) => {
                Err(format!("thread not found: {}", params.thread_id))
            }
            ("thread/read" | "thread/turns/list" | "thread/items/list", None) => {
                Err(format!("thread not loaded: {}", params.thread_id))
            }
            _ => {
                self.unknown.insert(method.to_owned());
                Err(format!(
                    "Invalid request: unknown variant `{method}`, expected one of"
                ))
            }
        };
        self.answer(id, &answer);
    }

    fn answer(&mut self, id: &str, answer: &Result<String, String>) {
        let line = match answer {
            Ok(result) => format!(r#"{{"id":{id},"result":{result}}}"#),
            Err(message) => {
                let message = quoted(message);
                format!(r#"{{"error":{{"code":-32600,"message":{message}}},"id":{id}}}"#)
            }
        };
        self.say(&line);
    }

    fn notify(&mut self, method: &str, params: &str) {
        self.say(&format!(
            r#"{{"method":"{method}","params":{params},"emittedAtMs":1}}"#
        ));
    }

    fn thread_start(&mut self, params: &Params) -> Result<String, String> {
        let id = self.id("thr");
        self.threads.push(Thread {
            id,
            mark: params.thread_source.clone(),
            cwd: params
                .cwd
                .clone()
                .unwrap_or_else(|| "/workspace".to_owned()),
            stored: false,
            loaded: true,
            turns: Vec::new(),
            recorded: Vec::new(),
        });
        Ok(self.attached(self.threads.len() - 1))
    }

    fn thread(&self, at: usize) -> String {
        let thread = &self.threads[at];
        let runs = self
            .active
            .as_ref()
            .is_some_and(|a| a.thread == at && a.begun);
        let status = match thread.loaded {
            false => r#"{"type":"notLoaded"}"#,
            true if runs => r#"{"type":"active","activeFlags":[]}"#,
            true => r#"{"type":"idle"}"#,
        };
        let mark = thread
            .mark
            .as_deref()
            .map_or_else(|| "null".to_owned(), quoted);
        format!(
            r#"{{"id":"{}","parentThreadId":null,"ephemeral":false,"modelProvider":"mock","model":"mock-model","status":{status},"cwd":{},"source":"vscode","threadSource":{mark},"name":null,"turns":[]}}"#,
            thread.id,
            quoted(&thread.cwd),
        )
    }

    fn attached(&self, at: usize) -> String {
        let cwd = quoted(&self.threads[at].cwd);
        format!(
            r#"{{"thread":{},"model":"mock-model","modelProvider":"mock","cwd":{cwd},"approvalPolicy":"never","sandbox":{{"type":"readOnly","networkAccess":false}},"reasoningEffort":null}}"#,
            self.thread(at)
        )
    }

    /// Takes turns back, from one on.
    fn revert(&mut self, at: usize, params: &Params) -> String {
        let turns = &mut self.threads[at].turns;
        let from = turns
            .iter()
            .position(|turn| Some(&turn.id) == params.before_turn_id.as_ref());
        turns.truncate(from.unwrap_or(turns.len()));
        format!(r#"{{"thread":{}}}"#, self.thread(at))
    }

    fn threads_list(&self, method: &str) -> String {
        let all = 0..self.threads.len();
        let rows: Vec<String> = match method {
            "thread/list" => {
                let listed = all.filter(|at| !self.threads[*at].recorded.is_empty());
                listed.map(|at| self.thread(at)).collect()
            }
            _ => {
                let loaded = all.filter(|at| self.threads[*at].loaded);
                loaded.map(|at| quoted(&self.threads[at].id)).collect()
            }
        };
        format!(r#"{{"data":[{}],"nextCursor":null}}"#, rows.join(","))
    }

    fn turns(&self, at: usize, params: &Params) -> String {
        let kept = self.threads[at].turns.iter().filter(|turn| turn.kept);
        let view = params.items_view.as_deref().unwrap_or("summary");
        let mut rows: Vec<String> = kept.map(|turn| turn.json(view)).collect();
        if params.sort_direction.as_deref() != Some("asc") {
            rows.reverse();
        }
        format!(r#"{{"data":[{}],"nextCursor":null}}"#, rows.join(","))
    }

    fn items(&self, at: usize, params: &Params) -> String {
        let kept = self.threads[at].turns.iter().filter(|turn| turn.kept);
        let turns = kept.filter(|turn| params.turn_id.as_ref().is_none_or(|id| *id == turn.id));
        let mut rows: Vec<String> = turns
            .flat_map(|turn| {
                let row = |item| format!(r#"{{"turnId":"{}","item":{item}}}"#, turn.id);
                turn.items.iter().map(row)
            })
            .collect();
        if params.sort_direction.as_deref() == Some("desc") {
            rows.reverse();
        }
        format!(r#"{{"data":[{}],"nextCursor":null}}"#, rows.join(","))
    }

    fn take(&mut self, at: usize, steer: bool, params: Params) -> Got {
        let got = Got {
            steer,
            client: params.client_user_message_id.unwrap_or_default(),
            thread: at,
            input: params
                .input
                .iter()
                .map(|item| item.get().to_owned())
                .collect(),
        };
        self.got.push(got.clone());
        got
    }

    fn turn_start(&mut self, at: usize, id: &str, params: Params) {
        let got = self.take(at, false, params);
        if std::mem::take(&mut self.refuse) {
            self.answer(id, &Err("not now".to_owned()));
            return;
        }
        assert!(
            self.active.is_none(),
            "a message is folded into a turn of ours: {got:?}"
        );
        let turn = Turn {
            id: self.id("trn"),
            status: "inProgress",
            items: Vec::new(),
            kept: false,
        };
        let answer = format!(r#"{{"turn":{}}}"#, turn.json("notLoaded"));
        self.threads[at].turns.push(turn);
        self.active = Some(Active {
            thread: at,
            begun: false,
            start: Some(got),
            steers: Vec::new(),
            open: Vec::new(),
        });
        self.answer_or_hold(id, answer);
    }

    fn turn_steer(&mut self, at: usize, id: &str, params: Params) {
        let expected = params.expected_turn_id.clone();
        let got = self.take(at, true, params);
        let running = self
            .active
            .as_ref()
            .and_then(|a| self.threads[a.thread].turns.last());
        let Some(turn) = running.map(|turn| turn.id.clone()) else {
            self.answer(id, &Err("no active turn to steer".to_owned()));
            return;
        };
        if turn != expected {
            let message = format!("expected active turn id `{expected}` but found `{turn}`");
            self.answer(id, &Err(message));
            return;
        }
        if std::mem::take(&mut self.refuse) {
            self.answer(id, &Err("no active turn to steer".to_owned()));
            return;
        }
        if let Some(active) = &mut self.active {
            active.steers.push(got);
        }
        self.answer_or_hold(id, format!(r#"{{"turnId":"{turn}"}}"#));
    }

    fn answer_or_hold(&mut self, id: &str, result: String) {
        if self.silence {
            self.withheld
                .push(format!(r#"{{"id":{id},"result":{result}}}"#));
        } else {
            self.answer(id, &Ok(result));
        }
    }

    fn status(&mut self, at: usize) {
        let runs = self
            .active
            .as_ref()
            .is_some_and(|a| a.thread == at && a.begun);
        let status = if runs {
            r#"{"type":"active","activeFlags":[]}"#
        } else {
            r#"{"type":"idle"}"#
        };
        let params = format!(
            r#"{{"threadId":"{}","status":{status}}}"#,
            self.threads[at].id
        );
        self.notify("thread/status/changed", &params);
    }

    fn names(&self) -> Option<(usize, String)> {
        let at = self.active.as_ref()?.thread;
        let thread = &self.threads[at];
        let turn = &thread.turns.last()?.id;
        Some((
            at,
            format!(r#""threadId":"{}","turnId":"{turn}""#, thread.id),
        ))
    }

    fn begin(&mut self) {
        let Some(active) = self.active.as_mut().filter(|active| !active.begun) else {
            return;
        };
        active.begun = true;
        let at = active.thread;
        self.status(at);
        let thread = &mut self.threads[at];
        thread.stored = true;
        if let Some(turn) = thread.turns.last_mut() {
            turn.kept = true;
            let params = format!(
                r#"{{"threadId":"{}","turn":{}}}"#,
                thread.id,
                turn.json("notLoaded")
            );
            self.notify("turn/started", &params);
        }
    }

    /// Records what was taken: the first message of the turn, and what was steered.
    pub(super) fn record(&mut self, steers: bool) {
        self.begin();
        let Some(active) = &mut self.active else {
            return;
        };
        let mut taken: Vec<Got> = active.start.take().into_iter().collect();
        if steers {
            taken.append(&mut active.steers);
        }
        for got in taken {
            let id = self.id("itm");
            let item = format!(
                r#"{{"type":"userMessage","id":"{id}","clientId":"{}","content":[{}]}}"#,
                got.client,
                got.input.join(",")
            );
            self.item("item/started", &item);
            self.complete_item(item);
            if let Some((at, _)) = self.names() {
                self.threads[at].recorded.push(got);
            }
        }
    }

    fn item(&mut self, method: &str, item: &str) {
        if let Some((_, names)) = self.names() {
            self.notify(method, &format!(r#"{{{names},"item":{item}}}"#));
        }
    }

    fn complete_item(&mut self, item: String) {
        self.item("item/completed", &item);
        if let Some((at, _)) = self.names() {
            if let Some(turn) = self.threads[at].turns.last_mut() {
                turn.items.push(item);
            }
        }
    }

    /// The model says the first part of a text, or the rest of it.
    pub(super) fn stream(&mut self, part: &str) {
        let (id, so_far) = match self.streaming.take() {
            Some(streaming) => streaming,
            None => {
                let id = self.id("itm");
                self.item("item/started", &agent(&id, ""));
                (id, String::new())
            }
        };
        if let Some((_, names)) = self.names() {
            let params = format!(r#"{{{names},"itemId":"{id}","delta":{}}}"#, quoted(part));
            self.notify("item/agentMessage/delta", &params);
        }
        self.streaming = Some((id, so_far + part));
    }

    /// What the model says is complete.
    pub(super) fn said(&mut self) {
        if let Some((id, text)) = self.streaming.take() {
            self.complete_item(agent(&id, &text));
        }
    }

    pub(super) fn call(&mut self, called: Called) {
        let Some((_, names)) = self.names() else {
            return;
        };
        let native = self.natives.len();
        let (tool, arguments) = boxes::native(called, native);
        let item = format!(
            r#"{{"type":"dynamicToolCall","id":"call_{native}","namespace":null,"tool":"{tool}","arguments":{arguments},"status":"inProgress","contentItems":null,"success":null}}"#
        );
        self.item("item/started", &item);
        let params = format!(
            r#"{{{names},"callId":"call_{native}","namespace":null,"tool":"{tool}","arguments":{arguments}}}"#
        );
        let request = self.next_request;
        self.next_request += 1;
        self.natives.push(None);
        self.say(&request_line(request, &params));
        if let Some(active) = &mut self.active {
            active.open.push(Open {
                request,
                native,
                params,
            });
        }
    }

    fn replay(&mut self, at: usize) {
        let Some(active) = self.active.as_ref().filter(|active| active.thread == at) else {
            return;
        };
        let open = active.open.iter();
        let lines: Vec<_> = open
            .map(|open| request_line(open.request, &open.params))
            .collect();
        for line in lines {
            self.say(&line);
        }
    }

    fn answered(&mut self, request: u64, result: Option<&str>) {
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Answer<'a> {
            #[serde(borrow)]
            content_items: Vec<Content<'a>>,
            success: bool,
        }
        #[derive(Deserialize)]
        struct Content<'a> {
            #[serde(borrow, default)]
            text: Cow<'a, str>,
        }
        let Some(active) = &mut self.active else {
            return;
        };
        let Some(at) = active.open.iter().position(|open| open.request == request) else {
            return;
        };
        let open = active.open.remove(at);
        let read = result.and_then(|result| serde_json::from_str::<Answer<'_>>(result).ok());
        let (text, ok) = match &read {
            Some(read) => (
                read.content_items.iter().map(|c| &*c.text).collect(),
                read.success,
            ),
            None => ("withdrawn".to_owned(), false),
        };
        let word = if ok { "completed" } else { "failed" };
        let item = format!(
            r#"{{"type":"dynamicToolCall","id":"call_{}","namespace":null,"status":"{word}","contentItems":[{{"type":"inputText","text":{}}}],"success":{ok}}}"#,
            open.native,
            quoted(&text)
        );
        self.natives[open.native] = Some(Given::Result { ok, text });
        self.complete_item(item);
    }

    /// The turn is over; what was steered and not recorded is lost.
    pub(super) fn end(&mut self, status: &'static str) {
        let Some(active) = self.active.take() else {
            return;
        };
        self.streaming = None;
        let at = active.thread;
        let thread = &mut self.threads[at];
        thread.stored = true;
        let Some(turn) = thread.turns.last_mut() else {
            return;
        };
        (turn.status, turn.kept) = (status, true);
        let params = format!(
            r#"{{"threadId":"{}","turn":{}}}"#,
            thread.id,
            turn.json("end")
        );
        let (thread, turn) = (thread.id.clone(), turn.id.clone());
        self.status(at);
        if status == "failed" {
            let params = format!(
                r#"{{"error":{ERROR},"willRetry":false,"threadId":"{thread}","turnId":"{turn}"}}"#
            );
            self.notify("error", &params);
        }
        self.notify("turn/completed", &params);
    }

    /// What stands in the histories, by threads.
    pub(super) fn recorded(&self) -> impl Iterator<Item = &[Got]> {
        self.threads.iter().map(|thread| &*thread.recorded)
    }
}

impl Turn {
    fn json(&self, view: &str) -> String {
        let is = |item: &&String, what: &str| item.contains(what);
        let items: Vec<&str> = match view {
            "full" => self.items.iter().map(String::as_str).collect(),
            "summary" | "end" => {
                let user = self
                    .items
                    .iter()
                    .find(|item| is(item, r#""type":"userMessage""#));
                let mut last = self.items.iter().rev();
                let agent = last.find(|item| is(item, r#""type":"agentMessage""#));
                let user = user.filter(|_| view == "summary");
                let agent = agent.filter(|_| view == "summary" || self.status == "completed");
                user.into_iter().chain(agent).map(String::as_str).collect()
            }
            _ => Vec::new(),
        };
        let view = if view == "end" { "summary" } else { view };
        let error = if self.status == "failed" {
            ERROR
        } else {
            "null"
        };
        format!(
            r#"{{"id":"{}","items":[{}],"itemsView":"{view}","status":"{}","error":{error},"startedAt":1,"completedAt":null}}"#,
            self.id,
            items.join(","),
            self.status
        )
    }
}

fn agent(id: &str, text: &str) -> String {
    let text = quoted(text);
    format!(r#"{{"type":"agentMessage","id":"{id}","text":{text},"phase":null}}"#)
}

fn request_line(request: u64, params: &str) -> String {
    format!(r#"{{"method":"item/tool/call","id":{request},"params":{params}}}"#)
}
