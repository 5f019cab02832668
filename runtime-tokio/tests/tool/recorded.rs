//! A codex that answers as a real one was seen to.

use std::{
    fs, net::TcpListener, os::unix::fs::PermissionsExt as _, path::PathBuf, process::Command,
    thread,
};

use serde_json::Value;
use tempfile::TempDir;

use crate::support::tool;

/// Answers as they were recorded; what was not recorded is refused.
const SCRIPT: &str = r#"#!/bin/sh
here=$(dirname "$0")
case "$1:$2" in
  --version:) echo "codex-cli VERSION"; exit ;;
  app-server:generate-json-schema) echo "no schema today" >&2; exit 1 ;;
esac
[ -e "$here/log" ] && cat "$here/log" >&2
while read -r line; do
  id=$(printf '%s\n' "$line" | sed -n 's/.*"id":\([0-9]*\).*/\1/p')
  method=$(printf '%s\n' "$line" | sed -n 's/.*"method":"\([^"]*\)".*/\1/p')
  printf '%s\n' "$line" >> "$here/heard"
  sed -n "s|^{\"after\":\"$method\",|{|p" "$here/recorded"
  [ -n "$id" ] || continue
  answer=$(sed -n "s|^{\"to\":\"$method\",|{\"id\":$id,|p" "$here/recorded")
  [ -n "$answer" ] || answer="{\"id\":$id,\"error\":{\"code\":-32600,\"message\":\"not recorded\"}}"
  printf '%s\n' "$answer"
done
"#;

/// A codex of the test's own, in a directory of its own.
pub(crate) struct Codex {
    pub(crate) directory: PathBuf,
}

impl Codex {
    pub(crate) fn new(state: &TempDir, script: &str) -> Self {
        let directory = state.path().join("bin");
        fs::create_dir_all(&directory).unwrap();
        let path = directory.join("codex");
        fs::write(&path, script).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        Self { directory }
    }

    pub(crate) fn recorded(state: &TempDir, version: &str, recorded: &str) -> Self {
        let codex = Self::new(state, &SCRIPT.replace("VERSION", version));
        fs::write(codex.directory.join("recorded"), recorded).unwrap();
        codex
    }

    /// The tool, which finds this codex.
    pub(crate) fn tool(&self, state: &TempDir) -> Command {
        let path = format!("{}:/usr/bin:/bin", self.directory.display());
        let mut command = tool(state);
        command.env("PATH", path).env("CODEX_HOME", "/codex-home");
        command
    }

    /// Writes this to stderr whenever it is started.
    pub(crate) fn logs(&self, text: &str) {
        fs::write(self.directory.join("log"), text).unwrap();
    }

    /// The frames that it got.
    pub(crate) fn heard(&self) -> Vec<Value> {
        let lines = fs::read_to_string(self.directory.join("heard")).unwrap_or_default();
        lines
            .lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect()
    }
}

/// A codex that runs already, for one connection. Gives its URL.
pub(crate) fn listening(recorded: &'static str) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("ws://{}", listener.local_addr().unwrap());
    thread::spawn(move || {
        let (stream, _) = listener.accept().unwrap();
        let mut socket = tungstenite::accept(stream).unwrap();
        while let Ok(message) = socket.read() {
            let Ok(frame) = serde_json::from_str::<Value>(message.to_text().unwrap_or_default())
            else {
                continue;
            };
            let (Some(id), Some(method)) = (frame.get("id"), frame["method"].as_str()) else {
                continue;
            };
            let begin = format!(r#"{{"to":"{method}","#);
            let answer = recorded.lines().find_map(|line| line.strip_prefix(&*begin));
            let refused = r#""error":{"code":-32600,"message":"not recorded"}}"#;
            let answer = format!(r#"{{"id":{id},{}"#, answer.unwrap_or(refused));
            socket.send(answer.into()).unwrap();
        }
    });
    url
}
