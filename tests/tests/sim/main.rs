//! The simulator: its model of the server against the recordings, seeds, the exhaustive companion, and deliberate bugs.

#![allow(clippy::unwrap_used, reason = "helpers of tests are tests")]

#[cfg(feature = "bugs")]
mod bugs;
mod cases;
mod companion;
mod seeds;
mod server;
