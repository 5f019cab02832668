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
    collections::{BTreeMap, VecDeque},
    fmt,
    io::{self, BufRead, BufReader, Read, Write},
    net::{Ipv4Addr, TcpListener, TcpStream},
    sync::{
        Arc, Condvar, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::Duration,
};

use serde_json::{Value, json};

use answer::Answer;
pub use reply::{Gate, Reply, Usage, call, chunks, failed, hang, status, text};

mod answer;
mod reply;

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
    bearers: Mutex<Vec<Option<String>>>,
    others: Mutex<BTreeMap<String, Value>>,
    arrived: Condvar,
    hangups: Mutex<usize>,
    hung_up: Condvar,
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
            bearers: Mutex::default(),
            others: Mutex::default(),
            arrived: Condvar::new(),
            hangups: Mutex::default(),
            hung_up: Condvar::new(),
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

    /// Returns the bearer token that came with each of these requests.
    pub fn bearers(&self) -> Vec<Option<String>> {
        lock(&self.shared.bearers).clone()
    }

    /// Answers whatever else is asked at this path, in any way and with any query.
    pub fn answer_at(&self, path: &str, body: Value) {
        lock(&self.shared.others).insert(path.to_owned(), body);
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

    /// Waits until the client has hung up in the middle of `count` answers.
    ///
    /// # Panics
    ///
    /// If it does not within `patience`.
    pub fn wait_for_hangups(&self, count: usize, patience: Duration) {
        let hangups = lock(&self.shared.hangups);
        let (hangups, _) = (self.shared.hung_up)
            .wait_timeout_while(hangups, patience, |hangups| *hangups < count)
            .unwrap_or_else(PoisonError::into_inner);
        assert!(
            *hangups >= count,
            "the client hung up {hangups} of {count} times in {patience:?}"
        );
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
    let Some(request) = read_request(&mut reader)? else {
        return Ok(());
    };
    let Request {
        method,
        path,
        bearer,
        body,
    } = request;
    let mut out = connection;
    let other = lock(&shared.others).get(&path).cloned();
    if let Some(body) = other {
        return write_json(&mut out, 200, &body);
    }
    match (method.as_str(), path.as_str()) {
        ("GET", _) => write_json(&mut out, 200, &json!({ "data": [], "models": [] })),
        ("POST", "/v1/responses") => {
            let Ok(request) = serde_json::from_slice::<Value>(&body) else {
                return write_json(&mut out, 400, &error_body("the body is not JSON"));
            };
            let number = {
                let mut requests = lock(&shared.requests);
                requests.push(request.clone());
                lock(&shared.bearers).push(bearer);
                requests.len() - 1
            };
            shared.arrived.notify_all();
            let reply = (shared.script)(&request);
            let played = Answer::new(number, &mut out, &shared.stopped).play(&reply);
            if played.is_err() && !shared.stopped.load(Ordering::SeqCst) {
                *lock(&shared.hangups) += 1;
                shared.hung_up.notify_all();
            }
            played
        }
        _ => write_json(
            &mut out,
            404,
            &error_body(&format!("the model stub has no {method} {path}")),
        ),
    }
}

struct Request {
    method: String,
    path: String,
    bearer: Option<String>,
    body: Vec<u8>,
}

fn read_request(reader: &mut BufReader<TcpStream>) -> io::Result<Option<Request>> {
    let mut line = String::new();
    if reader.read_line(&mut line)? == 0 {
        return Ok(None);
    }
    let mut words = line.split_ascii_whitespace();
    let method = words.next().unwrap_or_default().to_owned();
    let target = words.next().unwrap_or_default();
    let path = target.split('?').next().unwrap_or_default().to_owned();
    let (mut length, mut bearer) = (0, None);
    loop {
        line.clear();
        if reader.read_line(&mut line)? == 0 || line.trim_end().is_empty() {
            break;
        }
        let Some((name, value)) = line.split_once(':') else {
            continue;
        };
        if name.eq_ignore_ascii_case("content-length") {
            length = value.trim().parse().unwrap_or(0);
        } else if name.eq_ignore_ascii_case("authorization") {
            bearer = value.trim().strip_prefix("Bearer ").map(str::to_owned);
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body)?;
    Ok(Some(Request {
        method,
        path,
        bearer,
        body,
    }))
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
