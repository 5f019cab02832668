//! The client.

use std::{
    fmt,
    hash::{BuildHasher as _, Hasher as _, RandomState},
    marker::PhantomData,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use futures_channel::oneshot;
use futures_core::Stream;
use turnkeep_core::{
    Command, ConversationKey, Counters, Event, JournalSeq, RawJson, Recovery, Reply, Settings,
    cleanup::{Action, Owner},
    codec::journal::Entry,
    command::RequestEffect,
    event::{ConnectionEvent, Recovered, ServerInfo},
    secret::SecretJson,
};

use super::{Shared, conversation::Conversation};
use crate::{
    clock::Clock,
    config::ClientConfig,
    driver::{Driver, Work},
    error::{OpenError, RequestError, ShutdownError, StartError},
    hub::Hub,
    journal::{Journal, JournalReport},
    life::{Ended, Life, ShutdownSummary},
    queue::Queue,
    recording::{Header, Recorder},
    request::Request,
    runtime::{BoxFuture, Runtime, unblock},
};

/// A client: one server, one journal, many conversations.
///
/// Clones are the same client. When the last handle of any kind is dropped it shuts down in order,
/// in the background; [`shutdown`](Self::shutdown) does so and waits.
///
/// Its runtime is a type of the crate that is used: `turnkeep_tokio::Client` is `Client<Tokio>`.
pub struct Client<R> {
    pub(super) shared: Arc<Shared>,
    runtime: PhantomData<fn() -> R>,
}

impl<R: Runtime + Default> Client<R> {
    /// Starts a server and waits until it is ready, the first time: a connection that ends later is
    /// opened again by itself, unless the configuration says otherwise.
    ///
    /// A journal that holds earlier lives is gone on with: what they left open is told by
    /// [`recovered`](Self::recovered).
    ///
    /// # Errors
    ///
    /// See [`StartError`]. The server is stopped and reaped then, and so it is when the future is
    /// dropped before its end.
    ///
    /// # Panics
    ///
    /// Where its runtime does: on tokio, outside of a runtime with time and IO enabled.
    pub async fn spawn(config: ClientConfig) -> Result<Self, StartError> {
        let runtime: Arc<dyn Runtime> = Arc::new(R::default());
        config.machine.validate()?;
        #[cfg(feature = "websocket")]
        if let crate::config::ServerConfig::WebSocket(socket) = &config.server {
            socket.validate()?;
        }
        let (opened, config) = open_files(config).await?;
        let Files {
            journal,
            report,
            mut recorder,
            recovery,
            seed,
        } = opened;
        let clock = Clock::start(report.at);
        let frame_limit = config.machine.limits.frame;
        let now = clock.now();
        let from = recorder.as_ref().and_then(|_| left_by(&recovery));
        // Recovery may begin a round by itself: its turn is of this life.
        let last_turn = recovery.durable().last_turn();
        let (machine, first) = recovery.finish(now);
        if let Some(recorder) = &mut recorder {
            recorder.begin(Header {
                at: now,
                seed,
                config: config.machine,
                from,
                effects: first.clone(),
            });
        }
        let life = Arc::new(Life::new());
        let waiting = config.commands_waiting.clamp(1, MOST_WAITING);
        let (requests, asked) = async_channel::bounded(waiting);
        let (notes, noted) = async_channel::unbounded();
        let (starting, started) = oneshot::channel();
        let work = Work::new(now, machine.durable().lives(), Arc::clone(&runtime));
        let mut hub = Hub::new(Arc::clone(&life), config.bytes_waiting, starting);
        let durable = machine.durable();
        let open = durable.numbered();
        hub.recover(open.map(|(id, c)| (id, c.key.clone())), last_turn);
        let driver = Driver {
            machine,
            clock,
            journal,
            recorder,
            runtime: Arc::clone(&runtime),
            server: config.server,
            frame_limit,
            hub,
            life: Arc::clone(&life),
            requests: Box::pin(asked),
            notes: Box::pin(noted),
            work,
        };
        runtime.spawn(Box::pin(driver.run(first)));
        let client = Self {
            shared: Arc::new(Shared {
                requests,
                notes,
                life: Arc::clone(&life),
                report,
            }),
            runtime: PhantomData,
        };
        let error = match started.await {
            Ok(Ok(())) => return Ok(client),
            Ok(Err(reason)) => StartError::Connection(Box::new(reason)),
            Err(_) if life.is_halted() => StartError::Halted,
            Err(_) => StartError::Stopped,
        };
        // Whoever tries again shall find the journal free and the server gone.
        drop(client);
        life.ended().await;
        Err(error)
    }
}

impl<R> Client<R> {
    /// What the server says of itself.
    #[must_use]
    pub fn server_info(&self) -> Option<ServerInfo> {
        self.shared.life.server()
    }

    /// The server's process id, which is that of its process group too, while it runs.
    #[must_use]
    pub fn server_pid(&self) -> Option<u32> {
        self.shared.life.pid()
    }

    /// What the journal's earlier lives left open, where there were any: take it up with
    /// [`Conversation::recovered`], conversation by conversation.
    #[must_use]
    pub fn recovered(&self) -> Option<Recovered> {
        self.shared.life.recovered()
    }

    /// Takes a conversation under the application's own key; await it, with or without settings.
    /// Nothing is sent to the server before its first message. One that is open, also since an
    /// earlier life on the same journal, is the same one again, and its settings must be the same. One
    /// whose fork an earlier life asked for is had once the server is known to have made it; else this
    /// fails, and the key is free.
    pub fn conversation(&self, key: impl AsRef<str>) -> OpenConversation {
        OpenConversation {
            shared: Arc::clone(&self.shared),
            key: key.as_ref().to_owned(),
            settings: Settings::new(),
        }
    }

    #[cfg(feature = "protocol")]
    pub(super) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    /// Sends any request and gives the server's result back, as it came; await it. With the feature
    /// `protocol` the parameters of methods that take keys or tokens are secret by themselves, see
    /// [`RawRequest::secret`].
    pub fn request_raw(&self, method: impl Into<String>, params: RawJson) -> RawRequest {
        let request = RawRequest {
            shared: Arc::clone(&self.shared),
            method: method.into(),
            params: Params::Open(params),
            effect: RequestEffect::Changes,
        };
        #[cfg(feature = "protocol")]
        if turnkeep_protocol::is_secret(&request.method) {
            return request.secret();
        }
        request
    }

    /// Detaches, archives or deletes the threads of a workspace, or of all conversations; see
    /// [`Conversation::detach`], [`Conversation::archive`] and [`Conversation::delete`].
    ///
    /// # Errors
    ///
    /// A turn is open in one of the conversations: then nothing is done. Or the client has ended.
    pub async fn clean_up(&self, owner: Owner, action: Action) -> Result<(), RequestError> {
        let command = match action {
            Action::Detach => Command::Detach { owner },
            Action::Archive => Command::Archive { owner },
            Action::Delete => Command::Delete { owner },
        };
        self.shared.reply(command).await.map(|_| ())
    }

    /// What the journal held when the client started, and what a crash had left in it.
    #[must_use]
    pub fn journal_report(&self) -> &JournalReport {
        &self.shared.report
    }

    /// What happens to the connection from now on. Past 4,096 unread events only those are kept
    /// that tell of its beginning and end.
    #[must_use]
    pub fn connection_events(&self) -> ConnectionEvents {
        ConnectionEvents {
            life: Arc::clone(&self.shared.life),
            queue: self.shared.life.connection.add(),
        }
    }

    /// What was counted since the start.
    ///
    /// # Errors
    ///
    /// The client has ended.
    pub async fn counters(&self) -> Result<Counters, RequestError> {
        self.shared.ask(Request::Counters).await
    }

    /// Ends everything in order and waits for it: open calls are withdrawn, open questions answered
    /// negatively, every wait ends, the server stops, journal and recording are written.
    ///
    /// A second call tells the same.
    ///
    /// # Errors
    ///
    /// The client had come to its end by other means before.
    pub async fn shutdown(&self) -> Result<ShutdownSummary, ShutdownError> {
        // A driver that is gone has left word.
        let _ = self.shared.requests.send(Request::Shutdown).await;
        match self.shared.life.ended().await {
            Ended::ShutDown(summary) => Ok(summary),
            Ended::Halted => Err(ShutdownError::Halted),
            Ended::Stopped => Err(ShutdownError::Stopped),
        }
    }
}

impl<R> Clone for Client<R> {
    fn clone(&self) -> Self {
        Self {
            shared: Arc::clone(&self.shared),
            runtime: PhantomData,
        }
    }
}

impl<R> fmt::Debug for Client<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client")
            .field("shared", &self.shared)
            .finish_non_exhaustive()
    }
}

/// How many commands may wait at most, whatever the configuration says: room for them is had at once.
const MOST_WAITING: usize = 1 << 20;

/// What a client starts from.
struct Files {
    journal: Journal,
    report: JournalReport,
    recorder: Option<Recorder>,
    recovery: Recovery,
    seed: u64,
}

async fn open_files(config: ClientConfig) -> Result<(Files, ClientConfig), StartError> {
    let open = move || {
        let seed = config.seed.unwrap_or_else(random_seed);
        let mut recovery = Recovery::new(config.machine.clone(), seed)?;
        let (journal, report) = Journal::open(&config.journal, |entry| recovery.push(entry))?;
        let recorder = match &config.recording {
            Some(path) => Some(
                Recorder::create(path).map_err(|source| StartError::Recording {
                    path: path.clone(),
                    source,
                })?,
            ),
            None => None,
        };
        let files = Files {
            journal,
            report,
            recorder,
            recovery,
            seed,
        };
        Ok((files, config))
    };
    let opened = unblock(open).await;
    opened.unwrap_or(Err(StartError::Stopped))
}

/// What earlier lives left, in one entry.
fn left_by(recovery: &Recovery) -> Option<Entry> {
    (recovery.seq() > JournalSeq(0)).then(|| Entry {
        seq: recovery.seq(),
        at: recovery.at(),
        records: vec![recovery.durable().checkpoint()],
    })
}

fn random_seed() -> u64 {
    // The keys of a hash map are the system's randomness without a crate for it.
    RandomState::new().build_hasher().finish()
}

/// A conversation about to be taken. Await it.
#[derive(Clone, Debug)]
#[must_use = "nothing happens before it is awaited"]
pub struct OpenConversation {
    shared: Arc<Shared>,
    key: String,
    settings: Settings,
}

impl OpenConversation {
    /// Says how the conversation is held.
    pub fn settings(mut self, settings: Settings) -> Self {
        self.settings = settings;
        self
    }

    async fn open(self) -> Result<Conversation, OpenError> {
        let Some(key) = ConversationKey::new(&self.key) else {
            return Err(OpenError::BadKey { key: self.key });
        };
        let settings = Box::new(self.settings);
        let opened = self.shared.command(Command::Open { key, settings }).await?;
        opened.answer.map_err(RequestError::from)?;
        let talk = opened.talk.ok_or(RequestError::Stopped)?;
        Ok(Conversation::new(self.shared, talk))
    }
}

impl IntoFuture for OpenConversation {
    type Output = Result<Conversation, OpenError>;
    type IntoFuture = BoxFuture<Self::Output>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.open())
    }
}

/// A raw request about to be sent. Await it.
#[derive(Clone, Debug)]
#[must_use = "nothing happens before it is awaited"]
pub struct RawRequest {
    shared: Arc<Shared>,
    method: String,
    params: Params,
    effect: RequestEffect,
}

#[derive(Clone, Debug)]
enum Params {
    Open(RawJson),
    Secret(SecretJson),
}

impl RawRequest {
    /// Says that the parameters are secret, as those of a login are: they stand in no recording and
    /// no log. What the server answers is recorded as it comes.
    pub fn secret(mut self) -> Self {
        if let Params::Open(params) = self.params {
            self.params = Params::Secret(params.into());
        }
        self
    }

    /// Says that the request only reads, so that it need not be recorded before it is sent.
    pub fn reads(mut self) -> Self {
        self.effect = RequestEffect::Reads;
        self
    }

    async fn send(self) -> Result<RawJson, RequestError> {
        let (method, effect) = (self.method, self.effect);
        let command = match self.params {
            Params::Open(params) => Command::Request {
                method,
                params,
                effect,
            },
            Params::Secret(params) => Command::SecretRequest {
                method,
                params,
                effect,
            },
        };
        match self.shared.reply(command).await? {
            Reply::Response(result) => Ok(result),
            // The machine answers a request with a response.
            _ => Err(RequestError::Stopped),
        }
    }
}

impl IntoFuture for RawRequest {
    type Output = Result<RawJson, RequestError>;
    type IntoFuture = BoxFuture<Self::Output>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.send())
    }
}

/// What happens to the connection.
#[derive(Debug)]
pub struct ConnectionEvents {
    life: Arc<Life>,
    queue: Arc<Queue<Event>>,
}

impl ConnectionEvents {
    /// The next event, `None` when the client has ended.
    pub async fn next(&mut self) -> Option<ConnectionEvent> {
        std::future::poll_fn(|cx| self.poll(cx)).await
    }

    /// How many events were dropped because too many were unread, which is told as well:
    /// [`Warning::Lagged`](turnkeep_core::event::Warning::Lagged).
    #[must_use]
    pub fn dropped(&self) -> u64 {
        self.queue.dropped()
    }

    fn poll(&self, cx: &mut Context<'_>) -> Poll<Option<ConnectionEvent>> {
        loop {
            match self.queue.poll_next(cx) {
                Poll::Ready(Some(Event::Connection(event))) => return Poll::Ready(Some(*event)),
                Poll::Ready(Some(_)) => {}
                Poll::Ready(None) => return Poll::Ready(None),
                Poll::Pending => return Poll::Pending,
            }
        }
    }
}

impl Stream for ConnectionEvents {
    type Item = ConnectionEvent;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.poll(cx)
    }
}

impl Drop for ConnectionEvents {
    fn drop(&mut self) {
        self.life.connection.remove(&self.queue);
    }
}
