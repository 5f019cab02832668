//! Byte codecs without IO that the runtimes and the tool share: lines, journal, trace,
//! WebSocket.

pub mod journal;
pub mod lines;
pub mod socket;
pub mod trace;

use alloc::string::String;
use core::fmt::Write as _;

/// The checksum of both logs (CRC-32 as in zlib), as 8 lower-case hex digits.
pub(crate) fn checksum(bytes: &[u8]) -> String {
    let mut out = String::with_capacity(8);
    // Writing to a String cannot fail.
    let _ = write!(out, "{:08x}", crc32fast::hash(bytes));
    out
}
