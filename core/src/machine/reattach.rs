//! A thread that cannot be resumed: gone, written elsewhere, or refused.

use alloc::{format, string::ToString, vec::Vec};

use super::{Machine, requests::Settled};
use crate::{
    command::{Refusal, RefusalClass},
    effect::Effects,
    event::{ConversationUpdate, LostReason, Outcome},
    id::{ConversationId, ThreadId, TurnId, TurnNo},
    timers::Timer,
};

impl Machine {
    /// A resume that was not answered with a yes, while something waits for it.
    pub(super) fn resume_failed(
        &mut self,
        fx: &mut Effects,
        conversation: ConversationId,
        thread: &ThreadId,
        how: Settled,
    ) -> bool {
        if let (Settled::Refused(_), Some(c)) = (&how, self.conversation(conversation)) {
            c.corrects = false;
        }
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
        if let Some(c) = self.conversation(conversation) {
            c.corrects = false;
            c.unsure.clear();
        }
        let ran = self
            .durable
            .conversation(conversation)
            .is_some_and(|known| known.ran);
        if !ran && !self.is_settled(conversation) {
            // The process may be the one that is about to store it.
            let due = self.now.after(self.config.limits.settle_every);
            self.timers.set(Timer::LookAgain(conversation), due);
            return true;
        }
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
            self.carry(fx, conversation, doubt);
        }
        self.advance(fx, conversation);
        true
    }

    /// Whether what a refused thread was to take can no longer arrive: the process that it went to is
    /// gone, or the settling time is over.
    fn is_settled(&mut self, conversation: ConversationId) -> bool {
        let (now, settle) = (self.now, self.config.limits.settle);
        let (fresh, epoch) = (self.fresh_process, self.last_epoch);
        let Some(c) = self.conversation(conversation) else {
            return true;
        };
        let mut sent = c.turns.iter().filter(|turn| turn.is_in_doubt());
        let gone = |sent_on| fresh && sent_on < epoch;
        if sent.all(|turn| gone(turn.sent_on)) && c.doubts.iter().all(|d| gone(d.sent_on)) {
            return true;
        }
        let since = *c.absent_since.get_or_insert(now);
        now.since(since) >= settle
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
            self.doubt_unknown(fx, doubt, evidence);
        }
        if self.compaction_in_doubt(conversation) {
            self.compaction_unknown(fx, conversation, evidence);
        }
    }
}
