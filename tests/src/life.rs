//! A machine life after life, on one journal: crashed, begun again, and answered by a server of one closure.

use serde_json::{Value, json};
use turnkeep_core::{
    Command, CommandError, CommandId, Config, Effect, Effects, Epoch, Event, Input, JournalSeq,
    Machine, Peer, Recovery, Reply, Timestamp, codec::journal::Entry,
};

/// What a command was answered.
pub type Answer = Result<Reply, CommandError>;

/// A life of the machine. Its journal is durable at once.
#[derive(Debug)]
pub struct Life {
    /// The machine.
    pub machine: Machine,
    /// What the journal holds.
    pub journal: Vec<Entry>,
    /// What was told.
    pub events: Vec<Event>,
    /// Frames that nobody has answered yet.
    pub sent: Vec<Value>,
    /// The connection that the machine last asked for.
    pub epoch: Epoch,
    now: Timestamp,
    due: Option<Timestamp>,
    last_command: u64,
}

impl Life {
    /// The life after those that wrote the journal.
    ///
    /// # Panics
    ///
    /// The journal makes no machine.
    #[must_use]
    pub fn after(config: &Config, journal: Vec<Entry>) -> Self {
        let seed = journal.len() as u64 + 1;
        let mut recovery = Recovery::new(config.clone(), seed).expect("a good configuration");
        for entry in &journal {
            recovery.push(entry).expect("records that fit");
        }
        let now = Timestamp::from_millis(1_700_000_000_000).max(recovery.at());
        let last_command = recovery.durable().last_command().0;
        let (machine, effects) = recovery.finish(now);
        let mut life = Self {
            machine,
            journal,
            events: Vec::new(),
            sent: Vec::new(),
            epoch: Epoch(0),
            now,
            due: None,
            last_command,
        };
        life.perform(effects);
        life
    }

    /// A crash of ours, and the next life.
    #[must_use]
    pub fn crash(self) -> Self {
        Self::after(&self.machine.config().clone(), self.journal)
    }

    fn perform(&mut self, effects: Effects) {
        self.due = effects.deadline.map(|due| due.at);
        let mut through: Option<JournalSeq> = None;
        for effect in effects.list {
            match effect {
                Effect::Append(batch) => {
                    through = Some(batch.through);
                    self.journal.push(Entry {
                        seq: batch.through,
                        at: batch.at,
                        records: batch.records,
                    });
                }
                Effect::Emit(event) => self.events.push(event),
                Effect::Send(_, frame) => {
                    let frame = serde_json::from_slice(&frame.bytes).expect("a frame is JSON");
                    self.sent.push(frame);
                }
                Effect::Open(epoch, _) => self.epoch = epoch,
                Effect::Close(..) => {}
            }
        }
        if let Some(through) = through {
            self.input(Input::Appended { through });
        }
    }

    /// Takes one input.
    pub fn input(&mut self, input: Input) {
        let effects = self.machine.step(self.now, input);
        self.machine.check_invariants();
        self.perform(effects);
    }

    /// Asks for something under a number, and gives the answer back if it is there at once.
    pub fn command_as(&mut self, id: u64, command: Command) -> Option<Answer> {
        let id = CommandId(id);
        let before = self.events.len();
        self.input(Input::Command { id, command });
        let mut told = self.events[before..]
            .iter()
            .filter_map(|event| match event {
                Event::Answer { id: of, answer } if *of == id => Some((**answer).clone()),
                _ => None,
            });
        let answer = told.next();
        assert!(told.next().is_none(), "command {id} is answered twice");
        answer
    }

    /// Asks for something under the next number.
    pub fn command(&mut self, command: Command) -> Option<Answer> {
        self.last_command += 1;
        self.command_as(self.last_command, command)
    }

    /// How many records there are.
    #[must_use]
    pub fn records(&self) -> usize {
        self.journal.iter().map(|entry| entry.records.len()).sum()
    }

    /// The connection that was asked for is there.
    pub fn open(&mut self, peer: Peer) {
        self.input(Input::Opened(self.epoch, peer));
    }

    /// A line of the server.
    pub fn line(&mut self, frame: &Value) {
        let line = format!("{frame}\n").into_bytes();
        self.input(Input::Received(self.epoch, line));
    }

    /// Answers everything that was asked, also what that leads to: `answer` gives a whole answer without its id, or
    /// nothing. Returns the frames, in order.
    ///
    /// # Panics
    ///
    /// It goes on for ever.
    pub fn serve(&mut self, mut answer: impl FnMut(&Value) -> Option<Value>) -> Vec<Value> {
        let mut served = Vec::new();
        while !self.sent.is_empty() {
            let frame = self.sent.remove(0);
            if frame.get("method").is_some() && frame.get("id").is_some() {
                if let Some(mut reply) = answer(&frame) {
                    reply["id"] = frame["id"].clone();
                    self.line(&reply);
                }
            }
            served.push(frame);
            assert!(served.len() < 100_000, "it goes on for ever");
        }
        served
    }

    /// Lets time pass until the next timer is due. Returns whether there was one.
    pub fn wait(&mut self) -> bool {
        let Some(due) = self.due else { return false };
        self.now = self.now.max(due);
        self.input(Input::Tick);
        true
    }
}

/// What a server answers that has nothing and refuses nothing: threads are numbered `thr_1` and on by `next`.
#[must_use]
pub fn plain(frame: &Value, next: &mut u32) -> Option<Value> {
    let params = &frame["params"];
    let result = match frame["method"].as_str()? {
        "initialize" => json!({"userAgent": "codex/0.171.0 (x)", "codexHome": "/h"}),
        "thread/start" => {
            *next += 1;
            json!({"thread": {"id": format!("thr_{next}"), "threadSource": params["threadSource"]}})
        }
        "thread/resume" => {
            json!({"thread": {"id": params["threadId"], "status": {"type": "idle"}}})
        }
        "turn/start" => {
            json!({"turn": {"id": format!("trn_of_{}", params["clientUserMessageId"])}})
        }
        "thread/list" | "thread/loaded/list" | "thread/backgroundTerminals/list" => {
            json!({"data": [], "nextCursor": null})
        }
        _ => json!({}),
    };
    Some(json!({"result": result}))
}
