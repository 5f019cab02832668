//! A fixed hash: for look-ups that are verified, and to tell contents apart that are not kept. It
//! never depends on the process.

/// FNV-1a over words.
pub(crate) fn hash(bytes: &[u8]) -> u64 {
    add(0xcbf2_9ce4_8422_2325, bytes)
}

/// Goes on with a hash; the length keeps `ab`, `c` apart from `a`, `bc`.
pub(crate) fn add(mut hash: u64, bytes: &[u8]) -> u64 {
    const PRIME: u64 = 0x0000_0100_0000_01b3;
    let mut chunks = bytes.chunks_exact(8);
    for chunk in &mut chunks {
        let mut word = [0; 8];
        word.copy_from_slice(chunk);
        hash = (hash ^ u64::from_le_bytes(word))
            .wrapping_mul(PRIME)
            .rotate_left(29);
    }
    for byte in chunks.remainder() {
        hash = (hash ^ u64::from(*byte)).wrapping_mul(PRIME);
    }
    (hash ^ bytes.len() as u64).wrapping_mul(PRIME)
}
