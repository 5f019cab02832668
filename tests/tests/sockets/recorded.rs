//! The recorded sessions over WebSocket of the real server, played over real sockets with the
//! disconnects that they have.

use std::{collections::BTreeMap, fmt::Write as _};

use serde_json::Value;
use turnkeep_core::{Outcome, QuestionId, event::EndSource};
use turnkeep_runtime::{
    Answer, Questions, Runtime, Settings, Tool, ToolCallId, ToolResult, TurnEvent, TurnUpdate,
};
use turnkeep_tests::{
    both::within,
    on_both,
    recordings::{self, What},
    sockets::{self, Seen, SocketServer},
};

use crate::{Told, at, over, send, shut_down, start};

on_both!(
    ws_reconnect_approval,
    ws_reconnect_mid_turn,
    ws_reconnect_tool_call,
    ws_turn_ends_while_away,
    ws_two_clients,
);

/// What turnkeep never sends, or at another time: its answers are left out.
const NOT_SENT: [&str; 5] = [
    "initialize",
    "initialized",
    "thread/loaded/list",
    "thread/name/set",
    "thread/turns/list",
];

/// Makes a script of a recording. Whoever answers questions is another client where `others`.
fn script(name: &str, others: bool) -> String {
    let all = recordings::all();
    let recording = all.iter().find(|recording| recording.name == name).unwrap();
    let frames: Vec<Value> = recording
        .lines
        .iter()
        .map(|line| match &line.what {
            What::Out(frame) | What::In(frame) => serde_json::from_str(frame).unwrap(),
            _ => Value::Null,
        })
        .collect();
    let mut script = String::from("X auto unsubscribe names\n");
    let history = history(&frames);
    let mut asked: BTreeMap<String, Option<String>> = BTreeMap::new();
    let mut resumed = false;
    for (line, frame) in recording.lines.iter().zip(&frames) {
        let id = frame["id"].to_string();
        let method = frame["method"].as_str();
        match (&line.what, method) {
            (What::Disconnected, _) => {
                asked.clear();
                resumed = true;
                let _ = writeln!(script, "X sleep 50\nX stderr socket: reset");
                let _ = writeln!(script, r#"C* {{"id":"$h","method":"thread/turns/list"}}"#);
                let _ = writeln!(script, r#"S? {{"id":"$h","result":{history}}}"#);
            }
            (What::Out(_), Some(method)) => {
                // The other client resumes what ours has started.
                let not_ours = others && method == "thread/resume";
                if NOT_SENT.contains(&method) || not_ours {
                    asked.insert(id, None);
                    continue;
                }
                let var = format!("$c{}", line.number);
                let params = match method {
                    "turn/start" => r#"{"clientUserMessageId":"$m1"}"#,
                    "thread/resume" => r#"{"excludeTurns":true}"#,
                    _ => "{}",
                };
                let _ = writeln!(
                    script,
                    r#"C {{"id":"{var}","method":"{method}","params":{params}}}"#
                );
                asked.insert(id, Some(var));
            }
            (What::Out(_), None) if others => {
                let _ = writeln!(script, "X sleep 50");
            }
            (What::Out(_), None) => {
                assert!(resumed, "it is answered on the second connection");
                let result = match frame["result"].get("decision") {
                    // The probe said `decline`, which was not among the decisions that were offered.
                    Some(_) => r#"{"decision":"cancel"}"#.into(),
                    None => format!(r#"{{"success":{}}}"#, frame["result"]["success"]),
                };
                let _ = writeln!(script, r#"C {{"id":{id},"result":{result}}}"#);
            }
            (What::In(_), None) => {
                let Some(Some(var)) = asked.remove(&id) else {
                    continue;
                };
                let mut frame = frame.clone();
                frame["id"] = var.into();
                let _ = writeln!(script, "S {}", ours(&frame));
            }
            (What::In(_), Some(_)) => {
                let _ = writeln!(script, "S {}", ours(frame));
            }
            _ => panic!("{:?}", line.what),
        }
    }
    script
}

/// The same with the number that our message has.
fn ours(frame: &Value) -> String {
    let text = frame.to_string();
    let text = text.replace(r#""clientId":"m1""#, r#""clientId":"$m1""#);
    text.replace(r#""clientId":null"#, r#""clientId":"$m1""#)
}

/// The history after the disconnect: as recorded, or, where nobody asked, what must have stood there.
fn history(frames: &[Value]) -> String {
    let listed = frames
        .iter()
        .position(|frame| frame["method"] == "thread/turns/list");
    if let Some(at) = listed {
        let is = |frame: &&Value| frame["id"] == frames[at]["id"] && frame["method"].is_null();
        let answer = frames.iter().skip(at + 1).find(is).unwrap();
        // It was asked for a summary, which has all there is of so short a turn.
        return ours(&answer["result"])
            .replace(r#""itemsView":"summary""#, r#""itemsView":"full""#);
    }
    let turn = frames
        .iter()
        .find(|frame| frame["method"] == "turn/started");
    let turn = turn.unwrap()["params"]["turn"]["id"].as_str().unwrap();
    format!(
        r#"{{"data":[{{"id":"{turn}","items":[{{"type":"userMessage","id":"u","clientId":"$m1","content":[]}}],"itemsView":"full","status":"inProgress","error":null}}],"nextCursor":null}}"#
    )
}

/// Plays a recording, and answers what is open once the connection has gone.
async fn play<R: Runtime + Default>(name: &str, others: bool) -> Told {
    let text = script(name, others);
    let (_dir, path) = sockets::directory();
    let mut last = None;
    for server in [SocketServer::tcp(&text), SocketServer::unix(&path, &text)] {
        let server = server.lives_on();
        let client = start::<R>(over(at(&server))).await;
        let tool = frames_tool(&text);
        let settings = Settings::new().questions(Questions::Ask).cwd("/workspace");
        let settings = tool.into_iter().fold(settings, Settings::tool);
        let opened = client.conversation("talk").settings(settings);
        let talk = within::<R, _>("conversation", opened).await.unwrap();
        let mut turn = send::<R>(&talk, "x").await;
        let mut told = Told::default();
        let mut question: Option<QuestionId> = None;
        let mut call: Option<ToolCallId> = None;
        while told.end.is_none() {
            let event = within::<R, _>("event", turn.next()).await.unwrap();
            let update = match event {
                TurnEvent::Delta(delta) => {
                    told.deltas.push(delta);
                    continue;
                }
                TurnEvent::Update(update) => update,
                _ => continue,
            };
            match &update {
                TurnUpdate::Question(asked) => question = Some(asked.id),
                TurnUpdate::ToolCall(called) => call = Some(called.id),
                TurnUpdate::Suspended { .. } if !others => {
                    if let Some(question) = question {
                        let answered = turn.answer(question, Answer::Decline).await;
                        assert!(
                            answered.is_ok(),
                            "{answered:?} {told:?} {:?}",
                            server.seen()
                        );
                    }
                    if let Some(call) = call {
                        turn.respond(call, ToolResult::ok("found")).await.unwrap();
                    }
                }
                TurnUpdate::Ended(end) => told.end = Some((**end).clone()),
                _ => {}
            }
            told.updates.push(update);
        }
        shut_down(client).await;
        let seen = server.seen();
        let is_wrong = |seen: &&Seen| matches!(seen, Seen::Mismatch(_));
        assert_eq!(seen.iter().find(is_wrong), None);
        let opened = seen.iter().filter(|seen| **seen == Seen::Opened).count();
        assert_eq!(opened, if others { 1 } else { 2 });
        last = Some(told);
    }
    last.unwrap()
}

/// The tool that a recording calls.
fn frames_tool(script: &str) -> Option<Tool> {
    let call = script
        .lines()
        .find(|line| line.contains("\"item/tool/call\""))?;
    let frame: Value = serde_json::from_str(call.strip_prefix("S ")?).ok()?;
    let name = frame["params"]["tool"].as_str()?;
    Some(Tool::function(
        name,
        "finds",
        turnkeep_runtime::RawJson::parse("{}").ok()?,
    ))
}

fn completed(told: &Told, text: &str) {
    let end = told.end();
    assert!(
        matches!(end.outcome, Outcome::Completed { .. }),
        "{:?}",
        end.outcome
    );
    let found = end.text.as_deref().or(end.candidate.as_deref());
    assert_eq!(found, Some(text));
}

async fn ws_reconnect_mid_turn<R: Runtime + Default>() {
    let told = play::<R>("ws_reconnect_mid_turn", false).await;
    completed(&told, "abcdef");
    assert_eq!(told.streamed(), "abcdef");
    assert_eq!((told.suspended(), told.resumed()), (1, 1));
    assert_eq!(told.end().source, EndSource::Live);
}

async fn ws_reconnect_approval<R: Runtime + Default>() {
    let told = play::<R>("ws_reconnect_approval", false).await;
    completed(&told, "ok");
    assert_eq!((told.suspended(), told.resumed()), (1, 1));
    assert_eq!(
        told.count(|update| matches!(update, TurnUpdate::Question(_))),
        1
    );
}

async fn ws_reconnect_tool_call<R: Runtime + Default>() {
    let told = play::<R>("ws_reconnect_tool_call", false).await;
    completed(&told, "ok");
    assert_eq!((told.suspended(), told.resumed()), (1, 1));
    assert_eq!(
        told.count(|update| matches!(update, TurnUpdate::ToolCall(_))),
        1
    );
}

async fn ws_turn_ends_while_away<R: Runtime + Default>() {
    let told = play::<R>("ws_turn_ends_while_away", false).await;
    completed(&told, "ab");
    assert_eq!((told.suspended(), told.resumed()), (1, 0));
    assert_eq!(told.end().source, EndSource::Reconciled);
}

/// The other client answers the question that both were asked.
async fn ws_two_clients<R: Runtime + Default>() {
    let told = play::<R>("ws_two_clients", true).await;
    completed(&told, "ok");
    assert_eq!(
        told.count(|update| matches!(update, TurnUpdate::Question(_))),
        1
    );
    assert_eq!(
        told.count(|update| matches!(update, TurnUpdate::QuestionClosed { .. })),
        1
    );
}
