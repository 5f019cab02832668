use std::{fs, process::Stdio};

use rustix::process::Signal;

use crate::support::{demo, fake, run, run_with, signal, tool, wait_for};

#[test]
fn a_message_of_the_command_line_gets_its_answer_and_nothing_else_on_stdout() {
    let state = tempfile::tempdir().unwrap();
    let ran = run(tool(&state).args(["chat", "--server", &fake(), "good morning"])).exits(0);
    assert_eq!(
        ran.stdout,
        "This is answer 1 of our conversation. You said: good morning\n"
    );
    assert!(ran.stderr.contains("tokens in"), "{ran:?}");
    assert!(ran.stderr.contains("journal: "), "{ran:?}");
    assert!(!ran.stderr.contains('\u{1b}'), "{ran:?}");
}

#[test]
fn a_message_comes_from_stdin_with_a_dash_or_without() {
    let state = tempfile::tempdir().unwrap();
    for arguments in [&["chat", "-"][..], &["chat"]] {
        let mut command = tool(&state);
        command.args(arguments).args(["--server", &fake()]);
        let ran = run_with(&mut command, "from a pipe\n").exits(0);
        assert_eq!(
            ran.stdout,
            "This is answer 1 of our conversation. You said: from a pipe\n"
        );
    }
}

#[test]
fn what_is_said_twice_is_recorded_and_replays() {
    let state = tempfile::tempdir().unwrap();
    let (journal, recording) = (state.path().join("journal"), state.path().join("r.trace"));
    let mut command = tool(&state);
    command
        .args(["chat", "--server", &fake(), "--conversation", "mine"])
        .args(["--sandbox", "read-only", "--approval-policy", "never"])
        .args(["--model", "some-model", "--cwd", "/", "hello"])
        .arg("--journal")
        .arg(&journal)
        .arg("--record")
        .arg(&recording);
    run(&mut command).exits(0);
    run(tool(&state).arg("replay").arg(&recording)).exits(0);
    run(tool(&state).arg("show").arg(&journal))
        .exits(0)
        .says(&["\"mine\" opened"]);
    let recorded = fs::read_to_string(&recording).unwrap();
    for sent in [
        r#""sandbox":"read-only""#,
        r#""approvalPolicy":"never""#,
        r#""model":"some-model""#,
        r#""cwd":"/""#,
    ] {
        assert!(recorded.contains(sent), "{sent}");
    }
    // The journal holds a life now, and the next one goes on from it.
    let file = journal.join("journal-00000000000000000001.jsonl");
    let before = fs::read(&file).unwrap();
    run(&mut command);
    let after = fs::read(&file).unwrap();
    assert!(after.len() > before.len() && after.starts_with(&before));
    run(tool(&state).arg("replay").arg(&recording)).exits(0);
    run(tool(&state).arg("show").arg(&journal)).exits(0);
    // A changed byte is refused, and stays.
    let mut damaged = after.clone();
    damaged[90] ^= 1;
    fs::write(&file, &damaged).unwrap();
    run(&mut command).exits(2).complains(&[
        "journal-00000000000000000001.jsonl: offset 0, batch 0: the checksum",
        "nothing in it was changed",
        "leave --journal out",
    ]);
    assert_eq!(fs::read(&file).unwrap(), damaged);
}

#[test]
fn the_next_run_goes_on_where_the_last_one_was() {
    let state = tempfile::tempdir().unwrap();
    let chat = |arguments: &[&str]| {
        let mut command = tool(&state);
        command.args(["chat", "--server", &fake()]).args(arguments);
        command.env("TURNKEEP_FAKE_STORE", state.path().join("server.json"));
        run(&mut command)
    };
    chat(&["--continue", "one"])
        .exits(2)
        .complains(&["there is no earlier conversation", "--journal DIR"]);
    chat(&["one"]).exits(0);
    let second = chat(&["--continue", "two"]).exits(0);
    assert_eq!(
        second.stdout,
        "This is answer 2 of our conversation. You said: two\n"
    );
    second.complains(&["picked up after 1 earlier run: nothing was open"]);
    chat(&["-c", "--model", "other", "three"])
        .exits(2)
        .complains(&["is held in another way", "--conversation KEY"]);
}

#[cfg(target_os = "linux")]
#[test]
fn a_run_that_was_killed_is_picked_up_by_the_next() {
    use crate::support::wait_until_gone;
    let state = tempfile::tempdir().unwrap();
    let (journal, recording) = (state.path().join("journal"), state.path().join("r.trace"));
    let mark = state.path().to_string_lossy().into_owned();
    let chat = |message: &str, pace: &str| {
        let mut command = tool(&state);
        command
            .args(["chat", "--server", &fake(), message])
            .arg("--journal")
            .arg(&journal)
            .env("TURNKEEP_FAKE_STORE", state.path().join("server.json"))
            .env("TURNKEEP_FAKE_PACE_MS", pace)
            .env("TURNKEEP_TEST_MARK", &mark)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        command
    };
    let mut child = chat("a long story", "200")
        .arg("--record")
        .arg(&recording)
        .spawn()
        .unwrap();
    wait_for(&recording, "item/agentMessage/delta");
    child.kill().unwrap();
    child.wait().unwrap();
    let ran = run(&mut chat("and now?", "0")).exits(0);
    assert_eq!(
        ran.stdout,
        "This is answer 2 of our conversation. You said: and now?\n"
    );
    ran.complains(&[
        "picked up after 1 earlier run: 1 turn open",
        "the turn was interrupted",
    ]);
    wait_until_gone("TURNKEEP_TEST_MARK", &mark);
}

#[cfg(target_os = "linux")]
#[test]
fn a_server_that_is_killed_is_started_again() {
    use crate::support::processes_with;
    let state = tempfile::tempdir().unwrap();
    let recording = state.path().join("r.trace");
    let mark = state.path().to_string_lossy().into_owned();
    let child = tool(&state)
        .args(["chat", "--server", &fake(), "a long story", "--record"])
        .arg(&recording)
        .env("TURNKEEP_FAKE_STORE", state.path().join("server.json"))
        .env("TURNKEEP_FAKE_PACE_MS", "200")
        .env("TURNKEEP_TEST_MARK", &mark)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    wait_for(&recording, "item/agentMessage/delta");
    let ours = child.id().to_string();
    for pid in processes_with("TURNKEEP_TEST_MARK", &mark) {
        if pid != ours {
            run(std::process::Command::new("kill").args(["-9", &pid])).exits(0);
        }
    }
    let ran: crate::support::Ran = child.wait_with_output().unwrap().into();
    ran.exits(1).complains(&[
        "the server is gone in the middle of the turn; another one is started",
        "the turn was interrupted",
    ]);
}

#[test]
fn a_recording_is_not_written_over_something_else() {
    let state = tempfile::tempdir().unwrap();
    let thesis = state.path().join("thesis.txt");
    fs::write(&thesis, "years of work").unwrap();
    run(tool(&state)
        .args(["chat", "--server", &fake(), "hi", "--record"])
        .arg(&thesis))
    .exits(2)
    .complains(&["is no recording"]);
    assert_eq!(fs::read_to_string(&thesis).unwrap(), "years of work");
    let recording = demo(&state).join("session.trace");
    run(tool(&state)
        .args(["chat", "--server", &fake(), "hi", "--record"])
        .arg(&recording))
    .exits(0);
}

#[test]
fn a_missing_server_exits_with_3_and_says_how_to_get_it() {
    let state = tempfile::tempdir().unwrap();
    run(tool(&state).args(["chat", "hi"]).env("PATH", ""))
        .exits(3)
        .complains(&[
            "codex was not found",
            "npm install -g @openai/codex",
            "turnkeep demo",
        ]);
    run(tool(&state).args(["chat", "hi", "--server", "/no/such/codex"]))
        .exits(3)
        .complains(&["/no/such/codex was not found", "--server"]);
    // Nothing was done, nothing is left.
    let left = fs::read_dir(state.path().join("turnkeep")).unwrap().count();
    assert_eq!(left, 0);
}

#[test]
fn a_server_that_ends_or_is_none_exits_with_3_and_its_own_words() {
    let state = tempfile::tempdir().unwrap();
    let dies = "sh -c 'echo the disk is on fire >&2; exit 7'";
    run(tool(&state).args(["chat", "hi", "--server", dies]))
        .exits(3)
        .complains(&["exited with code 7", "it said: the disk is on fire"]);
    let old = r#"sh -c 'read line; echo "{\"id\":1,\"result\":{\"userAgent\":\"x/0.1.0 (x)\"}}"; read line'"#;
    run(tool(&state).args(["chat", "hi", "--server", old]))
        .exits(3)
        .complains(&[
            "codex 0.1.0 is not supported",
            "npm install",
            "--any-server-version",
        ]);
}

#[test]
fn a_turn_that_fails_exits_with_1_and_says_why() {
    let state = tempfile::tempdir().unwrap();
    let ran = run(tool(&state).args(["chat", "--server", &fake(), "fail: now"]))
        .exits(1)
        .complains(&["error: the turn failed:"]);
    assert_eq!(ran.stdout, "");
}

#[test]
fn what_is_asked_is_declined_where_nobody_can_be_asked() {
    let state = tempfile::tempdir().unwrap();
    let mut command = tool(&state);
    command.args(["chat", "--server", &fake(), "-"]);
    run_with(&mut command, "run: rm -rf everything\ny\ny\n")
        .exits(1)
        .complains(&[
            "declined, as stdin is no terminal: run",
            "rm -rf everything",
            "it did not run",
            "run it in a terminal to be asked",
        ]);
}

#[cfg(target_os = "linux")]
#[test]
fn a_signal_in_mid_turn_ends_all_in_order() {
    use crate::support::{processes_with, wait_until_gone};
    for (number, code, ends) in [
        (Signal::TERM, 143, "closed by us"),
        (Signal::HUP, 129, "closed by us"),
        (Signal::INT, 130, "interrupted"),
    ] {
        let state = tempfile::tempdir().unwrap();
        let (journal, recording) = (state.path().join("journal"), state.path().join("r.trace"));
        let mark = state.path().to_string_lossy().into_owned();
        let child = tool(&state)
            .args(["chat", "--server", &fake(), "a long story"])
            .arg("--journal")
            .arg(&journal)
            .arg("--record")
            .arg(&recording)
            .env("TURNKEEP_FAKE_PACE_MS", "200")
            .env("TURNKEEP_TEST_MARK", &mark)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        wait_for(&recording, "item/agentMessage/delta");
        assert_eq!(processes_with("TURNKEEP_TEST_MARK", &mark).len(), 2);
        signal(&child, number);
        let ran: crate::support::Ran = child.wait_with_output().unwrap().into();
        let ran = ran.exits(code);
        assert!(!ran.stderr.contains("error:"), "{ran:#?}");
        wait_until_gone("TURNKEEP_TEST_MARK", &mark);
        run(tool(&state).arg("replay").arg(&recording)).exits(0);
        run(tool(&state).arg("show").arg(&journal))
            .exits(0)
            .says(&[ends]);
    }
}

#[cfg(target_os = "linux")]
#[test]
fn a_signal_before_the_server_is_ready_leaves_nothing() {
    use crate::support::wait_until_gone;
    let state = tempfile::tempdir().unwrap();
    let mark = state.path().to_string_lossy().into_owned();
    let here = state.path().join("here");
    let server = format!("sh -c 'echo here > {}; sleep 600'", here.display());
    let child = tool(&state)
        .args(["chat", "--server", &server, "hi"])
        .env("TURNKEEP_TEST_MARK", &mark)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    wait_for(&here, "here");
    signal(&child, Signal::TERM);
    let ran: crate::support::Ran = child.wait_with_output().unwrap().into();
    ran.exits(143);
    wait_until_gone("TURNKEEP_TEST_MARK", &mark);
    let left = fs::read_dir(state.path().join("turnkeep")).unwrap().count();
    assert_eq!(left, 0);
}

#[test]
fn a_server_that_runs_already_is_connected_to_and_what_is_wrong_with_it_is_told() {
    use std::{
        io::{Read as _, Write as _},
        net::TcpListener,
    };
    let state = tempfile::tempdir().unwrap();
    let chat = |url: &str, more: &[&str]| {
        let mut command = tool(&state);
        command.args(["chat", "hi", "--connect", url]).args(more);
        run(&mut command)
    };
    let missing = format!("unix://{}/no.sock", state.path().display());
    chat(&missing, &[])
        .exits(3)
        .complains(&["no.sock does not exist", "--listen unix://"]);
    chat("http://127.0.0.1:1", &[])
        .exits(2)
        .complains(&["http:// is not served", "ws://127.0.0.1:4500"]);
    chat("ws://codex.example:1", &["--token-file", "t"])
        .exits(2)
        .complains(&["anybody on the way reads it", "--token-over-plain-tcp"]);
    chat("ws://me:secret@127.0.0.1:1", &[])
        .exits(2)
        .complains(&["--token-file FILE"]);
    // One that wants a token: a person is told which file holds it, and what we sent is not shown.
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("ws://{}", listener.local_addr().unwrap());
    let token = state.path().join("token");
    fs::write(&token, "wrong-token\n").unwrap();
    let server = std::thread::spawn(move || {
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
    let denied = chat(&url, &["--token-file", token.to_str().unwrap()])
        .exits(3)
        .complains(&["denied us", "--token-file FILE"]);
    let request = server.join().unwrap();
    assert!(request.contains("Bearer wrong-token\r\n"), "{request}");
    assert!(!format!("{denied:?}").contains("wrong-token"), "{denied:?}");
    // Nothing is left of runs that came to nothing.
    assert!(
        !state.path().join("turnkeep").exists() || {
            let left = fs::read_dir(state.path().join("turnkeep")).unwrap();
            left.flatten().all(|entry| entry.path().is_file())
        }
    );
}
