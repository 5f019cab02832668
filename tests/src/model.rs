//! A language model of our own: a loopback server that answers `POST /v1/responses` from a script.
//!
//! The real app-server talks to it as to any provider (`CodexHome` writes the configuration). It knows no chance and
//! no clock but the pauses a script asks for; where a test must do something in the middle of an answer, it holds
//! the answer at a [`Gate`]. Plain threads, so that tests of every runtime may use it.
//!
//! ```
//! use turnkeep_tests::model::{self, Gate, Model};
//!
//! let gate = Gate::new();
//! let model = Model::queued([
//!     model::call("lookup", "call-1", r#"{"key":"a"}"#),
//!     model::text("first ").hold(&gate).text("second"),
//! ]);
//! assert!(model.base_url().starts_with("http://127.0.0.1:"));
//! ```

use std::{
    collections::VecDeque,
    fmt,
    io::{self, BufRead, BufReader, Read, Write},
    net::{Ipv4Addr, TcpListener, TcpStream},
    sync::{
        Arc, Condvar, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use serde_json::{Value, json};

// How soon a sleeping answer notices that the model is dropped.
const HEARTBEAT: Duration = Duration::from_millis(10);

/// The running server. Dropping it ends every answer that is under way as if the connection had been lost.
pub struct Model {
    port: u16,
    shared: Arc<Shared>,
}

struct Shared {
    script: Box<dyn Fn(&Value) -> Reply + Send + Sync>,
    requests: Mutex<Vec<Value>>,
    arrived: Condvar,
    stopped: AtomicBool,
}

impl Model {
    /// Answers each request with what `script` makes of its body. The script is called from many threads at once.
    pub fn scripted(script: impl Fn(&Value) -> Reply + Send + Sync + 'static) -> Self {
        let listener =
            TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("loopback has a free port");
        let port = listener
            .local_addr()
            .expect("a bound listener has an address")
            .port();
        let shared = Arc::new(Shared {
            script: Box::new(script),
            requests: Mutex::default(),
            arrived: Condvar::new(),
            stopped: AtomicBool::new(false),
        });
        let server = Arc::clone(&shared);
        thread::spawn(move || accept(&listener, &server));
        Model { port, shared }
    }

    /// Answers with the replies in order. Past the last one, every request fails as `script_exhausted`.
    pub fn queued(replies: impl IntoIterator<Item = Reply>) -> Self {
        let queue = Mutex::new(VecDeque::from_iter(replies));
        Self::scripted(move |request| {
            lock(&queue)
                .pop_front()
                .unwrap_or_else(|| exhausted(request))
        })
    }

    /// Keeps one queue of replies for each key, so that several conversations may run at once.
    ///
    /// A request belongs to the newest of its user texts that contains a key. Without one it fails.
    pub fn keyed<K, R>(queues: impl IntoIterator<Item = (K, R)>) -> Self
    where
        K: Into<String>,
        R: IntoIterator<Item = Reply>,
    {
        let queues: Vec<(String, Mutex<VecDeque<Reply>>)> = queues
            .into_iter()
            .map(|(key, replies)| (key.into(), Mutex::new(VecDeque::from_iter(replies))))
            .collect();
        Self::scripted(move |request| {
            let texts = user_texts(request);
            let key_of = |text: &&str| queues.iter().find(|(key, _)| text.contains(key.as_str()));
            texts
                .iter()
                .rev()
                .find_map(key_of)
                .and_then(|(_, queue)| lock(queue).pop_front())
                .unwrap_or_else(|| exhausted(request))
        })
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    /// What `base_url` of a provider is set to.
    pub fn base_url(&self) -> String {
        format!("http://127.0.0.1:{}/v1", self.port)
    }

    /// Returns the body of every `POST /v1/responses` so far, in order of arrival.
    pub fn requests(&self) -> Vec<Value> {
        lock(&self.shared.requests).clone()
    }

    /// Waits until at least `count` requests have come and returns all there are.
    ///
    /// # Panics
    ///
    /// If they do not come within `patience`.
    pub fn wait_for_requests(&self, count: usize, patience: Duration) -> Vec<Value> {
        let requests = lock(&self.shared.requests);
        let (requests, _) = self
            .shared
            .arrived
            .wait_timeout_while(requests, patience, |requests| requests.len() < count)
            .unwrap_or_else(PoisonError::into_inner);
        assert!(
            requests.len() >= count,
            "{} of {count} requests in {patience:?}",
            requests.len()
        );
        requests.clone()
    }
}

impl Drop for Model {
    fn drop(&mut self) {
        self.shared.stopped.store(true, Ordering::SeqCst);
        // Wakes the accepting thread, which then sees that it is over.
        let _ = TcpStream::connect((Ipv4Addr::LOCALHOST, self.port));
    }
}

impl fmt::Debug for Model {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Model")
            .field("port", &self.port)
            .finish_non_exhaustive()
    }
}

/// Returns the user's texts in a request body, oldest first, also those codex adds itself (the environment).
pub fn user_texts(request: &Value) -> Vec<&str> {
    input(request)
        .filter(|item| item["role"] == "user")
        .flat_map(|item| item["content"].as_array().into_iter().flatten())
        .filter_map(|part| part["text"].as_str())
        .collect()
}

/// Returns the newest user text of a request body.
pub fn last_user_text(request: &Value) -> Option<&str> {
    user_texts(request).pop()
}

/// Returns what came back for function calls, as `(call_id, output)` in the order of the request body.
pub fn call_outputs(request: &Value) -> Vec<(&str, String)> {
    input(request)
        .filter(|item| item["type"] == "function_call_output")
        .map(|item| {
            (
                item["call_id"].as_str().unwrap_or_default(),
                text_of(&item["output"]),
            )
        })
        .collect()
}

/// Returns the names of the functions a request body offers.
pub fn tool_names(request: &Value) -> Vec<&str> {
    let tools = request["tools"].as_array().into_iter().flatten();
    tools.filter_map(|tool| tool["name"].as_str()).collect()
}

fn input(request: &Value) -> impl Iterator<Item = &Value> {
    request["input"].as_array().into_iter().flatten()
}

// An output is a text or a list of content parts.
fn text_of(output: &Value) -> String {
    match output {
        Value::String(text) => text.clone(),
        Value::Array(parts) => parts
            .iter()
            .filter_map(|part| part["text"].as_str())
            .collect(),
        other => other.to_string(),
    }
}

fn exhausted(request: &Value) -> Reply {
    let text = last_user_text(request).unwrap_or_default();
    failed(
        "script_exhausted",
        &format!("the script has no reply left for {text:?}"),
    )
}

/// One answer of the model, built from front to back: `text("I look.").call("lookup", "call-1", args)`.
#[derive(Clone, Debug)]
#[must_use]
pub struct Reply {
    steps: Vec<Step>,
    end: End,
    pace: Duration,
    usage: Usage,
}

#[derive(Clone, Debug)]
enum Step {
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
enum End {
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

    fn wait_open(&self, stopped: &AtomicBool) -> io::Result<()> {
        let mut state = lock(&self.0.0);
        state.reached = true;
        self.0.1.notify_all();
        while !state.open {
            check_running(stopped)?;
            let waited = self.0.1.wait_timeout(state, HEARTBEAT);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        Ok(())
    }
}

fn accept(listener: &TcpListener, shared: &Arc<Shared>) {
    for connection in listener.incoming() {
        if shared.stopped.load(Ordering::SeqCst) {
            return;
        }
        let Ok(connection) = connection else { continue };
        let shared = Arc::clone(shared);
        // The peer may be killed at any time: an error here is the end of one connection and of nothing else.
        thread::spawn(move || serve(connection, &shared));
    }
}

// One request a connection: `connection: close` in every answer.
fn serve(connection: TcpStream, shared: &Shared) -> io::Result<()> {
    connection.set_nodelay(true)?;
    let mut reader = BufReader::new(connection.try_clone()?);
    let Some((method, path, body)) = read_request(&mut reader)? else {
        return Ok(());
    };
    let mut out = connection;
    match (method.as_str(), path.as_str()) {
        ("GET", _) => write_json(&mut out, 200, &json!({ "data": [], "models": [] })),
        ("POST", "/v1/responses") => {
            let Ok(request) = serde_json::from_slice::<Value>(&body) else {
                return write_json(&mut out, 400, &error_body("the body is not JSON"));
            };
            let number = {
                let mut requests = lock(&shared.requests);
                requests.push(request.clone());
                requests.len() - 1
            };
            shared.arrived.notify_all();
            let reply = (shared.script)(&request);
            Answer::new(number, &mut out, &shared.stopped).play(&reply)
        }
        _ => write_json(
            &mut out,
            404,
            &error_body(&format!("the model stub has no {method} {path}")),
        ),
    }
}

type Request = (String, String, Vec<u8>);

fn read_request(reader: &mut BufReader<TcpStream>) -> io::Result<Option<Request>> {
    let mut line = String::new();
    if reader.read_line(&mut line)? == 0 {
        return Ok(None);
    }
    let mut words = line.split_ascii_whitespace();
    let method = words.next().unwrap_or_default().to_owned();
    let target = words.next().unwrap_or_default();
    let path = target.split('?').next().unwrap_or_default().to_owned();
    let mut length = 0;
    loop {
        line.clear();
        if reader.read_line(&mut line)? == 0 || line.trim_end().is_empty() {
            break;
        }
        if let Some((name, value)) = line.split_once(':')
            && name.eq_ignore_ascii_case("content-length")
        {
            length = value.trim().parse().unwrap_or(0);
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body)?;
    Ok(Some((method, path, body)))
}

fn error_body(message: &str) -> Value {
    json!({ "error": { "message": message } })
}

fn write_json(out: &mut TcpStream, status: u16, body: &Value) -> io::Result<()> {
    let body = body.to_string();
    write!(
        out,
        "HTTP/1.1 {status} Stub\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\
         connection: close\r\n\r\n{body}",
        body.len()
    )
}

fn check_running(stopped: &AtomicBool) -> io::Result<()> {
    match stopped.load(Ordering::SeqCst) {
        true => Err(io::ErrorKind::ConnectionAborted.into()),
        false => Ok(()),
    }
}

// A test that failed while it held the lock has said so already.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Writes one reply as a stream of events, in HTTP chunks, so that a cut is seen as one.
struct Answer<'a> {
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
    fn new(number: usize, out: &'a mut TcpStream, stopped: &'a AtomicBool) -> Self {
        Answer {
            number,
            out,
            stopped,
            items: 0,
            message: None,
        }
    }

    fn play(mut self, reply: &Reply) -> io::Result<()> {
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
            Step::Hold(gate) => gate.wait_open(self.stopped),
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
            check_running(self.stopped)?;
            thread::sleep(left.min(HEARTBEAT));
        }
        Ok(())
    }
}

impl Usage {
    fn to_json(self) -> Value {
        json!({
            "input_tokens": self.input,
            "input_tokens_details": { "cached_tokens": self.cached },
            "output_tokens": self.output,
            "output_tokens_details": { "reasoning_tokens": self.reasoning },
            "total_tokens": self.input + self.output,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATIENCE: Duration = Duration::from_secs(10);

    fn say(texts: &[&str]) -> Value {
        let item = |text: &&str| json!({ "type": "message", "role": "user", "content": [{ "type": "input_text", "text": text }] });
        json!({ "input": texts.iter().map(item).collect::<Vec<_>>() })
    }

    fn send(model: &Model, head: &str, body: &str) -> TcpStream {
        let mut socket = TcpStream::connect((Ipv4Addr::LOCALHOST, model.port())).unwrap();
        write!(
            socket,
            "{head} HTTP/1.1\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        )
        .unwrap();
        socket
    }

    fn finish(mut socket: TcpStream) -> String {
        let mut answer = String::new();
        socket.read_to_string(&mut answer).unwrap();
        answer
    }

    fn ask(model: &Model, texts: &[&str]) -> String {
        finish(send(model, "POST /v1/responses", &say(texts).to_string()))
    }

    fn deltas(answer: &str) -> String {
        let events = answer
            .lines()
            .filter_map(|line| line.strip_prefix("data: "));
        let events = events.map(|data| serde_json::from_str::<Value>(data).unwrap());
        events
            .filter_map(|event| event["delta"].as_str().map(str::to_owned))
            .collect()
    }

    #[test]
    fn queue_answers_in_order_and_then_fails() {
        let model = Model::queued([chunks(["on", "e"]), text("two")]);
        assert_eq!(deltas(&ask(&model, &["a"])), "one");
        assert_eq!(deltas(&ask(&model, &["b"])), "two");
        let past = ask(&model, &["c"]);
        assert!(
            past.contains("script_exhausted") && past.contains(r#"\"c\""#),
            "{past}"
        );
        let asked = model.requests();
        assert_eq!(
            asked.iter().filter_map(last_user_text).collect::<Vec<_>>(),
            ["a", "b", "c"]
        );
    }

    #[test]
    fn key_is_looked_for_from_the_newest_text_back() {
        let model = Model::keyed([
            ("red", [text("r1"), text("r2")]),
            ("blue", [text("b1"), text("b2")]),
        ]);
        assert_eq!(deltas(&ask(&model, &["<environment>", "red"])), "r1");
        assert_eq!(deltas(&ask(&model, &["blue", "another word"])), "b1");
        assert_eq!(deltas(&ask(&model, &["red", "blue"])), "b2");
        assert!(ask(&model, &["green"]).contains("script_exhausted"));
    }

    #[test]
    fn text_before_a_call_is_a_whole_message() {
        let model =
            Model::queued([text("I ")
                .text("look")
                .call("lookup", "c1", json!({ "key": "a" }))]);
        let answer = ask(&model, &["x"]);
        let done = answer.find(r#""text":"I look""#).unwrap();
        assert!(done < answer.find(r#""call_id":"c1""#).unwrap());
        assert!(
            answer.contains(r#""arguments":"{\"key\":\"a\"}""#),
            "{answer}"
        );
        assert!(answer.ends_with("0\r\n\r\n"));
    }

    #[test]
    fn cut_leaves_the_message_open() {
        let model = Model::queued([text("par").cut()]);
        let answer = ask(&model, &["x"]);
        assert!(answer.contains("par"));
        assert!(
            !answer.contains("output_item.done") && !answer.ends_with("0\r\n\r\n"),
            "{answer}"
        );
    }

    #[test]
    fn status_and_listing_are_plain_json() {
        let model = Model::queued([status(500)]);
        assert!(ask(&model, &["x"]).starts_with("HTTP/1.1 500 "));
        let list = finish(send(&model, "GET /v1/models?client_version=1", ""));
        assert!(list.ends_with(r#"{"data":[],"models":[]}"#), "{list}");
        assert!(finish(send(&model, "POST /v1/other", "{}")).starts_with("HTTP/1.1 404 "));
    }

    #[test]
    fn gate_holds_an_answer_until_it_opens() {
        let gate = Gate::new();
        let model = Model::queued([text("before ").hold(&gate).text("after")]);
        let socket = send(&model, "POST /v1/responses", &say(&["x"]).to_string());
        gate.wait_reached(PATIENCE);
        let mut reader = BufReader::new(socket);
        let mut early = String::new();
        while !early.contains("before ") {
            assert_ne!(reader.read_line(&mut early).unwrap(), 0);
        }
        gate.open();
        let mut rest = String::new();
        reader.read_to_string(&mut rest).unwrap();
        assert!(rest.contains(r#""text":"before after""#), "{rest}");
    }

    #[test]
    fn dropped_model_ends_what_hangs() {
        let model = Model::queued([hang(), text("slow").pause(Duration::from_secs(600))]);
        let body = say(&["x"]).to_string();
        let hanging = [0, 1].map(|_| send(&model, "POST /v1/responses", &body));
        assert_eq!(model.wait_for_requests(2, PATIENCE).len(), 2);
        drop(model);
        for socket in hanging {
            socket.set_read_timeout(Some(PATIENCE)).unwrap();
            assert!(!finish(socket).contains("response.completed"));
        }
    }
}
