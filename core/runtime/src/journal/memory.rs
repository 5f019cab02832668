//! A journal in memory that outlives its client: for tests that start again on what it holds.

use std::{
    io,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use super::store::{Group, Holder, Line, Opened, Reader, Store, nowhere};
use crate::{config::JournalConfig, error::OpenJournalError};

/// A journal in memory. Clones are the same journal, and the next client that is given one of them
/// goes on from what the last one wrote.
///
/// ```
/// # use turnkeep_runtime::{ClientConfig, MemoryJournal};
/// let journal = MemoryJournal::new();
/// let mut config = ClientConfig::codex();
/// config.journal = journal.config();
/// ```
#[derive(Clone, Debug, Default)]
pub struct MemoryJournal {
    kept: Arc<Mutex<Kept>>,
}

#[derive(Debug, Default)]
struct Kept {
    is_held: bool,
    /// After how many bytes a checkpoint is wanted, if ever.
    bound: Option<usize>,
    bytes: Vec<u8>,
    /// How many of them are a checkpoint.
    checkpoint: usize,
}

impl MemoryJournal {
    /// Makes an empty one.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Makes one that holds what another one held.
    #[must_use]
    pub fn with_bytes(bytes: Vec<u8>) -> Self {
        let new = Self::new();
        new.lock().bytes = bytes;
        new
    }

    /// Asks for a checkpoint whenever more than so many bytes were appended.
    #[must_use]
    pub fn checkpoint_after(self, bytes: usize) -> Self {
        self.lock().bound = Some(bytes);
        self
    }

    /// A configuration that keeps the journal here.
    #[must_use]
    pub fn config(&self) -> JournalConfig {
        let journal = self.clone();
        JournalConfig::store(move || Box::new(Held(journal.clone(), false)))
    }

    /// All lines that it holds.
    #[must_use]
    pub fn bytes(&self) -> Vec<u8> {
        self.lock().bytes.clone()
    }

    fn lock(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The journal in the hands of a client, and whether those took it.
struct Held(MemoryJournal, bool);

impl Store for Held {
    fn open(&mut self, reader: &mut Reader<'_>) -> Result<Opened, OpenJournalError> {
        let mut kept = self.0.lock();
        if kept.is_held {
            return Err(OpenJournalError::Locked {
                path: nowhere().to_owned(),
                holder: Some(Holder::us()),
            });
        }
        reader.file(nowhere());
        for line in kept.bytes.split_inclusive(|b| *b == b'\n') {
            reader.line(line)?;
        }
        kept.is_held = true;
        self.1 = true;
        Ok(Opened::default())
    }

    fn append(&mut self, group: &Group) -> io::Result<()> {
        self.0.lock().bytes.extend_from_slice(group.bytes());
        Ok(())
    }

    fn wants_checkpoint(&self) -> bool {
        let kept = self.0.lock();
        let since = kept.bytes.len().saturating_sub(kept.checkpoint);
        kept.bound
            .is_some_and(|bound| since > bound.max(kept.checkpoint.saturating_mul(2)))
    }

    fn checkpoint(&mut self, checkpoint: Line<'_>) -> io::Result<()> {
        let mut kept = self.0.lock();
        kept.bytes = checkpoint.bytes.to_vec();
        kept.checkpoint = checkpoint.bytes.len();
        Ok(())
    }

    fn close(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        if self.1 {
            self.0.lock().is_held = false;
        }
    }
}
