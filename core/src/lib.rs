//! The turnkeep state machine.
