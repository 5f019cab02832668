//! Streams that the application brings.

use std::{
    fmt,
    future::Future,
    io,
    sync::{Arc, Mutex, PoisonError},
};

use futures_io::{AsyncRead, AsyncWrite};

use crate::runtime::{BoxFuture, BoxRead, BoxWrite};

/// Two streams: where the server's frames come from, and where ours go to, a line each.
pub struct StreamPair {
    pub(crate) reader: BoxRead,
    pub(crate) writer: BoxWrite,
}

impl StreamPair {
    /// Takes two streams. Those of tokio's traits come through `turnkeep_tokio::streams`.
    pub fn new(
        reader: impl AsyncRead + Send + Unpin + 'static,
        writer: impl AsyncWrite + Send + Unpin + 'static,
    ) -> Self {
        Self {
            reader: Box::new(reader),
            writer: Box::new(writer),
        }
    }
}

impl fmt::Debug for StreamPair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("StreamPair")
    }
}

type Make = dyn Fn() -> BoxFuture<io::Result<StreamPair>> + Send + Sync;

/// Where the streams come from that a client speaks over.
///
/// A connection that ends is opened again by itself, so that a fresh pair is asked for then.
#[derive(Clone)]
pub struct StreamsConfig(Arc<Make>);

impl StreamsConfig {
    /// One pair: every connection after the first fails to open. With
    /// [`ClientConfig::one_connection`](crate::ClientConfig::one_connection) none is tried.
    #[must_use]
    pub fn once(pair: StreamPair) -> Self {
        let pair = Mutex::new(Some(pair));
        Self::with(move || {
            let pair = pair.lock().unwrap_or_else(PoisonError::into_inner).take();
            let used = || io::Error::other("the application brought one pair of streams only");
            std::future::ready(pair.ok_or_else(used))
        })
    }

    /// A fresh pair for every connection.
    #[must_use]
    pub fn with<F>(make: impl Fn() -> F + Send + Sync + 'static) -> Self
    where
        F: Future<Output = io::Result<StreamPair>> + Send + 'static,
    {
        Self(Arc::new(move || Box::pin(make())))
    }

    pub(crate) fn next(&self) -> BoxFuture<io::Result<StreamPair>> {
        (self.0)()
    }
}

impl fmt::Debug for StreamsConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("StreamsConfig")
    }
}
