//! Inputs and effects in one line each.

use std::fmt::Write as _;

use jiff::{Timestamp as Moment, tz::TimeZone};
use serde_json::{Value, json};
use turnkeep_tokio::core::{Command, Input, Timestamp, cleanup::Owner, command::RequestEffect};

use crate::term::{brief, thousands, visible};

/// A moment as the clock on the wall shows it, with milliseconds.
pub(crate) fn clock(at: Timestamp) -> String {
    zoned(at).map_or_else(
        || at.0.to_string(),
        |zoned| zoned.strftime("%H:%M:%S%.3f").to_string(),
    )
}

/// A moment with its day.
pub(crate) fn date(at: Timestamp) -> String {
    zoned(at).map_or_else(
        || at.0.to_string(),
        |zoned| zoned.strftime("%Y-%m-%d %H:%M:%S %Z").to_string(),
    )
}

fn zoned(at: Timestamp) -> Option<jiff::ZonedDateTime> {
    let moment = Moment::from_microsecond(i64::try_from(at.0).ok()?).ok()?;
    Some(moment.to_zoned_datetime(TimeZone::system()))
}

/// How long after the beginning.
pub(crate) fn since(start: Timestamp, at: Timestamp) -> String {
    format!("+{:.3}", at.since(start).as_secs_f64())
}

/// An input in one line.
pub(crate) fn input(input: &Input) -> String {
    match input {
        Input::Command { id, command } => format!("command {id}: {}", self::command(command)),
        Input::Opened(epoch, peer) => match peer.pid {
            Some(pid) => format!("opened connection {epoch}: process {pid}"),
            None => format!("opened connection {epoch}"),
        },
        Input::Received(_, bytes) => {
            let size = thousands(bytes.len() as u64);
            format!("read {size} bytes: {}", frames(bytes))
        }
        Input::SendFailed(epoch, frame) => {
            format!("frame {frame} was not sent on connection {epoch}")
        }
        Input::Closed(epoch, closed) => {
            let reason = visible(&closed.reason.to_string());
            format!("closed connection {epoch}: {reason}")
        }
        Input::Appended { through } => format!("durable up to batch {through}"),
        Input::AppendFailed => "the journal failed".into(),
        Input::QueueFull(conversation) => {
            format!("the queue of conversation {conversation} is full")
        }
        Input::Tick => "tick".into(),
    }
}

/// An input as JSON.
pub(crate) fn input_json(input: &Input) -> Value {
    match input {
        Input::Received(epoch, bytes) => {
            let pieces = bytes.split_inclusive(|b| *b == b'\n').map(|piece| {
                let whole = piece
                    .strip_suffix(b"\n")
                    .map(serde_json::from_slice::<Value>);
                match whole {
                    Some(Ok(frame)) if frame.is_object() => frame,
                    _ => Value::from(String::from_utf8_lossy(piece)),
                }
            });
            json!({"Received": {"epoch": epoch.0, "pieces": pieces.collect::<Vec<_>>()}})
        }
        other => serde_json::to_value(other).unwrap_or_default(),
    }
}

fn command(command: &Command) -> String {
    match command {
        Command::Open { key, .. } => format!("open conversation {:?}", key.as_str()),
        Command::Change { conversation, .. } => {
            format!("change the settings of conversation {conversation}")
        }
        Command::Send {
            conversation,
            input,
            ..
        } => {
            let texts = input.iter().map(|item| {
                let value = item.json().read::<Value>().unwrap_or_default();
                match value["text"].as_str() {
                    Some(text) => format!("{:?}", brief(text, 60)),
                    None => format!("({})", value["type"].as_str().unwrap_or("?")),
                }
            });
            let texts: Vec<_> = texts.collect();
            format!("send to conversation {conversation}: {}", texts.join(" "))
        }
        Command::Accept {
            conversation,
            boxes,
            ..
        } => {
            let types: Vec<_> = boxes.iter().map(|b| brief(&b.box_type, 40)).collect();
            format!(
                "accept in conversation {conversation}: {}",
                types.join(", ")
            )
        }
        Command::Begin { conversation } => format!("begin in conversation {conversation}"),
        Command::Restart { conversation, .. } => format!("restart conversation {conversation}"),
        Command::Dismiss { conversation } => format!("dismiss the stall of {conversation}"),
        Command::Hold { conversation, .. } => format!("hold conversation {conversation}"),
        Command::Release { conversation } => format!("release conversation {conversation}"),
        Command::Bind { conversation, .. } => format!("bind conversation {conversation}"),
        Command::Unbind { conversation } => format!("unbind conversation {conversation}"),
        Command::Preflight {
            conversation,
            items,
        } => format!(
            "begin conversation {conversation} with {} preflight items",
            items.len()
        ),
        Command::ToolMessage { call, .. } => format!("message of call {}", call.sequence),
        Command::Read {
            conversation, from, ..
        } => format!("read conversation {conversation} from box {from}"),
        Command::Steer { turn, .. } => format!("steer turn {turn}"),
        Command::Interrupt { turn } => format!("interrupt turn {turn}"),
        Command::Abandon { turn } => format!("abandon turn {turn}"),
        Command::Respond { call, result } => {
            let ok = if result.success { "ok" } else { "failed" };
            format!("result of call {}: {ok}", call.sequence)
        }
        Command::Answer { question, .. } => format!("answer question {question}"),
        Command::Acknowledge { turn } => format!("acknowledge turn {turn}"),
        Command::Close { conversation } => format!("close conversation {conversation}"),
        Command::Reset { conversation } => format!("reset conversation {conversation}"),
        Command::Materialise { conversation } => {
            format!("make the thread of conversation {conversation}")
        }
        Command::Fork {
            conversation, key, ..
        } => format!("fork conversation {conversation} as {key}"),
        Command::Compact { conversation } => format!("compact conversation {conversation}"),
        Command::Detach { owner } => format!("detach {}", owner_text(owner)),
        Command::Archive { owner } => format!("archive {}", owner_text(owner)),
        Command::Delete { owner } => format!("delete {}", owner_text(owner)),
        Command::RefreshToken { refresh, .. } => format!("answer token refresh {refresh}"),
        Command::Request { method, effect, .. } | Command::SecretRequest { method, effect, .. } => {
            let reads = match effect {
                RequestEffect::Reads => " (reads)",
                RequestEffect::Changes => "",
            };
            format!("request {}{reads}", visible(method))
        }
        Command::Shutdown => "shut down".into(),
    }
}

/// For whom something is cleaned up.
pub(crate) fn owner_text(owner: &Owner) -> String {
    match owner {
        Owner::Conversation(conversation) => format!("conversation {conversation}"),
        Owner::Workspace(label) => format!("workspace {:?}", brief(label, 40)),
        Owner::Client => "all conversations".into(),
    }
}

/// What stands in a read, frames of one kind counted.
fn frames(bytes: &[u8]) -> String {
    let mut kinds: Vec<(String, u32)> = Vec::new();
    for piece in bytes.split_inclusive(|b| *b == b'\n') {
        let kind = match serde_json::from_slice::<Value>(piece) {
            Ok(frame) if frame.is_object() => frame_kind(&frame),
            _ if piece.ends_with(b"\n") => "(no frame)".into(),
            _ => "(part of a line)".into(),
        };
        match kinds.last_mut() {
            Some((last, count)) if *last == kind => *count += 1,
            _ => kinds.push((kind, 1)),
        }
    }
    let kinds = kinds.into_iter().map(|(kind, count)| match count {
        1 => kind,
        count => format!("{kind} ×{count}"),
    });
    kinds.collect::<Vec<_>>().join(", ")
}

fn frame_kind(frame: &Value) -> String {
    match (frame["method"].as_str(), &frame["id"]) {
        (Some(method), Value::Null) => brief(method, 80),
        (Some(method), id) => format!("{} (request {id})", brief(method, 80)),
        (None, id) if frame.get("error").is_some() => format!("refusal of {id}"),
        (None, id) => format!("answer to {id}"),
    }
}

/// A recorded effect in one line.
pub(crate) fn effect(text: &str) -> String {
    // A recording may come from anywhere, and a name in it may be anything.
    visible(&summary(text)).replace('\n', " ")
}

fn summary(text: &str) -> String {
    let Ok(Value::Object(effect)) = serde_json::from_str::<Value>(text) else {
        return brief(text, 120);
    };
    let Some((kind, value)) = effect.into_iter().next() else {
        return brief(text, 120);
    };
    match kind.as_str() {
        "Append" => {
            let records = value["records"].as_array().into_iter().flatten();
            let kinds: Vec<_> = records.map(record_kind).collect();
            format!("write {}: {}", value["through"], kinds.join(", "))
        }
        "Send" => {
            let frame = &value[1]["line"];
            let what = match (frame["method"].as_str(), &frame["id"]) {
                (Some(method), Value::Null) => brief(method, 80),
                (Some(method), id) => format!("{} (request {id})", brief(method, 80)),
                (None, id) => format!("answer to {id}"),
            };
            format!("send {what}")
        }
        "Emit" => format!("tell {}", event(&value)),
        "Open" => format!("open connection {}", value[0]),
        "Close" => format!("close connection {}: {}", value[0], word(&value[1])),
        other => other.to_lowercase(),
    }
}

/// The record's kind and, where there is one, its change.
fn record_kind(record: &Value) -> String {
    let Some((kind, body)) = record.as_object().and_then(|r| r.iter().next()) else {
        // One without anything beside its kind is but a word.
        return word(record).replace('_', " ");
    };
    match &body["change"] {
        Value::Null => kind.clone(),
        change => format!("{kind} {}", word(change)),
    }
}

/// The name of an enum's variant.
fn word(value: &Value) -> String {
    match value {
        Value::String(word) => word.clone(),
        Value::Object(object) => object.keys().next().cloned().unwrap_or_default(),
        other => other.to_string(),
    }
}

fn event(event: &Value) -> String {
    let Some((kind, value)) = event.as_object().and_then(|e| e.iter().next()) else {
        return word(event);
    };
    let mut out = String::new();
    let _ = match kind.as_str() {
        "Delta" => {
            let text = value["text"].as_str().unwrap_or_default();
            let quoted = format!("{:?}", brief(text, 60));
            write!(
                out,
                "turn {}: {} text {quoted}",
                value["turn"],
                word(&value["kind"])
            )
        }
        "Turn" => {
            let update = &value["update"];
            let more = match update.as_object().and_then(|u| u.iter().next()) {
                Some((name, item)) if name.starts_with("Item") => {
                    format!(" {}", word(&item["kind"]))
                }
                Some((name, end)) if name == "Ended" => format!(" {}", word(&end["outcome"])),
                Some((name, call)) if name == "ToolCall" => format!(" {}", word(&call["tool"])),
                _ => String::new(),
            };
            write!(
                out,
                "turn {}: {}{}",
                value["turn"],
                word(update),
                visible(&more)
            )
        }
        "Conversation" => write!(
            out,
            "conversation {}: {}",
            value["conversation"],
            word(&value["update"])
        ),
        "Connection" => write!(out, "connection: {}", word(value)),
        "Answer" => {
            let answer = &value["answer"];
            match answer.get("Ok") {
                Some(reply) => write!(out, "command {}: {}", value["id"], word(reply)),
                None => write!(
                    out,
                    "command {}: refused, {}",
                    value["id"],
                    word(&answer["Err"])
                ),
            }
        }
        other => write!(out, "{other}"),
    };
    out
}
