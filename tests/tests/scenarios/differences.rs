//! A thread is compared with what was asked, before the first message goes out.

use insta::assert_snapshot;
use turnkeep_core::{
    Event, Outcome, Settings,
    command::{ApprovalPolicy, Differences, Sandbox},
    event::{ConversationUpdate, Rejection},
};
use turnkeep_tests::world::World;

use crate::Scene;

/// A thread is made, and is this.
fn made(scene: Scene, told: &str) -> Scene {
    scene.answer(
        "thread/start",
        r#""threadSource":"*""#,
        &format!(r#""result":{{"thread":{{"id":"thr_1"}},{told}}}"#),
    )
}

const OTHER: &str = r#""cwd":"/elsewhere","model":"m","approvalPolicy":"untrusted","sandbox":{"type":"dangerFullAccess"}"#;

fn asked() -> Settings {
    Settings::new()
        .cwd("/w")
        .model("m")
        .approval_policy(ApprovalPolicy::Untrusted)
        .sandbox(Sandbox::ReadOnly)
}

fn fields(world: &World) -> Vec<String> {
    let events = world.events().iter();
    let found = events.filter_map(|event| match event {
        Event::Conversation(about) => match &about.update {
            ConversationUpdate::Differs { difference } => Some(difference.field.clone()),
            _ => None,
        },
        _ => None,
    });
    found.collect()
}

#[test]
fn a_thread_that_was_made_otherwise_is_told_before_the_message_goes() {
    let mut world = made(Scene::new(), OTHER).turn(1, "ok").start();
    let conversation = world.open("a", asked());
    let turn = world.send(conversation, "go");
    world.end_of(turn);
    assert_eq!(fields(&world), ["cwd", "sandbox"]);
    assert!(world.is_played());
    assert_snapshot!(world.finish());
}

#[test]
fn a_thread_that_is_as_asked_is_told_of_nothing() {
    let mut world = Scene::new().turn(1, "ok").start();
    let conversation = world.open("a", asked());
    let turn = world.send(conversation, "go");
    world.end_of(turn);
    assert!(fields(&world).is_empty());
    let _ = world.finish();
}

#[test]
fn a_thread_that_is_resumed_otherwise_is_told_before_the_next_message() {
    let scene = Scene::new().turn(1, "ok").line("X exit 1").next_life();
    let scene = scene.answer(
        "thread/resume",
        r#""threadId":"thr_1","excludeTurns":true"#,
        r#""result":{"thread":{"id":"thr_1","status":{"type":"idle"}},"cwd":"/w","model":"n","approvalPolicy":"on-request","sandbox":{"type":"readOnly"}}"#,
    );
    let mut world = scene.turn(2, "ok").setup().reconnects().start();
    let conversation = world.open("a", asked());
    let turn = world.send(conversation, "one");
    world.end_of(turn);
    world.run(0);
    world.log_from_here();
    let turn = world.send(conversation, "two");
    world.end_of(turn);
    assert_eq!(fields(&world), ["model", "approvalPolicy"]);
    assert!(world.is_played());
    assert_snapshot!(world.finish());
}

#[test]
fn where_that_is_refused_nothing_goes_until_the_round_is_restarted() {
    let mut world = made(Scene::new(), OTHER).turn(1, "ok").start();
    let conversation = world.open("a", asked().differences(Differences::Refuse));
    let turn = world.send(conversation, "go");
    let end = world.end_of(turn);
    let Outcome::Rejected {
        error: Rejection::Differs(all),
    } = &end.outcome
    else {
        panic!("{end:?}");
    };
    assert_eq!(all.len(), 2);
    assert!(world.sent_of("turn/start").is_empty());
    world.note("the application takes it as it is");
    let again = world.restart(conversation);
    world.end_of(again);
    assert!(world.is_played());
    assert_snapshot!(world.finish());
}
