//! Turns without anything special, and the final answer as JSON.

use insta::assert_snapshot;
use turnkeep_core::{
    Command, CommandError, InputItem, Reply, SendOptions, Settings,
    selection::{Field, SelectionError},
};
use turnkeep_tests::world::{Setup, World, json, ms};

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
    world.dismiss(conversation);
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
        .line(r#"C {"id":"$a4","method":"turn/start","params":{"threadId":"thr_2","input":"$i4","clientUserMessageId":"$m4"}}"#)
        .line(r#"S {"id":"$a4","result":{"turn":{"id":"trn_4","items":[],"status":"inProgress","error":null}}}"#)
        .line(r#"S {"method":"item/completed","params":{"threadId":"thr_2","turnId":"trn_4","item":{"type":"agentMessage","id":"it_4","text":"four","phase":"final_answer"}}}"#)
        .line(r#"S {"method":"turn/completed","params":{"threadId":"thr_2","turn":{"id":"trn_4","items":[],"status":"completed","error":null}}}"#)
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
    world.note("what is left out has no default that we know");
    let field = Field::Effort;
    let error = CommandError::Selection(SelectionError::NoDefault { field });
    let changed = world.change(conversation, base().cwd("/v"));
    assert_eq!(world.answer(changed), Some(&Err(error)));
    let settings_now = |world: &World| {
        let known = world.machine().durable().conversation(conversation);
        known.unwrap().settings.clone()
    };
    assert_eq!(*settings_now(&world), settings());
    world.note("other developer instructions have another thread, and all that was said");
    let instructed = || settings().developer_instructions("be kind");
    let changed = world.change(conversation, instructed());
    assert_eq!(world.answer(changed), Some(&Ok(Reply::Done)));
    assert_eq!(*settings_now(&world), instructed());
    let turn = world.send(conversation, "and there");
    assert_eq!(world.end_of(turn).text.as_deref(), Some("four"));
    assert_snapshot!(world.finish());
}
