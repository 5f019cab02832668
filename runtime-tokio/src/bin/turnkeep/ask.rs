//! What codex asks, put to a person. Only a plain yes is a yes.

use serde_json::{Map, Value};
use turnkeep_tokio::{
    Answer, Question, RawJson,
    core::event::{QuestionKind, UserQuestion},
};

use crate::{
    term::{ALERT, BOLD, DIM, NAME, Term, brief, paint, visible},
    view::View,
};

/// A choice: what is typed for it, what it says, what it answers.
#[derive(Debug)]
pub(crate) struct Choice {
    pub(crate) key: String,
    pub(crate) label: String,
    pub(crate) answer: Answer,
}

/// What is asked, field by field.
#[derive(Debug)]
pub(crate) enum Form {
    /// One of these; anything else is the negative answer.
    Choose {
        choices: Vec<Choice>,
        /// What no means.
        no: String,
    },
    /// A text for each of the server's questions.
    Input(Vec<UserQuestion>),
    /// A value for each member of an object.
    Fill(Vec<Field>),
}

/// A member of a form.
#[derive(Debug)]
pub(crate) struct Field {
    name: String,
    title: String,
    kind: String,
    options: Vec<String>,
    required: bool,
}

/// Shows a question and gives what is to be asked for.
pub(crate) fn pose(question: &Question, view: &View, term: &mut Term) -> Form {
    match &question.kind {
        QuestionKind::Command {
            command,
            cwd,
            reason,
            decisions,
        } => {
            head("may it run this command?", term);
            line(
                "",
                &paint(
                    BOLD,
                    visible(command.as_deref().unwrap_or("(no command was told)")),
                ),
                term,
            );
            show_if("in", cwd.as_deref(), term);
            show_if("why", reason.as_deref(), term);
            command_choices(decisions)
        }
        QuestionKind::FileChange { reason, grant_root } => {
            head("may it change these files?", term);
            let changes = view.changes(question.item.as_deref());
            if changes.is_empty() {
                line("", &paint(DIM, "(codex did not say which)"), term);
            }
            for text in changes.iter().flat_map(|change| change.in_full()) {
                line("", &text, term);
            }
            show_if("and write below", grant_root.as_deref(), term);
            show_if("why", reason.as_deref(), term);
            let cancel = question
                .dismissable
                .then(|| choice("c", "no, and stop the turn", Answer::Cancel));
            let mut choices = vec![
                choice("y", "yes", Answer::Accept),
                choice(
                    "s",
                    "yes, and for the rest of the session",
                    Answer::AcceptForSession,
                ),
            ];
            choices.extend(cancel);
            Form::Choose {
                choices,
                no: "no".into(),
            }
        }
        QuestionKind::Permissions {
            reason,
            permissions,
        } => {
            head("may it have more permissions?", term);
            let pretty = permissions.read::<Value>().ok();
            let pretty = pretty.and_then(|value| serde_json::to_string_pretty(&value).ok());
            let text = pretty.unwrap_or_else(|| permissions.get().to_owned());
            line("", &visible(&text), term);
            show_if("why", reason.as_deref(), term);
            Form::Choose {
                choices: vec![
                    choice("y", "yes, for this turn", Answer::Accept),
                    choice("s", "yes, for the session", Answer::AcceptForSession),
                ],
                no: "no".into(),
            }
        }
        QuestionKind::UserInput { questions } => {
            term.note(paint(ALERT, "codex asks"));
            Form::Input(questions.clone())
        }
        QuestionKind::Form {
            server,
            message,
            schema,
        } => {
            term.note(format!(
                "{} {}",
                paint(ALERT, format!("{} asks:", visible(server))),
                visible(message)
            ));
            Form::Fill(fields(schema))
        }
        _ => {
            head("something that this version does not know", term);
            line("", &brief(question.raw.get(), 500), term);
            Form::Choose {
                choices: Vec::new(),
                no: "no".into(),
            }
        }
    }
}

fn head(text: &str, term: &mut Term) {
    term.note(format!("{} {text}", paint(ALERT, "codex asks:")));
}

fn line(label: &str, text: &str, term: &mut Term) {
    let label = if label.is_empty() {
        String::new()
    } else {
        format!("{} ", paint(DIM, label))
    };
    let bar = paint(ALERT, "│");
    for (at, part) in text.lines().enumerate() {
        let label = if at == 0 { label.as_str() } else { "" };
        term.note(format!("{bar} {label}{part}"));
    }
}

fn show_if(label: &str, text: Option<&str>, term: &mut Term) {
    if let Some(text) = text {
        line(label, &visible(text), term);
    }
}

pub(crate) fn choice(key: &str, label: &str, answer: Answer) -> Choice {
    Choice {
        key: key.into(),
        label: label.into(),
        answer,
    }
}

/// Exactly the decisions that were offered.
fn command_choices(decisions: &[RawJson]) -> Form {
    let is = |decision: &RawJson, word: &str| decision.read::<String>().is_ok_and(|d| d == word);
    let offered = |word: &str| decisions.iter().any(|d| is(d, word));
    let mut choices = Vec::new();
    for decision in decisions {
        let word = decision.read::<String>().unwrap_or_default();
        match word.as_str() {
            "accept" => choices.push(choice("y", "yes", Answer::Accept)),
            "acceptForSession" => choices.push(choice(
                "s",
                "yes, and for the rest of the session",
                Answer::AcceptForSession,
            )),
            "decline" => {}
            "cancel" if !offered("decline") => {}
            "cancel" => choices.push(choice("c", "no, and stop the turn", Answer::Cancel)),
            _ => {
                let taken = choices
                    .iter()
                    .filter(|c: &&Choice| c.key.parse::<u32>().is_ok());
                let key = (taken.count() + 1).to_string();
                let answer = Answer::Decision(decision.clone());
                choices.push(choice(&key, &described(decision), answer));
            }
        }
    }
    let no = match (offered("decline"), offered("cancel")) {
        (true, _) => "no",
        (false, true) => "no, and stop the turn",
        (false, false) => "no: stop the turn",
    };
    Form::Choose {
        choices,
        no: no.into(),
    }
}

/// A decision that carries more than a word.
fn described(decision: &RawJson) -> String {
    let value = decision.read::<Value>().unwrap_or_default();
    let words = &value["acceptWithExecpolicyAmendment"]["execpolicy_amendment"];
    if let Some(words) = words.as_array() {
        let words: Vec<&str> = words.iter().filter_map(Value::as_str).collect();
        return format!(
            "yes, and never ask again for commands that begin with: {}",
            visible(&shell_words::join(words))
        );
    }
    let network = &value["applyNetworkPolicyAmendment"]["network_policy_amendment"];
    if let (Some(action), Some(host)) = (network["action"].as_str(), network["host"].as_str()) {
        return format!("from now on {} {}", visible(action), visible(host));
    }
    visible(decision.get())
}

/// The line that asks for a choice.
pub(crate) fn choices_line(choices: &[Choice], no: &str) -> String {
    let mut out = String::new();
    for choice in choices {
        out.push_str(&format!("{} {} · ", paint(NAME, &choice.key), choice.label));
    }
    out.push_str(&format!("{} {no} {} ", paint(NAME, "n"), paint(DIM, "[n]")));
    out
}

/// What was chosen; `None` is no.
pub(crate) fn chosen(choices: Vec<Choice>, typed: Option<&str>) -> Option<Answer> {
    let typed = typed?.trim().to_lowercase();
    let key = if typed == "yes" { "y" } else { &typed };
    choices.into_iter().find(|c| c.key == key).map(|c| c.answer)
}

/// The line that asks a question of the server.
pub(crate) fn input_lines(question: &UserQuestion) -> Vec<String> {
    let mut lines = Vec::new();
    let header = if question.header.is_empty() {
        String::new()
    } else {
        format!(
            "{} ",
            paint(BOLD, format!("{}:", visible(&question.header)))
        )
    };
    lines.push(format!("{header}{}", visible(&question.question)));
    for (at, option) in question.options.iter().enumerate() {
        lines.push(format!("  {} {}", paint(NAME, at + 1), visible(option)));
    }
    lines
}

/// The hint behind the prompt for an answer.
pub(crate) fn input_hint(question: &UserQuestion) -> &'static str {
    if question.options.is_empty() {
        "your answer, or nothing to decline"
    } else {
        "a number or your own words, or nothing to decline"
    }
}

/// The answer that a typed line is: the label behind a number, else the line; `None` for nothing.
pub(crate) fn picked(options: &[String], typed: Option<&str>) -> Option<String> {
    let typed = typed?.trim();
    if typed.is_empty() {
        return None;
    }
    let option = typed.parse::<usize>().ok();
    let option = option.and_then(|n| options.get(n.checked_sub(1)?));
    Some(option.cloned().unwrap_or_else(|| typed.to_owned()))
}

fn fields(schema: &RawJson) -> Vec<Field> {
    let schema = schema.read::<Value>().unwrap_or_default();
    let required: Vec<&str> = schema["required"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
        .collect();
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let properties = schema["properties"].as_object().into_iter().flatten();
    properties
        .map(|(name, property)| Field {
            title: [&property["title"], &property["description"]]
                .into_iter()
                .find_map(Value::as_str)
                .unwrap_or(name)
                .to_owned(),
            kind: text(&property["type"]),
            options: property["enum"]
                .as_array()
                .into_iter()
                .flatten()
                .map(text)
                .collect(),
            required: required.contains(&name.as_str()),
            name: name.clone(),
        })
        .collect()
}

impl Field {
    /// The lines that ask for the value.
    pub(crate) fn lines(&self) -> Vec<String> {
        let optional = if self.required {
            ""
        } else {
            ", may be left empty"
        };
        let kind = match self.kind.as_str() {
            "boolean" => "y or n",
            "integer" | "number" => "a number",
            "array" | "object" => "JSON",
            _ => "a text",
        };
        let mut lines = vec![format!(
            "{} {}",
            visible(&self.title),
            paint(DIM, format!("({kind}{optional})"))
        )];
        for (at, option) in self.options.iter().enumerate() {
            lines.push(format!("  {} {}", paint(NAME, at + 1), visible(option)));
        }
        lines
    }

    /// Takes what was typed: the value, or why it is none.
    pub(crate) fn read(&self, typed: Option<&str>) -> Filled {
        let Some(text) = picked(&self.options, typed) else {
            return if self.required || typed.is_none() {
                Filled::Declined
            } else {
                Filled::LeftOut
            };
        };
        let value = match self.kind.as_str() {
            "boolean" => match text.to_lowercase().as_str() {
                "y" | "yes" | "true" => Some(Value::Bool(true)),
                "n" | "no" | "false" => Some(Value::Bool(false)),
                _ => None,
            },
            "integer" => text.parse::<i64>().ok().map(Value::from),
            "number" => text.parse::<f64>().ok().map(Value::from),
            "array" | "object" => serde_json::from_str(&text).ok(),
            _ => {
                (self.options.is_empty() || self.options.contains(&text)).then(|| Value::from(text))
            }
        };
        value.map_or(Filled::Wrong, Filled::Value)
    }

    pub(crate) fn put(&self, value: Value, into: &mut Map<String, Value>) {
        into.insert(self.name.clone(), value);
    }
}

/// What was typed into a field.
#[derive(Debug, PartialEq)]
pub(crate) enum Filled {
    Value(Value),
    LeftOut,
    Wrong,
    Declined,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn raw(text: &str) -> RawJson {
        RawJson::parse(text).unwrap()
    }

    fn choices(decisions: &[&str]) -> (Vec<Choice>, String) {
        let decisions: Vec<RawJson> = decisions.iter().map(|d| raw(d)).collect();
        match command_choices(&decisions) {
            Form::Choose { choices, no } => (choices, no),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn what_was_offered_can_be_chosen_and_nothing_else() {
        let amendment =
            r#"{"acceptWithExecpolicyAmendment":{"execpolicy_amendment":["touch","a b"]}}"#;
        let (offered, no) = choices(&[r#""accept""#, amendment, r#""cancel""#]);
        assert_eq!(no, "no, and stop the turn");
        let shown: Vec<_> = offered
            .iter()
            .map(|c| format!("{} {}", c.key, c.label))
            .collect();
        assert_eq!(
            shown,
            [
                "y yes",
                "1 yes, and never ask again for commands that begin with: touch 'a b'"
            ]
        );
        assert_eq!(
            chosen(offered, Some("1")),
            Some(Answer::Decision(raw(amendment)))
        );
        let (offered, no) = choices(&[r#""acceptForSession""#, r#""decline""#, r#""cancel""#]);
        assert_eq!(no, "no");
        let keys: Vec<_> = offered.iter().map(|c| c.key.as_str()).collect();
        assert_eq!(keys, ["s", "c"]);
        assert_eq!(chosen(offered, Some("y")), None, "it was not offered");
    }

    #[test]
    fn only_a_plain_yes_is_a_yes() {
        for typed in [
            None,
            Some(""),
            Some("n"),
            Some("yeah"),
            Some("yy"),
            Some("1"),
            Some("ok"),
        ] {
            let (offered, _) = choices(&[r#""accept""#, r#""decline""#]);
            assert_eq!(chosen(offered, typed), None, "{typed:?}");
        }
        for typed in ["y", "Y", " yes "] {
            let (offered, _) = choices(&[r#""accept""#, r#""decline""#]);
            assert_eq!(
                chosen(offered, Some(typed)),
                Some(Answer::Accept),
                "{typed:?}"
            );
        }
    }

    #[test]
    fn a_number_picks_an_option_and_words_are_words() {
        let options = ["Yes".to_owned(), "No".to_owned()];
        assert_eq!(picked(&options, Some("2")).as_deref(), Some("No"));
        assert_eq!(picked(&options, Some("3")).as_deref(), Some("3"));
        assert_eq!(picked(&options, Some("maybe ")).as_deref(), Some("maybe"));
        assert_eq!(picked(&options, Some(" ")), None);
        assert_eq!(picked(&options, None), None);
    }

    #[test]
    fn fields_take_values_of_their_kind() {
        let schema = raw(
            r#"{"properties":{"n":{"type":"integer"},"ok":{"type":"boolean"},"c":{"enum":["a","b"]}},"required":["n"]}"#,
        );
        let fields = fields(&schema);
        let field = |name: &str| fields.iter().find(|f| f.name == name).unwrap();
        assert_eq!(field("n").read(Some("x")), Filled::Wrong);
        assert_eq!(field("n").read(Some("7")), Filled::Value(Value::from(7)));
        assert_eq!(field("n").read(Some("")), Filled::Declined);
        assert_eq!(field("ok").read(Some("")), Filled::LeftOut);
        assert_eq!(field("ok").read(None), Filled::Declined);
        assert_eq!(
            field("ok").read(Some("n")),
            Filled::Value(Value::from(false))
        );
        assert_eq!(field("c").read(Some("2")), Filled::Value(Value::from("b")));
        assert_eq!(field("c").read(Some("z")), Filled::Wrong);
    }
}
