//! The simulator, from the command line.

use std::{
    thread,
    time::{Duration, Instant},
};

use turnkeep_tests::sim::{self, Failure, Plan, Tally};

use crate::run::Result;

/// How often is told how far it is.
const TOLD: Duration = Duration::from_secs(30);

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// How many seeds are played.
    #[arg(long, default_value_t = 2_000)]
    seeds: u64,
    /// The first of them.
    #[arg(long, default_value_t = 0)]
    from: u64,
    /// Plays one seed and prints what happens.
    #[arg(long)]
    seed: Option<u64>,
    /// Changes the plan of every seed: name=value, separated by commas.
    #[arg(long, default_value = "")]
    plan: String,
    /// How many threads play, by seed ranges.
    #[arg(long, default_value_t = 2)]
    threads: u64,
    /// How many failures are printed before it stops.
    #[arg(long, default_value_t = 1)]
    failures: usize,
    /// Does not look for a smaller plan that fails too.
    #[arg(long)]
    no_shrink: bool,
    /// Prints no log of a single seed.
    #[arg(long)]
    quiet: bool,
    /// The machine breaks this rule on purpose (a build with the feature `bugs`).
    #[cfg(feature = "bugs")]
    #[arg(long)]
    bug: Option<String>,
    /// Plays a script of the companion in place of seeds; `all` plays all of them.
    #[arg(long)]
    script: Option<String>,
    /// The script's server is reached over a socket.
    #[arg(long)]
    socket: bool,
    /// The crash of the script and the step that it follows, such as `kill_us@17`; without one every crash after every step.
    #[arg(long)]
    crash: Option<String>,
}

impl Args {
    fn plan_of(&self, seed: u64) -> Result<Plan> {
        let mut plan = Plan::of(seed);
        plan.change(&self.plan)?;
        Ok(plan)
    }
}

pub(crate) fn run(args: &Args) -> Result {
    match (&args.script, args.seed) {
        (Some(name), _) => script(args, name),
        (None, Some(seed)) => one(args, seed),
        (None, None) => many(args),
    }
}

fn one(args: &Args, seed: u64) -> Result {
    let plan = args.plan_of(seed)?;
    println!("plan: {plan}");
    let (outcome, log) = sim::run_logged(seed, &plan, bug(args)?);
    if !args.quiet {
        println!("{log}");
    }
    match outcome {
        Ok(tally) => {
            println!("{tally}");
            Ok(())
        }
        Err(failure) => Err(report(args, &failure)),
    }
}

fn script(args: &Args, name: &str) -> Result {
    let scripts = sim::scripts();
    let wanted: Vec<_> = scripts
        .iter()
        .filter(|script| name == "all" || script.name == name)
        .collect();
    if wanted.is_empty() {
        return Err(format!("no script {name:?}"));
    }
    if let (Some(crash), Some(script)) = (&args.crash, wanted.first()) {
        let (word, step) = crash.split_once('@').ok_or("no crash@step")?;
        let fault = sim::CRASHES.iter().find(|fault| fault.word() == word);
        let fault = fault.ok_or_else(|| format!("no crash {word:?}"))?;
        let step = step.parse().map_err(|e| format!("{step:?}: {e}"))?;
        let (outcome, log) = script.run_logged(args.socket, Some((step, *fault)));
        println!("{log}");
        return outcome.map(|_| ()).map_err(|failure| failure.what);
    }
    let (mut tally, mut failed) = (Tally::default(), 0);
    let start = Instant::now();
    for script in wanted {
        for socket in [false, true] {
            let (some, failures) = script.crash_everywhere(socket);
            tally.add(&some);
            failed += failures.len();
            for (step, fault, failure) in failures.iter().take(args.failures) {
                let socket = if socket { " --socket" } else { "" };
                println!(
                    "{}: {}\n  again: cargo xtask sim --script {}{socket} --crash {}@{step}",
                    script.name,
                    failure.what,
                    script.name,
                    fault.word()
                );
            }
            println!(
                "{:<20} socket={socket} {} runs, {} failed",
                script.name,
                some.runs,
                failures.len()
            );
        }
    }
    println!("{tally}\n{:.1} s", start.elapsed().as_secs_f64());
    match failed {
        0 => Ok(()),
        count => Err(format!("{count} crashes fail")),
    }
}

#[cfg(not(feature = "bugs"))]
#[allow(
    clippy::unnecessary_wraps,
    reason = "with the feature a name may be unknown"
)]
fn bug(_: &Args) -> Result<Option<sim::Bug>> {
    Ok(None)
}

#[cfg(feature = "bugs")]
fn bug(args: &Args) -> Result<Option<sim::Bug>> {
    let Some(name) = &args.bug else {
        return Ok(None);
    };
    let known = sim::Bug::ALL.into_iter();
    let mut named = known.filter(|bug| format!("{bug:?}") == *name);
    let bug = named.next().ok_or_else(|| format!("no bug {name:?}"))?;
    Ok(Some(bug))
}

/// A failure in words, with the smallest plan that was found.
fn report(args: &Args, failure: &Failure) -> String {
    if args.no_shrink {
        return failure.to_string();
    }
    let small = sim::shrink(failure);
    format!("{failure}\n  smaller, and it fails too:\n{small}")
}

fn many(args: &Args) -> Result {
    args.plan_of(0)?;
    let start = Instant::now();
    let threads = args.threads.max(1);
    let workers: Vec<_> = (0..threads)
        .map(|which| {
            let (first, count) = (args.from + which, args.seeds);
            let (changes, most) = (args.plan.clone(), args.failures);
            thread::spawn(move || range(first, count, threads, &changes, most, which == 0))
        })
        .collect();
    let mut tally = Tally::default();
    let mut failures = Vec::new();
    for worker in workers {
        let (some, failed) = worker
            .join()
            .map_err(|_| "a thread of the simulator died".to_owned())?;
        tally.add(&some);
        failures.extend(failed);
    }
    let took = start.elapsed();
    println!("{tally}");
    let rate = tally.steps as f64 / took.as_secs_f64();
    println!(
        "{:.1} s on {threads} threads, {rate:.0} steps a second",
        took.as_secs_f64()
    );
    failures.sort_by_key(|failure| failure.seed);
    for failure in failures.iter().take(args.failures) {
        println!("{}", report(args, failure));
    }
    match failures.len() {
        0 => Ok(()),
        count => Err(format!("{count} seeds fail")),
    }
}

/// Plays every so many-th seed of a range.
fn range(
    first: u64,
    count: u64,
    every: u64,
    changes: &str,
    most: usize,
    tells: bool,
) -> (Tally, Vec<Failure>) {
    let mut tally = Tally::default();
    let mut failures = Vec::new();
    let mut told = Instant::now();
    let last = first - first % every + count;
    let mut seed = first;
    while seed < last && failures.len() < most {
        let mut plan = Plan::of(seed);
        if plan.change(changes).is_ok() {
            match sim::run(seed, &plan) {
                Ok(some) => tally.add(&some),
                Err(failure) => failures.push(failure),
            }
        }
        if tells && told.elapsed() > TOLD {
            told = Instant::now();
            println!("seed {seed}: {} steps", tally.steps);
        }
        seed += every;
    }
    (tally, failures)
}
