//! The transport against a server that speaks WebSocket by another library, in a blocking thread.

use std::{
    net::{TcpListener, TcpStream},
    sync::mpsc::{Receiver, channel},
    thread,
    time::Duration,
};

use tungstenite::{Message, WebSocket};
use turnkeep_core::{CloseReason, attachment::Endpoint};

use super::super::{
    Connection,
    tests::{frame, to_the_end, until},
};
use crate::{
    config::{ServerConfig, WebSocketConfig},
    on_both,
    testing::Rt,
};

on_both!(
    a_connection_that_is_closed_before_it_is_there,
    a_flood_comes_in_reads_that_are_not_small,
    a_server_that_never_reads_is_given_up,
    frames_that_were_never_begun_are_given_back,
    lines_go_as_messages_and_messages_come_as_lines,
    reading_goes_on_while_nothing_can_be_written,
    what_was_sent_before_the_close_is_written_and_what_comes_after_is_not,
);

/// Lets one client in; the receiver gets what the thread returns.
fn server<T: Send + 'static>(
    serve: impl FnOnce(WebSocket<TcpStream>) -> T + Send + 'static,
) -> (WebSocketConfig, Receiver<T>) {
    let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let address = listener.local_addr().unwrap();
    let (done, result) = channel();
    thread::spawn(move || {
        let (stream, _) = listener.accept().unwrap();
        let limits = tungstenite::protocol::WebSocketConfig::default()
            .max_frame_size(None)
            .max_message_size(None);
        let socket = tungstenite::accept_with_config(stream, Some(limits)).unwrap();
        let _ = done.send(serve(socket));
    });
    let config = WebSocketConfig::url(&format!("ws://{address}")).unwrap();
    (config, result)
}

async fn open(rt: &Rt, config: WebSocketConfig) -> Connection {
    let mut connection = Connection::open(
        rt,
        &ServerConfig::WebSocket(config.clone()),
        128 << 20,
        None,
    );
    let told = until(rt, &mut connection, |told| told.opened.is_some()).await;
    let peer = told.opened.unwrap();
    assert_eq!((&*peer.transport, peer.pid), ("tcp", None));
    let Some(Endpoint::Tcp { host, .. }) = peer.endpoint else {
        panic!("{:?}", peer.endpoint)
    };
    assert_eq!(host, "127.0.0.1");
    connection
}

/// Reads text messages to the end.
fn read_all(socket: &mut WebSocket<TcpStream>) -> Vec<String> {
    let mut all = Vec::new();
    while let Ok(message) = socket.read() {
        if let Message::Text(text) = message {
            all.push(text.as_str().to_owned());
        }
    }
    all
}

async fn lines_go_as_messages_and_messages_come_as_lines(rt: Rt) {
    let (config, read) = server(|mut socket| {
        socket.send(Message::text("{\"a\":\n1}")).unwrap();
        socket.send(Message::binary(vec![10; 3])).unwrap();
        socket.send(Message::text("")).unwrap();
        read_all(&mut socket)
    });
    let mut connection = open(&rt, config).await;
    for n in 1..=3 {
        connection.send(frame(n, &format!("{{\"id\":{n}}}\n")));
    }
    let lines = |told: &super::super::tests::Told| told.text.matches('\n').count();
    let told = until(&rt, &mut connection, |told| lines(told) == 3).await;
    assert_eq!(told.text, "{\"a\": 1}\n[binary message of 3 bytes]\n\n");
    connection.close();
    let told = to_the_end(&rt, &mut connection).await;
    assert_eq!(*told.reason(), CloseReason::ByUs);
    assert_eq!(told.unsent, [] as [u64; 0]);
    assert_eq!(
        read.recv().unwrap(),
        ["{\"id\":1}", "{\"id\":2}", "{\"id\":3}"]
    );
}

async fn what_was_sent_before_the_close_is_written_and_what_comes_after_is_not(rt: Rt) {
    let (config, read) = server(|mut socket| {
        // Longer than it takes to fill what the system holds.
        thread::sleep(Duration::from_millis(200));
        read_all(&mut socket)
    });
    let mut connection = open(&rt, config).await;
    connection.send(frame(1, &"x".repeat(16 << 20)));
    connection.send(frame(2, "{}\n"));
    connection.close();
    connection.send(frame(3, "late\n"));
    let told = to_the_end(&rt, &mut connection).await;
    assert_eq!(*told.reason(), CloseReason::ByUs);
    assert_eq!(told.unsent, [3]);
    let read: Vec<usize> = read.recv().unwrap().iter().map(String::len).collect();
    assert_eq!(read, [16 << 20, 2]);
}

async fn frames_that_were_never_begun_are_given_back(rt: Rt) {
    let (config, _) = server(|mut socket| {
        let first = socket.read().unwrap();
        assert_eq!(first, Message::text("{}"));
        thread::sleep(Duration::from_millis(100));
    });
    let mut connection = open(&rt, config).await;
    connection.send(frame(1, "{}\n"));
    connection.send(frame(2, &"x".repeat(32 << 20)));
    for n in 3..=5 {
        connection.send(frame(n, "{}\n"));
    }
    let told = to_the_end(&rt, &mut connection).await;
    assert!(matches!(told.reason(), CloseReason::Lost(_)), "{told:?}");
    assert_eq!(told.unsent, [3, 4, 5]);
}

async fn a_server_that_never_reads_is_given_up(rt: Rt) {
    let (end, ended) = channel::<()>();
    let (config, _) = server(move |_socket| ended.recv());
    let mut connection = open(&rt, config).await;
    let piece = "x".repeat(64 << 20);
    for n in 1..=5 {
        connection.send(frame(n, &piece));
    }
    let told = to_the_end(&rt, &mut connection).await;
    let lost = CloseReason::Lost("the server does not read what it is sent".into());
    assert_eq!(*told.reason(), lost);
    assert!(told.unsent.contains(&5), "{:?}", told.unsent);
    drop(end);
}

async fn reading_goes_on_while_nothing_can_be_written(rt: Rt) {
    let (end, ended) = channel::<()>();
    let (config, _) = server(move |mut socket| {
        for n in 0..1_000 {
            socket.send(Message::text(format!("{n:01000}"))).unwrap();
        }
        ended.recv()
    });
    let mut connection = open(&rt, config).await;
    connection.send(frame(1, &"x".repeat(32 << 20)));
    let told = until(&rt, &mut connection, |told| told.text.len() == 1_001_000).await;
    assert!(told.closed.is_none());
    drop(end);
}

async fn a_flood_comes_in_reads_that_are_not_small(rt: Rt) {
    let (config, _) = server(|mut socket| {
        for n in 0..20_000 {
            socket.write(Message::text(format!("{n:0100}"))).unwrap();
        }
        socket.flush().unwrap();
        read_all(&mut socket)
    });
    let mut connection = open(&rt, config).await;
    let reads = std::cell::Cell::new(0);
    let told = until(&rt, &mut connection, |told| {
        reads.set(reads.get() + 1);
        told.text.len() == 20_000 * 101
    });
    let told = told.await;
    let lines: Vec<&str> = told.text.lines().collect();
    assert_eq!(lines.len(), 20_000);
    let in_order = lines
        .iter()
        .enumerate()
        .all(|(n, line)| line.parse() == Ok(n));
    assert!(in_order);
    // 31 reads of 64 KiB, if the server is fast enough; a message each would be 20,000.
    assert!(reads.get() < 2_000, "{}", reads.get());
}

async fn a_connection_that_is_closed_before_it_is_there(rt: Rt) {
    let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let url = format!("ws://{}", listener.local_addr().unwrap());
    let config = WebSocketConfig::url(&url).unwrap();
    let server = ServerConfig::WebSocket(config);
    let mut connection = Connection::open(&rt, &server, 1 << 20, None);
    connection.send(frame(1, "early\n"));
    connection.close();
    let told = to_the_end(&rt, &mut connection).await;
    assert_eq!((told.opened, told.unsent), (None, vec![1]));
    assert_eq!(told.closed.unwrap().reason, CloseReason::ByUs);
}
