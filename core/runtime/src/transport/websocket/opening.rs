//! How a connection comes to be: the socket, TLS, the upgrade.

use std::{
    io,
    sync::{
        Arc,
        atomic::{AtomicU8, Ordering},
    },
    time::Duration,
};

use turnkeep_core::CloseReason;

use super::upgrade::{self, Request};
use crate::{
    clock::CENTURY,
    config::{TokenSource, WebSocketAddress, WebSocketConfig},
    runtime::{BoxStream, Runtime, timeout, unblock},
};

/// What an opening was doing when its deadline came.
const STAGES: [&str; 4] = [
    "the token is still being read",
    "nobody takes the connection",
    "TLS is not agreed on",
    "the connection is there, but the upgrade to WebSocket is not answered",
];

/// Opens a stream, and tells what came behind the server's answer.
pub(super) async fn reach(
    runtime: &Arc<dyn Runtime>,
    config: &WebSocketConfig,
) -> Result<(BoxStream, Vec<u8>), CloseReason> {
    let limit = config.open_limit.min(CENTURY);
    let stage = AtomicU8::new(0);
    let opened = timeout(&**runtime, limit, stages(&**runtime, config, &stage)).await;
    opened.unwrap_or_else(|| {
        let stage = STAGES.get(usize::from(stage.load(Ordering::Relaxed)));
        Err(failed(format!(
            "{} does not answer within {}: {}",
            name(config),
            in_words(limit),
            stage.copied().unwrap_or_default(),
        )))
    })
}

async fn stages(
    runtime: &dyn Runtime,
    config: &WebSocketConfig,
    stage: &AtomicU8,
) -> Result<(BoxStream, Vec<u8>), CloseReason> {
    let token = match &config.token {
        Some(token) => Some(read(token.clone()).await?),
        None => None,
    };
    stage.store(1, Ordering::Relaxed);
    let name = name(config);
    let (stream, host, path) = match &config.address {
        WebSocketAddress::Tcp {
            host,
            port,
            path,
            tls,
        } => {
            let stream = runtime.connect_tcp(host.clone(), *port).await;
            let stream = stream.map_err(|error| failed(tcp_error(&name, &error)))?;
            stage.store(2, Ordering::Relaxed);
            let stream = match tls {
                true => encrypt(stream, host, config).await?,
                false => stream,
            };
            (stream, host_header(host, *port, *tls), &**path)
        }
        WebSocketAddress::Unix { path } => {
            let stream = runtime.connect_unix(path.clone()).await;
            let stream = stream.map_err(|error| failed(unix_error(&name, &error)))?;
            (stream, "localhost".into(), "/")
        }
    };
    stage.store(3, Ordering::Relaxed);
    let request = Request {
        host: &host,
        path,
        token: token.as_deref(),
    };
    upgrade::upgrade(stream, &request, &name).await
}

async fn read(token: TokenSource) -> Result<String, CloseReason> {
    let token = match unblock(move || token.read()).await {
        Some(token) => token,
        None => Err(io::Error::other("the thread that reads the token panicked")),
    };
    token.map_err(|error| failed(error.to_string()))
}

#[cfg(feature = "tls")]
async fn encrypt(
    stream: BoxStream,
    host: &str,
    config: &WebSocketConfig,
) -> Result<BoxStream, CloseReason> {
    let encrypted = super::tls::connect(stream, host, config.ca_file.clone()).await;
    encrypted.map_err(failed)
}

#[cfg(not(feature = "tls"))]
async fn encrypt(_: BoxStream, _: &str, _: &WebSocketConfig) -> Result<BoxStream, CloseReason> {
    Err(failed("wss:// needs the feature \"tls\"".into()))
}

fn failed(why: String) -> CloseReason {
    CloseReason::OpenFailed(why)
}

/// What a person calls the server.
fn name(config: &WebSocketConfig) -> String {
    match &config.address {
        WebSocketAddress::Tcp {
            host, port, tls, ..
        } => {
            let scheme = if *tls { "wss" } else { "ws" };
            format!("{scheme}://{}:{port}", bracketed(host))
        }
        WebSocketAddress::Unix { path } => format!("the socket {}", path.display()),
    }
}

fn bracketed(host: &str) -> String {
    match host.contains(':') {
        true => format!("[{host}]"),
        false => host.into(),
    }
}

fn host_header(host: &str, port: u16, tls: bool) -> String {
    let host = bracketed(host);
    match (port, tls) {
        (80, false) | (443, true) => host,
        _ => format!("{host}:{port}"),
    }
}

fn tcp_error(name: &str, error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::ConnectionRefused => {
            format!("nobody listens at {name} ({error}): is the app-server started?")
        }
        _ => format!("cannot connect to {name}: {error}"),
    }
}

fn unix_error(name: &str, error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::NotFound => {
            format!("{name} does not exist ({error}): is the app-server started?")
        }
        io::ErrorKind::ConnectionRefused => {
            format!("nobody listens at {name} any more ({error}): the app-server has ended")
        }
        _ => format!("cannot connect to {name}: {error}"),
    }
}

/// A span as people say it.
pub(super) fn in_words(span: Duration) -> String {
    match span.subsec_millis() {
        0 => format!("{} s", span.as_secs()),
        _ => format!("{} ms", span.as_millis()),
    }
}
