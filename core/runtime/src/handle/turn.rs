//! A turn.

use std::{
    future::poll_fn,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use futures_core::{Future, Stream};
use turnkeep_core::{
    Command, Event, MessageId, Outcome, QuestionId, Reply, ToolCallId, ToolResult, TurnEnd, TurnNo,
    TurnUpdate,
    command::{Answer, Refusal},
};

use super::{Message, Shared, conversation::Conversation};
use crate::{
    error::{RequestError, TurnError},
    event::TurnEvent,
    hub::{Claim, Talk},
    queue::Queue,
    request::Note,
};

/// A turn: a stream of what happens in it, and its end.
///
/// Read it event by event with [`next`](Self::next), or wait for its end: `(&mut turn).await`,
/// [`outcome`](Self::outcome), [`final_response`](Self::final_response). A turn that is dropped
/// before its end was taken is given up: it is interrupted, its calls are refused. Let it go on
/// with [`detach`](Self::detach).
#[derive(Debug)]
pub struct Turn {
    shared: Arc<Shared>,
    talk: Arc<Talk>,
    turn: TurnNo,
    message: Option<MessageId>,
    queue: Arc<Queue<Event>>,
    end: Option<Box<TurnEnd>>,
    acknowledges: bool,
    detached: bool,
}

impl Turn {
    pub(crate) fn new(shared: Arc<Shared>, claim: Claim, message: Option<MessageId>) -> Self {
        let (turn, talk, queue) = claim.take();
        Self {
            shared,
            talk,
            turn,
            message,
            queue,
            end: None,
            acknowledges: true,
            detached: false,
        }
    }

    /// Its number in this client.
    #[must_use]
    pub fn id(&self) -> TurnNo {
        self.turn
    }

    /// The message that began it, where this handle was got by sending it.
    #[must_use]
    pub fn message(&self) -> Option<&MessageId> {
        self.message.as_ref()
    }

    /// Its conversation.
    #[must_use]
    pub fn conversation(&self) -> Conversation {
        Conversation::new(Arc::clone(&self.shared), Arc::clone(&self.talk))
    }

    /// The next thing that happens; `None` after the end. Taking the end acknowledges it.
    ///
    /// Where `None` comes without an end the client has ended: [`outcome`](Self::outcome) tells
    /// how.
    pub async fn next(&mut self) -> Option<TurnEvent> {
        poll_fn(|cx| self.poll(cx)).await
    }

    /// Waits for the end. What comes before it is passed over, save calls and questions that wait
    /// for an answer: they are errors, and [`next`](Self::next) gives them. Where somebody listens
    /// to [`Conversation::events`], they are left to them.
    ///
    /// # Errors
    ///
    /// A call or question waits, or the client has ended in the middle of the turn.
    pub async fn outcome(&mut self) -> Result<TurnEnd, TurnError> {
        poll_fn(|cx| self.poll_outcome(cx)).await
    }

    /// Waits for the end and gives the final answer.
    ///
    /// # Errors
    ///
    /// The turn did not complete, or has no text; and as [`outcome`](Self::outcome).
    pub async fn final_response(&mut self) -> Result<String, TurnError> {
        let end = self.outcome().await?;
        let answer = match &end.outcome {
            Outcome::Completed { text, .. } => text.as_ref().or(end.candidate.as_ref()),
            _ => return Err(TurnError::NotCompleted { end: Box::new(end) }),
        };
        match answer {
            Some(text) => Ok(text.clone()),
            None => Err(TurnError::NoText { end: Box::new(end) }),
        }
    }

    /// Waits for the end and lets the turn go.
    ///
    /// # Errors
    ///
    /// As [`outcome`](Self::outcome); the turn is given up then.
    pub async fn finish(mut self) -> Result<TurnEnd, TurnError> {
        self.outcome().await
    }

    /// The end, once it was taken.
    #[must_use]
    pub fn end(&self) -> Option<&TurnEnd> {
        self.end.as_deref()
    }

    /// Gives the result of a tool call. That of a deferred one may come after the end, too
    /// ([`Conversation::respond`]).
    ///
    /// # Errors
    ///
    /// The call is unknown, closed, or was answered differently; or the client has ended.
    pub async fn respond(&self, call: ToolCallId, result: ToolResult) -> Result<(), RequestError> {
        let command = Command::Respond { call, result };
        self.shared.reply(command).await?;
        self.queue.answered(|event| {
            matches!(event, Event::Turn(event)
                if matches!(&event.update, TurnUpdate::ToolCall(open) if open.id == call))
        });
        Ok(())
    }

    /// Answers a question of the server.
    ///
    /// # Errors
    ///
    /// The question is settled, or the answer does not fit it; or the client has ended.
    pub async fn answer(&self, question: QuestionId, answer: Answer) -> Result<(), RequestError> {
        let command = Command::Answer { question, answer };
        self.shared.reply(command).await?;
        self.queue.answered(|event| {
            matches!(event, Event::Turn(event)
                if matches!(&event.update, TurnUpdate::Question(open) if open.id == question))
        });
        Ok(())
    }

    /// Adds a message to the turn while it runs.
    ///
    /// # Errors
    ///
    /// The turn does not run, and nothing was accepted; or the client has ended.
    pub async fn steer(&self, message: impl Into<Message>) -> Result<Steered, RequestError> {
        let command = Command::Steer {
            turn: self.turn,
            input: message.into().0,
        };
        match self.shared.reply(command).await? {
            Reply::Steered { message } => Ok(Steered::Taken { message }),
            Reply::Queued { refusal } => Ok(Steered::Queued { refusal }),
            // The machine answers a steer in one of these ways.
            _ => Err(RequestError::Stopped),
        }
    }

    /// Stops the turn; its end follows.
    ///
    /// # Errors
    ///
    /// The server did not answer, and the turn ends as lost; or the client has ended.
    pub async fn interrupt(&self) -> Result<Interrupted, RequestError> {
        // The machine forgets how a turn ended once its end was acknowledged.
        if let Some(end) = &self.end {
            let outcome = end.outcome.name().to_owned();
            return Ok(Interrupted::AlreadyEnded { outcome });
        }
        let command = Command::Interrupt { turn: self.turn };
        match self.shared.reply(command).await? {
            Reply::AlreadyEnded { outcome } => Ok(Interrupted::AlreadyEnded { outcome }),
            _ => Ok(Interrupted::Stopped),
        }
    }

    /// Says that taking the end does not acknowledge it: [`acknowledge`](Self::acknowledge) does.
    #[must_use]
    pub fn manual_acknowledge(mut self) -> Self {
        self.acknowledges = false;
        self
    }

    /// Says that the end has arrived, so that it is not told again after a restart.
    ///
    /// # Errors
    ///
    /// The client has ended.
    pub async fn acknowledge(&self) -> Result<(), RequestError> {
        let command = Command::Acknowledge { turn: self.turn };
        self.shared.reply(command).await.map(|_| ())
    }

    /// Lets the turn go on without a handle; [`Conversation::turn`] takes it up again.
    pub fn detach(mut self) -> TurnNo {
        if self.end.is_none() {
            self.detached = true;
            self.queue.park();
        }
        self.turn
    }

    /// How many pieces of text were merged because they waited unread. A reader that lags far behind
    /// is told so as well: [`Warning::Lagged`](turnkeep_core::event::Warning::Lagged).
    #[must_use]
    pub fn merged(&self) -> u64 {
        self.queue.merged()
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Option<TurnEvent>> {
        if self.end.is_some() {
            return Poll::Ready(None);
        }
        loop {
            match self.queue.poll_next(cx) {
                Poll::Ready(Some(event)) => {
                    self.note_end(&event);
                    if let Some(event) = TurnEvent::of(event) {
                        return Poll::Ready(Some(event));
                    }
                }
                Poll::Ready(None) => return Poll::Ready(None),
                Poll::Pending => return Poll::Pending,
            }
        }
    }

    fn poll_outcome(&mut self, cx: &mut Context<'_>) -> Poll<Result<TurnEnd, TurnError>> {
        loop {
            if let Some(end) = &self.end {
                return Poll::Ready(Ok((**end).clone()));
            }
            match self.queue.poll_next(cx) {
                Poll::Ready(Some(event)) => {
                    self.note_end(&event);
                    // What was settled since it was told waits for nobody.
                    let waits = waits_for_us(&event)
                        .filter(|_| self.talk.listeners.is_empty() && !self.queue.settles(&event));
                    if let Some(error) = waits {
                        self.queue.unread(event);
                        return Poll::Ready(Err(error));
                    }
                }
                Poll::Ready(None) => return Poll::Ready(Err(self.shared.life.silence())),
                Poll::Pending => return Poll::Pending,
            }
        }
    }

    fn note_end(&mut self, event: &Event) {
        let Event::Turn(about) = event else { return };
        if let TurnUpdate::Ended(end) = &about.update {
            self.end = Some(end.clone());
            if self.acknowledges {
                self.shared.note(Note::Acknowledge(self.turn));
            }
        }
    }
}

/// Why a turn cannot come to its end by itself.
fn waits_for_us(event: &Event) -> Option<TurnError> {
    let Event::Turn(about) = event else {
        return None;
    };
    match &about.update {
        TurnUpdate::ToolCall(call) => Some(TurnError::CallWaits {
            call: call.id,
            tool: call.tool.clone(),
        }),
        TurnUpdate::Question(question) => Some(TurnError::QuestionWaits {
            question: question.id,
            kind: Box::new(question.kind.clone()),
        }),
        _ => None,
    }
}

impl Stream for Turn {
    type Item = TurnEvent;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.poll(cx)
    }
}

impl<'a> IntoFuture for &'a mut Turn {
    type Output = Result<TurnEnd, TurnError>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send + 'a>>;

    /// Waits for the end; a limit around it leaves the turn as it is.
    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.outcome())
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        if self.detached {
            return;
        }
        self.queue.abandon();
        if self.end.is_none() {
            self.shared.note(Note::Abandon(self.turn));
        } else if !self.acknowledges {
            self.shared.note(Note::Release(self.turn));
        }
    }
}

/// What became of a message that was added to a turn.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Steered {
    /// The server took it into the running turn.
    Taken {
        /// The message's id.
        message: MessageId,
    },
    /// The server did not take it: it is accepted and goes with the round that follows, which begins
    /// by itself ([`Conversation::next_turn`]).
    Queued {
        /// What the server said.
        refusal: Box<Refusal>,
    },
}

/// What became of an interrupt.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Interrupted {
    /// The turn was stopped.
    Stopped,
    /// It had ended before.
    AlreadyEnded {
        /// The word for its end, such as `completed`.
        outcome: String,
    },
}
