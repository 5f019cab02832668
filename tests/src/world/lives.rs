//! Connections one after the other, and lives of our own process one after the other.

use turnkeep_core::{
    CloseReason, Epoch, Event, Input, Peer, Record, Recovery, Timestamp,
    attachment::Endpoint,
    codec::{journal::Entry, trace},
};
use turnkeep_tokio::fake::{Engine, Script};

use super::{Journal, Opens, Other, World, check};

/// Who is on the other side of the connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Peers {
    /// A child process, a new one each time.
    Children,
    /// A socket: the process behind it may be the same.
    Socket,
}

impl Peers {
    fn peer(self, opened: usize) -> Peer {
        match self {
            Self::Children => {
                let pid = 4_242 + u32::try_from(opened).expect("few connections");
                Peer::child(pid, Some(1))
            }
            Self::Socket => {
                let path = "/run/codex.sock".into();
                Peer::socket(Endpoint::Unix { path })
            }
        }
    }
}

/// What a crash leaves of the journal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Left {
    /// All that was handed to it.
    All,
    /// What it had confirmed.
    Confirmed,
    /// All, as a checkpoint.
    Checkpoint,
}

/// A script in play, one life of it after the other.
#[derive(Debug)]
pub(super) struct Played {
    text: String,
    pub(super) engine: Engine,
}

impl Played {
    pub(super) fn new(text: &str) -> Self {
        let script = Script::parse(text).expect("the script can be read");
        Self {
            text: text.to_owned(),
            engine: Engine::new(script),
        }
    }

    fn live(&mut self, life: usize) {
        let lives = Script::lives(&self.text);
        assert!(life < lives, "the script has {lives} lives only");
        let script = Script::parse_life(&self.text, life).expect("the script can be read");
        self.engine = self.engine.next_life(script);
    }
}

impl World {
    /// The events of the life that runs.
    #[must_use]
    pub fn life(&self) -> &[Event] {
        &self.events[self.life_began..]
    }

    /// Changes what becomes of connections that the machine asks for from here on.
    pub fn set_opens(&mut self, opens: Opens) {
        self.opens = opens;
    }

    /// Changes who is on the other side of the next connections.
    pub fn set_peers(&mut self, peers: Peers) {
        self.peers = peers;
    }

    /// A connection comes to be: the next life of the script plays it.
    pub(super) fn connect(&mut self, epoch: Epoch) {
        let peer = self.peers.peer(self.opened);
        if self.opened > 0 {
            self.went_by_the_script();
            match &mut self.other {
                Other::Script(played) => played.live(self.opened),
                Other::Demo(_) => panic!("the demo server lives once"),
                Other::Hand => {}
            }
        }
        self.opened += 1;
        self.epoch = Some(epoch);
        self.inputs.push_back(Input::Opened(epoch, peer));
    }

    /// Nothing goes over the connection any more.
    pub(super) fn cut(&mut self) {
        self.actions.clear();
        self.to_server.clear();
        self.wire.clear();
        self.writes.clear();
        self.busy = None;
        self.closing = None;
        self.epoch = None;
    }

    /// Every frame of ours so far was one that the script expected.
    pub(super) fn went_by_the_script(&self) {
        if let Other::Script(played) = &self.other {
            let failure = played.engine.failure();
            assert!(failure.is_none(), "{failure:?}\n{}", self.log.text());
        }
    }

    /// Kills our process at this moment and begins its next life on what the journal holds.
    ///
    /// # Panics
    ///
    /// A checker found something.
    pub fn crash(&mut self, left: Left) {
        self.crash_for(0, left);
    }

    /// The same, and so many milliseconds pass before the next life begins.
    ///
    /// # Panics
    ///
    /// A checker found something.
    pub fn crash_for(&mut self, millis: u64, left: Left) {
        self.went_by_the_script();
        check::replays(&self.trace);
        let (handed, checkpoint) = self.machine.checkpoint();
        let kept = match left {
            Left::All | Left::Checkpoint => handed,
            Left::Confirmed => self.checks.confirmed(),
        };
        self.entries.retain(|entry| entry.seq <= kept);
        if left == Left::Checkpoint {
            self.entries = vec![Entry {
                seq: handed,
                at: self.now,
                records: vec![checkpoint],
            }];
        }
        self.cut();
        self.inputs.clear();
        self.unacked.clear();
        self.stderr.clear();
        if self.journal == Journal::Failing {
            self.journal = Journal::AtOnce;
        }
        self.checks.crash(kept);
        self.log
            .note(&format!("a crash of ours leaves {left:?} of the journal"));
        self.now = Timestamp(self.now.0 + millis * 1_000);
        self.live_again();
    }

    /// The same as a crash that leaves a checkpoint, which is changed first: what takes too long to come to be by itself.
    ///
    /// # Panics
    ///
    /// The change makes no state, or a checker found something.
    pub fn crash_as(&mut self, change: impl FnOnce(&str) -> String) {
        check::replays(&self.trace);
        let (seq, checkpoint) = self.machine.checkpoint();
        let text = change(&super::log::json(&checkpoint));
        let record: Record = serde_json::from_str(&text).expect("the change makes a record");
        self.cut();
        self.inputs.clear();
        self.unacked.clear();
        self.checks.crash_as(seq, &record);
        self.entries = vec![Entry {
            seq,
            at: self.now,
            records: vec![record],
        }];
        self.log.note("a crash of ours, and another state");
        self.live_again();
    }

    fn live_again(&mut self) {
        self.seed += 1;
        let config = self.machine.config().clone();
        let mut recovery = Recovery::new(config.clone(), self.seed).expect("it was good before");
        for entry in &self.entries {
            let pushed = recovery.push(entry);
            assert_eq!(pushed, Ok(()), "the journal makes a state: {entry:?}");
        }
        self.checks.same(recovery.durable());
        let from = Entry {
            seq: recovery.seq(),
            at: recovery.at(),
            records: vec![recovery.durable().checkpoint()],
        };
        let (machine, effects) = recovery.finish(self.now);
        self.trace = trace::encode_header_from(self.now, self.seed, &config, Some(&from), &effects);
        self.machine = machine;
        self.deadline = None;
        self.life_began = self.events.len();
        self.log
            .input(self.now, self.steps, &format!("new seed {}", self.seed));
        self.perform(effects);
        self.machine.check_invariants();
        self.checks.same(self.machine.durable());
        self.settle();
    }

    /// Journal and recording say what was.
    pub(super) fn journal_and_trace(&self) {
        check::journal_makes(&self.entries, self.machine.durable());
        if self.life_began == 0 {
            check::journal_reads(&self.journal_bytes, &self.entries);
        }
        check::replays(&self.trace);
    }

    /// Says that the connection which the machine waits for cannot be opened.
    pub fn hang_up_unopened(&mut self, reason: CloseReason) {
        let epoch = self.asked.expect("a connection was asked for");
        self.closed(epoch, reason);
        self.settle();
    }

    /// Lets the other side end the connection, which it does not survive, when it is a child.
    pub fn lose_connection(&mut self) {
        let reason = match self.peers {
            Peers::Children => CloseReason::Exited {
                code: None,
                signal: Some(9),
            },
            Peers::Socket => CloseReason::Lost("reset".into()),
        };
        self.hang_up(reason);
    }
}
