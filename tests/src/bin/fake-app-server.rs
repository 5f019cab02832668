//! The scripted app-server as a process of its own. See `turnkeep_tokio::fake` for the script language.
//!
//!     fake-app-server SCRIPT             a file, or the name of one in tests/scripts without its ending
//!     fake-app-server --script-text TEXT
//!     fake-app-server demo               conversation without a model
//!
//! With `FAKE_APP_SERVER_SCRIPT` in the environment the arguments are ignored, so that it can stand where a client expects
//! `codex app-server`.

use std::path::Path;
use std::process::{Command, ExitCode};

use turnkeep_tokio::fake::{self, Engine, Script};

/// Set in a process that has been told to ignore SIGTERM.
const TERM_IGNORED: &str = "FAKE_APP_SERVER_TERM_IGNORED";

fn main() -> ExitCode {
    match start() {
        Ok(code) => code,
        Err(message) => {
            eprintln!("fake-app-server: {message}");
            ExitCode::from(2)
        }
    }
}

fn start() -> Result<ExitCode, String> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if arguments.first().is_some_and(|name| name == "demo") {
        return Ok(fake::run(fake::demo()));
    }
    let script = Script::parse(&script_text(&arguments)?).map_err(|error| error.to_string())?;
    if script.ignores_term() && std::env::var_os(TERM_IGNORED).is_none() {
        return Err(ignore_term(&arguments));
    }
    Ok(fake::run(Engine::new(script)))
}

fn script_text(arguments: &[String]) -> Result<String, String> {
    match arguments {
        [flag, text] if flag == "--script-text" => return Ok(text.clone()),
        _ => {}
    }
    let name = std::env::var("FAKE_APP_SERVER_SCRIPT")
        .ok()
        .or_else(|| arguments.first().cloned())
        .ok_or("which script?")?;
    let here = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("scripts")
        .join(format!("{name}.script"));
    let path = if Path::new(&name).is_file() {
        Path::new(&name)
    } else {
        &here
    };
    std::fs::read_to_string(path).map_err(|error| format!("{name}: {error}"))
}

/// Starts this process anew through a shell that ignores SIGTERM, which a program inherits; gives the error of a failed try.
#[cfg(unix)]
fn ignore_term(arguments: &[String]) -> String {
    use std::os::unix::process::CommandExt as _;
    let Ok(executable) = std::env::current_exe() else {
        return "where am I?".to_owned();
    };
    let mut command = Command::new("sh");
    command
        .args(["-c", "trap '' TERM; exec \"$0\" \"$@\""])
        .arg(executable)
        .args(arguments)
        .env(TERM_IGNORED, "1");
    command.exec().to_string()
}

#[cfg(not(unix))]
fn ignore_term(_: &[String]) -> String {
    "SIGTERM cannot be ignored here".to_owned()
}
