//! A machine, the server of a case and the reference, side by side: after each operation they must agree.

mod agree;
mod words;

use std::collections::BTreeMap;

use turnkeep_core::{
    CloseReason, Closed, Command, CommandId, Config, ConversationId, ConversationKey, Effect,
    Effects, Epoch, Event, Input, JournalSeq, Machine, Peer, RawJson, Recovery, Reply, SendOptions,
    Timestamp, ToolCallId, ToolResult, TurnNo, TurnUpdate,
    attachment::Endpoint,
    codec::journal::Entry,
    command::{AcceptOptions, Metadata},
    event::{ConversationUpdate, Status, ToolCall},
    preflight::PreflightItem,
};

use self::words::{binding, body, config, item, settings, word};
use super::{
    Bug, Tally, boxes,
    op::{Brought, Called, Case, Cut, How, Op, Outcome, Step},
    reference::{Answer, Launch, Reference, Sent},
    server::Server,
};

/// How long the tools with a limit may take. All that happens by itself takes no time worth the name.
const LIMIT: u64 = 3_600_000;

/// What a machine waits for by itself.
const PATIENCE: u64 = 60_000_000;

/// Steps after which something goes on for ever.
const ENOUGH: u32 = 10_000;

pub(super) struct Drive {
    how: How,
    #[cfg_attr(
        not(feature = "bugs"),
        allow(dead_code, reason = "a machine without the feature breaks no rule")
    )]
    bug: Option<Bug>,
    /// Whether all that comes and goes is printed.
    log: bool,
    config: Config,
    machine: Machine,
    server: Server,
    pub(super) reference: Reference,
    pub(super) tally: Tally,
    conversation: ConversationId,
    now: Timestamp,
    journal: Vec<Entry>,
    unacked: Option<JournalSeq>,
    asked: Option<Epoch>,
    epoch: Option<Epoch>,
    due: Option<Timestamp>,
    pid: u32,
    seed: u64,
    commands: u64,
    answers: BTreeMap<u64, String>,
    turns: Vec<TurnNo>,
    status: &'static str,
    launched: Vec<Launch>,
    keys: BTreeMap<u8, String>,
    /// What agrees so far.
    boxes: usize,
    got: usize,
    /// The boxes of each message, by its id.
    carried: BTreeMap<String, Sent>,
    /// Which thread of the server is which of the reference.
    threads: BTreeMap<u32, usize>,
}

type Checked<T = ()> = Result<T, String>;

impl Drive {
    /// A machine with an open conversation and a ready connection.
    pub(super) fn new(how: How, bug: Option<Bug>, log: bool) -> Checked<Self> {
        let config = config(how);
        let recovery = Recovery::new(config.clone(), 1).map_err(|error| error.to_string())?;
        #[cfg(feature = "bugs")]
        let recovery = match bug {
            Some(bug) => recovery.with_bug(bug),
            None => recovery,
        };
        let now = Timestamp::from_millis(1_800_000_000_000);
        let (machine, effects) = recovery.finish(now);
        let mut drive = Self {
            how,
            bug,
            log,
            config,
            machine,
            server: Server::default(),
            reference: Reference::new(how),
            tally: Tally {
                cases: 1,
                ..Tally::default()
            },
            conversation: ConversationId(0),
            now,
            journal: Vec::new(),
            unacked: None,
            asked: None,
            epoch: None,
            due: None,
            pid: 1,
            seed: 1,
            commands: 0,
            answers: BTreeMap::new(),
            turns: Vec::new(),
            status: "quiet",
            launched: Vec::new(),
            keys: BTreeMap::new(),
            boxes: 0,
            got: 0,
            carried: BTreeMap::new(),
            threads: BTreeMap::new(),
        };
        drive.perform(effects);
        drive.settle()?;
        drive.open()?;
        Ok(drive)
    }

    fn open(&mut self) -> Checked {
        let command = Command::Open {
            key: ConversationKey::new("c").expect("a key"),
            settings: Box::new(settings(self.how, 0)),
        };
        self.command(command, false);
        self.settle()?;
        let mut all = self.machine.durable().numbered();
        self.conversation = all.next().map(|(id, _)| id).ok_or("it is not opened")?;
        Ok(())
    }

    // The machine and what is around it.

    fn perform(&mut self, effects: Effects) {
        self.due = effects.deadline.map(|due| due.at);
        for effect in effects.list {
            if self.log {
                println!("    {}", shown(&effect));
            }
            match effect {
                Effect::Append(batch) => {
                    self.unacked = Some(batch.through);
                    let (seq, at, records) = (batch.through, batch.at, batch.records);
                    self.journal.push(Entry { seq, at, records });
                }
                Effect::Send(epoch, frame) if Some(epoch) == self.epoch => {
                    self.server.on_line(&frame.bytes);
                }
                Effect::Send(..) | Effect::Close(..) => {}
                Effect::Emit(event) => self.told(event),
                Effect::Open(epoch, _) => self.asked = Some(epoch),
            }
        }
    }

    fn step(&mut self, input: Input) {
        if self.log {
            match &input {
                Input::Received(_, bytes) => {
                    println!("  received\n{}", String::from_utf8_lossy(bytes).trim_end());
                }
                Input::Command { command, .. } => println!("  {command:?}"),
                other => println!("  {other:?}"),
            }
        }
        let effects = self.machine.step(self.now, input);
        self.machine.check_invariants();
        self.perform(effects);
    }

    /// Lets happen what happens by itself.
    fn settle(&mut self) -> Checked {
        for _ in 0..ENOUGH {
            if let Some(through) = self.unacked.take() {
                self.step(Input::Appended { through });
            } else if let Some(epoch) = self.asked.take() {
                self.epoch = Some(epoch);
                let peer = match self.how.socket {
                    true => Peer::socket(Endpoint::Unix {
                        path: "/run/codex.sock".into(),
                    }),
                    false => Peer::child(self.pid, Some(1)),
                };
                self.step(Input::Opened(epoch, peer));
            } else if !self.server.out.is_empty() {
                self.hear();
            } else {
                match self.due.filter(|due| due.0 < self.now.0 + PATIENCE) {
                    Some(due) => self.tick(due),
                    None => return Ok(()),
                }
            }
        }
        Err("it goes on for ever".into())
    }

    fn tick(&mut self, due: Timestamp) {
        self.now = self.now.max(due);
        self.step(Input::Tick);
    }

    fn hear(&mut self) {
        let out = std::mem::take(&mut self.server.out).into_bytes();
        if let Some(epoch) = self.epoch {
            self.step(Input::Received(epoch, out));
        }
    }

    fn told(&mut self, event: Event) {
        match event {
            Event::Answer { id, answer } => {
                if let Ok(Reply::Accepted { turn, .. } | Reply::Begun { turn: Some(turn) }) =
                    &*answer
                {
                    self.turns.push(*turn);
                }
                let text = match &*answer {
                    Ok(Reply::Arrived { first, last }) => format!("arrived {first} to {last}"),
                    answer => word(answer).to_owned(),
                };
                self.answers.insert(id.0, text);
            }
            Event::Turn(event) => {
                if let TurnUpdate::ToolCall(call) = event.update {
                    self.launched(&call, true);
                }
            }
            Event::Conversation(event) => match event.update {
                ConversationUpdate::TurnBegan { turn, .. } => self.turns.push(turn),
                ConversationUpdate::PreflightCall { call, .. } => self.launched(&call, false),
                ConversationUpdate::Status(status) => {
                    self.status = match status {
                        Status::Running => "running",
                        Status::Quiet => "quiet",
                        Status::Stalled { .. } => "stalled",
                        Status::Held { .. } => "held",
                        _ => "odd",
                    };
                }
                _ => {}
            },
            Event::Delta(_) | Event::Connection(_) | Event::Halted => {}
        }
    }

    fn launched(&mut self, call: &ToolCall, in_round: bool) {
        self.launched.push(Launch {
            sequence: call.id.sequence,
            tool: call.tool.clone(),
            arguments: call.arguments.get().to_owned(),
            binding: call
                .binding
                .as_ref()
                .filter(|_| in_round && self.how.bound)
                .map(|binding| u8::from(binding.subject == "subject 1")),
        });
    }

    /// Hands the machine a command; where it is `cut`, our process is killed before anything else happens.
    fn command(&mut self, command: Command, cut: bool) -> u64 {
        self.commands += 1;
        let id = CommandId(self.commands);
        self.step(Input::Command { id, command });
        if cut {
            self.answers.remove(&id.0);
        }
        id.0
    }

    // One operation.

    pub(super) fn run(&mut self, step: &Step) -> Checked {
        if !self.reference.allows(&step.op) {
            return Ok(());
        }
        if self.reference.says_before(step) {
            self.run(&Op::Text { record: false }.into())?;
        }
        if self.reference.speaks_before(&step.op) {
            self.run(&Op::Speak.into())?;
            if !self.reference.allows(&step.op) {
                return Ok(());
            }
        }
        self.tally.operations += 1;
        if self.log {
            println!("{:?} {:?}", step.op, step.cut);
        }
        let whole = matches!(
            step.op,
            Op::Lose | Op::Crash | Op::Expire | Op::Silence | Op::Refuse | Op::Stream { .. }
        );
        let cut = step.cut.filter(|_| !whole);
        let before = (self.journal.len(), self.reference.clone());
        if cut.is_some() {
            self.reference.cut();
        }
        let asked = self.ask(&step.op, cut.is_some())?;
        if asked.is_none() {
            self.serve(&step.op, cut.is_some())?;
        }
        match cut {
            None => {
                self.settle()?;
                self.reference.settle();
                if let Some((command, expected)) = asked {
                    self.answered(&step.op, command, &expected)?;
                }
            }
            Some(Cut::Lost) => {
                self.journal.truncate(before.0);
                self.reference = before.1;
                if asked.is_none() {
                    self.reference.server(&step.op);
                }
                self.crash(cut)?;
            }
            Some(Cut::Unsent) => {
                self.reference.settle();
                self.crash(cut)?;
            }
        }
        self.compare()
    }

    fn answered(&mut self, op: &Op, command: u64, expected: &Answer) -> Checked {
        let answer = self.answers.get(&command).map_or("later", String::as_str);
        let word = answer.split(' ').next().unwrap_or_default();
        let later = expected.contains(&"later") && matches!(word, "steered" | "queued");
        if !later && !expected.contains(&word) {
            return Err(format!(
                "it is answered {answer:?}, not one of {expected:?}"
            ));
        }
        if let Op::Accept { key: Some(key), .. } = op {
            if word == "arrived"
                && *self.keys.entry(*key).or_insert_with(|| answer.to_owned()) != answer
            {
                return Err(format!("the same arrival is another one: {answer}"));
            }
        }
        Ok(())
    }

    /// Has the application ask, if it is its turn.
    fn ask(&mut self, op: &Op, cut: bool) -> Checked<Option<(u64, Answer)>> {
        let conversation = self.conversation;
        let reference = &mut self.reference;
        let (command, expected) = match op {
            Op::Accept {
                boxes,
                key,
                other,
                binding: bound,
            } => {
                let bodies = reference.bodies(boxes, *key, *other);
                let mut options = AcceptOptions::new();
                if let Some(key) = key {
                    options = options.key(format!("key {key}"));
                }
                if let Some(bound) = bound {
                    options = options.binding(binding(*bound));
                }
                let boxes = bodies.iter().map(|b| body(b, "hidden")).collect();
                let expected = reference.accept(bodies, *key, *bound);
                (
                    Command::Accept {
                        conversation,
                        boxes,
                        options: Box::new(options),
                    },
                    expected,
                )
            }
            Op::Send {
                image,
                binding: bound,
            } => {
                let what: &[Brought] = if *image {
                    &[Brought::User, Brought::Image]
                } else {
                    &[Brought::User]
                };
                let bodies = reference.bodies(what, None, false);
                let mut options = SendOptions::new();
                if let Some(bound) = bound {
                    options = options.binding(binding(*bound));
                }
                let input = bodies.iter().map(item).collect();
                let expected = reference.send(bodies, *bound);
                (
                    Command::Send {
                        conversation,
                        input,
                        options: Box::new(options),
                    },
                    expected,
                )
            }
            Op::Steer { stale } => {
                let bodies = reference.bodies(&[Brought::User], None, false);
                let input = bodies.iter().map(item).collect();
                let expected = reference.steer(bodies, *stale);
                (
                    Command::Steer {
                        turn: self.turn(*stale),
                        input,
                    },
                    expected,
                )
            }
            Op::Interrupt { stale } => {
                let expected = reference.interrupt(*stale);
                (
                    Command::Interrupt {
                        turn: self.turn(*stale),
                    },
                    expected,
                )
            }
            Op::Respond { call, outcome } => {
                let call = usize::from(*call) % (reference.calls() + 1);
                let text = boxes::text_of(call, *outcome);
                let result = match outcome {
                    Outcome::Ok => ToolResult::ok(text),
                    Outcome::Failed => ToolResult::failed(text),
                    Outcome::Meta => {
                        let (metadata_type, contents) = ("app/meta".into(), "m".into());
                        ToolResult::ok(text).metadata(Metadata {
                            metadata_type,
                            contents,
                        })
                    }
                };
                let expected = reference.respond(call, *outcome);
                (
                    Command::Respond {
                        call: self.call(call),
                        result,
                    },
                    expected,
                )
            }
            Op::ToolMessage { call } => {
                let call = usize::from(*call) % (reference.calls() + 1);
                let (expected, text) = reference.tool_message(call);
                (
                    Command::ToolMessage {
                        call: self.call(call),
                        text,
                    },
                    expected,
                )
            }
            Op::Bind(which) => {
                let expected = reference.bind(*which);
                (
                    Command::Bind {
                        conversation,
                        binding: binding(*which),
                    },
                    expected,
                )
            }
            Op::Unbind => (Command::Unbind { conversation }, reference.unbind()),
            Op::Hold => {
                let reason = "a reason".to_owned();
                (
                    Command::Hold {
                        conversation,
                        reason,
                    },
                    reference.hold(),
                )
            }
            Op::Release => (Command::Release { conversation }, reference.release()),
            Op::Begin => (Command::Begin { conversation }, reference.begin_by_hand()),
            Op::Dismiss => (Command::Dismiss { conversation }, reference.dismiss()),
            Op::Restart { binding: bound } => {
                let expected = reference.restart(*bound);
                let binding = bound.map(binding);
                (
                    Command::Restart {
                        conversation,
                        binding,
                    },
                    expected,
                )
            }
            Op::Preflight(calls) => self.preflight(calls),
            Op::Reset => (Command::Reset { conversation }, reference.reset()),
            Op::Change => {
                let expected = reference.reset();
                let number = u32::try_from(self.commands).unwrap_or_default() + 1;
                let settings = Box::new(settings(self.how, number));
                (
                    Command::Change {
                        conversation,
                        settings,
                    },
                    expected,
                )
            }
            _ => return Ok(None),
        };
        let id = self.command(command, cut);
        Ok(Some((id, expected)))
    }

    fn preflight(&mut self, calls: &[(Called, bool)]) -> (Command, Answer) {
        let system = self
            .reference
            .bodies(&[Brought::System], None, false)
            .remove(0);
        let mut items = vec![PreflightItem::System(body(&system, ""))];
        for (at, (called, blocking)) in calls.iter().enumerate() {
            let sequence = (self.reference.calls() + at) as u64 + 1;
            let (mut tool, arguments) = boxes::ahead(*called, sequence);
            if *called == Called::Unknown {
                tool = "nowhere".into();
            }
            let arguments = RawJson::parse(&arguments).expect("an object");
            items.push(PreflightItem::Call {
                tool,
                arguments,
                blocking: *blocking,
            });
        }
        let expected = self.reference.preflight(system, calls);
        (
            Command::Preflight {
                conversation: self.conversation,
                items,
            },
            expected,
        )
    }

    fn turn(&self, stale: bool) -> TurnNo {
        match (stale, self.turns.as_slice()) {
            (false, [.., last]) => *last,
            (true, [first, .., last]) if first != last => *first,
            _ => TurnNo(4_000),
        }
    }

    fn call(&self, call: usize) -> ToolCallId {
        let conversation = self.machine.durable().conversation(self.conversation);
        let nonce = conversation.map(|c| c.nonce).expect("it is open");
        ToolCallId {
            nonce,
            sequence: call as u64 + 1,
        }
    }

    /// Has the server or the world do what an operation says.
    fn serve(&mut self, op: &Op, cut: bool) -> Checked {
        match op {
            Op::Lose => {
                let reason = match self.how.socket {
                    true => CloseReason::Lost("reset".into()),
                    false => CloseReason::Exited {
                        code: None,
                        signal: Some(9),
                    },
                };
                self.part();
                if let Some(epoch) = self.epoch.take() {
                    let closed = Closed::new(reason, String::new());
                    self.step(Input::Closed(epoch, Box::new(closed)));
                }
                self.reference.away(false);
                self.tally.losses += 1;
            }
            Op::Crash => {
                self.crash(None)?;
            }
            Op::Expire => {
                let until = Timestamp(self.now.0 + LIMIT * 1_000);
                self.reference.expire();
                for _ in 0..ENOUGH {
                    let Some(due) = self.due.filter(|due| *due <= until) else {
                        break;
                    };
                    self.tick(due);
                    if let Some(through) = self.unacked.take() {
                        self.step(Input::Appended { through });
                    }
                }
                self.now = until;
            }
            _ => {
                self.reference.server(op);
                self.act(op);
                if cut && !self.server.out.is_empty() {
                    self.hear();
                }
            }
        }
        Ok(())
    }

    fn act(&mut self, op: &Op) {
        let server = &mut self.server;
        match op {
            Op::Silence => server.silence(),
            Op::Speak => server.speak(),
            Op::Refuse => server.refuse(),
            Op::Record => server.record(true),
            Op::Stream { record } => {
                server.record(*record);
                server.stream(&self.reference.said());
            }
            Op::Text { record } => {
                server.record(*record);
                server.stream(&self.reference.said());
                server.said();
            }
            Op::Calls { calls, record } => {
                server.record(*record);
                for called in calls {
                    server.call(*called);
                }
            }
            Op::Complete { record } => {
                server.record(*record);
                server.end("completed");
            }
            Op::Fail => {
                server.record(false);
                server.end("failed");
            }
            Op::Stop => {
                server.record(false);
                server.end("interrupted");
            }
            _ => {}
        }
    }

    /// The connection is gone, and with it a server that is a child.
    fn part(&mut self) {
        if self.how.socket {
            // It goes on: what it took is recorded.
            self.server.record(false);
        } else {
            self.server.die();
            self.pid += 1;
        }
        self.server.hang_up();
    }

    fn recovery(&self) -> Checked<Recovery> {
        let config = self.config.clone();
        let mut recovery = Recovery::new(config, self.seed).map_err(|error| error.to_string())?;
        for entry in &self.journal {
            let pushed = recovery.push(entry);
            pushed.map_err(|error| format!("the journal makes no state: {error}"))?;
        }
        Ok(recovery)
    }

    /// Our process is killed; the next one begins with what the journal holds.
    fn crash(&mut self, cut: Option<Cut>) -> Checked {
        self.tally.crashes += 1;
        self.tally.cuts += u64::from(cut.is_some());
        let lost = cut == Some(Cut::Lost);
        self.part();
        (self.unacked, self.asked, self.epoch) = (None, None, None);
        self.seed += 1;
        let mut recovery = self.recovery()?;
        if !lost && recovery.durable() != self.machine.durable() {
            return Err("8: the journal makes another state than the one that was".into());
        }
        if self.seed % 3 == 0 {
            let (seq, at) = (recovery.seq(), recovery.at());
            let records = vec![recovery.durable().checkpoint()];
            self.journal = vec![Entry { seq, at, records }];
            let again = self.recovery()?;
            if again.durable() != recovery.durable() {
                return Err("8: a checkpoint makes another state than what it covers".into());
            }
            recovery = again;
        }
        #[cfg(feature = "bugs")]
        if let Some(bug) = self.bug {
            recovery = recovery.with_bug(bug);
        }
        let (machine, effects) = recovery.finish(self.now);
        self.machine = machine;
        self.machine.check_invariants();
        (self.status, self.boxes) = ("quiet", 0);
        self.perform(effects);
        self.reference.away(true);
        self.settle()
    }
}

/// An effect in one line.
fn shown(effect: &Effect) -> String {
    match effect {
        Effect::Append(batch) => batch
            .records
            .iter()
            .map(|record| format!("{record:?}; "))
            .collect(),
        Effect::Send(_, frame) => frame.redacted(),
        Effect::Emit(event) => format!("{event:?}"),
        other => format!("{other:?}"),
    }
}

/// Plays a case.
pub(super) fn play(case: &Case, bug: Option<Bug>, log: bool) -> Result<Tally, (usize, String)> {
    let mut drive = Drive::new(case.how, bug, log).map_err(|what| (0, what))?;
    for (at, step) in case.steps.iter().enumerate() {
        drive.run(step).map_err(|what| (at, what))?;
    }
    drive.finish().map_err(|what| (case.steps.len(), what))?;
    Ok(drive.tally)
}
