//! What the fuzz targets do, so that an ordinary test plays their corpora again without cargo-fuzz.
//!
//! Each takes any bytes and panics where something is wrong. How bytes are read as a case must not change without need: the files under
//! `corpus` are cases. `cargo xtask fuzz` builds and runs the targets. In a plain build each is a program that plays the files which are
//! named to it: `cargo run -p turnkeep-fuzz --bin line_split -- FILE…`.
//!
//! Nothing but the core is needed, as all of it is compiled again with the instruments of the fuzzer.

mod chunks;
mod journals;
mod lines;
mod machine;
mod play;
mod server;
mod socket;
pub mod steps;
mod wire;

use std::{env, fs, path::PathBuf};

pub use self::{
    chunks::chunking,
    journals::{journal_decode, journal_of, recover_prefix},
    lines::line_split,
    machine::machine_steps,
    socket::socket_decode,
    wire::{fast_equals_slow, wire_decode},
};

#[doc(hidden)]
#[cfg(fuzzing)]
pub use libfuzzer_sys;

/// Makes a fuzz target of a function that takes bytes.
#[macro_export]
macro_rules! target {
    ($function:path) => {
        #[cfg(fuzzing)]
        $crate::libfuzzer_sys::fuzz_target!(|bytes: &[u8]| $function(bytes));

        #[cfg(not(fuzzing))]
        fn main() {
            $crate::replay($function);
        }
    };
}

/// A fuzz target.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// Its name, which is that of its program and of its corpus.
    pub name: &'static str,
    /// What it does.
    pub run: fn(&[u8]),
}

/// All of them.
pub const TARGETS: [Target; 8] = [
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
    Target {
        name: "machine_steps",
        run: machine_steps,
    },
    Target {
        name: "journal_decode",
        run: journal_decode,
    },
    Target {
        name: "recover_prefix",
        run: recover_prefix,
    },
    Target {
        name: "chunking",
        run: chunking,
    },
    Target {
        name: "socket_decode",
        run: socket_decode,
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
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("corpus")
        .join(target)
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

/// Gives every file that is named on the command line to a function.
///
/// # Panics
///
/// A file cannot be read, or the function panics.
pub fn replay(function: fn(&[u8])) {
    for path in env::args_os().skip(1) {
        println!("{}", path.to_string_lossy());
        let bytes = fs::read(&path).expect("a file that can be read");
        function(&bytes);
    }
}
