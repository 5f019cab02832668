//! What is asked of a native thread itself: that it is made and named, and that it is compacted.

use insta::assert_snapshot;
use serde_json::Value;
use turnkeep_core::{
    Command, CommandError, CommandId, Outcome, Reply, Settings,
    command::{BusyWhy, RefusalClass},
    event::Status,
};

use crate::talk::{LEFT, Talk, said, tools};

const NAME: &str = "thread/name/set";
const COMPACT: &str = "thread/compact/start";

fn materialise(talk: &mut Talk) -> CommandId {
    let conversation = talk.conversation;
    talk.ask(Command::Materialise { conversation })
}

fn compact(talk: &mut Talk) -> CommandId {
    let conversation = talk.conversation;
    talk.ask(Command::Compact { conversation })
}

/// The parameters of what was sent under a method.
fn sent(talk: &Talk, method: &str) -> Vec<Value> {
    let frames = talk.sent_of(method).into_iter();
    let frames = frames.map(|frame| serde_json::from_str::<Value>(frame).unwrap());
    frames.map(|frame| frame["params"].clone()).collect()
}

fn names(talk: &Talk) -> Vec<String> {
    let all = sent(talk, NAME).into_iter();
    all.map(|params| params["name"].as_str().unwrap().to_owned())
        .collect()
}

#[track_caller]
fn is_bound(talk: &Talk, id: CommandId, thread: &str) {
    match talk.answer(id) {
        Some(Ok(Reply::Bound { thread: told })) => assert_eq!(told.as_str(), thread),
        other => panic!("{other:?}"),
    }
}

#[track_caller]
fn is_busy(answer: Result<Reply, CommandError>, with: &BusyWhy) {
    match answer {
        Err(CommandError::Busy { why, .. }) => assert_eq!(why, *with),
        other => panic!("{other:?}"),
    }
}

/// The conversation has had a round.
fn talked(talk: &mut Talk) {
    talk.send("one");
    talk.take();
    talk.complete("first");
}

// Made and named.

#[test]
fn a_thread_is_made_and_named_before_its_first_round() {
    let mut talk = Talk::new(tools());
    let id = materialise(&mut talk);
    is_bound(&talk, id, "thr_1");
    assert_eq!(names(&talk), ["a"], "the key is its name");
    assert_eq!(talk.status(), Status::Quiet);
    talk.note("it is so already");
    let again = materialise(&mut talk);
    is_bound(&talk, again, "thr_1");
    assert_eq!(names(&talk), ["a"]);
    talk.send("one");
    assert_eq!(talk.take(), ["one"]);
    talk.complete("first");
    assert_eq!(talk.thread(), "thr_1");
    assert_snapshot!(talk.finish());
}

#[test]
fn the_setting_names_a_thread_and_names_it_anew() {
    let mut talk = Talk::new(Settings::new().name("my talk"));
    let first = materialise(&mut talk);
    is_bound(&talk, first, "thr_1");
    let conversation = talk.conversation;
    let settings = Box::new(Settings::new().name("our talk"));
    let change = Command::Change {
        conversation,
        settings,
    };
    assert_eq!(talk.done(change), Ok(Reply::Done));
    assert_eq!(names(&talk), ["my talk"], "that alone names nothing");
    let second = materialise(&mut talk);
    is_bound(&talk, second, "thr_1");
    assert_eq!(names(&talk), ["my talk", "our talk"]);
    let _ = talk.finish();
}

#[test]
fn a_thread_without_a_history_has_no_name() {
    let mut talk = Talk::new(Settings::new().ephemeral(true));
    let id = materialise(&mut talk);
    is_bound(&talk, id, "thr_1");
    assert!(names(&talk).is_empty());
    let _ = talk.finish();
}

#[test]
fn a_thread_of_a_round_is_named_while_that_runs() {
    let mut talk = Talk::new(tools());
    talk.send("one");
    talk.take();
    let id = materialise(&mut talk);
    is_bound(&talk, id, "thr_1");
    talk.complete("first");
    assert_eq!(names(&talk), ["a"]);
    let _ = talk.finish();
}

#[test]
fn a_held_and_a_stalled_conversation_are_made_all_the_same() {
    let mut talk = Talk::new(tools());
    assert_eq!(talk.hold("wait"), Ok(Reply::Done));
    let held = materialise(&mut talk);
    is_bound(&talk, held, "thr_1");
    assert_eq!(talk.release_conversation(), Ok(Reply::Done));
    talk.send("one");
    talk.take();
    talk.end("failed");
    assert!(matches!(talk.status(), Status::Stalled { .. }));
    let stalled = materialise(&mut talk);
    is_bound(&talk, stalled, "thr_1");
    let _ = talk.finish();
}

#[test]
fn what_lets_a_thread_go_waits_until_it_is_made() {
    let mut talk = Talk::new(tools());
    talk.holds = vec![NAME];
    let (first, second) = (materialise(&mut talk), materialise(&mut talk));
    let conversation = talk.conversation;
    for command in [
        Command::Close { conversation },
        Command::Reset { conversation },
    ] {
        is_busy(talk.done(command), &BusyWhy::Turn);
    }
    is_busy(talk.done(Command::Compact { conversation }), &BusyWhy::Turn);
    talk.answer_held();
    is_bound(&talk, first, "thr_1");
    is_bound(&talk, second, "thr_1");
    talk.holds = vec!["thread/unsubscribe"];
    talk.ask(Command::Close { conversation });
    is_busy(
        talk.done(Command::Materialise { conversation }),
        &BusyWhy::Closing,
    );
    talk.refuse_held("not now");
    let _ = talk.finish();
}

#[test]
fn a_refused_thread_and_a_refused_name_are_told() {
    let mut talk = Talk::new(tools());
    talk.holds = vec!["thread/start", NAME];
    let first = materialise(&mut talk);
    talk.refuse_held("no threads today");
    assert!(matches!(
        talk.answer(first),
        Some(Err(CommandError::Refused(_)))
    ));
    talk.holds = vec![NAME];
    let second = materialise(&mut talk);
    talk.refuse_held("no names today");
    assert!(matches!(
        talk.answer(second),
        Some(Err(CommandError::Refused(_)))
    ));
    talk.note("the thread is there");
    let third = materialise(&mut talk);
    talk.answer_held();
    is_bound(&talk, third, "thr_1");
    assert_snapshot!(talk.finish());
}

#[test]
fn a_name_is_asked_for_again_on_the_next_connection() {
    let mut talk = Talk::lasting(tools());
    talk.holds = vec![NAME];
    let id = materialise(&mut talk);
    talk.holds.clear();
    talk.cut();
    talk.settle();
    is_bound(&talk, id, "thr_1");
    assert_eq!(names(&talk), ["a", "a"], "the same name changes nothing");
    let _ = talk.finish();
}

#[test]
fn a_thread_that_died_unnamed_is_made_again() {
    let mut talk = Talk::lasting(tools());
    talk.holds = vec![NAME];
    let id = materialise(&mut talk);
    talk.holds.clear();
    talk.forgets = true;
    talk.kill_server();
    talk.wait(1_000);
    is_bound(&talk, id, "thr_2");
    let _ = talk.finish();
}

/// Our process dies at each step of it, and is asked again.
#[test]
fn a_crash_at_any_step_leads_to_one_named_thread() {
    for left in LEFT {
        for step in ["thread/start", NAME, ""] {
            let mut talk = Talk::lasting(tools());
            talk.holds = vec![step];
            materialise(&mut talk);
            talk.holds.clear();
            talk.crash(left);
            let id = materialise(&mut talk);
            talk.settle();
            let thread = talk.thread();
            is_bound(&talk, id, &thread);
            assert!(names(&talk).iter().all(|name| name == "a"));
            assert!(!names(&talk).is_empty());
            let _ = talk.finish();
        }
    }
}

// Compacted.

#[test]
fn a_compaction_ends_with_its_turn() {
    let mut talk = Talk::new(tools());
    talked(&mut talk);
    talk.holds = vec![COMPACT];
    let id = compact(&mut talk);
    assert_eq!(talk.status(), Status::Running);
    talk.note("an old turn ends once more");
    talk.end_again("trn_1");
    talk.note("the server says yes");
    talk.answer_held();
    talk.end_again("trn_1");
    assert!(talk.answer(id).is_none(), "that is not the end");
    talk.begin_compaction();
    let (turn, conversation) = (talk.last_turn(), talk.conversation);
    is_busy(
        talk.try_send("two", Default::default()),
        &BusyWhy::Compacting,
    );
    let input = vec!["two".into()];
    is_busy(
        talk.done(Command::Steer { turn, input }),
        &BusyWhy::Compacting,
    );
    for command in [
        Command::Compact { conversation },
        Command::Close { conversation },
        Command::Reset { conversation },
        Command::Begin { conversation },
    ] {
        is_busy(talk.done(command), &BusyWhy::Compacting);
    }
    talk.note("what arrives makes a round afterwards");
    talk.accept([said("two")]);
    assert!(talk.starts.is_empty());
    talk.end_compaction();
    assert_eq!(talk.answer(id), Some(&Ok(Reply::Done)));
    assert_eq!(talk.take(), ["two"]);
    talk.complete("second");
    assert_eq!(talk.status(), Status::Quiet);
    assert_snapshot!(talk.finish());
}

#[track_caller]
fn not_compacted(talk: &Talk, id: CommandId) -> Outcome {
    match talk.answer(id) {
        Some(Err(CommandError::NotCompacted { outcome, .. })) => (**outcome).clone(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_compaction_that_does_not_complete_is_an_error() {
    let mut talk = Talk::new(tools());
    talked(&mut talk);
    let id = compact(&mut talk);
    talk.begin_compaction();
    talk.end("failed");
    assert!(matches!(not_compacted(&talk, id), Outcome::Failed { .. }));
    talk.note("it may be interrupted");
    let id = compact(&mut talk);
    talk.begin_compaction();
    let turn = talk.last_turn();
    talk.interrupted(turn);
    assert_eq!(not_compacted(&talk, id), Outcome::Interrupted);
    assert_eq!(talk.status(), Status::Quiet);
    talk.note("the turn of another client is none");
    let id = compact(&mut talk);
    talk.begin_stranger();
    talk.end("interrupted");
    assert!(talk.answer(id).is_none());
    talk.begin_compaction();
    talk.end_compaction();
    assert_eq!(talk.answer(id), Some(&Ok(Reply::Done)));
    assert_snapshot!(talk.finish());
}

#[test]
fn what_cannot_be_compacted_is_refused() {
    let mut talk = Talk::new(tools());
    let conversation = talk.conversation;
    let command = || Command::Compact { conversation };
    let none = talk.done(command());
    assert!(
        matches!(none, Err(CommandError::NoThread { .. })),
        "{none:?}"
    );
    talk.send("one");
    is_busy(talk.done(command()), &BusyWhy::Round);
    talk.take();
    talk.complete("first");
    talk.note("another client is at work: that would be stopped");
    talk.begin_unheard();
    is_busy(talk.done(command()), &BusyWhy::Turn);
    assert!(sent(&talk, COMPACT).is_empty());
    talk.end_unheard("completed");
    talk.note("the server refuses");
    talk.holds = vec![COMPACT];
    let id = compact(&mut talk);
    talk.refuse_held("not now");
    match talk.answer(id) {
        Some(Err(CommandError::Refused(refusal))) => {
            assert_eq!(refusal.class, RefusalClass::Unclassified);
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(talk.status(), Status::Quiet);
    talk.note("held, it is compacted all the same");
    assert_eq!(talk.hold("wait"), Ok(Reply::Done));
    talk.holds.clear();
    let id = compact(&mut talk);
    talk.begin_compaction();
    assert_eq!(talk.status(), Status::Running);
    talk.end_compaction();
    assert_eq!(talk.answer(id), Some(&Ok(Reply::Done)));
    assert!(matches!(talk.status(), Status::Held { .. }));
    assert_snapshot!(talk.finish());
}

#[test]
fn servers_of_old_tell_it_by_a_word_of_its_own() {
    let mut talk = Talk::new(tools());
    talked(&mut talk);
    let id = compact(&mut talk);
    talk.tell("thread/compacted", "trn_1");
    assert!(
        talk.answer(id).is_none(),
        "that is the word of an older turn"
    );
    talk.tell("thread/compacted", "trn_9");
    assert_eq!(talk.answer(id), Some(&Ok(Reply::Done)));
    let _ = talk.finish();
}

/// Found by the simulator (seed 1213): the command was never answered.
#[test]
fn a_thread_that_is_let_go_is_resumed_to_be_compacted() {
    let mut talk = Talk::new(tools());
    talked(&mut talk);
    talk.holds = vec!["thread/turns/list"];
    let id = compact(&mut talk);
    talk.let_go();
    talk.holds.clear();
    talk.show_last_turn();
    assert_eq!(sent(&talk, "thread/resume").len(), 1);
    talk.begin_compaction();
    talk.end_compaction();
    assert_eq!(talk.answer(id), Some(&Ok(Reply::Done)));
    assert_snapshot!(talk.finish());
}

/// The connection is lost in the middle of it, and the history tells.
#[test]
fn the_history_tells_what_became_of_a_compaction() {
    for (named, runs) in [(true, true), (true, false), (false, true), (false, false)] {
        let mut talk = Talk::lasting(tools());
        talked(&mut talk);
        talk.holds = vec![COMPACT];
        let id = compact(&mut talk);
        if named {
            talk.begin_compaction();
        } else {
            talk.begin_unheard();
        }
        if !runs {
            talk.end_unheard("completed");
        }
        talk.cut();
        talk.settle();
        if runs {
            assert!(talk.answer(id).is_none());
            talk.end_compaction();
        }
        talk.wait(11_000);
        assert_eq!(talk.answer(id), Some(&Ok(Reply::Done)), "{named} {runs}");
        assert_eq!(sent(&talk, COMPACT).len(), 1);
        let log = talk.finish();
        if (named, runs) == (false, true) {
            assert_snapshot!(log);
        }
    }
}

#[test]
fn a_compaction_that_the_history_lacks_is_unknown() {
    let mut talk = Talk::lasting(tools());
    talked(&mut talk);
    talk.holds = vec![COMPACT];
    let id = compact(&mut talk);
    talk.kill_server();
    talk.wait(1_000);
    let answer = talk.answer(id).cloned();
    assert!(
        matches!(answer, Some(Err(CommandError::Unknown { .. }))),
        "{answer:?}"
    );
    assert_eq!(sent(&talk, COMPACT).len(), 1, "it is not sent on a guess");
    talk.note("killed in the middle of it");
    let id = compact(&mut talk);
    talk.begin_compaction();
    talk.kill_server();
    talk.wait(1_000);
    assert_eq!(not_compacted(&talk, id), Outcome::Interrupted);
    talk.send("two");
    assert_eq!(talk.take(), ["two"]);
    talk.complete("second");
    let _ = talk.finish();
}

#[test]
fn no_turn_after_the_servers_yes_is_looked_for() {
    let mut talk = Talk::lasting(tools());
    talked(&mut talk);
    let id = compact(&mut talk);
    talk.begin_unheard();
    talk.end_unheard("completed");
    talk.wait(121_000);
    assert_eq!(talk.answer(id), Some(&Ok(Reply::Done)));
    let id = compact(&mut talk);
    talk.wait(121_000);
    assert!(talk.answer(id).is_none(), "not before the settling time");
    talk.wait(11_000);
    let answer = talk.answer(id).cloned();
    assert!(
        matches!(answer, Some(Err(CommandError::Unknown { .. }))),
        "{answer:?}"
    );
    assert_eq!(talk.status(), Status::Quiet);
    let _ = talk.finish();
}

/// Our process dies in the middle of it. The same command again, or another one, is told what the
/// history says, and nothing is sent twice for it.
#[test]
fn a_crash_leaves_a_compaction_to_the_history() {
    for left in LEFT {
        for end in ["completed", "interrupted", "none"] {
            for named in [true, false] {
                let mut talk = Talk::lasting(tools());
                talked(&mut talk);
                talk.holds = vec![COMPACT];
                let id = compact(&mut talk);
                match end {
                    "none" => {}
                    _ if named => talk.begin_compaction(),
                    _ => talk.begin_unheard(),
                }
                if end == "completed" {
                    talk.end_unheard("completed");
                }
                talk.holds.clear();
                talk.crash_before_reading(left);
                let conversation = talk.conversation;
                talk.ask_as(id, Command::Compact { conversation });
                talk.settle();
                talk.wait(1_000);
                match (end, talk.answer(id)) {
                    ("completed", Some(Ok(Reply::Done)))
                    | ("interrupted", Some(Err(CommandError::NotCompacted { .. })))
                    | ("none", Some(Err(CommandError::Unknown { .. }))) => {}
                    (_, other) => panic!("{left:?} {end} {named}: {other:?}"),
                }
                assert_eq!(sent(&talk, COMPACT).len(), 1);
                let _ = talk.finish();
            }
        }
    }
}
