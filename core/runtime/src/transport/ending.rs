//! The end of a child process, from the first sign of it to the last process it left behind.

use std::{
    io,
    sync::Arc,
    task::{Context, Poll},
    time::{Duration, Instant},
};

use async_channel::Sender;
use tracing::{debug, warn};
use turnkeep_core::{CloseReason, Closed, FrameSeq};

use super::{
    Bytes,
    child::exited,
    pipes::Pipes,
    process::{Process, Relative, Signal},
};
use crate::runtime::{Runtime, yield_now};

/// How long output is waited for that a dead process may have left in its pipe. A launcher's
/// child may hold the pipe for ever.
const DRAIN: Duration = Duration::from_secs(1);

/// How long killed processes may take to be gone. The system owes us that, whatever they do.
pub(super) const GONE: Duration = Duration::from_secs(2);

/// How long the rest of the output may take once nobody is left to write it.
const REST: Duration = Duration::from_millis(200);

/// How long a process may take to end when it is asked.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    /// After its stdin was closed.
    pub(super) close: Duration,
    /// After SIGTERM.
    pub(super) term: Duration,
}

/// What the end began with.
#[derive(Debug)]
pub(super) enum Cause {
    /// We were asked to close.
    Asked,
    /// The process ended.
    Exited,
    /// Its stdout ended.
    Eof,
    /// A pipe broke.
    Broken(io::Error),
}

/// A process on its way out.
pub(super) struct Ending {
    runtime: Arc<dyn Runtime>,
    process: Process,
    pipes: Pipes,
    forward: Sender<Bytes>,
    limits: Limits,
    /// When the process was seen to be gone.
    exit: Option<Instant>,
    unsent: Vec<FrameSeq>,
}

impl Ending {
    pub(super) fn new(
        runtime: Arc<dyn Runtime>,
        process: Process,
        pipes: Pipes,
        forward: Sender<Bytes>,
        limits: Limits,
    ) -> Self {
        Self {
            runtime,
            process,
            pipes,
            forward,
            limits,
            exit: None,
            unsent: Vec::new(),
        }
    }

    /// Stops the whole tree and reaps the process.
    pub(super) async fn run(mut self, cause: Cause) -> (Vec<FrameSeq>, Closed) {
        debug!(pid = self.process.pid(), ?cause, "the server's end begins");
        // Once the process is gone its children are nobody's: they must be known before.
        let mut relatives = self.process.relatives().await;
        let asked = matches!(cause, Cause::Asked);
        let limit = Instant::now() + if asked { self.limits.close } else { DRAIN };
        if asked {
            self.listen(limit, |s| s.pipes.is_written()).await;
        }
        let unsent = self.pipes.take_unsent();
        self.unsent.extend(unsent);
        self.pipes.out = None;
        self.listen(limit, |s| s.exit.is_some()).await;

        let by_itself = self.exit.is_some();
        if let Some(exit) = self.exit {
            self.listen(exit + DRAIN, Self::is_quiet).await;
        } else {
            relatives.extend(self.process.relatives().await);
            self.process.signal_group(Signal::TERM);
            let limit = Instant::now() + self.limits.term;
            self.listen(limit, |s| s.exit.is_some()).await;
        }
        let gentle = asked && self.exit.is_some();
        self.sweep(relatives, gentle).await;
        self.listen(Instant::now() + GONE, |s| s.exit.is_some())
            .await;
        self.listen(Instant::now() + REST, Self::is_quiet).await;

        let status = self.process.status();
        let reason = match (cause, status) {
            (Cause::Asked, _) => CloseReason::ByUs,
            (Cause::Exited, Some(status)) => exited(status),
            (Cause::Eof | Cause::Broken(_), Some(status)) if by_itself => exited(status),
            (Cause::Broken(error), _) => CloseReason::Lost(error.to_string()),
            (Cause::Eof | Cause::Exited, _) => CloseReason::Eof,
        };
        // The status is known, so a stderr of any bytes can hide it no more.
        let tail = self.process.stderr_tail(REST).await;
        self.process.done();
        debug!(%reason, "the server is gone");
        (self.unsent, Closed::new(reason, tail))
    }

    /// Nothing more comes by itself.
    fn is_quiet(&self) -> bool {
        self.exit.is_some() && self.pipes.input.is_none()
    }

    /// Goes on reading, writing and waiting until `done`, at most until `limit`.
    async fn listen(&mut self, limit: Instant, done: fn(&Self) -> bool) {
        let mut heard_of: u32 = 0;
        while !done(self) {
            heard_of = heard_of.wrapping_add(1);
            if heard_of % 16 == 0 {
                // Not every runtime makes a task that always has something to do wait for others.
                yield_now().await;
            }
            let limit = limit.saturating_duration_since(Instant::now());
            let mut limit = self.runtime.sleep(limit);
            let heard = std::future::poll_fn(|cx| {
                // First of all: a flood of output must not hide the limit.
                if limit.as_mut().poll(cx).is_ready() {
                    return Poll::Ready(None);
                }
                self.poll_transfer(cx).map(Some)
            });
            let Some(heard) = heard.await else {
                return;
            };
            match heard {
                Transfer::Read(bytes) => {
                    // Who does not listen any more has dropped us.
                    let _ = self.forward.try_send(bytes.to_vec().into());
                    self.pipes.reuse(bytes);
                }
                Transfer::Exited => self.exit = Some(Instant::now()),
                Transfer::Written | Transfer::Eof => {}
                Transfer::WriteFailed(error) => {
                    debug!(%error, "the last frames were not written");
                    let unsent = self.pipes.take_unsent();
                    self.unsent.extend(unsent);
                    self.pipes.out = None;
                }
            }
        }
    }

    /// Stops whoever is left: the group, and those seen before that have left it.
    async fn sweep(&mut self, mut relatives: Vec<Relative>, gentle: bool) {
        relatives.extend(self.process.leftovers().await);
        relatives.retain(Relative::is_alive);
        if gentle && (self.process.group_is_alive() || !relatives.is_empty()) {
            self.process.signal_group(Signal::TERM);
            relatives.iter().for_each(|r| r.signal(Signal::TERM));
            self.until_gone(&relatives, self.limits.term).await;
        }
        let limit = Instant::now() + GONE;
        loop {
            self.process.signal_group(Signal::KILL);
            relatives.iter().for_each(|r| r.signal(Signal::KILL));
            self.until_gone(&relatives, Duration::from_millis(50)).await;
            // Who forked while being killed left someone behind.
            relatives.extend(self.process.leftovers().await);
            relatives.retain(Relative::is_alive);
            if relatives.is_empty() && !self.process.group_is_alive() {
                return;
            }
            if Instant::now() >= limit {
                warn!(pids = ?relatives, "processes of the server outlive SIGKILL");
                return;
            }
        }
    }

    async fn until_gone(&mut self, relatives: &[Relative], limit: Duration) {
        let limit = Instant::now() + limit;
        loop {
            let alive = self.process.group_is_alive() || relatives.iter().any(Relative::is_alive);
            if !alive || Instant::now() >= limit {
                return;
            }
            // Nothing tells of the end of a process that is not our child.
            let next = limit.min(Instant::now() + Duration::from_millis(5));
            self.listen(next, |_| false).await;
        }
    }
}

/// What came of looking at both pipes and the process.
enum Transfer {
    Read(Bytes),
    Written,
    Eof,
    WriteFailed(io::Error),
    Exited,
}

impl Ending {
    fn poll_transfer(&mut self, cx: &mut Context<'_>) -> Poll<Transfer> {
        if self.exit.is_none() && self.process.poll_wait(cx).is_ready() {
            return Poll::Ready(Transfer::Exited);
        }
        let was_written = self.pipes.is_written();
        if let Err(error) = self.pipes.poll_write(cx) {
            return Poll::Ready(Transfer::WriteFailed(error));
        }
        if !was_written && self.pipes.is_written() {
            return Poll::Ready(Transfer::Written);
        }
        match self.pipes.poll_read(cx) {
            Poll::Ready(Ok(Some(bytes))) => Poll::Ready(Transfer::Read(bytes)),
            Poll::Ready(Ok(None)) => Poll::Ready(Transfer::Eof),
            Poll::Ready(Err(_)) => {
                self.pipes.input = None;
                Poll::Ready(Transfer::Eof)
            }
            Poll::Pending => Poll::Pending,
        }
    }
}
