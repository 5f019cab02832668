//! The text of a message that streams, as it came.

use alloc::{borrow::Cow, vec::Vec};

use crate::Text;

/// What was streamed of a message: long pieces are shared with those who read them.
#[derive(Clone, Debug, Default)]
pub(super) struct Streamed(Vec<Text>);

impl Streamed {
    /// How long pieces grow, which are copied each time they have doubled.
    const BLOCK: usize = 64 << 10;

    /// Appends a piece that others hold too.
    pub(super) fn share(&mut self, text: Text) {
        self.0.push(text);
    }

    /// Appends a copy.
    pub(super) fn push(&mut self, text: &str) {
        let last = self.0.last_mut().and_then(Text::own_mut);
        match last.filter(|last| last.len() + text.len() <= Self::BLOCK) {
            Some(last) => {
                let length = last.len() + text.len();
                if length > last.capacity() {
                    let room = (2 * length).min(Self::BLOCK);
                    last.reserve_exact(room - last.len());
                }
                last.push_str(text);
            }
            None => self.0.push(text.into()),
        }
    }

    /// All of it.
    pub(super) fn whole(&self) -> Cow<'_, str> {
        match self.0.as_slice() {
            [] => Cow::Borrowed(""),
            [all] => Cow::Borrowed(all),
            pieces => Cow::Owned(pieces.iter().map(Text::as_str).collect()),
        }
    }
}

#[cfg(test)]
impl Streamed {
    pub(super) fn pieces(&self) -> usize {
        self.0.len()
    }
}

#[cfg(test)]
mod tests {
    use alloc::{format, string::String};

    use super::*;

    #[test]
    fn what_is_copied_grows_in_blocks_that_are_full() {
        let (mut streamed, mut all) = (Streamed::default(), String::new());
        for n in 0..20_000 {
            let piece = format!("{n} é ");
            streamed.push(&piece);
            all.push_str(&piece);
        }
        assert_eq!(streamed.whole(), all);
        let lengths: Vec<usize> = streamed.0.iter().map(|block| block.len()).collect();
        assert!(lengths.len() > 2, "{lengths:?}");
        let (_, full) = lengths.split_last().unwrap();
        assert!(full.iter().all(|n| *n > Streamed::BLOCK - 20), "{full:?}");
        for block in streamed.0 {
            let capacity = block.into_string().capacity();
            assert!(capacity <= Streamed::BLOCK, "{capacity}");
        }
    }
}
