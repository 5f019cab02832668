//! What must hold of every run (SPEC section 6), checked from outside: by what goes in and comes out of the machine, and by what
//! the server knows.

mod accepted;
mod approvals;
mod bindings;
mod boxes;
mod calls;
mod convergence;
mod ends;
mod events;
mod growth;
mod order;
mod recovery;
mod replay;

use turnkeep_core::{
    Config, Durable, Effect, Epoch, Event, Input, Machine, Record, codec::journal::Entry,
};

use self::{
    accepted::Accepted, approvals::Approvals, bindings::Bindings, boxes::Boxes, calls::Calls,
    ends::Ends, events::Events, growth::Growth, order::Order, recovery::Recovery,
};
pub(super) use self::{
    convergence::{is_at_rest, unsettled},
    replay::replay,
};
use super::{application::Application, server::Fact};

/// All checkers.
#[derive(Debug)]
pub(super) struct Checks {
    order: Order,
    accepted: Accepted,
    ends: Ends,
    calls: Calls,
    approvals: Approvals,
    bindings: Bindings,
    boxes: Boxes,
    events: Events,
    recovery: Recovery,
    growth: Growth,
}

impl Checks {
    pub(super) fn new(config: &Config, socket: bool) -> Self {
        Self {
            order: Order::default(),
            accepted: Accepted::new(socket),
            ends: Ends::new(config),
            calls: Calls::default(),
            approvals: Approvals::default(),
            bindings: Bindings::new(config),
            boxes: Boxes::default(),
            events: Events::default(),
            recovery: Recovery::default(),
            growth: Growth::default(),
        }
    }

    /// Our process starts with what it finds in the journal.
    pub(super) fn life_begins(&mut self, entries: &[Entry]) {
        // What a checkpoint covers was seen when it was written.
        let first = entries.first().and_then(|entry| entry.records.first());
        let covered = matches!(first, Some(Record::Checkpoint(_)));
        self.order.life_begins(covered);
        self.calls.life_begins(covered);
        self.events.life_begins();
        self.accepted.life_begins();
        self.bindings.life_begins();
        self.boxes.life_begins();
        self.ends.life_begins();
        self.recovery.life_begins();
        self.growth.life_begins();
        for entry in entries {
            for record in &entry.records {
                self.order.found(record);
                self.calls.found(record);
                self.bindings.found(record);
                self.ends.found(record);
                self.accepted.record(record);
                self.recovery.apply(record);
                self.boxes.record(record, self.recovery.made());
            }
        }
    }

    pub(super) fn life_ends(&mut self) {
        self.events.life_ends();
    }

    pub(super) fn input(&mut self, input: &Input) {
        self.growth.input();
        self.boxes.input();
        match input {
            Input::Appended { through } => {
                self.order.appended(*through);
                self.calls.appended(*through);
            }
            Input::Command { id, command } => {
                self.order.command(command);
                self.approvals.command(command);
                self.ends.command(*id, command);
                self.boxes.command(command);
                self.bindings.command(command);
            }
            Input::Closed(..) => self.events.gap(),
            Input::Opened(..)
            | Input::Received(..)
            | Input::SendFailed(..)
            | Input::AppendFailed
            | Input::QueueFull(_)
            | Input::Tick => {}
        }
    }

    pub(super) fn effect(&mut self, effect: &Effect, now: u64) {
        match effect {
            Effect::Append(batch) => {
                for record in &batch.records {
                    self.order.record(batch.through, record);
                    self.calls.record(batch.through, record);
                    self.bindings.record(record);
                    self.recovery.apply(record);
                    self.boxes.record(record, self.recovery.made());
                    self.ends.record(record);
                    self.accepted.record(record);
                }
                self.growth.batch(batch.records.len());
            }
            Effect::Send(epoch, frame) => {
                let line = std::str::from_utf8(&frame.bytes).expect("frames are UTF-8");
                self.order.send(*epoch, line);
                self.growth.frame();
            }
            Effect::Emit(event) => self.event(event, now),
            Effect::Open(..) | Effect::Close(..) => {}
        }
    }

    fn event(&mut self, event: &Event, now: u64) {
        self.events.event(event);
        self.calls.event(event);
        self.approvals.event(event);
        self.ends.event(event, &self.accepted, now);
    }

    /// A connection to a process is there.
    pub(super) fn connected(&mut self, epoch: Epoch, pid: u32) {
        self.order.connected(epoch, pid);
    }

    pub(super) fn fact(&mut self, fact: &Fact) {
        self.order.fact(fact);
        self.accepted.fact(fact);
        self.boxes.fact(fact);
        self.approvals.fact(fact);
        self.ends.fact(fact);
    }

    /// What the records make is what the machine has.
    pub(super) fn same(&self, live: &Durable) {
        self.recovery.same(live);
    }

    /// What was handed to the journal, read back, is what the machine has.
    pub(super) fn same_as_journal(&self, machine: &Machine, journal: &[u8]) {
        recovery::same_as_journal(machine, journal);
    }

    pub(super) fn at_the_end(&self, app: &Application) {
        self.accepted.at_the_end();
        self.ends.at_the_end(app, &self.accepted);
        let made = self.recovery.made();
        self.boxes.at_the_end(app, &self.accepted, made);
    }

    pub(super) fn accepted(&self) -> u64 {
        self.accepted.count()
    }

    pub(super) fn resends(&self) -> u64 {
        self.accepted.resends()
    }

    /// How often the model was given a message twice, by the server's own gap.
    pub(super) const fn given_twice(&self) -> u64 {
        self.accepted.given_twice()
    }

    /// How many questions the application was told.
    pub(super) const fn questions(&self) -> u64 {
        self.events.questions()
    }

    /// How turns ended, by the word of their outcome and where it is known from.
    pub(super) fn outcomes(&self) -> impl Iterator<Item = (&str, u64)> {
        self.ends.outcomes()
    }
}

/// What a machine counted.
pub(super) fn counters(machine: &Machine) -> Vec<(&'static str, u64)> {
    let counters = machine.counters();
    vec![
        ("frames read", counters.frames),
        ("frames late", counters.late_frames),
        ("frames twice", counters.duplicate_frames),
        ("reconnected", counters.reconnects),
        ("reconciled: looks into the history", counters.lookups),
        ("reconciled: found running", counters.found_running),
        ("reconciled: found ended", counters.found_ended),
        ("reconciled: absent and sent again", counters.resent),
        ("reconciled: unknown", counters.unknown),
        ("reconciled: corrected", counters.corrected),
    ]
}

fn json<T: serde::Serialize + ?Sized>(value: &T) -> String {
    serde_json::to_string(value).expect("it can be written as JSON")
}

/// An input in words.
pub(super) fn input_text(input: &Input) -> String {
    match input {
        Input::Received(epoch, bytes) => {
            format!(
                "received {epoch} {}",
                String::from_utf8_lossy(bytes).trim_end()
            )
        }
        other => json(other),
    }
}

/// An effect in words.
pub(super) fn effect_text(effect: &Effect) -> String {
    match effect {
        Effect::Send(epoch, frame) => format!("send {epoch} {}", frame.redacted()),
        Effect::Append(batch) => {
            let records: Vec<String> = batch.records.iter().map(json::<Record>).collect();
            format!(
                "append {} {:?} {}",
                batch.through,
                batch.durability,
                records.join(" ")
            )
        }
        other => json(other),
    }
}
