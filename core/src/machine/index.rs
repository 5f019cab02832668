//! Which conversation a thread belongs to: looked up once a frame.

use alloc::collections::BTreeMap;

use smallvec::SmallVec;

use crate::id::{ConversationId, ThreadId};

/// Threads by a hash of their id: numbers compare without a look at the texts, which share long
/// beginnings. The hash is fixed, so the order never depends on the process.
#[derive(Clone, Debug, Default)]
pub(super) struct ThreadIndex {
    places: BTreeMap<u64, SmallVec<[(ThreadId, ConversationId); 1]>>,
}

impl ThreadIndex {
    pub(super) fn insert(&mut self, thread: ThreadId, conversation: ConversationId) {
        let place = self.places.entry(hash(&thread)).or_default();
        place.retain(|(known, _)| *known != thread);
        place.push((thread, conversation));
    }

    pub(super) fn remove(&mut self, thread: &ThreadId) {
        if let Some(place) = self.places.get_mut(&hash(thread)) {
            place.retain(|(known, _)| known != thread);
            if place.is_empty() {
                self.places.remove(&hash(thread));
            }
        }
    }

    pub(super) fn owner(&self, thread: &str) -> Option<ConversationId> {
        let place = self.places.get(&hash(thread))?;
        let (_, conversation) = place.iter().find(|(known, _)| known.as_str() == thread)?;
        Some(*conversation)
    }
}

/// FNV-1a over words: enough for a look-up that is verified.
fn hash(text: &str) -> u64 {
    const PRIME: u64 = 0x0000_0100_0000_01b3;
    let mut chunks = text.as_bytes().chunks_exact(8);
    let mut hash = 0xcbf2_9ce4_8422_2325u64;
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
    hash
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
