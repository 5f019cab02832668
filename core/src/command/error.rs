//! Why a command was not carried out, and how the server refuses.

use alloc::{borrow::ToOwned, boxed::Box, string::String};

use serde::{Deserialize, Serialize};

use super::SettingsError;
use crate::{
    RawJson,
    event::Outcome,
    id::{ConversationId, ConversationKey, QuestionId, RefreshId, ToolCallId, TurnNo},
};

/// A refusal of the server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("the server refused {method}: {error}")]
#[serde(deny_unknown_fields)]
pub struct Refusal {
    /// The method of the request.
    pub method: String,
    /// What kind of refusal it is.
    pub class: RefusalClass,
    /// The server's own words.
    pub error: RpcError,
}

/// An error of JSON-RPC.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{message} ({code})")]
#[serde(deny_unknown_fields)]
pub struct RpcError {
    /// The code.
    pub code: i64,
    /// The message.
    pub message: String,
    /// More, if there is any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data: Option<RawJson>,
}

impl RpcError {
    /// The server is overloaded and did not take the request.
    pub const OVERLOADED: i64 = -32_001;

    /// Whether the same request may be sent again after a pause.
    #[must_use]
    pub const fn is_retryable(&self) -> bool {
        self.code == Self::OVERLOADED
    }
}

/// The kinds of refusals, from a closed table of exact shapes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum RefusalClass {
    /// `thread not found: ID`, with the id that was asked.
    ThreadNotFound,
    /// `thread not loaded: ID`, with the id that was asked.
    ThreadNotLoaded,
    /// `no rollout found for thread id ID`, with the id that was asked.
    NoRollout,
    /// The thread has no user message yet.
    NotMaterialized,
    /// Another process writes the thread.
    ActiveWriterElsewhere,
    /// The thread is closing; the request may be tried again.
    Closing,
    /// No turn is running.
    NoActiveTurn,
    /// Another turn is running.
    TurnMismatch {
        /// The one that is.
        found: String,
    },
    /// The running turn takes no messages (a review or a compaction).
    NotSteerable,
    /// The server does not know the method.
    UnknownMethod,
    /// `initialize` has not been answered yet.
    NotInitialized,
    /// The method needs the experimental API.
    MissingCapability,
    /// The server cannot load its configuration.
    BadConfiguration,
    /// Nobody is logged in.
    NotLoggedIn,
    /// The server is overloaded, and stayed so through all tries.
    Overloaded,
    /// None of these.
    Unclassified,
}

/// Why a command was not carried out. Nothing has changed then, except where a variant says so.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, thiserror::Error)]
#[non_exhaustive]
pub enum CommandError {
    /// The settings are refused.
    #[error(transparent)]
    Settings(SettingsError),
    /// The conversation has a thread, and only another thread takes these settings.
    #[error("conversation {conversation} has a thread that was made with other settings")]
    ThreadIsMade {
        /// The conversation.
        conversation: ConversationId,
    },
    /// A model, an effort or a personality that cannot be had.
    #[error(transparent)]
    Selection(crate::selection::SelectionError),
    /// The key is open with other settings.
    #[error("conversation {key} is open with other settings")]
    OpenDifferently {
        /// The key.
        key: ConversationKey,
    },
    /// Another conversation is open under the key.
    #[error("conversation {key} is open already")]
    KeyTaken {
        /// The key.
        key: ConversationKey,
    },
    /// There is no such conversation.
    #[error("no conversation {conversation}")]
    UnknownConversation {
        /// The number.
        conversation: ConversationId,
    },
    /// The conversation has no native thread, or it could not be had.
    #[error("conversation {conversation} has no thread: {evidence}")]
    NoThread {
        /// The conversation.
        conversation: ConversationId,
        /// What is known.
        evidence: String,
    },
    /// The turn that was to compact the thread did not complete.
    #[error("the compaction of conversation {conversation} ended {}", outcome.name())]
    NotCompacted {
        /// The conversation.
        conversation: ConversationId,
        /// How it ended.
        outcome: Box<Outcome>,
    },
    /// There is no such turn.
    #[error("no turn {turn}")]
    UnknownTurn {
        /// The number.
        turn: TurnNo,
    },
    /// The conversation is busy with something else.
    #[error("conversation {conversation} is busy: {why}")]
    Busy {
        /// The conversation.
        conversation: ConversationId,
        /// With what.
        why: BusyWhy,
    },
    /// A box of this type does not come from outside.
    #[error("a box of type {box_type:?} does not come from outside")]
    BadBoxType {
        /// The type.
        box_type: String,
    },
    /// As many arrivals wait as may.
    #[error("the mailbox of conversation {conversation} is full")]
    MailboxFull {
        /// The conversation.
        conversation: ConversationId,
    },
    /// The conversation acts on nobody's behalf, or on that of another.
    #[error("conversation {conversation} is not bound, or bound otherwise")]
    Unauthorized {
        /// The conversation.
        conversation: ConversationId,
    },
    /// The conversation is not stalled.
    #[error("conversation {conversation} is not stalled")]
    NotStalled {
        /// The conversation.
        conversation: ConversationId,
    },
    /// The stalled round cannot begin again: a call or a message of the model stands in it.
    #[error("the stalled round of conversation {conversation} holds what the model did")]
    ProviderActionAccepted {
        /// The conversation.
        conversation: ConversationId,
    },
    /// The stalled round cannot begin again: its message was or may have been accepted.
    #[error("the message of the stalled round of conversation {conversation} may be accepted")]
    MayBeAccepted {
        /// The conversation.
        conversation: ConversationId,
    },
    /// The call has its result: nothing more is said of it.
    #[error("call {call} has its result")]
    CallAnswered {
        /// The call.
        call: ToolCallId,
    },
    /// The conversation has boxes, or had its preflight.
    #[error("conversation {conversation} is not fresh")]
    NotFresh {
        /// The conversation.
        conversation: ConversationId,
    },
    /// The conversation has no such tool.
    #[error("no tool {name:?}")]
    UnknownTool {
        /// The name.
        name: String,
    },
    /// The caller's key stands for another message.
    #[error("key {key:?} was used for another message")]
    KeyReused {
        /// The key.
        key: String,
    },
    /// The input is empty or malformed.
    #[error("bad input: {reason}")]
    BadInput {
        /// What is wrong.
        reason: String,
    },
    /// The schema is no object, empty, or larger than 64 KiB.
    #[error("the output schema is not an object of 1 to 65536 bytes with members")]
    BadSchema,
    /// A deadline is zero.
    #[error("the deadline is zero")]
    BadDeadline,
    /// No turn runs that could be steered; nothing was accepted.
    #[error("no active turn")]
    NoActiveTurn,
    /// The call does not exist.
    #[error("no call {call}")]
    UnknownCall {
        /// The call.
        call: ToolCallId,
    },
    /// The call has another result already.
    #[error("call {call} was answered differently")]
    AnsweredDifferently {
        /// The call.
        call: ToolCallId,
    },
    /// The call was closed: interrupted, past its limit, abandoned or withdrawn.
    #[error("call {call} is closed")]
    CallClosed {
        /// The call.
        call: ToolCallId,
    },
    /// The question does not exist or is settled.
    #[error("no open question {question}")]
    UnknownQuestion {
        /// The question.
        question: QuestionId,
    },
    /// The answer does not fit the question, which stays open.
    #[error("bad answer: {reason}")]
    BadAnswer {
        /// What is wrong.
        reason: String,
    },
    /// The request for tokens does not exist, is answered, or its time is over.
    #[error("no open token refresh {refresh}")]
    UnknownRefresh {
        /// The request.
        refresh: RefreshId,
    },
    /// The tokens are of another account than asked. The request stays open until its time is over.
    #[error("tokens of account {given:?} where those of {asked:?} were asked")]
    OtherAccount {
        /// The account that the server asked for.
        asked: String,
        /// The account that was given.
        given: String,
    },
    /// The server refused: nothing was accepted.
    #[error(transparent)]
    Refused(Box<Refusal>),
    /// The request never left.
    #[error("{method} was not sent")]
    NotSent {
        /// The method.
        method: String,
    },
    /// The request left and its fate is not known: no answer within its limit, or no connection.
    #[error("the fate of {method} is unknown: {evidence}")]
    Unknown {
        /// The method.
        method: String,
        /// What is known.
        evidence: String,
    },
    /// The server did not answer the interrupt; the turn ended `Lost`.
    #[error("the server did not answer the interrupt")]
    InterruptUnanswered,
    /// The connection has ended.
    #[error("the connection has ended: {reason}")]
    Disconnected {
        /// Why.
        reason: Box<crate::event::EndReason>,
    },
    /// The client is shutting down.
    #[error("closed by us")]
    ClosedByUs,
    /// The journal failed; nothing is done any more.
    #[error("the journal failed, the client has halted")]
    Halted,
    /// The command's number is older than what is remembered.
    #[error("the answer of this command is forgotten")]
    Forgotten,
    /// The message is larger than a frame may be.
    #[error("{size} bytes are more than a frame may have")]
    FrameTooLarge {
        /// Its size.
        size: usize,
    },
    /// A space of numbers has run out.
    #[error("no {what} numbers are left")]
    Exhausted {
        /// Which.
        what: String,
    },
}

/// What a conversation is busy with.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, thiserror::Error)]
#[non_exhaustive]
pub enum BusyWhy {
    /// A round is open.
    #[error("a round is open")]
    Round,
    /// A round is about to begin.
    #[error("a round is about to begin")]
    Triggered,
    /// A round failed: restart or dismiss it.
    #[error("its last round failed ({message}); dismiss it{}", if *restartable { " or restart it" } else { "" })]
    Stalled {
        /// Why it failed.
        message: String,
        /// Whether it may be restarted.
        restartable: bool,
    },
    /// It is held.
    #[error("it is held ({reason})")]
    Held {
        /// Why.
        reason: String,
    },
    /// It is closing.
    #[error("it is closing")]
    Closing,
    /// A call that its first round waits for has no result.
    #[error("a blocking call has no result")]
    Preflight,
    /// Calls of it have no result yet.
    #[error("calls have no result yet")]
    Calls,
    /// Its thread is being compacted.
    #[error("its thread is being compacted")]
    Compacting,
    /// It is being forked, or it is a fork whose thread is on its way.
    #[error("a fork is on its way")]
    Forking,
    /// A turn runs, or what became of one is not known yet, or its thread is on its way.
    #[error("a turn or its thread is open")]
    Turn,
}

impl CommandError {
    /// Whether it is certain that nothing was accepted, so that the same may be asked again.
    #[must_use]
    pub fn is_safe_to_retry(&self) -> bool {
        !matches!(
            self,
            Self::Unknown { .. } | Self::InterruptUnanswered | Self::ClosedByUs | Self::Halted
        )
    }

    pub(crate) fn exhausted(what: &str) -> Self {
        Self::Exhausted {
            what: what.to_owned(),
        }
    }
}
