//! What is written down: every intent before its frame, and what became of it.

use alloc::{boxed::Box, string::String, vec::Vec};

use serde::{Deserialize, Serialize};

use crate::{
    attachment::Attached,
    cleanup::{Action, CleanupChange, Owner},
    command::{Authorization, Settings},
    compaction::CompactionChange,
    durable::{checkpoint::Checkpoint, needs_nothing},
    event::QuestionClosedWhy,
    fork::Forked,
    id::{
        ArrivalNo, CodexHome, CommandId, ConversationId, ConversationKey, MessageId, Nonce,
        QuestionId, ToolCallId, TurnNo,
    },
    json::RawJson,
    naming::NamingChange,
    preflight::PreflightEntry,
    prompt::PromptChange,
    question::QuestionAsked,
    remembered::Remembered,
    round::RoundChange,
    selection::Selection,
    thread::CreationChange,
    time::Timestamp,
    tools::CallChange,
    transcript::{BoxBody, BoxSet},
};

/// One record of the journal. Unknown fields are refused when it is read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "snake_case")]
pub enum Record {
    /// A life of the process began.
    Start {
        /// The version of turnkeep that writes from here on.
        version: String,
        /// The seed of all chance of this life.
        seed: u64,
        /// When.
        at: Timestamp,
    },
    /// All that the records before it made; it stands first or not at all.
    Checkpoint(Box<Checkpoint>),
    /// A connection to the server came to be.
    Attached(Box<Attached>),
    /// The server told the home that it serves from.
    HomeTold {
        /// That.
        home: CodexHome,
    },
    /// The server's process is gone: it leaves no orphan.
    Detached,
    /// A conversation was opened.
    ConversationOpened {
        /// Its number.
        conversation: ConversationId,
        /// The application's name for it.
        key: ConversationKey,
        /// What its call ids are told by.
        nonce: Nonce,
        /// How it is held.
        settings: Box<Settings>,
        /// Whether user input and restarts need a binding.
        #[serde(default = "nobody", skip_serializing_if = "needs_nothing")]
        authorization: Authorization,
    },
    /// A conversation was made of another one.
    Forked(Box<Forked>),
    /// A conversation is held otherwise from here on.
    SettingsChanged {
        /// Its number.
        conversation: ConversationId,
        /// How.
        settings: Box<Settings>,
    },
    /// A conversation was closed; its key is free.
    ConversationClosed {
        /// Its number.
        conversation: ConversationId,
    },
    /// Something arrived in a conversation.
    Arrival {
        /// The conversation.
        conversation: ConversationId,
        /// The number of the first.
        first: ArrivalNo,
        /// The boxes that they become, in order.
        boxes: Vec<BoxBody>,
        /// The caller's own key.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        key: Option<String>,
    },
    /// A conversation's round goes on.
    Round {
        /// The conversation.
        conversation: ConversationId,
        /// What changed.
        change: RoundChange,
    },
    /// Boxes go with a message that is steered into a turn which the server began.
    Submission {
        /// The conversation.
        conversation: ConversationId,
        /// The message.
        message: MessageId,
        /// Every box that the thread does not hold.
        boxes: BoxSet,
    },
    /// A fresh conversation begins with this.
    Preflight {
        /// The conversation.
        conversation: ConversationId,
        /// With what.
        entries: Vec<PreflightEntry>,
    },
    /// A conversation begins no round until it is released.
    Held {
        /// The conversation.
        conversation: ConversationId,
        /// Why.
        reason: String,
    },
    /// A conversation may begin rounds again.
    Released {
        /// The conversation.
        conversation: ConversationId,
    },
    /// The native thread of a conversation is being made.
    ThreadCreation {
        /// The conversation.
        conversation: ConversationId,
        /// What changed.
        change: CreationChange,
    },
    /// The native thread of a conversation is being named.
    Naming {
        /// The conversation.
        conversation: ConversationId,
        /// What changed.
        change: NamingChange,
    },
    /// The native thread of a conversation is being compacted.
    Compaction {
        /// The conversation.
        conversation: ConversationId,
        /// What changed.
        change: CompactionChange,
    },
    /// The server, or another client, began a turn: its number is not given again.
    ServerTurn {
        /// The conversation.
        conversation: ConversationId,
        /// The turn's number.
        turn: TurnNo,
    },
    /// A message of ours.
    Prompt {
        /// Its id.
        message: MessageId,
        /// What changed.
        change: PromptChange,
    },
    /// A message that changes its thread's model, effort or personality may leave from now on.
    Selection {
        /// The conversation.
        conversation: ConversationId,
        /// The message.
        message: MessageId,
        /// What the thread then has.
        after: Box<Selection>,
    },
    /// A tool call of the model.
    ToolCall {
        /// The call.
        call: ToolCallId,
        /// What changed.
        change: CallChange,
    },
    /// The server asked something.
    QuestionAsked {
        /// The question's number.
        question: QuestionId,
        /// What it is known by.
        asked: Box<QuestionAsked>,
    },
    /// A question was answered; perhaps the answer is written.
    QuestionAnswered {
        /// The question's number.
        question: QuestionId,
        /// The result that is sent, as it is sent.
        result: RawJson,
        /// Whether a person chose it, or the application for one.
        chosen: bool,
    },
    /// A question is settled: the server retired it or its turn ended.
    QuestionSettled {
        /// The question's number.
        question: QuestionId,
        /// Why, where it had not been answered by the application.
        why: Option<QuestionClosedWhy>,
    },
    /// A command that changed something was answered.
    Command {
        /// Its number.
        id: CommandId,
        /// The answer.
        answer: Remembered,
    },
    /// What is owed to the server for threads that are no longer wanted.
    Cleanup {
        /// For whom.
        owner: Owner,
        /// What is done with the threads.
        action: Action,
        /// What changed.
        change: CleanupChange,
    },
    /// A raw request that may change the server.
    Request {
        /// The command that asked for it.
        command: CommandId,
        /// The method.
        method: String,
    },
    /// What became of a raw request.
    RequestEnded {
        /// The command that asked for it.
        command: CommandId,
        /// Its end.
        end: RequestEnd,
    },
}

/// What became of a request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "snake_case")]
pub enum RequestEnd {
    /// The server answered.
    Answered,
    /// The server refused: nothing was accepted.
    Refused {
        /// The code.
        code: i64,
    },
    /// It never left.
    NotSent,
    /// It left, and no answer came.
    Unknown,
}

/// Before there was anything to say of it nobody was asked.
const fn nobody() -> Authorization {
    Authorization::None
}

impl Record {
    /// The record's kind, as it stands in the journal.
    #[must_use]
    pub const fn kind(&self) -> &'static str {
        match self {
            Self::Start { .. } => "start",
            Self::Checkpoint(_) => "checkpoint",
            Self::Attached(_) => "attached",
            Self::HomeTold { .. } => "home_told",
            Self::Detached => "detached",
            Self::ConversationOpened { .. } => "conversation_opened",
            Self::Forked(_) => "forked",
            Self::SettingsChanged { .. } => "settings_changed",
            Self::ConversationClosed { .. } => "conversation_closed",
            Self::Arrival { .. } => "arrival",
            Self::Round { .. } => "round",
            Self::Submission { .. } => "submission",
            Self::Preflight { .. } => "preflight",
            Self::Held { .. } => "held",
            Self::Released { .. } => "released",
            Self::ThreadCreation { .. } => "thread_creation",
            Self::Naming { .. } => "naming",
            Self::Compaction { .. } => "compaction",
            Self::ServerTurn { .. } => "server_turn",
            Self::Prompt { .. } => "prompt",
            Self::Selection { .. } => "selection",
            Self::ToolCall { .. } => "tool_call",
            Self::QuestionAsked { .. } => "question_asked",
            Self::QuestionAnswered { .. } => "question_answered",
            Self::QuestionSettled { .. } => "question_settled",
            Self::Command { .. } => "command",
            Self::Cleanup { .. } => "cleanup",
            Self::Request { .. } => "request",
            Self::RequestEnded { .. } => "request_ended",
        }
    }
}
