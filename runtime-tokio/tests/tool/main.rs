//! The tool, run as a person runs it.

mod chat;
mod demo;
mod recordings;
mod support;
mod terminal;
