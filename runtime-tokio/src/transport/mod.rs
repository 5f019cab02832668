//! How bytes come and go. A transport knows bytes and frames as wholes, never what they mean.

mod child;
mod ending;
mod process;
#[cfg(test)]
mod tests;

use turnkeep_core::{Closed, Frame, FrameSeq, Peer};

use crate::config::ChildConfig;

pub use self::process::MARK;

/// What a connection tells the driver.
#[derive(Debug)]
pub(crate) enum Heard {
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
    Child(child::Child),
}

impl Connection {
    /// Starts a server.
    pub(crate) fn spawn(config: &ChildConfig) -> Result<(Self, Peer), Closed> {
        let (child, peer) = child::Child::spawn(config)?;
        Ok((Self::Child(child), peer))
    }

    /// Takes a frame to be written as soon as the other side takes it. Never waits.
    pub(crate) fn send(&mut self, frame: Frame) {
        match self {
            Self::Child(child) => child.send(frame),
        }
    }

    /// Begins the end: what was taken before is written first.
    pub(crate) fn close(&mut self) {
        match self {
            Self::Child(child) => child.close(),
        }
    }

    /// Writes what waits and tells what happens next. Nothing is lost when it is dropped halfway.
    pub(crate) async fn next(&mut self) -> Heard {
        match self {
            Self::Child(child) => std::future::poll_fn(|cx| child.poll_next(cx)).await,
        }
    }
}
