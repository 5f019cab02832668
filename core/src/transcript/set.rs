//! Sets of boxes.

use alloc::vec::Vec;
use core::mem;

use serde::{Deserialize, Deserializer, Serialize, de};

use crate::id::BoxId;

/// A set of boxes: their numbers as ranges, both ends included. The ranges are sorted and neither
/// overlap nor touch, so that a set has one form only. Cheap while there are few ranges.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct BoxSet(Vec<(u64, u64)>);

impl BoxSet {
    /// No box.
    #[must_use]
    pub const fn new() -> Self {
        Self(Vec::new())
    }

    /// Every box up to the last one, none where that is 0.
    #[must_use]
    pub fn all(last: BoxId) -> Self {
        Self(match last.0 {
            0 => Vec::new(),
            last => alloc::vec![(1, last)],
        })
    }

    /// Whether no box is in it.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// How many boxes are in it.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.0.iter().map(|(first, last)| last - first + 1).sum()
    }

    /// The lowest box.
    #[must_use]
    pub fn first(&self) -> Option<BoxId> {
        self.0.first().map(|range| BoxId(range.0))
    }

    /// The highest box.
    #[must_use]
    pub fn last(&self) -> Option<BoxId> {
        self.0.last().map(|range| BoxId(range.1))
    }

    /// Whether a box is in it.
    #[must_use]
    pub fn contains(&self, id: BoxId) -> bool {
        self.0
            .get(self.at(id.0))
            .is_some_and(|range| range.0 <= id.0)
    }

    /// Whether every box of another set is in it.
    #[must_use]
    pub fn contains_all(&self, other: &Self) -> bool {
        // A range without gaps lies within one of ours.
        other.0.iter().all(|(first, last)| {
            let ours = self.0.get(self.at(*first));
            ours.is_some_and(|range| range.0 <= *first && *last <= range.1)
        })
    }

    /// Whether a box is in both.
    #[must_use]
    pub fn intersects(&self, other: &Self) -> bool {
        other.0.iter().any(|(first, last)| {
            let ours = self.0.get(self.at(*first));
            ours.is_some_and(|range| range.0 <= *last)
        })
    }

    /// The boxes in order.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = BoxId> + '_ {
        self.0
            .iter()
            .flat_map(|(first, last)| (*first..=*last).map(BoxId))
    }

    /// Adds a box: whether it was not in it. There is no box 0.
    pub fn insert(&mut self, id: BoxId) -> bool {
        let id = id.0;
        if id == 0 {
            return false;
        }
        let at = self.at(id);
        if self.0.get(at).is_some_and(|range| range.0 <= id) {
            return false;
        }
        let joins_next = self.0.get(at).is_some_and(|next| next.0 - 1 == id);
        // The range before ends below the box.
        let before = at
            .checked_sub(1)
            .filter(|before| self.0.get(*before).is_some_and(|range| range.1 == id - 1));
        match (before, joins_next) {
            (Some(before), true) => {
                let (_, last) = self.0.remove(at);
                self.0[before].1 = last;
            }
            (Some(before), false) => self.0[before].1 = id,
            (None, true) => self.0[at].0 = id,
            (None, false) => self.0.insert(at, (id, id)),
        }
        true
    }

    /// Takes a box out: whether it was in it.
    pub fn remove(&mut self, id: BoxId) -> bool {
        let id = id.0;
        let at = self.at(id);
        let Some(range) = self.0.get_mut(at).filter(|range| range.0 <= id) else {
            return false;
        };
        match (range.0 == id, range.1 == id) {
            (true, true) => {
                self.0.remove(at);
            }
            (true, false) => range.0 += 1,
            (false, true) => range.1 -= 1,
            (false, false) => {
                let rest = (id + 1, mem::replace(&mut range.1, id - 1));
                self.0.insert(at + 1, rest);
            }
        }
        true
    }

    /// Adds every box of another set.
    pub fn union(&mut self, other: &Self) {
        let mut ours = mem::take(&mut self.0).into_iter().peekable();
        let mut theirs = other.0.iter().copied().peekable();
        let mut out: Vec<(u64, u64)> = Vec::new();
        loop {
            let ours_is_next = match (ours.peek(), theirs.peek()) {
                (Some(ours), Some(theirs)) => ours.0 <= theirs.0,
                (Some(_), None) => true,
                (None, _) => false,
            };
            let next = if ours_is_next {
                ours.next()
            } else {
                theirs.next()
            };
            let Some((first, last)) = next else {
                break;
            };
            match out.last_mut() {
                Some(range) if first <= range.1.saturating_add(1) => range.1 = range.1.max(last),
                _ => out.push((first, last)),
            }
        }
        self.0 = out;
    }

    /// Takes every box of another set out.
    pub fn subtract(&mut self, other: &Self) {
        let mut out = Vec::new();
        let mut at = 0;
        for (mut first, last) in mem::take(&mut self.0) {
            loop {
                match other.0.get(at) {
                    Some((_, through)) if *through < first => at += 1,
                    Some((from, through)) if *from <= last => {
                        if first < *from {
                            out.push((first, from - 1));
                        }
                        if *through >= last {
                            break;
                        }
                        first = through + 1;
                    }
                    _ => {
                        out.push((first, last));
                        break;
                    }
                }
            }
        }
        self.0 = out;
    }

    /// Takes all boxes out and gives them back.
    #[must_use]
    pub fn take(&mut self) -> Self {
        mem::take(self)
    }

    /// Where the first range stands that does not end below a number.
    fn at(&self, id: u64) -> usize {
        // Most look-ups are at the end: what is new is appended there.
        match self.0.last() {
            Some(range) if id <= range.1 => self.0.partition_point(|range| range.1 < id),
            _ => self.0.len(),
        }
    }
}

impl FromIterator<BoxId> for BoxSet {
    fn from_iter<I: IntoIterator<Item = BoxId>>(ids: I) -> Self {
        let mut set = Self::new();
        for id in ids {
            set.insert(id);
        }
        set
    }
}

impl Extend<BoxId> for BoxSet {
    fn extend<I: IntoIterator<Item = BoxId>>(&mut self, ids: I) {
        for id in ids {
            self.insert(id);
        }
    }
}

impl<'de> Deserialize<'de> for BoxSet {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        let ranges = Vec::<(u64, u64)>::deserialize(d)?;
        let mut least = Some(1);
        for (first, last) in &ranges {
            if last < first || least.is_none_or(|least| *first < least) {
                return Err(de::Error::custom(
                    "the ranges of a set of boxes are sorted, from 1, and do not touch",
                ));
            }
            // One number at least lies between two ranges.
            least = last.checked_add(2);
        }
        Ok(Self(ranges))
    }
}

#[cfg(test)]
mod tests {
    use alloc::collections::BTreeSet;

    use super::*;

    struct Lcg(u64);

    impl Lcg {
        fn below(&mut self, n: u64) -> u64 {
            self.0 = self
                .0
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            (self.0 >> 33) % n
        }
    }

    fn set(ids: &BTreeSet<u64>) -> BoxSet {
        ids.iter().copied().map(BoxId).collect()
    }

    fn same(set: &BoxSet, want: &BTreeSet<u64>) {
        assert!(set.iter().map(|id| id.0).eq(want.iter().copied()));
        assert!(
            set.iter()
                .rev()
                .map(|id| id.0)
                .eq(want.iter().rev().copied())
        );
        assert_eq!(set.len(), want.len() as u64);
        assert_eq!(set.is_empty(), want.is_empty());
        assert_eq!(set.first().map(|id| id.0), want.first().copied());
        assert_eq!(set.last().map(|id| id.0), want.last().copied());
        for id in 0..45 {
            assert_eq!(set.contains(BoxId(id)), want.contains(&id));
        }
        let text = serde_json::to_string(set).unwrap();
        assert_eq!(&serde_json::from_str::<BoxSet>(&text).unwrap(), set);
    }

    #[test]
    fn it_is_a_set() {
        let mut chance = Lcg(7);
        for _ in 0..300 {
            let (mut ours, mut want) = (BoxSet::new(), BTreeSet::new());
            for _ in 0..60 {
                let id = 1 + chance.below(40);
                match chance.below(8) {
                    0..=3 => assert_eq!(ours.insert(BoxId(id)), want.insert(id)),
                    4 | 5 => assert_eq!(ours.remove(BoxId(id)), want.remove(&id)),
                    other => {
                        let few = 1 + chance.below(12);
                        let theirs: BTreeSet<u64> =
                            (0..few).map(|_| 1 + chance.below(40)).collect();
                        let as_set = set(&theirs);
                        assert_eq!(ours.contains_all(&as_set), want.is_superset(&theirs));
                        assert_eq!(ours.intersects(&as_set), !want.is_disjoint(&theirs));
                        if other == 6 {
                            ours.union(&as_set);
                            want.extend(theirs);
                        } else {
                            ours.subtract(&as_set);
                            want.retain(|id| !theirs.contains(id));
                        }
                    }
                }
                same(&ours, &want);
            }
            let all = ours.take();
            assert!(ours.is_empty());
            same(&all, &want);
        }
    }

    #[test]
    fn one_set_has_one_form() {
        let ids = [5, 1, 3, 2, 9, 8].map(BoxId);
        let ours: BoxSet = ids.into_iter().collect();
        assert_eq!(serde_json::to_string(&ours).unwrap(), "[[1,3],[5,5],[8,9]]");
        assert_eq!(BoxSet::all(BoxId(0)), BoxSet::new());
        assert_eq!(
            serde_json::to_string(&BoxSet::all(BoxId(4))).unwrap(),
            "[[1,4]]"
        );
    }

    #[test]
    fn other_forms_are_refused() {
        for text in [
            "[[0,1]]",
            "[[2,1]]",
            "[[1,2],[3,4]]",
            "[[1,3],[2,5]]",
            "[[4,5],[1,2]]",
            "[[1,18446744073709551615],[18446744073709551615,18446744073709551615]]",
            "[[1]]",
        ] {
            assert!(serde_json::from_str::<BoxSet>(text).is_err(), "{text}");
        }
    }

    #[test]
    fn the_ends_of_the_numbers_are_no_edge() {
        let mut ours = BoxSet::new();
        assert!(!ours.insert(BoxId(0)));
        assert!(ours.insert(BoxId(u64::MAX)));
        assert!(ours.insert(BoxId(u64::MAX - 1)));
        assert!(ours.remove(BoxId(u64::MAX)));
        ours.union(&BoxSet::all(BoxId(u64::MAX)));
        assert_eq!(ours, BoxSet::all(BoxId(u64::MAX)));
        ours.subtract(&BoxSet::all(BoxId(u64::MAX)));
        assert!(ours.is_empty());
    }
}
