//! The live suite: the real app-server, against a model of our own. `cargo xtask live` runs it.

#[cfg(feature = "live")]
mod processes;

#[cfg(not(feature = "live"))]
#[test]
#[ignore = "the live suite needs the real codex: run `cargo xtask live`"]
fn live_suite_is_left_out() {}
