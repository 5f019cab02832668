//! Tool calls: how their arguments are read, what is wrong with malformed ones, and how a call
//! lives.

mod boxes;

use alloc::{borrow::ToOwned, boxed::Box, format, string::String, vec::Vec};

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::{
    RawJson,
    command::{Tool, ToolContent, ToolDelivery, ToolKind, ToolResult},
    durable::is_default,
    error::{Change, InvalidTransition},
    event::{CallClosedWhy, MalformedCall},
    id::{ArrivalNo, CallId, ConversationId, ToolCallId, TurnNo},
    json::{CanonicalError, JsonKind, write_string},
    preflight::Offered,
};

pub use self::boxes::{
    agent_message_body, call_body, is_result_of, malformed_result_body, message_body,
    result_bodies, result_fingerprint,
};
pub(crate) use self::boxes::{boxes_of, was_closed};

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
                if changed == Change::NoOp {
                    return Ok(changed);
                }
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
    /// The turn; 0 is that of a sub-agent.
    pub turn: TurnNo,
    /// The server's name for the call; that of a sub-agent's stands behind its thread and turn.
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

#[cfg(test)]
mod tests;
