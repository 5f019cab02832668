//! Patterns and templates: JSON text in, JSON text out, key order kept (a parsed and printed frame would lose it).

use std::collections::BTreeMap;

use serde_json::Value;

/// Variables by name; the value is JSON text.
pub(super) type Vars = BTreeMap<String, String>;

/// Whether `value` matches `pattern`. Bindings of a failed match must be thrown away by the caller.
pub(super) fn matches(pattern: &Value, value: &Value, vars: &mut Vars) -> bool {
    match pattern {
        Value::String(text) => matches_text(text, value, vars),
        Value::Object(members) => {
            let Value::Object(found) = value else {
                return false;
            };
            members.iter().all(|(key, wanted)| match found.get(key) {
                Some(member) => wanted.as_str() != Some("!absent") && matches(wanted, member, vars),
                None => wanted.as_str() == Some("!absent"),
            })
        }
        Value::Array(elements) => {
            let Value::Array(found) = value else {
                return false;
            };
            elements.len() == found.len()
                && elements
                    .iter()
                    .zip(found)
                    .all(|(wanted, element)| matches(wanted, element, vars))
        }
        _ => pattern == value,
    }
}

fn matches_text(pattern: &str, value: &Value, vars: &mut Vars) -> bool {
    if pattern == "*" {
        return true;
    }
    if let Some(literal) = pattern.strip_prefix("$$") {
        return value.as_str().and_then(|text| text.strip_prefix('$')) == Some(literal);
    }
    if let Some(part) = pattern.strip_prefix('~') {
        return value.as_str().is_some_and(|text| text.contains(part));
    }
    let Some(name) = variable(pattern) else {
        return value.as_str() == Some(pattern);
    };
    let found = value.to_string();
    match vars.get(name) {
        Some(bound) => *bound == found,
        None => {
            vars.insert(name.to_owned(), found);
            true
        }
    }
}

/// The names that a pattern binds.
pub(super) fn names(pattern: &Value, into: &mut Vec<String>) {
    match pattern {
        Value::String(text) => into.extend(variable(text).map(str::to_owned)),
        Value::Object(members) => members.values().for_each(|member| names(member, into)),
        Value::Array(elements) => elements.iter().for_each(|element| names(element, into)),
        _ => {}
    }
}

/// `$name`, the whole of it.
fn variable(text: &str) -> Option<&str> {
    let name = text.strip_prefix('$')?;
    let mut bytes = name.bytes();
    let first = bytes.next()?;
    let good = (first.is_ascii_alphabetic() || first == b'_')
        && bytes.all(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
    good.then_some(name)
}

/// Fills the variables into JSON text. The error is the name that is not bound.
pub(super) fn fill(template: &str, vars: &Vars) -> Result<String, String> {
    let mut out = String::with_capacity(template.len() + 64);
    let mut rest = template;
    while let Some(open) = rest.find('"') {
        out.push_str(&rest[..open]);
        let string = &rest[open + 1..];
        let close = end_of_string(string);
        fill_string(&string[..close], vars, &mut out)?;
        rest = string.get(close + 1..).unwrap_or("");
    }
    out.push_str(rest);
    Ok(out)
}

fn end_of_string(text: &str) -> usize {
    let mut escaped = false;
    for (at, byte) in text.bytes().enumerate() {
        match byte {
            _ if escaped => escaped = false,
            b'\\' => escaped = true,
            b'"' => return at,
            _ => {}
        }
    }
    text.len()
}

fn fill_string(inner: &str, vars: &Vars, out: &mut String) -> Result<(), String> {
    if let Some(name) = variable(inner) {
        out.push_str(vars.get(name).ok_or_else(|| name.to_owned())?);
        return Ok(());
    }
    let inner = if inner.starts_with("$$") {
        &inner[1..]
    } else {
        inner
    };
    out.push('"');
    expand(inner, out, |name, out| {
        let value = vars.get(name).ok_or_else(|| name.to_owned())?;
        out.push_str(
            value
                .strip_prefix('"')
                .and_then(|text| text.strip_suffix('"'))
                .unwrap_or(value),
        );
        Ok(())
    })?;
    out.push('"');
    Ok(())
}

/// Expands `${name}` with `put` and `${text*N}` by itself.
fn expand(
    text: &str,
    out: &mut String,
    mut put: impl FnMut(&str, &mut String) -> Result<(), String>,
) -> Result<(), String> {
    let mut rest = text;
    while let Some(open) = rest.find("${") {
        let Some(length) = rest[open..].find('}') else {
            break;
        };
        out.push_str(&rest[..open]);
        let expression = &rest[open + 2..open + length];
        match expression
            .rsplit_once('*')
            .and_then(|(text, times)| Some((text, times.parse::<usize>().ok()?)))
        {
            Some((text, times)) => out.push_str(&text.repeat(times)),
            None => put(expression, out)?,
        }
        rest = &rest[open + length + 1..];
    }
    out.push_str(rest);
    Ok(())
}

/// Raw text with escapes and variables (as JSON text), as bytes that need not be UTF-8.
pub(super) fn raw(text: &str, vars: &Vars) -> Result<Vec<u8>, String> {
    let mut filled = String::new();
    // `\u{…}` has braces of its own but no dollar sign before them.
    expand(text, &mut filled, |name, out| {
        out.push_str(vars.get(name).ok_or_else(|| name.to_owned())?);
        Ok(())
    })?;
    let mut out = Vec::with_capacity(filled.len());
    let mut rest = filled.as_str();
    while let Some(at) = rest.find('\\') {
        out.extend_from_slice(&rest.as_bytes()[..at]);
        rest = escape(&rest[at + 1..], &mut out)
            .ok_or_else(|| format!("escape \\{}", &rest[at + 1..]))?;
    }
    out.extend_from_slice(rest.as_bytes());
    Ok(out)
}

/// One escape after its backslash; gives what follows it.
fn escape<'a>(text: &'a str, out: &mut Vec<u8>) -> Option<&'a str> {
    let kind = text.chars().next()?;
    let rest = &text[kind.len_utf8()..];
    let byte = match kind {
        'n' => b'\n',
        'r' => b'\r',
        't' => b'\t',
        '0' => 0,
        'e' => 0x1b,
        '\\' => b'\\',
        // Other JSON escapes stay as they are, so that JSON text can be pasted here.
        '"' => {
            out.extend_from_slice(b"\\\"");
            return Some(rest);
        }
        'x' => {
            out.push(u8::from_str_radix(rest.get(..2)?, 16).ok()?);
            return rest.get(2..);
        }
        'u' => {
            let (number, rest) = rest.strip_prefix('{')?.split_once('}')?;
            let character = char::from_u32(u32::from_str_radix(number, 16).ok()?)?;
            out.extend_from_slice(character.encode_utf8(&mut [0; 4]).as_bytes());
            return Some(rest);
        }
        _ => return None,
    };
    out.push(byte);
    Some(rest)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bind(pattern: &str, value: &str) -> Option<Vars> {
        let mut vars = Vars::new();
        matches(
            &serde_json::from_str(pattern).unwrap(),
            &serde_json::from_str(value).unwrap(),
            &mut vars,
        )
        .then_some(vars)
    }

    #[test]
    fn patterns_match_subsets_and_bind() {
        let vars = bind(
            r#"{"id":"$a","params":{"x":"*","y":[1,"$b"]}}"#,
            r#"{"id":7,"z":0,"params":{"x":null,"y":[1,"t"]}}"#,
        )
        .unwrap();
        assert_eq!(vars["a"], "7");
        assert_eq!(vars["b"], "\"t\"");
        assert!(bind(r#"{"a":"$x","b":"$x"}"#, r#"{"a":1,"b":1}"#).is_some());
        assert!(bind(r#"{"a":"$x","b":"$x"}"#, r#"{"a":1,"b":"1"}"#).is_none());
        assert!(bind(r#"{"a":"!absent"}"#, r#"{"b":1}"#).is_some());
        assert!(bind(r#"{"a":"!absent"}"#, r#"{"a":null}"#).is_none());
        assert!(
            bind(r#"{"a":null}"#, r#"{"b":1}"#).is_none(),
            "null is a value, not an absence"
        );
        assert!(bind(r#"["$$a","~mid"]"#, r#"["$a","amidst"]"#).is_some());
        assert!(bind("[1]", "[1,2]").is_none());
    }

    #[test]
    fn templates_keep_key_order_and_the_kind_of_an_id() {
        let vars = Vars::from([("n".into(), "7".into()), ("s".into(), r#""a\"b""#.into())]);
        assert_eq!(
            fill(r#"{"z":"$n","a":["$s","<${s}|${n}>","$$n","\"$n"]}"#, &vars).unwrap(),
            r#"{"z":7,"a":["a\"b","<a\"b|7>","$n","\"$n"]}"#
        );
        assert_eq!(
            fill(r#"{"a":"${xy*3}"}"#, &vars).unwrap(),
            r#"{"a":"xyxyxy"}"#
        );
        assert_eq!(fill(r#"{"a":"$none"}"#, &vars).unwrap_err(), "none");
    }

    #[test]
    fn raw_text_is_bytes() {
        let vars = Vars::from([("n".into(), "7".into())]);
        assert_eq!(
            raw(r#"{"id":${n}}\r\n\xff\e[\u{2028}"#, &vars).unwrap(),
            b"{\"id\":7}\r\n\xff\x1b[\xe2\x80\xa8"
        );
        assert!(raw(r"\q", &vars).is_err());
    }
}
