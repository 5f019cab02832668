//! `turnkeep doctor`: whether codex works here, and what to do where it does not.

use std::{
    env, fs,
    io::{self, Read as _, Write as _},
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    process::Stdio,
};

use serde_json::json;
use tokio::{process::Command, time::Duration};
use turnkeep_tokio::{
    Authorization, Client, ClientConfig, CommandError, RequestError, TypedError,
    core::{
        Config, TESTED_CODEX, Version,
        event::{ConnectionEvent, Warning},
    },
    protocol::{
        requests::{ThreadStart, ThreadUnsubscribe},
        schema::{Model, Surface},
        types::{McpAuthStatus, McpServerStatus},
    },
};

use crate::{
    Failure, cli,
    cli::DEFAULT_SERVER,
    connect::{self, asked, not_started, width, wrapped},
    problem::{Exit, Problem, plain, quoted},
    signals::Signals,
    term::{ALERT, BAD, DIM, GOOD, NAME, Term, brief, paint, visible},
    tool_command::Group,
};

/// How long one question may take.
const PATIENCE: Duration = Duration::from_secs(30);

/// What to do about a configuration that cannot be read.
const MEND: &str = "mend that file, or move it away to see whether codex works without it";

/// How many differences of the protocol, and how many lines of a log, are shown.
const SHOWN: usize = 10;

/// Names of checks that are no step of asking.
const STDERR: &str = "stderr";
const PROTOCOL: &str = "protocol";

/// Where the texts begin in a line.
const ASIDE: usize = 20;

/// The file of `generate-json-schema` with all definitions.
const SCHEMA: &str = "codex_app_server_protocol.schemas.json";

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum State {
    Good,
    /// It says nothing as long as something else is wrong.
    Skipped,
    Warning,
    Bad,
}

/// What was looked at, and what came out.
struct Check {
    name: &'static str,
    state: State,
    what: String,
    hints: Vec<String>,
}

impl Check {
    fn new(name: &'static str, state: State, what: impl Into<String>) -> Self {
        Self {
            name,
            state,
            what: visible(&what.into()),
            hints: Vec::new(),
        }
    }

    fn good(name: &'static str, what: impl Into<String>) -> Self {
        Self::new(name, State::Good, what)
    }

    fn warning(name: &'static str, what: impl Into<String>) -> Self {
        Self::new(name, State::Warning, what)
    }

    fn skipped(name: &'static str, what: impl Into<String>) -> Self {
        Self::new(name, State::Skipped, what)
    }

    fn bad(name: &'static str, what: impl Into<String>) -> Self {
        Self::new(name, State::Bad, what)
    }

    fn of(name: &'static str, problem: Problem) -> Self {
        let check = Self::bad(name, problem.what);
        problem.hints.into_iter().fold(check, Self::hint)
    }

    /// As it is where the risk of another version is taken.
    fn taken(self, any_version: bool) -> Self {
        match self.state {
            State::Bad if any_version => Self {
                state: State::Warning,
                ..self
            },
            _ => self,
        }
    }

    fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hints.push(hint.into());
        self
    }
}

/// All that was looked at.
struct Doctor {
    json: bool,
    worst: State,
    term: Term,
}

impl Doctor {
    fn tell(&mut self, check: &Check) -> io::Result<()> {
        self.term.rest();
        self.worst = self.worst.max(check.state);
        let mut out = anstream::stdout().lock();
        let word = match check.state {
            State::Good => "ok",
            State::Skipped => "skipped",
            State::Warning => "warning",
            State::Bad => "problem",
        };
        if self.json {
            let row = json!({
                "check": check.name, "state": word, "what": check.what, "hints": check.hints,
            });
            writeln!(out, "{row}")?;
            return out.flush();
        }
        let style = match check.state {
            State::Good => GOOD,
            State::Skipped => DIM,
            State::Warning => ALERT,
            State::Bad => BAD,
        };
        let room = width().map_or(usize::MAX, |columns| columns - ASIDE);
        let word = paint(style, format!("{word:<8}"));
        let mut begin = format!("{word} {:<10} ", check.name);
        for (at, line) in check.what.lines().enumerate() {
            for part in wrapped(line, room) {
                let part = match at {
                    0 => part,
                    _ => paint(DIM, part),
                };
                writeln!(out, "{begin}{part}")?;
                begin = " ".repeat(ASIDE);
            }
        }
        for hint in &check.hints {
            let mut begin = format!("{:ASIDE$}{} ", "", paint(NAME, "→"));
            for part in wrapped(hint, room - 2) {
                writeln!(out, "{begin}{part}")?;
                begin = " ".repeat(ASIDE + 2);
            }
        }
        out.flush()
    }
}

pub(crate) async fn run(args: cli::Doctor, mut signals: Signals) -> Result<Exit, Failure> {
    let work = look(&args);
    tokio::select! {
        done = work => done,
        signal = signals.next() => Ok(signal.exit()),
    }
}

async fn look(args: &cli::Doctor) -> Result<Exit, Failure> {
    let mut doctor = Doctor {
        json: args.json,
        worst: State::Good,
        term: Term::new(),
    };
    let mut version = None;
    let mut program = None;
    if args.at.connect.is_none() {
        let (name, words) = connect::words(args.at.command())?;
        let (found, path) = find(&name, args.verbose);
        doctor.tell(&found)?;
        let Some(path) = path else {
            return Ok(Exit::NoServer);
        };
        let (checked, told) = ask_version(&path, &words).await;
        version = told;
        doctor.tell(&checked.taken(args.at.any_server_version))?;
        program = Some((path, words));
    }
    doctor.term.working("starting codex");
    let mut config = ClientConfig::server(connect::server(&args.at)?)
        .authorization(Authorization::None)
        .one_connection();
    // What an unsupported one does is worth knowing too.
    config.machine.any_server_version = true;
    let client = match Client::spawn(config).await {
        Ok(client) => client,
        Err(error) => {
            let check = Check::of("start", not_started(&error, &args.at));
            let check = match check.hints.iter().any(|hint| hint.contains("config")) {
                true => check.hint(MEND),
                false => check,
            };
            doctor.tell(&check)?;
            return Ok(Exit::NoServer);
        }
    };
    let mut events = client.connection_events();
    let info = client.server_info();
    if let Some(info) = &info {
        let home = info.codex_home.as_deref().unwrap_or("an unknown home");
        doctor.tell(&Check::good(
            "start",
            format!("answers as {}, home {home}", info.user_agent),
        ))?;
        if version.is_none() {
            let checked = supported(&info.version);
            doctor.tell(&checked.taken(args.at.any_server_version))?;
        }
        version = Some(info.version.clone());
    }
    let mut broken = false;
    for step in [Step::Thread, Step::Login, Step::Mcp] {
        if broken {
            // It goes on with defaults, and what it says then is said of them.
            let what = "not looked at: it depends on the configuration";
            doctor.tell(&Check::skipped(step.name(), what))?;
            continue;
        }
        doctor.term.working("asking codex");
        let asking = tokio::time::timeout(PATIENCE, ask(step, &client));
        let check = match asking.await {
            Ok(Ok(check)) => check,
            Ok(Err(error)) => match configuration(&error) {
                Some(why) => {
                    broken = true;
                    let what = format!("codex cannot read its configuration: {why}");
                    Check::bad(step.name(), what).hint(MEND)
                }
                None => Check::of(step.name(), asked(&error)),
            },
            Err(_) => Check::bad(
                step.name(),
                format!("no answer within {} s", PATIENCE.as_secs()),
            )
            .hint("try it again; if it stays so, look at the messages of `codex app-server`"),
        };
        doctor.tell(&check)?;
    }
    doctor.term.working("ending codex");
    let ended = tokio::time::timeout(PATIENCE, client.shutdown()).await;
    let tail = match ended {
        Ok(Ok(summary)) => Some(summary.stderr_tail),
        Ok(Err(_)) | Err(_) => None,
    };
    // What the server warned of meanwhile, such as what it does not understand in its configuration.
    while let Some(event) = events.next().await {
        if let ConnectionEvent::Warning(Warning::Server { method, message }) = event {
            if broken && message.starts_with("Invalid configuration") {
                continue;
            }
            doctor.tell(
                &Check::warning("warning", format!("{method}: {message}"))
                    .hint("it is about the configuration or the use of codex itself"),
            )?;
        }
    }
    doctor.tell(&match (&program, tail) {
        (None, _) => Check::skipped(
            STDERR,
            "not looked at: it is written where that codex was started",
        ),
        (Some(_), Some(tail)) => stderr(&tail, args.verbose || args.json),
        (Some(_), None) => Check::skipped(STDERR, "not looked at: codex did not end in order"),
    })?;
    let compared = match (&program, &version) {
        (Some((program, words)), Some(version)) => {
            doctor.term.working("comparing the protocol");
            drift(program, words, version, args.verbose).await
        }
        (None, _) => Check::skipped(
            PROTOCOL,
            "not compared: a codex that runs already does not tell its schema",
        ),
        (Some(_), None) => Check::skipped(PROTOCOL, "not compared: codex told no version"),
    };
    doctor.tell(&compared)?;
    doctor.term.rest();
    Ok(match doctor.worst {
        State::Good | State::Skipped | State::Warning => Exit::Ok,
        State::Bad => Exit::Failed,
    })
}

/// Looks for the program as the system would.
fn find(name: &str, all: bool) -> (Check, Option<PathBuf>) {
    let is_program = |path: &Path| {
        fs::metadata(path)
            .is_ok_and(|data| data.is_file() && data.permissions().mode() & 0o111 != 0)
    };
    let by_path = name.contains('/');
    let tried: Vec<PathBuf> = match by_path {
        true => vec![PathBuf::from(name)],
        false => {
            let path = env::var_os("PATH").unwrap_or_default();
            env::split_paths(&path).map(|dir| dir.join(name)).collect()
        }
    };
    if let Some(path) = tried.iter().find(|path| is_program(path)) {
        let real = fs::canonicalize(path).unwrap_or_else(|_| path.clone());
        let mut what = path.display().to_string();
        if let Some(kind) = kind(&real) {
            what += &format!(", {kind}");
        }
        if real != *path {
            what += &format!("\nwhich is {}", real.display());
        }
        return (Check::good("codex", what), Some(path.clone()));
    }
    let mut what = match (by_path, tried.len()) {
        (true, _) if Path::new(name).exists() => format!("{name} is no program that can be run"),
        (true, _) => format!("{name} does not exist"),
        (false, 0) => format!("{name} is not found: PATH is empty"),
        (false, 1) => format!("{name} is not in the one directory of PATH"),
        (false, n) => format!("{name} is in none of the {n} directories of PATH"),
    };
    if !by_path {
        let shown = if all { tried.len() } else { SHOWN };
        for path in tried.iter().take(shown) {
            what += &format!("\ntried {}", path.display());
        }
        if shown < tried.len() {
            what += &format!("\nand {} more (--verbose)", tried.len() - shown);
        }
    }
    let check = Check::bad("codex", what);
    let check = match name == DEFAULT_SERVER {
        true => check
            .hint("install it: npm install -g @openai/codex")
            .hint("or say where it is: turnkeep doctor --server PATH"),
        false => check.hint("look at --server: it is the command that starts codex"),
    };
    (check.hint("`turnkeep demo` works without it"), None)
}

/// What kind of program it is, where that can be told.
fn kind(real: &Path) -> Option<&'static str> {
    let mut head = [0; 4];
    let read = fs::File::open(real).and_then(|mut file| file.read_exact(&mut head));
    match (read, &head) {
        (Ok(()), b"\x7fELF") => Some("the native program"),
        (Ok(()), [b'#', b'!', ..]) if real.extension().is_some_and(|ending| ending == "js") => {
            Some("the launcher from npm")
        }
        (Ok(()), [b'#', b'!', ..]) => Some("a script"),
        _ => None,
    }
}

/// Runs the program to its end; it and all that it started is killed when that takes too long, or
/// when the future is dropped.
async fn output(
    program: &Path,
    words: &[String],
    more: &[&str],
) -> Result<(bool, String, String), String> {
    let mut command = Command::new(program);
    command
        .args(words)
        .args(more)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .process_group(0)
        .kill_on_drop(true);
    let child = command.spawn().map_err(|error| error.to_string())?;
    let _group = Group::of(&child);
    match tokio::time::timeout(PATIENCE, child.wait_with_output()).await {
        Ok(Ok(output)) => Ok((
            output.status.success(),
            String::from_utf8_lossy(&output.stdout).into_owned(),
            String::from_utf8_lossy(&output.stderr).into_owned(),
        )),
        Ok(Err(error)) => Err(error.to_string()),
        Err(_) => Err(format!("no end within {} s", PATIENCE.as_secs())),
    }
}

async fn ask_version(program: &Path, words: &[String]) -> (Check, Option<Version>) {
    let said = match output(program, words, &["--version"]).await {
        Ok((true, said, _)) => said,
        Ok((false, _, said)) => {
            let check = Check::bad("version", format!("--version fails: {}", said.trim()));
            return (
                check.hint("is it codex? install it: npm install -g @openai/codex"),
                None,
            );
        }
        Err(why) => {
            let check = Check::bad("version", format!("it cannot be run: {why}"));
            return (
                check.hint("install it again: npm install -g @openai/codex"),
                None,
            );
        }
    };
    let version = said.split_whitespace().last().and_then(Version::parse);
    match version {
        Some(version) => (supported(&version), Some(version)),
        None => {
            let check = Check::warning("version", format!("it says no version: {}", said.trim()));
            (check.hint("is it codex? look at --server"), None)
        }
    }
}

fn supported(version: &Version) -> Check {
    let config = Config::default();
    let (oldest, first) = (config.oldest_server, config.first_unsupported_server);
    if *version >= oldest && *version < first {
        return Check::good("version", format!("{version}, which is supported"));
    }
    let newest = TESTED_CODEX
        .last()
        .map(ToString::to_string)
        .unwrap_or_default();
    Check::bad(
        "version",
        format!("{version} is not supported: this turnkeep serves {oldest} up to, not including, {first}"),
    )
    .hint(format!("install one that is: npm install -g @openai/codex@{newest}"))
    .hint("or take the risk: turnkeep chat --any-server-version")
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Thread,
    Login,
    Mcp,
}

impl Step {
    const fn name(self) -> &'static str {
        match self {
            Self::Thread => "thread",
            Self::Login => "login",
            Self::Mcp => "mcp",
        }
    }
}

/// What is wrong with the configuration, where it is that.
fn configuration(error: &TypedError) -> Option<String> {
    match error {
        TypedError::Request(RequestError::Command(CommandError::Refused(refusal)))
            if connect::is_configuration(refusal) =>
        {
            Some(refusal.error.message.clone())
        }
        _ => None,
    }
}

async fn ask(step: Step, client: &Client) -> Result<Check, TypedError> {
    let name = step.name();
    Ok(match step {
        Step::Thread => {
            let request = ThreadStart {
                ephemeral: true.into(),
                ..ThreadStart::new()
            };
            let started = client.request(request).await?;
            let what = format!(
                "begins, with model {} of provider {}; it is not kept",
                started.model, started.model_provider
            );
            let _ = client
                .request(ThreadUnsubscribe::new(started.thread.id))
                .await;
            Check::good(name, what)
        }
        Step::Login => {
            let read = client.account().read().await?;
            match (read.account.get(), read.requires_openai_auth) {
                (Some(account), _) => Check::good(
                    name,
                    format!("logged in ({})", account.word().unwrap_or("?")),
                ),
                (None, false) => Check::good(
                    name,
                    "nobody is logged in, and the model provider does not ask for it",
                ),
                (None, true) => Check::bad(
                    name,
                    "nobody is logged in, and the model provider asks for it",
                )
                .hint("log in: codex login")
                .hint("or with a key: printenv OPENAI_API_KEY | codex login --with-api-key"),
            }
        }
        Step::Mcp => mcp(&client.mcp_servers(None).await?),
    })
}

/// How it is with the MCP servers. None of them keeps a turn from going on.
fn mcp(servers: &[McpServerStatus]) -> Check {
    let name = Step::Mcp.name();
    if servers.is_empty() {
        return Check::good(name, "no MCP server is configured");
    }
    let mut hints = Vec::new();
    let mut lines = Vec::new();
    for server in servers {
        let called = &server.name;
        let state = if server.auth_status == McpAuthStatus::NotLoggedIn {
            hints.push(format!("log in: codex mcp login {}", quoted(called)));
            "asks for a login".to_owned()
        } else if let Some(error) = server.tools_error.as_deref() {
            hints.push(format!(
                "look at how it is started: codex mcp get {}",
                quoted(called)
            ));
            brief(error, 160)
        } else {
            counted(server.tools.len(), "tool")
        };
        lines.push(format!("{called}: {state}"));
    }
    let (ill, all) = (hints.len(), counted(servers.len(), "MCP server"));
    let check = match ill {
        0 => Check::good(name, format!("{all}\n{}", lines.join("\n"))),
        _ => Check::warning(
            name,
            format!("{all}, {ill} of which cannot be used\n{}", lines.join("\n")),
        ),
    };
    hints.into_iter().fold(check, Check::hint)
}

/// A number and what is counted.
fn counted(number: usize, what: &str) -> String {
    let s = if number == 1 { "" } else { "s" };
    format!("{number} {what}{s}")
}

/// What codex logged while it was asked: the end of it, or all that there is.
fn stderr(tail: &str, all: bool) -> Check {
    let lines: Vec<String> = tail.lines().map(plain).collect();
    let said = |line: &&String| !line.trim().is_empty();
    let lines: Vec<&String> = lines.iter().filter(said).collect();
    if lines.is_empty() {
        return Check::good(STDERR, "codex wrote nothing to it");
    }
    let count = lines.len();
    let shown = if all { count } else { SHOWN.min(count) };
    let mut what = format!("codex wrote {} to it:", counted(count, "line"));
    if shown < count {
        what = format!("codex wrote {count} lines to it, the last {shown} of which are:");
    }
    for line in lines.iter().skip(count - shown) {
        what += &format!("\n{line}");
    }
    let check = Check::warning(STDERR, what)
        .hint("it is codex's own log: where all else is well, nothing need be done");
    match shown < count {
        true => check.hint(format!("see all {count}: turnkeep doctor --verbose")),
        false => check,
    }
}

async fn drift(program: &Path, words: &[String], version: &Version, all: bool) -> Check {
    let name = PROTOCOL;
    let made = match tempfile::tempdir() {
        Ok(dir) => dir,
        Err(error) => return Check::warning(name, format!("no directory to write to: {error}")),
    };
    let path = made.path().display().to_string();
    let arguments = [
        "app-server",
        "generate-json-schema",
        "--experimental",
        "--out",
        &path,
    ];
    let said = match output(program, words, &arguments).await {
        Ok((true, ..)) => fs::read_to_string(made.path().join(SCHEMA)).map_err(|e| e.to_string()),
        Ok((false, _, said)) => Err(said.trim().to_owned()),
        Err(why) => Err(why),
    };
    let model = said.and_then(|text| Model::read(&text).map_err(|error| error.to_string()));
    let model = match model {
        Ok(model) => model,
        Err(why) => {
            return Check::warning(name, format!("its schema cannot be had: {why}"))
                .hint("whether this codex speaks the protocol that turnkeep knows is not known");
        }
    };
    let drift = Surface::built_in().drift(&version.to_string(), &model);
    if drift.differences.is_empty() {
        return Check::good(
            name,
            format!("the same as that of codex {}", drift.compared_with),
        );
    }
    let count = drift.differences.len();
    let mut what = format!(
        "{count} differences from that of codex {}:",
        drift.compared_with
    );
    let shown = if all { count } else { SHOWN.min(count) };
    for difference in drift.differences.iter().take(shown) {
        what += &format!("\n{difference}");
    }
    let check =
        Check::warning(name, what).hint("nothing that is new is lost: it is handed on as it came");
    match shown < count {
        true => check.hint(format!("see all {count}: turnkeep doctor --verbose")),
        false => check,
    }
}
