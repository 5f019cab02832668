//! The program that the crash suite kills: an application that uses the library as one should. It reads its own log, goes on where
//! that ends, and writes down what it is told before it acknowledges it. See `turnkeep_tests::crash`.
//!
//!     crash-child WORKLOAD.json
//!
//! On stdout it says what it is at, so that it can be killed there. What it says there is no proof of anything.

use std::{
    collections::{BTreeMap, BTreeSet},
    error::Error,
    fs,
    sync::Arc,
    time::Duration,
};

use serde_json::json;
use tokio::task::JoinSet;
use turnkeep_core::{
    command::BusyWhy,
    event::{ConnectionEvent, Status},
};
use turnkeep_runtime::{
    Answer, ApprovalPolicy, ChildConfig, ClientConfig, CommandError, Conversation, Outcome,
    Questions, RawJson, RequestError, Sandbox, SendError, Settings, Steered, Tool, ToolResult,
    Turn, TurnEnd, TurnEvent, TurnUpdate, WebSocketConfig,
};
use turnkeep_tests::{
    Client,
    crash::{self, Kind, Line, Log, Random, Workload},
    session,
};

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

fn main() -> Result<()> {
    let path = std::env::args().nth(1).ok_or("which workload?")?;
    let workload: Workload = serde_json::from_str(&fs::read_to_string(path)?)?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()?;
    runtime.block_on(run(workload))
}

async fn run(workload: Workload) -> Result<()> {
    let before = crash::read(&workload.log)?;
    let lives = before
        .iter()
        .filter(|line| matches!(line, Line::Life { .. }))
        .count();
    let client = Client::spawn(config(&workload, lives)?).await?;
    let mut connection = client.connection_events();
    tokio::spawn(async move {
        while let Some(event) = connection.next().await {
            match event {
                ConnectionEvent::Ready { .. } => println!("ready"),
                ConnectionEvent::Lost { reason, .. } => println!("lost {reason}"),
                ConnectionEvent::Ended(reason) => println!("ended {reason}"),
                _ => {}
            }
        }
    });
    let app = Arc::new(App {
        log: Log::open(&workload.log)?,
        tool_log: Log::open(&workload.tool_log)?,
        client,
        workload,
    });
    app.log.write(&Line::Life {
        pid: std::process::id(),
        found: format!("{:?}", app.client.recovered()),
    })?;
    println!("ready");
    let counting = tokio::spawn(count(Arc::clone(&app)));
    let talks = (1..=app.workload.conversations).map(|number| {
        let app = Arc::clone(&app);
        let past = Past::of(&before, number);
        tokio::spawn(async move { app.talk(number, past).await })
    });
    for talk in talks.collect::<Vec<_>>() {
        talk.await??;
    }
    counting.abort();
    app.say_counts().await;
    app.client.shutdown().await?;
    app.log.write(&Line::Done)?;
    println!("done");
    Ok(())
}

async fn count(app: Arc<App>) {
    loop {
        tokio::time::sleep(Duration::from_millis(50)).await;
        app.say_counts().await;
    }
}

fn config(workload: &Workload, lives: usize) -> Result<ClientConfig> {
    let config = match &workload.url {
        Some(url) => ClientConfig::web_socket(WebSocketConfig::url(url)?),
        None => ClientConfig::child(server(workload)),
    };
    let config = session::authorized(config)
        .journal(&workload.journal)
        .record(workload.traces.join(format!("life-{lives}.trace")))
        .machine(|machine| {
            // It is killed far more often than a server is lost elsewhere.
            machine.limits.reconnect_first = Duration::from_millis(5);
            machine.limits.reconnect_longest = Duration::from_millis(20);
            if workload.url.is_some() {
                // Somebody else starts the next one.
                machine.limits.reconnect_longest = Duration::from_millis(200);
                machine.limits.reconnect_tries = 200;
            }
        });
    Ok(config)
}

fn server(workload: &Workload) -> ChildConfig {
    ChildConfig::program(&workload.launcher)
        .arg("app-server")
        .cwd(&workload.cwd)
        .codex_home(&workload.codex_home)
        .env("HOME", &workload.user_home)
        .env(crash::MARK, &workload.mark)
}

/// What the log says of a conversation.
#[derive(Debug, Default)]
struct Past {
    /// The keys that were said, in order.
    said: Vec<String>,
    /// The keys by the ids of their messages.
    keys: BTreeMap<String, String>,
    /// The messages that have ended.
    ended: BTreeSet<String>,
    /// The keys whose end was told.
    over: BTreeSet<String>,
    /// The keys that were steered, perhaps.
    steered: BTreeSet<String>,
    /// Results that come later.
    late: JoinSet<()>,
}

impl Past {
    fn of(lines: &[Line], number: u32) -> Self {
        let mut past = Self::default();
        let ours = format!("c{number}");
        for line in lines {
            match line {
                Line::Said { key }
                    if crash::conversation_of(key) == ours && past.said.last() != Some(key) =>
                {
                    past.said.push(key.clone());
                }
                Line::Accepted { key, message } if crash::conversation_of(key) == ours => {
                    past.keys.insert(message.clone(), key.clone());
                }
                Line::Steering { key } => {
                    past.steered.insert(key.clone());
                }
                Line::End { key, message, .. } => {
                    past.ended.insert(message.clone());
                    past.over.extend(key.clone());
                }
                _ => {}
            }
        }
        past
    }

    /// What was said and has no end.
    fn pending(&self) -> Option<String> {
        self.said
            .last()
            .filter(|key| !self.over.contains(*key))
            .cloned()
    }

    fn is_over(&self, number: u32) -> bool {
        self.over.contains(&crash::last_key(number))
    }
}

struct App {
    log: Log,
    tool_log: Log,
    client: Client,
    workload: Workload,
}

impl App {
    async fn talk(&self, number: u32, mut past: Past) -> Result<()> {
        let settings = self.settings()?;
        let talk = self
            .client
            .conversation(format!("c{number}"))
            .settings(settings)
            .await?;
        // Half of them look for what is open before they say anything, half after it.
        if number % 2 == 1 {
            self.take_recovered(&talk, &mut past).await?;
        }
        let mut is_first = true;
        while !past.is_over(number) {
            let key = match past.pending() {
                Some(key) => key,
                None if self.workload.enough.exists() => crash::last_key(number),
                None => crash::key(number, u32::try_from(past.said.len())? + 1),
            };
            self.say(&talk, &key, &mut past).await?;
            if is_first && number % 2 == 0 {
                self.take_recovered(&talk, &mut past).await?;
            }
            is_first = false;
            self.take_others(&talk, &mut past).await?;
        }
        // What still comes must be heard.
        while past.late.join_next().await.is_some() {}
        while talk.status() != Status::Quiet {
            self.take_others(&talk, &mut past).await?;
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        Ok(())
    }

    /// Says a message, perhaps again, and follows its turn to the end.
    async fn say(&self, talk: &Conversation, key: &str, past: &mut Past) -> Result<()> {
        let kind = crash::kind(self.workload.seed, key);
        let said = Line::Said { key: key.into() };
        self.log.write(&said)?;
        if past.said.last().map(String::as_str) != Some(key) {
            past.said.push(key.into());
        }
        println!("start {key}");
        match talk.send(crash::text(key, kind)).key(key).await {
            Ok(turn) => {
                let message = turn.message().ok_or("a message has an id")?.to_string();
                self.log.write(&Line::Accepted {
                    key: key.into(),
                    message: message.clone(),
                })?;
                past.keys.insert(message, key.into());
                self.follow(turn, past).await
            }
            Err(SendError::AlreadyEnded { message, .. }) => {
                if !past.ended.contains(message.as_str()) {
                    let what = format!("{key}: its end was acknowledged, and never told");
                    self.log.write(&Line::Wrong { what })?;
                }
                past.over.insert(key.into());
                Ok(())
            }
            Err(SendError::Request(RequestError::Command(CommandError::Busy { why, .. }))) => {
                if matches!(why, BusyWhy::Stalled { .. }) {
                    self.dismiss(talk).await?;
                }
                self.take_others(talk, past).await?;
                tokio::time::sleep(Duration::from_millis(5)).await;
                Ok(())
            }
            Err(error) => {
                let what = format!("{key}: not sent: {error}");
                self.log.write(&Line::Wrong { what: what.clone() })?;
                Err(what.into())
            }
        }
    }

    /// Leaves a stall: what its round carried and the server has not goes with the next message.
    async fn dismiss(&self, talk: &Conversation) -> Result<()> {
        match talk.dismiss().await {
            Ok(()) | Err(RequestError::Command(CommandError::NotStalled { .. })) => Ok(()),
            Err(error) => {
                let what = format!("a stall cannot be left: {error}");
                self.log.write(&Line::Wrong { what: what.clone() })?;
                Err(what.into())
            }
        }
    }

    async fn take_recovered(&self, talk: &Conversation, past: &mut Past) -> Result<()> {
        for turn in talk.recovered().await? {
            self.follow(turn, past).await?;
        }
        Ok(())
    }

    /// Turns that began by themselves, with what the model had not heard.
    async fn take_others(&self, talk: &Conversation, past: &mut Past) -> Result<()> {
        while let Some(turn) = talk.current_turn().await? {
            self.follow(turn, past).await?;
        }
        Ok(())
    }

    async fn follow(&self, turn: Turn, past: &mut Past) -> Result<()> {
        let mut turn = turn.manual_acknowledge();
        let key = turn.message().and_then(|id| past.keys.get(id.as_str()));
        let key = key.cloned();
        let mut steers = key
            .as_ref()
            .filter(|key| crash::kind(self.workload.seed, key) == Kind::Steer)
            .map(|key| crash::steered_key(key))
            // A turn that outlived us is not steered again.
            .filter(|key| !past.steered.contains(key));
        let mut random = Random(self.workload.seed ^ u64::from(std::process::id()));
        while let Some(event) = turn.next().await {
            match event {
                TurnEvent::Delta(_) => {
                    println!("text");
                    if let Some(key) = steers.take() {
                        self.steer(&turn, &key).await?;
                    }
                }
                TurnEvent::Update(TurnUpdate::ToolCall(call)) => {
                    let arguments: serde_json::Value = call.arguments.read()?;
                    let of = arguments["key"].as_str().unwrap_or("?").to_owned();
                    println!("call {of}");
                    self.tool_log.write_text(&of)?;
                    if call.tool == crash::LATER {
                        let pause = Duration::from_millis(random.below(120));
                        let talk = turn.conversation();
                        past.late.spawn(async move {
                            tokio::time::sleep(pause).await;
                            println!("result {of}");
                            let _ = talk.respond(call.id, ToolResult::ok("noted later")).await;
                        });
                        continue;
                    }
                    tokio::time::sleep(Duration::from_millis(random.below(20))).await;
                    // It may be closed by now: the server was killed.
                    let _ = turn.respond(call.id, ToolResult::ok("noted")).await;
                }
                TurnEvent::Update(TurnUpdate::Question(question)) => {
                    println!("question");
                    tokio::time::sleep(Duration::from_millis(random.below(20))).await;
                    let _ = turn.answer(question.id, Answer::Accept).await;
                }
                TurnEvent::Update(TurnUpdate::Ended(end)) => {
                    println!("end");
                    self.ended(&turn, &end, past).await?;
                }
                TurnEvent::Update(TurnUpdate::Corrected(end)) => {
                    let what = format!("an end is corrected: {end:?}");
                    self.log.write(&Line::Wrong { what })?;
                }
                _ => {}
            }
        }
        if turn.end().is_none() {
            let what = format!("{key:?}: the turn has no end: {:?}", turn.outcome().await);
            self.log.write(&Line::Wrong { what: what.clone() })?;
            return Err(what.into());
        }
        Ok(())
    }

    /// Writes an end down, and only then says that it has arrived.
    async fn ended(&self, turn: &Turn, end: &TurnEnd, past: &mut Past) -> Result<()> {
        let message = end.message.as_ref().ok_or("a turn of ours has a message")?;
        let message = message.to_string();
        // A kill may have come before the answer to the sending could be written down: then the message is said again.
        let key = past.keys.get(&message).cloned();
        self.log.write(&Line::End {
            key: key.clone(),
            message: message.clone(),
            outcome: end.outcome.name().into(),
            text: match &end.outcome {
                Outcome::Completed { text, .. } => text.clone(),
                _ => None,
            },
            source: format!("{:?}", end.source),
            detail: format!("{:?}", end.outcome),
        })?;
        past.ended.insert(message);
        past.over.extend(key);
        turn.acknowledge().await?;
        println!("acknowledged");
        Ok(())
    }

    async fn steer(&self, turn: &Turn, key: &str) -> Result<()> {
        self.log.write(&Line::Steering { key: key.into() })?;
        println!("steer {key}");
        let text = crash::text(key, Kind::Plain);
        let how = match turn.steer(text).await {
            Ok(Steered::Taken { .. }) => "taken".to_owned(),
            Ok(Steered::Queued { .. }) => "queued".to_owned(),
            Ok(other) => format!("{other:?}"),
            Err(RequestError::Command(CommandError::NoActiveTurn)) => "none".to_owned(),
            Err(error) => format!("error: {error}"),
        };
        let key = key.into();
        self.log.write(&Line::Steered { key, how })?;
        Ok(())
    }

    async fn say_counts(&self) {
        let Ok(counters) = self.client.counters().await else {
            return;
        };
        let counts = json!({
            "reconnects": counters.reconnects,
            "lookups": counters.lookups,
            "found running": counters.found_running,
            "found ended": counters.found_ended,
            "resent": counters.resent,
            "void": counters.found_void,
            "absent": counters.resent.saturating_sub(counters.found_void),
            "unknown": counters.unknown,
        });
        println!("counts {counts}");
    }

    fn settings(&self) -> Result<Settings> {
        let schema = json!({
            "type": "object",
            "properties": { "key": { "type": "string" } },
            "required": ["key"],
        });
        let schema = RawJson::parse(&schema.to_string())?;
        Ok(Settings::new()
            .cwd(self.workload.cwd.display().to_string())
            .approval_policy(ApprovalPolicy::Untrusted)
            .sandbox(Sandbox::WorkspaceWrite)
            .questions(Questions::Ask)
            .tool(Tool::function(crash::TOOL, "Notes a key.", schema.clone()))
            .tool(Tool::function(crash::LATER, "Notes a key later.", schema).deferred()))
    }
}
