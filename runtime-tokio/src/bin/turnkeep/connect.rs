//! How a command that asks a server reaches it.

use std::io::{self, IsTerminal as _, Write as _};

use tokio::time::Duration;
use turnkeep_tokio::{
    Authorization, ChildConfig, Client, ClientConfig, CommandError, RequestError, ServerConfig,
    TypedError, WebSocketConfig, WebSocketConfigError,
    core::command::{Refusal, RefusalClass},
};
use unicode_width::{UnicodeWidthChar as _, UnicodeWidthStr as _};

use crate::{
    Failure,
    cli::{DEFAULT_SERVER, ServerArgs},
    indent::indented,
    problem::{Exit, Problem},
    signals::{Signal, Signals},
    term::{Term, brief, visible},
};

/// How long an orderly end may take.
const CLOSING: Duration = Duration::from_secs(10);

/// The server that the arguments name.
pub(crate) fn server(args: &ServerArgs) -> Result<ServerConfig, Problem> {
    let Some(url) = &args.connect else {
        return command(args.command()).map(ServerConfig::Child);
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

/// Checks what the options say of each other. clap would look at those before and behind a
/// subcommand each by themselves.
pub(crate) fn check(args: &ServerArgs) -> Result<(), Problem> {
    if args.connect.is_some() && args.server.is_some() {
        return Err(
            Problem::usage("--connect and --server cannot both be said").hint(
                "--connect names a codex that runs already, --server the command that starts one",
            ),
        );
    }
    let connects = [
        ("--token-file", args.token_file.is_some()),
        ("--ca-file", args.ca_file.is_some()),
    ];
    for (option, is_given) in connects {
        if is_given && args.connect.is_none() {
            return Err(Problem::usage(format!("{option} needs --connect URL"))
                .hint("name the codex that it is for, or leave it out"));
        }
    }
    if args.token_over_plain_tcp && args.token_file.is_none() {
        return Err(
            Problem::usage("--token-over-plain-tcp needs --token-file FILE")
                .hint("name the file that holds the token, or leave it out"),
        );
    }
    Ok(())
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
        None => Problem::start(error, args.command()),
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

/// Writes JSON to stdout, its numbers and the order of its members as they came: over several lines
/// for people, for programs in one.
pub(crate) fn print(json: &str, for_programs: bool) -> io::Result<()> {
    let mut out = io::stdout().lock();
    if for_programs || !io::stdout().is_terminal() {
        writeln!(out, "{json}")?;
    } else {
        writeln!(out, "{}", visible(&indented(json)))?;
    }
    out.flush()
}

/// A table without lines, each row in one line. In a narrow terminal the columns of `spare` are left
/// out, the first of them first, and the last column is cut.
pub(crate) fn table(
    header: &[&str],
    rows: impl IntoIterator<Item = Vec<String>>,
    spare: &[usize],
) -> io::Result<()> {
    let header = header.iter().map(|name| name.to_uppercase()).collect();
    let cell = |cell: &String| brief(cell, usize::MAX).replace('\t', " ");
    let cells = |row: Vec<String>| row.iter().map(cell).collect();
    let rows = std::iter::once(header).chain(rows.into_iter().map(cells));
    let mut out = anstream::stdout().lock();
    for line in lines(rows.collect(), spare, width()) {
        writeln!(out, "{line}")?;
    }
    out.flush()
}

/// How much of the last column is shown at least.
const LAST: usize = 20;

/// The lines of a table that is so wide at most.
fn lines(mut rows: Vec<Vec<String>>, spare: &[usize], most: Option<usize>) -> Vec<String> {
    use comfy_table::{Table, presets::NOTHING};
    let widest = |rows: &[Vec<String>], at: usize| {
        let cells = rows.iter().filter_map(|row| row.get(at));
        cells.map(|cell| cell.width()).max().unwrap_or_default()
    };
    let last = rows.first().map_or(0, |row| row.len().saturating_sub(1));
    let mut kept: Vec<usize> = (0..=last).collect();
    if let Some(most) = most {
        // Two spaces stand between columns.
        let before = |kept: &[usize]| -> usize {
            let wide = kept.iter().filter(|at| **at != last);
            wide.map(|at| widest(&rows, *at) + 2).sum()
        };
        let wanted = widest(&rows, last).min(LAST);
        for at in spare {
            if before(&kept) + wanted > most {
                kept.retain(|kept| kept != at);
            }
        }
        let room = most.saturating_sub(before(&kept)).max(wanted);
        for row in &mut rows {
            if let Some(cell) = row.get_mut(last) {
                *cell = cut(cell, room);
            }
        }
    }
    let mut table = Table::new();
    table.load_preset(NOTHING);
    for row in &rows {
        table.add_row(kept.iter().filter_map(|at| row.get(*at)));
    }
    for column in table.column_iter_mut() {
        column.set_padding((0, 2));
    }
    table
        .lines()
        .map(|line| line.trim_end().to_owned())
        .collect()
}

/// A text that takes so many columns at most.
fn cut(text: &str, most: usize) -> String {
    if text.width() <= most {
        return text.to_owned();
    }
    let mut wide = 0;
    let fits = |c: &char| {
        wide += c.width().unwrap_or_default();
        wide < most
    };
    let mut out: String = text.chars().take_while(fits).collect();
    out.push('…');
    out
}

/// A line as lines that are so wide at most, parted at spaces; a word that is wider stays whole.
pub(crate) fn wrapped(line: &str, most: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in line.split(' ') {
        match lines.last_mut() {
            Some(last) if last.width() + 1 + word.width() <= most => {
                last.push(' ');
                last.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines
}

/// How wide the terminal is; `None` where stdout is none.
pub(crate) fn width() -> Option<usize> {
    if !io::stdout().is_terminal() {
        return None;
    }
    let size = rustix::termios::tcgetwinsize(io::stdout()).ok()?;
    Some(usize::from(size.ws_col)).filter(|columns| *columns >= 40)
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

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(name: &str) -> Vec<Vec<String>> {
        let row = |cells: [&str; 4]| cells.map(str::to_owned).to_vec();
        vec![
            row(["ID", "WHEN", "OF", "NAME"]),
            row(["0123456789", "2026-11-30", "mock", name]),
        ]
    }

    #[test]
    fn a_row_is_one_line_and_its_first_column_is_whole_however_narrow_it_is() {
        let name = "a name that is longer than what there is room for";
        for most in [40, 47, 48, 60, 80] {
            let lines = lines(rows(name), &[2, 1], Some(most));
            assert_eq!(lines.len(), 2, "{lines:?}");
            assert!(lines[1].starts_with("0123456789  "), "{lines:?}");
            assert!(lines.iter().all(|line| line.width() <= most), "{lines:?}");
            assert_eq!(lines[0].contains("OF"), most >= 50, "{lines:?}");
            assert_eq!(lines[0].contains("WHEN"), most >= 44, "{lines:?}");
        }
        let whole = lines(rows(name), &[2, 1], None);
        assert!(whole[1].ends_with(name), "{whole:?}");
        // What is short needs no room.
        assert!(lines(rows("x"), &[2, 1], Some(40))[1].ends_with("2026-11-30  mock  x"));
    }

    #[test]
    fn a_line_is_wrapped_at_spaces_and_paths_stay_whole() {
        assert_eq!(wrapped("one two  three", 8), ["one two ", "three"]);
        assert_eq!(
            wrapped("a /very/long/path b", 6),
            ["a", "/very/long/path", "b"]
        );
        assert_eq!(wrapped("as  it is", usize::MAX), ["as  it is"]);
        assert_eq!(wrapped("", 10), [""]);
    }

    #[test]
    fn wide_characters_are_counted_by_their_width() {
        assert_eq!(cut("日本語日本語", 7), "日本語…");
        assert_eq!(cut("日本語日本語", 8), "日本語…");
        assert_eq!(cut("日本語", 6), "日本語");
        let lines = lines(rows(&"日本".repeat(30)), &[], Some(60));
        assert!(lines.iter().all(|line| line.width() <= 60), "{lines:?}");
    }
}
