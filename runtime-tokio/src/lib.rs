//! turnkeep on tokio.
