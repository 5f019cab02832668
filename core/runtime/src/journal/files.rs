//! The few operations on files that a journal is made of, so that a test can fail each of them.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Read as _, Seek as _, Write as _},
    path::{Path, PathBuf},
};

use rustix::fs::{FlockOperation, flock};

use super::store::Holder;
use crate::error::OpenJournalError;

/// The name of the file in the journal's directory that its holder locks and writes its pid to.
pub const LOCK_FILE: &str = "lock";

/// A directory of files.
///
/// Nothing is durable that was not synced: neither bytes nor names.
pub(super) trait Files: Send {
    /// A file that is written to, at its end.
    type File: Send;

    /// Makes the directory where it is missing, and takes it for us alone.
    fn lock(&mut self) -> Result<(), OpenJournalError>;
    fn unlock(&mut self);
    fn path(&self, name: &str) -> PathBuf;
    fn names(&self) -> io::Result<Vec<String>>;
    /// What the file holds at this moment.
    fn read(&self, name: &str) -> io::Result<Box<dyn io::Read + '_>>;
    /// Makes a file, empty.
    fn create(&self, name: &str) -> io::Result<Self::File>;
    fn open(&self, name: &str) -> io::Result<Self::File>;
    fn write(&self, file: &mut Self::File, bytes: &[u8]) -> io::Result<()>;
    fn sync(&self, file: &mut Self::File) -> io::Result<()>;
    fn cut(&self, file: &mut Self::File, length: u64) -> io::Result<()>;
    fn rename(&self, from: &str, to: &str) -> io::Result<()>;
    fn remove(&self, name: &str) -> io::Result<()>;
    fn sync_names(&self) -> io::Result<()>;
}

/// The real thing.
#[derive(Debug)]
pub(super) struct Disk {
    directory: PathBuf,
    lock: Option<File>,
}

impl Disk {
    pub(super) fn new(directory: PathBuf) -> Self {
        Self {
            directory,
            lock: None,
        }
    }
}

impl Files for Disk {
    type File = File;

    fn lock(&mut self) -> Result<(), OpenJournalError> {
        make_directory(&self.directory)?;
        self.lock = Some(take_lock(&self.path(LOCK_FILE))?);
        Ok(())
    }

    fn unlock(&mut self) {
        self.lock = None;
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }

    fn names(&self) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in fs::read_dir(&self.directory)? {
            names.extend(entry?.file_name().into_string());
        }
        Ok(names)
    }

    fn read(&self, name: &str) -> io::Result<Box<dyn io::Read + '_>> {
        let file = File::open(self.path(name))?;
        // A device may go on for ever.
        let length = file.metadata()?.len();
        Ok(Box::new(file.take(length)))
    }

    fn create(&self, name: &str) -> io::Result<File> {
        let mut options = private();
        options.append(true).create(true);
        let file = options.open(self.path(name))?;
        file.set_len(0)?;
        make_private(&file)?;
        Ok(file)
    }

    fn open(&self, name: &str) -> io::Result<File> {
        let file = private().append(true).open(self.path(name))?;
        make_private(&file)?;
        Ok(file)
    }

    fn write(&self, file: &mut File, bytes: &[u8]) -> io::Result<()> {
        file.write_all(bytes)
    }

    fn sync(&self, file: &mut File) -> io::Result<()> {
        file.sync_data()
    }

    fn cut(&self, file: &mut File, length: u64) -> io::Result<()> {
        file.set_len(length)
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        fs::rename(self.path(from), self.path(to))
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        fs::remove_file(self.path(name))
    }

    fn sync_names(&self) -> io::Result<()> {
        File::open(&self.directory)?.sync_all()
    }
}

pub(super) fn io_error(
    action: &'static str,
    path: impl Into<PathBuf>,
) -> impl FnOnce(io::Error) -> OpenJournalError {
    let path = path.into();
    move |source| OpenJournalError::Io {
        action,
        path,
        source,
    }
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

fn take_lock(path: &Path) -> Result<File, OpenJournalError> {
    let mut file = private()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .open(path)
        .map_err(io_error("open", path))?;
    if let Err(error) = flock(&file, FlockOperation::NonBlockingLockExclusive) {
        if error != rustix::io::Errno::WOULDBLOCK {
            return Err(io_error("lock", path)(error.into()));
        }
        let mut holder = String::new();
        let _ = file.read_to_string(&mut holder);
        return Err(OpenJournalError::Locked {
            path: path.to_owned(),
            holder: Holder::parse(&holder),
        });
    }
    let written = file
        .set_len(0)
        .and_then(|()| file.rewind())
        .and_then(|()| file.write_all(Holder::us().line().as_bytes()));
    written.map_err(io_error("write", path))?;
    Ok(file)
}
