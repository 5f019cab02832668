//! What happened: everything that comes into the machine.

use alloc::{boxed::Box, string::String, vec::Vec};

use serde::{Deserialize, Serialize};

use crate::{
    command::Command,
    id::{CommandId, ConversationId, Epoch, FrameSeq, JournalSeq},
};

/// One input of [`Machine::step`](crate::Machine::step). Any input is legal at any time.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Input {
    /// The application asks for something.
    Command {
        /// The caller's number: the same number twice gets the same answer.
        id: CommandId,
        /// What is asked.
        command: Command,
    },
    /// The connection that [`Effect::Open`](crate::Effect::Open) asked for is there.
    Opened(Epoch, Peer),
    /// A whole read, as it came.
    Received(Epoch, Vec<u8>),
    /// A frame was not sent: a promise that not one byte of it was written.
    SendFailed(Epoch, FrameSeq),
    /// The connection is gone, or never came to be.
    Closed(Epoch, Box<Closed>),
    /// Every batch up to this one is as durable as it asked to be.
    Appended {
        /// The last of them.
        through: JournalSeq,
    },
    /// The journal failed. Nothing is done any more.
    AppendFailed,
    /// The queue of a conversation's consumer is past its cap of bytes.
    QueueFull(ConversationId),
    /// Time has passed.
    Tick,
}

/// What a runtime knows of the other side.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
#[non_exhaustive]
pub struct Peer {
    /// The process id of a child of ours.
    pub pid: Option<u32>,
    /// When that child started, as the system tells it: with the pid it names the process.
    pub start_time: Option<u64>,
    /// Where the server is, for those that are no child.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub endpoint: Option<crate::attachment::Endpoint>,
    /// The transport: `child`, `tcp`, `unix`, `stream`.
    pub transport: String,
}

impl Peer {
    /// Whether it is a child process of ours, made for this connection: the one before it is gone.
    #[must_use]
    pub fn is_child(&self) -> bool {
        self.transport == "child"
    }

    /// A child process.
    #[must_use]
    pub fn child(pid: u32, start_time: Option<u64>) -> Self {
        Self {
            pid: Some(pid),
            start_time,
            endpoint: None,
            transport: "child".into(),
        }
    }

    /// A server behind a socket: its process may be the one that an earlier connection spoke with.
    #[must_use]
    pub fn socket(endpoint: crate::attachment::Endpoint) -> Self {
        use crate::attachment::Endpoint;
        let transport = match &endpoint {
            Endpoint::Spawn => "child",
            Endpoint::Tcp { .. } => "tcp",
            Endpoint::Unix { .. } => "unix",
            Endpoint::Stream => "stream",
        };
        Self {
            pid: None,
            start_time: None,
            endpoint: Some(endpoint),
            transport: transport.into(),
        }
    }
}

/// How a connection ended, with all that only the runtime knows.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct Closed {
    /// What happened.
    pub reason: CloseReason,
    /// The last of what a child wrote to stderr.
    #[serde(default)]
    pub stderr_tail: String,
}

impl Closed {
    /// Takes the reason and the end of stderr.
    #[must_use]
    pub fn new(reason: CloseReason, stderr_tail: String) -> Self {
        Self {
            reason,
            stderr_tail,
        }
    }
}

/// Why a connection ended. A lost socket and a dead process are different things.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum CloseReason {
    /// The child process ended.
    #[error("{}", exit_text(*code, *signal))]
    Exited {
        /// Its exit code.
        code: Option<i32>,
        /// The signal that ended it.
        signal: Option<i32>,
    },
    /// The other side closed its end and the process, if any, lives.
    #[error("the server closed the stream")]
    Eof,
    /// The connection was cut.
    #[error("the connection was lost: {0}")]
    Lost(String),
    /// The program was not found; the names that were tried.
    #[error("{} not found", .0.join(", "))]
    NotFound(Vec<String>),
    /// The connection could not be opened.
    #[error("cannot open the connection: {0}")]
    OpenFailed(String),
    /// The server denied the opening (HTTP 401 or 403 in answer to the WebSocket's upgrade): the
    /// same again would be denied again.
    #[error("the server denied the connection: {}", denied_text(*status))]
    Denied {
        /// The HTTP status.
        status: u16,
    },
    /// We closed it, on [`Effect::Close`](crate::Effect::Close).
    #[error("closed by us")]
    ByUs,
}

fn denied_text(status: u16) -> String {
    let meaning = match status {
        401 => ": a bearer token is missing or wrong",
        403 => ": it is not open to us",
        _ => "",
    };
    alloc::format!("HTTP status {status}{meaning}")
}

fn exit_text(code: Option<i32>, signal: Option<i32>) -> String {
    match (code, signal) {
        (_, Some(signal)) => alloc::format!("the server was killed by signal {signal}"),
        (Some(code), None) => alloc::format!("the server exited with code {code}"),
        (None, None) => "the server exited".into(),
    }
}
