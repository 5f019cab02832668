//! Tokens that the server wants anew, for an account that there is not.

use std::{fs, path::Path};

use serde_json::Value;
use turnkeep_protocol::{Wire as _, types::LoginAccountParams};
use turnkeep_runtime::{
    CommandError, Outcome, RawJson, RequestError, TokenAnswer, TokenRefreshRequest, TokenRefreshes,
    TurnEnd,
};
use turnkeep_tests::{
    account::{self, ACCOUNT},
    codex::CodexHome,
    model::{self, Model, Reply},
    recording::Recording,
    session::{to_end, within},
};

use crate::codex::Codex;

/// The tokens before and after.
fn tokens() -> [String; 2] {
    [1, 2].map(|number| account::token(ACCOUNT, number))
}

fn give(token: &str, account: &str) -> TokenAnswer {
    TokenAnswer::Tokens {
        access_token: token.into(),
        account: account.into(),
        plan: Some("plus".into()),
    }
}

/// A client that is logged in, whose model answers the first request with a 401.
async fn logged_in(version: &'static str, then: Option<Reply>, who: TokenRefreshes) -> Codex {
    let model = Model::queued([model::status(401)].into_iter().chain(then));
    account::backend(&model);
    let home = CodexHome::of_account(&model);
    let codex = Codex::start_in(version, model, home, |config| config.token_refresh(who)).await;
    let login = account::login(&tokens()[0]);
    let login = LoginAccountParams::decode(&login).unwrap();
    let account = codex.client().account();
    within("login", account.login(login)).await.unwrap();
    codex
}

/// The server's request for tokens.
async fn wanted(codex: &Codex) -> TokenRefreshRequest {
    let mut requests = codex.client().token_refreshes();
    let request = within("request for tokens", requests.next())
        .await
        .expect("the client runs");
    assert_eq!(request.reason(), "unauthorized");
    assert_eq!(request.previous_account(), Some(ACCOUNT));
    request
}

/// Why the turn failed for want of tokens, which the server calls `other`.
fn failed(end: &TurnEnd) -> &str {
    match &end.outcome {
        Outcome::Failed { error } => {
            assert_eq!(error.info.as_ref().map(RawJson::get), Some("\"other\""));
            assert!(!error.is_unauthorized());
            &error.message
        }
        other => panic!("{other:?}"),
    }
}

/// The tokens that the model was asked with.
fn asked_with(codex: &Codex) -> Vec<String> {
    let bearers = codex.model.bearers().into_iter();
    bearers.map(Option::unwrap_or_default).collect()
}

/// How often a text stands in the files of a directory.
fn count(directory: &Path, text: &str) -> usize {
    let files = fs::read_dir(directory).unwrap();
    let read = files.map(|entry| fs::read(entry.unwrap().path()).unwrap());
    read.map(|bytes| String::from_utf8_lossy(&bytes).matches(text).count())
        .sum()
}

pub(crate) async fn refreshed_token_goes_to_the_model_and_into_no_log(version: &'static str) {
    let codex = logged_in(version, Some(model::text("Done.")), TokenRefreshes::Ask).await;
    let [old, new] = tokens();
    let talk = codex.conversation("talk").await;
    let mut turn = talk.send("go").await.unwrap();
    let request = wanted(&codex).await;
    request.answer(give(&new, ACCOUNT)).await.unwrap();
    let told = to_end(&mut turn).await;
    assert_eq!(told.end.text.as_deref(), Some("Done."));
    assert_eq!(asked_with(&codex), [old.clone(), new.clone()]);

    let ended = codex.end().await;
    let files = ended.directory.path();
    for token in [&old, &new] {
        assert_eq!(count(files, token), 0, "a token was written");
    }
    assert!(count(files, "[secret]") >= 2, "both had a place");
}

pub(crate) async fn token_of_another_account_is_refused_here(version: &'static str) {
    let codex = logged_in(version, Some(model::text("Done.")), TokenRefreshes::Ask).await;
    let [old, new] = tokens();
    let talk = codex.conversation("talk").await;
    let mut turn = talk.send("go").await.unwrap();
    let request = wanted(&codex).await;
    let foreign = account::token("acc_2", 3);
    let answer = request.answer(give(&foreign, "acc_2")).await;
    let refused = CommandError::OtherAccount {
        asked: ACCOUNT.into(),
        given: "acc_2".into(),
    };
    assert_eq!(answer, Err(RequestError::Command(refused)));
    // It is open still.
    request.answer(give(&new, ACCOUNT)).await.unwrap();
    let told = to_end(&mut turn).await;
    assert_eq!(told.end.text.as_deref(), Some("Done."));
    assert_eq!(asked_with(&codex), [old, new]);
    let ended = codex.end().await;
    let answers = answers(&ended.recording);
    assert_eq!(answers.len(), 1, "{answers:?}");
    assert_eq!(answers[0]["result"]["chatgptAccountId"], ACCOUNT);
}

pub(crate) async fn refresh_that_nobody_serves_fails_the_turn(version: &'static str) {
    for who in [TokenRefreshes::Refuse, TokenRefreshes::Ask] {
        let codex = logged_in(version, None, who).await;
        let talk = codex.conversation("talk").await;
        let mut turn = talk.send("go").await.unwrap();
        if who == TokenRefreshes::Ask {
            // One of another account is none.
            let request = wanted(&codex).await;
            let foreign = account::token("acc_2", 3);
            request.answer(give(&foreign, "acc_2")).await.unwrap_err();
            drop(request);
        }
        let told = to_end(&mut turn).await;
        assert_eq!(
            failed(&told.end),
            "auth refresh request failed: code=-32603"
        );
        let ended = codex.end().await;
        let answers = answers(&ended.recording);
        assert_eq!(answers.len(), 1, "{answers:?}");
        assert_eq!(answers[0]["error"]["code"], -32603);
    }
}

pub(crate) async fn unanswered_refresh_ends_before_the_server_gives_up(version: &'static str) {
    let codex = logged_in(version, None, TokenRefreshes::Ask).await;
    let talk = codex.conversation("talk").await;
    let mut turn = talk.send("go").await.unwrap();
    let request = wanted(&codex).await;
    let told = to_end(&mut turn).await;
    // Its own words would be "timed out after 10s".
    assert_eq!(
        failed(&told.end),
        "auth refresh request failed: code=-32603"
    );
    let late = request.answer(give(&tokens()[1], ACCOUNT)).await;
    match late {
        Err(RequestError::Command(CommandError::UnknownRefresh { .. })) => {}
        other => panic!("{other:?}"),
    }
    drop(request);
    let ended = codex.end().await;
    assert_eq!(answers(&ended.recording).len(), 1, "nothing comes late");
}

/// Our answers to the server's requests.
fn answers(recording: &Recording) -> Vec<Value> {
    let sent = recording.sent().into_iter();
    sent.filter(|frame| frame.get("method").is_none()).collect()
}
