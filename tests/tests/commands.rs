//! Commands said again: the same number gets the same answer, also in another life.

#![allow(clippy::unwrap_used, reason = "helpers of tests are tests")]

use turnkeep_core::{
    Command, CommandError, CommandId, Config, ConversationId, ConversationKey, Durable, Effect,
    Effects, Event, Input, InputItem, JournalSeq, Machine, Recovery, Reply, SendOptions, Settings,
    Timestamp,
    codec::journal::Entry,
    record::Record,
    remembered::{REMEMBERED_COMMANDS, Remembered},
};

type Answer = Result<Reply, CommandError>;

/// A machine whose journal answers at once, and what that holds.
struct Life {
    machine: Machine,
    journal: Vec<Entry>,
    answers: Vec<(CommandId, Answer)>,
}

const NOW: Timestamp = Timestamp(1_700_000_000_000_000);

impl Life {
    /// The life after those that wrote the journal.
    fn after(config: &Config, journal: Vec<Entry>) -> Self {
        let mut recovery = Recovery::new(config.clone(), journal.len() as u64).unwrap();
        for entry in &journal {
            recovery.push(entry).unwrap();
        }
        let (machine, effects) = recovery.finish(NOW);
        let mut life = Self {
            machine,
            journal,
            answers: Vec::new(),
        };
        life.perform(effects);
        life
    }

    fn perform(&mut self, effects: Effects) {
        let mut through: Option<JournalSeq> = None;
        for effect in effects.list {
            match effect {
                Effect::Append(batch) => {
                    through = Some(batch.through);
                    self.journal.push(Entry {
                        seq: batch.through,
                        at: batch.at,
                        records: batch.records,
                    });
                }
                Effect::Emit(Event::Answer { id, answer }) => self.answers.push((id, *answer)),
                Effect::Emit(_) | Effect::Send(..) | Effect::Open(..) | Effect::Close(..) => {}
            }
        }
        if let Some(through) = through {
            let effects = self.machine.step(NOW, Input::Appended { through });
            self.perform(effects);
        }
    }

    fn command(&mut self, id: u64, command: Command) -> Option<Answer> {
        let id = CommandId(id);
        let before = self.answers.len();
        let effects = self.machine.step(NOW, Input::Command { id, command });
        self.perform(effects);
        let mut told = self.answers[before..].iter().filter(|(of, _)| *of == id);
        let answer = told.next().map(|(_, answer)| answer.clone());
        assert!(told.next().is_none(), "command {id} is answered twice");
        answer
    }

    fn records(&self) -> usize {
        self.journal.iter().map(|entry| entry.records.len()).sum()
    }
}

fn open(key: &str) -> Command {
    Command::Open {
        key: ConversationKey::new(key).unwrap(),
        settings: Settings::new().into(),
    }
}

fn send(conversation: u32) -> Command {
    Command::Send {
        conversation: ConversationId(conversation),
        input: vec![InputItem::text("x")],
        options: SendOptions::new().into(),
    }
}

#[test]
fn a_command_said_again_in_another_life_gets_the_same_answer() {
    let config = Config::default();
    let mut life = Life::after(&config, Vec::new());
    let opened = life.command(1, open("a")).unwrap();
    let accepted = life.command(2, send(1)).unwrap();
    assert!(accepted.is_ok(), "{accepted:?}");
    let busy = life.command(3, send(1)).unwrap();
    assert!(matches!(busy, Err(CommandError::Busy { .. })), "{busy:?}");
    assert_eq!(life.machine.durable().last_command(), CommandId(2));

    let mut life = Life::after(&config, life.journal);
    let before = life.records();
    // Whatever it asks: the number says what it is.
    assert_eq!(life.command(1, open("other")), Some(opened));
    assert_eq!(life.command(2, send(1)), Some(accepted));
    assert_eq!(life.records(), before, "nothing was done again");
    // What failed has done nothing, and may be tried again.
    assert_eq!(
        life.command(3, open("b")),
        Some(Ok(Reply::Opened {
            conversation: ConversationId(2)
        }))
    );
    assert!(life.records() > before);
}

#[test]
fn nothing_is_remembered_where_it_is_not_wanted() {
    let mut config = Config::default();
    config.remember_commands = false;
    let mut life = Life::after(&config, Vec::new());
    life.command(1, open("a")).unwrap().unwrap();
    let mut records = life.journal.iter().flat_map(|entry| &entry.records);
    assert!(records.all(|record| !matches!(record, Record::Command { .. })));
    let mut life = Life::after(&config, life.journal);
    let again = life.command(1, open("b"));
    assert_eq!(
        again,
        Some(Ok(Reply::Opened {
            conversation: ConversationId(2)
        }))
    );
}

#[test]
fn what_changed_nothing_is_not_written() {
    let mut life = Life::after(&Config::default(), Vec::new());
    life.command(1, open("a")).unwrap().unwrap();
    let before = life.records();
    life.command(2, open("a")).unwrap().unwrap();
    assert_eq!(life.records(), before);
}

#[test]
fn commands_are_forgotten_past_a_number_and_say_so() {
    let mut durable = Durable::default();
    let first = 10;
    let last = first + REMEMBERED_COMMANDS as u64;
    for id in first..=last {
        let answer = Remembered::Done;
        let id = CommandId(id);
        durable.apply(&Record::Command { id, answer }).unwrap();
    }
    assert_eq!(durable.answered(CommandId(first)), None);
    assert_eq!(
        durable.answered(CommandId(first + 1)),
        Some(&Remembered::Done)
    );
    for (id, forgotten) in [
        (0, true),
        (first, true),
        (first + 1, false),
        (last + 1, false),
    ] {
        assert_eq!(durable.is_forgotten(CommandId(id)), forgotten, "{id}");
    }
    let entry = Entry {
        seq: JournalSeq(1),
        at: NOW,
        records: vec![durable.checkpoint()],
    };
    let mut life = Life::after(&Config::default(), vec![entry]);
    assert_eq!(
        life.command(first, open("a")),
        Some(Err(CommandError::Forgotten))
    );
    assert_eq!(life.command(last, open("a")), Some(Ok(Reply::Done)));
    assert_eq!(life.machine.durable().last_command(), CommandId(last));
    assert!(life.command(last + 1, open("a")).unwrap().is_ok());
}
