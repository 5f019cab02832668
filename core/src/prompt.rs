//! The durable life of one message of ours: whether it was accepted, whether it is to be cancelled,
//! whether its end has arrived with the application.
//!
//! A message is accepted by the server at most once: only `Prepared` may be sent, and nothing but
//! the proof that the server never recorded it leads back there.

use alloc::{boxed::Box, string::String, vec::Vec};
use core::time::Duration;

use serde::{Deserialize, Serialize};

use crate::{
    command::InputItem,
    durable::is_default,
    error::{Change, InvalidTransition},
    event::{EndSource, Outcome},
    id::{ConversationId, MessageId, TurnId, TurnNo, is_clean},
    json::{JsonKind, RawJson},
};

/// One message: a `turn/start` or a `turn/steer`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Prompt {
    /// What it is, fixed when it was made.
    pub fields: PromptFields,
    /// How often it has been prepared, from 1.
    #[serde(default = "first", skip_serializing_if = "is_first")]
    pub attempt: u32,
    /// Whether the server has it.
    pub state: PromptState,
    /// Whether its turn is to stop.
    #[serde(default, skip_serializing_if = "is_default")]
    pub cancellation: Cancellation,
    /// Whether its end has arrived.
    #[serde(default, skip_serializing_if = "is_default")]
    pub delivery: Delivery,
}

const fn first() -> u32 {
    1
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde asks by reference")]
const fn is_first(attempt: &u32) -> bool {
    *attempt == 1
}

/// What a message is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PromptFields {
    /// The conversation.
    pub conversation: ConversationId,
    /// The turn that it begins or is added to.
    pub turn: TurnNo,
    /// Whether it begins the turn or is added to it.
    pub kind: PromptKind,
    /// Which of the messages that are added to the turn it is, from 1; 0 for the one that begins it.
    #[serde(default, skip_serializing_if = "is_default")]
    pub place: u32,
    /// What the user says.
    pub input: Vec<InputItem>,
    /// The caller's own key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// The CRC-32 of what the caller said under it, where that is not what the message says.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub said: Option<u32>,
    /// The schema of the final answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output_schema: Option<RawJson>,
    /// How long the turn may take.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deadline: Option<Duration>,
    /// When that time is over.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until: Option<crate::time::Timestamp>,
}

/// Whether a message begins a turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PromptKind {
    /// It begins one (`turn/start`).
    Start,
    /// It is added to a running one (`turn/steer`).
    Steer,
}

/// The largest output schema, in bytes of JSON without white space.
pub const MAX_SCHEMA: usize = 64 << 10;

impl PromptFields {
    /// Checks what types cannot tell.
    ///
    /// # Errors
    ///
    /// In words, what is wrong.
    pub fn validate(&self) -> Result<(), String> {
        if self.input.is_empty() {
            return Err("no input".into());
        }
        if self.key.as_ref().is_some_and(|key| !is_clean(key)) {
            return Err("the key is empty or has white space at its ends".into());
        }
        if self.deadline == Some(Duration::ZERO) {
            return Err("the deadline is zero".into());
        }
        match &self.output_schema {
            Some(schema) if !is_schema(schema) => {
                Err("the output schema is not a non-empty object of at most 64 KiB".into())
            }
            _ => Ok(()),
        }
    }
}

/// Whether a value may be an output schema: an object with members, at most 64 KiB.
#[must_use]
pub fn is_schema(schema: &RawJson) -> bool {
    schema.kind() == JsonKind::Object
        && schema.compact_len() <= MAX_SCHEMA
        && schema
            .read::<crate::json::Members<'_>>()
            .is_ok_and(|m| !m.0.is_empty())
}

/// Whether the server has a message.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "snake_case")]
pub enum PromptState {
    /// Durable, and no frame of it has left.
    Prepared,
    /// A frame of it may have left.
    MayBeAccepted,
    /// The server has it, in this turn.
    Running {
        /// The turn.
        turn: TurnId,
        /// The last message of the agent that is complete.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        output: Option<String>,
    },
    /// What became of it is known, or that it cannot be known.
    Terminal {
        /// The turn, if the server had it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        turn: Option<TurnId>,
        /// What became of it.
        outcome: Outcome,
        /// Where that is known from.
        #[serde(default, skip_serializing_if = "is_default")]
        source: EndSource,
        /// The last message of the agent, where the outcome does not hold it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        output: Option<String>,
    },
}

/// Whether the turn of a message is to stop.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Cancellation {
    /// Nobody asked.
    #[default]
    NotRequested,
    /// Somebody asked; nothing has left.
    Requested,
    /// `turn/interrupt` may have left.
    Dispatching,
    /// The turn has ended after it was asked to.
    Settled,
    /// `turn/interrupt` left and its fate is not known.
    Ambiguous,
    /// The turn ended before the interrupt left.
    Unnecessary,
}

/// Whether the end of a message has arrived with the application.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Delivery {
    /// There is no end yet.
    #[default]
    Waiting,
    /// It was told and not acknowledged.
    Delivering,
    /// It was acknowledged.
    Delivered,
    /// The deadline came first and was told as the end.
    TimedOut,
    /// Nobody waits any more.
    Lost,
}

/// A change of a message.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "snake_case")]
pub enum PromptChange {
    /// It was made.
    Prepared(Box<PromptFields>),
    /// A frame of it may leave from now on.
    Dispatched,
    /// The server has it.
    Accepted {
        /// In this turn.
        turn: TurnId,
    },
    /// A message of the agent is complete.
    Output {
        /// Its text.
        text: String,
    },
    /// Recovery proved that the server never recorded it.
    Unrecorded,
    /// What became of it is known.
    Ended {
        /// That.
        outcome: Outcome,
        /// Where it is known from.
        #[serde(default, skip_serializing_if = "is_default")]
        source: EndSource,
        /// Whether its turn was interrupted before the message was recorded: the server does not
        /// have it.
        #[serde(default, skip_serializing_if = "is_default")]
        unrecorded: bool,
    },
    /// Somebody wants its turn to stop.
    CancelRequested,
    /// `turn/interrupt` may leave from now on.
    CancelDispatched {
        /// For this turn.
        turn: TurnId,
    },
    /// The interrupt did its work.
    CancelSettled,
    /// No answer came to the interrupt.
    CancelAmbiguous,
    /// Its end is told.
    Delivering,
    /// Its end has arrived.
    Delivered,
    /// Its deadline came first.
    TimedOut,
    /// Nobody waits any more.
    Forsaken,
    /// A new life of ours began: what only the one before it knew is forgotten. Never written, since
    /// the record of the start says it for all messages.
    #[serde(skip)]
    Restarted,
}

impl PromptChange {
    const fn name(&self) -> &'static str {
        match self {
            Self::Prepared(_) => "prepared",
            Self::Dispatched => "dispatched",
            Self::Accepted { .. } => "accepted",
            Self::Output { .. } => "output",
            Self::Unrecorded => "unrecorded",
            Self::Ended { .. } => "ended",
            Self::CancelRequested => "cancel_requested",
            Self::CancelDispatched { .. } => "cancel_dispatched",
            Self::CancelSettled => "cancel_settled",
            Self::CancelAmbiguous => "cancel_ambiguous",
            Self::Delivering => "delivering",
            Self::Delivered => "delivered",
            Self::TimedOut => "timed_out",
            Self::Forsaken => "forsaken",
            Self::Restarted => "restarted",
        }
    }
}

impl PromptState {
    /// The state's name.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Prepared => "Prepared",
            Self::MayBeAccepted => "MayBeAccepted",
            Self::Running { .. } => "Running",
            Self::Terminal { .. } => "Terminal",
        }
    }

    /// The last message of the agent that is complete.
    #[must_use]
    pub fn output(&self) -> Option<&str> {
        match self {
            Self::Prepared | Self::MayBeAccepted => None,
            Self::Running { output, .. } => output.as_deref(),
            Self::Terminal {
                outcome, output, ..
            } => output.as_deref().or_else(|| said(outcome)),
        }
    }

    fn ended(
        turn: Option<&TurnId>,
        outcome: &Outcome,
        source: EndSource,
        output: Option<&String>,
    ) -> Self {
        Self::Terminal {
            turn: turn.cloned(),
            outcome: outcome.clone(),
            source,
            // The same text is kept once.
            output: output
                .filter(|output| said(outcome) != Some(output.as_str()))
                .cloned(),
        }
    }

    /// Takes a change. Unchanged on error.
    ///
    /// # Errors
    ///
    /// The state does not take the change.
    pub fn on(&mut self, change: &PromptChange) -> Result<Change, InvalidTransition> {
        use PromptChange as C;
        let invalid = InvalidTransition {
            machine: "prompt",
            state: self.name(),
            event: change.name(),
        };
        let next = match (&*self, change) {
            (Self::Prepared, C::Dispatched) => Self::MayBeAccepted,
            (Self::MayBeAccepted, C::Accepted { turn }) => Self::Running {
                turn: turn.clone(),
                output: None,
            },
            (Self::Running { turn, .. }, C::Accepted { turn: same }) if turn == same => {
                return Ok(Change::NoOp);
            }
            (
                Self::Terminal {
                    turn: Some(turn), ..
                },
                C::Accepted { turn: same },
            ) if turn == same => {
                return Ok(Change::NoOp);
            }
            (Self::Running { turn, .. }, C::Output { text }) => Self::Running {
                turn: turn.clone(),
                output: Some(text.clone()),
            },
            (Self::MayBeAccepted | Self::Running { .. }, C::Unrecorded) => Self::Prepared,
            (
                Self::Prepared,
                C::Ended {
                    outcome, source, ..
                },
            ) => match outcome {
                // Nothing has left: nothing can have been accepted.
                Outcome::Rejected { .. } | Outcome::Interrupted => {
                    Self::ended(None, outcome, *source, None)
                }
                Outcome::Completed { .. }
                | Outcome::Failed { .. }
                | Outcome::TimedOut
                | Outcome::Lost { .. }
                | Outcome::Unknown { .. } => return Err(invalid),
            },
            (
                Self::MayBeAccepted,
                C::Ended {
                    outcome, source, ..
                },
            ) => match outcome {
                Outcome::Rejected { .. }
                | Outcome::Interrupted
                | Outcome::Failed { .. }
                | Outcome::Lost { .. }
                | Outcome::Unknown { .. } => Self::ended(None, outcome, *source, None),
                Outcome::Completed { .. } | Outcome::TimedOut => return Err(invalid),
            },
            (
                Self::Running { turn, output },
                C::Ended {
                    outcome, source, ..
                },
            ) => match outcome {
                Outcome::Completed { .. }
                | Outcome::Interrupted
                | Outcome::Failed { .. }
                | Outcome::Lost { .. }
                | Outcome::Unknown { .. } => {
                    Self::ended(Some(turn), outcome, *source, output.as_ref())
                }
                Outcome::Rejected { .. } | Outcome::TimedOut => return Err(invalid),
            },
            (Self::Terminal { outcome: had, .. }, C::Ended { outcome, .. }) if had == outcome => {
                return Ok(Change::NoOp);
            }
            (
                Self::Terminal {
                    turn,
                    outcome: Outcome::Unknown { .. },
                    output,
                    ..
                },
                C::Ended {
                    outcome, source, ..
                },
            ) => match outcome {
                // What a turn took was not rejected.
                Outcome::Rejected { .. } if turn.is_some() => return Err(invalid),
                Outcome::Rejected { .. }
                | Outcome::Completed { .. }
                | Outcome::Interrupted
                | Outcome::Failed { .. } => {
                    Self::ended(turn.as_ref(), outcome, *source, output.as_ref())
                }
                // These know no more than before.
                Outcome::Unknown { .. } | Outcome::Lost { .. } | Outcome::TimedOut => {
                    return Err(invalid);
                }
            },
            (
                Self::Prepared | Self::MayBeAccepted | Self::Running { .. } | Self::Terminal { .. },
                C::Prepared(_)
                | C::Dispatched
                | C::Accepted { .. }
                | C::Output { .. }
                | C::Unrecorded
                | C::Ended { .. }
                | C::CancelRequested
                | C::CancelDispatched { .. }
                | C::CancelSettled
                | C::CancelAmbiguous
                | C::Delivering
                | C::Delivered
                | C::TimedOut
                | C::Forsaken
                | C::Restarted,
            ) => return Err(invalid),
        };
        *self = next;
        Ok(Change::Applied)
    }
}

/// The text that an outcome holds.
fn said(outcome: &Outcome) -> Option<&str> {
    match outcome {
        Outcome::Completed { text, .. } => text.as_deref(),
        Outcome::Interrupted
        | Outcome::Failed { .. }
        | Outcome::Rejected { .. }
        | Outcome::TimedOut
        | Outcome::Lost { .. }
        | Outcome::Unknown { .. } => None,
    }
}

impl Cancellation {
    /// The state's name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::NotRequested => "NotRequested",
            Self::Requested => "Requested",
            Self::Dispatching => "Dispatching",
            Self::Settled => "Settled",
            Self::Ambiguous => "Ambiguous",
            Self::Unnecessary => "Unnecessary",
        }
    }

    /// Whether an interrupt is wanted and its fate open.
    #[must_use]
    pub const fn is_open(self) -> bool {
        matches!(self, Self::Requested | Self::Dispatching | Self::Ambiguous)
    }

    /// Takes a change; the end of the message is one.
    ///
    /// # Errors
    ///
    /// The state does not take the change.
    pub fn on(&mut self, change: &PromptChange) -> Result<Change, InvalidTransition> {
        use PromptChange as C;
        let next = match (*self, change) {
            (Self::NotRequested, C::CancelRequested | C::TimedOut) => Self::Requested,
            (
                Self::Requested
                | Self::Dispatching
                | Self::Settled
                | Self::Ambiguous
                | Self::Unnecessary,
                C::CancelRequested | C::TimedOut,
            ) => return Ok(Change::NoOp),
            (Self::Requested, C::CancelDispatched { .. }) => Self::Dispatching,
            (Self::Ambiguous, C::CancelDispatched { .. }) => Self::Dispatching,
            (Self::Dispatching | Self::Ambiguous, C::CancelSettled) => Self::Settled,
            (Self::Settled, C::CancelSettled) => return Ok(Change::NoOp),
            (Self::Dispatching, C::CancelAmbiguous) => Self::Ambiguous,
            (Self::Ambiguous, C::CancelAmbiguous) => return Ok(Change::NoOp),
            (Self::Requested, C::Ended { .. }) => Self::Unnecessary,
            (Self::Dispatching | Self::Ambiguous, C::Ended { .. }) => Self::Settled,
            (Self::NotRequested | Self::Settled | Self::Unnecessary, C::Ended { .. }) => {
                return Ok(Change::NoOp);
            }
            // What was to stop was never there; the next attempt is to stop all the same.
            (Self::Dispatching | Self::Ambiguous | Self::Settled, C::Unrecorded) => Self::Requested,
            // The answer, if one comes, comes to nobody.
            (Self::Dispatching, C::Restarted) => Self::Ambiguous,
            (_, C::CancelDispatched { .. } | C::CancelSettled | C::CancelAmbiguous) => {
                return Err(InvalidTransition {
                    machine: "prompt cancellation",
                    state: self.name(),
                    event: change.name(),
                });
            }
            (
                _,
                C::Prepared(_)
                | C::Dispatched
                | C::Accepted { .. }
                | C::Output { .. }
                | C::Unrecorded
                | C::Delivering
                | C::Delivered
                | C::Forsaken
                | C::Restarted,
            ) => return Ok(Change::NoOp),
        };
        *self = next;
        Ok(Change::Applied)
    }
}

impl Delivery {
    /// The state's name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Waiting => "Waiting",
            Self::Delivering => "Delivering",
            Self::Delivered => "Delivered",
            Self::TimedOut => "TimedOut",
            Self::Lost => "Lost",
        }
    }

    /// Whether nothing changes it any more.
    #[must_use]
    pub const fn is_final(self) -> bool {
        matches!(self, Self::Delivered | Self::TimedOut | Self::Lost)
    }

    /// Takes a change.
    ///
    /// # Errors
    ///
    /// The state does not take the change.
    pub fn on(&mut self, change: &PromptChange) -> Result<Change, InvalidTransition> {
        use PromptChange as C;
        let next = match (*self, change) {
            (Self::Waiting, C::Delivering) => Self::Delivering,
            (Self::Delivering, C::Delivering) => return Ok(Change::NoOp),
            (Self::Delivering, C::Delivered) => Self::Delivered,
            (Self::Delivered, C::Delivered) => return Ok(Change::NoOp),
            (Self::Waiting, C::TimedOut) => Self::TimedOut,
            (Self::TimedOut, C::TimedOut | C::Delivered) => return Ok(Change::NoOp),
            (Self::Waiting | Self::Delivering, C::Forsaken) => Self::Lost,
            // Told, and perhaps not taken: it is told again.
            (Self::Delivering, C::Restarted) => Self::Waiting,
            (Self::Lost | Self::Delivered | Self::TimedOut, C::Forsaken) => {
                return Ok(Change::NoOp);
            }
            (_, C::Delivering | C::Delivered | C::TimedOut) => {
                return Err(InvalidTransition {
                    machine: "prompt delivery",
                    state: self.name(),
                    event: change.name(),
                });
            }
            (
                _,
                C::Prepared(_)
                | C::Dispatched
                | C::Accepted { .. }
                | C::Output { .. }
                | C::Unrecorded
                | C::Ended { .. }
                | C::CancelRequested
                | C::CancelDispatched { .. }
                | C::CancelSettled
                | C::CancelAmbiguous
                | C::Restarted,
            ) => return Ok(Change::NoOp),
        };
        *self = next;
        Ok(Change::Applied)
    }
}

impl Prompt {
    /// A message that no frame has left of.
    #[must_use]
    pub fn new(fields: PromptFields) -> Self {
        Self {
            fields,
            attempt: 1,
            state: PromptState::Prepared,
            cancellation: Cancellation::NotRequested,
            delivery: Delivery::Waiting,
        }
    }

    /// Takes a change. Unchanged on error.
    ///
    /// # Errors
    ///
    /// A part does not take the change, or the parts would contradict each other.
    pub fn on(&mut self, change: &PromptChange) -> Result<Change, InvalidTransition> {
        let before = (self.attempt, self.cancellation, self.delivery);
        let state = self.state.clone();
        let changed = self.take(change).and_then(|changed| match self.validate() {
            Ok(()) => Ok(changed),
            Err(_) => Err(InvalidTransition {
                machine: "prompt",
                state: state.name(),
                event: change.name(),
            }),
        });
        if changed.is_err() {
            (self.attempt, self.cancellation, self.delivery) = before;
            self.state = state;
        }
        changed
    }

    fn take(&mut self, change: &PromptChange) -> Result<Change, InvalidTransition> {
        use PromptChange as C;
        let terminal = matches!(self.state, PromptState::Terminal { .. });
        match change {
            C::Prepared(_) | C::Dispatched | C::Accepted { .. } | C::Output { .. } => {
                self.state.on(change)
            }
            C::Unrecorded => {
                let next = self.attempt.checked_add(1);
                self.attempt = next.ok_or_else(|| self.invalid(change))?;
                self.cancellation.on(change)?;
                self.state.on(change)
            }
            C::Ended { .. } => {
                self.cancellation.on(change)?;
                self.state.on(change)
            }
            C::CancelDispatched { turn } => match &self.state {
                PromptState::Running { turn: running, .. } if running == turn => {
                    self.cancellation.on(change)
                }
                PromptState::Prepared
                | PromptState::MayBeAccepted
                | PromptState::Running { .. }
                | PromptState::Terminal { .. } => Err(self.invalid(change)),
            },
            // What has ended need not be stopped.
            C::CancelRequested if terminal => Ok(Change::NoOp),
            C::CancelRequested | C::CancelSettled | C::CancelAmbiguous => {
                self.cancellation.on(change)
            }
            // What ended first did not time out.
            C::TimedOut if terminal && self.delivery != Delivery::TimedOut => {
                Err(self.invalid(change))
            }
            C::TimedOut => {
                if !terminal {
                    self.cancellation.on(change)?;
                }
                self.delivery.on(change)
            }
            C::Delivering | C::Delivered | C::Forsaken => self.delivery.on(change),
            C::Restarted => {
                let stops = self.cancellation.on(change)?;
                match self.delivery.on(change)? {
                    Change::Applied => Ok(Change::Applied),
                    Change::NoOp => Ok(stops),
                }
            }
        }
    }

    fn invalid(&self, change: &PromptChange) -> InvalidTransition {
        InvalidTransition {
            machine: "prompt",
            state: self.state.name(),
            event: change.name(),
        }
    }

    /// Checks that the parts do not contradict each other.
    ///
    /// # Errors
    ///
    /// In words, which do.
    pub fn validate(&self) -> Result<(), &'static str> {
        use Cancellation as K;
        if self.attempt == 0 {
            return Err("attempts are counted from 1");
        }
        match &self.state {
            PromptState::Prepared | PromptState::MayBeAccepted
                if matches!(
                    self.cancellation,
                    K::Dispatching | K::Ambiguous | K::Settled | K::Unnecessary
                ) =>
            {
                Err("a cancellation was dispatched or settled before the message was accepted")
            }
            PromptState::Running { .. } if self.cancellation == K::Unnecessary => {
                Err("a running turn has an unnecessary cancellation")
            }
            PromptState::Terminal { .. } if self.cancellation.is_open() => {
                Err("an ended message has an open cancellation")
            }
            PromptState::Terminal {
                turn: Some(_),
                outcome: Outcome::Rejected { .. },
                ..
            } => Err("a message that a turn took was rejected"),
            PromptState::Terminal {
                outcome: Outcome::TimedOut,
                ..
            } => Err("the deadline is told and is no outcome"),
            PromptState::Terminal {
                outcome: Outcome::Completed { structured, .. },
                ..
            } if structured.is_some() != self.fields.output_schema.is_some() => {
                Err("structured output and schema do not go together")
            }
            PromptState::Prepared | PromptState::MayBeAccepted | PromptState::Running { .. }
                if matches!(self.delivery, Delivery::Delivering | Delivery::Delivered) =>
            {
                Err("an end was delivered before there is one")
            }
            PromptState::Prepared | PromptState::MayBeAccepted | PromptState::Running { .. }
                if self.delivery == Delivery::TimedOut && self.cancellation == K::NotRequested =>
            {
                Err("a message timed out and is neither terminal nor cancelled")
            }
            PromptState::Prepared
            | PromptState::MayBeAccepted
            | PromptState::Running { .. }
            | PromptState::Terminal { .. } => Ok(()),
        }
    }

    /// Whether nothing of it can change any more: then it leaves the durable state.
    #[must_use]
    pub fn is_at_rest(&self) -> bool {
        matches!(self.state, PromptState::Terminal { .. })
            && !self.cancellation.is_open()
            && self.delivery.is_final()
    }

    /// Whether an id has the form of those that messages of ours have.
    pub(crate) fn is_id(id: &str) -> bool {
        let digits = |hex: &str| hex.len() == 32 && crate::id::parse_hex(hex).is_some();
        id.strip_prefix("msg_").is_some_and(digits)
    }

    /// The id that it is named by on the wire, made of 128 bits of chance.
    pub(crate) fn message_id(high: u64, low: u64) -> MessageId {
        MessageId::new(&alloc::format!("msg_{high:016x}{low:016x}"))
            .expect("a message id is not empty and has no white space")
    }
}
