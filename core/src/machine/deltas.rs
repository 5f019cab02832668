//! The hot frame: a piece of text, found by thread and turn, unescaped straight into its event.

use alloc::{string::String, vec::Vec};

use super::{Machine, find, frames::Place, turn::Audience};
use crate::{
    RawJson, Text,
    effect::{Effect, Effects},
    event::{Delta, Event, TurnUpdate, Unrecognized},
    id::{ConversationId, TurnId, TurnNo},
    text::{Spare, Told},
    wire::{WireDelta, text::unescape},
};

/// From how many bytes on a text is shared with whoever it is told. Shorter ones are copied: it costs
/// less.
const LONG: usize = 128;

/// From how many bytes on a text grows no more.
const FULL: usize = 64 << 10;

/// Pieces of text that were told in this step and that their turns do not have yet.
#[derive(Debug, Default)]
pub(super) struct Runs {
    open: Vec<Run>,
    /// How often they were kept.
    kept: u64,
    spare: Spare,
    told: Told,
}

impl Runs {
    pub(super) fn is_empty(&self) -> bool {
        self.open.is_empty()
    }

    /// Lets go of what was told: nothing streams any more.
    pub(super) fn rest(&mut self) {
        self.told = Told::default();
    }
}

/// One of them: where its event stands among the effects, and how much of it its turn has.
#[derive(Clone, Copy, Debug)]
struct Run {
    at: usize,
    taken: usize,
}

impl Machine {
    /// The hot frame.
    pub(super) fn on_delta(&mut self, fx: &mut Effects, delta: &WireDelta<'_>, line: &[u8]) {
        let Some(conversation) = self.owner_of(delta.thread) else {
            self.foreign(fx, line);
            return;
        };
        let (now, merge, through) = (self.now, self.config.merge_deltas, self.outbox.through());
        let (step, kept) = (self.steps, self.runs.kept);
        let Some(c) = find(&mut self.conversations, conversation) else {
            return;
        };
        let may_emit = c.held_until <= through;
        let last_delta = c.last_delta.filter(|_| c.delta_step == step);
        let is_open = c.delta_kept == kept;
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
        if listens && merge && may_emit {
            // A delta of the same item in the same read goes into the same event, unless something
            // else of its conversation stands between them.
            let before = last_delta.and_then(|at| Some((at, fx.list.get_mut(at)?)));
            if let Some((at, Effect::Emit(Event::Delta(last)))) = before {
                let same = last.turn == no
                    && last.item.is(delta.item)
                    && last.kind == delta.kind
                    && last.part == delta.part;
                let grows = last.text.own_mut().filter(|text| same && text.len() < FULL);
                if let Some(text) = grows {
                    let taken = text.len();
                    let done = match delta.unescaped.take() {
                        Some(more) => {
                            text.push_str(&more);
                            Some(())
                        }
                        None => unescape(delta.text, text),
                    };
                    if done.is_none() {
                        self.bad_delta(fx, conversation, no, delta);
                        return;
                    }
                    last.frames = last.frames.saturating_add(1);
                    self.counters.merged_deltas += 1;
                    if !is_open {
                        self.open_run(conversation, Run { at, taken });
                    }
                    return;
                }
            }
        }
        let later = listens && may_emit;
        let text = delta.unescaped.take().or_else(|| {
            let mut text = if later && merge {
                self.runs.spare.take()
            } else {
                // The raw text less its quotes is as long as the text, or a little longer.
                String::with_capacity(delta.text.len().saturating_sub(2))
            };
            unescape(delta.text, &mut text).map(|()| text)
        });
        let Some(mut text) = text.map(Text::from) else {
            self.bad_delta(fx, conversation, no, delta);
            return;
        };
        if !later {
            // Nothing may come after it that was said before.
            self.keep_runs(fx);
            text.settle(LONG, &mut self.runs.spare);
        }
        let c = find(&mut self.conversations, conversation);
        let Some(turn) = c.and_then(|c| c.turn(no)) else {
            return;
        };
        let Some(item) = turn.text.item(delta.item) else {
            return;
        };
        if !later {
            turn.text.stream(delta.kind, &text, 0);
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
        if later {
            let at = fx.list.len();
            fx.list.push(Effect::Emit(Event::Delta(event)));
            if let Some(c) = self.conversation(conversation) {
                (c.last_delta, c.delta_step) = (Some(at), step);
            }
            self.open_run(conversation, Run { at, taken: 0 });
        } else {
            self.emit_delta(fx, event);
        }
    }

    fn open_run(&mut self, conversation: ConversationId, run: Run) {
        self.runs.open.push(run);
        let kept = self.runs.kept;
        if let Some(c) = self.conversation(conversation) {
            c.delta_kept = kept;
        }
    }

    /// Gives turns the text that was told of them in this step: before anything else is read of them.
    /// A long one is then shared with whoever it is told.
    pub(super) fn keep_runs(&mut self, fx: &mut Effects) {
        if self.runs.open.is_empty() {
            return;
        }
        self.runs.kept += 1;
        let mut open = core::mem::take(&mut self.runs.open);
        let mut spare = core::mem::take(&mut self.runs.spare);
        for Run { at, taken } in open.drain(..) {
            let Some(Effect::Emit(Event::Delta(told))) = fx.list.get_mut(at) else {
                continue;
            };
            told.text.settle(LONG, &mut spare);
            self.runs.told.hold(&told.text);
            let turn = self.conversation(told.conversation);
            if let Some(turn) = turn.and_then(|c| c.turn(told.turn)) {
                turn.text.resume(&told.item);
                turn.text.stream(told.kind, &told.text, taken);
            }
        }
        (self.runs.open, self.runs.spare) = (open, spare);
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
        self.keep_runs(fx);
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
