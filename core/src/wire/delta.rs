//! A piece of text with its members in the order in which the servers write them, read without a
//! parser. Like all of the hot path it never reports an error: it declines.

use alloc::string::String;
use core::{cell::Cell, fmt};

use super::{WireDelta, text};
use crate::event::DeltaKind;

/// From how many bytes on a text is looked at once, and unescaped at the same time.
const LONG: usize = 1 << 10;

/// The text of a delta where it was unescaped when the line was read. It says nothing that the raw
/// text does not say, so that no two deltas differ by it.
#[derive(Default)]
pub(crate) struct Unescaped(Cell<Option<String>>);

impl Unescaped {
    pub(crate) fn take(&self) -> Option<String> {
        self.0.take()
    }
}

impl fmt::Debug for Unescaped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("_")
    }
}

impl PartialEq for Unescaped {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for Unescaped {}

/// Reads the parameters of a delta from where they begin, and tells what follows them.
pub(super) fn read(kind: DeltaKind, rest: &str) -> Option<(WireDelta<'_>, &str)> {
    if has_control(rest.as_bytes()) {
        return None;
    }
    let (thread, rest) = plain(rest.strip_prefix(r#"{"threadId":""#)?)?;
    let (turn, rest) = plain(rest.strip_prefix(r#","turnId":""#)?)?;
    let (item, rest) = plain(rest.strip_prefix(r#","itemId":""#)?)?;
    let rest = rest.strip_prefix(r#","delta":"#)?;
    let mut unescaped = None;
    let end = if rest.len() < LONG {
        end_of_string(rest)?
    } else {
        let mut text = String::with_capacity(rest.len());
        let left = text::unescape_first(rest, &mut text)?;
        unescaped = Some(text);
        rest.len() - left.len()
    };
    let (text, rest) = rest.split_at(end);
    let (part, rest) = match kind {
        DeltaKind::Reasoning => number(rest.strip_prefix(r#","contentIndex":"#)?)?,
        DeltaKind::ReasoningSummary => number(rest.strip_prefix(r#","summaryIndex":"#)?)?,
        DeltaKind::Agent
        | DeltaKind::Plan
        | DeltaKind::CommandOutput
        | DeltaKind::FileChangeOutput => (0, rest),
    };
    let delta = WireDelta {
        kind,
        thread,
        turn,
        item,
        part,
        text,
        unescaped: Unescaped(Cell::new(unescaped)),
    };
    Some((delta, rest.strip_prefix('}')?))
}

/// Whether there is a control character: no JSON string may hold one.
fn has_control(bytes: &[u8]) -> bool {
    // Without an early end the compiler looks at many bytes at once.
    bytes.iter().fold(false, |found, b| found | (*b < b' '))
}

/// A string without escapes, behind its first quote.
fn plain(rest: &str) -> Option<(&str, &str)> {
    let end = memchr::memchr2(b'"', b'\\', rest.as_bytes())?;
    let (text, rest) = rest.split_at(end);
    Some((text, rest.strip_prefix('"')?))
}

/// Where a string ends, quotes included.
fn end_of_string(rest: &str) -> Option<usize> {
    let bytes = rest.strip_prefix('"')?.as_bytes();
    let mut at = 0;
    loop {
        at += memchr::memchr2(b'"', b'\\', bytes.get(at..)?)?;
        at += match (bytes.get(at)?, bytes.get(at + 1)) {
            (b'"', _) => return Some(at + 2),
            (_, Some(b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't')) => 2,
            (_, Some(b'u')) => {
                let digits = bytes.get(at + 2..at + 6)?;
                digits.iter().all(u8::is_ascii_hexdigit).then_some(6)?
            }
            (_, _) => return None,
        };
    }
}

/// A number as JSON writes it.
fn number(rest: &str) -> Option<(u16, &str)> {
    let end = rest.bytes().position(|b| !b.is_ascii_digit())?;
    let (digits, rest) = rest.split_at(end);
    if digits.len() > 1 && digits.starts_with('0') {
        return None;
    }
    Some((digits.parse().ok()?, rest))
}
