//! turnkeep on tokio.
#![forbid(unsafe_code)]

#[cfg(feature = "fake")]
pub mod fake;
