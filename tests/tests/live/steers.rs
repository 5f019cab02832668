//! Messages into a running turn.

use std::{fmt, time::Duration};

use serde_json::json;
use turnkeep_core::{MessageId, event::ConversationUpdate};
use turnkeep_runtime::{
    CommandError, Conversation, ConversationEvent, RequestError, Steered, Tool, ToolResult, Turn,
    TurnEvent, TurnUpdate,
};
use turnkeep_tests::{
    codex::full_run,
    heard,
    model::{self, Gate, Model},
    session::{PATIENCE, to_end, until, until_call, until_in, until_text, until_turn, within},
};

use crate::codex::{Codex, json as raw};

pub(crate) async fn steer_joins_the_running_turn(version: &'static str) {
    let gate = Gate::new();
    let model = Model::queued([
        model::text("First ").hold(&gate).text("part."),
        model::text("Second part."),
    ]);
    let codex = Codex::start(version, model).await;
    let talk = codex.conversation("talk").await;
    let mut turn = talk.send("go").await.unwrap();
    until_text(&mut turn, "First ").await;
    let steered = turn.steer("and this").await.unwrap();
    let Steered::Taken { message } = steered else {
        panic!("{steered:?}");
    };
    gate.open();
    let told = to_end(&mut turn).await;
    assert_eq!(told.end.outcome.name(), "completed");
    assert_eq!(told.end.text.as_deref(), Some("Second part."));
    let ours: Vec<_> = told.completed("userMessage");
    assert!(
        ours.iter()
            .any(|item| item.client_id.as_deref() == Some(message.as_str())),
        "{ours:?}"
    );
    assert!(
        !told
            .updates
            .iter()
            .any(|u| matches!(u, TurnUpdate::SteerUnrecorded { .. })),
        "{:?}",
        told.updates
    );
    let asked = codex.model.requests();
    assert_eq!(asked.len(), 2);
    assert_eq!(model::last_user_text(&asked[1]), Some("and this"));
    let ended = codex.end().await;
    let steers = ended.recording.sent_params("turn/steer");
    assert_eq!(steers.len(), 1);
    assert_eq!(steers[0]["clientUserMessageId"], message.as_str());
    assert_eq!(
        steers[0]["expectedTurnId"].as_str(),
        told.end.native.as_ref().map(|t| t.as_str())
    );
    assert_eq!(ended.recording.sent_params("turn/start").len(), 1);
}

pub(crate) async fn steer_while_a_call_is_open_comes_after_its_result(version: &'static str) {
    let model = Model::queued([
        model::call("lookup", "call-1", json!({})),
        model::text("Both."),
    ]);
    let codex = Codex::start(version, model).await;
    let lookup = Tool::function("lookup", "Looks up.", raw(json!({ "type": "object" })));
    let talk = codex.open("talk", codex.settings().tool(lookup)).await;
    let mut turn = talk.send("look").await.unwrap();
    let call = until_call(&mut turn).await;
    let steered = turn.steer("and hurry").await.unwrap();
    assert!(matches!(steered, Steered::Taken { .. }), "{steered:?}");
    turn.respond(call.id, ToolResult::ok("v")).await.unwrap();
    assert_eq!(turn.final_response().await.unwrap(), "Both.");

    let asked = codex.model.requests();
    assert_eq!(asked.len(), 2, "both arrive together");
    let input = asked[1]["input"].as_array().unwrap();
    let at = |wanted: &dyn Fn(&serde_json::Value) -> bool| input.iter().position(wanted).unwrap();
    let output = at(&|item| item["type"] == "function_call_output");
    let steer = at(&|item| item["content"][0]["text"] == "and hurry");
    assert!(output < steer, "{output} {steer}");
    codex.end().await;
}

pub(crate) async fn steer_after_the_end_is_refused(version: &'static str) {
    let model = Model::queued([model::text("Done.")]);
    let codex = Codex::start(version, model).await;
    let talk = codex.conversation("talk").await;
    let mut turn = talk.send("go").await.unwrap();
    assert_eq!(turn.final_response().await.unwrap(), "Done.");
    match turn.steer("too late").await {
        Err(RequestError::Command(CommandError::NoActiveTurn)) => {}
        other => panic!("{other:?}"),
    }
    let ended = codex.end().await;
    assert_eq!(ended.recording.sent_params("turn/steer").len(), 0);
}

/// A steer that is sent while the turn ends: whoever wins, its text reaches the model once where it was accepted and
/// never where it was not. 0.163.0 at times takes it as the turn's last item and ends the turn without asking the
/// model: it stands in the history then, and the model reads it with the next turn.
pub(crate) async fn steer_that_crosses_the_end_runs_once(version: &'static str) {
    let rounds = if full_run() { 60 } else { 9 };
    let mut won = Won::default();
    for round in 0..rounds {
        let gate = Gate::new();
        let codex = Codex::start(version, early_or_late(&gate)).await;
        let talk = codex.conversation("talk").await;
        let mut events = talk.events();
        let mut turn = talk.send("go").await.unwrap();
        gate.wait_reached(PATIENCE);
        gate.open();
        // Sooner or later in the turn's end.
        until_in(&mut events, "sign of the end", |event| {
            let sign = match event {
                ConversationEvent::Delta(_) => round % 3 == 0,
                ConversationEvent::Turn { update, .. } => {
                    matches!(update, TurnUpdate::Usage(_)) && round % 3 == 1
                }
                ConversationEvent::Conversation(ConversationUpdate::ThreadStatus(status)) => {
                    status.get().contains("idle") && round % 3 == 2
                }
                _ => false,
            };
            sign.then_some(())
        })
        .await;
        drop(events);
        tokio::time::sleep(Duration::from_micros(200 * (round / 3))).await;
        let steered = within("answer to the steer", turn.steer(LATE)).await;
        won.settle(&codex, &talk, &mut turn, steered).await;
        codex.end().await;
    }
    println!("{version}: of {rounds} steers {won}");
}

/// A steer behind an interrupt of somebody else.
pub(crate) async fn steer_that_crosses_an_interrupt_runs_once(version: &'static str) {
    let rounds = if full_run() { 30 } else { 4 };
    let mut won = Won::default();
    for round in 0..rounds {
        let codex = Codex::start(version, early_or_late(&Gate::new())).await;
        let talk = codex.conversation("talk").await;
        let mut events = talk.events();
        let mut turn = talk.send("go").await.unwrap();
        let thread = until_in(&mut events, "thread", |event| match event {
            ConversationEvent::Conversation(ConversationUpdate::ThreadBound { thread, .. }) => {
                Some(thread.clone())
            }
            _ => None,
        })
        .await;
        let native = until(&mut turn, "start", |event| match event {
            TurnEvent::Update(TurnUpdate::Started { native, .. }) => Some(native.clone()),
            _ => None,
        })
        .await;
        drop(events);
        until_text(&mut turn, "Early").await;
        let params = raw(json!({ "threadId": thread.as_str(), "turnId": native.as_str() }));
        let interrupt = codex.client().request_raw("turn/interrupt", params);
        let steer = async {
            tokio::time::sleep(Duration::from_micros(300 * round)).await;
            turn.steer(LATE).await
        };
        let both = async { tokio::join!(interrupt, steer) };
        let (interrupted, steered) = within("answers", both).await;
        interrupted.unwrap();
        won.settle(&codex, &talk, &mut turn, steered).await;
        let ended = codex.session.end().await;
        assert_eq!(ended.recording.sent_params("turn/interrupt").len(), 1);
    }
    println!("{version}: of {rounds} steers {won}");
    assert_eq!(won.taken, 0, "an interrupted turn takes nothing");
}

const LATE: &str = "a late word";

fn early_or_late(gate: &Gate) -> Model {
    let gate = gate.clone();
    Model::scripted(move |request| match heard::told(request, LATE) > 0 {
        true => model::text("Late."),
        false => model::text("Early").hold(&gate),
    })
}

/// What became of late steers.
#[derive(Debug, Default)]
struct Won {
    taken: u32,
    unanswered: u32,
    unrecorded: u32,
    queued: u32,
    refused: u32,
}

impl fmt::Display for Won {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Won {
            taken,
            unanswered,
            unrecorded,
            queued,
            refused,
        } = self;
        write!(
            f,
            "{taken} were taken, {unanswered} taken and left to the next turn, {unrecorded} taken and not recorded, \
             {queued} queued, {refused} refused here"
        )
    }
}

impl Won {
    async fn settle(
        &mut self,
        codex: &Codex,
        talk: &Conversation,
        turn: &mut Turn,
        steered: Result<Steered, RequestError>,
    ) {
        let first = to_end(turn).await;
        let unrecorded = first
            .updates
            .iter()
            .any(|update| matches!(update, TurnUpdate::SteerUnrecorded { .. }));
        let in_history = |message: &MessageId| {
            let ours = first.completed("userMessage").into_iter();
            ours.filter_map(|item| item.client_id.as_deref())
                .any(|id| id == message.as_str())
        };
        let stalled = first.end.outcome.name() != "completed";
        let (count, follows, expected) = match &steered {
            Ok(Steered::Taken { message }) if !unrecorded => {
                assert!(in_history(message), "{first:?}");
                match carrying(codex) {
                    0 => (&mut self.unanswered, Follows::WithTheNext, 1),
                    _ => (&mut self.taken, Follows::Nothing, 1),
                }
            }
            Ok(Steered::Taken { message }) => {
                assert!(!in_history(message), "{first:?}");
                (&mut self.unrecorded, Follows::ByItself, 1)
            }
            Ok(Steered::Queued { .. }) => (&mut self.queued, Follows::ByItself, 1),
            Err(RequestError::Command(CommandError::NoActiveTurn)) => {
                (&mut self.refused, Follows::Nothing, 0)
            }
            other => panic!("{other:?}"),
        };
        *count += 1;
        let next = match follows {
            Follows::Nothing => None,
            _ if stalled => {
                talk.dismiss().await.unwrap();
                Some(talk.send("next").await.unwrap())
            }
            Follows::WithTheNext => Some(talk.send("next").await.unwrap()),
            Follows::ByItself => Some(until_turn(talk).await),
        };
        if let Some(mut next) = next {
            assert_eq!(next.final_response().await.unwrap(), "Late.");
        }
        assert_eq!(carrying(codex), expected, "{steered:?}");
    }
}

/// How a late word that no model has read reaches one.
enum Follows {
    /// Not: it was read, or never accepted.
    Nothing,
    /// With the next message.
    WithTheNext,
    /// A round of its own begins.
    ByItself,
}

/// How many requests to the model carry the late word, each of them once.
fn carrying(codex: &Codex) -> usize {
    let requests = codex.model.requests().into_iter();
    let times = requests.map(|request| heard::told(&request, LATE));
    let carrying: Vec<usize> = times.filter(|times| *times > 0).collect();
    assert!(carrying.iter().all(|times| *times == 1), "{carrying:?}");
    carrying.len()
}
