//! What a model has heard of a conversation: where each of its boxes stands in the input of a request.
//!
//! Every box needs a text of its own that stands in no other.

use std::collections::BTreeMap;

use serde_json::Value;
use turnkeep_core::{
    tools,
    transcript::{TranscriptBox, box_type},
};

use crate::model;

/// Checks that a request holds each box exactly once: those that we sent in texts of the user, under their own headers, those
/// that the model made in its own items, or, told to another thread, in such texts too. Of a call of a tool in `deferred` and of
/// its result our text counts, and it comes after the acknowledgement that the native call was given.
///
/// Returns what does not hold.
#[must_use]
pub fn faults(request: &Value, boxes: &[TranscriptBox], deferred: &[&str]) -> Vec<String> {
    let heard = Heard::of(request);
    let mut tools: BTreeMap<String, String> = BTreeMap::new();
    let mut faults = Vec::new();
    for of in boxes {
        let (kind, contents) = (of.body.box_type.as_str(), of.body.contents.as_str());
        if contents.is_empty() {
            continue;
        }
        let told = heard.told(contents);
        let header = format!("[Box {} | {kind}]\n", of.id);
        let headed = heard.told(&format!("{header}{contents}"));
        let has_header = kind != box_type::USER_MESSAGE || heard.told(&header) > 0;
        if told > 0 && has_header && (headed, heard.told(&header)) != (1, 1) {
            faults.push(format!("{header}stands {headed} times before its text"));
        }
        let (by_itself, needs_text) = match kind {
            box_type::AGENT_RESPONSE => (heard.said(contents), false),
            box_type::AGENT_MESSAGE => (heard.messages(contents), false),
            box_type::TOOL_CALL => {
                let Some(call) = CallText::read(contents) else {
                    faults.push(format!("no call: {contents:?}"));
                    continue;
                };
                tools.insert(call.number.to_owned(), call.tool.to_owned());
                if deferred.contains(&call.tool) {
                    faults.extend(heard.unacknowledged(&call, contents));
                    (0, true)
                } else {
                    (heard.calls(&call).len(), false)
                }
            }
            box_type::TOOL_RESULT => {
                let of = |tool: &String| deferred.contains(&tool.as_str());
                let is_deferred = number_of(contents)
                    .and_then(|n| tools.get(n))
                    .is_some_and(of);
                let text = contents.split_once('\n').map_or("", |(_, text)| text);
                match is_deferred {
                    true => (0, true),
                    false => (heard.outputs(text), false),
                }
            }
            _ => (0, true),
        };
        let count = if needs_text { told } else { told + by_itself };
        if count != 1 {
            faults.push(format!(
                "{header}{contents}\nstands {told} times in our texts and {by_itself} times in the model's own items"
            ));
        }
    }
    if !faults.is_empty() {
        faults.push(format!("the input was {:#?}", parts(request)));
    }
    faults
}

/// The parts of a request's input but those of developers, one line each, for a person.
#[must_use]
pub fn parts(request: &Value) -> Vec<String> {
    let parts = Heard::of(request).parts.into_iter();
    parts
        .map(|part| match part {
            Part::Told(text) => format!("told {text:?}"),
            Part::Said(text) => format!("said {text:?}"),
            Part::Call {
                id,
                tool,
                arguments,
            } => format!("called {tool} as {id} {arguments}"),
            Part::Output { id, text } => format!("{id} gave {text:?}"),
        })
        .collect()
}

/// The thread that a request belongs to.
#[must_use]
pub fn thread(request: &Value) -> &str {
    request["prompt_cache_key"].as_str().unwrap_or_default()
}

/// How often a text stands in what we told the model.
#[must_use]
pub fn told(request: &Value, text: &str) -> usize {
    Heard::of(request).told(text)
}

/// What a call box says: `call <number>: <tool> <arguments>`.
struct CallText<'a> {
    number: &'a str,
    tool: &'a str,
    arguments: Value,
}

impl<'a> CallText<'a> {
    fn read(contents: &'a str) -> Option<Self> {
        let (number, rest) = contents.strip_prefix("call ")?.split_once(": ")?;
        let (tool, arguments) = rest.split_once(' ')?;
        let arguments = serde_json::from_str(arguments).ok()?;
        Some(Self {
            number,
            tool,
            arguments,
        })
    }
}

/// The number in `result of call <number>: …`.
fn number_of(contents: &str) -> Option<&str> {
    let rest = contents.strip_prefix("result of call ")?;
    Some(rest.split_once(':')?.0)
}

/// The parts of a request's input, in order.
struct Heard<'a> {
    parts: Vec<Part<'a>>,
}

enum Part<'a> {
    Told(&'a str),
    Said(&'a str),
    Call {
        id: &'a str,
        tool: &'a str,
        arguments: Value,
    },
    Output {
        id: &'a str,
        text: String,
    },
}

impl<'a> Heard<'a> {
    fn of(request: &'a Value) -> Self {
        let mut outputs = model::call_outputs(request).into_iter();
        let mut parts = Vec::new();
        for item in request["input"].as_array().into_iter().flatten() {
            let text = |name: &str| item[name].as_str().unwrap_or_default();
            match (text("type"), text("role")) {
                ("function_call", _) => parts.push(Part::Call {
                    id: item["call_id"].as_str().unwrap_or_default(),
                    tool: item["name"].as_str().unwrap_or_default(),
                    arguments: serde_json::from_str(text("arguments")).unwrap_or(Value::Null),
                }),
                ("function_call_output", _) => {
                    let output = outputs.next();
                    parts.extend(output.map(|(id, text)| Part::Output { id, text }));
                }
                (_, role @ ("user" | "assistant")) => {
                    let content = item["content"].as_array().into_iter().flatten();
                    let texts = content.filter_map(|part| part["text"].as_str());
                    parts.extend(texts.map(|text| match role {
                        "user" => Part::Told(text),
                        _ => Part::Said(text),
                    }));
                }
                _ => {}
            }
        }
        Self { parts }
    }

    fn count(&self, mut wanted: impl FnMut(&Part<'a>) -> usize) -> usize {
        self.parts.iter().map(&mut wanted).sum()
    }

    fn told(&self, text: &str) -> usize {
        self.count(|part| match part {
            Part::Told(told) => told.matches(text).count(),
            _ => 0,
        })
    }

    fn said(&self, text: &str) -> usize {
        self.count(|part| match part {
            Part::Said(said) => said.matches(text).count(),
            _ => 0,
        })
    }

    fn messages(&self, text: &str) -> usize {
        self.count(|part| match part {
            Part::Call { arguments, .. } => usize::from(arguments["message"] == text),
            _ => 0,
        })
    }

    fn outputs(&self, wanted: &str) -> usize {
        self.count(|part| match part {
            Part::Output { text, .. } => usize::from(text == wanted),
            _ => 0,
        })
    }

    fn calls(&self, call: &CallText<'_>) -> Vec<&'a str> {
        let ids = self.parts.iter().filter_map(|part| match part {
            Part::Call {
                id,
                tool,
                arguments,
            } if *tool == call.tool && *arguments == call.arguments => Some(*id),
            _ => None,
        });
        ids.collect()
    }

    /// What is wrong with the acknowledgement of a deferred call. One that was made in another thread has none.
    fn unacknowledged(&self, call: &CallText<'_>, contents: &str) -> Option<String> {
        let ids = self.calls(call);
        let [id] = ids[..] else {
            return (!ids.is_empty()).then(|| format!("the model called {} times", ids.len()));
        };
        let is_output = |part: &Part<'_>| matches!(part, Part::Output { id: of, .. } if *of == id);
        let output = self.parts.iter().position(is_output)?;
        let Part::Output { text, .. } = &self.parts[output] else {
            return None;
        };
        if text != tools::DEFERRED {
            return Some(format!("call {} was given {text:?}", call.number));
        }
        let is_told = |part: &Part<'_>| matches!(part, Part::Told(told) if told.contains(contents));
        let at = self.parts.iter().position(is_told)?;
        (at < output).then(|| format!("{contents:?} comes before the output of its call"))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use turnkeep_core::{id::BoxId, transcript::BoxBody};

    use super::*;

    fn boxes(bodies: &[(&str, &str)]) -> Vec<TranscriptBox> {
        let ids = (1..).map(BoxId);
        let bodies = bodies.iter();
        ids.zip(bodies)
            .map(|(id, (kind, contents))| TranscriptBox {
                id,
                body: BoxBody::new(*kind, *contents),
            })
            .collect()
    }

    fn user(text: &str) -> Value {
        json!({ "type": "message", "role": "user", "content": [{ "type": "input_text", "text": text }] })
    }

    fn talk() -> (Vec<Value>, Vec<TranscriptBox>) {
        let items = vec![
            user("first word"),
            json!({ "type": "message", "role": "assistant", "content": [{ "type": "output_text", "text": "I look." }] }),
            json!({ "type": "function_call", "call_id": "c", "name": "later", "arguments": "{\"key\": 1}" }),
            json!({ "type": "function_call_output", "call_id": "c", "output": tools::DEFERRED }),
            user("[Box 3 | Tool Call]\ncall 1: later {\"key\":1}"),
            user("[Box 4 | Tool Result]\nresult of call 1: ok\nsun"),
        ];
        let boxes = boxes(&[
            (box_type::USER_MESSAGE, "first word"),
            (box_type::AGENT_RESPONSE, "I look."),
            (box_type::TOOL_CALL, "call 1: later {\"key\":1}"),
            (box_type::TOOL_RESULT, "result of call 1: ok\nsun"),
        ]);
        (items, boxes)
    }

    #[test]
    fn each_box_once_is_right() {
        let (items, boxes) = talk();
        let none: [&str; 0] = [];
        assert_eq!(faults(&json!({ "input": items }), &boxes, &["later"]), none);
    }

    #[test]
    fn a_box_too_few_or_too_many_is_found() {
        let (items, boxes) = talk();
        for at in [0, 1, 4, 5] {
            let mut twice = items.clone();
            twice.push(items[at].clone());
            let found = faults(&json!({ "input": twice }), &boxes, &["later"]);
            assert!(found.len() > 1, "{at}");
            let mut less = items.clone();
            less.remove(at);
            assert_ne!(
                faults(&json!({ "input": less }), &boxes, &["later"]),
                [""; 0],
                "{at}"
            );
        }
    }

    #[test]
    fn order_and_acknowledgement_are_checked() {
        let (items, boxes) = talk();
        let mut early = items.clone();
        early.swap(3, 4);
        assert_ne!(
            faults(&json!({ "input": early }), &boxes, &["later"]),
            [""; 0]
        );
        let mut other = items.clone();
        other[3]["output"] = "sun".into();
        assert_ne!(
            faults(&json!({ "input": other }), &boxes, &["later"]),
            [""; 0]
        );
        let mut unheaded = items;
        unheaded[5] = user("result of call 1: ok\nsun");
        assert_ne!(
            faults(&json!({ "input": unheaded }), &boxes, &["later"]),
            [""; 0]
        );
    }
}
