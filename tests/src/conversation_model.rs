//! Conversations against a small reference: whatever happens in whatever order, crashes among it, the transcript, the mailbox, what the
//! server gets, what the application is given and the status are those of the specification.
//!
//! A [`Case`] is a list of operations. The reference plays it by section 2 of the specification, without records, frames or time; a
//! machine plays it with a journal and a server that does what the case says; after each operation the two are compared. The reference
//! does not know how the core does anything: where the two disagree the specification says who is right.

mod boxes;
mod drive;
mod op;
mod reference;
mod server;

use std::{
    fmt,
    panic::{self, AssertUnwindSafe},
};

pub use self::op::{Brought, Called, Case, Cut, How, Op, Outcome, Step};
pub use crate::sim::Bug;

/// What was played.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    pub cases: u64,
    pub operations: u64,
    pub crashes: u64,
    /// Crashes in the middle of an operation.
    pub cuts: u64,
    pub losses: u64,
    /// Boxes that were compared.
    pub boxes: u64,
    pub rounds: u64,
    pub messages: u64,
    pub steers: u64,
    pub launches: u64,
}

impl Tally {
    pub fn add(&mut self, other: &Self) {
        self.cases += other.cases;
        self.operations += other.operations;
        self.crashes += other.crashes;
        self.cuts += other.cuts;
        self.losses += other.losses;
        self.boxes += other.boxes;
        self.rounds += other.rounds;
        self.messages += other.messages;
        self.steers += other.steers;
        self.launches += other.launches;
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} cases, {} operations, {} crashes ({} in the middle of an operation), {} lost connections, {} boxes, {} rounds, {} messages ({} flushes), {} launches",
            self.cases,
            self.operations,
            self.crashes,
            self.cuts,
            self.losses,
            self.boxes,
            self.rounds,
            self.messages,
            self.steers,
            self.launches
        )
    }
}

/// A case in which machine and reference disagree.
#[derive(Clone, Debug)]
pub struct Failure {
    /// The case, up to the operation.
    pub case: Case,
    /// In what.
    pub what: String,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let case = serde_json::to_string(&self.case).map_err(|_| fmt::Error)?;
        writeln!(f, "{}", self.what)?;
        writeln!(f, "    {:?}", self.case.how)?;
        for step in &self.case.steps {
            writeln!(
                f,
                "    {:?} {}",
                step.op,
                step.cut
                    .map_or(String::new(), |cut| format!("and a crash ({cut:?})"))
            )?;
        }
        write!(f, "  again: cargo xtask model --case '{case}'")
    }
}

/// Plays a case.
///
/// # Errors
///
/// Machine and reference disagree, or the machine panics.
pub fn play(case: &Case, bug: Option<Bug>) -> Result<Tally, Box<Failure>> {
    played(case, bug, false)
}

/// The same, and prints all that comes and goes.
///
/// # Errors
///
/// As with [`play`].
pub fn play_logged(case: &Case, bug: Option<Bug>) -> Result<Tally, Box<Failure>> {
    played(case, bug, true)
}

fn played(case: &Case, bug: Option<Bug>, log: bool) -> Result<Tally, Box<Failure>> {
    let played = panic::catch_unwind(AssertUnwindSafe(|| drive::play(case, bug, log)));
    let (at, what) = match played {
        Ok(Ok(tally)) => return Ok(tally),
        Ok(Err(failed)) => failed,
        Err(panic) => {
            let text = panic.downcast_ref::<String>().cloned();
            let text = text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()));
            (
                case.steps.len(),
                format!("panic: {}", text.unwrap_or_default()),
            )
        }
    };
    let mut case = case.clone();
    case.steps.truncate(at + 1);
    Err(Box::new(Failure { case, what }))
}

/// The kind of a failure: its words without what they are about.
fn kind(what: &str) -> String {
    what.chars()
        .take_while(|c| *c != '\n')
        .filter(|c| !c.is_ascii_digit())
        .take(32)
        .collect()
}

/// A smaller case that fails in the same way: operations that it does without are left out, then what they bring.
#[must_use]
pub fn shrink(failure: &Failure, bug: Option<Bug>) -> Failure {
    let mut best = failure.clone();
    let attempt = |best: &mut Failure, case: Case| {
        if case != best.case {
            if let Err(smaller) = play(&case, bug) {
                if kind(&smaller.what) == kind(&best.what)
                    && smaller.case.steps.len() <= best.case.steps.len()
                {
                    *best = *smaller;
                    return true;
                }
            }
        }
        false
    };
    loop {
        let mut smaller = false;
        let mut size = best.case.steps.len().max(1);
        while size > 0 {
            let mut at = 0;
            while at < best.case.steps.len() {
                let mut case = best.case.clone();
                let end = (at + size).min(case.steps.len());
                case.steps.drain(at..end);
                if attempt(&mut best, case) {
                    smaller = true;
                } else {
                    at += size;
                }
            }
            size /= 2;
        }
        for at in 0..best.case.steps.len() {
            for step in best.case.steps[at].simpler() {
                let mut case = best.case.clone();
                if at < case.steps.len() {
                    case.steps[at] = step;
                    smaller |= attempt(&mut best, case);
                }
            }
        }
        for how in best.case.how.simpler() {
            let mut case = best.case.clone();
            case.how = how;
            smaller |= attempt(&mut best, case);
        }
        if !smaller {
            return best;
        }
    }
}
