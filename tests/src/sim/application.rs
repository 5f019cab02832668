//! An application: what it wants, what it remembers over its own crash, and how it behaves.
//!
//! Durably it remembers what it wants to say, what it was confirmed, and which ends it has taken. All else dies with it.

mod acts;
mod hears;
mod layer;

use std::collections::{BTreeMap, BTreeSet};

use turnkeep_core::{
    CommandId, ConversationId, MessageId, Outcome, QuestionId, RawJson, Settings, Tool, ToolCallId,
    TurnNo,
    cleanup::Action,
    command::{ApprovalPolicy, Questions},
    event::{Question, Status},
};

pub(super) use self::layer::Arrived;
use self::layer::{Parcel, result_of};
use super::{
    companion::{Do, Script},
    plan::Plan,
    rng::Rng,
};

/// A conversation that the application holds.
#[derive(Debug)]
pub(super) struct Talk {
    pub(super) key: String,
    pub(super) settings: Settings,
    /// Its number, once it was confirmed.
    pub(super) id: Option<ConversationId>,
    /// Whether this life has opened it.
    open: bool,
    closing: bool,
    /// Whether its last round failed, and whether it may be begun again.
    stalled: Option<bool>,
    /// Whether it is held, or was to be.
    held: bool,
    /// Whether the application is about to begin a round of it.
    begins: bool,
    /// Whether it is to begin with a preflight.
    preflight: bool,
    /// Settings that it has if a change was recorded before the application died.
    alternative: Option<Settings>,
}

/// Where a call comes from.
#[derive(Clone, Copy, Debug)]
pub(super) struct CallOf {
    conversation: ConversationId,
    /// None for one of a preflight.
    turn: Option<TurnNo>,
    /// Whether it stands in the transcript.
    boxed: bool,
}

/// How far a message is, as far as the application knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Said {
    /// It is to be sent.
    Planned,
    /// It was sent, and no answer came yet.
    Asked,
    /// It was confirmed.
    Confirmed(TurnNo),
    /// It was sent without a key, and the application died before it was answered: nobody knows.
    Unsure,
}

/// A message that the application wants to send.
#[derive(Debug)]
pub(super) struct Note {
    pub(super) talk: usize,
    /// Its own key: it may then say it again after a crash.
    pub(super) key: Option<String>,
    /// What it says; no two say the same.
    pub(super) text: String,
    pub(super) deadline: Option<u64>,
    pub(super) schema: bool,
    pub(super) said: Said,
}

/// An end that was told.
#[derive(Debug)]
pub(super) struct Taken {
    pub(super) outcome: Outcome,
    /// The acknowledgement was confirmed.
    pub(super) acknowledged: bool,
}

/// What a command was for.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Asked {
    Open(usize),
    Say(usize),
    Respond(ToolCallId),
    Answer(QuestionId),
    Acknowledge(TurnNo),
    Steer(TurnNo, String),
    Interrupt,
    Abandon(TurnNo),
    Close(usize),
    CleanUp,
    Raw,
    Shutdown,
    Post(usize),
    Message(ToolCallId, String),
    Again(ToolCallId),
    Restart(usize),
    Dismiss(usize),
    Bind(usize),
    Unbind(usize),
    Held,
    Release(usize),
    Begin(usize),
    Preflight,
    Reset,
    Change(usize),
    Compact,
    Fork(usize),
}

/// What the application does at its time.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Act {
    Open(usize),
    Say(usize),
    Respond(ToolCallId),
    Answer(QuestionId),
    Acknowledge(TurnNo),
    Steer(TurnNo),
    Interrupt(TurnNo),
    Abandon(TurnNo),
    Close(usize),
    CleanUp(usize, Action),
    Raw,
    Shutdown,
    /// It hands boxes over.
    Post(usize),
    /// It says something of a call.
    Message(ToolCallId),
    /// It gives the same result again.
    Again(ToolCallId),
    /// It leaves a stall.
    GoOn(usize),
    Bind(usize),
    Unbind(usize),
    Hold(usize),
    Release(usize),
    Begin(usize),
    Preflight(usize),
    Reset(usize),
    Change(usize),
    Compact(usize),
    Fork(usize),
}

/// How the application treats what it is asked, and how often it does what is rare.
#[derive(Clone, Copy, Debug)]
pub(super) struct Habits {
    /// One turn in so many is steered, interrupted, abandoned; none for 0.
    pub(super) steers: u64,
    pub(super) interrupts: u64,
    pub(super) abandons: u64,
    /// One call or question in so many is not answered before the world heals.
    pub(super) ignores: u64,
    /// One conversation in so many is closed when a turn of it has ended.
    pub(super) closes: u64,
    /// One ended turn in so many is followed by a clean-up of some conversation.
    pub(super) cleanups: u64,
    /// One turn in so many is followed by a raw request.
    pub(super) raw: u64,
    /// One end in so many is acknowledged late.
    pub(super) late: u64,
    /// One message in so many has a deadline, and one a schema.
    pub(super) deadlines: u64,
    pub(super) schemas: u64,
    /// One turn in so many is followed by an orderly end of the client.
    pub(super) shutdowns: u64,
    /// One call in so many is said something of before its result.
    pub(super) messages: u64,
    /// One ended turn in so many is followed by something rare: a hold, a reset, a change.
    pub(super) disturbs: u64,
    /// One ended turn in so many is followed by a compaction, and one by a fork.
    pub(super) compacts: u64,
    pub(super) forks: u64,
    /// Nothing is left to chance.
    pub(super) steady: bool,
}

/// The application.
#[derive(Debug)]
pub(super) struct Application {
    rng: Rng,
    others: Rng,
    pub(super) habits: Habits,
    pub(super) talks: Vec<Talk>,
    pub(super) notes: Vec<Note>,
    parcels: Vec<Parcel>,
    /// Other things that were said to have arrived, or perhaps not.
    told: Vec<(ConversationId, String, bool)>,
    /// Calls whose results were confirmed, in any life.
    answered: BTreeMap<ToolCallId, CallOf>,
    pub(super) taken: BTreeMap<TurnNo, Taken>,
    /// Turns that were confirmed or told to begin.
    pub(super) known: BTreeMap<TurnNo, Option<usize>>,
    /// Turns that are not ours: nothing of them is durable, and they die with a life.
    foreign: BTreeSet<TurnNo>,
    /// Turns of conversations that were closed: nothing of them is told any more.
    let_go: BTreeSet<TurnNo>,
    /// Steers that were said to be taken and of which nothing else was told in this life, with their turn and text.
    steered: BTreeMap<MessageId, (TurnNo, String)>,
    next_command: u64,
    next_steer: u64,
    now: u64,
    order: u64,
    life: u32,
    healed: bool,
    shut: bool,
    asked: BTreeMap<CommandId, Asked>,
    due: BTreeSet<(u64, u64, Act)>,
    calls: BTreeMap<ToolCallId, CallOf>,
    /// What conversations were said to do before they were taken.
    early: BTreeMap<ConversationId, Status>,
    questions: BTreeMap<QuestionId, (TurnNo, Question)>,
    /// What a script wants done in the turn of a note, and after how long.
    acts: Vec<(usize, u64, Do)>,
    /// How long it takes to answer, where nothing is left to chance.
    answers_after: u64,
    /// Turns of this life that run.
    running: BTreeMap<TurnNo, ConversationId>,
    /// All that were ever told to begin.
    turns: BTreeMap<TurnNo, ConversationId>,
}

impl Talk {
    fn new(number: usize, settings: Settings) -> Self {
        Self {
            key: format!("talk-{number}"),
            settings,
            id: None,
            open: false,
            closing: false,
            stalled: None,
            held: false,
            begins: false,
            preflight: false,
            alternative: None,
        }
    }
}

fn tool(name: &str) -> Tool {
    let schema = RawJson::parse(r#"{"type":"object"}"#).expect("an object");
    Tool::function(name, "", schema)
}

impl Application {
    pub(super) fn new(seed: u64, plan: &Plan) -> Self {
        let mut rng = Rng::new(seed, 6);
        let mut rare = |odds: &[u64]| *rng.pick(odds);
        let mut habits = Habits {
            steers: rare(&[0, 0, 2, 4]),
            interrupts: rare(&[0, 0, 4, 8]),
            abandons: rare(&[0, 0, 0, 8]),
            ignores: rare(&[0, 4, 10]),
            closes: rare(&[0, 0, 0, 5]),
            cleanups: rare(&[0, 0, 0, 5]),
            raw: rare(&[0, 0, 3]),
            late: rare(&[0, 3]),
            deadlines: rare(&[0, 0, 6]),
            schemas: rare(&[0, 0, 8]),
            shutdowns: rare(&[0, 0, 0, 8]),
            messages: rare(&[0, 2, 4]),
            disturbs: rare(&[0, 0, 3, 6]),
            compacts: 0,
            forks: 0,
            steady: false,
        };
        // Of a sequence of their own, so that what came before them stays what a seed makes.
        let mut others = Rng::new(seed, 9);
        habits.compacts = *others.pick(&[0, 0, 2, 6]);
        habits.forks = *others.pick(&[0, 0, 0, 3]);
        let mut app = Self {
            habits,
            talks: Vec::new(),
            notes: Vec::new(),
            parcels: Vec::new(),
            told: Vec::new(),
            answered: BTreeMap::new(),
            taken: BTreeMap::new(),
            known: BTreeMap::new(),
            foreign: BTreeSet::new(),
            let_go: BTreeSet::new(),
            steered: BTreeMap::new(),
            next_command: 0,
            next_steer: 0,
            now: 0,
            order: 0,
            life: 0,
            healed: false,
            shut: false,
            asked: BTreeMap::new(),
            due: BTreeSet::new(),
            calls: BTreeMap::new(),
            early: BTreeMap::new(),
            questions: BTreeMap::new(),
            acts: Vec::new(),
            answers_after: 100,
            running: BTreeMap::new(),
            turns: BTreeMap::new(),
            rng,
            others,
        };
        for number in 0..plan.conversations {
            app.add_talk(number);
        }
        for number in 0..plan.messages {
            app.add_note(number);
        }
        for number in 0..app.rng.below(8) {
            app.add_parcel(number);
        }
        app
    }

    fn add_talk(&mut self, number: u32) {
        let mut settings = self.draw_settings();
        if self.rng.one_in(2) {
            settings = settings.approval_policy(ApprovalPolicy::OnRequest);
            if !self.rng.one_in(3) {
                settings = settings.questions(Questions::Ask);
            }
        }
        self.talks.push(Talk::new(number as usize, settings));
        let talk = self.talks.len() - 1;
        self.talks[talk].preflight = self.rng.one_in(4);
    }

    /// A message, with nothing rare about it.
    fn add_note_to(&mut self, talk: usize, number: u32) {
        self.notes.push(Note {
            talk,
            key: Some(format!("key-{number}")),
            text: format!("<m{number}>"),
            deadline: None,
            schema: false,
            said: Said::Planned,
        });
    }

    fn add_note(&mut self, number: u32) {
        let keyed = !self.rng.one_in(3);
        let deadlines = self.habits.deadlines;
        let deadline = (deadlines > 0 && self.rng.one_in(deadlines))
            .then(|| self.rng.between(10_000, 30_000_000));
        let schemas = self.habits.schemas;
        self.notes.push(Note {
            talk: self.rng.at(self.talks.len()),
            key: keyed.then(|| format!("key-{number}")),
            text: format!("<m{number}>"),
            deadline,
            schema: schemas > 0 && self.rng.one_in(schemas),
            said: Said::Planned,
        });
    }

    /// One that does what a script says.
    pub(super) fn of(script: &Script) -> Self {
        let mut app = Self::new(0, &Plan::calm(false));
        app.talks.clear();
        app.notes.clear();
        app.parcels.clear();
        app.habits = Habits {
            steers: 0,
            interrupts: 0,
            abandons: 0,
            ignores: 0,
            closes: 0,
            cleanups: 0,
            raw: 0,
            late: 0,
            deadlines: 0,
            schemas: 0,
            shutdowns: 0,
            messages: 0,
            disturbs: 0,
            compacts: 0,
            forks: 0,
            steady: true,
        };
        app.answers_after = script.answers_after * 1_000;
        for (number, settings) in script.talks.iter().enumerate() {
            app.talks.push(Talk::new(number, settings.clone()));
        }
        for (number, message) in script.messages.iter().enumerate() {
            app.notes.push(Note {
                talk: message.talk,
                key: Some(format!("key-{number}")),
                text: format!("<{}>", message.text),
                deadline: message.deadline,
                schema: message.schema,
                said: Said::Planned,
            });
            for (millis, act) in &message.acts {
                app.acts.push((number, millis * 1_000, *act));
            }
        }
        app
    }

    fn at(&mut self, span: u64, act: Act) {
        self.order += 1;
        self.due.insert((self.now + span, self.order, act));
    }

    fn span(&mut self, low: u64, high: u64) -> u64 {
        if self.habits.steady {
            low
        } else {
            self.rng.between(low, high)
        }
    }

    /// How long it takes to answer what it is asked.
    fn answer_span(&mut self) -> u64 {
        match self.habits.steady {
            true => self.answers_after,
            false => self.rng.between(100, 400_000),
        }
    }

    /// One in so many; never for 0.
    fn rarely(&mut self, one_in: u64) -> bool {
        one_in > 0 && self.rng.one_in(one_in)
    }

    /// Our process has started.
    pub(super) fn life_begins(&mut self, now: u64, life: u32) {
        self.now = now;
        self.life = life;
        self.shut = false;
        // A caller's numbers are its own; they never come again.
        self.next_command = u64::from(life) << 32;
        for talk in 0..self.talks.len() {
            let span = self.span(0, 2_000);
            self.at(span, Act::Open(talk));
        }
        // An end that was taken and not confirmed to be is acknowledged again.
        let open: Vec<TurnNo> = self
            .taken
            .iter()
            .filter(|(_, taken)| !taken.acknowledged)
            .map(|(turn, _)| *turn)
            .collect();
        for turn in open {
            let span = self.span(1_000, 200_000);
            self.at(span, Act::Acknowledge(turn));
        }
    }

    /// Our process is gone, and all that it did not write down.
    pub(super) fn dies(&mut self, now: u64) {
        self.now = now;
        for note in &mut self.notes {
            if note.said == Said::Asked {
                note.said = match note.key {
                    Some(_) => Said::Planned,
                    None => Said::Unsure,
                };
            }
        }
        self.parcels_die();
        for turn in std::mem::take(&mut self.foreign) {
            self.known.remove(&turn);
            self.taken.remove(&turn);
        }
        for talk in &mut self.talks {
            talk.open = false;
            talk.closing = false;
            talk.stalled = None;
            talk.begins = false;
        }
        self.asked.clear();
        self.due.clear();
        self.calls.clear();
        self.early.clear();
        self.questions.clear();
        self.running.clear();
        self.steered.clear();
    }

    /// From here on the application does what it must, and begins nothing rare.
    pub(super) fn heal(&mut self, now: u64) {
        self.now = now;
        self.healed = true;
        self.habits = Habits {
            steers: 0,
            interrupts: 0,
            abandons: 0,
            ignores: 0,
            closes: 0,
            cleanups: 0,
            raw: 0,
            late: 0,
            deadlines: 0,
            schemas: 0,
            shutdowns: 0,
            disturbs: 0,
            compacts: 0,
            forks: 0,
            ..self.habits
        };
        let rare = |act: &Act| {
            matches!(
                act,
                Act::Steer(_)
                    | Act::Interrupt(_)
                    | Act::Abandon(_)
                    | Act::Close(_)
                    | Act::CleanUp(..)
                    | Act::Shutdown
                    | Act::Hold(_)
                    | Act::Unbind(_)
                    | Act::Reset(_)
                    | Act::Change(_)
                    | Act::Compact(_)
                    | Act::Fork(_)
            )
        };
        self.due.retain(|(.., act)| !rare(act));
        let calls: Vec<ToolCallId> = self.calls.keys().copied().collect();
        for call in calls {
            self.at(1_000, Act::Respond(call));
        }
        for talk in 0..self.talks.len() {
            if self.talks[talk].is_open().is_some() {
                self.is_open(talk);
            }
        }
        let questions: Vec<QuestionId> = self.questions.keys().copied().collect();
        for question in questions {
            self.at(1_000, Act::Answer(question));
        }
    }

    /// Whether its client has been shut down: it starts anew.
    pub(super) fn wants_exit(&self) -> bool {
        self.shut
    }

    /// When the application does something by itself.
    pub(super) fn due(&self) -> Option<u64> {
        self.due.first().map(|(at, ..)| *at)
    }

    /// Whether it waits for nothing.
    pub(super) fn is_settled(&self) -> bool {
        self.waits_for().is_empty()
    }

    /// What it waits for, in words.
    pub(super) fn waits_for(&self) -> String {
        let mut out = Vec::new();
        if !self.asked.is_empty() {
            out.push(format!("answers: {:?}", self.asked));
        }
        if !self.due.is_empty() {
            out.push(format!("its time: {:?}", self.due));
        }
        for (turn, note) in &self.known {
            if self.let_go.contains(turn) {
                continue;
            }
            match self.taken.get(turn) {
                None => {
                    let text = note.map(|note| self.notes[note].text.as_str());
                    out.push(format!("the end of turn {turn} ({text:?})"));
                }
                Some(taken) if !taken.acknowledged => {
                    out.push(format!("turn {turn} is not acknowledged"));
                }
                Some(_) => {}
            }
        }
        out.join("; ")
    }

    /// Steers that were said to be taken, by a turn of this life that ended as the server said.
    pub(super) fn taken_steers(&self) -> impl Iterator<Item = (TurnNo, &str)> {
        let ended = |turn: &TurnNo| {
            let taken = self.taken.get(turn).map(|taken| &taken.outcome);
            matches!(
                taken,
                Some(Outcome::Completed { .. } | Outcome::Interrupted)
            )
        };
        let steers = self.steered.values();
        steers
            .filter(move |(turn, _)| ended(turn) && !self.let_go.contains(turn))
            .map(|(turn, text)| (*turn, text.as_str()))
    }

    /// The note that a turn began with.
    pub(super) fn note_of(&self, turn: TurnNo) -> Option<&Note> {
        self.known
            .get(&turn)
            .copied()?
            .map(|note| &self.notes[note])
    }
}
