//! Sub-agents: their threads are no conversation's, and their frames touch no turn of their parents.

use insta::assert_snapshot;
use turnkeep_core::{
    QuestionId, Reply, Settings,
    command::{Answer, Children, Questions},
    event::{ConversationUpdate, Event},
};
use turnkeep_tests::world::{Peers, World};

use crate::Scene;

const CHILD: &str = r#"S {"method":"thread/started","params":{"thread":{"id":"thr_child","parentThreadId":"thr_1","status":{"type":"idle"},"turns":[]}}}"#;
const DELTA: &str = r#"S {"method":"item/agentMessage/delta","params":{"threadId":"thr_child","turnId":"trn_x","itemId":"it_x","delta":"sum"}}"#;
const ITEM: &str = r#"S {"method":"item/completed","params":{"threadId":"thr_child","turnId":"trn_x","item":{"type":"agentMessage","id":"it_x","text":"summary","phase":"final_answer"}}}"#;
const ASKS: &str = r#"S {"id":14,"method":"item/commandExecution/requestApproval","params":{"threadId":"thr_child","turnId":"trn_x","itemId":"it_y","startedAtMs":1,"command":"make","cwd":"/w","availableDecisions":["accept","decline","cancel"]}}"#;
const RESOLVED: &str =
    r#"S {"method":"serverRequest/resolved","params":{"threadId":"thr_child","requestId":14}}"#;
const END: &str = r#"S {"method":"turn/completed","params":{"threadId":"thr_child","turn":{"id":"trn_x","items":[],"status":"completed","error":null}}}"#;

fn tells() -> Settings {
    Settings::new()
        .children(Children::Tell)
        .questions(Questions::Ask)
}

/// The last question of a sub-agent that was asked.
fn asked(world: &World) -> QuestionId {
    let mut all = world.events().iter().rev();
    all.find_map(|event| match event {
        Event::Conversation(event) => match &event.update {
            ConversationUpdate::ChildQuestion { question, .. } => Some(question.id),
            _ => None,
        },
        _ => None,
    })
    .expect("a sub-agent asked")
}

fn whose(scene: Scene, thread: &str, parent: &str) -> Scene {
    scene.answer(
        "thread/read",
        &format!(r#""threadId":"{thread}","includeTurns":false"#),
        &format!(
            r#""result":{{"thread":{{"id":"{thread}","parentThreadId":{parent},"turns":[]}}}}"#
        ),
    )
}

#[test]
fn a_sub_agent_is_told_of_where_that_was_asked_for() {
    let scene = Scene::new()
        .begin(1)
        .line(CHILD)
        .line(DELTA)
        .line(ITEM)
        .line(ASKS)
        .line(r#"C {"id":14,"result":{"decision":"accept"}}"#)
        .line(RESOLVED)
        .line(END)
        .say(1, "parent answer")
        .end(1, "completed");
    let mut world = scene.start();
    let conversation = world.open("a", tells());
    let turn = world.send(conversation, "go");
    let answer = world.reply(asked(&world), Answer::Accept);
    assert_eq!(world.answer(answer), Some(&Ok(Reply::Done)));
    assert_eq!(world.end_of(turn).text.as_deref(), Some("parent answer"));
    assert_snapshot!(world.finish());
}

#[test]
fn a_sub_agent_that_was_not_announced_is_asked_about_once() {
    let scene = Scene::new().begin(1).line(ITEM).line(ASKS).line(DELTA);
    let scene = whose(scene, "thr_child", r#""thr_1""#)
        .line(r#"C {"id":14,"result":{"decision":"decline"}}"#)
        .line(RESOLVED)
        .line(r#"S {"method":"thread/started","params":{"thread":{"id":"thr_grandchild","parentThreadId":"thr_child"}}}"#)
        .line(END)
        .say(1, "parent answer")
        .end(1, "completed");
    let mut world = scene.start();
    let conversation = world.open("a", tells());
    let turn = world.send(conversation, "go");
    world.log_from_here();
    world.reply(asked(&world), Answer::Decline);
    world.end_of(turn);
    let told = world.events().iter().filter(|event| match event {
        Event::Conversation(event) => {
            matches!(event.update, ConversationUpdate::ChildFrame { .. })
        }
        _ => false,
    });
    assert_eq!(
        told.count(),
        4,
        "two that were kept, the grandchild's and the end"
    );
    assert_eq!(world.sent_of("thread/read").len(), 1);
    assert_snapshot!(world.finish());
}

#[test]
fn a_thread_of_nobody_is_told_as_what_it_is() {
    for (parent, name) in [
        ("null", "without_a_parent"),
        (r#""thr_9""#, "of_other_parents"),
    ] {
        let scene = Scene::new().begin(1).line(ITEM).line(ASKS);
        let scene = whose(scene, "thr_child", parent)
            .line(r#"C {"id":14,"result":{"decision":"decline"}}"#)
            .line(ITEM)
            .end(1, "completed");
        let mut world = scene.start();
        let conversation = world.open("a", tells());
        let turn = world.send(conversation, "go");
        world.end_of(turn);
        let counters = world.machine().counters();
        assert_eq!((counters.foreign_frames, counters.child_frames), (2, 0));
        assert_eq!(world.sent_of("thread/read").len(), 1);
        assert_snapshot!(format!("a_thread_{name}"), world.finish());
    }
}

#[test]
fn what_cannot_be_asked_is_nobodys() {
    let refused = r#""error":{"code":-32600,"message":"thread not loaded: thr_child"}"#;
    let scene = Scene::new()
        .begin(1)
        .line(ASKS)
        .answer("thread/read", "", refused)
        .line(r#"C {"id":14,"result":{"decision":"decline"}}"#)
        .end(1, "completed");
    let mut world = scene.start();
    let conversation = world.open("a", tells());
    let turn = world.send(conversation, "go");
    world.end_of(turn);
    let _ = world.finish();
}

#[test]
fn a_call_of_a_sub_agent_fails() {
    let call = r#"S {"id":3,"method":"item/tool/call","params":{"threadId":"thr_child","turnId":"trn_x","callId":"c","tool":"look","arguments":{}}}"#;
    let scene = Scene::new()
        .begin(1)
        .line(CHILD)
        .line(call)
        .line(r#"C {"id":3,"result":{"success":false}}"#)
        .end(1, "completed");
    let mut world = scene.start();
    let conversation = world.open("a", tells());
    let turn = world.send(conversation, "go");
    world.log_from_here();
    world.end_of(turn);
    let _ = world.finish();
}

#[test]
fn a_question_of_a_sub_agent_outlives_its_connection() {
    let scene = Scene::new()
        .begin(1)
        .line(CHILD)
        .line(ASKS)
        .line("X sleep 5\nX close stdout")
        .next_life()
        .resume("active")
        .line(ASKS)
        .history(&[crate::past(1, "inProgress", &[crate::own("m1")])]);
    let scene = whose(scene, "thr_child", r#""thr_1""#)
        .line(r#"C {"id":14,"result":{"decision":"accept"}}"#)
        .line(RESOLVED)
        .end(1, "completed");
    let mut world = scene.setup().reconnects().peers(Peers::Socket).start();
    let conversation = world.open("a", tells());
    let turn = world.send(conversation, "go");
    world.run(6);
    let first = asked(&world);
    world.log_from_here();
    world.reply(first, Answer::Accept);
    world.end_of(turn);
    assert_eq!(asked(&world), first, "it is asked once");
    assert_snapshot!(world.finish());
}

#[test]
fn shutting_down_answers_the_questions_of_sub_agents() {
    let scene = Scene::new()
        .begin(1)
        .line(CHILD)
        .line(ASKS)
        .line(r#"C {"id":14,"result":{"decision":"decline"}}"#);
    let mut world = scene.start();
    let conversation = world.open("a", tells());
    world.send(conversation, "go");
    world.log_from_here();
    let down = world.shut_down();
    let Some(Ok(Reply::ShutDown(report))) = world.answer(down) else {
        panic!("it was not shut down")
    };
    assert_eq!(report.questions, 1);
    assert_eq!(world.machine().durable().questions().count(), 0);
    assert_snapshot!(world.finish());
}

#[test]
fn threads_of_nobody_leave_room_for_sub_agents() {
    let other = r#"S {"method":"thread/started","params":{"thread":{"id":"thr_of_nobody_${i}"}}}"#;
    let scene = Scene::new()
        .begin(1)
        .line("X repeat 1500")
        .line(other)
        .line("X end")
        .line(CHILD)
        .line(ITEM)
        .end(1, "completed");
    let mut world = scene.start();
    let conversation = world.open("a", tells());
    let turn = world.send(conversation, "go");
    world.end_of(turn);
    let counters = world.machine().counters();
    assert_eq!((counters.foreign_frames, counters.child_frames), (1_500, 2));
    assert!(world.sent_of("thread/read").is_empty());
    let _ = world.finish();
}
