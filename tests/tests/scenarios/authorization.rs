//! On whose behalf a conversation acts.

use insta::assert_snapshot;
use turnkeep_core::{
    CommandError, Reply, SendOptions, Settings, ToolResult,
    command::{AcceptOptions, Authorization, Command},
    config::RecoveredRounds,
    event::Status,
};
use turnkeep_tests::world::{Left, Setup};

use crate::talk::{LEFT, Talk, binding, boxed, said, tools};

/// What the library does where nobody says otherwise.
fn needed() -> Setup {
    Setup::hand()
        .reconnects()
        .config(|config| config.authorization = Authorization::Needed)
}

fn bound(subject: &str) -> SendOptions {
    SendOptions::new().binding(binding(subject))
}

#[test]
fn user_input_and_restart_need_a_binding() {
    let mut talk = Talk::with(needed(), tools());
    let conversation = talk.conversation;
    let unauthorized = Err(CommandError::Unauthorized { conversation });
    let before = talk.written();
    assert_eq!(talk.try_send("go", SendOptions::new()), unauthorized);
    assert_eq!(talk.try_accept([said("go")]), unauthorized);
    assert_eq!(talk.written(), before, "nothing has changed");
    talk.note("what is no user input needs none");
    talk.accept([boxed("System Message", "be brief")]);
    assert_eq!(talk.starts.len(), 0, "and begins nothing without one");
    let command = talk.accept_command([said("go")], AcceptOptions::new().binding(binding("ann")));
    assert!(matches!(talk.done(command), Ok(Reply::Arrived { .. })));
    let turn = talk.last_turn();
    talk.refuse_start("not now");
    assert!(talk.ended(turn).is_some());
    assert!(matches!(
        talk.status(),
        Status::Stalled {
            restartable: true,
            ..
        }
    ));
    assert_eq!(talk.restart(), unauthorized);
    let restart = |binding| Command::Restart {
        conversation,
        binding,
    };
    let answer = talk.done(restart(Some(binding("ann"))));
    assert!(matches!(answer, Ok(Reply::Accepted { .. })), "{answer:?}");
    talk.take();
    talk.complete("done");
    assert_snapshot!(talk.finish());
}

#[test]
fn a_round_waits_for_its_binding() {
    let mut talk = Talk::with(needed(), tools());
    talk.accept([boxed("Weather Report", "rain")]);
    assert_eq!(talk.starts.len(), 0);
    let conversation = talk.conversation;
    assert_eq!(
        talk.begin(),
        Err(CommandError::Unauthorized { conversation })
    );
    assert_eq!(talk.bind("ann"), Ok(Reply::Done));
    assert_eq!(talk.take().len(), 1);
    talk.complete("done");
    assert_snapshot!(talk.finish());
}

#[test]
fn a_binding_stands_until_it_is_cleared() {
    let mut talk = Talk::with(needed(), tools());
    let conversation = talk.conversation;
    let unauthorized = Err(CommandError::Unauthorized { conversation });
    assert_eq!(talk.bind("ann"), Ok(Reply::Done));
    talk.note("the same again");
    assert_eq!(talk.bind("ann"), Ok(Reply::Done));
    talk.note("another");
    assert_eq!(talk.bind("bob"), unauthorized);
    assert_eq!(talk.try_send("go", bound("bob")), unauthorized);
    let command = talk.accept_command([said("go")], AcceptOptions::new().binding(binding("bob")));
    assert_eq!(talk.done(command), unauthorized);
    talk.send("go");
    talk.take();
    talk.note("and while a round is open");
    assert_eq!(talk.bind("bob"), unauthorized);
    talk.complete("done");
    assert_eq!(talk.unbind(), Ok(Reply::Done));
    assert_eq!(talk.try_send("more", SendOptions::new()), unauthorized);
    assert_eq!(talk.bind("bob"), Ok(Reply::Done));
    talk.send("more");
    talk.take();
    talk.complete("done");
    assert_snapshot!(talk.finish());
}

#[test]
fn a_failed_round_clears_the_binding() {
    let mut talk = Talk::with(needed(), tools());
    let conversation = talk.conversation;
    talk.try_send("go", bound("ann")).unwrap();
    talk.take();
    talk.end("failed");
    assert_eq!(talk.dismiss(), Ok(Reply::Done));
    assert_eq!(
        talk.try_send("more", SendOptions::new()),
        Err(CommandError::Unauthorized { conversation })
    );
    talk.note("another may have it now");
    assert_eq!(talk.bind("bob"), Ok(Reply::Done));
    assert_snapshot!(talk.finish());
}

#[test]
fn a_refused_command_takes_its_binding_back() {
    let mut talk = Talk::with(needed(), tools());
    let conversation = talk.conversation;
    assert_eq!(talk.hold("not yet"), Ok(Reply::Done));
    let answer = talk.try_send("go", bound("ann"));
    assert!(
        matches!(answer, Err(CommandError::Busy { .. })),
        "{answer:?}"
    );
    talk.note("nobody is bound");
    assert_eq!(
        talk.try_accept([said("go")]),
        Err(CommandError::Unauthorized { conversation })
    );
    let command = talk.accept_command(
        [boxed("Tool Call", "x")],
        AcceptOptions::new().binding(binding("ann")),
    );
    assert!(talk.done(command).is_err());
    let answer = talk.done(Command::Restart {
        conversation,
        binding: Some(binding("ann")),
    });
    assert_eq!(answer, Err(CommandError::NotStalled { conversation }));
    assert_eq!(talk.bind("bob"), Ok(Reply::Done), "so another may be");
    talk.note("one that stood before stays");
    let answer = talk.try_send("go", bound("bob"));
    assert!(answer.is_err());
    talk.accept([said("go")]);
    assert_snapshot!(talk.finish());
}

#[test]
fn tool_launches_carry_the_binding_of_their_round() {
    let mut talk = Talk::with(needed(), tools());
    talk.try_send("go", bound("ann")).unwrap();
    talk.take();
    talk.call("look", r#"{"n":1}"#);
    talk.note("cleared meanwhile: the round goes on as it began");
    assert_eq!(talk.unbind(), Ok(Reply::Done));
    talk.call("look", r#"{"n":2}"#);
    let calls = talk.offered();
    for call in &calls {
        assert_eq!(call.binding, Some(binding("ann")));
    }
    assert_eq!(calls.len(), 2);
    for call in calls {
        talk.respond(call.id, ToolResult::ok("seen")).unwrap();
    }
    talk.complete("done");
    assert_snapshot!(talk.finish());
}

#[test]
fn a_round_after_a_crash_waits_for_a_binding_or_runs_without() {
    for (rounds, name) in [
        (
            RecoveredRounds::WaitForBinding,
            "a_round_after_a_crash_waits",
        ),
        (RecoveredRounds::Run, "a_round_after_a_crash_runs"),
    ] {
        for left in LEFT {
            let setup = needed().config(|config| config.recovered_rounds = rounds);
            let mut talk = Talk::with(setup, tools());
            talk.try_send("go", bound("ann")).unwrap();
            talk.take();
            talk.call("search", "{}");
            talk.take_steer();
            talk.complete("later");
            talk.crash(left);
            talk.note("the call has failed, and the model is to hear of it");
            if rounds == RecoveredRounds::WaitForBinding {
                assert_eq!(talk.starts.len(), 0);
                assert_eq!(talk.status(), Status::Quiet);
                assert_eq!(talk.bind("ann"), Ok(Reply::Done));
            }
            talk.take();
            talk.call("look", "{}");
            let carried = talk.offered()[0].binding.clone();
            let waits = rounds == RecoveredRounds::WaitForBinding;
            assert_eq!(carried, waits.then(|| binding("ann")));
            if left == Left::All {
                assert_snapshot!(name, talk.finish());
            } else {
                let _ = talk.finish();
            }
        }
    }
}

#[test]
fn a_conversation_that_wants_no_authorization_never_needs_any() {
    let mut settings = tools();
    settings.authorization = Some(Authorization::None);
    let mut talk = Talk::with(needed(), settings);
    talk.send("go");
    talk.take();
    talk.end("failed");
    assert_eq!(talk.dismiss(), Ok(Reply::Done));
    talk.send("more");
    talk.take();
    talk.call("search", "{}");
    talk.take_steer();
    for left in LEFT {
        talk.crash(left);
        assert_eq!(talk.starts.len(), 1, "it goes on by itself");
    }
    talk.take();
    talk.complete("done");
    talk.note("though other settings say otherwise now");
    let conversation = talk.conversation;
    let mut settings = Settings::new();
    settings.authorization = Some(Authorization::Needed);
    talk.ask(Command::Change {
        conversation,
        settings: Box::new(settings),
    });
    talk.send("and?");
    assert_snapshot!(talk.finish());
}
