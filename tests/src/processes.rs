//! The process table, read from `/proc`.
//!
//! The launcher of codex is a Node script whose child outlives it, so a test that kills the launcher alone leaves a
//! server behind. These helpers see such leftovers. A process is known by its pid *and* its start time, because
//! pids are used again.

use std::{
    collections::BTreeSet,
    fs,
    time::{Duration, Instant},
};

use rustix::process::{Pid, Signal, kill_process, kill_process_group};

/// One process as `/proc/<pid>/stat` showed it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Proc {
    pub pid: u32,
    pub ppid: u32,
    pub pgid: u32,
    pub comm: String,
    /// `R`, `S`, `Z`, … as in proc(5).
    pub state: char,
    /// Clock ticks since boot.
    pub starttime: u64,
}

impl Proc {
    /// Returns the process that has this pid now.
    pub fn find(pid: u32) -> Option<Proc> {
        parse(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
    }

    // Nobody may reap an orphan: the first process of a container often does not. A zombie runs nothing.
    fn runs(&self) -> bool {
        !matches!(self.state, 'Z' | 'X' | 'x')
    }
}

/// Returns children, grandchildren and so on of `pid`, parents first, without zombies.
///
/// Ask before killing: an orphan gets another parent and is found no more.
pub fn descendants(pid: u32) -> Vec<Proc> {
    with_descendants(&all(), |p| p.ppid == pid)
}

/// Returns the members of a process group, without zombies.
pub fn group(pgid: u32) -> Vec<Proc> {
    let mut all = all();
    all.retain(|p| p.pgid == pgid && p.runs());
    all
}

/// Whether this very process still runs. A zombie does not, nor does another process with its pid.
pub fn alive(proc: &Proc) -> bool {
    Proc::find(proc.pid).is_some_and(|now| now.starttime == proc.starttime && now.runs())
}

/// Waits until none of `procs` runs and returns those that still do at the end of `patience`.
pub fn wait_gone(procs: &[Proc], patience: Duration) -> Vec<Proc> {
    let end = Instant::now() + patience;
    loop {
        let left: Vec<_> = procs.iter().filter(|p| alive(p)).cloned().collect();
        if left.is_empty() || Instant::now() >= end {
            return left;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Kills every member of a process group with SIGKILL. A group that is gone is no error.
pub fn kill_group(pgid: u32) {
    if let Some(pgid) = pid_of(pgid) {
        let _ = kill_process_group(pgid, Signal::KILL);
    }
}

/// Returns the members of a process group and all their descendants, also those that left the group.
pub fn family(pgid: u32) -> Vec<Proc> {
    with_descendants(&all(), |p| p.pgid == pgid)
}

/// Returns the processes whose environment has this variable with this value, without zombies. It goes on to children,
/// also to those that leave their group and outlive their parent.
pub fn with_variable(name: &str, value: &str) -> Vec<Proc> {
    let wanted = format!("{name}={value}");
    let mut all = all();
    all.retain(|p| {
        let environment = fs::read(format!("/proc/{}/environ", p.pid)).unwrap_or_default();
        let mut variables = environment.split(|byte| *byte == 0);
        p.runs() && variables.any(|variable| variable == wanted.as_bytes())
    });
    all
}

/// The processor time that a process has used, in clock ticks.
pub fn ticks(pid: u32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let (_, tail) = stat.rsplit_once(')')?;
    let fields: Vec<&str> = tail.split_ascii_whitespace().collect();
    // proc(5): utime is field 14, stime 15, and the state, the first here, is field 3.
    let field = |number: usize| fields.get(number - 3)?.parse::<u64>().ok();
    Some(field(14)? + field(15)?)
}

/// Kills the [`family`] of a process group and returns it, for [`wait_gone`].
pub fn kill_family(pgid: u32) -> Vec<Proc> {
    // Stopped, nobody can start another process between the look and the kill.
    if let Some(pgid) = pid_of(pgid) {
        let _ = kill_process_group(pgid, Signal::STOP);
    }
    let family = family(pgid);
    kill_group(pgid);
    family.iter().for_each(kill);
    family
}

/// Kills one process with SIGKILL if it is still the one that was seen.
pub fn kill(proc: &Proc) {
    if let Some(pid) = pid_of(proc.pid).filter(|_| alive(proc)) {
        let _ = kill_process(pid, Signal::KILL);
    }
}

// 0 would mean our own group and 1 the whole machine.
fn pid_of(pid: u32) -> Option<Pid> {
    i32::try_from(pid)
        .ok()
        .filter(|pid| *pid > 1)
        .and_then(Pid::from_raw)
}

// One look at the table serves all: in two looks the same process may be in different states.
fn with_descendants(all: &[Proc], is_root: impl Fn(&Proc) -> bool) -> Vec<Proc> {
    let mut found = Vec::new();
    let mut pids = BTreeSet::new();
    let mut next: Vec<&Proc> = all.iter().filter(|p| is_root(p)).collect();
    while !next.is_empty() {
        next.retain(|p| pids.insert(p.pid));
        let parents: BTreeSet<u32> = next.iter().map(|p| p.pid).collect();
        found.extend(next.into_iter().cloned());
        next = all.iter().filter(|p| parents.contains(&p.ppid)).collect();
    }
    found.retain(Proc::runs);
    found
}

fn all() -> Vec<Proc> {
    let Ok(entries) = fs::read_dir("/proc") else {
        return Vec::new();
    };
    entries
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .filter_map(Proc::find)
        .collect()
}

fn parse(stat: &str) -> Option<Proc> {
    // The name may hold blanks and parentheses; only the last one ends it.
    let (head, tail) = stat.rsplit_once(')')?;
    let (pid, comm) = head.split_once(" (")?;
    let fields: Vec<&str> = tail.split_ascii_whitespace().collect();
    // proc(5) counts from 1 and the state is field 3.
    let field = |number: usize| fields.get(number - 3).copied();
    Some(Proc {
        pid: pid.parse().ok()?,
        ppid: field(4)?.parse().ok()?,
        pgid: field(5)?.parse().ok()?,
        comm: comm.to_owned(),
        state: field(3)?.chars().next()?,
        starttime: field(22)?.parse().ok()?,
    })
}

#[cfg(test)]
mod tests {
    use std::{
        os::unix::process::CommandExt,
        process::{Child, Command},
    };

    use super::*;

    const PATIENCE: Duration = Duration::from_secs(10);

    /// A shell in a group of its own. What is left of it dies with the test, or it would hold the test's output open.
    struct Shell(Child);

    impl Shell {
        fn start(script: &str) -> Self {
            Shell(
                Command::new("sh")
                    .args(["-c", script])
                    .process_group(0)
                    .spawn()
                    .unwrap(),
            )
        }

        fn id(&self) -> u32 {
            self.0.id()
        }

        fn wait_for_descendants(&self, count: usize) -> Vec<Proc> {
            let end = Instant::now() + PATIENCE;
            loop {
                let found = descendants(self.id());
                // A child has its parent's name until it executes its own program.
                if found.iter().filter(|p| p.comm == "sleep").count() == 2 || Instant::now() > end {
                    assert_eq!(found.len(), count, "{found:?}");
                    return found;
                }
                std::thread::sleep(Duration::from_millis(5));
            }
        }

        fn kill_alone(&mut self) {
            self.0.kill().unwrap();
            self.0.wait().unwrap();
        }
    }

    impl Drop for Shell {
        fn drop(&mut self) {
            kill_family(self.id());
            let _ = self.0.wait();
        }
    }

    #[test]
    fn name_with_blanks_and_parentheses_is_read_whole() {
        let tail = "S 7 8 8 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 1 0 4711 0 0";
        let proc = parse(&format!("9 (a) b (c)) {tail}")).unwrap();
        assert_eq!((proc.pid, proc.ppid, proc.pgid), (9, 7, 8));
        assert_eq!(
            (proc.comm.as_str(), proc.state, proc.starttime),
            ("a) b (c)", 'S', 4711)
        );
        assert_eq!(parse("9 (cut"), None);
        assert_eq!(parse("9 (cut) S 7"), None);
    }

    #[test]
    fn killed_group_leaves_nobody() {
        let mut shell = Shell::start("sleep 600 & sleep 600 & wait");
        let found = shell.wait_for_descendants(2);
        assert!(
            found
                .iter()
                .all(|p| p.ppid == shell.id() && p.pgid == shell.id() && alive(p))
        );
        assert_eq!(group(shell.id()).len(), 3);

        kill_group(shell.id());
        shell.0.wait().unwrap();
        assert_eq!(wait_gone(&found, PATIENCE), []);
        assert_eq!(group(shell.id()), []);
        assert_eq!(Proc::find(shell.id()), None);
    }

    #[test]
    fn child_outlives_a_parent_killed_alone() {
        let mut shell = Shell::start("sleep 600 & sleep 600 & wait");
        let found = shell.wait_for_descendants(2);
        shell.kill_alone();
        assert_eq!(found.iter().filter(|p| alive(p)).count(), 2, "{found:?}");
        assert_eq!(group(shell.id()).len(), 2);
        found.iter().for_each(kill);
        assert_eq!(wait_gone(&found, PATIENCE), []);
    }

    #[test]
    fn family_is_killed_across_groups_and_without_its_head() {
        let inner = "setsid sleep 600 & sleep 600 & wait";
        let mut shell = Shell::start(&format!("sh -c '{inner}' & wait"));
        let found = shell.wait_for_descendants(3);
        assert_eq!(
            found.iter().filter(|p| p.pgid != shell.id()).count(),
            1,
            "{found:?}"
        );
        shell.kill_alone();
        assert_eq!(kill_family(shell.id()).len(), 3);
        assert_eq!(wait_gone(&found, PATIENCE), []);
    }

    #[test]
    fn zombie_is_not_alive() {
        let mut child = Command::new("true").spawn().unwrap();
        let end = Instant::now() + PATIENCE;
        let zombie = loop {
            let proc = Proc::find(child.id()).unwrap();
            if proc.state == 'Z' || Instant::now() > end {
                break proc;
            }
            std::thread::sleep(Duration::from_millis(5));
        };
        assert_eq!(zombie.state, 'Z');
        assert!(!alive(&zombie));
        child.wait().unwrap();
    }

    #[test]
    fn another_process_with_the_same_pid_is_not_it() {
        let me = Proc::find(std::process::id()).unwrap();
        assert!(alive(&me));
        assert!(!alive(&Proc {
            starttime: me.starttime - 1,
            ..me
        }));
    }
}
