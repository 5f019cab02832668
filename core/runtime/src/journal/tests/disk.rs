//! A disk that crashes at any operation and then loses what was not synced, or a part of it.

use std::{
    collections::BTreeMap,
    io::{self, Cursor},
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard},
};

use crate::{error::OpenJournalError, journal::files::Files};

/// How far the operation came that the crash hit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reach {
    NotBegun,
    Half,
    Done,
}

/// What a crash leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Survives {
    /// The system lives on: everything that was done, none of it more durable than before.
    All,
    /// The power failed: nothing that was not synced.
    Synced,
    /// The power failed, and of what was not synced this seed says what is there.
    Some(u64),
}

/// A crash that is going to happen.
#[derive(Clone, Copy, Debug)]
pub(super) struct Crash {
    /// At which operation, from 0.
    pub(super) at: u64,
    pub(super) reach: Reach,
}

#[derive(Clone, Debug, Default)]
struct Inode {
    synced: Vec<u8>,
    bytes: Vec<u8>,
}

#[derive(Clone, Debug)]
enum Change {
    Link(String, usize),
    Rename(String, String, usize),
    Unlink(String),
}

type Names = BTreeMap<String, usize>;

fn change(names: &mut Names, change: &Change) {
    match change {
        Change::Link(name, inode) => {
            names.insert(name.clone(), *inode);
        }
        Change::Rename(from, to, inode) => {
            names.remove(from);
            names.insert(to.clone(), *inode);
        }
        Change::Unlink(name) => {
            names.remove(name);
        }
    }
}

#[derive(Debug, Default)]
struct State {
    inodes: Vec<Inode>,
    names: Names,
    synced: Names,
    unsynced: Vec<Change>,
    operations: u64,
    crash: Option<Crash>,
    crashed: bool,
}

impl State {
    /// Counts an operation, and tells whether it is done, or half of it, before the error.
    fn begin(&mut self) -> io::Result<Reach> {
        if self.crashed {
            return Err(io::Error::other("crashed"));
        }
        let at = self.operations;
        self.operations += 1;
        match self.crash {
            Some(crash) if crash.at == at => {
                self.crashed = true;
                match crash.reach {
                    Reach::NotBegun => Err(io::Error::other("crash")),
                    reach => Ok(reach),
                }
            }
            _ => Ok(Reach::Done),
        }
    }

    fn end(&self) -> io::Result<()> {
        match self.crashed {
            true => Err(io::Error::other("crash")),
            false => Ok(()),
        }
    }

    fn rename(&mut self, what: Change) {
        change(&mut self.names, &what);
        self.unsynced.push(what);
    }
}

/// The disk. Clones are the same one.
#[derive(Clone, Debug, Default)]
pub(super) struct FaultDisk(Arc<Mutex<State>>);

impl FaultDisk {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap()
    }

    pub(super) fn operations(&self) -> u64 {
        self.state().operations
    }

    pub(super) fn crash(&self, crash: Option<Crash>) {
        let mut state = self.state();
        state.operations = 0;
        state.crash = crash;
    }

    /// Does something while no operation gets on.
    pub(super) fn while_held(&self, work: impl FnOnce()) {
        let _held = self.state();
        work();
    }

    pub(super) fn put(&self, name: &str, bytes: &[u8]) {
        let mut state = self.state();
        let inode = state.inodes.len();
        state.inodes.push(Inode {
            synced: bytes.to_vec(),
            bytes: bytes.to_vec(),
        });
        state.names.insert(name.into(), inode);
        state.synced.insert(name.into(), inode);
    }

    pub(super) fn files(&self) -> BTreeMap<String, Vec<u8>> {
        let state = self.state();
        let bytes = |inode: &usize| state.inodes[*inode].bytes.clone();
        let files = state.names.iter();
        files
            .map(|(name, inode)| (name.clone(), bytes(inode)))
            .collect()
    }

    /// The disk as the next process finds it.
    pub(super) fn after(&self, survives: Survives) -> Self {
        let state = self.state();
        let mut new = State {
            inodes: state.inodes.clone(),
            names: state.synced.clone(),
            synced: state.synced.clone(),
            ..State::default()
        };
        match survives {
            Survives::All => {
                new.names = state.names.clone();
                new.unsynced = state.unsynced.clone();
            }
            Survives::Synced => {
                for inode in &mut new.inodes {
                    inode.bytes = inode.synced.clone();
                }
            }
            Survives::Some(seed) => {
                let mut random = Random(seed);
                for what in &state.unsynced {
                    if random.below(2) == 0 {
                        change(&mut new.names, what);
                    }
                }
                for inode in &mut new.inodes {
                    inode.bytes = some_of(inode, &mut random);
                    inode.synced = inode.bytes.clone();
                }
                new.synced = new.names.clone();
            }
        }
        Self(Arc::new(Mutex::new(new)))
    }
}

fn some_of(inode: &Inode, random: &mut Random) -> Vec<u8> {
    let Some(unsynced) = inode.bytes.strip_prefix(&inode.synced[..]) else {
        // It was cut.
        let new = random.below(2) == 0;
        return if new { &inode.bytes } else { &inode.synced }.clone();
    };
    let mut kept = inode.synced.clone();
    kept.extend(&unsynced[..random.below(unsynced.len() + 1)]);
    if random.below(3) == 0 {
        // The length got there, the bytes did not.
        kept.resize(
            kept.len() + random.below(inode.bytes.len() - kept.len() + 1),
            0,
        );
    }
    kept
}

struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self
            .0
            .wrapping_add(1)
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        usize::try_from(self.0 >> 33).unwrap() % bound
    }
}

impl Files for FaultDisk {
    type File = usize;

    fn lock(&mut self) -> Result<(), OpenJournalError> {
        Ok(())
    }

    fn unlock(&mut self) {}

    fn path(&self, name: &str) -> PathBuf {
        Path::new("/disk").join(name)
    }

    fn names(&self) -> io::Result<Vec<String>> {
        Ok(self.state().names.keys().cloned().collect())
    }

    fn read(&self, name: &str) -> io::Result<Box<dyn io::Read + '_>> {
        let files = self.files();
        let bytes = files.get(name).ok_or(io::ErrorKind::NotFound)?;
        Ok(Box::new(Cursor::new(bytes.clone())))
    }

    fn create(&self, name: &str) -> io::Result<usize> {
        let mut state = self.state();
        if state.begin()? == Reach::Done {
            // What another name still shows in a crash is another file.
            let inode = state.inodes.len();
            state.inodes.push(Inode::default());
            state.rename(Change::Link(name.into(), inode));
        }
        state.end()?;
        Ok(state.names[name])
    }

    fn open(&self, name: &str) -> io::Result<usize> {
        let state = self.state();
        let inode = state.names.get(name).copied();
        inode.ok_or(io::ErrorKind::NotFound.into())
    }

    fn write(&self, file: &mut usize, bytes: &[u8]) -> io::Result<()> {
        let mut state = self.state();
        let written = match state.begin()? {
            Reach::Done => bytes,
            Reach::NotBegun | Reach::Half => &bytes[..bytes.len() / 2],
        };
        state.inodes[*file].bytes.extend_from_slice(written);
        state.end()
    }

    fn sync(&self, file: &mut usize) -> io::Result<()> {
        let mut state = self.state();
        if state.begin()? == Reach::Done {
            let inode = &mut state.inodes[*file];
            inode.synced = inode.bytes.clone();
        }
        state.end()
    }

    fn cut(&self, file: &mut usize, length: u64) -> io::Result<()> {
        let mut state = self.state();
        if state.begin()? == Reach::Done {
            let length = usize::try_from(length).unwrap();
            state.inodes[*file].bytes.truncate(length);
        }
        state.end()
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        let mut state = self.state();
        if state.begin()? == Reach::Done {
            let inode = state.names[from];
            state.rename(Change::Rename(from.into(), to.into(), inode));
        }
        state.end()
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        let mut state = self.state();
        if state.begin()? == Reach::Done {
            state.rename(Change::Unlink(name.into()));
        }
        state.end()
    }

    fn sync_names(&self) -> io::Result<()> {
        let mut state = self.state();
        if state.begin()? == Reach::Done {
            state.unsynced.clear();
            state.synced = state.names.clone();
        }
        state.end()
    }
}
