//! JSON text as a value.

use alloc::{string::String, vec::Vec};
use core::fmt;

use serde::de::{Deserialize, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};

/// Reads JSON text as a value.
///
/// `serde_json::from_str::<Value>` takes an object whose first member is
/// `$serde_json::private::RawValue` for the JSON text in that member, where raw values are switched on
/// anywhere in a program. Here it is an object as any other.
///
/// # Errors
///
/// The text is not JSON, is nested deeper than 128, or has a number that is past all types.
pub fn parse(text: &str) -> Result<Value, serde_json::Error> {
    Ok(serde_json::from_str::<Plain>(text)?.0)
}

/// A value as it is.
pub(crate) struct Plain(pub(crate) Value);

impl<'de> Deserialize<'de> for Plain {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_any(PlainVisitor).map(Self)
    }
}

struct PlainVisitor;

impl<'de> Visitor<'de> for PlainVisitor {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_unit<E: Error>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_none<E: Error>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_some<D: Deserializer<'de>>(self, from: D) -> Result<Value, D::Error> {
        from.deserialize_any(self)
    }

    fn visit_bool<E: Error>(self, value: bool) -> Result<Value, E> {
        Ok(Value::Bool(value))
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<Value, E> {
        Ok(Value::from(value))
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<Value, E> {
        Ok(Value::from(value))
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<Value, E> {
        let number = Number::from_f64(value).map(Value::Number);
        number.ok_or_else(|| E::custom("a number that is not finite"))
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Value, E> {
        Ok(Value::from(text))
    }

    fn visit_string<E: Error>(self, text: String) -> Result<Value, E> {
        Ok(Value::String(text))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut from: A) -> Result<Value, A::Error> {
        let mut elements = Vec::new();
        while let Some(Plain(element)) = from.next_element()? {
            elements.push(element);
        }
        Ok(Value::Array(elements))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut from: A) -> Result<Value, A::Error> {
        let mut members = Map::new();
        while let Some((name, Plain(member))) = from.next_entry::<String, _>()? {
            members.insert(name, member);
        }
        Ok(Value::Object(members))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn values_are_those_of_serde_json() {
        for text in [
            "null",
            "true",
            "-1",
            "18446744073709551615",
            "-9223372036854775808",
            "1.5e3",
            r#""a\u00e4\n""#,
            r#"[1, [], {"a": {"b": null}}]"#,
        ] {
            let value: Value = serde_json::from_str(text).unwrap();
            assert_eq!(parse(text).unwrap(), value, "{text}");
        }
        for text in ["", "1e999", "[1,]", r#"{"a":1}x"#, &"[".repeat(200)] {
            assert!(parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn sign_of_serde_json_is_a_member_as_any_other() {
        let text = r#"{"$serde_json::private::RawValue": "[1]"}"#;
        let expected = json!({ "$serde_json::private::RawValue": "[1]" });
        assert_eq!(parse(text).unwrap(), expected);
    }
}
