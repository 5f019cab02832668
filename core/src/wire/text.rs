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
        let code = *inner.as_bytes().get(at + 1)?;
        inner = inner.get(at + 2..)?;
        out.push(match code {
            b'"' => '"',
            b'\\' => '\\',
            b'/' => '/',
            b'b' => '\u{8}',
            b'f' => '\u{c}',
            b'n' => '\n',
            b'r' => '\r',
            b't' => '\t',
            b'u' => {
                let first = hex(&mut inner)?;
                if (0xd800..0xdc00).contains(&first) {
                    inner = inner.strip_prefix("\\u")?;
                    let second = hex(&mut inner)?;
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
        });
    }
    out.push_str(inner);
    Some(())
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
        }
    }
}
