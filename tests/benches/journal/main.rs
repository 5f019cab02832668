//! The journal beside the raw cost, in one run: `cargo bench -p turnkeep-tests --bench journal`.
//!
//! Every round measures each contestant once on the same bytes, in rotation; what counts is the
//! median of the ratios of each round, since the machine's speed swings within seconds.

#![allow(
    clippy::unwrap_used,
    reason = "a benchmark that cannot go on may panic"
)]

mod appends;
mod records;
mod recovery;
mod trips;

use std::time::Instant;

/// How much is measured.
#[derive(Clone, Copy, Debug)]
struct Size {
    rounds: usize,
    /// Batches that are appended.
    batches: u64,
    /// Tool calls in a row.
    calls: u32,
    /// Records that are read back.
    records: u64,
    /// Conversations that are read back.
    conversations: u64,
}

/// A part of the benchmark, by name.
type Part = (&'static str, fn(Size));

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    if arguments.get(1).is_some_and(|a| a == trips::SERVE) {
        trips::serve(arguments[2].parse().unwrap());
        return;
    }
    // `cargo test --benches` only wants to know that it runs.
    let quick = !arguments.iter().any(|a| a == "--bench");
    let size = match quick {
        true => Size {
            rounds: 1,
            batches: 50,
            calls: 3,
            records: 2_000,
            conversations: 50,
        },
        false => Size {
            rounds: 5,
            batches: 500,
            calls: 100,
            records: 1_000_000,
            conversations: 10_000,
        },
    };
    println!(
        "{} rounds in rotation; ratios are medians of each round's",
        size.rounds
    );
    let parts: [Part; 3] = [
        ("appends", appends::run),
        ("trips", trips::run),
        ("recovery", recovery::run),
    ];
    // Those that are named, else all.
    let is_named = |name: &str| arguments.iter().any(|a| a == name);
    let all = !parts.iter().any(|(name, _)| is_named(name));
    for (name, run) in parts {
        if all || is_named(name) {
            run(size);
        }
    }
}

fn seconds<T>(work: impl FnOnce() -> T) -> (f64, T) {
    let start = Instant::now();
    let made = std::hint::black_box(work());
    (start.elapsed().as_secs_f64(), made)
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// Runs all contestants `rounds` times, each round beginning with another one; gives each one's
/// times, by round.
fn rotate(rounds: usize, contestants: &mut [&mut dyn FnMut() -> f64]) -> Vec<Vec<f64>> {
    let mut times = vec![Vec::new(); contestants.len()];
    for round in 0..rounds {
        for k in 0..contestants.len() {
            let which = (k + round) % contestants.len();
            let time = contestants[which]();
            times[which].push(time);
        }
    }
    times
}

/// The median of the ratios of each round.
fn ratio(of: &[f64], to: &[f64]) -> f64 {
    median(of.iter().zip(to).map(|(a, b)| a / b).collect())
}

fn runtime() -> tokio::runtime::Runtime {
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    builder.worker_threads(2).enable_all().build().unwrap()
}
