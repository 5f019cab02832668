//! How turns end: by the server, early, or by us; each once.

use alloc::{borrow::ToOwned, format, vec::Vec};

use serde_json::value::RawValue;

use super::{
    Machine,
    found::EndedTurn,
    reconcile::Unsure,
    turn::{Audience, PendingEnd, Stop, Turn, TurnState},
    warnings::read_failure,
};
use crate::{
    RawJson,
    bug::Bug,
    command::{CommandError, Reply},
    effect::{Durability, Effects},
    event::{
        CallClosedWhy, EndSource, Failure, FailureKind, Item, LostReason, Outcome,
        QuestionClosedWhy, TurnEnd, TurnUpdate,
    },
    id::{ConversationId, TurnNo},
    prompt::{PromptChange, PromptState},
    timers::Timer,
};

/// How many turns of a conversation that were told as lost or unknown are looked for later.
const MAX_UNSURE: usize = 16;

impl Machine {
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
        if self.turn_owner.is_empty() {
            self.runs.rest();
        }
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
