//! Turns without anything special, and the final answer as JSON.

use insta::assert_snapshot;
use turnkeep_core::{
    Command, CommandError, InputItem, Reply, SendOptions, Settings,
    selection::{Field, SelectionError},
};
use turnkeep_tests::world::{Setup, json, ms};

use crate::Scene;

#[test]
fn a_plain_turn() {
    let mut world = Setup::demo().start();
    let conversation = world.open("a", Settings::new().cwd("/w"));
    let turn = world.send(conversation, "hello");
    world.end_of(turn);
    world.acknowledge(turn);
    assert_snapshot!(world.finish());
}

#[test]
fn settings_go_out_with_the_thread_and_the_effort_with_the_first_turn() {
    let mut world = Scene::new().turn(1, "one").turn(2, "two").start();
    let settings = Settings::new()
        .model("m")
        .model_provider("p")
        .effort("high")
        .personality("friendly")
        .cwd("/w")
        .base_instructions("be brief")
        .developer_instructions("no jokes")
        .service_name("svc")
        .config(json(r#"{"a":1}"#))
        .ephemeral(true);
    let conversation = world.open("a", settings);
    let one = world.send(conversation, "first");
    world.end_of(one);
    let two = world.send(conversation, "second");
    world.end_of(two);
    assert_snapshot!(world.finish());
}

#[test]
fn a_structured_answer() {
    let mut world = Scene::new().turn(1, r#" {"b": 1, "a": [1e2]} "#).start();
    let conversation = world.open("a", Settings::new());
    let schema = json(r#"{"type":"object"}"#);
    let options = SendOptions::new().output_schema(schema);
    let turn = world.send_with(conversation, "as JSON", options);
    world.end_of(turn);
    assert_snapshot!(world.finish());
}

#[test]
fn a_structured_answer_that_is_none() {
    let mut world = Scene::new().turn(1, "no JSON").start();
    let conversation = world.open("a", Settings::new());
    let schema = json(r#"{"type":"object"}"#);
    let options = SendOptions::new().output_schema(schema);
    let turn = world.send_with(conversation, "as JSON", options);
    world.end_of(turn);
    assert_snapshot!(world.finish());
}

#[test]
fn a_turn_past_its_deadline() {
    let mut world = Scene::new().begin(1).interrupted(1).turn(2, "two").start();
    let conversation = world.open("a", Settings::new());
    let options = SendOptions::new().deadline(ms(1_500));
    let turn = world.send_with(conversation, "go", options);
    world.end_of(turn);
    world.run(0);
    world.acknowledge(turn);
    let next = world.send(conversation, "again");
    world.end_of(next);
    assert_snapshot!(world.finish());
}

#[test]
fn a_deadline_that_is_over_before_the_message_left() {
    let mut world = Scene::new()
        .line(r#"C {"method":"thread/start"}"#)
        .line("X hang")
        .start();
    let conversation = world.open("a", Settings::new());
    let options = SendOptions::new().deadline(ms(1_500));
    let turn = world.send_with(conversation, "go", options);
    world.end_of(turn);
    assert_snapshot!(world.finish());
}

#[test]
fn a_keyed_message_said_again_is_the_same() {
    let mut world = Scene::new().turn(1, "one").start();
    let conversation = world.open("a", Settings::new());
    let keyed = || SendOptions::new().key("k");
    let turn = world.send_with(conversation, "go", keyed());
    assert_eq!(
        world.send_with(conversation, "go", keyed()),
        turn,
        "while it runs"
    );
    world.end_of(turn);
    assert_eq!(
        world.send_with(conversation, "go", keyed()),
        turn,
        "after its end"
    );
    world.note("the same key, another message");
    world.ask(turnkeep_tests::world::World::send_command(
        conversation,
        "something else",
        keyed(),
    ));
    world.note("bad keys and inputs");
    for (input, options) in [
        (vec![InputItem::text("x")], SendOptions::new().key(" k")),
        (vec![], SendOptions::new()),
        (
            vec![InputItem::text("x")],
            SendOptions::new().deadline(ms(0)),
        ),
        (
            vec![InputItem::text("x")],
            SendOptions::new().output_schema(json("{}")),
        ),
        (
            vec![InputItem::text("x")],
            SendOptions::new().output_schema(json("[]")),
        ),
    ] {
        let options = Box::new(options);
        world.ask(Command::Send {
            conversation,
            input,
            options,
        });
    }
    assert_snapshot!(world.finish());
}

#[test]
fn a_command_said_again_gets_the_same_answer() {
    let mut world = Scene::new()
        .turn(1, "one")
        .setup()
        .config(|c| c.limits.commands = 3)
        .start();
    let conversation = world.open("a", Settings::new());
    let turn = world.send(conversation, "go");
    world.end_of(turn);
    let (first, second) = (turnkeep_core::CommandId(1), turnkeep_core::CommandId(2));
    world.note("the same number again, whatever it asks");
    let send = turnkeep_tests::world::World::send_command(conversation, "go", SendOptions::new());
    world.ask_as(second, send.clone());
    world.note("older than what is remembered");
    for _ in 0..3 {
        world.acknowledge(turn);
    }
    let before = world.events().len();
    // Its first answer is forgotten, so this is another one; the checker must not mind.
    let told = world.answer(first).cloned();
    assert!(matches!(told, Some(Ok(_))));
    assert_eq!(world.events().len(), before);
    let fresh = turnkeep_core::CommandId(0);
    world.ask_as(fresh, send);
    assert_eq!(world.answer(fresh), Some(&Err(CommandError::Forgotten)));
    assert_snapshot!(world.finish());
}

#[test]
fn settings_that_change_between_turns() {
    let mut world = Scene::new()
        .turn(1, "one")
        .turn(2, "two")
        .turn(3, "three")
        .start();
    let base = || Settings::new().model("m").cwd("/w");
    let conversation = world.open("a", base());
    world.note("before there is a thread anything may change");
    let changed = world.change(conversation, base().cwd("/v"));
    assert_eq!(world.answer(changed), Some(&Ok(Reply::Done)));
    let turn = world.send(conversation, "go");
    world.end_of(turn);
    world.note("then only what a message carries: the difference goes with the next one, once");
    let settings = || base().cwd("/v").effort("high");
    let changed = world.change(conversation, settings());
    assert_eq!(world.answer(changed), Some(&Ok(Reply::Done)));
    for _ in 0..2 {
        let turn = world.send(conversation, "on");
        world.end_of(turn);
    }
    world.note(
        "what is left out has no default that we know, and a thread has one working directory",
    );
    let refused = [
        (
            base().cwd("/v"),
            CommandError::Selection(SelectionError::NoDefault {
                field: Field::Effort,
            }),
        ),
        (
            settings().cwd("/u"),
            CommandError::ThreadIsMade { conversation },
        ),
    ];
    for (settings, error) in refused {
        let changed = world.change(conversation, settings);
        assert_eq!(world.answer(changed), Some(&Err(error)));
    }
    let known = world.machine().durable().conversation(conversation);
    assert_eq!(*known.unwrap().settings, settings());
    assert_snapshot!(world.finish());
}
