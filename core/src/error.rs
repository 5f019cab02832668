//! Errors by whose fault they are. Those of the caller are in [`command`](crate::command), those of
//! the server in [`event`](crate::event).

use alloc::string::String;

/// A state does not take an event: nothing has changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{machine} in {state} does not take {event}")]
pub struct InvalidTransition {
    /// Which machine.
    pub machine: &'static str,
    /// The state it is in.
    pub state: &'static str,
    /// The event it got.
    pub event: &'static str,
}

/// Whether an event changed a state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// It did.
    Applied,
    /// It was there before: nothing has changed.
    NoOp,
}

/// Why records make no state.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RecordError {
    /// A record does not fit the state that the records before it make.
    #[error("record {kind}: {source}")]
    Transition {
        /// The record's kind.
        kind: &'static str,
        /// What does not fit.
        source: InvalidTransition,
    },
    /// A record speaks of something that no record before it made.
    #[error("record {kind} speaks of {what}, which does not exist")]
    Missing {
        /// The record's kind.
        kind: &'static str,
        /// What it speaks of.
        what: String,
    },
    /// A record makes something that exists.
    #[error("record {kind} makes {what}, which exists")]
    Exists {
        /// The record's kind.
        kind: &'static str,
        /// What it makes.
        what: String,
    },
    /// A record contradicts itself.
    #[error("record {kind}: {reason}")]
    Invalid {
        /// The record's kind.
        kind: &'static str,
        /// What is wrong.
        reason: String,
    },
}
