//! One connection after another: handshake, end, and what an end leads to.

use alloc::{format, string::String, vec::Vec};

use serde::{Deserialize, Serialize};

use super::{
    Link, Machine,
    out::UNGATED,
    requests::{Kind, Settled},
    turn::TurnState,
};
use crate::{
    codec::lines::LineSplitter,
    command::{Command, CommandError, Reply, ShutdownReport},
    effect::{CloseWhy, Effect, Effects},
    event::{
        CallClosedWhy, ConnectionEvent, EndReason, EndSource, LostReason, NoiseWhy, Outcome,
        Phasing, ProtocolError, QuestionClosedWhy, RefreshClosedWhy, ServerInfo,
    },
    id::{CommandId, Epoch, FrameSeq},
    input::{Closed, Input, Peer},
    timers::Timer,
    wire::{self, version::Version},
};

/// Where the connection is.
#[derive(Clone, Debug)]
pub(super) enum Connection {
    /// Asked for.
    Opening { epoch: Epoch },
    /// Open; `initialize` is on its way.
    Initializing { epoch: Epoch },
    /// In use.
    Ready { epoch: Epoch },
    /// It did not answer an interrupt: nothing new starts on it.
    Unfit { epoch: Epoch },
    /// We are closing it; its own end is still to come.
    Closing {
        epoch: Epoch,
        cause: Cause,
        commands: Vec<(CommandId, ShutdownReport)>,
    },
    /// It has ended; another one is opened after a pause.
    Waiting { epoch: Epoch },
    /// It has ended and does not come back.
    Ended(EndReason),
}

/// Why we are closing it. The end of stderr is only known once it is closed.
#[derive(Clone, Debug)]
pub(super) enum Cause {
    HandshakeTimeout,
    HandshakeRefused(String),
    UnsupportedVersion(Version),
    Protocol(ProtocolError),
    Unfit,
    Shutdown,
}

impl Connection {
    /// The connection that frames may be sent on.
    pub(super) fn epoch(&self) -> Option<Epoch> {
        match self {
            Self::Initializing { epoch }
            | Self::Ready { epoch }
            | Self::Unfit { epoch }
            | Self::Closing { epoch, .. } => Some(*epoch),
            Self::Opening { .. } | Self::Waiting { .. } | Self::Ended(_) => None,
        }
    }

    pub(super) fn is_ready(&self) -> bool {
        matches!(self, Self::Ready { .. })
    }

    fn phase(&self) -> Phasing {
        match self {
            Self::Opening { .. } | Self::Waiting { .. } => Phasing::Open,
            Self::Initializing { .. } => Phasing::Initialize,
            Self::Ready { .. } | Self::Unfit { .. } | Self::Closing { .. } | Self::Ended(_) => {
                Phasing::Ready
            }
        }
    }
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct InitializeParams<'a> {
    client_info: ClientInfo<'a>,
    capabilities: Capabilities<'a>,
}

#[derive(Serialize)]
struct ClientInfo<'a> {
    name: &'a str,
    title: &'a str,
    version: &'a str,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Capabilities<'a> {
    experimental_api: bool,
    request_attestation: bool,
    opt_out_notification_methods: &'a [String],
}

impl Machine {
    pub(super) fn on_opened(&mut self, fx: &mut Effects, epoch: Epoch, peer: &Peer) {
        if !matches!(self.connection, Connection::Opening { epoch: ours } if ours == epoch) {
            return;
        }
        self.connection = Connection::Initializing { epoch };
        self.opened = epoch;
        // The child before it is gone: its end was told, or the orphan was stopped.
        self.fresh_process = peer.is_child();
        self.attached(fx, peer);
        self.lines = LineSplitter::default();
        let config = self.config.clone();
        let params = InitializeParams {
            client_info: ClientInfo {
                name: &config.client.name,
                title: &config.client.title,
                version: &config.client.version,
            },
            capabilities: Capabilities {
                experimental_api: config.experimental_api,
                request_attestation: false,
                opt_out_notification_methods: &config.opt_out,
            },
        };
        // What recovery has decided is durable before anything is said.
        let gate = if self.durable.lives() > 1 {
            self.seq
        } else {
            UNGATED
        };
        self.request(fx, Kind::Initialize, "initialize", &params, gate);
    }

    pub(super) fn handshake_timed_out(&mut self, fx: &mut Effects, epoch: Epoch) {
        match self.connection {
            Connection::Opening { epoch: ours } | Connection::Initializing { epoch: ours }
                if ours == epoch =>
            {
                self.give_up(fx, epoch, Cause::HandshakeTimeout, CloseWhy::Handshake);
            }
            Connection::Opening { .. }
            | Connection::Initializing { .. }
            | Connection::Ready { .. }
            | Connection::Unfit { .. }
            | Connection::Closing { .. }
            | Connection::Waiting { .. }
            | Connection::Ended(_) => {}
        }
    }

    fn give_up(&mut self, fx: &mut Effects, epoch: Epoch, cause: Cause, why: CloseWhy) {
        self.timers.clear(Timer::Handshake(epoch));
        self.timers.clear(Timer::Drain(epoch));
        self.connection = Connection::Closing {
            epoch,
            cause,
            commands: Vec::new(),
        };
        // What waits for its record has not left and never will.
        self.outbox.drop_frames(epoch);
        self.close_connection(fx, epoch, why, UNGATED);
    }

    pub(super) fn initialized(&mut self, fx: &mut Effects, how: Settled) {
        let Connection::Initializing { epoch } = self.connection else {
            return;
        };
        let refused = |message: String| Cause::HandshakeRefused(message);
        let cause = match how {
            Settled::Answered(result) => match self.read_server(&result) {
                Ok(server) => {
                    let config = &self.config;
                    let fits = config.oldest_server <= server.version
                        && server.version < config.first_unsupported_server;
                    if config.any_server_version || fits {
                        self.be_ready(fx, epoch, server);
                        return;
                    }
                    Cause::UnsupportedVersion(server.version)
                }
                Err(reason) => refused(reason),
            },
            Settled::Refused(refusal) => refused(format!("{}", refusal.error)),
            // The process is about to end, or has closed its stdin; its end tells why, and the
            // handshake's limit stands behind it.
            Settled::NotSent => return,
            Settled::Unknown(evidence) => refused(evidence),
        };
        self.give_up(fx, epoch, cause, CloseWhy::Handshake);
    }

    fn read_server(&self, result: &str) -> Result<ServerInfo, String> {
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Initialized {
            user_agent: String,
            #[serde(default)]
            codex_home: Option<String>,
        }
        let answer: Initialized =
            crate::json::from_object(result).map_err(|e| format!("malformed answer: {e}"))?;
        let version = Version::of_user_agent(&answer.user_agent)
            .ok_or_else(|| format!("no version in the user agent {:?}", answer.user_agent))?;
        Ok(ServerInfo {
            version,
            user_agent: answer.user_agent,
            codex_home: answer.codex_home,
        })
    }

    fn be_ready(&mut self, fx: &mut Effects, epoch: Epoch, server: ServerInfo) {
        self.timers.clear(Timer::Handshake(epoch));
        self.connection = Connection::Ready { epoch };
        self.home_told(fx, &server);
        self.tries.ready = Some(self.now);
        self.tries.ever = true;
        self.unknown_methods.clear();
        self.send(fx, wire::initialized(), UNGATED, None);
        self.tell_connection(fx, ConnectionEvent::Ready { epoch, server });
        for conversation in self.conversation_ids() {
            self.advance(fx, conversation);
        }
        self.advance_raw(fx);
        self.sweep_all(fx);
    }

    /// Cuts a read into lines and takes them in order.
    pub(super) fn on_received(&mut self, fx: &mut Effects, epoch: Epoch, bytes: &[u8]) {
        let live = match self.connection {
            Connection::Initializing { epoch: ours }
            | Connection::Ready { epoch: ours }
            | Connection::Unfit { epoch: ours } => ours == epoch,
            Connection::Opening { .. }
            | Connection::Closing { .. }
            | Connection::Waiting { .. }
            | Connection::Ended(_) => false,
        };
        if !live {
            self.counters.past_epoch_frames += 1;
            return;
        }
        let limit = self.config.limits.frame;
        let mut lines = core::mem::take(&mut self.lines);
        let mut at = 0;
        loop {
            match lines.next(bytes, &mut at, limit) {
                Ok(Some(line)) => {
                    self.read_line(fx, line);
                    // Only stages may tell how reads were cut.
                    self.look_after_line(fx);
                }
                Ok(None) => break,
                Err(_) => {
                    self.broken(fx, epoch, ProtocolError::FrameTooLarge { limit });
                    break;
                }
            }
            // A line may have made us close the connection: what follows it is not ours any more.
            if matches!(
                self.connection,
                Connection::Closing { .. } | Connection::Ended(_)
            ) {
                break;
            }
        }
        self.lines = lines;
    }

    /// The server broke the protocol beyond repair.
    pub(super) fn broken(&mut self, fx: &mut Effects, epoch: Epoch, error: ProtocolError) {
        self.report(fx, error.clone());
        self.give_up(fx, epoch, Cause::Protocol(error), CloseWhy::Protocol);
    }

    /// Marks the connection: nothing new starts on it.
    pub(super) fn be_unfit(&mut self, fx: &mut Effects) {
        if let Connection::Ready { epoch } = self.connection {
            self.connection = Connection::Unfit { epoch };
            let drain = self.now.after(self.config.limits.drain);
            self.timers.set(Timer::Drain(epoch), drain);
            self.tell_connection(fx, ConnectionEvent::Unfit);
        }
        self.close_if_drained(fx);
    }

    /// Closes an unfit connection once nothing runs on it.
    pub(super) fn close_if_drained(&mut self, fx: &mut Effects) {
        if let Connection::Unfit { epoch } = self.connection {
            let runs = self
                .conversations
                .iter()
                .flatten()
                .flat_map(|c| &c.turns)
                .any(|turn| match turn.state {
                    // What is suspended waits for the next connection.
                    TurnState::Waiting | TurnState::Suspended { .. } => false,
                    TurnState::Sent { .. } | TurnState::Running { .. } => true,
                });
            if !runs {
                self.give_up(fx, epoch, Cause::Unfit, CloseWhy::Unfit);
            }
        }
    }

    pub(super) fn drained(&mut self, fx: &mut Effects, epoch: Epoch) {
        if matches!(self.connection, Connection::Unfit { epoch: ours } if ours == epoch) {
            self.give_up(fx, epoch, Cause::Unfit, CloseWhy::Unfit);
        }
    }

    pub(super) fn on_closed(&mut self, fx: &mut Effects, epoch: Epoch, closed: Closed) {
        let phase = self.connection.phase();
        let stderr_tail = closed.stderr_tail;
        // Where none came to be, the child of an earlier life may be what stood in its way.
        if epoch == self.opened {
            self.process_gone();
        }
        let (reason, commands) = match &mut self.connection {
            Connection::Opening { epoch: ours }
            | Connection::Initializing { epoch: ours }
            | Connection::Ready { epoch: ours }
                if *ours == epoch =>
            {
                (
                    EndReason::Closed {
                        phase,
                        reason: closed.reason,
                        stderr_tail,
                    },
                    Vec::new(),
                )
            }
            Connection::Unfit { epoch: ours } if *ours == epoch => (EndReason::Unfit, Vec::new()),
            Connection::Closing {
                epoch: ours,
                cause,
                commands,
            } if *ours == epoch => {
                let commands = core::mem::take(commands);
                let reason = match cause {
                    Cause::HandshakeTimeout => EndReason::HandshakeTimeout {
                        limit: self.config.limits.handshake,
                        stderr_tail,
                    },
                    Cause::HandshakeRefused(message) => EndReason::HandshakeRefused {
                        message: core::mem::take(message),
                        stderr_tail,
                    },
                    Cause::UnsupportedVersion(version) => EndReason::UnsupportedVersion {
                        version: version.clone(),
                        oldest: self.config.oldest_server.clone(),
                        first_unsupported: self.config.first_unsupported_server.clone(),
                    },
                    Cause::Protocol(error) => EndReason::Protocol {
                        error: error.clone(),
                        stderr_tail,
                    },
                    Cause::Unfit => EndReason::Unfit,
                    Cause::Shutdown => EndReason::ClosedByUs,
                };
                (reason, commands)
            }
            Connection::Opening { .. }
            | Connection::Initializing { .. }
            | Connection::Ready { .. }
            | Connection::Unfit { .. }
            | Connection::Closing { .. }
            | Connection::Waiting { .. }
            | Connection::Ended(_) => return,
        };
        if let Some(rest) = self.lines.rest() {
            self.last_line(fx, &rest);
        }
        self.end(fx, reason, commands);
    }

    /// The stream ended in the middle of a line: whole JSON is a frame all the same.
    fn last_line(&mut self, fx: &mut Effects, rest: &[u8]) {
        if matches!(wire::read(rest), wire::Line::Noise(_)) {
            self.noise(fx, rest, NoiseWhy::Cut);
        } else if matches!(
            self.connection,
            Connection::Initializing { .. } | Connection::Ready { .. } | Connection::Unfit { .. }
        ) {
            self.on_line(fx, rest);
        }
    }

    /// Every wait ends with the connection.
    fn end(
        &mut self,
        fx: &mut Effects,
        reason: EndReason,
        commands: Vec<(CommandId, ShutdownReport)>,
    ) {
        let epoch = self.last_epoch;
        self.outbox.drop_frames(epoch);
        for timer in [
            Timer::Handshake(epoch),
            Timer::Drain(epoch),
            Timer::Reconnect(epoch),
        ] {
            self.timers.clear(timer);
        }
        if let Some(pause) = self.next_pause(&reason) {
            self.suspend(fx, reason, pause);
            return;
        }
        self.connection = Connection::Ended(reason.clone());
        if !self.tries.ever {
            self.leave_recovered(fx);
        }
        let by_us = matches!(reason, EndReason::ClosedByUs);
        self.forget_models();
        self.end_waits(fx, &reason, by_us);
        self.end_refreshes(fx, RefreshClosedWhy::ConnectionEnded);
        self.inbound.clear();
        self.strangers.clear();
        for conversation in self.conversation_ids() {
            let closing = self.conversation(conversation).and_then(|c| {
                // Without a connection there is nothing to let go.
                c.link = match core::mem::replace(&mut c.link, Link::None) {
                    Link::Loaded(thread) | Link::Detached(thread) | Link::Resuming(thread) => {
                        Link::Detached(thread)
                    }
                    Link::None | Link::Starting => Link::None,
                };
                c.closing.take()
            });
            if let Some(commands) = closing {
                self.closed(fx, conversation, commands);
            }
        }
        self.tell_connection(fx, ConnectionEvent::Ended(reason));
        let gate = self.gate();
        for (id, report) in commands {
            self.answer_gated(fx, id, gate, Ok(Reply::ShutDown(report)));
        }
    }

    /// Ends every wait. The connection takes nothing new any more.
    fn end_waits(&mut self, fx: &mut Effects, reason: &EndReason, by_us: bool) {
        let text = format!("{reason}");
        self.drop_sweeps();
        // A turn whose end waits for a steer's answer ends as the server said.
        let steers = self.requests.take_steers();
        self.settle_ended(fx, steers, &text);
        self.end_turns(fx, reason, by_us);
        for conversation in self.conversation_ids() {
            self.end_doubts(fx, conversation, &text);
        }
        let rest = self.requests.take_all();
        self.settle_ended(fx, rest, &text);
        for conversation in self.conversation_ids() {
            self.end_errands(fx, conversation, &text);
        }
        for (id, _) in self.commands.take_waiting_raw() {
            let error = self.ended_error().unwrap_or(CommandError::ClosedByUs);
            self.answer(fx, id, Err(error));
        }
    }

    fn end_turns(&mut self, fx: &mut Effects, reason: &EndReason, by_us: bool) {
        let (call_why, question_why) = if by_us {
            (CallClosedWhy::Shutdown, QuestionClosedWhy::Shutdown)
        } else {
            (
                CallClosedWhy::ConnectionEnded,
                QuestionClosedWhy::ConnectionEnded,
            )
        };
        let turns: Vec<_> = self
            .turn_owner
            .iter()
            .map(|(turn, owner)| (*turn, *owner))
            .collect();
        for (no, conversation) in turns {
            let Some(turn) = self.turn(no) else { continue };
            let lost = || Outcome::Lost {
                reason: if by_us {
                    LostReason::ClosedByUs
                } else {
                    LostReason::Connection(reason.clone().into())
                },
            };
            let outcome = match turn.state {
                TurnState::Waiting => Outcome::Rejected {
                    error: crate::event::Rejection::NotSent(format!("{reason}")),
                },
                TurnState::Sent { request } => {
                    if self.requests.has_left(request) {
                        // The message may have arrived: only the history can tell.
                        Outcome::Unknown {
                            evidence: format!("turn/start left and was not answered: {reason}"),
                        }
                    } else {
                        let error = crate::event::Rejection::NotSent(format!("{reason}"));
                        Outcome::Rejected { error }
                    }
                }
                TurnState::Running { .. }
                | TurnState::Suspended {
                    native: Some(_), ..
                } => lost(),
                TurnState::Suspended { native: None } => Outcome::Unknown {
                    evidence: format!("turn/start left and was not answered: {reason}"),
                },
            };
            self.close_calls(fx, conversation, no, call_why, None);
            self.close_questions(fx, conversation, no, question_why, false);
            self.end_turn(fx, conversation, no, outcome, EndSource::Local);
        }
        self.close_child_questions(fx, None, question_why, false);
        self.close_child_calls(fx, |_| true, call_why, false);
    }

    /// Ends everything in order.
    pub(super) fn shut_down(&mut self, fx: &mut Effects, id: CommandId) {
        match &mut self.connection {
            Connection::Ended(_) => {
                let gate = self.gate();
                self.answer_gated(fx, id, gate, Ok(Reply::ShutDown(ShutdownReport::default())));
                return;
            }
            Connection::Closing { commands, .. } => {
                commands.push((id, ShutdownReport::default()));
                return;
            }
            Connection::Opening { .. }
            | Connection::Initializing { .. }
            | Connection::Ready { .. }
            | Connection::Waiting { .. }
            | Connection::Unfit { .. } => {}
        }
        let mut report = ShutdownReport {
            turns: u32::try_from(self.turn_owner.len()).unwrap_or(u32::MAX),
            commands: u32::try_from(self.requests.len()).unwrap_or(u32::MAX),
            ..ShutdownReport::default()
        };
        let turns: Vec<_> = self
            .turn_owner
            .iter()
            .map(|(turn, owner)| (*turn, *owner))
            .collect();
        for (no, conversation) in turns {
            let withdraw = Some(super::calls::withdrawn("the client shuts down"));
            report.calls +=
                self.close_calls(fx, conversation, no, CallClosedWhy::Shutdown, withdraw);
            report.questions +=
                self.close_questions(fx, conversation, no, QuestionClosedWhy::Shutdown, true);
        }
        self.end_refreshes(fx, RefreshClosedWhy::Shutdown);
        let why = QuestionClosedWhy::Shutdown;
        report.questions += self.close_child_questions(fx, None, why, true);
        report.calls += self.close_child_calls(fx, |_| true, CallClosedWhy::Shutdown, true);
        if matches!(self.connection, Connection::Waiting { .. }) {
            self.end(fx, EndReason::ClosedByUs, alloc::vec![(id, report)]);
            return;
        }
        let epoch = self.last_epoch;
        self.timers.clear(Timer::Handshake(epoch));
        self.timers.clear(Timer::Drain(epoch));
        let gate = self.gate();
        let commands = alloc::vec![(id, report)];
        self.connection = Connection::Closing {
            epoch,
            cause: Cause::Shutdown,
            commands,
        };
        self.end_waits(fx, &EndReason::ClosedByUs, true);
        self.close_connection(fx, epoch, CloseWhy::Shutdown, gate);
    }

    /// Whether waits end because we close the connection.
    pub(super) fn is_closed_by_us(&self) -> bool {
        matches!(
            self.connection,
            Connection::Ended(EndReason::ClosedByUs)
                | Connection::Closing {
                    cause: Cause::Shutdown,
                    ..
                }
        )
    }

    /// Whether frames can still be answered.
    pub(super) fn is_alive(&self) -> bool {
        matches!(
            self.connection,
            Connection::Opening { .. }
                | Connection::Initializing { .. }
                | Connection::Ready { .. }
                | Connection::Unfit { .. }
        )
    }

    /// Whether the connection has ended, or is about to, and does not come back.
    pub(super) fn is_over(&self) -> bool {
        match &self.connection {
            Connection::Ended(_) => true,
            Connection::Closing { cause, .. } => match cause {
                Cause::HandshakeRefused(_) | Cause::UnsupportedVersion(_) | Cause::Shutdown => true,
                Cause::HandshakeTimeout | Cause::Protocol(_) | Cause::Unfit => false,
            },
            Connection::Opening { .. }
            | Connection::Initializing { .. }
            | Connection::Ready { .. }
            | Connection::Unfit { .. }
            | Connection::Waiting { .. } => false,
        }
    }

    /// The error of commands that need a connection that has ended.
    pub(super) fn ended_error(&self) -> Option<CommandError> {
        if self.comes_back() {
            return None;
        }
        match &self.connection {
            Connection::Ended(EndReason::ClosedByUs)
            | Connection::Closing {
                cause: Cause::Shutdown,
                ..
            } => Some(CommandError::ClosedByUs),
            Connection::Ended(reason) => Some(CommandError::Disconnected {
                reason: reason.clone().into(),
            }),
            Connection::Unfit { .. }
            | Connection::Closing {
                cause: Cause::Unfit,
                ..
            } => Some(CommandError::Disconnected {
                reason: EndReason::Unfit.into(),
            }),
            Connection::Closing {
                cause: Cause::Protocol(error),
                ..
            } => {
                let reason = EndReason::Protocol {
                    error: error.clone(),
                    stderr_tail: String::new(),
                };
                Some(CommandError::Disconnected {
                    reason: reason.into(),
                })
            }
            // The end of stderr is not known yet.
            Connection::Closing {
                cause: Cause::HandshakeTimeout,
                ..
            } => Some(CommandError::Disconnected {
                reason: alloc::boxed::Box::new(EndReason::HandshakeTimeout {
                    limit: self.config.limits.handshake,
                    stderr_tail: String::new(),
                }),
            }),
            Connection::Closing {
                cause: Cause::HandshakeRefused(message),
                ..
            } => Some(CommandError::Disconnected {
                reason: alloc::boxed::Box::new(EndReason::HandshakeRefused {
                    message: message.clone(),
                    stderr_tail: String::new(),
                }),
            }),
            Connection::Closing {
                cause: Cause::UnsupportedVersion(version),
                ..
            } => Some(CommandError::Disconnected {
                reason: alloc::boxed::Box::new(EndReason::UnsupportedVersion {
                    version: version.clone(),
                    oldest: self.config.oldest_server.clone(),
                    first_unsupported: self.config.first_unsupported_server.clone(),
                }),
            }),
            Connection::Opening { .. }
            | Connection::Initializing { .. }
            | Connection::Waiting { .. }
            | Connection::Ready { .. } => None,
        }
    }

    pub(super) fn on_send_failed(&mut self, fx: &mut Effects, epoch: Epoch, frame: FrameSeq) {
        if self.connection.epoch() != Some(epoch) {
            return;
        }
        if let Some(pending) = self.requests.take_frame(frame) {
            self.timers.clear(Timer::Request(pending.id));
            self.settled(fx, pending, Settled::NotSent);
        }
    }

    /// The journal failed: one event, and no frame ever after.
    pub(super) fn halt(&mut self, fx: &mut Effects) {
        self.halted = true;
        self.outbox.clear();
        self.timers.clear_all();
        self.batch.clear();
        if let Some(epoch) = self.connection.epoch() {
            fx.list.push(Effect::Close(epoch, CloseWhy::Halted));
        }
        fx.list.push(Effect::Emit(crate::event::Event::Halted));
    }

    pub(super) fn step_halted(&mut self, fx: &mut Effects, input: Input) {
        if let Input::Command { id, command } = input {
            let answer = match command {
                Command::Shutdown => Ok(Reply::ShutDown(ShutdownReport::default())),
                _ => Err(CommandError::Halted),
            };
            self.emit_answer(fx, id, UNGATED, answer);
        }
    }
}
