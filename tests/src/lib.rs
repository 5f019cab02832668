//! Test support: what the tests share. Never published.
//!
//! - [`model`]: a language model of our own, for the real app-server to talk to;
//! - [`codex`]: where the real app-server is, and a home directory for it;
//! - [`app_server`]: a plain client that speaks JSON lines to it, without turnkeep;
//! - [`processes`]: the process table;
//! - [`rig`]: a machine with running turns, for benchmarks;
//! - [`session`]: a client under test, and what must hold at its end;
//! - [`recording`]: a recorded session, played again.

pub mod app_server;
pub mod codex;
pub mod model;
pub mod processes;
pub mod recording;
pub mod rig;
pub mod session;
