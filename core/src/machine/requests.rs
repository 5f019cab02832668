//! Our requests: from the frame that leaves to one of four ends.

use alloc::{
    borrow::ToOwned,
    collections::BTreeMap,
    format,
    string::{String, ToString},
    vec,
    vec::Vec,
};

use serde::Serialize;
use serde_json::value::RawValue;

use super::{
    Machine,
    cleanup::Call,
    out::UNGATED,
    turn::{SteerState, TurnState},
};
use crate::{
    RawJson,
    command::{CommandError, Refusal, RefusalClass, Reply, RequestEffect, RpcError},
    effect::{Durability, Effects, SECRET_PLACEHOLDER},
    event::ProtocolError,
    id::{CommandId, ConversationId, FrameSeq, JournalSeq, MessageId, ThreadId, TurnNo},
    record::{Record, RequestEnd},
    secret::SecretJson,
    time::Timestamp,
    timers::Timer,
    wire,
};

/// What a request is for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Initialize,
    ThreadStart {
        conversation: ConversationId,
    },
    ThreadResume {
        conversation: ConversationId,
    },
    TurnStart {
        conversation: ConversationId,
        turn: TurnNo,
    },
    TurnSteer {
        conversation: ConversationId,
        turn: TurnNo,
        message: MessageId,
    },
    TurnInterrupt {
        conversation: ConversationId,
        turn: TurnNo,
    },
    Unsubscribe {
        conversation: ConversationId,
    },
    Name {
        conversation: ConversationId,
    },
    Compact {
        conversation: ConversationId,
    },
    ThreadFork {
        conversation: ConversationId,
    },
    /// Looks for the thread of a fork by its mark.
    Seek {
        conversation: ConversationId,
    },
    /// The last turn of a thread that is to be compacted.
    LastTurn {
        conversation: ConversationId,
    },
    Reconcile {
        conversation: ConversationId,
        turn: TurnNo,
    },
    /// Takes back an interrupted turn whose message is to be sent again.
    Revert {
        conversation: ConversationId,
        turn: TurnNo,
    },
    /// Whose a thread is that no conversation has.
    WhoseThread {
        thread: ThreadId,
    },
    /// A page of the history, to decide what is in doubt.
    LookUp {
        conversation: ConversationId,
    },
    /// A page of the server's models.
    Models,
    CleanUp(Call),
    Raw {
        command: CommandId,
        effect: RequestEffect,
    },
}

/// How a request ended.
#[derive(Clone, Debug)]
pub(super) enum Settled {
    /// The result, as raw JSON.
    Answered(String),
    /// The server said no: nothing was accepted.
    Refused(Refusal),
    /// It never left.
    NotSent,
    /// It left, and what became of it is not known.
    Unknown(String),
}

/// A request without an end.
#[derive(Clone, Debug)]
pub(super) struct Pending {
    pub(super) id: u64,
    pub(super) kind: Kind,
    pub(super) method: String,
    params: Params,
    /// The thread that it names.
    thread: Option<ThreadId>,
    pub(super) left: bool,
    frame: FrameSeq,
    /// When it was first made.
    since: Timestamp,
    tries: u32,
}

/// The parameters of a request, as raw JSON.
#[derive(Clone, Default)]
pub(super) struct Params {
    text: String,
    /// They stand in no log.
    secret: bool,
}

impl core::fmt::Debug for Params {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(if self.secret {
            SECRET_PLACEHOLDER
        } else {
            &self.text
        })
    }
}

/// A request of the application's, on its way.
#[derive(Clone, Debug)]
pub(super) struct RawRequest {
    pub(super) method: String,
    pub(super) params: RawParams,
    pub(super) effect: RequestEffect,
}

/// Its parameters.
#[derive(Clone, Debug)]
pub(super) enum RawParams {
    Open(RawJson),
    Secret(SecretJson),
}

impl RawParams {
    const fn json(&self) -> &RawJson {
        match self {
            Self::Open(json) => json,
            Self::Secret(json) => json.expose(),
        }
    }
}

impl From<RawParams> for Params {
    fn from(params: RawParams) -> Self {
        Self {
            text: params.json().get().to_owned(),
            secret: matches!(params, RawParams::Secret(_)),
        }
    }
}

/// All of them.
#[derive(Clone, Debug, Default)]
pub(super) struct Requests {
    last: u64,
    pending: BTreeMap<u64, Pending>,
}

impl Requests {
    pub(super) fn is_empty(&self) -> bool {
        self.pending.is_empty()
    }

    pub(super) fn len(&self) -> usize {
        self.pending.len()
    }

    pub(super) fn has_left(&self, id: u64) -> bool {
        self.pending.get(&id).is_some_and(|p| p.left)
    }

    pub(super) fn take(&mut self, id: u64) -> Option<Pending> {
        self.pending.remove(&id)
    }

    /// Takes those whose settling may end a turn: they come before the turns.
    pub(super) fn take_steers(&mut self) -> Vec<Pending> {
        let is_steer = |pending: &Pending| matches!(pending.kind, Kind::TurnSteer { .. });
        let pending = core::mem::take(&mut self.pending);
        let (steers, rest) = pending.into_iter().partition(|(_, p)| is_steer(p));
        self.pending = rest;
        let steers: BTreeMap<u64, Pending> = steers;
        steers.into_values().collect()
    }

    pub(super) fn take_all(&mut self) -> Vec<Pending> {
        core::mem::take(&mut self.pending).into_values().collect()
    }

    pub(super) fn take_frame(&mut self, frame: FrameSeq) -> Option<Pending> {
        let id = self
            .pending
            .values()
            .find(|p| p.left && p.frame == frame)?
            .id;
        self.take(id)
    }

    fn next_id(&mut self) -> u64 {
        // 2^64 requests are out of reach.
        self.last = self.last.saturating_add(1);
        self.last
    }
}

impl Machine {
    /// Makes a request behind a gate. Its deadline starts when its frame leaves.
    pub(super) fn request<P: Serialize + ?Sized>(
        &mut self,
        fx: &mut Effects,
        kind: Kind,
        method: &str,
        params: &P,
        gate: JournalSeq,
    ) -> u64 {
        // Our parameters have string keys only and no IO: writing them cannot fail.
        let text = serde_json::to_string(params).expect("parameters can be written as JSON");
        let secret = false;
        self.request_with(fx, kind, method, Params { text, secret }, gate)
    }

    fn request_with(
        &mut self,
        fx: &mut Effects,
        kind: Kind,
        method: &str,
        params: Params,
        gate: JournalSeq,
    ) -> u64 {
        let thread = match &kind {
            // A replay does not know what is secret: nothing may depend on it.
            Kind::Raw { .. } if params.secret => None,
            // Whoever asks raw names the thread in the parameters, if at all.
            Kind::Raw { .. } => named_thread(&params.text),
            kind => self.thread_of(kind),
        };
        let pending = Pending {
            id: 0,
            thread,
            kind,
            method: method.to_owned(),
            params,
            left: false,
            frame: FrameSeq(0),
            since: self.now,
            tries: 1,
        };
        self.put(fx, pending, gate)
    }

    fn thread_of(&mut self, kind: &Kind) -> Option<ThreadId> {
        let conversation = match kind {
            Kind::ThreadResume { conversation }
            | Kind::TurnStart { conversation, .. }
            | Kind::TurnSteer { conversation, .. }
            | Kind::TurnInterrupt { conversation, .. }
            | Kind::Unsubscribe { conversation }
            | Kind::Name { conversation }
            | Kind::Compact { conversation }
            | Kind::LastTurn { conversation }
            | Kind::LookUp { conversation }
            | Kind::Revert { conversation, .. }
            | Kind::Reconcile { conversation, .. } => *conversation,
            Kind::WhoseThread { thread } => return Some(thread.clone()),
            Kind::CleanUp(call) => return call.thread.clone(),
            Kind::Initialize
            | Kind::ThreadStart { .. }
            | Kind::ThreadFork { .. }
            | Kind::Seek { .. }
            | Kind::Models
            | Kind::Raw { .. } => return None,
        };
        self.conversation(conversation)?.link.thread().cloned()
    }

    fn put(&mut self, fx: &mut Effects, mut pending: Pending, gate: JournalSeq) -> u64 {
        let id = self.requests.next_id();
        pending.id = id;
        pending.left = false;
        self.send_request(fx, pending, gate);
        id
    }

    fn send_request(&mut self, fx: &mut Effects, pending: Pending, gate: JournalSeq) {
        let (id, secret) = (pending.id, pending.params.secret);
        let params: &RawValue = match serde_json::from_str(&pending.params.text) {
            Ok(params) => params,
            // What we have written ourselves can be read.
            Err(_) => return,
        };
        let bytes = wire::request(id, &pending.method, params);
        // They stand at the end of their line, before `}` and the line feed.
        let end = bytes.len() - 2;
        let span = end - params.get().len()..end;
        self.requests.pending.insert(id, pending);
        let spans = if secret { vec![span] } else { Vec::new() };
        self.send_secret(fx, bytes, gate, Some(id), spans);
    }

    pub(super) fn request_leaves(&mut self, id: u64, frame: FrameSeq) {
        let limits = &self.config.limits;
        let Some(pending) = self.requests.pending.get_mut(&id) else {
            return;
        };
        pending.left = true;
        pending.frame = frame;
        let limit = match pending.kind {
            // The handshake has a timer of its own, from the opening on.
            Kind::Initialize => return,
            Kind::TurnInterrupt { .. } => limits.interrupt,
            Kind::ThreadStart { .. }
            | Kind::ThreadResume { .. }
            | Kind::TurnStart { .. }
            | Kind::TurnSteer { .. }
            | Kind::Unsubscribe { .. }
            | Kind::Name { .. }
            | Kind::Compact { .. }
            | Kind::LastTurn { .. }
            | Kind::ThreadFork { .. }
            | Kind::Seek { .. }
            | Kind::Reconcile { .. }
            | Kind::LookUp { .. }
            | Kind::WhoseThread { .. }
            | Kind::Revert { .. }
            | Kind::Models
            | Kind::CleanUp(_)
            | Kind::Raw { .. } => limits.request,
        };
        self.timers.set(Timer::Request(id), self.now.after(limit));
    }

    pub(super) fn on_response(
        &mut self,
        fx: &mut Effects,
        id: &str,
        result: Option<&RawValue>,
        error: Option<&RawValue>,
    ) {
        // Our ids are plain numbers: 7.0 and "7" were never asked.
        let ours = (id == "0" || !id.starts_with('0')) && id.bytes().all(|b| b.is_ascii_digit());
        let pending = match id.parse::<u64>() {
            Ok(id) if ours && self.requests.has_left(id) => self.requests.take(id),
            Ok(_) | Err(_) => None,
        };
        let Some(mut pending) = pending else {
            let answered = ours && id.parse::<u64>().is_ok_and(|id| id <= self.requests.last);
            if answered {
                self.counters.duplicate_frames += 1;
            }
            self.report(fx, ProtocolError::UnknownResponse { id: id.to_owned() });
            return;
        };
        self.timers.clear(Timer::Request(pending.id));
        let bad = |reason: &str| ProtocolError::BadResponse {
            method: pending.method.clone(),
            reason: reason.to_owned(),
        };
        let how = match (result, error) {
            (Some(result), None) => Settled::Answered(result.get().to_owned()),
            (None, Some(error)) => match wire::read_error(error) {
                Some(error) => {
                    let (tries, limit) = {
                        let limits = &self.config.limits;
                        (limits.overload_tries, limits.request)
                    };
                    let tries_left = pending.tries < tries;
                    if error.is_retryable() && tries_left && self.is_wanted(&pending) {
                        self.pause(pending);
                        return;
                    }
                    let asked = pending.thread.as_ref().map(ThreadId::as_str);
                    let class = wire::refusal::classify(&error, asked);
                    // A closing thread is tried again until the request's limit.
                    let patient = self.now.since(pending.since) < limit;
                    if class == RefusalClass::Closing && patient && self.is_wanted(&pending) {
                        self.pause(pending);
                        return;
                    }
                    Settled::Refused(Refusal {
                        class,
                        method: pending.method.clone(),
                        error,
                    })
                }
                None => {
                    self.report(fx, bad("the error has no code or no message"));
                    Settled::Unknown("the error of the response is malformed".into())
                }
            },
            (Some(_), Some(_)) => {
                self.report(fx, bad("both result and error"));
                Settled::Unknown("the response has both result and error".into())
            }
            (None, None) => {
                self.report(fx, bad("neither result nor error"));
                Settled::Unknown("the response has neither result nor error".into())
            }
        };
        if let Settled::Refused(refusal) = &how {
            if refusal.class == RefusalClass::UnknownMethod {
                self.unknown_methods.insert(pending.method.clone());
            }
        }
        pending.params = Params::default();
        self.settled(fx, pending, how);
    }

    /// Whether what a request is for still stands. A message that stands in a turn is never sent
    /// again, whatever its response says.
    fn is_wanted(&mut self, pending: &Pending) -> bool {
        match &pending.kind {
            Kind::TurnStart { turn, .. } => self.turn(*turn).is_some_and(
                |turn| matches!(turn.state, TurnState::Sent { request } if request == pending.id),
            ),
            Kind::TurnSteer { turn, message, .. } => self.turn(*turn).is_some_and(|turn| {
                turn.steers
                    .iter()
                    .any(|steer| steer.message == *message && steer.state == SteerState::Sent)
            }),
            Kind::TurnInterrupt { turn, .. } | Kind::Reconcile { turn, .. } => {
                self.turn(*turn).is_some()
            }
            Kind::Initialize
            | Kind::ThreadStart { .. }
            | Kind::ThreadResume { .. }
            | Kind::Unsubscribe { .. }
            | Kind::Name { .. }
            | Kind::Compact { .. }
            | Kind::LastTurn { .. }
            | Kind::ThreadFork { .. }
            | Kind::Seek { .. }
            | Kind::LookUp { .. }
            | Kind::WhoseThread { .. }
            | Kind::Revert { .. }
            | Kind::Models
            | Kind::CleanUp(_)
            | Kind::Raw { .. } => true,
        }
    }

    /// Waits before the next try of a request that met an overloaded server or a closing thread: under a new id, with
    /// growing, jittered pauses.
    fn pause(&mut self, mut pending: Pending) {
        let limits = &self.config.limits;
        let doubled = limits
            .overload_first
            .saturating_mul(2u32.saturating_pow(pending.tries - 1));
        let pause = doubled.min(limits.overload_longest);
        let jitter = self.jitter(pause);
        let id = self.requests.next_id();
        pending.id = id;
        pending.left = false;
        pending.tries = pending.tries.saturating_add(1);
        if let Kind::TurnStart { turn, .. } = pending.kind {
            // A turn that is given up in the pause finds its request.
            if let Some(turn) = self.turn(turn) {
                turn.state = TurnState::Sent { request: id };
            }
        }
        self.requests.pending.insert(id, pending);
        self.timers
            .set(Timer::Retry(id), self.now.after(pause).after(jitter));
    }

    pub(super) fn retry(&mut self, fx: &mut Effects, id: u64) {
        let Some(pending) = self.requests.take(id) else {
            return;
        };
        if !self.is_wanted(&pending) {
            self.settled(fx, pending, Settled::NotSent);
            return;
        }
        // A repeat after a refusal changes nothing that its record does not cover.
        self.send_request(fx, pending, UNGATED);
    }

    pub(super) fn request_timed_out(&mut self, fx: &mut Effects, id: u64) {
        let Some(pending) = self.requests.take(id) else {
            return;
        };
        let limit = match pending.kind {
            Kind::TurnInterrupt { .. } => self.config.limits.interrupt,
            _ => self.config.limits.request,
        };
        let evidence = format!("no answer within {} ms", limit.as_millis());
        self.settled(fx, pending, Settled::Unknown(evidence));
    }

    /// Every request ends here, exactly once.
    pub(super) fn settled(&mut self, fx: &mut Effects, pending: Pending, how: Settled) {
        match pending.kind {
            Kind::Initialize => self.initialized(fx, how),
            Kind::ThreadStart { conversation } => self.thread_started(fx, conversation, how),
            Kind::ThreadResume { conversation } => self.thread_resumed(fx, conversation, how),
            Kind::TurnStart { conversation, turn } => {
                self.turn_start_settled(fx, conversation, turn, how);
            }
            Kind::TurnSteer {
                conversation,
                turn,
                message,
            } => self.steer_settled(fx, conversation, turn, &message, how),
            Kind::TurnInterrupt { conversation, turn } => {
                self.interrupt_settled(fx, conversation, turn, how);
            }
            Kind::Unsubscribe { conversation } => self.unsubscribed(fx, conversation, how),
            Kind::Name { conversation } => self.named(fx, conversation, how),
            Kind::Compact { conversation } => self.compact_settled(fx, conversation, how),
            Kind::ThreadFork { conversation } => self.thread_forked(fx, conversation, how),
            Kind::Seek { conversation } => self.sought(fx, conversation, how),
            Kind::LastTurn { conversation } => self.last_turn_told(fx, conversation, how),
            Kind::Reconcile { conversation, turn } => {
                self.reconciled(fx, conversation, turn, how);
            }
            Kind::LookUp { conversation } => self.looked(fx, conversation, how),
            Kind::WhoseThread { thread } => self.whose_told(fx, &thread, &how),
            Kind::Revert { conversation, turn } => self.reverted(fx, conversation, turn, how),
            Kind::Models => self.models_told(fx, how),
            Kind::CleanUp(call) => self.cleanup_settled(fx, &call, &pending.method, how),
            Kind::Raw { command, effect } => {
                self.raw_settled(fx, command, effect, &pending.method, how);
            }
        }
    }

    /// Sends a request of the application's, or keeps it until the connection is ready.
    pub(super) fn raw(&mut self, fx: &mut Effects, id: CommandId, raw: RawRequest) {
        if let Some(error) = self.ended_error() {
            self.answer(fx, id, Err(error));
            return;
        }
        if self.unknown_methods.contains(&raw.method) {
            let method = raw.method;
            let error = RpcError {
                code: -32_601,
                message: format!("{method} was refused before on this connection"),
                data: None,
            };
            let refusal = Refusal {
                method,
                class: RefusalClass::UnknownMethod,
                error,
            };
            self.answer(fx, id, Err(CommandError::Refused(refusal.into())));
            return;
        }
        let size = raw.params.json().get().len() + raw.method.len() + 64;
        if size > self.config.limits.frame {
            self.answer(fx, id, Err(CommandError::FrameTooLarge { size }));
            return;
        }
        // What does not take it now will, or the connection that comes after it.
        if !self.connection.is_ready() {
            self.commands.wait_raw(id, raw);
            return;
        }
        let RawRequest {
            method,
            params,
            effect,
        } = raw;
        let gate = match effect {
            RequestEffect::Changes => self.record(
                Record::Request {
                    command: id,
                    method: method.clone(),
                },
                Durability::Synced,
            ),
            RequestEffect::Reads => UNGATED,
        };
        let kind = Kind::Raw {
            command: id,
            effect,
        };
        self.request_with(fx, kind, &method, params.into(), gate);
    }

    /// Sends what waited for the connection.
    pub(super) fn advance_raw(&mut self, fx: &mut Effects) {
        for (id, raw) in self.commands.take_waiting_raw() {
            self.raw(fx, id, raw);
        }
    }

    fn raw_settled(
        &mut self,
        fx: &mut Effects,
        id: CommandId,
        effect: RequestEffect,
        method: &str,
        how: Settled,
    ) {
        if effect == RequestEffect::Changes && self.durable.request(id).is_some() {
            let end = how.end();
            self.record(
                Record::RequestEnded { command: id, end },
                Durability::Buffered,
            );
        }
        let answer = match how {
            Settled::Answered(result) => match RawJson::parse(&result) {
                Ok(result) => Ok(Reply::Response(result)),
                Err(error) => Err(CommandError::Unknown {
                    method: method.to_owned(),
                    evidence: error.to_string(),
                }),
            },
            other => Err(self.error_of(other, method)),
        };
        self.answer(fx, id, answer);
    }

    /// The error of a request that ended without an answer.
    pub(super) fn error_of(&self, how: Settled, method: &str) -> CommandError {
        match how {
            Settled::NotSent | Settled::Unknown(_) if self.is_closed_by_us() => {
                CommandError::ClosedByUs
            }
            other => other.error(method),
        }
    }

    /// Ends requests with the connection that they were for.
    pub(super) fn settle_ended(&mut self, fx: &mut Effects, ended: Vec<Pending>, reason: &str) {
        for pending in ended {
            self.timers.clear(Timer::Request(pending.id));
            self.timers.clear(Timer::Retry(pending.id));
            self.outbox.withdraw(pending.id);
            let how = if pending.left {
                Settled::Unknown(reason.to_owned())
            } else {
                Settled::NotSent
            };
            self.settled(fx, pending, how);
        }
    }
}

impl Settled {
    /// How the record says it.
    pub(super) const fn end(&self) -> RequestEnd {
        match self {
            Self::Answered(_) => RequestEnd::Answered,
            Self::Refused(refusal) => RequestEnd::Refused {
                code: refusal.error.code,
            },
            Self::NotSent => RequestEnd::NotSent,
            Self::Unknown(_) => RequestEnd::Unknown,
        }
    }

    /// The error of an end that is no answer.
    pub(super) fn error(self, method: &str) -> CommandError {
        match self {
            Self::Answered(_) => CommandError::Unknown {
                method: method.to_owned(),
                evidence: "the answer makes no sense".into(),
            },
            Self::Refused(refusal) => CommandError::Refused(refusal.into()),
            Self::NotSent => CommandError::NotSent {
                method: method.to_owned(),
            },
            Self::Unknown(evidence) => CommandError::Unknown {
                method: method.to_owned(),
                evidence,
            },
        }
    }
}

/// The thread that raw parameters name.
fn named_thread(params: &str) -> Option<ThreadId> {
    let params: &RawValue = serde_json::from_str(params).ok()?;
    ThreadId::new(wire::notification::scope(Some(params)).thread()?)
}
