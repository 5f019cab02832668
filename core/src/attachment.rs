//! How the server is reached, by which process of ours, and from which home it serves.
//!
//! A crash of ours leaves a child that nobody reads any more. Its process id alone does not name it,
//! since the system gives ids again: the start time goes with it.

use alloc::{
    boxed::Box,
    string::{String, ToString},
};

use serde::{Deserialize, Serialize};

use crate::{
    error::{Change, InvalidTransition},
    id::{CodexHome, is_clean},
};

/// Where the server is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "snake_case")]
pub enum Endpoint {
    /// A child of ours, over its standard input and output.
    Spawn,
    /// A socket of the network.
    Tcp {
        /// The host.
        host: String,
        /// The port, not 0.
        port: u16,
    },
    /// A socket of the file system.
    Unix {
        /// Its path.
        path: String,
    },
    /// A pair of streams that the application brought.
    Stream,
}

/// A process that we started. It is the same one only if both agree.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Child {
    /// The process id, not 0.
    pub pid: u32,
    /// When it started, as the system tells it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start_time: Option<u64>,
}

/// A connection that came to be.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Attached {
    /// Where the server is.
    pub endpoint: Endpoint,
    /// The server's process, where it is a child of ours.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub child: Option<Child>,
    /// Instructions that the application gave for it, carried as they came.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub instructions: Option<String>,
}

impl Attached {
    /// Checks what types cannot tell.
    ///
    /// # Errors
    ///
    /// In words, what is wrong.
    pub fn validate(&self) -> Result<(), String> {
        let wrong = match &self.endpoint {
            Endpoint::Spawn | Endpoint::Stream => None,
            Endpoint::Tcp { host, .. } if !is_clean(host) => {
                Some("the host is empty or has white space at its ends")
            }
            Endpoint::Tcp { port, .. } => (*port == 0).then_some("the port is 0"),
            Endpoint::Unix { path } => path.is_empty().then_some("the path is empty"),
        };
        let wrong = wrong.or(match &self.child {
            Some(child) if child.pid == 0 => Some("the process id is 0"),
            Some(_) | None => None,
        });
        let wrong = wrong.or_else(|| match &self.instructions {
            Some(text) if !is_clean(text) => {
                Some("the instructions are empty or have white space at their ends")
            }
            Some(_) | None => None,
        });
        wrong.map_or(Ok(()), |reason| Err(reason.to_string()))
    }
}

/// What is known of the server that we speak to.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "snake_case")]
pub enum Attachment {
    /// None was ever reached.
    #[default]
    Never,
    /// One was reached. After a crash of ours a child may live on.
    Attached {
        /// How.
        to: Box<Attached>,
        /// The last home that a server told; that of an earlier one until this one tells.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        home: Option<CodexHome>,
    },
    /// The last one's process is gone.
    Detached {
        /// Where it was.
        endpoint: Endpoint,
        /// The last home that a server told.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        home: Option<CodexHome>,
    },
}

/// A change of the attachment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AttachmentChange {
    /// A connection came to be; the process before it, if it was a child of ours, is gone.
    Attached(Box<Attached>),
    /// The server told its home (`initialize.codexHome`).
    HomeTold(CodexHome),
    /// The process is gone.
    Detached,
}

impl AttachmentChange {
    const fn name(&self) -> &'static str {
        match self {
            Self::Attached(_) => "attached",
            Self::HomeTold(_) => "home_told",
            Self::Detached => "detached",
        }
    }
}

impl Attachment {
    /// The state's name.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Never => "Never",
            Self::Attached { .. } => "Attached",
            Self::Detached { .. } => "Detached",
        }
    }

    /// Where the last server was.
    #[must_use]
    pub fn endpoint(&self) -> Option<&Endpoint> {
        match self {
            Self::Never => None,
            Self::Attached { to, .. } => Some(&to.endpoint),
            Self::Detached { endpoint, .. } => Some(endpoint),
        }
    }

    /// The last home that a server told.
    #[must_use]
    pub const fn home(&self) -> Option<&CodexHome> {
        match self {
            Self::Never => None,
            Self::Attached { home, .. } | Self::Detached { home, .. } => home.as_ref(),
        }
    }

    /// The child of ours that may still live.
    #[must_use]
    pub fn orphan(&self) -> Option<Child> {
        match self {
            Self::Attached { to, .. } => to.child,
            Self::Never | Self::Detached { .. } => None,
        }
    }

    /// Takes a change. Unchanged on error.
    ///
    /// # Errors
    ///
    /// A home or an end was told where no server is reached.
    pub fn on(&mut self, change: &AttachmentChange) -> Result<Change, InvalidTransition> {
        use AttachmentChange as C;
        let invalid = InvalidTransition {
            machine: "attachment",
            state: self.name(),
            event: change.name(),
        };
        let next = match (&*self, change) {
            (Self::Attached { to, .. }, C::Attached(same)) if to == same => {
                return Ok(Change::NoOp);
            }
            (Self::Never | Self::Attached { .. } | Self::Detached { .. }, C::Attached(to)) => {
                Self::Attached {
                    to: to.clone(),
                    home: self.home().cloned(),
                }
            }
            (Self::Attached { home, .. }, C::HomeTold(same)) if home.as_ref() == Some(same) => {
                return Ok(Change::NoOp);
            }
            (Self::Attached { to, .. }, C::HomeTold(home)) => Self::Attached {
                to: to.clone(),
                home: Some(home.clone()),
            },
            (Self::Attached { to, home }, C::Detached) => Self::Detached {
                endpoint: to.endpoint.clone(),
                home: home.clone(),
            },
            (Self::Detached { .. }, C::Detached) => return Ok(Change::NoOp),
            (Self::Never, C::HomeTold(_) | C::Detached)
            | (Self::Detached { .. }, C::HomeTold(_)) => {
                return Err(invalid);
            }
        };
        *self = next;
        Ok(Change::Applied)
    }

    /// Checks what types cannot tell.
    ///
    /// # Errors
    ///
    /// In words, what is wrong.
    pub fn validate(&self) -> Result<(), String> {
        match self {
            Self::Never => Ok(()),
            Self::Attached { to, .. } => to.validate(),
            Self::Detached { endpoint, .. } => Attached {
                endpoint: endpoint.clone(),
                child: None,
                instructions: None,
            }
            .validate(),
        }
    }
}
