//! The examples, built by cargo and run against the fake server as a reader would run them.
//!
//! Those of the two runtimes are the same program twice, and say the same. The files of
//! `turnkeep-async-std` are written from those of `turnkeep-tokio`, where the crate's name and the
//! line that begins a runtime differ: `TURNKEEP_EXAMPLES=write cargo test --test examples` does it.

#![allow(clippy::unwrap_used, reason = "helpers of tests are tests")]

use std::{
    collections::BTreeMap,
    fs,
    io::Write as _,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::{
        OnceLock,
        atomic::{AtomicU32, Ordering},
        mpsc,
    },
    thread,
    time::Duration,
};

use serde_json::Value;
use tempfile::TempDir;
use turnkeep_core::codec::journal;
use turnkeep_tests::{codex, processes, sockets::SocketServer};

const PATIENCE: Duration = Duration::from_secs(120);

/// Names all processes of one run.
const MARK: &str = "TURNKEEP_EXAMPLE_MARK";

/// What the names of a runtime's examples end with.
const RUNTIMES: [&str; 2] = ["", "_async_std"];

/// The examples that a test of this file runs.
const RUN: [&str; 7] = [
    "approvals",
    "first_answer",
    "many_conversations",
    "recovery",
    "structured_output",
    "tools",
    "web_socket",
];

/// The examples by their names, as cargo builds them. After a build of the whole workspace, tests
/// included, nothing is left to be built here.
fn program(name: &str) -> &'static Path {
    static BUILT: OnceLock<BTreeMap<String, PathBuf>> = OnceLock::new();
    BUILT.get_or_init(build).get(name).unwrap()
}

fn build() -> BTreeMap<String, PathBuf> {
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(["build", "--offline", "--workspace", "--examples"]);
    cargo.args(["--message-format", "json-render-diagnostics"]);
    if !cfg!(debug_assertions) {
        cargo.arg("--release");
    }
    // What this test was given of them has build scripts run again that look at them.
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy();
        if text.starts_with("CARGO_PKG_") || text.starts_with("CARGO_MANIFEST_") {
            cargo.env_remove(&name);
        }
    }
    cargo.current_dir(codex::workspace_dir());
    let output = cargo.stderr(Stdio::inherit()).output().unwrap();
    assert!(output.status.success(), "the examples do not build");
    let lines = output.stdout.split(|byte| *byte == b'\n');
    let built = lines.filter_map(|line| serde_json::from_slice::<Value>(line).ok());
    let example = |message: Value| {
        let target = &message["target"];
        (target["kind"] == serde_json::json!(["example"])).then_some(())?;
        let executable = message["executable"].as_str()?;
        Some((target["name"].as_str()?.to_owned(), executable.into()))
    };
    built.filter_map(example).collect()
}

/// What is run, and where.
struct Run {
    directory: TempDir,
    command: Command,
    input: &'static str,
}

impl Run {
    fn new(name: &str, arguments: &[&str]) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let mut command = Command::new(program(name));
        command
            .args(arguments)
            .current_dir(directory.path())
            .env("CODEX", env!("CARGO_BIN_EXE_fake-app-server"))
            .env("TURNKEEP_FAKE_PACE_MS", "1");
        Self {
            directory,
            command,
            input: "",
        }
    }

    /// Runs it to its end, which leaves no process behind. Gives what it said.
    fn said(&mut self) -> String {
        static RUNS: AtomicU32 = AtomicU32::new(0);
        let run = RUNS.fetch_add(1, Ordering::Relaxed);
        let mark = format!("{}-{run}", std::process::id());
        let command = self.command.env(MARK, &mark);
        let pipes = command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = pipes.stderr(Stdio::piped()).spawn().unwrap();
        let mut stdin = child.stdin.take().unwrap();
        stdin.write_all(self.input.as_bytes()).unwrap();
        drop(stdin);
        let (done, is_done) = mpsc::channel();
        thread::spawn(move || done.send(child.wait_with_output()));
        let Ok(output) = is_done.recv_timeout(PATIENCE) else {
            let left = processes::with_variable(MARK, &mark);
            left.iter().for_each(processes::kill);
            panic!("{:?} takes too long: {left:?}", self.command);
        };
        let output = output.unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{}: {stderr}", output.status);
        assert_eq!(stderr, "");
        let left = processes::with_variable(MARK, &mark);
        assert_eq!(processes::wait_gone(&left, Duration::from_secs(10)), []);
        String::from_utf8(output.stdout).unwrap()
    }
}

/// What an example says, which is the same on each runtime.
#[track_caller]
fn check(name: &str, arguments: &[&str], input: &'static str, expected: &str) {
    for runtime in RUNTIMES {
        let name = format!("{name}{runtime}");
        let mut run = Run::new(&name, arguments);
        run.input = input;
        assert_eq!(run.said(), expected, "{name}");
    }
}

#[test]
fn a_loop_without_a_runtime() {
    let fake = env!("CARGO_BIN_EXE_fake-app-server");
    let mut run = Run::new("blocking", &[fake, "demo"]);
    assert_eq!(
        run.said(),
        "Here is what I found. Oslo: 3 °C, light snow.\ncompleted\n"
    );
    let written = fs::read(run.directory.path().join("blocking.journal")).unwrap();
    let journal = journal::decode(&written).unwrap();
    assert_eq!(journal.torn, None);
    let records = journal.entries.iter().flat_map(|(_, entry)| &entry.records);
    let kinds: Vec<&str> = records.map(|record| record.kind()).collect();
    for kind in ["start", "prompt", "tool_call"] {
        assert!(kinds.contains(&kind), "{kinds:?}");
    }
}

#[test]
fn first_answer() {
    check(
        "first_answer",
        &["why is the sky blue?"],
        "",
        "This is answer 1 of our conversation. You said: why is the sky blue?\n\n68 bytes in all\n",
    );
}

#[test]
fn tools() {
    check(
        "tools",
        &[],
        "",
        "(weather {\"city\":\"Oslo\"})\n\
         Here is what I found. release: The call was taken. Its result comes later, as a message; do \
         not wait for it. Oslo: 3 °C, light snow.\n\
         (build {\"what\":\"release\"})\n\
         This is answer 2 of our conversation. You said: built\n",
    );
}

#[test]
fn approvals() {
    let ask = "Run /bin/bash -lc 'touch here' in /workspace?\n\
               [y/N] Run /bin/bash -lc 'touch there' in /workspace?\n[y/N] ";
    let done = "Here is what I found. touch here: done. touch there: done.\n";
    check("approvals", &[], "y\ny\n", &format!("{ask}{done}"));
    let stopped = "the turn is interrupted\n";
    check("approvals", &[], "y\nn\n", &format!("{ask}{stopped}"));
    // Nobody there to answer is no yes.
    let first = "Run /bin/bash -lc 'touch here' in /workspace?\n[y/N] ";
    check("approvals", &[], "", &format!("{first}{stopped}"));
}

#[test]
fn many_conversations() {
    let mut expected = String::new();
    for n in 1..=50 {
        let line =
            format!("room {n}: This is answer 1 of our conversation. You said: I am in room {n}\n");
        expected.push_str(&line);
    }
    expected.push_str("50 conversations, 1 connection\n");
    check("many_conversations", &["50"], "", &expected);
}

#[test]
fn structured_output() {
    check("structured_output", &[], "", "demo: 4 of 5\n- demo\n");
}

/// One turn under which the connection is closed, and which runs on at the server meanwhile.
const CUT_OFF: &str = r#"X auto threads unsubscribe names
C {"id":"$start","method":"turn/start","params":{"threadId":"thr_1","input":"$input","clientUserMessageId":"$message"}}
S {"id":"$start","result":{"turn":{"id":"trn_1","items":[],"status":"inProgress","error":null}}}
S {"method":"turn/started","params":{"threadId":"thr_1","turn":{"id":"trn_1","items":[],"status":"inProgress","error":null}}}
S {"method":"item/completed","params":{"threadId":"thr_1","turnId":"trn_1","item":{"type":"userMessage","id":"usr_1","clientId":"$message","content":"$input"}}}
S {"method":"item/agentMessage/delta","params":{"threadId":"thr_1","turnId":"trn_1","itemId":"it_1","delta":"Here "}}
X sleep 100
X stderr socket: close 1001 going away
S {"method":"item/agentMessage/delta","params":{"threadId":"thr_1","turnId":"trn_1","itemId":"it_1","delta":"and "}}
C {"id":"$resume","method":"thread/resume","params":{"threadId":"thr_1","excludeTurns":true}}
S {"id":"$resume","result":{"thread":{"id":"thr_1","status":{"type":"active"}}}}
C* {"id":"$list","method":"thread/turns/list","params":{"threadId":"thr_1"}}
S? {"id":"$list","result":{"data":[{"id":"trn_1","items":[{"type":"userMessage","id":"usr_1","clientId":"$message","content":[]}],"itemsView":"full","status":"inProgress","error":null}],"nextCursor":null}}
S {"method":"item/agentMessage/delta","params":{"threadId":"thr_1","turnId":"trn_1","itemId":"it_1","delta":"there."}}
S {"method":"item/completed","params":{"threadId":"thr_1","turnId":"trn_1","item":{"type":"agentMessage","id":"it_1","text":"Here and there.","phase":"final_answer"}}}
S {"method":"turn/completed","params":{"threadId":"thr_1","turn":{"id":"trn_1","items":[],"status":"completed","error":null}}}
"#;

#[test]
fn web_socket() {
    for runtime in RUNTIMES {
        let server = SocketServer::tcp(CUT_OFF).lives_on();
        let mut run = Run::new(&format!("web_socket{runtime}"), &[server.url(), "token"]);
        fs::write(run.directory.path().join("token"), "secret\n").unwrap();
        // Nobody heard the piece in between. The item that is complete has it.
        assert_eq!(
            run.said(),
            "Here \n\
             (connection: the connection was lost: the server closed it with code 1001: going away)\n\
             (connected again)\n\
             there.\n\
             Here and there.\n"
        );
        let tokens: Vec<Option<String>> = server
            .asked()
            .iter()
            .map(|asked| asked.header("authorization").map(str::to_owned))
            .collect();
        assert_eq!(tokens, vec![Some("Bearer secret".to_owned()); 2]);
    }
}

#[test]
fn recovery() {
    for runtime in RUNTIMES {
        let mut run = Run::new(&format!("recovery{runtime}"), &[]);
        let store = run.directory.path().join("store.json");
        // The answer that is cut off takes five seconds.
        run.command.env("TURNKEEP_FAKE_PACE_MS", "25");
        run.command.env("TURNKEEP_FAKE_STORE", &store);
        run.command.env("TMPDIR", run.directory.path());
        assert_eq!(
            run.said(),
            "first: the answer begins\n\
             first: This is answer 1 of our conversation. You said: Hello!\n\
             second: the answer begins\n\
             -- killed --\n\
             first: an earlier life has seen its end\n\
             second: interrupted\n\
             third: the answer begins\n\
             third: This is answer 3 of our conversation. You said: We were cut off. Are you still \
             there?\n\
             box 1: User Message\n\
             box 2: Agent Response\n\
             box 3: User Message\n\
             box 4: Agent Response\n\
             box 5: User Message\n\
             box 6: Agent Response\n"
        );
        // What the server has heard, in its own words.
        let store: Value = serde_json::from_slice(&fs::read(&store).unwrap()).unwrap();
        let threads = store["threads"].as_array().unwrap();
        let turns = threads.iter().flat_map(|t| t["turns"].as_array().unwrap());
        let items = turns.flat_map(|turn| turn["items"].as_array().unwrap());
        let said: Vec<String> = items
            .filter(|item| item["kind"]["client"].is_string())
            .map(|item| serde_json::from_str(item["kind"]["content"].as_str().unwrap()).unwrap())
            .map(|content: Value| content[0]["text"].as_str().unwrap().to_owned())
            .collect();
        assert_eq!(
            said,
            [
                "Hello!",
                "Tell me a long story.",
                "We were cut off. Are you still there?"
            ]
        );
        // The store is all that is left.
        let left = fs::read_dir(run.directory.path()).unwrap();
        assert_eq!(left.count(), 1);
    }
}

fn examples(folder: &str) -> BTreeMap<String, String> {
    let folder = codex::workspace_dir().join(folder).join("examples");
    let files = fs::read_dir(folder).unwrap().map(|file| file.unwrap());
    let sources = files.filter(|file| file.path().extension().is_some_and(|e| e == "rs"));
    sources
        .map(|file| {
            let name = file.path().file_stem().unwrap().to_owned();
            let text = fs::read_to_string(file.path()).unwrap();
            (name.into_string().unwrap(), text)
        })
        .collect()
}

/// The same example for async-std.
fn for_async_std(name: &str, text: &str) -> String {
    let result = "Result<(), Box<dyn Error>>";
    let main = format!("#[tokio::main]\nasync fn main() -> {result} {{\n");
    let block = format!(
        "fn main() -> {result} {{\n    async_std::task::block_on(run())\n}}\n\n\
         async fn run() -> {result} {{\n"
    );
    let example = format!("-p turnkeep-async-std --example {name}_async_std");
    assert!(text.contains(&main), "{name} begins its runtime otherwise");
    let text = text
        .replace(&main, &block)
        .replace(&format!("-p turnkeep-tokio --example {name}"), &example)
        .replace("turnkeep_tokio", "turnkeep_async_std");
    // The longer name may take a line past what rustfmt allows.
    let fit = |line: &str| match line.strip_prefix("use turnkeep_async_std::{") {
        Some(names) if line.len() > 100 => {
            let names = names.trim_end_matches("};");
            format!("use turnkeep_async_std::{{\n    {names},\n}};\n")
        }
        _ => format!("{line}\n"),
    };
    text.lines().map(fit).collect()
}

#[test]
fn the_examples_of_both_runtimes_are_the_same_and_all_are_run() {
    let (tokio, async_std) = (examples("runtime-tokio"), examples("runtime-async-std"));
    let names: Vec<&str> = tokio.keys().map(String::as_str).collect();
    assert_eq!(names, RUN, "each example has its test here");
    if std::env::var_os("TURNKEEP_EXAMPLES").is_some_and(|what| what == "write") {
        for (name, text) in &tokio {
            let file = format!("runtime-async-std/examples/{name}.rs");
            let path = codex::workspace_dir().join(file);
            fs::write(path, for_async_std(name, text)).unwrap();
        }
        return;
    }
    let expected: BTreeMap<String, String> = tokio
        .iter()
        .map(|(name, text)| (name.clone(), for_async_std(name, text)))
        .collect();
    assert_eq!(
        async_std.keys().collect::<Vec<_>>(),
        expected.keys().collect::<Vec<_>>()
    );
    for (name, text) in expected {
        let hint = "TURNKEEP_EXAMPLES=write cargo test --test examples writes it anew";
        assert!(
            async_std[&name] == text,
            "{name} is not that of turnkeep-tokio: {hint}"
        );
    }
}
