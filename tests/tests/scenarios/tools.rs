//! Tools of all kinds, and calls that are malformed.

use insta::assert_snapshot;
use turnkeep_core::{
    CommandError, Outcome, Reply, Settings, ToolCallId, ToolResult,
    command::{Metadata, ToolContent, ToolKind},
};
use turnkeep_tests::world::tool;

use crate::Scene;

fn all_kinds() -> Settings {
    Settings::new()
        .tool(tool("run", ToolKind::Function))
        .tool(tool("route", ToolKind::Router))
        .tool(tool("say", ToolKind::Message))
}

#[test]
fn a_tool_of_each_kind() {
    let mut world = Scene::new()
        .begin(1)
        .call(1, 0, "run", r#"{"b":[1e2],"a":2}"#, r#""result":{"contentItems":[{"type":"inputText","text":"done"},{"type":"inputImage","imageUrl":"data:x"}],"success":true}"#)
        .call(1, 1, "route", r#"{"arguments":{"y":1,"x":2},"name":"inner"}"#, r#""result":{"success":false}"#)
        .call(1, 2, "say", r#"{"message":"on it"}"#, r#""result":{"contentItems":[{"type":"inputText","text":"The message was delivered."}],"success":true}"#)
        .say(1, "ok")
        .idle()
        .end(1, "completed")
        .start();
    let conversation = world.open("a", all_kinds());
    let turn = world.send(conversation, "go");
    let first = world.call(turn, 1);
    let result = ToolResult::ok("done")
        .with(ToolContent::Image("data:x".into()))
        .metadata(Metadata {
            metadata_type: "t".into(),
            contents: "c".into(),
        });
    world.respond(first.id, result.clone());
    world.note("the same result again is the same, another is refused");
    world.respond(first.id, result);
    world.respond(first.id, ToolResult::ok("done"));
    let second = world.call(turn, 2);
    world.respond(second.id, ToolResult::failed("no such thing"));
    world.end_of(turn);
    world.note("a call that never was");
    world.respond(
        ToolCallId {
            sequence: 9,
            ..first.id
        },
        ToolResult::ok("x"),
    );
    assert_snapshot!(world.finish());
}

#[test]
fn malformed_calls_are_answered_so_that_the_model_can_correct_itself() {
    let failed = r#""result":{"success":false}"#;
    let rows = [
        ("other", "{}"),
        ("run", "null"),
        ("run", "true"),
        ("run", "7"),
        ("run", r#""text""#),
        ("run", "[1]"),
        ("route", "[]"),
        ("route", r#"{"name":"a"}"#),
        ("route", r#"{"name":"a","arguments":{},"more":1}"#),
        ("route", r#"{"name":5}"#),
        ("route", r#"{"name":1e2,"arguments":{}}"#),
        ("say", "[]"),
        ("say", r#"{"b":1,"a":2}"#),
        ("say", r#"{"message":[1, 2]}"#),
        ("say", r#"{"message":""}"#),
    ];
    let mut scene = Scene::new().begin(1);
    for (id, (name, arguments)) in (0..).zip(rows) {
        scene = scene.call(1, id, name, arguments, failed);
    }
    let mut world = scene.say(1, "sorry").end(1, "completed").start();
    let conversation = world.open("a", all_kinds());
    let turn = world.send(conversation, "go");
    world.end_of(turn);
    assert!(
        world.calls(turn).is_empty(),
        "none is offered to the application"
    );
    assert_snapshot!(world.finish());
}

#[test]
fn calls_that_belong_nowhere_or_come_twice() {
    let misplaced = r#""error":{"code":-32602,"message":"*"}"#;
    let call = |id: u32, turn: &str, call: &str, arguments: &str| {
        format!(
            r#"S {{"id":{id},"method":"item/tool/call","params":{{"threadId":"thr_1","turnId":"{turn}","callId":"{call}","tool":"run","arguments":{arguments}}}}}"#
        )
    };
    let mut world = Scene::new()
        .begin(1)
        .line(&call(0, "trn_1", "c", r#"{"a":1,"b":2}"#))
        .line("# A replay: the same id, the same contents.")
        .line(&call(0, "trn_1", "c", r#"{"b":2,"a":1}"#))
        .line("# Other contents under the same name.")
        .line(&call(1, "trn_1", "c", r#"{"a":2}"#))
        .line(&format!(r#"C {{"id":1,{misplaced}}}"#))
        .line("# No such turn, no canonical form, an id in use.")
        .line(&call(2, "trn_9", "d", "{}"))
        .line(&format!(r#"C {{"id":2,{misplaced}}}"#))
        .line(&call(3, "trn_1", "e", r#"{"a":1,"a":2}"#))
        .line(&format!(r#"C {{"id":3,{misplaced}}}"#))
        .line(&call(0, "trn_1", "f", "{}"))
        .line(r#"S {"id":0,"method":"something/new","params":{}}"#)
        .line(r#"C {"id":0,"result":{"success":true}}"#)
        .say(1, "ok")
        .end(1, "completed")
        .start();
    let conversation = world.open("a", all_kinds());
    let turn = world.send(conversation, "go");
    let first = world.call(turn, 1);
    assert_eq!(world.calls(turn).len(), 1);
    world.respond(first.id, ToolResult::ok("once"));
    world.end_of(turn);
    assert!(world.is_played());
    assert_snapshot!(world.finish());
}

#[test]
fn a_turn_that_completes_with_a_call_open_broke_the_protocol() {
    let mut world = Scene::new()
        .begin(1)
        .line(r#"S {"id":0,"method":"item/tool/call","params":{"threadId":"thr_1","turnId":"trn_1","callId":"c","tool":"run","arguments":{}}}"#)
        .say(1, "ok")
        .end(1, "completed")
        .line(r#"C {"id":0,"error":{"code":-32800}}"#)
        .turn(2, "two")
        .start();
    let conversation = world.open("a", all_kinds());
    let turn = world.send(conversation, "go");
    let call = world.call(turn, 1);
    let end = world.end_of(turn);
    assert!(matches!(end.outcome, Outcome::Failed { .. }), "{end:?}");
    world.note("the call stays with the application: its result arrives, once");
    let late = world.respond(call.id, ToolResult::ok("late"));
    assert_eq!(world.answer(late), Some(&Ok(Reply::Done)));
    world.dismiss(conversation);
    let next = world.send(conversation, "on");
    let later = world.respond(call.id, ToolResult::ok("late"));
    assert_eq!(world.answer(later), Some(&Ok(Reply::Done)));
    let other = world.respond(call.id, ToolResult::ok("later"));
    let call = call.id;
    assert_eq!(
        world.answer(other),
        Some(&Err(CommandError::AnsweredDifferently { call }))
    );
    world.end_of(next);
    assert_snapshot!(world.finish());
}
