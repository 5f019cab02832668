//! Rule 2: Each message is accepted at most once by its id, and what it carries stands in a thread at most once.

use std::{
    collections::{BTreeMap, BTreeSet},
    rc::Rc,
};

use turnkeep_core::{Record, prompt::PromptChange};

use crate::sim::{marks::marks, server::Fact};

#[derive(Debug, Default)]
pub(super) struct Accepted {
    /// How many frames of a message came.
    came: BTreeMap<String, u32>,
    /// The turn that a message stands in.
    turns: BTreeMap<String, Rc<str>>,
    /// What a thread holds: marks of what was said in it.
    held: BTreeSet<(Rc<str>, String)>,
    /// Marks of what stands in any thread.
    marks: BTreeSet<String>,
    /// Turns that records of ours name.
    named: BTreeSet<String>,
    given_twice: u64,
    /// Whether others may speak to the server.
    shared: bool,
}

impl Accepted {
    pub(super) fn new(shared: bool) -> Self {
        Self {
            shared,
            ..Self::default()
        }
    }

    pub(super) fn life_begins(&mut self) {
        self.named.clear();
    }

    pub(super) fn record(&mut self, record: &Record) {
        if let Record::Prompt {
            change: PromptChange::Accepted { turn },
            ..
        } = record
        {
            self.named.insert(turn.as_str().to_owned());
        }
    }

    /// How often the model was given a message twice, by the server's own gap.
    pub(super) const fn given_twice(&self) -> u64 {
        self.given_twice
    }

    pub(super) fn fact(&mut self, fact: &Fact) {
        match fact {
            Fact::Came { message } => *self.came.entry(message.clone()).or_default() += 1,
            Fact::Recorded {
                message: Some(message),
                text,
                turn,
                thread,
            } => {
                let before = self.turns.insert(message.clone(), turn.clone());
                assert_eq!(
                    before, None,
                    "2: message {message} ({text:?}) is accepted a second time, in turn {turn}"
                );
                for mark in marks(text) {
                    assert!(
                        self.held.insert((thread.clone(), mark.to_owned())),
                        "11: {mark} is submitted to thread {thread} a second time, in {text:?} as {message} in turn {turn}"
                    );
                    self.marks.insert(mark.to_owned());
                }
            }
            // Under a name that we never heard it is the server's own gap: a void turn of anybody. On a
            // server that others may speak to nothing is taken back.
            Fact::GivenTwice { text, before } => {
                assert!(
                    self.shared || !self.named.contains(&**before),
                    "2: the model is given {text:?} twice, first in turn {before}"
                );
                self.given_twice += 1;
            }
            // What the agent said its thread holds.
            Fact::Said { thread, text } => {
                let marks = marks(text).map(|mark| (thread.clone(), mark.to_owned()));
                self.held.extend(marks);
            }
            // A result is given to the call itself, or as a box.
            Fact::CallAnswered {
                thread,
                result: Some(result),
                ..
            } => {
                for mark in marks(result) {
                    assert!(
                        self.held.insert((thread.clone(), mark.to_owned())),
                        "11: {mark} is given to thread {thread} a second time, as the result of a call"
                    );
                }
            }
            Fact::Forked { from, to } => {
                let held = self.held.iter().filter(|(thread, _)| thread == from);
                let copied: Vec<_> = held.map(|(_, mark)| (to.clone(), mark.clone())).collect();
                self.held.extend(copied);
            }
            Fact::Recorded { message: None, .. }
            | Fact::Ended { .. }
            | Fact::Decided { .. }
            | Fact::Called { .. }
            | Fact::CallAnswered { .. }
            | Fact::AnsweredTwice { .. }
            | Fact::Thread { .. }
            | Fact::Compacted
            | Fact::Fault(_) => {}
        }
    }

    /// The turn that a message stands in.
    pub(super) fn turn_of(&self, message: &str) -> Option<&Rc<str>> {
        self.turns.get(message)
    }

    /// Whether a thread holds what was said with a mark.
    pub(super) fn holds(&self, thread: &str, mark: &str) -> bool {
        self.held.contains(&(thread.into(), mark.to_owned()))
    }

    /// Whether something that was said stands in the history.
    pub(super) fn has(&self, text: &str) -> bool {
        marks(text).all(|mark| self.marks.contains(mark))
    }

    pub(super) fn at_the_end(&self) {
        for message in self.turns.keys() {
            assert!(
                self.came.contains_key(message),
                "2: message {message} was recorded and never came"
            );
        }
    }

    pub(super) fn count(&self) -> u64 {
        self.turns.len() as u64
    }

    pub(super) fn resends(&self) -> u64 {
        self.came
            .values()
            .map(|n| u64::from(n.saturating_sub(1)))
            .sum()
    }
}
