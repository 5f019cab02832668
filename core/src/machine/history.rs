//! Ends that never came, read from the history.

use alloc::{borrow::ToOwned, format, string::String, vec::Vec};

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::{
    Machine,
    frames::read_failure,
    out::UNGATED,
    requests::{Kind, Settled},
};
use crate::{
    effect::Effects,
    event::{EndSource, Outcome},
    hash::hash,
    id::{ConversationId, TurnNo, is_clean},
    wire::{item, notification::WireTurn},
};

/// How many pages of a list are read.
const MAX_PAGES: u32 = 1_024;

impl Machine {
    /// A turn should have ended by now: its held error is the end, or the history tells.
    pub(super) fn end_grace_over(&mut self, fx: &mut Effects, no: TurnNo) {
        let Some(turn) = self.turn(no) else { return };
        let conversation = turn.conversation;
        if let Some(error) = turn.held_error.take().map(|error| *error) {
            let outcome = Outcome::Failed { error };
            self.finish_native(fx, conversation, no, outcome, EndSource::Local);
            return;
        }
        self.read_turns(fx, conversation, no, 1, None);
    }

    /// Asks for a page of the thread's turns, newest first.
    fn read_turns(
        &mut self,
        fx: &mut Effects,
        conversation: ConversationId,
        no: TurnNo,
        page: u32,
        cursor: Option<&str>,
    ) {
        #[derive(Serialize)]
        #[serde(rename_all = "camelCase")]
        struct TurnsParams<'a> {
            thread_id: &'a str,
            #[serde(skip_serializing_if = "Option::is_none")]
            cursor: Option<&'a str>,
        }
        let thread = self
            .conversation(conversation)
            .and_then(|c| c.link.thread().cloned());
        let Some(thread) = thread else { return };
        let params = TurnsParams {
            thread_id: &thread,
            cursor,
        };
        let kind = Kind::Reconcile {
            conversation,
            turn: no,
            page,
            cursor: cursor.map_or(0, |cursor| hash(cursor.as_bytes())),
        };
        self.request(fx, kind, "thread/turns/list", &params, UNGATED);
    }

    pub(super) fn reconciled(
        &mut self,
        fx: &mut Effects,
        conversation: ConversationId,
        no: TurnNo,
        (page, cursor): (u32, u64),
        how: Settled,
    ) {
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Page<'a> {
            #[serde(borrow)]
            data: Vec<WireTurn<'a>>,
            #[serde(default)]
            next_cursor: Option<String>,
        }
        let Some(native) = self.turn(no).and_then(|turn| turn.native().cloned()) else {
            return;
        };
        let evidence = match how {
            Settled::Answered(answer) => match crate::json::from_object::<Page<'_>>(&answer) {
                Ok(read) => {
                    let found = read.data.iter().find(|turn| turn.id.0 == native.as_str());
                    match found {
                        Some(turn) if turn.status.0 != "inProgress" => {
                            self.end_by_history(fx, conversation, no, turn);
                            return;
                        }
                        Some(_) => "the thread is idle and the history says the turn runs".into(),
                        None => match read.next_cursor {
                            None => "the turn is not in the history".to_owned(),
                            Some(next) if !is_clean(&next) || hash(next.as_bytes()) == cursor => {
                                "the history's cursor is malformed or repeated".to_owned()
                            }
                            Some(_) if page == MAX_PAGES => {
                                format!("the turn is not on {MAX_PAGES} pages of the history")
                            }
                            Some(next) => {
                                self.read_turns(fx, conversation, no, page + 1, Some(&next));
                                return;
                            }
                        },
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
