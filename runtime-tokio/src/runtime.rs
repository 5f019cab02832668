//! tokio, as the client needs it.

use std::{
    future::Future as _,
    io,
    path::PathBuf,
    pin::pin,
    process::{Command, ExitStatus},
    task::{Context, Poll},
    time::Duration,
};

use tokio::{
    net::{TcpStream, UnixStream},
    process::Child,
};
use tokio_util::compat::{TokioAsyncReadCompatExt as _, TokioAsyncWriteCompatExt as _};
use turnkeep_runtime::{BoxFuture, BoxRead, BoxStream, BoxWrite, ChildProcess, Runtime};

/// The tokio runtime that is current where a client is started, with time and IO enabled.
#[allow(unreachable_pub)] // The unit tests of turnkeep-runtime take this file in as it is.
#[derive(Clone, Copy, Debug, Default)]
#[non_exhaustive]
pub struct Tokio;

impl Runtime for Tokio {
    fn spawn(&self, task: BoxFuture<()>) {
        tokio::spawn(task);
    }

    fn sleep(&self, span: Duration) -> BoxFuture<()> {
        Box::pin(tokio::time::sleep(span))
    }

    fn start(&self, command: Command) -> io::Result<Box<dyn ChildProcess>> {
        let mut command = tokio::process::Command::from(command);
        let child = command.kill_on_drop(true).spawn()?;
        let id = child.id();
        Ok(Box::new(Process { child, id }))
    }

    fn connect_tcp(&self, host: String, port: u16) -> BoxFuture<io::Result<BoxStream>> {
        Box::pin(async move {
            let stream = TcpStream::connect((host, port)).await?;
            stream.set_nodelay(true)?;
            Ok(Box::new(stream.compat()) as BoxStream)
        })
    }

    fn connect_unix(&self, path: PathBuf) -> BoxFuture<io::Result<BoxStream>> {
        Box::pin(async move {
            let stream = UnixStream::connect(path).await?;
            Ok(Box::new(stream.compat()) as BoxStream)
        })
    }
}

#[derive(Debug)]
struct Process {
    child: Child,
    id: Option<u32>,
}

impl ChildProcess for Process {
    fn id(&self) -> Option<u32> {
        self.id
    }

    fn take_stdin(&mut self) -> Option<BoxWrite> {
        let stdin = self.child.stdin.take()?;
        Some(Box::new(stdin.compat_write()))
    }

    fn take_stdout(&mut self) -> Option<BoxRead> {
        let stdout = self.child.stdout.take()?;
        Some(Box::new(stdout.compat()))
    }

    fn take_stderr(&mut self) -> Option<BoxRead> {
        let stderr = self.child.stderr.take()?;
        Some(Box::new(stderr.compat()))
    }

    fn poll_wait(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<ExitStatus>> {
        // The wait holds nothing of its own: dropped it is begun again.
        pin!(self.child.wait()).poll(cx)
    }

    fn try_wait(&mut self) -> io::Result<Option<ExitStatus>> {
        self.child.try_wait()
    }
}
