//! The fuzz targets, by cargo-fuzz from crates.io: built, run, and their corpora made.

mod seeds;

use std::{
    fmt, fs,
    path::{Path, PathBuf},
    process::Command,
};

use turnkeep_fuzz::{TARGETS, corpus_of};
use turnkeep_tests::codex::workspace_dir;

use crate::run::{self, Result, target_dir};

const VERSION: &str = "0.13.2";

/// How many cases are kept of the seeds and of what was found, and how long they may be together.
const KEPT: usize = 40;
const KEPT_BYTES: usize = 100_000;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The targets, by name; all where none is named.
    targets: Vec<String>,
    /// How long each runs.
    #[arg(long, default_value_t = 60)]
    seconds: u64,
    /// Only builds them, without the address sanitizer and without optimizing: what CI does.
    #[arg(long)]
    build: bool,
    /// Makes their corpora anew, of the recordings, the sessions of `seeds.rs` and what was found under target/fuzz.
    #[arg(long)]
    seed: bool,
}

pub(crate) fn run(args: &Args) -> Result {
    let names = args.targets.iter();
    for name in names.clone() {
        if !TARGETS.iter().any(|target| target.name == *name) {
            return Err(format!("no target {name:?}"));
        }
    }
    if args.build {
        return build_all();
    }
    let tool = installed()?;
    let wanted = TARGETS.iter().map(|target| target.name);
    let wanted = wanted.filter(|name| names.len() == 0 || names.clone().any(|n| n == name));
    let mut failed = Vec::new();
    let mut lines = Vec::new();
    for name in wanted {
        build(&tool, &[], Some(name))?;
        if args.seed {
            make_corpus(name)?;
            continue;
        }
        let (ran, figures) = fuzz(name, args.seconds)?;
        lines.push(format!("{name:<18}{figures}"));
        println!("{}", lines.last().map_or("", String::as_str));
        if !ran {
            failed.push(name);
        }
    }
    if lines.len() > 1 {
        println!("\nSummary");
        lines.iter().for_each(|line| println!("  {line}"));
    }
    match failed[..] {
        [] => Ok(()),
        _ => Err(format!(
            "found something, see target/fuzz/found: {}",
            failed.join(", ")
        )),
    }
}

/// Builds all targets as quickly as can be: that they build is all that is to be shown.
pub(crate) fn build_all() -> Result {
    build(&installed()?, &["--dev", "--sanitizer", "none"], None)
}

fn installed() -> Result<PathBuf> {
    let root = target_dir()?.join("tools");
    let tool = root.join("bin/cargo-fuzz");
    let present = run::output(Command::new(&tool).args(["fuzz", "--version"]));
    if !present.is_ok_and(|(_, said)| said.trim() == format!("cargo-fuzz {VERSION}")) {
        eprintln!("xtask: installing cargo-fuzz {VERSION} (a minute, once)");
        let mut install = run::cargo(&["install", "cargo-fuzz", "--version", VERSION, "--locked"]);
        run::run(install.arg("--root").arg(&root).arg("--quiet"))?;
    }
    Ok(tool)
}

/// Where everything of the fuzzer is.
fn directory() -> Result<PathBuf> {
    Ok(target_dir()?.join("fuzz"))
}

fn build(tool: &Path, how: &[&str], target: Option<&str>) -> Result {
    let mut build = Command::new(tool);
    build
        .args(["fuzz", "build"])
        .args(how)
        .arg("--target-dir")
        .arg(directory()?)
        .args(target)
        .current_dir(workspace_dir().join("fuzz"))
        // The fuzzer's instruments are there on every toolchain, and unstable on each.
        .env("RUSTC_BOOTSTRAP", "1")
        .env("CARGO_PROFILE_RELEASE_LTO", "off");
    run::run(&mut build)
}

/// The program of a target.
fn program(name: &str) -> Result<PathBuf> {
    // cargo-fuzz names the target that it builds for.
    let built = fs::read_dir(directory()?).map_err(|e| format!("nothing was built: {e}"))?;
    let mut programs = built
        .flatten()
        .map(|triple| triple.path().join("release").join(name));
    let program = programs.find(|program| program.is_file());
    program.ok_or_else(|| format!("{name} was not built"))
}

/// What a run of the fuzzer told.
#[derive(Debug, Default)]
struct Figures {
    executions: u64,
    seconds: u64,
    coverage: String,
    features: String,
    found: bool,
}

impl Figures {
    /// Reads what libFuzzer wrote: lines such as `#81 NEW cov: 257 ft: 936 corp: 18/1Kb …` and
    /// `Done 5051473 runs in 601 second(s)`.
    fn of(log: &str) -> Self {
        let mut figures = Self::default();
        for line in log.lines() {
            let mut words = line.split_whitespace();
            while let Some(word) = words.next() {
                let number = |word: Option<&str>| word.unwrap_or_default().to_owned();
                match word {
                    "cov:" => figures.coverage = number(words.next()),
                    "ft:" => figures.features = number(words.next()),
                    _ => {}
                }
            }
            let done = line.strip_prefix("Done ");
            if let Some((runs, rest)) = done.and_then(|rest| rest.split_once(" runs in ")) {
                let seconds = rest.split(' ').next().unwrap_or_default();
                figures.executions = runs.parse().unwrap_or_default();
                figures.seconds = seconds.parse().unwrap_or_default();
            }
            figures.found |= line.contains("Test unit written to");
        }
        figures
    }
}

impl fmt::Display for Figures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{:>6} s {:>12} executions {:>8}/s   cov {:>6}   ft {:>6}   {}",
            self.seconds,
            self.executions,
            self.executions / self.seconds.max(1),
            self.coverage,
            self.features,
            if self.found {
                "FOUND SOMETHING"
            } else {
                "clean"
            }
        )
    }
}

/// Runs a target from its corpus on. What it finds new is kept under the target directory.
fn fuzz(name: &str, seconds: u64) -> Result<(bool, Figures)> {
    let directory = directory()?;
    let (grown, found) = (
        directory.join("corpus").join(name),
        directory.join("found").join(name),
    );
    for directory in [&grown, &found] {
        fs::create_dir_all(directory).map_err(|e| format!("{}: {e}", directory.display()))?;
    }
    let log = directory.join(format!("{name}.log"));
    let mut fuzzer = Command::new(program(name)?);
    fuzzer
        .arg(format!("-max_total_time={seconds}"))
        .arg(format!("-artifact_prefix={}/", found.display()))
        .args([&grown, &corpus_of(name)])
        .env("ASAN_OPTIONS", "detect_odr_violation=0");
    eprintln!(
        "xtask: {name} for {seconds} s, its log is {}",
        log.display()
    );
    let (ran, said) = run::output(&mut fuzzer)?;
    fs::write(&log, &said).map_err(|e| format!("{}: {e}", log.display()))?;
    if !ran {
        let mut lines: Vec<&str> = said.lines().rev().take(40).collect();
        lines.reverse();
        eprintln!("{}", lines.join("\n"));
    }
    let figures = Figures::of(&said);
    Ok((ran && !figures.found, figures))
}

/// Makes the corpus of a target: the fewest and smallest cases that reach what the seeds and the cases that were found reach.
fn make_corpus(name: &str) -> Result {
    let failed = |path: &Path, e| format!("{}: {e}", path.display());
    let directory = directory()?;
    let (seeds, merged) = (
        directory.join("seeds").join(name),
        directory.join("merged").join(name),
    );
    for directory in [&seeds, &merged] {
        let _ = fs::remove_dir_all(directory);
        fs::create_dir_all(directory).map_err(|e| failed(directory, e))?;
    }
    for (file, case) in seeds::of(name) {
        let path = seeds.join(file);
        fs::write(&path, case).map_err(|e| failed(&path, e))?;
    }
    let grown = directory.join("corpus").join(name);
    fs::create_dir_all(&grown).map_err(|e| failed(&grown, e))?;
    let mut merge = Command::new(program(name)?);
    merge
        .arg("-merge=1")
        .args([&merged, &seeds, &grown])
        .env("ASAN_OPTIONS", "detect_odr_violation=0");
    let (ran, said) = run::output(&mut merge)?;
    if !ran {
        return Err(format!("the corpus of {name} cannot be merged:\n{said}"));
    }

    let mut found = Vec::new();
    let known = seeds::of(name);
    let files = fs::read_dir(&merged).map_err(|e| failed(&merged, e))?;
    for file in files.flatten() {
        let case = fs::read(file.path()).map_err(|e| failed(&merged, e))?;
        if !known.values().any(|seed| *seed == case) {
            found.push((file.file_name().to_string_lossy().into_owned(), case));
        }
    }
    let corpus = corpus_of(name);
    let _ = fs::remove_dir_all(&corpus);
    fs::create_dir_all(&corpus).map_err(|e| failed(&corpus, e))?;
    let (mut count, mut bytes) = (0, 0);
    for (file, case) in evenly(known).into_iter().chain(evenly(found)) {
        if bytes + case.len() > KEPT_BYTES {
            continue;
        }
        count += 1;
        bytes += case.len();
        let path = corpus.join(file);
        fs::write(&path, case).map_err(|e| failed(&path, e))?;
    }
    println!("{name:<18}{count:>4} cases, {bytes:>7} bytes");
    Ok(())
}

/// So many of the cases as are kept, of all lengths: the shortest alone would go nowhere deep.
fn evenly(cases: impl IntoIterator<Item = (String, Vec<u8>)>) -> Vec<(String, Vec<u8>)> {
    let mut cases: Vec<_> = cases.into_iter().collect();
    cases.sort_by_cached_key(|(name, case)| (case.len(), name.clone()));
    let all = cases.len();
    let kept = (0..KEPT.min(all)).map(|at| at * all / KEPT.min(all));
    kept.map(|at| cases[at].clone()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_read_from_what_libfuzzer_writes() {
        let log = "#2\tINITED cov: 9 ft: 9 corp: 1/1b\n\
                   #81\tNEW    cov: 257 ft: 936 corp: 18/1Kb lim: 4096 exec/s: 0\n\
                   Done 5051473 runs in 601 second(s)\n";
        let figures = Figures::of(log);
        assert_eq!((figures.executions, figures.seconds), (5_051_473, 601));
        assert_eq!((&*figures.coverage, &*figures.features), ("257", "936"));
        assert!(!figures.found);
        let crash = "artifact_prefix='x/'; Test unit written to x/crash-1\n";
        assert!(Figures::of(crash).found);
    }
}
