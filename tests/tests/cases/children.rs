//! F42: several threads on one connection.

use turnkeep_core::{
    Event, Reply, Settings, ToolResult,
    command::{Answer, Children, Questions, ToolKind},
    event::{ConversationUpdate, Question, ToolCall},
};
use turnkeep_tests::world::{World, tool};

use crate::{asks, in_all_reads_of, script, text};

/// What is told of the sub-agent's thread, and of no other.
fn told(world: &World) -> Vec<&ConversationUpdate> {
    let events = world.events().iter();
    let all = events.filter_map(|event| match event {
        Event::Conversation(event) => Some(&event.update),
        _ => None,
    });
    all.filter(|update| match update {
        ConversationUpdate::ChildFrame { thread, .. }
        | ConversationUpdate::ChildCall { thread, .. }
        | ConversationUpdate::ChildQuestion { thread, .. } => {
            assert_eq!(thread.as_str(), "thr_child");
            true
        }
        _ => false,
    })
    .collect()
}

fn question(world: &World) -> Option<Question> {
    told(world).into_iter().find_map(|update| match update {
        ConversationUpdate::ChildQuestion { question, .. } => Some((**question).clone()),
        _ => None,
    })
}

fn call(world: &World) -> Option<ToolCall> {
    told(world).into_iter().find_map(|update| match update {
        ConversationUpdate::ChildCall { call, .. } => Some(call.clone()),
        _ => None,
    })
}

fn answers(world: &World, request: u32) -> usize {
    let head = format!(r#"{{"id":{request},"#);
    world
        .sent()
        .iter()
        .filter(|frame| frame.starts_with(&head))
        .count()
}

#[test]
fn case_42_a_sub_agents_end_is_not_its_parents() {
    for tells in [false, true] {
        in_all_reads_of(script!("42"), |world| {
            let (children, questions) = match tells {
                true => (Children::Tell, Questions::Ask),
                false => (Children::Decline, Questions::Ask),
            };
            let settings = Settings::new().children(children).questions(questions);
            let conversation = world.open("a", settings);
            let turn = world.send(conversation, "go");
            let asked = question(world).map(|question| question.id);
            assert_eq!(asked.is_some(), tells);
            if let Some(question) = asked {
                world.reply(question, Answer::Decline);
            }
            let end = world.end_of(turn);
            assert_eq!(text(&end), "parent answer");
            assert_eq!(
                end.usage.unwrap().turn.total_tokens,
                250,
                "its own use only"
            );
            assert_eq!(answers(world, 14), 1);
            assert_eq!(!told(world).is_empty(), tells);
            assert_eq!(
                world.sent_of("thread/read").len(),
                1,
                "it is asked about once"
            );
        });
    }
}

#[test]
fn case_42_the_application_serves_a_sub_agent() {
    in_all_reads_of(script!("42b"), |world| {
        let settings = asks()
            .children(Children::Tell)
            .tool(tool("look", ToolKind::Function));
        let conversation = world.open("a", settings);
        let turn = world.send(conversation, "go");
        let question = question(world).unwrap();
        let answer = world.reply(question.id, Answer::Accept);
        assert_eq!(world.answer_of(answer), Ok(Reply::Done));
        let call = call(world).unwrap();
        assert_eq!(
            (&*call.tool, call.arguments.get()),
            ("look", r#"{"at":"x"}"#)
        );
        let answer = world.respond(call.id, ToolResult::ok("a wall"));
        assert_eq!(world.answer_of(answer), Ok(Reply::Done));
        let end = world.end_of(turn);
        assert!(world.is_played());
        assert_eq!(text(&end), "parent answer");
        assert_eq!(
            end.usage.unwrap().turn.total_tokens,
            250,
            "its own use only"
        );
        assert_eq!((answers(world, 14), answers(world, 15)), (1, 1));
        let frames: Vec<&str> = told(world)
            .into_iter()
            .filter_map(|update| match update {
                ConversationUpdate::ChildFrame { method, .. } => Some(method.as_str()),
                _ => None,
            })
            .collect();
        let expected = [
            "thread/status/changed",
            "turn/started",
            "item/completed",
            "thread/tokenUsage/updated",
            "turn/completed",
        ];
        assert_eq!(frames, expected);
        // A message and its answer: the call is no box, and the turn is told nothing of the child.
        let known = world.machine().durable().conversation(conversation);
        assert_eq!(known.unwrap().transcript().last().0, 2);
        let updates = format!("{:?}", world.updates(turn));
        assert!(
            !updates.contains("child") && !updates.contains("look"),
            "{updates}"
        );
        assert_eq!(
            world.sent_of("thread/read").len(),
            1,
            "it is asked about once"
        );
    });
}
