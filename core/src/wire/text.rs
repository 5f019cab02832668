//! JSON strings, unescaped straight into the text of an event: one allocation where serde_json
//! would need its scratch buffer first.

use alloc::string::String;

/// Appends the contents of a raw JSON string, quotes included, that a parser has validated.
/// `None`, with `out` as it was, where it is no Unicode text: a lone surrogate.
pub(crate) fn unescape(raw: &str, out: &mut String) -> Option<()> {
    let inner = raw.strip_prefix('"')?.strip_suffix('"')?;
    let before = out.len();
    let done = append(inner, out);
    if done.is_none() {
        out.truncate(before);
    }
    done
}

fn append(mut inner: &str, out: &mut String) -> Option<()> {
    while let Some(at) = memchr::memchr(b'\\', inner.as_bytes()) {
        out.push_str(inner.get(..at)?);
        inner = inner.get(at + 1..)?;
        out.push(escaped(&mut inner)?);
    }
    out.push_str(inner);
    Some(())
}

/// The same for a raw JSON string that nobody has validated, but for control characters, at the
/// beginning of a text. Returns what follows it; where it is none, some of it may be in `out`.
pub(crate) fn unescape_first<'a>(raw: &'a str, out: &mut String) -> Option<&'a str> {
    let mut rest = raw.strip_prefix('"')?;
    loop {
        let at = memchr::memchr2(b'"', b'\\', rest.as_bytes())?;
        let (plain, special) = rest.split_at(at);
        out.push_str(plain);
        rest = special.get(1..)?;
        if special.starts_with('"') {
            return Some(rest);
        }
        out.push(escaped(&mut rest)?);
    }
}

/// What an escape stands for, behind its backslash.
#[inline]
fn escaped(rest: &mut &str) -> Option<char> {
    let code = *rest.as_bytes().first()?;
    *rest = rest.get(1..)?;
    Some(match code {
        b'"' => '"',
        b'\\' => '\\',
        b'/' => '/',
        b'b' => '\u{8}',
        b'f' => '\u{c}',
        b'n' => '\n',
        b'r' => '\r',
        b't' => '\t',
        b'u' => {
            let first = hex(rest)?;
            if (0xd800..0xdc00).contains(&first) {
                *rest = rest.strip_prefix("\\u")?;
                let second = hex(rest)?;
                if !(0xdc00..0xe000).contains(&second) {
                    return None;
                }
                let high = u32::from(first - 0xd800) << 10;
                char::from_u32(0x1_0000 + high + u32::from(second - 0xdc00))?
            } else {
                char::from_u32(u32::from(first))?
            }
        }
        _ => return None,
    })
}

fn hex(rest: &mut &str) -> Option<u16> {
    let digits = rest.get(..4)?;
    *rest = rest.get(4..)?;
    u16::from_str_radix(digits, 16).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_agrees_with_serde_json() {
        for raw in [
            r#""""#,
            r#""plain é中😀""#,
            r#""a\"b\\c\/d\b\f\n\r\t""#,
            r#""\u00e9\u4e2d\ud83d\ude00x""#,
            r#""\ud83d""#,
            r#""\ud83dx""#,
            r#""\ude00""#,
            r#""\ud83d\u0041""#,
            r#""\u0000""#,
        ] {
            let mut out = String::from("kept");
            let got = unescape(raw, &mut out).map(|()| out.split_off(4));
            assert_eq!(got, serde_json::from_str::<String>(raw).ok(), "{raw}");
            assert_eq!(out, "kept");
            let mut out = String::new();
            let rest = unescape_first(&alloc::format!("{raw}tail"), &mut out) == Some("tail");
            let want = serde_json::from_str::<String>(raw).ok();
            assert_eq!(rest.then_some(out), want, "{raw}");
        }
    }
}
