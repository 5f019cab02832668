//! A compaction: asked for once, over when its own turn is.
//!
//! `thread/compact/start` carries no id of ours, and its answer is not its end. The turn that stood
//! last in the thread is kept, so that the history tells which turn behind it is the compaction.

use alloc::boxed::Box;

use serde::{Deserialize, Serialize};

use crate::{
    error::{Change, InvalidTransition},
    event::Outcome,
    id::{CommandId, TurnId},
    record::RequestEnd,
};

/// How far the compaction of a thread is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "snake_case")]
pub enum Compaction {
    /// None is under way.
    #[default]
    None,
    /// `thread/compact/start` may have left: it is never sent again for this.
    Asked {
        /// The command that asked for it.
        command: CommandId,
        /// The thread's last turn before it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        after: Option<TurnId>,
    },
    /// The server runs it.
    Running {
        /// The command that asked for it.
        command: CommandId,
        /// Its turn.
        turn: TurnId,
    },
}

/// A step of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "snake_case")]
pub enum CompactionChange {
    /// `thread/compact/start` may leave from now on.
    Asked {
        /// The command that asked for it.
        command: CommandId,
        /// The thread's last turn before it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        after: Option<TurnId>,
    },
    /// The server named its turn. A second one replaces it: the first was somebody else's.
    Began {
        /// That.
        turn: TurnId,
    },
    /// It came to an end, or never was.
    Ended {
        /// How.
        end: CompactionEnd,
    },
}

/// How a compaction ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "snake_case")]
pub enum CompactionEnd {
    /// The request ended so that no turn came of it, or none is known.
    Request(RequestEnd),
    /// Its turn ended so.
    Turn(Box<Outcome>),
}

impl CompactionChange {
    const fn name(&self) -> &'static str {
        match self {
            Self::Asked { .. } => "asked",
            Self::Began { .. } => "began",
            Self::Ended { .. } => "ended",
        }
    }
}

impl Compaction {
    /// The state's name.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self {
            Self::None => "None",
            Self::Asked { .. } => "Asked",
            Self::Running { .. } => "Running",
        }
    }

    /// The command that asked for it, while it is under way.
    #[must_use]
    pub const fn command(&self) -> Option<CommandId> {
        match self {
            Self::None => None,
            Self::Asked { command, .. } | Self::Running { command, .. } => Some(*command),
        }
    }

    /// Takes a change. Unchanged on error.
    ///
    /// # Errors
    ///
    /// A step was skipped, or a second compaction began.
    pub fn on(&mut self, change: &CompactionChange) -> Result<Change, InvalidTransition> {
        use CompactionChange as C;
        let next = match (&*self, change) {
            (Self::None, C::Asked { command, after }) => Self::Asked {
                command: *command,
                after: after.clone(),
            },
            (Self::Running { turn: had, .. }, C::Began { turn }) if had == turn => {
                return Ok(Change::NoOp);
            }
            // Somebody else's turn began first.
            (Self::Asked { command, .. } | Self::Running { command, .. }, C::Began { turn }) => {
                Self::Running {
                    command: *command,
                    turn: turn.clone(),
                }
            }
            (Self::Asked { .. } | Self::Running { .. }, C::Ended { .. }) => Self::None,
            (Self::None, C::Began { .. } | C::Ended { .. })
            | (Self::Asked { .. } | Self::Running { .. }, C::Asked { .. }) => {
                return Err(InvalidTransition {
                    machine: "compaction",
                    state: self.name(),
                    event: change.name(),
                });
            }
        };
        *self = next;
        Ok(Change::Applied)
    }
}
