//! Durable conversations with `codex app-server`, as a state machine without IO.
//!
//! ```text
//!             Input                       Effects
//!   command ─────────┐              ┌──────────────► Append  (journal)
//!   bytes   ─────────┤   Machine    ├──────────────► Send    (server)
//!   ack     ─────────┼──► step ─────┼──────────────► Emit    (application)
//!   time    ─────────┘              └──────────────► Open, Close, deadline
//! ```
//!
//! [`Machine::step`] is the only way in, but for [`Machine::receive`], the same for a read that is only
//! borrowed; what they return is the only way out. The machine reads no clock,
//! opens no file and knows no thread: the same configuration, seed and inputs give the same effects,
//! byte by byte. A runtime moves bytes between effects and the world; see `turnkeep-tokio`.
//!
//! The contract of a runtime:
//!
//! - Perform effects in order. Every [`Effect::Append`] is one atomic write; answer with
//!   [`Input::Appended`] once it is as durable as its [`Durability`] says.
//! - Hand every read in whole, as it came. The machine cuts it into lines.
//! - Tell what only you know: the exit status, the end of stderr, the process.
//! - Send a [`Input::Tick`] at or after the [`Deadline`]. An early one does nothing.

#![cfg_attr(not(test), no_std)]
#![forbid(unsafe_code)]
#![deny(missing_docs)]

extern crate alloc;

pub mod attachment;
mod bug;
pub mod cleanup;
pub mod codec;
pub mod command;
pub mod compaction;
pub mod config;
pub mod difference;
pub mod durable;
pub mod effect;
pub mod error;
pub mod event;
pub mod fork;
mod hash;
mod history;
pub mod id;
mod input;
pub mod json;
mod machine;
pub mod mailbox;
pub mod naming;
mod outbox;
mod outcome;
pub mod preflight;
pub mod prompt;
pub mod question;
pub mod record;
mod recovery;
pub mod remembered;
mod rng;
pub mod round;
pub mod secret;
pub mod selection;
mod settings;
mod text;
pub mod thread;
mod time;
mod timers;
pub mod tools;
pub mod transcript;
mod wire;

pub use crate::{
    command::{Command, CommandError, InputItem, Reply, SendOptions, Settings, Tool, ToolResult},
    config::{Config, ConfigError, Limits},
    durable::Durable,
    effect::{Batch, Deadline, Durability, Effect, Effects, Frame},
    event::{Delta, Event, Outcome, TurnEnd, TurnUpdate},
    id::{
        ArrivalNo, BoxId, CallId, CodexHome, CommandId, ConversationId, ConversationKey, Epoch,
        FrameSeq, ItemId, JournalSeq, MessageId, Nonce, QuestionId, RefreshId, RequestId, ThreadId,
        ToolCallId, TurnId, TurnNo,
    },
    input::{CloseReason, Closed, Input, Peer},
    json::RawJson,
    machine::{Counters, Machine},
    record::Record,
    recovery::Recovery,
    secret::{Secret, SecretJson},
    settings::{Authorization, AutoBegin, Rendering, SteerWhen, ToolDelivery},
    text::Text,
    time::Timestamp,
    timers::Timer,
    transcript::{BoxBody, TranscriptBox},
    wire::version::Version,
};

#[cfg(feature = "bugs")]
pub use crate::bug::Bug;

#[doc(hidden)]
pub use crate::wire::again::{Again, Both, read_again, read_both};

/// The version of turnkeep.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");

/// The versions of Codex that this version is tested against.
pub const TESTED_CODEX: [Version; 2] = [Version::new(0, 163, 0), Version::new(0, 171, 0)];
