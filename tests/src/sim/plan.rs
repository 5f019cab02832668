//! What may go wrong in a run, and how often: drawn from its seed, and changed by name.

use std::{fmt, str::FromStr};

use super::rng::Rng;

macro_rules! faults {
    ($($(#[$doc:meta])* $name:ident $word:literal $rare:literal..$often:literal,)*) => {
        /// What can go wrong.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        pub enum Fault { $($(#[$doc])* $name,)* }

        impl Fault {
            /// All of them.
            pub const ALL: &[Self] = &[$(Self::$name,)*];

            /// The word that a plan has for it.
            #[must_use]
            pub const fn word(self) -> &'static str {
                match self { $(Self::$name => $word,)* }
            }

            /// How often it happens in a million chances, where it happens at all.
            const fn range(self) -> (u32, u32) {
                match self { $(Self::$name => ($rare, $often),)* }
            }
        }
    };
}

faults! {
    /// Our process is killed. A chance each step.
    KillUs "kill_us" 300..12_000,
    /// The server is killed. A chance each step.
    KillServer "kill_server" 300..12_000,
    /// Both are killed at once. A chance each step.
    KillBoth "kill_both" 200..6_000,
    /// The machine loses power: both are gone, and so is what was not synced. A chance each step.
    PowerLoss "power_loss" 200..6_000,
    /// The connection is reset. A chance each step.
    Reset "reset" 300..15_000,
    /// An append takes long.
    SlowAppend "slow_append" 5_000..300_000,
    /// An append fails.
    FailedAppend "failed_append" 200..4_000,
    /// A response comes twice.
    DoubleResponse "double_response" 5_000..200_000,
    /// A response comes late.
    LateResponse "late_response" 2_000..80_000,
    /// A response never comes, though the request was taken.
    NoResponse "no_response" 2_000..40_000,
    /// A request is answered with -32001 and not taken.
    Overloaded "overloaded" 5_000..200_000,
    /// The server sends a request that nobody knows.
    UnknownRequest "unknown_request" 2_000..40_000,
    /// The server sends a notification that nobody knows.
    UnknownNotification "unknown_notification" 2_000..60_000,
    /// The server sends a line that is no frame.
    Noise "noise" 1_000..20_000,
    /// An interrupt is neither answered nor heeded.
    DeafInterrupt "deaf_interrupt" 20_000..500_000,
    /// The clock jumps ahead. A chance each step.
    ClockJump "clock_jump" 200..5_000,
    /// A turn runs that is not ours. A chance each time a thread is idle.
    ForeignTurn "foreign_turn" 10_000..300_000,
    /// The response to a folded start names a turn that never is.
    GhostTurn "ghost_turn" 50_000..700_000,
    /// A turn ends and nobody is told: the thread is idle.
    UntoldEnd "untold_end" 5_000..100_000,
    /// The model never comes back.
    Hang "hang" 5_000..100_000,
    /// A server whose pipe has closed does not end.
    Orphan "orphan" 50_000..500_000,
    /// A connection cannot be opened.
    OpenFails "open_fails" 10_000..200_000,
    /// A server lets an idle thread go. A chance each time a turn has ended.
    Unload "unload" 10_000..200_000,
    /// The journal is replaced by its checkpoint before a start.
    Compact "compact" 100_000..600_000,
}

/// What may go wrong in a run, and how the world is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    rates: Vec<u32>,
    /// Whether the server is reached over a socket, so that it outlives the connection.
    pub socket: bool,
    /// Whether the server is a 0.163.0, which never answers a second interrupt.
    pub old_server: bool,
    /// How many conversations there are.
    pub conversations: u32,
    /// How many messages the application wants to send.
    pub messages: u32,
    /// The most kills and resets of a run: after so many it heals.
    pub blows: u32,
    /// For how many milliseconds things go wrong.
    pub trouble: u64,
    /// Whether a connection that ends is opened again.
    pub reconnect: bool,
    /// Whether what our process wrote is recovered after it ended.
    pub restart: bool,
}

impl Plan {
    /// The plan of a seed: each fault is in one run of three, so that runs differ in kind.
    #[must_use]
    pub fn of(seed: u64) -> Self {
        let mut rng = Rng::new(seed, 1);
        let calm = rng.one_in(12);
        let rates = Fault::ALL
            .iter()
            .map(|fault| {
                let (rare, often) = fault.range();
                let steps = rng.below(64);
                let on = rng.one_in(3);
                // On a logarithmic scale: what is rare is found by runs that live long.
                let span = f64::from(often) / f64::from(rare);
                #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
                let rate = (f64::from(rare) * span.powf(steps as f64 / 63.0)) as u32;
                if on && !calm { rate } else { 0 }
            })
            .collect();
        Self {
            rates,
            socket: rng.one_in(2),
            old_server: rng.one_in(2),
            conversations: u32::try_from(rng.between(1, 3)).unwrap_or(1),
            messages: u32::try_from(rng.between(1, 9)).unwrap_or(1),
            blows: u32::try_from(rng.between(1, 9)).unwrap_or(1),
            trouble: rng.between(500, 60_000),
            reconnect: true,
            restart: true,
        }
    }

    /// A plan in which nothing goes wrong.
    #[must_use]
    pub fn calm(socket: bool) -> Self {
        Self {
            rates: vec![0; Fault::ALL.len()],
            socket,
            old_server: false,
            conversations: 1,
            messages: 3,
            blows: 0,
            trouble: 60_000,
            reconnect: true,
            restart: true,
        }
    }

    /// How often a fault happens in a million chances.
    #[must_use]
    pub fn rate(&self, fault: Fault) -> u32 {
        self.rates[fault as usize]
    }

    /// Sets how often a fault happens.
    pub fn set(&mut self, fault: Fault, rate: u32) {
        self.rates[fault as usize] = rate;
    }

    /// Changes it by a list of `name=value`, as [`Plan::changes`] gives it.
    ///
    /// # Errors
    ///
    /// In words, what cannot be read.
    pub fn change(&mut self, text: &str) -> Result<(), String> {
        for pair in text.split(',').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair
                .split_once('=')
                .ok_or_else(|| format!("{pair:?} is no name=value"))?;
            let number = |value: &str| u32::from_str(value).map_err(|e| format!("{pair:?}: {e}"));
            let flag = |value: &str| bool::from_str(value).map_err(|e| format!("{pair:?}: {e}"));
            match name {
                "socket" => self.socket = flag(value)?,
                "old_server" => self.old_server = flag(value)?,
                "reconnect" => self.reconnect = flag(value)?,
                "restart" => self.restart = flag(value)?,
                "conversations" => self.conversations = number(value)?,
                "messages" => self.messages = number(value)?,
                "blows" => self.blows = number(value)?,
                "trouble" => self.trouble = number(value)?.into(),
                "all" => self.rates.fill(number(value)?),
                _ => {
                    let fault = Fault::ALL.iter().find(|fault| fault.word() == name);
                    let fault = fault.ok_or_else(|| format!("no fault {name:?}"))?;
                    self.set(*fault, number(value)?);
                }
            }
        }
        Ok(())
    }

    /// What differs from another plan, as text.
    #[must_use]
    pub fn changes(&self, from: &Self) -> String {
        let mut out = Vec::new();
        for fault in Fault::ALL {
            if self.rate(*fault) != from.rate(*fault) {
                out.push(format!("{}={}", fault.word(), self.rate(*fault)));
            }
        }
        let mut field = |name: &str, ours: u64, theirs: u64, flag: bool| {
            if ours != theirs {
                let value = if flag {
                    (ours == 1).to_string()
                } else {
                    ours.to_string()
                };
                out.push(format!("{name}={value}"));
            }
        };
        field("socket", self.socket.into(), from.socket.into(), true);
        field(
            "old_server",
            self.old_server.into(),
            from.old_server.into(),
            true,
        );
        field(
            "reconnect",
            self.reconnect.into(),
            from.reconnect.into(),
            true,
        );
        field("restart", self.restart.into(), from.restart.into(), true);
        field(
            "conversations",
            self.conversations.into(),
            from.conversations.into(),
            false,
        );
        field(
            "messages",
            self.messages.into(),
            from.messages.into(),
            false,
        );
        field("blows", self.blows.into(), from.blows.into(), false);
        field("trouble", self.trouble, from.trouble, false);
        out.join(",")
    }
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let on = Fault::ALL.iter().filter(|fault| self.rate(**fault) > 0);
        for fault in on {
            write!(f, "{}={},", fault.word(), self.rate(*fault))?;
        }
        write!(
            f,
            "socket={},old_server={},conversations={},messages={},blows={},trouble={}",
            self.socket,
            self.old_server,
            self.conversations,
            self.messages,
            self.blows,
            self.trouble
        )
    }
}

/// What happened in a run, or in many.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    pub(super) faults: Vec<u64>,
    /// Runs.
    pub runs: u64,
    /// Steps of machines.
    pub steps: u64,
    /// Lives of our process.
    pub lives: u64,
    /// Processes of the server.
    pub processes: u64,
    /// Connections.
    pub connections: u64,
    /// Lives that were played again.
    pub replays: u64,
    /// Messages of the application that were accepted.
    pub accepted: u64,
    /// Message frames that left a second time under the same id.
    pub resends: u64,
    /// Everything else that is counted, by its name.
    pub others: std::collections::BTreeMap<String, u64>,
}

impl Tally {
    /// Counts a fault.
    pub fn fault(&mut self, fault: Fault) {
        self.faults.resize(Fault::ALL.len(), 0);
        self.faults[fault as usize] += 1;
    }

    /// How often a fault happened.
    #[must_use]
    pub fn of(&self, fault: Fault) -> u64 {
        self.faults.get(fault as usize).copied().unwrap_or(0)
    }

    /// Counts something by its name.
    pub fn count(&mut self, name: &str, by: u64) {
        match self.others.get_mut(name) {
            Some(count) => *count += by,
            None => {
                self.others.insert(name.to_owned(), by);
            }
        }
    }

    /// Adds another one.
    pub fn add(&mut self, other: &Self) {
        self.faults.resize(Fault::ALL.len(), 0);
        for (ours, theirs) in self.faults.iter_mut().zip(&other.faults) {
            *ours += theirs;
        }
        self.runs += other.runs;
        self.steps += other.steps;
        self.lives += other.lives;
        self.processes += other.processes;
        self.connections += other.connections;
        self.replays += other.replays;
        self.accepted += other.accepted;
        self.resends += other.resends;
        for (name, count) in &other.others {
            self.count(name, *count);
        }
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{} runs, {} steps, {} lives of ours, {} of the server, {} connections, {} lives played again",
            self.runs, self.steps, self.lives, self.processes, self.connections, self.replays
        )?;
        writeln!(
            f,
            "{} messages accepted, {} frames sent again under their id",
            self.accepted, self.resends
        )?;
        writeln!(f, "faults:")?;
        for fault in Fault::ALL {
            writeln!(f, "  {:<22}{}", fault.word(), self.of(*fault))?;
        }
        writeln!(f, "and:")?;
        for (name, count) in &self.others {
            writeln!(f, "  {name:<42}{count}")?;
        }
        Ok(())
    }
}
