//! How things end: turns, connections, the protocol itself.

use alloc::{boxed::Box, format, string::String, vec::Vec};
use core::time::Duration;

use serde::{Deserialize, Serialize};

use crate::{
    RawJson,
    command::{Refusal, RpcError},
    event::Usage,
    id::{MessageId, TurnId},
    input::CloseReason,
    wire::version::Version,
};

/// A failure as the server tells it (`TurnError`).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Failure {
    /// What went wrong.
    pub kind: FailureKind,
    /// In words.
    pub message: String,
    /// The server's own class (`codexErrorInfo`), as it came.
    pub info: Option<RawJson>,
    /// More words (`additionalDetails`).
    pub details: Option<String>,
}

impl Failure {
    pub(crate) fn ours(kind: FailureKind, message: impl Into<String>) -> Self {
        Self {
            kind,
            message: message.into(),
            info: None,
            details: None,
        }
    }

    /// The word of the server's class, such as `usageLimitExceeded`.
    #[must_use]
    pub fn code(&self) -> Option<String> {
        let info = self.info.as_ref()?;
        if let Ok(code) = info.read::<String>() {
            return Some(code);
        }
        let crate::json::Members(members) = info.read().ok()?;
        members
            .into_iter()
            .next()
            .map(|(code, _)| code.into_owned())
    }

    /// Whether the model's provider did not take our credentials, or there are none: a server on
    /// which nobody is logged in tells the status 401 in one of its classes, not `unauthorized`.
    #[must_use]
    pub fn is_unauthorized(&self) -> bool {
        self.code().as_deref() == Some("unauthorized") || self.http_status() == Some(401)
    }

    /// The HTTP status that the server's class carries, where it carries one.
    #[must_use]
    pub fn http_status(&self) -> Option<u16> {
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Status {
            http_status_code: Option<u16>,
        }
        let crate::json::Members(members) = self.info.as_ref()?.read().ok()?;
        let (_, inner) = members.into_iter().next()?;
        serde_json::from_str::<Status>(inner.get())
            .ok()?
            .http_status_code
    }
}

/// What kind of failure ended a turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
#[serde(rename_all = "snake_case")]
pub enum FailureKind {
    /// The server says so.
    Server,
    /// The server broke the protocol in this turn.
    Protocol,
    /// A schema was asked for and the final text is no JSON.
    StructuredOutput,
    /// The server exchanged the model, and that was not wanted.
    Rerouted,
    /// The application left too much text unread.
    QueueFull,
}

/// The end of a turn.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct TurnEnd {
    /// How it ended.
    pub outcome: Outcome,
    /// The final text by phase where there is one, else the text so far.
    pub text: Option<String>,
    /// The last message where none was marked as the answer: a guess.
    pub candidate: Option<String>,
    /// What the turn used.
    pub usage: Option<Usage>,
    /// The server's name for the turn.
    pub native: Option<TurnId>,
    /// Our message that began it.
    pub message: Option<MessageId>,
    /// Where the end is known from.
    pub source: EndSource,
}

/// Where the end of a turn is known from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
#[serde(rename_all = "snake_case")]
pub enum EndSource {
    /// The server said it (`turn/completed`, or a refusal).
    #[default]
    Live,
    /// It was read from the history.
    Reconciled,
    /// We decided it.
    Local,
}

/// How a turn ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Outcome {
    /// The model is done.
    Completed {
        /// The final text, if there is one.
        text: Option<String>,
        /// The final text as JSON, where a schema was asked for.
        structured: Option<RawJson>,
    },
    /// It was stopped.
    Interrupted,
    /// It failed.
    Failed {
        /// Why.
        error: Failure,
    },
    /// The server never accepted the message.
    Rejected {
        /// Why.
        error: Rejection,
    },
    /// Its deadline came first.
    TimedOut,
    /// Nothing can be heard of it any more.
    Lost {
        /// Why.
        reason: LostReason,
    },
    /// What became of it cannot be told.
    Unknown {
        /// What is known.
        evidence: String,
    },
}

impl Outcome {
    /// The outcome's name in lower case.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Completed { .. } => "completed",
            Self::Interrupted => "interrupted",
            Self::Failed { .. } => "failed",
            Self::Rejected { .. } => "rejected",
            Self::TimedOut => "timed out",
            Self::Lost { .. } => "lost",
            Self::Unknown { .. } => "unknown",
        }
    }
}

/// Why a message was never accepted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[non_exhaustive]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Rejection {
    /// The server refused the turn.
    #[error(transparent)]
    Refused(Refusal),
    /// The server refused the thread.
    #[error(transparent)]
    Thread(Refusal),
    /// A model, an effort or a personality that cannot be had: nothing was sent.
    #[error(transparent)]
    Selection(crate::selection::SelectionError),
    /// The thread is not as it was asked, and the settings refuse that: nothing was sent.
    #[error("the thread is not as it was asked: {}", differences_text(.0))]
    Differs(Vec<crate::difference::Difference>),
    /// It never left.
    #[error("never sent: {0}")]
    NotSent(String),
}

fn differences_text(all: &[crate::difference::Difference]) -> String {
    let all = all.iter().map(|difference| format!("{difference}"));
    all.collect::<Vec<_>>().join(", ")
}

/// Why nothing can be heard of a turn any more.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[non_exhaustive]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum LostReason {
    /// The connection ended.
    #[error("{0}")]
    Connection(Box<EndReason>),
    /// The server did not answer the interrupt.
    #[error("the server did not answer the interrupt")]
    InterruptUnanswered,
    /// The client shut down.
    #[error("closed by us")]
    ClosedByUs,
    /// The server let the thread go.
    #[error("the server closed the thread")]
    ThreadClosed,
    /// The server has no such thread any more.
    #[error("the server has no such thread any more: {0}")]
    ThreadLost(Refusal),
    /// Another process writes the thread.
    #[error("the thread has a writer elsewhere: {0}")]
    WriterElsewhere(Refusal),
    /// The thread is idle, and its history says that the turn runs.
    #[error("the thread is idle and its history says that the turn runs")]
    NeverEnded,
}

/// How the server broke the protocol.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[non_exhaustive]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum ProtocolError {
    /// A response to a request that was never made, or that was answered already.
    #[error("response to unknown request {id}")]
    UnknownResponse {
        /// The id.
        id: String,
    },
    /// A response with both or neither of result and error, or without what it must carry.
    #[error("malformed response to {method}: {reason}")]
    BadResponse {
        /// The method of the request.
        method: String,
        /// What is wrong.
        reason: String,
    },
    /// Parameters that do not have the shape of their method.
    #[error("malformed parameters of {method}: {reason}")]
    BadParams {
        /// The method.
        method: String,
        /// What is wrong.
        reason: String,
    },
    /// A server request with the id of one that is open.
    #[error("request id {id} is in use")]
    IdInUse {
        /// The id.
        id: String,
    },
    /// A frame larger than the limit: the connection ends.
    #[error("a frame is larger than {limit} bytes")]
    FrameTooLarge {
        /// The limit.
        limit: usize,
    },
    /// Too many lines in a row that are no frames: the connection ends.
    #[error("{count} lines in a row are no frames")]
    TooMuchNoise {
        /// How many.
        count: u32,
    },
    /// A frame that names two different turns.
    #[error("{method} names two different turns")]
    TwoTurns {
        /// The method.
        method: String,
    },
    /// A request that was refused, with the words it was refused with.
    #[error("{method} was refused: {error}")]
    RequestRefused {
        /// The method.
        method: String,
        /// Our answer.
        error: RpcError,
    },
    /// A turn has more early frames than are kept.
    #[error("more than {limit} frames came before their turn was named")]
    TooManyEarlyFrames {
        /// The limit.
        limit: usize,
    },
}

/// Why the connection has ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[non_exhaustive]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum EndReason {
    /// It could not be opened, or was lost, or the process ended.
    #[error("{phase}: {reason}{}", tail(stderr_tail))]
    Closed {
        /// What the connection was at.
        phase: Phasing,
        /// What happened.
        reason: CloseReason,
        /// The last of what the child wrote to stderr.
        stderr_tail: String,
    },
    /// `initialize` was not answered in time.
    #[error("initialize: no answer within {}s{}", limit.as_secs_f32(), tail(stderr_tail))]
    HandshakeTimeout {
        /// The limit.
        limit: Duration,
        /// The last of what the child wrote to stderr.
        stderr_tail: String,
    },
    /// `initialize` was refused, or its answer makes no sense.
    #[error("initialize: {message}{}", tail(stderr_tail))]
    HandshakeRefused {
        /// Why.
        message: String,
        /// The last of what the child wrote to stderr.
        stderr_tail: String,
    },
    /// The server's version is outside the supported range.
    #[error(
        "the server is {version}; supported are {oldest} up to, not including, {first_unsupported}"
    )]
    UnsupportedVersion {
        /// The server's.
        version: Version,
        /// The oldest that is supported.
        oldest: Version,
        /// The first that is not.
        first_unsupported: Version,
    },
    /// The server broke the protocol beyond repair.
    #[error("{error}{}", tail(stderr_tail))]
    Protocol {
        /// How.
        error: ProtocolError,
        /// The last of what the child wrote to stderr.
        stderr_tail: String,
    },
    /// The server did not answer an interrupt.
    #[error("the server did not answer an interrupt")]
    Unfit,
    /// We closed it.
    #[error("closed by us")]
    ClosedByUs,
}

fn tail(stderr: &str) -> String {
    let last = stderr.trim_end();
    if last.is_empty() {
        return String::new();
    }
    let start = last.char_indices().rev().nth(511).map_or(0, |(at, _)| at);
    alloc::format!("; stderr: {}", last.get(start..).unwrap_or(last))
}

/// What a connection was at when it ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Phasing {
    /// It was being opened.
    Open,
    /// It waited for the answer of `initialize`.
    Initialize,
    /// It was ready.
    Ready,
}

impl core::fmt::Display for Phasing {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(match self {
            Self::Open => "open",
            Self::Initialize => "initialize",
            Self::Ready => "connection",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_without_login_is_told_by_either_class() {
        // 0.163.0 and 0.171.0 without login, at a provider that answers 401, end their turn with
        // the second.
        let rows = [
            (r#""unauthorized""#, true),
            (r#"{"httpConnectionFailed":{"httpStatusCode":401}}"#, true),
            (
                r#"{"responseStreamDisconnected":{"httpStatusCode":null}}"#,
                false,
            ),
            (r#"{"httpConnectionFailed":{"httpStatusCode":500}}"#, false),
            (r#""other""#, false),
        ];
        for (info, want) in rows {
            let failure = Failure {
                info: Some(RawJson::parse(info).unwrap()),
                ..Failure::ours(FailureKind::Server, "x")
            };
            assert_eq!(failure.is_unauthorized(), want, "{info}");
        }
    }
}
