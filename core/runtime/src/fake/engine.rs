//! Plays a script.

mod auto;

use std::collections::{BTreeMap, VecDeque};

use serde_json::Value;

use super::script::{Auto, Chunks, Rule, Step};
use super::template::{self, Vars};
use super::{Action, Script, Server};

/// Exit code after the end of stdin before the last line of a script with `X must-finish`.
pub const UNFINISHED: i32 = 96;
/// Exit code after a client frame that the script did not expect.
pub const MISMATCH: i32 = 97;
/// Exit code of a script that cannot be played on (a variable that nothing bound).
pub const SCRIPT_FAULT: i32 = 98;

/// So many actions or bytes are handed out at once; `poll` gives the next.
const BATCH: usize = 256;
const BATCH_BYTES: usize = 4 << 20;

/// A script in play.
///
/// [`on_line`](Self::on_line), [`on_eof`](Self::on_eof) and [`poll`](Self::poll) give what is to be done, in order. Call `poll` until
/// it gives nothing; a long script comes in portions. Start with `poll` too: a server may write before it is asked.
#[derive(Debug)]
pub struct Engine {
    script: Script,
    at: usize,
    wait: Wait,
    stopped: bool,
    vars: Vars,
    loops: Vec<Loop>,
    rules: Vec<Armed>,
    inbox: VecDeque<Vec<u8>>,
    out: Vec<Action>,
    out_bytes: usize,
    chunks: Chunks,
    auto: Vec<Auto>,
    own_initialize: bool,
    own_initialized: bool,
    /// The threads made by themselves, with what was asked for them.
    threads: BTreeMap<String, Vars>,
    ignore_eof: bool,
    eof: bool,
    strict: bool,
    must_finish: bool,
    failure: Option<String>,
}

#[derive(Clone, Debug)]
enum Wait {
    Nothing,
    Frames(Vec<Value>),
    Eof,
    Hang,
    Finished,
}

/// A rule and the variables that it binds, which are not those bound before it.
#[derive(Debug)]
struct Armed {
    rule: Rule,
    own: Vec<String>,
}

#[derive(Debug)]
struct Loop {
    start: usize,
    round: u64,
    times: u64,
}

impl Engine {
    /// Begins at the first line.
    #[must_use]
    pub fn new(script: Script) -> Self {
        let asks_for = |method: &str| {
            script.steps.iter().any(|located| match &located.step {
                Step::Expect(group) => group.iter().any(|pattern| pattern["method"] == method),
                Step::May(rule) => rule.pattern["method"] == method,
                _ => false,
            })
        };
        let (own_initialize, own_initialized) = (asks_for("initialize"), asks_for("initialized"));
        Self {
            script,
            at: 0,
            wait: Wait::Nothing,
            stopped: false,
            vars: Vars::new(),
            loops: Vec::new(),
            rules: Vec::new(),
            inbox: VecDeque::new(),
            out: Vec::new(),
            out_bytes: 0,
            chunks: Chunks::Off,
            auto: Vec::new(),
            own_initialize,
            own_initialized,
            threads: BTreeMap::new(),
            ignore_eof: false,
            eof: false,
            strict: false,
            must_finish: false,
            failure: None,
        }
    }

    /// Begins another script where this one stopped: its variables stay bound, its threads made.
    #[must_use]
    pub fn next_life(&self, script: Script) -> Self {
        Self {
            vars: self.vars.clone(),
            threads: self.threads.clone(),
            ..Self::new(script)
        }
    }

    /// A line from the client, without its line feed.
    pub fn on_line(&mut self, line: &[u8]) -> Vec<Action> {
        self.inbox.push_back(line.to_owned());
        self.poll()
    }

    /// What is to be done next; nothing while the script waits.
    pub fn poll(&mut self) -> Vec<Action> {
        self.go();
        self.out_bytes = 0;
        std::mem::take(&mut self.out)
    }

    /// The client closed stdin.
    pub fn on_eof(&mut self) -> Vec<Action> {
        self.eof = true;
        if !self.ignore_eof && !self.waits_for_eof_later() {
            self.leave();
        }
        if self.stopped || matches!(self.wait, Wait::Eof) {
            return self.poll();
        }
        // The script goes on by itself once what it said before is done. An exit told from here would pass for
        // the answer to the end of stdin, and a sleep before it would not be slept.
        Vec::new()
    }

    /// Why the script failed, if it did.
    #[must_use]
    pub fn failure(&self) -> Option<&str> {
        self.failure.as_deref()
    }

    /// Whether the last line has been played.
    #[must_use]
    pub fn is_finished(&self) -> bool {
        matches!(self.wait, Wait::Finished)
    }

    /// The value of a variable, as JSON text.
    #[must_use]
    pub fn variable(&self, name: &str) -> Option<&str> {
        self.vars.get(name).map(String::as_str)
    }

    fn waits_for_eof_later(&self) -> bool {
        let playing = matches!(self.wait, Wait::Nothing | Wait::Eof);
        playing
            && (matches!(self.wait, Wait::Eof)
                || self.script.steps[self.at..]
                    .iter()
                    .any(|located| matches!(located.step, Step::Eof)))
    }

    /// Exits because stdin ended.
    fn leave(&mut self) {
        if self.stopped {
            return;
        }
        let finished = matches!(self.wait, Wait::Finished | Wait::Hang);
        if !finished {
            let line = self.line();
            self.say(&format!(
                "stdin ended at script line {line}, before the last"
            ));
        }
        self.stop(Action::Exit(if self.must_finish && !finished {
            UNFINISHED
        } else {
            0
        }));
    }

    fn go(&mut self) {
        // Never past a sleep: what comes after it depends on what happens meanwhile.
        let sleeps = |out: &[Action]| matches!(out.last(), Some(Action::Sleep(_)));
        while !self.stopped
            && self.out.len() < BATCH
            && self.out_bytes < BATCH_BYTES
            && !sleeps(&self.out)
        {
            if matches!(self.wait, Wait::Nothing) {
                self.play();
            } else if matches!(self.wait, Wait::Eof) && self.eof {
                // Something before a possible exit, so that what was written before is still done.
                self.out.push(Action::Sleep(0));
                self.wait = Wait::Nothing;
            } else if let Some(line) = self.inbox.pop_front() {
                self.take(&line);
            } else if self.eof && !self.ignore_eof {
                self.leave();
            } else {
                return;
            }
        }
    }

    fn has_more(&self) -> bool {
        !self.stopped && (matches!(self.wait, Wait::Nothing) || !self.inbox.is_empty())
    }

    /// The number of the line being played or waited for.
    fn line(&self) -> usize {
        let index = if matches!(self.wait, Wait::Nothing) {
            self.at
        } else {
            self.at.saturating_sub(1)
        };
        self.script
            .steps
            .get(index)
            .or(self.script.steps.last())
            .map_or(1, |located| located.line)
    }

    fn play(&mut self) {
        let Some(located) = self.script.steps.get(self.at).cloned() else {
            self.wait = Wait::Finished;
            return;
        };
        if let Err(message) = self.step(located.step, located.line) {
            self.fail(
                SCRIPT_FAULT,
                format!(
                    "script line {}: nothing to put for `{message}`",
                    located.line
                ),
            );
        }
    }

    fn step(&mut self, step: Step, line: usize) -> Result<(), String> {
        self.at += 1;
        match step {
            Step::Expect(group) => self.wait = Wait::Frames(group),
            Step::May(rule) => {
                let mut own = Vec::new();
                template::names(&rule.pattern, &mut own);
                own.retain(|name| !self.vars.contains_key(name));
                self.rules.push(Armed { rule, own });
            }
            Step::Send(template) => self.send(&template)?,
            Step::Raw(text) => {
                let bytes = template::raw(&text, &self.vars)?;
                self.write(bytes);
            }
            Step::Sleep(ms) => self.out.push(Action::Sleep(ms)),
            Step::Exit(code) => self.stop(Action::Exit(code)),
            Step::Die => self.stop(Action::Die),
            Step::CloseStdout => {
                let rest = self.rest(line);
                self.stop(Action::CloseStdout { rest });
            }
            Step::Stderr(text) => {
                let mut bytes = template::raw(&text, &self.vars)?;
                bytes.push(b'\n');
                self.out.push(Action::Stderr(bytes));
            }
            Step::StderrFlood(bytes) => {
                for start in (0..bytes).step_by(64 << 10) {
                    self.out
                        .push(Action::Stderr(vec![b'e'; (bytes - start).min(64 << 10)]));
                }
            }
            Step::Hang => self.wait = Wait::Hang,
            Step::Eof => self.wait = Wait::Eof,
            Step::IgnoreEof => self.ignore_eof = true,
            Step::Grandchild => self.out.push(Action::SpawnGrandchild),
            Step::Big { method, bytes } => self.big(&method, bytes)?,
            Step::Repeat { times: 0, end } => self.at = end + 1,
            Step::Repeat { times, .. } => {
                self.vars.insert("i".to_owned(), "0".to_owned());
                self.loops.push(Loop {
                    start: self.at,
                    round: 0,
                    times,
                });
            }
            Step::End => self.next_round(),
            Step::Chunks(chunks) => self.chunks = chunks,
            Step::Auto(what) => self.auto.extend(what),
            Step::Strict => self.strict = true,
            Step::MustFinish => self.must_finish = true,
        }
        Ok(())
    }

    fn next_round(&mut self) {
        let Some(current) = self.loops.last_mut() else {
            return;
        };
        current.round += 1;
        if current.round < current.times {
            self.at = current.start;
        } else {
            self.loops.pop();
        }
        if let Some(current) = self.loops.last() {
            self.vars.insert("i".to_owned(), current.round.to_string());
        }
    }

    /// The script from after `line` on, with what was switched on before.
    fn rest(&self, line: usize) -> String {
        let mut rest = String::new();
        for (on, word) in [
            (self.ignore_eof, "X ignore-eof\n"),
            (self.strict, "X strict\n"),
            (self.must_finish, "X must-finish\n"),
        ] {
            if on {
                rest.push_str(word);
            }
        }
        // The client has shaken hands by now; nothing that it sends can be answered any more.
        rest.push_str("C* {}\n");
        rest + &self.script.after(line)
    }

    fn send(&mut self, template: &str) -> Result<(), String> {
        let mut frame = template::fill(template, &self.vars)?;
        frame.push('\n');
        self.write(frame.into_bytes());
        Ok(())
    }

    fn big(&mut self, method: &str, bytes: usize) -> Result<(), String> {
        let template = format!(
            r#"{{"method":"{method}","params":{{"item":{{"type":"commandExecution","id":"big_1","pluginId":null,"scriptPath":null,"command":"cat big","cwd":"/w","processId":"1","source":"agent","status":"completed","commandActions":[{{"type":"unknown","command":"cat big"}}],"aggregatedOutput":"${{x*{bytes}}}","exitCode":0,"durationMs":1,"startedAtMs":1,"completedAtMs":2}},"threadId":"$thread","turnId":"$turn","contentTokenCount":null,"completedAtMs":2}},"emittedAtMs":2}}"#
        );
        let mut vars = self.vars.clone();
        vars.entry("thread".to_owned())
            .or_insert_with(|| "\"thr_1\"".to_owned());
        vars.entry("turn".to_owned())
            .or_insert_with(|| "\"trn_1\"".to_owned());
        let mut frame = template::fill(&template, &vars)?;
        frame.push('\n');
        let chunks = std::mem::replace(&mut self.chunks, Chunks::Every(4096));
        self.write(frame.into_bytes());
        self.chunks = chunks;
        Ok(())
    }

    fn write(&mut self, bytes: Vec<u8>) {
        self.out_bytes += bytes.len();
        match &mut self.chunks {
            Chunks::Off => self.out.push(Action::Write(bytes)),
            Chunks::Every(size) => self.out.extend(
                bytes
                    .chunks(*size)
                    .map(|part| Action::Write(part.to_owned())),
            ),
            Chunks::Random(state) => {
                let mut rest = bytes.as_slice();
                while !rest.is_empty() {
                    *state = state
                        .wrapping_mul(6_364_136_223_846_793_005)
                        .wrapping_add(1_442_695_040_888_963_407);
                    let size = 1 + (*state >> 60) as usize;
                    let (part, after) = rest.split_at(size.min(rest.len()));
                    self.out.push(Action::Write(part.to_owned()));
                    rest = after;
                }
            }
        }
    }

    /// A frame of the client.
    fn take(&mut self, line: &[u8]) {
        if matches!(self.wait, Wait::Hang) {
            return;
        }
        let Ok(frame) = serde_json::from_slice::<Value>(line) else {
            // The real server says nothing to such a line; a script that did not ask for one calls it wrong.
            return self.mismatch(line);
        };
        if self.take_expected(&frame) || self.take_allowed(&frame) {
            return;
        }
        match self.answer(&frame) {
            Some(replies) => replies
                .into_iter()
                .for_each(|reply| self.write(reply.into_bytes())),
            None if matches!(self.wait, Wait::Finished) && !self.strict => {}
            None => self.mismatch(line),
        }
    }

    fn take_expected(&mut self, frame: &Value) -> bool {
        let Wait::Frames(group) = &mut self.wait else {
            return false;
        };
        for index in 0..group.len() {
            let mut vars = self.vars.clone();
            if template::matches(&group[index], frame, &mut vars) {
                self.vars = vars;
                group.remove(index);
                if group.is_empty() {
                    self.wait = Wait::Nothing;
                }
                return true;
            }
        }
        false
    }

    fn take_allowed(&mut self, frame: &Value) -> bool {
        for index in 0..self.rules.len() {
            let Armed { rule, own } = &self.rules[index];
            let mut vars = self.vars.clone();
            own.iter().for_each(|name| drop(vars.remove(name)));
            if !template::matches(&rule.pattern, frame, &mut vars) {
                continue;
            }
            self.vars = vars;
            let replies = rule.replies.clone();
            if !rule.often {
                self.rules.remove(index);
            }
            for reply in replies {
                if let Err(name) = self.send(&reply) {
                    self.fail(
                        SCRIPT_FAULT,
                        format!("nothing to put for `{name}` in {reply}"),
                    );
                }
            }
            return true;
        }
        false
    }

    /// The frames that answer what the script leaves to us.
    fn answer(&mut self, frame: &Value) -> Option<Vec<String>> {
        let on = |what| self.auto.contains(&what);
        let template = match frame["method"].as_str()? {
            "initialize" if !self.own_initialize => auto::INITIALIZE,
            "initialized" if !self.own_initialized => return Some(Vec::new()),
            "thread/start" if on(Auto::Threads) => auto::THREAD_START,
            "thread/unsubscribe" if on(Auto::Unsubscribe) => {
                r#"{"id":"$id","result":{"status":"unsubscribed"}}"#
            }
            "thread/name/set" if on(Auto::Names) => r#"{"id":"$id","result":{}}"#,
            "thread/resume" if on(Auto::History) => auto::THREAD_RESUME,
            "thread/read" if on(Auto::History) => auto::THREAD_READ,
            "thread/loaded/list" if on(Auto::Threads) => {
                r#"{"id":"$id","result":{"data":[],"nextCursor":null}}"#
            }
            "model/list" if on(Auto::Models) => {
                r#"{"id":"$id","result":{"data":[],"nextCursor":null}}"#
            }
            "thread/turns/list" | "thread/items/list" if on(Auto::History) => {
                r#"{"id":"$id","result":{"data":[],"nextCursor":null,"backwardsCursor":null}}"#
            }
            _ => return None,
        };
        let params = &frame["params"];
        let (thread, mut vars) = match params["threadId"].as_str() {
            Some(thread) => (
                thread.to_owned(),
                self.threads
                    .get(thread)
                    .cloned()
                    .unwrap_or_else(|| auto::wishes(params)),
            ),
            None => (
                format!("thr_{}", self.threads.len() + 1),
                auto::wishes(params),
            ),
        };
        if frame["method"] == "thread/start" {
            if let Some(tool) = params["dynamicTools"][0]["name"].as_str() {
                self.vars
                    .entry("tool".to_owned())
                    .or_insert_with(|| Value::from(tool).to_string());
            }
            self.threads.insert(thread.clone(), vars.clone());
        }
        vars.insert("id".to_owned(), frame["id"].to_string());
        vars.insert("thread".to_owned(), Value::from(thread).to_string());
        // Our own templates bind only these names.
        Some(
            template
                .lines()
                .filter_map(|line| template::fill(line, &vars).ok())
                .map(|frame| frame + "\n")
                .collect(),
        )
    }

    fn mismatch(&mut self, line: &[u8]) {
        let expected = match &self.wait {
            Wait::Frames(group) => group
                .iter()
                .map(Value::to_string)
                .collect::<Vec<_>>()
                .join(" or "),
            Wait::Eof => "the end of stdin".to_owned(),
            _ => "nothing more".to_owned(),
        };
        let got = String::from_utf8_lossy(&line[..line.len().min(1000)]);
        self.fail(
            MISMATCH,
            format!(
                "script line {}: expected {expected}, got {got}",
                self.line()
            ),
        );
    }

    fn fail(&mut self, code: i32, message: String) {
        self.say(&message);
        self.failure = Some(message);
        self.stop(Action::Exit(code));
    }

    fn say(&mut self, message: &str) {
        self.out.push(Action::Stderr(
            format!("fake-app-server: {message}\n").into_bytes(),
        ));
    }

    fn stop(&mut self, last: Action) {
        if !self.stopped {
            self.out.push(last);
            self.stopped = true;
        }
    }
}

impl Server for Engine {
    fn on_line(&mut self, _: u64, line: &[u8]) -> Vec<Action> {
        Engine::on_line(self, line)
    }

    fn on_eof(&mut self, _: u64) -> Vec<Action> {
        Engine::on_eof(self)
    }

    fn poll(&mut self, _: u64) -> Vec<Action> {
        Engine::poll(self)
    }

    fn due(&self) -> Option<u64> {
        self.has_more().then_some(0)
    }
}

#[cfg(test)]
mod tests;
