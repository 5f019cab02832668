//! Threads that are no longer wanted: detached, archived, deleted, as often as it takes.

use insta::assert_snapshot;
use turnkeep_core::{
    CommandError, ConversationId, Event, Reply, Settings,
    cleanup::{Action, Owner},
    command::BusyWhy,
    event::{ConnectionEvent, Warning},
};
use turnkeep_tests::world::World;

use crate::Scene;

fn one(conversation: ConversationId) -> Owner {
    Owner::Conversation(conversation)
}

fn cleaned_up(world: &World) -> usize {
    let told = world.events().iter().filter(|event| {
        matches!(event, Event::Connection(event) if matches!(**event, ConnectionEvent::CleanedUp { .. }))
    });
    told.count()
}

fn warnings(world: &World) -> usize {
    let told = world.events().iter().filter(|event| {
        let Event::Connection(event) = event else {
            return false;
        };
        matches!(&**event, ConnectionEvent::Warning(Warning::CleanUp { .. }))
    });
    told.count()
}

impl Scene {
    /// Waits for a request about a thread and answers it.
    fn asked(self, id: &str, method: &str, thread: &str, answer: &str) -> Self {
        self.line(&format!(
            r#"C {{"id":"${id}","method":"{method}","params":{{"threadId":"{thread}"}}}}"#
        ))
        .line(&format!(r#"S {{"id":"${id}",{answer}}}"#))
    }

    /// Waits for the look for descendants of a thread and answers it.
    fn descendants(self, id: &str, thread: &str, answer: &str) -> Self {
        self.line(&format!(
            r#"C {{"id":"${id}","method":"thread/list","params":{{"ancestorThreadId":"{thread}"}}}}"#
        ))
        .line(&format!(r#"S {{"id":"${id}",{answer}}}"#))
    }
}

const DONE: &str = r#""result":{}"#;
const EMPTY: &str = r#""result":{"data":[],"nextCursor":null}"#;
const ONE: &str = r#""result":{"data":[{"itemId":"i","processId":"7","command":"sleep 300","cwd":"/"}],"nextCursor":null}"#;
const CLEAN: &str = "thread/backgroundTerminals/clean";
const LIST: &str = "thread/backgroundTerminals/list";

#[test]
fn a_conversation_that_is_deleted() {
    let mut world = Scene::new()
        .begin(1)
        .line("X sleep 5")
        .say(1, "one")
        .end(1, "completed")
        .asked("d", "thread/delete", "thr_1", DONE)
        .start();
    let conversation = world.open("a", Settings::new());
    let unused = world.open("b", Settings::new());
    world.note("without a thread there is nothing to delete, and it is closed all the same");
    let delete = world.clean_up(one(unused), Action::Delete);
    assert_eq!(world.answer(delete), Some(&Ok(Reply::Done)));
    let turn = world.send(conversation, "go");
    let busy = world.clean_up(one(conversation), Action::Delete);
    assert_eq!(
        world.answer(busy),
        Some(&Err(CommandError::Busy {
            conversation,
            why: BusyWhy::Round,
        }))
    );
    world.end_of(turn);
    world.note("its end was not acknowledged: nobody waits for it any more");
    let delete = world.clean_up(one(conversation), Action::Delete);
    assert_eq!(world.answer_of(delete), Ok(Reply::Done));
    world.run_until("it is deleted", |world| cleaned_up(world) == 1);
    world.note("deleted is deleted, and its key is free");
    let again = world.clean_up(one(conversation), Action::Delete);
    assert_eq!(world.answer(again), Some(&Ok(Reply::Done)));
    let fresh = world.open("a", Settings::new().model("m"));
    assert_ne!(fresh, conversation);
    assert_snapshot!(world.finish());
}

#[test]
fn what_the_server_does_not_have_is_settled() {
    let no = |what: &str| format!(r#""error":{{"code":-32600,"message":"{what}"}}"#);
    for (n, answer) in [
        no("no rollout found for thread id thr_1"),
        no("thread not found: thr_1"),
        no("thread not loaded: thr_1"),
    ]
    .iter()
    .enumerate()
    {
        let mut world = Scene::new()
            .turn(1, "one")
            .asked("d", "thread/archive", "thr_1", answer)
            .start();
        let conversation = world.open("a", Settings::new());
        let turn = world.send(conversation, "go");
        world.end_of(turn);
        world.clean_up(one(conversation), Action::Archive);
        world.run_until("it is settled", |world| cleaned_up(world) == 1);
        assert_eq!(warnings(&world), 0, "row {n}");
        assert_eq!(world.machine().durable().cleanups().count(), 0);
        let _ = world.finish();
    }
}

#[test]
fn a_refusal_is_told_and_tried_again() {
    let other = r#""error":{"code":-32600,"message":"no rollout found for thread id thr_9"}"#;
    let mut world = Scene::new()
        .turn(1, "one")
        .asked("d", "thread/delete", "thr_1", other)
        .asked("e", "thread/delete", "thr_1", DONE)
        .start();
    let conversation = world.open("a", Settings::new());
    let turn = world.send(conversation, "go");
    world.end_of(turn);
    world.clean_up(one(conversation), Action::Delete);
    world.run_until("it is deleted", |world| cleaned_up(world) == 1);
    assert_eq!(warnings(&world), 1);
    assert_snapshot!(world.finish());
}

#[test]
fn what_is_refused_for_ever_is_not_tried_for_ever() {
    let mut world = Scene::new()
        .turn(1, "one")
        .line(r#"C* {"id":"$d","method":"thread/delete","params":{"threadId":"thr_1"}}"#)
        .line(r#"S? {"id":"$d","error":{"code":-32603,"message":"disk on fire"}}"#)
        .start();
    let conversation = world.open("a", Settings::new());
    let turn = world.send(conversation, "go");
    world.end_of(turn);
    world.clean_up(one(conversation), Action::Delete);
    world.run(3_600_000);
    let tries = world.sent_of("thread/delete").len();
    assert_eq!(tries, 11, "one, and as many again as a connection is tried");
    assert_eq!(world.machine().durable().cleanups().count(), 1);
    let _ = world.finish();
}

#[test]
fn a_detachment_goes_step_by_step() {
    let mut world = Scene::new()
        .turn(1, "one")
        .descendants(
            "l",
            "thr_1",
            r#""result":{"data":[{"id":"sub_1"}],"nextCursor":"more"}"#,
        )
        .line(r#"C {"id":"$m","method":"thread/list","params":{"ancestorThreadId":"thr_1","cursor":"more"}}"#)
        .line(r#"S {"id":"$m","result":{"data":[{"id":"sub_2"}],"nextCursor":null}}"#)
        .line(&format!(r#"C {{"id":"$c1","method":"{CLEAN}","params":{{"threadId":"sub_1"}}}}"#))
        .line(&format!(r#"C {{"id":"$c2","method":"{CLEAN}","params":{{"threadId":"sub_2"}}}}"#))
        .line(&format!(r#"C {{"id":"$c3","method":"{CLEAN}","params":{{"threadId":"thr_1"}}}}"#))
        .line("X sleep 5")
        .line(r#"S {"id":"$c1","result":{}}"#)
        .line(r#"S {"id":"$c2","error":{"code":-32600,"message":"thread not found: sub_2"}}"#)
        .line(r#"S {"id":"$c3","result":{}}"#)
        .asked("k1", LIST, "sub_1", EMPTY)
        .asked("k2", LIST, "sub_2", EMPTY)
        .asked("k3", LIST, "thr_1", ONE)
        .asked("c4", CLEAN, "sub_1", DONE)
        .asked("c5", CLEAN, "sub_2", DONE)
        .asked("c6", CLEAN, "thr_1", DONE)
        .asked("k4", LIST, "sub_1", EMPTY)
        .asked("k5", LIST, "sub_2", EMPTY)
        .asked("k6", LIST, "thr_1", EMPTY)
        .asked("u", "thread/unsubscribe", "thr_1", r#""result":{"status":"unsubscribed"}"#)
        .turn(2, "two")
        .start();
    let conversation = world.open("a", Settings::new());
    let turn = world.send(conversation, "go");
    world.end_of(turn);
    world.note("a message that comes while the thread is let go waits, and takes it up again");
    let detach = world.clean_up(one(conversation), Action::Detach);
    assert_eq!(world.answer_of(detach), Ok(Reply::Done));
    let turn = world.send(conversation, "more");
    world.end_of(turn);
    assert_eq!(cleaned_up(&world), 1);
    assert_snapshot!(world.finish());
}

#[test]
fn a_terminal_that_does_not_go_keeps_its_thread() {
    let mut world = Scene::new()
        .turn(1, "one")
        .descendants("l", "thr_1", EMPTY)
        .line(&format!(
            r#"C* {{"id":"$c","method":"{CLEAN}","params":{{"threadId":"thr_1"}}}}"#
        ))
        .line(r#"S? {"id":"$c","result":{}}"#)
        .line(&format!(
            r#"C* {{"id":"$k","method":"{LIST}","params":{{"threadId":"thr_1"}}}}"#
        ))
        .line(&format!(r#"S? {{"id":"$k",{ONE}}}"#))
        .line(r#"C* {"id":"$n","method":"thread/list","params":{"ancestorThreadId":"thr_1"}}"#)
        .line(&format!(r#"S? {{"id":"$n",{EMPTY}}}"#))
        .start();
    let conversation = world.open("a", Settings::new());
    let turn = world.send(conversation, "go");
    world.end_of(turn);
    world.clean_up(one(conversation), Action::Detach);
    world.run(3_600_000);
    assert_eq!(world.sent_of("thread/unsubscribe").len(), 0);
    assert_eq!(world.machine().durable().cleanups().count(), 1);
    assert!(world.sent_of(CLEAN).len() < 11 * 42, "it is bounded");
    let _ = world.finish();
}

/// Found by the simulator (seed 3121): nothing of the next turn was heard.
#[test]
fn a_thread_that_may_have_been_let_go_is_resumed() {
    let mut world = Scene::new()
        .turn(1, "one")
        .descendants("l", "thr_1", EMPTY)
        .asked("c", CLEAN, "thr_1", DONE)
        .asked("k", LIST, "thr_1", EMPTY)
        .line(r#"C {"id":"$u","method":"thread/unsubscribe","params":{"threadId":"thr_1"}}"#)
        .line(r#"C {"id":"$r","method":"thread/resume","params":{"threadId":"thr_1"}}"#)
        .line(r#"S {"id":"$r","result":{"thread":{"id":"thr_1","status":{"type":"idle"}}}}"#)
        .turn(2, "two")
        .start();
    let conversation = world.open("a", Settings::new());
    let turn = world.send(conversation, "go");
    world.end_of(turn);
    world.clean_up(one(conversation), Action::Detach);
    world.note("the server never says whether it has let the thread go");
    world.run(61_000);
    assert_eq!(warnings(&world), 1);
    let turn = world.send(conversation, "more");
    world.end_of(turn);
    assert_eq!(world.sent_of("thread/resume").len(), 1);
    let _ = world.finish();
}
