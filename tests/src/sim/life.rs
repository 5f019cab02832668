//! One life of our process: a machine, what it was made from, and what it was told.

use std::collections::BTreeMap;

use turnkeep_core::{
    Config, Durable, Effects, Epoch, Input, Machine, Recovery, Timestamp, codec::journal::Entry,
};

use super::server::Conn;

#[cfg(feature = "bugs")]
pub use turnkeep_core::Bug;

/// Deliberate bugs are there with the feature `bugs` only.
#[cfg(not(feature = "bugs"))]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bug {}

/// What a machine is made from.
#[derive(Debug)]
pub(super) struct Origin {
    pub(super) config: Config,
    pub(super) seed: u64,
    pub(super) at: Timestamp,
    pub(super) entries: Vec<Entry>,
    /// The rule that the machine breaks on purpose.
    #[cfg_attr(
        not(feature = "bugs"),
        allow(dead_code, reason = "a machine without the feature breaks none")
    )]
    pub(super) bug: Option<Bug>,
}

impl Origin {
    /// Makes the machine, as a start of our process does.
    pub(super) fn make(&self) -> (Machine, Effects) {
        let mut recovery =
            Recovery::new(self.config.clone(), self.seed).expect("the configuration is good");
        for entry in &self.entries {
            if let Err(error) = recovery.push(entry) {
                panic!("8: batch {} does not fit: {error}", entry.seq);
            }
        }
        #[cfg(feature = "bugs")]
        if let Some(bug) = self.bug {
            recovery = recovery.with_bug(bug);
        }
        recovery.finish(self.at)
    }

    /// The same with a checkpoint in place of so many batches.
    pub(super) fn compacted(self, count: usize) -> Self {
        let (covered, rest) = self.entries.split_at(count);
        let Some(last) = covered.last() else {
            return self;
        };
        let mut durable = Durable::default();
        for record in covered.iter().flat_map(|entry| &entry.records) {
            if let Err(error) = durable.apply(record) {
                panic!("8: a record does not fit: {error}: {record:?}");
            }
        }
        let checkpoint = Entry {
            seq: last.seq,
            at: last.at,
            records: vec![durable.checkpoint()],
        };
        let entries = std::iter::once(checkpoint).chain(rest.iter().cloned());
        let (whole, first) = self.make();
        let compacted = Self {
            entries: entries.collect(),
            ..self
        };
        let (machine, effects) = compacted.make();
        assert!(
            machine.durable() == whole.durable() && effects == first,
            "8: a checkpoint makes another machine than what it covers"
        );
        compacted
    }
}

/// How far a connection is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reached {
    /// Asked for.
    Opening,
    /// There.
    Open(Conn),
    /// Its end was told, or is about to be.
    Closed,
}

/// A step, kept to be played again.
#[derive(Debug)]
pub(super) struct Kept {
    pub(super) at: Timestamp,
    pub(super) input: Input,
    pub(super) effects: Effects,
}

#[derive(Debug)]
pub(super) struct Life {
    pub(super) number: u32,
    pub(super) machine: Machine,
    pub(super) origin: Origin,
    /// What making it led to.
    pub(super) first: Effects,
    pub(super) kept: Option<Vec<Kept>>,
    pub(super) deadline: Option<Timestamp>,
    pub(super) epochs: BTreeMap<Epoch, Reached>,
    pub(super) steps: u64,
    pub(super) halted: bool,
    /// The connection has ended and does not come back.
    pub(super) ended: bool,
}
