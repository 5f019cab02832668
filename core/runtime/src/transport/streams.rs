//! A pair of streams that the application brings.

use std::{
    fmt, io,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use futures_io::AsyncWrite as _;
use turnkeep_core::{CloseReason, Closed, Frame, FrameSeq, Peer, attachment::Endpoint};

use super::{Bytes, Heard, Reached, Transport, pipes::Pipes};
use crate::{
    config::StreamsConfig,
    runtime::{BoxFuture, Runtime},
};

/// How long the other side may take to read what waits, and to close its end, once we close ours.
const CLOSE: Duration = Duration::from_secs(5);

struct Streams {
    runtime: Arc<dyn Runtime>,
    pipes: Pipes,
    /// Nothing can be written any more. What came before is still read.
    broken: Option<io::Error>,
    state: State,
    /// Frames that will never be written and have not been told.
    unsent: Vec<FrameSeq>,
}

enum State {
    Live,
    Closing(BoxFuture<()>),
    Over(Option<Closed>),
}

pub(super) async fn open(runtime: &Arc<dyn Runtime>, config: &StreamsConfig) -> Reached {
    let failed = |error: io::Error| {
        let why = CloseReason::OpenFailed(error.to_string());
        Closed::new(why, String::new())
    };
    let pair = config.next().await.map_err(failed)?;
    let streams = Streams {
        runtime: Arc::clone(runtime),
        pipes: Pipes::new(Some(pair.writer), Some(pair.reader)).in_layers(),
        broken: None,
        state: State::Live,
        unsent: Vec::new(),
    };
    Ok((Box::new(streams), Peer::socket(Endpoint::Stream)))
}

impl Streams {
    fn end(&mut self, reason: CloseReason) {
        self.unsent.extend(self.pipes.take_unsent());
        self.unsent.reverse();
        self.pipes.out = None;
        self.pipes.input = None;
        self.state = State::Over(Some(Closed::new(reason, String::new())));
    }

    /// Closes our end once all is written.
    fn poll_close(&mut self, cx: &mut Context<'_>) {
        let is_written = self.pipes.is_written();
        if let Some(out) = self.pipes.out.as_mut().filter(|_| is_written) {
            if Pin::new(out).poll_close(cx).is_ready() {
                self.pipes.out = None;
            }
        }
    }
}

impl Transport for Streams {
    fn send(&mut self, frame: Frame) {
        match self.state {
            State::Live => {
                if let Err(frame) = self.pipes.push(frame) {
                    self.unsent.push(frame.seq);
                    let why = "the server does not read what it is sent";
                    self.end(CloseReason::Lost(why.into()));
                }
            }
            State::Closing(_) | State::Over(_) => self.unsent.insert(0, frame.seq),
        }
    }

    fn close(&mut self) {
        if matches!(self.state, State::Live) {
            self.state = State::Closing(self.runtime.sleep(CLOSE));
        }
    }

    fn reuse(&mut self, bytes: Bytes) {
        self.pipes.reuse(bytes);
    }

    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Heard> {
        loop {
            if let Some(seq) = self.unsent.pop() {
                return Poll::Ready(Heard::SendFailed(seq));
            }
            let asked = match &mut self.state {
                State::Over(closed) => {
                    let closed = closed.take();
                    return closed
                        .map_or(Poll::Pending, |closed| Poll::Ready(Heard::Closed(closed)));
                }
                State::Closing(limit) => {
                    if limit.as_mut().poll(cx).is_ready() {
                        self.end(CloseReason::ByUs);
                        continue;
                    }
                    true
                }
                State::Live => false,
            };
            if self.broken.is_none() {
                self.broken = self.pipes.poll_write(cx).err();
            }
            if asked && self.broken.is_none() {
                self.poll_close(cx);
            }
            match self.pipes.poll_read(cx) {
                Poll::Ready(Ok(Some(bytes))) => return Poll::Ready(Heard::Read(bytes)),
                Poll::Ready(_) if asked => self.end(CloseReason::ByUs),
                Poll::Pending if self.broken.is_some() && asked => self.end(CloseReason::ByUs),
                Poll::Ready(Ok(None)) => self.end(CloseReason::Eof),
                Poll::Ready(Err(error)) => self.end(CloseReason::Lost(error.to_string())),
                Poll::Pending => match self.broken.take() {
                    Some(error) => self.end(CloseReason::Lost(error.to_string())),
                    None => return Poll::Pending,
                },
            }
        }
    }
}

impl fmt::Debug for Streams {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.state {
            State::Live => "Streams(live)",
            State::Closing(_) => "Streams(closing)",
            State::Over(_) => "Streams(over)",
        })
    }
}
