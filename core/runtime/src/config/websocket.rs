//! A server that runs already, over WebSocket.

use std::{
    fmt, fs, io,
    path::{Path, PathBuf},
    time::Duration,
};

use turnkeep_core::attachment::Endpoint;

/// A server that is reached over WebSocket (`codex app-server --listen URL`), by TCP or by a Unix
/// socket. Whoever started it stops it.
#[derive(Clone)]
#[non_exhaustive]
pub struct WebSocketConfig {
    /// Where the server is.
    pub address: WebSocketAddress,
    /// The bearer token that the server asks for. It stands in no log and in no recording.
    pub token: Option<TokenSource>,
    /// Whether the token may go over plain TCP to another machine.
    pub token_over_plain_tcp: bool,
    /// A file of certificates (PEM) that are trusted instead of the system's roots, for `wss://`.
    pub ca_file: Option<PathBuf>,
    /// How long the opening may take, all of it: the token's file, the name, TLS and the server's
    /// answer. The limit of the handshake (`Limits::handshake`, 30 s) runs from the same moment.
    pub open_limit: Duration,
    /// The pause between two pings.
    pub ping_every: Duration,
    /// How long the answer to a ping may take, before the connection is taken for lost.
    pub pong_limit: Duration,
    /// How long the other side may take to answer our close.
    pub close_limit: Duration,
}

/// Where a server listens.
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum WebSocketAddress {
    /// A port.
    Tcp {
        /// The host's name or address, without brackets.
        host: String,
        /// The port.
        port: u16,
        /// Path and query that are asked for, `/` at least.
        path: String,
        /// Whether TLS is spoken (`wss://`).
        tls: bool,
    },
    /// A socket of the file system.
    Unix {
        /// Its path.
        path: PathBuf,
    },
}

/// Where a bearer token comes from.
#[derive(Clone)]
#[non_exhaustive]
pub enum TokenSource {
    /// The token itself.
    Value(String),
    /// A file that holds it, read at each opening; white space at its ends is no part of it.
    File(PathBuf),
}

/// Why a WebSocket's configuration is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum WebSocketConfigError {
    /// The text is no URL.
    #[error("{url:?} is no URL: {reason}")]
    BadUrl {
        /// The text.
        url: String,
        /// What is wrong with it.
        reason: String,
    },
    /// The URL begins with something else than `ws://`, `wss://` and `unix://`.
    #[error("{scheme}:// is not served: ws://, wss:// and unix:// are")]
    Scheme {
        /// What it begins with.
        scheme: String,
    },
    /// The URL holds a user or a password.
    #[error("the URL holds a user or a password: a token is given by token or token_file")]
    UserInUrl,
    /// The URL holds a fragment.
    #[error("the URL holds a fragment, which no server is told")]
    Fragment,
    /// The port is 0.
    #[error("the port is 0")]
    NoPort,
    /// A Unix socket has an absolute path.
    #[error("{path:?} is no absolute path of a socket")]
    NoPath {
        /// What stands there.
        path: String,
    },
    /// `wss://` needs the feature `tls`.
    #[error("wss:// needs the feature \"tls\" of the crate")]
    NoTls,
    /// A token would go over plain TCP to another machine, where anybody on the way reads it.
    #[error(
        "a token must not go over plain ws:// to {host}: use wss://, or token_over_plain_tcp to \
         send it all the same"
    )]
    TokenOverPlainTcp {
        /// The host.
        host: String,
    },
    /// A token is empty or holds what no header may hold.
    #[error("the token is empty or holds a character that no HTTP header may hold")]
    BadToken,
    /// A CA file is given, but no TLS is spoken.
    #[error("a CA file is for wss:// alone")]
    CaWithoutTls,
}

impl WebSocketConfig {
    /// A server at `ws://HOST:PORT`, `wss://HOST:PORT` or `unix:///PATH`.
    ///
    /// # Errors
    ///
    /// See [`WebSocketConfigError`].
    pub fn url(url: &str) -> Result<Self, WebSocketConfigError> {
        let parsed = url::Url::parse(url).map_err(|error| WebSocketConfigError::BadUrl {
            // What cannot be parsed may hold a password: the beginning tells enough.
            url: match url.contains(['@', '?']) {
                true => "…".to_owned(),
                false => url.to_owned(),
            },
            reason: error.to_string(),
        })?;
        let scheme = parsed.scheme();
        if scheme == "unix" {
            let path = url.split_once("://").map_or("", |(_, path)| path);
            return match path.starts_with('/') {
                true => Ok(Self::unix(path)),
                false => Err(WebSocketConfigError::NoPath { path: path.into() }),
            };
        }
        if !matches!(scheme, "ws" | "wss") {
            return Err(WebSocketConfigError::Scheme {
                scheme: scheme.into(),
            });
        }
        if !parsed.username().is_empty() || parsed.password().is_some() {
            return Err(WebSocketConfigError::UserInUrl);
        }
        if parsed.fragment().is_some() {
            return Err(WebSocketConfigError::Fragment);
        }
        let host = match parsed.host() {
            Some(url::Host::Domain(name)) => name.to_owned(),
            Some(url::Host::Ipv4(address)) => address.to_string(),
            Some(url::Host::Ipv6(address)) => address.to_string(),
            None => {
                return Err(WebSocketConfigError::BadUrl {
                    url: url.into(),
                    reason: "it names no host".into(),
                });
            }
        };
        let port = parsed.port_or_known_default().unwrap_or_default();
        if port == 0 {
            return Err(WebSocketConfigError::NoPort);
        }
        let query = parsed.query().map(|query| format!("?{query}"));
        Ok(Self::at(WebSocketAddress::Tcp {
            host,
            port,
            path: format!("{}{}", parsed.path(), query.unwrap_or_default()),
            tls: scheme == "wss",
        }))
    }

    /// A server at a Unix socket.
    #[must_use]
    pub fn unix(path: impl Into<PathBuf>) -> Self {
        Self::at(WebSocketAddress::Unix { path: path.into() })
    }

    fn at(address: WebSocketAddress) -> Self {
        Self {
            address,
            token: None,
            token_over_plain_tcp: false,
            ca_file: None,
            open_limit: Duration::from_secs(10),
            ping_every: Duration::from_secs(20),
            pong_limit: Duration::from_secs(20),
            close_limit: Duration::from_secs(5),
        }
    }

    /// Gives the server this bearer token.
    #[must_use]
    pub fn token(mut self, token: impl Into<String>) -> Self {
        self.token = Some(TokenSource::Value(token.into()));
        self
    }

    /// Gives the server the bearer token that a file holds. It is read at each opening.
    #[must_use]
    pub fn token_file(mut self, path: impl Into<PathBuf>) -> Self {
        self.token = Some(TokenSource::File(path.into()));
        self
    }

    /// Lets the token go over plain TCP to another machine, where anybody on the way reads it.
    #[must_use]
    pub fn token_over_plain_tcp(mut self) -> Self {
        self.token_over_plain_tcp = true;
        self
    }

    /// Trusts the certificates of a file (PEM) instead of the system's roots.
    #[must_use]
    pub fn ca_file(mut self, path: impl Into<PathBuf>) -> Self {
        self.ca_file = Some(path.into());
        self
    }

    /// Sets how long the opening may take.
    #[must_use]
    pub fn open_limit(mut self, limit: Duration) -> Self {
        self.open_limit = limit;
        self
    }

    /// Sets the pause between two pings, and how long the answer to one may take.
    #[must_use]
    pub fn pings(mut self, every: Duration, pong: Duration) -> Self {
        (self.ping_every, self.pong_limit) = (every, pong);
        self
    }

    /// Sets how long the other side may take to answer our close.
    #[must_use]
    pub fn close_limit(mut self, limit: Duration) -> Self {
        self.close_limit = limit;
        self
    }

    /// Checks what types cannot tell, before anything is opened.
    ///
    /// # Errors
    ///
    /// See [`WebSocketConfigError`].
    pub fn validate(&self) -> Result<(), WebSocketConfigError> {
        let tls = matches!(self.address, WebSocketAddress::Tcp { tls: true, .. });
        if tls && cfg!(not(feature = "tls")) {
            return Err(WebSocketConfigError::NoTls);
        }
        if self.ca_file.is_some() && !tls {
            return Err(WebSocketConfigError::CaWithoutTls);
        }
        match &self.address {
            WebSocketAddress::Tcp { port: 0, .. } => return Err(WebSocketConfigError::NoPort),
            WebSocketAddress::Tcp { host, .. } => {
                let plain = !tls && !is_loopback(host);
                if self.token.is_some() && plain && !self.token_over_plain_tcp {
                    return Err(WebSocketConfigError::TokenOverPlainTcp { host: host.clone() });
                }
            }
            WebSocketAddress::Unix { path } if path.as_os_str().is_empty() => {
                let path = String::new();
                return Err(WebSocketConfigError::NoPath { path });
            }
            WebSocketAddress::Unix { .. } => {}
        }
        match &self.token {
            Some(TokenSource::Value(token)) if !is_token(token) => {
                Err(WebSocketConfigError::BadToken)
            }
            Some(_) | None => Ok(()),
        }
    }

    /// Where the server is, in the core's words.
    pub(crate) fn endpoint(&self) -> Endpoint {
        match &self.address {
            WebSocketAddress::Tcp { host, port, .. } => Endpoint::Tcp {
                host: host.clone(),
                port: *port,
            },
            WebSocketAddress::Unix { path } => Endpoint::Unix {
                path: path.to_string_lossy().into_owned(),
            },
        }
    }
}

impl TokenSource {
    /// The token of this moment. May block for the time of reading a small file.
    pub(crate) fn read(&self) -> io::Result<String> {
        let (token, what) = match self {
            Self::Value(token) => (token.clone(), "the token".to_owned()),
            Self::File(path) => (
                read_small(path)?,
                format!("the token in {}", path.display()),
            ),
        };
        if is_token(&token) {
            return Ok(token);
        }
        let why = format!("{what} is empty or holds a character that no HTTP header may hold");
        Err(io::Error::new(io::ErrorKind::InvalidData, why))
    }
}

fn read_small(path: &Path) -> io::Result<String> {
    let named = |error: io::Error| {
        let why = format!("cannot read the token in {}: {error}", path.display());
        io::Error::new(error.kind(), why)
    };
    let text = fs::read_to_string(path).map_err(named)?;
    Ok(text.trim().to_owned())
}

/// What may follow `Bearer `: visible ASCII.
fn is_token(token: &str) -> bool {
    !token.is_empty() && token.bytes().all(|byte| byte.is_ascii_graphic())
}

fn is_loopback(host: &str) -> bool {
    let address = host.parse::<std::net::IpAddr>();
    host.eq_ignore_ascii_case("localhost") || address.is_ok_and(|address| address.is_loopback())
}

impl fmt::Debug for WebSocketConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WebSocketConfig")
            .field("address", &self.address)
            .field("token", &self.token)
            .field("token_over_plain_tcp", &self.token_over_plain_tcp)
            .field("ca_file", &self.ca_file)
            .field("open_limit", &self.open_limit)
            .field("ping_every", &self.ping_every)
            .field("pong_limit", &self.pong_limit)
            .field("close_limit", &self.close_limit)
            .finish()
    }
}

impl fmt::Debug for WebSocketAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp {
                host,
                port,
                path,
                tls,
            } => f
                .debug_struct("Tcp")
                .field("host", host)
                .field("port", port)
                // What follows may be a secret.
                .field("path", &path.split('?').next().unwrap_or_default())
                .field("tls", tls)
                .finish(),
            Self::Unix { path } => f.debug_struct("Unix").field("path", path).finish(),
        }
    }
}

impl fmt::Debug for TokenSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Value(_) => f.write_str("Value(…)"),
            Self::File(path) => f.debug_tuple("File").field(path).finish(),
        }
    }
}
