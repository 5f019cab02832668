//! Lines of the server.

use serde_json::{Value, json, value::RawValue};
use turnkeep_core::{
    json::{CanonicalError, RawJson, canonical},
    read_again, read_both,
};

/// Reads a line, compares what was read with the line, and takes it as a JSON text of its own.
///
/// A case is the line.
pub fn wire_decode(line: &[u8]) {
    let again = read_again(line);
    let value = std::str::from_utf8(line).ok().and_then(plain);
    let is_object =
        serde_json::from_slice::<&RawValue>(line).is_ok_and(|raw| raw.get().starts_with('{'));
    if let Ok(again) = &again {
        assert!(is_object, "no object is a frame");
        let again = plain(&again.json).expect("it was just written");
        // A plain reader knows no numbers past its own, no depth and no lone surrogates.
        if let Some(value) = &value {
            assert!(stands_in(&again, value), "{again} is not in {value}");
        }
    }
    if let Ok(text) = std::str::from_utf8(line) {
        as_json(text);
    }
}

/// What a plain reader makes of a text.
fn plain(text: &str) -> Option<Value> {
    turnkeep_protocol::parse(text).ok()
}

/// Every member of what was read stands in the line; an absent one is as good as null, or as a count of nothing.
fn stands_in(read: &Value, line: &Value) -> bool {
    match (read, line) {
        (Value::Object(read), Value::Object(line)) => read.iter().all(|(key, value)| {
            let is_nothing = || value.is_null() || *value == 0 || *value == json!({});
            line.get(key)
                .map_or_else(is_nothing, |other| stands_in(value, other))
        }),
        (Value::Array(read), Value::Array(line)) => {
            let mut pairs = read.iter().zip(line);
            read.len() == line.len() && pairs.all(|(read, line)| stands_in(read, line))
        }
        (Value::Number(read), Value::Number(line)) if read.is_f64() && line.is_f64() => {
            // The last digit of a float is lost where one is written and read.
            let (read, line) = (read.as_f64(), line.as_f64());
            let near = |(a, b): (f64, f64)| a == b || (a - b).abs() <= 1e-9 * a.abs();
            read.zip(line).is_some_and(near)
        }
        _ => read == line,
    }
}

fn as_json(text: &str) {
    let raw = RawJson::parse(text);
    let value = plain(text);
    let Ok(raw) = raw else {
        assert!(value.is_none(), "a plain reader takes it");
        assert_eq!(canonical(text), Err(CanonicalError::NotJson));
        return;
    };
    let compact = raw.clone().compact();
    assert_eq!(compact.get().len(), raw.compact_len());
    assert_eq!(compact.kind(), raw.kind());
    if let Some(value) = &value {
        assert_eq!(plain(compact.get()).as_ref(), Some(value));
    }
    let Ok(text) = canonical(raw.get()) else {
        return;
    };
    assert_eq!(
        canonical(&text).as_deref(),
        Ok(&*text),
        "it is canonical already"
    );
    if let Some(value) = &value {
        assert_eq!(plain(&text).as_ref(), Some(value));
    }
}

/// Compares what the hot path makes of a line with what the cold path and a plain reader of JSON do.
///
/// A case is the line.
pub fn fast_equals_slow(line: &[u8]) {
    let Some(both) = read_both(line) else {
        return;
    };
    assert_eq!(both.hot, both.cold, "the two paths read two things");
    let again = read_again(line).expect("the hot path takes frames only");
    let again = plain(&again.json).expect("it was just written");
    let Some(value) = std::str::from_utf8(line).ok().and_then(plain) else {
        return;
    };
    assert!(stands_in(&again, &value), "{again} is not in {value}");
    if let Some(text) = both.text {
        let delta = value["params"]["delta"].as_str();
        assert_eq!(text.as_deref(), delta, "the text of the delta");
    }
}
