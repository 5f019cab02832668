//! The name that a conversation's thread has on the server.
//!
//! A thread without a turn or a name dies with its server, so that a name is a change like any other:
//! asked for in a record before its frame, and known once the server has answered.

use alloc::string::{String, ToString};

use serde::{Deserialize, Serialize};

use crate::{
    error::{Change, InvalidTransition},
    id::is_clean,
};

/// What the server knows of a thread's name.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "snake_case")]
pub enum Naming {
    /// We gave it none.
    #[default]
    Unnamed,
    /// `thread/name/set` may have left. The same name again changes nothing more.
    Asked {
        /// The name.
        name: String,
    },
    /// The server has it.
    Named {
        /// The name.
        name: String,
    },
}

/// A step of that.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "snake_case")]
pub enum NamingChange {
    /// `thread/name/set` may leave from now on.
    Asked {
        /// The name.
        name: String,
    },
    /// The server answered.
    Given,
    /// The server refused, or the request never left.
    Refused,
}

impl NamingChange {
    const fn name(&self) -> &'static str {
        match self {
            Self::Asked { .. } => "asked",
            Self::Given => "given",
            Self::Refused => "refused",
        }
    }

    /// Checks what types cannot tell.
    ///
    /// # Errors
    ///
    /// In words, what is wrong.
    pub fn validate(&self) -> Result<(), String> {
        match self {
            Self::Asked { name } => valid(name),
            Self::Given | Self::Refused => Ok(()),
        }
    }
}

fn valid(name: &str) -> Result<(), String> {
    match is_clean(name) {
        true => Ok(()),
        false => Err("the name is empty or has white space at its ends".to_string()),
    }
}

impl Naming {
    /// The state's name.
    #[must_use]
    pub const fn state(&self) -> &'static str {
        match self {
            Self::Unnamed => "Unnamed",
            Self::Asked { .. } => "Asked",
            Self::Named { .. } => "Named",
        }
    }

    /// Whether the server has told that the thread has this name.
    #[must_use]
    pub fn is(&self, wanted: &str) -> bool {
        matches!(self, Self::Named { name } if name == wanted)
    }

    /// Checks what types cannot tell.
    ///
    /// # Errors
    ///
    /// In words, what is wrong.
    pub fn validate(&self) -> Result<(), String> {
        match self {
            Self::Unnamed => Ok(()),
            Self::Asked { name } | Self::Named { name } => valid(name),
        }
    }

    /// Takes a change. Unchanged on error.
    ///
    /// # Errors
    ///
    /// Nothing was asked.
    pub fn on(&mut self, change: &NamingChange) -> Result<Change, InvalidTransition> {
        use NamingChange as C;
        let next = match (&*self, change) {
            (Self::Asked { name: had }, C::Asked { name }) if had == name => {
                return Ok(Change::NoOp);
            }
            (Self::Unnamed | Self::Asked { .. } | Self::Named { .. }, C::Asked { name }) => {
                Self::Asked { name: name.clone() }
            }
            (Self::Asked { name }, C::Given) => Self::Named { name: name.clone() },
            // Which name the thread has where another was refused, nobody said.
            (Self::Asked { .. }, C::Refused) => Self::Unnamed,
            (Self::Unnamed | Self::Named { .. }, C::Given | C::Refused) => {
                return Err(InvalidTransition {
                    machine: "naming",
                    state: self.state(),
                    event: change.name(),
                });
            }
        };
        *self = next;
        Ok(Change::Applied)
    }
}
