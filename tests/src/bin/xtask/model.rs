//! Conversations against their reference, from the command line.

use std::{thread, time::Instant};

use turnkeep_tests::conversation_model::{self, Bug, Case, Failure, Tally};

use crate::run::Result;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// How many cases are played.
    #[arg(long, default_value_t = 5_000)]
    cases: u64,
    /// The seed of the first of them.
    #[arg(long, default_value_t = 0)]
    from: u64,
    /// Plays one case, as a failure prints it.
    #[arg(long)]
    case: Option<String>,
    /// Plays the case of one seed.
    #[arg(long)]
    seed: Option<u64>,
    /// Prints all that comes and goes in one case.
    #[arg(long)]
    log: bool,
    /// How many threads play.
    #[arg(long, default_value_t = 2)]
    threads: u64,
    /// How many failures are looked for and printed.
    #[arg(long, default_value_t = 1)]
    failures: usize,
    /// Does not look for smaller cases that fail too.
    #[arg(long)]
    no_shrink: bool,
    /// The machine breaks this rule on purpose (a build with the feature `bugs`).
    #[cfg(feature = "bugs")]
    #[arg(long)]
    bug: Option<String>,
}

#[cfg(not(feature = "bugs"))]
#[allow(
    clippy::unnecessary_wraps,
    reason = "with the feature a name may be unknown"
)]
fn bug(_: &Args) -> Result<Option<Bug>> {
    Ok(None)
}

#[cfg(feature = "bugs")]
fn bug(args: &Args) -> Result<Option<Bug>> {
    let Some(name) = &args.bug else {
        return Ok(None);
    };
    let known = Bug::ALL.into_iter();
    let mut named = known.filter(|bug| format!("{bug:?}") == *name);
    let bug = named.next().ok_or_else(|| format!("no bug {name:?}"))?;
    Ok(Some(bug))
}

pub(crate) fn run(args: &Args) -> Result {
    let bug = bug(args)?;
    // A panic is a failure among others, and is printed as one.
    std::panic::set_hook(Box::new(|_| {}));
    let one = match (&args.case, args.seed) {
        (Some(text), _) => Some(serde_json::from_str(text).map_err(|error| error.to_string())?),
        (None, Some(seed)) => Some(Case::of(seed)),
        (None, None) => None,
    };
    if let Some(case) = one {
        let play = if args.log {
            conversation_model::play_logged
        } else {
            conversation_model::play
        };
        return match play(&case, bug) {
            Ok(tally) => {
                println!("{tally}");
                Ok(())
            }
            Err(failure) => Err(report(args, &failure, bug)),
        };
    }
    let start = Instant::now();
    let threads = args.threads.max(1);
    let workers: Vec<_> = (0..threads)
        .map(|which| {
            let (from, to, most) = (args.from + which, args.from + args.cases, args.failures);
            thread::spawn(move || {
                let (mut tally, mut failures) = (Tally::default(), Vec::new());
                for seed in (from..to).step_by(usize::try_from(threads).unwrap_or(1)) {
                    match conversation_model::play(&Case::of(seed), bug) {
                        Ok(some) => tally.add(&some),
                        Err(failure) => failures.push((seed, *failure)),
                    }
                    if failures.len() >= most {
                        break;
                    }
                }
                (tally, failures)
            })
        })
        .collect();
    let (mut tally, mut failures) = (Tally::default(), Vec::new());
    for worker in workers {
        let (some, failed) = worker.join().map_err(|_| "a thread died".to_owned())?;
        tally.add(&some);
        failures.extend(failed);
    }
    println!("{tally}");
    println!(
        "{:.1} s on {threads} threads",
        start.elapsed().as_secs_f64()
    );
    failures.sort_by_key(|(seed, _)| *seed);
    for (seed, failure) in failures.iter().take(args.failures) {
        println!("seed {seed}: {}", report(args, failure, bug));
    }
    match failures.len() {
        0 => Ok(()),
        count => Err(format!("{count} cases fail")),
    }
}

fn report(args: &Args, failure: &Failure, bug: Option<Bug>) -> String {
    if args.no_shrink {
        return failure.to_string();
    }
    conversation_model::shrink(failure, bug).to_string()
}
