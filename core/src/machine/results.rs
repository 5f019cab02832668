//! The results of tool calls: from the application to the native call, or into the conversation.

use alloc::{string::String, vec::Vec};

use super::{Machine, out::UNGATED, turn::Known};
use crate::{
    command::{CommandError, Reply, RpcError, ToolDelivery, ToolResult},
    effect::{Durability, Effects},
    event::{CallClosedWhy, ConversationUpdate, TurnUpdate},
    hash,
    id::{CallId, CommandId, ConversationId, MessageId, ToolCallId, TurnNo},
    record::Record,
    timers::Timer,
    tools::{self, CallChange, CallState},
    wire,
};

impl Machine {
    /// What a native call is answered that was answered before, or whose result came while no
    /// connection told it.
    pub(super) fn answer_again(&mut self, call: Known) -> Option<String> {
        let id = match call {
            Known::Unstaged => return None,
            Known::Message => {
                return Some(tools::wire_result(&ToolResult::ok(
                    tools::MESSAGE_DELIVERED,
                )));
            }
            Known::Call(id) => id,
        };
        let known = self.durable.call(id)?;
        if known.delivery == ToolDelivery::Deferred {
            return Some(tools::wire_result(&ToolResult::ok(tools::DEFERRED)));
        }
        let result = match &known.state {
            CallState::Answered { result } => result.clone(),
            CallState::Closed {
                why: CallClosedWhy::TimeLimit,
            } => ToolResult::failed(tools::TIME_LIMIT),
            CallState::Asked | CallState::Launched | CallState::Closed { .. } => return None,
        };
        let conversation = self.durable.conversation(known.conversation)?;
        let way = match known.arrivals {
            None => Way::Again,
            Some(_) if known.given => Way::Again,
            Some((first, _)) if conversation.mailbox.waits(first) => Way::Now,
            Some(_) => Way::Elsewhere,
        };
        let result = match way {
            Way::Now => {
                let change = CallChange::Given;
                self.record(Record::ToolCall { call: id, change }, Durability::Synced);
                result
            }
            Way::Again => result,
            // It goes to the model, or went, as a box of its own.
            Way::Elsewhere => ToolResult::ok(tools::DEFERRED),
        };
        Some(tools::wire_result(&result))
    }

    pub(super) fn respond(
        &mut self,
        fx: &mut Effects,
        id: CommandId,
        call: ToolCallId,
        result: ToolResult,
    ) -> Result<(), CommandError> {
        let Some(known) = self.durable.call(call) else {
            return self.respond_late(fx, id, call, &result);
        };
        let (conversation, no) = (known.conversation, known.turn);
        match &known.state {
            CallState::Answered { result: had } if *had == result => {
                let gate = self.gate();
                self.answer_gated(fx, id, gate, Ok(Reply::Done));
                return Ok(());
            }
            CallState::Answered { .. } => return Err(CommandError::AnsweredDifferently { call }),
            CallState::Closed { .. } => return Err(CommandError::CallClosed { call }),
            // A malformed call is answered in the step that records it.
            CallState::Asked | CallState::Launched => {}
        }
        let (boxed, native) = (known.boxed, known.native.clone());
        // The rest of the frame is an id of the server's and member names.
        let size = tools::wire_result(&result).len() + 1_024;
        if size > self.config.limits.frame {
            return Err(CommandError::FrameTooLarge { size });
        }
        let waits = self
            .turn(no)
            .is_some_and(|turn| turn.calls.contains_key(&native));
        // What the model waits for is not refused: it could not go on.
        if boxed && !waits {
            self.check_room(conversation, tools::boxes_of(&result))?;
            let bodies = tools::result_bodies(call.sequence, &result, None);
            self.check_boxes(&bodies)?;
        }
        let gate = self.give_result(fx, conversation, no, call, result);
        self.answer_gated(fx, id, gate, Ok(Reply::Done));
        Ok(())
    }

    /// A result of a call that is not remembered by itself: its box is.
    fn respond_late(
        &mut self,
        fx: &mut Effects,
        id: CommandId,
        call: ToolCallId,
        result: &ToolResult,
    ) -> Result<(), CommandError> {
        let known = self
            .durable
            .conversations()
            .find(|c| c.nonce == call.nonce && call.sequence > 0 && call.sequence <= c.last_call);
        let known = known.ok_or(CommandError::UnknownCall { call })?;
        let Some(body) = known.result_box(call.sequence) else {
            return Err(CommandError::CallClosed { call });
        };
        if tools::is_result_of(body, call.sequence, result) {
            let gate = self.gate();
            self.answer_gated(fx, id, gate, Ok(Reply::Done));
            return Ok(());
        }
        Err(match tools::was_closed(body) {
            true => CommandError::CallClosed { call },
            false => CommandError::AnsweredDifferently { call },
        })
    }

    pub(super) fn tool_message(
        &mut self,
        fx: &mut Effects,
        id: CommandId,
        call: ToolCallId,
        text: String,
    ) -> Result<(), CommandError> {
        let Some(known) = self.durable.call(call) else {
            let existed = self.durable.conversations().any(|c| {
                c.nonce == call.nonce && call.sequence > 0 && call.sequence <= c.last_call
            });
            return Err(match existed {
                true => CommandError::CallAnswered { call },
                false => CommandError::UnknownCall { call },
            });
        };
        match &known.state {
            CallState::Answered { .. } => return Err(CommandError::CallAnswered { call }),
            CallState::Closed { .. } => return Err(CommandError::CallClosed { call }),
            CallState::Asked | CallState::Launched => {}
        }
        // A call of a turn that the server began is in no transcript.
        if !known.boxed {
            return Err(CommandError::UnknownCall { call });
        }
        let conversation = known.conversation;
        self.check_room(conversation, 1)?;
        self.check_boxes(&[tools::message_body(call.sequence, &text)])?;
        let change = CallChange::Message { text };
        let gate = self.record(Record::ToolCall { call, change }, Durability::Synced);
        self.touch(conversation);
        self.answer_gated(fx, id, gate, Ok(Reply::Done));
        Ok(())
    }

    /// Records a result. The native call is answered behind it, where it waits; else the result is an
    /// arrival of its own.
    pub(super) fn give_result(
        &mut self,
        fx: &mut Effects,
        conversation: ConversationId,
        no: TurnNo,
        call: ToolCallId,
        result: ToolResult,
    ) -> crate::JournalSeq {
        self.timers.clear(Timer::ToolLimit(call));
        let route = self.route(no, call);
        let answer = tools::wire_result(&result);
        let given = matches!(route, Route::Open(_));
        let change = CallChange::Answered { result, given };
        let gate = self.record(Record::ToolCall { call, change }, Durability::Synced);
        match route {
            Route::Open(request) => self.send(fx, wire::result(&request, &answer), gate, None),
            Route::AfterSteer => self.touch(conversation),
            Route::None => self.result_came(conversation, call),
        }
        gate
    }

    /// A result came that no native call is given now. That of an inline call may be given yet, where a
    /// new connection tells the call again.
    fn result_came(&mut self, conversation: ConversationId, call: ToolCallId) {
        let known = self.durable.call(call);
        match known.is_some_and(|known| known.delivery == ToolDelivery::Inline) {
            true => self.touch(conversation),
            false => self.trigger_came(conversation),
        }
    }

    /// The way to the native call of a call that gets its result now. One that is open is taken.
    fn route(&mut self, no: TurnNo, call: ToolCallId) -> Route {
        let Some(known) = self.durable.call(call) else {
            return Route::None;
        };
        if self.child_calls.contains_key(&call) {
            return self.take_child_call(call).map_or(Route::None, Route::Open);
        }
        let (native, inline) = (known.native.clone(), known.delivery == ToolDelivery::Inline);
        let alive = self.is_alive();
        let Some(turn) = self.turn(no) else {
            return Route::None;
        };
        let Some(open) = turn.calls.get_mut(&native).filter(|_| inline) else {
            return Route::None;
        };
        if open.after.is_some() {
            open.ready = true;
            return Route::AfterSteer;
        }
        let request = turn.calls.remove(&native).and_then(|open| open.request);
        match request {
            Some(request) if alive => {
                let name = hash::hash(native.as_bytes());
                turn.answered.insert(name, request.clone());
                self.inbound.remove(request.as_str());
                Route::Open(request)
            }
            // A new connection tells the call again, and it is answered then.
            Some(_) | None => Route::None,
        }
    }

    /// The steer of a stage has its answer: so have the native calls of that stage.
    pub(super) fn release_calls(
        &mut self,
        fx: &mut Effects,
        conversation: ConversationId,
        no: TurnNo,
        message: &MessageId,
    ) {
        let Some(turn) = self.turn(no) else { return };
        let mut free = Vec::new();
        for (native, open) in &mut turn.calls {
            if open.after.as_ref() == Some(message) {
                open.after = None;
                free.push((open.place(), native.clone()));
            }
        }
        // In the order in which the model called.
        free.sort_unstable_by_key(|(sequence, _)| *sequence);
        for (_, native) in free {
            self.answer_ready(fx, conversation, no, &native);
        }
    }

    /// Answers a native call whose answer is ready, if there is a way to it.
    pub(super) fn answer_ready(
        &mut self,
        fx: &mut Effects,
        conversation: ConversationId,
        no: TurnNo,
        native: &CallId,
    ) {
        if !self.is_alive() {
            // Nothing leaves any more: a new connection tells the call again.
            return;
        }
        let Some(turn) = self.turn(no) else { return };
        let Some(open) = turn.calls.get(native) else {
            return;
        };
        let (true, None, Some(request), call) =
            (open.ready, &open.after, open.request.clone(), open.id)
        else {
            return;
        };
        turn.calls.remove(native);
        let name = hash::hash(native.as_bytes());
        turn.answered.insert(name, request.clone());
        self.inbound.remove(request.as_str());
        let known = call.map_or(Known::Message, Known::Call);
        if let Some(result) = self.answer_again(known) {
            let gate = self.gate();
            self.send(fx, wire::result(&request, &result), gate, None);
        }
        self.touch(conversation);
    }

    pub(super) fn tool_timed_out(&mut self, fx: &mut Effects, call: ToolCallId) {
        let Some(known) = self.durable.call(call) else {
            return;
        };
        if !matches!(known.state, CallState::Launched) {
            return;
        }
        let (conversation, no) = (known.conversation, known.turn);
        let why = CallClosedWhy::TimeLimit;
        let route = self.route(no, call);
        let given = matches!(route, Route::Open(_));
        let change = CallChange::Closed { why, given };
        let gate = self.record(Record::ToolCall { call, change }, Durability::Synced);
        match route {
            Route::Open(request) => {
                let answer = tools::wire_result(&ToolResult::failed(tools::TIME_LIMIT));
                self.send(fx, wire::result(&request, &answer), gate, None);
            }
            Route::AfterSteer => self.touch(conversation),
            Route::None => self.result_came(conversation, call),
        }
        self.tell_closed(fx, conversation, no, call, why);
    }

    /// Tells that a call is closed: of its turn while that runs, else of its conversation.
    pub(super) fn tell_closed(
        &mut self,
        fx: &mut Effects,
        conversation: ConversationId,
        no: TurnNo,
        call: ToolCallId,
        why: CallClosedWhy,
    ) {
        if self.turn(no).is_some() {
            self.tell(fx, conversation, no, TurnUpdate::CallClosed { call, why });
        } else {
            let update = ConversationUpdate::CallClosed { call, why };
            self.tell_conversation(fx, conversation, update);
        }
    }

    /// The native calls of a turn that wait for us are over, and are withdrawn from the server where
    /// it still waits. Where the turn was interrupted or given up, so are the calls; else they stay
    /// with the application, and their results arrive. Returns how many there were.
    pub(super) fn close_calls(
        &mut self,
        fx: &mut Effects,
        conversation: ConversationId,
        no: TurnNo,
        why: CallClosedWhy,
        withdraw: Option<RpcError>,
    ) -> u32 {
        let Some(turn) = self.turn(no) else { return 0 };
        let mut natives: Vec<(Option<ToolCallId>, Option<String>)> =
            core::mem::take(&mut turn.calls)
                .into_values()
                .map(|call| (call.id, call.request))
                .collect();
        natives.sort_unstable_by_key(|(call, _)| call.map(|call| call.sequence));
        let unstaged = core::mem::take(&mut turn.unstaged);
        for call in &unstaged {
            turn.known_calls.remove(&hash::hash(call.native.as_bytes()));
        }
        let unstaged = unstaged.into_iter();
        let requests: Vec<String> = natives
            .iter()
            .filter_map(|(_, request)| request.clone())
            .chain(unstaged.map(|call| call.request))
            .collect();
        for request in &requests {
            self.inbound.remove(request.as_str());
            if let Some(error) = &withdraw {
                self.send(fx, wire::refusal(request, error), UNGATED, None);
            }
        }
        let for_good = match why {
            CallClosedWhy::Interrupted
            | CallClosedWhy::TimeLimit
            | CallClosedWhy::Abandoned
            | CallClosedWhy::Dismissed => true,
            CallClosedWhy::TurnEnded | CallClosedWhy::ConnectionEnded | CallClosedWhy::Shutdown => {
                false
            }
        };
        let calls: Vec<ToolCallId> = match for_good {
            true => self.open_calls_of(conversation, no),
            false => natives.into_iter().filter_map(|(call, _)| call).collect(),
        };
        let mut count = 0;
        for call in calls {
            let Some(known) = self.durable.call(call).filter(|known| known.is_open()) else {
                continue;
            };
            count += 1;
            if known.boxed && !for_good {
                if why == CallClosedWhy::Shutdown {
                    // The next life answers it.
                    self.tell(fx, conversation, no, TurnUpdate::CallClosed { call, why });
                } else if known.delivery == ToolDelivery::Inline {
                    let change = CallChange::Deferred;
                    self.record(Record::ToolCall { call, change }, Durability::Synced);
                    self.tell(fx, conversation, no, TurnUpdate::CallDeferred { call });
                }
                continue;
            }
            self.timers.clear(Timer::ToolLimit(call));
            let given = false;
            let change = CallChange::Closed { why, given };
            self.record(Record::ToolCall { call, change }, Durability::Synced);
            self.tell(fx, conversation, no, TurnUpdate::CallClosed { call, why });
        }
        count
    }

    /// The calls of a turn without a result.
    pub(super) fn open_calls_of(
        &self,
        conversation: ConversationId,
        no: TurnNo,
    ) -> Vec<ToolCallId> {
        let calls = self.durable.calls_in(conversation);
        let open = calls.filter(|(_, call)| call.turn == no && call.is_open());
        open.map(|(id, _)| id).collect()
    }
}

/// The way to a native call.
enum Route {
    /// It waits, and this is the server's request.
    Open(String),
    /// It waits for the steer of its stage first.
    AfterSteer,
    /// There is none.
    None,
}

/// How a result that was recorded goes to a native call that is told again.
enum Way {
    /// As its answer: it went nowhere else.
    Now,
    /// As before.
    Again,
    /// Not: it is a box that goes its own way.
    Elsewhere,
}
