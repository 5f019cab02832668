//! `turnkeep doctor`, `threads`, `models` and `request`, against servers that are shell scripts: they
//! say what the real codex 0.171.0 said.

use std::{
    fs,
    io::{Read as _, Write as _},
    net::TcpListener,
    os::unix::fs::PermissionsExt as _,
    path::Path,
    process::{Command, Output},
    thread,
};

use serde_json::Value;
use tempfile::TempDir;

use crate::{
    recorded::Codex,
    support::{Ran, tool},
};

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
fn all_threads_are_those_of_every_source_too() {
    let state = tempfile::tempdir().unwrap();
    let recorded = concat!(
        r#"{"to":"initialize","result":{"userAgent":"turnkeep/0.171.0 (x)","codexHome":"/h"}}"#,
        "\n",
        r#"{"to":"thread/list","result":{"data":[],"nextCursor":null}}"#,
        "\n",
        r#"{"to":"thread/search","result":{"data":[],"nextCursor":null}}"#,
        "\n",
    );
    let codex = Codex::recorded(&state, "0.171.0", recorded);
    let asked = |arguments: &[&str]| -> Vec<(Value, Value)> {
        let before = codex.heard().len();
        let ran: Ran = codex.tool(&state).args(arguments).output().unwrap().into();
        ran.exits(0);
        let frames = codex.heard().into_iter().skip(before);
        let lists = frames.filter(|frame| frame["params"]["archived"].is_boolean());
        let part = |frame: Value| {
            let params = &frame["params"];
            (params["archived"].clone(), params["sourceKinds"].clone())
        };
        lists.map(part).collect()
    };
    let every: Value = [
        "cli",
        "vscode",
        "exec",
        "appServer",
        "subAgent",
        "subAgentReview",
        "subAgentCompact",
        "subAgentThreadSpawn",
        "subAgentOther",
        "unknown",
    ]
    .into();
    let both = [(false.into(), every.clone()), (true.into(), every)];
    assert_eq!(asked(&["threads", "--all"]), both);
    assert_eq!(asked(&["threads", "--all", "--search", "x"]), both);
    let usual = [(false.into(), Value::Null)];
    assert_eq!(asked(&["threads"]), usual);
}

#[test]
fn options_stand_on_either_side_of_a_subcommand() {
    let state = tempfile::tempdir().unwrap();
    let token = state.path().join("token");
    fs::write(&token, "the-token\n").unwrap();
    let token = token.to_str().unwrap();
    let ask = |arguments: &[&str]| -> Ran {
        let ran = tool(&state).arg("threads").args(arguments).output();
        ran.unwrap().into()
    };
    type Order = fn(&str, &str) -> Vec<String>;
    let orders: [Order; 4] = [
        |url, token| words(&["--connect", url, "show", "x", "--token-file", token]),
        |url, token| words(&["--token-file", token, "show", "x", "--connect", url]),
        |url, token| words(&["--token-file", token, "--connect", url, "show", "x"]),
        |url, token| words(&["show", "x", "--token-file", token, "--connect", url]),
    ];
    for order in orders {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("ws://{}", listener.local_addr().unwrap());
        let server = thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut request = Vec::new();
            while !request.ends_with(b"\r\n\r\n") {
                let mut byte = [0];
                stream.read_exact(&mut byte).unwrap();
                request.push(byte[0]);
            }
            let answer = "HTTP/1.1 401 Unauthorized\r\ncontent-length: 0\r\n\r\n";
            stream.write_all(answer.as_bytes()).unwrap();
            String::from_utf8(request).unwrap()
        });
        let words = order(&url, token);
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        ask(&words).exits(3).complains(&["denied us"]);
        let request = server.join().unwrap();
        assert!(request.contains("Bearer the-token\r\n"), "{request}");
    }
    // What does not go together is told, wherever it stands.
    let url = "ws://127.0.0.1:1";
    for (arguments, says) in [
        (
            &["--connect", url, "show", "x", "--server", "codex"][..],
            "--connect and --server cannot both be said",
        ),
        (
            &["--server", "codex", "show", "x", "--connect", url],
            "--connect and --server cannot both be said",
        ),
        (
            &["show", "x", "--token-file", token],
            "--token-file needs --connect URL",
        ),
        (
            &["--ca-file", token, "show", "x"],
            "--ca-file needs --connect URL",
        ),
        (
            &["--token-over-plain-tcp", "show", "x", "--connect", url],
            "--token-over-plain-tcp needs --token-file FILE",
        ),
        (&["--limit", "3", "show", "x"], "--limit is for the list"),
        (&["--all", "delete", "x"], "--all is for the list"),
    ] {
        ask(arguments).exits(2).complains(&[says]);
    }
}

fn words(words: &[&str]) -> Vec<String> {
    words.iter().map(|word| (*word).to_owned()).collect()
}

#[test]
fn nothing_is_deleted_without_a_word() {
    let server = Server::new("0.171.0", &[("thread/delete", "{}")]);
    let told = server.run(&["threads", "delete", "thr_1"]);
    assert_eq!(told.status.code(), Some(2));
    assert!(err(&told).contains("nobody can be asked"), "{}", err(&told));
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
        &[(
            "config/read",
            r#"{"z":1e999,"a":18446744073709551616,"a":-0.10}"#,
        )],
    );
    // As it came: no number is rounded, no member moved or lost.
    for more in [&["--json"][..], &[]] {
        let told = server.run(&[&["request", "config/read"], more].concat());
        assert_eq!(
            out(&told),
            "{\"z\":1e999,\"a\":18446744073709551616,\"a\":-0.10}\n",
            "{}",
            err(&told)
        );
    }
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
