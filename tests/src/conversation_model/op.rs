//! What happens to a conversation, as data: what a case is made of, and what a failure is told in.
//!
//! Every operation may come at any moment. Numbers that choose (a call, a key) are taken modulo what there is, so that a sequence
//! from which operations were removed is a sequence still.

use serde::{Deserialize, Serialize};

use crate::sim::rng::Rng;

/// How the conversation of a case is held, and on what.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct How {
    /// `rendering: Boxed`.
    pub boxed: bool,
    /// `steer: AtOnce`.
    pub at_once: bool,
    /// `auto_begin: Off`.
    pub by_hand: bool,
    /// `authorization: Needed`.
    pub bound: bool,
    /// `recovered_rounds: Run`.
    pub recovered_run: bool,
    /// The server is reached over a socket and outlives its connections.
    pub socket: bool,
    /// The mailbox takes three arrivals.
    pub small: bool,
}

/// What an application brings as a box.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Brought {
    User,
    System,
    /// Of a type that nobody knows.
    Odd,
    /// A user attachment that is a native input item.
    Image,
    /// An attachment of a tool, of a hidden type that nobody knows.
    Paper,
    /// Inert.
    ToolMessage,
    ToolResult,
    /// Of a type that may not come from outside.
    Forbidden,
    /// Of no type.
    Untyped,
}

/// A call of the model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Called {
    /// A function, inline.
    Look,
    /// A function, inline, with a time limit.
    Hasty,
    /// A function, deferred.
    Fetch,
    /// A function, deferred, with a time limit.
    Await,
    /// A router, inline.
    Route,
    /// A router, deferred.
    Forward,
    /// A message.
    Say,
    /// A malformed call that goes the inline way.
    Garbled,
    /// A malformed call of a deferred tool.
    Mangled,
    /// A call of a message tool without a message.
    Mute,
    /// A call of a tool that was never declared.
    Unknown,
}

/// What the result of a call is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Outcome {
    Ok,
    Failed,
    /// With data of the application's own.
    Meta,
}

/// One thing that happens.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Op {
    // The application asks.
    Accept {
        boxes: Vec<Brought>,
        /// Its own key; a key that was used brings the same again, or something else.
        key: Option<u8>,
        other: bool,
        binding: Option<u8>,
    },
    Send {
        image: bool,
        binding: Option<u8>,
    },
    Steer {
        stale: bool,
    },
    Interrupt {
        stale: bool,
    },
    Respond {
        call: u8,
        outcome: Outcome,
    },
    ToolMessage {
        call: u8,
    },
    Bind(u8),
    Unbind,
    Hold,
    Release,
    Begin,
    Dismiss,
    Restart {
        binding: Option<u8>,
    },
    /// Of these calls, blocking or not, behind a system message.
    Preflight(Vec<(Called, bool)>),
    Reset,
    /// Other instructions, which only another thread takes.
    Change,
    // Time passes.
    /// Past the limits of all tools that have one.
    Expire,
    // The server does something.
    /// It takes what comes and does not answer, until it speaks.
    Silence,
    Speak,
    /// It refuses the next message.
    Refuse,
    /// What was taken is recorded.
    Record,
    /// The model begins to say something.
    Stream {
        record: bool,
    },
    /// The model says something, or the rest of what it began; what was taken before is recorded or not.
    Text {
        record: bool,
    },
    /// The model calls tools, all in one read.
    Calls {
        calls: Vec<Called>,
        record: bool,
    },
    /// The turn ends: completed.
    Complete {
        record: bool,
    },
    /// The turn ends: failed.
    Fail,
    /// The turn ends: interrupted, and nobody here asked for it.
    Stop,
    // The world.
    /// The connection is lost; with a child the server goes with it.
    Lose,
    /// Our process is killed.
    Crash,
}

/// What of an operation is in the journal when our process is killed in the middle of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Cut {
    /// Nothing that it led to.
    Lost,
    /// What it led to at first, but no frame has left.
    Unsent,
}

/// One operation of a case.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Step {
    pub op: Op,
    /// Whether our process is killed in the middle of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cut: Option<Cut>,
}

/// One case: a line of JSON, which a failure prints and a regression keeps.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Case {
    pub how: How,
    pub steps: Vec<Step>,
}

impl Case {
    /// The case of a seed.
    #[must_use]
    pub fn of(seed: u64) -> Self {
        let mut rng = Rng::new(seed, 11);
        let how = How {
            boxed: rng.one_in(2),
            at_once: rng.one_in(3),
            by_hand: rng.one_in(6),
            bound: rng.one_in(3),
            recovered_run: rng.one_in(2),
            socket: rng.one_in(2),
            small: rng.one_in(8),
        };
        let mut steps = Vec::new();
        if rng.one_in(6) {
            let calls = (0..rng.below(3))
                .map(|_| (called_ahead(&mut rng), rng.one_in(2)))
                .collect();
            steps.push(Op::Preflight(calls).into());
        }
        // With a theme the rarer things come close together.
        let theme = rng.below(4);
        for _ in 0..rng.between(4, 36) {
            let op = draw(&mut rng, how, theme);
            let cut = match rng.below(60) {
                0 => Some(Cut::Lost),
                1 => Some(Cut::Unsent),
                _ => None,
            };
            steps.push(Step { op, cut });
        }
        Self { how, steps }
    }
}

impl From<Op> for Step {
    fn from(op: Op) -> Self {
        Self { op, cut: None }
    }
}

fn called_ahead(rng: &mut Rng) -> Called {
    *rng.pick(&[Called::Look, Called::Fetch, Called::Unknown])
}

fn called(rng: &mut Rng) -> Called {
    use Called::*;
    *rng.pick(&[
        Look, Look, Look, Fetch, Fetch, Fetch, Hasty, Await, Route, Forward, Say, Say, Garbled,
        Mangled, Mute, Unknown,
    ])
}

fn brought(rng: &mut Rng) -> Brought {
    use Brought::*;
    *rng.pick(&[
        User,
        User,
        User,
        System,
        System,
        Odd,
        Image,
        Paper,
        ToolMessage,
        ToolResult,
    ])
}

fn binding(rng: &mut Rng, how: How) -> Option<u8> {
    (how.bound && rng.one_in(2)).then(|| u8::from(rng.one_in(5)))
}

fn draw(rng: &mut Rng, how: How, theme: u64) -> Op {
    let record = !rng.one_in(4);
    match (theme, rng.below(8)) {
        // Much is deferred and steered.
        (0, 0) => {
            return Op::Accept {
                boxes: vec![Brought::System],
                key: None,
                other: false,
                binding: None,
            };
        }
        (0, 1) => {
            return Op::Calls {
                calls: vec![Called::Fetch],
                record,
            };
        }
        (0, 2) => {
            return Op::Respond {
                call: rng.below(8) as u8,
                outcome: Outcome::Ok,
            };
        }
        // Much fails.
        (1, 0) => {
            return rng
                .pick(&[
                    Op::Fail,
                    Op::Stop,
                    Op::Refuse,
                    Op::Interrupt { stale: false },
                ])
                .clone();
        }
        (1, 1) => {
            return rng
                .pick(&[Op::Dismiss, Op::Restart { binding: None }])
                .clone();
        }
        // Much is lost.
        (2, 0) => return rng.pick(&[Op::Lose, Op::Crash]).clone(),
        _ => {}
    }
    match rng.below(100) {
        0..=11 => {
            let odd = rng.one_in(30);
            let mut boxes: Vec<_> = (0..rng.between(1, 2)).map(|_| brought(rng)).collect();
            if odd {
                boxes.push(*rng.pick(&[Brought::Forbidden, Brought::Untyped]));
            }
            Op::Accept {
                boxes,
                key: rng.one_in(4).then(|| rng.below(3) as u8),
                other: rng.one_in(4),
                binding: binding(rng, how),
            }
        }
        12..=21 => Op::Send {
            image: rng.one_in(6),
            binding: binding(rng, how),
        },
        22..=25 => Op::Steer {
            stale: rng.one_in(6),
        },
        26..=27 => Op::Interrupt {
            stale: rng.one_in(6),
        },
        28..=39 => Op::Respond {
            call: rng.below(8) as u8,
            outcome: *rng.pick(&[Outcome::Ok, Outcome::Ok, Outcome::Failed, Outcome::Meta]),
        },
        40..=42 => Op::ToolMessage {
            call: rng.below(8) as u8,
        },
        43..=45 if how.bound => Op::Bind(u8::from(rng.one_in(4))),
        46 if how.bound => Op::Unbind,
        47 => Op::Hold,
        48 | 49 => Op::Release,
        50..=52 if how.by_hand || rng.one_in(4) => Op::Begin,
        53..=55 => Op::Dismiss,
        56 | 57 => Op::Restart {
            binding: binding(rng, how),
        },
        58 => Op::Reset,
        59 => Op::Change,
        60 => Op::Preflight(vec![(called_ahead(rng), true)]),
        61 | 62 => Op::Expire,
        63 | 64 => Op::Silence,
        65..=67 => Op::Speak,
        68 => Op::Refuse,
        69..=71 => Op::Record,
        72 | 73 => Op::Stream { record },
        74..=77 => Op::Text { record },
        78..=87 => {
            let calls = (0..*rng.pick(&[1, 1, 1, 2, 3]))
                .map(|_| called(rng))
                .collect();
            Op::Calls { calls, record }
        }
        88..=94 => Op::Complete { record },
        95 => Op::Fail,
        96 => Op::Stop,
        97 => Op::Lose,
        98 => Op::Crash,
        _ => Op::Complete { record: true },
    }
}

impl Step {
    /// The same with less in it.
    #[must_use]
    pub fn simpler(&self) -> Vec<Self> {
        let mut out = Vec::new();
        let mut with = |op: Op, cut: Option<Cut>| out.push(Self { op, cut });
        if self.cut.is_some() {
            with(self.op.clone(), None);
        }
        match &self.op {
            Op::Accept {
                boxes,
                key,
                other,
                binding,
            } => {
                for at in 0..boxes.len() {
                    let mut fewer = boxes.clone();
                    fewer.remove(at);
                    if !fewer.is_empty() {
                        with(
                            Op::Accept {
                                boxes: fewer,
                                key: *key,
                                other: *other,
                                binding: *binding,
                            },
                            self.cut,
                        );
                    }
                }
                if *boxes != [Brought::System] {
                    let boxes = vec![Brought::System];
                    with(
                        Op::Accept {
                            boxes,
                            key: *key,
                            other: *other,
                            binding: *binding,
                        },
                        self.cut,
                    );
                }
                if key.is_some() {
                    with(
                        Op::Accept {
                            boxes: boxes.clone(),
                            key: None,
                            other: false,
                            binding: *binding,
                        },
                        self.cut,
                    );
                }
            }
            Op::Calls { calls, record } => {
                for at in 0..calls.len() {
                    let mut fewer = calls.clone();
                    fewer.remove(at);
                    if !fewer.is_empty() {
                        with(
                            Op::Calls {
                                calls: fewer,
                                record: *record,
                            },
                            self.cut,
                        );
                    }
                }
            }
            Op::Send {
                image: true,
                binding,
            } => with(
                Op::Send {
                    image: false,
                    binding: *binding,
                },
                self.cut,
            ),
            _ => {}
        }
        out
    }
}

impl How {
    /// The same, less of it set.
    #[must_use]
    pub fn simpler(self) -> Vec<Self> {
        let mut out = Vec::new();
        let mut without = |is: bool, how: Self| {
            if is {
                out.push(how);
            }
        };
        without(
            self.boxed,
            Self {
                boxed: false,
                ..self
            },
        );
        without(
            self.at_once,
            Self {
                at_once: false,
                ..self
            },
        );
        without(
            self.by_hand,
            Self {
                by_hand: false,
                ..self
            },
        );
        without(
            self.bound,
            Self {
                bound: false,
                ..self
            },
        );
        without(
            self.recovered_run,
            Self {
                recovered_run: false,
                ..self
            },
        );
        without(
            self.socket,
            Self {
                socket: false,
                ..self
            },
        );
        out
    }
}
