//! A server that runs as a child process and speaks over its stdin and stdout.

use std::{
    collections::VecDeque,
    fmt, io,
    os::unix::process::CommandExt as _,
    pin::Pin,
    process::{Command, ExitStatus, Stdio},
    sync::Arc,
    task::{Context, Poll},
};

use async_channel::{Receiver, Sender};
use futures_core::Stream as _;
use turnkeep_core::{CloseReason, Closed, Frame, FrameSeq, Peer};

use super::{
    Bytes, Heard, Reached, Transport,
    ending::{Cause, Ending, Limits},
    pipes::Pipes,
    process::{self, Process},
};
use crate::{
    clock::CENTURY,
    config::ChildConfig,
    gate::Gate,
    runtime::{BoxFuture, Runtime},
};

/// A child process that serves us.
pub(crate) struct Child {
    runtime: Arc<dyn Runtime>,
    state: State,
    /// What is still read while the process ends.
    reads: Pin<Box<Receiver<Bytes>>>,
    forward: Sender<Bytes>,
    /// Frames that will never be written and have not been told.
    unsent: VecDeque<FrameSeq>,
    limits: Limits,
}

enum State {
    Live(Box<Live>),
    Ending(BoxFuture<(Vec<FrameSeq>, Closed)>),
    Over(Option<Closed>),
}

struct Live {
    process: Process,
    /// Before the process, which ends once, while the pipes bring something all the time.
    end: Gate,
    pipes: Pipes,
}

impl Child {
    pub(super) fn spawn(runtime: &Arc<dyn Runtime>, config: &ChildConfig) -> Reached {
        let mark = process::new_mark();
        let mut command = Command::new(&config.program);
        command
            .args(&config.args)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(0);
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
        let mut child = runtime.start(command).map_err(failed)?;
        let pipes = Pipes::new(child.take_stdin(), child.take_stdout());
        let process = Process::new(Arc::clone(runtime), child, mark);
        let peer = Peer::child(process.pid(), process.start_time());
        let live = Box::new(Live {
            process,
            end: Gate::new(),
            pipes,
        });
        let (forward, reads) = async_channel::unbounded();
        let child = Self {
            runtime: Arc::clone(runtime),
            state: State::Live(live),
            reads: Box::pin(reads),
            forward,
            unsent: VecDeque::new(),
            limits: Limits {
                close: config.close_limit.min(CENTURY),
                term: config.term_limit.min(CENTURY),
            },
        };
        Ok((Box::new(child), peer))
    }

    fn end(&mut self, cause: Cause) {
        match std::mem::replace(&mut self.state, State::Over(None)) {
            State::Live(live) => {
                let Live { process, pipes, .. } = *live;
                let ending = Ending::new(
                    Arc::clone(&self.runtime),
                    process,
                    pipes,
                    self.forward.clone(),
                    self.limits,
                );
                self.state = State::Ending(Box::pin(ending.run(cause)));
            }
            state @ (State::Ending(_) | State::Over(_)) => self.state = state,
        }
    }
}

impl Transport for Child {
    fn send(&mut self, frame: Frame) {
        match &mut self.state {
            State::Live(live) => {
                if let Err(frame) = live.pipes.push(frame) {
                    self.unsent.push_back(frame.seq);
                    let error = io::Error::other("the server does not read what it is sent");
                    self.end(Cause::Broken(error));
                }
            }
            State::Ending(_) | State::Over(_) => self.unsent.push_back(frame.seq),
        }
    }

    fn close(&mut self) {
        self.end(Cause::Asked);
    }

    fn reuse(&mut self, bytes: Bytes) {
        if let State::Live(live) = &mut self.state {
            live.pipes.reuse(bytes);
        }
    }

    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Heard> {
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
                    if let Poll::Ready(Some(bytes)) = self.reads.as_mut().poll_next(cx) {
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
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<Bytes, Cause>> {
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
        let exited = self.end.poll(cx, |cx| self.process.poll_wait(cx));
        exited.map(|()| Err(Cause::Exited))
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
