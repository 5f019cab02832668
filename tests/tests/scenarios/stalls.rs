//! Rounds that fail, what leaves a stall, conversations that are held, and what is told of all of it.

use insta::assert_snapshot;
use turnkeep_core::{
    CommandError, Reply, SendOptions, ToolResult,
    command::{BusyWhy, Command},
    event::Status,
};
use turnkeep_tests::world::{Journal, Left, Setup, ms};

use crate::talk::{LEFT, Talk, boxed, by_hand, input, said, tools};

fn restartable(talk: &Talk) -> Option<bool> {
    match talk.status() {
        Status::Stalled { restartable, .. } => Some(restartable),
        _ => None,
    }
}

/// A round whose message the server has refused.
fn refused(talk: &mut Talk) {
    talk.send("go");
    talk.refuse_start("not now");
    assert_eq!(restartable(talk), Some(true));
}

/// A round that failed after its message was taken.
fn failed(talk: &mut Talk) {
    talk.send("go");
    talk.take();
    talk.comment("as far as");
    talk.end("failed");
    assert_eq!(restartable(talk), Some(false));
}

#[test]
fn every_other_end_stalls_the_conversation() {
    for how in ["failed", "refused", "timed_out", "interrupted", "lost"] {
        let mut talk = Talk::new(tools());
        match how {
            "refused" => refused(&mut talk),
            "timed_out" => {
                talk.try_send("go", SendOptions::new().deadline(ms(1_000)))
                    .unwrap();
                talk.take();
                talk.wait(1_000);
                talk.grant_interrupt();
            }
            "interrupted" => {
                talk.send("go");
                talk.take();
                talk.note("on the server's word");
                talk.end("interrupted");
            }
            "lost" => {
                talk.send("go");
                talk.take();
                talk.lose_connection();
            }
            _ => failed(&mut talk),
        }
        assert_eq!(restartable(&talk), Some(how == "refused"), "{how}");
        assert_snapshot!(format!("a_stall_{how}"), talk.finish());
    }
}

#[test]
fn only_what_was_not_accepted_may_be_restarted() {
    let mut talk = Talk::new(tools());
    refused(&mut talk);
    let _ = talk.finish();
    let mut talk = Talk::new(tools());
    failed(&mut talk);
    let _ = talk.finish();
    // A stage that the message's refusal came after.
    let mut talk = Talk::new(tools());
    talk.send("go");
    talk.take();
    talk.call("say", r#"{"message":"on it"}"#);
    talk.end("failed");
    assert_eq!(restartable(&talk), Some(false));
    let _ = talk.finish();
    // Nobody knows what became of it.
    let mut talk = Talk::new(tools());
    talk.send("go");
    talk.lose_connection();
    assert_eq!(restartable(&talk), Some(false));
    let _ = talk.finish();
    // It never left.
    let setup = Setup::hand().config(|config| config.limits.handshake = ms(1_000));
    let mut talk = Talk::with(setup.opens(turnkeep_tests::world::Opens::Never), tools());
    talk.send("go");
    talk.wait(2_000);
    assert_eq!(restartable(&talk), Some(true));
    assert_snapshot!(talk.finish());
}

#[test]
fn a_stall_outlives_a_crash() {
    for left in LEFT {
        let mut talk = Talk::lasting(tools());
        failed(&mut talk);
        let status = talk.status();
        for _ in 0..2 {
            talk.crash(left);
            assert_eq!(talk.status(), status);
            assert_eq!(talk.starts.len(), 0);
            assert!(matches!(
                talk.try_send("more", SendOptions::new()),
                Err(CommandError::Busy {
                    why: BusyWhy::Stalled { .. },
                    ..
                })
            ));
        }
        if left == Left::All {
            assert_snapshot!(talk.finish());
        } else {
            let _ = talk.finish();
        }
    }
}

#[test]
fn a_stalled_conversation_begins_nothing() {
    let mut talk = Talk::new(tools());
    failed(&mut talk);
    talk.accept([said("more")]);
    assert_eq!(talk.starts.len(), 0);
    let conversation = talk.conversation;
    let busy = |answer: Result<Reply, CommandError>| {
        assert!(
            matches!(&answer, Err(CommandError::Busy { conversation: of, why: BusyWhy::Stalled { restartable: false, .. } }) if *of == conversation),
            "{answer:?}"
        );
    };
    busy(talk.done(Command::Begin { conversation }));
    busy(talk.try_send("more", SendOptions::new()));
    assert_snapshot!(talk.finish());
}

#[test]
fn what_arrives_during_a_stall_waits_for_its_end() {
    for left in [None, Some(Left::All), Some(Left::Checkpoint)] {
        let mut talk = Talk::lasting(tools());
        failed(&mut talk);
        let before = talk.boxes();
        talk.accept([said("b")]);
        talk.accept([boxed("Weather Report", "a")]);
        assert_eq!(talk.boxes(), before);
        if let Some(left) = left {
            talk.crash(left);
        }
        assert_eq!(talk.boxes(), before);
        assert_eq!(talk.dismiss(), Ok(Reply::Done));
        assert_eq!(
            talk.boxes(),
            [
                "1 User Message: go",
                "2 Agent Response: as far as",
                "3 User Message: b",
                "4 Weather Report: a",
            ]
        );
        talk.note("only the next trigger begins a round, with all of it");
        assert_eq!(talk.starts.len(), 0);
        assert_eq!(talk.status(), Status::Quiet);
        talk.accept([said("c")]);
        let text = talk.take().concat();
        assert!(text.starts_with('b') && text.ends_with('c'), "{text}");
        talk.complete("done");
        match left {
            None => assert_snapshot!(talk.finish()),
            Some(_) => drop(talk.finish()),
        }
    }
}

#[test]
fn a_dismissal_keeps_the_text_and_fails_the_calls() {
    let mut talk = Talk::new(tools());
    talk.send("go");
    talk.take();
    talk.calls_at_once(&[("search", "{}"), ("look", "{}")]);
    talk.take_steer();
    let calls: Vec<_> = talk.offered().iter().map(|call| call.id).collect();
    talk.comment("as far as");
    talk.end("failed");
    assert_eq!(talk.dismiss(), Ok(Reply::Done));
    let boxes = talk.boxes();
    assert_eq!(boxes[4], "5 Agent Response: as far as");
    for (n, call) in (1..).zip(calls) {
        let failed = format!("Tool Result: result of call {n}: failed\n");
        assert!(boxes.iter().any(|b| b.contains(&failed)), "{boxes:?}");
        assert!(matches!(
            talk.respond(call, ToolResult::ok("late")),
            Err(CommandError::CallClosed { .. } | CommandError::AnsweredDifferently { .. })
        ));
    }
    talk.note("that triggers nothing; the next trigger begins a round");
    assert_eq!(talk.starts.len(), 0);
    assert_eq!(talk.status(), Status::Quiet);
    talk.accept([said("and?")]);
    assert_eq!(talk.starts.len(), 1);
    assert_snapshot!(talk.finish());
}

#[test]
fn a_restart_opens_the_same_round_under_a_fresh_job() {
    for left in [None, Some(Left::All), Some(Left::Checkpoint)] {
        let mut talk = Talk::lasting(by_hand(tools()));
        talk.accept([boxed("System Message", "be brief"), said("go")]);
        let first = talk.begin().unwrap().unwrap();
        let sent = input(&talk.starts[0]);
        let id = talk.starts[0].params["clientUserMessageId"].clone();
        talk.refuse_start("not now");
        if let Some(left) = left {
            talk.crash(left);
        }
        assert_eq!(restartable(&talk), Some(true));
        let Ok(Reply::Accepted { turn, .. }) = talk.restart() else {
            panic!("it may be restarted")
        };
        assert!(turn > first, "a fresh job");
        assert_ne!(talk.starts[0].params["clientUserMessageId"], id);
        assert_eq!(talk.take(), sent);
        talk.complete("done");
        assert_eq!(
            talk.boxes(),
            [
                "1 System Message: be brief",
                "2 User Message: go",
                "3 Agent Response: done"
            ]
        );
        match left {
            None => assert_snapshot!(talk.finish()),
            Some(_) => drop(talk.finish()),
        }
    }
}

#[test]
fn a_restart_leaves_the_mailbox_queued() {
    let mut talk = Talk::new(tools());
    refused(&mut talk);
    talk.accept([said("later")]);
    talk.restart().unwrap();
    assert_eq!(talk.boxes(), ["1 User Message: go"]);
    assert_eq!(talk.take(), ["go"]);
    talk.complete("done");
    assert_eq!(
        talk.boxes()[1..],
        ["2 Agent Response: done", "3 User Message: later"]
    );
    assert_eq!(talk.take(), ["later"]);
    talk.complete("that too");
    assert_snapshot!(talk.finish());
}

#[test]
fn a_restart_on_a_new_thread_gives_it_all() {
    let mut talk = Talk::lasting(by_hand(tools()));
    talk.accept([boxed("System Message", "be brief"), said("go")]);
    talk.begin().unwrap();
    let sent = input(&talk.starts[0]);
    talk.refuse_start("not now");
    talk.note("a thread without a turn dies with its server");
    talk.forgets = true;
    talk.kill_server();
    talk.restart().unwrap();
    talk.settle();
    assert_eq!(talk.thread(), "thr_2");
    assert_eq!(talk.take(), sent);
    talk.complete("done");
    assert_snapshot!(talk.finish());
}

#[test]
fn a_restart_is_refused_for_three_reasons() {
    let mut talk = Talk::new(tools());
    let conversation = talk.conversation;
    let refused = |talk: &mut Talk, error: CommandError| {
        let before = (talk.written(), talk.sent().len());
        assert_eq!(talk.restart(), Err(error));
        assert_eq!((talk.written(), talk.sent().len()), before);
    };
    refused(&mut talk, CommandError::NotStalled { conversation });
    failed(&mut talk);
    refused(&mut talk, CommandError::MayBeAccepted { conversation });
    assert_eq!(talk.dismiss(), Ok(Reply::Done));
    assert_eq!(
        talk.dismiss(),
        Err(CommandError::NotStalled { conversation })
    );
    for act in [("say", r#"{"message":"on it"}"#), ("search", "{}")] {
        talk.send("again");
        talk.take();
        talk.call(act.0, act.1);
        if !talk.steers.is_empty() {
            talk.take_steer();
        }
        talk.end("failed");
        refused(
            &mut talk,
            CommandError::ProviderActionAccepted { conversation },
        );
        assert_eq!(talk.dismiss(), Ok(Reply::Done));
        if !talk.starts.is_empty() {
            talk.take();
            talk.complete("done");
        }
    }
    assert_snapshot!(talk.finish());
}

#[test]
fn a_failed_round_voids_its_flush() {
    let mut talk = Talk::new(tools());
    talk.send("go");
    talk.take();
    talk.accept([said("also this")]);
    talk.call("search", "{}");
    let steered = input(&talk.steers[0]).concat();
    talk.lose_connection();
    assert_eq!(restartable(&talk), Some(false));
    talk.note("its boxes are in the transcript, and not with the thread");
    assert_eq!(talk.dismiss(), Ok(Reply::Done));
    assert!(steered.contains("also this"));
    let boxes = talk.boxes();
    assert!(boxes.iter().any(|b| b.ends_with("also this")), "{boxes:?}");
    assert_snapshot!(talk.finish());
}

#[test]
fn a_round_that_completes_with_a_call_open_is_stalled() {
    let mut talk = Talk::new(tools());
    talk.send("go");
    talk.take();
    let native = talk.call("look", "{}");
    talk.complete("done");
    assert_eq!(talk.answered(&native).unwrap()["error"]["code"], -32_800);
    assert_eq!(restartable(&talk), Some(false));
    talk.note("nothing is lost");
    assert_eq!(talk.dismiss(), Ok(Reply::Done));
    let boxes = talk.boxes();
    assert!(boxes.iter().any(|b| b.ends_with("done")), "{boxes:?}");
    assert_snapshot!(talk.finish());
}

#[test]
fn an_end_that_finds_a_flush_unsent_waits_for_it() {
    let mut talk = Talk::new(tools());
    let turn = talk.send("go");
    talk.take();
    talk.set_journal(Journal::Held);
    talk.call("search", "{}");
    assert_eq!(
        talk.steers.len(),
        0,
        "it is made, and its record is not durable"
    );
    talk.complete("done");
    talk.release();
    talk.settle();
    assert_eq!(talk.steers.len(), 1);
    assert_eq!(talk.ended(turn), None);
    assert_snapshot!(talk.finish());
}

#[test]
fn a_held_conversation_begins_nothing_until_it_is_released() {
    for left in [None, Some(Left::All), Some(Left::Checkpoint)] {
        let mut talk = Talk::lasting(tools());
        let conversation = talk.conversation;
        let reason = "maintenance".to_owned();
        assert_eq!(talk.hold(&reason), Ok(Reply::Done));
        assert_eq!(talk.hold("another reason"), Ok(Reply::Done));
        talk.accept([said("hello")]);
        if let Some(left) = left {
            talk.crash(left);
        }
        assert_eq!(
            talk.status(),
            Status::Held {
                reason: reason.clone()
            }
        );
        assert_eq!(talk.starts.len(), 0);
        let why = BusyWhy::Held { reason };
        let busy = CommandError::Busy { conversation, why };
        assert_eq!(talk.begin(), Err(busy.clone()));
        assert_eq!(talk.try_send("more", SendOptions::new()), Err(busy));
        assert_eq!(talk.release_conversation(), Ok(Reply::Done));
        talk.settle();
        assert_eq!(talk.take(), ["hello"]);
        talk.note("a round that is open goes on when the conversation is held");
        assert_eq!(talk.hold("again"), Ok(Reply::Done));
        talk.accept([said("more")]);
        talk.complete("done");
        assert_eq!(talk.starts.len(), 0);
        assert_eq!(talk.release_conversation(), Ok(Reply::Done));
        assert_eq!(talk.take(), ["more"]);
        talk.complete("done too");
        match left {
            None => assert_snapshot!(talk.finish()),
            Some(_) => drop(talk.finish()),
        }
    }
}

#[test]
fn the_status_is_told_when_it_changes() {
    let mut talk = Talk::new(by_hand(tools()));
    talk.accept([said("hello")]);
    assert_eq!(talk.hold("not yet"), Ok(Reply::Done));
    assert_eq!(talk.release_conversation(), Ok(Reply::Done));
    talk.begin().unwrap();
    talk.take();
    talk.accept([said("more")]);
    talk.complete("done");
    talk.begin().unwrap();
    talk.refuse_start("not now");
    talk.restart().unwrap();
    talk.take();
    talk.complete("done");
    let told: Vec<String> = talk
        .statuses()
        .iter()
        .map(|status| format!("{status:?}"))
        .collect();
    for pair in told.windows(2) {
        assert_ne!(pair[0], pair[1], "it is told when it changes");
    }
    assert_snapshot!(told.join("\n"));
    let _ = talk.finish();
}
