//! The proof that nothing in the core's tree links std, and the control that shows the proof can fail.

use std::{fs, process::Command};

use turnkeep_tests::codex::workspace_dir;

use crate::run::{self, Result, target_dir};

pub(crate) fn run() -> Result {
    // The versions of the workspace, which are there already, so that the build needs no network.
    let lock = workspace_dir().join("Cargo.lock");
    fs::copy(lock, workspace_dir().join("tests/no-std/Cargo.lock"))
        .map_err(|error| format!("Cargo.lock cannot be copied to tests/no-std: {error}"))?;
    run::run(&mut build()?)?;
    let (built, said) = run::output(build()?.args(["--features", "control"]))?;
    match (built, said.contains("E0152")) {
        (false, true) => {
            println!(
                "turnkeep-core builds without std, and with serde_json/std it does not (E0152)"
            );
            Ok(())
        }
        (true, _) => Err("the control built: serde_json/std was not noticed".to_owned()),
        (false, false) => Err(format!(
            "the control failed for another reason than std:\n{said}"
        )),
    }
}

fn build() -> Result<Command> {
    let mut command = run::cargo(&["build", "--manifest-path", "tests/no-std/Cargo.toml"]);
    command
        .arg("--target-dir")
        .arg(target_dir()?.join("no-std"));
    Ok(command)
}
