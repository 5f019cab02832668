//! What was written before, for the next time.

use std::{
    fs, io,
    os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _},
    path::Path,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use reedline::{
    FileBackedHistory, HistoryItem, HistoryItemId, HistorySessionId, Result, SearchQuery,
};

/// How many messages are remembered.
const MESSAGES: usize = 1_000;

/// How long a message is at most that is remembered, in bytes.
const LONGEST: usize = 16 << 10;

/// The messages of this and earlier runs, bounded in number and size.
#[derive(Debug)]
pub(crate) struct History(FileBackedHistory);

impl History {
    /// Those of a file, which only its owner may read. It is made where it is missing, and shared
    /// with other runs.
    pub(crate) fn of(path: &Path) -> io::Result<Self> {
        let file = fs::OpenOptions::new()
            .append(true)
            .create(true)
            .mode(0o600)
            .open(path)?;
        file.set_permissions(fs::Permissions::from_mode(0o600))?;
        let history = FileBackedHistory::with_file(MESSAGES, path.to_owned());
        history.map(Self).map_err(io::Error::other)
    }

    /// Those of this run alone.
    pub(crate) fn of_this_run() -> Self {
        Self(FileBackedHistory::default())
    }
}

/// A history that outlives its reader.
#[derive(Clone, Debug)]
pub(crate) struct SharedHistory(Arc<Mutex<History>>);

impl SharedHistory {
    pub(crate) fn new(history: History) -> Self {
        Self(Arc::new(Mutex::new(history)))
    }

    fn lock(&self) -> MutexGuard<'_, History> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl reedline::History for SharedHistory {
    fn save(&mut self, item: HistoryItem) -> Result<HistoryItem> {
        if item.command_line.len() > LONGEST {
            return Ok(item);
        }
        let history = &mut self.lock().0;
        let saved = history.save(item);
        // Whoever is killed has not lost it. Where the disk is full it is known until the end.
        let _ = history.sync();
        saved
    }

    fn load(&self, id: HistoryItemId) -> Result<HistoryItem> {
        self.lock().0.load(id)
    }

    fn count(&self, query: SearchQuery) -> Result<i64> {
        self.lock().0.count(query)
    }

    fn search(&self, query: SearchQuery) -> Result<Vec<HistoryItem>> {
        self.lock().0.search(query)
    }

    fn update(
        &mut self,
        id: HistoryItemId,
        change: &dyn Fn(HistoryItem) -> HistoryItem,
    ) -> Result<()> {
        self.lock().0.update(id, change)
    }

    fn clear(&mut self) -> Result<()> {
        self.lock().0.clear()
    }

    fn delete(&mut self, id: HistoryItemId) -> Result<()> {
        self.lock().0.delete(id)
    }

    fn sync(&mut self) -> io::Result<()> {
        self.lock().0.sync()
    }

    fn session(&self) -> Option<HistorySessionId> {
        self.lock().0.session()
    }
}
