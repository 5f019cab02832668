//! A reply on its way out, event by event.

use std::{
    io::{self, Write},
    net::TcpStream,
    sync::atomic::AtomicBool,
    thread,
    time::{Duration, Instant},
};

use serde_json::{Value, json};

use super::{
    HEARTBEAT, check_running, error_body,
    reply::{End, Reply, Step},
    write_json,
};

/// Writes one reply as a stream of events, in HTTP chunks, so that a cut is seen as one.
pub(super) struct Answer<'a> {
    number: usize,
    out: &'a mut TcpStream,
    stopped: &'a AtomicBool,
    items: usize,
    message: Option<Message>,
}

struct Message {
    id: String,
    text: String,
}

impl<'a> Answer<'a> {
    pub(super) fn new(number: usize, out: &'a mut TcpStream, stopped: &'a AtomicBool) -> Self {
        Answer {
            number,
            out,
            stopped,
            items: 0,
            message: None,
        }
    }

    pub(super) fn play(mut self, reply: &Reply) -> io::Result<()> {
        if let End::Status(code) = reply.end {
            return write_json(self.out, code, &error_body("the script says so"));
        }
        self.out.write_all(
            b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\
              connection: close\r\n\r\n",
        )?;
        let id = format!("resp_{}", self.number);
        self.event(&json!({ "type": "response.created", "response": { "id": id } }))?;
        for step in &reply.steps {
            self.step(step, reply.pace)?;
        }
        match &reply.end {
            End::Completed => {
                self.end_message()?;
                self.event(&json!({
                    "type": "response.completed",
                    "response": { "id": id, "usage": reply.usage.to_json() },
                }))?;
            }
            End::Failed { code, message } => {
                self.end_message()?;
                self.event(&json!({
                    "type": "response.failed",
                    "response": { "id": id, "error": { "code": code, "message": message } },
                }))?;
            }
            // No last chunk: the connection closes with the message open.
            End::Cut | End::Status(_) => return Ok(()),
        }
        self.out.write_all(b"0\r\n\r\n")
    }

    fn step(&mut self, step: &Step, pace: Duration) -> io::Result<()> {
        match step {
            Step::Delta(delta) => {
                self.sleep(pace)?;
                self.delta(delta)
            }
            Step::NextMessage => self.end_message(),
            Step::Call {
                name,
                call_id,
                arguments,
            } => {
                self.end_message()?;
                let id = format!("fc_{}_{}", self.number, self.items);
                self.event(&json!({
                    "type": "response.output_item.done",
                    "output_index": self.items,
                    "item": {
                        "type": "function_call", "id": id, "call_id": call_id, "name": name,
                        "arguments": arguments,
                    },
                }))?;
                self.items += 1;
                Ok(())
            }
            Step::Event(event) => self.event(event),
            Step::Pause(pause) => self.sleep(*pause),
            Step::Hold(gate) => gate.wait_open(|| self.check()),
        }
    }

    fn delta(&mut self, delta: &str) -> io::Result<()> {
        let mut message = match self.message.take() {
            Some(message) => message,
            None => self.begin_message()?,
        };
        self.event(&json!({
            "type": "response.output_text.delta",
            "item_id": message.id, "output_index": self.items, "content_index": 0, "delta": delta,
        }))?;
        message.text.push_str(delta);
        self.message = Some(message);
        Ok(())
    }

    fn begin_message(&mut self) -> io::Result<Message> {
        let id = format!("msg_{}_{}", self.number, self.items);
        self.event(&json!({
            "type": "response.output_item.added",
            "output_index": self.items,
            "item": { "type": "message", "role": "assistant", "id": id, "content": [] },
        }))?;
        Ok(Message {
            id,
            text: String::new(),
        })
    }

    fn end_message(&mut self) -> io::Result<()> {
        let Some(Message { id, text }) = self.message.take() else {
            return Ok(());
        };
        self.event(&json!({
            "type": "response.output_item.done",
            "output_index": self.items,
            "item": {
                "type": "message", "role": "assistant", "id": id,
                "content": [{ "type": "output_text", "text": text }],
            },
        }))?;
        self.items += 1;
        Ok(())
    }

    fn event(&mut self, event: &Value) -> io::Result<()> {
        check_running(self.stopped)?;
        let kind = event["type"].as_str().unwrap_or_default();
        let text = format!("event: {kind}\ndata: {event}\n\n");
        self.out
            .write_all(format!("{:x}\r\n{text}\r\n", text.len()).as_bytes())
    }

    fn sleep(&self, pause: Duration) -> io::Result<()> {
        let end = Instant::now() + pause;
        while let Some(left) = end
            .checked_duration_since(Instant::now())
            .filter(|d| !d.is_zero())
        {
            self.check()?;
            thread::sleep(left.min(HEARTBEAT));
        }
        Ok(())
    }

    /// Whether the model is still there and so is the client.
    fn check(&self) -> io::Result<()> {
        check_running(self.stopped)?;
        self.out.set_nonblocking(true)?;
        let peeked = self.out.peek(&mut [0]);
        self.out.set_nonblocking(false)?;
        match peeked {
            Ok(0) => Err(io::ErrorKind::BrokenPipe.into()),
            Ok(_) => Ok(()),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(()),
            Err(error) => Err(error),
        }
    }
}
