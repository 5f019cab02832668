//! What a script says: replies, built step by step, and the gates they wait at.

use std::{
    io,
    sync::{Arc, Condvar, Mutex, PoisonError},
    time::Duration,
};

use serde_json::{Value, json};

use super::{HEARTBEAT, lock};

/// One answer of the model, built from front to back: `text("I look.").call("lookup", "call-1", args)`.
#[derive(Clone, Debug)]
#[must_use]
pub struct Reply {
    pub(super) steps: Vec<Step>,
    pub(super) end: End,
    pub(super) pace: Duration,
    pub(super) usage: Usage,
}

#[derive(Clone, Debug)]
pub(super) enum Step {
    Delta(String),
    NextMessage,
    Call {
        name: String,
        call_id: String,
        arguments: String,
    },
    Event(Value),
    Pause(Duration),
    Hold(Gate),
}

#[derive(Clone, Debug)]
pub(super) enum End {
    Completed,
    Failed { code: String, message: String },
    Cut,
    Status(u16),
}

/// The tokens an answer says it took.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Usage {
    pub input: u64,
    pub cached: u64,
    pub output: u64,
    pub reasoning: u64,
}

impl Default for Usage {
    fn default() -> Self {
        Usage {
            input: 10,
            cached: 0,
            output: 5,
            reasoning: 0,
        }
    }
}

/// An answer that is one text.
pub fn text(text: &str) -> Reply {
    Reply::new().text(text)
}

/// An answer that is one text in several deltas.
pub fn chunks<T: AsRef<str>>(chunks: impl IntoIterator<Item = T>) -> Reply {
    Reply::new().chunks(chunks)
}

/// An answer that calls a function. See [`Reply::call`].
pub fn call(name: &str, call_id: &str, arguments: impl ToString) -> Reply {
    Reply::new().call(name, call_id, arguments)
}

/// An answer that ends with `response.failed`.
pub fn failed(code: &str, message: &str) -> Reply {
    Reply::new().failed(code, message)
}

/// An HTTP error instead of an answer.
pub fn status(code: u16) -> Reply {
    Reply {
        end: End::Status(code),
        ..Reply::new()
    }
}

/// An answer that begins and then says nothing until the model is dropped.
pub fn hang() -> Reply {
    Reply::new().hold(&Gate::new())
}

impl Reply {
    /// An answer without any item.
    pub fn new() -> Self {
        Reply {
            steps: Vec::new(),
            end: End::Completed,
            pace: Duration::ZERO,
            usage: Usage::default(),
        }
    }

    /// One delta. Neighbouring deltas are one message, also across pauses and holds.
    pub fn text(self, text: &str) -> Self {
        self.step(Step::Delta(text.to_owned()))
    }

    /// One delta for each chunk.
    pub fn chunks<T: AsRef<str>>(self, chunks: impl IntoIterator<Item = T>) -> Self {
        chunks
            .into_iter()
            .fold(self, |reply, chunk| reply.text(chunk.as_ref()))
    }

    /// Ends the message, so that the next delta begins another one.
    pub fn next_message(self) -> Self {
        self.step(Step::NextMessage)
    }

    /// Calls a function. `arguments` is a JSON value or, to be malformed, any text.
    pub fn call(self, name: &str, call_id: &str, arguments: impl ToString) -> Self {
        self.step(Step::Call {
            name: name.to_owned(),
            call_id: call_id.to_owned(),
            arguments: arguments.to_string(),
        })
    }

    /// Sends one event of the stream as it is, its `type` included.
    pub fn event(self, event: Value) -> Self {
        self.step(Step::Event(event))
    }

    /// Sleeps here.
    pub fn pause(self, pause: Duration) -> Self {
        self.step(Step::Pause(pause))
    }

    /// Sleeps before every delta of this answer.
    pub fn pace(mut self, pace: Duration) -> Self {
        self.pace = pace;
        self
    }

    /// Waits here until the gate is open. What was said before has left by then.
    pub fn hold(self, gate: &Gate) -> Self {
        self.step(Step::Hold(gate.clone()))
    }

    /// Ends with `response.failed` instead of `response.completed`.
    pub fn failed(mut self, code: &str, message: &str) -> Self {
        self.end = End::Failed {
            code: code.to_owned(),
            message: message.to_owned(),
        };
        self
    }

    /// Ends by cutting the connection, in the middle of a message if the last step was a delta.
    pub fn cut(mut self) -> Self {
        self.end = End::Cut;
        self
    }

    pub fn usage(mut self, usage: Usage) -> Self {
        self.usage = usage;
        self
    }

    fn step(mut self, step: Step) -> Self {
        self.steps.push(step);
        self
    }
}

impl Default for Reply {
    fn default() -> Self {
        Self::new()
    }
}

/// A place where answers wait for the test. Clones are the same gate; it stays open once opened.
#[derive(Clone, Debug, Default)]
pub struct Gate(Arc<(Mutex<GateState>, Condvar)>);

#[derive(Debug, Default)]
struct GateState {
    open: bool,
    reached: bool,
}

impl Gate {
    pub fn new() -> Self {
        Self::default()
    }

    /// Lets the answers go on that wait here, and all that come later.
    pub fn open(&self) {
        lock(&self.0.0).open = true;
        self.0.1.notify_all();
    }

    /// Waits until an answer has come here.
    ///
    /// # Panics
    ///
    /// If none comes within `patience`.
    pub fn wait_reached(&self, patience: Duration) {
        let state = lock(&self.0.0);
        let (state, _) = (self.0.1)
            .wait_timeout_while(state, patience, |state| !state.reached)
            .unwrap_or_else(PoisonError::into_inner);
        assert!(state.reached, "no answer came to the gate in {patience:?}");
    }

    pub(super) fn wait_open(&self, check: impl Fn() -> io::Result<()>) -> io::Result<()> {
        let mut state = lock(&self.0.0);
        state.reached = true;
        self.0.1.notify_all();
        while !state.open {
            check()?;
            let waited = self.0.1.wait_timeout(state, HEARTBEAT);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        Ok(())
    }
}

impl Usage {
    pub(super) fn to_json(self) -> Value {
        json!({
            "input_tokens": self.input,
            "input_tokens_details": { "cached_tokens": self.cached },
            "output_tokens": self.output,
            "output_tokens_details": { "reasoning_tokens": self.reasoning },
            "total_tokens": self.input + self.output,
        })
    }
}
