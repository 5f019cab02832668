//! What the application asks for, and what it is answered.

use alloc::{borrow::ToOwned, boxed::Box, string::String, vec::Vec};
use core::time::Duration;

use serde::{Deserialize, Serialize};

use crate::{
    RawJson,
    cleanup::Owner,
    id::{
        ArrivalNo, BoxId, ConversationId, ConversationKey, MessageId, QuestionId, ToolCallId,
        TurnNo,
    },
    preflight::PreflightItem,
    transcript::{BoxBody, TranscriptBox},
};

pub(crate) use crate::settings::RawJsonOr;
pub use crate::settings::{
    ApprovalPolicy, Authorization, AutoBegin, Children, Questions, Rendering, Sandbox, Settings,
    SettingsError, SteerWhen, Tool, ToolDelivery, ToolKind,
};

/// A command. Its [`CommandId`](crate::CommandId) is the caller's.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Command {
    /// Takes a conversation under its key. Writes nothing to the server.
    Open {
        /// The application's name for it.
        key: ConversationKey,
        /// How it is held.
        settings: Box<Settings>,
    },
    /// Holds a conversation in another way from here on. What a thread is made with (instructions,
    /// tools, …) changes only between rounds: the next one is served by a new native thread, which is
    /// told the whole transcript.
    Change {
        /// The conversation.
        conversation: ConversationId,
        /// How it is held.
        settings: Box<Settings>,
    },
    /// Takes boxes into the transcript, at any time: at once where no round is open, else into the
    /// mailbox. All but a Tool Message make a round, or go into the one that runs.
    Accept {
        /// The conversation.
        conversation: ConversationId,
        /// What arrived, in order; all of it or nothing.
        boxes: Vec<BoxBody>,
        /// Further wishes.
        options: Box<AcceptOptions>,
    },
    /// Begins a round with all that the model has not got, if there is anything.
    Begin {
        /// The conversation.
        conversation: ConversationId,
    },
    /// Begins a stalled round again, where nothing of it was accepted.
    Restart {
        /// The conversation.
        conversation: ConversationId,
        /// Bound first, where there is one.
        binding: Option<Binding>,
    },
    /// Leaves a stall: what the agent said so far is its response, its open calls fail, what arrived
    /// is appended, and the next trigger begins a round.
    Dismiss {
        /// The conversation.
        conversation: ConversationId,
    },
    /// Keeps a conversation from beginning a round until it is released. The first reason stands.
    Hold {
        /// The conversation.
        conversation: ConversationId,
        /// Why.
        reason: String,
    },
    /// Lets a held conversation begin again.
    Release {
        /// The conversation.
        conversation: ConversationId,
    },
    /// Says on whose behalf the conversation acts from here on.
    Bind {
        /// The conversation.
        conversation: ConversationId,
        /// On whose.
        binding: Binding,
    },
    /// Clears that.
    Unbind {
        /// The conversation.
        conversation: ConversationId,
    },
    /// Begins a fresh conversation with messages of the system and calls, without a round.
    Preflight {
        /// The conversation.
        conversation: ConversationId,
        /// With what, in order.
        items: Vec<PreflightItem>,
    },
    /// Says something of an open call before its result. It makes no round.
    ToolMessage {
        /// The call.
        call: ToolCallId,
        /// What.
        text: String,
    },
    /// Reads boxes of the transcript.
    Read {
        /// The conversation.
        conversation: ConversationId,
        /// The first box that is wanted.
        from: BoxId,
        /// How many are wanted at most.
        limit: u32,
    },
    /// Accepts a user message and begins a turn with it.
    Send {
        /// The conversation.
        conversation: ConversationId,
        /// What the user says.
        input: Vec<InputItem>,
        /// Further wishes.
        options: Box<SendOptions>,
    },
    /// Adds a user message to a running turn.
    Steer {
        /// The turn.
        turn: TurnNo,
        /// What the user says.
        input: Vec<InputItem>,
    },
    /// Stops a turn; answered when the stop is settled.
    Interrupt {
        /// The turn.
        turn: TurnNo,
    },
    /// Gives a turn up: its calls are refused, it is interrupted, its events are dropped but the end.
    Abandon {
        /// The turn.
        turn: TurnNo,
    },
    /// Gives the result of a tool call.
    Respond {
        /// The call.
        call: ToolCallId,
        /// Its result.
        result: ToolResult,
    },
    /// Answers a question of the server.
    Answer {
        /// The question.
        question: QuestionId,
        /// The answer; it is checked before it is recorded.
        answer: Answer,
    },
    /// Says that the end of a turn has arrived with the application.
    Acknowledge {
        /// The turn.
        turn: TurnNo,
    },
    /// Lets a conversation go (`thread/unsubscribe`); its key is free afterwards.
    Close {
        /// The conversation.
        conversation: ConversationId,
    },
    /// Gives an idle conversation a new native thread with its next turn: what the model knew of the
    /// old one, which stays where it is, it does not know any more.
    Reset {
        /// The conversation.
        conversation: ConversationId,
    },
    /// Stops the background terminals of threads, those of their descendants too, and lets the
    /// threads go; the next turn resumes them. Answered when it is durable: a
    /// [`CleanedUp`](crate::event::ConnectionEvent::CleanedUp) tells that it is done.
    Detach {
        /// Of which conversations.
        owner: Owner,
    },
    /// Puts threads away (`thread/archive`) and closes their conversations. Answered when it is
    /// durable, as with `Detach`; kept until it is done, across connections and crashes.
    Archive {
        /// Of which conversations.
        owner: Owner,
    },
    /// Deletes threads (`thread/delete`) and closes their conversations: ends that were not
    /// acknowledged are not told again. Answered and kept as with `Archive`.
    Delete {
        /// Of which conversations.
        owner: Owner,
    },
    /// Sends any request and gives its answer back.
    Request {
        /// The method.
        method: String,
        /// The parameters.
        params: RawJson,
        /// Whether it may change the server: then it is recorded before it is sent.
        effect: RequestEffect,
    },
    /// Ends everything in order: open calls are withdrawn, open questions answered negatively,
    /// every wait ends, the connection closes.
    Shutdown,
}

/// Whether a raw request changes the server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum RequestEffect {
    /// It may: its intent is durable before it is sent.
    #[default]
    Changes,
    /// It only reads.
    Reads,
}

/// One part of a message: the schema's `UserInput`, kept as it is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct InputItem(RawJson);

#[derive(Serialize)]
#[serde(tag = "type", rename_all = "camelCase")]
enum NativeInput<'a> {
    Text { text: &'a str },
    Image { url: &'a str },
    LocalImage { path: &'a str },
    Audio { url: &'a str },
    LocalAudio { path: &'a str },
    Skill { name: &'a str, path: &'a str },
    Mention { name: &'a str, path: &'a str },
}

impl InputItem {
    fn native(input: &NativeInput<'_>) -> Self {
        // Only maps with keys that are no strings fail to be written.
        Self(RawJson::of(input).expect("an input item has string keys only"))
    }

    /// A text.
    #[must_use]
    pub fn text(text: &str) -> Self {
        Self::native(&NativeInput::Text { text })
    }

    /// An image at a URL, `data:` URLs included.
    #[must_use]
    pub fn image(url: &str) -> Self {
        Self::native(&NativeInput::Image { url })
    }

    /// An image in a file that the server can read.
    #[must_use]
    pub fn local_image(path: &str) -> Self {
        Self::native(&NativeInput::LocalImage { path })
    }

    /// Audio at a URL.
    #[must_use]
    pub fn audio(url: &str) -> Self {
        Self::native(&NativeInput::Audio { url })
    }

    /// Audio in a file that the server can read.
    #[must_use]
    pub fn local_audio(path: &str) -> Self {
        Self::native(&NativeInput::LocalAudio { path })
    }

    /// A skill by name and path.
    #[must_use]
    pub fn skill(name: &str, path: &str) -> Self {
        Self::native(&NativeInput::Skill { name, path })
    }

    /// A mention by name and path.
    #[must_use]
    pub fn mention(name: &str, path: &str) -> Self {
        Self::native(&NativeInput::Mention { name, path })
    }

    /// Any object with a `type`, as the server's schema has it.
    ///
    /// # Errors
    ///
    /// The value is no object or its `type` is no text.
    pub fn raw(value: RawJson) -> Result<Self, CommandError> {
        #[derive(Deserialize)]
        struct Head {
            #[serde(rename = "type")]
            _type: String,
        }
        match crate::json::from_object::<Head>(value.get()) {
            Ok(_) => Ok(Self(value)),
            Err(_) => Err(CommandError::BadInput {
                reason: "an input item is an object with a type".to_owned(),
            }),
        }
    }

    /// The JSON as it is sent.
    #[must_use]
    pub fn json(&self) -> &RawJson {
        &self.0
    }
}

impl From<&str> for InputItem {
    fn from(text: &str) -> Self {
        Self::text(text)
    }
}

/// Further wishes for a turn.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
#[non_exhaustive]
pub struct SendOptions {
    /// The caller's own key: the same key again is the same message.
    pub key: Option<String>,
    /// The JSON schema of the final answer, an object of at most 64 KiB
    /// (`turn/start.outputSchema`).
    pub output_schema: Option<RawJson>,
    /// How long the turn may take; past it the turn ends `TimedOut` and is interrupted.
    pub deadline: Option<Duration>,
    /// Bound first, where there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub binding: Option<Binding>,
}

impl SendOptions {
    /// No wishes.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Says that the message is the caller's own `key`.
    #[must_use]
    pub fn key(mut self, key: impl Into<String>) -> Self {
        self.key = Some(key.into());
        self
    }

    /// Asks for an answer of a JSON schema.
    #[must_use]
    pub fn output_schema(mut self, schema: RawJson) -> Self {
        self.output_schema = Some(schema);
        self
    }

    /// Limits the time of the turn.
    #[must_use]
    pub fn deadline(mut self, limit: Duration) -> Self {
        self.deadline = Some(limit);
        self
    }

    /// Binds the conversation first.
    #[must_use]
    pub fn binding(mut self, binding: Binding) -> Self {
        self.binding = Some(binding);
        self
    }
}

/// Further wishes for an arrival.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
#[non_exhaustive]
pub struct AcceptOptions {
    /// The caller's own key: the same key again is the same arrival.
    pub key: Option<String>,
    /// Bound first, where there is one.
    pub binding: Option<Binding>,
}

impl AcceptOptions {
    /// No wishes.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Says that the arrival is the caller's own `key`.
    #[must_use]
    pub fn key(mut self, key: impl Into<String>) -> Self {
        self.key = Some(key.into());
        self
    }

    /// Binds the conversation first.
    #[must_use]
    pub fn binding(mut self, binding: Binding) -> Self {
        self.binding = Some(binding);
        self
    }
}

/// On whose behalf a conversation acts: opaque, compared by equality, kept in memory only.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Binding {
    /// Who.
    pub subject: String,
    /// As what.
    pub profile: String,
    /// Under which rules.
    pub policy: String,
}

impl Binding {
    /// A subject, its profile and its policy.
    #[must_use]
    pub fn new(
        subject: impl Into<String>,
        profile: impl Into<String>,
        policy: impl Into<String>,
    ) -> Self {
        Self {
            subject: subject.into(),
            profile: profile.into(),
            policy: policy.into(),
        }
    }
}

/// The result of a tool call.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct ToolResult {
    /// Whether the tool did what it was asked.
    pub success: bool,
    /// What the model is told.
    pub content: Vec<ToolContent>,
    /// The application's own data, kept with the result.
    pub metadata: Option<Metadata>,
}

impl ToolResult {
    /// The tool did it, and this is what came out.
    #[must_use]
    pub fn ok(text: impl Into<String>) -> Self {
        Self {
            success: true,
            content: alloc::vec![ToolContent::Text(text.into())],
            metadata: None,
        }
    }

    /// The tool did not do it, and this is why.
    #[must_use]
    pub fn failed(text: impl Into<String>) -> Self {
        Self {
            success: false,
            ..Self::ok(text)
        }
    }

    /// Adds a part.
    #[must_use]
    pub fn with(mut self, part: ToolContent) -> Self {
        self.content.push(part);
        self
    }

    /// Keeps the application's own data with the result.
    #[must_use]
    pub fn metadata(mut self, metadata: Metadata) -> Self {
        self.metadata = Some(metadata);
        self
    }
}

/// A part of a tool's result (`DynamicToolCallOutputContentItem`).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
#[serde(rename_all = "snake_case")]
pub enum ToolContent {
    /// A text.
    Text(String),
    /// An image at a URL, `data:` URLs included.
    Image(String),
    /// Audio at a URL.
    Audio(String),
}

/// Opaque data of the application.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Metadata {
    /// What it is.
    pub metadata_type: String,
    /// The data.
    pub contents: String,
}

/// The answer to a question.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum Answer {
    /// Command and file: `accept`. Permissions: all that was asked, for the turn.
    Accept,
    /// Command and file: `acceptForSession`. Permissions: all that was asked, for the session.
    AcceptForSession,
    /// The negative default of the question.
    Decline,
    /// Command and file: `cancel`, which ends the turn. Form: `cancel`.
    Cancel,
    /// A decision that was offered, in the server's words.
    Decision(RawJson),
    /// Permissions no wider than asked, an object.
    Permissions(RawJson),
    /// User input: one answer for each question id, each a list of texts.
    Input(Vec<(String, Vec<String>)>),
    /// A form's contents, an object.
    Form(RawJson),
}

/// What a command is answered.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum Reply {
    /// The conversation is open.
    Opened {
        /// Its number.
        conversation: ConversationId,
    },
    /// The message is durable and its turn begins.
    Accepted {
        /// The turn.
        turn: TurnNo,
        /// The message's id, `clientUserMessageId` on the wire.
        message: MessageId,
    },
    /// The server took the message into the running turn.
    Steered {
        /// The message's id.
        message: MessageId,
    },
    /// The message is accepted and goes with the round that follows the running one.
    Queued {
        /// Why the server did not take it into the running turn.
        refusal: Box<Refusal>,
    },
    /// What arrived is durable.
    Arrived {
        /// The number of the first.
        first: ArrivalNo,
        /// The number of the last.
        last: ArrivalNo,
    },
    /// A round was begun, if there was anything to begin it with.
    Begun {
        /// Its turn.
        turn: Option<TurnNo>,
    },
    /// The conversation begins with what was given.
    Preflighted {
        /// Its calls, in order.
        calls: Vec<ToolCallId>,
    },
    /// Boxes of the transcript.
    Boxes {
        /// Those that were asked for, as far as there are any.
        boxes: Vec<TranscriptBox>,
        /// The last box of the transcript, 0 where there is none.
        last: BoxId,
    },
    /// The turn was stopped.
    Interrupted,
    /// The turn had ended before.
    AlreadyEnded {
        /// The word for its end, such as `completed`.
        outcome: String,
    },
    /// Done: abandoned, responded, answered, acknowledged, closed.
    Done,
    /// The answer of a raw request.
    Response(RawJson),
    /// Everything is closed.
    ShutDown(ShutdownReport),
}

/// What an orderly shutdown found open.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct ShutdownReport {
    /// Turns that were running and ended `Lost`.
    pub turns: u32,
    /// Tool calls that were withdrawn.
    pub calls: u32,
    /// Questions that got their negative default.
    pub questions: u32,
    /// Commands that were still waiting.
    pub commands: u32,
}

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
    /// There is no such conversation.
    #[error("no conversation {conversation}")]
    UnknownConversation {
        /// The number.
        conversation: ConversationId,
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
