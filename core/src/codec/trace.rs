//! A recorded session: a header, then one line an input, with its time and the effects of its step.
//!
//! ```text
//! {"turnkeep_trace":1,"rules":2,"made_by":"0.1.0","t":…,"seed":…,"config":{…},"fx":[…],"due":…,"crc":"…"}
//! {"t":…,"recv":1,"b":[{…a frame as it came…},"half a li"],"fx":[…],"due":…,"crc":"…"}
//! {"t":…,"in":{"Command":{…}},"fx":[…],"due":…,"crc":"…"}
//! ```
//!
//! A piece of a read is an object (a whole line as it came, less its line feed), a string (text that
//! is no whole line) or an array of hex (bytes that are not UTF-8). The checksum covers the line up
//! to its own member, so that a changed byte is found even where it changes no effect.

use alloc::{
    borrow::ToOwned,
    boxed::Box,
    format,
    string::{String, ToString},
    vec::Vec,
};
use core::fmt::Write as _;

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::{checksum, journal::Entry};
use crate::{
    config::{Config, ConfigError},
    effect::Effects,
    error::RecordError,
    id::{Epoch, parse_hex},
    input::Input,
    json::{JsonKind, write_string},
    machine::Machine,
    recovery::Recovery,
    time::Timestamp,
};

/// The version of the trace's form.
pub const VERSION: u32 = 1;

/// The version of the machine's rules: raised with every change that gives other effects for the
/// same inputs.
pub const RULES: u32 = 5;

/// How a trace begins.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Header {
    /// The version of turnkeep that made it.
    pub made_by: String,
    /// When the machine was made.
    pub at: Timestamp,
    /// The seed of all chance.
    pub seed: u64,
    /// The machine's configuration.
    pub config: Config,
    /// What earlier lives left in the journal, as a checkpoint in place of all their batches.
    pub from: Option<Box<Entry>>,
    /// What making the machine led to, as it is written.
    pub effects: Recorded,
}

impl Header {
    /// Makes the machine that the trace is of, and what making it leads to.
    ///
    /// # Errors
    ///
    /// The configuration is refused, or what earlier lives left makes no state.
    pub fn machine(&self) -> Result<(Machine, Effects), MakeError> {
        let mut recovery = Recovery::new(self.config.clone(), self.seed)?;
        if let Some(from) = &self.from {
            recovery.push(from)?;
        }
        Ok(recovery.finish(self.at))
    }
}

/// Why a trace's header makes no machine.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MakeError {
    /// The configuration is refused.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// What earlier lives left makes no state.
    #[error(transparent)]
    Record(#[from] RecordError),
}

/// One step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// The time that the step was told.
    pub at: Timestamp,
    /// The input.
    pub input: Input,
    /// What it led to, as it is written.
    pub effects: Recorded,
}

/// Effects as they stand in a trace: compared as text.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Recorded {
    /// Each effect's JSON.
    pub effects: Vec<String>,
    /// The deadline's JSON.
    pub due: String,
}

impl Recorded {
    /// Writes effects as a trace has them.
    #[must_use]
    pub fn of(effects: &Effects) -> Self {
        Self {
            effects: effects.list.iter().map(json).collect(),
            due: json(&effects.deadline),
        }
    }

    fn write(&self, out: &mut String) {
        out.push_str(r#","fx":["#);
        for (at, effect) in self.effects.iter().enumerate() {
            if at > 0 {
                out.push(',');
            }
            out.push_str(effect);
        }
        let _ = write!(out, r#"],"due":{}"#, self.due);
    }
}

fn json<T: Serialize>(value: &T) -> String {
    // Effects and inputs have string keys only and no IO: writing them cannot fail.
    serde_json::to_string(value).expect("effects and inputs can be written as JSON")
}

/// Writes the header's line, with its line feed.
#[must_use]
pub fn encode_header(at: Timestamp, seed: u64, config: &Config, effects: &Effects) -> String {
    encode_header_from(at, seed, config, None, effects)
}

/// Writes the header's line of a machine that goes on from what earlier lives left in the journal.
#[must_use]
pub fn encode_header_from(
    at: Timestamp,
    seed: u64,
    config: &Config,
    from: Option<&Entry>,
    effects: &Effects,
) -> String {
    let mut out = format!(
        r#"{{"turnkeep_trace":{VERSION},"rules":{RULES},"made_by":"{}","t":{},"seed":{seed},"config":{}"#,
        crate::VERSION,
        at.0,
        json(config),
    );
    if let Some(from) = from {
        let _ = write!(out, r#","from":{}"#, json(from));
    }
    Recorded::of(effects).write(&mut out);
    seal(out)
}

/// Writes the line of one step, with its line feed.
#[must_use]
pub fn encode_step(at: Timestamp, input: &Input, effects: &Effects) -> String {
    let mut out = format!(r#"{{"t":{}"#, at.0);
    match input {
        Input::Received(epoch, bytes) => {
            let _ = write!(out, r#","recv":{epoch},"b":["#);
            write_pieces(bytes, &mut out);
            out.push(']');
        }
        Input::Command { .. }
        | Input::Opened(..)
        | Input::SendFailed(..)
        | Input::Closed(..)
        | Input::Appended { .. }
        | Input::AppendFailed
        | Input::QueueFull(_)
        | Input::Tick => {
            out.push_str(r#","in":"#);
            out.push_str(&json(input));
        }
    }
    Recorded::of(effects).write(&mut out);
    seal(out)
}

fn seal(mut out: String) -> String {
    let crc = checksum(out.as_bytes());
    let _ = writeln!(out, "{SEAL}{crc}\"}}");
    out
}

const SEAL: &str = r#","crc":""#;

fn write_pieces(bytes: &[u8], out: &mut String) {
    let mut first = true;
    let mut at = 0;
    while at < bytes.len() {
        if !first {
            out.push(',');
        }
        first = false;
        let rest = &bytes[at..];
        let end = memchr::memchr(b'\n', rest).map_or(rest.len(), |n| n + 1);
        let piece = &rest[..end];
        at += end;
        match core::str::from_utf8(piece) {
            Ok(text) => match text
                .strip_suffix('\n')
                .filter(|line| is_verbatim_object(line))
            {
                Some(line) => out.push_str(line),
                None => write_string(text, out),
            },
            Err(_) => {
                out.push_str("[\"");
                for byte in piece {
                    let _ = write!(out, "{byte:02x}");
                }
                out.push_str("\"]");
            }
        }
    }
}

/// Whether a line is one JSON object and nothing else, so that it can stand in the trace as it is.
fn is_verbatim_object(line: &str) -> bool {
    line.starts_with('{')
        && serde_json::from_str::<&RawValue>(line).is_ok_and(|raw| raw.get().len() == line.len())
        && !line.contains('\r')
}

/// Why a trace cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TraceError {
    /// It is no trace of turnkeep.
    #[error("not a turnkeep recording")]
    Foreign,
    /// It was made by a version whose rules differ: its effects cannot be compared.
    #[error("made by turnkeep {made_by} (rules {rules}); this one has rules {RULES}")]
    Rules {
        /// The version that made it.
        made_by: String,
        /// Its rules.
        rules: u32,
    },
    /// Its form is of another version.
    #[error("a recording of version {version}; this turnkeep reads version {VERSION}")]
    Version {
        /// The version.
        version: u32,
    },
    /// A line is damaged.
    #[error("line {line} (offset {offset}): {reason}")]
    Damaged {
        /// The line, from 1.
        line: u64,
        /// Where it begins, in bytes.
        offset: u64,
        /// What is wrong.
        reason: String,
    },
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct HeaderLine<'a> {
    turnkeep_trace: u32,
    rules: u32,
    made_by: String,
    t: u64,
    seed: u64,
    #[serde(borrow)]
    config: &'a RawValue,
    #[serde(default)]
    from: Option<Box<Entry>>,
    #[serde(borrow)]
    fx: Vec<&'a RawValue>,
    #[serde(borrow)]
    due: &'a RawValue,
    #[serde(rename = "crc")]
    _crc: &'a str,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct StepLine<'a> {
    t: u64,
    #[serde(default)]
    recv: Option<u32>,
    #[serde(borrow, default)]
    b: Option<Vec<&'a RawValue>>,
    #[serde(borrow, default, rename = "in")]
    input: Option<&'a RawValue>,
    #[serde(borrow)]
    fx: Vec<&'a RawValue>,
    #[serde(borrow)]
    due: &'a RawValue,
    #[serde(rename = "crc")]
    _crc: &'a str,
}

/// Reads a trace, line by line.
#[derive(Debug)]
pub struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
    line: u64,
}

impl<'a> Reader<'a> {
    /// Reads the header.
    ///
    /// # Errors
    ///
    /// See [`TraceError`].
    pub fn new(bytes: &'a [u8]) -> Result<(Self, Header), TraceError> {
        let mut reader = Self {
            bytes,
            at: 0,
            line: 0,
        };
        let prefix = br#"{"turnkeep_trace":"#;
        let first = bytes.split(|b| *b == b'\n').next().unwrap_or_default();
        let seal = first.len().checked_sub(SEAL.len() + 10);
        let sealed = seal.is_some_and(|at| first[at..].starts_with(SEAL.as_bytes()));
        if !first.starts_with(prefix) && !sealed {
            return Err(TraceError::Foreign);
        }
        let (line, offset) = match reader.next_line() {
            Some(line) => line?,
            None => return Err(TraceError::Foreign),
        };
        let damaged = |reason: String| TraceError::Damaged {
            line: 1,
            offset: offset as u64,
            reason,
        };
        let header: HeaderLine<'_> =
            serde_json::from_str(line).map_err(|e| damaged(e.to_string()))?;
        if header.turnkeep_trace != VERSION {
            return Err(TraceError::Version {
                version: header.turnkeep_trace,
            });
        }
        if header.rules != RULES {
            return Err(TraceError::Rules {
                made_by: header.made_by,
                rules: header.rules,
            });
        }
        let config =
            serde_json::from_str(header.config.get()).map_err(|e| damaged(e.to_string()))?;
        let effects = recorded(&header.fx, header.due);
        let header = Header {
            made_by: header.made_by,
            at: Timestamp(header.t),
            seed: header.seed,
            config,
            from: header.from,
            effects,
        };
        Ok((reader, header))
    }

    /// The next line's text, its checksum found right.
    fn next_line(&mut self) -> Option<Result<(&'a str, usize), TraceError>> {
        let offset = self.at;
        let rest = self.bytes.get(offset..)?;
        if rest.is_empty() {
            return None;
        }
        self.line += 1;
        let damaged = |line, reason: &str| {
            Some(Err(TraceError::Damaged {
                line,
                offset: offset as u64,
                reason: reason.to_owned(),
            }))
        };
        let Some(end) = memchr::memchr(b'\n', rest) else {
            self.at = self.bytes.len();
            return damaged(
                self.line,
                "the line is cut: the recording ends in the middle of it",
            );
        };
        self.at += end + 1;
        let line = &rest[..end];
        let Some(seal) = line.len().checked_sub(SEAL.len() + 10) else {
            return damaged(self.line, "the line has no checksum");
        };
        let (body, tail) = line.split_at(seal);
        let crc = tail
            .strip_prefix(SEAL.as_bytes())
            .and_then(|t| t.strip_suffix(b"\"}"));
        match crc {
            None => damaged(self.line, "the line has no checksum"),
            Some(crc) if crc != checksum(body).as_bytes() => {
                damaged(self.line, "the checksum does not fit the line")
            }
            Some(_) => match core::str::from_utf8(line) {
                Ok(line) => Some(Ok((line, offset))),
                Err(_) => damaged(self.line, "the line is not UTF-8"),
            },
        }
    }
}

impl Iterator for Reader<'_> {
    type Item = Result<Step, TraceError>;

    fn next(&mut self) -> Option<Self::Item> {
        let (line, offset) = match self.next_line()? {
            Ok(line) => line,
            Err(error) => return Some(Err(error)),
        };
        let step = read_step(line).map_err(|reason| TraceError::Damaged {
            line: self.line,
            offset: offset as u64,
            reason,
        });
        Some(step)
    }
}

fn recorded(fx: &[&RawValue], due: &RawValue) -> Recorded {
    Recorded {
        effects: fx.iter().map(|e| e.get().to_owned()).collect(),
        due: due.get().to_owned(),
    }
}

fn read_step(line: &str) -> Result<Step, String> {
    let step: StepLine<'_> = serde_json::from_str(line).map_err(|e| e.to_string())?;
    let input = match (step.recv, step.b, step.input) {
        (Some(epoch), Some(pieces), None) => Input::Received(Epoch(epoch), join(&pieces)?),
        (None, None, Some(raw)) => serde_json::from_str(raw.get()).map_err(|e| e.to_string())?,
        _ => return Err("neither a read nor an input".into()),
    };
    Ok(Step {
        at: Timestamp(step.t),
        input,
        effects: recorded(&step.fx, step.due),
    })
}

fn join(pieces: &[&RawValue]) -> Result<Vec<u8>, String> {
    let mut out = Vec::new();
    for piece in pieces {
        let text = piece.get();
        match JsonKind::of(text) {
            JsonKind::Object => {
                out.extend_from_slice(text.as_bytes());
                out.push(b'\n');
            }
            JsonKind::String => {
                let text: String = serde_json::from_str(text).map_err(|e| e.to_string())?;
                out.extend_from_slice(text.as_bytes());
            }
            JsonKind::Array => {
                let parts: Vec<&str> = serde_json::from_str(text).map_err(|e| e.to_string())?;
                for hex in parts {
                    out.extend(parse_hex(hex).ok_or("a piece is not hex")?);
                }
            }
            JsonKind::Null | JsonKind::Boolean | JsonKind::Number => {
                return Err("a piece is neither object, string nor array".into());
            }
        }
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_flipped_byte_is_damage() {
        let (_, effects) = crate::Machine::new(Config::default(), 7, Timestamp(1)).unwrap();
        let header = encode_header(Timestamp(1), 7, &Config::default(), &effects);
        let step = encode_step(Timestamp(2), &Input::Tick, &Effects::default());
        let bytes = [header, step].concat().into_bytes();
        for at in 0..bytes.len() {
            for flip in [0x01, 0x20, 0x80] {
                let mut bad = bytes.clone();
                bad[at] ^= flip;
                let read =
                    Reader::new(&bad).and_then(|(steps, _)| steps.collect::<Result<Vec<_>, _>>());
                assert!(
                    matches!(read, Err(TraceError::Damaged { .. })),
                    "byte {at}: {read:?}"
                );
            }
        }
    }

    #[test]
    fn a_read_comes_back_as_it_was() {
        let nasty: &[&[u8]] = &[
            b"{\"a\":1}\n{\"b\": 2 }\n",
            b" {\"a\":1}\n",
            b"{\"a\":1}\r\n",
            b"noise\n\n\r\n",
            b"{\"cut\":\"",
            b"\xe2\x82",
            b"\xac\"}\n\x1b[0m",
            b"",
            "{\"u\":\"\u{2028}\"}\n".as_bytes(),
        ];
        for read in nasty {
            let input = Input::Received(Epoch(3), read.to_vec());
            let line = encode_step(Timestamp(1), &input, &Effects::default());
            let step = read_step(line.trim_end()).unwrap();
            assert_eq!(step.input, input, "{line}");
        }
    }
}
