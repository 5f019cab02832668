//! The boxes of calls: what the model reads of them, and the same for programs.

use alloc::{format, string::String, vec::Vec};

use super::{CALL_TYPE, MALFORMED_TYPE, MESSAGE_TYPE, RESULT_TYPE};
use crate::{
    RawJson,
    command::{InputItem, ToolContent, ToolResult},
    event::{CallClosedWhy, MalformedCall},
    json::write_string,
    transcript::{BoxBody, box_type},
};

/// The Tool Call box of a call, malformed or not. The arguments are canonical.
#[must_use]
pub fn call_body(sequence: u64, name: &str, canonical_arguments: &str) -> BoxBody {
    let mut hidden = format!(r#"{{"arguments":{canonical_arguments},"name":"#);
    write_string(name, &mut hidden);
    hidden.push_str(&format!(r#","sequence":{sequence}}}"#));
    let contents = format!("call {sequence}: {name} {canonical_arguments}");
    BoxBody::new(box_type::TOOL_CALL, contents).hidden(CALL_TYPE, hidden)
}

/// The boxes of a result: the Tool Result with its texts, then a Tool Attachment for each image and
/// audio. `closed` tells why it is not the application's.
#[must_use]
pub fn result_bodies(
    sequence: u64,
    result: &ToolResult,
    closed: Option<CallClosedWhy>,
) -> Vec<BoxBody> {
    let mut text = String::new();
    let mut bodies = Vec::new();
    for part in &result.content {
        let item = match part {
            ToolContent::Text(more) => {
                // An empty part is left out, as an empty section is.
                if !text.is_empty() && !more.is_empty() && !text.ends_with('\n') {
                    text.push('\n');
                }
                text.push_str(more);
                continue;
            }
            ToolContent::Image(url) => InputItem::image(url),
            ToolContent::Audio(url) => InputItem::audio(url),
        };
        bodies.push(BoxBody::attachment(box_type::TOOL_ATTACHMENT, &item));
    }
    let hidden = hidden_result(result, Some(sequence), closed);
    let first = result_body(sequence, result.success, &text).hidden(RESULT_TYPE, hidden);
    bodies.insert(0, first);
    bodies
}

/// How many boxes a result makes.
pub(crate) fn boxes_of(result: &ToolResult) -> usize {
    let text = |part: &&ToolContent| matches!(part, ToolContent::Text(_));
    1 + result.content.len() - result.content.iter().filter(text).count()
}

/// The Tool Result box of a malformed call.
#[must_use]
pub fn malformed_result_body(malformed: &MalformedCall) -> BoxBody {
    result_body(malformed.id.sequence, false, &malformed.text())
        .hidden(MALFORMED_TYPE, malformed.canonical())
}

fn result_body(sequence: u64, success: bool, text: &str) -> BoxBody {
    let word = if success { "ok" } else { "failed" };
    let contents = format!("result of call {sequence}: {word}\n{text}");
    BoxBody::new(box_type::TOOL_RESULT, contents)
}

/// The Tool Message box of what a tool says before its result.
#[must_use]
pub fn message_body(sequence: u64, text: &str) -> BoxBody {
    let mut hidden = format!(r#"{{"sequence":{sequence},"text":"#);
    write_string(text, &mut hidden);
    hidden.push('}');
    let contents = format!("message of call {sequence}\n{text}");
    BoxBody::new(box_type::TOOL_MESSAGE, contents).hidden(MESSAGE_TYPE, hidden)
}

/// The Agent Message box of what the model says by a tool of kind `Message`.
#[must_use]
pub fn agent_message_body(text: &str) -> BoxBody {
    BoxBody::new(box_type::AGENT_MESSAGE, text)
}

/// All that a result says, as canonical JSON, metadata included: two results are the same if these
/// are.
#[must_use]
pub fn result_fingerprint(result: &ToolResult) -> String {
    hidden_result(result, None, None)
}

/// Whether a Tool Result box holds a result of the application for a call.
#[must_use]
pub fn is_result_of(body: &BoxBody, sequence: u64, result: &ToolResult) -> bool {
    body.hidden_type == RESULT_TYPE
        && body.hidden_contents == hidden_result(result, Some(sequence), None)
}

/// Whether a Tool Result box holds what we said of a call that was closed without the application.
#[must_use]
pub(crate) fn was_closed(body: &BoxBody) -> bool {
    body.hidden_type == RESULT_TYPE && body.hidden_contents.starts_with(r#"{"closed":"#)
}

fn hidden_result(
    result: &ToolResult,
    sequence: Option<u64>,
    closed: Option<CallClosedWhy>,
) -> String {
    let mut out = String::from("{");
    if let Some(why) = closed.and_then(|why| RawJson::of(&why).ok()) {
        out.push_str(&format!(r#""closed":{},"#, why.get()));
    }
    out.push_str(r#""content":["#);
    for (at, part) in result.content.iter().enumerate() {
        if at > 0 {
            out.push(',');
        }
        let (head, value) = match part {
            ToolContent::Text(text) => (r#"{"text":"#, text),
            ToolContent::Image(url) => (r#"{"image":"#, url),
            ToolContent::Audio(url) => (r#"{"audio":"#, url),
        };
        out.push_str(head);
        write_string(value, &mut out);
        out.push('}');
    }
    out.push_str(r#"],"metadata":"#);
    match &result.metadata {
        None => out.push_str("null"),
        Some(metadata) => {
            out.push_str(r#"{"contents":"#);
            write_string(&metadata.contents, &mut out);
            out.push_str(r#","type":"#);
            write_string(&metadata.metadata_type, &mut out);
            out.push('}');
        }
    }
    if let Some(sequence) = sequence {
        out.push_str(&format!(r#","sequence":{sequence}"#));
    }
    out.push_str(&format!(r#","success":{}}}"#, result.success));
    out
}
