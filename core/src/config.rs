//! Everything that can be set, with the limits of the specification as defaults.

use alloc::{string::String, vec::Vec};
use core::time::Duration;

use serde::{Deserialize, Serialize};

use crate::{durable::is_default, wire::version::Version};

pub use crate::settings::Authorization;

/// How the machine behaves. Part of a trace: the same configuration, the same bytes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct Config {
    /// How we call ourselves to the server (`initialize.clientInfo`).
    pub client: ClientInfo,
    /// Whether experimental methods and fields may be used; dynamic tools need it.
    pub experimental_api: bool,
    /// Notifications that the server shall not send (`optOutNotificationMethods`).
    pub opt_out: Vec<String>,
    /// The oldest server version that is served, inclusive.
    pub oldest_server: Version,
    /// The first server version that is too new, exclusive.
    pub first_unsupported_server: Version,
    /// Whether a server outside the range is served all the same.
    pub any_server_version: bool,
    /// Whether neighbouring deltas of one item in one read become one event.
    pub merge_deltas: bool,
    /// What to do with a turn that has been silent for the quiet limit.
    pub quiet: Quiet,
    /// What a `model/rerouted` notification does to its turn.
    pub reroute: Reroute,
    /// Whether a connection that ends is opened again.
    pub reconnect: Reconnect,
    /// Whether a message that the server never recorded is sent again.
    pub resend: Resend,
    /// What becomes of a turn of an earlier life that the server still runs.
    pub recovered_turns: RecoveredTurns,
    /// What becomes of rounds that begin in a later life than what made them, in conversations that
    /// need a binding.
    #[serde(default)]
    pub recovered_rounds: RecoveredRounds,
    /// Whether user input and restarts need a binding, where the settings of a conversation do not
    /// say.
    #[serde(default)]
    pub authorization: Authorization,
    /// Who refreshes the server's tokens when it asks for that.
    #[serde(default, skip_serializing_if = "is_default")]
    pub token_refresh: TokenRefreshes,
    /// What becomes of a thread whose making nobody can tell of.
    pub unresolved_thread: UnresolvedThread,
    /// Whether answers are recorded, so that a command said again after a crash gets the same one.
    pub remember_commands: bool,
    /// The limits.
    pub limits: Limits,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            client: ClientInfo::default(),
            experimental_api: true,
            opt_out: Vec::new(),
            oldest_server: Version::new(0, 163, 0),
            first_unsupported_server: Version::new(0, 172, 0),
            any_server_version: false,
            merge_deltas: true,
            quiet: Quiet::Tell,
            reroute: Reroute::Tell,
            reconnect: Reconnect::On,
            resend: Resend::WhenProven,
            recovered_turns: RecoveredTurns::Follow,
            recovered_rounds: RecoveredRounds::WaitForBinding,
            authorization: Authorization::Needed,
            token_refresh: TokenRefreshes::Refuse,
            unresolved_thread: UnresolvedThread::Again,
            remember_commands: true,
            limits: Limits::default(),
        }
    }
}

/// Notifications that the core acts on and that can therefore not be opted out of.
pub const NEEDED_NOTIFICATIONS: [&str; 9] = [
    "error",
    "item/completed",
    "serverRequest/resolved",
    "thread/closed",
    "thread/started",
    "thread/status/changed",
    "turn/completed",
    "turn/started",
    "model/rerouted",
];

/// Why a configuration is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// The opt-outs name a notification that the core acts on.
    #[error("{method} cannot be opted out of: turnkeep acts on it")]
    OptOut {
        /// The notification's method.
        method: String,
    },
    /// The client's name is empty or contains a slash, behind which the server's version is read.
    #[error("the client name {name:?} is empty or contains a slash")]
    ClientName {
        /// The name.
        name: String,
    },
}

impl Config {
    /// Checks what cannot be told by types.
    ///
    /// # Errors
    ///
    /// See [`ConfigError`].
    pub fn validate(&self) -> Result<(), ConfigError> {
        if let Some(method) = self
            .opt_out
            .iter()
            .find(|m| NEEDED_NOTIFICATIONS.contains(&m.as_str()))
        {
            return Err(ConfigError::OptOut {
                method: method.clone(),
            });
        }
        let name = &self.client.name;
        if !crate::id::is_clean(name) || name.contains('/') {
            return Err(ConfigError::ClientName { name: name.clone() });
        }
        Ok(())
    }
}

/// Who we are (`initialize.clientInfo`).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ClientInfo {
    /// A short name without a slash.
    pub name: String,
    /// A title for people.
    pub title: String,
    /// The version of the application.
    pub version: String,
}

impl Default for ClientInfo {
    fn default() -> Self {
        Self {
            name: "turnkeep".into(),
            title: "turnkeep".into(),
            version: env!("CARGO_PKG_VERSION").into(),
        }
    }
}

/// What a silent turn leads to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Quiet {
    /// An event that tells what is open.
    #[default]
    Tell,
    /// The event, and the turn is interrupted.
    Interrupt,
}

/// What a model that the server exchanged leads to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Reroute {
    /// A warning with both names.
    #[default]
    Tell,
    /// The turn fails and is interrupted.
    Fail,
}

/// Whether a connection that ends is opened again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Reconnect {
    /// With growing pauses, up to the limit of tries; open turns are suspended until then.
    #[default]
    On,
    /// Never: open turns end as lost with the connection.
    Off,
}

/// Whether a message that the server never recorded is sent again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Resend {
    /// Once its absence from the history is proof.
    #[default]
    WhenProven,
    /// Never: its turn ends as unknown.
    Never,
}

/// What becomes of a turn of an earlier life that the server still runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum RecoveredTurns {
    /// It is followed to its end.
    #[default]
    Follow,
    /// It is interrupted.
    Interrupt,
}

/// What becomes of a round that a later life begins, in a conversation that needs a binding.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum RecoveredRounds {
    /// It waits for one.
    #[default]
    WaitForBinding,
    /// It runs, and its calls carry none.
    Run,
}

/// Who refreshes the server's tokens (`account/chatgptAuthTokens/refresh`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum TokenRefreshes {
    /// Nobody: the server is told at once.
    #[default]
    Refuse,
    /// The application, by
    /// [`Command::RefreshToken`](crate::command::Command::RefreshToken).
    Ask,
}

/// What becomes of a thread whose making nobody can tell of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum UnresolvedThread {
    /// It is made again under a mark of its own: an empty thread holds nothing.
    #[default]
    Again,
    /// The turn that waits for it is rejected; the next one makes it again.
    Ask,
}

macro_rules! limits {
    ($($(#[$doc:meta])* $name:ident: $type:ty = $default:expr,)*) => {
        /// Times, counts and sizes that nothing may exceed.
        #[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
        #[serde(deny_unknown_fields)]
        #[non_exhaustive]
        pub struct Limits { $($(#[$doc])* pub $name: $type,)* }

        impl Default for Limits {
            fn default() -> Self {
                Self { $($name: $default,)* }
            }
        }
    };
}

limits! {
    /// From the opening of a connection to the answer of `initialize`.
    handshake: Duration = Duration::from_secs(30),
    /// From the moment a request left to its answer.
    request: Duration = Duration::from_secs(60),
    /// From the moment `turn/interrupt` left to its answer or the turn's end.
    interrupt: Duration = Duration::from_secs(10),
    /// From the moment the server asks for new tokens to the application's answer. The server's own
    /// limit is 10 s.
    #[serde(default = "token_refresh")]
    token_refresh: Duration = Duration::from_secs(8),
    /// From an idle thread or a fatal error to the end of its turn.
    end_grace: Duration = Duration::from_secs(5),
    /// The first pause after the server said -32001; each next one is twice as long.
    overload_first: Duration = Duration::from_millis(100),
    /// The longest pause after the server said -32001.
    overload_longest: Duration = Duration::from_secs(5),
    /// How often a request is tried that the server answers with -32001.
    overload_tries: u32 = 8,
    /// How long a message that the history lacks is looked for, where the server's process may
    /// still take it.
    settle: Duration = Duration::from_secs(10),
    /// The pause between two such looks.
    settle_every: Duration = Duration::from_millis(250),
    /// The first pause before a connection is opened again; each next one is twice as long.
    reconnect_first: Duration = Duration::from_millis(250),
    /// The longest pause before a connection is opened again; one that was ready for as long
    /// begins the count anew.
    reconnect_longest: Duration = Duration::from_secs(30),
    /// How often in a row a connection is opened again.
    reconnect_tries: u32 = 10,
    /// How long an unfit connection may serve its other turns before it is closed.
    drain: Duration = Duration::from_secs(30),
    /// Silence of a running turn after which [`Quiet`] applies.
    quiet: Duration = Duration::from_secs(120),
    /// Lines in a row that are no frames before the connection is given up.
    noise_lines: u32 = 64,
    /// Frames of one turn that are kept before the response names the turn.
    early_frames: usize = 1_024,
    /// Bytes of one frame, either way.
    frame: usize = 128 << 20,
    /// Arrivals of a conversation that wait for the end of its round.
    mailbox: usize = 10_000,
    /// Commands whose answers are remembered.
    commands: usize = 4_096,
    /// Bytes of a line that a diagnostic shows.
    noise_copy: usize = 1_024,
}

/// What traces mean that do not say it.
const fn token_refresh() -> Duration {
    Duration::from_secs(8)
}

/// A duration that is only ever stored as whole microseconds.
pub(crate) fn half(span: Duration) -> Duration {
    span / 2
}
