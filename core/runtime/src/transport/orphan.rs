//! A server that an earlier life of ours left behind, told by pid and start time, and stopped before
//! the next one starts: two servers must not write the same threads.

use std::{
    thread::sleep,
    time::{Duration, Instant},
};

use rustix::process::Signal;
use tracing::{info, warn};
use turnkeep_core::effect::Orphan;

use super::{
    ending::GONE,
    process::{Relative, family_of},
};

/// How long an orphan may take to end by itself. Its stdin ended with us, which a sound server
/// takes as its own end at once.
const GRACE: Duration = Duration::from_millis(500);

/// How often those that are ending are looked at: nothing tells of the end of a process that is not
/// our child.
const LOOK: Duration = Duration::from_millis(5);

/// Stops what is left of an orphan, its whole tree, and returns when it is gone. Blocks.
///
/// Nobody else is touched: a process counts only if its pid, its start time and its group are those
/// that were recorded, and if it carries the mark of a server of ours. An orphan without a start
/// time cannot be told from a stranger.
pub(super) fn stop(orphan: Orphan, term: Duration) -> Result<(), String> {
    stop_with(orphan, term, Relative::signal)
}

pub(super) fn stop_with(
    orphan: Orphan,
    term: Duration,
    signal: impl Fn(&Relative, Signal),
) -> Result<(), String> {
    let Some(start_time) = orphan.start_time else {
        warn!(
            pid = orphan.pid,
            "an earlier server cannot be told from a stranger"
        );
        return Ok(());
    };
    let look = || family_of(orphan.pid, start_time);
    let mut left = look();
    if left.is_empty() {
        return Ok(());
    }
    info!(
        pid = orphan.pid,
        processes = left.len(),
        "an earlier server is stopped"
    );
    until_gone(&mut left, GRACE);
    left.iter().for_each(|one| signal(one, Signal::TERM));
    until_gone(&mut left, term);
    let limit = Instant::now() + GONE;
    loop {
        // Who forked while being stopped left someone behind.
        left.extend(look());
        left.iter().for_each(|one| signal(one, Signal::KILL));
        until_gone(&mut left, LOOK * 10);
        if left.is_empty() && look().is_empty() {
            return Ok(());
        }
        if Instant::now() >= limit {
            let pid = orphan.pid;
            return Err(format!(
                "process {pid}, an earlier server of ours, cannot be stopped"
            ));
        }
    }
}

/// Waits until nobody is left, at most until the limit.
fn until_gone(left: &mut Vec<Relative>, limit: Duration) {
    let limit = Instant::now() + limit;
    loop {
        left.retain(Relative::is_alive);
        if left.is_empty() || Instant::now() >= limit {
            return;
        }
        sleep(LOOK);
    }
}
