//! Which conversation a thread belongs to: looked up once a frame.

use alloc::collections::BTreeMap;

use smallvec::SmallVec;

use crate::{
    hash::hash,
    id::{ConversationId, ThreadId},
};

/// Threads by a hash of their id: numbers compare without a look at the texts, which share long
/// beginnings. The hash is fixed, so the order never depends on the process.
#[derive(Clone, Debug, Default)]
pub(super) struct ThreadIndex {
    places: BTreeMap<u64, SmallVec<[(ThreadId, ConversationId); 1]>>,
}

impl ThreadIndex {
    pub(super) fn insert(&mut self, thread: ThreadId, conversation: ConversationId) {
        let place = self.places.entry(hash(thread.as_bytes())).or_default();
        place.retain(|(known, _)| *known != thread);
        place.push((thread, conversation));
    }

    pub(super) fn remove(&mut self, thread: &ThreadId) {
        if let Some(place) = self.places.get_mut(&hash(thread.as_bytes())) {
            place.retain(|(known, _)| known != thread);
            if place.is_empty() {
                self.places.remove(&hash(thread.as_bytes()));
            }
        }
    }

    pub(super) fn owner(&self, thread: &str) -> Option<ConversationId> {
        let place = self.places.get(&hash(thread.as_bytes()))?;
        let (_, conversation) = place.iter().find(|(known, _)| known.as_str() == thread)?;
        Some(*conversation)
    }
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
        index.remove(&thread(7));
        assert_eq!(index.owner(&thread(7)), None);
        assert_eq!(index.owner("01a2279e"), None);
    }
}
