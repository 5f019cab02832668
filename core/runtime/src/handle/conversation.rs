//! A conversation.

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use futures_core::Stream;
use turnkeep_core::{
    Command, ConversationId, ConversationKey, Event, QuestionId, RawJson, Reply, SendOptions,
    Settings, ThreadId, ToolCallId, ToolResult, TurnNo,
    cleanup::Owner,
    command::{AcceptOptions, Answer, Binding},
    event::{Status, ToolCall},
    id::{ArrivalNo, BoxId},
    preflight::PreflightItem,
    transcript::{BoxBody, TranscriptBox},
};

use super::{Message, Shared, fork::ForkConversation, turn::Turn};
use crate::{
    error::{ClaimError, RequestError, SendError},
    event::ConversationEvent,
    hub::Talk,
    queue::Queue,
    request::Request,
    runtime::BoxFuture,
};

/// A conversation. Clones are the same conversation; dropping them does not close it.
#[derive(Clone, Debug)]
pub struct Conversation {
    shared: Arc<Shared>,
    talk: Arc<Talk>,
}

impl Conversation {
    pub(crate) fn new(shared: Arc<Shared>, talk: Arc<Talk>) -> Self {
        Self { shared, talk }
    }

    /// Its number in this client.
    #[must_use]
    pub fn id(&self) -> ConversationId {
        self.talk.id
    }

    /// The application's name for it.
    #[must_use]
    pub fn key(&self) -> &ConversationKey {
        &self.talk.key
    }

    /// Says something and begins a turn with it; await it.
    ///
    /// The turn begins once the message is durable. Where the future is dropped after that the
    /// message stays accepted, and its turn is had from [`current_turn`](Self::current_turn).
    ///
    /// While a round is open or about to begin it is refused as
    /// [`Busy`](turnkeep_core::CommandError::Busy), also while one whose turn was dropped is being
    /// interrupted: wait for the end of a turn before you drop it where the next message follows at
    /// once. After a round that failed it is refused until [`restart`](Self::restart) or
    /// [`dismiss`](Self::dismiss). [`accept`](Self::accept) is never busy.
    pub fn send(&self, message: impl Into<Message>) -> SendMessage {
        SendMessage {
            conversation: self.clone(),
            message: message.into(),
            options: SendOptions::new(),
        }
    }

    /// The newest turn that no handle holds and whose end was not taken: one that goes on without
    /// a handle, or that the server or a steered message began.
    ///
    /// # Errors
    ///
    /// The client has ended.
    pub async fn current_turn(&self) -> Result<Option<Turn>, RequestError> {
        let id = self.talk.id;
        let ask = self.shared.ask(|reply| Request::ClaimNewest(id, reply));
        let claim = ask.await?;
        Ok(claim.map(|claim| Turn::new(Arc::clone(&self.shared), claim, None)))
    }

    /// The turns of earlier lives, oldest first, whose end is not known or was not acknowledged,
    /// and that no handle holds: each comes once. Their calls and questions that wait for an answer
    /// are told, what the history settled of them, and their end.
    ///
    /// As with every [`Turn`], one that is dropped before its end is given up: keep it, or let it go
    /// on with [`Turn::detach`].
    ///
    /// # Errors
    ///
    /// The client has ended.
    pub async fn recovered(&self) -> Result<Vec<Turn>, RequestError> {
        let id = self.talk.id;
        let ask = self.shared.ask(|reply| Request::ClaimRecovered(id, reply));
        let claims = ask.await?.into_iter();
        let turn = |claim| Turn::new(Arc::clone(&self.shared), claim, None);
        Ok(claims.map(turn).collect())
    }

    /// Takes a turn up that no handle holds. Of what it told before, the calls and questions that
    /// wait for an answer are told again, and its end.
    ///
    /// # Errors
    ///
    /// See [`ClaimError`].
    pub async fn turn(&self, turn: TurnNo) -> Result<Turn, ClaimError> {
        let id = self.talk.id;
        let ask = self.shared.ask(|reply| Request::Claim(id, turn, reply));
        let claim = ask.await??;
        Ok(Turn::new(Arc::clone(&self.shared), claim, None))
    }

    /// Everything that happens in this conversation from now on, those turns included that no
    /// handle holds.
    #[must_use]
    pub fn events(&self) -> ConversationEvents {
        ConversationEvents {
            talk: Arc::clone(&self.talk),
            queue: self.talk.listeners.add(),
        }
    }

    /// Gives the result of a tool call, also where its turn is over: that of a deferred call, and that
    /// of one whose native call died ([`CallDeferred`](crate::TurnUpdate::CallDeferred)). Then it goes
    /// into the turn that runs, or makes a round.
    ///
    /// # Errors
    ///
    /// The call is unknown, closed, or was answered differently; or the client has ended.
    pub async fn respond(&self, call: ToolCallId, result: ToolResult) -> Result<(), RequestError> {
        self.done(Command::Respond { call, result }).await
    }

    /// Says something of an open call before its result. It makes no round.
    ///
    /// # Errors
    ///
    /// The call is unknown, closed or answered, or the mailbox is full; or the client has ended.
    pub async fn tool_message(
        &self,
        call: ToolCallId,
        text: impl Into<String>,
    ) -> Result<(), RequestError> {
        let text = text.into();
        self.done(Command::ToolMessage { call, text }).await
    }

    /// Takes boxes into the transcript, at any time, all of them or none; await it. They are durable
    /// then, and make a round, or go into the one that runs.
    ///
    /// A round that begins by itself is had from [`next_turn`](Self::next_turn).
    pub fn accept(&self, boxes: impl IntoIterator<Item = BoxBody>) -> AcceptBoxes {
        AcceptBoxes {
            conversation: self.clone(),
            boxes: boxes.into_iter().collect(),
            options: AcceptOptions::new(),
        }
    }

    /// Begins a round with all that the model has not got, where rounds do not begin by themselves
    /// ([`AutoBegin::Off`](crate::AutoBegin::Off)). Gives its turn, none where there is nothing to
    /// begin it with.
    ///
    /// # Errors
    ///
    /// A round is open, or the last one failed, or the conversation is held or not bound; or the
    /// client has ended.
    pub async fn begin(&self) -> Result<Option<Turn>, SendError> {
        let conversation = self.talk.id;
        let answered = self.shared.command(Command::Begin { conversation }).await?;
        match answered.answer.map_err(RequestError::from)? {
            Reply::Begun { turn: None } => Ok(None),
            _ => {
                let claim = answered.claim.ok_or(RequestError::Stopped)?;
                let claim = claim.map_err(SendError::Before)?;
                Ok(Some(Turn::new(Arc::clone(&self.shared), claim, None)))
            }
        }
    }

    /// Begins a stalled round again, with the same message; await it. It may be restarted where
    /// [`status`](Self::status) says so: its message was certainly not accepted.
    pub fn restart(&self) -> RestartRound {
        RestartRound {
            conversation: self.clone(),
            binding: None,
        }
    }

    /// What the conversation does, as far as it was told.
    #[must_use]
    pub fn status(&self) -> Status {
        self.talk.status()
    }

    /// The next turn that began by itself, oldest first: of a round that follows another one, or that
    /// an arrival made; of the server's own accord; or of an earlier life. It waits for one, and each
    /// comes once, unless its handle is [detached](Turn::detach). `None` when the conversation is
    /// closed, the connection has ended for good, or the client has. May be dropped and asked again.
    pub async fn next_turn(&self) -> Option<Turn> {
        loop {
            // What begins from here on is noticed.
            let began = self.talk.began.listen();
            let id = self.talk.id;
            let ask = self.shared.ask(|reply| Request::ClaimBegan(id, reply));
            if let Some(claim) = ask.await.ok()?? {
                return Some(Turn::new(Arc::clone(&self.shared), claim, None));
            }
            if self.shared.life.is_cut_off() {
                return None;
            }
            began.await;
        }
    }

    /// Begins a fresh conversation with messages of the system and calls, without a round. Gives the
    /// calls' ids, in order.
    ///
    /// # Errors
    ///
    /// The conversation is not fresh, or a tool is unknown; or the client has ended.
    pub async fn preflight(
        &self,
        items: impl IntoIterator<Item = PreflightItem>,
    ) -> Result<Vec<ToolCallId>, RequestError> {
        let command = Command::Preflight {
            conversation: self.talk.id,
            items: items.into_iter().collect(),
        };
        match self.shared.reply(command).await? {
            Reply::Preflighted { calls } => Ok(calls),
            // The machine answers it in this way.
            _ => Err(RequestError::Stopped),
        }
    }

    /// The calls of the preflight that have no result, with whether the first round waits for each.
    /// They are open still after a restart, where they are to be run again.
    #[must_use]
    pub fn preflight_calls(&self) -> Vec<(ToolCall, bool)> {
        self.talk.preflight_calls()
    }

    /// Reads at most `limit` boxes of the transcript, from one on, and gives the transcript's last.
    ///
    /// # Errors
    ///
    /// The client has ended.
    pub async fn read(
        &self,
        from: BoxId,
        limit: u32,
    ) -> Result<(Vec<TranscriptBox>, BoxId), RequestError> {
        let command = Command::Read {
            conversation: self.talk.id,
            from,
            limit,
        };
        match self.shared.reply(command).await? {
            Reply::Boxes { boxes, last } => Ok((boxes, last)),
            // The machine answers it in this way.
            _ => Err(RequestError::Stopped),
        }
    }

    /// Leaves a stall: what the agent said so far is its response, its open calls fail, what arrived
    /// is appended, and the next trigger begins a round.
    ///
    /// # Errors
    ///
    /// The conversation is not stalled, or the client has ended.
    pub async fn dismiss(&self) -> Result<(), RequestError> {
        let conversation = self.talk.id;
        self.done(Command::Dismiss { conversation }).await
    }

    /// Keeps the conversation from beginning a round until it is released. The first reason stands.
    ///
    /// # Errors
    ///
    /// The client has ended.
    pub async fn hold(&self, reason: impl Into<String>) -> Result<(), RequestError> {
        let command = Command::Hold {
            conversation: self.talk.id,
            reason: reason.into(),
        };
        self.done(command).await
    }

    /// Lets a held conversation begin again.
    ///
    /// # Errors
    ///
    /// The client has ended.
    pub async fn release(&self) -> Result<(), RequestError> {
        let conversation = self.talk.id;
        self.done(Command::Release { conversation }).await
    }

    /// Says on whose behalf the conversation acts from here on: user input and a restart need it,
    /// unless the client or the conversation needs none
    /// ([`ClientConfig::authorization`](crate::ClientConfig::authorization)). It is kept in memory
    /// only, and cleared by a round that fails.
    ///
    /// # Errors
    ///
    /// It acts on somebody else's already, or the client has ended.
    pub async fn bind(&self, binding: Binding) -> Result<(), RequestError> {
        let conversation = self.talk.id;
        let command = Command::Bind {
            conversation,
            binding,
        };
        self.done(command).await
    }

    /// Clears that.
    ///
    /// # Errors
    ///
    /// The client has ended.
    pub async fn unbind(&self) -> Result<(), RequestError> {
        let conversation = self.talk.id;
        self.done(Command::Unbind { conversation }).await
    }

    /// Answers a question of the server.
    ///
    /// # Errors
    ///
    /// The question is settled, or the answer does not fit it; or the client has ended.
    pub async fn answer(&self, question: QuestionId, answer: Answer) -> Result<(), RequestError> {
        self.done(Command::Answer { question, answer }).await
    }

    /// Says that the end of a turn has arrived, where it was taken from
    /// [`events`](Self::events).
    ///
    /// # Errors
    ///
    /// The turn is unknown, or the client has ended.
    pub async fn acknowledge(&self, turn: TurnNo) -> Result<(), RequestError> {
        self.done(Command::Acknowledge { turn }).await
    }

    /// Gives the conversation a new native thread with its next turn: the way on after the old one was
    /// lost (`ConversationUpdate::ThreadLost`), or to begin afresh. What the model knew of the old
    /// thread it does not know any more.
    ///
    /// # Errors
    ///
    /// A turn is open, or the client has ended.
    pub async fn reset(&self) -> Result<(), RequestError> {
        let conversation = self.talk.id;
        self.done(Command::Reset { conversation }).await
    }

    /// Makes the native thread now, and names it: after the settings' `name`, else after the
    /// conversation's key. A thread without a turn or a name dies with its server. Returns its id, at
    /// once where all that is done.
    ///
    /// # Errors
    ///
    /// The conversation is closing, or the server refuses the thread or its name. Or the client has
    /// ended.
    pub async fn materialise(&self) -> Result<ThreadId, RequestError> {
        let conversation = self.talk.id;
        match self
            .shared
            .reply(Command::Materialise { conversation })
            .await?
        {
            Reply::Bound { thread } => Ok(thread),
            // The machine answers it in this way.
            _ => Err(RequestError::Stopped),
        }
    }

    /// Makes a conversation of this one, under a key of its own, and awaits it: with a copy of its
    /// boxes, a fork of its native thread where that holds anything, and nothing open. What is said in
    /// one of them from then on the other does not know. The same fork again is the same conversation.
    ///
    /// # Errors
    ///
    /// Awaited: something is open here, the key is taken, the settings need another thread, or the
    /// server refuses. Where the answer was lost and no thread is found by its mark
    /// [`Unknown`](turnkeep_core::CommandError::Unknown), and the key is free again. Or the client has
    /// ended.
    pub fn fork(&self, key: impl Into<String>) -> ForkConversation {
        ForkConversation {
            shared: Arc::clone(&self.shared),
            conversation: self.talk.id,
            key: key.into(),
            settings: None,
        }
    }

    /// Has the server make the history of the thread shorter, and waits until the turn that does it is
    /// over. Until then the conversation is busy and takes no steer; what arrives makes a round
    /// afterwards.
    ///
    /// # Errors
    ///
    /// The conversation is busy, has no thread yet, or the server refuses;
    /// [`NotCompacted`](turnkeep_core::CommandError::NotCompacted) where the turn failed or was
    /// stopped. Or the client has ended.
    pub async fn compact(&self) -> Result<(), RequestError> {
        let conversation = self.talk.id;
        self.done(Command::Compact { conversation }).await
    }

    /// Holds the conversation in another way from the next message on:
    ///
    /// * What messages carry and what is done on our side ([`Settings::same_thread`]: the model, the
    ///   effort, the personality, the questions, the workspace, …) changes at any time.
    /// * The working directory, the approval policy, the sandbox and the base instructions change only
    ///   between rounds, where they are named and a turn ran before: the native thread is let go, and
    ///   resumed with them before the next message ([`Settings::same_resumed`]). Where somebody else
    ///   has the thread loaded the server keeps what it has; all but the instructions is then told as
    ///   [`Differs`](turnkeep_core::event::ConversationUpdate::Differs).
    /// * All else (the developer instructions, `config`, the provider, the tools, …; or one of those
    ///   four that is named no more) changes only between rounds, and takes another native thread,
    ///   which is told the whole transcript.
    ///
    /// # Errors
    ///
    /// The settings are refused, or change only between rounds; a model, an effort or a personality
    /// was left out that has no known default. Or the client has ended.
    pub async fn change(&self, settings: Settings) -> Result<(), RequestError> {
        let command = Command::Change {
            conversation: self.talk.id,
            settings: settings.into(),
        };
        self.done(command).await
    }

    /// Lets the conversation go; its key is free afterwards.
    ///
    /// # Errors
    ///
    /// A turn is open, or the server refuses: then it stays open. Or the client has ended.
    pub async fn close(&self) -> Result<(), RequestError> {
        let conversation = self.talk.id;
        self.done(Command::Close { conversation }).await
    }

    /// Stops the background terminals of the thread and its descendants and lets the thread go; the
    /// next message takes it up again. Kept until it is done: [`CleanedUp`] tells.
    ///
    /// [`CleanedUp`]: turnkeep_core::event::ConnectionEvent::CleanedUp
    ///
    /// # Errors
    ///
    /// A turn is open, or the client has ended.
    pub async fn detach(&self) -> Result<(), RequestError> {
        let owner = self.owner();
        self.done(Command::Detach { owner }).await
    }

    /// Puts the thread away and closes the conversation; its key is free afterwards. Durable when
    /// this returns, and kept until the server has done it.
    ///
    /// # Errors
    ///
    /// A turn is open, or the client has ended.
    pub async fn archive(&self) -> Result<(), RequestError> {
        let owner = self.owner();
        self.done(Command::Archive { owner }).await
    }

    /// Deletes the thread and closes the conversation; its key is free afterwards. Durable when
    /// this returns, and kept until the server has done it.
    ///
    /// # Errors
    ///
    /// A turn is open, or the client has ended.
    pub async fn delete(&self) -> Result<(), RequestError> {
        let owner = self.owner();
        self.done(Command::Delete { owner }).await
    }

    fn owner(&self) -> Owner {
        Owner::Conversation(self.talk.id)
    }

    async fn done(&self, command: Command) -> Result<(), RequestError> {
        self.shared.reply(command).await.map(|_| ())
    }
}

/// A message about to be sent. Await it.
#[derive(Clone, Debug)]
#[must_use = "nothing happens before it is awaited"]
pub struct SendMessage {
    conversation: Conversation,
    message: Message,
    options: SendOptions,
}

impl SendMessage {
    /// Says that the message is the caller's own `key`: the same key again is the same message and
    /// gives the same turn, also after a restart on the same journal. Where that turn is over and
    /// its end was acknowledged, it is [`SendError::AlreadyEnded`].
    pub fn key(mut self, key: impl Into<String>) -> Self {
        self.options = self.options.key(key);
        self
    }

    /// Asks for a final answer of a JSON schema.
    pub fn output_schema(mut self, schema: RawJson) -> Self {
        self.options = self.options.output_schema(schema);
        self
    }

    /// Says on whose behalf, before it is sent; see [`Conversation::bind`].
    pub fn binding(mut self, binding: Binding) -> Self {
        self.options = self.options.binding(binding);
        self
    }

    /// Limits the time of the turn.
    pub fn deadline(mut self, limit: Duration) -> Self {
        self.options = self.options.deadline(limit);
        self
    }

    async fn send(self) -> Result<Turn, SendError> {
        let Conversation { shared, talk } = self.conversation;
        let command = Command::Send {
            conversation: talk.id,
            input: self.message.0,
            options: Box::new(self.options),
        };
        let answered = shared.command(command).await?;
        let Reply::Accepted { message, .. } = answered.answer.map_err(RequestError::from)? else {
            // The machine answers a send in this way.
            return Err(RequestError::Stopped.into());
        };
        match answered.claim.ok_or(RequestError::Stopped)? {
            Ok(claim) => Ok(Turn::new(shared, claim, Some(message))),
            Err(ClaimError::Over { turn }) => Err(SendError::AlreadyEnded { turn, message }),
            Err(error) => Err(SendError::Before(error)),
        }
    }
}

impl IntoFuture for SendMessage {
    type Output = Result<Turn, SendError>;
    type IntoFuture = BoxFuture<Self::Output>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.send())
    }
}

/// Boxes about to be accepted. Await it: it gives the numbers of the first and the last arrival.
#[derive(Clone, Debug)]
#[must_use = "nothing happens before it is awaited"]
pub struct AcceptBoxes {
    conversation: Conversation,
    boxes: Vec<BoxBody>,
    options: AcceptOptions,
}

impl AcceptBoxes {
    /// Says that the boxes are the caller's own `key`: the same key again is the same arrival, also
    /// after a restart on the same journal.
    pub fn key(mut self, key: impl Into<String>) -> Self {
        self.options = self.options.key(key);
        self
    }

    /// Says on whose behalf, first; see [`Conversation::bind`].
    pub fn binding(mut self, binding: Binding) -> Self {
        self.options = self.options.binding(binding);
        self
    }

    async fn accept(self) -> Result<(ArrivalNo, ArrivalNo), RequestError> {
        let Conversation { shared, talk } = self.conversation;
        let command = Command::Accept {
            conversation: talk.id,
            boxes: self.boxes,
            options: Box::new(self.options),
        };
        match shared.reply(command).await? {
            Reply::Arrived { first, last } => Ok((first, last)),
            // The machine answers it in this way.
            _ => Err(RequestError::Stopped),
        }
    }
}

impl IntoFuture for AcceptBoxes {
    type Output = Result<(ArrivalNo, ArrivalNo), RequestError>;
    type IntoFuture = BoxFuture<Self::Output>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.accept())
    }
}

/// A stalled round about to begin again. Await it.
#[derive(Clone, Debug)]
#[must_use = "nothing happens before it is awaited"]
pub struct RestartRound {
    conversation: Conversation,
    binding: Option<Binding>,
}

impl RestartRound {
    /// Says on whose behalf, first; see [`Conversation::bind`].
    pub fn binding(mut self, binding: Binding) -> Self {
        self.binding = Some(binding);
        self
    }

    async fn restart(self) -> Result<Turn, SendError> {
        let Conversation { shared, talk } = self.conversation;
        let command = Command::Restart {
            conversation: talk.id,
            binding: self.binding,
        };
        let answered = shared.command(command).await?;
        let Reply::Accepted { message, .. } = answered.answer.map_err(RequestError::from)? else {
            // The machine answers a restart in this way.
            return Err(RequestError::Stopped.into());
        };
        let claim = answered.claim.ok_or(RequestError::Stopped)?;
        let claim = claim.map_err(SendError::Before)?;
        Ok(Turn::new(shared, claim, Some(message)))
    }
}

impl IntoFuture for RestartRound {
    type Output = Result<Turn, SendError>;
    type IntoFuture = BoxFuture<Self::Output>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.restart())
    }
}

/// Everything that happens in a conversation.
#[derive(Debug)]
pub struct ConversationEvents {
    talk: Arc<Talk>,
    queue: Arc<Queue<Event>>,
}

impl ConversationEvents {
    /// The next event, `None` when the conversation is closed or the client has ended.
    pub async fn next(&mut self) -> Option<ConversationEvent> {
        std::future::poll_fn(|cx| self.poll(cx)).await
    }

    /// How many pieces of text were merged because they waited unread. A reader that lags far behind
    /// is told so as well: [`Warning::Lagged`](turnkeep_core::event::Warning::Lagged).
    #[must_use]
    pub fn merged(&self) -> u64 {
        self.queue.merged()
    }

    /// How many events were dropped because too many bytes waited unread: of frames that this version
    /// does not know, of the thread's status, of frames of sub-agents, and of nothing else.
    #[must_use]
    pub fn dropped(&self) -> u64 {
        self.queue.dropped()
    }

    fn poll(&self, cx: &mut Context<'_>) -> Poll<Option<ConversationEvent>> {
        loop {
            match self.queue.poll_next(cx) {
                Poll::Ready(Some(event)) => {
                    if let Some(event) = ConversationEvent::of(event) {
                        return Poll::Ready(Some(event));
                    }
                }
                Poll::Ready(None) => return Poll::Ready(None),
                Poll::Pending => return Poll::Pending,
            }
        }
    }
}

impl Stream for ConversationEvents {
    type Item = ConversationEvent;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.poll(cx)
    }
}

impl Drop for ConversationEvents {
    fn drop(&mut self) {
        self.talk.listeners.remove(&self.queue);
    }
}
