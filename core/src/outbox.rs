//! What waits for the journal.
//!
//! The key is (seq, arrival): a queue popped by seq alone would park one conversation behind
//! another. What is released goes out in the order of the keys.

use alloc::collections::BTreeMap;

use crate::{
    effect::{CloseWhy, Frame},
    event::Event,
    id::{Epoch, JournalSeq},
};

/// Something that may not happen before its record is durable.
#[derive(Clone, Debug)]
pub(crate) enum Held {
    /// A frame, and the request that it is, if it is one.
    Frame {
        epoch: Epoch,
        frame: Frame,
        request: Option<u64>,
    },
    /// An event.
    Event(Event),
    /// The end of a connection.
    Close(Epoch, CloseWhy),
}

/// What waits, and how far the journal is.
#[derive(Clone, Debug, Default)]
pub(crate) struct Outbox {
    held: BTreeMap<(JournalSeq, u64), Held>,
    arrivals: u64,
    through: JournalSeq,
}

impl Outbox {
    pub(crate) fn through(&self) -> JournalSeq {
        self.through
    }

    /// Begins behind what earlier lives wrote, which is durable.
    pub(crate) fn begin(&mut self, through: JournalSeq) {
        self.through = through;
    }

    pub(crate) fn is_open(&self, gate: JournalSeq) -> bool {
        gate <= self.through
    }

    pub(crate) fn hold(&mut self, gate: JournalSeq, held: Held) {
        self.arrivals += 1;
        self.held.insert((gate, self.arrivals), held);
    }

    /// Takes what an acknowledgement releases. It is cumulative: a later one covers earlier ones.
    pub(crate) fn release(&mut self, through: JournalSeq) -> BTreeMap<(JournalSeq, u64), Held> {
        if through <= self.through {
            return BTreeMap::new();
        }
        self.through = through;
        let later = match through.next() {
            Some(next) => self.held.split_off(&(next, 0)),
            None => BTreeMap::new(),
        };
        core::mem::replace(&mut self.held, later)
    }

    /// Takes the frame of a request that has not left.
    pub(crate) fn withdraw(&mut self, request: u64) -> bool {
        let key = self.held.iter().find_map(|(key, held)| match held {
            Held::Frame {
                request: Some(id), ..
            } if *id == request => Some(*key),
            Held::Frame { .. } | Held::Event(_) | Held::Close(..) => None,
        });
        key.is_some_and(|key| self.held.remove(&key).is_some())
    }

    /// Drops every frame of a connection.
    pub(crate) fn drop_frames(&mut self, gone: Epoch) {
        self.held.retain(|_, held| match held {
            Held::Frame { epoch, .. } | Held::Close(epoch, _) => *epoch != gone,
            Held::Event(_) => true,
        });
    }

    pub(crate) fn clear(&mut self) {
        self.held.clear();
    }

    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.held.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn close(n: u32) -> Held {
        Held::Close(Epoch(n), CloseWhy::Shutdown)
    }

    #[test]
    fn what_waits_for_less_is_not_parked_behind_what_waits_for_more() {
        let mut outbox = Outbox::default();
        outbox.hold(JournalSeq(5), close(1));
        outbox.hold(JournalSeq(9), close(2));
        outbox.hold(JournalSeq(5), close(3));
        let out: alloc::vec::Vec<_> = outbox
            .release(JournalSeq(8))
            .into_values()
            .map(|held| match held {
                Held::Close(Epoch(n), _) => n,
                _ => 0,
            })
            .collect();
        assert_eq!(out, [1, 3]);
        assert_eq!(outbox.len(), 1);
        assert!(outbox.release(JournalSeq(7)).is_empty());
        assert_eq!(outbox.release(JournalSeq(9)).len(), 1);
    }
}
