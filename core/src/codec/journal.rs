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
    let body = BodyRef {
        seq: batch.through,
        at: batch.at,
        records: &batch.records,
    };
    // Records have string keys only and no IO: writing them cannot fail.
    let body = serde_json::to_string(&body).expect("records can be written as JSON");
    let crc = checksum(body.as_bytes());
    format!(
        "{{\"v\":{VERSION},\"len\":{},\"crc\":\"{crc}\",\"body\":{body}}}\n",
        body.len()
    )
    .into_bytes()
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
    let mut entries: Vec<(u64, Entry)> = Vec::new();
    let mut at = 0;
    while at < bytes.len() {
        let offset = at as u64;
        let rest = &bytes[at..];
        let Some(end) = memchr::memchr(b'\n', rest) else {
            if entries.is_empty() && !looks_like_ours(rest) {
                return Err(JournalError::Foreign);
            }
            return Ok(Journal {
                entries,
                torn: Some(offset),
            });
        };
        let damaged = |reason: String| JournalError::Damaged {
            offset,
            index: entries.len() as u64,
            reason,
        };
        let entry = match decode_line(&rest[..end]) {
            Ok(entry) => entry,
            Err(LineError::Version(version)) => {
                return Err(JournalError::Version { offset, version });
            }
            Err(LineError::Envelope) if entries.is_empty() && !looks_like_ours(rest) => {
                return Err(JournalError::Foreign);
            }
            Err(LineError::Envelope) => return Err(damaged("the envelope is malformed".into())),
            Err(LineError::Length) => {
                return Err(damaged("the length does not fit the body".into()));
            }
            Err(LineError::Checksum) => {
                return Err(damaged("the checksum does not fit the body".into()));
            }
            Err(LineError::Body(reason)) => return Err(damaged(reason)),
        };
        let expected = entries
            .last()
            .map_or(Some(JournalSeq(1)), |(_, last)| last.seq.next());
        if Some(entry.seq) != expected {
            return Err(damaged(format!("batch {} is out of order", entry.seq)));
        }
        entries.push((offset, entry));
        at += end + 1;
    }
    Ok(Journal {
        entries,
        torn: None,
    })
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
