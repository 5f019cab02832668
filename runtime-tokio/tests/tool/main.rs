//! The tool, run as a person runs it.

#![allow(clippy::unwrap_used, reason = "helpers of tests are tests")]

mod chat;
mod demo;
mod inventory;
mod recordings;
mod support;
mod terminal;
mod tools;
