//! What is to be done: everything that comes out of the machine.

use alloc::{boxed::Box, vec::Vec};
use core::ops::Range;

use serde::{Serialize, Serializer, ser::SerializeStruct};

use crate::{
    event::Event,
    id::{Epoch, FrameSeq, JournalSeq},
    record::Record,
    time::Timestamp,
    timers::Timer,
};

/// One effect. Effects are performed in the order of their list.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub enum Effect {
    /// Append a batch of records to the journal, in one atomic write.
    Append(Batch),
    /// Send a frame on a connection.
    Send(Epoch, Frame),
    /// Tell the application. Never waits.
    Emit(Event),
    /// Open a connection.
    Open(Epoch, OpenReason),
    /// Close a connection, once all frames before this are written.
    Close(Epoch, CloseWhy),
}

/// What a step led to.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[must_use = "effects that are not performed are lost"]
pub struct Effects {
    /// What to do, in order.
    pub list: Vec<Effect>,
    /// When the machine wants a [`Tick`](crate::Input::Tick), and why.
    pub deadline: Option<Deadline>,
}

/// When a tick is due, and which timer wants it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Deadline {
    /// The moment. A tick before it does nothing.
    pub at: Timestamp,
    /// The timer that a tick then moves.
    pub timer: Timer,
}

/// Records that become durable together or not at all.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Batch {
    /// The number of the batch: [`Appended`](crate::Input::Appended) with it or a later one
    /// confirms it.
    pub through: JournalSeq,
    /// How durable it must be before it is confirmed.
    pub durability: Durability,
    /// When it was decided.
    pub at: Timestamp,
    /// The records, in order.
    pub records: Vec<Record>,
}

/// How durable a batch must be before it is confirmed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub enum Durability {
    /// Written. Losing it in a crash costs a look-up.
    Buffered,
    /// Written and synced.
    Synced,
}

/// A line for the server, with its line feed.
#[derive(Clone, PartialEq, Eq)]
pub struct Frame {
    /// Its number, for [`SendFailed`](crate::Input::SendFailed).
    pub seq: FrameSeq,
    /// The bytes.
    pub bytes: Vec<u8>,
    /// Where secrets stand in the bytes: logs hold a placeholder there.
    pub secrets: Option<Box<Vec<Range<usize>>>>,
}

/// What stands in a log in place of a secret.
pub const SECRET_PLACEHOLDER: &str = "[secret]";

/// Puts the placeholder in place of the spans, which are in order and do not overlap. A span is the
/// inside of a string or a whole value, which then becomes a string.
pub(crate) fn redact(bytes: &[u8], spans: &[Range<usize>]) -> Vec<u8> {
    let mut out = Vec::with_capacity(bytes.len());
    let mut from = 0;
    for span in spans {
        let before = bytes.get(from..span.start).unwrap_or_default();
        out.extend_from_slice(before);
        let quote: &[u8] = if before.last() == Some(&b'"') {
            b""
        } else {
            b"\""
        };
        for part in [quote, SECRET_PLACEHOLDER.as_bytes(), quote] {
            out.extend_from_slice(part);
        }
        from = span.end;
    }
    out.extend_from_slice(bytes.get(from..).unwrap_or_default());
    out
}

impl Frame {
    /// The line as a log may show it, without its line feed.
    #[must_use]
    pub fn redacted(&self) -> alloc::string::String {
        let spans = self.secrets.as_deref().map_or(&[][..], Vec::as_slice);
        let mut out = redact(&self.bytes, spans);
        if out.last() == Some(&b'\n') {
            out.pop();
        }
        alloc::string::String::from_utf8_lossy(&out).into_owned()
    }
}

impl core::fmt::Debug for Frame {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "#{} {}", self.seq, self.redacted())
    }
}

impl Serialize for Frame {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        let text = self.redacted();
        let mut frame = s.serialize_struct("Frame", 2)?;
        frame.serialize_field("seq", &self.seq)?;
        match serde_json::from_str::<&serde_json::value::RawValue>(&text) {
            Ok(raw) => frame.serialize_field("line", raw)?,
            Err(_) => frame.serialize_field("line", &text)?,
        }
        frame.end()
    }
}

/// Why a connection is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum OpenReason {
    /// The client starts.
    Start,
    /// The client goes on where an earlier life of it stopped.
    Recover {
        /// The child process of that life, which may still live: it is stopped, if pid and start
        /// time both fit, and gone before the connection is opened.
        orphan: Option<Orphan>,
    },
    /// The connection before it has ended.
    Reconnect {
        /// Which try in a row, from 1.
        attempt: u32,
    },
}

/// A child process of an earlier life.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Orphan {
    /// Its process id, which is that of its process group too.
    pub pid: u32,
    /// When it started, as the system told it: without one nothing tells it from a stranger.
    pub start_time: Option<u64>,
}

/// Why a connection is closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum CloseWhy {
    /// The application asked for it.
    Shutdown,
    /// The handshake failed.
    Handshake,
    /// The server did not answer an interrupt, and nothing else runs any more.
    Unfit,
    /// The server broke the protocol beyond repair.
    Protocol,
    /// The journal failed.
    Halted,
}
