//! The journal's lines. One line is one batch, so a batch is there whole or not at all:
//!
//! ```text
//! {"v":1,"len":73,"crc":"5d3f0a11","body":{"seq":1,"at":1795961833597000,"records":[…]}}
//! ```
//!
//! `len` is the length of the body in bytes, `crc` its CRC-32.

use alloc::{
    format,
    string::{String, ToString},
    vec::Vec,
};

use serde::{Deserialize, Serialize};

use super::checksum;
use crate::{
    effect::Batch,
    id::{JournalSeq, parse_hex},
    record::Record,
    time::Timestamp,
};

/// The version of the envelope and of the records in it.
pub const VERSION: u32 = 1;

#[derive(Serialize)]
struct BodyRef<'a> {
    seq: JournalSeq,
    at: Timestamp,
    records: &'a [Record],
}

/// A batch as it was read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Entry {
    /// The number of the batch.
    pub seq: JournalSeq,
    /// When it was decided.
    pub at: Timestamp,
    /// Its records.
    pub records: Vec<Record>,
}

/// Writes a batch as one line, with its line feed.
#[must_use]
pub fn encode(batch: &Batch) -> Vec<u8> {
    let mut line = Vec::new();
    encode_into(batch, &mut line);
    line
}

/// Writes a batch behind what stands there, as one line with its line feed.
pub fn encode_into(batch: &Batch, out: &mut Vec<u8>) {
    let body = BodyRef {
        seq: batch.through,
        at: batch.at,
        records: &batch.records,
    };
    // Records have string keys only and no IO: writing them cannot fail.
    let body = serde_json::to_vec(&body).expect("records can be written as JSON");
    let crc = checksum(&body);
    let head = format!(
        "{{\"v\":{VERSION},\"len\":{},\"crc\":\"{crc}\",\"body\":",
        body.len()
    );
    out.reserve(head.len() + body.len() + 2);
    out.extend_from_slice(head.as_bytes());
    out.extend_from_slice(&body);
    out.extend_from_slice(b"}\n");
}

/// Why a journal cannot be read. The file is left as it was.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum JournalError {
    /// The first bytes are not those of a journal.
    #[error("not a turnkeep journal")]
    Foreign,
    /// A batch is of a version that this turnkeep does not know.
    #[error("offset {offset}: version {version}, this turnkeep reads {VERSION}")]
    Version {
        /// Where the batch begins, in bytes.
        offset: u64,
        /// Its version.
        version: u64,
    },
    /// A batch is damaged.
    #[error("offset {offset}, batch {index}: {reason}")]
    Damaged {
        /// Where the batch begins, in bytes.
        offset: u64,
        /// How many batches stand before it.
        index: u64,
        /// What is wrong.
        reason: String,
    },
}

/// What a journal holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Journal {
    /// The batches, each with its offset in bytes.
    pub entries: Vec<(u64, Entry)>,
    /// Where a torn tail begins, if there is one: what follows was never confirmed.
    pub torn: Option<u64>,
}

/// Reads a whole journal. A line without its end at the very end is a torn tail; anything else
/// that does not fit is an error with its offset.
///
/// # Errors
///
/// See [`JournalError`].
pub fn decode(bytes: &[u8]) -> Result<Journal, JournalError> {
    decode_with(Decoder::new(), bytes)
}

/// Reads one file of a journal that may have others before it: it begins with any batch.
///
/// # Errors
///
/// See [`JournalError`].
pub fn decode_segment(bytes: &[u8]) -> Result<Journal, JournalError> {
    decode_with(Decoder::anywhere(), bytes)
}

fn decode_with(mut decoder: Decoder, bytes: &[u8]) -> Result<Journal, JournalError> {
    let mut entries = Vec::new();
    let mut rest = bytes;
    while let Some(end) = memchr::memchr(b'\n', rest) {
        let offset = decoder.offset();
        entries.push((offset, decoder.line(&rest[..end])?));
        rest = &rest[end + 1..];
    }
    decoder.tail(rest)?;
    let torn = (!rest.is_empty()).then(|| decoder.offset());
    Ok(Journal { entries, torn })
}

/// Reads a journal line by line, in as little memory as its longest line takes.
#[derive(Clone, Debug)]
pub struct Decoder {
    /// Where the next line begins in its file.
    offset: u64,
    /// How many lines of the file stand before it.
    index: u64,
    expected: Expected,
}

/// Which batch may come next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Expected {
    Any,
    /// The first batch of all, or a checkpoint in place of those before it.
    First,
    After(JournalSeq),
}

impl Decoder {
    /// Reads from a journal's first batch, or from a checkpoint on.
    #[must_use]
    pub const fn new() -> Self {
        Self::with(Expected::First)
    }

    /// Reads from any batch on.
    #[must_use]
    pub const fn anywhere() -> Self {
        Self::with(Expected::Any)
    }

    const fn with(expected: Expected) -> Self {
        Self {
            offset: 0,
            index: 0,
            expected,
        }
    }

    /// Goes on with the next file of the same journal.
    pub fn next_file(&mut self) {
        self.offset = 0;
        self.index = 0;
    }

    /// Where the next line begins in its file, in bytes.
    #[must_use]
    pub const fn offset(&self) -> u64 {
        self.offset
    }

    /// How many lines of the file were read.
    #[must_use]
    pub const fn index(&self) -> u64 {
        self.index
    }

    /// The last batch that was read.
    #[must_use]
    pub const fn last(&self) -> Option<JournalSeq> {
        match self.expected {
            Expected::After(last) => Some(last),
            Expected::Any | Expected::First => None,
        }
    }

    /// Reads a whole line, which comes without its line feed.
    ///
    /// # Errors
    ///
    /// See [`JournalError`].
    pub fn line(&mut self, line: &[u8]) -> Result<Entry, JournalError> {
        let entry = decode_line(line).map_err(|error| self.refuse(line, error))?;
        let is_next = match self.expected {
            Expected::Any => true,
            Expected::First => entry.seq == JournalSeq(1) || entry.is_checkpoint(),
            Expected::After(last) => Some(entry.seq) == last.next(),
        };
        if !is_next {
            return Err(self.damaged(format!("batch {} is out of order", entry.seq)));
        }
        self.expected = Expected::After(entry.seq);
        self.offset += line.len() as u64 + 1;
        self.index += 1;
        Ok(entry)
    }

    /// Looks at what follows the last line feed of all: a torn tail, which was never confirmed.
    ///
    /// # Errors
    ///
    /// It is the beginning of something else than a journal.
    pub fn tail(&self, rest: &[u8]) -> Result<(), JournalError> {
        // Where the file grew and its bytes never came, the system reads zeros.
        let written = rest.iter().rposition(|b| *b != 0).map_or(0, |at| at + 1);
        match self.index == 0 && !looks_like_ours(&rest[..written]) {
            true => Err(JournalError::Foreign),
            false => Ok(()),
        }
    }

    fn refuse(&self, line: &[u8], error: LineError) -> JournalError {
        let reason = match error {
            LineError::Version(version) => {
                return JournalError::Version {
                    offset: self.offset,
                    version,
                };
            }
            LineError::Envelope if self.index == 0 && !looks_like_ours(line) => {
                return JournalError::Foreign;
            }
            LineError::Envelope => "the envelope is malformed".into(),
            LineError::Length => "the length does not fit the body".into(),
            LineError::Checksum => "the checksum does not fit the body".into(),
            LineError::Body(reason) => reason,
        };
        self.damaged(reason)
    }

    /// Says that the next line does not fit.
    #[must_use]
    pub fn damaged(&self, reason: String) -> JournalError {
        JournalError::Damaged {
            offset: self.offset,
            index: self.index,
            reason,
        }
    }
}

impl Default for Decoder {
    fn default() -> Self {
        Self::new()
    }
}

impl Entry {
    /// Whether it stands for all batches up to its own number.
    #[must_use]
    pub fn is_checkpoint(&self) -> bool {
        self.records.first().is_some_and(|r| r.kind() == CHECKPOINT)
    }
}

/// The kind of the record that stands for all before it.
const CHECKPOINT: &str = "checkpoint";

/// Whether a line, or its first hundred bytes, is that of a checkpoint, as far as can be told
/// without reading all of it.
#[must_use]
pub fn is_checkpoint_line(line: &[u8]) -> bool {
    let body = || {
        let (_, rest) = digits(line.strip_prefix(br#"{"v":"#)?)?;
        let (_, rest) = digits(rest.strip_prefix(br#","len":"#)?)?;
        let rest = rest.strip_prefix(br#","crc":""#)?.get(8..)?;
        let (_, rest) = digits(rest.strip_prefix(br#"","body":{"seq":"#)?)?;
        let (_, rest) = digits(rest.strip_prefix(br#","at":"#)?)?;
        rest.strip_prefix(br#","records":[{""#)?
            .strip_prefix(CHECKPOINT.as_bytes())
    };
    body().is_some_and(|rest| rest.starts_with(b"\""))
}

fn looks_like_ours(bytes: &[u8]) -> bool {
    let prefix = br#"{"v":"#;
    bytes.iter().zip(prefix).all(|(a, b)| a == b)
}

enum LineError {
    Envelope,
    Version(u64),
    Length,
    Checksum,
    Body(String),
}

fn decode_line(line: &[u8]) -> Result<Entry, LineError> {
    let rest = line.strip_prefix(br#"{"v":"#).ok_or(LineError::Envelope)?;
    let (version, rest) = digits(rest).ok_or(LineError::Envelope)?;
    if version != u64::from(VERSION) {
        return Err(LineError::Version(version));
    }
    let rest = rest
        .strip_prefix(br#","len":"#)
        .ok_or(LineError::Envelope)?;
    let (len, rest) = digits(rest).ok_or(LineError::Envelope)?;
    let rest = rest
        .strip_prefix(br#","crc":""#)
        .ok_or(LineError::Envelope)?;
    let (crc, rest) = rest.split_at_checked(8).ok_or(LineError::Envelope)?;
    let crc = core::str::from_utf8(crc).map_err(|_| LineError::Envelope)?;
    parse_hex(crc).ok_or(LineError::Envelope)?;
    let rest = rest
        .strip_prefix(br#"","body":"#)
        .ok_or(LineError::Envelope)?;
    let body = rest.strip_suffix(b"}").ok_or(LineError::Envelope)?;
    if body.len() as u64 != len {
        return Err(LineError::Length);
    }
    if checksum(body) != crc {
        return Err(LineError::Checksum);
    }
    serde_json::from_slice(body).map_err(|e| LineError::Body(e.to_string()))
}

fn digits(bytes: &[u8]) -> Option<(u64, &[u8])> {
    let end = bytes.iter().position(|b| !b.is_ascii_digit())?;
    let text = core::str::from_utf8(&bytes[..end]).ok()?;
    (text == "0" || !text.starts_with('0'))
        .then(|| text.parse().ok().map(|n| (n, &bytes[end..])))?
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::effect::Durability;

    fn batch(seq: u64) -> Batch {
        Batch {
            through: JournalSeq(seq),
            durability: Durability::Synced,
            at: Timestamp(7),
            records: alloc::vec![Record::Start {
                version: "0.1.0".into(),
                seed: seq,
                at: Timestamp(7),
            }],
        }
    }

    fn two() -> Vec<u8> {
        [encode(&batch(1)), encode(&batch(2))].concat()
    }

    #[test]
    fn the_envelope_has_its_first_form() {
        assert_eq!(
            core::str::from_utf8(&encode(&batch(1))).unwrap(),
            "{\"v\":1,\"len\":74,\"crc\":\"c8873582\",\"body\":{\"seq\":1,\"at\":7,\"records\":\
             [{\"start\":{\"version\":\"0.1.0\",\"seed\":1,\"at\":7}}]}}\n"
        );
    }

    #[test]
    fn a_journal_reads_back_and_a_torn_tail_is_told_at_every_cut() {
        let bytes = two();
        let first = encode(&batch(1)).len();
        let whole = decode(&bytes).unwrap();
        assert_eq!((whole.entries.len(), whole.torn), (2, None));
        for cut in 1..first {
            let torn = decode(&bytes[..first + cut]).unwrap();
            assert_eq!(
                (torn.entries.len(), torn.torn),
                (1, Some(first as u64)),
                "cut {cut}"
            );
        }
    }

    #[test]
    fn every_flipped_byte_is_noticed() {
        let bytes = two();
        for at in 0..bytes.len() {
            let mut bad = bytes.clone();
            bad[at] ^= 1;
            let got = decode(&bad);
            // The last line feed gone makes a torn tail, which was never confirmed.
            let torn = at == bytes.len() - 1 && got.as_ref().is_ok_and(|j| j.torn.is_some());
            assert!(got.is_err() || torn, "byte {at}: {got:?}");
        }
    }

    fn checkpoint(through: u64) -> Batch {
        let mut durable = crate::Durable::default();
        for seq in 1..=through {
            durable.apply(&batch(seq).records[0]).unwrap();
        }
        Batch {
            records: alloc::vec![durable.checkpoint()],
            ..batch(through)
        }
    }

    #[test]
    fn a_checkpoint_begins_a_journal_and_stands_nowhere_else() {
        let (all, next) = (encode(&checkpoint(7)), encode(&batch(8)));
        let read = decode(&[&all[..], &next].concat()).unwrap();
        let seqs: Vec<u64> = read.entries.iter().map(|(_, e)| e.seq.0).collect();
        assert_eq!(seqs, [7, 8]);
        assert!(read.entries[0].1.is_checkpoint() && !read.entries[1].1.is_checkpoint());
        for (first, second) in [
            (encode(&checkpoint(7)), encode(&batch(9))),
            (encode(&batch(1)), encode(&checkpoint(1))),
            (encode(&batch(2)), encode(&batch(3))),
        ] {
            let error = decode(&[first, second].concat()).unwrap_err();
            assert!(
                alloc::string::ToString::to_string(&error).ends_with("is out of order"),
                "{error}"
            );
        }
        let one = decode_segment(&encode(&batch(8))).unwrap();
        assert_eq!(one.entries[0].1.seq.0, 8);
    }

    #[test]
    fn a_checkpoint_is_told_by_the_head_of_its_line() {
        let line = encode(&checkpoint(7));
        let name = line
            .windows(12)
            .position(|w| w == b"\"checkpoint\"")
            .unwrap();
        for at in 0..line.len() {
            assert_eq!(is_checkpoint_line(&line[..at]), at >= name + 12, "{at}");
        }
        assert!(name < 128);
        assert!(!is_checkpoint_line(&encode(&batch(1))));
    }

    #[test]
    fn files_of_one_journal_are_read_one_after_the_other() {
        let mut decoder = Decoder::new();
        let lines = [encode(&batch(1)), encode(&batch(2)), encode(&batch(4))];
        let [first, second, fourth] = lines
            .each_ref()
            .map(|line| line.strip_suffix(b"\n").unwrap());
        decoder.line(first).unwrap();
        decoder.next_file();
        assert_eq!((decoder.offset(), decoder.index()), (0, 0));
        decoder.line(second).unwrap();
        assert_eq!(decoder.last(), Some(JournalSeq(2)));
        let (offset, index) = (second.len() as u64 + 1, 1);
        assert!(matches!(
            decoder.line(fourth),
            Err(JournalError::Damaged { offset: o, index: i, .. }) if (o, i) == (offset, index)
        ));
    }

    #[test]
    fn zeros_at_the_end_are_torn_and_in_the_middle_they_are_damage() {
        let (bytes, first) = (two(), encode(&batch(1)).len());
        for kept in [0, 1, 3, first - 1, first, first + 9] {
            let torn = decode(&[&bytes[..kept], &[0; 99]].concat()).unwrap();
            let at = if kept < first { 0 } else { first as u64 };
            assert_eq!(torn.torn, Some(at), "{kept}");
            let hole = [&bytes[..kept], &[0; 99], &bytes[first..]].concat();
            assert!(decode(&hole).is_err(), "{kept}");
        }
        assert_eq!(decode(b"hello").unwrap_err(), JournalError::Foreign);
    }

    #[test]
    fn an_unknown_field_and_version_are_refused() {
        let body = r#"{"seq":1,"at":7,"records":[],"more":1}"#;
        let line = format!(
            "{{\"v\":1,\"len\":{},\"crc\":\"{}\",\"body\":{body}}}\n",
            body.len(),
            checksum(body.as_bytes())
        );
        assert!(matches!(
            decode(line.as_bytes()),
            Err(JournalError::Damaged { offset: 0, .. })
        ));
        let newer = line.replacen("\"v\":1", "\"v\":2", 1);
        let error = decode(newer.as_bytes()).unwrap_err();
        assert_eq!(
            error,
            JournalError::Version {
                offset: 0,
                version: 2
            }
        );
        assert_eq!(decode(b"hello\n").unwrap_err(), JournalError::Foreign);
    }
}
