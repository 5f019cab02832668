//! Messages that are steered into a running turn: answered is not yet recorded.

use alloc::vec::Vec;

use serde::Serialize;

use super::{
    Machine,
    connection::Connection,
    reconcile::Doubt,
    requests::{Kind, Settled},
    turn::{Audience, Steer, SteerState, Stop, TurnState},
};
use crate::{
    bug::Bug,
    command::{CommandError, InputItem, Refusal, RefusalClass, Reply},
    effect::{Durability, Effects},
    event::{ConversationUpdate, EndSource, Origin, Outcome, Rejection, TurnUpdate},
    id::{CommandId, ConversationId, Epoch, MessageId, TurnId, TurnNo},
    prompt::{Prompt, PromptChange, PromptFields, PromptKind, PromptState},
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
            let doubt = Doubt {
                message: steer.message,
                turn: no,
                sent_on: steer.sent_on,
                command: None,
            };
            match steer.state {
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
                SteerState::Answered if is_heard => self.carry(fx, conversation, &doubt, outcome),
                SteerState::Waiting { command } => {
                    let doubt = Doubt { command, ..doubt };
                    self.carry(fx, conversation, &doubt, outcome);
                }
                // Its item may have come when nobody heard it.
                SteerState::Answered => {
                    let evidence = "turn/steer was answered and the end of its turn was not heard";
                    self.keep_doubt(fx, conversation, doubt, evidence);
                }
                SteerState::Unknown { command } => {
                    let evidence = "turn/steer was not answered and its message was not seen";
                    self.keep_doubt(fx, conversation, Doubt { command, ..doubt }, evidence);
                }
                // Its request is settled when the connection's others are.
                SteerState::Sent { .. } => {}
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
            self.doubt_unknown(fx, &doubt, evidence);
        } else if let Some(c) = self.conversation(conversation) {
            // It has a settling time of its own.
            c.absent_since = None;
            c.doubts.push(doubt);
        }
    }

    /// Nothing tells whether the server took a steered message.
    pub(super) fn doubt_unknown(&mut self, fx: &mut Effects, doubt: &Doubt, evidence: &str) {
        let outcome = Outcome::Unknown {
            evidence: evidence.into(),
        };
        self.settle_steer(&doubt.message, outcome);
        if let Some(command) = doubt.command {
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
        command: Option<CommandId>,
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
        if let Some(command) = command {
            let message = message.clone();
            self.answer(fx, command, Ok(Reply::Steered { message }));
        }
    }

    /// Gives a message that its turn did not take a turn of its own, whatever became of that turn.
    pub(super) fn carry_on(
        &mut self,
        fx: &mut Effects,
        conversation: ConversationId,
        doubt: &Doubt,
    ) {
        self.carry(fx, conversation, doubt, &Outcome::Interrupted);
    }

    /// Gives a message that its turn did not take a turn of its own, unless that turn failed.
    fn carry(
        &mut self,
        fx: &mut Effects,
        conversation: ConversationId,
        doubt: &Doubt,
        outcome: &Outcome,
    ) {
        let message = &doubt.message;
        let Some(prompt) = self.durable.prompt(message) else {
            return;
        };
        let left = matches!(
            prompt.state,
            PromptState::MayBeAccepted | PromptState::Running { .. }
        );
        if left {
            self.prompt(message, PromptChange::Unrecorded, Durability::Synced);
        }
        let goes_on = matches!(outcome, Outcome::Completed { .. } | Outcome::Interrupted)
            && self.will_serve();
        let input = self.input_of(message);
        let error = Rejection::NotSent("its turn was over without it".into());
        self.settle_steer(message, Outcome::Rejected { error });
        let follow_up = input
            .filter(|_| goes_on)
            .and_then(|input| self.follow_up(fx, conversation, input));
        let Some(command) = doubt.command else {
            if self.turn(doubt.turn).is_none() {
                // Nothing follows the end of a turn; its follow-up was told.
                return;
            }
            let message = message.clone();
            let update = TurnUpdate::SteerUnrecorded { message, follow_up };
            self.tell(fx, conversation, doubt.turn, update);
            return;
        };
        let answer = match follow_up {
            Some(turn) => Ok(Reply::Queued {
                turn,
                refusal: too_late().into(),
            }),
            None => Err(CommandError::NoActiveTurn),
        };
        let gate = self.gate();
        self.answer_gated(fx, command, gate, answer);
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
        let ended = PromptChange::Ended { outcome, source };
        self.prompt(message, ended, Durability::Synced);
        self.prompt(message, PromptChange::Delivering, Durability::Synced);
        self.prompt(message, PromptChange::Delivered, Durability::Synced);
    }

    /// Gives a message that the running turn did not take a turn of its own.
    pub(super) fn follow_up(
        &mut self,
        fx: &mut Effects,
        conversation: ConversationId,
        input: Vec<InputItem>,
    ) -> Option<TurnNo> {
        let (turn, _) = self.prepare(conversation, input, None, None, None).ok()?;
        let update = ConversationUpdate::TurnBegan {
            turn,
            origin: Origin::Ours,
        };
        self.tell_conversation(fx, conversation, update);
        Some(turn)
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
        let takes = !matches!(turn.state, TurnState::Waiting)
            && turn.stop == Stop::No
            && turn.audience == Audience::All
            && turn.pending_end.is_none();
        if !takes {
            return Err(CommandError::NoActiveTurn);
        }
        if let Some(error) = self.ended_error() {
            // An unfit connection still serves the turns that it runs.
            if !matches!(self.connection, Connection::Unfit { .. }) {
                return Err(error);
            }
        }
        let place = self.turn(no).map_or(1, |turn| {
            turn.steered = turn.steered.saturating_add(1);
            turn.steered
        });
        let message = Prompt::message_id(self.rng.next(), self.rng.next());
        let fields = PromptFields {
            conversation,
            turn: no,
            kind: PromptKind::Steer,
            place,
            input,
            key: None,
            output_schema: None,
            deadline: None,
            until: None,
        };
        let change = PromptChange::Prepared(alloc::boxed::Box::new(fields));
        self.prompt(&message, change, Durability::Synced);
        if let Some(turn) = self.turn(no) {
            turn.steers.push(Steer {
                message,
                sent_on: Epoch(0),
                state: SteerState::Waiting { command: Some(id) },
            });
        }
        self.dispatch_steers(fx, conversation, no);
        Ok(())
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
        let next = turn.steers.iter_mut().find_map(|steer| match steer.state {
            SteerState::Waiting { command } => Some((steer, command)),
            SteerState::Sent { .. }
            | SteerState::Answered
            | SteerState::Recorded
            | SteerState::Unknown { .. } => None,
        });
        let Some((steer, command)) = next else { return };
        steer.state = SteerState::Sent { command };
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
            command,
        };
        self.request(fx, kind, "turn/steer", &params, gate);
    }

    pub(super) fn steer_settled(
        &mut self,
        fx: &mut Effects,
        conversation: ConversationId,
        no: TurnNo,
        message: &MessageId,
        command: Option<CommandId>,
        how: Settled,
    ) {
        let ready = self.connection.is_ready() || self.comes_back();
        // Seen in its turn before that ended: nothing is left to say.
        let answered = command.is_none_or(|command| !self.commands.is_open(command));
        let native = self.turn(no).and_then(|turn| turn.native().cloned());
        if self.durable.prompt(message).is_none() {
            // Its item was seen before its answer came and its turn has ended: all was said then.
            // Or its turn was lost and its conversation closed: only its caller waits.
            if let Some(command) = command.filter(|_| !answered) {
                let how = match how {
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
        let taken = self.has_bug(Bug::TakesAnswersForRecords);
        let steer = self
            .turn(no)
            .and_then(|turn| turn.steers.iter_mut().find(|s| s.message == *message));
        match (steer.as_ref().map(|steer| steer.state), &how) {
            (Some(SteerState::Sent { .. }), _) => {}
            // Its item was seen before its answer came: nothing is left to say.
            (Some(_), _) => return,
            (None, _) if answered => return,
            // The turn ended first. A yes is no proof that the message went into it.
            (None, Settled::Answered(_) | Settled::Unknown(_)) => {
                let evidence = match &how {
                    Settled::Unknown(evidence) => evidence.clone(),
                    _ => "the turn ended before turn/steer was answered".into(),
                };
                let doubt = Doubt {
                    message: message.clone(),
                    turn: no,
                    sent_on: self.last_epoch,
                    command,
                };
                self.keep_doubt(fx, conversation, doubt, &evidence);
                self.advance(fx, conversation);
                return;
            }
            (None, Settled::Refused(_) | Settled::NotSent) => {}
        }
        match how {
            Settled::Answered(_) => {
                if let Some(steer) = steer {
                    steer.state = match taken {
                        true => SteerState::Recorded,
                        false => SteerState::Answered,
                    };
                }
                if let Some(native) = native {
                    let change = PromptChange::Accepted { turn: native };
                    self.prompt(message, change, Durability::Buffered);
                }
                if let Some(command) = command {
                    let message = message.clone();
                    self.answer(fx, command, Ok(Reply::Steered { message }));
                }
            }
            Settled::Refused(refusal) => {
                let input = self.input_of(message);
                self.forget_steer(no, message);
                let error = Rejection::Refused(refusal.clone());
                self.settle_steer(message, Outcome::Rejected { error });
                let follow_up = input
                    .filter(|_| ready)
                    .and_then(|input| self.follow_up(fx, conversation, input));
                let answer = match follow_up {
                    Some(turn) => Ok(Reply::Queued {
                        turn,
                        refusal: refusal.into(),
                    }),
                    None => Err(CommandError::Refused(refusal.into())),
                };
                if let Some(command) = command {
                    let gate = self.gate();
                    self.answer_gated(fx, command, gate, answer);
                }
            }
            Settled::NotSent => {
                self.forget_steer(no, message);
                let error = Rejection::NotSent("turn/steer was not sent".into());
                self.settle_steer(message, Outcome::Rejected { error });
                if let Some(command) = command {
                    let error = self.error_of(Settled::NotSent, "turn/steer");
                    self.answer(fx, command, Err(error));
                }
            }
            Settled::Unknown(evidence) => {
                // Its caller waits for what is learnt when the turn is over, if anything will be.
                let later = self.comes_back();
                if let Some(steer) = self
                    .turn(no)
                    .and_then(|turn| turn.steers.iter_mut().find(|s| s.message == *message))
                {
                    let command = command.filter(|_| later);
                    steer.state = SteerState::Unknown { command };
                }
                if let Some(command) = command.filter(|_| !later) {
                    let error = self.error_of(Settled::Unknown(evidence), "turn/steer");
                    self.answer(fx, command, Err(error));
                }
            }
        }
        self.after_steer(fx, conversation, no);
    }

    fn forget_steer(&mut self, no: TurnNo, message: &MessageId) {
        if let Some(turn) = self.turn(no) {
            turn.steers.retain(|steer| steer.message != *message);
        }
    }

    /// An end that waited for a steer's answer goes on; else the next steer does.
    fn after_steer(&mut self, fx: &mut Effects, conversation: ConversationId, no: TurnNo) {
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
        let before = core::mem::replace(&mut steer.state, SteerState::Recorded);
        let id = steer.message.clone();
        match before {
            SteerState::Sent { command } => {
                self.steer_recorded(fx, &id, native, command);
                self.after_steer(fx, conversation, no);
            }
            SteerState::Unknown { command } => self.steer_recorded(fx, &id, native, command),
            SteerState::Answered | SteerState::Recorded => {}
            SteerState::Waiting { command } => {
                // Nothing of it has left: the server cannot have it.
                if let Some(steer) = self
                    .turn(no)
                    .and_then(|turn| turn.steers.iter_mut().find(|s| s.message == id))
                {
                    steer.state = SteerState::Waiting { command };
                }
            }
        }
    }
}

/// What a message is told that found its turn over before it was sent.
fn too_late() -> Refusal {
    Refusal {
        method: "turn/steer".into(),
        class: RefusalClass::NoActiveTurn,
        error: crate::command::RpcError {
            code: -32_600,
            message: "the turn was over".into(),
            data: None,
        },
    }
}
