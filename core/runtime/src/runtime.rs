//! What a runtime must do: run tasks, wait, start processes, open sockets. Nothing of it knows what
//! the bytes mean.

use std::{
    fmt,
    future::Future,
    io,
    path::PathBuf,
    pin::Pin,
    process::{Command, ExitStatus},
    task::{Context, Poll},
    time::Duration,
};

use futures_io::{AsyncRead, AsyncWrite};

/// A future on the heap.
pub type BoxFuture<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// Where bytes come from.
pub type BoxRead = Box<dyn AsyncRead + Send + Unpin>;

/// Where bytes go to.
pub type BoxWrite = Box<dyn AsyncWrite + Send + Unpin>;

/// Both ends of a stream in one.
pub trait ReadWrite: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> ReadWrite for T {}

/// A stream in both directions.
pub type BoxStream = Box<dyn ReadWrite>;

/// An async runtime, as far as a client needs one.
///
/// It is implemented once for each: `turnkeep-tokio` and `turnkeep-async-std` do it, and about a
/// hundred lines do it for another. Its functions are called from tasks that it
/// [spawned](Self::spawn), or from where a client is started.
pub trait Runtime: fmt::Debug + Send + Sync + 'static {
    /// Runs a task to its end, whoever waits for it or not.
    fn spawn(&self, task: BoxFuture<()>);

    /// Waits, by a clock that nobody sets. It is polled again once it has woken whoever polled it last.
    fn sleep(&self, span: Duration) -> BoxFuture<()>;

    /// Starts a process, all of whose three streams are pipes. A handle that is dropped kills its
    /// process.
    ///
    /// # Errors
    ///
    /// What the system says.
    fn start(&self, command: Command) -> io::Result<Box<dyn ChildProcess>>;

    /// Opens a stream by TCP, without delay of small writes (`TCP_NODELAY`).
    fn connect_tcp(&self, host: String, port: u16) -> BoxFuture<io::Result<BoxStream>>;

    /// Opens a stream to a Unix socket.
    fn connect_unix(&self, path: PathBuf) -> BoxFuture<io::Result<BoxStream>>;
}

/// A child process of a [`Runtime`].
pub trait ChildProcess: fmt::Debug + Send + Sync {
    /// The process id, also when the process has ended; `None` where it was never known.
    fn id(&self) -> Option<u32>;

    /// Its stdin, once.
    fn take_stdin(&mut self) -> Option<BoxWrite>;

    /// Its stdout, once.
    fn take_stdout(&mut self) -> Option<BoxRead>;

    /// Its stderr, once.
    fn take_stderr(&mut self) -> Option<BoxRead>;

    /// Waits for its end and reaps it. It tells the same as often as it is asked, and is asked again
    /// once it has woken whoever asked last.
    fn poll_wait(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<ExitStatus>>;

    /// Reaps it if it has ended.
    ///
    /// # Errors
    ///
    /// What the system says.
    fn try_wait(&mut self) -> io::Result<Option<ExitStatus>>;
}

/// Lets the other tasks of the runtime go first, once.
pub(crate) async fn yield_now() {
    let mut yielded = false;
    std::future::poll_fn(|cx| {
        if yielded {
            return Poll::Ready(());
        }
        yielded = true;
        cx.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

/// Does what blocks in a thread of its own; `None` if it panicked or no thread could be had.
pub(crate) async fn unblock<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Option<T> {
    let (done, result) = futures_channel::oneshot::channel();
    let work = move || {
        // Nobody may wait any more.
        let _ = done.send(work());
    };
    let thread = std::thread::Builder::new().name("turnkeep-blocking".into());
    thread.spawn(work).ok()?;
    result.await.ok()
}

/// Waits for a future for so long at most.
pub(crate) async fn timeout<T>(
    runtime: &dyn Runtime,
    span: Duration,
    future: impl Future<Output = T>,
) -> Option<T> {
    let limit = async {
        runtime.sleep(span).await;
        None
    };
    futures_lite::future::or(async { Some(future.await) }, limit).await
}
