//! The corpora of the fuzz targets, played again without cargo-fuzz.

use std::panic;

use turnkeep_fuzz::{TARGETS, corpus};

/// Bytes by chance, of which a part are steps.
fn by_chance(seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 32) as u8
    };
    let length = 64 + usize::from(next()) * 4;
    (0..length).map(|_| next()).collect()
}

#[test]
fn bytes_by_chance_are_cases_too() {
    for target in TARGETS {
        for seed in 0..300 {
            let case = by_chance(seed);
            let played = panic::catch_unwind(|| (target.run)(&case));
            assert!(played.is_ok(), "{} fails with seed {seed}", target.name);
        }
    }
}

/// How many bytes all corpora may have together: every clone of the repository has them.
const MOST: usize = 1_500_000;

#[test]
fn every_case_of_the_corpora_holds() {
    let mut bytes = 0;
    for target in TARGETS {
        let cases = corpus(target.name);
        assert!(cases.len() >= 10, "{} has hardly a corpus", target.name);
        for (name, case) in &cases {
            bytes += case.len();
            let played = panic::catch_unwind(|| (target.run)(case));
            assert!(
                played.is_ok(),
                "cargo run -p turnkeep-fuzz --bin {} -- fuzz/corpus/{}/{name}",
                target.name,
                target.name
            );
        }
        println!("{}: {} cases", target.name, cases.len());
    }
    assert!(bytes < MOST, "{bytes} bytes");
}
