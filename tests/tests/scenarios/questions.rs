//! Questions of the server.

use insta::assert_snapshot;
use turnkeep_core::{
    CommandError, Outcome, Settings,
    command::{Answer, Questions},
};
use turnkeep_tests::world::json;

use crate::Scene;

fn ask(scene: Scene, id: u32, method: &str, rest: &str) -> Scene {
    scene.line(&format!(
        r#"S {{"id":{id},"method":"{method}","params":{{"threadId":"thr_1","turnId":"trn_1","itemId":"i{id}"{rest}}}}}"#
    ))
}

fn resolved(scene: Scene, id: u32) -> Scene {
    scene.notify("serverRequest/resolved", &format!(r#""requestId":{id}"#))
}

const COMMAND: &str = "item/commandExecution/requestApproval";
const OFFERS: &str = r#","command":"rm x","cwd":"/w","approvalId":"ap","availableDecisions":["accept",{"acceptWithExecpolicyAmendment":{"execpolicy_amendment":["rm"]}},"decline","cancel"]"#;

#[test]
fn questions_of_every_kind_are_asked_and_answered() {
    let scene = Scene::new().begin(1);
    let scene = ask(scene, 0, COMMAND, OFFERS)
        .line(r#"C {"id":0,"result":{"decision":{"acceptWithExecpolicyAmendment":{"execpolicy_amendment":["rm"]}}}}"#);
    let scene = resolved(scene, 0);
    let scene = ask(
        scene,
        1,
        "item/fileChange/requestApproval",
        r#","reason":"r""#,
    )
    .line(r#"C {"id":1,"result":{"decision":"acceptForSession"}}"#);
    let scene = resolved(scene, 1);
    let scene = ask(
        scene,
        2,
        "item/permissions/requestApproval",
        r#","permissions":{"network":{"enabled":true}}"#,
    )
    .line(r#"C {"id":2,"result":{"permissions":{"network":{"enabled":true}},"scope":"turn"}}"#);
    let scene = resolved(scene, 2);
    let scene = ask(
        scene,
        3,
        "item/tool/requestUserInput",
        r#","questions":[{"id":"q","header":"h","question":"?","options":[{"label":"yes"}]}]"#,
    )
    .line(r#"C {"id":3,"result":{"answers":{"q":{"answers":["yes"]}}}}"#);
    let scene = resolved(scene, 3);
    let scene = ask(
        scene,
        4,
        "mcpServer/elicitation/request",
        r#","serverName":"s","mode":"form","message":"m","requestedSchema":{"type":"object"}"#,
    )
    .line(r#"C {"id":4,"result":{"action":"accept","content":{"a":1}}}"#);
    let scene = resolved(scene, 4);
    let mut world = scene.say(1, "ok").end(1, "completed").start();
    let conversation = world.open("a", Settings::new().questions(Questions::Ask));
    let turn = world.send(conversation, "go");
    let refused = |world: &mut turnkeep_tests::world::World, id, answer| {
        let command = world.reply(id, answer);
        let answer = world.answer(command).unwrap();
        assert!(
            matches!(answer, Err(CommandError::BadAnswer { .. })),
            "{answer:?}"
        );
    };
    let q = world.question(turn, 1);
    refused(&mut world, q.id, Answer::AcceptForSession);
    refused(
        &mut world,
        q.id,
        Answer::Decision(json(
            r#"{"acceptWithExecpolicyAmendment":{"execpolicy_amendment":["ls"]}}"#,
        )),
    );
    refused(&mut world, q.id, Answer::Input(vec![]));
    world.reply(
        q.id,
        Answer::Decision(json(
            r#"{"acceptWithExecpolicyAmendment": {"execpolicy_amendment": ["rm"]}}"#,
        )),
    );
    let q = world.question(turn, 2);
    refused(&mut world, q.id, Answer::Form(json("{}")));
    world.reply(q.id, Answer::AcceptForSession);
    let q = world.question(turn, 3);
    refused(
        &mut world,
        q.id,
        Answer::Permissions(json(
            r#"{"network":{"enabled":true},"fileSystem":{"write":["/"]}}"#,
        )),
    );
    world.reply(q.id, Answer::Accept);
    let q = world.question(turn, 4);
    refused(
        &mut world,
        q.id,
        Answer::Input(vec![("other".into(), vec!["yes".into()])]),
    );
    world.reply(q.id, Answer::Input(vec![("q".into(), vec!["yes".into()])]));
    let q = world.question(turn, 5);
    refused(&mut world, q.id, Answer::Form(json("[1]")));
    world.reply(q.id, Answer::Form(json(r#"{"a":1}"#)));
    world.end_of(turn);
    assert!(world.is_played());
    assert_snapshot!(world.finish());
}

#[test]
fn questions_that_nobody_asked_for_are_declined() {
    let scene = ask(Scene::new().begin(1), 0, COMMAND, OFFERS)
        .line(r#"C {"id":0,"result":{"decision":"decline"}}"#);
    let mut world = resolved(scene, 0)
        .say(1, "without it")
        .end(1, "completed")
        .start();
    let conversation = world.open("a", Settings::new());
    let turn = world.send(conversation, "go");
    world.end_of(turn);
    assert_snapshot!(world.finish());
}

#[test]
fn a_question_that_is_answered_with_cancel_ends_its_turn() {
    let scene = ask(Scene::new().begin(1), 0, COMMAND, OFFERS)
        .line(r#"C {"id":0,"result":{"decision":"cancel"}}"#);
    let mut world = resolved(scene, 0).end(1, "interrupted").start();
    let conversation = world.open("a", Settings::new().questions(Questions::Ask));
    let turn = world.send(conversation, "go");
    let question = world.question(turn, 1);
    assert!(question.dismissable);
    world.reply(question.id, Answer::Cancel);
    assert_eq!(world.end_of(turn).outcome, Outcome::Interrupted);
    assert_snapshot!(world.finish());
}

#[test]
fn a_cancel_that_the_server_does_not_heed_leaves_the_interrupt() {
    let scene = ask(Scene::new().begin(1), 0, COMMAND, OFFERS)
        .line(r#"C {"id":0,"result":{"decision":"cancel"}}"#);
    let mut world = resolved(scene, 0).say(1, "on we go").interrupted(1).start();
    let conversation = world.open("a", Settings::new().questions(Questions::Ask));
    let turn = world.send(conversation, "go");
    let question = world.question(turn, 1);
    world.reply(question.id, Answer::Cancel);
    let stop = world.interrupt(turn);
    assert_eq!(world.answer_of(stop), Ok(turnkeep_core::Reply::Interrupted));
    assert_eq!(world.elapsed(), 0);
    assert_snapshot!(world.finish());
}

#[test]
fn a_question_that_is_withdrawn_is_not_answered_any_more() {
    let scene = ask(Scene::new().begin(1), 0, COMMAND, OFFERS).line("X sleep 5");
    let mut world = resolved(scene, 0).say(1, "ok").end(1, "completed").start();
    let conversation = world.open("a", Settings::new().questions(Questions::Ask));
    let turn = world.send(conversation, "go");
    let question = world.question(turn, 1);
    world.run(5);
    let late = world.reply(question.id, Answer::Accept);
    assert!(matches!(
        world.answer(late),
        Some(Err(CommandError::UnknownQuestion { .. }))
    ));
    world.end_of(turn);
    assert_snapshot!(world.finish());
}

#[test]
fn a_question_that_resolves_itself() {
    let rest = r#","autoResolutionMs":400,"questions":[{"id":"q","header":"h","question":"?"}]"#;
    let scene = ask(Scene::new().begin(1), 0, "item/tool/requestUserInput", rest)
        .line(r#"C {"id":0,"result":{"answers":{}}}"#);
    let mut world = resolved(scene, 0).say(1, "ok").end(1, "completed").start();
    let conversation = world.open("a", Settings::new().questions(Questions::Ask));
    let turn = world.send(conversation, "go");
    world.end_of(turn);
    assert_snapshot!(world.finish());
}

#[test]
fn a_replay_is_the_same_question_and_an_id_in_use_is_not_answered() {
    let scene = ask(Scene::new().begin(1), 0, COMMAND, OFFERS);
    let scene = ask(scene, 0, COMMAND, OFFERS);
    let other = OFFERS.replace("\"ap\"", "\"other\"");
    let scene = ask(scene, 0, COMMAND, &other).line(r#"C {"id":0,"result":{"decision":"accept"}}"#);
    let mut world = resolved(scene, 0).say(1, "ok").end(1, "completed").start();
    let conversation = world.open("a", Settings::new().questions(Questions::Ask));
    let turn = world.send(conversation, "go");
    let question = world.question(turn, 1);
    assert_eq!(world.questions(turn).len(), 1);
    world.reply(question.id, Answer::Accept);
    world.end_of(turn);
    assert_eq!(world.machine().counters().duplicate_frames, 1);
    assert_snapshot!(world.finish());
}
