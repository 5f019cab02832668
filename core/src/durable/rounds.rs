//! Arrivals, boxes, rounds and submissions: what their records make of a conversation.

use alloc::{
    boxed::Box,
    format,
    string::{String, ToString},
    vec::Vec,
};

use super::{Durable, DurableConversation, KeyUse, apply::Refuse};
use crate::{
    command::{ToolDelivery, ToolResult},
    error::RecordError,
    event::CallClosedWhy,
    id::{ArrivalNo, BoxId, ConversationId, MessageId, ToolCallId, TurnNo},
    mailbox::Arrival,
    preflight::{self, Preflight, PreflightEntry},
    round::{Action, Round, RoundChange, StagedCall, Wishes},
    tools::{self, Call, CallChange, CallState},
    transcript::{BoxBody, BoxSet, Transcript, box_type},
};

/// How an arrival goes on.
#[derive(Clone, Copy)]
pub(super) struct Way {
    /// It makes a round.
    pub(super) trigger: bool,
    /// The thread holds it already.
    pub(super) submitted: bool,
    /// The call whose result it is.
    pub(super) result_of: Option<u64>,
}

impl DurableConversation {
    /// Its boxes, and which of them the thread holds.
    #[must_use]
    pub const fn transcript(&self) -> &Transcript {
        &self.transcript
    }

    /// Whether something waits for the model that no message has carried to it yet.
    #[must_use]
    pub fn is_triggered(&self) -> bool {
        self.resume || self.mailbox.triggers()
    }

    /// Whether the first round waits for a call of the preflight.
    #[must_use]
    pub fn is_blocked(&self) -> bool {
        let open = |preflight: &Preflight| !preflight.blocking.is_empty();
        self.preflight.as_ref().is_some_and(open)
    }

    /// Whether it has neither a box nor had a preflight, and nothing has arrived.
    #[must_use]
    pub fn is_fresh(&self) -> bool {
        self.transcript.is_empty()
            && self.preflight.is_none()
            && self.mailbox.is_empty()
            && self.round.is_idle()
    }

    /// The box that holds the result of a call.
    #[must_use]
    pub fn result_box(&self, sequence: u64) -> Option<&BoxBody> {
        self.transcript.get(*self.results.get(&sequence)?)
    }

    /// Takes something that arrived: a box at once, or into the mailbox.
    pub(super) fn arrive(&mut self, body: BoxBody, way: Way) -> Result<ArrivalNo, String> {
        let no = self.mailbox.number();
        let Way {
            trigger,
            submitted,
            result_of,
        } = way;
        let arrival = Arrival {
            no,
            body,
            trigger,
            submitted,
            result_of,
        };
        if self.round.is_idle() {
            self.resume |= trigger;
            self.append_arrival(arrival)?;
        } else {
            self.mailbox.push(arrival);
        }
        Ok(no)
    }

    fn append_arrival(&mut self, arrival: Arrival) -> Result<(), String> {
        let id = self.append(arrival.body, arrival.submitted)?;
        if let Some(sequence) = arrival.result_of {
            self.results.insert(sequence, id);
            if let Some(preflight) = &mut self.preflight {
                preflight.blocking.remove(&sequence);
            }
        }
        Ok(())
    }

    fn append(&mut self, body: BoxBody, submitted: bool) -> Result<BoxId, String> {
        let appended = self.transcript.append(body, submitted);
        appended.map_err(|_| "no box numbers are left".to_string())
    }

    /// Empties the mailbox into the transcript. Tells whether anything in it triggers.
    fn drain(&mut self) -> Result<bool, String> {
        let triggers = self.mailbox.triggers();
        while let Some(arrival) = self.mailbox.pop() {
            self.append_arrival(arrival)?;
        }
        Ok(triggers)
    }

    /// All that the thread does not hold goes with a message.
    fn carry(&mut self, message: &MessageId, boxes: &BoxSet) -> Result<(), String> {
        // What does not fit goes with the next one.
        let all = boxes == self.transcript.unsubmitted();
        if boxes.is_empty() || boxes.first() != self.transcript.unsubmitted().first() {
            return Err(format!("message {message} does not carry what comes first"));
        }
        let carried = self.transcript.carry(message, boxes);
        carried.map_err(|_| format!("message {message} cannot carry its boxes"))?;
        self.resume = !all;
        Ok(())
    }

    /// What became of a message, as far as its boxes and its flush are concerned. `steered` is
    /// whether it was to reach a running turn.
    pub(super) fn message_went(&mut self, message: &MessageId, how: Went, steered: bool) {
        let answer = RoundChange::FlushAnswered {
            message: message.clone(),
        };
        let waits = matches!(&self.round, Round::Steering { flush, .. } if flush == message);
        if waits && self.round.on(&answer).is_err() {
            debug_assert!(false, "a flush that waits takes its answer");
        }
        match how {
            Went::Answered => {}
            Went::Final => {
                self.transcript.settle(message);
            }
            // What was said into a turn that did not take it is to be heard by the next one.
            Went::Back => self.resume |= self.transcript.give_back(message) && steered,
        }
    }
}

/// What became of a message.
#[derive(Clone, Copy)]
pub(super) enum Went {
    /// The server said yes.
    Answered,
    /// The thread holds it, or may.
    Final,
    /// The thread certainly does not hold it.
    Back,
}

impl Durable {
    pub(super) fn arrived(
        &mut self,
        refuse: Refuse,
        conversation: ConversationId,
        first: ArrivalNo,
        boxes: &[BoxBody],
        key: Option<&String>,
    ) -> Result<(), RecordError> {
        let known = self.opened(refuse, conversation)?;
        if boxes.is_empty() {
            return Err(refuse.invalid("nothing arrived".into()));
        }
        if Some(first) != known.mailbox.last().next() {
            let last = known.mailbox.last();
            return Err(refuse.invalid(format!("arrival {first} does not follow {last}")));
        }
        for body in boxes {
            body.validate_outside()
                .map_err(|why| refuse.invalid(why.to_string()))?;
        }
        let mut last = first;
        for body in boxes {
            let way = Way {
                trigger: !body.is_inert() && body.says_something(),
                submitted: false,
                result_of: None,
            };
            last = known
                .arrive(body.clone(), way)
                .map_err(|why| refuse.invalid(why))?;
        }
        if let Some(key) = key {
            let contents = contents_of_boxes(boxes);
            let used = KeyUse::Arrival {
                first,
                last,
                contents,
            };
            self.use_key(conversation, key, used);
        }
        Ok(())
    }

    fn opened(
        &mut self,
        refuse: Refuse,
        conversation: ConversationId,
    ) -> Result<&mut DurableConversation, RecordError> {
        let known = self.conversations.get_mut(&conversation);
        known.ok_or_else(|| refuse.conversation(conversation))
    }

    pub(super) fn round_changed(
        &mut self,
        refuse: Refuse,
        conversation: ConversationId,
        change: &RoundChange,
    ) -> Result<(), RecordError> {
        if let RoundChange::Begun { turn, .. } | RoundChange::Restarted { turn, .. } = change {
            if *turn <= self.last_turn {
                return Err(refuse.exists(format!("turn {turn}")));
            }
        }
        let known = self.opened(refuse, conversation)?;
        let invalid = |why: String| refuse.invalid(why);
        let before = known.round.stall().cloned();
        if let RoundChange::Staged { actions, .. } = change {
            check_actions(actions, known.last_call).map_err(invalid)?;
        }
        known.round.on(change).map_err(|e| refuse.transition(e))?;
        match change {
            RoundChange::Begun { message, boxes, .. }
            | RoundChange::Restarted { message, boxes, .. } => {
                known.carry(message, boxes).map_err(invalid)?;
                known.began = true;
            }
            RoundChange::Staged { response, .. } => {
                let body = BoxBody::new(box_type::AGENT_RESPONSE, response.clone());
                known.append(body, true).map_err(invalid)?;
            }
            RoundChange::Flushed { message, boxes, .. } => {
                known.drain().map_err(invalid)?;
                known.carry(message, boxes).map_err(invalid)?;
            }
            RoundChange::FlushAnswered { .. }
            | RoundChange::FlushGivenUp { .. }
            | RoundChange::Failed { .. } => {}
            RoundChange::Completed {
                text,
                resume,
                after,
                ..
            } => {
                let body = BoxBody::new(box_type::AGENT_RESPONSE, text.clone());
                known.append(body, true).map_err(invalid)?;
                known.resume |= known.drain().map_err(invalid)?;
                if (*resume, *after) != (known.resume, known.transcript.last()) {
                    let why = "the end of the round does not agree with what it covers";
                    return Err(invalid(why.into()));
                }
            }
            RoundChange::Dismissed => {
                if let Some(text) = before.and_then(|stall| stall.text) {
                    let body = BoxBody::new(box_type::AGENT_RESPONSE, text);
                    known.append(body, true).map_err(invalid)?;
                }
                known.drain().map_err(invalid)?;
                known.resume = false;
            }
        }
        match change {
            RoundChange::Staged { turn, actions, .. } => {
                self.act(conversation, *turn, actions).map_err(invalid)
            }
            RoundChange::Failed { .. } => {
                self.keep_wishes(conversation);
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// A stalled round that may begin again does so as it first did.
    fn keep_wishes(&mut self, conversation: ConversationId) {
        let Some(known) = self.conversations.get_mut(&conversation) else {
            return;
        };
        let Round::Stalled(stall) = &mut known.round else {
            return;
        };
        let fields = self.prompts.get(&stall.prompt).map(|prompt| &prompt.fields);
        let wishes = fields.filter(|_| stall.restartable).map(|fields| Wishes {
            key: fields.key.clone(),
            said: fields.said,
            output_schema: fields.output_schema.clone(),
            deadline: fields.deadline,
        });
        stall.wishes = wishes.filter(|w| *w != Wishes::default()).map(Box::new);
    }

    /// What the model did, box by box.
    fn act(
        &mut self,
        conversation: ConversationId,
        turn: TurnNo,
        actions: &[Action],
    ) -> Result<(), String> {
        let Some(known) = self.conversations.get_mut(&conversation) else {
            return Ok(());
        };
        for action in actions {
            match action {
                Action::Message { text, .. } => {
                    known.append(tools::agent_message_body(text), true)?;
                }
                Action::Call(call) => {
                    let inline = call.delivery == ToolDelivery::Inline;
                    let arguments = call.arguments.get();
                    let body = tools::call_body(call.sequence, &call.tool, arguments);
                    known.append(body, inline)?;
                    known.last_call = call.sequence;
                    known.ran = true;
                    let mut made = Call::staged(conversation, turn, call);
                    if let Some(malformed) = &call.malformed {
                        let body = tools::malformed_result_body(malformed);
                        let way = Way {
                            trigger: !inline,
                            submitted: inline,
                            result_of: Some(call.sequence),
                        };
                        let no = known.arrive(body, way)?;
                        made.arrivals = Some((no, no));
                    }
                    let id = ToolCallId {
                        nonce: known.nonce,
                        sequence: call.sequence,
                    };
                    self.calls.insert(id, made);
                }
            }
        }
        Ok(())
    }

    /// What a change of a call puts into its conversation.
    pub(super) fn call_arrives(
        &mut self,
        call: ToolCallId,
        change: &CallChange,
    ) -> Result<(), String> {
        let Some(made) = self.calls.get_mut(&call) else {
            return Ok(());
        };
        let Some(known) = self.conversations.get_mut(&made.conversation) else {
            return Ok(());
        };
        if !made.boxed {
            return Ok(());
        }
        let sequence = call.sequence;
        let quiet = made.offered.is_some() && !known.began;
        match change {
            CallChange::Message { text } => {
                let way = Way {
                    trigger: false,
                    submitted: false,
                    result_of: None,
                };
                known.arrive(tools::message_body(sequence, text), way)?;
            }
            CallChange::Given => {
                if let Some((first, last)) = made.arrivals {
                    for no in first.0..=last.0 {
                        known.mailbox.given(ArrivalNo(no));
                    }
                }
            }
            CallChange::Answered { result, given } => {
                let bodies = tools::result_bodies(sequence, result, None);
                let trigger = !given && !quiet;
                made.arrivals = known.result_arrives(sequence, bodies, trigger, *given)?;
            }
            CallChange::Closed { why, given } => {
                let (text, triggers) = closing_text(*why);
                let result = ToolResult::failed(text);
                let bodies = tools::result_bodies(sequence, &result, Some(*why));
                let trigger = triggers && !given && !quiet;
                made.arrivals = known.result_arrives(sequence, bodies, trigger, *given)?;
            }
            CallChange::Asked(_) | CallChange::Launched | CallChange::Deferred => {}
        }
        Ok(())
    }

    pub(super) fn submitted(
        &mut self,
        refuse: Refuse,
        conversation: ConversationId,
        message: &MessageId,
        boxes: &BoxSet,
    ) -> Result<(), RecordError> {
        let known = self.opened(refuse, conversation)?;
        let carried = known.carry(message, boxes);
        carried.map_err(|why| refuse.invalid(why))
    }

    pub(super) fn preflighted(
        &mut self,
        refuse: Refuse,
        conversation: ConversationId,
        entries: &[PreflightEntry],
    ) -> Result<(), RecordError> {
        let known = self.opened(refuse, conversation)?;
        if !known.is_fresh() {
            return Err(refuse.exists(format!("a beginning of conversation {conversation}")));
        }
        preflight::validate(entries, known.last_call).map_err(|why| refuse.invalid(why))?;
        let mut left = Preflight::default();
        let mut made = Vec::new();
        for entry in entries {
            let body = match entry {
                PreflightEntry::System(body) => body.clone(),
                PreflightEntry::Call { sequence, offered } => {
                    known.last_call = *sequence;
                    if offered.blocking {
                        left.blocking.insert(*sequence);
                    }
                    let id = ToolCallId {
                        nonce: known.nonce,
                        sequence: *sequence,
                    };
                    made.push((id, Call::offered(conversation, *sequence, offered)));
                    tools::call_body(*sequence, &offered.tool, offered.arguments.get())
                }
            };
            known
                .append(body, false)
                .map_err(|why| refuse.invalid(why))?;
        }
        known.preflight = Some(left);
        self.calls.extend(made);
        Ok(())
    }

    pub(super) fn held(
        &mut self,
        refuse: Refuse,
        conversation: ConversationId,
        reason: &str,
    ) -> Result<(), RecordError> {
        let known = self.opened(refuse, conversation)?;
        if known.held.is_some() {
            return Err(refuse.exists(format!("a hold of conversation {conversation}")));
        }
        known.held = Some(reason.into());
        Ok(())
    }

    pub(super) fn released(
        &mut self,
        refuse: Refuse,
        conversation: ConversationId,
    ) -> Result<(), RecordError> {
        let known = self.opened(refuse, conversation)?;
        let held = known.held.take();
        held.map(|_| ())
            .ok_or_else(|| refuse.missing(format!("a hold of conversation {conversation}")))
    }
}

impl DurableConversation {
    fn result_arrives(
        &mut self,
        sequence: u64,
        bodies: Vec<BoxBody>,
        trigger: bool,
        submitted: bool,
    ) -> Result<Option<(ArrivalNo, ArrivalNo)>, String> {
        let mut range: Option<(ArrivalNo, ArrivalNo)> = None;
        for (at, body) in bodies.into_iter().enumerate() {
            let way = Way {
                trigger,
                submitted,
                result_of: (at == 0).then_some(sequence),
            };
            let no = self.arrive(body, way)?;
            range = Some((range.map_or(no, |(first, _)| first), no));
        }
        Ok(range)
    }
}

/// What the model reads of a call that was closed, and whether it must hear of it.
const fn closing_text(why: CallClosedWhy) -> (&'static str, bool) {
    match why {
        CallClosedWhy::TimeLimit => (tools::TIME_LIMIT, true),
        CallClosedWhy::Interrupted
        | CallClosedWhy::Abandoned
        | CallClosedWhy::TurnEnded
        | CallClosedWhy::ConnectionEnded
        | CallClosedWhy::Shutdown => (tools::INTERRUPTED, false),
        CallClosedWhy::Dismissed => (tools::DISMISSED, false),
    }
}

/// Calls are numbered one after the other.
fn check_actions(actions: &[Action], last: u64) -> Result<(), String> {
    let mut last = last;
    for action in actions {
        match action {
            Action::Call(call) => {
                if Some(call.sequence) != last.checked_add(1) {
                    return Err(format!("call {} does not follow {last}", call.sequence));
                }
                if call.delivery == ToolDelivery::Message {
                    return Err(format!("call {} is delivered as a message", call.sequence));
                }
                last = call.sequence;
            }
            Action::Message { text, .. } if text.is_empty() => {
                return Err("a message of the agent is empty".into());
            }
            Action::Message { .. } => {}
        }
    }
    Ok(())
}

/// What boxes say, as far as the same key must say the same again.
pub(crate) fn contents_of_boxes(boxes: &[BoxBody]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    for body in boxes {
        for text in [
            &body.box_type,
            &body.contents,
            &body.hidden_type,
            &body.hidden_contents,
        ] {
            hasher.update(&(text.len() as u64).to_le_bytes());
            hasher.update(text.as_bytes());
        }
    }
    hasher.finalize()
}

impl Call {
    fn staged(conversation: ConversationId, turn: TurnNo, call: &StagedCall) -> Self {
        let state = match &call.malformed {
            None => CallState::Launched,
            Some(malformed) => CallState::Answered {
                result: malformed.result(),
            },
        };
        Self {
            conversation,
            turn,
            native: call.native.clone(),
            state,
            delivery: call.delivery,
            boxed: true,
            given: call.malformed.is_some() && call.delivery == ToolDelivery::Inline,
            arrivals: None,
            offered: None,
        }
    }

    fn offered(conversation: ConversationId, sequence: u64, offered: &preflight::Offered) -> Self {
        let native = crate::id::CallId::new(&format!("preflight-{sequence}"));
        Self {
            conversation,
            turn: TurnNo(0),
            native: native.expect("a name with a number is clean"),
            state: CallState::Launched,
            delivery: ToolDelivery::Deferred,
            boxed: true,
            given: false,
            arrivals: None,
            offered: Some(Box::new(offered.clone())),
        }
    }
}
