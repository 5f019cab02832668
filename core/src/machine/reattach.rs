//! Conversations on a new connection: resumed, and what is in doubt decided by the history.
//!
//! A message that the history holds was accepted; its turn's end, where it has one, is told from
//! there. A message that it lacks is sent again, under its id, but only once its absence is proof:
//! the server's process is a new one, or the same one shows the thread idle without the message at
//! the start and at the end of the settling time.

use alloc::{
    borrow::ToOwned,
    boxed::Box,
    format,
    string::{String, ToString},
    vec::Vec,
};

use serde::Serialize;
use serde_json::value::RawValue;

use super::{
    Link, Machine,
    frames::read_failure,
    out::UNGATED,
    requests::{Kind, Settled},
    turn::{SteerState, Stop, TurnState},
};
use crate::{
    command::{Refusal, RefusalClass},
    config::{RecoveredTurns, Resend},
    effect::{Durability, Effects},
    event::{
        CallClosedWhy, ConversationUpdate, EndSource, HistoryError, LostReason, Outcome,
        TurnUpdate, Warning,
    },
    history::{History, PAGE, PastTurn},
    id::{CommandId, ConversationId, MessageId, ThreadId, TurnId, TurnNo},
    prompt::{PromptChange, PromptState},
    timers::Timer,
};

/// How often in a row a resume or a page may fail to be answered.
const PATIENCE: u32 = 3;

/// A look into the history that is not over.
#[derive(Clone, Debug, Default)]
pub(super) struct Look {
    history: History,
}

/// A steered message whose turn is over and of which nobody knows whether it went into it.
#[derive(Clone, Debug)]
pub(super) struct Doubt {
    pub(super) message: MessageId,
    /// The turn it was meant for.
    pub(super) turn: TurnNo,
    pub(super) command: Option<CommandId>,
}

/// What the history says of a turn.
enum Verdict<'a> {
    /// The server runs it.
    Runs(TurnId),
    /// It is over.
    Ended(&'a PastTurn),
    /// The server never recorded its message, and never will.
    Void,
    /// Its message is nowhere.
    Absent,
    /// The history does not go together with what we know.
    Strange(String),
}

/// What becomes of what the history lacks.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Proof {
    /// It was never accepted.
    Absent,
    /// It may yet be recorded: it is looked for again.
    NotYet,
    /// Absence proves nothing here.
    Never,
}

impl Machine {
    /// Whether a conversation waits for the history of its thread.
    pub(super) fn needs_look(&mut self, conversation: ConversationId) -> bool {
        self.conversation(conversation).is_some_and(|c| {
            !c.doubts.is_empty() || c.turns.iter().any(super::turn::Turn::is_suspended)
        })
    }

    /// Begins to read the history, newest turns first.
    pub(super) fn look(&mut self, fx: &mut Effects, conversation: ConversationId) {
        if let Some(c) = self.conversation(conversation) {
            c.look = Some(Box::default());
        }
        self.counters.lookups += 1;
        self.read_page(fx, conversation, None);
    }

    fn read_page(&mut self, fx: &mut Effects, conversation: ConversationId, cursor: Option<&str>) {
        #[derive(Serialize)]
        #[serde(rename_all = "camelCase")]
        struct TurnsParams<'a> {
            thread_id: &'a str,
            limit: u32,
            items_view: &'a str,
            #[serde(skip_serializing_if = "Option::is_none")]
            cursor: Option<&'a str>,
        }
        let thread = self
            .conversation(conversation)
            .and_then(|c| c.link.thread().cloned());
        let Some(thread) = thread else { return };
        let params = TurnsParams {
            thread_id: &thread,
            limit: PAGE,
            // A folded or steered message is in no summary.
            items_view: "full",
            cursor,
        };
        let kind = Kind::LookUp { conversation };
        self.request(fx, kind, "thread/turns/list", &params, UNGATED);
    }

    pub(super) fn looked(&mut self, fx: &mut Effects, conversation: ConversationId, how: Settled) {
        let Some(c) = self.conversation(conversation) else {
            return;
        };
        let Some(look) = c.look.as_mut() else { return };
        match how {
            Settled::Answered(page) => match look.history.take(&page) {
                Ok(Some(next)) if !self.all_found(conversation) => {
                    self.read_page(fx, conversation, Some(&next));
                }
                Ok(_) => self.decide(fx, conversation),
                Err(error) => self.unreadable_history(fx, conversation, error),
            },
            Settled::Refused(refusal) => match refusal.class {
                // No user message was ever recorded.
                RefusalClass::NotMaterialized => self.decide(fx, conversation),
                RefusalClass::ThreadNotFound
                | RefusalClass::ThreadNotLoaded
                | RefusalClass::NoRollout => {
                    c.look = None;
                    if let Link::Loaded(thread) = c.link.clone() {
                        c.link = Link::Detached(thread);
                    }
                    self.look_later(fx, conversation, format!("{refusal}"));
                }
                _ => self.unreadable(fx, conversation, &format!("{refusal}")),
            },
            Settled::NotSent | Settled::Unknown(_) => {
                c.look = None;
                let reason = how.error("thread/turns/list").to_string();
                self.look_later(fx, conversation, reason);
            }
        }
    }

    /// Tries again after a pause, but not for ever.
    fn look_later(&mut self, fx: &mut Effects, conversation: ConversationId, reason: String) {
        let pause = self.config.limits.settle_every;
        let due = self.now.after(pause).after(self.jitter(pause));
        let Some(c) = self.conversation(conversation) else {
            return;
        };
        c.fails += 1;
        if c.fails > PATIENCE {
            self.unreadable(fx, conversation, &reason);
            return;
        }
        self.timers.set(Timer::LookAgain(conversation), due);
    }

    /// Everything that is looked for has been found.
    fn all_found(&mut self, conversation: ConversationId) -> bool {
        let Some(c) = self.conversation(conversation) else {
            return true;
        };
        let Some(look) = c.look.as_ref() else {
            return true;
        };
        let history = &look.history;
        let found = |message: &MessageId| history.of_message(message).is_some();
        let turns = c.turns.iter().filter(|turn| turn.is_suspended());
        let mut sought = turns.flat_map(|turn| {
            let steers = turn.steers.iter().filter(|steer| match steer.state {
                SteerState::Answered | SteerState::Unknown { .. } => true,
                SteerState::Waiting { .. } | SteerState::Sent { .. } | SteerState::Recorded => {
                    false
                }
            });
            turn.message
                .iter()
                .chain(steers.map(|steer| &steer.message))
        });
        let by_name = |turn: &super::turn::Turn| {
            turn.message.is_some()
                || turn
                    .suspended()
                    .is_none_or(|native| history.turn(native).is_some())
        };
        sought.all(found)
            && c.doubts.iter().all(|doubt| found(&doubt.message))
            && c.turns.iter().filter(|t| t.is_suspended()).all(by_name)
    }

    /// The history is read as far as it is needed.
    fn decide(&mut self, fx: &mut Effects, conversation: ConversationId) {
        let Some(c) = self.conversation(conversation) else {
            return;
        };
        let Some(look) = c.look.take() else { return };
        c.fails = 0;
        let history = look.history;
        for warning in history.warnings.clone() {
            self.warn_of_history(fx, conversation, warning);
        }
        let proof = self.proof(conversation, &history);
        let mut open = false;
        let turns: Vec<TurnNo> = self
            .conversation(conversation)
            .map(|c| {
                let suspended = c.turns.iter().filter(|turn| turn.is_suspended());
                suspended.map(|turn| turn.no).collect()
            })
            .unwrap_or_default();
        for no in turns {
            open |= !self.decide_turn(fx, conversation, no, &history, proof);
        }
        open |= !self.decide_doubts(fx, conversation, &history, proof);
        if open {
            let due = self.now.after(self.config.limits.settle_every);
            self.timers.set(Timer::LookAgain(conversation), due);
        } else if let Some(c) = self.conversation(conversation) {
            c.absent_since = None;
        }
        self.advance(fx, conversation);
    }

    /// Whether what this history lacks was never accepted.
    fn proof(&mut self, conversation: ConversationId, history: &History) -> Proof {
        if self.is_other_home(conversation) {
            return Proof::Never;
        }
        if self.fresh_process {
            return Proof::Absent;
        }
        let (now, settle) = (self.now, self.config.limits.settle);
        let Some(c) = self.conversation(conversation) else {
            return Proof::Never;
        };
        if history.running().is_some() {
            // Whose turn it is does not matter: while one runs, a message may be folded into it.
            c.absent_since = None;
            return Proof::NotYet;
        }
        let since = *c.absent_since.get_or_insert(now);
        if now.since(since) >= settle {
            Proof::Absent
        } else {
            Proof::NotYet
        }
    }

    fn verdict<'a>(
        &mut self,
        conversation: ConversationId,
        no: TurnNo,
        history: &'a History,
    ) -> Option<Verdict<'a>> {
        let turn = self.conversation(conversation)?.turn(no)?;
        let (message, native) = (turn.message.clone(), turn.suspended().cloned());
        let of = |past: &'a PastTurn| {
            if past.runs() {
                Verdict::Runs(past.id.clone())
            } else {
                Verdict::Ended(past)
            }
        };
        if let Some(past) = message.as_ref().and_then(|m| history.of_message(m)) {
            return Some(of(past));
        }
        let named = native.as_ref().and_then(|native| history.turn(native));
        Some(match (named, message) {
            (Some(past), None) => of(past),
            (None, None) => Verdict::Strange("the turn is not in the history".into()),
            (Some(past), Some(_)) if past.is_void() => Verdict::Void,
            // A turn named by our response that ended so took its message.
            (Some(past), Some(_)) if past.status != "interrupted" => of(past),
            (Some(past), Some(_)) => Verdict::Strange(format!(
                "turn {} stands in the history without its message",
                past.id
            )),
            (None, Some(message)) if self.has_run(no, &message) => {
                Verdict::Strange("the model answered, and the history lacks the message".into())
            }
            (None, Some(_)) => Verdict::Absent,
        })
    }

    /// Whether records tell that the model was at work on a message.
    fn has_run(&self, no: TurnNo, message: &MessageId) -> bool {
        let spoke = self.durable.prompt(message).is_some_and(|prompt| {
            matches!(
                prompt.state,
                PromptState::Running {
                    output: Some(_),
                    ..
                }
            )
        });
        spoke || self.durable.has_calls(no)
    }

    /// Decides what became of a suspended turn; false where that cannot be told yet.
    fn decide_turn(
        &mut self,
        fx: &mut Effects,
        conversation: ConversationId,
        no: TurnNo,
        history: &History,
        proof: Proof,
    ) -> bool {
        let Some(verdict) = self.verdict(conversation, no, history) else {
            return true;
        };
        match verdict {
            Verdict::Runs(native) => {
                if self.is_idle_for_long(conversation) {
                    let outcome = Outcome::Lost {
                        reason: LostReason::NeverEnded,
                    };
                    self.end_suspended(fx, conversation, no, outcome, Some(native));
                    return true;
                }
                if self.conversation(conversation).is_some_and(|c| c.idle) {
                    return false;
                }
                self.find_steers(fx, no, history, false);
                self.follow(fx, conversation, no, native, history);
            }
            Verdict::Ended(past) => {
                self.find_steers(fx, no, history, true);
                self.end_by_past(fx, conversation, no, past);
            }
            Verdict::Void => self.unrecorded(fx, conversation, no),
            Verdict::Absent => match proof {
                Proof::Absent => self.unrecorded(fx, conversation, no),
                Proof::NotYet => return false,
                Proof::Never => {
                    let evidence = "the message is not in the history of another codex home";
                    self.end_unknown(fx, conversation, no, evidence.to_owned());
                }
            },
            Verdict::Strange(evidence) => self.end_unknown(fx, conversation, no, evidence),
        }
        true
    }

    /// The thread was idle when it was resumed, and still is, while its history has a turn that
    /// runs.
    fn is_idle_for_long(&mut self, conversation: ConversationId) -> bool {
        let (now, settle) = (self.now, self.config.limits.settle);
        let Some(c) = self.conversation(conversation) else {
            return false;
        };
        if !c.idle {
            c.idle_since = None;
            return false;
        }
        let since = *c.idle_since.get_or_insert(now);
        now.since(since) >= settle
    }

    /// The server still runs the turn.
    fn follow(
        &mut self,
        fx: &mut Effects,
        conversation: ConversationId,
        no: TurnNo,
        native: TurnId,
        history: &History,
    ) {
        self.counters.found_running += 1;
        let interrupt = self.config.recovered_turns == RecoveredTurns::Interrupt;
        let Some(turn) = self.turn(no) else { return };
        let own = turn.message.clone();
        let recorded = own.as_ref().is_none_or(|m| history.of_message(m).is_some());
        if recorded {
            turn.own_seen = true;
            turn.text.restart();
            if let Some(past) = history.turn(&native) {
                for answer in &past.answers {
                    turn.text.complete(answer);
                }
            }
        }
        let stops = interrupt && turn.recovered && turn.stop.is_unasked();
        turn.suspended_told = false;
        self.tell(fx, conversation, no, TurnUpdate::Resumed);
        self.bind_turn(fx, conversation, no, native, recorded);
        self.tell_started(fx, conversation, no);
        if stops {
            if let Some(turn) = self.turn(no) {
                turn.stop = Stop::Wanted {
                    commands: Vec::new(),
                };
                self.want_stop(fx, no);
            }
        }
        self.await_replay(conversation);
    }

    /// The turn is over, and the history tells how it ended.
    fn end_by_past(
        &mut self,
        fx: &mut Effects,
        conversation: ConversationId,
        no: TurnNo,
        past: &PastTurn,
    ) {
        self.counters.found_ended += 1;
        let Some(turn) = self.turn(no) else { return };
        if !past.answers.is_empty() {
            turn.text.restart();
            for answer in &past.answers {
                turn.text.complete(answer);
            }
        }
        turn.state = TurnState::Running {
            native: past.id.clone(),
            confirmed: true,
        };
        self.accepted_in(no, &past.id);
        let outcome = outcome_of(past);
        self.finish_native(fx, conversation, no, outcome, EndSource::Reconciled);
    }

    /// The server never recorded the message of a turn: it is sent again, unless nobody wants it.
    pub(super) fn unrecorded(
        &mut self,
        fx: &mut Effects,
        conversation: ConversationId,
        no: TurnNo,
    ) {
        let Some(turn) = self.turn(no) else { return };
        let Some(message) = turn.message.clone() else {
            return;
        };
        if !turn.stop.is_unasked() {
            // Nothing was accepted, and nothing is wanted any more.
            self.end_suspended(fx, conversation, no, Outcome::Interrupted, None);
            return;
        }
        if self.config.resend == Resend::Never {
            let evidence = "the message is not in the history, and is not to be sent again";
            self.end_unknown(fx, conversation, no, evidence.to_owned());
            return;
        }
        self.close_calls(fx, conversation, no, CallClosedWhy::ConnectionEnded, None);
        let why = crate::event::QuestionClosedWhy::ConnectionEnded;
        self.close_questions(fx, conversation, no, why, false);
        self.prompt(&message, PromptChange::Unrecorded, Durability::Synced);
        self.counters.resent += 1;
        let mut again = Vec::new();
        if let Some(turn) = self.turn(no) {
            turn.state = TurnState::Waiting;
            turn.stop = Stop::No;
            turn.text.restart();
            turn.known_calls.clear();
            (turn.started_told, turn.own_seen, turn.suspended_told) = (false, false, false);
            for steer in &mut turn.steers {
                let command = match steer.state {
                    SteerState::Unknown { command } => command,
                    SteerState::Answered => None,
                    SteerState::Waiting { .. } | SteerState::Sent { .. } | SteerState::Recorded => {
                        continue;
                    }
                };
                steer.state = SteerState::Waiting { command };
                again.push(steer.message.clone());
            }
        }
        for steer in again {
            self.prompt(&steer, PromptChange::Unrecorded, Durability::Synced);
        }
        self.tell(fx, conversation, no, TurnUpdate::Resent);
    }

    /// Ends a suspended turn by our own word.
    fn end_suspended(
        &mut self,
        fx: &mut Effects,
        conversation: ConversationId,
        no: TurnNo,
        outcome: Outcome,
        native: Option<TurnId>,
    ) {
        let why = match outcome {
            Outcome::Interrupted => CallClosedWhy::Interrupted,
            _ => CallClosedWhy::ConnectionEnded,
        };
        self.close_calls(fx, conversation, no, why, None);
        let why = crate::event::QuestionClosedWhy::ConnectionEnded;
        self.close_questions(fx, conversation, no, why, false);
        if let (Some(native), Some(turn)) = (native, self.turn(no)) {
            turn.state = TurnState::Running {
                native,
                confirmed: true,
            };
        }
        self.end_turn(fx, conversation, no, outcome, EndSource::Reconciled);
    }

    fn end_unknown(
        &mut self,
        fx: &mut Effects,
        conversation: ConversationId,
        no: TurnNo,
        evidence: String,
    ) {
        self.counters.unknown += 1;
        let outcome = Outcome::Unknown { evidence };
        self.end_suspended(fx, conversation, no, outcome, None);
    }

    /// Which of the messages that were steered into a turn the history holds.
    fn find_steers(&mut self, fx: &mut Effects, no: TurnNo, history: &History, over: bool) {
        let Some(turn) = self.turn(no) else { return };
        let mut found = Vec::new();
        for steer in &mut turn.steers {
            let command = match steer.state {
                SteerState::Answered => None,
                SteerState::Unknown { command } => command,
                SteerState::Waiting { .. } | SteerState::Sent { .. } | SteerState::Recorded => {
                    continue;
                }
            };
            match history.of_message(&steer.message) {
                Some(past) => {
                    steer.state = SteerState::Recorded;
                    found.push((steer.message.clone(), past.id.clone(), command));
                }
                // The turn is over without it: it was never taken to the model.
                None if over => steer.state = SteerState::Waiting { command },
                None => {}
            }
        }
        for (message, turn, command) in found {
            self.steer_recorded(fx, &message, &turn, command);
        }
    }

    /// Decides what became of steered messages whose turns are over; false where that cannot be
    /// told yet.
    fn decide_doubts(
        &mut self,
        fx: &mut Effects,
        conversation: ConversationId,
        history: &History,
        proof: Proof,
    ) -> bool {
        let doubts = match self.conversation(conversation) {
            Some(c) => core::mem::take(&mut c.doubts),
            None => return true,
        };
        let mut decided = true;
        for doubt in doubts {
            match (history.of_message(&doubt.message), proof) {
                (Some(past), _) => {
                    self.steer_recorded(fx, &doubt.message, &past.id, doubt.command);
                    let outcome = if past.runs() {
                        Outcome::Unknown {
                            evidence: format!("it stands in turn {}, which runs", past.id),
                        }
                    } else {
                        outcome_of(past)
                    };
                    self.settle_steer(&doubt.message, outcome);
                }
                (None, Proof::Absent) => self.carry_on(fx, conversation, &doubt),
                (None, Proof::NotYet) => {
                    decided = false;
                    if let Some(c) = self.conversation(conversation) {
                        c.doubts.push(doubt);
                    }
                }
                (None, Proof::Never) => {
                    let evidence = "the message is not in the history of another codex home";
                    self.doubt_unknown(fx, &doubt, evidence);
                }
            }
        }
        decided
    }

    /// The history cannot be read: what became of what is in doubt cannot be told.
    fn unreadable_history(
        &mut self,
        fx: &mut Effects,
        conversation: ConversationId,
        error: HistoryError,
    ) {
        let evidence = error.to_string();
        self.warn_of_history(fx, conversation, error);
        self.unreadable(fx, conversation, &evidence);
    }

    fn unreadable(&mut self, fx: &mut Effects, conversation: ConversationId, reason: &str) {
        let evidence = format!("the history cannot be read: {reason}");
        self.end_all_suspended(fx, conversation, |_| Outcome::Unknown {
            evidence: evidence.clone(),
        });
        self.end_doubts(fx, conversation, &evidence);
        if let Some(c) = self.conversation(conversation) {
            c.look = None;
            c.fails = 0;
        }
        self.advance(fx, conversation);
    }

    pub(super) fn end_all_suspended(
        &mut self,
        fx: &mut Effects,
        conversation: ConversationId,
        outcome: impl Fn(Option<&TurnId>) -> Outcome,
    ) {
        let turns: Vec<(TurnNo, Option<TurnId>)> = self
            .conversation(conversation)
            .map(|c| {
                let suspended = c.turns.iter().filter(|turn| turn.is_suspended());
                suspended
                    .map(|turn| (turn.no, turn.suspended().cloned()))
                    .collect()
            })
            .unwrap_or_default();
        for (no, native) in turns {
            let outcome = outcome(native.as_ref());
            if matches!(outcome, Outcome::Unknown { .. }) {
                self.counters.unknown += 1;
            }
            self.end_suspended(fx, conversation, no, outcome, None);
        }
    }

    pub(super) fn end_doubts(
        &mut self,
        fx: &mut Effects,
        conversation: ConversationId,
        evidence: &str,
    ) {
        let doubts = match self.conversation(conversation) {
            Some(c) => core::mem::take(&mut c.doubts),
            None => return,
        };
        for doubt in doubts {
            self.doubt_unknown(fx, &doubt, evidence);
        }
    }

    fn warn_of_history(
        &mut self,
        fx: &mut Effects,
        conversation: ConversationId,
        error: HistoryError,
    ) {
        let update = ConversationUpdate::Warning(Warning::History(error));
        self.tell_conversation(fx, conversation, update);
    }

    /// A resume that was not answered with a yes, while something waits for it.
    pub(super) fn resume_failed(
        &mut self,
        fx: &mut Effects,
        conversation: ConversationId,
        thread: &ThreadId,
        how: Settled,
    ) -> bool {
        match how {
            Settled::Refused(refusal) => match refusal.class {
                RefusalClass::ThreadNotFound
                | RefusalClass::ThreadNotLoaded
                | RefusalClass::NoRollout => self.thread_is_gone(fx, conversation, thread, refusal),
                RefusalClass::ActiveWriterElsewhere => {
                    self.writer_elsewhere(fx, conversation, refusal)
                }
                _ => {
                    let evidence = format!("the thread cannot be resumed: {refusal}");
                    self.end_all_suspended(fx, conversation, |_| Outcome::Unknown {
                        evidence: evidence.clone(),
                    });
                    self.end_doubts(fx, conversation, &evidence);
                    false
                }
            },
            Settled::Answered(_) | Settled::NotSent | Settled::Unknown(_) => {
                if !self.needs_look(conversation) {
                    return false;
                }
                let reason = how.error("thread/resume").to_string();
                self.look_later(fx, conversation, reason);
                true
            }
        }
    }

    /// Another process writes the thread: tried again with pauses, up to the limit.
    fn writer_elsewhere(
        &mut self,
        fx: &mut Effects,
        conversation: ConversationId,
        refusal: Refusal,
    ) -> bool {
        let limits = &self.config.limits;
        let (first, longest) = (limits.reconnect_first, limits.reconnect_longest);
        let tries = limits.reconnect_tries;
        let Some(c) = self.conversation(conversation) else {
            return false;
        };
        c.fails += 1;
        let fails = c.fails;
        if fails <= tries {
            let pause = first
                .saturating_mul(2u32.saturating_pow(fails - 1))
                .min(longest);
            let due = self.now.after(pause).after(self.jitter(pause));
            self.timers.set(Timer::LookAgain(conversation), due);
            return true;
        }
        c.fails = 0;
        self.end_all_suspended(fx, conversation, |native| match native {
            Some(_) => Outcome::Lost {
                reason: LostReason::WriterElsewhere(refusal.clone()),
            },
            None => Outcome::Unknown {
                evidence: format!("{refusal}"),
            },
        });
        self.end_doubts(fx, conversation, &format!("{refusal}"));
        false
    }

    /// The server has no such thread. One that never ran a turn of ours is made again without loss;
    /// one that did is lost, and only the application can say how to go on.
    fn thread_is_gone(
        &mut self,
        fx: &mut Effects,
        conversation: ConversationId,
        thread: &ThreadId,
        refusal: Refusal,
    ) -> bool {
        let ran = self
            .durable
            .conversation(conversation)
            .is_some_and(|known| known.ran);
        if ran || self.is_other_home(conversation) {
            let update = ConversationUpdate::ThreadLost {
                thread: thread.clone(),
                refusal: refusal.clone(),
            };
            self.tell_conversation(fx, conversation, update);
            let evidence = format!("{refusal}");
            self.end_all_suspended(fx, conversation, |native| match native {
                Some(_) => Outcome::Lost {
                    reason: LostReason::ThreadLost(refusal.clone()),
                },
                None => Outcome::Unknown {
                    evidence: evidence.clone(),
                },
            });
            self.end_doubts(fx, conversation, &evidence);
            return false;
        }
        self.forget_thread(fx, conversation, thread);
        let turns: Vec<TurnNo> = self
            .conversation(conversation)
            .map(|c| {
                let suspended = c.turns.iter().filter(|turn| turn.is_suspended());
                suspended.map(|turn| turn.no).collect()
            })
            .unwrap_or_default();
        for no in turns {
            self.unrecorded(fx, conversation, no);
        }
        let doubts = match self.conversation(conversation) {
            Some(c) => core::mem::take(&mut c.doubts),
            None => Vec::new(),
        };
        for doubt in doubts {
            self.carry_on(fx, conversation, &doubt);
        }
        self.advance(fx, conversation);
        true
    }

    /// The pause before another look is over.
    pub(super) fn look_again(&mut self, fx: &mut Effects, conversation: ConversationId) {
        self.advance(fx, conversation);
    }
}

/// How a turn of the history ended.
fn outcome_of(past: &PastTurn) -> Outcome {
    match past.status.as_str() {
        "completed" => Outcome::Completed {
            text: None,
            structured: None,
        },
        "interrupted" => Outcome::Interrupted,
        "failed" => {
            let raw = past.error.as_deref();
            let raw = raw.and_then(|raw| serde_json::from_str::<&RawValue>(raw).ok());
            Outcome::Failed {
                error: read_failure(raw),
            }
        }
        other => Outcome::Unknown {
            evidence: format!("the history says the status is {other:?}"),
        },
    }
}
