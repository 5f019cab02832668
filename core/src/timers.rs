//! What the machine waits for, and until when.

use alloc::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

use crate::{
    effect::Deadline,
    id::{ConversationId, Epoch, QuestionId, RefreshId, ToolCallId, TurnNo},
    time::Timestamp,
};

/// A timer, named for what it ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub enum Timer {
    /// Ends the wait for the answer of `initialize`.
    Handshake(Epoch),
    /// Ends the wait for the answer of a request.
    Request(u64),
    /// Ends the pause after which a request is tried again that met an overloaded server.
    Retry(u64),
    /// Ends a turn's own time.
    TurnDeadline(TurnNo),
    /// Ends the wait for the end of an idle or failed turn.
    EndGrace(TurnNo),
    /// Ends the patience with a silent turn.
    Quiet(TurnNo),
    /// Ends a tool's time.
    ToolLimit(ToolCallId),
    /// Ends the server's own patience with a question.
    AutoResolution(QuestionId),
    /// Ends the wait for the tokens that the server asked for.
    TokenRefresh(RefreshId),
    /// Ends the pause before the connection is opened again.
    Reconnect(Epoch),
    /// Ends the pause between two looks into the history of a conversation's thread.
    LookAgain(ConversationId),
    /// Ends the wait for the turn of a compaction that the server took.
    Compaction(ConversationId),
    /// Ends the wait for questions that a new connection did not bring again.
    Replay(ConversationId),
    /// Ends the pause before a clean-up is tried again.
    CleanUp,
    /// Ends the time in which an unfit connection serves its other turns.
    Drain(Epoch),
}

/// The timers that run.
#[derive(Clone, Debug, Default)]
pub(crate) struct Timers {
    due: BTreeSet<(Timestamp, Timer)>,
    at: BTreeMap<Timer, Timestamp>,
}

impl Timers {
    pub(crate) fn set(&mut self, timer: Timer, at: Timestamp) {
        self.clear(timer);
        self.due.insert((at, timer));
        self.at.insert(timer, at);
    }

    pub(crate) fn clear(&mut self, timer: Timer) {
        if let Some(at) = self.at.remove(&timer) {
            self.due.remove(&(at, timer));
        }
    }

    pub(crate) fn is_set(&self, timer: Timer) -> bool {
        self.at.contains_key(&timer)
    }

    pub(crate) fn clear_all(&mut self) {
        self.due.clear();
        self.at.clear();
    }

    pub(crate) fn first(&self) -> Option<Deadline> {
        self.due.first().map(|&(at, timer)| Deadline { at, timer })
    }

    /// Takes one timer that is due.
    pub(crate) fn pop(&mut self, now: Timestamp) -> Option<Timer> {
        let &(at, timer) = self.due.first()?;
        if at > now {
            return None;
        }
        self.clear(timer);
        Some(timer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_early_tick_takes_nothing_and_a_late_one_takes_all_in_order() {
        let mut timers = Timers::default();
        timers.set(Timer::Request(2), Timestamp(20));
        timers.set(Timer::Request(1), Timestamp(10));
        timers.set(Timer::Request(1), Timestamp(30));
        assert_eq!(timers.pop(Timestamp(19)), None);
        assert_eq!(timers.first().unwrap().timer, Timer::Request(2));
        assert_eq!(timers.pop(Timestamp(40)), Some(Timer::Request(2)));
        assert_eq!(timers.pop(Timestamp(40)), Some(Timer::Request(1)));
        assert_eq!(timers.pop(Timestamp(40)), None);
    }
}
