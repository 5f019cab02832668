//! What the server does on its own: turns nobody asked for, early frames, ends that never come, odd responses.

use insta::assert_snapshot;
use turnkeep_core::{
    CommandError, Outcome, Settings, TurnNo,
    command::{RefusalClass, RequestEffect},
    event::EndSource,
};
use turnkeep_tests::world::{Setup, World};

use crate::Scene;

#[test]
fn a_turn_of_the_servers_own() {
    let mut world = Scene::new()
        .turn(1, "one")
        .started(2)
        .say(2, "by myself")
        .idle()
        .end(2, "completed")
        .start();
    let conversation = world.open("a", Settings::new());
    let turn = world.send(conversation, "go");
    world.end_of(turn);
    world.end_of(TurnNo(2));
    assert_snapshot!(world.finish());
}

#[test]
fn a_message_that_is_folded_into_a_running_turn() {
    let mut world = Scene::new()
        .turn(1, "one")
        .started(2)
        .say(2, "not for us")
        .line(r#"C {"id":"$a","method":"turn/start","params":{"threadId":"thr_1","input":"$i","clientUserMessageId":"$m"}}"#)
        .line(r#"S {"id":"$a","result":{"turn":{"id":"trn_2","items":[],"status":"inProgress","error":null}}}"#)
        .item(2, r#""type":"userMessage","id":"u","clientId":"$m","content":"$i""#)
        .item(2, r#""type":"agentMessage","id":"last","text":"for us","phase":"final_answer""#)
        .end(2, "completed")
        .start();
    let conversation = world.open("a", Settings::new());
    let first = world.send(conversation, "go");
    world.end_of(first);
    let turn = world.send(conversation, "more");
    let end = world.end_of(turn);
    assert_eq!(end.text.as_deref(), Some("for us"));
    assert_snapshot!(world.finish());
}

#[test]
fn a_phantom_id_is_never_interrupted_or_steered() {
    let mut world = Scene::new()
        .turn(1, "one")
        .started(2)
        .line(r#"C {"id":"$a","method":"turn/start","params":{"threadId":"thr_1","input":"$i","clientUserMessageId":"$m"}}"#)
        .line(r#"S {"id":"$a","result":{"turn":{"id":"trn_ghost","items":[],"status":"inProgress","error":null}}}"#)
        .line("X sleep 20")
        .item(2, r#""type":"userMessage","id":"u","clientId":"$m","content":"$i""#)
        .steer(2)
        .line(r#"S {"id":"$st","result":{"turnId":"trn_2"}}"#)
        .item(2, r#""type":"userMessage","id":"us","clientId":"$sm","content":"$si""#)
        .interrupted(2)
        .start();
    let conversation = world.open("a", Settings::new());
    let first = world.send(conversation, "go");
    world.end_of(first);
    let turn = world.send(conversation, "more");
    world.note("nothing is sent before a frame says which turn took the message");
    world.steer(turn, "and this");
    assert!(world.sent_of("turn/steer").is_empty());
    world.run(20);
    let stop = world.interrupt(turn);
    world.answer_of(stop).unwrap();
    assert!(world.is_played());
    assert!(!world.sent().join("\n").contains("trn_ghost"));
    assert_snapshot!(world.finish());
}

#[test]
fn a_phantom_id_that_nothing_confirms_ends_by_the_history() {
    let mut world = Scene::new()
        .turn(1, "one")
        .started(2)
        .line(r#"C {"id":"$a","method":"turn/start","params":{"threadId":"thr_1"}}"#)
        .line(r#"S {"id":"$a","result":{"turn":{"id":"trn_ghost","items":[],"status":"inProgress","error":null}}}"#)
        .start();
    let conversation = world.open("a", Settings::new());
    let first = world.send(conversation, "go");
    world.end_of(first);
    let turn = world.send(conversation, "more");
    let stop = world.interrupt(turn);
    let end = world.end_of(turn);
    assert!(matches!(end.outcome, Outcome::Unknown { .. }), "{end:?}");
    assert!(world.answer(stop).is_some());
    assert_eq!(world.elapsed(), 10_000_000);
    assert_snapshot!(world.finish());
}

#[test]
fn early_frames_are_kept_in_order() {
    let mut world = Scene::new()
        .line(r#"C {"id":"$a","method":"turn/start","params":{"threadId":"thr_1","input":"$i1","clientUserMessageId":"$m1"}}"#)
        .started(1)
        .recorded(1)
        .line(r#"S {"method":"item/agentMessage/delta","params":{"threadId":"thr_1","turnId":"trn_1","itemId":"it_1","delta":"he"}}"#)
        .line(r#"S {"method":"item/agentMessage/delta","params":{"threadId":"thr_1","turnId":"trn_1","itemId":"it_1","delta":"llo"}}"#)
        .line("X sleep 5")
        .line(r#"S {"id":"$a","result":{"turn":{"id":"trn_1","items":[],"status":"inProgress","error":null}}}"#)
        .say(1, "hello")
        .end(1, "completed")
        .start();
    let conversation = world.open("a", Settings::new());
    let turn = world.send(conversation, "go");
    world.end_of(turn);
    assert_snapshot!(world.finish());
}

#[test]
fn too_many_early_frames_end_their_turn_and_no_other() {
    let mut world = Setup::hand()
        .config(|config| config.limits.early_frames = 3)
        .start();
    world.say(r#"{"id":1,"result":{"userAgent":"codex/0.171.0 (x)"}}"#);
    let (a, b) = (
        world.open("a", Settings::new()),
        world.open("b", Settings::new()),
    );
    let one = world.send(a, "go");
    world.say(r#"{"id":2,"result":{"thread":{"id":"thr_1"}}}"#);
    let two = world.send(b, "go");
    world.say(r#"{"id":4,"result":{"thread":{"id":"thr_2"}}}"#);
    for n in 0..4 {
        world.say(&format!(
            r#"{{"method":"item/agentMessage/delta","params":{{"threadId":"thr_1","turnId":"trn_1","itemId":"i","delta":"{n}"}}}}"#
        ));
    }
    world.note("a call past the limit is refused at once");
    world.say(r#"{"id":0,"method":"item/tool/call","params":{"threadId":"thr_1","turnId":"trn_1","callId":"c","tool":"x","arguments":{}}}"#);
    world.say(r#"{"id":3,"result":{"turn":{"id":"trn_1"}}}"#);
    assert!(matches!(
        world.ended(one).unwrap().outcome,
        Outcome::Failed { .. }
    ));
    assert_eq!(world.sent_of("turn/interrupt").len(), 1);
    assert_eq!(world.ended(two), None);
    assert_snapshot!(world.finish());
}

#[test]
fn an_end_that_never_came_is_read_from_the_history() {
    let mut world = Scene::new()
        .begin(1)
        .idle()
        .line(r#"C {"id":"$r","method":"thread/turns/list","params":{"threadId":"thr_1"}}"#)
        .line(r#"S {"id":"$r","result":{"data":[{"id":"trn_1","status":"completed","error":null,"itemsView":"summary","items":[{"type":"agentMessage","id":"i","text":"by the book","phase":"final_answer"}]}],"nextCursor":null}}"#)
        .line("X sleep 10")
        .end(1, "completed")
        .start();
    let conversation = world.open("a", Settings::new());
    let turn = world.send(conversation, "go");
    let end = world.end_of(turn);
    assert_eq!(
        (end.source, end.text.as_deref()),
        (EndSource::Reconciled, Some("by the book"))
    );
    world.note("the real one comes later: a duplicate");
    world.run(10);
    assert_eq!(world.machine().counters().late_frames, 1);
    assert_snapshot!(world.finish());
}

#[test]
fn an_end_that_never_came_is_looked_for_on_every_page() {
    let mut world = Scene::new()
        .begin(1)
        .idle()
        .line(r#"C {"id":"$r","method":"thread/turns/list","params":{"threadId":"thr_1","cursor":"!absent"}}"#)
        .line(r#"S {"id":"$r","result":{"data":[{"id":"trn_9","status":"completed","items":[]}],"nextCursor":"{\"page\":2}"}}"#)
        .line(r#"C {"id":"$q","method":"thread/turns/list","params":{"threadId":"thr_1","cursor":"{\"page\":2}"}}"#)
        .line(r#"S {"id":"$q","result":{"data":[{"id":"trn_1","status":"interrupted","items":[]}],"nextCursor":null}}"#)
        .start();
    let conversation = world.open("a", Settings::new());
    let turn = world.send(conversation, "go");
    let end = world.end_of(turn);
    assert_eq!(
        (end.source, end.outcome),
        (EndSource::Reconciled, Outcome::Interrupted)
    );
    assert_eq!(world.sent_of("thread/turns/list").len(), 2);
    let _ = world.finish();
}

#[test]
fn a_repeated_cursor_ends_the_search() {
    let mut world = Scene::new()
        .begin(1)
        .idle()
        .line(r#"C {"id":"$r","method":"thread/turns/list"}"#)
        .line(r#"S {"id":"$r","result":{"data":[],"nextCursor":"again"}}"#)
        .line(r#"C {"id":"$q","method":"thread/turns/list"}"#)
        .line(r#"S {"id":"$q","result":{"data":[],"nextCursor":"again"}}"#)
        .start();
    let conversation = world.open("a", Settings::new());
    let turn = world.send(conversation, "go");
    let end = world.end_of(turn);
    assert!(matches!(end.outcome, Outcome::Unknown { .. }), "{end:?}");
    assert_eq!(world.sent_of("thread/turns/list").len(), 2);
    let _ = world.finish();
}

#[test]
fn a_closing_thread_is_tried_again() {
    let refuse = r#"S {"id":"$t","error":{"code":-32600,"message":"thread thr_1 is closing; retry after the thread is closed"}}"#;
    let mut world = Scene::new()
        .line("X auto threads")
        .line(r#"C {"id":"$t","method":"turn/start"}"#)
        .line(refuse)
        .line(r#"C {"id":"$u","method":"turn/start"}"#)
        .line(r#"S {"id":"$u","result":{"turn":{"id":"trn_1","items":[],"status":"inProgress","error":null}}}"#)
        .end(1, "completed")
        .start();
    let conversation = world.open("a", Settings::new());
    let turn = world.send(conversation, "go");
    let end = world.end_of(turn);
    assert!(matches!(end.outcome, Outcome::Completed { .. }), "{end:?}");
    assert_eq!(world.sent_of("turn/start").len(), 2);
    let _ = world.finish();
}

#[test]
fn an_end_within_the_grace_is_the_end_and_nothing_is_read() {
    let mut world = Scene::new()
        .begin(1)
        .idle()
        .line("X sleep 4999")
        .end(1, "completed")
        .start();
    let conversation = world.open("a", Settings::new());
    let turn = world.send(conversation, "go");
    assert_eq!(world.end_of(turn).source, EndSource::Live);
    world.run(60_000);
    assert!(world.sent_of("thread/turns/list").is_empty());
    let _ = world.finish();
}

#[test]
fn a_history_that_cannot_tell_is_unknown() {
    for (answer, name) in [
        (r#""result":{"data":[],"nextCursor":null}"#, "is_empty"),
        (
            r#""result":{"data":[{"id":"trn_1","status":"inProgress","items":[]}]}"#,
            "says_it_runs",
        ),
        (r#""result":{"turns":5}"#, "is_malformed"),
        (
            r#""error":{"code":-32601,"message":"list_turns is not supported yet"}"#,
            "is_refused",
        ),
    ] {
        let mut world = Scene::new()
            .begin(1)
            .say(1, "so far")
            .idle()
            .line(r#"C {"id":"$r","method":"thread/turns/list"}"#)
            .line(&format!(r#"S {{"id":"$r",{answer}}}"#))
            .start();
        let conversation = world.open("a", Settings::new());
        let turn = world.send(conversation, "go");
        let end = world.end_of(turn);
        assert!(
            matches!(end.outcome, Outcome::Unknown { .. }),
            "{name}: {end:?}"
        );
        assert_eq!(end.text.as_deref(), Some("so far"));
        let ended: Vec<String> = world
            .told()
            .into_iter()
            .filter(|t| t.contains("\"Ended\""))
            .collect();
        assert_snapshot!(format!("a_history_that_{name}"), ended.join("\n"));
        let _ = world.finish();
    }
}

#[test]
fn raw_requests() {
    let mut world = Scene::new()
        .line(r#"C {"id":"$a","method":"x/read","params":{"q":1}}"#)
        .line(r#"S {"id":"$a","result":{"z":1, "a":[1.0]}}"#)
        .line(r#"C {"id":"$b","method":"x/change","params":{}}"#)
        .line(r#"S {"id":"$b","error":{"code":-32603,"message":"no","data":{"why":1}}}"#)
        .line(r#"C {"id":"$c","method":"no/such","params":null}"#)
        .line(r#"S {"error":{"code":-32600,"message":"Invalid request: unknown variant `no/such`, expected one of `initialize`, `x`"},"id":"$c"}"#)
        .start();
    world.request("x/read", r#"{"q":1}"#, RequestEffect::Reads);
    world.request("x/change", "{}", RequestEffect::Changes);
    for _ in 0..2 {
        let unknown = world.request("no/such", "null", RequestEffect::Changes);
        let Some(Err(CommandError::Refused(refusal))) = world.answer(unknown) else {
            panic!("{:?}", world.answer(unknown))
        };
        assert_eq!(refusal.class, RefusalClass::UnknownMethod);
    }
    assert_snapshot!(world.finish());
}

#[test]
fn responses_that_make_no_sense() {
    let mut world = Setup::hand().start();
    world.say(r#"{"id":1,"result":{"userAgent":"codex/0.171.0 (x)"}}"#);
    let ask = |world: &mut World| world.request("x", "{}", RequestEffect::Reads);
    for answer in [
        r#"{"id":2,"result":{},"error":{"code":1,"message":"m"}}"#,
        r#"{"id":3}"#,
        r#"{"id":4,"error":{"message":"no code"}}"#,
        r#"{"id":5,"result":null,"error":null}"#,
    ] {
        ask(&mut world);
        world.say(answer);
    }
    world.note("ids that were never asked, or answered already");
    for id in ["2", "99", "\"6\"", "6.0", "06", "-1", "1e0"] {
        world.say(&format!(r#"{{"id":{id},"result":{{}}}}"#));
    }
    let conversation = world.open("a", Settings::new());
    world.note("without the id that it must carry");
    let one = world.send(conversation, "go");
    world.say(r#"{"id":6,"result":{"thread":{}}}"#);
    assert!(matches!(
        world.ended(one).unwrap().outcome,
        Outcome::Rejected { .. }
    ));
    world.note("the thread may be there: it is looked for by its mark, to be deleted");
    world.say(r#"{"id":7,"result":{"data":["thr_9"],"nextCursor":null}}"#);
    world.say(r#"{"id":8,"error":{"code":-32600,"message":"thread not loaded: thr_9"}}"#);
    let two = world.restart(conversation);
    world.say(r#"{"id":9,"result":{"thread":{"id":"thr_1"}}}"#);
    world.say(r#"{"id":10,"result":{"turn":{"id":" "}}}"#);
    assert!(matches!(
        world.ended(two).unwrap().outcome,
        Outcome::Unknown { .. }
    ));
    world.note("a thread that another conversation owns");
    let other = world.open("b", Settings::new());
    world.send(other, "go");
    world.say(r#"{"id":11,"result":{"thread":{"id":"thr_1"}}}"#);
    assert_snapshot!(world.finish());
}

#[test]
fn frames_that_belong_nowhere() {
    let mut world = Scene::new().turn(1, "one").start();
    let conversation = world.open("a", Settings::new());
    let turn = world.send(conversation, "go");
    world.end_of(turn);
    world.note("late, doubled, foreign, without a thread, naming two turns");
    for line in [
        r#"{"method":"turn/completed","params":{"threadId":"thr_1","turn":{"id":"trn_1","status":"failed"}}}"#,
        r#"{"method":"item/agentMessage/delta","params":{"threadId":"thr_1","turnId":"trn_1","itemId":"i","delta":"late"}}"#,
        r#"{"method":"item/agentMessage/delta","params":{"threadId":"thr_child","turnId":"trn_x","itemId":"i","delta":"x"}}"#,
        r#"{"method":"turn/completed","params":{"threadId":"thr_child","turn":{"id":"trn_x","status":"completed"}}}"#,
        r#"{"method":"error","params":{"willRetry":true,"error":{"message":"of the connection"}}}"#,
        r#"{"method":"turn/started","params":{"threadId":"thr_1","turnId":"trn_8","turn":{"id":"trn_9","status":"inProgress"}}}"#,
        r#"{"method":"turn/started","params":{"threadId":"thr_1","turn":{"status":"inProgress"}}}"#,
        r#"{"method":"item/agentMessage/delta","params":{"threadId":"thr_1","turnId":"trn_1","itemId":"i"}}"#,
        r#"{"method":"something/new","params":{"threadId":"thr_1"}}"#,
        r#"{"method":"something/new"}"#,
        r#"{"method":"thread/closed","params":{"threadId":"thr_child"}}"#,
    ] {
        world.say(line);
    }
    assert_eq!(world.machine().counters().late_frames, 3);
    assert_snapshot!(world.finish());
}
