//! What handles and driver share: whether the client lives, and what it was at its end.

use std::sync::{
    Mutex, MutexGuard, PoisonError,
    atomic::{AtomicBool, AtomicU32, Ordering},
};

use event_listener::Event;
use turnkeep_core::{
    CommandError, JournalSeq,
    command::ShutdownReport,
    event::{Recovered, ServerInfo},
};

use crate::{
    error::{RequestError, TurnError},
    listeners::Listeners,
    recording::RecordingSummary,
    refreshes::Refreshes,
};

/// What an orderly shutdown found open and left behind.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ShutdownSummary {
    /// What was open.
    pub report: ShutdownReport,
    /// The last batch of the journal, which is durable.
    pub journal: JournalSeq,
    /// The recording, where there is one.
    pub recording: Option<RecordingSummary>,
    /// The end of what the last server wrote to stderr, 64 KiB at most. Empty where it was no child
    /// of ours.
    pub stderr_tail: String,
}

/// How a client has ended.
#[derive(Clone, Debug)]
pub(crate) enum Ended {
    ShutDown(ShutdownSummary),
    Halted,
    Stopped,
}

#[derive(Debug)]
pub(crate) struct Life {
    how: Mutex<Option<Ended>>,
    /// It has ended.
    ended: Event,
    halted: AtomicBool,
    cut_off: AtomicBool,
    server: Mutex<Option<ServerInfo>>,
    recovered: Mutex<Option<Recovered>>,
    /// 0 while no child of ours runs.
    pid: AtomicU32,
    pub(crate) connection: Listeners,
    pub(crate) refreshes: Refreshes,
}

impl Life {
    pub(crate) fn new() -> Self {
        Self {
            how: Mutex::new(None),
            ended: Event::new(),
            halted: AtomicBool::new(false),
            cut_off: AtomicBool::new(false),
            server: Mutex::new(None),
            recovered: Mutex::new(None),
            pid: AtomicU32::new(0),
            connection: Listeners::of_connection(),
            refreshes: Refreshes::default(),
        }
    }

    /// Says how it ended; the first word stands.
    pub(crate) fn end(&self, how: Ended) {
        self.how().get_or_insert(how);
        self.ended.notify(usize::MAX);
    }

    fn how(&self) -> MutexGuard<'_, Option<Ended>> {
        self.how.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) async fn ended(&self) -> Ended {
        loop {
            let ended = self.ended.listen();
            let how = self.how().clone();
            match how {
                Some(how) => return how,
                None => ended.await,
            }
        }
    }

    pub(crate) fn set_halted(&self) {
        self.halted.store(true, Ordering::Release);
    }

    pub(crate) fn is_halted(&self) -> bool {
        self.halted.load(Ordering::Acquire)
    }

    /// Says that the connection has ended for good.
    pub(crate) fn set_cut_off(&self) {
        self.cut_off.store(true, Ordering::Release);
    }

    pub(crate) fn is_cut_off(&self) -> bool {
        self.cut_off.load(Ordering::Acquire)
    }

    pub(crate) fn set_server(&self, server: ServerInfo) {
        *self.server.lock().unwrap_or_else(PoisonError::into_inner) = Some(server);
    }

    pub(crate) fn server(&self) -> Option<ServerInfo> {
        let server = self.server.lock().unwrap_or_else(PoisonError::into_inner);
        server.clone()
    }

    pub(crate) fn set_recovered(&self, found: Recovered) {
        let mut recovered = self
            .recovered
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        *recovered = Some(found);
    }

    pub(crate) fn recovered(&self) -> Option<Recovered> {
        *self
            .recovered
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn set_pid(&self, pid: Option<u32>) {
        self.pid.store(pid.unwrap_or_default(), Ordering::Release);
    }

    pub(crate) fn pid(&self) -> Option<u32> {
        Some(self.pid.load(Ordering::Acquire)).filter(|pid| *pid != 0)
    }

    /// What a request is told that the driver did not answer.
    pub(crate) fn refusal(&self) -> RequestError {
        if self.is_halted() {
            return CommandError::Halted.into();
        }
        match *self.how() {
            Some(Ended::ShutDown(_)) => CommandError::ClosedByUs.into(),
            Some(Ended::Halted) => CommandError::Halted.into(),
            Some(Ended::Stopped) | None => RequestError::Stopped,
        }
    }

    /// Why a turn has no end.
    pub(crate) fn silence(&self) -> TurnError {
        if self.is_halted() {
            TurnError::Halted
        } else {
            TurnError::Stopped
        }
    }
}
