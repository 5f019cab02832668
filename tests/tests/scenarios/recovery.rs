//! Crashes of ours: what the next life makes of what the journal holds.

use insta::assert_snapshot;
use turnkeep_core::{
    CloseReason, Command, CommandError, ConversationId, InputItem, Outcome, Reply, SendOptions,
    Settings, ToolResult, TurnNo, TurnUpdate,
    command::{Answer, Questions, RequestEffect, ToolKind},
    config::{RecoveredTurns, Resend},
    event::{ConnectionEvent, Event, Recovered},
};
use turnkeep_tests::world::{Journal, Left, Opens, Peers, Setup, World, ms, tool};

use crate::{Scene, own, past, reconnect::over_socket, said};

fn with_children(scene: Scene) -> Setup {
    scene.setup().reconnects()
}

/// Sends a message and lets its turn run as far as the script goes.
fn sent(setup: Setup) -> (World, ConversationId, TurnNo) {
    let mut world = setup.start();
    let conversation = world.open("a", Settings::new());
    let turn = world.send(conversation, "go");
    (world, conversation, turn)
}

/// Our process is killed and begins again; the log begins there.
fn crash(world: &mut World, left: Left) {
    world.log_from_here();
    world.crash(left);
}

fn recovered(world: &World) -> Recovered {
    let mut all = world.events().iter().rev();
    all.find_map(|event| match event {
        Event::Connection(event) => match &**event {
            ConnectionEvent::Recovered(found) => Some(*found),
            _ => None,
        },
        _ => None,
    })
    .expect("what was found is told")
}

fn running() -> Scene {
    Scene::new().begin(1).next_life()
}

#[test]
fn a_life_after_nothing_happened_finds_nothing() {
    let mut world = with_children(Scene::new().next_life()).start();
    crash(&mut world, Left::All);
    assert_eq!(recovered(&world).lives, 1);
    assert_snapshot!(world.finish());
}

#[test]
fn a_message_that_never_became_durable_was_never_sent() {
    let scene = Scene::new().next_life().turn(1, "done");
    let mut world = with_children(scene).start();
    let conversation = world.open("a", Settings::new());
    world.set_journal(Journal::Held);
    let send = world.ask(World::send_command(conversation, "go", SendOptions::new()));
    crash(&mut world, Left::Confirmed);
    assert_eq!(world.answer(send), None);
    assert_eq!(recovered(&world).turns, 0);
    world.release();
    let turn = world.send(conversation, "go");
    assert_eq!(world.end_of(turn).text.as_deref(), Some("done"));
    assert_snapshot!(world.finish());
}

#[test]
fn a_message_that_was_only_written_down_goes_out_once() {
    // The records were handed to the journal and their confirmation never seen: no frame had left.
    let scene = Scene::new().next_life().turn(1, "done");
    let mut world = with_children(scene).start();
    let conversation = world.open("a", Settings::new());
    world.set_journal(Journal::Held);
    world.ask(World::send_command(conversation, "go", SendOptions::new()));
    world.set_journal(Journal::AtOnce);
    crash(&mut world, Left::All);
    let end = world.end_of(TurnNo(1));
    assert_eq!(end.text.as_deref(), Some("done"));
    assert_snapshot!(world.finish());
}

#[test]
fn a_turn_of_an_earlier_life_ends_as_the_history_says() {
    let scene = Scene::new().begin(1).say(1, "half").next_life();
    let scene = scene
        .resume("idle")
        .history(&[past(1, "interrupted", &[own("m1")])]);
    let (mut world, _, turn) = sent(with_children(scene));
    crash(&mut world, Left::All);
    let end = world.end_of(turn);
    assert_eq!(
        (end.outcome, end.text.as_deref()),
        (Outcome::Interrupted, Some("half"))
    );
    assert_snapshot!(world.finish());
}

#[test]
fn a_turn_of_an_earlier_life_that_runs_is_followed_or_interrupted() {
    for (how, name) in [
        (RecoveredTurns::Follow, "followed"),
        (RecoveredTurns::Interrupt, "interrupted"),
    ] {
        let scene = running()
            .resume("active")
            .history(&[past(1, "inProgress", &[own("m1")])]);
        let scene = match how {
            RecoveredTurns::Follow => scene.say(1, "done").end(1, "completed"),
            RecoveredTurns::Interrupt => scene
                .answer("turn/interrupt", r#""turnId":"trn_1""#, r#""result":{}"#)
                .end(1, "interrupted"),
        };
        let setup = over_socket(scene).config(|config| config.recovered_turns = how);
        let (mut world, _, turn) = sent(setup);
        crash(&mut world, Left::All);
        world.end_of(turn);
        assert_snapshot!(
            format!("a_turn_of_an_earlier_life_is_{name}"),
            world.finish()
        );
    }
}

#[test]
fn a_message_of_an_earlier_life_without_a_trace_is_sent_again_under_its_id() {
    let scene = Scene::new()
        .line(r#"C {"method":"turn/start","params":{"clientUserMessageId":"$m1","input":"$i1"}}"#)
        .next_life()
        .resume("idle")
        .history(&[])
        .turn_again(1, 1, "done");
    let (mut world, _, turn) = sent(with_children(scene));
    crash(&mut world, Left::Checkpoint);
    assert_eq!(world.end_of(turn).text.as_deref(), Some("done"));
    let prompts = world.machine().durable().prompt_of_turn(turn);
    assert_eq!(prompts.map(|(_, prompt)| prompt.attempt), Some(2));
    assert_snapshot!(world.finish());
}

#[test]
fn a_message_of_an_earlier_life_is_looked_for_on_a_process_that_lives() {
    let scene = running()
        .histories(&[])
        .resume("idle")
        .turn_again(1, 2, "done");
    let (mut world, _, turn) = sent(over_socket(scene));
    crash(&mut world, Left::All);
    world.end_of(turn);
    assert_eq!(world.machine().counters().lookups, 5);
    assert_snapshot!(world.finish());
}

#[test]
fn a_message_of_an_earlier_life_that_is_not_to_be_sent_again() {
    let scene = running().resume("idle").history(&[]);
    let setup = with_children(scene).config(|config| config.resend = Resend::Never);
    let (mut world, _, turn) = sent(setup);
    crash(&mut world, Left::All);
    assert!(matches!(
        world.end_of(turn).outcome,
        Outcome::Unknown { .. }
    ));
    assert_snapshot!(world.finish());
}

#[test]
fn a_turn_that_was_to_stop_before_its_frame_left_never_leaves() {
    let scene = Scene::new().next_life();
    let mut world = with_children(scene).start();
    let conversation = world.open("a", Settings::new());
    world.set_journal(Journal::Held);
    world.ask(World::send_command(conversation, "go", SendOptions::new()));
    world.interrupt(TurnNo(1));
    world.set_journal(Journal::AtOnce);
    crash(&mut world, Left::All);
    assert_eq!(world.end_of(TurnNo(1)).outcome, Outcome::Interrupted);
    assert_snapshot!(world.finish());
}

#[test]
fn an_interrupt_of_an_earlier_life_is_said_once_more_where_the_turn_runs() {
    let scene = Scene::new()
        .begin(1)
        .stop(1)
        .next_life()
        .resume("active")
        .history(&[past(1, "inProgress", &[own("m1")])])
        .answer("turn/interrupt", r#""turnId":"trn_1""#, r#""result":{}"#)
        .end(1, "interrupted");
    let (mut world, _, turn) = sent(over_socket(scene));
    world.interrupt(turn);
    crash(&mut world, Left::All);
    assert_eq!(world.end_of(turn).outcome, Outcome::Interrupted);
    assert_snapshot!(world.finish());
}

#[test]
fn an_end_that_was_told_by_the_deadline_is_not_told_again() {
    let scene = Scene::new()
        .begin(1)
        .stop(1)
        .next_life()
        .resume("active")
        .history(&[past(1, "inProgress", &[own("m1")])])
        .answer("turn/interrupt", r#""turnId":"trn_1""#, r#""result":{}"#)
        .end(1, "interrupted")
        .turn(2, "two");
    let mut world = over_socket(scene).start();
    let conversation = world.open("a", Settings::new());
    let options = SendOptions::new().deadline(ms(500));
    let turn = world.send_with(conversation, "go", options);
    assert_eq!(world.end_of(turn).outcome, Outcome::TimedOut);
    crash(&mut world, Left::All);
    world.run(100);
    assert_eq!(world.ended(turn), None);
    world.dismiss(conversation);
    let next = world.send(conversation, "more");
    assert_eq!(world.end_of(next).text.as_deref(), Some("two"));
    assert_eq!(
        world.machine().durable().prompt_of_turn(turn),
        None,
        "it is at rest"
    );
    assert_snapshot!(world.finish());
}

#[test]
fn a_deadline_that_passed_between_two_lives_is_the_end() {
    let scene = running()
        .resume("active")
        .history(&[past(1, "inProgress", &[own("m1")])])
        .answer("turn/interrupt", r#""turnId":"trn_1""#, r#""result":{}"#)
        .end(1, "interrupted");
    let mut world = over_socket(scene).start();
    let conversation = world.open("a", Settings::new());
    let options = SendOptions::new().deadline(ms(500));
    let turn = world.send_with(conversation, "go", options);
    world.log_from_here();
    world.crash_for(1_000, Left::All);
    assert_eq!(world.end_of(turn).outcome, Outcome::TimedOut);
    world.run(100);
    assert_snapshot!(world.finish());
}

#[test]
fn a_turn_that_was_given_up_is_told_to_nobody_in_the_next_life() {
    let scene = Scene::new()
        .begin(1)
        .stop(1)
        .next_life()
        .resume("active")
        .history(&[past(1, "inProgress", &[own("m1")])])
        .answer("turn/interrupt", r#""turnId":"trn_1""#, r#""result":{}"#)
        .end(1, "interrupted");
    let (mut world, _, turn) = sent(over_socket(scene));
    world.abandon(turn);
    crash(&mut world, Left::All);
    world.run(100);
    assert!(world.updates(turn).is_empty());
    assert_eq!(
        world.machine().durable().prompt_of_turn(turn),
        None,
        "it is at rest"
    );
    assert_snapshot!(world.finish());
}

const CALL: &str = r#"S {"id":0,"method":"item/tool/call","params":{"threadId":"thr_1","turnId":"trn_1","callId":"call_0","tool":"look","arguments":{"at":1}}}"#;

#[test]
fn a_call_of_an_earlier_life_fails_before_anything_is_said() {
    let shut_down = r#"C {"id":0,"result":{"contentItems":[{"type":"inputText","text":"interrupted by shutdown"}],"success":false}}"#;
    let scene = Scene::new()
        .begin(1)
        .line(CALL)
        .next_life()
        .resume("active")
        .line(CALL)
        .history(&[past(1, "inProgress", &[own("m1")])])
        .line(shut_down)
        .say(1, "done")
        .end(1, "completed");
    let mut world = over_socket(scene).start();
    let settings = Settings::new().tool(tool("look", ToolKind::Function));
    let conversation = world.open("a", settings);
    let turn = world.send(conversation, "go");
    let call = world.call(turn, 1).id;
    world.set_journal(Journal::Held);
    crash(&mut world, Left::Confirmed);
    assert!(
        world.sent_of("initialize").len() == 1,
        "nothing leaves before it is durable"
    );
    world.release();
    let late = world.respond(call, ToolResult::ok("seen"));
    assert_eq!(
        world.answer(late),
        Some(&Err(CommandError::AnsweredDifferently { call }))
    );
    world.end_of(turn);
    assert!(world.calls(turn).is_empty());
    assert_eq!(recovered(&world).calls, 1);
    assert_snapshot!(world.finish());
}

#[test]
fn a_result_that_was_recorded_is_sent_when_the_call_is_told_again() {
    let result = r#"C {"id":0,"result":{"contentItems":[{"type":"inputText","text":"seen"}],"success":true}}"#;
    let scene = Scene::new()
        .begin(1)
        .line(CALL)
        .next_life()
        .resume("active")
        .line(CALL)
        .history(&[past(1, "inProgress", &[own("m1")])])
        .line(result)
        .say(1, "done")
        .end(1, "completed");
    let mut world = over_socket(scene).start();
    let settings = Settings::new().tool(tool("look", ToolKind::Function));
    let conversation = world.open("a", settings);
    let turn = world.send(conversation, "go");
    let call = world.call(turn, 1).id;
    world.set_journal(Journal::Held);
    world.respond(call, ToolResult::ok("seen"));
    world.set_journal(Journal::AtOnce);
    crash(&mut world, Left::All);
    world.end_of(turn);
    assert_snapshot!(world.finish());
}

const ASKS: &str = r#"S {"id":0,"method":"item/commandExecution/requestApproval","params":{"threadId":"thr_1","turnId":"trn_1","itemId":"it_1","startedAtMs":1,"command":"ls","cwd":"/w","availableDecisions":["accept","decline","cancel"]}}"#;
const RESOLVED: &str =
    r#"S {"method":"serverRequest/resolved","params":{"threadId":"thr_1","requestId":0}}"#;

#[test]
fn a_question_of_an_earlier_life_is_asked_once_more() {
    let scene = Scene::new()
        .begin(1)
        .line(ASKS)
        .next_life()
        .resume("active")
        .line(ASKS)
        .history(&[past(1, "inProgress", &[own("m1")])])
        .line(r#"C {"id":0,"result":{"decision":"accept"}}"#)
        .line(RESOLVED)
        .say(1, "done")
        .end(1, "completed");
    let mut world = over_socket(scene).start();
    let conversation = world.open("a", Settings::new().questions(Questions::Ask));
    let turn = world.send(conversation, "go");
    let before = world.question(turn, 1).id;
    crash(&mut world, Left::All);
    let again = world.question(turn, 1).id;
    assert_eq!(again, before, "it is the same question");
    let answer = world.reply(again, Answer::Accept);
    assert_eq!(world.answer(answer), Some(&Ok(Reply::Done)));
    world.end_of(turn);
    assert_eq!(world.questions(turn).len(), 1);
    assert_snapshot!(world.finish());
}

#[test]
fn an_answer_of_an_earlier_life_is_given_again_with_the_same_bytes() {
    let accept = r#"C {"id":0,"result":{"decision":"accept"}}"#;
    let scene = Scene::new()
        .begin(1)
        .line(ASKS)
        .line(accept)
        .next_life()
        .resume("active")
        .line(ASKS)
        .history(&[past(1, "inProgress", &[own("m1")])])
        .line(accept)
        .line(RESOLVED)
        .say(1, "done")
        .end(1, "completed");
    let mut world = over_socket(scene).start();
    let conversation = world.open("a", Settings::new().questions(Questions::Ask));
    let turn = world.send(conversation, "go");
    let question = world.question(turn, 1).id;
    world.reply(question, Answer::Accept);
    crash(&mut world, Left::All);
    world.end_of(turn);
    assert!(world.questions(turn).is_empty());
    assert_snapshot!(world.finish());
}

#[test]
fn questions_of_an_earlier_life_that_are_not_told_again_are_settled() {
    for (answered, name) in [(false, "pending"), (true, "answered")] {
        let scene = Scene::new().begin(1).line(ASKS);
        let scene = match answered {
            true => scene.line(r#"C {"id":0,"result":{"decision":"accept"}}"#),
            false => scene,
        };
        let scene = scene
            .next_life()
            .resume("active")
            .history(&[past(1, "inProgress", &[own("m1")])])
            .line("X sleep 2000")
            .say(1, "done")
            .end(1, "completed");
        let mut world = over_socket(scene).start();
        let conversation = world.open("a", Settings::new().questions(Questions::Ask));
        let turn = world.send(conversation, "go");
        let question = world.question(turn, 1).id;
        if answered {
            world.reply(question, Answer::Accept);
        }
        crash(&mut world, Left::All);
        world.end_of(turn);
        assert_eq!(world.machine().durable().questions().count(), 0);
        assert_snapshot!(
            format!("a_question_of_an_earlier_life_{name}"),
            world.finish()
        );
    }
}

#[test]
fn a_thread_of_an_earlier_life_that_never_ran_is_made_again() {
    let scene = Scene::new()
        .accept(1)
        .next_life()
        .refuse_resume("no rollout found for thread id thr_1")
        .line(r#"C {"id":"$t2","method":"thread/start"}"#)
        .line(r#"S {"id":"$t2","result":{"thread":{"id":"thr_2"}}}"#)
        .line(r#"C {"id":"$b1","method":"turn/start","params":{"threadId":"thr_2","clientUserMessageId":"$m1"}}"#)
        .line(r#"S {"id":"$b1","result":{"turn":{"id":"trn_2"}}}"#)
        .line(r#"S {"method":"turn/completed","params":{"threadId":"thr_2","turn":{"id":"trn_2","status":"completed"}}}"#);
    let (mut world, _, turn) = sent(with_children(scene));
    crash(&mut world, Left::All);
    assert!(matches!(
        world.end_of(turn).outcome,
        Outcome::Completed { .. }
    ));
    assert_snapshot!(world.finish());
}

#[test]
fn ends_are_told_again_until_they_are_acknowledged() {
    let scene = Scene::new().turn(1, "one").next_life().next_life();
    let (mut world, _, turn) = sent(with_children(scene));
    world.end_of(turn);
    crash(&mut world, Left::All);
    assert_eq!(recovered(&world).ends, 1);
    assert_eq!(world.end_of(turn).text.as_deref(), Some("one"));
    world.acknowledge(turn);
    world.crash(Left::All);
    assert_eq!((recovered(&world).ends, world.ended(turn)), (0, None));
    assert_snapshot!(world.finish());
}

#[test]
fn a_keyed_message_said_again_in_the_next_life_is_the_same() {
    let scene = Scene::new().turn(1, "one").next_life().next_life();
    let mut world = with_children(scene).start();
    let conversation = world.open("a", Settings::new());
    let keyed = || SendOptions::new().key("k");
    let turn = world.send_with(conversation, "go", keyed());
    world.end_of(turn);
    crash(&mut world, Left::Checkpoint);
    assert_eq!(
        world.open("a", Settings::new()),
        conversation,
        "so is the conversation"
    );
    assert_eq!(world.send_with(conversation, "go", keyed()), turn);
    world.acknowledge(turn);
    world.crash(Left::All);
    world.note("also once its end is acknowledged; another message under the key is refused");
    assert_eq!(world.send_with(conversation, "go", keyed()), turn);
    let other = world.ask(World::send_command(conversation, "other", keyed()));
    let reused = CommandError::KeyReused { key: "k".into() };
    assert_eq!(world.answer(other), Some(&Err(reused)));
    assert_eq!(world.sent_of("turn/start").len(), 1);
    assert_snapshot!(world.finish());
}

#[test]
fn raw_requests_that_were_open_at_a_crash_end_as_unknown() {
    let scene = Scene::new()
        .line(r#"C {"method":"config/write"}"#)
        .next_life();
    let mut world = with_children(scene).start();
    world.request("config/write", r#"{"a":1}"#, RequestEffect::Changes);
    assert_eq!(world.machine().durable().requests().count(), 1);
    crash(&mut world, Left::All);
    assert_eq!(world.machine().durable().requests().count(), 0);
    assert_snapshot!(world.finish());
}

#[test]
fn a_life_that_reaches_no_server_leaves_everything_to_the_next_one() {
    let scene = Scene::new()
        .begin(1)
        .line(ASKS)
        .next_life()
        .resume("idle")
        .history(&[past(1, "completed", &[own("m1"), said("done")])])
        .turn(2, "and more");
    let mut world = with_children(scene).start();
    let conversation = world.open("a", Settings::new().questions(Questions::Ask));
    let turn = world.send(conversation, "go");
    world.question(turn, 1);
    world.log_from_here();
    world.set_opens(Opens::Never);
    world.crash(Left::All);
    world.note("what the application asks of it in between is answered");
    let steer = world.steer(turn, "more");
    let stop = world.interrupt(turn);
    world.hang_up_unopened(CloseReason::NotFound(vec!["codex".into()]));
    assert!(matches!(
        world.answer(stop),
        Some(Err(CommandError::Disconnected { .. }))
    ));
    // What it said is durable: the next life carries it.
    assert!(matches!(
        world.answer(steer),
        Some(Ok(Reply::Queued { .. }))
    ));
    assert_eq!(world.ended(turn), None);
    world.set_opens(Opens::AtOnce);
    world.crash(Left::All);
    assert_eq!(world.end_of(turn).text.as_deref(), Some("done"));
    assert_snapshot!(world.finish());
}

#[test]
fn an_orphan_that_could_not_be_stopped_is_to_be_stopped_by_the_next_life() {
    let (mut world, _, turn) = sent(with_children(running()));
    world.log_from_here();
    let holds = CloseReason::OpenFailed("an earlier server cannot be stopped".into());
    world.set_opens(Opens::Fails(holds));
    world.crash(Left::All);
    assert!(world.machine().durable().orphan().is_some());
    world.crash(Left::All);
    assert_eq!(world.ended(turn), None);
    assert_snapshot!(world.finish());
}

#[test]
fn steers_of_an_earlier_life_are_looked_up_too() {
    let scene = Scene::new()
        .begin(1)
        .steer(1)
        .line(r#"S {"id":"$st","result":{"turnId":"trn_1"}}"#)
        .next_life()
        .resume("active")
        .history(&[past(1, "inProgress", &[own("m1"), own("sm")])])
        .say(1, "with it")
        .end(1, "completed");
    let (mut world, _, turn) = sent(over_socket(scene));
    world.steer(turn, "more");
    crash(&mut world, Left::All);
    world.end_of(turn);
    assert_eq!(
        world.machine().durable().prompts().count(),
        1,
        "the steer is at rest"
    );
    assert_snapshot!("a_steer_of_an_earlier_life_recorded", world.finish());

    let scene = Scene::new()
        .begin(1)
        .steer(1)
        .next_life()
        .resume("idle")
        .history(&[past(1, "interrupted", &[own("m1")])])
        .turn(2, "with both");
    let (mut world, conversation, turn) = sent(with_children(scene));
    world.steer(turn, "more");
    world.steer(turn, "and more");
    crash(&mut world, Left::All);
    assert_eq!(world.end_of(turn).outcome, Outcome::Interrupted);
    world.note("nobody asked for that: it is for the application to go on");
    world.dismiss(conversation);
    let next = world.send(conversation, "go on");
    world.end_of(next);
    assert_snapshot!("steers_of_an_earlier_life_unrecorded", world.finish());
}

#[test]
fn a_steer_into_a_turn_of_somebody_else_outlives_a_crash() {
    let scene = Scene::new()
        .turn(1, "one")
        .started(9)
        .next_life()
        .resume("idle")
        .history(&[past(9, "completed", &[said("theirs")])])
        .turn(2, "with it");
    let (mut world, _, turn) = sent(with_children(scene));
    world.acknowledge(turn);
    world.set_journal(Journal::Held);
    let theirs = TurnNo(2);
    world.steer(theirs, "more");
    world.set_journal(Journal::AtOnce);
    crash(&mut world, Left::All);
    world.run_until("its own turn", |world| world.ended(TurnNo(3)).is_some());
    assert_snapshot!(world.finish());
}

#[test]
fn a_crash_while_the_life_before_was_recovering_changes_nothing() {
    let scene = Scene::new()
        .begin(1)
        .next_life()
        .resume("idle")
        .line(r#"C {"method":"thread/turns/list"}"#)
        .next_life()
        .resume("idle")
        .history(&[])
        .accept_again(1, 2)
        .next_life()
        .resume("idle")
        .history(&[past(2, "interrupted", &[])])
        .revert(2)
        .turn_again(1, 3, "done");
    let (mut world, _, turn) = sent(with_children(scene));
    crash(&mut world, Left::All);
    world.crash(Left::Checkpoint);
    world.crash(Left::All);
    assert_eq!(world.end_of(turn).text.as_deref(), Some("done"));
    let prompts = world.machine().durable().prompt_of_turn(turn);
    assert_eq!(prompts.map(|(_, prompt)| prompt.attempt), Some(3));
    assert_snapshot!(world.finish());
}

#[test]
fn a_server_reached_another_way_is_told() {
    let scene = running()
        .resume("idle")
        .history(&[past(1, "interrupted", &[own("m1")])]);
    let (mut world, _, turn) = sent(with_children(scene));
    world.set_peers(Peers::Socket);
    crash(&mut world, Left::All);
    world.end_of(turn);
    assert_snapshot!(world.finish());
}

#[test]
fn a_schema_outlives_a_crash() {
    let json = r#"{"a":1}"#;
    let scene = running()
        .resume("idle")
        .history(&[past(1, "completed", &[own("m1"), said(json)])]);
    let mut world = with_children(scene).start();
    let conversation = world.open("a", Settings::new());
    let schema = turnkeep_tests::world::json(r#"{"type":"object"}"#);
    let turn = world.send_with(conversation, "go", SendOptions::new().output_schema(schema));
    crash(&mut world, Left::All);
    let Outcome::Completed { structured, .. } = world.end_of(turn).outcome else {
        panic!("it was not completed")
    };
    assert_eq!(
        structured.map(|json| json.get().to_owned()).as_deref(),
        Some(json)
    );
    let _ = world.finish();
}

#[test]
fn turn_numbers_and_calls_go_on_where_they_were() {
    let scene = Scene::new()
        .begin(1)
        .call(1, 0, "look", r#"{}"#, r#""result":{"success":true}"#)
        .say(1, "one")
        .end(1, "completed")
        .next_life()
        .resume("idle")
        .begin(2)
        .call(2, 0, "look", r#"{}"#, r#""result":{"success":true}"#)
        .say(2, "two")
        .end(2, "completed");
    let mut world = with_children(scene).start();
    let settings = Settings::new().tool(tool("look", ToolKind::Function));
    let conversation = world.open("a", settings);
    let first = world.send(conversation, "one");
    let one = world.call(first, 1).id;
    world.respond(one, ToolResult::ok("x"));
    world.end_of(first);
    world.acknowledge(first);
    world.crash(Left::Checkpoint);
    let second = world.send(conversation, "two");
    let two = world.call(second, 1).id;
    assert_eq!((second, two.sequence, two.nonce), (TurnNo(2), 2, one.nonce));
    world.respond(two, ToolResult::ok("x"));
    world.end_of(second);
    let input = vec![InputItem::text("x")];
    let old = world.ask(Command::Steer { turn: first, input });
    assert_eq!(world.answer(old), Some(&Err(CommandError::NoActiveTurn)));
    let told = world.updates(second).into_iter();
    assert!(
        told.filter(|u| matches!(u, TurnUpdate::ToolCall(_)))
            .count()
            == 1
    );
    let _ = world.finish();
}

#[test]
fn a_secret_answer_is_not_given_again_by_the_next_life() {
    let asks = r#"S {"id":0,"method":"item/tool/requestUserInput","params":{"threadId":"thr_1","turnId":"trn_1","itemId":"it_1","questions":[{"id":"q1","header":"h","question":"key?","options":null,"isSecret":true}]}}"#;
    let scene = Scene::new()
        .begin(1)
        .line(asks)
        .line(r#"C {"id":0,"result":{"answers":{"q1":{"answers":["hunter2"]}}}}"#)
        .next_life()
        .resume("active")
        .line(asks)
        .history(&[past(1, "inProgress", &[own("m1")])])
        .line(r#"C {"id":0,"error":{"code":-32602}}"#)
        .line("X sleep 2000")
        .say(1, "done")
        .end(1, "completed");
    let mut world = over_socket(scene).start();
    let conversation = world.open("a", Settings::new().questions(Questions::Ask));
    let turn = world.send(conversation, "go");
    let question = world.question(turn, 1).id;
    let answers = [("q1".to_owned(), vec!["hunter2".to_owned()])];
    world.reply(question, Answer::Input(answers.into()));
    crash(&mut world, Left::Checkpoint);
    world.end_of(turn);
    assert_eq!(world.machine().durable().questions().count(), 0);
    let journal = String::from_utf8_lossy(world.journal_bytes()).into_owned();
    assert!(!journal.contains("hunter2"));
    assert_snapshot!(world.finish());
}
