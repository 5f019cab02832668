//! What boxes say: what an application brings, what the model calls, and how boxes become a message.

use super::op::{Brought, Called, Outcome};

/// A box, or what becomes one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Body {
    pub(super) box_type: String,
    pub(super) contents: String,
    /// The specification says only how the contents begin.
    pub(super) begins: bool,
    /// The hidden type.
    pub(super) hidden: &'static str,
    /// The native input item that it is.
    pub(super) native: Option<String>,
}

impl Body {
    pub(super) fn new(box_type: &str, contents: impl Into<String>) -> Self {
        let (box_type, contents) = (box_type.to_owned(), contents.into());
        Self {
            box_type,
            contents,
            begins: false,
            hidden: "",
            native: None,
        }
    }

    pub(super) fn hidden(mut self, hidden: &'static str) -> Self {
        self.hidden = hidden;
        self
    }
}

/// What an application brings, told apart from all else by `mark`.
pub(super) fn brought(what: Brought, mark: &str) -> Body {
    match what {
        Brought::User => Body::new("User Message", format!("user {mark}")),
        Brought::System => Body::new("System Message", format!("system {mark}\n")),
        Brought::Odd => Body::new("Weather Report", format!("rain {mark}")),
        Brought::Image => {
            let url = format!("https://example.org/{mark}.png");
            let native = Some(format!(r#"{{"type":"image","url":"{url}"}}"#));
            let body = Body::new("User Attachment", "").hidden("turnkeep.input/image");
            Body { native, ..body }
        }
        Brought::Paper => Body::new("Tool Attachment", format!("paper {mark}")).hidden("app/paper"),
        Brought::ToolMessage => Body::new("Tool Message", format!("progress {mark}")),
        Brought::ToolResult => Body::new("Tool Result", format!("outcome {mark}")),
        Brought::Forbidden => Body::new("Agent Response", format!("never {mark}")),
        Brought::Untyped => Body::new("", format!("nothing {mark}")),
    }
}

/// The box of a call.
pub(super) fn call_box(sequence: u64, tool: &str, arguments: &str) -> Body {
    let contents = format!("call {sequence}: {tool} {arguments}");
    Body::new("Tool Call", contents).hidden("turnkeep.tool-call/1")
}

/// The text of a result: the same outcome of the same call is the same result.
pub(super) fn text_of(call: usize, outcome: Outcome) -> String {
    match outcome {
        Outcome::Ok | Outcome::Meta => format!("done {call}"),
        Outcome::Failed => format!("broken {call}"),
    }
}

/// The tool and the arguments of a preflight call.
pub(super) fn ahead(called: Called, sequence: u64) -> (String, String) {
    let tool = if called == Called::Fetch {
        "fetch"
    } else {
        "look"
    };
    (tool.to_owned(), format!(r#"{{"ahead":{sequence}}}"#))
}

/// What a call means.
#[derive(Clone, Debug)]
pub(super) enum Meaning {
    Call {
        tool: String,
        arguments: String,
        deferred: bool,
    },
    Malformed {
        tool: String,
        arguments: String,
        deferred: bool,
    },
    Message(String),
}

/// The tool and the arguments of a native call.
pub(super) fn native(called: Called, number: usize) -> (&'static str, String) {
    let (tool, arguments, _) = spoken(called, number);
    (tool, arguments)
}

/// What the model says natively, and what that means.
pub(super) fn spoken(called: Called, number: usize) -> (&'static str, String, Meaning) {
    let plain = format!(r#"{{"n":{number}}}"#);
    let wrapped = |name: &str| format!(r#"{{"arguments":{{"n":{number}}},"name":{name}}}"#);
    let (tool, arguments, inner, deferred) = match called {
        Called::Say => {
            let text = format!("told {number}");
            return (
                "say",
                format!(r#"{{"message":"{text}"}}"#),
                Meaning::Message(text),
            );
        }
        Called::Garbled => ("look", format!("[{number}]"), None, false),
        Called::Mangled => ("forward", wrapped("7"), None, true),
        Called::Mute => ("say", r#"{"message":""}"#.to_owned(), None, false),
        Called::Unknown => ("nowhere", plain, None, false),
        Called::Look => ("look", plain, Some("look"), false),
        Called::Hasty => ("hasty", plain, Some("hasty"), false),
        Called::Fetch => ("fetch", plain, Some("fetch"), true),
        Called::Await => ("await", plain, Some("await"), true),
        Called::Route => ("route", wrapped("\"inner\""), Some("inner"), false),
        Called::Forward => ("forward", wrapped("\"inner\""), Some("inner"), true),
    };
    let meaning = match inner {
        Some(inner) => {
            let arguments = format!(r#"{{"n":{number}}}"#);
            Meaning::Call {
                tool: inner.to_owned(),
                arguments,
                deferred,
            }
        }
        None => Meaning::Malformed {
            tool: tool.to_owned(),
            arguments: arguments.clone(),
            deferred,
        },
    };
    (tool, arguments, meaning)
}

/// Boxes as the input of a message: one text of sections, and behind it the native items. A box without contents has no section.
pub(super) fn render<'a>(
    boxes: impl Iterator<Item = (u64, &'a Body)>,
    marker: Option<u64>,
) -> Vec<String> {
    let (mut text, mut items) = (String::new(), Vec::new());
    let mut section = |head: String, contents: &str| {
        if !text.is_empty() && !text.ends_with('\n') {
            text.push('\n');
        }
        text += &head;
        text += contents;
    };
    let head = |id: u64, box_type: &str| format!("[Box {id} | {box_type}]\n");
    for (id, body) in boxes {
        let alone = marker.is_none() && body.box_type == "User Message";
        if !body.contents.is_empty() {
            let head = if alone {
                String::new()
            } else {
                head(id, &body.box_type)
            };
            section(head, &body.contents);
        }
        items.extend(body.native.clone());
    }
    if let Some(id) = marker {
        section(head(id, "Agent Response"), "");
    }
    let text = (!text.is_empty()).then(|| {
        let text = crate::sim::server::quoted(&text);
        format!(r#"{{"type":"text","text":{text}}}"#)
    });
    text.into_iter().chain(items).collect()
}
