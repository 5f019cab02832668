//! A machine that is stepped by hand: no runtime, no server, a journal that answers at once.

use std::collections::VecDeque;

use serde_json::{Value, value::RawValue};
use turnkeep_core::{
    Command, CommandError, CommandId, Config, Effect, Effects, Epoch, Event, FrameSeq, Input,
    Machine, Peer, Record, Reply, Timestamp, effect::CloseWhy,
};

/// A frame that the machine sent.
#[derive(Clone, Debug)]
pub struct Sent {
    /// Its number.
    pub seq: FrameSeq,
    /// The frame.
    pub json: Value,
}

/// A machine and all that came out of it.
#[derive(Debug)]
pub struct ByHand {
    /// The machine.
    pub machine: Machine,
    /// What the clock shows.
    pub now: Timestamp,
    /// Frames that nobody has looked at yet.
    pub sent: VecDeque<Sent>,
    /// Everything that was told, in order.
    pub events: Vec<Event>,
    /// Everything that was written down, in order.
    pub records: Vec<Record>,
    /// The connections that the machine closed.
    pub closed: Vec<CloseWhy>,
    /// Whether the journal answers at once.
    pub acks: bool,
    last_command: u64,
    unacked: Option<turnkeep_core::JournalSeq>,
    deadline: Option<Timestamp>,
}

/// The one connection of a machine without reconnection.
pub const EPOCH: Epoch = Epoch(1);

impl ByHand {
    /// A machine before its connection is open.
    ///
    /// # Panics
    ///
    /// The configuration is refused.
    #[must_use]
    pub fn new(config: Config) -> Self {
        let now = Timestamp::from_millis(1_700_000_000_000);
        let (machine, effects) = Machine::new(config, 7, now).expect("a valid configuration");
        let mut host = Self {
            machine,
            now,
            sent: VecDeque::new(),
            events: Vec::new(),
            records: Vec::new(),
            closed: Vec::new(),
            acks: true,
            last_command: 0,
            unacked: None,
            deadline: None,
        };
        host.perform(effects);
        host
    }

    /// A machine with the default configuration whose handshake is done.
    #[must_use]
    pub fn ready() -> Self {
        Self::ready_with(crate::one_connection())
    }

    /// A machine whose handshake is done.
    ///
    /// # Panics
    ///
    /// It was not.
    #[must_use]
    pub fn ready_with(config: Config) -> Self {
        let mut host = Self::new(config);
        host.open();
        let initialize = host.next_sent("initialize");
        host.line(&format!(
            r#"{{"id":{},"result":{{"userAgent":"x/0.171.0 (x)"}}}}"#,
            initialize["id"]
        ));
        host.next_sent("initialized");
        host
    }

    /// Opens the connection.
    pub fn open(&mut self) {
        self.step(Input::Opened(EPOCH, Peer::default()));
    }

    /// Takes one input, performs what it leads to, and says that the journal has it.
    pub fn step(&mut self, input: Input) {
        let effects = self.machine.step(self.now, input);
        self.machine.check_invariants();
        self.perform(effects);
        if self.acks {
            self.ack();
        }
    }

    /// Says that everything handed to the journal is durable.
    pub fn ack(&mut self) {
        while let Some(through) = self.unacked.take() {
            let effects = self.machine.step(self.now, Input::Appended { through });
            self.machine.check_invariants();
            self.perform(effects);
        }
    }

    fn perform(&mut self, effects: Effects) {
        self.deadline = effects.deadline.map(|due| due.at);
        for effect in effects.list {
            match effect {
                Effect::Append(batch) => {
                    self.unacked = Some(batch.through);
                    self.records.extend(batch.records);
                }
                Effect::Send(_, frame) => {
                    // It may carry what a plain reader cannot hold: depth, a number without end, half a character.
                    let json = serde_json::from_slice(&frame.bytes).unwrap_or_else(|_| {
                        let raw = serde_json::from_slice::<&RawValue>(&frame.bytes);
                        raw.map(|_| Value::Null).expect("a frame is JSON")
                    });
                    let seq = frame.seq;
                    self.sent.push_back(Sent { seq, json });
                }
                Effect::Emit(event) => self.events.push(event),
                Effect::Open(..) => {}
                Effect::Close(_, why) => self.closed.push(why),
            }
        }
    }

    /// A read from the server.
    pub fn read(&mut self, bytes: &[u8]) {
        self.step(Input::Received(EPOCH, bytes.to_vec()));
    }

    /// A whole line from the server.
    pub fn line(&mut self, line: &str) {
        self.read(format!("{line}\n").as_bytes());
    }

    /// A command, under the next number.
    pub fn command(&mut self, command: Command) -> CommandId {
        self.last_command += 1;
        let id = CommandId(self.last_command);
        self.step(Input::Command { id, command });
        id
    }

    /// The answer of a command, if it has one.
    #[must_use]
    pub fn answer(&self, command: CommandId) -> Option<&Result<Reply, CommandError>> {
        self.events.iter().find_map(|event| match event {
            Event::Answer { id, answer } if *id == command => Some(&**answer),
            _ => None,
        })
    }

    /// The next frame that nobody has looked at, which must have this method.
    ///
    /// # Panics
    ///
    /// It has not, or there is none.
    pub fn next_sent(&mut self, method: &str) -> Value {
        let sent = self
            .sent
            .pop_front()
            .unwrap_or_else(|| panic!("{method} was not sent"));
        assert_eq!(sent.json["method"], method, "{}", sent.json);
        sent.json
    }

    /// Moves the clock, ticking on the way wherever the machine wants it.
    pub fn wait_until(&mut self, at: Timestamp) {
        while let Some(due) = self.deadline.filter(|due| *due <= at) {
            self.now = self.now.max(due);
            self.step(Input::Tick);
        }
        self.now = self.now.max(at);
    }

    /// Moves the clock to the machine's next deadline and ticks. `false` where it has none.
    pub fn wait_for_timer(&mut self) -> bool {
        let Some(due) = self.deadline else {
            return false;
        };
        self.wait_until(due);
        true
    }
}
