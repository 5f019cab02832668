//! Turns that are stopped: interrupted, abandoned, too slow for their reader.

use insta::assert_snapshot;
use turnkeep_core::{
    CommandError, Event, Input, Outcome, Reply, Settings, ToolResult, TurnUpdate,
    command::{Questions, ToolKind},
    config::{Quiet, Reroute},
};
use turnkeep_tests::world::{Setup, World, tool};

use crate::Scene;

/// A world whose server the test speaks for, with its handshake done.
fn hand() -> World {
    let mut world = Setup::hand().start();
    world.say(r#"{"id":1,"result":{"userAgent":"codex/0.171.0 (x)"}}"#);
    world
}

const THREAD: &str = r#"{"id":2,"result":{"thread":{"id":"thr_1"}}}"#;
const TURN: &str = r#"{"id":3,"result":{"turn":{"id":"trn_1"}}}"#;
const STARTED: &str = r#"{"method":"turn/started","params":{"threadId":"thr_1","turn":{"id":"trn_1","status":"inProgress"}}}"#;
const INTERRUPTED: &str = r#"{"method":"turn/completed","params":{"threadId":"thr_1","turn":{"id":"trn_1","status":"interrupted"}}}"#;

#[test]
fn an_interrupt_before_the_thread_is_there() {
    let mut world = hand();
    let conversation = world.open("a", Settings::new());
    let turn = world.send(conversation, "go");
    let stop = world.interrupt(turn);
    assert_eq!(world.answer(stop), Some(&Ok(Reply::Interrupted)));
    world.note("the thread comes all the same, and serves the next turn");
    world.say(THREAD);
    assert!(world.sent_of("turn/start").is_empty());
    world.send(conversation, "again");
    assert_eq!(world.sent_of("turn/start").len(), 1);
    assert_snapshot!(world.finish());
}

#[test]
fn an_interrupt_before_the_turn_has_a_name() {
    let mut world = hand();
    let conversation = world.open("a", Settings::new());
    let turn = world.send(conversation, "go");
    world.say(THREAD);
    let stop = world.interrupt(turn);
    assert!(world.sent_of("turn/interrupt").is_empty());
    world.say(TURN);
    assert_eq!(world.sent_of("turn/interrupt").len(), 1);
    world.say(r#"{"id":4,"result":{}}"#);
    assert_eq!(world.answer(stop), None, "granted is not stopped");
    world.say(INTERRUPTED);
    assert_eq!(world.answer(stop), Some(&Ok(Reply::Interrupted)));
    assert_snapshot!(world.finish());
}

#[test]
fn interrupts_join_and_come_too_late() {
    let mut world = Scene::new().begin(1).say(1, "half").interrupted(1).start();
    let conversation = world.open("a", Settings::new());
    let turn = world.send(conversation, "go");
    world.interrupt(turn);
    world.interrupt(turn);
    world.end_of(turn);
    world.note("after the end");
    world.interrupt(turn);
    world.acknowledge(turn);
    world.interrupt(turn);
    world.interrupt(turnkeep_core::TurnNo(7));
    assert_snapshot!(world.finish());
}

#[test]
fn two_interrupts_on_their_way() {
    let mut world = hand();
    let conversation = world.open("a", Settings::new());
    let turn = world.send(conversation, "go");
    world.say(THREAD);
    world.say(TURN);
    world.say(STARTED);
    let one = world.interrupt(turn);
    let two = world.interrupt(turn);
    assert_eq!(world.sent_of("turn/interrupt").len(), 1, "once");
    world.say(INTERRUPTED);
    for stop in [one, two] {
        assert_eq!(world.answer(stop), Some(&Ok(Reply::Interrupted)));
    }
    assert_snapshot!(world.finish());
}

#[test]
fn an_interrupt_that_is_refused_may_be_asked_again() {
    let mut world = hand();
    let conversation = world.open("a", Settings::new());
    let turn = world.send(conversation, "go");
    world.say(THREAD);
    world.say(TURN);
    world.say(STARTED);
    let one = world.interrupt(turn);
    world.say(r#"{"id":4,"error":{"code":-32603,"message":"busy elsewhere"}}"#);
    assert!(matches!(
        world.answer(one),
        Some(Err(CommandError::Refused(_)))
    ));
    let two = world.interrupt(turn);
    world.say(r#"{"id":5,"result":{}}"#);
    world.say(INTERRUPTED);
    assert_eq!(world.answer(two), Some(&Ok(Reply::Interrupted)));
    assert_snapshot!(world.finish());
}

#[test]
fn an_interrupt_that_is_granted_and_not_followed_by_an_end() {
    let mut world = Scene::new()
        .begin(1)
        .stop(1)
        .line(r#"S {"id":"$s1","result":{}}"#)
        .line(r#"C {"id":"$r","method":"thread/turns/list","params":{"threadId":"thr_1"}}"#)
        .line(r#"S {"id":"$r","result":{"data":[{"id":"trn_1","status":"interrupted","error":null,"items":[]}],"nextCursor":null}}"#)
        .start();
    let conversation = world.open("a", Settings::new());
    let turn = world.send(conversation, "go");
    let stop = world.interrupt(turn);
    assert_eq!(world.answer_of(stop), Ok(Reply::Interrupted));
    assert_eq!(world.elapsed(), 5_000_000);
    assert_snapshot!(world.finish());
}

#[test]
fn an_abandoned_turn_in_each_state() {
    let mut world = hand();
    let conversation = world.open("a", Settings::new());
    world.note("waiting: it never leaves");
    let waiting = world.send(conversation, "one");
    world.abandon(waiting);
    world.say(THREAD);
    world.note("sent: it is interrupted as soon as it has a name; its frames are dropped, its calls refused");
    let sent = world.send(conversation, "two");
    world.abandon(sent);
    world.say(r#"{"id":0,"method":"item/tool/call","params":{"threadId":"thr_1","turnId":"trn_1","callId":"c","tool":"x","arguments":{}}}"#);
    world.say(TURN);
    world.say(STARTED);
    world.say(r#"{"method":"item/agentMessage/delta","params":{"threadId":"thr_1","turnId":"trn_1","itemId":"i","delta":"unheard"}}"#);
    world.say(r#"{"id":4,"result":{}}"#);
    world.say(INTERRUPTED);
    assert!(world.streamed(sent).is_empty());
    world.note("over: an end that nobody takes any more");
    world.abandon(sent);
    world.abandon(turnkeep_core::TurnNo(9));
    for turn in [waiting, sent] {
        let updates = world.updates(turn);
        assert!(
            matches!(updates[..], [TurnUpdate::Ended(_)]),
            "the end only: {updates:?}"
        );
    }
    assert_snapshot!(world.finish());
}

#[test]
fn an_abandoned_turn_lets_go_of_its_calls_and_questions() {
    let mut world = Scene::new()
        .begin(1)
        .line(r#"S {"id":0,"method":"item/tool/call","params":{"threadId":"thr_1","turnId":"trn_1","callId":"c","tool":"run","arguments":{}}}"#)
        .line(r#"S {"id":1,"method":"item/fileChange/requestApproval","params":{"threadId":"thr_1","turnId":"trn_1","itemId":"f"}}"#)
        .line(r#"C {"id":0,"error":{"code":-32800}}"#)
        .line(r#"C& {"id":1,"result":{"decision":"decline"}}"#)
        .line(r#"C& {"id":"$s1","method":"turn/interrupt","params":{"threadId":"thr_1","turnId":"trn_1"}}"#)
        .line(r#"S {"id":2,"method":"item/tool/call","params":{"threadId":"thr_1","turnId":"trn_1","callId":"d","tool":"run","arguments":{}}}"#)
        .line(r#"C {"id":2,"error":{"code":-32800}}"#)
        .line(r#"S {"id":"$s1","result":{}}"#)
        .end(1, "interrupted")
        .start();
    let settings = Settings::new()
        .tool(tool("run", ToolKind::Function))
        .questions(Questions::Ask);
    let conversation = world.open("a", settings);
    let turn = world.send(conversation, "go");
    let call = world.call(turn, 1);
    world.question(turn, 1);
    world.abandon(turn);
    let late = world.respond(call.id, ToolResult::ok("late"));
    assert_eq!(
        world.answer(late),
        Some(&Err(CommandError::CallClosed { call: call.id }))
    );
    assert_eq!(world.end_of(turn).outcome, Outcome::Interrupted);
    assert!(world.is_played());
    assert_snapshot!(world.finish());
}

#[test]
fn a_full_queue_before_and_after_the_message_left() {
    let mut world = hand();
    let conversation = world.open("a", Settings::new());
    let waiting = world.send(conversation, "one");
    world.input(Input::QueueFull(conversation));
    assert!(matches!(
        world.ended(waiting).unwrap().outcome,
        Outcome::Rejected { .. }
    ));
    world.say(THREAD);
    world.dismiss(conversation);
    let sent = world.send(conversation, "two");
    world.input(Input::QueueFull(conversation));
    assert!(matches!(
        world.ended(sent).unwrap().outcome,
        Outcome::Failed { .. }
    ));
    world.note("acknowledged before the server names it");
    world.acknowledge(sent);
    world.say(TURN);
    world.say(STARTED);
    world.say(r#"{"id":4,"result":{}}"#);
    world.say(INTERRUPTED);
    assert_snapshot!(world.finish());
}

#[test]
fn a_silent_turn_is_told_and_interrupted_where_that_is_set() {
    for quiet in [Quiet::Tell, Quiet::Interrupt] {
        let scene = Scene::new().begin(1).notify(
            "item/started",
            r#""turnId":"trn_1","item":{"type":"commandExecution","id":"cmd"}"#,
        );
        let scene = match quiet {
            Quiet::Tell => scene.line("X sleep 130000").end(1, "completed"),
            Quiet::Interrupt => scene.interrupted(1),
        };
        let mut world = scene.setup().config(|config| config.quiet = quiet).start();
        let conversation = world.open("a", Settings::new());
        let turn = world.send(conversation, "go");
        world.end_of(turn);
        let told = world.updates(turn).into_iter().filter(|update| {
            matches!(
                update,
                TurnUpdate::Quiet {
                    open_calls: 0,
                    open_questions: 0,
                    open_items: 1
                }
            )
        });
        assert_eq!(told.count(), 1);
        assert_snapshot!(format!("a_silent_turn_{quiet:?}"), world.finish());
    }
}

#[test]
fn a_model_that_is_exchanged_warns_or_fails_the_turn() {
    for reroute in [Reroute::Tell, Reroute::Fail] {
        let scene = Scene::new().begin(1).notify(
            "model/rerouted",
            r#""turnId":"trn_1","fromModel":"big","toModel":"small","reason":"x""#,
        );
        let scene = match reroute {
            Reroute::Tell => scene.say(1, "ok").end(1, "completed"),
            Reroute::Fail => scene.interrupted(1),
        };
        let mut world = scene
            .setup()
            .config(|config| config.reroute = reroute)
            .start();
        let conversation = world.open("a", Settings::new());
        let turn = world.send(conversation, "go");
        world.end_of(turn);
        world.run(0);
        assert!(world.is_played());
        let ends = world.events().iter().filter(|event| {
            matches!(event, Event::Turn(event) if matches!(event.update, TurnUpdate::Ended(_)))
        });
        assert_eq!(ends.count(), 1);
        assert_snapshot!(format!("an_exchanged_model_{reroute:?}"), world.finish());
    }
}
