//! One conversation, and a server whose part the test plays, act by act. What the server only looks up it answers by itself, out of
//! the history that the acts have made.

pub(crate) mod threads;

use std::{
    collections::{BTreeMap, VecDeque},
    fmt::Write as _,
    ops::{Deref, DerefMut},
};

use serde_json::{Value, json};
use turnkeep_core::{
    BoxId, Command, CommandError, CommandId, ConversationId, Reply, SendOptions, Settings, Tool,
    ToolCallId, ToolResult, TurnNo, TurnUpdate,
    command::{AcceptOptions, AutoBegin, Binding, ToolKind},
    event::{ConversationUpdate, Event, Status, ToolCall},
    preflight::PreflightItem,
    transcript::{BoxBody, TranscriptBox},
};
use turnkeep_tests::world::{Left, Setup, World, tool};

/// A request of ours that the test answers.
#[derive(Clone, Debug)]
pub(crate) struct Waiting {
    id: Value,
    pub(crate) params: Value,
}

/// A turn of the server's history.
#[derive(Debug)]
struct Past {
    id: String,
    status: &'static str,
    items: Vec<Value>,
}

/// See the module.
#[must_use = "a talk ends with `finish`"]
pub(crate) struct Talk {
    world: World,
    pub(crate) conversation: ConversationId,
    /// How many frames of ours the server has read.
    read: usize,
    thread: u32,
    turns: u32,
    history: Vec<Past>,
    /// The thread is gone when it is resumed.
    pub(crate) forgets: bool,
    /// `turn/start`, and so on, that wait for the test.
    pub(crate) starts: VecDeque<Waiting>,
    pub(crate) steers: VecDeque<Waiting>,
    /// What the test answers beside those.
    pub(crate) holds: Vec<&'static str>,
    pub(crate) held: VecDeque<Waiting>,
    /// The mark of the fork that was made, and whether lists show it.
    fork: Option<Value>,
    pub(crate) shows_fork: bool,
    interrupts: VecDeque<Waiting>,
    /// The steers that were answered, and not recorded.
    answered_steers: VecDeque<Waiting>,
    items: u32,
    calls: u32,
    answers: BTreeMap<String, Value>,
}

impl Deref for Talk {
    type Target = World;

    fn deref(&self) -> &World {
        &self.world
    }
}

impl DerefMut for Talk {
    fn deref_mut(&mut self) -> &mut World {
        &mut self.world
    }
}

/// A tool whose results come later.
pub(crate) fn deferred(name: &str) -> Tool {
    tool(name, ToolKind::Function).deferred()
}

/// `search` answers later, `look` at once, `say` says something, `route` leads to others.
pub(crate) fn tools() -> Settings {
    Settings::new()
        .tool(deferred("search"))
        .tool(tool("look", ToolKind::Function))
        .tool(tool("say", ToolKind::Message))
        .tool(tool("route", ToolKind::Router))
}

/// Nothing begins by itself.
pub(crate) fn by_hand(mut settings: Settings) -> Settings {
    settings.auto_begin = AutoBegin::Off;
    settings
}

/// A box without hidden fields.
pub(crate) fn boxed(box_type: &str, contents: &str) -> BoxBody {
    BoxBody {
        box_type: box_type.into(),
        contents: contents.into(),
        ..BoxBody::default()
    }
}

/// What a user says.
pub(crate) fn said(text: &str) -> BoxBody {
    boxed("User Message", text)
}

/// What a message of ours says, item by item.
pub(crate) fn input(waiting: &Waiting) -> Vec<String> {
    let items = waiting.params["input"].as_array().unwrap();
    let text = |item: &Value| match item["type"].as_str() {
        Some("text") => item["text"].as_str().unwrap().to_owned(),
        _ => item.to_string(),
    };
    items.iter().map(text).collect()
}

impl Talk {
    pub(crate) fn new(settings: Settings) -> Self {
        Self::with(Setup::hand(), settings)
    }

    /// Our process and the server may end and come back.
    pub(crate) fn lasting(settings: Settings) -> Self {
        Self::with(Setup::hand().reconnects(), settings)
    }

    pub(crate) fn with(setup: Setup, settings: Settings) -> Self {
        let mut talk = Self {
            world: setup.start(),
            conversation: ConversationId(0),
            read: 0,
            thread: 0,
            turns: 0,
            history: Vec::new(),
            forgets: false,
            starts: VecDeque::new(),
            steers: VecDeque::new(),
            holds: Vec::new(),
            held: VecDeque::new(),
            fork: None,
            shows_fork: true,
            interrupts: VecDeque::new(),
            answered_steers: VecDeque::new(),
            items: 0,
            calls: 0,
            answers: BTreeMap::new(),
        };
        talk.serve();
        talk.conversation = talk.world.open("a", settings);
        talk.world.log_from_here();
        talk
    }

    /// Reads what we sent, and answers what is only looked up.
    pub(crate) fn serve(&mut self) {
        while let Some(line) = self.world.sent().get(self.read).cloned() {
            self.read += 1;
            let frame: Value = serde_json::from_str(&line).unwrap();
            let Some(method) = frame["method"].as_str() else {
                self.answers.insert(frame["id"].to_string(), frame);
                continue;
            };
            let waiting = Waiting {
                id: frame["id"].clone(),
                params: frame["params"].clone(),
            };
            if method == "thread/fork" {
                self.fork = Some(waiting.params["threadSource"].clone());
            }
            if self.holds.contains(&method) {
                self.held.push_back(waiting);
                continue;
            }
            let result = match method {
                "initialized" => continue,
                "initialize" => json!({ "userAgent": "codex/0.171.0 (x)" }),
                "thread/start" => {
                    self.thread += 1;
                    self.history.clear();
                    json!({ "thread": { "id": self.thread() } })
                }
                "thread/resume" if self.forgets => {
                    let message = format!("no rollout found for thread id {}", self.thread());
                    self.refuse(&waiting, &message);
                    continue;
                }
                "thread/resume" => {
                    let runs = self
                        .history
                        .last()
                        .is_some_and(|turn| turn.status == "inProgress");
                    let status = if runs { "active" } else { "idle" };
                    let id = &waiting.params["threadId"];
                    json!({ "thread": { "id": id, "status": { "type": status } } })
                }
                "thread/turns/list" => {
                    let turns = self.history.iter().rev().map(|turn| {
                        json!({
                            "id": turn.id, "items": turn.items, "itemsView": "full",
                            "status": turn.status, "error": null,
                        })
                    });
                    json!({ "data": turns.collect::<Vec<_>>(), "nextCursor": null })
                }
                "thread/revert" => {
                    let before = &waiting.params["beforeTurnId"];
                    let at = self.history.iter().position(|turn| *before == *turn.id);
                    self.history.truncate(at.unwrap());
                    json!({ "thread": { "id": self.thread() } })
                }
                "turn/start" => {
                    self.starts.push_back(waiting);
                    continue;
                }
                "turn/steer" => {
                    self.steers.push_back(waiting);
                    continue;
                }
                "turn/interrupt" => {
                    self.interrupts.push_back(waiting);
                    continue;
                }
                _ => self.of_fork(method, &waiting),
            };
            self.result(&waiting, &result);
        }
    }

    fn result(&mut self, waiting: &Waiting, result: &Value) {
        let frame = json!({ "id": waiting.id, "result": result });
        self.world.say(&frame.to_string());
    }

    fn refuse(&mut self, waiting: &Waiting, message: &str) {
        let frame = json!({ "id": waiting.id, "error": { "code": -32600, "message": message } });
        self.world.say(&frame.to_string());
    }

    pub(crate) fn thread(&self) -> String {
        format!("thr_{}", self.thread)
    }

    fn notify(&mut self, method: &str, mut params: Value) {
        params["threadId"] = self.thread().into();
        self.world
            .say(&json!({ "method": method, "params": params }).to_string());
        self.serve();
    }

    /// The native turn that runs, or ran last.
    pub(crate) fn native(&self) -> String {
        self.history.last().unwrap().id.clone()
    }

    fn item(&mut self, item: Value) {
        let turn = self.native();
        self.history.last_mut().unwrap().items.push(item.clone());
        self.notify("item/completed", json!({ "turnId": turn, "item": item }));
    }

    // What the server does.

    /// Answers the start of a turn that waits. Gives the message of it.
    pub(crate) fn answer_start(&mut self) -> Waiting {
        let start = self.starts.pop_front().expect("a turn is to start");
        self.turns += 1;
        let id = format!("trn_{}", self.turns);
        self.history.push(Past {
            id: id.clone(),
            status: "inProgress",
            items: Vec::new(),
        });
        let turn = json!({ "id": id, "items": [], "status": "inProgress", "error": null });
        self.result(&start, &json!({ "turn": turn }));
        self.serve();
        start
    }

    /// Refuses the start of a turn that waits.
    pub(crate) fn refuse_start(&mut self, message: &str) {
        let start = self.starts.pop_front().expect("a turn is to start");
        self.refuse(&start, message);
        self.serve();
    }

    /// Begins the turn that was answered, and records its message.
    pub(crate) fn begin_turn(&mut self, start: &Waiting) {
        let turn =
            json!({ "id": self.native(), "items": [], "status": "inProgress", "error": null });
        self.notify("turn/started", json!({ "turn": turn }));
        self.record(start);
    }

    /// Begins the turn that waits. Gives what its message says.
    pub(crate) fn take(&mut self) -> Vec<String> {
        let start = self.answer_start();
        self.begin_turn(&start);
        input(&start)
    }

    fn record(&mut self, message: &Waiting) {
        self.items += 1;
        let item = json!({
            "type": "userMessage", "id": format!("usr_{}", self.items),
            "clientId": message.params["clientUserMessageId"], "content": [],
        });
        self.item(item);
    }

    /// The agent says something, which is not its last word.
    pub(crate) fn comment(&mut self, text: &str) {
        self.agent(text, "commentary");
    }

    /// The agent's last word.
    pub(crate) fn answer_with(&mut self, text: &str) {
        self.agent(text, "final_answer");
    }

    fn agent(&mut self, text: &str, phase: &str) {
        self.items += 1;
        let id = format!("it_{}", self.items);
        self.item(json!({ "type": "agentMessage", "id": id, "text": text, "phase": phase }));
    }

    /// The frame of a call, and its id.
    pub(crate) fn call_frame(&mut self, tool: &str, arguments: &str) -> (String, String) {
        self.calls += 1;
        // The server counts its own requests.
        let id = 100 + self.calls;
        let frame = format!(
            r#"{{"id":{id},"method":"item/tool/call","params":{{"threadId":"{}","turnId":"{}","callId":"call_{id}","tool":"{tool}","arguments":{arguments}}}}}"#,
            self.thread(),
            self.native(),
        );
        (id.to_string(), frame)
    }

    /// The model calls a tool. Gives the id of the request.
    pub(crate) fn call(&mut self, tool: &str, arguments: &str) -> String {
        let (id, frame) = self.call_frame(tool, arguments);
        self.world.say(&frame);
        self.serve();
        id
    }

    /// The model calls several tools, which we read at once.
    pub(crate) fn calls_at_once(&mut self, calls: &[(&str, &str)]) -> Vec<String> {
        let frames: Vec<_> = calls
            .iter()
            .map(|(tool, arguments)| self.call_frame(tool, arguments))
            .collect();
        let lines: Vec<&str> = frames.iter().map(|(_, frame)| frame.as_str()).collect();
        self.world.say_at_once(&lines);
        self.serve();
        frames.into_iter().map(|(id, _)| id).collect()
    }

    /// How a call was answered.
    pub(crate) fn answered(&self, call: &str) -> Option<&Value> {
        self.answers.get(call)
    }

    /// The text with which a call was answered.
    pub(crate) fn answer_text(&self, call: &str) -> Option<&str> {
        self.answers.get(call)?["result"]["contentItems"][0]["text"].as_str()
    }

    /// Answers the steer that waits. Gives what it says.
    pub(crate) fn answer_steer(&mut self) -> Vec<String> {
        let steer = self.steers.pop_front().expect("something is steered");
        let native = self.native();
        self.result(&steer, &json!({ "turnId": native }));
        self.serve();
        self.answered_steers.push_back(steer.clone());
        input(&steer)
    }

    /// Refuses the steer that waits.
    pub(crate) fn refuse_steer(&mut self, message: &str) {
        let steer = self.steers.pop_front().expect("something is steered");
        self.refuse(&steer, message);
        self.serve();
    }

    /// The model takes up what was steered.
    pub(crate) fn record_steer(&mut self) {
        let steer = self.answered_steers.pop_front().expect("it was answered");
        self.record(&steer);
    }

    /// The model has taken up what was steered, and we were told neither of that nor of an answer.
    pub(crate) fn record_steer_unheard(&mut self) {
        let steer = match self.steers.pop_front() {
            Some(steer) => steer,
            None => self.answered_steers.pop_front().expect("it was answered"),
        };
        let item = json!({
            "type": "userMessage", "id": "usr_x", "clientId": steer.params["clientUserMessageId"], "content": [],
        });
        self.history.last_mut().unwrap().items.push(item);
    }

    /// Answers the steer that waits, and records it. Gives what it says.
    pub(crate) fn take_steer(&mut self) -> Vec<String> {
        let input = self.answer_steer();
        self.record_steer();
        input
    }

    /// The turn ends.
    pub(crate) fn end(&mut self, status: &'static str) {
        let error = match status {
            "failed" => {
                json!({ "message": "the model failed", "codexErrorInfo": "serverOverloaded", "additionalDetails": null })
            }
            _ => Value::Null,
        };
        self.history.last_mut().unwrap().status = status;
        self.notify(
            "thread/status/changed",
            json!({ "status": { "type": "idle" } }),
        );
        let turn = json!({ "id": self.native(), "items": [], "status": status, "error": error });
        self.notify("turn/completed", json!({ "turn": turn }));
    }

    /// The agent's last word, and the end.
    pub(crate) fn complete(&mut self, text: &str) {
        self.answer_with(text);
        self.end("completed");
    }

    /// Grants the interrupt that waits.
    pub(crate) fn grant_interrupt(&mut self) {
        let interrupt = self.interrupts.pop_front().expect("an interrupt waits");
        self.result(&interrupt, &json!({}));
        self.end("interrupted");
    }

    fn server_ends(&mut self) {
        if let Some(turn) = self.history.last_mut() {
            if turn.status == "inProgress" {
                turn.status = "interrupted";
            }
        }
        self.starts.clear();
        self.steers.clear();
        self.interrupts.clear();
        self.held.clear();
    }

    /// The server dies, and another one is there at once.
    pub(crate) fn kill_server(&mut self) {
        self.server_ends();
        self.world.lose_connection();
        self.settle();
    }

    /// The connection is lost; the server lives, and can be reached again.
    pub(crate) fn cut(&mut self) {
        self.starts.clear();
        self.interrupts.clear();
        self.held.clear();
        self.world.lose_connection();
        self.settle();
    }

    /// Our process dies, and its server with it; both are there again at once.
    pub(crate) fn crash(&mut self, left: Left) {
        self.server_ends();
        self.world.crash(left);
        self.settle();
    }

    /// Lets happen what happens without time.
    pub(crate) fn settle(&mut self) {
        self.wait(0);
    }

    /// Lets so many milliseconds pass.
    pub(crate) fn wait(&mut self, millis: u64) {
        let end = self.world.elapsed() / 1_000 + millis;
        loop {
            self.serve();
            let before = (self.world.elapsed(), self.world.sent().len());
            let left = end - self.world.elapsed() / 1_000;
            // In small steps: the server answers in between.
            self.world.run(left.min(100));
            self.serve();
            let after = (self.world.elapsed(), self.world.sent().len());
            if before == after || (left == 0 && before.1 == after.1) {
                return;
            }
        }
    }

    // What the application does.

    pub(crate) fn ask(&mut self, command: Command) -> CommandId {
        let id = self.world.ask(command);
        self.serve();
        id
    }

    /// Asks for something that is answered at once.
    pub(crate) fn done(&mut self, command: Command) -> Result<Reply, CommandError> {
        let id = self.ask(command);
        let answer = self.world.answer(id).cloned();
        answer.unwrap_or_else(|| panic!("command {id} is not answered at once"))
    }

    pub(crate) fn send(&mut self, text: &str) -> TurnNo {
        match self.try_send(text, SendOptions::new()) {
            Ok(Reply::Accepted { turn, .. }) => turn,
            other => panic!("send: {other:?}"),
        }
    }

    pub(crate) fn try_send(
        &mut self,
        text: &str,
        options: SendOptions,
    ) -> Result<Reply, CommandError> {
        self.done(World::send_command(self.conversation, text, options))
    }

    pub(crate) fn accept_command(
        &self,
        boxes: impl IntoIterator<Item = BoxBody>,
        options: AcceptOptions,
    ) -> Command {
        Command::Accept {
            conversation: self.conversation,
            boxes: boxes.into_iter().collect(),
            options: Box::new(options),
        }
    }

    pub(crate) fn try_accept(
        &mut self,
        boxes: impl IntoIterator<Item = BoxBody>,
    ) -> Result<Reply, CommandError> {
        let command = self.accept_command(boxes, AcceptOptions::new());
        self.done(command)
    }

    pub(crate) fn accept(&mut self, boxes: impl IntoIterator<Item = BoxBody>) {
        let answer = self.try_accept(boxes);
        assert!(matches!(answer, Ok(Reply::Arrived { .. })), "{answer:?}");
    }

    pub(crate) fn begin(&mut self) -> Result<Option<TurnNo>, CommandError> {
        let conversation = self.conversation;
        match self.done(Command::Begin { conversation })? {
            Reply::Begun { turn } => Ok(turn),
            other => panic!("begin: {other:?}"),
        }
    }

    pub(crate) fn restart(&mut self) -> Result<Reply, CommandError> {
        let conversation = self.conversation;
        self.done(Command::Restart {
            conversation,
            binding: None,
        })
    }

    pub(crate) fn dismiss(&mut self) -> Result<Reply, CommandError> {
        let conversation = self.conversation;
        self.done(Command::Dismiss { conversation })
    }

    pub(crate) fn hold(&mut self, reason: &str) -> Result<Reply, CommandError> {
        let (conversation, reason) = (self.conversation, reason.to_owned());
        self.done(Command::Hold {
            conversation,
            reason,
        })
    }

    pub(crate) fn release_conversation(&mut self) -> Result<Reply, CommandError> {
        let conversation = self.conversation;
        self.done(Command::Release { conversation })
    }

    pub(crate) fn bind(&mut self, subject: &str) -> Result<Reply, CommandError> {
        let conversation = self.conversation;
        let binding = binding(subject);
        self.done(Command::Bind {
            conversation,
            binding,
        })
    }

    pub(crate) fn unbind(&mut self) -> Result<Reply, CommandError> {
        let conversation = self.conversation;
        self.done(Command::Unbind { conversation })
    }

    pub(crate) fn preflight(
        &mut self,
        items: Vec<PreflightItem>,
    ) -> Result<Vec<ToolCallId>, CommandError> {
        let conversation = self.conversation;
        match self.done(Command::Preflight {
            conversation,
            items,
        })? {
            Reply::Preflighted { calls } => Ok(calls),
            other => panic!("preflight: {other:?}"),
        }
    }

    pub(crate) fn respond(
        &mut self,
        call: ToolCallId,
        result: ToolResult,
    ) -> Result<Reply, CommandError> {
        self.done(Command::Respond { call, result })
    }

    pub(crate) fn message(&mut self, call: ToolCallId, text: &str) -> Result<Reply, CommandError> {
        let text = text.to_owned();
        self.done(Command::ToolMessage { call, text })
    }

    /// Interrupts the turn that runs, and the server grants it.
    pub(crate) fn interrupted(&mut self, turn: TurnNo) {
        self.ask(Command::Interrupt { turn });
        self.grant_interrupt();
    }

    // What the application sees.

    /// The calls that were offered in this life, the preflight's too.
    pub(crate) fn offered(&self) -> Vec<ToolCall> {
        let all = self.world.life().iter().filter_map(|event| match event {
            Event::Turn(event) => match &event.update {
                TurnUpdate::ToolCall(call) => Some(call.clone()),
                _ => None,
            },
            Event::Conversation(event) => match &event.update {
                ConversationUpdate::PreflightCall { call, .. } => Some(call.clone()),
                _ => None,
            },
            _ => None,
        });
        all.collect()
    }

    /// The call that was offered last.
    pub(crate) fn last_call(&self) -> ToolCallId {
        self.offered().last().expect("a call was offered").id
    }

    /// How often the conversation's state was told in this life, and what it was.
    pub(crate) fn statuses(&self) -> Vec<Status> {
        let all = self.world.life().iter().filter_map(|event| match event {
            Event::Conversation(event) => match &event.update {
                ConversationUpdate::Status(status) => Some(status.clone()),
                _ => None,
            },
            _ => None,
        });
        all.collect()
    }

    pub(crate) fn status(&self) -> Status {
        self.statuses().last().cloned().unwrap_or_default()
    }

    /// The turn that was told last.
    pub(crate) fn last_turn(&self) -> TurnNo {
        let mut all = self.world.life().iter().rev();
        all.find_map(|event| match event {
            Event::Conversation(event) => match &event.update {
                ConversationUpdate::TurnBegan { turn, .. } => Some(*turn),
                _ => None,
            },
            _ => None,
        })
        .expect("a turn was told")
    }

    pub(crate) fn transcript(&mut self) -> Vec<TranscriptBox> {
        let command = Command::Read {
            conversation: self.conversation,
            from: BoxId(1),
            limit: 1_000,
        };
        match self.world.look(command) {
            Ok(Reply::Boxes { boxes, last }) => {
                let count = u64::try_from(boxes.len()).unwrap();
                assert_eq!(last, BoxId(count), "boxes are numbered without gaps");
                boxes
            }
            other => panic!("read: {other:?}"),
        }
    }

    /// The transcript, a line a box.
    pub(crate) fn boxes(&mut self) -> Vec<String> {
        let boxes = self.transcript();
        let line = |b: &TranscriptBox| format!("{} {}: {}", b.id, b.body.box_type, b.body.contents);
        boxes.iter().map(line).collect()
    }

    /// The transcript with all fields.
    pub(crate) fn whole_boxes(&mut self) -> String {
        let mut out = String::new();
        for TranscriptBox { id, body } in self.transcript() {
            let _ = writeln!(out, "{id} {}: {:?}", body.box_type, body.contents);
            if !body.hidden_type.is_empty() || !body.hidden_contents.is_empty() {
                let _ = writeln!(out, "    {}: {}", body.hidden_type, body.hidden_contents);
            }
        }
        out
    }

    /// What the journal holds, to see that nothing was added.
    pub(crate) fn written(&self) -> usize {
        self.world.journal_bytes().len()
    }

    /// Ends the talk: the log, and the transcript.
    pub(crate) fn finish(mut self) -> String {
        self.serve();
        let boxes = self.whole_boxes();
        format!("{}\n{boxes}", self.world.finish())
    }
}

/// On behalf of somebody.
pub(crate) fn binding(subject: &str) -> Binding {
    Binding::new(subject, "staff", "careful")
}

/// The kinds of what a crash of ours may leave where all was confirmed.
pub(crate) const LEFT: [Left; 2] = [Left::All, Left::Checkpoint];
