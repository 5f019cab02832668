//! `turnkeep request`, `threads` and `models`, against what a real server answered.

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::{
    recorded::Codex,
    support::{Ran, fake, run, run_with, tool},
};

/// What a 0.171.0 with three threads and its own models answered.
const THREADS: &str = include_str!("recorded/0.171.0-threads.jsonl");

/// The thread that was read.
const FIRST: &str = "01a22b4b-ddbf-7801-9837-8052b75bea2a";

fn codex(state: &TempDir) -> Codex {
    Codex::recorded(state, "0.171.0", THREADS)
}

fn json(ran: &Ran) -> Vec<Value> {
    let lines = ran.stdout.lines();
    lines
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

/// The parameters of the only request of a method.
#[track_caller]
fn params(codex: &Codex, method: &str) -> Value {
    let heard = codex.heard();
    let mut found = heard.iter().filter(|frame| frame["method"] == method);
    let params = found.next().unwrap()["params"].clone();
    assert!(found.next().is_none(), "{heard:#?}");
    params
}

#[test]
fn parameters_come_from_stdin_with_a_dash_or_without() {
    for arguments in [
        &["request", "thread/list", "-"][..],
        &["request", "thread/list"],
    ] {
        let state = tempfile::tempdir().unwrap();
        let codex = codex(&state);
        run_with(codex.tool(&state).args(arguments), "{\"limit\": 7}\n").exits(0);
        assert_eq!(params(&codex, "thread/list"), json!({"limit": 7}));
    }
    // Nothing at all is an empty object, but not where it was said that something comes.
    let state = tempfile::tempdir().unwrap();
    let codex = codex(&state);
    run(codex.tool(&state).args(["request", "thread/list"])).exits(0);
    assert_eq!(params(&codex, "thread/list"), json!({}));
    run(codex.tool(&state).args(["request", "thread/list", "-"]))
        .exits(2)
        .complains(&["there are no parameters on stdin"]);
}

#[test]
fn a_method_that_is_misspelt_is_told_with_the_one_that_is_likest_first() {
    let state = tempfile::tempdir().unwrap();
    for (said, is) in [
        ("thread/lsit", "thread/list"),
        ("config/reed", "config/read"),
    ] {
        let ran = run(tool(&state).args(["request", said, "--server", &fake()]))
            .exits(1)
            .complains(&[
                &format!("the server knows no method \"{said}\" (code -32600)"),
                &format!("like it are: {is}"),
                "turnkeep request --list",
            ]);
        // The server names all methods that it knows.
        assert!(ran.stderr.len() < 500, "{ran:#?}");
    }
}

#[test]
fn a_refusal_is_told_with_its_code_and_its_data() {
    let state = tempfile::tempdir().unwrap();
    let refused = concat!(
        r#"{"to":"config/read","error":{"code":-32603,"message":"no","data":{"why":"so"}}}"#,
        "\n"
    );
    let codex = Codex::recorded(&state, "0.171.0", &format!("{THREADS}{refused}"));
    run(codex.tool(&state).args(["request", "config/read", "{}"]))
        .exits(1)
        .complains(&[
            "the server refused: no (code -32603)",
            r#"data: {"why":"so"}"#,
        ]);
}

#[cfg(target_os = "linux")]
#[test]
fn a_signal_ends_the_wait_for_stdin() {
    use std::{process::Stdio, thread, time::Duration};

    use rustix::process::Signal;

    use crate::support::{signal, wait_for};
    let state = tempfile::tempdir().unwrap();
    let mut child = tool(&state)
        .args(["request", "thread/list", "-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let held = child.stdin.take();
    // Signals are caught from here on.
    let status = format!("/proc/{}/status", child.id());
    wait_for(status.as_ref(), "SigCgt:\t");
    thread::sleep(Duration::from_millis(500));
    signal(&child, Signal::INT);
    let ended = (0..500).any(|_| {
        thread::sleep(Duration::from_millis(10));
        child.try_wait().unwrap().is_some()
    });
    if !ended {
        child.kill().unwrap();
    }
    let ran: Ran = child.wait_with_output().unwrap().into();
    ran.exits(130);
    drop(held);
}

#[test]
fn threads_are_listed_of_all_providers_and_up_to_a_limit() {
    let state = tempfile::tempdir().unwrap();
    let codex = codex(&state);
    let ran = run(codex.tool(&state).arg("threads")).exits(0).says(&[
        "ID                                    UPDATED           STATUS  PROVIDER  NAME\n",
        &format!(
            "{FIRST}  2026-11-30 07:12  stored  mock      hello there, what is the capital of \
             Norway and how many peop…\n"
        ),
        "named one",
    ]);
    assert_eq!(ran.stdout.lines().count(), 4);
    let asked = params(&codex, "thread/list");
    assert_eq!(asked["modelProviders"], json!([]));
    let ran = run(codex
        .tool(&state)
        .args(["threads", "--json", "--limit", "2"]))
    .exits(0);
    let rows = json(&ran);
    assert_eq!(rows.len(), 2);
    assert_eq!(rows[1]["name"], "named one");
    // A list that gives a thread as archived and as not archived is told.
    run(codex.tool(&state).args(["threads", "--all"]))
        .exits(1)
        .complains(&["is listed as archived and as not archived"]);
}

#[test]
fn a_thread_is_shown_with_what_was_said_in_it() {
    let state = tempfile::tempdir().unwrap();
    let codex = codex(&state);
    run(codex.tool(&state).args(["threads", "show", FIRST]))
        .exits(0)
        .says(&[
            "directory   /workspace",
            "model       mock-model of mock",
            "(completed)",
            "you               hello there, what is the capital of Norway",
            "codex             An answer.",
        ]);
    let ran = run(codex
        .tool(&state)
        .args(["threads", "show", FIRST, "--json"]))
    .exits(0);
    let told = &json(&ran)[0];
    assert_eq!(told["thread"]["id"], FIRST);
    assert_eq!(told["turns"].as_array().unwrap().len(), 1);
    assert_eq!(told["items"].as_array().unwrap().len(), 2);
}

#[test]
fn a_thread_that_there_is_not_is_told_with_where_to_look() {
    let state = tempfile::tempdir().unwrap();
    let refused = concat!(
        r#"{"to":"thread/read","error":{"code":-32600,"message":"invalid thread id: invalid character"}}"#,
        "\n"
    );
    let codex = Codex::recorded(&state, "0.171.0", refused);
    let init = THREADS.lines().next().unwrap();
    std::fs::write(
        codex.directory.join("recorded"),
        format!("{init}\n{refused}"),
    )
    .unwrap();
    run(codex.tool(&state).args(["threads", "show", "nope"]))
        .exits(1)
        .complains(&["invalid thread id", "turnkeep threads --all"]);
}

#[test]
fn models_are_listed_with_their_default_efforts() {
    let state = tempfile::tempdir().unwrap();
    let codex = codex(&state);
    run(codex.tool(&state).arg("models")).exits(0).says(&[
        "gpt-5.5               GPT-5.5      low medium* high xhigh            Legacy",
        "gpt-6.2-sol  default  GPT-6.2-Sol  low* medium high xhigh max ultra  Fast",
    ]);
    let none = run(tool(&state).args(["models", "--server", &fake()]))
        .exits(0)
        .complains(&["those of a custom provider are never listed"]);
    assert_eq!(none.stdout, "");
}
