//! Connections that end in the middle of a turn, and what goes on over the next one.

use std::{
    path::Path,
    time::{Duration, Instant},
};

use turnkeep_core::{
    CloseReason,
    config::Reconnect,
    event::{ConnectionEvent, ConversationUpdate, DeltaKind, EndSource, LostReason},
};
use turnkeep_runtime::{
    Answer, Client, ConversationEvent, Outcome, Questions, Runtime, Settings, TurnEvent,
    TurnUpdate, WebSocketConfig,
};
use turnkeep_tests::{
    both::within,
    on_both,
    sockets::{self, Door, Seen, SocketServer},
};

use crate::{
    Told, at, begin, closed, connection, delta, end, over, resume, say, script, send, shut_down,
    start, talk, to_end, turn, until,
};

on_both!(
    a_daemon_that_is_replaced_is_found_again,
    a_denial_at_a_reconnection_is_final,
    a_reset_in_mid_flood_suspends_and_repairs,
    a_slow_consumer_holds_up_nobody,
    a_threads_end_is_told_and_the_next_turn_resumes_it,
    an_approval_comes_again_with_its_id_and_is_asked_once,
    an_approval_that_does_not_come_again_is_withdrawn,
    lag_is_a_warning_and_overload_is_tried_again,
    refused_openings_are_tried_again_with_growing_pauses,
);

const MS: fn(u64) -> Duration = Duration::from_millis;

fn lost(event: &ConnectionEvent) -> bool {
    matches!(event, ConnectionEvent::Lost { .. })
}

fn ready(event: &ConnectionEvent) -> bool {
    matches!(event, ConnectionEvent::Ready { .. })
}

fn ended(event: &ConnectionEvent) -> bool {
    matches!(event, ConnectionEvent::Ended(_))
}

/// Case 46: the connection is reset in the middle of a flood, the turn is not failed.
async fn a_reset_in_mid_flood_suspends_and_repairs<R: Runtime + Default>() {
    let output = r#"S {"method":"item/commandExecution/outputDelta","params":{"threadId":"thr_1","turnId":"trn_1","itemId":"cmd_1","delta":"line\n"}}"#;
    let flood = format!("X repeat 201\n{output}\nX end\n");
    let command = |how: &str, rest: &str| {
        format!(
            r#"S {{"method":"item/{how}","params":{{"threadId":"thr_1","turnId":"trn_1","item":{{"type":"commandExecution","id":"cmd_1","command":"make","cwd":"/w","status":"inProgress","commandActions":[]{rest}}}}}}}
"#
        )
    };
    // What is read before the reset is all of it, or as much as the system hands out.
    for pause in ["X sleep 100\n", ""] {
        let text = script(&[
            &begin(1),
            &command("started", ""),
            &delta(1, "Look"),
            &flood,
            pause,
            "X stderr socket: reset\n",
            // Nobody hears these.
            &delta(1, "ing, "),
            &resume("active", "inProgress", ""),
            &delta(1, "there."),
            &command("completed", r#","aggregatedOutput":"all","exitCode":0"#),
            &say(1, "Looking, there."),
            &end(1),
            &turn(2, "Again."),
        ]);
        let server = SocketServer::tcp(&text).lives_on();
        let client = start::<R>(over(at(&server))).await;
        let mut events = client.connection_events();
        let talk = talk(&client).await;
        let mut turn = send::<R>(&talk, "go").await;
        // Nothing is taken before all of it came: what waits grows together, and is counted.
        connection::<R>(&mut events, lost).await;
        let told = to_end::<R>(&mut turn, Told::default()).await;
        let outcome = &told.end().outcome;
        assert!(matches!(outcome, Outcome::Completed { .. }), "{outcome:?}");
        assert_eq!(told.end().source, EndSource::Live);
        assert_eq!(told.end().text.as_deref(), Some("Looking, there."));
        assert_eq!((told.suspended(), told.resumed()), (1, 1));
        let output = told
            .deltas
            .iter()
            .filter(|of| of.kind == DeltaKind::CommandOutput);
        let frames: u32 = output.clone().map(|of| of.frames).sum();
        let pieces = output.count();
        let agent: String = told
            .deltas
            .iter()
            .filter(|of| of.kind == DeltaKind::Agent)
            .map(|of| &*of.text)
            .collect();
        let counters = client.counters().await.unwrap();
        if pause.is_empty() {
            assert!(
                frames <= 201 && agent.ends_with("there."),
                "{frames} {agent}"
            );
        } else {
            assert_eq!((frames, &*agent), (201, "Lookthere."));
            // All that did not come as a piece of its own was merged, by the core or in the queue.
            let merged = counters.merged_deltas + turn.merged();
            assert_eq!(merged as usize, 201 - pieces);
        }
        assert_eq!((counters.reconnects, counters.found_running), (1, 1));
        // The conversation goes on.
        let mut turn = send::<R>(&talk, "and").await;
        let told = to_end::<R>(&mut turn, Told::default()).await;
        assert_eq!(told.end().text.as_deref(), Some("Again."));
        shut_down(client).await;
        let starts = server.lines().into_iter();
        let starts = starts
            .filter(|line| line.contains("\"turn/start\""))
            .count();
        assert_eq!(starts, 2, "nothing was sent twice");
    }
}

/// A8: the daemon behind a socket's file is another one; no prompt is sent again.
async fn a_daemon_that_is_replaced_is_found_again<R: Runtime + Default>() {
    let (_dir, path) = sockets::directory();
    let first = script(&[&begin(1), &delta(1, "half"), "X hang\n"]);
    // The turn died with the first daemon, says the history.
    let items = r#",{"type":"agentMessage","id":"it_1","text":"half","phase":null}"#;
    let second = |message: &str| {
        let resumed = resume("idle", "interrupted", items).replace("$m1", message);
        script(&[&resumed, &turn(2, "Here again.")])
    };
    let server = SocketServer::unix(&path, &first);
    let client = start::<R>(over(WebSocketConfig::unix(&path))).await;
    let mut events = client.connection_events();
    let talk = talk(&client).await;
    let mut turn = send::<R>(&talk, "go").await;
    let mut told = Told::default();
    let is = |event: &TurnEvent| matches!(event, TurnEvent::Delta(_));
    until::<R>(&mut turn, &mut told, is).await;
    let message = turn.message().unwrap().to_string();
    server.stop();
    connection::<R>(&mut events, lost).await;
    // Its file is there still and nobody listens.
    assert!(Path::new(&path).exists());
    connection::<R>(&mut events, lost).await;
    let server = SocketServer::unix(&path, &second(&message));
    let between = connection::<R>(&mut events, ready).await;
    for event in &between {
        if let ConnectionEvent::Lost { reason, .. } = event {
            let CloseReason::OpenFailed(why) = closed(reason.clone()) else {
                panic!("{reason:?}")
            };
            let (gone, away) = (why.contains("any more"), why.contains("does not exist"));
            assert!(gone || away, "{why}");
        }
    }
    let told = to_end::<R>(&mut turn, told).await;
    assert_eq!(told.end().outcome, Outcome::Interrupted);
    assert_eq!(told.end().source, EndSource::Reconciled);
    assert_eq!((told.suspended(), told.resumed()), (1, 0));
    talk.dismiss().await.unwrap();
    let mut turn = send::<R>(&talk, "and").await;
    let told = to_end::<R>(&mut turn, Told::default()).await;
    assert_eq!(told.end().text.as_deref(), Some("Here again."));
    let lines = server.lines();
    let resumes = lines
        .iter()
        .filter(|line| line.contains("\"thread/resume\""))
        .count();
    let starts = lines
        .iter()
        .filter(|line| line.contains("\"turn/start\""))
        .count();
    assert_eq!((resumes, starts), (1, 1), "{lines:#?}");
    shut_down(client).await;
}

const APPROVAL: &str = r#"S {"id":5,"method":"item/commandExecution/requestApproval","params":{"threadId":"thr_1","turnId":"trn_1","itemId":"it_5","command":"rm x","cwd":"/w"}}
"#;

async fn asked<R: Runtime + Default>(
    server: &SocketServer,
) -> (
    Client<R>,
    turnkeep_runtime::Turn,
    Told,
    turnkeep_core::QuestionId,
) {
    let client = start::<R>(over(at(server))).await;
    let asks = Settings::new().questions(Questions::Ask);
    let opened = client.conversation("talk").settings(asks);
    let talk = within::<R, _>("conversation", opened).await.unwrap();
    let mut turn = send::<R>(&talk, "go").await;
    let mut told = Told::default();
    let is = |event: &TurnEvent| matches!(event, TurnEvent::Update(TurnUpdate::Question(_)));
    let TurnEvent::Update(TurnUpdate::Question(question)) =
        until::<R>(&mut turn, &mut told, is).await
    else {
        panic!("no question")
    };
    (client, turn, told, question.id)
}

/// Case 36: a decision that is made while the connection is away is sent once the question is there
/// again.
async fn an_approval_comes_again_with_its_id_and_is_asked_once<R: Runtime + Default>() {
    for while_away in [true, false] {
        let text = script(&[
            &begin(1),
            APPROVAL,
            "X sleep 50\nX stderr socket: reset\n",
            &resume("active", "inProgress", ""),
            "X sleep 50\n",
            APPROVAL,
            r#"C {"id":5,"result":{"decision":"decline"}}"#,
            "\n",
            r#"S {"method":"serverRequest/resolved","params":{"threadId":"thr_1","requestId":5}}"#,
            "\n",
            &say(1, "Not removed."),
            &end(1),
        ]);
        let server = SocketServer::tcp(&text).lives_on();
        let (client, mut turn, mut told, question) = asked::<R>(&server).await;
        let mut events = client.connection_events();
        if while_away {
            let is = |event: &TurnEvent| {
                matches!(event, TurnEvent::Update(TurnUpdate::Suspended { .. }))
            };
            until::<R>(&mut turn, &mut told, is).await;
            turn.answer(question, Answer::Decline).await.unwrap();
        } else {
            connection::<R>(&mut events, ready).await;
            let resumed =
                |event: &TurnEvent| matches!(event, TurnEvent::Update(TurnUpdate::Resumed));
            until::<R>(&mut turn, &mut told, resumed).await;
            R::default().sleep(MS(100)).await;
            turn.answer(question, Answer::Decline).await.unwrap();
        }
        let told = to_end::<R>(&mut turn, told).await;
        assert_eq!(told.end().text.as_deref(), Some("Not removed."));
        let asked = told.count(|update| matches!(update, TurnUpdate::Question(_)));
        assert_eq!((asked, told.suspended(), told.resumed()), (1, 1, 1));
        shut_down(client).await;
        let lines = server.lines();
        let at = |text: &str| lines.iter().position(|line| line.contains(text));
        let answers = lines
            .iter()
            .filter(|line| line.contains("\"decision\""))
            .count();
        assert_eq!(answers, 1);
        assert!(at("\"thread/resume\"") < at("\"decision\""), "{lines:#?}");
        assert!(
            !server
                .seen()
                .iter()
                .any(|seen| matches!(seen, Seen::Mismatch(_)))
        );
    }
}

/// Case 36: if it does not come again it is withdrawn, and a new one with its id is another one.
async fn an_approval_that_does_not_come_again_is_withdrawn<R: Runtime + Default>() {
    let other = APPROVAL.replace("it_5", "it_6").replace("rm x", "rm y");
    let text = script(&[
        &begin(1),
        APPROVAL,
        "X sleep 50\nX stderr socket: reset\n",
        &resume("active", "inProgress", ""),
        "X sleep 50\n",
        &other,
        r#"C {"id":5,"result":{"decision":"accept"}}"#,
        "\n",
        &say(1, "y is gone."),
        &end(1),
    ]);
    let server = SocketServer::tcp(&text).lives_on();
    let (client, mut turn, mut told, first) = asked::<R>(&server).await;
    let is = |event: &TurnEvent| matches!(event, TurnEvent::Update(TurnUpdate::Suspended { .. }));
    until::<R>(&mut turn, &mut told, is).await;
    // It is held, and must not go to the other question.
    turn.answer(first, Answer::Decline).await.unwrap();
    let is = |event: &TurnEvent| matches!(event, TurnEvent::Update(TurnUpdate::Question(_)));
    let TurnEvent::Update(TurnUpdate::Question(second)) =
        until::<R>(&mut turn, &mut told, is).await
    else {
        panic!("no question")
    };
    assert_ne!(second.id, first);
    turn.answer(second.id, Answer::Accept).await.unwrap();
    let told = to_end::<R>(&mut turn, told).await;
    assert_eq!(told.end().text.as_deref(), Some("y is gone."));
    let withdrawn = told.count(|update| {
        matches!(update, TurnUpdate::QuestionClosed { question, .. } if *question == first)
    });
    assert!(withdrawn <= 1, "{:?}", told.updates);
    shut_down(client).await;
    let answers = server
        .lines()
        .into_iter()
        .filter(|line| line.contains("\"decision\""));
    let answers: Vec<String> = answers.collect();
    assert_eq!(answers.len(), 1);
    assert!(answers[0].contains("accept"), "{answers:?}");
}

/// Case 17: nobody takes the events of one conversation; the other is served in milliseconds.
async fn a_slow_consumer_holds_up_nobody<R: Runtime + Default>() {
    let text = include_str!("../../scripts/case-17.script");
    let server = SocketServer::tcp(text);
    let client = start::<R>(over(at(&server).pings(MS(50), MS(20_000)))).await;
    let slow = within::<R, _>("conversation", client.conversation("slow"))
        .await
        .unwrap();
    let mut first = send::<R>(&slow, "one").await;
    let begun = Instant::now();
    let quick = within::<R, _>("conversation", client.conversation("quick"))
        .await
        .unwrap();
    let mut second = send::<R>(&quick, "two").await;
    let told = to_end::<R>(&mut second, Told::default()).await;
    assert_eq!(told.end().text.as_deref(), Some("y"));
    assert!(begun.elapsed() < MS(5_000), "{:?}", begun.elapsed());
    // Pings go on while nobody takes anything.
    server.wait_for("pings", |seen| {
        seen.iter().filter(|of| **of == Seen::Ping).count() >= 3
    });
    let told = to_end::<R>(&mut first, Told::default()).await;
    assert_eq!(
        told.end()
            .candidate
            .as_deref()
            .or(told.end().text.as_deref()),
        Some("x")
    );
    shut_down(client).await;
}

/// A7 and case 45.
async fn lag_is_a_warning_and_overload_is_tried_again<R: Runtime + Default>() {
    let lag = r#"S {"method":"warning","params":{"threadId":"thr_1","message":"in-process app-server event stream lagged; dropped 3 events"}}
"#;
    let busy = r#"C {"id":"$b","method":"turn/start","params":{"threadId":"thr_1"}}
S {"id":"$b","error":{"code":-32001,"message":"Server overloaded; retry later."}}
"#;
    let text = script(&[busy, busy, &begin(1), lag, &say(1, "done"), &end(1)]);
    // Each try has an id of its own.
    let text = text.replacen("$b", "$b1", 2);
    let server = SocketServer::tcp(&text);
    let config = over(at(&server)).machine(|machine| {
        machine.limits.overload_first = MS(40);
    });
    let client = start::<R>(config).await;
    let talk = talk(&client).await;
    let mut events = talk.events();
    let begun = Instant::now();
    let mut turn = send::<R>(&talk, "go").await;
    let told = to_end::<R>(&mut turn, Told::default()).await;
    // 40 and 80 ms at least.
    assert!(begun.elapsed() >= MS(120), "{:?}", begun.elapsed());
    assert_eq!(told.end().text.as_deref(), Some("done"));
    loop {
        let event = within::<R, _>("warning", events.next()).await.unwrap();
        if let ConversationEvent::Conversation(ConversationUpdate::Warning(warning)) = event {
            assert!(
                format!("{warning:?}").contains("dropped 3 events"),
                "{warning:?}"
            );
            break;
        }
    }
    shut_down(client).await;
    let ids: std::collections::BTreeSet<String> = server
        .lines()
        .iter()
        .filter(|line| line.contains("\"turn/start\""))
        .map(|line| {
            let frame: serde_json::Value = serde_json::from_str(line).unwrap();
            frame["id"].to_string()
        })
        .collect();
    assert_eq!(ids.len(), 3);
}

/// A6.
async fn a_threads_end_is_told_and_the_next_turn_resumes_it<R: Runtime + Default>() {
    let over_now = r#"S {"method":"thread/status/changed","params":{"threadId":"thr_1","status":{"type":"notLoaded"}}}
S {"method":"thread/closed","params":{"threadId":"thr_1"}}
"#;
    let text = script(&[
        &turn(1, "One."),
        over_now,
        r#"C {"id":"$r","method":"thread/resume","params":{"threadId":"thr_1","excludeTurns":true}}
S {"id":"$r","result":{"thread":{"id":"thr_1","status":{"type":"idle"}}}}
C* {"id":"$h","method":"thread/turns/list","params":{"threadId":"thr_1"}}
S? {"id":"$h","result":{"data":[],"nextCursor":null}}
"#,
        &turn(2, "Two."),
    ]);
    let server = SocketServer::tcp(&text);
    let client = start::<R>(over(at(&server))).await;
    let talk = talk(&client).await;
    let mut events = talk.events();
    for (text, want) in [("one", "One."), ("two", "Two.")] {
        let mut turn = send::<R>(&talk, text).await;
        let told = to_end::<R>(&mut turn, Told::default()).await;
        assert_eq!(told.end().text.as_deref(), Some(want));
        if text == "one" {
            loop {
                let event = within::<R, _>("event", events.next()).await.unwrap();
                let text = format!("{event:?}");
                let told = matches!(event, ConversationEvent::Conversation(_));
                if told && text.contains("notLoaded") {
                    break;
                }
            }
        }
    }
    shut_down(client).await;
    let lines = server.lines();
    let at = |text: &str| lines.iter().rposition(|line| line.contains(text));
    assert!(at("\"thread/resume\"") < at("\"turn/start\""));
}

async fn a_denial_at_a_reconnection_is_final<R: Runtime + Default>() {
    let text = script(&[&begin(1), "X sleep 20\nX stderr socket: reset\n"]);
    let server = SocketServer::tcp(&text).doors([Door::Open, Door::Status(401)]);
    let client = start::<R>(over(at(&server))).await;
    let mut events = client.connection_events();
    let talk = talk(&client).await;
    let mut turn = send::<R>(&talk, "go").await;
    let told = connection::<R>(&mut events, ended).await;
    let Some(ConnectionEvent::Ended(reason)) = told.last() else {
        panic!("{told:?}")
    };
    assert_eq!(closed(reason.clone()), CloseReason::Denied { status: 401 });
    let told = to_end::<R>(&mut turn, Told::default()).await;
    let outcome = &told.end().outcome;
    let is_lost = matches!(
        outcome,
        Outcome::Lost {
            reason: LostReason::Connection(_)
        } | Outcome::Unknown { .. }
    );
    assert!(is_lost, "{outcome:?}");
    // Every request fails at once, with the reason.
    match within::<R, _>("answer", talk.send("again")).await {
        Err(error) => assert!(error.to_string().contains("401"), "{error}"),
        Ok(_) => panic!("it was taken"),
    }
    R::default().sleep(MS(300)).await;
    assert_eq!(server.asked().len(), 2, "exactly one more attempt");
    shut_down(client).await;
}

async fn refused_openings_are_tried_again_with_growing_pauses<R: Runtime + Default>() {
    let text = script(&[&begin(1), "X sleep 20\nX stderr socket: vanish\n"]);
    let doors = [
        Door::Open,
        Door::HangUp,
        Door::Status(503),
        Door::Slam,
        Door::WrongAccept,
    ];
    let server = SocketServer::tcp(&text).doors(doors);
    let config = over(at(&server)).machine(|machine| {
        assert_eq!(machine.reconnect, Reconnect::On);
        machine.limits.reconnect_first = MS(40);
        machine.limits.reconnect_tries = 4;
    });
    let client = start::<R>(config).await;
    let mut events = client.connection_events();
    let talk = talk(&client).await;
    let mut turn = send::<R>(&talk, "go").await;
    let told = connection::<R>(&mut events, ended).await;
    let pauses: Vec<u128> = told
        .iter()
        .filter_map(|event| match event {
            ConnectionEvent::Lost { pause, .. } => Some(pause.as_micros()),
            _ => None,
        })
        .collect();
    assert_eq!(pauses.len(), 4, "{told:?}");
    for (pause, least) in pauses.iter().zip([40_000, 80_000, 160_000, 320_000]) {
        assert!((least..=least * 3 / 2).contains(pause), "{pauses:?}");
    }
    let told = to_end::<R>(&mut turn, Told::default()).await;
    assert_eq!((told.suspended(), told.resumed()), (1, 0));
    // Four attempts, of which one was not even read.
    assert_eq!(server.asked().len(), 4);
    assert_eq!(client.counters().await.unwrap().reconnects, 4);
    shut_down(client).await;
}
