//! Where records are kept: nowhere, or in a file behind one writer thread with group commit.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Read as _, Seek as _, Write as _},
    path::Path,
    sync::mpsc as std_mpsc,
    thread,
};

use tokio::sync::{mpsc, oneshot};
use tracing::{debug, error};
use turnkeep_core::{Batch, Durability, Input, JournalSeq, codec::journal};

use crate::{config::JournalConfig, error::OpenJournalError};

/// The journal's name in its directory.
pub const JOURNAL_FILE: &str = "journal.jsonl";

/// The name of the file in the journal's directory that its holder locks and writes its pid to.
pub const LOCK_FILE: &str = "lock";

/// The journal of a client.
#[derive(Debug)]
pub(crate) enum Journal {
    Memory { last: JournalSeq },
    File(FileJournal),
}

/// A journal in a file, seen from the driver.
#[derive(Debug)]
pub(crate) struct FileJournal {
    batches: Option<std_mpsc::Sender<Batch>>,
    answers: mpsc::UnboundedReceiver<Input>,
    done: Option<oneshot::Receiver<bool>>,
    handed: JournalSeq,
    confirmed: JournalSeq,
    failed: bool,
}

impl Journal {
    pub(crate) fn open(config: &JournalConfig) -> Result<Self, OpenJournalError> {
        Ok(match config {
            JournalConfig::Memory => Self::Memory {
                last: JournalSeq::default(),
            },
            JournalConfig::Directory(directory) => Self::File(FileJournal::open(directory)?),
        })
    }

    /// Appends a batch; gives the answer back where there is nothing to wait for.
    pub(crate) fn append(&mut self, batch: Batch) -> Option<Input> {
        match self {
            Self::Memory { last } => {
                *last = batch.through;
                Some(Input::Appended {
                    through: batch.through,
                })
            }
            Self::File(file) => file.append(batch),
        }
    }

    /// Waits for the next answer of the writer.
    pub(crate) async fn answer(&mut self) -> Input {
        match self {
            Self::Memory { .. } => std::future::pending().await,
            Self::File(file) => file.answer().await,
        }
    }

    /// Whether nothing is on its way any more.
    pub(crate) fn is_idle(&self) -> bool {
        match self {
            Self::Memory { .. } => true,
            Self::File(file) => file.failed || file.handed == file.confirmed,
        }
    }

    /// The last batch that is as durable as it asked to be.
    pub(crate) fn confirmed(&self) -> JournalSeq {
        match self {
            Self::Memory { last } => *last,
            Self::File(file) => file.confirmed,
        }
    }

    /// Waits until the writer is done and the lock is free; tells whether all is durable.
    pub(crate) async fn finish(&mut self) -> bool {
        let Self::File(file) = self else { return true };
        file.batches = None;
        if let Some(done) = file.done.take() {
            // A writer that panicked leaves no word.
            file.failed |= !done.await.unwrap_or(false);
        }
        !file.failed
    }
}

impl FileJournal {
    fn open(directory: &Path) -> Result<Self, OpenJournalError> {
        make_directory(directory)?;
        let lock = take_lock(&directory.join(LOCK_FILE))?;
        let path = directory.join(JOURNAL_FILE);
        let file = open_empty(&path)?;
        let synced = File::open(directory).and_then(|dir| dir.sync_all());
        synced.map_err(io_error("sync", directory))?;

        let (batches, incoming) = std_mpsc::channel();
        let (outgoing, answers) = mpsc::unbounded_channel();
        let (finished, done) = oneshot::channel();
        let writer = move || {
            let is_durable = write_all(&path, file, &incoming, &outgoing);
            // Only now may the next client take the journal.
            drop(lock);
            let _ = finished.send(is_durable);
        };
        thread::Builder::new()
            .name("turnkeep-journal".into())
            .spawn(writer)
            .map_err(io_error("start the writer of", directory))?;
        Ok(Self {
            batches: Some(batches),
            answers,
            done: Some(done),
            handed: JournalSeq::default(),
            confirmed: JournalSeq::default(),
            failed: false,
        })
    }

    fn append(&mut self, batch: Batch) -> Option<Input> {
        self.handed = batch.through;
        let sent = self.batches.as_ref().is_some_and(|b| b.send(batch).is_ok());
        if sent || self.failed {
            return None;
        }
        self.failed = true;
        Some(Input::AppendFailed)
    }

    async fn answer(&mut self) -> Input {
        match self.answers.recv().await {
            Some(Input::Appended { through }) => {
                self.confirmed = through;
                Input::Appended { through }
            }
            Some(_) | None if !self.failed => {
                self.failed = true;
                Input::AppendFailed
            }
            Some(_) | None => std::future::pending().await,
        }
    }
}

fn io_error(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> OpenJournalError {
    let path = path.to_owned();
    move |source| OpenJournalError::Io {
        action,
        path,
        source,
    }
}

fn make_directory(directory: &Path) -> Result<(), OpenJournalError> {
    use std::os::unix::fs::DirBuilderExt as _;
    if directory.is_dir() {
        return Ok(());
    }
    // A directory is as durable as its name in the one above.
    let new = directory.ancestors().take_while(|above| !above.is_dir());
    let parents: Vec<&Path> = new
        .filter_map(Path::parent)
        .map(|above| match above.as_os_str().is_empty() {
            true => Path::new("."),
            false => above,
        })
        .collect();
    fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(directory)
        .map_err(io_error("create", directory))?;
    for parent in parents {
        let synced = File::open(parent).and_then(|parent| parent.sync_all());
        synced.map_err(io_error("sync", parent))?;
    }
    Ok(())
}

/// Options for a file that only its owner may read.
pub(crate) fn private() -> OpenOptions {
    use std::os::unix::fs::OpenOptionsExt as _;
    let mut options = OpenOptions::new();
    options.mode(0o600);
    options
}

/// Takes a file that was there before from the eyes of others. What is no regular file stays as it
/// is.
pub(crate) fn make_private(file: &File) -> io::Result<()> {
    use std::os::unix::fs::PermissionsExt as _;
    let there = file.metadata()?;
    if there.is_file() && there.permissions().mode() & 0o077 != 0 {
        file.set_permissions(fs::Permissions::from_mode(0o600))?;
    }
    Ok(())
}

fn take_lock(path: &Path) -> Result<File, OpenJournalError> {
    let mut file = private()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .open(path)
        .map_err(io_error("open", path))?;
    use rustix::fs::{FlockOperation, flock};
    if let Err(error) = flock(&file, FlockOperation::NonBlockingLockExclusive) {
        if error != rustix::io::Errno::WOULDBLOCK {
            return Err(io_error("lock", path)(error.into()));
        }
        let mut holder = String::new();
        let _ = file.read_to_string(&mut holder);
        return Err(OpenJournalError::Locked {
            path: path.to_owned(),
            holder: holder.trim().parse().ok(),
        });
    }
    let written = file
        .set_len(0)
        .and_then(|()| file.rewind())
        .and_then(|()| writeln!(file, "{}", std::process::id()));
    written.map_err(io_error("write", path))?;
    Ok(file)
}

fn open_empty(path: &Path) -> Result<File, OpenJournalError> {
    let mut file = private()
        .read(true)
        .append(true)
        .create(true)
        .open(path)
        .map_err(io_error("open", path))?;
    let length = file.metadata().map_err(io_error("read", path))?.len();
    if length == 0 {
        make_private(&file).map_err(io_error("protect", path))?;
        return Ok(file);
    }
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes)
        .map_err(io_error("read", path))?;
    let path = path.to_owned();
    Err(match journal::decode(&bytes) {
        Ok(_) => OpenJournalError::JournalNotEmpty { path },
        Err(source) => OpenJournalError::Unreadable { path, source },
    })
}

/// The writer: all that waits becomes one write and at most one sync. Tells whether all that was
/// handed to it is durable.
fn write_all(
    path: &Path,
    mut file: File,
    batches: &std_mpsc::Receiver<Batch>,
    answers: &mpsc::UnboundedSender<Input>,
) -> bool {
    let mut bytes = Vec::new();
    let mut unsynced = false;
    while let Ok(first) = batches.recv() {
        bytes.clear();
        let mut through = first.through;
        let mut sync = false;
        for batch in std::iter::once(first).chain(batches.try_iter()) {
            bytes.extend_from_slice(&journal::encode(&batch));
            sync |= batch.durability == Durability::Synced;
            through = batch.through;
        }
        let written = file
            .write_all(&bytes)
            .and_then(|()| if sync { file.sync_data() } else { Ok(()) });
        if let Err(error) = written {
            // After a failed write or sync nobody knows what the disk holds: trying again could
            // confirm what is lost.
            error!(path = %path.display(), %error, "the journal failed");
            let _ = answers.send(Input::AppendFailed);
            return false;
        }
        unsynced = !sync;
        debug!(%through, bytes = bytes.len(), sync, "journal written");
        if answers.send(Input::Appended { through }).is_err() {
            break;
        }
    }
    if unsynced {
        if let Err(error) = file.sync_data() {
            error!(path = %path.display(), %error, "the journal's last sync failed");
            return false;
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt as _, symlink};

    use turnkeep_core::{Record, Timestamp};

    use super::*;

    fn batch(seq: u64, durability: Durability) -> Batch {
        Batch {
            through: JournalSeq(seq),
            durability,
            at: Timestamp(seq),
            records: vec![Record::Start {
                version: "0.1.0".into(),
                seed: seq,
                at: Timestamp(seq),
            }],
        }
    }

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).unwrap().permissions().mode() & 0o777
    }

    fn open(directory: &Path) -> Result<Journal, OpenJournalError> {
        Journal::open(&JournalConfig::Directory(directory.to_owned()))
    }

    #[tokio::test]
    async fn what_was_confirmed_stands_in_a_private_file() {
        let dir = tempfile::tempdir().unwrap();
        let home = dir.path().join("a/b");
        let mut journal = open(&home).unwrap();
        for seq in 1..=100 {
            let durability = if seq % 3 == 0 {
                Durability::Synced
            } else {
                Durability::Buffered
            };
            assert_eq!(journal.append(batch(seq, durability)), None);
        }
        let mut acks = 0;
        while journal.confirmed() < JournalSeq(100) {
            assert!(matches!(journal.answer().await, Input::Appended { .. }));
            acks += 1;
        }
        assert!((1..=100).contains(&acks));
        assert!(journal.is_idle());
        assert!(journal.finish().await);
        let path = home.join(JOURNAL_FILE);
        assert_eq!((mode(&path), mode(&home)), (0o600, 0o700));
        let read = journal::decode(&fs::read(&path).unwrap()).unwrap();
        assert_eq!((read.entries.len(), read.torn), (100, None));
    }

    #[tokio::test]
    async fn a_memory_journal_answers_at_once() {
        let mut journal = Journal::open(&JournalConfig::Memory).unwrap();
        let answer = journal.append(batch(1, Durability::Synced));
        assert_eq!(
            answer,
            Some(Input::Appended {
                through: JournalSeq(1)
            })
        );
    }

    #[tokio::test]
    async fn a_held_journal_names_its_holder_and_is_free_after_the_end() {
        let dir = tempfile::tempdir().unwrap();
        let mut journal = open(dir.path()).unwrap();
        match open(dir.path()).unwrap_err() {
            OpenJournalError::Locked { holder, .. } => {
                assert_eq!(holder, Some(std::process::id()));
            }
            other => panic!("{other}"),
        }
        journal.finish().await;
        open(dir.path()).unwrap();
    }

    #[tokio::test]
    async fn an_earlier_life_and_damage_are_refused_and_left_as_they_were() {
        let whole = journal::encode(&batch(1, Durability::Synced));
        let torn = whole[..whole.len() - 5].to_vec();
        let damaged = [b"garbage\n", &whole[..]].concat();
        for (bytes, refusal) in [
            (whole.clone(), "is not empty"),
            (torn, "is not empty"),
            (damaged, "not a turnkeep journal"),
        ] {
            let dir = tempfile::tempdir().unwrap();
            let path = dir.path().join(JOURNAL_FILE);
            fs::write(&path, &bytes).unwrap();
            let error = open(dir.path()).unwrap_err().to_string();
            assert!(error.ends_with(refusal), "{error}");
            assert_eq!(fs::read(&path).unwrap(), bytes);
        }
    }

    #[cfg(target_os = "linux")]
    #[tokio::test]
    async fn a_full_disk_fails_once_and_for_all() {
        let dir = tempfile::tempdir().unwrap();
        symlink("/dev/full", dir.path().join(JOURNAL_FILE)).unwrap();
        let mut journal = open(dir.path()).unwrap();
        journal.append(batch(1, Durability::Buffered));
        assert_eq!(journal.answer().await, Input::AppendFailed);
        assert!(journal.is_idle());
        assert_eq!(journal.append(batch(2, Durability::Synced)), None);
        assert!(!journal.finish().await);
        assert_eq!(journal.confirmed(), JournalSeq(0));
    }
}
