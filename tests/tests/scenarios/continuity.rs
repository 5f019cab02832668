//! What the native thread holds of a conversation, and what it is told when it is another one.

use insta::assert_snapshot;
use turnkeep_core::{CommandError, Reply, SendOptions, command::Command, event::Status};
use turnkeep_tests::world::{Left, json};

use crate::talk::{LEFT, Talk, boxed, said, tools};

/// Two rounds, the first of which carried a message of the system.
fn talked(talk: &mut Talk) {
    talk.accept([boxed("System Message", "be brief"), said("one")]);
    talk.take();
    talk.complete("first");
    talk.send("two");
    talk.take();
    talk.complete("second");
}

#[test]
fn a_resumed_thread_gets_only_the_rest() {
    for left in LEFT {
        let mut talk = Talk::lasting(tools());
        talked(&mut talk);
        talk.kill_server();
        talk.send("three");
        talk.settle();
        assert_eq!(talk.take(), ["three"]);
        talk.complete("third");
        talk.crash(left);
        talk.send("four");
        talk.settle();
        assert_eq!(talk.take(), ["four"]);
        talk.complete("fourth");
        assert_eq!(talk.thread(), "thr_1");
        if left == Left::All {
            assert_snapshot!(talk.finish());
        } else {
            let _ = talk.finish();
        }
    }
}

#[test]
fn a_reset_conversation_is_told_to_its_new_thread() {
    let mut talk = Talk::lasting(tools());
    talked(&mut talk);
    let conversation = talk.conversation;
    assert_eq!(talk.done(Command::Reset { conversation }), Ok(Reply::Done));
    assert_eq!(talk.status(), Status::Quiet, "that triggers nothing");
    talk.send("three");
    let text = talk.take().concat();
    assert_eq!(talk.thread(), "thr_2");
    for part in ["be brief", "one", "first", "two", "second", "three"] {
        assert_eq!(text.matches(part).count(), 1, "{text}");
    }
    talk.complete("third");
    talk.note("it is told once");
    talk.send("four");
    assert_eq!(talk.take(), ["four"]);
    talk.complete("fourth");
    assert_snapshot!(talk.finish());
}

#[test]
fn a_lost_thread_is_told_it_all_on_the_applications_word() {
    for left in LEFT {
        let mut talk = Talk::lasting(tools());
        talked(&mut talk);
        talk.forgets = true;
        talk.crash(left);
        talk.note("nothing is made up for a thread that is gone");
        let answer = talk.try_send("three", SendOptions::new());
        talk.note(&format!("{answer:?}").replace(|c: char| c.is_ascii_hexdigit(), "x"));
        talk.settle();
        assert_eq!(talk.starts.len(), 0);
        if !matches!(talk.status(), Status::Quiet) {
            assert_eq!(talk.dismiss(), Ok(Reply::Done));
        }
        let conversation = talk.conversation;
        assert_eq!(talk.done(Command::Reset { conversation }), Ok(Reply::Done));
        talk.forgets = false;
        if talk.starts.is_empty() {
            talk.send("four");
        }
        talk.settle();
        let text = talk.take().concat();
        for part in ["be brief", "one", "first", "two", "second"] {
            assert_eq!(text.matches(part).count(), 1, "{text}");
        }
        talk.complete("third");
        let _ = talk.finish();
    }
}

#[test]
fn tools_and_instructions_change_between_rounds_with_a_new_thread() {
    for left in [None, Some(Left::All), Some(Left::Checkpoint)] {
        let mut talk = Talk::lasting(tools());
        talked(&mut talk);
        let conversation = talk.conversation;
        let settings = tools().tool(turnkeep_core::Tool::function(
            "more",
            "",
            json(r#"{"type":"object"}"#),
        ));
        let change = Command::Change {
            conversation,
            settings: Box::new(settings.developer_instructions("be slow")),
        };
        assert_eq!(talk.done(change.clone()), Ok(Reply::Done));
        if let Some(left) = left {
            talk.crash(left);
        }
        talk.send("three");
        talk.settle();
        let text = talk.take().concat();
        assert_eq!(talk.thread(), "thr_2");
        assert_eq!(text.matches("second").count(), 1, "{text}");
        talk.note("not while a round is open");
        let other = Command::Change {
            conversation,
            settings: Box::new(tools()),
        };
        let answer = talk.done(other);
        assert!(
            matches!(answer, Err(CommandError::Busy { .. })),
            "{answer:?}"
        );
        talk.complete("third");
        match left {
            None => assert_snapshot!(talk.finish()),
            Some(_) => drop(talk.finish()),
        }
    }
}

#[test]
fn a_message_that_was_sent_again_carries_its_boxes_once() {
    for answered in [true, false] {
        let mut talk = Talk::lasting(tools());
        talk.accept([boxed("System Message", "be brief"), said("one")]);
        if answered {
            talk.answer_start();
        }
        talk.note("the server dies before anything of it is recorded");
        talk.kill_server();
        let text = talk.take().concat();
        assert!(text.contains("be brief") && text.contains("one"), "{text}");
        talk.complete("done");
        talk.send("two");
        assert_eq!(talk.take(), ["two"]);
        talk.complete("done");
        let name = if answered {
            "a_message_sent_again_answered"
        } else {
            "a_message_sent_again_unanswered"
        };
        assert_snapshot!(name, talk.finish());
    }
}
