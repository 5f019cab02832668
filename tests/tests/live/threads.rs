//! What is asked of a native thread beside rounds: made and named, compacted, forked.

use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::timeout;
use turnkeep_core::{
    command::BusyWhy,
    config::Reconnect,
    event::{ConnectionEvent, ConversationUpdate, FailureKind},
};
use turnkeep_runtime::{
    Answer, ApprovalPolicy, CommandError, ConversationEvent, Outcome, Questions, RequestError,
    Sandbox, SendError,
};
use turnkeep_tests::{
    codex::CodexHome,
    heard,
    model::{self, Gate, Model},
    session::{self, PATIENCE, to_end, until_question, within},
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

pub(crate) async fn changed_settings_hold_on_the_same_thread(version: &'static str) {
    let touch = |id| model::call("exec_command", id, json!({ "cmd": "touch made.txt" }));
    let model = Model::queued([
        touch("call-1"),
        model::text("One."),
        touch("call-2"),
        model::text("Two."),
        touch("call-3"),
        model::text("Three."),
    ]);
    let codex = start(version, model).await;
    // Nothing may be written, and nobody is asked.
    let before = codex.settings().base_instructions("Be slow.");
    let talk = codex.open("talk", before.clone()).await;
    let mut events = talk.events();
    let mut turn = talk.send("the first message").await.unwrap();
    assert_eq!(turn.final_response().await.unwrap(), "One.");
    assert!(!codex.home.cwd().join("made.txt").exists());

    let there = codex.home.cwd().join("there");
    std::fs::create_dir(&there).unwrap();
    let changed = before
        .approval_policy(ApprovalPolicy::Untrusted)
        .sandbox(Sandbox::WorkspaceWrite)
        .cwd(there.display().to_string())
        .base_instructions("Be quick.")
        .questions(Questions::Ask);
    talk.change(changed).await.unwrap();
    for (text, answer) in [("two", "Two."), ("three", "Three.")] {
        let mut turn = talk.send(text).await.unwrap();
        let question = until_question(&mut turn).await;
        turn.answer(question.id, Answer::Accept).await.unwrap();
        assert_eq!(turn.final_response().await.unwrap(), answer);
        let made = there.join("made.txt");
        assert!(made.exists(), "{text}");
        std::fs::remove_file(made).unwrap();
        // Another process knows them only if it is told.
        killed(&codex).await;
    }
    drop(talk);
    while let Ok(Some(event)) = timeout(Duration::from_millis(1), events.next()).await {
        assert!(
            !matches!(
                event,
                ConversationEvent::Conversation(ConversationUpdate::Differs { .. })
            ),
            "{event:?}"
        );
    }
    let asked = codex.model.requests();
    let instructed = |request: &Value, text| request.to_string().contains(text);
    assert_eq!(asked.len(), 6);
    for (at, request) in asked.iter().enumerate() {
        assert_eq!(heard::thread(request), heard::thread(&asked[0]));
        assert_eq!(instructed(request, "Be slow."), at < 2, "{at}: {request}");
        assert_eq!(instructed(request, "Be quick."), at >= 2, "{at}: {request}");
    }
    assert_eq!(heard::told(&asked[5], "the first message"), 1);
    let ended = codex.end().await;
    let sent = |method| ended.recording.sent_params(method).len();
    assert_eq!((sent("thread/start"), sent("thread/unsubscribe")), (1, 1));
    assert_eq!(sent("thread/resume"), 2);
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
