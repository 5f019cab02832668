//! What happens to a thread while something that was asked of it is not answered yet.

use turnkeep_core::{
    BoxId, Command, CommandError, CommandId, ConversationId, ConversationKey, Reply, SendOptions,
    Settings,
    command::{BusyWhy, Children, Rendering},
};
use turnkeep_tests::world::{Setup, World};

use crate::talk::{LEFT, Talk, said, tools};

const FORK: &str = "thread/fork";
const COMPACT: &str = "thread/compact/start";
const NAME: &str = "thread/name/set";

fn talked(settings: Settings) -> Talk {
    talked_with(Setup::hand().reconnects(), settings)
}

fn talked_with(setup: Setup, settings: Settings) -> Talk {
    let mut talk = Talk::with(setup, settings);
    talk.send("one");
    talk.take();
    talk.complete("first");
    talk
}

fn fork(talk: &mut Talk) -> CommandId {
    talk.ask(Command::Fork {
        conversation: talk.conversation,
        key: ConversationKey::new("b").unwrap(),
        settings: None,
    })
}

#[track_caller]
fn is_refused(talk: &Talk, id: CommandId) {
    let answer = talk.answer(id);
    assert!(
        matches!(answer, Some(Err(CommandError::Refused(_)))),
        "{answer:?}"
    );
}

#[test]
fn nobody_has_a_fork_that_may_be_refused() {
    let mut talk = talked(tools());
    talk.holds = vec![FORK];
    let id = fork(&mut talk);
    let opens = talk.ask(Command::Open {
        key: ConversationKey::new("b").unwrap(),
        settings: Box::new(tools()),
    });
    assert!(talk.answer(opens).is_none());
    talk.note("whoever knows its number all the same cannot lose anything in it");
    let conversation = ConversationId(talk.conversation.0 + 1);
    let accept = talk.done(Command::Accept {
        conversation,
        boxes: vec![said("two")],
        options: Box::default(),
    });
    let send = talk.done(World::send_command(conversation, "two", SendOptions::new()));
    for answer in [accept, send] {
        match answer {
            Err(CommandError::Busy { why, .. }) => assert_eq!(why, BusyWhy::Forking),
            other => panic!("{other:?}"),
        }
    }
    talk.refuse_held("no forks today");
    is_refused(&talk, id);
    is_refused(&talk, opens);
    let _ = talk.finish();
}

#[test]
fn a_fork_does_not_begin_before_its_thread_is_there() {
    let mut talk = talked(tools());
    assert_eq!(talk.hold("wait"), Ok(Reply::Done));
    talk.note("what waits in the source would begin in the fork, which is not held");
    talk.accept([said("two")]);
    talk.holds = vec![FORK];
    let id = fork(&mut talk);
    talk.refuse_held("no forks today");
    is_refused(&talk, id);
    assert!(talk.starts.is_empty());
    talk.holds.clear();
    let id = fork(&mut talk);
    assert!(matches!(talk.answer(id), Some(Ok(Reply::Opened { .. }))));
    assert_eq!(talk.take(), ["two"]);
    let _ = talk.finish();
}

#[test]
fn the_source_waits_for_its_fork() {
    let mut talk = talked(tools());
    talk.holds = vec![FORK];
    let id = fork(&mut talk);
    talk.note("the server is overloaded: the fork is asked for again");
    talk.refuse_held_with(-32001, "Server overloaded; retry later.");
    match talk.try_send("two", SendOptions::new()) {
        Err(CommandError::Busy { why, .. }) => assert_eq!(why, BusyWhy::Forking),
        other => panic!("{other:?}"),
    }
    talk.note("what arrives begins a round once the fork is made");
    talk.accept([said("two")]);
    talk.holds.clear();
    assert!(talk.starts.is_empty());
    talk.wait(1_000);
    assert!(matches!(talk.answer(id), Some(Ok(Reply::Opened { .. }))));
    assert_eq!(talk.take(), ["two"]);
    let _ = talk.finish();
}

#[test]
fn a_name_that_is_answered_after_its_thread_is_gone() {
    let mut talk = Talk::lasting(tools());
    talk.holds = vec![NAME];
    let conversation = talk.conversation;
    let id = talk.ask(Command::Materialise { conversation });
    talk.let_go();
    talk.forgets = true;
    let sends = talk.ask(World::send_command(conversation, "one", SendOptions::new()));
    assert!(matches!(talk.answer(sends), Some(Ok(_))));
    talk.settle();
    talk.refuse_held("thread not found: thr_1");
    is_refused(&talk, id);
    assert_eq!(talk.take(), ["one"]);
    let _ = talk.finish();
}

#[test]
fn a_compaction_of_an_earlier_life_is_not_run_again() {
    for left in LEFT {
        let setup = Setup::hand().reconnects();
        let setup = setup.config(|config| config.remember_commands = true);
        let mut talk = talked_with(setup, tools());
        talk.holds = vec![COMPACT];
        let conversation = talk.conversation;
        let id = talk.ask(Command::Compact { conversation });
        talk.begin_compaction();
        talk.end_unheard("completed");
        talk.holds.clear();
        talk.crash_before_reading(left);
        talk.note("its end is found before anybody asks");
        talk.wait(20_000);
        talk.ask_as(id, Command::Compact { conversation });
        talk.settle();
        assert_eq!(talk.answer(id), Some(&Ok(Reply::Done)));
        assert_eq!(talk.sent_of(COMPACT).len(), 1, "{left:?}");
        let _ = talk.finish();
    }
}

#[test]
fn who_hears_of_children_is_not_the_threads() {
    let mut talk = talked(tools());
    let conversation = talk.conversation;
    let settings = Box::new(tools().children(Children::Tell));
    let changed = talk.done(Command::Change {
        conversation,
        settings,
    });
    assert_eq!(changed, Ok(Reply::Done));
    talk.send("two");
    assert_eq!(talk.take(), ["two"]);
    assert_eq!(talk.sent_of("thread/start").len(), 1);
    let all = talk.done(Command::Read {
        conversation,
        from: BoxId(1),
        limit: 10,
    });
    assert!(matches!(all, Ok(Reply::Boxes { .. })));
    let _ = talk.finish();
}

/// The process that was asked for it lives: it may make the thread late.
#[test]
fn a_fork_that_is_made_late_is_found() {
    for late in [2_000, 20_000] {
        let mut talk = talked(tools());
        talk.holds = vec![FORK];
        let id = fork(&mut talk);
        talk.shows_fork = false;
        talk.wait(60_000);
        assert!(talk.answer(id).is_none());
        talk.note("no answer in time, and no thread either");
        talk.wait(late);
        talk.shows_fork = true;
        talk.wait(30_000);
        if late < 10_000 {
            assert!(matches!(talk.answer(id), Some(Ok(Reply::Opened { .. }))));
        } else {
            let answer = talk.answer(id);
            assert!(
                matches!(answer, Some(Err(CommandError::Unknown { .. }))),
                "{answer:?}"
            );
        }
        let _ = talk.finish();
    }
}

#[test]
fn the_same_fork_with_other_settings_is_another_one() {
    let mut talk = talked(tools());
    let id = fork(&mut talk);
    assert!(matches!(talk.answer(id), Some(Ok(Reply::Opened { .. }))));
    let conversation = talk.conversation;
    let mut again = |settings: Option<Settings>| {
        talk.done(Command::Fork {
            conversation,
            key: ConversationKey::new("b").unwrap(),
            settings: settings.map(Box::new),
        })
    };
    assert!(matches!(again(None), Ok(Reply::Opened { .. })));
    assert!(matches!(again(Some(tools())), Ok(Reply::Opened { .. })));
    let other = again(Some(tools().rendering(Rendering::Boxed)));
    assert!(
        matches!(other, Err(CommandError::OpenDifferently { .. })),
        "{other:?}"
    );
    let _ = talk.finish();
}
