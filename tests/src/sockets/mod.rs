//! The fake server behind a socket: WebSocket over TCP, TLS or a Unix socket, with the faults of a
//! network.
//!
//! It speaks WebSocket by tungstenite, which the client does not use, in a blocking thread for each
//! connection, so that no bug of ours can hide in it.
//!
//! A script (see [`turnkeep_tokio::fake`]) has these lines beside its own:
//!
//! | line | what the server does |
//! | --- | --- |
//! | `X stderr socket: reset` | cuts the connection in the middle of a frame, without a word |
//! | `X stderr socket: vanish` | closes the connection between two frames, without a word |
//! | `X stderr socket: close CODE TEXT` | sends a close frame, and waits for the answer |
//! | `X stderr socket: deaf` | reads nothing any more, so that it answers no ping either |
//! | `X stderr socket: ping TEXT` | sends a ping |
//! | `X stderr socket: binary BYTES` | sends a binary message |
//! | `X stderr socket: message TEXT` | sends a text message that may hold line feeds (`\n`) |

mod connection;
mod pair;
mod stream;

use std::{
    collections::VecDeque,
    io::{self, Read as _},
    net::{SocketAddr, TcpListener},
    os::unix::net::UnixListener,
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use turnkeep_tokio::fake::{Engine, Script};

use self::stream::Stream;
pub use self::{pair::served, stream::Authority};

/// How long a server lives at most, whatever its test does.
const LIFE: Duration = Duration::from_secs(600);

/// How often a thread looks whether it is to end.
const LOOK: Duration = Duration::from_millis(2);

/// What a connection meets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Door {
    /// It is opened.
    Open,
    /// It is answered with this HTTP status.
    Status(u16),
    /// The request is read and the connection closed.
    HangUp,
    /// The connection is closed before anything is read.
    Slam,
    /// The request is never answered.
    Silent,
    /// The answer is to another request.
    WrongAccept,
    /// The answer agrees to an extension.
    Extension,
    /// The answer is no HTTP.
    NoHttp,
}

/// A server. It ends with its handle.
#[derive(Debug)]
pub struct SocketServer {
    url: String,
    shared: Arc<Shared>,
    listener: Option<JoinHandle<()>>,
}

/// What a client asked for.
#[derive(Clone, Debug, Default)]
pub struct Asked {
    /// The path.
    pub path: String,
    /// The headers, their names in lower case.
    pub headers: Vec<(String, String)>,
    /// When it came.
    pub at: Option<Instant>,
}

/// What happened on a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Seen {
    /// It was opened.
    Opened,
    /// A ping came.
    Ping,
    /// A pong came, with this payload.
    Pong(Vec<u8>),
    /// The client sent a close frame.
    Close(Option<u16>),
    /// It is gone.
    Gone,
    /// The client sent what the script did not expect.
    Mismatch(String),
}

#[derive(Debug)]
struct Shared {
    stop: AtomicBool,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    doors: VecDeque<Door>,
    script: String,
    lives: Lives,
    asked: Vec<Asked>,
    seen: Vec<Seen>,
    /// What the client sent, a line each.
    lines: Vec<String>,
}

#[derive(Debug)]
enum Lives {
    /// Each connection is a server of its own, which begins the next life of the script and has what
    /// the one before bound.
    Each {
        begun: usize,
        last: Option<Arc<Mutex<connection::Play>>>,
    },
    /// One server behind all connections, which plays on while there is none.
    One(Arc<Mutex<connection::Play>>),
}

/// Where a server listens.
enum Listener {
    Tcp(TcpListener),
    Unix(UnixListener),
    Tls(TcpListener, Arc<rustls::ServerConfig>),
}

impl SocketServer {
    /// Listens on a port of its own. Every connection plays the next life of the script.
    ///
    /// # Panics
    ///
    /// It cannot listen.
    #[must_use]
    pub fn tcp(script: &str) -> Self {
        let (listener, address) = tcp();
        Self::start(format!("ws://{address}"), Listener::Tcp(listener), script)
    }

    /// The same with TLS: `localhost` is the name in its certificate.
    ///
    /// # Panics
    ///
    /// It cannot listen.
    #[must_use]
    pub fn tls(script: &str, authority: &Authority) -> Self {
        let (listener, address) = tcp();
        let url = format!("wss://localhost:{}", address.port());
        let listener = Listener::Tls(listener, authority.server());
        Self::start(url, listener, script)
    }

    /// The same on a Unix socket, whose file is made anew.
    ///
    /// # Panics
    ///
    /// It cannot listen.
    #[must_use]
    pub fn unix(path: &Path, script: &str) -> Self {
        let _ = std::fs::remove_file(path);
        let listener = UnixListener::bind(path).expect("a socket file can be made");
        let listening = listener.set_nonblocking(true);
        listening.expect("a listener that does not block");
        let url = format!("unix://{}", path.display());
        Self::start(url, Listener::Unix(listener), script)
    }

    fn start(url: String, listener: Listener, script: &str) -> Self {
        Script::parse(script).expect("a script that can be read");
        let shared = Arc::new(Shared {
            stop: AtomicBool::new(false),
            state: Mutex::new(State {
                doors: VecDeque::new(),
                script: script.to_owned(),
                lives: Lives::Each {
                    begun: 0,
                    last: None,
                },
                asked: Vec::new(),
                seen: Vec::new(),
                lines: Vec::new(),
            }),
        });
        let of = Arc::clone(&shared);
        let listener = thread::spawn(move || listen(&listener, &of));
        Self {
            url,
            shared,
            listener: Some(listener),
        }
    }

    /// What the next connections meet, in order; those after them are let in.
    #[must_use]
    pub fn doors(self, doors: impl IntoIterator<Item = Door>) -> Self {
        self.shared.lock().doors = doors.into_iter().collect();
        self
    }

    /// One server that lives on over all connections and plays its script once.
    ///
    /// # Panics
    ///
    /// The script cannot be read.
    #[must_use]
    pub fn lives_on(self) -> Self {
        {
            let mut state = self.shared.lock();
            let script = Script::parse(&state.script).expect("a script that can be read");
            let play = connection::Play::new(Engine::new(script));
            state.lives = Lives::One(Arc::new(Mutex::new(play)));
        }
        self
    }

    /// Where it listens.
    #[must_use]
    pub fn url(&self) -> &str {
        &self.url
    }

    /// What was asked for, a request each.
    #[must_use]
    pub fn asked(&self) -> Vec<Asked> {
        self.shared.lock().asked.clone()
    }

    /// What happened.
    #[must_use]
    pub fn seen(&self) -> Vec<Seen> {
        self.shared.lock().seen.clone()
    }

    /// What the clients sent, a line each.
    #[must_use]
    pub fn lines(&self) -> Vec<String> {
        self.shared.lock().lines.clone()
    }

    /// Waits until something has happened.
    ///
    /// # Panics
    ///
    /// It does not happen within a minute.
    pub fn wait_for(&self, what: &str, has: impl Fn(&[Seen]) -> bool) {
        let limit = Instant::now() + Duration::from_secs(60);
        while !has(&self.seen()) {
            assert!(Instant::now() < limit, "no {what}: {:?}", self.seen());
            thread::sleep(LOOK);
        }
    }

    /// Ends it, as if its process was killed: nobody listens any more, connections are cut.
    pub fn stop(mut self) {
        self.end();
    }

    fn end(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
        if let Some(listener) = self.listener.take() {
            // A panic in a test server shows in what its client meets.
            let _ = listener.join();
        }
    }
}

impl Drop for SocketServer {
    fn drop(&mut self) {
        self.end();
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    fn is_over(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    fn see(&self, seen: Seen) {
        self.lock().seen.push(seen);
    }
}

impl Asked {
    /// The value of a header.
    #[must_use]
    pub fn header(&self, name: &str) -> Option<&str> {
        let mut all = self.headers.iter();
        all.find(|(of, _)| of == name).map(|(_, value)| &**value)
    }

    fn parse(text: &str) -> Self {
        let mut lines = text.lines();
        let first = lines.next().unwrap_or_default();
        let headers = lines.filter_map(|line| line.split_once(':'));
        Self {
            path: first.split(' ').nth(1).unwrap_or_default().into(),
            headers: headers
                .map(|(name, value)| (name.to_ascii_lowercase(), value.trim().to_owned()))
                .collect(),
            at: Some(Instant::now()),
        }
    }
}

fn tcp() -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a port can be had");
    let listening = listener.set_nonblocking(true);
    listening.expect("a listener that does not block");
    let address = listener.local_addr().expect("a port has an address");
    (listener, address)
}

fn listen(listener: &Listener, shared: &Arc<Shared>) {
    let limit = Instant::now() + LIFE;
    let mut connections = Vec::new();
    while !shared.is_over() && Instant::now() < limit {
        match accept(listener) {
            Ok(stream) => {
                let of = Arc::clone(shared);
                connections.push(thread::spawn(move || serve(stream, &of)));
            }
            Err(_) => thread::sleep(LOOK),
        }
    }
    shared.stop.store(true, Ordering::Relaxed);
    for connection in connections {
        // As above.
        let _ = connection.join();
    }
}

fn accept(listener: &Listener) -> io::Result<Stream> {
    match listener {
        Listener::Tcp(tcp) => Stream::tcp(tcp.accept()?.0),
        Listener::Unix(unix) => Stream::unix(unix.accept()?.0),
        Listener::Tls(tcp, config) => Stream::tls(tcp.accept()?.0, config),
    }
}

fn serve(stream: Stream, shared: &Shared) {
    let door = shared.lock().doors.pop_front().unwrap_or(Door::Open);
    if door == Door::Open {
        connection::open(stream, shared);
    } else {
        // It is closed at the end of this.
        let _ = turn_away(stream, &door, shared);
    }
}

/// Answers a request with something else than a connection.
fn turn_away(mut stream: Stream, door: &Door, shared: &Shared) -> io::Result<()> {
    use std::io::Write as _;
    if *door == Door::Slam {
        return Ok(());
    }
    let mut text = Vec::new();
    while !text.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        match stream.read(&mut byte) {
            Ok(0) => return Ok(()),
            Ok(_) => text.extend_from_slice(&byte),
            Err(error) if stream::is_nothing(&error) && !shared.is_over() => {}
            Err(error) => return Err(error),
        }
    }
    shared
        .lock()
        .asked
        .push(Asked::parse(&String::from_utf8_lossy(&text)));
    let upgraded = "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade";
    match door {
        Door::Open | Door::Slam | Door::HangUp => {}
        Door::Status(status) => {
            write!(stream, "HTTP/1.1 {status} No\r\nContent-Length: 0\r\n\r\n")?
        }
        Door::Silent => {
            while !shared.is_over() && !stream::is_gone(&mut stream) {
                thread::sleep(LOOK);
            }
        }
        Door::WrongAccept => {
            let accept = "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=";
            write!(
                stream,
                "{upgraded}\r\nSec-WebSocket-Accept: {accept}\r\n\r\n"
            )?;
        }
        Door::Extension => {
            let asked = shared.lock().asked.last().cloned().unwrap_or_default();
            let key = asked
                .header("sec-websocket-key")
                .unwrap_or_default()
                .to_owned();
            let accept = tungstenite::handshake::derive_accept_key(key.as_bytes());
            write!(
                stream,
                "{upgraded}\r\nSec-WebSocket-Accept: {accept}\r\n\
                 Sec-WebSocket-Extensions: permessage-deflate\r\n\r\n"
            )?;
        }
        Door::NoHttp => stream.write_all(b"{\"error\":\"what?\"}\n")?,
    }
    stream.flush()
}

/// A directory for a socket: its path must be short.
///
/// # Panics
///
/// None can be made.
#[must_use]
pub fn directory() -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::Builder::new().prefix("tk").tempdir_in("/tmp");
    let dir = dir.or_else(|_| tempfile::tempdir()).expect("a directory");
    let path = dir.path().join("s");
    (dir, path)
}
