//! Streams of a server, all of which a read waits for a moment only.

use std::{
    io::{self, Read, Write},
    net::{Shutdown, TcpStream},
    os::unix::net::UnixStream,
    path::PathBuf,
    sync::Arc,
    time::Duration,
};

use rustls::{
    ServerConfig, ServerConnection, StreamOwned,
    crypto::ring,
    pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer},
};

/// How long a read waits.
const MOMENT: Duration = Duration::from_millis(1);

#[derive(Debug)]
pub(super) enum Stream {
    Tcp(TcpStream),
    Unix(UnixStream),
    Tls(Box<StreamOwned<ServerConnection, TcpStream>>),
}

impl Stream {
    pub(super) fn tcp(stream: TcpStream) -> io::Result<Self> {
        stream.set_nonblocking(false)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(MOMENT))?;
        Ok(Self::Tcp(stream))
    }

    pub(super) fn unix(stream: UnixStream) -> io::Result<Self> {
        stream.set_nonblocking(false)?;
        stream.set_read_timeout(Some(MOMENT))?;
        Ok(Self::Unix(stream))
    }

    pub(super) fn tls(stream: TcpStream, config: &Arc<ServerConfig>) -> io::Result<Self> {
        stream.set_nonblocking(false)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(MOMENT))?;
        let connection = ServerConnection::new(Arc::clone(config)).map_err(io::Error::other)?;
        Ok(Self::Tls(Box::new(StreamOwned::new(connection, stream))))
    }

    /// Cuts it, so that the other side sees a reset where the system can say so.
    pub(super) fn reset(&self) {
        let tcp = match self {
            Self::Tcp(stream) => stream,
            Self::Tls(stream) => &stream.sock,
            Self::Unix(stream) => {
                let _ = stream.shutdown(Shutdown::Both);
                return;
            }
        };
        // Nothing is kept for later: what is closed then is reset.
        let _ = rustix::net::sockopt::set_socket_linger(tcp, Some(Duration::ZERO));
    }
}

impl Read for Stream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.read(buffer),
            Self::Unix(stream) => stream.read(buffer),
            Self::Tls(stream) => stream.read(buffer),
        }
    }
}

impl Write for Stream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.write(bytes),
            Self::Unix(stream) => stream.write(bytes),
            Self::Tls(stream) => stream.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Self::Tcp(stream) => stream.flush(),
            Self::Unix(stream) => stream.flush(),
            Self::Tls(stream) => stream.flush(),
        }
    }
}

/// Whether an error says that nothing is there yet.
pub(super) fn is_nothing(error: &io::Error) -> bool {
    use io::ErrorKind as Kind;
    matches!(
        error.kind(),
        Kind::WouldBlock | Kind::TimedOut | Kind::Interrupted
    )
}

/// Whether the other side has closed its end.
pub(super) fn is_gone(stream: &mut Stream) -> bool {
    match stream.read(&mut [0; 64]) {
        Ok(0) => true,
        Ok(_) => false,
        Err(error) => !is_nothing(&error),
    }
}

/// Who vouches for a server of tests, and the certificate of that server.
#[derive(Debug)]
pub struct Authority {
    dir: tempfile::TempDir,
    server: Arc<ServerConfig>,
}

impl Authority {
    /// A new one, which nobody trusts yet, with a certificate for this name.
    ///
    /// # Panics
    ///
    /// It cannot be made.
    #[must_use]
    pub fn new(name: &str) -> Self {
        use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
        let ca_key = KeyPair::generate().expect("a key");
        let mut params = CertificateParams::new(Vec::new()).expect("no names");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let ca = params.self_signed(&ca_key).expect("a certificate of a CA");
        let dir = tempfile::tempdir().expect("a directory");
        let written = std::fs::write(dir.path().join("ca.pem"), ca.pem());
        written.expect("a file can be written");
        let issuer = Issuer::new(params, ca_key);
        let key = KeyPair::generate().expect("a key");
        let params = CertificateParams::new(vec![name.to_owned()]).expect("a name");
        let certificate = params.signed_by(&key, &issuer).expect("a certificate");
        let key = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(key.serialize_der()));
        let provider = Arc::new(ring::default_provider());
        let server = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .expect("versions of TLS")
            .with_no_client_auth()
            .with_single_cert(vec![certificate.der().clone()], key)
            .expect("a certificate and its key");
        Self {
            dir,
            server: Arc::new(server),
        }
    }

    /// The file of its certificate.
    #[must_use]
    pub fn file(&self) -> PathBuf {
        self.dir.path().join("ca.pem")
    }

    pub(super) fn server(&self) -> Arc<ServerConfig> {
        Arc::clone(&self.server)
    }
}
