//! What arrives in a conversation, and the rounds that it makes, as an application sees them.

#![allow(clippy::unwrap_used, reason = "helpers of tests are tests")]

use std::time::Duration;

use tokio::time::timeout;
use turnkeep_tokio::{
    Authorization, AutoBegin, Binding, BoxBody, BoxId, ChildConfig, Client, ClientConfig,
    CommandError, Conversation, Outcome, PreflightItem, RawJson, RequestError, SendError, Settings,
    Status, Tool, ToolCall, ToolResult, Turn, TurnEnd, TurnEvent, TurnUpdate,
    core::command::BusyWhy,
};

const LONG: Duration = Duration::from_secs(60);

fn config() -> ClientConfig {
    let server = ChildConfig::program(env!("CARGO_BIN_EXE_turnkeep"))
        .arg("fake-app-server")
        .env("TURNKEEP_FAKE_PACE_MS", "0");
    ClientConfig::child(server)
}

async fn free() -> Client {
    let client = Client::spawn(config().authorization(Authorization::None)).await;
    client.unwrap()
}

fn build() -> Tool {
    let schema = RawJson::parse(r#"{"type":"object"}"#).unwrap();
    Tool::function("build", "Builds.", schema).deferred()
}

/// Follows a turn to its end; gives the calls that it made.
async fn follow(mut turn: Turn) -> (TurnEnd, Vec<ToolCall>) {
    let mut calls = Vec::new();
    while let Some(event) = timeout(LONG, turn.next()).await.unwrap() {
        match event {
            TurnEvent::Update(TurnUpdate::ToolCall(call)) => calls.push(call),
            TurnEvent::Update(TurnUpdate::Ended(end)) => return (*end, calls),
            _ => {}
        }
    }
    panic!("the turn has no end");
}

fn text(end: &TurnEnd) -> &str {
    match &end.outcome {
        Outcome::Completed { text, .. } => text.as_deref().unwrap_or_default(),
        other => panic!("{other:?}"),
    }
}

async fn next(conversation: &Conversation) -> Turn {
    let turn = timeout(LONG, conversation.next_turn()).await;
    turn.expect("a turn begins")
        .expect("the conversation is open")
}

async fn nothing_begins(conversation: &Conversation) {
    let turn = timeout(Duration::from_millis(200), conversation.next_turn()).await;
    assert!(turn.is_err(), "{turn:?}");
}

fn refused<T: std::fmt::Debug>(answer: Result<T, SendError>) -> CommandError {
    match answer {
        Err(SendError::Request(RequestError::Command(error))) => error,
        other => panic!("{other:?}"),
    }
}

async fn types(conversation: &Conversation) -> Vec<String> {
    let (boxes, last) = conversation.read(BoxId(1), 100).await.unwrap();
    assert_eq!(boxes.last().map_or(BoxId(0), |b| b.id), last);
    boxes.into_iter().map(|entry| entry.body.box_type).collect()
}

#[tokio::test]
async fn a_deferred_result_after_the_turn_begins_one_turn() {
    let client = free().await;
    let settings = Settings::new().tool(build());
    let conversation = client.conversation("c").settings(settings).await.unwrap();
    let turn = conversation.send("call: build {}").await.unwrap();
    let (end, calls) = follow(turn).await;
    assert!(matches!(end.outcome, Outcome::Completed { .. }), "{end:?}");
    let [call] = &calls[..] else {
        panic!("{calls:?}")
    };
    assert_eq!(conversation.status(), Status::Quiet);
    nothing_begins(&conversation).await;
    let result = ToolResult::ok("built");
    conversation.respond(call.id, result.clone()).await.unwrap();
    // Said twice it is the same.
    conversation.respond(call.id, result).await.unwrap();
    let (end, _) = follow(next(&conversation).await).await;
    assert!(text(&end).contains("built"), "{end:?}");
    nothing_begins(&conversation).await;
    let types = types(&conversation).await;
    let results = types.iter().filter(|of| *of == "Tool Result").count();
    assert_eq!(
        (types.first().map(String::as_str), results),
        (Some("User Message"), 1)
    );
    client.shutdown().await.unwrap();
}

#[tokio::test]
async fn what_arrives_makes_a_turn_and_once_under_its_key() {
    let client = free().await;
    let conversation = client.conversation("c").await.unwrap();
    let arrived = conversation.accept([BoxBody::system("it rains")]).key("k");
    let first = arrived.clone().await.unwrap();
    let turn = next(&conversation).await;
    let (end, _) = follow(turn).await;
    assert!(text(&end).contains("it rains"), "{end:?}");
    assert_eq!(arrived.await.unwrap(), first);
    nothing_begins(&conversation).await;
    client.shutdown().await.unwrap();
    assert!(conversation.next_turn().await.is_none());
}

#[tokio::test]
async fn a_message_needs_a_binding_and_not_that_of_another() {
    let client = Client::spawn(config()).await.unwrap();
    let conversation = client.conversation("c").await.unwrap();
    let error = refused(conversation.send("hello").await);
    assert!(
        matches!(error, CommandError::Unauthorized { .. }),
        "{error:?}"
    );
    let [ann, bob] = ["ann", "bob"].map(|who| Binding::new(who, "user", "default"));
    let turn = conversation
        .send("hello")
        .binding(ann.clone())
        .await
        .unwrap();
    follow(turn).await;
    let error = refused(conversation.send("hello").binding(bob.clone()).await);
    assert!(
        matches!(error, CommandError::Unauthorized { .. }),
        "{error:?}"
    );
    conversation.unbind().await.unwrap();
    conversation.bind(bob).await.unwrap();
    follow(conversation.send("hello").await.unwrap()).await;
    client.shutdown().await.unwrap();
}

#[tokio::test]
async fn a_held_conversation_begins_when_it_is_released() {
    let client = free().await;
    let conversation = client.conversation("c").await.unwrap();
    conversation.hold("lunch").await.unwrap();
    let reason = "lunch".to_owned();
    assert_eq!(conversation.status(), Status::Held { reason });
    conversation.accept([BoxBody::user("hello")]).await.unwrap();
    nothing_begins(&conversation).await;
    conversation.release().await.unwrap();
    follow(next(&conversation).await).await;
    client.shutdown().await.unwrap();
}

#[tokio::test]
async fn rounds_begin_when_the_application_says_so() {
    let client = free().await;
    let settings = Settings::new().auto_begin(AutoBegin::Off);
    let conversation = client.conversation("c").settings(settings).await.unwrap();
    conversation.accept([BoxBody::user("hello")]).await.unwrap();
    nothing_begins(&conversation).await;
    let turn = conversation.begin().await.unwrap().unwrap();
    let (end, _) = follow(turn).await;
    assert!(text(&end).contains("hello"), "{end:?}");
    assert!(conversation.begin().await.unwrap().is_none());
    client.shutdown().await.unwrap();
}

#[tokio::test]
async fn a_round_that_failed_stalls_until_it_is_dismissed() {
    let client = free().await;
    let conversation = client.conversation("c").await.unwrap();
    let (end, _) = follow(conversation.send("fail: now").await.unwrap()).await;
    assert!(matches!(end.outcome, Outcome::Failed { .. }), "{end:?}");
    let Status::Stalled { restartable, .. } = conversation.status() else {
        panic!("{:?}", conversation.status());
    };
    assert!(!restartable);
    let error = refused(conversation.send("hello").await);
    let CommandError::Busy { why, .. } = error else {
        panic!("{error:?}");
    };
    assert!(matches!(why, BusyWhy::Stalled { .. }), "{why:?}");
    let error = refused(conversation.restart().await);
    assert!(
        matches!(error, CommandError::MayBeAccepted { .. }),
        "{error:?}"
    );
    conversation.dismiss().await.unwrap();
    assert_eq!(conversation.status(), Status::Quiet);
    follow(conversation.send("hello").await.unwrap()).await;
    client.shutdown().await.unwrap();
}

#[tokio::test]
async fn calls_of_the_preflight_are_open_until_they_have_their_result() {
    let client = free().await;
    let settings = Settings::new().tool(build());
    let conversation = client.conversation("c").settings(settings).await.unwrap();
    let call = PreflightItem::Call {
        tool: "build".into(),
        arguments: RawJson::parse("{}").unwrap(),
        blocking: true,
    };
    let system = PreflightItem::System(BoxBody::system("be brief"));
    let calls = conversation.preflight([system, call]).await.unwrap();
    let open = conversation.preflight_calls();
    assert_eq!(open.len(), 1);
    assert_eq!((&calls[..], open[0].1), (&[open[0].0.id][..], true));
    conversation.accept([BoxBody::user("hello")]).await.unwrap();
    nothing_begins(&conversation).await;
    let result = ToolResult::ok("built");
    conversation.respond(calls[0], result).await.unwrap();
    assert!(conversation.preflight_calls().is_empty());
    follow(next(&conversation).await).await;
    client.shutdown().await.unwrap();
}
