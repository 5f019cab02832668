//! Ends that never came, read from the history.

use alloc::{
    boxed::Box,
    format,
    string::{String, ToString},
};

use super::{
    Machine,
    requests::{Kind, Settled},
};
use crate::{
    effect::Effects,
    event::{EndSource, Outcome},
    history::History,
    id::{ConversationId, TurnNo},
};

impl Machine {
    /// A turn should have ended by now: its held error is the end, or the history tells.
    pub(super) fn end_grace_over(&mut self, fx: &mut Effects, no: TurnNo) {
        let Some(turn) = self.turn(no) else { return };
        let conversation = turn.conversation;
        if let Some(error) = turn.held_error.take().map(|error| *error) {
            let outcome = Outcome::Failed { error };
            self.finish_native(fx, conversation, no, outcome, EndSource::Local);
            return;
        }
        if turn.native().is_some() {
            let history = if turn.steers.is_empty() {
                History::of_ends()
            } else {
                History::default()
            };
            turn.history = Some(Box::new(history));
            let kind = Kind::Reconcile {
                conversation,
                turn: no,
            };
            self.read_page(fx, conversation, kind, None);
        }
    }

    pub(super) fn reconciled(
        &mut self,
        fx: &mut Effects,
        conversation: ConversationId,
        no: TurnNo,
        how: Settled,
    ) {
        let Some(turn) = self.turn(no) else { return };
        let (Some(native), Some(mut history)) = (turn.native().cloned(), turn.history.take())
        else {
            return;
        };
        let evidence = match how {
            Settled::Answered(page) => match history.take(&page) {
                Ok(next) => match (history.turn(&native), next) {
                    (Some(past), _) if !past.runs() => {
                        self.find_steers(fx, no, &history, true);
                        self.end_by_past(fx, conversation, no, past);
                        return;
                    }
                    (Some(_), _) if self.still_runs(fx, conversation, no) => return,
                    (Some(_), _) => {
                        "the turn should be over and the history says that it runs".to_string()
                    }
                    (None, None) => "the turn is not in the history".to_string(),
                    (None, Some(next)) => {
                        if let Some(turn) = self.turn(no) {
                            turn.history = Some(history);
                        }
                        let kind = Kind::Reconcile {
                            conversation,
                            turn: no,
                        };
                        self.read_page(fx, conversation, kind, Some(&next));
                        return;
                    }
                },
                Err(error) => {
                    let evidence = error.to_string();
                    self.warn_of_history(fx, conversation, error);
                    evidence
                }
            },
            other => unreadable(other),
        };
        let outcome = Outcome::Unknown { evidence };
        self.finish_native(fx, conversation, no, outcome, EndSource::Local);
    }
}

fn unreadable(how: Settled) -> String {
    format!(
        "the history cannot be read: {}",
        how.error("thread/turns/list")
    )
}
