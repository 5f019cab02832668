//! Threads that cannot be resumed, histories that cannot be read, and connections that do not come back.

use insta::assert_snapshot;
use turnkeep_core::{
    CloseReason, CommandError, Outcome, Reply, Settings, TurnUpdate,
    command::{RequestEffect, ToolKind},
    config::UnresolvedThread,
    event::{ConnectionEvent, ConversationUpdate, Event, HistoryError, LostReason, Warning},
};
use turnkeep_tests::world::{Opens, Peers, World, ms, tool};

use crate::{
    Scene, own, past,
    reconnect::{away, cut_in_mid_turn, cut_socket_in_mid_turn, over_socket, sent, with_children},
    said,
};

const NO_ROLLOUT: &str = "no rollout found for thread id thr_1";
const WRITER: &str = "thread thr_1 already has an active writer";

fn told(world: &World) -> Vec<ConversationUpdate> {
    let all = world.events().iter().filter_map(|event| match event {
        Event::Conversation(event) => Some(event.update.clone()),
        _ => None,
    });
    all.collect()
}

fn other_thread(scene: Scene) -> Scene {
    scene
        .line(r#"C {"id":"$t2","method":"thread/start","params":{"threadSource":"$mark2"}}"#)
        .line(r#"S {"id":"$t2","result":{"thread":{"id":"thr_2"}}}"#)
        .line(r#"C {"id":"$b1","method":"turn/start","params":{"threadId":"thr_2","clientUserMessageId":"$m1"}}"#)
        .line(r#"S {"id":"$b1","result":{"turn":{"id":"trn_2"}}}"#)
        .line(r#"S {"method":"turn/completed","params":{"threadId":"thr_2","turn":{"id":"trn_2","status":"completed"}}}"#)
}

#[test]
fn a_thread_that_never_ran_and_is_gone_is_made_again() {
    let scene = Scene::new().accept(1).line("X sleep 5\nX die").next_life();
    let scene = other_thread(scene.refuse_resume(NO_ROLLOUT));
    let (mut world, _, turn) = sent(with_children(scene));
    assert!(matches!(
        world.end_of(turn).outcome,
        Outcome::Completed { .. }
    ));
    assert_snapshot!(world.finish());
}

#[test]
fn a_thread_that_ran_and_is_gone_is_lost() {
    for (spoke, name) in [(true, "in_this_turn"), (false, "before")] {
        let scene = match spoke {
            true => Scene::new().begin(1).say(1, "half"),
            false => Scene::new().turn(1, "one").accept(2),
        };
        let scene = scene
            .line("X sleep 5\nX die")
            .next_life()
            .refuse_resume(NO_ROLLOUT);
        let scene = scene.refuse_resume(NO_ROLLOUT);
        let (mut world, conversation, mut turn) = sent(with_children(scene));
        if !spoke {
            world.acknowledge(turn);
            turn = world.send(conversation, "more");
        }
        world.run(4);
        world.log_from_here();
        let end = world.end_of(turn);
        let Outcome::Lost {
            reason: LostReason::ThreadLost(_),
        } = end.outcome
        else {
            panic!("{:?}", end.outcome)
        };
        world.note("the next message finds it gone too");
        world.dismiss(conversation);
        let next = world.send(conversation, "and now");
        assert!(matches!(
            world.end_of(next).outcome,
            Outcome::Rejected { .. }
        ));
        let lost = told(&world).into_iter();
        let lost = lost.filter(|update| matches!(update, ConversationUpdate::ThreadLost { .. }));
        assert_eq!(lost.count(), 2);
        assert_snapshot!(
            format!("a_thread_that_ran_and_is_gone_{name}"),
            world.finish()
        );
    }
}

#[test]
fn another_home_is_told_and_absence_there_proves_nothing() {
    let scene = cut_in_mid_turn()
        .line(r#"C {"id":"$i","method":"initialize"}"#)
        .line(r#"S {"id":"$i","result":{"userAgent":"codex/0.171.0","codexHome":"/other-home"}}"#)
        .resume("idle")
        .history(&[]);
    let (mut world, _, turn) = sent(with_children(scene));
    assert!(matches!(
        world.end_of(turn).outcome,
        Outcome::Unknown { .. }
    ));
    assert_eq!(world.sent_of("turn/start").len(), 1);
    assert_snapshot!(world.finish());
}

#[test]
fn a_thread_that_another_home_lacks_is_not_made_again() {
    let scene = cut_in_mid_turn()
        .line(r#"C {"id":"$i","method":"initialize"}"#)
        .line(r#"S {"id":"$i","result":{"userAgent":"codex/0.171.0","codexHome":"/other-home"}}"#)
        .refuse_resume(NO_ROLLOUT);
    let (mut world, _, turn) = sent(with_children(scene));
    world.end_of(turn);
    assert_eq!(world.sent_of("thread/start").len(), 1);
    assert_snapshot!(world.finish());
}

#[test]
fn a_writer_elsewhere_is_waited_for_with_pauses() {
    let scene = cut_in_mid_turn()
        .refuse_resume(WRITER)
        .refuse_resume(WRITER)
        .resume("idle")
        .history(&[past(1, "completed", &[own("m1"), said("done")])]);
    let setup = with_children(scene).config(|config| config.limits.reconnect_first = ms(100));
    let (mut world, _, turn) = sent(setup);
    assert_eq!(world.end_of(turn).text.as_deref(), Some("done"));
    assert_snapshot!(world.finish());
}

#[test]
fn a_writer_that_stays_is_the_end_of_the_turn() {
    let scene = cut_in_mid_turn()
        .refuse_resume(WRITER)
        .refuse_resume(WRITER)
        .refuse_resume(WRITER);
    let setup = with_children(scene).config(|config| config.limits.reconnect_tries = 2);
    let (mut world, _, turn) = sent(setup);
    let Outcome::Lost {
        reason: LostReason::WriterElsewhere(_),
    } = world.end_of(turn).outcome
    else {
        panic!("it was not told as lost")
    };
    assert_snapshot!(world.finish());
}

/// Whether an error is the one that was wanted.
type IsIt = fn(&HistoryError) -> bool;

#[test]
fn a_history_that_contradicts_itself_decides_nothing() {
    let full = |id: &str, status: &str, items: &str| {
        format!(
            r#"{{"id":"{id}","items":[{items}],"itemsView":"full","status":"{status}","error":null}}"#
        )
    };
    let mine = r#"{"type":"userMessage","id":"i","clientId":"$m1","content":[]}"#;
    let page = |turns: &str, next: &str| format!(r#"{{"data":[{turns}],"nextCursor":{next}}}"#);
    let cursor = page("", r#""again""#);
    let cases: [(Vec<String>, IsIt, &str); 8] = [
        (
            vec![cursor.clone(), cursor],
            |e| matches!(e, HistoryError::Cursor),
            "cursor",
        ),
        (
            vec![page("", r#"" ""#)],
            |e| matches!(e, HistoryError::Cursor),
            "bad_cursor",
        ),
        (
            vec![page(
                &full("trn_1", "completed", "").replace("full", "summary"),
                "null",
            )],
            |e| matches!(e, HistoryError::PartialItems { .. }),
            "partial",
        ),
        (
            vec![page(
                &[
                    full("trn_1", "completed", mine),
                    full("trn_2", "completed", mine),
                ]
                .join(","),
                "null",
            )],
            |e| matches!(e, HistoryError::MessageTwice { .. }),
            "message_twice",
        ),
        (
            vec![page(
                &[
                    full("trn_1", "completed", ""),
                    full("trn_1", "completed", ""),
                ]
                .join(","),
                "null",
            )],
            |e| matches!(e, HistoryError::TurnTwice { .. }),
            "turn_twice",
        ),
        (
            vec![page(
                &[
                    full("trn_2", "inProgress", ""),
                    full("trn_1", "inProgress", mine),
                ]
                .join(","),
                "null",
            )],
            |e| matches!(e, HistoryError::TwoRunning { .. }),
            "two_running",
        ),
        (
            vec![page(&full(" ", "completed", ""), "null")],
            |e| matches!(e, HistoryError::TurnId),
            "turn_id",
        ),
        (
            vec![r#"{"turns":[]}"#.into()],
            |e| matches!(e, HistoryError::Shape { .. }),
            "shape",
        ),
    ];
    for (pages, is_it, name) in cases {
        let scene = pages
            .iter()
            .fold(cut_in_mid_turn().resume("idle"), |scene, page| {
                scene.bad_history(page)
            });
        let (mut world, _, turn) = sent(with_children(scene));
        let end = world.end_of(turn);
        assert!(
            matches!(end.outcome, Outcome::Unknown { .. }),
            "{name}: {:?}",
            end.outcome
        );
        let warned = told(&world).into_iter().any(|update| match update {
            ConversationUpdate::Warning(Warning::History(error)) => is_it(&error),
            _ => false,
        });
        assert!(warned, "{name}");
        let log = world.finish();
        if name == "message_twice" {
            assert_snapshot!(log);
        }
    }
}

#[test]
fn a_history_that_is_refused_or_not_answered_decides_nothing() {
    let refused = cut_in_mid_turn().resume("idle").answer(
        "thread/turns/list",
        r#""threadId":"thr_1""#,
        r#""error":{"code":-32603,"message":"disk on fire"}"#,
    );
    let (mut world, _, turn) = sent(with_children(refused));
    assert!(matches!(
        world.end_of(turn).outcome,
        Outcome::Unknown { .. }
    ));
    assert_snapshot!("a_history_that_is_refused", world.finish());
    let silent = cut_in_mid_turn()
        .line(r#"C* {"id":"$h","method":"thread/turns/list"}"#)
        .resume("idle");
    let setup = with_children(silent).config(|config| config.limits.request = ms(500));
    let (mut world, _, turn) = sent(setup);
    assert!(matches!(
        world.end_of(turn).outcome,
        Outcome::Unknown { .. }
    ));
    assert_eq!(
        world.sent_of("thread/turns/list").len(),
        4,
        "three more tries"
    );
    assert_snapshot!("a_history_that_is_not_answered", world.finish());
}

#[test]
fn a_resume_that_is_not_answered_is_tried_again_and_given_up() {
    let silent = cut_in_mid_turn().line(r#"C* {"id":"$h","method":"thread/resume"}"#);
    let setup = with_children(silent).config(|config| config.limits.request = ms(500));
    let (mut world, _, turn) = sent(setup);
    assert!(matches!(
        world.end_of(turn).outcome,
        Outcome::Unknown { .. }
    ));
    assert_snapshot!(world.finish());
}

#[test]
fn a_resume_that_is_refused_for_another_reason_decides_nothing() {
    let scene = cut_in_mid_turn().refuse_resume("failed to load configuration: /w/c.toml:1:1: x");
    let (mut world, _, turn) = sent(with_children(scene));
    assert!(matches!(
        world.end_of(turn).outcome,
        Outcome::Unknown { .. }
    ));
    assert_snapshot!(world.finish());
}

#[test]
fn a_thread_without_a_recorded_message_has_an_empty_history() {
    let scene = cut_in_mid_turn()
        .resume("idle")
        .answer(
            "thread/turns/list",
            r#""threadId":"thr_1""#,
            r#""error":{"code":-32600,"message":"thread thr_1 is not materialized yet; thread/turns/list is unavailable before first user message"}"#,
        )
        .turn_again(1, 2, "done");
    let (mut world, _, turn) = sent(with_children(scene));
    assert_eq!(world.end_of(turn).text.as_deref(), Some("done"));
    assert_snapshot!(world.finish());
}

#[test]
fn the_history_is_read_only_as_far_as_it_is_needed() {
    let page = |turns: &[String]| format!(r#"{{"data":[{}],"nextCursor":"c1"}}"#, turns.join(","));
    let scene = cut_in_mid_turn()
        .resume("idle")
        .bad_history(&page(&[past(3, "completed", &[said("theirs")])]))
        .answer(
            "thread/turns/list",
            r#""threadId":"thr_1","cursor":"c1""#,
            &format!(
                r#""result":{{"data":[{}],"nextCursor":"c2"}}"#,
                past(1, "completed", &[own("m1"), said("done")])
            ),
        );
    let (mut world, _, turn) = sent(with_children(scene));
    assert_eq!(world.end_of(turn).text.as_deref(), Some("done"));
    assert_snapshot!(world.finish());
}

#[test]
fn a_turn_that_is_just_ending_on_a_living_server_is_looked_at_again() {
    let ending = || {
        let turn = past(1, "interrupted", &[own("m1"), said("done")]);
        turn.replacen('{', r#"{"completedAt":null,"#, 1)
    };
    let over = past(1, "completed", &[own("m1"), said("done")]);
    let ends = cut_socket_in_mid_turn()
        .resume("active")
        .history(&[ending()])
        .history(&[over]);
    let (mut world, _, turn) = sent(over_socket(ends));
    let end = world.end_of(turn);
    assert_eq!(end.outcome.name(), "completed");
    assert_snapshot!("a_turn_that_was_just_ending", world.finish());

    // On a thread that runs nothing it is what it seems.
    let idle = cut_socket_in_mid_turn().resume("idle").history(&[ending()]);
    let (mut world, _, turn) = sent(over_socket(idle));
    assert_eq!(world.end_of(turn).outcome.name(), "interrupted");
    assert_snapshot!(
        "a_turn_that_was_interrupted_on_a_living_server",
        world.finish()
    );

    // And it is not waited for for ever.
    let never = cut_socket_in_mid_turn()
        .histories(&[ending()])
        .resume("active");
    let setup = over_socket(never).config(|config| config.limits.settle = ms(500));
    let (mut world, _, turn) = sent(setup);
    assert_eq!(world.end_of(turn).outcome.name(), "interrupted");
    assert_snapshot!("a_turn_that_seems_to_end_for_long", world.finish());
}

#[test]
fn an_idle_thread_with_a_running_turn_is_looked_at_again() {
    let runs = || past(1, "inProgress", &[own("m1")]);
    let over = past(1, "completed", &[own("m1"), said("done")]);
    let second = cut_in_mid_turn()
        .resume("idle")
        .history(&[runs()])
        .history(&[over]);
    let (mut world, _, turn) = sent(with_children(second));
    assert_eq!(world.end_of(turn).text.as_deref(), Some("done"));
    assert_snapshot!("an_idle_thread_whose_turn_has_ended", world.finish());

    let frame = cut_socket_in_mid_turn()
        .resume("idle")
        .history(&[runs()])
        .say(1, "it ran")
        .end(1, "completed");
    let (mut world, _, turn) = sent(over_socket(frame));
    assert_eq!(world.end_of(turn).text.as_deref(), Some("it ran"));
    assert_snapshot!("an_idle_thread_whose_turn_runs", world.finish());

    let never = cut_in_mid_turn().histories(&[runs()]).resume("idle");
    let setup = with_children(never).config(|config| config.limits.settle = ms(500));
    let (mut world, _, turn) = sent(setup);
    let Outcome::Lost {
        reason: LostReason::NeverEnded,
    } = world.end_of(turn).outcome
    else {
        panic!("it was not told as lost")
    };
    assert_snapshot!("an_idle_thread_whose_turn_never_ends", world.finish());
}

#[test]
fn a_connection_that_cannot_be_opened_again_is_given_up_after_the_tries() {
    let setup = with_children(cut_in_mid_turn()).config(|config| {
        config.limits.reconnect_first = ms(100);
        config.limits.reconnect_longest = ms(300);
        config.limits.reconnect_tries = 3;
    });
    let (mut world, conversation, turn) = sent(setup);
    world.set_opens(Opens::Fails(CloseReason::OpenFailed(
        "no more processes".into(),
    )));
    let Outcome::Lost {
        reason: LostReason::Connection(_),
    } = world.end_of(turn).outcome
    else {
        panic!("it was not told as lost")
    };
    let refused = world.send_refused(conversation, "more");
    assert!(matches!(refused, CommandError::Disconnected { .. }));
    assert_snapshot!(world.finish());
}

#[test]
fn some_ends_are_final() {
    let not_found = CloseReason::NotFound(vec!["codex".into()]);
    let (mut world, _, turn) = sent(with_children(cut_in_mid_turn()));
    world.set_opens(Opens::Fails(not_found));
    assert!(matches!(world.end_of(turn).outcome, Outcome::Lost { .. }));
    assert_snapshot!("a_program_that_is_gone_is_final", world.finish());
    for (answer, name) in [
        (
            r#""result":{"userAgent":"codex/0.99.0","codexHome":"/h"}"#,
            "an_unsupported_version",
        ),
        (
            r#""error":{"code":-32600,"message":"go away"}"#,
            "a_refused_handshake",
        ),
    ] {
        let scene = cut_in_mid_turn().answer("initialize", "", answer);
        let (mut world, _, turn) = sent(with_children(scene));
        assert!(matches!(world.end_of(turn).outcome, Outcome::Lost { .. }));
        assert_snapshot!(format!("{name}_is_final"), world.finish());
    }
}

#[test]
fn a_connection_that_does_not_answer_an_interrupt_is_replaced_and_the_end_corrected() {
    let scene = Scene::new()
        .begin(1)
        .stop(1)
        .line("X eof")
        .next_life()
        .resume("idle")
        .history(&[past(1, "completed", &[own("m1"), said("done")])])
        .turn(2, "two");
    let (mut world, conversation, turn) = sent(with_children(scene));
    let stop = world.interrupt(turn);
    world.log_from_here();
    assert_eq!(
        world.answer_of(stop),
        Err(CommandError::InterruptUnanswered)
    );
    world.run(1_000);
    let corrected = world.updates(turn).into_iter().any(|update| match update {
        TurnUpdate::Corrected(end) => matches!(end.outcome, Outcome::Completed { .. }),
        _ => false,
    });
    assert!(corrected);
    world.dismiss(conversation);
    let next = world.send(conversation, "more");
    assert_eq!(world.end_of(next).text.as_deref(), Some("two"));
    assert_snapshot!(world.finish());
}

#[test]
fn a_start_that_had_not_left_goes_out_on_the_next_connection() {
    let scene = Scene::new()
        .line(r#"C {"id":"$o","method":"turn/start","params":{"input":"$i1","clientUserMessageId":"$m1"}}"#)
        .line(r#"S {"id":"$o","error":{"code":-32001,"message":"Server overloaded; retry later."}}"#)
        .line("X die")
        .next_life()
        .resume("idle")
        .turn_again(1, 1, "done");
    let (mut world, _, turn) = sent(with_children(scene));
    assert_eq!(world.end_of(turn).text.as_deref(), Some("done"));
    assert_eq!(world.machine().counters().resent, 0);
    assert_snapshot!(world.finish());
}

#[test]
fn a_thread_whose_making_nobody_can_tell_of_is_made_again_or_not() {
    for (how, name) in [
        (UnresolvedThread::Again, "again"),
        (UnresolvedThread::Ask, "ask"),
    ] {
        for over in ["new_process", "same_process", "deadline"] {
            // A process that is gone has not stored it: nobody need be asked.
            let is_made = how == UnresolvedThread::Again || over == "new_process";
            let start = r#"C {"method":"thread/start","params":{"threadSource":"$mark1"}}"#;
            let scene = match over {
                "deadline" => Scene::new().line(start),
                _ => Scene::new()
                    .line(start)
                    .line("X sleep 5\nX die")
                    .next_life(),
            };
            let scene = if is_made {
                scene.turn(1, "done")
            } else {
                scene
            };
            let scene = scene.turn(2, "two");
            let setup = match over {
                "same_process" => over_socket(scene),
                _ => with_children(scene),
            };
            let setup = setup.config(|config| {
                config.unresolved_thread = how;
                config.limits.request = ms(500);
            });
            let (mut world, conversation, turn) = sent(setup);
            let end = world.end_of(turn);
            let made = matches!(end.outcome, Outcome::Completed { .. });
            assert_eq!(made, is_made, "{name} {over}");
            let next = match made {
                true => world.send(conversation, "more"),
                false => world.restart(conversation),
            };
            assert_eq!(world.end_of(next).text.as_deref(), Some("two"));
            assert_snapshot!(
                format!("an_unresolved_thread_{name}_{over}"),
                world.finish()
            );
        }
    }
}

#[test]
fn what_is_asked_while_nobody_is_there_waits_or_is_done_at_once() {
    let scene = cut_in_mid_turn()
        .resume("idle")
        .answer("config/read", "", r#""result":{"config":{}}"#)
        .history(&[past(1, "interrupted", &[own("m1")])]);
    let (mut world, conversation, turn) = away(with_children(scene));
    let read = world.request("config/read", "{}", RequestEffect::Reads);
    let busy = world.send_refused(conversation, "more");
    assert!(matches!(busy, CommandError::Busy { .. }));
    let close = world.close(conversation);
    assert!(matches!(
        world.answer(close),
        Some(Err(CommandError::Busy { .. }))
    ));
    let other = world.open("b", Settings::new());
    let close = world.close(other);
    assert_eq!(world.answer(close), Some(&Ok(Reply::Done)));
    assert!(matches!(world.answer_of(read), Ok(Reply::Response(_))));
    world.end_of(turn);
    assert_snapshot!(world.finish());
}

#[test]
fn shutting_down_while_nobody_is_there_ends_every_wait() {
    let call = r#"S {"id":0,"method":"item/tool/call","params":{"threadId":"thr_1","turnId":"trn_1","callId":"call_0","tool":"look","arguments":{}}}"#;
    let scene = Scene::new()
        .begin(1)
        .line(call)
        .line("X sleep 5\nX die")
        .next_life();
    let setup = with_children(scene).config(|config| config.limits.reconnect_first = ms(1_000));
    let mut world = setup.start();
    let settings = Settings::new().tool(tool("look", ToolKind::Function));
    let conversation = world.open("a", settings);
    let turn = world.send(conversation, "go");
    world.run(6);
    world.log_from_here();
    let stop = world.interrupt(turn);
    let read = world.request("config/read", "{}", RequestEffect::Reads);
    let down = world.shut_down();
    assert!(matches!(world.answer(down), Some(Ok(Reply::ShutDown(_)))));
    assert_eq!(world.answer(stop), Some(&Err(CommandError::ClosedByUs)));
    assert_eq!(world.answer(read), Some(&Err(CommandError::ClosedByUs)));
    let Outcome::Lost {
        reason: LostReason::ClosedByUs,
    } = world.end_of(turn).outcome
    else {
        panic!("it was not told as lost")
    };
    assert_snapshot!(world.finish());
}

#[test]
fn a_start_without_an_answer_on_a_connection_that_lives_is_looked_up() {
    let scene = Scene::new()
        .line(r#"C {"method":"turn/start","params":{"clientUserMessageId":"$m1","input":"$i1"}}"#)
        .line("X sleep 600")
        .history(&[])
        .history(&[past(1, "inProgress", &[own("m1")])])
        .say(1, "done")
        .end(1, "completed");
    let setup = over_socket(scene).config(|config| config.limits.request = ms(500));
    let (mut world, _, turn) = sent(setup.peers(Peers::Children));
    assert_eq!(world.end_of(turn).text.as_deref(), Some("done"));
    assert_snapshot!(world.finish());
}

#[test]
fn turns_that_ran_while_nobody_listened_are_told() {
    let scene = cut_socket_in_mid_turn()
        .resume("active")
        .history(&[
            past(10, "inProgress", &[said("theirs too")]),
            past(9, "completed", &[said("theirs")]),
            past(1, "completed", &[own("m1"), said("done")]),
            past(7, "failed", &[said("long ago")]),
        ])
        .line(r#"S {"method":"turn/completed","params":{"threadId":"thr_1","turn":{"id":"trn_10","status":"completed"}}}"#);
    let (mut world, _, turn) = sent(over_socket(scene));
    assert_eq!(world.end_of(turn).text.as_deref(), Some("done"));
    let found = told(&world).into_iter().filter_map(|update| match update {
        ConversationUpdate::TurnFound { native, status } => Some((native.to_string(), status)),
        _ => None,
    });
    let found: Vec<_> = found.collect();
    assert_eq!(found, [("trn_9".to_owned(), "completed".to_owned())]);
    assert_snapshot!(world.finish());
}

#[test]
fn a_running_turn_without_a_message_may_be_ours() {
    let scene = Scene::new()
        .line(r#"C {"method":"turn/start","params":{"clientUserMessageId":"$m1","input":"$i1"}}"#)
        .line("X sleep 5\nX close stdout")
        .next_life()
        .resume("active")
        .history(&[past(1, "inProgress", &[])])
        .recorded(1)
        .say(1, "done")
        .end(1, "completed");
    let (mut world, _, turn) = sent(over_socket(scene));
    assert_eq!(world.end_of(turn).text.as_deref(), Some("done"));
    let began = told(&world).into_iter();
    assert_eq!(
        began
            .filter(|u| matches!(u, ConversationUpdate::TurnBegan { .. }))
            .count(),
        0
    );
    assert_snapshot!(world.finish());
}

#[test]
fn a_history_that_disagrees_with_what_was_told_is_a_warning() {
    let over = |n: u32, status: &str| past(n, status, &[said("x")]);
    for (turns, name) in [
        (
            [over(2, "completed"), over(1, "interrupted")],
            "another_end",
        ),
        (
            [over(1, "completed"), over(2, "completed")],
            "another_order",
        ),
    ] {
        let mut turns = turns.to_vec();
        turns.insert(0, past(3, "completed", &[own("m3"), said("three")]));
        let scene = Scene::new()
            .turn(1, "one")
            .turn(2, "two")
            .begin(3)
            .line("X sleep 5\nX die")
            .next_life()
            .resume("idle")
            .history(&turns);
        let mut world = with_children(scene).start();
        let conversation = world.open("a", Settings::new());
        for text in ["one", "two"] {
            let turn = world.send(conversation, text);
            world.end_of(turn);
        }
        let third = world.send(conversation, "three");
        world.log_from_here();
        assert_eq!(world.end_of(third).text.as_deref(), Some("three"));
        let warned = told(&world).into_iter().any(|update| match update {
            ConversationUpdate::Warning(Warning::History(error)) => match name {
                "another_end" => matches!(error, HistoryError::OtherEnd { .. }),
                _ => matches!(error, HistoryError::Order { .. }),
            },
            _ => false,
        });
        assert!(warned, "{name}");
        assert_snapshot!(format!("a_history_with_{name}"), world.finish());
    }
}

#[test]
fn a_connection_that_was_ready_for_long_begins_the_count_anew() {
    for (long, name) in [(true, "long"), (false, "short")] {
        let life = |scene: Scene| {
            let sleep = if long { "X sleep 400" } else { "X sleep 5" };
            let ready = scene.line(r#"C {"method":"initialized"}"#);
            ready.line(sleep).line("X die").next_life()
        };
        let setup = with_children(life(life(life(Scene::new())))).config(|config| {
            config.limits.reconnect_longest = ms(300);
            config.limits.reconnect_tries = 1;
        });
        let mut world = setup.start();
        world.run(3_000);
        let ended = world.events().iter().any(|event| match event {
            Event::Connection(event) => matches!(**event, ConnectionEvent::Ended(_)),
            _ => false,
        });
        assert_eq!(ended, !long, "{name}");
        let _ = world.finish();
    }
}

#[test]
fn conversations_are_taken_up_side_by_side() {
    let other = |text: &str| {
        let text = text.replace("thr_1", "thr_2").replace("trn_1", "trn_2");
        text.replace("$a1", "$a2")
            .replace("$i1", "$i2")
            .replace("$m1", "$m2")
    };
    let second = other(Scene::new().begin(1).text.split_once("all\n").unwrap().1);
    let past_2 = past(2, "completed", &[own("m2"), said("two")]);
    let scene = Scene::new()
        .begin(1)
        .line(&second)
        .line("X sleep 5\nX die")
        .next_life()
        .line(r#"C {"id":"$r1","method":"thread/resume","params":{"threadId":"thr_1"}}"#)
        .line(r#"C& {"id":"$r2","method":"thread/resume","params":{"threadId":"thr_2"}}"#)
        .line(r#"S {"id":"$r2","result":{"thread":{"id":"thr_2","status":{"type":"idle"}}}}"#)
        .answer(
            "thread/turns/list",
            r#""threadId":"thr_2""#,
            &format!(r#""result":{{"data":[{past_2}],"nextCursor":null}}"#),
        )
        .line("X sleep 500")
        .line(r#"S {"id":"$r1","error":{"code":-32603,"message":"disk on fire"}}"#);
    let mut world = with_children(scene).start();
    let (a, b) = (
        world.open("a", Settings::new()),
        world.open("b", Settings::new()),
    );
    let (first, other) = (world.send(a, "go"), world.send(b, "go"));
    assert_eq!(world.end_of(other).text.as_deref(), Some("two"));
    assert_eq!(world.ended(first), None, "it waits for its own thread");
    assert!(matches!(
        world.end_of(first).outcome,
        Outcome::Unknown { .. }
    ));
    let _ = world.finish();
}

#[test]
fn what_is_wrong_with_a_history_is_told_once_however_often_it_is_read() {
    let wrong = past(9, "completed", &[said("x")]).replace(r#""error":null"#, r#""error":{}"#);
    let scene = cut_socket_in_mid_turn()
        .histories(&[wrong])
        .resume("idle")
        .turn_again(1, 2, "done");
    let (mut world, _, turn) = sent(over_socket(scene));
    world.end_of(turn);
    assert_eq!(world.machine().counters().lookups, 5);
    let warned = told(&world).into_iter();
    assert_eq!(
        warned
            .filter(|u| matches!(u, ConversationUpdate::Warning(_)))
            .count(),
        1
    );
    let found = told(&world).into_iter();
    assert_eq!(
        found
            .filter(|u| matches!(u, ConversationUpdate::TurnFound { .. }))
            .count(),
        1
    );
    let _ = world.finish();
}
