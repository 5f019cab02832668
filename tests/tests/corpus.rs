//! The corpora of the fuzz targets, played again without cargo-fuzz.

use std::panic;

use turnkeep_fuzz::TARGETS;

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
