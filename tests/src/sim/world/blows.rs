//! What befalls a world: kills, resets, jumps of the clock; and the end of all that.

use turnkeep_core::CloseReason;

use super::{What, World};
use crate::sim::{life::Reached, plan::Fault, server::Conn};

/// The blows that a step may bring.
const BLOWS: [Fault; 6] = [
    Fault::KillUs,
    Fault::KillServer,
    Fault::KillBoth,
    Fault::PowerLoss,
    Fault::Reset,
    Fault::ClockJump,
];

impl World {
    /// Something may befall the world after each thing that happens.
    pub(super) fn misfortune(&mut self) {
        if let Some((after, fault)) = self.planned {
            if self.tally.steps >= after {
                self.planned = None;
                self.strike(fault);
            }
            return;
        }
        if self.healed || self.blows == 0 {
            return;
        }
        for fault in BLOWS {
            let rate = self.plan.rate(fault);
            if rate > 0 && self.rng.ppm(rate) {
                self.blows = self.blows.saturating_sub(1);
                self.strike(fault);
                return;
            }
        }
    }

    fn strike(&mut self, fault: Fault) {
        let ours = matches!(fault, Fault::KillUs | Fault::KillBoth | Fault::PowerLoss);
        if ours && (self.life.is_none() || !self.plan.restart) {
            return;
        }
        self.tally.fault(fault);
        self.note(|| format!("**** {}", fault.word()));
        match fault {
            Fault::KillUs => self.kill_us(false, false),
            Fault::KillServer => self.kill_server(Some(9)),
            Fault::KillBoth => {
                self.kill_us(false, true);
                self.kill_server(Some(9));
            }
            Fault::PowerLoss => {
                self.kill_us(true, true);
                self.kill_server(Some(9));
            }
            Fault::Reset => self.reset(),
            Fault::ClockJump => {
                self.ahead += self.rng.between(1_000_000, 300_000_000);
            }
            _ => unreachable!("{fault:?} is no blow"),
        }
    }

    /// Our process dies. `power`: what was not synced dies too. `server`: the server dies with it.
    pub(super) fn kill_us(&mut self, power: bool, server: bool) {
        self.end_life();
        if power {
            self.disk.power_lost();
        } else {
            self.disk.process_ends();
        }
        self.app.dies(self.now);
        let open: Vec<Conn> = self
            .wires
            .iter()
            .filter_map(|(conn, wire)| wire.ours.then_some(*conn))
            .collect();
        for conn in open {
            self.lose_wire(conn, server);
        }
        self.soon(1_000, 3_000_000, What::Boot);
    }

    /// Our end of a connection is gone with our process.
    fn lose_wire(&mut self, conn: Conn, server: bool) {
        let socket = self.plan.socket;
        let lingers =
            !server && !socket && !self.healed && self.rng.ppm(self.plan.rate(Fault::Orphan));
        let slow = if self.steady {
            0
        } else {
            self.net.between(0, 3_000_000)
        };
        let Some(wire) = self.wires.get_mut(&conn) else {
            return;
        };
        wire.lose_us();
        if server {
            wire.lose_server(CloseReason::Eof);
            return;
        }
        if socket {
            // What was on its way may still arrive, and late.
            wire.cut_up(&mut self.net);
            let times = wire.hold_up(slow / 2);
            let gone = wire.last_up().max(self.now) + slow / 2 + 100;
            for at in times {
                self.at(at, What::Up(conn));
            }
            self.at(
                gone,
                What::Gone {
                    conn,
                    process: false,
                },
            );
        } else {
            let last = wire.last_up().max(self.now);
            let span = if lingers {
                self.tally.fault(Fault::Orphan);
                self.net.between(3_000_000, 120_000_000)
            } else {
                slow / 10 + 100
            };
            self.at(
                last + span,
                What::Gone {
                    conn,
                    process: true,
                },
            );
        }
    }

    /// The server's process dies, by a signal or by itself.
    fn kill_server(&mut self, signal: Option<i32>) {
        let pids: Vec<u32> = match self.daemon.take() {
            Some(pid) => vec![pid],
            None => {
                let ours = self.wires.values().filter(|w| w.ours && w.theirs);
                ours.map(|wire| wire.pid).collect()
            }
        };
        for pid in pids {
            self.note(|| format!("process {pid} dies"));
            self.server.kill(pid, self.now);
            self.hear_server();
            let its: Vec<Conn> = self
                .wires
                .iter()
                .filter_map(|(conn, wire)| (wire.pid == pid).then_some(*conn))
                .collect();
            for conn in its {
                let reason = match self.plan.socket {
                    true => CloseReason::Lost("connection reset by peer".into()),
                    false => CloseReason::Exited {
                        code: signal.is_none().then_some(1),
                        signal,
                    },
                };
                let Some(wire) = self.wires.get_mut(&conn) else {
                    continue;
                };
                wire.lose_server(reason);
                let last = wire.last_down().max(self.now) + 100;
                self.at(last, What::Down(conn));
            }
        }
        if self.plan.socket {
            self.soon(10_000, 3_000_000, What::Daemon);
        }
    }

    /// A connection is reset. A pipe is not: there the server ends by itself.
    fn reset(&mut self) {
        if !self.plan.socket {
            self.kill_server(None);
            return;
        }
        let Some(life) = &self.life else { return };
        let open = life.epochs.values().find_map(|reached| match reached {
            Reached::Open(conn) => Some(*conn),
            Reached::Opening | Reached::Closed => None,
        });
        let Some(conn) = open else { return };
        let slow = if self.steady {
            0
        } else {
            self.net.between(0, 3_000_000)
        };
        let Some(wire) = self.wires.get_mut(&conn) else {
            return;
        };
        wire.cut(&mut self.net);
        let reason = CloseReason::Lost("connection reset by peer".into());
        wire.closing.get_or_insert(reason);
        let times = wire.hold_up(slow / 2);
        let gone = wire.last_up().max(self.now) + slow / 2 + 100;
        let last = wire.last_down().max(self.now) + 100;
        for at in times {
            self.at(at, What::Up(conn));
        }
        self.at(last, What::Down(conn));
        self.at(
            gone,
            What::Gone {
                conn,
                process: false,
            },
        );
    }

    /// Trouble is over: from here on all that is should come to rest.
    pub(super) fn heal(&mut self) {
        self.note(|| "==== heal".to_owned());
        self.healed = true;
        self.server.heal(self.now);
        self.hear_server();
        self.app.heal(self.now);
        if self.plan.socket && self.daemon.is_none() {
            self.start_daemon();
        }
    }
}
