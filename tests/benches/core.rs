//! The core beside the floor, in one run: `cargo bench -p turnkeep-tests --bench core`.
//!
//! Every round measures each contestant once on the same bytes, in rotation; what counts is the
//! median of the ratios of each round, since the machine's speed swings within seconds.

use std::{borrow::Cow, hint::black_box, time::Instant};

use serde::Deserialize;
use serde_json::value::RawValue;
use turnkeep_tests::rig::{self, Rig};

const ROUNDS: usize = 21;
const READ: usize = 64 << 10;

/// Splits lines and looks at nothing.
fn split(bytes: &[u8]) -> usize {
    let mut lines = 0;
    for read in bytes.chunks(READ) {
        for _ in memchr::memchr_iter(b'\n', read) {
            lines += 1;
        }
    }
    lines
}

#[derive(Deserialize)]
struct Frame<'a> {
    #[serde(borrow, default)]
    method: Cow<'a, str>,
    #[serde(borrow, default)]
    id: Option<&'a RawValue>,
    #[serde(borrow, default)]
    params: Params<'a>,
}

#[derive(Deserialize, Default)]
struct Params<'a> {
    #[serde(borrow, default)]
    delta: Cow<'a, str>,
}

/// The floor: a minimal borrowed decode of each line.
fn floor(bytes: &[u8]) -> usize {
    let mut partial: Vec<u8> = Vec::new();
    let mut total = 0;
    let mut take = |line: &[u8]| {
        let frame: Frame<'_> = serde_json::from_slice(line).expect("the frames are valid");
        total += frame.method.len() + frame.params.delta.len() + usize::from(frame.id.is_some());
    };
    for read in bytes.chunks(READ) {
        let mut rest = read;
        while let Some(end) = memchr::memchr(b'\n', rest) {
            if partial.is_empty() {
                take(&rest[..end]);
            } else {
                partial.extend_from_slice(&rest[..end]);
                take(&partial);
                partial.clear();
            }
            rest = &rest[end + 1..];
        }
        partial.extend_from_slice(rest);
    }
    total
}

/// The whole core: steps, routing, events made and dropped.
fn core(rig: &mut Rig, bytes: &[u8]) -> usize {
    let mut effects = 0;
    for read in bytes.chunks(READ) {
        effects += black_box(rig.read(read)).list.len();
    }
    effects
}

fn time(work: impl FnOnce() -> usize) -> f64 {
    let start = Instant::now();
    black_box(work());
    start.elapsed().as_secs_f64()
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

struct Case {
    name: &'static str,
    bytes: Vec<u8>,
    conversations: usize,
    target: f64,
}

fn main() {
    // `cargo test --benches` only wants to know that it runs.
    let quick = std::env::args().any(|a| a == "--test");
    let (rounds, frames) = if quick { (1, 1_000) } else { (ROUNDS, 100_000) };
    let mut state = 1u64;
    let mut random = move |bound: usize| {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        usize::try_from(state >> 33).unwrap_or(0) % bound
    };
    let cases = [
        Case {
            name: "deltas of one conversation",
            bytes: rig::deltas(frames, |_| 0),
            conversations: 1,
            target: 1.0,
        },
        Case {
            name: "deltas of 8 conversations at random",
            bytes: rig::deltas(frames, |_| random(8)),
            conversations: 8,
            target: 1.5,
        },
        Case {
            name: "deltas of 1,000 conversations at random",
            bytes: rig::deltas(frames, |_| random(1_000)),
            conversations: 1_000,
            target: 1.5,
        },
        Case {
            name: "mix",
            bytes: rig::mix(frames / 5_000 + 1),
            conversations: 1,
            target: 1.5,
        },
    ];
    println!("{rounds} rounds in rotation; ratios are medians of each round's ratio to the floor");
    println!(
        "{:<42}{:>10}{:>10}{:>14}{:>14}{:>8}",
        "", "floor ns", "split", "core", "core unmerged", "target"
    );
    for case in cases {
        let lines = split(&case.bytes);
        let mut merged = turnkeep_tests::one_connection();
        merged.merge_deltas = true;
        let mut single = turnkeep_tests::one_connection();
        single.merge_deltas = false;
        let (mut floors, mut splits, mut cores, mut singles) = (vec![], vec![], vec![], vec![]);
        for round in 0..rounds {
            // A fresh machine a round: the text of a turn grows with what it was told.
            let mut with = Rig::new(merged.clone(), case.conversations);
            let mut without = Rig::new(single.clone(), case.conversations);
            let mut times = [0.0; 4];
            for k in 0..4 {
                let which = (k + round) % 4;
                times[which] = match which {
                    0 => time(|| floor(&case.bytes)),
                    1 => time(|| split(&case.bytes)),
                    2 => time(|| core(&mut with, &case.bytes)),
                    _ => time(|| core(&mut without, &case.bytes)),
                };
            }
            floors.push(times[0] * 1e9 / lines as f64);
            splits.push(times[1] / times[0]);
            cores.push(times[2] / times[0]);
            singles.push(times[3] / times[0]);
        }
        println!(
            "{:<42}{:>10.0}{:>10.2}{:>14.2}{:>14.2}{:>8.1}",
            case.name,
            median(floors),
            median(splits),
            median(cores),
            median(singles),
            case.target
        );
    }
}
