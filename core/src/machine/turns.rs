//! The life of a turn: from a durable message over a native turn to one end.

use alloc::{
    borrow::ToOwned,
    boxed::Box,
    format,
    string::{String, ToString},
    vec::Vec,
};

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::{
    Link, Machine,
    found::EndedTurn,
    frames::read_failure,
    reconcile::Unsure,
    requests::{Kind, Settled},
    turn::{Audience, PendingEnd, SteerState, Stop, Turn, TurnState},
};
use crate::{
    RawJson,
    bug::Bug,
    command::{CommandError, InputItem, RefusalClass, Reply},
    effect::{Durability, Effects},
    event::{
        CallClosedWhy, ConversationUpdate, EndSource, Failure, FailureKind, Item, LostReason,
        Outcome, ProtocolError, QuestionClosedWhy, Rejection, TurnEnd, TurnUpdate, Warning,
    },
    id::{ConversationId, MessageId, ThreadId, TurnId, TurnNo},
    prompt::{PromptChange, PromptState},
    record::Record,
    selection::{Selection, SelectionError},
    timers::Timer,
    wire::CowStr,
};

/// How many turns of a conversation that were told as lost or unknown are looked for later.
const MAX_UNSURE: usize = 16;

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

    /// A message of the agent is complete: recorded, so that a crash knows what was said.
    pub(super) fn record_output(&mut self, no: TurnNo, item: &Item) {
        let Some(turn) = self.turn(no) else { return };
        let is_answer = turn
            .text
            .final_text()
            .is_some_and(|t| Some(t) == item.text.as_ref());
        let (Some(message), Some(text), true) =
            (turn.message.clone(), item.text.clone(), is_answer)
        else {
            return;
        };
        let runs = self
            .durable
            .prompt(&message)
            .is_some_and(|p| matches!(p.state, PromptState::Running { .. }));
        if runs {
            self.prompt(
                &message,
                PromptChange::Output { text },
                Durability::Buffered,
            );
        }
    }

    /// The server ended a turn.
    pub(super) fn native_end(
        &mut self,
        fx: &mut Effects,
        conversation: ConversationId,
        no: TurnNo,
        status: &str,
        error: Option<&RawValue>,
    ) {
        let Some(native) = self.turn(no).and_then(|turn| turn.native().cloned()) else {
            return;
        };
        let error = error.filter(|e| e.get() != "null");
        let Some(c) = self.conversation(conversation) else {
            return;
        };
        let all: Vec<TurnNo> = c
            .turns
            .iter()
            .filter(|t| t.is_native(&native))
            .map(|t| t.no)
            .collect();
        for &no in &all {
            let Some(turn) = self.turn(no) else { continue };
            // A message of ours that was folded into a turn which is stopped, and never recorded.
            let folded = turn.message.is_some() && !turn.own_seen && all.len() > 1;
            if folded && status == "interrupted" && turn.stop == Stop::No {
                self.unrecorded(fx, conversation, no);
                continue;
            }
            let held = turn.held_error.take().map(|error| *error);
            let outcome = match status {
                "completed" => Outcome::Completed {
                    text: None,
                    structured: None,
                },
                "interrupted" => Outcome::Interrupted,
                "failed" => Outcome::Failed {
                    error: match (error, held) {
                        (None, Some(held)) => held,
                        (error, _) => read_failure(error),
                    },
                },
                other => Outcome::Unknown {
                    evidence: format!("the server ended the turn with status {other:?}"),
                },
            };
            self.finish_native(fx, conversation, no, outcome, EndSource::Live);
        }
    }

    /// Ends a turn that the server has ended, once no steer of it is unanswered.
    pub(super) fn finish_native(
        &mut self,
        fx: &mut Effects,
        conversation: ConversationId,
        no: TurnNo,
        outcome: Outcome,
        source: EndSource,
    ) {
        let Some(turn) = self.turn(no) else { return };
        if turn.steer_unanswered() {
            if turn.pending_end.is_some() {
                self.counters.duplicate_frames += 1;
            } else {
                turn.pending_end = Some(PendingEnd { outcome, source }.into());
            }
            return;
        }
        // What was read before the end is staged before it.
        if !turn.unstaged.is_empty() {
            self.stage(fx, conversation, no, false);
        }
        let Some(turn) = self.turn(no) else { return };
        let open_calls = !turn.calls.is_empty();
        let (text, wants_json) = (turn.text.final_text().cloned(), turn.wants_json);
        let outcome = match outcome {
            Outcome::Completed { .. } if open_calls && source == EndSource::Live => {
                let withdraw = super::calls::withdrawn("the turn is over");
                let why = CallClosedWhy::TurnEnded;
                self.close_calls(fx, conversation, no, why, Some(withdraw));
                Outcome::Failed {
                    error: Failure::ours(
                        FailureKind::Protocol,
                        "the turn completed while a tool call was open",
                    ),
                }
            }
            Outcome::Completed { .. } if wants_json => {
                let json = text
                    .as_deref()
                    .and_then(|text| RawJson::parse(text.trim()).ok());
                match json {
                    Some(json) => Outcome::Completed {
                        text,
                        structured: Some(json),
                    },
                    None => Outcome::Failed {
                        error: Failure::ours(
                            FailureKind::StructuredOutput,
                            "a schema was asked for and the final text is no JSON",
                        ),
                    },
                }
            }
            Outcome::Completed { .. } => Outcome::Completed {
                text,
                structured: None,
            },
            other => other,
        };
        let why = match outcome {
            Outcome::Interrupted if self.is_asked_to_stop(no) => CallClosedWhy::Interrupted,
            _ => CallClosedWhy::TurnEnded,
        };
        self.close_calls(fx, conversation, no, why, None);
        self.close_questions(fx, conversation, no, QuestionClosedWhy::TurnEnded, false);
        self.end_turn(fx, conversation, no, outcome, source);
    }

    /// Tells the end of a turn that the server still runs.
    pub(super) fn tell_end_early(
        &mut self,
        fx: &mut Effects,
        conversation: ConversationId,
        no: TurnNo,
        outcome: Outcome,
    ) {
        let Some(turn) = self.turn(no) else { return };
        if turn.audience != Audience::All {
            return;
        }
        let end = turn_end(turn, outcome.clone(), EndSource::Local);
        let message = turn.message.clone();
        // The round ends with what is told, whatever becomes of the turn there.
        self.end_round(fx, conversation, no, &outcome);
        if let Some(message) = message {
            if matches!(outcome, Outcome::TimedOut) {
                self.prompt(&message, PromptChange::TimedOut, Durability::Synced);
            } else {
                let source = EndSource::Local;
                let unrecorded = false;
                let ended = PromptChange::Ended {
                    outcome,
                    source,
                    unrecorded,
                };
                self.prompt(&message, ended, Durability::Synced);
                self.prompt(&message, PromptChange::Delivering, Durability::Synced);
            }
        }
        let gate = self.gate();
        self.tell_gated(fx, conversation, no, gate, TurnUpdate::Ended(end.into()));
        if let Some(turn) = self.turn(no) {
            turn.audience = Audience::Told;
        }
    }

    /// Ends a turn: one record, one event, and what was waiting for it.
    pub(super) fn end_turn(
        &mut self,
        fx: &mut Effects,
        conversation: ConversationId,
        no: TurnNo,
        outcome: Outcome,
        source: EndSource,
    ) {
        let Some(turn) = self.turn(no) else { return };
        let end = turn_end(turn, outcome.clone(), source);
        let (message, audience) = (turn.message.clone(), turn.audience);
        // The server answered, and was stopped before it wrote the message down.
        let unrecorded = matches!(outcome, Outcome::Interrupted) && !turn.own_seen && !turn.gap;
        let early = self.early_end(no);
        if let Some(message) = &message {
            let open = self
                .durable
                .prompt(message)
                .is_some_and(|p| !matches!(p.state, PromptState::Terminal { .. }));
            if open {
                let change = PromptChange::Ended {
                    outcome: outcome.clone(),
                    source,
                    unrecorded,
                };
                self.prompt(message, change, Durability::Synced);
            }
            let delivery = match audience {
                Audience::All => Some(PromptChange::Delivering),
                // Nobody waits for it: that was recorded when it was given up.
                Audience::EndOnly | Audience::Told => None,
            };
            if let Some(change) = delivery.filter(|_| self.durable.prompt(message).is_some()) {
                self.prompt(message, change, Durability::Synced);
            }
        }
        let (steers, gap) = match self.turn(no) {
            Some(turn) => (core::mem::take(&mut turn.steers), turn.gap),
            None => (Vec::new(), false),
        };
        // Before the end: nothing of the turn follows it.
        self.end_steers(fx, conversation, no, (steers, gap), &outcome);
        self.end_round(fx, conversation, no, early.as_ref().unwrap_or(&outcome));
        // Where its round was over before it.
        let left = self
            .turn(no)
            .map(|turn| core::mem::take(&mut turn.steer_commands));
        let refusal = super::steers::too_late("the turn was over");
        self.tell_queued(fx, left.unwrap_or_default(), &refusal);
        let gate = self.gate();
        let (told, may_learn) = (end.clone(), self.comes_back() && audience == Audience::All);
        if self.has_bug(Bug::EndsTwice) {
            let end = TurnUpdate::Ended(end.clone().into());
            self.tell_gated(fx, conversation, no, gate, end);
        }
        self.tell_gated(fx, conversation, no, gate, TurnUpdate::Ended(end.into()));
        let Some(c) = self.conversation(conversation) else {
            return;
        };
        let Some(at) = c.turns.iter().position(|turn| turn.no == no) else {
            return;
        };
        let mut turn = c.turns.remove(at);
        if c.turns.is_empty() {
            // An idle conversation keeps no room for turns.
            c.turns = Vec::new();
        }
        if let Some(native) = turn.name().cloned() {
            if c.running(&native).is_none() {
                c.remember_ended(EndedTurn::new(native, &outcome, source));
            }
        }
        if matches!(outcome, Outcome::Lost { .. } | Outcome::Unknown { .. }) && may_learn {
            if c.unsure.len() == MAX_UNSURE {
                c.unsure.remove(0);
            }
            c.unsure.push(Unsure { no, end: told });
        }
        self.turn_owner.remove(&no);
        for timer in [
            Timer::TurnDeadline(no),
            Timer::EndGrace(no),
            Timer::Quiet(no),
        ] {
            self.timers.clear(timer);
        }
        if let TurnState::Sent { request } = turn.state {
            // Ended before it was named: its response, if one comes, finds nobody.
            if !self.requests.has_left(request) {
                self.timers.clear(Timer::Retry(request));
                self.outbox.withdraw(request);
                self.requests.take(request);
            }
        }
        for id in turn.stop.take_commands() {
            self.answer_gated(fx, id, gate, stop_answer(&outcome));
        }
        self.take_early(fx, conversation);
        self.compaction_turn_ended(fx, conversation, no, &outcome);
        self.advance(fx, conversation);
        self.close_if_drained(fx);
    }
}

fn turn_end(turn: &Turn, outcome: Outcome, source: EndSource) -> TurnEnd {
    TurnEnd {
        text: turn.text.so_far(),
        candidate: turn.text.candidate(),
        usage: turn.used,
        native: turn.native().or(turn.suspended()).cloned(),
        message: turn.message.clone(),
        outcome,
        source,
    }
}

fn stop_answer(outcome: &Outcome) -> Result<Reply, CommandError> {
    match outcome {
        Outcome::Interrupted => Ok(Reply::Interrupted),
        Outcome::Lost {
            reason: LostReason::InterruptUnanswered,
        } => Err(CommandError::InterruptUnanswered),
        Outcome::Lost {
            reason: LostReason::Connection(reason),
        } => Err(CommandError::Disconnected {
            reason: reason.clone(),
        }),
        Outcome::Lost {
            reason: LostReason::ClosedByUs,
        } => Err(CommandError::ClosedByUs),
        other => Ok(Reply::AlreadyEnded {
            outcome: other.name().to_owned(),
        }),
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
