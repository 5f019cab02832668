//! The states of MCP servers, as they are told.

use alloc::{borrow::ToOwned, collections::BTreeMap, string::String};

use crate::types::{McpServerStartupState, McpServerStatusUpdatedNotification};

/// How MCP servers start, each for itself and for each thread.
///
/// The server tells the same state twice, and a `cancelled` between two starts
/// (`mcpServer/startupStatus/updated`): only what changes a state is a change, and a `cancelled` of a
/// server that is ready says nothing. No state of an MCP server fails a turn.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct McpServers {
    states: BTreeMap<McpServerKey, McpServerState>,
}

/// Which MCP server.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct McpServerKey {
    /// The thread that it is for, where it is for one.
    pub thread: Option<String>,
    /// The environment that it runs in, where it is told.
    pub environment: Option<String>,
    /// Its name.
    pub name: String,
}

/// How it is with an MCP server.
#[derive(Clone, Debug, PartialEq)]
pub struct McpServerState {
    /// Its state.
    pub state: McpServerStartupState,
    /// What went wrong, where something did.
    pub error: Option<String>,
}

impl McpServers {
    /// Nothing is known yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes what was told; `Some` where it changes something.
    pub fn update(
        &mut self,
        told: &McpServerStatusUpdatedNotification,
    ) -> Option<(McpServerKey, McpServerState)> {
        let key = McpServerKey {
            thread: told.thread_id.as_deref().map(str::to_owned),
            environment: told.environment_id.as_deref().map(str::to_owned),
            name: told.name.clone(),
        };
        let state = McpServerState {
            state: told.status.clone(),
            error: told.error.as_deref().map(str::to_owned),
        };
        let known = self.states.get(&key);
        let is_ready = known.is_some_and(|known| known.state == McpServerStartupState::Ready);
        let is_late = is_ready && state.state == McpServerStartupState::Cancelled;
        if known == Some(&state) || is_late {
            return None;
        }
        self.states.insert(key.clone(), state.clone());
        Some((key, state))
    }

    /// All of them.
    pub fn iter(&self) -> impl Iterator<Item = (&McpServerKey, &McpServerState)> {
        self.states.iter()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::Wire as _;

    fn told(thread: Option<&str>, status: &str) -> McpServerStatusUpdatedNotification {
        let value = json!({ "name": "files", "status": status, "threadId": thread });
        McpServerStatusUpdatedNotification::decode(&value).unwrap()
    }

    #[test]
    fn state_told_twice_is_one_change() {
        let mut servers = McpServers::new();
        assert!(servers.update(&told(None, "starting")).is_some());
        assert!(servers.update(&told(None, "starting")).is_none());
        assert!(servers.update(&told(None, "ready")).is_some());
        assert!(servers.update(&told(None, "ready")).is_none());
    }

    #[test]
    fn cancelled_start_of_a_ready_server_says_nothing() {
        let mut servers = McpServers::new();
        servers.update(&told(None, "ready"));
        assert!(servers.update(&told(None, "cancelled")).is_none());
        assert!(servers.update(&told(None, "starting")).is_some());
        assert!(servers.update(&told(None, "cancelled")).is_some());
    }

    #[test]
    fn threads_have_states_of_their_own() {
        let mut servers = McpServers::new();
        assert!(servers.update(&told(Some("a"), "ready")).is_some());
        assert!(servers.update(&told(Some("b"), "ready")).is_some());
        assert_eq!(servers.iter().count(), 2);
    }

    #[test]
    fn state_that_is_not_known_is_a_state() {
        let mut servers = McpServers::new();
        let (_, state) = servers.update(&told(None, "dreaming")).unwrap();
        assert_eq!(state.state.as_str(), Some("dreaming"));
    }
}
