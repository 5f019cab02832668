//! A machine that is stepped by a case: an application, a journal, a clock and a server that knows what it said, none of which keeps to
//! any rule.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use serde_json::Value;
use turnkeep_core::{
    Authorization, AutoBegin, BoxBody, BoxId, CloseReason, Closed, Command, CommandId, Config,
    ConversationId, ConversationKey, Durable, Effect, Effects, Epoch, Event, FrameSeq, Input,
    InputItem, JournalSeq, Machine, Peer, QuestionId, RawJson, Record, Rendering, SendOptions,
    Settings, SteerWhen, Timestamp, Tool, ToolCallId, ToolResult, TurnNo, TurnUpdate,
    attachment::Endpoint,
    cleanup::Owner,
    codec::journal::Entry,
    command::{
        AcceptOptions, Answer, Binding, Children, Metadata, Questions, RequestEffect, ToolContent,
        ToolKind,
    },
    config::{
        Quiet, Reconnect, RecoveredRounds, RecoveredTurns, Reroute, Resend, UnresolvedThread,
    },
    preflight::PreflightItem,
    prompt::PromptChange,
    transcript::box_type,
};

use super::{
    Cuts,
    server::{ODD, Server, TOOLS},
    steps::{Do, Step},
};

/// When a case begins.
pub(super) const START: Timestamp = Timestamp::from_millis(1_700_000_000_000);

/// The seed of the machine.
pub(super) const SEED: u64 = 7;

/// How many steps of a case are played: what comes later tells little more, and takes long.
const STEPS: usize = 512;

/// How what the server said is read.
#[derive(Debug)]
pub(super) enum Reads<'a> {
    /// Whole.
    Whole,
    /// In pieces.
    Cut(Cuts<'a>),
}

/// A machine, and all around it.
#[derive(Debug)]
pub(super) struct Player<'a> {
    pub(super) machine: Machine,
    /// What the records so far make.
    pub(super) durable: Durable,
    /// What the journal holds.
    pub(super) journal: Vec<Entry>,
    /// What was told.
    pub(super) events: Vec<Event>,
    /// What was sent.
    pub(super) sent: Vec<Vec<u8>>,
    pub(super) due: Option<(Timestamp, String)>,
    reads: Reads<'a>,
    /// The grouping of calls into stages may not differ: what makes a stage ends a read.
    stages_alone: bool,
    server: Server,
    wire: Vec<u8>,
    now: Timestamp,
    epoch: Epoch,
    commands: Vec<Command>,
    calls: Vec<ToolCallId>,
    questions: Vec<QuestionId>,
    /// How often a command was asked and not answered.
    unanswered: BTreeMap<CommandId, u32>,
    ended: BTreeSet<TurnNo>,
    /// The batches in which messages were written down as sent.
    dispatched: BTreeMap<String, JournalSeq>,
    through: JournalSeq,
    /// The numbers of the frames that left.
    left: BTreeSet<FrameSeq>,
    unacked: Vec<JournalSeq>,
    halted: bool,
    taken: usize,
}

/// Whether a frame may make a stage: a call or an answer, or one that a plain look cannot tell from these.
fn may_stage(frame: &str) -> bool {
    frame.contains("tool/call") || frame.contains('\\') || !frame.contains(r#""method":"#)
}

/// A configuration out of three bytes.
pub(super) fn config_of(bytes: [u8; 3]) -> Config {
    let [first, second, third] = bytes;
    let is = |byte: u8, bit: u32| byte >> bit & 1 == 1;
    let mut config = Config::default();
    if is(first, 0) {
        config.reconnect = Reconnect::Off;
    }
    config.merge_deltas = !is(first, 1);
    config.remember_commands = !is(first, 2);
    if is(first, 3) {
        config.resend = Resend::Never;
    }
    if is(first, 4) {
        config.recovered_turns = RecoveredTurns::Interrupt;
    }
    if is(first, 5) {
        config.recovered_rounds = RecoveredRounds::Run;
    }
    if !is(first, 6) {
        config.authorization = Authorization::None;
    }
    if is(first, 7) {
        config.unresolved_thread = UnresolvedThread::Ask;
    }
    if is(second, 0) {
        config.quiet = Quiet::Interrupt;
    }
    if is(second, 1) {
        config.reroute = Reroute::Fail;
    }
    if is(second, 2) {
        config.any_server_version = true;
    }
    if is(second, 3) {
        config.experimental_api = false;
    }
    if is(second, 4) {
        config.limits.early_frames = 3;
        config.limits.mailbox = 3;
        config.limits.commands = 4;
    }
    if is(second, 5) {
        config.limits.frame = 600;
        config.limits.noise_lines = 4;
        config.limits.noise_copy = 5;
    }
    if is(second, 6) {
        config.limits.overload_tries = 1;
        config.limits.reconnect_tries = 1;
    }
    if is(second, 7) {
        config.limits.request = Duration::ZERO;
    }
    config.limits.handshake += Duration::from_micros(u64::from(third));
    config
}

impl<'a> Player<'a> {
    pub(super) fn new(config: Config, reads: Reads<'a>, stages_alone: bool) -> Self {
        let (machine, effects) = Machine::new(config, SEED, START).expect("a good configuration");
        let mut player = Self {
            machine,
            durable: Durable::default(),
            journal: Vec::new(),
            events: Vec::new(),
            sent: Vec::new(),
            due: None,
            reads,
            stages_alone,
            server: Server::default(),
            wire: Vec::new(),
            now: START,
            epoch: Epoch(1),
            commands: Vec::new(),
            calls: Vec::new(),
            questions: Vec::new(),
            unanswered: BTreeMap::new(),
            ended: BTreeSet::new(),
            dispatched: BTreeMap::new(),
            through: JournalSeq(0),
            left: BTreeSet::new(),
            unacked: Vec::new(),
            halted: false,
            taken: 0,
        };
        player.perform(effects);
        player
    }

    /// Plays the steps of a case.
    pub(super) fn play<'s>(&mut self, steps: impl Iterator<Item = Step<'s>>) {
        for step in steps.take(STEPS) {
            self.one(step);
        }
        self.read();
    }

    /// How many bytes came from the server and the application.
    pub(super) fn taken(&self) -> usize {
        self.taken
    }

    /// Takes one input.
    pub(super) fn input(&mut self, input: Input) {
        let before = self.machine.counters();
        match &input {
            Input::Received(_, bytes) => self.taken += bytes.len(),
            Input::Appended { through } => self.through = self.through.max(*through),
            _ => self.taken += 64,
        }
        let effects = self.machine.step(self.now, input);
        self.machine.check_invariants();
        assert!(self.machine.counters().frames >= before.frames);
        self.perform(effects);
        assert_eq!(
            self.machine.durable(),
            &self.durable,
            "the records make the state"
        );
    }

    fn perform(&mut self, effects: Effects) {
        self.due = effects
            .deadline
            .map(|due| (due.at, format!("{:?}", due.timer)));
        for effect in effects.list {
            assert!(!self.halted, "after the journal failed: {effect:?}");
            match effect {
                Effect::Append(batch) => {
                    for record in &batch.records {
                        let applied = self.durable.apply(record);
                        assert_eq!(applied, Ok(()), "a record does not fit: {record:?}");
                        if let Record::Prompt {
                            message,
                            change: PromptChange::Dispatched,
                        } = record
                        {
                            self.dispatched
                                .insert(message.as_str().to_owned(), batch.through);
                        }
                    }
                    self.unacked.push(batch.through);
                    self.journal.push(Entry {
                        seq: batch.through,
                        at: batch.at,
                        records: batch.records,
                    });
                }
                Effect::Send(_, frame) => {
                    assert!(self.left.insert(frame.seq), "{frame:?} leaves twice");
                    let (last, line) = frame.bytes.split_last().expect("a frame is a line");
                    assert_eq!(*last, b'\n');
                    assert!(!line.contains(&b'\n'), "a frame is one line");
                    // An answer under an id such as 1E400 is JSON, and nothing that a plain reader takes.
                    if let Ok(frame) = serde_json::from_slice::<Value>(line) {
                        if let Some(message) = frame["params"]["clientUserMessageId"].as_str() {
                            let behind = self.dispatched.get(message);
                            assert!(
                                behind.is_some_and(|seq| *seq <= self.through),
                                "it left before its record is durable: {frame}"
                            );
                        }
                        self.server.hears(&frame);
                    }
                    self.sent.push(frame.bytes);
                }
                Effect::Emit(event) => self.hear(event),
                Effect::Open(epoch, _) => {
                    self.epoch = epoch;
                    self.server.is_new();
                }
                Effect::Close(..) => {}
            }
        }
    }

    fn hear(&mut self, event: Event) {
        match &event {
            Event::Answer { id, .. } => {
                let waits = self.unanswered.entry(*id).or_default();
                let left = waits.checked_sub(1);
                *waits = left.unwrap_or_else(|| panic!("{id} is answered twice"));
            }
            Event::Turn(turn) => {
                let corrects = matches!(turn.update, TurnUpdate::Corrected(_));
                let over = self.ended.contains(&turn.turn);
                assert!(corrects || !over, "after the end: {turn:?}");
                match &turn.update {
                    TurnUpdate::ToolCall(call) => self.calls.push(call.id),
                    TurnUpdate::Question(question) => self.questions.push(question.id),
                    TurnUpdate::Ended(_) => {
                        self.ended.insert(turn.turn);
                    }
                    _ => {}
                }
            }
            Event::Halted => self.halted = true,
            Event::Delta(delta) => {
                assert!(
                    !self.ended.contains(&delta.turn),
                    "after the end: {delta:?}"
                );
            }
            Event::Conversation(_) | Event::Connection(_) => {}
        }
        self.events.push(event);
    }

    /// What the server said is read.
    pub(super) fn read(&mut self) {
        let wire = std::mem::take(&mut self.wire);
        if wire.is_empty() {
            return;
        }
        let pieces: Vec<&[u8]> = match &self.reads {
            Reads::Whole => vec![&wire],
            Reads::Cut(cuts) => cuts.of(&wire),
        };
        for piece in pieces {
            self.input(Input::Received(self.epoch, piece.to_vec()));
        }
    }

    fn ack(&mut self) {
        self.read();
        if let Some(through) = self.unacked.last().copied() {
            self.unacked.clear();
            self.input(Input::Appended { through });
        }
    }

    fn command(&mut self, command: Command) {
        self.read();
        self.commands.push(command.clone());
        self.ask(CommandId(self.commands.len() as u64), command);
    }

    fn ask(&mut self, id: CommandId, command: Command) {
        *self.unanswered.entry(id).or_default() += 1;
        self.input(Input::Command { id, command });
    }

    fn say(&mut self, line: &str) {
        self.wire.extend(line.as_bytes());
        self.wire.push(b'\n');
    }

    fn say_raw(&mut self, bytes: &[u8]) {
        let alone = self.stages_alone && may_stage(&String::from_utf8_lossy(bytes));
        self.wire.extend(bytes);
        if alone {
            self.wire.push(b'\n');
            self.read();
        }
    }

    /// Says what may make a stage.
    fn say_alone(&mut self, line: &str) {
        self.say(line);
        if self.stages_alone {
            self.read();
        }
    }

    fn one(&mut self, step: Step<'_>) {
        let [a, b, c] = step.by;
        match step.what {
            Do::Opened => {
                let peer = match b % 4 {
                    0 => Peer::default(),
                    1 => Peer::child(7, Some(9)),
                    2 => Peer::socket(Endpoint::Stream),
                    _ => Peer::socket(Endpoint::Tcp {
                        host: "h".into(),
                        port: 1,
                    }),
                };
                let epoch = self.some_epoch(a);
                self.read();
                self.input(Input::Opened(epoch, peer));
            }
            Do::Ack => self.ack(),
            // Where reads are cut in another way there are other batches.
            Do::AckPart if self.stages_alone => self.ack(),
            Do::AckPart => {
                self.read();
                let at = a % (self.unacked.len() + 1);
                let through = match self.unacked.get(at) {
                    Some(through) => *through,
                    None => JournalSeq(b as u64 * 0x0101_0101_0101_0101),
                };
                self.unacked.retain(|seq| *seq > through);
                self.input(Input::Appended { through });
            }
            Do::AppendFailed => {
                // Nothing is done after it: rarely.
                if (a, b % 8) == (0x77, 3) {
                    self.read();
                    self.input(Input::AppendFailed);
                }
            }
            Do::Tick => {
                self.read();
                if let Some((at, _)) = &self.due {
                    self.now = self.now.max(*at);
                }
                self.input(Input::Tick);
            }
            Do::Pass => {
                self.read();
                let millis = (a as u64) << (b % 12);
                self.now = Timestamp(self.now.0 + millis * 1_000);
                self.input(Input::Tick);
            }
            Do::Closed => {
                self.read();
                let reason = match b % 6 {
                    0 => CloseReason::Eof,
                    1 => CloseReason::Lost("reset".into()),
                    2 => CloseReason::Exited {
                        code: None,
                        signal: Some(9),
                    },
                    3 => CloseReason::OpenFailed("refused".into()),
                    4 => CloseReason::NotFound(vec!["codex".into()]),
                    _ => CloseReason::ByUs,
                };
                let epoch = self.some_epoch(a);
                let closed = Closed::new(reason, "the end".into());
                self.input(Input::Closed(epoch, Box::new(closed)));
            }
            Do::SendFailed => {
                self.read();
                let last = self.left.last().map_or(0, |last| last.0);
                let frame = FrameSeq(last.saturating_sub(a as u64 % 4));
                let epoch = self.some_epoch(b);
                self.input(Input::SendFailed(epoch, frame));
            }
            Do::QueueFull => {
                self.read();
                self.input(Input::QueueFull(conversation(a)));
            }
            Do::Answer => {
                if let Some(line) = self.server.answer(a, b, c) {
                    self.say_alone(&line);
                }
            }
            Do::Serve => {
                for _ in 0..8 {
                    self.ack();
                    let Some(line) = self.server.answer(0, 255, c) else {
                        break;
                    };
                    self.say(&line);
                }
                self.ack();
            }
            Do::Notify => {
                let line = self.server.notification(a, b, c);
                self.say(&line);
            }
            Do::Delta => {
                let line = self.server.delta(a, b, c);
                self.say(&line);
            }
            Do::Call => {
                let line = self.server.call(a, b, c);
                self.say_alone(&line);
            }
            Do::Ask => {
                let line = self.server.ask(a, b, c);
                self.say_alone(&line);
            }
            Do::Recorded => {
                let line = self.server.recorded(a, b, c);
                self.say_raw(format!("{line}\n").as_bytes());
            }
            Do::Raw => {
                self.say_raw(step.raw);
                if c % 2 == 0 {
                    self.wire.push(b'\n');
                }
            }
            Do::Read => self.read(),
            Do::Again => {
                self.read();
                if let Some(at) = self.commands.len().checked_sub(1 + a % 8) {
                    // The same, or another one under its number.
                    let other = if b % 4 == 0 { c % (at + 1) } else { at };
                    let (id, command) = (CommandId(at as u64 + 1), self.commands[other].clone());
                    self.ask(id, command);
                }
            }
            _ => {
                if let Some(command) = self.command_of(step) {
                    self.command(command);
                }
            }
        }
    }

    fn some_epoch(&self, by: usize) -> Epoch {
        match by % 16 {
            14 => Epoch(self.epoch.0.saturating_sub(1)),
            15 => Epoch(self.epoch.0.saturating_add(1)),
            _ => self.epoch,
        }
    }

    fn turn(&self, by: usize) -> TurnNo {
        // The last one most often, and one that is not there.
        let last = self.machine.durable().last_turn().0;
        match by {
            255 => TurnNo(u32::MAX),
            by => TurnNo((last + 1).saturating_sub(by as u32 % 8)),
        }
    }

    fn command_of(&self, step: Step<'_>) -> Option<Command> {
        let [a, b, c] = step.by;
        Some(match step.what {
            Do::Open => Command::Open {
                key: ConversationKey::new(["a", "b", "c", "d"][a % 4]).expect("a key"),
                settings: settings(b, c).into(),
            },
            Do::Send => Command::Send {
                conversation: conversation(a),
                input: input(b),
                options: options(c).into(),
            },
            Do::Steer => Command::Steer {
                turn: self.turn(a),
                input: input(b),
            },
            Do::Interrupt => Command::Interrupt { turn: self.turn(a) },
            Do::Abandon => Command::Abandon { turn: self.turn(a) },
            Do::Respond => Command::Respond {
                call: self.call(a)?,
                result: result(b),
            },
            Do::Reply => Command::Answer {
                question: match self.questions.len() {
                    0 => QuestionId(a as u64),
                    asked => self.questions[asked - 1 - a % asked],
                },
                answer: answer(b),
            },
            Do::Acknowledge => Command::Acknowledge { turn: self.turn(a) },
            Do::Close => Command::Close {
                conversation: conversation(a),
            },
            Do::Request => Command::Request {
                method: ["model/list", "x/change", "", "thread/start", "é\n\"\\"][a % 5].into(),
                params: some_json(b),
                effect: match c % 2 {
                    0 => RequestEffect::Reads,
                    _ => RequestEffect::Changes,
                },
            },
            Do::Accept => {
                let mut options = AcceptOptions::new();
                if c & 1 == 1 {
                    options = options.key(["k", "l", ""][c / 4 % 3]);
                }
                if c & 2 == 2 {
                    options = options.binding(binding(c));
                }
                Command::Accept {
                    conversation: conversation(a),
                    boxes: (0..b / 64 + 1).map(|n| brought(b + n)).collect(),
                    options: options.into(),
                }
            }
            Do::Manage => manage(conversation(a), b, c),
            Do::Preflight => {
                let call = |n: usize| PreflightItem::Call {
                    tool: TOOLS[(b + n) % TOOLS.len()].into(),
                    arguments: some_json(c + n),
                    blocking: n % 2 == 0,
                };
                let mut items = vec![PreflightItem::System(brought(c))];
                items.extend((0..b % 3).map(call));
                Command::Preflight {
                    conversation: conversation(a),
                    items,
                }
            }
            Do::ToolMessage => Command::ToolMessage {
                call: self.call(a)?,
                text: text(b),
            },
            Do::Change => Command::Change {
                conversation: conversation(a),
                settings: settings(b, c).into(),
            },
            Do::CleanUp => {
                let owner = match b % 4 {
                    0 | 1 => Owner::Conversation(conversation(a)),
                    2 => Owner::Workspace(["w", ""][c % 2].into()),
                    _ => Owner::Client,
                };
                match c / 2 % 3 {
                    0 => Command::Detach { owner },
                    1 => Command::Archive { owner },
                    _ => Command::Delete { owner },
                }
            }
            // Nothing is done after it either.
            Do::Shutdown if a % 8 == 7 => Command::Shutdown,
            _ => return None,
        })
    }

    fn call(&self, by: usize) -> Option<ToolCallId> {
        let last = self.calls.len().checked_sub(1)?;
        let call = self.calls[last - by % (last + 1)];
        Some(match by {
            255 => ToolCallId {
                sequence: call.sequence + 1,
                ..call
            },
            _ => call,
        })
    }
}

// What applications bring: texts, settings, answers.
fn conversation(by: usize) -> ConversationId {
    ConversationId(match by {
        255 => u32::MAX,
        by => by as u32 % 5 + 1,
    })
}

fn text(by: usize) -> String {
    ["hello", "", "é中😀\n[Box 1 | x]", "\u{0}\"\\"][by % 4].into()
}

fn input(by: usize) -> Vec<InputItem> {
    match by % 8 {
        5 => Vec::new(),
        6 => vec![InputItem::image("https://example.org/x.png"), "b".into()],
        7 => vec![InputItem::text(&text(by / 8))],
        _ => vec!["go".into()],
    }
}

fn some_json(by: usize) -> RawJson {
    RawJson::parse(ODD[by % ODD.len()]).expect("they are JSON")
}

fn options(by: usize) -> SendOptions {
    let mut options = SendOptions::new();
    if by & 1 == 1 {
        options = options.deadline(Duration::from_millis(by as u64 * 100));
    }
    if by & 2 == 2 {
        options = options.output_schema(some_json(by / 16));
    }
    if by & 4 == 4 {
        options = options.key(["k", "l", "", " "][by / 16 % 4]);
    }
    if by & 8 == 8 {
        options = options.binding(binding(by / 16));
    }
    options
}

fn binding(by: usize) -> Binding {
    Binding::new(["ann", "bob", ""][by % 3], "p", "q")
}

fn settings(by: usize, with: usize) -> Settings {
    let object = || RawJson::parse(r#"{"type":"object"}"#).expect("JSON");
    let mut settings = Settings::new()
        .tool(Tool::function("look", "", object()))
        .tool(Tool::function("hasty", "", object()).time_limit(Duration::from_secs(1)))
        .tool(Tool::function("fetch", "", object()).deferred())
        .tool(Tool::function("route", "", object()).kind(ToolKind::Router))
        .tool(Tool::function("say", "", object()).kind(ToolKind::Message))
        .rendering([Rendering::Plain, Rendering::Boxed][by & 1]);
    if by & 2 == 2 {
        settings = settings.steer(SteerWhen::AtOnce);
    }
    if by & 4 == 4 {
        settings = settings.questions(Questions::Ask);
    }
    if by & 8 == 8 {
        settings = settings.auto_begin(AutoBegin::Off);
    }
    if by & 16 == 16 {
        settings = settings.authorization(Authorization::Needed);
    }
    if by & 32 == 32 {
        settings = settings.children(Children::Tell);
    }
    if by & 64 == 64 {
        settings = settings.ephemeral(true);
    }
    if by & 128 == 128 {
        settings = settings.workspace("w");
    }
    match with % 8 {
        1 => settings.model("m"),
        2 => settings.model("n").effort("high"),
        3 => settings.personality("calm"),
        4 => settings.base_instructions(text(with / 8)),
        5 => settings.config(some_json(with / 8)),
        6 => settings.tool(Tool::function("look", "twice", object())),
        7 => settings.tool(Tool::function("odd", "", some_json(with / 8))),
        _ => settings,
    }
}

fn manage(conversation: ConversationId, by: usize, with: usize) -> Command {
    match by % 12 {
        0 => Command::Begin { conversation },
        1 => Command::Restart {
            conversation,
            binding: (with % 2 == 1).then(|| binding(with)),
        },
        2 => Command::Dismiss { conversation },
        3 => Command::Hold {
            conversation,
            reason: text(with),
        },
        4 => Command::Release { conversation },
        5 => Command::Bind {
            conversation,
            binding: binding(with),
        },
        6 => Command::Unbind { conversation },
        7 => Command::Reset { conversation },
        9 => Command::Materialise { conversation },
        10 => Command::Compact { conversation },
        11 => Command::Fork {
            conversation,
            key: ConversationKey::new(["fork", "other"][with % 2]).expect("it is a key"),
            settings: None,
        },
        _ => Command::Read {
            conversation,
            from: BoxId(match with {
                255 => u64::MAX,
                with => with as u64,
            }),
            limit: with as u32 % 16,
        },
    }
}

fn brought(by: usize) -> BoxBody {
    match by % 8 {
        0 | 1 => BoxBody::user(text(by / 8)),
        2 => BoxBody::system(text(by / 8)),
        3 => BoxBody::new("Weather Report", text(by / 8)).hidden("app/x", text(by / 16)),
        4 => BoxBody::new(box_type::TOOL_MESSAGE, "progress"),
        5 => BoxBody::attachment(box_type::USER_ATTACHMENT, &InputItem::image("https://e/x")),
        6 => BoxBody::new(box_type::USER_ATTACHMENT, "")
            .hidden("turnkeep.input/image", ODD[by / 8 % 16]),
        _ => BoxBody::new(["", box_type::AGENT_RESPONSE, " x"][by / 8 % 3], "never"),
    }
}

fn result(by: usize) -> ToolResult {
    match by % 4 {
        0 => ToolResult::ok(text(by / 4)),
        1 => ToolResult::failed(text(by / 4)),
        2 => ToolResult::ok("v").with(ToolContent::Image("https://e/x".into())),
        _ => ToolResult::ok("v").metadata(Metadata {
            metadata_type: text(by / 4),
            contents: "c".into(),
        }),
    }
}

fn answer(by: usize) -> Answer {
    match by % 8 {
        0 => Answer::Accept,
        1 => Answer::AcceptForSession,
        2 => Answer::Decline,
        3 => Answer::Cancel,
        4 => Answer::Decision(some_json(by / 8)),
        5 => Answer::Permissions(some_json(by / 8)),
        6 => Answer::Input(vec![("q".into(), vec![text(by / 8)])]),
        _ => Answer::Form(some_json(by / 8)),
    }
}
