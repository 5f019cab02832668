//! Where records are kept: nowhere, or in a store behind one writer thread with group commit.

mod file;
mod files;
mod memory;
mod store;
#[cfg(test)]
mod tests;
mod writer;

use std::{
    fs, io,
    path::{Path, PathBuf},
    task::{Context, Poll},
};

use tracing::warn;
use turnkeep_core::{
    Batch, Durability, Input, JournalSeq, Record, Timestamp, codec::journal::Entry,
    error::RecordError,
};

pub(crate) use self::files::{make_private, private};
use self::{
    file::FileStore,
    files::{Disk, io_error},
    writer::Writer,
};
pub use self::{
    file::JOURNAL_FILE,
    files::LOCK_FILE,
    memory::MemoryJournal,
    store::{Group, Holder, JournalReport, Line, Opened, Reader, Store, TornTail},
};
use crate::{config::JournalConfig, error::OpenJournalError};

/// The files of the journal in a directory that count, oldest first: those that the next client
/// would read. They need not be whole.
///
/// # Errors
///
/// What the system says.
pub fn journal_files(directory: impl AsRef<Path>) -> io::Result<Vec<PathBuf>> {
    let directory = directory.as_ref();
    let mut names = Vec::new();
    for entry in fs::read_dir(directory)? {
        names.extend(entry?.file_name().into_string());
    }
    let disk = Disk::new(directory.to_owned());
    let segments = file::segments_of(names);
    let start = file::start_of(&disk, &segments)?;
    let counting = segments.iter().skip(start);
    Ok(counting.map(|name| directory.join(name)).collect())
}

/// The journal of a client, seen from the driver.
#[derive(Debug)]
pub(crate) enum Journal {
    Nowhere { last: JournalSeq },
    Kept(Writer),
}

impl Journal {
    /// Takes a journal and hands over what it holds, in order. May block.
    pub(crate) fn open(
        config: &JournalConfig,
        mut sink: impl FnMut(&Entry) -> Result<(), RecordError>,
    ) -> Result<(Self, JournalReport), OpenJournalError> {
        let mut store: Box<dyn Store> = match config {
            JournalConfig::Memory => {
                let last = JournalSeq::default();
                return Ok((Self::Nowhere { last }, JournalReport::default()));
            }
            JournalConfig::Directory(directory) => Box::new(FileStore::new(
                Disk::new(directory.path.clone()),
                directory.segment_bytes,
            )),
            JournalConfig::Store(make) => make.make(),
        };
        let mut reader = Reader::new(&mut sink);
        let opened = store.open(&mut reader)?;
        let report = reader.report(opened);
        if let Some(torn) = &report.torn {
            warn!(path = %torn.path.display(), offset = torn.offset, bytes = torn.bytes,
                "the journal's torn tail is cut off; it was never confirmed");
        }
        let writer = Writer::start(store, report.last);
        let writer = writer.map_err(io_error("start the writer of", config.name()))?;
        Ok((Self::Kept(writer), report))
    }

    /// Appends a batch; gives the answer back where there is nothing to wait for.
    pub(crate) fn append(&mut self, batch: Batch) -> Option<Input> {
        match self {
            Self::Nowhere { last } => {
                *last = batch.through;
                Some(Input::Appended {
                    through: batch.through,
                })
            }
            Self::Kept(writer) => writer.append(batch),
        }
    }

    /// Whether a checkpoint of this moment should be handed in.
    pub(crate) fn wants_checkpoint(&self) -> bool {
        match self {
            Self::Nowhere { .. } => false,
            Self::Kept(writer) => writer.wants_checkpoint(),
        }
    }

    /// Puts a checkpoint in place of all batches that were handed in.
    pub(crate) fn checkpoint(
        &mut self,
        (through, record): (JournalSeq, Record),
        at: Timestamp,
    ) -> Option<Input> {
        match self {
            Self::Nowhere { .. } => None,
            Self::Kept(writer) => writer.checkpoint(Batch {
                through,
                durability: Durability::Synced,
                at,
                records: vec![record],
            }),
        }
    }

    /// Waits for the next answer of the writer.
    pub(crate) async fn answer(&mut self) -> Input {
        std::future::poll_fn(|cx| self.poll_answer(cx)).await
    }

    pub(crate) fn poll_answer(&mut self, cx: &mut Context<'_>) -> Poll<Input> {
        match self {
            Self::Nowhere { .. } => Poll::Pending,
            Self::Kept(writer) => writer.poll_answer(cx),
        }
    }

    /// Whether nothing is on its way any more.
    pub(crate) fn is_idle(&self) -> bool {
        match self {
            Self::Nowhere { .. } => true,
            Self::Kept(writer) => writer.is_idle(),
        }
    }

    /// The last batch that is as durable as it asked to be.
    pub(crate) fn confirmed(&self) -> JournalSeq {
        match self {
            Self::Nowhere { last } => *last,
            Self::Kept(writer) => writer.confirmed(),
        }
    }

    /// Whether a batch of this life is as durable as it asked to be.
    pub(crate) fn has_confirmed(&self) -> bool {
        match self {
            Self::Nowhere { last } => *last > JournalSeq(0),
            Self::Kept(writer) => writer.has_confirmed(),
        }
    }

    /// Waits until the writer is done and the lock is free; tells whether all is durable.
    pub(crate) async fn finish(&mut self) -> bool {
        match self {
            Self::Nowhere { .. } => true,
            Self::Kept(writer) => writer.finish().await,
        }
    }
}

/// A journal without a client around it: for benchmarks.
#[doc(hidden)]
#[derive(Debug)]
pub struct BareJournal(Journal);

impl BareJournal {
    /// Takes a journal and hands over what it holds.
    ///
    /// # Errors
    ///
    /// See [`OpenJournalError`].
    pub fn open(
        config: &JournalConfig,
        sink: impl FnMut(&Entry) -> Result<(), RecordError>,
    ) -> Result<(Self, JournalReport), OpenJournalError> {
        let (journal, report) = Journal::open(config, sink)?;
        Ok((Self(journal), report))
    }

    /// Hands a batch in.
    pub fn append(&mut self, batch: Batch) {
        let _ = self.0.append(batch);
    }

    /// Waits for the next answer; gives the last batch that is confirmed.
    pub async fn confirmed(&mut self) -> JournalSeq {
        let _ = self.0.answer().await;
        self.0.confirmed()
    }

    /// Waits until all is durable and the journal is free.
    pub async fn finish(mut self) -> bool {
        self.0.finish().await
    }
}
