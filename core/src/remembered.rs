//! Commands and their answers, remembered across lives: the same number gets the same answer.
//!
//! Only what changed something is: what failed, or only read, may be done again.

use alloc::{boxed::Box, vec::Vec};

use serde::{Deserialize, Serialize};

use crate::{
    command::{Refusal, Reply},
    id::{ArrivalNo, ConversationId, MessageId, ThreadId, ToolCallId, TurnNo},
};

/// How many commands are remembered.
pub const REMEMBERED_COMMANDS: usize = 4_096;

/// The answer of a command that changed something.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "snake_case")]
pub enum Remembered {
    /// The conversation was opened.
    Opened {
        /// Its number.
        conversation: ConversationId,
    },
    /// The conversation had its native thread, and that its name.
    Bound {
        /// The thread.
        thread: ThreadId,
    },
    /// The message was accepted.
    Accepted {
        /// Its turn.
        turn: TurnNo,
        /// Its id.
        message: MessageId,
    },
    /// The server took the message into the running turn.
    Steered {
        /// Its id.
        message: MessageId,
    },
    /// The message goes with the next round.
    Queued {
        /// Its turn, where an earlier version knew it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        turn: Option<TurnNo>,
        /// Why the running one did not take it.
        refusal: Box<Refusal>,
    },
    /// What arrived is durable.
    Arrived {
        /// The number of the first.
        first: ArrivalNo,
        /// The number of the last.
        last: ArrivalNo,
    },
    /// A round was begun, if there was anything to begin it with.
    Begun {
        /// Its turn.
        turn: Option<TurnNo>,
    },
    /// The conversation begins with what was given.
    Preflighted {
        /// Its calls, in order.
        calls: Vec<ToolCallId>,
    },
    /// The turn was stopped.
    Interrupted,
    /// Done.
    Done,
}

impl Remembered {
    /// What is remembered of an answer, if anything is.
    #[must_use]
    pub fn of(reply: &Reply) -> Option<Self> {
        match reply {
            Reply::Opened { conversation } => Some(Self::Opened {
                conversation: *conversation,
            }),
            Reply::Bound { thread } => Some(Self::Bound {
                thread: thread.clone(),
            }),
            Reply::Accepted { turn, message } => Some(Self::Accepted {
                turn: *turn,
                message: message.clone(),
            }),
            Reply::Steered { message } => Some(Self::Steered {
                message: message.clone(),
            }),
            Reply::Queued { refusal } => Some(Self::Queued {
                turn: None,
                refusal: refusal.clone(),
            }),
            Reply::Arrived { first, last } => Some(Self::Arrived {
                first: *first,
                last: *last,
            }),
            Reply::Begun { turn } => Some(Self::Begun { turn: *turn }),
            Reply::Preflighted { calls } => Some(Self::Preflighted {
                calls: calls.clone(),
            }),
            Reply::Interrupted => Some(Self::Interrupted),
            Reply::Done => Some(Self::Done),
            Reply::AlreadyEnded { .. }
            | Reply::Boxes { .. }
            | Reply::Response(_)
            | Reply::ShutDown(_) => None,
        }
    }

    /// The answer, as it was.
    #[must_use]
    pub fn reply(&self) -> Reply {
        match self {
            Self::Opened { conversation } => Reply::Opened {
                conversation: *conversation,
            },
            Self::Bound { thread } => Reply::Bound {
                thread: thread.clone(),
            },
            Self::Accepted { turn, message } => Reply::Accepted {
                turn: *turn,
                message: message.clone(),
            },
            Self::Steered { message } => Reply::Steered {
                message: message.clone(),
            },
            Self::Queued { refusal, .. } => Reply::Queued {
                refusal: refusal.clone(),
            },
            Self::Arrived { first, last } => Reply::Arrived {
                first: *first,
                last: *last,
            },
            Self::Begun { turn } => Reply::Begun { turn: *turn },
            Self::Preflighted { calls } => Reply::Preflighted {
                calls: calls.clone(),
            },
            Self::Interrupted => Reply::Interrupted,
            Self::Done => Reply::Done,
        }
    }
}
