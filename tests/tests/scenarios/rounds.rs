//! Rounds: how they begin, what their messages say, how the model's acts become boxes, and how a turn's end ends them.

use insta::assert_snapshot;
use turnkeep_core::{
    CommandError, InputItem, Reply, SendOptions, Settings, ToolCallId, ToolResult,
    command::{Command, Metadata, Rendering, Tool, ToolKind},
    event::Status,
    tools::MESSAGE_DELIVERED,
    transcript::BoxBody,
};
use turnkeep_tests::world::{Journal, Left, World, tool};

use crate::talk::{LEFT, Talk, boxed, by_hand, input, said, tools};

#[test]
fn a_round_begins_by_itself_or_when_it_is_asked_for() {
    let mut talk = Talk::new(Settings::new());
    talk.accept([said("hello")]);
    assert_eq!(talk.take(), ["hello"]);
    talk.complete("done");
    assert_eq!(talk.status(), Status::Quiet);
    assert_snapshot!("a_round_begins_by_itself", talk.finish());

    let mut talk = Talk::new(by_hand(Settings::new()));
    talk.accept([said("hello")]);
    assert_eq!(talk.starts.len(), 0);
    let turn = talk.begin().unwrap();
    assert!(turn.is_some());
    assert_eq!(talk.take(), ["hello"]);
    talk.complete("done");
    assert_snapshot!("a_round_begins_when_asked", talk.finish());
}

#[test]
fn a_second_begin_gives_nothing() {
    let mut talk = Talk::new(by_hand(Settings::new()));
    assert_eq!(talk.begin(), Ok(None), "there is nothing to begin with");
    talk.accept([said("hello")]);
    assert!(talk.begin().unwrap().is_some());
    let before = talk.written();
    assert_eq!(talk.begin(), Ok(None));
    talk.take();
    assert_eq!(talk.begin(), Ok(None), "while its turn runs, too");
    talk.complete("done");
    assert_eq!(talk.begin(), Ok(None), "and after it");
    assert!(talk.written() > before);
    assert_eq!(talk.sent_of("turn/start").len(), 1);
    assert_snapshot!(talk.finish());
}

#[test]
fn a_begin_that_is_refused_changes_nothing() {
    let mut talk = Talk::new(by_hand(tools()));
    talk.accept([said("hello")]);
    let refused = |talk: &mut Talk| {
        let before = (talk.written(), talk.boxes(), talk.sent().len());
        let answer = talk.begin();
        assert!(
            matches!(answer, Err(CommandError::Busy { .. })),
            "{answer:?}"
        );
        assert_eq!((talk.written(), talk.boxes(), talk.sent().len()), before);
    };
    assert_eq!(talk.hold("not yet"), Ok(Reply::Done));
    refused(&mut talk);
    assert_eq!(talk.release_conversation(), Ok(Reply::Done));
    assert!(talk.begin().unwrap().is_some());
    talk.take();
    talk.end("failed");
    refused(&mut talk);
    assert_snapshot!(talk.finish());
}

#[test]
fn the_input_of_a_round_is_every_unsubmitted_box() {
    let mut talk = Talk::new(by_hand(tools()));
    talk.accept([boxed("System Message", "be brief"), said("hello")]);
    talk.accept([boxed("Weather Report", "rain")]);
    talk.begin().unwrap();
    assert_eq!(talk.take().len(), 1);
    talk.call("look", "{}");
    let call = talk.last_call();
    assert_eq!(talk.respond(call, ToolResult::ok("seen")), Ok(Reply::Done));
    talk.complete("done");
    talk.accept([said("more")]);
    talk.begin().unwrap();
    talk.note("what the thread holds is not said again");
    assert_eq!(talk.take(), ["more"]);
    assert_snapshot!(talk.finish());
}

/// Boxes of all types, with and without contents, with and without a line end.
fn all_sorts() -> Vec<BoxBody> {
    vec![
        said("one line"),
        said("with an end\n"),
        boxed("System Message", "be brief"),
        boxed("Weather Report", ""),
        boxed("Tool Message", "of no call"),
        BoxBody {
            hidden_type: "secret/1".into(),
            hidden_contents: "never rendered".into(),
            ..boxed("User Attachment", "a note\n\n")
        },
        said("last"),
    ]
}

#[test]
fn boxes_in_both_renderings() {
    for (rendering, name) in [
        (None, "boxes_plain"),
        (Some(Rendering::Boxed), "boxes_boxed"),
    ] {
        let mut settings = by_hand(Settings::new());
        if let Some(rendering) = rendering {
            settings.rendering = rendering;
        }
        let mut talk = Talk::new(settings);
        talk.accept(all_sorts());
        talk.begin().unwrap();
        let start = talk.starts[0].clone();
        assert!(!start.params.to_string().contains("never rendered"));
        let text = input(&start);
        assert_eq!(text.len(), 1, "one text");
        assert_snapshot!(name, text[0]);
        talk.take();
        talk.complete("done");
        let _ = talk.finish();
    }
}

#[test]
fn attachments_go_as_native_items_beside_the_text() {
    for (rendering, name) in [
        (Rendering::Plain, "attachments_plain"),
        (Rendering::Boxed, "attachments_boxed"),
    ] {
        let mut settings = Settings::new();
        settings.rendering = rendering;
        let mut talk = Talk::new(settings);
        let conversation = talk.conversation;
        let sent = vec![
            InputItem::text("look at these"),
            InputItem::image("data:x"),
            InputItem::local_image("/a.png"),
            InputItem::audio("data:y"),
            InputItem::local_audio("/a.wav"),
            InputItem::skill("s", "/s"),
            InputItem::mention("m", "/m"),
            InputItem::text("and say"),
        ];
        let answer = talk.done(Command::Send {
            conversation,
            input: sent,
            options: Box::new(SendOptions::new()),
        });
        assert!(matches!(answer, Ok(Reply::Accepted { .. })), "{answer:?}");
        let mut shown = vec![talk.starts[0].params["input"].to_string()];
        talk.take();
        talk.complete("done");
        talk.accept([BoxBody {
            hidden_type: "turnkeep.input/image".into(),
            hidden_contents: r#"{"type":"image","url":"data:z"}"#.into(),
            ..boxed("Tool Attachment", "a plot")
        }]);
        shown.push(talk.starts[0].params["input"].to_string());
        talk.take();
        talk.complete("done too");
        shown.push(talk.whole_boxes());
        assert_snapshot!(name, shown.join("\n"));
        let _ = talk.finish();
    }
}

#[test]
fn the_ids_that_were_promised_are_kept() {
    let mut settings = tools();
    settings.rendering = Rendering::Boxed;
    let mut talk = Talk::new(settings);
    talk.send("go");
    talk.note("box 2 is promised");
    assert_eq!(
        talk.take(),
        ["[Box 1 | User Message]\ngo\n[Box 2 | Agent Response]\n"]
    );
    talk.accept([said("meanwhile")]);
    talk.comment("looking");
    talk.call("search", "{}");
    talk.note("and box 5 by the flush");
    assert_eq!(
        talk.take_steer(),
        [
            "[Box 3 | Tool Call]\ncall 1: search {}\n[Box 4 | User Message]\nmeanwhile\n[Box 5 | Agent Response]\n"
        ]
    );
    talk.accept([said("later")]);
    talk.complete("done");
    assert_eq!(
        talk.boxes(),
        [
            "1 User Message: go",
            "2 Agent Response: looking",
            "3 Tool Call: call 1: search {}",
            "4 User Message: meanwhile",
            "5 Agent Response: done",
            "6 User Message: later",
        ]
    );
    assert_snapshot!(talk.finish());
}

#[test]
fn the_boxes_that_we_make() {
    let mut talk = Talk::new(tools());
    talk.send("go");
    talk.take();
    talk.call("search", r#"{"b":[1e2],"a":"x"}"#);
    talk.take_steer();
    let call = talk.last_call();
    assert_eq!(talk.message(call, "half way"), Ok(Reply::Done));
    let result = ToolResult::ok("found").metadata(Metadata {
        metadata_type: "t".into(),
        contents: "c".into(),
    });
    assert_eq!(talk.respond(call, result), Ok(Reply::Done));
    talk.call("route", r#"{"name":"inner","arguments":{"y":1,"x":2}}"#);
    talk.take_steer();
    let call = talk.last_call();
    assert_eq!(
        talk.respond(call, ToolResult::failed("no such thing")),
        Ok(Reply::Done)
    );
    talk.call("say", r#"{"message":"on it"}"#);
    talk.complete("done");
    assert_snapshot!(talk.whole_boxes());
    let _ = talk.finish();
}

#[test]
fn a_stage_is_the_text_so_far_and_then_the_actions() {
    let mut talk = Talk::new(tools());
    talk.send("go");
    talk.take();
    talk.comment("first");
    talk.comment("second");
    let natives = talk.calls_at_once(&[
        ("say", r#"{"message":"on it"}"#),
        ("look", "{}"),
        ("say", r#"{"message":"soon"}"#),
    ]);
    assert_eq!(talk.answer_text(&natives[0]), Some(MESSAGE_DELIVERED));
    assert_eq!(talk.answer_text(&natives[2]), Some(MESSAGE_DELIVERED));
    assert_eq!(talk.offered().len(), 1, "a message is no call");
    let call = talk.last_call();
    assert_eq!(talk.respond(call, ToolResult::ok("seen")), Ok(Reply::Done));
    talk.note("without a text it is empty");
    talk.call("say", r#"{"message":"now"}"#);
    talk.complete("done");
    let boxes = talk.boxes();
    assert_eq!(boxes[2], "3 Agent Message: on it");
    assert_eq!(boxes[4], "5 Agent Message: soon");
    assert_snapshot!(talk.finish());
}

#[test]
fn calls_that_are_read_together_are_one_stage() {
    let mut together = Talk::new(tools());
    let mut apart = Talk::new(tools());
    for talk in [&mut together, &mut apart] {
        talk.send("go");
        talk.take();
    }
    together.calls_at_once(&[("look", r#"{"n":1}"#), ("look", r#"{"n":2}"#)]);
    apart.call("look", r#"{"n":1}"#);
    apart.call("look", r#"{"n":2}"#);
    for talk in [&mut together, &mut apart] {
        for call in talk.offered() {
            talk.respond(call.id, ToolResult::ok("seen")).unwrap();
        }
        talk.complete("done");
    }
    let stages = |talk: &mut Talk| {
        let boxes = talk.boxes().into_iter();
        boxes.filter(|b| b.contains(" Agent Response: ")).count()
    };
    assert_eq!((stages(&mut together), stages(&mut apart)), (2, 3));
    assert_snapshot!("calls_read_together", together.finish());
    assert_snapshot!("calls_read_apart", apart.finish());
}

#[test]
fn a_stage_is_durable_before_its_calls_are_launched() {
    for tool in ["look", "search"] {
        let mut talk = Talk::lasting(tools());
        talk.send("go");
        talk.take();
        talk.comment("looking");
        talk.set_journal(Journal::Held);
        talk.call(tool, "{}");
        assert_eq!(talk.offered().len(), 0, "its stage is not durable");
        talk.note("the stage is lost with what was not confirmed");
        talk.set_journal(Journal::AtOnce);
        talk.crash(Left::Confirmed);
        let lost = talk.boxes();
        assert!(!lost.iter().any(|b| b.contains("Tool Call")), "{lost:?}");
        let _ = talk.finish();

        let mut talk = Talk::lasting(tools());
        talk.send("go");
        talk.take();
        talk.set_journal(Journal::Held);
        talk.call(tool, "{}");
        assert_eq!(talk.offered().len(), 0);
        talk.release();
        talk.serve();
        assert_eq!(talk.offered().len(), 1);
        for left in LEFT {
            talk.crash(left);
            let kept = talk.boxes();
            assert_eq!(
                kept[1..3],
                [
                    "2 Agent Response: ".to_owned(),
                    format!("3 Tool Call: call 1: {tool} {{}}")
                ]
            );
        }
        assert_snapshot!(format!("a_stage_before_its_launch_{tool}"), talk.finish());
    }
}

#[test]
fn a_stage_for_which_no_numbers_are_left_changes_nothing() {
    let mut talk = Talk::lasting(tools());
    let turn = talk.send("go");
    talk.take();
    talk.call("look", "{}");
    let call = talk.last_call();
    talk.respond(call, ToolResult::ok("seen")).unwrap();
    talk.complete("done");
    talk.acknowledge(turn);
    talk.crash_as(|checkpoint| {
        let last = format!(r#""last_call":{}"#, u64::MAX - 1);
        assert!(checkpoint.contains(r#""last_call":1"#), "{checkpoint}");
        checkpoint.replace(r#""last_call":1"#, &last)
    });
    talk.settle();
    talk.send("more");
    talk.take();
    let (before, written) = (talk.boxes(), talk.written());
    talk.note("one number is left, and there are two calls");
    let natives = talk.calls_at_once(&[("look", r#"{"n":1}"#), ("look", r#"{"n":2}"#)]);
    assert_eq!(talk.boxes(), before);
    assert_eq!(talk.written(), written);
    for native in natives {
        assert!(talk.answered(&native).unwrap()["error"].is_object());
    }
    talk.note("one call fits");
    talk.call("look", r#"{"n":3}"#);
    let call = talk.last_call();
    assert_eq!(call.sequence, u64::MAX);
    talk.respond(call, ToolResult::ok("seen")).unwrap();
    talk.complete("done");
    let _ = talk.finish();
}

#[test]
fn an_interrupted_round_keeps_the_text_so_far() {
    let mut talk = Talk::new(tools());
    let turn = talk.send("go");
    talk.take();
    talk.comment("as far as");
    talk.interrupted(turn);
    assert_eq!(
        talk.boxes(),
        ["1 User Message: go", "2 Agent Response: as far as"]
    );
    assert_eq!(talk.status(), Status::Quiet);
    assert_snapshot!(talk.finish());
}

#[test]
fn an_interrupted_round_fails_its_open_calls() {
    let mut talk = Talk::new(tools());
    let turn = talk.send("go");
    talk.take();
    talk.calls_at_once(&[("search", "{}"), ("look", "{}")]);
    talk.take_steer();
    let calls: Vec<ToolCallId> = talk.offered().iter().map(|call| call.id).collect();
    assert_eq!(calls.len(), 2);
    talk.interrupted(turn);
    for call in calls {
        assert_eq!(
            talk.respond(call, ToolResult::ok("late")),
            Err(CommandError::CallClosed { call })
        );
    }
    let boxes = talk.boxes();
    let failed = |n: u64| format!("Tool Result: result of call {n}: failed\ninterrupted");
    for n in 1..=2 {
        assert!(boxes.iter().any(|b| b.ends_with(&failed(n))), "{boxes:?}");
    }
    talk.note("they trigger nothing, and go with what does");
    assert_eq!(talk.starts.len(), 0);
    assert_eq!(talk.status(), Status::Quiet);
    talk.send("and?");
    assert_snapshot!(talk.finish());
}

/// A tool as an application may write it down.
fn declared(kind: &str, delivery: &str) -> Tool {
    let text = format!(
        r#"{{"name":"t","description":"","input_schema":{{}},"kind":"{kind}","time_limit":null,"delivery":"{delivery}"}}"#
    );
    serde_json::from_str(&text).unwrap()
}

#[test]
fn a_delivery_of_another_kind_is_refused() {
    let mut talk = Talk::new(Settings::new());
    let mut refused = |tool: Tool| {
        let answer = talk.done(World::open_command("b", Settings::new().tool(tool)));
        assert!(
            matches!(answer, Err(CommandError::Settings(_))),
            "{answer:?}"
        );
    };
    refused(tool("say", ToolKind::Message).deferred());
    for kind in ["function", "router"] {
        refused(declared(kind, "message"));
    }
    refused(declared("message", "inline"));
    assert_snapshot!(talk.finish());
}

#[test]
fn calls_that_belong_nowhere_make_no_box() {
    let mut talk = Talk::new(tools());
    talk.send("go");
    talk.take();
    let (id, frame) = talk.call_frame("look", r#"{"a":1,"b":2}"#);
    talk.say(&frame);
    talk.note("the same call again");
    talk.say(&frame.replace(r#"{"a":1,"b":2}"#, r#"{"b":2,"a":1}"#));
    talk.note("its name with other contents, and another turn");
    talk.say(
        &frame
            .replace(r#""id":101"#, r#""id":7"#)
            .replace("\"a\":1", "\"a\":2"),
    );
    talk.say(
        &frame
            .replace(r#""id":101"#, r#""id":8"#)
            .replace("trn_1", "trn_9"),
    );
    talk.serve();
    for refused in ["7", "8"] {
        let answer = talk.answered(refused).expect("it is answered");
        assert_eq!(answer["error"]["code"], -32_602);
    }
    assert_eq!(talk.offered().len(), 1);
    assert_eq!(talk.boxes().len(), 3);
    let call = talk.last_call();
    talk.respond(call, ToolResult::ok("seen")).unwrap();
    assert_eq!(talk.answer_text(&id), Some("seen"));
    talk.complete("done");
    talk.note("and after the end of its turn");
    talk.say(&frame.replace(r#""id":101"#, r#""id":9"#));
    talk.serve();
    assert_eq!(talk.answered("9").unwrap()["error"]["code"], -32_602);
    assert_eq!(talk.boxes().len(), 5);
    assert_snapshot!(talk.finish());
}
