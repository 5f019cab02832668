//! Tokens that the server asks for, and requests whose parameters are secret: they stand nowhere but in their frame.

use insta::assert_snapshot;
use turnkeep_core::{
    CloseReason, Command, CommandError, CommandId, Event, RefreshId, Reply, Settings,
    command::{RequestEffect, TokenAnswer},
    config::TokenRefreshes,
    event::ConnectionEvent,
};
use turnkeep_tests::world::{World, json};

use crate::Scene;

const TOKEN: &str = "eyJ-tok\"en.1";

fn wants(scene: Scene, id: u32, account: &str) -> Scene {
    scene.line(&format!(
        r#"S {{"id":{id},"method":"account/chatgptAuthTokens/refresh","params":{{"reason":"unauthorized","previousAccountId":{account}}}}}"#
    ))
}

fn asked(scene: Scene) -> World {
    scene
        .setup()
        .config(|config| config.token_refresh = TokenRefreshes::Ask)
        .start()
}

fn give(world: &mut World, refresh: u64, account: &str) -> CommandId {
    let answer = TokenAnswer::Tokens {
        access_token: TOKEN.into(),
        account: account.into(),
        plan: Some("plus".into()),
    };
    let refresh = RefreshId(refresh);
    world.ask(Command::RefreshToken { refresh, answer })
}

fn asked_for(world: &World) -> usize {
    let events = world.events().iter();
    let of = |event: &&Event| {
        matches!(event, Event::Connection(about)
            if matches!(**about, ConnectionEvent::TokenRefresh(_)))
    };
    events.filter(of).count()
}

fn wait_for(world: &mut World, count: usize) {
    world.run_until("a request for tokens", |world| asked_for(world) == count);
}

fn knows_nothing(world: &World, secret: &str) {
    let journal = String::from_utf8_lossy(world.journal_bytes()).into_owned();
    assert!(!journal.contains(secret));
    assert!(!world.recording().contains(secret));
    assert!(!world.told().join("\n").contains(secret));
    assert!(!format!("{:?}", world.machine()).contains(secret));
}

#[test]
fn tokens_go_into_the_frame_and_nowhere_else() {
    let scene = wants(Scene::new().begin(1), 16, r#""acc_1""#).line(
        r#"C {"id":16,"result":{"accessToken":"eyJ-tok\"en.1","chatgptAccountId":"acc_1","chatgptPlanType":"plus"}}"#,
    );
    let mut world = asked(scene.say(1, "ok").end(1, "completed"));
    let conversation = world.open("a", Settings::new());
    let turn = world.send(conversation, "go");
    wait_for(&mut world, 1);
    let given = give(&mut world, 1, "acc_1");
    world.answer_of(given).unwrap();
    world.end_of(turn);
    let again = give(&mut world, 1, "acc_1");
    let refresh = RefreshId(1);
    assert_eq!(
        world.answer_of(again),
        Err(CommandError::UnknownRefresh { refresh })
    );
    assert!(world.is_played());
    knows_nothing(&world, "eyJ-tok");
    assert_snapshot!(world.finish());
}

#[test]
fn tokens_of_another_account_leave_the_request_open_until_its_limit() {
    let scene = wants(Scene::new(), 16, r#""acc_1""#)
        .line(r#"C {"id":16,"error":{"code":-32603}}"#)
        .turn(1, "ok");
    let mut world = asked(scene);
    wait_for(&mut world, 1);
    let given = give(&mut world, 1, "acc_2");
    let error = CommandError::OtherAccount {
        asked: "acc_1".into(),
        given: "acc_2".into(),
    };
    assert_eq!(world.answer_of(given), Err(error));
    let empty = give(&mut world, 1, " ");
    let answer = world.answer_of(empty);
    assert!(
        matches!(answer, Err(CommandError::BadAnswer { .. })),
        "{answer:?}"
    );
    world.run(7_999);
    assert!(!world.is_played());
    world.run(1);
    let late = give(&mut world, 1, "acc_1");
    let refresh = RefreshId(1);
    assert_eq!(
        world.answer_of(late),
        Err(CommandError::UnknownRefresh { refresh })
    );
    let conversation = world.open("a", Settings::new());
    let turn = world.send(conversation, "go");
    world.end_of(turn);
    assert!(world.is_played());
    knows_nothing(&world, "eyJ-tok");
    assert_snapshot!(world.finish());
}

#[test]
fn a_refresh_that_fails_is_answered_at_once_and_any_account_will_do_where_none_was() {
    let scene = wants(Scene::new(), 1, r#""acc_1""#)
        .line(r#"C {"id":1,"error":{"code":-32603,"message":"logged out"}}"#);
    let scene = wants(scene, 2, "null").line(
        r#"C {"id":2,"result":{"accessToken":"eyJ-tok\"en.1","chatgptAccountId":"acc_9","chatgptPlanType":"plus"}}"#,
    );
    let mut world = asked(scene.turn(1, "ok"));
    wait_for(&mut world, 1);
    let message = "logged out".to_owned();
    let failed = world.ask(Command::RefreshToken {
        refresh: RefreshId(1),
        answer: TokenAnswer::Failed { message },
    });
    world.answer_of(failed).unwrap();
    wait_for(&mut world, 2);
    let given = give(&mut world, 2, "acc_9");
    world.answer_of(given).unwrap();
    let conversation = world.open("a", Settings::new());
    let turn = world.send(conversation, "go");
    world.end_of(turn);
    assert!(world.is_played());
    assert_snapshot!(world.finish());
}

#[test]
fn a_refresh_ends_with_its_connection() {
    let mut world = asked(wants(Scene::new().begin(1), 16, r#""acc_1""#));
    let conversation = world.open("a", Settings::new());
    world.send(conversation, "go");
    wait_for(&mut world, 1);
    world.hang_up(CloseReason::Eof);
    let late = give(&mut world, 1, "acc_1");
    let refresh = RefreshId(1);
    assert_eq!(
        world.answer_of(late),
        Err(CommandError::UnknownRefresh { refresh })
    );
    assert_snapshot!(world.finish());
}

#[test]
fn a_refresh_is_refused_at_the_end_of_the_client() {
    let mut world = asked(wants(Scene::new(), 16, r#""acc_1""#));
    wait_for(&mut world, 1);
    world.shut_down();
    let refused = world
        .sent()
        .iter()
        .filter(|frame| frame.starts_with(r#"{"id":16,"#));
    assert_eq!(refused.count(), 1);
    assert_snapshot!(world.finish());
}

#[test]
fn where_nobody_serves_a_refresh_is_refused_at_once() {
    let scene = wants(Scene::new(), 16, r#""acc_1""#)
        .line(r#"C {"id":16,"error":{"code":-32603,"message":"nobody serves this request"}}"#)
        .turn(1, "ok");
    let mut world = scene.start();
    let conversation = world.open("a", Settings::new());
    let turn = world.send(conversation, "go");
    world.end_of(turn);
    assert!(world.is_played());
    assert_eq!((asked_for(&world), world.elapsed()), (0, 0));
    let _ = world.finish();
}

#[test]
fn secret_parameters_stand_in_no_log() {
    let scene = Scene::new()
        .line(r#"C {"id":"$l","method":"account/login/start","params":{"type":"apiKey","apiKey":"sk-hidden"}}"#)
        .line(r#"S {"id":"$l","error":{"code":-32001,"message":"overloaded"}}"#)
        .line(r#"C {"id":"$m","method":"account/login/start","params":{"type":"apiKey","apiKey":"sk-hidden"}}"#)
        .line(r#"S {"id":"$m","result":{"type":"apiKey"}}"#);
    let mut world = scene.start();
    let login = world.ask(Command::SecretRequest {
        method: "account/login/start".into(),
        params: json(r#"{"type":"apiKey","apiKey":"sk-hidden"}"#).into(),
        effect: RequestEffect::Changes,
    });
    assert!(!format!("{:?}", world.machine()).contains("sk-hidden"));
    world.answer_of(login).unwrap();
    assert!(world.is_played());
    knows_nothing(&world, "sk-hidden");
    assert_snapshot!(world.finish());
}

/// A replay does not have the token: nothing may depend on what it is (the runtime looks at it).
#[test]
fn what_a_token_is_decides_nothing() {
    let scene = wants(Scene::new(), 16, r#""acc_1""#).line(r#"C {"id":16,"result":{}}"#);
    let mut world = asked(scene);
    wait_for(&mut world, 1);
    let answer = TokenAnswer::Tokens {
        access_token: "eyJ-tok\n".into(),
        account: "acc_1".into(),
        plan: Some("plus".into()),
    };
    let id = world.ask(Command::RefreshToken {
        refresh: RefreshId(1),
        answer,
    });
    assert_eq!(world.answer_of(id), Ok(Reply::Done));
    let _ = world.finish();
}
