//! What arrives in a conversation: at any time, durable before it is answered, and heard of by the model once.

use insta::assert_snapshot;
use turnkeep_core::{
    CommandError, Reply, Settings, ToolResult, command::AcceptOptions, event::Status,
};
use turnkeep_tests::world::{Journal, Left, Setup};

use crate::talk::{LEFT, Talk, boxed, by_hand, input, said, tools};

const FROM_OUTSIDE: [&str; 8] = [
    "User Message",
    "System Message",
    "Tool Message",
    "Tool Result",
    "User Attachment",
    "Agent Attachment",
    "Tool Attachment",
    "Weather Report",
];

#[test]
fn boxes_of_all_types_come_at_any_time() {
    let mut talk = Talk::new(tools());
    let all = || FROM_OUTSIDE.map(|of| boxed(of, "x"));
    talk.note("held");
    assert_eq!(talk.hold("not yet"), Ok(Reply::Done));
    talk.accept(all());
    assert_eq!(talk.release_conversation(), Ok(Reply::Done));
    talk.note("a round waits for the answer of its start");
    talk.accept(all());
    talk.take();
    talk.note("a turn runs");
    talk.accept(all());
    talk.call("search", "{}");
    talk.note("a steer is unanswered");
    assert_eq!(talk.steers.len(), 1);
    talk.accept(all());
    talk.refuse_steer("cannot steer a review turn");
    talk.end("failed");
    talk.note("the conversation is stalled");
    assert!(matches!(talk.status(), Status::Stalled { .. }));
    talk.accept(all());
    assert_eq!(talk.dismiss(), Ok(Reply::Done));
    // 5 times 8, the stage and the rest of the failed turn, a call and its failed result.
    assert_eq!(talk.boxes().len(), 5 * 8 + 4);
    assert_snapshot!(talk.finish());
}

#[test]
fn boxes_that_only_we_make_are_refused() {
    let mut talk = Talk::new(Settings::new());
    let before = talk.written();
    for of in ["Agent Response", "Agent Message", "Tool Call", ""] {
        let box_type = of.to_owned();
        assert_eq!(
            talk.try_accept([said("first"), boxed(of, "x")]),
            Err(CommandError::BadBoxType { box_type })
        );
    }
    assert_eq!(talk.written(), before, "nothing was recorded");
    assert_eq!(talk.boxes(), [""; 0]);
    assert_snapshot!(talk.finish());
}

#[test]
fn an_arrival_is_durable_before_it_is_answered() {
    let mut talk = Talk::lasting(by_hand(Settings::new()));
    talk.set_journal(Journal::Held);
    let lost = talk.accept_command([said("lost")], AcceptOptions::new());
    let lost = talk.ask(lost);
    assert_eq!(talk.answer(lost), None, "its record is not durable");
    talk.note("what was never confirmed is gone, and was never answered");
    talk.set_journal(Journal::AtOnce);
    talk.crash(Left::Confirmed);
    assert_eq!(talk.boxes(), [""; 0]);
    talk.set_journal(Journal::Held);
    let kept = talk.accept_command([said("kept")], AcceptOptions::new());
    let kept = talk.ask(kept);
    assert_eq!(talk.answer(kept), None);
    talk.release();
    assert!(matches!(talk.answer(kept), Some(Ok(Reply::Arrived { .. }))));
    for left in [Left::Confirmed, Left::Checkpoint] {
        talk.crash(left);
        assert_eq!(talk.boxes(), ["1 User Message: kept"]);
    }
    assert_snapshot!(talk.finish());
}

#[test]
fn a_full_mailbox_refuses_and_records_nothing() {
    let setup = Setup::hand().config(|config| config.limits.mailbox = 2);
    let mut talk = Talk::with(setup, tools());
    let conversation = talk.conversation;
    let full = Err(CommandError::MailboxFull { conversation });
    talk.send("go");
    talk.take();
    talk.call("search", "{}");
    talk.take_steer();
    let call = talk.last_call();
    talk.accept([said("one")]);
    let before = talk.written();
    talk.note("all of it or nothing");
    assert_eq!(talk.try_accept([said("two"), said("three")]), full);
    assert_eq!(talk.written(), before, "nothing was recorded");
    talk.accept([said("two")]);
    let before = talk.written();
    talk.note("results and messages of tools arrive there too");
    assert_eq!(talk.try_accept([said("three")]), full);
    assert_eq!(talk.respond(call, ToolResult::ok("late")), full);
    assert_eq!(talk.message(call, "half way"), full);
    assert_eq!(talk.written(), before, "nothing was recorded");
    talk.complete("done");
    talk.note("it is empty again");
    assert_eq!(talk.respond(call, ToolResult::ok("late")), Ok(Reply::Done));
    talk.accept([said("three")]);
    assert_snapshot!(talk.finish());
}

#[test]
fn an_arrival_said_again_under_its_key_is_the_same() {
    for left in LEFT {
        let setup = Setup::hand().reconnects();
        let setup = setup.config(|config| config.remember_commands = true);
        let mut talk = Talk::with(setup, by_hand(Settings::new()));
        let conversation = talk.conversation;
        let keyed = |talk: &Talk, text: &str, key: &str| {
            talk.accept_command(
                [said(text), boxed("Weather Report", "rain")],
                AcceptOptions::new().key(key),
            )
        };
        let command = keyed(&talk, "hello", "k");
        let first = talk.done(command.clone());
        assert!(matches!(first, Ok(Reply::Arrived { .. })), "{first:?}");
        let reused = Err(CommandError::KeyReused { key: "k".into() });
        for life in 0..2 {
            let before = talk.written();
            assert_eq!(talk.done(command.clone()), first, "life {life}");
            let other = keyed(&talk, "hello?", "k");
            assert_eq!(talk.done(other), reused);
            assert_eq!(talk.boxes().len(), 2);
            let _ = (before, conversation);
            talk.crash(left);
        }
        let other = keyed(&talk, "hello", "other key");
        assert_ne!(talk.done(other), first);
        assert_eq!(talk.boxes().len(), 4);
        if left == Left::All {
            assert_snapshot!(talk.finish());
        } else {
            let _ = talk.finish();
        }
    }
}

#[test]
fn an_idle_conversation_takes_boxes_into_its_transcript_at_once() {
    let mut talk = Talk::new(by_hand(Settings::new()));
    talk.accept([boxed("System Message", "be brief"), said("hello")]);
    talk.accept([boxed("Tool Message", "of no call")]);
    assert_eq!(
        talk.boxes(),
        [
            "1 System Message: be brief",
            "2 User Message: hello",
            "3 Tool Message: of no call"
        ]
    );
    assert_snapshot!(talk.finish());
}

#[test]
fn what_arrives_during_a_round_waits_in_order_and_outlives_a_crash() {
    let during = || {
        let mut talk = Talk::lasting(tools());
        talk.send("go");
        talk.take();
        talk.accept([said("b"), boxed("Weather Report", "a")]);
        talk.accept([boxed("System Message", "c")]);
        assert_eq!(talk.boxes(), ["1 User Message: go"]);
        talk
    };
    let after = [
        "1 User Message: go",
        "2 Agent Response: done",
        "3 User Message: b",
        "4 Weather Report: a",
        "5 System Message: c",
    ];
    let mut talk = during();
    talk.complete("done");
    assert_eq!(talk.boxes(), after);
    assert_snapshot!(talk.finish());
    for left in LEFT {
        let mut talk = during();
        talk.note(
            "its turn was interrupted by the crash: the round is stalled, the mailbox is there",
        );
        talk.crash(left);
        assert_eq!(talk.boxes(), ["1 User Message: go"]);
        assert_eq!(talk.dismiss(), Ok(Reply::Done));
        assert_eq!(talk.boxes()[2..], after[2..]);
        let _ = talk.finish();
    }
}

#[test]
fn everything_but_a_tool_message_begins_a_round() {
    for of in FROM_OUTSIDE {
        let mut talk = Talk::new(tools());
        talk.accept([boxed(of, "x")]);
        let begins = of != "Tool Message";
        assert_eq!(talk.starts.len(), usize::from(begins), "{of}");
        let _ = talk.finish();
    }
    let mut talk = Talk::new(tools());
    talk.send("go");
    talk.take();
    talk.accept([boxed("Tool Message", "half way")]);
    talk.complete("done");
    talk.note("it begins nothing, and goes with what does");
    assert_eq!(talk.starts.len(), 0);
    assert_eq!(talk.begin(), Ok(None));
    assert_eq!(talk.status(), Status::Quiet);
    talk.accept([said("and?")]);
    assert_eq!(talk.take(), ["[Box 3 | Tool Message]\nhalf way\nand?"]);
    assert_snapshot!(talk.finish());
}

#[test]
fn a_tool_message_after_a_flush_begins_nothing() {
    let mut talk = Talk::new(tools());
    talk.send("go");
    talk.take();
    talk.call("search", "{}");
    let call = talk.last_call();
    talk.take_steer();
    assert_eq!(talk.message(call, "half way"), Ok(Reply::Done));
    talk.complete("later");
    assert_eq!((talk.starts.len(), talk.steers.len()), (0, 0));
    assert_eq!(talk.status(), Status::Quiet);
    assert_eq!(talk.respond(call, ToolResult::ok("found")), Ok(Reply::Done));
    assert_eq!(talk.starts.len(), 1);
    assert_snapshot!(talk.finish());
}

#[test]
fn an_inline_result_begins_nothing() {
    let mut talk = Talk::new(tools());
    talk.send("go");
    talk.take();
    let native = talk.call("look", r#"{"at":"it"}"#);
    assert_eq!(talk.answered(&native), None, "it stays open");
    let call = talk.last_call();
    assert_eq!(talk.respond(call, ToolResult::ok("seen")), Ok(Reply::Done));
    assert_eq!(talk.answer_text(&native), Some("seen"));
    talk.complete("done");
    assert_eq!((talk.starts.len(), talk.steers.len()), (0, 0));
    assert_eq!(talk.status(), Status::Quiet);
    talk.note("the thread holds both boxes");
    talk.send("and?");
    assert_eq!(talk.take(), ["and?"]);
    assert_snapshot!(talk.finish());
}

#[test]
fn many_triggers_during_a_round_make_one_follow_up() {
    let mut talk = Talk::new(tools());
    talk.send("go");
    talk.take();
    for text in ["one", "two", "three"] {
        talk.accept([said(text)]);
    }
    talk.complete("done");
    assert_eq!(talk.starts.len(), 1);
    assert_eq!(talk.take().len(), 1);
    talk.complete("done too");
    assert_eq!(talk.starts.len(), 0, "exactly one");
    assert_eq!(talk.status(), Status::Quiet);
    assert_snapshot!(talk.finish());
}

#[test]
fn what_a_flush_has_carried_makes_no_follow_up() {
    let mut talk = Talk::new(tools());
    talk.send("go");
    talk.take();
    talk.accept([said("also this")]);
    assert_eq!(talk.steers.len(), 0, "it waits for a stage");
    talk.call("look", "{}");
    assert_eq!(input(&talk.steers[0]), ["also this"]);
    talk.take_steer();
    let call = talk.last_call();
    assert_eq!(talk.respond(call, ToolResult::ok("seen")), Ok(Reply::Done));
    talk.complete("done");
    assert_eq!(talk.starts.len(), 0);
    assert_eq!(talk.status(), Status::Quiet);
    assert_snapshot!(talk.finish());
}
