//! A record in, a changed state out: one function for each kind of record.

use alloc::{
    boxed::Box,
    format,
    string::{String, ToString},
    vec::Vec,
};

use super::{Durable, DurableConversation, KeyUse, REMEMBERED_KEYS, every, rounds::Went};
use crate::{
    RawJson,
    attachment::{Attached, AttachmentChange},
    cleanup::{Action, Cleanup, CleanupChange, Owner},
    command::{Authorization, InputItem, Settings, ToolDelivery},
    compaction::Compaction,
    error::{Change, InvalidTransition, RecordError},
    event::Outcome,
    id::{
        CommandId, ConversationId, ConversationKey, MessageId, Nonce, QuestionId, ToolCallId,
        TurnNo,
    },
    naming::Naming,
    prompt::{Prompt, PromptChange, PromptFields, PromptKind, PromptState},
    question::{QuestionAsked, QuestionChange, QuestionState},
    record::Record,
    remembered::{REMEMBERED_COMMANDS, Remembered},
    selection::{Selection, SelectionChange},
    thread::{Creation, CreationChange},
    tools::{Call, CallAsked, CallChange, CallState},
};

/// Makes the errors of one kind of record.
#[derive(Clone, Copy)]
pub(super) struct Refuse {
    kind: &'static str,
}

impl Refuse {
    pub(super) fn transition(self, source: InvalidTransition) -> RecordError {
        let kind = self.kind;
        RecordError::Transition { kind, source }
    }

    pub(super) fn missing(self, what: String) -> RecordError {
        let kind = self.kind;
        RecordError::Missing { kind, what }
    }

    pub(super) fn exists(self, what: String) -> RecordError {
        let kind = self.kind;
        RecordError::Exists { kind, what }
    }

    pub(super) fn invalid(self, reason: String) -> RecordError {
        let kind = self.kind;
        RecordError::Invalid { kind, reason }
    }

    pub(super) fn conversation(self, conversation: ConversationId) -> RecordError {
        self.missing(format!("conversation {conversation}"))
    }
}

impl Durable {
    /// Takes a record. Unchanged on error.
    ///
    /// # Errors
    ///
    /// The record does not fit the state that those before it made.
    pub fn apply(&mut self, record: &Record) -> Result<(), RecordError> {
        let refuse = Refuse {
            kind: record.kind(),
        };
        match record {
            Record::Start { .. } => {
                self.restarted();
                Ok(())
            }
            Record::Checkpoint(checkpoint) => {
                if *self != Self::default() {
                    return Err(refuse.exists("a state, though records stand before it".into()));
                }
                *self = Self::restore(checkpoint).map_err(|why| refuse.invalid(why))?;
                Ok(())
            }
            Record::Attached(attached) => self.attached(refuse, attached),
            Record::HomeTold { home } => {
                self.attachment_changed(refuse, &AttachmentChange::HomeTold(home.clone()))
            }
            Record::Detached => self.attachment_changed(refuse, &AttachmentChange::Detached),
            Record::ConversationOpened {
                conversation,
                key,
                nonce,
                settings,
                authorization,
            } => {
                let opened = (*conversation, key, *nonce);
                self.conversation_opened(refuse, opened, settings, *authorization)
            }
            Record::Forked(forked) => self.forked(refuse, forked),
            Record::SettingsChanged {
                conversation,
                settings,
            } => self.settings_changed(refuse, *conversation, settings),
            Record::ConversationClosed { conversation } => {
                self.conversation_closed(refuse, *conversation)
            }
            Record::Arrival {
                conversation,
                first,
                boxes,
                key,
            } => self.arrived(refuse, *conversation, *first, boxes, key.as_ref()),
            Record::Round {
                conversation,
                change,
            } => self.round_changed(refuse, *conversation, change),
            Record::Submission {
                conversation,
                message,
                boxes,
            } => self.submitted(refuse, *conversation, message, boxes),
            Record::Preflight {
                conversation,
                entries,
            } => self.preflighted(refuse, *conversation, entries),
            Record::Held {
                conversation,
                reason,
            } => self.held(refuse, *conversation, reason),
            Record::Released { conversation } => self.released(refuse, *conversation),
            Record::ThreadCreation {
                conversation,
                change,
            } => self.creation_changed(refuse, *conversation, change),
            Record::Naming {
                conversation,
                change,
            } => self.naming_changed(refuse, *conversation, change),
            Record::Compaction {
                conversation,
                change,
            } => self.compaction_changed(refuse, *conversation, change),
            Record::ServerTurn { conversation, turn } => {
                if !self.conversations.contains_key(conversation) {
                    return Err(refuse.conversation(*conversation));
                }
                if *turn <= self.last_turn {
                    return Err(refuse.exists(format!("turn {turn}")));
                }
                self.last_turn = *turn;
                Ok(())
            }
            Record::Prompt {
                message,
                change: PromptChange::Prepared(fields),
            } => self.prompt_prepared(refuse, message, fields),
            Record::Prompt { message, change } => self.prompt_changed(refuse, message, change),
            Record::Selection {
                conversation,
                message,
                after,
            } => self.selection_sent(refuse, *conversation, message, after),
            Record::ToolCall {
                call,
                change: CallChange::Asked(asked),
            } => self.call_asked(refuse, *call, asked),
            Record::ToolCall { call, change } => {
                let made = self
                    .calls
                    .get_mut(call)
                    .ok_or_else(|| refuse.missing(format!("call {call}")))?;
                match made.on(change).map_err(|e| refuse.transition(e))? {
                    Change::Applied => self
                        .call_arrives(*call, change)
                        .map_err(|why| refuse.invalid(why)),
                    Change::NoOp => Ok(()),
                }
            }
            Record::QuestionAsked { question, asked } => {
                self.question_asked(refuse, *question, asked)
            }
            Record::QuestionAnswered {
                question, result, ..
            } => {
                let (_, state) = self
                    .questions
                    .get_mut(question)
                    .ok_or_else(|| refuse.missing(format!("question {question}")))?;
                state
                    .on(&QuestionChange::Answered(result.clone()))
                    .map_err(|e| refuse.transition(e))?;
                Ok(())
            }
            Record::QuestionSettled { question, .. } => {
                let settled = self.questions.remove(question);
                settled.ok_or_else(|| refuse.missing(format!("question {question}")))?;
                Ok(())
            }
            Record::Cleanup {
                owner,
                action,
                change,
            } => self.cleanup_changed(refuse, owner, *action, change),
            Record::Command { id, answer } => self.command_answered(refuse, *id, answer),
            Record::Request { command, method } => {
                self.requests.insert(*command, method.clone());
                Ok(())
            }
            Record::RequestEnded { command, .. } => {
                let ended = self.requests.remove(command);
                ended.ok_or_else(|| refuse.missing(format!("request of command {command}")))?;
                Ok(())
            }
        }
    }

    /// A life begins: what the one before it told and did not know to have arrived is open again.
    fn restarted(&mut self) {
        self.lives += 1;
        for prompt in self.prompts.values_mut() {
            let changed = prompt.on(&PromptChange::Restarted);
            debug_assert!(changed.is_ok(), "a start fits every state: {changed:?}");
        }
    }

    fn attached(&mut self, refuse: Refuse, attached: &Attached) -> Result<(), RecordError> {
        attached.validate().map_err(|why| refuse.invalid(why))?;
        let change = AttachmentChange::Attached(Box::new(attached.clone()));
        self.attachment_changed(refuse, &change)
    }

    fn attachment_changed(
        &mut self,
        refuse: Refuse,
        change: &AttachmentChange,
    ) -> Result<(), RecordError> {
        let changed = self.attachment.on(change);
        changed.map_err(|e| refuse.transition(e))?;
        Ok(())
    }

    fn conversation_opened(
        &mut self,
        refuse: Refuse,
        (conversation, key, nonce): (ConversationId, &ConversationKey, Nonce),
        settings: &Settings,
        authorization: Authorization,
    ) -> Result<(), RecordError> {
        settings
            .validate()
            .map_err(|e| refuse.invalid(e.to_string()))?;
        if conversation <= self.last_conversation || self.open_keys.contains_key(key) {
            return Err(refuse.exists(format!("conversation {conversation} ({key})")));
        }
        self.last_conversation = conversation;
        self.open_keys.insert(key.clone(), conversation);
        let opened = DurableConversation {
            settings: Box::new(settings.clone()),
            authorization,
            ..DurableConversation::new(key.clone(), nonce)
        };
        self.conversations.insert(conversation, opened);
        Ok(())
    }

    fn settings_changed(
        &mut self,
        refuse: Refuse,
        conversation: ConversationId,
        settings: &Settings,
    ) -> Result<(), RecordError> {
        settings
            .validate()
            .map_err(|e| refuse.invalid(e.to_string()))?;
        let known = self
            .conversations
            .get_mut(&conversation)
            .ok_or_else(|| refuse.conversation(conversation))?;
        let between = known.round.is_idle();
        if !known.keeps_thread(settings) && !between {
            let reason = format!("the thread of conversation {conversation} serves a round");
            return Err(refuse.invalid(reason));
        }
        let own = |settings: &Settings| (settings.cwd.clone(), settings.base_instructions.clone());
        known.made_otherwise |=
            known.resumes_thread(settings) && own(&known.settings) != own(settings);
        *known.settings = settings.clone();
        Ok(())
    }

    fn conversation_closed(
        &mut self,
        refuse: Refuse,
        conversation: ConversationId,
    ) -> Result<(), RecordError> {
        let closed = self
            .conversations
            .remove(&conversation)
            .ok_or_else(|| refuse.conversation(conversation))?;
        self.open_keys.remove(&closed.key);
        self.forget_calls(closed.nonce, |_| true);
        self.prompts.remove_of(conversation);
        Ok(())
    }

    fn creation_changed(
        &mut self,
        refuse: Refuse,
        conversation: ConversationId,
        change: &CreationChange,
    ) -> Result<(), RecordError> {
        let home = self.attachment.home();
        let known = self
            .conversations
            .get_mut(&conversation)
            .ok_or_else(|| refuse.conversation(conversation))?;
        let changed = match &mut known.creation {
            Some(creation) => creation.on(change).map_err(|e| refuse.transition(e))?,
            None => {
                let begun = Creation::begin(change);
                known.creation = Some(begun.map_err(|e| refuse.transition(e))?);
                Change::Applied
            }
        };
        match (changed, &known.creation) {
            (Change::Applied, Some(Creation::Bound { .. })) => known.home = home.cloned(),
            (Change::Applied, Some(Creation::Preparing { .. } | Creation::Gone { .. })) => {
                known.home = None;
                known.naming = Naming::Unnamed;
                known.compaction = Compaction::None;
                known.ran = false;
                known.made_otherwise = false;
                known.transcript.forget_thread();
            }
            // `thread/start` carries the model and the personality, and no effort.
            (Change::Applied, Some(Creation::MayBeAccepted { thread: None, .. })) => {
                let made = SelectionChange::Made(Selection {
                    effort: None,
                    ..known.settings.selection()
                });
                known
                    .selection
                    .on(&made)
                    .map_err(|e| refuse.transition(e))?;
            }
            (Change::Applied | Change::NoOp, _) => {}
        }
        Ok(())
    }

    fn prompt_prepared(
        &mut self,
        refuse: Refuse,
        message: &MessageId,
        fields: &PromptFields,
    ) -> Result<(), RecordError> {
        fields.validate().map_err(|why| refuse.invalid(why))?;
        let conversation = self
            .conversations
            .get(&fields.conversation)
            .ok_or_else(|| refuse.conversation(fields.conversation))?;
        let new_turn = fields.kind == PromptKind::Start;
        if self.prompts.get(message).is_some() || (new_turn && fields.turn <= self.last_turn) {
            return Err(refuse.exists(format!("message {message} of turn {}", fields.turn)));
        }
        self.last_turn = self.last_turn.max(fields.turn);
        if new_turn {
            // Calls of a turn that is over are told apart by their number only.
            let nonce = conversation.nonce;
            let waiting = conversation.mailbox.first();
            let runs = self.turns_that_may_run(fields.conversation, nonce);
            self.forget_calls(nonce, |call| {
                let settled = matches!(
                    call.state,
                    CallState::Answered { .. } | CallState::Closed { .. }
                );
                // One whose result has no box yet is told by nothing else.
                let boxed = call
                    .arrivals
                    .is_none_or(|(first, _)| waiting.is_none_or(|waiting| first < waiting));
                settled && boxed && !runs.contains(&call.turn)
            });
        }
        if let Some(key) = &fields.key {
            let used = KeyUse::Turn {
                turn: fields.turn,
                message: message.clone(),
                contents: fields
                    .said
                    .unwrap_or_else(|| contents_of(&fields.input, fields.output_schema.as_ref())),
            };
            self.use_key(fields.conversation, key, used);
        }
        self.prompts
            .insert(message.clone(), Prompt::new(fields.clone()));
        Ok(())
    }

    pub(super) fn use_key(&mut self, conversation: ConversationId, key: &str, used: KeyUse) {
        let key = (conversation, key.to_string());
        if self.keys.insert(key.clone(), used).is_none() {
            self.key_order.push_back(key);
        }
        if self.key_order.len() > REMEMBERED_KEYS {
            if let Some(oldest) = self.key_order.pop_front() {
                self.keys.remove(&oldest);
            }
        }
    }

    fn prompt_changed(
        &mut self,
        refuse: Refuse,
        message: &MessageId,
        change: &PromptChange,
    ) -> Result<(), RecordError> {
        let prompt = self
            .prompts
            .get_mut(message)
            .ok_or_else(|| refuse.missing(format!("message {message}")))?;
        let ran = matches!(prompt.state, PromptState::Running { .. });
        prompt.on(change).map_err(|e| refuse.transition(e))?;
        if let Some(conversation) = self.conversations.get_mut(&prompt.fields.conversation) {
            conversation.accepted |= matches!(prompt.state, PromptState::Running { .. });
            conversation.ran |= shows_a_run(change, &prompt.state);
            if let Some(how) = went(change) {
                let steered = prompt.fields.kind == PromptKind::Steer;
                conversation.message_went(message, how, steered);
            }
            if let Some(change) = tells_of_selection(message, change, ran) {
                let changed = conversation.selection.on(&change);
                debug_assert!(changed.is_ok(), "a fate fits every state: {changed:?}");
            }
        }
        if prompt.is_at_rest() {
            self.prompts.remove(message);
        }
        Ok(())
    }

    fn selection_sent(
        &mut self,
        refuse: Refuse,
        conversation: ConversationId,
        message: &MessageId,
        after: &Selection,
    ) -> Result<(), RecordError> {
        after.validate().map_err(|why| refuse.invalid(why))?;
        let known = self
            .conversations
            .get_mut(&conversation)
            .ok_or_else(|| refuse.conversation(conversation))?;
        let carries = self.prompts.get(message).is_some_and(|prompt| {
            prompt.fields.conversation == conversation && prompt.state == PromptState::Prepared
        });
        if !carries {
            return Err(refuse.missing(format!("message {message}, prepared")));
        }
        let sent = SelectionChange::Sent {
            message: message.clone(),
            after: after.clone(),
        };
        known
            .selection
            .on(&sent)
            .map_err(|e| refuse.transition(e))?;
        Ok(())
    }

    fn call_asked(
        &mut self,
        refuse: Refuse,
        call: ToolCallId,
        asked: &CallAsked,
    ) -> Result<(), RecordError> {
        let conversation = self
            .conversations
            .get_mut(&asked.conversation)
            .ok_or_else(|| refuse.conversation(asked.conversation))?;
        if call.nonce != conversation.nonce {
            return Err(refuse.invalid(format!("call {call} has a foreign nonce")));
        }
        if call.sequence <= conversation.last_call {
            return Err(refuse.exists(format!("call {call}")));
        }
        conversation.last_call = call.sequence;
        conversation.ran = true;
        self.last_turn = self.last_turn.max(asked.turn);
        let made = Call {
            conversation: asked.conversation,
            turn: asked.turn,
            native: asked.native.clone(),
            state: CallState::Asked,
            delivery: ToolDelivery::Inline,
            boxed: false,
            given: false,
            arrivals: None,
            offered: None,
        };
        self.calls.insert(call, made);
        Ok(())
    }

    fn question_asked(
        &mut self,
        refuse: Refuse,
        question: QuestionId,
        asked: &QuestionAsked,
    ) -> Result<(), RecordError> {
        if question <= self.last_question {
            return Err(refuse.exists(format!("question {question}")));
        }
        self.last_question = question;
        if let Some(turn) = asked.turn {
            self.last_turn = self.last_turn.max(turn);
            if let Some(conversation) = self.conversations.get_mut(&asked.conversation) {
                conversation.ran = true;
            }
        }
        self.questions
            .insert(question, (asked.clone(), QuestionState::Pending));
        Ok(())
    }

    fn cleanup_changed(
        &mut self,
        refuse: Refuse,
        owner: &Owner,
        action: Action,
        change: &CleanupChange,
    ) -> Result<(), RecordError> {
        owner.validate().map_err(|why| refuse.invalid(why))?;
        change
            .validate()
            .map_err(|why| refuse.invalid(why.to_string()))?;
        let of = (owner.clone(), action);
        let mut cleanup = self.cleanups.remove(&of).unwrap_or(Cleanup::Settled);
        let changed = cleanup.on(change);
        match &cleanup {
            Cleanup::Owed { .. } => {
                self.cleanups.insert(of, cleanup);
            }
            Cleanup::Settled => {}
        }
        changed.map_err(|e| refuse.transition(e))?;
        Ok(())
    }

    fn command_answered(
        &mut self,
        refuse: Refuse,
        id: CommandId,
        answer: &Remembered,
    ) -> Result<(), RecordError> {
        if self.commands.contains_key(&id) || self.is_forgotten(id) {
            return Err(refuse.exists(format!("the answer of command {id}")));
        }
        self.commands.insert(id, answer.clone());
        if self.commands.len() > REMEMBERED_COMMANDS {
            if let Some((oldest, _)) = self.commands.pop_first() {
                self.forgotten_command = Some(oldest);
            }
        }
        Ok(())
    }

    /// Turns of a conversation whose calls may be told again: those of ours without an end, and the
    /// last one that called and is not known to be ours.
    fn turns_that_may_run(&self, conversation: ConversationId, nonce: Nonce) -> Vec<TurnNo> {
        if self.calls_of(nonce).next().is_none() {
            return Vec::new();
        }
        let own = self.prompts.of(conversation);
        let own = own.filter_map(|message| self.prompts.get(message));
        let ours = own.filter(|prompt| prompt.fields.kind == PromptKind::Start);
        let (ended, mut runs): (Vec<_>, Vec<_>) = ours
            .map(|prompt| {
                let over = matches!(prompt.state, PromptState::Terminal { .. });
                (over, prompt.fields.turn)
            })
            .partition(|(over, _)| *over);
        let known = |turn: TurnNo| {
            let all = ended.iter().chain(&runs);
            all.into_iter().any(|(_, no)| *no == turn)
        };
        let calls = self.calls_of(nonce);
        let last = calls
            .map(|(_, call)| call.turn)
            .filter(|turn| !known(*turn));
        let last = last.max();
        runs.extend(last.map(|turn| (false, turn)));
        runs.into_iter().map(|(_, turn)| turn).collect()
    }

    pub(super) fn calls_of(&self, nonce: Nonce) -> impl Iterator<Item = (&ToolCallId, &Call)> {
        self.calls.range(every(nonce))
    }

    fn forget_calls(&mut self, nonce: Nonce, over: impl Fn(&Call) -> bool) {
        let gone: Vec<ToolCallId> = self
            .calls_of(nonce)
            .filter(|(_, call)| over(call))
            .map(|(id, _)| *id)
            .collect();
        for id in gone {
            self.calls.remove(&id);
        }
    }
}

/// Whether a change that was taken proves that a turn ran, and not only that the server answered.
fn shows_a_run(change: &PromptChange, state: &PromptState) -> bool {
    match (change, state) {
        (PromptChange::Output { .. }, _) => true,
        (
            PromptChange::Ended {
                unrecorded: false, ..
            },
            PromptState::Terminal {
                turn: Some(_),
                outcome,
                ..
            },
        ) => match outcome {
            Outcome::Completed { .. } | Outcome::Interrupted | Outcome::Failed { .. } => true,
            // Nobody knows that it did not: its thread is not given up in silence.
            Outcome::Lost { .. } | Outcome::Unknown { .. } => true,
            Outcome::Rejected { .. } | Outcome::TimedOut => false,
        },
        (PromptChange::Ended { .. }, _)
        | (
            PromptChange::Prepared(_)
            | PromptChange::Dispatched
            | PromptChange::Accepted { .. }
            | PromptChange::Unrecorded
            | PromptChange::CancelRequested
            | PromptChange::CancelDispatched { .. }
            | PromptChange::CancelSettled
            | PromptChange::CancelAmbiguous
            | PromptChange::Delivering
            | PromptChange::Delivered
            | PromptChange::TimedOut
            | PromptChange::Forsaken
            | PromptChange::Restarted,
            _,
        ) => false,
    }
}

/// What a change of a message tells of the boxes that it carries.
fn went(change: &PromptChange) -> Option<Went> {
    match change {
        PromptChange::Accepted { .. } => Some(Went::Answered),
        PromptChange::Ended {
            unrecorded: true, ..
        } => Some(Went::Back),
        PromptChange::Ended { outcome, .. } => Some(match outcome {
            Outcome::Rejected { .. } => Went::Back,
            // Nobody knows that the thread does not hold them: they are not submitted again.
            Outcome::Completed { .. }
            | Outcome::Interrupted
            | Outcome::Failed { .. }
            | Outcome::TimedOut
            | Outcome::Lost { .. }
            | Outcome::Unknown { .. } => Went::Final,
        }),
        PromptChange::Prepared(_)
        | PromptChange::Dispatched
        | PromptChange::Output { .. }
        | PromptChange::Unrecorded
        | PromptChange::CancelRequested
        | PromptChange::CancelDispatched { .. }
        | PromptChange::CancelSettled
        | PromptChange::CancelAmbiguous
        | PromptChange::Delivering
        | PromptChange::Delivered
        | PromptChange::TimedOut
        | PromptChange::Forsaken
        | PromptChange::Restarted => None,
    }
}

/// What a change of a message tells of the selection that it carried; `ran` is whether the server
/// seemed to have it before.
fn tells_of_selection(
    message: &MessageId,
    change: &PromptChange,
    ran: bool,
) -> Option<SelectionChange> {
    let message = message.clone();
    match change {
        PromptChange::Accepted { .. } => Some(SelectionChange::Accepted(message)),
        PromptChange::Unrecorded => Some(match ran {
            true => SelectionChange::Unrecorded(message),
            false => SelectionChange::Refused(message),
        }),
        PromptChange::Ended { outcome, .. } => Some(match outcome {
            Outcome::Rejected { .. } => SelectionChange::Refused(message),
            Outcome::Completed { .. }
            | Outcome::Interrupted
            | Outcome::Failed { .. }
            | Outcome::TimedOut
            | Outcome::Lost { .. }
            | Outcome::Unknown { .. } => SelectionChange::Doubted(message),
        }),
        PromptChange::Prepared(_)
        | PromptChange::Dispatched
        | PromptChange::Output { .. }
        | PromptChange::CancelRequested
        | PromptChange::CancelDispatched { .. }
        | PromptChange::CancelSettled
        | PromptChange::CancelAmbiguous
        | PromptChange::Delivering
        | PromptChange::Delivered
        | PromptChange::TimedOut
        | PromptChange::Forsaken
        | PromptChange::Restarted => None,
    }
}

/// What a message says, as far as the same key must say the same again.
pub(crate) fn contents_of(input: &[InputItem], schema: Option<&RawJson>) -> u32 {
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
