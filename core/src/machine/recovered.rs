//! The beginning of a life, and what it takes over from the lives before it.

use alloc::{boxed::Box, vec::Vec};

use super::{
    Conversation, Link, Machine,
    calls::ANY_CONTENTS,
    reconcile::Doubt,
    steers::too_late,
    turn::{Audience, Known, Steer, SteerState, Stop, Turn, TurnState},
};
use crate::{
    command::{CommandError, SteerWhen, ToolDelivery, ToolResult},
    durable::Durable,
    effect::{Durability, Effect, Effects, OpenReason},
    event::{ConnectionEvent, ConversationUpdate, Origin, Outcome, Recovered, TurnEnd, TurnUpdate},
    hash::hash,
    id::{CommandId, ConversationId, Epoch, JournalSeq, MessageId, ToolCallId, TurnNo},
    prompt::{Cancellation, Delivery, Prompt, PromptChange, PromptKind, PromptState},
    record::{Record, RequestEnd},
    round::RoundChange,
    thread::Creation,
    time::Timestamp,
    timers::Timer,
    tools::CallChange,
};

/// What the model is told of a call that the application of an earlier life had not answered.
const SHUT_DOWN: &str = "interrupted by shutdown";

impl Machine {
    /// Begins a life on what the records of earlier ones make.
    pub(crate) fn begin(
        &mut self,
        durable: Durable,
        seq: JournalSeq,
        now: Timestamp,
        seed: u64,
    ) -> Effects {
        let mut fx = Effects::default();
        self.now = now;
        self.durable = durable;
        self.seq = seq;
        self.outbox.begin(seq);
        let lives = self.durable.lives();
        self.record(
            Record::Start {
                version: crate::VERSION.into(),
                seed,
                at: now,
            },
            Durability::Synced,
        );
        let why = if lives == 0 {
            OpenReason::Start
        } else {
            self.recover(&mut fx);
            OpenReason::Recover {
                orphan: self.orphan(),
            }
        };
        let epoch = self.last_epoch;
        fx.list.push(Effect::Open(epoch, why));
        let due = now.after(self.config.limits.handshake);
        self.timers.set(Timer::Handshake(epoch), due);
        self.finish(&mut fx);
        fx
    }

    fn recover(&mut self, fx: &mut Effects) {
        let mut found = Recovered {
            lives: self.durable.lives() - 1,
            ..Recovered::default()
        };
        let count = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
        self.last_turn = self.durable.last_turn();
        found.conversations = count(self.recover_conversations());
        let failed = self.fail_calls();
        found.calls = count(failed.len());
        let open: Vec<CommandId> = self.durable.requests().collect();
        for command in open {
            let end = RequestEnd::Unknown;
            let record = Record::RequestEnded { command, end };
            self.record(record, Durability::Synced);
        }
        let mut prompts: Vec<(MessageId, Prompt)> = self
            .durable
            .named_prompts()
            .map(|(message, prompt)| (message.clone(), prompt.clone()))
            .collect();
        // Turns before what was steered into them, and each in the order in which they were said.
        prompts.sort_by_key(|(_, prompt)| {
            let steer = prompt.fields.kind == PromptKind::Steer;
            (steer, prompt.fields.turn, prompt.fields.place)
        });
        let summary = fx.list.len();
        for (message, prompt) in prompts {
            match (prompt.fields.kind, &prompt.state) {
                (PromptKind::Start, PromptState::Terminal { .. }) => {
                    found.ends += u32::from(self.tell_again(fx, &message, &prompt));
                }
                (PromptKind::Start, _) => {
                    found.turns += 1;
                    self.recover_turn(fx, message, &prompt, &failed);
                }
                (PromptKind::Steer, PromptState::Terminal { .. }) => {
                    self.steer_was_told(&message, prompt.delivery);
                }
                (PromptKind::Steer, _) => self.recover_steer(fx, message, &prompt),
            }
        }
        self.recover_rounds(fx);
        let event = crate::event::Event::Connection(Box::new(ConnectionEvent::Recovered(found)));
        fx.list.insert(summary, Effect::Emit(event));
    }

    fn recover_conversations(&mut self) -> usize {
        let known: Vec<(ConversationId, Option<crate::ThreadId>)> = self
            .durable
            .numbered()
            .map(|(id, known)| {
                let thread = known.creation.as_ref().and_then(Creation::thread);
                (id, thread.cloned())
            })
            .collect();
        let last = self.durable.last_conversation().0 as usize;
        self.conversations.resize_with(last, || None);
        let open = known.len();
        for (id, thread) in known {
            let mut conversation = Conversation::new(id);
            if let Some(thread) = thread {
                self.threads.insert(thread.clone(), id);
                conversation.link = Link::Detached(thread);
            }
            if let Some(place) = (id.0 as usize)
                .checked_sub(1)
                .and_then(|at| self.conversations.get_mut(at))
            {
                *place = Some(Box::new(conversation));
            }
            self.recover_errands(id);
        }
        open
    }

    /// Calls that the application of an earlier life had: it is not told of them again.
    fn fail_calls(&mut self) -> Vec<TurnNo> {
        let open: Vec<ToolCallId> = self
            .durable
            .calls()
            // Those of a preflight are offered again.
            .filter(|(_, call)| call.is_open() && call.offered.is_none())
            .map(|(id, _)| id)
            .collect();
        for call in &open {
            let result = ToolResult::failed(SHUT_DOWN);
            let given = false;
            let change = CallChange::Answered { result, given };
            let record = Record::ToolCall {
                call: *call,
                change,
            };
            self.record(record, Durability::Synced);
        }
        let turns = open.iter().filter_map(|call| self.durable.call(*call));
        turns.map(|call| call.turn).collect()
    }

    /// A round whose turn is over can only have failed.
    fn fail_unserved(&mut self, conversation: ConversationId) {
        let known = self.durable.conversation(conversation);
        let open = known.and_then(|known| known.round.open());
        let Some(no) = open
            .map(|round| round.turn)
            .filter(|no| self.turn(*no).is_none())
        else {
            return;
        };
        self.round(
            conversation,
            RoundChange::Failed {
                turn: no,
                message: "the turn that served it is over".into(),
                restartable: false,
                text: Some(alloc::string::String::new()),
            },
        );
    }

    /// Rounds that are due, and calls that are offered again.
    fn recover_rounds(&mut self, fx: &mut Effects) {
        let alive: Vec<ConversationId> = self
            .durable
            .numbered()
            .filter(|(_, known)| {
                !known.round.is_idle() || known.is_triggered() || known.held.is_some()
            })
            .map(|(id, _)| id)
            .collect();
        for conversation in alive {
            self.fail_unserved(conversation);
            if let Some(c) = self.conversation(conversation) {
                c.recovered = true;
            }
            self.touch(conversation);
        }
        let offered: Vec<ToolCallId> = self
            .durable
            .calls()
            .filter(|(_, call)| call.is_open() && call.offered.is_some())
            .map(|(id, _)| id)
            .collect();
        for call in offered {
            self.offer_call(fx, call);
        }
        self.look_after(fx);
    }

    /// An end that was not acknowledged is told again.
    fn tell_again(&mut self, fx: &mut Effects, message: &MessageId, prompt: &Prompt) -> bool {
        let PromptState::Terminal {
            turn,
            outcome,
            source,
            output,
        } = &prompt.state
        else {
            return false;
        };
        if prompt.delivery.is_final() {
            return false;
        }
        let said = match outcome {
            Outcome::Completed { text, .. } => text.clone(),
            _ => None,
        };
        let end = TurnEnd {
            outcome: outcome.clone(),
            text: said.or_else(|| output.clone()),
            candidate: None,
            usage: None,
            native: turn.clone(),
            message: Some(message.clone()),
            source: *source,
        };
        let (conversation, no) = (prompt.fields.conversation, prompt.fields.turn);
        let gate = self.prompt(message, PromptChange::Delivering, Durability::Synced);
        self.tell_recovered(fx, conversation, no);
        self.tell_gated(fx, conversation, no, gate, TurnUpdate::Ended(end.into()));
        true
    }

    fn tell_recovered(&mut self, fx: &mut Effects, conversation: ConversationId, turn: TurnNo) {
        let origin = Origin::Recovered;
        let update = ConversationUpdate::TurnBegan { turn, origin };
        self.tell_conversation(fx, conversation, update);
    }

    fn recover_turn(
        &mut self,
        fx: &mut Effects,
        message: MessageId,
        prompt: &Prompt,
        failed: &[TurnNo],
    ) {
        let fields = &prompt.fields;
        let (conversation, no) = (fields.conversation, fields.turn);
        let wants_json = fields.output_schema.is_some();
        let mut turn = Turn::new(
            no,
            conversation,
            Some(message.clone()),
            wants_json,
            self.now,
        );
        turn.recovered = true;
        turn.suspended_told = true;
        turn.state = match &prompt.state {
            PromptState::Prepared => TurnState::Waiting,
            PromptState::MayBeAccepted => TurnState::Suspended { native: None },
            PromptState::Running {
                turn: native,
                output,
            } => {
                if let Some(output) = output {
                    turn.text.recover(output);
                }
                TurnState::Suspended {
                    native: Some(native.clone()),
                }
            }
            PromptState::Terminal { .. } => return,
        };
        // What was said of it between the lives nobody heard.
        turn.gap = turn.is_suspended();
        turn.audience = match prompt.delivery {
            Delivery::Waiting | Delivery::Delivering | Delivery::Delivered => Audience::All,
            // Its end was told, or nobody waits for one.
            Delivery::TimedOut | Delivery::Lost => Audience::Told,
        };
        if prompt.cancellation.is_open() {
            turn.stop = Stop::Wanted {
                commands: Vec::new(),
            };
        }
        for (id, call) in self
            .durable
            .calls_in(conversation)
            .filter(|(_, call)| call.turn == no)
        {
            let name = hash(call.native.as_bytes());
            turn.known_calls
                .insert(name, (Known::Call(id), ANY_CONTENTS));
        }
        let known = self.durable.conversation(conversation);
        let round = known.and_then(|known| known.round.open());
        if let Some(round) = round.filter(|round| round.turn == no) {
            for native in &round.messages {
                let name = hash(native.as_bytes());
                turn.known_calls
                    .insert(name, (Known::Message, ANY_CONTENTS));
            }
        }
        turn.calls_failed = failed.contains(&no);
        turn.stage_wanted = known.is_some_and(|known| {
            // The result of an inline call may be given to its native call yet.
            let given = |result_of: Option<u64>| {
                let call = result_of.map(|sequence| ToolCallId {
                    nonce: known.nonce,
                    sequence,
                });
                call.and_then(|call| self.durable.call(call))
                    .is_some_and(|call| call.delivery == ToolDelivery::Inline)
            };
            let mut waiting = known.mailbox.iter();
            known.settings.steer == SteerWhen::AtOnce
                && waiting.any(|arrival| arrival.trigger && !given(arrival.result_of))
        });
        turn.questions = self
            .durable
            .questions()
            .filter(|(_, asked)| asked.turn == Some(no))
            .map(|(number, _)| number)
            .collect();
        let (waits, stops) = (turn.state.is_waiting(), turn.stop != Stop::No);
        let is_heard = turn.audience == Audience::All;
        let Some(c) = self.conversation(conversation) else {
            return;
        };
        // Most conversations have one turn at a time, and far apart.
        c.turns.reserve_exact(1);
        c.turns.push(turn);
        self.turn_owner.insert(no, conversation);
        if let Some(until) = fields.until.filter(|_| is_heard) {
            self.timers.set(Timer::TurnDeadline(no), until);
        }
        if prompt.cancellation == Cancellation::Dispatching {
            self.prompt(&message, PromptChange::CancelAmbiguous, Durability::Synced);
        }
        if is_heard {
            self.tell_recovered(fx, conversation, no);
        }
        if waits && stops {
            // Requested before the frame left: it never leaves.
            let source = crate::event::EndSource::Local;
            self.end_turn(fx, conversation, no, Outcome::Interrupted, source);
        }
    }

    fn recover_steer(&mut self, fx: &mut Effects, message: MessageId, prompt: &Prompt) {
        let (conversation, turn) = (prompt.fields.conversation, prompt.fields.turn);
        if !matches!(prompt.state, PromptState::Prepared) {
            // Its answer, if it has none, comes to nobody.
            self.give_flush_up(conversation, &message);
        }
        let state = match prompt.state {
            PromptState::Prepared => SteerState::Waiting,
            PromptState::MayBeAccepted => SteerState::Unknown,
            PromptState::Running { .. } => SteerState::Answered,
            PromptState::Terminal { .. } => return,
        };
        let doubt = Doubt {
            message: message.clone(),
            turn,
            sent_on: Epoch(0),
            commands: Vec::new(),
        };
        if let Some(turn) = self.turn(turn) {
            let sent_on = Epoch(0);
            turn.steered = turn.steered.max(prompt.fields.place);
            turn.steers.push(Steer {
                message,
                sent_on,
                state,
                commands: Vec::new(),
            });
        } else if state == SteerState::Waiting {
            self.carry(fx, conversation, doubt);
        } else if let Some(c) = self.conversation(conversation) {
            c.doubts.push(doubt);
        }
    }

    /// The end of a steered message needs no acknowledgement of its own.
    fn steer_was_told(&mut self, message: &MessageId, delivery: Delivery) {
        if delivery == Delivery::Waiting {
            self.prompt(message, PromptChange::Delivering, Durability::Buffered);
        }
        if !delivery.is_final() {
            self.prompt(message, PromptChange::Delivered, Durability::Buffered);
        }
    }

    /// The life ends before it reached a server: what it took over is left to the next one.
    pub(super) fn leave_recovered(&mut self, fx: &mut Effects) {
        for conversation in self.conversation_ids() {
            self.leave_errands(conversation);
        }
        let mut gone: Vec<Turn> = Vec::new();
        for c in self.conversations.iter_mut().flatten() {
            c.doubts.retain(|doubt| !doubt.commands.is_empty());
            let turns = core::mem::take(&mut c.turns);
            let (left, kept) = turns.into_iter().partition(|turn| turn.recovered);
            c.turns = kept;
            gone.extend::<Vec<Turn>>(left);
        }
        for mut turn in gone {
            self.turn_owner.remove(&turn.no);
            self.timers.clear(Timer::TurnDeadline(turn.no));
            let mut queued = core::mem::take(&mut turn.steer_commands);
            let commands = turn.stop.take_commands();
            for steer in turn.steers {
                queued.extend(steer.commands);
            }
            // What they said is durable: the next life carries it.
            self.tell_queued(fx, queued, &too_late("there is no connection"));
            for command in commands {
                let error = self.ended_error().unwrap_or(CommandError::ClosedByUs);
                self.answer(fx, command, Err(error));
            }
        }
    }
}
