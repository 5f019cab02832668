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

/// Lets the pieces come, each in a read of its own or all in one, and then ends it.
fn is_whole(pieces: &[String], apart: bool) {
    let (mut world, turn) = sent();
    world.say(r#"{"id":3,"result":{"turn":{"id":"trn_1"}}}"#);
    let lines = pieces.iter().enumerate().flat_map(|(n, piece)| {
        // Between two pieces the turn is given what was told, of which its event goes on after noise.
        let usage = r#"{"method":"thread/tokenUsage/updated","params":{"threadId":"thr_1","turnId":"trn_1","tokenUsage":{}}}"#;
        let usage = (n % 50 == 49).then(|| usage.into());
        let noise = (n % 7 == 1).then(|| r#"{"method":"other","params":{}}"#.into());
        [delta(piece)].into_iter().chain(noise).chain(usage)
    });
    let lines: Vec<String> = lines.collect();
    if apart {
        lines.iter().for_each(|line| world.say(line));
    } else {
        let read = lines.join("\n") + "\n";
        world.input(Input::Received(Epoch(1), read.into_bytes()));
    }
    world.hang_up(CloseReason::Eof);
    let whole = pieces.concat();
    let kept = world.ended(turn).unwrap().text.clone();
    // Equal or not: nobody reads so much text.
    assert!(world.streamed(turn) == whole, "what was told");
    assert!(kept == Some(whole), "what was kept");
    let _ = world.finish();
}

#[test]
fn a_message_of_many_pieces_of_any_length_is_whole() {
    let piece = |n: usize, length: usize| -> String {
        let letters = (0..length).map(|at| char::from(b'a' + ((n + at) % 26) as u8));
        letters.collect()
    };
    // Some that are copied, some shared for their reader alone, some shared with the turn.
    let lengths = [3, 200, 1_500, 24, 1_024, 1_023, 128, 127];
    let mixed: Vec<String> = (0..400).map(|n| piece(n, lengths[n % 8])).collect();
    let short: Vec<String> = (0..4_000).map(|n| piece(n, 24)).collect();
    for pieces in [mixed, short] {
        for apart in [true, false] {
            is_whole(&pieces, apart);
        }
    }
}
