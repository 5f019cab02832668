//! The live suite: on both runtimes, over every transport.

use std::{collections::BTreeMap, fmt, process::Command, time::Instant};

use turnkeep_tests::{
    chosen::{self, Chosen, Transport},
    codex::{VERSIONS, launcher_variable},
};

use crate::{
    codex,
    run::{self, Counts, Result},
};

// The test targets that need the real codex.
const TARGETS: [&str; 2] = ["live", "model_stub"];

/// What is run everywhere, besides the tests of sockets where there is one. The first combination runs all.
const SMOKE: [&str; 10] = [
    "plain_turn",
    "two_conversations_keep_apart",
    "structured_output_is_parsed",
    "three_kinds_of_tools",
    "accepted_command_runs",
    "interrupt_stops_the_text",
    "steer_joins_the_running_turn",
    "result_after_the_turn_makes_one_round",
    "text_is_interrupted_and_the_next_turn_works",
    "killed_launcher_loses_the_turn_without_reconnection",
];

/// What takes long and is run nowhere but with all the rest.
const LONG: [&str; 4] = [
    "server_killed",
    "we_are_killed",
    "both_are_killed",
    "connection_cut",
];

/// Every runtime over every transport, the one that runs all first.
const COMBINATIONS: [Combination; 6] = [
    Combination("tokio", "stdio"),
    Combination("async-std", "stdio"),
    Combination("tokio", "ws"),
    Combination("tokio", "unix"),
    Combination("async-std", "ws"),
    Combination("async-std", "unix"),
];

/// A runtime and a transport.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Combination(&'static str, &'static str);

#[derive(Debug, Default, clap::Args)]
pub(crate) struct Args {
    /// Runs all tests on both runtimes over all transports; on tokio over stdio also what takes long: tests marked as
    /// ignored, and more rounds where a test asks for `full_run()`.
    #[arg(long)]
    full: bool,
    /// Runs all tests on this runtime, and on no other.
    #[arg(long, value_parser = Chosen::NAMES)]
    runtime: Option<String>,
    /// Runs all tests over this transport, and over no other.
    #[arg(long, value_parser = Transport::NAMES)]
    transport: Option<String>,
    /// Names of tests, and other arguments of the test programs. Without the options above: on tokio over stdio alone.
    #[arg(last = true)]
    filter: Vec<String>,
}

impl Args {
    /// What is run, and whether all tests are.
    fn combinations(&self) -> Vec<(Combination, bool)> {
        let is_narrowed = self.runtime.is_some() || self.transport.is_some();
        let all = self.full || is_narrowed;
        let is = |wanted: &Option<String>, it| wanted.as_deref().is_none_or(|wanted| wanted == it);
        let chosen = COMBINATIONS.into_iter().filter(|combination| {
            is(&self.runtime, combination.0) && is(&self.transport, combination.1)
        });
        let first = COMBINATIONS[0];
        chosen
            .map(|combination| (combination, all || combination == first))
            .filter(|(_, all)| *all || self.filter.is_empty())
            .collect()
    }
}

pub(crate) fn run(args: &Args) -> Result {
    let (counts, outcome) = tests(args);
    println!("live: {counts}, {} ignored", counts.ignored);
    outcome
}

pub(crate) fn tests(args: &Args) -> (Counts, Result) {
    let mut rows = Vec::new();
    let outcome = every_combination(args, &mut rows);
    let counts: Counts = rows.iter().map(|row| row.counts).sum();
    println!("\nlive: {}", Row::HEAD);
    rows.iter().for_each(|row| println!("live: {row}"));
    match outcome {
        // Green because nothing ran would be the worst answer of all.
        Ok(()) if counts.passed == 0 => (counts, Err("no live test ran".to_owned())),
        outcome => (counts, outcome),
    }
}

fn every_combination(args: &Args, rows: &mut Vec<Row>) -> Result {
    let launchers = codex::launchers()?;
    let cargo = || {
        let mut command =
            run::cargo(&["test", "--package", "turnkeep-tests", "--features", "live"]);
        for target in TARGETS {
            command.args(["--test", target]);
        }
        for (version, launcher) in &launchers {
            command.env(launcher_variable(version), launcher);
        }
        command.arg("--no-fail-fast");
        command
    };
    let names = listed(cargo().arg("--").args(&args.filter))?;
    let own = |part| names.iter().filter(|name| part_of(name) == part).count() / VERSIONS.len();
    println!(
        "live: {} tests a version are stdio's own, {} the sockets'",
        own(Part::Stdio),
        own(Part::Sockets)
    );
    let mut failed = Vec::new();
    for (combination, all) in args.combinations() {
        let mut command = cargo();
        let start = Instant::now();
        let plan = Plan::new(&names, combination, all);
        println!("live: {combination}, {} tests", plan.names.len());
        command
            .env(chosen::RUNTIME, combination.0)
            .env(chosen::TRANSPORT, combination.1)
            .args(["--", "--exact"]);
        if args.full && combination == COMBINATIONS[0] {
            command
                .arg("--include-ignored")
                .env("TURNKEEP_LIVE_FULL", "1");
        }
        command.args(&plan.names).args(&args.filter);
        let (found, outcome) = plan.run(&mut command);
        let took = start.elapsed().as_secs_f64();
        println!("live: {combination} took {took:.1} s");
        rows.extend(found);
        failed.extend(outcome.err().map(|error| format!("{combination}: {error}")));
    }
    match failed.is_empty() {
        true => Ok(()),
        false => Err(failed.join("; ")),
    }
}

/// The names of all tests.
fn listed(command: &mut Command) -> Result<Vec<String>> {
    let mut names = Vec::new();
    let (_, outcome) = run::run_tests_seen(
        command.args(["--list", "--format", "terse"]),
        &mut |line| match line.strip_suffix(": test") {
            Some(name) => {
                names.push(name.to_owned());
                false
            }
            None => true,
        },
    );
    outcome.map(|()| names)
}

/// What a test is about, by the name of its module.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    /// A client, however it reaches the server.
    Any,
    /// A child of the client.
    Stdio,
    /// A socket.
    Sockets,
    /// No client at all.
    Rig,
}

fn part_of(name: &str) -> Part {
    match (version_of(name), name.split("::").nth(1)) {
        (None, _) => Part::Rig,
        (_, Some("stdio")) => Part::Stdio,
        (_, Some("sockets")) => Part::Sockets,
        _ => Part::Any,
    }
}

fn version_of(name: &str) -> Option<&'static str> {
    let module = name.split("::").next()?;
    VERSIONS
        .into_iter()
        .find(|version| format!("v{}", version.replace(['.', '-'], "_")) == module)
}

/// The tests of one combination.
struct Plan {
    names: Vec<String>,
    rows: BTreeMap<Option<&'static str>, Row>,
}

impl Plan {
    fn new(listed: &[String], combination: Combination, all: bool) -> Self {
        let mut plan = Plan {
            names: Vec::new(),
            rows: BTreeMap::new(),
        };
        for name in listed {
            let applies = match part_of(name) {
                Part::Any => true,
                Part::Stdio => combination.1 == "stdio",
                Part::Sockets => combination.1 != "stdio",
                // It is the same everywhere.
                Part::Rig => combination == COMBINATIONS[0],
            };
            let last = name.split("::").last().unwrap_or(name);
            let is_sockets = part_of(name) == Part::Sockets && !LONG.contains(&last);
            let is_chosen = all || SMOKE.contains(&last) || is_sockets;
            let version = version_of(name);
            let row = plan.rows.entry(version).or_insert(Row {
                combination,
                version,
                counts: Counts::default(),
                not_applicable: 0,
                not_chosen: 0,
            });
            match (applies, is_chosen) {
                (false, _) => row.not_applicable += 1,
                (true, false) => row.not_chosen += 1,
                (true, true) => plan.names.push(name.clone()),
            }
        }
        plan
    }

    fn run(mut self, command: &mut Command) -> (Vec<Row>, Result) {
        if self.names.is_empty() {
            return (self.rows.into_values().collect(), Ok(()));
        }
        let rows = &mut self.rows;
        let (_, mut outcome) = run::run_tests_seen(command, &mut |line| {
            if let Some((name, counts)) = result_in(line) {
                if let Some(row) = rows.get_mut(&version_of(name)) {
                    row.counts = [row.counts, counts].into_iter().sum();
                }
            }
            true
        });
        let rows: Vec<Row> = self.rows.into_values().collect();
        let ran: u64 = rows.iter().map(|row| row.counts.all()).sum();
        if outcome.is_ok() && ran != self.names.len() as u64 {
            outcome = Err(format!("{ran} of {} tests ran", self.names.len()));
        }
        (rows, outcome)
    }
}

/// Reads a line such as `test v0_171_0::plain_turn ... ok`.
fn result_in(line: &str) -> Option<(&str, Counts)> {
    let (name, result) = line.strip_prefix("test ")?.split_once(" ... ")?;
    let mut counts = Counts::default();
    match result {
        "ok" => counts.passed = 1,
        "FAILED" => counts.failed = 1,
        result if result.starts_with("ignored") => counts.ignored = 1,
        _ => return None,
    }
    Some((name, counts))
}

/// A line of the table.
#[derive(Debug)]
struct Row {
    combination: Combination,
    version: Option<&'static str>,
    counts: Counts,
    not_applicable: u64,
    not_chosen: u64,
}

impl Row {
    const HEAD: &str =
        "runtime    transport  version  passed  failed  ignored  not applicable  not chosen";
}

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{:<11}{:<11}{:<9}{:>6}{:>8}{:>9}{:>16}{:>12}",
            self.combination.0,
            self.combination.1,
            // What is about no version, or about both.
            self.version.unwrap_or("-"),
            self.counts.passed,
            self.counts.failed,
            self.counts.ignored,
            self.not_applicable,
            self.not_chosen
        )
    }
}

impl fmt::Display for Combination {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} over {}", self.0, self.1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names() -> Vec<String> {
        let names = [
            "v0_163_0::plain_turn",
            "v0_163_0::detached_turn_goes_on",
            "v0_163_0::stdio::server_killed",
            "v0_163_0::sockets::token",
            "v0_171_0::plain_turn",
            "crash_check::any",
        ];
        names.map(str::to_owned).to_vec()
    }

    fn planned(combination: Combination, all: bool) -> (Vec<String>, Vec<[u64; 2]>) {
        let plan = Plan::new(&names(), combination, all);
        let left = plan.rows.values();
        let left = left.map(|row| [row.not_applicable, row.not_chosen]);
        (plan.names.clone(), left.collect())
    }

    #[test]
    fn every_test_is_run_or_counted() {
        let (ran, left) = planned(COMBINATIONS[0], true);
        assert_eq!(ran.len(), 5);
        assert_eq!(left, [[0, 0], [1, 0], [0, 0]]);

        let (ran, left) = planned(Combination("tokio", "ws"), true);
        assert!(!ran.contains(&"v0_163_0::stdio::server_killed".to_owned()));
        assert_eq!((ran.len(), left), (4, vec![[1, 0], [1, 0], [0, 0]]));

        let (ran, left) = planned(Combination("async-std", "unix"), false);
        let smoke = [
            "v0_163_0::plain_turn",
            "v0_163_0::sockets::token",
            "v0_171_0::plain_turn",
        ];
        assert_eq!(ran, smoke);
        assert_eq!(left, [[1, 0], [1, 1], [0, 0]]);
    }

    #[test]
    fn combinations_are_all_there_are() {
        for runtime in Chosen::NAMES {
            for transport in Transport::NAMES {
                assert!(COMBINATIONS.contains(&Combination(runtime, transport)));
            }
        }
    }

    #[test]
    fn options_choose_combinations() {
        let plain = Args::default().combinations();
        assert_eq!(
            plain.iter().map(|(_, all)| *all).filter(|all| *all).count(),
            1
        );
        assert_eq!(plain.len(), 6);
        let full = Args {
            full: true,
            ..Args::default()
        };
        assert!(full.combinations().iter().all(|(_, all)| *all));
        let filter = Args {
            filter: vec!["plain".into()],
            ..Args::default()
        };
        assert_eq!(filter.combinations(), [(COMBINATIONS[0], true)]);
        let unix = Args {
            transport: Some("unix".into()),
            ..Args::default()
        };
        let wanted = [
            Combination("tokio", "unix"),
            Combination("async-std", "unix"),
        ];
        assert_eq!(
            unix.combinations(),
            wanted.map(|combination| (combination, true))
        );
    }

    #[test]
    fn results_are_read_by_test() {
        let (name, counts) = result_in("test v0_171_0::plain_turn ... ok").unwrap();
        assert_eq!(
            (name, counts.passed, counts.failed),
            ("v0_171_0::plain_turn", 1, 0)
        );
        let (_, counts) = result_in("test a ... FAILED").unwrap();
        assert_eq!((counts.passed, counts.failed), (0, 1));
        let (_, counts) = result_in("test a ... ignored, it takes long").unwrap();
        assert_eq!(counts.ignored, 1);
        assert!(result_in("test a has been running for over 60 seconds").is_none());
        assert!(result_in("test result: ok. 3 passed; 0 failed").is_none());
    }
}
