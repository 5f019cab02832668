//! Reading the history of a thread by pages, until everything that is in doubt has been found.

use alloc::{
    boxed::Box,
    format,
    string::{String, ToString},
};

use serde::Serialize;

use super::{
    Link, Machine,
    out::UNGATED,
    requests::{Kind, Settled},
    turn::{SteerState, Turn},
};
use crate::{
    bug::Bug,
    command::RefusalClass,
    effect::Effects,
    event::{ConversationUpdate, HistoryError, Outcome, Warning},
    history::{History, PAGE},
    id::{ConversationId, MessageId},
    timers::Timer,
};

/// How often in a row a resume or a page may fail to be answered.
pub(super) const PATIENCE: u32 = 3;

/// How many warnings of a conversation are not told a second time.
const REMEMBERED_WARNINGS: usize = 16;

/// A look into the history that is not over.
#[derive(Clone, Debug, Default)]
pub(super) struct Look {
    pub(super) history: History,
}

impl Machine {
    /// Whether a conversation waits for the history of its thread.
    pub(super) fn needs_look(&mut self, conversation: ConversationId) -> bool {
        if self.compaction_in_doubt(conversation) {
            return true;
        }
        self.conversation(conversation).is_some_and(|c| {
            c.corrects || !c.doubts.is_empty() || c.turns.iter().any(Turn::is_in_doubt)
        })
    }

    /// Begins to read the history, newest turns first.
    pub(super) fn look(&mut self, fx: &mut Effects, conversation: ConversationId) {
        if self.has_bug(Bug::ResendsWithoutLook) {
            self.resend_all(fx, conversation);
            return;
        }
        if let Some(c) = self.conversation(conversation) {
            c.look = Some(Box::default());
        }
        self.counters.lookups += 1;
        self.read_page(fx, conversation, Kind::LookUp { conversation }, None);
    }

    pub(super) fn read_page(
        &mut self,
        fx: &mut Effects,
        conversation: ConversationId,
        kind: Kind,
        cursor: Option<&str>,
    ) {
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
                    let kind = Kind::LookUp { conversation };
                    self.read_page(fx, conversation, kind, Some(&next));
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
    pub(super) fn look_later(
        &mut self,
        fx: &mut Effects,
        conversation: ConversationId,
        reason: String,
    ) {
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
    pub(super) fn all_found(&mut self, conversation: ConversationId) -> bool {
        if !self.compaction_found(conversation) {
            return false;
        }
        let Some(c) = self.conversation(conversation) else {
            return true;
        };
        let Some(look) = c.look.as_ref() else {
            return true;
        };
        let history = &look.history;
        let found = |message: &MessageId| history.of_message(message).is_some();
        let turns = c.turns.iter().filter(|turn| turn.is_in_doubt());
        let mut sought = turns.flat_map(|turn| {
            let steers = turn.steers.iter().filter(|steer| match steer.state {
                SteerState::Answered | SteerState::Unknown => true,
                SteerState::Waiting | SteerState::Sent | SteerState::Recorded => false,
            });
            turn.message
                .iter()
                .chain(steers.map(|steer| &steer.message))
        });
        let by_name = |turn: &Turn| {
            turn.message.is_some()
                || turn
                    .name()
                    .is_none_or(|native| history.turn(native).is_some())
        };
        let sure = c.unsure.iter().all(|told| {
            let message = told.end.message.as_ref();
            message.is_some_and(found)
                || told
                    .end
                    .native
                    .as_ref()
                    .is_some_and(|native| history.turn(native).is_some())
        });
        sure && sought.all(found)
            && c.doubts.iter().all(|doubt| found(&doubt.message))
            && c.turns.iter().filter(|t| t.is_in_doubt()).all(by_name)
    }

    /// The pause before another look is over.
    pub(super) fn look_again(&mut self, fx: &mut Effects, conversation: ConversationId) {
        self.advance(fx, conversation);
    }

    /// The history cannot be read: what became of what is in doubt cannot be told.
    pub(super) fn unreadable_history(
        &mut self,
        fx: &mut Effects,
        conversation: ConversationId,
        error: HistoryError,
    ) {
        let evidence = error.to_string();
        self.warn_of_history(fx, conversation, error);
        self.unreadable(fx, conversation, &evidence);
    }

    pub(super) fn unreadable(
        &mut self,
        fx: &mut Effects,
        conversation: ConversationId,
        reason: &str,
    ) {
        let evidence = format!("the history cannot be read: {reason}");
        self.end_all_suspended(fx, conversation, |_| Outcome::Unknown {
            evidence: evidence.clone(),
        });
        self.end_doubts(fx, conversation, &evidence);
        if let Some(c) = self.conversation(conversation) {
            for turn in &mut c.turns {
                // What it missed stays missed. What was steered into it is looked for at its end.
                // Nobody can say that its own message was not recorded.
                turn.own_seen |= core::mem::take(&mut turn.gap);
                for steer in &mut turn.steers {
                    if matches!(steer.state, SteerState::Answered) {
                        steer.state = SteerState::Unknown;
                    }
                }
            }
            c.look = None;
            c.fails = 0;
            c.corrects = false;
        }
        self.advance(fx, conversation);
    }

    pub(super) fn warn_of_history(
        &mut self,
        fx: &mut Effects,
        conversation: ConversationId,
        error: HistoryError,
    ) {
        let Some(c) = self.conversation(conversation) else {
            return;
        };
        // A history is read again and again until something is decided.
        if c.warned.contains(&error) {
            return;
        }
        if c.warned.len() == REMEMBERED_WARNINGS {
            c.warned.remove(0);
        }
        c.warned.push(error.clone());
        let update = ConversationUpdate::Warning(Warning::History(error));
        self.tell_conversation(fx, conversation, update);
    }
}
