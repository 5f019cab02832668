//! Many conversations, closing, threads that go and come back.

use insta::assert_snapshot;
use turnkeep_core::{
    CommandError, ConversationId, Reply, Settings,
    command::{BusyWhy, ToolKind},
};
use turnkeep_tests::world::{Setup, World, tool};

use crate::Scene;

#[test]
fn many_conversations_side_by_side() {
    let mut world = Setup::demo().start();
    let conversations: Vec<_> = ["a", "b", "c"]
        .into_iter()
        .map(|key| world.open(key, Settings::new()))
        .collect();
    let turns: Vec<_> = conversations.iter().map(|c| world.send(*c, "hi")).collect();
    for turn in turns {
        world.end_of(turn);
    }
    assert_snapshot!(world.finish());
}

#[test]
fn one_turn_a_conversation() {
    let mut world = Scene::new()
        .begin(1)
        .line("X sleep 5")
        .say(1, "one")
        .end(1, "completed")
        .turn(2, "two")
        .start();
    let conversation = world.open("a", Settings::new());
    let turn = world.send(conversation, "go");
    let busy = world.send_refused(conversation, "more");
    let with = |why| CommandError::Busy { conversation, why };
    assert_eq!(busy, with(BusyWhy::Round));
    let close = world.close(conversation);
    assert_eq!(world.answer(close), Some(&Err(with(BusyWhy::Turn))));
    world.end_of(turn);
    let next = world.send(conversation, "more");
    world.end_of(next);
    let conversation = ConversationId(9);
    let unknown = world.send_refused(conversation, "hello?");
    assert_eq!(unknown, CommandError::UnknownConversation { conversation });
    assert_snapshot!(world.finish());
}

#[test]
fn a_key_is_one_conversation_with_one_kind_of_settings() {
    let mut world = Scene::new().start();
    let first = world.open("a", Settings::new().model("m"));
    assert_eq!(world.open("a", Settings::new().model("m")), first);
    world.ask(World::open_command("a", Settings::new()));
    world.note("settings that are refused");
    world.ask(World::open_command("b", Settings::new().model(" m")));
    world.ask(World::open_command(
        "b",
        Settings::new().tool(tool("", ToolKind::Function)),
    ));
    let twice = tool("t", ToolKind::Function);
    world.ask(World::open_command(
        "b",
        Settings::new().tool(twice.clone()).tool(twice),
    ));
    let config = turnkeep_tests::world::json("[]");
    world.ask(World::open_command("b", Settings::new().config(config)));
    assert_snapshot!(world.finish());
}

#[test]
fn closing_lets_the_thread_go_and_frees_the_key() {
    let mut world = Scene::new().turn(1, "one").start();
    let conversation = world.open("a", Settings::new());
    let unused = world.open("b", Settings::new());
    world.note("without a thread it is done at once");
    world.close(unused);
    let turn = world.send(conversation, "go");
    world.end_of(turn);
    let close = world.close(conversation);
    assert_eq!(world.answer(close), Some(&Ok(Reply::Done)));
    world.note("closed is closed");
    world.close(conversation);
    let again = world.open("a", Settings::new().model("other"));
    assert_ne!(again, conversation);
    assert_snapshot!(world.finish());
}

#[test]
fn a_close_that_is_refused_or_joined() {
    let mut world = Scene::new()
        .turn(1, "one")
        .line(r#"C {"id":"$u","method":"thread/unsubscribe","params":{"threadId":"thr_1"}}"#)
        .line("X sleep 5")
        .line(r#"S {"id":"$u","error":{"code":-32600,"message":"not now"}}"#)
        .line(r#"C {"id":"$v","method":"thread/unsubscribe","params":{"threadId":"thr_1"}}"#)
        .line("X sleep 5")
        .line(r#"S {"id":"$v","error":{"code":-32600,"message":"thread not found: thr_1"}}"#)
        .start();
    let conversation = world.open("a", Settings::new());
    let turn = world.send(conversation, "go");
    world.end_of(turn);
    let (one, two) = (world.close(conversation), world.close(conversation));
    let busy = world.send_refused(conversation, "more");
    let why = BusyWhy::Closing;
    assert_eq!(busy, CommandError::Busy { conversation, why });
    for close in [one, two] {
        assert!(matches!(
            world.answer_of(close),
            Err(CommandError::Refused(_))
        ));
    }
    world.note("it is open; a thread that is gone needs no letting go");
    let close = world.close(conversation);
    assert_eq!(world.answer_of(close), Ok(Reply::Done));
    assert_snapshot!(world.finish());
}

#[test]
fn a_thread_that_the_server_closed_is_resumed_by_the_next_turn() {
    let mut world = Scene::new()
        .turn(1, "one")
        .line(r#"S {"method":"thread/closed","params":{"threadId":"thr_1"}}"#)
        .line(r#"C {"id":"$r","method":"thread/resume","params":{"threadId":"thr_1","excludeTurns":true}}"#)
        .notify("thread/tokenUsage/updated", r#""turnId":"trn_1","tokenUsage":{"total":{"totalTokens":1000},"last":{"totalTokens":300},"modelContextWindow":null}"#)
        .line(r#"S {"id":"$r","result":{"thread":{"id":"thr_1","turns":[]}}}"#)
        .begin(2)
        .notify("thread/tokenUsage/updated", r#""turnId":"trn_2","tokenUsage":{"total":{"totalTokens":1250},"last":{"totalTokens":250},"modelContextWindow":null}"#)
        .say(2, "two")
        .end(2, "completed")
        .start();
    let conversation = world.open("a", Settings::new());
    let one = world.send(conversation, "go");
    world.end_of(one);
    let two = world.send(conversation, "go on");
    let end = world.end_of(two);
    assert_eq!(end.usage.unwrap().turn.total_tokens, 250);
    assert_snapshot!(world.finish());
}

#[test]
fn a_thread_that_goes_under_a_running_turn() {
    let mut world = Scene::new()
        .begin(1)
        .say(1, "half")
        .notify("thread/status/changed", r#""status":{"type":"notLoaded"}"#)
        .line(r#"S {"method":"thread/closed","params":{"threadId":"thr_1"}}"#)
        .line(r#"C {"id":"$r","method":"thread/resume","params":{"threadId":"thr_1"}}"#)
        .line(r#"S {"id":"$r","error":{"code":-32600,"message":"no rollout found for thread id thr_1"}}"#)
        .start();
    let conversation = world.open("a", Settings::new());
    let one = world.send(conversation, "go");
    world.end_of(one);
    world.dismiss(conversation);
    let two = world.send(conversation, "go on");
    world.end_of(two);
    assert_snapshot!(world.finish());
}

#[test]
fn a_thread_that_is_refused_and_made_again() {
    let mut world = Scene::new()
        .line(r#"C {"id":"$t","method":"thread/start"}"#)
        .line(r#"S {"id":"$t","error":{"code":-32600,"message":"failed to load configuration: /w/c.toml:1:1: x"}}"#)
        .turn(1, "one")
        .start();
    let conversation = world.open("a", Settings::new());
    let refused = world.send(conversation, "go");
    world.end_of(refused);
    world.note("the thread is made again, and the message goes as it was");
    let turn = world.restart(conversation);
    world.end_of(turn);
    assert_snapshot!(world.finish());
}
