//! Durable conversations with `codex app-server` on async-std.
//!
//! ```no_run
//! use turnkeep_async_std::{Authorization, Client, ClientConfig};
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
//! The same names as in `turnkeep-tokio`: both are thin, and share `turnkeep-runtime`.
//!
//! **Shut down before `main` returns** ([`Client::shutdown`](turnkeep_runtime::Client::shutdown)): async-std
//! drops no task when a program ends, and what the client still had to do is not done.
//!
//! **async-std is no longer developed** (RUSTSEC-2025-0052). This crate is for programs that are
//! built on it already; one file names it ([`AsyncStd`]), and the README of this crate tells what a
//! move to smol would touch.

#![forbid(unsafe_code)]
#![deny(missing_docs)]

mod runtime;

pub use turnkeep_runtime::*;

pub use crate::runtime::AsyncStd;

/// A client on async-std.
pub type Client = turnkeep_runtime::Client<AsyncStd>;

/// Takes two streams of the traits of `futures-io`, which async-std's are, for [`StreamsConfig`].
pub fn streams(
    reader: impl futures_io::AsyncRead + Send + Unpin + 'static,
    writer: impl futures_io::AsyncWrite + Send + Unpin + 'static,
) -> StreamPair {
    StreamPair::new(reader, writer)
}
