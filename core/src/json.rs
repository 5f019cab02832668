//! JSON texts that are carried as they came, and the canonical form.

use alloc::{
    borrow::{Cow, ToOwned},
    boxed::Box,
    string::{String, ToString},
    vec::Vec,
};
use core::fmt;

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::value::RawValue;

use crate::wire::CowStr;

/// The deepest nesting that the canonical form follows.
pub const MAX_DEPTH: usize = 128;

/// One JSON value, kept as its text: no number, key order or escape changes on the way through.
///
/// It is one line: line ends between its parts are left out, since frames and records are lines.
#[derive(Clone)]
pub struct RawJson(Box<RawValue>);

impl RawJson {
    /// Takes a text that is one JSON value.
    ///
    /// # Errors
    ///
    /// The text is not JSON, or more than one value.
    pub fn parse(text: &str) -> Result<Self, serde_json::Error> {
        // RawValue keeps white space out at the ends only when it is parsed, not when it is made.
        serde_json::from_str::<&RawValue>(text).map(|raw| Self(raw.to_owned()).one_line())
    }

    /// Writes a value as JSON.
    ///
    /// # Errors
    ///
    /// The value cannot be written, for example a map whose keys are no strings.
    pub fn of<T: Serialize + ?Sized>(value: &T) -> Result<Self, serde_json::Error> {
        // The value may hold raw JSON of somebody else.
        Self::owned(serde_json::to_string(value)?)
    }

    /// Takes a text that is one JSON value, without a copy.
    pub(crate) fn owned(text: String) -> Result<Self, serde_json::Error> {
        RawValue::from_string(text).map(|raw| Self(raw).one_line())
    }

    // In a string a line end is an escape: what is left out stands between two parts.
    fn one_line(self) -> Self {
        if memchr::memchr2(b'\n', b'\r', self.get().as_bytes()).is_none() {
            return self;
        }
        let text = self.get().replace(['\n', '\r'], "");
        RawValue::from_string(text).map_or(self, Self)
    }

    /// For what came in a line.
    pub(crate) fn borrowed(raw: &RawValue) -> Self {
        Self(raw.to_owned())
    }

    /// The text.
    #[must_use]
    pub fn get(&self) -> &str {
        self.0.get()
    }

    /// Reads the value as a type.
    ///
    /// # Errors
    ///
    /// The value does not have the shape of `T`.
    pub fn read<'a, T: Deserialize<'a>>(&'a self) -> Result<T, serde_json::Error> {
        serde_json::from_str(self.get())
    }

    /// The same value without white space between its parts.
    #[must_use]
    pub fn compact(self) -> Self {
        let mut within = Within::default();
        if !self.get().bytes().any(|byte| within.is_space(byte)) {
            return self;
        }
        let mut within = Within::default();
        let text = self.get().chars();
        let text = text.filter(|c| !u8::try_from(*c).is_ok_and(|byte| within.is_space(byte)));
        // What is left out stands between two parts of a value.
        Self::owned(text.collect()).unwrap_or(self)
    }

    /// How long the value is without white space between its parts, in bytes.
    #[must_use]
    pub fn compact_len(&self) -> usize {
        let mut within = Within::default();
        let bytes = self.get().bytes();
        bytes.filter(|byte| !within.is_space(*byte)).count()
    }

    /// The kind of the value.
    #[must_use]
    pub fn kind(&self) -> JsonKind {
        JsonKind::of(self.get())
    }
}

/// Where a reader of a JSON text is, as far as white space is told from the text of a string.
#[derive(Default)]
struct Within {
    string: bool,
    escape: bool,
}

impl Within {
    /// Takes the next byte: whether it is white space between two parts.
    fn is_space(&mut self, byte: u8) -> bool {
        if self.string {
            (self.string, self.escape) = match byte {
                b'"' if !self.escape => (false, false),
                _ => (true, byte == b'\\' && !self.escape),
            };
            return false;
        }
        self.string = byte == b'"';
        matches!(byte, b' ' | b'\t' | b'\n' | b'\r')
    }
}

impl fmt::Debug for RawJson {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.get())
    }
}

impl PartialEq for RawJson {
    fn eq(&self, other: &Self) -> bool {
        self.get() == other.get()
    }
}

impl Eq for RawJson {}

impl<'de> Deserialize<'de> for RawJson {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        Box::<RawValue>::deserialize(d).map(|raw| Self(raw).one_line())
    }
}

impl Serialize for RawJson {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        self.0.serialize(s)
    }
}

/// The kinds of JSON values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JsonKind {
    /// `null`
    Null,
    /// `true` or `false`
    Boolean,
    /// A number.
    Number,
    /// A string.
    String,
    /// An array.
    Array,
    /// An object.
    Object,
}

impl JsonKind {
    /// The kind of a valid JSON text, told by its first byte.
    #[must_use]
    pub fn of(text: &str) -> Self {
        match text.trim_start().as_bytes().first() {
            Some(b'{') => Self::Object,
            Some(b'[') => Self::Array,
            Some(b'"') => Self::String,
            Some(b't' | b'f') => Self::Boolean,
            Some(b'n') => Self::Null,
            _ => Self::Number,
        }
    }

    /// The kind's name in lower case.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Null => "null",
            Self::Boolean => "boolean",
            Self::Number => "number",
            Self::String => "string",
            Self::Array => "array",
            Self::Object => "object",
        }
    }
}

/// Why a value has no canonical form.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CanonicalError {
    /// The text is not one JSON value, or a string in it is no Unicode text.
    #[error("not a JSON value")]
    NotJson,
    /// The value is nested more deeply than [`MAX_DEPTH`].
    #[error("nested more than {MAX_DEPTH} deep")]
    TooDeep,
    /// An object has the same key twice.
    #[error("the key {0:?} stands twice")]
    DuplicateKey(String),
}

/// The canonical text of a JSON value: keys by code point, no spaces, numbers as they came.
///
/// # Errors
///
/// The text is no JSON, too deep, or has a key twice in one object.
pub fn canonical(text: &str) -> Result<String, CanonicalError> {
    serde_json::from_str::<&RawValue>(text).map_err(|_| CanonicalError::NotJson)?;
    let mut out = String::with_capacity(text.len());
    write_canonical(text, 0, &mut out)?;
    Ok(out)
}

/// Writes a text that has been read as one JSON value.
fn write_canonical(text: &str, depth: usize, out: &mut String) -> Result<(), CanonicalError> {
    if depth > MAX_DEPTH {
        return Err(CanonicalError::TooDeep);
    }
    match JsonKind::of(text) {
        JsonKind::Object => {
            let Members(mut members) =
                serde_json::from_str(text).map_err(|_| CanonicalError::NotJson)?;
            members.sort_by(|(a, _), (b, _)| a.cmp(b));
            if let Some(twice) = members.windows(2).find(|pair| pair[0].0 == pair[1].0) {
                return Err(CanonicalError::DuplicateKey(twice[0].0.to_string()));
            }
            out.push('{');
            for (at, (key, value)) in members.iter().enumerate() {
                if at > 0 {
                    out.push(',');
                }
                write_string(key, out);
                out.push(':');
                write_canonical(value.get(), depth + 1, out)?;
            }
            out.push('}');
        }
        JsonKind::Array => {
            let items: Vec<&RawValue> =
                serde_json::from_str(text).map_err(|_| CanonicalError::NotJson)?;
            out.push('[');
            for (at, value) in items.iter().enumerate() {
                if at > 0 {
                    out.push(',');
                }
                write_canonical(value.get(), depth + 1, out)?;
            }
            out.push(']');
        }
        JsonKind::String => {
            let s: CowStr<'_> = serde_json::from_str(text).map_err(|_| CanonicalError::NotJson)?;
            write_string(&s.0, out);
        }
        JsonKind::Null | JsonKind::Boolean | JsonKind::Number => {
            out.push_str(text.trim());
        }
    }
    Ok(())
}

pub(crate) fn write_string(s: &str, out: &mut String) {
    let plain = |b: u8| b >= 0x20 && b != b'"' && b != b'\\';
    if s.bytes().all(plain) {
        out.push('"');
        out.push_str(s);
        out.push('"');
        return;
    }
    // Writing a string to memory cannot fail: it has no map keys and no IO.
    out.push_str(&serde_json::to_string(s).unwrap_or_default());
}

/// Reads an object. Derived readers take an array for a struct too, member by member: no frame of
/// the server's is meant so.
pub(crate) fn from_object<'a, T: Deserialize<'a>>(text: &'a str) -> Result<T, serde_json::Error> {
    if JsonKind::of(text) != JsonKind::Object {
        return Err(serde::de::Error::custom("not an object"));
    }
    serde_json::from_str(text)
}

/// The members of an object in order, twice the same key included.
pub(crate) struct Members<'a>(pub(crate) Vec<(Cow<'a, str>, &'a RawValue)>);

impl<'de: 'a, 'a> Deserialize<'de> for Members<'a> {
    fn deserialize<D: serde::Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        struct Visitor;
        impl<'de> serde::de::Visitor<'de> for Visitor {
            type Value = Vec<(Cow<'de, str>, &'de RawValue)>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }
            fn visit_map<A: serde::de::MapAccess<'de>>(
                self,
                mut map: A,
            ) -> Result<Self::Value, A::Error> {
                let mut members = Vec::new();
                while let Some((key, value)) = map.next_entry::<CowStr<'_>, _>()? {
                    members.push((key.0, value));
                }
                Ok(members)
            }
        }
        d.deserialize_map(Visitor).map(Self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn canonical_sorts_keys_and_keeps_numbers() {
        let text = r#" { "b" : [1e2, -0, 100000000000000000000], "a\u0062": "\u00e9\n" } "#;
        assert_eq!(
            canonical(text).unwrap(),
            r#"{"ab":"é\n","b":[1e2,-0,100000000000000000000]}"#
        );
    }

    #[test]
    fn compact_leaves_out_what_stands_between_parts() {
        for (text, compact) in [
            ("{}", "{}"),
            (
                "{ \"a b\\\" c\" :\t[ 1 ,\n\"\\\\\" , \"é \" ] }",
                "{\"a b\\\" c\":[1,\"\\\\\",\"é \"]}",
            ),
        ] {
            let raw = RawJson::parse(text).unwrap();
            assert_eq!(raw.compact_len(), compact.len());
            assert_eq!(raw.compact().get(), compact);
        }
    }

    #[test]
    fn a_value_is_one_line() {
        let text = "{\r\n  \"a\": [1,\n2],\n\"b\\n\": \"é\\n\"\n}";
        let line = "{  \"a\": [1,2],\"b\\n\": \"é\\n\"}";
        let raw = RawValue::from_string(text.to_owned()).unwrap();
        for value in [
            RawJson::parse(text).unwrap(),
            RawJson::of(&raw).unwrap(),
            RawJson::owned(text.to_owned()).unwrap(),
            serde_json::from_str(text).unwrap(),
        ] {
            assert_eq!(value.get(), line);
        }
        let many: Vec<RawJson> =
            serde_json::from_str(&alloc::format!("[{text},\n{text}]")).unwrap();
        assert!(many.iter().all(|value| value.get() == line));
    }

    #[test]
    fn canonical_refuses_depth_and_duplicate_keys() {
        let deep = "[".repeat(200) + &"]".repeat(200);
        assert_eq!(canonical(&deep), Err(CanonicalError::TooDeep));
        let twice = r#"{"a":1,"\u0061":2}"#;
        assert_eq!(
            canonical(twice),
            Err(CanonicalError::DuplicateKey("a".into()))
        );
        assert_eq!(canonical(r#""\ud800""#), Err(CanonicalError::NotJson));
    }
}
