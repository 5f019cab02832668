//! Commands: checked against the state, answered exactly once, remembered for a repeat.

use alloc::{
    boxed::Box,
    collections::{BTreeSet, VecDeque},
    vec::Vec,
};

use super::{
    Conversation, Link, Machine,
    out::UNGATED,
    requests::{Kind, RawParams, RawRequest, Settled},
    turn::{Stop, Turn, TurnState},
};
use crate::{
    bug::Bug,
    cleanup::Action,
    command::{BusyWhy, Command, CommandError, InputItem, RefusalClass, Reply, Settings},
    effect::{Durability, Effects},
    event::{CallClosedWhy, ConversationUpdate, Outcome},
    id::{CommandId, ConversationId, ConversationKey, JournalSeq, MessageId, ThreadId, TurnNo},
    prompt::{PromptChange, PromptFields, PromptKind, PromptState},
    record::Record,
    remembered::Remembered,
    round::Wishes,
    selection::{ModelList, Wanted},
    thread::Creation,
};

type Answer = Result<Reply, CommandError>;

/// Answers, as far back as they are remembered, and commands without one.
#[derive(Clone, Debug, Default)]
pub(super) struct Commands {
    open: BTreeSet<CommandId>,
    /// In the order of their numbers.
    answered: VecDeque<(CommandId, Answer, JournalSeq)>,
    /// The bytes of remembered responses.
    bytes: usize,
    forgotten: Option<CommandId>,
    waiting: Vec<(CommandId, RawRequest)>,
}

/// Responses of raw requests are kept up to so many bytes in all.
const MAX_BYTES: usize = 16 << 20;

fn size_of_answer(answer: &Answer) -> usize {
    match answer {
        Ok(Reply::Response(response)) => response.get().len(),
        Ok(_) | Err(_) => 0,
    }
}

/// What is known of a command's number.
enum Known {
    New,
    Open,
    Answered(Answer, JournalSeq),
    Forgotten,
}

impl Commands {
    fn look_up(&self, id: CommandId) -> Known {
        if let Ok(at) = self.answered.binary_search_by_key(&id, |(id, ..)| *id) {
            let (_, answer, gate) = &self.answered[at];
            Known::Answered(answer.clone(), *gate)
        } else if self.open.contains(&id) {
            Known::Open
        } else if self.forgotten.is_some_and(|last| id <= last) {
            Known::Forgotten
        } else {
            Known::New
        }
    }

    pub(super) fn answered(
        &mut self,
        id: CommandId,
        answer: Answer,
        gate: JournalSeq,
        limit: usize,
    ) {
        self.open.remove(&id);
        let size = size_of_answer(&answer);
        // Callers count up: nearly always the new one is the last.
        match self.answered.binary_search_by_key(&id, |(id, ..)| *id) {
            Ok(at) => self.answered[at] = (id, answer, gate),
            Err(at) => self.answered.insert(at, (id, answer, gate)),
        }
        self.bytes += size;
        while self.answered.len() > limit || (self.bytes > MAX_BYTES && self.answered.len() > 1) {
            if let Some((oldest, answer, _)) = self.answered.pop_front() {
                self.bytes = self.bytes.saturating_sub(size_of_answer(&answer));
                self.forgotten = self.forgotten.max(Some(oldest));
            }
        }
    }

    pub(super) fn wait_raw(&mut self, id: CommandId, request: RawRequest) {
        self.waiting.push((id, request));
    }

    pub(super) fn take_waiting_raw(&mut self) -> Vec<(CommandId, RawRequest)> {
        core::mem::take(&mut self.waiting)
    }
}

impl Machine {
    pub(super) fn on_command(&mut self, fx: &mut Effects, id: CommandId, command: Command) {
        match self.commands.look_up(id) {
            Known::New => match self.durable.answered(id).map(Remembered::reply) {
                Some(reply) => {
                    self.emit_answer(fx, id, UNGATED, Ok(reply));
                    return;
                }
                None if self.durable.is_forgotten(id) => {
                    self.emit_answer(fx, id, UNGATED, Err(CommandError::Forgotten));
                    return;
                }
                None => {
                    self.commands.open.insert(id);
                }
            },
            // The first one's answer is the second one's too.
            Known::Open => return,
            Known::Answered(answer, gate) => {
                self.emit_answer(fx, id, gate, answer);
                return;
            }
            Known::Forgotten => {
                self.emit_answer(fx, id, UNGATED, Err(CommandError::Forgotten));
                return;
            }
        }
        let done = match command {
            Command::Open { key, settings } => self.open(fx, id, key, settings),
            Command::Change {
                conversation,
                settings,
            } => self.change(fx, id, conversation, settings),
            Command::Send {
                conversation,
                input,
                options,
            } => self.send_message(fx, id, conversation, input, *options),
            Command::Accept {
                conversation,
                boxes,
                options,
            } => self.accept_boxes(fx, id, conversation, boxes, *options),
            Command::Begin { conversation } => self.begin_now(fx, id, conversation),
            Command::Restart {
                conversation,
                binding,
            } => self.restart(fx, id, conversation, binding.as_ref()),
            Command::Dismiss { conversation } => self.dismiss(fx, id, conversation),
            Command::Hold {
                conversation,
                reason,
            } => self.hold_rounds(fx, id, conversation, reason),
            Command::Release { conversation } => self.release_rounds(fx, id, conversation),
            Command::Bind {
                conversation,
                binding,
            } => self.bind(fx, id, conversation, &binding),
            Command::Unbind { conversation } => self.unbind(fx, id, conversation),
            Command::Preflight {
                conversation,
                items,
            } => self.preflight(fx, id, conversation, items),
            Command::ToolMessage { call, text } => self.tool_message(fx, id, call, text),
            Command::Read {
                conversation,
                from,
                limit,
            } => self.read(fx, id, conversation, from, limit),
            Command::Steer { turn, input } => self.steer(fx, id, turn, input),
            Command::Interrupt { turn } => self.interrupt(fx, id, turn),
            Command::Abandon { turn } => self.abandon(fx, id, turn),
            Command::Respond { call, result } => self.respond(fx, id, call, result),
            Command::Answer { question, answer } => self.answer_question(fx, id, question, &answer),
            Command::RefreshToken { refresh, answer } => {
                self.refresh_token(fx, id, refresh, &answer)
            }
            Command::Acknowledge { turn } => self.acknowledge(fx, id, turn),
            Command::Close { conversation } => self.close(fx, id, conversation),
            Command::Reset { conversation } => self.reset(fx, id, conversation),
            Command::Materialise { conversation } => self.materialise(fx, id, conversation),
            Command::Fork {
                conversation,
                key,
                settings,
            } => self.fork(fx, id, conversation, key, settings),
            Command::Compact { conversation } => self.compact(fx, id, conversation),
            Command::Detach { owner } => self.clean_up(fx, id, owner, Action::Detach),
            Command::Archive { owner } => self.clean_up(fx, id, owner, Action::Archive),
            Command::Delete { owner } => self.clean_up(fx, id, owner, Action::Delete),
            Command::Request {
                method,
                params,
                effect,
            } => {
                let params = RawParams::Open(params);
                let raw = RawRequest {
                    method,
                    params,
                    effect,
                };
                self.raw(fx, id, raw);
                Ok(())
            }
            Command::SecretRequest {
                method,
                params,
                effect,
            } => {
                let params = RawParams::Secret(params);
                let raw = RawRequest {
                    method,
                    params,
                    effect,
                };
                self.raw(fx, id, raw);
                Ok(())
            }
            Command::Shutdown => {
                self.shut_down(fx, id);
                Ok(())
            }
        };
        if let Err(error) = done {
            self.answer(fx, id, Err(error));
        }
    }

    fn open(
        &mut self,
        fx: &mut Effects,
        id: CommandId,
        key: ConversationKey,
        settings: Box<Settings>,
    ) -> Result<(), CommandError> {
        settings.validate().map_err(CommandError::Settings)?;
        if let Some(conversation) = self.durable.conversation_by_key(&key) {
            let same = self
                .durable
                .conversation(conversation)
                .is_some_and(|c| c.settings == settings);
            if !same {
                return Err(CommandError::OpenDifferently { key });
            }
            let closes = |c: &mut Conversation| c.closing.is_some();
            if self.conversation(conversation).is_some_and(closes) {
                let why = BusyWhy::Closing;
                return Err(CommandError::Busy { conversation, why });
            }
            if self.awaits_fork(conversation, id)? {
                return Ok(());
            }
            let gate = self.gate();
            self.answer_gated(fx, id, gate, Ok(Reply::Opened { conversation }));
            return Ok(());
        }
        let conversation = self
            .durable
            .last_conversation()
            .next()
            .ok_or_else(|| CommandError::exhausted("conversation"))?;
        let nonce = self.rng.nonce();
        let authorization = self.authorization_of(settings.authorization);
        let record = Record::ConversationOpened {
            conversation,
            key,
            nonce,
            settings,
            authorization,
        };
        let gate = self.record(record, Durability::Synced);
        self.conversations
            .push(Some(Box::new(Conversation::new(conversation))));
        self.answer_gated(fx, id, gate, Ok(Reply::Opened { conversation }));
        Ok(())
    }

    fn change(
        &mut self,
        fx: &mut Effects,
        id: CommandId,
        conversation: ConversationId,
        settings: Box<Settings>,
    ) -> Result<(), CommandError> {
        settings.validate().map_err(CommandError::Settings)?;
        let own = self.conversation(conversation);
        let told = own.as_ref().and_then(|c| c.told_model.clone());
        let closes = own.map(|c| c.closing.is_some());
        let (Some(known), Some(closes)) = (self.durable.conversation(conversation), closes) else {
            return Err(CommandError::UnknownConversation { conversation });
        };
        if closes {
            let why = BusyWhy::Closing;
            return Err(CommandError::Busy { conversation, why });
        }
        let keeps = known.keeps_thread(&settings);
        let resumes = known.resumes_thread(&settings);
        if !keeps {
            self.check_thread_free(conversation)?;
        }
        let Some(known) = self.durable.conversation(conversation) else {
            return Err(CommandError::UnknownConversation { conversation });
        };
        if (keeps || resumes) && known.creation.as_ref().is_some_and(Creation::has_left) {
            let asked = settings.selection();
            let wanted = Wanted {
                asked: &asked,
                thread: &known.selection,
                told: told.as_deref(),
                models: settings.models,
            };
            // What only the list decides, the next message finds out.
            if !wanted.needs_list() || *self.model_list() != ModelList::Unread {
                wanted
                    .plan(self.model_list())
                    .map_err(CommandError::Selection)?;
            }
        }
        if known.settings != settings {
            let record = Record::SettingsChanged {
                conversation,
                settings,
            };
            self.record(record, Durability::Synced);
        }
        if let Some(c) = self.conversation(conversation) {
            c.cannot_begin = false;
        }
        if resumes {
            // The server takes them when it loads the thread, which it does once nobody listens to it.
            if let Some(thread) = self.unsubscribe(fx, conversation) {
                if let Some(c) = self.conversation(conversation) {
                    c.link = Link::Detached(thread);
                }
            }
        } else if !keeps {
            // The server fixes them when it makes a thread: the next one is told everything.
            self.leave_thread(fx, conversation);
        }
        self.touch(conversation);
        let gate = self.gate();
        self.answer_gated(fx, id, gate, Ok(Reply::Done));
        Ok(())
    }

    pub(super) fn check_input(&self, input: &[InputItem]) -> Result<(), CommandError> {
        if input.is_empty() {
            return Err(CommandError::BadInput {
                reason: "there is no input".into(),
            });
        }
        let size: usize = input.iter().map(|item| item.json().get().len() + 1).sum();
        // The rest of the frame is ids, a schema of at most 64 KiB and member names.
        let size = size + crate::prompt::MAX_SCHEMA + 4_096;
        if size > self.config.limits.frame {
            return Err(CommandError::FrameTooLarge { size });
        }
        Ok(())
    }

    /// Makes a turn and the message that begins it.
    pub(super) fn prepare(
        &mut self,
        conversation: ConversationId,
        (no, message): (TurnNo, MessageId),
        input: Vec<InputItem>,
        wishes: Wishes,
    ) {
        let Wishes {
            key,
            said,
            output_schema,
            deadline,
        } = wishes;
        self.last_turn = no;
        let wants_json = output_schema.is_some();
        let fields = PromptFields {
            conversation,
            turn: no,
            kind: PromptKind::Start,
            place: 0,
            input,
            key,
            said,
            output_schema,
            deadline,
            until: deadline.map(|deadline| self.now.after(deadline)),
        };
        self.prompt(
            &message,
            PromptChange::Prepared(Box::new(fields)),
            Durability::Synced,
        );
        let now = self.now;
        if let Some(c) = self.conversation(conversation) {
            // Most conversations have one turn at a time, and far apart.
            c.turns.reserve_exact(1);
            c.turns.push(Turn::new(
                no,
                conversation,
                Some(message.clone()),
                wants_json,
                now,
            ));
        }
        self.turn_owner.insert(no, conversation);
        if let Some(deadline) = deadline {
            self.timers
                .set(crate::timers::Timer::TurnDeadline(no), now.after(deadline));
        }
    }

    /// Records a change of a message.
    pub(super) fn prompt(
        &mut self,
        message: &MessageId,
        change: PromptChange,
        durability: Durability,
    ) -> JournalSeq {
        self.record(
            Record::Prompt {
                message: message.clone(),
                change,
            },
            durability,
        )
    }

    fn interrupt(
        &mut self,
        fx: &mut Effects,
        id: CommandId,
        no: TurnNo,
    ) -> Result<(), CommandError> {
        let Some(turn) = self.turn(no) else {
            return self.answer_of_the_past(fx, id, no);
        };
        match &mut turn.stop {
            Stop::Wanted { commands }
            | Stop::Sent { commands, .. }
            | Stop::Granted { commands } => {
                commands.push(id);
            }
            Stop::No | Stop::Cancelled => {
                turn.stop = Stop::Wanted {
                    commands: alloc::vec![id],
                };
                self.want_stop(fx, no);
            }
        }
        Ok(())
    }

    /// A turn that is over is answered here: nothing is written.
    fn answer_of_the_past(
        &mut self,
        fx: &mut Effects,
        id: CommandId,
        no: TurnNo,
    ) -> Result<(), CommandError> {
        if no.0 == 0 || no > self.last_turn {
            return Err(CommandError::UnknownTurn { turn: no });
        }
        let outcome = self.past_outcome(no).unwrap_or("ended").into();
        let gate = self.gate();
        self.answer_gated(fx, id, gate, Ok(Reply::AlreadyEnded { outcome }));
        Ok(())
    }

    fn past_outcome(&self, no: TurnNo) -> Option<&'static str> {
        self.durable
            .prompt_of_turn(no)
            .and_then(|(_, p)| match &p.state {
                PromptState::Terminal { outcome, .. } => Some(outcome.name()),
                PromptState::Prepared
                | PromptState::MayBeAccepted
                | PromptState::Running { .. } => None,
            })
    }

    fn abandon(&mut self, fx: &mut Effects, id: CommandId, no: TurnNo) -> Result<(), CommandError> {
        if self.turn(no).is_none() {
            if no.0 == 0 || no > self.last_turn {
                return Err(CommandError::UnknownTurn { turn: no });
            }
            // An end that nobody takes any more is delivered to nobody.
            self.forsake(no);
        } else {
            self.give_turn_up(fx, no);
        }
        let gate = self.gate();
        self.answer_gated(fx, id, gate, Ok(Reply::Done));
        Ok(())
    }

    fn acknowledge(
        &mut self,
        fx: &mut Effects,
        id: CommandId,
        no: TurnNo,
    ) -> Result<(), CommandError> {
        if no.0 == 0 || no > self.last_turn {
            return Err(CommandError::UnknownTurn { turn: no });
        }
        let message = self
            .durable
            .prompt_of_turn(no)
            .and_then(|(message, prompt)| {
                let told = matches!(prompt.delivery, crate::prompt::Delivery::Delivering);
                told.then(|| message.clone())
            });
        if let Some(message) = message.filter(|_| !self.has_bug(Bug::ForgetsAcknowledgements)) {
            self.prompt(&message, PromptChange::Delivered, Durability::Synced);
        }
        let gate = self.gate();
        self.answer_gated(fx, id, gate, Ok(Reply::Done));
        Ok(())
    }

    fn close(
        &mut self,
        fx: &mut Effects,
        id: CommandId,
        conversation: ConversationId,
    ) -> Result<(), CommandError> {
        let ended = self.ended_error().is_some();
        let Some(c) = self.conversation(conversation) else {
            // An unknown conversation is closed already.
            self.answer(fx, id, Ok(Reply::Done));
            return Ok(());
        };
        if let Some(commands) = &mut c.closing {
            commands.push(id);
            return Ok(());
        }
        let why = BusyWhy::Turn;
        if c.compacts() {
            let why = BusyWhy::Compacting;
            return Err(CommandError::Busy { conversation, why });
        }
        if !c.turns.is_empty() || !c.doubts.is_empty() || c.letting_go || c.errands.is_some() {
            return Err(CommandError::Busy { conversation, why });
        }
        match c.link.clone() {
            Link::Starting | Link::Resuming(_) => {
                return Err(CommandError::Busy { conversation, why });
            }
            Link::Loaded(thread) if !ended => {
                c.closing = Some(alloc::vec![id]);
                let params = super::threads::ThreadParams { thread_id: &thread };
                let kind = Kind::Unsubscribe { conversation };
                self.request(fx, kind, "thread/unsubscribe", &params, UNGATED);
            }
            Link::None | Link::Detached(_) | Link::Loaded(_) => {
                self.closed(fx, conversation, alloc::vec![id]);
            }
        }
        Ok(())
    }

    /// Lets the native thread of an idle conversation go for good.
    fn reset(
        &mut self,
        fx: &mut Effects,
        id: CommandId,
        conversation: ConversationId,
    ) -> Result<(), CommandError> {
        self.check_thread_free(conversation)?;
        self.leave_thread(fx, conversation);
        self.touch(conversation);
        let gate = self.gate();
        self.answer_gated(fx, id, gate, Ok(Reply::Done));
        Ok(())
    }

    /// The conversation's thread serves it no more: the next round has another one made.
    fn leave_thread(&mut self, fx: &mut Effects, conversation: ConversationId) {
        if let Some(thread) = self.unsubscribe(fx, conversation) {
            self.forget_thread(fx, conversation, &thread);
        }
    }

    /// The thread of a conversation, to which we listen no more.
    fn unsubscribe(&mut self, fx: &mut Effects, conversation: ConversationId) -> Option<ThreadId> {
        let link = self.conversation(conversation)?.link.clone();
        let thread = link.thread()?.clone();
        if matches!(link, Link::Loaded(_)) && self.connection.is_ready() {
            let params = super::threads::ThreadParams { thread_id: &thread };
            let kind = Kind::Unsubscribe { conversation };
            self.request(fx, kind, "thread/unsubscribe", &params, UNGATED);
        }
        Some(thread)
    }

    pub(super) fn unsubscribed(
        &mut self,
        fx: &mut Effects,
        conversation: ConversationId,
        how: Settled,
    ) {
        let Some(commands) = self
            .conversation(conversation)
            .and_then(|c| c.closing.take())
        else {
            return;
        };
        let gone = match &how {
            Settled::Answered(_) | Settled::NotSent => true,
            // A thread that the server does not have needs no letting go.
            Settled::Refused(refusal) => matches!(
                refusal.class,
                RefusalClass::ThreadNotFound
                    | RefusalClass::ThreadNotLoaded
                    | RefusalClass::NoRollout
            ),
            // Without a connection there is nothing to let go.
            Settled::Unknown(_) => !self.is_alive(),
        };
        if gone {
            self.closed(fx, conversation, commands);
            return;
        }
        if let (Settled::Unknown(_), Some(c)) = (&how, self.conversation(conversation)) {
            // The server may have let it go all the same: it is resumed before it is used.
            if let Link::Loaded(thread) = c.link.clone() {
                c.link = Link::Detached(thread);
            }
        }
        for id in commands {
            self.answer(fx, id, Err(how.clone().error("thread/unsubscribe")));
        }
        self.advance(fx, conversation);
    }

    /// Forgets a conversation; its key is free.
    pub(super) fn closed(
        &mut self,
        fx: &mut Effects,
        conversation: ConversationId,
        commands: Vec<CommandId>,
    ) {
        // Turns that the server began while we were closing.
        let turns: Vec<TurnNo> = self
            .conversation(conversation)
            .map(|c| c.turns.iter().map(|turn| turn.no).collect())
            .unwrap_or_default();
        for no in turns {
            self.thread_gone(fx, conversation, no);
        }
        let unanswered = self.conversation(conversation).map(|c| {
            let doubts = core::mem::take(&mut c.unanswered);
            doubts.into_iter().chain(core::mem::take(&mut c.doubts))
        });
        for doubt in unanswered.into_iter().flatten() {
            self.doubt_unknown(fx, doubt, "the conversation was closed");
        }
        let thread = self
            .conversation(conversation)
            .and_then(|c| c.link.thread().cloned());
        if let Some(thread) = thread {
            self.threads.remove(&thread);
        }
        self.errands_closed(fx, conversation);
        let why = crate::event::QuestionClosedWhy::TurnEnded;
        self.close_child_questions(fx, Some(conversation), why, true);
        self.close_child_calls_of(fx, conversation, CallClosedWhy::TurnEnded);
        self.timers
            .clear(crate::timers::Timer::LookAgain(conversation));
        self.timers
            .clear(crate::timers::Timer::Replay(conversation));
        let record = Record::ConversationClosed { conversation };
        let gate = self.record(record, Durability::Synced);
        self.tell_conversation(fx, conversation, ConversationUpdate::Closed);
        if let Some(place) = self.conversations.get_mut(conversation.0 as usize - 1) {
            *place = None;
        }
        for id in commands {
            self.answer_gated(fx, id, gate, Ok(Reply::Done));
        }
    }

    pub(super) fn on_queue_full(&mut self, fx: &mut Effects, conversation: ConversationId) {
        let Some(c) = self.conversation(conversation) else {
            return;
        };
        let turns: Vec<TurnNo> = c.turns.iter().map(|t| t.no).collect();
        for no in turns {
            let failure = crate::event::Failure::ours(
                crate::event::FailureKind::QueueFull,
                "too much text waits for the application",
            );
            self.fail_and_stop(fx, conversation, no, failure);
        }
    }

    /// Tells an end of our own while the server still runs the turn, and stops it there.
    pub(super) fn fail_and_stop(
        &mut self,
        fx: &mut Effects,
        conversation: ConversationId,
        no: TurnNo,
        failure: crate::event::Failure,
    ) {
        let Some(turn) = self.turn(no) else { return };
        let left = match turn.state {
            TurnState::Waiting => false,
            TurnState::Sent { request } => self.requests.has_left(request),
            TurnState::Running { .. } | TurnState::Suspended { .. } => true,
        };
        if !left {
            // Nothing was accepted: the message never leaves.
            self.withdraw_start(no);
            let error = crate::event::Rejection::NotSent(failure.message);
            let outcome = Outcome::Rejected { error };
            self.end_turn(
                fx,
                conversation,
                no,
                outcome,
                crate::event::EndSource::Local,
            );
            return;
        }
        let Some(turn) = self.turn(no) else { return };
        if turn.stop.is_unasked() {
            turn.stop = Stop::Wanted {
                commands: Vec::new(),
            };
            self.want_stop(fx, no);
        }
        let withdraw = super::calls::withdrawn("the turn failed");
        let why = crate::event::CallClosedWhy::TurnEnded;
        self.close_calls(fx, conversation, no, why, Some(withdraw));
        let why = crate::event::QuestionClosedWhy::TurnEnded;
        self.close_questions(fx, conversation, no, why, true);
        self.tell_end_early(fx, conversation, no, Outcome::Failed { error: failure });
    }
}
