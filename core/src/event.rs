//! What the application is told.

use alloc::{boxed::Box, string::String, vec::Vec};
use core::time::Duration;

use serde::{Deserialize, Serialize};

use crate::{
    RawJson,
    command::{CommandError, Refusal, Reply, RpcError},
    id::{
        CommandId, ConversationId, Epoch, ItemId, MessageId, QuestionId, ThreadId, ToolCallId,
        TurnId, TurnNo,
    },
    input::CloseReason,
    wire::version::Version,
};

/// An event. Those of one conversation come in order.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub enum Event {
    /// A piece of streamed text.
    Delta(Delta),
    /// Something about a turn.
    Turn(Box<TurnEvent>),
    /// Something about a conversation.
    Conversation(Box<ConversationEvent>),
    /// Something about the connection.
    Connection(Box<ConnectionEvent>),
    /// The answer of a command.
    Answer {
        /// The command.
        id: CommandId,
        /// What it is answered.
        answer: Box<Result<Reply, CommandError>>,
    },
    /// The journal failed. Nothing is done any more; no further event follows.
    Halted,
}

impl Event {
    /// The conversation that the event belongs to.
    #[must_use]
    pub fn conversation(&self) -> Option<ConversationId> {
        match self {
            Self::Delta(delta) => Some(delta.conversation),
            Self::Turn(event) => Some(event.conversation),
            Self::Conversation(event) => Some(event.conversation),
            Self::Connection(_) | Self::Answer { .. } | Self::Halted => None,
        }
    }
}

/// A piece of streamed text, or several neighbouring pieces in one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Delta {
    /// The conversation.
    pub conversation: ConversationId,
    /// The turn.
    pub turn: TurnNo,
    /// How many frames of the server are in it, from 1.
    pub frames: u32,
    /// What the text is.
    pub kind: DeltaKind,
    /// The part of the item (`contentIndex`, `summaryIndex`), 0 where there are none.
    pub part: u16,
    /// The item.
    pub item: ItemId,
    /// The text.
    pub text: String,
}

/// What a streamed text is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[non_exhaustive]
pub enum DeltaKind {
    /// The agent's message (`item/agentMessage/delta`).
    Agent,
    /// Reasoning (`item/reasoning/textDelta`).
    Reasoning,
    /// The summary of reasoning (`item/reasoning/summaryTextDelta`).
    ReasoningSummary,
    /// A plan (`item/plan/delta`).
    Plan,
    /// Output of a command (`item/commandExecution/outputDelta`).
    CommandOutput,
    /// Output of a file change (`item/fileChange/outputDelta`).
    FileChangeOutput,
}

/// Something about a turn.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct TurnEvent {
    /// The conversation.
    pub conversation: ConversationId,
    /// The turn.
    pub turn: TurnNo,
    /// What.
    pub update: TurnUpdate,
}

/// What happened in a turn.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub enum TurnUpdate {
    /// The server runs it (`turn/started`, or the first frame that names it).
    Started {
        /// The server's name for it.
        native: TurnId,
        /// Who began it.
        origin: Origin,
    },
    /// The server took our message into a turn that was running already.
    Folded {
        /// That turn.
        into: TurnId,
    },
    /// An item began (`item/started`).
    ItemStarted(Item),
    /// An item is complete: its contents override what was streamed (`item/completed`).
    ItemCompleted(Item),
    /// The plan changed (`turn/plan/updated`), as the server tells it.
    Plan(RawJson),
    /// The diff of all changes so far (`turn/diff/updated`).
    Diff(String),
    /// A tool is called and waits for its result.
    ToolCall(ToolCall),
    /// A call was malformed and was answered with a failure.
    MalformedCall(Box<MalformedCall>),
    /// A tool of kind `Message` brought a message.
    AgentMessage {
        /// The tool.
        tool: String,
        /// The message.
        text: String,
    },
    /// A call is closed; a result that comes now is refused.
    CallClosed {
        /// The call.
        call: ToolCallId,
        /// Why.
        why: CallClosedWhy,
    },
    /// The server asks something and waits.
    Question(Box<Question>),
    /// A question got its negative default, as nobody serves it.
    QuestionDeclined(Box<Question>),
    /// A question is settled without the application: answered elsewhere, withdrawn or ended.
    QuestionClosed {
        /// The question.
        question: QuestionId,
        /// Why.
        why: QuestionClosedWhy,
    },
    /// What was used.
    Usage(Usage),
    /// A warning of the server; the turn goes on.
    Warning(Warning),
    /// Nothing was heard of the turn for the quiet limit.
    Quiet {
        /// Calls that wait for the application.
        open_calls: u32,
        /// Questions that wait for the application.
        open_questions: u32,
        /// Items that began and are not complete.
        open_items: u32,
    },
    /// A steered message was answered but is in no item: it goes with a turn of its own.
    SteerUnrecorded {
        /// The message.
        message: MessageId,
        /// The turn it goes with, unless this one failed.
        follow_up: Option<TurnNo>,
    },
    /// A frame of the turn that this version does not know.
    Unrecognized(Unrecognized),
    /// The turn is over; nothing of it follows.
    Ended(Box<TurnEnd>),
    /// What was learnt of a turn after it was told as ended.
    Corrected(Box<TurnEnd>),
}

/// Who began a turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Origin {
    /// A message of ours.
    Ours,
    /// The server, or another client.
    Server,
}

/// An item of a turn. Kinds and fields that this version does not know are in `raw`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Item {
    /// Its id.
    pub id: ItemId,
    /// Its kind, the schema's word, such as `agentMessage` or `commandExecution`.
    pub kind: String,
    /// The text of an agent message or a plan.
    pub text: Option<String>,
    /// The phase of an agent message.
    pub phase: Option<Phase>,
    /// The id of the user message of ours that this is (`clientId`).
    pub client_id: Option<String>,
    /// The item as it came.
    pub raw: RawJson,
}

/// The phase of an agent message.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub enum Phase {
    /// Said on the way.
    Commentary,
    /// A part of the answer.
    PartialAnswer,
    /// The answer.
    FinalAnswer,
    /// A phase that this version does not know.
    Other(String),
}

/// A call that waits for its result.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ToolCall {
    /// Its id: answer with it.
    pub id: ToolCallId,
    /// The tool; that of the inner call for a tool of kind `Router`.
    pub tool: String,
    /// The arguments, canonical.
    pub arguments: RawJson,
    /// The name that the model called natively, where it is another.
    pub via: Option<String>,
    /// How long the application may take.
    pub time_limit: Option<Duration>,
}

/// A call that did not have its tool's shape.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MalformedCall {
    /// The call.
    pub id: ToolCallId,
    /// The kind of the tool, absent for an unknown one.
    pub kind: Option<String>,
    /// The tool that the model called.
    pub native_tool: String,
    /// The tool that it meant, where that can be told.
    pub attempted_tool: Option<String>,
    /// What is wrong, such as `arguments_not_object`.
    pub code: String,
    /// Where, as a JSON path.
    pub path: String,
    /// What was expected.
    pub expected: String,
    /// What was received.
    pub received: String,
    /// The arguments, canonical.
    pub arguments: String,
}

/// Why a call is closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum CallClosedWhy {
    /// The turn was interrupted.
    Interrupted,
    /// The tool's time limit is over; the call was answered with a failure.
    TimeLimit,
    /// The turn was abandoned.
    Abandoned,
    /// The turn ended with the call open.
    TurnEnded,
    /// The connection ended.
    ConnectionEnded,
    /// The client shut down.
    Shutdown,
}

/// A question of the server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Question {
    /// Its number: answer with it.
    pub id: QuestionId,
    /// The item that it is about.
    pub item: Option<String>,
    /// The approval within the item, where there is one.
    pub approval: Option<String>,
    /// What is asked.
    pub kind: QuestionKind,
    /// Whether `cancel` was offered, which ends the turn.
    pub dismissable: bool,
    /// When the server's own time is up: the empty answer is then given.
    pub auto_resolution: Option<Duration>,
    /// The parameters as they came.
    pub raw: RawJson,
}

/// What a question is about.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub enum QuestionKind {
    /// May a command run (`item/commandExecution/requestApproval`)?
    Command {
        /// The command.
        command: Option<String>,
        /// Where it runs.
        cwd: Option<String>,
        /// Why.
        reason: Option<String>,
        /// The decisions that were offered, in the server's words.
        decisions: Vec<RawJson>,
    },
    /// May files be changed (`item/fileChange/requestApproval`)?
    FileChange {
        /// Why.
        reason: Option<String>,
        /// The folder that writing is asked for.
        grant_root: Option<String>,
    },
    /// May more be permitted (`item/permissions/requestApproval`)?
    Permissions {
        /// Why.
        reason: Option<String>,
        /// What is asked for.
        permissions: RawJson,
    },
    /// Questions to a person (`item/tool/requestUserInput`).
    UserInput {
        /// The questions.
        questions: Vec<UserQuestion>,
    },
    /// A form of an MCP server (`mcpServer/elicitation/request`).
    Form {
        /// The MCP server.
        server: String,
        /// What it says.
        message: String,
        /// The schema of the contents.
        schema: RawJson,
    },
}

/// One question to a person.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct UserQuestion {
    /// Its id.
    pub id: String,
    /// A short heading.
    pub header: String,
    /// The question.
    pub question: String,
    /// The labels of the options, empty for a free answer.
    pub options: Vec<String>,
    /// Whether the answer is not to be shown.
    pub secret: bool,
}

/// Why a question is settled without the application.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum QuestionClosedWhy {
    /// The server retired it (`serverRequest/resolved`).
    Resolved,
    /// Its own time is over: the empty answer was given, which is no person's choice.
    AutoResolved,
    /// The turn ended.
    TurnEnded,
    /// The turn was abandoned: the negative default was given.
    Abandoned,
    /// The connection ended.
    ConnectionEnded,
    /// The client shut down: the negative default was given.
    Shutdown,
}

/// Tokens, by kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Tokens {
    /// All.
    pub total_tokens: u64,
    /// Read by the model.
    pub input_tokens: u64,
    /// Of these, from a cache.
    pub cached_input_tokens: u64,
    /// Written by the model.
    pub output_tokens: u64,
    /// Of these, for reasoning.
    pub reasoning_output_tokens: u64,
}

impl Tokens {
    pub(crate) fn minus(self, base: Self) -> Option<Self> {
        Some(Self {
            total_tokens: self.total_tokens.checked_sub(base.total_tokens)?,
            input_tokens: self.input_tokens.checked_sub(base.input_tokens)?,
            cached_input_tokens: self
                .cached_input_tokens
                .checked_sub(base.cached_input_tokens)?,
            output_tokens: self.output_tokens.checked_sub(base.output_tokens)?,
            reasoning_output_tokens: self
                .reasoning_output_tokens
                .checked_sub(base.reasoning_output_tokens)?,
        })
    }
}

/// What was used (`thread/tokenUsage/updated`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Usage {
    /// By this turn: the thread's total less what it was when the turn began.
    pub turn: Tokens,
    /// By the last request to the model: what fills the context.
    pub last: Tokens,
    /// By the whole thread.
    pub thread: Tokens,
    /// The size of the model's context.
    pub context_window: Option<u64>,
}

/// A warning.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub enum Warning {
    /// The server tries again (`error` with `willRetry`).
    Retry(Failure),
    /// The server warns (`warning`, `guardianWarning`, `configWarning`, `deprecationNotice`).
    Server {
        /// The notification's method.
        method: String,
        /// What it says.
        message: String,
    },
    /// The server exchanged the model (`model/rerouted`).
    Rerouted {
        /// The model that was asked for.
        from: String,
        /// The model that answers.
        to: String,
    },
    /// The server ends a turn with a status that this version does not know.
    Error(Failure),
}

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
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum EndSource {
    /// The server said it (`turn/completed`, or a refusal).
    Live,
    /// It was read from the history.
    Reconciled,
    /// We decided it.
    Local,
}

/// How a turn ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
#[serde(deny_unknown_fields)]
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
#[serde(deny_unknown_fields)]
pub enum Rejection {
    /// The server refused the turn.
    #[error(transparent)]
    Refused(Refusal),
    /// The server refused the thread.
    #[error(transparent)]
    Thread(Refusal),
    /// It never left.
    #[error("never sent: {0}")]
    NotSent(String),
}

/// Why nothing can be heard of a turn any more.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[non_exhaustive]
#[serde(deny_unknown_fields)]
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
}

/// Something about a conversation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ConversationEvent {
    /// The conversation.
    pub conversation: ConversationId,
    /// What.
    pub update: ConversationUpdate,
}

/// What happened to a conversation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub enum ConversationUpdate {
    /// The native thread is there.
    ThreadBound {
        /// Its id.
        thread: ThreadId,
        /// The model that it uses.
        model: Option<String>,
    },
    /// The server let the thread go; the next turn resumes it.
    ThreadDetached {
        /// Its id.
        thread: ThreadId,
    },
    /// The server tells the thread's status, as it came.
    Status(RawJson),
    /// A turn began that this client did not ask for by itself: a follow-up or the server's own.
    TurnBegan {
        /// The turn.
        turn: TurnNo,
        /// Who began it.
        origin: Origin,
    },
    /// A warning.
    Warning(Warning),
    /// A frame that this version does not know, or that belongs to no turn.
    Unrecognized(Unrecognized),
    /// The conversation is closed; nothing of it follows.
    Closed,
}

/// A frame that this version does not know, carried as it came.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Unrecognized {
    /// The method.
    pub method: String,
    /// The parameters.
    pub params: Option<RawJson>,
    /// Whether it was a request; then it was refused.
    pub request: bool,
}

/// Something about the connection.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub enum ConnectionEvent {
    /// The handshake is done.
    Ready {
        /// The connection.
        epoch: Epoch,
        /// The server.
        server: ServerInfo,
    },
    /// A line that is no frame.
    Noise {
        /// Its first bytes, those that are no UTF-8 replaced.
        line: String,
        /// Its length in bytes.
        length: usize,
        /// Why it is no frame.
        why: NoiseWhy,
    },
    /// The server broke the protocol; the frame was ignored or refused.
    Protocol(ProtocolError),
    /// A warning that concerns no conversation.
    Warning(Warning),
    /// A frame that this version does not know and that belongs to no conversation.
    Unrecognized(Unrecognized),
    /// The connection takes nothing new: it closes when its turns have ended.
    Unfit,
    /// The connection has ended. With reconnection off it does not come back.
    Ended(EndReason),
}

/// What the server says of itself (`initialize`).
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ServerInfo {
    /// Its version.
    pub version: Version,
    /// `userAgent`.
    pub user_agent: String,
    /// `codexHome`.
    pub codex_home: Option<String>,
}

/// Why a line is no frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub enum NoiseWhy {
    /// It is not UTF-8.
    NotUtf8,
    /// It is not JSON.
    NotJson,
    /// It is JSON, but neither request nor response nor notification.
    NotAFrame,
    /// The stream ended in the middle of it.
    Cut,
}

/// How the server broke the protocol.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[non_exhaustive]
#[serde(deny_unknown_fields)]
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
#[serde(deny_unknown_fields)]
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
    #[error("{0}")]
    Protocol(ProtocolError),
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
