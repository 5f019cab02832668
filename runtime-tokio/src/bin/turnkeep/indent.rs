//! JSON set out over several lines, by its text: a parsed value would lose numbers that fit no type
//! of ours, members that come twice and the order of all of them.

/// How deep lines are indented at most, so that no depth makes a text much longer.
const DEEPEST: usize = 32;

/// A JSON text over several lines. Whatever stands between white space comes out as it came, also
/// where it is no JSON.
pub(crate) fn indented(json: &str) -> String {
    let mut out = String::with_capacity(json.len() * 2);
    let mut depth: usize = 0;
    let mut chars = json.chars().peekable();
    while let Some(c) = chars.next() {
        match c {
            '"' => {
                out.push(c);
                let mut is_escaped = false;
                for c in chars.by_ref() {
                    out.push(c);
                    if c == '"' && !is_escaped {
                        break;
                    }
                    is_escaped = c == '\\' && !is_escaped;
                }
            }
            '{' | '[' => {
                out.push(c);
                while chars.next_if(|c| is_space(*c)).is_some() {}
                match chars.next_if(|c| matches!(c, '}' | ']')) {
                    Some(end) => out.push(end),
                    None => {
                        depth += 1;
                        line(&mut out, depth);
                    }
                }
            }
            '}' | ']' => {
                depth = depth.saturating_sub(1);
                line(&mut out, depth);
                out.push(c);
            }
            ',' => {
                out.push(c);
                line(&mut out, depth);
            }
            ':' => out.push_str(": "),
            c if is_space(c) => {}
            c => out.push(c),
        }
    }
    out
}

/// What JSON takes for white space.
const fn is_space(c: char) -> bool {
    matches!(c, ' ' | '\t' | '\r' | '\n')
}

fn line(out: &mut String, depth: usize) {
    out.push('\n');
    out.extend(std::iter::repeat_n("  ", depth.min(DEEPEST)));
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn it_looks_like_what_serde_sets_out() {
        for value in [
            json!({}),
            json!([]),
            json!(null),
            json!("a"),
            json!({ "a": [1, {}, [], [[]]], "b": { "c": -1.5, "d": true } }),
            json!({ "a{\"b\\": "{[,:]} \\\" \t\n ü", "": "\\" }),
        ] {
            let wanted = serde_json::to_string_pretty(&value).unwrap();
            assert_eq!(indented(&value.to_string()), wanted);
            // It is set out already.
            assert_eq!(indented(&wanted), wanted);
        }
    }

    #[test]
    fn numbers_members_and_escapes_stay_as_they_came() {
        let text = r#"{"z":1e999,"a":18446744073709551616,"a":-0.10,"\u0041":"\u00e9\/"}"#;
        let wanted = "{\n  \"z\": 1e999,\n  \"a\": 18446744073709551616,\n  \"a\": -0.10,\n  \
                      \"\\u0041\": \"\\u00e9\\/\"\n}";
        assert_eq!(indented(text), wanted);
    }

    #[test]
    fn no_depth_makes_it_much_longer_and_what_is_no_json_is_no_harm() {
        let deep = 10_000;
        let text = "[".repeat(deep) + &"]".repeat(deep);
        assert!(indented(&text).len() < text.len() * (2 * DEEPEST + 4));
        for text in ["", "\"", "\"\\", "]]", "{", "{]", "a b"] {
            let kept = |text: &str| text.replace([' ', '\n'], "");
            assert_eq!(kept(&indented(text)), kept(text));
        }
        let value: Value = serde_json::from_str(&indented(r#"{"a":[{}]}"#)).unwrap();
        assert_eq!(value, json!({ "a": [{}] }));
    }
}
