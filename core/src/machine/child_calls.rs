//! Calls that sub-agents make, where their conversation asked for that: offered once, answered as any
//! other call, in no transcript.

use alloc::{borrow::ToOwned, boxed::Box, collections::BTreeMap, format, string::String, vec::Vec};

use serde::Deserialize;
use serde_json::value::RawValue;

use super::{
    Machine,
    calls::{CallParams, InboundRequest, METHOD, misplaced, withdrawn},
    out::UNGATED,
    turn::Known,
};
use crate::{
    command::{ToolDelivery, ToolResult},
    effect::{Durability, Effects},
    event::{CallClosedWhy, ConversationUpdate, ProtocolError, ToolCall},
    id::{CallId, ConversationId, ThreadId, ToolCallId, TurnNo},
    record::Record,
    timers::Timer,
    tools::{self, CallAsked, CallChange, Meaning},
    wire,
};

/// Stands for the turn of a sub-agent, which has no number here.
const NO_TURN: TurnNo = TurnNo(0);

/// How many may wait for the application at once.
const MOST: usize = 1_024;

/// A call of a sub-agent that waits for its result.
#[derive(Clone, Debug)]
pub(super) struct ChildCall {
    conversation: ConversationId,
    thread: ThreadId,
    turn: String,
    /// The server's request, as raw JSON.
    request: String,
}

/// All of them.
pub(super) type ChildCalls = BTreeMap<ToolCallId, ChildCall>;

#[derive(Deserialize)]
struct Ended<'a> {
    #[serde(borrow)]
    turn: Named<'a>,
}

#[derive(Deserialize)]
struct Named<'a> {
    #[serde(borrow)]
    id: wire::CowStr<'a>,
}

impl Machine {
    pub(super) fn on_child_call(
        &mut self,
        fx: &mut Effects,
        id: &str,
        conversation: ConversationId,
        params: &CallParams<'_>,
    ) {
        if self.inbound.contains_key(id) {
            self.report(fx, ProtocolError::IdInUse { id: id.to_owned() });
            return;
        }
        let (thread, turn) = (&*params.thread_id.0, &*params.turn_id.0);
        // Another sub-agent may name a call alike.
        let name = format!("{thread}/{turn}/{}", params.call_id.0);
        let (Some(thread), Some(native)) = (ThreadId::new(thread), CallId::new(&name)) else {
            self.refuse(
                fx,
                id,
                METHOD,
                misplaced("an id is empty or has white space"),
            );
            return;
        };
        let before = {
            let mut calls = self.durable.calls_in(conversation);
            let before = calls.find(|(_, call)| call.turn == NO_TURN && call.native == native);
            before.map(|(before, _)| before)
        };
        if let Some(before) = before {
            match self.answer_again(Known::Call(before)) {
                Some(result) => {
                    self.counters.duplicate_frames += 1;
                    let gate = self.gate();
                    self.send(fx, wire::result(id, &result), gate, None);
                }
                None => {
                    let message = "the call id was used before in this turn";
                    self.refuse(fx, id, METHOD, misplaced(message));
                }
            }
            return;
        }
        let Some(known) = self.durable.conversation(conversation) else {
            return;
        };
        let read = crate::json::canonical(params.arguments.get())
            .and_then(|canon| tools::read(&known.settings.tools, &params.tool.0, canon));
        let meaning = match read {
            Ok(meaning) => meaning,
            Err(error) => {
                self.refuse(fx, id, METHOD, misplaced(&format!("{error}")));
                return;
            }
        };
        let native_tool = &*params.tool.0;
        let tool = known.settings.tools.iter().find(|t| t.name == native_tool);
        let time_limit = tool.and_then(|tool| tool.time_limit);
        let sequence = known.last_call.checked_add(1);
        let Some(sequence) = sequence.filter(|_| self.child_calls.len() < MOST) else {
            self.refuse(fx, id, METHOD, misplaced("no more calls are taken"));
            return;
        };
        let nonce = known.nonce;
        let call = ToolCallId { nonce, sequence };
        let arguments = crate::RawJson::borrowed(params.arguments);
        let mut asked = CallAsked {
            conversation,
            turn: NO_TURN,
            native,
            tool: native_tool.to_owned(),
            via: None,
            arguments,
            malformed: None,
        };
        let open = ChildCall {
            conversation,
            thread: thread.clone(),
            turn: turn.to_owned(),
            request: id.to_owned(),
        };
        self.child_calls.insert(call, open);
        self.inbound
            .insert(id.into(), InboundRequest::ChildCall(call));
        match meaning {
            Meaning::Call {
                tool,
                via,
                arguments,
            } => {
                asked = CallAsked {
                    tool,
                    via,
                    arguments,
                    ..asked
                };
            }
            Meaning::Malformed(fault) => {
                let malformed = Box::new(fault.numbered(call));
                let result = malformed.result();
                asked.malformed = Some(malformed);
                self.record_asked(call, asked);
                self.give_result(fx, conversation, NO_TURN, call, result);
                return;
            }
            // A message of a sub-agent is none of its parent's: the application takes it as a call.
            Meaning::Message { .. } => {}
        }
        let offered = ToolCall {
            id: call,
            tool: asked.tool.clone(),
            arguments: asked.arguments.clone(),
            via: asked.via.clone(),
            time_limit,
            delivery: ToolDelivery::Inline,
            binding: None,
        };
        self.record_asked(call, asked);
        let change = CallChange::Launched;
        let gate = self.record(Record::ToolCall { call, change }, Durability::Synced);
        if let Some(limit) = time_limit {
            self.timers
                .set(Timer::ToolLimit(call), self.now.after(limit));
        }
        let update = ConversationUpdate::ChildCall {
            thread,
            call: offered,
        };
        self.tell_conversation_gated(fx, conversation, gate, update);
    }

    /// The request of a sub-agent's call that gets its result now.
    pub(super) fn take_child_call(&mut self, call: ToolCallId) -> Option<String> {
        let open = self.child_calls.remove(&call)?;
        self.inbound.remove(open.request.as_str());
        self.is_alive().then_some(open.request)
    }

    /// What a sub-agent's frame says of its calls: they end with its turn and its thread.
    pub(super) fn child_calls_end(
        &mut self,
        fx: &mut Effects,
        thread: &ThreadId,
        method: &str,
        params: Option<&RawValue>,
    ) {
        if self.child_calls.is_empty() || !matches!(method, "turn/completed" | "thread/closed") {
            return;
        }
        let ended = params.and_then(|raw| serde_json::from_str::<Ended<'_>>(raw.get()).ok());
        let ended = ended.map(|ended| ended.turn.id.0.into_owned());
        let of = |call: &ChildCall| {
            call.thread == *thread
                && (method == "thread/closed" || ended.as_ref() == Some(&call.turn))
        };
        self.close_child_calls(fx, of, CallClosedWhy::TurnEnded, true);
    }

    /// The server retired the request of a sub-agent's call. Whether it was one.
    pub(super) fn child_call_resolved(&mut self, fx: &mut Effects, request: &str) -> bool {
        let Some(InboundRequest::ChildCall(call)) = self.inbound.get(request) else {
            return false;
        };
        let call = *call;
        let open = self.child_calls.get(&call).map(|open| open.request.clone());
        let of = |other: &ChildCall| Some(&other.request) == open.as_ref();
        self.close_child_calls(fx, of, CallClosedWhy::TurnEnded, false);
        true
    }

    /// Closes calls of sub-agents: a result that comes now is refused. Returns how many there were.
    pub(super) fn close_child_calls(
        &mut self,
        fx: &mut Effects,
        of: impl Fn(&ChildCall) -> bool,
        why: CallClosedWhy,
        withdraw: bool,
    ) -> u32 {
        let open = self.child_calls.iter().filter(|(_, open)| of(open));
        let open: Vec<(ToolCallId, ConversationId)> = open
            .map(|(call, open)| (*call, open.conversation))
            .collect();
        let mut count = 0;
        for (call, conversation) in open {
            count += 1;
            let request = self.take_child_call(call);
            if let Some(request) = request.filter(|_| withdraw) {
                let error = withdrawn("the call is closed");
                self.send(fx, wire::refusal(&request, &error), UNGATED, None);
            }
            self.timers.clear(Timer::ToolLimit(call));
            let given = false;
            let change = CallChange::Closed { why, given };
            self.record(Record::ToolCall { call, change }, Durability::Synced);
            let update = ConversationUpdate::CallClosed { call, why };
            self.tell_conversation(fx, conversation, update);
        }
        count
    }

    /// The same for one conversation.
    pub(super) fn close_child_calls_of(
        &mut self,
        fx: &mut Effects,
        conversation: ConversationId,
        why: CallClosedWhy,
    ) {
        let of = |call: &ChildCall| call.conversation == conversation;
        self.close_child_calls(fx, of, why, true);
    }
}

/// What a sub-agent is told that calls a tool of an application that serves none.
pub(super) fn not_served() -> String {
    tools::wire_result(&ToolResult::failed(NOT_SERVED))
}

const NOT_SERVED: &str = "the calls of sub-agents are not served";
