//! The server asks for new tokens.

use turnkeep_core::{CommandError, RawJson};
use turnkeep_runtime::{RequestError, Runtime, TokenAnswer, TokenRefreshes};
use turnkeep_tests::{both::within, on_both, sockets::SocketServer};

use crate::{
    Told, at, over, script,
    secrets::{TOKEN, capture, knows_nothing, logged_so_far},
    send, shut_down, start, talk, to_end, turn,
};

on_both!(
    a_token_goes_to_the_server_and_nowhere_else,
    a_refresh_that_nobody_answers_fails_at_once,
);

/// The server asks, and is answered.
fn wants(id: u32, answer: &str) -> String {
    format!(
        r#"S {{"id":{id},"method":"account/chatgptAuthTokens/refresh","params":{{"reason":"unauthorized","previousAccountId":"acc_1"}}}}
C {{"id":{id},{answer}}}
"#
    )
}

fn tokens(account: &str) -> TokenAnswer {
    TokenAnswer::Tokens {
        access_token: TOKEN.into(),
        account: account.into(),
        plan: None,
    }
}

async fn a_token_goes_to_the_server_and_nowhere_else<R: Runtime + Default>() {
    capture();
    let dir = tempfile::tempdir().unwrap();
    let text = script(&[
        &format!(
            r#"C {{"id":"$l","method":"account/login/start","params":{{"type":"apiKey","apiKey":"{TOKEN}"}}}}
S {{"id":"$l","result":{{"type":"apiKey"}}}}
"#
        ),
        &wants(
            7,
            &format!(
                r#""result":{{"accessToken":"{TOKEN}","chatgptAccountId":"acc_1","chatgptPlanType":null}}"#
            ),
        ),
        &turn(1, "done"),
    ]);
    let server = SocketServer::tcp(&text);
    let config = over(at(&server))
        .token_refresh(TokenRefreshes::Ask)
        .journal(dir.path().join("journal"))
        .record(dir.path().join("recording"));
    let client = start::<R>(config).await;
    let params = RawJson::of(&serde_json::json!({"type": "apiKey", "apiKey": TOKEN})).unwrap();
    let login = client.request_raw("account/login/start", params).secret();
    let mut shown = format!("{login:?}");
    within::<R, _>("login", login).await.unwrap();
    let mut refreshes = client.token_refreshes();
    let request = within::<R, _>("request", refreshes.next()).await.unwrap();
    assert_eq!(request.previous_account(), Some("acc_1"));
    let wrong = within::<R, _>("answer", request.answer(tokens("acc_2"))).await;
    let error = RequestError::Command(CommandError::OtherAccount {
        asked: "acc_1".into(),
        given: "acc_2".into(),
    });
    assert_eq!(wrong, Err(error));
    let right = within::<R, _>("answer", request.answer(tokens("acc_1"))).await;
    right.unwrap();
    shown += &format!("{request:?} {refreshes:?} {:?} {client:?}", tokens("acc_1"));
    drop(request);
    let talk = talk(&client).await;
    let mut turn = send::<R>(&talk, "go").await;
    to_end::<R>(&mut turn, Told::default()).await;
    shut_down(client).await;
    assert!(within::<R, _>("end", refreshes.next()).await.is_none());
    assert!(!shown.contains(TOKEN), "{shown}");
    let logged = logged_so_far();
    assert!(logged.contains("chatgptAuthTokens"), "nothing is captured");
    assert!(!logged.contains(TOKEN));
    assert!(knows_nothing(dir.path()) >= 2);
}

async fn a_refresh_that_nobody_answers_fails_at_once<R: Runtime + Default>() {
    let failed = r#""error":{"code":-32603,"message":"the application has no tokens"}"#;
    let text = script(&[
        // One is dropped, one waits unread behind it, one comes when nobody listens.
        r#"S {"id":1,"method":"account/chatgptAuthTokens/refresh","params":{"reason":"unauthorized"}}
"#,
        &wants(2, failed),
        &format!("C {{\"id\":1,{failed}}}\n"),
        &wants(3, failed),
        &turn(1, "done"),
    ]);
    let server = SocketServer::tcp(&text);
    let config = over(at(&server)).token_refresh(TokenRefreshes::Ask);
    let client = start::<R>(config).await;
    let mut refreshes = client.token_refreshes();
    let request = within::<R, _>("request", refreshes.next()).await.unwrap();
    assert_eq!(
        (request.reason(), request.previous_account()),
        ("unauthorized", None)
    );
    let other = within::<R, _>("request", refreshes.next()).await.unwrap();
    drop(other);
    drop(request);
    drop(refreshes);
    let talk = talk(&client).await;
    let mut turn = send::<R>(&talk, "go").await;
    to_end::<R>(&mut turn, Told::default()).await;
    shut_down(client).await;
}
