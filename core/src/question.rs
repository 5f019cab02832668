//! What the server asks, and how it is answered: negatively, unless the application says otherwise.

use alloc::{
    borrow::ToOwned,
    collections::BTreeSet,
    format,
    string::{String, ToString},
    vec::Vec,
};
use core::{ops::Range, time::Duration};

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::{
    RawJson,
    command::Answer,
    effect::{SECRET_PLACEHOLDER, redact},
    error::{Change, InvalidTransition},
    event::{Question, QuestionKind, UserQuestion},
    id::{ConversationId, QuestionId, TurnNo},
    json::{JsonKind, Members, write_string},
};

/// What a question is known by: not by its request id, which a new connection may use again.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct QuestionAsked {
    /// The conversation.
    pub conversation: ConversationId,
    /// The turn.
    pub turn: Option<TurnNo>,
    /// The thread of the sub-agent that asks, where it is not the conversation's own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub thread: Option<crate::id::ThreadId>,
    /// The server's name for the sub-agent's turn.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub native: Option<String>,
    /// The method that it came by.
    pub method: String,
    /// The item that it is about.
    pub item: Option<String>,
    /// The approval within the item.
    pub approval: Option<String>,
}

/// The durable state of a question.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "snake_case")]
pub enum QuestionState {
    /// It waits for an answer.
    Pending,
    /// An answer is recorded and perhaps written.
    Ambiguous {
        /// The result, as it is sent.
        result: RawJson,
    },
    /// The answer arrived.
    Accepted,
    /// It was withdrawn unanswered.
    Cancelled,
}

/// A change of a question.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum QuestionChange {
    /// It was answered.
    Answered(RawJson),
    /// The server retired it, or its turn ended.
    Settled,
}

impl QuestionState {
    /// The state's name.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Pending => "Pending",
            Self::Ambiguous { .. } => "Ambiguous",
            Self::Accepted => "Accepted",
            Self::Cancelled => "Cancelled",
        }
    }

    /// Takes a change. Unchanged on error.
    ///
    /// # Errors
    ///
    /// The question has an answer, and it is another one; or it is settled.
    pub fn on(&mut self, change: &QuestionChange) -> Result<Change, InvalidTransition> {
        let next = match (&*self, change) {
            (Self::Pending, QuestionChange::Answered(result)) => Self::Ambiguous {
                result: result.clone(),
            },
            (Self::Ambiguous { result: had }, QuestionChange::Answered(result))
                if had == result =>
            {
                return Ok(Change::NoOp);
            }
            (Self::Pending, QuestionChange::Settled) => Self::Cancelled,
            (Self::Ambiguous { .. }, QuestionChange::Settled) => Self::Accepted,
            (Self::Accepted | Self::Cancelled, QuestionChange::Settled) => {
                return Ok(Change::NoOp);
            }
            (
                Self::Ambiguous { .. } | Self::Accepted | Self::Cancelled,
                QuestionChange::Answered(_),
            ) => {
                return Err(InvalidTransition {
                    machine: "question",
                    state: self.name(),
                    event: "answered",
                });
            }
        };
        *self = next;
        Ok(Change::Applied)
    }
}

/// What a request of the server asks, before it has a number.
#[derive(Debug)]
pub(crate) struct Parsed {
    pub(crate) thread: String,
    pub(crate) turn: Option<String>,
    pub(crate) item: Option<String>,
    pub(crate) approval: Option<String>,
    pub(crate) kind: QuestionKind,
    pub(crate) dismissable: bool,
    pub(crate) auto_resolution: Option<Duration>,
}

/// Why a request is no question of ours.
#[derive(Debug)]
pub(crate) enum NotAQuestion {
    /// The method is none of these.
    Unknown,
    /// An elicitation that is no form.
    UnknownMode,
    /// The parameters do not have the method's shape.
    BadParams(String),
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Params<'a> {
    thread_id: String,
    turn_id: Option<String>,
    item_id: Option<String>,
    approval_id: Option<String>,
    command: Option<String>,
    cwd: Option<String>,
    reason: Option<String>,
    grant_root: Option<String>,
    #[serde(borrow, default)]
    available_decisions: Option<Vec<&'a RawValue>>,
    #[serde(borrow, default)]
    permissions: Option<&'a RawValue>,
    #[serde(default)]
    questions: Vec<WireQuestion>,
    auto_resolution_ms: Option<u64>,
    server_name: Option<String>,
    mode: Option<String>,
    message: Option<String>,
    #[serde(borrow, default)]
    requested_schema: Option<&'a RawValue>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct WireQuestion {
    id: String,
    #[serde(default)]
    header: String,
    question: String,
    #[serde(default)]
    is_secret: bool,
    options: Option<Vec<WireOption>>,
}

#[derive(Deserialize)]
struct WireOption {
    label: String,
}

/// Whether a method of the server asks a question that an application can answer.
pub(crate) fn is_question(method: &str) -> bool {
    matches!(
        method,
        "item/commandExecution/requestApproval"
            | "item/fileChange/requestApproval"
            | "item/permissions/requestApproval"
            | "item/tool/requestUserInput"
            | "mcpServer/elicitation/request"
    )
}

/// Reads the parameters of a server request.
pub(crate) fn parse(method: &str, params: &str) -> Result<Parsed, NotAQuestion> {
    if !is_question(method) {
        return Err(NotAQuestion::Unknown);
    }
    let p: Params<'_> =
        crate::json::from_object(params).map_err(|e| NotAQuestion::BadParams(e.to_string()))?;
    let missing = |field: &str| NotAQuestion::BadParams(format!("{field} is missing"));
    let (kind, dismissable) = match method {
        "item/commandExecution/requestApproval" => {
            let decisions: Vec<RawJson> = p
                .available_decisions
                // Servers that offer no list take the four plain decisions.
                .map_or_else(plain_decisions, |d| {
                    d.into_iter().map(RawJson::borrowed).collect()
                });
            let dismissable = offers(&decisions, "cancel");
            let kind = QuestionKind::Command {
                command: p.command,
                cwd: p.cwd,
                reason: p.reason,
                decisions,
            };
            (kind, dismissable)
        }
        "item/fileChange/requestApproval" => (
            QuestionKind::FileChange {
                reason: p.reason,
                grant_root: p.grant_root,
            },
            true,
        ),
        "item/permissions/requestApproval" => {
            let permissions =
                RawJson::borrowed(p.permissions.ok_or_else(|| missing("permissions"))?);
            (
                QuestionKind::Permissions {
                    reason: p.reason,
                    permissions,
                },
                false,
            )
        }
        "item/tool/requestUserInput" => {
            let mut ids = BTreeSet::new();
            if p.questions.is_empty() {
                return Err(missing("questions"));
            }
            if let Some(twice) = p.questions.iter().find(|q| !ids.insert(q.id.clone())) {
                return Err(NotAQuestion::BadParams(format!(
                    "question id {:?} stands twice",
                    twice.id
                )));
            }
            let questions = p
                .questions
                .into_iter()
                .map(|q| UserQuestion {
                    id: q.id,
                    header: q.header,
                    question: q.question,
                    options: q
                        .options
                        .unwrap_or_default()
                        .into_iter()
                        .map(|o| o.label)
                        .collect(),
                    secret: q.is_secret,
                })
                .collect();
            (QuestionKind::UserInput { questions }, false)
        }
        _ => {
            let mode = p.mode.ok_or_else(|| missing("mode"))?;
            if mode != "form" {
                return Err(NotAQuestion::UnknownMode);
            }
            let kind = QuestionKind::Form {
                server: p.server_name.ok_or_else(|| missing("serverName"))?,
                message: p.message.unwrap_or_default(),
                schema: RawJson::borrowed(
                    p.requested_schema
                        .ok_or_else(|| missing("requestedSchema"))?,
                ),
            };
            (kind, true)
        }
    };
    Ok(Parsed {
        thread: p.thread_id,
        turn: p.turn_id,
        item: p.item_id,
        approval: p.approval_id,
        kind,
        dismissable,
        auto_resolution: p.auto_resolution_ms.map(Duration::from_millis),
    })
}

impl Parsed {
    /// The question under its number.
    pub(crate) fn numbered(self, id: QuestionId, raw: RawJson) -> Question {
        Question {
            id,
            item: self.item,
            approval: self.approval,
            kind: self.kind,
            dismissable: self.dismissable,
            auto_resolution: self.auto_resolution,
            raw,
        }
    }
}

fn plain_decisions() -> Vec<RawJson> {
    ["accept", "acceptForSession", "decline", "cancel"]
        .iter()
        .map(|d| text(d))
        .collect()
}

fn text(word: &str) -> RawJson {
    RawJson::of(word).expect("a text can be written as JSON")
}

fn json(text: &str) -> RawJson {
    RawJson::parse(text).expect("a result is built from valid parts")
}

fn offers(decisions: &[RawJson], word: &str) -> bool {
    decisions
        .iter()
        .any(|d| d.read::<String>().is_ok_and(|d| d == word))
}

fn decision(word: &str) -> RawJson {
    json(&format!(r#"{{"decision":"{word}"}}"#))
}

/// The negative answer, chosen from what was offered; `None` where none was.
pub(crate) fn negative(kind: &QuestionKind) -> Option<RawJson> {
    match kind {
        QuestionKind::Command { decisions, .. } => ["decline", "cancel"]
            .into_iter()
            .find(|word| offers(decisions, word))
            .map(decision),
        QuestionKind::FileChange { .. } => Some(decision("decline")),
        QuestionKind::Permissions { .. } => Some(json(r#"{"permissions":{},"scope":"turn"}"#)),
        QuestionKind::UserInput { .. } => Some(json(r#"{"answers":{}}"#)),
        QuestionKind::Form { .. } => Some(json(r#"{"action":"cancel","content":null}"#)),
    }
}

/// A result on its way to the server, and where secrets stand in it.
#[derive(Clone, Debug)]
pub(crate) struct Outgoing {
    pub(crate) result: RawJson,
    pub(crate) secrets: Vec<Range<usize>>,
}

impl From<RawJson> for Outgoing {
    fn from(result: RawJson) -> Self {
        let secrets = Vec::new();
        Self { result, secrets }
    }
}

impl Outgoing {
    /// The result as a log may hold it.
    pub(crate) fn redacted(&self) -> RawJson {
        if self.secrets.is_empty() {
            return self.result.clone();
        }
        let text = redact(self.result.get().as_bytes(), &self.secrets);
        json(&String::from_utf8_lossy(&text))
    }
}

/// The answer as a log may hold it: secret texts are a placeholder.
pub(crate) fn redacted_answer(kind: &QuestionKind, answer: &Answer) -> Option<Answer> {
    let (QuestionKind::UserInput { questions }, Answer::Input(answers)) = (kind, answer) else {
        return None;
    };
    let is_secret = |id: &str| questions.iter().any(|q| q.secret && q.id == id);
    if !answers.iter().any(|(id, _)| is_secret(id)) {
        return None;
    }
    let hide = |texts: &Vec<String>| {
        texts
            .iter()
            .map(|_| SECRET_PLACEHOLDER.to_owned())
            .collect()
    };
    let hidden = answers.iter().map(|(id, texts)| {
        let texts = if is_secret(id) {
            hide(texts)
        } else {
            texts.clone()
        };
        (id.clone(), texts)
    });
    Some(Answer::Input(hidden.collect()))
}

/// The result that an answer is sent as, once it is checked against the question.
pub(crate) fn outgoing(kind: &QuestionKind, answer: &Answer) -> Result<Outgoing, String> {
    match kind {
        QuestionKind::UserInput { questions } if !matches!(answer, Answer::Decline) => {
            user_input(questions, answer)
        }
        _ => result(kind, answer).map(Outgoing::from),
    }
}

fn result(kind: &QuestionKind, answer: &Answer) -> Result<RawJson, String> {
    if matches!(answer, Answer::Decline) {
        return match kind {
            QuestionKind::Form { .. } => Ok(json(r#"{"action":"decline","content":null}"#)),
            _ => negative(kind).ok_or_else(|| "no negative decision was offered".to_owned()),
        };
    }
    match kind {
        QuestionKind::Command { decisions, .. } => {
            let wanted = match answer {
                Answer::Accept => text("accept"),
                Answer::AcceptForSession => text("acceptForSession"),
                Answer::Cancel => text("cancel"),
                Answer::Decision(decision) => decision.clone(),
                _ => return Err("a command is answered with a decision".into()),
            };
            if !decisions.iter().any(|d| same_json(d, &wanted)) {
                return Err(format!("the decision {} was not offered", wanted.get()));
            }
            Ok(json(&format!(r#"{{"decision":{}}}"#, wanted.get())))
        }
        QuestionKind::FileChange { .. } => match answer {
            Answer::Accept => Ok(decision("accept")),
            Answer::AcceptForSession => Ok(decision("acceptForSession")),
            Answer::Cancel => Ok(decision("cancel")),
            _ => Err("a file change is answered with accept, decline or cancel".into()),
        },
        QuestionKind::Permissions { permissions, .. } => {
            let (granted, scope) = match answer {
                Answer::Accept => (permissions, "turn"),
                Answer::AcceptForSession => (permissions, "session"),
                Answer::Permissions(granted) => (granted, "turn"),
                _ => return Err("permissions are granted or declined".into()),
            };
            if granted.kind() != JsonKind::Object {
                return Err("permissions are an object".into());
            }
            if crate::json::canonical(granted.get()).is_err() {
                return Err("the permissions name a member twice".into());
            }
            if !no_wider(granted.get(), permissions.get(), 0)
                || !keeps_denials(granted.get(), permissions.get(), 0)
            {
                return Err("the permissions are wider than asked".into());
            }
            Ok(json(&format!(
                r#"{{"permissions":{},"scope":"{scope}"}}"#,
                granted.get()
            )))
        }
        QuestionKind::UserInput { questions } => {
            user_input(questions, answer).map(|outgoing| outgoing.result)
        }
        QuestionKind::Form { .. } => match answer {
            Answer::Cancel => Ok(json(r#"{"action":"cancel","content":null}"#)),
            Answer::Form(content) if content.kind() == JsonKind::Object => Ok(json(&format!(
                r#"{{"action":"accept","content":{}}}"#,
                content.get()
            ))),
            Answer::Form(_) => Err("the contents of a form are an object".into()),
            _ => Err("a form is answered with its contents".into()),
        },
    }
}

/// One answer for each question id and no other.
fn user_input(questions: &[UserQuestion], answer: &Answer) -> Result<Outgoing, String> {
    let Answer::Input(answers) = answer else {
        return Err("user input is answered with texts".into());
    };
    let mut secrets = Vec::new();
    let mut out = String::from(r#"{"answers":{"#);
    for (at, question) in questions.iter().enumerate() {
        let mut given = answers.iter().filter(|(id, _)| *id == question.id);
        let Some((id, texts)) = given.next() else {
            return Err(format!("no answer for {:?}", question.id));
        };
        if given.next().is_some() {
            return Err(format!("two answers for {id:?}"));
        }
        if texts.is_empty() || texts.iter().any(|t| t.trim().is_empty()) {
            return Err(format!("the answer for {id:?} is empty"));
        }
        if at > 0 {
            out.push(',');
        }
        write_string(id, &mut out);
        out.push_str(r#":{"answers":["#);
        for (at, text) in texts.iter().enumerate() {
            if at > 0 {
                out.push(',');
            }
            let start = out.len() + 1;
            write_string(text, &mut out);
            if question.secret {
                secrets.push(start..out.len() - 1);
            }
        }
        out.push_str("]}");
    }
    if answers.len() != questions.len() {
        return Err("an answer names a question that was not asked".into());
    }
    out.push_str("}}");
    let result = json(&out);
    Ok(Outgoing { result, secrets })
}

fn same_json(a: &RawJson, b: &RawJson) -> bool {
    match (
        crate::json::canonical(a.get()),
        crate::json::canonical(b.get()),
    ) {
        (Ok(a), Ok(b)) => a == b,
        _ => false,
    }
}

/// Whether every member of `granted` stands in `asked` too, lists as subsets.
fn no_wider(granted: &str, asked: &str, depth: usize) -> bool {
    if depth > crate::json::MAX_DEPTH {
        return false;
    }
    match (JsonKind::of(granted), JsonKind::of(asked)) {
        (JsonKind::Null, _) => true,
        (JsonKind::Object, JsonKind::Object) => {
            let (Ok(Members(granted)), Ok(Members(asked))) =
                (serde_json::from_str(granted), serde_json::from_str(asked))
            else {
                return false;
            };
            granted.iter().all(|(key, value)| {
                asked
                    .iter()
                    .any(|(k, a)| k == key && no_wider(value.get(), a.get(), depth + 1))
            })
        }
        (JsonKind::Array, JsonKind::Array) => {
            let (Ok(granted), Ok(asked)) = (
                serde_json::from_str::<Vec<&RawValue>>(granted),
                serde_json::from_str::<Vec<&RawValue>>(asked),
            ) else {
                return false;
            };
            granted.iter().all(|value| {
                asked
                    .iter()
                    .any(|a| crate::json::canonical(a.get()) == crate::json::canonical(value.get()))
            })
        }
        _ => crate::json::canonical(granted) == crate::json::canonical(asked),
    }
}

/// Whether every denial that was asked for stands in what is granted beside it: what is left out of
/// a list of denials is permitted. A part of which nothing is granted needs none.
fn keeps_denials(granted: &str, asked: &str, depth: usize) -> bool {
    if depth > crate::json::MAX_DEPTH {
        return false;
    }
    let (Ok(Members(granted)), Ok(Members(asked))) =
        (serde_json::from_str(granted), serde_json::from_str(asked))
    else {
        return true;
    };
    let grants_something = granted.iter().any(|(_, value)| !is_empty(value.get()));
    asked.iter().all(|(key, asked)| {
        let granted = granted.iter().find(|(k, _)| k == key);
        let granted = granted.map_or("null", |(_, value)| value.get());
        match JsonKind::of(asked.get()) {
            JsonKind::Object => keeps_denials(granted, asked.get(), depth + 1),
            JsonKind::Array => {
                let list = |text| serde_json::from_str::<Vec<&RawValue>>(text).unwrap_or_default();
                let granted = list(granted);
                let same = |a: &RawValue, b: &RawValue| {
                    crate::json::canonical(a.get()) == crate::json::canonical(b.get())
                };
                let kept = |entry: &RawValue| granted.iter().any(|g| same(g, entry));
                let mut denials = list(asked.get()).into_iter().filter(|e| is_denial(e.get()));
                !grants_something || denials.all(kept)
            }
            JsonKind::Null | JsonKind::Boolean | JsonKind::Number | JsonKind::String => true,
        }
    })
}

/// An entry that permits neither to read nor to write, or whose access is none that we know.
fn is_denial(entry: &str) -> bool {
    #[derive(Deserialize)]
    struct Entry {
        access: String,
    }
    serde_json::from_str::<Entry>(entry)
        .is_ok_and(|entry| !matches!(entry.access.as_str(), "read" | "write"))
}

fn is_empty(value: &str) -> bool {
    let members = || serde_json::from_str::<Members<'_>>(value).map(|m| m.0.len());
    match JsonKind::of(value) {
        JsonKind::Null => true,
        JsonKind::Array => {
            serde_json::from_str::<Vec<&RawValue>>(value).is_ok_and(|l| l.is_empty())
        }
        JsonKind::Object => members().is_ok_and(|n| n == 0),
        JsonKind::Boolean | JsonKind::Number | JsonKind::String => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn command(params: &str) -> Parsed {
        parse("item/commandExecution/requestApproval", params).unwrap()
    }

    #[test]
    fn the_default_is_negative_and_was_offered() {
        let base = r#""threadId":"t","turnId":"u","itemId":"i","availableDecisions""#;
        let all = command(&format!(r#"{{{base}:["accept","decline","cancel"]}}"#));
        assert_eq!(
            negative(&all.kind).unwrap().get(),
            r#"{"decision":"decline"}"#
        );
        let some = command(&format!(r#"{{{base}:["accept","cancel"]}}"#));
        assert_eq!(
            negative(&some.kind).unwrap().get(),
            r#"{"decision":"cancel"}"#
        );
        let none = command(&format!(r#"{{{base}:["accept"]}}"#));
        assert!(negative(&none.kind).is_none());
        assert!(!none.dismissable);
    }

    #[test]
    fn a_decision_must_have_been_offered() {
        let asked = command(
            r#"{"threadId":"t","turnId":"u","itemId":"i","availableDecisions":["accept",{"acceptWithExecpolicyAmendment":{"execpolicy_amendment":["ls"]}}]}"#,
        );
        let amended = RawJson::parse(
            r#"{ "acceptWithExecpolicyAmendment": {"execpolicy_amendment": ["ls"]} }"#,
        )
        .unwrap();
        assert!(result(&asked.kind, &Answer::Decision(amended)).is_ok());
        assert!(result(&asked.kind, &Answer::AcceptForSession).is_err());
        let other =
            RawJson::parse(r#"{"acceptWithExecpolicyAmendment":{"execpolicy_amendment":["rm"]}}"#)
                .unwrap();
        assert!(result(&asked.kind, &Answer::Decision(other)).is_err());
    }

    #[test]
    fn permissions_are_never_wider_than_asked() {
        let asked = parse(
            "item/permissions/requestApproval",
            r#"{"threadId":"t","turnId":"u","itemId":"i","cwd":"/w","permissions":{"network":{"enabled":true},"fileSystem":{"write":["/a","/b"]}}}"#,
        )
        .unwrap();
        let grant = |text: &str| {
            result(
                &asked.kind,
                &Answer::Permissions(RawJson::parse(text).unwrap()),
            )
            .is_ok()
        };
        assert!(grant("{}"));
        assert!(grant(r#"{"fileSystem":{"write":["/a"]}}"#));
        assert!(!grant(r#"{"fileSystem":{"write":["/c"]}}"#));
        assert!(!grant(r#"{"fileSystem":{"read":["/a"]}}"#));
        assert!(!grant("[]"));
    }

    #[test]
    fn a_secret_stands_in_no_log() {
        let asked = parse(
            "item/tool/requestUserInput",
            r#"{"threadId":"t","turnId":"u","itemId":"i","questions":[{"id":"a","question":"?","isSecret":true},{"id":"b","question":"?"}]}"#,
        )
        .unwrap();
        let answers = [("a", "hun\"ter2"), ("b", "open")]
            .map(|(id, text)| (id.to_owned(), alloc::vec![text.to_owned()]));
        let answer = Answer::Input(answers.to_vec());
        let sent = outgoing(&asked.kind, &answer).unwrap();
        assert!(sent.result.get().contains(r#"hun\"ter2"#));
        let hidden = r#"{"answers":{"a":{"answers":["[secret]"]},"b":{"answers":["open"]}}}"#;
        assert_eq!(sent.redacted().get(), hidden);
        // What a log holds leads to what a log holds.
        let again = redacted_answer(&asked.kind, &answer).unwrap();
        assert_eq!(
            outgoing(&asked.kind, &again).unwrap().redacted().get(),
            hidden
        );
    }

    #[test]
    fn every_question_id_wants_one_answer() {
        let asked = parse(
            "item/tool/requestUserInput",
            r#"{"threadId":"t","turnId":"u","itemId":"i","questions":[{"id":"a","header":"","question":"?"},{"id":"b","header":"","question":"?"}]}"#,
        )
        .unwrap();
        let one = |id: &str| (id.to_owned(), alloc::vec!["x".to_owned()]);
        assert!(result(&asked.kind, &Answer::Input(alloc::vec![one("a")])).is_err());
        let strange = alloc::vec![one("a"), one("b"), one("c")];
        assert!(result(&asked.kind, &Answer::Input(strange)).is_err());
        let both = result(&asked.kind, &Answer::Input(alloc::vec![one("b"), one("a")])).unwrap();
        assert_eq!(
            both.get(),
            r#"{"answers":{"a":{"answers":["x"]},"b":{"answers":["x"]}}}"#
        );
    }
}
