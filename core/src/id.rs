//! Names and numbers. Native ids are the server's and are kept as they came; numbers are ours.

use alloc::{format, string::String, sync::Arc, vec::Vec};
use core::{borrow::Borrow, fmt, ops::Deref};

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// Whether a text may serve as an id, a name or a cursor: not empty, no white space at its ends.
#[must_use]
pub fn is_clean(text: &str) -> bool {
    match text.as_bytes() {
        // The ids of the server begin and end like this: no need to decode characters.
        [first, .., last] if first.is_ascii_graphic() && last.is_ascii_graphic() => true,
        _ => !text.is_empty() && text.trim().len() == text.len(),
    }
}

macro_rules! number {
    ($(#[$doc:meta])* $name:ident($inner:ty)) => {
        $(#[$doc])*
        #[derive(
            Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
        )]
        #[serde(transparent)]
        pub struct $name(pub $inner);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }

        impl $name {
            /// The next number, or `None` when the space has run out: it never wraps.
            #[must_use]
            pub const fn next(self) -> Option<Self> {
                match self.0.checked_add(1) {
                    Some(n) => Some(Self(n)),
                    None => None,
                }
            }
        }
    };
}

number! {
    /// A conversation of this client, from 1.
    ConversationId(u32)
}
number! {
    /// A turn of this client, from 1: known before the server has named it.
    TurnNo(u32)
}
number! {
    /// A connection to the server, from 1. A frame of a past epoch changes nothing.
    Epoch(u32)
}
number! {
    /// A batch of records in the journal, from 1.
    JournalSeq(u64)
}
number! {
    /// A frame that was handed out to be sent, from 1 in the life of a machine.
    FrameSeq(u64)
}
number! {
    /// A command, numbered by the caller: the same number twice gets the same answer.
    CommandId(u64)
}
number! {
    /// A question of the server (approval, user input, form), from 1.
    QuestionId(u64)
}
number! {
    /// A refresh of the server's tokens that it asks for, from 1 in the life of a machine.
    RefreshId(u64)
}
number! {
    /// A box of a conversation's transcript, from 1 without gaps.
    BoxId(u64)
}
number! {
    /// An arrival of a conversation: what was accepted and is not yet a box. From 1.
    ArrivalNo(u64)
}

/// A text of up to 46 bytes without a way to go: an id that each frame is compared with.
#[derive(Clone)]
enum Inline {
    Short { len: u8, bytes: [u8; Inline::ROOM] },
    Long(Arc<str>),
}

impl Inline {
    const ROOM: usize = 46;

    fn as_bytes(&self) -> &[u8] {
        match self {
            Self::Short { len, bytes } => bytes.get(..usize::from(*len)).unwrap_or_default(),
            Self::Long(text) => text.as_bytes(),
        }
    }
}

impl From<&str> for Inline {
    fn from(text: &str) -> Self {
        let mut bytes = [0; Self::ROOM];
        match (bytes.get_mut(..text.len()), u8::try_from(text.len())) {
            (Some(place), Ok(len)) => {
                place.copy_from_slice(text.as_bytes());
                Self::Short { len, bytes }
            }
            _ => Self::Long(text.into()),
        }
    }
}

impl Deref for Inline {
    type Target = str;
    fn deref(&self) -> &str {
        // The bytes are those of a text.
        core::str::from_utf8(self.as_bytes()).unwrap_or_default()
    }
}

/// How the text of an id is kept.
trait Store: for<'a> From<&'a str> + Deref<Target = str> {
    fn is(&self, text: &str) -> bool;
    fn same(&self, other: &Self) -> bool;
}

impl Store for Arc<str> {
    fn is(&self, text: &str) -> bool {
        **self == *text
    }

    fn same(&self, other: &Self) -> bool {
        // Most comparisons are of an id with itself.
        Self::ptr_eq(self, other) || **self == **other
    }
}

impl Store for Inline {
    fn is(&self, text: &str) -> bool {
        self.as_bytes() == text.as_bytes()
    }

    fn same(&self, other: &Self) -> bool {
        self.as_bytes() == other.as_bytes()
    }
}

macro_rules! native {
    ($(#[$doc:meta])* $name:ident($store:ty)) => {
        $(#[$doc])*
        #[derive(Clone)]
        pub struct $name($store);

        impl Eq for $name {}

        impl PartialEq for $name {
            fn eq(&self, other: &Self) -> bool {
                self.0.same(&other.0)
            }
        }

        impl Ord for $name {
            fn cmp(&self, other: &Self) -> core::cmp::Ordering {
                (*self.0).cmp(&*other.0)
            }
        }

        impl PartialOrd for $name {
            fn partial_cmp(&self, other: &Self) -> Option<core::cmp::Ordering> {
                Some(self.cmp(other))
            }
        }

        impl core::hash::Hash for $name {
            fn hash<H: core::hash::Hasher>(&self, state: &mut H) {
                (*self.0).hash(state);
            }
        }

        impl $name {
            /// Takes a text that is not empty and has no white space at its ends.
            #[must_use]
            pub fn new(text: &str) -> Option<Self> {
                is_clean(text).then(|| Self(text.into()))
            }

            /// Whether the server's `text` is this id.
            #[must_use]
            pub fn is(&self, text: &str) -> bool {
                self.0.is(text)
            }

            /// The id as the server wrote it.
            #[must_use]
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl Deref for $name {
            type Target = str;
            fn deref(&self) -> &str {
                &self.0
            }
        }

        impl Borrow<str> for $name {
            fn borrow(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Debug::fmt(&*self.0, f)
            }
        }

        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
                s.serialize_str(&self.0)
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
                let text = String::deserialize(d)?;
                Self::new(&text).ok_or_else(|| {
                    de::Error::custom(format!(
                        concat!(stringify!($name), " {:?} is empty or has white space at its ends"),
                        text
                    ))
                })
            }
        }
    };
}

native! {
    /// A native thread (`thread.id`).
    ThreadId(Inline)
}
native! {
    /// A native turn (`turn.id`).
    TurnId(Inline)
}
native! {
    /// An item of a turn (`item.id`).
    ItemId(Arc<str>)
}
native! {
    /// The id of a message of ours, `msg_` and 32 hex digits, sent as `clientUserMessageId`.
    MessageId(Arc<str>)
}
native! {
    /// The server's name of a tool call (`callId`).
    CallId(Arc<str>)
}

native! {
    /// The home that a server serves from, as it tells it (`codexHome`).
    CodexHome(Arc<str>)
}

/// The application's name for a conversation: 1 to 256 bytes, no white space at the ends.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(transparent)]
pub struct ConversationKey(Arc<str>);

impl ConversationKey {
    /// The longest key, in bytes.
    pub const MAX: usize = 256;

    /// Takes a key of 1 to 256 bytes without Unicode white space at its ends.
    #[must_use]
    pub fn new(key: &str) -> Option<Self> {
        (is_clean(key) && key.len() <= Self::MAX).then(|| Self(key.into()))
    }

    /// The key as it was given.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for ConversationKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl<'de> Deserialize<'de> for ConversationKey {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        let text = String::deserialize(d)?;
        Self::new(&text).ok_or_else(|| de::Error::custom(format!("bad conversation key {text:?}")))
    }
}

/// What makes the call ids of one conversation unlike those of any other: 12 random bytes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Nonce(pub [u8; 12]);

impl fmt::Display for Nonce {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|b| write!(f, "{b:02x}"))
    }
}

impl fmt::Debug for Nonce {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl Serialize for Nonce {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Nonce {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        let text = String::deserialize(d)?;
        parse_hex(&text)
            .and_then(|bytes| bytes.try_into().ok())
            .map(Self)
            .ok_or_else(|| de::Error::custom("a nonce is 24 lower-case hex digits"))
    }
}

/// Reads lower-case hex.
pub(crate) fn parse_hex(text: &str) -> Option<Vec<u8>> {
    let digit = |b: u8| match b {
        b'0'..=b'9' => Some(b - b'0'),
        b'a'..=b'f' => Some(b - b'a' + 10),
        _ => None,
    };
    let bytes = text.as_bytes();
    if bytes.len() % 2 != 0 {
        return None;
    }
    bytes
        .chunks_exact(2)
        .map(|pair| Some(digit(pair[0])? << 4 | digit(pair[1])?))
        .collect()
}

/// A tool call: the conversation's nonce and the call's number in it, from 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ToolCallId {
    /// The nonce of the conversation that the call belongs to.
    pub nonce: Nonce,
    /// The number of the call in that conversation, from 1.
    pub sequence: u64,
}

impl fmt::Display for ToolCallId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.nonce, self.sequence)
    }
}

/// A JSON-RPC id, as its raw JSON text: 7 and 7.0 and "7" are three ids.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct RequestId(pub alloc::boxed::Box<str>);
