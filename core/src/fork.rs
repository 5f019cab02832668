//! A conversation made of another one.
//!
//! It has a key, a number and a nonce of its own, a copy of the boxes, and nothing open. Its native
//! thread is a fork of the other's, made under a source mark as any thread is, which the server keeps
//! on forks too: one that no answer told of is looked for by it and never made a second time.

use alloc::{boxed::Box, string::String};

use serde::{Deserialize, Serialize};

use crate::{
    command::{Authorization, Settings},
    id::{ConversationId, ConversationKey, Nonce, ThreadId},
};

/// A conversation is made of another one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Forked {
    /// Its number.
    pub conversation: ConversationId,
    /// The application's name for it.
    pub key: ConversationKey,
    /// What its call ids are told by.
    pub nonce: Nonce,
    /// How it is held.
    pub settings: Box<Settings>,
    /// Whether user input and restarts need a binding.
    pub authorization: Authorization,
    /// The other one.
    pub from: ConversationId,
    /// What its native thread is known by: `thread/fork` may leave from now on. Without one it has no
    /// thread yet, as the other one had none that held anything.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mark: Option<String>,
}

/// What a conversation was made of.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ForkOf {
    /// The other one.
    pub conversation: ConversationId,
    /// The thread that is forked, where one is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub thread: Option<ThreadId>,
}
