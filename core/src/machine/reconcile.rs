//! What is in doubt, decided by the history.
//!
//! A message that the history holds was accepted; its turn's end, where it has one, is told from
//! there. A message that it lacks is sent again, under its id, but only once its absence is proof:
//! the server's process is a new one, or the same one shows the thread idle without the message at
//! the start and at the end of the settling time.

use alloc::{borrow::ToOwned, boxed::Box, format, string::String, vec::Vec};

use serde_json::value::RawValue;

use super::{
    Activity, Conversation, Machine,
    turn::{SteerState, Stop, TurnState, TurnText},
    warnings::read_failure,
};
use crate::{
    bug::Bug,
    config::{RecoveredTurns, Resend},
    effect::{Durability, Effects},
    event::{
        CallClosedWhy, EndSource, LostReason, Outcome, QuestionClosedWhy, TurnEnd, TurnUpdate,
    },
    history::{History, PastTurn},
    id::{CommandId, ConversationId, Epoch, MessageId, TurnId, TurnNo},
    prompt::{PromptChange, PromptState},
    round::Cut,
    timers::Timer,
};

/// A steered message whose turn is over and of which nobody knows whether it went into it.
#[derive(Clone, Debug)]
pub(super) struct Doubt {
    pub(super) message: MessageId,
    /// The turn it was meant for.
    pub(super) turn: TurnNo,
    /// The connection that it left on.
    pub(super) sent_on: Epoch,
    pub(super) commands: Vec<CommandId>,
}

/// A turn that was told as lost or unknown.
#[derive(Clone, Debug)]
pub(super) struct Unsure {
    pub(super) no: TurnNo,
    pub(super) end: TurnEnd,
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
    /// The history is read as far as it is needed.
    pub(super) fn decide(&mut self, fx: &mut Effects, conversation: ConversationId) {
        let Some(c) = self.conversation(conversation) else {
            return;
        };
        let Some(look) = c.look.take() else { return };
        c.fails = 0;
        c.corrects = false;
        let history = look.history;
        for warning in history.warnings.clone() {
            self.warn_of_history(fx, conversation, warning);
        }
        self.compare(fx, conversation, &history);
        let mut open = false;
        let turns: Vec<TurnNo> = self
            .conversation(conversation)
            .map(|c| {
                let doubtful = c.turns.iter().filter(|turn| turn.is_in_doubt());
                doubtful.map(|turn| turn.no).collect()
            })
            .unwrap_or_default();
        for no in turns {
            open |= !self.decide_turn(fx, conversation, no, &history);
        }
        // One that a frame woke before the history was read: what was steered into it meanwhile is
        // in no frame that we hear.
        let awake: Vec<TurnNo> = self
            .conversation(conversation)
            .map(|c| {
                let awake = c.turns.iter().filter(|turn| turn.native().is_some());
                awake.map(|turn| turn.no).collect()
            })
            .unwrap_or_default();
        for no in awake {
            self.find_steers(fx, no, &history, false);
            if let Some(turn) = self.turn(no) {
                let own = turn.message.as_ref();
                turn.own_seen |= own.is_some_and(|m| history.of_message(m).is_some());
            }
        }
        open |= !self.decide_doubts(fx, conversation, &history);
        open |= !self.decide_compaction(fx, conversation, &history);
        self.correct(fx, conversation, &history);
        if open {
            self.begin_stranger(fx, conversation, &history);
            let due = self.now.after(self.config.limits.settle_every);
            self.timers.set(Timer::LookAgain(conversation), due);
        } else if let Some(c) = self.conversation(conversation) {
            c.absent_since = None;
        }
        // What named nobody's turn so far may name one now.
        self.take_early(fx, conversation);
        self.advance(fx, conversation);
    }

    /// A turn that is not ours runs while a message of ours is in doubt: what it asks is answered,
    /// else it would wait for us, and we for its end.
    fn begin_stranger(
        &mut self,
        fx: &mut Effects,
        conversation: ConversationId,
        history: &History,
    ) {
        let Some(past) = history.running().filter(|past| past.items > 0) else {
            return;
        };
        let native = past.id.clone();
        let Some(c) = self.conversation(conversation) else {
            return;
        };
        let is_it = |turn: &super::turn::Turn| turn.name().is_some_and(|name| *name == native);
        if !c.has_ended(&native) && !c.turns.iter().any(is_it) {
            self.server_turn(fx, conversation, native);
        }
    }

    /// Whether what this history lacks was never accepted.
    fn proof(&mut self, conversation: ConversationId, history: &History, sent_on: Epoch) -> Proof {
        if self.is_other_home(conversation) {
            return Proof::Never;
        }
        // The process that the message was sent to is gone.
        if self.fresh_process && sent_on < self.last_epoch {
            return Proof::Absent;
        }
        let (now, settle) = (self.now, self.config.limits.settle);
        let first = self.has_bug(Bug::ResendsOnFirstAbsence);
        let Some(c) = self.conversation(conversation) else {
            return Proof::Never;
        };
        if history.running().is_some() || c.activity == Activity::Active {
            // Whose turn it is does not matter: while one runs, a message may be folded into it.
            c.absent_since = None;
            return Proof::NotYet;
        }
        let since = *c.absent_since.get_or_insert(now);
        if now.since(since) >= settle || first {
            Proof::Absent
        } else {
            Proof::NotYet
        }
    }

    /// Whether what this history lacks may still come into it.
    pub(super) fn may_yet_come(
        &mut self,
        conversation: ConversationId,
        history: &History,
        sent_on: Epoch,
    ) -> bool {
        self.proof(conversation, history, sent_on) == Proof::NotYet
    }

    fn verdict<'a>(
        &mut self,
        conversation: ConversationId,
        no: TurnNo,
        history: &'a History,
    ) -> Option<Verdict<'a>> {
        let again = self.has_bug(Bug::ResendsWhatWasInterrupted);
        let turn = self.conversation(conversation)?.turn(no)?;
        let (message, native) = (turn.message.clone(), turn.name().cloned());
        let of = |past: &'a PastTurn| {
            if past.runs() {
                Verdict::Runs(past.id.clone())
            } else {
                Verdict::Ended(past)
            }
        };
        if let Some(past) = message.as_ref().and_then(|m| history.of_message(m)) {
            if again && past.status == "interrupted" {
                return Some(Verdict::Void);
            }
            return Some(of(past));
        }
        let named = native.as_ref().and_then(|native| history.turn(native));
        let Some(message) = message else {
            let strange = || Verdict::Strange("the turn is not in the history".into());
            return Some(named.map_or_else(strange, of));
        };
        let worked = self.has_run(conversation, no, &message);
        Some(match named {
            // A turn named by our response that ended so took its message.
            Some(past) if past.status != "interrupted" => of(past),
            Some(_) | None if worked => {
                Verdict::Strange("the model was at work, and the history lacks the message".into())
            }
            Some(past) if past.is_void() => Verdict::Void,
            // Our message was folded into it, and never recorded.
            Some(_) | None => Verdict::Absent,
        })
    }

    /// Whether records tell that the model was at work on a message.
    pub(super) fn has_run(
        &self,
        conversation: ConversationId,
        no: TurnNo,
        message: &MessageId,
    ) -> bool {
        let spoke = self.durable.prompt(message).is_some_and(|prompt| {
            matches!(
                prompt.state,
                PromptState::Running {
                    output: Some(_),
                    ..
                }
            )
        });
        let asked = |(_, asked): (_, &crate::question::QuestionAsked)| asked.turn == Some(no);
        spoke || self.durable.has_calls(conversation, no) || self.durable.questions().any(asked)
    }

    /// Decides what became of a suspended turn; false where that cannot be told yet.
    fn decide_turn(
        &mut self,
        fx: &mut Effects,
        conversation: ConversationId,
        no: TurnNo,
        history: &History,
    ) -> bool {
        let sent_on = self.turn(no).map_or(Epoch(0), |turn| turn.sent_on);
        let Some(verdict) = self.verdict(conversation, no, history) else {
            return true;
        };
        let is_heard = self.turn(no).is_some_and(|turn| !turn.is_suspended());
        match verdict {
            Verdict::Runs(native) if is_heard => {
                self.find_steers(fx, no, history, false);
                self.fill(no, &native, history);
            }
            // It runs, and its message is not recorded yet.
            Verdict::Absent | Verdict::Void | Verdict::Strange(_) if is_heard => {
                self.fill_nothing(no);
            }
            Verdict::Runs(native) => {
                if self.is_idle_for_long(conversation) {
                    let outcome = Outcome::Lost {
                        reason: LostReason::NeverEnded,
                    };
                    self.end_suspended(fx, conversation, no, outcome, Some(native));
                    return true;
                }
                let idle = |c: &mut Conversation| c.activity == Activity::Idle;
                if self.conversation(conversation).is_some_and(idle) {
                    return false;
                }
                self.find_steers(fx, no, history, false);
                self.follow(fx, conversation, no, native, history);
            }
            Verdict::Ended(past) if self.may_be_ending(conversation, past) => return false,
            Verdict::Ended(past) => {
                self.find_steers(fx, no, history, true);
                self.end_by_past(fx, conversation, no, past);
            }
            Verdict::Void => {
                self.counters.found_void += 1;
                self.take_back(fx, conversation, no, history);
            }
            Verdict::Absent => match self.proof(conversation, history, sent_on) {
                Proof::Absent => self.take_back(fx, conversation, no, history),
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
        if c.activity != Activity::Idle {
            c.idle_since = None;
            return false;
        }
        let since = *c.idle_since.get_or_insert(now);
        now.since(since) >= settle
    }

    /// A server that lives shows a turn that is just ending as interrupted, without its time: its task
    /// is over, and its end is not written yet (`thread/turns/list`). It is looked at once more.
    pub(super) fn may_be_ending(&mut self, conversation: ConversationId, past: &PastTurn) -> bool {
        let is_shown_so = past.status == "interrupted" && past.has_no_end && !self.fresh_process;
        let (now, settle) = (self.now, self.config.limits.settle);
        let was_active = self.conversation(conversation).and_then(|c| c.was_active);
        is_shown_so && was_active.is_some_and(|active| now.since(active) < settle)
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
        let recorded = self.fill(no, &native, history);
        let Some(turn) = self.turn(no) else { return };
        let stops = interrupt && turn.recovered && turn.stop.is_unasked();
        // It goes on, and is told what became of its calls.
        turn.calls_failed = false;
        self.tell_resumed(fx, conversation, no);
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

    /// Takes what the history has of a turn that runs. Tells whether our message is recorded there.
    fn fill(&mut self, no: TurnNo, native: &TurnId, history: &History) -> bool {
        let staged = self.staged_answers(no);
        let Some(turn) = self.turn(no) else {
            return false;
        };
        turn.gap = false;
        let own = turn.message.as_ref();
        let recorded = own.is_none_or(|m| history.of_message(m).is_some());
        if recorded {
            let live = turn.text.take_said();
            turn.own_seen = true;
            if let Some(past) = history.turn(native) {
                let answers = past.answers_behind(turn.message.as_ref());
                for answer in answers {
                    turn.text.complete(answer);
                }
                turn.text.said_again(answers, staged, live);
            }
        }
        recorded
    }

    /// How many messages of the agent stand in stages of the round that a turn serves.
    fn staged_answers(&self, no: TurnNo) -> (u32, Option<Cut>) {
        let owner = self.turn_owner.get(&no);
        let known = owner.and_then(|owner| self.durable.conversation(*owner));
        let round = known.and_then(|known| known.round.open());
        let round = round.filter(|round| round.turn == no);
        round.map_or((0, None), |round| (round.answers, round.cut))
    }

    fn fill_nothing(&mut self, no: TurnNo) {
        if let Some(turn) = self.turn(no) {
            turn.gap = false;
        }
    }

    /// The turn is over, and the history tells how it ended.
    pub(super) fn end_by_past(
        &mut self,
        fx: &mut Effects,
        conversation: ConversationId,
        no: TurnNo,
        past: &PastTurn,
    ) {
        self.counters.found_ended += 1;
        let staged = self.staged_answers(no);
        let Some(turn) = self.turn(no) else { return };
        turn.gap = false;
        turn.own_seen |= turn.message.as_ref().is_some_and(|m| past.has(m));
        let answers = past.answers_behind(turn.message.as_ref());
        if !answers.is_empty() {
            turn.text.restart();
            for answer in answers {
                turn.text.complete(answer);
            }
            turn.text.said_again(answers, staged, Vec::new());
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
        let prompt = self.durable.prompt(&message);
        let open = prompt.is_some_and(|prompt| {
            matches!(
                prompt.state,
                PromptState::MayBeAccepted | PromptState::Running { .. }
            )
        });
        if !open {
            // Its end was told before: nobody wants it any more.
            self.end_suspended(fx, conversation, no, Outcome::Interrupted, None);
            return;
        }
        let Some(turn) = self.turn(no) else { return };
        let stops = !turn.stop.is_unasked() || self.has_bug(Bug::LosesWhatWasNeverRecorded);
        if stops {
            // Nothing was accepted, and nothing is wanted any more.
            if let Some(turn) = self.turn(no) {
                (turn.gap, turn.own_seen) = (false, false);
            }
            self.end_suspended(fx, conversation, no, Outcome::Interrupted, None);
            return;
        }
        if self.config.resend == Resend::Never {
            let evidence = "the message is not in the history, and is not to be sent again";
            self.end_unknown(fx, conversation, no, evidence.to_owned());
            return;
        }
        self.close_calls(fx, conversation, no, CallClosedWhy::ConnectionEnded, None);
        let why = QuestionClosedWhy::ConnectionEnded;
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
            turn.gap = false;
            for steer in &mut turn.steers {
                match steer.state {
                    // What was seen of it the history lacks with the whole turn.
                    SteerState::Unknown | SteerState::Answered | SteerState::Recorded => {}
                    SteerState::Waiting | SteerState::Sent => continue,
                }
                steer.state = SteerState::Waiting;
                again.push(steer.message.clone());
            }
        }
        for steer in again {
            self.prompt(&steer, PromptChange::Unrecorded, Durability::Synced);
        }
        self.tell(fx, conversation, no, TurnUpdate::Resent);
    }

    /// What a machine does that sends again without a look: a deliberate bug.
    pub(super) fn resend_all(&mut self, fx: &mut Effects, conversation: ConversationId) {
        let turns: Vec<TurnNo> = self
            .conversation(conversation)
            .map(|c| {
                c.turns
                    .iter()
                    .filter(|t| t.is_suspended())
                    .map(|t| t.no)
                    .collect()
            })
            .unwrap_or_default();
        for no in turns {
            self.unrecorded(fx, conversation, no);
        }
        self.advance(fx, conversation);
    }

    /// Turns that were told as lost or unknown, and of which more is known now.
    fn correct(&mut self, fx: &mut Effects, conversation: ConversationId, history: &History) {
        let told = match self.conversation(conversation) {
            Some(c) => core::mem::take(&mut c.unsure),
            None => return,
        };
        for told in told {
            let message = told.end.message.as_ref();
            let past = match message.and_then(|m| history.of_message(m)) {
                Some(past) => Some(past),
                None => told.end.native.as_ref().and_then(|n| history.turn(n)),
            };
            // A turn that was stopped without the message says nothing of it.
            let lacks = |past: &PastTurn| {
                message.is_some_and(|m| history.of_message(m).is_none())
                    && past.status == "interrupted"
            };
            let Some(past) = past.filter(|past| !past.runs() && !lacks(past)) else {
                continue;
            };
            let mut text = TurnText::default();
            for answer in past.answers_behind(told.end.message.as_ref()) {
                text.complete(answer);
            }
            let outcome = match outcome_of(past) {
                Outcome::Completed { .. } => Outcome::Completed {
                    text: text.final_text().cloned(),
                    structured: None,
                },
                Outcome::Unknown { .. } => continue,
                other => other,
            };
            self.counters.corrected += 1;
            self.record_correction(message, &outcome);
            let end = TurnEnd {
                text: text.so_far().or(told.end.text),
                candidate: text.candidate(),
                native: Some(past.id.clone()),
                outcome,
                source: EndSource::Reconciled,
                usage: told.end.usage,
                message: told.end.message,
            };
            let gate = self.gate();
            let update = TurnUpdate::Corrected(Box::new(end));
            self.tell_gated(fx, conversation, told.no, gate, update);
        }
    }

    fn record_correction(&mut self, message: Option<&MessageId>, outcome: &Outcome) {
        let Some(message) = message else { return };
        let Some(prompt) = self.durable.prompt(message) else {
            return;
        };
        let replaced = matches!(
            prompt.state,
            PromptState::Terminal {
                outcome: Outcome::Unknown { .. },
                ..
            }
        );
        // A schema asked for JSON, and the text was not read for it.
        if replaced && prompt.fields.output_schema.is_none() {
            let (outcome, source) = (outcome.clone(), EndSource::Reconciled);
            let unrecorded = false;
            let change = PromptChange::Ended {
                outcome,
                source,
                unrecorded,
            };
            self.prompt(message, change, Durability::Synced);
        }
    }

    /// Ends a suspended turn by our own word.
    pub(super) fn end_suspended(
        &mut self,
        fx: &mut Effects,
        conversation: ConversationId,
        no: TurnNo,
        outcome: Outcome,
        native: Option<TurnId>,
    ) {
        let why = match outcome {
            Outcome::Interrupted if self.is_asked_to_stop(no) => CallClosedWhy::Interrupted,
            _ => CallClosedWhy::ConnectionEnded,
        };
        self.close_calls(fx, conversation, no, why, None);
        let why = QuestionClosedWhy::ConnectionEnded;
        self.close_questions(fx, conversation, no, why, false);
        if let (Some(native), Some(turn)) = (native, self.turn(no)) {
            turn.state = TurnState::Running {
                native,
                confirmed: true,
            };
        }
        self.end_turn(fx, conversation, no, outcome, EndSource::Reconciled);
    }

    pub(super) fn end_unknown(
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
    pub(super) fn find_steers(
        &mut self,
        fx: &mut Effects,
        no: TurnNo,
        history: &History,
        over: bool,
    ) {
        let Some(turn) = self.turn(no) else { return };
        let mut found = Vec::new();
        for steer in &mut turn.steers {
            match steer.state {
                SteerState::Answered | SteerState::Unknown => {}
                SteerState::Waiting | SteerState::Sent | SteerState::Recorded => continue,
            }
            match history.of_message(&steer.message) {
                Some(past) => {
                    steer.state = SteerState::Recorded;
                    let commands = core::mem::take(&mut steer.commands);
                    found.push((steer.message.clone(), past.id.clone(), commands));
                }
                // The turn is over without it: it was never taken to the model.
                None if over => steer.state = SteerState::Waiting,
                None => {}
            }
        }
        for (message, turn, commands) in found {
            self.steer_recorded(fx, &message, &turn, commands);
        }
    }

    /// Decides what became of steered messages whose turns are over; false where that cannot be
    /// told yet.
    fn decide_doubts(
        &mut self,
        fx: &mut Effects,
        conversation: ConversationId,
        history: &History,
    ) -> bool {
        let doubts = match self.conversation(conversation) {
            Some(c) => core::mem::take(&mut c.doubts),
            None => return true,
        };
        let mut decided = true;
        for doubt in doubts {
            if let Some(past) = history.of_message(&doubt.message) {
                self.steer_recorded(fx, &doubt.message, &past.id, doubt.commands);
                let outcome = if past.runs() {
                    Outcome::Unknown {
                        evidence: format!("it stands in turn {}, which runs", past.id),
                    }
                } else {
                    outcome_of(past)
                };
                self.settle_steer(&doubt.message, outcome);
                continue;
            }
            match self.proof(conversation, history, doubt.sent_on) {
                Proof::Absent => self.carry(fx, conversation, doubt),
                Proof::NotYet => {
                    decided = false;
                    if let Some(c) = self.conversation(conversation) {
                        c.doubts.push(doubt);
                    }
                }
                Proof::Never => {
                    let evidence = "the message is not in the history of another codex home";
                    self.doubt_unknown(fx, doubt, evidence);
                }
            }
        }
        decided
    }
}

/// How a turn of the history ended.
pub(super) fn outcome_of(past: &PastTurn) -> Outcome {
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
