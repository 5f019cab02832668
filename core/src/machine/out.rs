//! The way out: records into the batch, frames and events behind their records.

use alloc::{boxed::Box, vec::Vec};
use core::ops::Range;

use super::{Machine, turn::Audience};
use crate::{
    bug::Bug,
    command::{CommandError, Reply},
    effect::{Batch, CloseWhy, Durability, Effect, Effects, Frame},
    event::{
        ConnectionEvent, ConversationEvent, ConversationUpdate, Event, ProtocolError, TurnEvent,
        TurnUpdate,
    },
    id::{CommandId, ConversationId, Epoch, JournalSeq, TurnNo},
    outbox::Held,
    record::Record,
    remembered::Remembered,
};

/// The gate of what waits for nothing.
pub(super) const UNGATED: JournalSeq = JournalSeq(0);

impl Machine {
    /// Puts a record into the batch of this step and applies it. Returns the gate behind it.
    pub(super) fn record(&mut self, record: Record, durability: Durability) -> JournalSeq {
        if let Err(error) = self.durable.apply(&record) {
            // The machine only makes records that fit; what does not must not reach the journal.
            debug_assert!(false, "{error}");
            return self.gate();
        }
        let durability = match self.has_bug(Bug::SyncsNothing) {
            true => Durability::Buffered,
            false => durability,
        };
        self.batch.push(record);
        self.batch_durability = self.batch_durability.max(durability);
        self.gate()
    }

    /// The gate behind all records so far, those of this step included.
    pub(super) fn gate(&self) -> JournalSeq {
        if self.batch.is_empty() {
            self.seq
        } else {
            // 2^64 batches are out of reach.
            JournalSeq(self.seq.0.saturating_add(1))
        }
    }

    /// Ends a step: its records become one batch.
    pub(super) fn finish(&mut self, fx: &mut Effects) {
        if !self.batch.is_empty() {
            self.seq = self.gate();
            let durability = core::mem::replace(&mut self.batch_durability, Durability::Buffered);
            fx.list.push(Effect::Append(Batch {
                through: self.seq,
                durability,
                at: self.now,
                records: core::mem::take(&mut self.batch),
            }));
        }
        fx.deadline = self.timers.first();
    }

    /// Sends a frame once its gate is open.
    pub(super) fn send(
        &mut self,
        fx: &mut Effects,
        bytes: Vec<u8>,
        gate: JournalSeq,
        request: Option<u64>,
    ) {
        self.send_frame(fx, bytes, gate, request, Vec::new());
    }

    /// Sends a frame with secrets in it once its gate is open.
    pub(super) fn send_secret(
        &mut self,
        fx: &mut Effects,
        bytes: Vec<u8>,
        gate: JournalSeq,
        request: Option<u64>,
        secrets: Vec<Range<usize>>,
    ) {
        self.send_frame(fx, bytes, gate, request, secrets);
    }

    fn send_frame(
        &mut self,
        fx: &mut Effects,
        bytes: Vec<u8>,
        gate: JournalSeq,
        request: Option<u64>,
        secrets: Vec<Range<usize>>,
    ) {
        let Some(epoch) = self.connection.epoch().filter(|_| self.is_alive()) else {
            return;
        };
        // 2^64 frames are out of reach.
        self.frame_seq.0 = self.frame_seq.0.saturating_add(1);
        let frame = Frame {
            seq: self.frame_seq,
            bytes,
            secrets: (!secrets.is_empty()).then(|| Box::new(secrets)),
        };
        if self.outbox.is_open(gate) || self.has_bug(Bug::SendsBeforeAppend) {
            self.leave(fx, epoch, frame, request);
        } else {
            self.outbox.hold(
                gate,
                Held::Frame {
                    epoch,
                    frame,
                    request,
                },
            );
        }
    }

    fn leave(&mut self, fx: &mut Effects, epoch: Epoch, frame: Frame, request: Option<u64>) {
        if let Some(id) = request {
            self.request_leaves(id, frame.seq);
        }
        fx.list.push(Effect::Send(epoch, frame));
    }

    /// Closes a connection once its gate is open.
    pub(super) fn close_connection(
        &mut self,
        fx: &mut Effects,
        epoch: Epoch,
        why: CloseWhy,
        gate: JournalSeq,
    ) {
        if self.outbox.is_open(gate) {
            fx.list.push(Effect::Close(epoch, why));
        } else {
            self.outbox.hold(gate, Held::Close(epoch, why));
        }
    }

    /// Emits an event of a conversation once its gate is open and nothing before it waits.
    fn emit_in(
        &mut self,
        fx: &mut Effects,
        conversation: ConversationId,
        gate: JournalSeq,
        event: Event,
    ) {
        let held_until = self.conversation(conversation).map_or(UNGATED, |c| {
            // A delta after this event must not go into one before it.
            c.last_delta = None;
            c.held_until
        });
        let gate = gate.max(held_until);
        if self.outbox.is_open(gate) {
            fx.list.push(Effect::Emit(event));
        } else {
            if let Some(conversation) = self.conversation(conversation) {
                conversation.held_until = gate;
            }
            self.outbox.hold(gate, Held::Event(event));
        }
    }

    /// Tells something about a turn, behind a gate, to those who still listen.
    pub(super) fn tell_gated(
        &mut self,
        fx: &mut Effects,
        conversation: ConversationId,
        turn: TurnNo,
        gate: JournalSeq,
        update: TurnUpdate,
    ) {
        let audience = self.turn(turn).map_or(Audience::All, |t| t.audience);
        let wanted = match audience {
            Audience::All => true,
            Audience::EndOnly => {
                matches!(update, TurnUpdate::Ended(_) | TurnUpdate::Corrected(_))
            }
            Audience::Told => matches!(update, TurnUpdate::Corrected(_)),
        };
        if !wanted {
            self.counters.dropped_events += 1;
            return;
        }
        let event = Event::Turn(Box::new(TurnEvent {
            conversation,
            turn,
            update,
        }));
        self.emit_in(fx, conversation, gate, event);
    }

    /// Tells something about a turn.
    pub(super) fn tell(
        &mut self,
        fx: &mut Effects,
        conversation: ConversationId,
        turn: TurnNo,
        update: TurnUpdate,
    ) {
        self.tell_gated(fx, conversation, turn, UNGATED, update);
    }

    /// Tells something about a conversation.
    pub(super) fn tell_conversation(
        &mut self,
        fx: &mut Effects,
        conversation: ConversationId,
        update: ConversationUpdate,
    ) {
        self.tell_conversation_gated(fx, conversation, UNGATED, update);
    }

    /// Tells something about a conversation, behind a gate.
    pub(super) fn tell_conversation_gated(
        &mut self,
        fx: &mut Effects,
        conversation: ConversationId,
        gate: JournalSeq,
        update: ConversationUpdate,
    ) {
        let event = Event::Conversation(Box::new(ConversationEvent {
            conversation,
            update,
        }));
        self.emit_in(fx, conversation, gate, event);
    }

    /// Emits a delta whose audience has been checked.
    pub(super) fn emit_delta(&mut self, fx: &mut Effects, delta: crate::event::Delta) {
        let conversation = delta.conversation;
        self.emit_in(fx, conversation, UNGATED, Event::Delta(delta));
    }

    /// Tells something about the connection.
    pub(super) fn tell_connection(&mut self, fx: &mut Effects, event: ConnectionEvent) {
        fx.list
            .push(Effect::Emit(Event::Connection(Box::new(event))));
    }

    /// Tells that the server broke the protocol.
    pub(super) fn report(&mut self, fx: &mut Effects, error: ProtocolError) {
        self.tell_connection(fx, ConnectionEvent::Protocol(error));
    }

    /// Answers a command once its gate is open.
    pub(super) fn answer_gated(
        &mut self,
        fx: &mut Effects,
        id: CommandId,
        gate: JournalSeq,
        answer: Result<Reply, CommandError>,
    ) {
        let gate = self.remember(id, gate, &answer);
        let limit = self.config.limits.commands;
        self.commands.answered(id, answer.clone(), gate, limit);
        self.emit_answer(fx, id, gate, answer);
    }

    /// Records the answer of a command that changed something in this step. Returns its gate.
    pub(super) fn remember(
        &mut self,
        id: CommandId,
        gate: JournalSeq,
        answer: &Result<Reply, CommandError>,
    ) -> JournalSeq {
        if !self.config.remember_commands || self.batch.is_empty() || self.durable.is_forgotten(id)
        {
            return gate;
        }
        match answer.as_ref().ok().and_then(Remembered::of) {
            Some(answer) => self.record(Record::Command { id, answer }, Durability::Buffered),
            None => gate,
        }
    }

    pub(super) fn emit_answer(
        &mut self,
        fx: &mut Effects,
        id: CommandId,
        gate: JournalSeq,
        answer: Result<Reply, CommandError>,
    ) {
        let event = Event::Answer {
            id,
            answer: Box::new(answer),
        };
        if self.outbox.is_open(gate) {
            fx.list.push(Effect::Emit(event));
        } else {
            self.outbox.hold(gate, Held::Event(event));
        }
    }

    /// Answers a command.
    pub(super) fn answer(
        &mut self,
        fx: &mut Effects,
        id: CommandId,
        answer: Result<Reply, CommandError>,
    ) {
        self.answer_gated(fx, id, UNGATED, answer);
    }

    pub(super) fn on_appended(&mut self, fx: &mut Effects, through: JournalSeq) {
        // A runtime cannot confirm what it was never handed.
        let through = through.min(self.seq);
        for held in self.outbox.release(through).into_values() {
            match held {
                Held::Frame {
                    epoch,
                    frame,
                    request,
                } => {
                    if self.connection.epoch() == Some(epoch) {
                        self.leave(fx, epoch, frame, request);
                    }
                }
                Held::Event(event) => fx.list.push(Effect::Emit(event)),
                Held::Close(epoch, why) => fx.list.push(Effect::Close(epoch, why)),
            }
        }
    }
}
