//! The life of a turn: from a durable message over a native turn to one end.

use alloc::{
    borrow::ToOwned,
    boxed::Box,
    format,
    string::{String, ToString},
    vec::Vec,
};

use serde::{Deserialize, Serialize};

use super::{
    Link, Machine,
    requests::{Kind, Settled},
    turn::{SteerState, Stop, TurnState},
};
use crate::{
    RawJson,
    command::{InputItem, RefusalClass},
    effect::{Durability, Effects},
    event::{
        ConversationUpdate, EndSource, Failure, FailureKind, Item, Outcome, ProtocolError,
        Rejection, TurnUpdate, Warning,
    },
    id::{ConversationId, MessageId, ThreadId, TurnId, TurnNo},
    prompt::{PromptChange, PromptState},
    record::Record,
    selection::{Selection, SelectionError},
    timers::Timer,
    wire::CowStr,
};

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct TurnStartParams<'a> {
    thread_id: &'a str,
    input: &'a [InputItem],
    client_user_message_id: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    model: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    effort: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    personality: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    output_schema: Option<&'a RawJson>,
}

impl Machine {
    /// Does what a conversation waits for, as far as it can be done now.
    pub(super) fn advance(&mut self, fx: &mut Effects, conversation: ConversationId) {
        self.touch(conversation);
        let ready = self.connection.is_ready();
        let Some(c) = self.conversation(conversation) else {
            return;
        };
        if c.closing.is_some() || c.letting_go {
            return;
        }
        let ours_runs = c
            .turns
            .iter()
            .any(|turn| turn.message.is_some() && !matches!(turn.state, TurnState::Waiting));
        let waits = c
            .turns
            .iter()
            .find(|t| matches!(t.state, TurnState::Waiting))
            .map(|t| t.no);
        let link = c.link.clone();
        if !ready {
            return;
        }
        if self.needs_look(conversation) {
            let reverts = self.conversation(conversation).is_some_and(|c| c.reverting);
            if reverts || self.timers.is_set(Timer::LookAgain(conversation)) {
                return;
            }
            match link {
                Link::Loaded(_) => {
                    let looks = self
                        .conversation(conversation)
                        .is_some_and(|c| c.look.is_some());
                    if !looks {
                        self.look(fx, conversation);
                    }
                }
                Link::Detached(thread) => self.resume_thread(fx, conversation, &thread),
                Link::None | Link::Starting | Link::Resuming(_) => {}
            }
            return;
        }
        if self.run_fork(fx, conversation) {
            return;
        }
        let errand = self.run_errands(fx, conversation);
        let waits = waits.filter(|_| !ours_runs);
        if waits.is_none() && !errand {
            return;
        }
        match link {
            // `thread/start` carries the model, whoever wants the thread.
            Link::None if self.awaits_models(fx, conversation) => {}
            Link::Loaded(_) if waits.is_some() && self.awaits_models(fx, conversation) => {}
            Link::None => match self.plan(conversation) {
                Ok(_) => self.start_thread(fx, conversation),
                Err(error) => {
                    let rejection = Rejection::Selection(error);
                    self.reject_waiting(fx, conversation, &rejection);
                }
            },
            Link::Detached(thread) => self.resume_thread(fx, conversation, &thread),
            Link::Starting | Link::Resuming(_) => {}
            Link::Loaded(thread) => {
                if let Some(no) = waits {
                    self.start_turn(fx, conversation, no, &thread);
                }
            }
        }
    }

    fn start_turn(
        &mut self,
        fx: &mut Effects,
        conversation: ConversationId,
        no: TurnNo,
        thread: &ThreadId,
    ) {
        let Some(message) = self.turn(no).and_then(|turn| turn.message.clone()) else {
            return;
        };
        let selection = match self.select(fx, conversation, &message) {
            Ok(selection) => selection,
            Err(error) => {
                let error = Rejection::Selection(error);
                let outcome = Outcome::Rejected { error };
                self.end_turn(fx, conversation, no, outcome, EndSource::Local);
                return;
            }
        };
        let gate = self.prompt(&message, PromptChange::Dispatched, Durability::Synced);
        let Some(prompt) = self.durable.prompt(&message) else {
            return;
        };
        let (input, schema) = (
            prompt.fields.input.clone(),
            prompt.fields.output_schema.clone(),
        );
        let params = TurnStartParams {
            thread_id: thread,
            input: &input,
            client_user_message_id: &message,
            model: selection.model.as_deref(),
            effort: selection.effort.as_deref(),
            personality: selection.personality.as_deref(),
            output_schema: schema.as_ref(),
        };
        let kind = Kind::TurnStart {
            conversation,
            turn: no,
        };
        let request = self.request(fx, kind, "turn/start", &params, gate);
        let epoch = self.last_epoch;
        if let Some(turn) = self.turn(no) {
            turn.state = TurnState::Sent { request };
            turn.sent_on = epoch;
        }
    }

    /// What a message carries of model, effort and personality, recorded if that is anything.
    fn select(
        &mut self,
        fx: &mut Effects,
        conversation: ConversationId,
        message: &MessageId,
    ) -> Result<Selection, SelectionError> {
        let plan = self.plan(conversation)?;
        if !plan.sent.is_empty() {
            let record = Record::Selection {
                conversation,
                message: message.clone(),
                after: Box::new(plan.after),
            };
            self.record(record, Durability::Synced);
            if let Some(model) = plan.unlisted {
                let warning = Warning::UnlistedModel { model };
                let update = ConversationUpdate::Warning(warning);
                self.tell_conversation(fx, conversation, update);
            }
        }
        Ok(plan.sent)
    }

    pub(super) fn turn_start_settled(
        &mut self,
        fx: &mut Effects,
        conversation: ConversationId,
        no: TurnNo,
        how: Settled,
    ) {
        let Some(turn) = self.turn(no) else { return };
        // Bound by our own message already: the response's id is a ghost, or the same.
        if !matches!(turn.state, TurnState::Sent { .. }) {
            return;
        }
        match how {
            Settled::Answered(result) => match read_turn_id(&result) {
                Ok(native) => self.bind_turn(fx, conversation, no, native, false),
                Err(reason) => {
                    let method = "turn/start".to_owned();
                    self.report(
                        fx,
                        ProtocolError::BadResponse {
                            method,
                            reason: reason.clone(),
                        },
                    );
                    if self.comes_back() {
                        self.start_in_doubt(conversation, no, true);
                        self.advance(fx, conversation);
                        return;
                    }
                    let evidence = format!("the response to turn/start makes no sense: {reason}");
                    let outcome = Outcome::Unknown { evidence };
                    self.end_turn(fx, conversation, no, outcome, EndSource::Local);
                }
            },
            Settled::Refused(refusal) => {
                if matches!(refusal.class, RefusalClass::ThreadNotFound) {
                    if let Some(c) = self.conversation(conversation) {
                        if let Link::Loaded(thread) = c.link.clone() {
                            c.link = Link::Detached(thread);
                        }
                    }
                }
                let outcome = Outcome::Rejected {
                    error: Rejection::Refused(refusal),
                };
                self.end_turn(fx, conversation, no, outcome, EndSource::Live);
            }
            // The connection that did not take it ends; the next one does.
            Settled::NotSent if self.comes_back() => self.start_in_doubt(conversation, no, false),
            Settled::NotSent => {
                let error = Rejection::NotSent("turn/start was not sent".into());
                let outcome = Outcome::Rejected { error };
                self.end_turn(fx, conversation, no, outcome, EndSource::Local);
            }
            Settled::Unknown(_) if self.comes_back() => {
                self.start_in_doubt(conversation, no, true);
                self.advance(fx, conversation);
            }
            Settled::Unknown(evidence) => {
                let evidence = format!("turn/start left: {evidence}");
                let outcome = Outcome::Unknown { evidence };
                self.end_turn(fx, conversation, no, outcome, EndSource::Local);
            }
        }
    }

    /// The server has named our turn.
    pub(super) fn bind_turn(
        &mut self,
        fx: &mut Effects,
        conversation: ConversationId,
        no: TurnNo,
        native: TurnId,
        confirmed: bool,
    ) {
        let (now, quiet) = (self.now, self.config.limits.quiet);
        let Some(c) = self.conversation(conversation) else {
            return;
        };
        if c.has_ended(&native) {
            let evidence =
                format!("the server took the message into turn {native}, which was over");
            let outcome = Outcome::Unknown { evidence };
            self.end_turn(fx, conversation, no, outcome, EndSource::Local);
            return;
        }
        let folded = c.running(&native).is_some();
        // Where a turn runs already, or may, the id of the response can be a ghost.
        let alone = c.early.is_empty() && !c.turns.iter().any(|t| t.native().is_some());
        let Some(at) = c.turns.iter().position(|turn| turn.no == no) else {
            return;
        };
        // Frames go to the first turn of their id: ours.
        let mut turn = c.turns.remove(at);
        turn.state = TurnState::Running {
            native: native.clone(),
            confirmed: false,
        };
        turn.heard = now;
        // What the server began before a message of ours was folded into it comes after that.
        let first = if turn.message.is_some() {
            0
        } else {
            c.turns.len()
        };
        c.turns.insert(first, turn);
        let overflow = core::mem::take(&mut c.early_overflow);
        self.timers.set(Timer::Quiet(no), now.after(quiet));
        if confirmed || alone || folded {
            self.accepted_in(no, &native);
        }
        if confirmed {
            self.promote(no);
        }
        if folded {
            if let Some(turn) = self.turn(no) {
                turn.started_told = true;
            }
            self.tell(fx, conversation, no, TurnUpdate::Folded { into: native });
        }
        self.take_early(fx, conversation);
        if overflow {
            let limit = self.config.limits.early_frames;
            self.report(fx, ProtocolError::TooManyEarlyFrames { limit });
            let failure = Failure::ours(
                FailureKind::Protocol,
                "too many frames came before the turn was named",
            );
            self.fail_and_stop(fx, conversation, no, failure);
        }
        self.go_on(fx, conversation, no);
    }

    /// Sends what waited for the server to name a turn.
    pub(super) fn go_on(&mut self, fx: &mut Effects, conversation: ConversationId, no: TurnNo) {
        if let Some(Stop::Wanted { .. }) = self.turn(no).map(|turn| turn.stop.clone()) {
            self.dispatch_interrupt(fx, conversation, no);
        }
        self.dispatch_steers(fx, conversation, no);
        self.touch(conversation);
    }

    /// Records that the server has our message, once.
    pub(super) fn accepted_in(&mut self, no: TurnNo, native: &TurnId) {
        let Some(message) = self.turn(no).and_then(|turn| turn.message.clone()) else {
            return;
        };
        let waits = self
            .durable
            .prompt(&message)
            .is_some_and(|p| matches!(p.state, PromptState::MayBeAccepted));
        if waits {
            let turn = native.clone();
            self.prompt(
                &message,
                PromptChange::Accepted { turn },
                Durability::Buffered,
            );
        }
    }

    /// The server's name for a turn, unless it may be a ghost: another turn of the thread runs, and
    /// only the response has named this one.
    pub(super) fn certain_native(&mut self, no: TurnNo) -> Option<TurnId> {
        let owner = *self.turn_owner.get(&no)?;
        let c = self.conversation(owner)?;
        let turn = c.turns.iter().find(|turn| turn.no == no)?;
        let TurnState::Running { native, confirmed } = &turn.state else {
            return None;
        };
        let alone = !c
            .turns
            .iter()
            .any(|other| other.native().is_some_and(|other| other != native));
        (*confirmed || alone).then(|| native.clone())
    }

    /// Our own message stands in a turn: the server has taken it there.
    pub(super) fn bind_by_message(
        &mut self,
        fx: &mut Effects,
        thread: &str,
        native: &str,
        item: &Item,
    ) {
        let Some(conversation) = self.owner_of(thread) else {
            return;
        };
        let Some(native) = TurnId::new(native) else {
            return;
        };
        let Some(message) = item.client_id.as_deref() else {
            return;
        };
        let Some(c) = self.conversation(conversation) else {
            return;
        };
        if c.has_ended(&native) {
            return;
        }
        let own = c
            .turns
            .iter_mut()
            .find(|turn| turn.message.as_ref().is_some_and(|m| m.as_str() == message));
        if let Some(turn) = own {
            let no = turn.no;
            match &turn.state {
                TurnState::Waiting => return,
                TurnState::Sent { .. } | TurnState::Suspended { .. } => {
                    self.tell_resumed(fx, conversation, no);
                    self.bind_turn(fx, conversation, no, native.clone(), true);
                }
                TurnState::Running { native: had, .. } if *had == native => {}
                TurnState::Running { .. } => {
                    // The id of the response was a ghost: it is never used.
                    turn.state = TurnState::Running {
                        native: native.clone(),
                        confirmed: false,
                    };
                    turn.started_told = true;
                    self.promote(no);
                    let into = native.clone();
                    self.tell(fx, conversation, no, TurnUpdate::Folded { into });
                    self.put_first(conversation, no);
                    self.go_on(fx, conversation, no);
                }
            }
            if let Some(turn) = self.turn(no) {
                if !core::mem::replace(&mut turn.own_seen, true) {
                    turn.text.restart();
                }
            }
            return;
        }
        self.steer_seen(fx, conversation, message, &native);
    }

    /// An end that waits for the answer of a steer waits no longer. Tells whether there was one.
    pub(super) fn finish_pending(
        &mut self,
        fx: &mut Effects,
        conversation: ConversationId,
        no: TurnNo,
    ) -> bool {
        let Some(turn) = self.turn(no) else {
            return false;
        };
        let Some(end) = turn.pending_end.take() else {
            return false;
        };
        let mut given_up = Vec::new();
        for steer in &mut turn.steers {
            if steer.state == SteerState::Sent {
                steer.state = SteerState::Unknown;
                given_up.push(steer.message.clone());
            }
        }
        for message in given_up {
            self.give_flush_up(conversation, &message);
        }
        self.finish_native(fx, conversation, no, end.outcome, end.source);
        true
    }

    fn put_first(&mut self, conversation: ConversationId, no: TurnNo) {
        let Some(c) = self.conversation(conversation) else {
            return;
        };
        if let Some(at) = c.turns.iter().position(|turn| turn.no == no) {
            let turn = c.turns.remove(at);
            c.turns.insert(0, turn);
        }
    }
}

fn read_turn_id(result: &str) -> Result<TurnId, String> {
    #[derive(Deserialize)]
    struct Started<'a> {
        #[serde(borrow)]
        turn: Named<'a>,
    }
    #[derive(Deserialize)]
    struct Named<'a> {
        #[serde(borrow)]
        id: CowStr<'a>,
    }
    let started: Started<'_> = crate::json::from_object(result).map_err(|e| e.to_string())?;
    TurnId::new(&started.turn.id.0).ok_or_else(|| "the turn's id is not clean".to_owned())
}
