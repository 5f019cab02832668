//! The state machine: everything comes in through [`Machine::step`], reads that are borrowed
//! through [`Machine::receive`], and goes out as [`Effects`].

mod attached;
mod calls;
mod child_calls;
mod children;
mod cleanup;
mod commands;
mod compactions;
mod connection;
mod conversations;
mod deltas;
mod ends;
mod errands;
mod forks;
mod found;
mod frames;
mod history;
mod index;
mod look;
mod models;
mod out;
mod questions;
mod reattach;
mod reconcile;
mod recovered;
mod refreshes;
mod requests;
mod results;
mod revert;
mod rounds;
mod steers;
mod stops;
mod streamed;
mod suspend;
mod threads;
mod turn;
mod turns;
mod warnings;

use alloc::{
    boxed::Box,
    collections::{BTreeMap, BTreeSet, VecDeque},
    string::String,
    vec::Vec,
};

use self::{
    calls::InboundRequest,
    children::Strangers,
    commands::Commands,
    connection::Connection,
    errands::Errands,
    found::EndedTurn,
    index::ThreadIndex,
    look::Look,
    reconcile::{Doubt, Unsure},
    requests::Requests,
    suspend::Tries,
    turn::Turn,
};
use crate::{
    bug::Bug,
    codec::lines::LineSplitter,
    command::Binding,
    config::{Config, ConfigError},
    durable::Durable,
    effect::{Durability, Effects},
    event::{HistoryError, Status, Tokens},
    id::{CommandId, ConversationId, Epoch, FrameSeq, JournalSeq, ThreadId, TurnNo},
    input::Input,
    outbox::Outbox,
    record::Record,
    recovery::Recovery,
    rng::Rng,
    time::Timestamp,
    timers::{Timer, Timers},
};

/// How many ended turns of a conversation are remembered, to tell late frames from new ones.
const REMEMBERED_TURNS: usize = 64;

/// The machine.
#[derive(Debug)]
pub struct Machine {
    config: Config,
    rng: Rng,
    now: Timestamp,
    /// How many steps there were.
    steps: u64,
    durable: Durable,
    /// The last batch that was handed to `Append`.
    seq: JournalSeq,
    /// Records of the step that runs.
    batch: Vec<Record>,
    batch_durability: Durability,
    frame_seq: FrameSeq,
    outbox: Outbox,
    timers: Timers,
    connection: Connection,
    last_epoch: Epoch,
    /// The last connection that came to be.
    opened: Epoch,
    tries: Tries,
    /// The server's process is not one that an earlier connection spoke with.
    fresh_process: bool,
    requests: Requests,
    /// By number: dense, a closed conversation leaves an empty place.
    conversations: Vec<Option<Box<Conversation>>>,
    threads: ThreadIndex,
    strangers: Strangers,
    child_calls: child_calls::ChildCalls,
    turn_owner: BTreeMap<TurnNo, ConversationId>,
    last_turn: TurnNo,
    commands: Commands,
    sweeps: cleanup::Sweeps,
    inbound: BTreeMap<Box<str>, InboundRequest>,
    questions: BTreeMap<crate::id::QuestionId, questions::OpenQuestion>,
    refreshes: refreshes::Refreshes,
    models: models::ListedModels,
    lines: LineSplitter,
    /// Pieces of text of this step that their turns do not have yet.
    runs: deltas::Runs,
    noise_run: u32,
    unknown_methods: BTreeSet<String>,
    counters: Counters,
    /// Conversations that something changed in this step.
    touched: Vec<ConversationId>,
    /// Forks whose threads may be made any moment, each behind its source.
    forking: Vec<(ConversationId, ConversationId)>,
    /// Those of them in which a stage is due.
    to_stage: Vec<ConversationId>,
    /// The journal failed.
    halted: bool,
    #[cfg(feature = "bugs")]
    bug: Option<Bug>,
}

/// What changed nothing, counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Counters {
    /// Frames of turns that had ended.
    pub late_frames: u64,
    /// Frames that said again what was known: ends, items, responses.
    pub duplicate_frames: u64,
    /// Frames of past connections, or of one that is closing.
    pub past_epoch_frames: u64,
    /// Lines that were no frames.
    pub noise_lines: u64,
    /// Deltas that went into the event of the delta before them.
    pub merged_deltas: u64,
    /// Frames of threads that belong to no conversation.
    pub foreign_frames: u64,
    /// Frames of threads of sub-agents.
    pub child_frames: u64,
    /// Events of abandoned turns that were dropped.
    pub dropped_events: u64,
    /// All frames that were read.
    pub frames: u64,
    /// How often a connection was opened again.
    pub reconnects: u64,
    /// How often the history of a thread was looked into.
    pub lookups: u64,
    /// Suspended turns that the server still ran.
    pub found_running: u64,
    /// Suspended turns whose end was read from the history.
    pub found_ended: u64,
    /// Messages that were proven never to have been recorded, and sent again.
    pub resent: u64,
    /// Suspended turns that the history has as interrupted and without any item: their messages
    /// were never recorded.
    pub found_void: u64,
    /// Suspended turns of which the history could not tell.
    pub unknown: u64,
    /// Turns that were told as lost or unknown, and of which the history told more.
    pub corrected: u64,
}

/// A conversation, as far as a crash forgets it.
#[derive(Clone, Debug)]
// What each delta looks at stands first, and together.
#[repr(C)]
struct Conversation {
    /// Those that run or wait to, oldest first.
    turns: Vec<Turn>,
    /// The journal number behind which its last held event waits.
    held_until: JournalSeq,
    /// Where its last event of this step stands in the list of effects, if that is a delta.
    last_delta: Option<usize>,
    /// The step that `last_delta` belongs to.
    delta_step: u64,
    /// When it was kept for its turn last, counted in all that are: it is still to be kept if that was
    /// not since.
    delta_kept: u64,
    id: ConversationId,
    link: Link,
    closing: Option<Vec<CommandId>>,
    /// Its thread is being let go: nothing begins on it until that is done.
    letting_go: bool,
    /// The model that the server says its thread has.
    told_model: Option<String>,
    /// The last total of its thread.
    usage_total: Option<Tokens>,
    ended: VecDeque<EndedTurn>,
    /// Frames of turns that no response has named yet.
    early: Vec<Vec<u8>>,
    early_bytes: usize,
    early_overflow: bool,
    /// What is asked of its thread beside rounds.
    errands: Option<Box<Errands>>,
    /// A look into the history that is not over.
    look: Option<Box<Look>>,
    /// `thread/revert` is on its way.
    reverting: bool,
    /// What was told to be wrong with the history.
    warned: Vec<HistoryError>,
    /// Steered messages that may have gone into a turn that is over.
    doubts: Vec<Doubt>,
    /// Steered messages whose turn was over before they were answered.
    unanswered: Vec<Doubt>,
    /// On whose behalf it acts.
    binding: Option<Binding>,
    /// What it does, as it was last told.
    told_status: Status,
    /// What is due to begin was so in an earlier life.
    recovered: bool,
    /// What is due to begin could not, and nothing has changed since.
    cannot_begin: bool,
    /// Turns that were told as lost or unknown on an earlier connection.
    unsure: Vec<Unsure>,
    /// A later connection may tell more of them.
    corrects: bool,
    /// How often in a row a resume, a page or a `thread/start` was not answered with a yes.
    fails: u32,
    /// Since when the history lacks what is looked for, with the thread idle.
    absent_since: Option<Timestamp>,
    /// What the server last said of the thread on this connection.
    activity: Activity,
    /// When that was last active, on this connection.
    was_active: Option<Timestamp>,
    /// Since when that contradicts the history.
    idle_since: Option<Timestamp>,
}

/// Whether a thread runs a turn, says the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Activity {
    /// It did not say.
    Untold,
    /// None.
    Idle,
    /// One, whoever began it.
    Active,
}

/// What a conversation has of its native thread on this connection.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Link {
    /// Nothing yet.
    None,
    /// `thread/start` is on its way.
    Starting,
    /// Loaded and subscribed.
    Loaded(ThreadId),
    /// The server let it go: it must be resumed.
    Detached(ThreadId),
    /// `thread/resume` is on its way.
    Resuming(ThreadId),
}

impl Link {
    fn thread(&self) -> Option<&ThreadId> {
        match self {
            Self::Loaded(thread) | Self::Detached(thread) | Self::Resuming(thread) => Some(thread),
            Self::None | Self::Starting => None,
        }
    }
}

impl Conversation {
    fn new(id: ConversationId) -> Self {
        Self {
            id,
            link: Link::None,
            turns: Vec::new(),
            closing: None,
            letting_go: false,
            last_delta: None,
            delta_step: 0,
            delta_kept: 0,
            held_until: JournalSeq(0),
            told_model: None,
            usage_total: None,
            ended: VecDeque::new(),
            early: Vec::new(),
            early_bytes: 0,
            early_overflow: false,
            errands: None,
            look: None,
            reverting: false,
            warned: Vec::new(),
            doubts: Vec::new(),
            unanswered: Vec::new(),
            binding: None,
            told_status: Status::Quiet,
            recovered: false,
            cannot_begin: false,
            unsure: Vec::new(),
            corrects: false,
            fails: 0,
            absent_since: None,
            activity: Activity::Untold,
            was_active: None,
            idle_since: None,
        }
    }

    /// Whether its thread is being compacted.
    fn compacts(&self) -> bool {
        self.errands.as_deref().is_some_and(Errands::compacts)
    }

    /// Whether it is a fork whose thread is not bound yet.
    fn forks(&self) -> bool {
        self.errands.as_deref().is_some_and(Errands::forks)
    }

    fn turn(&mut self, no: TurnNo) -> Option<&mut Turn> {
        self.turns.iter_mut().find(|turn| turn.no == no)
    }

    fn running(&mut self, native: &str) -> Option<&mut Turn> {
        self.turns.iter_mut().find(|turn| turn.is_native(native))
    }

    fn has_ended(&self, native: &str) -> bool {
        self.ended.iter().any(|turn| turn.native.is(native))
    }

    fn remember_ended(&mut self, turn: EndedTurn) {
        if self.has_ended(&turn.native) {
            return;
        }
        if self.ended.len() == REMEMBERED_TURNS {
            self.ended.pop_front();
        }
        self.ended.push_back(turn);
    }
}

/// A conversation, where all of the machine cannot be borrowed.
fn find(all: &mut [Option<Box<Conversation>>], id: ConversationId) -> Option<&mut Conversation> {
    let at = (id.0 as usize).checked_sub(1)?;
    all.get_mut(at)?.as_deref_mut()
}

impl Machine {
    /// Makes a machine that has no history, and asks for its first connection.
    ///
    /// `seed` is the source of all chance and must differ between two starts; it is recorded.
    ///
    /// # Errors
    ///
    /// The configuration is refused.
    pub fn new(config: Config, seed: u64, now: Timestamp) -> Result<(Self, Effects), ConfigError> {
        Ok(Recovery::new(config, seed)?.finish(now))
    }

    /// A machine that nothing has happened to, and that has asked for nothing.
    pub(crate) fn blank(config: Config, seed: u64) -> Self {
        let epoch = Epoch(1);
        Self {
            rng: Rng::new(seed),
            now: Timestamp::default(),
            steps: 0,
            durable: Durable::default(),
            seq: JournalSeq(0),
            batch: Vec::new(),
            batch_durability: Durability::Buffered,
            frame_seq: FrameSeq(0),
            outbox: Outbox::default(),
            timers: Timers::default(),
            connection: Connection::Opening { epoch },
            last_epoch: epoch,
            opened: Epoch(0),
            tries: Tries::default(),
            fresh_process: false,
            requests: Requests::default(),
            conversations: Vec::new(),
            threads: ThreadIndex::default(),
            strangers: Strangers::default(),
            child_calls: child_calls::ChildCalls::default(),
            turn_owner: BTreeMap::new(),
            last_turn: TurnNo(0),
            commands: Commands::default(),
            sweeps: cleanup::Sweeps::default(),
            inbound: BTreeMap::new(),
            questions: BTreeMap::new(),
            refreshes: refreshes::Refreshes::default(),
            models: models::ListedModels::default(),
            lines: LineSplitter::default(),
            runs: deltas::Runs::default(),
            noise_run: 0,
            unknown_methods: BTreeSet::new(),
            counters: Counters::default(),
            touched: Vec::new(),
            forking: Vec::new(),
            to_stage: Vec::new(),
            halted: false,
            #[cfg(feature = "bugs")]
            bug: None,
            config,
        }
    }

    /// Takes one input and returns what it led to.
    ///
    /// Time never goes back: a `now` below an earlier one counts as that one.
    pub fn step(&mut self, now: Timestamp, input: Input) -> Effects {
        self.take_step(now, |machine, fx| match input {
            input if machine.halted => machine.step_halted(fx, input),
            Input::Command { id, command } => machine.on_command(fx, id, command),
            Input::Opened(epoch, peer) => machine.on_opened(fx, epoch, &peer),
            Input::Received(epoch, bytes) => machine.on_received(fx, epoch, &bytes),
            Input::SendFailed(epoch, frame) => machine.on_send_failed(fx, epoch, frame),
            Input::Closed(epoch, closed) => machine.on_closed(fx, epoch, *closed),
            Input::Appended { through } => machine.on_appended(fx, through),
            Input::AppendFailed => machine.halt(fx),
            Input::QueueFull(conversation) => machine.on_queue_full(fx, conversation),
            Input::Tick => machine.on_tick(fx),
        })
    }

    /// Takes a whole read, as [`step`](Self::step) does with [`Input::Received`], and leaves the bytes
    /// to the caller, whose buffer can be read into again.
    pub fn receive(&mut self, now: Timestamp, epoch: Epoch, bytes: &[u8]) -> Effects {
        self.take_step(now, |machine, fx| {
            if !machine.halted {
                machine.on_received(fx, epoch, bytes);
            }
        })
    }

    fn take_step(&mut self, now: Timestamp, act: impl FnOnce(&mut Self, &mut Effects)) -> Effects {
        self.now = self.now.max(now);
        self.steps += 1;
        let mut fx = Effects::default();
        act(self, &mut fx);
        if !self.halted {
            self.keep_runs(&mut fx);
            self.look_after(&mut fx);
            self.finish(&mut fx);
            #[cfg(any(test, feature = "checks"))]
            self.check_invariants();
        }
        fx
    }

    /// Whether the machine has this deliberate bug. Without the feature it has none.
    const fn has_bug(&self, bug: Bug) -> bool {
        #[cfg(feature = "bugs")]
        return matches!(self.bug, Some(has) if has as u8 == bug as u8);
        #[cfg(not(feature = "bugs"))]
        {
            let _ = bug;
            false
        }
    }

    #[cfg(feature = "bugs")]
    pub(crate) fn set_bug(&mut self, bug: Option<Bug>) {
        self.bug = bug;
    }

    /// The state that a crash leaves.
    #[must_use]
    pub const fn durable(&self) -> &Durable {
        &self.durable
    }

    /// The durable state in one record, and the last batch that it covers: what stands in the
    /// journal up to there can be left out of it.
    #[must_use]
    pub fn checkpoint(&self) -> (JournalSeq, Record) {
        (self.seq, self.durable.checkpoint())
    }

    /// What changed nothing, counted.
    #[must_use]
    pub const fn counters(&self) -> Counters {
        self.counters
    }

    /// The configuration.
    #[must_use]
    pub const fn config(&self) -> &Config {
        &self.config
    }

    /// How many bytes have been looked at in search of line ends.
    #[must_use]
    pub const fn bytes_examined(&self) -> u64 {
        self.lines.examined()
    }

    fn conversation(&mut self, id: ConversationId) -> Option<&mut Conversation> {
        find(&mut self.conversations, id)
    }

    fn turn(&mut self, no: TurnNo) -> Option<&mut Turn> {
        let owner = *self.turn_owner.get(&no)?;
        self.conversation(owner)?.turn(no)
    }

    fn conversation_ids(&self) -> Vec<ConversationId> {
        self.conversations.iter().flatten().map(|c| c.id).collect()
    }

    fn owner_of(&self, thread: &str) -> Option<ConversationId> {
        self.threads.owner(thread)
    }

    fn on_tick(&mut self, fx: &mut Effects) {
        while let Some(timer) = self.timers.pop(self.now) {
            match timer {
                Timer::Handshake(epoch) => self.handshake_timed_out(fx, epoch),
                Timer::Request(id) => self.request_timed_out(fx, id),
                Timer::Retry(id) => self.retry(fx, id),
                Timer::TurnDeadline(turn) => self.turn_timed_out(fx, turn),
                Timer::EndGrace(turn) => self.end_grace_over(fx, turn),
                Timer::Quiet(turn) => self.turn_quiet(fx, turn),
                Timer::ToolLimit(call) => self.tool_timed_out(fx, call),
                Timer::AutoResolution(question) => self.auto_resolve(fx, question),
                Timer::TokenRefresh(refresh) => self.refresh_timed_out(fx, refresh),
                Timer::Drain(epoch) => self.drained(fx, epoch),
                Timer::Reconnect(epoch) => self.reconnect(fx, epoch),
                Timer::LookAgain(conversation) => self.look_again(fx, conversation),
                Timer::Compaction(conversation) => self.compaction_silent(fx, conversation),
                Timer::Replay(conversation) => self.not_replayed(fx, conversation),
                Timer::CleanUp => self.clean_up_again(fx),
            }
        }
    }

    /// Holds what must be true after every step.
    ///
    /// # Panics
    ///
    /// It is not.
    pub fn check_invariants(&self) {
        assert!(
            self.batch.is_empty(),
            "every record of a step is in its batch"
        );
        assert!(self.runs.is_empty(), "every text of a step is kept");
        assert!(
            self.outbox.through() <= self.seq,
            "nothing is durable before it is appended"
        );
        for conversation in self.conversations.iter().flatten() {
            let ours = conversation
                .turns
                .iter()
                .filter(|t| t.message.is_some() && !matches!(t.state, turn::TurnState::Waiting));
            assert!(ours.count() <= 1, "one turn of ours at a time");
            for turn in &conversation.turns {
                assert_eq!(
                    self.turn_owner.get(&turn.no),
                    Some(&conversation.id),
                    "a turn is found by its number"
                );
                if let Some(native) = turn.native() {
                    assert!(
                        !conversation.has_ended(native),
                        "an ended turn does not run"
                    );
                }
            }
            if let Some(thread) = conversation.link.thread() {
                assert_eq!(
                    self.threads.owner(thread),
                    Some(conversation.id),
                    "a thread is found by its id"
                );
            }
        }
        if let Connection::Ended(_) = self.connection {
            assert!(
                self.requests.is_empty(),
                "no request outlives the connection"
            );
            assert!(
                self.inbound.is_empty(),
                "no server request outlives the connection"
            );
            assert!(
                self.turn_owner.is_empty(),
                "no turn outlives the connection"
            );
        }
    }
}
