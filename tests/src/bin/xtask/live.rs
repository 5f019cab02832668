//! The live suite.

use turnkeep_tests::codex::launcher_variable;

use crate::{
    codex,
    run::{self, Counts, Result},
};

// The test targets that need the real codex.
const TARGETS: [&str; 2] = ["live", "model_stub"];

#[derive(Debug, Default, clap::Args)]
pub(crate) struct Args {
    /// Also runs what takes long: tests marked as ignored, and more rounds where a test asks for `full_run()`.
    #[arg(long)]
    full: bool,
    /// Names of tests, and other arguments of the test programs.
    #[arg(last = true)]
    filter: Vec<String>,
}

pub(crate) fn run(args: &Args) -> Result {
    let (counts, outcome) = tests(args);
    println!("live: {counts}, {} ignored", counts.ignored);
    outcome
}

pub(crate) fn tests(args: &Args) -> (Counts, Result) {
    let launchers = match codex::launchers() {
        Ok(launchers) => launchers,
        Err(error) => return (Counts::default(), Err(error)),
    };
    let mut command = run::cargo(&["test", "--package", "turnkeep-tests", "--features", "live"]);
    for target in TARGETS {
        command.args(["--test", target]);
    }
    command.args(["--no-fail-fast", "--"]);
    if args.full {
        command
            .arg("--include-ignored")
            .env("TURNKEEP_LIVE_FULL", "1");
    }
    command.args(&args.filter);
    for (version, launcher) in launchers {
        command.env(launcher_variable(version), launcher);
    }
    match run::run_tests(&mut command) {
        // Green because nothing ran would be the worst answer of all.
        (counts, Ok(())) if counts.passed == 0 => (counts, Err("no live test ran".to_owned())),
        other => other,
    }
}
