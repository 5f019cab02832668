//! How the native thread of a conversation comes to be.
//!
//! `thread/start` carries no id of ours that the server keeps apart from its source mark, so a
//! creation goes through states of its own: a thread that may exist is looked for by its mark and
//! never made a second time under it.

use alloc::string::String;

use serde::{Deserialize, Serialize};

use crate::{
    command::Refusal,
    error::{Change, InvalidTransition},
    id::ThreadId,
};

/// The making of a thread.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "snake_case")]
pub enum Creation {
    /// Decided on. The application may do its own durable work first.
    Preparing {
        /// What the thread is known by (`threadSource`).
        mark: String,
    },
    /// Nothing has left.
    Ready {
        /// What the thread is known by.
        mark: String,
    },
    /// `thread/start` may have left.
    MayBeAccepted {
        /// What the thread is known by.
        mark: String,
        /// The thread that answers to the mark, if one was seen.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        thread: Option<ThreadId>,
    },
    /// The thread is ours.
    Bound {
        /// What the thread is known by.
        mark: String,
        /// The thread.
        thread: ThreadId,
    },
    /// The server refused.
    Rejected {
        /// What the thread would have been known by.
        mark: String,
        /// Why.
        refusal: Refusal,
    },
    /// No thread with the mark could be told within the limit: it is made again under another one,
    /// since an empty thread holds nothing.
    Unresolved {
        /// What the thread is known by, should it be there after all.
        mark: String,
    },
    /// The server has the thread no more, or the conversation wants another: one is made under
    /// another mark. Only for a thread that holds nothing, or whose contents are given up.
    Gone {
        /// What the thread was known by.
        mark: String,
        /// The thread.
        thread: ThreadId,
    },
}

/// A step of the making.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "snake_case")]
pub enum CreationChange {
    /// It begins under this mark.
    Preparing {
        /// `turnkeep-create-` and 32 lower-case hex digits.
        mark: String,
    },
    /// The application's own work is done.
    Ready,
    /// `thread/start` may leave from now on.
    Dispatched,
    /// A thread with the mark was seen.
    Seen {
        /// The thread.
        thread: ThreadId,
    },
    /// The thread is ours.
    Bound {
        /// The thread.
        thread: ThreadId,
    },
    /// The server refused.
    Rejected {
        /// Why.
        refusal: Refusal,
    },
    /// No thread with the mark could be told within the limit.
    Unresolved,
    /// The thread never ran a turn and the server has it no more; or it is given up (`reset`).
    Gone,
}

impl CreationChange {
    const fn name(&self) -> &'static str {
        match self {
            Self::Preparing { .. } => "preparing",
            Self::Ready => "ready",
            Self::Dispatched => "dispatched",
            Self::Seen { .. } => "seen",
            Self::Bound { .. } => "bound",
            Self::Rejected { .. } => "rejected",
            Self::Unresolved => "unresolved",
            Self::Gone => "gone",
        }
    }
}

/// What a mark begins with.
pub const MARK_PREFIX: &str = "turnkeep-create-";

/// Whether a text is a mark of ours.
#[must_use]
pub fn is_mark(text: &str) -> bool {
    text.strip_prefix(MARK_PREFIX).is_some_and(|hex| {
        hex.len() == 32 && hex.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))
    })
}

impl Creation {
    /// Begins under a mark.
    ///
    /// # Errors
    ///
    /// The change is not a beginning, or the mark is not one.
    pub fn begin(change: &CreationChange) -> Result<Self, InvalidTransition> {
        match change {
            CreationChange::Preparing { mark } if is_mark(mark) => {
                Ok(Self::Preparing { mark: mark.clone() })
            }
            CreationChange::Preparing { .. }
            | CreationChange::Ready
            | CreationChange::Dispatched
            | CreationChange::Seen { .. }
            | CreationChange::Bound { .. }
            | CreationChange::Rejected { .. }
            | CreationChange::Unresolved
            | CreationChange::Gone => Err(InvalidTransition {
                machine: "thread creation",
                state: "None",
                event: change.name(),
            }),
        }
    }

    /// The state's name.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Preparing { .. } => "Preparing",
            Self::Ready { .. } => "Ready",
            Self::MayBeAccepted { .. } => "MayBeAccepted",
            Self::Bound { .. } => "Bound",
            Self::Rejected { .. } => "Rejected",
            Self::Unresolved { .. } => "Unresolved",
            Self::Gone { .. } => "Gone",
        }
    }

    /// What the thread is known by.
    #[must_use]
    pub fn mark(&self) -> &str {
        match self {
            Self::Preparing { mark }
            | Self::Ready { mark }
            | Self::MayBeAccepted { mark, .. }
            | Self::Bound { mark, .. }
            | Self::Rejected { mark, .. }
            | Self::Unresolved { mark }
            | Self::Gone { mark, .. } => mark,
        }
    }

    /// The thread, once it is ours.
    #[must_use]
    pub const fn thread(&self) -> Option<&ThreadId> {
        match self {
            Self::Bound { thread, .. } => Some(thread),
            Self::Preparing { .. }
            | Self::Ready { .. }
            | Self::MayBeAccepted { .. }
            | Self::Rejected { .. }
            | Self::Unresolved { .. }
            | Self::Gone { .. } => None,
        }
    }

    /// Whether a thread was made under the mark, or may have been, with the settings of then.
    #[must_use]
    pub const fn has_left(&self) -> bool {
        match self {
            Self::MayBeAccepted { .. } | Self::Bound { .. } => true,
            Self::Preparing { .. }
            | Self::Ready { .. }
            | Self::Rejected { .. }
            | Self::Unresolved { .. }
            | Self::Gone { .. } => false,
        }
    }

    /// Checks what types cannot tell.
    ///
    /// # Errors
    ///
    /// In words, what is wrong.
    pub fn validate(&self) -> Result<(), &'static str> {
        if is_mark(self.mark()) {
            Ok(())
        } else {
            Err("the mark of its thread is none of ours")
        }
    }

    /// Takes a change. Unchanged on error; each step again is a no-op.
    ///
    /// # Errors
    ///
    /// A step was skipped, or a second, different thread was named.
    pub fn on(&mut self, change: &CreationChange) -> Result<Change, InvalidTransition> {
        use CreationChange as C;
        let invalid = InvalidTransition {
            machine: "thread creation",
            state: self.name(),
            event: change.name(),
        };
        let mark = self.mark();
        let next = match (&*self, change) {
            (Self::Preparing { mark }, C::Ready) => Self::Ready { mark: mark.clone() },
            (Self::Ready { mark }, C::Dispatched) => Self::MayBeAccepted {
                mark: mark.clone(),
                thread: None,
            },
            (Self::MayBeAccepted { mark, thread: None }, C::Seen { thread }) => {
                Self::MayBeAccepted {
                    mark: mark.clone(),
                    thread: Some(thread.clone()),
                }
            }
            (Self::MayBeAccepted { mark, thread: seen }, C::Bound { thread })
                if seen.as_ref().is_none_or(|seen| seen == thread) =>
            {
                Self::Bound {
                    mark: mark.clone(),
                    thread: thread.clone(),
                }
            }
            (Self::MayBeAccepted { mark, thread: None }, C::Rejected { refusal }) => {
                Self::Rejected {
                    mark: mark.clone(),
                    refusal: refusal.clone(),
                }
            }
            (Self::MayBeAccepted { mark, thread: None }, C::Unresolved) => {
                Self::Unresolved { mark: mark.clone() }
            }
            (
                Self::Bound { mark, thread }
                | Self::MayBeAccepted {
                    mark,
                    thread: Some(thread),
                },
                C::Gone,
            ) => Self::Gone {
                mark: mark.clone(),
                thread: thread.clone(),
            },
            (Self::Unresolved { .. }, C::Unresolved) | (Self::Gone { .. }, C::Gone) => {
                return Ok(Change::NoOp);
            }
            // A thread that was refused, that no answer told of or that is gone is made again under
            // a mark of its own.
            (
                Self::Rejected { mark: had, .. }
                | Self::Unresolved { mark: had }
                | Self::Gone { mark: had, .. },
                C::Preparing { mark },
            ) if had != mark && is_mark(mark) => Self::Preparing { mark: mark.clone() },
            (Self::Preparing { .. }, C::Preparing { mark: same }) if mark == same => {
                return Ok(Change::NoOp);
            }
            (Self::Ready { .. }, C::Ready) | (Self::MayBeAccepted { .. }, C::Dispatched) => {
                return Ok(Change::NoOp);
            }
            (
                Self::MayBeAccepted {
                    thread: Some(seen), ..
                },
                C::Seen { thread },
            ) if seen == thread => {
                return Ok(Change::NoOp);
            }
            (Self::Bound { thread: had, .. }, C::Bound { thread } | C::Seen { thread })
                if had == thread =>
            {
                return Ok(Change::NoOp);
            }
            (Self::Rejected { refusal: had, .. }, C::Rejected { refusal }) if had == refusal => {
                return Ok(Change::NoOp);
            }
            (
                Self::Preparing { .. }
                | Self::Ready { .. }
                | Self::MayBeAccepted { .. }
                | Self::Bound { .. }
                | Self::Rejected { .. }
                | Self::Unresolved { .. }
                | Self::Gone { .. },
                C::Preparing { .. }
                | C::Ready
                | C::Dispatched
                | C::Seen { .. }
                | C::Bound { .. }
                | C::Rejected { .. }
                | C::Unresolved
                | C::Gone,
            ) => return Err(invalid),
        };
        *self = next;
        Ok(Change::Applied)
    }
}
