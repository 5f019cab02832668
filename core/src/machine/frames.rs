//! What the server says, line by line: matched by thread and turn, never by "the current one".

use alloc::{borrow::ToOwned, string::String, vec::Vec};

use serde_json::value::RawValue;

use super::{
    Activity, Link, Machine,
    connection::Connection,
    turn::{Stop, Turn, TurnState},
};
use crate::{
    RawJson,
    bug::Bug,
    effect::Durability,
    effect::Effects,
    event::{
        ConnectionEvent, ConversationUpdate, NoiseWhy, Origin, ProtocolError, TurnUpdate,
        Unrecognized,
    },
    id::{ConversationId, ThreadId, TurnId, TurnNo},
    record::Record,
    timers::Timer,
    wire::{
        self, Line, item,
        notification::{
            DiffFrame, ItemFrame, Notification, Scope, StatusFrame, TurnFrame, UsageFrame,
        },
        text::unescape,
    },
};

/// What a frame's thread and turn lead to.
pub(super) enum Place {
    /// A turn that runs.
    Turn(ConversationId, TurnNo),
    /// A turn that no response has named yet: the frame is kept.
    Early(ConversationId),
    /// A turn that had ended.
    Late,
    /// A turn of the conversation that was never told to begin.
    Unknown(ConversationId),
    /// A thread of nobody.
    Foreign,
}

impl Machine {
    pub(super) fn on_line(&mut self, fx: &mut Effects, line: &[u8]) {
        self.read_line(fx, line);
        self.keep_runs(fx);
    }

    /// Reads a line. Text that it brings is still to be kept.
    pub(super) fn read_line(&mut self, fx: &mut Effects, line: &[u8]) {
        self.counters.frames += 1;
        let read = wire::read(line);
        if !matches!(read, Line::Noise(_)) {
            self.noise_run = 0;
        }
        if !matches!(read, Line::Delta(_)) {
            self.keep_runs(fx);
        }
        match read {
            Line::Delta(delta) => self.on_delta(fx, &delta, line),
            Line::Notification(notification) => self.on_notification(fx, notification, line),
            Line::Request { id, method, params } => {
                self.on_request(fx, id, &method, params, line);
            }
            Line::Response { id, result, error } => self.on_response(fx, id, result, error),
            Line::Noise(why) => self.noise(fx, line, why),
        }
    }

    pub(super) fn noise(&mut self, fx: &mut Effects, line: &[u8], why: NoiseWhy) {
        self.counters.noise_lines += 1;
        let copy = line.get(..self.config.limits.noise_copy).unwrap_or(line);
        let event = ConnectionEvent::Noise {
            line: String::from_utf8_lossy(copy).into_owned(),
            length: line.len(),
            why,
        };
        self.tell_connection(fx, event);
        self.noise_run += 1;
        if self.noise_run >= self.config.limits.noise_lines {
            let live = match self.connection {
                Connection::Initializing { epoch }
                | Connection::Ready { epoch }
                | Connection::Unfit { epoch } => Some(epoch),
                Connection::Opening { .. }
                | Connection::Closing { .. }
                | Connection::Waiting { .. }
                | Connection::Ended(_) => None,
            };
            if let Some(epoch) = live {
                self.broken(
                    fx,
                    epoch,
                    ProtocolError::TooMuchNoise {
                        count: self.noise_run,
                    },
                );
            }
        }
    }

    /// Where a frame belongs. One that names a turn proves that the turn runs.
    pub(super) fn place(&mut self, fx: &mut Effects, thread: &str, native: &str) -> Place {
        let place = self.place_of_end(fx, thread, native);
        if let Place::Turn(conversation, no) = place {
            self.runs(fx, conversation, no);
        }
        place
    }

    /// The same for a frame that ends the turn: nothing is sent for it any more.
    fn place_of_end(&mut self, fx: &mut Effects, thread: &str, native: &str) -> Place {
        let Some(conversation) = self.owner_of(thread) else {
            return Place::Foreign;
        };
        self.wake(fx, conversation, native);
        let now = self.now;
        let Some(c) = self.conversation(conversation) else {
            return Place::Foreign;
        };
        if let Some(turn) = c.running(native) {
            turn.heard = now;
            let no = turn.no;
            self.promote(no);
            return Place::Turn(conversation, no);
        }
        if c.has_ended(native) {
            return Place::Late;
        }
        if c.turns.iter().any(Turn::is_unnamed) {
            Place::Early(conversation)
        } else {
            Place::Unknown(conversation)
        }
    }

    /// Keeps a frame until its turn is named, unless there are too many, by number or, all
    /// together, by size.
    pub(super) fn keep_early(&mut self, conversation: ConversationId, line: &[u8]) {
        let limits = &self.config.limits;
        let (frames, bytes) = (limits.early_frames, limits.frame);
        let Some(c) = self.conversation(conversation) else {
            return;
        };
        let size = c.early_bytes.saturating_add(line.len());
        if c.early.len() >= frames || size > bytes {
            c.early_overflow = true;
            return;
        }
        c.early_bytes = size;
        c.early.push(line.to_vec());
    }

    fn on_notification(&mut self, fx: &mut Effects, notification: Notification<'_>, line: &[u8]) {
        match notification {
            Notification::TurnStarted(frame) => self.on_turn_started(fx, &frame, line),
            Notification::TurnCompleted(frame) => self.on_turn_completed(fx, &frame, line),
            Notification::ItemStarted(frame) => self.on_item(fx, &frame, false, line),
            Notification::ItemCompleted(frame) => self.on_item(fx, &frame, true, line),
            Notification::Usage(frame) => self.on_usage(fx, &frame, line),
            Notification::Diff(frame) => self.on_diff(fx, &frame, line),
            Notification::Plan { scope, raw } => {
                let place = self.place_of_scope(fx, &scope);
                match place {
                    Place::Turn(conversation, no) => {
                        let plan = TurnUpdate::Plan(RawJson::borrowed(raw));
                        self.tell(fx, conversation, no, plan);
                    }
                    other => self.elsewhere(fx, other, "turn/plan/updated", Some(raw), line),
                }
            }
            Notification::Status(frame) => self.on_status(fx, &frame, line),
            Notification::Error(frame) => self.on_error(fx, &frame, line),
            Notification::Warning { method, frame } => self.on_warning(fx, method, &frame, line),
            Notification::Resolved(frame) => self.on_resolved(fx, frame.request_id.get()),
            Notification::ThreadClosed(frame) => {
                let thread = frame.thread_id.0.into_owned();
                self.on_thread_closed(fx, &thread, line);
            }
            Notification::ThreadStarted(frame) => {
                // Ours are told by the response; a thread of nobody is somebody else's.
                if self.owner_of(&frame.thread.id.0).is_none() {
                    self.stranger_started(fx, line);
                }
            }
            Notification::Rerouted(frame) => self.on_rerouted(fx, &frame, line),
            Notification::Other {
                method,
                params,
                scope,
            } => {
                let place = self.place_of_scope(fx, &scope);
                self.elsewhere_or_here(fx, place, &method, params, &scope, line);
                self.may_be_compacted(fx, &method, &scope);
            }
            Notification::Bad {
                method,
                params,
                scope,
                reason,
            } => {
                let place = self.place_of_scope(fx, &scope);
                if !matches!(place, Place::Early(_)) {
                    let method = method.clone().into_owned();
                    self.report(fx, ProtocolError::BadParams { method, reason });
                }
                self.elsewhere_or_here(fx, place, &method, params, &scope, line);
            }
        }
    }

    fn place_of_scope(&mut self, fx: &mut Effects, scope: &Scope<'_>) -> Place {
        match (scope.thread(), scope.turn()) {
            (Some(thread), Some(turn)) if self.suspended_under(thread, turn).is_none() => {
                self.place(fx, thread, turn)
            }
            // What is not known to come from a running turn wakes none.
            (Some(thread), Some(_)) => match self.owner_of(thread) {
                Some(conversation) => Place::Unknown(conversation),
                None => Place::Foreign,
            },
            (Some(thread), None) => match self.owner_of(thread) {
                Some(conversation) => Place::Unknown(conversation),
                None => Place::Foreign,
            },
            (None, _) => Place::Foreign,
        }
    }

    /// A frame that this version does not know, wherever it belongs.
    fn elsewhere_or_here(
        &mut self,
        fx: &mut Effects,
        place: Place,
        method: &str,
        params: Option<&RawValue>,
        scope: &Scope<'_>,
        line: &[u8],
    ) {
        match place {
            Place::Turn(conversation, no) => {
                let update = TurnUpdate::Unrecognized(unrecognized(method, params));
                self.tell(fx, conversation, no, update);
            }
            Place::Foreign if scope.thread().is_none() => {
                let event = ConnectionEvent::Unrecognized(unrecognized(method, params));
                self.tell_connection(fx, event);
            }
            other => self.elsewhere(fx, other, method, params, line),
        }
    }

    /// A frame that belongs to no turn that runs.
    pub(super) fn elsewhere(
        &mut self,
        fx: &mut Effects,
        place: Place,
        method: &str,
        params: Option<&RawValue>,
        line: &[u8],
    ) {
        match place {
            Place::Early(conversation) => self.keep_early(conversation, line),
            Place::Late => self.counters.late_frames += 1,
            Place::Foreign => {
                if self.take_stranger(fx, line) {
                    return;
                }
                self.counters.foreign_frames += 1;
                let event = ConnectionEvent::Unrecognized(unrecognized(method, params));
                self.tell_connection(fx, event);
            }
            Place::Unknown(conversation) => {
                let update = ConversationUpdate::Unrecognized(unrecognized(method, params));
                self.tell_conversation(fx, conversation, update);
            }
            Place::Turn(..) => {}
        }
    }

    /// A turn that the server, or another client, began.
    pub(super) fn server_turn(
        &mut self,
        fx: &mut Effects,
        conversation: ConversationId,
        native: TurnId,
    ) -> Option<TurnNo> {
        let no = self.last_turn.next()?;
        self.last_turn = no;
        let now = self.now;
        let c = self.conversation(conversation)?;
        let mut turn = Turn::new(no, conversation, None, false, now);
        turn.state = TurnState::Running {
            native: native.clone(),
            confirmed: true,
        };
        turn.started_told = true;
        // Most conversations have one turn at a time, and far apart.
        c.turns.reserve_exact(1);
        c.turns.push(turn);
        self.turn_owner.insert(no, conversation);
        self.timers
            .set(Timer::Quiet(no), now.after(self.config.limits.quiet));
        let record = Record::ServerTurn {
            conversation,
            turn: no,
        };
        self.record(record, Durability::Buffered);
        let origin = Origin::Server;
        let update = ConversationUpdate::TurnBegan { turn: no, origin };
        self.tell_conversation(fx, conversation, update);
        self.tell(fx, conversation, no, TurnUpdate::Started { native, origin });
        Some(no)
    }

    fn on_turn_started(&mut self, fx: &mut Effects, frame: &TurnFrame<'_>, line: &[u8]) {
        if frame.names_two() {
            self.report(
                fx,
                ProtocolError::TwoTurns {
                    method: "turn/started".into(),
                },
            );
            return;
        }
        match self.place(fx, &frame.thread_id.0, &frame.turn.id.0) {
            Place::Turn(..) => {}
            Place::Early(conversation) => self.keep_early(conversation, line),
            Place::Late => self.counters.late_frames += 1,
            Place::Foreign => self.foreign(fx, line),
            Place::Unknown(conversation) => match TurnId::new(&frame.turn.id.0) {
                Some(native) => {
                    if let Some(no) = self.server_turn(fx, conversation, native.clone()) {
                        self.may_be_compaction(conversation, no, &native);
                    }
                }
                None => self.bad_id(fx, "turn/started", "the turn's id is not clean"),
            },
        }
    }

    pub(super) fn bad_id(&mut self, fx: &mut Effects, method: &str, reason: &str) {
        let (method, reason) = (method.to_owned(), reason.to_owned());
        self.report(fx, ProtocolError::BadParams { method, reason });
    }

    /// A frame named a turn: it runs, and what waited for that goes on.
    pub(super) fn runs(&mut self, fx: &mut Effects, conversation: ConversationId, no: TurnNo) {
        let told = self.turn(no).is_some_and(|turn| turn.started_told);
        if !told {
            self.tell_started(fx, conversation, no);
            self.go_on(fx, conversation, no);
        }
    }

    /// Tells that a turn runs, once.
    pub(super) fn tell_started(
        &mut self,
        fx: &mut Effects,
        conversation: ConversationId,
        no: TurnNo,
    ) {
        let Some(turn) = self.turn(no) else { return };
        if turn.started_told {
            return;
        }
        turn.started_told = true;
        let (origin, native) = (turn.origin, turn.native().cloned());
        if let Some(native) = native {
            self.tell(fx, conversation, no, TurnUpdate::Started { native, origin });
        }
    }

    fn on_turn_completed(&mut self, fx: &mut Effects, frame: &TurnFrame<'_>, line: &[u8]) {
        if frame.names_two() {
            self.report(
                fx,
                ProtocolError::TwoTurns {
                    method: "turn/completed".into(),
                },
            );
            return;
        }
        match self.place_of_end(fx, &frame.thread_id.0, &frame.turn.id.0) {
            Place::Turn(conversation, no) => {
                self.tell_started(fx, conversation, no);
                if let Some(items) = frame.turn.items {
                    self.take_summary(conversation, no, items);
                }
                let (status, error) = (&frame.turn.status.0, frame.turn.error);
                self.native_end(fx, conversation, no, status, error);
            }
            Place::Early(conversation) if self.has_bug(Bug::TakesEndsOfOthers) => {
                self.take_for_ours(fx, conversation, &frame.turn.id.0);
                self.keep_early(conversation, line);
                self.take_early(fx, conversation);
            }
            Place::Early(conversation) => self.keep_early(conversation, line),
            Place::Late => {
                self.counters.late_frames += 1;
                self.counters.duplicate_frames += 1;
            }
            Place::Foreign => self.foreign(fx, line),
            Place::Unknown(conversation) => {
                if let Some(native) = TurnId::new(&frame.turn.id.0) {
                    // An end without a beginning is told as a whole turn.
                    if self.server_turn(fx, conversation, native).is_some() {
                        self.on_turn_completed(fx, frame, line);
                    }
                }
            }
        }
    }

    /// What a machine does that takes the end of another turn for ours: a deliberate bug.
    fn take_for_ours(&mut self, fx: &mut Effects, conversation: ConversationId, native: &str) {
        let unnamed = self
            .conversation(conversation)
            .and_then(|c| c.turns.iter().find(|turn| turn.is_unnamed()))
            .map(|turn| turn.no);
        if let (Some(no), Some(native)) = (unnamed, TurnId::new(native)) {
            self.bind_turn(fx, conversation, no, native, true);
        }
    }

    /// Takes the messages that an end lists: an opted-out or lost completion is made up for.
    /// An empty list says nothing about the items.
    fn take_summary(&mut self, conversation: ConversationId, no: TurnNo, items: &RawValue) {
        let Ok(items) = serde_json::from_str::<Vec<&RawValue>>(items.get()) else {
            return;
        };
        let Some(turn) = self.conversation(conversation).and_then(|c| c.turn(no)) else {
            return;
        };
        for item in items.into_iter().filter_map(item::read) {
            if item.is_agent_message() {
                turn.text.complete_late(&item);
            }
        }
    }

    fn on_item(&mut self, fx: &mut Effects, frame: &ItemFrame<'_>, done: bool, line: &[u8]) {
        let method = if done {
            "item/completed"
        } else {
            "item/started"
        };
        let Some(item) = item::read(frame.item) else {
            self.bad_id(fx, method, "the item has no type or no id");
            return;
        };
        // Our own message tells which turn the server took it into.
        if item.client_id.is_some() {
            self.bind_by_message(fx, &frame.thread_id.0, &frame.turn_id.0, &item);
        }
        let place = self.place(fx, &frame.thread_id.0, &frame.turn_id.0);
        let (conversation, no) = match place {
            Place::Turn(conversation, no) => (conversation, no),
            Place::Unknown(conversation) => match TurnId::new(&frame.turn_id.0) {
                Some(native) => match self.server_turn(fx, conversation, native.clone()) {
                    Some(no) => {
                        self.item_of_compaction(conversation, no, &native, &item);
                        (conversation, no)
                    }
                    None => return,
                },
                None => return,
            },
            other => {
                self.elsewhere(fx, other, method, Some(frame.item), line);
                return;
            }
        };
        self.item_of_others(conversation, no, &item);
        let Some(turn) = self.turn(no) else { return };
        if done {
            turn.open_items.retain(|open| *open != item.id);
            if item.is_agent_message() {
                turn.text.complete(&item);
                self.record_output(no, &item);
            }
        } else {
            if item.is_agent_message() {
                turn.text.begin(&item);
            }
            if !turn.open_items.contains(&item.id) {
                turn.open_items.push(item.id.clone());
            }
        }
        let update = if done {
            TurnUpdate::ItemCompleted(item)
        } else {
            TurnUpdate::ItemStarted(item)
        };
        self.tell(fx, conversation, no, update);
    }

    fn on_usage(&mut self, fx: &mut Effects, frame: &UsageFrame<'_>, line: &[u8]) {
        let total = frame.token_usage.total;
        let (thread, native) = (&frame.thread_id.0, &frame.turn_id.0);
        let place = match self.suspended_under(thread, native) {
            // A resume replays the last total: that its turn runs, this does not say.
            Some((conversation, no)) => Place::Turn(conversation, no),
            None => self.place(fx, thread, native),
        };
        match place {
            Place::Turn(conversation, no) => {
                let Some(c) = self.conversation(conversation) else {
                    return;
                };
                let before = c.usage_total.replace(total);
                let Some(turn) = c.turn(no) else { return };
                turn.add_usage(&frame.token_usage, before);
                if let Some(usage) = turn.used {
                    self.tell(fx, conversation, no, TurnUpdate::Usage(usage));
                }
            }
            Place::Early(conversation) => {
                // A resume replays the last total: the baseline, though its turn is unknown.
                let fresh = self
                    .conversation(conversation)
                    .is_some_and(|c| c.usage_total.is_none());
                if fresh {
                    self.set_usage_base(conversation, total);
                }
                self.keep_early(conversation, line);
            }
            Place::Unknown(conversation) => self.set_usage_base(conversation, total),
            Place::Late => {
                self.counters.late_frames += 1;
                if let Some(conversation) = self.owner_of(&frame.thread_id.0) {
                    self.set_usage_base(conversation, total);
                }
            }
            Place::Foreign => self.foreign(fx, line),
        }
    }

    fn set_usage_base(&mut self, conversation: ConversationId, total: crate::event::Tokens) {
        if let Some(c) = self.conversation(conversation) {
            c.usage_total = Some(total);
        }
    }

    fn on_diff(&mut self, fx: &mut Effects, frame: &DiffFrame<'_>, line: &[u8]) {
        const METHOD: &str = "turn/diff/updated";
        match self.place(fx, &frame.thread_id.0, &frame.turn_id.0) {
            Place::Turn(conversation, no) => {
                let mut diff = String::with_capacity(frame.diff.get().len());
                let is_text = unescape(frame.diff.get(), &mut diff).is_some();
                let update = if is_text {
                    TurnUpdate::Diff(diff)
                } else {
                    TurnUpdate::Unrecognized(unrecognized(METHOD, Some(frame.diff)))
                };
                self.tell(fx, conversation, no, update);
            }
            other => self.elsewhere(fx, other, METHOD, Some(frame.diff), line),
        }
    }

    fn on_status(&mut self, fx: &mut Effects, frame: &StatusFrame<'_>, line: &[u8]) {
        let thread = frame.thread_id.0.as_ref();
        let Some(conversation) = self.owner_of(thread) else {
            self.foreign(fx, line);
            return;
        };
        let word = frame.word();
        let update = ConversationUpdate::ThreadStatus(RawJson::borrowed(frame.status));
        self.tell_conversation(fx, conversation, update);
        match word.as_deref() {
            // The end of a turn follows an idle status; where it does not, the history tells.
            Some("idle" | "systemError") => {
                let now = self.now;
                let due = now.after(self.config.limits.end_grace);
                let Some(c) = self.conversation(conversation) else {
                    return;
                };
                if c.activity == Activity::Active {
                    c.was_active = Some(now);
                }
                c.activity = Activity::Idle;
                let running: Vec<TurnNo> = c
                    .turns
                    .iter()
                    .filter(|turn| matches!(turn.state, TurnState::Running { .. }))
                    .map(|turn| turn.no)
                    .collect();
                for no in running {
                    if !self.timers.is_set(Timer::EndGrace(no)) {
                        self.timers.set(Timer::EndGrace(no), due);
                    }
                }
            }
            Some("active") => {
                let now = self.now;
                let Some(c) = self.conversation(conversation) else {
                    return;
                };
                c.activity = Activity::Active;
                c.was_active = Some(now);
                c.absent_since = None;
                let idle: Vec<TurnNo> = c
                    .turns
                    .iter()
                    .filter(|turn| turn.held_error.is_none() && turn.stop == Stop::No)
                    .map(|turn| turn.no)
                    .collect();
                for no in idle {
                    self.timers.clear(Timer::EndGrace(no));
                }
            }
            Some("notLoaded") => {
                let thread = thread.to_owned();
                self.on_thread_closed(fx, &thread, line);
            }
            Some(_) | None => {}
        }
    }

    /// The server let a thread go: the next turn resumes it.
    fn on_thread_closed(&mut self, fx: &mut Effects, thread: &str, line: &[u8]) {
        let Some(conversation) = self.owner_of(thread) else {
            self.foreign(fx, line);
            return;
        };
        let Some(c) = self.conversation(conversation) else {
            return;
        };
        let Link::Loaded(thread) = &c.link else {
            self.counters.duplicate_frames += 1;
            return;
        };
        let thread = thread.clone();
        c.link = Link::Detached(thread.clone());
        let running: Vec<TurnNo> = c
            .turns
            .iter()
            .filter(|turn| !turn.state.is_waiting() && !turn.is_suspended())
            .map(|turn| turn.no)
            .collect();
        self.tell_conversation(
            fx,
            conversation,
            ConversationUpdate::ThreadDetached { thread },
        );
        for no in running {
            self.thread_gone(fx, conversation, no);
        }
        self.compaction_thread_gone(fx, conversation);
    }

    /// Takes the frames that were kept, in order.
    pub(super) fn take_early(&mut self, fx: &mut Effects, conversation: ConversationId) {
        let Some(c) = self.conversation(conversation) else {
            return;
        };
        let early = core::mem::take(&mut c.early);
        (c.early_bytes, c.early_overflow) = (0, false);
        if !self.is_alive() {
            // They told of a connection that is no more.
            self.counters.past_epoch_frames += early.len() as u64;
            return;
        }
        for line in early {
            self.counters.frames = self.counters.frames.saturating_sub(1);
            self.on_line(fx, &line);
        }
    }

    /// Takes the thread that belongs to a conversation.
    pub(super) fn own_thread(
        &mut self,
        conversation: ConversationId,
        thread: &ThreadId,
    ) -> Result<(), ()> {
        match self.threads.owner(thread) {
            Some(owner) if owner != conversation => Err(()),
            Some(_) | None => {
                self.threads.insert(thread.clone(), conversation);
                Ok(())
            }
        }
    }
}

fn unrecognized(method: &str, params: Option<&RawValue>) -> Unrecognized {
    Unrecognized {
        method: method.to_owned(),
        params: params.map(RawJson::borrowed),
        request: false,
    }
}
