//! WebSocket (RFC 6455) as a client speaks it, without IO: bytes in, lines and control messages out;
//! lines in, bytes out. No extension is spoken.
//!
//! A text message becomes one line: its line feeds, which are white space in JSON, become spaces. A
//! binary message becomes a line that is no JSON, so that it is counted and told as noise.
//!
//! It is strict where bytes could be taken for others: masks, reserved bits, kinds, pieces, lengths.
//! Text is not looked at, since the core tells a line that is no UTF-8 as noise; lengths may be
//! written longer than they need be, and the reason of a close may be anything.

use alloc::{format, string::String, vec::Vec};

/// The most bytes that the head of a message of ours takes.
const HEAD: usize = 14;

const CONTINUATION: u8 = 0;
const TEXT: u8 = 1;
const BINARY: u8 = 2;
const CLOSE: u8 = 8;
const PING: u8 = 9;
const PONG: u8 = 10;

const FINAL: u8 = 0x80;
const RESERVED: u8 = 0x70;
const MASKED: u8 = 0x80;

/// What a message holds that is for the transport itself. At most 125 bytes of payload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Control {
    /// To be answered by a pong with the same payload.
    Ping(Vec<u8>),
    /// The answer to a ping.
    Pong(Vec<u8>),
    /// The end: nothing comes after it.
    Close {
        /// Why, if it is told: 1000 is a normal end.
        code: Option<u16>,
        /// The same in words.
        reason: String,
    },
}

/// The other side breaks the rules, or a limit of ours. Nothing can be read any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SocketError {
    /// A message is longer than the limit.
    #[error("a message is longer than {limit} bytes")]
    TooLong {
        /// The limit.
        limit: usize,
    },
    /// A server masks nothing.
    #[error("the server masks what it sends")]
    Masked,
    /// An extension is spoken that nobody agreed on.
    #[error("the server uses an extension that nobody asked for")]
    Reserved,
    /// A kind of frame that does not exist.
    #[error("a frame has the unknown kind {0}")]
    Kind(u8),
    /// A ping, pong or close is cut into pieces or too long.
    #[error("a control frame is cut into pieces or longer than 125 bytes")]
    Control,
    /// The middle of a message without its beginning, or the beginning of one in another.
    #[error("the pieces of two messages are mixed")]
    Pieces,
}

impl SocketError {
    /// The code that the other side is told this by.
    #[must_use]
    pub const fn code(self) -> u16 {
        match self {
            Self::TooLong { .. } => 1009,
            Self::Masked | Self::Reserved | Self::Kind(_) | Self::Control | Self::Pieces => 1002,
        }
    }
}

/// Reads what a server sends.
#[derive(Clone, Debug)]
pub struct SocketReader {
    limit: usize,
    /// The head of a frame, as far as it came.
    head: Vec<u8>,
    /// The frame that is being read.
    frame: Option<Open>,
    /// The payload of a control frame, as far as it came.
    control: Vec<u8>,
    /// The kind of the message that is being read.
    message: Option<u8>,
    /// What came of it: of a binary one nothing is kept.
    text: Vec<u8>,
    /// How long it is so far.
    length: usize,
}

/// A frame whose head is read.
#[derive(Clone, Copy, Debug)]
struct Open {
    kind: u8,
    is_final: bool,
    /// Bytes of payload to come.
    left: usize,
}

impl SocketReader {
    /// Reads messages of so many bytes at most.
    #[must_use]
    pub const fn new(limit: usize) -> Self {
        Self {
            limit,
            head: Vec::new(),
            frame: None,
            control: Vec::new(),
            message: None,
            text: Vec::new(),
            length: 0,
        }
    }

    /// Goes through `read` from `at` on. Every message that is complete is added to `lines`, with a
    /// line feed at its end. It stops behind a control message and tells it; `None` is the end of
    /// `read`.
    ///
    /// # Errors
    ///
    /// See [`SocketError`]. Nothing is to be read after it.
    pub fn next(
        &mut self,
        read: &[u8],
        at: &mut usize,
        lines: &mut Vec<u8>,
    ) -> Result<Option<Control>, SocketError> {
        loop {
            let Some(frame) = &mut self.frame else {
                let Some(byte) = read.get(*at) else {
                    return Ok(None);
                };
                *at += 1;
                self.head.push(*byte);
                self.frame = self.head_read()?;
                continue;
            };
            let rest = read.get(*at..).unwrap_or_default();
            let payload = rest.get(..frame.left).unwrap_or(rest);
            *at += payload.len();
            frame.left -= payload.len();
            let frame = *frame;
            match frame.kind {
                CLOSE | PING | PONG => self.control.extend_from_slice(payload),
                _ if self.message == Some(TEXT) => self.text.extend_from_slice(payload),
                _ => {}
            }
            if frame.left > 0 {
                return Ok(None);
            }
            self.frame = None;
            match frame.kind {
                CLOSE | PING | PONG => return Ok(Some(self.take_control(frame.kind))),
                _ if frame.is_final => self.finish(lines),
                _ => {}
            }
        }
    }

    /// The frame, once its head is complete.
    fn head_read(&mut self) -> Result<Option<Open>, SocketError> {
        let [first, second, extended @ ..] = &*self.head else {
            return Ok(None);
        };
        let (kind, is_final) = (first & 0x0f, first & FINAL != 0);
        if first & RESERVED != 0 {
            return Err(SocketError::Reserved);
        }
        if second & MASKED != 0 {
            return Err(SocketError::Masked);
        }
        let is_control = match kind {
            CONTINUATION | TEXT | BINARY => false,
            CLOSE | PING | PONG => true,
            unknown => return Err(SocketError::Kind(unknown)),
        };
        if is_control && (!is_final || *second > 125) {
            return Err(SocketError::Control);
        }
        let width = match second {
            126 => 2,
            127 => 8,
            _ => 0,
        };
        if extended.len() < width {
            return Ok(None);
        }
        let long = extended
            .iter()
            .fold(0, |n, byte| (n << 8) | u64::from(*byte));
        let long = if width == 0 { u64::from(*second) } else { long };
        let length = usize::try_from(long).unwrap_or(usize::MAX);
        self.head.clear();
        if !is_control {
            self.begin(kind, length)?;
        }
        Ok(Some(Open {
            kind,
            is_final,
            left: length,
        }))
    }

    /// A piece of a message, or a whole one, begins.
    fn begin(&mut self, kind: u8, length: usize) -> Result<(), SocketError> {
        match (kind, self.message) {
            (CONTINUATION, Some(_)) => {}
            (CONTINUATION, None) | (_, Some(_)) => return Err(SocketError::Pieces),
            (kind, None) => {
                self.message = Some(kind);
                self.length = 0;
            }
        }
        self.length = self.length.saturating_add(length);
        if self.length > self.limit {
            return Err(SocketError::TooLong { limit: self.limit });
        }
        Ok(())
    }

    fn take_control(&mut self, kind: u8) -> Control {
        let payload = core::mem::take(&mut self.control);
        match kind {
            PING => Control::Ping(payload),
            PONG => Control::Pong(payload),
            _ => {
                let code = payload.first_chunk().map(|code| u16::from_be_bytes(*code));
                let reason = payload.get(2..).unwrap_or_default();
                let reason = String::from_utf8_lossy(reason).into_owned();
                Control::Close { code, reason }
            }
        }
    }

    /// A message is complete.
    fn finish(&mut self, lines: &mut Vec<u8>) {
        if self.message.take() == Some(TEXT) {
            push_text(lines, &mut self.text);
        } else {
            push_binary(lines, self.length);
        }
    }
}

/// Makes a line of a text message, whose bytes it takes.
fn push_text(lines: &mut Vec<u8>, text: &mut Vec<u8>) {
    let mut from = 0;
    while let Some(found) = memchr::memchr(b'\n', text.get(from..).unwrap_or_default()) {
        from += found;
        if let Some(byte) = text.get_mut(from) {
            *byte = b' ';
        }
    }
    if lines.is_empty() {
        core::mem::swap(lines, text);
    } else {
        lines.extend_from_slice(text);
        text.clear();
        // A huge message must not hold its memory for ever.
        text.shrink_to(1 << 20);
    }
    lines.push(b'\n');
}

/// Makes a line that is no JSON of a binary message, which has no meaning in this protocol.
fn push_binary(lines: &mut Vec<u8>, length: usize) {
    lines.extend_from_slice(format!("[binary message of {length} bytes]\n").as_bytes());
}

/// Makes a text message of a line, in its memory; a line feed at its end is taken off. The mask is
/// to be drawn anew for each.
#[must_use]
pub fn text_message(mut line: Vec<u8>, mask: [u8; 4]) -> Vec<u8> {
    if line.last() == Some(&b'\n') {
        line.pop();
    }
    apply(&mut line, mask);
    let head = head(TEXT, line.len(), mask);
    line.splice(..0, head);
    line
}

/// Makes a ping, a pong or a close; the payload is cut to what fits.
#[must_use]
pub fn control_message(control: &Control, mask: [u8; 4]) -> Vec<u8> {
    let mut payload = Vec::new();
    let kind = match control {
        Control::Ping(bytes) | Control::Pong(bytes) => {
            payload.extend_from_slice(bytes);
            if matches!(control, Control::Ping(_)) {
                PING
            } else {
                PONG
            }
        }
        Control::Close { code, reason } => {
            if let Some(code) = code.filter(|code| may_be_sent(*code)) {
                payload.extend_from_slice(&code.to_be_bytes());
                payload.extend_from_slice(reason.as_bytes());
            }
            CLOSE
        }
    };
    let mut length = payload.len().min(125);
    if kind == CLOSE {
        while core::str::from_utf8(payload.get(2..length).unwrap_or_default()).is_err() {
            length -= 1;
        }
    }
    payload.truncate(length);
    apply(&mut payload, mask);
    let mut message = head(kind, payload.len(), mask);
    message.append(&mut payload);
    message
}

/// Whether a code may stand in a close frame (RFC 6455, section 7.4); what an answer repeats may be
/// anything.
const fn may_be_sent(code: u16) -> bool {
    matches!(code, 1000..=1003 | 1007..=1014 | 3000..=4999)
}

fn head(kind: u8, length: usize, mask: [u8; 4]) -> Vec<u8> {
    let mut head = Vec::with_capacity(HEAD + 125);
    head.push(FINAL | kind);
    match (u8::try_from(length), u16::try_from(length)) {
        (Ok(short @ ..=125), _) => head.push(MASKED | short),
        (_, Ok(middle)) => {
            head.push(MASKED | 126);
            head.extend_from_slice(&middle.to_be_bytes());
        }
        _ => {
            head.push(MASKED | 127);
            head.extend_from_slice(&(length as u64).to_be_bytes());
        }
    }
    head.extend_from_slice(&mask);
    head
}

fn apply(bytes: &mut [u8], mask: [u8; 4]) {
    for four in bytes.chunks_mut(4) {
        for (byte, mask) in four.iter_mut().zip(mask) {
            *byte ^= mask;
        }
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec;

    use super::*;

    /// A frame of a server.
    fn frame(first: u8, payload: &[u8]) -> Vec<u8> {
        let mut out = head(first & 0x0f, payload.len(), [0; 4]);
        out[0] = first;
        out[1] &= !MASKED;
        out.truncate(out.len() - 4);
        out.extend_from_slice(payload);
        out
    }

    fn text(payload: &[u8]) -> Vec<u8> {
        frame(FINAL | TEXT, payload)
    }

    type Told = Result<Vec<Control>, SocketError>;

    fn read_in(limit: usize, size: usize, bytes: &[u8]) -> (Vec<u8>, Told) {
        let mut reader = SocketReader::new(limit);
        let (mut lines, mut controls) = (Vec::new(), Vec::new());
        for read in bytes.chunks(size) {
            let mut at = 0;
            loop {
                match reader.next(read, &mut at, &mut lines) {
                    Ok(Some(control)) => controls.push(control),
                    Ok(None) => break,
                    Err(error) => return (lines, Err(error)),
                }
            }
            assert_eq!(at, read.len());
        }
        (lines, Ok(controls))
    }

    /// The same for every way to cut the bytes into reads.
    fn read(bytes: &[u8]) -> (Vec<u8>, Told) {
        let whole = read_in(1 << 20, bytes.len().max(1), bytes);
        for size in 1..bytes.len().min(300) {
            assert_eq!(read_in(1 << 20, size, bytes), whole, "{size}");
        }
        whole
    }

    #[test]
    fn a_text_message_is_a_line_whatever_is_in_it() {
        let long = vec![b'x'; 70_000];
        let bytes = [
            text(b"{}"),
            text(b""),
            text(b"{\n\"a\":\r\n1}\n"),
            text(b"\xff"),
        ];
        let (lines, told) = read(&bytes.concat());
        assert_eq!(lines, b"{}\n\n{ \"a\":\r 1} \n\xff\n");
        assert_eq!(told, Ok(vec![]));
        let (lines, _) = read_in(
            1 << 20,
            1000,
            &[text(b"1"), text(&long), text(b"2")].concat(),
        );
        assert_eq!(lines, [&b"1\n"[..], &long, b"\n2\n"].concat());
        let (lines, _) = read(&text(&[b'y'; 126]));
        assert_eq!(lines.len(), 127);
    }

    #[test]
    fn a_binary_message_is_a_line_that_is_no_json() {
        let bytes = [frame(FINAL | BINARY, &[0, b'\n', 255]), text(b"{}")];
        let (lines, _) = read(&bytes.concat());
        assert_eq!(lines, b"[binary message of 3 bytes]\n{}\n");
    }

    #[test]
    fn pieces_are_put_together_and_pings_come_between_them() {
        let bytes = [
            frame(TEXT, b"{\"a\""),
            frame(FINAL | PING, b"here?"),
            frame(CONTINUATION, b":"),
            frame(CONTINUATION, b""),
            frame(FINAL | CONTINUATION, b"1}"),
            frame(BINARY, b"ab"),
            frame(FINAL | PONG, b""),
            frame(FINAL | CONTINUATION, b"c"),
            frame(FINAL | CLOSE, b"\x03\xf0too slow"),
        ];
        let (lines, told) = read(&bytes.concat());
        assert_eq!(lines, b"{\"a\":1}\n[binary message of 3 bytes]\n");
        let close = Control::Close {
            code: Some(1008),
            reason: "too slow".into(),
        };
        let want = [Control::Ping(b"here?".into()), Control::Pong(vec![]), close];
        assert_eq!(told, Ok(want.into()));
    }

    #[test]
    fn a_close_may_say_nothing_or_half() {
        let nothing = Control::Close {
            code: None,
            reason: String::new(),
        };
        for payload in [&b""[..], b"\x03"] {
            let (_, told) = read(&frame(FINAL | CLOSE, payload));
            assert_eq!(told, Ok(vec![nothing.clone()]));
        }
        let (_, told) = read(&frame(FINAL | CLOSE, b"\x03\xe8\xff"));
        let want = Control::Close {
            code: Some(1000),
            reason: "\u{fffd}".into(),
        };
        assert_eq!(told, Ok(vec![want]));
    }

    #[test]
    fn the_limit_counts_a_message_and_is_known_from_its_head() {
        let exact = [text(b"12345"), text(b"1234567890")].concat();
        assert_eq!(read_in(10, 3, &exact).0, b"12345\n1234567890\n");
        let error = Err(SocketError::TooLong { limit: 10 });
        let longer = [text(b"1"), text(b"12345678901")].concat();
        for size in [1, 2, 100] {
            assert_eq!(read_in(10, size, &longer), (b"1\n".into(), error.clone()));
        }
        let pieces = [
            frame(TEXT, b"123456"),
            frame(FINAL | CONTINUATION, b"78901"),
        ]
        .concat();
        assert_eq!(read_in(10, 4, &pieces).1, error);
        for length in [u64::MAX, 1 << 63, 11] {
            let mut head = vec![FINAL | BINARY, 127];
            head.extend_from_slice(&length.to_be_bytes());
            assert_eq!(read_in(10, 3, &head).1, error);
        }
        // Two pieces whose sum is past what can be counted.
        let mut pieces = frame(TEXT, b"1234");
        pieces.extend_from_slice(&[CONTINUATION, 127]);
        pieces.extend_from_slice(&u64::MAX.to_be_bytes());
        assert_eq!(read_in(10, 5, &pieces).1, error);
    }

    #[test]
    fn what_breaks_the_rules_is_told() {
        let mut masked = text(b"{}");
        masked[1] |= MASKED;
        for (bytes, error) in [
            (masked, SocketError::Masked),
            (frame(0xc1, b"{}"), SocketError::Reserved),
            (frame(FINAL | 3, b""), SocketError::Kind(3)),
            (frame(FINAL | 11, b""), SocketError::Kind(11)),
            (frame(PING, b""), SocketError::Control),
            (frame(FINAL | CLOSE, &[0; 126]), SocketError::Control),
            (frame(FINAL | CONTINUATION, b""), SocketError::Pieces),
            ([frame(TEXT, b""), text(b"")].concat(), SocketError::Pieces),
        ] {
            let (lines, told) = read(&bytes);
            assert_eq!((&*lines, told), (&b""[..], Err(error)));
        }
    }

    #[test]
    fn what_we_send_is_masked_and_as_long_as_it_says() {
        let hello = text_message(b"Hello\n".into(), [0x37, 0xfa, 0x21, 0x3d]);
        // The example of RFC 6455, section 5.7.
        let want = [
            0x81, 0x85, 0x37, 0xfa, 0x21, 0x3d, 0x7f, 0x9f, 0x4d, 0x51, 0x58,
        ];
        assert_eq!(hello, want);
        assert_eq!(text_message(vec![], [1; 4]), [0x81, 0x80, 1, 1, 1, 1]);
        for (length, second, width) in [
            (125, 125, 0),
            (126, 126, 2),
            (65_535, 126, 2),
            (65_536, 127, 8),
        ] {
            let message = text_message(vec![b'z'; length], [0; 4]);
            assert_eq!(message[1], MASKED | second);
            assert_eq!(message.len(), 2 + width + 4 + length);
            let told = message[2..2 + width]
                .iter()
                .fold(0, |n, byte| (n << 8) | usize::from(*byte));
            assert!(width == 0 || told == length);
        }
    }

    #[test]
    fn control_messages_fit() {
        let close = |code, reason: &str| Control::Close {
            code,
            reason: reason.into(),
        };
        let unmasked = |control: &Control| control_message(control, [0; 4]).split_off(6);
        assert_eq!(unmasked(&close(Some(1000), "")), [3, 0xe8]);
        assert_eq!(unmasked(&close(None, "lost")), [0; 0]);
        // An answer repeats what came, unless it may not be sent.
        for code in [0, 999, 1004, 1005, 1006, 1015, 2999, 5000] {
            assert_eq!(unmasked(&close(Some(code), "lost")), [0; 0], "{code}");
        }
        assert_eq!(unmasked(&Control::Pong(vec![7; 200])).len(), 125);
        // No character is cut.
        let cut = unmasked(&close(Some(1002), &"é".repeat(100)));
        assert_eq!(cut.len(), 2 + 122);
        let ping = control_message(&Control::Ping(b"ab".into()), [1, 2, 3, 4]);
        assert_eq!(ping, [0x89, 0x82, 1, 2, 3, 4, b'a' ^ 1, b'b' ^ 2]);
    }
}
