//! A machine in a world of its own: a fake server, a journal and a clock, without threads and without real time.
//!
//! A [`World`] plays discrete events. Whatever can happen at the present moment happens first (journal answers, then what the
//! server does, then what it wrote is read); only then does time pass, to the earliest of what the server and the machine wait for.
//! A test asks in between, when nothing more happens by itself, so that how the bytes are cut into reads changes nothing of when.
//!
//! After every step its checkers run. [`World::finish`] shuts the client down, checks that everything has ended, and
//! plays the recording of the run again.
//!
//! A world may have several connections, each played by the next life of the script, and several lives of our own process
//! ([`World::crash`]): the next machine is made of what the journal holds.

mod ask;
mod check;
mod lives;
mod log;

use std::{collections::VecDeque, time::Duration};

use turnkeep_core::{
    CloseReason, Closed, Command, CommandError, CommandId, Config, Deadline, Effect, Effects,
    Epoch, Event, Input, JournalSeq, Machine, Reply, Timestamp, TurnEnd, TurnNo, TurnUpdate,
    codec::{
        journal::{self, Entry},
        trace,
    },
    config::Reconnect,
};
use turnkeep_tokio::fake::{Action, Demo, Server};

pub use self::{
    ask::{json, ms, tool},
    lives::{Left, Peers},
};
use self::{check::Checks, log::Log};

/// When a world begins.
pub const START: Timestamp = Timestamp::from_millis(1_800_000_000_000);

/// Virtual time without an end of a wait after which a scenario has failed.
const PATIENCE: u64 = 3_600_000_000;

/// How what the server wrote is cut into reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reads {
    /// One write, one read.
    Writes,
    /// All that is there in one read.
    Whole,
    /// Byte by byte.
    Bytes,
    /// Pieces of 1 to 200 bytes, by a seed.
    Random(u64),
}

/// How the journal answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Journal {
    /// Every batch is durable at once.
    AtOnce,
    /// Nothing is durable until [`World::release`].
    Held,
    /// The next batch fails.
    Failing,
}

/// What becomes of a connection that the machine asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Opens {
    /// It is there at once.
    AtOnce,
    /// Nothing is heard of it.
    Never,
    /// It cannot be opened.
    Fails(CloseReason),
}

/// Who is on the other side.
#[derive(Debug)]
enum Other {
    Script(Box<lives::Played>),
    Demo(Box<Demo>),
    /// The test itself, through [`World::say`].
    Hand,
}

impl Other {
    fn server(&mut self) -> Option<&mut dyn Server> {
        match self {
            Self::Script(played) => Some(&mut played.engine),
            Self::Demo(demo) => Some(demo.as_mut()),
            Self::Hand => None,
        }
    }

    fn due(&self) -> Option<u64> {
        match self {
            Self::Script(played) => played.engine.due(),
            Self::Demo(demo) => demo.due(),
            Self::Hand => None,
        }
    }
}

/// How a world is made.
#[derive(Debug)]
pub struct Setup {
    other: Other,
    config: Config,
    seed: u64,
    reads: Reads,
    journal: Journal,
    opens: Opens,
    peers: Peers,
    early_ticks: bool,
}

impl Setup {
    fn new(other: Other) -> Self {
        let mut config = crate::one_connection();
        // A new version of ours must not change every snapshot.
        config.client.version = "0".into();
        // It would stand in every batch; what it is good for has tests of its own.
        config.remember_commands = false;
        Self {
            other,
            config,
            seed: 7,
            reads: Reads::Writes,
            journal: Journal::AtOnce,
            opens: Opens::AtOnce,
            peers: Peers::Children,
            early_ticks: true,
        }
    }

    /// With a server that plays a script.
    ///
    /// # Panics
    ///
    /// The script is none.
    #[must_use]
    pub fn script(text: &str) -> Self {
        Self::new(Other::Script(Box::new(lives::Played::new(text))))
    }

    /// With the demo server.
    #[must_use]
    pub fn demo() -> Self {
        Self::new(Other::Demo(Box::new(Demo::new(10))))
    }

    /// With a server whose part the test speaks.
    #[must_use]
    pub fn hand() -> Self {
        Self::new(Other::Hand)
    }

    /// Changes the machine's configuration.
    #[must_use]
    pub fn config(mut self, change: impl FnOnce(&mut Config)) -> Self {
        change(&mut self.config);
        self
    }

    /// Cuts reads in another way.
    #[must_use]
    pub fn reads(mut self, reads: Reads) -> Self {
        self.reads = reads;
        self
    }

    /// Begins with another journal.
    #[must_use]
    pub fn journal(mut self, journal: Journal) -> Self {
        self.journal = journal;
        self
    }

    /// Opens connections in another way.
    #[must_use]
    pub fn opens(mut self, opens: Opens) -> Self {
        self.opens = opens;
        self
    }

    /// Opens the connection again when it ends, without a pause, so that no chance is in the log.
    #[must_use]
    pub fn reconnects(self) -> Self {
        self.config(|config| {
            config.reconnect = Reconnect::On;
            config.limits.reconnect_first = Duration::ZERO;
        })
    }

    /// Has others on the other side.
    #[must_use]
    pub fn peers(mut self, peers: Peers) -> Self {
        self.peers = peers;
        self
    }

    /// Takes another seed.
    #[must_use]
    pub fn seed(mut self, seed: u64) -> Self {
        self.seed = seed;
        self
    }

    /// Makes the machine and lets happen what happens by itself.
    ///
    /// # Panics
    ///
    /// A checker found something.
    pub fn start(self) -> World {
        let (machine, effects) =
            Machine::new(self.config.clone(), self.seed, START).expect("the configuration is good");
        let mut world = World {
            machine,
            other: self.other,
            reads: self.reads,
            journal: self.journal,
            opens: self.opens,
            peers: self.peers,
            seed: self.seed,
            opened: 0,
            early_ticks: self.early_ticks,
            now: START,
            deadline: None,
            inputs: VecDeque::new(),
            unacked: VecDeque::new(),
            to_server: VecDeque::new(),
            actions: VecDeque::new(),
            busy: None,
            wire: VecDeque::new(),
            writes: VecDeque::new(),
            closing: None,
            epoch: None,
            asked: None,
            stderr: String::new(),
            journal_bytes: Vec::new(),
            entries: Vec::new(),
            trace: trace::encode_header(START, self.seed, &self.config, &effects),
            log: Log::default(),
            steps: 0,
            checks: Checks::default(),
            events: Vec::new(),
            life_began: 0,
            sent: Vec::new(),
            commands: 0,
            rng: match self.reads {
                Reads::Random(seed) => seed,
                Reads::Writes | Reads::Whole | Reads::Bytes => 0,
            },
            finished: false,
        };
        world
            .log
            .input(START, 0, &format!("new seed {}", self.seed));
        world.perform(effects);
        world.settle();
        world
    }
}

/// A machine, and what it lives in.
#[derive(Debug)]
#[must_use = "a scenario ends with `finish`"]
pub struct World {
    machine: Machine,
    other: Other,
    reads: Reads,
    journal: Journal,
    opens: Opens,
    peers: Peers,
    /// Of the life that runs.
    seed: u64,
    /// How many connections there were.
    opened: usize,
    early_ticks: bool,
    now: Timestamp,
    deadline: Option<Deadline>,
    /// What comes to the machine next.
    inputs: VecDeque<Input>,
    /// Batches that the journal has not answered.
    unacked: VecDeque<JournalSeq>,
    to_server: VecDeque<Vec<u8>>,
    actions: VecDeque<Action>,
    /// Until when the server sleeps.
    busy: Option<Timestamp>,
    /// What the server wrote and nobody has read.
    wire: VecDeque<u8>,
    /// How long each of its writes is.
    writes: VecDeque<usize>,
    /// How the connection ends once everything is read.
    closing: Option<CloseReason>,
    /// The connection that is open.
    epoch: Option<Epoch>,
    /// The last connection that was asked for.
    asked: Option<Epoch>,
    stderr: String,
    journal_bytes: Vec<u8>,
    /// What the next life reads of it.
    entries: Vec<Entry>,
    trace: String,
    log: Log,
    steps: u64,
    checks: Checks,
    events: Vec<Event>,
    /// Where the events of the life that runs begin.
    life_began: usize,
    sent: Vec<String>,
    commands: u64,
    rng: u64,
    finished: bool,
}

impl World {
    /// The time since the start, in microseconds.
    #[must_use]
    pub fn elapsed(&self) -> u64 {
        self.now.0 - START.0
    }

    /// The machine.
    #[must_use]
    pub fn machine(&self) -> &Machine {
        &self.machine
    }

    /// Everything that the application was told.
    #[must_use]
    pub fn events(&self) -> &[Event] {
        &self.events
    }

    /// Every frame that left, without its line feed.
    #[must_use]
    pub fn sent(&self) -> &[String] {
        &self.sent
    }

    /// The frames of a method that left.
    #[must_use]
    pub fn sent_of(&self, method: &str) -> Vec<&str> {
        let head = format!(r#"{{"method":"{method}","#);
        let all = self.sent.iter().map(String::as_str);
        all.filter(|frame| frame.starts_with(&head)).collect()
    }

    /// The recording of the life that runs.
    #[must_use]
    pub fn recording(&self) -> &str {
        &self.trace
    }

    /// The journal as it was written.
    #[must_use]
    pub fn journal_bytes(&self) -> &[u8] {
        &self.journal_bytes
    }

    /// Leaves out of the log what happened so far, which other scenarios show.
    pub fn log_from_here(&mut self) {
        self.log.forget_all();
    }

    /// A remark in the log.
    pub fn note(&mut self, text: &str) {
        self.log.note(text);
    }

    /// Says a line in the server's place.
    pub fn say(&mut self, line: &str) {
        self.write(format!("{line}\n").into_bytes());
        self.settle();
    }

    /// Says several lines in the server's place, in one write.
    pub fn say_at_once(&mut self, lines: &[&str]) {
        self.write((lines.join("\n") + "\n").into_bytes());
        self.settle();
    }

    /// Ends the connection in the server's place.
    pub fn hang_up(&mut self, reason: CloseReason) {
        self.closing = Some(reason);
        self.settle();
    }

    /// Gives the machine an input as it is.
    pub fn input(&mut self, input: Input) {
        self.inputs.push_back(input);
        self.settle();
    }

    /// Answers for all batches that wait, and for those to come at once.
    pub fn release(&mut self) {
        self.journal = Journal::AtOnce;
        if let Some(last) = self.unacked.back().copied() {
            self.unacked.clear();
            self.inputs.push_back(Input::Appended { through: last });
        }
        self.settle();
    }

    /// Answers for the oldest batch that waits, and holds the others.
    pub fn release_one(&mut self) {
        if let Some(through) = self.unacked.pop_front() {
            self.inputs.push_back(Input::Appended { through });
        }
        self.settle();
    }

    /// Changes how the journal answers from here on.
    pub fn set_journal(&mut self, journal: Journal) {
        self.journal = journal;
    }

    /// Lets so many milliseconds pass, with all that happens meanwhile.
    pub fn run(&mut self, millis: u64) {
        let end = Timestamp(self.now.0 + millis * 1_000);
        self.settle();
        while let Some(at) = self.next_time().filter(|at| *at <= end) {
            self.pass(at);
        }
        self.now = end;
        self.settle();
    }

    /// Lets time pass until something is so.
    ///
    /// # Panics
    ///
    /// It never is.
    pub fn run_until(&mut self, what: &str, is_so: impl Fn(&Self) -> bool) {
        let patience = Timestamp(self.now.0 + PATIENCE);
        self.settle();
        while !is_so(self) {
            match self.next_time().filter(|at| *at <= patience) {
                Some(at) => self.pass(at),
                None => panic!("{what}: nothing happens any more\n{}", self.log.text()),
            }
        }
    }

    /// Lets time pass until a turn has ended.
    pub fn end_of(&mut self, turn: TurnNo) -> TurnEnd {
        self.run_until(&format!("the end of turn {turn}"), |world| {
            world.ended(turn).is_some()
        });
        self.ended(turn).expect("it was just there")
    }

    /// The end of a turn, if it was told in this life.
    #[must_use]
    pub fn ended(&self, turn: TurnNo) -> Option<TurnEnd> {
        self.updates(turn)
            .into_iter()
            .find_map(|update| match update {
                TurnUpdate::Ended(end) => Some((**end).clone()),
                _ => None,
            })
    }

    /// What was told of a turn in this life, but for its text.
    #[must_use]
    pub fn updates(&self, turn: TurnNo) -> Vec<&TurnUpdate> {
        let all = self.life().iter().filter_map(|event| match event {
            Event::Turn(event) if event.turn == turn => Some(&event.update),
            _ => None,
        });
        all.collect()
    }

    /// The text of a turn as it was streamed, all items one after the other.
    #[must_use]
    pub fn streamed(&self, turn: TurnNo) -> String {
        let all = self.life().iter().filter_map(|event| match event {
            Event::Delta(delta) if delta.turn == turn => Some(delta.text.as_str()),
            _ => None,
        });
        all.collect()
    }

    /// What a command was answered, if it was.
    #[must_use]
    pub fn answer(&self, id: CommandId) -> Option<&Result<Reply, CommandError>> {
        self.events.iter().find_map(|event| match event {
            Event::Answer { id: of, answer } if *of == id => Some(&**answer),
            _ => None,
        })
    }

    /// Lets time pass until a command is answered.
    pub fn answer_of(&mut self, id: CommandId) -> Result<Reply, CommandError> {
        self.run_until(&format!("the answer of command {id}"), |world| {
            world.answer(id).is_some()
        });
        self.answer(id).cloned().expect("it was just there")
    }

    /// Everything that the application was told, with neighbouring deltas of one item joined: what must not depend on how bytes
    /// were cut into reads.
    #[must_use]
    pub fn told(&self) -> Vec<String> {
        check::told(&self.events)
    }

    /// Whether the whole script was played.
    #[must_use]
    pub fn is_played(&self) -> bool {
        match &self.other {
            Other::Script(played) => played.engine.is_finished(),
            Other::Demo(_) | Other::Hand => true,
        }
    }

    /// Ends the scenario: shuts the client down if it still runs, checks that every wait has ended, replays journal and trace.
    /// Returns the log up to here.
    ///
    /// # Panics
    ///
    /// A checker found something, or a client frame did not fit the script.
    #[must_use]
    pub fn finish(mut self) -> String {
        self.settle();
        let log = self.log.text();
        self.went_by_the_script();
        self.finished = true;
        if !self.checks.is_halted() {
            if matches!(self.journal, Journal::Failing) {
                self.journal = Journal::AtOnce;
            }
            self.release();
            let last = self.ask(Command::Shutdown);
            let _ = self.answer_of(last);
            self.release();
        }
        self.checks.at_the_end();
        self.journal_and_trace();
        log
    }

    fn step(&mut self, input: Input) {
        let at = self.now;
        let effects = self.machine.step(at, input.clone());
        self.steps += 1;
        self.trace
            .push_str(&trace::encode_step(at, &input, &effects));
        self.log.step(at, self.steps, &input);
        self.checks.input(&input);
        self.perform(effects);
        self.machine.check_invariants();
        self.checks.same(self.machine.durable());
    }

    fn perform(&mut self, effects: Effects) {
        self.deadline = effects.deadline;
        for effect in effects.list {
            self.log.effect(&effect);
            self.checks.effect(&effect);
            match effect {
                Effect::Append(batch) => {
                    self.journal_bytes.extend(journal::encode(&batch));
                    self.entries.push(Entry {
                        seq: batch.through,
                        at: batch.at,
                        records: batch.records,
                    });
                    match self.journal {
                        Journal::AtOnce => self.inputs.push_back(Input::Appended {
                            through: batch.through,
                        }),
                        Journal::Held => self.unacked.push_back(batch.through),
                        Journal::Failing => self.inputs.push_back(Input::AppendFailed),
                    }
                }
                Effect::Send(epoch, frame) => {
                    let mut line = frame.bytes;
                    assert_eq!(line.pop(), Some(b'\n'), "a frame ends with a line feed");
                    self.sent.push(String::from_utf8_lossy(&line).into_owned());
                    if self.epoch == Some(epoch) && self.closing.is_none() {
                        self.to_server.push_back(line);
                    }
                }
                Effect::Emit(event) => self.events.push(event),
                Effect::Open(epoch, _) => {
                    self.asked = Some(epoch);
                    match self.opens.clone() {
                        Opens::AtOnce => self.connect(epoch),
                        Opens::Never => {}
                        Opens::Fails(reason) => self.closed(epoch, reason),
                    }
                }
                Effect::Close(epoch, _) => {
                    let now = self.server_time();
                    if let Some(server) = self.other.server() {
                        let _ = server.on_eof(now);
                    }
                    self.cut();
                    self.closed(epoch, CloseReason::ByUs);
                }
            }
        }
        self.log.deadline(self.deadline);
    }

    fn closed(&mut self, epoch: Epoch, reason: CloseReason) {
        let closed = Closed::new(reason, std::mem::take(&mut self.stderr));
        self.inputs
            .push_back(Input::Closed(epoch, Box::new(closed)));
    }

    fn server_time(&self) -> u64 {
        self.elapsed() / 1_000
    }

    /// Lets happen what can happen now.
    fn settle(&mut self) {
        loop {
            if let Some(input) = self.inputs.pop_front() {
                self.step(input);
            } else if !self.serve() && !self.read() {
                let Some((reason, epoch)) = self.closing.take().zip(self.epoch) else {
                    return;
                };
                self.cut();
                self.closed(epoch, reason);
            }
        }
    }

    /// Lets the server do one thing. Whether it did.
    fn serve(&mut self) -> bool {
        if self.closing.is_some() || self.epoch.is_none() {
            return false;
        }
        if self.busy.is_some_and(|until| until > self.now) {
            return false;
        }
        self.busy = None;
        if let Some(action) = self.actions.pop_front() {
            self.act(action);
            return true;
        }
        let now = self.server_time();
        let line = self.to_server.pop_front();
        let Some(server) = self.other.server() else {
            return line.is_some();
        };
        let actions = match &line {
            Some(line) => server.on_line(now, line),
            None => server.poll(now),
        };
        let did = line.is_some() || !actions.is_empty();
        self.actions.extend(actions);
        did
    }

    fn act(&mut self, action: Action) {
        match action {
            Action::Write(bytes) => self.write(bytes),
            Action::Sleep(millis) => self.busy = Some(Timestamp(self.now.0 + millis * 1_000)),
            Action::Stderr(bytes) => self.stderr.push_str(&String::from_utf8_lossy(&bytes)),
            Action::Exit(code) => self.closing = Some(exited(Some(code), None)),
            Action::Die => self.closing = Some(exited(None, Some(9))),
            Action::CloseStdout { .. } => self.closing = Some(CloseReason::Eof),
            Action::SpawnGrandchild => {}
            other => panic!("the world cannot do {other:?}"),
        }
    }

    fn write(&mut self, bytes: Vec<u8>) {
        self.writes.push_back(bytes.len());
        self.wire.extend(bytes);
    }

    /// Hands one read to the machine. Whether there was one.
    fn read(&mut self) -> bool {
        let Some(epoch) = self.epoch.filter(|_| !self.wire.is_empty()) else {
            return false;
        };
        let size = match self.reads {
            Reads::Writes => self.writes.pop_front().unwrap_or(self.wire.len()),
            Reads::Whole => self.wire.len(),
            Reads::Bytes => 1,
            Reads::Random(_) => {
                self.rng = self
                    .rng
                    .wrapping_mul(6_364_136_223_846_793_005)
                    .wrapping_add(1_442_695_040_888_963_407);
                1 + usize::try_from((self.rng >> 33) % 200).expect("below 200")
            }
        };
        let bytes: Vec<u8> = self.wire.drain(..size.min(self.wire.len())).collect();
        self.step(Input::Received(epoch, bytes));
        true
    }

    /// When something happens next by itself.
    fn next_time(&self) -> Option<Timestamp> {
        let alive = self.epoch.is_some() && self.closing.is_none();
        let server = self
            .busy
            .or_else(|| self.other.due().map(|ms| Timestamp(START.0 + ms * 1_000)))
            .filter(|_| alive)
            .map(|at| at.max(self.now));
        let machine = self.deadline.map(|deadline| deadline.at.max(self.now));
        match (server, machine) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        }
    }

    /// Goes to a moment at which something is due.
    fn pass(&mut self, at: Timestamp) {
        let due = self.deadline.filter(|deadline| deadline.at <= at);
        if let Some(deadline) = due {
            let just_before = Timestamp(at.0 - 1);
            if self.early_ticks && just_before > self.now {
                self.now = just_before;
                let before = self.events.len() + self.sent.len();
                self.step(Input::Tick);
                self.log.forget_step();
                assert_eq!(
                    (self.deadline, self.events.len() + self.sent.len()),
                    (Some(deadline), before),
                    "an early tick does nothing"
                );
            }
        }
        self.now = at;
        if due.is_some() {
            self.step(Input::Tick);
            let later = self.deadline.is_none_or(|deadline| deadline.at > at);
            assert!(later, "a tick moves its timer: {:?}", self.deadline);
        }
        self.settle();
    }
}

impl Drop for World {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("{}", self.log.text());
        } else {
            assert!(self.finished, "a scenario ends with `finish`");
        }
    }
}

fn exited(code: Option<i32>, signal: Option<i32>) -> CloseReason {
    CloseReason::Exited { code, signal }
}
