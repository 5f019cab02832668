//! The real app-server over its pipes, without turnkeep in between: what is true of it, told by JSON lines alone.

use std::{
    io::{BufRead, BufReader, Write},
    os::unix::process::CommandExt,
    path::Path,
    process::{Child, ChildStderr, ChildStdin, ChildStdout, Command, Stdio},
    sync::{
        Arc, Mutex, PoisonError,
        mpsc::{self, Receiver, RecvTimeoutError, Sender},
    },
    thread,
    time::{Duration, Instant},
};

use serde_json::{Value, json};

use crate::{
    codex::CodexHome,
    processes::{self, Proc},
};

/// How long a frame may take that must come. Two such servers on a busy machine are slow to start.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// A running `codex app-server` in a process group of its own, which is killed on drop.
#[derive(Debug)]
pub struct AppServer {
    child: Child,
    stdin: Option<ChildStdin>,
    incoming: Receiver<Value>,
    stderr: Arc<Mutex<String>>,
    frames: Vec<Value>,
    read: usize,
    requests: u64,
}

impl AppServer {
    /// Starts the launcher. Nothing is sent.
    pub fn start(launcher: &Path, home: &CodexHome) -> Self {
        let mut child = Command::new(launcher)
            .arg("app-server")
            .envs(home.env())
            .current_dir(home.cwd())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(0)
            .spawn()
            .unwrap_or_else(|error| panic!("{} does not start: {error}", launcher.display()));
        let (frames, incoming) = mpsc::channel();
        let stdout = child.stdout.take().expect("stdout is piped");
        thread::spawn(move || read_frames(stdout, &frames));
        let stderr = Arc::default();
        let sink = Arc::clone(&stderr);
        let source = child.stderr.take().expect("stderr is piped");
        thread::spawn(move || read_stderr(source, &sink));
        let stdin = child.stdin.take();
        AppServer {
            child,
            stdin,
            incoming,
            stderr,
            frames: Vec::new(),
            read: 0,
            requests: 0,
        }
    }

    /// Starts the launcher and shakes hands, with the experimental methods on.
    pub fn initialized(launcher: &Path, home: &CodexHome) -> Self {
        let mut server = Self::start(launcher, home);
        server.request(
            "initialize",
            json!({
                "clientInfo": { "name": "turnkeep-tests", "title": null, "version": "0" },
                "capabilities": { "experimentalApi": true },
            }),
        );
        server.send(&json!({ "method": "initialized" }));
        server
    }

    /// The launcher's pid, which is the process group too.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Writes one line. A server that is gone is no error: its frames will tell.
    pub fn send(&mut self, frame: &Value) {
        if let Some(stdin) = &mut self.stdin {
            let _ = writeln!(stdin, "{frame}");
        }
    }

    /// Closes the server's input.
    pub fn close_input(&mut self) {
        self.stdin = None;
    }

    /// Sends a request and returns its result. Frames that come before the response are kept for [`until`](Self::until).
    ///
    /// # Panics
    ///
    /// If the answer is an error or does not come.
    pub fn request(&mut self, method: &str, params: Value) -> Value {
        match self.try_request(method, params) {
            Ok(result) => result,
            Err(error) => panic!("{method} was answered by {error}"),
        }
    }

    /// As [`request`](Self::request), with an error answer returned.
    pub fn try_request(&mut self, method: &str, params: Value) -> Result<Value, Value> {
        let id = json!(format!("r{}", self.requests));
        self.requests += 1;
        self.send(&json!({ "id": id, "method": method, "params": params }));
        let mut next = self.frames.len();
        let response = self.find(&mut next, &format!("the answer to {method}"), |frame| {
            frame["id"] == id && frame.get("method").is_none()
        });
        match response.get("error") {
            Some(error) => Err(error.clone()),
            None => Ok(response["result"].clone()),
        }
    }

    /// Starts a thread in the home's working directory and returns its id. `more` are further params.
    pub fn start_thread(&mut self, home: &CodexHome, more: Value) -> String {
        let mut params =
            json!({ "cwd": home.cwd(), "approvalPolicy": "never", "sandbox": "read-only" });
        for (key, value) in more.as_object().into_iter().flatten() {
            params[key] = value.clone();
        }
        let result = self.request("thread/start", params);
        result["thread"]["id"]
            .as_str()
            .expect("a thread has an id")
            .to_owned()
    }

    /// Starts a turn with one text and returns its id.
    pub fn start_turn(&mut self, thread: &str, text: &str) -> String {
        let params = json!({ "threadId": thread, "input": [{ "type": "text", "text": text }] });
        let result = self.request("turn/start", params);
        result["turn"]["id"]
            .as_str()
            .expect("a turn has an id")
            .to_owned()
    }

    /// Returns the next frame for which `wanted` holds, and passes over those before it.
    ///
    /// # Panics
    ///
    /// If none comes within [`PATIENCE`], or the server ends.
    pub fn until(&mut self, what: &str, wanted: impl FnMut(&Value) -> bool) -> Value {
        let mut next = self.read;
        let frame = self.find(&mut next, what, wanted);
        self.read = next;
        frame
    }

    /// Returns the next frame of this method, a notification or a request of the server.
    pub fn until_method(&mut self, method: &str) -> Value {
        self.until(method, |frame| frame["method"] == method)
    }

    /// Waits for the end of the frames, that is, of the server.
    pub fn until_end(&mut self) {
        let end = Instant::now() + PATIENCE;
        loop {
            match self
                .incoming
                .recv_timeout(end.saturating_duration_since(Instant::now()))
            {
                Ok(frame) => self.frames.push(frame),
                Err(RecvTimeoutError::Disconnected) => return,
                Err(RecvTimeoutError::Timeout) => self.give_up("the end of the server"),
            }
        }
    }

    /// Every frame read so far.
    pub fn frames(&self) -> &[Value] {
        &self.frames
    }

    /// The params of every notification of this method read so far.
    pub fn notifications(&self, method: &str) -> Vec<&Value> {
        let frames = self.frames.iter().filter(|frame| frame["method"] == method);
        frames.map(|frame| &frame["params"]).collect()
    }

    /// Kills the launcher, the server and what they started, waits until all are gone and returns what is not.
    pub fn kill(mut self) -> Vec<Proc> {
        self.kill_all()
    }

    fn kill_all(&mut self) -> Vec<Proc> {
        let family = processes::kill_family(self.pid());
        let _ = self.child.wait();
        processes::wait_gone(&family, PATIENCE)
    }

    fn find(
        &mut self,
        next: &mut usize,
        what: &str,
        mut wanted: impl FnMut(&Value) -> bool,
    ) -> Value {
        let end = Instant::now() + PATIENCE;
        loop {
            while let Some(frame) = self.frames.get(*next) {
                *next += 1;
                if wanted(frame) {
                    return frame.clone();
                }
            }
            match self
                .incoming
                .recv_timeout(end.saturating_duration_since(Instant::now()))
            {
                Ok(frame) => self.frames.push(frame),
                Err(_) => self.give_up(what),
            }
        }
    }

    fn give_up(&self, what: &str) -> ! {
        let stderr = self.stderr.lock().unwrap_or_else(PoisonError::into_inner);
        let last: Vec<_> = self
            .frames
            .iter()
            .rev()
            .take(5)
            .rev()
            .map(Value::to_string)
            .collect();
        panic!(
            "no frame was {what}; the last were\n{}\nstderr:\n{stderr}",
            last.join("\n")
        );
    }
}

impl Drop for AppServer {
    fn drop(&mut self) {
        self.kill_all();
    }
}

fn read_frames(stdout: ChildStdout, frames: &Sender<Value>) {
    for line in BufReader::new(stdout).lines().map_while(Result::ok) {
        // What is not JSON is kept too, as a string, so that a test fails over it instead of missing it.
        let frame = serde_json::from_str(&line).unwrap_or(Value::String(line));
        if frames.send(frame).is_err() {
            return;
        }
    }
}

fn read_stderr(stderr: ChildStderr, sink: &Mutex<String>) {
    for line in BufReader::new(stderr).lines().map_while(Result::ok) {
        let mut sink = sink.lock().unwrap_or_else(PoisonError::into_inner);
        sink.push_str(&line);
        sink.push('\n');
    }
}
