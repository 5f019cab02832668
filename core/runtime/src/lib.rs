//! What every runtime of turnkeep shares: handles, queues, the driver, the journal's files, the
//! recording, the process tree and the transports, over the traits of `futures-io`.
//!
//! An application uses the crate of its runtime, `turnkeep-tokio` or `turnkeep-async-std`, which has
//! all of this by the same names. Another runtime implements [`Runtime`]: about a hundred lines that
//! run tasks, wait, start processes and open sockets.
//!
//! One task owns the protocol's state machine ([`core`]); handles speak to it by channel. Telling
//! an application something never waits for it: text that is not read grows into larger pieces, and
//! past a limit of bytes the turn fails. No conversation waits for the reader of another.

#![forbid(unsafe_code)]
#![deny(missing_docs)]

#[cfg(not(unix))]
compile_error!("turnkeep stops process groups and needs Unix; Windows is not served yet");

#[cfg(test)]
extern crate self as turnkeep_runtime;

mod clock;
mod config;
mod driver;
mod error;
mod event;
#[cfg(feature = "fake")]
pub mod fake;
mod gate;
mod handle;
mod hub;
mod journal;
mod life;
mod listeners;
mod queue;
mod recording;
mod refreshes;
mod request;
mod runtime;
#[cfg(test)]
mod testing;
mod transport;

pub use turnkeep_core as core;
pub use turnkeep_core::{
    CommandError, Delta, InputItem, Outcome, RawJson, Settings, Text, Tool, ToolCallId, ToolResult,
    TurnEnd, TurnNo, TurnUpdate,
    command::{
        Answer, ApprovalPolicy, Authorization, AutoBegin, Binding, Children, Differences, Models,
        Questions, Rendering, Sandbox, SteerWhen, TokenAnswer, ToolContent, ToolDelivery,
    },
    config::TokenRefreshes,
    event::{Item, Question, Recovered, Status, ToolCall, Usage},
    id::{ArrivalNo, BoxId},
    preflight::PreflightItem,
    secret::{Secret, SecretJson},
    transcript::{BoxBody, TranscriptBox, box_type},
};
#[cfg(feature = "protocol")]
pub use turnkeep_protocol as protocol;

#[doc(hidden)]
pub use crate::journal::BareJournal;

#[cfg(feature = "websocket")]
pub use crate::config::{TokenSource, WebSocketAddress, WebSocketConfig, WebSocketConfigError};
#[cfg(feature = "protocol")]
pub use crate::handle::inventory::{AccountHandle, ModelsError, Threads};
#[cfg(feature = "structured")]
pub use crate::handle::structured::{
    AnswerError, SendTyped, SendTypedError, StrictSchemaError, TypedTurn, strict_schema,
};
#[cfg(feature = "protocol")]
pub use crate::handle::typed::{Rows, Typed, TypedError, TypedFrame, TypedRequest};
pub use crate::{
    config::{
        ChildConfig, ClientConfig, JournalConfig, JournalDirectory, MakeStore, ServerConfig,
        StreamPair, StreamsConfig,
    },
    error::{
        ClaimError, OpenError, OpenJournalError, RequestError, SendError, ShutdownError,
        StartError, TurnError,
    },
    event::{ConversationEvent, TurnEvent},
    handle::{
        Message,
        client::{Client, ConnectionEvents, OpenConversation, RawRequest},
        conversation::{AcceptBoxes, Conversation, ConversationEvents, RestartRound, SendMessage},
        fork::ForkConversation,
        refreshes::{TokenRefreshRequest, TokenRefreshRequests},
        turn::{Interrupted, Steered, Turn},
    },
    journal::{
        Group, Holder, JOURNAL_FILE, JournalReport, LOCK_FILE, Line, MemoryJournal, Opened, Reader,
        Store, TornTail, journal_files,
    },
    life::ShutdownSummary,
    recording::RecordingSummary,
    runtime::{BoxFuture, BoxRead, BoxStream, BoxWrite, ChildProcess, ReadWrite, Runtime},
    transport::MARK as SERVER_MARK,
};
