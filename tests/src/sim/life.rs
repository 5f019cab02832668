//! One life of our process: a machine, what it was made from, and what it was told.

use std::collections::BTreeMap;

use turnkeep_core::{
    Config, Effects, Epoch, Input, JournalSeq, Machine, Record, Timestamp,
    codec::journal::Entry,
};

use super::server::Conn;

/// What a machine is made from.
#[derive(Debug)]
pub(super) struct Origin {
    pub(super) config: Config,
    pub(super) seed: u64,
    pub(super) at: Timestamp,
    pub(super) entries: Vec<Entry>,
}

impl Origin {
    /// Makes the machine, as a start of our process does.
    pub(super) fn make(&self) -> (Machine, Effects) {
        Machine::new(self.config.clone(), self.seed, self.at).expect("the configuration is good")
    }
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Orphan { pub(super) pid: u32, pub(super) start_time: Option<u64> }

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
    /// A checkpoint that was taken on the way, with the last batch that it covers.
    pub(super) checkpoint: Option<(JournalSeq, Record)>,
}
