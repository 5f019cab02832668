//! What the application is told.

use alloc::{boxed::Box, string::String, vec::Vec};
use core::time::Duration;

use serde::{Deserialize, Serialize};

use crate::{
    RawJson, Text,
    cleanup::{Action, Owner},
    command::{Binding, CommandError, Refusal, Reply},
    difference::Difference,
    id::{
        CommandId, ConversationId, Epoch, ItemId, MessageId, QuestionId, RefreshId, ThreadId,
        ToolCallId, TurnId, TurnNo,
    },
    settings::ToolDelivery,
    wire::version::Version,
};

pub use crate::history::HistoryError;
pub use crate::outcome::{
    EndReason, EndSource, Failure, FailureKind, LostReason, Outcome, Phasing, ProtocolError,
    Rejection, TurnEnd,
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
    pub text: Text,
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
    /// The connection ended under it; what becomes of it is told after the next one.
    Suspended {
        /// Why the connection ended.
        reason: Box<EndReason>,
    },
    /// The server still runs it, and it is heard again. What was streamed in between is repaired by
    /// the completed items.
    Resumed,
    /// The server never recorded its message, which is proven: it is sent again, under its id.
    Resent,
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
    /// The native call died with its connection or its turn: the call stays with the application, and
    /// its result arrives in the conversation.
    CallDeferred {
        /// The call.
        call: ToolCallId,
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
    /// A steered message was answered but is in no item: what it carried goes with the next round.
    SteerUnrecorded {
        /// The message.
        message: MessageId,
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
#[serde(rename_all = "snake_case")]
pub enum Origin {
    /// A message of ours.
    Ours,
    /// The server, or another client.
    Server,
    /// A message of an earlier life of ours, whose end is not known or was not acknowledged.
    Recovered,
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
    /// How its result reaches the model.
    pub delivery: ToolDelivery,
    /// On whose behalf it is made.
    pub binding: Option<Binding>,
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
#[serde(rename_all = "snake_case")]
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
    /// The application left the stall of its round.
    Dismissed,
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
#[serde(rename_all = "snake_case")]
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
    /// The server does not list a model (`model/list`): neither it nor an effort was checked.
    UnlistedModel {
        /// The model.
        model: String,
    },
    /// The server's list of models cannot be read: nothing is checked against it on this connection.
    ModelList {
        /// Why.
        reason: String,
    },
    /// An error that names no turn.
    Error(Failure),
    /// The server keeps its threads in another place than in an earlier life: what is not found
    /// there may stand in the other one.
    OtherHome {
        /// Where it kept them (`codexHome`).
        was: String,
        /// Where it keeps them now.
        is: String,
    },
    /// The server is reached another way than in an earlier life.
    OtherEndpoint {
        /// How it was reached.
        was: String,
        /// How it is reached now.
        is: String,
    },
    /// The history contradicts itself, or what we know.
    History(HistoryError),
    /// A step of a clean-up was not taken; it is tried again.
    CleanUp {
        /// The thread, where it was for one.
        thread: Option<ThreadId>,
        /// Why.
        reason: String,
    },
    /// The reader lags behind what is told. It is the runtime that says so, of its own queue; no
    /// text, item, question or end is ever missing.
    Lagged {
        /// How many pieces of text have grown into those before them since this was told last.
        merged: u64,
        /// How many events are missing since then, of the kinds that can be spared.
        dropped: u64,
    },
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
    /// The thread has something else than was asked. It is told whenever a thread is made or resumed.
    Differs {
        /// What.
        difference: Difference,
    },
    /// The server let the thread go; the next turn resumes it.
    ThreadDetached {
        /// Its id.
        thread: ThreadId,
    },
    /// The server has no thread under the id that the conversation had, and never ran a turn of ours
    /// on it: another one is made, and nothing is lost.
    ThreadReplaced {
        /// The id of the one that is gone.
        old: ThreadId,
    },
    /// The server has no thread under the id that the conversation had, and ran turns of ours on
    /// it: what the model knew is lost.
    ThreadLost {
        /// The id.
        thread: ThreadId,
        /// How the server refused it.
        refusal: Refusal,
    },
    /// What the conversation does now.
    Status(Status),
    /// A call of the preflight waits for its result; in a later life it is told again.
    PreflightCall {
        /// The call.
        call: ToolCall,
        /// Whether the first round waits for it.
        blocking: bool,
    },
    /// A call whose turn is over is closed; a result that comes now is refused.
    CallClosed {
        /// The call.
        call: ToolCallId,
        /// Why.
        why: CallClosedWhy,
    },
    /// The server tells the thread's status, as it came.
    ThreadStatus(RawJson),
    /// A turn began that this client did not ask for by itself: a follow-up or the server's own.
    TurnBegan {
        /// The turn.
        turn: TurnNo,
        /// Who began it.
        origin: Origin,
    },
    /// The history holds a turn that no message of ours began and that was not told of before: it ran
    /// while nobody here listened. One that still runs is told as [`TurnBegan`](Self::TurnBegan).
    TurnFound {
        /// The server's name for it.
        native: TurnId,
        /// How it ended, in the server's word.
        status: String,
    },
    /// A warning.
    Warning(Warning),
    /// The server says something of a sub-agent's thread; the conversation asked for that.
    ChildFrame {
        /// The sub-agent's thread.
        thread: ThreadId,
        /// The method.
        method: String,
        /// The parameters, as they came.
        params: Option<RawJson>,
    },
    /// A sub-agent calls a tool of the application and waits; it is answered as any other call, once,
    /// and stands in no transcript. It is closed with the sub-agent's turn and with the connection
    /// ([`CallClosed`](Self::CallClosed)).
    ChildCall {
        /// The sub-agent's thread.
        thread: ThreadId,
        /// The call.
        call: ToolCall,
    },
    /// A sub-agent asks something and waits; it is answered as any other question.
    ChildQuestion {
        /// The sub-agent's thread.
        thread: ThreadId,
        /// The question.
        question: Box<Question>,
    },
    /// A question of a sub-agent is settled without the application.
    ChildQuestionClosed {
        /// The question.
        question: QuestionId,
        /// Why.
        why: QuestionClosedWhy,
    },
    /// A frame that this version does not know, or that belongs to no turn.
    Unrecognized(Unrecognized),
    /// The conversation is closed; nothing of it follows.
    Closed,
}

/// What a conversation does.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub enum Status {
    /// Nothing.
    #[default]
    Quiet,
    /// A round is open, or about to begin.
    Running,
    /// A round failed: nothing begins until the application restarts or dismisses it.
    Stalled {
        /// Why it failed.
        message: String,
        /// Whether it may be restarted.
        restartable: bool,
    },
    /// Nothing begins until the application releases it.
    Held {
        /// Why.
        reason: String,
    },
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
    /// The server wants new tokens and waits, not for long.
    TokenRefresh(TokenRefresh),
    /// A request for tokens is settled without the application.
    TokenRefreshClosed {
        /// The request.
        refresh: RefreshId,
        /// Why.
        why: RefreshClosedWhy,
    },
    /// The connection takes nothing new: it closes when its turns have ended.
    Unfit,
    /// What the records of earlier lives hold.
    Recovered(Recovered),
    /// Nothing is owed any more for an owner.
    CleanedUp {
        /// For whom it was.
        owner: Owner,
        /// What was done.
        action: Action,
    },
    /// The connection has ended and is opened again after a pause. Open turns are suspended.
    Lost {
        /// Why it ended.
        reason: EndReason,
        /// The pause.
        pause: Duration,
    },
    /// The connection has ended and does not come back.
    Ended(EndReason),
}

/// A request of the server for new tokens (`account/chatgptAuthTokens/refresh`).
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct TokenRefresh {
    /// Its number: answer with it.
    pub id: RefreshId,
    /// Why, in the server's word.
    pub reason: String,
    /// The account that the tokens must be of; any, where it is not told.
    pub previous_account: Option<String>,
}

/// Why a request for tokens is settled without the application.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
#[serde(rename_all = "snake_case")]
pub enum RefreshClosedWhy {
    /// Its time is over: the server was told.
    TimedOut,
    /// The server retired it (`serverRequest/resolved`).
    Resolved,
    /// The connection ended.
    ConnectionEnded,
    /// The client shut down: the server was told.
    Shutdown,
}

/// What the records of earlier lives hold.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Recovered {
    /// How many lives wrote them.
    pub lives: u64,
    /// Conversations that are open.
    pub conversations: u32,
    /// Turns whose end is not known.
    pub turns: u32,
    /// Ends that were not acknowledged and are told again.
    pub ends: u32,
    /// Tool calls without a result, which failed with the life that had them.
    pub calls: u32,
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
