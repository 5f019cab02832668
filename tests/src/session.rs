//! A client under test: it records and keeps a journal, and at its end all is checked that holds for every session.

use std::{
    fmt,
    future::{Future, IntoFuture},
    path::PathBuf,
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use tempfile::TempDir;
use turnkeep_core::{
    Delta, TurnEnd, TurnUpdate,
    codec::journal::Journal,
    command::Authorization,
    event::{DeltaKind, Item, Question, ToolCall},
};
use turnkeep_runtime::{
    ApprovalPolicy, ChildConfig, ClientConfig, Conversation, ConversationEvent, ConversationEvents,
    RawJson, Sandbox, Settings, ShutdownSummary, StartError, Tool, Turn, TurnEvent,
};

use crate::{
    chosen::Client,
    processes::{self, Proc},
    recording::Recording,
    server::Server,
};

/// How long anything may take that must come. A busy machine is slow.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// The longest a whole test may take.
const TEST_LIMIT: Duration = Duration::from_secs(300);

/// A variable of the server's environment that tells its descendants, one value for each session.
const VARIABLE: &str = "TURNKEEP_TEST_SESSION";

/// Runs a test on a runtime of its own, which is dropped at the end with all that still runs on it.
pub fn run<T>(test: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .expect("a runtime can be made");
    let limited = runtime.block_on(async { tokio::time::timeout(TEST_LIMIT, test).await });
    limited.unwrap_or_else(|_| panic!("the test took more than {TEST_LIMIT:?}"))
}

/// Waits for what must come.
///
/// # Panics
///
/// If it does not come within [`PATIENCE`].
pub async fn within<T>(what: &str, future: impl IntoFuture<Output = T>) -> T {
    let limited = tokio::time::timeout(PATIENCE, future).await;
    limited.unwrap_or_else(|_| panic!("no {what} within {PATIENCE:?}"))
}

/// A client that is being tested.
#[derive(Debug)]
pub struct Session {
    pub client: Client,
    pub server: Server,
    dir: TempDir,
    mark: String,
}

/// A session that has ended and holds what must hold.
#[derive(Debug)]
pub struct Ended {
    /// The recording, played again.
    pub recording: Recording,
    /// The journal.
    pub journal: Journal,
    /// What the shutdown found.
    pub summary: ShutdownSummary,
    /// Where both lie.
    pub directory: TempDir,
}

/// A start that failed.
#[derive(Debug)]
pub struct NotStarted {
    pub error: StartError,
    /// The recording, played again, where it came that far.
    pub recording: Recording,
    /// Processes of the server that were there after the error. There must be none.
    pub left: Vec<Proc>,
}

impl Session {
    /// Starts a client.
    ///
    /// # Panics
    ///
    /// If it does not start.
    pub async fn start(child: ChildConfig) -> Self {
        Self::start_with(child, |config| config).await
    }

    /// Starts a client whose configuration is changed first.
    pub async fn start_with(
        child: ChildConfig,
        change: impl FnOnce(ClientConfig) -> ClientConfig,
    ) -> Self {
        match Self::try_start(child, change).await {
            Ok(session) => session,
            Err(failed) => panic!("the client does not start: {}", failed.error),
        }
    }

    /// Starts a client that may not start.
    pub async fn try_start(
        child: ChildConfig,
        change: impl FnOnce(ClientConfig) -> ClientConfig,
    ) -> Result<Self, Box<NotStarted>> {
        let (child, dir, mark) = marked(child);
        let server = Server::new(child);
        let config = change(in_directory(server.config(), &dir));
        let spawned = within("start", Client::spawn(config)).await;
        match spawned {
            Ok(client) => Ok(Session {
                client,
                server,
                dir,
                mark,
            }),
            Err(error) => {
                // One that listens is not the client's to stop.
                drop(server);
                Err(Box::new(NotStarted {
                    error,
                    left: processes::with_variable(VARIABLE, &mark),
                    recording: Recording::replay(&trace(&dir)),
                }))
            }
        }
    }

    /// Kills the server with all that it started. The client starts another one; where it cannot, one is started for it
    /// at the same address.
    pub fn kill_server(&self) {
        match &self.server {
            Server::Child(_) => {
                processes::kill_family(self.launcher().pid);
            }
            Server::Socket(server) => {
                assert_eq!(server.kill(), [], "the server is killed");
                server.start_again();
            }
        }
    }

    /// The server's processes: its group, what descends from it, and what has its environment.
    pub fn family(&self) -> Vec<Proc> {
        family(&self.mark)
    }

    /// The process that we started ourselves.
    ///
    /// # Panics
    ///
    /// If it is gone.
    pub fn launcher(&self) -> Proc {
        let us = std::process::id();
        let mut family = self.family().into_iter();
        family
            .find(|p| p.ppid == us)
            .expect("the server is our child")
    }

    /// Shuts down and checks what holds for every session: nothing is left of the server, or all of it where it is not
    /// ours, the recording plays again, the journal is whole and says the same, and no frame came before its record.
    ///
    /// # Panics
    ///
    /// If one of these does not hold.
    pub async fn end(self) -> Ended {
        let before = self.family();
        let summary = within("shutdown", self.client.shutdown())
            .await
            .expect("the client shuts down in order");
        if let Server::Socket(server) = &self.server {
            let native = before.iter().find(|p| p.comm == "codex");
            let native = native.expect("a server was there");
            assert!(processes::alive(native), "the shutdown ended the server");
            assert_eq!(server.kill(), [], "the server is killed");
        }
        // No patience: when shutdown returns nothing may be left.
        assert_eq!(
            alive(&before, &self.mark),
            [],
            "the shutdown left processes behind"
        );
        self.check(summary)
    }

    /// Checks a session whose client was shut down already.
    pub fn check(self, summary: ShutdownSummary) -> Ended {
        let told = summary.recording.as_ref().expect("it was recorded");
        assert_eq!(told.error, None, "the recording is whole");
        let recording = Recording::replay(&trace(&self.dir));
        assert_eq!(told.steps, recording.steps.len() as u64 - 1);
        let journal = recording.check_journal(self.dir.path());
        assert_eq!(
            journal.entries.last().map(|(_, e)| e.seq),
            Some(summary.journal),
            "what the shutdown tells is the journal's last batch"
        );
        let changes = recording.check_order();
        println!(
            "{} steps played again, {} batches read, {changes} frames behind their records",
            recording.steps.len(),
            journal.entries.len()
        );
        Ended {
            recording,
            journal,
            summary,
            directory: self.dir,
        }
    }

    /// The mark of the server's processes, for those who look for them after the session is gone.
    pub fn watch(&self) -> Watch {
        Watch {
            seen: self.family(),
            mark: self.mark.clone(),
        }
    }
}

/// A look-out for the processes of a session.
#[derive(Debug)]
pub struct Watch {
    pub seen: Vec<Proc>,
    mark: String,
}

impl Watch {
    /// Waits until none is left and returns those that are.
    pub fn wait_gone(&self) -> Vec<Proc> {
        let mut left = processes::wait_gone(&self.seen, PATIENCE);
        let marked = processes::with_variable(VARIABLE, &self.mark);
        left.extend(processes::wait_gone(&marked, PATIENCE));
        left
    }
}

/// A configuration that records and keeps a journal, and a look-out for its processes: for starts that do not come to
/// their end.
pub fn watched(child: ChildConfig) -> (ClientConfig, TempDir, Watch) {
    let (child, dir, mark) = marked(child);
    let config = in_directory(crate::client(child), &dir);
    let seen = Vec::new();
    (config, dir, Watch { seen, mark })
}

impl Watch {
    /// Waits until `count` processes of the session are there.
    pub async fn wait_for(&mut self, count: usize) {
        let look = async {
            loop {
                self.seen = family(&self.mark);
                if self.seen.len() >= count {
                    return;
                }
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        within("process of the server", look).await;
    }
}

// The mark is in the environment of all that the server starts.
fn marked(child: ChildConfig) -> (ChildConfig, TempDir, String) {
    static SESSIONS: AtomicU64 = AtomicU64::new(0);
    let number = SESSIONS.fetch_add(1, Ordering::Relaxed);
    let mark = format!("{}-{number}", std::process::id());
    let dir = tempfile::Builder::new()
        .prefix("turnkeep-session-")
        .tempdir()
        .expect("a temporary directory can be made");
    (child.env(VARIABLE, &mark), dir, mark)
}

fn in_directory(config: ClientConfig, dir: &TempDir) -> ClientConfig {
    config
        .one_connection()
        .journal(dir.path())
        .record(trace(dir))
}

/// A configuration whose conversations need no binding.
#[must_use]
pub fn authorized(config: ClientConfig) -> ClientConfig {
    config.authorization(Authorization::None)
}

/// A tool whose results come later.
#[must_use]
pub fn later() -> Tool {
    Tool::function("later", "Looks up, and takes its time.", any_object()).deferred()
}

/// A tool that is waited for.
#[must_use]
pub fn probe() -> Tool {
    Tool::function("probe", "Looks at once.", any_object())
}

/// Settings with both tools that ask nobody.
#[must_use]
pub fn slow_tools(cwd: &str) -> Settings {
    Settings::new()
        .cwd(cwd)
        .approval_policy(ApprovalPolicy::Never)
        .sandbox(Sandbox::ReadOnly)
        .tool(later())
        .tool(probe())
}

fn any_object() -> RawJson {
    RawJson::parse(r#"{"type":"object"}"#).expect("a schema is JSON")
}

fn trace(dir: &TempDir) -> PathBuf {
    dir.path().join("session.trace")
}

fn family(mark: &str) -> Vec<Proc> {
    let mut family = processes::with_variable(VARIABLE, mark);
    let us = std::process::id();
    for root in family.clone().iter().filter(|p| p.ppid == us) {
        family.extend(processes::family(root.pid));
    }
    family.sort();
    family.dedup_by_key(|p| (p.pid, p.starttime));
    family
}

fn alive(seen: &[Proc], mark: &str) -> Vec<Proc> {
    let mut left: Vec<Proc> = seen
        .iter()
        .filter(|p| processes::alive(p))
        .cloned()
        .collect();
    left.extend(processes::with_variable(VARIABLE, mark));
    left
}

/// All that a turn told, to its end.
#[derive(Debug)]
pub struct Told {
    pub updates: Vec<TurnUpdate>,
    pub deltas: Vec<Delta>,
    pub end: TurnEnd,
}

impl Told {
    /// The streamed text of the agent.
    pub fn streamed(&self) -> String {
        let deltas = self.deltas.iter().filter(|d| d.kind == DeltaKind::Agent);
        deltas.map(|d| d.text.as_str()).collect()
    }

    /// The items that were completed, by kind.
    pub fn completed(&self, kind: &str) -> Vec<&Item> {
        let items = self.updates.iter().filter_map(|update| match update {
            TurnUpdate::ItemCompleted(item) => Some(item),
            _ => None,
        });
        items.filter(|item| item.kind == kind).collect()
    }
}

/// Waits for the next thing in a turn that `wanted` takes; what comes before it is passed over.
///
/// # Panics
///
/// If it does not come, or the turn ends before.
pub async fn until<T>(
    turn: &mut Turn,
    what: &str,
    mut wanted: impl FnMut(&TurnEvent) -> Option<T>,
) -> T {
    let mut passed = Passed::default();
    let search = async {
        loop {
            let Some(event) = turn.next().await else {
                panic!("the turn was over before {what}; it told {passed}");
            };
            if let Some(found) = wanted(&event) {
                return found;
            }
            passed.note(&event);
        }
    };
    within(what, search).await
}

/// Waits for a tool call.
pub async fn until_call(turn: &mut Turn) -> ToolCall {
    until(turn, "tool call", |event| match event {
        TurnEvent::Update(TurnUpdate::ToolCall(call)) => Some(call.clone()),
        _ => None,
    })
    .await
}

/// Waits for a question.
pub async fn until_question(turn: &mut Turn) -> Question {
    until(turn, "question", |event| match event {
        TurnEvent::Update(TurnUpdate::Question(question)) => Some((**question).clone()),
        _ => None,
    })
    .await
}

/// Waits until so much of the agent's text has come.
pub async fn until_text(turn: &mut Turn, text: &str) {
    let mut so_far = String::new();
    until(turn, text, |event| match event {
        TurnEvent::Delta(delta) if delta.kind == DeltaKind::Agent => {
            so_far.push_str(&delta.text);
            so_far.contains(text).then_some(())
        }
        _ => None,
    })
    .await;
}

/// Reads a turn to its end.
///
/// # Panics
///
/// If it has none.
pub async fn to_end(turn: &mut Turn) -> Told {
    let (mut updates, mut deltas) = (Vec::new(), Vec::new());
    let read = async {
        while let Some(event) = turn.next().await {
            match event {
                TurnEvent::Delta(delta) => deltas.push(delta),
                TurnEvent::Update(update) => updates.push(update),
                other => panic!("a new kind of event: {other:?}"),
            }
        }
    };
    within("end of the turn", read).await;
    let end = turn.end().expect("the stream ends with the turn's end");
    Told {
        updates,
        deltas,
        end: end.clone(),
    }
}

/// Waits for the next thing in a conversation that `wanted` takes.
///
/// # Panics
///
/// If it does not come.
pub async fn until_in<T>(
    events: &mut ConversationEvents,
    what: &str,
    mut wanted: impl FnMut(&ConversationEvent) -> Option<T>,
) -> T {
    let search = async {
        loop {
            let Some(event) = events.next().await else {
                panic!("the conversation was over before {what}");
            };
            if let Some(found) = wanted(&event) {
                return found;
            }
        }
    };
    within(what, search).await
}

/// Waits for a turn that nobody began by hand: a follow-up.
///
/// # Panics
///
/// If none comes.
pub async fn until_turn(talk: &Conversation) -> Turn {
    let search = async {
        loop {
            if let Some(turn) = talk.current_turn().await.expect("the client runs") {
                return turn;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    within("follow-up", search).await
}

// What was passed over, for the message of a failed test.
#[derive(Default)]
struct Passed(Vec<String>);

impl Passed {
    fn note(&mut self, event: &TurnEvent) {
        self.0.push(match event {
            TurnEvent::Delta(delta) => format!("delta {:?}", delta.text),
            other => {
                let mut text = format!("{other:?}");
                let cut = text
                    .char_indices()
                    .nth(300)
                    .map_or(text.len(), |(at, _)| at);
                text.truncate(cut);
                text
            }
        });
    }
}

impl fmt::Display for Passed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.join("\n"))
    }
}
