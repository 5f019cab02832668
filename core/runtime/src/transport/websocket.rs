//! WebSocket: a frame of ours is a text message, a text message of theirs is a line.
//!
//! What the bytes of the protocol are is in [`turnkeep_core::codec::socket`]. No library for it is
//! used, since those at hand log what they send: bearer tokens and secrets in frames.

mod incoming;
mod opening;
mod outgoing;
mod pulse;
#[cfg(test)]
mod tests;
#[cfg(feature = "tls")]
mod tls;
mod upgrade;

use std::{
    collections::VecDeque,
    fmt, io,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use turnkeep_core::{CloseReason, Closed, Frame, FrameSeq, Peer, codec::socket::Control};

use self::{
    incoming::{Cut, Incoming, Part},
    outgoing::Outgoing,
    pulse::{Beat, Pulse},
};
use super::{Heard, Reached, Transport};
use crate::{
    clock::CENTURY,
    config::WebSocketConfig,
    runtime::{BoxFuture, BoxStream, Runtime},
};

/// A normal end.
const NORMAL: u16 = 1000;

/// The server goes away: it stops, say.
const GOING_AWAY: u16 = 1001;

/// A connection that is open.
struct WebSocket {
    runtime: Arc<dyn Runtime>,
    /// Dropped at the end.
    stream: Option<BoxStream>,
    incoming: Incoming,
    outgoing: Outgoing,
    pulse: Pulse,
    /// How many bytes were written in all when that was last looked at.
    written: u64,
    /// How many there are when the last ping is written.
    ping_end: u64,
    close_limit: Duration,
    state: State,
    /// Nothing can be written any more. What came before is still read.
    broken: Option<io::Error>,
    /// Frames that will never be written and have not been told.
    unsent: VecDeque<FrameSeq>,
}

enum State {
    Live,
    /// We are closing, for so long at most.
    Closing(BoxFuture<()>),
    Over(Option<Closed>),
}

/// What a look at a connection gives.
enum Looked {
    Lines(Vec<u8>),
    /// Look again at once.
    More,
    /// It wakes us.
    Nothing,
}

/// Opens a connection.
pub(super) async fn open(
    runtime: &Arc<dyn Runtime>,
    config: &WebSocketConfig,
    frame_limit: usize,
) -> Reached {
    let reached = opening::reach(runtime, config).await;
    let (stream, first) = reached.map_err(|reason| Closed::new(reason, String::new()))?;
    let every = config.ping_every.min(CENTURY);
    let socket = WebSocket {
        runtime: Arc::clone(runtime),
        stream: Some(stream),
        incoming: Incoming::new(first, frame_limit),
        outgoing: Outgoing::new(),
        pulse: Pulse::new(Arc::clone(runtime), every, config.pong_limit.min(CENTURY)),
        written: 0,
        ping_end: 0,
        close_limit: config.close_limit.min(CENTURY),
        state: State::Live,
        broken: None,
        unsent: VecDeque::new(),
    };
    Ok((Box::new(socket), Peer::socket(config.endpoint())))
}

impl WebSocket {
    fn end(&mut self, reason: CloseReason) {
        self.unsent.extend(self.outgoing.take_unsent());
        self.stream = None;
        self.state = State::Over(Some(Closed::new(reason, String::new())));
    }

    /// The end, with a last word that the other side may or may not hear.
    fn say_and_end(&mut self, code: Option<u16>, reason: CloseReason, cx: &mut Context<'_>) {
        self.unsent.extend(self.outgoing.take_unsent());
        self.outgoing.say(&Control::Close {
            code,
            reason: String::new(),
        });
        self.write(cx);
        self.end(reason);
    }

    fn write(&mut self, cx: &mut Context<'_>) {
        if let (Some(stream), None) = (&mut self.stream, &self.broken) {
            self.broken = self.outgoing.poll_write(stream, cx).err();
        }
    }

    /// One look at the connection, while it is there.
    fn look(&mut self, cx: &mut Context<'_>) -> Looked {
        let Some(stream) = &mut self.stream else {
            return Looked::Nothing;
        };
        let is_closing = matches!(self.state, State::Closing(_));
        let beat = match is_closing {
            true => Beat::Nothing,
            false => {
                // A ping stands behind what is being written: its time begins once it has gone.
                let written = self.outgoing.written();
                if written > self.written && self.written < self.ping_end {
                    self.pulse.postpone();
                }
                self.written = written;
                self.pulse.poll(self.incoming.has_heard(), cx)
            }
        };
        if matches!(beat, Beat::Ping) {
            self.incoming.forget_heard();
            self.outgoing.say(&Control::Ping(Vec::new()));
            self.ping_end = self.outgoing.end_of_said();
            return Looked::More;
        }
        let read = self.incoming.poll_read(stream, cx);
        match read {
            Poll::Ready(Ok(Part::Lines(lines))) => {
                self.write(cx);
                return Looked::Lines(lines);
            }
            Poll::Ready(Ok(Part::Control(Control::Ping(payload)))) => {
                self.outgoing.answer_ping(payload);
            }
            Poll::Ready(Ok(Part::Control(Control::Pong(_)))) => {}
            Poll::Ready(_) if is_closing => self.end(CloseReason::ByUs),
            Poll::Ready(Ok(Part::Control(Control::Close { code, reason }))) => {
                self.say_and_end(code, closed_by_the_server(code, &reason), cx);
            }
            Poll::Ready(Err(Cut::Broken(error))) => {
                let code = Some(error.code());
                self.say_and_end(code, CloseReason::Lost(error.to_string()), cx);
            }
            Poll::Ready(Err(Cut::Lost(why))) => self.end(CloseReason::Lost(why)),
            Poll::Pending => {
                self.write(cx);
                match &self.broken {
                    Some(_) if is_closing => self.end(CloseReason::ByUs),
                    Some(error) => self.end(CloseReason::Lost(error.to_string())),
                    // It was read first: perhaps only we were away.
                    // The pulse begins anew.
                    None if matches!(beat, Beat::Overdue) && self.incoming.has_heard() => {}
                    None if matches!(beat, Beat::Overdue) => {
                        self.end(CloseReason::Lost(self.pulse.overdue()));
                    }
                    None => return Looked::Nothing,
                }
            }
        }
        Looked::More
    }
}

impl Transport for WebSocket {
    fn send(&mut self, frame: Frame) {
        match self.state {
            State::Live => {
                if let Err(frame) = self.outgoing.push(frame) {
                    self.end(CloseReason::Lost(
                        "the server does not read what it is sent".into(),
                    ));
                    self.unsent.push_back(frame.seq);
                }
            }
            State::Closing(_) | State::Over(_) => self.unsent.push_back(frame.seq),
        }
    }

    fn close(&mut self) {
        if matches!(self.state, State::Live) {
            self.outgoing.say_last(&Control::Close {
                code: Some(NORMAL),
                reason: String::new(),
            });
            self.state = State::Closing(self.runtime.sleep(self.close_limit));
        }
    }

    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Heard> {
        self.incoming.begin_turn();
        loop {
            if let Some(seq) = self.unsent.pop_front() {
                return Poll::Ready(Heard::SendFailed(seq));
            }
            match &mut self.state {
                State::Over(closed) => {
                    let closed = closed.take();
                    return closed
                        .map_or(Poll::Pending, |closed| Poll::Ready(Heard::Closed(closed)));
                }
                State::Closing(limit) => {
                    if limit.as_mut().poll(cx).is_ready() {
                        self.end(CloseReason::ByUs);
                        continue;
                    }
                }
                State::Live => {}
            }
            match self.look(cx) {
                Looked::Lines(lines) => return Poll::Ready(Heard::Read(lines.into())),
                Looked::More => {}
                Looked::Nothing => return Poll::Pending,
            }
        }
    }
}

/// Why the server ends it, in the words of the protocol's core.
fn closed_by_the_server(code: Option<u16>, reason: &str) -> CloseReason {
    let in_words = match reason {
        "" => String::new(),
        reason => format!(": {reason}"),
    };
    match code {
        None | Some(NORMAL | GOING_AWAY) if reason.is_empty() => CloseReason::Eof,
        None => CloseReason::Lost(format!("the server closed it{in_words}")),
        Some(code) => CloseReason::Lost(format!("the server closed it with code {code}{in_words}")),
    }
}

impl fmt::Debug for WebSocket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.state {
            State::Live => "WebSocket(live)",
            State::Closing(_) => "WebSocket(closing)",
            State::Over(_) => "WebSocket(over)",
        })
    }
}
