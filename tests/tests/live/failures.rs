//! A model that fails.

use turnkeep_core::{
    command::BusyWhy,
    event::{EndSource, Failure, FailureKind, Warning},
};
use turnkeep_runtime::{CommandError, Conversation, Outcome, RequestError, SendError, TurnUpdate};
use turnkeep_tests::{
    codex::CodexHome,
    model::{self, Model, Reply},
    session::{Session, Told, to_end},
};

use crate::codex::{Codex, child_with};

async fn one_turn(version: &'static str, replies: Vec<Reply>, retries: u32) -> (Told, usize) {
    let model = Model::queued(replies);
    let home = CodexHome::new(&model);
    let flag = format!("model_providers.mock.stream_max_retries={retries}");
    let child = child_with(version, &home, ["-c", &flag, "app-server"]);
    let session = Session::start(child).await;
    let codex = Codex {
        model,
        home,
        session,
        version,
    };
    let talk = codex.conversation("talk").await;
    let mut turn = talk.send("go").await.unwrap();
    let told = to_end(&mut turn).await;
    // A failed turn leaves a stall that can be left: this one has a reply only where one was scripted.
    let asked = codex.model.requests().len();
    if told.end.outcome.name() == "failed" {
        refused_while_stalled(&talk).await;
        talk.dismiss().await.unwrap();
    }
    let mut next = talk.send("again").await.unwrap();
    let end = next.outcome().await.unwrap();
    match &end.outcome {
        Outcome::Failed { error } => {
            // It may have been asked for a summary first: a context that ran out is compacted.
            assert!(
                error.message.contains("the script has no reply left"),
                "{error:?}"
            );
        }
        other => panic!("{other:?}"),
    }
    let ended = codex.end().await;
    let failed = ended.recording.received().into_iter().filter(|frame| {
        frame["method"] == "turn/completed" && frame["params"]["turn"]["status"] == "failed"
    });
    println!("{} turns failed on the wire", failed.count());
    (told, asked)
}

/// Nothing is sent over a stall, and nothing of it was restartable: the model was asked.
async fn refused_while_stalled(talk: &Conversation) {
    match talk.send("over the stall").await {
        Err(SendError::Request(RequestError::Command(CommandError::Busy { why, .. }))) => {
            assert!(
                matches!(
                    why,
                    BusyWhy::Stalled {
                        restartable: false,
                        ..
                    }
                ),
                "{why:?}"
            );
        }
        other => panic!("{other:?}"),
    }
}

fn failure(told: &Told) -> &Failure {
    match &told.end.outcome {
        Outcome::Failed { error } => {
            assert_eq!(error.kind, FailureKind::Server);
            assert_eq!(told.end.source, EndSource::Live);
            error
        }
        other => panic!("{other:?}"),
    }
}

fn warnings(told: &Told) -> Vec<&Warning> {
    let warnings = told.updates.iter().filter_map(|update| match update {
        TurnUpdate::Warning(warning) => Some(warning),
        _ => None,
    });
    warnings.collect()
}

pub(crate) async fn failed_response_fails_the_turn(version: &'static str) {
    for (code, info) in [
        ("context_length_exceeded", "contextWindowExceeded"),
        ("insufficient_quota", "usageLimitExceeded"),
        ("server_is_overloaded", "serverOverloaded"),
    ] {
        let (told, asked) = one_turn(version, vec![model::failed(code, "as scripted")], 0).await;
        assert_eq!(
            failure(&told).code().as_deref(),
            Some(info),
            "{:?}",
            told.end
        );
        assert_eq!(asked, 1);
        assert_eq!(told.end.text, None);
    }
}

pub(crate) async fn http_500_fails_the_turn(version: &'static str) {
    let (told, asked) = one_turn(version, vec![model::status(500)], 0).await;
    assert_eq!(
        failure(&told).code().as_deref(),
        Some("internalServerError")
    );
    assert_eq!(asked, 1);
}

pub(crate) async fn cut_stream_fails_the_turn_with_its_text(version: &'static str) {
    let (told, asked) = one_turn(version, vec![model::chunks(["par", "tial"]).cut()], 0).await;
    let message = &failure(&told).message;
    assert!(
        message.contains("stream disconnected before completion"),
        "{message}"
    );
    assert_eq!(told.streamed(), "partial");
    assert_eq!(told.end.text.as_deref(), Some("partial"));
    assert_eq!(asked, 1);
}

pub(crate) async fn retry_is_a_warning(version: &'static str) {
    let replies = vec![model::text("lost").cut(), model::text("recovered")];
    let (told, asked) = one_turn(version, replies, 1).await;
    assert_eq!(told.end.outcome.name(), "completed", "{:?}", told.end);
    assert_eq!(told.end.text.as_deref(), Some("recovered"));
    assert_eq!(asked, 2);
    let warnings = warnings(&told);
    let retries = warnings.iter().filter(|w| matches!(w, Warning::Retry(_)));
    assert_eq!(retries.count(), 1, "{warnings:?}");
}

pub(crate) async fn retries_that_run_out_fail_the_turn(version: &'static str) {
    let replies = vec![
        model::text("one").cut(),
        model::text("two").cut(),
        model::text("three").cut(),
    ];
    let (told, asked) = one_turn(version, replies, 2).await;
    failure(&told);
    assert_eq!(asked, 3);
    let warnings = warnings(&told);
    let retries = warnings.iter().filter(|w| matches!(w, Warning::Retry(_)));
    assert_eq!(retries.count(), 2, "{warnings:?}");
}
