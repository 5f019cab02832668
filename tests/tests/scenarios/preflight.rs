//! What a fresh conversation begins with.

use insta::assert_snapshot;
use turnkeep_core::{
    CommandError, Reply, SendOptions, ToolResult, command::BusyWhy, event::Status,
    preflight::PreflightItem,
};
use turnkeep_tests::world::{Left, json};

use crate::talk::{LEFT, Talk, boxed, by_hand, said, tools};

fn system(text: &str) -> PreflightItem {
    PreflightItem::System(boxed("System Message", text))
}

fn call(blocking: bool) -> PreflightItem {
    PreflightItem::Call {
        tool: "search".into(),
        arguments: json(r#"{"b":1,"a":2}"#),
        blocking,
    }
}

#[test]
fn preflight_begins_no_round() {
    let mut talk = Talk::new(tools());
    let calls = talk
        .preflight(vec![system("be brief"), call(false), call(false)])
        .unwrap();
    assert_eq!(
        calls.iter().map(|call| call.sequence).collect::<Vec<_>>(),
        [1, 2]
    );
    assert_eq!(
        talk.boxes(),
        [
            "1 System Message: be brief",
            r#"2 Tool Call: call 1: search {"a":2,"b":1}"#,
            r#"3 Tool Call: call 2: search {"a":2,"b":1}"#,
        ]
    );
    assert_eq!(talk.starts.len(), 0);
    assert_eq!(talk.status(), Status::Quiet);
    assert_eq!(talk.offered().len(), 2);
    assert_snapshot!(talk.finish());
}

#[test]
fn a_blocking_call_holds_the_first_round_back() {
    let mut talk = Talk::new(tools());
    let calls = talk
        .preflight(vec![
            system("be brief"),
            call(true),
            call(false),
            call(true),
        ])
        .unwrap();
    let conversation = talk.conversation;
    talk.accept([said("hello")]);
    let why = BusyWhy::Preflight;
    let busy = CommandError::Busy { conversation, why };
    assert_eq!(talk.begin(), Err(busy.clone()));
    assert_eq!(talk.try_send("go", SendOptions::new()), Err(busy));
    talk.respond(calls[0], ToolResult::ok("found")).unwrap();
    assert_eq!(talk.starts.len(), 0, "one is left");
    talk.respond(calls[2], ToolResult::failed("not found"))
        .unwrap();
    let text = talk.take().concat();
    talk.note("the one that does not block comes later");
    talk.complete("done");
    talk.respond(calls[1], ToolResult::ok("late")).unwrap();
    let late = talk.take().concat();
    assert!(late.contains("result of call 2: ok\nlate"), "{late}");
    assert!(!text.contains("late") && text.contains("hello"), "{text}");
    assert_snapshot!(talk.finish());
}

#[test]
fn a_call_that_does_not_block_lets_the_first_round_begin() {
    let mut talk = Talk::new(tools());
    let calls = talk.preflight(vec![call(false)]).unwrap();
    talk.accept([said("hello")]);
    talk.take();
    talk.complete("done");
    talk.respond(calls[0], ToolResult::ok("found")).unwrap();
    assert_eq!(talk.starts.len(), 1);
    assert_snapshot!(talk.finish());
}

#[test]
fn preflight_is_for_fresh_conversations_and_once() {
    let refused = |talk: &mut Talk| {
        let conversation = talk.conversation;
        let before = (talk.written(), talk.boxes());
        assert_eq!(
            talk.preflight(vec![system("be brief")]),
            Err(CommandError::NotFresh { conversation })
        );
        assert_eq!((talk.written(), talk.boxes()), before);
    };
    let mut talk = Talk::lasting(by_hand(tools()));
    talk.accept([boxed("System Message", "x")]);
    refused(&mut talk);
    let _ = talk.finish();
    let mut talk = Talk::lasting(by_hand(tools()));
    talk.preflight(vec![system("be brief")]).unwrap();
    refused(&mut talk);
    for left in LEFT {
        talk.crash(left);
        refused(&mut talk);
    }
    talk.note("tools that it does not have");
    assert_snapshot!(talk.finish());
    let mut talk = Talk::new(by_hand(tools()));
    let before = talk.written();
    let unknown = PreflightItem::Call {
        tool: "other".into(),
        arguments: json("{}"),
        blocking: false,
    };
    assert_eq!(
        talk.preflight(vec![system("be brief"), unknown]),
        Err(CommandError::UnknownTool {
            name: "other".into()
        })
    );
    assert_eq!((talk.written(), talk.boxes().len()), (before, 0));
    talk.preflight(vec![system("it is fresh still")]).unwrap();
    let _ = talk.finish();
}

#[test]
fn preflight_calls_are_offered_again_after_a_crash() {
    for left in LEFT {
        let mut talk = Talk::lasting(tools());
        let calls = talk.preflight(vec![call(true), call(false)]).unwrap();
        for _ in 0..2 {
            assert_eq!(
                talk.offered()
                    .iter()
                    .map(|call| call.id)
                    .collect::<Vec<_>>(),
                calls
            );
            talk.crash(left);
        }
        talk.note("one has its result: the other alone is open");
        talk.accept([said("hello")]);
        talk.respond(calls[0], ToolResult::ok("found")).unwrap();
        talk.take();
        talk.note("an ordinary call beside it");
        talk.call("look", "{}");
        talk.crash(left);
        assert_eq!(
            talk.offered()
                .iter()
                .map(|call| call.id)
                .collect::<Vec<_>>(),
            calls[1..]
        );
        talk.settle();
        let boxes = talk.boxes();
        let failed = "result of call 3: failed\ninterrupted by shutdown";
        assert!(boxes.iter().any(|b| b.ends_with(failed)), "{boxes:?}");
        assert_eq!(
            talk.respond(calls[1], ToolResult::ok("at last")),
            Ok(Reply::Done)
        );
        if left == Left::All {
            assert_snapshot!(talk.finish());
        } else {
            let _ = talk.finish();
        }
    }
}
