//! The app-server's wire: what a line is, and how ours are written.
//!
//! A notification is read by position first: `{"method":"M","params":`, one typed pass over the
//! parameters, an exact tail. That path never reports an error, it declines; the envelope path
//! alone decides what is wrong.

pub(crate) mod again;
mod delta;
pub(crate) mod item;
pub(crate) mod notification;
pub(crate) mod refusal;
pub(crate) mod text;
pub(crate) mod version;

use alloc::{borrow::Cow, string::String, vec::Vec};

use serde::{Deserialize, Deserializer, Serialize};
use serde_json::value::RawValue;

use self::notification::Notification;
use crate::{
    command::RpcError,
    event::{DeltaKind, NoiseWhy},
    json::{JsonKind, from_object},
};

/// A line, read.
#[derive(Debug)]
pub(crate) enum Line<'a> {
    /// A piece of text. The hot frame: nothing of it is copied.
    Delta(WireDelta<'a>),
    /// A notification.
    Notification(Notification<'a>),
    /// A request of the server, with its id as raw JSON.
    Request {
        id: &'a str,
        method: Cow<'a, str>,
        params: Option<&'a RawValue>,
    },
    /// A response, with its id as raw JSON, and perhaps both or neither of result and error.
    Response {
        id: &'a str,
        result: Option<&'a RawValue>,
        error: Option<&'a RawValue>,
    },
    /// No frame.
    Noise(NoiseWhy),
}

/// A piece of text on the wire.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct WireDelta<'a> {
    pub(crate) kind: DeltaKind,
    pub(crate) thread: &'a str,
    pub(crate) turn: &'a str,
    pub(crate) item: &'a str,
    pub(crate) part: u16,
    /// The text as a raw JSON string, quotes and escapes included.
    pub(crate) text: &'a str,
    /// The same without them, where that is known.
    pub(crate) unescaped: delta::Unescaped,
}

/// Reads a whole line, without its line end.
pub(crate) fn read(line: &[u8]) -> Line<'_> {
    // Once for the whole line: typed passes skip fields without looking at their bytes.
    let Ok(line) = core::str::from_utf8(line) else {
        return Line::Noise(NoiseWhy::NotUtf8);
    };
    by_position(line).unwrap_or_else(|| by_envelope(line))
}

/// The hot path.
fn by_position(line: &str) -> Option<Line<'_>> {
    let rest = line.strip_prefix(r#"{"method":""#)?;
    let end = memchr::memchr(b'"', rest.as_bytes())?;
    let (method, rest) = rest.split_at(end);
    if let Some(rest) = rest.strip_prefix(r#"","id":"#) {
        return request_by_position(method, rest);
    }
    let rest = rest.strip_prefix(r#"","params":"#)?;
    if let Some(kind) = delta_kind(method) {
        return delta_by_position(kind, rest).map(Line::Delta);
    }
    let (notification, end) = Notification::by_position(method, rest)?;
    is_tail(rest.get(end..)?).then_some(Line::Notification(notification))
}

/// A request with a plain number for its id and nothing behind its parameters.
fn request_by_position<'a>(method: &'a str, rest: &'a str) -> Option<Line<'a>> {
    let end = rest.bytes().position(|b| !b.is_ascii_digit())?;
    let (id, rest) = rest.split_at(end);
    let plain = id == "0" || (!id.is_empty() && !id.starts_with('0'));
    let rest = rest.strip_prefix(r#","params":"#).filter(|_| plain)?;
    // Escapes and control characters are for the envelope path to judge.
    if !method
        .bytes()
        .all(|b| b.is_ascii_alphanumeric() || b == b'/')
    {
        return None;
    }
    let (params, end) = at_position::<&RawValue>(rest)?;
    let params = (JsonKind::of(params.get()) == JsonKind::Object).then_some(params)?;
    (rest.get(end..)? == "}").then_some(Line::Request {
        id,
        method: Cow::Borrowed(method),
        params: Some(params),
    })
}

fn delta_kind(method: &str) -> Option<DeltaKind> {
    Some(match method {
        "item/agentMessage/delta" => DeltaKind::Agent,
        "item/reasoning/textDelta" => DeltaKind::Reasoning,
        "item/reasoning/summaryTextDelta" => DeltaKind::ReasoningSummary,
        "item/plan/delta" => DeltaKind::Plan,
        "item/commandExecution/outputDelta" => DeltaKind::CommandOutput,
        "item/fileChange/outputDelta" => DeltaKind::FileChangeOutput,
        _ => return None,
    })
}

// Required `&str` fields only: an Option or a Cow with default would copy, and a missing or
// escaped id shall be declined.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct PlainDelta<'a> {
    thread_id: &'a str,
    turn_id: &'a str,
    item_id: &'a str,
    #[serde(borrow)]
    delta: &'a RawValue,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ContentDelta<'a> {
    thread_id: &'a str,
    turn_id: &'a str,
    item_id: &'a str,
    content_index: u16,
    #[serde(borrow)]
    delta: &'a RawValue,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct SummaryDelta<'a> {
    thread_id: &'a str,
    turn_id: &'a str,
    item_id: &'a str,
    summary_index: u16,
    #[serde(borrow)]
    delta: &'a RawValue,
}

macro_rules! delta {
    ($kind:expr, $p:expr, $part:expr) => {
        WireDelta {
            kind: $kind,
            thread: $p.thread_id,
            turn: $p.turn_id,
            item: $p.item_id,
            part: $part,
            text: $p.delta.get(),
            unescaped: delta::Unescaped::default(),
        }
    };
}

fn delta_by_position(kind: DeltaKind, rest: &str) -> Option<WireDelta<'_>> {
    let (delta, tail) = match delta::read(kind, rest) {
        Some(read) => read,
        None => typed_delta(kind, rest)?,
    };
    let clean = delta.text.starts_with('"')
        && [delta.thread, delta.turn, delta.item]
            .into_iter()
            .all(crate::id::is_clean);
    (clean && is_tail(tail)).then_some(delta)
}

/// A delta whose members stand in another order, or among others.
fn typed_delta(kind: DeltaKind, rest: &str) -> Option<(WireDelta<'_>, &str)> {
    let (delta, end) = match kind {
        DeltaKind::Reasoning => {
            let (p, end) = at_position::<ContentDelta<'_>>(rest)?;
            (delta!(kind, p, p.content_index), end)
        }
        DeltaKind::ReasoningSummary => {
            let (p, end) = at_position::<SummaryDelta<'_>>(rest)?;
            (delta!(kind, p, p.summary_index), end)
        }
        DeltaKind::Agent
        | DeltaKind::Plan
        | DeltaKind::CommandOutput
        | DeltaKind::FileChangeOutput => {
            let (p, end) = at_position::<PlainDelta<'_>>(rest)?;
            (delta!(kind, p, 0), end)
        }
    };
    Some((delta, rest.get(end..)?))
}

/// Reads one value at the beginning of a text and tells where it ends.
pub(crate) fn at_position<'a, T: Deserialize<'a>>(rest: &'a str) -> Option<(T, usize)> {
    if !rest.starts_with('{') {
        return None;
    }
    let mut values = serde_json::Deserializer::from_str(rest).into_iter::<T>();
    let value = values.next()?.ok()?;
    Some((value, values.byte_offset()))
}

/// What may stand behind the parameters: `}`, or the time that newer servers add.
fn is_tail(tail: &str) -> bool {
    if tail == "}" {
        return true;
    }
    let digits = tail
        .strip_prefix(r#","emittedAtMs":"#)
        .and_then(|rest| rest.strip_suffix('}'));
    digits.is_some_and(|d| {
        !d.is_empty() && d.bytes().all(|b| b.is_ascii_digit()) && (d == "0" || !d.starts_with('0'))
    })
}

#[derive(Deserialize)]
struct Envelope<'a> {
    #[serde(borrow, default, deserialize_with = "present")]
    method: Option<&'a RawValue>,
    #[serde(borrow, default, deserialize_with = "present")]
    id: Option<&'a RawValue>,
    #[serde(borrow, default, deserialize_with = "present")]
    params: Option<&'a RawValue>,
    #[serde(borrow, default, deserialize_with = "present")]
    result: Option<&'a RawValue>,
    #[serde(borrow, default, deserialize_with = "present")]
    error: Option<&'a RawValue>,
}

/// An explicit null is there; an absent member is not.
fn present<'de, D: Deserializer<'de>>(d: D) -> Result<Option<&'de RawValue>, D::Error> {
    <&RawValue>::deserialize(d).map(Some)
}

/// The cold path, which decides.
fn by_envelope(line: &str) -> Line<'_> {
    let Ok(envelope) = from_object::<Envelope<'_>>(line) else {
        let is_json = serde_json::from_str::<&RawValue>(line).is_ok();
        return Line::Noise(if is_json {
            NoiseWhy::NotAFrame
        } else {
            NoiseWhy::NotJson
        });
    };
    let is_id =
        |raw: &RawValue| matches!(JsonKind::of(raw.get()), JsonKind::Number | JsonKind::String);
    // A frame with a method is never a response.
    if let Some(method) = envelope.method {
        let Ok(method) = serde_json::from_str::<CowStr<'_>>(method.get()) else {
            return Line::Noise(NoiseWhy::NotAFrame);
        };
        return match envelope.id {
            Some(id) if is_id(id) => Line::Request {
                id: id.get(),
                method: method.0,
                params: envelope.params,
            },
            Some(_) => Line::Noise(NoiseWhy::NotAFrame),
            None => match delta_kind(&method.0).zip(envelope.params) {
                Some((kind, params)) => delta_by_envelope(kind, method.0, params),
                None => Line::Notification(Notification::by_envelope(method.0, envelope.params)),
            },
        };
    }
    match envelope.id {
        Some(id) if is_id(id) => Line::Response {
            id: id.get(),
            result: envelope.result,
            // An error of null beside a result is an absent one.
            error: envelope.error.filter(|e| e.get() != "null"),
        },
        Some(_) | None => Line::Noise(NoiseWhy::NotAFrame),
    }
}

fn delta_by_envelope<'a>(kind: DeltaKind, method: Cow<'a, str>, params: &'a RawValue) -> Line<'a> {
    // The same typed pass as on the hot path, whatever stood around the parameters.
    let mut text = params.get();
    text = text.trim();
    let read = match kind {
        DeltaKind::Reasoning => {
            from_object::<ContentDelta<'_>>(text).map(|p| delta!(kind, p, p.content_index))
        }
        DeltaKind::ReasoningSummary => {
            from_object::<SummaryDelta<'_>>(text).map(|p| delta!(kind, p, p.summary_index))
        }
        DeltaKind::Agent
        | DeltaKind::Plan
        | DeltaKind::CommandOutput
        | DeltaKind::FileChangeOutput => {
            from_object::<PlainDelta<'_>>(text).map(|p| delta!(kind, p, 0))
        }
    };
    match read {
        Ok(delta)
            if delta.text.starts_with('"')
                && [delta.thread, delta.turn, delta.item]
                    .into_iter()
                    .all(crate::id::is_clean) =>
        {
            Line::Delta(delta)
        }
        Ok(_) => Line::Notification(Notification::bad(
            method,
            Some(params),
            "an id is not clean or the delta is no text".into(),
        )),
        Err(error) => Line::Notification(Notification::bad(method, Some(params), {
            use alloc::string::ToString;
            error.to_string()
        })),
    }
}

/// A text that is borrowed where it has no escapes.
#[derive(Debug, Deserialize)]
#[serde(transparent)]
pub(crate) struct CowStr<'a>(#[serde(borrow)] pub(crate) Cow<'a, str>);

/// A JSON-RPC error, read tolerantly: code and message must be there.
pub(crate) fn read_error(raw: &RawValue) -> Option<RpcError> {
    #[derive(Deserialize)]
    struct Error<'a> {
        code: i64,
        message: String,
        #[serde(borrow, default)]
        data: Option<&'a RawValue>,
    }
    let error: Error<'_> = from_object(raw.get()).ok()?;
    Some(RpcError {
        code: error.code,
        message: error.message,
        data: error.data.map(crate::RawJson::borrowed),
    })
}

/// Writes a request, with its line feed.
pub(crate) fn request<P: Serialize + ?Sized>(id: u64, method: &str, params: &P) -> Vec<u8> {
    #[derive(Serialize)]
    struct Request<'a, P: ?Sized> {
        method: &'a str,
        id: u64,
        params: &'a P,
    }
    line(&Request { method, id, params })
}

/// Writes the notification `initialized`.
pub(crate) fn initialized() -> Vec<u8> {
    b"{\"method\":\"initialized\"}\n".to_vec()
}

/// Writes the answer to a server request; `id` and `result` are raw JSON.
pub(crate) fn result(id: &str, result: &str) -> Vec<u8> {
    let mut out = Vec::with_capacity(id.len() + result.len() + 20);
    out.extend_from_slice(b"{\"id\":");
    out.extend_from_slice(id.as_bytes());
    out.extend_from_slice(b",\"result\":");
    out.extend_from_slice(result.as_bytes());
    out.extend_from_slice(b"}\n");
    out
}

/// Writes a refusal of a server request; `id` is raw JSON.
pub(crate) fn refusal(id: &str, error: &RpcError) -> Vec<u8> {
    let mut out = Vec::with_capacity(id.len() + 64);
    out.extend_from_slice(b"{\"id\":");
    out.extend_from_slice(id.as_bytes());
    out.extend_from_slice(b",\"error\":");
    out.extend_from_slice(&line(error));
    out.pop();
    out.extend_from_slice(b"}\n");
    out
}

fn line<T: Serialize + ?Sized>(value: &T) -> Vec<u8> {
    // Our frames have string keys only and no IO: writing them cannot fail.
    let mut out = serde_json::to_vec(value).expect("a frame can be written as JSON");
    out.push(b'\n');
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    const DELTA: &str = r#"{"method":"item/agentMessage/delta","params":{"threadId":"t","turnId":"u","itemId":"i","delta":"a\n"},"emittedAtMs":7}"#;

    #[test]
    fn the_hot_path_takes_a_delta_and_declines_every_variation() {
        assert!(matches!(by_position(DELTA), Some(Line::Delta(d)) if d.text == r#""a\n""#));
        for (from, to) in [
            ("\"emittedAtMs\":7", "\"emittedAtMs\":07"),
            ("\"emittedAtMs\":7", "\"emittedAtMs\":\"7\""),
            ("\"turnId\":\"u\",", ""),
            ("\"turnId\":\"u\"", "\"turnId\":\"\\u0075\""),
            ("\"turnId\":\"u\"", "\"turnId\":\"\""),
            ("\"delta\":\"a\\n\"", "\"delta\":5"),
            ("{\"method\"", "{ \"method\""),
            ("\"params\"", "\"id\":1,\"params\""),
        ] {
            let line = DELTA.replacen(from, to, 1);
            assert!(by_position(&line).is_none(), "{line}");
        }
    }

    #[test]
    fn whatever_both_paths_take_they_read_alike() {
        let Some(Line::Delta(hot)) = by_position(DELTA) else {
            panic!("declined")
        };
        let Line::Delta(cold) = by_envelope(DELTA) else {
            panic!("declined")
        };
        assert_eq!(hot, cold);
    }

    /// Recorded lines of every shape that the hot path takes.
    const RECORDED: [&str; 9] = [
        r#"{"method":"item/tool/call","id":0,"params":{"threadId":"t","turnId":"u","callId":"c","namespace":null,"tool":"lookup","arguments":{"key":"a"}}}"#,
        r#"{"method":"item/agentMessage/delta","params":{"threadId":"01a2","turnId":"01b3","itemId":"msg_0","delta":"H\u00e9 \"q\" \\n"},"emittedAtMs":1795961833767}"#,
        r#"{"method":"item/reasoning/textDelta","params":{"threadId":"01a2","turnId":"01b3","itemId":"rs_0","delta":"x","contentIndex":0}}"#,
        r#"{"method":"item/reasoning/summaryTextDelta","params":{"threadId":"01a2","turnId":"01b3","itemId":"rs_0","delta":"\ud83d\ude00","summaryIndex":3},"emittedAtMs":0}"#,
        r#"{"method":"item/completed","params":{"item":{"type":"agentMessage","id":"msg_0","text":"Hello","phase":null},"threadId":"01a2","turnId":"01b3","completedAtMs":5},"emittedAtMs":5}"#,
        r#"{"method":"thread/status/changed","params":{"threadId":"01a2","status":{"type":"active","activeFlags":[]}},"emittedAtMs":5}"#,
        r#"{"method":"turn/completed","params":{"threadId":"01a2","turn":{"id":"01b3","items":[],"itemsView":"summary","status":"completed","error":null}},"emittedAtMs":5}"#,
        r#"{"method":"thread/tokenUsage/updated","params":{"threadId":"01a2","turnId":"01b3","tokenUsage":{"total":{"totalTokens":15},"last":{"totalTokens":15,"inputTokens":10},"modelContextWindow":258400}}}"#,
        r#"{"method":"turn/diff/updated","params":{"threadId":"01a2","turnId":"01b3","diff":"--- a"}}"#,
    ];

    #[test]
    fn deltas_as_the_servers_write_them_need_no_parser() {
        let params = |line: &'static str| line.split_once(r#""params":"#).unwrap().1;
        let mut read = 0;
        for line in RECORDED {
            let Some(Line::Delta(hot)) = by_position(line) else {
                continue;
            };
            let by_hand = delta::read(hot.kind, params(line)).map(|(delta, _)| delta);
            let typed = typed_delta(hot.kind, params(line)).map(|(delta, _)| delta);
            assert_eq!(
                (by_hand.as_ref(), by_hand.as_ref()),
                (typed.as_ref(), Some(&hot))
            );
            read += 1;
        }
        assert_eq!(read, 3);
    }

    #[test]
    fn a_long_delta_is_read_as_a_short_one() {
        let long = |text: &str| DELTA.replacen("a\\n", &text.repeat(70_000), 1);
        let line = long(r#"x é\\\"\u00e9\ud83d\ude00"#);
        let (Some(Line::Delta(hot)), Line::Delta(cold)) = (by_position(&line), by_envelope(&line))
        else {
            panic!("declined")
        };
        let mut text = String::new();
        text::unescape(cold.text, &mut text).unwrap();
        assert!(hot == cold && hot.unescaped.take() == Some(text));
        // What is no text, or no JSON, is for others to judge.
        for bad in [
            r#"0123456789abc\ud83d"#,
            r#"0123456789abcde\x"#,
            "0123456789abcde\t",
        ] {
            let line = long(bad);
            let rest = line.split_once(r#""params":"#).unwrap().1;
            assert!(delta::read(DeltaKind::Agent, rest).is_none());
        }
    }

    const PIECES: [&str; 24] = [
        "{",
        "}",
        "[",
        "]",
        "\"",
        ":",
        ",",
        "\\",
        "\\u0041",
        "\\ud83d",
        " ",
        "\t",
        "\r",
        "0",
        "-1",
        "1e9",
        "null",
        "\"id\":1,",
        "\"turnId\":\"z\",",
        "\"params\":{},",
        "\u{85}",
        "é",
        "\0",
        "]}",
    ];

    fn mutated(rng: &mut crate::rng::Rng) -> String {
        let pick = |rng: &mut crate::rng::Rng, n: usize| rng.below(n as u64) as usize;
        let mut line = String::from(RECORDED[pick(rng, RECORDED.len())]);
        for _ in 0..=rng.below(3) {
            let cut =
                |line: &str, at: usize| (at..=line.len()).find(|at| line.is_char_boundary(*at));
            let (a, b) = (pick(rng, line.len() + 1), pick(rng, 12));
            let from = cut(&line, a).unwrap_or(0);
            let to = cut(&line, (from + b).min(line.len())).unwrap_or(from);
            match rng.below(4) {
                0 => line.replace_range(from..to, ""),
                1 => line.insert_str(from, PIECES[pick(rng, PIECES.len())]),
                2 => line.replace_range(from..to, PIECES[pick(rng, PIECES.len())]),
                _ => {
                    let piece = String::from(&line[from..to]);
                    let at = pick(rng, line.len() + 1);
                    let at = cut(&line, at).unwrap_or(0);
                    line.insert_str(at, &piece);
                }
            }
        }
        line
    }

    /// What a plain reader of JSON makes of a delta; the text is `None` where it is no Unicode.
    fn plainly(line: &str) -> Option<(String, [String; 3], Option<String>)> {
        // A lone surrogate is JSON by its grammar, and no text.
        let whole = serde_json::from_str::<serde_json::Value>(line).ok();
        let lone = whole.is_none();
        let value = match whole {
            Some(value) => value,
            None => serde_json::from_str(&line.replace("\\ud", "\\u0")).ok()?,
        };
        let text = |value: &serde_json::Value| value.as_str().map(String::from);
        let params = &value["params"];
        let ids = ["threadId", "turnId", "itemId"].map(|key| text(&params[key]));
        let [Some(thread), Some(turn), Some(item)] = ids else {
            return None;
        };
        let delta = text(&params["delta"])?;
        let has_id = value.get("id").is_some();
        let method = text(&value["method"])?;
        (!has_id).then(|| (method, [thread, turn, item], (!lone).then_some(delta)))
    }

    #[test]
    fn the_hot_path_reads_mutated_lines_as_the_cold_path_and_a_plain_reader_do() {
        let mut rng = crate::rng::Rng::new(0x5eed);
        let (mut taken, mut deltas) = (0, 0);
        for _ in 0..200_000 {
            let line = mutated(&mut rng);
            let Some(hot) = by_position(&line) else {
                continue;
            };
            taken += 1;
            let cold = by_envelope(&line);
            assert_eq!(
                alloc::format!("{hot:?}"),
                alloc::format!("{cold:?}"),
                "{line}"
            );
            let Line::Delta(delta) = hot else { continue };
            deltas += 1;
            let plain = plainly(&line);
            let (method, ids, text) = plain.unwrap_or_else(|| panic!("not read plainly: {line}"));
            assert_eq!(delta_kind(&method), Some(delta.kind), "{line}");
            assert_eq!([delta.thread, delta.turn, delta.item], ids, "{line}");
            let mut got = String::new();
            let got = text::unescape(delta.text, &mut got).map(|()| got);
            if let Some(text) = text {
                assert_eq!(got, Some(text), "{line}");
            }
        }
        assert!(taken > 5_000 && deltas > 1_500, "{taken} {deltas}");
    }

    #[test]
    fn a_frame_with_a_method_is_never_a_response() {
        let line = read(br#"{"id":1,"method":"x","result":{}}"#);
        assert!(matches!(line, Line::Request { id: "1", .. }));
        assert!(matches!(
            read(br#"{"id":1,"result":null}"#),
            Line::Response {
                result: Some(_),
                ..
            }
        ));
        assert!(matches!(
            read(br#"{"id":1}"#),
            Line::Response {
                result: None,
                error: None,
                ..
            }
        ));
    }

    #[test]
    fn noise_is_told_apart() {
        for (line, want) in [
            (&b"\xff{}"[..], NoiseWhy::NotUtf8),
            (b"\x1b[?2004h", NoiseWhy::NotJson),
            (b"", NoiseWhy::NotJson),
            (b"[1]", NoiseWhy::NotAFrame),
            (br#"["turn/started",7]"#, NoiseWhy::NotAFrame),
            (b"{}", NoiseWhy::NotAFrame),
            (br#"{"id":null,"method":"x"}"#, NoiseWhy::NotAFrame),
            (br#"{"id":{},"method":"x"}"#, NoiseWhy::NotAFrame),
            (br#"{"method":5}"#, NoiseWhy::NotAFrame),
        ] {
            assert!(
                matches!(read(line), Line::Noise(why) if why == want),
                "{line:?}"
            );
        }
    }

    #[test]
    fn deep_nesting_is_carried_and_overflows_nothing() {
        let deep = alloc::format!(
            r#"{{"method":"x/new","params":{}{}}}"#,
            "[".repeat(100_000),
            "]".repeat(100_000)
        );
        assert!(matches!(read(deep.as_bytes()), Line::Notification(_)));
    }
}
