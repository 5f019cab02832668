//! Commands said again: the same number gets the same answer, also in another life.

#![allow(clippy::unwrap_used, reason = "helpers of tests are tests")]

use turnkeep_core::{
    Command, CommandError, CommandId, ConversationId, ConversationKey, Durable, InputItem,
    JournalSeq, Reply, SendOptions, Settings, Timestamp,
    codec::journal::Entry,
    record::Record,
    remembered::{REMEMBERED_COMMANDS, Remembered},
};
use turnkeep_tests::life::Life;

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
    let config = turnkeep_tests::unbound();
    let mut life = Life::after(&config, Vec::new());
    let opened = life.command_as(1, open("a")).unwrap();
    let accepted = life.command_as(2, send(1)).unwrap();
    assert!(accepted.is_ok(), "{accepted:?}");
    let busy = life.command_as(3, send(1)).unwrap();
    assert!(matches!(busy, Err(CommandError::Busy { .. })), "{busy:?}");
    assert_eq!(life.machine.durable().last_command(), CommandId(2));

    let mut life = life.crash();
    let before = life.records();
    // Whatever it asks: the number says what it is.
    assert_eq!(life.command_as(1, open("other")), Some(opened));
    assert_eq!(life.command_as(2, send(1)), Some(accepted));
    assert_eq!(life.records(), before, "nothing was done again");
    // What failed has done nothing, and may be tried again.
    assert_eq!(
        life.command_as(3, open("b")),
        Some(Ok(Reply::Opened {
            conversation: ConversationId(2)
        }))
    );
    assert!(life.records() > before);
}

#[test]
fn nothing_is_remembered_where_it_is_not_wanted() {
    let mut config = turnkeep_tests::unbound();
    config.remember_commands = false;
    let mut life = Life::after(&config, Vec::new());
    life.command_as(1, open("a")).unwrap().unwrap();
    let mut records = life.journal.iter().flat_map(|entry| &entry.records);
    assert!(records.all(|record| !matches!(record, Record::Command { .. })));
    let mut life = Life::after(&config, life.journal);
    let again = life.command_as(1, open("b"));
    assert_eq!(
        again,
        Some(Ok(Reply::Opened {
            conversation: ConversationId(2)
        }))
    );
}

#[test]
fn what_changed_nothing_is_not_written() {
    let mut life = Life::after(&turnkeep_tests::unbound(), Vec::new());
    life.command_as(1, open("a")).unwrap().unwrap();
    let before = life.records();
    life.command_as(2, open("a")).unwrap().unwrap();
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
        at: Timestamp(1),
        records: vec![durable.checkpoint()],
    };
    let mut life = Life::after(&turnkeep_tests::unbound(), vec![entry]);
    assert_eq!(
        life.command_as(first, open("a")),
        Some(Err(CommandError::Forgotten))
    );
    assert_eq!(life.command_as(last, open("a")), Some(Ok(Reply::Done)));
    assert_eq!(life.machine.durable().last_command(), CommandId(last));
    assert!(life.command_as(last + 1, open("a")).unwrap().is_ok());
}
