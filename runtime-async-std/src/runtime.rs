//! async-std, as the client needs it. This is the only file that names it.

use std::{
    fmt, io,
    path::PathBuf,
    pin::Pin,
    process::{Command, ExitStatus, Stdio},
    task::{Context, Poll, ready},
    time::Duration,
};

use async_process::Child;
use async_std::{net::TcpStream, os::unix::net::UnixStream, task};
use turnkeep_runtime::{BoxFuture, BoxRead, BoxStream, BoxWrite, ChildProcess, Runtime};

/// The process-wide runtime of async-std, which starts by itself.
#[allow(unreachable_pub)] // The unit tests of turnkeep-runtime take this file in as it is.
#[derive(Clone, Copy, Debug, Default)]
#[non_exhaustive]
pub struct AsyncStd;

impl Runtime for AsyncStd {
    fn spawn(&self, task: BoxFuture<()>) {
        task::spawn(task);
    }

    fn sleep(&self, span: Duration) -> BoxFuture<()> {
        Box::pin(task::sleep(span))
    }

    fn start(&self, command: Command) -> io::Result<Box<dyn ChildProcess>> {
        let mut command = async_process::Command::from(command);
        // It asks for these itself: what a command of the standard library says is not looked at.
        command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true);
        let child = command.spawn()?;
        Ok(Box::new(Process {
            child,
            wait: None,
            status: None,
        }))
    }

    fn connect_tcp(&self, host: String, port: u16) -> BoxFuture<io::Result<BoxStream>> {
        Box::pin(async move {
            let stream = TcpStream::connect((&*host, port)).await?;
            stream.set_nodelay(true)?;
            Ok(Box::new(stream) as BoxStream)
        })
    }

    fn connect_unix(&self, path: PathBuf) -> BoxFuture<io::Result<BoxStream>> {
        Box::pin(async move {
            let stream = UnixStream::connect(&path).await?;
            Ok(Box::new(stream) as BoxStream)
        })
    }
}

type Wait = Pin<Box<dyn Future<Output = io::Result<ExitStatus>> + Send + Sync>>;

struct Process {
    child: Child,
    wait: Option<Wait>,
    status: Option<ExitStatus>,
}

impl ChildProcess for Process {
    fn id(&self) -> Option<u32> {
        Some(self.child.id())
    }

    fn take_stdin(&mut self) -> Option<BoxWrite> {
        let stdin = self.child.stdin.take()?;
        Some(Box::new(stdin))
    }

    fn take_stdout(&mut self) -> Option<BoxRead> {
        let stdout = self.child.stdout.take()?;
        Some(Box::new(stdout))
    }

    fn take_stderr(&mut self) -> Option<BoxRead> {
        let stderr = self.child.stderr.take()?;
        Some(Box::new(stderr))
    }

    fn poll_wait(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<ExitStatus>> {
        if let Some(status) = self.status {
            return Poll::Ready(Ok(status));
        }
        let child = &mut self.child;
        let wait = self.wait.get_or_insert_with(|| Box::pin(child.status()));
        let status = ready!(wait.as_mut().poll(cx));
        self.wait = None;
        self.status = status.as_ref().ok().copied();
        Poll::Ready(status)
    }

    fn try_wait(&mut self) -> io::Result<Option<ExitStatus>> {
        if self.status.is_none() {
            self.status = self.child.try_status()?;
        }
        Ok(self.status)
    }
}

impl fmt::Debug for Process {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Process")
            .field("child", &self.child)
            .field("status", &self.status)
            .finish_non_exhaustive()
    }
}
