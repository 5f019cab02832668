//! The log of a run: one line an input or effect. Chance is told by name, so that another draw changes no snapshot.

use std::{collections::BTreeMap, fmt::Write as _};

use serde_json::value::to_raw_value;
use turnkeep_core::{Deadline, Durability, Effect, Event, Input, Record, Timestamp, TurnUpdate};

use super::START;

/// A frame of the server longer than this is cut in the log.
const LONGEST: usize = 400;

#[derive(Debug, Default)]
pub(super) struct Log {
    text: String,
    /// Where the last input's lines begin.
    last: usize,
    due: Option<Deadline>,
    due_before: Option<Deadline>,
    names: BTreeMap<String, String>,
}

impl Log {
    pub(super) fn text(&self) -> String {
        self.text.clone()
    }

    pub(super) fn forget_all(&mut self) {
        self.text.clear();
    }

    /// Where the log ends now.
    pub(super) fn len(&self) -> usize {
        self.text.len()
    }

    /// Forgets what came after.
    pub(super) fn cut(&mut self, at: usize) {
        self.text.truncate(at);
    }

    pub(super) fn note(&mut self, text: &str) {
        let _ = writeln!(self.text, "\n# {text}");
    }

    pub(super) fn input(&mut self, at: Timestamp, step: u64, text: &str) {
        self.last = self.text.len();
        self.due_before = self.due;
        let text = self.named(text);
        let _ = writeln!(self.text, "@{} #{step} {text}", moment(at));
    }

    /// Takes the lines of the last input back.
    pub(super) fn forget_step(&mut self) {
        self.text.truncate(self.last);
        self.due = self.due_before;
    }

    pub(super) fn step(&mut self, at: Timestamp, step: u64, input: &Input) {
        match input {
            Input::Received(epoch, bytes) => {
                self.input(at, step, &format!("received {epoch}"));
                let text = String::from_utf8_lossy(bytes);
                for line in text.split_inclusive('\n') {
                    let whole = line.ends_with('\n');
                    let line = line.trim_end_matches('\n');
                    let cut = line.char_indices().nth(LONGEST).map(|(at, _)| at);
                    let shown = match cut {
                        Some(cut) => format!("{} … {} bytes", &line[..cut], line.len()),
                        None => line.replace('\r', "\\r"),
                    };
                    let shown = self.named(&shown);
                    let end = if whole { "" } else { " (no line end)" };
                    let _ = writeln!(self.text, "    < {shown}{end}");
                }
            }
            Input::Command { id, command } => {
                let command = without_nulls(&json(command));
                self.input(at, step, &format!("command {id} {command}"));
            }
            Input::Opened(epoch, peer) if peer.is_child() || peer.transport.is_empty() => {
                self.input(at, step, &format!("opened {epoch}"));
            }
            Input::Opened(epoch, peer) => {
                let text = format!("opened {epoch} over {}", peer.transport);
                self.input(at, step, &text);
            }
            Input::SendFailed(epoch, frame) => {
                self.input(at, step, &format!("send failed {epoch} frame {frame}"));
            }
            Input::Closed(epoch, closed) => {
                self.input(at, step, &format!("closed {epoch} {}", json(closed)));
            }
            Input::Appended { through } => self.input(at, step, &format!("appended {through}")),
            Input::AppendFailed => self.input(at, step, "append failed"),
            Input::QueueFull(conversation) => {
                self.input(at, step, &format!("queue full c{conversation}"));
            }
            Input::Tick => self.input(at, step, "tick"),
        }
    }

    pub(super) fn effect(&mut self, effect: &Effect) {
        match effect {
            Effect::Append(batch) => {
                let how = match batch.durability {
                    Durability::Buffered => "buffered",
                    Durability::Synced => "synced",
                };
                self.line(&format!("append {} {how}", batch.through));
                for record in &batch.records {
                    let text = match record {
                        Record::Start { .. } => r#"{"start":…}"#.to_owned(),
                        other => without_nulls(&json(other)),
                    };
                    self.line(&format!("  {text}"));
                }
            }
            Effect::Send(epoch, frame) => {
                self.line(&format!("send {epoch} {}", frame.redacted()));
            }
            Effect::Emit(event) => self.line(&format!("emit {}", event_text(event))),
            Effect::Open(epoch, reason) => self.line(&format!("open {epoch} {reason:?}")),
            Effect::Close(epoch, why) => self.line(&format!("close {epoch} {why:?}")),
        }
    }

    pub(super) fn deadline(&mut self, due: Option<Deadline>) {
        if due == self.due {
            return;
        }
        self.due = due;
        match due {
            Some(due) => self.line(&format!("due @{} {:?}", moment(due.at), due.timer)),
            None => self.line("due never"),
        }
    }

    fn line(&mut self, text: &str) {
        let text = self.named(text);
        let _ = writeln!(self.text, "    {text}");
    }

    /// Puts names for what is drawn: message ids, marks, nonces.
    fn named(&mut self, text: &str) -> String {
        let mut out = String::with_capacity(text.len());
        let mut rest = text;
        'next: while !rest.is_empty() {
            for (prefix, digits, name) in [
                ("msg_", 32, "msg"),
                ("turnkeep-create-", 32, "mark"),
                ("\"nonce\":\"", 24, "nonce"),
                ("nonce: ", 24, "nonce"),
            ] {
                let Some(after) = rest.strip_prefix(prefix) else {
                    continue;
                };
                let Some(hex) = after.get(..digits) else {
                    continue;
                };
                if !hex.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f')) {
                    continue;
                }
                let count = self.names.values().filter(|n| n.starts_with(name)).count();
                let key = format!("{name}{hex}");
                let short = self
                    .names
                    .entry(key)
                    .or_insert_with(|| format!("{name}-{}", count + 1));
                if name == "nonce" {
                    out.push_str(prefix);
                }
                out.push_str(short);
                rest = &after[digits..];
                continue 'next;
            }
            let next = rest.chars().next().map_or(rest.len(), char::len_utf8);
            out.push_str(&rest[..next]);
            rest = &rest[next..];
        }
        out
    }
}

pub(super) fn json<T: serde::Serialize + ?Sized>(value: &T) -> String {
    let raw = to_raw_value(value).expect("it can be written as JSON");
    raw.get().to_owned()
}

/// Leaves members that are null out.
fn without_nulls(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find(":null") {
        let (before, after) = rest.split_at(at);
        let key = before.strip_suffix('"').and_then(|b| b.rfind('"'));
        rest = &after[":null".len()..];
        match key {
            Some(key) if rest.starts_with(',') => {
                out.push_str(&before[..key]);
                rest = &rest[1..];
            }
            Some(key) => {
                out.push_str(&before[..key]);
                out.truncate(out.trim_end_matches(',').len());
            }
            None => {
                out.push_str(before);
                out.push_str(":null");
            }
        }
    }
    out + rest
}

fn moment(at: Timestamp) -> String {
    let micros = at.0.saturating_sub(START.0);
    match micros % 1_000 {
        0 => format!("{}ms", micros / 1_000),
        rest => format!("{}.{rest:03}ms", micros / 1_000),
    }
}

fn event_text(event: &Event) -> String {
    match event {
        Event::Delta(delta) => format!(
            "c{} t{} delta {:?} {} {} frames {}",
            delta.conversation,
            delta.turn,
            delta.kind,
            delta.item,
            delta.frames,
            json(&delta.text)
        ),
        Event::Turn(event) => {
            let update = match &event.update {
                TurnUpdate::ItemStarted(item) => format!("item started {}", item_text(item)),
                TurnUpdate::ItemCompleted(item) => format!("item completed {}", item_text(item)),
                TurnUpdate::Question(question) => format!("question {}", question_text(question)),
                TurnUpdate::QuestionDeclined(question) => {
                    format!("question declined {}", question_text(question))
                }
                update => json(update),
            };
            format!("c{} t{} {update}", event.conversation, event.turn)
        }
        Event::Conversation(event) => {
            format!("c{} {}", event.conversation, json(&event.update))
        }
        Event::Connection(event) => format!("connection {}", json(event)),
        Event::Answer { id, answer } => format!("answer {id} {}", json(answer)),
        Event::Halted => "halted".to_owned(),
    }
}

/// What the core reads out of an item; the rest stands in the frame.
fn item_text(item: &turnkeep_core::event::Item) -> String {
    let mut out = format!("{} {}", item.kind, item.id);
    if let Some(phase) = &item.phase {
        let _ = write!(out, " {phase:?}");
    }
    if let Some(client) = &item.client_id {
        let _ = write!(out, " of {client}");
    }
    if let Some(text) = &item.text {
        let _ = write!(out, " {}", json(text));
    }
    out
}

fn question_text(question: &turnkeep_core::event::Question) -> String {
    let mut out = format!("{} {}", question.id, json(&question.kind));
    if question.dismissable {
        out.push_str(" dismissable");
    }
    if let Some(span) = question.auto_resolution {
        let _ = write!(out, " resolves itself after {} ms", span.as_millis());
    }
    out
}
