//! cargo-deny, from crates.io.

use std::{
    path::{Path, PathBuf},
    process::{Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use turnkeep_tests::codex::workspace_dir;

use crate::run::{self, Result, target_dir};

const VERSION: &str = "0.20.2";

// A firewall that drops packets would hold git for many minutes.
const FETCH_PATIENCE: Duration = Duration::from_secs(60);

pub(crate) fn run() -> Result {
    let tool = installed()?;
    run::run(deny(&tool).args(["check", "bans", "licenses", "sources"]))?;
    match fetch_advisories(&tool) {
        Ok(()) => run::run(deny(&tool).args(["check", "advisories"])),
        Err(reason) => {
            println!("advisories NOT checked: the advisory database cannot be fetched ({reason})");
            Ok(())
        }
    }
}

fn installed() -> Result<PathBuf> {
    let root = target_dir()?.join("tools");
    let tool = root.join("bin/cargo-deny");
    let present = run::output(Command::new(&tool).arg("--version"));
    if !present.is_ok_and(|(_, said)| said.trim() == format!("cargo-deny {VERSION}")) {
        eprintln!("xtask: installing cargo-deny {VERSION} (some minutes, once)");
        let mut install = run::cargo(&["install", "cargo-deny", "--version", VERSION, "--locked"]);
        run::run(install.arg("--root").arg(&root).arg("--quiet"))?;
    }
    Ok(tool)
}

fn deny(tool: &Path) -> Command {
    let mut command = Command::new(tool);
    command.current_dir(workspace_dir());
    command
}

fn fetch_advisories(tool: &Path) -> Result {
    let mut fetch = deny(tool)
        .args(["fetch", "db"])
        // Never ask for a password: the fetch shall fail instead.
        .env("GIT_TERMINAL_PROMPT", "0")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .map_err(|error| format!("cargo-deny does not start: {error}"))?;
    let end = Instant::now() + FETCH_PATIENCE;
    loop {
        match fetch.try_wait() {
            Ok(Some(status)) if status.success() => return Ok(()),
            Ok(Some(_)) => return Err("no network, or the host is not reachable".to_owned()),
            Ok(None) if Instant::now() < end => thread::sleep(Duration::from_millis(50)),
            Ok(None) | Err(_) => {
                let _ = fetch.kill();
                let _ = fetch.wait();
                return Err(format!("no answer in {FETCH_PATIENCE:?}"));
            }
        }
    }
}
