//! A connection that ends and is opened again: what runs on it is suspended, nothing is ended.

use alloc::{boxed::Box, vec::Vec};
use core::time::Duration;

use super::{
    Activity, Link, Machine,
    connection::Connection,
    reconcile::Doubt,
    requests::{Kind, Pending, Settled},
    turn::{SteerState, Stop, Turn, TurnState},
};
use crate::{
    bug::Bug,
    config::{Reconnect, half},
    effect::{Durability, Effect, Effects, OpenReason},
    event::{CallClosedWhy, ConnectionEvent, EndReason, RefreshClosedWhy, TurnUpdate},
    id::{ConversationId, Epoch, TurnNo},
    input::CloseReason,
    prompt::{Cancellation, PromptChange, PromptState},
    record::RequestEnd,
    time::Timestamp,
    timers::Timer,
};

/// How the connection was reached so far.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Tries {
    /// Openings in a row since one was ready for long.
    pub(super) count: u32,
    /// When the present connection was ready.
    pub(super) ready: Option<Timestamp>,
    /// Whether any connection of this life was ready.
    pub(super) ever: bool,
}

impl Machine {
    /// Whether a connection that ends is opened again, so that what is not known may yet be learnt.
    pub(super) fn comes_back(&self) -> bool {
        self.config.reconnect == Reconnect::On && self.tries.ever && !self.is_over()
    }

    /// Whether a connection is there, will be, or may be tried again.
    pub(super) fn will_serve(&self) -> bool {
        let begins = !self.tries.ever && self.is_alive();
        self.connection.is_ready() || self.comes_back() || begins
    }

    /// The pause before the next opening, if there is one.
    pub(super) fn next_pause(&mut self, reason: &EndReason) -> Option<Duration> {
        let limits = &self.config.limits;
        let (first, longest) = (limits.reconnect_first, limits.reconnect_longest);
        let tries = limits.reconnect_tries;
        if self.config.reconnect == Reconnect::Off || !self.tries.ever {
            // What a start failed by is told to the application at once.
            return None;
        }
        let is_final = match reason {
            EndReason::Closed { reason, .. } => {
                use CloseReason::{ByUs, Denied, NotFound};
                matches!(reason, NotFound(_) | Denied { .. } | ByUs)
            }
            EndReason::HandshakeRefused { .. }
            | EndReason::UnsupportedVersion { .. }
            | EndReason::ClosedByUs => true,
            EndReason::HandshakeTimeout { .. } | EndReason::Protocol { .. } | EndReason::Unfit => {
                false
            }
        };
        if is_final {
            return None;
        }
        let ready = self.tries.ready.take();
        if ready.is_some_and(|ready| self.now.since(ready) >= longest) {
            self.tries.count = 0;
        }
        if self.tries.count >= tries {
            return None;
        }
        self.tries.count += 1;
        let doubled = first.saturating_mul(2u32.saturating_pow(self.tries.count - 1));
        let pause = doubled.min(longest);
        Some(pause.saturating_add(self.jitter(pause)))
    }

    /// A part of a pause, at most half of it.
    pub(super) fn jitter(&mut self, pause: Duration) -> Duration {
        let most = u64::try_from(half(pause).as_micros()).unwrap_or(u64::MAX);
        Duration::from_micros(self.rng.below(most.saturating_add(1)))
    }

    /// Keeps everything that the next connection can go on with.
    pub(super) fn suspend(&mut self, fx: &mut Effects, reason: EndReason, pause: Duration) {
        // 2^32 connections are out of reach: each takes a pause.
        let epoch = Epoch(self.last_epoch.0.saturating_add(1));
        self.last_epoch = epoch;
        self.connection = Connection::Waiting { epoch };
        let due = self.now.after(pause);
        self.timers.set(Timer::Reconnect(epoch), due);
        self.forget_models();
        self.drop_sweeps();
        self.suspend_requests(fx, &reason);
        let turns: Vec<(TurnNo, ConversationId)> = self
            .turn_owner
            .iter()
            .map(|(turn, owner)| (*turn, *owner))
            .collect();
        for (no, conversation) in turns {
            self.suspend_turn(fx, conversation, no, &reason);
        }
        self.end_refreshes(fx, RefreshClosedWhy::ConnectionEnded);
        self.close_child_calls(fx, |_| true, CallClosedWhy::ConnectionEnded, false);
        if !self.has_bug(Bug::KeepsRequestIds) {
            self.inbound.clear();
        }
        self.strangers.clear();
        for question in self.questions.values_mut() {
            question.forget_route();
        }
        for conversation in self.conversation_ids() {
            self.let_go(fx, conversation);
        }
        self.tell_connection(fx, ConnectionEvent::Lost { reason, pause });
    }

    /// What a conversation had of its thread is gone with the connection.
    fn let_go(&mut self, fx: &mut Effects, conversation: ConversationId) {
        self.timers.clear(Timer::LookAgain(conversation));
        self.timers.clear(Timer::Replay(conversation));
        self.suspend_errands(conversation);
        let Some(c) = self.conversation(conversation) else {
            return;
        };
        c.link = match core::mem::replace(&mut c.link, Link::None) {
            Link::Loaded(thread) | Link::Detached(thread) | Link::Resuming(thread) => {
                Link::Detached(thread)
            }
            Link::None | Link::Starting => Link::None,
        };
        c.early.clear();
        (c.early_bytes, c.early_overflow) = (0, false);
        c.look = None;
        c.reverting = false;
        c.fails = 0;
        (c.activity, c.absent_since) = (Activity::Untold, None);
        c.corrects = !c.unsure.is_empty() && c.link.thread().is_some();
        if let Some(commands) = c.closing.take() {
            // Without a connection there is nothing to let go.
            self.closed(fx, conversation, commands);
        }
    }

    fn suspend_requests(&mut self, fx: &mut Effects, reason: &EndReason) {
        let text = alloc::format!("{reason}");
        let (steers, rest): (Vec<Pending>, Vec<Pending>) = self
            .requests
            .take_all()
            .into_iter()
            .partition(|pending| matches!(pending.kind, Kind::TurnSteer { .. }));
        for pending in steers.into_iter().chain(rest) {
            self.timers.clear(Timer::Request(pending.id));
            self.timers.clear(Timer::Retry(pending.id));
            self.outbox.withdraw(pending.id);
            let left = pending.left;
            match pending.kind.clone() {
                Kind::TurnSteer {
                    conversation,
                    turn,
                    message,
                } => {
                    let doubt = Doubt {
                        message,
                        turn,
                        // The connection that has ended: the next one has its number already.
                        sent_on: Epoch(self.last_epoch.0.saturating_sub(1)),
                        commands: Vec::new(),
                    };
                    self.suspend_steer(fx, conversation, doubt, left);
                }
                Kind::TurnStart { conversation, turn } => {
                    self.start_in_doubt(conversation, turn, left);
                }
                Kind::TurnInterrupt { turn, .. } => self.end_bare_interrupt(turn, left),
                Kind::Revert { turn, .. } => self.revert_ended(turn, RequestEnd::Unknown),
                Kind::Raw { .. } => {
                    let how = if left {
                        Settled::Unknown(text.clone())
                    } else {
                        Settled::NotSent
                    };
                    self.settled(fx, pending, how);
                }
                Kind::Compact { conversation } => self.suspend_compaction(conversation, left),
                Kind::ThreadFork { conversation } => self.suspend_fork(conversation, left),
                // They are made anew, as far as they are still needed.
                Kind::Initialize
                | Kind::ThreadStart { .. }
                | Kind::ThreadResume { .. }
                | Kind::Unsubscribe { .. }
                | Kind::Name { .. }
                | Kind::LastTurn { .. }
                | Kind::Seek { .. }
                | Kind::Reconcile { .. }
                | Kind::WhoseThread { .. }
                | Kind::LookUp { .. }
                | Kind::Models
                | Kind::CleanUp(_) => {}
            }
        }
    }

    fn suspend_steer(
        &mut self,
        fx: &mut Effects,
        conversation: ConversationId,
        mut doubt: Doubt,
        left: bool,
    ) {
        let (no, message) = (doubt.turn, doubt.message.clone());
        let steer = self
            .turn(no)
            .and_then(|turn| turn.steers.iter_mut().find(|s| s.message == message));
        let Some(steer) = steer else {
            let unanswered = self.conversation(conversation).and_then(|c| {
                let at = c.unanswered.iter().position(|d| d.message == message)?;
                Some(c.unanswered.remove(at))
            });
            doubt.commands = unanswered.map(|d| d.commands).unwrap_or_default();
            // Its turn was over before it was answered.
            let open = self
                .durable
                .prompt(&message)
                .is_some_and(|p| !matches!(p.state, PromptState::Terminal { .. }));
            if open && !left {
                self.carry(fx, conversation, doubt);
            } else if let Some(c) = self.conversation(conversation).filter(|_| open) {
                c.doubts.push(doubt);
            }
            return;
        };
        if steer.state != SteerState::Sent {
            return;
        }
        if left {
            steer.state = SteerState::Unknown;
            self.give_flush_up(conversation, &message);
        } else {
            steer.state = SteerState::Waiting;
            self.prompt(&message, PromptChange::Unrecorded, Durability::Buffered);
        }
        if left {
            self.release_calls(fx, conversation, no, &message);
        }
        let Some(turn) = self.turn(no) else { return };
        if turn.steer_unanswered() {
            return;
        }
        // The server had ended the turn, and only this answer was waited for.
        if turn.pending_end.is_some() {
            self.give_flush_up(conversation, &message);
        }
        let Some(turn) = self.turn(no) else { return };
        if let Some(end) = turn.pending_end.take() {
            self.finish_native(fx, conversation, no, end.outcome, end.source);
        }
    }

    /// The start of a turn has no answer: if its frame left, only the history can tell.
    pub(super) fn start_in_doubt(&mut self, conversation: ConversationId, no: TurnNo, left: bool) {
        let Some(turn) = self.conversation(conversation).and_then(|c| c.turn(no)) else {
            return;
        };
        if !matches!(turn.state, TurnState::Sent { .. }) {
            return;
        }
        if left {
            turn.state = TurnState::Suspended { native: None };
            return;
        }
        turn.state = TurnState::Waiting;
        if let Some(message) = turn.message.clone() {
            self.prompt(&message, PromptChange::Unrecorded, Durability::Buffered);
        }
    }

    fn suspend_turn(
        &mut self,
        fx: &mut Effects,
        conversation: ConversationId,
        no: TurnNo,
        reason: &EndReason,
    ) {
        self.timers.clear(Timer::Quiet(no));
        self.timers.clear(Timer::EndGrace(no));
        let Some(turn) = self.turn(no) else { return };
        let was = turn.state.clone();
        match &was {
            TurnState::Waiting => return,
            TurnState::Sent { .. } | TurnState::Suspended { .. } => {}
            TurnState::Running { native, .. } => {
                turn.state = TurnState::Suspended {
                    native: Some(native.clone()),
                };
            }
        }
        turn.gap = true;
        turn.held_error = None;
        turn.open_items.clear();
        turn.answered.clear();
        for call in turn.calls.values_mut() {
            call.request = None;
        }
        // They were not staged: a server that still has them tells them again.
        for call in core::mem::take(&mut turn.unstaged) {
            turn.known_calls
                .remove(&crate::hash::hash(call.native.as_bytes()));
        }
        if let Stop::Sent { commands, .. } | Stop::Granted { commands } = &mut turn.stop {
            let commands = core::mem::take(commands);
            turn.stop = Stop::Wanted { commands };
        }
        if let Some(message) = turn.message.clone() {
            let out = self
                .durable
                .prompt(&message)
                .is_some_and(|p| p.cancellation == Cancellation::Dispatching);
            if out {
                let change = PromptChange::CancelAmbiguous;
                self.prompt(&message, change, Durability::Buffered);
            }
        }
        let told = matches!(was, TurnState::Suspended { .. })
            && self.turn(no).is_some_and(|turn| turn.suspended_told);
        if !told {
            if let Some(turn) = self.turn(no) {
                turn.suspended_told = true;
            }
            let reason = Box::new(reason.clone());
            self.tell(fx, conversation, no, TurnUpdate::Suspended { reason });
        }
    }

    /// The turn of a thread that is suspended under the server's name for it.
    pub(super) fn suspended_under(
        &mut self,
        thread: &str,
        native: &str,
    ) -> Option<(ConversationId, TurnNo)> {
        let conversation = self.owner_of(thread)?;
        let mut turns = self.conversation(conversation)?.turns.iter();
        let turn = turns.find(|turn| turn.suspended().is_some_and(|name| name.is(native)))?;
        Some((conversation, turn.no))
    }

    /// A frame names a turn that was suspended: the server still runs it.
    pub(super) fn wake(&mut self, fx: &mut Effects, conversation: ConversationId, native: &str) {
        let due = self.now.after(self.config.limits.quiet);
        let Some(c) = self.conversation(conversation) else {
            return;
        };
        let named = |turn: &&mut Turn| turn.suspended().is_some_and(|name| name.is(native));
        let Some(turn) = c.turns.iter_mut().find(named) else {
            return;
        };
        let Some(native) = turn.suspended().cloned() else {
            return;
        };
        turn.state = TurnState::Running {
            native,
            confirmed: false,
        };
        turn.calls_failed = false;
        let no = turn.no;
        self.timers.set(Timer::Quiet(no), due);
        self.counters.found_running += 1;
        self.tell_resumed(fx, conversation, no);
        self.await_replay(conversation);
        self.go_on(fx, conversation, no);
    }

    /// Tells that a turn is heard again, where it was told that it is not.
    pub(super) fn tell_resumed(
        &mut self,
        fx: &mut Effects,
        conversation: ConversationId,
        no: TurnNo,
    ) {
        let told = self
            .turn(no)
            .is_some_and(|turn| core::mem::take(&mut turn.suspended_told));
        if told {
            self.tell(fx, conversation, no, TurnUpdate::Resumed);
        }
    }

    /// The pause is over.
    pub(super) fn reconnect(&mut self, fx: &mut Effects, epoch: Epoch) {
        if !matches!(self.connection, Connection::Waiting { epoch: ours } if ours == epoch) {
            return;
        }
        self.connection = Connection::Opening { epoch };
        self.counters.reconnects += 1;
        let attempt = self.tries.count;
        let why = OpenReason::Reconnect { attempt };
        fx.list.push(Effect::Open(epoch, why));
        let due = self.now.after(self.config.limits.handshake);
        self.timers.set(Timer::Handshake(epoch), due);
    }
}
