//! What the fuzz targets do, so that an ordinary test replays their corpora without cargo-fuzz.
//!
//! Each takes any bytes and panics where something is wrong. How bytes are read as a case must not change without need: the files under
//! `fuzz/corpus` are cases.

mod lines;
mod machine;
mod play;
mod server;
pub mod steps;
mod wire;

use std::{fs, path::PathBuf};

pub use self::{
    lines::line_split,
    machine::machine_steps,
    wire::{fast_equals_slow, wire_decode},
};
use crate::codex::workspace_dir;

/// A fuzz target.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// Its name, which is that of its program and of its corpus.
    pub name: &'static str,
    /// What it does.
    pub run: fn(&[u8]),
}

/// All of them.
pub const TARGETS: [Target; 4] = [
    Target {
        name: "machine_steps",
        run: machine_steps,
    },
    Target {
        name: "line_split",
        run: line_split,
    },
    Target {
        name: "wire_decode",
        run: wire_decode,
    },
    Target {
        name: "fast_equals_slow",
        run: fast_equals_slow,
    },
];

/// The places at which the bytes of a case are cut, from the beginning of the case.
#[derive(Debug)]
struct Cuts<'a> {
    at: Vec<&'a [u8; 2]>,
}

impl<'a> Cuts<'a> {
    /// Up to 15 places of two bytes each, behind a byte that says how many. Returns what follows them.
    fn read(case: &'a [u8]) -> (Self, &'a [u8]) {
        let (count, rest) = case.split_first().map_or((0, case), |(n, rest)| (*n, rest));
        let mut rest = rest;
        let mut at = Vec::new();
        for _ in 0..count % 16 {
            let Some((place, after)) = rest.split_first_chunk() else {
                break;
            };
            at.push(place);
            rest = after;
        }
        (Self { at }, rest)
    }

    /// The pieces of these bytes, empty ones among them.
    fn of<'b>(&self, bytes: &'b [u8]) -> Vec<&'b [u8]> {
        let places = self.at.iter();
        let places = places.map(|at| usize::from(u16::from_le_bytes(**at)) % (bytes.len() + 1));
        let mut places: Vec<usize> = places.chain([0, bytes.len()]).collect();
        places.sort_unstable();
        places.windows(2).map(|w| &bytes[w[0]..w[1]]).collect()
    }
}

/// Where the corpus of a target is.
#[must_use]
pub fn corpus_of(target: &str) -> PathBuf {
    workspace_dir().join("fuzz/corpus").join(target)
}

/// The cases of a target's corpus with the names of their files, sorted by these.
///
/// # Panics
///
/// The corpus cannot be read.
#[must_use]
pub fn corpus(target: &str) -> Vec<(String, Vec<u8>)> {
    let directory = corpus_of(target);
    let files = fs::read_dir(&directory).unwrap_or_else(|e| panic!("{directory:?}: {e}"));
    let mut cases: Vec<(String, Vec<u8>)> = files
        .map(|file| {
            let path = file.expect("a readable directory").path();
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            (name.into_owned(), fs::read(&path).expect("a readable file"))
        })
        .collect();
    cases.sort();
    cases
}
