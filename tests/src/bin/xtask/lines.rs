//! Counts lines of code: the runtimes, and what they share.

use turnkeep_tests::lines::{PARTS, count};

use crate::run::Result;

pub(crate) fn run() -> Result {
    for (name, places) in PARTS {
        let lines = count(places).map_err(|error| format!("{name}: {error}"))?;
        println!("{lines:>6}  {name}");
    }
    Ok(())
}
