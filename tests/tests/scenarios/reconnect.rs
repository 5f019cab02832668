//! Connections that end and are opened again: what was suspended, and what the history says of it.

use insta::assert_snapshot;
use turnkeep_core::{
    CommandError, ConversationId, Outcome, QuestionId, Reply, SendOptions, Settings, ToolResult,
    TurnNo,
    command::{Answer, Questions, ToolKind},
    config::Resend,
    event::EndSource,
};
use turnkeep_tests::world::{Peers, Setup, World, ms, tool};

use crate::{Scene, own, past, said};

const DELTA: &str = "item/agentMessage/delta";

/// One process behind a socket; what is absent is looked for during one second.
pub(crate) fn over_socket(scene: Scene) -> Setup {
    let setup = scene.setup().reconnects().peers(Peers::Socket);
    setup.config(|config| config.limits.settle = ms(1_000))
}

/// A new process each time.
pub(crate) fn with_children(scene: Scene) -> Setup {
    scene.setup().reconnects()
}

/// Sends a message and lets its turn run as far as the first life of the script goes. The log begins with the loss.
pub(crate) fn sent(setup: Setup) -> (World, ConversationId, TurnNo) {
    let mut world = setup.start();
    let conversation = world.open("a", Settings::new());
    let turn = world.send(conversation, "go");
    world.log_from_here();
    (world, conversation, turn)
}

/// Begins a turn, whose connection ends a moment later.
pub(crate) fn cut_in_mid_turn() -> Scene {
    Scene::new()
        .begin(1)
        .line("X sleep 5")
        .line("X die")
        .next_life()
}

pub(crate) fn cut_socket_in_mid_turn() -> Scene {
    let text = r#""turnId":"trn_1","itemId":"it_1","delta":"one ""#;
    let scene = Scene::new().begin(1).notify(DELTA, text);
    scene.line("X sleep 5").line("X close stdout").next_life()
}

#[test]
fn a_turn_that_still_runs_is_followed() {
    let text = r#""turnId":"trn_1","itemId":"it_1","delta":"three""#;
    let scene = cut_socket_in_mid_turn()
        .resume("active")
        .history(&[past(1, "inProgress", &[own("m1")])])
        .notify(DELTA, text)
        .say(1, "one two three")
        .idle()
        .end(1, "completed");
    let (mut world, _, turn) = sent(over_socket(scene));
    let end = world.end_of(turn);
    assert_eq!(
        (end.text.as_deref(), end.source),
        (Some("one two three"), EndSource::Live)
    );
    assert_snapshot!(world.finish());
}

#[test]
fn a_frame_says_that_the_turn_runs_before_the_history_does() {
    let text = r#""turnId":"trn_1","itemId":"it_1","delta":"three""#;
    let scene = cut_socket_in_mid_turn()
        .resume("active")
        .notify(DELTA, text)
        .line("X sleep 5")
        .history(&[past(1, "inProgress", &[own("m1")])])
        .say(1, "one two three")
        .end(1, "completed");
    let (mut world, _, turn) = sent(over_socket(scene));
    world.end_of(turn);
    assert_eq!(
        world.streamed(turn),
        "one three",
        "no text that came is dropped"
    );
    assert_snapshot!(world.finish());
}

#[test]
fn a_turn_that_ended_meanwhile_ends_as_the_history_says() {
    for (status, name) in [
        ("completed", "completed"),
        ("failed", "failed"),
        ("interrupted", "interrupted"),
        ("melted", "in_an_unknown_way"),
    ] {
        let items = [own("m1"), said("one two")];
        let scene = cut_in_mid_turn()
            .resume("idle")
            .history(&[past(1, status, &items)]);
        let (mut world, _, turn) = sent(with_children(scene));
        let end = world.end_of(turn);
        assert_eq!(end.source, EndSource::Reconciled);
        assert_eq!(end.text.as_deref(), Some("one two"));
        assert_snapshot!(format!("a_turn_found_{name}"), world.finish());
    }
}

#[test]
fn a_message_without_a_trace_is_sent_again_to_a_new_process() {
    let void = past(1, "interrupted", &[]);
    for (turns, name) in [(vec![void], "void"), (vec![], "absent")] {
        let scene = cut_in_mid_turn().resume("idle").history(&turns);
        // The model would read an empty turn's message twice.
        let scene = if turns.is_empty() {
            scene
        } else {
            scene.revert(1)
        };
        let scene = scene.turn_again(1, 2, "done");
        let (mut world, _, turn) = sent(with_children(scene));
        let end = world.end_of(turn);
        assert_eq!(end.text.as_deref(), Some("done"));
        assert_eq!(world.machine().counters().resent, 1);
        assert_snapshot!(format!("a_message_{name}_is_sent_again"), world.finish());
    }
}

#[test]
fn a_start_without_an_answer_is_looked_up_too() {
    let start = r#"C {"method":"turn/start","params":{"clientUserMessageId":"$m1","input":"$i1"}}"#;
    let scene = Scene::new()
        .line(start)
        .line("X die")
        .next_life()
        .resume("idle")
        .history(&[])
        .turn_again(1, 1, "done");
    let (mut world, _, turn) = sent(with_children(scene));
    assert!(matches!(
        world.end_of(turn).outcome,
        Outcome::Completed { .. }
    ));
    assert_snapshot!(world.finish());
}

#[test]
fn absence_is_no_proof_on_the_same_process_before_the_settling_time() {
    let scene = cut_socket_in_mid_turn()
        .histories(&[])
        .resume("idle")
        .turn_again(1, 2, "done");
    let (mut world, _, turn) = sent(over_socket(scene));
    world.end_of(turn);
    assert_eq!(
        world.machine().counters().lookups,
        5,
        "at 0, 250, 500, 750 and 1,000 ms"
    );
    assert_snapshot!(world.finish());
}

#[test]
fn a_message_that_is_recorded_late_is_found_and_not_sent_again() {
    let scene = cut_socket_in_mid_turn()
        .resume("idle")
        .history(&[])
        .history(&[])
        .history(&[past(1, "completed", &[own("m1"), said("done")])]);
    let (mut world, _, turn) = sent(over_socket(scene));
    assert_eq!(world.end_of(turn).text.as_deref(), Some("done"));
    assert_snapshot!(world.finish());
}

#[test]
fn a_turn_of_somebody_else_is_waited_for() {
    let theirs = |status: &str| past(9, status, &[said("theirs")]);
    let scene = cut_socket_in_mid_turn()
        .resume("active")
        .history(&[theirs("inProgress")])
        .line("X sleep 2000")
        .history(&[theirs("inProgress")])
        .idle()
        .histories(&[theirs("completed")])
        .turn_again(1, 2, "done");
    let (mut world, _, turn) = sent(over_socket(scene));
    world.end_of(turn);
    assert_snapshot!(world.finish());
}

#[test]
fn a_thread_that_is_active_is_not_idle_whatever_its_history_says() {
    let scene = cut_socket_in_mid_turn()
        .resume("active")
        .history(&[])
        .history(&[])
        .history(&[])
        .history(&[])
        .history(&[])
        .history(&[])
        .idle()
        .histories(&[])
        .turn_again(1, 2, "done");
    let (mut world, _, turn) = sent(over_socket(scene));
    world.end_of(turn);
    assert_snapshot!(world.finish());
}

#[test]
fn a_message_found_in_another_turn_was_folded_into_it() {
    let scene = Scene::new()
        .turn(1, "one")
        .started(9)
        .line(r#"C {"method":"turn/start","params":{"clientUserMessageId":"$m2"}}"#)
        .line("X sleep 5\nX close stdout")
        .next_life()
        .resume("active")
        .history(&[past(9, "inProgress", &[said("theirs"), own("m2")])])
        .say(9, "for both")
        .end(9, "completed");
    let mut world = over_socket(scene).start();
    let conversation = world.open("a", Settings::new());
    let first = world.send(conversation, "one");
    world.acknowledge(first);
    let second = world.send(conversation, "two");
    world.log_from_here();
    assert_eq!(world.end_of(second).text.as_deref(), Some("for both"));
    assert_snapshot!(world.finish());
}

#[test]
fn usage_that_a_resume_replays_wakes_no_turn() {
    let usage = r#""turnId":"trn_1","tokenUsage":{"total":{"totalTokens":900},"last":{"totalTokens":300},"modelContextWindow":200000}"#;
    let scene = cut_in_mid_turn()
        .line(r#"C {"id":"$r","method":"thread/resume"}"#)
        .notify("thread/tokenUsage/updated", usage)
        .line(r#"S {"id":"$r","result":{"thread":{"id":"thr_1","status":{"type":"idle"}}}}"#)
        .history(&[past(1, "interrupted", &[own("m1")])]);
    let (mut world, _, turn) = sent(with_children(scene));
    assert_eq!(world.end_of(turn).outcome, Outcome::Interrupted);
    assert_snapshot!(world.finish());
}

#[test]
fn a_message_that_is_not_to_be_sent_again_ends_as_unknown() {
    let scene = cut_in_mid_turn().resume("idle").history(&[]);
    let setup = with_children(scene).config(|config| config.resend = Resend::Never);
    let (mut world, _, turn) = sent(setup);
    assert!(matches!(
        world.end_of(turn).outcome,
        Outcome::Unknown { .. }
    ));
    assert_snapshot!(world.finish());
}

/// A turn into which something is steered before its connection ends; one process behind a socket or a new one.
fn steered(scene: Scene, next: impl FnOnce(Scene) -> Scene) -> Scene {
    let scene = scene.line("X sleep 5").line("X close stdout").next_life();
    next(scene)
}

#[test]
fn a_steer_without_an_answer_is_found_in_the_turn() {
    let scene = steered(Scene::new().begin(1).steer(1), |scene| {
        scene
            .resume("active")
            .history(&[past(1, "inProgress", &[own("m1"), own("sm")])])
            .say(1, "with it")
            .end(1, "completed")
    });
    let (mut world, _, turn) = sent(over_socket(scene));
    let steer = world.steer(turn, "more");
    world.log_from_here();
    world.end_of(turn);
    assert!(matches!(
        world.answer(steer),
        Some(Ok(Reply::Steered { .. }))
    ));
    assert_snapshot!(world.finish());
}

#[test]
fn a_steer_without_an_answer_that_no_turn_took_goes_with_a_turn_of_its_own() {
    let scene = steered(Scene::new().begin(1).steer(1), |scene| {
        scene
            .resume("idle")
            .history(&[past(1, "completed", &[own("m1"), said("without it")])])
            .turn(2, "with it")
    });
    let (mut world, _, turn) = sent(with_children(scene));
    let steer = world.steer(turn, "more");
    world.log_from_here();
    assert!(matches!(world.answer_of(steer), Ok(Reply::Queued { .. })));
    let next = world.follow_up(turn);
    world.end_of(next);
    assert_snapshot!(world.finish());
}

#[test]
fn an_answered_steer_that_was_never_recorded_is_said_again() {
    let scene = Scene::new()
        .begin(1)
        .steer(1)
        .line(r#"S {"id":"$st","result":{"turnId":"trn_1"}}"#);
    let scene = steered(scene, |scene| {
        scene
            .resume("idle")
            .history(&[past(1, "interrupted", &[own("m1")])])
            .turn(2, "with it")
    });
    let (mut world, conversation, turn) = sent(with_children(scene));
    let steer = world.steer(turn, "more");
    assert!(matches!(world.answer_of(steer), Ok(Reply::Steered { .. })));
    world.log_from_here();
    assert_eq!(world.end_of(turn).outcome, Outcome::Interrupted);
    world.note("nobody asked for that: it is for the application to go on");
    world.dismiss(conversation);
    let next = world.send(conversation, "go on");
    world.end_of(next);
    assert_snapshot!(world.finish());
}

#[test]
fn steers_that_wait_go_out_when_the_turn_is_heard_again() {
    let scene = steered(Scene::new().begin(1).steer(1), |scene| {
        let second = r#""threadId":"thr_1","expectedTurnId":"trn_1","clientUserMessageId":"$sm2""#;
        scene
            .resume("active")
            .history(&[past(1, "inProgress", &[own("m1"), own("sm")])])
            .answer("turn/steer", second, r#""result":{"turnId":"trn_1"}"#)
            .item(
                1,
                r#""type":"userMessage","id":"u2","clientId":"$sm2","content":[]"#,
            )
            .say(1, "with both")
            .end(1, "completed")
    });
    let (mut world, _, turn) = sent(over_socket(scene));
    world.steer(turn, "more");
    let second = world.steer(turn, "and more");
    world.log_from_here();
    world.end_of(turn);
    assert!(matches!(
        world.answer(second),
        Some(Ok(Reply::Steered { .. }))
    ));
    assert_snapshot!(world.finish());
}

#[test]
fn a_message_sent_again_takes_its_unrecorded_steers_along() {
    let scene = steered(Scene::new().begin(1).steer(1), |scene| {
        let again = r#""threadId":"thr_1","expectedTurnId":"trn_2","clientUserMessageId":"$sm""#;
        scene
            .resume("idle")
            .history(&[])
            .accept_again(1, 2)
            .started(2)
            .answer("turn/steer", again, r#""result":{"turnId":"trn_2"}"#)
            .item(
                2,
                r#""type":"userMessage","id":"u1","clientId":"$m1","content":[]"#,
            )
            .item(
                2,
                r#""type":"userMessage","id":"u2","clientId":"$sm","content":[]"#,
            )
            .say(2, "with it")
            .end(2, "completed")
    });
    let (mut world, _, turn) = sent(with_children(scene));
    let steer = world.steer(turn, "more");
    world.log_from_here();
    world.end_of(turn);
    assert!(matches!(
        world.answer(steer),
        Some(Ok(Reply::Steered { .. }))
    ));
    assert_snapshot!(world.finish());
}

#[test]
fn an_interrupt_that_was_not_answered_is_said_again_where_the_turn_runs() {
    let scene = Scene::new()
        .begin(1)
        .stop(1)
        .line("X sleep 5\nX close stdout")
        .next_life()
        .resume("active")
        .history(&[past(1, "inProgress", &[own("m1")])])
        .answer("turn/interrupt", r#""turnId":"trn_1""#, r#""result":{}"#)
        .end(1, "interrupted");
    let (mut world, _, turn) = sent(over_socket(scene));
    let stop = world.interrupt(turn);
    world.log_from_here();
    assert_eq!(world.answer_of(stop), Ok(Reply::Interrupted));
    world.end_of(turn);
    assert_snapshot!(world.finish());
}

/// A turn whose connection is cut; the next one comes after a pause of a second.
pub(crate) fn away(setup: Setup) -> (World, ConversationId, TurnNo) {
    let setup = setup.config(|config| config.limits.reconnect_first = ms(1_000));
    let (mut world, conversation, turn) = sent(setup);
    world.run(6);
    world.log_from_here();
    (world, conversation, turn)
}

#[test]
fn an_interrupt_while_nobody_is_there_waits_for_what_the_history_says() {
    for (turns, stopped, name) in [
        (vec![past(1, "inProgress", &[own("m1")])], true, "running"),
        (
            vec![past(1, "completed", &[own("m1"), said("done")])],
            false,
            "ended",
        ),
        (vec![], false, "absent"),
    ] {
        let status = if stopped { "active" } else { "idle" };
        let mut scene = cut_in_mid_turn().resume(status).history(&turns);
        if stopped {
            scene = scene
                .answer("turn/interrupt", r#""turnId":"trn_1""#, r#""result":{}"#)
                .end(1, "interrupted");
        }
        let (mut world, _, turn) = away(with_children(scene));
        let stop = world.interrupt(turn);
        let answer = world.answer_of(stop);
        let ended = Reply::AlreadyEnded {
            outcome: "completed".into(),
        };
        let wanted = if name == "ended" {
            ended
        } else {
            Reply::Interrupted
        };
        assert_eq!(answer, Ok(wanted));
        world.end_of(turn);
        assert_snapshot!(format!("an_interrupt_while_away_{name}"), world.finish());
    }
}

#[test]
fn a_turn_given_up_while_nobody_is_there_is_stopped_where_it_runs() {
    let scene = cut_in_mid_turn()
        .resume("active")
        .history(&[past(1, "inProgress", &[own("m1")])])
        .answer("turn/interrupt", r#""turnId":"trn_1""#, r#""result":{}"#)
        .end(1, "interrupted");
    let (mut world, _, turn) = away(with_children(scene));
    world.abandon(turn);
    world.end_of(turn);
    assert_snapshot!(world.finish());
}

#[test]
fn a_deadline_that_passes_while_nobody_is_there_is_the_end() {
    let scene = cut_in_mid_turn()
        .resume("active")
        .history(&[past(1, "inProgress", &[own("m1")])])
        .answer("turn/interrupt", r#""turnId":"trn_1""#, r#""result":{}"#)
        .end(1, "interrupted");
    let setup = with_children(scene).config(|config| config.limits.reconnect_first = ms(1_000));
    let mut world = setup.start();
    let conversation = world.open("a", Settings::new());
    let options = SendOptions::new().deadline(ms(500));
    let turn = world.send_with(conversation, "go", options);
    world.run(6);
    world.log_from_here();
    assert_eq!(world.end_of(turn).outcome, Outcome::TimedOut);
    world.run(5_000);
    assert!(world.is_played());
    assert_snapshot!(world.finish());
}

/// Waits for the answer of a call that the model makes.
const CALL: &str = r#"S {"id":0,"method":"item/tool/call","params":{"threadId":"thr_1","turnId":"trn_1","callId":"call_0","tool":"look","arguments":{"at":1}}}"#;
const RESULT: &str =
    r#"C {"id":0,"result":{"contentItems":[{"type":"inputText","text":"seen"}],"success":true}}"#;

fn calling() -> (Setup, Settings) {
    let scene = Scene::new()
        .begin(1)
        .line(CALL)
        .line("X sleep 5\nX close stdout");
    let scene = scene
        .next_life()
        .resume("active")
        .line(CALL)
        .history(&[past(1, "inProgress", &[own("m1")])])
        .line(RESULT)
        .say(1, "done")
        .end(1, "completed");
    let setup = over_socket(scene).config(|config| config.limits.reconnect_first = ms(1_000));
    let settings = Settings::new().tool(tool("look", ToolKind::Function));
    (setup, settings)
}

#[test]
fn a_call_that_is_open_over_a_reconnect_is_told_once_and_answered_over_the_new_one() {
    let (setup, settings) = calling();
    let mut world = setup.start();
    let conversation = world.open("a", settings);
    let turn = world.send(conversation, "go");
    let call = world.call(turn, 1).id;
    world.log_from_here();
    world.run(2_000);
    world.respond(call, ToolResult::ok("seen"));
    world.end_of(turn);
    assert_eq!(world.calls(turn).len(), 1);
    assert_snapshot!(world.finish());
}

#[test]
fn a_call_that_is_answered_while_nobody_is_there_is_answered_when_it_is_told_again() {
    let (setup, settings) = calling();
    let mut world = setup.start();
    let conversation = world.open("a", settings);
    let turn = world.send(conversation, "go");
    let call = world.call(turn, 1).id;
    world.run(6);
    world.log_from_here();
    let answer = world.respond(call, ToolResult::ok("seen"));
    assert_eq!(world.answer(answer), Some(&Ok(Reply::Done)));
    world.end_of(turn);
    assert_snapshot!(world.finish());
}

const ASKS: &str = r#"S {"id":0,"method":"item/commandExecution/requestApproval","params":{"threadId":"thr_1","turnId":"trn_1","itemId":"it_1","startedAtMs":1,"command":"ls","cwd":"/w","availableDecisions":["accept","decline","cancel"]}}"#;
const RESOLVED: &str =
    r#"S {"method":"serverRequest/resolved","params":{"threadId":"thr_1","requestId":0}}"#;

/// A question is open when the connection is cut; what then?
fn asking(next: impl FnOnce(Scene) -> Scene) -> (World, TurnNo, QuestionId) {
    let scene = Scene::new()
        .begin(1)
        .line(ASKS)
        .line("X sleep 5\nX close stdout");
    let scene = scene
        .next_life()
        .resume("active")
        .history(&[past(1, "inProgress", &[own("m1")])]);
    let setup = over_socket(next(scene)).config(|config| config.limits.reconnect_first = ms(1_000));
    let mut world = setup.start();
    let conversation = world.open("a", Settings::new().questions(Questions::Ask));
    let turn = world.send(conversation, "go");
    let question = world.question(turn, 1).id;
    world.run(6);
    world.log_from_here();
    (world, turn, question)
}

#[test]
fn a_question_that_is_told_again_is_asked_once_and_answered_over_the_new_connection() {
    let (mut world, turn, question) = asking(|scene| {
        scene
            .line(ASKS)
            .line(r#"C {"id":0,"result":{"decision":"accept"}}"#)
            .line(RESOLVED)
            .say(1, "done")
            .end(1, "completed")
    });
    world.run(1_500);
    let answer = world.reply(question, Answer::Accept);
    assert_eq!(world.answer(answer), Some(&Ok(Reply::Done)));
    world.end_of(turn);
    assert_eq!(world.questions(turn).len(), 1);
    assert_snapshot!(world.finish());
}

#[test]
fn an_answer_given_while_nobody_is_there_is_written_when_the_question_is_told_again() {
    let (mut world, turn, question) = asking(|scene| {
        scene
            .line("X sleep 200")
            .line(ASKS)
            .line(r#"C {"id":0,"result":{"decision":"decline"}}"#)
            .line(RESOLVED)
            .say(1, "done")
            .end(1, "completed")
    });
    world.reply(question, Answer::Decline);
    world.end_of(turn);
    assert_snapshot!(world.finish());
}

#[test]
fn a_question_that_is_not_told_again_is_withdrawn_after_the_settling_time() {
    let (mut world, turn, question) = asking(|scene| {
        scene
            .line("X sleep 2000")
            .say(1, "done")
            .end(1, "completed")
    });
    world.run(2_500);
    let answer = world.reply(question, Answer::Accept);
    assert_eq!(
        world.answer(answer),
        Some(&Err(CommandError::UnknownQuestion { question }))
    );
    world.end_of(turn);
    assert_snapshot!(world.finish());
}

#[test]
fn an_answer_whose_question_is_not_told_again_has_arrived() {
    let (mut world, turn, question) = asking(|scene| {
        scene
            .line("X sleep 2000")
            .say(1, "done")
            .end(1, "completed")
    });
    world.reply(question, Answer::Accept);
    world.end_of(turn);
    assert_snapshot!(world.finish());
}

#[test]
fn a_revert_without_an_answer_lets_nothing_go_out_before_the_history_is_read_again() {
    let void = || [past(1, "interrupted", &[])];
    let revert =
        r#"C {"method":"thread/revert","params":{"threadId":"thr_1","beforeTurnId":"trn_1"}}"#;
    let scene = cut_in_mid_turn()
        .resume("idle")
        .history(&void())
        .line(revert)
        .history(&void())
        .answer(
            "thread/revert",
            r#""beforeTurnId":"trn_1""#,
            r#""result":{}"#,
        )
        .turn_again(1, 2, "done");
    let setup = with_children(scene).config(|config| config.limits.request = ms(500));
    let (mut world, _, turn) = sent(setup);
    assert_eq!(world.end_of(turn).text.as_deref(), Some("done"));
    assert_eq!(world.sent_of("turn/start").len(), 2);
    assert_snapshot!(world.finish());
}

#[test]
fn a_revert_that_never_gets_an_answer_is_given_up() {
    let scene = cut_in_mid_turn()
        .line(r#"C* {"method":"thread/revert"}"#)
        .histories(&[past(1, "interrupted", &[])])
        .resume("idle");
    let setup = with_children(scene).config(|config| config.limits.request = ms(500));
    let (mut world, _, turn) = sent(setup);
    assert!(matches!(
        world.end_of(turn).outcome,
        Outcome::Unknown { .. }
    ));
    assert_eq!(world.sent_of("turn/start").len(), 1);
    let _ = world.finish();
}
