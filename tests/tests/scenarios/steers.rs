//! Messages that are steered into a running turn.

use insta::assert_snapshot;
use turnkeep_core::{CloseReason, CommandError, Outcome, Reply, Settings, TurnNo};

use crate::Scene;

const ITEM: &str = r#""type":"userMessage","id":"usr_s","clientId":"$sm","content":"$si""#;

#[test]
fn a_steer_that_is_taken() {
    let mut world = Scene::new()
        .begin(1)
        .steer(1)
        .line(r#"S {"id":"$st","result":{"turnId":"trn_1"}}"#)
        .item(1, ITEM)
        .say(1, "both")
        .idle()
        .end(1, "completed")
        .start();
    let conversation = world.open("a", Settings::new());
    let turn = world.send(conversation, "go");
    let steer = world.steer(turn, "also this");
    assert!(matches!(world.answer_of(steer), Ok(Reply::Steered { .. })));
    world.end_of(turn);
    world.note("no turn runs any more");
    world.steer(turn, "too late");
    world.steer(TurnNo(9), "no such turn");
    assert_snapshot!(world.finish());
}

#[test]
fn a_steer_whose_item_comes_before_its_answer() {
    let mut world = Scene::new()
        .begin(1)
        .steer(1)
        .item(1, ITEM)
        .line("X sleep 10")
        .line(r#"S {"id":"$st","result":{"turnId":"trn_1"}}"#)
        .say(1, "both")
        .end(1, "completed")
        .start();
    let conversation = world.open("a", Settings::new());
    let turn = world.send(conversation, "go");
    let steer = world.steer(turn, "also this");
    assert!(matches!(world.answer_of(steer), Ok(Reply::Steered { .. })));
    world.end_of(turn);
    assert_snapshot!(world.finish());
}

#[test]
fn a_steer_that_is_refused_goes_with_a_turn_of_its_own() {
    let mut world = Scene::new()
        .begin(1)
        .steer(1)
        .line(r#"S {"id":"$st","error":{"code":-32600,"message":"cannot steer a review turn"}}"#)
        .say(1, "one")
        .end(1, "completed")
        .turn(2, "two")
        .start();
    let conversation = world.open("a", Settings::new());
    let turn = world.send(conversation, "go");
    let steer = world.steer(turn, "also this");
    assert!(matches!(world.answer_of(steer), Ok(Reply::Queued { .. })));
    world.end_of(turn);
    let next = world.follow_up(turn);
    world.end_of(next);
    assert_snapshot!(world.finish());
}

#[test]
fn a_steer_that_is_answered_and_never_recorded() {
    let mut world = Scene::new()
        .begin(1)
        .steer(1)
        .line(r#"S {"id":"$st","result":{"turnId":"trn_1"}}"#)
        .say(1, "one")
        .end(1, "completed")
        .turn(2, "two")
        .start();
    let conversation = world.open("a", Settings::new());
    let turn = world.send(conversation, "go");
    world.steer(turn, "also this");
    world.end_of(turn);
    world.run(0);
    assert!(world.is_played());
    assert_snapshot!(world.finish());
}

#[test]
fn an_end_waits_for_the_answer_of_a_steer() {
    let mut world = Scene::new()
        .begin(1)
        .steer(1)
        .say(1, "one")
        .end(1, "completed")
        .line("X sleep 40")
        .line(r#"S {"id":"$st","error":{"code":-32600,"message":"expected active turn id `trn_1` but found `trn_7`"}}"#)
        .turn(2, "two")
        .start();
    let conversation = world.open("a", Settings::new());
    let turn = world.send(conversation, "go");
    let steer = world.steer(turn, "also this");
    world.run(39);
    assert_eq!(world.ended(turn), None);
    assert!(matches!(world.answer_of(steer), Ok(Reply::Queued { .. })));
    assert_eq!(world.ended(turn).unwrap().text.as_deref(), Some("one"));
    world.run(0);
    assert!(world.is_played());
    assert_snapshot!(world.finish());
}

#[test]
fn an_end_waits_no_longer_than_the_steers_deadline() {
    let mut world = Scene::new()
        .begin(1)
        .steer(1)
        .say(1, "one")
        .end(1, "completed")
        .start();
    let conversation = world.open("a", Settings::new());
    let turn = world.send(conversation, "go");
    let steer = world.steer(turn, "also this");
    assert!(matches!(
        world.answer_of(steer),
        Err(CommandError::Unknown { .. })
    ));
    assert_eq!(world.elapsed(), 60_000_000);
    assert_eq!(world.ended(turn).unwrap().text.as_deref(), Some("one"));
    assert_snapshot!(world.finish());
}

#[test]
fn a_connection_that_ends_under_a_steer_answers_it() {
    let mut world = Scene::new()
        .begin(1)
        .steer(1)
        .say(1, r#"{"a":1}"#)
        .end(1, "completed")
        .line("X die")
        .start();
    let conversation = world.open("a", Settings::new());
    let schema = turnkeep_tests::world::json(r#"{"type":"object"}"#);
    let options = turnkeep_core::SendOptions::new().output_schema(schema);
    let turn = world.send_with(conversation, "go", options);
    let steer = world.steer(turn, "also this");
    assert!(matches!(
        world.answer_of(steer),
        Err(CommandError::Unknown { .. })
    ));
    let end = world.end_of(turn);
    assert!(
        matches!(
            end.outcome,
            Outcome::Completed {
                structured: Some(_),
                ..
            }
        ),
        "{end:?}"
    );
    assert_snapshot!(world.finish());
}

#[test]
fn a_steer_answered_in_a_turn_that_was_lost_is_not_called_unsent() {
    let mut world = Scene::new()
        .begin(1)
        .steer(1)
        .line(r#"S {"id":"$st","result":{"turnId":"trn_1"}}"#)
        .line("X sleep 5")
        .line("X die")
        .start();
    let conversation = world.open("a", Settings::new());
    let turn = world.send(conversation, "go");
    world.steer(turn, "also this");
    world.end_of(turn);
    assert_snapshot!(world.finish());
}

#[test]
fn steers_wait_their_turn_and_for_the_turns_name() {
    let mut world = turnkeep_tests::world::Setup::hand().start();
    world.say(r#"{"id":1,"result":{"userAgent":"codex/0.171.0 (x)"}}"#);
    let conversation = world.open("a", Settings::new());
    let turn = world.send(conversation, "go");
    let early = world.steer(turn, "before anything left");
    assert_eq!(world.answer(early), Some(&Err(CommandError::NoActiveTurn)));
    world.say(r#"{"id":2,"result":{"thread":{"id":"thr_1"}}}"#);
    let one = world.steer(turn, "one");
    let two = world.steer(turn, "two");
    world.note("what waits goes together, and one message at a time");
    world.say(r#"{"id":3,"result":{"turn":{"id":"trn_1"}}}"#);
    let three = world.steer(turn, "three");
    assert_eq!(world.sent_of("turn/steer").len(), 1, "one at a time");
    world.say(r#"{"id":4,"result":{"turnId":"trn_1"}}"#);
    assert_eq!(world.sent_of("turn/steer").len(), 2);
    for id in [one, two] {
        assert!(matches!(world.answer(id), Some(Ok(Reply::Steered { .. }))));
    }
    assert_eq!(world.answer(three), None);
    world.hang_up(CloseReason::Lost("reset".into()));
    assert!(matches!(
        world.answer(three),
        Some(Err(CommandError::Unknown { .. }))
    ));
    assert_snapshot!(world.finish());
}
