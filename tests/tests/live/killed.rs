//! Calls of a process of ours that was killed: the next one answers them, once.

use std::{
    io::{BufRead as _, BufReader},
    path::Path,
    process::{Child, Command, Stdio},
    sync::mpsc::{self, Receiver},
    thread,
    time::Duration,
};

use serde_json::json;
use turnkeep_core::transcript::box_type;
use turnkeep_runtime::{
    ClientConfig, CommandError, Conversation, RequestError, ToolCallId, ToolResult, TurnEnd,
};
use turnkeep_tests::{
    Client,
    codex::{self, CodexHome},
    crash,
    model::{self, Gate, Model, Reply},
    processes::{self, Proc},
    server::Server,
    session::{PATIENCE, authorized, slow_tools, until_turn, within},
};

use crate::{
    codex::child,
    rounds::{boxes, everything_stands_once, nothing_follows, of_type, talkative},
};

/// Where the process of ours is when it is killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum When {
    /// The turn waits for the result.
    Inline,
    /// The turn goes on without the result.
    Running,
    /// The turn is over.
    Over,
}

pub(crate) async fn inline_call_of_a_killed_process_fails_once(version: &'static str) {
    killed(version, When::Inline).await;
}

pub(crate) async fn deferred_call_of_a_killed_process_fails_once(version: &'static str) {
    killed(version, When::Running).await;
}

pub(crate) async fn call_of_a_killed_process_fails_once_after_its_turn(version: &'static str) {
    killed(version, When::Over).await;
}

async fn killed(version: &'static str, when: When) {
    let arguments = json!({ "key": "alpha" });
    let replies: Vec<Reply> = match when {
        When::Inline => vec![model::call("probe", "call-1", arguments)],
        When::Running => vec![
            model::call("later", "call-1", arguments),
            model::text("Meanwhile ").hold(&Gate::new()),
        ],
        When::Over => vec![
            model::call("later", "call-1", arguments),
            model::text("It takes its time."),
        ],
    };
    let asked = replies.len();
    let model = talkative(replies);
    let home = CodexHome::new(&model);
    let journal = tempfile::tempdir().unwrap();
    let mut ours = Ours::start(version, &home, journal.path(), None);
    let call = ours.until("call ");
    let call: ToolCallId = serde_json::from_str(&call).unwrap();
    model.wait_for_requests(asked, PATIENCE);
    match when {
        When::Inline => {}
        // Time for what the model is told to be written.
        When::Running => thread::sleep(Duration::from_millis(200)),
        When::Over => assert_eq!(ours.until("end"), ""),
    }
    ours.kill();

    let spawn = || {
        let config = ClientConfig::child(child(version, &home));
        Client::spawn(authorized(config).journal(journal.path()))
    };
    let cwd = home.cwd().display().to_string();
    let client = within("start", spawn()).await.unwrap();
    let talk = client
        .conversation("talk")
        .settings(slow_tools(&cwd))
        .await
        .unwrap();
    for mut turn in talk.recovered().await.unwrap() {
        let end = within("end", turn.outcome()).await.unwrap();
        println!(
            "{version} {when:?}: the turn of the killed process ended {:?}",
            end.outcome
        );
    }
    let mut next = until_turn(&talk).await;
    let answer = within("answer", next.final_response()).await.unwrap();
    assert_eq!(answer, "Noted as 0.");
    failed_once(&talk).await;
    match talk.respond(call, ToolResult::ok("too late")).await {
        Err(RequestError::Command(
            CommandError::AnsweredDifferently { .. } | CommandError::CallClosed { .. },
        )) => {}
        other => panic!("{other:?}"),
    }
    nothing_follows(&talk).await;
    within("shutdown", client.shutdown()).await.unwrap();
    drop((next, talk, client));

    // A life later it is not answered again.
    let client = within("start", spawn()).await.unwrap();
    let talk = client
        .conversation("talk")
        .settings(slow_tools(&cwd))
        .await
        .unwrap();
    nothing_follows(&talk).await;
    failed_once(&talk).await;
    assert_eq!(model.requests().len(), asked + 1);
    everything_stands_once(&model, &talk).await;
    within("shutdown", client.shutdown()).await.unwrap();
    drop((talk, client));
    let left = processes::with_variable(crash::MARK, &ours.mark);
    assert_eq!(left, [], "nothing is left of the first server");
}

/// The turn waits for the result of a call, of which the next process knows that nobody answers it any more.
pub(crate) async fn waiting_turn_of_a_killed_process_goes_on_with_the_failure(
    version: &'static str,
) {
    let replies = [
        model::call("probe", "call-1", json!({ "key": "alpha" })),
        model::text("So it failed."),
    ];
    let lived = outlived(version, replies, 1, |_| {}).await;
    assert_eq!(lived.end.text.as_deref(), Some("So it failed."));
    let requests = lived.model.requests();
    assert_eq!(requests.len(), 2, "the turn went on where it was");
    let outputs = model::call_outputs(&requests[1]);
    assert_eq!(outputs.len(), 1);
    assert!(
        outputs[0].1.contains("interrupted by shutdown"),
        "{outputs:?}"
    );
    nothing_follows(&lived.talk).await;
    lived.end().await;
}

/// The turn goes on without the result, and says the rest to the next process.
pub(crate) async fn running_turn_of_a_killed_process_is_followed(version: &'static str) {
    let gate = Gate::new();
    let replies = [
        model::call("later", "call-1", json!({ "key": "alpha" })),
        model::text("Meanwhile ").hold(&gate).text("I talk."),
    ];
    let lived = outlived(version, replies, 2, |_| gate.open()).await;
    assert_eq!(lived.end.text.as_deref(), Some("Meanwhile I talk."));
    // That the call has failed is told once, by a round that follows.
    let mut next = until_turn(&lived.talk).await;
    let answer = within("answer", next.final_response()).await.unwrap();
    assert_eq!(answer, "Noted as 0.");
    assert_eq!(lived.model.requests().len(), 3);
    nothing_follows(&lived.talk).await;
    everything_stands_once(&lived.model, &lived.talk).await;
    lived.end().await;
}

/// A conversation whose process was killed, in the hands of the next one, on the same server.
struct Lived {
    model: Model,
    end: TurnEnd,
    talk: Conversation,
    client: Client,
    before: Proc,
    server: Server,
    _home: CodexHome,
}

/// Kills a process of ours in mid-turn, while the server lives on, and hears in the next one how the turn ends.
async fn outlived(
    version: &'static str,
    replies: impl IntoIterator<Item = Reply>,
    asked: usize,
    go_on: impl FnOnce(&Model),
) -> Lived {
    let model = talkative(replies);
    let home = CodexHome::new(&model);
    let journal = tempfile::tempdir().unwrap();
    let server = Server::new(child(version, &home));
    let Server::Socket(listening) = &server else {
        panic!("the server is a child");
    };
    let is_native = |p: &Proc| p.comm == "codex";
    let before = listening.family().into_iter().find(is_native).unwrap();
    let url = listening.address().url();
    let mut ours = Ours::start(version, &home, journal.path(), Some(&url));
    let call: ToolCallId = serde_json::from_str(&ours.until("call ")).unwrap();
    model.wait_for_requests(asked, PATIENCE);
    // Time for what the model is told to be written.
    thread::sleep(Duration::from_millis(200));
    ours.kill();

    let config = server.config().journal(journal.path());
    let client = within("start", Client::spawn(config)).await.unwrap();
    let cwd = home.cwd().display().to_string();
    let talk = client.conversation("talk").settings(slow_tools(&cwd));
    let talk = talk.await.unwrap();
    let mut turns = talk.recovered().await.unwrap();
    assert_eq!(turns.len(), 1, "{turns:?}");
    let mut turn = turns.remove(0);
    go_on(&model);
    let end = within("end", turn.outcome()).await.unwrap().clone();
    assert_eq!(end.outcome.name(), "completed", "{end:?}");
    failed_once(&talk).await;
    match talk.respond(call, ToolResult::ok("too late")).await {
        Err(RequestError::Command(
            CommandError::AnsweredDifferently { .. } | CommandError::CallClosed { .. },
        )) => {}
        other => panic!("{other:?}"),
    }
    Lived {
        model,
        end,
        talk,
        client,
        before,
        server,
        _home: home,
    }
}

impl Lived {
    async fn end(self) {
        within("shutdown", self.client.shutdown()).await.unwrap();
        assert!(processes::alive(&self.before), "the same server all along");
        drop(self.server);
    }
}

async fn failed_once(talk: &Conversation) {
    let boxes = boxes(talk).await;
    assert_eq!(
        of_type(&boxes, box_type::TOOL_RESULT),
        ["result of call 1: failed\ninterrupted by shutdown"]
    );
}

/// A process that uses the library.
struct Ours {
    child: Child,
    lines: Receiver<String>,
    mark: String,
}

impl Ours {
    fn start(version: &str, home: &CodexHome, journal: &Path, url: Option<&str>) -> Self {
        let mark = format!("{}-{}", std::process::id(), journal.display());
        let [(_, codex_home), (_, user_home)] = home.env();
        let mut child = Command::new(env!("CARGO_BIN_EXE_killed-child"))
            .arg(codex::codex(version))
            .args([codex_home, user_home, home.cwd(), journal.to_owned()])
            .arg(&mark)
            .args(url)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .expect("the program starts");
        let stdout = child.stdout.take().expect("stdout is piped");
        let (told, lines) = mpsc::channel();
        thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                if told.send(line).is_err() {
                    return;
                }
            }
        });
        Self { child, lines, mark }
    }

    /// Waits for a line that begins so, and gives the rest.
    fn until(&mut self, wanted: &str) -> String {
        loop {
            let line = self.lines.recv_timeout(PATIENCE);
            let line = line.unwrap_or_else(|_| panic!("the program does not say {wanted:?}"));
            if let Some(rest) = line.strip_prefix(wanted) {
                return rest.to_owned();
            }
        }
    }

    fn kill(&mut self) {
        self.child.kill().expect("it is our child");
        self.child.wait().expect("it is our child");
    }
}

impl Drop for Ours {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let left = processes::with_variable(crash::MARK, &self.mark);
        left.iter().for_each(processes::kill);
    }
}
