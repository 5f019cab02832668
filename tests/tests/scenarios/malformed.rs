//! Calls that do not have their tool's shape: boxes like others, and answers from which the model can correct itself.

use insta::assert_snapshot;
use turnkeep_core::{Settings, command::ToolKind, tools::DEFERRED};
use turnkeep_tests::world::tool;

use crate::talk::{Talk, deferred, tools};

/// Each check, and what comes before it in the order.
const ROWS: [(&str, &str); 20] = [
    ("other", "{}"),
    ("other", "null"),
    ("look", "null"),
    ("look", "true"),
    ("look", "7"),
    ("look", r#""text""#),
    ("look", "[1]"),
    ("route", "[]"),
    ("route", r#"{"name":"inner"}"#),
    (
        "route",
        r#"{"name":"inner","more":1,"arguments":{"b":[ 1e2, 1.50 ],"a":2}}"#,
    ),
    ("route", r#"{"name":5}"#),
    ("route", r#"{"arguments":{}}"#),
    ("route", r#"{"name":1e2,"arguments":{}}"#),
    ("route", r#"{"name":{"b":1,"a":2},"arguments":{}}"#),
    ("say", "[]"),
    ("say", r#"{"b":1,"a":2}"#),
    ("say", r#"{"message":"","more":1}"#),
    ("say", r#"{"message":[1, 2]}"#),
    ("say", r#"{"message":null}"#),
    ("say", r#"{"message":""}"#),
];

fn all_inline() -> Settings {
    Settings::new()
        .tool(tool("look", ToolKind::Function))
        .tool(tool("route", ToolKind::Router))
        .tool(tool("say", ToolKind::Message))
}

#[test]
fn malformed_calls_are_boxes_under_their_attempted_names() {
    let mut talk = Talk::new(all_inline());
    talk.send("go");
    talk.take();
    let mut answers = Vec::new();
    for (name, arguments) in ROWS {
        let native = talk.call(name, arguments);
        let answer = talk.answered(&native).expect("it is answered at once");
        assert_eq!(answer["result"]["success"], false);
        answers.push(talk.answer_text(&native).unwrap().to_owned());
    }
    assert_eq!(talk.offered().len(), 0, "none is the application's");
    talk.note("the turn goes on");
    talk.complete("sorry");
    let results: Vec<String> = talk.boxes();
    let results: Vec<&String> = results
        .iter()
        .filter(|b| b.contains("Tool Result"))
        .collect();
    assert_eq!(results.len(), ROWS.len());
    for (result, answer) in results.iter().zip(&answers) {
        assert!(result.ends_with(answer.as_str()), "{result}: {answer}");
    }
    assert_snapshot!(talk.whole_boxes());
    let _ = talk.finish();
}

#[test]
fn malformed_calls_are_numbered_with_the_others() {
    let mut talk = Talk::new(all_inline());
    talk.send("go");
    talk.take();
    talk.calls_at_once(&[
        ("look", r#"{"n":1}"#),
        ("other", "{}"),
        ("say", r#"{"message":"on it"}"#),
        ("look", r#"{"n":3}"#),
    ]);
    let ids: Vec<_> = talk.offered().iter().map(|call| call.id).collect();
    assert_eq!(ids[0].nonce, ids[1].nonce);
    assert_eq!([ids[0].sequence, ids[1].sequence], [1, 3]);
    let boxes = talk.boxes();
    assert_eq!(boxes[3], "4 Tool Call: call 2: other {}");
    assert_snapshot!(talk.finish());
}

#[test]
fn the_same_malformed_call_makes_the_same_bytes() {
    let mut all = Vec::new();
    for arguments in [r#"{"b":[1e2],"a":"x"}"#, r#"{ "a" : "x", "b" : [ 1e2 ] }"#] {
        let mut talk = Talk::new(all_inline());
        talk.send("go");
        talk.take();
        let native = talk.call("route", arguments);
        let answer = talk.answered(&native).unwrap()["result"].to_string();
        talk.complete("sorry");
        all.push((answer, talk.whole_boxes()));
        let _ = talk.finish();
    }
    assert_eq!(all[0], all[1]);
}

#[test]
fn a_malformed_deferred_call_goes_with_the_next_flush() {
    let mut talk = Talk::new(tools().tool(deferred("find")));
    talk.send("go");
    talk.take();
    let native = talk.call("search", "[1]");
    assert_eq!(talk.answered(&native), None, "its steer comes first");
    let text = talk.answer_steer().concat();
    assert!(text.contains("call 1: search [1]"), "{text}");
    assert!(
        text.contains("result of call 1: failed\nmalformed call"),
        "{text}"
    );
    assert_eq!(talk.answer_text(&native), Some(DEFERRED));
    talk.record_steer();
    talk.complete("sorry");
    assert_eq!(talk.starts.len(), 0);
    assert_snapshot!(talk.finish());
}

#[test]
fn an_unknown_tool_and_a_malformed_message_go_inline() {
    let mut settings = Settings::new().tool(tool("say", ToolKind::Message));
    for name in ["search", "find"] {
        settings = settings.tool(deferred(name));
    }
    let mut talk = Talk::new(settings);
    talk.send("go");
    talk.take();
    for (name, arguments) in [("other", "{}"), ("say", "{}")] {
        let native = talk.call(name, arguments);
        assert_eq!(talk.answered(&native).unwrap()["result"]["success"], false);
        assert_eq!(talk.steers.len(), 0);
    }
    talk.complete("sorry");
    talk.send("and?");
    talk.note("the thread holds them");
    assert_eq!(talk.take(), ["and?"]);
    assert_snapshot!(talk.finish());
}
