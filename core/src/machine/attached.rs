//! How the server is reached and from which home it serves, as the next life must know it.

use alloc::{boxed::Box, format, string::String};

use super::Machine;
use crate::{
    attachment::{Attached, Child, Endpoint},
    effect::{Durability, Effects, Orphan},
    event::{ConnectionEvent, ServerInfo, Warning},
    id::{CodexHome, ConversationId},
    input::Peer,
    record::Record,
};

impl Machine {
    /// A connection came to be. A crash of ours leaves what the system has been given, so that this
    /// need not wait for the disk.
    pub(super) fn attached(&mut self, fx: &mut Effects, peer: &Peer) {
        let endpoint = if peer.is_child() {
            Endpoint::Spawn
        } else {
            peer.endpoint.clone().unwrap_or(Endpoint::Stream)
        };
        let before = self.durable.endpoint().cloned();
        if let Some(was) = before.filter(|was| *was != endpoint) {
            let warning = Warning::OtherEndpoint {
                was: label(&was),
                is: label(&endpoint),
            };
            self.tell_connection(fx, ConnectionEvent::Warning(warning));
        }
        let child = peer.pid.filter(|pid| *pid != 0).map(|pid| Child {
            pid,
            start_time: peer.start_time,
        });
        let attached = Attached {
            endpoint,
            child,
            instructions: None,
        };
        if attached.validate().is_ok() {
            self.record(Record::Attached(Box::new(attached)), Durability::Buffered);
        }
    }

    pub(super) fn home_told(&mut self, fx: &mut Effects, server: &ServerInfo) {
        let Some(home) = server.codex_home.as_deref().and_then(CodexHome::new) else {
            return;
        };
        match self.durable.home() {
            Some(was) if *was == home => return,
            Some(was) => {
                let warning = Warning::OtherHome {
                    was: was.as_str().into(),
                    is: home.as_str().into(),
                };
                self.tell_connection(fx, ConnectionEvent::Warning(warning));
            }
            None => {}
        }
        self.record(Record::HomeTold { home }, Durability::Buffered);
    }

    /// A child of ours has ended with its connection: it leaves no orphan.
    pub(super) fn process_gone(&mut self) {
        if self.durable.orphan().is_some() {
            self.record(Record::Detached, Durability::Buffered);
        }
    }

    /// The child of an earlier life that may still live.
    pub(super) fn orphan(&self) -> Option<Orphan> {
        self.durable.orphan().map(|child| Orphan {
            pid: child.pid,
            start_time: child.start_time,
        })
    }

    /// Whether the server keeps its threads in another place than the one in which it made that of a
    /// conversation: then what it lacks may stand there.
    pub(super) fn is_other_home(&self, conversation: ConversationId) -> bool {
        let made = self
            .durable
            .conversation(conversation)
            .and_then(|known| known.home.as_ref());
        match (made, self.durable.home()) {
            (Some(made), Some(now)) => made != now,
            (Some(_) | None, None) | (None, Some(_)) => false,
        }
    }
}

fn label(endpoint: &Endpoint) -> String {
    match endpoint {
        Endpoint::Spawn => "a child process".into(),
        Endpoint::Tcp { host, port } => format!("{host}:{port}"),
        Endpoint::Unix { path } => path.clone(),
        Endpoint::Stream => "a pair of streams".into(),
    }
}
