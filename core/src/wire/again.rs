//! What the core reads of a line, written again. Only for tests: they compare it with the line.

use alloc::{
    format,
    string::{String, ToString},
};

use serde_json::{Map, Value, json, value::RawValue};

use super::{
    Line, WireDelta, by_envelope, by_position,
    notification::{Notification, TurnFrame, WireUsage},
    read,
    text::unescape,
};
use crate::event::{DeltaKind, Tokens};

/// A line as it was read.
#[derive(Clone, Debug)]
pub struct Again {
    /// The frame as JSON.
    pub json: String,
    /// Whether it must equal the line but for `emittedAtMs`; else it has only the members that the
    /// core acts on.
    pub whole: bool,
}

/// A line as the hot path and the cold one read it.
#[derive(Clone, Debug)]
pub struct Both {
    /// Every part that the hot path read.
    pub hot: String,
    /// Every part that the cold path read.
    pub cold: String,
    /// The text of a delta, unescaped; without one where it is no Unicode.
    pub text: Option<Option<String>>,
}

/// Reads a line in both ways. `None` where the hot path declines it.
#[must_use]
pub fn read_both(line: &[u8]) -> Option<Both> {
    let line = core::str::from_utf8(line).ok()?;
    let hot = by_position(line)?;
    let text = match &hot {
        Line::Delta(delta) => {
            let mut text = String::new();
            Some(unescape(delta.text, &mut text).map(|()| text))
        }
        Line::Notification(_) | Line::Request { .. } | Line::Response { .. } | Line::Noise(_) => {
            None
        }
    };
    Some(Both {
        hot: format!("{hot:?}"),
        cold: format!("{:?}", by_envelope(line)),
        text,
    })
}

/// Reads a line and writes it again.
///
/// # Errors
///
/// In words, why the line is no frame or does not have the shape of its method.
pub fn read_again(line: &[u8]) -> Result<Again, String> {
    let (json, whole) = match read(line) {
        Line::Delta(delta) => (self::delta(&delta), true),
        Line::Request { id, method, params } => {
            let mut out = Map::new();
            put(&mut out, "id", Some(parsed(id)));
            put(&mut out, "method", Some(json!(method)));
            put(&mut out, "params", params.map(raw));
            (Value::Object(out), true)
        }
        Line::Response { id, result, error } => {
            let mut out = Map::new();
            put(&mut out, "id", Some(parsed(id)));
            put(&mut out, "result", result.map(raw));
            put(&mut out, "error", error.map(raw));
            (Value::Object(out), true)
        }
        Line::Notification(notification) => self::notification(&notification)?,
        Line::Noise(why) => return Err(format!("{why:?}")),
    };
    let json = json.to_string();
    Ok(Again { json, whole })
}

fn raw(raw: &RawValue) -> Value {
    parsed(raw.get())
}

fn parsed(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or(Value::Null)
}

fn put(out: &mut Map<String, Value>, key: &str, value: Option<Value>) {
    if let Some(value) = value {
        out.insert(key.into(), value);
    }
}

fn delta(delta: &WireDelta<'_>) -> Value {
    let (method, part) = match delta.kind {
        DeltaKind::Agent => ("item/agentMessage/delta", None),
        DeltaKind::Reasoning => ("item/reasoning/textDelta", Some("contentIndex")),
        DeltaKind::ReasoningSummary => ("item/reasoning/summaryTextDelta", Some("summaryIndex")),
        DeltaKind::Plan => ("item/plan/delta", None),
        DeltaKind::CommandOutput => ("item/commandExecution/outputDelta", None),
        DeltaKind::FileChangeOutput => ("item/fileChange/outputDelta", None),
    };
    let mut params = Map::new();
    put(&mut params, "threadId", Some(json!(delta.thread)));
    put(&mut params, "turnId", Some(json!(delta.turn)));
    put(&mut params, "itemId", Some(json!(delta.item)));
    put(&mut params, "delta", Some(parsed(delta.text)));
    if let Some(part) = part {
        put(&mut params, part, Some(json!(delta.part)));
    }
    json!({"method": method, "params": params})
}

fn notification(notification: &Notification<'_>) -> Result<(Value, bool), String> {
    use Notification as N;
    let (method, params) = match notification {
        N::TurnStarted(frame) => ("turn/started", turn(frame)),
        N::TurnCompleted(frame) => ("turn/completed", turn(frame)),
        N::ItemStarted(f) | N::ItemCompleted(f) => {
            let done = matches!(notification, N::ItemCompleted(_));
            let method = if done {
                "item/completed"
            } else {
                "item/started"
            };
            let params = json!({
                "threadId": f.thread_id.0, "turnId": f.turn_id.0, "item": raw(f.item),
            });
            (method, params)
        }
        N::Usage(f) => {
            let params = json!({
                "threadId": f.thread_id.0, "turnId": f.turn_id.0, "tokenUsage": usage(&f.token_usage),
            });
            ("thread/tokenUsage/updated", params)
        }
        N::Diff(f) => {
            let params = json!({
                "threadId": f.thread_id.0, "turnId": f.turn_id.0, "diff": raw(f.diff),
            });
            ("turn/diff/updated", params)
        }
        N::Plan { raw: plan, .. } => {
            let json = json!({"method": "turn/plan/updated", "params": raw(plan)});
            return Ok((json, true));
        }
        N::Status(f) => {
            let params = json!({"threadId": f.thread_id.0, "status": raw(f.status)});
            ("thread/status/changed", params)
        }
        N::Error(f) => {
            let mut params = Map::new();
            put(&mut params, "error", Some(raw(f.error)));
            put(
                &mut params,
                "threadId",
                f.thread_id.as_ref().map(|t| json!(t.0)),
            );
            put(
                &mut params,
                "turnId",
                f.turn_id.as_ref().map(|t| json!(t.0)),
            );
            put(&mut params, "willRetry", f.will_retry.map(Value::Bool));
            ("error", Value::Object(params))
        }
        N::Warning { method, frame } => {
            let thread = frame.thread_id.as_ref().map(|t| json!(t.0));
            let mut params = Map::new();
            put(&mut params, "threadId", thread);
            (*method, Value::Object(params))
        }
        N::Resolved(f) => {
            let params = json!({"requestId": raw(f.request_id)});
            ("serverRequest/resolved", params)
        }
        N::ThreadClosed(f) => ("thread/closed", json!({"threadId": f.thread_id.0})),
        N::ThreadStarted(f) => ("thread/started", json!({"thread": {"id": f.thread.id.0}})),
        N::Rerouted(f) => {
            let params = json!({
                "threadId": f.thread_id.0, "turnId": f.turn_id.0,
                "fromModel": f.from_model.0, "toModel": f.to_model.0,
            });
            ("model/rerouted", params)
        }
        N::Other { method, params, .. } => {
            let mut out = Map::new();
            put(&mut out, "method", Some(json!(method)));
            put(&mut out, "params", params.map(raw));
            return Ok((Value::Object(out), true));
        }
        N::Bad { method, reason, .. } => return Err(format!("{method}: {reason}")),
    };
    Ok((json!({"method": method, "params": params}), false))
}

fn turn(frame: &TurnFrame<'_>) -> Value {
    let mut turn = Map::new();
    put(&mut turn, "id", Some(json!(frame.turn.id.0)));
    put(&mut turn, "status", Some(json!(frame.turn.status.0)));
    put(&mut turn, "error", frame.turn.error.map(raw));
    put(&mut turn, "items", frame.turn.items.map(raw));
    let mut out = Map::new();
    put(&mut out, "threadId", Some(json!(frame.thread_id.0)));
    put(
        &mut out,
        "turnId",
        frame.turn_id.as_ref().map(|t| json!(t.0)),
    );
    put(&mut out, "turn", Some(Value::Object(turn)));
    Value::Object(out)
}

fn usage(usage: &WireUsage) -> Value {
    let tokens = |t: Tokens| serde_json::to_value(t).unwrap_or_default();
    json!({
        "total": tokens(usage.total),
        "last": tokens(usage.last),
        "modelContextWindow": usage.model_context_window,
    })
}
