//! A: turns that end, are stopped or steered; D27: the server that goes; I49: the final text.

use turnkeep_core::{
    CloseReason, CommandError, Outcome, Reply, Settings, TurnUpdate,
    command::RefusalClass,
    event::{
        ConnectionEvent, EndReason, EndSource, FailureKind, LostReason, Origin, QuestionClosedWhy,
        Warning,
    },
};
use turnkeep_tests::world::Setup;

use crate::{asks, connection_events, end_reason, in_all_reads_of, in_journal, script, text};

#[test]
fn case_01_a_silent_server_never_answers_the_interrupt() {
    in_all_reads_of(script!("01"), |world| {
        let conversation = world.open("a", Settings::new());
        let turn = world.send(conversation, "go");
        let before = world.elapsed();
        let stop = world.interrupt(turn);
        assert_eq!(
            world.answer_of(stop),
            Err(CommandError::InterruptUnanswered)
        );
        assert_eq!(world.elapsed() - before, 10_000_000, "at its own limit");
        let end = world.end_of(turn);
        assert!(matches!(
            end.outcome,
            Outcome::Lost {
                reason: LostReason::InterruptUnanswered
            }
        ));
        assert!(connection_events(world).contains(&ConnectionEvent::Unfit));
        assert_eq!(end_reason(world), Some(EndReason::Unfit));
        let refused = world.send_refused(conversation, "more");
        assert!(matches!(refused, CommandError::Disconnected { .. }));
    });
}

#[test]
fn case_02_a_second_interrupt_is_answered_here() {
    in_all_reads_of(script!("02"), |world| {
        let conversation = world.open("a", Settings::new());
        let turn = world.send(conversation, "go");
        let first = world.interrupt(turn);
        assert_eq!(world.answer_of(first), Ok(Reply::Interrupted));
        assert_eq!(world.end_of(turn).outcome, Outcome::Interrupted);
        let again = world.interrupt(turn);
        let ended = Reply::AlreadyEnded {
            outcome: "interrupted".into(),
        };
        assert_eq!(world.answer(again), Some(&Ok(ended)));
        assert_eq!(world.sent_of("turn/interrupt").len(), 1);
    });
}

#[test]
fn case_02_the_end_settles_the_interrupt_whatever_its_response() {
    for script in [script!("02b"), script!("02c")] {
        in_all_reads_of(script, |world| {
            let conversation = world.open("a", Settings::new());
            let turn = world.send(conversation, "go");
            let stop = world.interrupt(turn);
            assert_eq!(world.answer(stop), Some(&Ok(Reply::Interrupted)));
            assert_eq!(world.elapsed(), 0, "no wait for a deadline");
            // What comes for it later, and its own limit, change nothing.
            world.run(120_000);
            assert_eq!(world.end_of(turn).outcome, Outcome::Interrupted);
            assert_eq!(end_reason(world), None);
        });
    }
}

#[test]
fn case_04_a_steer_after_the_end_goes_with_a_turn_of_its_own_once() {
    in_all_reads_of(script!("04"), |world| {
        let conversation = world.open("a", Settings::new());
        let turn = world.send(conversation, "go");
        let steer = world.steer(turn, "also X");
        let Ok(Reply::Queued { refusal }) = world.answer_of(steer) else {
            panic!("{:?}", world.answer(steer))
        };
        assert_eq!(refusal.class, RefusalClass::NoActiveTurn);
        assert_eq!(text(&world.end_of(turn)), "");
        let next = world.follow_up(turn);
        assert_eq!(text(&world.end_of(next)), "X too");
        assert!(world.is_played());
        assert_eq!(world.sent_of("turn/start").len(), 2);
    });
}

#[test]
fn case_05_a_phantom_id_is_used_for_nothing() {
    in_all_reads_of(script!("05"), |world| {
        let conversation = world.open("a", Settings::new());
        let first = world.send(conversation, "go");
        world.end_of(first);
        let turn = world.send(conversation, "more");
        let end = world.end_of(turn);
        assert_eq!(text(&end), "both");
        assert_eq!(end.native.as_deref(), Some("trn_1"));
        let folded = world.updates(turn).into_iter().any(
            |update| matches!(update, TurnUpdate::Folded { into } if into.as_str() == "trn_1"),
        );
        assert!(folded);
        assert!(world.is_played());
        assert_eq!(in_journal(world, "trn_ghost"), 0, "not even recorded");
    });
}

#[test]
fn case_05_the_servers_own_turn_crosses_with_ours() {
    in_all_reads_of(script!("05b"), |world| {
        let conversation = world.open("a", Settings::new());
        let turn = world.send(conversation, "more");
        let end = world.end_of(turn);
        assert_eq!((text(&end), end.native.as_deref()), ("both", Some("trn_1")));
    });
}

#[test]
fn case_05_an_interrupt_names_the_turn_that_took_the_message() {
    // As 05, and the turn runs on until it is stopped.
    let script = script!("05").replace(
        r#"S {"method":"item/completed","params":{"threadId":"thr_1","turnId":"trn_1","item":{"type":"agentMessage","id":"it_5""#,
        concat!(
            r#"C {"id":"$id13","method":"turn/interrupt","params":{"threadId":"thr_1","turnId":"trn_1"}}"#,
            "\n",
            r#"S {"id":"$id13","result":{}}"#,
            "\n",
            r#"S {"method":"item/completed","params":{"threadId":"thr_1","turnId":"trn_1","item":{"type":"agentMessage","id":"it_5""#,
        ),
    );
    in_all_reads_of(&script, |world| {
        let conversation = world.open("a", Settings::new());
        let first = world.send(conversation, "go");
        world.end_of(first);
        let turn = world.send(conversation, "more");
        let stop = world.interrupt(turn);
        let answer = world.answer_of(stop);
        let ended = Reply::AlreadyEnded {
            outcome: "completed".into(),
        };
        assert_eq!(answer, Ok(ended));
        assert!(world.is_played());
    });
}

#[test]
fn case_07_a_turn_of_the_servers_own_is_told_as_it_comes() {
    in_all_reads_of(script!("07"), |world| {
        let conversation = world.open("a", Settings::new());
        let turn = world.send(conversation, "go");
        world.end_of(turn);
        world.run(0);
        let own = turnkeep_core::TurnNo(turn.0 + 1);
        assert_eq!(text(&world.end_of(own)), "step two");
        assert!(world.updates(own).into_iter().any(|update| matches!(
            update,
            TurnUpdate::Started {
                origin: Origin::Server,
                ..
            }
        )));
        assert_eq!(world.elapsed(), 0, "at arrival");
    });
}

#[test]
fn case_07_a_turn_of_the_servers_own_can_be_interrupted() {
    let (head, tail) = script!("07")
        .split_once(r#"S {"method":"item/completed","params":{"threadId":"thr_1","turnId":"trn_2""#)
        .unwrap();
    let tail = tail
        .split_once('\n')
        .unwrap()
        .1
        .replace("completed\",\"error", "interrupted\",\"error");
    let stop = r#"C {"id":"$i","method":"turn/interrupt","params":{"threadId":"thr_1","turnId":"trn_2"}}
S {"id":"$i","result":{}}
"#;
    in_all_reads_of(&format!("{head}{stop}{tail}"), |world| {
        let conversation = world.open("a", Settings::new());
        let turn = world.send(conversation, "go");
        world.end_of(turn);
        let own = turnkeep_core::TurnNo(turn.0 + 1);
        let stop = world.interrupt(own);
        assert_eq!(world.answer_of(stop), Ok(Reply::Interrupted));
        assert_eq!(world.end_of(own).outcome, Outcome::Interrupted);
    });
}

#[test]
fn case_09_a_retry_is_a_warning() {
    in_all_reads_of(script!("09a"), |world| {
        let conversation = world.open("a", Settings::new());
        let turn = world.send(conversation, "go");
        let end = world.end_of(turn);
        assert!(matches!(end.outcome, Outcome::Completed { .. }));
        assert_eq!(world.streamed(turn), "done");
        let warnings = world.updates(turn).into_iter().filter(
            |u| matches!(u, TurnUpdate::Warning(Warning::Retry(f)) if f.message == "reconnecting 1/5"),
        );
        assert_eq!(warnings.count(), 1);
    });
}

#[test]
fn case_09_a_fatal_error_ends_the_turn_after_a_grace() {
    in_all_reads_of(script!("09b"), |world| {
        let conversation = world.open("a", Settings::new());
        let turn = world.send(conversation, "go");
        assert_eq!(world.ended(turn), None, "the error is held");
        let end = world.end_of(turn);
        let Outcome::Failed { error } = &end.outcome else {
            panic!("{end:?}")
        };
        assert_eq!(error.code().as_deref(), Some("serverOverloaded"));
        assert_eq!(world.elapsed(), 5_000_000);
        assert_eq!(end.source, EndSource::Local);
        let told = world.told();
        let of_turn = told.iter().filter(|event| event.contains(r#""Turn""#));
        let told = of_turn.filter(|event| event.contains("model at capacity"));
        assert_eq!(told.count(), 1, "told once");
    });
}

#[test]
fn case_09_a_failed_end_takes_the_held_error_and_tells_it_once() {
    let failed = |error: &str| {
        script!("09b").to_owned()
            + &format!(
                "\nX sleep 1000\nS {{\"method\":\"turn/completed\",\"params\":{{\"threadId\":\"thr_1\",\"turn\":{{\"id\":\"trn_2\",\"items\":[],\"status\":\"failed\",\"error\":{error}}}}}}}\n"
            )
    };
    for error in [
        "null",
        r#"{"message":"model at capacity","codexErrorInfo":"serverOverloaded","additionalDetails":null}"#,
    ] {
        in_all_reads_of(&failed(error), |world| {
            let conversation = world.open("a", Settings::new());
            let turn = world.send(conversation, "go");
            let end = world.end_of(turn);
            let Outcome::Failed { error } = &end.outcome else {
                panic!("{end:?}")
            };
            assert_eq!(error.message, "model at capacity");
            assert_eq!((end.source, world.elapsed()), (EndSource::Live, 1_000_000));
            world.run(60_000);
        });
    }
}

#[test]
fn case_09_a_missing_will_retry_is_not_a_true() {
    let script = script!("09b").replace(r#""willRetry":false,"#, "");
    in_all_reads_of(&script, |world| {
        let conversation = world.open("a", Settings::new());
        let turn = world.send(conversation, "go");
        assert!(matches!(world.end_of(turn).outcome, Outcome::Failed { .. }));
    });
}

#[test]
fn case_10_a_failed_turn_is_a_failure_without_a_result() {
    in_all_reads_of(script!("10a"), |world| {
        let conversation = world.open("a", Settings::new());
        let turn = world.send(conversation, "go");
        let end = world.end_of(turn);
        let Outcome::Failed { error } = &end.outcome else {
            panic!("{end:?}")
        };
        assert_eq!(error.kind, FailureKind::Server);
        assert_eq!(error.code().as_deref(), Some("usageLimitExceeded"));
        assert_eq!(end.text, None);
    });
}

#[test]
fn case_10_items_that_are_not_loaded_say_nothing() {
    in_all_reads_of(script!("10b"), |world| {
        let conversation = world.open("a", Settings::new());
        let turn = world.send(conversation, "go");
        assert_eq!(text(&world.end_of(turn)), "ANSWER");
    });
}

#[test]
fn case_10_an_unknown_status_is_neither_success_nor_failure() {
    let script = script!("10b").replace(r#""status":"completed""#, r#""status":"evaporated""#);
    in_all_reads_of(&script, |world| {
        let conversation = world.open("a", Settings::new());
        let turn = world.send(conversation, "go");
        let end = world.end_of(turn);
        let Outcome::Unknown { evidence } = &end.outcome else {
            panic!("{end:?}")
        };
        assert!(evidence.contains("\"evaporated\""), "{evidence}");
        assert_eq!(end.text.as_deref(), Some("ANSWER"));
    });
}

#[test]
fn case_27_the_wait_of_a_turn_ends_with_the_server() {
    in_all_reads_of(script!("27"), |world| {
        let conversation = world.open("a", asks());
        let turn = world.send(conversation, "x");
        let question = world.question(turn, 1);
        let end = world.end_of(turn);
        let signal = CloseReason::Exited {
            code: None,
            signal: Some(9),
        };
        assert!(
            matches!(&end.outcome, Outcome::Lost { reason: LostReason::Connection(ended) } if matches!(&**ended, EndReason::Closed { reason, .. } if *reason == signal)),
            "{end:?}"
        );
        let updates = world.updates(turn);
        let closed = updates.iter().position(|u| {
            matches!(u, TurnUpdate::QuestionClosed { question: q, why: QuestionClosedWhy::ConnectionEnded } if *q == question.id)
        });
        assert_eq!(
            closed,
            Some(updates.len() - 2),
            "the handler is told before the end"
        );
        assert!(!world.sent().iter().any(|frame| frame.contains("\"id\":6")));
        assert_eq!(in_journal(world, r#""lost""#), 1);
    });
}

#[test]
fn case_27_a_kill_that_we_led_to_is_told_as_ours() {
    let mut world = Setup::script(script!("27")).start();
    let conversation = world.open("a", asks());
    let turn = world.send(conversation, "x");
    world.shut_down();
    assert!(matches!(
        world.end_of(turn).outcome,
        Outcome::Lost {
            reason: LostReason::ClosedByUs
        }
    ));
    world.run(1_000);
    assert_eq!(end_reason(&world), Some(EndReason::ClosedByUs));
    let _ = world.finish();
}

#[test]
fn case_49_the_final_text_is_the_answer_told_once() {
    in_all_reads_of(script!("49"), |world| {
        let conversation = world.open("a", Settings::new());
        let turn = world.send(conversation, "go");
        let end = world.end_of(turn);
        assert_eq!(text(&end), "It is 42.");
        assert_eq!(end.candidate, None);
    });
}

#[test]
fn case_49_phases_decide_where_there_are_any() {
    let rows = [
        // No phase anywhere: the last completed message.
        (["", "", ""], Some("Bye."), None),
        // A null phase is unknown, not commentary.
        (
            [
                r#","phase":"commentary""#,
                r#","phase":null"#,
                r#","phase":"commentary""#,
            ],
            Some("It is 42."),
            None,
        ),
        // No answer at all: the last message is a candidate.
        (
            [
                r#","phase":"commentary""#,
                r#","phase":"commentary""#,
                r#","phase":"commentary""#,
            ],
            None,
            Some("Bye."),
        ),
        // A new phase says nothing.
        (
            [
                r#","phase":"commentary""#,
                r#","phase":"epilogue""#,
                r#","phase":"commentary""#,
            ],
            Some("It is 42."),
            None,
        ),
    ];
    for (phases, want, candidate) in rows {
        let script = script!("49")
            .replacen(
                r#"Looking.","phase":"commentary""#,
                &format!("Looking.\"{}", phases[0]),
                1,
            )
            .replacen(r#","phase":"final_answer""#, phases[1], 1)
            .replacen(
                r#"Bye.","phase":"commentary""#,
                &format!("Bye.\"{}", phases[2]),
                1,
            );
        in_all_reads_of(&script, |world| {
            let conversation = world.open("a", Settings::new());
            let turn = world.send(conversation, "go");
            let end = world.end_of(turn);
            let Outcome::Completed { text, .. } = &end.outcome else {
                panic!("{end:?}")
            };
            assert_eq!(
                (text.as_deref(), end.candidate.as_deref()),
                (want, candidate),
                "{phases:?}"
            );
        });
    }
}
