//! What comes from the server.

use std::{
    io,
    pin::Pin,
    task::{Context, Poll},
};

use futures_io::AsyncRead as _;
use turnkeep_core::codec::socket::{Control, SocketError, SocketReader};

use crate::runtime::BoxStream;

/// One read, and about how many bytes of lines are told at once.
const READ: usize = 64 << 10;

/// How much is read before others get their turn.
const TURN: usize = 512 << 10;

pub(super) struct Incoming {
    reader: SocketReader,
    buffer: Box<[u8]>,
    /// How much of the buffer was read, and how much of that was looked at.
    filled: usize,
    at: usize,
    lines: Vec<u8>,
    /// What comes after the lines.
    control: Option<Control>,
    cut: Option<Cut>,
    heard: bool,
    /// How much may yet be read in this turn.
    left: usize,
}

/// A part of what came.
pub(super) enum Part {
    /// Messages, a line each.
    Lines(Vec<u8>),
    Control(Control),
}

/// Why nothing more comes.
pub(super) enum Cut {
    /// The other side breaks the rules, and is told so.
    Broken(SocketError),
    Lost(String),
}

impl Incoming {
    /// Reads on from what came behind the answer to the opening.
    pub(super) fn new(first: Vec<u8>, limit: usize) -> Self {
        let (filled, mut buffer) = (first.len(), first);
        buffer.resize(READ.max(filled), 0);
        Self {
            reader: SocketReader::new(limit),
            buffer: buffer.into(),
            filled,
            at: 0,
            lines: Vec::new(),
            control: None,
            cut: None,
            heard: false,
            left: TURN,
        }
    }

    /// Others had their turn: a flood of whatever kind must not keep them from it.
    pub(super) fn begin_turn(&mut self) {
        self.left = TURN;
    }

    /// Whether any byte came since it was forgotten.
    pub(super) fn has_heard(&self) -> bool {
        self.heard
    }

    pub(super) fn forget_heard(&mut self) {
        self.heard = false;
    }

    /// The next part, or why there will be none.
    pub(super) fn poll_read(
        &mut self,
        stream: &mut BoxStream,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Part, Cut>> {
        loop {
            self.decode();
            let is_done = self.control.is_some() || self.cut.is_some();
            if self.lines.len() >= READ || (is_done && !self.lines.is_empty()) {
                return Poll::Ready(Ok(self.take_lines()));
            }
            if let Some(control) = self.control.take() {
                return Poll::Ready(Ok(Part::Control(control)));
            }
            if let Some(cut) = self.cut.take() {
                return Poll::Ready(Err(cut));
            }
            let read = match self.left {
                0 => {
                    cx.waker().wake_by_ref();
                    Poll::Pending
                }
                _ => Pin::new(&mut *stream).poll_read(cx, &mut self.buffer),
            };
            match read {
                Poll::Ready(Ok(0)) => self.cut = Some(Cut::Lost(no_close_frame())),
                Poll::Ready(Ok(n)) => {
                    (self.filled, self.at, self.heard) = (n, 0, true);
                    self.left = self.left.saturating_sub(n);
                }
                Poll::Ready(Err(error)) => match error.kind() {
                    io::ErrorKind::Interrupted => {}
                    // The end of TLS without a word.
                    io::ErrorKind::UnexpectedEof => self.cut = Some(Cut::Lost(no_close_frame())),
                    _ => self.cut = Some(Cut::Lost(error.to_string())),
                },
                Poll::Pending if self.lines.is_empty() => return Poll::Pending,
                Poll::Pending => return Poll::Ready(Ok(self.take_lines())),
            }
        }
    }

    /// Looks at what was read, up to a control message.
    fn decode(&mut self) {
        if self.control.is_some() || self.cut.is_some() {
            return;
        }
        let read = self.buffer.get(..self.filled).unwrap_or_default();
        match self.reader.next(read, &mut self.at, &mut self.lines) {
            Ok(control) => self.control = control,
            Err(error) => self.cut = Some(Cut::Broken(error)),
        }
    }

    fn take_lines(&mut self) -> Part {
        Part::Lines(std::mem::take(&mut self.lines))
    }
}

fn no_close_frame() -> String {
    "it ended without a close frame".into()
}
