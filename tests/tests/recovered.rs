//! What the handles of the tokio runtime find of an earlier life, and of an earlier connection, against the fake server as a real
//! process.

#![allow(clippy::unwrap_used, reason = "helpers of tests are tests")]

use std::{fs, path::Path, time::Duration};

use tokio::{runtime::Runtime, time::timeout};
use turnkeep_tokio::{
    ApprovalPolicy, ChildConfig, Client, ClientConfig, OpenJournalError, Outcome, RawJson, Sandbox,
    SendError, Settings, StartError, Turn, TurnEvent, TurnUpdate,
    core::event::{ConnectionEvent, EndSource},
};

const PATIENCE: Duration = Duration::from_secs(30);

/// One turn begins.
const BEGIN: &str = r#"X auto all
C {"id":"$id","method":"turn/start","params":{"threadId":"thr_1","input":"$input","clientUserMessageId":"$msg"}}
S {"id":"$id","result":{"turn":{"id":"trn_1","items":[],"status":"inProgress","error":null}}}
S {"method":"turn/started","params":{"threadId":"thr_1","turn":{"id":"trn_1","items":[],"status":"inProgress","error":null}}}
"#;

/// It completes, and the answer names the message that began it.
const COMPLETE: &str = r#"S {"method":"item/completed","params":{"threadId":"thr_1","turnId":"trn_1","item":{"type":"agentMessage","id":"it_1","text":"answer to ${msg}","phase":"final_answer"},"completedAtMs":2}}
S {"method":"turn/completed","params":{"threadId":"thr_1","turn":{"id":"trn_1","items":[],"status":"completed","error":null}}}
X eof
"#;

const RESUMED: &str = r#"X auto all
C {"id":"$r","method":"thread/resume","params":{"threadId":"thr_1"}}
S {"id":"$r","result":{"thread":{"id":"thr_1","status":{"type":"idle"},"turns":[]},"model":"m"}}
C {"id":"$l","method":"thread/turns/list","params":{"threadId":"thr_1","itemsView":"full"}}
"#;

/// The history has the turn, in this status, with its message and an answer.
fn history(status: &str, message: &str) -> String {
    let user =
        format!(r#"{{"type":"userMessage","id":"usr_1","clientId":"{message}","content":[]}}"#);
    let agent =
        r#"{"type":"agentMessage","id":"it_1","text":"from the history","phase":"final_answer"}"#;
    let turn = format!(
        r#"{{"id":"trn_1","status":"{status}","error":null,"itemsView":"full","items":[{user},{agent}]}}"#
    );
    format!("S {{\"id\":\"$l\",\"result\":{{\"data\":[{turn}],\"nextCursor\":null}}}}\n")
}

fn script(parts: &[&str]) -> ClientConfig {
    let program = env!("CARGO_BIN_EXE_fake-app-server");
    let child = ChildConfig::program(program).args(["--script-text", &parts.concat()]);
    turnkeep_tests::client(child).machine(|machine| {
        machine.limits.reconnect_first = Duration::from_millis(1);
    })
}

/// A script with several lives, one for each connection.
fn lives(dir: &Path, parts: &[&str]) -> ClientConfig {
    let mut config = script(&[&parts.join("X next life\n")]);
    config =
        config.change_child(|child| child.env("FAKE_APP_SERVER_LIVES", dir.join("server-lives")));
    config
}

async fn soon<T>(what: impl IntoFuture<Output = T>) -> T {
    timeout(PATIENCE, what).await.expect("it takes too long")
}

/// One life of the client. Its runtime is dropped under it, as a crash would have it: nothing is told to the server, and nothing
/// written down any more.
fn life<T>(config: &ClientConfig, dir: &Path, app: impl AsyncFnOnce(&Client) -> T) -> T {
    let runtime = Runtime::new().unwrap();
    let (done, client) = runtime.block_on(async {
        let start = async {
            loop {
                match Client::spawn(config.clone().journal(dir.join("journal"))).await {
                    Err(StartError::Journal(OpenJournalError::Locked { .. })) => {
                        tokio::time::sleep(Duration::from_millis(5)).await;
                    }
                    started => return started.unwrap(),
                }
            }
        };
        let client = soon(start).await;
        (app(&client).await, client)
    });
    // The last handle's end would be an orderly one.
    runtime.shutdown_timeout(PATIENCE);
    drop(client);
    done
}

async fn until(turn: &mut Turn, wanted: impl Fn(&TurnUpdate) -> bool) {
    while let Some(event) = soon(turn.next()).await {
        if matches!(&event, TurnEvent::Update(update) if wanted(update)) {
            return;
        }
    }
    panic!("the turn is over: {:?}", turn.end());
}

/// A life in which a message is sent under a key and its turn begins. Gives the message's id.
fn begun(dir: &Path) -> String {
    life(&script(&[BEGIN, "X hang\n"]), dir, async |client| {
        assert_eq!(client.recovered(), None);
        let talk = client.conversation("talk").await.unwrap();
        let mut turn = talk.send("go").key("k").await.unwrap();
        until(&mut turn, |u| matches!(u, TurnUpdate::Started { .. })).await;
        let message = turn.message().unwrap().to_string();
        // Dropped it would be given up, which a crash has no time for.
        turn.detach();
        message
    })
}

fn is_over(sent: Result<Turn, SendError>) -> bool {
    match sent {
        Err(SendError::AlreadyEnded { turn, .. }) => turn.0 == 1,
        other => panic!("{other:?}"),
    }
}

#[test]
fn an_end_is_told_in_every_life_until_it_is_acknowledged() {
    let dir = tempfile::tempdir().unwrap();
    let message = begun(dir.path());

    let told = script(&[RESUMED, &history("completed", &message), "X eof\n"]);
    life(&told, dir.path(), async |client| {
        let found = client.recovered().unwrap();
        assert_eq!((found.lives, found.conversations), (1, 1));
        assert_eq!((found.turns, found.ends), (1, 0));
        // All there is to tell is told before anybody asks.
        let settled = async {
            while client.counters().await.unwrap().found_ended == 0 {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        soon(settled).await;
        let talk = client.conversation("talk").await.unwrap();
        let mut turns = talk.recovered().await.unwrap();
        assert!(talk.recovered().await.unwrap().is_empty());
        let turn = turns.pop().unwrap();
        assert!(turns.is_empty());
        let mut turn = turn.manual_acknowledge();
        let end = soon(turn.outcome()).await.unwrap();
        assert_eq!(end.source, EndSource::Reconciled);
        assert_eq!(end.text.as_deref(), Some("from the history"));
        assert_eq!(end.message.unwrap().as_str(), message);
    });

    let idle = script(&["X auto all\nX eof\n"]);
    life(&idle, dir.path(), async |client| {
        let found = client.recovered().unwrap();
        assert_eq!((found.lives, found.turns, found.ends), (2, 0, 1));
        let talk = client.conversation("talk").await.unwrap();
        let mut turn = talk.recovered().await.unwrap().remove(0);
        let answer = soon(turn.final_response()).await.unwrap();
        assert_eq!(answer, "from the history");
        turn.acknowledge().await.unwrap();
        assert!(is_over(soon(talk.send("go").key("k")).await));
    });

    life(&idle, dir.path(), async |client| {
        let found = client.recovered().unwrap();
        assert_eq!((found.lives, found.turns, found.ends), (3, 0, 0));
        let talk = client.conversation("talk").await.unwrap();
        assert!(talk.recovered().await.unwrap().is_empty());
        assert!(is_over(soon(talk.send("go").key("k")).await));
    });
}

#[test]
fn a_keyed_message_said_again_after_a_crash_gives_its_turn() {
    let dir = tempfile::tempdir().unwrap();
    let message = begun(dir.path());
    let told = script(&[RESUMED, &history("failed", &message), "X eof\n"]);
    life(&told, dir.path(), async |client| {
        let talk = client.conversation("talk").await.unwrap();
        let mut turn = soon(talk.send("go").key("k")).await.unwrap();
        assert_eq!(turn.message().unwrap().as_str(), message);
        let end = soon(turn.outcome()).await.unwrap();
        assert!(matches!(end.outcome, Outcome::Failed { .. }), "{end:?}");
        assert!(talk.recovered().await.unwrap().is_empty());
    });
}

#[test]
fn a_message_that_never_arrived_is_sent_again_and_its_turn_is_taken_late() {
    let dir = tempfile::tempdir().unwrap();
    let start = BEGIN.lines().take(3).collect::<Vec<_>>().join("\n");
    let message = life(
        &script(&[&start, "\nX hang\n"]),
        dir.path(),
        async |client| {
            let talk = client.conversation("talk").await.unwrap();
            let turn = talk.send("go").await.unwrap();
            let message = turn.message().unwrap().to_string();
            let accepted = async {
                while client.counters().await.unwrap().frames < 3 {
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
            };
            soon(accepted).await;
            turn.detach();
            message
        },
    );
    // The history is empty in the second life.
    life(&script(&[BEGIN, COMPLETE]), dir.path(), async |client| {
        let settled = async {
            while client.counters().await.unwrap().resent == 0 {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        soon(settled).await;
        let talk = client.conversation("talk").await.unwrap();
        let mut turn = talk.recovered().await.unwrap().remove(0);
        let first = soon(turn.next()).await;
        assert_eq!(first, Some(TurnEvent::Update(TurnUpdate::Resent)));
        let answer = soon(turn.final_response()).await.unwrap();
        assert_eq!(answer, format!("answer to {message}"));
    });
}

#[tokio::test]
async fn a_turn_is_suspended_and_goes_on_over_a_reconnection() {
    let dir = tempfile::tempdir().unwrap();
    let first = [BEGIN, "X die\n"].concat();
    let runs = r#"S {"id":"$l","result":{"data":[{"id":"trn_1","status":"inProgress","error":null,"itemsView":"full","items":[]}],"nextCursor":null}}
"#;
    let resumed = RESUMED.replace("idle", "active");
    let second = [&resumed, runs, COMPLETE]
        .concat()
        .replace(" to ${msg}", "");
    let config = lives(dir.path(), &[&first, &second]);
    let client = soon(Client::spawn(config)).await.unwrap();
    let mut connection = client.connection_events();
    let talk = client.conversation("talk").await.unwrap();
    let mut turn = soon(talk.send("go")).await.unwrap();
    let mut told = Vec::new();
    while let Some(event) = soon(turn.next()).await {
        match event {
            TurnEvent::Update(TurnUpdate::Suspended { .. }) => told.push("suspended"),
            TurnEvent::Update(TurnUpdate::Resumed) => told.push("resumed"),
            TurnEvent::Update(TurnUpdate::Resent) => told.push("resent"),
            TurnEvent::Update(TurnUpdate::Ended(_)) => told.push("ended"),
            _ => {}
        }
    }
    assert_eq!(told, ["suspended", "resumed", "ended"]);
    assert_eq!(soon(turn.final_response()).await.unwrap(), "answer");
    let mut told = Vec::new();
    while told.len() < 2 {
        match soon(connection.next()).await {
            Some(ConnectionEvent::Lost { .. }) => told.push("lost"),
            Some(ConnectionEvent::Ready { .. }) => told.push("ready"),
            Some(_) => {}
            None => break,
        }
    }
    assert_eq!(told, ["lost", "ready"]);
    assert!(client.server_pid().is_some());
    soon(client.shutdown()).await.unwrap();
    let lives = fs::read_to_string(dir.path().join("server-lives")).unwrap();
    assert_eq!(lives, "2");
}

#[tokio::test]
async fn what_a_server_forgets_is_said_again_when_a_thread_is_resumed() {
    let dir = tempfile::tempdir().unwrap();
    let settings = Settings::new()
        .sandbox(Sandbox::WorkspaceWrite)
        .approval_policy(ApprovalPolicy::Never)
        .config(RawJson::parse(r#"{"a":1}"#).unwrap());
    let runs = r#"S {"id":"$l","result":{"data":[{"id":"trn_1","status":"inProgress","error":null,"itemsView":"full","items":[]}],"nextCursor":null}}
"#;
    let said = r#"{"threadId":"thr_1","sandbox":"workspace-write","approvalPolicy":"never","config":{"a":1}}"#;
    let resumed = RESUMED
        .replacen(r#"{"threadId":"thr_1"}"#, said, 1)
        .replace("idle", "active");
    let second = [&resumed, runs, COMPLETE]
        .concat()
        .replace(" to ${msg}", "");
    let config = lives(dir.path(), &[&[BEGIN, "X die\n"].concat(), &second]);
    let client = soon(Client::spawn(config)).await.unwrap();
    let talk = client
        .conversation("talk")
        .settings(settings)
        .await
        .unwrap();
    let mut turn = soon(talk.send("go")).await.unwrap();
    assert_eq!(soon(turn.final_response()).await.unwrap(), "answer");
}

#[tokio::test]
async fn a_start_is_tried_once() {
    let dir = tempfile::tempdir().unwrap();
    let died = "C {\"id\":\"$id\",\"method\":\"initialize\",\"params\":\"*\"}\nX die\n";
    let config = lives(dir.path(), &[died, "X auto all\nX eof\n"]);
    let error = soon(Client::spawn(config)).await.unwrap_err();
    assert!(matches!(error, StartError::Connection(_)), "{error}");
    let lives = fs::read_to_string(dir.path().join("server-lives")).unwrap();
    assert_eq!(lives, "1");
}
