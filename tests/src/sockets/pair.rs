//! The fake server behind a pair of streams in memory.

use std::{
    collections::VecDeque,
    io::{self, Read, Write},
    pin::Pin,
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll, Waker},
    thread,
};

use futures_lite::{AsyncRead, AsyncWrite};
use turnkeep_runtime::StreamPair;
use turnkeep_tokio::fake::{self, Engine};

/// How many bytes wait in a pipe at most.
const ROOM: usize = 4096;

/// Plays in a thread of its own, which ends with its streams.
#[must_use]
pub fn served(engine: Engine) -> StreamPair {
    let (ours, theirs) = (Pipe::default(), Pipe::default());
    let (input, output) = (End(ours.clone()), End(theirs.clone()));
    thread::spawn(move || fake::serve(engine, input, output, io::sink()));
    StreamPair::new(End(theirs), End(ours))
}

#[derive(Clone, Debug, Default)]
struct Pipe(Arc<(Mutex<Inner>, Condvar)>);

#[derive(Debug, Default)]
struct Inner {
    bytes: VecDeque<u8>,
    is_closed: bool,
    waker: Option<Waker>,
}

/// One end of a pipe, blocking or not, whoever asks. It closes the pipe when it is dropped.
#[derive(Debug)]
struct End(Pipe);

impl Pipe {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.0.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait<'a>(&'a self, inner: MutexGuard<'a, Inner>) -> MutexGuard<'a, Inner> {
        self.0.1.wait(inner).unwrap_or_else(PoisonError::into_inner)
    }

    fn changed(&self, inner: &mut Inner) {
        self.0.1.notify_all();
        if let Some(waker) = inner.waker.take() {
            waker.wake();
        }
    }

    fn close(&self) {
        let mut inner = self.lock();
        inner.is_closed = true;
        self.changed(&mut inner);
    }
}

impl Inner {
    /// `None` where there is nothing yet.
    fn take(&mut self, buffer: &mut [u8]) -> Option<usize> {
        let n = buffer.len().min(self.bytes.len());
        if n == 0 && !self.is_closed {
            return None;
        }
        for (to, from) in buffer.iter_mut().zip(self.bytes.drain(..n)) {
            *to = from;
        }
        Some(n)
    }

    /// `None` where there is no room.
    fn put(&mut self, bytes: &[u8]) -> Option<io::Result<usize>> {
        if self.is_closed {
            return Some(Err(io::ErrorKind::BrokenPipe.into()));
        }
        let n = bytes.len().min(ROOM - self.bytes.len());
        self.bytes.extend(bytes.iter().take(n));
        (n > 0 || bytes.is_empty()).then_some(Ok(n))
    }
}

impl Read for End {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let mut inner = self.0.lock();
        loop {
            if let Some(n) = inner.take(buffer) {
                self.0.changed(&mut inner);
                return Ok(n);
            }
            inner = self.0.wait(inner);
        }
    }
}

impl Write for End {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut inner = self.0.lock();
        loop {
            if let Some(written) = inner.put(bytes) {
                self.0.changed(&mut inner);
                return written;
            }
            inner = self.0.wait(inner);
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl AsyncRead for End {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut [u8],
    ) -> Poll<io::Result<usize>> {
        let mut inner = self.0.lock();
        match inner.take(buffer) {
            Some(n) => {
                self.0.changed(&mut inner);
                Poll::Ready(Ok(n))
            }
            None => {
                inner.waker = Some(cx.waker().clone());
                Poll::Pending
            }
        }
    }
}

impl AsyncWrite for End {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let mut inner = self.0.lock();
        match inner.put(bytes) {
            Some(written) => {
                self.0.changed(&mut inner);
                Poll::Ready(written)
            }
            None => {
                inner.waker = Some(cx.waker().clone());
                Poll::Pending
            }
        }
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_close(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.0.close();
        Poll::Ready(Ok(()))
    }
}

impl Drop for End {
    fn drop(&mut self) {
        self.0.close();
    }
}
