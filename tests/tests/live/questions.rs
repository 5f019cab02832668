//! Questions of the server: approvals, file changes, input from a person.

use std::fs;

use serde_json::{Value, json};
use turnkeep_core::event::QuestionKind;
use turnkeep_runtime::{
    Answer, ApprovalPolicy, CommandError, Outcome, Questions, RequestError, Sandbox, Settings,
    TurnUpdate,
};
use turnkeep_tests::{
    codex::CodexHome,
    model::{self, Model},
    recording::Recording,
    session::{to_end, until_question},
};

use crate::codex::Codex;

fn touch() -> Model {
    Model::queued([
        model::call("exec_command", "call-1", json!({ "cmd": "touch made.txt" })),
        model::text("That was it."),
    ])
}

fn asking(codex: &Codex) -> Settings {
    codex
        .settings()
        .approval_policy(ApprovalPolicy::Untrusted)
        .sandbox(Sandbox::WorkspaceWrite)
        .questions(Questions::Ask)
}

/// The answers to the server's questions.
fn decisions(recording: &Recording) -> Vec<Value> {
    let sent = recording.sent().into_iter();
    sent.filter(|frame| frame.get("method").is_none())
        .map(|mut frame| frame["result"].take())
        .collect()
}

pub(crate) async fn accepted_command_runs(version: &'static str) {
    let codex = Codex::start(version, touch()).await;
    let talk = codex.open("talk", asking(&codex)).await;
    let mut turn = talk.send("touch").await.unwrap();
    let question = until_question(&mut turn).await;
    match &question.kind {
        QuestionKind::Command {
            command,
            cwd,
            decisions,
            ..
        } => {
            assert!(
                command.as_deref().unwrap().contains("touch made.txt"),
                "{command:?}"
            );
            assert_eq!(
                cwd.as_deref(),
                Some(&*codex.home.cwd().display().to_string())
            );
            assert!(
                decisions.iter().any(|d| d.get() == "\"accept\""),
                "{decisions:?}"
            );
        }
        other => panic!("{other:?}"),
    }
    assert!(question.dismissable);
    assert!(
        !codex.home.cwd().join("made.txt").exists(),
        "nothing before the answer"
    );
    turn.answer(question.id, Answer::Accept).await.unwrap();
    let told = to_end(&mut turn).await;
    assert_eq!(told.end.text.as_deref(), Some("That was it."));
    let item: Value = told.completed("commandExecution")[0].raw.read().unwrap();
    assert_eq!(
        (&item["status"], &item["exitCode"]),
        (&json!("completed"), &json!(0))
    );
    assert!(codex.home.cwd().join("made.txt").exists());
    match talk.answer(question.id, Answer::Decline).await {
        Err(RequestError::Command(CommandError::UnknownQuestion { .. })) => {}
        other => panic!("{other:?}"),
    }
    let ended = codex.end().await;
    assert_eq!(
        decisions(&ended.recording),
        [json!({ "decision": "accept" })]
    );
}

pub(crate) async fn declined_command_does_not_run(version: &'static str) {
    let codex = Codex::start(version, touch()).await;
    let talk = codex.open("talk", asking(&codex)).await;
    let mut turn = talk.send("touch").await.unwrap();
    let question = until_question(&mut turn).await;
    let decline = match &question.kind {
        QuestionKind::Command { decisions, .. } => {
            decisions.iter().any(|d| d.get() == "\"decline\"")
        }
        other => panic!("{other:?}"),
    };
    turn.answer(question.id, Answer::Decline).await.unwrap();
    let told = to_end(&mut turn).await;
    assert!(!codex.home.cwd().join("made.txt").exists());
    // Where `decline` is not offered the negative answer is `cancel`, which ends the turn.
    let (outcome, decision) = match decline {
        true => ("completed", "decline"),
        false => ("interrupted", "cancel"),
    };
    println!("decline offered: {decline}");
    assert_eq!(told.end.outcome.name(), outcome);
    let item: Value = told.completed("commandExecution")[0].raw.read().unwrap();
    assert_eq!(item["status"], "declined");
    let ended = codex.end().await;
    assert_eq!(
        decisions(&ended.recording),
        [json!({ "decision": decision })]
    );
}

pub(crate) async fn cancelled_command_ends_the_turn(version: &'static str) {
    let codex = Codex::start(version, touch()).await;
    let talk = codex.open("talk", asking(&codex)).await;
    let mut turn = talk.send("touch").await.unwrap();
    let question = until_question(&mut turn).await;
    turn.answer(question.id, Answer::Cancel).await.unwrap();
    let told = to_end(&mut turn).await;
    assert_eq!(told.end.outcome, Outcome::Interrupted);
    assert!(!codex.home.cwd().join("made.txt").exists());
    assert_eq!(codex.model.requests().len(), 1);
    let mut next = talk.send("go on").await.unwrap();
    assert_eq!(next.final_response().await.unwrap(), "That was it.");
    let ended = codex.end().await;
    assert_eq!(
        decisions(&ended.recording),
        [json!({ "decision": "cancel" })]
    );
    assert_eq!(ended.recording.sent_params("turn/interrupt").len(), 0);
}

fn patch() -> Model {
    let cmd =
        "apply_patch <<'EOF'\n*** Begin Patch\n*** Add File: new.txt\n+hello\n*** End Patch\nEOF\n";
    Model::queued([
        model::call("exec_command", "call-1", json!({ "cmd": cmd })),
        model::text("That was it."),
    ])
}

pub(crate) async fn accepted_file_change_is_written(version: &'static str) {
    let codex = Codex::start(version, patch()).await;
    let settings = asking(&codex).sandbox(Sandbox::ReadOnly);
    let talk = codex.open("talk", settings).await;
    let mut turn = talk.send("patch").await.unwrap();
    let question = until_question(&mut turn).await;
    assert!(
        matches!(question.kind, QuestionKind::FileChange { .. }),
        "{question:?}"
    );
    assert!(!codex.home.cwd().join("new.txt").exists());
    turn.answer(question.id, Answer::Accept).await.unwrap();
    let told = to_end(&mut turn).await;
    assert_eq!(told.end.text.as_deref(), Some("That was it."));
    let written = fs::read_to_string(codex.home.cwd().join("new.txt")).unwrap();
    assert_eq!(written, "hello\n");
    let item: Value = told.completed("fileChange")[0].raw.read().unwrap();
    assert_eq!(item["status"], "completed");
    let diffs = told
        .updates
        .iter()
        .any(|u| matches!(u, TurnUpdate::Diff(diff) if diff.contains("+hello")));
    assert!(diffs, "{:?}", told.updates);
    let ended = codex.end().await;
    assert_eq!(
        decisions(&ended.recording),
        [json!({ "decision": "accept" })]
    );
}

pub(crate) async fn declined_file_change_is_not_written(version: &'static str) {
    let codex = Codex::start(version, patch()).await;
    let settings = asking(&codex).sandbox(Sandbox::ReadOnly);
    let talk = codex.open("talk", settings).await;
    let mut turn = talk.send("patch").await.unwrap();
    let question = until_question(&mut turn).await;
    turn.answer(question.id, Answer::Decline).await.unwrap();
    let told = to_end(&mut turn).await;
    assert_eq!(told.end.outcome.name(), "completed");
    assert!(!codex.home.cwd().join("new.txt").exists());
    let item: Value = told.completed("fileChange")[0].raw.read().unwrap();
    assert_eq!(item["status"], "declined");
    let ended = codex.end().await;
    assert_eq!(
        decisions(&ended.recording),
        [json!({ "decision": "decline" })]
    );
}

fn survey() -> (Model, String) {
    let questions = json!({ "questions": [{
        "id": "color", "header": "Color", "question": "Which?",
        "options": [
            { "label": "Red", "description": "r" },
            { "label": "Blue", "description": "b" },
        ],
    }] });
    let model = Model::queued([
        model::call("request_user_input", "call-1", questions),
        model::text("Noted."),
    ]);
    (
        model,
        "[features]\ndefault_mode_request_user_input = true\n".to_owned(),
    )
}

pub(crate) async fn user_input_goes_back_to_the_model(version: &'static str) {
    let (model, features) = survey();
    let home = CodexHome::with_config(&model, &features);
    let codex = Codex::start_in(version, model, home, |config| config).await;
    let talk = codex.open("talk", asking(&codex)).await;
    let mut turn = talk.send("ask me").await.unwrap();
    let question = until_question(&mut turn).await;
    match &question.kind {
        QuestionKind::UserInput { questions } => {
            assert_eq!(questions.len(), 1);
            assert_eq!(questions[0].id, "color");
            assert_eq!(questions[0].options, ["Red", "Blue"]);
            assert!(!questions[0].secret);
        }
        other => panic!("{other:?}"),
    }
    let answer = Answer::Input(vec![("color".into(), vec!["Blue".into()])]);
    turn.answer(question.id, answer).await.unwrap();
    let told = to_end(&mut turn).await;
    assert_eq!(told.end.text.as_deref(), Some("Noted."));
    let asked = codex.model.requests();
    let outputs = model::call_outputs(&asked[1]);
    assert!(outputs[0].1.contains("Blue"), "{outputs:?}");
    let ended = codex.end().await;
    assert_eq!(
        decisions(&ended.recording),
        [json!({ "answers": { "color": { "answers": ["Blue"] } } })]
    );
}

pub(crate) async fn bad_answer_leaves_the_question_open(version: &'static str) {
    let (model, features) = survey();
    let home = CodexHome::with_config(&model, &features);
    let codex = Codex::start_in(version, model, home, |config| config).await;
    let talk = codex.open("talk", asking(&codex)).await;
    let mut turn = talk.send("ask me").await.unwrap();
    let question = until_question(&mut turn).await;
    let one = |id: &str| Answer::Input(vec![(id.into(), vec!["Red".into()])]);
    for bad in [
        Answer::Input(Vec::new()),
        one("size"),
        Answer::Input(vec![("color".into(), Vec::new())]),
        Answer::Accept,
    ] {
        match turn.answer(question.id, bad.clone()).await {
            Err(RequestError::Command(CommandError::BadAnswer { .. })) => {}
            other => panic!("{bad:?}: {other:?}"),
        }
    }
    turn.answer(question.id, one("color")).await.unwrap();
    assert_eq!(turn.final_response().await.unwrap(), "Noted.");
    let ended = codex.end().await;
    assert_eq!(decisions(&ended.recording).len(), 1);
}

pub(crate) async fn questions_are_declined_by_default(version: &'static str) {
    let codex = Codex::start(version, touch()).await;
    let settings = asking(&codex).questions(Questions::Decline);
    let talk = codex.open("talk", settings).await;
    let mut turn = talk.send("touch").await.unwrap();
    let told = to_end(&mut turn).await;
    assert!(!codex.home.cwd().join("made.txt").exists());
    let mut declined = 0;
    for update in &told.updates {
        match update {
            TurnUpdate::QuestionDeclined(_) => declined += 1,
            TurnUpdate::Question(question) => panic!("asked: {question:?}"),
            _ => {}
        }
    }
    assert_eq!(declined, 1);
    let ended = codex.end().await;
    let decisions = decisions(&ended.recording);
    assert_eq!(decisions.len(), 1);
    let negative = [
        json!({ "decision": "decline" }),
        json!({ "decision": "cancel" }),
    ];
    assert!(negative.contains(&decisions[0]), "{decisions:?}");
}
