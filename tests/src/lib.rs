//! Test support: what the tests share. Never published.
//!
//! - [`world`]: a machine with a fake server, a journal and a clock, without threads and without real time;
//! - [`model`]: a language model of our own, for the real app-server to talk to;
//! - [`account`]: an account that there is not, and its backend;
//! - [`crowd`]: a server for many conversations at once;
//! - [`codex`]: where the real app-server is, and a home directory for it;
//! - [`conversation_model`]: conversations against a small reference;
//! - [`crash`]: what the crash suite and the program that it kills have in common;
//! - [`app_server`]: a plain client that speaks JSON lines to it, without turnkeep;
//! - [`lines`]: the sources of this repository, read as text;
//! - [`processes`]: the process table;
//! - [`proxy`]: a connection that can be cut;
//! - [`recordings`]: the real app-server, recorded;
//! - [`both`]: one test, two runtimes;
//! - [`by_hand`]: a machine that is stepped by hand;
//! - [`life`]: a machine life after life, on one journal;
//! - [`rig`]: a machine with running turns, for benchmarks;
//! - [`chosen`]: the runtime and the transport of the live suite;
//! - [`server`]: the real app-server, by the chosen transport;
//! - [`session`]: a client under test, and what must hold at its end;
//! - [`visitor`]: another client of a server that listens, by hand;
//! - [`recording`]: a session of ours, played again;
//! - [`sim`]: the simulator;
//! - [`sockets`]: the fake server behind a socket.

pub mod account;
pub mod app_server;
pub mod both;
pub mod by_hand;
pub mod chosen;
pub mod codex;
pub mod conversation_model;
pub mod crash;
pub mod crowd;
pub mod heard;
pub mod life;
pub mod lines;
pub mod model;
pub mod processes;
pub mod proxy;
pub mod recording;
pub mod recordings;
pub mod rig;
pub mod server;
pub mod session;
pub mod sim;
pub mod sockets;
pub mod visitor;
pub mod world;

use turnkeep_core::{Authorization, Config, config::Reconnect};
use turnkeep_runtime::{ChildConfig, ClientConfig};

pub use crate::chosen::{Chosen, Client};

/// A client with a server of one's own choice, of which nobody needs a binding.
#[must_use]
pub fn client(child: ChildConfig) -> ClientConfig {
    ClientConfig::child(child).machine(|machine| machine.authorization = Authorization::None)
}

/// A configuration under which nobody needs a binding.
#[must_use]
pub fn unbound() -> Config {
    let mut config = Config::default();
    config.authorization = Authorization::None;
    config
}

/// The same without reconnection: what a connection leaves open ends with it.
#[must_use]
pub fn one_connection() -> Config {
    let mut config = unbound();
    config.reconnect = Reconnect::Off;
    config
}
