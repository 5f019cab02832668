//! A turn, as a person sees it.

use std::{
    collections::{BTreeMap, BTreeSet},
    io,
};

use serde_json::Value;
use turnkeep_tokio::{
    Item, Outcome, Question, RawJson, TurnEnd, TurnEvent, TurnUpdate, Usage,
    core::{
        ItemId,
        event::{DeltaKind, QuestionClosedWhy, QuestionKind, Tokens, Warning},
    },
};

use crate::term::{ALERT, BAD, DIM, GOOD, NAME, Term, brief, paint, thousands, visible};

/// How many lines of a command's output are shown.
const OUTPUT_LINES: usize = 8;

/// What is known of the running turn.
pub(crate) struct View {
    /// Whether the server is a process of ours.
    is_ours: bool,
    items: BTreeMap<String, Item>,
    /// The messages whose text was shown while it came.
    streamed: BTreeSet<ItemId>,
    /// The message that is being shown.
    current: Option<ItemId>,
    pub(crate) usage: Option<Usage>,
    /// Whether anything of the answer was shown.
    shown: bool,
    /// Whether a question was declined because nobody could be asked.
    pub(crate) declined: bool,
}

impl View {
    pub(crate) fn new(is_ours: bool) -> Self {
        Self {
            is_ours,
            items: BTreeMap::new(),
            streamed: BTreeSet::new(),
            current: None,
            usage: None,
            shown: false,
            declined: false,
        }
    }

    /// Shows an event.
    pub(crate) fn show(&mut self, event: &TurnEvent, term: &mut Term) -> io::Result<()> {
        let update = match event {
            TurnEvent::Delta(delta) => {
                match delta.kind {
                    DeltaKind::Agent if term.live => {
                        if self.current.as_ref() != Some(&delta.item) {
                            term.end_line()?;
                            self.current = Some(delta.item.clone());
                            self.streamed.insert(delta.item.clone());
                        }
                        self.shown = true;
                        return term.stream(&delta.text);
                    }
                    DeltaKind::Agent => term.working("writing the answer"),
                    DeltaKind::Reasoning | DeltaKind::ReasoningSummary => term.working("thinking"),
                    DeltaKind::Plan => term.working("planning"),
                    _ => {}
                }
                return Ok(());
            }
            TurnEvent::Update(update) => update,
            _ => return Ok(()),
        };
        match update {
            TurnUpdate::Started { .. } => term.working("thinking"),
            TurnUpdate::Suspended { .. } => {
                let (told, doing) = match self.is_ours {
                    true => (
                        "the server is gone in the middle of the turn; another one is started",
                        "starting the server again",
                    ),
                    false => (
                        "the connection is gone in the middle of the turn; it is opened again",
                        "looking for the server again",
                    ),
                };
                term.note(paint(ALERT, told));
                term.working(doing);
            }
            TurnUpdate::Resumed => {
                term.note(paint(GOOD, "the turn goes on"));
                term.working("thinking");
            }
            TurnUpdate::Resent => {
                term.note(paint(
                    GOOD,
                    "the server had not recorded the message: it is sent again",
                ));
                self.shown = false;
                term.working("thinking");
            }
            TurnUpdate::ItemStarted(item) => self.started(item, term),
            TurnUpdate::ItemCompleted(item) => self.completed(item, term)?,
            TurnUpdate::Plan(plan) => show_plan(plan, term),
            TurnUpdate::ToolCall(call) => {
                let arguments = brief(call.arguments.get(), 200);
                term.note(format!(
                    "{} {arguments}",
                    paint(NAME, format!("⚒ {}", call.tool))
                ));
            }
            TurnUpdate::MalformedCall(call) => term.note(paint(
                ALERT,
                format!(
                    "malformed call of {}: {} at {}",
                    visible(&call.native_tool),
                    call.code,
                    call.path
                ),
            )),
            TurnUpdate::AgentMessage { text, .. } => term.note(visible(text)),
            TurnUpdate::QuestionDeclined(question) => {
                self.declined = true;
                term.note(format!(
                    "{} {}",
                    paint(ALERT, "declined, as stdin is no terminal:"),
                    in_short(question)
                ));
            }
            TurnUpdate::QuestionClosed { why, .. } => {
                term.note(paint(
                    ALERT,
                    format!("the question is settled: {}", closed(*why)),
                ));
            }
            TurnUpdate::Usage(usage) => self.usage = Some(*usage),
            TurnUpdate::Warning(warning) => show_warning(warning, term),
            TurnUpdate::Quiet { .. } => {
                term.note(paint(ALERT, "nothing was heard of the turn for a while"));
                term.working("waiting");
            }
            TurnUpdate::Ended(end) => self.ended(end, term)?,
            _ => {}
        }
        Ok(())
    }

    /// The changes that a question about files is about.
    pub(crate) fn changes(&self, item: Option<&str>) -> Vec<FileChange> {
        let Some(item) = item.and_then(|id| self.items.get(id)) else {
            return Vec::new();
        };
        file_changes(item)
    }

    fn started(&mut self, item: &Item, term: &mut Term) {
        let known = item.id.as_str().to_owned();
        match item.kind.as_str() {
            "userMessage" => return,
            "agentMessage" => term.working("writing"),
            "reasoning" => term.working("thinking"),
            "commandExecution" => {
                let command = field(item, "command");
                term.note(format!("{} {}", paint(NAME, "$"), indented(&command)));
                term.working(&format!("running {command}"));
            }
            "fileChange" => {
                for change in file_changes(item) {
                    term.note(format!("{} {}", paint(NAME, "✎"), change.title()));
                }
            }
            "mcpToolCall" => {
                let tool = format!("⚒ {}.{}", field(item, "server"), field(item, "tool"));
                term.note(paint(NAME, visible(&tool)));
                term.working(&tool);
            }
            "webSearch" => {
                let query = field(item, "query");
                term.note(format!(
                    "{} {}",
                    paint(NAME, "⌕ search"),
                    brief(&query, 120)
                ));
            }
            // Told when they are complete, or as calls.
            "plan" | "dynamicToolCall" => {}
            other => term.working(other),
        }
        self.items.insert(known, item.clone());
    }

    fn completed(&mut self, item: &Item, term: &mut Term) -> io::Result<()> {
        self.items.remove(item.id.as_str());
        match item.kind.as_str() {
            "agentMessage" if term.live => {
                // The whole message counts; it is only shown where nothing of it was.
                if !self.streamed.remove(&item.id) {
                    self.shown = true;
                    term.stream(item.text.as_deref().unwrap_or_default())?;
                }
                self.current = None;
                term.end_line()?;
                term.working("thinking");
            }
            "commandExecution" => {
                show_output(&field(item, "aggregatedOutput"), term);
                let status = field(item, "status");
                match (field(item, "exitCode").as_str(), status.as_str()) {
                    (_, "declined") => term.note(paint(ALERT, "  declined, it did not run")),
                    ("0", _) => {}
                    ("", "completed") => {}
                    ("", _) => term.note(paint(BAD, format!("  {}", visible(&status)))),
                    (code, _) => term.note(paint(BAD, format!("  exit code {}", visible(code)))),
                }
                term.working("thinking");
            }
            "fileChange" => match field(item, "status").as_str() {
                "completed" => term.working("thinking"),
                status => term.note(paint(ALERT, format!("  {}", visible(status)))),
            },
            "plan" => {
                if let Some(text) = &item.text {
                    term.note(visible(text));
                }
            }
            _ => {}
        }
        Ok(())
    }

    fn ended(&mut self, end: &TurnEnd, term: &mut Term) -> io::Result<()> {
        term.rest();
        term.end_line()?;
        if let Some(usage) = end.usage {
            self.usage = Some(usage);
        }
        // A turn that an earlier run began, or that ended while nobody listened, shows it only here.
        if !term.live || !self.shown {
            let text = match &end.outcome {
                Outcome::Completed { text, .. } => text.as_ref().or(end.candidate.as_ref()),
                _ => end.text.as_ref(),
            };
            if let Some(text) = text {
                term.answer(text)?;
            }
        }
        Ok(())
    }
}

/// What was used, in one line.
pub(crate) fn tokens(tokens: &Tokens) -> String {
    format!(
        "{} tokens in ({} cached), {} out ({} reasoning)",
        thousands(tokens.input_tokens),
        thousands(tokens.cached_input_tokens),
        thousands(tokens.output_tokens),
        thousands(tokens.reasoning_output_tokens),
    )
}

/// A change of one file.
#[derive(Debug)]
pub(crate) struct FileChange {
    pub(crate) kind: String,
    pub(crate) path: String,
    pub(crate) diff: String,
}

impl FileChange {
    fn title(&self) -> String {
        format!("{} {}", visible(&self.kind), visible(&self.path))
    }

    /// The title and the whole difference, coloured.
    pub(crate) fn in_full(&self) -> Vec<String> {
        let diff = self.diff.lines().map(|line| {
            let text = visible(line);
            match line.as_bytes().first() {
                Some(b'+') => paint(GOOD, text),
                Some(b'-') => paint(BAD, text),
                _ => text,
            }
        });
        std::iter::once(self.title()).chain(diff).collect()
    }
}

fn file_changes(item: &Item) -> Vec<FileChange> {
    let Ok(raw) = item.raw.read::<Value>() else {
        return Vec::new();
    };
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let changes = raw["changes"].as_array().into_iter().flatten();
    changes
        .map(|change| FileChange {
            kind: match &change["kind"] {
                Value::String(kind) => kind.clone(),
                kind => text(&kind["type"]),
            },
            path: text(&change["path"]),
            diff: text(&change["diff"]),
        })
        .collect()
}

/// A member of an item as text, empty where there is none.
fn field(item: &Item, name: &str) -> String {
    match item.raw.read::<Value>().map(|mut raw| raw[name].take()) {
        Ok(Value::String(text)) => text,
        Ok(Value::Null) | Err(_) => String::new(),
        Ok(other) => other.to_string(),
    }
}

fn indented(text: &str) -> String {
    visible(text).replace('\n', "\n  ")
}

fn show_output(output: &str, term: &mut Term) {
    let lines: Vec<&str> = output.lines().collect();
    let hidden = lines.len().saturating_sub(OUTPUT_LINES);
    if hidden > 0 {
        term.note(paint(DIM, format!("  … {hidden} lines before")));
    }
    for line in &lines[hidden..] {
        term.note(paint(DIM, format!("  {}", visible(line))));
    }
}

fn show_plan(plan: &RawJson, term: &mut Term) {
    let Ok(plan) = plan.read::<Value>() else {
        return;
    };
    let steps = plan["plan"].as_array().or(plan.as_array());
    for step in steps.into_iter().flatten() {
        let mark = match step["status"].as_str() {
            Some("completed") => "✓",
            Some("inProgress" | "in_progress") => "▸",
            _ => "·",
        };
        let text = step["step"].as_str().unwrap_or_default();
        term.note(paint(DIM, format!("  {mark} {}", visible(text))));
    }
    term.working("thinking");
}

fn show_warning(warning: &Warning, term: &mut Term) {
    match warning {
        Warning::Retry(failure) => {
            let details = failure.details.as_deref().unwrap_or_default();
            let colon = if details.is_empty() { "" } else { ": " };
            term.note(paint(
                ALERT,
                format!("{}{colon}{}", visible(&failure.message), visible(details)),
            ));
            term.working("codex tries again; Ctrl-C gives up");
        }
        Warning::Server { message, .. } => {
            term.note(format!("{} {}", paint(ALERT, "warning:"), visible(message)));
        }
        Warning::Rerouted { from, to } => term.note(paint(
            ALERT,
            format!(
                "the model was exchanged: {} answers for {}",
                visible(to),
                visible(from)
            ),
        )),
        Warning::Error(failure) => term.note(paint(ALERT, visible(&failure.message))),
        _ => {}
    }
}

/// What a question is about, in one line.
pub(crate) fn in_short(question: &Question) -> String {
    match &question.kind {
        QuestionKind::Command { command, .. } => {
            format!(
                "run {}",
                brief(command.as_deref().unwrap_or("a command"), 160)
            )
        }
        QuestionKind::FileChange { .. } => "change files".into(),
        QuestionKind::Permissions { permissions, .. } => {
            format!("permit {}", brief(permissions.get(), 160))
        }
        QuestionKind::UserInput { questions } => {
            let texts: Vec<_> = questions.iter().map(|q| brief(&q.question, 160)).collect();
            texts.join(" ")
        }
        QuestionKind::Form { message, .. } => brief(message, 160),
        _ => "a question".into(),
    }
}

fn closed(why: QuestionClosedWhy) -> &'static str {
    match why {
        QuestionClosedWhy::Resolved => "codex takes no answer any more",
        QuestionClosedWhy::AutoResolved => "its time is over",
        QuestionClosedWhy::TurnEnded => "the turn has ended",
        QuestionClosedWhy::ConnectionEnded => "the server is gone",
        _ => "nobody waits for an answer",
    }
}
