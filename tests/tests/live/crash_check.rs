//! What must hold after crashes, by the server's own history, what the model was asked, the side effects, and what the program was told.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt, fs,
    path::Path,
    process::Command,
};

use serde_json::{Value, json};
use turnkeep_core::{Durable, durable::DurableConversation, id::BoxId, transcript::box_type};
use turnkeep_tests::{
    app_server::AppServer,
    codex::{self, CodexHome},
    crash::{self, Kind, Line, Workload},
    heard,
    model::{self, Model},
    recording,
};

/// What was counted. There is no run with a loss or a duplicate: they fail it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Facts {
    pub(crate) messages: u64,
    pub(crate) steers: u64,
    pub(crate) requests: u64,
    pub(crate) side_effects: u64,
    /// Boxes that we told the model.
    pub(crate) boxes: u64,
    /// Calls whose results came later.
    pub(crate) late: u64,
    /// Messages that a kill caught between the server's own two writes, see [`Found::is_gap`].
    pub(crate) gaps: u64,
    /// Ends that were told, by outcome and where they are known from.
    pub(crate) ends: BTreeMap<String, u64>,
}

impl Facts {
    pub(crate) fn add(&mut self, other: &Self) {
        self.messages += other.messages;
        self.steers += other.steers;
        self.requests += other.requests;
        self.side_effects += other.side_effects;
        self.boxes += other.boxes;
        self.late += other.late;
        self.gaps += other.gaps;
        for (name, count) in &other.ends {
            *self.ends.entry(name.clone()).or_default() += count;
        }
    }
}

impl fmt::Display for Facts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ends = self.ends.iter().map(|(name, n)| format!("{name} {n}"));
        let ends = ends.collect::<Vec<_>>().join(", ");
        write!(
            f,
            "{} messages, {} steers and {} deferred calls in {} boxes, {} model requests, {} side effects; \
             ends told: {ends}; messages that the server had written to one of two places: {}; duplicates: 0, losses: 0",
            self.messages,
            self.steers,
            self.late,
            self.boxes,
            self.requests,
            self.side_effects,
            self.gaps
        )
    }
}

/// The model's id for the call that a message makes.
pub(crate) fn call_of(key: &str) -> String {
    format!("call-{key}")
}

/// A turn of the server's history.
struct Past {
    thread: String,
    status: String,
    /// Ids and texts of user messages.
    messages: Vec<(String, String)>,
    answer: Option<String>,
}

/// All that was found.
struct Found<'a> {
    workload: &'a Workload,
    lines: Vec<Line>,
    history: Vec<Past>,
    requests: Vec<Value>,
    /// The lines of the server's own files.
    rollouts: Vec<Value>,
    faults: Vec<String>,
    facts: Facts,
}

/// Checks everything.
///
/// # Panics
///
/// If something does not hold, with all that does not.
pub(crate) fn check(version: &str, workload: &Workload, home: &CodexHome, model: &Model) -> Facts {
    let mut found = Found {
        workload,
        lines: crash::read(&workload.log).expect("the log can be read"),
        history: history(version, home),
        requests: model.requests(),
        rollouts: rollouts(&workload.codex_home.join("sessions")),
        faults: Vec::new(),
        facts: Facts::default(),
    };
    found.log();
    found.messages();
    found.steers();
    found.runs();
    found.side_effects();
    found.ends();
    found.journal();
    let files = workload.log.parent().unwrap_or(&workload.log);
    if !found.faults.is_empty() {
        found.keep(files);
    }
    assert!(
        found.faults.is_empty(),
        "{}\nits files: {}",
        found.faults.join("\n"),
        files.display()
    );
    found.facts
}

/// The whole history, as a plain client reads it.
fn history(version: &str, home: &CodexHome) -> Vec<Past> {
    let mut server = AppServer::initialized(&codex::codex(version), home);
    let mut threads = Vec::new();
    let mut cursor = Value::Null;
    loop {
        let params = json!({ "limit": 100, "cursor": cursor, "modelProviders": [] });
        let page = server.request("thread/list", params);
        let ids = page["data"].as_array().expect("a page has data").iter();
        threads.extend(ids.filter_map(|thread| thread["id"].as_str().map(str::to_owned)));
        cursor = page["nextCursor"].clone();
        if cursor.is_null() {
            break;
        }
    }
    // One that was reverted is listed once for each of its files.
    threads.sort();
    threads.dedup();
    let mut history = Vec::new();
    for thread in threads {
        let mut cursor = Value::Null;
        loop {
            let page = server.request(
                "thread/turns/list",
                json!({ "threadId": thread, "limit": 50, "cursor": cursor, "itemsView": "full" }),
            );
            for turn in page["data"].as_array().expect("a page has data") {
                history.push(past(&thread, turn));
            }
            cursor = page["nextCursor"].clone();
            if cursor.is_null() {
                break;
            }
        }
    }
    history
}

fn past(thread: &str, turn: &Value) -> Past {
    let items = turn["items"].as_array().expect("a turn has items");
    let of = |kind: &'static str| items.iter().filter(move |item| item["type"] == kind);
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    Past {
        thread: thread.to_owned(),
        status: text(&turn["status"]),
        messages: of("userMessage")
            .map(|item| (text(&item["clientId"]), text(&item["content"][0]["text"])))
            .collect(),
        answer: of("agentMessage")
            .next_back()
            .map(|item| text(&item["text"])),
    }
}

fn rollouts(directory: &Path) -> Vec<Value> {
    let mut lines = Vec::new();
    for entry in fs::read_dir(directory).expect("it is there").flatten() {
        let path = entry.path();
        if path.is_dir() {
            lines.extend(rollouts(&path));
        } else if path.extension().is_some_and(|e| e == "jsonl") {
            let text = fs::read_to_string(&path).expect("it can be read");
            // A kill may have cut a line.
            lines.extend(
                text.lines()
                    .filter_map(|line| serde_json::from_str(line).ok()),
            );
        }
    }
    lines
}

impl Found<'_> {
    /// Leaves what a person wants to see who looks for the reason.
    fn keep(&self, files: &Path) {
        let requests = self.requests.iter().map(|request| format!("{request}\n"));
        let _ = fs::write(files.join("requests.jsonl"), requests.collect::<String>());
        let sessions = self.workload.codex_home.join("sessions");
        let _ = Command::new("cp")
            .arg("-r")
            .arg(sessions)
            .arg(files)
            .status();
    }

    fn fault(&mut self, what: String) {
        self.faults.push(what);
    }

    /// The program itself saw nothing wrong.
    fn log(&mut self) {
        for line in self.lines.clone() {
            if let Line::Wrong { what } = line {
                self.fault(what);
            }
        }
        if self.lines.last() != Some(&Line::Done) {
            self.fault("the program did not come to its end".into());
        }
    }

    /// How often a text stands in the history, and in the last request of its conversation.
    fn stands(&self, key: &str, text: &str) -> (usize, usize) {
        let messages = self.history.iter().flat_map(|turn| &turn.messages);
        let in_history = messages.map(|(_, said)| lines(said, text)).sum();
        let last = self.last_request(crash::conversation_of(key));
        let in_request = last.map_or(0, |request| {
            let texts = model::user_texts(request).into_iter();
            texts.map(|said| lines(said, text)).sum()
        });
        (in_history, in_request)
    }

    /// The last request of a conversation's thread.
    fn last_request(&self, conversation: &str) -> Option<&Value> {
        let of = |request: &&Value| {
            let newest = crash::newest(model::user_texts(request));
            newest.is_some_and(|(key, ..)| crash::conversation_of(key) == conversation)
        };
        self.requests.iter().rev().find(of)
    }

    /// How often the server wrote a message in each of its two ways: first what the model is given (`response_item`), then
    /// what the history shows (`item_completed`).
    fn writes(&self, text: &str) -> (usize, usize) {
        let (mut given, mut shown) = (0, 0);
        for line in &self.rollouts {
            let payload = &line["payload"];
            let content = match (line["type"].as_str(), payload["type"].as_str()) {
                (Some("response_item"), Some("message")) => &payload["content"],
                (Some("event_msg"), Some("item_completed")) => &payload["item"]["content"],
                _ => continue,
            };
            let mut parts = content.as_array().into_iter().flatten();
            let holds = |part: &Value| part["text"].as_str().is_some_and(|t| t.contains(text));
            if parts.any(holds) {
                match line["type"].as_str() {
                    Some("response_item") => given += 1,
                    _ => shown += 1,
                }
            }
        }
        (given, shown)
    }

    /// Whether kills came between the server's two writes of a message. The history says then that the message was never
    /// recorded, so that it is sent again, as it must be, and the model is given it once more for each such kill, while
    /// the history shows the last alone; or its item was heard of before the kill, and the model is given what no history
    /// shows. A turn that holds nothing else is reverted first; one that a message was steered into cannot be, nor one of
    /// a server that others may speak to.
    fn is_gap(&self, text: &str, stands: (usize, usize)) -> bool {
        match stands {
            (1, given @ 2..) => self.writes(text) == (given, 1),
            (0, 1) => self.writes(text) == (1, 0),
            _ => false,
        }
    }

    /// Every message that was said stands once where it belongs.
    fn messages(&mut self) {
        let said: BTreeSet<String> = self
            .lines
            .iter()
            .filter_map(|line| match line {
                Line::Said { key } => Some(key.clone()),
                _ => None,
            })
            .collect();
        for key in &said {
            let text = crash::text(key, crash::kind(self.workload.seed, key));
            let stands = self.stands(key, &text);
            // What was not accepted at first goes with the next message.
            if self.workload.url.is_some() && self.is_gap(&text, stands) {
                self.facts.gaps += 1;
            } else if stands != (1, 1) {
                self.fault(format!(
                    "{key} stands {} times in the history and {} times in the last request of its thread",
                    stands.0, stands.1
                ));
            }
            self.facts.messages += 1;
        }
        let ids: Vec<&str> = self
            .history
            .iter()
            .flat_map(|turn| turn.messages.iter().map(|(id, _)| id.as_str()))
            .collect();
        let unique: BTreeSet<&str> = ids.iter().copied().collect();
        if unique.len() != ids.len() {
            self.fault("a message id stands in the history twice".into());
        }
        let threads: BTreeSet<&str> = self.history.iter().map(|t| t.thread.as_str()).collect();
        if threads.len() != self.workload.conversations as usize {
            self.fault(format!("the history has the threads {threads:?}"));
        }
    }

    /// A steered message stands once where its answer came, and at most once where we were killed before.
    fn steers(&mut self) {
        let mut steers: BTreeMap<String, Option<String>> = BTreeMap::new();
        for line in &self.lines {
            match line {
                Line::Steering { key } => {
                    steers.entry(key.clone()).or_default();
                }
                Line::Steered { key, how } => {
                    steers.insert(key.clone(), Some(how.clone()));
                }
                _ => {}
            }
        }
        for (key, how) in steers {
            let text = crash::text(&key, Kind::Plain);
            let stands = self.stands(&key, &text);
            if self.is_gap(&text, stands) {
                self.facts.gaps += 1;
                self.facts.steers += 1;
                continue;
            }
            let fits = match how.as_deref() {
                Some("taken" | "queued") => stands == (1, 1),
                Some("none") => stands == (0, 0),
                Some(_) | None => stands == (0, 0) || stands == (1, 1),
            };
            if !fits {
                self.fault(format!(
                    "the steer {key} ({how:?}) stands {} times in the history and {} times in the last request of its thread",
                    stands.0, stands.1
                ));
            }
            self.facts.steers += 1;
        }
    }

    /// The model was asked for each message once, and once more with the output of its call, and with whatever else it was told
    /// since.
    fn runs(&mut self) {
        let mut asked: BTreeMap<(String, bool, usize), u32> = BTreeMap::new();
        for request in &self.requests {
            let texts = model::user_texts(request);
            let told = texts.iter().map(|text| text.matches("[Box ").count()).sum();
            let Some((key, ..)) = crash::newest(texts) else {
                continue;
            };
            let call = call_of(key);
            let outputs = model::call_outputs(request);
            let answered = outputs.iter().any(|(id, _)| *id == call);
            *asked.entry((key.to_owned(), answered, told)).or_default() += 1;
        }
        self.facts.requests = self.requests.len() as u64;
        for ((key, answered, told), times) in asked {
            if times > 1 {
                let what = if answered { " with its output" } else { "" };
                self.fault(format!(
                    "the model was asked for {key}{what} and {told} boxes {times} times"
                ));
            }
        }
    }

    fn side_effects(&mut self) {
        let completed: BTreeSet<String> = self
            .lines
            .iter()
            .filter_map(|line| match line {
                Line::End { key, outcome, .. } if outcome == "completed" => key.clone(),
                _ => None,
            })
            .collect();
        let failed = self.failed_calls();
        let commands = self.workload.cwd.join(crash::COMMAND_LOG);
        for (kinds, path) in [
            (vec![Kind::Tool, Kind::Later], &self.workload.tool_log),
            (vec![Kind::Ask], &commands),
        ] {
            let text = crash::read_whole(path).expect("the file can be read");
            let mut times: BTreeMap<&str, u32> = BTreeMap::new();
            for line in text.lines() {
                *times.entry(line).or_default() += 1;
            }
            for (key, times) in &times {
                if *times != 1 {
                    self.faults
                        .push(format!("{key} had its effect {times} times"));
                }
            }
            self.facts.side_effects += times.len() as u64;
            let missing = completed.iter().filter(|key| {
                kinds.contains(&crash::kind(self.workload.seed, key))
                    && !times.contains_key(key.as_str())
                    && !failed.contains(key.as_str())
            });
            let missing: Vec<String> = missing.cloned().collect();
            for key in missing {
                self.fault(format!("{key} completed without its effect"));
            }
        }
    }

    /// The keys whose call a kill of the program caught before its effect. Where the server lives on the turn goes on with
    /// the failure.
    fn failed_calls(&self) -> BTreeSet<String> {
        let mut failed = BTreeSet::new();
        if self.workload.url.is_none() {
            return failed;
        }
        for conversation in self.durable().conversations() {
            let mut calls = BTreeMap::new();
            for (_, body) in conversation.transcript().range(BoxId(1), u32::MAX) {
                let contents = body.contents.as_str();
                match body.box_type.as_str() {
                    box_type::TOOL_CALL => {
                        let call = contents
                            .strip_prefix("call ")
                            .and_then(|c| c.split_once(": "));
                        let key = contents.split("\"key\":\"").nth(1);
                        let key = key.and_then(|key| key.split('"').next());
                        calls.extend(call.map(|(number, _)| number).zip(key));
                    }
                    box_type::TOOL_RESULT if contents.ends_with("interrupted by shutdown") => {
                        let of = contents.strip_prefix("result of call ");
                        let number = of.and_then(|of| of.split(':').next());
                        let key = number.and_then(|number| calls.get(number));
                        failed.extend(key.map(|key| (*key).to_owned()));
                    }
                    _ => {}
                }
            }
        }
        failed
    }

    /// What was told of ends is what the history says, each time it was told.
    fn ends(&mut self) {
        let mut told: BTreeMap<String, (String, Option<String>)> = BTreeMap::new();
        for line in self.lines.clone() {
            let Line::End {
                key,
                message,
                outcome,
                text,
                source,
                detail,
            } = line
            else {
                continue;
            };
            let now = (outcome.clone(), text.clone());
            match told.get(&message) {
                Some(before) if *before != now => {
                    self.fault(format!("{key:?} ended {before:?}, and then {now:?}"));
                }
                Some(_) => continue,
                None => {
                    told.insert(message.clone(), now);
                }
            }
            let source = source.to_lowercase();
            let name = format!("{outcome} ({source})");
            *self.facts.ends.entry(name).or_default() += 1;
            let of = |turn: &&Past| turn.messages.iter().any(|(id, _)| *id == message);
            let found = self.history.iter().find(of);
            let found = found.map(|turn| (turn.status.clone(), turn.answer.clone()));
            let fits = match (outcome.as_str(), &found) {
                ("completed", Some((status, answer))) => status == "completed" && *answer == text,
                ("interrupted" | "failed", Some((status, _))) => *status == outcome,
                ("rejected", None) => true,
                // Nothing is claimed; but with a history that can be read nothing need be unknown.
                _ => false,
            };
            if !fits {
                self.fault(format!(
                    "{key:?} ({message}) was told as {detail} with {text:?}; the history says {found:?}"
                ));
            }
        }
        for conversation in 1..=self.workload.conversations {
            let last = crash::last_key(conversation);
            let completed = self.lines.iter().any(|line| {
                matches!(line, Line::End { key: Some(key), outcome, .. }
                    if *key == last && outcome == "completed")
            });
            if !completed {
                self.fault(format!("{last} did not complete"));
            }
        }
    }

    fn durable(&self) -> Durable {
        let mut durable = Durable::default();
        for (_, entry) in &recording::journal_in(&self.workload.journal).entries {
            for record in &entry.records {
                let applied = durable.apply(record);
                applied.unwrap_or_else(|error| panic!("batch {}: {error}", entry.seq.0));
            }
        }
        durable
    }

    /// The journal is whole, and leaves nothing open.
    fn journal(&mut self) {
        let durable = self.durable();
        let open = durable.prompts().count();
        if open > 0 || recording::journal_in(&self.workload.journal).torn.is_some() {
            let prompts: Vec<_> = durable.prompts().collect();
            self.fault(format!("the journal leaves open: {prompts:?}"));
        }
        for conversation in durable.conversations() {
            self.transcript(conversation);
        }
    }

    /// Nothing waits any more, and the model has heard once of all that it had not made itself.
    fn transcript(&mut self, conversation: &DurableConversation) {
        let key = conversation.key.to_string();
        let waits = !conversation.round.is_idle()
            || !conversation.mailbox.is_empty()
            || conversation.is_triggered();
        if waits {
            self.fault(format!("{key} is not at rest: {:?}", conversation.round));
        }
        let Some(last) = self.last_request(&key) else {
            return;
        };
        let mut late = BTreeSet::new();
        let mut faults = Vec::new();
        let (mut told, mut calls) = (0, 0);
        for (id, body) in conversation.transcript().range(BoxId(1), u32::MAX) {
            let contents = body.contents.as_str();
            let is_told = match body.box_type.as_str() {
                box_type::USER_MESSAGE => true,
                box_type::TOOL_CALL => {
                    let call = contents.split_once(": ");
                    let is_late = call.is_some_and(|(_, what)| what.starts_with(crash::LATER));
                    late.extend(call.filter(|_| is_late).map(|(number, _)| number));
                    calls += u64::from(is_late);
                    is_late
                }
                box_type::TOOL_RESULT => {
                    let of = contents.strip_prefix("result of ");
                    of.and_then(|of| of.split_once(':'))
                        .is_some_and(|(number, _)| late.contains(number))
                }
                _ => false,
            };
            if !is_told {
                continue;
            }
            told += 1;
            let times = heard::told(last, contents);
            if times != 1 && !(times > 1 && self.writes(contents) == (times, 1)) {
                faults.push(format!(
                    "box {id} of {key} was told {times} times: {contents:?}"
                ));
            }
        }
        self.facts.boxes += told;
        self.facts.late += calls;
        self.faults.append(&mut faults);
    }
}

/// How many lines of a text are this one.
fn lines(text: &str, line: &str) -> usize {
    text.lines().filter(|other| *other == line).count()
}
