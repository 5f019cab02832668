//! Real processes: what a child does, and what is left of it.

use std::{
    future::poll_fn,
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};

use turnkeep_core::{CloseReason, Closed, Frame, FrameSeq, Peer, effect::Orphan};

use super::{Connection, Heard, child::Child, orphan, reach, start_time};
use crate::{
    config::{ChildConfig, ServerConfig},
    on_both,
    runtime::timeout,
    testing::Rt,
};

const PATIENCE: Duration = Duration::from_secs(20);

fn shell(script: &str) -> ChildConfig {
    ChildConfig::program("sh")
        .args(["-c", script])
        .stop_limits(Duration::from_millis(300), Duration::from_millis(300))
}

fn start(rt: &Rt, config: &ChildConfig) -> (Connection, Peer) {
    let (child, peer) = Child::spawn(rt, config).unwrap_or_else(|closed| panic!("{closed:?}"));
    (Connection::Open(child), peer)
}

fn not_started(rt: &Rt, config: &ChildConfig) -> Closed {
    Child::spawn(rt, config).err().unwrap()
}

fn open(rt: &Rt, config: ChildConfig, orphan: Option<Orphan>) -> Connection {
    Connection::open(rt, &ServerConfig::Child(config), 1 << 20, orphan)
}

pub(super) fn frame(seq: u64, text: &str) -> Frame {
    Frame {
        seq: FrameSeq(seq),
        bytes: text.into(),
        secrets: None,
    }
}

/// What came of a connection.
#[derive(Debug, Default)]
pub(super) struct Told {
    pub(super) opened: Option<Peer>,
    pub(super) text: String,
    pub(super) unsent: Vec<u64>,
    pub(super) closed: Option<Closed>,
}

impl Told {
    pub(super) fn reason(&self) -> &CloseReason {
        &self.closed.as_ref().unwrap().reason
    }

    fn stderr(&self) -> &str {
        &self.closed.as_ref().unwrap().stderr_tail
    }
}

pub(super) async fn until(
    rt: &Rt,
    connection: &mut Connection,
    done: impl Fn(&Told) -> bool,
) -> Told {
    let mut told = Told::default();
    let listen = async {
        while !done(&told) {
            match poll_fn(|cx| connection.poll_next(cx)).await {
                Heard::Opened(peer) => told.opened = Some(peer),
                Heard::Read(bytes) => told.text.push_str(&String::from_utf8_lossy(&bytes)),
                Heard::SendFailed(seq) => told.unsent.push(seq.0),
                Heard::Closed(closed) => told.closed = Some(closed),
            }
        }
    };
    timeout(&**rt, PATIENCE, listen).await.unwrap();
    told
}

pub(super) async fn to_the_end(rt: &Rt, connection: &mut Connection) -> Told {
    until(rt, connection, |told| told.closed.is_some()).await
}

/// Starts a script and waits for the first line that it prints.
async fn started(rt: &Rt, config: &ChildConfig) -> (Connection, Peer, String) {
    let (mut connection, peer) = start(rt, config);
    let told = until(rt, &mut connection, |told| told.text.contains('\n')).await;
    (connection, peer, told.text)
}

fn is_alive(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit(')')
        .next()
        .is_some_and(|s| !s.trim().is_empty() && !s.starts_with(" Z"))
}

fn pids(text: &str) -> Vec<u32> {
    text.split_whitespace()
        .map(|p| p.parse().unwrap())
        .collect()
}

async fn frames_arrive_in_order_and_output_comes_back(rt: Rt) {
    let (mut connection, peer) = start(&rt, &shell("echo hello; cat"));
    assert!(peer.pid.is_some());
    assert_eq!(peer.start_time.is_some(), cfg!(target_os = "linux"));
    for n in 1..=3 {
        connection.send(frame(n, &format!("{n}\n")));
    }
    let told = until(&rt, &mut connection, |told| told.text.ends_with("3\n")).await;
    assert_eq!(told.text, "hello\n1\n2\n3\n");
    connection.close();
    let told = to_the_end(&rt, &mut connection).await;
    assert_eq!(*told.reason(), CloseReason::ByUs);
    assert_eq!(told.unsent, [] as [u64; 0]);
}

async fn what_was_sent_before_the_close_is_written_and_what_comes_after_is_not(rt: Rt) {
    // More than a pipe holds, so that it is still being written when the close is asked for.
    let (mut connection, _) = start(&rt, &shell("sleep 0.05; wc -c"));
    connection.send(frame(1, &"x".repeat(1 << 20)));
    connection.close();
    connection.send(frame(2, "late\n"));
    let told = to_the_end(&rt, &mut connection).await;
    assert_eq!(told.text.trim(), (1 << 20).to_string());
    assert_eq!(told.unsent, [2]);
}

async fn a_program_that_is_not_there_is_named_at_once(rt: Rt) {
    let closed = not_started(&rt, &ChildConfig::program("no-such-app-server"));
    let names = vec!["no-such-app-server".to_owned()];
    assert_eq!(closed.reason, CloseReason::NotFound(names));
    let nowhere = shell("true").cwd("/nowhere/at/all");
    let closed = not_started(&rt, &nowhere);
    assert!(matches!(closed.reason, CloseReason::OpenFailed(_)));
}

async fn output_is_read_to_its_end_before_the_exit_code_counts(rt: Rt) {
    let script = "head -c 300000 /dev/zero | tr '\\0' x; exit 7";
    let (mut connection, _) = start(&rt, &shell(script));
    let told = to_the_end(&rt, &mut connection).await;
    assert_eq!(told.text.len(), 300_000);
    let exit = CloseReason::Exited {
        code: Some(7),
        signal: None,
    };
    assert_eq!(*told.reason(), exit);
}

async fn a_signal_is_told_apart_from_an_exit_code(rt: Rt) {
    let (mut connection, _) = start(&rt, &shell("echo why >&2; kill -9 $$"));
    let told = to_the_end(&rt, &mut connection).await;
    let killed = CloseReason::Exited {
        code: None,
        signal: Some(9),
    };
    assert_eq!(*told.reason(), killed);
    assert_eq!(told.stderr(), "why\n");
}

async fn a_flood_on_stderr_blocks_nothing_and_its_end_is_kept(rt: Rt) {
    let flood = "head -c 1048576 /dev/zero | tr '\\0' e >&2; printf '\\377end' >&2; echo done; cat";
    let (mut connection, _, text) = started(&rt, &shell(flood)).await;
    assert_eq!(text, "done\n");
    connection.close();
    let told = to_the_end(&rt, &mut connection).await;
    assert!(told.stderr().ends_with("eeee\u{fffd}end"));
    assert!(told.stderr().len() <= (64 << 10) + 2);
}

async fn frames_that_a_dead_child_did_not_take_are_given_back(rt: Rt) {
    // The child never reads: the first frame is written in part, the others not at all.
    let (mut connection, _, _) = started(&rt, &shell("echo up; exec <&-; sleep 0.2; exit 3")).await;
    connection.send(frame(1, &"x".repeat(1 << 20)));
    connection.send(frame(2, "y\n"));
    connection.send(frame(3, "z\n"));
    let told = to_the_end(&rt, &mut connection).await;
    let exit = CloseReason::Exited {
        code: Some(3),
        signal: None,
    };
    assert_eq!(*told.reason(), exit);
    assert!(told.unsent.ends_with(&[2, 3]), "{:?}", told.unsent);
}

async fn a_server_that_never_reads_is_given_up(rt: Rt) {
    let (mut connection, peer, _) = started(&rt, &shell("echo up; exec sleep 100")).await;
    let piece = "x".repeat(64 << 20);
    for n in 1..=5 {
        connection.send(frame(n, &piece));
    }
    let told = to_the_end(&rt, &mut connection).await;
    let lost = CloseReason::Lost("the server does not read what it is sent".into());
    assert_eq!(*told.reason(), lost);
    assert!(told.unsent.contains(&5), "{:?}", told.unsent);
    assert!(!is_alive(peer.pid.unwrap()));
}

async fn a_closed_stdout_is_no_exit(rt: Rt) {
    let (mut connection, peer, _) = started(&rt, &shell("echo up; exec >&-; exec sleep 100")).await;
    let told = to_the_end(&rt, &mut connection).await;
    assert_eq!(*told.reason(), CloseReason::Eof);
    assert!(!is_alive(peer.pid.unwrap()));
}

#[cfg(target_os = "linux")]
async fn a_whole_tree_that_ignores_sigterm_is_gone_after_the_close(rt: Rt) {
    let script = "trap '' TERM; sh -c 'trap \"\" TERM; sleep 100 & echo $$ $!; wait' & wait";
    let (mut connection, peer, text) = started(&rt, &shell(script)).await;
    connection.close();
    let told = to_the_end(&rt, &mut connection).await;
    assert_eq!(*told.reason(), CloseReason::ByUs);
    let mut all = pids(&text);
    assert_eq!(all.len(), 2);
    all.push(peer.pid.unwrap());
    assert!(!all.iter().any(|pid| is_alive(*pid)), "{all:?}");
}

#[cfg(target_os = "linux")]
async fn a_launcher_that_is_killed_takes_its_child_along_within_a_second(rt: Rt) {
    // The child holds stdout, so the end of the stream never comes by itself.
    let (mut connection, peer, text) =
        started(&rt, &shell("trap '' TERM; sleep 100 & echo $!; wait")).await;
    let launcher = peer.pid.unwrap();
    let killed = Instant::now();
    kill(launcher);
    let told = to_the_end(&rt, &mut connection).await;
    assert!(killed.elapsed() < Duration::from_millis(1_900));
    let reason = CloseReason::Exited {
        code: None,
        signal: Some(9),
    };
    assert_eq!(*told.reason(), reason);
    assert!(!pids(&text).into_iter().any(is_alive));
}

#[cfg(target_os = "linux")]
async fn who_left_the_group_and_lost_its_parent_is_found_as_well(rt: Rt) {
    let script = "setsid sh -c 'trap \"\" TERM HUP; echo $$; exec sleep 100' & wait";
    for by_close in [true, false] {
        let (mut connection, peer, text) = started(&rt, &shell(script)).await;
        if by_close {
            connection.close();
        } else {
            kill(peer.pid.unwrap());
        }
        to_the_end(&rt, &mut connection).await;
        let left = pids(&text);
        assert!(
            !left.iter().any(|pid| is_alive(*pid)),
            "{left:?} {by_close}"
        );
    }
}

#[cfg(target_os = "linux")]
async fn a_connection_that_is_dropped_leaves_no_process_behind(rt: Rt) {
    let script = "trap '' TERM; sleep 100 & setsid sleep 100 & echo $$ $!; wait";
    for ending in [false, true] {
        let (mut connection, _, text) = started(&rt, &shell(script)).await;
        if ending {
            connection.close();
            // Far enough for the end to have begun.
            let begun = timeout(
                &*rt,
                Duration::from_millis(50),
                poll_fn(|cx| connection.poll_next(cx)),
            );
            assert!(begun.await.is_none());
        }
        drop(connection);
        for pid in pids(&text) {
            gone(&rt, pid).await;
            assert!(!Path::new(&format!("/proc/{pid}")).exists() || !is_alive(pid));
        }
    }
}

#[cfg(target_os = "linux")]
async fn the_server_has_its_own_group_environment_and_directory(rt: Rt) {
    let dir = tempfile::tempdir().unwrap();
    let config = shell("echo $CODEX_HOME,$MORE,$PWD; cut -d' ' -f5 /proc/$$/stat; cat")
        .codex_home("/srv/codex-home")
        .env("MORE", "more")
        .cwd(dir.path());
    let (mut connection, peer) = start(&rt, &config);
    let told = until(&rt, &mut connection, |told| told.text.lines().count() == 2).await;
    let (pid, cwd) = (peer.pid.unwrap(), dir.path().display());
    assert_eq!(told.text, format!("/srv/codex-home,more,{cwd}\n{pid}\n"));
    connection.close();
    to_the_end(&rt, &mut connection).await;
}

#[cfg(target_os = "linux")]
fn kill(pid: u32) {
    use rustix::process::{Pid, Signal, kill_process};
    let pid = Pid::from_raw(i32::try_from(pid).unwrap()).unwrap();
    kill_process(pid, Signal::KILL).unwrap();
}

#[cfg(target_os = "linux")]
async fn gone(rt: &Rt, pid: u32) {
    let limit = Instant::now() + PATIENCE;
    while is_alive(pid) && Instant::now() < limit {
        rt.sleep(Duration::from_millis(1)).await;
    }
}

/// A server of an earlier life, which is not a child of the connection that stops it.
#[cfg(target_os = "linux")]
struct Left {
    child: std::process::Child,
    /// Those of its tree that it tells of.
    others: Vec<u32>,
}

#[cfg(target_os = "linux")]
impl Left {
    fn start(script: &str, mark: Option<&str>) -> Self {
        use std::{io::BufRead as _, os::unix::process::CommandExt as _, process};
        let mut command = process::Command::new("sh");
        command
            .args(["-c", script])
            .stdin(process::Stdio::null())
            .stdout(process::Stdio::piped())
            .process_group(0);
        match mark {
            Some(mark) => command.env(super::MARK, mark),
            None => command.env_remove(super::MARK),
        };
        let mut child = command.spawn().unwrap();
        let mut line = String::new();
        let mut out = std::io::BufReader::new(child.stdout.take().unwrap());
        out.read_line(&mut line).unwrap();
        let others = pids(&line);
        Self { child, others }
    }

    fn orphan(&self) -> Orphan {
        let pid = self.child.id();
        let start_time = start_time(pid);
        Orphan { pid, start_time }
    }

    fn alive(&self) -> Vec<u32> {
        let all = self.others.iter().copied().chain([self.child.id()]);
        all.filter(|pid| is_alive(*pid)).collect()
    }
}

#[cfg(target_os = "linux")]
impl Drop for Left {
    fn drop(&mut self) {
        for pid in self.alive() {
            kill(pid);
        }
        let _ = self.child.wait();
    }
}

/// Opens a connection past an orphan, and tells who of its tree was alive when it was there.
#[cfg(target_os = "linux")]
async fn open_past(rt: &Rt, orphan: Orphan, left: &Left) -> Vec<u32> {
    let mut connection = open(rt, shell("echo up; cat"), Some(orphan));
    let told = until(rt, &mut connection, |told| told.opened.is_some()).await;
    assert_eq!(told.text, "");
    let alive = left.alive();
    until(rt, &mut connection, |told| told.text == "up\n").await;
    connection.close();
    assert_eq!(
        *to_the_end(rt, &mut connection).await.reason(),
        CloseReason::ByUs
    );
    alive
}

#[cfg(target_os = "linux")]
async fn an_orphan_is_gone_with_its_whole_tree_before_the_next_server_starts(rt: Rt) {
    let stubborn = "trap '' TERM; sleep 100 & a=$!; setsid sh -c 'trap \"\" TERM; exec sleep 100' & \
                    echo $a $!; wait";
    for script in ["sleep 100 & echo $!; wait", stubborn] {
        let left = Left::start(script, Some("m-1"));
        let alive = open_past(&rt, left.orphan(), &left).await;
        assert_eq!(alive, [] as [u32; 0], "{script}");
    }
}

#[cfg(target_os = "linux")]
async fn what_an_orphan_that_is_gone_left_in_its_group_is_stopped_too(rt: Rt) {
    let left = Left::start("sleep 100 & echo $!; wait", Some("m-2"));
    let orphan = left.orphan();
    kill(left.child.id());
    assert_eq!(open_past(&rt, orphan, &left).await, [] as [u32; 0]);
    // Reaped, so that the pid is nobody's and only the group is left.
    let mut left = Left::start("sleep 100 & echo $!; wait", Some("m-3"));
    let orphan = left.orphan();
    kill(left.child.id());
    left.child.wait().unwrap();
    assert_eq!(open_past(&rt, orphan, &left).await, [] as [u32; 0]);
}

#[cfg(target_os = "linux")]
async fn a_stranger_is_never_touched(rt: Rt) {
    let script = "sleep 100 & echo $!; wait";
    let ours = Left::start(script, Some("m-4"));
    let all = ours.alive();
    let orphan = ours.orphan();
    // The pid was given away again since.
    let start_time = orphan.start_time.map(|start| start - 1);
    assert_eq!(
        open_past(
            &rt,
            Orphan {
                start_time,
                ..orphan
            },
            &ours
        )
        .await,
        all
    );
    // Nobody knows when it started.
    let start_time = None;
    assert_eq!(
        open_past(
            &rt,
            Orphan {
                start_time,
                ..orphan
            },
            &ours
        )
        .await,
        all
    );
    // One of its processes, which leads no group.
    let pid = ours.others[0];
    let start_time = super::start_time(pid);
    assert_eq!(open_past(&rt, Orphan { pid, start_time }, &ours).await, all);
    // After the system has started again others have the same pids, perhaps at the same times.
    let other = Left::start(script, None);
    let all = other.alive();
    assert_eq!(open_past(&rt, other.orphan(), &other).await, all);
    // Ourselves.
    let pid = std::process::id();
    let start_time = super::start_time(pid);
    assert_eq!(
        open_past(&rt, Orphan { pid, start_time }, &other).await,
        all
    );
}

#[cfg(target_os = "linux")]
async fn an_orphan_that_cannot_be_stopped_is_told_and_no_server_starts(rt: Rt) {
    let left = Left::start("echo $$; exec sleep 100", Some("m-5"));
    let (orphan, pid) = (left.orphan(), left.child.id());
    let term = Duration::from_millis(1);
    let stop = move || orphan::stop_with(orphan, term, |_, _| ());
    let server = ServerConfig::Child(shell("echo up"));
    let mut connection = Connection::after(Some(stop), reach(Arc::clone(&rt), server, 1 << 20));
    let told = to_the_end(&rt, &mut connection).await;
    let why = format!("process {pid}, an earlier server of ours, cannot be stopped");
    assert_eq!(*told.reason(), CloseReason::OpenFailed(why));
    assert_eq!(told.opened, None);
}

async fn a_connection_that_is_closed_before_it_is_there_starts_no_server(rt: Rt) {
    let mut connection = open(&rt, shell("echo up; cat"), None);
    connection.send(frame(1, "early\n"));
    connection.close();
    let told = to_the_end(&rt, &mut connection).await;
    assert_eq!((told.opened, told.unsent), (None, vec![1]));
    assert_eq!(told.closed.unwrap().reason, CloseReason::ByUs);
    let mut nothing = open(&rt, ChildConfig::program("no-such-app-server"), None);
    let told = to_the_end(&rt, &mut nothing).await;
    assert!(matches!(told.reason(), CloseReason::NotFound(_)));
}

on_both! {
    frames_arrive_in_order_and_output_comes_back,
    what_was_sent_before_the_close_is_written_and_what_comes_after_is_not,
    a_program_that_is_not_there_is_named_at_once,
    output_is_read_to_its_end_before_the_exit_code_counts,
    a_signal_is_told_apart_from_an_exit_code,
    a_flood_on_stderr_blocks_nothing_and_its_end_is_kept,
    frames_that_a_dead_child_did_not_take_are_given_back,
    a_server_that_never_reads_is_given_up,
    a_closed_stdout_is_no_exit,
    a_connection_that_is_closed_before_it_is_there_starts_no_server,
}

#[cfg(target_os = "linux")]
mod linux {
    use super::*;

    on_both! {
        a_whole_tree_that_ignores_sigterm_is_gone_after_the_close,
        a_launcher_that_is_killed_takes_its_child_along_within_a_second,
        who_left_the_group_and_lost_its_parent_is_found_as_well,
        a_connection_that_is_dropped_leaves_no_process_behind,
        the_server_has_its_own_group_environment_and_directory,
        an_orphan_is_gone_with_its_whole_tree_before_the_next_server_starts,
        what_an_orphan_that_is_gone_left_in_its_group_is_stopped_too,
        a_stranger_is_never_touched,
        an_orphan_that_cannot_be_stopped_is_told_and_no_server_starts,
    }
}
