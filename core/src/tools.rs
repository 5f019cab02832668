//! Tool calls: how their arguments are read, what is wrong with malformed ones, and how a call
//! lives.

use alloc::{borrow::ToOwned, boxed::Box, format, string::String, vec::Vec};

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::{
    RawJson,
    command::{InputItem, Tool, ToolContent, ToolDelivery, ToolKind, ToolResult},
    durable::is_default,
    error::{Change, InvalidTransition},
    event::{CallClosedWhy, MalformedCall},
    id::{ArrivalNo, CallId, ConversationId, ToolCallId, TurnNo},
    json::{CanonicalError, JsonKind, write_string},
    preflight::Offered,
    transcript::{BoxBody, box_type},
};

/// What the server is told of a message that a tool of kind `Message` brought.
pub const MESSAGE_DELIVERED: &str = "The message was delivered.";

/// What the model is told of a call whose result comes later.
pub const DEFERRED: &str =
    "The call was taken. Its result comes later, as a message; do not wait for it.";

/// The hidden type of a Tool Call box.
pub const CALL_TYPE: &str = "turnkeep.tool-call/1";

/// The hidden type of a Tool Result box.
pub const RESULT_TYPE: &str = "turnkeep.tool-result/1";

/// The hidden type of a Tool Message box.
pub const MESSAGE_TYPE: &str = "turnkeep.tool-message/1";

/// The hidden type of the Tool Result box of a malformed call.
pub const MALFORMED_TYPE: &str = "turnkeep.malformed-call/1";

/// What the model is told of a call that its tool's time limit closed.
pub const TIME_LIMIT: &str = "The tool did not answer within its time limit.";

/// What the model is told of a call that was open when its turn was interrupted.
pub const INTERRUPTED: &str = "interrupted";

/// What the model is told of a call that was open when the application left a stall.
pub const DISMISSED: &str = "dismissed";

/// The durable state of a call.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Call {
    /// The conversation.
    pub conversation: ConversationId,
    /// The turn.
    pub turn: TurnNo,
    /// The server's name for the call.
    pub native: CallId,
    /// How far it is.
    pub state: CallState,
    /// How its result reaches the model from here on.
    #[serde(default, skip_serializing_if = "is_default")]
    pub delivery: ToolDelivery,
    /// Whether it stands in the transcript: those of turns that the server began do not.
    #[serde(default, skip_serializing_if = "is_default")]
    pub boxed: bool,
    /// Whether its native call was given its result.
    #[serde(default, skip_serializing_if = "is_default")]
    pub given: bool,
    /// The first and the last arrival that its result made.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub arrivals: Option<(ArrivalNo, ArrivalNo)>,
    /// What is offered again in each life, where it is a call of the preflight.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub offered: Option<Box<Offered>>,
}

impl Call {
    /// Whether it waits for its result.
    #[must_use]
    pub const fn is_open(&self) -> bool {
        matches!(self.state, CallState::Asked | CallState::Launched)
    }

    /// Takes a change. Unchanged on error.
    ///
    /// # Errors
    ///
    /// As [`CallState::on`]; or the call is not in the transcript, has its result already, or never
    /// was `Inline`.
    pub fn on(&mut self, change: &CallChange) -> Result<Change, InvalidTransition> {
        let inline = self.delivery == ToolDelivery::Inline;
        let fits = match change {
            CallChange::Message { .. } => self.boxed && self.is_open(),
            CallChange::Deferred => self.boxed && inline && self.is_open(),
            CallChange::Given => {
                let is_over = match self.state {
                    CallState::Answered { .. } => true,
                    CallState::Closed { why } => matches!(why, CallClosedWhy::TimeLimit),
                    CallState::Asked | CallState::Launched => false,
                };
                self.boxed && inline && is_over
            }
            CallChange::Asked(_)
            | CallChange::Launched
            | CallChange::Answered { .. }
            | CallChange::Closed { .. } => {
                let changed = self.state.on(change)?;
                if let CallChange::Answered { given, .. } | CallChange::Closed { given, .. } =
                    change
                {
                    self.given |= *given;
                }
                return Ok(changed);
            }
        };
        if !fits {
            return Err(InvalidTransition {
                machine: "tool call",
                state: self.state.name(),
                event: change.name(),
            });
        }
        match change {
            CallChange::Given if self.given => return Ok(Change::NoOp),
            CallChange::Deferred => self.delivery = ToolDelivery::Deferred,
            CallChange::Given => self.given = true,
            _ => {}
        }
        Ok(Change::Applied)
    }
}

/// What a call is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CallAsked {
    /// The conversation.
    pub conversation: ConversationId,
    /// The turn.
    pub turn: TurnNo,
    /// The server's name for the call.
    pub native: CallId,
    /// The tool, as it was recorded: the inner one of a router, the attempted one of a malformed
    /// call.
    pub tool: String,
    /// The native tool, where it is another.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub via: Option<String>,
    /// The arguments, canonical.
    pub arguments: RawJson,
    /// What is wrong with it, if anything is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub malformed: Option<Box<MalformedCall>>,
}

/// How far a call is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "snake_case")]
pub enum CallState {
    /// Recorded; the application has not seen it.
    Asked,
    /// The application may have seen it: it is never launched again.
    Launched,
    /// It has its result.
    Answered {
        /// That: the same call again gets the same bytes.
        result: ToolResult,
    },
    /// It was closed without one.
    Closed {
        /// Why.
        why: CallClosedWhy,
    },
}

/// A change of a call.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "snake_case")]
pub enum CallChange {
    /// The model called.
    Asked(Box<CallAsked>),
    /// The application is told.
    Launched,
    /// The application says something of it.
    Message {
        /// That.
        text: String,
    },
    /// Its native call is gone: its result arrives in the conversation.
    Deferred,
    /// Its result was given to the native call after all.
    Given,
    /// It has its result.
    Answered {
        /// That.
        result: ToolResult,
        /// Whether the native call is given it now.
        #[serde(default, skip_serializing_if = "is_default")]
        given: bool,
    },
    /// It was closed without one.
    Closed {
        /// Why.
        why: CallClosedWhy,
        /// Whether the native call is given a failure now.
        #[serde(default, skip_serializing_if = "is_default")]
        given: bool,
    },
}

impl CallChange {
    /// The change's name.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Asked(_) => "asked",
            Self::Launched => "launched",
            Self::Message { .. } => "message",
            Self::Deferred => "deferred",
            Self::Given => "given",
            Self::Answered { .. } => "answered",
            Self::Closed { .. } => "closed",
        }
    }
}

impl CallState {
    /// The state's name.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Asked => "Asked",
            Self::Launched => "Launched",
            Self::Answered { .. } => "Answered",
            Self::Closed { .. } => "Closed",
        }
    }

    /// Takes a change. Unchanged on error.
    ///
    /// # Errors
    ///
    /// The call has another result, is closed, or was launched before.
    pub fn on(&mut self, change: &CallChange) -> Result<Change, InvalidTransition> {
        let next = match (&*self, change) {
            (Self::Asked, CallChange::Launched) => Self::Launched,
            // A malformed call and a message are answered without a launch.
            (Self::Asked | Self::Launched, CallChange::Answered { result, .. }) => Self::Answered {
                result: result.clone(),
            },
            (Self::Answered { result: had }, CallChange::Answered { result, .. })
                if had == result =>
            {
                return Ok(Change::NoOp);
            }
            (Self::Asked | Self::Launched, CallChange::Closed { why, .. }) => {
                Self::Closed { why: *why }
            }
            (Self::Closed { why: had }, CallChange::Closed { why, .. }) if had == why => {
                return Ok(Change::NoOp);
            }
            (
                Self::Asked | Self::Launched | Self::Answered { .. } | Self::Closed { .. },
                CallChange::Asked(_)
                | CallChange::Launched
                | CallChange::Message { .. }
                | CallChange::Deferred
                | CallChange::Given
                | CallChange::Answered { .. }
                | CallChange::Closed { .. },
            ) => {
                return Err(InvalidTransition {
                    machine: "tool call",
                    state: self.name(),
                    event: change.name(),
                });
            }
        };
        *self = next;
        Ok(Change::Applied)
    }
}

/// What a native call means.
#[derive(Clone, Debug)]
pub(crate) enum Meaning {
    /// A call for the application.
    Call {
        tool: String,
        via: Option<String>,
        arguments: RawJson,
    },
    /// A message of the agent.
    Message { text: String },
    /// The call does not have its tool's shape.
    Malformed(Fault),
}

/// What is wrong with a malformed call, before it has a number.
#[derive(Clone, Debug)]
pub(crate) struct Fault {
    kind: Option<ToolKind>,
    native_tool: String,
    attempted_tool: Option<String>,
    code: &'static str,
    path: &'static str,
    expected: String,
    received: String,
    arguments: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Wrapper<'a> {
    #[serde(borrow)]
    name: &'a RawValue,
    #[serde(borrow)]
    arguments: &'a RawValue,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct MessageWrapper<'a> {
    #[serde(borrow)]
    message: &'a RawValue,
}

#[derive(Deserialize)]
struct Named<'a> {
    #[serde(borrow)]
    name: &'a RawValue,
}

/// Reads a native call from its canonical arguments. The checks come in the specified order, and the
/// first hit counts.
///
/// # Errors
///
/// The arguments have no canonical form: the request is undecodable.
pub(crate) fn read(
    tools: &[Tool],
    native_tool: &str,
    canon: String,
) -> Result<Meaning, CanonicalError> {
    let arguments = RawJson::owned(canon).map_err(|_| CanonicalError::NotJson)?;
    let fault = |kind, attempted, code, path, expected: &str, received: &str| {
        Ok(Meaning::Malformed(Fault {
            kind,
            native_tool: native_tool.to_owned(),
            attempted_tool: attempted,
            code,
            path,
            expected: expected.to_owned(),
            received: received.to_owned(),
            arguments: arguments.get().to_owned(),
        }))
    };
    let Some(tool) = tools.iter().find(|t| t.name == native_tool) else {
        let mut names: Vec<&str> = tools.iter().map(|t| t.name.as_str()).collect();
        names.sort_unstable();
        return fault(
            None,
            None,
            "unknown_tool",
            "$.name",
            &names.join(", "),
            native_tool,
        );
    };
    let kind = Some(tool.kind);
    let inner_name = || {
        let named = arguments.read::<Named<'_>>().ok()?;
        serde_json::from_str::<String>(named.name.get()).ok()
    };
    if tool.kind == ToolKind::Function {
        if arguments.kind() != JsonKind::Object {
            let received = arguments.kind().name();
            return fault(kind, None, "arguments_not_object", "$", "object", received);
        }
        return Ok(Meaning::Call {
            tool: tool.name.clone(),
            via: None,
            arguments,
        });
    }
    if arguments.kind() != JsonKind::Object {
        return fault(
            kind,
            None,
            "arguments_not_object",
            "$",
            "object",
            arguments.kind().name(),
        );
    }
    if tool.kind == ToolKind::Message {
        let Ok(wrapper) = arguments.read::<MessageWrapper<'_>>() else {
            let expected = "object with exactly message";
            return fault(
                kind,
                None,
                "invalid_wrapper_fields",
                "$",
                expected,
                arguments.get(),
            );
        };
        let Ok(text) = serde_json::from_str::<String>(wrapper.message.get()) else {
            let received = wrapper.message.get();
            return fault(
                kind,
                None,
                "message_not_string",
                "$.message",
                "string",
                received,
            );
        };
        if text.is_empty() {
            let expected = "non-empty string";
            return fault(kind, None, "message_empty", "$.message", expected, r#""""#);
        }
        return Ok(Meaning::Message { text });
    }
    let Ok(wrapper) = arguments.read::<Wrapper<'_>>() else {
        let expected = "object with exactly name and arguments";
        return fault(
            kind,
            inner_name(),
            "invalid_wrapper_fields",
            "$",
            expected,
            arguments.get(),
        );
    };
    let Ok(name) = serde_json::from_str::<String>(wrapper.name.get()) else {
        return fault(
            kind,
            None,
            "name_not_string",
            "$.name",
            "string",
            wrapper.name.get(),
        );
    };
    let inner = RawJson::borrowed(wrapper.arguments);
    Ok(Meaning::Call {
        tool: name,
        via: Some(tool.name.clone()),
        arguments: inner,
    })
}

impl Fault {
    pub(crate) fn numbered(self, id: ToolCallId) -> MalformedCall {
        MalformedCall {
            id,
            kind: self.kind.map(|k| k.name().to_owned()),
            native_tool: self.native_tool,
            attempted_tool: self.attempted_tool,
            code: self.code.to_owned(),
            path: self.path.to_owned(),
            expected: self.expected,
            received: self.received,
            arguments: self.arguments,
        }
    }
}

impl MalformedCall {
    /// The name that the call is recorded under.
    #[must_use]
    pub fn recorded_tool(&self) -> &str {
        self.attempted_tool.as_deref().unwrap_or(&self.native_tool)
    }

    /// The failed result that the model gets, from which it can correct itself.
    #[must_use]
    pub fn result(&self) -> ToolResult {
        ToolResult::failed(self.text())
    }

    fn text(&self) -> String {
        let absent = "absent";
        format!(
            "malformed call\nkind: {}\nnative tool: {}\nattempted tool: {}\ncode: {}\npath: {}\n\
             expected: {}\nreceived: {}\narguments: {}",
            self.kind.as_deref().unwrap_or(absent),
            self.native_tool,
            self.attempted_tool.as_deref().unwrap_or(absent),
            self.code,
            self.path,
            self.expected,
            self.received,
            self.arguments,
        )
    }

    /// The same facts as canonical JSON (type `turnkeep.malformed-call/1`).
    #[must_use]
    pub fn canonical(&self) -> String {
        let mut out = String::from(r#"{"arguments":"#);
        out.push_str(&self.arguments);
        let optional = |out: &mut String, key: &str, value: Option<&str>| {
            out.push_str(key);
            match value {
                Some(value) => write_string(value, out),
                None => out.push_str("null"),
            }
        };
        optional(
            &mut out,
            r#","attemptedTool":"#,
            self.attempted_tool.as_deref(),
        );
        optional(&mut out, r#","code":"#, Some(&self.code));
        optional(&mut out, r#","expected":"#, Some(&self.expected));
        optional(&mut out, r#","kind":"#, self.kind.as_deref());
        optional(&mut out, r#","nativeTool":"#, Some(&self.native_tool));
        optional(&mut out, r#","path":"#, Some(&self.path));
        optional(&mut out, r#","received":"#, Some(&self.received));
        out.push('}');
        out
    }
}

/// The result as `item/tool/call` is answered (`DynamicToolCallResponse`).
pub(crate) fn wire_result(result: &ToolResult) -> String {
    let mut out = String::from(r#"{"contentItems":["#);
    for (at, part) in result.content.iter().enumerate() {
        if at > 0 {
            out.push(',');
        }
        let (head, value) = match part {
            ToolContent::Text(text) => (r#"{"type":"inputText","text":"#, text),
            ToolContent::Image(url) => (r#"{"type":"inputImage","imageUrl":"#, url),
            ToolContent::Audio(url) => (r#"{"type":"inputAudio","audioUrl":"#, url),
        };
        out.push_str(head);
        write_string(value, &mut out);
        out.push('}');
    }
    out.push_str(r#"],"success":"#);
    out.push_str(if result.success { "true" } else { "false" });
    out.push('}');
    out
}

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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::json::canonical;

    fn tools() -> Vec<Tool> {
        let schema = || RawJson::parse("{}").unwrap();
        alloc::vec![
            Tool::function("run", "", schema()),
            Tool::function("route", "", schema()).kind(ToolKind::Router),
            Tool::function("say", "", schema()).kind(ToolKind::Message),
        ]
    }

    fn malformed(tool: &str, arguments: &str) -> MalformedCall {
        let id = ToolCallId {
            nonce: crate::id::Nonce([0; 12]),
            sequence: 7,
        };
        match read(&tools(), tool, canonical(arguments).unwrap()).unwrap() {
            Meaning::Malformed(fault) => fault.numbered(id),
            other => panic!("{tool} {arguments} is well formed: {other:?}"),
        }
    }

    const ROUTER: &str = "object with exactly name and arguments";
    const MESSAGE: &str = "object with exactly message";

    /// Tool, arguments; code, path, expected, received, the name that it is recorded under.
    const ROWS: [(&str, &str, [&str; 5]); 22] = [
        (
            "other",
            "{}",
            [
                "unknown_tool",
                "$.name",
                "route, run, say",
                "other",
                "other",
            ],
        ),
        // The first hit counts.
        (
            "Run",
            "[1, 2]",
            ["unknown_tool", "$.name", "route, run, say", "Run", "Run"],
        ),
        (
            "run",
            "null",
            ["arguments_not_object", "$", "object", "null", "run"],
        ),
        (
            "run",
            "true",
            ["arguments_not_object", "$", "object", "boolean", "run"],
        ),
        (
            "run",
            "1",
            ["arguments_not_object", "$", "object", "number", "run"],
        ),
        (
            "run",
            "[1]",
            ["arguments_not_object", "$", "object", "array", "run"],
        ),
        (
            "route",
            "\"x\"",
            ["arguments_not_object", "$", "object", "string", "route"],
        ),
        // A wrapper is no list of its members.
        (
            "route",
            r#"["a",{}]"#,
            ["arguments_not_object", "$", "object", "array", "route"],
        ),
        (
            "say",
            r#"["hi"]"#,
            ["arguments_not_object", "$", "object", "array", "say"],
        ),
        (
            "route",
            "{}",
            ["invalid_wrapper_fields", "$", ROUTER, "{}", "route"],
        ),
        (
            "route",
            r#"{"name":"a"}"#,
            [
                "invalid_wrapper_fields",
                "$",
                ROUTER,
                r#"{"name":"a"}"#,
                "a",
            ],
        ),
        (
            "route",
            r#"{"name": "\u0061", "arguments": {"z": 1.0, "b": []}, "more": 1e2}"#,
            [
                "invalid_wrapper_fields",
                "$",
                ROUTER,
                r#"{"arguments":{"b":[],"z":1.0},"more":1e2,"name":"a"}"#,
                "a",
            ],
        ),
        (
            "route",
            r#"{"name":7,"more":1}"#,
            [
                "invalid_wrapper_fields",
                "$",
                ROUTER,
                r#"{"more":1,"name":7}"#,
                "route",
            ],
        ),
        (
            "route",
            r#"{"name":1e2,"arguments":{}}"#,
            ["name_not_string", "$.name", "string", "1e2", "route"],
        ),
        (
            "route",
            r#"{"name": {"b": 1, "a": [ ]}, "arguments":null}"#,
            [
                "name_not_string",
                "$.name",
                "string",
                r#"{"a":[],"b":1}"#,
                "route",
            ],
        ),
        (
            "route",
            r#"{"name":null,"arguments":1}"#,
            ["name_not_string", "$.name", "string", "null", "route"],
        ),
        (
            "say",
            "{}",
            ["invalid_wrapper_fields", "$", MESSAGE, "{}", "say"],
        ),
        (
            "say",
            r#"{"message":"hi","name":"run"}"#,
            [
                "invalid_wrapper_fields",
                "$",
                MESSAGE,
                r#"{"message":"hi","name":"run"}"#,
                "say",
            ],
        ),
        (
            "say",
            r#"{"b":1,"a":2}"#,
            [
                "invalid_wrapper_fields",
                "$",
                MESSAGE,
                r#"{"a":2,"b":1}"#,
                "say",
            ],
        ),
        (
            "say",
            r#"{"message":[]}"#,
            ["message_not_string", "$.message", "string", "[]", "say"],
        ),
        (
            "say",
            r#"{"message": {"b": -0, "a": "\/"}}"#,
            [
                "message_not_string",
                "$.message",
                "string",
                r#"{"a":"/","b":-0}"#,
                "say",
            ],
        ),
        (
            "say",
            r#"{"message":""}"#,
            [
                "message_empty",
                "$.message",
                "non-empty string",
                r#""""#,
                "say",
            ],
        ),
    ];

    #[test]
    fn malformed_calls_are_named_by_the_first_hit() {
        for (tool, arguments, want) in ROWS {
            let call = malformed(tool, arguments);
            let is = [
                &call.code,
                &call.path,
                &call.expected,
                &call.received,
                call.recorded_tool(),
            ];
            assert_eq!(is, want, "{tool} {arguments}");
            assert_eq!(call.native_tool, tool);
            assert_eq!(call.arguments, canonical(arguments).unwrap());
            assert_eq!(call.canonical(), canonical(&call.canonical()).unwrap());
        }
    }

    #[test]
    fn arguments_without_a_canonical_form_are_no_call() {
        // Which of the two the model meant cannot be told: the request is undecodable.
        let twice = canonical(r#"{"name":"a","arguments":{},"name":"b"}"#);
        assert_eq!(twice, Err(CanonicalError::DuplicateKey("name".into())));
    }

    #[test]
    fn the_model_reads_what_is_wrong() {
        let facts = [
            ("other", r#"{"b":"\n","a":1.0}"#),
            ("run", "[ 1, \"x\" ]"),
            ("route", r#"{"name":"a\"b"}"#),
            ("route", r#"{"name":7,"arguments":{}}"#),
            ("say", r#"{"message":null}"#),
            ("say", r#"{"message":""}"#),
        ]
        .map(|(tool, arguments)| malformed_result_body(&malformed(tool, arguments)));
        let text = |kind, native, attempted, code, path, expected, received, arguments| {
            format!(
                "result of call 7: failed\nmalformed call\nkind: {kind}\nnative tool: {native}\n\
                 attempted tool: {attempted}\ncode: {code}\npath: {path}\nexpected: {expected}\n\
                 received: {received}\narguments: {arguments}"
            )
        };
        let none = "absent";
        let wrapper = "invalid_wrapper_fields";
        let want = [
            text(
                none,
                "other",
                none,
                "unknown_tool",
                "$.name",
                "route, run, say",
                "other",
                r#"{"a":1.0,"b":"\n"}"#,
            ),
            text(
                "function",
                "run",
                none,
                "arguments_not_object",
                "$",
                "object",
                "array",
                r#"[1,"x"]"#,
            ),
            text(
                "router",
                "route",
                "a\"b",
                wrapper,
                "$",
                ROUTER,
                r#"{"name":"a\"b"}"#,
                r#"{"name":"a\"b"}"#,
            ),
            text(
                "router",
                "route",
                none,
                "name_not_string",
                "$.name",
                "string",
                "7",
                r#"{"arguments":{},"name":7}"#,
            ),
            text(
                "message",
                "say",
                none,
                "message_not_string",
                "$.message",
                "string",
                "null",
                r#"{"message":null}"#,
            ),
            text(
                "message",
                "say",
                none,
                "message_empty",
                "$.message",
                "non-empty string",
                r#""""#,
                r#"{"message":""}"#,
            ),
        ];
        let hidden = [
            r#"{"arguments":{"a":1.0,"b":"\n"},"attemptedTool":null,"code":"unknown_tool","expected":"route, run, say","kind":null,"nativeTool":"other","path":"$.name","received":"other"}"#,
            r#"{"arguments":[1,"x"],"attemptedTool":null,"code":"arguments_not_object","expected":"object","kind":"function","nativeTool":"run","path":"$","received":"array"}"#,
            r#"{"arguments":{"name":"a\"b"},"attemptedTool":"a\"b","code":"invalid_wrapper_fields","expected":"object with exactly name and arguments","kind":"router","nativeTool":"route","path":"$","received":"{\"name\":\"a\\\"b\"}"}"#,
            r#"{"arguments":{"arguments":{},"name":7},"attemptedTool":null,"code":"name_not_string","expected":"string","kind":"router","nativeTool":"route","path":"$.name","received":"7"}"#,
            r#"{"arguments":{"message":null},"attemptedTool":null,"code":"message_not_string","expected":"string","kind":"message","nativeTool":"say","path":"$.message","received":"null"}"#,
            r#"{"arguments":{"message":""},"attemptedTool":null,"code":"message_empty","expected":"non-empty string","kind":"message","nativeTool":"say","path":"$.message","received":"\"\""}"#,
        ];
        for ((body, want), hidden) in facts.iter().zip(want).zip(hidden) {
            assert_eq!((&*body.box_type, &body.contents), ("Tool Result", &want));
            assert_eq!(body.hidden_type, "turnkeep.malformed-call/1");
            assert_eq!(body.hidden_contents, hidden);
        }
    }

    #[test]
    fn a_call_and_a_message_become_boxes() {
        let call = call_body(3, "lo\"ok", r#"{"a":[1.0]}"#);
        assert_eq!(call.box_type, "Tool Call");
        assert_eq!(call.contents, "call 3: lo\"ok {\"a\":[1.0]}");
        assert_eq!(call.hidden_type, "turnkeep.tool-call/1");
        let hidden = r#"{"arguments":{"a":[1.0]},"name":"lo\"ok","sequence":3}"#;
        assert_eq!(call.hidden_contents, hidden);
        assert_eq!(canonical(hidden).unwrap(), hidden);

        let message = message_body(3, "half\n");
        assert_eq!(message.box_type, "Tool Message");
        assert_eq!(message.contents, "message of call 3\nhalf\n");
        assert_eq!(message.hidden_type, "turnkeep.tool-message/1");
        assert_eq!(message.hidden_contents, r#"{"sequence":3,"text":"half\n"}"#);
        assert!(message.is_inert() && !call.is_inert());

        assert_eq!(
            agent_message_body("hi"),
            BoxBody::new("Agent Message", "hi")
        );
    }

    #[test]
    fn a_result_becomes_boxes() {
        let result = ToolResult::ok("a")
            .with(ToolContent::Image("data:1".into()))
            .with(ToolContent::Text("b\n".into()))
            .with(ToolContent::Text("c".into()))
            .with(ToolContent::Audio("data:2".into()))
            .metadata(crate::command::Metadata {
                metadata_type: "t".into(),
                contents: "\"".into(),
            });
        let bodies = result_bodies(9, &result, None);
        let hidden = concat!(
            r#"{"content":[{"text":"a"},{"image":"data:1"},{"text":"b\n"},{"text":"c"},"#,
            r#"{"audio":"data:2"}],"metadata":{"contents":"\"","type":"t"},"sequence":9,"#,
            r#""success":true}"#
        );
        let of = |item| BoxBody::attachment("Tool Attachment", &item);
        assert_eq!(
            bodies,
            [
                BoxBody::new("Tool Result", "result of call 9: ok\na\nb\nc")
                    .hidden("turnkeep.tool-result/1", hidden),
                of(InputItem::image("data:1")),
                of(InputItem::audio("data:2")),
            ]
        );
        assert_eq!(bodies[1].hidden_type, "turnkeep.input/image");
        assert_eq!(canonical(hidden).unwrap(), hidden);
        assert_eq!(
            result_fingerprint(&result),
            hidden.replace(r#""sequence":9,"#, "")
        );
        assert!(is_result_of(&bodies[0], 9, &result) && !is_result_of(&bodies[0], 8, &result));
        assert!(!is_result_of(&bodies[0], 9, &ToolResult::ok("a")));

        let closed = ToolResult::failed("interrupted");
        let why = Some(CallClosedWhy::Interrupted);
        let body = &result_bodies(1, &closed, why)[0];
        assert_eq!(body.contents, "result of call 1: failed\ninterrupted");
        let hidden = concat!(
            r#"{"closed":"interrupted","content":[{"text":"interrupted"}],"metadata":null,"#,
            r#""sequence":1,"success":false}"#
        );
        assert_eq!(body.hidden_contents, hidden);
        assert_eq!(canonical(hidden).unwrap(), hidden);
        assert!(!is_result_of(body, 1, &closed));
        assert_eq!(
            result_bodies(1, &ToolResult::ok(""), None)[0].contents,
            "result of call 1: ok\n"
        );
    }

    #[test]
    fn a_router_records_the_inner_call() {
        let raw: &RawValue =
            serde_json::from_str(r#"{"arguments":{"b":1,"a":2},"name":"inner"}"#).unwrap();
        let Meaning::Call {
            tool,
            via,
            arguments,
        } = read(&tools(), "route", canonical(raw.get()).unwrap()).unwrap()
        else {
            panic!("not a call");
        };
        assert_eq!((tool.as_str(), via.as_deref()), ("inner", Some("route")));
        assert_eq!(arguments.get(), r#"{"a":2,"b":1}"#);
    }
}
