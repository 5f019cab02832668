//! How bytes come and go. A transport knows bytes and frames as wholes, never what they mean.

mod child;
mod ending;
mod orphan;
mod process;
#[cfg(test)]
mod tests;

use tokio::task::{JoinHandle, spawn_blocking};
use turnkeep_core::{CloseReason, Closed, Frame, FrameSeq, Peer, effect::Orphan};

use crate::config::ChildConfig;

pub use self::process::MARK;
pub(crate) use self::process::start_time;

/// What a connection tells the driver.
#[derive(Debug)]
pub(crate) enum Heard {
    /// It is there. Nothing but the end comes before it.
    Opened(Peer),
    /// A whole read.
    Read(Vec<u8>),
    /// Not one byte of this frame was written, and none will be.
    SendFailed(FrameSeq),
    /// The end, once; nothing comes after it.
    Closed(Closed),
}

/// A connection to a server.
#[derive(Debug)]
pub(crate) enum Connection {
    /// What stands in its way is being stopped.
    Opening(Box<Opening>),
    Child(Box<child::Child>),
}

/// A connection that is not there yet.
#[derive(Debug)]
pub(crate) struct Opening {
    config: ChildConfig,
    /// The end of the orphan.
    stop: Option<JoinHandle<Result<(), String>>>,
    unsent: Vec<FrameSeq>,
    is_closed: bool,
}

impl Opening {
    async fn run(&mut self) -> Result<(child::Child, Peer), Closed> {
        if self.is_closed {
            return Err(Closed::new(CloseReason::ByUs, String::new()));
        }
        if let Some(stop) = &mut self.stop {
            let stopped = stop.await.unwrap_or_else(|error| Err(error.to_string()));
            self.stop = None;
            stopped.map_err(|why| Closed::new(CloseReason::OpenFailed(why), String::new()))?;
        }
        child::Child::spawn(&self.config)
    }
}

impl Connection {
    /// Starts a server, once an orphan is gone.
    pub(crate) fn open(config: &ChildConfig, orphan: Option<Orphan>) -> Self {
        let term = config.term_limit;
        let stop = orphan.map(|orphan| spawn_blocking(move || orphan::stop(orphan, term)));
        Self::Opening(Box::new(Opening {
            config: config.clone(),
            stop,
            unsent: Vec::new(),
            is_closed: false,
        }))
    }

    /// Takes a frame to be written as soon as the other side takes it. Never waits.
    pub(crate) fn send(&mut self, frame: Frame) {
        match self {
            Self::Opening(opening) => opening.unsent.push(frame.seq),
            Self::Child(child) => child.send(frame),
        }
    }

    /// Begins the end: what was taken before is written first.
    pub(crate) fn close(&mut self) {
        match self {
            Self::Opening(opening) => opening.is_closed = true,
            Self::Child(child) => child.close(),
        }
    }

    /// Writes what waits and tells what happens next. Nothing is lost when it is dropped halfway.
    pub(crate) async fn next(&mut self) -> Heard {
        match self {
            Self::Opening(opening) => match opening.unsent.pop() {
                Some(seq) => Heard::SendFailed(seq),
                None => match opening.run().await {
                    Ok((child, peer)) => {
                        *self = Self::Child(Box::new(child));
                        Heard::Opened(peer)
                    }
                    Err(closed) => Heard::Closed(closed),
                },
            },
            Self::Child(child) => std::future::poll_fn(|cx| child.poll_next(cx)).await,
        }
    }
}
