//! What a turn keeps of its text is what was told of it, wherever a read ends.

use insta::assert_snapshot;
use turnkeep_core::{CloseReason, Epoch, Input, Settings, TurnNo};
use turnkeep_tests::world::{Setup, World};

fn delta(text: &str) -> String {
    format!(
        r#"{{"method":"item/agentMessage/delta","params":{{"threadId":"thr_1","turnId":"trn_1","itemId":"i","delta":"{text}"}}}}"#
    )
}

/// A message that was sent, whose `turn/start` (3) is not answered.
fn sent() -> (World, TurnNo) {
    let mut world = Setup::hand().start();
    world.say(r#"{"id":1,"result":{"userAgent":"codex/0.171.0 (x)"}}"#);
    let conversation = world.open("a", Settings::new());
    let turn = world.send(conversation, "go");
    world.say(r#"{"id":2,"result":{"thread":{"id":"thr_1"}}}"#);
    (world, turn)
}

#[test]
fn a_last_line_without_its_end_is_kept_before_the_connection_ends() {
    let (mut world, turn) = sent();
    world.say(r#"{"id":3,"result":{"turn":{"id":"trn_1"}}}"#);
    world.say(&delta("Hello "));
    world.input(Input::Received(Epoch(1), delta("world").into_bytes()));
    world.hang_up(CloseReason::Eof);
    assert_eq!(world.streamed(turn), "Hello world");
    assert_eq!(
        world.ended(turn).unwrap().text.as_deref(),
        Some("Hello world")
    );
    assert_snapshot!(world.finish());
}

#[test]
fn what_came_before_our_own_message_is_not_of_its_answer() {
    let (mut world, turn) = sent();
    let start: serde_json::Value = serde_json::from_str(world.sent_of("turn/start")[0]).unwrap();
    let id = &start["params"]["clientUserMessageId"];
    world.note("both frames come before their turn has a name: they are taken in one line");
    world.say(&delta("before "));
    world.say(&format!(
        r#"{{"method":"item/started","params":{{"threadId":"thr_1","turnId":"trn_1","item":{{"type":"userMessage","id":"u","clientId":{id},"content":[]}}}}}}"#
    ));
    world.say(&delta("after"));
    world.say(r#"{"method":"turn/completed","params":{"threadId":"thr_1","turn":{"id":"trn_1","items":[],"status":"interrupted","error":null}}}"#);
    assert_eq!(world.ended(turn).unwrap().text.as_deref(), Some("after"));
    assert_snapshot!(world.finish());
}
