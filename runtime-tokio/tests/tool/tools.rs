//! Tools that are commands of the user's own.

use std::{fs, path::PathBuf};

use tempfile::TempDir;

use crate::support::{fake, run, tool};

fn file(state: &TempDir, text: &str) -> PathBuf {
    let path = state.path().join("tools.toml");
    fs::write(&path, text).unwrap();
    path
}

const TOOLS: &str = r#"
[[tool]]
name = "greet"
description = "Greets."
command = ["sh", "-c", "read arguments; echo \"got $arguments for $TURNKEEP_TOOL\""]

[[tool]]
name = "broken"
description = "Fails."
command = ["sh", "-c", "echo half; echo no disk >&2; exit 3"]

[[tool]]
name = "missing"
description = "Is not there."
command = "/no/such/program"

[[tool]]
name = "slow"
description = "Takes long."
command = "sleep 300"
time_limit = 1

[[tool]]
name = "flood"
description = "Says much."
command = ["sh", "-c", "yes | head -c 1000000; sleep 300 &"]

[[tool]]
name = "later"
description = "Comes later."
command = ["sh", "-c", "sleep 1; echo it was $(cat)"]
delivery = "deferred"
"#;

#[test]
fn a_command_gets_the_arguments_and_what_it_writes_is_the_result() {
    let state = tempfile::tempdir().unwrap();
    let tools = file(&state, TOOLS);
    let call = |message: &str| {
        let mut command = tool(&state);
        command.args(["chat", "--server", &fake(), message, "--tools"]);
        run(command.arg(&tools)).exits(0)
    };
    call(r#"call: greet {"who": "you"}"#).says(&[r#"got {"who":"you"} for greet"#]);
    let broken = call("call: broken {}").says(&["exit status: 3", "no disk"]);
    assert!(!broken.stdout.contains("half"), "{broken:?}");
    broken.complains(&["✗ broken"]);
    call("call: missing {}").says(&["/no/such/program could not be started"]);
    call("call: slow {}").complains(&["slow is stopped: its time limit is over"]);
    // What it leaves running ends with it, and holds up nothing.
    call("call: flood {}").says(&["[cut here: only 262144 bytes are kept]"]);
}

#[test]
fn a_deferred_result_is_waited_for_and_answered() {
    let state = tempfile::tempdir().unwrap();
    let tools = file(&state, TOOLS);
    let mut command = tool(&state);
    command.args([
        "chat",
        "--server",
        &fake(),
        r#"call: later {"a":1}"#,
        "--tools",
    ]);
    let ran = run(command.arg(&tools)).exits(0);
    assert!(ran.stdout.contains(r#"it was {"a":1}"#), "{ran:?}");
    assert!(
        ran.stdout.contains("answer 2 of our conversation"),
        "{ran:?}"
    );
    ran.complains(&["✓ later"]);
}

#[test]
fn a_bad_file_is_told_with_its_line_and_nothing_is_started() {
    let state = tempfile::tempdir().unwrap();
    let tools = file(
        &state,
        "[[tool]]\nname = \"a\"\ndescription = \"\"\ncomand = \"x\"\n",
    );
    let mut command = tool(&state);
    command.args(["chat", "--server", "/no/such/server", "hi", "--tools"]);
    run(command.arg(&tools)).exits(2).complains(&[
        "tools.toml: line 4: unknown field `comand`",
        "turnkeep help chat",
    ]);
    let mut command = tool(&state);
    command.args(["chat", "hi", "--tools", "/no/such/file"]);
    run(&mut command)
        .exits(2)
        .complains(&["--tools /no/such/file: No such file"]);
}
