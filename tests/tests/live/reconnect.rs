//! A server that is killed while the client lives on: suspended, reconciled by the history, gone on with.

use serde_json::json;
use turnkeep_core::{
    config::Reconnect,
    event::{ConnectionEvent, ConversationUpdate, EndSource},
};
use turnkeep_runtime::{
    Answer, ApprovalPolicy, ClientConfig, ConversationEvent, Outcome, Questions, Sandbox,
    ToolResult, Turn, TurnUpdate,
};
use turnkeep_tests::{
    Client,
    chosen::Transport,
    codex::CodexHome,
    heard,
    model::{self, Gate, Model},
    session::{
        Told, authorized, probe, to_end, until_call, until_in, until_question, until_text, within,
    },
};

use crate::codex::{Codex, child, settings};

async fn start(version: &'static str, model: Model) -> Codex {
    let home = CodexHome::new(&model);
    Codex::start_in(version, model, home, |config| {
        config.machine(|machine| machine.reconnect = Reconnect::On)
    })
    .await
}

/// Kills the server with all that it started, and reads the turn to its end.
async fn killed(codex: &Codex, turn: &mut Turn) -> Told {
    let mut connection = codex.client().connection_events();
    codex.session.kill_server();
    let told = to_end(turn).await;
    let is = |update: &TurnUpdate| matches!(update, TurnUpdate::Suspended { .. });
    assert_eq!(told.updates.iter().filter(|u| is(u)).count(), 1);
    let (mut lost, mut ready) = (0, 0);
    while ready == 0 {
        match within("connection", connection.next()).await {
            Some(ConnectionEvent::Lost { .. }) => lost += 1,
            Some(ConnectionEvent::Ready { .. }) => ready += 1,
            Some(_) => {}
            None => panic!("the client has ended"),
        }
    }
    match Transport::chosen() {
        Transport::Stdio => assert_eq!((lost, ready), (1, 1)),
        // The next server may not have been there at the first try.
        Transport::Ws | Transport::Unix => assert!(lost >= 1 && ready == 1, "{lost} {ready}"),
    }
    told
}

pub(crate) async fn text_is_interrupted_and_the_next_turn_works(version: &'static str) {
    let model = Model::queued([
        model::text("So ").hold(&Gate::new()).text("far."),
        model::text("Here again."),
    ]);
    let codex = start(version, model).await;
    let talk = codex.conversation("talk").await;
    let mut turn = talk.send("first").await.unwrap();
    until_text(&mut turn, "So ").await;
    let told = killed(&codex, &mut turn).await;
    assert_eq!(told.end.outcome, Outcome::Interrupted);
    assert_eq!(told.end.source, EndSource::Reconciled);
    talk.dismiss().await.unwrap();
    let mut turn = talk.send("second").await.unwrap();
    assert_eq!(turn.final_response().await.unwrap(), "Here again.");
    let asked = codex.model.requests();
    assert_eq!(asked.len(), 2);
    let texts = model::user_texts(&asked[1]);
    for text in ["first", "second"] {
        assert_eq!(texts.iter().filter(|t| **t == text).count(), 1, "{texts:?}");
    }
    let counters = codex.client().counters().await.unwrap();
    assert_eq!((counters.found_ended, counters.resent), (1, 0));
    codex.end().await;
}

pub(crate) async fn thread_without_a_turn_is_made_again(version: &'static str) {
    let codex = start(version, Model::queued([model::text("Hello.")])).await;
    let talk = codex.conversation("talk").await;
    let mut events = talk.events();
    let mut turn = talk.send("hello").await.unwrap();
    until_in(&mut events, "thread", |event| match event {
        ConversationEvent::Conversation(ConversationUpdate::ThreadBound { .. }) => Some(()),
        _ => None,
    })
    .await;
    codex.session.kill_server();
    let end = within("end", turn.outcome()).await.unwrap();
    // It may have begun by then; else nothing of it was kept, and it is sent again.
    match end.outcome {
        Outcome::Completed { .. } => assert_eq!(end.text.as_deref(), Some("Hello.")),
        Outcome::Interrupted => assert_eq!(end.source, EndSource::Reconciled),
        other => panic!("{other:?}"),
    }
    let asked = codex.model.requests();
    assert!(asked.len() <= 1, "it ran {} times", asked.len());
    codex.end().await;
}

/// The call died with the server; what the application finds out is told all the same.
pub(crate) async fn open_call_turns_deferred_and_its_result_is_told(version: &'static str) {
    let model = Model::queued([
        model::text("I look.").call("probe", "call-1", json!({})),
        model::text("So late, then."),
    ]);
    let codex = start(version, model).await;
    let talk = codex.open("talk", codex.settings().tool(probe())).await;
    let mut turn = talk.send("look").await.unwrap();
    let call = until_call(&mut turn).await;
    let told = killed(&codex, &mut turn).await;
    assert_eq!(told.end.outcome, Outcome::Interrupted);
    let deferred = told
        .updates
        .iter()
        .any(|update| matches!(update, TurnUpdate::CallDeferred { call: of } if *of == call.id));
    assert!(deferred, "{:?}", told.updates);
    talk.respond(call.id, ToolResult::ok("late")).await.unwrap();
    talk.dismiss().await.unwrap();
    let mut turn = talk.send("go on").await.unwrap();
    assert_eq!(turn.final_response().await.unwrap(), "So late, then.");
    let asked = codex.model.requests();
    assert_eq!(asked.len(), 2);
    for text in ["result of call 1: ok\nlate", "go on"] {
        assert_eq!(heard::told(&asked[1], text), 1, "{text}");
    }
    codex.end().await;
}

pub(crate) async fn open_approval_is_settled_and_permissions_stay(version: &'static str) {
    let touch = || model::call("exec_command", "call-1", json!({ "cmd": "touch made.txt" }));
    let again = model::call(
        "exec_command",
        "call-2",
        json!({ "cmd": "touch again.txt" }),
    );
    let model = Model::queued([touch(), again, model::text("That was it.")]);
    let codex = start(version, model).await;
    let asks = codex
        .settings()
        .approval_policy(ApprovalPolicy::Untrusted)
        .sandbox(Sandbox::WorkspaceWrite)
        .questions(Questions::Ask);
    let talk = codex.open("talk", asks).await;
    let mut turn = talk.send("touch").await.unwrap();
    let question = until_question(&mut turn).await;
    let told = killed(&codex, &mut turn).await;
    assert_eq!(told.end.outcome, Outcome::Interrupted);
    let closed = told.updates.iter().any(
        |u| matches!(u, TurnUpdate::QuestionClosed { question: of, .. } if *of == question.id),
    );
    assert!(closed, "{:?}", told.updates);
    assert!(!codex.home.cwd().join("made.txt").exists());

    talk.dismiss().await.unwrap();
    // The new server would sandbox more than was asked, were it not told again.
    let mut turn = talk.send("touch again").await.unwrap();
    let question = until_question(&mut turn).await;
    turn.answer(question.id, Answer::Accept).await.unwrap();
    let told = to_end(&mut turn).await;
    assert_eq!(told.end.text.as_deref(), Some("That was it."));
    assert!(codex.home.cwd().join("again.txt").exists());
    codex.end().await;
}

pub(crate) async fn orderly_end_leaves_nothing_to_recover(version: &'static str) {
    let gate = Gate::new();
    let model = Model::queued([model::text("So ").hold(&gate), model::text("Hello.")]);
    let home = CodexHome::new(&model);
    let dir = tempfile::tempdir().unwrap();
    let spawn = || {
        Client::spawn(authorized(ClientConfig::child(child(version, &home))).journal(dir.path()))
    };

    let client = within("start", spawn()).await.unwrap();
    assert_eq!(client.recovered(), None);
    let talk = client.conversation("talk").settings(settings(&home));
    let mut turn = talk.await.unwrap().send("first").key("1").await.unwrap();
    until_text(&mut turn, "So ").await;
    within("shutdown", client.shutdown()).await.unwrap();
    let end = within("end", turn.outcome()).await.unwrap();
    assert!(matches!(end.outcome, Outcome::Lost { .. }), "{end:?}");
    drop((turn, client));

    // The end was told when nobody could acknowledge it any more: it is told again.
    let client = within("start", spawn()).await.unwrap();
    let found = client.recovered().unwrap();
    assert_eq!((found.lives, found.turns, found.ends), (1, 0, 1));
    let talk = client.conversation("talk").settings(settings(&home));
    let talk = talk.await.unwrap();
    let mut turn = talk.send("first").key("1").await.unwrap();
    let end = within("end", turn.outcome()).await.unwrap();
    assert!(matches!(end.outcome, Outcome::Lost { .. }), "{end:?}");
    talk.dismiss().await.unwrap();
    let mut turn = talk.send("second").key("2").await.unwrap();
    let answer = within("answer", turn.final_response()).await;
    assert_eq!(answer.unwrap(), "Hello.");
    within("shutdown", client.shutdown()).await.unwrap();
    gate.open();
}
