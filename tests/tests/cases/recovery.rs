//! E: what becomes of turns, threads and messages over a reconnect or a crash. A6: ends that never came.

use turnkeep_core::{
    CommandError, Outcome, Reply, SendOptions, Settings, TurnUpdate,
    command::{Answer, RefusalClass},
    config::Reconnect,
    event::{
        CallClosedWhy, ConnectionEvent, ConversationUpdate, EndSource, Event, LostReason,
        QuestionClosedWhy, Rejection, Tokens, Warning,
    },
    prompt::PromptState,
};
use turnkeep_tests::world::{Left, Peers, Setup, World, ms};

use crate::{asks, connection_events, in_all_reads, in_all_reads_of, in_journal, script, text};

/// Plays a script whose connection ends and is opened again, in every way of reading.
fn over_lives(script: &str, play: impl Fn(&mut World)) {
    in_all_reads(|| Setup::script(script).reconnects(), play);
}

/// The same, with one process that lives on behind a socket.
fn over_socket(script: &str, play: impl Fn(&mut World)) {
    let setup = || {
        let setup = Setup::script(script).reconnects().peers(Peers::Socket);
        setup.config(|config| config.limits.settle = ms(1_000))
    };
    in_all_reads(setup, play);
}

fn updates(world: &World) -> Vec<ConversationUpdate> {
    let all = world.events().iter().filter_map(|event| match event {
        Event::Conversation(event) => Some(event.update.clone()),
        _ => None,
    });
    all.collect()
}

#[test]
fn case_06_an_end_that_never_comes_is_read_from_the_history() {
    in_all_reads_of(script!("06"), |world| {
        let conversation = world.open("a", Settings::new());
        let turn = world.send(conversation, "go");
        let end = world.end_of(turn);
        assert_eq!((text(&end), end.source), ("done", EndSource::Reconciled));
        assert_eq!(world.elapsed(), 5_000_000, "after the grace period");
        assert_eq!(in_journal(world, r#""source":"reconciled""#), 1);
        // The real end comes later: it is a duplicate and says nothing.
        let before = world.events().len();
        world.run(1_000);
        assert!(world.is_played());
        assert_eq!(world.events().len(), before);
    });
}

#[test]
fn case_06_an_end_within_the_grace_period_wins_and_nothing_is_read() {
    in_all_reads_of(script!("06b"), |world| {
        let conversation = world.open("a", Settings::new());
        let turn = world.send(conversation, "go");
        let end = world.end_of(turn);
        assert_eq!((text(&end), end.source), ("done", EndSource::Live));
        world.run(60_000);
        assert!(world.sent_of("thread/turns/list").is_empty());
    });
}

#[test]
fn case_14_an_uncertain_start_is_looked_up_and_never_replayed_on_a_guess() {
    let pay = |world: &mut World| {
        let conversation = world.open("a", Settings::new());
        world.send(conversation, "pay invoice")
    };
    over_lives(script!("14"), |world| {
        let turn = pay(world);
        assert_eq!(text(&world.end_of(turn)), "paid");
        assert_eq!(world.sent_of("turn/start").len(), 1, "found means accepted");
    });
    over_lives(script!("14b"), |world| {
        let turn = pay(world);
        assert_eq!(text(&world.end_of(turn)), "paid");
        assert_eq!(
            world.sent_of("turn/start").len(),
            2,
            "absent means not accepted"
        );
        let resent = world.updates(turn).into_iter();
        let resent = resent.filter(|update| matches!(update, TurnUpdate::Resent));
        assert_eq!(resent.count(), 1);
    });
    // Without another connection nothing tells.
    let alone = || {
        let setup = Setup::script(script!("14")).reconnects();
        setup.config(|config| config.reconnect = Reconnect::Off)
    };
    in_all_reads(alone, |world| {
        let turn = pay(world);
        assert!(matches!(
            world.end_of(turn).outcome,
            Outcome::Unknown { .. }
        ));
        assert_eq!(world.sent_of("turn/start").len(), 1);
    });
}

#[test]
fn case_27_a_turn_outlives_its_server_and_its_question_is_withdrawn_with_it() {
    over_lives(script!("27b"), |world| {
        let conversation = world.open("a", asks());
        let turn = world.send(conversation, "x");
        let question = world.question(turn, 1).id;
        world.run_until("the server is gone", |world| {
            let all = connection_events(world).into_iter();
            all.filter(|e| matches!(e, ConnectionEvent::Lost { .. }))
                .count()
                == 1
        });
        let open = world.machine().durable().prompt_of_turn(turn);
        let open = open.is_some_and(|(_, p)| matches!(p.state, PromptState::Running { .. }));
        assert!(open, "the journal holds the open turn");
        assert_eq!(world.end_of(turn).outcome, Outcome::Interrupted);
        let updates = world.updates(turn).into_iter().cloned();
        let closed = TurnUpdate::QuestionClosed {
            question,
            why: QuestionClosedWhy::TurnEnded,
        };
        assert_eq!(updates.filter(|update| *update == closed).count(), 1);
        let late = world.reply(question, Answer::Accept);
        let unknown = CommandError::UnknownQuestion { question };
        assert_eq!(world.answer(late), Some(&Err(unknown)));
    });
}

#[test]
fn case_29_a_writer_elsewhere_is_neither_missing_nor_tried_for_ever() {
    let setup = || {
        let setup = Setup::script(script!("29")).reconnects();
        setup.config(|config| {
            config.limits.reconnect_first = ms(100);
            config.limits.reconnect_tries = 3;
        })
    };
    in_all_reads(setup, |world| {
        let conversation = world.open("a", Settings::new());
        let first = world.send(conversation, "one");
        world.end_of(first);
        world.run(1_000);
        let before = world.elapsed();
        let turn = world.send(conversation, "two");
        let Outcome::Rejected {
            error: Rejection::Thread(refusal),
        } = world.end_of(turn).outcome
        else {
            panic!("it was not refused")
        };
        assert_eq!(refusal.class, RefusalClass::ActiveWriterElsewhere);
        assert_eq!(
            world.sent_of("thread/resume").len(),
            4,
            "once and three more"
        );
        assert!(
            world.elapsed() - before >= 100_000 + 200_000 + 400_000,
            "with pauses"
        );
        assert_eq!(
            world.sent_of("thread/start").len(),
            1,
            "no silent new thread"
        );
    });
}

#[test]
fn case_31_no_rollout_is_a_missing_thread_only_for_the_id_that_was_asked() {
    for (script, class, lost) in [
        (script!("31"), RefusalClass::NoRollout, true),
        (script!("31b"), RefusalClass::BadConfiguration, false),
        (script!("31c"), RefusalClass::Unclassified, false),
    ] {
        over_lives(script, |world| {
            let conversation = world.open("a", Settings::new());
            let first = world.send(conversation, "one");
            world.end_of(first);
            world.run(1_000);
            let turn = world.send(conversation, "two");
            let Outcome::Rejected {
                error: Rejection::Thread(refusal),
            } = world.end_of(turn).outcome
            else {
                panic!("it was not refused")
            };
            assert_eq!(refusal.class, class);
            let told = updates(world).into_iter();
            let told = told.filter(|u| matches!(u, ConversationUpdate::ThreadLost { .. }));
            assert_eq!(told.count(), usize::from(lost));
            assert_eq!(
                world.sent_of("thread/start").len(),
                1,
                "the application chooses"
            );
        });
    }
}

#[test]
fn case_32_a_thread_that_never_ran_a_turn_is_made_again() {
    over_lives(script!("32"), |world| {
        let conversation = world.open("a", Settings::new().cwd("/w"));
        let turn = world.send(conversation, "go");
        world.crash(Left::All);
        assert_eq!(text(&world.end_of(turn)), "done");
        let replaced = updates(world).into_iter().find_map(|update| match update {
            ConversationUpdate::ThreadReplaced { old } => Some(old.to_string()),
            _ => None,
        });
        assert_eq!(replaced.as_deref(), Some("thr_1"));
        let starts = world.sent_of("thread/start");
        assert!(starts.len() == 2 && starts.iter().all(|s| s.contains(r#""cwd":"/w""#)));
    });
    over_lives(script!("32b"), |world| {
        let conversation = world.open("a", Settings::new());
        let first = world.send(conversation, "one");
        world.end_of(first);
        world.acknowledge(first);
        world.crash(Left::Checkpoint);
        let turn = world.send(conversation, "two");
        assert!(matches!(
            world.end_of(turn).outcome,
            Outcome::Rejected { .. }
        ));
        assert_eq!(world.sent_of("thread/start").len(), 1, "a real loss");
        let lost = updates(world).into_iter();
        let lost = lost.filter(|u| matches!(u, ConversationUpdate::ThreadLost { .. }));
        assert_eq!(lost.count(), 1);
    });
}

#[test]
fn case_34_a_history_that_is_not_there_yet_says_nothing_of_the_turn() {
    over_lives(script!("34"), |world| {
        let conversation = world.open("a", Settings::new());
        let turn = world.send(conversation, "go");
        assert_eq!(text(&world.end_of(turn)), "done");
        assert_eq!(world.sent_of("turn/start").len(), 2, "an empty history");
    });
    over_lives(script!("34b"), |world| {
        let conversation = world.open("a", Settings::new());
        let turn = world.send(conversation, "go");
        assert_eq!(text(&world.end_of(turn)), "done");
        assert_eq!(
            world.sent_of("turn/start").len(),
            1,
            "found on the last page"
        );
        assert_eq!(world.sent_of("thread/turns/list").len(), 3);
        assert!(
            world.sent_of("thread/read").is_empty(),
            "and never with its turns"
        );
    });
}

#[test]
fn case_35_a_stale_status_is_settled_within_a_bound_and_renamed_items_are_one() {
    over_socket(script!("35"), |world| {
        let conversation = world.open("a", Settings::new());
        let turn = world.send(conversation, "go");
        let end = world.end_of(turn);
        assert_eq!((text(&end), end.source), ("Hello world", EndSource::Live));
        assert_eq!(world.streamed(turn), "Hello wor");
    });
    over_socket(script!("35b"), |world| {
        let conversation = world.open("a", Settings::new());
        let turn = world.send(conversation, "go");
        let end = world.end_of(turn);
        assert_eq!(
            (text(&end), end.source),
            ("Hello world", EndSource::Reconciled)
        );
    });
    over_socket(script!("35c"), |world| {
        let conversation = world.open("a", Settings::new());
        let turn = world.send(conversation, "go");
        let Outcome::Lost {
            reason: LostReason::NeverEnded,
        } = world.end_of(turn).outcome
        else {
            panic!("it was not told as lost")
        };
        assert!(world.elapsed() <= 1_100_000, "within the settling time");
    });
}

#[test]
fn case_37_usage_that_a_resume_replays_is_the_baseline() {
    over_lives(script!("37"), |world| {
        let conversation = world.open("a", Settings::new());
        let first = world.send(conversation, "one");
        world.end_of(first);
        world.acknowledge(first);
        world.crash(Left::All);
        let turn = world.send(conversation, "two");
        let used = world.end_of(turn).usage.unwrap();
        let new = Tokens {
            total_tokens: 250,
            input_tokens: 200,
            cached_input_tokens: 150,
            output_tokens: 50,
            reasoning_output_tokens: 10,
        };
        assert_eq!((used.turn, used.last.total_tokens), (new, 250));
        assert_eq!(used.thread.total_tokens, 1_250);
        // The total fell: a new baseline, and never a negative use.
        let third = world.send(conversation, "three");
        assert_eq!(world.end_of(third).usage.unwrap().turn.total_tokens, 0);
    });
}

#[test]
fn case_a2_a_steer_without_an_answer_is_looked_up_before_it_is_said_again() {
    over_socket(script!("A2"), |world| {
        let conversation = world.open("a", Settings::new());
        let turn = world.send(conversation, "go");
        let steer = world.steer(turn, "more");
        assert_eq!(text(&world.end_of(turn)), "with it");
        assert!(matches!(
            world.answer(steer),
            Some(Ok(Reply::Steered { .. }))
        ));
        assert_eq!(world.sent_of("turn/steer").len(), 1);
        assert_eq!(world.sent_of("turn/start").len(), 1);
    });
    over_lives(script!("A2b"), |world| {
        let conversation = world.open("a", Settings::new());
        let turn = world.send(conversation, "go");
        let steer = world.steer(turn, "more");
        assert!(matches!(world.answer_of(steer), Ok(Reply::Queued { .. })));
        // The turn died with its server, which nobody asked for: it is for the application to go on.
        assert_eq!(world.end_of(turn).outcome, Outcome::Interrupted);
        world.dismiss(conversation);
        let next = world.send(conversation, "go on");
        assert_eq!(text(&world.end_of(next)), "with it");
        let said = world
            .sent()
            .iter()
            .filter(|f| f.contains(r#""text":"more"#));
        assert_eq!(
            said.count(),
            2,
            "the steer that was lost, and the next turn"
        );
    });
}

#[test]
fn case_a6_a_thread_that_the_server_lets_go_is_resumed_with_the_next_turn() {
    over_lives(script!("A6"), |world| {
        let conversation = world.open("a", Settings::new());
        for text in ["one", "two", "three"] {
            let turn = world.send(conversation, text);
            world.end_of(turn);
            world.acknowledge(turn);
            world.run(1_000);
        }
        assert!(world.sent_of("thread/unsubscribe").is_empty());
        let methods = world.sent().iter().filter_map(|frame| {
            let (_, rest) = frame.split_once(r#"{"method":""#)?;
            rest.split('"').next()
        });
        let methods: Vec<&str> = methods.skip_while(|m| *m != "thread/start").collect();
        let wanted = [
            "thread/start",
            "turn/start",
            "thread/resume",
            "turn/start",
            "thread/resume",
            "turn/start",
        ];
        assert_eq!(methods, wanted);
        let detached = updates(world).into_iter();
        let detached = detached.filter(|u| matches!(u, ConversationUpdate::ThreadDetached { .. }));
        assert_eq!(
            detached.count(),
            2,
            "once for each, however often it is said"
        );
    });
}

#[test]
fn case_a9_another_home_is_a_named_warning() {
    over_lives(script!("A9"), |world| {
        let conversation = world.open("a", Settings::new());
        let turn = world.send(conversation, "go");
        world.crash(Left::Checkpoint);
        assert!(matches!(
            world.end_of(turn).outcome,
            Outcome::Unknown { .. }
        ));
        let warning = ConnectionEvent::Warning(Warning::OtherHome {
            was: "/codex-home".into(),
            is: "/other-home".into(),
        });
        let told = connection_events(world).into_iter();
        assert_eq!(told.filter(|event| *event == warning).count(), 1);
        assert_eq!(world.sent_of("turn/start").len(), 1, "never sent again");
        assert_eq!(in_journal(world, "/codex-home"), 1);
    });
}

#[test]
fn case_a16_items_without_an_id_are_the_same_each_time() {
    over_socket(script!("A16"), |world| {
        let conversation = world.open("a", Settings::new());
        let turn = world.send(conversation, "go");
        let end = world.end_of(turn);
        assert_eq!(text(&end), "once");
        assert_eq!(world.sent_of("turn/start").len(), 1, "its message is found");
        assert_eq!(world.sent_of("thread/turns/list").len(), 2);
    });
}

#[test]
fn case_a24_a_turn_that_nobody_here_began_is_an_event() {
    over_lives(script!("A24"), |world| {
        let conversation = world.open("a", Settings::new());
        let turn = world.send_with(conversation, "go", SendOptions::new());
        assert_eq!(text(&world.end_of(turn)), "ours");
        let found = updates(world)
            .into_iter()
            .filter_map(|update| match update {
                ConversationUpdate::TurnFound { native, status } => {
                    Some((native.to_string(), status))
                }
                _ => None,
            });
        let found: Vec<_> = found.collect();
        assert_eq!(found, [("trn_theirs".to_owned(), "completed".to_owned())]);
        let warned = updates(world).into_iter();
        assert_eq!(
            warned
                .filter(|u| matches!(u, ConversationUpdate::Warning(_)))
                .count(),
            0
        );
        let closed = world.updates(turn).into_iter().filter(|update| {
            let why = CallClosedWhy::ConnectionEnded;
            matches!(update, TurnUpdate::CallClosed { why: of, .. } if *of == why)
        });
        assert_eq!(closed.count(), 0);
    });
}
