//! Results that come later, and the steers that carry them into the running turn.

use insta::assert_snapshot;
use turnkeep_core::{
    CommandError, Reply, Settings, ToolCallId, ToolResult, TurnUpdate,
    command::{Metadata, SteerWhen, ToolKind},
    event::{CallClosedWhy, Status},
    tools::{DEFERRED, TIME_LIMIT},
};
use turnkeep_tests::world::{Journal, Left, Peers, Setup, ms, tool};

use crate::talk::{LEFT, Talk, deferred, input, said, tools};

fn at_once() -> Settings {
    let mut settings = tools();
    settings.steer = SteerWhen::AtOnce;
    settings
}

/// A turn runs that has called `search`; its steer is taken.
fn searching(talk: &mut Talk) -> ToolCallId {
    talk.send("go");
    talk.take();
    talk.call("search", "{}");
    talk.take_steer();
    talk.last_call()
}

fn found(talk: &mut Talk, call: ToolCallId) {
    assert_eq!(talk.respond(call, ToolResult::ok("found")), Ok(Reply::Done));
}

const RESULT: &str = "result of call 1: ok\nfound";

#[test]
fn a_deferred_call_is_acknowledged_and_its_result_begins_a_follow_up() {
    let mut talk = Talk::new(tools());
    talk.send("go");
    talk.take();
    let native = talk.call("search", r#"{"for":"it"}"#);
    assert_eq!(talk.answered(&native), None, "its steer comes first");
    assert_eq!(
        talk.answer_steer(),
        ["[Box 3 | Tool Call]\ncall 1: search {\"for\":\"it\"}"]
    );
    assert_eq!(talk.answer_text(&native), Some(DEFERRED));
    talk.record_steer();
    talk.complete("later");
    assert_eq!(talk.status(), Status::Quiet);
    let call = talk.last_call();
    found(&mut talk, call);
    assert_eq!(talk.take(), [format!("[Box 5 | Tool Result]\n{RESULT}")]);
    talk.complete("done");
    assert_eq!(talk.starts.len(), 0, "exactly one");
    assert_snapshot!(talk.finish());
}

#[test]
fn a_result_is_steered_in_at_the_next_stage() {
    let mut talk = Talk::new(tools());
    let call = searching(&mut talk);
    found(&mut talk, call);
    assert_eq!(talk.steers.len(), 0, "there is no stage");
    talk.comment("meanwhile");
    assert_eq!(talk.steers.len(), 0, "text alone is none");
    talk.call("look", "{}");
    assert_eq!(
        talk.take_steer(),
        [format!("[Box 6 | Tool Result]\n{RESULT}")]
    );
    let look = talk.last_call();
    found(&mut talk, look);
    talk.complete("done");
    assert_eq!(talk.starts.len(), 0);
    assert_snapshot!(talk.finish());
}

#[test]
fn at_once_a_trigger_makes_a_stage_without_actions() {
    let mut talk = Talk::new(at_once());
    let call = searching(&mut talk);
    talk.comment("meanwhile");
    found(&mut talk, call);
    assert_eq!(
        talk.take_steer(),
        [format!("[Box 5 | Tool Result]\n{RESULT}")]
    );
    assert_eq!(talk.boxes()[3], "4 Agent Response: meanwhile");
    talk.note("a message of a tool makes none");
    talk.complete("done");
    assert_eq!(talk.starts.len(), 0);
    assert_snapshot!(talk.finish());
}

#[test]
fn tool_messages_alone_are_not_steered() {
    for settings in [tools(), at_once()] {
        let at_once = settings.steer == SteerWhen::AtOnce;
        let mut talk = Talk::new(settings);
        let call = searching(&mut talk);
        assert_eq!(talk.message(call, "half way"), Ok(Reply::Done));
        talk.call("look", "{}");
        assert_eq!(talk.steers.len(), 0);
        let look = talk.last_call();
        found(&mut talk, look);
        talk.note("it goes with the result");
        found(&mut talk, call);
        if !at_once {
            talk.call("say", r#"{"message":"on it"}"#);
        }
        let text = talk.take_steer().concat();
        assert!(
            text.contains("half way") && text.contains("found"),
            "{text}"
        );
        talk.complete("done");
        assert_eq!(talk.starts.len(), 0);
        assert_snapshot!(
            if at_once {
                "tool_messages_at_once"
            } else {
                "tool_messages_at_stage"
            },
            talk.finish()
        );
    }
}

#[test]
fn the_calls_of_a_stage_are_answered_after_its_steer() {
    let mut talk = Talk::new(tools());
    talk.send("go");
    talk.take();
    let natives = talk.calls_at_once(&[
        ("search", "{}"),
        ("look", "{}"),
        ("say", r#"{"message":"on it"}"#),
    ]);
    let look = talk.offered()[1].id;
    found(&mut talk, look);
    for native in &natives {
        assert_eq!(talk.answered(native), None, "the steer is unanswered");
    }
    talk.answer_steer();
    for native in &natives {
        assert!(talk.answered(native).is_some());
    }
    talk.record_steer();
    talk.complete("done");
    assert_snapshot!(talk.finish());
}

#[test]
fn calls_that_come_while_a_steer_is_unanswered_wait() {
    let mut talk = Talk::new(tools());
    talk.send("go");
    talk.take();
    talk.call("search", r#"{"n":1}"#);
    let boxes = talk.boxes();
    let second = talk.call("look", r#"{"n":2}"#);
    let third = talk.call("search", r#"{"n":3}"#);
    assert_eq!(talk.boxes(), boxes, "there is no stage yet");
    assert_eq!(talk.offered().len(), 1);
    talk.take_steer();
    talk.note("they are the next stage, and its steer");
    assert_eq!(talk.offered().len(), 3);
    talk.take_steer();
    assert_eq!(talk.answer_text(&third), Some(DEFERRED));
    assert_eq!(talk.answered(&second), None);
    let look = talk.offered()[1].id;
    found(&mut talk, look);
    talk.complete("done");
    assert_snapshot!(talk.finish());
}

#[test]
fn what_arrives_after_a_flush_was_made_is_not_in_it() {
    let mut talk = Talk::new(tools());
    talk.send("go");
    talk.take();
    talk.accept([said("before")]);
    talk.set_journal(Journal::Held);
    talk.call("search", "{}");
    assert_eq!(talk.steers.len(), 0, "its record is not durable");
    let command = talk.accept_command([said("after")], Default::default());
    talk.ask(command);
    talk.release();
    talk.serve();
    let text = talk.take_steer().concat();
    assert!(text.contains("before") && !text.contains("after"), "{text}");
    talk.complete("done");
    let text = talk.take().concat();
    assert_eq!(text, "after");
    talk.complete("that too");
    assert_snapshot!(talk.finish());
}

#[test]
fn a_flush_waits_for_its_record() {
    let mut talk = Talk::lasting(tools());
    talk.send("go");
    talk.take();
    talk.set_journal(Journal::Held);
    let native = talk.call("search", "{}");
    assert_eq!((talk.steers.len(), talk.offered().len()), (0, 0));
    talk.note("what was not durable is as if it had not been");
    talk.set_journal(Journal::AtOnce);
    talk.crash(Left::Confirmed);
    assert_eq!(talk.answered(&native), None);
    assert_eq!(talk.boxes(), ["1 User Message: go"]);
    let _ = talk.finish();

    let mut talk = Talk::lasting(tools());
    talk.send("go");
    talk.take();
    talk.set_journal(Journal::Held);
    talk.call("search", "{}");
    talk.release();
    talk.serve();
    assert_eq!(talk.steers.len(), 1);
    assert_snapshot!(talk.finish());
}

#[test]
fn a_flush_that_is_not_answered_stays_the_only_one() {
    let mut talk = Talk::new(at_once());
    talk.send("go");
    talk.take();
    talk.accept([said("one")]);
    assert_eq!(talk.steers.len(), 1);
    talk.accept([said("two")]);
    talk.accept([said("three")]);
    assert_eq!(talk.steers.len(), 1);
    assert_eq!(talk.take_steer(), ["one"]);
    talk.note("what came meanwhile is the next one");
    assert_eq!(talk.steers.len(), 1);
    assert_eq!(talk.take_steer().len(), 1);
    talk.complete("done");
    assert_eq!(talk.starts.len(), 0);
    assert_snapshot!(talk.finish());
}

#[test]
fn an_answered_steer_is_not_yet_a_recorded_one() {
    // Answered, and never taken up by the model: the turn's end tells.
    for recorded in [true, false] {
        let mut talk = Talk::new(at_once());
        talk.send("go");
        talk.take();
        talk.accept([said("also this")]);
        talk.answer_steer();
        if recorded {
            talk.record_steer();
        }
        talk.complete("done");
        assert_eq!(talk.starts.len(), usize::from(!recorded));
        let name = if recorded {
            "an_answered_steer_recorded"
        } else {
            "an_answered_steer_not_recorded"
        };
        assert_snapshot!(name, talk.finish());
    }
}

#[test]
fn a_steer_that_was_answered_and_not_recorded_gives_its_boxes_to_the_next_round() {
    let mut talk = Talk::new(tools());
    talk.send("go");
    talk.take();
    talk.accept([said("also this")]);
    talk.call("search", "{}");
    let steered = talk.answer_steer();
    talk.accept([said("and this")]);
    talk.complete("done");
    assert_eq!(talk.starts.len(), 1, "one follow-up for both");
    let text = talk.take().concat();
    assert!(text.starts_with(&steered.concat()), "{text}");
    assert!(text.ends_with("and this"), "{text}");
    talk.complete("all of it");
    assert_eq!(talk.starts.len(), 0);
    assert_snapshot!(talk.finish());
}

#[test]
fn a_steer_that_a_crash_kept_from_being_recorded_is_submitted_again() {
    for answered in [true, false] {
        for left in LEFT {
            let mut talk = Talk::lasting(tools());
            talk.send("go");
            talk.take();
            talk.accept([said("also this")]);
            talk.call("look", "{}");
            if answered {
                talk.answer_steer();
            }
            talk.crash(left);
            talk.note("the call failed, so that its round goes on with all that the thread lacks");
            let text = talk.take().concat();
            assert_eq!(text.matches("also this").count(), 1, "{text}");
            assert!(text.contains("result of call 1: failed"), "{text}");
            talk.complete("done");
            assert_eq!(talk.starts.len(), 0);
            if left == Left::All {
                let name = if answered {
                    "a_crash_after_the_answer_of_a_steer"
                } else {
                    "a_crash_before_the_answer_of_a_steer"
                };
                assert_snapshot!(name, talk.finish());
            } else {
                let _ = talk.finish();
            }
        }
    }
}

#[test]
fn a_steer_is_settled_by_the_history() {
    let mut talk = Talk::with(Setup::hand().reconnects().peers(Peers::Socket), at_once());
    talk.send("go");
    talk.take();
    talk.accept([said("also this")]);
    talk.answer_steer();
    talk.note("its item comes while nobody listens");
    talk.record_steer_unheard();
    talk.cut();
    talk.complete("done");
    assert_eq!(talk.starts.len(), 0);
    assert_eq!(talk.status(), Status::Quiet);
    assert_snapshot!(talk.finish());
}

#[test]
fn a_refused_steer_gives_its_boxes_to_the_next_round() {
    for (message, name) in [
        ("no active turn to steer", "a_refused_steer_no_active_turn"),
        (
            "expected active turn id `trn_1` but found `trn_7`",
            "a_refused_steer_mismatch",
        ),
        (
            "cannot steer a review turn",
            "a_refused_steer_not_steerable",
        ),
    ] {
        let mut talk = Talk::new(tools());
        talk.send("go");
        talk.take();
        talk.accept([said("also this")]);
        let native = talk.call("search", "{}");
        let steered = input(&talk.steers[0]);
        talk.refuse_steer(message);
        assert_eq!(talk.answer_text(&native), Some(DEFERRED));
        talk.complete("done");
        assert_eq!(talk.starts.len(), 1);
        assert_eq!(talk.take(), steered);
        talk.complete("that too");
        assert_eq!(talk.starts.len(), 0, "exactly one");
        assert_snapshot!(name, talk.finish());
    }
}

#[test]
fn a_steer_of_unknown_fate_is_looked_up_when_its_turn_has_ended() {
    for stands in [true, false] {
        let mut talk = Talk::lasting(at_once());
        talk.send("go");
        talk.take();
        talk.accept([said("also this")]);
        if stands {
            talk.record_steer_unheard();
        }
        talk.note("it is never answered");
        talk.wait(61_000);
        assert_eq!(talk.sent_of("thread/turns/list").len(), 0);
        talk.complete("done");
        talk.settle();
        assert!(!talk.sent_of("thread/turns/list").is_empty());
        talk.note("on the same process it is absent only after the settling time");
        talk.wait(11_000);
        assert_eq!(talk.starts.len(), usize::from(!stands));
        let name = if stands {
            "a_steer_of_unknown_fate_found"
        } else {
            "a_steer_of_unknown_fate_absent"
        };
        assert_snapshot!(name, talk.finish());
    }
}

#[test]
fn a_turns_end_waits_for_an_unanswered_steer() {
    for answer in ["taken", "refused", "none"] {
        let mut talk = Talk::lasting(at_once());
        let turn = talk.send("go");
        talk.take();
        talk.accept([said("also this")]);
        talk.complete("done");
        assert_eq!(talk.ended(turn), None);
        match answer {
            "taken" => drop(talk.answer_steer()),
            "refused" => talk.refuse_steer("no active turn to steer"),
            _ => talk.wait(60_000),
        }
        talk.settle();
        assert!(talk.ended(turn).is_some());
        talk.wait(if answer == "none" { 11_000 } else { 0 });
        assert_eq!(talk.starts.len(), 1, "it was in no item");
        assert_eq!(talk.take(), ["also this"]);
        talk.complete("that too");
        assert_eq!(talk.starts.len(), 0);
        assert_snapshot!(format!("an_end_waits_for_a_steer_{answer}"), talk.finish());
    }
}

#[test]
fn a_deferred_call_of_an_earlier_life_fails_and_is_not_offered_again() {
    for left in LEFT {
        let mut talk = Talk::lasting(tools());
        let call = searching(&mut talk);
        talk.complete("later");
        talk.crash(left);
        assert_eq!(talk.offered().len(), 0, "it was offered in its life");
        talk.note("the model hears of it, once");
        let text = talk.take().concat();
        assert_eq!(
            text,
            "[Box 5 | Tool Result]\nresult of call 1: failed\ninterrupted by shutdown"
        );
        assert!(matches!(
            talk.respond(call, ToolResult::ok("late")),
            Err(CommandError::CallClosed { .. } | CommandError::AnsweredDifferently { .. })
        ));
        talk.crash(left);
        talk.note("and not again");
        let failed = talk.boxes();
        let failed = failed.iter().filter(|b| b.contains("Tool Result"));
        assert_eq!(failed.count(), 1);
        if left == Left::All {
            assert_snapshot!(talk.finish());
        } else {
            let _ = talk.finish();
        }
    }
}

#[test]
fn results_and_messages_name_a_call_that_is_there() {
    let mut talk = Talk::new(tools());
    let call = searching(&mut talk);
    let before = talk.written();
    for unknown in [
        ToolCallId {
            sequence: 2,
            ..call
        },
        ToolCallId {
            sequence: 0,
            ..call
        },
    ] {
        let error = CommandError::UnknownCall { call: unknown };
        assert_eq!(
            talk.respond(unknown, ToolResult::ok("x")),
            Err(error.clone())
        );
        assert_eq!(talk.message(unknown, "x"), Err(error));
    }
    assert_eq!(talk.written(), before);
    found(&mut talk, call);
    talk.complete("done");
    assert_snapshot!(talk.finish());
}

#[test]
fn a_second_result_is_the_same_or_refused() {
    let result = || {
        ToolResult::ok("found").metadata(Metadata {
            metadata_type: "t".into(),
            contents: "c".into(),
        })
    };
    let mut talk = Talk::lasting(tools());
    let call = searching(&mut talk);
    assert_eq!(talk.respond(call, result()), Ok(Reply::Done));
    for when in ["in the mailbox", "as a box", "in the next life"] {
        let (before, boxes) = (talk.written(), talk.boxes());
        assert_eq!(talk.respond(call, result()), Ok(Reply::Done), "{when}");
        for other in [ToolResult::ok("found"), ToolResult::failed("not found")] {
            assert_eq!(
                talk.respond(call, other),
                Err(CommandError::AnsweredDifferently { call }),
                "{when}"
            );
        }
        assert_eq!((talk.written(), talk.boxes()), (before, boxes), "{when}");
        match when {
            "in the mailbox" => {
                talk.complete("done");
                talk.take();
                talk.complete("with it");
            }
            _ => talk.crash(Left::All),
        }
    }
    assert_snapshot!(talk.finish());
}

#[test]
fn a_message_after_the_result_is_refused() {
    let mut talk = Talk::new(tools());
    let call = searching(&mut talk);
    assert_eq!(talk.message(call, "half way"), Ok(Reply::Done));
    found(&mut talk, call);
    assert_eq!(
        talk.message(call, "too late"),
        Err(CommandError::CallAnswered { call })
    );
    talk.complete("done");
    assert_snapshot!(talk.finish());
}

#[test]
fn a_time_limit_answers_with_a_failure_and_drops_the_late_result() {
    let mut settings = Settings::new();
    for tool in [deferred("search"), tool("look", ToolKind::Function)] {
        settings = settings.tool(tool.time_limit(ms(5_000)));
    }
    let mut talk = Talk::new(settings);
    let turn = talk.send("go");
    talk.take();
    let natives = talk.calls_at_once(&[("search", "{}"), ("look", "{}")]);
    talk.take_steer();
    let calls: Vec<ToolCallId> = talk.offered().iter().map(|call| call.id).collect();
    talk.wait(5_000);
    assert_eq!(talk.answer_text(&natives[0]), Some(DEFERRED));
    assert_eq!(talk.answer_text(&natives[1]), Some(TIME_LIMIT));
    for call in &calls {
        let closed = CommandError::CallClosed { call: *call };
        assert_eq!(talk.respond(*call, ToolResult::ok("late")), Err(closed));
    }
    let closed = talk.updates(turn).into_iter();
    let closed = closed.filter(|update| {
        matches!(update, TurnUpdate::CallClosed { why, .. } if *why == CallClosedWhy::TimeLimit)
    });
    assert_eq!(closed.count(), 2);
    talk.complete("done");
    talk.note("the failure of the deferred one is a result like any other");
    let text = talk.take().concat();
    assert!(
        text.contains(&format!("result of call 1: failed\n{TIME_LIMIT}")),
        "{text}"
    );
    assert_snapshot!(talk.finish());
}

#[test]
fn an_inline_call_that_lost_its_native_call_turns_deferred() {
    for while_it_runs in [true, false] {
        let setup = Setup::hand().reconnects().peers(Peers::Socket);
        let mut talk = Talk::with(setup, tools());
        let turn = talk.send("go");
        talk.take();
        talk.call("look", "{}");
        let call = talk.last_call();
        if while_it_runs {
            talk.cut();
            talk.note("the server does not tell the call again, and the turn ends");
            talk.end("interrupted");
        } else {
            talk.kill_server();
        }
        talk.settle();
        assert!(talk.ended(turn).is_some());
        let name = if while_it_runs {
            "an_inline_call_cut_off"
        } else {
            "an_inline_call_of_a_killed_server"
        };
        let told = talk.updates(turn).into_iter();
        let told = told.filter(|update| matches!(update, TurnUpdate::CallDeferred { .. }));
        assert_eq!(told.count(), 1, "{name}");
        if matches!(talk.status(), Status::Stalled { .. }) {
            talk.note("the application leaves the stall only after the result");
        }
        found(&mut talk, call);
        talk.settle();
        assert_snapshot!(name, talk.finish());
    }
}

#[test]
fn a_call_that_was_closed_refuses_its_result() {
    for how in ["interrupted", "abandoned"] {
        let mut talk = Talk::new(tools());
        let turn = talk.send("go");
        talk.take();
        talk.call("look", "{}");
        let call = talk.last_call();
        match how {
            "interrupted" => talk.interrupted(turn),
            _ => {
                let command = turnkeep_core::Command::Abandon { turn };
                talk.ask(command);
                talk.grant_interrupt();
            }
        }
        let (before, boxes) = (talk.written(), talk.boxes());
        assert_eq!(
            talk.respond(call, ToolResult::ok("late")),
            Err(CommandError::CallClosed { call })
        );
        assert_eq!((talk.written(), talk.boxes()), (before, boxes));
        assert_snapshot!(format!("a_closed_call_{how}"), talk.finish());
    }
}
