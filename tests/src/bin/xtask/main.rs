//! The chores of this repository: `cargo xtask --help`.

use std::process::ExitCode;

use clap::{Parser, Subcommand};

mod ci;
mod codex;
mod deny;
mod fuzz;
mod lines;
mod live;
mod model;
mod no_std;
mod protocol;
mod run;
mod sim;

/// The chores of this repository.
#[derive(Debug, Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Runs everything that must hold before a merge: style, docs, tests, dependencies and the live suite.
    Ci,
    /// Installs the codex versions of the live suite under target/ and prints where they are.
    Codex,
    /// Checks what may come into the build: bans, licenses, sources, advisories.
    Deny,
    /// Counts lines of code: the runtimes, and what they share.
    Lines,
    /// Builds and runs the fuzz targets, or makes their corpora.
    Fuzz(fuzz::Args),
    /// Runs the live suite against the real app-server, which it installs when it is missing.
    Live(live::Args),
    /// Plays conversations against their reference model: many cases, or one again.
    Model(model::Args),
    /// Builds the core into a library without std, and shows that std would be noticed.
    NoStd,
    /// Makes the types of the protocol of the schema that codex writes, or compares a codex with them.
    Protocol(protocol::Args),
    /// Plays the simulator: many seeds, or one again.
    Sim(sim::Args),
}

fn main() -> ExitCode {
    let outcome = match Args::parse().command {
        // Its last line is the count of tests, so it says itself what failed.
        Command::Ci => return ci::run(),
        Command::Codex => codex::run(),
        Command::Deny => deny::run(),
        Command::Lines => lines::run(),
        Command::Fuzz(args) => fuzz::run(&args),
        Command::Live(args) => live::run(&args),
        Command::Model(args) => model::run(&args),
        Command::NoStd => no_std::run(),
        Command::Protocol(args) => protocol::run(&args),
        Command::Sim(args) => sim::run(&args),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("xtask: {error}");
            ExitCode::FAILURE
        }
    }
}
