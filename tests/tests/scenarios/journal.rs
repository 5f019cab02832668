//! The journal: what waits for it, and what happens when it fails.

use insta::assert_snapshot;
use turnkeep_core::{
    CommandError, CommandId, Epoch, FrameSeq, Input, JournalSeq, Outcome, SendOptions, Settings,
};
use turnkeep_tests::world::{Journal, Setup, World};

use crate::Scene;

const STARTED: &str = r#"{"method":"turn/started","params":{"threadId":"thr_1","turn":{"id":"trn_1","status":"inProgress"}}}"#;

/// A world whose server the test speaks for, with turn `trn_1` of thread `thr_1` running.
fn running() -> (World, turnkeep_core::ConversationId) {
    let mut world = Setup::hand().start();
    world.say(r#"{"id":1,"result":{"userAgent":"codex/0.171.0 (x)"}}"#);
    let conversation = world.open("a", Settings::new());
    world.send(conversation, "go");
    world.say(r#"{"id":2,"result":{"thread":{"id":"thr_1"}}}"#);
    world.say(r#"{"id":3,"result":{"turn":{"id":"trn_1"}}}"#);
    world.say(STARTED);
    (world, conversation)
}

#[test]
fn a_journal_that_is_held_delays_what_it_must_and_nothing_else() {
    let (mut world, _) = running();
    world.set_journal(Journal::Held);
    let second = world.open_later("b");
    world.note("nothing leaves, nothing is confirmed; the other conversation's text goes on");
    world.say(r#"{"method":"item/agentMessage/delta","params":{"threadId":"thr_1","turnId":"trn_1","itemId":"i","delta":"text"}}"#);
    world.note("its own end waits, and its text waits behind that");
    world.say(r#"{"method":"turn/completed","params":{"threadId":"thr_1","turn":{"id":"trn_1","status":"completed"}}}"#);
    world.say(r#"{"method":"turn/started","params":{"threadId":"thr_1","turn":{"id":"trn_2","status":"inProgress"}}}"#);
    world.say(r#"{"method":"item/agentMessage/delta","params":{"threadId":"thr_1","turnId":"trn_2","itemId":"j","delta":"more"}}"#);
    assert_eq!(world.answer(second), None);
    world.note("one batch after the other");
    world.release_one();
    assert!(world.answer(second).is_some());
    world.release_one();
    world.release();
    assert_snapshot!(world.finish());
}

#[test]
fn a_turn_waits_for_every_record_of_its_own() {
    let mut world = Scene::new()
        .turn(1, "one")
        .setup()
        .journal(Journal::Held)
        .start();
    let open = world.ask(World::open_command("a", Settings::new()));
    let conversation = turnkeep_core::ConversationId(1);
    let send = world.ask(World::send_command(conversation, "go", SendOptions::new()));
    assert_eq!((world.answer(open), world.answer(send)), (None, None));
    assert_eq!(world.sent().len(), 2, "only the handshake has left");
    for _ in 0..12 {
        world.release_one();
    }
    assert!(world.is_played());
    assert_snapshot!(world.finish());
}

#[test]
fn an_interrupt_of_a_start_that_waits_for_its_record() {
    let mut world = Scene::new().setup().start();
    let conversation = world.open("a", Settings::new());
    world.set_journal(Journal::Held);
    let send = world.ask(World::send_command(conversation, "go", SendOptions::new()));
    let turn = turnkeep_core::TurnNo(1);
    let stop = world.interrupt(turn);
    world.release();
    assert!(world.answer(send).unwrap().is_ok());
    assert_eq!(
        world.answer(stop),
        Some(&Ok(turnkeep_core::Reply::Interrupted))
    );
    assert_eq!(world.ended(turn).unwrap().outcome, Outcome::Interrupted);
    assert!(world.sent_of("turn/start").is_empty());
    assert_snapshot!(world.finish());
}

#[test]
fn a_journal_that_fails_halts_everything() {
    let (mut world, conversation) = running();
    world.set_journal(Journal::Failing);
    let turn = turnkeep_core::TurnNo(1);
    world.steer(turn, "never leaves");
    assert!(world.sent_of("turn/steer").is_empty());
    world.note("no frame, no event; commands are refused");
    world.say(r#"{"method":"item/agentMessage/delta","params":{"threadId":"thr_1","turnId":"trn_1","itemId":"i","delta":"text"}}"#);
    world.input(Input::Tick);
    assert_eq!(world.send_refused(conversation, "x"), CommandError::Halted);
    world.shut_down();
    assert_snapshot!(world.finish());
}

#[test]
fn a_frame_that_was_not_sent_was_not_accepted() {
    let mut world = Setup::hand().start();
    world.say(r#"{"id":1,"result":{"userAgent":"codex/0.171.0 (x)"}}"#);
    let conversation = world.open("a", Settings::new());
    let turn = world.send(conversation, "go");
    world.say(r#"{"id":2,"result":{"thread":{"id":"thr_1"}}}"#);
    let epoch = Epoch(1);
    world.note("frame 4 is turn/start");
    world.input(Input::SendFailed(epoch, FrameSeq(4)));
    assert!(matches!(
        world.ended(turn).unwrap().outcome,
        Outcome::Rejected { .. }
    ));
    world.note("again, unknown, of another connection: nothing");
    world.input(Input::SendFailed(epoch, FrameSeq(4)));
    world.input(Input::SendFailed(epoch, FrameSeq(99)));
    world.input(Input::SendFailed(Epoch(9), FrameSeq(5)));
    let next = world.restart(conversation);
    world.say(r#"{"id":4,"result":{"turn":{"id":"trn_1"}}}"#);
    world.say(STARTED);
    world.note("steer, interrupt and raw requests likewise");
    world.steer(next, "more");
    world.input(Input::SendFailed(epoch, FrameSeq(6)));
    world.interrupt(next);
    world.input(Input::SendFailed(epoch, FrameSeq(7)));
    world.request("x/y", "{}", turnkeep_core::command::RequestEffect::Changes);
    world.input(Input::SendFailed(epoch, FrameSeq(8)));
    assert_snapshot!(world.finish());
}

#[test]
fn inputs_that_make_no_sense_change_nothing() {
    let (mut world, _) = running();
    let before = world.events().len();
    world.input(Input::Appended {
        through: JournalSeq(0),
    });
    world.input(Input::Opened(Epoch(1), turnkeep_core::Peer::default()));
    world.input(Input::Opened(Epoch(2), turnkeep_core::Peer::default()));
    world.input(Input::Received(Epoch(2), b"{}\n".to_vec()));
    let closed = turnkeep_core::Closed::new(turnkeep_core::CloseReason::Eof, String::new());
    world.input(Input::Closed(Epoch(2), Box::new(closed)));
    world.input(Input::QueueFull(turnkeep_core::ConversationId(0)));
    world.input(Input::Tick);
    assert_eq!(world.events().len(), before);
    let late = CommandId(u64::MAX);
    world.ask_as(
        late,
        turnkeep_core::Command::Acknowledge {
            turn: turnkeep_core::TurnNo(0),
        },
    );
    assert_snapshot!(world.finish());
}
