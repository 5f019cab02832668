//! How turns are stopped: by the application, by time, by silence.

use alloc::vec::Vec;

use serde::Serialize;

use super::{
    Machine,
    requests::{Kind, Settled},
    turn::{Audience, Stop, TurnState},
};
use crate::{
    command::RefusalClass,
    effect::{Durability, Effects},
    event::{CallClosedWhy, EndSource, LostReason, Outcome, QuestionClosedWhy, TurnUpdate},
    id::{CommandId, ConversationId, TurnNo},
    prompt::{Cancellation, PromptChange, PromptState},
    record::{Record, RequestEnd},
    timers::Timer,
};

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct TurnInterruptParams<'a> {
    thread_id: &'a str,
    turn_id: &'a str,
}

/// The shortest silence that is told of.
const SHORTEST_QUIET: core::time::Duration = core::time::Duration::from_millis(1);

impl Machine {
    /// Somebody wants a turn to stop.
    pub(super) fn want_stop(&mut self, fx: &mut Effects, no: TurnNo) {
        let Some(turn) = self.turn(no) else { return };
        let conversation = turn.conversation;
        let state = turn.state.clone();
        let message = turn.message.clone();
        // A message whose end was told early may be at rest by now.
        if let Some(message) = message.filter(|m| self.durable.prompt(m).is_some()) {
            self.prompt(&message, PromptChange::CancelRequested, Durability::Synced);
        }
        match state {
            TurnState::Waiting => {
                // Requested before the frame left: it never leaves.
                self.end_turn(fx, conversation, no, Outcome::Interrupted, EndSource::Local);
            }
            TurnState::Sent { request } => {
                if !self.requests.has_left(request) {
                    self.withdraw_start(no);
                    self.end_turn(fx, conversation, no, Outcome::Interrupted, EndSource::Local);
                }
            }
            TurnState::Running { .. } => self.dispatch_interrupt(fx, conversation, no),
            // Only where the history shows it running is anything sent.
            TurnState::Suspended { .. } => {}
        }
    }

    /// Takes back the start of a turn that has not left.
    pub(super) fn withdraw_start(&mut self, no: TurnNo) {
        if let Some(TurnState::Sent { request }) = self.turn(no).map(|turn| turn.state.clone()) {
            self.timers.clear(Timer::Retry(request));
            self.outbox.withdraw(request);
            self.requests.take(request);
        }
    }

    pub(super) fn dispatch_interrupt(
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
        let Some(native) = self.certain_native(no) else {
            // Not for ever: then the history tells what became of the turn.
            let due = self.now.after(self.config.limits.interrupt);
            if self.turn(no).is_some_and(|turn| turn.native().is_some())
                && !self.timers.is_set(Timer::EndGrace(no))
            {
                self.timers.set(Timer::EndGrace(no), due);
            }
            return;
        };
        let Some(turn) = self.turn(no) else { return };
        let (message, commands) = (turn.message.clone(), turn.stop.take_commands());
        let runs = message
            .as_ref()
            .and_then(|m| self.durable.prompt(m))
            .is_some_and(|p| {
                matches!(&p.state, PromptState::Running { turn, .. } if *turn == native)
                    && matches!(
                        p.cancellation,
                        Cancellation::Requested | Cancellation::Ambiguous
                    )
            });
        let gate = match message.filter(|_| runs) {
            Some(message) => {
                let change = PromptChange::CancelDispatched {
                    turn: native.clone(),
                };
                self.prompt(&message, change, Durability::Synced)
            }
            None => {
                let record = Record::Request {
                    command: bare_interrupt(no),
                    method: "turn/interrupt".into(),
                };
                self.record(record, Durability::Synced)
            }
        };
        let params = TurnInterruptParams {
            thread_id: &thread,
            turn_id: &native,
        };
        let kind = Kind::TurnInterrupt {
            conversation,
            turn: no,
        };
        let request = self.request(fx, kind, "turn/interrupt", &params, gate);
        let now = self.now;
        if let Some(turn) = self.turn(no) {
            turn.stop_since.get_or_insert(now);
            turn.stop = Stop::Sent { request, commands };
        }
    }

    pub(super) fn interrupt_settled(
        &mut self,
        fx: &mut Effects,
        conversation: ConversationId,
        no: TurnNo,
        how: Settled,
    ) {
        let end = how.end();
        self.bare_interrupt_ended(no, end);
        let grace = self.now.after(self.config.limits.end_grace);
        // An interrupt in flight when the end arrives is settled by that end.
        let Some(turn) = self.turn(no) else { return };
        let commands = turn.stop.take_commands();
        let message = turn.message.clone();
        if matches!(how, Settled::Answered(_)) {
            turn.stop = Stop::Granted { commands };
            if !self.timers.is_set(Timer::EndGrace(no)) {
                self.timers.set(Timer::EndGrace(no), grace);
            }
            return;
        }
        // The turn is over, and its end on its way; or the server has only just taken it and does not
        // know it yet, as both versions do for a moment. The history tells.
        let not_there = match &how {
            Settled::Refused(refusal) => matches!(
                refusal.class,
                RefusalClass::NoActiveTurn | RefusalClass::TurnMismatch { .. }
            ),
            Settled::Answered(_) | Settled::NotSent | Settled::Unknown(_) => false,
        };
        let ambiguous = message
            .as_ref()
            .and_then(|m| self.durable.prompt(m))
            .is_some_and(|p| p.cancellation == Cancellation::Dispatching);
        if let Some(message) = message.filter(|_| ambiguous) {
            self.prompt(
                &message,
                PromptChange::CancelAmbiguous,
                Durability::Buffered,
            );
        }
        let soon = self.now.after(self.config.limits.settle_every);
        let Some(turn) = self.turn(no) else { return };
        if not_there {
            turn.stop = Stop::Wanted { commands };
            self.timers.set(Timer::EndGrace(no), soon);
            return;
        }
        match how {
            Settled::Unknown(_) if turn.pending_end.is_some() => {
                // It has ended, and only the answer of a steer is waited for.
                turn.stop = Stop::Granted { commands };
                self.finish_pending(fx, conversation, no);
            }
            Settled::Unknown(_) => {
                turn.stop = Stop::Granted { commands };
                let why = CallClosedWhy::TurnEnded;
                self.close_calls(fx, conversation, no, why, None);
                let why = QuestionClosedWhy::TurnEnded;
                self.close_questions(fx, conversation, no, why, false);
                let outcome = Outcome::Lost {
                    reason: LostReason::InterruptUnanswered,
                };
                // First unfit, so that nothing new starts when the turn's end lets it.
                self.be_unfit(fx);
                self.end_turn(fx, conversation, no, outcome, EndSource::Local);
            }
            other => {
                turn.stop = Stop::No;
                for id in commands {
                    self.answer(fx, id, Err(other.clone().error("turn/interrupt")));
                }
            }
        }
    }

    /// The history says that a turn runs which should have ended. Tells whether it is waited for.
    pub(super) fn still_runs(
        &mut self,
        fx: &mut Effects,
        conversation: ConversationId,
        no: TurnNo,
    ) -> bool {
        let (now, limits) = (self.now, &self.config.limits);
        let (limit, grace) = (limits.interrupt, limits.end_grace);
        let Some(turn) = self.turn(no) else {
            return false;
        };
        let Some(since) = turn.stop_since.filter(|since| now.since(*since) < limit) else {
            return false;
        };
        match &turn.stop {
            // It was refused before the server knew of the turn.
            Stop::Wanted { .. } => {
                self.dispatch_interrupt(fx, conversation, no);
                true
            }
            Stop::Granted { .. } => {
                let due = now.after(grace).min(since.after(limit));
                self.timers.set(Timer::EndGrace(no), due);
                true
            }
            Stop::No | Stop::Cancelled | Stop::Sent { .. } => false,
        }
    }

    fn bare_interrupt_ended(&mut self, no: TurnNo, end: RequestEnd) {
        let command = bare_interrupt(no);
        if self.durable.request(command).is_some() {
            let record = Record::RequestEnded { command, end };
            self.record(record, Durability::Buffered);
        }
    }

    /// The connection ended before an interrupt was answered.
    pub(super) fn end_bare_interrupt(&mut self, no: TurnNo, left: bool) {
        let end = if left {
            RequestEnd::Unknown
        } else {
            RequestEnd::NotSent
        };
        self.bare_interrupt_ended(no, end);
    }

    /// Gives a turn up: its calls are refused, it is stopped, and only its end is told.
    pub(super) fn give_turn_up(&mut self, fx: &mut Effects, no: TurnNo) {
        let Some(turn) = self.turn(no) else { return };
        let conversation = turn.conversation;
        let withdraw = super::calls::withdrawn("the turn was abandoned");
        let why = CallClosedWhy::Abandoned;
        self.close_calls(fx, conversation, no, why, Some(withdraw));
        self.close_questions(fx, conversation, no, QuestionClosedWhy::Abandoned, true);
        let Some(turn) = self.turn(no) else { return };
        let message = turn.message.clone();
        if turn.audience == Audience::All {
            turn.audience = Audience::EndOnly;
            // A later life of ours must not tell of it either.
            if let Some(message) = message.filter(|m| self.durable.prompt(m).is_some()) {
                self.prompt(&message, PromptChange::Forsaken, Durability::Synced);
            }
        }
        let Some(turn) = self.turn(no) else { return };
        if turn.stop.is_unasked() {
            turn.stop = Stop::Wanted {
                commands: Vec::new(),
            };
            self.want_stop(fx, no);
        }
    }

    /// Nobody waits for the end of a turn that is over.
    pub(super) fn forsake(&mut self, no: TurnNo) {
        let message = self
            .durable
            .prompt_of_turn(no)
            .map(|(message, _)| message.clone());
        if let Some(message) = message {
            self.prompt(&message, PromptChange::Forsaken, Durability::Buffered);
        }
    }

    pub(super) fn turn_timed_out(&mut self, fx: &mut Effects, no: TurnNo) {
        let Some(turn) = self.turn(no) else { return };
        let conversation = turn.conversation;
        let withdraw = super::calls::withdrawn("the turn's time is over");
        let why = CallClosedWhy::TurnEnded;
        self.close_calls(fx, conversation, no, why, Some(withdraw));
        let why = QuestionClosedWhy::TurnEnded;
        self.close_questions(fx, conversation, no, why, true);
        self.tell_end_early(fx, conversation, no, Outcome::TimedOut);
        let Some(turn) = self.turn(no) else { return };
        if turn.stop.is_unasked() {
            turn.stop = Stop::Wanted {
                commands: Vec::new(),
            };
            self.want_stop(fx, no);
        }
    }

    pub(super) fn turn_quiet(&mut self, fx: &mut Effects, no: TurnNo) {
        // A limit of nothing must not keep the clock from going on.
        let limit = self.config.limits.quiet.max(SHORTEST_QUIET);
        let now = self.now;
        let Some(turn) = self.turn(no) else { return };
        let due = turn.heard.after(limit);
        if due > now {
            self.timers.set(Timer::Quiet(no), due);
            return;
        }
        let conversation = turn.conversation;
        let count = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
        let update = TurnUpdate::Quiet {
            open_calls: count(turn.calls.len()),
            open_questions: count(turn.questions.len()),
            open_items: count(turn.open_items.len()),
        };
        self.timers.set(Timer::Quiet(no), now.after(limit));
        self.tell(fx, conversation, no, update);
        if self.config.quiet == crate::config::Quiet::Interrupt {
            if let Some(turn) = self.turn(no).filter(|turn| turn.stop.is_unasked()) {
                turn.stop = Stop::Wanted {
                    commands: Vec::new(),
                };
                self.want_stop(fx, no);
            }
        }
    }
}

/// The number under which an interrupt stands in the journal that belongs to no message of ours:
/// above all numbers that callers count up to.
fn bare_interrupt(no: TurnNo) -> CommandId {
    CommandId(u64::MAX - u64::from(no.0))
}
