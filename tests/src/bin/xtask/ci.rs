//! All that must hold before a merge, one step after the other.

use std::{
    fmt, fs,
    process::ExitCode,
    time::{Duration, Instant},
};

use crate::{
    deny, fuzz, live, no_std, protocol,
    run::{self, Counts, Result},
};

/// One thing that must hold.
struct Step {
    name: &'static str,
    /// What a person types to run this step alone.
    rerun: &'static str,
    work: fn() -> (Counts, Result),
    /// The directory under target/ that no later step reads. Machines of CI have little room.
    leaves: Option<&'static str>,
}

struct Done {
    step: &'static Step,
    counts: Counts,
    outcome: Result,
    took: Duration,
    free: Option<Room>,
}

// Cheap and strict before slow: what fails most often fails first.
static STEPS: [Step; 11] = [
    Step {
        name: "fmt",
        rerun: "cargo fmt --all --check",
        work: || uncounted(run::run(&mut run::cargo(&["fmt", "--all", "--check"]))),
        leaves: None,
    },
    Step {
        name: "clippy",
        rerun: "cargo clippy --workspace --all-targets --all-features -- -D warnings",
        work: || {
            let args = [
                "clippy",
                "--workspace",
                "--all-targets",
                "--all-features",
                "--",
            ];
            uncounted(run::run(run::cargo(&args).args(["-D", "warnings"])))
        },
        leaves: None,
    },
    Step {
        // What others build on is whole without any feature too.
        name: "plain",
        rerun: "cargo clippy --lib --no-default-features -p turnkeep-tokio -p turnkeep-async-std -p turnkeep-runtime -p turnkeep-core -- -D warnings",
        work: || {
            let mut clippy = run::cargo(&["clippy", "--lib", "--no-default-features"]);
            clippy.args(["-p", "turnkeep-tokio", "-p", "turnkeep-async-std"]);
            clippy.args(["-p", "turnkeep-runtime", "-p", "turnkeep-core"]);
            uncounted(run::run(clippy.args(["--", "-D", "warnings"])))
        },
        leaves: None,
    },
    Step {
        name: "doc",
        rerun: "RUSTDOCFLAGS='-D warnings' cargo doc --workspace --all-features --no-deps",
        work: || {
            let args = ["doc", "--workspace", "--all-features", "--no-deps"];
            uncounted(run::run(
                run::cargo(&args).env("RUSTDOCFLAGS", "-D warnings"),
            ))
        },
        leaves: Some("doc"),
    },
    Step {
        name: "no-std",
        rerun: "cargo xtask no-std",
        work: || uncounted(no_std::run()),
        leaves: Some("no-std"),
    },
    Step {
        name: "test",
        rerun: "cargo test --workspace --no-fail-fast",
        work: || {
            let mut tests = run::cargo(&["test", "--workspace", "--no-fail-fast"]);
            // A snapshot that differs fails and writes nothing.
            run::run_tests(tests.env("INSTA_UPDATE", "no"))
        },
        leaves: None,
    },
    Step {
        name: "bugs",
        rerun: "cargo test -p turnkeep-tests --features bugs --test sim --test conversations bugs::",
        work: || {
            let args = [
                "test",
                "-p",
                "turnkeep-tests",
                "--features",
                "bugs",
                "--test",
                "sim",
                "--test",
                "conversations",
            ];
            run::run_tests(run::cargo(&args).arg("bugs::"))
        },
        leaves: None,
    },
    Step {
        name: "fuzz",
        rerun: "cargo xtask fuzz --build",
        work: || uncounted(fuzz::build_all()),
        leaves: Some("fuzz"),
    },
    Step {
        name: "deny",
        rerun: "cargo xtask deny",
        work: || uncounted(deny::run()),
        leaves: None,
    },
    Step {
        name: "types",
        rerun: "cargo xtask protocol --check",
        work: || uncounted(protocol::run(&protocol::Args::check())),
        leaves: None,
    },
    Step {
        name: "live",
        rerun: "cargo xtask live",
        work: || live::tests(&live::Args::default()),
        leaves: None,
    },
];

pub(crate) fn run() -> ExitCode {
    let mut done: Vec<Done> = Vec::new();
    if let Some(free) = Room::free() {
        println!("{free} of disk are free; a run that builds everything takes about {NEEDED}");
        if free < NEEDED {
            println!("Warning: it may end for want of room");
        }
    }
    for step in &STEPS {
        println!("\n==> {} ({})", step.name, step.rerun);
        let start = Instant::now();
        let (counts, outcome) = (step.work)();
        let done_now = Done {
            step,
            counts,
            outcome,
            took: start.elapsed(),
            free: Room::free(),
        };
        remove(step.leaves);
        println!("==> {}", line(&done_now));
        let failed = done_now.outcome.is_err();
        done.push(done_now);
        if failed {
            break;
        }
    }
    summary(&done)
}

/// Room on the disk of the target directory, in MB.
#[derive(Clone, Copy, PartialEq, PartialOrd)]
struct Room(u64);

/// What a run takes at most: it left 8.3 GB in a target directory, and removes some on its way.
const NEEDED: Room = Room(12_000);

impl Room {
    /// None where the disk does not tell: that is no reason not to run.
    fn free() -> Option<Self> {
        // The target directory may not be there yet.
        let disk = rustix::fs::statvfs(turnkeep_tests::codex::workspace_dir()).ok()?;
        Some(Self(disk.f_bavail * disk.f_frsize / 1_000_000))
    }
}

impl fmt::Display for Room {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.1} GB", self.0 as f64 / 1000.0)
    }
}

fn remove(leaves: Option<&str>) {
    let Some(name) = leaves else { return };
    let removed = run::target_dir()
        .and_then(|target| fs::remove_dir_all(target.join(name)).map_err(|e| e.to_string()));
    if let Err(error) = removed {
        println!("target/{name} stays: {error}");
    }
}

fn uncounted(outcome: Result) -> (Counts, Result) {
    (Counts::default(), outcome)
}

fn line(done: &Done) -> String {
    let verdict = if done.outcome.is_ok() { "ok" } else { "FAILED" };
    let mut line = format!(
        "{:<8}{verdict:<8}{:>7.1} s",
        done.step.name,
        done.took.as_secs_f64()
    );
    if let Some(free) = done.free {
        line += &format!("   {free} free");
    }
    if done.counts != Counts::default() {
        line += &format!("   {}, {} ignored", done.counts, done.counts.ignored);
    }
    line
}

fn summary(done: &[Done]) -> ExitCode {
    println!("\nSummary");
    done.iter().for_each(|done| println!("  {}", line(done)));
    for step in STEPS.iter().skip(done.len()) {
        println!("  {:<8}not run", step.name);
    }
    let mut counts: Counts = done.iter().map(|done| done.counts).sum();
    let failure = done
        .iter()
        .find_map(|done| Some((done.step, done.outcome.as_ref().err()?)));
    if let Some((step, error)) = failure {
        println!(
            "{} failed: {error}\nRun it again alone: {}",
            step.name, step.rerun
        );
        // A step that fails without a failed test must not leave a last line without a failure.
        counts.failed = counts.failed.max(1);
    }
    println!("{counts}");
    match failure {
        None => ExitCode::SUCCESS,
        Some(_) => ExitCode::FAILURE,
    }
}
