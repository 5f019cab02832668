//! `turnkeep doctor`, `threads`, `models` and `request`, against servers that are shell scripts: they
//! say what the real codex 0.171.0 said.

use std::{
    fs,
    os::unix::fs::PermissionsExt as _,
    path::Path,
    process::{Command, Output},
};

use serde_json::Value;
use tempfile::TempDir;

/// Answers each request by the lines below `# METHOD`, `$id` being its id.
const SERVER: &str = r#"#!/bin/sh
if [ "$1" = --version ]; then echo "codex-cli VERSION"; exit; fi
if [ "$2" = generate-json-schema ]; then echo "no schema here" >&2; exit 1; fi
while read -r line; do
  id=$(printf '%s' "$line" | sed -n 's/.*"id":\([0-9]*\).*/\1/p')
  method=$(printf '%s' "$line" | sed -n 's/.*"method":"\([^"]*\)".*/\1/p')
  case $method in
    initialize) echo "{\"id\":$id,\"result\":{\"userAgent\":\"turnkeep/VERSION (x)\",\"codexHome\":\"/h\"}}" ;;
ANSWERS
    *) [ -n "$id" ] && echo "{\"id\":$id,\"error\":{\"code\":-32600,\"message\":\"Invalid request: unknown variant\"}}" ;;
  esac
done
"#;

const THREAD: &str = r#"{"id":"thr_1","sessionId":"thr_1","cliVersion":"0","createdAt":1,"updatedAt":2,"cwd":"/w","ephemeral":true,"modelProvider":"mock","preview":"Fix the build","projectId":null,"source":"cli","status":{"type":"notLoaded"},"turns":[]}"#;

struct Server {
    dir: TempDir,
}

impl Server {
    /// A server of a version that answers these methods with these results, or errors.
    fn new(version: &str, answers: &[(&str, &str)]) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let mut cases = String::new();
        for (method, answer) in answers {
            let (kind, json) = match answer.strip_prefix('!') {
                Some(message) => (
                    "error",
                    format!(r#"{{"code":-32600,"message":"{message}"}}"#),
                ),
                None => ("result", (*answer).to_owned()),
            };
            let line = format!(r#"{{"id":ID,"{kind}":{json}}}"#).replace('\'', "'\\''");
            let line = line.replace("ID", "'$id'");
            cases += &format!("    {method}) echo '{line}' ;;\n");
        }
        let text = SERVER
            .replace("ANSWERS\n", &cases)
            .replace("VERSION", version);
        let path = dir.path().join("codex");
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        Self { dir }
    }

    fn run(&self, args: &[&str]) -> Output {
        run(self.dir.path(), args)
    }
}

/// Runs the tool where codex is what is in `dir`.
fn run(dir: &Path, args: &[&str]) -> Output {
    let path = format!("{}:/usr/bin:/bin", dir.display());
    Command::new(env!("CARGO_BIN_EXE_turnkeep"))
        .args(args)
        .env("PATH", path)
        .env("HOME", dir)
        .output()
        .unwrap()
}

fn out(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

fn err(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

/// The line of a check, and the hints below it.
fn check(text: &str, name: &str) -> (String, String) {
    let lines: Vec<&str> = text.lines().collect();
    let at = lines
        .iter()
        .position(|line| line.split_whitespace().nth(1) == Some(name))
        .unwrap_or_else(|| panic!("no {name} in {text}"));
    let hints = lines[at + 1..]
        .iter()
        .take_while(|line| line.starts_with(' '));
    (
        lines[at].to_owned(),
        hints.copied().collect::<Vec<_>>().join("\n"),
    )
}

const STARTED: &str = r#"{"thread":THREAD,"model":"m","modelProvider":"openai","cwd":"/w","approvalPolicy":"never","approvalsReviewer":"user","sandbox":{"type":"dangerFullAccess"}}"#;

fn started() -> String {
    STARTED.replace("THREAD", THREAD)
}

#[test]
fn doctor_says_how_to_get_codex() {
    let empty = tempfile::tempdir().unwrap();
    let told = run(empty.path(), &["doctor"]);
    assert_eq!(told.status.code(), Some(3));
    let (line, hints) = check(&out(&told), "codex");
    assert!(line.starts_with("problem"), "{line}");
    assert!(hints.contains("npm install -g @openai/codex"), "{hints}");
    assert!(hints.contains("--server PATH"), "{hints}");
}

#[test]
fn doctor_names_a_version_that_works() {
    let login = r#"{"account":null,"requiresOpenaiAuth":false}"#;
    let server = Server::new(
        "0.99.0",
        &[
            ("thread/start", &started()),
            ("account/read", login),
            ("mcpServerStatus/list", r#"{"data":[],"nextCursor":null}"#),
        ],
    );
    let told = server.run(&["doctor"]);
    let (line, hints) = check(&out(&told), "version");
    assert!(line.contains("0.99.0 is not supported"), "{line}");
    assert!(
        hints.contains("npm install -g @openai/codex@0.171.0"),
        "{hints}"
    );
    // The rest is looked at all the same.
    let (line, _) = check(&out(&told), "thread");
    assert!(line.starts_with("ok"), "{line}");
    assert_eq!(told.status.code(), Some(1));
}

#[test]
fn doctor_names_the_configuration_that_is_broken() {
    let broken = "!failed to load configuration: /h/config.toml:1:11: invalid basic string";
    let server = Server::new(
        "0.171.0",
        &[
            ("thread/start", broken),
            (
                "account/read",
                r#"{"account":null,"requiresOpenaiAuth":true}"#,
            ),
            ("mcpServerStatus/list", broken),
        ],
    );
    let told = server.run(&["doctor"]);
    let (line, hints) = check(&out(&told), "thread");
    assert!(line.contains("/h/config.toml:1:11"), "{line}");
    assert!(hints.contains("mend that file"), "{hints}");
    assert_eq!(told.status.code(), Some(1));
}

#[test]
fn doctor_says_how_to_log_in() {
    let server = Server::new(
        "0.171.0",
        &[
            ("thread/start", &started()),
            (
                "account/read",
                r#"{"account":null,"requiresOpenaiAuth":true}"#,
            ),
            ("mcpServerStatus/list", r#"{"data":[],"nextCursor":null}"#),
        ],
    );
    let told = server.run(&["doctor", "--json"]);
    assert_eq!(told.status.code(), Some(1));
    let rows: Vec<Value> = out(&told)
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let login = rows.iter().find(|row| row["check"] == "login").unwrap();
    assert_eq!(login["state"], "problem");
    assert_eq!(login["hints"][0], "log in: codex login");
    let protocol = rows.iter().find(|row| row["check"] == "protocol").unwrap();
    assert_eq!(protocol["state"], "warning", "{protocol}");
}

#[test]
fn threads_are_a_table_and_json() {
    let page = format!(r#"{{"data":[{THREAD}],"nextCursor":null}}"#);
    let server = Server::new("0.171.0", &[("thread/list", &page)]);
    let told = server.run(&["threads"]);
    let text = out(&told);
    assert_eq!(told.status.code(), Some(0), "{}", err(&told));
    assert!(text.starts_with("ID"), "{text}");
    assert!(text.contains("thr_1") && text.contains("Fix the build") && text.contains("stored"));
    let told = server.run(&["threads", "--json"]);
    let row: Value = serde_json::from_str(out(&told).trim()).unwrap();
    assert_eq!(
        (&row["id"], &row["archived"]),
        (&"thr_1".into(), &false.into())
    );
    // A thread that is listed as both is told, not listed twice.
    let told = server.run(&["threads", "--all"]);
    assert!(
        err(&told).contains("archived and as not archived"),
        "{}",
        err(&told)
    );
}

#[test]
fn nothing_is_deleted_without_a_word() {
    let server = Server::new("0.171.0", &[("thread/delete", "{}")]);
    let told = server.run(&["threads", "delete", "thr_1"]);
    assert_eq!(told.status.code(), Some(2));
    assert!(err(&told).contains("--yes"), "{}", err(&told));
    // Options stand where a person puts them.
    let told = server.run(&["threads", "delete", "thr_1", "--yes", "--server", "codex"]);
    assert_eq!(told.status.code(), Some(0), "{}", err(&told));
}

#[test]
fn models_are_a_table_with_marks() {
    let model = r#"{"id":"m-1","model":"m-1","displayName":"M One","description":"Good.","hidden":false,"isDefault":true,"defaultReasoningEffort":"low","supportedReasoningEfforts":[{"reasoningEffort":"low","description":""},{"reasoningEffort":"high","description":""}]}"#;
    let page = format!(r#"{{"data":[{model}],"nextCursor":null}}"#);
    let server = Server::new("0.171.0", &[("model/list", &page)]);
    let text = out(&server.run(&["models"]));
    assert!(
        text.contains("m-1") && text.contains("default") && text.contains("low* high"),
        "{text}"
    );
    let server = Server::new(
        "0.171.0",
        &[("model/list", r#"{"data":[],"nextCursor":null}"#)],
    );
    let told = server.run(&["models"]);
    assert!(err(&told).contains("custom provider"), "{}", err(&told));
}

#[test]
fn any_request_is_sent_and_its_answer_printed() {
    let server = Server::new(
        "0.171.0",
        &[("config/read", r#"{"config":{"a":18446744073709551615}}"#)],
    );
    let told = server.run(&["request", "config/read", "--json"]);
    assert_eq!(
        out(&told).trim(),
        r#"{"config":{"a":18446744073709551615}}"#
    );
    let told = server.run(&["request", "thread/lst"]);
    assert_eq!(told.status.code(), Some(1));
    assert!(err(&told).contains("-32600"), "{}", err(&told));
    assert!(
        err(&told).contains("like it are: thread/list"),
        "{}",
        err(&told)
    );
    let told = server.run(&["request", "no/list"]);
    assert!(
        err(&told).contains("thread/list") || err(&told).contains("like it are"),
        "{}",
        err(&told)
    );
    let told = server.run(&["request", "config/read", "{"]);
    assert_eq!(told.status.code(), Some(2));
    assert!(err(&told).contains("not JSON"), "{}", err(&told));
    let told = server.run(&["request", "--list"]);
    assert!(out(&told).lines().count() > 180);
}
