//! The real app-server, by the chosen transport: a child of the client, or a process of the test's own that listens.

use std::{
    io::{self, BufRead as _, BufReader},
    net::{Ipv4Addr, TcpListener, TcpStream},
    os::unix::{net::UnixStream, process::CommandExt as _},
    path::PathBuf,
    process::{Child, Command, Stdio},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU16, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use tempfile::TempDir;
use turnkeep_runtime::{ChildConfig, ClientConfig, WebSocketAddress, WebSocketConfig};

use crate::{
    chosen::Transport,
    processes::{self, Proc},
    session::PATIENCE,
};

/// A server that a client is to reach.
#[derive(Debug)]
pub enum Server {
    /// The client starts it.
    Child(ChildConfig),
    /// It runs already.
    Socket(Listening),
}

impl Server {
    /// Takes a command, and starts it where the chosen transport is a socket.
    pub fn new(command: ChildConfig) -> Self {
        match Transport::chosen() {
            Transport::Stdio => Self::Child(command),
            transport => Self::Socket(Listening::start(command, transport)),
        }
    }

    /// A client's configuration that reaches it.
    pub fn config(&self) -> ClientConfig {
        let config = match self {
            Self::Child(command) => ClientConfig::child(command.clone()),
            Self::Socket(server) => ClientConfig::web_socket(server.address().config()),
        };
        crate::session::authorized(config)
    }
}

/// Where a server listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// A port of this machine.
    Tcp(u16),
    /// A socket of the file system.
    Unix(PathBuf),
}

impl Address {
    /// Where a configuration says that a server of this machine is.
    ///
    /// # Panics
    ///
    /// If it is elsewhere.
    pub fn of(address: &WebSocketAddress) -> Self {
        match address {
            WebSocketAddress::Tcp { port, .. } => Self::Tcp(*port),
            WebSocketAddress::Unix { path } => Self::Unix(path.clone()),
            other => panic!("{other:?} is not on this machine"),
        }
    }

    /// How a client reaches it.
    pub fn config(&self) -> WebSocketConfig {
        match self {
            Self::Tcp(port) => WebSocketConfig::url(&format!("ws://127.0.0.1:{port}"))
                .expect("it is a URL of ours"),
            Self::Unix(path) => WebSocketConfig::unix(path),
        }
    }

    /// Opens a connection.
    ///
    /// # Errors
    ///
    /// Nobody listens.
    pub fn connect(&self) -> io::Result<Box<dyn Duplex>> {
        Ok(match self {
            Self::Tcp(port) => Box::new(TcpStream::connect((Ipv4Addr::LOCALHOST, *port))?),
            Self::Unix(path) => Box::new(UnixStream::connect(path)?),
        })
    }

    /// Its URL.
    pub fn url(&self) -> String {
        match self {
            Self::Tcp(port) => format!("ws://127.0.0.1:{port}"),
            Self::Unix(path) => format!("unix://{}", path.display()),
        }
    }
}

/// A stream of either kind.
pub trait Duplex: io::Read + io::Write + Send {
    /// Sets how long a read may take.
    ///
    /// # Errors
    ///
    /// The system refuses.
    fn set_patience(&self, patience: Duration) -> io::Result<()>;
}

impl Duplex for TcpStream {
    fn set_patience(&self, patience: Duration) -> io::Result<()> {
        self.set_read_timeout(Some(patience))
    }
}

impl Duplex for UnixStream {
    fn set_patience(&self, patience: Duration) -> io::Result<()> {
        self.set_read_timeout(Some(patience))
    }
}

/// A server of the test's own, in a process group of its own, which is killed and reaped on drop.
#[derive(Debug)]
pub struct Listening {
    command: ChildConfig,
    address: Address,
    running: Mutex<Option<Child>>,
    said: Arc<Mutex<String>>,
    _dir: Option<TempDir>,
}

impl Listening {
    /// Starts `command` with `--listen` and waits until it can be connected to.
    ///
    /// # Panics
    ///
    /// If that does not come.
    pub fn start(command: ChildConfig, transport: Transport) -> Self {
        let mut tries = 0;
        loop {
            let (address, dir) = match transport {
                Transport::Stdio => panic!("a child of the client listens nowhere"),
                Transport::Ws => (Address::Tcp(free_port()), None),
                Transport::Unix => {
                    let dir = tempfile::Builder::new()
                        .prefix("turnkeep-socket-")
                        .tempdir();
                    let dir = dir.expect("a temporary directory can be made");
                    (Address::Unix(dir.path().join("server.sock")), Some(dir))
                }
            };
            let server = Self {
                command: command.clone(),
                address,
                running: Mutex::default(),
                said: Arc::default(),
                _dir: dir,
            };
            server.run();
            match server.wait_ready() {
                Ok(()) => return server,
                // Somebody else took the port in between.
                Err(error) if error.contains("in use") && tries < 10 => tries += 1,
                Err(error) => panic!("{error}"),
            }
        }
    }

    /// Where it listens. It stays the same over a restart.
    pub fn address(&self) -> &Address {
        &self.address
    }

    /// The process that was started, which is its process group too.
    ///
    /// # Panics
    ///
    /// If it was killed.
    pub fn pid(&self) -> u32 {
        lock(&self.running).as_ref().expect("it runs").id()
    }

    /// What it said on stderr so far.
    pub fn said(&self) -> String {
        lock(&self.said).clone()
    }

    /// Its processes.
    pub fn family(&self) -> Vec<Proc> {
        let running = lock(&self.running);
        let pid = running.as_ref().map(Child::id);
        pid.map(processes::family).unwrap_or_default()
    }

    /// Kills it with all that it started, and returns what is left. Its socket file stays.
    pub fn kill(&self) -> Vec<Proc> {
        let Some(mut child) = lock(&self.running).take() else {
            return Vec::new();
        };
        let family = processes::kill_family(child.id());
        let _ = child.wait();
        let left = processes::wait_gone(&family, PATIENCE);
        // A process may look gone while the last of its threads still holds what it listens on.
        let end = Instant::now() + PATIENCE;
        while self.address.connect().is_ok() {
            assert!(Instant::now() < end, "somebody still listens there");
            thread::sleep(Duration::from_millis(1));
        }
        left
    }

    /// Starts another one at the same address and waits until it can be connected to.
    ///
    /// # Panics
    ///
    /// If the one before still runs, or this one does not come.
    pub fn start_again(&self) {
        assert!(lock(&self.running).is_none(), "it runs");
        self.run();
        self.wait_ready().unwrap_or_else(|error| panic!("{error}"));
    }

    fn run(&self) {
        let mut command = Command::new(&self.command.program);
        command
            .args(&self.command.args)
            .args(["--listen", &self.address.url()])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .process_group(0);
        for (name, value) in &self.command.env {
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
        command.envs(
            self.command
                .codex_home
                .iter()
                .map(|home| ("CODEX_HOME", home)),
        );
        self.command.cwd.iter().for_each(|cwd| {
            command.current_dir(cwd);
        });
        let child = command.spawn();
        let mut child = child.unwrap_or_else(|error| panic!("the server does not start: {error}"));
        lock(&self.said).clear();
        let stderr = child.stderr.take().expect("stderr is piped");
        let said = Arc::clone(&self.said);
        thread::spawn(move || {
            for line in BufReader::new(stderr).lines().map_while(Result::ok) {
                let mut said = lock(&said);
                said.push_str(&line);
                said.push('\n');
            }
        });
        *lock(&self.running) = Some(child);
    }

    fn wait_ready(&self) -> Result<(), String> {
        let end = Instant::now() + PATIENCE;
        loop {
            if self.says_ready() && self.address.connect().is_ok() {
                return Ok(());
            }
            let ended = match &mut *lock(&self.running) {
                Some(child) => child.try_wait().expect("it is our child"),
                None => panic!("it does not run"),
            };
            if ended.is_some() || Instant::now() >= end {
                // What it said last.
                thread::sleep(Duration::from_millis(50));
                let said = self.said();
                return Err(format!(
                    "the server cannot be reached ({ended:?}); it said\n{said}"
                ));
            }
            thread::sleep(Duration::from_millis(5));
        }
    }

    /// By TCP it says where it listens; another one might listen there.
    fn says_ready(&self) -> bool {
        match self.address {
            Address::Tcp(_) => self.said().contains(&format!("{}\n", self.address.url())),
            Address::Unix(_) => true,
        }
    }
}

/// A port that nobody listens on, and that the system gives to no connection while the server is away.
fn free_port() -> u16 {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    // Another process of tests begins elsewhere.
    let first = u16::try_from(std::process::id() % 200).unwrap_or_default() * 100;
    loop {
        let port = 10_000 + first.wrapping_add(NEXT.fetch_add(1, Ordering::Relaxed)) % 22_000;
        if TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok() {
            return port;
        }
    }
}

impl Drop for Listening {
    fn drop(&mut self) {
        self.kill();
    }
}

// A test that failed while it held the lock has said so already.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
