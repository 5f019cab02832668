//! Durable conversations with `codex app-server` on tokio.
//!
//! ```no_run
//! use turnkeep_tokio::{Authorization, Client, ClientConfig};
//!
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let config = ClientConfig::codex().authorization(Authorization::None);
//! let client = Client::spawn(config).await?;
//! let mut turn = client.conversation("demo").await?.send("hello").await?;
//! println!("{}", turn.final_response().await?);
//! # Ok(())
//! # }
//! ```
//!
//! A [`Client`] runs one server. A [`Conversation`] is known by the application's own key. A
//! [`Turn`] is a stream of [`TurnEvent`]s, and the wait for its end.
//!
//! One task owns the protocol's state machine ([`core`]); handles speak to it by channel. Telling
//! an application something never waits for it: text that is not read grows into larger pieces, and
//! past a limit of bytes the turn fails. No conversation waits for the reader of another.

#![forbid(unsafe_code)]
#![deny(missing_docs)]

#[cfg(not(unix))]
compile_error!("turnkeep-tokio stops process groups and needs Unix; Windows is not served yet");

/// The README's examples compile.
#[cfg(doctest)]
#[doc = include_str!("../../README.md")]
struct Readme;

mod clock;
mod config;
mod driver;
mod error;
mod event;
#[cfg(feature = "fake")]
pub mod fake;
mod handle;
mod hub;
mod journal;
mod life;
mod queue;
mod recording;
mod request;
mod transport;

pub use turnkeep_core as core;
pub use turnkeep_core::{
    CommandError, Delta, InputItem, Outcome, RawJson, Settings, Tool, ToolCallId, ToolResult,
    TurnEnd, TurnNo, TurnUpdate,
    command::{
        Answer, ApprovalPolicy, Authorization, AutoBegin, Binding, Questions, Rendering, Sandbox,
        SteerWhen, ToolContent, ToolDelivery,
    },
    event::{Item, Question, Recovered, Status, ToolCall, Usage},
    id::{ArrivalNo, BoxId},
    preflight::PreflightItem,
    transcript::{BoxBody, TranscriptBox, box_type},
};

#[doc(hidden)]
pub use crate::journal::BareJournal;

pub use crate::{
    config::{ChildConfig, ClientConfig, JournalConfig, JournalDirectory, MakeStore},
    error::{
        ClaimError, OpenError, OpenJournalError, RequestError, SendError, ShutdownError,
        StartError, TurnError,
    },
    event::{ConversationEvent, TurnEvent},
    handle::{
        BoxFuture, Message,
        client::{Client, ConnectionEvents, OpenConversation, RawRequest},
        conversation::{AcceptBoxes, Conversation, ConversationEvents, RestartRound, SendMessage},
        turn::{Interrupted, Steered, Turn},
    },
    journal::{
        Group, Holder, JOURNAL_FILE, JournalReport, LOCK_FILE, Line, MemoryJournal, Opened, Reader,
        Store, TornTail, journal_files,
    },
    life::ShutdownSummary,
    recording::RecordingSummary,
    transport::MARK as SERVER_MARK,
};
