//! What a client is made with.

mod streams;
#[cfg(feature = "websocket")]
mod websocket;

use std::{
    ffi::{OsStr, OsString},
    fmt,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use turnkeep_core::{
    Config,
    config::{Authorization, ClientInfo, Reconnect, TokenRefreshes},
};

pub use self::streams::{StreamPair, StreamsConfig};
#[cfg(feature = "websocket")]
pub use self::websocket::{TokenSource, WebSocketAddress, WebSocketConfig, WebSocketConfigError};
use crate::journal::Store;

/// How a client runs.
///
/// ```
/// # use turnkeep_runtime::ClientConfig;
/// let config = ClientConfig::codex().journal("state").codex_home("codex-home");
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ClientConfig {
    /// The server, and how it is reached.
    pub server: ServerConfig,
    /// Where the journal is kept.
    pub journal: JournalConfig,
    /// The file that the session is recorded to.
    pub recording: Option<PathBuf>,
    /// How the protocol is served.
    pub machine: Config,
    /// The seed of all chance, else one from the system.
    pub seed: Option<u64>,
    /// How many commands may wait for the client's task.
    pub commands_waiting: usize,
    /// How many bytes may wait for the consumers of one conversation; past it the running turn
    /// fails.
    pub bytes_waiting: usize,
}

impl ClientConfig {
    /// Starts `codex app-server`, as found in `PATH`, with a journal in memory.
    #[must_use]
    pub fn codex() -> Self {
        Self::child(ChildConfig::codex())
    }

    /// Starts a server of one's own choice, with a journal in memory.
    #[must_use]
    pub fn child(child: ChildConfig) -> Self {
        Self::server(ServerConfig::Child(child))
    }

    /// Reaches a server that somebody else has started, over WebSocket, with a journal in memory.
    #[cfg(feature = "websocket")]
    #[must_use]
    pub fn web_socket(socket: WebSocketConfig) -> Self {
        Self::server(ServerConfig::WebSocket(socket))
    }

    /// Speaks over streams of one's own, with a journal in memory.
    #[must_use]
    pub fn streams(streams: StreamsConfig) -> Self {
        Self::server(ServerConfig::Streams(streams))
    }

    /// Reaches a server, with a journal in memory.
    #[must_use]
    pub fn server(server: ServerConfig) -> Self {
        Self {
            server,
            journal: JournalConfig::Memory,
            recording: None,
            machine: Config::default(),
            seed: None,
            commands_waiting: 256,
            bytes_waiting: 64 << 20,
        }
    }

    /// Sets the own directory (`CODEX_HOME`) of a server that we start; one that runs already has
    /// its own.
    #[must_use]
    pub fn codex_home(mut self, path: impl Into<PathBuf>) -> Self {
        if let ServerConfig::Child(child) = &mut self.server {
            child.codex_home = Some(path.into());
        }
        self
    }

    /// Changes the child process that is started; nothing where the server is reached otherwise.
    #[must_use]
    pub fn change_child(mut self, change: impl FnOnce(ChildConfig) -> ChildConfig) -> Self {
        if let ServerConfig::Child(child) = self.server {
            self.server = ServerConfig::Child(change(child));
        }
        self
    }

    /// Keeps the journal in a directory, which is made where it is missing.
    #[must_use]
    pub fn journal(mut self, directory: impl Into<PathBuf>) -> Self {
        self.journal = JournalConfig::Directory(JournalDirectory::new(directory));
        self
    }

    /// Records the session to a file, which is made anew.
    #[must_use]
    pub fn record(mut self, path: impl Into<PathBuf>) -> Self {
        self.recording = Some(path.into());
        self
    }

    /// Opens no second connection: what the first leaves open ends with it.
    #[must_use]
    pub fn one_connection(mut self) -> Self {
        self.machine.reconnect = Reconnect::Off;
        self
    }

    /// Says whether user input needs a binding ([`Conversation::bind`](crate::Conversation::bind)).
    /// It does, unless this or the settings of the conversation say [`Authorization::None`].
    #[must_use]
    pub fn authorization(mut self, authorization: Authorization) -> Self {
        self.machine.authorization = authorization;
        self
    }

    /// Says who refreshes the server's tokens: with [`TokenRefreshes::Ask`] the application does, by
    /// [`Client::token_refreshes`](crate::Client::token_refreshes).
    #[must_use]
    pub fn token_refresh(mut self, token_refresh: TokenRefreshes) -> Self {
        self.machine.token_refresh = token_refresh;
        self
    }

    /// Says who we are to the server.
    #[must_use]
    pub fn client_info(mut self, info: ClientInfo) -> Self {
        self.machine.client = info;
        self
    }

    /// Changes how the protocol is served.
    #[must_use]
    pub fn machine(mut self, change: impl FnOnce(&mut Config)) -> Self {
        change(&mut self.machine);
        self
    }

    /// Sets the seed of all chance.
    #[must_use]
    pub fn seed(mut self, seed: u64) -> Self {
        self.seed = Some(seed);
        self
    }
}

/// The server, and how it is reached.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum ServerConfig {
    /// A child process of ours.
    Child(ChildConfig),
    /// A server that runs already, over WebSocket.
    #[cfg(feature = "websocket")]
    WebSocket(WebSocketConfig),
    /// Streams that the application brings.
    Streams(StreamsConfig),
}

/// How long an orphan may take to end after SIGTERM, where no configuration says.
pub(crate) const TERM_LIMIT: Duration = Duration::from_secs(2);

/// Where the journal is kept.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum JournalConfig {
    /// Nowhere: what was going on is gone with the process.
    #[default]
    Memory,
    /// In the files of a directory.
    Directory(JournalDirectory),
    /// In a store of one's own.
    Store(MakeStore),
}

impl JournalConfig {
    /// Keeps the journal in a store of one's own, which is made anew for every client.
    #[must_use]
    pub fn store(make: impl Fn() -> Box<dyn Store> + Send + Sync + 'static) -> Self {
        Self::Store(MakeStore(Arc::new(make)))
    }

    /// What errors call it.
    pub(crate) fn name(&self) -> &Path {
        match self {
            Self::Memory => Path::new("memory"),
            Self::Directory(directory) => &directory.path,
            Self::Store(_) => Path::new("the journal's store"),
        }
    }
}

/// A directory of journal files, which is made where it is missing.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct JournalDirectory {
    /// The directory.
    pub path: PathBuf,
    /// How many bytes are appended to a file before the next one begins, and how many to the whole
    /// journal, at least, before a checkpoint takes their place.
    pub segment_bytes: u64,
}

impl JournalDirectory {
    /// Files of 8 MiB.
    #[must_use]
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self {
            path: path.into(),
            segment_bytes: 8 << 20,
        }
    }

    /// Sets how long a file grows.
    #[must_use]
    pub fn segment_bytes(mut self, bytes: u64) -> Self {
        self.segment_bytes = bytes;
        self
    }
}

/// What makes a store of one's own.
#[derive(Clone)]
pub struct MakeStore(Arc<dyn Fn() -> Box<dyn Store> + Send + Sync>);

impl MakeStore {
    pub(crate) fn make(&self) -> Box<dyn Store> {
        (self.0)()
    }
}

impl PartialEq for MakeStore {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for MakeStore {}

impl fmt::Debug for MakeStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("MakeStore")
    }
}

/// A server that runs as a child process.
#[derive(Clone)]
#[non_exhaustive]
pub struct ChildConfig {
    /// The program, looked for in `PATH` where it has no slash.
    pub program: OsString,
    /// Its arguments.
    pub args: Vec<OsString>,
    /// What its environment has beside ours; `None` takes a variable away.
    pub env: Vec<(OsString, Option<OsString>)>,
    /// Its own directory (`CODEX_HOME`).
    pub codex_home: Option<PathBuf>,
    /// Its working directory.
    pub cwd: Option<PathBuf>,
    /// How long it may take to end after its stdin was closed.
    pub close_limit: Duration,
    /// How long it may take to end after SIGTERM.
    pub term_limit: Duration,
}

impl ChildConfig {
    /// `codex app-server`, as found in `PATH`.
    #[must_use]
    pub fn codex() -> Self {
        Self::program("codex").arg("app-server")
    }

    /// A program without arguments.
    #[must_use]
    pub fn program(program: impl Into<OsString>) -> Self {
        Self {
            program: program.into(),
            args: Vec::new(),
            env: Vec::new(),
            codex_home: None,
            cwd: None,
            close_limit: Duration::from_secs(5),
            term_limit: TERM_LIMIT,
        }
    }

    /// Adds an argument.
    #[must_use]
    pub fn arg(mut self, arg: impl Into<OsString>) -> Self {
        self.args.push(arg.into());
        self
    }

    /// Adds arguments.
    #[must_use]
    pub fn args(mut self, args: impl IntoIterator<Item = impl Into<OsString>>) -> Self {
        self.args.extend(args.into_iter().map(Into::into));
        self
    }

    /// Sets a variable of its environment.
    #[must_use]
    pub fn env(mut self, name: impl Into<OsString>, value: impl Into<OsString>) -> Self {
        self.env.push((name.into(), Some(value.into())));
        self
    }

    /// Takes a variable of our environment away from it.
    #[must_use]
    pub fn env_remove(mut self, name: impl Into<OsString>) -> Self {
        self.env.push((name.into(), None));
        self
    }

    /// Sets its own directory (`CODEX_HOME`).
    #[must_use]
    pub fn codex_home(mut self, path: impl Into<PathBuf>) -> Self {
        self.codex_home = Some(path.into());
        self
    }

    /// Sets its working directory.
    #[must_use]
    pub fn cwd(mut self, path: impl Into<PathBuf>) -> Self {
        self.cwd = Some(path.into());
        self
    }

    /// Sets how long it may take to end, after its stdin was closed and after SIGTERM.
    #[must_use]
    pub fn stop_limits(mut self, close: Duration, term: Duration) -> Self {
        self.close_limit = close;
        self.term_limit = term;
        self
    }
}

impl fmt::Debug for ChildConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The values of an environment are where secrets live.
        let names: Vec<&OsStr> = self.env.iter().map(|(name, _)| &**name).collect();
        f.debug_struct("ChildConfig")
            .field("program", &self.program)
            .field("args", &self.args)
            .field("env", &names)
            .field("codex_home", &self.codex_home)
            .field("cwd", &self.cwd)
            .field("close_limit", &self.close_limit)
            .field("term_limit", &self.term_limit)
            .finish()
    }
}
