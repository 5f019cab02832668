//! The round of a conversation: one stretch of model work, served by one turn of ours.
//!
//! A round is begun with the boxes that the thread does not hold, is staged whenever the model acts,
//! steered where something waits for the model, and ends completed, or stalled. Its job is the number
//! of its turn: never used again, also not in a later life.

use alloc::{boxed::Box, string::String, vec::Vec};
use core::time::Duration;

use serde::{Deserialize, Serialize};

use crate::{
    durable::is_default,
    error::{Change, InvalidTransition},
    event::MalformedCall,
    id::{BoxId, CallId, MessageId, TurnNo},
    json::RawJson,
    settings::ToolDelivery,
    transcript::BoxSet,
};

/// How far a conversation's round is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "snake_case")]
pub enum Round {
    /// There is none.
    #[default]
    Idle,
    /// The model works, or is about to.
    Generating(Box<OpenRound>),
    /// The model works, and a flush is made of which the server has not said yes or no.
    Steering {
        /// The round.
        round: Box<OpenRound>,
        /// The message of the flush: its token.
        flush: MessageId,
    },
    /// It failed, and nothing begins until the application has said how to go on.
    Stalled(Box<Stall>),
}

/// A round that is open.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OpenRound {
    /// Its job: the turn that serves it.
    pub turn: TurnNo,
    /// The message that began it.
    pub message: MessageId,
    /// How many stages it had.
    #[serde(default, skip_serializing_if = "is_default")]
    pub stages: u32,
    /// Whether a call or a message of the model stands in it.
    #[serde(default, skip_serializing_if = "is_default")]
    pub acted: bool,
    /// How many complete messages of the agent are in its stages.
    #[serde(default, skip_serializing_if = "is_default")]
    pub answers: u32,
    /// How much of the message that streamed stands in its stages.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cut: Option<Cut>,
    /// Whether a stage since the last flush left a Tool Call unsubmitted.
    #[serde(default, skip_serializing_if = "is_default")]
    pub owes: bool,
    /// The native calls that were messages: they have no number.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub messages: Vec<CallId>,
}

/// The beginning of a message of the agent that stands in a stage, told by its length and its sum: the
/// history may say the message whole, or not at all.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Cut {
    /// Its bytes.
    pub bytes: u32,
    /// Its CRC-32.
    pub crc: u32,
}

impl Cut {
    /// That of a text.
    #[must_use]
    pub fn of(text: &str) -> Option<Self> {
        let bytes = u32::try_from(text.len()).ok().filter(|bytes| *bytes > 0)?;
        let crc = crc32fast::hash(text.as_bytes());
        Some(Self { bytes, crc })
    }

    /// What follows it in a text that begins with it.
    #[must_use]
    pub fn rest(self, text: &str) -> Option<&str> {
        let (begin, rest) = text.split_at_checked(self.bytes as usize)?;
        (crc32fast::hash(begin.as_bytes()) == self.crc).then_some(rest)
    }
}

/// A round that failed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Stall {
    /// The turn that served it.
    pub turn: TurnNo,
    /// The message that began it.
    pub prompt: MessageId,
    /// Why it failed, in words.
    pub message: String,
    /// Whether it may be begun again: its message was certainly not accepted, and the model did
    /// nothing.
    pub restartable: bool,
    /// Whether a call or a message of the model stands in it.
    #[serde(default, skip_serializing_if = "is_default")]
    pub acted: bool,
    /// What the agent had said since the last stage; absent where its message was never accepted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
    /// What its message was sent with, where it may be begun again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wishes: Option<Box<Wishes>>,
}

/// What a message is sent with, beside what it says.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Wishes {
    /// The caller's own key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// The CRC-32 of what the caller said under it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub said: Option<u32>,
    /// The schema of the final answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output_schema: Option<RawJson>,
    /// How long the turn may take.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deadline: Option<Duration>,
}

/// A change of a round.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "snake_case")]
pub enum RoundChange {
    /// It begins, with these boxes.
    Begun {
        /// The turn that serves it.
        turn: TurnNo,
        /// The message that carries the boxes.
        message: MessageId,
        /// Every box that the thread does not hold.
        boxes: BoxSet,
    },
    /// A stalled one begins again under a fresh job.
    Restarted {
        /// The turn that serves it.
        turn: TurnNo,
        /// The message that carries the boxes.
        message: MessageId,
        /// Every box that the thread does not hold.
        boxes: BoxSet,
    },
    /// The model acted, or a message is to reach it: what it said so far, then what it did.
    Staged {
        /// The turn.
        turn: TurnNo,
        /// The text since the last stage, perhaps empty.
        #[serde(default, skip_serializing_if = "String::is_empty")]
        response: String,
        /// How many complete messages of the agent the turn had so far.
        #[serde(default, skip_serializing_if = "is_default")]
        answers: u32,
        /// How much of the message that streams is in the stages so far.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        cut: Option<Cut>,
        /// What it did, in order.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        actions: Vec<Action>,
    },
    /// The mailbox goes into the transcript, and all that the thread does not hold is to be steered
    /// into the turn.
    Flushed {
        /// The turn.
        turn: TurnNo,
        /// The message that carries the boxes: the token.
        message: MessageId,
        /// Every box that the thread does not hold.
        boxes: BoxSet,
    },
    /// The server said yes or no to a flush. Never written: the message's own record says it.
    #[serde(skip)]
    FlushAnswered {
        /// The token.
        message: MessageId,
    },
    /// The server said neither yes nor no to a flush within the limit: the history tells once the
    /// turn is over.
    FlushGivenUp {
        /// The token.
        message: MessageId,
    },
    /// The turn is over: the rest of the text, then the mailbox.
    Completed {
        /// The turn.
        turn: TurnNo,
        /// The text since the last stage, perhaps empty.
        #[serde(default, skip_serializing_if = "String::is_empty")]
        text: String,
        /// Whether another round follows.
        #[serde(default, skip_serializing_if = "is_default")]
        resume: bool,
        /// The last box then.
        after: BoxId,
    },
    /// The turn is over, and not well.
    Failed {
        /// The turn.
        turn: TurnNo,
        /// Why, in words.
        message: String,
        /// Whether the round may be begun again.
        #[serde(default, skip_serializing_if = "is_default")]
        restartable: bool,
        /// The text since the last stage, where the message was perhaps accepted.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        text: Option<String>,
    },
    /// The application leaves a stall.
    Dismissed,
}

/// What the model did in a stage.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "snake_case")]
pub enum Action {
    /// It called a tool.
    Call(Box<StagedCall>),
    /// It sent a message through a tool of that kind.
    Message {
        /// The server's name for the call.
        native: CallId,
        /// What it said.
        text: String,
    },
}

/// A call in a stage. A well-formed one is launched with it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StagedCall {
    /// Its number among the conversation's calls.
    pub sequence: u64,
    /// The server's name for it.
    pub native: CallId,
    /// The tool as it is recorded: the inner one of a router, the attempted one of a malformed call.
    pub tool: String,
    /// The native tool, where it is another.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub via: Option<String>,
    /// The arguments, canonical.
    pub arguments: RawJson,
    /// How its result reaches the model.
    #[serde(default, skip_serializing_if = "is_default")]
    pub delivery: ToolDelivery,
    /// What is wrong with it, if anything is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub malformed: Option<Box<MalformedCall>>,
}

impl RoundChange {
    /// The change's name.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Begun { .. } => "begun",
            Self::Restarted { .. } => "restarted",
            Self::Staged { .. } => "staged",
            Self::Flushed { .. } => "flushed",
            Self::FlushAnswered { .. } => "flush_answered",
            Self::FlushGivenUp { .. } => "flush_given_up",
            Self::Completed { .. } => "completed",
            Self::Failed { .. } => "failed",
            Self::Dismissed => "dismissed",
        }
    }
}

impl OpenRound {
    fn new(turn: TurnNo, message: MessageId) -> Self {
        Self {
            turn,
            message,
            stages: 0,
            acted: false,
            answers: 0,
            cut: None,
            owes: false,
            messages: Vec::new(),
        }
    }

    fn stage(&mut self, answers: u32, cut: Option<Cut>, actions: &[Action]) {
        self.stages = self.stages.saturating_add(1);
        self.answers = answers;
        self.cut = cut;
        self.acted |= !actions.is_empty();
        for action in actions {
            match action {
                Action::Call(call) => {
                    self.owes |= call.delivery == ToolDelivery::Deferred;
                }
                Action::Message { native, .. } => self.messages.push(native.clone()),
            }
        }
    }
}

impl Round {
    /// The state's name.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Idle => "Idle",
            Self::Generating(_) => "Generating",
            Self::Steering { .. } => "Steering",
            Self::Stalled(_) => "Stalled",
        }
    }

    /// The round, while it is open.
    #[must_use]
    pub fn open(&self) -> Option<&OpenRound> {
        match self {
            Self::Generating(round) | Self::Steering { round, .. } => Some(round),
            Self::Idle | Self::Stalled(_) => None,
        }
    }

    /// The stall, if it is stalled.
    #[must_use]
    pub fn stall(&self) -> Option<&Stall> {
        match self {
            Self::Stalled(stall) => Some(stall),
            Self::Idle | Self::Generating(_) | Self::Steering { .. } => None,
        }
    }

    /// Whether no round is open and none is stalled.
    #[must_use]
    pub const fn is_idle(&self) -> bool {
        matches!(self, Self::Idle)
    }

    /// Takes a change. Unchanged on error.
    ///
    /// # Errors
    ///
    /// The state does not take the change: another job, a foreign token, a stage outside a
    /// generation or while a flush is unanswered, an end with a flush that was not answered.
    pub fn on(&mut self, change: &RoundChange) -> Result<Change, InvalidTransition> {
        use RoundChange as C;
        if let (
            Self::Generating(round),
            C::Staged {
                turn,
                answers,
                cut,
                actions,
                ..
            },
        ) = (&mut *self, change)
        {
            // In place: a round may have many stages.
            if round.turn == *turn && *answers >= round.answers {
                round.stage(*answers, *cut, actions);
                return Ok(Change::Applied);
            }
        }
        let next = match (&*self, change) {
            (Self::Idle, C::Begun { turn, message, .. }) => {
                Self::Generating(OpenRound::new(*turn, message.clone()).into())
            }
            (Self::Stalled(stall), C::Restarted { turn, message, .. })
                if stall.restartable && *turn > stall.turn =>
            {
                Self::Generating(OpenRound::new(*turn, message.clone()).into())
            }
            (Self::Generating(round), C::Flushed { turn, message, .. })
                if round.turn == *turn && round.stages > 0 =>
            {
                let mut round = round.clone();
                round.owes = false;
                Self::Steering {
                    round,
                    flush: message.clone(),
                }
            }
            (
                Self::Steering { round, flush },
                C::FlushAnswered { message } | C::FlushGivenUp { message },
            ) if flush == message => Self::Generating(round.clone()),
            (Self::Generating(round), C::Completed { turn, .. }) if round.turn == *turn => {
                Self::Idle
            }
            (
                Self::Generating(round) | Self::Steering { round, .. },
                C::Failed {
                    turn,
                    message,
                    restartable,
                    text,
                },
            ) if round.turn == *turn && !(*restartable && round.stages > 0) => {
                Self::Stalled(Box::new(Stall {
                    turn: *turn,
                    prompt: round.message.clone(),
                    message: message.clone(),
                    restartable: *restartable,
                    acted: round.acted,
                    text: text.clone(),
                    wishes: None,
                }))
            }
            (Self::Stalled(_), C::Dismissed) => Self::Idle,
            (
                Self::Idle | Self::Generating(_) | Self::Steering { .. } | Self::Stalled(_),
                C::Begun { .. }
                | C::Restarted { .. }
                | C::Staged { .. }
                | C::Flushed { .. }
                | C::FlushAnswered { .. }
                | C::FlushGivenUp { .. }
                | C::Completed { .. }
                | C::Failed { .. }
                | C::Dismissed,
            ) => {
                return Err(InvalidTransition {
                    machine: "round",
                    state: self.name(),
                    event: change.name(),
                });
            }
        };
        *self = next;
        Ok(Change::Applied)
    }
}
