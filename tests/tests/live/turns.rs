//! Turns that end well, and what they tell.

use std::fs;

use serde_json::json;
use turnkeep_core::{
    command::{ApprovalPolicy, BusyWhy, Differences, Sandbox},
    event::{ConversationUpdate, EndSource, FailureKind, Origin, Warning},
};
use turnkeep_runtime::{
    CommandError, ConversationEvent, InputItem, Outcome, RequestError, SendError, TurnEvent,
    TurnUpdate,
};
use turnkeep_tests::{
    codex::CodexHome,
    model::{self, Gate, Model, Usage},
    session::{PATIENCE, to_end, until, until_in, until_text, within},
};

use crate::codex::{Codex, json};

pub(crate) async fn plain_turn(version: &'static str) {
    let usage = Usage {
        input: 700,
        cached: 300,
        output: 40,
        reasoning: 8,
    };
    let model = Model::queued([model::chunks(["Hel", "lo", "."]).usage(usage)]);
    let codex = Codex::start(version, model).await;
    let server = codex.client().server_info().expect("it has said who it is");
    assert_eq!(server.version.to_string(), version);
    assert_eq!(
        server.codex_home,
        Some(codex.home.path().display().to_string())
    );

    let talk = codex.conversation("plain").await;
    let mut events = talk.events();
    let mut turn = talk.send("hello").await.unwrap();
    let message = turn.message().expect("we sent it").clone();
    let told = to_end(&mut turn).await;

    assert_eq!(told.streamed(), "Hello.");
    let end = &told.end;
    assert_eq!(
        end.outcome,
        Outcome::Completed {
            text: Some("Hello.".into()),
            structured: None
        }
    );
    assert_eq!((&end.text, &end.candidate), (&Some("Hello.".into()), &None));
    assert_eq!(
        (end.source, &end.message),
        (EndSource::Live, &Some(message.clone()))
    );
    let used = end.usage.expect("the server told what was used");
    assert_eq!(
        (
            used.turn.input_tokens,
            used.turn.cached_input_tokens,
            used.turn.output_tokens,
            used.turn.reasoning_output_tokens,
            used.turn.total_tokens,
        ),
        (700, 300, 40, 8, 740)
    );
    assert_eq!((used.turn, used.turn), (used.last, used.thread));
    assert!(used.context_window.is_some());

    let ours = told.completed("userMessage");
    assert_eq!(ours.len(), 1);
    assert_eq!(ours[0].client_id.as_deref(), Some(message.as_str()));
    let answers = told.completed("agentMessage");
    assert_eq!(answers.len(), 1);
    assert_eq!(answers[0].text.as_deref(), Some("Hello."));
    let native = told.updates.iter().find_map(|update| match update {
        TurnUpdate::Started { native, origin } => Some((native.clone(), *origin)),
        _ => None,
    });
    assert_eq!(native, Some((end.native.clone().unwrap(), Origin::Ours)));

    let thread = until_in(&mut events, "bound thread", |event| match event {
        ConversationEvent::Conversation(ConversationUpdate::ThreadBound { thread, model }) => {
            assert_eq!(model.as_deref(), Some("mock-model"));
            Some(thread.clone())
        }
        _ => None,
    })
    .await;
    assert_eq!(codex.model.requests().len(), 1);
    assert_eq!(
        model::last_user_text(&codex.model.requests()[0]),
        Some("hello")
    );

    let ended = codex.end().await;
    assert_eq!(ended.summary.report.turns, 0);
    let starts = ended.recording.sent_params("turn/start");
    assert_eq!(starts.len(), 1);
    assert_eq!(starts[0]["threadId"], thread.as_str());
    assert_eq!(starts[0]["clientUserMessageId"], message.as_str());
}

pub(crate) async fn second_turn_goes_on_in_the_thread(version: &'static str) {
    let usage = |input, output| Usage {
        input,
        output,
        ..Usage::default()
    };
    let model = Model::queued([
        model::text("one").usage(usage(100, 7)),
        model::text("two").usage(usage(250, 9)),
    ]);
    let codex = Codex::start(version, model).await;
    let talk = codex.conversation("talk").await;
    let mut first = talk.send("first").await.unwrap();
    assert_eq!(first.final_response().await.unwrap(), "one");
    let mut second = talk.send("second").await.unwrap();
    let told = to_end(&mut second).await;

    assert_eq!(told.end.text.as_deref(), Some("two"));
    let used = told.end.usage.unwrap();
    assert_eq!((used.turn.input_tokens, used.turn.output_tokens), (250, 9));
    assert_eq!(
        (used.thread.input_tokens, used.thread.output_tokens),
        (350, 16)
    );
    let asked = codex.model.requests();
    let texts = model::user_texts(&asked[1]);
    let ours: Vec<_> = texts
        .iter()
        .filter(|t| ["first", "second"].contains(t))
        .collect();
    assert_eq!(ours, [&"first", &"second"], "the model has the history");

    let ended = codex.end().await;
    assert_eq!(ended.recording.sent_params("thread/start").len(), 1);
    let starts = ended.recording.sent_params("turn/start");
    assert_eq!(starts[0]["threadId"], starts[1]["threadId"]);
    assert_ne!(
        starts[0]["clientUserMessageId"],
        starts[1]["clientUserMessageId"]
    );
}

pub(crate) async fn two_conversations_keep_apart(version: &'static str) {
    let (red, blue) = (Gate::new(), Gate::new());
    let model = Model::keyed([
        ("red", [model::text("red ").hold(&red).text("rose")]),
        ("blue", [model::text("blue ").hold(&blue).text("bell")]),
    ]);
    let codex = Codex::start(version, model).await;
    let (one, two) = (codex.conversation("1").await, codex.conversation("2").await);
    let mut rose = one.send("red").await.unwrap();
    let mut bell = two.send("blue").await.unwrap();
    until_text(&mut rose, "red ").await;
    until_text(&mut bell, "blue ").await;
    blue.open();
    assert_eq!(bell.final_response().await.unwrap(), "blue bell");
    assert_eq!(rose.end(), None);
    red.open();
    let told = to_end(&mut rose).await;
    assert_eq!(told.streamed(), "rose", "nothing of the other");
    assert_eq!(told.end.text.as_deref(), Some("red rose"));

    let ended = codex.end().await;
    let starts = ended.recording.sent_params("turn/start");
    assert_ne!(starts[0]["threadId"], starts[1]["threadId"]);
}

pub(crate) async fn send_while_running_is_busy(version: &'static str) {
    let gate = Gate::new();
    let model = Model::queued([model::text("slow ").hold(&gate).text("text")]);
    let codex = Codex::start(version, model).await;
    let talk = codex.conversation("talk").await;
    let mut turn = talk.send("first").await.unwrap();
    until_text(&mut turn, "slow ").await;
    match talk.send("second").await {
        Err(SendError::Request(RequestError::Command(CommandError::Busy {
            conversation,
            why,
        }))) => {
            assert_eq!((conversation, why), (talk.id(), BusyWhy::Round));
        }
        other => panic!("{other:?}"),
    }
    gate.open();
    assert_eq!(turn.final_response().await.unwrap(), "slow text");
    let ended = codex.end().await;
    assert_eq!(ended.recording.sent_params("turn/start").len(), 1);
}

pub(crate) async fn structured_output_is_parsed(version: &'static str) {
    let model = Model::queued([model::chunks(["{\"answer\":", " 4}"])]);
    let codex = Codex::start(version, model).await;
    let talk = codex.conversation("talk").await;
    let schema = json!({
        "type": "object", "properties": { "answer": { "type": "integer" } },
        "required": ["answer"], "additionalProperties": false,
    });
    let mut turn = talk
        .send("2+2")
        .output_schema(json(schema.clone()))
        .await
        .unwrap();
    let end = turn.outcome().await.unwrap();
    assert_eq!(
        end.outcome,
        Outcome::Completed {
            text: Some("{\"answer\": 4}".into()),
            structured: Some(json(json!({ "answer": 4 })))
                .map(|_| { turnkeep_runtime::RawJson::parse("{\"answer\": 4}").unwrap() }),
        }
    );
    let asked = codex.model.requests();
    assert_eq!(
        asked[0]["text"]["format"]["schema"], schema,
        "{}",
        asked[0]["text"]
    );
    codex.end().await;
}

pub(crate) async fn structured_output_that_is_no_json_fails(version: &'static str) {
    let model = Model::queued([model::text("four")]);
    let codex = Codex::start(version, model).await;
    let talk = codex.conversation("talk").await;
    let schema = json(json!({ "type": "object", "additionalProperties": false }));
    let mut turn = talk.send("2+2").output_schema(schema).await.unwrap();
    let end = turn.outcome().await.unwrap();
    match &end.outcome {
        Outcome::Failed { error } => assert_eq!(error.kind, FailureKind::StructuredOutput),
        other => panic!("{other:?}"),
    }
    assert_eq!(end.text.as_deref(), Some("four"));
    codex.end().await;
}

/// A red square of 8 by 8.
const RED: &str = "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAgAAAAICAIAAABLbSncAAAAEklEQVR4nGP4z8CAFWEXHbQSACj/P8Fu7N9hAAAAAElFTkSuQmCC";

pub(crate) async fn image_reaches_the_model(version: &'static str) {
    let model = Model::queued([model::text("a square")]);
    let codex = Codex::start(version, model).await;
    let talk = codex.conversation("talk").await;
    let message = [InputItem::text("what is it?"), InputItem::image(RED)];
    let mut turn = talk.send(message).await.unwrap();
    assert_eq!(turn.final_response().await.unwrap(), "a square");
    let asked = codex.model.requests();
    let parts: Vec<_> = asked[0]["input"]
        .as_array()
        .unwrap()
        .iter()
        .flat_map(|item| item["content"].as_array().into_iter().flatten())
        .filter(|part| part["type"] == "input_image")
        .collect();
    let last = asked[0]["input"].as_array().unwrap().last();
    assert_eq!(parts.len(), 1, "{last:?}");
    let url = parts[0]["image_url"].as_str().unwrap();
    assert!(url.starts_with("data:image/png;base64,"), "{url}");
    codex.end().await;
}

pub(crate) async fn ephemeral_thread_is_not_stored(version: &'static str) {
    for ephemeral in [false, true] {
        let model = Model::queued([model::text("here")]);
        let codex = Codex::start(version, model).await;
        let settings = codex.settings().ephemeral(ephemeral);
        let talk = codex.open("talk", settings).await;
        let mut turn = talk.send("hello").await.unwrap();
        assert_eq!(turn.final_response().await.unwrap(), "here");
        let rollouts = files(&codex.home.path().join("sessions"));
        assert_eq!(rollouts.is_empty(), ephemeral, "{rollouts:?}");
        let ended = codex.end().await;
        let starts = ended.recording.sent_params("thread/start");
        assert_eq!(starts[0]["ephemeral"].as_bool().unwrap_or(false), ephemeral);
    }
}

fn files(dir: &std::path::Path) -> Vec<std::path::PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        let path = entry.path();
        match path.is_dir() {
            true => found.extend(files(&path)),
            false => found.push(path),
        }
    }
    found
}

pub(crate) async fn text_is_whole_without_deltas_and_starts(version: &'static str) {
    let model = Model::queued([model::chunks(["Hel", "lo", "."])]);
    let home = CodexHome::new(&model);
    let opt_out = ["item/agentMessage/delta", "item/started"].map(str::to_owned);
    let codex = Codex::start_in(version, model, home, |config| {
        config.machine(|machine| machine.opt_out = opt_out.to_vec())
    })
    .await;
    let talk = codex.conversation("talk").await;
    let mut turn = talk.send("hello").await.unwrap();
    let told = to_end(&mut turn).await;
    assert_eq!(told.deltas, []);
    assert!(
        !told
            .updates
            .iter()
            .any(|u| matches!(u, TurnUpdate::ItemStarted(_))),
        "{:?}",
        told.updates
    );
    assert_eq!(told.end.text.as_deref(), Some("Hello."));
    assert_eq!(told.completed("agentMessage").len(), 1);
    let ended = codex.end().await;
    let received = ended.recording.received();
    let came = turnkeep_tests::recording::methods(&received);
    assert!(
        came.contains("item/completed") && came.contains("turn/completed"),
        "{came:?}"
    );
    for method in opt_out_methods() {
        assert!(!came.contains(method), "{came:?}");
    }
}

fn opt_out_methods() -> [&'static str; 2] {
    ["item/agentMessage/delta", "item/started"]
}

pub(crate) async fn close_frees_the_key(version: &'static str) {
    let model = Model::queued([model::text("one"), model::text("two")]);
    let codex = Codex::start(version, model).await;
    let talk = codex.conversation("talk").await;
    let mut events = talk.events();
    let mut turn = talk.send("first").await.unwrap();
    assert_eq!(turn.final_response().await.unwrap(), "one");
    within("close", talk.close()).await.unwrap();
    until_in(&mut events, "closed", |event| {
        matches!(
            event,
            ConversationEvent::Conversation(ConversationUpdate::Closed)
        )
        .then_some(())
    })
    .await;
    assert_eq!(events.next().await, None, "nothing of it follows");
    match talk.send("to nobody").await {
        Err(SendError::Request(RequestError::Command(CommandError::UnknownConversation {
            ..
        }))) => {}
        other => panic!("{other:?}"),
    }

    let again = codex.conversation("talk").await;
    assert_ne!(again.id(), talk.id());
    let mut turn = again.send("second").await.unwrap();
    assert_eq!(turn.final_response().await.unwrap(), "two");
    let asked = codex.model.requests();
    assert!(
        !model::user_texts(&asked[1]).contains(&"first"),
        "a new thread"
    );
    let ended = codex.end().await;
    let left = ended.recording.sent_params("thread/unsubscribe");
    assert_eq!(left.len(), 1);
    let starts = ended.recording.sent_params("turn/start");
    assert_eq!(left[0]["threadId"], starts[0]["threadId"]);
    assert_ne!(starts[0]["threadId"], starts[1]["threadId"]);
}

pub(crate) async fn close_while_running_is_busy(version: &'static str) {
    let gate = Gate::new();
    let model = Model::queued([model::text("slow ").hold(&gate).text("text")]);
    let codex = Codex::start(version, model).await;
    let talk = codex.conversation("talk").await;
    let mut turn = talk.send("first").await.unwrap();
    gate.wait_reached(PATIENCE);
    until(&mut turn, "delta", |event| {
        matches!(event, TurnEvent::Delta(_)).then_some(())
    })
    .await;
    match talk.close().await {
        Err(RequestError::Command(CommandError::Busy { .. })) => {}
        other => panic!("{other:?}"),
    }
    gate.open();
    assert_eq!(turn.final_response().await.unwrap(), "slow text");
    talk.close().await.unwrap();
    codex.end().await;
}

/// Ordinary settings make no difference between what is asked and what is told, also over a resume, and
/// an effort goes to a model that the server does not list.
pub(crate) async fn threads_are_as_asked(version: &'static str) {
    let kinds = [
        (Sandbox::ReadOnly, ApprovalPolicy::Untrusted),
        (Sandbox::WorkspaceWrite, ApprovalPolicy::OnRequest),
        (Sandbox::DangerFullAccess, ApprovalPolicy::Never),
    ];
    let model = Model::queued((0..6).map(|_| model::text("ok")).collect::<Vec<_>>());
    let codex = Codex::start(version, model).await;
    let mut unlisted = 0;
    for (sandbox, policy) in kinds {
        let settings = codex
            .settings()
            .sandbox(sandbox)
            .approval_policy(policy)
            .model("mock-model")
            .effort("low")
            .developer_instructions("be brief")
            .differences(Differences::Refuse);
        let talk = codex.open(&format!("{sandbox:?}"), settings).await;
        let mut events = talk.events();
        for _ in 0..2 {
            let mut turn = talk.send("go").await.unwrap();
            assert_eq!(turn.final_response().await.unwrap(), "ok");
            talk.detach().await.unwrap();
        }
        // The clean-up goes on for a moment.
        while let Err(error) = talk.close().await {
            let why = match &error {
                RequestError::Command(CommandError::Busy { why, .. }) => why,
                other => panic!("{other:?}"),
            };
            assert_eq!(*why, BusyWhy::Turn);
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
        while let Some(event) = within("event", events.next()).await {
            match event {
                ConversationEvent::Conversation(ConversationUpdate::Differs { difference }) => {
                    panic!("{difference:?}")
                }
                ConversationEvent::Conversation(ConversationUpdate::Warning(
                    Warning::UnlistedModel { model },
                )) => {
                    assert_eq!(model, "mock-model");
                    unlisted += 1;
                }
                _ => {}
            }
        }
    }
    assert_eq!(unlisted, 3, "the list knows no model of another provider");
    let ended = codex.end().await;
    assert_eq!(ended.recording.sent_params("model/list").len(), 1);
    assert_eq!(ended.recording.sent_params("thread/start").len(), 3);
    assert!(!ended.recording.sent_params("thread/resume").is_empty());
}
