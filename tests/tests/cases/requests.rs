//! F: requests of the server. H45: a server that is overloaded. Every wait has a limit.

use turnkeep_core::{
    CommandError, Outcome, Reply, Settings, TurnUpdate,
    command::{Answer, Questions, RequestEffect},
    event::QuestionClosedWhy,
};
use turnkeep_tests::world::{Reads, Setup};

use crate::{asks, in_all_reads_of, in_journal, script};

#[test]
fn case_39_every_request_is_answered_once_and_negatively() {
    for settings in [
        Settings::new(),
        Settings::new().questions(Questions::Decline),
    ] {
        in_all_reads_of(script!("39"), |world| {
            let conversation = world.open("a", settings.clone());
            let turn = world.send(conversation, "go");
            world.end_of(turn);
            assert!(world.is_played());
            for id in 7..=10 {
                let head = format!(r#"{{"id":{id},"#);
                let answers = world.sent().iter().filter(|frame| frame.starts_with(&head));
                assert_eq!(answers.count(), 1, "request {id}");
            }
            let form = r#"{"id":7,"result":{"action":"cancel","content":null}}"#;
            assert!(world.sent().iter().any(|frame| frame == form));
            let declined = world
                .updates(turn)
                .into_iter()
                .filter(|update| matches!(update, TurnUpdate::QuestionDeclined(_)));
            assert_eq!(declined.count(), 2, "each is an event");
            let told = world.told().join("\n");
            assert!(
                told.contains("something/new") && told.contains("mcpServer/elicitation/request")
            );
        });
    }
}

#[test]
fn case_39_every_known_method_has_a_negative_shape_of_its_own() {
    let rows = [
        (
            r#""method":"item/permissions/requestApproval","params":{"threadId":"thr_1","turnId":"trn_1","itemId":"i","permissions":{"network":{"enabled":true}}}"#,
            r#""result":{"permissions":{},"scope":"turn"}"#,
        ),
        (
            r#""method":"item/tool/requestUserInput","params":{"threadId":"thr_1","turnId":"trn_1","itemId":"i","questions":[{"id":"q","header":"h","question":"?"}]}"#,
            r#""result":{"answers":{}}"#,
        ),
        (
            r#""method":"mcpServer/elicitation/request","params":{"threadId":"thr_1","turnId":"trn_1","serverName":"s","mode":"url","message":"m","url":"http://x","elicitationId":"e"}"#,
            r#""error":{"code":-32601,"message":"this kind of elicitation is not supported by this client"}"#,
        ),
        (
            r#""method":"item/commandExecution/requestApproval","params":{"threadId":"thr_1","turnId":"trn_1","itemId":"i","availableDecisions":["accept","cancel"]}"#,
            r#""result":{"decision":"cancel"}"#,
        ),
        (
            r#""method":"item/commandExecution/requestApproval","params":{"threadId":"thr_1","turnId":"trn_1","itemId":"i","availableDecisions":["accept"]}"#,
            r#""error":{"code":-32602,"message":"no negative decision was offered"}"#,
        ),
        (
            r#""method":"item/commandExecution/requestApproval","params":{"threadId":"thr_1","turnId":"trn_9","itemId":"i"}"#,
            r#""error":{"code":-32602,"message":"no such turn runs"}"#,
        ),
        (
            r#""method":"item/commandExecution/requestApproval","params":{"turnId":7}"#,
            r#""error":{"code":-32602,"message":"undecodable parameters"}"#,
        ),
        (
            r#""method":"item/commandExecution/requestApproval","params":{"threadId":"thr_child","turnId":"trn_x","itemId":"i"}"#,
            r#""result":{"decision":"decline"}"#,
        ),
        (
            r#""method":"execCommandApproval","params":{"conversationId":"c"}"#,
            r#""result":{"decision":"denied"}"#,
        ),
        (
            r#""method":"account/chatgptAuthTokens/refresh","params":{"reason":"unauthorized"}"#,
            r#""error":{"code":-32603,"message":"nobody serves this request"}"#,
        ),
        (
            r#""method":"attestation/generate","params":{}"#,
            r#""error":{"code":-32603,"message":"nobody serves this request"}"#,
        ),
        (
            r#""method":"model/rerouted","params":{"threadId":"thr_1","turnId":"trn_1","fromModel":"a","toModel":"b"}"#,
            r#""error":{"code":-32602,"message":"the model is not to be exchanged"}"#,
        ),
        (
            r#""method":"currentTime/read","params":{"threadId":"thr_1"}"#,
            r#""result":{"currentTimeAt":1800000000}"#,
        ),
        (
            r#""method":"item/tool/call","params":{"threadId":"thr_9","turnId":"trn_1","callId":"c","tool":"t","arguments":{}}"#,
            r#""error":{"code":-32602,"message":"unknown thread"}"#,
        ),
        (
            r#""method":"something/newer""#,
            r#""error":{"code":-32601,"message":"method not supported by this client"}"#,
        ),
    ];
    let begin = r#"X strict
X auto all
C {"id":"$id7","method":"turn/start","params":{"threadId":"thr_1","input":"$input7","clientUserMessageId":"$msg7"}}
S {"id":"$id7","result":{"turn":{"id":"trn_1","items":[],"status":"inProgress","error":null}}}
S {"method":"turn/started","params":{"threadId":"thr_1","turn":{"id":"trn_1","items":[],"status":"inProgress","error":null}}}
"#;
    let mut script = begin.to_owned();
    for (at, (request, answer)) in rows.iter().enumerate() {
        // Server ids start at 0 and may be texts.
        let id = if at % 2 == 0 {
            format!("{at}")
        } else {
            format!("\"r{at}\"")
        };
        script += &format!("S {{\"id\":{id},{request}}}\nC {{\"id\":{id},{answer}}}\n");
    }
    script += r#"S {"method":"turn/completed","params":{"threadId":"thr_1","turn":{"id":"trn_1","items":[],"status":"completed","error":null}}}"#;
    in_all_reads_of(&script, |world| {
        let conversation = world.open("a", Settings::new());
        let turn = world.send(conversation, "go");
        world.end_of(turn);
        assert!(world.is_played());
        let told = world.told().join("\n");
        for what in [
            "QuestionDeclined",
            "request_refused",
            "execCommandApproval",
            "something/newer",
        ] {
            assert!(told.contains(what), "{what} is told");
        }
    });
}

#[test]
fn case_41_without_a_deadline_it_waits_for_a_person() {
    for absent in [
        r#""isBlocking":true"#,
        r#""isBlocking":true,"autoResolutionMs":null"#,
    ] {
        let script = script!("41a").replace(r#""isBlocking":true"#, absent);
        in_all_reads_of(&script, |world| {
            let conversation = world.open("a", asks());
            let turn = world.send(conversation, "go");
            let question = world.question(turn, 1);
            assert_eq!(question.auto_resolution, None);
            world.run(3_600_000);
            let bad = world.reply(question.id, Answer::Input(vec![]));
            assert!(matches!(
                world.answer_of(bad),
                Err(CommandError::BadAnswer { .. })
            ));
            let yes = Answer::Input(vec![("q1".into(), vec!["yes".into()])]);
            let answer = world.reply(question.id, yes.clone());
            assert_eq!(world.answer_of(answer), Ok(Reply::Done));
            let again = world.reply(question.id, yes);
            assert!(matches!(
                world.answer_of(again),
                Err(CommandError::UnknownQuestion { .. })
            ));
            assert!(matches!(
                world.end_of(turn).outcome,
                Outcome::Completed { .. }
            ));
            assert_eq!(in_journal(world, r#""chosen":true"#), 1);
        });
    }
}

#[test]
fn case_41_at_its_time_the_empty_answer_is_given_once() {
    in_all_reads_of(script!("41b"), |world| {
        let conversation = world.open("a", asks());
        let turn = world.send(conversation, "go");
        let question = world.question(turn, 1);
        assert_eq!(question.auto_resolution.unwrap().as_millis(), 400);
        world.run(399);
        assert!(!world.is_played());
        world.run(1);
        assert!(world.is_played());
        let late = Answer::Input(vec![("q1".into(), vec!["yes".into()])]);
        let late = world.reply(question.id, late);
        assert!(matches!(
            world.answer_of(late),
            Err(CommandError::UnknownQuestion { .. })
        ));
        assert_eq!(
            in_journal(world, r#""chosen":false"#),
            1,
            "no person's choice"
        );
        assert!(world.updates(turn).into_iter().any(|update| matches!(
            update,
            TurnUpdate::QuestionClosed {
                why: QuestionClosedWhy::AutoResolved,
                ..
            }
        )));
    });
}

#[test]
fn case_41_in_the_same_instant_the_first_one_wins() {
    let script = script!("41b").replace(
        r#"C {"id":13,"result":{"answers":{}}}"#,
        r#"C {"id":13,"result":"*"}"#,
    );
    for first in [399, 400] {
        in_all_reads_of(&script, |world| {
            let conversation = world.open("a", asks());
            let turn = world.send(conversation, "go");
            let question = world.question(turn, 1);
            world.run(first);
            let yes = Answer::Input(vec![("q1".into(), vec!["yes".into()])]);
            let answer = world.reply(question.id, yes);
            let won = world.answer_of(answer).is_ok();
            assert_eq!(won, first == 399);
            world.run(1_000);
            let answers = world
                .sent()
                .iter()
                .filter(|f| f.starts_with(r#"{"id":13,"#));
            assert_eq!(answers.count(), 1, "the other is dropped");
        });
    }
}

#[test]
fn case_45_overloaded_is_tried_again_under_a_new_id_after_growing_pauses() {
    in_all_reads_of(script!("45a"), |world| {
        let conversation = world.open("a", Settings::new());
        let turn = world.send(conversation, "go");
        world.end_of(turn);
        let read = world.request(
            "thread/read",
            r#"{"threadId":"thr_1"}"#,
            RequestEffect::Reads,
        );
        assert!(matches!(world.answer_of(read), Ok(Reply::Response(_))));
        let pause = world.elapsed();
        assert!((100_000..=150_000).contains(&pause), "{pause}");
        assert!(world.is_played());
    });
    in_all_reads_of(script!("45c"), |world| {
        let conversation = world.open("a", Settings::new());
        let turn = world.send(conversation, "go");
        assert!(matches!(
            world.end_of(turn).outcome,
            Outcome::Completed { .. }
        ));
        assert!(world.is_played());
        let starts = world.sent_of("turn/start");
        let mut ids: Vec<_> = starts.iter().map(|f| f.split(',').nth(1)).collect();
        ids.dedup();
        assert_eq!(ids.len(), 3, "a new id each time");
        // 100 to 150, then 200 to 300 ms.
        assert!(
            (300_000..=450_000).contains(&world.elapsed()),
            "{}",
            world.elapsed()
        );
    });
}

#[test]
fn case_45_the_tries_have_a_limit() {
    let script = r#"X strict
X auto all
C* {"id":"$i","method":"turn/start"}
S? {"id":"$i","error":{"code":-32001,"message":"Server overloaded; retry later."}}
X eof
"#;
    for reads in [Reads::Writes, Reads::Bytes] {
        let mut world = Setup::script(script).reads(reads).start();
        let conversation = world.open("a", Settings::new());
        let turn = world.send(conversation, "go");
        let end = world.end_of(turn);
        assert!(matches!(end.outcome, Outcome::Rejected { .. }), "{end:?}");
        assert_eq!(world.sent_of("turn/start").len(), 8);
        let _ = world.finish();
    }
}

#[test]
fn case_45_a_turn_that_is_given_up_in_a_pause_never_leaves_again() {
    let script = r#"X strict
X auto all
C {"id":"$i","method":"turn/start"}
S {"id":"$i","error":{"code":-32001,"message":"Server overloaded; retry later."}}
"#;
    in_all_reads_of(script, |world| {
        let conversation = world.open("a", Settings::new());
        let turn = world.send(conversation, "go");
        let stop = world.interrupt(turn);
        assert_eq!(world.answer_of(stop), Ok(Reply::Interrupted));
        world.run(60_000);
        assert_eq!(world.sent_of("turn/start").len(), 1);
    });
}

#[test]
fn case_45_a_request_without_an_answer_ends_unknown_at_its_deadline() {
    in_all_reads_of(script!("45b"), |world| {
        let conversation = world.open("a", Settings::new());
        let turn = world.send(conversation, "go");
        world.end_of(turn);
        let read = world.request(
            "thread/read",
            r#"{"threadId":"thr_1"}"#,
            RequestEffect::Reads,
        );
        let answer = world.answer_of(read);
        assert!(
            matches!(answer, Err(CommandError::Unknown { .. })),
            "{answer:?}"
        );
        assert_eq!(world.elapsed(), 60_000_000);
    });
}

#[test]
fn case_01_every_request_of_ours_has_a_limit() {
    // Each time the server stops answering one request later.
    let answers = [
        "",
        "C {\"id\":\"$a\",\"method\":\"thread/start\"}\nS {\"id\":\"$a\",\"result\":{\"thread\":{\"id\":\"thr_1\"}}}\n",
        "C {\"id\":\"$b\",\"method\":\"turn/start\"}\nS {\"id\":\"$b\",\"result\":{\"turn\":{\"id\":\"trn_1\"}}}\nS {\"method\":\"turn/started\",\"params\":{\"threadId\":\"thr_1\",\"turn\":{\"id\":\"trn_1\",\"status\":\"inProgress\"}}}\n",
    ];
    for count in 1..=answers.len() {
        let script = answers[..count].concat() + "X hang\n";
        in_all_reads_of(&script, |world| {
            let conversation = world.open("a", Settings::new());
            let turn = world.send(conversation, "go");
            if count == answers.len() {
                let steer = world.steer(turn, "more");
                assert!(matches!(
                    world.answer_of(steer),
                    Err(CommandError::Unknown { .. })
                ));
                assert_eq!(world.elapsed(), 60_000_000);
                let stop = world.interrupt(turn);
                assert!(world.answer_of(stop).is_err());
                assert_eq!(world.elapsed(), 70_000_000);
            }
            let end = world.end_of(turn);
            match count {
                // An empty thread holds nothing: the message never left.
                1 => assert!(matches!(end.outcome, Outcome::Rejected { .. }), "{end:?}"),
                2 => assert!(matches!(end.outcome, Outcome::Unknown { .. }), "{end:?}"),
                _ => assert!(matches!(end.outcome, Outcome::Lost { .. }), "{end:?}"),
            }
        });
    }
}
