//! A process, its group, and whoever else descends from it.

use std::{
    collections::{BTreeSet, VecDeque},
    fs,
    hash::{BuildHasher as _, Hasher as _, RandomState},
    pin::Pin,
    process::ExitStatus,
    sync::{Arc, Mutex, PoisonError},
    task::{Context, Poll, ready},
    time::Duration,
};

use futures_channel::oneshot;
use futures_io::AsyncRead as _;
use rustix::process::{Pid, kill_process, kill_process_group, test_kill_process_group};

use crate::runtime::{BoxRead, ChildProcess, Runtime, timeout, unblock};

pub(super) use rustix::process::Signal;

/// The variable of a server's environment that tells its descendants, even those that have left
/// its group and lost their parent. A process that shall outlive its server takes it out of its
/// environment.
pub const MARK: &str = "TURNKEEP_SERVER";

/// How much of stderr is kept.
const TAIL: usize = 64 << 10;

/// A value for [`MARK`] that no other server has.
pub(super) fn new_mark() -> String {
    // The keys of a hash map are the system's randomness without a crate for it.
    let random = || RandomState::new().build_hasher().finish();
    format!("{:016x}{:016x}", random(), random())
}

/// A child of ours, the leader of its own process group. Dropped before its end it takes the whole
/// tree with it.
#[derive(Debug)]
pub(super) struct Process {
    runtime: Arc<dyn Runtime>,
    child: Box<dyn ChildProcess>,
    group: Option<Pid>,
    pid: u32,
    start_time: Option<u64>,
    mark: String,
    status: Option<ExitStatus>,
    stderr: Option<Tail>,
    done: bool,
}

impl Process {
    pub(super) fn new(
        runtime: Arc<dyn Runtime>,
        mut child: Box<dyn ChildProcess>,
        mark: String,
    ) -> Self {
        let pid = child.id().unwrap_or_default();
        let stderr = child.take_stderr();
        Self {
            stderr: stderr.map(|stderr| Tail::drain(&*runtime, stderr)),
            runtime,
            child,
            group: i32::try_from(pid).ok().and_then(Pid::from_raw),
            pid,
            start_time: Stat::of(pid).map(|stat| stat.start_time),
            mark,
            status: None,
            done: false,
        }
    }

    pub(super) fn pid(&self) -> u32 {
        self.pid
    }

    pub(super) fn start_time(&self) -> Option<u64> {
        self.start_time
    }

    pub(super) fn status(&self) -> Option<ExitStatus> {
        self.status
    }

    /// Waits for the end of the process. May be asked again.
    pub(super) fn poll_wait(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if self.status.is_none() {
            // The system only fails to wait for a child that is none.
            self.status = Some(ready!(self.child.poll_wait(cx)).unwrap_or_default());
        }
        Poll::Ready(())
    }

    pub(super) fn signal_group(&self, signal: Signal) {
        if let Some(group) = self.group.filter(|_| self.owns_its_pid()) {
            // It fails when nobody is left.
            let _ = kill_process_group(group, signal);
        }
    }

    /// Whether no stranger has got our pid, as may happen when the process is reaped.
    fn owns_its_pid(&self) -> bool {
        Stat::of(self.pid).is_none_or(|stat| Some(stat.start_time) == self.start_time)
    }

    /// Whether the group has a member, not counting dead ones that nobody has reaped.
    pub(super) fn group_is_alive(&self) -> bool {
        let Some(group) = self.group.filter(|_| self.owns_its_pid()) else {
            return false;
        };
        if test_kill_process_group(group).is_err() {
            return false;
        }
        if !cfg!(target_os = "linux") {
            return true;
        }
        all_processes().any(|stat| stat.group == self.pid && !stat.is_dead)
    }

    /// Those that descend from the process at this moment, itself left out.
    pub(super) async fn relatives(&self) -> Vec<Relative> {
        if !self.owns_its_pid() {
            return Vec::new();
        }
        let pid = self.pid;
        off_the_runtime(move || descendants(pid)).await
    }

    /// Those that can be told to be of this server when it is gone: by group or by mark.
    pub(super) async fn leftovers(&self) -> Vec<Relative> {
        let group = self.owns_its_pid().then_some(self.pid);
        let mark = self.mark.clone();
        off_the_runtime(move || leftovers(group, &mark)).await
    }

    /// The last of stderr, which may still take up to `limit` to come in.
    pub(super) async fn stderr_tail(&mut self, limit: Duration) -> String {
        match self.stderr.take() {
            Some(tail) => tail.finish(&*self.runtime, limit).await,
            None => String::new(),
        }
    }

    /// Says that nothing of the process is left.
    pub(super) fn done(&mut self) {
        self.done = self.status.is_some();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if self.done {
            return;
        }
        // Nobody will come back to this: no grace, and no thread that could outlive the process.
        let group = self.owns_its_pid().then_some(self.pid);
        let mut relatives = group.map(descendants).unwrap_or_default();
        self.signal_group(Signal::KILL);
        relatives.extend(leftovers(group, &self.mark));
        for relative in relatives.iter().filter(|r| r.is_alive()) {
            relative.signal(Signal::KILL);
        }
        for _ in 0..200 {
            if self.status.is_some() || !matches!(self.child.try_wait(), Ok(None)) {
                return;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

async fn off_the_runtime(look: impl FnOnce() -> Vec<Relative> + Send + 'static) -> Vec<Relative> {
    // Reading about every process takes milliseconds.
    unblock(look).await.unwrap_or_default()
}

/// A process that is not our child, told by pid and start time: pids are used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Relative {
    pid: u32,
    start_time: u64,
}

impl Relative {
    pub(super) fn is_alive(&self) -> bool {
        Stat::of(self.pid).is_some_and(|s| s.start_time == self.start_time && !s.is_dead)
    }

    pub(super) fn signal(&self, signal: Signal) {
        let pid = i32::try_from(self.pid).ok().and_then(Pid::from_raw);
        if let Some(pid) = pid.filter(|_| self.is_alive()) {
            // It may have ended since.
            let _ = kill_process(pid, signal);
        }
    }
}

/// What `/proc` tells of a process. Empty where there is none.
#[derive(Clone, Copy, Debug)]
struct Stat {
    pid: u32,
    parent: u32,
    group: u32,
    start_time: u64,
    is_dead: bool,
}

impl Stat {
    fn of(pid: u32) -> Option<Self> {
        // The name stands in brackets and may hold anything, brackets too.
        let text = fs::read(format!("/proc/{pid}/stat")).ok()?;
        let text = String::from_utf8_lossy(&text);
        let mut fields = text.get(text.rfind(')')? + 1..)?.split_ascii_whitespace();
        let state = fields.next()?;
        Some(Self {
            pid,
            parent: fields.next()?.parse().ok()?,
            group: fields.next()?.parse().ok()?,
            start_time: fields.nth(16)?.parse().ok()?,
            is_dead: matches!(state, "Z" | "X"),
        })
    }

    fn relative(&self) -> Relative {
        Relative {
            pid: self.pid,
            start_time: self.start_time,
        }
    }
}

/// When a process started, as the system tells it: with the pid it names the process.
pub(crate) fn start_time(pid: u32) -> Option<u64> {
    Stat::of(pid).map(|stat| stat.start_time)
}

fn all_processes() -> impl Iterator<Item = Stat> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| Stat::of(entry.file_name().to_str()?.parse().ok()?))
}

fn descendants(pid: u32) -> Vec<Relative> {
    let all: Vec<Stat> = all_processes().collect();
    let mut family = BTreeSet::from([pid]);
    let mut found = Vec::new();
    loop {
        let new: Vec<Stat> = all
            .iter()
            .filter(|s| family.contains(&s.parent) && !family.contains(&s.pid))
            .copied()
            .collect();
        if new.is_empty() {
            return found;
        }
        family.extend(new.iter().map(|s| s.pid));
        found.extend(new.iter().map(Stat::relative));
    }
}

fn leftovers(group: Option<u32>, mark: &str) -> Vec<Relative> {
    let variable = format!("{MARK}={mark}");
    all_processes()
        .filter(|s| !s.is_dead)
        .filter(|s| Some(s.group) == group || is_marked(s.pid, variable.as_bytes()))
        .map(|s| s.relative())
        .collect()
}

fn is_marked(pid: u32, variable: &[u8]) -> bool {
    let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
    environment.split(|b| *b == 0).any(|v| v == variable)
}

/// The mark of the server that a process belongs to.
fn mark_of(pid: u32) -> Option<String> {
    let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
    let mut variables = environment.split(|b| *b == 0);
    let mark = variables.find_map(|v| v.strip_prefix(MARK.as_bytes())?.strip_prefix(b"="))?;
    String::from_utf8(mark.to_vec()).ok()
}

/// Who is left of a server that some process of ours once started with this pid, as the leader of
/// its group: nobody, where a stranger has the pid now.
pub(super) fn family_of(pid: u32, start_time: u64) -> Vec<Relative> {
    let us = std::process::id();
    // Where the leader is gone its pid is nobody's while its group has members, and theirs.
    let leader = Stat::of(pid);
    let is_another = leader.is_some_and(|s| s.start_time != start_time);
    let is_ours = Stat::of(us).is_none_or(|s| s.group == pid);
    if is_another || is_ours {
        return Vec::new();
    }
    let members = all_processes().filter(|s| s.group == pid && s.start_time >= start_time);
    let Some(mark) = members.filter(|s| !s.is_dead).find_map(|s| mark_of(s.pid)) else {
        return Vec::new();
    };
    let group = leader.is_some().then_some(pid);
    let mut family = leftovers(group, &mark);
    family.extend(group.map(descendants).unwrap_or_default());
    family.sort_unstable();
    family.dedup();
    family.retain(|one| one.pid != us && one.is_alive());
    family
}

/// The end of stderr, drained for as long as anybody writes it.
#[derive(Debug)]
struct Tail {
    /// Its end: nobody writes any more.
    ended: oneshot::Receiver<()>,
    kept: Arc<Mutex<VecDeque<u8>>>,
    /// Dropped it stops the reading.
    _reading: oneshot::Sender<()>,
}

impl Tail {
    fn drain(runtime: &dyn Runtime, stderr: BoxRead) -> Self {
        let kept: Arc<Mutex<VecDeque<u8>>> = Arc::default();
        let into = Arc::clone(&kept);
        let (reading, stop) = oneshot::channel();
        let (end, ended) = oneshot::channel();
        runtime.spawn(Box::pin(async move {
            let stopped = async {
                let _ = stop.await;
            };
            futures_lite::future::or(stopped, keep(stderr, &into)).await;
            let _ = end.send(());
        }));
        Self {
            ended,
            kept,
            _reading: reading,
        }
    }

    async fn finish(mut self, runtime: &dyn Runtime, limit: Duration) -> String {
        // Whoever still holds stderr then is no process of this server.
        let _ = timeout(runtime, limit, &mut self.ended).await;
        let kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let bytes: Vec<u8> = kept.iter().copied().collect();
        // The cut may have gone through a character.
        let start = match kept.len() {
            TAIL => bytes
                .iter()
                .take(3)
                .take_while(|b| (**b & 0xc0) == 0x80)
                .count(),
            _ => 0,
        };
        String::from_utf8_lossy(bytes.get(start..).unwrap_or_default()).into_owned()
    }
}

/// Reads to the end and keeps the last of it. An error ends this and nothing else.
async fn keep(mut stderr: BoxRead, into: &Mutex<VecDeque<u8>>) {
    let mut block = vec![0; 8 << 10];
    loop {
        let read = std::future::poll_fn(|cx| Pin::new(&mut stderr).poll_read(cx, &mut block));
        let Ok(n @ 1..) = read.await else {
            return;
        };
        let mut kept = into.lock().unwrap_or_else(PoisonError::into_inner);
        kept.extend(block.get(..n).unwrap_or_default());
        let surplus = kept.len().saturating_sub(TAIL);
        kept.drain(..surplus);
    }
}
