//! Answers that a person types, line by line, as the terminal gives them.

use std::{
    io::{self, Read as _, Write as _},
    os::unix::net::UnixStream,
    sync::mpsc as std_mpsc,
    thread,
};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    io::{Errno, retry_on_intr},
    termios::{self, LocalModes, OptionalActions, QueueSelector, Termios},
};
use tokio::sync::mpsc;

/// Lines of stdin, each read only when it is asked for: what is typed before or after that is not
/// taken from whoever reads the terminal next.
///
/// A thread of its own reads: tokio's stdin can neither be stopped nor end with the process.
#[derive(Debug)]
pub(crate) struct Lines {
    ask: std_mpsc::Sender<(Wanted, usize)>,
    told: mpsc::UnboundedReceiver<Told>,
    wake: UnixStream,
    asked: Option<Wanted>,
    /// How many words to stop came too late and wait for nothing.
    late: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wanted {
    Line,
    /// Word that the terminal is gone.
    End,
}

#[derive(Debug)]
enum Told {
    Line(Option<String>),
    Stopped,
}

impl Lines {
    pub(crate) fn new() -> io::Result<Self> {
        let (ask, asked) = std_mpsc::channel();
        let (out, told) = mpsc::unbounded_channel();
        let (wake, woken) = UnixStream::pair()?;
        thread::Builder::new()
            .name("turnkeep-stdin".into())
            .spawn(move || {
                while let Ok((wanted, late)) = asked.recv() {
                    let _ = (&woken).read_exact(&mut vec![0; late]);
                    if out.send(read(wanted, &woken)).is_err() {
                        return;
                    }
                }
            })?;
        Ok(Self {
            ask,
            told,
            wake,
            asked: None,
            late: 0,
        })
    }

    /// The next line without its end, `None` at the end of the input. May be dropped and asked
    /// again.
    pub(crate) async fn next(&mut self) -> Option<String> {
        self.wait(Wanted::Line).await
    }

    /// Waits until the terminal is gone, and reads nothing.
    pub(crate) async fn end(&mut self) {
        self.wait(Wanted::End).await;
    }

    async fn wait(&mut self, wanted: Wanted) -> Option<String> {
        loop {
            if self.asked.is_some_and(|asked| asked != wanted) {
                self.stop().await;
            }
            if self.asked.is_none() {
                self.asked = Some(wanted);
                let late = std::mem::take(&mut self.late);
                self.ask.send((wanted, late)).ok()?;
            }
            let told = self.told.recv().await;
            self.asked = None;
            match told {
                Some(Told::Line(line)) => return line,
                Some(Told::Stopped) => {}
                None => return None,
            }
        }
    }

    /// Reads no further where a line was asked for and is not wanted any more. Gives one that came
    /// at this moment.
    pub(crate) async fn stop(&mut self) -> Option<String> {
        self.asked.take()?;
        // Where it fails the thread is gone, and tells so.
        let _ = self.wake.write(&[0]);
        match self.told.recv().await {
            Some(Told::Line(line)) => {
                self.late += 1;
                line
            }
            Some(Told::Stopped) | None => None,
        }
    }

    /// Whether a line was typed before it was asked for.
    pub(crate) fn is_ahead(&self) -> bool {
        let stdin = io::stdin();
        let mut ends = [PollFd::new(&stdin, PollFlags::IN)];
        self.asked.is_none() && poll(&mut ends, Some(&Timespec::default())).is_ok_and(|n| n > 0)
    }

    /// Forgets what was typed before it was asked for, so that no stray line answers a question.
    pub(crate) fn forget(&mut self) {
        let _ = termios::tcflush(io::stdin(), QueueSelector::IFlush);
    }
}

fn read(wanted: Wanted, woken: &UnixStream) -> Told {
    let mut line = Vec::new();
    let stdin = io::stdin();
    let what = match wanted {
        Wanted::Line => PollFlags::IN,
        // That a terminal is gone is told to those who ask for nothing, too.
        Wanted::End => PollFlags::empty(),
    };
    // Ctrl-D in the middle of a line gives what there is of it.
    while !line.ends_with(b"\n") {
        let mut ends = [PollFd::new(&stdin, what), PollFd::new(woken, PollFlags::IN)];
        match poll(&mut ends, None) {
            Ok(_) if !ends[1].revents().is_empty() => {
                let _ = (&*woken).read_exact(&mut [0]);
                return Told::Stopped;
            }
            Ok(_) if wanted == Wanted::End => return Told::Line(None),
            Ok(_) => {}
            Err(Errno::INTR) => continue,
            Err(_) => return Told::Line(None),
        }
        let mut buffer = [0; 4096];
        match retry_on_intr(|| rustix::io::read(&stdin, &mut buffer)) {
            Ok(0) | Err(_) => return Told::Line(None),
            Ok(n) => line.extend(&buffer[..n]),
        }
    }
    let text = String::from_utf8_lossy(&line);
    Told::Line(Some(text.trim_end_matches(['\n', '\r']).to_owned()))
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
