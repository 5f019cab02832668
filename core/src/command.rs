//! What the application asks for, and what it is answered.

mod error;

use alloc::{borrow::ToOwned, boxed::Box, string::String, vec::Vec};
use core::time::Duration;

use serde::{Deserialize, Serialize};

use crate::{
    RawJson,
    cleanup::Owner,
    id::{
        ArrivalNo, BoxId, ConversationId, ConversationKey, MessageId, QuestionId, RefreshId,
        ThreadId, ToolCallId, TurnNo,
    },
    preflight::PreflightItem,
    secret::{Secret, SecretJson},
    transcript::{BoxBody, TranscriptBox},
};

pub use self::error::{BusyWhy, CommandError, Refusal, RefusalClass, RpcError};
pub(crate) use crate::settings::RawJsonOr;
pub use crate::settings::{
    ApprovalPolicy, Authorization, AutoBegin, Children, Differences, Models, Questions, Rendering,
    Sandbox, Settings, SettingsError, SteerWhen, Tool, ToolDelivery, ToolKind,
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
    /// Holds a conversation in another way from here on. What a message carries changes at any time.
    /// What a resume carries (working directory, approval policy, sandbox, base instructions) changes
    /// only between rounds: the thread is let go, and the next round resumes it. All else that a
    /// thread is made with (tools, developer instructions, …) changes only between rounds too: the
    /// next one is served by a new native thread, which is told the whole transcript.
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
    /// Answers the server's request for new tokens. Nothing of it is recorded.
    RefreshToken {
        /// The request.
        refresh: RefreshId,
        /// The tokens, or why there are none.
        answer: TokenAnswer,
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
    /// Makes the native thread of a conversation now, and names it (`thread/name/set`): one without
    /// a turn or a name dies with its server. Answered with [`Reply::Bound`], at once where it is so.
    Materialise {
        /// The conversation.
        conversation: ConversationId,
    },
    /// Makes a conversation of an idle one, under a key of its own: with a copy of its boxes, a fork of
    /// its native thread where that holds anything (`thread/fork`), and nothing open. Answered with
    /// [`Reply::Opened`] once the thread is there. The same fork again is the same conversation.
    Fork {
        /// The conversation.
        conversation: ConversationId,
        /// The key of the new one.
        key: ConversationKey,
        /// How that is held, else as the other one. What a thread is made with must be the same.
        settings: Option<Box<Settings>>,
    },
    /// Has the server make the history of the thread shorter (`thread/compact/start`). Answered when
    /// the turn that does it is over; until then the conversation is busy and takes no steer.
    Compact {
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
    /// The same with parameters that are secret: they stand in no record, recording or log. What the
    /// server answers is recorded as it comes.
    SecretRequest {
        /// The method.
        method: String,
        /// The parameters.
        params: SecretJson,
        /// Whether it may change the server: then it is recorded, without its parameters, before it
        /// is sent.
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

/// The answer to a request for new tokens.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum TokenAnswer {
    /// The tokens.
    Tokens {
        /// The access token: it goes to the server and nowhere else.
        access_token: Secret,
        /// The account (`chatgptAccountId`), which must be the one that was asked for.
        account: String,
        /// The plan (`chatgptPlanType`).
        plan: Option<String>,
    },
    /// There are none.
    Failed {
        /// Why; the server is told.
        message: String,
    },
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
    /// The conversation has its native thread, and that its name.
    Bound {
        /// The thread.
        thread: ThreadId,
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
