use std::{
    fs,
    io::Read as _,
    path::Path,
    process::{Command, Stdio},
};

use serde_json::Value;
use tempfile::TempDir;

use crate::support::{Ran, demo, run, tool};

/// What stands before a line's checksum.
const SEAL: &str = r#","crc":""#;

fn replay(state: &TempDir, recording: &[u8]) -> Ran {
    let path = state.path().join("altered.trace");
    fs::write(&path, recording).unwrap();
    run(tool(state).arg("replay").arg(path))
}

fn recording(state: &TempDir) -> Vec<u8> {
    fs::read(demo(state).join("session.trace")).unwrap()
}

/// Puts the checksum right.
fn sealed(line: &str) -> String {
    let (body, _) = line.rsplit_once(SEAL).unwrap();
    let crc = crc32fast::hash(body.as_bytes());
    format!("{body}{SEAL}{crc:08x}\"}}")
}

fn json(ran: &Ran) -> Vec<Value> {
    let lines = ran.stdout.lines();
    lines
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

/// The file of a journal that has one.
const FIRST: &str = "journal-00000000000000000001.jsonl";

#[test]
fn a_replay_is_identical() {
    let state = tempfile::tempdir().unwrap();
    let bytes = recording(&state);
    let steps = bytes.iter().filter(|b| **b == b'\n').count() - 1;
    replay(&state, &bytes)
        .exits(0)
        .says(&["identical:", &format!("{steps} steps")]);
    let path = state.path().join("altered.trace");
    let ran = run(tool(&state).arg("replay").arg("--json").arg(&path)).exits(0);
    assert_eq!(json(&ran)[0]["result"], "identical");
    assert_eq!(json(&ran)[0]["steps"], steps);
    run(tool(&state).arg("replay").arg(&path).args(["--until", "5"]))
        .exits(0)
        .says(&["5 steps", "not looked at"]);
}

#[test]
fn a_flipped_byte_anywhere_is_damage() {
    let state = tempfile::tempdir().unwrap();
    let bytes = recording(&state);
    let mut starts = vec![0];
    starts.extend((1..bytes.len()).filter(|at| bytes[at - 1] == b'\n'));
    let last = starts.len() - 1;
    for (line, start) in starts.iter().enumerate() {
        if line > 1 && line < last && line % 11 != 0 {
            continue;
        }
        let end = starts.get(line + 1).copied().unwrap_or(bytes.len()) - 1;
        let inside = [0, 1, 2, 19, 30, (end - start) / 2, end - start - 17];
        let seal = [end - 10, end - 5, end - 1, end];
        let places = inside.into_iter().map(|at| start + at).chain(seal);
        for at in places {
            for flip in [0x01, 0x20, 0x80] {
                let mut damaged = bytes.clone();
                damaged[at] ^= flip;
                let ran = replay(&state, &damaged);
                assert_eq!(ran.code, Some(2), "line {}, byte {at}: {ran:#?}", line + 1);
                assert!(ran.stderr.contains("damaged"), "byte {at}: {ran:#?}");
            }
        }
    }
}

#[test]
fn a_cut_recording_is_damaged_and_its_whole_lines_are_compared() {
    let state = tempfile::tempdir().unwrap();
    let bytes = recording(&state);
    let steps = bytes.iter().filter(|b| **b == b'\n').count() - 1;
    let same = format!("the {} steps before it are identical", steps - 1);
    replay(&state, &bytes[..bytes.len() - 20])
        .exits(2)
        .complains(&["the recording ends in the middle of it", &same]);
    replay(&state, &bytes[..40])
        .exits(2)
        .complains(&["damaged", "nothing could be compared"]);
}

#[test]
fn a_changed_effect_is_shown_with_both_sides() {
    let state = tempfile::tempdir().unwrap();
    let text = String::from_utf8(recording(&state)).unwrap();
    let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
    let at = lines
        .iter()
        .position(|line| line.contains(r#""method":"turn/start""#))
        .unwrap();
    lines[at] = sealed(&lines[at].replace(r#""method":"turn/start""#, r#""method":"turn/halt""#));
    let altered = lines.join("\n") + "\n";
    replay(&state, altered.as_bytes()).exits(1).says(&[
        &format!("different at step {at} (line {}", at + 1),
        "input: durable up to batch",
        "- recorded",
        "turn/halt",
        "+ replayed",
        "turn/start",
    ]);
    let path = state.path().join("altered.trace");
    let ran = run(tool(&state).arg("replay").arg("--json").arg(&path)).exits(1);
    let found = &json(&ran)[0];
    assert_eq!(found["result"], "different");
    assert_eq!(found["step"], at);
    assert!(found["recorded"].to_string().contains("turn/halt"));
    assert!(found["replayed"].to_string().contains("turn/start"));
    // What comes before it is the same.
    let before = (at - 1).to_string();
    run(tool(&state)
        .arg("replay")
        .arg(&path)
        .args(["--until", &before]))
    .exits(0);
}

#[test]
fn an_effect_that_is_missing_and_another_deadline_are_differences() {
    let state = tempfile::tempdir().unwrap();
    let text = String::from_utf8(recording(&state)).unwrap();
    let head = text.find(r#""due":"#).unwrap();
    let line = text.lines().next().unwrap();
    let start = line.find(r#""fx":["#).unwrap() + 6;
    let emptied = format!(
        "{}{}",
        &line[..start],
        &line[line.rfind(r#"],"due""#).unwrap()..]
    );
    let late = format!(r#"{}"due":null{SEAL}0"}}"#, &line[..head]);
    for (altered, says) in [(emptied, "(nothing)"), (late, "deadline")] {
        let altered = text.replacen(line, &sealed(&altered), 1);
        replay(&state, altered.as_bytes())
            .exits(1)
            .says(&["different at step 0", says]);
    }
}

#[test]
fn what_is_no_recording_or_of_other_rules_is_told_plainly() {
    let state = tempfile::tempdir().unwrap();
    let text = String::from_utf8(recording(&state)).unwrap();
    for foreign in [&b"hello\n"[..], b"", b"{\"v\":1}\n", b"\0\xff"] {
        replay(&state, foreign)
            .exits(2)
            .complains(&["is not a turnkeep recording"]);
    }
    let line = text.lines().next().unwrap();
    let rules = format!(r#""rules":{}"#, turnkeep_tokio::core::codec::trace::RULES);
    let newer = line.replacen(&rules, r#""rules":999"#, 1);
    let newer = text.replacen(line, &sealed(&newer), 1);
    replay(&state, newer.as_bytes())
        .exits(2)
        .complains(&["rules 999", "replay it with the turnkeep that made it"]);
}

#[test]
fn a_journal_is_shown_for_people_and_for_programs() {
    let state = tempfile::tempdir().unwrap();
    let directory = demo(&state);
    let by_directory = run(tool(&state).arg("show").arg(&directory))
        .exits(0)
        .says(&[
            "start",
            "\"demo\" opened, tools: weather",
            "makes call 1, weather {\"city\":\"Oslo\"}",
            "completed",
        ]);
    let file = directory.join(FIRST);
    let by_file = run(tool(&state).arg("show").arg(&file)).exits(0);
    assert_eq!(by_directory.stdout, by_file.stdout);
    let ran = run(tool(&state).arg("show").arg("--json").arg(&directory)).exits(0);
    let records = json(&ran);
    // People get a line for the day, too, and an empty one before another life.
    assert_eq!(records.len(), by_file.stdout.lines().count() - 2);
    assert!(by_file.stdout.contains("\n\n"));
    assert!(records[0]["record"]["start"].is_object(), "{}", records[0]);

    let bytes = fs::read(&file).unwrap();
    let torn = state.path().join("torn");
    fs::write(&torn, &bytes[..bytes.len() - 3]).unwrap();
    run(tool(&state).arg("show").arg(&torn))
        .exits(0)
        .says(&["torn tail"]);
    let ran = run(tool(&state).arg("show").arg("--json").arg(&torn)).exits(0);
    assert!(json(&ran).last().unwrap()["torn"].is_u64());

    let second = bytes.iter().position(|b| *b == b'\n').unwrap() + 1;
    let mut damaged = bytes.clone();
    damaged[second + 60] ^= 1;
    fs::write(&torn, &damaged).unwrap();
    run(tool(&state).arg("show").arg(&torn))
        .exits(2)
        .says(&["start"])
        .complains(&[&format!("offset {second}"), "1 batches before it"]);
}

#[test]
fn a_journal_of_several_files_is_shown_as_one() {
    let state = tempfile::tempdir().unwrap();
    let directory = demo(&state);
    let whole = run(tool(&state).arg("show").arg(&directory)).exits(0);
    let bytes = fs::read(directory.join(FIRST)).unwrap();
    let ends = bytes.iter().enumerate().filter(|(_, b)| **b == b'\n');
    let cut = ends.map(|(at, _)| at + 1).nth(4).unwrap();
    let (first, second) = bytes.split_at(cut);
    let next = directory.join("journal-00000000000000000006.jsonl");
    fs::write(directory.join(FIRST), first).unwrap();
    fs::write(&next, second).unwrap();
    let both = run(tool(&state).arg("show").arg(&directory)).exits(0);
    assert_eq!(both.stdout, whole.stdout);
    // One of them alone.
    let lines = run(tool(&state).arg("show").arg(&next)).exits(0).stdout;
    assert!(whole.stdout.contains(lines.split_once('\n').unwrap().1));

    let mut damaged = second.to_vec();
    damaged[60] ^= 1;
    fs::write(&next, &damaged).unwrap();
    run(tool(&state).arg("show").arg(&directory))
        .exits(2)
        .complains(&[
            "journal-00000000000000000006.jsonl is damaged: offset 0",
            "the 5 batches",
        ]);
    fs::write(&next, second).unwrap();
    fs::write(directory.join(FIRST), &first[..cut - 9]).unwrap();
    run(tool(&state).arg("show").arg(&directory))
        .exits(2)
        .complains(&[
            "journal-00000000000000000001.jsonl is damaged",
            "the line has no end",
        ]);
}

#[test]
fn a_recording_is_shown_for_people_and_for_programs() {
    let state = tempfile::tempdir().unwrap();
    let bytes = recording(&state);
    let steps = bytes.iter().filter(|b| **b == b'\n').count() - 1;
    let path = state.path().join("demo/session.trace");
    run(tool(&state).arg("show").arg(&path)).exits(0).says(&[
        "recorded 20",
        "opened connection 1: process",
        "send turn/start",
        "tell turn 3: Ended interrupted",
        "tell turn 4: Ended completed",
        ": detached",
    ]);
    let ran = run(tool(&state).arg("show").arg("--json").arg(&path)).exits(0);
    let lines = json(&ran);
    assert_eq!(lines.len(), steps + 1);
    assert_eq!(lines[0]["made_by"], turnkeep_tokio::core::VERSION);
    assert_eq!(lines[steps]["step"], steps);

    let mut damaged = bytes.clone();
    let at = damaged.len() - 100;
    damaged[at] ^= 1;
    fs::write(&path, &damaged).unwrap();
    run(tool(&state).arg("show").arg(&path))
        .exits(2)
        .says(&["opened connection 1"])
        .complains(&["damaged", &format!("the {} steps before it", steps - 1)]);
    fs::write(&path, "hello\n").unwrap();
    run(tool(&state).arg("show").arg(&path))
        .exits(2)
        .complains(&["neither a journal nor a recording"]);
}

#[test]
fn a_reader_that_has_seen_enough_is_no_panic() {
    let state = tempfile::tempdir().unwrap();
    let directory = demo(&state);
    let pipes = |command: &mut Command| -> Ran {
        let child = command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = child.spawn().unwrap();
        let mut stdout = child.stdout.take().unwrap();
        let _ = stdout.read(&mut [0; 10]).unwrap();
        drop(stdout);
        child.wait_with_output().unwrap().into()
    };
    // Far more than a pipe holds.
    let many: Vec<u8> = grown(&directory.join("session.trace"));
    let long = state.path().join("long.trace");
    fs::write(&long, many).unwrap();
    let ran = pipes(tool(&state).args(["show", "--json"]).arg(&long)).exits(0);
    assert_eq!(ran.stderr, "");
}

/// A recording whose last step stands there again and again.
fn grown(path: &Path) -> Vec<u8> {
    let bytes = fs::read(path).unwrap();
    let last = bytes[..bytes.len() - 1]
        .iter()
        .rposition(|b| *b == b'\n')
        .unwrap()
        + 1;
    let mut out = bytes.clone();
    for _ in 0..5_000 {
        out.extend_from_slice(&bytes[last..]);
    }
    out
}
