//! Taking an interrupted turn back before its message is sent again.
//!
//! The server writes a user message twice: first as what the model is given, then as the item that
//! the history shows. Killed in between it shows an interrupted turn without items, while every later
//! request to the model has the text. Sent again it would be read twice, so that the empty turn is
//! reverted first (`thread/revert`). The message counts as unrecorded only then: a crash in between
//! leads to the same look into the history again.

use alloc::string::ToString;

use serde::Serialize;

use super::{
    Machine,
    look::PATIENCE,
    requests::{Kind, Settled},
};
use crate::{
    config::Resend,
    effect::{Durability, Effects},
    history::History,
    id::{CommandId, ConversationId, TurnId, TurnNo},
    record::{Record, RequestEnd},
    timers::Timer,
};

impl Machine {
    /// A message was never recorded. What the server may hold of it all the same is taken back.
    pub(super) fn take_back(
        &mut self,
        fx: &mut Effects,
        conversation: ConversationId,
        no: TurnNo,
        history: &History,
    ) {
        match self.empty_turn(no, history) {
            Some(native) => self.revert(fx, conversation, no, &native),
            None => self.unrecorded(fx, conversation, no),
        }
    }

    /// The turn that holds what is to be sent again: the thread's newest, and empty.
    fn empty_turn(&mut self, no: TurnNo, history: &History) -> Option<TurnId> {
        // On a process that others may speak to, another turn may have begun by now.
        if !self.fresh_process || self.config.resend != Resend::WhenProven {
            return None;
        }
        let newest = history.turns.first().filter(|past| past.is_void())?;
        let owner = *self.turn_owner.get(&no)?;
        let c = self.conversation(owner)?;
        let ended = c.has_ended(&newest.id);
        let turn = c.turn(no)?;
        let ours = match turn.name() {
            Some(name) => *name == newest.id,
            // Nobody else spoke to a process of ours: what nobody named is what we sent last.
            None => !ended,
        };
        (ours && turn.stop.is_unasked()).then(|| newest.id.clone())
    }

    fn revert(
        &mut self,
        fx: &mut Effects,
        conversation: ConversationId,
        no: TurnNo,
        native: &TurnId,
    ) {
        #[derive(Serialize)]
        #[serde(rename_all = "camelCase")]
        struct RevertParams<'a> {
            thread_id: &'a str,
            before_turn_id: &'a str,
        }
        let Some(c) = self.conversation(conversation) else {
            return;
        };
        let Some(thread) = c.link.thread().cloned() else {
            return;
        };
        c.reverting = true;
        let record = Record::Request {
            command: bare_revert(no),
            method: "thread/revert".into(),
        };
        let gate = self.record(record, Durability::Synced);
        let params = RevertParams {
            thread_id: &thread,
            before_turn_id: native,
        };
        let kind = Kind::Revert {
            conversation,
            turn: no,
        };
        self.request(fx, kind, "thread/revert", &params, gate);
    }

    /// Taken back or refused, it is sent again, since it was never recorded. Where the server may
    /// yet take it back, that would take the next turn with it: the history is read once more.
    pub(super) fn reverted(
        &mut self,
        fx: &mut Effects,
        conversation: ConversationId,
        no: TurnNo,
        how: Settled,
    ) {
        let end = how.end();
        self.revert_ended(no, end);
        let Some(c) = self.conversation(conversation) else {
            return;
        };
        c.reverting = false;
        match how {
            Settled::Answered(_) | Settled::Refused(_) => {
                if c.turn(no).is_some_and(|turn| turn.is_suspended()) {
                    self.unrecorded(fx, conversation, no);
                }
                self.advance(fx, conversation);
            }
            Settled::NotSent | Settled::Unknown(_) => {
                let due = self.now.after(self.config.limits.settle_every);
                let Some(turn) = self.turn(no) else { return };
                turn.reverts += 1;
                if turn.reverts > PATIENCE {
                    let evidence = how.error("thread/revert").to_string();
                    self.end_unknown(fx, conversation, no, evidence);
                } else {
                    self.timers.set(Timer::LookAgain(conversation), due);
                }
            }
        }
    }

    pub(super) fn revert_ended(&mut self, no: TurnNo, end: RequestEnd) {
        let command = bare_revert(no);
        if self.durable.request(command).is_some() {
            self.record(Record::RequestEnded { command, end }, Durability::Buffered);
        }
    }
}

/// The number under which a revert stands in the journal: above all numbers that callers count up
/// to, and below those of interrupts.
fn bare_revert(no: TurnNo) -> CommandId {
    CommandId((u64::MAX >> 1) - u64::from(no.0))
}
