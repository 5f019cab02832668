//! A model of the real app-server: what it keeps, what it says, and what a kill leaves of it.
//!
//! It follows `WIRE.md` and the recordings under `tests/traces`; `tests/tests/sim/server.rs` plays the client's side of the
//! recordings against it and compares.

mod lists;
mod requests;
mod script;
mod thread;
mod turns;

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    rc::Rc,
};

pub(crate) use self::thread::quoted;
use self::thread::{Loaded, Stage, Thread, Turn};
pub use self::{
    script::{Step, say},
    thread::Status,
};
use super::rng::Rng;

/// A connection, by its number.
pub type Conn = u32;

pub(super) const APPROVAL: &str = "item/commandExecution/requestApproval";
pub(super) const USER_INPUT: &str = "item/tool/requestUserInput";
pub(super) const TOOL_CALL: &str = "item/tool/call";

/// How the server is, and how often it does what it should not, in a million chances.
#[derive(Clone, Copy, Debug, Default)]
pub struct Odds {
    /// It is a 0.163.0: it never answers a second interrupt of a turn.
    pub old: bool,
    /// A response comes twice.
    pub double_response: u32,
    /// A response comes late.
    pub late_response: u32,
    /// A response never comes.
    pub no_response: u32,
    /// A request is answered with -32001.
    pub overloaded: u32,
    /// A request that nobody knows is sent.
    pub unknown_request: u32,
    /// A notification that nobody knows is sent.
    pub unknown_notification: u32,
    /// A line that is no frame is sent.
    pub noise: u32,
    /// An interrupt is neither answered nor heeded.
    pub deaf_interrupt: u32,
    /// A turn begins that is not the client's.
    pub foreign_turn: u32,
    /// The response to a folded start names a turn that never is.
    pub ghost_turn: u32,
    /// A turn ends and nobody is told.
    pub untold_end: u32,
    /// The model never comes back.
    pub hang: u32,
    /// An idle thread is let go.
    pub unload: u32,
    /// Nothing is left to chance: every pause is of ten milliseconds.
    pub steady: bool,
}

/// What became true at the server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fact {
    /// A message frame came.
    Came {
        /// Its id.
        message: String,
    },
    /// A user message stands in the history.
    Recorded {
        /// Its thread.
        thread: Rc<str>,
        /// Its id, if it has one.
        message: Option<String>,
        /// What it says.
        text: String,
        /// Its turn.
        turn: Rc<str>,
    },
    /// A turn has ended.
    Ended {
        /// It.
        turn: Rc<str>,
        /// How.
        status: Status,
        /// What was said in it, in order.
        parts: Vec<Part>,
    },
    /// The client answered an approval.
    Decided {
        /// The item that it is about.
        item: String,
        /// Its result, as it came.
        result: String,
    },
    /// The model calls a tool: the client is asked.
    Called {
        /// The process that asks.
        pid: u32,
        /// Its request.
        request: u64,
        /// The server's name for the call.
        call: String,
    },
    /// The client answered a call.
    CallAnswered {
        /// Its thread.
        thread: Rc<str>,
        /// The server's name for it.
        call: String,
        /// The result, as it came, if it is one.
        result: Option<String>,
    },
    /// A message of the agent is complete.
    Said {
        /// Its thread.
        thread: Rc<str>,
        /// What it says.
        text: String,
    },
    /// The client answered a request again, on the connection on which it had answered it.
    AnsweredTwice {
        /// The request.
        request: u64,
    },
    /// The model is given a message twice.
    GivenTwice {
        /// What it says.
        text: String,
        /// The turn that it was given in before.
        before: Rc<str>,
    },
    /// A thread was made.
    Thread {
        /// The mark that it carries.
        mark: Option<String>,
    },
    /// A thread was made of another one: it holds what that holds.
    Forked {
        /// The other one.
        from: Rc<str>,
        /// It.
        to: Rc<str>,
    },
    /// The history of a thread was made shorter.
    Compacted,
    /// A fault happened.
    Fault(super::plan::Fault),
}

/// What was said in a turn.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Part {
    /// A user message, by its id, if it has one.
    User(Option<String>),
    /// A message of the agent.
    Agent {
        /// What it says.
        text: String,
        /// Whether it was only said on the way.
        commentary: bool,
    },
}

#[derive(Clone, Debug)]
struct Process {
    /// The id that its next request has: from 0 in each process.
    next_request: u64,
    /// Requests that were answered, and on which connection.
    answered: BTreeSet<(u64, Conn)>,
}

#[derive(Clone, Debug)]
struct Session {
    pid: u32,
    initialized: bool,
    ready: bool,
}

/// What the server does when its time has come.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Wake {
    /// A turn goes on.
    Turn { thread: usize, serial: u64 },
    /// An interrupt takes effect.
    Stop { thread: usize, serial: u64 },
    /// A turn of somebody else begins.
    Foreign { thread: usize },
    /// An idle thread is let go.
    Unload { thread: usize },
    /// A line is sent that was held back.
    Say { conn: Conn, line: String },
}

/// The server: its files, and its processes one after the other.
#[derive(Clone, Debug)]
pub struct Server {
    odds: Odds,
    rng: Rng,
    now: u64,
    threads: Vec<Thread>,
    by_id: BTreeMap<Rc<str>, usize>,
    processes: BTreeMap<u32, Process>,
    sessions: BTreeMap<Conn, Session>,
    due: BTreeSet<(u64, u64, Wake)>,
    order: u64,
    serial: u64,
    /// What the model does for a message of this text, where a test says it.
    scripts: BTreeMap<String, Vec<Step>>,
    out: VecDeque<(Conn, String)>,
    healed: bool,
    facts: Vec<Fact>,
}

impl Server {
    /// A server without threads and processes.
    #[must_use]
    pub fn new(seed: u64, odds: Odds) -> Self {
        Self {
            odds,
            rng: Rng::new(seed, 2),
            now: 0,
            threads: Vec::new(),
            by_id: BTreeMap::new(),
            processes: BTreeMap::new(),
            sessions: BTreeMap::new(),
            due: BTreeSet::new(),
            order: 0,
            serial: 0,
            scripts: BTreeMap::new(),
            out: VecDeque::new(),
            healed: false,
            facts: Vec::new(),
        }
    }

    /// Says what the model does for a message of this text.
    pub fn script(&mut self, text: &str, steps: Vec<Step>) {
        self.scripts.insert(text.to_owned(), steps);
    }

    /// A process begins.
    pub fn spawn(&mut self, pid: u32) {
        self.processes.insert(
            pid,
            Process {
                next_request: 0,
                answered: BTreeSet::new(),
            },
        );
    }

    /// Whether a process runs.
    #[must_use]
    pub fn runs(&self, pid: u32) -> bool {
        self.processes.contains_key(&pid)
    }

    /// A client connects to a process.
    pub fn connect(&mut self, pid: u32, conn: Conn) {
        let session = Session {
            pid,
            initialized: false,
            ready: false,
        };
        self.sessions.insert(conn, session);
    }

    /// A connection is gone; its process lives on.
    pub fn disconnect(&mut self, conn: Conn) {
        if self.sessions.remove(&conn).is_none() {
            return;
        }
        for at in 0..self.threads.len() {
            let Some(loaded) = &mut self.threads[at].loaded else {
                continue;
            };
            loaded.subscribers.remove(&conn);
            // A thread without a turn that nobody listens to is not kept.
            if loaded.subscribers.is_empty() && loaded.active.is_none() && !self.threads[at].stored
            {
                self.forget(at);
            }
        }
    }

    /// A process ends at once: killed, or its stdin was closed.
    pub fn kill(&mut self, pid: u32, now: u64) {
        self.now = now;
        if self.processes.remove(&pid).is_none() {
            return;
        }
        self.sessions.retain(|_, session| session.pid != pid);
        for at in 0..self.threads.len() {
            if self.threads[at]
                .loaded
                .as_ref()
                .is_some_and(|l| l.pid == pid)
            {
                self.crash(at);
            }
        }
    }

    /// What a kill leaves of a thread.
    fn crash(&mut self, at: usize) {
        let Some(loaded) = self.threads[at].loaded.take() else {
            return;
        };
        if let Some(active) = loaded.active {
            // Before its message is recorded: no such turn, or an interrupted one without items.
            let kept = active.stage == Stage::Recorded || self.chance_of_trace();
            match active.stage {
                Stage::Taken if kept => {
                    let turn = self.new_turn(&active.turn);
                    self.threads[at].turns.push(turn);
                    self.threads[at].stored = true;
                }
                Stage::Begun if !kept => {
                    self.threads[at].turns.retain(|turn| turn.id != active.turn);
                }
                Stage::Begun => {
                    self.threads[at].stored = true;
                    // The history lacks the message, and what the model is given may have it.
                    if self.rng.one_in(3) {
                        if let Some(first) = &active.first {
                            self.give(at, &active.turn, &first.text);
                        }
                    }
                }
                Stage::Taken | Stage::Recorded => {}
            }
            if kept {
                let thread = &mut self.threads[at];
                if let Some(turn) = thread.turn(&active.turn) {
                    turn.status = Status::Interrupted;
                }
                self.tell_end(at, &active.turn);
            }
        }
        if !self.threads[at].stored {
            self.forget(at);
        }
    }

    fn chance_of_trace(&mut self) -> bool {
        self.rng.one_in(2)
    }

    fn new_turn(&self, id: &Rc<str>) -> Turn {
        Turn {
            id: id.clone(),
            status: Status::InProgress,
            items: Vec::new(),
            started: self.now,
            completed: None,
        }
    }

    /// A thread that nothing is kept of.
    fn forget(&mut self, at: usize) {
        let id = self.threads[at].id.clone();
        self.threads[at].loaded = None;
        self.by_id.remove(&id);
    }

    /// From here on the server does all that it should, and what hangs goes on.
    pub fn heal(&mut self, now: u64) {
        self.now = now;
        self.healed = true;
        let old = self.odds.old;
        self.odds = Odds {
            old,
            ..Odds::default()
        };
        for at in 0..self.threads.len() {
            if let Some(active) = self.active_mut(at) {
                if active.steps.front() == Some(&Step::Hang) {
                    active.steps.pop_front();
                    let serial = active.serial;
                    self.wake_in(1_000, Wake::Turn { thread: at, serial });
                }
            }
        }
    }

    /// When the server does something by itself.
    #[must_use]
    pub fn due(&self) -> Option<u64> {
        self.due.first().map(|(at, ..)| *at)
    }

    /// Does one thing that is due.
    pub fn wake(&mut self, now: u64) {
        let Some((at, ..)) = self.due.first() else {
            return;
        };
        if *at > now {
            return;
        }
        self.now = now;
        let Some((.., wake)) = self.due.pop_first() else {
            return;
        };
        match wake {
            Wake::Turn { thread, serial } => self.advance(thread, serial),
            Wake::Stop { thread, serial } => self.stop(thread, serial),
            Wake::Foreign { thread } => self.begin_foreign(thread),
            Wake::Unload { thread } => self.unload(thread),
            Wake::Say { conn, line } => self.say(conn, line),
        }
    }

    /// What it wrote and nobody has taken.
    pub fn take_line(&mut self) -> Option<(Conn, String)> {
        self.out.pop_front()
    }

    /// What became true since this was last asked.
    pub fn take_facts(&mut self) -> Vec<Fact> {
        std::mem::take(&mut self.facts)
    }

    /// Whether nothing runs and nothing is due: a turn that waits for a client that has gone does not run.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        let rests = |thread: &Thread| {
            let Some(loaded) = &thread.loaded else {
                return true;
            };
            let waits =
                |active: &thread::Active| !active.open.is_empty() && loaded.subscribers.is_empty();
            loaded.active.as_ref().is_none_or(waits)
        };
        self.due.is_empty() && self.threads.iter().all(rests)
    }

    /// How many threads are kept or loaded.
    #[must_use]
    pub fn threads(&self) -> usize {
        self.by_id.len()
    }

    fn fact(&mut self, fact: Fact) {
        self.facts.push(fact);
    }

    fn fault(&mut self, fault: super::plan::Fault) {
        self.facts.push(Fact::Fault(fault));
    }

    /// So many microseconds, or as many as chance says.
    fn pause(&mut self, low: u64, high: u64) -> u64 {
        if self.odds.steady {
            10_000
        } else {
            self.rng.between(low, high)
        }
    }

    fn wake_in(&mut self, span: u64, wake: Wake) {
        self.order += 1;
        self.due.insert((self.now + span, self.order, wake));
    }

    fn say(&mut self, conn: Conn, line: String) {
        if self.sessions.contains_key(&conn) {
            self.out.push_back((conn, line));
        }
    }

    fn loaded(&self, at: usize) -> Option<&Loaded> {
        self.threads[at].loaded.as_ref()
    }

    fn active_mut(&mut self, at: usize) -> Option<&mut thread::Active> {
        self.threads[at].loaded.as_mut()?.active.as_mut()
    }

    /// Tells those that listen to a thread.
    fn notify(&mut self, at: usize, method: &str, params: &str) {
        let Some(loaded) = self.loaded(at) else {
            return;
        };
        let listeners: Vec<Conn> = loaded.subscribers.iter().copied().collect();
        let line = self.notification(method, params);
        for conn in listeners {
            self.say(conn, line.clone());
        }
        self.extras(at);
    }

    /// Tells all connections of the process that writes a thread.
    fn broadcast(&mut self, at: usize, method: &str, params: &str) {
        let Some(pid) = self.loaded(at).map(|loaded| loaded.pid) else {
            return;
        };
        let line = self.notification(method, params);
        let of_it = |(conn, session): (&Conn, &Session)| {
            (session.pid == pid && session.initialized).then_some(*conn)
        };
        let all: Vec<Conn> = self.sessions.iter().filter_map(of_it).collect();
        for conn in all {
            self.say(conn, line.clone());
        }
    }

    fn notification(&self, method: &str, params: &str) -> String {
        let at = self.now / 1_000;
        format!(r#"{{"method":"{method}","params":{params},"emittedAtMs":{at}}}"#)
    }

    fn status_changed(&mut self, at: usize) {
        let Some(pid) = self.loaded(at).map(|loaded| loaded.pid) else {
            return;
        };
        let params = format!(
            r#"{{"threadId":"{}","status":{}}}"#,
            self.threads[at].id,
            self.threads[at].status(pid)
        );
        self.broadcast(at, "thread/status/changed", &params);
    }

    /// What a client must bear: frames that nobody knows.
    fn extras(&mut self, at: usize) {
        use super::plan::Fault;
        let odds = self.odds;
        let id = self.threads[at].id.clone();
        let Some(loaded) = self.loaded(at) else {
            return;
        };
        let (pid, conn) = (loaded.pid, loaded.subscribers.first().copied());
        let Some(conn) = conn else { return };
        if self.rng.ppm(odds.unknown_notification) {
            let params = format!(r#"{{"threadId":"{id}","news":[1,"two"]}}"#);
            let line = self.notification("thread/news/changed", &params);
            self.say(conn, line);
            self.fault(Fault::UnknownNotification);
        }
        if self.rng.ppm(odds.unknown_request) {
            if let Some(process) = self.processes.get_mut(&pid) {
                let request = process.next_request;
                process.next_request += 1;
                let line = format!(
                    r#"{{"method":"thread/news/ask","id":{request},"params":{{"threadId":"{id}"}}}}"#
                );
                self.say(conn, line);
                self.fault(Fault::UnknownRequest);
            }
        }
        if self.rng.ppm(odds.noise) {
            self.say(conn, "[1,2".to_owned());
            self.fault(Fault::Noise);
        }
    }
}
