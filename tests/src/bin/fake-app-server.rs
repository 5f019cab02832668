//! The scripted app-server as a process of its own. See `turnkeep_tokio::fake` for the script language.
//!
//! ```text
//! fake-app-server SCRIPT             a file, or the name of one in tests/scripts without its ending
//! fake-app-server --script-text TEXT
//! fake-app-server demo               conversation without a model
//! fake-app-server app-server         the same, where a client expects `codex app-server`
//! fake-app-server crowd              many conversations at once, see `turnkeep_tests::crowd`
//! ```
//!
//! A script with several lives (`X next life`) plays the first one, unless `FAKE_APP_SERVER_LIVES` names a file where the number of
//! starts is kept.
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
    let scripted = std::env::var_os("FAKE_APP_SERVER_SCRIPT").is_some();
    let is_demo = |name: &String| name == "demo" || (name == "app-server" && !scripted);
    if arguments.first().is_some_and(is_demo) {
        return Ok(fake::run(fake::demo()));
    }
    if arguments.first().is_some_and(|name| name == "crowd") {
        return Ok(fake::run(turnkeep_tests::crowd::Crowd::default()));
    }
    let text = script_text(&arguments)?;
    let life = std::env::var_os("FAKE_APP_SERVER_LIVES");
    let started = life
        .as_deref()
        .and_then(|path| std::fs::read_to_string(path).ok())
        .and_then(|text| text.trim().parse().ok());
    let started: usize = started.unwrap_or(0);
    let script = Script::parse_life(&text, started).map_err(|error| error.to_string())?;
    if script.ignores_term() && std::env::var_os(TERM_IGNORED).is_none() {
        return Err(ignore_term(&arguments));
    }
    if let Some(path) = life {
        std::fs::write(&path, (started + 1).to_string())
            .map_err(|error| format!("{}: {error}", path.to_string_lossy()))?;
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

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use serde_json::{Map, Value, json};
    use turnkeep_tokio::fake::Action;

    use super::*;

    fn scripts() -> BTreeMap<String, String> {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("scripts");
        let files = std::fs::read_dir(folder)
            .unwrap()
            .map(|entry| entry.unwrap().path());
        files
            .map(|path| {
                (
                    path.file_stem().unwrap().to_string_lossy().into_owned(),
                    std::fs::read_to_string(path).unwrap(),
                )
            })
            .collect()
    }

    /// A frame that the pattern matches.
    fn fitting(pattern: &Value, engine: &Engine, next: &mut u64) -> Value {
        match pattern {
            Value::Object(members) => Value::Object(
                members
                    .iter()
                    .filter(|(_, value)| **value != json!("!absent"))
                    .map(|(key, value)| (key.clone(), fitting(value, engine, next)))
                    .collect::<Map<_, _>>(),
            ),
            Value::Array(elements) => elements
                .iter()
                .map(|element| fitting(element, engine, next))
                .collect(),
            Value::String(text) => match (text.strip_prefix('$'), text.strip_prefix('~')) {
                (Some(name), _) => engine.variable(name).map_or_else(
                    || {
                        *next += 1;
                        if name.starts_with("input") {
                            json!([{"type": "text", "text": "x"}])
                        } else {
                            json!(*next)
                        }
                    },
                    |bound| serde_json::from_str(bound).unwrap(),
                ),
                (_, Some(part)) => json!(part),
                _ => pattern.clone(),
            },
            _ => pattern.clone(),
        }
    }

    fn drain(engine: &mut Engine, mut actions: Vec<Action>, written: &mut Vec<u8>) {
        while !actions.is_empty() {
            for action in std::mem::replace(&mut actions, engine.poll()) {
                if let Action::Write(bytes) = action {
                    written.extend(bytes);
                }
            }
        }
    }

    /// Plays one life with a client that does what is expected of it.
    fn play(name: &str, text: &str, life: usize) -> Vec<u8> {
        let mut engine = Engine::new(
            Script::parse_life(text, life).unwrap_or_else(|error| panic!("{name}: {error}")),
        );
        let part = text.split("X next life\n").nth(life).unwrap();
        let (mut written, mut next, mut thread) = (Vec::new(), 100, false);
        let first = engine.poll();
        drain(&mut engine, first, &mut written);
        for line in part.lines() {
            let Some(pattern) = line.strip_prefix("C ").or_else(|| line.strip_prefix("C& ")) else {
                continue;
            };
            let pattern: Value = serde_json::from_str(pattern).unwrap();
            let mut frames = vec![fitting(&pattern, &engine, &mut next)];
            if pattern["method"] == "turn/start" && !std::mem::replace(&mut thread, true) {
                frames.insert(0, json!({"id": 1, "method": "thread/start", "params": {"dynamicTools": [{"name": "t"}]}}));
            }
            for frame in frames {
                let actions = engine.on_line(frame.to_string().as_bytes());
                drain(&mut engine, actions, &mut written);
                // What an earlier life was told is not known to a life that is played alone.
                let alone = engine.failure().filter(|_| life > 0);
                if alone.is_some_and(|why| why.contains("nothing to put for")) {
                    return written;
                }
                assert_eq!(engine.failure(), None, "{name}");
            }
        }
        written
    }

    #[test]
    fn every_script_can_be_played_to_its_end() {
        let scripts = scripts();
        assert!(scripts.len() >= 40, "{}", scripts.len());
        for (name, text) in &scripts {
            assert!(
                text.starts_with("# Right: "),
                "{name} does not begin with the right value"
            );
            for life in 0..Script::lives(text) {
                let written = play(name, text, life);
                // Noise is the point of 22; everything else is JSON lines.
                let good = written
                    .split(|byte| *byte == b'\n')
                    .all(|line| line.is_empty() || serde_json::from_slice::<Value>(line).is_ok());
                assert!(
                    good || name.starts_with("case-22"),
                    "{name} writes what is no JSON"
                );
                assert!(
                    !written.is_empty() || name.starts_with("case-25"),
                    "{name} writes nothing"
                );
            }
        }
    }
}
