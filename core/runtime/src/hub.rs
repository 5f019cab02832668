//! From the machine's events to those who wait for them. Nothing here waits.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, VecDeque},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    task::Waker,
};

use event_listener::Event as Notify;
use futures_channel::oneshot;
use tracing::{Span, debug, info_span, trace, warn};
use turnkeep_core::{
    Command, CommandError, CommandId, ConversationId, ConversationKey, Event, RefreshId, Reply,
    ToolCallId, TurnNo, TurnUpdate,
    event::{ConnectionEvent, ConversationUpdate, EndReason, Origin, Status, ToolCall},
};

use crate::{
    error::ClaimError,
    life::Life,
    listeners::Listeners,
    queue::{Queue, Reader},
};

/// How many turns of a conversation are kept whose end nobody has taken.
const ENDS: usize = 256;

/// How many numbers of turns that are over are remembered.
const OVER: usize = 4_096;

/// How many bytes may be read, while more are there at once, before the readers of what they brought are
/// woken: waking one costs more than a frame for it does.
const UNTOLD: usize = 512 << 10;

/// How many events may come before that.
const FRESH: usize = 1_024;

/// What the handles of a conversation and the hub share.
#[derive(Debug)]
pub(crate) struct Talk {
    pub(crate) id: ConversationId,
    pub(crate) key: ConversationKey,
    pub(crate) listeners: Listeners,
    /// A turn began by itself, or none will any more.
    pub(crate) began: Notify,
    known: Mutex<Known>,
    /// Too much waits for its readers, and they were told so.
    is_full: AtomicBool,
}

/// What is known of a conversation without asking.
#[derive(Debug, Default)]
struct Known {
    status: Status,
    /// The calls of the preflight without a result, and whether the first round waits for them.
    preflight: Vec<(ToolCall, bool)>,
}

impl Talk {
    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn status(&self) -> Status {
        self.known().status.clone()
    }

    pub(crate) fn preflight_calls(&self) -> Vec<(ToolCall, bool)> {
        self.known().preflight.clone()
    }

    /// Whether it has just come to hold more than that many bytes.
    fn overflows(&self, limit: usize) -> bool {
        let held = self.listeners.weight.load(Ordering::Relaxed);
        let was_full = self.is_full.load(Ordering::Relaxed);
        // Told once, until the readers have caught up by half.
        let is_full = held > limit / if was_full { 2 } else { 1 };
        if is_full != was_full {
            self.is_full.store(is_full, Ordering::Relaxed);
        }
        let news = is_full && !was_full;
        if news {
            warn!(key = %self.key, held, "too much waits unread");
        }
        news
    }

    /// Nothing more comes.
    fn close(&self) {
        self.listeners.close();
        self.began.notify(usize::MAX);
    }
}

/// The reader's end of a turn, on its way to a handle. Dropped on the way it is left for the next.
#[derive(Debug)]
pub(crate) struct Claim {
    pub(crate) turn: TurnNo,
    pub(crate) talk: Arc<Talk>,
    queue: Option<Arc<Queue<Event>>>,
}

impl Claim {
    pub(crate) fn take(mut self) -> (TurnNo, Arc<Talk>, Arc<Queue<Event>>) {
        let queue = self.queue.take();
        let queue = queue.expect("only this function takes the queue, and it ends the claim");
        (self.turn, Arc::clone(&self.talk), queue)
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        if let Some(queue) = &self.queue {
            queue.park();
            // Who waits for the next turn may have this one.
            self.talk.began.notify(usize::MAX);
        }
    }
}

/// The answer of a command, with what its handle needs.
#[derive(Debug)]
pub(crate) struct Answered {
    pub(crate) answer: Result<Reply, CommandError>,
    pub(crate) talk: Option<Arc<Talk>>,
    pub(crate) claim: Option<Result<Claim, ClaimError>>,
}

#[derive(Debug)]
struct Pending {
    reply: oneshot::Sender<Answered>,
    key: Option<ConversationKey>,
    conversation: Option<ConversationId>,
    call: Option<ToolCallId>,
}

#[derive(Debug)]
struct Conversation {
    talk: Arc<Talk>,
    /// Turns that have ended and are kept for whoever takes them up.
    ended: VecDeque<TurnNo>,
    span: Span,
}

#[derive(Debug)]
struct Turn {
    conversation: ConversationId,
    talk: Arc<Talk>,
    queue: Arc<Queue<Event>>,
    /// What its reader is to find at once or not at all: all but text, and what came behind it.
    staged: Vec<Event>,
    has_ended: bool,
    /// Whether an earlier life began it.
    is_recovered: bool,
    /// Whether no command of this life began it.
    began_by_itself: bool,
    span: Span,
}

impl Turn {
    fn is_parked(&self) -> bool {
        self.queue.reader() == Reader::Parked
    }
}

/// Everybody who waits for events.
#[derive(Debug)]
pub(crate) struct Hub {
    life: Arc<Life>,
    bytes_waiting: usize,
    starting: Option<oneshot::Sender<Result<(), EndReason>>>,
    pending: BTreeMap<CommandId, Pending>,
    conversations: BTreeMap<ConversationId, Conversation>,
    /// Looked into once an event: a hash finds one of thousands at once.
    turns: HashMap<TurnNo, Turn>,
    over: BTreeSet<TurnNo>,
    /// Up to here a turn that is not known is over: those of earlier lives that are not were told
    /// first of all.
    floor: TurnNo,
    /// Turns for which something was staged.
    dirty: Vec<TurnNo>,
    /// Turns that have ended, whose queues are to be closed.
    ending: Vec<TurnNo>,
    /// How many events came since the last flush.
    fresh: usize,
    /// Whom to wake.
    wakers: Vec<Waker>,
    /// Counts the flushes.
    window: u64,
    /// Those past their cap of which the machine was not told yet.
    full: Vec<ConversationId>,
    /// Requests for tokens that nobody serves.
    unserved: Vec<RefreshId>,
}

impl Hub {
    pub(crate) fn new(
        life: Arc<Life>,
        bytes_waiting: usize,
        starting: oneshot::Sender<Result<(), EndReason>>,
    ) -> Self {
        Self {
            life,
            bytes_waiting,
            starting: Some(starting),
            pending: BTreeMap::new(),
            conversations: BTreeMap::new(),
            turns: HashMap::new(),
            over: BTreeSet::new(),
            floor: TurnNo(0),
            dirty: Vec::new(),
            ending: Vec::new(),
            fresh: 0,
            unserved: Vec::new(),
            window: 0,
            wakers: Vec::new(),
            full: Vec::new(),
        }
    }

    /// Makes known what earlier lives left open, so that what is told of it before the application
    /// asks for it is kept.
    pub(crate) fn recover(
        &mut self,
        conversations: impl IntoIterator<Item = (ConversationId, ConversationKey)>,
        last_turn: TurnNo,
    ) {
        for (id, key) in conversations {
            self.open(id, key);
        }
        self.floor = last_turn;
    }

    /// Remembers who waits for the answer of a command.
    pub(crate) fn expect(
        &mut self,
        id: CommandId,
        command: &Command,
        reply: oneshot::Sender<Answered>,
    ) {
        let of_turn = |turn: &TurnNo| self.turns.get(turn).map(|t| t.conversation);
        let (key, conversation) = match command {
            Command::Open { key, .. } | Command::Fork { key, .. } => (Some(key.clone()), None),
            Command::Send { conversation, .. }
            | Command::Begin { conversation }
            | Command::Restart { conversation, .. } => (None, Some(*conversation)),
            Command::Steer { turn, .. } => (None, of_turn(turn)),
            _ => (None, None),
        };
        let call = match command {
            Command::Respond { call, .. } => Some(*call),
            _ => None,
        };
        let pending = Pending {
            reply,
            key,
            conversation,
            call,
        };
        self.pending.insert(id, pending);
    }

    /// Lets the start come to its end if the server is ready.
    pub(crate) fn start(&mut self) {
        if self.starting.is_none() || self.life.server().is_none() {
            return;
        }
        if let Some(starting) = self.starting.take() {
            let _ = starting.send(Ok(()));
        }
    }

    /// Takes an event in. Its readers are woken by the next [`flush`](Self::flush).
    pub(crate) fn emit(&mut self, event: Event) {
        self.fresh += 1;
        match event {
            Event::Delta(ref delta) => {
                let (conversation, turn) = (delta.conversation, delta.turn);
                self.stage(conversation, turn, event);
            }
            Event::Turn(ref about) => {
                let (conversation, turn) = (about.conversation, about.turn);
                let is_end = matches!(about.update, TurnUpdate::Ended(_));
                self.log(turn, &about.update);
                self.stage(conversation, turn, event);
                if is_end {
                    self.end(conversation, turn);
                }
            }
            Event::Conversation(ref about) => {
                let conversation = about.conversation;
                let closed = matches!(about.update, ConversationUpdate::Closed);
                match about.update {
                    // Its number is below the floor, and it is not over all the same.
                    ConversationUpdate::TurnBegan {
                        turn,
                        origin: Origin::Recovered,
                    } => {
                        self.make(conversation, turn, Reader::Parked);
                        if let Some(entry) = self.turns.get_mut(&turn) {
                            entry.is_recovered = true;
                        }
                        self.began(conversation, turn);
                    }
                    ConversationUpdate::TurnBegan { turn, .. } => {
                        self.meet(conversation, turn, Reader::Parked);
                        self.began(conversation, turn);
                    }
                    ref update => self.know(conversation, update),
                }
                self.stage_conversation(conversation, event);
                if closed {
                    self.flush();
                    if let Some(gone) = self.conversations.remove(&conversation) {
                        gone.talk.close();
                    }
                    self.turns
                        .retain(|_, turn| turn.conversation != conversation);
                }
            }
            Event::Connection(about) => self.tell_connection(about),
            Event::Answer { id, answer } => self.answer(id, *answer),
            Event::Halted => self.halt(),
        }
    }

    /// How many bytes may be read before the next flush.
    pub(crate) fn patience(&self) -> usize {
        let waits = self.full.is_empty() && self.fresh < FRESH;
        // A reader that keeps up must not come near the cap.
        if waits {
            UNTOLD.min(self.bytes_waiting / 8)
        } else {
            0
        }
    }

    fn began(&mut self, conversation: ConversationId, turn: TurnNo) {
        if let Some(entry) = self.turns.get_mut(&turn) {
            entry.began_by_itself = true;
        }
        if let Some(of) = self.conversations.get(&conversation) {
            of.talk.began.notify(usize::MAX);
        }
    }

    /// Keeps what can be asked for.
    fn know(&self, conversation: ConversationId, update: &ConversationUpdate) {
        let Some(of) = self.conversations.get(&conversation) else {
            return;
        };
        let mut known = of.talk.known();
        match update {
            ConversationUpdate::Status(status) => known.status = status.clone(),
            ConversationUpdate::PreflightCall { call, blocking } => {
                known.preflight.retain(|(other, _)| other.id != call.id);
                known.preflight.push((call.clone(), *blocking));
            }
            ConversationUpdate::CallClosed { call, .. } => {
                known.preflight.retain(|(other, _)| other.id != *call);
            }
            _ => {}
        }
    }

    /// Forgets a call of the preflight that has its result.
    fn responded(&self, call: ToolCallId) {
        for of in self.conversations.values() {
            of.talk
                .known()
                .preflight
                .retain(|(other, _)| other.id != call);
        }
    }

    fn stage(&mut self, conversation: ConversationId, turn: TurnNo, event: Event) {
        // Looked up once an event: with a thousand turns each look costs.
        let Some(entry) = self.turns.get_mut(&turn) else {
            self.meet(conversation, turn, Reader::Parked);
            if self.turns.contains_key(&turn) {
                self.stage(conversation, turn, event);
            } else if self.has_listeners(conversation) {
                self.stage_conversation(conversation, event);
            }
            return;
        };
        let listens = !entry.talk.listeners.is_empty();
        let copy = listens.then(|| event.clone());
        // What is learnt of a turn after its end is told to those who listen to its conversation.
        if !entry.has_ended {
            if entry.staged.is_empty() && matches!(event, Event::Delta(_)) {
                self.wakers.extend(entry.queue.push(event, self.window));
            } else {
                if entry.staged.is_empty() {
                    self.dirty.push(turn);
                }
                entry.staged.push(event);
            }
            if entry.talk.overflows(self.bytes_waiting) {
                self.full.push(conversation);
            }
        }
        if let Some(copy) = copy {
            self.stage_conversation(conversation, copy);
        }
    }

    fn has_listeners(&self, id: ConversationId) -> bool {
        let conversation = self.conversations.get(&id);
        conversation.is_some_and(|c| !c.talk.listeners.is_empty())
    }

    fn stage_conversation(&mut self, id: ConversationId, event: Event) {
        if let Some(conversation) = self.conversations.get_mut(&id) {
            let listeners = &conversation.talk.listeners;
            listeners.push(event, self.window, &mut self.wakers);
            if conversation.talk.overflows(self.bytes_waiting) {
                self.full.push(id);
            }
        }
    }

    /// Makes a turn known, if it is not.
    fn meet(&mut self, conversation: ConversationId, turn: TurnNo, reader: Reader) {
        if self.turns.contains_key(&turn) || self.is_over(turn) {
            return;
        }
        self.make(conversation, turn, reader);
    }

    fn make(&mut self, conversation: ConversationId, turn: TurnNo, reader: Reader) {
        let Some(of) = self.conversations.get_mut(&conversation) else {
            return;
        };
        // What ended the turn before must end this one too, if it still waits.
        of.talk.is_full.store(false, Ordering::Relaxed);
        let weight = Arc::clone(&of.talk.listeners.weight);
        let entry = Turn {
            conversation,
            talk: Arc::clone(&of.talk),
            queue: Arc::new(Queue::new(reader, weight)),
            staged: Vec::new(),
            has_ended: false,
            is_recovered: false,
            began_by_itself: false,
            span: info_span!(parent: &of.span, "turn", number = turn.0),
        };
        self.turns.insert(turn, entry);
    }

    fn end(&mut self, conversation: ConversationId, turn: TurnNo) {
        if let Some(entry) = self.turns.get_mut(&turn) {
            entry.has_ended = true;
            self.ending.push(turn);
        }
        let Some(of) = self.conversations.get_mut(&conversation) else {
            return;
        };
        of.ended.push_back(turn);
        if of.ended.len() > ENDS {
            if let Some(oldest) = of.ended.pop_front() {
                self.forget(oldest);
            }
        }
    }

    /// The conversations that have come to hold too much.
    pub(crate) fn take_full(&mut self) -> impl Iterator<Item = ConversationId> + '_ {
        self.full.drain(..)
    }

    /// Wakes all for whom something came.
    pub(crate) fn flush(&mut self) {
        while let Some(turn) = self.dirty.pop() {
            if let Some(entry) = self.turns.get_mut(&turn) {
                let waker = entry.queue.push_all(&mut entry.staged, self.window);
                self.wakers.extend(waker);
                if entry.talk.overflows(self.bytes_waiting) {
                    self.full.push(entry.conversation);
                }
            }
        }
        self.window += 1;
        self.fresh = 0;
        while let Some(turn) = self.ending.pop() {
            let Some(entry) = self.turns.get(&turn) else {
                continue;
            };
            entry.queue.close();
            if entry.queue.reader() == Reader::Gone {
                self.forget(turn);
            }
        }
        // All at once: another thread that takes them over then finds more than one at a time.
        self.wakers.drain(..).for_each(Waker::wake);
    }

    fn answer(&mut self, id: CommandId, answer: Result<Reply, CommandError>) {
        let Some(pending) = self.pending.remove(&id) else {
            return;
        };
        let (mut talk, mut claim) = (None, None);
        match &answer {
            Ok(Reply::Opened { conversation }) => {
                talk = pending.key.map(|key| self.open(*conversation, key));
            }
            Ok(Reply::Accepted { turn, .. } | Reply::Begun { turn: Some(turn) }) => {
                if let Some(conversation) = pending.conversation {
                    self.meet(conversation, *turn, Reader::Parked);
                    claim = Some(self.claim(conversation, *turn));
                }
            }
            Ok(_) => {
                if let Some(call) = pending.call {
                    self.responded(call);
                }
            }
            Err(_) => {}
        }
        let answered = Answered {
            answer,
            talk,
            claim,
        };
        // Whoever has stopped waiting leaves the turn to the next: the claim is dropped here.
        let _ = pending.reply.send(answered);
    }

    fn open(&mut self, id: ConversationId, key: ConversationKey) -> Arc<Talk> {
        let bytes = self.bytes_waiting;
        let conversation = self.conversations.entry(id).or_insert_with(|| {
            let span = info_span!(parent: None, "conversation", %key);
            debug!(parent: &span, number = id.0, "open");
            Conversation {
                talk: Arc::new(Talk {
                    id,
                    key,
                    listeners: Listeners::new(usize::MAX, bytes),
                    began: Notify::new(),
                    known: Mutex::default(),
                    is_full: AtomicBool::new(false),
                }),
                ended: VecDeque::new(),
                span,
            }
        });
        Arc::clone(&conversation.talk)
    }

    /// Gives the reader's end of a turn away.
    pub(crate) fn claim(
        &mut self,
        conversation: ConversationId,
        turn: TurnNo,
    ) -> Result<Claim, ClaimError> {
        if self.is_over(turn) {
            return Err(ClaimError::Over { turn });
        }
        let entry = self.turns.get(&turn);
        let entry = entry.filter(|t| t.conversation == conversation);
        let of = self.conversations.get(&conversation);
        let Some((entry, of)) = entry.zip(of) else {
            return Err(ClaimError::Unknown { turn });
        };
        if !entry.queue.hold() {
            return Err(match entry.queue.reader() {
                Reader::Gone => ClaimError::Over { turn },
                Reader::Held | Reader::Parked => ClaimError::Taken { turn },
            });
        }
        Ok(Claim {
            turn,
            talk: Arc::clone(&of.talk),
            queue: Some(Arc::clone(&entry.queue)),
        })
    }

    /// Whether a turn has ended and its end needs to be told to nobody.
    fn is_over(&self, turn: TurnNo) -> bool {
        self.over.contains(&turn) || (turn <= self.floor && !self.turns.contains_key(&turn))
    }

    /// The numbers of a conversation's turns that are like that.
    fn those(
        &self,
        of: ConversationId,
        are: impl Fn(&Turn) -> bool,
    ) -> impl Iterator<Item = TurnNo> {
        let turns = self.turns.iter();
        let those = turns.filter(move |(_, turn)| turn.conversation == of && are(turn));
        those.map(|(no, _)| *no)
    }

    /// Gives away the turns of earlier lives that nobody holds, oldest first.
    pub(crate) fn claim_recovered(&mut self, conversation: ConversationId) -> Vec<Claim> {
        let mut turns: Vec<TurnNo> = self.those(conversation, |t| t.is_recovered).collect();
        turns.sort_unstable();
        let claims = turns.into_iter().map(|no| self.claim(conversation, no));
        claims.filter_map(Result::ok).collect()
    }

    /// Gives away the newest turn of a conversation that nobody holds.
    pub(crate) fn claim_newest(&mut self, conversation: ConversationId) -> Option<Claim> {
        let turn = self.those(conversation, Turn::is_parked).max()?;
        self.claim(conversation, turn).ok()
    }

    /// Gives away the oldest turn that began by itself and that nobody holds; `None` where there is
    /// no such conversation any more.
    pub(crate) fn claim_began(&mut self, conversation: ConversationId) -> Option<Option<Claim>> {
        if !self.conversations.contains_key(&conversation) {
            return None;
        }
        let began = |turn: &Turn| turn.began_by_itself && turn.is_parked();
        let turn = self.those(conversation, began).min();
        Some(turn.and_then(|turn| self.claim(conversation, turn).ok()))
    }

    /// Forgets a turn once it has ended: its end has arrived, or nobody wants it.
    pub(crate) fn release(&mut self, turn: TurnNo) {
        if self.turns.get(&turn).is_some_and(|t| t.has_ended) {
            self.forget(turn);
        }
    }

    fn forget(&mut self, turn: TurnNo) {
        let Some(mut entry) = self.turns.remove(&turn) else {
            return;
        };
        let waker = entry.queue.push_all(&mut entry.staged, self.window);
        self.wakers.extend(waker);
        if entry.has_ended {
            entry.queue.close();
        }
        if let Some(of) = self.conversations.get_mut(&entry.conversation) {
            of.ended.retain(|other| *other != turn);
        }
        self.over.insert(turn);
        if self.over.len() > OVER {
            let oldest = self.over.pop_first();
            self.floor = self.floor.max(oldest.unwrap_or_default());
        }
    }

    fn log(&self, turn: TurnNo, update: &TurnUpdate) {
        let Some(entry) = self.turns.get(&turn) else {
            return;
        };
        let span = &entry.span;
        match update {
            TurnUpdate::Started { native, .. } => debug!(parent: span, %native, "started"),
            TurnUpdate::Ended(end) => {
                debug!(parent: span, outcome = end.outcome.name(), source = ?end.source, "ended");
            }
            TurnUpdate::Corrected(end) => {
                warn!(parent: span, outcome = end.outcome.name(), "corrected");
            }
            TurnUpdate::ToolCall(call) => debug!(parent: span, call = %call.id, "tool call"),
            TurnUpdate::Question(question) => {
                debug!(parent: span, question = question.id.0, "question");
            }
            _ => trace!(parent: span, ?update, "update"),
        }
    }

    fn tell_connection(&mut self, event: Box<ConnectionEvent>) {
        match &*event {
            ConnectionEvent::TokenRefresh(refresh) => {
                debug!(refresh = refresh.id.0, "the server wants new tokens");
                let unserved = self.life.refreshes.push(refresh.clone());
                self.unserved.extend(unserved);
            }
            ConnectionEvent::TokenRefreshClosed { refresh, why } => {
                warn!(refresh = refresh.0, ?why, "no tokens were given");
                self.life.refreshes.forget(*refresh);
            }
            ConnectionEvent::Ready { epoch, server } => {
                debug!(epoch = epoch.0, version = %server.version, "ready");
                self.life.set_server(server.clone());
            }
            ConnectionEvent::Recovered(found) => {
                debug!(?found, "recovered");
                self.life.set_recovered(*found);
            }
            ConnectionEvent::Lost { reason, pause } => {
                debug!(%reason, ?pause, "the connection is lost and will be opened again");
            }
            ConnectionEvent::Ended(reason) => {
                debug!(%reason, "the connection has ended");
                // Nothing begins by itself any more.
                self.life.set_cut_off();
                for conversation in self.conversations.values() {
                    conversation.talk.began.notify(usize::MAX);
                }
                if let Some(starting) = self.starting.take() {
                    let _ = starting.send(Err(reason.clone()));
                }
            }
            ConnectionEvent::Noise { length, why, .. } => debug!(length, ?why, "noise"),
            ConnectionEvent::Protocol(error) => warn!(%error, "the server broke the protocol"),
            ConnectionEvent::Unfit => warn!("the connection takes nothing new"),
            _ => {}
        }
        if !self.life.connection.is_empty() {
            let event = Event::Connection(event);
            self.life
                .connection
                .push(event, self.window, &mut self.wakers);
        }
    }

    /// Requests for tokens that came while nobody serves them.
    pub(crate) fn take_unserved(&mut self) -> Vec<RefreshId> {
        std::mem::take(&mut self.unserved)
    }

    fn halt(&mut self) {
        self.life.set_halted();
        self.close();
    }

    /// Ends every wait.
    pub(crate) fn close(&mut self) {
        self.flush();
        self.starting = None;
        self.pending.clear();
        for turn in self.turns.values() {
            turn.queue.close();
        }
        for conversation in self.conversations.values() {
            conversation.talk.close();
        }
        self.life.connection.close();
        self.life.refreshes.end();
    }
}
