//! What a fresh conversation begins with: messages of the system and calls that the application makes
//! for the model, without a round.

use alloc::{
    collections::BTreeSet,
    format,
    string::{String, ToString},
};

use serde::{Deserialize, Serialize};

use crate::{RawJson, durable::is_default, id::is_clean, transcript::BoxBody};

/// One thing that a fresh conversation begins with.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum PreflightItem {
    /// A message of the system.
    System(BoxBody),
    /// A call of a tool of the conversation, offered to the application at once, and again in each
    /// later life until it has its result: it must bear being run twice.
    Call {
        /// The tool.
        tool: String,
        /// Its arguments, an object.
        arguments: RawJson,
        /// Whether the first round waits for its result.
        blocking: bool,
    },
}

/// The same, as it stands in the journal.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "snake_case")]
pub enum PreflightEntry {
    /// A message of the system.
    System(BoxBody),
    /// A call.
    Call {
        /// Its number among the conversation's calls.
        sequence: u64,
        /// What is called.
        offered: Offered,
    },
}

/// A call that is offered again after a crash.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Offered {
    /// The tool.
    pub tool: String,
    /// The arguments, canonical.
    pub arguments: RawJson,
    /// Whether the first round waits for its result.
    #[serde(default, skip_serializing_if = "is_default")]
    pub blocking: bool,
}

/// What is left of a preflight.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Preflight {
    /// The blocking calls without a result.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub blocking: BTreeSet<u64>,
}

/// Checks the entries of a preflight whose calls are numbered on from `last`.
///
/// # Errors
///
/// In words, what is wrong.
pub fn validate(entries: &[PreflightEntry], last: u64) -> Result<(), String> {
    if entries.is_empty() {
        return Err("there is nothing in it".to_string());
    }
    let mut last = last;
    for entry in entries {
        match entry {
            PreflightEntry::System(body) => {
                if body.box_type != crate::transcript::box_type::SYSTEM_MESSAGE {
                    return Err(format!(
                        "a box of type {:?} is no system message",
                        body.box_type
                    ));
                }
            }
            PreflightEntry::Call { sequence, offered } => {
                if Some(*sequence) != last.checked_add(1) {
                    return Err(format!("call {sequence} does not follow call {last}"));
                }
                if !is_clean(&offered.tool) {
                    return Err("a tool's name is empty or has white space at its ends".to_string());
                }
                last = *sequence;
            }
        }
    }
    Ok(())
}
