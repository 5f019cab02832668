//! What stands where the model would: it looks for words in the user's text.

use std::collections::VecDeque;

use serde_json::{Map, Value};

use super::state::{Active, Step, Tool};

/// What the model does after it has read what is unread.
pub(super) fn think(tools: &[Tool], text: &str) -> VecDeque<Step> {
    let mut steps = VecDeque::new();
    // Other boxes than the user's are read, and not done.
    let mut told_by_user = true;
    for line in text.lines() {
        if line.starts_with("[Box ") && line.ends_with(']') {
            told_by_user = line.ends_with("| User Message]");
        }
        if !told_by_user {
            continue;
        }
        if let Some(command) = after(line, "run:") {
            steps.push_back(Step::Command(command.to_owned()));
        }
        if let Some(question) = after(line, "ask:") {
            steps.push_back(Step::Question(question.to_owned()));
        }
        if let Some((name, arguments)) =
            after(line, "call:").map(|call| call.split_once(' ').unwrap_or((call, "{}")))
        {
            // A call of a tool that the thread does not have never reaches the client.
            if tools.iter().any(|tool| tool.name == name)
                && serde_json::from_str::<Value>(arguments).is_ok()
            {
                steps.push_back(Step::Call {
                    tool: name.to_owned(),
                    arguments: arguments.to_owned(),
                    label: name.to_owned(),
                });
            }
        } else if let Some(tool) = tools
            .iter()
            .find(|tool| line.to_lowercase().contains(&tool.name.to_lowercase()))
        {
            steps.extend(
                subjects(line)
                    .into_iter()
                    .map(|subject| call(tool, subject)),
            );
        }
    }
    if !steps.is_empty() {
        steps.push_back(Step::Usage);
    }
    if after(text, "fail:").is_some() {
        steps.push_back(Step::Fail);
    } else {
        steps.push_back(Step::Say);
    }
    steps
}

fn call(tool: &Tool, subject: String) -> Step {
    let arguments = Map::from_iter([(tool.property.clone(), Value::from(subject.clone()))]);
    Step::Call {
        tool: tool.name.clone(),
        arguments: Value::Object(arguments).to_string(),
        label: subject,
    }
}

fn after<'a>(text: &'a str, mark: &str) -> Option<&'a str> {
    Some(
        text[text.find(mark)? + mark.len()..]
            .lines()
            .next()
            .unwrap_or("")
            .trim(),
    )
}

/// `the weather in Oslo and in Lima?` is about Oslo and Lima.
fn subjects(line: &str) -> Vec<String> {
    let Some((_, things)) = line.split_once(" in ") else {
        return vec![line.trim().to_owned()];
    };
    let things = things.replace(" and in ", ",").replace(" and ", ",");
    let clean = |part: &str| part.trim().trim_end_matches(['.', '?', '!']).to_owned();
    things
        .split(',')
        .map(clean)
        .filter(|part| !part.is_empty())
        .collect()
}

/// The answer, in the pieces in which it is streamed.
pub(super) fn answer(active: &Active, turn_number: usize) -> Vec<String> {
    if let Some(schema) = &active.schema {
        let text = sample(schema).to_string();
        let characters: Vec<char> = text.chars().collect();
        return characters
            .chunks(6)
            .map(|part| part.iter().collect())
            .collect();
    }
    let mut text = String::new();
    if active.results.is_empty() {
        let said = active.unread.lines().last().unwrap_or("").trim();
        text = format!("This is answer {turn_number} of our conversation. You said: {said}");
    } else {
        text.push_str("Here is what I found.");
        for (label, result) in &active.results {
            text.push_str(&format!(" {label}: {result}"));
            if !result.ends_with(['.', '!', '?']) {
                text.push('.');
            }
        }
    }
    if active.unread.contains("long") {
        for number in 1..=30 {
            text.push_str(&format!(" This is sentence {number} of a long story."));
        }
    }
    text.split_inclusive(' ').map(str::to_owned).collect()
}

/// A value that the schema allows, for the schemas that people write.
fn sample(schema: &Value) -> Value {
    if let Some(first) = schema["enum"].as_array().and_then(|values| values.first()) {
        return first.clone();
    }
    let kind = schema["type"].as_str().or_else(|| {
        schema["type"]
            .as_array()
            .and_then(|kinds| kinds.first()?.as_str())
    });
    match kind {
        Some("object") => {
            let properties = schema["properties"]
                .as_object()
                .cloned()
                .unwrap_or_default();
            Value::Object(
                properties
                    .iter()
                    .map(|(name, property)| (name.clone(), sample(property)))
                    .collect(),
            )
        }
        Some("array") => Value::Array(vec![sample(&schema["items"])]),
        Some("integer" | "number") => Value::from(4),
        Some("boolean") => Value::from(true),
        Some("null") => Value::Null,
        _ => Value::from("demo"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_what_a_question_is_about() {
        assert_eq!(
            subjects("What is the weather in Oslo and in Lima?"),
            ["Oslo", "Lima"]
        );
        assert_eq!(
            subjects("weather in Oslo, Lima and Rome"),
            ["Oslo", "Lima", "Rome"]
        );
        assert_eq!(subjects("weather in New York"), ["New York"]);
        assert_eq!(subjects("the weather"), ["the weather"]);
    }

    #[test]
    fn boxes_of_others_are_not_done() {
        let tools = [Tool {
            name: "build".into(),
            property: "what".into(),
        }];
        let steps = |text: &str| think(&tools, text).len();
        assert_eq!(
            steps("[Box 2 | Tool Result]\nresult of call 1: ok\nbuild"),
            1
        );
        assert_eq!(
            steps("[Box 2 | Tool Result]\nbuild\n[Box 3 | User Message]\nbuild"),
            3
        );
    }

    #[test]
    fn samples_fit_their_schema() {
        let schema = serde_json::json!({"type": "object", "properties": {"answer": {"type": "integer"}, "tags": {"type": "array", "items": {"enum": ["a"]}}}});
        assert_eq!(sample(&schema).to_string(), r#"{"answer":4,"tags":["a"]}"#);
    }
}
