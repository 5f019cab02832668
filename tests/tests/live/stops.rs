//! Turns that are stopped.

use std::time::Duration;

use turnkeep_core::command::BusyWhy;
use turnkeep_runtime::{CommandError, Interrupted, Outcome, RequestError, SendError};
use turnkeep_tests::{
    model::{self, Gate, Model},
    session::{PATIENCE, to_end, until_text, within},
};

use crate::codex::Codex;

fn endless() -> model::Reply {
    model::text("So ").hold(&Gate::new()).text("far.")
}

pub(crate) async fn interrupt_stops_the_text(version: &'static str) {
    let model = Model::queued([endless(), model::text("Next.")]);
    let codex = Codex::start(version, model).await;
    let talk = codex.conversation("talk").await;
    let mut turn = talk.send("go").await.unwrap();
    until_text(&mut turn, "So ").await;
    assert_eq!(turn.interrupt().await.unwrap(), Interrupted::Stopped);
    let told = to_end(&mut turn).await;
    assert_eq!(told.end.outcome, Outcome::Interrupted);
    assert_eq!(told.end.text.as_deref(), Some("So "));
    codex.model.wait_for_hangups(1, PATIENCE);
    let mut next = talk.send("and now").await.unwrap();
    assert_eq!(next.final_response().await.unwrap(), "Next.");
    let ended = codex.end().await;
    assert_eq!(ended.recording.sent_params("turn/interrupt").len(), 1);
}

pub(crate) async fn second_interrupt_is_answered_here(version: &'static str) {
    let model = Model::queued([endless()]);
    let codex = Codex::start(version, model).await;
    let talk = codex.conversation("talk").await;
    let mut turn = talk.send("go").await.unwrap();
    until_text(&mut turn, "So ").await;
    assert_eq!(turn.interrupt().await.unwrap(), Interrupted::Stopped);
    assert_eq!(to_end(&mut turn).await.end.outcome, Outcome::Interrupted);
    // 0.163.0 would never answer this one.
    let second = within("answer to the second interrupt", turn.interrupt()).await;
    assert_eq!(
        second.unwrap(),
        Interrupted::AlreadyEnded {
            outcome: "interrupted".into()
        }
    );
    let ended = codex.end().await;
    assert_eq!(ended.recording.sent_params("turn/interrupt").len(), 1);
}

pub(crate) async fn two_interrupts_at_once_are_one(version: &'static str) {
    let model = Model::queued([endless()]);
    let codex = Codex::start(version, model).await;
    let talk = codex.conversation("talk").await;
    let mut turn = talk.send("go").await.unwrap();
    until_text(&mut turn, "So ").await;
    let both = async { tokio::join!(turn.interrupt(), turn.interrupt()) };
    let (one, two) = within("answers to both interrupts", both).await;
    one.unwrap();
    two.unwrap();
    assert_eq!(to_end(&mut turn).await.end.outcome, Outcome::Interrupted);
    let ended = codex.end().await;
    assert_eq!(ended.recording.sent_params("turn/interrupt").len(), 1);
}

pub(crate) async fn deadline_ends_the_turn(version: &'static str) {
    let model = Model::queued([model::text("Here."), endless(), model::text("Next.")]);
    let codex = Codex::start(version, model).await;
    let talk = codex.conversation("talk").await;
    // The making of the thread takes its time on a busy machine.
    let mut first = talk.send("are you there").await.unwrap();
    assert_eq!(first.final_response().await.unwrap(), "Here.");
    let mut turn = talk
        .send("go")
        .deadline(Duration::from_secs(3))
        .await
        .unwrap();
    let told = to_end(&mut turn).await;
    assert_eq!(told.end.outcome, Outcome::TimedOut);
    codex.model.wait_for_hangups(1, PATIENCE);
    // The conversation can be freed once the server has stopped it.
    let next = async {
        loop {
            match talk.send("and now").await {
                Err(SendError::Request(RequestError::Command(CommandError::Busy {
                    why, ..
                }))) => {
                    if matches!(why, BusyWhy::Stalled { .. }) {
                        talk.dismiss().await.unwrap();
                    }
                    tokio::time::sleep(Duration::from_millis(10)).await;
                }
                other => return other,
            }
        }
    };
    let mut next = within("free conversation", next).await.unwrap();
    assert_eq!(next.final_response().await.unwrap(), "Next.");
    let ended = codex.end().await;
    assert_eq!(ended.recording.sent_params("turn/interrupt").len(), 1);
}

pub(crate) async fn dropped_turn_is_given_up(version: &'static str) {
    let model = Model::queued([endless()]);
    let codex = Codex::start(version, model).await;
    let talk = codex.conversation("talk").await;
    let mut turn = talk.send("go").await.unwrap();
    until_text(&mut turn, "So ").await;
    drop(turn);
    codex.model.wait_for_hangups(1, PATIENCE);
    let ended = codex.end().await;
    assert_eq!(ended.recording.sent_params("turn/interrupt").len(), 1);
}

pub(crate) async fn detached_turn_goes_on(version: &'static str) {
    let gate = Gate::new();
    let model = Model::queued([model::text("So ").hold(&gate).text("far.")]);
    let codex = Codex::start(version, model).await;
    let talk = codex.conversation("talk").await;
    let turn = talk.send("go").await.unwrap();
    let number = turn.detach();
    gate.wait_reached(PATIENCE);
    gate.open();
    let mut turn = talk.turn(number).await.unwrap();
    assert_eq!(turn.final_response().await.unwrap(), "So far.");
    let ended = codex.end().await;
    assert_eq!(ended.recording.sent_params("turn/interrupt").len(), 0);
}
