//! The loop: wait, step, perform. One task owns the machine.

use std::{collections::VecDeque, sync::Arc};

use tokio::sync::{mpsc, oneshot};
use tracing::{debug, error, trace};
use turnkeep_core::{
    Command, CommandId, ConversationId, Counters, Effect, Effects, Epoch, Event, Input, JournalSeq,
    Machine, Reply, TurnNo, command::ShutdownReport,
};

use crate::{
    clock::{Alarm, Clock},
    config::ChildConfig,
    error::ClaimError,
    hub::{Answered, Claim, Hub},
    journal::Journal,
    life::{Ended, Life, ShutdownSummary},
    recording::Recorder,
    transport::{Connection, Heard},
};

/// How many inputs are worked on before other tasks get their turn.
const BUDGET: u32 = 1_000;

/// What a handle asks of the driver, and waits for.
#[derive(Debug)]
pub(crate) enum Request {
    Command(Command, oneshot::Sender<Answered>),
    Claim(
        ConversationId,
        TurnNo,
        oneshot::Sender<Result<Claim, ClaimError>>,
    ),
    ClaimNewest(ConversationId, oneshot::Sender<Option<Claim>>),
    Counters(oneshot::Sender<Counters>),
    Shutdown,
}

/// What a handle tells the driver without waiting.
#[derive(Debug)]
pub(crate) enum Note {
    Abandon(TurnNo),
    Acknowledge(TurnNo),
    /// The end of a turn was taken and will be acknowledged by other means, if at all.
    Release(TurnNo),
}

/// How far the client's life has come.
#[derive(Debug)]
enum Stage {
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
    pub(crate) child: ChildConfig,
    pub(crate) hub: Hub,
    pub(crate) life: Arc<Life>,
    pub(crate) requests: mpsc::Receiver<Request>,
    pub(crate) notes: mpsc::UnboundedReceiver<Note>,
    pub(crate) work: Work,
}

/// The driver's own state.
pub(crate) struct Work {
    stage: Stage,
    connection: Option<(Epoch, Connection)>,
    ready: VecDeque<Input>,
    full: Vec<ConversationId>,
    alarm: Alarm,
    commands: u64,
}

impl Work {
    pub(crate) fn new() -> Self {
        Self {
            stage: Stage::Serving,
            connection: None,
            ready: VecDeque::new(),
            full: Vec::new(),
            alarm: Alarm::new(),
            commands: 0,
        }
    }
}

impl Driver {
    /// Works until the client has shut down, or nobody holds it any more.
    pub(crate) async fn run(mut self, first: Effects) {
        self.perform(first);
        let mut worked = 0;
        while !self.is_over() {
            let input = match self.work.ready.pop_front() {
                Some(input) => Some(input),
                None if self.work.alarm.is_due(self.clock.now()) => Some(Input::Tick),
                None => self.wait().await,
            };
            if let Some(input) = input {
                self.step(input);
            }
            worked += 1;
            if worked % BUDGET == 0 {
                tokio::task::yield_now().await;
            }
        }
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
        tokio::select! {
            (epoch, heard) = hear(&mut self.work.connection) => Some(self.heard(epoch, heard)),
            answer = self.journal.answer() => Some(answer),
            Some(note) = self.notes.recv() => self.noted(note),
            request = self.requests.recv(), if matches!(self.work.stage, Stage::Serving)
                || !self.requests.is_closed() => self.requested(request),
            () = self.work.alarm.ring(&self.clock) => Some(Input::Tick),
        }
    }

    fn step(&mut self, input: Input) {
        let now = self.clock.now();
        trace!(?input, "step");
        let copy = self.recorder.is_some().then(|| input.clone());
        let effects = self.machine.step(now, input);
        if let Some((recorder, input)) = self.recorder.as_mut().zip(copy) {
            recorder.step(now, input, effects.clone());
        }
        self.perform(effects);
    }

    fn perform(&mut self, effects: Effects) {
        let work = &mut self.work;
        work.alarm.set(effects.deadline.map(|d| d.at), &self.clock);
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
                    work.ready.push_back(match Connection::spawn(&self.child) {
                        Ok((connection, peer)) => {
                            self.life.set_pid(peer.pid);
                            work.connection = Some((epoch, connection));
                            Input::Opened(epoch, peer)
                        }
                        Err(closed) => Input::Closed(epoch, Box::new(closed)),
                    });
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
        if self.journal.confirmed() > JournalSeq(0) {
            self.hub.start();
        }
        self.hub.flush(&mut work.full);
        work.ready.extend(work.full.drain(..).map(Input::QueueFull));
    }

    fn heard(&mut self, epoch: Epoch, heard: Heard) -> Input {
        match heard {
            Heard::Read(bytes) => Input::Received(epoch, bytes),
            Heard::SendFailed(seq) => Input::SendFailed(epoch, seq),
            Heard::Closed(closed) => {
                self.work.connection = None;
                self.life.set_pid(None);
                Input::Closed(epoch, Box::new(closed))
            }
        }
    }

    fn command(&mut self, command: Command, reply: Option<oneshot::Sender<Answered>>) -> Input {
        self.work.commands += 1;
        let id = CommandId(self.work.commands);
        match command {
            Command::Acknowledge { turn } | Command::Abandon { turn } => self.hub.release(turn),
            _ => {}
        }
        if let Some(reply) = reply {
            self.hub.expect(id, &command, reply);
        }
        Input::Command { id, command }
    }

    fn noted(&mut self, note: Note) -> Option<Input> {
        match note {
            Note::Abandon(turn) => Some(self.command(Command::Abandon { turn }, None)),
            Note::Acknowledge(turn) => Some(self.command(Command::Acknowledge { turn }, None)),
            Note::Release(turn) => {
                self.hub.release(turn);
                None
            }
        }
    }

    fn requested(&mut self, request: Option<Request>) -> Option<Input> {
        // What a handle said before it asked, or before it was dropped, comes first.
        while let Ok(note) = self.notes.try_recv() {
            let input = self.noted(note);
            self.work.ready.extend(input);
        }
        match request {
            // Its asker is told by the lost channel.
            Some(_) if matches!(self.work.stage, Stage::Halted) => {}
            Some(Request::Command(command, reply)) => {
                let input = self.command(command, Some(reply));
                self.work.ready.push_back(input);
            }
            Some(Request::Claim(conversation, turn, reply)) => {
                let _ = reply.send(self.hub.claim(conversation, turn));
            }
            Some(Request::ClaimNewest(conversation, reply)) => {
                let _ = reply.send(self.hub.claim_newest(conversation));
            }
            Some(Request::Counters(reply)) => {
                let _ = reply.send(self.machine.counters());
            }
            Some(Request::Shutdown) | None => {
                if matches!(self.work.stage, Stage::Serving) {
                    let input = self.command(Command::Shutdown, None);
                    self.work.stage = Stage::Closing(CommandId(self.work.commands));
                    self.work.ready.push_back(input);
                }
            }
        }
        None
    }

    /// Leaves nothing behind, then ends every wait.
    async fn wind_up(&mut self) {
        self.journal.finish().await;
        let recording = match &mut self.recorder {
            Some(recorder) => Some(recorder.finish().await),
            None => None,
        };
        self.life.end(match self.work.stage {
            Stage::Closed(report) => Ended::ShutDown(ShutdownSummary {
                report,
                journal: self.journal.confirmed(),
                recording,
            }),
            Stage::Serving | Stage::Closing(_) | Stage::Halted => Ended::Halted,
        });
        debug!("the client has ended");
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        // Where the driver did not come to its end, its runtime was shut down or it panicked.
        self.life.end(Ended::Stopped);
        self.hub.close();
    }
}

async fn hear(connection: &mut Option<(Epoch, Connection)>) -> (Epoch, Heard) {
    match connection {
        Some((epoch, connection)) => (*epoch, connection.next().await),
        None => std::future::pending().await,
    }
}

fn report<E>(answer: &Result<Reply, E>) -> ShutdownReport {
    match answer {
        Ok(Reply::ShutDown(report)) => *report,
        Ok(_) | Err(_) => ShutdownReport::default(),
    }
}
