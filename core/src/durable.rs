//! What survives a crash: made of records, and changed by nothing but [`Durable::apply`].

use alloc::{
    boxed::Box,
    collections::{BTreeMap, VecDeque},
    format,
    string::{String, ToString},
};

use crate::{
    command::Settings,
    error::{InvalidTransition, RecordError},
    id::{
        CommandId, ConversationId, ConversationKey, MessageId, Nonce, QuestionId, ToolCallId,
        TurnNo,
    },
    prompt::{Prompt, PromptChange, PromptKind, PromptState},
    question::{QuestionAsked, QuestionChange, QuestionState},
    record::Record,
    thread::Creation,
    tools::{Call, CallChange, CallState},
};

/// How many of the application's own keys are remembered.
const REMEMBERED_KEYS: usize = 4_096;

/// The state that records make.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Durable {
    lives: u64,
    conversations: BTreeMap<ConversationId, DurableConversation>,
    open_keys: BTreeMap<ConversationKey, ConversationId>,
    prompts: BTreeMap<MessageId, Prompt>,
    calls: BTreeMap<ToolCallId, Call>,
    questions: BTreeMap<QuestionId, (QuestionAsked, QuestionState)>,
    requests: BTreeMap<CommandId, String>,
    keys: BTreeMap<(ConversationId, String), KeyUse>,
    key_order: VecDeque<(ConversationId, String)>,
    last_conversation: ConversationId,
    last_turn: TurnNo,
    last_question: QuestionId,
}

/// What survives of a conversation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DurableConversation {
    /// The application's name for it.
    pub key: ConversationKey,
    /// What its call ids are told by.
    pub nonce: Nonce,
    /// How it is held.
    pub settings: Box<Settings>,
    /// How its native thread comes to be.
    pub creation: Option<Creation>,
    /// The number of its last call.
    pub last_call: u64,
    /// Whether the server has accepted a message on its thread.
    pub accepted: bool,
}

/// What a key of the application stands for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyUse {
    /// The turn.
    pub turn: TurnNo,
    /// The message.
    pub message: MessageId,
    /// The CRC-32 of what was said.
    pub contents: u32,
}

impl Durable {
    /// How many lives of the process wrote the records.
    #[must_use]
    pub const fn lives(&self) -> u64 {
        self.lives
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
        self.prompts.values()
    }

    /// The message that began a turn, while it is not at rest.
    #[must_use]
    pub fn prompt_of_turn(&self, turn: TurnNo) -> Option<(&MessageId, &Prompt)> {
        self.prompts
            .iter()
            .find(|(_, p)| p.fields.turn == turn && p.fields.kind == PromptKind::Start)
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

    /// Whether the model called a tool in a turn.
    #[must_use]
    pub fn has_calls(&self, turn: TurnNo) -> bool {
        self.calls.values().any(|call| call.turn == turn)
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

    /// Takes a record. Unchanged on error.
    ///
    /// # Errors
    ///
    /// The record does not fit the state that those before it made.
    pub fn apply(&mut self, record: &Record) -> Result<(), RecordError> {
        let kind = record.kind();
        let transition = |source: InvalidTransition| RecordError::Transition { kind, source };
        let missing = |what: String| RecordError::Missing { kind, what };
        let invalid = |reason: String| RecordError::Invalid { kind, reason };
        match record {
            Record::Start { .. } => self.lives += 1,
            Record::ConversationOpened {
                conversation,
                key,
                nonce,
                settings,
            } => {
                settings.validate().map_err(|e| invalid(e.to_string()))?;
                if *conversation <= self.last_conversation || self.open_keys.contains_key(key) {
                    let what = format!("conversation {conversation} ({key})");
                    return Err(RecordError::Exists { kind, what });
                }
                self.last_conversation = *conversation;
                self.open_keys.insert(key.clone(), *conversation);
                let opened = DurableConversation {
                    key: key.clone(),
                    nonce: *nonce,
                    settings: settings.clone(),
                    creation: None,
                    last_call: 0,
                    accepted: false,
                };
                self.conversations.insert(*conversation, opened);
            }
            Record::ConversationClosed { conversation } => {
                let closed = self
                    .conversations
                    .remove(conversation)
                    .ok_or_else(|| missing(format!("conversation {conversation}")))?;
                self.open_keys.remove(&closed.key);
                self.forget_calls(closed.nonce, |_| true);
                self.prompts
                    .retain(|_, prompt| prompt.fields.conversation != *conversation);
            }
            Record::ThreadCreation {
                conversation,
                change,
            } => {
                let conversation = self
                    .conversations
                    .get_mut(conversation)
                    .ok_or_else(|| missing(format!("conversation {conversation}")))?;
                match &mut conversation.creation {
                    Some(creation) => {
                        creation.on(change).map_err(transition)?;
                    }
                    None => {
                        conversation.creation = Some(Creation::begin(change).map_err(transition)?);
                    }
                }
            }
            Record::Prompt {
                message,
                change: PromptChange::Prepared(fields),
            } => {
                fields.validate().map_err(invalid)?;
                let conversation = self
                    .conversations
                    .get(&fields.conversation)
                    .ok_or_else(|| missing(format!("conversation {}", fields.conversation)))?;
                let new_turn = fields.kind == PromptKind::Start;
                if self.prompts.contains_key(message) || (new_turn && fields.turn <= self.last_turn)
                {
                    let what = format!("message {message} of turn {}", fields.turn);
                    return Err(RecordError::Exists { kind, what });
                }
                if new_turn {
                    self.last_turn = fields.turn;
                    // Calls of a turn that is over are told apart by their number only.
                    let nonce = conversation.nonce;
                    self.forget_calls(nonce, |state| {
                        matches!(state, CallState::Answered { .. } | CallState::Closed { .. })
                    });
                }
                if let Some(key) = &fields.key {
                    let key = (fields.conversation, key.clone());
                    let used = KeyUse {
                        turn: fields.turn,
                        message: message.clone(),
                        contents: contents_of(&fields.input, fields.output_schema.as_ref()),
                    };
                    if self.keys.insert(key.clone(), used).is_none() {
                        self.key_order.push_back(key);
                    }
                    if self.key_order.len() > REMEMBERED_KEYS {
                        if let Some(oldest) = self.key_order.pop_front() {
                            self.keys.remove(&oldest);
                        }
                    }
                }
                self.prompts
                    .insert(message.clone(), Prompt::new((**fields).clone()));
            }
            Record::Prompt { message, change } => {
                let prompt = self
                    .prompts
                    .get_mut(message)
                    .ok_or_else(|| missing(format!("message {message}")))?;
                prompt.on(change).map_err(transition)?;
                let conversation = prompt.fields.conversation;
                if matches!(prompt.state, PromptState::Running { .. }) {
                    if let Some(conversation) = self.conversations.get_mut(&conversation) {
                        conversation.accepted = true;
                    }
                }
                if prompt.is_at_rest() {
                    self.prompts.remove(message);
                }
            }
            Record::ToolCall {
                call,
                change: CallChange::Asked(asked),
            } => {
                let conversation = self
                    .conversations
                    .get_mut(&asked.conversation)
                    .ok_or_else(|| missing(format!("conversation {}", asked.conversation)))?;
                if call.nonce != conversation.nonce {
                    return Err(invalid(format!("call {call} has a foreign nonce")));
                }
                if call.sequence <= conversation.last_call {
                    return Err(RecordError::Exists {
                        kind,
                        what: format!("call {call}"),
                    });
                }
                conversation.last_call = call.sequence;
                self.last_turn = self.last_turn.max(asked.turn);
                let made = Call {
                    conversation: asked.conversation,
                    turn: asked.turn,
                    native: asked.native.clone(),
                    state: CallState::Asked,
                };
                self.calls.insert(*call, made);
            }
            Record::ToolCall { call, change } => {
                let call = self
                    .calls
                    .get_mut(call)
                    .ok_or_else(|| missing(format!("call {call}")))?;
                call.state.on(change).map_err(transition)?;
            }
            Record::QuestionAsked { question, asked } => {
                if *question <= self.last_question {
                    let what = format!("question {question}");
                    return Err(RecordError::Exists { kind, what });
                }
                self.last_question = *question;
                if let Some(turn) = asked.turn {
                    self.last_turn = self.last_turn.max(turn);
                }
                self.questions
                    .insert(*question, ((**asked).clone(), QuestionState::Pending));
            }
            Record::QuestionAnswered {
                question, result, ..
            } => {
                let (_, state) = self
                    .questions
                    .get_mut(question)
                    .ok_or_else(|| missing(format!("question {question}")))?;
                state
                    .on(&QuestionChange::Answered(result.clone()))
                    .map_err(transition)?;
            }
            Record::QuestionSettled { question, .. } => {
                self.questions
                    .remove(question)
                    .ok_or_else(|| missing(format!("question {question}")))?;
            }
            Record::Request { command, method } => {
                self.requests.insert(*command, method.clone());
            }
            Record::RequestEnded { command, .. } => {
                self.requests
                    .remove(command)
                    .ok_or_else(|| missing(format!("request of command {command}")))?;
            }
        }
        Ok(())
    }

    fn forget_calls(&mut self, nonce: Nonce, over: impl Fn(&CallState) -> bool) {
        let first = ToolCallId { nonce, sequence: 0 };
        let last = ToolCallId {
            nonce,
            sequence: u64::MAX,
        };
        let gone: alloc::vec::Vec<ToolCallId> = self
            .calls
            .range(first..=last)
            .filter(|(_, call)| over(&call.state))
            .map(|(id, _)| *id)
            .collect();
        for id in gone {
            self.calls.remove(&id);
        }
    }
}

/// What a message says, as far as the same key must say the same again.
pub(crate) fn contents_of(
    input: &[crate::command::InputItem],
    schema: Option<&crate::RawJson>,
) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    for item in input {
        hasher.update(item.json().get().as_bytes());
        hasher.update(b"\n");
    }
    if let Some(schema) = schema {
        hasher.update(schema.get().as_bytes());
    }
    hasher.finalize()
}
