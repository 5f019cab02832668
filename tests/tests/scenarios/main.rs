//! Whole conversations, step by step: each log is a snapshot, and a review of behaviour is a review of its diff.

mod plain;
