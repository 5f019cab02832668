//! What the server says went wrong or otherwise than asked.

use alloc::{borrow::ToOwned, string::String};

use serde::Deserialize;
use serde_json::value::RawValue;

use super::{Machine, frames::Place};
use crate::{
    RawJson,
    config::Reroute,
    effect::Effects,
    event::{ConnectionEvent, ConversationUpdate, Failure, FailureKind, TurnUpdate, Warning},
    timers::Timer,
    wire::notification::{ErrorFrame, ReroutedFrame, WarningFrame},
};

impl Machine {
    pub(super) fn on_error(&mut self, fx: &mut Effects, frame: &ErrorFrame<'_>, line: &[u8]) {
        let failure = read_failure(Some(frame.error));
        let scope = (frame.thread_id.as_ref(), frame.turn_id.as_ref());
        let (Some(thread), Some(native)) = scope else {
            // Without thread or turn it is a warning of the connection.
            let warning = ConnectionEvent::Warning(Warning::Error(failure));
            self.tell_connection(fx, warning);
            return;
        };
        match self.place(fx, &thread.0, &native.0) {
            Place::Turn(conversation, no) => {
                // A missing willRetry is not a true.
                if frame.will_retry == Some(true) {
                    let warning = TurnUpdate::Warning(Warning::Retry(failure));
                    self.tell(fx, conversation, no, warning);
                    return;
                }
                let due = self.now.after(self.config.limits.end_grace);
                if let Some(turn) = self.turn(no) {
                    turn.held_error = Some(failure.into());
                }
                self.timers.set(Timer::EndGrace(no), due);
            }
            other => self.elsewhere(fx, other, "error", Some(frame.error), line),
        }
    }

    pub(super) fn on_warning(
        &mut self,
        fx: &mut Effects,
        method: &str,
        frame: &WarningFrame<'_>,
        line: &[u8],
    ) {
        let stranger = frame.thread_id.as_ref();
        let stranger = stranger.is_some_and(|thread| self.owner_of(&thread.0).is_none());
        if stranger && self.take_stranger(fx, line) {
            return;
        }
        let warning = Warning::Server {
            method: method.to_owned(),
            message: frame.text(),
        };
        match frame
            .thread_id
            .as_ref()
            .and_then(|thread| self.owner_of(&thread.0))
        {
            Some(conversation) => {
                let update = ConversationUpdate::Warning(warning);
                self.tell_conversation(fx, conversation, update);
            }
            None => self.tell_connection(fx, ConnectionEvent::Warning(warning)),
        }
    }

    pub(super) fn on_rerouted(&mut self, fx: &mut Effects, frame: &ReroutedFrame<'_>, line: &[u8]) {
        match self.place(fx, &frame.thread_id.0, &frame.turn_id.0) {
            Place::Turn(conversation, no) => {
                let (from, to) = (
                    frame.from_model.0.clone().into_owned(),
                    frame.to_model.0.clone().into_owned(),
                );
                match self.config.reroute {
                    Reroute::Tell => {
                        let warning = TurnUpdate::Warning(Warning::Rerouted { from, to });
                        self.tell(fx, conversation, no, warning);
                    }
                    Reroute::Fail => {
                        let message = alloc::format!("the server exchanged {from} for {to}");
                        let failure = Failure::ours(FailureKind::Rerouted, message);
                        self.fail_and_stop(fx, conversation, no, failure);
                    }
                }
            }
            other => self.elsewhere(fx, other, "model/rerouted", None, line),
        }
    }
}

/// Reads a `TurnError`, tolerantly.
pub(super) fn read_failure(raw: Option<&RawValue>) -> Failure {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Wire<'a> {
        message: String,
        #[serde(borrow, default)]
        codex_error_info: Option<&'a RawValue>,
    }
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Details {
        #[serde(default)]
        additional_details: Option<String>,
    }
    let text = raw.map_or("null", RawValue::get);
    match serde_json::from_str::<Wire<'_>>(text) {
        Ok(wire) => Failure {
            kind: FailureKind::Server,
            message: wire.message,
            info: wire.codex_error_info.map(RawJson::borrowed),
            details: serde_json::from_str::<Details>(text)
                .ok()
                .and_then(|d| d.additional_details),
        },
        Err(_) => Failure {
            kind: FailureKind::Server,
            message: "the server gave no reason".into(),
            info: raw.filter(|r| r.get() != "null").map(RawJson::borrowed),
            details: None,
        },
    }
}
