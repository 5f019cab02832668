//! Slow readers and many conversations, on both runtimes, against a server that is a process.
//!
//! Nothing here is timed: what must not wait for something else is shown to come before it.

#![allow(clippy::unwrap_used, reason = "helpers of tests are tests")]

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use serde_json::{Value, json};
use turnkeep_runtime::{
    ChildConfig, Client, ClientConfig, Conversation, ConversationEvent, Outcome, RawJson, Runtime,
    Settings, Tool, ToolResult, Turn, TurnEnd, TurnEvent, TurnUpdate,
    core::event::{ConnectionEvent, ConversationUpdate, DeltaKind, FailureKind, Warning},
};
use turnkeep_tests::{
    both::{PATIENCE, soon, spawn},
    crowd::text,
    on_both, processes,
};

on_both!(
    one_that_stops_reading_delays_nobody,
    what_waits_is_merged_and_counted_and_nothing_is_lost,
    past_the_cap_a_turn_fails_alone,
    a_server_that_goes_on_regardless_fills_nothing,
    a_thousand_conversations_get_their_own,
    a_flood_starves_nobody,
    shutdown_ends_every_wait,
    a_server_that_dies_ends_every_wait,
    a_thousand_dropped_handles_leave_no_server,
);

const MANY: usize = 1_000;

fn config() -> ClientConfig {
    let program = env!("CARGO_BIN_EXE_fake-app-server");
    let mut config = turnkeep_tests::client(ChildConfig::program(program).arg("crowd"));
    // What a slow machine needs for a thousand.
    config.machine.limits.request = PATIENCE;
    config.machine.limits.interrupt = PATIENCE;
    config.one_connection()
}

async fn client<R: Runtime + Default>(config: ClientConfig) -> Client<R> {
    soon::<R, _>(Client::spawn(config)).await.unwrap()
}

/// So many conversations, each with a turn that runs; the n-th turn is the server's n-th.
async fn running<R: Runtime + Default>(
    client: &Client<R>,
    count: usize,
) -> (Vec<Conversation>, Vec<Turn>) {
    let schema = RawJson::parse(r#"{"type":"object"}"#).unwrap();
    let settings = Settings::new().tool(Tool::function("lookup", "looks up", schema));
    let (mut conversations, mut turns) = (Vec::new(), Vec::new());
    for n in 0..count {
        let conversation = client.conversation(format!("c{n}"));
        let conversation = conversation.settings(settings.clone()).await.unwrap();
        turns.push(soon::<R, _>(conversation.send("go")).await.unwrap());
        conversations.push(conversation);
    }
    (conversations, turns)
}

/// Has the server do something, and gives what it had done before: deltas, and interrupts asked for.
async fn ask<R: Runtime + Default>(client: &Client<R>, what: &str, params: Value) -> (u64, u64) {
    let params = RawJson::parse(&params.to_string()).unwrap();
    let request = client.request_raw(format!("test/{what}"), params).reads();
    let answer = soon::<R, _>(request).await.unwrap();
    let answer: Value = serde_json::from_str(answer.get()).unwrap();
    let number = |name: &str| answer[name].as_u64().unwrap();
    (number("deltas"), number("interrupts"))
}

/// Up to how many bytes pieces of text grow together that have waited.
const PIECE: u64 = 64 << 10;

/// All that a turn tells from now on.
#[derive(Debug, Default)]
struct Told {
    text: String,
    frames: u64,
    pieces: u64,
    /// What the warnings of a lag say in all.
    lagged: u64,
    started: usize,
    ends: Vec<TurnEnd>,
}

impl Told {
    fn note(&mut self, event: TurnEvent) {
        match event {
            TurnEvent::Delta(delta) => {
                self.text.push_str(&delta.text);
                self.frames += u64::from(delta.frames);
                self.pieces += 1;
            }
            TurnEvent::Update(TurnUpdate::Started { .. }) => self.started += 1,
            TurnEvent::Update(TurnUpdate::Ended(end)) => self.ends.push(*end),
            TurnEvent::Update(TurnUpdate::Warning(Warning::Lagged { merged, dropped })) => {
                assert_eq!(dropped, 0);
                self.lagged += merged;
            }
            _ => {}
        }
    }

    async fn all<R: Runtime + Default>(turn: &mut Turn) -> Self {
        let mut told = Self::default();
        while let Some(event) = soon::<R, _>(turn.next()).await {
            told.note(event);
        }
        told
    }

    fn is_whole(&self, turn: usize, deltas: u64) {
        assert!(self.text == text(turn, deltas), "{turn}: {}", self.text);
        assert_eq!((self.frames, self.started), (deltas, 1), "{turn}");
        let [end] = &*self.ends else {
            panic!("{turn}: {:?}", self.ends)
        };
        assert_eq!(end.outcome.name(), "completed", "{turn}");
    }
}

fn failure(end: &TurnEnd) -> FailureKind {
    match &end.outcome {
        Outcome::Failed { error } => error.kind,
        other => panic!("{other:?}"),
    }
}

async fn one_that_stops_reading_delays_nobody<R: Runtime + Default>() {
    let client = client::<R>(config()).await;
    let (conversations, mut turns) = running(&client, 8).await;
    // Neither of these is read.
    let mut stalled = turns.remove(0);
    let unread = conversations[0].events();
    // Megabytes for all together: more than any pipe or channel holds.
    let say = json!({"from": 0, "to": 8, "rounds": 3_000, "burst": 2});
    ask(&client, "say", say).await;
    ask(&client, "finish", json!({"from": 1, "to": 8})).await;
    for (n, turn) in turns.iter_mut().enumerate() {
        Told::all::<R>(turn).await.is_whole(n + 1, 6_000);
    }
    // Requests and whole new conversations neither.
    assert_eq!(ask(&client, "ping", json!({})).await, (8 * 6_000, 0));
    let late = soon::<R, _>(client.conversation("late")).await.unwrap();
    let mut turn = soon::<R, _>(late.send("go")).await.unwrap();
    ask(&client, "finish", json!({"from": 8, "to": 9})).await;
    assert_eq!(
        soon::<R, _>(turn.outcome()).await.unwrap().outcome.name(),
        "completed"
    );

    ask(&client, "finish", json!({"from": 0, "to": 1})).await;
    let told = Told::all::<R>(&mut stalled).await;
    told.is_whole(0, 6_000);
    assert!(told.pieces <= 2 * told.text.len() as u64 / PIECE + 1);
    drop(unread);
    soon::<R, _>(client.shutdown()).await.unwrap();
}

async fn what_waits_is_merged_and_counted_and_nothing_is_lost<R: Runtime + Default>() {
    let client = client::<R>(config()).await;
    let (conversations, mut turns) = running(&client, 2).await;
    let mut other = turns.pop().unwrap();
    let mut turn = turns.pop().unwrap();
    let mut events = conversations[0].events();
    // Each of these is a piece of its own, save where a read takes two.
    for _ in 0..500 {
        ask(
            &client,
            "say",
            json!({"from": 0, "to": 1, "rounds": 1, "burst": 1}),
        )
        .await;
    }
    ask(&client, "mixture", json!({"turn": 0, "times": 300})).await;
    ask(&client, "finish", json!({"from": 1, "to": 2})).await;
    soon::<R, _>(other.outcome()).await.unwrap();
    let (mut told, mut order, mut outputs) = (Told::default(), Vec::new(), 0);
    while let Some(event) = soon::<R, _>(turn.next()).await {
        match &event {
            TurnEvent::Delta(delta) if delta.kind == DeltaKind::CommandOutput => {
                assert_eq!(delta.text, "out\n".repeat(5));
                outputs += delta.frames;
                order.push("output");
                continue;
            }
            TurnEvent::Delta(_) if order.last() == Some(&"text") => {}
            TurnEvent::Delta(_) => order.push("text"),
            TurnEvent::Update(TurnUpdate::ItemCompleted(_)) => order.push("item"),
            TurnEvent::Update(TurnUpdate::ToolCall(call)) => {
                order.push("call");
                let result = ToolResult::ok("found");
                soon::<R, _>(turn.respond(call.id, result)).await.unwrap();
            }
            TurnEvent::Update(TurnUpdate::Ended(_)) => order.push("end"),
            _ => {}
        }
        told.note(event);
    }
    told.is_whole(0, 500 + 300 * 7);
    assert_eq!(outputs, 300 * 5);
    let mut want = vec!["item", "text"];
    for _ in 0..300 {
        want.extend(["output", "item", "text"]);
    }
    want.extend(["call", "item", "end"]);
    assert_eq!(order, want);
    // What had grown together is told, as a count and as a warning.
    assert!(turn.merged() >= 200, "{}", turn.merged());
    let untold = turn.merged() - told.lagged;
    assert!(untold < 64, "{} {told:?}", turn.merged());

    // To whoever listens to the conversation, too.
    let (mut frames, mut lagged) = (0, 0);
    while let Some(event) = soon::<R, _>(events.next()).await {
        match event {
            ConversationEvent::Delta(delta) => frames += delta.frames,
            ConversationEvent::Turn { update, .. } => match update {
                TurnUpdate::Warning(Warning::Lagged { merged, .. }) => lagged += merged,
                TurnUpdate::Ended(_) => break,
                _ => {}
            },
            // Told before something that is of no turn.
            ConversationEvent::Conversation(ConversationUpdate::Warning(Warning::Lagged {
                merged,
                ..
            })) => lagged += merged,
            _ => {}
        }
    }
    assert_eq!(frames, 500 + 300 * (7 + 5));
    assert!(events.merged() - lagged < 64, "{lagged}");
    assert_eq!(events.dropped(), 0);
    soon::<R, _>(client.shutdown()).await.unwrap();
}

/// Floods the first of three turns, which nobody reads, until the client stops it.
async fn flooded<R: Runtime + Default>(after: u64) -> (Client<R>, Vec<Turn>, Vec<Conversation>) {
    let mut config = config();
    config.bytes_waiting = 300_000;
    let client = client::<R>(config).await;
    let (conversations, turns) = running(&client, 3).await;
    let flood =
        json!({"turn": 0, "least": 0, "until": "turn/interrupt", "others": 40, "after": after});
    ask(&client, "flood", flood).await;
    (client, turns, conversations)
}

async fn past_the_cap_a_turn_fails_alone<R: Runtime + Default>() {
    let (client, mut turns, conversations) = flooded::<R>(1_000).await;
    while ask(&client, "ping", json!({})).await.1 == 0 {}
    for (n, turn) in turns.iter_mut().enumerate().skip(1) {
        Told::all::<R>(turn).await.is_whole(n, 40);
    }
    let told = Told::all::<R>(&mut turns[0]).await;
    assert_eq!(failure(told.ends.first().unwrap()), FailureKind::QueueFull);
    assert_eq!((told.ends.len(), told.started), (1, 1));
    // All that was told before, in order, and no more than may wait: the cap, and one read.
    assert!(told.text == text(0, told.frames), "{}", told.frames);
    assert!(
        // With what each piece weighs beside its text.
        (250_000..400_000).contains(&(told.text.len() + 96 * 8)),
        "{}",
        told.text.len()
    );
    // The conversation goes on, after a word.
    soon::<R, _>(conversations[0].dismiss()).await.unwrap();
    let mut next = soon::<R, _>(conversations[0].send("again")).await.unwrap();
    ask(&client, "finish", json!({"from": 3, "to": 4})).await;
    assert_eq!(
        soon::<R, _>(next.outcome()).await.unwrap().outcome.name(),
        "completed"
    );
    soon::<R, _>(client.shutdown()).await.unwrap();
}

async fn a_server_that_goes_on_regardless_fills_nothing<R: Runtime + Default>() {
    // Twenty times the cap after it was told to stop.
    let (client, mut turns, conversations) = flooded::<R>(600_000).await;
    let mut events = conversations[0].events();
    for turn in turns.iter_mut().skip(1) {
        soon::<R, _>(turn.outcome()).await.unwrap();
    }
    while ask(&client, "ping", json!({})).await.0 < 600_000 {}
    let told = Told::all::<R>(&mut turns[0]).await;
    assert_eq!(failure(told.ends.first().unwrap()), FailureKind::QueueFull);
    assert!(told.text.len() < 400_000, "{}", told.text.len());
    // The listener has what was told until the end, and little after it.
    let mut heard = 0;
    soon::<R, _>(client.shutdown()).await.unwrap();
    while let Some(event) = soon::<R, _>(events.next()).await {
        if let ConversationEvent::Delta(delta) = event {
            heard += delta.text.len();
        }
    }
    assert!(heard < 400_000, "{heard}");
}

async fn a_thousand_conversations_get_their_own<R: Runtime + Default>() {
    let client = client::<R>(config()).await;
    let (_conversations, turns) = running(&client, MANY).await;
    let mut readers = Vec::new();
    for mut turn in turns {
        readers.push(spawn::<R, _>(async move {
            let told = Told::all::<R>(&mut turn).await;
            // The end is told once: asked again it says nothing.
            assert_eq!(soon::<R, _>(turn.next()).await, None);
            told
        }));
    }
    for burst in [1, 10, 3] {
        let say = json!({"from": 0, "to": MANY, "rounds": 5, "burst": burst});
        ask(&client, "say", say).await;
    }
    ask(&client, "finish", json!({"from": 0, "to": MANY})).await;
    for (n, reader) in readers.into_iter().enumerate() {
        soon::<R, _>(reader).await.is_whole(n, 5 * 14);
    }
    let counters = soon::<R, _>(client.counters()).await.unwrap();
    assert!(counters.frames >= 5 * 14 * MANY as u64, "{counters:?}");
    soon::<R, _>(client.shutdown()).await.unwrap();
}

async fn a_flood_starves_nobody<R: Runtime + Default>() {
    let client = client::<R>(config()).await;
    let (_conversations, mut turns) = running(&client, 8).await;
    let is_over = Arc::new(AtomicBool::new(false));
    let mut flooded = turns.remove(0);
    let reader = spawn::<R, _>({
        let is_over = Arc::clone(&is_over);
        async move {
            let told = Told::all::<R>(&mut flooded).await;
            is_over.store(true, Ordering::SeqCst);
            told
        }
    });
    // It ends when it is told, and not before: whoever were starved by it would wait for ever.
    let flood =
        json!({"turn": 0, "least": 100_000, "until": "test/enough", "others": 50, "after": 0});
    ask(&client, "flood", flood).await;
    for (n, turn) in turns.iter_mut().enumerate() {
        Told::all::<R>(turn).await.is_whole(n + 1, 50);
    }
    // Commands of all kinds are carried out meanwhile.
    soon::<R, _>(client.conversation("late")).await.unwrap();
    let late = soon::<R, _>(client.conversation("late")).await.unwrap();
    let mut turn = soon::<R, _>(late.send("go")).await.unwrap();
    let first = soon::<R, _>(turn.next()).await;
    assert!(first.is_some());
    assert!(!is_over.load(Ordering::SeqCst));
    let (before, _) = ask(&client, "enough", json!({})).await;
    let told = soon::<R, _>(reader).await;
    assert!(
        told.frames >= 100_000.max(before - 8 * 50),
        "{} {before}",
        told.frames
    );
    assert!(told.text == text(0, told.frames));
    assert_eq!(told.ends.len(), 1);
    soon::<R, _>(client.shutdown()).await.unwrap();
}

/// Waits of every kind, a thousand of most.
struct Waits<R> {
    client: Client<R>,
    left: Arc<AtomicUsize>,
    tasks: BTreeMap<&'static str, Vec<turnkeep_runtime::BoxFuture<bool>>>,
}

impl<R: Runtime + Default> Waits<R> {
    /// Whether it is the connection that ends, or all of the client with it.
    async fn begin(client_goes_on: bool) -> Self {
        let mut config = config();
        config.commands_waiting = 4;
        let client = client::<R>(config).await;
        let (conversations, turns) = running(&client, MANY).await;
        let left = Arc::new(AtomicUsize::new(0));
        let mut waits = Self {
            client: client.clone(),
            left,
            tasks: BTreeMap::new(),
        };
        for (n, mut turn) in turns.into_iter().enumerate() {
            if n % 2 == 0 {
                waits.add("outcome", async move {
                    let ended = turn.outcome().await;
                    ended.is_err() || ended.is_ok_and(|end| end.outcome.name() != "completed")
                });
            } else {
                waits.add("turn", async move {
                    while turn.next().await.is_some() {}
                    true
                });
            }
        }
        for conversation in conversations {
            let mut events = conversation.events();
            waits.add("events", async move {
                while let Some(event) = events.next().await {
                    let is_end = matches!(
                        event,
                        ConversationEvent::Turn {
                            update: TurnUpdate::Ended(_),
                            ..
                        }
                    );
                    if client_goes_on && is_end {
                        break;
                    }
                }
                true
            });
            waits.add("next turn", async move {
                conversation.next_turn().await.is_none()
            });
        }
        for _ in 0..100 {
            let never = client.request_raw("test/never", RawJson::parse("{}").unwrap());
            waits.add("request", async move { never.await.is_err() });
        }
        let mut events = client.connection_events();
        waits.add("connection", async move {
            while let Some(event) = events.next().await {
                if client_goes_on && matches!(event, ConnectionEvent::Ended(_)) {
                    break;
                }
            }
            true
        });
        // All that was asked for is under way.
        ask(&client, "ping", json!({})).await;
        waits
    }

    fn add(&mut self, kind: &'static str, wait: impl Future<Output = bool> + Send + 'static) {
        let left = Arc::clone(&self.left);
        left.fetch_add(1, Ordering::SeqCst);
        let task = spawn::<R, _>(async move {
            let is_right = wait.await;
            left.fetch_sub(1, Ordering::SeqCst);
            is_right
        });
        self.tasks.entry(kind).or_default().push(Box::pin(task));
    }

    /// More commands than the queue of commands holds; each comes to an end, of whichever kind.
    fn commands(&mut self) {
        for n in 0..200 {
            let conversation = self.client.conversation(format!("late {n}"));
            self.add("command", async move {
                let _ = conversation.await;
                true
            });
        }
    }

    async fn end(self) {
        for (kind, tasks) in self.tasks {
            for task in tasks {
                let limit = async {
                    R::default().sleep(PATIENCE).await;
                    None
                };
                let done = futures_lite::future::or(async { Some(task.await) }, limit).await;
                assert_eq!(done, Some(true), "{kind}");
            }
        }
        assert_eq!(self.left.load(Ordering::SeqCst), 0);
    }
}

async fn shutdown_ends_every_wait<R: Runtime + Default>() {
    let mut waits = Waits::<R>::begin(false).await;
    waits.commands();
    let summary = soon::<R, _>(waits.client.shutdown()).await.unwrap();
    assert_eq!(summary.report.turns as usize, MANY);
    waits.end().await;
}

async fn a_server_that_dies_ends_every_wait<R: Runtime + Default>() {
    let mut waits = Waits::<R>::begin(true).await;
    waits.commands();
    let client = waits.client.clone();
    let die = client.request_raw("test/die", RawJson::parse("{}").unwrap());
    soon::<R, _>(die).await.unwrap_err();
    waits.end().await;
    soon::<R, _>(client.shutdown()).await.unwrap();
}

async fn a_thousand_dropped_handles_leave_no_server<R: Runtime + Default>() {
    let client = client::<R>(config()).await;
    let (conversations, turns) = running(&client, MANY).await;
    let server = processes::family(client.server_pid().unwrap());
    assert!(!server.is_empty());
    drop((client, conversations, turns));
    let gone = async {
        while server.iter().any(processes::alive) {
            R::default().sleep(Duration::from_millis(5)).await;
        }
    };
    soon::<R, _>(gone).await;
}
