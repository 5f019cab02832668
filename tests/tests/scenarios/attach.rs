//! Settings that only an attach applies: the thread is let go, and resumed with them.

use insta::assert_snapshot;
use serde_json::{Value, json};
use turnkeep_core::{
    CommandError, Event, Outcome, Reply, Settings,
    command::{ApprovalPolicy, Command, Differences, Sandbox},
    event::{ConversationUpdate, Rejection},
};

use crate::{
    Scene,
    talk::{LEFT, Talk, said, tools},
};

fn before() -> Settings {
    tools()
        .cwd("/w")
        .approval_policy(ApprovalPolicy::Untrusted)
        .sandbox(Sandbox::ReadOnly)
        .base_instructions("be slow")
}

fn after() -> Settings {
    tools()
        .cwd("/v")
        .approval_policy(ApprovalPolicy::Never)
        .sandbox(Sandbox::WorkspaceWrite)
        .base_instructions("be quick")
}

/// Has had a round.
fn talked(settings: Settings) -> Talk {
    let mut talk = Talk::lasting(settings);
    talk.accept([said("one")]);
    talk.take();
    talk.complete("first");
    talk
}

fn change(talk: &mut Talk, settings: Settings) -> Result<Reply, CommandError> {
    let (conversation, settings) = (talk.conversation, Box::new(settings));
    talk.done(Command::Change {
        conversation,
        settings,
    })
}

/// What the last resume says of the settings.
fn said_last(talk: &Talk) -> Value {
    let all = talk.sent_of("thread/resume");
    let frame: Value = serde_json::from_str(all.last().unwrap()).unwrap();
    let params = frame["params"].as_object().unwrap();
    assert_eq!(params["threadId"], "thr_1");
    let said = params.iter().filter(|(name, _)| *name != "threadId");
    said.map(|(name, value)| (name.clone(), value.clone()))
        .collect()
}

/// All that is said once they have changed.
fn everything() -> Value {
    json!({
        "excludeTurns": true, "approvalPolicy": "never", "sandbox": "workspace-write", "cwd": "/v",
        "baseInstructions": "be quick",
    })
}

/// The next round goes on the same thread, which was resumed with all that has changed.
fn goes_on(talk: &mut Talk, text: &str) {
    talk.send(text);
    talk.settle();
    assert_eq!(talk.take(), [text]);
    assert_eq!(talk.thread(), "thr_1");
    assert_eq!(said_last(talk), everything());
    talk.complete("done");
}

#[test]
fn a_loaded_thread_is_let_go_and_resumed_with_them() {
    let mut talk = talked(before());
    assert_eq!(change(&mut talk, after()), Ok(Reply::Done));
    assert_eq!(talk.sent_of("thread/unsubscribe").len(), 1);
    talk.settle();
    assert!(talk.sent_of("thread/resume").is_empty(), "only when needed");
    goes_on(&mut talk, "two");
    talk.note("the server does not remember them all: each resume says them");
    talk.kill_server();
    goes_on(&mut talk, "three");
    assert_eq!(talk.sent_of("thread/resume").len(), 2);
    assert_snapshot!(talk.finish());
}

#[test]
fn what_has_not_changed_is_not_said_where_that_would_load_the_thread_anew() {
    let mut talk = talked(before());
    let settings = before().approval_policy(ApprovalPolicy::Never);
    assert_eq!(change(&mut talk, settings), Ok(Reply::Done));
    talk.send("two");
    assert_eq!(talk.take(), ["two"]);
    let said = json!({ "excludeTurns": true, "approvalPolicy": "never", "sandbox": "read-only" });
    assert_eq!(said_last(&talk), said);
    talk.complete("done");
    let _ = talk.finish();
}

#[test]
fn a_thread_that_the_server_let_go_is_only_resumed() {
    let mut talk = talked(before());
    talk.let_go();
    assert_eq!(change(&mut talk, after()), Ok(Reply::Done));
    goes_on(&mut talk, "two");
    assert!(talk.sent_of("thread/unsubscribe").is_empty());
    let _ = talk.finish();
}

#[test]
fn without_a_connection_the_next_one_resumes_with_them() {
    let mut talk = talked(before());
    talk.lose_connection();
    assert_eq!(change(&mut talk, after()), Ok(Reply::Done));
    goes_on(&mut talk, "two");
    assert!(talk.sent_of("thread/unsubscribe").is_empty());
    let _ = talk.finish();
}

#[test]
fn a_crash_before_the_resume_forgets_none_of_them() {
    for left in LEFT {
        let mut talk = talked(before());
        assert_eq!(change(&mut talk, after()), Ok(Reply::Done));
        talk.crash(left);
        goes_on(&mut talk, "two");
        talk.crash(left);
        goes_on(&mut talk, "three");
        let _ = talk.finish();
    }
}

#[test]
fn they_change_between_rounds_only() {
    let mut talk = talked(before());
    talk.send("two");
    let busy = change(&mut talk, after());
    assert!(matches!(busy, Err(CommandError::Busy { .. })), "{busy:?}");
    talk.take();
    let busy = change(&mut talk, after());
    assert!(matches!(busy, Err(CommandError::Busy { .. })), "{busy:?}");
    talk.complete("second");
    assert_eq!(change(&mut talk, after()), Ok(Reply::Done));
    goes_on(&mut talk, "three");
    let _ = talk.finish();
}

#[test]
fn what_no_resume_can_say_takes_another_thread() {
    let mut no_policy = after();
    no_policy.approval_policy = None;
    for settings in [no_policy, after().developer_instructions("be kind")] {
        let mut talk = talked(before());
        assert_eq!(change(&mut talk, after()), Ok(Reply::Done));
        goes_on(&mut talk, "two");
        assert_eq!(change(&mut talk, settings), Ok(Reply::Done));
        talk.send("more");
        talk.settle();
        let text = talk.take().concat();
        assert!(text.contains("one") && text.contains("two"), "{text}");
        assert_eq!(talk.thread(), "thr_2");
        talk.complete("second");
        talk.note("which is made with what was changed: a resume need not say it");
        talk.kill_server();
        talk.send("three");
        talk.settle();
        assert_eq!(talk.take(), ["three"]);
        let resume = talk.sent_of("thread/resume").pop().unwrap();
        assert!(
            resume.contains("thr_2") && !resume.contains("cwd"),
            "{resume}"
        );
        talk.complete("third");
        let _ = talk.finish();
    }
}

#[test]
fn a_thread_that_is_not_stored_is_replaced() {
    let mut talk = Talk::lasting(before());
    talk.accept([said("one")]);
    talk.refuse_start("no");
    assert_eq!(talk.dismiss(), Ok(Reply::Done));
    assert_eq!(change(&mut talk, after()), Ok(Reply::Done));
    talk.send("two");
    talk.settle();
    talk.take();
    assert_eq!(talk.thread(), "thr_2");
    assert!(talk.sent_of("thread/resume").is_empty());
    talk.complete("second");
    let _ = talk.finish();
}

/// Somebody else has the thread loaded: the server resumes it as it is.
fn unmoved() -> Scene {
    let told = r#""result":{"thread":{"id":"thr_1","status":{"type":"idle"}},"approvalPolicy":"untrusted"}"#;
    Scene::new()
        .turn(1, "ok")
        .line("X auto threads unsubscribe names")
        .answer(
            "thread/resume",
            r#""threadId":"thr_1","approvalPolicy":"never","cwd":"!absent","baseInstructions":"!absent""#,
            told,
        )
}

#[test]
fn a_server_that_keeps_what_it_has_is_told_before_the_next_message() {
    for differences in [Differences::Tell, Differences::Refuse] {
        let own = || Settings::new().differences(differences);
        let mut scene = unmoved();
        if differences == Differences::Tell {
            scene = scene.turn(2, "ok");
        }
        let mut world = scene.start();
        let settings = own().approval_policy(ApprovalPolicy::Untrusted);
        let conversation = world.open("a", settings);
        let turn = world.send(conversation, "one");
        world.end_of(turn);
        let settings = own().approval_policy(ApprovalPolicy::Never);
        let changed = world.change(conversation, settings);
        assert_eq!(world.answer_of(changed), Ok(Reply::Done));
        let turn = world.send(conversation, "two");
        let end = world.end_of(turn);
        let refused = matches!(
            end.outcome,
            Outcome::Rejected {
                error: Rejection::Differs(_)
            }
        );
        assert_eq!(refused, differences == Differences::Refuse, "{end:?}");
        let told = world.events().iter().filter(|event| match event {
            Event::Conversation(about) => {
                matches!(&about.update, ConversationUpdate::Differs { difference } if difference.field == "approvalPolicy")
            }
            _ => false,
        });
        assert_eq!(told.count(), 1);
        assert!(world.is_played());
        let _ = world.finish();
    }
}
