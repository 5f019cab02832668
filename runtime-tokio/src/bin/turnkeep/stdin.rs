//! What comes on stdin for a command that reads it at once. A signal ends the wait.

use std::{
    io::{self, Read as _},
    thread,
};

use tokio::sync::oneshot;

use crate::{
    problem::Problem,
    signals::{Signal, Signals},
};

/// All of stdin, as text.
pub(crate) async fn all(
    signals: &mut Signals,
    what: &str,
) -> Result<Result<String, Signal>, Problem> {
    let read = || {
        let mut bytes = Vec::new();
        io::stdin().lock().read_to_end(&mut bytes).map(|_| bytes)
    };
    Ok(match wait(signals, read).await? {
        Ok(bytes) => Ok(String::from_utf8(bytes)
            .map_err(|_| Problem::usage(format!("the {what} on stdin is not UTF-8")))?),
        Err(signal) => Err(signal),
    })
}

/// The next line of stdin.
pub(crate) async fn line(signals: &mut Signals) -> Result<Result<String, Signal>, Problem> {
    let read = || {
        let mut line = String::new();
        io::stdin().read_line(&mut line).map(|_| line)
    };
    wait(signals, read).await
}

async fn wait<T: Send + 'static>(
    signals: &mut Signals,
    read: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> Result<Result<T, Signal>, Problem> {
    // A thread of its own, which no runtime waits for at its end.
    let (out, text) = oneshot::channel();
    thread::spawn(move || {
        let _ = out.send(read());
    });
    let read = tokio::select! {
        read = text => read,
        signal = signals.next() => return Ok(Err(signal)),
    };
    let read = read.unwrap_or_else(|gone| Err(io::Error::other(gone)));
    let cannot = |error| Problem::usage(format!("cannot read stdin: {error}"));
    read.map(Ok).map_err(cannot)
}
