//! Two streams of bytes, one in each direction, and the frames that wait for one of them.

use std::{
    collections::VecDeque,
    io,
    pin::Pin,
    task::{Context, Poll, ready},
};

use futures_io::{AsyncRead as _, AsyncWrite as _};
use turnkeep_core::{Frame, FrameSeq};

use super::Bytes;
use crate::runtime::{BoxRead, BoxWrite};

/// How many bytes may wait for a server that does not read: twice the largest frame.
pub(super) const UNREAD: usize = 256 << 20;

/// One read: two hundred frames of streamed text.
const READ: usize = 64 << 10;

/// The pipes of a process, or the streams of an application.
pub(super) struct Pipes {
    /// Where frames go; dropped it is closed.
    pub(super) out: Option<BoxWrite>,
    /// Where bytes come from; dropped at its end.
    pub(super) input: Option<BoxRead>,
    frames: VecDeque<Frame>,
    /// The bytes of all of them.
    waiting: usize,
    /// How much of the first frame is written.
    written: usize,
    /// Something was written that may still be held back on its way.
    unflushed: bool,
    /// What was read last, when it is back.
    bytes: Bytes,
    /// Whether a write that fails may have written a part of what it was given, as TLS does. A pipe
    /// of the system has not.
    in_layers: bool,
}

impl Pipes {
    pub(super) fn new(out: Option<BoxWrite>, input: Option<BoxRead>) -> Self {
        Self {
            out,
            input,
            frames: VecDeque::new(),
            waiting: 0,
            written: 0,
            unflushed: false,
            bytes: Bytes::default(),
            in_layers: false,
        }
    }

    /// Of streams of which nothing is known.
    pub(super) fn in_layers(self) -> Self {
        Self {
            in_layers: true,
            ..self
        }
    }

    /// Takes a frame, unless the other side has long not read what it is sent.
    pub(super) fn push(&mut self, frame: Frame) -> Result<(), Frame> {
        if self.waiting + frame.bytes.len() > UNREAD {
            return Err(frame);
        }
        self.waiting += frame.bytes.len();
        self.frames.push_back(frame);
        Ok(())
    }

    /// Whether all that was taken is written.
    pub(super) fn is_written(&self) -> bool {
        self.frames.is_empty() && !self.unflushed
    }

    /// Writes frames until the pipe is full or none is left.
    pub(super) fn poll_write(&mut self, cx: &mut Context<'_>) -> io::Result<()> {
        while let Some(out) = &mut self.out {
            let Some(frame) = self.frames.front() else {
                if self.unflushed {
                    match Pin::new(out).poll_flush(cx) {
                        Poll::Ready(flushed) => {
                            self.unflushed = false;
                            flushed?;
                        }
                        Poll::Pending => {}
                    }
                }
                break;
            };
            let rest = frame.bytes.get(self.written..).unwrap_or_default();
            if rest.is_empty() {
                self.waiting = self.waiting.saturating_sub(frame.bytes.len());
                self.frames.pop_front();
                self.written = 0;
                continue;
            }
            match Pin::new(out).poll_write(cx, rest) {
                Poll::Ready(Ok(0)) => return Err(io::ErrorKind::WriteZero.into()),
                Poll::Ready(Ok(n)) => {
                    self.written += n;
                    self.unflushed = true;
                }
                Poll::Ready(Err(error)) => {
                    if self.in_layers {
                        self.written = self.written.max(1);
                    }
                    return Err(error);
                }
                Poll::Pending => break,
            }
        }
        Ok(())
    }

    /// One read, `None` at the end of the stream, whose handle is dropped then.
    pub(super) fn poll_read(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<Option<Bytes>>> {
        let Some(input) = &mut self.input else {
            return Poll::Pending;
        };
        if self.bytes.buffer.is_empty() {
            self.bytes.buffer = vec![0; READ];
        }
        let length = ready!(Pin::new(input).poll_read(cx, &mut self.bytes.buffer))?;
        if length > self.bytes.buffer.len() {
            let why = "the stream tells of more bytes than it had room for";
            return Poll::Ready(Err(io::Error::new(io::ErrorKind::InvalidData, why)));
        }
        if length == 0 {
            self.input = None;
            return Poll::Ready(Ok(None));
        }
        self.bytes.length = length;
        Poll::Ready(Ok(Some(std::mem::take(&mut self.bytes))))
    }

    /// Takes back what was read.
    pub(super) fn reuse(&mut self, bytes: Bytes) {
        self.bytes = bytes;
    }

    /// Frames of which not one byte was written. They are forgotten.
    pub(super) fn take_unsent(&mut self) -> Vec<FrameSeq> {
        let begun = usize::from(self.written > 0);
        self.written = 0;
        self.waiting = 0;
        self.unflushed = false;
        let frames = std::mem::take(&mut self.frames);
        frames.iter().skip(begun).map(|frame| frame.seq).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::task::Waker;

    use futures_io::AsyncRead;

    use super::*;

    /// Streams that an application might bring: what each read tells of.
    struct Reads(Vec<usize>);

    impl AsyncRead for Reads {
        fn poll_read(
            mut self: Pin<&mut Self>,
            _: &mut Context<'_>,
            room: &mut [u8],
        ) -> Poll<io::Result<usize>> {
            let Some(length) = self.0.pop() else {
                return Poll::Pending;
            };
            let read = room.len().min(length);
            room[..read].fill(b'a' + self.0.len() as u8);
            Poll::Ready(Ok(length))
        }
    }

    #[test]
    fn a_buffer_that_came_back_is_read_into_again_and_no_old_byte_is_told() {
        let reads = Reads(vec![READ + 1, 3, READ, 5]);
        let mut pipes = Pipes::new(None, Some(Box::new(reads)));
        let mut cx = Context::from_waker(Waker::noop());
        let mut read = |pipes: &mut Pipes| match pipes.poll_read(&mut cx) {
            Poll::Ready(Ok(Some(bytes))) => bytes,
            other => panic!("{other:?}"),
        };
        let first = read(&mut pipes);
        assert_eq!(&*first, b"ddddd");
        let buffer = first.as_ptr();
        pipes.reuse(first);
        let second = read(&mut pipes);
        assert_eq!((second.as_ptr(), &*second), (buffer, &*vec![b'c'; READ]));
        // It is not back: the next read has a buffer of its own.
        assert_eq!(&*read(&mut pipes), b"bbb");
        let Poll::Ready(Err(error)) = pipes.poll_read(&mut cx) else {
            panic!("it was believed");
        };
        assert_eq!(error.kind(), io::ErrorKind::InvalidData);
    }
}
