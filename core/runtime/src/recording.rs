//! The recording of a session: every step, written by a thread of its own. It never slows the
//! driver down and never stops it.

use std::{
    fs::File,
    io::{self, BufWriter, Write as _},
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
        mpsc,
    },
    thread,
};

use futures_channel::oneshot;
use tracing::warn;
use turnkeep_core::{
    Config, Effects, Input, Timestamp,
    codec::{
        journal::Entry,
        trace::{encode_header_from, encode_step},
    },
};

use crate::journal::{make_private, private};

/// What became of a recording.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RecordingSummary {
    /// The file.
    pub path: PathBuf,
    /// How many bytes were written.
    pub bytes: u64,
    /// How many steps were written.
    pub steps: u64,
    /// How many steps waited for the writer at most.
    pub most_waiting: u64,
    /// Why writing stopped before the end, if it did.
    pub error: Option<String>,
}

/// The recording's end in the driver.
#[derive(Debug)]
pub(crate) struct Recorder {
    lines: Option<mpsc::Sender<Line>>,
    waiting: Arc<AtomicU64>,
    most_waiting: u64,
    done: Option<oneshot::Receiver<RecordingSummary>>,
    path: PathBuf,
}

/// What a machine was made of, and what that led to.
#[derive(Debug)]
pub(crate) struct Header {
    pub(crate) at: Timestamp,
    pub(crate) seed: u64,
    pub(crate) config: Config,
    /// What earlier lives left in the journal.
    pub(crate) from: Option<Entry>,
    pub(crate) effects: Effects,
}

impl Header {
    fn encode(&self) -> String {
        let from = self.from.as_ref();
        encode_header_from(self.at, self.seed, &self.config, from, &self.effects)
    }
}

enum Line {
    Header(Box<Header>),
    Step(Timestamp, Input, Effects),
}

impl Recorder {
    pub(crate) fn create(path: &Path) -> io::Result<Self> {
        let file = private()
            .write(true)
            .create(true)
            .truncate(true)
            .open(path)?;
        make_private(&file)?;
        let (lines, incoming) = mpsc::channel();
        let (finished, done) = oneshot::channel();
        let waiting = Arc::new(AtomicU64::new(0));
        let counter = Arc::clone(&waiting);
        let owned = path.to_owned();
        let writer = move || {
            let _ = finished.send(write_all(owned, file, &incoming, &counter));
        };
        thread::Builder::new()
            .name("turnkeep-recording".into())
            .spawn(writer)?;
        Ok(Self {
            lines: Some(lines),
            waiting,
            most_waiting: 0,
            done: Some(done),
            path: path.to_owned(),
        })
    }

    pub(crate) fn begin(&mut self, header: Header) {
        self.send(Line::Header(Box::new(header)));
    }

    pub(crate) fn step(&mut self, at: Timestamp, input: Input, effects: Effects) {
        self.send(Line::Step(at, input, effects));
    }

    fn send(&mut self, line: Line) {
        let waiting = self.waiting.fetch_add(1, Ordering::Relaxed) + 1;
        self.most_waiting = self.most_waiting.max(waiting);
        if let Some(lines) = &self.lines {
            // A writer that has failed has said so.
            let _ = lines.send(line);
        }
    }

    /// Waits until all is written.
    pub(crate) async fn finish(&mut self) -> RecordingSummary {
        self.lines = None;
        let summary = match self.done.take() {
            Some(done) => done.await.ok(),
            None => None,
        };
        let mut summary = summary.unwrap_or_else(|| RecordingSummary {
            path: self.path.clone(),
            bytes: 0,
            steps: 0,
            most_waiting: 0,
            error: Some("the writer's thread panicked".into()),
        });
        summary.most_waiting = self.most_waiting;
        summary
    }
}

fn write_all(
    path: PathBuf,
    file: File,
    lines: &mpsc::Receiver<Line>,
    waiting: &AtomicU64,
) -> RecordingSummary {
    let mut out = BufWriter::with_capacity(1 << 16, file);
    let mut summary = RecordingSummary {
        path,
        bytes: 0,
        steps: 0,
        most_waiting: 0,
        error: None,
    };
    while let Ok(first) = lines.recv() {
        for line in std::iter::once(first).chain(lines.try_iter()) {
            waiting.fetch_sub(1, Ordering::Relaxed);
            if summary.error.is_some() {
                continue;
            }
            let (text, steps) = match line {
                Line::Header(header) => (header.encode(), 0),
                Line::Step(at, input, effects) => (encode_step(at, &input, &effects), 1),
            };
            match out.write_all(text.as_bytes()) {
                Ok(()) => {
                    summary.bytes += text.len() as u64;
                    summary.steps += steps;
                }
                Err(error) => summary.fail(&error),
            }
        }
        if summary.error.is_none() {
            if let Err(error) = out.flush() {
                summary.fail(&error);
            }
        }
    }
    summary
}

impl RecordingSummary {
    fn fail(&mut self, error: &io::Error) {
        warn!(path = %self.path.display(), %error, "the recording stops here");
        self.error = Some(error.to_string());
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use turnkeep_core::{Epoch, codec::trace::Reader};

    use super::*;

    fn header() -> Header {
        Header {
            at: Timestamp(1),
            seed: 7,
            config: Config::default(),
            from: None,
            effects: Effects::default(),
        }
    }

    #[tokio::test]
    async fn steps_are_written_in_order_to_a_private_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("session.trace");
        std::fs::write(&path, "an earlier one").unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o644)).unwrap();
        let mut recorder = Recorder::create(&path).unwrap();
        let effects = Effects::default();
        recorder.begin(header());
        for n in 0..50_u64 {
            let input = Input::Received(Epoch(1), n.to_string().into_bytes());
            recorder.step(Timestamp(n), input, effects.clone());
        }
        let summary = recorder.finish().await;
        let bytes = std::fs::read(&path).unwrap();
        assert_eq!((summary.steps, summary.error), (50, None));
        assert_eq!(summary.bytes, bytes.len() as u64);
        assert!(summary.most_waiting >= 1);
        let mode = std::fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        let (reader, header) = Reader::new(&bytes).unwrap();
        assert_eq!(header.seed, 7);
        let times: Vec<u64> = reader.map(|step| step.unwrap().at.0).collect();
        assert_eq!(times, (0..50).collect::<Vec<_>>());
    }

    #[cfg(target_os = "linux")]
    #[tokio::test]
    async fn a_full_disk_is_told_at_the_end_and_stops_nothing() {
        let mut recorder = Recorder::create(Path::new("/dev/full")).unwrap();
        let effects = Effects::default();
        recorder.begin(header());
        recorder.step(Timestamp(2), Input::Tick, effects);
        let summary = recorder.finish().await;
        assert!(summary.error.is_some());
    }
}
