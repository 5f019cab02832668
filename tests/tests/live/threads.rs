//! What is asked of a native thread beside rounds: made and named, compacted, forked.

use std::time::Duration;

use serde_json::json;
use turnkeep_core::{
    command::BusyWhy,
    config::Reconnect,
    event::{ConnectionEvent, FailureKind},
};
use turnkeep_runtime::{CommandError, Outcome, RequestError, SendError};
use turnkeep_tests::{
    codex::CodexHome,
    heard,
    model::{self, Gate, Model},
    session::{self, PATIENCE, to_end, within},
};

use crate::codex::{Codex, json as raw};

async fn start(version: &'static str, model: Model) -> Codex {
    let home = CodexHome::new(&model);
    Codex::start_in(version, model, home, |config| {
        config.machine(|machine| machine.reconnect = Reconnect::On)
    })
    .await
}

/// Kills the server, and waits for the next one.
async fn killed(codex: &Codex) {
    let mut connection = codex.client().connection_events();
    codex.session.kill_server();
    loop {
        match within("connection", connection.next()).await {
            Some(ConnectionEvent::Ready { .. }) => return,
            Some(_) => {}
            None => panic!("the client has ended"),
        }
    }
}

pub(crate) async fn materialised_thread_outlives_its_server(version: &'static str) {
    let codex = start(version, Model::queued([model::text("Here.")])).await;
    let talk = codex.conversation("my talk").await;
    let thread = within("materialise", talk.materialise()).await.unwrap();
    assert_eq!(talk.materialise().await.unwrap(), thread);
    killed(&codex).await;
    assert_eq!(
        within("materialise", talk.materialise()).await.unwrap(),
        thread
    );
    let mut turn = talk.send("are you there?").await.unwrap();
    assert_eq!(turn.final_response().await.unwrap(), "Here.");
    let params = raw(json!({ "threadId": thread }));
    let read = codex.client().request_raw("thread/read", params).reads();
    let read = within("thread/read", read).await.unwrap();
    let read: serde_json::Value = serde_json::from_str(read.get()).unwrap();
    assert_eq!(read["thread"]["name"], "my talk");
    let ended = codex.end().await;
    assert_eq!(ended.recording.sent_params("thread/start").len(), 1);
    let names = ended.recording.sent_params("thread/name/set");
    assert_eq!(names.len(), 1, "{names:?}");
}

pub(crate) async fn compaction_ends_with_its_turn(version: &'static str) {
    let gate = Gate::new();
    let model = Model::queued([
        model::text("First."),
        model::text("A summary").hold(&gate).text(" of it."),
        model::text("Second."),
    ]);
    let codex = Codex::start(version, model).await;
    let talk = codex.conversation("talk").await;
    match within("compact", talk.compact()).await {
        Err(RequestError::Command(CommandError::NoThread { .. })) => {}
        other => panic!("{other:?}"),
    }
    let mut turn = talk.send("one").await.unwrap();
    assert_eq!(turn.final_response().await.unwrap(), "First.");
    let compacting = tokio::spawn({
        let talk = talk.clone();
        async move { talk.compact().await }
    });
    codex.model.wait_for_requests(2, PATIENCE);
    // The acknowledgement is long there.
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert!(!compacting.is_finished());
    match talk.send("too early").await {
        Err(SendError::Request(RequestError::Command(CommandError::Busy { why, .. }))) => {
            assert_eq!(why, BusyWhy::Compacting);
        }
        other => panic!("{other:?}"),
    }
    gate.open();
    within("compact", compacting).await.unwrap().unwrap();
    let mut turn = talk.send("two").await.unwrap();
    assert_eq!(turn.final_response().await.unwrap(), "Second.");
    let asked = codex.model.requests();
    assert_eq!(asked.len(), 3);
    let last = asked[2].to_string();
    assert!(last.contains("A summary of it."), "{last}");
    let ended = codex.end().await;
    assert_eq!(ended.recording.sent_params("thread/compact/start").len(), 1);
}

pub(crate) async fn compaction_that_fails_is_an_error(version: &'static str) {
    let gate = Gate::new();
    let model = Model::queued([
        model::text("First."),
        model::failed("server_error", "no"),
        model::text("A summary").hold(&gate).text(" of it."),
        model::text("Second."),
    ]);
    let codex = Codex::start(version, model).await;
    let talk = codex.conversation("talk").await;
    let mut turn = talk.send("one").await.unwrap();
    assert_eq!(turn.final_response().await.unwrap(), "First.");
    match within("compact", talk.compact()).await {
        Err(RequestError::Command(CommandError::NotCompacted { outcome, .. })) => match *outcome {
            Outcome::Failed { error } => assert_eq!(error.kind, FailureKind::Server),
            other => panic!("{other:?}"),
        },
        other => panic!("{other:?}"),
    }
    drop(gate);
    codex.end().await;
}

pub(crate) async fn compaction_lost_with_its_server_is_told_by_the_history(version: &'static str) {
    let model = Model::queued([
        model::text("First."),
        model::text("A summary").hold(&Gate::new()).text(" of it."),
        model::text("Second."),
    ]);
    let codex = start(version, model).await;
    let talk = codex.conversation("talk").await;
    let mut turn = talk.send("one").await.unwrap();
    assert_eq!(turn.final_response().await.unwrap(), "First.");
    let compacting = tokio::spawn({
        let talk = talk.clone();
        async move { talk.compact().await }
    });
    codex.model.wait_for_requests(2, PATIENCE);
    killed(&codex).await;
    match within("compact", compacting).await.unwrap() {
        Err(RequestError::Command(CommandError::NotCompacted { outcome, .. })) => {
            assert_eq!(*outcome, Outcome::Interrupted);
        }
        other => panic!("{other:?}"),
    }
    let mut turn = talk.send("two").await.unwrap();
    let told = to_end(&mut turn).await;
    assert_eq!(told.end.text.as_deref(), Some("Second."));
    let ended = codex.end().await;
    assert_eq!(ended.recording.sent_params("thread/compact/start").len(), 1);
}

pub(crate) async fn fork_goes_its_own_way(version: &'static str) {
    let model = Model::queued([
        model::text("First."),
        model::text("Here it is two."),
        model::text("There it is three."),
        model::text("There again."),
    ]);
    let codex = start(version, model).await;
    let talk = codex
        .open("talk", codex.settings().tool(session::later()))
        .await;
    let mut turn = talk.send("the first word").await.unwrap();
    assert_eq!(turn.final_response().await.unwrap(), "First.");
    let fork = async { talk.fork("fork").await };
    let fork = within("fork", fork).await.unwrap();
    let mut turn = talk.send("the second word").await.unwrap();
    assert_eq!(turn.final_response().await.unwrap(), "Here it is two.");
    let mut turn = fork.send("the third word").await.unwrap();
    assert_eq!(turn.final_response().await.unwrap(), "There it is three.");
    // It is stored as any thread is.
    killed(&codex).await;
    let mut turn = fork.send("the fourth word").await.unwrap();
    assert_eq!(turn.final_response().await.unwrap(), "There again.");
    let asked = codex.model.requests();
    for (request, words) in [(1, [1, 1, 0, 0]), (2, [1, 0, 1, 0]), (3, [1, 0, 1, 1])] {
        let all = ["first", "second", "third", "fourth"];
        for (word, times) in all.into_iter().zip(words) {
            let word = format!("the {word} word");
            assert_eq!(
                heard::told(&asked[request], &word),
                times,
                "{request}: {word}"
            );
        }
        assert!(
            model::tool_names(&asked[request]).contains(&"later"),
            "the fork has the tools"
        );
    }
    let ended = codex.end().await;
    assert_eq!(ended.recording.sent_params("thread/fork").len(), 1);
    assert_eq!(ended.recording.sent_params("thread/start").len(), 1);
}
