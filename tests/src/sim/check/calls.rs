//! Rule 4: A tool call is launched at most once, and never again after a durable launch.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use turnkeep_core::{
    ConversationId, Event, JournalSeq, Nonce, Record, ToolCallId, TurnUpdate,
    event::CallClosedWhy,
    round::{Action, RoundChange},
    tools::CallChange,
};

#[derive(Debug, Default)]
pub(super) struct Calls {
    /// The server's name for a call.
    names: BTreeMap<ToolCallId, String>,
    /// Calls of turns that the server began.
    foreign: BTreeSet<ToolCallId>,
    nonces: BTreeMap<ConversationId, Nonce>,
    waiting: VecDeque<(JournalSeq, ToolCallId)>,
    /// Launches that are durable in this life.
    durable: BTreeSet<ToolCallId>,
    /// Launches that the application has seen, in any life.
    seen: BTreeSet<ToolCallId>,
    seen_names: BTreeSet<String>,
    /// Launches that were durable when a life ended.
    before: BTreeSet<ToolCallId>,
}

impl Calls {
    pub(super) fn life_begins(&mut self, covered: bool) {
        self.waiting.clear();
        // A gap that is known: the next life remembers no turn of the server's. A start of its own that is folded into one that still
        // runs is asked the open calls of that turn, and takes them for its own (seed 1692).
        for call in std::mem::take(&mut self.foreign) {
            if let Some(name) = self.names.get(&call) {
                self.seen_names.remove(name);
            }
        }
        let launched = std::mem::take(&mut self.durable);
        if covered {
            self.before.extend(launched);
        } else {
            self.before.clear();
        }
    }

    /// A record that a start finds.
    pub(super) fn found(&mut self, record: &Record) {
        let launched = self.launched(record);
        self.before.extend(launched);
    }

    /// The calls that a record launches: the well-formed ones of a stage.
    fn launched(&mut self, record: &Record) -> Vec<ToolCallId> {
        match record {
            Record::ConversationOpened {
                conversation,
                nonce,
                ..
            } => {
                self.nonces.insert(*conversation, *nonce);
                Vec::new()
            }
            Record::Forked(forked) => {
                self.nonces.insert(forked.conversation, forked.nonce);
                Vec::new()
            }
            Record::Round {
                conversation,
                change: RoundChange::Staged { actions, .. },
            } => {
                let nonce = self.nonces[conversation];
                let mut calls = Vec::new();
                for action in actions {
                    let Action::Call(call) = action else { continue };
                    let sequence = call.sequence;
                    let id = ToolCallId { nonce, sequence };
                    self.names.insert(id, call.native.as_str().to_owned());
                    if call.malformed.is_none() {
                        calls.push(id);
                    }
                }
                calls
            }
            other => self.launch(other).into_iter().collect(),
        }
    }

    fn launch(&mut self, record: &Record) -> Option<ToolCallId> {
        let Record::ToolCall { call, change } = record else {
            return None;
        };
        match change {
            CallChange::Asked(asked) => {
                self.names.insert(*call, asked.native.as_str().to_owned());
                self.foreign.insert(*call);
                None
            }
            CallChange::Launched => Some(*call),
            CallChange::Answered { .. }
            | CallChange::Closed { .. }
            | CallChange::Message { .. }
            | CallChange::Deferred
            | CallChange::Given => None,
        }
    }

    pub(super) fn record(&mut self, through: JournalSeq, record: &Record) {
        for call in self.launched(record) {
            self.waiting.push_back((through, call));
        }
    }

    pub(super) fn appended(&mut self, through: JournalSeq) {
        while self.waiting.front().is_some_and(|(seq, _)| *seq <= through) {
            if let Some((_, call)) = self.waiting.pop_front() {
                self.durable.insert(call);
            }
        }
    }

    pub(super) fn event(&mut self, event: &Event) {
        let Event::Turn(event) = event else { return };
        let call = match &event.update {
            TurnUpdate::ToolCall(call) => call,
            // A shutdown without a connection cannot withdraw it: a turn of the next life that is folded into the same one is
            // asked it anew.
            TurnUpdate::CallClosed {
                call,
                why: CallClosedWhy::Shutdown,
            } => {
                if let Some(name) = self.names.get(call) {
                    self.seen_names.remove(name);
                }
                return;
            }
            _ => return,
        };
        assert!(
            !self.before.contains(&call.id),
            "4: call {} was durably launched in an earlier life and is launched again",
            call.id
        );
        assert!(
            self.durable.contains(&call.id),
            "4: call {} is launched before its record is durable",
            call.id
        );
        assert!(
            self.seen.insert(call.id),
            "4: call {} is launched twice",
            call.id
        );
        let name = self.names.get(&call.id).cloned().unwrap_or_default();
        assert!(
            self.seen_names.insert(name.clone()),
            "4: the server's call {name} is launched twice"
        );
    }
}
