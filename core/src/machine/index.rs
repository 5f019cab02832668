//! Which conversation a thread belongs to: looked up once a frame.

use alloc::vec::Vec;

use crate::{
    hash::hash,
    id::{ConversationId, ThreadId},
};

/// Threads by a hash of their id, in one table with open places: a look-up is one place in memory,
/// also among thousands. The hash is fixed, and nothing ever walks the table in its order, so that
/// nothing depends on the process.
#[derive(Clone, Debug, Default)]
pub(super) struct ThreadIndex {
    /// As many as a power of two, at most half of them taken.
    places: Vec<Option<(ThreadId, ConversationId)>>,
    taken: usize,
}

impl ThreadIndex {
    pub(super) fn insert(&mut self, thread: ThreadId, conversation: ConversationId) {
        self.remove(&thread);
        if (self.taken + 1) * 2 > self.places.len() {
            self.grow();
        }
        self.put(thread, conversation);
    }

    pub(super) fn remove(&mut self, thread: &ThreadId) {
        let Some(mut open) = self.find(thread) else {
            return;
        };
        self.places[open] = None;
        self.taken -= 1;
        // What was put further on because the place was taken moves up.
        let mask = self.places.len() - 1;
        let mut at = (open + 1) & mask;
        while let Some((known, _)) = &self.places[at] {
            let home = start(known) & mask;
            if (at.wrapping_sub(home) & mask) >= (at.wrapping_sub(open) & mask) {
                self.places[open] = self.places[at].take();
                open = at;
            }
            at = (at + 1) & mask;
        }
    }

    pub(super) fn owner(&self, thread: &str) -> Option<ConversationId> {
        let (_, conversation) = self.places.get(self.find(thread)?)?.as_ref()?;
        Some(*conversation)
    }

    fn find(&self, thread: &str) -> Option<usize> {
        let mask = self.places.len().checked_sub(1)?;
        let mut at = start(thread) & mask;
        // At most half are taken: an open place ends the search.
        while let Some((known, _)) = &self.places[at] {
            if known.is(thread) {
                return Some(at);
            }
            at = (at + 1) & mask;
        }
        None
    }

    fn put(&mut self, thread: ThreadId, conversation: ConversationId) {
        let mask = self.places.len() - 1;
        let mut at = start(&thread) & mask;
        while self.places[at].is_some() {
            at = (at + 1) & mask;
        }
        self.places[at] = Some((thread, conversation));
        self.taken += 1;
    }

    fn grow(&mut self) {
        let size = self.places.len().max(4) * 2;
        let old = core::mem::take(&mut self.places);
        self.places.resize(size, None);
        self.taken = 0;
        for (thread, conversation) in old.into_iter().flatten() {
            self.put(thread, conversation);
        }
    }
}

fn start(thread: &str) -> usize {
    // The high bits are the better mixed ones.
    let hash = hash(thread.as_bytes());
    usize::try_from((hash ^ (hash >> 32)) & 0xffff_ffff).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_is_found_until_it_is_removed() {
        let mut index = ThreadIndex::default();
        let thread = |n: u32| ThreadId::new(&alloc::format!("01a2279e-{n}")).unwrap();
        for n in 1..200 {
            index.insert(thread(n), ConversationId(n));
        }
        for n in 1..200 {
            assert_eq!(index.owner(&thread(n)), Some(ConversationId(n)));
            assert_eq!(index.owner(&thread(n)), Some(ConversationId(n)));
        }
        // Removed in an order of its own, each other one is still found.
        let mut left: alloc::vec::Vec<u32> = (1..200).collect();
        while !left.is_empty() {
            let n = left.remove(left.len() * 7 % left.len().max(3) % left.len());
            index.remove(&thread(n));
            assert_eq!(index.owner(&thread(n)), None);
            for n in &left {
                assert_eq!(index.owner(&thread(*n)), Some(ConversationId(*n)));
            }
        }
        assert_eq!(index.owner("01a2279e"), None);
    }
}
