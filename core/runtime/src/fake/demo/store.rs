//! What the demo server keeps for its next process: threads with their turns, as the real one has them after a kill.

use serde_json::{Value, json};

use super::{
    Demo,
    state::{Item, Kind, Thread, Tool, Turn},
};

impl Demo {
    /// A server that goes on from what [`kept`](Self::kept) gave in an earlier process, and says what is to be kept of it. What is
    /// no such text is nothing.
    #[must_use]
    pub fn keeping(mut self, kept: &str) -> Self {
        let kept: Value = serde_json::from_str(kept).unwrap_or_default();
        let number = |name: &str| kept[name].as_u64().unwrap_or_default();
        (self.ids, self.asked, self.calls) = (number("ids"), number("asked"), number("calls"));
        let threads = kept["threads"].as_array().into_iter().flatten();
        self.stored = threads
            .map(thread)
            .map(|thread| (thread.id.clone(), thread))
            .collect();
        self.keeps = Some(self.kept());
        self
    }

    /// What is to be kept.
    #[must_use]
    pub fn kept(&self) -> String {
        let threads = self.threads.values().chain(self.stored.values());
        let threads: Vec<Value> = threads
            .filter(|thread| thread.is_stored())
            .map(keep)
            .collect();
        json!({
            "ids": self.ids,
            "asked": self.asked,
            "calls": self.calls,
            "threads": threads,
        })
        .to_string()
    }
}

fn keep(thread: &Thread) -> Value {
    json!({
        "id": thread.id,
        "cwd": thread.cwd,
        "model": thread.model,
        "policy": thread.policy,
        "sandbox": thread.sandbox,
        "tools": thread.tools.iter().map(|t| json!([t.name, t.property])).collect::<Vec<_>>(),
        "name": thread.name,
        "mark": thread.mark,
        "preview": thread.preview,
        "created": thread.created,
        "updated": thread.updated,
        "input": thread.input_tokens,
        "output": thread.output_tokens,
        "usage": thread.last_usage,
        "turns": thread.turns.iter().map(keep_turn).collect::<Vec<_>>(),
    })
}

/// Of what is not complete nothing is kept.
fn keep_turn(turn: &Turn) -> Value {
    let items = turn.items.iter().filter(|item| item.completed.is_some());
    json!({
        "id": turn.id,
        "status": turn.status,
        "error": turn.error,
        "started": turn.started,
        "completed": turn.completed,
        "items": items.map(keep_item).collect::<Vec<_>>(),
    })
}

fn keep_item(item: &Item) -> Value {
    let kind = match &item.kind {
        Kind::User { client_id, content } => json!({ "client": client_id, "content": content }),
        Kind::Answer { text } => json!({ "text": text }),
        Kind::Call {
            tool,
            arguments,
            status,
            content,
            success,
        } => json!({
            "tool": tool, "arguments": arguments, "status": status, "content": content, "success": success,
        }),
        Kind::Command {
            command,
            status,
            output,
        } => json!({ "command": command, "status": status, "output": output }),
    };
    json!({ "id": item.id, "started": item.started, "completed": item.completed, "kind": kind })
}

fn thread(kept: &Value) -> Thread {
    let number = |name: &str| kept[name].as_u64().unwrap_or_default();
    Thread {
        id: text(&kept["id"]),
        cwd: text(&kept["cwd"]),
        model: text(&kept["model"]),
        policy: text(&kept["policy"]),
        sandbox: text(&kept["sandbox"]),
        tools: list(&kept["tools"], |tool| Tool {
            name: text(&tool[0]),
            property: text(&tool[1]),
        }),
        ephemeral: false,
        name: optional(&kept["name"]),
        mark: text(&kept["mark"]),
        preview: text(&kept["preview"]),
        created: number("created"),
        updated: number("updated"),
        turns: list(&kept["turns"], turn),
        input_tokens: number("input"),
        output_tokens: number("output"),
        last_usage: optional(&kept["usage"]),
        subscribed: false,
        active: None,
    }
}

fn turn(kept: &Value) -> Turn {
    Turn {
        id: text(&kept["id"]),
        // A turn that ran when the process ended is interrupted.
        status: match word(&kept["status"]) {
            "inProgress" => "interrupted",
            status => status,
        },
        error: optional(&kept["error"]),
        started: kept["started"].as_u64(),
        completed: kept["completed"].as_u64(),
        items: list(&kept["items"], item),
    }
}

fn item(kept: &Value) -> Item {
    let kind = &kept["kind"];
    Item {
        id: text(&kept["id"]),
        started: kept["started"].as_u64().unwrap_or_default(),
        completed: kept["completed"].as_u64(),
        kind: if kind["command"].is_string() {
            Kind::Command {
                command: text(&kind["command"]),
                status: word(&kind["status"]),
                output: optional(&kind["output"]),
            }
        } else if kind["tool"].is_string() {
            Kind::Call {
                tool: text(&kind["tool"]),
                arguments: text(&kind["arguments"]),
                status: word(&kind["status"]),
                content: text(&kind["content"]),
                success: word(&kind["success"]),
            }
        } else if kind["text"].is_string() {
            Kind::Answer {
                text: text(&kind["text"]),
            }
        } else {
            Kind::User {
                client_id: optional(&kind["client"]),
                content: text(&kind["content"]),
            }
        },
    }
}

fn list<T>(kept: &Value, make: impl Fn(&Value) -> T) -> Vec<T> {
    kept.as_array().into_iter().flatten().map(make).collect()
}

fn text(kept: &Value) -> String {
    kept.as_str().unwrap_or_default().to_owned()
}

fn optional(kept: &Value) -> Option<String> {
    kept.as_str().map(str::to_owned)
}

fn word(kept: &Value) -> &'static str {
    const WORDS: [&str; 7] = [
        "inProgress",
        "completed",
        "interrupted",
        "failed",
        "declined",
        "true",
        "false",
    ];
    let kept = kept.as_str().unwrap_or_default();
    WORDS
        .into_iter()
        .find(|word| *word == kept)
        .unwrap_or("null")
}
