//! The one thread that writes a journal, and its end in the driver. All that waits becomes one write
//! and at most one sync.

use std::{
    io,
    pin::Pin,
    sync::mpsc as std_mpsc,
    task::{Context, Poll},
    thread,
    time::{Duration, Instant},
};

use async_channel::{Receiver, Sender};
use futures_channel::oneshot;
use futures_core::Stream as _;
use tracing::{debug, error};
use turnkeep_core::{Batch, Input, JournalSeq, codec::journal};

use super::store::{Group, Line, Store};

/// How many bytes are written at once before those who wait for them are told.
const GROUP: usize = 1 << 20;

/// How long the thread looks for what comes next before it sleeps.
const AT_ONCE: Duration = Duration::from_micros(100);

#[derive(Debug)]
enum Job {
    Append(Batch),
    Checkpoint(Batch),
}

#[derive(Debug)]
enum Answer {
    Appended {
        through: JournalSeq,
        wants_checkpoint: bool,
    },
    Checkpointed,
    Failed,
}

/// Whether the journal is to be made shorter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Compaction {
    Idle,
    Wanted,
    Running,
}

/// The writer, seen from the driver.
#[derive(Debug)]
pub(crate) struct Writer {
    jobs: Option<std_mpsc::Sender<Job>>,
    answers: Pin<Box<Receiver<Answer>>>,
    done: Option<oneshot::Receiver<bool>>,
    /// The last batch of the lives before.
    found: JournalSeq,
    handed: JournalSeq,
    confirmed: JournalSeq,
    compaction: Compaction,
    failed: bool,
}

impl Writer {
    pub(super) fn start(mut store: Box<dyn Store>, last: JournalSeq) -> io::Result<Self> {
        let (jobs, incoming) = std_mpsc::channel();
        let (outgoing, answers) = async_channel::unbounded();
        let (finished, done) = oneshot::channel();
        let writer = move || {
            let written = write_all(&mut *store, &incoming, &outgoing);
            if let Err(error) = &written {
                // After a failed write or sync nobody knows what the disk holds: trying again could
                // confirm what is lost.
                error!(%error, "the journal failed");
                let _ = outgoing.try_send(Answer::Failed);
            }
            drop(store);
            let _ = finished.send(written.is_ok());
        };
        thread::Builder::new()
            .name("turnkeep-journal".into())
            .spawn(writer)?;
        Ok(Self {
            jobs: Some(jobs),
            answers: Box::pin(answers),
            done: Some(done),
            found: last,
            handed: last,
            confirmed: last,
            compaction: Compaction::Idle,
            failed: false,
        })
    }

    pub(super) fn append(&mut self, batch: Batch) -> Option<Input> {
        self.handed = batch.through;
        self.send(Job::Append(batch))
    }

    pub(super) fn checkpoint(&mut self, batch: Batch) -> Option<Input> {
        self.compaction = Compaction::Running;
        self.send(Job::Checkpoint(batch))
    }

    fn send(&mut self, job: Job) -> Option<Input> {
        let sent = self
            .jobs
            .as_ref()
            .is_some_and(|jobs| jobs.send(job).is_ok());
        (!sent && !self.failed).then(|| self.fail())
    }

    fn fail(&mut self) -> Input {
        self.failed = true;
        Input::AppendFailed
    }

    /// Waits for the next answer. May be dropped and asked again.
    pub(super) fn poll_answer(&mut self, cx: &mut Context<'_>) -> Poll<Input> {
        while !self.failed {
            let Poll::Ready(answer) = self.answers.as_mut().poll_next(cx) else {
                return Poll::Pending;
            };
            match answer {
                Some(Answer::Appended {
                    through,
                    wants_checkpoint,
                }) => {
                    self.confirmed = through;
                    if wants_checkpoint && self.compaction == Compaction::Idle {
                        self.compaction = Compaction::Wanted;
                    }
                    return Poll::Ready(Input::Appended { through });
                }
                Some(Answer::Checkpointed) => self.compaction = Compaction::Idle,
                Some(Answer::Failed) | None => return Poll::Ready(self.fail()),
            }
        }
        Poll::Pending
    }

    pub(super) fn is_idle(&self) -> bool {
        self.failed || self.handed == self.confirmed
    }

    pub(super) fn confirmed(&self) -> JournalSeq {
        self.confirmed
    }

    pub(super) fn has_confirmed(&self) -> bool {
        self.confirmed > self.found
    }

    pub(super) fn wants_checkpoint(&self) -> bool {
        self.compaction == Compaction::Wanted && !self.failed
    }

    pub(super) async fn finish(&mut self) -> bool {
        self.jobs = None;
        if let Some(done) = self.done.take() {
            // A writer that panicked leaves no word.
            self.failed |= !done.await.unwrap_or(false);
        }
        !self.failed
    }
}

/// Works until nobody hands anything in any more.
fn write_all(
    store: &mut dyn Store,
    jobs: &std_mpsc::Receiver<Job>,
    answers: &Sender<Answer>,
) -> io::Result<()> {
    let mut group = Group::new();
    let mut next = None;
    while let Some(job) = next.take().or_else(|| wait(jobs)) {
        let answer = match job {
            Job::Append(first) => {
                group.clear();
                group.push(&first);
                while group.bytes().len() < GROUP && next.is_none() {
                    match jobs.try_recv() {
                        Ok(Job::Append(batch)) => group.push(&batch),
                        Ok(other @ Job::Checkpoint(_)) => next = Some(other),
                        Err(_) => break,
                    }
                }
                append(store, &group)?
            }
            Job::Checkpoint(batch) => {
                let line = journal::encode(&batch);
                store.checkpoint(Line::new(batch.through, &line))?;
                Answer::Checkpointed
            }
        };
        if answers.try_send(answer).is_err() {
            // What waits still is, unconfirmed, as well written as not.
            break;
        }
    }
    store.close()
}

/// The next job. What an answer leads to often comes at once: waking a thread takes longer than that.
fn wait(jobs: &std_mpsc::Receiver<Job>) -> Option<Job> {
    let begin = Instant::now();
    while begin.elapsed() < AT_ONCE {
        match jobs.try_recv() {
            Ok(job) => return Some(job),
            Err(std_mpsc::TryRecvError::Empty) => thread::yield_now(),
            Err(std_mpsc::TryRecvError::Disconnected) => return None,
        }
    }
    jobs.recv().ok()
}

fn append(store: &mut dyn Store, group: &Group) -> io::Result<Answer> {
    store.append(group)?;
    let through = group.last();
    debug!(%through, bytes = group.bytes().len(), durability = ?group.durability(), "journal written");
    Ok(Answer::Appended {
        through,
        wants_checkpoint: store.wants_checkpoint(),
    })
}
