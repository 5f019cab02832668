//! How connections open, and how they do not (case 47).

use std::time::{Duration, Instant};

use turnkeep_core::CloseReason;
use turnkeep_runtime::{Client, Runtime, StartError, WebSocketConfig, WebSocketConfigError};
use turnkeep_tests::{
    both::within,
    on_both,
    sockets::{self, Authority, Door, Seen, SocketServer},
};

use crate::{at, failed, not_started, over, script, send, shut_down, start, talk, turn};

on_both!(
    a_certificate_that_nobody_vouches_for_is_not_trusted,
    a_denied_opening_is_final,
    a_token_goes_along,
    a_token_that_cannot_be_had_is_told,
    an_opening_has_a_deadline,
    hello_over_a_unix_socket,
    hello_over_tcp,
    hello_over_tls,
    nobody_who_listens_is_told_apart,
    refused_openings_say_why,
    tokens_go_nowhere_in_the_clear,
);

fn hello_script() -> String {
    script(&[&turn(1, "Hello.")])
}

async fn hello<R: Runtime + Default>(server: &SocketServer, config: WebSocketConfig) {
    let client = start::<R>(over(config)).await;
    let talk = talk(&client).await;
    let mut turn = send::<R>(&talk, "hello").await;
    let text = within::<R, _>("answer", turn.final_response())
        .await
        .unwrap();
    assert_eq!(text, "Hello.");
    shut_down(client).await;
    server.wait_for("end", |seen| seen.contains(&Seen::Gone));
    assert_eq!(
        server.seen(),
        [Seen::Opened, Seen::Close(Some(1000)), Seen::Gone]
    );
    let [asked] = &server.asked()[..] else {
        panic!("{:?}", server.asked())
    };
    assert_eq!(asked.path, "/");
    for name in [
        "origin",
        "sec-websocket-extensions",
        "sec-websocket-protocol",
    ] {
        assert_eq!(asked.header(name), None);
    }
    let host = match server.url().split_once("://").unwrap() {
        ("unix", _) => "localhost",
        (_, host) => host,
    };
    assert_eq!(asked.header("host"), Some(host));
}

async fn hello_over_tcp<R: Runtime + Default>() {
    let server = SocketServer::tcp(&hello_script());
    hello::<R>(&server, at(&server)).await;
    assert_eq!(server.asked()[0].header("authorization"), None);
}

async fn hello_over_a_unix_socket<R: Runtime + Default>() {
    let (_dir, path) = sockets::directory();
    let server = SocketServer::unix(&path, &hello_script());
    hello::<R>(&server, at(&server)).await;
}

async fn hello_over_tls<R: Runtime + Default>() {
    let authority = Authority::new("localhost");
    let server = SocketServer::tls(&hello_script(), &authority);
    hello::<R>(
        &server,
        at(&server).ca_file(authority.file()).token("s3cret"),
    )
    .await;
    let asked = server.asked();
    assert_eq!(asked[0].header("authorization"), Some("Bearer s3cret"));
}

async fn a_certificate_that_nobody_vouches_for_is_not_trusted<R: Runtime + Default>() {
    let (ours, other) = (Authority::new("localhost"), Authority::new("localhost"));
    let server = SocketServer::tls(&hello_script(), &ours);
    let why = failed(not_started::<R>(over(at(&server).ca_file(other.file()))).await);
    let want = "the certificate of localhost is not trusted: ";
    assert!(why.starts_with(want), "{why}");
    // The system's roots do not know it either.
    let why = failed(not_started::<R>(over(at(&server))).await);
    assert!(
        why.starts_with(want) || why.contains("the system has no certificates"),
        "{why}"
    );
    // The right authority, but for another name.
    let elsewhere = Authority::new("elsewhere.example");
    let server = SocketServer::tls(&hello_script(), &elsewhere);
    let why = failed(not_started::<R>(over(at(&server).ca_file(elsewhere.file()))).await);
    assert!(why.starts_with(want), "{why}");
    assert!(server.asked().is_empty());
    let nowhere = at(&server).ca_file("/nowhere/ca.pem");
    let why = failed(not_started::<R>(over(nowhere)).await);
    assert!(
        why.starts_with("cannot read the CA file /nowhere/ca.pem: "),
        "{why}"
    );
    // A server that speaks no TLS.
    let plain = SocketServer::tcp(&hello_script());
    let url = plain.url().replace("ws://127.0.0.1", "wss://localhost");
    let config = WebSocketConfig::url(&url).unwrap().ca_file(ours.file());
    let config = config.open_limit(Duration::from_secs(2));
    let why = failed(not_started::<R>(over(config)).await);
    assert!(why.contains("TLS"), "{why}");
}

async fn a_token_goes_along<R: Runtime + Default>() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("token");
    std::fs::write(&file, "  fr0m-a-file\n").unwrap();
    let server = SocketServer::tcp(&hello_script());
    for config in [at(&server).token("g1ven"), at(&server).token_file(&file)] {
        shut_down(start::<R>(over(config)).await).await;
    }
    let asked = server.asked();
    let tokens: Vec<_> = asked
        .iter()
        .map(|asked| asked.header("authorization"))
        .collect();
    assert_eq!(tokens, [Some("Bearer g1ven"), Some("Bearer fr0m-a-file")]);
}

async fn a_token_that_cannot_be_had_is_told<R: Runtime + Default>() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("token");
    let server = SocketServer::tcp(&hello_script());
    let why = failed(not_started::<R>(over(at(&server).token_file(&file))).await);
    assert!(
        why.starts_with(&format!("cannot read the token in {}", file.display())),
        "{why}"
    );
    std::fs::write(&file, "two w0rds").unwrap();
    let why = failed(not_started::<R>(over(at(&server).token_file(&file))).await);
    assert!(
        why.contains("no HTTP header may hold") && !why.contains("w0rds"),
        "{why}"
    );
    assert!(server.asked().is_empty());
}

async fn tokens_go_nowhere_in_the_clear<R: Runtime + Default>() {
    let refused = |config| async {
        match Client::<R>::spawn(over(config)).await {
            Err(StartError::WebSocket(error)) => error,
            other => panic!("{other:?}"),
        }
    };
    let far = WebSocketConfig::url("ws://192.0.2.1:4500")
        .unwrap()
        .token("s3cret");
    let host = "192.0.2.1".to_owned();
    let error = WebSocketConfigError::TokenOverPlainTcp { host };
    assert_eq!(refused(far.clone()).await, error);
    let file = WebSocketConfig::url("ws://192.0.2.1:4500")
        .unwrap()
        .token_file("/token");
    assert_eq!(refused(file).await, error);
    for broken in ["", "two words", "a\r\nOrigin: b"] {
        let config = WebSocketConfig::url("ws://127.0.0.1:1")
            .unwrap()
            .token(broken);
        assert_eq!(refused(config).await, WebSocketConfigError::BadToken);
    }
    // Unless it is told to.
    let server = SocketServer::tcp(&hello_script());
    let forced = at(&server).token("s3cret").token_over_plain_tcp();
    assert!(forced.validate().is_ok());
    assert!(far.token_over_plain_tcp().validate().is_ok());
}

async fn a_denied_opening_is_final<R: Runtime + Default>() {
    for status in [401, 403] {
        let server = SocketServer::tcp(&hello_script()).doors([Door::Status(status)]);
        let reason = not_started::<R>(over(at(&server))).await;
        assert_eq!(reason, CloseReason::Denied { status });
        assert_eq!(server.asked().len(), 1);
    }
}

async fn refused_openings_say_why<R: Runtime + Default>() {
    let too_old = "closes the connection without an answer: perhaps it is too old to speak \
                   WebSocket there, or no app-server";
    for (door, want) in [
        (Door::HangUp, too_old),
        (Door::Slam, too_old),
        (Door::NoHttp, "gives an answer that is no HTTP"),
        (
            Door::WrongAccept,
            "gives an answer that is not to our request (wrong Sec-WebSocket-Accept)",
        ),
        (
            Door::Extension,
            "uses an extension or protocol nobody asked for",
        ),
        (
            Door::Status(404),
            "answers with HTTP status 404: nothing is served under this path",
        ),
        (
            Door::Status(426),
            "answers with HTTP status 426: it wants another version of WebSocket",
        ),
        (
            Door::Status(503),
            "answers with HTTP status 503: something is wrong with the server",
        ),
        (
            Door::Status(302),
            "answers with HTTP status 302: it has moved, and nobody is followed",
        ),
    ] {
        let (_dir, path) = sockets::directory();
        for server in [
            SocketServer::tcp(&hello_script()),
            SocketServer::unix(&path, &hello_script()),
        ] {
            let server = server.doors([door.clone()]);
            let why = failed(not_started::<R>(over(at(&server))).await);
            let name = match server.url().strip_prefix("unix://") {
                Some(path) => format!("the socket {path}"),
                None => server.url().to_owned(),
            };
            assert_eq!(why, format!("{name} {want}"));
        }
    }
}

async fn nobody_who_listens_is_told_apart<R: Runtime + Default>() {
    let server = SocketServer::tcp(&hello_script());
    let url = server.url().to_owned();
    server.stop();
    let why = failed(not_started::<R>(over(WebSocketConfig::url(&url).unwrap())).await);
    assert!(
        why.starts_with(&format!("nobody listens at {url} (")),
        "{why}"
    );
    assert!(why.ends_with("is the app-server started?"), "{why}");
    // A8: a file is no proof that anybody listens.
    let (_dir, path) = sockets::directory();
    let shown = format!("the socket {}", path.display());
    let why = failed(not_started::<R>(over(WebSocketConfig::unix(&path))).await);
    assert!(
        why.starts_with(&format!("{shown} does not exist (")),
        "{why}"
    );
    SocketServer::unix(&path, &hello_script()).stop();
    assert!(path.exists());
    let why = failed(not_started::<R>(over(WebSocketConfig::unix(&path))).await);
    assert!(
        why.starts_with(&format!("nobody listens at {shown} any more (")),
        "{why}"
    );
    // One that takes its place is found.
    let server = SocketServer::unix(&path, &hello_script());
    hello::<R>(&server, at(&server)).await;
}

async fn an_opening_has_a_deadline<R: Runtime + Default>() {
    let server = SocketServer::tcp(&hello_script()).doors([Door::Silent]);
    let config = at(&server).open_limit(Duration::from_millis(200));
    let begun = Instant::now();
    let why = failed(not_started::<R>(over(config)).await);
    assert_eq!(
        why,
        format!(
            "{} does not answer within 200 ms: the connection is there, but the upgrade to \
             WebSocket is not answered",
            server.url()
        )
    );
    assert!((200..5_000).contains(&begun.elapsed().as_millis()));
}
