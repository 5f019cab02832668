//! What is owed to the server when threads are no longer wanted: kept until it is settled, across
//! connections and crashes.

use alloc::{
    collections::BTreeSet,
    string::{String, ToString},
    vec::Vec,
};

use serde::{Deserialize, Serialize};

use crate::{
    error::{Change, InvalidTransition},
    id::{ConversationId, ThreadId, is_clean},
    thread::is_mark,
};

/// For whom something is cleaned up.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "snake_case")]
pub enum Owner {
    /// One conversation.
    Conversation(ConversationId),
    /// All conversations of a workspace.
    Workspace(String),
    /// All conversations.
    Client,
}

impl Owner {
    /// Checks what types cannot tell.
    ///
    /// # Errors
    ///
    /// In words, what is wrong.
    pub fn validate(&self) -> Result<(), String> {
        match self {
            Self::Workspace(label) if !is_clean(label) => {
                Err("the workspace is empty or has white space at its ends".to_string())
            }
            Self::Conversation(_) | Self::Workspace(_) | Self::Client => Ok(()),
        }
    }
}

/// What is done with threads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Action {
    /// Their background terminals are stopped, and they are let go.
    Detach,
    /// They are put away (`thread/archive`).
    Archive,
    /// They are deleted (`thread/delete`).
    Delete,
}

/// An obligation: one for each owner and action.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "snake_case")]
pub enum Cleanup {
    /// Something is owed.
    Owed {
        /// These threads.
        #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
        threads: BTreeSet<ThreadId>,
        /// Threads that answer to these marks, if there are any: nobody knows their ids.
        #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
        marks: BTreeSet<String>,
    },
    /// Nothing is.
    Settled,
}

/// A change of an obligation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "snake_case")]
pub enum CleanupChange {
    /// These are owed, beside those that were.
    Owed {
        /// Threads, sorted, none twice.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        threads: Vec<ThreadId>,
        /// Marks of threads, sorted, none twice.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        marks: Vec<String>,
    },
    /// A thread is settled.
    Done {
        /// That.
        thread: ThreadId,
    },
    /// A mark is settled: no thread answers to it.
    MarkDone {
        /// That.
        mark: String,
    },
}

impl CleanupChange {
    const fn name(&self) -> &'static str {
        match self {
            Self::Owed { .. } => "owed",
            Self::Done { .. } => "done",
            Self::MarkDone { .. } => "mark_done",
        }
    }

    /// Checks what types cannot tell.
    ///
    /// # Errors
    ///
    /// In words, what is wrong.
    pub fn validate(&self) -> Result<(), &'static str> {
        match self {
            Self::Owed { threads, marks } => {
                if threads.is_empty() && marks.is_empty() {
                    return Err("nothing is owed");
                }
                let sorted = threads.windows(2).all(|pair| pair[0] < pair[1])
                    && marks.windows(2).all(|pair| pair[0] < pair[1]);
                if !sorted {
                    return Err("what is owed is out of order or stands twice");
                }
                match marks.iter().all(|mark| is_mark(mark)) {
                    true => Ok(()),
                    false => Err("a mark is none of ours"),
                }
            }
            Self::Done { .. } | Self::MarkDone { .. } => Ok(()),
        }
    }
}

impl Cleanup {
    /// The state's name.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Owed { .. } => "Owed",
            Self::Settled => "Settled",
        }
    }

    /// The threads that are not settled.
    pub fn threads(&self) -> impl Iterator<Item = &ThreadId> {
        match self {
            Self::Owed { threads, .. } => Some(threads),
            Self::Settled => None,
        }
        .into_iter()
        .flatten()
    }

    /// The marks that are not settled.
    pub fn marks(&self) -> impl Iterator<Item = &str> {
        match self {
            Self::Owed { marks, .. } => Some(marks),
            Self::Settled => None,
        }
        .into_iter()
        .flatten()
        .map(String::as_str)
    }

    /// Takes a change. Unchanged on error.
    ///
    /// # Errors
    ///
    /// What is settled was never owed.
    pub fn on(&mut self, change: &CleanupChange) -> Result<Change, InvalidTransition> {
        use CleanupChange as C;
        let invalid = InvalidTransition {
            machine: "clean-up",
            state: self.name(),
            event: change.name(),
        };
        // In place: there may be as many threads as conversations, and each is settled alone.
        let changed = match (&mut *self, change) {
            (Self::Settled, C::Owed { threads, marks }) => {
                *self = Self::Owed {
                    threads: threads.iter().cloned().collect(),
                    marks: marks.iter().cloned().collect(),
                };
                true
            }
            (
                Self::Owed { threads, marks },
                C::Owed {
                    threads: more,
                    marks: also,
                },
            ) => {
                let before = threads.len() + marks.len();
                threads.extend(more.iter().cloned());
                marks.extend(also.iter().cloned());
                threads.len() + marks.len() > before
            }
            (Self::Owed { threads, .. }, C::Done { thread }) => match threads.remove(thread) {
                true => true,
                false => return Err(invalid),
            },
            (Self::Owed { marks, .. }, C::MarkDone { mark }) => match marks.remove(mark) {
                true => true,
                false => return Err(invalid),
            },
            (Self::Settled, C::Done { .. } | C::MarkDone { .. }) => return Err(invalid),
        };
        if self.threads().next().is_none() && self.marks().next().is_none() {
            *self = Self::Settled;
        }
        Ok(match changed {
            true => Change::Applied,
            false => Change::NoOp,
        })
    }

    /// Checks what types cannot tell.
    ///
    /// # Errors
    ///
    /// In words, what is wrong.
    pub fn validate(&self) -> Result<(), &'static str> {
        match self {
            Self::Owed { threads, marks } if threads.is_empty() && marks.is_empty() => {
                Err("nothing is owed")
            }
            Self::Owed { marks, .. } if !marks.iter().all(|mark| is_mark(mark)) => {
                Err("a mark is none of ours")
            }
            Self::Owed { .. } => Ok(()),
            Self::Settled => Err("it is settled"),
        }
    }
}
