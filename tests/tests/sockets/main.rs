//! Clients over sockets, on both runtimes, against a server that speaks WebSocket by another
//! library.

#![allow(clippy::unwrap_used, reason = "helpers of tests are tests")]

mod living;
mod opening;
mod reconnecting;
mod recorded;
mod refreshes;
mod secrets;
mod streams;

use std::time::Duration;

use turnkeep_core::event::{ConnectionEvent, EndReason};
use turnkeep_runtime::{
    Authorization, Client, ClientConfig, Conversation, Delta, Runtime, StartError, Turn, TurnEnd,
    TurnEvent, TurnUpdate, WebSocketConfig, core::CloseReason,
};
use turnkeep_tests::{both::within, sockets::SocketServer};

/// Begins turn `$n` of thread `thr_1`.
fn begin(n: u32) -> String {
    format!(
        r#"C {{"id":"$a{n}","method":"turn/start","params":{{"threadId":"thr_1","input":"$i{n}","clientUserMessageId":"$m{n}"}}}}
S {{"id":"$a{n}","result":{{"turn":{{"id":"trn_{n}","items":[],"status":"inProgress","error":null}}}}}}
S {{"method":"turn/started","params":{{"threadId":"thr_1","turn":{{"id":"trn_{n}","items":[],"status":"inProgress","error":null}}}}}}
S {{"method":"item/completed","params":{{"threadId":"thr_1","turnId":"trn_{n}","item":{{"type":"userMessage","id":"usr_{n}","clientId":"$m{n}","content":"$i{n}"}}}}}}
"#
    )
}

fn say(n: u32, text: &str) -> String {
    format!(
        r#"S {{"method":"item/completed","params":{{"threadId":"thr_1","turnId":"trn_{n}","item":{{"type":"agentMessage","id":"it_{n}","text":"{text}","phase":"final_answer"}}}}}}
"#
    )
}

fn delta(n: u32, text: &str) -> String {
    format!(
        r#"S {{"method":"item/agentMessage/delta","params":{{"threadId":"thr_1","turnId":"trn_{n}","itemId":"it_{n}","delta":"{text}"}}}}
"#
    )
}

fn end(n: u32) -> String {
    format!(
        r#"S {{"method":"thread/status/changed","params":{{"threadId":"thr_1","status":{{"type":"idle"}}}}}}
S {{"method":"turn/completed","params":{{"threadId":"thr_1","turn":{{"id":"trn_{n}","items":[],"status":"completed","error":null}}}}}}
"#
    )
}

/// A whole turn.
fn turn(n: u32, text: &str) -> String {
    format!("{}{}{}", begin(n), say(n, text), end(n))
}

/// The thread is resumed and has this status; its history is one turn with our message.
fn resume(status: &str, turn: &str, items: &str) -> String {
    format!(
        r#"C {{"id":"$r","method":"thread/resume","params":{{"threadId":"thr_1","excludeTurns":true}}}}
S {{"id":"$r","result":{{"thread":{{"id":"thr_1","status":{{"type":"{status}"}}}}}}}}
C* {{"id":"$h","method":"thread/turns/list","params":{{"threadId":"thr_1"}}}}
S? {{"id":"$h","result":{{"data":[{{"id":"trn_1","items":[{{"type":"userMessage","id":"usr_1","clientId":"$m1","content":[]}}{items}],"itemsView":"full","status":"{turn}","error":null}}],"nextCursor":null}}}}
"#
    )
}

/// A script whose threads are answered by themselves.
fn script(parts: &[&str]) -> String {
    format!("X auto threads unsubscribe names\n{}", parts.concat())
}

fn at(server: &SocketServer) -> WebSocketConfig {
    WebSocketConfig::url(server.url()).unwrap()
}

/// A client of which nobody needs a binding, that does not wait for long.
fn over(socket: WebSocketConfig) -> ClientConfig {
    ClientConfig::web_socket(socket)
        .authorization(Authorization::None)
        .machine(|machine| {
            machine.limits.reconnect_first = Duration::from_millis(20);
            machine.limits.settle = Duration::from_secs(1);
        })
}

async fn start<R: Runtime + Default>(config: ClientConfig) -> Client<R> {
    within::<R, _>("start", Client::<R>::spawn(config))
        .await
        .unwrap()
}

/// Why a client did not start.
async fn not_started<R: Runtime + Default>(config: ClientConfig) -> CloseReason {
    match within::<R, _>("start", Client::<R>::spawn(config)).await {
        Err(StartError::Connection(reason)) => closed(*reason),
        other => panic!("{other:?}"),
    }
}

fn closed(reason: EndReason) -> CloseReason {
    match reason {
        EndReason::Closed { reason, .. } => reason,
        other => panic!("{other:?}"),
    }
}

/// Why an opening failed, in words.
fn failed(reason: CloseReason) -> String {
    match reason {
        CloseReason::OpenFailed(why) => why,
        other => panic!("{other:?}"),
    }
}

async fn talk<R: Runtime + Default>(client: &Client<R>) -> Conversation {
    within::<R, _>("conversation", client.conversation("talk"))
        .await
        .unwrap()
}

async fn send<R: Runtime + Default>(talk: &Conversation, text: &str) -> Turn {
    within::<R, _>("turn", talk.send(text)).await.unwrap()
}

async fn shut_down<R: Runtime + Default>(client: Client<R>) {
    within::<R, _>("shutdown", client.shutdown()).await.unwrap();
}

/// What a turn told.
#[derive(Debug, Default)]
struct Told {
    deltas: Vec<Delta>,
    updates: Vec<TurnUpdate>,
    end: Option<TurnEnd>,
}

impl Told {
    fn count(&self, is: impl Fn(&TurnUpdate) -> bool) -> usize {
        self.updates.iter().filter(|update| is(update)).count()
    }

    fn suspended(&self) -> usize {
        self.count(|update| matches!(update, TurnUpdate::Suspended { .. }))
    }

    fn resumed(&self) -> usize {
        self.count(|update| matches!(update, TurnUpdate::Resumed))
    }

    fn streamed(&self) -> String {
        self.deltas.iter().map(|delta| &*delta.text).collect()
    }

    fn end(&self) -> &TurnEnd {
        self.end.as_ref().unwrap()
    }
}

/// Reads a turn until something is told.
async fn until<R: Runtime + Default>(
    turn: &mut Turn,
    told: &mut Told,
    is: impl Fn(&TurnEvent) -> bool,
) -> TurnEvent {
    loop {
        let event = within::<R, _>("event", turn.next()).await;
        let event = event.unwrap_or_else(|| panic!("the turn is over: {told:?}"));
        match &event {
            TurnEvent::Delta(delta) => told.deltas.push(delta.clone()),
            TurnEvent::Update(update) => {
                told.updates.push(update.clone());
                if let TurnUpdate::Ended(end) = update {
                    told.end = Some((**end).clone());
                }
            }
            _ => {}
        }
        if is(&event) {
            return event;
        }
    }
}

/// Reads a turn to its end.
async fn to_end<R: Runtime + Default>(turn: &mut Turn, mut told: Told) -> Told {
    let is = |event: &TurnEvent| matches!(event, TurnEvent::Update(TurnUpdate::Ended(_)));
    until::<R>(turn, &mut told, is).await;
    told
}

/// Reads what is told of the connection up to something, which is the last.
async fn connection<R: Runtime + Default>(
    events: &mut turnkeep_runtime::ConnectionEvents,
    is: impl Fn(&ConnectionEvent) -> bool,
) -> Vec<ConnectionEvent> {
    let mut told = Vec::new();
    loop {
        let event = within::<R, _>("connection event", events.next()).await;
        let event = event.unwrap_or_else(|| panic!("the client has ended: {told:?}"));
        told.push(event);
        if told.last().is_some_and(&is) {
            return told;
        }
    }
}
