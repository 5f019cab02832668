//! Durable conversations with `codex app-server` on tokio.
//!
//! ```no_run
//! use turnkeep_tokio::{Authorization, Client, ClientConfig};
//!
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let config = ClientConfig::codex().authorization(Authorization::None);
//! let client = Client::spawn(config).await?;
//! let mut turn = client.conversation("demo").await?.send("hello").await?;
//! println!("{}", turn.final_response().await?);
//! # Ok(())
//! # }
//! ```
//!
//! A [`Client`] runs one server. A [`Conversation`] is known by the application's own key. A
//! [`Turn`] is a stream of [`TurnEvent`]s, and the wait for its end.
//!
//! This crate is tokio's part alone: tasks, time, processes and sockets ([`Tokio`]). Everything else
//! is that of `turnkeep-runtime`, which `turnkeep-async-std` shares, name for name.

#![forbid(unsafe_code)]
#![deny(missing_docs)]

/// The README's examples compile.
#[cfg(doctest)]
#[doc = include_str!("../../README.md")]
struct Readme;

mod runtime;

pub use turnkeep_runtime::*;

pub use crate::runtime::Tokio;

/// A client on tokio.
pub type Client = turnkeep_runtime::Client<Tokio>;

/// Takes two streams of tokio's traits, for [`StreamsConfig`].
pub fn streams(
    reader: impl tokio::io::AsyncRead + Send + Unpin + 'static,
    writer: impl tokio::io::AsyncWrite + Send + Unpin + 'static,
) -> StreamPair {
    use tokio_util::compat::{TokioAsyncReadCompatExt as _, TokioAsyncWriteCompatExt as _};
    StreamPair::new(reader.compat(), writer.compat_write())
}
