//! The disk under the journal: what is handed to it is written, then synced, or lost on the way.

use std::collections::VecDeque;

use turnkeep_core::{
    Batch, Durability, JournalSeq,
    codec::journal::{self, Entry},
};

use super::rng::Rng;

#[derive(Debug)]
struct Write {
    through: JournalSeq,
    bytes: Vec<u8>,
    synced: bool,
}

/// How a write came out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Written {
    Through(JournalSeq),
    Failed,
}

#[derive(Debug)]
pub(super) struct Disk {
    rng: Rng,
    file: Vec<u8>,
    /// So many bytes of the file survive the loss of power.
    synced: usize,
    queue: VecDeque<Write>,
    /// What is being written.
    flying: Vec<Write>,
    failing: bool,
}

impl Disk {
    pub(super) fn new(seed: u64) -> Self {
        Self {
            rng: Rng::new(seed, 3),
            file: Vec::new(),
            synced: 0,
            queue: VecDeque::new(),
            flying: Vec::new(),
            failing: false,
        }
    }

    pub(super) fn append(&mut self, batch: &Batch) {
        self.queue.push_back(Write {
            through: batch.through,
            bytes: journal::encode(batch),
            synced: batch.durability == Durability::Synced,
        });
    }

    /// Begins to write what waits, unless something is being written. Whether it did.
    pub(super) fn start(&mut self, failing: bool) -> bool {
        if !self.flying.is_empty() || self.queue.is_empty() {
            return false;
        }
        // Group commit: what waits may go together.
        let count = match self.rng.below(3) {
            0 => 1,
            _ => self.queue.len(),
        };
        self.flying = self.queue.drain(..count).collect();
        self.failing = failing;
        true
    }

    /// What was being written is written.
    pub(super) fn done(&mut self) -> Option<Written> {
        let last = self.flying.last()?.through;
        if self.failing {
            self.tear();
            self.queue.clear();
            return Some(Written::Failed);
        }
        let mut synced = false;
        for write in self.flying.drain(..) {
            self.file.extend(write.bytes);
            synced |= write.synced;
        }
        if synced {
            self.synced = self.file.len();
        }
        Some(Written::Through(last))
    }

    /// Of what was being written some part is.
    fn tear(&mut self) {
        let bytes: Vec<u8> = self.flying.drain(..).flat_map(|w| w.bytes).collect();
        let some = match self.rng.below(3) {
            0 => 0,
            1 => bytes.len(),
            _ => self.rng.at(bytes.len() + 1),
        };
        self.file.extend(&bytes[..some]);
    }

    /// Our process is gone; what it had written is not.
    pub(super) fn process_ends(&mut self) {
        self.tear();
        self.queue.clear();
    }

    /// The machine lost its power: what was not synced is there up to some byte.
    pub(super) fn power_lost(&mut self) {
        self.process_ends();
        let some = match self.rng.below(3) {
            0 => self.synced,
            _ => self.synced + self.rng.at(self.file.len() - self.synced + 1),
        };
        self.file.truncate(some);
    }

    /// Reads it back, as a start does: a torn tail is cut, and the rest is synced.
    ///
    /// # Panics
    ///
    /// It is damaged before its tail.
    pub(super) fn read(&mut self) -> Vec<Entry> {
        let read = journal::decode(&self.file).expect("the journal reads back");
        if let Some(torn) = read.torn {
            self.file
                .truncate(usize::try_from(torn).expect("it is within the file"));
        }
        self.synced = self.file.len();
        read.entries.into_iter().map(|(_, entry)| entry).collect()
    }

    /// Puts other batches in place of all that is written, as a compaction does.
    pub(super) fn replace(&mut self, entries: &[Entry]) {
        self.file.clear();
        for entry in entries {
            self.file.extend(journal::encode(&Batch {
                through: entry.seq,
                durability: Durability::Synced,
                at: entry.at,
                records: entry.records.clone(),
            }));
        }
        self.synced = self.file.len();
    }

    /// All batches that were handed out, written or not.
    pub(super) fn handed(&self) -> Vec<u8> {
        let mut bytes = self.file.clone();
        for write in self.flying.iter().chain(&self.queue) {
            bytes.extend(&write.bytes);
        }
        bytes
    }

    pub(super) fn len(&self) -> usize {
        self.file.len()
    }

    pub(super) fn is_idle(&self) -> bool {
        self.flying.is_empty() && self.queue.is_empty()
    }
}
