//! Streams that the application brings.

use std::{
    io,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use turnkeep_core::{CloseReason, event::ConnectionEvent};
use turnkeep_runtime::{Authorization, ClientConfig, Outcome, Runtime, StreamsConfig};
use turnkeep_tests::{on_both, sockets::served};
use turnkeep_tokio::fake::{Engine, Script};

use crate::{
    Told, begin, closed, connection, delta, end, failed, not_started, resume, say, script, send,
    shut_down, start, talk, to_end, turn,
};

on_both!(
    a_fresh_pair_goes_on_with_what_the_old_one_left,
    a_pair_is_spoken_over,
    a_pair_that_cannot_be_had_is_told,
    one_pair_is_one_connection,
);

fn over(streams: StreamsConfig) -> ClientConfig {
    ClientConfig::streams(streams)
        .authorization(Authorization::None)
        .machine(|machine| machine.limits.reconnect_first = Duration::from_millis(10))
}

fn engine(text: &str) -> Engine {
    Engine::new(Script::parse(text).unwrap())
}

async fn a_pair_is_spoken_over<R: Runtime + Default>() {
    // More than waits in a pipe, both ways.
    let text = script(&[&turn(1, "${y*100000}")]);
    let streams = StreamsConfig::once(served(engine(&text)));
    let client = start::<R>(over(streams).one_connection()).await;
    let talk = talk(&client).await;
    let mut turn = send::<R>(&talk, &"z".repeat(100_000)).await;
    let told = to_end::<R>(&mut turn, Told::default()).await;
    assert_eq!(told.end().text.as_deref().map(str::len), Some(100_000));
    shut_down(client).await;
}

async fn a_fresh_pair_goes_on_with_what_the_old_one_left<R: Runtime + Default>() {
    let first = script(&[&begin(1), &delta(1, "one "), "X sleep 20\nX exit 0\n"]);
    let second = script(&[
        &resume("active", "inProgress", ""),
        &delta(1, "three"),
        &say(1, "one two three"),
        &end(1),
    ]);
    // What the first bound is known to the second.
    let second = second.replace("$m1", "~");
    let made = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&made);
    let streams = StreamsConfig::with(move || {
        let text = match count.fetch_add(1, Ordering::Relaxed) {
            0 => &first,
            _ => &second,
        };
        let pair = served(engine(text));
        async move { Ok(pair) }
    });
    let client = start::<R>(over(streams)).await;
    let talk = talk(&client).await;
    let mut turn = send::<R>(&talk, "go").await;
    let told = to_end::<R>(&mut turn, Told::default()).await;
    assert_eq!(told.end().text.as_deref(), Some("one two three"));
    assert_eq!((told.suspended(), told.resumed()), (1, 1));
    assert_eq!(told.streamed(), "one three");
    assert_eq!(made.load(Ordering::Relaxed), 2);
    shut_down(client).await;
}

async fn one_pair_is_one_connection<R: Runtime + Default>() {
    let text = script(&[&begin(1), "X sleep 20\nX exit 0\n"]);
    for limited in [true, false] {
        let mut config = over(StreamsConfig::once(served(engine(&text))));
        config.machine.limits.reconnect_tries = 2;
        if limited {
            config = config.one_connection();
        }
        let client = start::<R>(config).await;
        let mut events = client.connection_events();
        let talk = talk(&client).await;
        let mut turn = send::<R>(&talk, "go").await;
        let is = |event: &ConnectionEvent| matches!(event, ConnectionEvent::Ended(_));
        let told = connection::<R>(&mut events, is).await;
        let Some(ConnectionEvent::Ended(reason)) = told.last() else {
            panic!("{told:?}")
        };
        match closed(reason.clone()) {
            CloseReason::Eof if limited => {}
            CloseReason::OpenFailed(why) if !limited => {
                assert_eq!(why, "the application brought one pair of streams only");
            }
            other => panic!("{other:?}"),
        }
        let told = to_end::<R>(&mut turn, Told::default()).await;
        assert!(!matches!(told.end().outcome, Outcome::Completed { .. }));
        shut_down(client).await;
    }
}

async fn a_pair_that_cannot_be_had_is_told<R: Runtime + Default>() {
    let streams = StreamsConfig::with(|| async { Err(io::Error::other("no line to the moon")) });
    let why = failed(not_started::<R>(over(streams)).await);
    assert_eq!(why, "no line to the moon");
}
