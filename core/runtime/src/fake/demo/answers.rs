//! The client's answers to what the server asked.

use serde_json::Value;

use super::Demo;
use super::frames::{self, quote};
use super::state::{Ask, Open, Thread};
use super::turns::remember;

impl Demo {
    /// A response to a request of ours. One that nobody waits for is ignored.
    pub(super) fn answered(&mut self, frame: &Value) {
        let Some(id) = frame["id"].as_u64() else {
            return;
        };
        let waits = |thread: &&mut Thread| {
            thread
                .active
                .as_ref()
                .and_then(|active| active.open.as_ref())
                .is_some_and(|open| open.id == id)
        };
        let Some(key) = self
            .threads
            .values_mut()
            .find(waits)
            .map(|thread| thread.id.clone())
        else {
            return;
        };
        let Some(mut thread) = self.threads.remove(&key) else {
            return;
        };
        if let Some(open) = thread.active.as_mut().and_then(|active| active.open.take()) {
            match open.ask {
                Ask::Call => self.call_answered(&mut thread, open, frame),
                Ask::Command => {
                    self.command_answered(&mut thread, open, &frame["result"]["decision"])
                }
                Ask::Question => self.question_answered(
                    &mut thread,
                    open,
                    &frame["result"]["answers"]["choice"]["answers"],
                ),
            }
        }
        if let Some(active) = &mut thread.active {
            active.due = self.now;
        }
        self.threads.insert(key, thread);
    }

    fn call_answered(&mut self, thread: &mut Thread, open: Open, frame: &Value) {
        let result = &frame["result"];
        let good = result["success"].as_bool().unwrap_or(false);
        let refused = r#"[{"type":"inputText","text":"dynamic tool request failed"}]"#;
        let content = match &result["contentItems"] {
            Value::Array(items) => content(items),
            _ => refused.to_owned(),
        };
        let texts = result["contentItems"]
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(|item| item["text"].as_str());
        let mut text = texts.collect::<Vec<_>>().join(" ");
        if !good {
            text = if text.is_empty() {
                "the tool gave no answer".to_owned()
            } else {
                format!("the tool failed ({text})")
            };
        }
        self.settle(
            thread,
            if good { "completed" } else { "failed" },
            &content,
            None,
        );
        remember(thread, open.label, text);
    }

    fn command_answered(&mut self, thread: &mut Thread, open: Open, decision: &Value) {
        self.resolved(thread, open.id);
        let accepted = matches!(decision.as_str(), Some("accept" | "acceptForSession"))
            || decision.is_object();
        if accepted {
            self.status(thread);
            self.run_command(thread, &open.label);
            return;
        }
        self.settle(thread, "declined", "[]", None);
        self.status(thread);
        if decision == "cancel" {
            self.usage(thread);
            thread.active = None;
            self.end(thread, "interrupted", None);
        } else {
            remember(thread, open.label, "you declined to run it".to_owned());
        }
    }

    fn question_answered(&mut self, thread: &mut Thread, open: Open, answers: &Value) {
        self.resolved(thread, open.id);
        self.status(thread);
        let said = answers
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(Value::as_str)
            .collect::<Vec<_>>()
            .join(", ");
        remember(
            thread,
            open.label,
            if said.is_empty() {
                "no answer".to_owned()
            } else {
                format!("you said {said}")
            },
        );
    }
}

/// Content items of an answer, in the recorded key order where they are text.
fn content(items: &[Value]) -> String {
    frames::list(items.iter().map(
        |item| match (item["type"].as_str(), item["text"].as_str()) {
            (Some("inputText"), Some(text)) => {
                format!(r#"{{"type":"inputText","text":{}}}"#, quote(text))
            }
            _ => item.to_string(),
        },
    ))
}
