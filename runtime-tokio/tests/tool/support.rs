//! The tool as a process.

use std::{
    fs,
    io::Write as _,
    path::Path,
    process::{Child, Command, Output, Stdio},
    thread,
    time::Duration,
};

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

pub(crate) const TOOL: &str = env!("CARGO_BIN_EXE_turnkeep");

/// The tool, with a state directory of its own and a fake server that does not dawdle.
pub(crate) fn tool(state: &TempDir) -> Command {
    let mut command = Command::new(TOOL);
    command
        .env("XDG_STATE_HOME", state.path())
        .env("HOME", state.path())
        .env("TURNKEEP_FAKE_PACE_MS", "0")
        .env("TZ", "UTC")
        .env_remove("NO_COLOR")
        .env_remove("CLICOLOR_FORCE")
        .stdin(Stdio::null());
    command
}

/// What `--server` names the fake with.
pub(crate) fn fake() -> String {
    format!("'{TOOL}' fake-app-server")
}

/// What a run printed, and how it ended.
#[derive(Debug)]
pub(crate) struct Ran {
    pub(crate) code: Option<i32>,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl From<Output> for Ran {
    fn from(output: Output) -> Self {
        Self {
            code: output.status.code(),
            stdout: String::from_utf8(output.stdout).unwrap(),
            stderr: String::from_utf8(output.stderr).unwrap(),
        }
    }
}

impl Ran {
    #[track_caller]
    pub(crate) fn exits(self, code: i32) -> Self {
        assert_eq!(self.code, Some(code), "{self:#?}");
        assert!(!self.stderr.contains("panicked"), "{self:#?}");
        self
    }

    #[track_caller]
    pub(crate) fn says(self, texts: &[&str]) -> Self {
        for text in texts {
            assert!(self.stdout.contains(text), "{text:?} in {self:#?}");
        }
        self
    }

    #[track_caller]
    pub(crate) fn complains(self, texts: &[&str]) -> Self {
        for text in texts {
            assert!(self.stderr.contains(text), "{text:?} in {self:#?}");
        }
        self
    }
}

pub(crate) fn run(command: &mut Command) -> Ran {
    command.output().unwrap().into()
}

/// Runs with something on stdin.
pub(crate) fn run_with(command: &mut Command, input: &str) -> Ran {
    let child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut child = child.spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    // A tool that refuses its arguments reads nothing.
    let _ = stdin.write_all(input.as_bytes());
    drop(stdin);
    child.wait_with_output().unwrap().into()
}

pub(crate) fn signal(child: &Child, signal: Signal) {
    let pid = Pid::from_raw(i32::try_from(child.id()).unwrap()).unwrap();
    kill_process(pid, signal).unwrap();
}

/// Waits until a file holds a text.
#[track_caller]
pub(crate) fn wait_for(path: &Path, text: &str) {
    for _ in 0..6_000 {
        if fs::read_to_string(path).is_ok_and(|content| content.contains(text)) {
            return;
        }
        thread::sleep(Duration::from_millis(10));
    }
    panic!("{text:?} never stood in {}", path.display());
}

/// The processes whose environment holds `NAME=value`.
#[cfg(target_os = "linux")]
pub(crate) fn processes_with(name: &str, value: &str) -> Vec<String> {
    let wanted = format!("{name}={value}");
    let entries = fs::read_dir("/proc").unwrap().flatten();
    entries
        .filter(|entry| {
            let environment = fs::read(entry.path().join("environ")).unwrap_or_default();
            environment
                .split(|b| *b == 0)
                .any(|variable| variable == wanted.as_bytes())
        })
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .collect()
}

/// Waits until no process has the variable. One that was killed may take a moment to be gone.
#[cfg(target_os = "linux")]
#[track_caller]
pub(crate) fn wait_until_gone(name: &str, value: &str) {
    for _ in 0..6_000 {
        if processes_with(name, value).is_empty() {
            return;
        }
        thread::sleep(Duration::from_millis(10));
    }
    panic!("still there: {:?}", processes_with(name, value));
}

/// Runs the demo and gives its directory.
pub(crate) fn demo(state: &TempDir) -> std::path::PathBuf {
    let directory = state.path().join("demo");
    run(tool(state).arg("demo").arg("--dir").arg(&directory)).exits(0);
    directory
}
