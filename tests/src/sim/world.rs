//! The world: what happens next, and to whom.

mod blows;
mod effects;

use std::{
    cell::RefCell,
    cmp::Reverse,
    collections::{BTreeMap, BinaryHeap},
    fmt,
    panic::{AssertUnwindSafe, catch_unwind},
};

use turnkeep_core::{
    Closed, Config, Epoch, Input, Peer, Record, Timestamp,
    codec::journal::Entry,
    config::{Reconnect, RecoveredRounds, RecoveredTurns},
    effect::Orphan,
};

use super::{
    application::Application,
    check::Checks,
    companion::Script,
    disk::Disk,
    life::{Bug, Kept, Life, Origin, Reached},
    plan::{Fault, Plan, Tally},
    rng::Rng,
    server::{Conn, Odds, Server},
    wire::Wire,
};

/// When a world begins, in microseconds since the Unix epoch.
const START: u64 = 1_800_000_000_000_000;

/// How long a world may take to come to rest once it has healed, in microseconds.
const PATIENCE: u64 = 4 * 3_600_000_000;

/// How many things may happen in a run.
const MOST: u64 = 300_000;

/// What happens at its time.
#[derive(Debug)]
enum What {
    /// Our process starts.
    Boot,
    /// A write is done.
    Written { life: u32 },
    /// A connection that was asked for is there, or is not.
    Opened {
        life: u32,
        epoch: Epoch,
        orphan: Option<Orphan>,
    },
    /// Something is told to the machine.
    Told { life: u32, input: Box<Input> },
    /// A line arrives at the server.
    Up(Conn),
    /// Bytes arrive at us.
    Down(Conn),
    /// The server's process reads the end of its stdin, or loses a connection.
    Gone { conn: Conn, process: bool },
    /// The server is started by whoever keeps it running.
    Daemon,
    /// Our process ends by itself, after an orderly shutdown.
    Exit { life: u32 },
    /// Trouble is over.
    Heal,
}

#[derive(Debug)]
struct Due {
    at: u64,
    order: u64,
    what: What,
}

impl PartialEq for Due {
    fn eq(&self, other: &Self) -> bool {
        (self.at, self.order) == (other.at, other.order)
    }
}

impl Eq for Due {}

impl PartialOrd for Due {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Due {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.at, self.order).cmp(&(other.at, other.order))
    }
}

/// A run that broke a rule.
#[derive(Clone, Debug)]
pub struct Failure {
    /// Its seed.
    pub seed: u64,
    /// Its plan.
    pub plan: Plan,
    /// What is wrong.
    pub what: String,
    /// After how many steps of machines.
    pub steps: u64,
}

impl Failure {
    /// What is wrong, without the numbers of this run.
    #[must_use]
    pub fn kind(&self) -> String {
        let plain = |c: &char| !c.is_ascii_digit();
        self.what.chars().filter(plain).take(90).collect()
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let changes = self.plan.changes(&Plan::of(self.seed));
        writeln!(
            f,
            "seed {} fails at step {}: {}",
            self.seed, self.steps, self.what
        )?;
        writeln!(f, "  plan: {}", self.plan)?;
        write!(f, "  again: cargo xtask sim --seed {}", self.seed)?;
        if !changes.is_empty() {
            write!(f, " --plan {changes}")?;
        }
        Ok(())
    }
}

/// Plays a seed.
///
/// # Errors
///
/// A rule was broken.
pub fn run(seed: u64, plan: &Plan) -> Result<Tally, Failure> {
    finish(World::new(seed, plan, false), seed, plan).0
}

/// Plays a seed with a machine that breaks a rule on purpose.
///
/// # Errors
///
/// A rule was broken, and it was noticed.
pub fn run_with(seed: u64, plan: &Plan, bug: Bug) -> Result<Tally, Failure> {
    let mut world = World::new(seed, plan, false);
    world.bug = Some(bug);
    finish(world, seed, plan).0
}

/// Plays a seed and writes down what happens.
pub fn run_logged(seed: u64, plan: &Plan, bug: Option<Bug>) -> (Result<Tally, Failure>, String) {
    let mut world = World::new(seed, plan, true);
    world.bug = bug;
    finish(world, seed, plan)
}

thread_local! {
    /// What a broken rule says, in place of a message on stderr.
    static BROKEN: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// Takes the messages of panics in runs; others go their way.
fn listen() {
    use std::sync::Once;
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            let ours = BROKEN.with(|broken| {
                let mut broken = broken.borrow_mut();
                match broken.as_mut() {
                    Some(text) => {
                        *text = info.to_string();
                        true
                    }
                    None => false,
                }
            });
            if !ours {
                before(info);
            }
        }));
    });
}

/// Plays a script, with a blow after so many steps.
pub(super) fn run_script(
    script: &Script,
    plan: &Plan,
    blow: Option<(u64, Fault)>,
    logged: bool,
) -> (Result<Tally, Failure>, String) {
    let mut world = World::new(0, plan, logged);
    world.app = Application::of(script);
    world.steady = true;
    world.planned = blow;
    let odds = Odds {
        steady: true,
        ..odds(plan)
    };
    world.server = Server::new(0, odds);
    for message in &script.messages {
        world.server.script(message.text, message.turn.clone());
    }
    finish(world, 0, plan)
}

fn finish(mut world: World, seed: u64, plan: &Plan) -> (Result<Tally, Failure>, String) {
    listen();
    BROKEN.with(|broken| *broken.borrow_mut() = Some(String::new()));
    let outcome = catch_unwind(AssertUnwindSafe(|| world.play()));
    let what = BROKEN.with(|broken| broken.borrow_mut().take());
    let log = world.log.take().unwrap_or_default();
    let outcome = match outcome {
        Ok(()) => Ok(world.tally.clone()),
        Err(_) => Err(Failure {
            seed,
            plan: plan.clone(),
            what: what.unwrap_or_default(),
            steps: world.tally.steps,
        }),
    };
    (outcome, log)
}

/// A world.
#[derive(Debug)]
struct World {
    plan: Plan,
    now: u64,
    order: u64,
    heap: BinaryHeap<Reverse<Due>>,
    server: Server,
    disk: Disk,
    /// All that was ever written and survived, without checkpoints in place of it.
    history: Vec<Entry>,
    app: Application,
    checks: Checks,
    wires: BTreeMap<Conn, Wire>,
    life: Option<Life>,
    lives: u32,
    last_conn: Conn,
    last_pid: u32,
    /// The process of a server that is reached over a socket.
    daemon: Option<u32>,
    /// What the clock on the wall is ahead of the time that passes.
    ahead: u64,
    rng: Rng,
    net: Rng,
    blows: u32,
    healed: bool,
    /// Our process is about to end by itself.
    exits: bool,
    config: Config,
    bug: Option<Bug>,
    tally: Tally,
    log: Option<String>,
    /// Nothing is left to chance but what a test asks for.
    steady: bool,
    /// The blow that a test wants, after so many steps.
    planned: Option<(u64, Fault)>,
    happened: u64,
}

impl World {
    fn new(seed: u64, plan: &Plan, logged: bool) -> Self {
        let odds = odds(plan);
        let mut rng = Rng::new(seed, 4);
        let mut config = Config::default();
        config.authorization = turnkeep_core::Authorization::None;
        config.client.version = "0".into();
        config.reconnect = if plan.reconnect {
            Reconnect::On
        } else {
            Reconnect::Off
        };
        if rng.one_in(4) {
            config.recovered_rounds = RecoveredRounds::Run;
        }
        if rng.one_in(6) {
            config.limits.mailbox = 4;
        }
        if rng.one_in(4) {
            config.recovered_turns = RecoveredTurns::Interrupt;
        }
        Self {
            plan: plan.clone(),
            now: 0,
            order: 0,
            heap: BinaryHeap::new(),
            server: Server::new(seed, odds),
            disk: Disk::new(seed),
            history: Vec::new(),
            app: Application::new(seed, plan),
            checks: Checks::new(&config, plan.socket),
            wires: BTreeMap::new(),
            life: None,
            lives: 0,
            last_conn: 0,
            last_pid: 100,
            daemon: None,
            ahead: 0,
            rng,
            net: Rng::new(seed, 5),
            blows: plan.blows,
            healed: false,
            exits: false,
            config,
            bug: None,
            tally: Tally {
                runs: 1,
                ..Tally::default()
            },
            log: logged.then(String::new),
            steady: false,
            planned: None,
            happened: 0,
        }
    }

    /// Plays until all is at rest.
    fn play(&mut self) {
        if self.plan.socket {
            self.start_daemon();
        }
        self.at(0, What::Boot);
        self.at(self.plan.trouble * 1_000, What::Heal);
        while !self.is_at_rest() {
            self.happen();
        }
        self.finish();
    }

    fn finish(&mut self) {
        self.end_life();
        self.checks.at_the_end(&self.app);
        self.tally.accepted += self.checks.accepted();
        self.tally.resends += self.checks.resends();
        self.tally
            .count("bytes of journals", self.disk.len() as u64);
        self.tally.count(
            "given twice, under an id that we never heard",
            self.checks.given_twice(),
        );
        self.tally.count("questions told", self.checks.questions());
        for (word, count) in self.checks.outcomes() {
            self.tally.count(word, count);
        }
    }

    /// Lets the next thing happen.
    fn happen(&mut self) {
        self.happened += 1;
        assert!(
            self.happened < MOST,
            "no rest after {MOST} things have happened: {}",
            self.app.waits_for()
        );
        let timer = self.due_timer();
        let times = [
            self.heap.peek().map(|Reverse(due)| due.at),
            self.server.due(),
            self.app.due().filter(|_| self.life.is_some()),
            timer,
        ];
        let next = times.iter().enumerate();
        let next = next
            .filter_map(|(which, at)| at.map(|at| (at, which)))
            .min();
        let Some((at, which)) = next else {
            panic!(
                "nothing happens any more and not all is at rest: {}",
                self.waits_for()
            );
        };
        self.now = self.now.max(at);
        assert!(
            self.now < self.plan.trouble * 1_000 + PATIENCE,
            "no rest after {} hours: {}",
            PATIENCE / 3_600_000_000,
            self.waits_for()
        );
        match which {
            0 => {
                if let Some(Reverse(due)) = self.heap.pop() {
                    self.do_it(due.what);
                }
            }
            1 => {
                self.server.wake(self.now);
                self.hear_server();
            }
            2 => self.let_app_act(),
            _ => {
                self.step(Input::Tick);
                let later = self.due_timer().is_none_or(|later| later > self.now);
                assert!(later, "a tick moves its timer");
            }
        }
        self.misfortune();
    }

    /// When the machine wants a tick, in the time that passes.
    fn due_timer(&self) -> Option<u64> {
        let life = self.life.as_ref().filter(|life| !life.halted)?;
        let at = life.deadline?.0;
        Some(at.saturating_sub(START + self.ahead).max(self.now))
    }

    fn at(&mut self, at: u64, what: What) {
        self.order += 1;
        self.heap.push(Reverse(Due {
            at: at.max(self.now),
            order: self.order,
            what,
        }));
    }

    fn soon(&mut self, low: u64, high: u64, what: What) {
        let span = if self.steady {
            low
        } else {
            self.net.between(low, high)
        };
        self.at(self.now + span, what);
    }

    fn clock(&self) -> Timestamp {
        Timestamp(START + self.now + self.ahead)
    }

    fn note(&mut self, text: impl FnOnce() -> String) {
        if let Some(log) = &mut self.log {
            let at = self.now;
            log.push_str(&format!("{:>7}.{:03} {}\n", at / 1_000, at % 1_000, text()));
        }
    }

    fn do_it(&mut self, what: What) {
        match what {
            What::Boot => self.boot(),
            What::Written { life } => self.written(life),
            What::Opened {
                life,
                epoch,
                orphan,
            } => self.opened(life, epoch, orphan),
            What::Told { life, input } => {
                if self.is_life(life) {
                    self.step(*input);
                }
            }
            What::Up(conn) => self.up(conn),
            What::Down(conn) => self.down(conn),
            What::Gone { conn, process } => {
                let Some(wire) = self.wires.get_mut(&conn) else {
                    return;
                };
                let pid = wire.pid;
                wire.theirs = false;
                if process {
                    self.note(|| format!("process {pid} ends"));
                    self.server.kill(pid, self.now);
                } else {
                    self.server.disconnect(conn);
                }
                self.hear_server();
            }
            What::Daemon => self.start_daemon(),
            What::Exit { life } => {
                if self.is_life(life) {
                    self.kill_us(false, false);
                }
            }
            What::Heal => self.heal(),
        }
    }

    fn is_life(&self, life: u32) -> bool {
        self.life.as_ref().is_some_and(|l| l.number == life)
    }

    fn start_daemon(&mut self) {
        if self.daemon.is_some() {
            return;
        }
        self.last_pid += 1;
        let pid = self.last_pid;
        self.daemon = Some(pid);
        self.server.spawn(pid);
        self.tally.processes += 1;
        self.note(|| format!("process {pid} begins"));
    }

    /// Our process starts.
    fn boot(&mut self) {
        match &self.life {
            Some(life) if life.halted => {
                self.kill_us(false, false);
                return;
            }
            Some(_) => return,
            None => {}
        }
        self.exits = false;
        self.lives += 1;
        self.tally.lives += 1;
        let entries = self.disk.read();
        let last = entries.last().map_or(0, |entry| entry.at.0);
        // A clock on the wall that is behind the journal does not set it back.
        self.ahead = self.ahead.max(last.saturating_sub(START + self.now));
        self.remember(&entries);
        self.checks.life_begins(&self.history);
        // A checkpoint in place of some of the batches must make the same machine.
        let some = self.rng.at(entries.len() + 1);
        let compacts = some > 0 && !self.steady && self.rng.ppm(self.plan.rate(Fault::Compact));
        let mut origin = Origin {
            config: self.config.clone(),
            seed: self.rng.next(),
            at: self.clock(),
            entries,
            bug: self.bug,
        };
        if compacts {
            self.tally.fault(Fault::Compact);
            origin = origin.compacted(some);
            self.disk.replace(&origin.entries);
        }
        self.note(|| format!("---- we start, with {} batches", origin.entries.len()));
        let (machine, first) = origin.make();
        let keeps = self.rng.one_in(3);
        let number = self.lives;
        self.life = Some(Life {
            number,
            machine,
            origin,
            first: first.clone(),
            kept: keeps.then(Vec::new),
            deadline: None,
            epochs: BTreeMap::new(),
            steps: 0,
            halted: false,
            ended: false,
        });
        self.app.life_begins(self.now, self.lives);
        self.perform(&first);
    }

    /// Keeps what a checkpoint stands for: the checkers look at all of it.
    fn remember(&mut self, entries: &[Entry]) {
        let first = entries.first().and_then(|entry| entry.records.first());
        let mut rest = entries;
        match (first, entries.split_first()) {
            (Some(Record::Checkpoint(_)), Some((checkpoint, after))) => {
                self.history.retain(|entry| entry.seq <= checkpoint.seq);
                rest = after;
            }
            _ => self.history.clear(),
        }
        self.history.extend_from_slice(rest);
    }

    /// Our process is gone, one way or another: what it did is looked at once more.
    fn end_life(&mut self) {
        let Some(life) = self.life.take() else { return };
        if !life.halted {
            self.checks
                .same_as_journal(&life.machine, &self.disk.handed());
        }
        if let Some(kept) = &life.kept {
            super::check::replay(&life.origin, &life.first, kept);
            self.tally.replays += 1;
        }
        self.checks.life_ends();
        for (name, count) in super::check::counters(&life.machine) {
            self.tally.count(name, count);
        }
    }

    /// Tells the machine something.
    fn step(&mut self, input: Input) {
        let at = self.clock();
        let Some(life) = &mut self.life else { return };
        self.tally.steps += 1;
        life.steps += 1;
        let steps = life.steps;
        if self.log.is_some() {
            let text = super::check::input_text(&input);
            self.note(|| format!("> {text}"));
        }
        self.checks.input(&input);
        let Some(life) = &mut self.life else { return };
        let copy = life.kept.is_some().then(|| input.clone());
        let effects = life.machine.step(at, input);
        self.perform(&effects);
        let Some(life) = &mut self.life else { return };
        if steps % 16 == 0 {
            life.machine.check_invariants();
            self.checks.same(life.machine.durable());
        }
        if let (Some(kept), Some(input)) = (&mut life.kept, copy) {
            kept.push(Kept { at, input, effects });
        }
    }

    /// A connection that was asked for is there, or is not.
    fn opened(&mut self, life: u32, epoch: Epoch, orphan: Option<Orphan>) {
        let is_wanted =
            |l: &Life| l.number == life && l.epochs.get(&epoch) == Some(&Reached::Opening);
        if !self.life.as_ref().is_some_and(is_wanted) {
            return;
        }
        if let Some(orphan) = orphan {
            // A process is told by pid and start time; pids are not used again here.
            if orphan.start_time == Some(start_time(orphan.pid)) && self.server.runs(orphan.pid) {
                self.note(|| format!("the orphan {} is stopped", orphan.pid));
                self.tally.count("orphans stopped", 1);
                self.server.kill(orphan.pid, self.now);
                self.hear_server();
            }
        }
        let fails = !self.healed && self.rng.ppm(self.plan.rate(Fault::OpenFails));
        let pid = match self.daemon {
            _ if fails => None,
            Some(pid) => Some(pid),
            None if self.plan.socket => None,
            None => {
                self.last_pid += 1;
                self.server.spawn(self.last_pid);
                self.tally.processes += 1;
                Some(self.last_pid)
            }
        };
        let Some(pid) = pid else {
            if fails {
                self.tally.fault(Fault::OpenFails);
            }
            let reason = turnkeep_core::CloseReason::OpenFailed("connection refused".into());
            self.closed(epoch, reason);
            return;
        };
        self.tally.connections += 1;
        self.last_conn += 1;
        let conn = self.last_conn;
        self.server.connect(pid, conn);
        self.wires.insert(conn, Wire::new(epoch, life, pid));
        if let Some(life) = &mut self.life {
            life.epochs.insert(epoch, Reached::Open(conn));
        }
        let peer = if self.plan.socket {
            let mut peer = Peer::default();
            peer.transport = "unix".into();
            peer
        } else {
            Peer::child(pid, Some(start_time(pid)))
        };
        self.note(|| format!("connection {conn} to process {pid} is epoch {epoch}"));
        self.checks.connected(epoch, pid);
        self.step(Input::Opened(epoch, peer));
    }

    /// Tells the machine that a connection has ended, once.
    fn closed(&mut self, epoch: Epoch, reason: turnkeep_core::CloseReason) {
        let Some(life) = &mut self.life else { return };
        life.epochs.insert(epoch, Reached::Closed);
        let closed = Closed::new(reason, String::new());
        self.step(Input::Closed(epoch, Box::new(closed)));
    }

    fn let_app_act(&mut self) {
        let commands = self.app.act(self.now);
        for (id, command) in commands {
            self.step(Input::Command { id, command });
        }
    }

    /// Whether nothing waits any more.
    fn is_at_rest(&self) -> bool {
        let Some(life) = &self.life else { return false };
        self.healed
            && !self.exits
            && !life.halted
            && self.app.is_settled()
            && self.disk.is_idle()
            && self.server.is_idle()
            && (life.ended || super::check::is_at_rest(life.machine.durable()))
    }

    fn waits_for(&self) -> String {
        let life = self.life.as_ref();
        let durable = life.map(|l| super::check::unsettled(l.machine.durable()));
        format!(
            "the application: {}; the journal: {}; the server {}",
            self.app.waits_for(),
            durable.unwrap_or_else(|| "of nobody".into()),
            if self.server.is_idle() {
                "is idle"
            } else {
                "works"
            },
        )
    }
}

/// When a process started, as the system tells it.
fn start_time(pid: u32) -> u64 {
    u64::from(pid) * 7 + 1
}

fn odds(plan: &Plan) -> Odds {
    Odds {
        old: plan.old_server,
        double_response: plan.rate(Fault::DoubleResponse),
        late_response: plan.rate(Fault::LateResponse),
        no_response: plan.rate(Fault::NoResponse),
        overloaded: plan.rate(Fault::Overloaded),
        unknown_request: plan.rate(Fault::UnknownRequest),
        unknown_notification: plan.rate(Fault::UnknownNotification),
        noise: plan.rate(Fault::Noise),
        deaf_interrupt: plan.rate(Fault::DeafInterrupt),
        foreign_turn: plan.rate(Fault::ForeignTurn),
        ghost_turn: plan.rate(Fault::GhostTurn),
        untold_end: plan.rate(Fault::UntoldEnd),
        hang: plan.rate(Fault::Hang),
        unload: plan.rate(Fault::Unload),
        steady: false,
    }
}
