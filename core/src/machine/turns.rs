//! The life of a turn: from a durable message over a thread and a native turn to one end.

use alloc::{
    borrow::ToOwned,
    format,
    string::{String, ToString},
    vec::Vec,
};

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::{
    Link, Machine,
    connection::Connection,
    frames::read_failure,
    out::UNGATED,
    requests::{Kind, Settled},
    turn::{Audience, PendingEnd, Steer, SteerState, Stop, Turn, TurnState},
};
use crate::{
    RawJson,
    command::{CommandError, InputItem, RawJsonOr, Refusal, RefusalClass, Reply, Settings},
    effect::{Durability, Effects},
    event::{
        CallClosedWhy, ConversationUpdate, EndSource, Failure, FailureKind, Item, LostReason,
        Origin, Outcome, ProtocolError, QuestionClosedWhy, Rejection, TurnEnd, TurnUpdate,
    },
    id::{CommandId, ConversationId, MessageId, ThreadId, TurnId, TurnNo},
    prompt::{Prompt, PromptChange, PromptFields, PromptKind, PromptState},
    record::{Record, RequestEnd},
    thread::{CreationChange, MARK_PREFIX},
    timers::Timer,
    wire::{CowStr, item, notification::WireTurn},
};

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct ThreadParams<'a> {
    pub(super) thread_id: &'a str,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct ThreadStartParams<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    model: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    model_provider: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    cwd: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    approval_policy: Option<RawJsonOr>,
    #[serde(skip_serializing_if = "Option::is_none")]
    sandbox: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    config: Option<&'a RawJson>,
    #[serde(skip_serializing_if = "Option::is_none")]
    service_name: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    base_instructions: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    developer_instructions: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    personality: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    ephemeral: Option<bool>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    dynamic_tools: Vec<ToolSpec<'a>>,
    thread_source: &'a str,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct ToolSpec<'a> {
    #[serde(rename = "type")]
    kind: &'a str,
    name: &'a str,
    description: &'a str,
    input_schema: &'a RawJson,
}

impl<'a> ThreadStartParams<'a> {
    fn new(settings: &'a Settings, mark: &'a str) -> Self {
        Self {
            model: settings.model.as_deref(),
            model_provider: settings.model_provider.as_deref(),
            cwd: settings.cwd.as_deref(),
            approval_policy: settings.approval_policy.as_ref().map(|p| p.wire()),
            sandbox: settings.sandbox.map(|s| s.as_str()),
            config: settings.config.as_ref(),
            service_name: settings.service_name.as_deref(),
            base_instructions: settings.base_instructions.as_deref(),
            developer_instructions: settings.developer_instructions.as_deref(),
            personality: settings.personality.as_deref(),
            ephemeral: settings.ephemeral.then_some(true),
            dynamic_tools: settings
                .tools
                .iter()
                .map(|tool| ToolSpec {
                    kind: "function",
                    name: &tool.name,
                    description: &tool.description,
                    input_schema: &tool.input_schema,
                })
                .collect(),
            thread_source: mark,
        }
    }
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct ResumeParams<'a> {
    thread_id: &'a str,
    exclude_turns: bool,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct TurnStartParams<'a> {
    thread_id: &'a str,
    input: &'a [InputItem],
    client_user_message_id: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    effort: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    output_schema: Option<&'a RawJson>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct TurnSteerParams<'a> {
    thread_id: &'a str,
    input: &'a [InputItem],
    expected_turn_id: &'a str,
    client_user_message_id: &'a str,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct TurnInterruptParams<'a> {
    thread_id: &'a str,
    turn_id: &'a str,
}

impl Machine {
    /// Does what a conversation waits for, as far as it can be done now.
    pub(super) fn advance(&mut self, fx: &mut Effects, conversation: ConversationId) {
        let ready = self.connection.is_ready();
        let Some(c) = self.conversation(conversation) else {
            return;
        };
        if c.closing.is_some() {
            return;
        }
        let ours_runs = c
            .turns
            .iter()
            .any(|turn| turn.message.is_some() && !matches!(turn.state, TurnState::Waiting));
        let waits = c
            .turns
            .iter()
            .find(|t| matches!(t.state, TurnState::Waiting))
            .map(|t| t.no);
        let Some(no) = waits.filter(|_| !ours_runs && ready) else {
            return;
        };
        match c.link.clone() {
            Link::None => self.start_thread(fx, conversation),
            Link::Detached(thread) => {
                c.link = Link::Resuming(thread.clone());
                let params = ResumeParams {
                    thread_id: &thread,
                    exclude_turns: true,
                };
                let kind = Kind::ThreadResume { conversation };
                self.request(fx, kind, "thread/resume", &params, UNGATED);
            }
            Link::Starting | Link::Resuming(_) => {}
            Link::Loaded(thread) => self.start_turn(fx, conversation, no, &thread),
        }
    }

    fn start_thread(&mut self, fx: &mut Effects, conversation: ConversationId) {
        let mark = format!(
            "{MARK_PREFIX}{:016x}{:016x}",
            self.rng.next(),
            self.rng.next()
        );
        for change in [
            CreationChange::Preparing { mark: mark.clone() },
            CreationChange::Ready,
            CreationChange::Dispatched,
        ] {
            self.record(
                Record::ThreadCreation {
                    conversation,
                    change,
                },
                Durability::Synced,
            );
        }
        let gate = self.gate();
        let Some(settings) = self
            .durable
            .conversation(conversation)
            .map(|known| known.settings.clone())
        else {
            return;
        };
        if let Some(c) = self.conversation(conversation) {
            c.link = Link::Starting;
        }
        let params = ThreadStartParams::new(&settings, &mark);
        self.request(
            fx,
            Kind::ThreadStart { conversation },
            "thread/start",
            &params,
            gate,
        );
    }

    pub(super) fn thread_started(
        &mut self,
        fx: &mut Effects,
        conversation: ConversationId,
        how: Settled,
    ) {
        if self.conversation(conversation).is_none() {
            return;
        }
        let rejection = match how {
            Settled::Answered(result) => match self.bind_thread(conversation, &result) {
                Ok((thread, model)) => {
                    let update = ConversationUpdate::ThreadBound { thread, model };
                    self.tell_conversation(fx, conversation, update);
                    self.advance(fx, conversation);
                    return;
                }
                Err(reason) => {
                    let method = "thread/start".to_owned();
                    self.report(
                        fx,
                        ProtocolError::BadResponse {
                            method,
                            reason: reason.clone(),
                        },
                    );
                    Rejection::NotSent(format!("thread/start: {reason}"))
                }
            },
            Settled::Refused(refusal) => {
                let change = CreationChange::Rejected {
                    refusal: refusal.clone(),
                };
                self.record(
                    Record::ThreadCreation {
                        conversation,
                        change,
                    },
                    Durability::Synced,
                );
                Rejection::Thread(refusal)
            }
            Settled::NotSent => Rejection::NotSent("thread/start was not sent".into()),
            Settled::Unknown(evidence) => Rejection::NotSent(format!("thread/start: {evidence}")),
        };
        if let Some(c) = self.conversation(conversation) {
            c.link = Link::None;
        }
        self.reject_waiting(fx, conversation, &rejection);
    }

    fn bind_thread(
        &mut self,
        conversation: ConversationId,
        result: &str,
    ) -> Result<(ThreadId, Option<String>), String> {
        #[derive(Deserialize)]
        struct Started<'a> {
            #[serde(borrow)]
            thread: Named<'a>,
        }
        #[derive(Deserialize)]
        struct Named<'a> {
            #[serde(borrow)]
            id: CowStr<'a>,
        }
        #[derive(Deserialize)]
        struct Model {
            #[serde(default)]
            model: Option<String>,
        }
        let started: Started<'_> = serde_json::from_str(result).map_err(|e| e.to_string())?;
        let thread = ThreadId::new(&started.thread.id.0).ok_or("the thread's id is not clean")?;
        self.own_thread(conversation, &thread)
            .map_err(|()| "the thread belongs to another conversation".to_owned())?;
        let change = CreationChange::Bound {
            thread: thread.clone(),
        };
        self.record(
            Record::ThreadCreation {
                conversation,
                change,
            },
            Durability::Synced,
        );
        if let Some(c) = self.conversation(conversation) {
            c.link = Link::Loaded(thread.clone());
            c.usage_total = Some(crate::event::Tokens::default());
        }
        let model = serde_json::from_str::<Model>(result)
            .ok()
            .and_then(|m| m.model);
        Ok((thread, model))
    }

    pub(super) fn thread_resumed(
        &mut self,
        fx: &mut Effects,
        conversation: ConversationId,
        how: Settled,
    ) {
        let Some(c) = self.conversation(conversation) else {
            return;
        };
        let Link::Resuming(thread) = c.link.clone() else {
            return;
        };
        let rejection = match how {
            Settled::Answered(_) => {
                c.link = Link::Loaded(thread);
                self.advance(fx, conversation);
                return;
            }
            Settled::Refused(refusal) => Rejection::Thread(refusal),
            Settled::NotSent => Rejection::NotSent("thread/resume was not sent".into()),
            Settled::Unknown(evidence) => Rejection::NotSent(format!("thread/resume: {evidence}")),
        };
        c.link = Link::Detached(thread);
        self.reject_waiting(fx, conversation, &rejection);
    }

    fn reject_waiting(
        &mut self,
        fx: &mut Effects,
        conversation: ConversationId,
        rejection: &Rejection,
    ) {
        let Some(c) = self.conversation(conversation) else {
            return;
        };
        let waiting: Vec<TurnNo> = c
            .turns
            .iter()
            .filter(|turn| matches!(turn.state, TurnState::Waiting))
            .map(|turn| turn.no)
            .collect();
        let source = match rejection {
            Rejection::Refused(_) | Rejection::Thread(_) => EndSource::Live,
            Rejection::NotSent(_) => EndSource::Local,
        };
        for no in waiting {
            let outcome = Outcome::Rejected {
                error: rejection.clone(),
            };
            self.end_turn(fx, conversation, no, outcome, source);
        }
    }

    fn start_turn(
        &mut self,
        fx: &mut Effects,
        conversation: ConversationId,
        no: TurnNo,
        thread: &ThreadId,
    ) {
        let Some(message) = self.turn(no).and_then(|turn| turn.message.clone()) else {
            return;
        };
        let gate = self.prompt(&message, PromptChange::Dispatched, Durability::Synced);
        let Some(prompt) = self.durable.prompt(&message) else {
            return;
        };
        let known = self.durable.conversation(conversation);
        // The server keeps what a turn was given: only the first message carries it.
        let effort = known
            .filter(|known| !known.accepted)
            .and_then(|known| known.settings.effort.clone());
        let (input, schema) = (
            prompt.fields.input.clone(),
            prompt.fields.output_schema.clone(),
        );
        let params = TurnStartParams {
            thread_id: thread,
            input: &input,
            client_user_message_id: &message,
            effort: effort.as_deref(),
            output_schema: schema.as_ref(),
        };
        let kind = Kind::TurnStart {
            conversation,
            turn: no,
        };
        let request = self.request(fx, kind, "turn/start", &params, gate);
        if let Some(turn) = self.turn(no) {
            turn.state = TurnState::Sent { request };
        }
    }

    pub(super) fn turn_start_settled(
        &mut self,
        fx: &mut Effects,
        conversation: ConversationId,
        no: TurnNo,
        how: Settled,
    ) {
        let Some(turn) = self.turn(no) else { return };
        // Bound by our own message already: the response's id is a ghost, or the same.
        if !matches!(turn.state, TurnState::Sent { .. }) {
            return;
        }
        match how {
            Settled::Answered(result) => match read_turn_id(&result) {
                Ok(native) => self.bind_turn(fx, conversation, no, native, false),
                Err(reason) => {
                    let method = "turn/start".to_owned();
                    self.report(
                        fx,
                        ProtocolError::BadResponse {
                            method,
                            reason: reason.clone(),
                        },
                    );
                    let evidence = format!("the response to turn/start makes no sense: {reason}");
                    let outcome = Outcome::Unknown { evidence };
                    self.end_turn(fx, conversation, no, outcome, EndSource::Local);
                }
            },
            Settled::Refused(refusal) => {
                if matches!(refusal.class, RefusalClass::ThreadNotFound) {
                    if let Some(c) = self.conversation(conversation) {
                        if let Link::Loaded(thread) = c.link.clone() {
                            c.link = Link::Detached(thread);
                        }
                    }
                }
                let outcome = Outcome::Rejected {
                    error: Rejection::Refused(refusal),
                };
                self.end_turn(fx, conversation, no, outcome, EndSource::Live);
            }
            Settled::NotSent => {
                let error = Rejection::NotSent("turn/start was not sent".into());
                let outcome = Outcome::Rejected { error };
                self.end_turn(fx, conversation, no, outcome, EndSource::Local);
            }
            Settled::Unknown(evidence) => {
                let evidence = format!("turn/start left: {evidence}");
                let outcome = Outcome::Unknown { evidence };
                self.end_turn(fx, conversation, no, outcome, EndSource::Local);
            }
        }
    }

    /// The server has named our turn.
    fn bind_turn(
        &mut self,
        fx: &mut Effects,
        conversation: ConversationId,
        no: TurnNo,
        native: TurnId,
        confirmed: bool,
    ) {
        let (now, quiet) = (self.now, self.config.limits.quiet);
        let Some(c) = self.conversation(conversation) else {
            return;
        };
        if c.has_ended(&native) {
            let evidence =
                format!("the server took the message into turn {native}, which was over");
            let outcome = Outcome::Unknown { evidence };
            self.end_turn(fx, conversation, no, outcome, EndSource::Local);
            return;
        }
        let folded = c.running(&native).is_some();
        let Some(at) = c.turns.iter().position(|turn| turn.no == no) else {
            return;
        };
        // Frames go to the first turn of their id: ours.
        let mut turn = c.turns.remove(at);
        turn.state = TurnState::Running {
            native: native.clone(),
            confirmed,
        };
        turn.heard = now;
        let message = turn.message.clone();
        c.turns.insert(0, turn);
        let overflow = core::mem::take(&mut c.early_overflow);
        self.timers.set(Timer::Quiet(no), now.after(quiet));
        if let Some(message) = message {
            let change = PromptChange::Accepted {
                turn: native.clone(),
            };
            self.prompt(&message, change, Durability::Buffered);
        }
        if folded {
            if let Some(turn) = self.turn(no) {
                turn.started_told = true;
            }
            self.tell(fx, conversation, no, TurnUpdate::Folded { into: native });
        }
        self.take_early(fx, conversation);
        if overflow {
            let limit = self.config.limits.early_frames;
            self.report(fx, ProtocolError::TooManyEarlyFrames { limit });
            let failure = Failure::ours(
                FailureKind::Protocol,
                "too many frames came before the turn was named",
            );
            self.fail_and_stop(fx, conversation, no, failure);
        }
        if let Some(Stop::Wanted { .. }) = self.turn(no).map(|turn| turn.stop.clone()) {
            self.dispatch_interrupt(fx, conversation, no);
        }
        self.dispatch_steers(fx, conversation, no);
    }

    /// Our own message stands in a turn: the server has taken it there.
    pub(super) fn bind_by_message(
        &mut self,
        fx: &mut Effects,
        thread: &str,
        native: &str,
        item: &Item,
    ) {
        let Some(conversation) = self.owner_of(thread) else {
            return;
        };
        let Some(native) = TurnId::new(native) else {
            return;
        };
        let Some(message) = item.client_id.as_deref() else {
            return;
        };
        let Some(c) = self.conversation(conversation) else {
            return;
        };
        if c.has_ended(&native) {
            return;
        }
        let own = c
            .turns
            .iter_mut()
            .find(|turn| turn.message.as_ref().is_some_and(|m| m.as_str() == message));
        if let Some(turn) = own {
            let no = turn.no;
            match &turn.state {
                TurnState::Waiting => return,
                TurnState::Sent { .. } => {
                    self.bind_turn(fx, conversation, no, native.clone(), true);
                }
                TurnState::Running { native: had, .. } if *had == native => {}
                TurnState::Running { .. } => {
                    // The id of the response was a ghost: it is never used.
                    turn.state = TurnState::Running {
                        native: native.clone(),
                        confirmed: true,
                    };
                    turn.started_told = true;
                    let into = native.clone();
                    self.tell(fx, conversation, no, TurnUpdate::Folded { into });
                    self.put_first(conversation, no);
                }
            }
            if let Some(turn) = self.turn(no) {
                if !core::mem::replace(&mut turn.own_seen, true) {
                    turn.text.restart();
                }
            }
            return;
        }
        self.steer_seen(fx, conversation, message, &native);
    }

    fn put_first(&mut self, conversation: ConversationId, no: TurnNo) {
        let Some(c) = self.conversation(conversation) else {
            return;
        };
        if let Some(at) = c.turns.iter().position(|turn| turn.no == no) {
            let turn = c.turns.remove(at);
            c.turns.insert(0, turn);
        }
    }

    /// A message of the agent is complete: recorded, so that a crash knows what was said.
    pub(super) fn record_output(&mut self, no: TurnNo, item: &Item) {
        let Some(turn) = self.turn(no) else { return };
        let is_answer = turn
            .text
            .final_text()
            .is_some_and(|t| Some(t) == item.text.as_ref());
        let (Some(message), Some(text), true) =
            (turn.message.clone(), item.text.clone(), is_answer)
        else {
            return;
        };
        let runs = self
            .durable
            .prompt(&message)
            .is_some_and(|p| matches!(p.state, PromptState::Running { .. }));
        if runs {
            self.prompt(
                &message,
                PromptChange::Output { text },
                Durability::Buffered,
            );
        }
    }

    /// The server ended a turn.
    pub(super) fn native_end(
        &mut self,
        fx: &mut Effects,
        conversation: ConversationId,
        no: TurnNo,
        status: &str,
        error: Option<&RawValue>,
    ) {
        let Some(native) = self.turn(no).and_then(|turn| turn.native().cloned()) else {
            return;
        };
        let error = error.filter(|e| e.get() != "null");
        let Some(c) = self.conversation(conversation) else {
            return;
        };
        let all: Vec<TurnNo> = c
            .turns
            .iter()
            .filter(|t| t.is_native(&native))
            .map(|t| t.no)
            .collect();
        for no in all {
            let Some(turn) = self.turn(no) else { continue };
            let held = turn.held_error.take();
            let outcome = match status {
                "completed" => Outcome::Completed {
                    text: None,
                    structured: None,
                },
                "interrupted" => Outcome::Interrupted,
                "failed" => Outcome::Failed {
                    error: match (error, held) {
                        (None, Some(held)) => held,
                        (error, _) => read_failure(error),
                    },
                },
                other => Outcome::Unknown {
                    evidence: format!("the server ended the turn with status {other:?}"),
                },
            };
            self.finish_native(fx, conversation, no, outcome, EndSource::Live);
        }
    }

    /// Ends a turn that the server has ended, once no steer of it is unanswered.
    fn finish_native(
        &mut self,
        fx: &mut Effects,
        conversation: ConversationId,
        no: TurnNo,
        outcome: Outcome,
        source: EndSource,
    ) {
        let Some(turn) = self.turn(no) else { return };
        if turn.steer_unanswered() {
            turn.pending_end = Some(PendingEnd { outcome, source });
            return;
        }
        let open_calls = turn.calls.values().any(|call| call.request.is_some());
        let (text, wants_json) = (turn.text.final_text().cloned(), turn.wants_json);
        let outcome = match outcome {
            Outcome::Completed { .. } if open_calls => {
                let withdraw = super::calls::withdrawn("the turn is over");
                let why = CallClosedWhy::TurnEnded;
                self.close_calls(fx, conversation, no, why, Some(withdraw));
                Outcome::Failed {
                    error: Failure::ours(
                        FailureKind::Protocol,
                        "the turn completed while a tool call was open",
                    ),
                }
            }
            Outcome::Completed { .. } if wants_json => {
                let json = text
                    .as_deref()
                    .and_then(|text| RawJson::parse(text.trim()).ok());
                match json {
                    Some(json) => Outcome::Completed {
                        text,
                        structured: Some(json),
                    },
                    None => Outcome::Failed {
                        error: Failure::ours(
                            FailureKind::StructuredOutput,
                            "a schema was asked for and the final text is no JSON",
                        ),
                    },
                }
            }
            Outcome::Completed { .. } => Outcome::Completed {
                text,
                structured: None,
            },
            other => other,
        };
        let why = match outcome {
            Outcome::Interrupted => CallClosedWhy::Interrupted,
            _ => CallClosedWhy::TurnEnded,
        };
        self.close_calls(fx, conversation, no, why, None);
        self.close_questions(fx, conversation, no, QuestionClosedWhy::TurnEnded, false);
        self.end_turn(fx, conversation, no, outcome, source);
    }

    /// Tells the end of a turn that the server still runs.
    pub(super) fn tell_end_early(
        &mut self,
        fx: &mut Effects,
        conversation: ConversationId,
        no: TurnNo,
        outcome: Outcome,
    ) {
        let Some(turn) = self.turn(no) else { return };
        if turn.audience != Audience::All {
            return;
        }
        let end = turn_end(turn, outcome.clone(), EndSource::Local);
        if let Some(message) = turn.message.clone() {
            if matches!(outcome, Outcome::TimedOut) {
                self.prompt(&message, PromptChange::TimedOut, Durability::Synced);
            } else {
                let ended = PromptChange::Ended { outcome };
                self.prompt(&message, ended, Durability::Synced);
                self.prompt(&message, PromptChange::Delivering, Durability::Synced);
            }
        }
        let gate = self.gate();
        self.tell_gated(fx, conversation, no, gate, TurnUpdate::Ended(end.into()));
        if let Some(turn) = self.turn(no) {
            turn.audience = Audience::Told;
        }
    }

    /// Ends a turn: one record, one event, and what was waiting for it.
    pub(super) fn end_turn(
        &mut self,
        fx: &mut Effects,
        conversation: ConversationId,
        no: TurnNo,
        outcome: Outcome,
        source: EndSource,
    ) {
        let Some(turn) = self.turn(no) else { return };
        let end = turn_end(turn, outcome.clone(), source);
        let (message, audience) = (turn.message.clone(), turn.audience);
        if let Some(message) = &message {
            let open = self
                .durable
                .prompt(message)
                .is_some_and(|p| !matches!(p.state, PromptState::Terminal { .. }));
            if open {
                let change = PromptChange::Ended {
                    outcome: outcome.clone(),
                };
                self.prompt(message, change, Durability::Synced);
            }
            let delivery = match audience {
                Audience::All => Some(PromptChange::Delivering),
                Audience::EndOnly => Some(PromptChange::Forsaken),
                Audience::Told => None,
            };
            if let Some(change) = delivery.filter(|_| self.durable.prompt(message).is_some()) {
                self.prompt(message, change, Durability::Synced);
            }
        }
        let gate = self.gate();
        self.tell_gated(fx, conversation, no, gate, TurnUpdate::Ended(end.into()));
        let Some(c) = self.conversation(conversation) else {
            return;
        };
        let Some(at) = c.turns.iter().position(|turn| turn.no == no) else {
            return;
        };
        let mut turn = c.turns.remove(at);
        if let Some(native) = turn.native().cloned() {
            if c.running(&native).is_none() {
                c.remember_ended(native);
            }
        }
        self.turn_owner.remove(&no);
        for timer in [
            Timer::TurnDeadline(no),
            Timer::EndGrace(no),
            Timer::Quiet(no),
        ] {
            self.timers.clear(timer);
        }
        if let TurnState::Sent { request } = turn.state {
            // Ended before it was named: its response, if one comes, finds nobody.
            if self.outbox.withdraw(request) {
                self.requests.take(request);
            }
        }
        for id in turn.stop.take_commands() {
            self.answer_gated(fx, id, gate, stop_answer(&outcome));
        }
        self.end_steers(fx, conversation, &turn, &outcome);
        self.take_early(fx, conversation);
        self.advance(fx, conversation);
        self.close_if_drained(fx);
    }

    /// What becomes of the messages that were steered into a turn that is over.
    fn end_steers(
        &mut self,
        fx: &mut Effects,
        conversation: ConversationId,
        turn: &Turn,
        outcome: &Outcome,
    ) {
        let goes_on = matches!(outcome, Outcome::Completed { .. } | Outcome::Interrupted)
            && self.connection.is_ready();
        for steer in &turn.steers {
            let message = &steer.message;
            match steer.state {
                SteerState::Recorded => {
                    let outcome = match outcome {
                        Outcome::Completed { .. } => Outcome::Completed {
                            text: None,
                            structured: None,
                        },
                        other => other.clone(),
                    };
                    self.settle_steer(message, outcome);
                }
                SteerState::Answered => {
                    // Answered and in no item: the server never took it to the model.
                    self.prompt(message, PromptChange::Unrecorded, Durability::Synced);
                    let input = self.input_of(message);
                    let error = Rejection::NotSent("answered but never recorded".into());
                    self.settle_steer(message, Outcome::Rejected { error });
                    let follow_up = input
                        .filter(|_| goes_on)
                        .and_then(|input| self.follow_up(fx, conversation, input));
                    let (message, no) = (message.clone(), turn.no);
                    let update = TurnUpdate::SteerUnrecorded { message, follow_up };
                    self.tell(fx, conversation, no, update);
                }
                SteerState::Waiting { command } => {
                    let input = self.input_of(message);
                    let error = Rejection::NotSent("the turn was over".into());
                    self.settle_steer(message, Outcome::Rejected { error });
                    let follow_up = input
                        .filter(|_| goes_on)
                        .and_then(|input| self.follow_up(fx, conversation, input));
                    let answer = match follow_up {
                        Some(turn) => Ok(Reply::Queued {
                            turn,
                            refusal: Refusal {
                                method: "turn/steer".into(),
                                class: RefusalClass::NoActiveTurn,
                                error: crate::command::RpcError {
                                    code: -32_600,
                                    message: "the turn was over".into(),
                                    data: None,
                                },
                            }
                            .into(),
                        }),
                        None => Err(CommandError::NoActiveTurn),
                    };
                    let gate = self.gate();
                    self.answer_gated(fx, command, gate, answer);
                }
                SteerState::Unknown => {
                    let evidence = "turn/steer was not answered and its message was not seen";
                    self.settle_steer(
                        message,
                        Outcome::Unknown {
                            evidence: evidence.into(),
                        },
                    );
                }
                // Its request is settled when the connection's others are.
                SteerState::Sent { .. } => {}
            }
        }
    }

    fn input_of(&self, message: &MessageId) -> Option<Vec<InputItem>> {
        self.durable.prompt(message).map(|p| p.fields.input.clone())
    }

    /// Ends a steered message. Its caller has its answer already.
    fn settle_steer(&mut self, message: &MessageId, outcome: Outcome) {
        self.prompt(message, PromptChange::Ended { outcome }, Durability::Synced);
        self.prompt(message, PromptChange::Delivering, Durability::Synced);
        self.prompt(message, PromptChange::Delivered, Durability::Synced);
    }

    /// Gives a message that the running turn did not take a turn of its own.
    fn follow_up(
        &mut self,
        fx: &mut Effects,
        conversation: ConversationId,
        input: Vec<InputItem>,
    ) -> Option<TurnNo> {
        let (turn, _) = self.prepare(conversation, input, None, None, None).ok()?;
        let update = ConversationUpdate::TurnBegan {
            turn,
            origin: Origin::Ours,
        };
        self.tell_conversation(fx, conversation, update);
        Some(turn)
    }

    pub(super) fn steer(
        &mut self,
        fx: &mut Effects,
        id: CommandId,
        no: TurnNo,
        input: Vec<InputItem>,
    ) -> Result<(), CommandError> {
        self.check_input(&input)?;
        let Some(turn) = self.turn(no) else {
            let known = no.0 > 0 && no <= self.last_turn;
            return Err(if known {
                CommandError::NoActiveTurn
            } else {
                CommandError::UnknownTurn { turn: no }
            });
        };
        let conversation = turn.conversation;
        let takes = !matches!(turn.state, TurnState::Waiting)
            && turn.stop == Stop::No
            && turn.audience == Audience::All
            && turn.pending_end.is_none();
        if !takes {
            return Err(CommandError::NoActiveTurn);
        }
        if let Some(error) = self.ended_error() {
            // An unfit connection still serves the turns that it runs.
            if !matches!(self.connection, Connection::Unfit { .. }) {
                return Err(error);
            }
        }
        let message = Prompt::message_id(self.rng.next(), self.rng.next());
        let fields = PromptFields {
            conversation,
            turn: no,
            kind: PromptKind::Steer,
            input,
            key: None,
            output_schema: None,
            deadline: None,
        };
        let change = PromptChange::Prepared(alloc::boxed::Box::new(fields));
        self.prompt(&message, change, Durability::Synced);
        if let Some(turn) = self.turn(no) {
            turn.steers.push(Steer {
                message,
                state: SteerState::Waiting { command: id },
            });
        }
        self.dispatch_steers(fx, conversation, no);
        Ok(())
    }

    /// Sends the next steer, one at a time.
    fn dispatch_steers(&mut self, fx: &mut Effects, conversation: ConversationId, no: TurnNo) {
        let Some(thread) = self
            .conversation(conversation)
            .and_then(|c| c.link.thread().cloned())
        else {
            return;
        };
        let Some(turn) = self.turn(no) else { return };
        if turn.steer_unanswered() {
            return;
        }
        let Some(native) = turn.native().cloned() else {
            return;
        };
        let next = turn.steers.iter_mut().find_map(|steer| match steer.state {
            SteerState::Waiting { command } => Some((steer, command)),
            SteerState::Sent { .. }
            | SteerState::Answered
            | SteerState::Recorded
            | SteerState::Unknown => None,
        });
        let Some((steer, command)) = next else { return };
        steer.state = SteerState::Sent { command };
        let message = steer.message.clone();
        let gate = self.prompt(&message, PromptChange::Dispatched, Durability::Synced);
        let Some(input) = self.input_of(&message) else {
            return;
        };
        let params = TurnSteerParams {
            thread_id: &thread,
            input: &input,
            expected_turn_id: &native,
            client_user_message_id: &message,
        };
        let kind = Kind::TurnSteer {
            conversation,
            turn: no,
            message: message.clone(),
        };
        self.request(fx, kind, "turn/steer", &params, gate);
    }

    pub(super) fn steer_settled(
        &mut self,
        fx: &mut Effects,
        conversation: ConversationId,
        no: TurnNo,
        message: &MessageId,
        how: Settled,
    ) {
        let native = self.turn(no).and_then(|turn| turn.native().cloned());
        let steer = self
            .turn(no)
            .and_then(|turn| turn.steers.iter_mut().find(|s| s.message == *message));
        let command = match steer.as_ref().map(|steer| steer.state) {
            Some(SteerState::Sent { command }) => command,
            // Its item was seen before its answer came: nothing is left to say.
            Some(_) => return,
            None => {
                // The turn is gone with its connection.
                if self.durable.prompt(message).is_some() {
                    let evidence = "the connection ended before turn/steer was answered";
                    self.settle_steer(
                        message,
                        Outcome::Unknown {
                            evidence: evidence.into(),
                        },
                    );
                }
                return;
            }
        };
        let Some(steer) = steer else { return };
        match how {
            Settled::Answered(_) => {
                steer.state = SteerState::Answered;
                if let Some(native) = native {
                    let change = PromptChange::Accepted { turn: native };
                    self.prompt(message, change, Durability::Buffered);
                }
                let reply = Reply::Steered {
                    message: message.clone(),
                };
                self.answer(fx, command, Ok(reply));
            }
            Settled::Refused(refusal) => {
                let input = self.input_of(message);
                self.forget_steer(no, message);
                let error = Rejection::Refused(refusal.clone());
                self.settle_steer(message, Outcome::Rejected { error });
                let follow_up = input.and_then(|input| self.follow_up(fx, conversation, input));
                let answer = match follow_up {
                    Some(turn) => Ok(Reply::Queued {
                        turn,
                        refusal: refusal.into(),
                    }),
                    None => Err(CommandError::Refused(refusal.into())),
                };
                let gate = self.gate();
                self.answer_gated(fx, command, gate, answer);
            }
            Settled::NotSent => {
                self.forget_steer(no, message);
                let error = Rejection::NotSent("turn/steer was not sent".into());
                self.settle_steer(message, Outcome::Rejected { error });
                self.answer(fx, command, Err(Settled::NotSent.error("turn/steer")));
            }
            Settled::Unknown(evidence) => {
                steer.state = SteerState::Unknown;
                self.answer(
                    fx,
                    command,
                    Err(Settled::Unknown(evidence).error("turn/steer")),
                );
            }
        }
        self.after_steer(fx, conversation, no);
    }

    fn forget_steer(&mut self, no: TurnNo, message: &MessageId) {
        if let Some(turn) = self.turn(no) {
            turn.steers.retain(|steer| steer.message != *message);
        }
    }

    /// An end that waited for a steer's answer goes on; else the next steer does.
    fn after_steer(&mut self, fx: &mut Effects, conversation: ConversationId, no: TurnNo) {
        let Some(turn) = self.turn(no) else {
            self.advance(fx, conversation);
            return;
        };
        if turn.steer_unanswered() {
            return;
        }
        match turn.pending_end.take() {
            Some(end) => self.finish_native(fx, conversation, no, end.outcome, end.source),
            None => self.dispatch_steers(fx, conversation, no),
        }
    }

    /// A steered message stands in a turn: the server has it.
    fn steer_seen(
        &mut self,
        fx: &mut Effects,
        conversation: ConversationId,
        message: &str,
        native: &TurnId,
    ) {
        let Some(c) = self.conversation(conversation) else {
            return;
        };
        let found = c.turns.iter_mut().find_map(|turn| {
            let no = turn.no;
            let steer = turn
                .steers
                .iter_mut()
                .find(|s| s.message.as_str() == message)?;
            Some((no, steer))
        });
        let Some((no, steer)) = found else { return };
        let before = core::mem::replace(&mut steer.state, SteerState::Recorded);
        let id = steer.message.clone();
        match before {
            SteerState::Sent { command } => {
                let change = PromptChange::Accepted {
                    turn: native.clone(),
                };
                self.prompt(&id, change, Durability::Buffered);
                self.answer(fx, command, Ok(Reply::Steered { message: id }));
                self.after_steer(fx, conversation, no);
            }
            SteerState::Unknown => {
                let change = PromptChange::Accepted {
                    turn: native.clone(),
                };
                self.prompt(&id, change, Durability::Buffered);
            }
            SteerState::Answered | SteerState::Recorded => {}
            SteerState::Waiting { command } => {
                // Nothing of it has left: the server cannot have it.
                if let Some(steer) = self
                    .turn(no)
                    .and_then(|turn| turn.steers.iter_mut().find(|s| s.message == id))
                {
                    steer.state = SteerState::Waiting { command };
                }
            }
        }
    }

    /// Somebody wants a turn to stop.
    pub(super) fn want_stop(&mut self, fx: &mut Effects, no: TurnNo) {
        let Some(turn) = self.turn(no) else { return };
        let conversation = turn.conversation;
        let state = turn.state.clone();
        if let Some(message) = turn.message.clone() {
            self.prompt(&message, PromptChange::CancelRequested, Durability::Synced);
        }
        match state {
            TurnState::Waiting => {
                // Requested before the frame left: it never leaves.
                self.end_turn(fx, conversation, no, Outcome::Interrupted, EndSource::Local);
            }
            TurnState::Sent { request } => {
                if !self.requests.has_left(request) {
                    self.timers.clear(Timer::Retry(request));
                    self.outbox.withdraw(request);
                    self.requests.take(request);
                    self.end_turn(fx, conversation, no, Outcome::Interrupted, EndSource::Local);
                }
            }
            TurnState::Running { .. } => self.dispatch_interrupt(fx, conversation, no),
        }
    }

    fn dispatch_interrupt(&mut self, fx: &mut Effects, conversation: ConversationId, no: TurnNo) {
        let Some(thread) = self
            .conversation(conversation)
            .and_then(|c| c.link.thread().cloned())
        else {
            return;
        };
        let Some(turn) = self.turn(no) else { return };
        let Some(native) = turn.native().cloned() else {
            return;
        };
        let (message, commands) = (turn.message.clone(), turn.stop.take_commands());
        let runs = message
            .as_ref()
            .and_then(|m| self.durable.prompt(m))
            .is_some_and(|p| {
                matches!(p.state, PromptState::Running { .. })
                    && p.cancellation == crate::prompt::Cancellation::Requested
            });
        let gate = match message.filter(|_| runs) {
            Some(message) => {
                let change = PromptChange::CancelDispatched {
                    turn: native.clone(),
                };
                self.prompt(&message, change, Durability::Synced)
            }
            None => {
                let record = Record::Request {
                    command: bare_interrupt(no),
                    method: "turn/interrupt".into(),
                };
                self.record(record, Durability::Synced)
            }
        };
        let params = TurnInterruptParams {
            thread_id: &thread,
            turn_id: &native,
        };
        let kind = Kind::TurnInterrupt {
            conversation,
            turn: no,
        };
        let request = self.request(fx, kind, "turn/interrupt", &params, gate);
        if let Some(turn) = self.turn(no) {
            turn.stop = Stop::Sent { request, commands };
        }
    }

    pub(super) fn interrupt_settled(
        &mut self,
        fx: &mut Effects,
        conversation: ConversationId,
        no: TurnNo,
        how: Settled,
    ) {
        if self.durable.request(bare_interrupt(no)).is_some() {
            let end = match &how {
                Settled::Answered(_) => RequestEnd::Answered,
                Settled::Refused(refusal) => RequestEnd::Refused {
                    code: refusal.error.code,
                },
                Settled::NotSent => RequestEnd::NotSent,
                Settled::Unknown(_) => RequestEnd::Unknown,
            };
            let record = Record::RequestEnded {
                command: bare_interrupt(no),
                end,
            };
            self.record(record, Durability::Buffered);
        }
        let grace = self.now.after(self.config.limits.end_grace);
        // An interrupt in flight when the end arrives is settled by that end.
        let Some(turn) = self.turn(no) else { return };
        let commands = turn.stop.take_commands();
        let message = turn.message.clone();
        let done = match &how {
            Settled::Answered(_) => true,
            Settled::Refused(refusal) => matches!(refusal.class, RefusalClass::NoActiveTurn),
            Settled::NotSent | Settled::Unknown(_) => false,
        };
        if done {
            turn.stop = Stop::Granted { commands };
            if !self.timers.is_set(Timer::EndGrace(no)) {
                self.timers.set(Timer::EndGrace(no), grace);
            }
            return;
        }
        let ambiguous = message
            .as_ref()
            .and_then(|m| self.durable.prompt(m))
            .is_some_and(|p| p.cancellation == crate::prompt::Cancellation::Dispatching);
        if let Some(message) = message.filter(|_| ambiguous) {
            self.prompt(
                &message,
                PromptChange::CancelAmbiguous,
                Durability::Buffered,
            );
        }
        let Some(turn) = self.turn(no) else { return };
        match how {
            Settled::Unknown(_) => {
                turn.stop = Stop::Granted { commands };
                let why = CallClosedWhy::TurnEnded;
                self.close_calls(fx, conversation, no, why, None);
                let why = QuestionClosedWhy::TurnEnded;
                self.close_questions(fx, conversation, no, why, false);
                let outcome = Outcome::Lost {
                    reason: LostReason::InterruptUnanswered,
                };
                // First unfit, so that nothing new starts when the turn's end lets it.
                self.be_unfit(fx);
                self.end_turn(fx, conversation, no, outcome, EndSource::Local);
            }
            other => {
                turn.stop = Stop::No;
                for id in commands {
                    self.answer(fx, id, Err(other.clone().error("turn/interrupt")));
                }
            }
        }
    }

    /// Gives a turn up: its calls are refused, it is stopped, and only its end is told.
    pub(super) fn give_turn_up(&mut self, fx: &mut Effects, no: TurnNo) {
        let Some(turn) = self.turn(no) else { return };
        let conversation = turn.conversation;
        let withdraw = super::calls::withdrawn("the turn was abandoned");
        let why = CallClosedWhy::Abandoned;
        self.close_calls(fx, conversation, no, why, Some(withdraw));
        self.close_questions(fx, conversation, no, QuestionClosedWhy::Abandoned, true);
        let Some(turn) = self.turn(no) else { return };
        if turn.audience == Audience::All {
            turn.audience = Audience::EndOnly;
        }
        if turn.stop == Stop::No {
            turn.stop = Stop::Wanted {
                commands: Vec::new(),
            };
            self.want_stop(fx, no);
        }
    }

    /// Nobody waits for the end of a turn that is over.
    pub(super) fn forsake(&mut self, no: TurnNo) {
        let message = self
            .durable
            .prompt_of_turn(no)
            .map(|(message, _)| message.clone());
        if let Some(message) = message {
            self.prompt(&message, PromptChange::Forsaken, Durability::Buffered);
        }
    }

    pub(super) fn turn_timed_out(&mut self, fx: &mut Effects, no: TurnNo) {
        let Some(turn) = self.turn(no) else { return };
        let conversation = turn.conversation;
        self.tell_end_early(fx, conversation, no, Outcome::TimedOut);
        let withdraw = super::calls::withdrawn("the turn's time is over");
        let why = CallClosedWhy::TurnEnded;
        self.close_calls(fx, conversation, no, why, Some(withdraw));
        let why = QuestionClosedWhy::TurnEnded;
        self.close_questions(fx, conversation, no, why, true);
        let Some(turn) = self.turn(no) else { return };
        if turn.stop == Stop::No {
            turn.stop = Stop::Wanted {
                commands: Vec::new(),
            };
            self.want_stop(fx, no);
        }
    }

    pub(super) fn turn_quiet(&mut self, fx: &mut Effects, no: TurnNo) {
        let limit = self.config.limits.quiet;
        let now = self.now;
        let Some(turn) = self.turn(no) else { return };
        let due = turn.heard.after(limit);
        if due > now {
            self.timers.set(Timer::Quiet(no), due);
            return;
        }
        let conversation = turn.conversation;
        let count = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
        let update = TurnUpdate::Quiet {
            open_calls: count(turn.calls.values().filter(|c| c.request.is_some()).count()),
            open_questions: count(turn.questions.len()),
            open_items: count(turn.open_items.len()),
        };
        self.timers.set(Timer::Quiet(no), now.after(limit));
        self.tell(fx, conversation, no, update);
        if self.config.quiet == crate::config::Quiet::Interrupt {
            if let Some(turn) = self.turn(no).filter(|turn| turn.stop == Stop::No) {
                turn.stop = Stop::Wanted {
                    commands: Vec::new(),
                };
                self.want_stop(fx, no);
            }
        }
    }

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
            Settled::Answered(page) => match serde_json::from_str::<Page<'_>>(&page) {
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

    /// The server let the thread of a running turn go.
    pub(super) fn thread_gone(
        &mut self,
        fx: &mut Effects,
        conversation: ConversationId,
        no: TurnNo,
    ) {
        self.close_calls(fx, conversation, no, CallClosedWhy::TurnEnded, None);
        self.close_questions(fx, conversation, no, QuestionClosedWhy::TurnEnded, false);
        let Some(turn) = self.turn(no) else { return };
        let outcome = match turn.state {
            TurnState::Sent { .. } => Outcome::Unknown {
                evidence: "the server closed the thread before it named the turn".into(),
            },
            TurnState::Waiting | TurnState::Running { .. } => Outcome::Lost {
                reason: LostReason::ThreadClosed,
            },
        };
        self.end_turn(fx, conversation, no, outcome, EndSource::Local);
    }
}

/// The number under which an interrupt stands in the journal that belongs to no message of ours:
/// above all numbers that callers count up to.
fn bare_interrupt(no: TurnNo) -> CommandId {
    CommandId(u64::MAX - u64::from(no.0))
}

fn turn_end(turn: &Turn, outcome: Outcome, source: EndSource) -> TurnEnd {
    TurnEnd {
        text: turn.text.so_far(),
        candidate: turn.text.candidate(),
        usage: turn.used,
        native: turn.native().cloned(),
        message: turn.message.clone(),
        outcome,
        source,
    }
}

fn stop_answer(outcome: &Outcome) -> Result<Reply, CommandError> {
    match outcome {
        Outcome::Interrupted => Ok(Reply::Interrupted),
        Outcome::Lost {
            reason: LostReason::InterruptUnanswered,
        } => Err(CommandError::InterruptUnanswered),
        Outcome::Lost {
            reason: LostReason::Connection(reason),
        } => Err(CommandError::Disconnected {
            reason: reason.clone().into(),
        }),
        Outcome::Lost {
            reason: LostReason::ClosedByUs,
        } => Err(CommandError::ClosedByUs),
        other => Ok(Reply::AlreadyEnded {
            outcome: other.name().to_owned(),
        }),
    }
}

fn read_turn_id(result: &str) -> Result<TurnId, String> {
    #[derive(Deserialize)]
    struct Started<'a> {
        #[serde(borrow)]
        turn: Named<'a>,
    }
    #[derive(Deserialize)]
    struct Named<'a> {
        #[serde(borrow)]
        id: CowStr<'a>,
    }
    let started: Started<'_> = serde_json::from_str(result).map_err(|e| e.to_string())?;
    TurnId::new(&started.turn.id.0).ok_or_else(|| "the turn's id is not clean".to_owned())
}
