//! The loop: wait, step, perform. One task owns the machine.

use std::{
    collections::VecDeque,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use async_channel::Receiver;
use futures_core::Stream as _;
use tracing::{debug, error, trace};
use turnkeep_core::{
    CommandId, Effect, Effects, Epoch, Event, Input, Machine, Reply, Timestamp,
    command::ShutdownReport, effect::OpenReason,
};

use crate::{
    clock::{Alarm, Clock},
    config::ServerConfig,
    gate::Gate,
    hub::Hub,
    journal::Journal,
    life::{Ended, Life, ShutdownSummary},
    recording::Recorder,
    request::{Note, Request},
    runtime::{Runtime, yield_now},
    transport::{Bytes, Connection, Heard},
};

/// How many inputs are worked on before other tasks get their turn.
const BUDGET: u32 = 1_000;

/// How many numbers a life has for its commands.
const LIFE: u64 = 1_000_000_000_000;

/// How far the client's life has come.
#[derive(Debug)]
pub(crate) enum Stage {
    Serving,
    Closing(CommandId),
    Closed(ShutdownReport),
    Halted,
}

pub(crate) struct Driver {
    pub(crate) machine: Machine,
    pub(crate) clock: Clock,
    pub(crate) journal: Journal,
    pub(crate) recorder: Option<Recorder>,
    pub(crate) runtime: Arc<dyn Runtime>,
    pub(crate) server: ServerConfig,
    /// Bytes of one frame, either way.
    pub(crate) frame_limit: usize,
    pub(crate) hub: Hub,
    pub(crate) life: Arc<Life>,
    pub(crate) requests: Pin<Box<Receiver<Request>>>,
    pub(crate) notes: Pin<Box<Receiver<Note>>>,
    pub(crate) work: Work,
}

/// The driver's own state.
pub(crate) struct Work {
    pub(crate) stage: Stage,
    /// Inputs that need not be waited for.
    pub(crate) ready: VecDeque<Input>,
    pub(crate) commands: u64,
    connection: Option<(Epoch, Connection)>,
    /// How many bytes were read since the readers were told last.
    untold: usize,
    alarm: Alarm,
    /// Before all that is waited for but the connection.
    others: Gate,
    /// The time of the last step.
    now: Timestamp,
    /// How often the others were looked at.
    looks: usize,
    /// Whether the connection was the last to be heard.
    heard: bool,
    /// What the last server left on stderr.
    stderr_tail: String,
    all_handles_are_gone: bool,
}

/// What the driver waits for.
enum Happened {
    Heard(Epoch, Heard),
    /// An input that came from within.
    Due(Input),
    Noted(Note),
    Requested(Option<Request>),
    Rang,
}

impl Work {
    /// Begins the work of a life, of which there were some before.
    pub(crate) fn new(now: Timestamp, lives: u64, runtime: Arc<dyn Runtime>) -> Self {
        Self {
            stage: Stage::Serving,
            ready: VecDeque::new(),
            // The journal remembers commands of earlier lives: no number comes twice.
            commands: lives.saturating_sub(1).saturating_mul(LIFE),
            connection: None,
            untold: 0,
            alarm: Alarm::new(runtime),
            others: Gate::new(),
            now,
            looks: 0,
            heard: false,
            stderr_tail: String::new(),
            all_handles_are_gone: false,
        }
    }
}

impl Driver {
    /// Works until the client has shut down, or nobody holds it any more.
    pub(crate) async fn run(mut self, first: Effects) {
        self.perform(first);
        let mut worked: u32 = 0;
        while !self.is_over() {
            let input = match self.work.ready.pop_front() {
                Some(input) => Some(input),
                // A flood of other inputs must not hide the deadline.
                None if self.work.alarm.is_due(self.work.now) => Some(Input::Tick),
                None => self.wait().await,
            };
            if let Some(input) = input {
                self.step(input);
            }
            worked = worked.wrapping_add(1);
            if worked % BUDGET == 0 {
                self.flush();
                yield_now().await;
            }
        }
        self.flush();
        self.wind_up().await;
    }

    fn is_over(&self) -> bool {
        let closed = self.work.connection.is_none();
        match self.work.stage {
            Stage::Serving | Stage::Closing(_) => false,
            Stage::Closed(_) => closed && self.journal.is_idle() && self.work.ready.is_empty(),
            Stage::Halted => closed,
        }
    }

    async fn wait(&mut self) -> Option<Input> {
        let happened = std::future::poll_fn(|cx| self.poll_untold(cx)).await;
        match happened {
            Happened::Heard(epoch, heard) => self.heard(epoch, heard),
            Happened::Due(input) => Some(input),
            Happened::Noted(note) => self.noted(note),
            Happened::Requested(request) => self.requested(request),
            Happened::Rang => Some(Input::Tick),
        }
    }

    /// Looks at what happens, and hands out what came before unless more was there at once.
    fn poll_untold(&mut self, cx: &mut Context<'_>) -> Poll<Happened> {
        let happened = self.poll(cx);
        if let Poll::Ready(Happened::Heard(_, Heard::Read(bytes))) = &happened {
            self.work.untold += bytes.len();
            if self.work.untold <= self.hub.patience() {
                return happened;
            }
        }
        self.flush();
        match happened {
            // What was full is told the machine before anything else is waited for.
            Poll::Pending => match self.work.ready.pop_front() {
                Some(input) => Poll::Ready(Happened::Due(input)),
                None => Poll::Pending,
            },
            happened => happened,
        }
    }

    /// Hands what was taken in to its readers.
    fn flush(&mut self) {
        let work = &mut self.work;
        work.untold = 0;
        self.hub.flush();
        work.ready
            .extend(self.hub.take_full().map(Input::QueueFull));
    }

    /// Looks at what can happen: at the connection first, for most comes by it, but last where it was
    /// heard just now. So the others do not starve.
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Happened> {
        let was_heard = std::mem::take(&mut self.work.heard);
        if !was_heard {
            let happened = self.poll_connection(cx);
            if happened.is_ready() {
                return happened;
            }
        }
        let happened = self.poll_others(cx);
        if happened.is_pending() && was_heard {
            return self.poll_connection(cx);
        }
        happened
    }

    /// Looks at all but the connection, where one of them has woken us, each time from another one on.
    fn poll_others(&mut self, cx: &mut Context<'_>) -> Poll<Happened> {
        const OTHERS: usize = 3;
        let Self {
            journal,
            notes,
            requests,
            clock,
            work,
            ..
        } = self;
        let Work {
            others,
            looks,
            alarm,
            all_handles_are_gone,
            ..
        } = work;
        others.poll(cx, |cx| {
            *looks = looks.wrapping_add(1);
            for other in 0..OTHERS {
                let happened = match (*looks + other) % OTHERS {
                    0 => journal.poll_answer(cx).map(Happened::Due),
                    1 => poll_handles(notes, requests, all_handles_are_gone, cx),
                    _ => alarm.poll_ring(clock, cx).map(|()| Happened::Rang),
                };
                if happened.is_ready() {
                    return happened;
                }
            }
            Poll::Pending
        })
    }

    fn poll_connection(&mut self, cx: &mut Context<'_>) -> Poll<Happened> {
        match &mut self.work.connection {
            Some((epoch, connection)) => {
                let epoch = *epoch;
                let heard = connection.poll_next(cx);
                self.work.heard = heard.is_ready();
                heard.map(|heard| Happened::Heard(epoch, heard))
            }
            None => Poll::Pending,
        }
    }

    fn step(&mut self, input: Input) {
        let now = self.look_at_the_clock();
        // Secrets stand in no log.
        let redacted = self.machine.redacted(&input);
        trace!(input = ?redacted.as_ref().unwrap_or(&input), "step");
        let is_recorded = self.recorder.is_some();
        let copy = is_recorded.then(|| redacted.unwrap_or_else(|| input.clone()));
        let effects = self.machine.step(now, input);
        self.carry_out(now, copy, effects);
    }

    /// A step with a whole read, which goes back to where it came from.
    fn receive(&mut self, epoch: Epoch, bytes: Bytes) {
        let now = self.look_at_the_clock();
        trace!(epoch = epoch.0, text = %String::from_utf8_lossy(&bytes), "received");
        let effects = self.machine.receive(now, epoch, &bytes);
        let is_recorded = self.recorder.is_some();
        let copy = is_recorded.then(|| Input::Received(epoch, bytes.to_vec()));
        if let Some((_, connection)) = &mut self.work.connection {
            connection.reuse(bytes);
        }
        self.carry_out(now, copy, effects);
    }

    fn look_at_the_clock(&mut self) -> Timestamp {
        self.work.now = self.clock.now();
        self.work.now
    }

    /// Records a step where steps are recorded, and does what it led to.
    fn carry_out(&mut self, now: Timestamp, copy: Option<Input>, effects: Effects) {
        if let Some((recorder, input)) = self.recorder.as_mut().zip(copy) {
            recorder.step(now, input, effects.clone());
        }
        self.perform(effects);
        if self.journal.wants_checkpoint() {
            let failed = self.journal.checkpoint(self.machine.checkpoint(), now);
            self.work.ready.extend(failed);
        }
    }

    fn perform(&mut self, effects: Effects) {
        let work = &mut self.work;
        let deadline = effects.deadline.map(|d| d.at);
        if work.alarm.set(deadline, &self.clock) {
            work.others.open();
        }
        for effect in effects.list {
            match effect {
                Effect::Append(batch) => work.ready.extend(self.journal.append(batch)),
                Effect::Send(epoch, frame) => match &mut work.connection {
                    Some((of, connection)) if *of == epoch => {
                        trace!(epoch = epoch.0, ?frame, "send");
                        connection.send(frame);
                    }
                    _ => work.ready.push_back(Input::SendFailed(epoch, frame.seq)),
                },
                Effect::Emit(Event::Halted) => {
                    error!("the client has halted");
                    self.hub.emit(Event::Halted);
                    work.stage = Stage::Halted;
                    if let Some((_, connection)) = &mut work.connection {
                        connection.close();
                    }
                }
                Effect::Emit(event) => {
                    if let (Stage::Closing(ours), Event::Answer { id, answer }) =
                        (&work.stage, &event)
                    {
                        if ours == id {
                            work.stage = Stage::Closed(report(answer));
                        }
                    }
                    self.hub.emit(event);
                }
                Effect::Open(epoch, reason) => {
                    debug!(epoch = epoch.0, ?reason, "open");
                    let orphan = match reason {
                        OpenReason::Recover { orphan } => orphan,
                        OpenReason::Start | OpenReason::Reconnect { .. } => None,
                    };
                    work.connection = Some((
                        epoch,
                        Connection::open(&self.runtime, &self.server, self.frame_limit, orphan),
                    ));
                }
                Effect::Close(epoch, why) => {
                    debug!(epoch = epoch.0, ?why, "close");
                    match &mut work.connection {
                        Some((of, connection)) if *of == epoch => connection.close(),
                        _ => {}
                    }
                }
            }
        }
        // A start whose first record is not durable may yet fail.
        if self.journal.has_confirmed() {
            self.hub.start();
        }
        for refresh in self.hub.take_unserved() {
            let input = self.fail_refresh(refresh);
            self.work.ready.push_back(input);
        }
    }

    fn heard(&mut self, epoch: Epoch, heard: Heard) -> Option<Input> {
        Some(match heard {
            Heard::Opened(peer) => {
                self.life.set_pid(peer.pid);
                Input::Opened(epoch, peer)
            }
            Heard::Read(bytes) => {
                self.receive(epoch, bytes);
                return None;
            }
            Heard::SendFailed(seq) => Input::SendFailed(epoch, seq),
            Heard::Closed(closed) => {
                self.work.connection = None;
                self.work.stderr_tail.clone_from(&closed.stderr_tail);
                self.life.set_pid(None);
                Input::Closed(epoch, Box::new(closed))
            }
        })
    }

    /// Leaves nothing behind, then ends every wait.
    async fn wind_up(&mut self) {
        let is_durable = self.journal.finish().await;
        let recording = match &mut self.recorder {
            Some(recorder) => Some(recorder.finish().await),
            None => None,
        };
        self.life.end(match self.work.stage {
            Stage::Closed(report) if is_durable => Ended::ShutDown(ShutdownSummary {
                report,
                journal: self.journal.confirmed(),
                recording,
                stderr_tail: std::mem::take(&mut self.work.stderr_tail),
            }),
            Stage::Serving | Stage::Closing(_) | Stage::Closed(_) | Stage::Halted => Ended::Halted,
        });
        debug!("the client has ended");
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        // Where the driver did not come to its end, its runtime was shut down or it panicked.
        self.life.end(Ended::Stopped);
        // The channel would keep what it holds for as long as there is a handle, and so its wait.
        self.requests.close();
        while let Ok(request) = self.requests.try_recv() {
            drop(request);
        }
        self.hub.close();
    }
}

fn poll_handles(
    notes: &mut Pin<Box<Receiver<Note>>>,
    requests: &mut Pin<Box<Receiver<Request>>>,
    are_gone: &mut bool,
    cx: &mut Context<'_>,
) -> Poll<Happened> {
    if let Poll::Ready(Some(note)) = notes.as_mut().poll_next(cx) {
        return Poll::Ready(Happened::Noted(note));
    }
    if *are_gone {
        return Poll::Pending;
    }
    let request = requests.as_mut().poll_next(cx);
    *are_gone = matches!(request, Poll::Ready(None));
    request.map(Happened::Requested)
}

fn report<E>(answer: &Result<Reply, E>) -> ShutdownReport {
    match answer {
        Ok(Reply::ShutDown(report)) => *report,
        Ok(_) | Err(_) => ShutdownReport::default(),
    }
}
