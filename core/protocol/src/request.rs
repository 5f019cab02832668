//! Requests that know their method and their response.

use alloc::{borrow::ToOwned, string::String, vec::Vec};

use serde_json::{Map, Value};

use crate::wire::{DecodeError, Strange, Stranger, Wire};

/// A request of a client: parameters that know their method and what it is answered.
pub trait Request {
    /// The method.
    const METHOD: &'static str;
    /// Whether it may change the server.
    const EFFECT: Effect;
    /// Whether every client may send it.
    const STAGE: Stage;
    /// What it is answered.
    type Response: Wire;

    /// The parameters as they are written; `None` where the method has none.
    fn params(&self) -> Option<Value>;

    /// Whether the parameters may hold keys or tokens, which no log must hold.
    fn is_secret(&self) -> bool {
        is_secret(Self::METHOD)
    }
}

/// Whether the parameters of a request may hold keys or tokens.
#[must_use]
pub fn is_secret(method: &str) -> bool {
    SECRETS.contains(&method)
}

/// Requests whose parameters may hold keys or tokens.
const SECRETS: [&str; 8] = [
    "account/bedrock/setup",
    "account/gcp/setup",
    "account/login/start",
    "config/batchWrite",
    "config/value/write",
    "environment/add",
    "modelProvider/config/write",
    "userVerification/verify",
];

/// Whether a request changes the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// It may.
    Changes,
    /// It only reads.
    Reads,
}

/// Whether every client may send a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// Every client may.
    Stable,
    /// One that asked for `experimentalApi` may.
    Experimental,
}

/// What is known of a request's method.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct MethodInfo {
    /// The method.
    pub name: &'static str,
    /// Whether it may change the server.
    pub effect: Effect,
    /// Whether every client may send it; stable where it is so in any version.
    pub stage: Stage,
}

impl MethodInfo {
    /// What is known of a method, where there is one of this name.
    #[must_use]
    pub fn of(method: &str) -> Option<&'static Self> {
        crate::requests::METHODS
            .iter()
            .find(|known| known.name == method)
    }
}

/// A message whose method this version does not have, as it came.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct UnknownMessage {
    /// The method.
    pub method: String,
    /// The parameters, or the result of an answer.
    pub params: Option<Value>,
}

impl UnknownMessage {
    pub(crate) fn new(method: &str, params: Option<&Value>) -> Self {
        Self {
            method: method.to_owned(),
            params: params.cloned(),
        }
    }
}

/// A message that does not have its method's shape, as it came.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Malformed {
    /// The method.
    pub method: String,
    /// The parameters, or the result of an answer.
    pub params: Option<Value>,
    /// What is wrong with them.
    pub error: DecodeError,
}

impl Malformed {
    pub(crate) fn new(method: &str, params: Option<&Value>, error: DecodeError) -> Self {
        Self {
            method: method.to_owned(),
            params: params.cloned(),
            error,
        }
    }
}

/// Parameters as a request writes them.
pub(crate) trait ToParams {
    fn to_params(&self) -> Option<Value>;
    fn look(&self) -> Vec<Stranger>;
}

impl<T: Wire> ToParams for T {
    fn to_params(&self) -> Option<Value> {
        // Only a request without parameters is written so.
        Some(self.encode()).filter(|params| !params.is_null())
    }

    fn look(&self) -> Vec<Stranger> {
        Strange::of(self)
    }
}

/// Parameters as a server reads them.
pub(crate) trait FromParams: Sized {
    fn from_params(params: Option<&Value>) -> Result<Self, DecodeError>;
}

impl<T: Wire> FromParams for T {
    fn from_params(params: Option<&Value>) -> Result<Self, DecodeError> {
        match params {
            Some(params) if !params.is_null() => Self::decode(params),
            // Where nothing must be said, nothing need be written.
            _ => Self::decode(&Value::Null).or_else(|_| Self::decode(&Value::Object(Map::new()))),
        }
    }
}
