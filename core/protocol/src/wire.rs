//! How a type is read from JSON and written as JSON, and what is wrong where it cannot be.

use alloc::{borrow::ToOwned, boxed::Box, collections::BTreeMap, string::String, vec::Vec};
use core::fmt;

use serde_json::{Map, Value};

/// A type of the protocol.
///
/// Reading loses nothing: an object keeps the members that its type does not have, and an enum keeps
/// a value that it does not have. Writing gives them back.
pub trait Wire: Sized {
    /// Reads it from a JSON value.
    ///
    /// # Errors
    ///
    /// The value does not have the type's shape; the error names the place.
    fn decode(value: &Value) -> Result<Self, DecodeError>;

    /// Writes it as a JSON value.
    fn encode(&self) -> Value;

    /// Tells what is in it that its type does not have, at any depth.
    fn strange(&self, found: &mut Strange);
}

/// A value does not have its type's shape.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{path}: {fault}")]
#[non_exhaustive]
pub struct DecodeError {
    /// Where, from `$`.
    pub path: JsonPath,
    /// What is wrong there.
    pub fault: Fault,
}

/// What is wrong with a value.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Fault {
    /// A member that the type must have is missing.
    #[error("missing")]
    Missing,
    /// The value is of another kind.
    #[error("expected {expected}, found {found}")]
    Kind {
        /// The kind that it must have, such as `string`.
        expected: &'static str,
        /// The kind that it has.
        found: &'static str,
    },
    /// The number does not fit.
    #[error("expected {expected}, found {found}")]
    Number {
        /// What it must be, such as `u32`.
        expected: &'static str,
        /// The number.
        found: String,
    },
}

impl DecodeError {
    /// The value is of another kind than `expected`.
    #[must_use]
    pub fn kind(expected: &'static str, value: &Value) -> Self {
        Self::new(Fault::Kind {
            expected,
            found: kind(value),
        })
    }

    fn new(fault: Fault) -> Self {
        Self {
            path: JsonPath::default(),
            fault,
        }
    }

    fn within(mut self, step: Step) -> Self {
        self.path.0.push(step);
        self
    }
}

/// A place in a JSON value. Its text is such as `$.data[3].id`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
// The innermost step comes first: it is known first.
pub struct JsonPath(Vec<Step>);

#[derive(Clone, Debug, PartialEq, Eq)]
enum Step {
    Member(String),
    Element(usize),
}

/// Members that hold keys and tokens: no log shows them.
const SECRET: [&str; 10] = [
    "accessToken",
    "apiKey",
    "authBearerToken",
    "credential",
    "idToken",
    "password",
    "refreshToken",
    "secretAccessKey",
    "sessionToken",
    "token",
];

/// Shows a member of an object, unless it is a secret.
pub(crate) fn show(
    shown: &mut fmt::DebugStruct<'_, '_>,
    name: &str,
    key: &str,
    value: &dyn fmt::Debug,
) {
    match SECRET.contains(&key) {
        true => shown.field(name, &format_args!("[secret]")),
        false => shown.field(name, value),
    };
}

impl fmt::Display for JsonPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("$")?;
        self.0.iter().rev().try_for_each(|step| match step {
            Step::Member(name) => write!(f, ".{name}"),
            Step::Element(index) => write!(f, "[{index}]"),
        })
    }
}

/// The JSON kind of a value, in lower case.
#[must_use]
pub const fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

/// What is in a value that its type does not have.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Strange {
    at: Vec<Step>,
    /// The places, in order.
    pub found: Vec<Stranger>,
}

/// Something that a type does not have.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stranger {
    /// Where.
    pub path: JsonPath,
    /// What.
    pub what: StrangerKind,
}

/// What it is that a type does not have.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum StrangerKind {
    /// A member of an object.
    Member,
    /// A value of an enum.
    Value,
    /// A value whose word is known, and whose shape is another one.
    Shape(DecodeError),
}

impl fmt::Display for Stranger {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.what {
            StrangerKind::Member => write!(f, "{}: not a known member", self.path),
            StrangerKind::Value => write!(f, "{}: not a known value", self.path),
            StrangerKind::Shape(error) => {
                write!(f, "{}: not the known shape ({error})", self.path)
            }
        }
    }
}

impl Strange {
    /// What is strange in `value`.
    #[must_use]
    pub fn of<T: Wire>(value: &T) -> Vec<Stranger> {
        let mut strange = Self::default();
        value.strange(&mut strange);
        strange.found
    }

    pub(crate) fn member<T: Wire>(&mut self, name: &str, value: &T) {
        self.at.push(Step::Member(name.to_owned()));
        value.strange(self);
        self.at.pop();
    }

    pub(crate) fn unknown(&mut self, unknown: &Map<String, Value>) {
        for name in unknown.keys() {
            self.at.push(Step::Member(name.clone()));
            self.add(StrangerKind::Member);
            self.at.pop();
        }
    }

    pub(crate) fn add(&mut self, what: StrangerKind) {
        let path = JsonPath(self.at.iter().rev().cloned().collect());
        self.found.push(Stranger { path, what });
    }
}

/// A value of an enum that this version does not have, as it came.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Unknown {
    /// The value.
    pub value: Value,
    /// Where the value's word is known: what of its shape is not.
    pub why: Option<Box<DecodeError>>,
}

impl Unknown {
    /// A value that an enum does not have.
    #[must_use]
    pub fn new(value: Value) -> Self {
        Self { value, why: None }
    }

    pub(crate) fn of(value: &Value) -> Self {
        Self::new(value.clone())
    }

    pub(crate) fn misshapen(value: &Value, why: DecodeError) -> Self {
        Self {
            value: value.clone(),
            why: Some(Box::new(why)),
        }
    }

    pub(crate) fn strange(&self, found: &mut Strange) {
        found.add(match &self.why {
            None => StrangerKind::Value,
            Some(why) => StrangerKind::Shape((**why).clone()),
        });
    }

    /// The value's word: itself where it is a text, else its member `tag`.
    #[must_use]
    pub fn word(&self, tag: &str) -> Option<&str> {
        self.value
            .as_str()
            .or_else(|| self.value.get(tag).and_then(Value::as_str))
    }
}

/// A member that may be left out, and may be null, which is not the same: absent keeps the server's
/// default, and null takes a setting back or says that there is none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Maybe<T> {
    /// It is left out.
    #[default]
    Absent,
    /// It is null.
    Null,
    /// It is there.
    Some(T),
}

impl<T> Maybe<T> {
    /// The value, where there is one.
    #[must_use]
    pub const fn get(&self) -> Option<&T> {
        match self {
            Self::Some(value) => Some(value),
            Self::Absent | Self::Null => None,
        }
    }

    /// The value, where there is one.
    #[must_use]
    pub fn into_option(self) -> Option<T> {
        match self {
            Self::Some(value) => Some(value),
            Self::Absent | Self::Null => None,
        }
    }

    /// Whether it is left out.
    #[must_use]
    pub const fn is_absent(&self) -> bool {
        matches!(self, Self::Absent)
    }

    /// Whether it is null.
    #[must_use]
    pub const fn is_null(&self) -> bool {
        matches!(self, Self::Null)
    }
}

impl Maybe<String> {
    /// The text, where there is one.
    #[must_use]
    pub fn as_deref(&self) -> Option<&str> {
        self.get().map(String::as_str)
    }
}

impl<T> From<T> for Maybe<T> {
    fn from(value: T) -> Self {
        Self::Some(value)
    }
}

impl From<&str> for Maybe<String> {
    fn from(value: &str) -> Self {
        Self::Some(value.to_owned())
    }
}

impl Wire for Value {
    fn decode(value: &Value) -> Result<Self, DecodeError> {
        Ok(value.clone())
    }

    fn encode(&self) -> Value {
        self.clone()
    }

    fn strange(&self, _: &mut Strange) {}
}

impl Wire for String {
    fn decode(value: &Value) -> Result<Self, DecodeError> {
        match value {
            Value::String(text) => Ok(text.clone()),
            _ => Err(DecodeError::kind("string", value)),
        }
    }

    fn encode(&self) -> Value {
        Value::String(self.clone())
    }

    fn strange(&self, _: &mut Strange) {}
}

impl Wire for bool {
    fn decode(value: &Value) -> Result<Self, DecodeError> {
        match value {
            Value::Bool(value) => Ok(*value),
            _ => Err(DecodeError::kind("boolean", value)),
        }
    }

    fn encode(&self) -> Value {
        Value::Bool(*self)
    }

    fn strange(&self, _: &mut Strange) {}
}

macro_rules! integers {
    ($($type:ident $read:ident),*) => {$(
        impl Wire for $type {
            fn decode(value: &Value) -> Result<Self, DecodeError> {
                let Value::Number(number) = value else {
                    return Err(DecodeError::kind("number", value));
                };
                let fits = number.$read().and_then(|wide| Self::try_from(wide).ok());
                fits.ok_or_else(|| DecodeError::new(Fault::Number {
                    expected: stringify!($type),
                    found: alloc::format!("{number}"),
                }))
            }

            fn encode(&self) -> Value {
                Value::from(*self)
            }

            fn strange(&self, _: &mut Strange) {}
        }
    )*};
}

integers!(u8 as_u64, u16 as_u64, u32 as_u64, u64 as_u64, i8 as_i64, i16 as_i64, i32 as_i64, i64 as_i64);

impl Wire for f64 {
    fn decode(value: &Value) -> Result<Self, DecodeError> {
        match value.as_f64() {
            Some(number) => Ok(number),
            None => Err(DecodeError::kind("number", value)),
        }
    }

    fn encode(&self) -> Value {
        Value::from(*self)
    }

    fn strange(&self, _: &mut Strange) {}
}

impl<T: Wire> Wire for Box<T> {
    fn decode(value: &Value) -> Result<Self, DecodeError> {
        T::decode(value).map(Self::new)
    }

    fn encode(&self) -> Value {
        (**self).encode()
    }

    fn strange(&self, found: &mut Strange) {
        (**self).strange(found);
    }
}

/// Null is `None`.
impl<T: Wire> Wire for Option<T> {
    fn decode(value: &Value) -> Result<Self, DecodeError> {
        match value {
            Value::Null => Ok(None),
            _ => T::decode(value).map(Some),
        }
    }

    fn encode(&self) -> Value {
        self.as_ref().map_or(Value::Null, T::encode)
    }

    fn strange(&self, found: &mut Strange) {
        if let Some(value) = self {
            value.strange(found);
        }
    }
}

impl<T: Wire> Wire for Vec<T> {
    fn decode(value: &Value) -> Result<Self, DecodeError> {
        let Value::Array(elements) = value else {
            return Err(DecodeError::kind("array", value));
        };
        let read = |(index, element)| {
            T::decode(element).map_err(|error: DecodeError| error.within(Step::Element(index)))
        };
        elements.iter().enumerate().map(read).collect()
    }

    fn encode(&self) -> Value {
        Value::Array(self.iter().map(T::encode).collect())
    }

    fn strange(&self, found: &mut Strange) {
        for (index, element) in self.iter().enumerate() {
            found.at.push(Step::Element(index));
            element.strange(found);
            found.at.pop();
        }
    }
}

impl<T: Wire> Wire for BTreeMap<String, T> {
    fn decode(value: &Value) -> Result<Self, DecodeError> {
        let read = |(name, member): (&String, &Value)| match T::decode(member) {
            Ok(value) => Ok((name.clone(), value)),
            Err(error) => Err(error.within(Step::Member(name.clone()))),
        };
        object(value)?.iter().map(read).collect()
    }

    fn encode(&self) -> Value {
        let write = |(name, value): (&String, &T)| (name.clone(), value.encode());
        Value::Object(self.iter().map(write).collect())
    }

    fn strange(&self, found: &mut Strange) {
        for (name, value) in self {
            found.member(name, value);
        }
    }
}

pub(crate) fn object(value: &Value) -> Result<&Map<String, Value>, DecodeError> {
    match value {
        Value::Object(members) => Ok(members),
        _ => Err(DecodeError::kind("object", value)),
    }
}

/// How a member of an object is there: always, maybe, or maybe null.
pub(crate) trait Slot: Sized {
    fn take(members: &Map<String, Value>, name: &str) -> Result<Self, DecodeError>;
    fn put(&self, members: &mut Map<String, Value>, name: &str);
    fn look(&self, name: &str, found: &mut Strange);
}

/// A member that is always there.
pub(crate) struct Always<T>(pub(crate) T);

impl<T: Wire> Always<T> {
    pub(crate) fn take(members: &Map<String, Value>, name: &str) -> Result<T, DecodeError> {
        match members.get(name) {
            Some(value) => {
                T::decode(value).map_err(|error| error.within(Step::Member(name.to_owned())))
            }
            None => Err(DecodeError::new(Fault::Missing).within(Step::Member(name.to_owned()))),
        }
    }
}

impl<T: Wire> Slot for Option<T> {
    fn take(members: &Map<String, Value>, name: &str) -> Result<Self, DecodeError> {
        match members.get(name) {
            Some(_) => Always::take(members, name).map(Some),
            None => Ok(None),
        }
    }

    fn put(&self, members: &mut Map<String, Value>, name: &str) {
        if let Some(value) = self {
            members.insert(name.to_owned(), value.encode());
        }
    }

    fn look(&self, name: &str, found: &mut Strange) {
        if let Some(value) = self {
            found.member(name, value);
        }
    }
}

impl<T: Wire> Slot for Maybe<T> {
    fn take(members: &Map<String, Value>, name: &str) -> Result<Self, DecodeError> {
        match members.get(name) {
            Some(Value::Null) => Ok(Self::Null),
            Some(_) => Always::take(members, name).map(Self::Some),
            None => Ok(Self::Absent),
        }
    }

    fn put(&self, members: &mut Map<String, Value>, name: &str) {
        let value = match self {
            Self::Absent => return,
            Self::Null => Value::Null,
            Self::Some(value) => value.encode(),
        };
        members.insert(name.to_owned(), value);
    }

    fn look(&self, name: &str, found: &mut Strange) {
        if let Self::Some(value) = self {
            found.member(name, value);
        }
    }
}

/// The members that a type does not have.
pub(crate) fn rest(
    members: &Map<String, Value>,
    known: &[&str],
    tag: Option<&str>,
) -> Map<String, Value> {
    let is_strange = |name: &str| !known.contains(&name) && tag != Some(name);
    members
        .iter()
        .filter(|(name, _)| is_strange(name))
        .map(|(name, value)| (name.clone(), value.clone()))
        .collect()
}

/// An object, which may be a variant of an enum that its member `tag` tells.
pub(crate) trait Object: Wire {
    fn decode_but(value: &Value, tag: Option<&str>) -> Result<Self, DecodeError>;
}
