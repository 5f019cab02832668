//! What the doctor says, by what real servers answered.

use std::{
    fs,
    path::Path,
    process::{Command, Stdio},
};

use rustix::process::Signal;
use serde_json::Value;
use tempfile::TempDir;

use crate::{
    recorded::{Codex, listening},
    support::{Ran, run, signal, tool, wait_for},
};

/// The recordings of 0.163.0 and 0.171.0: each request with its answer, the configuration that of
/// the name. `codex app-server` was asked by hand; paths are replaced.
const BROKEN: [(&str, &str); 2] = [
    (
        "0.163.0",
        include_str!("recorded/0.163.0-broken-config.jsonl"),
    ),
    (
        "0.171.0",
        include_str!("recorded/0.171.0-broken-config.jsonl"),
    ),
];
const NOT_LOGGED_IN: [(&str, &str); 2] = [
    (
        "0.163.0",
        include_str!("recorded/0.163.0-not-logged-in.jsonl"),
    ),
    (
        "0.171.0",
        include_str!("recorded/0.171.0-not-logged-in.jsonl"),
    ),
];

fn doctor(codex: &Codex, state: &TempDir) -> Command {
    let mut command = codex.tool(state);
    command.arg("doctor");
    command
}

/// The checks, as a program reads them.
fn checks(ran: &Ran) -> Vec<Value> {
    let lines = ran.stdout.lines();
    lines
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

fn state_of<'a>(checks: &'a [Value], name: &str) -> &'a str {
    let found = checks.iter().find(|check| check["check"] == name);
    found.unwrap()["state"].as_str().unwrap()
}

/// Whatever is a problem has something to do about it.
#[track_caller]
fn all_problems_have_advice(checks: &[Value]) {
    for check in checks {
        let advice = check["hints"].as_array().unwrap();
        assert!(check["state"] != "problem" || !advice.is_empty(), "{check}");
        // It is the doctor that is asked.
        let circular = |hint: &Value| hint.as_str().unwrap().contains("doctor says more");
        assert!(!advice.iter().any(circular), "{check}");
    }
}

#[test]
fn without_codex_it_says_where_it_looked_and_how_to_get_it() {
    let state = tempfile::tempdir().unwrap();
    let empty = state.path().join("empty");
    fs::create_dir(&empty).unwrap();
    // What is there and cannot be run is none.
    fs::write(empty.join("codex"), "").unwrap();
    let path = format!("{}:/no/such", empty.display());
    run(tool(&state).arg("doctor").env("PATH", &path))
        .exits(3)
        .says(&[
            "problem  codex      codex is in none of the 2 directories of PATH",
            &format!("tried {}/codex", empty.display()),
            "tried /no/such/codex",
            "→ install it: npm install -g @openai/codex",
            "→ or say where it is: turnkeep doctor --server PATH",
        ]);
    run(tool(&state).args(["doctor", "--server", "/no/such/codex app"]))
        .exits(3)
        .says(&["/no/such/codex does not exist", "→ look at --server"]);
    let ran = run(tool(&state).args(["doctor", "--json"]).env("PATH", &path)).exits(3);
    all_problems_have_advice(&checks(&ran));
}

#[test]
fn an_unsupported_version_is_told_with_the_one_to_install() {
    let state = tempfile::tempdir().unwrap();
    let (newest, recorded) = NOT_LOGGED_IN[1];
    // Nothing else is wrong.
    let recorded = recorded.replace(newest, "0.99.0").replace(
        r#""requiresOpenaiAuth":true"#,
        r#""requiresOpenaiAuth":false"#,
    );
    let codex = Codex::recorded(&state, "0.99.0", &recorded);
    run(&mut doctor(&codex, &state)).exits(1).says(&[
        "problem  version    0.99.0 is not supported",
        "→ install one that is: npm install -g @openai/codex@0.171.0",
        // It goes on.
        "ok       start      answers as turnkeep/0.99.0",
        "ok       thread",
    ]);
    let ran = run(doctor(&codex, &state).arg("--json")).exits(1);
    let told = checks(&ran);
    all_problems_have_advice(&told);
    let problems = told.iter().filter(|check| check["state"] == "problem");
    assert_eq!(problems.count(), 1, "{told:#?}");
    // The risk is taken.
    run(doctor(&codex, &state).arg("--any-server-version"))
        .exits(0)
        .says(&["warning  version    0.99.0 is not supported"]);
}

#[test]
fn a_broken_configuration_is_told_with_the_file_to_mend() {
    for (version, recorded) in BROKEN {
        let state = tempfile::tempdir().unwrap();
        let codex = Codex::recorded(&state, version, recorded);
        let ran = run(&mut doctor(&codex, &state)).exits(1).says(&[
            "problem  thread     codex cannot read its configuration: failed to load configuration: \
             /codex-home/config.toml:1:16:",
            "→ mend that file",
        ]);
        assert!(!ran.stdout.contains("codex login"), "{ran:#?}");
        let ran = run(doctor(&codex, &state).arg("--json")).exits(1);
        let told = checks(&ran);
        all_problems_have_advice(&told);
        // What codex says of its defaults is not said of the machine.
        assert_eq!(state_of(&told, "login"), "skipped");
        assert_eq!(state_of(&told, "mcp"), "skipped");
        // It is told once.
        let problems = told.iter().filter(|check| check["state"] == "problem");
        assert_eq!(problems.count(), 1, "{told:#?}");
        assert!(!ran.stdout.contains("Invalid configuration"), "{ran:#?}");
    }
}

#[test]
fn nobody_logged_in_is_a_problem_where_the_provider_asks_for_it() {
    for (version, recorded) in NOT_LOGGED_IN {
        let state = tempfile::tempdir().unwrap();
        let codex = Codex::recorded(&state, version, recorded);
        run(&mut doctor(&codex, &state)).exits(1).says(&[
            &format!("ok       version    {version}, which is supported"),
            "problem  login      nobody is logged in, and the model provider asks for it",
            "→ log in: codex login",
            "--with-api-key",
            "ok       mcp        no MCP server is configured",
        ]);
        let heard = codex.heard();
        let of = |method: &str| heard.iter().find(|frame| frame["method"] == method);
        assert_eq!(of("thread/start").unwrap()["params"]["ephemeral"], true);
        assert!(of("thread/unsubscribe").is_some(), "{heard:#?}");
        all_problems_have_advice(&checks(&run(doctor(&codex, &state).arg("--json"))));
        let other = recorded.replace(
            r#""requiresOpenaiAuth":true"#,
            r#""requiresOpenaiAuth":false"#,
        );
        let codex = Codex::recorded(&state, version, &other);
        run(&mut doctor(&codex, &state)).exits(0).says(&[
            "ok       login      nobody is logged in, and the model provider does not ask for it",
            // No schema is no problem, but it is told.
            "warning  protocol   its schema cannot be had: no schema today",
        ]);
    }
}

#[test]
fn an_mcp_server_that_does_not_start_is_told() {
    let state = tempfile::tempdir().unwrap();
    let (version, recorded) = NOT_LOGGED_IN[1];
    let server = |name: &str, error: &str| {
        format!(
            r#"{{"authStatus":"unsupported","name":"{name}","resourceTemplates":[],"resources":[],"tools":{{}},"toolsError":{error}}}"#
        )
    };
    let servers = [
        server("well", "null"),
        server(
            "missing",
            r#""MCP startup failed: No such file or directory""#,
        ),
    ];
    let recorded = recorded
        .replace(
            r#""data":[]"#,
            &format!(r#""data":[{}]"#, servers.join(",")),
        )
        .replace(
            r#""requiresOpenaiAuth":true"#,
            r#""requiresOpenaiAuth":false"#,
        );
    let codex = Codex::recorded(&state, version, &recorded);
    run(&mut doctor(&codex, &state)).exits(0).says(&[
        "warning  mcp        2 MCP servers, 1 of which cannot be used",
        "well: 0 tools",
        "missing: MCP startup failed: No such file or directory",
        "→ look at how it is started: codex mcp get missing",
    ]);
}

#[test]
fn a_server_that_does_not_start_is_told_with_its_own_words() {
    let state = tempfile::tempdir().unwrap();
    let script = "#!/bin/sh\n[ \"$1\" = --version ] && { echo codex-cli 0.171.0; exit; }\n\
                  echo the disk is on fire >&2\nexit 7\n";
    let codex = Codex::new(&state, script);
    run(&mut doctor(&codex, &state)).exits(3).says(&[
        "ok       version",
        "problem  start      the server ended before it was ready: the server exited with code 7",
        "→ it said: the disk is on fire",
    ]);
}

#[test]
fn what_stderr_says_is_told_where_all_else_is_well_too() {
    let state = tempfile::tempdir().unwrap();
    let (version, recorded) = NOT_LOGGED_IN[1];
    let recorded = recorded.replace(
        r#""requiresOpenaiAuth":true"#,
        r#""requiresOpenaiAuth":false"#,
    );
    let codex = Codex::recorded(&state, version, &recorded);
    let silent = run(&mut doctor(&codex, &state)).exits(0);
    silent.says(&["ok       stderr     codex wrote nothing to it"]);
    codex.logs("\x1b[31mERROR\x1b[0m the disk is slow\n\n  at here\n");
    run(&mut doctor(&codex, &state)).exits(0).says(&[
        "warning  stderr     codex wrote 2 lines to it:\n",
        "\n                    ERROR the disk is slow\n                      at here\n",
        "→ it is codex's own log",
    ]);
    // People get the end of a long one, programs all of it.
    let long: String = (1..=25).map(|n| format!("line {n}\n")).collect();
    codex.logs(&long);
    let ran = run(&mut doctor(&codex, &state)).exits(0).says(&[
        "codex wrote 25 lines to it, the last 10 of which are:\n",
        " line 16\n",
        " line 25\n",
        "→ see all 25: turnkeep doctor --verbose",
    ]);
    assert!(!ran.stdout.contains("line 15\n"), "{ran:#?}");
    run(doctor(&codex, &state).arg("--verbose"))
        .exits(0)
        .says(&[" line 1\n", " line 25\n"]);
    let told = checks(&run(doctor(&codex, &state).arg("--json")).exits(0));
    assert_eq!(state_of(&told, "stderr"), "warning");
    let row = told
        .iter()
        .find(|check| check["check"] == "stderr")
        .unwrap();
    assert!(row["what"].as_str().unwrap().ends_with(&long.trim_end()));
}

#[test]
fn what_cannot_be_looked_at_over_a_connection_is_told_as_skipped() {
    let state = tempfile::tempdir().unwrap();
    let (version, recorded) = NOT_LOGGED_IN[1];
    run(tool(&state).args(["doctor", "--connect", &listening(recorded)]))
        .exits(1)
        .says(&[
            &format!("ok       version    {version}"),
            "problem  login",
            "skipped  stderr     not looked at: it is written where that codex was started",
            "skipped  protocol   not compared: a codex that runs already does not tell its schema",
        ]);
    let ran = run(tool(&state).args(["doctor", "--json", "--connect", &listening(recorded)]));
    let told = checks(&ran.exits(1));
    assert_eq!(state_of(&told, "stderr"), "skipped");
    assert_eq!(state_of(&told, "protocol"), "skipped");
}

#[cfg(target_os = "linux")]
#[test]
fn a_signal_leaves_no_process_of_a_launcher() {
    use crate::support::wait_until_gone;
    let state = tempfile::tempdir().unwrap();
    let mark = state.path().to_string_lossy().into_owned();
    let script = "#!/bin/sh\nsleep 600 &\necho here > \"$(dirname \"$0\")/here\"\nwait\n";
    let codex = Codex::new(&state, script);
    let child = doctor(&codex, &state)
        .env("TURNKEEP_TEST_MARK", &mark)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let here: &Path = &codex.directory.join("here");
    wait_for(here, "here");
    signal(&child, Signal::TERM);
    let ran: Ran = child.wait_with_output().unwrap().into();
    ran.exits(143);
    wait_until_gone("TURNKEEP_TEST_MARK", &mark);
}
