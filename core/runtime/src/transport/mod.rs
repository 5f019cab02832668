//! How bytes come and go. A transport knows bytes and frames as wholes, never what they mean.

mod child;
mod ending;
mod orphan;
mod pipes;
mod process;
mod streams;
#[cfg(test)]
mod tests;
#[cfg(feature = "websocket")]
mod websocket;

use std::{
    fmt,
    ops::Deref,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use turnkeep_core::{CloseReason, Closed, Frame, FrameSeq, Peer, effect::Orphan};

pub use self::process::MARK;
pub(crate) use self::process::start_time;
use crate::{
    config::ServerConfig,
    runtime::{BoxFuture, Runtime, unblock},
};

/// What a connection tells the driver.
#[derive(Debug)]
pub(crate) enum Heard {
    /// It is there. Nothing but the end comes before it.
    Opened(Peer),
    /// A whole read.
    Read(Bytes),
    /// Not one byte of this frame was written, and none will be.
    SendFailed(FrameSeq),
    /// The end, once; nothing comes after it.
    Closed(Closed),
}

/// What was read, in the buffer that it was read into.
#[derive(Default)]
pub(crate) struct Bytes {
    buffer: Vec<u8>,
    length: usize,
}

impl From<Vec<u8>> for Bytes {
    fn from(buffer: Vec<u8>) -> Self {
        let length = buffer.len();
        Self { buffer, length }
    }
}

impl Deref for Bytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.buffer.get(..self.length).unwrap_or_default()
    }
}

impl fmt::Debug for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Bytes({})", self.length)
    }
}

/// A way to a server that is open.
pub(crate) trait Transport: Send {
    /// Takes a frame to be written as soon as the other side takes it. Never waits.
    fn send(&mut self, frame: Frame);

    /// Begins the end: what was taken before is written first.
    fn close(&mut self);

    /// Writes what waits and tells what happens next.
    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Heard>;

    /// Takes back what was read, whose buffer can be read into again.
    fn reuse(&mut self, _: Bytes) {}
}

/// What comes of an attempt to reach a server.
pub(crate) type Reached = Result<(Box<dyn Transport>, Peer), Closed>;

/// A connection to a server.
pub(crate) enum Connection {
    /// What stands in its way is being stopped, or it is being reached.
    Opening(Opening),
    Open(Box<dyn Transport>),
}

/// A connection that is not there yet.
pub(crate) struct Opening {
    open: BoxFuture<Reached>,
    unsent: Vec<FrameSeq>,
    is_closed: bool,
}

impl Opening {
    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Result<Reached, FrameSeq>> {
        if let Some(seq) = self.unsent.pop() {
            return Poll::Ready(Err(seq));
        }
        if self.is_closed {
            let closed = Closed::new(CloseReason::ByUs, String::new());
            return Poll::Ready(Ok(Err(closed)));
        }
        self.open.as_mut().poll(cx).map(Ok)
    }
}

impl Connection {
    /// Reaches a server, once an orphan is gone.
    pub(crate) fn open(
        runtime: &Arc<dyn Runtime>,
        server: &ServerConfig,
        frame_limit: usize,
        orphan: Option<Orphan>,
    ) -> Self {
        let term = server.term_limit();
        let stop = orphan.map(|orphan| move || orphan::stop(orphan, term));
        Self::after(
            stop,
            reach(Arc::clone(runtime), server.clone(), frame_limit),
        )
    }

    /// Reaches a server once what blocks until an orphan is gone has come to its end.
    fn after(
        stop: Option<impl FnOnce() -> Result<(), String> + Send + 'static>,
        reach: impl Future<Output = Reached> + Send + 'static,
    ) -> Self {
        Self::opening(async move {
            if let Some(stop) = stop {
                let stopped = unblock(stop).await;
                stopped
                    .unwrap_or_else(|| Err("the thread that stops an orphan panicked".into()))
                    .map_err(|why| Closed::new(CloseReason::OpenFailed(why), String::new()))?;
            }
            reach.await
        })
    }

    fn opening(open: impl Future<Output = Reached> + Send + 'static) -> Self {
        Self::Opening(Opening {
            open: Box::pin(open),
            unsent: Vec::new(),
            is_closed: false,
        })
    }

    /// Takes a frame to be written as soon as the other side takes it. Never waits.
    pub(crate) fn send(&mut self, frame: Frame) {
        match self {
            Self::Opening(opening) => opening.unsent.push(frame.seq),
            Self::Open(transport) => transport.send(frame),
        }
    }

    /// Begins the end: what was taken before is written first.
    pub(crate) fn close(&mut self) {
        match self {
            Self::Opening(opening) => opening.is_closed = true,
            Self::Open(transport) => transport.close(),
        }
    }

    /// Takes back what was read, whose buffer can be read into again.
    pub(crate) fn reuse(&mut self, bytes: Bytes) {
        if let Self::Open(transport) = self {
            transport.reuse(bytes);
        }
    }

    /// Writes what waits and tells what happens next.
    pub(crate) fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Heard> {
        let reached = match self {
            Self::Open(transport) => return transport.poll_next(cx),
            Self::Opening(opening) => match opening.poll_next(cx) {
                Poll::Ready(Ok(reached)) => reached,
                Poll::Ready(Err(seq)) => return Poll::Ready(Heard::SendFailed(seq)),
                Poll::Pending => return Poll::Pending,
            },
        };
        Poll::Ready(match reached {
            Ok((transport, peer)) => {
                *self = Self::Open(transport);
                Heard::Opened(peer)
            }
            Err(closed) => {
                // Asked again it says nothing more.
                *self = Self::opening(std::future::pending());
                Heard::Closed(closed)
            }
        })
    }
}

async fn reach(
    runtime: Arc<dyn Runtime>,
    server: ServerConfig,
    #[cfg_attr(not(feature = "websocket"), expect(unused_variables))] frame_limit: usize,
) -> Reached {
    match server {
        ServerConfig::Child(config) => child::Child::spawn(&runtime, &config),
        #[cfg(feature = "websocket")]
        ServerConfig::WebSocket(config) => websocket::open(&runtime, &config, frame_limit).await,
        ServerConfig::Streams(config) => streams::open(&runtime, &config).await,
    }
}

impl ServerConfig {
    fn term_limit(&self) -> Duration {
        match self {
            Self::Child(config) => config.term_limit,
            _ => crate::config::TERM_LIMIT,
        }
    }
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Opening(_) => "Connection(opening)",
            Self::Open(_) => "Connection(open)",
        })
    }
}
