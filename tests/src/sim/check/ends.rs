//! Rule 3: Every message that left ends exactly once, and the end that is told is what the server did.

use std::{
    collections::{BTreeMap, BTreeSet},
    rc::Rc,
};

use turnkeep_core::{
    Command, CommandId, Config, ConversationId, Event, MessageId, Outcome, QuestionId, Record,
    Reply, TurnEnd, TurnNo, TurnUpdate,
    command::Answer,
    config::RecoveredTurns,
    event::{ConversationUpdate, FailureKind, LostReason, Origin},
    prompt::{PromptChange, PromptKind},
};

use super::accepted::Accepted;
use crate::sim::{
    application::Application,
    server::{Fact, Part, Status},
};

/// An end that was told.
#[derive(Debug)]
struct Told {
    outcome: Outcome,
    acknowledged: bool,
}

#[derive(Debug)]
pub(super) struct Ends {
    follows: bool,
    /// Ends that the application has heard, in any life.
    told: BTreeMap<TurnNo, Told>,
    /// Turns that are not ours: their numbers die with a life.
    foreign: BTreeSet<TurnNo>,
    /// Those of this life.
    now: BTreeSet<TurnNo>,
    /// Acknowledgements that were asked for.
    asked: BTreeMap<CommandId, TurnNo>,
    /// Conversations of questions that were told, and those in which one was answered with `cancel`.
    questions: BTreeMap<QuestionId, ConversationId>,
    cancelled: BTreeSet<ConversationId>,
    /// Turns that somebody of ours wants to stop: by a command, a limit, a shutdown.
    stopped: BTreeSet<TurnNo>,
    shut: bool,
    /// How the server's turns ended.
    turns: BTreeMap<Rc<str>, (Status, Vec<Part>)>,
    /// Messages that were told to stand nowhere.
    denied: BTreeMap<MessageId, TurnNo>,
    /// The message of a turn, and what it says.
    messages: BTreeMap<TurnNo, MessageId>,
    deadlines: BTreeSet<TurnNo>,
    outcomes: BTreeMap<String, u64>,
}

impl Ends {
    pub(super) fn new(config: &Config) -> Self {
        Self {
            follows: config.recovered_turns == RecoveredTurns::Follow,
            told: BTreeMap::new(),
            foreign: BTreeSet::new(),
            now: BTreeSet::new(),
            asked: BTreeMap::new(),
            questions: BTreeMap::new(),
            cancelled: BTreeSet::new(),
            stopped: BTreeSet::new(),
            shut: false,
            turns: BTreeMap::new(),
            denied: BTreeMap::new(),
            messages: BTreeMap::new(),
            deadlines: BTreeSet::new(),
            outcomes: BTreeMap::new(),
        }
    }

    pub(super) fn life_begins(&mut self) {
        self.now.clear();
        for turn in std::mem::take(&mut self.foreign) {
            self.told.remove(&turn);
        }
        self.asked.clear();
    }

    pub(super) fn found(&mut self, record: &Record) {
        self.record(record);
    }

    pub(super) fn record(&mut self, record: &Record) {
        let Record::Prompt { message, change } = record else {
            return;
        };
        if let PromptChange::Prepared(fields) = change {
            if fields.kind == PromptKind::Start {
                self.messages.insert(fields.turn, message.clone());
                if fields.deadline.is_some() {
                    self.deadlines.insert(fields.turn);
                }
            }
        }
    }

    pub(super) fn command(&mut self, id: CommandId, command: &Command) {
        match command {
            Command::Acknowledge { turn } => {
                self.asked.insert(id, *turn);
            }
            Command::Interrupt { turn } | Command::Abandon { turn } => {
                self.stopped.insert(*turn);
            }
            Command::Answer {
                question,
                answer: Answer::Cancel,
            } => {
                self.cancelled.extend(self.questions.get(question));
            }
            Command::Shutdown => self.shut = true,
            _ => {}
        }
    }

    pub(super) fn fact(&mut self, fact: &Fact) {
        if let Fact::Ended {
            turn,
            status,
            parts,
        } = fact
        {
            self.turns.insert(turn.clone(), (*status, parts.clone()));
        }
    }

    pub(super) fn event(&mut self, event: &Event, accepted: &Accepted, _now: u64) {
        match event {
            Event::Answer { id, answer } => {
                if let (Some(turn), Ok(Reply::Done)) = (self.asked.remove(id), &**answer) {
                    if let Some(told) = self.told.get_mut(&turn) {
                        told.acknowledged = true;
                    }
                }
            }
            Event::Conversation(event) => {
                if let ConversationUpdate::TurnBegan {
                    turn,
                    origin: Origin::Server,
                } = &event.update
                {
                    self.foreign.insert(*turn);
                }
            }
            Event::Turn(event) => match &event.update {
                TurnUpdate::Question(question) => {
                    self.questions.insert(question.id, event.conversation);
                }
                TurnUpdate::Ended(end) => {
                    // Answered with `cancel`, whatever it takes with it ends on the application's word.
                    if self.cancelled.contains(&event.conversation) {
                        self.stopped.insert(event.turn);
                    }
                    self.ended(event.turn, end, accepted);
                }
                TurnUpdate::Corrected(end) => {
                    self.truthful(event.turn, end, accepted);
                    let outcome = end.outcome.clone();
                    self.told.insert(
                        event.turn,
                        Told {
                            outcome,
                            acknowledged: true,
                        },
                    );
                }
                _ => {}
            },
            _ => {}
        }
    }

    fn ended(&mut self, turn: TurnNo, end: &TurnEnd, accepted: &Accepted) {
        assert!(self.now.insert(turn), "3: turn {turn} ends twice");
        let word = format!("ends {} ({:?})", end.outcome.name(), end.source);
        *self.outcomes.entry(word).or_default() += 1;
        if let Some(before) = self.told.get(&turn) {
            assert!(
                !before.acknowledged,
                "6: the end of turn {turn} is told again after it was acknowledged"
            );
            let improves = matches!(
                before.outcome,
                Outcome::Unknown { .. } | Outcome::Lost { .. }
            );
            assert!(
                before.outcome == end.outcome || improves,
                "3: turn {turn} ended as {:?} and now as {:?}",
                before.outcome,
                end.outcome
            );
        }
        self.truthful(turn, end, accepted);
        let outcome = end.outcome.clone();
        self.told.insert(
            turn,
            Told {
                outcome,
                acknowledged: false,
            },
        );
    }

    /// What is told is what the server did.
    fn truthful(&mut self, turn: TurnNo, end: &TurnEnd, accepted: &Accepted) {
        let stands = end
            .message
            .as_ref()
            .and_then(|message| accepted.turn_of(message.as_str()));
        let native = end.native.as_ref().map(|native| native.as_str());
        let server = native.and_then(|native| self.turns.get(native));
        match &end.outcome {
            Outcome::Completed { text, .. } => {
                let (status, parts) = server.unwrap_or_else(|| {
                    panic!("3: turn {turn} is told completed, and no such turn has ended: {end:?}")
                });
                assert_eq!(
                    *status,
                    Status::Completed,
                    "3: turn {turn} is told completed: {end:?}"
                );
                if let Some(message) = &end.message {
                    assert_eq!(
                        stands.map(|s| &**s),
                        native,
                        "3: turn {turn} is told completed, and message {message} stands elsewhere"
                    );
                }
                let answers = answers(parts, end.message.as_ref().map(MessageId::as_str));
                match text {
                    Some(text) => assert!(
                        answers.contains(&text.as_str()),
                        "3: turn {turn} is told to have answered {text:?}, the server said {answers:?}"
                    ),
                    // A turn of somebody else that took a message of ours has given its text to it.
                    None => assert!(
                        answers.is_empty() || end.message.is_none(),
                        "3: turn {turn} is told without an answer, the server said {answers:?}"
                    ),
                }
            }
            Outcome::Failed { error } if error.kind == FailureKind::Server => {
                assert_eq!(
                    server.map(|(status, _)| *status),
                    Some(Status::Failed),
                    "3: turn {turn} is told failed: {end:?}"
                );
            }
            Outcome::Failed { .. } => {}
            Outcome::Interrupted => match server {
                Some((status, _)) => {
                    assert_eq!(
                        *status,
                        Status::Interrupted,
                        "3: turn {turn} is told interrupted: {end:?}"
                    );
                    let wanted = self.stopped.contains(&turn)
                        || self.deadlines.contains(&turn)
                        || !self.follows;
                    assert!(
                        stands.is_some() || end.message.is_none() || wanted,
                        "3: turn {turn} is told interrupted, its message was never recorded and nobody wanted it stopped"
                    );
                }
                None => self.deny(turn, end, stands),
            },
            Outcome::Rejected { .. } => self.deny(turn, end, stands),
            Outcome::TimedOut => assert!(
                self.deadlines.contains(&turn),
                "3: turn {turn} has no deadline and timed out"
            ),
            Outcome::Lost { reason } => match reason {
                LostReason::ClosedByUs => {
                    assert!(self.shut, "3: turn {turn} is lost, and nobody shut us down");
                }
                other => {
                    let word = format!("lost: {}", reason_word(other));
                    *self.outcomes.entry(word).or_default() += 1;
                }
            },
            Outcome::Unknown { evidence } => {
                let word: String = evidence
                    .chars()
                    .filter(|c| !c.is_ascii_digit())
                    .take(60)
                    .collect();
                *self.outcomes.entry(format!("unknown: {word}")).or_default() += 1;
            }
            _ => {}
        }
    }

    /// The message is told to stand nowhere, now and for ever.
    fn deny(&mut self, turn: TurnNo, end: &TurnEnd, stands: Option<&Rc<str>>) {
        assert!(
            stands.is_none(),
            "3: turn {turn} is told {}, and its message stands in {stands:?}",
            end.outcome.name()
        );
        if let Some(message) = &end.message {
            self.denied.insert(message.clone(), turn);
        }
    }

    pub(super) fn at_the_end(&self, app: &Application, accepted: &Accepted) {
        for (message, turn) in &self.denied {
            let stands = accepted.turn_of(message.as_str());
            assert!(
                stands.is_none(),
                "3: turn {turn} was told to be accepted nowhere, and {message} stands in {stands:?}"
            );
        }
        for (turn, text) in app.taken_steers() {
            assert!(
                accepted.has(text),
                "3: {text:?} was said to be taken by turn {turn}, and stands nowhere"
            );
        }
        for (turn, taken) in &app.taken {
            let note = app.note_of(*turn);
            let Some(note) = note else { continue };
            if let Outcome::Completed { .. } = taken.outcome {
                assert!(
                    accepted.has(&note.text),
                    "3: {:?} is told completed and stands nowhere",
                    note.text
                );
            }
        }
    }

    pub(super) fn outcomes(&self) -> impl Iterator<Item = (&str, u64)> {
        self.outcomes.iter().map(|(word, n)| (word.as_str(), *n))
    }
}

fn reason_word(reason: &LostReason) -> &'static str {
    match reason {
        LostReason::Connection(_) => "connection",
        LostReason::InterruptUnanswered => "interrupt unanswered",
        LostReason::ClosedByUs => "closed by us",
        LostReason::ThreadClosed => "thread closed",
        _ => "another reason",
    }
}

/// What the server may be said to have answered to a message: messages of the agent after it that are no commentary.
fn answers<'a>(parts: &'a [Part], message: Option<&str>) -> Vec<&'a str> {
    let from = parts.iter().position(|part| match part {
        Part::User(client) => client.is_some() && client.as_deref() == message,
        Part::Agent { .. } => false,
    });
    parts[from.unwrap_or(0)..]
        .iter()
        .filter_map(|part| match part {
            Part::Agent { text, commentary } if !commentary && !text.trim().is_empty() => {
                Some(text.as_str())
            }
            Part::Agent { .. } | Part::User(_) => None,
        })
        .collect()
}
