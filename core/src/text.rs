//! A piece of text that several hold at once.

use alloc::{string::String, sync::Arc, vec::Vec};
use core::{borrow::Borrow, cmp::Ordering, fmt, hash, ops::Deref};

use serde::{Serialize, Serializer};

/// A piece of streamed text. It reads like a `str`. A long one, as it is told, is shared where it is
/// cloned, a longer one where the client keeps it too, and not copied.
#[derive(Clone)]
pub struct Text(Repr);

#[derive(Clone)]
enum Repr {
    Own(String),
    Shared(Arc<str>),
    /// One that is too long to be copied even once.
    Whole(Arc<String>),
}

/// Room for texts that grow, used again and again.
#[derive(Clone, Debug, Default)]
pub(crate) struct Spare {
    rooms: Vec<String>,
    /// What all of them take.
    bytes: usize,
}

impl Spare {
    /// How many bytes are kept.
    const MOST: usize = 256 << 10;

    /// Up to how many bytes a text is copied out of its room.
    const COPIED: usize = 16 << 10;

    pub(crate) fn take(&mut self) -> String {
        let room = self.rooms.pop().unwrap_or_default();
        self.bytes -= room.capacity();
        room
    }

    fn put(&mut self, mut room: String) {
        let bytes = self.bytes + room.capacity();
        if bytes <= Self::MOST {
            self.bytes = bytes;
            room.clear();
            self.rooms.push(room);
        }
    }
}

/// Holds short texts that were told until after their readers have let go of them, so that their
/// memory is freed where the next ones are made: readers in other threads would wait for the
/// allocator, and fresh memory is slower than what was used just now. It holds a few more than are
/// read at a time, [`MOST`](Self::MOST) at most.
#[derive(Debug, Default)]
pub(crate) struct Told {
    texts: Vec<Text>,
    next: usize,
}

impl Told {
    /// How many are held, so that all are a MiB.
    const MOST: usize = 1_024;

    pub(crate) fn hold(&mut self, text: &Text) {
        if !text.is_shared() || text.len() >= Text::LARGE {
            return;
        }
        let is_full = self.texts.len() == Self::MOST;
        self.next = if self.next < self.texts.len() {
            self.next
        } else {
            0
        };
        match self.texts.get_mut(self.next) {
            Some(told) if is_full || told.is_left_alone() => *told = text.clone(),
            _ => self.texts.push(text.clone()),
        }
        self.next += 1;
    }
}

impl Text {
    /// From how many bytes on a text that was told is shared with its turn and not copied.
    pub(crate) const LARGE: usize = 1 << 10;

    /// The text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        match &self.0 {
            Repr::Own(text) => text,
            Repr::Shared(text) => text,
            Repr::Whole(text) => text,
        }
    }

    /// Appends to it. Where it is shared it is copied, and the others keep it as it was.
    pub fn push_str(&mut self, more: &str) {
        if self.own_mut().is_none() {
            *self = core::mem::take(self).into_string().into();
        }
        if let Some(text) = self.own_mut() {
            text.push_str(more);
        }
    }

    /// The text as a string. One of up to 16 KiB is copied where it is shared, a longer one only where
    /// others still hold it.
    #[must_use]
    pub fn into_string(self) -> String {
        match self.0 {
            Repr::Own(text) => text,
            Repr::Shared(text) => (*text).into(),
            Repr::Whole(text) => Arc::unwrap_or_clone(text),
        }
    }

    /// The text, where it is of this holder alone.
    pub(crate) const fn own_mut(&mut self) -> Option<&mut String> {
        match &mut self.0 {
            Repr::Own(text) => Some(text),
            Repr::Shared(_) | Repr::Whole(_) => None,
        }
    }

    /// Grows no more: from `long` bytes on it is shared by its clones, and the room that it grew in is
    /// free for others.
    pub(crate) fn settle(&mut self, long: usize, spare: &mut Spare) {
        let Repr::Own(text) = &mut self.0 else {
            return;
        };
        let mut text = core::mem::take(text);
        let is_long = text.len() >= long;
        let fits = text.capacity() - text.len() <= text.len() / 8;
        self.0 = if fits || text.len() > Spare::COPIED {
            if !fits {
                text.shrink_to_fit();
            }
            if is_long {
                Repr::Whole(Arc::new(text))
            } else {
                Repr::Own(text)
            }
        } else {
            let settled = if is_long {
                Repr::Shared(text.as_str().into())
            } else {
                Repr::Own(text.as_str().into())
            };
            spare.put(text);
            settled
        };
    }

    /// Whether nobody else holds it.
    fn is_left_alone(&self) -> bool {
        match &self.0 {
            Repr::Own(_) => true,
            Repr::Shared(text) => Arc::strong_count(text) == 1,
            Repr::Whole(text) => Arc::strong_count(text) == 1,
        }
    }

    pub(crate) const fn is_shared(&self) -> bool {
        !matches!(self.0, Repr::Own(_))
    }
}

impl Default for Text {
    fn default() -> Self {
        Self(Repr::Own(String::new()))
    }
}

impl From<String> for Text {
    fn from(text: String) -> Self {
        Self(Repr::Own(text))
    }
}

impl From<&str> for Text {
    fn from(text: &str) -> Self {
        Self(Repr::Own(text.into()))
    }
}

impl From<Text> for String {
    fn from(text: Text) -> Self {
        text.into_string()
    }
}

impl Deref for Text {
    type Target = str;

    fn deref(&self) -> &str {
        self.as_str()
    }
}

impl AsRef<str> for Text {
    fn as_ref(&self) -> &str {
        self
    }
}

impl Borrow<str> for Text {
    fn borrow(&self) -> &str {
        self
    }
}

impl fmt::Debug for Text {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.as_str(), f)
    }
}

impl fmt::Display for Text {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self.as_str(), f)
    }
}

impl PartialEq for Text {
    fn eq(&self, other: &Self) -> bool {
        self.as_str() == other.as_str()
    }
}

impl Eq for Text {}

impl PartialEq<str> for Text {
    fn eq(&self, other: &str) -> bool {
        self.as_str() == other
    }
}

impl PartialEq<&str> for Text {
    fn eq(&self, other: &&str) -> bool {
        self.as_str() == *other
    }
}

impl PartialEq<Text> for str {
    fn eq(&self, other: &Text) -> bool {
        self == other.as_str()
    }
}

impl PartialEq<Text> for &str {
    fn eq(&self, other: &Text) -> bool {
        *self == other.as_str()
    }
}

impl PartialEq<Text> for String {
    fn eq(&self, other: &Text) -> bool {
        self == other.as_str()
    }
}

impl PartialOrd for Text {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Text {
    fn cmp(&self, other: &Self) -> Ordering {
        self.as_str().cmp(other)
    }
}

impl fmt::Write for Text {
    fn write_str(&mut self, more: &str) -> fmt::Result {
        self.push_str(more);
        Ok(())
    }
}

impl PartialEq<String> for Text {
    fn eq(&self, other: &String) -> bool {
        self.as_str() == other
    }
}

impl hash::Hash for Text {
    fn hash<H: hash::Hasher>(&self, state: &mut H) {
        self.as_str().hash(state);
    }
}

impl Serialize for Text {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self)
    }
}

#[cfg(test)]
mod tests {
    use alloc::string::ToString;

    use super::*;

    #[test]
    fn a_shared_text_is_one_until_somebody_changes_it() {
        let mut spare = Spare::default();
        for size in [3, 10, Spare::COPIED + 1, Spare::COPIED] {
            let mut room = spare.take();
            room.reserve(2 * size);
            room.push_str(&"x".repeat(size));
            let mut one = Text::from(room);
            one.settle(10, &mut spare);
            assert_eq!(one.is_shared(), size >= 10);
            let mut other = one.clone();
            assert_eq!(core::ptr::eq(one.as_str(), other.as_str()), size >= 10);
            other.push_str(" and more");
            assert_eq!((one.len(), other.len()), (size, size + 9));
            assert_eq!(one.into_string().len(), size);
        }
        assert_eq!(spare.rooms.len(), 1);
        assert_eq!(spare.bytes, spare.rooms[0].capacity());
    }

    #[test]
    fn told_texts_are_held_until_nobody_else_holds_them() {
        let shared = |n: usize| {
            let mut text = Text::from(n.to_string());
            text.settle(1, &mut Spare::default());
            text
        };
        let mut told = Told::default();
        for n in 0..10 * Told::MOST {
            told.hold(&shared(n));
        }
        assert_eq!(told.texts.len(), 1, "its reader had let go of each");
        let held: Vec<Text> = (0..3 * Told::MOST).map(shared).collect();
        for text in &held {
            told.hold(text);
        }
        assert_eq!(told.texts.len(), Told::MOST);
        let with_others = |texts: &[Text]| texts.iter().filter(|t| !t.is_left_alone()).count();
        assert_eq!(with_others(&told.texts), Told::MOST);
        drop(held);
        assert_eq!(with_others(&told.texts), 0);
    }

    #[test]
    fn a_long_text_is_never_copied_where_nobody_else_has_it() {
        let text = "x".repeat(Spare::COPIED + 1);
        let at = text.as_ptr();
        let mut text = Text::from(text);
        text.settle(10, &mut Spare::default());
        let other = text.clone();
        drop(other);
        let text = text.into_string();
        assert_eq!(text.as_ptr(), at);
    }
}
