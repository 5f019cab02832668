//! Ends that never came, read from the history.

use alloc::{borrow::ToOwned, format, vec::Vec};

use serde::Deserialize;
use serde_json::value::RawValue;

use super::{
    Machine,
    frames::read_failure,
    out::UNGATED,
    requests::{Kind, Settled},
    threads::ThreadParams,
};
use crate::{
    effect::Effects,
    event::{EndSource, Outcome},
    id::{ConversationId, TurnNo},
    wire::{item, notification::WireTurn},
};

impl Machine {
    /// A turn should have ended by now: its held error is the end, or the history tells.
    pub(super) fn end_grace_over(&mut self, fx: &mut Effects, no: TurnNo) {
        let Some(turn) = self.turn(no) else { return };
        let conversation = turn.conversation;
        if let Some(error) = turn.held_error.take() {
            let outcome = Outcome::Failed { error };
            self.finish_native(fx, conversation, no, outcome, EndSource::Local);
            return;
        }
        let thread = self
            .conversation(conversation)
            .and_then(|c| c.link.thread().cloned());
        let Some(thread) = thread else { return };
        let params = ThreadParams { thread_id: &thread };
        let kind = Kind::Reconcile {
            conversation,
            turn: no,
        };
        self.request(fx, kind, "thread/turns/list", &params, UNGATED);
    }

    pub(super) fn reconciled(
        &mut self,
        fx: &mut Effects,
        conversation: ConversationId,
        no: TurnNo,
        how: Settled,
    ) {
        #[derive(Deserialize)]
        struct Page<'a> {
            #[serde(borrow)]
            data: Vec<WireTurn<'a>>,
        }
        let Some(native) = self.turn(no).and_then(|turn| turn.native().cloned()) else {
            return;
        };
        let evidence = match how {
            Settled::Answered(page) => match crate::json::from_object::<Page<'_>>(&page) {
                Ok(page) => {
                    let found = page.data.iter().find(|turn| turn.id.0 == native.as_str());
                    match found {
                        Some(turn) if turn.status.0 != "inProgress" => {
                            self.end_by_history(fx, conversation, no, turn);
                            return;
                        }
                        Some(_) => "the thread is idle and the history says the turn runs".into(),
                        None => "the turn is not on the first page of the history".to_owned(),
                    }
                }
                Err(error) => format!("the history cannot be read: {error}"),
            },
            other => format!(
                "the history cannot be read: {}",
                other.error("thread/turns/list")
            ),
        };
        let outcome = Outcome::Unknown { evidence };
        self.finish_native(fx, conversation, no, outcome, EndSource::Local);
    }

    fn end_by_history(
        &mut self,
        fx: &mut Effects,
        conversation: ConversationId,
        no: TurnNo,
        turn: &WireTurn<'_>,
    ) {
        // A turn that ended completed or failed took its message, whatever came of the frames.
        if matches!(&*turn.status.0, "completed" | "failed") {
            if let Some(native) = self.turn(no).and_then(|turn| turn.native().cloned()) {
                self.accepted_in(no, &native);
            }
        }
        let items = turn
            .items
            .map(|raw| serde_json::from_str::<Vec<&RawValue>>(raw.get()));
        if let (Some(Ok(items)), Some(ours)) = (items, self.turn(no)) {
            for item in items.into_iter().filter_map(item::read) {
                if item.is_agent_message() {
                    ours.text.complete(&item);
                }
            }
        }
        let outcome = match &*turn.status.0 {
            "completed" => Outcome::Completed {
                text: None,
                structured: None,
            },
            "interrupted" => Outcome::Interrupted,
            "failed" => Outcome::Failed {
                error: read_failure(turn.error),
            },
            other => Outcome::Unknown {
                evidence: format!("the history says the status is {other:?}"),
            },
        };
        self.finish_native(fx, conversation, no, outcome, EndSource::Reconciled);
    }
}
