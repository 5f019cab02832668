//! What the demo server holds: threads, turns, items, and the turn in progress.

use std::collections::VecDeque;

use serde_json::Value;

use super::frames::{self, frame, quote, wall};

#[derive(Clone, Debug)]
pub(super) struct Thread {
    pub(super) id: String,
    pub(super) cwd: String,
    pub(super) model: String,
    pub(super) policy: String,
    pub(super) sandbox: String,
    pub(super) tools: Vec<Tool>,
    pub(super) ephemeral: bool,
    pub(super) name: Option<String>,
    /// `threadSource`, as JSON.
    pub(super) mark: String,
    pub(super) preview: String,
    pub(super) created: u64,
    pub(super) updated: u64,
    pub(super) turns: Vec<Turn>,
    pub(super) input_tokens: u64,
    pub(super) output_tokens: u64,
    /// The last `thread/tokenUsage/updated`, which a resume repeats.
    pub(super) last_usage: Option<String>,
    pub(super) subscribed: bool,
    pub(super) active: Option<Active>,
}

impl Thread {
    pub(super) fn status(&self) -> String {
        match &self.active {
            None => r#"{"type":"idle"}"#.to_owned(),
            Some(active) => match active.open.as_ref().map(|open| &open.ask) {
                Some(Ask::Command) => {
                    r#"{"type":"active","activeFlags":["waitingOnApproval"]}"#.to_owned()
                }
                Some(Ask::Question) => {
                    r#"{"type":"active","activeFlags":["waitingOnUserInput"]}"#.to_owned()
                }
                _ => r#"{"type":"active","activeFlags":[]}"#.to_owned(),
            },
        }
    }

    /// Only a thread with a turn or a name is stored.
    pub(super) fn is_stored(&self) -> bool {
        !self.ephemeral
            && (self.name.is_some() || self.turns.iter().any(|turn| !turn.items.is_empty()))
    }
}

#[derive(Clone, Debug)]
pub(super) struct Tool {
    pub(super) name: String,
    /// The first property of the input schema, where the demo puts what it found in the text.
    pub(super) property: String,
}

#[derive(Clone, Debug)]
pub(super) struct Turn {
    pub(super) id: String,
    pub(super) status: &'static str,
    pub(super) error: Option<String>,
    pub(super) started: Option<u64>,
    pub(super) completed: Option<u64>,
    pub(super) items: Vec<Item>,
}

/// How much of a turn is shown.
#[derive(Clone, Copy, Debug)]
pub(super) enum View {
    None,
    /// `turn/completed`: the last answer.
    End,
    Summary,
    Full,
}

#[derive(Clone, Debug)]
pub(super) struct Item {
    pub(super) id: String,
    pub(super) started: u64,
    pub(super) completed: Option<u64>,
    pub(super) kind: Kind,
}

#[derive(Clone, Debug)]
pub(super) enum Kind {
    User {
        client_id: Option<String>,
        content: String,
    },
    Answer {
        text: String,
    },
    Call {
        tool: String,
        arguments: String,
        status: &'static str,
        content: String,
        success: &'static str,
    },
    Command {
        command: String,
        status: &'static str,
        output: Option<String>,
    },
}

impl Item {
    pub(super) fn is_answer(&self) -> bool {
        matches!(self.kind, Kind::Answer { .. })
    }

    pub(super) fn is_user(&self) -> bool {
        matches!(self.kind, Kind::User { .. })
    }

    /// As it is told at its start, or at its end.
    pub(super) fn json(&self, ended: bool) -> String {
        let at = wall(self.started).to_string();
        let end = if ended {
            frames::or_null(self.completed.map(wall))
        } else {
            "null".to_owned()
        };
        let duration = if ended {
            frames::or_null(self.completed.map(|end| end.saturating_sub(self.started)))
        } else {
            "null".to_owned()
        };
        let common = [
            ("id", quote(&self.id)),
            ("at", at),
            ("end", end),
            ("duration", duration),
        ];
        let (template, own) = match &self.kind {
            Kind::User { client_id, content } => (
                r#"{"type":"userMessage","id":"$id","clientId":"$client","content":"$content","startedAtMs":"$at","completedAtMs":"$end"}"#,
                vec![
                    (
                        "client",
                        client_id
                            .as_deref()
                            .map_or_else(|| "null".to_owned(), quote),
                    ),
                    ("content", content.clone()),
                ],
            ),
            Kind::Answer { text } => (
                r#"{"type":"agentMessage","moderation":null,"id":"$id","text":"$text","phase":null,"memoryCitation":null,"delivery":null,"questions":null,"startedAtMs":"$at","completedAtMs":"$end"}"#,
                vec![("text", quote(if ended { text } else { "" }))],
            ),
            Kind::Call {
                tool,
                arguments,
                status,
                content,
                success,
            } => (
                r#"{"type":"dynamicToolCall","id":"$id","namespace":null,"tool":"$tool","arguments":"$arguments","status":"$status","contentItems":"$content","success":"$success","durationMs":"$duration","startedAtMs":"$at","completedAtMs":"$end"}"#,
                vec![
                    ("tool", quote(tool)),
                    ("arguments", arguments.clone()),
                    ("status", quote(if ended { status } else { "inProgress" })),
                    (
                        "content",
                        if ended {
                            content.clone()
                        } else {
                            "null".to_owned()
                        },
                    ),
                    ("success", if ended { *success } else { "null" }.to_owned()),
                ],
            ),
            Kind::Command {
                command,
                status,
                output,
            } => {
                let ran = ended && *status == "completed";
                let optional = |on: bool, value: String| if on { value } else { "null".to_owned() };
                (
                    r#"{"type":"commandExecution","id":"$id","pluginId":null,"scriptPath":null,"command":"$command","cwd":"$cwd","processId":"$process","source":"$source","status":"$status","commandActions":[{"type":"unknown","command":"$bare"}],"aggregatedOutput":"$output","exitCode":"$exit","durationMs":"$ran","startedAtMs":"$at","completedAtMs":"$end"}"#,
                    vec![
                        ("command", quote(&shell(command))),
                        ("bare", quote(command)),
                        ("cwd", quote("/workspace")),
                        ("process", optional(ran, quote("4242"))),
                        (
                            "source",
                            quote(if ran { "unifiedExecStartup" } else { "agent" }),
                        ),
                        ("status", quote(if ended { status } else { "inProgress" })),
                        (
                            "output",
                            optional(
                                ran,
                                output.as_deref().map_or_else(|| "null".to_owned(), quote),
                            ),
                        ),
                        ("exit", optional(ran, "0".to_owned())),
                        ("ran", optional(ran, common[3].1.clone())),
                    ],
                )
            }
        };
        let values: Vec<(&str, &str)> = common
            .iter()
            .chain(&own)
            .map(|(name, value)| (*name, value.as_str()))
            .collect();
        frame(template, &values)
    }
}

pub(super) fn shell(command: &str) -> String {
    format!("/bin/bash -lc '{command}'")
}

/// A turn in progress.
#[derive(Clone, Debug)]
pub(super) struct Active {
    pub(super) steps: VecDeque<Step>,
    pub(super) due: u64,
    /// What the user said and no item shows yet.
    pub(super) pending: Vec<Input>,
    /// What the user said and the model has not answered yet.
    pub(super) unread: String,
    pub(super) schema: Option<Value>,
    /// The request that must be answered before the turn goes on.
    pub(super) open: Option<Open>,
    /// The answer being streamed is the last item of the turn.
    pub(super) streaming: bool,
    /// Label and text of what tools, commands and people said.
    pub(super) results: Vec<(String, String)>,
}

#[derive(Clone, Debug)]
pub(super) struct Input {
    pub(super) text: String,
    pub(super) content: String,
    pub(super) client_id: Option<String>,
}

#[derive(Clone, Debug)]
pub(super) struct Open {
    pub(super) id: u64,
    pub(super) ask: Ask,
    pub(super) label: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ask {
    Call,
    Command,
    Question,
}

#[derive(Clone, Debug)]
pub(super) enum Step {
    Begin,
    Users,
    Think,
    Call {
        tool: String,
        arguments: String,
        label: String,
    },
    Command(String),
    Question(String),
    Say,
    Open,
    Delta(String),
    Close,
    Usage,
    Fail,
    Finish,
}
