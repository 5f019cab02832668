//! Reads into lines.

use turnkeep_core::codec::lines::{LineSplitter, LineTooLong};

use super::Cuts;

/// Cuts bytes into reads and compares the lines with those of a reference.
///
/// A case is the places of the cuts, a byte for the limit of a line's length, and the bytes.
pub fn line_split(case: &[u8]) {
    let (cuts, rest) = Cuts::read(case);
    let (limit, bytes) = rest
        .split_first()
        .map_or((255, rest), |(n, rest)| (*n, rest));
    let limit = match limit {
        255 => usize::MAX,
        limit => usize::from(limit),
    };
    let mut splitter = LineSplitter::default();
    let mut lines = Vec::new();
    let mut taken = 0;
    let mut end = Ok(());
    'reads: for read in cuts.of(bytes) {
        let mut at = 0;
        loop {
            match splitter.next(read, &mut at, limit) {
                Ok(Some(line)) => lines.push(line.to_vec()),
                Ok(None) => break,
                Err(error) => {
                    end = Err(error);
                    break 'reads;
                }
            }
        }
        assert_eq!(at, read.len(), "a read is taken whole");
        taken += read.len();
        assert_eq!(
            splitter.examined(),
            taken as u64,
            "each byte is searched once"
        );
    }
    let (want, rest, too_long) = reference(bytes, limit);
    assert_eq!(lines, want);
    assert_eq!(end.is_err(), too_long);
    match end {
        Ok(()) => assert_eq!(splitter.rest(), rest),
        Err(LineTooLong { limit: told }) => assert_eq!(told, limit),
    }
}

/// The lines up to one that is too long, what is left behind the last of them, and whether one was too long.
fn reference(bytes: &[u8], limit: usize) -> (Vec<Vec<u8>>, Option<Vec<u8>>, bool) {
    let without_cr = |line: &[u8]| line.strip_suffix(b"\r").unwrap_or(line).to_vec();
    let mut pieces: Vec<&[u8]> = bytes.split(|b| *b == b'\n').collect();
    let last = pieces.pop().unwrap_or_default();
    let mut lines = Vec::new();
    for piece in pieces {
        if piece.len() > limit {
            return (lines, None, true);
        }
        lines.push(without_cr(piece));
    }
    let rest = (!last.is_empty()).then(|| without_cr(last));
    (lines, rest, last.len() > limit)
}
