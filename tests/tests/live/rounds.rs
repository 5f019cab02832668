//! Rounds: what arrives reaches the model once, by steer or by a round that follows.

use std::{
    collections::VecDeque,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use serde_json::{Value, json};
use turnkeep_core::{
    command::{RefusalClass, Rendering, SteerWhen},
    config::Reconnect,
    event::{ConversationUpdate, Status},
    id::BoxId,
    preflight::PreflightItem,
    tools,
    transcript::{BoxBody, TranscriptBox, box_type},
};
use turnkeep_runtime::{
    ChildConfig, CommandError, Conversation, ConversationEvent, ConversationEvents, Outcome,
    RequestError, Settings, Steered, Tool, ToolResult, Turn, TurnEvent, TurnUpdate,
};
use turnkeep_tests::{
    codex::{self, CodexHome},
    heard,
    model::{self, Gate, Model, Reply},
    recording::Recording,
    session::{
        PATIENCE, Session, later, probe, to_end, until, until_call, until_in, until_text,
        until_turn, within,
    },
};

use crate::codex::{Codex, json as raw};

/// The tools whose results come later.
pub(crate) const DEFERRED: [&str; 1] = ["later"];

/// A model that gives these replies, and past them says something else each time.
pub(crate) fn talkative(replies: impl IntoIterator<Item = Reply>) -> Model {
    let queue = Mutex::new(VecDeque::from_iter(replies));
    let said = AtomicUsize::new(0);
    Model::scripted(move |_| {
        let next = queue
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .pop_front();
        next.unwrap_or_else(|| {
            let number = said.fetch_add(1, Ordering::Relaxed);
            model::text(&format!("Noted as {number}."))
        })
    })
}

async fn start(version: &'static str, model: Model) -> Codex {
    let home = CodexHome::new(&model);
    Codex::start_in(version, model, home, |config| {
        config.machine(|machine| machine.reconnect = Reconnect::On)
    })
    .await
}

fn with_tools(codex: &Codex) -> Settings {
    codex.settings().tool(later()).tool(probe())
}

pub(crate) async fn boxes(talk: &Conversation) -> Vec<TranscriptBox> {
    let (boxes, last) = talk.read(BoxId(1), 10_000).await.unwrap();
    assert_eq!(boxes.last().map_or(0, |b| b.id.0), last.0);
    boxes
}

/// The contents of the boxes of a type.
pub(crate) fn of_type<'a>(boxes: &'a [TranscriptBox], kind: &str) -> Vec<&'a str> {
    let of = boxes.iter().filter(|b| b.body.box_type == kind);
    of.map(|b| b.body.contents.as_str()).collect()
}

/// Waits until a box with this text stands in the transcript.
async fn until_box(talk: &Conversation, text: &str) {
    let look = async {
        while !boxes(talk)
            .await
            .iter()
            .any(|b| b.body.contents.contains(text))
        {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    within(text, look).await;
}

async fn until_quiet(events: &mut ConversationEvents) {
    until_in(events, "quiet", |event| match event {
        ConversationEvent::Conversation(ConversationUpdate::Status(Status::Quiet)) => Some(()),
        _ => None,
    })
    .await;
}

/// Says one more thing, and checks that every box stands once in the request that carries it. Returns the request.
pub(crate) async fn everything_stands_once(model: &Model, talk: &Conversation) -> Value {
    everything_stands_once_but(model, talk, &[]).await
}

/// The same; the thread does not hold the boxes with these texts.
async fn everything_stands_once_but(model: &Model, talk: &Conversation, cut: &[&str]) -> Value {
    let last = format!("the last word after {} boxes", boxes(talk).await.len());
    let mut turn = talk.send(&last).await.unwrap();
    let answer = turn.final_response().await.unwrap();
    let mut boxes = boxes(talk).await;
    let response = boxes.pop().expect("it was answered");
    assert_eq!(
        response.body,
        BoxBody::new(box_type::AGENT_RESPONSE, answer)
    );
    assert_eq!(boxes.last().map(|b| &b.body), Some(&BoxBody::user(&last)));
    let request = model.requests().pop().expect("it was asked");
    let (gone, kept): (Vec<_>, Vec<_>) = boxes
        .into_iter()
        .partition(|b| cut.contains(&b.body.contents.as_str()));
    for gone in gone {
        let text = gone.body.contents;
        assert!(
            !heard::parts(&request).join("\n").contains(&text),
            "{text:?} is there"
        );
    }
    let faults = heard::faults(&request, &kept, &DEFERRED);
    assert!(faults.is_empty(), "{}", faults.join("\n"));
    request
}

/// Nothing begins by itself any more.
pub(crate) async fn nothing_follows(talk: &Conversation) {
    tokio::time::sleep(Duration::from_millis(300)).await;
    let next = talk.current_turn().await.unwrap();
    assert!(next.is_none(), "{next:?}");
}

fn started(recording: &Recording) -> usize {
    recording.sent_params("turn/start").len()
}

/// What went over the wire of steers and calls, in order.
fn wire(recording: &Recording) -> Vec<&'static str> {
    let frames = recording.frames();
    let calls: Vec<Value> = frames
        .iter()
        .filter(|(ours, frame)| !ours && frame["method"] == "item/tool/call")
        .map(|(_, frame)| frame["id"].clone())
        .collect();
    let mut steers = Vec::new();
    let mut told = Vec::new();
    for (ours, frame) in &frames {
        let method = frame["method"].as_str();
        match (ours, method) {
            (true, Some("turn/start")) => told.push("start"),
            (true, Some("turn/steer")) => {
                steers.push(frame["id"].clone());
                told.push("steer");
            }
            (false, Some("item/tool/call")) => told.push("call"),
            (true, None) if calls.contains(&frame["id"]) => told.push("answer"),
            (false, None) if steers.contains(&frame["id"]) => told.push("steered"),
            _ => {}
        }
    }
    told
}

async fn taken(turn: &Turn, text: &str) {
    let steered = within("answer to the steer", turn.steer(text))
        .await
        .unwrap();
    assert!(matches!(steered, Steered::Taken { .. }), "{steered:?}");
}

pub(crate) async fn deferred_result_is_steered_in_at_the_next_stage(version: &'static str) {
    let gate = Gate::new();
    let model = talkative([
        model::text("I look.").call("later", "call-1", json!({ "key": "alpha" })),
        model::text("Meanwhile I probe.").hold(&gate).call(
            "probe",
            "call-2",
            json!({ "key": "beta" }),
        ),
        model::text("Both are there."),
    ]);
    let codex = Codex::start(version, model).await;
    let talk = codex.open("talk", with_tools(&codex)).await;
    let mut turn = talk.send("look at both").await.unwrap();
    let slow = until_call(&mut turn).await;
    gate.wait_reached(PATIENCE);
    turn.respond(slow.id, ToolResult::ok("value of alpha"))
        .await
        .unwrap();
    tokio::time::sleep(Duration::from_millis(200)).await;
    gate.open();
    let quick = until_call(&mut turn).await;
    assert_eq!(quick.tool, "probe");
    turn.respond(quick.id, ToolResult::ok("value of beta"))
        .await
        .unwrap();
    let told = to_end(&mut turn).await;
    assert_eq!(told.end.text.as_deref(), Some("Both are there."));

    let asked = codex.model.requests();
    assert_eq!(asked.len(), 3);
    assert_eq!(
        model::call_outputs(&asked[1]),
        [("call-1", tools::DEFERRED.to_owned())]
    );
    assert_eq!(
        heard::told(&asked[1], "call 1: later {\"key\":\"alpha\"}"),
        1
    );
    assert_eq!(heard::told(&asked[1], "value of alpha"), 0);
    assert_eq!(heard::told(&asked[2], "value of alpha"), 1);
    everything_stands_once(&codex.model, &talk).await;
    let ended = codex.end().await;
    assert_eq!(
        wire(&ended.recording),
        [
            "start", "call", "steer", "steered", "answer", "call", "steer", "steered", "answer",
            "start"
        ],
        "each call is answered behind the steer of its stage"
    );
}

pub(crate) async fn deferred_result_is_steered_in_at_once(version: &'static str) {
    let gate = Gate::new();
    let model = talkative([
        model::call("later", "call-1", json!({ "key": "alpha" })),
        model::text("Meanwhile ").hold(&gate).text("I talk."),
        model::text("There it is."),
    ]);
    let codex = Codex::start(version, model).await;
    let settings = with_tools(&codex).steer(SteerWhen::AtOnce);
    let talk = codex.open("talk", settings).await;
    let mut turn = talk.send("look").await.unwrap();
    let call = until_call(&mut turn).await;
    until_text(&mut turn, "Meanwhile ").await;
    talk.respond(call.id, ToolResult::ok("value of alpha"))
        .await
        .unwrap();
    until_box(&talk, "value of alpha").await;
    tokio::time::sleep(Duration::from_millis(100)).await;
    gate.open();
    let told = to_end(&mut turn).await;
    assert_eq!(told.end.text.as_deref(), Some("There it is."));
    let asked = codex.model.requests();
    assert_eq!(asked.len(), 3);
    assert_eq!(heard::told(&asked[2], "value of alpha"), 1);
    println!(
        "{version}: {:?}",
        of_type(&boxes(&talk).await, box_type::AGENT_RESPONSE)
    );
    // The server breaks an answer off for a steer and forgets what was said of it.
    everything_stands_once_but(&codex.model, &talk, &["Meanwhile "]).await;
    let ended = codex.end().await;
    assert_eq!(
        wire(&ended.recording),
        [
            "start", "call", "steer", "steered", "answer", "steer", "steered", "start"
        ]
    );
}

pub(crate) async fn boxes_are_told_with_their_numbers(version: &'static str) {
    let model = talkative([
        model::text("I look.").call("later", "call-1", json!({ "key": "alpha" })),
        model::text("Soon."),
    ]);
    let codex = Codex::start(version, model).await;
    let settings = with_tools(&codex).rendering(Rendering::Boxed);
    let talk = codex.open("talk", settings).await;
    let mut turn = talk.send("look").await.unwrap();
    let call = until_call(&mut turn).await;
    assert_eq!(to_end(&mut turn).await.end.text.as_deref(), Some("Soon."));
    talk.respond(call.id, ToolResult::ok("value of alpha"))
        .await
        .unwrap();
    let mut next = until_turn(&talk).await;
    assert_eq!(next.final_response().await.unwrap(), "Noted as 0.");
    let request = everything_stands_once(&codex.model, &talk).await;
    let texts: Vec<&str> = model::user_texts(&request)
        .into_iter()
        .filter(|text| text.starts_with("[Box "))
        .collect();
    assert_eq!(
        texts,
        [
            "[Box 1 | User Message]\nlook\n[Box 2 | Agent Response]\n",
            "[Box 3 | Tool Call]\ncall 1: later {\"key\":\"alpha\"}\n[Box 4 | Agent Response]\n",
            "[Box 5 | Tool Result]\nresult of call 1: ok\nvalue of alpha\n[Box 6 | Agent Response]\n",
            "[Box 7 | User Message]\nthe last word after 6 boxes\n[Box 8 | Agent Response]\n",
        ]
    );
    codex.end().await;
}

/// While a call is open the model does not go on, so that a steer is answered and not recorded.
pub(crate) async fn steer_lost_to_a_kill_is_submitted_again(version: &'static str) {
    let model = talkative([model::text("So far.").call("probe", "call-1", json!({}))]);
    let codex = start(version, model).await;
    let talk = codex.open("talk", with_tools(&codex)).await;
    let mut turn = talk.send("the first word").await.unwrap();
    until_call(&mut turn).await;
    taken(&turn, "the steered word").await;
    codex.session.kill_server();
    let told = to_end(&mut turn).await;
    assert_eq!(told.end.outcome, Outcome::Interrupted);
    talk.dismiss().await.unwrap();
    // Only what comes now triggers.
    nothing_follows(&talk).await;
    let mut next = talk.send("the second word").await.unwrap();
    assert_eq!(next.final_response().await.unwrap(), "Noted as 0.");
    let asked = codex.model.requests();
    assert_eq!(asked.len(), 2);
    for word in [
        "the first word",
        "the steered word",
        "the second word",
        "dismissed",
    ] {
        assert_eq!(heard::told(&asked[1], word), 1, "{word}");
    }
    println!(
        "{version}: after the kill the model has {:#?}",
        heard::parts(&asked[1])
    );
    let ended = codex.end().await;
    let steers = ended.recording.sent_params("turn/steer");
    let starts = ended.recording.sent_params("turn/start");
    assert_eq!((steers.len(), starts.len()), (1, 2));
    assert_ne!(
        steers[0]["clientUserMessageId"], starts[1]["clientUserMessageId"],
        "another message carries it"
    );
}

pub(crate) async fn stage_lost_to_a_kill_is_submitted_again(version: &'static str) {
    let model = talkative([
        model::call("later", "call-1", json!({ "key": "alpha" })).call(
            "probe",
            "call-2",
            json!({ "key": "beta" }),
        ),
    ]);
    let codex = start(version, model).await;
    let talk = codex.open("talk", with_tools(&codex)).await;
    let mut turn = talk.send("look at both").await.unwrap();
    // Whichever comes first: the model goes on when both are answered.
    let (mut slow, mut quick) = (None, None);
    while slow.is_none() || quick.is_none() {
        let call = until_call(&mut turn).await;
        match call.tool.as_str() {
            "later" => slow = Some(call.id),
            _ => quick = Some(call.id),
        }
    }
    let (slow, quick) = (slow.unwrap(), quick.unwrap());
    until_box(&talk, "call 1: ").await;
    tokio::time::sleep(Duration::from_millis(200)).await;
    codex.session.kill_server();
    let told = to_end(&mut turn).await;
    assert_eq!(told.end.outcome, Outcome::Interrupted);
    let deferred: Vec<_> = told
        .updates
        .iter()
        .filter_map(|update| match update {
            TurnUpdate::CallDeferred { call } => Some(*call),
            _ => None,
        })
        .collect();
    assert_eq!(deferred, [quick], "{:?}", told.updates);
    // They are ours still, and their results wait for the way on.
    talk.respond(slow, ToolResult::ok("value of alpha"))
        .await
        .unwrap();
    talk.respond(quick, ToolResult::ok("value of beta"))
        .await
        .unwrap();
    talk.dismiss().await.unwrap();
    nothing_follows(&talk).await;
    let mut next = talk.send("go on").await.unwrap();
    assert_eq!(next.final_response().await.unwrap(), "Noted as 0.");
    let request = codex.model.requests().pop().unwrap();
    println!(
        "{version}: after the kill the model has {:#?}",
        heard::parts(&request)
    );
    for text in [
        "look at both",
        "call 1: later",
        "value of alpha",
        "value of beta",
        "go on",
    ] {
        assert_eq!(heard::told(&request, text), 1, "{text}");
    }
    codex.end().await;
}

pub(crate) async fn steer_lost_to_an_interrupt_is_submitted_again(version: &'static str) {
    let model = talkative([model::text("So far.").call("probe", "call-1", json!({}))]);
    let codex = Codex::start(version, model).await;
    let talk = codex.open("talk", with_tools(&codex)).await;
    let mut turn = talk.send("the first word").await.unwrap();
    until_call(&mut turn).await;
    taken(&turn, "the steered word").await;
    turn.interrupt().await.unwrap();
    let told = to_end(&mut turn).await;
    assert_eq!(told.end.outcome, Outcome::Interrupted);
    let lost = told
        .updates
        .iter()
        .filter(|u| matches!(u, TurnUpdate::SteerUnrecorded { .. }));
    assert_eq!(lost.count(), 1, "{:?}", told.updates);
    // It was said and not heard: a round follows by itself.
    let mut next = until_turn(&talk).await;
    assert_eq!(next.final_response().await.unwrap(), "Noted as 0.");
    let asked = codex.model.requests();
    assert_eq!(asked.len(), 2);
    assert_eq!(heard::told(&asked[1], "the steered word"), 1);
    nothing_follows(&talk).await;
    everything_stands_once(&codex.model, &talk).await;
    let ended = codex.end().await;
    assert_eq!(started(&ended.recording), 3);
    let steers = ended.recording.sent_params("turn/steer");
    let starts = ended.recording.sent_params("turn/start");
    assert_eq!(steers.len(), 1);
    assert_ne!(
        steers[0]["clientUserMessageId"], starts[1]["clientUserMessageId"],
        "another message carries it"
    );
}

/// While text streams the server breaks the answer off and takes the steer at once: an interrupt comes too late to lose it.
/// Whatever becomes of it, it is told once.
pub(crate) async fn steer_into_text_is_told_once_after_an_interrupt(version: &'static str) {
    let never = Gate::new();
    let model = talkative([
        model::text("So far.").hold(&never),
        model::text("And on.").hold(&never),
    ]);
    let codex = Codex::start(version, model).await;
    let talk = codex.open("talk", with_tools(&codex)).await;
    let mut events = talk.events();
    let mut turn = talk.send("the first word").await.unwrap();
    until_text(&mut turn, "So far.").await;
    taken(&turn, "the steered word").await;
    tokio::time::sleep(Duration::from_millis(300)).await;
    let before = codex.model.requests().len();
    turn.interrupt().await.unwrap();
    let told = to_end(&mut turn).await;
    assert_eq!(told.end.outcome, Outcome::Interrupted);
    let recorded = told
        .completed("userMessage")
        .iter()
        .filter(|item| item.raw.get().contains("the steered word"))
        .count();
    println!("{version}: {before} requests before the interrupt, recorded: {recorded}");
    never.open();
    until_quiet(&mut events).await;
    let request = codex.model.requests().pop().unwrap();
    match recorded {
        0 => assert_eq!(heard::told(&request, "the steered word"), 1),
        _ => nothing_follows(&talk).await,
    }
    let mut next = talk.send("the second word").await.unwrap();
    next.outcome().await.unwrap();
    let request = codex.model.requests().pop().unwrap();
    for word in ["the first word", "the steered word", "the second word"] {
        assert_eq!(heard::told(&request, word), 1, "{word}");
    }
    codex.end().await;
}

pub(crate) async fn result_after_the_turn_makes_one_round(version: &'static str) {
    let model = talkative([
        model::text("I look.").call("later", "call-1", json!({ "key": "alpha" })),
        model::text("It takes its time."),
    ]);
    let codex = Codex::start(version, model).await;
    let talk = codex.open("talk", with_tools(&codex)).await;
    let mut events = talk.events();
    let mut turn = talk.send("look").await.unwrap();
    let call = until_call(&mut turn).await;
    talk.tool_message(call.id, "half of it is done")
        .await
        .unwrap();
    assert_eq!(
        to_end(&mut turn).await.end.text.as_deref(),
        Some("It takes its time.")
    );
    until_quiet(&mut events).await;
    // A tool's message makes no round.
    nothing_follows(&talk).await;
    talk.respond(call.id, ToolResult::ok("value of alpha"))
        .await
        .unwrap();
    let mut next = until_turn(&talk).await;
    assert_eq!(next.final_response().await.unwrap(), "Noted as 0.");
    let asked = codex.model.requests();
    assert_eq!(asked.len(), 3);
    assert_eq!(heard::told(&asked[2], "value of alpha"), 1);
    until_quiet(&mut events).await;
    // The same again is the same.
    talk.respond(call.id, ToolResult::ok("value of alpha"))
        .await
        .unwrap();
    nothing_follows(&talk).await;
    everything_stands_once(&codex.model, &talk).await;
    let ended = codex.end().await;
    assert_eq!(started(&ended.recording), 3);
}

pub(crate) async fn many_triggers_make_one_round(version: &'static str) {
    const TRIGGERS: usize = 20;
    let gate = Gate::new();
    let model = talkative([
        model::call("later", "call-1", json!({ "key": "alpha" })),
        model::text("I talk ").hold(&gate).text("at length."),
    ]);
    let codex = Codex::start(version, model).await;
    let talk = codex.open("talk", with_tools(&codex)).await;
    let mut events = talk.events();
    let mut turn = talk.send("look").await.unwrap();
    let call = until_call(&mut turn).await;
    gate.wait_reached(PATIENCE);
    for number in 0..TRIGGERS {
        let body = BoxBody::system(format!("Event <{number}> happened."));
        talk.accept([body]).await.unwrap();
    }
    talk.respond(call.id, ToolResult::ok("value of alpha"))
        .await
        .unwrap();
    gate.open();
    assert_eq!(
        to_end(&mut turn).await.end.text.as_deref(),
        Some("I talk at length.")
    );
    let mut next = until_turn(&talk).await;
    assert_eq!(next.final_response().await.unwrap(), "Noted as 0.");
    until_quiet(&mut events).await;
    nothing_follows(&talk).await;
    let asked = codex.model.requests();
    assert_eq!(asked.len(), 3);
    for number in 0..TRIGGERS {
        assert_eq!(
            heard::told(&asked[2], &format!("Event <{number}> happened.")),
            1
        );
    }
    everything_stands_once(&codex.model, &talk).await;
    let ended = codex.end().await;
    assert_eq!(
        started(&ended.recording),
        3,
        "one for the message, one for all triggers, one for the last word"
    );
    assert_eq!(ended.recording.sent_params("turn/steer").len(), 1);
}

pub(crate) async fn new_threads_are_told_everything_once(version: &'static str) {
    let model = talkative([
        model::text("I look.").call("later", "call-1", json!({ "key": "alpha" })),
        model::text("It takes its time."),
        model::text("So that is it."),
        model::call("probe", "call-2", json!({ "key": "beta" })),
        model::text("And that."),
    ]);
    let codex = Codex::start(version, model).await;
    let talk = codex.open("talk", with_tools(&codex)).await;
    let mut turn = talk.send("look at alpha").await.unwrap();
    let call = until_call(&mut turn).await;
    turn.outcome().await.unwrap();
    talk.respond(call.id, ToolResult::ok("value of alpha"))
        .await
        .unwrap();
    assert_eq!(
        until_turn(&talk).await.final_response().await.unwrap(),
        "So that is it."
    );
    let mut turn = talk.send("look at beta").await.unwrap();
    let call = until_call(&mut turn).await;
    turn.respond(call.id, ToolResult::ok("value of beta"))
        .await
        .unwrap();
    assert_eq!(turn.final_response().await.unwrap(), "And that.");

    let first = everything_stands_once(&codex.model, &talk).await;
    talk.reset().await.unwrap();
    nothing_follows(&talk).await;
    let second = everything_stands_once(&codex.model, &talk).await;
    assert_eq!(heard::told(&second, "value of beta"), 1);

    let more = with_tools(&codex).tool(Tool::function(
        "more",
        "Does more.",
        raw(json!({ "type": "object" })),
    ));
    talk.change(more).await.unwrap();
    nothing_follows(&talk).await;
    let third = everything_stands_once(&codex.model, &talk).await;
    let offers = |request: &Value| model::tool_names(request).contains(&"more");
    assert_eq!([&first, &second, &third].map(offers), [false, false, true]);
    let threads = [&first, &second, &third].map(heard::thread);
    assert!(!threads.contains(&""), "{threads:?}");
    assert!(
        threads[0] != threads[1] && threads[1] != threads[2],
        "{threads:?}"
    );
    let ended = codex.end().await;
    assert_eq!(ended.recording.sent_params("thread/start").len(), 3);
    let starts = ended.recording.sent_params("turn/start");
    let carries: Vec<usize> = starts
        .iter()
        .map(|start| start["input"].to_string().matches("look at alpha").count())
        .collect();
    assert_eq!(carries, [1, 0, 0, 0, 1, 1], "a thread is told once");
}

/// Hands on what the server says, and keeps the end of a turn for a while.
const LATE_ENDS: &str = r#""$0" app-server | while IFS= read -r line; do
  case "$line" in *'"turn/completed"'*) sleep 2;; esac
  printf '%s\n' "$line"
done"#;

pub(crate) async fn refused_steer_goes_with_the_round_that_follows(version: &'static str) {
    let model = talkative([model::text("That was all.")]);
    let home = CodexHome::new(&model);
    let [_, (name, value)] = home.env();
    let child = ChildConfig::program("sh")
        .args([
            "-c".into(),
            LATE_ENDS.into(),
            codex::codex(version).into_os_string(),
        ])
        .cwd(home.cwd())
        .codex_home(home.path())
        .env(name, value);
    let session = Session::start(child).await;
    let codex = Codex {
        model,
        home,
        session,
        version,
    };
    let talk = codex.conversation("talk").await;
    let mut turn = talk.send("the first word").await.unwrap();
    until(&mut turn, "answer", |event| match event {
        TurnEvent::Update(TurnUpdate::ItemCompleted(item)) if item.kind == "agentMessage" => {
            Some(())
        }
        _ => None,
    })
    .await;
    // For us it runs on, for the server it is over.
    tokio::time::sleep(Duration::from_millis(500)).await;
    match within("answer to the steer", turn.steer("the late word"))
        .await
        .unwrap()
    {
        Steered::Queued { refusal } => assert_eq!(refusal.class, RefusalClass::NoActiveTurn),
        other => panic!("{other:?}"),
    }
    let told = to_end(&mut turn).await;
    assert_eq!(told.end.text.as_deref(), Some("That was all."));
    let mut next = until_turn(&talk).await;
    assert_eq!(next.final_response().await.unwrap(), "Noted as 0.");
    let asked = codex.model.requests();
    assert_eq!(asked.len(), 2);
    assert_eq!(heard::told(&asked[1], "the late word"), 1);
    nothing_follows(&talk).await;
    everything_stands_once(&codex.model, &talk).await;
    let ended = codex.end().await;
    assert_eq!(
        wire(&ended.recording),
        ["start", "steer", "steered", "start", "start"]
    );
}

pub(crate) async fn blocking_preflight_holds_the_first_round_back(version: &'static str) {
    let model = talkative([]);
    let codex = Codex::start(version, model).await;
    let talk = codex.open("talk", with_tools(&codex)).await;
    let mut events = talk.events();
    let call = |key: &str, blocking| PreflightItem::Call {
        tool: "later".into(),
        arguments: raw(json!({ "key": key })),
        blocking,
    };
    let items = [
        PreflightItem::System(BoxBody::system("These are the rules.")),
        call("alpha", true),
        call("beta", false),
    ];
    let calls = talk.preflight(items.clone()).await.unwrap();
    assert_eq!(
        calls.iter().map(|call| call.sequence).collect::<Vec<_>>(),
        [1, 2]
    );
    for (at, wanted) in [(0, true), (1, false)] {
        let offered = until_in(&mut events, "preflight call", |event| match event {
            ConversationEvent::Conversation(ConversationUpdate::PreflightCall {
                call,
                blocking,
            }) => Some((call.id, *blocking)),
            _ => None,
        });
        assert_eq!(offered.await, (calls[at], wanted));
    }
    match talk.preflight(items).await {
        Err(RequestError::Command(CommandError::NotFresh { .. })) => {}
        other => panic!("{other:?}"),
    }
    talk.accept([BoxBody::user("the first word")])
        .await
        .unwrap();
    nothing_follows(&talk).await;
    assert_eq!(codex.model.requests().len(), 0);
    talk.respond(calls[0], ToolResult::ok("value of alpha"))
        .await
        .unwrap();
    let mut turn = until_turn(&talk).await;
    assert_eq!(turn.final_response().await.unwrap(), "Noted as 0.");
    let asked = codex.model.requests();
    assert_eq!(asked.len(), 1);
    for text in [
        "These are the rules.",
        "\"alpha\"",
        "\"beta\"",
        "value of alpha",
        "the first word",
    ] {
        assert_eq!(heard::told(&asked[0], text), 1, "{text}");
    }
    nothing_follows(&talk).await;
    talk.respond(calls[1], ToolResult::ok("value of beta"))
        .await
        .unwrap();
    assert_eq!(
        until_turn(&talk).await.final_response().await.unwrap(),
        "Noted as 1."
    );
    everything_stands_once(&codex.model, &talk).await;
    let ended = codex.end().await;
    assert_eq!(started(&ended.recording), 3);
}
