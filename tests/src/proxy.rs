//! A connection between a client and a server that can be cut.

use std::{
    io::{self, Read, Write},
    net::{Ipv4Addr, Shutdown, TcpListener, TcpStream},
    os::unix::net::{UnixListener, UnixStream},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, Weak,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    thread,
    time::Duration,
};

use rustix::net::sockopt::set_socket_linger;
use tempfile::TempDir;
use turnkeep_runtime::{ClientConfig, ServerConfig};

use crate::server::Address;

/// A proxy of the test's own between a client and a server that listens. Its connections end with it.
#[derive(Debug)]
pub struct Proxy {
    address: Address,
    shared: Arc<Shared>,
    _dir: Option<TempDir>,
}

#[derive(Debug)]
struct Shared {
    target: Address,
    pairs: Mutex<Vec<Weak<Pair>>>,
    is_shut: AtomicBool,
    is_over: AtomicBool,
    taken: AtomicUsize,
    refused: AtomicUsize,
}

impl Proxy {
    /// Puts a proxy before the server of a configuration.
    ///
    /// # Panics
    ///
    /// If that server is not reached by a socket.
    pub fn before(config: &mut ClientConfig) -> Self {
        let ServerConfig::WebSocket(socket) = &mut config.server else {
            panic!("the server is not reached by a socket");
        };
        let proxy = Self::start(Address::of(&socket.address));
        socket.address = proxy.address.config().address;
        proxy
    }

    /// Starts a proxy that listens as its target does.
    pub fn start(target: Address) -> Self {
        let (listener, address, dir) = match &target {
            Address::Tcp(_) => {
                let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0));
                let listener = listener.expect("loopback has a free port");
                let address = listener.local_addr().expect("it is bound");
                (Listener::Tcp(listener), Address::Tcp(address.port()), None)
            }
            Address::Unix(_) => {
                let dir = tempfile::Builder::new().prefix("turnkeep-proxy-").tempdir();
                let dir = dir.expect("a temporary directory can be made");
                let path = dir.path().join("proxy.sock");
                let listener = UnixListener::bind(&path).expect("the directory is ours");
                (Listener::Unix(listener), Address::Unix(path), Some(dir))
            }
        };
        let shared = Arc::new(Shared {
            target,
            pairs: Mutex::default(),
            is_shut: AtomicBool::new(false),
            is_over: AtomicBool::new(false),
            taken: AtomicUsize::new(0),
            refused: AtomicUsize::new(0),
        });
        let accepting = Arc::clone(&shared);
        thread::spawn(move || accepting.accept(&listener));
        Proxy {
            address,
            shared,
            _dir: dir,
        }
    }

    /// Where it listens.
    pub fn address(&self) -> &Address {
        &self.address
    }

    /// Cuts every connection, without a word: by TCP with a reset.
    pub fn cut(&self) {
        let pairs = std::mem::take(&mut *lock(&self.shared.pairs));
        pairs
            .iter()
            .filter_map(Weak::upgrade)
            .for_each(|pair| pair.cut());
    }

    /// From now on new connections are closed at once.
    pub fn shut(&self) {
        self.shared.is_shut.store(true, Ordering::SeqCst);
    }

    /// From now on new connections are taken again.
    pub fn open(&self) {
        self.shared.is_shut.store(false, Ordering::SeqCst);
    }

    /// How many connections were taken.
    pub fn taken(&self) -> usize {
        self.shared.taken.load(Ordering::SeqCst)
    }

    /// How many connections were closed at once.
    pub fn refused(&self) -> usize {
        self.shared.refused.load(Ordering::SeqCst)
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.shared.is_over.store(true, Ordering::SeqCst);
        // Wakes the accepting thread, which then sees that it is over.
        let _ = self.address.connect();
        self.cut();
    }
}

impl Shared {
    fn accept(self: Arc<Self>, listener: &Listener) {
        loop {
            let client = listener.accept();
            if self.is_over.load(Ordering::SeqCst) {
                return;
            }
            let Ok(client) = client else {
                thread::sleep(Duration::from_millis(5));
                continue;
            };
            if self.is_shut.load(Ordering::SeqCst) {
                self.refused.fetch_add(1, Ordering::SeqCst);
                continue;
            }
            let Ok(server) = Stream::connect(&self.target) else {
                self.refused.fetch_add(1, Ordering::SeqCst);
                continue;
            };
            self.taken.fetch_add(1, Ordering::SeqCst);
            let pair = Arc::new(Pair {
                client,
                server,
                is_cut: AtomicBool::new(false),
            });
            lock(&self.pairs).push(Arc::downgrade(&pair));
            let other = Arc::clone(&pair);
            thread::spawn(move || other.copy(&other.client, &other.server));
            thread::spawn(move || pair.copy(&pair.server, &pair.client));
        }
    }
}

enum Listener {
    Tcp(TcpListener),
    Unix(UnixListener),
}

impl Listener {
    fn accept(&self) -> io::Result<Stream> {
        Ok(match self {
            Self::Tcp(listener) => Stream::tcp(listener.accept()?.0)?,
            Self::Unix(listener) => Stream::Unix(listener.accept()?.0),
        })
    }
}

/// A client and a server.
#[derive(Debug)]
struct Pair {
    client: Stream,
    server: Stream,
    is_cut: AtomicBool,
}

impl Pair {
    fn copy(&self, from: &Stream, to: &Stream) {
        let mut buffer = vec![0; 64 << 10];
        loop {
            let read = from.read(&mut buffer).unwrap_or(0);
            if read == 0 || to.write_all(&buffer[..read]).is_err() {
                break;
            }
        }
        // What was cut is reset when the last thread lets it go: an orderly end would come before that.
        if !self.is_cut.load(Ordering::SeqCst) {
            for stream in [from, to] {
                stream.shutdown(Shutdown::Both);
            }
        }
    }

    fn cut(&self) {
        self.is_cut.store(true, Ordering::SeqCst);
        for stream in [&self.client, &self.server] {
            if let Stream::Tcp(stream) = stream {
                let _ = set_socket_linger(stream, Some(Duration::ZERO));
            }
            stream.shutdown(Shutdown::Read);
        }
    }
}

#[derive(Debug)]
enum Stream {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Stream {
    fn connect(address: &Address) -> io::Result<Self> {
        match address {
            Address::Tcp(port) => Self::tcp(TcpStream::connect((Ipv4Addr::LOCALHOST, *port))?),
            Address::Unix(path) => UnixStream::connect(path).map(Self::Unix),
        }
    }

    fn tcp(stream: TcpStream) -> io::Result<Self> {
        stream.set_nodelay(true)?;
        Ok(Self::Tcp(stream))
    }

    fn read(&self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => (&mut &*stream).read(buffer),
            Self::Unix(stream) => (&mut &*stream).read(buffer),
        }
    }

    fn write_all(&self, bytes: &[u8]) -> io::Result<()> {
        match self {
            Self::Tcp(stream) => (&mut &*stream).write_all(bytes),
            Self::Unix(stream) => (&mut &*stream).write_all(bytes),
        }
    }

    // The other side may be gone already.
    fn shutdown(&self, how: Shutdown) {
        let _ = match self {
            Self::Tcp(stream) => stream.shutdown(how),
            Self::Unix(stream) => stream.shutdown(how),
        };
    }
}

// A test that failed while it held the lock has said so already.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATIENCE: Duration = Duration::from_secs(10);

    /// A server that sends back what comes, once.
    fn echo() -> (Address, thread::JoinHandle<io::Result<usize>>) {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        let served = thread::spawn(move || {
            let (mut stream, _) = listener.accept()?;
            stream.set_read_timeout(Some(PATIENCE))?;
            let mut buffer = [0; 5];
            stream.read_exact(&mut buffer)?;
            stream.write_all(&buffer)?;
            stream.read(&mut buffer)
        });
        (Address::Tcp(port), served)
    }

    #[test]
    fn cut_connection_is_reset_on_both_sides() {
        let (target, served) = echo();
        let proxy = Proxy::start(target);
        let Address::Tcp(port) = *proxy.address() else {
            panic!("it listens as its target does");
        };
        let mut client = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).unwrap();
        client.set_read_timeout(Some(PATIENCE)).unwrap();
        client.write_all(b"hello").unwrap();
        let mut buffer = [0; 5];
        client.read_exact(&mut buffer).unwrap();
        assert_eq!(&buffer, b"hello");
        proxy.shut();
        proxy.cut();
        let reset = |read: io::Result<usize>| read.map_err(|error| error.kind());
        let wanted = Err(io::ErrorKind::ConnectionReset);
        assert_eq!(reset(client.read(&mut buffer)), wanted);
        assert_eq!(reset(served.join().unwrap()), wanted);

        let mut client = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).unwrap();
        client.set_read_timeout(Some(PATIENCE)).unwrap();
        assert_eq!(client.read(&mut buffer).unwrap(), 0);
        assert_eq!((proxy.taken(), proxy.refused()), (1, 1));
    }

    #[test]
    fn orderly_end_is_handed_on() {
        let (target, served) = echo();
        let proxy = Proxy::start(target);
        let mut client = proxy.address().connect().unwrap();
        client.write_all(b"hello").unwrap();
        drop(client);
        assert!(served.join().unwrap().is_ok_and(|read| read == 0));
    }
}
