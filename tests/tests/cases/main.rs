//! The cases: faults that clients of this protocol met, each played from its script, however its bytes are cut into reads.

#![allow(clippy::unwrap_used, reason = "helpers of tests are tests")]

mod bytes;
mod children;
mod order;
mod recovery;
mod requests;
mod tokens;
mod turns;

use turnkeep_core::{
    Event, Outcome, Settings, TurnEnd,
    command::Questions,
    event::{ConnectionEvent, EndReason},
};
use turnkeep_tests::world::{Reads, Setup, World};

macro_rules! script {
    ($name:literal) => {
        include_str!(concat!("../../scripts/case-", $name, ".script"))
    };
}
use script;

/// Plays the same in every way of reading, and wants the application to be told the same each time.
fn in_all_reads(setup: impl Fn() -> Setup, play: impl Fn(&mut World)) {
    let ways = [
        Reads::Writes,
        Reads::Whole,
        Reads::Bytes,
        Reads::Random(1),
        Reads::Random(2),
        Reads::Random(3),
    ];
    let mut first = None;
    for reads in ways {
        let mut world = setup().reads(reads).start();
        play(&mut world);
        let told = world.told();
        let _ = world.finish();
        let first = first.get_or_insert_with(|| told.clone());
        assert_eq!(*first, told, "{reads:?} tells something else");
    }
}

/// Plays a script in every way of reading.
fn in_all_reads_of(script: &str, play: impl Fn(&mut World)) {
    in_all_reads(|| Setup::script(script), play);
}

fn asks() -> Settings {
    Settings::new().questions(Questions::Ask)
}

/// The text of a turn that completed.
fn text(end: &TurnEnd) -> &str {
    match &end.outcome {
        Outcome::Completed { text, .. } => text.as_deref().unwrap_or_default(),
        other => panic!("not completed: {other:?}"),
    }
}

fn connection_events(world: &World) -> Vec<ConnectionEvent> {
    let all = world.events().iter().filter_map(|event| match event {
        Event::Connection(event) => Some((**event).clone()),
        _ => None,
    });
    all.collect()
}

/// Why the connection ended, once it has.
fn end_reason(world: &World) -> Option<EndReason> {
    let mut all = connection_events(world).into_iter();
    all.find_map(|event| match event {
        ConnectionEvent::Ended(reason) => Some(reason),
        _ => None,
    })
}

/// How often a text stands in the journal.
fn in_journal(world: &World, text: &str) -> usize {
    String::from_utf8_lossy(world.journal_bytes())
        .matches(text)
        .count()
}
