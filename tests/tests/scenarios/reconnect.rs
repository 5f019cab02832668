//! Connections that end and are opened again: what was suspended, and what the history says of it.

use insta::assert_snapshot;
use turnkeep_core::{ConversationId, Outcome, Settings, TurnNo, config::Resend, event::EndSource};
use turnkeep_tests::world::{Peers, Setup, World, ms};

use crate::{Scene, own, past, said};

const DELTA: &str = "item/agentMessage/delta";

/// One process behind a socket; what is absent is looked for during one second.
fn over_socket(scene: Scene) -> Setup {
    let setup = scene.setup().reconnects().peers(Peers::Socket);
    setup.config(|config| config.limits.settle = ms(1_000))
}

/// A new process each time.
fn with_children(scene: Scene) -> Setup {
    scene.setup().reconnects()
}

/// Sends a message and lets its turn run as far as the first life of the script goes. The log begins with the loss.
fn sent(setup: Setup) -> (World, ConversationId, TurnNo) {
    let mut world = setup.start();
    let conversation = world.open("a", Settings::new());
    let turn = world.send(conversation, "go");
    world.log_from_here();
    (world, conversation, turn)
}

/// Begins a turn, whose connection ends a moment later.
fn cut_in_mid_turn() -> Scene {
    Scene::new().begin(1).line("X sleep 5").line("X die").next_life()
}

fn cut_socket_in_mid_turn() -> Scene {
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
    assert_eq!((end.text.as_deref(), end.source), (Some("one two three"), EndSource::Live));
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
    assert_eq!(world.streamed(turn), "one three", "no text that came is dropped");
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
        let scene = cut_in_mid_turn()
            .resume("idle")
            .history(&turns)
            .turn_again(1, 2, "done");
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
    assert!(matches!(world.end_of(turn).outcome, Outcome::Completed { .. }));
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
    assert_eq!(world.machine().counters().lookups, 5, "at 0, 250, 500, 750 and 1,000 ms");
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
    let status = |word: &str| {
        let mut scene = Scene::default();
        scene.text = format!(r#""status":{{"type":"{word}"}}"#);
        scene.text
    };
    let scene = cut_socket_in_mid_turn()
        .resume("active")
        .history(&[])
        .history(&[])
        .history(&[])
        .history(&[])
        .history(&[])
        .history(&[])
        .notify("thread/status/changed", &status("idle"))
        .histories(&[])
        .turn_again(1, 2, "done");
    let (mut world, _, turn) = sent(over_socket(scene));
    world.end_of(turn);
    assert_snapshot!(world.finish());
}

#[test]
fn a_message_found_in_another_turn_was_folded_into_it() {
    let scene = Scene::new()
        .started(9)
        .accept(1)
        .line("X close stdout")
        .next_life()
        .resume("active")
        .history(&[past(9, "inProgress", &[said("theirs"), own("m1")])])
        .say(9, "for both")
        .end(9, "completed");
    let (mut world, _, turn) = sent(over_socket(scene));
    assert_eq!(world.end_of(turn).text.as_deref(), Some("for both"));
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
    assert!(matches!(world.end_of(turn).outcome, Outcome::Unknown { .. }));
    assert_snapshot!(world.finish());
}
