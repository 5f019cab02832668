//! The loop that gives a fake server its pipes.

use std::collections::VecDeque;
use std::fs;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::path::PathBuf;
use std::process::{Command, ExitCode, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, TryRecvError, channel};
use std::thread;
use std::time::{Duration, Instant};

use super::{Action, Server, demo::STORE};

/// How long a server that ignores the end of its stdin lives on at most, so that a failed test leaves nothing behind for ever.
const ORPHAN_LIMIT: Duration = Duration::from_secs(600);

/// How a served conversation ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum End {
    /// With this exit code.
    Exit(i32),
    /// It is to be killed.
    Died,
    /// stdout is to be closed; go on with this script.
    StdoutClosed {
        /// The script's remaining lines.
        rest: String,
    },
}

/// Runs `server` until it ends: lines from `stdin`, actions to `stdout` and `stderr`.
///
/// Reading goes on in a thread of its own, so that a steer or the end of stdin is seen while the server streams or sleeps.
pub fn serve(
    mut server: impl Server,
    stdin: impl Read + Send + 'static,
    mut stdout: impl Write,
    mut stderr: impl Write,
) -> End {
    let mut input = Input::new(stdin);
    let mut actions: VecDeque<Action> = server.poll(0).into();
    loop {
        input.take_what_came();
        if input.ended_now() {
            // The real server reads what came before the end, too; it does not wait for its own answers.
            while let Some(line) = input.lines.pop_front() {
                actions.extend(server.on_line(input.now(), &line));
            }
            let answer = server.on_eof(input.now());
            hand_over_eof(&mut actions, answer);
        }
        if let Some(action) = actions.pop_front() {
            match action {
                Action::Write(bytes) => {
                    if stdout
                        .write_all(&bytes)
                        .and_then(|()| stdout.flush())
                        .is_err()
                    {
                        return End::Exit(1);
                    }
                }
                Action::Stderr(bytes) => {
                    drop(stderr.write_all(&bytes).and_then(|()| stderr.flush()))
                }
                Action::Sleep(ms) => {
                    let until = Instant::now() + Duration::from_millis(ms);
                    if input.wait(Some(until)) {
                        // Something came; the rest of the sleep is still to be slept.
                        let rest = until.saturating_duration_since(Instant::now());
                        actions.push_front(Action::Sleep(
                            u64::try_from(rest.as_millis()).unwrap_or(u64::MAX),
                        ));
                    }
                }
                Action::Exit(code) => return End::Exit(code),
                Action::Die => return End::Died,
                Action::CloseStdout { rest } => return End::StdoutClosed { rest },
                Action::Keep(bytes) => {
                    if let Err(error) = keep(&bytes) {
                        let told = format!("fake-app-server: cannot keep its threads: {error}\n");
                        drop(stderr.write_all(told.as_bytes()));
                    }
                }
                Action::SpawnGrandchild => {
                    let told = spawn_grandchild();
                    drop(
                        stderr
                            .write_all(told.as_bytes())
                            .and_then(|()| stderr.flush()),
                    );
                }
            }
            continue;
        }
        let now = input.now();
        if let Some(line) = input.lines.pop_front() {
            actions.extend(server.on_line(now, &line));
        } else if server.due().is_some_and(|due| due <= now) {
            actions.extend(server.poll(now));
        } else {
            let until = server
                .due()
                .map(|due| input.start + Duration::from_millis(due));
            if input.over && until.is_none() {
                thread::sleep(ORPHAN_LIMIT);
                return End::Exit(0);
            }
            input.wait(until);
        }
    }
}

/// A kill leaves what was kept before, or this, and nothing in between.
fn keep(bytes: &[u8]) -> io::Result<()> {
    let Some(path) = std::env::var_os(STORE).map(PathBuf::from) else {
        return Ok(());
    };
    let next = path.with_extension("next");
    fs::write(&next, bytes)?;
    fs::rename(next, path)
}

fn hand_over_eof(actions: &mut VecDeque<Action>, answer: Vec<Action>) {
    let first = answer
        .iter()
        .find(|action| !matches!(action, Action::Stderr(_)));
    if matches!(first, Some(Action::Exit(_))) {
        actions.clear();
    }
    actions.extend(answer);
}

/// The lines of stdin, read by a thread.
struct Input {
    start: Instant,
    from: Receiver<Vec<u8>>,
    lines: VecDeque<Vec<u8>>,
    over: bool,
    told: bool,
}

impl Input {
    fn new(stdin: impl Read + Send + 'static) -> Self {
        let (to, from) = channel();
        thread::spawn(move || {
            let mut stdin = BufReader::new(stdin);
            let mut line = Vec::new();
            while matches!(stdin.read_until(b'\n', &mut line), Ok(length) if length > 0) {
                if line.ends_with(b"\n") {
                    line.pop();
                }
                if to.send(std::mem::take(&mut line)).is_err() {
                    return;
                }
            }
        });
        Self {
            start: Instant::now(),
            from,
            lines: VecDeque::new(),
            over: false,
            told: false,
        }
    }

    fn now(&self) -> u64 {
        u64::try_from(self.start.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    fn take_what_came(&mut self) {
        loop {
            match self.from.try_recv() {
                Ok(line) => self.lines.push_back(line),
                Err(TryRecvError::Empty) => return,
                Err(TryRecvError::Disconnected) => {
                    self.over = true;
                    return;
                }
            }
        }
    }

    /// Whether the end is new.
    fn ended_now(&mut self) -> bool {
        self.over && !std::mem::replace(&mut self.told, true)
    }

    /// Waits for a line, the end or the time; false for the time.
    fn wait(&mut self, until: Option<Instant>) -> bool {
        let left = until.map(|until| until.saturating_duration_since(Instant::now()));
        if self.over {
            // The end came before; only time can pass.
            thread::sleep(left.unwrap_or(ORPHAN_LIMIT));
            return false;
        }
        let came = match left {
            Some(left) => self.from.recv_timeout(left),
            None => self.from.recv().map_err(|_| RecvTimeoutError::Disconnected),
        };
        match came {
            Ok(line) => self.lines.push_back(line),
            Err(RecvTimeoutError::Timeout) => return false,
            Err(RecvTimeoutError::Disconnected) => self.over = true,
        }
        true
    }
}

fn spawn_grandchild() -> String {
    let child = Command::new("sh")
        .args(["-c", "trap '' TERM; exec sleep 600"])
        .stdin(Stdio::null())
        .spawn();
    match child {
        Ok(child) => format!("fake-app-server: grandchild {}\n", child.id()),
        Err(error) => format!("fake-app-server: no grandchild: {error}\n"),
    }
}

/// Runs `server` on the pipes of this process and gives the code to exit with.
///
/// A server that is to die is killed here and does not return. A script that closes stdout needs a process without it: this
/// executable replaces itself by `--script-text REST` with stdout on the null device, which the executable must understand.
pub fn run(server: impl Server) -> ExitCode {
    match serve(server, io::stdin(), io::stdout(), io::stderr()) {
        End::Exit(code) => ExitCode::from(u8::try_from(code).unwrap_or(1)),
        End::Died => die(),
        End::StdoutClosed { rest } => go_on_without_stdout(&rest),
    }
}

fn die() -> ExitCode {
    // There is no safe call for signal 9 in the standard library; the shell has one built in.
    let killed = Command::new("sh")
        .args(["-c", &format!("kill -9 {}", std::process::id())])
        .status();
    if killed.is_ok_and(|status| status.success()) {
        thread::sleep(Duration::from_secs(10));
    }
    std::process::abort()
}

#[cfg(unix)]
fn go_on_without_stdout(rest: &str) -> ExitCode {
    use std::os::unix::process::CommandExt as _;
    let Ok(executable) = std::env::current_exe() else {
        return ExitCode::from(99);
    };
    let error = Command::new(executable)
        .args(["--script-text", rest])
        .stdout(Stdio::null())
        .exec();
    eprintln!("fake-app-server: cannot close stdout: {error}");
    ExitCode::from(99)
}

#[cfg(not(unix))]
fn go_on_without_stdout(_: &str) -> ExitCode {
    eprintln!("fake-app-server: cannot close stdout here");
    ExitCode::from(99)
}

#[cfg(test)]
mod tests {
    use std::io::Cursor;

    use super::*;
    use crate::fake::{Engine, Script};

    fn played(script: &str, input: &'static str) -> (End, String, String) {
        let (mut out, mut err) = (Vec::new(), Vec::new());
        let end = serve(
            Engine::new(Script::parse(script).unwrap()),
            Cursor::new(input),
            &mut out,
            &mut err,
        );
        (
            end,
            String::from_utf8(out).unwrap(),
            String::from_utf8(err).unwrap(),
        )
    }

    #[test]
    fn lines_before_the_end_are_read_and_answered_when_the_script_waits_for_it() {
        let script =
            "C {\"id\":\"$a\"}\nS {\"id\":\"$a\",\"result\":1}\nX eof\nS {\"bye\":1}\nX exit 4";
        let (end, out, err) = played(script, "{\"id\":9}\n");
        assert_eq!((end, err.as_str()), (End::Exit(4), ""));
        assert_eq!(out, "{\"id\":9,\"result\":1}\n{\"bye\":1}\n");
    }

    #[test]
    fn the_end_of_stdin_cuts_a_sleep_short() {
        let start = Instant::now();
        let (end, _, _) = played("X sleep 60000\nX exit 3", "");
        assert_eq!(end, End::Exit(0));
        assert!(start.elapsed() < Duration::from_secs(10));
    }

    #[test]
    fn a_sleep_is_slept_where_the_end_of_stdin_is_ignored() {
        let start = Instant::now();
        let (end, _, _) = played("X ignore-eof\nX sleep 200\nX exit 3", "");
        assert_eq!(end, End::Exit(3));
        assert!(start.elapsed() >= Duration::from_millis(190));
    }

    #[test]
    fn stdout_is_handed_back_to_be_closed() {
        let (end, _, _) = played("X ignore-eof\nX close stdout\nX exit 5", "");
        let End::StdoutClosed { rest } = end else {
            panic!("{end:?}")
        };
        assert_eq!(played(&rest, "").0, End::Exit(5));
    }
}
