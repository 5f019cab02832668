//! Chance, from a seed: the same seed gives the same marks, nonces, ids and pauses.

use crate::id::Nonce;

/// A splitmix64 generator. Its quality is enough for ids and jitter; it keeps no secrets.
#[derive(Clone, Debug)]
pub(crate) struct Rng(u64);

impl Rng {
    pub(crate) const fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub(crate) fn nonce(&mut self) -> Nonce {
        let mut bytes = [0; 12];
        bytes[..8].copy_from_slice(&self.next().to_be_bytes());
        bytes[8..].copy_from_slice(&self.next().to_be_bytes()[..4]);
        Nonce(bytes)
    }

    /// A number below `bound`, 0 for a bound of 0.
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        // The bias of the remainder does not matter for jitter.
        self.next().checked_rem(bound).unwrap_or(0)
    }
}
