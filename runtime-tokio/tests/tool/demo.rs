use std::{fs, os::unix::fs::PermissionsExt as _, process::Command};

use crate::support::{TOOL, demo, run, tool};

#[test]
fn demo_needs_nothing_and_what_it_says_to_type_works() {
    let state = tempfile::tempdir().unwrap();
    // No PATH: nothing else on this machine is used.
    let ran = run(tool(&state).arg("demo").env("PATH", "").current_dir("/"))
        .exits(0)
        .says(&[
            "What is the weather in Oslo and in Lima?",
            r#"weather {"city":"Oslo"}"#,
            r#"weather {"city":"Lima"}"#,
            "Oslo: 3 °C, light snow. Lima: 21 °C, fog over the coast.",
            "tokens in",
            "the server was killed (SIGKILL)",
            "it is sent again",
            "turnkeep itself was killed (SIGKILL)",
            "picked up after 1 earlier run: 1 turn open",
            "You said: We were cut off. Are you still there?",
            "the server once, turnkeep once, with SIGKILL",
            "suspended   2 turns",
            "sent again  1 message",
            "4 said, 4 in the server's history",
            "lost        0 messages; duplicates: 0",
            "journal-00000000000000000001.jsonl",
            "session.trace",
        ]);
    assert_eq!(ran.stderr, "");
    assert!(!ran.stdout.contains('\u{1b}'), "colours in a pipe: {ran:?}");
    let commands: Vec<&str> = ran
        .stdout
        .lines()
        .filter(|line| {
            [" replay ", " show "]
                .iter()
                .any(|verb| line.contains(verb))
        })
        .collect();
    assert_eq!(commands.len(), 3, "{ran:?}");
    for command in commands {
        let pasted = run(Command::new("sh").args(["-c", command]).current_dir("/")).exits(0);
        assert!(!pasted.stdout.is_empty(), "{command}");
    }
}

#[test]
fn runs_keep_apart_and_to_themselves() {
    let state = tempfile::tempdir().unwrap();
    for _ in 0..2 {
        run(tool(&state).arg("demo")).exits(0);
    }
    let runs: Vec<_> = fs::read_dir(state.path().join("turnkeep"))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    assert_eq!(runs.len(), 2, "{runs:?}");
    for path in runs {
        let mode = fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o700);
    }
    let used = demo(&state);
    run(tool(&state).arg("demo").arg("--dir").arg(&used))
        .exits(2)
        .complains(&["is not empty", "name a new directory"]);
}

#[test]
fn every_help_tells_the_exit_codes() {
    let state = tempfile::tempdir().unwrap();
    for command in [
        &["--help"][..],
        &["chat", "--help"],
        &["replay", "--help"],
        &["show", "-h"],
        &["doctor", "--help"],
        &["request", "--help"],
        &["threads", "--help"],
        &["models", "--help"],
    ] {
        run(tool(&state).args(command))
            .exits(0)
            .says(&["Exit codes:"]);
    }
    // Wrong usage exits with 2 wherever there is something to be said.
    for command in ["chat", "doctor", "request", "threads", "models"] {
        run(tool(&state).args([command, "--help"])).says(&["\n  2    wrong usage"]);
    }
    run(tool(&state).args(["threads", "--help"])).says(&["you did not say yes"]);
    let help = run(tool(&state).arg("--help")).exits(0);
    assert!(!help.stdout.contains("fake-app-server"));
    run(tool(&state).arg("--version"))
        .exits(0)
        .says(&[turnkeep_tokio::core::VERSION]);
}

#[test]
fn wrong_usage_exits_with_2() {
    let state = tempfile::tempdir().unwrap();
    for (arguments, says) in [
        (&["frob"][..], "unrecognized subcommand"),
        (&[], "Usage"),
        (&["chat", "--sandbox", "none"], "read-only"),
        (&["chat", "--approval-policy", "x"], "on-request"),
        (&["chat", "--server", ""], "--server is empty"),
        (&["chat", "--server", "'", "hi"], "cannot be split"),
        (&["chat", "--conversation", " a", "hi"], "conversation key"),
        (&["chat", "--cwd", "/no/such", "hi"], "--cwd /no/such"),
        (&["chat", ""], "the message is empty"),
        (&["chat"], "the message is empty"),
        (&["replay"], "<FILE>"),
        (&["replay", "/no/such"], "cannot read /no/such"),
        (&["show", "/no/such"], "cannot read /no/such"),
        (&["show", "/"], "holds no journal"),
        (&["replay", TOOL, "--until", "x"], "invalid value"),
    ] {
        run(tool(&state).args(arguments))
            .exits(2)
            .complains(&[says]);
    }
}
