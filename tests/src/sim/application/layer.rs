//! The layer of conversations: what the application accepts, binds, holds, and answers late.

use turnkeep_core::{
    ArrivalNo, Authorization, AutoBegin, BoxBody, Command, CommandError, ConversationId,
    ConversationKey, InputItem, RawJson, Rendering, Reply, Settings, SteerWhen, ToolCallId,
    ToolResult,
    command::{AcceptOptions, Binding, ToolKind},
    event::{Status, ToolCall},
    preflight::PreflightItem,
    transcript::box_type,
};

use super::{Act, Application, Asked, Talk, tool};

/// With more conversations than these no fork is made.
const MOST_TALKS: usize = 6;

/// How far a parcel is, as far as the application knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Posted {
    Planned,
    Asked,
    Confirmed(ArrivalNo, ArrivalNo),
    /// It was handed over without a key, and the application died before it was answered.
    Unsure,
}

/// Boxes that the application wants to be accepted.
#[derive(Debug)]
pub(super) struct Parcel {
    pub(super) talk: usize,
    key: Option<String>,
    boxes: Vec<BoxBody>,
    pub(super) posted: Posted,
    /// The conversation that it was handed to.
    of: Option<ConversationId>,
}

/// What arrived in a conversation, or perhaps.
#[derive(Debug)]
pub(in crate::sim) struct Arrived<'a> {
    pub(in crate::sim) conversation: ConversationId,
    /// What it says, in order.
    pub(in crate::sim) texts: Vec<&'a str>,
    /// Whether it was confirmed.
    pub(in crate::sim) certain: bool,
}

impl Application {
    pub(super) fn draw_settings(&mut self) -> Settings {
        let rng = &mut self.rng;
        let mut settings = Settings::new().cwd("/workspace");
        if !rng.one_in(3) {
            settings = settings.tool(tool("look"));
            let mut write = tool("write");
            if rng.one_in(3) {
                write = write.time_limit(std::time::Duration::from_secs(2));
            }
            settings = settings.tool(write);
        }
        if rng.one_in(2) {
            settings = settings.tool(tool("later").deferred());
            let route = tool("route").kind(ToolKind::Router);
            settings = settings.tool(if rng.one_in(2) {
                route.deferred()
            } else {
                route
            });
        }
        if rng.one_in(3) {
            settings = settings.tool(tool("tell").kind(ToolKind::Message));
        }
        if rng.one_in(2) {
            settings = settings.rendering(Rendering::Boxed);
        }
        if rng.one_in(3) {
            settings = settings.steer(SteerWhen::AtOnce);
        }
        if rng.one_in(6) {
            settings = settings.auto_begin(AutoBegin::Off);
        }
        if rng.one_in(4) {
            settings = settings.authorization(Authorization::Needed);
        }
        settings
    }

    pub(super) fn add_parcel(&mut self, number: u64) {
        let talk = self.rng.at(self.talks.len());
        let keyed = !self.rng.one_in(3);
        let count = self.rng.between(1, 3);
        let mut boxes = Vec::new();
        for part in 0..count {
            let text = format!("<p{number}.{part}> arrives");
            boxes.push(match self.rng.below(8) {
                0..=3 => BoxBody::user(text),
                4 | 5 => BoxBody::system(text),
                6 => BoxBody::new(box_type::TOOL_MESSAGE, text),
                _ => BoxBody::new("Weather", text),
            });
        }
        if self.rng.one_in(6) {
            let image = InputItem::image("data:,");
            boxes.push(BoxBody::attachment(box_type::USER_ATTACHMENT, &image));
        }
        self.parcels.push(Parcel {
            talk,
            key: keyed.then(|| format!("parcel-{number}")),
            boxes,
            posted: Posted::Planned,
            of: None,
        });
    }

    /// One that a script has accepted.
    pub(super) fn add_scripted_parcel(&mut self, talk: usize) -> usize {
        let number = self.parcels.len();
        let body = BoxBody::user(format!("<p{number}.0> arrives"));
        self.parcels.push(Parcel {
            talk,
            key: Some(format!("parcel-{number}")),
            boxes: vec![body],
            posted: Posted::Planned,
            of: None,
        });
        number
    }

    pub(super) fn parcels_die(&mut self) {
        for parcel in &mut self.parcels {
            if parcel.posted == Posted::Asked {
                parcel.posted = match parcel.key {
                    Some(_) => Posted::Planned,
                    None => Posted::Unsure,
                };
            }
        }
    }

    /// A conversation is there: what the layer has to do in it is done.
    pub(super) fn is_open(&mut self, at: usize) {
        if self.talks[at].stalled.is_some() {
            let span = self.span(1_000, 2_000_000);
            self.at(span, Act::GoOn(at));
        }
        if self.talks[at].held {
            let span = self.span(1_000, 2_000_000);
            self.at(span, Act::Release(at));
        }
        if self.talks[at].needs() {
            let span = self.span(1_000, 3_000_000);
            self.at(span, Act::Bind(at));
        }
        self.may_begin(at);
        if std::mem::take(&mut self.talks[at].preflight) {
            let span = self.span(0, 2_000);
            self.at(span, Act::Preflight(at));
        }
        let mut span = 0;
        for number in 0..self.parcels.len() {
            let parcel = &self.parcels[number];
            let again = parcel.key.is_some()
                && matches!(parcel.posted, Posted::Confirmed(..))
                && parcel.of == self.talks[at].id
                && !self.habits.steady;
            let planned = parcel.posted == Posted::Planned;
            if parcel.talk != at || !(planned || again && self.rng.one_in(3)) {
                continue;
            }
            span += self.span(1_000, 3_000_000);
            self.at(span, Act::Post(number));
        }
    }

    /// Where nothing begins by itself the application begins.
    pub(super) fn may_begin(&mut self, at: usize) {
        let by_hand = self.talks[at].settings.auto_begin == AutoBegin::Off;
        if by_hand && !std::mem::replace(&mut self.talks[at].begins, true) {
            let span = self.span(1_000, 1_000_000);
            self.at(span, Act::Begin(at));
        }
    }

    pub(super) fn is_now(&mut self, conversation: ConversationId, status: &Status) {
        let Some(at) = self.talk_of(conversation) else {
            self.early.insert(conversation, status.clone());
            return;
        };
        self.talks[at].stalled = match status {
            Status::Stalled { restartable, .. } => Some(*restartable),
            _ => None,
        };
        if self.talks[at].stalled.is_some() {
            let span = self.span(1_000, 2_000_000);
            self.at(span, Act::GoOn(at));
        }
    }

    /// Now and then something rare is done to a conversation when a turn of it has ended.
    pub(super) fn may_disturb(&mut self, at: usize) {
        let rare = self.habits.disturbs;
        if self.rarely(rare) {
            let acts = [
                Act::Hold(at),
                Act::Unbind(at),
                Act::Reset(at),
                Act::Change(at),
                Act::Begin(at),
            ];
            let act = self.rng.pick(&acts).clone();
            let span = self.span(0, 2_000_000);
            self.at(span, act);
        }
        let habits = self.habits;
        for (one_in, act) in [
            (habits.compacts, Act::Compact(at)),
            (habits.forks, Act::Fork(at)),
        ] {
            if one_in > 0 && self.others.one_in(one_in) {
                let span = self.others.between(0, 2_000_000);
                self.at(span, act);
            }
        }
    }

    /// A call is the application's: it is answered soon, or late, and perhaps something is said of it before.
    pub(super) fn take_call(&mut self, call: &ToolCall, of: super::CallOf) {
        self.calls.insert(call.id, of);
        let ignores = self.habits.ignores;
        if !self.rarely(ignores) {
            let mut span = self.answer_span();
            if !self.habits.steady && self.rng.one_in(3) {
                span += self.rng.between(100_000, 20_000_000);
            }
            self.at(span, Act::Respond(call.id));
        }
        if self.rarely(self.habits.messages) {
            let span = self.span(0, 5_000_000);
            self.at(span, Act::Message(call.id));
        }
    }

    pub(super) fn layer_command(&mut self, act: Act) -> Option<(Asked, Command)> {
        match act {
            Act::Post(number) => self.post(number),
            Act::Message(call) => {
                self.calls.get(&call)?;
                self.next_steer += 1;
                let text = format!("<t{}.{}> works on it", self.life, self.next_steer);
                let asked = Asked::Message(call, text.clone());
                Some((asked, Command::ToolMessage { call, text }))
            }
            Act::Again(call) => {
                let result = result_of(call, *self.answered.get(&call)?);
                Some((Asked::Again(call), Command::Respond { call, result }))
            }
            Act::GoOn(at) => self.go_on(at),
            Act::Bind(at) => {
                let conversation = self.talks[at].is_open()?;
                let binding = binding();
                let command = Command::Bind {
                    conversation,
                    binding,
                };
                Some((Asked::Bind(at), command))
            }
            Act::Unbind(at) => {
                let conversation = self.talks[at].is_open()?;
                Some((Asked::Unbind(at), Command::Unbind { conversation }))
            }
            Act::Hold(at) => {
                let conversation = self.talks[at].is_open()?;
                self.talks[at].held = true;
                let span = self.span(100_000, 5_000_000);
                self.at(span, Act::Release(at));
                let reason = "a person looks at it".to_owned();
                let command = Command::Hold {
                    conversation,
                    reason,
                };
                Some((Asked::Held, command))
            }
            Act::Release(at) => {
                let conversation = self.talks[at].is_open()?;
                Some((Asked::Release(at), Command::Release { conversation }))
            }
            Act::Begin(at) => {
                self.talks[at].begins = false;
                let conversation = self.talks[at].is_open()?;
                Some((Asked::Begin(at), Command::Begin { conversation }))
            }
            Act::Preflight(at) => self.preflight(at),
            Act::Reset(at) => {
                let conversation = self.talks[at].is_open()?;
                let command = match self.life % 2 {
                    0 => Command::Reset { conversation },
                    _ => Command::Materialise { conversation },
                };
                Some((Asked::Reset, command))
            }
            Act::Change(at) => self.change(at),
            Act::Compact(at) => {
                let conversation = self.talks[at].is_open()?;
                Some((Asked::Compact, Command::Compact { conversation }))
            }
            Act::Fork(at) => self.fork(at),
            _ => None,
        }
    }

    /// Makes a conversation of another one. Where it fails, its key is opened as one of its own.
    fn fork(&mut self, of: usize) -> Option<(Asked, Command)> {
        let conversation = self.talks[of].is_open()?;
        // A change under way may be in it or not.
        if self.talks[of].alternative.is_some() || self.talks.len() > MOST_TALKS {
            return None;
        }
        let at = self.talks.len();
        let talk = Talk::new(at, self.talks[of].settings.clone());
        let command = Command::Fork {
            conversation,
            key: ConversationKey::new(&talk.key).expect("a key"),
            settings: None,
        };
        self.talks.push(talk);
        let number = u32::try_from(self.notes.len()).unwrap_or(u32::MAX);
        self.add_note_to(at, number);
        Some((Asked::Fork(at), command))
    }

    fn post(&mut self, number: usize) -> Option<(Asked, Command)> {
        let talk = &self.talks[self.parcels[number].talk];
        let conversation = talk.is_open()?;
        let needs = talk.needs();
        let parcel = &mut self.parcels[number];
        match parcel.posted {
            Posted::Planned => {}
            Posted::Confirmed(..) if parcel.key.is_some() && parcel.of == Some(conversation) => {}
            Posted::Confirmed(..) | Posted::Asked | Posted::Unsure => return None,
        }
        let mut options = AcceptOptions::new();
        if let Some(key) = &parcel.key {
            options = options.key(key.clone());
        }
        if needs && self.rng.one_in(2) {
            options = options.binding(binding());
        }
        let command = Command::Accept {
            conversation,
            boxes: parcel.boxes.clone(),
            options: Box::new(options),
        };
        if parcel.posted == Posted::Planned {
            parcel.posted = Posted::Asked;
            parcel.of = Some(conversation);
        }
        Some((Asked::Post(number), command))
    }

    /// Leaves a stall: begins the round again where that may be, or goes on without it.
    fn go_on(&mut self, at: usize) -> Option<(Asked, Command)> {
        let talk = &self.talks[at];
        let conversation = talk.is_open()?;
        let restartable = talk.stalled?;
        let needs = talk.needs();
        if restartable && !self.habits.steady && self.rng.one_in(2) {
            let binding = needs.then(binding);
            let command = Command::Restart {
                conversation,
                binding,
            };
            return Some((Asked::Restart(at), command));
        }
        Some((Asked::Dismiss(at), Command::Dismiss { conversation }))
    }

    fn preflight(&mut self, at: usize) -> Option<(Asked, Command)> {
        let talk = &self.talks[at];
        let conversation = talk.is_open()?;
        let tools: Vec<String> = talk.settings.tools.iter().map(|t| t.name.clone()).collect();
        let system = BoxBody::system(format!("<f{at}> be kind"));
        let mut items = vec![PreflightItem::System(system)];
        if !tools.is_empty() {
            for number in 0..self.rng.below(3) {
                items.push(PreflightItem::Call {
                    tool: self.rng.pick(&tools).clone(),
                    arguments: RawJson::parse(&format!(r#"{{"key":"f{number}"}}"#))
                        .expect("an object"),
                    blocking: self.rng.one_in(2),
                });
            }
        }
        let command = Command::Preflight {
            conversation,
            items,
        };
        Some((Asked::Preflight, command))
    }

    fn change(&mut self, at: usize) -> Option<(Asked, Command)> {
        let conversation = self.talks[at].is_open()?;
        if self.talks[at].alternative.is_some() {
            return None;
        }
        let mut settings = self.talks[at].settings.clone();
        match self.rng.below(4) {
            0 => {
                let boxed = settings.rendering == Rendering::Boxed;
                settings.rendering = if boxed {
                    Rendering::Plain
                } else {
                    Rendering::Boxed
                };
            }
            1 => settings.steer = SteerWhen::AtOnce,
            _ => {
                self.next_steer += 1;
                let instructions = format!("be kind, {}.{}", self.life, self.next_steer);
                settings = settings.developer_instructions(instructions);
            }
        }
        self.talks[at].alternative = Some(settings.clone());
        let command = Command::Change {
            conversation,
            settings: Box::new(settings),
        };
        Some((Asked::Change(at), command))
    }

    pub(super) fn layer_answered(&mut self, asked: Asked, answer: &Result<Reply, CommandError>) {
        let over =
            |error: &CommandError| matches!(error, CommandError::Halted | CommandError::ClosedByUs);
        match asked {
            Asked::Post(number) => self.is_posted(number, answer),
            Asked::Message(call, text) => match answer {
                Ok(_) => {
                    if let Some(of) = self.calls.get(&call).or(self.answered.get(&call)) {
                        self.told.push((of.conversation, text, of.boxed));
                    }
                }
                Err(error) => assert!(
                    over(error)
                        || matches!(
                            error,
                            CommandError::CallAnswered { .. }
                                | CommandError::CallClosed { .. }
                                | CommandError::UnknownCall { .. }
                                | CommandError::MailboxFull { .. }
                        ),
                    "a tool's message is not taken: {error:?}"
                ),
            },
            Asked::Again(call) => {
                if let (Err(error), Some(of)) = (answer, self.answered.get(&call)) {
                    let gone = matches!(error, CommandError::UnknownCall { .. });
                    assert!(
                        over(error) || gone || !of.boxed,
                        "the same result again is refused: {error:?}"
                    );
                }
            }
            Asked::Restart(talk) => match answer {
                Ok(Reply::Accepted { turn, .. }) => self.began(*turn, talk),
                _ => self.at(500_000, Act::GoOn(talk)),
            },
            Asked::Dismiss(talk) => match answer {
                Ok(_) => {
                    if self.talks[talk].needs() {
                        let span = self.span(1_000, 1_000_000);
                        self.at(span, Act::Bind(talk));
                    }
                    self.may_begin(talk);
                }
                Err(_) => self.at(500_000, Act::GoOn(talk)),
            },
            Asked::Unbind(talk) => {
                let span = self.span(1_000, 5_000_000);
                self.at(span, Act::Bind(talk));
            }
            Asked::Bind(talk) => {
                if answer.is_ok() {
                    self.may_begin(talk);
                }
            }
            Asked::Release(talk) => {
                if answer.is_ok() {
                    self.talks[talk].held = false;
                    self.may_begin(talk);
                }
            }
            Asked::Begin(talk) => match answer {
                Ok(Reply::Begun { turn: Some(turn) }) => self.began(*turn, talk),
                Err(CommandError::Busy { .. } | CommandError::Unauthorized { .. }) => {
                    if self.talks[talk].needs() {
                        self.at(100_000, Act::Bind(talk));
                    }
                    if !std::mem::replace(&mut self.talks[talk].begins, true) {
                        let span = self.span(500_000, 2_000_000);
                        self.at(span, Act::Begin(talk));
                    }
                }
                Ok(_) | Err(_) => {}
            },
            Asked::Change(talk) => {
                let changed = self.talks[talk].alternative.take();
                if let (Ok(_), Some(settings)) = (answer, changed) {
                    self.talks[talk].settings = settings;
                }
            }
            Asked::Fork(talk) => match answer {
                Ok(_) => self.answered(Asked::Open(talk), answer),
                Err(_) => self.at(1_000, Act::Open(talk)),
            },
            Asked::Held | Asked::Preflight | Asked::Reset | Asked::Compact => {}
            other => unreachable!("{other:?} is not of this layer"),
        }
    }

    fn is_posted(&mut self, number: usize, answer: &Result<Reply, CommandError>) {
        let talk = self.parcels[number].talk;
        let parcel = &mut self.parcels[number];
        match answer {
            Ok(Reply::Arrived { first, last }) => {
                if let Posted::Confirmed(was, _) = parcel.posted {
                    assert_eq!(was, *first, "11: the same key is another arrival");
                }
                let count = parcel.boxes.len() as u64;
                assert_eq!(last.0 - first.0 + 1, count, "11: each box has a number");
                parcel.posted = Posted::Confirmed(*first, *last);
                self.may_begin(talk);
            }
            Err(_) if parcel.posted != Posted::Asked => {}
            Err(error) => {
                parcel.posted = Posted::Planned;
                match error {
                    CommandError::Halted | CommandError::ClosedByUs => {}
                    CommandError::Busy { .. }
                    | CommandError::MailboxFull { .. }
                    | CommandError::Unauthorized { .. }
                    | CommandError::UnknownConversation { .. } => {
                        if matches!(error, CommandError::Unauthorized { .. }) {
                            self.at(100_000, Act::Bind(talk));
                        }
                        let span = self.span(300_000, 2_000_000);
                        self.at(span, Act::Post(number));
                    }
                    other => panic!("11: an arrival is not taken: {other:?}"),
                }
            }
            Ok(other) => panic!("accept is answered {other:?}"),
        }
    }

    /// What was said to have arrived, in whatever way.
    pub(in crate::sim) fn arrived(&self) -> Vec<Arrived<'_>> {
        let mut out = Vec::new();
        for parcel in &self.parcels {
            let certain = matches!(parcel.posted, Posted::Confirmed(..));
            let Some(conversation) = parcel
                .of
                .filter(|_| certain || parcel.posted == Posted::Unsure)
            else {
                continue;
            };
            let texts = parcel.boxes.iter().map(|body| body.contents.as_str());
            out.push(Arrived {
                conversation,
                texts: texts.filter(|text| !text.is_empty()).collect(),
                certain,
            });
        }
        for (conversation, text, certain) in &self.told {
            out.push(Arrived {
                conversation: *conversation,
                texts: vec![text],
                certain: *certain,
            });
        }
        out
    }
}

impl Talk {
    pub(super) fn needs(&self) -> bool {
        self.settings.authorization == Some(Authorization::Needed)
    }

    /// Its number, while it is open.
    pub(super) fn is_open(&self) -> Option<ConversationId> {
        self.id.filter(|_| self.open)
    }
}

pub(super) fn binding() -> Binding {
    Binding::new("somebody", "as a user", "with care")
}

/// What a tool gives: for one call always the same.
pub(super) fn result_of(call: ToolCallId, of: super::CallOf) -> ToolResult {
    let text = format!("<r{}.{}> is the result", of.conversation, call.sequence);
    if call.sequence % 5 == 0 {
        ToolResult::failed(text)
    } else {
        ToolResult::ok(text)
    }
}
