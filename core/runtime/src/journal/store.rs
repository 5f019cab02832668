//! What a place must do that keeps a journal: the file does it, and others can.

use std::{
    fmt, io,
    path::{Path, PathBuf},
};

use turnkeep_core::{
    Batch, Durability, JournalSeq, Timestamp,
    codec::journal::{self, Decoder, Entry},
    error::RecordError,
};

use crate::error::OpenJournalError;

/// A place that keeps the lines of a journal, in order: a directory of files by default, or a
/// database.
///
/// A store knows bytes and numbers only. It gives back what it was given, and everything that a line
/// says of itself, its checksum above all, is checked by who reads it.
///
/// One thread calls it, and it may block there. An error of [`append`](Self::append) or
/// [`checkpoint`](Self::checkpoint) is the end: the store is dropped and the client halts, since
/// after a failed write or sync nobody knows what the disk holds.
pub trait Store: Send {
    /// Takes the journal for this client alone and hands all that it holds to the reader: the last
    /// checkpoint, where there is one, then what was appended after it.
    ///
    /// When it returns, what was read is durable.
    ///
    /// # Errors
    ///
    /// It is held by another client, or cannot be read; or the reader refuses a line. Nothing has
    /// changed then.
    fn open(&mut self, reader: &mut Reader<'_>) -> Result<Opened, OpenJournalError>;

    /// Appends a group of batches. Once it returns they are as durable as the group asks, and with
    /// a synced group everything before it is.
    ///
    /// # Errors
    ///
    /// What the system says.
    fn append(&mut self, group: &Group) -> io::Result<()>;

    /// Whether a checkpoint would make the journal much shorter.
    fn wants_checkpoint(&self) -> bool {
        false
    }

    /// Puts a checkpoint in place of all that was appended: durable before anything is dropped, so
    /// that a crash leaves one or the other.
    ///
    /// # Errors
    ///
    /// What the system says.
    fn checkpoint(&mut self, checkpoint: Line<'_>) -> io::Result<()>;

    /// Makes durable what is not yet, and frees the journal for the next client.
    ///
    /// # Errors
    ///
    /// What the system says.
    fn close(&mut self) -> io::Result<()>;
}

/// One batch as it is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Line<'a> {
    /// The number of the batch; that of a checkpoint is the last batch that it stands for.
    pub seq: JournalSeq,
    /// The whole line, with its line feed.
    pub bytes: &'a [u8],
}

impl<'a> Line<'a> {
    pub(super) fn new(seq: JournalSeq, bytes: &'a [u8]) -> Self {
        Self { seq, bytes }
    }
}

/// Batches that are appended together.
#[derive(Debug)]
pub struct Group {
    bytes: Vec<u8>,
    /// The number of each line and where it ends.
    lines: Vec<(JournalSeq, usize)>,
    durability: Durability,
}

impl Group {
    pub(super) fn new() -> Self {
        Self {
            bytes: Vec::new(),
            lines: Vec::new(),
            durability: Durability::Buffered,
        }
    }

    pub(super) fn clear(&mut self) {
        self.bytes.clear();
        self.lines.clear();
        self.durability = Durability::Buffered;
    }

    pub(super) fn push(&mut self, batch: &Batch) {
        journal::encode_into(batch, &mut self.bytes);
        self.lines.push((batch.through, self.bytes.len()));
        self.durability = self.durability.max(batch.durability);
    }

    /// The largest durability that one of the batches asks for.
    #[must_use]
    pub fn durability(&self) -> Durability {
        self.durability
    }

    /// All lines, one behind the other.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// The lines one by one.
    pub fn lines(&self) -> impl Iterator<Item = Line<'_>> {
        let mut start = 0;
        self.lines.iter().map(move |(seq, end)| {
            let bytes = self.bytes.get(start..*end).unwrap_or_default();
            start = *end;
            Line::new(*seq, bytes)
        })
    }

    /// The number of the first batch.
    #[must_use]
    pub fn first(&self) -> JournalSeq {
        self.lines.first().map(|(seq, _)| *seq).unwrap_or_default()
    }

    /// The number of the last batch.
    #[must_use]
    pub fn last(&self) -> JournalSeq {
        self.lines.last().map(|(seq, _)| *seq).unwrap_or_default()
    }
}

/// What takes the lines of a journal as it is opened. It checks each, so that a store need not.
pub struct Reader<'a> {
    decoder: Decoder,
    path: PathBuf,
    batches: u64,
    at: Timestamp,
    sink: &'a mut dyn FnMut(&Entry) -> Result<(), RecordError>,
}

impl<'a> Reader<'a> {
    pub(super) fn new(sink: &'a mut dyn FnMut(&Entry) -> Result<(), RecordError>) -> Self {
        Self {
            decoder: Decoder::new(),
            path: PathBuf::new(),
            batches: 0,
            at: Timestamp(0),
            sink,
        }
    }

    /// Says where the lines from here on stand: errors name it, and count from there.
    pub fn file(&mut self, path: impl Into<PathBuf>) {
        self.path = path.into();
        self.decoder.next_file();
    }

    /// Takes a line, whole, with its line feed.
    ///
    /// # Errors
    ///
    /// It is damaged, unknown, out of order, or its records make no state. The store returns the
    /// error as it is.
    pub fn line(&mut self, line: &[u8]) -> Result<(), OpenJournalError> {
        let Some(line) = line.strip_suffix(b"\n") else {
            return Err(self.damaged("the line has no end"));
        };
        let (offset, index) = (self.decoder.offset(), self.decoder.index());
        let entry = self.decoder.line(line).map_err(|e| self.unreadable(e))?;
        (self.sink)(&entry).map_err(|source| OpenJournalError::Record {
            path: self.path.clone(),
            offset,
            index,
            source,
        })?;
        self.batches += 1;
        self.at = self.at.max(entry.at);
        Ok(())
    }

    /// Looks at what follows the last whole line of all, where there is anything: the store cuts it
    /// off, since it was never confirmed.
    ///
    /// # Errors
    ///
    /// It is the beginning of something else than a journal. The store returns the error as it is.
    pub fn tail(&self, rest: &[u8]) -> Result<(), OpenJournalError> {
        self.decoder.tail(rest).map_err(|e| self.unreadable(e))
    }

    /// Makes the error for a line that follows here and does not fit.
    #[must_use]
    pub fn damaged(&self, reason: &str) -> OpenJournalError {
        self.unreadable(self.decoder.damaged(reason.into()))
    }

    /// The last batch that was read; that of a checkpoint is the last that it stands for.
    #[must_use]
    pub fn last(&self) -> Option<JournalSeq> {
        self.decoder.last()
    }

    /// Where the next line begins in its file, in bytes.
    #[must_use]
    pub fn offset(&self) -> u64 {
        self.decoder.offset()
    }

    fn unreadable(&self, source: journal::JournalError) -> OpenJournalError {
        OpenJournalError::Unreadable {
            path: self.path.clone(),
            source,
        }
    }

    pub(super) fn report(&self, opened: Opened) -> JournalReport {
        JournalReport {
            batches: self.batches,
            last: self.last().unwrap_or_default(),
            at: (self.batches > 0).then_some(self.at),
            torn: opened.torn,
            removed: opened.removed,
        }
    }
}

impl fmt::Debug for Reader<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reader")
            .field("path", &self.path)
            .field("offset", &self.offset())
            .field("last", &self.last())
            .finish_non_exhaustive()
    }
}

/// What a store found, beside the lines.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Opened {
    /// What was cut off.
    pub torn: Option<TornTail>,
    /// What a crash had left behind and was removed.
    pub removed: Vec<PathBuf>,
}

/// The end of a journal that a crash had cut in the middle of a line. It was never confirmed.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TornTail {
    /// The file.
    pub path: PathBuf,
    /// Where it was cut off, in bytes.
    pub offset: u64,
    /// How many bytes were cut off.
    pub bytes: u64,
}

impl TornTail {
    /// Says what was cut off, and where.
    #[must_use]
    pub fn new(path: impl Into<PathBuf>, offset: u64, bytes: u64) -> Self {
        Self {
            path: path.into(),
            offset,
            bytes,
        }
    }
}

/// What a client found in its journal when it started.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct JournalReport {
    /// How many batches were read; a checkpoint is one.
    pub batches: u64,
    /// The last of them, 0 where there was none.
    pub last: JournalSeq,
    /// The latest moment that they tell.
    pub at: Option<Timestamp>,
    /// What was cut off.
    pub torn: Option<TornTail>,
    /// What a crash had left behind and was removed.
    pub removed: Vec<PathBuf>,
}

/// The process that holds a journal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Holder {
    /// Its process id.
    pub pid: u32,
    /// When it started, as the system tells it.
    pub start_time: Option<u64>,
}

impl Holder {
    /// This process.
    #[must_use]
    pub fn us() -> Self {
        let pid = std::process::id();
        Self {
            pid,
            start_time: crate::transport::start_time(pid),
        }
    }

    /// Reads what [`line`](Self::line) wrote.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let mut words = text.split_ascii_whitespace();
        Some(Self {
            pid: words.next()?.parse().ok()?,
            start_time: words.next().and_then(|word| word.parse().ok()),
        })
    }

    pub(super) fn line(self) -> String {
        match self.start_time {
            Some(start) => format!("{} {start}\n", self.pid),
            None => format!("{}\n", self.pid),
        }
    }
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "process {}", self.pid)
    }
}

/// The path that errors name where a store has no file.
pub(super) fn nowhere() -> &'static Path {
    Path::new("the journal in memory")
}
