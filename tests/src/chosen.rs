//! The runtime and the transport of the live suite, as the environment chooses them.

use std::{env, io, path::PathBuf, process::Command, time::Duration};

use turnkeep_async_std::AsyncStd;
use turnkeep_runtime::{BoxFuture, BoxStream, ChildProcess, Runtime};
use turnkeep_tokio::Tokio;

/// The variable of the environment that chooses the runtime.
pub const RUNTIME: &str = "TURNKEEP_RUNTIME";

/// The variable of the environment that chooses the transport.
pub const TRANSPORT: &str = "TURNKEEP_TRANSPORT";

/// A client on the chosen runtime.
pub type Client = turnkeep_runtime::Client<Chosen>;

/// The runtime that [`RUNTIME`] names: `tokio`, also where it is not set, or `async-std`.
#[derive(Clone, Copy, Debug)]
pub enum Chosen {
    Tokio(Tokio),
    AsyncStd(AsyncStd),
}

impl Chosen {
    /// Every runtime by its name.
    pub const NAMES: [&str; 2] = ["tokio", "async-std"];

    fn named(name: &str) -> Option<Self> {
        match name {
            "tokio" => Some(Self::Tokio(Tokio::default())),
            "async-std" => Some(Self::AsyncStd(AsyncStd::default())),
            _ => None,
        }
    }

    fn runtime(&self) -> &dyn Runtime {
        match self {
            Self::Tokio(tokio) => tokio,
            Self::AsyncStd(async_std) => async_std,
        }
    }
}

impl Default for Chosen {
    /// # Panics
    ///
    /// If the environment names another one.
    fn default() -> Self {
        of_environment(RUNTIME, &Self::NAMES, Self::named)
    }
}

impl Runtime for Chosen {
    fn spawn(&self, task: BoxFuture<()>) {
        self.runtime().spawn(task);
    }

    fn sleep(&self, span: Duration) -> BoxFuture<()> {
        self.runtime().sleep(span)
    }

    fn start(&self, command: Command) -> io::Result<Box<dyn ChildProcess>> {
        self.runtime().start(command)
    }

    fn connect_tcp(&self, host: String, port: u16) -> BoxFuture<io::Result<BoxStream>> {
        self.runtime().connect_tcp(host, port)
    }

    fn connect_unix(&self, path: PathBuf) -> BoxFuture<io::Result<BoxStream>> {
        self.runtime().connect_unix(path)
    }
}

/// How the live suite reaches the server, as [`TRANSPORT`] says: `stdio` where it is not set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    /// A child of the client.
    Stdio,
    /// WebSocket by TCP.
    Ws,
    /// WebSocket by a Unix socket.
    Unix,
}

impl Transport {
    /// Every transport by its name.
    pub const NAMES: [&str; 3] = ["stdio", "ws", "unix"];

    /// The one that the environment names.
    ///
    /// # Panics
    ///
    /// If it names an unknown one.
    pub fn chosen() -> Self {
        of_environment(TRANSPORT, &Self::NAMES, Self::named)
    }

    fn named(name: &str) -> Option<Self> {
        match name {
            "stdio" => Some(Self::Stdio),
            "ws" => Some(Self::Ws),
            "unix" => Some(Self::Unix),
            _ => None,
        }
    }

    /// Whether the server runs on its own and is reached by a socket.
    pub fn is_socket(self) -> bool {
        self != Self::Stdio
    }
}

/// The options of `cargo xtask live` that choose the same again.
pub fn options() -> String {
    let option = |name, variable| {
        let value = env::var(variable);
        value.map_or_else(|_| String::new(), |value| format!("--{name} {value} "))
    };
    option("runtime", RUNTIME) + &option("transport", TRANSPORT)
}

// The first name is the one that needs no variable.
fn of_environment<T>(variable: &str, names: &[&str], named: fn(&str) -> Option<T>) -> T {
    let name = env::var_os(variable).map(|name| name.to_string_lossy().into_owned());
    known(variable, name.as_deref().unwrap_or(names[0]), names, named)
        .unwrap_or_else(|error| panic!("{error}"))
}

fn known<T>(
    variable: &str,
    name: &str,
    names: &[&str],
    named: fn(&str) -> Option<T>,
) -> Result<T, String> {
    named(name).ok_or_else(|| format!("{variable} is {name:?}; known are {}", names.join(", ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_is_known_and_no_other() {
        let runtime = |name| known(RUNTIME, name, &Chosen::NAMES, Chosen::named);
        assert!(matches!(runtime("tokio"), Ok(Chosen::Tokio(_))));
        assert!(matches!(runtime("async-std"), Ok(Chosen::AsyncStd(_))));
        assert_eq!(
            runtime("smol").err().as_deref(),
            Some(r#"TURNKEEP_RUNTIME is "smol"; known are tokio, async-std"#)
        );
        let transport = |name| known(TRANSPORT, name, &Transport::NAMES, Transport::named);
        let known = Transport::NAMES.map(|name| transport(name).ok());
        assert_eq!(
            known,
            [Transport::Stdio, Transport::Ws, Transport::Unix].map(Some)
        );
        assert_eq!(
            transport("").err().as_deref(),
            Some(r#"TURNKEEP_TRANSPORT is ""; known are stdio, ws, unix"#)
        );
    }
}
