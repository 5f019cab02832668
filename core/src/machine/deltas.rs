//! The hot frame: a piece of text, found by thread and turn, unescaped straight into its event.

use alloc::{string::String, vec::Vec};
use core::ops::Range;

use super::{
    Machine,
    frames::Place,
    turn::{Audience, RawText},
};
use crate::{
    RawJson,
    effect::{Effect, Effects},
    event::{Delta, DeltaKind, Event, TurnUpdate, Unrecognized},
    id::{ConversationId, TurnId, TurnNo},
    wire::{WireDelta, text::unescape},
};

/// How much room a text gets that grows within one read, in bytes.
const BURST: usize = 232;

/// From how many bytes on a piece of text stays in its line.
const HUGE: usize = 1 << 20;

/// A piece of text that is still to be kept: of which turn, and where it stands in its line.
pub(super) type Huge = (ConversationId, TurnNo, Range<usize>);

impl Machine {
    /// The hot frame.
    pub(super) fn on_delta(&mut self, fx: &mut Effects, delta: &WireDelta<'_>, line: &[u8]) {
        let Some(conversation) = self.owner_of(delta.thread) else {
            self.foreign(fx, line);
            return;
        };
        let (now, merge, through) = (self.now, self.config.merge_deltas, self.outbox.through());
        let step = self.steps;
        let Some(c) = self.conversation(conversation) else {
            return;
        };
        let may_emit = c.held_until <= through;
        let last_delta = c.last_delta.filter(|_| c.delta_step == step);
        let Some(turn) = c.running(delta.turn) else {
            self.delta_elsewhere(fx, delta, line);
            return;
        };
        if !turn.started_told {
            // Once a turn: its first frame is this one.
            let no = turn.no;
            self.promote(no);
            self.runs(fx, conversation, no);
            self.on_delta(fx, delta, line);
            return;
        }
        turn.heard = now;
        let (no, listens) = (turn.no, turn.audience == Audience::All);
        // Where it stands in its line, if it is too long to be kept twice.
        let raw = (delta.kind == DeltaKind::Agent && delta.text.len() >= HUGE)
            .then(|| place_in(line, delta.text))
            .flatten();
        if listens && merge && may_emit {
            // A delta of the same item in the same read goes into the same event, unless something
            // else of its conversation stands between them.
            let before = last_delta.and_then(|at| fx.list.get_mut(at));
            if let Some(Effect::Emit(Event::Delta(last))) = before {
                let same = last.turn == no
                    && last.item.is(delta.item)
                    && last.kind == delta.kind
                    && last.part == delta.part;
                if same {
                    let from = last.text.len();
                    if last.frames == 1 {
                        // Where two come in one read, more do: the text grows once.
                        last.text.reserve(BURST);
                    }
                    let done = match delta.unescaped.take() {
                        Some(text) => {
                            last.text.push_str(&text);
                            Some(())
                        }
                        None => unescape(delta.text, &mut last.text),
                    };
                    if done.is_none() {
                        self.bad_delta(fx, conversation, no, delta);
                        return;
                    }
                    if !turn.text.is_last(&last.item) {
                        turn.text.item(delta.item);
                    }
                    match raw {
                        Some(raw) => self.huge = Some((conversation, no, raw)),
                        None => {
                            let added = last.text.get(from..).unwrap_or_default();
                            turn.text.stream(delta.kind, added);
                        }
                    }
                    last.frames = last.frames.saturating_add(1);
                    self.counters.merged_deltas += 1;
                    return;
                }
            }
        }
        let text = delta.unescaped.take().or_else(|| {
            // The raw text less its quotes is as long as the text, or a little longer.
            let mut text = String::with_capacity(delta.text.len().saturating_sub(2));
            unescape(delta.text, &mut text).map(|()| text)
        });
        let Some(text) = text else {
            self.bad_delta(fx, conversation, no, delta);
            return;
        };
        let Some(item) = turn.text.item(delta.item) else {
            return;
        };
        match raw {
            Some(raw) => self.huge = Some((conversation, no, raw)),
            None => turn.text.stream(delta.kind, &text),
        }
        if !listens {
            self.counters.dropped_events += 1;
            return;
        }
        let event = Delta {
            conversation,
            turn: no,
            frames: 1,
            kind: delta.kind,
            part: delta.part,
            item,
            text,
        };
        if may_emit {
            let at = fx.list.len();
            fx.list.push(Effect::Emit(Event::Delta(event)));
            if let Some(c) = self.conversation(conversation) {
                (c.last_delta, c.delta_step) = (Some(at), step);
            }
        } else {
            self.emit_delta(fx, event);
        }
    }

    /// Keeps a line with a piece of text that is too long to be kept twice.
    pub(super) fn keep_huge(&mut self, (conversation, no, at): Huge, line: Vec<u8>) {
        if let Some(turn) = self.conversation(conversation).and_then(|c| c.turn(no)) {
            turn.text.stream_raw(RawText { line, at });
        }
    }

    /// A delta whose text is no Unicode: it is carried raw.
    fn bad_delta(
        &mut self,
        fx: &mut Effects,
        conversation: ConversationId,
        no: TurnNo,
        delta: &WireDelta<'_>,
    ) {
        let unrecognized = Unrecognized {
            method: alloc::format!("{:?} delta of item {}", delta.kind, delta.item),
            params: RawJson::parse(delta.text).ok(),
            request: false,
        };
        self.tell(fx, conversation, no, TurnUpdate::Unrecognized(unrecognized));
    }

    fn delta_elsewhere(&mut self, fx: &mut Effects, delta: &WireDelta<'_>, line: &[u8]) {
        match self.place(fx, delta.thread, delta.turn) {
            Place::Early(conversation) => self.keep_early(conversation, line),
            Place::Late => self.counters.late_frames += 1,
            Place::Foreign => self.foreign(fx, line),
            Place::Unknown(conversation) => {
                // The opt-outs may have kept the beginning from us: the frame proves the turn.
                let native = TurnId::new(delta.turn);
                if native
                    .and_then(|native| self.server_turn(fx, conversation, native))
                    .is_some()
                {
                    self.on_delta(fx, delta, line);
                }
            }
            // It was suspended until this very frame.
            Place::Turn(..) => self.on_delta(fx, delta, line),
        }
    }
}

/// Where a part of a line stands in it.
fn place_in(line: &[u8], part: &str) -> Option<Range<usize>> {
    let from = (part.as_ptr() as usize).checked_sub(line.as_ptr() as usize)?;
    let at = from..from + part.len();
    let found = line.get(at.clone())?;
    debug_assert!(found == part.as_bytes(), "a text stands in its line");
    Some(at)
}
