//! The simulator: its model of the server against the recordings, seeds, the exhaustive companion, and deliberate bugs.

#![allow(clippy::unwrap_used, reason = "helpers of tests are tests")]

mod companion;
mod seeds;
mod server;
