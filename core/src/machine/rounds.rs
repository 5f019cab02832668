//! Rounds: what arrived, when the model must hear of it, and what it did.
//!
//! A conversation that something changed is looked at once more at the end of the step: calls that
//! were read are staged, a round that is due begins, and a changed status is told.

use alloc::{boxed::Box, string::String, vec::Vec};

use super::{
    Machine,
    calls::{misplaced, withdrawn},
    turn::{Audience, Known, OpenCall, Stop, TurnState, Unstaged},
};
use crate::{
    bug::Bug,
    command::{
        Authorization, AutoBegin, CommandError, InputItem, RpcError, SteerWhen, ToolDelivery,
    },
    config::RecoveredRounds,
    durable::DurableConversation,
    effect::{Durability, Effects},
    event::{ConversationUpdate, Outcome, Status, ToolCall, TurnUpdate},
    id::{BoxId, CallId, ConversationId, MessageId, ToolCallId, TurnNo},
    prompt::{Delivery, Prompt, PromptState},
    record::Record,
    round::{Action, Round, RoundChange, StagedCall, Wishes},
    settings::Rendering,
    timers::Timer,
    tools::{Fault, Meaning},
    transcript::{self, BoxBody, BoxSet},
};

/// Where a message goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Carrier {
    /// It begins a round.
    Round,
    /// Into the turn of the round, with the mailbox.
    Turn,
    /// Into a turn that the server began: its answer is no box.
    TurnOfOthers,
}

/// What the next message of a conversation carries.
pub(super) struct Load {
    /// Every box that the thread does not hold, the mailbox included where it goes along.
    pub(super) boxes: BoxSet,
    /// The same, rendered.
    pub(super) input: Vec<InputItem>,
}

impl Machine {
    /// Has a conversation looked at when the step ends.
    pub(super) fn touch(&mut self, conversation: ConversationId) {
        if self.touched.last() != Some(&conversation) {
            self.touched.push(conversation);
        }
    }

    /// Does what the conversations that changed in this step are due for.
    pub(super) fn look_after(&mut self, fx: &mut Effects) {
        self.look_after_line(fx);
        let mut left = 4 * self.to_stage.len() + 64;
        while !(self.to_stage.is_empty() && self.touched.is_empty()) && left > 0 {
            left -= 1;
            for conversation in core::mem::take(&mut self.to_stage) {
                self.stage_if_due(fx, conversation);
            }
            self.look_after_line(fx);
        }
        debug_assert!(left > 0, "conversations come to rest");
    }

    /// The same, but for stages: the calls of one step are one.
    pub(super) fn look_after_line(&mut self, fx: &mut Effects) {
        let mut left = 4 * self.touched.len() + 64;
        while !self.touched.is_empty() && left > 0 {
            left -= 1;
            for conversation in core::mem::take(&mut self.touched) {
                self.end_waiver(conversation);
                self.begin_if_due(fx, conversation);
                self.tell_status(fx, conversation);
                if self.next_stage(conversation).is_some()
                    && self.to_stage.last() != Some(&conversation)
                {
                    self.to_stage.push(conversation);
                }
            }
        }
        debug_assert!(left > 0, "conversations come to rest");
    }

    /// The turn whose stage is due, once nothing is in its way.
    fn next_stage(&mut self, conversation: ConversationId) -> Option<TurnNo> {
        let known = self.durable.conversation(conversation)?;
        let Round::Generating(round) = &known.round else {
            return None;
        };
        let no = round.turn;
        let turn = self.turn(no)?;
        let takes = matches!(turn.state, TurnState::Running { .. })
            // What it said meanwhile stands in the history, which is being read.
            && !turn.gap
            && !turn.steer_unanswered()
            && turn.pending_end.is_none()
            && (turn.stage_wanted || !turn.unstaged.is_empty());
        takes.then_some(no)
    }

    /// Nothing is left of what waited for a binding in an earlier life.
    fn end_waiver(&mut self, conversation: ConversationId) {
        let known = self.durable.conversation(conversation);
        let waits = known.is_some_and(|known| known.is_triggered() || known.round.open().is_some());
        if let Some(c) = self.conversation(conversation) {
            c.recovered &= waits || !c.doubts.is_empty();
        }
    }

    fn tell_status(&mut self, fx: &mut Effects, conversation: ConversationId) {
        let status = self.status(conversation);
        let Some(c) = self.conversation(conversation) else {
            return;
        };
        if c.told_status != status {
            c.told_status = status.clone();
            let gate = self.gate();
            let update = ConversationUpdate::Status(status);
            self.tell_conversation_gated(fx, conversation, gate, update);
        }
    }

    /// What a conversation does.
    fn status(&mut self, conversation: ConversationId) -> Status {
        let due = self.is_due(conversation) || self.is_compacting(conversation);
        let Some(known) = self.durable.conversation(conversation) else {
            return Status::Quiet;
        };
        match &known.round {
            Round::Generating(_) | Round::Steering { .. } => Status::Running,
            Round::Stalled(stall) => Status::Stalled {
                message: stall.message.clone(),
                restartable: stall.restartable,
            },
            Round::Idle => match &known.held {
                Some(reason) if !self.is_compacting(conversation) => Status::Held {
                    reason: reason.clone(),
                },
                _ if due => Status::Running,
                _ => Status::Quiet,
            },
        }
    }

    /// Whether a conversation acts on somebody's behalf, or need not.
    pub(super) fn is_bound(&mut self, conversation: ConversationId) -> bool {
        let needed = self
            .durable
            .conversation(conversation)
            .is_some_and(|known| known.authorization == Authorization::Needed);
        !needed
            || self
                .conversation(conversation)
                .is_some_and(|c| c.binding.is_some())
    }

    /// Whether a round begins by itself.
    pub(super) fn is_due(&mut self, conversation: ConversationId) -> bool {
        let Some(known) = self.durable.conversation(conversation) else {
            return false;
        };
        let inert = || {
            let transcript = known.transcript();
            let last = transcript.unsubmitted().last();
            let last = last.and_then(|id| transcript.get(id));
            last.is_some_and(BoxBody::is_inert)
        };
        let ready = (known.is_triggered() || (self.has_bug(Bug::InertMessageTriggers) && inert()))
            && known.round.is_idle()
            && known.held.is_none()
            && !known.is_blocked()
            && known.settings.auto_begin == AutoBegin::On;
        if !ready || !self.will_serve() || self.must_wait(conversation) {
            return false;
        }
        let runs = self.config.recovered_rounds == RecoveredRounds::Run;
        let recovered = self.conversation(conversation).is_some_and(|c| c.recovered);
        self.is_bound(conversation) || (runs && recovered) || self.has_bug(Bug::BeginsUnbound)
    }

    /// Whether something of the conversation must come to its end before a round begins.
    fn must_wait(&mut self, conversation: ConversationId) -> bool {
        if self.is_forked(conversation) {
            return true;
        }
        self.conversation(conversation).is_none_or(|c| {
            c.closing.is_some()
                || c.letting_go
                || !c.doubts.is_empty()
                || !c.unanswered.is_empty()
                || c.compacts()
                || c.forks()
                || c.cannot_begin
        })
    }

    fn begin_if_due(&mut self, fx: &mut Effects, conversation: ConversationId) {
        if !self.is_due(conversation) {
            return;
        }
        match self.begin_round(conversation, Wishes::default(), None) {
            Ok((turn, _)) => {
                let origin = crate::event::Origin::Ours;
                let update = ConversationUpdate::TurnBegan { turn, origin };
                // Killed before the round is durable, its turn never was: another one gets the number.
                let gate = self.gate();
                self.tell_conversation_gated(fx, conversation, gate, update);
                self.advance(fx, conversation);
            }
            Err(_) => {
                // It is tried again once something has changed.
                if let Some(c) = self.conversation(conversation) {
                    c.cannot_begin = true;
                }
            }
        }
    }

    /// What the next message carries; nothing where there is nothing to say.
    pub(super) fn load(&self, conversation: ConversationId, carrier: Carrier) -> Option<Load> {
        let known = self.durable.conversation(conversation)?;
        let transcript = known.transcript();
        let mut boxes = transcript.unsubmitted().clone();
        let mut next = transcript.last();
        let mut fresh: Vec<(BoxId, &BoxBody)> = Vec::new();
        if carrier == Carrier::Turn {
            for arrival in known.mailbox.iter() {
                next = next.next()?;
                if !arrival.submitted {
                    boxes.insert(next);
                    fresh.push((next, &arrival.body));
                }
            }
        }
        let marker = match carrier {
            Carrier::Round | Carrier::Turn => Some(next.next()?),
            Carrier::TurnOfOthers => None,
        };
        let old = transcript.boxes(transcript.unsubmitted());
        let rendering = known.settings.rendering;
        let both = old.chain(fresh.iter().copied());
        let input = transcript::render(both, marker, rendering);
        let empty = input.is_empty() || boxes.is_empty();
        if empty || self.check_input(&input).is_ok() {
            return (!empty).then_some(Load { boxes, input });
        }
        // The rest goes with the message after it.
        let all: Vec<(BoxId, &BoxBody)> = transcript
            .boxes(transcript.unsubmitted())
            .chain(fresh)
            .collect();
        let mut count = all.len();
        while count > 1 {
            count /= 2;
            let part = all.get(..count)?;
            let input = transcript::render(part.iter().copied(), marker, rendering);
            if !input.is_empty() && self.check_input(&input).is_ok() {
                let boxes = part.iter().map(|(id, _)| *id).collect();
                return Some(Load { boxes, input });
            }
        }
        None
    }

    /// Whether boxes can be said to the model, each by itself.
    pub(super) fn check_boxes(&self, boxes: &[BoxBody]) -> Result<(), CommandError> {
        for body in boxes {
            let one = [(BoxId(u64::MAX), body)];
            let input = transcript::render(one, None, Rendering::Boxed);
            if !input.is_empty() {
                self.check_input(&input)?;
            }
            let size = body.hidden_contents.len();
            if size > self.config.limits.frame {
                return Err(CommandError::FrameTooLarge { size });
            }
        }
        Ok(())
    }

    /// Begins a round with all that the thread does not hold. On an error nothing has changed.
    pub(super) fn begin_round(
        &mut self,
        conversation: ConversationId,
        wishes: Wishes,
        stalled: Option<()>,
    ) -> Result<(TurnNo, MessageId), CommandError> {
        let load = self.load(conversation, Carrier::Round);
        let load = load.ok_or_else(|| CommandError::BadInput {
            reason: "there is nothing to say".into(),
        })?;
        self.check_input(&load.input)?;
        let turn = self
            .last_turn
            .next()
            .ok_or_else(|| CommandError::exhausted("turn"))?;
        let message = Prompt::message_id(self.rng.next(), self.rng.next());
        let (boxes, id) = (load.boxes, message.clone());
        let change = match stalled {
            None => RoundChange::Begun {
                turn,
                message: id,
                boxes,
            },
            Some(()) => RoundChange::Restarted {
                turn,
                message: id,
                boxes,
            },
        };
        self.round(conversation, change);
        self.prepare(conversation, (turn, message.clone()), load.input, wishes);
        let binding = self.conversation(conversation).and_then(|c| {
            c.recovered = false;
            c.binding.clone()
        });
        if let Some(turn) = self.turn(turn) {
            turn.binding = binding.map(Box::new);
        }
        self.touch(conversation);
        Ok((turn, message))
    }

    pub(super) fn round(&mut self, conversation: ConversationId, change: RoundChange) {
        let record = Record::Round {
            conversation,
            change,
        };
        self.record(record, Durability::Synced);
    }

    /// Something came that the model must hear of.
    pub(super) fn trigger_came(&mut self, conversation: ConversationId) {
        let at_once = self.durable.conversation(conversation).and_then(|known| {
            let at_once = known.settings.steer == SteerWhen::AtOnce && known.mailbox.triggers();
            let round = known.round.open()?;
            at_once.then_some(round.turn)
        });
        if let Some(turn) = at_once.and_then(|no| self.turn(no)) {
            turn.stage_wanted = true;
        }
        if let Some(c) = self.conversation(conversation) {
            c.cannot_begin = false;
        }
        self.touch(conversation);
    }

    // Stages.

    fn stage_if_due(&mut self, fx: &mut Effects, conversation: ConversationId) {
        if let Some(no) = self.next_stage(conversation) {
            self.stage(fx, conversation, no, true);
        }
    }

    /// Writes down what the model said and did, launches its calls, and flushes where that is due.
    pub(super) fn stage(
        &mut self,
        fx: &mut Effects,
        conversation: ConversationId,
        no: TurnNo,
        may_flush: bool,
    ) {
        let Some(turn) = self.turn(no) else { return };
        let stops = turn.stop != Stop::No || turn.audience != Audience::All;
        let unstaged = core::mem::take(&mut turn.unstaged);
        let wanted = core::mem::take(&mut turn.stage_wanted);
        let generates = self
            .durable
            .conversation(conversation)
            .is_some_and(|known| matches!(&known.round, Round::Generating(r) if r.turn == no));
        if stops || !generates {
            let error = withdrawn("the turn is being stopped");
            self.refuse_unstaged(fx, no, unstaged, &error);
            return;
        }
        let may_flush = may_flush && (!unstaged.is_empty() || wanted);
        if unstaged.is_empty() && (!may_flush || self.load(conversation, Carrier::Turn).is_none()) {
            return;
        }
        let Some(actions) = self.actions(conversation, &unstaged) else {
            let error = misplaced("no call numbers are left");
            self.refuse_unstaged(fx, no, unstaged, &error);
            return;
        };
        let Some(turn) = self.turn(no) else { return };
        let (response, answers, cut) = turn.text.stage();
        let binding = turn.binding.clone();
        let calls: Vec<Option<Box<StagedCall>>> = actions
            .iter()
            .map(|action| match action {
                Action::Call(call) => Some(call.clone()),
                Action::Message { .. } => None,
            })
            .collect();
        let answers = self
            .durable
            .conversation(conversation)
            .and_then(|known| known.round.open())
            .map_or(answers, |round| answers.max(round.answers));
        self.round(
            conversation,
            RoundChange::Staged {
                turn: no,
                response,
                answers,
                cut,
                actions,
            },
        );
        let flush = match may_flush {
            true => self.flush(conversation, no),
            false => None,
        };
        for (call, unstaged) in calls.into_iter().zip(unstaged) {
            self.act(
                fx,
                conversation,
                no,
                call,
                unstaged,
                flush.as_ref(),
                &binding,
            );
        }
        if flush.is_some() {
            self.dispatch_steers(fx, conversation, no);
        }
        if flush.is_none() || self.has_bug(Bug::AnswersBeforeTheSteer) {
            self.release_stage(fx, conversation, no);
        }
    }

    /// What calls that were read are in a stage; nothing where their numbers have run out.
    fn actions(&self, conversation: ConversationId, unstaged: &[Unstaged]) -> Option<Vec<Action>> {
        let known = self.durable.conversation(conversation)?;
        let mut sequence = known.last_call;
        let mut actions = Vec::new();
        for call in unstaged {
            let (native, native_tool) = (call.native.clone(), &call.tool);
            let mut next = || -> Option<ToolCallId> {
                sequence = sequence.checked_add(1)?;
                let nonce = known.nonce;
                Some(ToolCallId { nonce, sequence })
            };
            actions.push(match &call.meaning {
                Meaning::Message { text } => Action::Message {
                    native,
                    text: text.clone(),
                },
                Meaning::Call {
                    tool,
                    via,
                    arguments,
                } => Action::Call(Box::new(StagedCall {
                    sequence: next()?.sequence,
                    native,
                    tool: tool.clone(),
                    via: via.clone(),
                    arguments: arguments.clone(),
                    delivery: call.delivery,
                    malformed: None,
                })),
                Meaning::Malformed(fault) => {
                    let malformed = Box::new(Fault::clone(fault).numbered(next()?));
                    let tool = malformed.recorded_tool();
                    let delivery = match call.delivery {
                        ToolDelivery::Deferred => ToolDelivery::Deferred,
                        ToolDelivery::Inline | ToolDelivery::Message => ToolDelivery::Inline,
                    };
                    let arguments = crate::RawJson::parse(&malformed.arguments).ok()?;
                    Action::Call(Box::new(StagedCall {
                        sequence: malformed.id.sequence,
                        native,
                        tool: tool.into(),
                        via: (tool != native_tool).then(|| native_tool.clone()),
                        arguments,
                        delivery,
                        malformed: Some(malformed),
                    }))
                }
            });
        }
        Some(actions)
    }

    /// Lets one action of a stage that is recorded go its way.
    #[expect(clippy::too_many_arguments, reason = "what a stage knows of an action")]
    fn act(
        &mut self,
        fx: &mut Effects,
        conversation: ConversationId,
        no: TurnNo,
        call: Option<Box<StagedCall>>,
        unstaged: Unstaged,
        flush: Option<&MessageId>,
        binding: &Option<Box<crate::command::Binding>>,
    ) {
        let nonce = self.durable.conversation(conversation).map(|c| c.nonce);
        let id = call.as_ref().zip(nonce).map(|(call, nonce)| ToolCallId {
            nonce,
            sequence: call.sequence,
        });
        let flush = flush.filter(|_| !self.has_bug(Bug::AnswersBeforeTheSteer));
        let ready = call
            .as_ref()
            .is_none_or(|call| call.delivery == ToolDelivery::Deferred || call.malformed.is_some());
        if let Some(turn) = self.turn(no) {
            let name = crate::hash::hash(unstaged.native.as_bytes());
            if let Some((known, _)) = turn.known_calls.get_mut(&name) {
                *known = id.map_or(Known::Message, Known::Call);
            }
            turn.calls.insert(
                unstaged.native,
                OpenCall {
                    id,
                    request: Some(unstaged.request),
                    after: flush.cloned(),
                    ready,
                },
            );
        }
        let (Some(call), Some(id)) = (call, id) else {
            if let Meaning::Message { text } = unstaged.meaning {
                let tool = unstaged.tool;
                let gate = self.gate();
                let update = TurnUpdate::AgentMessage { tool, text };
                self.tell_gated(fx, conversation, no, gate, update);
            }
            return;
        };
        if let Some(malformed) = call.malformed {
            self.tell(fx, conversation, no, TurnUpdate::MalformedCall(malformed));
            return;
        }
        let limit = self.time_limit(conversation, call.via.as_ref().unwrap_or(&call.tool));
        if let Some(limit) = limit {
            self.timers.set(Timer::ToolLimit(id), self.now.after(limit));
        }
        let launched = ToolCall {
            id,
            tool: call.tool,
            arguments: call.arguments,
            via: call.via,
            time_limit: limit,
            delivery: call.delivery,
            binding: binding.as_deref().cloned(),
        };
        let gate = match self.has_bug(Bug::LaunchesBeforeAppend) {
            true => super::out::UNGATED,
            false => self.gate(),
        };
        self.tell_gated(fx, conversation, no, gate, TurnUpdate::ToolCall(launched));
    }

    pub(super) fn time_limit(
        &self,
        conversation: ConversationId,
        tool: &str,
    ) -> Option<core::time::Duration> {
        let known = self.durable.conversation(conversation)?;
        let mut tools = known.settings.tools.iter();
        tools.find(|declared| declared.name == *tool)?.time_limit
    }

    /// Answers what is ready of a stage without a flush.
    fn release_stage(&mut self, fx: &mut Effects, conversation: ConversationId, no: TurnNo) {
        let Some(turn) = self.turn(no) else { return };
        let ready = turn.calls.iter().filter(|(_, open)| open.ready);
        let mut ready: Vec<(u64, CallId)> = ready
            .map(|(native, open)| (open.place(), native.clone()))
            .collect();
        ready.sort_unstable_by_key(|(sequence, _)| *sequence);
        for (_, native) in ready {
            self.answer_ready(fx, conversation, no, &native);
        }
    }

    /// Calls of a turn that is being stopped, or that have no numbers left.
    fn refuse_unstaged(
        &mut self,
        fx: &mut Effects,
        no: TurnNo,
        unstaged: Vec<Unstaged>,
        error: &RpcError,
    ) {
        for call in unstaged {
            if let Some(turn) = self.turn(no) {
                let name = crate::hash::hash(call.native.as_bytes());
                turn.known_calls.remove(&name);
            }
            self.inbound.remove(call.request.as_str());
            self.refuse(fx, &call.request, "item/tool/call", error.clone());
        }
    }

    /// Makes the message that carries all that the model has not got into its running turn.
    fn flush(&mut self, conversation: ConversationId, no: TurnNo) -> Option<MessageId> {
        let known = self.durable.conversation(conversation)?;
        let owes = known.round.open().is_some_and(|round| round.owes);
        // What a steer that was refused carried waits for the next round.
        if !owes && !known.mailbox.triggers() {
            return None;
        }
        let load = self.load(conversation, Carrier::Turn)?;
        self.check_input(&load.input).ok()?;
        let message = Prompt::message_id(self.rng.next(), self.rng.next());
        self.round(
            conversation,
            RoundChange::Flushed {
                turn: no,
                message: message.clone(),
                boxes: load.boxes,
            },
        );
        let commands = self
            .turn(no)
            .map(|turn| core::mem::take(&mut turn.steer_commands))
            .unwrap_or_default();
        self.prepare_steer(conversation, no, message.clone(), load.input, commands);
        Some(message)
    }

    // Ends.

    /// What the application was told of a turn before it was over there.
    pub(super) fn early_end(&mut self, no: TurnNo) -> Option<Outcome> {
        let message = self.turn(no)?.message.clone()?;
        let prompt = self.durable.prompt(&message)?;
        match &prompt.state {
            _ if prompt.delivery == Delivery::TimedOut => Some(Outcome::TimedOut),
            PromptState::Terminal { outcome, .. } => Some(outcome.clone()),
            PromptState::Prepared | PromptState::MayBeAccepted | PromptState::Running { .. } => {
                None
            }
        }
    }

    /// Whether the application wants a turn to stop.
    pub(super) fn is_asked_to_stop(&mut self, no: TurnNo) -> bool {
        self.turn(no)
            .is_some_and(|turn| turn.stop != Stop::No || turn.audience == Audience::EndOnly)
    }

    /// Ends the round that a turn serves, as the turn ended.
    pub(super) fn end_round(
        &mut self,
        fx: &mut Effects,
        conversation: ConversationId,
        no: TurnNo,
        outcome: &Outcome,
    ) {
        let open = self.durable.conversation(conversation).and_then(|known| {
            let round = known.round.open().filter(|round| round.turn == no)?;
            Some((round.stages, round.acted, known.round.clone()))
        });
        let Some((stages, acted, round)) = open else {
            return;
        };
        let Some(turn) = self.turn(no) else { return };
        let message = turn.message.clone();
        let unstaged = core::mem::take(&mut turn.unstaged);
        let commands = core::mem::take(&mut turn.steer_commands);
        let hears = turn.recovered && turn.calls_failed;
        let (text, ..) = turn.text.stage();
        let asked = self.is_asked_to_stop(no);
        let prompt = message.and_then(|message| self.durable.prompt(&message));
        let never_left = prompt.is_some_and(|p| matches!(p.state, PromptState::Prepared));
        self.refuse_unstaged(fx, no, unstaged, &misplaced("no such turn runs"));
        let triggered = self
            .durable
            .conversation(conversation)
            .is_some_and(DurableConversation::is_triggered);
        let completes = match outcome {
            Outcome::Completed { .. } => true,
            Outcome::Interrupted => asked || (hears && triggered),
            Outcome::Failed { .. }
            | Outcome::Rejected { .. }
            | Outcome::TimedOut
            | Outcome::Lost { .. }
            | Outcome::Unknown { .. } => false,
        };
        if let Round::Steering { flush, .. } = &round {
            self.give_flush_up(conversation, flush);
        }
        if completes {
            self.complete_round(conversation, no, text);
        } else {
            let rejected = matches!(outcome, Outcome::Rejected { .. }) || never_left;
            if let Some(c) = self.conversation(conversation) {
                c.binding = None;
                c.recovered = false;
            }
            self.round(
                conversation,
                RoundChange::Failed {
                    turn: no,
                    message: in_words(outcome),
                    restartable: rejected && stages == 0 && !acted,
                    text: (!rejected).then_some(text),
                },
            );
        }
        self.tell_queued(fx, commands, &super::steers::too_late("the turn was over"));
        self.touch(conversation);
    }

    fn complete_round(&mut self, conversation: ConversationId, no: TurnNo, text: String) {
        let Some(known) = self.durable.conversation(conversation) else {
            return;
        };
        let resume = known.is_triggered();
        let waiting = u64::try_from(known.mailbox.len()).unwrap_or(u64::MAX);
        let last = known.transcript().last().0.saturating_add(1);
        let after = BoxId(last.saturating_add(waiting));
        self.round(
            conversation,
            RoundChange::Completed {
                turn: no,
                text,
                resume,
                after,
            },
        );
    }

    // Commands.

    /// Takes what arrived. On an error nothing has changed.
    pub(super) fn arrive(
        &mut self,
        conversation: ConversationId,
        boxes: Vec<BoxBody>,
        key: Option<String>,
    ) -> Result<(), CommandError> {
        self.check_room(conversation, boxes.len())?;
        let known = self.durable.conversation(conversation);
        let first = known
            .and_then(|known| known.mailbox.last().next())
            .ok_or_else(|| CommandError::exhausted("arrival"))?;
        let record = Record::Arrival {
            conversation,
            first,
            boxes,
            key,
        };
        self.record(record, Durability::Synced);
        self.touch(conversation);
        Ok(())
    }

    /// Whether so many more arrivals may wait.
    pub(super) fn check_room(
        &self,
        conversation: ConversationId,
        more: usize,
    ) -> Result<(), CommandError> {
        let Some(known) = self.durable.conversation(conversation) else {
            return Err(CommandError::UnknownConversation { conversation });
        };
        let full = known.mailbox.len().saturating_add(more) > self.config.limits.mailbox;
        match full && !known.round.is_idle() {
            true => Err(CommandError::MailboxFull { conversation }),
            false => Ok(()),
        }
    }
}

/// How a round failed, for a person.
fn in_words(outcome: &Outcome) -> String {
    match outcome {
        Outcome::Failed { error } => error.message.clone(),
        Outcome::Rejected { error } => alloc::format!("{error}"),
        Outcome::Lost { reason } => alloc::format!("{reason}"),
        Outcome::Unknown { evidence } => evidence.clone(),
        Outcome::TimedOut => "the turn's time was over".into(),
        Outcome::Interrupted => "the turn was interrupted, and not by us".into(),
        Outcome::Completed { .. } => "completed".into(),
    }
}
