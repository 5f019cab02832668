//! Threads that are no longer wanted.

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use turnkeep_core::{
    Settings,
    cleanup::{Action, Owner},
    event::{ConnectionEvent, Warning},
};
use turnkeep_runtime::{ConnectionEvents, Conversation, Sandbox};
use turnkeep_tests::{
    model::{self, Model},
    session::{PATIENCE, to_end, within},
};

use crate::codex::{Codex, json as raw};

async fn turn(talk: &Conversation) {
    let mut turn = talk.send("go").await.unwrap();
    to_end(&mut turn).await;
}

async fn cleaned_up(events: &mut ConnectionEvents) -> (Owner, Action) {
    let told = async {
        loop {
            match events.next().await.expect("the client lives") {
                ConnectionEvent::CleanedUp { owner, action } => return (owner, action),
                ConnectionEvent::Warning(Warning::CleanUp { thread, reason }) => {
                    panic!("{thread:?}: {reason}")
                }
                _ => {}
            }
        }
    };
    within("the clean-up is settled", told).await
}

async fn read(codex: &Codex, method: &str, params: Value) -> Value {
    let request = codex.client().request_raw(method, raw(params)).reads();
    let result = within(method, request).await.unwrap();
    result.read().unwrap()
}

/// The ids of the stored threads.
async fn stored(codex: &Codex, archived: bool) -> Vec<String> {
    let params = json!({"archived": archived, "modelProviders": []});
    let list = read(codex, "thread/list", params).await;
    let rows = list["data"].as_array().unwrap().iter();
    rows.map(|row| row["id"].as_str().unwrap().to_owned())
        .collect()
}

async fn loaded(codex: &Codex) -> usize {
    let list = read(codex, "thread/loaded/list", json!({})).await;
    list["data"].as_array().unwrap().len()
}

pub(crate) async fn deleted_thread_is_gone(version: &'static str) {
    let model = Model::queued([model::text("one"), model::text("two")]);
    let codex = Codex::start(version, model).await;
    let mut events = codex.client().connection_events();
    let talk = codex.conversation("talk").await;
    turn(&talk).await;
    assert_eq!(stored(&codex, false).await.len(), 1);
    within("delete", talk.delete()).await.unwrap();
    let owner = Owner::Conversation(talk.id());
    assert_eq!(cleaned_up(&mut events).await, (owner, Action::Delete));
    assert_eq!(stored(&codex, false).await, [""; 0]);
    assert_eq!(loaded(&codex).await, 0);
    let again = codex.conversation("talk").await;
    assert_ne!(again.id(), talk.id());
    turn(&again).await;
    codex.end().await;
}

pub(crate) async fn workspace_is_archived(version: &'static str) {
    let model = Model::scripted(|_| model::text("done"));
    let codex = Codex::start(version, model).await;
    let mut events = codex.client().connection_events();
    let settings = |workspace: &str| codex.settings().workspace(workspace);
    for (key, workspace) in [("a", "w"), ("b", "v"), ("c", "w")] {
        let talk = codex.open(key, settings(workspace)).await;
        turn(&talk).await;
    }
    let owner = Owner::Workspace("w".into());
    let cleaning = codex.client().clean_up(owner.clone(), Action::Archive);
    within("archive", cleaning).await.unwrap();
    assert_eq!(cleaned_up(&mut events).await, (owner, Action::Archive));
    assert_eq!(stored(&codex, false).await.len(), 1);
    assert_eq!(stored(&codex, true).await.len(), 2);
    let cleaning = codex.client().clean_up(Owner::Client, Action::Delete);
    within("delete", cleaning).await.unwrap();
    assert_eq!(
        cleaned_up(&mut events).await,
        (Owner::Client, Action::Delete)
    );
    assert_eq!(stored(&codex, false).await, [""; 0]);
    codex.end().await;
}

pub(crate) async fn detached_conversation_stops_its_terminals(version: &'static str) {
    let model = Model::queued([
        model::call(
            "exec_command",
            "call_1",
            json!({"cmd": "sleep 600.25", "yield_time_ms": 250}),
        ),
        model::text("it runs on"),
        model::text("again"),
    ]);
    let codex = Codex::start(version, model).await;
    let mut events = codex.client().connection_events();
    let settings: Settings = codex.settings().sandbox(Sandbox::DangerFullAccess);
    let talk = codex.open("talk", settings).await;
    turn(&talk).await;
    let sleeps = || {
        let family = codex.session.family();
        family.into_iter().filter(|p| p.comm == "sleep").count()
    };
    assert_eq!(sleeps(), 1, "the command outlives its turn");
    within("detach", talk.detach()).await.unwrap();
    let owner = Owner::Conversation(talk.id());
    assert_eq!(cleaned_up(&mut events).await, (owner, Action::Detach));
    let until = Instant::now() + PATIENCE;
    while sleeps() > 0 {
        assert!(Instant::now() < until, "the command is stopped");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    // The thread is there still.
    turn(&talk).await;
    codex.end().await;
}
