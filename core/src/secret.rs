//! Texts that stand in no log: neither `Debug` nor serialising shows them.

use alloc::{borrow::ToOwned, string::String};
use core::fmt;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::{RawJson, effect::SECRET_PLACEHOLDER};

/// A text that is on its way to the server and nowhere else. `Debug` and serialising show a
/// placeholder, so that a recording holds that in its place; reading gives what was written.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    /// Takes the text.
    #[must_use]
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// The text.
    #[must_use]
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl From<&str> for Secret {
    fn from(text: &str) -> Self {
        Self(text.to_owned())
    }
}

impl From<String> for Secret {
    fn from(text: String) -> Self {
        Self(text)
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(SECRET_PLACEHOLDER)
    }
}

impl Serialize for Secret {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.serialize_str(SECRET_PLACEHOLDER)
    }
}

impl<'de> Deserialize<'de> for Secret {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        String::deserialize(d).map(Self)
    }
}

/// A JSON value that is on its way to the server and nowhere else, as [`Secret`] is.
#[derive(Clone, PartialEq, Eq)]
pub struct SecretJson(RawJson);

impl SecretJson {
    /// Takes the value.
    #[must_use]
    pub const fn new(value: RawJson) -> Self {
        Self(value)
    }

    /// The value.
    #[must_use]
    pub const fn expose(&self) -> &RawJson {
        &self.0
    }
}

impl From<RawJson> for SecretJson {
    fn from(value: RawJson) -> Self {
        Self(value)
    }
}

impl fmt::Debug for SecretJson {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(SECRET_PLACEHOLDER)
    }
}

impl Serialize for SecretJson {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.serialize_str(SECRET_PLACEHOLDER)
    }
}

impl<'de> Deserialize<'de> for SecretJson {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        RawJson::deserialize(d).map(Self)
    }
}

#[cfg(test)]
mod tests {
    use alloc::format;

    use super::*;

    #[test]
    fn a_secret_is_shown_to_nobody_who_does_not_ask_for_it() {
        let secret = Secret::new("tok-1");
        assert_eq!(secret.expose(), "tok-1");
        assert_eq!(format!("{secret:?}"), "[secret]");
        let text = serde_json::to_string(&secret).unwrap();
        assert_eq!(text, r#""[secret]""#);
        let read: Secret = serde_json::from_str(&text).unwrap();
        assert_eq!(read.expose(), "[secret]");
        let json = SecretJson::new(RawJson::parse(r#"{"apiKey":"tok-1"}"#).unwrap());
        assert_eq!(format!("{json:?}"), "[secret]");
        let text = serde_json::to_string(&json).unwrap();
        assert_eq!(text, r#""[secret]""#);
        let read: SecretJson = serde_json::from_str(&text).unwrap();
        assert_eq!(read.expose().get(), r#""[secret]""#);
    }
}
