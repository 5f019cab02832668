//! What can go wrong, one type for each operation.

use std::{io, path::PathBuf};

use turnkeep_core::{
    CommandError, ConfigError, MessageId, ToolCallId, TurnEnd, TurnNo,
    codec::journal::JournalError,
    error::RecordError,
    event::{EndReason, QuestionKind},
    id::QuestionId,
};

use crate::journal::Holder;

/// Why a client did not start. Its server, if there was one, is stopped and reaped.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// The configuration is refused.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// What is said of the WebSocket is refused.
    #[cfg(feature = "websocket")]
    #[error(transparent)]
    WebSocket(#[from] crate::config::WebSocketConfigError),
    /// The journal cannot be used.
    #[error(transparent)]
    Journal(#[from] OpenJournalError),
    /// The recording cannot be written.
    #[error("cannot record to {}: {source}", path.display())]
    Recording {
        /// The file.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// There is no connection to a server: the reason tells the phase, the exit status and the end
    /// of stderr, as far as they are known.
    #[error(transparent)]
    Connection(Box<EndReason>),
    /// The journal failed, the client has halted.
    #[error("the journal failed, the client has halted")]
    Halted,
    /// The client's task ended: its runtime was shut down, or it panicked.
    #[error("the client's task has ended")]
    Stopped,
}

/// Why a journal cannot be opened. Nothing in it was changed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenJournalError {
    /// Another client holds it.
    #[error("{} is in use{}", path.display(), by(*holder))]
    Locked {
        /// The lock file.
        path: PathBuf,
        /// The process that holds it, where that can be told.
        holder: Option<Holder>,
    },
    /// What it holds is damaged, of a version that is not known, or no journal.
    #[error("{}: {source}", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        source: JournalError,
    },
    /// A batch is whole, and its records make no state.
    #[error("{}: offset {offset}, batch {index}: {source}", path.display())]
    Record {
        /// The file.
        path: PathBuf,
        /// Where the batch begins, in bytes.
        offset: u64,
        /// How many batches stand before it in the file.
        index: u64,
        /// What does not fit.
        source: RecordError,
    },
    /// A store of one's own refuses.
    #[error("the journal's store: {source}")]
    Store {
        /// What it says.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The system refuses.
    #[error("cannot {action} {}: {source}", path.display())]
    Io {
        /// What was tried, such as `create`.
        action: &'static str,
        /// The file or directory.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
}

fn by(holder: Option<Holder>) -> String {
    holder.map_or_else(String::new, |holder| format!(" by {holder}"))
}

/// Why something that was asked for was not done.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RequestError {
    /// The command was refused, or its fate is unknown.
    #[error(transparent)]
    Command(#[from] CommandError),
    /// The client's task ended: its runtime was shut down, or it panicked. What became of the
    /// command is not known.
    #[error("the client's task has ended")]
    Stopped,
}

impl RequestError {
    /// Whether it is certain that nothing was accepted, so that the same may be asked again.
    #[must_use]
    pub fn is_safe_to_retry(&self) -> bool {
        match self {
            Self::Command(error) => error.is_safe_to_retry(),
            Self::Stopped => false,
        }
    }
}

/// Why a conversation was not opened.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// The key is empty, longer than 256 bytes, or has white space at its ends.
    #[error("conversation key {key:?} is not 1 to 256 bytes without white space at the ends")]
    BadKey {
        /// The key.
        key: String,
    },
    /// The client refuses.
    #[error(transparent)]
    Request(#[from] RequestError),
}

/// Why there is no turn to follow after a message was sent.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SendError {
    /// The client refuses.
    #[error(transparent)]
    Request(#[from] RequestError),
    /// The message was accepted before, under the same key, and its turn cannot be had.
    #[error("the message was accepted before: {0}")]
    Before(ClaimError),
    /// The message was accepted before, under the same key, and its turn is over: its end was taken
    /// and acknowledged, or nobody wanted it any more.
    #[error("the message was accepted before, and its turn {turn} has ended")]
    AlreadyEnded {
        /// The turn.
        turn: TurnNo,
        /// The message.
        message: MessageId,
    },
}

/// Why a turn cannot be taken up.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ClaimError {
    /// The conversation has no such turn.
    #[error("no turn {turn}")]
    Unknown {
        /// The turn.
        turn: TurnNo,
    },
    /// Another handle holds it.
    #[error("turn {turn} is held by another handle")]
    Taken {
        /// The turn.
        turn: TurnNo,
    },
    /// It has ended, and its end was taken.
    #[error("turn {turn} is over")]
    Over {
        /// The turn.
        turn: TurnNo,
    },
    /// The client has ended.
    #[error(transparent)]
    Client(#[from] RequestError),
}

/// Why a turn gave no final response.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TurnError {
    /// The turn ended otherwise than completed.
    #[error("the turn {}", describe(end))]
    NotCompleted {
        /// Its end.
        end: Box<TurnEnd>,
    },
    /// The turn completed without a text.
    #[error("the turn completed without a text")]
    NoText {
        /// Its end.
        end: Box<TurnEnd>,
    },
    /// The turn waits for the result of a tool call that nobody has taken: take it with
    /// [`Turn::next`](crate::Turn::next) and answer it with [`Turn::respond`](crate::Turn::respond).
    #[error("the turn waits for the result of tool {tool:?}")]
    CallWaits {
        /// The call.
        call: ToolCallId,
        /// The tool.
        tool: String,
    },
    /// The turn waits for the answer to a question that nobody has taken: take it with
    /// [`Turn::next`](crate::Turn::next) and answer it with [`Turn::answer`](crate::Turn::answer).
    #[error("the turn waits for the answer to question {question}")]
    QuestionWaits {
        /// The question.
        question: QuestionId,
        /// What it is about.
        kind: Box<QuestionKind>,
    },
    /// The journal failed, the client has halted; what became of the turn is not known.
    #[error("the journal failed, the client has halted")]
    Halted,
    /// The client's task ended: its runtime was shut down, or it panicked.
    #[error("the client's task has ended")]
    Stopped,
}

fn describe(end: &TurnEnd) -> String {
    use turnkeep_core::Outcome;
    match &end.outcome {
        Outcome::Completed { .. } => "completed".into(),
        Outcome::Interrupted => "was interrupted".into(),
        Outcome::Failed { error } => format!("failed: {}", error.message),
        Outcome::Rejected { error } => format!("was rejected: {error}"),
        Outcome::TimedOut => "ran past its deadline".into(),
        Outcome::Lost { reason } => format!("was lost: {reason}"),
        Outcome::Unknown { evidence } => format!("ended in an unknown way: {evidence}"),
        other => format!("ended {}", other.name()),
    }
}

/// Why a shutdown did not end in order.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ShutdownError {
    /// The journal had failed: what was open is not settled in it.
    #[error("the journal failed, the client had halted")]
    Halted,
    /// The client's task ended before: its runtime was shut down, or it panicked.
    #[error("the client's task has ended")]
    Stopped,
}
