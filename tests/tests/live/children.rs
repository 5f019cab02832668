//! Sub-agents, whose calls and questions the application serves.
//!
//! The real server announces no thread of a sub-agent by `thread/started`: it is known by `thread/read`.

use serde_json::{Value, json};
use turnkeep_core::{
    event::{ConnectionEvent, ConversationUpdate, QuestionKind},
    id::ThreadId,
};
use turnkeep_runtime::{
    Answer, ApprovalPolicy, BoxId, Children, CommandError, ConversationEvent, ConversationEvents,
    Question, Questions, RequestError, Sandbox, Settings, ToolCall, ToolResult, Turn, TurnUpdate,
    box_type,
};
use turnkeep_tests::{
    model::{self, Gate, Model, Reply},
    recording::Recording,
    session::{probe, to_end, until_in, within},
};

use crate::codex::Codex;

const TASK: &str = "the child's task";
const SUMMARY: &str = "The child's summary.";
const ANSWER: &str = "The parent's answer.";

/// A call of one of the server's own tools for sub-agents.
fn call_of_agents(name: &str, call: &str, arguments: &Value) -> Reply {
    Reply::new().event(json!({
        "type": "response.output_item.done",
        "output_index": 0,
        "item": {
            "type": "function_call",
            "id": format!("fc_{call}"),
            "call_id": call,
            "namespace": "multi_agent_v1",
            "name": name,
            "arguments": arguments.to_string(),
        },
    }))
}

/// A model whose agent begins another one, which does `first`, and waits for it, or for the gate.
///
/// Only a sub-agent with its parent's context has the tools of the parent.
fn family(first: Reply, gate: Option<&Gate>) -> Model {
    let gate = gate.cloned();
    Model::scripted(move |request| {
        let outputs = model::call_outputs(request);
        let output = |call: &str| outputs.iter().find(|(id, _)| *id == call);
        if is_childs(request) {
            return match output("call-child") {
                None => first.clone(),
                Some(_) => model::text(SUMMARY),
            };
        }
        match (output("call-spawn"), output("call-wait")) {
            (None, _) => {
                let arguments = json!({ "message": TASK, "fork_context": true });
                call_of_agents("spawn_agent", "call-spawn", &arguments)
            }
            (Some((_, told)), None) => {
                if let Some(gate) = &gate {
                    return Reply::new().hold(gate).text(ANSWER);
                }
                let told: Value = serde_json::from_str(told).unwrap_or_default();
                let arguments = json!({ "targets": [told["agent_id"]], "timeout_ms": 60_000 });
                call_of_agents("wait_agent", "call-wait", &arguments)
            }
            (Some(_), Some(_)) => model::text(ANSWER),
        }
    })
}

fn is_childs(request: &Value) -> bool {
    model::user_texts(request).contains(&TASK)
}

/// What came back for the sub-agent's call.
fn childs_output(codex: &Codex) -> Option<String> {
    let requests = codex.model.requests();
    let mut requests = requests.iter().filter(|request| is_childs(request)).rev();
    let outputs = model::call_outputs(requests.next()?);
    let output = outputs.into_iter().find(|(id, _)| *id == "call-child");
    output.map(|(_, output)| output)
}

fn look() -> Reply {
    model::call("probe", "call-child", json!({ "at": "x" }))
}

fn touch() -> Reply {
    model::call(
        "exec_command",
        "call-child",
        json!({ "cmd": "touch made.txt" }),
    )
}

fn tells(codex: &Codex) -> Settings {
    let settings = codex.settings().tool(probe());
    settings.children(Children::Tell).questions(Questions::Ask)
}

/// Settings under which a command is asked about.
fn careful(settings: Settings) -> Settings {
    settings
        .approval_policy(ApprovalPolicy::Untrusted)
        .sandbox(Sandbox::WorkspaceWrite)
}

async fn until_childs_call(events: &mut ConversationEvents) -> (ThreadId, ToolCall) {
    until_in(events, "call of the child", |event| match event {
        ConversationEvent::Conversation(ConversationUpdate::ChildCall { thread, call }) => {
            Some((thread.clone(), call.clone()))
        }
        _ => None,
    })
    .await
}

async fn until_childs_end(events: &mut ConversationEvents, child: &ThreadId) {
    until_in(events, "end of the child", |event| match event {
        ConversationEvent::Conversation(ConversationUpdate::ChildFrame {
            thread, method, ..
        }) => (thread == child && method == "turn/completed").then_some(()),
        _ => None,
    })
    .await;
}

async fn until_childs_question(events: &mut ConversationEvents) -> (ThreadId, Question) {
    until_in(events, "question of the child", |event| match event {
        ConversationEvent::Conversation(ConversationUpdate::ChildQuestion { thread, question }) => {
            Some((thread.clone(), (**question).clone()))
        }
        _ => None,
    })
    .await
}

/// Runs the turn to its end, which is the parent's own.
async fn to_the_parents_end(codex: &Codex, turn: &mut Turn, answers: usize) {
    let told = to_end(turn).await;
    assert_eq!(told.end.outcome.name(), "completed", "{:?}", told.end);
    assert_eq!(told.end.text.as_deref(), Some(ANSWER));
    assert_eq!(told.streamed(), ANSWER, "nothing of the child's");
    let asked = codex.model.requests();
    let of_parent = asked.iter().filter(|request| !is_childs(request)).count();
    assert_eq!((of_parent, of_parent < asked.len()), (answers, true));
    let usage = told.end.usage.expect("the use is told").turn;
    let own = 15 * u64::try_from(answers).unwrap();
    assert_eq!(usage.total_tokens, own, "the child's are its own");
}

/// The thread of the sub-agent was not announced and was asked about once.
fn was_asked_about(recording: &Recording, child: &ThreadId) {
    let params = json!({ "threadId": child.as_str(), "includeTurns": false });
    assert_eq!(recording.sent_params("thread/read"), [params]);
    let received = recording.received().into_iter();
    let announced = received.filter(|frame| frame["method"] == "thread/started");
    assert_eq!(announced.count(), 1, "the parent's");
}

/// Our answers to what the sub-agent asked.
fn answers(recording: &Recording) -> Vec<Value> {
    let sent = recording.sent().into_iter();
    let answers = sent.filter(|frame| frame.get("method").is_none());
    answers.map(|mut frame| frame["result"].take()).collect()
}

pub(crate) async fn call_of_a_sub_agent_is_served(version: &'static str) {
    let codex = Codex::start(version, family(look(), None)).await;
    let talk = codex.open("talk", tells(&codex)).await;
    let mut events = talk.events();
    let mut turn = talk.send("go").await.unwrap();
    let (child, call) = until_childs_call(&mut events).await;
    assert_eq!(call.tool, "probe");
    let arguments: Value = call.arguments.read().unwrap();
    assert_eq!(arguments, json!({ "at": "x" }));

    talk.respond(call.id, ToolResult::ok("a wall"))
        .await
        .unwrap();
    // The same again is the same.
    talk.respond(call.id, ToolResult::ok("a wall"))
        .await
        .unwrap();
    match talk.respond(call.id, ToolResult::ok("a door")).await {
        Err(RequestError::Command(CommandError::AnsweredDifferently { call: of })) => {
            assert_eq!(of, call.id);
        }
        other => panic!("{other:?}"),
    }
    until_childs_end(&mut events, &child).await;
    to_the_parents_end(&codex, &mut turn, 3).await;
    assert_eq!(childs_output(&codex).as_deref(), Some("a wall"));

    let (boxes, _) = talk.read(BoxId(1), 100).await.unwrap();
    let types: Vec<&str> = boxes.iter().map(|b| &*b.body.box_type).collect();
    assert_eq!(types, [box_type::USER_MESSAGE, box_type::AGENT_RESPONSE]);
    let ended = codex.end().await;
    was_asked_about(&ended.recording, &child);
    let answers = answers(&ended.recording);
    assert_eq!(answers.len(), 1, "{answers:?}");
    assert_eq!(answers[0]["success"], true);
}

pub(crate) async fn call_of_a_sub_agent_fails_where_nobody_serves_it(version: &'static str) {
    let codex = Codex::start(version, family(look(), None)).await;
    let settings = codex.settings().tool(probe());
    let talk = codex.open("talk", settings).await;
    let mut turn = talk.send("go").await.unwrap();
    to_the_parents_end(&codex, &mut turn, 3).await;
    let ended = codex.end().await;
    let answers = answers(&ended.recording);
    assert_eq!(answers.len(), 1, "{answers:?}");
    assert_eq!(answers[0]["success"], false);
}

pub(crate) async fn question_of_a_sub_agent_is_answered(version: &'static str) {
    let codex = Codex::start(version, family(touch(), None)).await;
    let talk = codex.open("talk", careful(tells(&codex))).await;
    let mut events = talk.events();
    let mut turn = talk.send("go").await.unwrap();
    let (child, question) = until_childs_question(&mut events).await;
    match &question.kind {
        QuestionKind::Command { command, .. } => {
            let command = command.as_deref().unwrap();
            assert!(command.contains("touch made.txt"), "{command}");
        }
        other => panic!("{other:?}"),
    }
    let made = codex.home.cwd().join("made.txt");
    assert!(!made.exists(), "nothing before the answer");
    talk.answer(question.id, Answer::Accept).await.unwrap();
    until_childs_end(&mut events, &child).await;
    to_the_parents_end(&codex, &mut turn, 3).await;
    assert!(made.exists(), "{:?}", childs_output(&codex));
    let ended = codex.end().await;
    was_asked_about(&ended.recording, &child);
    let answers = answers(&ended.recording);
    assert_eq!(answers, [json!({ "decision": "accept" })]);
}

pub(crate) async fn question_of_a_sub_agent_is_declined_where_nobody_serves_it(
    version: &'static str,
) {
    // To be cancelled is no end for a parent that waits: it would wait on.
    let gate = Gate::new();
    let codex = Codex::start(version, family(touch(), Some(&gate))).await;
    let settings = careful(codex.settings().questions(Questions::Ask));
    let talk = codex.open("talk", settings).await;
    let mut events = talk.events();
    let mut connection = codex.client().connection_events();
    let mut turn = talk.send("go").await.unwrap();
    within("question that nobody serves", async {
        while let Some(event) = connection.next().await {
            if let ConnectionEvent::Unrecognized(what) = event
                && what.method == "item/commandExecution/requestApproval"
            {
                return;
            }
        }
        panic!("the client ended");
    })
    .await;
    gate.open();
    to_the_parents_end(&codex, &mut turn, 2).await;
    assert!(!codex.home.cwd().join("made.txt").exists());
    until_in(&mut events, "end of the turn", |event| match event {
        ConversationEvent::Conversation(
            told @ (ConversationUpdate::ChildFrame { .. }
            | ConversationUpdate::ChildQuestion { .. }),
        ) => panic!("nobody asked for {told:?}"),
        ConversationEvent::Turn { update, .. } => {
            matches!(update, TurnUpdate::Ended(_)).then_some(())
        }
        _ => None,
    })
    .await;
    let ended = codex.end().await;
    // `decline` is not offered.
    let answers = answers(&ended.recording);
    assert_eq!(answers, [json!({ "decision": "cancel" })]);
}
