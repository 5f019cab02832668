//! Another client of a server that listens, by hand: what is true of the server, told without turnkeep.

use std::fmt;

use serde_json::{Value, json};
use tungstenite::{
    Error, HandshakeError, Message, WebSocket,
    client::IntoClientRequest as _,
    http::{HeaderName, HeaderValue},
};

use crate::{
    server::{Address, Duplex},
    session::PATIENCE,
};

/// A connection by hand.
pub struct Visitor {
    socket: WebSocket<Box<dyn Duplex>>,
    frames: Vec<Value>,
    read: usize,
    requests: u64,
}

impl Visitor {
    /// Opens a connection with further headers, and gives the HTTP status where it is refused.
    ///
    /// # Errors
    ///
    /// The server says no.
    ///
    /// # Panics
    ///
    /// If the server cannot be reached.
    pub fn open(address: &Address, headers: &[(&'static str, &str)]) -> Result<Self, u16> {
        let mut request = "ws://localhost/".into_client_request().expect("a URL");
        for (name, value) in headers {
            let name = HeaderName::from_static(name);
            let value = HeaderValue::from_str(value).expect("a header's value");
            request.headers_mut().insert(name, value);
        }
        let stream = address.connect().expect("the server listens");
        stream.set_patience(PATIENCE).expect("it is open");
        match tungstenite::client(request, stream) {
            Ok((socket, _)) => Ok(Visitor {
                socket,
                frames: Vec::new(),
                read: 0,
                requests: 0,
            }),
            Err(HandshakeError::Failure(Error::Http(response))) => Err(response.status().as_u16()),
            Err(error) => panic!("the server cannot be reached: {error}"),
        }
    }

    /// Opens a connection and shakes hands.
    ///
    /// # Panics
    ///
    /// If that fails.
    pub fn initialized(address: &Address) -> Self {
        let mut visitor = Self::open(address, &[]).expect("the server takes us");
        let info = json!({ "name": "visitor", "title": null, "version": "0" });
        let capabilities = json!({ "experimentalApi": true });
        visitor.request(
            "initialize",
            json!({ "clientInfo": info, "capabilities": capabilities }),
        );
        visitor.send(&json!({ "method": "initialized" }));
        visitor
    }

    /// Sends a frame.
    ///
    /// # Panics
    ///
    /// If the connection is over.
    pub fn send(&mut self, frame: &Value) {
        let sent = self.socket.send(Message::text(frame.to_string()));
        sent.expect("the connection is open");
    }

    /// Sends a request and gives its result. What comes before it is kept.
    ///
    /// # Panics
    ///
    /// If the answer is an error or does not come.
    pub fn request(&mut self, method: &str, params: Value) -> Value {
        let id = json!(format!("v{}", self.requests));
        self.requests += 1;
        self.send(&json!({ "id": id, "method": method, "params": params }));
        let mut next = self.frames.len();
        let answer = self.find(&mut next, method, |frame| {
            frame["id"] == id && frame.get("method").is_none()
        });
        match answer.get("error") {
            None => answer["result"].clone(),
            Some(error) => panic!("{method} was answered by {error}"),
        }
    }

    /// The next frame that `wanted` takes; those before it are passed over.
    ///
    /// # Panics
    ///
    /// If it does not come.
    pub fn until(&mut self, what: &str, wanted: impl FnMut(&Value) -> bool) -> Value {
        let mut next = self.read;
        let frame = self.find(&mut next, what, wanted);
        self.read = next;
        frame
    }

    /// The next frame of a method.
    ///
    /// # Panics
    ///
    /// If it does not come.
    pub fn until_method(&mut self, method: &str) -> Value {
        self.until(method, |frame| frame["method"] == method)
    }

    fn find(
        &mut self,
        next: &mut usize,
        what: &str,
        mut wanted: impl FnMut(&Value) -> bool,
    ) -> Value {
        loop {
            while let Some(frame) = self.frames.get(*next) {
                *next += 1;
                if wanted(frame) {
                    return frame.clone();
                }
            }
            match self.socket.read() {
                Ok(Message::Text(text)) => {
                    self.frames.extend(serde_json::from_str::<Value>(&text));
                }
                Ok(_) => {}
                Err(error) => panic!("no {what}: {error}; there were {:#?}", self.frames),
            }
        }
    }
}

impl fmt::Debug for Visitor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Visitor")
            .field("frames", &self.frames.len())
            .finish_non_exhaustive()
    }
}
