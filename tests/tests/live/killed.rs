//! Calls of a process of ours that was killed: the next one answers them, once.

use std::{
    io::{BufRead as _, BufReader},
    process::{Child, Command, Stdio},
    sync::mpsc::{self, Receiver},
    thread,
};

use serde_json::json;
use turnkeep_core::transcript::box_type;
use turnkeep_runtime::{
    ClientConfig, CommandError, Conversation, RequestError, ToolCallId, ToolResult,
};
use turnkeep_tests::{
    Client,
    codex::{self, CodexHome},
    crash,
    model::{self, Gate, Reply},
    processes,
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
    let mut ours = Ours::start(version, &home, journal.path());
    let call = ours.until("call ");
    let call: ToolCallId = serde_json::from_str(&call).unwrap();
    model.wait_for_requests(asked, PATIENCE);
    match when {
        When::Inline => {}
        // Time for what the model is told to be written.
        When::Running => thread::sleep(std::time::Duration::from_millis(200)),
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
    fn start(version: &str, home: &CodexHome, journal: &std::path::Path) -> Self {
        let mark = format!("{}-{}", std::process::id(), journal.display());
        let [(_, codex_home), (_, user_home)] = home.env();
        let mut child = Command::new(env!("CARGO_BIN_EXE_killed-child"))
            .arg(codex::codex(version))
            .args([codex_home, user_home, home.cwd(), journal.to_owned()])
            .arg(&mark)
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
