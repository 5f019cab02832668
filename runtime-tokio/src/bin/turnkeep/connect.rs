//! How a command that asks a server reaches it.

use std::io::{self, IsTerminal as _, Write as _};

use serde_json::Value;
use tokio::time::Duration;
use turnkeep_tokio::{
    Authorization, ChildConfig, Client, ClientConfig, CommandError, RequestError, ServerConfig,
    TypedError, WebSocketConfig, WebSocketConfigError,
    core::command::{Refusal, RefusalClass},
};

use crate::{
    Failure,
    cli::{DEFAULT_SERVER, ServerArgs},
    problem::{Exit, Problem},
    signals::{Signal, Signals},
    term::{Term, visible},
};

/// How long an orderly end may take.
const CLOSING: Duration = Duration::from_secs(10);

/// The server that the arguments name.
pub(crate) fn server(args: &ServerArgs) -> Result<ServerConfig, Problem> {
    let Some(url) = &args.connect else {
        return command(&args.server).map(ServerConfig::Child);
    };
    let refused = |error: WebSocketConfigError| Problem::web_socket(&error);
    let mut socket = WebSocketConfig::url(url).map_err(refused)?;
    if let Some(path) = &args.token_file {
        socket = socket.token_file(path);
    }
    if let Some(path) = &args.ca_file {
        socket = socket.ca_file(path);
    }
    if args.token_over_plain_tcp {
        socket = socket.token_over_plain_tcp();
    }
    socket.validate().map_err(refused)?;
    Ok(ServerConfig::WebSocket(socket))
}

/// The words of `--server`.
pub(crate) fn words(command: &str) -> Result<(String, Vec<String>), Problem> {
    let words = shell_words::split(command).map_err(|error| {
        Problem::usage(format!("--server cannot be split into words: {error}"))
            .hint("quote it like in a shell: --server '\"/path with spaces/codex\" -c x=y'")
    })?;
    let mut words = words.into_iter();
    match words.next() {
        Some(program) => Ok((program, words.collect())),
        None => Err(Problem::usage("--server is empty").hint(format!(
            "leave it out to start `{DEFAULT_SERVER}`, or name the command"
        ))),
    }
}

fn command(command: &str) -> Result<ChildConfig, Problem> {
    let (program, args) = words(command)?;
    Ok(ChildConfig::program(program).args(args).arg("app-server"))
}

/// Why there is no client.
pub(crate) fn not_started(error: &turnkeep_tokio::StartError, args: &ServerArgs) -> Problem {
    match &args.connect {
        Some(url) => Problem::connect(error, url),
        None => Problem::start(error, &args.server),
    }
}

/// Runs something with a client that keeps nothing, and ends it in order.
pub(crate) async fn with_client<T>(
    args: &ServerArgs,
    signals: &mut Signals,
    work: impl AsyncFnOnce(&Client) -> Result<T, Failure>,
) -> Result<Result<T, Signal>, Failure> {
    let mut config = ClientConfig::server(server(args)?)
        .authorization(Authorization::None)
        .one_connection();
    config.machine.any_server_version = args.any_server_version;
    let mut term = Term::new();
    term.working(match &args.connect {
        Some(_) => "connecting to the server",
        None => "starting the server",
    });
    let client = tokio::select! {
        client = Client::spawn(config) => client,
        signal = signals.next() => return Ok(Err(signal)),
    };
    term.rest();
    let client = client.map_err(|error| not_started(&error, args))?;
    let done = tokio::select! {
        done = work(&client) => done.map(Ok),
        signal = signals.next() => Ok(Err(signal)),
    };
    let _ = tokio::time::timeout(CLOSING, client.shutdown()).await;
    done
}

/// What a signal ends, or what was done.
pub(crate) fn exit(done: Result<Exit, Signal>) -> Exit {
    done.unwrap_or_else(Signal::exit)
}

/// Why a request has no answer.
pub(crate) fn asked(error: &TypedError) -> Problem {
    match error {
        TypedError::Request(RequestError::Command(CommandError::Refused(refusal))) => {
            refused(refusal)
        }
        TypedError::Shape { method, .. } => Problem::failed(visible(&error.to_string()))
            .hint(format!("see it as it came: turnkeep request {method}"))
            .hint("see what is new in this codex: turnkeep doctor"),
        _ => Problem::failed(visible(&error.to_string())),
    }
}

/// What the server says no to.
pub(crate) fn refused(refusal: &Refusal) -> Problem {
    // What is unknown is named before all hundred methods that are known.
    let said = &refusal.error.message;
    let said = said
        .split_once("`, expected one of")
        .map_or(said.clone(), |(said, _)| format!("{said}`"));
    let problem = Problem::failed(format!("the server refused: {}", visible(&said)));
    match &refusal.class {
        RefusalClass::NotLoggedIn => problem.hint("log in: codex login"),
        RefusalClass::ThreadNotLoaded | RefusalClass::NoRollout | RefusalClass::ThreadNotFound => {
            problem.hint("the threads that there are: turnkeep threads --all")
        }
        _ if is_configuration(refusal) => {
            problem.hint("mend it there, or see what else is wrong: turnkeep doctor")
        }
        _ if refusal.error.message.contains("authentication required") => {
            problem.hint("log in: codex login")
        }
        _ if refusal.error.message.starts_with("invalid thread id: ") => {
            problem.hint("the threads that there are: turnkeep threads --all")
        }
        _ => problem,
    }
}

/// Whether the server cannot read its configuration.
pub(crate) fn is_configuration(refusal: &Refusal) -> bool {
    refusal.class == RefusalClass::BadConfiguration
        // The lists of MCP servers say it in this way.
        || refusal.error.message.starts_with("failed to reload config: ")
}

/// Writes JSON to stdout: for people over several lines, for programs in one.
pub(crate) fn print(value: &Value, for_programs: bool) -> io::Result<()> {
    let mut out = io::stdout().lock();
    if for_programs || !io::stdout().is_terminal() {
        writeln!(out, "{value}")?;
    } else {
        // What is a value can be written.
        let text = serde_json::to_string_pretty(value).unwrap_or_else(|_| value.to_string());
        writeln!(out, "{}", visible(&text))?;
    }
    out.flush()
}

/// A table without lines, as wide as the terminal.
pub(crate) fn table(
    header: &[&str],
    rows: impl IntoIterator<Item = Vec<String>>,
) -> io::Result<()> {
    use comfy_table::{ContentArrangement, Table, presets::NOTHING};
    let mut table = Table::new();
    table
        .load_preset(NOTHING)
        .set_header(header.iter().map(|name| name.to_uppercase()));
    if let Some(width) = width() {
        table
            .set_content_arrangement(ContentArrangement::Dynamic)
            .set_width(width);
    }
    for row in rows {
        table.add_row(row.into_iter().map(|cell| visible(&cell)));
    }
    for column in table.column_iter_mut() {
        column.set_padding((0, 2));
    }
    let mut out = anstream::stdout().lock();
    for line in table.lines() {
        writeln!(out, "{}", line.trim_end())?;
    }
    out.flush()
}

/// How wide the terminal is; `None` where stdout is none.
fn width() -> Option<u16> {
    if !io::stdout().is_terminal() {
        return None;
    }
    let size = rustix::termios::tcgetwinsize(io::stdout()).ok()?;
    Some(size.ws_col).filter(|columns| *columns >= 40)
}

/// A point in time as people write it, of seconds since 1970.
pub(crate) fn time(seconds: i64) -> String {
    let Ok(at) = jiff::Timestamp::from_second(seconds) else {
        return seconds.to_string();
    };
    at.to_zoned_datetime(jiff::tz::TimeZone::system())
        .strftime("%Y-%m-%d %H:%M")
        .to_string()
}
