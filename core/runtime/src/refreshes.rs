//! Requests for tokens, on a way of their own: they never wait behind other events.

use std::{
    collections::VecDeque,
    sync::{Mutex, MutexGuard, PoisonError},
};

use event_listener::Event as Notify;
use turnkeep_core::{RefreshId, event::TokenRefresh};

/// Those that nobody has taken, and whether anybody takes them.
#[derive(Debug, Default)]
pub(crate) struct Refreshes {
    waiting: Mutex<Waiting>,
    pub(crate) news: Notify,
}

#[derive(Debug, Default)]
struct Waiting {
    requests: VecDeque<TokenRefresh>,
    streams: usize,
    /// There was a stream: where there is none now, nobody serves.
    served: bool,
    has_ended: bool,
}

/// What a stream is told.
#[derive(Debug)]
pub(crate) enum Next {
    Request(TokenRefresh),
    None,
    Ended,
}

impl Refreshes {
    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps a request for the next stream that asks. Gives it back where nobody serves.
    pub(crate) fn push(&self, request: TokenRefresh) -> Option<RefreshId> {
        let mut waiting = self.waiting();
        if waiting.has_ended || (waiting.served && waiting.streams == 0) {
            return Some(request.id);
        }
        waiting.requests.push_back(request);
        drop(waiting);
        self.news.notify(usize::MAX);
        None
    }

    /// One is settled that nobody has taken yet, or that somebody has.
    pub(crate) fn forget(&self, refresh: RefreshId) {
        self.waiting().requests.retain(|open| open.id != refresh);
    }

    pub(crate) fn next(&self) -> Next {
        let mut waiting = self.waiting();
        match waiting.requests.pop_front() {
            Some(request) => Next::Request(request),
            None if waiting.has_ended => Next::Ended,
            None => Next::None,
        }
    }

    pub(crate) fn begin_stream(&self) {
        let mut waiting = self.waiting();
        waiting.streams += 1;
        waiting.served = true;
    }

    /// A stream is gone. Where it was the last one, nobody serves what waits.
    pub(crate) fn end_stream(&self) -> Vec<RefreshId> {
        let mut waiting = self.waiting();
        waiting.streams = waiting.streams.saturating_sub(1);
        if waiting.streams > 0 {
            return Vec::new();
        }
        waiting.requests.drain(..).map(|open| open.id).collect()
    }

    pub(crate) fn end(&self) {
        let mut waiting = self.waiting();
        waiting.has_ended = true;
        waiting.requests.clear();
        drop(waiting);
        self.news.notify(usize::MAX);
    }
}
