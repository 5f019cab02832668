//! What a person types, line by line.

use std::{
    io::{self, BufRead as _},
    sync::mpsc as std_mpsc,
    thread,
};

use rustix::termios::{self, LocalModes, OptionalActions, QueueSelector, Termios};
use tokio::sync::mpsc;

/// Lines of stdin, each read only when it is asked for.
///
/// A thread of its own reads: tokio's stdin would keep the process from ending while a read waits.
#[derive(Debug)]
pub(crate) struct Lines {
    ask: std_mpsc::Sender<()>,
    lines: mpsc::UnboundedReceiver<Option<String>>,
    asked: bool,
}

impl Lines {
    pub(crate) fn new() -> io::Result<Self> {
        let (ask, asked) = std_mpsc::channel();
        let (out, lines) = mpsc::unbounded_channel();
        thread::Builder::new()
            .name("turnkeep-stdin".into())
            .spawn(move || {
                while asked.recv().is_ok() {
                    if out.send(read_line()).is_err() {
                        return;
                    }
                }
            })?;
        Ok(Self {
            ask,
            lines,
            asked: false,
        })
    }

    /// The next line without its end, `None` at the end of the input. May be dropped and asked
    /// again.
    pub(crate) async fn next(&mut self) -> Option<String> {
        if !self.asked {
            self.asked = true;
            self.ask.send(()).ok()?;
        }
        let line = self.lines.recv().await;
        self.asked = false;
        line.flatten()
    }

    /// Whether a line was typed before it was asked for.
    pub(crate) fn is_ahead(&self) -> bool {
        !self.asked && rustix::io::ioctl_fionread(io::stdin()).is_ok_and(|bytes| bytes > 0)
    }

    /// Forgets what was typed before it was asked for, so that no stray line answers a question.
    pub(crate) fn forget(&mut self) {
        let _ = termios::tcflush(io::stdin(), QueueSelector::IFlush);
        if self.lines.try_recv().is_ok() {
            self.asked = false;
        }
    }
}

fn read_line() -> Option<String> {
    let mut line = Vec::new();
    match io::stdin().lock().read_until(b'\n', &mut line) {
        Ok(0) | Err(_) => None,
        Ok(_) => {
            let text = String::from_utf8_lossy(&line);
            Some(text.trim_end_matches(['\n', '\r']).to_owned())
        }
    }
}

/// What is typed is not shown as long as this lives.
#[derive(Debug)]
pub(crate) struct NoEcho(Option<Termios>);

impl NoEcho {
    pub(crate) fn new() -> Self {
        let Ok(before) = termios::tcgetattr(io::stdin()) else {
            return Self(None);
        };
        let mut silent = before.clone();
        silent.local_modes.remove(LocalModes::ECHO);
        silent.local_modes.insert(LocalModes::ECHONL);
        let _ = termios::tcsetattr(io::stdin(), OptionalActions::Now, &silent);
        Self(Some(before))
    }
}

impl Drop for NoEcho {
    fn drop(&mut self) {
        if let Some(before) = &self.0 {
            let _ = termios::tcsetattr(io::stdin(), OptionalActions::Now, before);
        }
    }
}
