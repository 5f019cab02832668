//! Compactions: one request, whose answer is not the end of it.
//!
//! The request carries no id of ours, so the thread's last turn is read before it. What holds nothing
//! but compactions behind that turn is this one, live and in the history.

use alloc::{borrow::ToOwned, boxed::Box, format, vec::Vec};

use serde::Serialize;

use super::{
    Activity, Link, Machine,
    errands::{Compact, Compacting},
    out::UNGATED,
    requests::{Kind, Settled},
    threads::ThreadParams,
};
use crate::{
    command::{BusyWhy, CommandError, RefusalClass, Reply},
    compaction::{Compaction, CompactionChange, CompactionEnd},
    effect::{Durability, Effects},
    event::{Item, Outcome},
    history::{History, PastTurn},
    id::{CommandId, ConversationId, Epoch, ThreadId, TurnId, TurnNo},
    record::{Record, RequestEnd},
    thread::Creation,
    timers::Timer,
    wire::notification::Scope,
};

const COMPACT: &str = "thread/compact/start";

/// How servers of old tell the end of a compaction.
const COMPACTED: &str = "thread/compacted";

impl Machine {
    /// Has the server make the thread's history shorter; answered when the turn that does it is over.
    pub(super) fn compact(
        &mut self,
        fx: &mut Effects,
        id: CommandId,
        conversation: ConversationId,
    ) -> Result<(), CommandError> {
        let Some(known) = self.durable.conversation(conversation) else {
            return Err(CommandError::UnknownConversation { conversation });
        };
        let thread = known.creation.as_ref().and_then(Creation::thread).is_some();
        if known.compaction.command() == Some(id) {
            // It was asked for in an earlier life: the one that is under way is its own.
            if let Some(compact) = self.compact_mut(conversation) {
                compact.commands.push(id);
                return Ok(());
            }
        }
        if let Some(error) = self.ended_error() {
            return Err(error);
        }
        self.check_thread_free(conversation)?;
        if self.is_due(conversation) {
            let why = BusyWhy::Triggered;
            return Err(CommandError::Busy { conversation, why });
        }
        if !thread {
            return Err(CommandError::NoThread {
                conversation,
                evidence: "there is nothing to compact".into(),
            });
        }
        if let Some(c) = self.conversation(conversation) {
            c.errands.get_or_insert_default().compact = Some(Compact {
                commands: alloc::vec![id],
                state: Compacting::Wanted,
                sent_on: Epoch(0),
            });
        }
        self.advance(fx, conversation);
        Ok(())
    }

    fn compaction(&mut self, conversation: ConversationId, change: CompactionChange) {
        let durability = match change {
            CompactionChange::Asked { .. } => Durability::Synced,
            // Lost in a crash, it is read from the history.
            CompactionChange::Began { .. } | CompactionChange::Ended { .. } => Durability::Buffered,
        };
        let record = Record::Compaction {
            conversation,
            change,
        };
        self.record(record, durability);
    }

    /// Reads which turn is the thread's last. While one runs, a compaction would stop it
    /// (`thread/compact/start` interrupts the running turn).
    pub(super) fn read_last_turn(
        &mut self,
        fx: &mut Effects,
        conversation: ConversationId,
        thread: &ThreadId,
    ) {
        #[derive(Serialize)]
        #[serde(rename_all = "camelCase")]
        struct LastParams<'a> {
            thread_id: &'a str,
            limit: u32,
            items_view: &'a str,
        }
        if let Some(compact) = self.compact_mut(conversation) {
            compact.state = Compacting::Looking;
        }
        let params = LastParams {
            thread_id: thread,
            limit: 1,
            items_view: "notLoaded",
        };
        let kind = Kind::LastTurn { conversation };
        self.request(fx, kind, "thread/turns/list", &params, UNGATED);
    }

    pub(super) fn last_turn_told(
        &mut self,
        fx: &mut Effects,
        conversation: ConversationId,
        how: Settled,
    ) {
        let Some(compact) = self
            .compact_mut(conversation)
            .filter(|compact| compact.state == Compacting::Looking)
        else {
            return;
        };
        compact.state = Compacting::Wanted;
        let after = match how {
            Settled::Answered(page) => {
                let mut history = History::of_ends();
                match history.take(&page) {
                    Ok(_) => history.turns.into_iter().next(),
                    Err(error) => {
                        let evidence = format!("{error}");
                        self.warn_of_history(fx, conversation, error);
                        self.drop_compaction(fx, conversation, |conversation| {
                            CommandError::NoThread {
                                conversation,
                                evidence: evidence.clone(),
                            }
                        });
                        return;
                    }
                }
            }
            // No user message was ever recorded.
            Settled::Refused(refusal) if refusal.class == RefusalClass::NotMaterialized => None,
            Settled::NotSent if self.comes_back() => return,
            other => {
                let error = match self.error_of(other, "thread/turns/list") {
                    // A read was lost: nothing of it is in doubt.
                    CommandError::Unknown { .. } => CommandError::NotSent {
                        method: COMPACT.to_owned(),
                    },
                    error => error,
                };
                self.drop_compaction(fx, conversation, |_| error.clone());
                return;
            }
        };
        let runs = self
            .conversation(conversation)
            .is_some_and(|c| !c.turns.is_empty());
        if runs || after.as_ref().is_some_and(|past| past.runs()) {
            let why = BusyWhy::Turn;
            self.drop_compaction(fx, conversation, |conversation| CommandError::Busy {
                conversation,
                why: why.clone(),
            });
            return;
        }
        self.send_compaction(fx, conversation, after.map(|past| past.id));
    }

    fn send_compaction(
        &mut self,
        fx: &mut Effects,
        conversation: ConversationId,
        after: Option<TurnId>,
    ) {
        let Some(c) = self.conversation(conversation) else {
            return;
        };
        let Link::Loaded(thread) = c.link.clone() else {
            // Let go meanwhile: it is resumed, and then read again.
            self.advance(fx, conversation);
            return;
        };
        let epoch = self.last_epoch;
        let Some(compact) = self.compact_mut(conversation) else {
            return;
        };
        compact.state = Compacting::Sent;
        compact.sent_on = epoch;
        let Some(command) = compact.commands.first().copied() else {
            return;
        };
        self.compaction(conversation, CompactionChange::Asked { command, after });
        let gate = self.gate();
        let params = ThreadParams { thread_id: &thread };
        self.request(fx, Kind::Compact { conversation }, COMPACT, &params, gate);
    }

    /// The answer to the request for a compaction. A yes is not its end.
    pub(super) fn compact_settled(
        &mut self,
        fx: &mut Effects,
        conversation: ConversationId,
        how: Settled,
    ) {
        let quiet = self.now.after(self.config.limits.quiet);
        let comes_back = self.comes_back();
        let Some(compact) = self.compact_mut(conversation) else {
            return;
        };
        match (&how, &compact.state) {
            (Settled::Answered(_), Compacting::Sent) => {
                compact.state = Compacting::Taken;
                self.timers.set(Timer::Compaction(conversation), quiet);
            }
            (Settled::NotSent, Compacting::Sent) if comes_back => {
                self.compaction_request_ended(conversation, &how);
                if let Some(compact) = self.compact_mut(conversation) {
                    compact.state = Compacting::Wanted;
                }
            }
            (Settled::Unknown(_), Compacting::Sent) if comes_back => {
                compact.state = Compacting::InDoubt;
                self.advance(fx, conversation);
            }
            (Settled::Refused(_), _)
            | (Settled::NotSent | Settled::Unknown(_), Compacting::Sent) => {
                self.compaction_request_ended(conversation, &how);
                let error = self.error_of(how, COMPACT);
                self.drop_compaction(fx, conversation, |_| error.clone());
            }
            // Its turn has told more than that.
            (
                Settled::Answered(_) | Settled::NotSent | Settled::Unknown(_),
                Compacting::Wanted
                | Compacting::Looking
                | Compacting::Taken
                | Compacting::Running(_)
                | Compacting::InDoubt,
            ) => {}
        }
    }

    fn compaction_request_ended(&mut self, conversation: ConversationId, how: &Settled) {
        let end = CompactionEnd::Request(how.end());
        self.compaction(conversation, CompactionChange::Ended { end });
    }

    /// The connection ended before the request for a compaction was answered.
    pub(super) fn suspend_compaction(&mut self, conversation: ConversationId, left: bool) {
        if left {
            // The state says it: it is looked for.
            return;
        }
        let sent = self
            .compact_mut(conversation)
            .is_some_and(|compact| compact.state == Compacting::Sent);
        if sent {
            self.compaction_request_ended(conversation, &Settled::NotSent);
            if let Some(compact) = self.compact_mut(conversation) {
                compact.state = Compacting::Wanted;
            }
        }
    }

    /// A turn that we did not begin: the compaction that was asked for, if it may be.
    pub(super) fn may_be_compaction(
        &mut self,
        conversation: ConversationId,
        no: TurnNo,
        native: &TurnId,
    ) {
        let known = self.durable.conversation(conversation);
        let before = known.is_some_and(|known| {
            matches!(&known.compaction, Compaction::Asked { after: Some(after), .. } if after == native)
        });
        let Some(compact) = self
            .compact_mut(conversation)
            .filter(|compact| compact.awaits_turn() && !before)
        else {
            return;
        };
        compact.state = Compacting::Running(no);
        self.timers.clear(Timer::Compaction(conversation));
        self.compaction_began(conversation, native);
    }

    fn compaction_began(&mut self, conversation: ConversationId, native: &TurnId) {
        let known = self.durable.conversation(conversation);
        let open = known.is_some_and(|known| match &known.compaction {
            Compaction::Asked { .. } => true,
            Compaction::Running { turn, .. } => turn != native,
            Compaction::None => false,
        });
        if open {
            let turn = native.clone();
            self.compaction(conversation, CompactionChange::Began { turn });
        }
    }

    /// A turn that was never told to begin: what stands in it tells whether it is a compaction.
    pub(super) fn item_of_compaction(
        &mut self,
        conversation: ConversationId,
        no: TurnNo,
        native: &TurnId,
        item: &Item,
    ) {
        if item.kind == Item::COMPACTION {
            self.may_be_compaction(conversation, no, native);
        }
    }

    /// A turn in which a user speaks is no compaction: that is waited for on.
    pub(super) fn item_of_others(&mut self, conversation: ConversationId, no: TurnNo, item: &Item) {
        if item.kind != Item::USER_MESSAGE || !self.is_compaction(conversation, no) {
            return;
        }
        let quiet = self.now.after(self.config.limits.quiet);
        self.timers.set(Timer::Compaction(conversation), quiet);
        if let Some(compact) = self.compact_mut(conversation) {
            compact.state = Compacting::Taken;
        }
    }

    /// Servers of old tell the end of a compaction by a notification of its own.
    pub(super) fn may_be_compacted(&mut self, fx: &mut Effects, method: &str, scope: &Scope<'_>) {
        if method != COMPACTED {
            return;
        }
        let conversation = scope.thread().and_then(|thread| self.owner_of(thread));
        if let Some(conversation) = conversation {
            self.compacted(fx, conversation, scope.turn());
        }
    }

    fn compacted(&mut self, fx: &mut Effects, conversation: ConversationId, native: Option<&str>) {
        let grace = self.now.after(self.config.limits.end_grace);
        let known = self.durable.conversation(conversation);
        let before = known.is_some_and(|known| match &known.compaction {
            Compaction::Asked {
                after: Some(after), ..
            } => native.is_some_and(|native| after.is(native)),
            _ => false,
        });
        let ended = self
            .conversation(conversation)
            .is_some_and(|c| native.is_some_and(|native| c.has_ended(native)));
        let Some(compact) = self.compact_mut(conversation) else {
            return;
        };
        match compact.state {
            // The word of an older turn.
            _ if before || ended => {}
            Compacting::Running(no) => {
                // Its turn's end follows; where it does not, the history tells.
                if !self.timers.is_set(Timer::EndGrace(no)) {
                    self.timers.set(Timer::EndGrace(no), grace);
                }
            }
            Compacting::Sent | Compacting::Taken | Compacting::InDoubt => {
                let outcome = Outcome::Completed {
                    text: None,
                    structured: None,
                };
                self.compaction_over(fx, conversation, outcome);
            }
            Compacting::Wanted | Compacting::Looking => {}
        }
    }

    /// A turn is over: a compaction with it, if it was one.
    pub(super) fn compaction_turn_ended(
        &mut self,
        fx: &mut Effects,
        conversation: ConversationId,
        no: TurnNo,
        outcome: &Outcome,
    ) {
        if self.is_compaction(conversation, no) {
            self.compaction_over(fx, conversation, outcome.clone());
        }
    }

    /// No turn came after the server's yes: the history tells.
    pub(super) fn compaction_silent(&mut self, fx: &mut Effects, conversation: ConversationId) {
        if let Some(compact) = self
            .compact_mut(conversation)
            .filter(|compact| compact.state == Compacting::Taken)
        {
            compact.state = Compacting::InDoubt;
            self.advance(fx, conversation);
        }
    }

    /// The server let the thread go before it named the turn of a compaction.
    pub(super) fn compaction_thread_gone(
        &mut self,
        fx: &mut Effects,
        conversation: ConversationId,
    ) {
        let taken = |compact: &&mut Compact| compact.state == Compacting::Taken;
        if let Some(compact) = self.compact_mut(conversation).filter(taken) {
            compact.state = Compacting::InDoubt;
            self.timers.clear(Timer::Compaction(conversation));
            self.advance(fx, conversation);
        }
    }

    /// Whether the history has been read far enough to tell of a compaction in doubt.
    pub(super) fn compaction_found(&self, conversation: ConversationId) -> bool {
        if !self.compaction_in_doubt(conversation) {
            return true;
        }
        let look = self
            .known_conversation(conversation)
            .and_then(|c| c.look.as_ref());
        let Some(history) = look.map(|look| &look.history) else {
            return true;
        };
        match self
            .durable
            .conversation(conversation)
            .map(|known| &known.compaction)
        {
            Some(Compaction::Running { turn, .. }) => history.turn(turn).is_some(),
            Some(Compaction::Asked {
                after: Some(after), ..
            }) => history.turn(after).is_some(),
            Some(Compaction::Asked { after: None, .. }) => false,
            Some(Compaction::None) | None => true,
        }
    }

    /// The turn of the history that a compaction in doubt is: named, or the first behind the turn
    /// that stood last before it which holds nothing but compactions.
    fn compaction_in(&self, conversation: ConversationId, history: &History) -> Option<usize> {
        let known = self.durable.conversation(conversation)?;
        match &known.compaction {
            Compaction::Running { turn, .. } => {
                let is_it = |past: &PastTurn| past.id == *turn && past.only_compacts();
                history.turns.iter().position(is_it)
            }
            Compaction::Asked { after, .. } => {
                let behind = match after {
                    Some(after) => history.turns.iter().position(|past| past.id == *after)?,
                    None => history.turns.len(),
                };
                let newer = history.turns.get(..behind)?;
                newer.iter().rposition(|past| past.only_compacts())
            }
            Compaction::None => None,
        }
    }

    /// Decides what became of a compaction in doubt; false where that cannot be told yet.
    pub(super) fn decide_compaction(
        &mut self,
        fx: &mut Effects,
        conversation: ConversationId,
        history: &History,
    ) -> bool {
        if !self.compaction_in_doubt(conversation) {
            return true;
        }
        let found = self.compaction_in(conversation, history);
        if let Some(past) = found.and_then(|at| history.turns.get(at)) {
            if past.runs() {
                self.follow_compaction(fx, conversation, &past.id);
                return true;
            }
            if self.may_be_ending(conversation, past) {
                return false;
            }
            let outcome = super::reconcile::outcome_of(past);
            if let Some(c) = self.conversation(conversation) {
                let source = crate::event::EndSource::Reconciled;
                let ended = super::found::EndedTurn::new(past.id.clone(), &outcome, source);
                c.remember_ended(ended);
            }
            self.compaction_over(fx, conversation, outcome);
            return true;
        }
        let sent_on = self
            .compact_mut(conversation)
            .map_or(Epoch(0), |compact| compact.sent_on);
        if self.may_yet_come(conversation, history, sent_on) {
            return false;
        }
        self.compaction_unknown(fx, conversation, "the history shows no compaction");
        true
    }

    /// The server still runs it.
    fn follow_compaction(
        &mut self,
        fx: &mut Effects,
        conversation: ConversationId,
        native: &TurnId,
    ) {
        let grace = self.now.after(self.config.limits.end_grace);
        let running = self
            .conversation(conversation)
            .and_then(|c| c.running(native).map(|turn| turn.no));
        let no = match running {
            Some(no) => Some(no),
            None => self.server_turn(fx, conversation, native.clone()),
        };
        let Some(no) = no else { return };
        self.counters.found_running += 1;
        if let Some(compact) = self.compact_mut(conversation) {
            compact.state = Compacting::Running(no);
        }
        self.compaction_began(conversation, native);
        let idle = self
            .conversation(conversation)
            .is_some_and(|c| c.activity == Activity::Idle);
        if idle && !self.timers.is_set(Timer::EndGrace(no)) {
            self.timers.set(Timer::EndGrace(no), grace);
        }
    }

    /// What became of a compaction that is not running cannot be told.
    pub(super) fn compaction_unknown(
        &mut self,
        fx: &mut Effects,
        conversation: ConversationId,
        evidence: &str,
    ) {
        let open = self
            .compact_mut(conversation)
            .is_some_and(|compact| compact.awaits_turn());
        if !open {
            return;
        }
        let end = CompactionEnd::Request(RequestEnd::Unknown);
        self.compaction(conversation, CompactionChange::Ended { end });
        let unknown = Settled::Unknown(evidence.to_owned());
        let error = self.error_of(unknown, COMPACT);
        self.drop_compaction(fx, conversation, |_| error.clone());
    }

    fn compaction_over(
        &mut self,
        fx: &mut Effects,
        conversation: ConversationId,
        outcome: Outcome,
    ) {
        let known = self.durable.conversation(conversation);
        let own = known.and_then(|known| known.compaction.command());
        let end = CompactionEnd::Turn(Box::new(outcome.clone()));
        self.compaction(conversation, CompactionChange::Ended { end });
        let gate = self.gate();
        let commands = self.take_compaction(conversation);
        if let (Some(own), Outcome::Completed { .. }) = (own, &outcome) {
            if !commands.contains(&own) {
                // Asked for in an earlier life, and not again so far.
                self.remember(own, gate, &Ok(Reply::Done));
            }
        }
        for id in commands {
            let answer = match &outcome {
                Outcome::Completed { .. } => Ok(Reply::Done),
                other => Err(CommandError::NotCompacted {
                    conversation,
                    outcome: Box::new(other.clone()),
                }),
            };
            self.answer_gated(fx, id, gate, answer);
        }
        self.advance(fx, conversation);
    }

    /// The thread is given up while it was to be compacted.
    pub(super) fn compaction_forsaken(&mut self, fx: &mut Effects, conversation: ConversationId) {
        let known = self.durable.conversation(conversation);
        if known.is_some_and(|known| known.compaction != Compaction::None) {
            let end = CompactionEnd::Request(RequestEnd::Unknown);
            self.compaction(conversation, CompactionChange::Ended { end });
        }
        for id in self.take_compaction(conversation) {
            let error = CommandError::NoThread {
                conversation,
                evidence: "the thread is no more".into(),
            };
            self.answer(fx, id, Err(error));
        }
    }

    fn take_compaction(&mut self, conversation: ConversationId) -> Vec<CommandId> {
        self.timers.clear(Timer::Compaction(conversation));
        let compact = self
            .conversation(conversation)
            .and_then(|c| c.errands.as_deref_mut())
            .and_then(|errands| errands.compact.take());
        self.tidy_errands(conversation);
        self.touch(conversation);
        compact.map(|compact| compact.commands).unwrap_or_default()
    }

    fn drop_compaction(
        &mut self,
        fx: &mut Effects,
        conversation: ConversationId,
        error: impl Fn(ConversationId) -> CommandError,
    ) {
        for id in self.take_compaction(conversation) {
            self.answer(fx, id, Err(error(conversation)));
        }
        self.advance(fx, conversation);
    }
}
