//! The connection: handshake, versions, overload, the unfit one, shutting down.

use insta::assert_snapshot;
use turnkeep_core::{
    CloseReason, Command, CommandError, RawJson, Reply, Settings,
    command::{Questions, RequestEffect, ToolKind},
};
use turnkeep_tests::world::{Left, Opens, Setup, tool};

use crate::Scene;

#[test]
fn a_server_outside_the_range_is_refused_unless_that_is_allowed() {
    for (agent, any, name) in [
        ("codex/0.162.9", false, "too_old"),
        ("codex/0.172.0", false, "too_new"),
        ("codex/0.163.0-alpha.1 (x)", false, "before_its_release"),
        ("codex/0.200.0", true, "allowed"),
        ("codex", false, "without_a_version"),
        ("my app/0.171.0+build.7 (Linux; x)", false, "in_the_range"),
    ] {
        let mut world = Setup::hand()
            .config(|config| config.any_server_version = any)
            .start();
        let conversation = world.open("a", Settings::new());
        let turn = world.send(conversation, "go");
        world.say(&format!(
            r#"{{"id":1,"result":{{"userAgent":"{agent}","codexHome":"/h"}}}}"#
        ));
        let refused = world.ended(turn).is_some();
        assert_eq!(
            refused,
            !matches!(name, "allowed" | "in_the_range"),
            "{agent}"
        );
        assert_snapshot!(format!("a_server_{name}"), world.finish());
    }
}

#[test]
fn a_handshake_that_is_refused_or_makes_no_sense() {
    for (answer, name) in [
        (
            r#"{"id":1,"error":{"code":-32600,"message":"Already initialized"}}"#,
            "refused",
        ),
        (
            r#"{"id":1,"result":{"codexHome":"/h"}}"#,
            "without_an_agent",
        ),
        (r#"{"id":1}"#, "empty"),
    ] {
        let mut world = Setup::hand().start();
        let early = world.request("x", "{}", RequestEffect::Reads);
        world.say(answer);
        assert!(matches!(
            world.answer(early),
            Some(Err(CommandError::Disconnected { .. }))
        ));
        assert_snapshot!(format!("a_handshake_{name}"), world.finish());
    }
}

#[test]
fn a_connection_that_does_not_open() {
    let reason = CloseReason::NotFound(vec!["codex".into(), "codex.cmd".into()]);
    let mut world = Setup::hand().opens(Opens::Fails(reason)).start();
    let conversation = world.open("a", Settings::new());
    let refused = world.send_refused(conversation, "go");
    assert!(matches!(refused, CommandError::Disconnected { .. }));
    assert_snapshot!(world.finish());
}

#[test]
fn a_connection_that_never_opens() {
    let mut world = Setup::hand().opens(Opens::Never).start();
    let conversation = world.open("a", Settings::new());
    let turn = world.send(conversation, "go");
    world.end_of(turn);
    assert_eq!(world.elapsed(), 30_000_000);
    assert_snapshot!(world.finish());
}

#[test]
fn an_overloaded_server_is_asked_again() {
    let overloaded = |scene: Scene, n: u32| {
        scene
            .line(&format!(r#"C {{"id":"$o{n}","method":"turn/start","params":{{"threadId":"thr_1"}}}}"#))
            .line(&format!(r#"S {{"id":"$o{n}","error":{{"code":-32001,"message":"Server overloaded; retry later."}}}}"#))
    };
    let scene = overloaded(overloaded(Scene::new(), 1), 2);
    let mut world = scene.turn(1, "at last").start();
    let conversation = world.open("a", Settings::new());
    let turn = world.send(conversation, "go");
    world.end_of(turn);
    assert_snapshot!(world.finish());
}

#[test]
fn an_unfit_connection_serves_its_other_turns_and_closes() {
    let other = |line: &str| line.replace("thr_1", "thr_2").replace("trn_1", "trn_2");
    let begin = Scene::new()
        .begin(1)
        .text
        .lines()
        .skip(2)
        .map(|l| l.to_owned() + "\n")
        .collect::<String>();
    let second = other(&begin)
        .replace("$a1", "$a2")
        .replace("$i1", "$i2")
        .replace("$m1", "$m2");
    let mut world = Scene::new()
        .begin(1)
        .line(&second)
        .stop(1)
        .line("X sleep 15000")
        .line(r#"S {"method":"turn/completed","params":{"threadId":"thr_2","turn":{"id":"trn_2","status":"completed"}}}"#)
        .start();
    let (a, b) = (
        world.open("a", Settings::new()),
        world.open("b", Settings::new()),
    );
    let (one, two) = (world.send(a, "go"), world.send(b, "go"));
    let stop = world.interrupt(one);
    assert_eq!(
        world.answer_of(stop),
        Err(CommandError::InterruptUnanswered)
    );
    world.note("nothing new starts");
    let refused = world.send_refused(a, "more");
    assert!(matches!(refused, CommandError::Disconnected { .. }));
    world.end_of(two);
    world.run(0);
    assert_eq!(
        world.elapsed(),
        15_000_000,
        "closed when its other turn has ended"
    );
    assert_snapshot!(world.finish());
}

#[test]
fn an_unfit_connection_is_closed_at_the_drain_limit() {
    let begin = Scene::new()
        .begin(1)
        .text
        .lines()
        .skip(2)
        .map(|l| l.to_owned() + "\n")
        .collect::<String>();
    let second = begin.replace("thr_1", "thr_2").replace("trn_1", "trn_2");
    let second = second
        .replace("$a1", "$a2")
        .replace("$i1", "$i2")
        .replace("$m1", "$m2");
    let mut world = Scene::new()
        .begin(1)
        .line(&second)
        .stop(1)
        .line("X hang")
        .start();
    let (a, b) = (
        world.open("a", Settings::new()),
        world.open("b", Settings::new()),
    );
    let (one, two) = (world.send(a, "go"), world.send(b, "go"));
    world.interrupt(one);
    world.end_of(two);
    assert_eq!(world.elapsed(), 40_000_000);
    assert_snapshot!(world.finish());
}

#[test]
fn shutting_down_with_everything_open() {
    let mut world = Scene::new()
        .begin(1)
        .line(r#"S {"id":0,"method":"item/tool/call","params":{"threadId":"thr_1","turnId":"trn_1","callId":"c","tool":"run","arguments":{}}}"#)
        .line(r#"S {"id":1,"method":"item/fileChange/requestApproval","params":{"threadId":"thr_1","turnId":"trn_1","itemId":"f"}}"#)
        .line("X hang")
        .start();
    let settings = Settings::new()
        .tool(tool("run", ToolKind::Function))
        .questions(Questions::Ask);
    let first = world.open("a", settings);
    let one = world.send(first, "go");
    world.call(one, 1);
    world.question(one, 1);
    let second = world.open("b", Settings::new());
    world.note("a turn whose thread is not answered, a steer, an interrupt, raw requests");
    let two = world.send(second, "go");
    let waits = [
        world.steer(one, "more"),
        world.interrupt(one),
        world.request("x/read", "{}", RequestEffect::Reads),
        world.request("x/change", "{}", RequestEffect::Changes),
    ];
    world.note("shut down");
    let done = world.shut_down();
    for wait in waits {
        assert_eq!(
            world.answer(wait),
            Some(&Err(CommandError::ClosedByUs)),
            "{wait}"
        );
    }
    assert!(world.ended(one).is_some() && world.ended(two).is_some());
    let Some(Ok(Reply::ShutDown(report))) = world.answer(done) else {
        panic!("{:?}", world.answer(done))
    };
    assert_eq!((report.turns, report.calls, report.questions), (2, 1, 1));
    world.note("and again");
    world.shut_down();
    assert_snapshot!(world.finish());
}

#[test]
fn shutting_down_before_anything_is_open() {
    let mut world = Setup::hand().opens(Opens::Never).start();
    let conversation = world.open("a", Settings::new());
    let turn = world.send(conversation, "go");
    let early = world.request("x", "{}", RequestEffect::Changes);
    world.shut_down();
    assert_eq!(world.answer(early), Some(&Err(CommandError::ClosedByUs)));
    assert!(world.ended(turn).is_some());
    assert_snapshot!(world.finish());
}

/// A line end between the parts of what the application hands over would break the frame in two, and
/// the journal with it.
#[test]
fn what_is_handed_over_in_many_lines_leaves_in_one() {
    let many =
        RawJson::parse("{\n  \"threadId\": \"t\",\r\n  \"method\": \"turn/start\"\n}").unwrap();
    let settings = Settings::new().config(many.clone());
    let mut world = Setup::hand().start();
    world.say(r#"{"id":1,"result":{"userAgent":"codex/0.171.0 (x)","codexHome":"/h"}}"#);
    let conversation = world.open("a", settings.clone());
    world.ask(Command::Request {
        method: "some/thing".to_owned(),
        params: many,
        effect: RequestEffect::Changes,
    });
    let sent = world.sent_of("some/thing");
    assert_eq!(sent.len(), 1);
    assert!(!sent[0].trim_end().contains(['\n', '\r']), "{:?}", sent[0]);
    world.note("the journal reads back");
    world.crash(Left::All);
    assert_eq!(world.open("a", settings), conversation);
    let _ = world.finish();
}
