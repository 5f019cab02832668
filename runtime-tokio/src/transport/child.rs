//! A server that runs as a child process and speaks over its stdin and stdout.

use std::{
    collections::VecDeque,
    fmt,
    future::Future as _,
    io,
    pin::{Pin, pin},
    process::{ExitStatus, Stdio},
    task::{Context, Poll},
    time::Duration,
};

use tokio::{
    io::{AsyncRead as _, AsyncWrite as _, ReadBuf},
    process::{ChildStdin, ChildStdout, Command},
    sync::mpsc,
};
use turnkeep_core::{CloseReason, Closed, Frame, FrameSeq, Peer};

use super::{
    Heard,
    ending::{Cause, Ending, Limits},
    process::{self, Process},
};
use crate::config::ChildConfig;

/// How many bytes may wait for a server that does not read: twice the largest frame.
const UNREAD: usize = 256 << 20;

/// One read: two hundred frames of streamed text.
const READ: usize = 64 << 10;

/// A limit that is none, and far from where an instant ends.
const FOR_EVER: Duration = Duration::from_secs(3_153_600_000);

/// A child process that serves us.
pub(crate) struct Child {
    state: State,
    /// What is still read while the process ends.
    reads: mpsc::UnboundedReceiver<Vec<u8>>,
    forward: mpsc::UnboundedSender<Vec<u8>>,
    /// Frames that will never be written and have not been told.
    unsent: VecDeque<FrameSeq>,
    limits: Limits,
}

enum State {
    Live(Box<Live>),
    Ending(Pin<Box<dyn Future<Output = (Vec<FrameSeq>, Closed)> + Send>>),
    Over(Option<Closed>),
}

/// The pipes of a process. Those of one that is ending are read and written the same way.
pub(super) struct Pipes {
    pub(super) stdin: Option<ChildStdin>,
    pub(super) stdout: Option<ChildStdout>,
    pub(super) frames: VecDeque<Frame>,
    /// The bytes of all of them.
    waiting: usize,
    /// How much of the first frame is written.
    pub(super) written: usize,
    buffer: Box<[u8]>,
}

struct Live {
    process: Process,
    pipes: Pipes,
}

impl Child {
    pub(super) fn spawn(config: &ChildConfig) -> Result<(Self, Peer), Closed> {
        let mark = process::new_mark();
        let mut command = Command::new(&config.program);
        command
            .args(&config.args)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(0)
            .kill_on_drop(true);
        for (name, value) in &config.env {
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
        if let Some(home) = &config.codex_home {
            command.env("CODEX_HOME", home);
        }
        if let Some(cwd) = &config.cwd {
            command.current_dir(cwd);
        }
        command.env(process::MARK, &mark);
        let failed = |error| Closed::new(why_not_started(config, &error), String::new());
        let mut child = command.spawn().map_err(failed)?;
        let pipes = Pipes {
            stdin: child.stdin.take(),
            stdout: child.stdout.take(),
            frames: VecDeque::new(),
            waiting: 0,
            written: 0,
            buffer: vec![0; READ].into(),
        };
        let process = Process::new(child, mark);
        let peer = Peer::child(process.pid(), process.start_time());
        let live = Box::new(Live { process, pipes });
        let (forward, reads) = mpsc::unbounded_channel();
        let child = Self {
            state: State::Live(live),
            reads,
            forward,
            unsent: VecDeque::new(),
            limits: Limits {
                close: config.close_limit.min(FOR_EVER),
                term: config.term_limit.min(FOR_EVER),
            },
        };
        Ok((child, peer))
    }

    pub(super) fn send(&mut self, frame: Frame) {
        match &mut self.state {
            State::Live(live) if live.pipes.waiting + frame.bytes.len() > UNREAD => {
                self.unsent.push_back(frame.seq);
                let error = io::Error::other("the server does not read what it is sent");
                self.end(Cause::Broken(error));
            }
            State::Live(live) => {
                live.pipes.waiting += frame.bytes.len();
                live.pipes.frames.push_back(frame);
            }
            State::Ending(_) | State::Over(_) => self.unsent.push_back(frame.seq),
        }
    }

    pub(super) fn close(&mut self) {
        self.end(Cause::Asked);
    }

    fn end(&mut self, cause: Cause) {
        match std::mem::replace(&mut self.state, State::Over(None)) {
            State::Live(live) => {
                let Live { process, pipes } = *live;
                let ending = Ending::new(process, pipes, self.forward.clone(), self.limits);
                self.state = State::Ending(Box::pin(ending.run(cause)));
            }
            state @ (State::Ending(_) | State::Over(_)) => self.state = state,
        }
    }

    pub(super) fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Heard> {
        loop {
            if let Some(seq) = self.unsent.pop_front() {
                return Poll::Ready(Heard::SendFailed(seq));
            }
            match &mut self.state {
                State::Live(live) => match live.poll(cx) {
                    Poll::Pending => return Poll::Pending,
                    Poll::Ready(Ok(bytes)) => return Poll::Ready(Heard::Read(bytes)),
                    Poll::Ready(Err(cause)) => self.end(cause),
                },
                State::Ending(end) => {
                    if let Poll::Ready(Some(bytes)) = self.reads.poll_recv(cx) {
                        return Poll::Ready(Heard::Read(bytes));
                    }
                    let Poll::Ready((unsent, closed)) = end.as_mut().poll(cx) else {
                        return Poll::Pending;
                    };
                    self.unsent.extend(unsent);
                    self.state = State::Over(Some(closed));
                }
                State::Over(closed) => {
                    if let Ok(bytes) = self.reads.try_recv() {
                        return Poll::Ready(Heard::Read(bytes));
                    }
                    return match closed.take() {
                        Some(closed) => Poll::Ready(Heard::Closed(closed)),
                        None => Poll::Pending,
                    };
                }
            }
        }
    }
}

impl Live {
    /// The next read, or why there will be none.
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<Vec<u8>, Cause>> {
        if let Err(error) = self.pipes.poll_write(cx) {
            return Poll::Ready(Err(Cause::Broken(error)));
        }
        match self.pipes.poll_read(cx) {
            Poll::Ready(Ok(Some(bytes))) => return Poll::Ready(Ok(bytes)),
            Poll::Ready(Ok(None)) => return Poll::Ready(Err(Cause::Eof)),
            Poll::Ready(Err(error)) => return Poll::Ready(Err(Cause::Broken(error))),
            Poll::Pending => {}
        }
        // A launcher's death shows here and nowhere else: its child holds the pipes.
        let waited = pin!(self.process.wait()).poll(cx);
        waited.map(|()| Err(Cause::Exited))
    }
}

impl Pipes {
    /// Writes frames until the pipe is full or none is left.
    pub(super) fn poll_write(&mut self, cx: &mut Context<'_>) -> io::Result<()> {
        while let Some(stdin) = &mut self.stdin {
            let Some(frame) = self.frames.front() else {
                break;
            };
            let rest = frame.bytes.get(self.written..).unwrap_or_default();
            if rest.is_empty() {
                self.waiting = self.waiting.saturating_sub(frame.bytes.len());
                self.frames.pop_front();
                self.written = 0;
                continue;
            }
            match Pin::new(stdin).poll_write(cx, rest) {
                Poll::Ready(Ok(0)) => return Err(io::ErrorKind::WriteZero.into()),
                Poll::Ready(Ok(n)) => self.written += n,
                Poll::Ready(Err(error)) => return Err(error),
                Poll::Pending => break,
            }
        }
        Ok(())
    }

    /// One read, `None` at the end of the stream, whose handle is dropped then.
    pub(super) fn poll_read(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<Option<Vec<u8>>>> {
        let Some(stdout) = &mut self.stdout else {
            return Poll::Pending;
        };
        let mut buffer = ReadBuf::new(&mut self.buffer);
        let polled = Pin::new(stdout).poll_read(cx, &mut buffer);
        polled.map_ok(|()| match buffer.filled() {
            [] => {
                self.stdout = None;
                None
            }
            bytes => Some(bytes.to_vec()),
        })
    }

    /// Frames of which not one byte was written. They are forgotten.
    pub(super) fn take_unsent(&mut self) -> Vec<FrameSeq> {
        let begun = usize::from(self.written > 0);
        self.written = 0;
        self.waiting = 0;
        let frames = std::mem::take(&mut self.frames);
        frames.iter().skip(begun).map(|frame| frame.seq).collect()
    }
}

impl fmt::Debug for Child {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.state {
            State::Live(_) => "Child(live)",
            State::Ending(_) => "Child(ending)",
            State::Over(_) => "Child(over)",
        })
    }
}

fn why_not_started(config: &ChildConfig, error: &io::Error) -> CloseReason {
    let program = config.program.to_string_lossy().into_owned();
    if let Some(cwd) = &config.cwd {
        // The system says the same of a missing directory as of a missing program.
        if !cwd.is_dir() {
            return CloseReason::OpenFailed(format!(
                "the working directory {} is no directory",
                cwd.display()
            ));
        }
    }
    let is_there = program.contains('/') && std::path::Path::new(&config.program).exists();
    if error.kind() == io::ErrorKind::NotFound && !is_there {
        return CloseReason::NotFound(vec![program]);
    }
    CloseReason::OpenFailed(format!("{program}: {error}"))
}

/// Why a process is no longer served by, in the words of the protocol's core.
pub(super) fn exited(status: ExitStatus) -> CloseReason {
    use std::os::unix::process::ExitStatusExt as _;
    CloseReason::Exited {
        code: status.code(),
        signal: status.signal(),
    }
}
