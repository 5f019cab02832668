//! What a machine wants done, and what the runtime does of it.

use turnkeep_core::{
    CloseReason, Closed, Effect, Effects, Epoch, Event, Input, effect::OpenReason,
};

use super::{What, World};
use crate::sim::{
    disk::Written,
    life::Reached,
    plan::Fault,
    server::{Conn, Fact},
    wire::Wire,
};

impl World {
    /// Does what a step led to, in order.
    pub(super) fn perform(&mut self, effects: &Effects) {
        if let Some(life) = &mut self.life {
            life.deadline = effects.deadline.map(|deadline| deadline.at);
        }
        for effect in &effects.list {
            if self.log.is_some() {
                let text = crate::sim::check::effect_text(effect);
                self.note(|| format!("    < {text}"));
            }
            self.checks.effect(effect, self.now);
            match effect {
                Effect::Append(batch) => {
                    self.disk.append(batch);
                    self.write();
                }
                Effect::Send(epoch, frame) => {
                    let mut line = frame.bytes.clone();
                    line.pop();
                    self.send(*epoch, frame.seq, line);
                }
                Effect::Emit(event) => self.tell(event),
                Effect::Open(epoch, reason) => self.open(*epoch, *reason),
                Effect::Close(epoch, _) => self.close(*epoch),
            }
        }
    }

    fn life_number(&self) -> u32 {
        self.life.as_ref().map_or(0, |life| life.number)
    }

    /// Lets the disk begin its next write.
    pub(super) fn write(&mut self) {
        let fails = !self.healed && self.rng.ppm(self.plan.rate(Fault::FailedAppend));
        if !self.disk.start(fails) {
            return;
        }
        let slow = !self.healed && self.rng.ppm(self.plan.rate(Fault::SlowAppend));
        let span = if self.steady {
            1_000
        } else if slow {
            self.tally.fault(Fault::SlowAppend);
            self.net.between(10_000, 3_000_000)
        } else {
            self.net.between(50, 4_000)
        };
        let life = self.life_number();
        self.at(self.now + span, What::Written { life });
    }

    pub(super) fn written(&mut self, life: u32) {
        if !self.is_life(life) {
            return;
        }
        match self.disk.done() {
            Some(Written::Through(through)) => {
                self.write();
                self.step(Input::Appended { through });
            }
            Some(Written::Failed) => {
                self.tally.fault(Fault::FailedAppend);
                self.step(Input::AppendFailed);
            }
            None => {}
        }
    }

    fn send(&mut self, epoch: Epoch, seq: turnkeep_core::FrameSeq, line: Vec<u8>) {
        let Some(life) = &self.life else { return };
        let Some(Reached::Open(conn)) = life.epochs.get(&epoch).copied() else {
            return;
        };
        let number = life.number;
        let delay = if self.steady {
            1_000
        } else {
            self.net.between(20, 3_000)
        };
        let Some(wire) = self.wires.get_mut(&conn).filter(|wire| wire.ours) else {
            return;
        };
        if !wire.theirs || wire.closing.is_some() {
            // The other end is gone and we have not heard of it: the write fails, or seems to work.
            if self.rng.one_in(2) {
                let input = Box::new(Input::SendFailed(epoch, seq));
                self.at(
                    self.now,
                    What::Told {
                        life: number,
                        input,
                    },
                );
                self.tally.count("writes failed", 1);
            }
            return;
        }
        let at = wire.send(self.now, delay, line);
        self.at(at, What::Up(conn));
    }

    pub(super) fn up(&mut self, conn: Conn) {
        let Some(wire) = self.wires.get_mut(&conn).filter(|wire| wire.theirs) else {
            return;
        };
        let Some(line) = wire.arrived(self.now) else {
            return;
        };
        self.server.on_line(conn, &line, self.now);
        self.hear_server();
    }

    /// Takes what the server wrote, and what became true there.
    pub(super) fn hear_server(&mut self) {
        while let Some((conn, line)) = self.server.take_line() {
            let hears = |wire: &&mut Wire| wire.ours && wire.closing.is_none();
            let Some(wire) = self.wires.get_mut(&conn).filter(hears) else {
                continue;
            };
            let times = wire.say(self.now, &mut self.net, self.steady, line);
            for at in times {
                self.at(at, What::Down(conn));
            }
        }
        for fact in self.server.take_facts() {
            if let Fact::Forked { .. } = fact {
                self.tally.count("threads forked", 1);
            }
            if let Fact::Compacted = fact {
                self.tally.count("threads compacted", 1);
            }
            if let Fact::Fault(fault) = fact {
                self.tally.fault(fault);
            }
            if self.log.is_some() && !matches!(fact, Fact::Came { .. }) {
                self.note(|| format!("      ! {fact:?}"));
            }
            self.checks.fact(&fact);
        }
    }

    pub(super) fn down(&mut self, conn: Conn) {
        let Some(wire) = self.wires.get_mut(&conn).filter(|wire| wire.ours) else {
            return;
        };
        let (epoch, life) = (wire.epoch, wire.life);
        let bytes = wire.read(self.now, &mut self.net);
        let ends = wire.all_read().then(|| wire.closing.take()).flatten();
        if ends.is_some() {
            wire.ours = false;
        }
        if !self.is_life(life) {
            return;
        }
        if let Some(bytes) = bytes {
            self.step(Input::Received(epoch, bytes));
        }
        if let Some(reason) = ends {
            let open = |l: &super::Life| l.epochs.get(&epoch) == Some(&Reached::Open(conn));
            if self.life.as_ref().is_some_and(open) {
                self.closed(epoch, reason);
            }
        }
    }

    fn tell(&mut self, event: &Event) {
        match event {
            Event::Halted => {
                if let Some(life) = &mut self.life {
                    life.halted = true;
                }
                // Whoever runs us starts us again.
                self.soon(10_000, 2_000_000, What::Boot);
            }
            Event::Connection(connection) => {
                if let turnkeep_core::event::ConnectionEvent::Ended(_) = &**connection {
                    if let Some(life) = &mut self.life {
                        life.ended = true;
                    }
                    // A client that is given up is made anew.
                    if self.plan.restart && !std::mem::replace(&mut self.exits, true) {
                        let life = self.life_number();
                        self.soon(500_000, 5_000_000, What::Exit { life });
                    }
                }
            }
            Event::Delta(_) | Event::Turn(_) | Event::Conversation(_) | Event::Answer { .. } => {}
        }
        self.app.hear(event, self.now);
        if self.app.wants_exit() && self.plan.restart && !std::mem::replace(&mut self.exits, true) {
            let life = self.life_number();
            self.soon(1_000, 1_000_000, What::Exit { life });
        }
    }

    fn open(&mut self, epoch: Epoch, reason: OpenReason) {
        let life = self.life_number();
        if let Some(life) = &mut self.life {
            life.epochs.insert(epoch, Reached::Opening);
        }
        let orphan = match reason {
            OpenReason::Recover { orphan } => orphan,
            OpenReason::Start | OpenReason::Reconnect { .. } => None,
        };
        self.soon(
            1_000,
            50_000,
            What::Opened {
                life,
                epoch,
                orphan,
            },
        );
    }

    fn close(&mut self, epoch: Epoch) {
        let Some(life) = &mut self.life else { return };
        let number = life.number;
        let reached = life.epochs.insert(epoch, Reached::Closed);
        let closed = Closed::new(CloseReason::ByUs, String::new());
        let input = Box::new(Input::Closed(epoch, Box::new(closed)));
        if let Some(Reached::Open(conn)) = reached {
            let socket = self.plan.socket;
            if let Some(wire) = self.wires.get_mut(&conn) {
                wire.lose_us();
                let last = wire.last_up().max(self.now);
                let process = !socket;
                self.at(last + 100, What::Gone { conn, process });
                self.at(
                    last + 200,
                    What::Told {
                        life: number,
                        input,
                    },
                );
            }
        } else if reached != Some(Reached::Closed) {
            self.at(
                self.now,
                What::Told {
                    life: number,
                    input,
                },
            );
        }
    }
}
