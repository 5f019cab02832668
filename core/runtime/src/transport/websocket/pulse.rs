//! Pings, and whether the other side still lives.

use std::{
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use super::opening::in_words;
use crate::runtime::{BoxFuture, Runtime};

pub(super) struct Pulse {
    runtime: Arc<dyn Runtime>,
    every: Duration,
    limit: Duration,
    /// Rings for the next ping, or for the end of the wait for an answer; `None` once it has.
    timer: Option<BoxFuture<()>>,
    /// A ping waits for an answer.
    waits: bool,
}

/// What is to be done.
#[derive(Clone, Copy)]
pub(super) enum Beat {
    Nothing,
    /// Send a ping, and look again.
    Ping,
    /// Nothing came for too long.
    Overdue,
}

impl Pulse {
    pub(super) fn new(runtime: Arc<dyn Runtime>, every: Duration, limit: Duration) -> Self {
        // No ping after ping without a pause.
        let every = every.max(Duration::from_millis(1));
        Self {
            timer: Some(runtime.sleep(every)),
            runtime,
            every,
            limit,
            waits: false,
        }
    }

    /// Looks at the timer; `heard` says whether any byte came since the last ping.
    pub(super) fn poll(&mut self, heard: bool, cx: &mut Context<'_>) -> Beat {
        if self.waits && heard {
            self.waits = false;
            self.timer = Some(self.runtime.sleep(self.every));
        }
        let Some(timer) = &mut self.timer else {
            return Beat::Overdue;
        };
        if timer.as_mut().poll(cx) == Poll::Pending {
            return Beat::Nothing;
        }
        if self.waits {
            self.timer = None;
            return Beat::Overdue;
        }
        self.waits = true;
        self.timer = Some(self.runtime.sleep(self.limit));
        Beat::Ping
    }

    /// The answer that is waited for has all of its time again.
    pub(super) fn postpone(&mut self) {
        if self.waits {
            self.timer = Some(self.runtime.sleep(self.limit));
        }
    }

    /// Why the connection is given up.
    pub(super) fn overdue(&self) -> String {
        format!("no pong within {}", in_words(self.limit))
    }
}
