//! A conversation made of another one.

use insta::assert_snapshot;
use serde_json::Value;
use turnkeep_core::{
    BoxId, Command, CommandError, CommandId, ConversationId, ConversationKey, Reply, SendOptions,
    Settings, command::BusyWhy, transcript::TranscriptBox,
};
use turnkeep_tests::world::{Left, World};

use crate::talk::{LEFT, Talk, input, said, threads::FORK, tools};

const METHOD: &str = "thread/fork";

fn command(talk: &Talk, key: &str) -> Command {
    Command::Fork {
        conversation: talk.conversation,
        key: ConversationKey::new(key).unwrap(),
        settings: None,
    }
}

fn fork(talk: &mut Talk, key: &str) -> CommandId {
    let command = command(talk, key);
    talk.ask(command)
}

#[track_caller]
fn opened(talk: &Talk, id: CommandId) -> ConversationId {
    match talk.answer(id) {
        Some(Ok(Reply::Opened { conversation })) => *conversation,
        other => panic!("{other:?}"),
    }
}

#[track_caller]
fn is_busy(answer: &Result<Reply, CommandError>, with: &BusyWhy) {
    match answer {
        Err(CommandError::Busy { why, .. }) => assert_eq!(why, with),
        other => panic!("{other:?}"),
    }
}

fn boxes(talk: &mut Talk, conversation: ConversationId) -> Vec<TranscriptBox> {
    let read = Command::Read {
        conversation,
        from: BoxId(1),
        limit: 1_000,
    };
    match talk.look(read) {
        Ok(Reply::Boxes { boxes, .. }) => boxes,
        other => panic!("{other:?}"),
    }
}

/// What a message in a conversation says, and on which thread. Its turn is not begun.
fn says(talk: &mut Talk, conversation: ConversationId, text: &str) -> (Value, Vec<String>) {
    talk.ask(World::send_command(conversation, text, SendOptions::new()));
    talk.settle();
    let start = talk.starts.front().expect("a turn is to start");
    let said = (start.params["threadId"].clone(), input(start));
    talk.refuse_start("not now");
    said
}

/// The conversation has had a round.
fn talked(settings: Settings) -> Talk {
    let mut talk = Talk::lasting(settings);
    talk.send("one");
    talk.take();
    talk.complete("first");
    talk
}

fn forks(talk: &Talk) -> usize {
    talk.sent_of(METHOD).len()
}

#[test]
fn a_fork_has_the_boxes_and_the_thread_has_them_too() {
    let mut talk = talked(tools());
    let id = fork(&mut talk, "b");
    let made = opened(&talk, id);
    let parent = talk.conversation;
    assert_eq!(boxes(&mut talk, made), boxes(&mut talk, parent));
    talk.note("it goes on from where the other one was");
    let two = says(&mut talk, made, "two");
    assert_eq!(two, (FORK.into(), vec!["two".to_owned()]));
    talk.note("so does the other one");
    let three = says(&mut talk, parent, "three");
    assert_eq!(three, ("thr_1".into(), vec!["three".to_owned()]));
    assert_eq!(boxes(&mut talk, made).len(), 3);
    assert_snapshot!(talk.finish());
}

#[test]
fn a_conversation_without_a_thread_is_forked_without_one() {
    let mut talk = Talk::lasting(tools());
    assert_eq!(talk.hold("wait"), Ok(Reply::Done));
    talk.accept([said("one")]);
    let id = fork(&mut talk, "b");
    let made = opened(&talk, id);
    talk.note("it is not held: what was not said there is said here, in a thread of its own");
    assert_eq!((forks(&talk), talk.sent_of("thread/start").len()), (0, 1));
    let start = talk.starts.front().expect("it is not held");
    assert_eq!(input(start), ["one"]);
    talk.refuse_start("not now");
    assert_eq!(boxes(&mut talk, made).len(), 1);
    let _ = talk.finish();
}

#[test]
fn nothing_may_be_open_where_it_is_forked() {
    let mut talk = talked(tools());
    let fork_b = command(&talk, "b");
    talk.note("the key is taken");
    let taken = talk.done(command(&talk, "a"));
    assert!(
        matches!(taken, Err(CommandError::KeyTaken { .. })),
        "{taken:?}"
    );
    talk.note("only another thread would take these");
    let other = talk.done(Command::Fork {
        conversation: talk.conversation,
        key: ConversationKey::new("b").unwrap(),
        settings: Some(Box::new(Settings::new())),
    });
    assert!(
        matches!(other, Err(CommandError::ThreadIsMade { .. })),
        "{other:?}"
    );
    talk.holds = vec!["thread/compact/start"];
    let conversation = talk.conversation;
    talk.ask(Command::Compact { conversation });
    is_busy(&talk.done(fork_b.clone()), &BusyWhy::Compacting);
    talk.refuse_held("not now");
    talk.note("a call is open");
    talk.send("two");
    is_busy(&talk.done(fork_b.clone()), &BusyWhy::Round);
    talk.take();
    talk.call("search", "{}");
    talk.settle();
    if !talk.steers.is_empty() {
        talk.take_steer();
    }
    talk.complete("later");
    is_busy(&talk.done(fork_b.clone()), &BusyWhy::Calls);
    let call = talk.last_call();
    assert_eq!(
        talk.respond(call, turnkeep_core::ToolResult::ok("found")),
        Ok(Reply::Done)
    );
    talk.take();
    talk.end("failed");
    let stalled = talk.done(fork_b.clone());
    assert!(
        matches!(
            &stalled,
            Err(CommandError::Busy {
                why: BusyWhy::Stalled { .. },
                ..
            })
        ),
        "{stalled:?}"
    );
    assert_eq!(talk.dismiss(), Ok(Reply::Done));
    assert_eq!(forks(&talk), 0);
    let id = talk.ask(fork_b);
    let made = opened(&talk, id);
    let parent = talk.conversation;
    assert_eq!(boxes(&mut talk, made), boxes(&mut talk, parent));
    let _ = talk.finish();
}

#[test]
fn a_refused_fork_leaves_nothing() {
    let mut talk = talked(tools());
    talk.holds = vec![METHOD];
    let id = fork(&mut talk, "b");
    talk.note("the same once more joins it");
    let again = fork(&mut talk, "b");
    assert_eq!(forks(&talk), 1);
    talk.refuse_held("no forks today");
    for id in [id, again] {
        assert!(matches!(
            talk.answer(id),
            Some(Err(CommandError::Refused(_)))
        ));
    }
    talk.note("its key is free");
    talk.holds.clear();
    let id = fork(&mut talk, "b");
    opened(&talk, id);
    let once_more = fork(&mut talk, "b");
    assert_eq!(opened(&talk, id), opened(&talk, once_more));
    assert_eq!(forks(&talk), 2);
    assert_snapshot!(talk.finish());
}

/// The answer is lost with the connection: the mark tells.
#[test]
fn a_fork_that_no_answer_told_of_is_found_by_its_mark() {
    for shows in [true, false] {
        let mut talk = talked(tools());
        talk.holds = vec![METHOD];
        let id = fork(&mut talk, "b");
        talk.shows_fork = shows;
        talk.holds.clear();
        talk.cut();
        talk.settle();
        assert_eq!(forks(&talk), 1, "it is not made twice");
        if shows {
            let made = opened(&talk, id);
            let two = says(&mut talk, made, "two");
            assert_eq!(two, (FORK.into(), vec!["two".to_owned()]));
        } else {
            let answer = talk.answer(id).cloned();
            assert!(
                matches!(answer, Some(Err(CommandError::Unknown { .. }))),
                "{answer:?}"
            );
            talk.note("its key is free");
            let id = fork(&mut talk, "b");
            opened(&talk, id);
        }
        let log = talk.finish();
        if shows {
            assert_snapshot!(log);
        }
    }
}

#[test]
fn a_fork_that_is_not_answered_in_time_is_looked_for() {
    let mut talk = talked(tools());
    talk.holds = vec![METHOD];
    let id = fork(&mut talk, "b");
    talk.wait(61_000);
    opened(&talk, id);
    assert_eq!(forks(&talk), 1);
    let _ = talk.finish();
}

#[test]
fn a_crash_at_any_step_leads_to_one_fork() {
    for left in LEFT {
        for (held, shows) in [(true, true), (true, false), (false, true)] {
            let mut talk = talked(tools());
            talk.holds = if held { vec![METHOD] } else { Vec::new() };
            let id = fork(&mut talk, "b");
            talk.holds.clear();
            talk.shows_fork = shows;
            talk.crash_before_reading(left);
            let again = command(&talk, "b");
            talk.ask_as(id, again);
            talk.settle();
            if shows {
                let made = opened(&talk, id);
                assert_eq!(forks(&talk), 1);
                let two = says(&mut talk, made, "two");
                assert_eq!(two, (FORK.into(), vec!["two".to_owned()]));
            } else {
                let answer = talk.answer(id).cloned();
                assert!(
                    matches!(answer, Some(Err(CommandError::Unknown { .. }))),
                    "{answer:?}"
                );
                let id = fork(&mut talk, "b");
                opened(&talk, id);
                assert_eq!(forks(&talk), 2);
            }
            let _ = talk.finish();
        }
    }
}

/// Found by the simulator (seed 2092): a message was accepted in a fork that was then not found.
#[test]
fn nobody_has_the_fork_of_an_earlier_life_before_it_is_found() {
    for shows in [true, false] {
        let mut talk = talked(tools());
        talk.holds = vec![METHOD];
        fork(&mut talk, "b");
        talk.shows_fork = shows;
        let list = if shows { "none" } else { "thread/loaded/list" };
        talk.holds = vec![list];
        talk.crash_before_reading(Left::All);
        let id = talk.ask(Command::Open {
            key: ConversationKey::new("b").unwrap(),
            settings: Box::new(tools()),
        });
        talk.settle();
        if shows {
            let made = opened(&talk, id);
            let two = says(&mut talk, made, "two");
            assert_eq!(two, (FORK.into(), vec!["two".to_owned()]));
        } else {
            assert!(talk.answer(id).is_none(), "it is looked for");
            talk.wait(61_000);
            let answer = talk.answer(id).cloned();
            assert!(
                matches!(answer, Some(Err(CommandError::Unknown { .. }))),
                "{answer:?}"
            );
        }
        let _ = talk.finish();
    }
}
