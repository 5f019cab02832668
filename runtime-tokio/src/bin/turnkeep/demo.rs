//! `turnkeep demo`: a short conversation with a scripted server, which is killed in the middle of it, and so are we.
//!
//! The demo runs this program again for each of its two parts, so that the first can be killed as a crash would. What the parts have
//! to tell comes on their stderr, in lines that begin with [`WORD`].

use std::{
    collections::BTreeMap,
    env, fs,
    path::PathBuf,
    process::Stdio,
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use rustix::process::{Pid, Signal as KillWith, kill_process_group};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncBufReadExt as _, BufReader},
    process::Command,
};
use turnkeep_tokio::{
    Authorization, ChildConfig, Client, ClientConfig, RawJson, Settings, Tool, ToolCall,
    ToolResult, TurnEvent, TurnUpdate,
};

use crate::{
    Failure, cli,
    problem::{Exit, Problem, quoted},
    session::{Followed, Session, counted},
    signals::Signals,
    state::{self, RECORDING_FILE, pasteable},
    term::{ALERT, BOLD, DIM, GOOD, NAME, Term, paint, tell},
    toolbox::Toolbox,
    view::tokens,
};

/// What begins a line that is for us.
const WORD: &str = "turnkeep-demo: ";

/// The part that says so is to be killed.
const KILL: &str = "kill me";

const HELLO: &str = "Hello! Are you a real model?";
const WEATHER: &str = "What is the weather in Oslo and in Lima?";
const LONG: &str = "Tell me a long story.";
const AGAIN: &str = "We were cut off. Are you still there?";

/// Where the scripted server keeps its threads.
const SERVER_FILE: &str = "server.json";

/// What the parts told, added up.
type Told = BTreeMap<String, u64>;

pub(crate) async fn run(args: cli::Demo, signals: Signals) -> Result<Exit, Failure> {
    if let (Some(part), Some(directory)) = (args.part, &args.dir) {
        return match part {
            1 => first(directory.clone(), signals).await,
            _ => second(directory.clone(), signals).await,
        };
    }
    let directory = match args.dir {
        Some(directory) => {
            if fs::read_dir(&directory).is_ok_and(|mut entries| entries.next().is_some()) {
                let what = format!("{} is not empty", directory.display());
                return Err(Problem::usage(what)
                    .hint("name a new directory, or leave --dir out for a fresh one")
                    .into());
            }
            fs::create_dir_all(&directory).map_err(|error| {
                Problem::usage(format!("cannot create {}: {error}", directory.display()))
            })?;
            directory
        }
        None => state::fresh("demo", "--dir")?,
    };
    whole(directory, signals).await
}

/// Runs the parts, kills the first one, and sums up.
async fn whole(directory: PathBuf, mut signals: Signals) -> Result<Exit, Failure> {
    let ourselves = env::current_exe()
        .map_err(|error| Problem::failed(format!("cannot tell where turnkeep is: {error}")))?;
    let mut term = Term::to_stdout();
    term.note(paint(BOLD, "A conversation with a scripted server"));
    term.note(paint(
        DIM,
        "It runs as a child process and speaks the protocol of codex app-server. There is no model\n\
         behind it: it quotes what it is told, and calls the tool that it is offered. It will be\n\
         killed in the middle of a turn, and so will turnkeep itself.",
    ));
    let mut told = Told::new();
    for number in [1, 2] {
        let mut part = Command::new(&ourselves)
            .args([
                "demo",
                "--part",
                if number == 1 { "1" } else { "2" },
                "--dir",
            ])
            .arg(&directory)
            .stdin(Stdio::null())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .map_err(|error| Problem::failed(format!("cannot start turnkeep: {error}")))?;
        let exit = tokio::select! {
            exit = follow(&mut part, &mut told) => exit?,
            signal = signals.next() => return Ok(signal.exit()),
        };
        match (number, exit) {
            (1, None) => {
                term.note("");
                term.note(paint(
                    ALERT,
                    "✗ turnkeep itself was killed (SIGKILL), in the middle of the answer",
                ));
                let next = "turnkeep starts again, on the same journal";
                term.note(format!("\n{}", paint(BOLD, next)));
            }
            (2, Some(0)) => {}
            (_, code) => return Ok(Exit::of(code)),
        }
    }
    survived(&mut term, &told);
    left_behind(&mut term, &directory, &ourselves, &told);
    Ok(Exit::Ok)
}

/// Reads what a part has to say and kills it where it asks for it. Gives its exit code, none where it was killed.
async fn follow(part: &mut tokio::process::Child, told: &mut Told) -> Result<Option<i32>, Failure> {
    if let Some(stderr) = part.stderr.take() {
        let mut lines = BufReader::new(stderr).lines();
        while let Some(line) = lines.next_line().await? {
            match line.strip_prefix(WORD) {
                Some(KILL) => {
                    // SIGKILL: it can do nothing about it, nor write anything down any more.
                    part.start_kill()?;
                    *told.entry("turnkeep killed".into()).or_default() += 1;
                }
                Some(facts) => {
                    let facts: BTreeMap<String, u64> =
                        serde_json::from_str(facts).unwrap_or_default();
                    for (name, count) in facts {
                        *told.entry(name).or_default() += count;
                    }
                }
                None => anstream::eprintln!("{line}"),
            }
        }
    }
    Ok(part.wait().await?.code())
}

/// The first part: an answer, a turn under which the server is killed, and an answer that is never shown to its end.
async fn first(directory: PathBuf, signals: Signals) -> Result<Exit, Failure> {
    let mut session = start(&directory, "killed.trace", signals).await?;
    let done = async {
        if let Some(exit) = say(&mut session, HELLO).await? {
            return Ok(exit);
        }
        session.watch = |event, client| {
            if matches!(event, TurnEvent::Update(TurnUpdate::Started { .. })) {
                kill_server(client);
            }
        };
        if let Some(exit) = say(&mut session, WEATHER).await? {
            return Ok(exit);
        }
        if let Ok(counters) = session.client.counters().await {
            tell_whole(&json!({
                "server killed": counters.reconnects,
                "suspended": counters.reconnects,
                "sent again": counters.resent,
                "said": 3,
            }));
        }
        session.watch = |event, _| {
            if let TurnEvent::Delta(delta) = event
                && delta.text.contains("long")
            {
                eprintln!("{WORD}{KILL}");
                // For no longer than it takes.
                std::thread::sleep(Duration::from_secs(10));
            }
        };
        let exit = say(&mut session, LONG).await?;
        Ok(exit.unwrap_or(Exit::Failed))
    };
    let done = done.await;
    session.close().await;
    done
}

/// The second part: picks up what the first one left, and goes on.
async fn second(directory: PathBuf, signals: Signals) -> Result<Exit, Failure> {
    let mut session = start(&directory, RECORDING_FILE, signals).await?;
    let done = finish(&mut session).await;
    let summary = session.close().await;
    if let Some(summary) = summary {
        tell_whole(&json!({
            "batches": summary.journal.0,
            "steps": summary.recording.map_or(0, |r| r.steps),
        }));
    }
    Ok(done?.unwrap_or(Exit::Ok))
}

async fn finish(session: &mut Session) -> Result<Option<Exit>, Failure> {
    for mut turn in session.picked_up().await? {
        match session.follow(&mut turn).await? {
            Followed::Left(signal) => return Ok(Some(signal.exit())),
            Followed::Ended(end, _) => {
                let how = end.outcome.name();
                session.term.note(format!(
                    "{} {LONG}\n{}",
                    paint(NAME, "you ›"),
                    paint(
                        DIM,
                        format!("the server's history has this message, and its turn is {how}")
                    )
                ));
                tell_whole(&json!({ "suspended": 1, "from the history": 1 }));
            }
        }
    }
    if let Some(exit) = say(session, AGAIN).await? {
        return Ok(Some(exit));
    }
    let (messages, twice) = count_messages(session).await?;
    tell_whole(&json!({ "said": 1, "recorded": messages, "twice": twice }));
    Ok(None)
}

/// How many of our messages the server's own history holds, and how many of them more than once.
async fn count_messages(session: &Session) -> Result<(u64, u64), Failure> {
    let threads = request(session, "thread/list", json!({})).await?;
    let mut times: BTreeMap<String, u64> = BTreeMap::new();
    for thread in threads["data"].as_array().into_iter().flatten() {
        let params = json!({ "threadId": thread["id"], "itemsView": "full", "limit": 100 });
        let turns = request(session, "thread/turns/list", params).await?;
        let turns = turns["data"].as_array().into_iter().flatten();
        for item in turns.flat_map(|turn| turn["items"].as_array().into_iter().flatten()) {
            if item["type"] == "userMessage" {
                *times.entry(item["content"].to_string()).or_default() += 1;
            }
        }
    }
    let twice = times.values().filter(|times| **times > 1).count();
    Ok((times.len() as u64, twice as u64))
}

async fn request(session: &Session, method: &str, params: Value) -> Result<Value, Failure> {
    let params = RawJson::parse(&params.to_string());
    let params = params.map_err(|error| Problem::failed(error.to_string()))?;
    let answer = session.client.request_raw(method, params).reads().await;
    let answer = answer.map_err(|error| Problem::request(&error))?;
    Ok(answer.read().unwrap_or_default())
}

/// Kills the server and what it started, as the system might for want of memory.
fn kill_server(client: &Client) {
    // Once: the turn begins again with the next one.
    static KILLED: AtomicBool = AtomicBool::new(false);
    if KILLED.swap(true, Ordering::Relaxed) {
        return;
    }
    let pid = client.server_pid().and_then(|pid| i32::try_from(pid).ok());
    if let Some(pid) = pid.and_then(Pid::from_raw) {
        let _ = kill_process_group(pid, KillWith::KILL);
        anstream::println!("{}", paint(ALERT, "✗ the server was killed (SIGKILL)"));
    }
}

/// Tells the demo as a whole what it cannot see.
fn tell_whole(facts: &Value) {
    eprintln!("{WORD}{facts}");
}

async fn start(
    directory: &std::path::Path,
    recording: &str,
    signals: Signals,
) -> Result<Session, Failure> {
    let ourselves = env::current_exe()
        .map_err(|error| Problem::failed(format!("cannot tell where turnkeep is: {error}")))?;
    let server = ChildConfig::program(ourselves)
        .arg("fake-app-server")
        .env("TURNKEEP_FAKE_PACE_MS", "25")
        .env("TURNKEEP_FAKE_STORE", directory.join(SERVER_FILE));
    let config = ClientConfig::child(server)
        .journal(directory)
        .authorization(Authorization::None)
        .record(directory.join(recording));
    let client = Client::spawn(config).await;
    let client = client.map_err(|error| Problem::start(&error, "turnkeep fake-app-server"))?;
    let conversation = client.conversation("demo").settings(offer()?).await;
    let conversation = conversation.map_err(|error| Problem::open(&error))?;
    Ok(Session {
        events: conversation.events(),
        conversation,
        client,
        term: Term::to_stdout(),
        signals,
        keyboard: None,
        tools: Toolbox::of(weather),
        watch: |_, _| {},
        is_ours: true,
        struck: false,
    })
}

/// Says something and follows it; gives an exit back where that came early.
async fn say(session: &mut Session, message: &str) -> Result<Option<Exit>, Failure> {
    session.term.note("");
    let you = format!("{} {message}", paint(NAME, "you ›"));
    session.term.note(you);
    match session.say(message).await? {
        Followed::Left(signal) => Ok(Some(signal.exit())),
        Followed::Ended(end, view) => {
            if let Some(problem) = Problem::end(&end) {
                tell(&problem);
                return Ok(Some(problem.exit));
            }
            if let Some(usage) = view.usage {
                session.term.note(paint(DIM, tokens(&usage.turn)));
            }
            Ok(session.struck.then_some(Exit::Signal(2)))
        }
    }
}

fn survived(term: &mut Term, told: &Told) {
    let of = |name: &str| told.get(name).copied().unwrap_or_default();
    let lost = of("said").saturating_sub(of("recorded"));
    term.note("");
    term.note(paint(BOLD, "What was survived"));
    for (what, text) in [
        (
            "killed",
            format!(
                "the server {}, turnkeep {}, with SIGKILL and in the middle of a turn",
                times(of("server killed")),
                times(of("turnkeep killed"))
            ),
        ),
        ("suspended", counted(of("suspended"), "turn")),
        (
            "sent again",
            format!(
                "{} that the server had not recorded, which its history proves",
                counted(of("sent again"), "message")
            ),
        ),
        (
            "picked up",
            format!(
                "{} whose end was read from the server's history",
                counted(of("from the history"), "turn")
            ),
        ),
        (
            "messages",
            format!(
                "{} said, {} in the server's history",
                of("said"),
                of("recorded")
            ),
        ),
    ] {
        term.note(format!("  {what:<11} {text}"));
    }
    let verdict = format!(
        "  {:<11} {lost} messages; duplicates: {}",
        "lost",
        of("twice")
    );
    let style = if lost + of("twice") == 0 { GOOD } else { ALERT };
    term.note(paint(style, verdict));
}

fn times(number: u64) -> String {
    match number {
        1 => "once".into(),
        2 => "twice".into(),
        number => format!("{number} times"),
    }
}

fn left_behind(
    term: &mut Term,
    directory: &std::path::Path,
    ourselves: &std::path::Path,
    told: &Told,
) {
    let of = |name: &str| told.get(name).copied().unwrap_or_default();
    let (batches, steps) = (of("batches"), of("steps"));
    let recording = directory.join(RECORDING_FILE);
    let program = program(ourselves);
    term.note("");
    term.note(paint(BOLD, "What stays behind"));
    // Its file, where it has but one.
    let journal = match turnkeep_tokio::journal_files(directory) {
        Ok(files) if files.len() == 1 => files[0].clone(),
        Ok(_) | Err(_) => directory.to_owned(),
    };
    for (what, path) in [
        (
            format!("the journal, {batches} batches: every intent, before it was sent"),
            &journal,
        ),
        (
            format!(
                "the recording of the second run, {steps} steps: all that came in and went out"
            ),
            &recording,
        ),
    ] {
        term.note(paint(DIM, format!("  {what}")));
        term.note(format!("  {}", pasteable(path)));
    }
    term.note("");
    term.note(paint(BOLD, "Look at it"));
    for (why, command, path) in [
        (
            "run the recording again and compare every byte",
            "replay",
            &recording,
        ),
        ("see it step by step", "show", &recording),
        (
            "see the journal, record by record",
            "show",
            &directory.to_owned(),
        ),
    ] {
        term.note(paint(DIM, format!("  # {why}")));
        term.note(paint(
            NAME,
            format!("  {program} {command} {}", pasteable(path)),
        ));
    }
    term.note("");
    term.note(format!(
        "The same with the real codex: {}",
        paint(NAME, format!("{program} chat"))
    ));
}

fn offer() -> Result<Settings, Problem> {
    let schema = r#"{"type":"object","properties":{"city":{"type":"string"}},"required":["city"]}"#;
    let schema = RawJson::parse(schema)
        .map_err(|error| Problem::failed(format!("the tool's schema: {error}")))?;
    let tool = Tool::function("weather", "Tells the weather of a city.", schema);
    Ok(Settings::new().tool(tool))
}

/// The tool that the model is offered.
fn weather(call: &ToolCall) -> ToolResult {
    let arguments = call
        .arguments
        .read::<serde_json::Value>()
        .unwrap_or_default();
    match arguments["city"].as_str() {
        Some("Oslo") => ToolResult::ok("3 °C, light snow"),
        Some("Lima") => ToolResult::ok("21 °C, fog over the coast"),
        Some(city) => ToolResult::failed(format!("no station in {city}")),
        None => ToolResult::failed("no city was named"),
    }
}

/// How we are called from where we are.
fn program(ourselves: &std::path::Path) -> String {
    let found = env::var_os("PATH").is_some_and(|path| {
        let mut places = env::split_paths(&path).map(|place| place.join("turnkeep"));
        // The first of that name is the one that a shell takes.
        places
            .find(|place| place.is_file())
            .and_then(|place| place.canonicalize().ok())
            .is_some_and(|place| place == ourselves)
    });
    if found {
        return "turnkeep".into();
    }
    let here = env::current_dir().ok();
    let near: Option<PathBuf> = here.and_then(|here| {
        let rest = ourselves.strip_prefix(here).ok()?;
        Some(PathBuf::from(".").join(rest))
    });
    quoted(&near.as_deref().unwrap_or(ourselves).to_string_lossy())
}
