//! Whether a server is as an application with a policy wants it.

use alloc::{borrow::ToOwned, collections::BTreeSet, string::String, vec::Vec};
use core::fmt;

use crate::types::{ExperimentalFeature, McpServerStatus};

/// The features with which an agent begins others.
pub const MULTI_AGENT: [&str; 2] = ["multi_agent", "multi_agent_v2"];

/// Something that is not as the policy wants it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PolicyFinding {
    /// An MCP server is configured.
    McpServer {
        /// Its name.
        name: String,
        /// The thread that it was listed for, where it was for one.
        thread: Option<String>,
    },
    /// A feature is on.
    FeatureOn {
        /// Its name.
        name: String,
    },
    /// Whether a feature is on cannot be told: it is not listed, or more than once.
    FeatureUnknown {
        /// Its name.
        name: String,
        /// How often it is listed.
        listed: usize,
    },
}

impl fmt::Display for PolicyFinding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::McpServer { name, thread: None } => {
                write!(f, "the MCP server {name} is configured")
            }
            Self::McpServer {
                name,
                thread: Some(thread),
            } => write!(f, "the MCP server {name} is configured for thread {thread}"),
            Self::FeatureOn { name } => write!(f, "the feature {name} is on"),
            Self::FeatureUnknown { name, listed: 0 } => {
                write!(
                    f,
                    "whether the feature {name} is on is not known: it is not listed"
                )
            }
            Self::FeatureUnknown { name, listed } => write!(
                f,
                "whether the feature {name} is on is not known: it is listed {listed} times"
            ),
        }
    }
}

/// Checks that each feature is listed, once, and off.
#[must_use]
pub fn features_off(listed: &[ExperimentalFeature], names: &[&str]) -> Vec<PolicyFinding> {
    let mut findings = Vec::new();
    for name in names {
        let mut all = listed.iter().filter(|feature| feature.name == *name);
        let name = (*name).to_owned();
        match (all.next(), all.count()) {
            (Some(feature), 0) if feature.enabled => {
                findings.push(PolicyFinding::FeatureOn { name });
            }
            (Some(_), 0) => {}
            (None, _) => findings.push(PolicyFinding::FeatureUnknown { name, listed: 0 }),
            (Some(_), more) => {
                let listed = more + 1;
                findings.push(PolicyFinding::FeatureUnknown { name, listed });
            }
        }
    }
    findings
}

/// Checks that no MCP server is there.
#[must_use]
pub fn no_mcp_servers(listed: &[McpServerStatus], thread: Option<&str>) -> Vec<PolicyFinding> {
    let names: BTreeSet<&str> = listed.iter().map(|server| server.name.as_str()).collect();
    let finding = |name: &str| PolicyFinding::McpServer {
        name: name.to_owned(),
        thread: thread.map(str::to_owned),
    };
    names.into_iter().map(finding).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::Wire as _;

    fn feature(name: &str, enabled: bool) -> ExperimentalFeature {
        let value = json!({
            "name": name, "enabled": enabled, "defaultEnabled": true, "stage": "stable",
        });
        ExperimentalFeature::decode(&value).unwrap()
    }

    #[test]
    fn both_features_must_be_listed_once_and_off() {
        let off = feature("multi_agent", false);
        let off_v2 = feature("multi_agent_v2", false);
        assert_eq!(
            features_off(&[off.clone(), off_v2.clone()], &MULTI_AGENT),
            []
        );
        let on = feature("multi_agent", true);
        assert_eq!(
            features_off(&[on, off_v2.clone()], &MULTI_AGENT),
            [PolicyFinding::FeatureOn {
                name: "multi_agent".into()
            }]
        );
        let unknown = |name: &str, listed| PolicyFinding::FeatureUnknown {
            name: name.into(),
            listed,
        };
        assert_eq!(
            features_off(core::slice::from_ref(&off), &MULTI_AGENT),
            [unknown("multi_agent_v2", 0)]
        );
        assert_eq!(
            features_off(&[off.clone(), off, off_v2], &MULTI_AGENT),
            [unknown("multi_agent", 2)]
        );
    }

    #[test]
    fn every_mcp_server_is_a_finding() {
        let server = json!({
            "name": "files", "authStatus": "unsupported", "resourceTemplates": [],
            "resources": [], "tools": {},
        });
        let server = McpServerStatus::decode(&server).unwrap();
        let findings = no_mcp_servers(&[server.clone(), server], Some("thr_1"));
        assert_eq!(findings.len(), 1);
        assert_eq!(
            findings[0].to_string(),
            "the MCP server files is configured for thread thr_1"
        );
        assert_eq!(no_mcp_servers(&[], None), []);
    }
}
