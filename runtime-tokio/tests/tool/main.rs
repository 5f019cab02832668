//! The tool, run as a person runs it.

#![allow(clippy::unwrap_used, reason = "helpers of tests are tests")]

mod asking;
mod chat;
mod demo;
mod doctor;
mod inventory;
mod recorded;
mod recordings;
mod support;
mod terminal;
mod tools;
