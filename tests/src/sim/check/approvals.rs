//! Rule 5: Nothing is approved that the application did not approve, and nothing is answered twice.

use std::collections::{BTreeMap, BTreeSet};

use turnkeep_core::{Command, Event, QuestionId, TurnUpdate, command::Answer};

use crate::sim::server::Fact;

#[derive(Debug, Default)]
pub(super) struct Approvals {
    /// What a question is about.
    items: BTreeMap<QuestionId, String>,
    approved: BTreeSet<String>,
}

impl Approvals {
    pub(super) fn event(&mut self, event: &Event) {
        let Event::Turn(event) = event else { return };
        if let TurnUpdate::Question(question) = &event.update {
            let item = question.item.clone().unwrap_or_default();
            self.items.insert(question.id, item);
        }
    }

    pub(super) fn command(&mut self, command: &Command) {
        let Command::Answer { question, answer } = command else {
            return;
        };
        if matches!(answer, Answer::Accept | Answer::AcceptForSession) {
            if let Some(item) = self.items.get(question) {
                self.approved.insert(item.clone());
            }
        }
    }

    pub(super) fn fact(&mut self, fact: &Fact) {
        match fact {
            Fact::Decided { item, result } => assert!(
                !result.contains("accept") || self.approved.contains(item),
                "5: {item} was approved without the application: {result}"
            ),
            Fact::AnsweredTwice { request } => {
                panic!("5: request {request} was answered twice on one connection")
            }
            Fact::Came { .. }
            | Fact::Recorded { .. }
            | Fact::Ended { .. }
            | Fact::Called { .. }
            | Fact::CallAnswered { .. }
            | Fact::Said { .. }
            | Fact::GivenTwice { .. }
            | Fact::Thread { .. }
            | Fact::Compacted
            | Fact::Forked { .. }
            | Fact::Fault(_) => {}
        }
    }
}
