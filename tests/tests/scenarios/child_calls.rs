//! Sub-agents that call the application's tools.

use insta::assert_snapshot;
use turnkeep_core::{
    CommandError, Event, Settings, ToolResult,
    command::{Children, ToolKind},
    event::{ConversationUpdate, ToolCall},
};
use turnkeep_tests::world::{Left, Peers, World, ms, tool};

use crate::{Scene, own, past};

const CHILD: &str = r#"S {"method":"thread/started","params":{"thread":{"id":"thr_child","parentThreadId":"thr_1","status":{"type":"idle"},"turns":[]}}}"#;
const USAGE: &str = r#"S {"method":"thread/tokenUsage/updated","params":{"threadId":"thr_child","turnId":"trn_x","tokenUsage":{"total":{"totalTokens":900},"last":{"totalTokens":900},"modelContextWindow":1000}}}"#;
const END: &str = r#"S {"method":"turn/completed","params":{"threadId":"thr_child","turn":{"id":"trn_x","items":[],"status":"completed","error":null}}}"#;

fn calls(scene: Scene, id: u32, call: &str, tool: &str, arguments: &str) -> Scene {
    scene.line(&format!(
        r#"S {{"id":{id},"method":"item/tool/call","params":{{"threadId":"thr_child","turnId":"trn_x","callId":"{call}","tool":"{tool}","arguments":{arguments}}}}}"#
    ))
}

fn answered(id: u32, text: &str) -> String {
    format!(
        r#"C {{"id":{id},"result":{{"contentItems":[{{"type":"inputText","text":"{text}"}}],"success":true}}}}"#
    )
}

fn withdrawn(id: u32) -> String {
    format!(r#"C {{"id":{id},"error":{{"code":-32800}}}}"#)
}

fn tells() -> Settings {
    Settings::new()
        .children(Children::Tell)
        .tool(tool("look", ToolKind::Function))
        .tool(tool("say", ToolKind::Message))
}

/// What sub-agents called.
fn offered(world: &World) -> Vec<ToolCall> {
    let events = world.events().iter();
    let found = events.filter_map(|event| match event {
        Event::Conversation(about) => match &about.update {
            ConversationUpdate::ChildCall { call, .. } => Some(call.clone()),
            _ => None,
        },
        _ => None,
    });
    found.collect()
}

fn wait_for(world: &mut World, count: usize) -> ToolCall {
    world.run_until("a call of a sub-agent", |world| {
        offered(world).len() >= count
    });
    offered(world)[count - 1].clone()
}

#[test]
fn a_call_of_a_sub_agent_is_answered_once_and_makes_no_box() {
    let scene = Scene::new().begin(1).line(CHILD).line(USAGE);
    let scene = calls(scene, 3, "c1", "look", r#"{"b":1, "a":2}"#).line(&answered(3, "found"));
    let scene = calls(scene, 4, "c1", "look", r#"{"b":1, "a":2}"#).line(&answered(4, "found"));
    let scene = calls(scene, 5, "c2", "say", r#"{"message":"hi"}"#).line(&answered(5, "heard"));
    let scene =
        calls(scene, 6, "c3", "other", "{}").line(r#"C {"id":6,"result":{"success":false}}"#);
    let mut world = scene.line(END).say(1, "ok").end(1, "completed").start();
    let conversation = world.open("a", tells());
    let turn = world.send(conversation, "go");
    let call = wait_for(&mut world, 1);
    let done = world.respond(call.id, ToolResult::ok("found"));
    world.answer_of(done).unwrap();
    let again = world.respond(call.id, ToolResult::ok("found"));
    world.answer_of(again).unwrap();
    let other = world.respond(call.id, ToolResult::ok("lost"));
    let call = call.id;
    assert_eq!(
        world.answer_of(other),
        Err(CommandError::AnsweredDifferently { call })
    );
    let said = wait_for(&mut world, 2);
    let done = world.respond(said.id, ToolResult::ok("heard"));
    world.answer_of(done).unwrap();
    let end = world.end_of(turn);
    assert_eq!(end.usage, None, "usage of the child is the child's");
    assert_eq!(offered(&world).len(), 2, "the same call again is the same");
    let known = world.machine().durable().conversation(conversation);
    assert_eq!(known.unwrap().transcript().last().0, 2);
    assert!(world.is_played());
    assert_snapshot!(world.finish());
}

#[test]
fn a_call_of_a_sub_agent_is_closed_with_its_turn_its_limit_and_its_client() {
    let scene = Scene::new().begin(1).line(CHILD);
    let scene = calls(scene, 3, "c1", "look", "{}")
        .line("X sleep 5")
        .line(END);
    let scene = calls(scene.line(&withdrawn(3)), 4, "c2", "slow", "{}")
        .line(r#"C {"id":4,"result":{"success":false}}"#);
    let scene = calls(scene, 5, "c3", "look", "{}").line("X sleep 5");
    let mut world = scene.start();
    let slow = tool("slow", ToolKind::Function).time_limit(ms(100));
    let conversation = world.open("a", tells().tool(slow));
    world.send(conversation, "go");
    let first = wait_for(&mut world, 1).id;
    let second = wait_for(&mut world, 2).id;
    let third = wait_for(&mut world, 3).id;
    for call in [first, second] {
        let late = world.respond(call, ToolResult::ok("late"));
        let closed = Err(CommandError::CallClosed { call });
        assert_eq!(world.answer_of(late), closed);
    }
    world.shut_down();
    let withdrawn = world
        .sent()
        .iter()
        .filter(|frame| frame.starts_with(r#"{"id":5,"#) && frame.contains("-32800"));
    assert_eq!(withdrawn.count(), 1);
    assert!(!world.machine().durable().call(third).unwrap().is_open());
    assert_snapshot!(world.finish());
}

#[test]
fn a_call_of_a_sub_agent_is_not_offered_again_after_a_crash() {
    let scene = Scene::new().begin(1).line(CHILD);
    let scene = calls(scene, 3, "c1", "look", "{}").line("X sleep 500");
    let scene = scene.next_life().resume("active").line(CHILD);
    let scene = calls(scene, 8, "c1", "look", "{}")
        .line(r#"C* {"id":8,"result":{"success":false}}"#)
        .history(&[past(1, "inProgress", &[own("m1")])])
        .line("X sleep 50")
        .say(1, "done")
        .end(1, "completed");
    let mut world = scene.setup().reconnects().peers(Peers::Socket).start();
    let conversation = world.open("a", tells());
    let turn = world.send(conversation, "go");
    wait_for(&mut world, 1);
    world.run(0);
    world.crash(Left::Checkpoint);
    world.end_of(turn);
    assert_eq!(offered(&world).len(), 1);
    let again = world
        .sent()
        .iter()
        .filter(|frame| frame.starts_with(r#"{"id":8,"#));
    assert_eq!(again.count(), 1);
    let _ = world.finish();
}

#[test]
fn a_call_of_a_sub_agent_is_closed_with_its_connection() {
    let scene = Scene::new().begin(1).line(CHILD);
    let scene = calls(scene, 3, "c1", "look", "{}").line("X sleep 5\nX close stdout");
    let scene = scene
        .next_life()
        .resume("active")
        .history(&[past(1, "inProgress", &[own("m1")])])
        .line("X sleep 50")
        .end(1, "completed");
    let mut world = scene.setup().reconnects().peers(Peers::Socket).start();
    let conversation = world.open("a", tells());
    let turn = world.send(conversation, "go");
    let call = wait_for(&mut world, 1).id;
    world.end_of(turn);
    let late = world.respond(call, ToolResult::ok("late"));
    assert_eq!(
        world.answer_of(late),
        Err(CommandError::CallClosed { call })
    );
    let _ = world.finish();
}
