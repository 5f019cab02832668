//! A journal in the files of a directory: segments, oldest first.
//!
//! A segment is named after its first batch, `journal-00000000000000000042.jsonl`. It begins with
//! that batch, or with a checkpoint that stands for all batches up to it; then what is before that
//! segment no longer counts, whether it is still there or not. An old `journal.jsonl` counts as the
//! first segment.

use std::io::{self, BufRead as _, BufReader, Read as _};

use tracing::debug;
use turnkeep_core::{Durability, JournalSeq, codec::journal::is_checkpoint_line};

use super::{
    files::{Files, io_error},
    store::{Group, Line, Opened, Reader, Store, TornTail},
};
use crate::error::OpenJournalError;

/// The name of the one file that a journal was before there were segments.
pub const JOURNAL_FILE: &str = "journal.jsonl";

/// What a segment is called until it is whole.
const UNFINISHED: &str = ".new";

/// How much of a line tells whether it is a checkpoint.
const HEAD: u64 = 256;

/// The segment that begins with a batch.
fn name_of(first: JournalSeq) -> String {
    format!("journal-{:020}.jsonl", first.0)
}

/// The batch that a segment begins with, by its name.
fn first_of(name: &str) -> Option<JournalSeq> {
    if name == JOURNAL_FILE {
        return Some(JournalSeq(1));
    }
    let digits = name.strip_prefix("journal-")?.strip_suffix(".jsonl")?;
    let first = JournalSeq(digits.parse().ok()?);
    (name_of(first) == name).then_some(first)
}

fn is_unfinished(name: &str) -> bool {
    name.strip_suffix(UNFINISHED).and_then(first_of).is_some()
}

/// The segments among the names of a directory, oldest first.
pub(super) fn segments_of(names: Vec<String>) -> Vec<String> {
    let mut found: Vec<(JournalSeq, bool, String)> = names
        .into_iter()
        .filter_map(|name| Some((first_of(&name)?, name != JOURNAL_FILE, name)))
        .collect();
    found.sort();
    found.into_iter().map(|(_, _, name)| name).collect()
}

/// Where reading begins: at the newest segment whose checkpoint is whole, else at the oldest.
pub(super) fn start_of<F: Files>(files: &F, segments: &[String]) -> io::Result<usize> {
    for (at, name) in segments.iter().enumerate().rev() {
        let mut input = BufReader::new(files.read(name)?);
        let mut head = Vec::new();
        input.by_ref().take(HEAD).read_until(b'\n', &mut head)?;
        if is_checkpoint_line(&head) && (head.ends_with(b"\n") || has_line_end(input)?) {
            return Ok(at);
        }
    }
    Ok(0)
}

fn has_line_end(mut input: impl io::BufRead) -> io::Result<bool> {
    loop {
        let block = input.fill_buf()?;
        if block.is_empty() || block.contains(&b'\n') {
            return Ok(!block.is_empty());
        }
        let length = block.len();
        input.consume(length);
    }
}

pub(super) struct FileStore<F: Files> {
    files: F,
    /// How long a segment may grow, and the journal after its checkpoint, at least.
    bound: u64,
    /// The names of what counts, oldest first. The last one is written to.
    segments: Vec<String>,
    current: Option<Current<F::File>>,
    /// The length of the checkpoint.
    checkpoint: u64,
    /// How many bytes were appended after it.
    since: u64,
}

struct Current<T> {
    file: T,
    /// How many bytes were appended to it, a checkpoint left out.
    bytes: u64,
    is_synced: bool,
}

impl<T> Current<T> {
    fn new(file: T, bytes: u64) -> Self {
        Self {
            file,
            bytes,
            is_synced: true,
        }
    }
}

/// What reading a segment found.
#[derive(Default)]
struct Found {
    /// How many bytes of whole lines it has.
    length: u64,
    /// The length of its checkpoint, where it begins with one.
    checkpoint: u64,
    torn: Option<TornTail>,
    /// Whether it was to begin with a checkpoint of which not one line is there: what that stands
    /// for is in the segments before it.
    is_void: bool,
}

/// What was read, as far as it is not in the store.
#[derive(Default)]
struct Read {
    /// How many bytes of the last segment follow its checkpoint.
    bytes: u64,
    /// Whether the last segment holds anything, be it torn.
    is_filled: bool,
    torn: Option<TornTail>,
    void: Option<String>,
}

impl<F: Files> FileStore<F> {
    pub(super) fn new(files: F, bound: u64) -> Self {
        Self {
            files,
            bound: bound.max(1),
            segments: Vec::new(),
            current: None,
            checkpoint: 0,
            since: 0,
        }
    }

    /// Reads what counts, and changes nothing.
    fn read(&mut self, reader: &mut Reader<'_>) -> Result<Read, OpenJournalError> {
        let mut read = Read::default();
        for at in 0..self.segments.len() {
            let found = self.read_segment(at, reader)?;
            read.torn = found.torn.clone();
            if found.is_void {
                // Nothing but the last one can be void.
                read.void = self.segments.pop();
                break;
            }
            read.bytes = found.length - found.checkpoint;
            read.is_filled = found.length > 0 || found.torn.is_some();
            self.checkpoint += found.checkpoint;
            self.since += read.bytes;
        }
        Ok(read)
    }

    fn read_segment(&self, at: usize, reader: &mut Reader<'_>) -> Result<Found, OpenJournalError> {
        let is_last = at + 1 == self.segments.len();
        let name = self.segments.get(at).map_or("", |name| name);
        let path = self.files.path(name);
        let before = reader.last();
        reader.file(&path);
        let input = self.files.read(name).map_err(io_error("read", &path))?;
        let mut input = BufReader::with_capacity(64 << 10, input);
        let mut line = Vec::new();
        let mut found = Found::default();
        loop {
            line.clear();
            let read = input.read_until(b'\n', &mut line);
            let length = read.map_err(io_error("read", &path))? as u64;
            if length == 0 {
                break;
            }
            if line.last() != Some(&b'\n') && is_last {
                reader.tail(&line)?;
                found.torn = Some(TornTail::new(&path, found.length, length));
                break;
            }
            reader.line(&line)?;
            if found.length == 0 {
                if reader.last() != first_of(name) {
                    return Err(reader.damaged("the file is named after another batch"));
                }
                found.checkpoint = if is_checkpoint_line(&line) { length } else { 0 };
            }
            found.length += length;
        }
        if found.length == 0 {
            let next = before.map_or(Some(JournalSeq(1)), JournalSeq::next);
            found.is_void = is_last && before.is_some() && first_of(name) == before;
            if first_of(name) != next && !found.is_void {
                return Err(reader.damaged("batches before it are missing"));
            }
        }
        Ok(found)
    }

    /// Makes durable what was read, and only then removes what does not count.
    fn repair(&mut self, read: &Read, remove: &[String]) -> Result<(), OpenJournalError> {
        for name in &self.segments {
            let path = self.files.path(name);
            let mut file = self.files.open(name).map_err(io_error("open", &path))?;
            if let Some(torn) = read.torn.as_ref().filter(|torn| torn.path == path) {
                let cut = self.files.cut(&mut file, torn.offset);
                cut.map_err(io_error("cut", &path))?;
            }
            if read.is_filled || self.segments.last() != Some(name) {
                let synced = self.files.sync(&mut file);
                synced.map_err(io_error("sync", &path))?;
            }
            self.current = Some(Current::new(file, read.bytes));
        }
        self.sync_names()?;
        for name in remove {
            let removed = self.files.remove(name);
            removed.map_err(io_error("remove", self.files.path(name)))?;
        }
        Ok(())
    }

    fn sync_names(&self) -> Result<(), OpenJournalError> {
        let synced = self.files.sync_names();
        synced.map_err(io_error("sync", self.files.path("")))
    }

    /// Begins a segment with the batch that comes next.
    fn begin(&mut self, first: JournalSeq) -> io::Result<()> {
        if let Some(full) = self.current.as_mut().filter(|c| !c.is_synced) {
            // What follows must not be durable before what it follows.
            self.files.sync(&mut full.file)?;
        }
        let name = name_of(first);
        let file = self.files.create(&name)?;
        self.files.sync_names()?;
        debug!(%name, "a segment begins");
        self.current = Some(Current::new(file, 0));
        self.segments.push(name);
        Ok(())
    }
}

impl<F: Files> Store for FileStore<F> {
    fn open(&mut self, reader: &mut Reader<'_>) -> Result<Opened, OpenJournalError> {
        self.files.lock()?;
        let directory = self.files.path("");
        let names = self.files.names().map_err(io_error("list", &directory))?;
        let (mut remove, names) = names.into_iter().partition(|name| is_unfinished(name));
        self.segments = segments_of(names);
        let start = start_of(&self.files, &self.segments).map_err(io_error("read", &directory))?;
        remove.extend(self.segments.drain(..start));
        let read = self.read(reader)?;
        remove.extend(read.void.clone());
        self.repair(&read, &remove)?;
        if self.segments.is_empty() {
            let begun = self.begin(JournalSeq(1));
            begun.map_err(io_error("begin a segment in", &directory))?;
        }
        let removed = remove.iter().map(|name| self.files.path(name)).collect();
        let torn = read.torn;
        Ok(Opened { torn, removed })
    }

    fn append(&mut self, group: &Group) -> io::Result<()> {
        self.add(group).map_err(|error| self.named(error))
    }

    fn wants_checkpoint(&self) -> bool {
        self.since > self.bound.max(self.checkpoint.saturating_mul(2))
    }

    fn checkpoint(&mut self, checkpoint: Line<'_>) -> io::Result<()> {
        self.replace(checkpoint).map_err(|error| self.named(error))
    }

    fn close(&mut self) -> io::Result<()> {
        let unsynced = self.current.take().filter(|current| !current.is_synced);
        let synced = match unsynced {
            Some(mut current) => self.files.sync(&mut current.file),
            None => Ok(()),
        };
        // Only now may the next client take the journal.
        self.files.unlock();
        synced.map_err(|error| self.named(error))
    }
}

impl<F: Files> FileStore<F> {
    /// Says where an error happened.
    fn named(&self, error: io::Error) -> io::Error {
        let path = self.files.path("");
        io::Error::new(error.kind(), format!("{}: {error}", path.display()))
    }

    fn add(&mut self, group: &Group) -> io::Result<()> {
        if self.current.as_ref().is_none_or(|c| c.bytes >= self.bound) {
            self.begin(group.first())?;
        }
        let Some(current) = &mut self.current else {
            return Err(io::ErrorKind::NotConnected.into());
        };
        self.files.write(&mut current.file, group.bytes())?;
        current.is_synced = match group.durability() {
            Durability::Synced => {
                self.files.sync(&mut current.file)?;
                true
            }
            Durability::Buffered => false,
        };
        current.bytes += group.bytes().len() as u64;
        self.since += group.bytes().len() as u64;
        Ok(())
    }

    fn replace(&mut self, checkpoint: Line<'_>) -> io::Result<()> {
        let name = name_of(checkpoint.seq);
        let unfinished = format!("{name}{UNFINISHED}");
        let mut file = self.files.create(&unfinished)?;
        self.files.write(&mut file, checkpoint.bytes)?;
        self.files.sync(&mut file)?;
        self.files.rename(&unfinished, &name)?;
        self.files.sync_names()?;
        self.current = Some(Current::new(file, 0));
        self.checkpoint = checkpoint.bytes.len() as u64;
        self.since = 0;
        for old in std::mem::take(&mut self.segments) {
            // The new segment may have taken the place of one that held its last batch alone.
            if old != name {
                self.files.remove(&old)?;
            }
        }
        debug!(%name, bytes = self.checkpoint, "a checkpoint");
        self.segments.push(name);
        Ok(())
    }
}
