//! The tool `turnkeep`: a demo, a chat with codex, and what reads journals and recordings.

#![forbid(unsafe_code)]

mod ask;
mod chat;
mod cli;
mod connect;
mod demo;
mod describe;
mod doctor;
mod editor;
mod history;
mod indent;
mod keyboard;
mod lines;
mod models;
mod problem;
mod replay;
mod request;
mod session;
mod show;
mod signals;
mod slash;
mod state;
mod stdin;
mod term;
mod threads;
mod tool_command;
mod tool_file;
mod toolbox;
mod view;

use std::{future::Future, io, process::ExitCode};

use clap::Parser as _;
use turnkeep_tokio::fake;

use crate::{
    cli::{Cli, Command},
    problem::{Exit, Problem},
    signals::Signals,
};

fn main() -> ExitCode {
    let command = Cli::parse().command;
    let checked = command.server().map_or(Ok(()), connect::check);
    if let Err(problem) = checked {
        term::tell(&problem);
        return ExitCode::from(problem.exit.code());
    }
    let exit = match command {
        Command::Demo(args) => run(|signals| demo::run(args, signals)),
        Command::Chat(args) => run(|signals| chat::run(*args, signals)),
        Command::Doctor(args) => run(|signals| doctor::run(args, signals)),
        Command::Threads(args) => run(|signals| threads::run(args, signals)),
        Command::Models(args) => run(|signals| models::run(args, signals)),
        Command::Request(args) => run(|signals| request::run(args, signals)),
        Command::Replay(args) => replay::run(&args),
        Command::Show(args) => show::run(&args),
        Command::FakeAppServer { .. } => return fake::run(fake::demo()),
    };
    let exit = exit.unwrap_or_else(|failure| match failure {
        Failure::Problem(problem) => {
            term::tell(&problem);
            problem.exit
        }
        // Whoever read our stdout has seen enough.
        Failure::Output(error) if error.kind() == io::ErrorKind::BrokenPipe => Exit::Ok,
        Failure::Output(error) => {
            let problem = Problem::failed(format!("cannot write to stdout: {error}"));
            term::tell(&problem);
            problem.exit
        }
    });
    ExitCode::from(exit.code())
}

/// Why a command did not come to its end.
#[derive(Debug)]
pub(crate) enum Failure {
    /// A problem that a person can act on.
    Problem(Problem),
    /// stdout cannot be written.
    Output(io::Error),
}

impl From<Problem> for Failure {
    fn from(problem: Problem) -> Self {
        Self::Problem(problem)
    }
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        Self::Output(error)
    }
}

fn run<F>(work: impl FnOnce(Signals) -> F) -> Result<Exit, Failure>
where
    F: Future<Output = Result<Exit, Failure>>,
{
    let cannot = |error| Problem::failed(format!("cannot start: {error}"));
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(cannot)?;
    // What a command left running ends with the runtime: a server takes its whole tree with it.
    runtime.block_on(async { work(Signals::new().map_err(cannot)?).await })
}
