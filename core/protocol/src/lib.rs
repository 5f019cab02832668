//! The whole protocol of `codex app-server`, in types that lose nothing.
//!
//! The types are generated from the schema that the server itself writes, of 0.163.0 to 0.171.0 at
//! once, stable and experimental: every request, every answer, every notification, every request of
//! the server. `PROTOCOL.md` lists them, and how the versions differ.
//!
//! - An enum keeps a value that it does not have, and one that it has in another shape, as it came
//!   ([`Unknown`]).
//! - An object keeps members that it does not have (`unknown`), and tells absent from null where both
//!   may be ([`Maybe`]).
//! - A message that cannot be read is kept with the place that is wrong ([`Malformed`]).
//! - A [`Request`] knows its method, its answer, and whether it changes the server.
//!
//! ```
//! use turnkeep_protocol::{Request as _, read, requests::ThreadList, types::ThreadListResponse};
//!
//! let request = ThreadList {
//!     limit: 20.into(),
//!     ..ThreadList::new()
//! };
//! assert_eq!(ThreadList::METHOD, "thread/list");
//! assert_eq!(request.params(), Some(serde_json::json!({ "limit": 20 })));
//!
//! let answer = r#"{"data": [], "nextCursor": null, "mood": "sunny"}"#;
//! let answer: ThreadListResponse = read(answer)?;
//! assert_eq!(answer.unknown["mood"], "sunny");
//! # Ok::<(), turnkeep_protocol::ReadError>(())
//! ```
//!
//! Names and descriptions of the types are codex's own (Apache-2.0, OpenAI). The crate does no IO; it
//! needs `alloc` and nothing of `std`.

#![cfg_attr(not(test), no_std)]
#![forbid(unsafe_code)]

extern crate alloc;

mod json;
#[cfg(feature = "types")]
#[macro_use]
mod macros;
#[cfg(feature = "types")]
mod limits;
#[cfg(feature = "types")]
mod list;
#[cfg(feature = "types")]
mod mcp;
#[cfg(feature = "types")]
pub mod models;
#[cfg(feature = "types")]
pub mod policy;
#[cfg(feature = "types")]
mod request;
#[cfg(feature = "types")]
mod wire;

#[cfg(feature = "schema")]
pub mod schema;

#[cfg(feature = "types")]
#[rustfmt::skip]
#[allow(clippy::all, clippy::pedantic, rustdoc::all, missing_debug_implementations)]
#[path = "generated/types.rs"]
pub mod types;

#[cfg(feature = "types")]
#[rustfmt::skip]
#[allow(clippy::all, clippy::pedantic, rustdoc::all, missing_debug_implementations)]
#[path = "generated/requests.rs"]
pub mod requests;

#[cfg(feature = "types")]
#[rustfmt::skip]
#[allow(clippy::all, clippy::pedantic, rustdoc::all, missing_debug_implementations)]
#[path = "generated/messages.rs"]
mod messages;

#[cfg(feature = "types")]
use alloc::string::{String, ToString};

pub use serde_json::Value;

pub use self::json::parse;

#[cfg(feature = "types")]
pub use self::{
    limits::{MAIN_LIMIT, RateLimits},
    list::{ListError, Listing, PAGES, Paged, ROWS, item_id},
    mcp::{McpServerKey, McpServerState, McpServers},
    messages::{ServerNotification, ServerRequest, ServerRequestAnswer},
    request::{Effect, Malformed, MethodInfo, Request, Stage, UnknownMessage, is_secret},
    requests::{ClientRequest, ServerResponse},
    wire::{
        DecodeError, Fault, JsonPath, Maybe, Strange, Stranger, StrangerKind, Unknown, Wire, kind,
    },
};

#[cfg(feature = "types")]
/// What the generated files use.
mod prelude {
    pub(crate) use alloc::{borrow::ToOwned as _, collections::BTreeMap, string::String, vec::Vec};
    pub(crate) use core::fmt;

    pub(crate) use serde_json::{Map, Value};

    pub(crate) use crate::{
        json,
        request::{self, Effect, Malformed, MethodInfo, Request, Stage, UnknownMessage},
        wire::{self, Always, DecodeError, Maybe, Object, Slot, Strange, Stranger, Unknown, Wire},
    };
}

#[cfg(feature = "types")]
/// A text is not JSON of a type.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReadError {
    /// It is not JSON.
    #[error("not JSON: {0}")]
    Json(#[from] serde_json::Error),
    /// It is JSON of another shape.
    #[error(transparent)]
    Shape(#[from] DecodeError),
}

#[cfg(feature = "types")]
/// Reads a type from JSON text.
///
/// # Errors
///
/// The text is not JSON, or not of the type's shape.
pub fn read<T: Wire>(json: &str) -> Result<T, ReadError> {
    Ok(T::decode(&parse(json)?)?)
}

#[cfg(feature = "types")]
/// Writes a type as JSON text.
#[must_use]
pub fn write<T: Wire>(value: &T) -> String {
    value.encode().to_string()
}
