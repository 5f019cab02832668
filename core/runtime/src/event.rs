//! What streams hand out, and how it waits in their queues.

use turnkeep_core::{
    Delta, Event, RawJson, TurnNo, TurnUpdate,
    event::{self, ConnectionEvent, ConversationUpdate, Item, Warning},
};

use crate::queue::Waiting;

/// What a turn tells, one thing at a time.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum TurnEvent {
    /// A piece of streamed text. What waited unread has grown into pieces of up to 64 KiB.
    Delta(Delta),
    /// Anything else. [`TurnUpdate::Ended`] is the last.
    Update(TurnUpdate),
}

/// What a conversation tells, one thing at a time: all of its turns, and itself.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ConversationEvent {
    /// A piece of streamed text of a turn.
    Delta(Delta),
    /// Anything else about a turn.
    Turn {
        /// The turn.
        turn: TurnNo,
        /// What.
        update: TurnUpdate,
    },
    /// Something about the conversation.
    Conversation(ConversationUpdate),
}

impl TurnEvent {
    pub(crate) fn of(event: Event) -> Option<Self> {
        match event {
            Event::Delta(delta) => Some(Self::Delta(delta)),
            Event::Turn(event) => Some(Self::Update(event.update)),
            Event::Conversation(_)
            | Event::Connection(_)
            | Event::Answer { .. }
            | Event::Halted => None,
        }
    }
}

impl ConversationEvent {
    pub(crate) fn of(event: Event) -> Option<Self> {
        match event {
            Event::Delta(delta) => Some(Self::Delta(delta)),
            Event::Turn(event) => Some(Self::Turn {
                turn: event.turn,
                update: event.update,
            }),
            Event::Conversation(event) => Some(Self::Conversation(event.update)),
            Event::Connection(_) | Event::Answer { .. } | Event::Halted => None,
        }
    }
}

impl Waiting for Event {
    fn weight(&self) -> usize {
        // What the event is made of beside its texts.
        const SELF: usize = 96;
        SELF + match self {
            Self::Delta(delta) => delta.text.len(),
            Self::Turn(event) => update_weight(&event.update),
            Self::Conversation(event) => match &event.update {
                ConversationUpdate::ThreadStatus(raw) => raw.get().len(),
                ConversationUpdate::PreflightCall { call, .. }
                | ConversationUpdate::ChildCall { call, .. } => call.arguments.get().len(),
                ConversationUpdate::Unrecognized(frame) => raw_weight(frame.params.as_ref()),
                ConversationUpdate::ChildFrame { params, .. } => raw_weight(params.as_ref()),
                ConversationUpdate::ChildQuestion { question, .. } => question.raw.get().len(),
                _ => 0,
            },
            Self::Connection(_) | Self::Answer { .. } | Self::Halted => 0,
        }
    }

    fn absorb(&mut self, next: Self, most: usize) -> Option<Self> {
        match (self, next) {
            (Self::Delta(run), Self::Delta(next))
                if run.text.len() + next.text.len() <= most
                    && run.item == next.item
                    && run.kind == next.kind
                    && run.part == next.part
                    && run.turn == next.turn =>
            {
                run.text.push_str(&next.text);
                run.frames = run.frames.saturating_add(next.frames);
                None
            }
            (_, next) => Some(next),
        }
    }

    fn lagged(next: &Self, merged: u64, dropped: u64) -> Option<Self> {
        let warning = Warning::Lagged { merged, dropped };
        let of_turn = |conversation, turn| {
            let update = TurnUpdate::Warning(warning.clone());
            Self::Turn(Box::new(event::TurnEvent {
                conversation,
                turn,
                update,
            }))
        };
        Some(match next {
            Self::Delta(delta) => of_turn(delta.conversation, delta.turn),
            Self::Turn(event) => of_turn(event.conversation, event.turn),
            Self::Conversation(event) => Self::Conversation(Box::new(event::ConversationEvent {
                conversation: event.conversation,
                update: ConversationUpdate::Warning(warning),
            })),
            Self::Connection(_) => Self::Connection(Box::new(ConnectionEvent::Warning(warning))),
            Self::Answer { .. } | Self::Halted => return None,
        })
    }

    fn can_be_spared(&self) -> bool {
        matches!(self, Self::Conversation(event) if matches!(
            event.update,
            ConversationUpdate::ThreadStatus(_)
                | ConversationUpdate::ChildFrame { .. }
                | ConversationUpdate::Unrecognized(_)
        ))
    }

    fn outlives_its_reader(&self) -> bool {
        match self {
            Self::Turn(event) => matches!(
                event.update,
                TurnUpdate::ToolCall(_)
                    | TurnUpdate::Question(_)
                    | TurnUpdate::Suspended { .. }
                    | TurnUpdate::Resumed
                    | TurnUpdate::Resent
                    | TurnUpdate::Ended(_)
            ),
            Self::Connection(event) => matches!(
                **event,
                ConnectionEvent::Ready { .. }
                    | ConnectionEvent::Unfit
                    | ConnectionEvent::Recovered(_)
                    | ConnectionEvent::Lost { .. }
                    | ConnectionEvent::Ended(_)
            ),
            Self::Delta(_) | Self::Conversation(_) | Self::Answer { .. } | Self::Halted => false,
        }
    }

    fn stays_open(&self) -> bool {
        match self {
            Self::Turn(event) => matches!(
                event.update,
                TurnUpdate::ToolCall(_) | TurnUpdate::Question(_)
            ),
            _ => false,
        }
    }

    fn settles(&self, earlier: &Self) -> bool {
        let (Self::Turn(now), Self::Turn(then)) = (self, earlier) else {
            return false;
        };
        match (&now.update, &then.update) {
            (TurnUpdate::CallClosed { call, .. }, TurnUpdate::ToolCall(open)) => open.id == *call,
            (TurnUpdate::QuestionClosed { question, .. }, TurnUpdate::Question(open)) => {
                open.id == *question
            }
            // Whoever takes the turn up later is told how it stands, not each time it stood so.
            (
                TurnUpdate::Suspended { .. } | TurnUpdate::Resumed | TurnUpdate::Resent,
                TurnUpdate::Suspended { .. } | TurnUpdate::Resumed,
            )
            | (TurnUpdate::Resent, TurnUpdate::Resent) => true,
            _ => false,
        }
    }
}

fn update_weight(update: &TurnUpdate) -> usize {
    let item = |item: &Item| item.raw.get().len() + item.text.as_ref().map_or(0, String::len);
    match update {
        TurnUpdate::ItemStarted(i) | TurnUpdate::ItemCompleted(i) => item(i),
        TurnUpdate::Plan(raw) => raw.get().len(),
        TurnUpdate::Diff(text) | TurnUpdate::AgentMessage { text, .. } => text.len(),
        TurnUpdate::ToolCall(call) => call.arguments.get().len(),
        TurnUpdate::MalformedCall(call) => call.arguments.len(),
        TurnUpdate::Question(question) | TurnUpdate::QuestionDeclined(question) => {
            question.raw.get().len()
        }
        TurnUpdate::Unrecognized(frame) => raw_weight(frame.params.as_ref()),
        TurnUpdate::Ended(end) | TurnUpdate::Corrected(end) => {
            end.text.as_ref().map_or(0, String::len)
        }
        _ => 0,
    }
}

fn raw_weight(raw: Option<&RawJson>) -> usize {
    raw.map_or(0, |raw| raw.get().len())
}
