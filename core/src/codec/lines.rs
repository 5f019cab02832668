//! Whole reads in, lines out. Only LF ends a line, a CR before it is dropped; a line that came in
//! many reads is searched and copied once.

use alloc::vec::Vec;

/// Cuts reads into lines.
#[derive(Clone, Debug, Default)]
pub struct LineSplitter {
    partial: Vec<u8>,
    /// The line in `partial` was handed out and is to be forgotten.
    spent: bool,
    examined: u64,
}

/// A line is longer than the limit. What follows cannot be told apart any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a line is longer than {limit} bytes")]
pub struct LineTooLong {
    /// The limit.
    pub limit: usize,
}

impl LineSplitter {
    /// The next line of `read` from `at` on, without its line end; `None` where the read ends in
    /// the middle of a line, which is kept for the next read.
    ///
    /// # Errors
    ///
    /// The line, whole or not, is longer than `limit` bytes.
    pub fn next<'a>(
        &'a mut self,
        read: &'a [u8],
        at: &mut usize,
        limit: usize,
    ) -> Result<Option<&'a [u8]>, LineTooLong> {
        if self.spent {
            self.partial.clear();
            // A huge line must not hold its memory for ever.
            self.partial.shrink_to(1 << 20);
            self.spent = false;
        }
        let rest = read.get(*at..).unwrap_or_default();
        let found = memchr::memchr(b'\n', rest);
        self.examined += found.map_or(rest.len(), |n| n + 1) as u64;
        let piece = found.map_or(rest, |n| &rest[..n]);
        if self.partial.len() + piece.len() > limit {
            // How much of it came before is a matter of how the bytes were cut, and told by nothing.
            self.partial = Vec::new();
            return Err(LineTooLong { limit });
        }
        *at += piece.len();
        if found.is_none() {
            self.partial.extend_from_slice(piece);
            return Ok(None);
        }
        *at += 1;
        if self.partial.is_empty() {
            return Ok(Some(without_cr(piece)));
        }
        self.partial.extend_from_slice(piece);
        self.spent = true;
        Ok(Some(without_cr(&self.partial)))
    }

    /// What is left of the last, unfinished line.
    pub fn rest(&mut self) -> Option<Vec<u8>> {
        let spent = core::mem::take(&mut self.spent);
        let rest = core::mem::take(&mut self.partial);
        (!spent && !rest.is_empty()).then(|| without_cr(&rest).to_vec())
    }

    /// How many bytes have been looked at in search of line ends.
    #[must_use]
    pub const fn examined(&self) -> u64 {
        self.examined
    }
}

fn without_cr(line: &[u8]) -> &[u8] {
    line.strip_suffix(b"\r").unwrap_or(line)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn split(reads: &[&[u8]]) -> (Vec<Vec<u8>>, Option<Vec<u8>>, u64) {
        let mut splitter = LineSplitter::default();
        let mut out = Vec::new();
        for read in reads {
            let mut at = 0;
            while let Some(line) = splitter.next(read, &mut at, 1 << 20).unwrap() {
                out.push(line.to_vec());
            }
        }
        let examined = splitter.examined();
        (out, splitter.rest(), examined)
    }

    #[test]
    fn any_chunking_gives_the_same_lines() {
        let text = "{\"a\":\"\u{2028}中😀\"}\r\n\nx\u{85}y\nlast".as_bytes();
        let want = split(&[text]);
        assert_eq!(want.0.len(), 3);
        assert_eq!(want.1.as_deref(), Some(&b"last"[..]));
        for size in 1..text.len() {
            let chunks: Vec<&[u8]> = text.chunks(size).collect();
            let got = split(&chunks);
            assert_eq!(
                (got.0, got.1),
                (want.0.clone(), want.1.clone()),
                "chunks of {size}"
            );
        }
    }

    #[test]
    fn each_byte_of_a_huge_line_is_searched_once() {
        let mut line = alloc::vec![b'x'; 16 << 20];
        line.push(b'\n');
        let mut splitter = LineSplitter::default();
        let mut lines = 0;
        for chunk in line.chunks(4096) {
            let mut at = 0;
            while splitter.next(chunk, &mut at, 64 << 20).unwrap().is_some() {
                lines += 1;
            }
        }
        assert_eq!((lines, splitter.examined()), (1, line.len() as u64));
    }

    #[test]
    fn a_line_past_the_limit_is_an_error_whole_or_not() {
        for read in [&b"abcde\n"[..], b"abcde"] {
            let mut splitter = LineSplitter::default();
            assert_eq!(
                splitter.next(read, &mut 0, 4),
                Err(LineTooLong { limit: 4 })
            );
        }
    }

    #[test]
    fn nothing_is_left_of_a_line_past_the_limit() {
        let mut splitter = LineSplitter::default();
        assert_eq!(splitter.next(b"abc", &mut 0, 4), Ok(None));
        assert_eq!(
            splitter.next(b"de", &mut 0, 4),
            Err(LineTooLong { limit: 4 })
        );
        assert_eq!(splitter.rest(), None);
    }
}
