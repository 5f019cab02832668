//! Rule 6: The events of a conversation come in order: a turn is told before what happens in it, and nothing follows its end. What is
//! streamed is what the server says.

use std::collections::{BTreeMap, BTreeSet};

use turnkeep_core::{
    ConversationId, Delta, Event, Reply, TurnNo, TurnUpdate,
    event::{ConversationUpdate, DeltaKind},
};

#[derive(Debug, Default)]
pub(super) struct Events {
    told: BTreeSet<TurnNo>,
    ended: BTreeSet<TurnNo>,
    closed: BTreeSet<ConversationId>,
    /// What was streamed of an item; None where a part of it may be missing.
    streamed: BTreeMap<(TurnNo, String), Option<String>>,
    asked: BTreeSet<turnkeep_core::QuestionId>,
    /// Questions that were told, in any life.
    questions: u64,
    halted: bool,
}

impl Events {
    pub(super) fn life_begins(&mut self) {
        *self = Self {
            questions: self.questions,
            ..Self::default()
        };
    }

    pub(super) fn life_ends(&mut self) {
        self.streamed.clear();
    }

    /// A connection has ended: what is streamed meanwhile is not heard.
    pub(super) fn gap(&mut self) {
        for streamed in self.streamed.values_mut() {
            *streamed = None;
        }
    }

    pub(super) fn event(&mut self, event: &Event) {
        assert!(
            !self.halted || matches!(event, Event::Answer { .. }),
            "6: something follows Halted: {event:?}"
        );
        if let Some(conversation) = event.conversation() {
            assert!(
                !self.closed.contains(&conversation),
                "6: something follows Closed: {event:?}"
            );
        }
        match event {
            Event::Delta(delta) => self.delta(delta),
            Event::Turn(event) => self.update(event.turn, &event.update),
            Event::Conversation(event) => match &event.update {
                ConversationUpdate::TurnBegan { turn, .. } => {
                    self.told.insert(*turn);
                }
                ConversationUpdate::Closed => {
                    self.closed.insert(event.conversation);
                }
                _ => {}
            },
            Event::Answer { answer, .. } => {
                if let Ok(Reply::Accepted { turn, .. } | Reply::Begun { turn: Some(turn) }) =
                    &**answer
                {
                    self.told.insert(*turn);
                }
            }
            Event::Halted => self.halted = true,
            Event::Connection(_) => {}
        }
    }

    fn of_turn(&self, turn: TurnNo, what: impl std::fmt::Debug) {
        assert!(
            self.told.contains(&turn),
            "6: turn {turn} was never told: {what:?}"
        );
        assert!(
            !self.ended.contains(&turn),
            "6: something follows the end of turn {turn}: {what:?}"
        );
    }

    fn delta(&mut self, delta: &Delta) {
        self.of_turn(delta.turn, delta);
        if delta.kind == DeltaKind::Agent {
            let key = (delta.turn, delta.item.as_str().to_owned());
            if let Some(Some(streamed)) = self.streamed.get_mut(&key) {
                streamed.push_str(&delta.text);
            }
        }
    }

    pub(super) const fn questions(&self) -> u64 {
        self.questions
    }

    fn update(&mut self, turn: TurnNo, update: &TurnUpdate) {
        if let TurnUpdate::Corrected(_) = update {
            assert!(
                self.ended.contains(&turn) || !self.told.contains(&turn),
                "6: turn {turn} is corrected before it has ended"
            );
            return;
        }
        self.of_turn(turn, update);
        match update {
            TurnUpdate::ItemStarted(item) if item.kind == "agentMessage" => {
                let key = (turn, item.id.as_str().to_owned());
                self.streamed.insert(key, Some(String::new()));
            }
            TurnUpdate::ItemCompleted(item) => {
                let key = (turn, item.id.as_str().to_owned());
                if let Some(Some(streamed)) = self.streamed.remove(&key) {
                    assert_eq!(
                        Some(streamed),
                        item.text,
                        "6: what was streamed of {} is not what was said",
                        item.id
                    );
                }
            }
            TurnUpdate::Question(question) => {
                self.questions += 1;
                assert!(
                    self.asked.insert(question.id),
                    "6: question {} is asked twice",
                    question.id
                );
            }
            TurnUpdate::Ended(_) => {
                self.ended.insert(turn);
            }
            _ => {}
        }
    }
}
