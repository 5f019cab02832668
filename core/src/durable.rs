//! What survives a crash: made of records, and changed by nothing but [`Durable::apply`].

mod apply;
pub mod checkpoint;
mod prompts;
mod rounds;
mod threads;

use alloc::{
    boxed::Box,
    collections::{BTreeMap, VecDeque},
    string::{String, ToString},
};

use core::ops::RangeInclusive;

use serde::{Deserialize, Serialize};

use self::prompts::Prompts;
pub(crate) use self::{apply::contents_of, rounds::contents_of_boxes};
use crate::{
    attachment::{Attachment, Child, Endpoint},
    cleanup::{Action, Cleanup, Owner},
    command::{Authorization, Settings},
    compaction::Compaction,
    fork::ForkOf,
    id::{
        ArrivalNo, BoxId, CodexHome, CommandId, ConversationId, ConversationKey, MessageId, Nonce,
        QuestionId, ToolCallId, TurnNo,
    },
    mailbox::Mailbox,
    naming::Naming,
    preflight::Preflight,
    prompt::{Prompt, PromptState},
    question::{QuestionAsked, QuestionState},
    remembered::Remembered,
    round::Round,
    selection::ThreadSelection,
    thread::Creation,
    tools::Call,
    transcript::Transcript,
};

/// How many of the application's own keys are remembered.
const REMEMBERED_KEYS: usize = 4_096;

/// The state that records make.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Durable {
    lives: u64,
    attachment: Attachment,
    conversations: BTreeMap<ConversationId, DurableConversation>,
    open_keys: BTreeMap<ConversationKey, ConversationId>,
    prompts: Prompts,
    calls: BTreeMap<ToolCallId, Call>,
    questions: BTreeMap<QuestionId, (QuestionAsked, QuestionState)>,
    requests: BTreeMap<CommandId, String>,
    cleanups: BTreeMap<(Owner, Action), Cleanup>,
    commands: BTreeMap<CommandId, Remembered>,
    /// The last command whose answer was remembered and is no more.
    forgotten_command: Option<CommandId>,
    keys: BTreeMap<(ConversationId, String), KeyUse>,
    key_order: VecDeque<(ConversationId, String)>,
    last_conversation: ConversationId,
    last_turn: TurnNo,
    last_question: QuestionId,
}

/// What survives of a conversation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DurableConversation {
    /// The application's name for it.
    pub key: ConversationKey,
    /// What its call ids are told by.
    pub nonce: Nonce,
    /// How it is held.
    pub settings: Box<Settings>,
    /// What it was made of, if that is another one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub forked: Option<ForkOf>,
    /// How its native thread comes to be.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub creation: Option<Creation>,
    /// The name that its present thread has.
    #[serde(default, skip_serializing_if = "is_default")]
    pub naming: Naming,
    /// Whether its present thread is being compacted.
    #[serde(default, skip_serializing_if = "is_default")]
    pub compaction: Compaction,
    /// The number of its last call.
    #[serde(default, skip_serializing_if = "is_default")]
    pub last_call: u64,
    /// Whether the server has accepted a message on its thread.
    #[serde(default, skip_serializing_if = "is_default")]
    pub accepted: bool,
    /// The home that the server last told when the thread was bound: another home does not know it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub home: Option<CodexHome>,
    /// Whether a turn of ours really ran on its present thread: then the thread holds something.
    /// That the server took a message is no proof of it.
    #[serde(default, skip_serializing_if = "is_default")]
    pub ran: bool,
    /// Whether the working directory or the base instructions are others than those which its
    /// present thread was made with: each resume says them.
    #[serde(default, skip_serializing_if = "is_default")]
    pub made_otherwise: bool,
    /// The model, effort and personality that its present thread was last given.
    #[serde(default, skip_serializing_if = "is_default")]
    pub selection: ThreadSelection,
    /// Whether user input and restarts need a binding.
    #[serde(default = "nobody", skip_serializing_if = "needs_nothing")]
    pub authorization: Authorization,
    /// Its boxes.
    #[serde(default, skip_serializing_if = "is_default")]
    pub(crate) transcript: Transcript,
    /// What waits for the end of its round.
    #[serde(default, skip_serializing_if = "is_default")]
    pub mailbox: Mailbox,
    /// Its round.
    #[serde(default, skip_serializing_if = "is_default")]
    pub round: Round,
    /// Boxes stand in the transcript that the model must hear of, and no message carries them.
    #[serde(default, skip_serializing_if = "is_default")]
    pub(crate) resume: bool,
    /// Whether it ever began a round.
    #[serde(default, skip_serializing_if = "is_default")]
    pub began: bool,
    /// What it began with, if that was anything.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub preflight: Option<Preflight>,
    /// Why it is held, if it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub held: Option<String>,
    /// Which boxes hold the results of which calls.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) results: BTreeMap<u64, BoxId>,
}

const fn nobody() -> Authorization {
    Authorization::None
}

/// Whether no binding is needed: what earlier versions meant when they said nothing of it.
#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde asks by reference")]
pub(crate) const fn needs_nothing(authorization: &Authorization) -> bool {
    matches!(authorization, Authorization::None)
}

impl DurableConversation {
    fn new(key: ConversationKey, nonce: Nonce) -> Self {
        Self {
            key,
            nonce,
            settings: Box::default(),
            forked: None,
            creation: None,
            naming: Naming::Unnamed,
            compaction: Compaction::None,
            last_call: 0,
            accepted: false,
            home: None,
            ran: false,
            made_otherwise: false,
            selection: ThreadSelection::default(),
            authorization: Authorization::None,
            transcript: Transcript::default(),
            mailbox: Mailbox::default(),
            round: Round::Idle,
            resume: false,
            began: false,
            preflight: None,
            held: None,
            results: BTreeMap::new(),
        }
    }

    /// Whether its thread serves it too when it is held in another way.
    #[must_use]
    pub fn keeps_thread(&self, settings: &Settings) -> bool {
        let made = self.creation.as_ref().is_some_and(Creation::has_left);
        !made || self.settings.same_thread(settings)
    }

    /// Whether its thread must be let go and resumed to serve it when it is held in another way, and
    /// does so then.
    #[must_use]
    pub fn resumes_thread(&self, settings: &Settings) -> bool {
        // The server has stored no thread that ran no turn.
        let stored = self.ran && self.creation.as_ref().and_then(Creation::thread).is_some();
        stored && !self.keeps_thread(settings) && self.settings.same_resumed(settings)
    }
}

/// The calls of one conversation.
fn every(nonce: Nonce) -> RangeInclusive<ToolCallId> {
    let at = |sequence| ToolCallId { nonce, sequence };
    at(0)..=at(u64::MAX)
}

/// Whether a value is the one that is left out.
pub(crate) fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

/// What a key of the application stands for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeyUse {
    /// A message that began a turn.
    Turn {
        /// The turn.
        turn: TurnNo,
        /// The message.
        message: MessageId,
        /// The CRC-32 of what was said.
        contents: u32,
    },
    /// Arrivals.
    Arrival {
        /// The first.
        first: ArrivalNo,
        /// The last.
        last: ArrivalNo,
        /// The CRC-32 of what arrived.
        contents: u32,
    },
}

impl Durable {
    /// How many lives of the process wrote the records.
    #[must_use]
    pub const fn lives(&self) -> u64 {
        self.lives
    }

    /// How the server was last reached.
    #[must_use]
    pub const fn attachment(&self) -> &Attachment {
        &self.attachment
    }

    /// Where the last server was.
    #[must_use]
    pub fn endpoint(&self) -> Option<&Endpoint> {
        self.attachment.endpoint()
    }

    /// The home that a server last told.
    #[must_use]
    pub const fn home(&self) -> Option<&CodexHome> {
        self.attachment.home()
    }

    /// The child of ours that may still live, once we do not.
    #[must_use]
    pub fn orphan(&self) -> Option<Child> {
        self.attachment.orphan()
    }

    /// The open conversation under a key.
    #[must_use]
    pub fn conversation_by_key(&self, key: &ConversationKey) -> Option<ConversationId> {
        self.open_keys.get(key).copied()
    }

    /// A conversation.
    #[must_use]
    pub fn conversation(&self, id: ConversationId) -> Option<&DurableConversation> {
        self.conversations.get(&id)
    }

    /// A message that is not at rest.
    #[must_use]
    pub fn prompt(&self, message: &MessageId) -> Option<&Prompt> {
        self.prompts.get(message)
    }

    /// All messages that are not at rest.
    pub fn prompts(&self) -> impl Iterator<Item = &Prompt> {
        self.prompts.iter().map(|(_, prompt)| prompt)
    }

    /// The messages of a conversation whose ends are known and not acknowledged.
    pub fn ended_prompts(&self, conversation: ConversationId) -> impl Iterator<Item = &MessageId> {
        self.prompts.of(conversation).filter(|message| {
            let prompt = self.prompts.get(message);
            prompt.is_some_and(|prompt| matches!(prompt.state, PromptState::Terminal { .. }))
        })
    }

    /// The message that began a turn, while it is not at rest.
    #[must_use]
    pub fn prompt_of_turn(&self, turn: TurnNo) -> Option<(&MessageId, &Prompt)> {
        self.prompts.start_of(turn)
    }

    /// All open conversations.
    pub fn conversations(&self) -> impl Iterator<Item = &DurableConversation> {
        self.conversations.values()
    }

    /// A call of the running turn of its conversation.
    #[must_use]
    pub fn call(&self, id: ToolCallId) -> Option<&Call> {
        self.calls.get(&id)
    }

    /// A question that is not settled.
    #[must_use]
    pub fn question(&self, id: QuestionId) -> Option<&(QuestionAsked, QuestionState)> {
        self.questions.get(&id)
    }

    /// All questions that are not settled.
    pub fn questions(&self) -> impl Iterator<Item = (QuestionId, &QuestionAsked)> {
        self.questions.iter().map(|(id, (asked, _))| (*id, asked))
    }

    /// All calls that are remembered.
    pub fn calls(&self) -> impl Iterator<Item = (ToolCallId, &Call)> {
        self.calls.iter().map(|(id, call)| (*id, call))
    }

    /// The calls of a conversation that are remembered.
    pub fn calls_in(
        &self,
        conversation: ConversationId,
    ) -> impl Iterator<Item = (ToolCallId, &Call)> {
        let known = self.conversations.get(&conversation);
        known
            .into_iter()
            .flat_map(|known| self.calls_of(known.nonce))
            .map(|(id, call)| (*id, call))
    }

    /// Whether the model called a tool in a turn of a conversation.
    #[must_use]
    pub fn has_calls(&self, conversation: ConversationId, turn: TurnNo) -> bool {
        self.calls_in(conversation)
            .any(|(_, call)| call.turn == turn)
    }

    /// All raw requests that have no end yet.
    pub fn requests(&self) -> impl Iterator<Item = CommandId> {
        self.requests.keys().copied()
    }

    /// All open conversations, with their numbers.
    pub fn numbered(&self) -> impl Iterator<Item = (ConversationId, &DurableConversation)> {
        self.conversations.iter().map(|(id, c)| (*id, c))
    }

    /// All messages that are not at rest, with their ids.
    pub fn named_prompts(&self) -> impl Iterator<Item = (&MessageId, &Prompt)> {
        self.prompts.iter()
    }

    /// The method of a raw request that has no end yet.
    #[must_use]
    pub fn request(&self, command: CommandId) -> Option<&str> {
        self.requests.get(&command).map(String::as_str)
    }

    /// What is owed for an owner, if anything is.
    #[must_use]
    pub fn cleanup(&self, owner: &Owner, action: Action) -> Option<&Cleanup> {
        self.cleanups.get(&(owner.clone(), action))
    }

    /// All that is owed.
    pub fn cleanups(&self) -> impl Iterator<Item = (&Owner, Action, &Cleanup)> {
        let all = self.cleanups.iter();
        all.map(|((owner, action), cleanup)| (owner, *action, cleanup))
    }

    /// The answer of a command that changed something.
    #[must_use]
    pub fn answered(&self, command: CommandId) -> Option<&Remembered> {
        self.commands.get(&command)
    }

    /// Whether a command may have been answered so long ago that nobody knows how.
    #[must_use]
    pub fn is_forgotten(&self, command: CommandId) -> bool {
        self.forgotten_command.is_some_and(|last| command <= last)
    }

    /// The highest number of a command whose answer is or was remembered: a caller that counts goes
    /// on behind it.
    #[must_use]
    pub fn last_command(&self) -> CommandId {
        let last = self.commands.last_key_value().map(|(id, _)| *id);
        last.max(self.forgotten_command).unwrap_or_default()
    }

    /// What a key of the application stands for.
    #[must_use]
    pub fn key_use(&self, conversation: ConversationId, key: &str) -> Option<&KeyUse> {
        self.keys.get(&(conversation, key.to_string()))
    }

    /// The number of the last conversation.
    #[must_use]
    pub const fn last_conversation(&self) -> ConversationId {
        self.last_conversation
    }

    /// The number of the last turn.
    #[must_use]
    pub const fn last_turn(&self) -> TurnNo {
        self.last_turn
    }

    /// The number of the last question.
    #[must_use]
    pub const fn last_question(&self) -> QuestionId {
        self.last_question
    }
}
