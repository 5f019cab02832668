//! A server that runs on its own and is reached by a socket: it goes on while the connection does not.

use std::{fs, time::Duration};

use serde_json::{Value, json};
use turnkeep_core::{
    CloseReason, Epoch, ThreadId,
    config::Reconnect,
    event::{
        ConnectionEvent, ConversationUpdate, EndReason, EndSource, Phasing, QuestionClosedWhy,
    },
};
use turnkeep_runtime::{
    Answer, ApprovalPolicy, ConnectionEvents, ConversationEvent, Outcome, Questions, Sandbox,
    ServerConfig, Settings, StartError, ToolResult, Turn, TurnUpdate,
};
use turnkeep_tests::{
    Client,
    codex::CodexHome,
    heard,
    model::{self, Gate, Model},
    processes::{self, Proc},
    proxy::Proxy,
    recording::Recording,
    server::{Address, Listening, Server},
    session::{
        PATIENCE, probe, to_end, until, until_call, until_in, until_question, until_text, within,
    },
    visitor::Visitor,
};

use crate::codex::{Codex, child, settings};

/// A client that reaches its server through a proxy and opens its connection again.
async fn start(version: &'static str, model: Model) -> (Codex, Proxy) {
    let home = CodexHome::new(&model);
    let mut proxy = None;
    let codex = Codex::start_in(version, model, home, |mut config| {
        proxy = Some(Proxy::before(&mut config));
        config.machine(|machine| machine.reconnect = Reconnect::On)
    })
    .await;
    (codex, proxy.expect("it was put before the server"))
}

fn server(codex: &Codex) -> &Listening {
    match &codex.session.server {
        Server::Socket(server) => server,
        Server::Child(_) => panic!("the server is a child"),
    }
}

/// The server itself, without its launcher.
fn native(server: &Listening) -> Proc {
    let mut family = server.family().into_iter();
    family.find(|p| p.comm == "codex").expect("it runs")
}

/// Waits for the next connection that is ready.
async fn until_ready(connection: &mut ConnectionEvents) -> Epoch {
    let ready = async {
        loop {
            match connection.next().await.expect("the client runs") {
                ConnectionEvent::Ready { epoch, .. } => return epoch,
                ConnectionEvent::Ended(reason) => panic!("it is given up: {reason}"),
                _ => {}
            }
        }
    };
    within("connection", ready).await
}

async fn until_suspended(turn: &mut Turn) {
    until(turn, "suspension", |event| match event {
        turnkeep_runtime::TurnEvent::Update(TurnUpdate::Suspended { .. }) => Some(()),
        _ => None,
    })
    .await;
}

fn count(updates: &[TurnUpdate], is: impl Fn(&TurnUpdate) -> bool) -> usize {
    updates.iter().filter(|update| is(update)).count()
}

/// The ids of a request of the server, and how many answers of ours it had.
fn asked(recording: &Recording, method: &str) -> (Vec<Value>, usize) {
    let frames = recording.frames();
    let requests = frames.iter().filter(|(_, frame)| frame["method"] == method);
    let ids: Vec<Value> = requests.map(|(_, frame)| frame["id"].clone()).collect();
    let answers = frames.iter().filter(|(ours, frame)| {
        *ours && frame.get("method").is_none() && ids.contains(&frame["id"])
    });
    let answers = answers.count();
    (ids, answers)
}

/// Who opened how many connections, and what was sent on them once.
fn sent_once(recording: &Recording, connections: usize) {
    let sent = |method| recording.sent_params(method).len();
    assert_eq!(sent("initialize"), connections);
    assert_eq!(sent("turn/start"), 1, "nothing is sent twice");
    assert_eq!(sent("thread/start"), 1);
}

/// The recording `ws_reconnect_mid_turn`.
pub(crate) async fn turn_goes_on_over_a_cut_connection(version: &'static str) {
    let (away, back) = (Gate::new(), Gate::new());
    let so_far = model::text("So ").hold(&away).text("far ").hold(&back);
    let (codex, proxy) = start(version, Model::queued([so_far.text("away.")])).await;
    let before = native(server(&codex));
    let mut connection = codex.client().connection_events();
    let talk = codex.conversation("talk").await;
    let mut turn = talk.send("go").await.unwrap();
    until_text(&mut turn, "So ").await;
    proxy.shut();
    proxy.cut();
    until_suspended(&mut turn).await;
    // It is said to nobody.
    away.open();
    back.wait_reached(PATIENCE);
    tokio::time::sleep(Duration::from_millis(100)).await;
    proxy.open();
    assert!(until_ready(&mut connection).await > Epoch(1));
    until(&mut turn, "resumption", |event| match event {
        turnkeep_runtime::TurnEvent::Update(TurnUpdate::Resumed) => Some(()),
        _ => None,
    })
    .await;
    back.open();
    let told = to_end(&mut turn).await;
    assert_eq!(told.end.outcome.name(), "completed", "{:?}", told.end);
    assert_eq!(told.end.source, EndSource::Live);
    assert_eq!(told.end.text.as_deref(), Some("So far away."));
    assert_eq!(told.streamed(), "away.", "what was missed is not streamed");
    let items = told.completed("agentMessage");
    assert_eq!(items.len(), 1);
    assert!(items[0].raw.get().contains("So far away."), "{items:?}");

    let counters = codex.client().counters().await.unwrap();
    assert_eq!((counters.reconnects, counters.resent), (1, 0));
    assert_eq!(codex.model.requests().len(), 1);
    assert!(processes::alive(&before), "the same server");
    let ended = codex.end().await;
    sent_once(&ended.recording, 2);
    assert_eq!(ended.recording.sent_params("thread/resume").len(), 1);
}

pub(crate) async fn conversation_goes_on_after_a_cut_between_turns(version: &'static str) {
    let model = Model::queued([model::text("One."), model::text("Two.")]);
    let (codex, proxy) = start(version, model).await;
    let mut connection = codex.client().connection_events();
    let talk = codex.conversation("talk").await;
    let mut turn = talk.send("first").await.unwrap();
    assert_eq!(turn.final_response().await.unwrap(), "One.");
    proxy.cut();
    until_ready(&mut connection).await;
    let mut turn = talk.send("second").await.unwrap();
    assert_eq!(turn.final_response().await.unwrap(), "Two.");
    let asked = codex.model.requests();
    for text in ["first", "second"] {
        assert_eq!(heard::told(&asked[1], text), 1, "{text}");
    }
    let ended = codex.end().await;
    let sent = |method| ended.recording.sent_params(method).len();
    assert_eq!((sent("initialize"), sent("thread/start")), (2, 1));
    assert_eq!((sent("thread/resume"), sent("turn/start")), (1, 2));
}

fn asks(codex: &Codex) -> Settings {
    codex
        .settings()
        .approval_policy(ApprovalPolicy::Untrusted)
        .sandbox(Sandbox::WorkspaceWrite)
        .questions(Questions::Ask)
}

fn touch() -> [model::Reply; 2] {
    let touch = model::call("exec_command", "call-1", json!({ "cmd": "touch made.txt" }));
    [touch, model::text("That was it.")]
}

const APPROVAL: &str = "item/commandExecution/requestApproval";

/// The recording `ws_reconnect_approval`.
pub(crate) async fn open_approval_comes_again(version: &'static str) {
    let (codex, proxy) = start(version, Model::queued(touch())).await;
    let mut connection = codex.client().connection_events();
    let talk = codex.open("talk", asks(&codex)).await;
    let mut turn = talk.send("touch").await.unwrap();
    let question = until_question(&mut turn).await;
    proxy.cut();
    until_ready(&mut connection).await;
    until(&mut turn, "resumption", |event| match event {
        turnkeep_runtime::TurnEvent::Update(TurnUpdate::Resumed) => Some(()),
        _ => None,
    })
    .await;
    turn.answer(question.id, Answer::Accept).await.unwrap();
    let told = to_end(&mut turn).await;
    assert_eq!(told.end.text.as_deref(), Some("That was it."));
    let again = count(&told.updates, |u| matches!(u, TurnUpdate::Question(_)));
    assert_eq!(
        again, 0,
        "the application is asked once: {:?}",
        told.updates
    );
    assert!(codex.home.cwd().join("made.txt").exists());
    let ended = codex.end().await;
    let (ids, answers) = asked(&ended.recording, APPROVAL);
    assert_eq!((ids.len(), answers), (2, 1), "{ids:?}");
    assert_eq!(ids[0], ids[1], "it comes again under its id");
    sent_once(&ended.recording, 2);
}

/// The recording `ws_reconnect_tool_call`, answered when the connection is back, and while it is not there.
pub(crate) async fn open_call_stays_with_the_application(version: &'static str) {
    for is_away in [false, true] {
        let model = Model::queued([
            model::call("probe", "call-1", json!({})),
            model::text("So that is it."),
        ]);
        let (codex, proxy) = start(version, model).await;
        let mut connection = codex.client().connection_events();
        let talk = codex.open("talk", codex.settings().tool(probe())).await;
        let mut turn = talk.send("look").await.unwrap();
        let call = until_call(&mut turn).await;
        proxy.shut();
        proxy.cut();
        until_suspended(&mut turn).await;
        if is_away {
            turn.respond(call.id, ToolResult::ok("the value"))
                .await
                .unwrap();
        }
        proxy.open();
        until_ready(&mut connection).await;
        if !is_away {
            turn.respond(call.id, ToolResult::ok("the value"))
                .await
                .unwrap();
        }
        let told = to_end(&mut turn).await;
        assert_eq!(told.end.text.as_deref(), Some("So that is it."));
        let again =
            |u: &TurnUpdate| matches!(u, TurnUpdate::ToolCall(_) | TurnUpdate::CallDeferred { .. });
        assert_eq!(count(&told.updates, again), 0, "{:?}", told.updates);
        let requests = codex.model.requests();
        assert_eq!(requests.len(), 2);
        let outputs = model::call_outputs(&requests[1]);
        assert_eq!(outputs, [("call-1", "the value".to_owned())]);
        let ended = codex.end().await;
        let (ids, answers) = asked(&ended.recording, "item/tool/call");
        assert_eq!((ids.len(), answers), (2, 1), "{ids:?}");
        assert_eq!(ids[0], ids[1], "it comes again under its id");
        sent_once(&ended.recording, 2);
    }
}

/// The recording `ws_turn_ends_while_away`.
pub(crate) async fn turn_that_ends_while_away_is_caught_up(version: &'static str) {
    let gate = Gate::new();
    let model = Model::queued([model::text("So ").hold(&gate).text("far.")]);
    let (codex, proxy) = start(version, model).await;
    let talk = codex.conversation("talk").await;
    let mut events = talk.events();
    let mut turn = talk.send("go").await.unwrap();
    let thread = until_bound(&mut events).await;
    until_text(&mut turn, "So ").await;
    proxy.shut();
    proxy.cut();
    until_suspended(&mut turn).await;
    gate.open();
    let mut visitor = Visitor::initialized(server(&codex).address());
    let idle = async {
        let params = json!({ "threadId": thread.as_str() });
        while visitor.request("thread/read", params.clone())["thread"]["status"]["type"] != "idle" {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    within("end of the turn", idle).await;
    proxy.open();
    let told = to_end(&mut turn).await;
    assert_eq!(told.end.outcome.name(), "completed", "{:?}", told.end);
    assert_eq!(told.end.source, EndSource::Reconciled);
    assert_eq!(told.end.text.as_deref(), Some("So far."));
    let counters = codex.client().counters().await.unwrap();
    assert_eq!((counters.found_ended, counters.resent), (1, 0));
    assert_eq!(codex.model.requests().len(), 1);
    let ended = codex.end().await;
    sent_once(&ended.recording, 2);
}

async fn until_bound(events: &mut turnkeep_runtime::ConversationEvents) -> ThreadId {
    until_in(events, "thread", |event| match event {
        ConversationEvent::Conversation(ConversationUpdate::ThreadBound { thread, .. }) => {
            Some(thread.clone())
        }
        _ => None,
    })
    .await
}

/// The recording `ws_two_clients`: both hear all of it and both are asked; who answers first has answered.
pub(crate) async fn another_client_answers_for_us(version: &'static str) {
    let [touch, done] = touch();
    let model = Model::queued([model::text("One."), touch, done]);
    let (codex, _proxy) = start(version, model).await;
    let talk = codex.open("talk", asks(&codex)).await;
    let mut events = talk.events();
    let mut turn = talk.send("first").await.unwrap();
    let thread = until_bound(&mut events).await;
    assert_eq!(turn.final_response().await.unwrap(), "One.");
    let mut visitor = Visitor::initialized(server(&codex).address());
    let params = json!({ "threadId": thread.as_str(), "excludeTurns": true });
    visitor.request("thread/resume", params);

    let mut turn = talk.send("touch").await.unwrap();
    let question = until_question(&mut turn).await;
    let request = visitor.until_method(APPROVAL);
    visitor.send(&json!({ "id": request["id"], "result": { "decision": "accept" } }));
    let told = to_end(&mut turn).await;
    assert_eq!(told.end.text.as_deref(), Some("That was it."));
    let closed = |update: &TurnUpdate| {
        matches!(update, TurnUpdate::QuestionClosed { question: of, why: QuestionClosedWhy::Resolved }
            if *of == question.id)
    };
    assert_eq!(count(&told.updates, closed), 1, "{:?}", told.updates);
    visitor.until_method("turn/completed");
    assert!(codex.home.cwd().join("made.txt").exists());
    let ended = codex.end().await;
    let (ids, answers) = asked(&ended.recording, APPROVAL);
    assert_eq!((ids.len(), answers), (1, 0), "nothing is written for it");
}

/// A turn that another client began is told, and in nobody's way.
pub(crate) async fn turn_of_another_client_is_told(version: &'static str) {
    let model = Model::queued(["One.", "Theirs.", "Two."].map(model::text));
    let (codex, _proxy) = start(version, model).await;
    let talk = codex.conversation("talk").await;
    let mut events = talk.events();
    let mut turn = talk.send("first").await.unwrap();
    let thread = until_bound(&mut events).await;
    assert_eq!(turn.final_response().await.unwrap(), "One.");
    let mut visitor = Visitor::initialized(server(&codex).address());
    let params = json!({ "threadId": thread.as_str(), "excludeTurns": true });
    visitor.request("thread/resume", params);
    let input = json!([{ "type": "text", "text": "theirs" }]);
    let params = json!({ "threadId": thread.as_str(), "input": input });
    let started = visitor.request("turn/start", params);
    let theirs = started["turn"]["id"].as_str().unwrap();
    let mut saw = Vec::new();
    until_in(&mut events, "end of their turn", |event| {
        saw.push(format!("{event:?}"));
        match event {
            ConversationEvent::Conversation(ConversationUpdate::TurnFound { native, status }) => {
                (native.as_str() == theirs && status == "completed").then_some(())
            }
            ConversationEvent::Turn {
                update: TurnUpdate::Ended(end),
                ..
            } => (end.native.as_ref()?.as_str() == theirs).then_some(()),
            _ => None,
        }
    })
    .await;
    visitor.until_method("turn/completed");
    let mut turn = talk.send("second").await.unwrap();
    assert_eq!(turn.final_response().await.unwrap(), "Two.");
    let request = codex.model.requests().pop().unwrap();
    for text in ["first", "theirs", "second"] {
        assert_eq!(heard::told(&request, text), 1, "{text}");
    }
    let ended = codex.end().await;
    assert_eq!(ended.recording.sent_params("turn/start").len(), 2);
}

/// Case A6: a thread that is no longer loaded is resumed before the next turn.
pub(crate) async fn unloaded_thread_is_resumed_first(version: &'static str) {
    let model = Model::queued([model::text("One."), model::text("Two.")]);
    let (codex, _proxy) = start(version, model).await;
    let talk = codex.conversation("talk").await;
    let mut events = talk.events();
    let mut turn = talk.send("first").await.unwrap();
    let thread = until_bound(&mut events).await;
    assert_eq!(turn.final_response().await.unwrap(), "One.");
    let mut visitor = Visitor::initialized(server(&codex).address());
    let params = json!({ "threadId": thread.as_str() });
    visitor.request("thread/archive", params.clone());
    until_in(&mut events, "unloading", |event| match event {
        ConversationEvent::Conversation(ConversationUpdate::ThreadDetached { thread: of }) => {
            (*of == thread).then_some(())
        }
        _ => None,
    })
    .await;
    visitor.request("thread/unarchive", params);
    let mut turn = talk.send("second").await.unwrap();
    assert_eq!(turn.final_response().await.unwrap(), "Two.");
    let request = codex.model.requests().pop().unwrap();
    for text in ["first", "second"] {
        assert_eq!(heard::told(&request, text), 1, "{text}");
    }
    let ended = codex.end().await;
    let sent = |method| ended.recording.sent_params(method).len();
    assert_eq!((sent("thread/start"), sent("thread/resume")), (1, 1));
}

/// Case A8: the connection decides who lives, not the file of a socket.
pub(crate) async fn dead_socket_is_no_server(version: &'static str) {
    let model = Model::queued([model::text("One."), model::text("Two.")]);
    let home = CodexHome::new(&model);
    let dir = tempfile::tempdir().unwrap();
    let socket = Server::new(child(version, &home));
    let Server::Socket(listening) = &socket else {
        panic!("the server is a child");
    };
    let config = || socket.config().journal(dir.path());
    assert_eq!(listening.kill(), []);
    if let Address::Unix(path) = listening.address() {
        assert!(path.exists(), "the file is left");
    }
    let failed = within("end of the start", Client::spawn(config().one_connection())).await;
    match failed.unwrap_err() {
        StartError::Connection(reason) => match *reason {
            EndReason::Closed {
                phase: Phasing::Open,
                reason: CloseReason::OpenFailed(ref why),
                ..
            } => println!("{version}: {why}"),
            other => panic!("{other:?}"),
        },
        other => panic!("{other:?}"),
    }
    listening.start_again();
    let client = within("start", Client::spawn(config())).await.unwrap();
    let mut connection = client.connection_events();
    let talk = client.conversation("talk").settings(settings(&home));
    let talk = talk.await.unwrap();
    let mut turn = talk.send("first").await.unwrap();
    assert_eq!(turn.final_response().await.unwrap(), "One.");

    // Another one takes its place, after a while in which there is none.
    assert_eq!(listening.kill(), []);
    let mut lost = 0;
    while lost < 2 {
        match within("loss", connection.next()).await.unwrap() {
            ConnectionEvent::Lost { .. } => lost += 1,
            ConnectionEvent::Ended(reason) => panic!("it is given up: {reason}"),
            _ => {}
        }
    }
    listening.start_again();
    until_ready(&mut connection).await;
    let mut turn = talk.send("second").await.unwrap();
    assert_eq!(turn.final_response().await.unwrap(), "Two.");
    let requests = model.requests();
    assert_eq!(requests.len(), 2);
    for text in ["first", "second"] {
        assert_eq!(heard::told(&requests[1], text), 1, "{text}");
    }
    within("shutdown", client.shutdown()).await.unwrap();
}

pub(crate) async fn shutdown_leaves_the_thread_to_the_next_client(version: &'static str) {
    let never = Gate::new();
    let model = Model::queued([
        model::text("One."),
        model::text("So ").hold(&never),
        model::text("Three."),
    ]);
    let home = CodexHome::new(&model);
    let dir = tempfile::tempdir().unwrap();
    let socket = Server::new(child(version, &home));
    let Server::Socket(listening) = &socket else {
        panic!("the server is a child");
    };
    let before = native(listening);
    let spawn = || Client::spawn(socket.config().journal(dir.path()));
    let client = within("start", spawn()).await.unwrap();
    let talk = client.conversation("talk").settings(settings(&home));
    let talk = talk.await.unwrap();
    let mut turn = talk.send("first").key("1").await.unwrap();
    assert_eq!(turn.final_response().await.unwrap(), "One.");
    let mut turn = talk.send("second").key("2").await.unwrap();
    until_text(&mut turn, "So ").await;
    within("shutdown", client.shutdown()).await.unwrap();
    let end = within("end", turn.outcome()).await.unwrap();
    assert!(matches!(end.outcome, Outcome::Lost { .. }), "{end:?}");
    drop((turn, talk, client));
    assert!(processes::alive(&before), "it is not ours to stop");

    // For us it is over, so it must be for the server, before anything else begins.
    let client = within("start", spawn()).await.unwrap();
    let talk = client.conversation("talk").settings(settings(&home));
    let talk = talk.await.unwrap();
    let mut turn = talk.send("second").key("2").await.unwrap();
    let end = within("end", turn.outcome()).await.unwrap();
    assert!(matches!(end.outcome, Outcome::Lost { .. }), "{end:?}");
    talk.dismiss().await.unwrap();
    let mut turn = talk.send("third").key("3").await.unwrap();
    let answer = within("answer", turn.final_response()).await;
    assert_eq!(answer.unwrap(), "Three.");
    let requests = model.requests();
    assert_eq!(requests.len(), 3);
    for text in ["first", "second", "third"] {
        assert_eq!(heard::told(&requests[2], text), 1, "{text}");
    }
    within("shutdown", client.shutdown()).await.unwrap();
    assert!(processes::alive(&before), "it is not ours to stop");
    never.open();
}

const TOKEN: &str = "a-token-of-the-test-0123456789abcdef";

pub(crate) async fn token_decides_who_is_served(version: &'static str) {
    let model = Model::queued([model::text("Hello.")]);
    let home = CodexHome::new(&model);
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("token");
    fs::write(&file, TOKEN).unwrap();
    let guarded = child(version, &home)
        .args(["--ws-auth", "capability-token", "--ws-token-file"])
        .arg(&file);
    let server = Server::new(guarded);
    let Server::Socket(listening) = &server else {
        panic!("the server is a child");
    };
    let config = |token: Option<&str>| {
        let mut config = server.config();
        let ServerConfig::WebSocket(socket) = &mut config.server else {
            panic!("the server is a child");
        };
        if let Some(token) = token {
            *socket = socket.clone().token(token);
        }
        config
    };
    let header = |token: &str| format!("Bearer {token}");
    let open =
        |token: &str| Visitor::open(listening.address(), &[("authorization", &header(token))]);
    let by_hand = [
        Visitor::open(listening.address(), &[]).err(),
        open("wrong").err(),
        open(TOKEN).err(),
    ];
    let wanted = match listening.address() {
        Address::Tcp(_) => [Some(401), Some(401), None],
        // Who may open the file is let in without one.
        Address::Unix(_) => [None; 3],
    };
    assert_eq!(by_hand, wanted);
    for (token, status) in [None, Some("wrong")].into_iter().zip(by_hand) {
        // Reconnection changes nothing: it is final.
        let refused = within("end of the start", Client::spawn(config(token))).await;
        match (refused, status) {
            (Ok(client), None) => {
                within("shutdown", client.shutdown()).await.unwrap();
            }
            (Err(StartError::Connection(reason)), Some(status)) => {
                assert_eq!(denied(&reason), status);
                assert!(!reason.to_string().contains("wrong\""), "{reason}");
            }
            (other, _) => panic!("{other:?}"),
        }
    }
    let mut of_file = config(None);
    if let ServerConfig::WebSocket(socket) = &mut of_file.server {
        *socket = socket.clone().token_file(&file);
    }
    let trace = dir.path().join("session.trace");
    let of_file = of_file.journal(dir.path().join("journal")).record(&trace);
    let client = within("start", Client::spawn(of_file)).await.unwrap();
    let talk = client.conversation("talk").settings(settings(&home));
    let mut turn = talk.await.unwrap().send("hello").await.unwrap();
    assert_eq!(turn.final_response().await.unwrap(), "Hello.");
    within("shutdown", client.shutdown()).await.unwrap();
    let recorded = fs::read_to_string(&trace).unwrap();
    assert!(!recorded.contains(TOKEN), "a token is recorded nowhere");
}

fn denied(reason: &EndReason) -> u16 {
    match reason {
        EndReason::Closed {
            phase: Phasing::Open,
            reason: CloseReason::Denied { status },
            ..
        } => *status,
        other => panic!("{other:?}"),
    }
}

/// What a browser sends is refused, and we send none of it.
pub(crate) async fn origin_is_refused(version: &'static str) {
    let model = Model::queued([]);
    let codex = Codex::start(version, model).await;
    let address = server(&codex).address();
    let origin = [("origin", "http://localhost")];
    let refused = match address {
        Address::Tcp(_) => Some(403),
        // No browser comes this way: the server lets everyone in who may open the file.
        Address::Unix(_) => None,
    };
    assert_eq!(Visitor::open(address, &origin).err(), refused);
    Visitor::initialized(address);
    codex.end().await;
}
