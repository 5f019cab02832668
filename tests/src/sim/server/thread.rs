//! Threads as the server keeps them, and how they are written.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    fmt::Write as _,
    rc::Rc,
};

use super::{Conn, Part, script::Step};

/// A text as JSON.
pub(crate) fn quoted(text: &str) -> String {
    serde_json::to_string(text).expect("a text can be written")
}

pub(super) fn quoted_or_null(text: Option<&str>) -> String {
    text.map_or_else(|| "null".to_owned(), quoted)
}

#[derive(Clone, Debug)]
pub(super) struct Thread {
    pub(super) id: Rc<str>,
    pub(super) mark: Option<String>,
    /// The thread that it is a fork of.
    pub(super) forked_from: Option<Rc<str>>,
    pub(super) name: Option<String>,
    pub(super) cwd: String,
    pub(super) approval_policy: String,
    pub(super) tools: Vec<String>,
    pub(super) created: u64,
    /// Whether a file of it is there: after its first turn or its name.
    pub(super) stored: bool,
    pub(super) archived: bool,
    pub(super) turns: Vec<Turn>,
    /// What the model is given: texts of user messages, by their turn. A kill may leave one of a message that the history lacks.
    pub(super) context: Vec<(Rc<str>, String)>,
    /// Requests to the model so far.
    pub(super) requests: u64,
    /// The turn of the last usage.
    pub(super) usage_of: Option<Rc<str>>,
    pub(super) loaded: Option<Loaded>,
}

/// What the process that writes a thread has of it.
#[derive(Clone, Debug)]
pub(super) struct Loaded {
    pub(super) pid: u32,
    pub(super) subscribers: BTreeSet<Conn>,
    pub(super) active: Option<Active>,
    /// Whether its last turn failed: the status then is `systemError`.
    pub(super) broken: bool,
    /// The last turn that was interrupted in this process.
    pub(super) interrupted: Option<Rc<str>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
/// How a turn stands.
pub enum Status {
    /// It runs.
    InProgress,
    /// It is done.
    Completed,
    /// It was stopped, or its process was killed.
    Interrupted,
    /// The model failed.
    Failed,
}

impl Status {
    pub(crate) const fn word(self) -> &'static str {
        match self {
            Self::InProgress => "inProgress",
            Self::Completed => "completed",
            Self::Interrupted => "interrupted",
            Self::Failed => "failed",
        }
    }
}

/// A turn as the history has it.
#[derive(Clone, Debug)]
pub(super) struct Turn {
    pub(super) id: Rc<str>,
    pub(super) status: Status,
    pub(super) items: Vec<Item>,
    pub(super) started: u64,
    pub(super) completed: Option<u64>,
}

#[derive(Clone, Debug)]
pub(super) enum Item {
    User {
        id: String,
        client: Option<String>,
        text: String,
    },
    Agent {
        id: String,
        text: String,
        phase: Option<&'static str>,
    },
    Tool {
        id: String,
        tool: String,
        arguments: String,
        /// None while it is open; the contents and whether it worked.
        done: Option<(String, bool)>,
    },
    Command {
        id: String,
        status: &'static str,
    },
    Compaction {
        id: String,
    },
}

/// How far a turn that runs is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// Answered for; nothing of it is told or kept.
    Taken,
    /// Told; its message is not recorded.
    Begun,
    /// Its message stands in the history.
    Recorded,
}

/// A message that waits to be recorded.
#[derive(Clone, Debug)]
pub(super) struct Message {
    pub(super) client: Option<String>,
    pub(super) text: String,
}

/// A request of the server that waits for its answer.
#[derive(Clone, Debug)]
pub(super) struct Open {
    pub(super) request: u64,
    pub(super) method: &'static str,
    pub(super) params: String,
    pub(super) item: String,
}

/// A turn that runs.
#[derive(Clone, Debug)]
pub(super) struct Active {
    /// Tells one run of the turn's clockwork from another.
    pub(super) serial: u64,
    pub(super) turn: Rc<str>,
    pub(super) stage: Stage,
    /// The message that it begins with: none where it makes the history shorter.
    pub(super) first: Option<Message>,
    pub(super) steps: VecDeque<Step>,
    pub(super) pending: Vec<Message>,
    pub(super) open: BTreeMap<u64, Open>,
    pub(super) streaming: Option<(String, String, Option<&'static str>)>,
    /// An interrupt was taken; it is answered when the turn ends.
    pub(super) stopping: Vec<(Conn, String)>,
    pub(super) calls: u32,
}

impl Thread {
    pub(super) fn turn(&mut self, id: &str) -> Option<&mut Turn> {
        self.turns.iter_mut().rev().find(|turn| &*turn.id == id)
    }

    pub(super) fn active(&self) -> Option<&Active> {
        self.loaded.as_ref()?.active.as_ref()
    }

    /// Its status as a frame has it; `pid` is the process that tells it.
    pub(super) fn status(&self, pid: u32) -> String {
        let Some(loaded) = self.loaded.as_ref().filter(|loaded| loaded.pid == pid) else {
            return r#"{"type":"notLoaded"}"#.into();
        };
        match &loaded.active {
            Some(active) if active.stage != Stage::Taken => {
                let waits = |method| active.open.values().any(|open| open.method == method);
                let flag = if waits(super::APPROVAL) {
                    r#""waitingOnApproval""#
                } else if waits(super::USER_INPUT) {
                    r#""waitingOnUserInput""#
                } else {
                    ""
                };
                format!(r#"{{"type":"active","activeFlags":[{flag}]}}"#)
            }
            _ if loaded.broken => r#"{"type":"systemError"}"#.into(),
            _ => r#"{"type":"idle"}"#.into(),
        }
    }

    pub(super) fn json(&self, pid: u32, turns: Option<View>) -> String {
        let preview = self.turns.iter().flat_map(|turn| &turn.items);
        let preview = preview.filter_map(|item| match item {
            Item::User { text, .. } => Some(text.as_str()),
            _ => None,
        });
        let mut listed = String::new();
        if let Some(view) = turns {
            for turn in &self.turns {
                push(&mut listed, &turn.json(view));
            }
        }
        let seconds = self.created / 1_000_000;
        format!(
            r#"{{"id":"{id}","sessionId":"{id}","forkedFromId":{},"parentThreadId":null,"preview":{},"ephemeral":false,"modelProvider":"mock","model":"mock-model","createdAt":{seconds},"updatedAt":{seconds},"status":{},"path":"/codex-home/sessions/rollout-{id}.jsonl","cwd":{},"cliVersion":"0.0.0","source":"vscode","threadSource":{},"gitInfo":null,"name":{},"turns":[{listed}]}}"#,
            quoted_or_null(self.forked_from.as_deref()),
            quoted(preview.take(1).next().unwrap_or_default()),
            self.status(pid),
            quoted(&self.cwd),
            quoted_or_null(self.mark.as_deref()),
            quoted_or_null(self.name.as_deref()),
            id = self.id,
        )
    }
}

/// Which items of a turn are shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum View {
    NotLoaded,
    Summary,
    Full,
}

impl View {
    const fn word(self) -> &'static str {
        match self {
            Self::NotLoaded => "notLoaded",
            Self::Summary => "summary",
            Self::Full => "full",
        }
    }
}

/// The error of a turn that failed.
pub(super) const ERROR: &str = r#"{"message":"the model is out of room","codexErrorInfo":"contextWindowExceeded","additionalDetails":null}"#;

/// Adds an element to a JSON list that is written as text.
pub(super) fn push(list: &mut String, element: &str) {
    if !list.is_empty() {
        list.push(',');
    }
    list.push_str(element);
}

impl Turn {
    pub(super) fn json(&self, view: View) -> String {
        let mut items = String::new();
        match view {
            View::NotLoaded => {}
            // The first message, and the last one of the agent.
            View::Summary => {
                let user = self.items.iter().find(|i| matches!(i, Item::User { .. }));
                let mut agents = self.items.iter().rev();
                let agent = agents.find(|i| matches!(i, Item::Agent { .. }));
                for item in user.into_iter().chain(agent) {
                    push(&mut items, &item.json());
                }
            }
            View::Full => {
                for item in &self.items {
                    push(&mut items, &item.json());
                }
            }
        }
        let error = match self.status {
            Status::Failed => ERROR,
            Status::InProgress | Status::Completed | Status::Interrupted => "null",
        };
        let mut out = format!(
            r#"{{"id":"{id}","rootTurnId":"{id}","items":[{items}],"itemsView":"{}","status":"{}","error":{error},"startedAt":{},"completedAt":"#,
            view.word(),
            self.status.word(),
            self.started / 1_000_000,
            id = self.id,
        );
        match self.completed {
            Some(at) => {
                let span = at.saturating_sub(self.started) / 1_000;
                let _ = write!(out, r#"{},"durationMs":{span}}}"#, at / 1_000_000);
            }
            None => out.push_str(r#"null,"durationMs":null}"#),
        }
        out
    }

    /// What was said in it, in order.
    pub(super) fn parts(&self) -> Vec<Part> {
        let parts = self.items.iter().filter_map(|item| match item {
            Item::User { client, .. } => Some(Part::User(client.clone())),
            Item::Agent { text, phase, .. } => Some(Part::Agent {
                text: text.clone(),
                commentary: *phase == Some("commentary"),
            }),
            Item::Tool { .. } | Item::Command { .. } | Item::Compaction { .. } => None,
        });
        parts.collect()
    }

    /// The agent's last message, as the end of a turn carries it.
    pub(super) fn last_agent(&self) -> Option<String> {
        let mut items = self.items.iter().rev();
        let agent = items.find(|item| matches!(item, Item::Agent { .. }));
        agent.map(Item::json)
    }
}

impl Item {
    pub(super) fn json(&self) -> String {
        match self {
            Self::User { id, client, text } => format!(
                r#"{{"type":"userMessage","id":"{id}","clientId":{},"content":[{{"type":"text","text":{},"text_elements":[]}}]}}"#,
                quoted_or_null(client.as_deref()),
                quoted(text)
            ),
            Self::Agent { id, text, phase } => format!(
                r#"{{"type":"agentMessage","id":"{id}","text":{},"phase":{},"memoryCitation":null,"delivery":null,"questions":null}}"#,
                quoted(text),
                quoted_or_null(*phase),
            ),
            Self::Tool {
                id,
                tool,
                arguments,
                done,
            } => {
                let (status, items, success, took) = match done {
                    None => ("inProgress", "null", "null", "null"),
                    Some((items, true)) => ("completed", items.as_str(), "true", "1"),
                    Some((items, false)) => ("failed", items.as_str(), "false", "1"),
                };
                format!(
                    r#"{{"type":"dynamicToolCall","id":"{id}","namespace":null,"tool":"{tool}","arguments":{arguments},"status":"{status}","contentItems":{items},"success":{success},"durationMs":{took}}}"#
                )
            }
            Self::Compaction { id } => {
                format!(r#"{{"type":"contextCompaction","id":"{id}"}}"#)
            }
            Self::Command { id, status } => {
                let code = if *status == "completed" { "0" } else { "null" };
                format!(
                    r#"{{"type":"commandExecution","id":"{id}","command":"touch {id}","cwd":"/workspace","processId":null,"source":"agent","status":"{status}","commandActions":[],"aggregatedOutput":null,"exitCode":{code},"durationMs":null}}"#
                )
            }
        }
    }
}
