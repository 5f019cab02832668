//! The recordings of the real app-server under `tests/traces`.

use std::{fs, path::PathBuf};

use serde::Deserialize;
use serde_json::value::RawValue;

/// One recorded session.
#[derive(Debug)]
pub struct Recording {
    /// The server's version, such as `0.171.0`.
    pub version: String,
    /// The file's name without its ending.
    pub name: String,
    /// What happened, in order.
    pub lines: Vec<Line>,
}

/// One thing that happened.
#[derive(Debug)]
pub struct Line {
    /// Its line in the file, from 1.
    pub number: usize,
    /// Milliseconds since the recording began.
    pub at: u64,
    /// What happened.
    pub what: What,
}

/// What can happen.
#[derive(Debug)]
pub enum What {
    /// The client sent a frame.
    Out(String),
    /// The server sent a frame; the text is as it was on the wire.
    In(String),
    /// The server was killed.
    Killed,
    /// The server ended by itself.
    Exited,
    /// The connection was cut.
    Disconnected,
}

#[derive(Deserialize)]
struct Row {
    t: u64,
    dir: String,
    frame: Option<Box<RawValue>>,
}

/// Reads all recordings, sorted by version and name.
///
/// # Panics
///
/// A file cannot be read or is not a recording.
#[must_use]
pub fn all() -> Vec<Recording> {
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("traces");
    let mut out = Vec::new();
    for folder in fs::read_dir(&root).expect("tests/traces is there") {
        let folder = folder.expect("a folder").path();
        let name = folder.file_name().unwrap_or_default().to_string_lossy();
        let Some(version) = name.strip_prefix("codex-") else {
            continue;
        };
        for file in fs::read_dir(&folder).expect("a readable folder") {
            let file = file.expect("a file").path();
            assert_eq!(
                file.extension().and_then(|e| e.to_str()),
                Some("jsonl"),
                "{file:?} is no recording"
            );
            let name = file.file_stem().unwrap_or_default().to_string_lossy();
            let text = fs::read_to_string(&file).expect("a readable file");
            out.push(Recording {
                version: version.to_owned(),
                name: name.into_owned(),
                lines: text.lines().enumerate().map(line).collect(),
            });
        }
    }
    out.sort_by(|a, b| (&a.version, &a.name).cmp(&(&b.version, &b.name)));
    out
}

fn line((at, text): (usize, &str)) -> Line {
    let row: Row = serde_json::from_str(text).expect("a row of a recording");
    let frame = || compact(row.frame.as_ref().expect("a frame stands in its row").get());
    Line {
        number: at + 1,
        at: row.t,
        what: match row.dir.as_str() {
            "out" => What::Out(frame()),
            "in" => What::In(frame()),
            "killed" => What::Killed,
            "exited" => What::Exited,
            "disconnected" => What::Disconnected,
            other => panic!("{other:?} is no direction"),
        },
    }
}

/// A JSON text without the white space around its parts. The server writes none; the recorder of
/// the WebSocket sessions put some in.
fn compact(text: &str) -> String {
    let (mut in_string, mut escaped) = (false, false);
    text.chars()
        .filter(|c| {
            let keep = in_string || !c.is_ascii_whitespace();
            match c {
                _ if escaped => escaped = false,
                '\\' => escaped = in_string,
                '"' => in_string = !in_string,
                _ => {}
            }
            keep
        })
        .collect()
}
