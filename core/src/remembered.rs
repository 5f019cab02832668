//! Commands and their answers, remembered across lives: the same number gets the same answer.
//!
//! Only what changed something is: what failed, or only read, may be done again.

use alloc::boxed::Box;

use serde::{Deserialize, Serialize};

use crate::{
    command::{Refusal, Reply},
    id::{ConversationId, MessageId, TurnNo},
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
    /// The message goes with a turn of its own.
    Queued {
        /// That turn.
        turn: TurnNo,
        /// Why the running one did not take it.
        refusal: Box<Refusal>,
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
            Reply::Accepted { turn, message } => Some(Self::Accepted {
                turn: *turn,
                message: message.clone(),
            }),
            Reply::Steered { message } => Some(Self::Steered {
                message: message.clone(),
            }),
            Reply::Queued { turn, refusal } => Some(Self::Queued {
                turn: *turn,
                refusal: refusal.clone(),
            }),
            Reply::Interrupted => Some(Self::Interrupted),
            Reply::Done => Some(Self::Done),
            Reply::AlreadyEnded { .. } | Reply::Response(_) | Reply::ShutDown(_) => None,
        }
    }

    /// The answer, as it was.
    #[must_use]
    pub fn reply(&self) -> Reply {
        match self {
            Self::Opened { conversation } => Reply::Opened {
                conversation: *conversation,
            },
            Self::Accepted { turn, message } => Reply::Accepted {
                turn: *turn,
                message: message.clone(),
            },
            Self::Steered { message } => Reply::Steered {
                message: message.clone(),
            },
            Self::Queued { turn, refusal } => Reply::Queued {
                turn: *turn,
                refusal: refusal.clone(),
            },
            Self::Interrupted => Reply::Interrupted,
            Self::Done => Reply::Done,
        }
    }
}
