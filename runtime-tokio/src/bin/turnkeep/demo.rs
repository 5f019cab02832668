//! `turnkeep demo`: a short conversation with a scripted server.

use std::{env, fs, path::PathBuf};

use turnkeep_tokio::{
    ChildConfig, Client, ClientConfig, RawJson, Settings, Tool, ToolCall, ToolResult,
};

use crate::{
    Failure, cli,
    problem::{Exit, Problem, quoted},
    session::{Followed, Session},
    signals::Signals,
    state::{self, RECORDING_FILE, pasteable},
    term::{BOLD, DIM, NAME, Term, paint},
    view::tokens,
};

/// What is said.
const MESSAGES: [&str; 2] = [
    "Hello! Are you a real model?",
    "What is the weather in Oslo and in Lima?",
];

pub(crate) async fn run(args: cli::Demo, signals: Signals) -> Result<Exit, Failure> {
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
    let ourselves = env::current_exe()
        .map_err(|error| Problem::failed(format!("cannot tell where turnkeep is: {error}")))?;
    let recording = directory.join(RECORDING_FILE);
    let server = ChildConfig::program(&ourselves).arg("fake-app-server");
    let config = ClientConfig::child(server)
        .journal(&directory)
        .record(&recording);

    let mut term = Term::to_stdout();
    term.note(paint(BOLD, "A conversation with a scripted server"));
    term.note(paint(
        DIM,
        "It runs as a child process and speaks the protocol of codex app-server. There is no model\n\
         behind it: it quotes what it is told, and calls the tool that it is offered.",
    ));
    let client = Client::spawn(config).await;
    let client = client.map_err(|error| Problem::start(&error, "turnkeep fake-app-server"))?;
    let conversation = client.conversation("demo").settings(offer()?).await;
    let mut session = Session {
        conversation: conversation.map_err(|error| Problem::open(&error))?,
        client,
        term,
        signals,
        lines: None,
        tools: weather,
        struck: false,
    };
    let talked = talk(&mut session).await;
    let summary = session.close().await;
    if let Some(exit) = talked? {
        return Ok(exit);
    }
    let (batches, steps) = summary.map_or((0, 0), |s| {
        (s.journal.0, s.recording.map_or(0, |r| r.steps))
    });
    let program = program(&ourselves);
    let term = &mut session.term;
    term.note("");
    term.note(paint(BOLD, "What stays behind"));
    // Its file, where it has but one.
    let journal = match turnkeep_tokio::journal_files(&directory) {
        Ok(files) if files.len() == 1 => files[0].clone(),
        Ok(_) | Err(_) => directory.clone(),
    };
    for (what, path) in [
        (
            format!("the journal, {batches} batches: every intent, before it was sent"),
            &journal,
        ),
        (
            format!("the recording, {steps} steps: all that came in and went out"),
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
        ("see the journal, record by record", "show", &directory),
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
    Ok(Exit::Ok)
}

/// Says it all; gives an exit back where that came early.
async fn talk(session: &mut Session) -> Result<Option<Exit>, Failure> {
    for message in MESSAGES {
        session.term.note("");
        session
            .term
            .note(format!("{} {message}", paint(NAME, "you ›")));
        match session.say(message).await? {
            Followed::Left(signal) => return Ok(Some(signal.exit())),
            Followed::Ended(end, view) => {
                if let Some(problem) = Problem::end(&end) {
                    return Err(problem.into());
                }
                if let Some(usage) = view.usage {
                    session.term.note(paint(DIM, tokens(&usage.turn)));
                }
                if session.struck {
                    return Ok(Some(Exit::Signal(2)));
                }
            }
        }
    }
    Ok(None)
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
