//! A connection that is there: messages, pings, closes, and what breaks it.

use std::time::{Duration, Instant};

use turnkeep_core::{
    CloseReason,
    event::{ConnectionEvent, NoiseWhy},
};
use turnkeep_runtime::{Client, ClientConfig, Runtime, TurnEvent};
use turnkeep_tests::{
    on_both,
    sockets::{self, Seen, SocketServer},
};

use crate::{
    Told, at, begin, closed, connection, delta, end, over, say, script, send, shut_down, start,
    talk, to_end, turn, until,
};

on_both!(
    a_close_frame_of_the_server_is_told,
    a_close_that_is_not_answered_is_not_waited_for,
    a_connection_that_vanishes_is_lost,
    a_flood_keeps_no_ping_back,
    a_message_past_the_limit_ends_the_connection,
    a_server_that_answers_no_ping_is_lost,
    frames_of_many_sizes_come_and_go,
    line_feeds_in_a_message_end_no_line,
    pings_are_sent_and_answered,
    a_binary_message_is_noise,
);

const MS: fn(u64) -> Duration = Duration::from_millis;

/// Begins a turn and tells why its connection ended.
async fn lost<R: Runtime + Default>(config: ClientConfig) -> CloseReason {
    let client = start::<R>(config.one_connection()).await;
    let mut events = client.connection_events();
    let talk = talk(&client).await;
    let mut turn = send::<R>(&talk, "go").await;
    let is = |event: &ConnectionEvent| matches!(event, ConnectionEvent::Ended(_));
    let told = connection::<R>(&mut events, is).await;
    to_end::<R>(&mut turn, Told::default()).await;
    shut_down(client).await;
    match told.last() {
        Some(ConnectionEvent::Ended(reason)) => closed(reason.clone()),
        other => panic!("{other:?}"),
    }
}

fn lost_by(why: &str) -> CloseReason {
    CloseReason::Lost(why.into())
}

async fn a_close_frame_of_the_server_is_told<R: Runtime + Default>() {
    for (line, reason) in [
        ("socket: close 1000", CloseReason::Eof),
        ("socket: close 1001", CloseReason::Eof),
        (
            "socket: close 1001 restart",
            lost_by("the server closed it with code 1001: restart"),
        ),
        (
            "socket: close 1008 too slow",
            lost_by("the server closed it with code 1008: too slow"),
        ),
        (
            "socket: close 4321",
            lost_by("the server closed it with code 4321"),
        ),
    ] {
        let text = script(&[
            &begin(1),
            &delta(1, "so far"),
            "X stderr ",
            line,
            "\nX hang\n",
        ]);
        let server = SocketServer::tcp(&text);
        assert_eq!(lost::<R>(over(at(&server))).await, reason);
        server.wait_for("end", |seen| seen.contains(&Seen::Gone));
        let answered = server
            .seen()
            .iter()
            .any(|seen| matches!(seen, Seen::Close(_)));
        assert!(answered, "{:?}", server.seen());
    }
}

async fn a_connection_that_vanishes_is_lost<R: Runtime + Default>() {
    let text = script(&[&begin(1), "X stderr socket: vanish\n"]);
    let (_dir, path) = sockets::directory();
    for server in [SocketServer::tcp(&text), SocketServer::unix(&path, &text)] {
        let reason = lost::<R>(over(at(&server))).await;
        assert_eq!(reason, lost_by("it ended without a close frame"));
    }
    let text = script(&[&begin(1), "X sleep 50\nX stderr socket: reset\n"]);
    let server = SocketServer::tcp(&text);
    match lost::<R>(over(at(&server))).await {
        CloseReason::Lost(why) => assert!(why.contains("reset"), "{why}"),
        other => panic!("{other:?}"),
    }
}

async fn a_message_past_the_limit_ends_the_connection<R: Runtime + Default>() {
    let big = r#"S {"method":"x/big","params":{"text":"${x*1100000}"}}"#;
    let text = script(&[&begin(1), big, "\nX hang\n"]);
    let server = SocketServer::tcp(&text);
    let config = over(at(&server)).machine(|machine| machine.limits.frame = 1 << 20);
    let reason = lost::<R>(config).await;
    assert_eq!(reason, lost_by("a message is longer than 1048576 bytes"));
    // It is told so (1009), which it hears if it is not just writing.
    server.wait_for("end", |seen| seen.contains(&Seen::Gone));
}

async fn a_server_that_answers_no_ping_is_lost<R: Runtime + Default>() {
    let text = script(&[&begin(1), "X stderr socket: deaf\nX hang\n"]);
    let (_dir, path) = sockets::directory();
    for server in [SocketServer::tcp(&text), SocketServer::unix(&path, &text)] {
        let begun = Instant::now();
        let config = at(&server).pings(MS(100), MS(250));
        let reason = lost::<R>(over(config)).await;
        assert_eq!(reason, lost_by("no pong within 250 ms"));
        assert!(begun.elapsed() >= MS(350));
    }
}

async fn pings_are_sent_and_answered<R: Runtime + Default>() {
    let text = script(&[
        &begin(1),
        "X stderr socket: ping are you there\nX sleep 600\n",
        &say(1, "done"),
        &end(1),
    ]);
    let server = SocketServer::tcp(&text);
    let client = start::<R>(over(at(&server).pings(MS(50), MS(20_000)))).await;
    let talk = talk(&client).await;
    let mut turn = send::<R>(&talk, "go").await;
    // Nothing else is sent meanwhile that could take the pong along.
    server.wait_for("pong", |seen| {
        seen.contains(&Seen::Pong(b"are you there".into()))
    });
    let told = to_end::<R>(&mut turn, Told::default()).await;
    assert_eq!(told.end().text.as_deref(), Some("done"));
    let pings = server
        .seen()
        .iter()
        .filter(|seen| **seen == Seen::Ping)
        .count();
    assert!((3..=13).contains(&pings), "{pings}");
    shut_down(client).await;
}

async fn a_flood_keeps_no_ping_back<R: Runtime + Default>() {
    let flood = format!("X repeat 30000\n{}X end\n", delta(1, "0123456789"));
    let text = script(&[&begin(1), &flood, &say(1, "done"), &end(1)]);
    let server = SocketServer::tcp(&text);
    let client = start::<R>(over(at(&server).pings(MS(20), MS(20_000)))).await;
    let talk = talk(&client).await;
    let mut turn = send::<R>(&talk, "go").await;
    let mut told = Told::default();
    let is = |event: &TurnEvent| matches!(event, TurnEvent::Delta(_));
    until::<R>(&mut turn, &mut told, is).await;
    let begun = Instant::now();
    let told = to_end::<R>(&mut turn, told).await;
    let took = begun.elapsed();
    let frames: u32 = told.deltas.iter().map(|delta| delta.frames).sum();
    assert_eq!((frames, told.streamed().len()), (30_000, 300_000));
    shut_down(client).await;
    server.wait_for("end", |seen| seen.contains(&Seen::Gone));
    let pings = server
        .seen()
        .iter()
        .filter(|seen| **seen == Seen::Ping)
        .count();
    // Half of those that fit into the time, at least: the machine is busy.
    let fit = took.as_millis() / 40;
    assert!(pings as u128 >= fit.min(3), "{pings} in {took:?}");
}

async fn a_binary_message_is_noise<R: Runtime + Default>() {
    let text = script(&[
        &begin(1),
        "X stderr socket: binary 5\n",
        &say(1, "done"),
        &end(1),
    ]);
    let server = SocketServer::tcp(&text);
    let client = start::<R>(over(at(&server))).await;
    let mut events = client.connection_events();
    let talk = talk(&client).await;
    let mut turn = send::<R>(&talk, "go").await;
    let told = to_end::<R>(&mut turn, Told::default()).await;
    assert_eq!(told.end().text.as_deref(), Some("done"));
    let is = |event: &ConnectionEvent| matches!(event, ConnectionEvent::Noise { .. });
    let told = connection::<R>(&mut events, is).await;
    let noise = ConnectionEvent::Noise {
        line: "[binary message of 5 bytes]".into(),
        length: 27,
        why: NoiseWhy::NotJson,
    };
    assert_eq!(told.last(), Some(&noise));
    assert_eq!(client.counters().await.unwrap().noise_lines, 1);
    shut_down(client).await;
}

async fn line_feeds_in_a_message_end_no_line<R: Runtime + Default>() {
    let message = r#"X stderr socket: message {"method":"item/completed",\n"params":{"threadId":"thr_1","turnId":"trn_1",\r\n"item":{"type":"agentMessage","id":"it_1",\n\n"text":"in\\npieces","phase":"final_answer"}}}\n"#;
    let text = script(&[&begin(1), message, "\n", &end(1)]);
    let server = SocketServer::tcp(&text);
    let client = start::<R>(over(at(&server))).await;
    let talk = talk(&client).await;
    let mut turn = send::<R>(&talk, "go").await;
    let told = to_end::<R>(&mut turn, Told::default()).await;
    assert_eq!(told.end().text.as_deref(), Some("in\npieces"));
    assert_eq!(client.counters().await.unwrap().noise_lines, 0);
    shut_down(client).await;
}

async fn frames_of_many_sizes_come_and_go<R: Runtime + Default>() {
    // Around the borders of a length of one, three and nine bytes, and beyond any buffer.
    for size in [1, 100, 126, 1_000, 65_400, 65_536, 3 << 20] {
        let text = script(&[&turn(1, &format!("${{y*{size}}}"))]);
        let (_dir, path) = sockets::directory();
        let server = SocketServer::unix(&path, &text);
        let client = start::<R>(over(at(&server))).await;
        let talk = talk(&client).await;
        let ours = "z".repeat(size);
        let mut turn = send::<R>(&talk, &ours).await;
        let told = to_end::<R>(&mut turn, Told::default()).await;
        assert_eq!(told.end().text.as_deref().map(str::len), Some(size));
        let came = server.lines().iter().any(|line| line.contains(&ours));
        assert!(came, "{size}");
        shut_down(client).await;
    }
}

async fn a_close_that_is_not_answered_is_not_waited_for<R: Runtime + Default>() {
    let text = script(&[&turn(1, "done"), "X stderr socket: deaf\nX hang\n"]);
    let server = SocketServer::tcp(&text);
    let client: Client<R> = start::<R>(over(at(&server).close_limit(MS(200)))).await;
    let talk = talk(&client).await;
    let mut turn = send::<R>(&talk, "go").await;
    to_end::<R>(&mut turn, Told::default()).await;
    let begun = Instant::now();
    shut_down(client).await;
    let took = begun.elapsed();
    assert!((200..5_000).contains(&took.as_millis()), "{took:?}");
}
