//! WebSocket: a frame of ours is a text message, a text message of theirs is a line.

use std::sync::Arc;

use turnkeep_core::{CloseReason, Closed};

use super::Reached;
use crate::{config::WebSocketConfig, runtime::Runtime};

/// Opens a connection.
pub(super) async fn open(
    runtime: &Arc<dyn Runtime>,
    config: &WebSocketConfig,
    frame_limit: usize,
) -> Reached {
    let _ = (
        frame_limit,
        runtime,
        config.endpoint(),
        config.token.as_ref().map(|t| t.read()),
    );
    let why = CloseReason::OpenFailed("not there yet".into());
    Err(Closed::new(why, String::new()))
}
