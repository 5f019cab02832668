//! What a history shows beside what was sought in it: ends and an order that contradict what was
//! told, and turns that nobody here began. Nothing of it is repaired.

use alloc::{borrow::ToOwned, vec::Vec};

use super::{Conversation, Machine, turn::Turn};
use crate::{
    effect::Effects,
    event::{ConversationUpdate, EndSource, FailureKind, HistoryError, Outcome},
    history::{History, PastTurn},
    id::{ConversationId, TurnId},
    prompt::Prompt,
};

/// A turn that has ended, and how the server said it did.
#[derive(Clone, Debug)]
pub(super) struct EndedTurn {
    pub(super) native: TurnId,
    /// The server's word, where the end is its own.
    pub(super) how: Option<&'static str>,
}

impl EndedTurn {
    pub(super) fn new(native: TurnId, outcome: &Outcome, source: EndSource) -> Self {
        let how = match outcome {
            Outcome::Completed { .. } => Some("completed"),
            Outcome::Interrupted => Some("interrupted"),
            Outcome::Failed { error } if error.kind == FailureKind::Server => Some("failed"),
            Outcome::Failed { .. }
            | Outcome::Rejected { .. }
            | Outcome::TimedOut
            | Outcome::Lost { .. }
            | Outcome::Unknown { .. } => None,
        };
        Self {
            native,
            how: how.filter(|_| source != EndSource::Local),
        }
    }
}

impl Machine {
    /// Compares a history with what was told, and tells of turns that it alone knows.
    pub(super) fn compare(
        &mut self,
        fx: &mut Effects,
        conversation: ConversationId,
        history: &History,
    ) {
        let Some(c) = self.conversation(conversation) else {
            return;
        };
        let errors: Vec<HistoryError> = other_end(c, history)
            .chain(other_order(c, history))
            .collect();
        // A turn that runs and has no message yet may be ours, as long as ours has no name.
        let unnamed = c.turns.iter().any(Turn::is_unnamed);
        let ours = |past: &PastTurn| past.messages.iter().any(|m| Prompt::is_id(m));
        let found: Vec<PastTurn> = history
            .turns
            .iter()
            .take_while(|past| !c.knows(past))
            .filter(|past| !past.is_void() && !ours(past))
            .filter(|past| !unnamed || !past.runs())
            .cloned()
            .collect();
        for error in errors {
            self.warn_of_history(fx, conversation, error);
        }
        for past in found.into_iter().rev() {
            if past.runs() {
                self.server_turn(fx, conversation, past.id);
                continue;
            }
            let (native, status) = (past.id.clone(), past.status);
            let update = ConversationUpdate::TurnFound { native, status };
            self.tell_conversation(fx, conversation, update);
            if let Some(c) = self.conversation(conversation) {
                let native = past.id;
                c.remember_ended(EndedTurn { native, how: None });
            }
        }
    }
}

impl Conversation {
    /// Whether a turn of the history is one of those that this client told of.
    fn knows(&self, past: &PastTurn) -> bool {
        let sent = |message: &crate::MessageId| past.has(message);
        let ours = self.turns.iter().any(|turn| {
            let named = turn.native().or(turn.suspended());
            named == Some(&past.id)
                || turn.message.as_ref().is_some_and(sent)
                || turn.steers.iter().any(|steer| sent(&steer.message))
        });
        let told = |told: &super::reconcile::Unsure| {
            told.end.native.as_ref() == Some(&past.id)
                || told.end.message.as_ref().is_some_and(sent)
        };
        ours || self.has_ended(&past.id)
            || self.doubts.iter().any(|doubt| sent(&doubt.message))
            || self.unsure.iter().any(told)
    }
}

/// Ends that the server told otherwise before.
fn other_end<'a>(
    c: &'a Conversation,
    history: &'a History,
) -> impl Iterator<Item = HistoryError> + 'a {
    c.ended.iter().filter_map(|ended| {
        let past = history.turn(&ended.native)?;
        let recorded = ended.how.filter(|how| *how != past.status)?;
        Some(HistoryError::OtherEnd {
            turn: ended.native.clone(),
            recorded: recorded.to_owned(),
            found: past.status.clone(),
        })
    })
}

/// Turns that stand behind those which came after them.
fn other_order<'a>(
    c: &'a Conversation,
    history: &'a History,
) -> impl Iterator<Item = HistoryError> + 'a {
    let place = |turn: &TurnId| history.turns.iter().position(|past| past.id == *turn);
    let placed = c.ended.iter().filter_map(move |ended| {
        let native = &ended.native;
        place(native).map(|at| (native, at))
    });
    // Newest first: the one that ended later stands at the lower place.
    let pairs = placed.clone().zip(placed.skip(1));
    pairs
        .filter(|((_, older), (_, newer))| older < newer)
        .map(|((older, _), (newer, _))| HistoryError::Order {
            older: older.clone(),
            newer: newer.clone(),
        })
}
