//! Messages that are steered into a running turn: answered is not yet recorded.

use alloc::{boxed::Box, vec::Vec};

use serde::Serialize;

use super::{
    Machine,
    connection::Connection,
    conversations::boxes_of,
    reconcile::Doubt,
    requests::{Kind, Settled},
    rounds::Carrier,
    turn::{Audience, Steer, SteerState, Stop, TurnState},
};
use crate::{
    bug::Bug,
    command::{BusyWhy, CommandError, InputItem, Refusal, RefusalClass, Reply},
    effect::{Durability, Effects},
    event::{EndSource, Outcome, Rejection, TurnUpdate},
    id::{CommandId, ConversationId, Epoch, MessageId, TurnId, TurnNo},
    prompt::{Prompt, PromptChange, PromptFields, PromptKind, PromptState},
    record::Record,
    round::{Round, RoundChange},
    transcript::BoxBody,
};

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct TurnSteerParams<'a> {
    thread_id: &'a str,
    input: &'a [InputItem],
    expected_turn_id: &'a str,
    client_user_message_id: &'a str,
}

impl Machine {
    /// What becomes of the messages that were steered into a turn that is over.
    pub(super) fn end_steers(
        &mut self,
        fx: &mut Effects,
        conversation: ConversationId,
        no: TurnNo,
        (steers, gap): (Vec<Steer>, bool),
        outcome: &Outcome,
    ) {
        // An item may have been recorded between two connections.
        let is_heard = !gap && !matches!(outcome, Outcome::Lost { .. } | Outcome::Unknown { .. });
        for steer in steers {
            let state = steer.state;
            let doubt = Doubt {
                message: steer.message,
                turn: no,
                sent_on: steer.sent_on,
                commands: steer.commands,
            };
            match state {
                SteerState::Recorded if self.has_bug(Bug::SubmitsABoxTwice) => {
                    self.carry(fx, conversation, doubt);
                }
                SteerState::Recorded => {
                    let outcome = match outcome {
                        Outcome::Completed { .. } => Outcome::Completed {
                            text: None,
                            structured: None,
                        },
                        other => other.clone(),
                    };
                    self.settle_steer(&doubt.message, outcome);
                }
                // Answered and in no item: the server never took it to the model.
                SteerState::Answered if is_heard => self.carry(fx, conversation, doubt),
                SteerState::Waiting => self.carry(fx, conversation, doubt),
                // Its item may have come when nobody heard it.
                SteerState::Answered => {
                    let evidence = "turn/steer was answered and the end of its turn was not heard";
                    self.keep_doubt(fx, conversation, doubt, evidence);
                }
                SteerState::Unknown => {
                    let evidence = "turn/steer was not answered and its message was not seen";
                    self.keep_doubt(fx, conversation, doubt, evidence);
                }
                // Its request is settled when the connection's others are.
                SteerState::Sent => {
                    if let Some(c) = self.conversation(conversation) {
                        c.unanswered.push(doubt);
                    }
                }
            }
        }
    }

    /// Looks for a message in the history later, where there is a later.
    fn keep_doubt(
        &mut self,
        fx: &mut Effects,
        conversation: ConversationId,
        doubt: Doubt,
        evidence: &str,
    ) {
        if !self.comes_back() {
            self.doubt_unknown(fx, doubt, evidence);
        } else if let Some(c) = self.conversation(conversation) {
            // It has a settling time of its own.
            c.absent_since = None;
            c.doubts.push(doubt);
        }
    }

    /// Nothing tells whether the server took a steered message.
    pub(super) fn doubt_unknown(&mut self, fx: &mut Effects, doubt: Doubt, evidence: &str) {
        let outcome = Outcome::Unknown {
            evidence: evidence.into(),
        };
        self.settle_steer(&doubt.message, outcome);
        for command in doubt.commands {
            let error = self.error_of(Settled::Unknown(evidence.into()), "turn/steer");
            self.answer(fx, command, Err(error));
        }
    }

    /// The history holds a steered message.
    pub(super) fn steer_recorded(
        &mut self,
        fx: &mut Effects,
        message: &MessageId,
        turn: &TurnId,
        commands: Vec<CommandId>,
    ) {
        let waits = self
            .durable
            .prompt(message)
            .is_some_and(|p| matches!(p.state, PromptState::MayBeAccepted));
        if waits {
            let turn = turn.clone();
            let change = PromptChange::Accepted { turn };
            self.prompt(message, change, Durability::Buffered);
        }
        self.tell_steered(fx, message, commands);
    }

    fn tell_steered(&mut self, fx: &mut Effects, message: &MessageId, commands: Vec<CommandId>) {
        for command in commands {
            let message = message.clone();
            self.answer(fx, command, Ok(Reply::Steered { message }));
        }
    }

    pub(super) fn tell_queued(
        &mut self,
        fx: &mut Effects,
        commands: Vec<CommandId>,
        refusal: &Refusal,
    ) {
        let gate = self.gate();
        for command in commands {
            let refusal = Box::new(refusal.clone());
            self.answer_gated(fx, command, gate, Ok(Reply::Queued { refusal }));
        }
    }

    /// What a message carried that its turn did not take goes with the next round.
    pub(super) fn carry(&mut self, fx: &mut Effects, conversation: ConversationId, doubt: Doubt) {
        let message = &doubt.message;
        let Some(prompt) = self.durable.prompt(message) else {
            self.tell_queued(fx, doubt.commands, &too_late("the turn was over"));
            return;
        };
        let left = matches!(
            prompt.state,
            PromptState::MayBeAccepted | PromptState::Running { .. }
        );
        if left {
            self.prompt(message, PromptChange::Unrecorded, Durability::Synced);
        }
        let error = Rejection::NotSent("its turn was over without it".into());
        self.settle_steer(message, Outcome::Rejected { error });
        self.touch(conversation);
        // Nothing follows the end of a turn.
        if left && doubt.commands.is_empty() && self.turn(doubt.turn).is_some() {
            let message = message.clone();
            let update = TurnUpdate::SteerUnrecorded { message };
            self.tell(fx, conversation, doubt.turn, update);
        }
        self.tell_queued(fx, doubt.commands, &too_late("the turn was over"));
    }

    pub(super) fn input_of(&self, message: &MessageId) -> Option<Vec<InputItem>> {
        self.durable.prompt(message).map(|p| p.fields.input.clone())
    }

    /// Ends a steered message. Its caller has its answer already.
    pub(super) fn settle_steer(&mut self, message: &MessageId, outcome: Outcome) {
        if self.durable.prompt(message).is_none() {
            // Its conversation was closed.
            return;
        }
        let source = EndSource::Local;
        let unrecorded = false;
        let ended = PromptChange::Ended {
            outcome,
            source,
            unrecorded,
        };
        self.prompt(message, ended, Durability::Synced);
        self.prompt(message, PromptChange::Delivering, Durability::Synced);
        self.prompt(message, PromptChange::Delivered, Durability::Synced);
    }

    pub(super) fn steer(
        &mut self,
        fx: &mut Effects,
        id: CommandId,
        no: TurnNo,
        input: Vec<InputItem>,
    ) -> Result<(), CommandError> {
        self.check_input(&input)?;
        let Some(turn) = self.turn(no) else {
            let known = no.0 > 0 && no <= self.last_turn;
            return Err(if known {
                CommandError::NoActiveTurn
            } else {
                CommandError::UnknownTurn { turn: no }
            });
        };
        let conversation = turn.conversation;
        let name = turn.native().cloned();
        let takes = !matches!(turn.state, TurnState::Waiting)
            && turn.stop == Stop::No
            && turn.audience == Audience::All
            && turn.pending_end.is_none();
        if !takes {
            return Err(CommandError::NoActiveTurn);
        }
        if self.is_compaction(conversation, no) {
            let why = BusyWhy::Compacting;
            return Err(CommandError::Busy { conversation, why });
        }
        if let Some(error) = self.ended_error() {
            // An unfit connection still serves the turns that it runs.
            if !matches!(self.connection, Connection::Unfit { .. }) {
                return Err(error);
            }
        }
        if !self.is_bound(conversation) {
            return Err(CommandError::Unauthorized { conversation });
        }
        let boxes = boxes_of(&input)?;
        if !boxes.iter().any(BoxBody::says_something) {
            return Err(CommandError::BadInput {
                reason: "there is nothing to say".into(),
            });
        }
        let Some(known) = self.durable.conversation(conversation) else {
            return Err(CommandError::UnknownConversation { conversation });
        };
        match &known.round {
            Round::Stalled(stall) => Err(CommandError::Busy {
                conversation,
                why: BusyWhy::Stalled {
                    message: stall.message.clone(),
                    restartable: stall.restartable,
                },
            }),
            Round::Generating(round) | Round::Steering { round, .. } => {
                let serves = round.turn;
                // A turn of the server's that our message was folded into is the round's own.
                let folded = self
                    .turn(serves)
                    .is_some_and(|turn| name.is_some() && turn.native() == name.as_ref());
                if serves != no && !folded {
                    return Err(CommandError::NoActiveTurn);
                }
                self.arrive(conversation, boxes, None)?;
                if let Some(turn) = self.turn(serves) {
                    turn.stage_wanted = true;
                    turn.steer_commands.push(id);
                }
                self.touch(conversation);
                Ok(())
            }
            Round::Idle => {
                self.arrive(conversation, boxes, None)?;
                self.submit_beside(fx, conversation, no, id)
            }
        }
    }

    /// Steers all that the thread does not hold into a turn that the server began: it has no round.
    fn submit_beside(
        &mut self,
        fx: &mut Effects,
        conversation: ConversationId,
        no: TurnNo,
        id: CommandId,
    ) -> Result<(), CommandError> {
        let message = Prompt::message_id(self.rng.next(), self.rng.next());
        let Some(load) = self.load(conversation, Carrier::TurnOfOthers) else {
            return Err(CommandError::NoActiveTurn);
        };
        self.record(
            Record::Submission {
                conversation,
                message: message.clone(),
                boxes: load.boxes,
            },
            Durability::Synced,
        );
        self.prepare_steer(conversation, no, message, load.input, alloc::vec![id]);
        self.dispatch_steers(fx, conversation, no);
        Ok(())
    }

    /// Makes the message of a steer.
    pub(super) fn prepare_steer(
        &mut self,
        conversation: ConversationId,
        no: TurnNo,
        message: MessageId,
        input: Vec<InputItem>,
        commands: Vec<CommandId>,
    ) {
        let place = self.turn(no).map_or(1, |turn| {
            turn.steered = turn.steered.saturating_add(1);
            turn.steered
        });
        let fields = PromptFields {
            conversation,
            turn: no,
            kind: PromptKind::Steer,
            place,
            input,
            key: None,
            said: None,
            output_schema: None,
            deadline: None,
            until: None,
        };
        let change = PromptChange::Prepared(Box::new(fields));
        self.prompt(&message, change, Durability::Synced);
        if let Some(turn) = self.turn(no) {
            turn.steers.push(Steer {
                message,
                sent_on: Epoch(0),
                state: SteerState::Waiting,
                commands,
            });
        }
    }

    /// Sends the next steer, one at a time.
    pub(super) fn dispatch_steers(
        &mut self,
        fx: &mut Effects,
        conversation: ConversationId,
        no: TurnNo,
    ) {
        let Some(thread) = self
            .conversation(conversation)
            .and_then(|c| c.link.thread().cloned())
        else {
            return;
        };
        let Some(turn) = self.turn(no) else { return };
        if turn.steer_unanswered() {
            return;
        }
        let Some(native) = self.certain_native(no) else {
            return;
        };
        let epoch = self.last_epoch;
        let Some(turn) = self.turn(no) else { return };
        let next = turn
            .steers
            .iter_mut()
            .find(|steer| steer.state == SteerState::Waiting);
        let Some(steer) = next else { return };
        steer.state = SteerState::Sent;
        steer.sent_on = epoch;
        let message = steer.message.clone();
        let gate = self.prompt(&message, PromptChange::Dispatched, Durability::Synced);
        let Some(input) = self.input_of(&message) else {
            return;
        };
        let params = TurnSteerParams {
            thread_id: &thread,
            input: &input,
            expected_turn_id: &native,
            client_user_message_id: &message,
        };
        let kind = Kind::TurnSteer {
            conversation,
            turn: no,
            message: message.clone(),
        };
        self.request(fx, kind, "turn/steer", &params, gate);
    }

    pub(super) fn steer_settled(
        &mut self,
        fx: &mut Effects,
        conversation: ConversationId,
        no: TurnNo,
        message: &MessageId,
        how: Settled,
    ) {
        let unanswered = self.conversation(conversation).and_then(|c| {
            let at = c.unanswered.iter().position(|d| d.message == *message)?;
            Some(c.unanswered.remove(at))
        });
        if self.durable.prompt(message).is_none() {
            // Its turn was lost and its conversation closed: only its caller waits.
            for command in unanswered.map(|doubt| doubt.commands).unwrap_or_default() {
                let how = match how.clone() {
                    Settled::Answered(_) => {
                        Settled::Unknown("the turn ended before turn/steer was answered".into())
                    }
                    other => other,
                };
                let error = self.error_of(how, "turn/steer");
                self.answer(fx, command, Err(error));
            }
            return;
        }
        let native = self.turn(no).and_then(|turn| turn.native().cloned());
        let taken = self.has_bug(Bug::TakesAnswersForRecords);
        let steer = self
            .turn(no)
            .and_then(|turn| turn.steers.iter_mut().find(|s| s.message == *message));
        let how = match how {
            // Its turn was taken back meanwhile: a yes says nothing.
            Settled::Answered(_) if native.is_none() && steer.is_some() => {
                Settled::Unknown("the turn was gone when turn/steer was answered".into())
            }
            how => how,
        };
        let commands = match (steer, unanswered) {
            (Some(steer), _) if steer.state == SteerState::Sent => match &how {
                Settled::Answered(_) => {
                    steer.state = match taken {
                        true => SteerState::Recorded,
                        false => SteerState::Answered,
                    };
                    core::mem::take(&mut steer.commands)
                }
                Settled::Refused(_) | Settled::NotSent => core::mem::take(&mut steer.commands),
                Settled::Unknown(_) => {
                    steer.state = SteerState::Unknown;
                    Vec::new()
                }
            },
            // Its item was seen before its answer came: nothing is left to say.
            (Some(_), _) | (None, None) => return,
            (None, Some(doubt)) => {
                self.settled_too_late(fx, conversation, doubt, &how);
                return;
            }
        };
        match how {
            Settled::Answered(_) => {
                if let Some(native) = native {
                    let change = PromptChange::Accepted { turn: native };
                    self.prompt(message, change, Durability::Buffered);
                }
                self.tell_steered(fx, message, commands);
            }
            Settled::Refused(refusal) => {
                self.forget_steer(no, message);
                let error = Rejection::Refused(refusal.clone());
                self.settle_steer(message, Outcome::Rejected { error });
                self.tell_queued(fx, commands, &refusal);
            }
            Settled::NotSent => {
                self.forget_steer(no, message);
                let error = Rejection::NotSent("turn/steer was not sent".into());
                self.settle_steer(message, Outcome::Rejected { error });
                self.tell_queued(fx, commands, &too_late("turn/steer was not sent"));
            }
            Settled::Unknown(evidence) => {
                self.give_flush_up(conversation, message);
                // Its callers wait for what is learnt when the turn is over, if anything will be.
                if !self.comes_back() {
                    let waiting = self
                        .turn(no)
                        .and_then(|turn| turn.steers.iter_mut().find(|s| s.message == *message))
                        .map(|steer| core::mem::take(&mut steer.commands));
                    for command in waiting.unwrap_or_default() {
                        let error = self.error_of(Settled::Unknown(evidence.clone()), "turn/steer");
                        self.answer(fx, command, Err(error));
                    }
                }
            }
        }
        self.after_steer(fx, conversation, no, message);
    }

    /// The turn ended before its steer was answered.
    fn settled_too_late(
        &mut self,
        fx: &mut Effects,
        conversation: ConversationId,
        doubt: Doubt,
        how: &Settled,
    ) {
        match how {
            // A yes is no proof that the message went into it.
            Settled::Answered(_) => {
                let evidence = "the turn ended before turn/steer was answered";
                self.keep_doubt(fx, conversation, doubt, evidence);
            }
            Settled::Unknown(evidence) => self.keep_doubt(fx, conversation, doubt, evidence),
            Settled::Refused(_) | Settled::NotSent => self.carry(fx, conversation, doubt),
        }
        self.advance(fx, conversation);
    }

    /// A flush has no answer within its limit, or its turn is over without one.
    pub(super) fn give_flush_up(&mut self, conversation: ConversationId, message: &MessageId) {
        let steers = self.durable.conversation(conversation).is_some_and(
            |known| matches!(&known.round, Round::Steering { flush, .. } if flush == message),
        );
        if steers {
            let change = RoundChange::FlushGivenUp {
                message: message.clone(),
            };
            let record = Record::Round {
                conversation,
                change,
            };
            self.record(record, Durability::Buffered);
        }
    }

    fn forget_steer(&mut self, no: TurnNo, message: &MessageId) {
        if let Some(turn) = self.turn(no) {
            turn.steers.retain(|steer| steer.message != *message);
        }
    }

    /// The calls of its stage are answered, an end that waited for a steer's answer goes on; else the
    /// next steer does.
    pub(super) fn after_steer(
        &mut self,
        fx: &mut Effects,
        conversation: ConversationId,
        no: TurnNo,
        message: &MessageId,
    ) {
        self.release_calls(fx, conversation, no, message);
        self.touch(conversation);
        let Some(turn) = self.turn(no) else {
            self.advance(fx, conversation);
            return;
        };
        if turn.steer_unanswered() {
            return;
        }
        match turn.pending_end.take() {
            Some(end) => self.finish_native(fx, conversation, no, end.outcome, end.source),
            None => self.dispatch_steers(fx, conversation, no),
        }
    }

    /// A steered message stands in a turn: the server has it.
    pub(super) fn steer_seen(
        &mut self,
        fx: &mut Effects,
        conversation: ConversationId,
        message: &str,
        native: &TurnId,
    ) {
        let Some(c) = self.conversation(conversation) else {
            return;
        };
        let found = c.turns.iter_mut().find_map(|turn| {
            let no = turn.no;
            let steer = turn
                .steers
                .iter_mut()
                .find(|s| s.message.as_str() == message)?;
            Some((no, steer))
        });
        let Some((no, steer)) = found else { return };
        let id = steer.message.clone();
        match steer.state {
            SteerState::Sent => {
                steer.state = SteerState::Recorded;
                let commands = core::mem::take(&mut steer.commands);
                self.steer_recorded(fx, &id, native, commands);
                self.after_steer(fx, conversation, no, &id);
            }
            SteerState::Unknown => {
                steer.state = SteerState::Recorded;
                let commands = core::mem::take(&mut steer.commands);
                self.steer_recorded(fx, &id, native, commands);
            }
            SteerState::Answered | SteerState::Recorded => steer.state = SteerState::Recorded,
            // Nothing of it has left: the server cannot have it.
            SteerState::Waiting => {}
        }
    }
}

/// What a message is told that could not reach its turn any more.
pub(super) fn too_late(message: &str) -> Refusal {
    Refusal {
        method: "turn/steer".into(),
        class: RefusalClass::NoActiveTurn,
        error: crate::command::RpcError {
            code: -32_600,
            message: message.into(),
            data: None,
        },
    }
}
