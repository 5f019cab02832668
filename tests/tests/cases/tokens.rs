//! I50: the server wants new tokens, and does not wait for long.

use turnkeep_core::{
    Command, CommandError, CommandId, Outcome, RefreshId, Reply, Settings, ToolResult, TurnEnd,
    command::{TokenAnswer, ToolKind},
    config::TokenRefreshes,
    event::{ConnectionEvent, TokenRefresh},
};
use turnkeep_tests::world::{Journal, Setup, World, tool};

use crate::{connection_events, in_all_reads, script, text};

const TOKEN: &str = "tok-5ecret";

fn asked(script: &str) -> Setup {
    Setup::script(script).config(|config| config.token_refresh = TokenRefreshes::Ask)
}

/// What the server wants, once it does.
fn wanted(world: &World) -> Option<TokenRefresh> {
    let mut all = connection_events(world).into_iter();
    all.find_map(|event| match event {
        ConnectionEvent::TokenRefresh(refresh) => Some(refresh),
        _ => None,
    })
}

fn answer(world: &mut World, refresh: RefreshId, answer: TokenAnswer) -> CommandId {
    world.ask(Command::RefreshToken { refresh, answer })
}

fn tokens(account: &str) -> TokenAnswer {
    TokenAnswer::Tokens {
        access_token: TOKEN.into(),
        account: account.into(),
        plan: Some("plus".into()),
    }
}

fn answers(world: &World) -> usize {
    let of = |frame: &&String| frame.starts_with(r#"{"id":16,"#);
    world.sent().iter().filter(of).count()
}

fn failed(end: &TurnEnd) {
    match &end.outcome {
        Outcome::Failed { error } => {
            assert_eq!(error.message, "auth refresh request failed: code=-32603");
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn case_50_a_refresh_that_nobody_serves_fails_at_once() {
    in_all_reads(
        || Setup::script(script!("50a")),
        |world| {
            let conversation = world.open("a", Settings::new());
            let turn = world.send(conversation, "go");
            failed(&world.end_of(turn));
            assert!(world.is_played());
            assert_eq!(
                (wanted(world), answers(world), world.elapsed()),
                (None, 1, 0)
            );
        },
    );
}

#[test]
fn case_50_a_refresh_that_fails_is_answered_at_once() {
    in_all_reads(
        || asked(script!("50a")),
        |world| {
            let conversation = world.open("a", Settings::new());
            let turn = world.send(conversation, "go");
            let refresh = wanted(world).unwrap().id;
            let message = "logged out".to_owned();
            let given = answer(world, refresh, TokenAnswer::Failed { message });
            assert_eq!(world.answer_of(given), Ok(Reply::Done));
            failed(&world.end_of(turn));
            assert!(world.is_played());
            assert_eq!((answers(world), world.elapsed()), (1, 0));
        },
    );
}

#[test]
fn case_50_a_late_host_is_not_waited_for() {
    in_all_reads(
        || asked(script!("50a")),
        |world| {
            let conversation = world.open("a", Settings::new());
            let turn = world.send(conversation, "go");
            let refresh = wanted(world).unwrap().id;
            world.run(7_999);
            assert_eq!(answers(world), 0);
            world.run(1);
            assert_eq!(answers(world), 1);
            failed(&world.end_of(turn));
            // The host has them after 12 s.
            world.run(4_000);
            let late = answer(world, refresh, tokens("acc_1"));
            let unknown = CommandError::UnknownRefresh { refresh };
            assert_eq!(world.answer_of(late), Err(unknown));
            assert!(world.is_played());
            assert_eq!(answers(world), 1, "nothing comes late");
        },
    );
}

#[test]
fn case_50_tokens_wait_behind_nothing_and_stand_nowhere() {
    in_all_reads(
        || asked(script!("50b")),
        |world| {
            let settings = Settings::new().tool(tool("look", ToolKind::Function));
            let conversation = world.open("a", settings);
            let turn = world.send(conversation, "go");
            world.set_journal(Journal::Held);
            world.run(10);
            let refresh = wanted(world).unwrap();
            assert_eq!(refresh.reason, "unauthorized");
            assert_eq!(refresh.previous_account.as_deref(), Some("acc_1"));
            assert!(
                world.calls(turn).is_empty(),
                "the call waits for the journal"
            );

            let foreign = answer(world, refresh.id, tokens("acc_2"));
            let refused = CommandError::OtherAccount {
                asked: "acc_1".into(),
                given: "acc_2".into(),
            };
            assert_eq!(world.answer_of(foreign), Err(refused));
            assert_eq!(answers(world), 0, "it is open still");
            let given = answer(world, refresh.id, tokens("acc_1"));
            assert_eq!(world.answer_of(given), Ok(Reply::Done));
            assert_eq!(answers(world), 1);

            world.release();
            let call = world.call(turn, 1);
            world.respond(call.id, ToolResult::ok("a wall"));
            assert_eq!(text(&world.end_of(turn)), "seen");
            assert!(world.is_played());
            let places = [
                String::from_utf8_lossy(world.journal_bytes()).into_owned(),
                world.recording().to_owned(),
                world.told().join("\n"),
                format!("{:?}", world.machine()),
            ];
            for place in &places {
                assert!(!place.is_empty() && !place.contains(TOKEN), "{place}");
            }
        },
    );
}
