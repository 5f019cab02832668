//! Requests of the server, and the tool calls among them.

use alloc::{borrow::ToOwned, boxed::Box, format, string::ToString};

use serde::Deserialize;
use serde_json::value::RawValue;

use super::{
    Machine,
    children::Asks,
    out::UNGATED,
    turn::{Audience, Known, OpenCall, Stop, Turn, TurnState, Unstaged},
};
use crate::{
    RawJson,
    bug::Bug,
    command::{RpcError, Tool, ToolDelivery, ToolResult},
    effect::{Durability, Effects},
    event::{
        ConnectionEvent, ConversationUpdate, ProtocolError, ToolCall, TurnUpdate, Unrecognized,
    },
    hash,
    id::{CallId, ConversationId, QuestionId, RefreshId, ToolCallId, TurnNo},
    record::Record,
    timers::Timer,
    tools::{self, CallAsked, CallChange, Meaning},
    wire::{self, CowStr},
};

/// An open request of the server, by its id.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum InboundRequest {
    /// A call of this turn, under the server's name.
    Call {
        conversation: ConversationId,
        turn: TurnNo,
        native: CallId,
    },
    /// A question.
    Question(QuestionId),
    /// A call of a sub-agent.
    ChildCall(ToolCallId),
    /// A refresh of tokens.
    Refresh(RefreshId),
}

/// The request's method.
pub(super) const METHOD: &str = "item/tool/call";

/// Stands for the contents of a call of an earlier life: its id alone tells it.
pub(super) const ANY_CONTENTS: u64 = 0;

/// The refusal of what cannot be decoded or belongs nowhere.
pub(super) fn misplaced(message: &str) -> RpcError {
    RpcError {
        code: -32_602,
        message: message.to_owned(),
        data: None,
    }
}

/// The refusal of a call that we withdraw.
pub(super) fn withdrawn(message: &str) -> RpcError {
    RpcError {
        code: -32_800,
        message: message.to_owned(),
        data: None,
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct CallParams<'a> {
    #[serde(borrow)]
    pub(super) thread_id: CowStr<'a>,
    #[serde(borrow)]
    pub(super) turn_id: CowStr<'a>,
    #[serde(borrow)]
    pub(super) call_id: CowStr<'a>,
    #[serde(borrow)]
    pub(super) tool: CowStr<'a>,
    #[serde(borrow)]
    pub(super) arguments: &'a RawValue,
}

impl Machine {
    pub(super) fn on_request(
        &mut self,
        fx: &mut Effects,
        id: &str,
        method: &str,
        params: Option<&RawValue>,
        line: &[u8],
    ) {
        let again = method == "item/tool/call" || crate::question::is_question(method);
        if !again && self.inbound.contains_key(id) {
            self.report(fx, ProtocolError::IdInUse { id: id.to_owned() });
            return;
        }
        match method {
            "item/tool/call" => self.on_call(fx, id, params, line),
            _ if crate::question::is_question(method) => {
                self.on_question(fx, id, method, params, line);
            }
            // Approvals of the first protocol; they are not asked on threads of ours.
            "applyPatchApproval" | "execCommandApproval" => {
                self.decline_unserved(fx, id, method, params, r#"{"decision":"denied"}"#);
            }
            super::refreshes::METHOD => self.on_token_refresh(fx, id, params),
            "attestation/generate" => {
                let message = "nobody serves this request";
                let error = RpcError {
                    code: -32_603,
                    message: message.into(),
                    data: None,
                };
                self.refuse(fx, id, method, error);
            }
            "currentTime/read" => {
                let result = format!(r#"{{"currentTimeAt":{}}}"#, self.now.0 / 1_000_000);
                self.send(fx, wire::result(id, &result), UNGATED, None);
            }
            "model/rerouted" => {
                self.refuse(
                    fx,
                    id,
                    method,
                    misplaced("the model is not to be exchanged"),
                );
            }
            _ => {
                let message = "method not supported by this client";
                let error = RpcError {
                    code: -32_601,
                    message: message.into(),
                    data: None,
                };
                self.send(fx, wire::refusal(id, &error), UNGATED, None);
                let unrecognized = Unrecognized {
                    method: method.to_owned(),
                    params: params.map(RawJson::borrowed),
                    request: true,
                };
                let scope = wire::notification::scope(params);
                match scope.thread().and_then(|thread| self.owner_of(thread)) {
                    Some(conversation) => {
                        let update = ConversationUpdate::Unrecognized(unrecognized);
                        self.tell_conversation(fx, conversation, update);
                    }
                    None => {
                        let event = ConnectionEvent::Unrecognized(unrecognized);
                        self.tell_connection(fx, event);
                    }
                }
            }
        }
    }

    /// Refuses a request of the server and reports it.
    pub(super) fn refuse(&mut self, fx: &mut Effects, id: &str, method: &str, error: RpcError) {
        if self.inbound.contains_key(id) {
            // An answer would go to the request that has this id already.
            self.report(fx, ProtocolError::IdInUse { id: id.to_owned() });
            return;
        }
        self.send(fx, wire::refusal(id, &error), UNGATED, None);
        self.report(
            fx,
            ProtocolError::RequestRefused {
                method: method.to_owned(),
                error,
            },
        );
    }

    /// Gives a negative result to a request that no conversation of ours can serve.
    pub(super) fn decline_unserved(
        &mut self,
        fx: &mut Effects,
        id: &str,
        method: &str,
        params: Option<&RawValue>,
        result: &str,
    ) {
        if self.inbound.contains_key(id) {
            self.report(fx, ProtocolError::IdInUse { id: id.to_owned() });
            return;
        }
        let Some(question) = self.durable.last_question().next() else {
            return;
        };
        // A negative result is a change of the server: its record comes first.
        let asked = crate::question::QuestionAsked {
            conversation: ConversationId(0),
            turn: None,
            thread: None,
            native: None,
            method: method.to_owned(),
            item: None,
            approval: None,
        };
        self.record(
            Record::QuestionAsked {
                question,
                asked: Box::new(asked),
            },
            Durability::Synced,
        );
        if let Ok(raw) = RawJson::parse(result) {
            let answered = Record::QuestionAnswered {
                question,
                result: raw,
                chosen: false,
            };
            self.record(answered, Durability::Synced);
        }
        let settled = Record::QuestionSettled {
            question,
            why: None,
        };
        let gate = self.record(settled, Durability::Synced);
        self.send(fx, wire::result(id, result), gate, None);
        let event = ConnectionEvent::Unrecognized(Unrecognized {
            method: method.to_owned(),
            params: params.map(RawJson::borrowed),
            request: true,
        });
        self.tell_connection(fx, event);
    }

    fn on_call(&mut self, fx: &mut Effects, id: &str, params: Option<&RawValue>, line: &[u8]) {
        let read = params.map(|p| crate::json::from_object::<CallParams<'_>>(p.get()));
        let call = match read {
            Some(Ok(call)) => call,
            Some(Err(error)) => {
                let reason = error.to_string();
                self.refuse(fx, id, METHOD, misplaced("undecodable parameters"));
                let method = METHOD.into();
                self.report(fx, ProtocolError::BadParams { method, reason });
                return;
            }
            None => {
                self.refuse(fx, id, METHOD, misplaced("parameters are missing"));
                return;
            }
        };
        let Some(conversation) = self.owner_of(&call.thread_id.0) else {
            match self.stranger_asks(fx, id, &call.thread_id.0, line) {
                Asks::Child(conversation) => self.on_child_call(fx, id, conversation, &call),
                Asks::Unserved => self.decline_child_call(fx, id, METHOD, params),
                Asks::Later => {}
                Asks::Nobody => self.refuse(fx, id, METHOD, misplaced("unknown thread")),
            }
            return;
        };
        let Some(native) = CallId::new(&call.call_id.0) else {
            self.refuse(
                fx,
                id,
                METHOD,
                misplaced("the call id is empty or has white space"),
            );
            return;
        };
        let Some(no) = self.turn_of_request(fx, conversation, &call.turn_id.0, id, METHOD, line)
        else {
            return;
        };
        // A fold gives the server's turn a second one of ours: the call is that of the first.
        let no = self
            .turn_with_call(conversation, &call.turn_id.0, &native)
            .unwrap_or(no);
        let canon = crate::json::canonical(call.arguments.get());
        let text = canon.as_deref().unwrap_or(call.arguments.get());
        let contents = hash::add(hash::hash(call.tool.0.as_bytes()), text.as_bytes());
        let in_use = self.inbound.contains_key(id);
        let Some(turn) = self.turn(no) else { return };
        if let Some(&(call, known)) = turn.known_calls.get(&hash::hash(native.as_bytes())) {
            let same = known == contents || known == ANY_CONTENTS;
            let open = turn.calls.get_mut(&native).map(|open| &mut open.request);
            let again = matches!(&open, Some(Some(request)) if request.as_str() == id);
            let name = hash::hash(native.as_bytes());
            // A thread that is resumed twice tells it twice: our answer may be on its way.
            let answered = turn
                .answered
                .get(&name)
                .is_some_and(|request| request == id);
            if let Some(route @ None) = open.filter(|_| same && !in_use) {
                // A new connection tells the call again: only the way of its answer has changed.
                *route = Some(id.to_owned());
                self.inbound.insert(
                    id.into(),
                    InboundRequest::Call {
                        conversation,
                        turn: no,
                        native: native.clone(),
                    },
                );
                self.counters.duplicate_frames += 1;
                self.answer_ready(fx, conversation, no, &native);
            } else if same && (again || answered || call == Known::Unstaged) {
                // The same call again is the same call.
                self.counters.duplicate_frames += 1;
            } else if let Some(result) = self.answer_again(call).filter(|_| same && !in_use) {
                self.counters.duplicate_frames += 1;
                if let Some(turn) = self.turn(no) {
                    turn.answered.insert(name, id.to_owned());
                }
                let gate = self.gate();
                self.send(fx, wire::result(id, &result), gate, None);
            } else {
                self.refuse(
                    fx,
                    id,
                    METHOD,
                    misplaced("the call id was used before in this turn"),
                );
            }
            return;
        }
        if in_use {
            // Another request has this id and is open: an answer would go to either.
            self.report(fx, ProtocolError::IdInUse { id: id.to_owned() });
            return;
        }
        let refusing = turn.audience != Audience::All || turn.stop != Stop::No;
        if refusing {
            self.refuse(fx, id, METHOD, withdrawn("the turn is being stopped"));
            return;
        }
        let Some(known) = self.durable.conversation(conversation) else {
            return;
        };
        let read = canon.and_then(|canon| tools::read(&known.settings.tools, &call.tool.0, canon));
        let meaning = match read {
            Ok(meaning) => meaning,
            Err(error) => {
                let reason = error.to_string();
                self.refuse(fx, id, METHOD, misplaced(&reason));
                return;
            }
        };
        let tool = known.settings.tools.iter().find(|t| t.name == *call.tool.0);
        let delivery = tool.map_or(ToolDelivery::Inline, Tool::delivery);
        let serves = known.round.open().is_some_and(|round| round.turn == no);
        let (nonce, last_call) = (known.nonce, known.last_call);
        let limit = self.config.limits.early_frames;
        if serves
            && self
                .turn(no)
                .is_some_and(|turn| turn.unstaged.len() >= limit)
        {
            let error = misplaced("too many calls wait for the answer of a steer");
            self.refuse(fx, id, METHOD, error);
            return;
        }
        if serves {
            self.inbound.insert(
                id.into(),
                InboundRequest::Call {
                    conversation,
                    turn: no,
                    native: native.clone(),
                },
            );
            if let Some(turn) = self.turn(no) {
                let name = hash::hash(native.as_bytes());
                turn.known_calls.insert(name, (Known::Unstaged, contents));
                turn.unstaged.push(Unstaged {
                    native,
                    request: id.to_owned(),
                    tool: call.tool.0.into_owned(),
                    meaning,
                    delivery,
                });
            }
            self.touch(conversation);
            return;
        }
        let Some(sequence) = last_call.checked_add(1) else {
            self.refuse(fx, id, METHOD, misplaced("no call numbers are left"));
            return;
        };
        let call_id = ToolCallId { nonce, sequence };
        let native_tool = call.tool.0.into_owned();
        let asked = CallAsked {
            conversation,
            turn: no,
            native: native.clone(),
            tool: native_tool.clone(),
            via: None,
            arguments: RawJson::borrowed(call.arguments),
            malformed: None,
        };
        let open = OpenCall {
            id: Some(call_id),
            request: Some(id.to_owned()),
            after: None,
            ready: false,
        };
        if let Some(turn) = self.turn(no) {
            let known = (Known::Call(call_id), contents);
            turn.known_calls
                .insert(hash::hash(native.as_bytes()), known);
            turn.calls.insert(native.clone(), open);
        }
        self.inbound.insert(
            id.into(),
            InboundRequest::Call {
                conversation,
                turn: no,
                native: native.clone(),
            },
        );
        match meaning {
            Meaning::Call {
                tool,
                via,
                arguments,
            } => {
                self.launch(
                    fx,
                    call_id,
                    CallAsked {
                        tool,
                        via,
                        arguments,
                        ..asked
                    },
                );
            }
            Meaning::Message { text } => {
                self.record_asked(call_id, asked);
                let result = ToolResult::ok(tools::MESSAGE_DELIVERED);
                self.give_result(fx, conversation, no, call_id, result);
                let update = TurnUpdate::AgentMessage {
                    tool: native_tool,
                    text,
                };
                self.tell(fx, conversation, no, update);
            }
            Meaning::Malformed(fault) => {
                let malformed = Box::new(fault.numbered(call_id));
                let result = malformed.result();
                let tool = malformed.recorded_tool().to_owned();
                let via = (tool != native_tool).then_some(native_tool);
                let arguments = match RawJson::parse(&malformed.arguments) {
                    Ok(arguments) => arguments,
                    Err(_) => asked.arguments.clone(),
                };
                let malformed_too = Some(malformed.clone());
                let asked = CallAsked {
                    tool,
                    via,
                    arguments,
                    malformed: malformed_too,
                    ..asked
                };
                self.record_asked(call_id, asked);
                self.give_result(fx, conversation, no, call_id, result);
                self.tell(fx, conversation, no, TurnUpdate::MalformedCall(malformed));
            }
        }
    }

    /// The turn that knows a call already, of those that are one turn of the server's.
    fn turn_with_call(
        &mut self,
        conversation: ConversationId,
        turn: &str,
        native: &CallId,
    ) -> Option<TurnNo> {
        let name = hash::hash(native.as_bytes());
        let mut turns = self.conversation(conversation)?.turns.iter();
        turns
            .find(|t| t.is_native(turn) && t.known_calls.contains_key(&name))
            .map(|turn| turn.no)
    }

    pub(super) fn record_asked(&mut self, call: ToolCallId, asked: CallAsked) {
        let change = CallChange::Asked(Box::new(asked));
        self.record(Record::ToolCall { call, change }, Durability::Synced);
    }

    /// Hands a call to the application, once, behind its record.
    fn launch(&mut self, fx: &mut Effects, id: ToolCallId, asked: CallAsked) {
        let (conversation, no) = (asked.conversation, asked.turn);
        let native = asked.via.as_ref().unwrap_or(&asked.tool);
        let limit = self.durable.conversation(conversation).and_then(|c| {
            c.settings
                .tools
                .iter()
                .find(|tool| tool.name == *native)?
                .time_limit
        });
        let call = ToolCall {
            id,
            tool: asked.tool.clone(),
            arguments: asked.arguments.clone(),
            via: asked.via.clone(),
            time_limit: limit,
            delivery: ToolDelivery::Inline,
            binding: None,
        };
        self.record_asked(id, asked);
        let launched = Record::ToolCall {
            call: id,
            change: CallChange::Launched,
        };
        let mut gate = self.record(launched, Durability::Synced);
        if self.has_bug(Bug::LaunchesBeforeAppend) {
            gate = UNGATED;
        }
        if let Some(limit) = limit {
            self.timers.set(Timer::ToolLimit(id), self.now.after(limit));
        }
        self.tell_gated(fx, conversation, no, gate, TurnUpdate::ToolCall(call));
    }

    /// A frame that names a turn proves that the turn was accepted.
    pub(super) fn promote(&mut self, no: TurnNo) {
        let now = self.now;
        let Some(turn) = self.turn(no) else { return };
        turn.heard = now;
        match &mut turn.state {
            TurnState::Running { confirmed, .. } if !*confirmed => *confirmed = true,
            TurnState::Waiting
            | TurnState::Sent { .. }
            | TurnState::Running { .. }
            | TurnState::Suspended { .. } => return,
        }
        if let Some(native) = turn.native().cloned() {
            self.accepted_in(no, &native);
        }
    }

    /// The turn that a request names, if it may ask; refuses it otherwise.
    pub(super) fn turn_of_request(
        &mut self,
        fx: &mut Effects,
        conversation: ConversationId,
        native: &str,
        id: &str,
        method: &str,
        line: &[u8],
    ) -> Option<TurnNo> {
        self.wake(fx, conversation, native);
        let c = self.conversation(conversation)?;
        let running = c.running(native).filter(|turn| turn.pending_end.is_none());
        if let Some(turn) = running {
            let no = turn.no;
            self.promote(no);
            self.runs(fx, conversation, no);
            return Some(no);
        }
        let waits = c.turns.iter().any(Turn::is_unnamed);
        if waits && !c.has_ended(native) {
            self.keep_early(conversation, line);
            if !self.conversation(conversation)?.early_overflow {
                return None;
            }
            self.refuse(
                fx,
                id,
                method,
                misplaced("too many frames before their turn was named"),
            );
            return None;
        }
        if c.has_ended(native) {
            self.counters.late_frames += 1;
        }
        self.refuse(fx, id, method, misplaced("no such turn runs"));
        None
    }
}
