//! What goes to the server.

use std::{
    collections::VecDeque,
    hash::{BuildHasher as _, Hasher as _, RandomState},
    io,
    pin::Pin,
    task::{Context, Poll},
};

use futures_io::AsyncWrite as _;
use turnkeep_core::{
    Frame, FrameSeq,
    codec::socket::{Control, control_message, text_message},
};

use super::super::pipes::UNREAD;
use crate::runtime::BoxStream;

/// About how many bytes of frames are written at once.
const BATCH: usize = 64 << 10;

/// How much is written before others get their turn.
const TURN: usize = 1 << 20;

pub(super) struct Outgoing {
    frames: VecDeque<Frame>,
    /// The bytes of all of them.
    waiting: usize,
    /// Messages as they go over the wire.
    batch: Vec<u8>,
    /// How much of it is written.
    written: usize,
    /// Where the frames in it begin.
    begins: VecDeque<(usize, FrameSeq)>,
    /// Goes before all frames that wait.
    urgent: Vec<u8>,
    /// What the last ping that is not yet answered held.
    pong: Option<Vec<u8>>,
    /// Goes after all frames.
    last: Vec<u8>,
    /// Something was written that may still be held back on its way.
    unflushed: bool,
    /// A write failed: how much of the batch went out before it is not known, since TLS writes in
    /// pieces and forgets them in its error.
    failed: bool,
    /// How many bytes were written in all.
    total: u64,
    masks: Masks,
}

impl Outgoing {
    pub(super) fn new() -> Self {
        Self {
            frames: VecDeque::new(),
            waiting: 0,
            batch: Vec::new(),
            written: 0,
            begins: VecDeque::new(),
            urgent: Vec::new(),
            pong: None,
            last: Vec::new(),
            unflushed: false,
            failed: false,
            total: 0,
            masks: Masks::new(),
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

    /// Takes what goes before the frames that wait.
    pub(super) fn say(&mut self, control: &Control) {
        let mut message = control_message(control, self.masks.next());
        self.urgent.append(&mut message);
    }

    /// Takes what goes after the frames that wait.
    pub(super) fn say_last(&mut self, control: &Control) {
        self.last = control_message(control, self.masks.next());
    }

    /// How many bytes were written so far.
    pub(super) fn written(&self) -> u64 {
        self.total
    }

    /// How many bytes are written once all that was said is.
    pub(super) fn end_of_said(&self) -> u64 {
        let batch = self.batch.len().saturating_sub(self.written);
        self.total + (batch + self.urgent.len()) as u64
    }

    /// Answers a ping. Only the last one needs an answer.
    pub(super) fn answer_ping(&mut self, payload: Vec<u8>) {
        self.pong = Some(payload);
    }

    /// Writes until the other side takes no more or nothing is left.
    pub(super) fn poll_write(
        &mut self,
        stream: &mut BoxStream,
        cx: &mut Context<'_>,
    ) -> io::Result<()> {
        let mut left = TURN;
        loop {
            if self.written == self.batch.len() {
                self.fill();
            }
            let rest = self.batch.get(self.written..).unwrap_or_default();
            if rest.is_empty() {
                break;
            }
            if left == 0 {
                cx.waker().wake_by_ref();
                return Ok(());
            }
            match Pin::new(&mut *stream).poll_write(cx, rest) {
                Poll::Ready(Ok(0)) => {
                    self.failed = true;
                    return Err(io::ErrorKind::WriteZero.into());
                }
                Poll::Ready(Ok(n)) => {
                    self.written += n;
                    self.total += n as u64;
                    self.unflushed = true;
                    left = left.saturating_sub(n);
                }
                Poll::Ready(Err(error)) if error.kind() == io::ErrorKind::Interrupted => {}
                Poll::Ready(Err(error)) => {
                    self.failed = true;
                    return Err(error);
                }
                Poll::Pending => return Ok(()),
            }
        }
        if self.unflushed {
            if let Poll::Ready(flushed) = Pin::new(stream).poll_flush(cx) {
                self.unflushed = false;
                flushed?;
            }
        }
        Ok(())
    }

    /// Makes the next batch.
    fn fill(&mut self) {
        self.written = 0;
        self.begins.clear();
        self.batch.clear();
        // A huge frame must not hold its memory for ever.
        self.batch.shrink_to(TURN);
        self.batch.append(&mut self.urgent);
        if let Some(payload) = self.pong.take() {
            let pong = control_message(&Control::Pong(payload), self.masks.next());
            self.batch.extend_from_slice(&pong);
        }
        while self.batch.len() < BATCH {
            let Some(frame) = self.frames.pop_front() else {
                self.batch.append(&mut self.last);
                break;
            };
            self.waiting = self.waiting.saturating_sub(frame.bytes.len());
            self.begins.push_back((self.batch.len(), frame.seq));
            let mut message = text_message(frame.bytes, self.masks.next());
            if self.batch.is_empty() {
                self.batch = message;
            } else {
                self.batch.append(&mut message);
            }
        }
    }

    /// Frames of which not one byte was written. They are forgotten.
    pub(super) fn take_unsent(&mut self) -> Vec<FrameSeq> {
        let (written, failed) = (self.written, self.failed);
        let begun = |(at, _): &(usize, FrameSeq)| failed || *at < written;
        let first = self.begins.iter().position(|begin| !begun(begin));
        let mut unsent = Vec::new();
        if let Some(first) = first {
            let not_begun = self.begins.split_off(first);
            if let Some((at, _)) = not_begun.front() {
                self.batch.truncate(*at);
            }
            unsent.extend(not_begun.into_iter().map(|(_, seq)| seq));
        }
        unsent.extend(self.frames.drain(..).map(|frame| frame.seq));
        (self.waiting, self.last) = (0, Vec::new());
        unsent
    }
}

/// Where masks come from. They keep what an attacker makes us send from looking like another
/// protocol on its way, so that they must not be known beforehand.
struct Masks {
    keys: RandomState,
    count: u64,
}

impl Masks {
    fn new() -> Self {
        Self {
            keys: RandomState::new(),
            count: 0,
        }
    }

    fn next(&mut self) -> [u8; 4] {
        self.count += 1;
        let mut hasher = self.keys.build_hasher();
        hasher.write_u64(self.count);
        let [a, b, c, d, ..] = hasher.finish().to_ne_bytes();
        [a, b, c, d]
    }
}
