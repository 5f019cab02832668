//! One connection of a server that was let in.

use std::{
    collections::VecDeque,
    io::Write as _,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use tungstenite::{
    Error, Message, WebSocket,
    protocol::{
        CloseFrame,
        frame::{
            Frame,
            coding::{Data, OpCode},
        },
    },
};
use turnkeep_tokio::fake::{Action, Engine, Script};

use super::{Asked, Lives, Seen, Shared, stream};

/// A line of a script that is for us.
const OURS: &[u8] = b"socket: ";

/// A script in play, with what it still has to do.
#[derive(Debug)]
pub(super) struct Play {
    engine: Engine,
    actions: VecDeque<Action>,
    /// Sleeps until then.
    until: Option<Instant>,
    /// Written, but not yet a whole line.
    text: Vec<u8>,
    /// What came while there was something to be done.
    inbox: VecDeque<String>,
}

/// What a script does to its connection.
enum Done {
    Nothing,
    Sent(Message),
    /// So many bytes of a message that never ends, and no more.
    Reset,
    Vanish,
    Deaf,
}

impl Play {
    pub(super) fn new(mut engine: Engine) -> Self {
        let actions = engine.poll().into();
        Self {
            engine,
            actions,
            until: None,
            text: Vec::new(),
            inbox: VecDeque::new(),
        }
    }

    fn is_asleep(&mut self) -> bool {
        let sleeps = self.until.is_some_and(|until| Instant::now() < until);
        if !sleeps {
            self.until = None;
        }
        sleeps
    }

    /// The next thing that is done to the connection.
    fn next(&mut self, shared: &Shared) -> Option<Done> {
        if let Some(line) = self.take_line() {
            return Some(Done::Sent(line));
        }
        if self.is_asleep() {
            return None;
        }
        if self.actions.is_empty() {
            self.actions = match self.inbox.pop_front() {
                Some(line) => self.engine.on_line(line.as_bytes()).into(),
                None => self.engine.poll().into(),
            };
        }
        match self.actions.pop_front()? {
            Action::Write(bytes) => {
                self.text.extend_from_slice(&bytes);
                Some(Done::Nothing)
            }
            Action::Sleep(ms) => {
                self.until = Some(Instant::now() + Duration::from_millis(ms));
                Some(Done::Nothing)
            }
            Action::Stderr(told) => Some(told_to_us(&told, shared)),
            Action::Exit(_) | Action::Die | Action::CloseStdout { .. } => Some(Done::Vanish),
            _ => Some(Done::Nothing),
        }
    }

    /// Goes on without a connection: what is sent is lost.
    fn alone(&mut self, shared: &Shared) {
        self.text.clear();
        while !shared.is_over() {
            if self.next(shared).is_none() {
                match self.until {
                    Some(_) => std::thread::sleep(super::LOOK),
                    None => break,
                }
            }
        }
        self.text.clear();
    }

    fn take_line(&mut self) -> Option<Message> {
        let end = self.text.iter().position(|byte| *byte == b'\n')?;
        let mut line: Vec<u8> = self.text.drain(..=end).collect();
        line.pop();
        Some(match String::from_utf8(line) {
            Ok(text) => Message::text(text),
            Err(error) => {
                let bytes = error.into_bytes();
                Message::Frame(Frame::message(bytes, OpCode::Data(Data::Text), true))
            }
        })
    }
}

fn told_to_us(told: &[u8], shared: &Shared) -> Done {
    let text = String::from_utf8_lossy(told.strip_prefix(OURS).unwrap_or_default()).into_owned();
    let text = text.strip_suffix('\n').unwrap_or(&text);
    let (what, rest) = text.split_once(' ').unwrap_or((text, ""));
    match what {
        "reset" => Done::Reset,
        "vanish" => Done::Vanish,
        "deaf" => Done::Deaf,
        "ping" => Done::Sent(Message::Ping(rest.as_bytes().to_vec().into())),
        "binary" => {
            let length = rest.parse().expect("a number of bytes");
            Done::Sent(Message::binary(vec![b'\n'; length]))
        }
        "message" => Done::Sent(Message::text(rest)),
        "close" => {
            let (code, reason) = rest.split_once(' ').unwrap_or((rest, ""));
            let code: u16 = code.parse().expect("a code");
            let reason = reason.to_owned().into();
            let code = code.into();
            Done::Sent(Message::Close(Some(CloseFrame { code, reason })))
        }
        _ => {
            let told = String::from_utf8_lossy(told).into_owned();
            shared.see(Seen::Mismatch(told));
            Done::Nothing
        }
    }
}

/// Lets a client in and plays until either side ends it.
pub(super) fn open(stream: stream::Stream, shared: &Shared) {
    if let Some(mut socket) = accept(stream, shared) {
        shared.see(Seen::Opened);
        let play = next_play(shared);
        // The connection before may have it until it is gone.
        let mut play = play.lock().unwrap_or_else(PoisonError::into_inner);
        live(&mut socket, &mut play, shared);
        drop(socket);
        if matches!(shared.lock().lives, Lives::One(_)) {
            play.alone(shared);
        }
    }
    shared.see(Seen::Gone);
}

/// What a connection plays.
fn next_play(shared: &Shared) -> Arc<Mutex<Play>> {
    let (text, life, last) = {
        let mut state = shared.lock();
        let text = state.script.clone();
        match &mut state.lives {
            Lives::One(play) => return Arc::clone(play),
            Lives::Each { begun, last } => {
                *begun += 1;
                (text, *begun - 1, last.clone())
            }
        }
    };
    let script = Script::parse_life(&text, life).expect("it was read before");
    let engine = match last.as_deref().and_then(lock_soon) {
        Some(last) => last.engine.next_life(script),
        None => Engine::new(script),
    };
    let play = Arc::new(Mutex::new(Play::new(engine)));
    if let Lives::Each { last, .. } = &mut shared.lock().lives {
        *last = Some(Arc::clone(&play));
    }
    play
}

/// The play of the connection before, unless that lives on beside the new one.
fn lock_soon(play: &Mutex<Play>) -> Option<MutexGuard<'_, Play>> {
    let limit = Instant::now() + Duration::from_millis(500);
    loop {
        match play.try_lock() {
            Ok(play) => return Some(play),
            Err(_) if Instant::now() > limit => return None,
            Err(_) => std::thread::sleep(super::LOOK),
        }
    }
}

fn accept(stream: stream::Stream, shared: &Shared) -> Option<WebSocket<stream::Stream>> {
    use tungstenite::{
        HandshakeError,
        handshake::server::{ErrorResponse, Request, Response},
    };
    #[expect(clippy::result_large_err, reason = "tungstenite wants it so")]
    let asked = |request: &Request, response: Response| -> Result<Response, ErrorResponse> {
        let headers = request.headers().iter();
        let asked = Asked {
            path: request.uri().to_string(),
            headers: headers
                .map(|(name, value)| {
                    let value = String::from_utf8_lossy(value.as_bytes()).into_owned();
                    (name.as_str().to_owned(), value)
                })
                .collect(),
            at: Some(Instant::now()),
        };
        shared.lock().asked.push(asked);
        Ok(response)
    };
    let mut accepted = tungstenite::accept_hdr(stream, asked);
    loop {
        match accepted {
            Ok(socket) => return Some(socket),
            Err(HandshakeError::Interrupted(again)) if !shared.is_over() => {
                accepted = again.handshake();
            }
            Err(_) => return None,
        }
    }
}

fn live(socket: &mut WebSocket<stream::Stream>, play: &mut Play, shared: &Shared) {
    let mut is_deaf = false;
    while !shared.is_over() {
        loop {
            let next = play.next(shared);
            let sent = match next {
                None => break,
                Some(Done::Nothing) => Ok(()),
                Some(Done::Sent(message)) => send(socket, message, shared),
                Some(Done::Deaf) => {
                    is_deaf = true;
                    Ok(())
                }
                Some(Done::Vanish) => return,
                Some(Done::Reset) => {
                    // The head of a text message of 256 bytes, and three of them.
                    let _ = socket
                        .get_mut()
                        .write_all(&[0x81, 126, 1, 0, b'{', b'"', b'm']);
                    let _ = socket.get_mut().flush();
                    socket.get_ref().reset();
                    return;
                }
            };
            if sent.is_err() {
                return;
            }
        }
        if is_deaf {
            std::thread::sleep(super::LOOK);
            continue;
        }
        match socket.read() {
            Ok(Message::Text(text)) => {
                let line = text.as_str().to_owned();
                shared.lock().lines.push(line.clone());
                play.inbox.push_back(line);
            }
            Ok(Message::Ping(_)) => shared.see(Seen::Ping),
            Ok(Message::Pong(payload)) => shared.see(Seen::Pong(payload.to_vec())),
            Ok(Message::Close(close)) => {
                shared.see(Seen::Close(close.map(|close| close.code.into())));
            }
            Ok(Message::Binary(_) | Message::Frame(_)) => {
                shared.see(Seen::Mismatch("a binary message".into()));
            }
            Err(Error::Io(error)) if stream::is_nothing(&error) => {}
            Err(_) => return,
        }
    }
    if shared.is_over() {
        socket.get_ref().reset();
    }
}

/// A client that reads slowly is waited for; one that is gone, or a test that is over, is not.
fn send(
    socket: &mut WebSocket<stream::Stream>,
    message: Message,
    shared: &Shared,
) -> Result<(), Error> {
    let mut sent = match message {
        Message::Close(close) => socket.close(close),
        message => socket.send(message),
    };
    loop {
        match sent {
            Err(Error::Io(error)) if stream::is_nothing(&error) && !shared.is_over() => {
                sent = socket.flush();
            }
            other => return other,
        }
    }
}
