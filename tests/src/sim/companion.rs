//! The exhaustive companion: short scripts without chance, each run again with a crash after every single step.

use turnkeep_core::{
    RawJson, Rendering, Settings, SteerWhen, Tool,
    command::{ApprovalPolicy, Questions, ToolKind},
};

use super::{
    plan::{Fault, Plan, Tally},
    server::{Step, say},
    world::{self, Failure},
};

/// What the application does in a turn, so many milliseconds after it has begun.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Do {
    /// It hands a user message over.
    Post,
    /// It steers.
    Steer,
    /// It interrupts the turn.
    Interrupt,
    /// It gives the turn up.
    Abandon,
    /// It closes the conversation.
    Close,
    /// It sends a request of its own.
    Raw,
    /// It ends the client.
    Shutdown,
}

/// A message of a script.
#[derive(Clone, Debug)]
pub(super) struct Message {
    pub(super) talk: usize,
    pub(super) text: &'static str,
    pub(super) deadline: Option<u64>,
    pub(super) schema: bool,
    /// What the model does for it.
    pub(super) turn: Vec<Step>,
    /// What the application does meanwhile.
    pub(super) acts: Vec<(u64, Do)>,
}

/// A course of events without chance.
#[derive(Clone, Debug)]
pub struct Script {
    /// Its name.
    pub name: &'static str,
    pub(super) talks: Vec<Settings>,
    pub(super) messages: Vec<Message>,
    /// How long the application takes to answer what it is asked, in milliseconds.
    pub(super) answers_after: u64,
}

/// The crashes that each step is followed by.
pub const CRASHES: [Fault; 5] = [
    Fault::KillUs,
    Fault::KillServer,
    Fault::KillBoth,
    Fault::PowerLoss,
    Fault::Reset,
];

impl Script {
    fn new(name: &'static str) -> Self {
        let schema = RawJson::parse(r#"{"type":"object"}"#).expect("an object");
        let settings = Settings::new()
            .cwd("/workspace")
            .tool(Tool::function("look", "", schema.clone()))
            .tool(Tool::function("later", "", schema.clone()).deferred())
            .tool(Tool::function("tell", "", schema).kind(ToolKind::Message))
            .approval_policy(ApprovalPolicy::OnRequest)
            .questions(Questions::Ask);
        Self {
            name,
            talks: vec![settings],
            messages: Vec::new(),
            answers_after: 5,
        }
    }

    fn message(mut self, text: &'static str, turn: Vec<Step>) -> Self {
        self.messages.push(Message {
            talk: 0,
            text,
            deadline: None,
            schema: false,
            turn,
            acts: Vec::new(),
        });
        self
    }

    fn last(&mut self) -> &mut Message {
        self.messages
            .last_mut()
            .expect("a script has a message first")
    }

    fn then(mut self, millis: u64, act: Do) -> Self {
        self.last().acts.push((millis, act));
        self
    }

    fn elsewhere(mut self) -> Self {
        let settings = self.talks[0].clone();
        self.talks.push(settings);
        self.last().talk = 1;
        self
    }

    fn boxed(mut self) -> Self {
        for settings in &mut self.talks {
            settings.rendering = Rendering::Boxed;
        }
        self
    }

    fn at_once(mut self) -> Self {
        for settings in &mut self.talks {
            settings.steer = SteerWhen::AtOnce;
        }
        self
    }

    /// Answers come when the turn is over.
    fn late_answers(mut self) -> Self {
        self.answers_after = 600;
        self
    }

    fn within(mut self, millis: u64) -> Self {
        self.last().deadline = Some(millis * 1_000);
        self
    }

    fn of_a_schema(mut self) -> Self {
        self.last().schema = true;
        self
    }

    fn slow_answers(mut self) -> Self {
        self.answers_after = 80;
        self
    }

    /// How many steps it takes without a crash.
    ///
    /// # Errors
    ///
    /// A rule was broken.
    pub fn steps(&self, socket: bool) -> Result<u64, Failure> {
        Ok(self.run(socket, None)?.steps)
    }

    /// Plays it, with a crash after so many steps.
    ///
    /// # Errors
    ///
    /// A rule was broken.
    pub fn run(&self, socket: bool, crash: Option<(u64, Fault)>) -> Result<Tally, Failure> {
        world::run_script(self, &Plan::calm(socket), crash, false).0
    }

    /// The same, and what happened.
    pub fn run_logged(
        &self,
        socket: bool,
        crash: Option<(u64, Fault)>,
    ) -> (Result<Tally, Failure>, String) {
        world::run_script(self, &Plan::calm(socket), crash, true)
    }

    /// Plays it with every crash after every step. Failures come with the crash that led to them.
    #[must_use]
    pub fn crash_everywhere(&self, socket: bool) -> (Tally, Vec<(u64, Fault, Failure)>) {
        let mut tally = Tally::default();
        let mut failures = Vec::new();
        let steps = match self.steps(socket) {
            Ok(steps) => steps,
            Err(failure) => return (tally, vec![(0, Fault::KillUs, failure)]),
        };
        for step in 1..=steps {
            for fault in CRASHES {
                if fault == Fault::Reset && !socket {
                    continue;
                }
                match self.run(socket, Some((step, fault))) {
                    Ok(some) => tally.add(&some),
                    Err(failure) => failures.push((step, fault, failure)),
                }
            }
        }
        (tally, failures)
    }
}

fn ends(mut steps: Vec<Step>, last: Step) -> Vec<Step> {
    steps.push(last);
    steps
}

fn answer(text: &str) -> Vec<Step> {
    ends(say(text, Some("final_answer"), 2), Step::Finish)
}

fn call(number: u32) -> Step {
    Step::Call {
        tool: "look".into(),
        arguments: format!(r#"{{"key":{number}}}"#),
    }
}

fn later(number: u32) -> (String, String) {
    ("later".into(), format!(r#"{{"key":{number}}}"#))
}

fn after(first: Vec<Step>, text: &str) -> Vec<Step> {
    let mut steps = vec![Step::Model];
    steps.extend(first);
    steps.push(Step::Usage);
    steps.push(Step::Model);
    steps.extend(answer(text));
    steps
}

/// All scripts.
#[must_use]
pub fn scripts() -> Vec<Script> {
    vec![
        Script::new("plain").message("one", answer("the answer")),
        Script::new("two-messages")
            .message("one", answer("first"))
            .message("two", answer("second")),
        Script::new("tool").message("one", after(vec![call(1)], "looked")),
        Script::new("two-tools").message("one", after(vec![call(1), call(2)], "looked twice")),
        Script::new("slow-tool")
            .message("one", after(vec![call(1)], "looked"))
            .slow_answers(),
        Script::new("approval").message("one", after(vec![Step::Approve], "ran it")),
        Script::new("slow-approval")
            .message("one", after(vec![Step::Approve], "ran it"))
            .slow_answers(),
        Script::new("question").message("one", after(vec![Step::AskUser], "red then")),
        Script::new("steer-at-a-tool")
            .message("one", after(vec![call(1)], "both"))
            .then(40, Do::Steer)
            .slow_answers(),
        Script::new("steer-in-text")
            .message(
                "one",
                ends(say("a long text to steer into", None, 8), Step::Finish),
            )
            .then(60, Do::Steer),
        Script::new("interrupt")
            .message(
                "one",
                ends(say("a long text that is cut", None, 10), Step::Finish),
            )
            .then(60, Do::Interrupt)
            .message("two", answer("second")),
        Script::new("interrupt-at-once")
            .message("one", answer("never"))
            .then(1, Do::Interrupt)
            .message("two", answer("second")),
        Script::new("two-conversations")
            .message("one", after(vec![call(1)], "here"))
            .message("two", after(vec![call(1)], "there"))
            .elsewhere(),
        Script::new("close")
            .message("one", answer("first"))
            .then(150, Do::Close)
            .message("two", answer("second")),
        Script::new("deadline")
            .message("one", after(vec![Step::Wait(2_000)], "too late"))
            .within(100)
            .message("two", answer("second")),
        Script::new("abandon")
            .message("one", after(vec![call(1), Step::Wait(500)], "for nobody"))
            .then(50, Do::Abandon)
            .message("two", answer("second")),
        Script::new("failure")
            .message("one", ends(vec![Step::Model], Step::Fail))
            .message("two", answer("second")),
        Script::new("untold-end")
            .message(
                "one",
                ends(say("in the history", None, 2), Step::FinishUntold),
            )
            .message("two", answer("second")),
        Script::new("schema")
            .message("one", answer("{\"a\":1}"))
            .of_a_schema(),
        Script::new("raw")
            .message("one", answer("first"))
            .then(20, Do::Raw),
        Script::new("shutdown")
            .message(
                "one",
                ends(say("a long text that goes on", None, 8), Step::Finish),
            )
            .then(60, Do::Shutdown)
            .message("two", answer("second")),
        Script::new("deferred")
            .message(
                "one",
                after(
                    vec![Step::Calls(vec![later(1)]), Step::Model, call(2)],
                    "both",
                ),
            )
            .boxed(),
        Script::new("deferred-late")
            .message(
                "one",
                after(vec![Step::Calls(vec![later(1), later(2)])], "goes on"),
            )
            .late_answers()
            .boxed(),
        Script::new("deferred-into-a-wait")
            .message(
                "one",
                after(
                    vec![
                        Step::Calls(vec![later(1)]),
                        Step::Wait(300),
                        Step::Calls(vec![later(2)]),
                    ],
                    "goes on",
                ),
            )
            .slow_answers(),
        Script::new("stage-of-all-kinds").message(
            "one",
            after(
                vec![Step::Calls(vec![
                    ("look".into(), r#"{"key":1}"#.into()),
                    later(2),
                    ("tell".into(), r#"{"message":"<w.told>"}"#.into()),
                    ("later".into(), "[1]".into()),
                    ("nosuch".into(), "{}".into()),
                ])],
                "goes on",
            ),
        ),
        Script::new("arrival-at-a-tool")
            .message("one", after(vec![call(1), call(2)], "heard"))
            .then(40, Do::Post)
            .slow_answers()
            .boxed(),
        Script::new("arrival-at-once")
            .message(
                "one",
                ends(say("a long text to steer into", None, 8), Step::Finish),
            )
            .then(60, Do::Post)
            .at_once(),
        Script::new("arrival-and-steer")
            .message(
                "one",
                after(vec![Step::Calls(vec![later(1)]), call(2)], "heard"),
            )
            .then(40, Do::Post)
            .then(60, Do::Steer)
            .then(70, Do::Post)
            .slow_answers(),
        Script::new("arrival-after-the-turn")
            .message("one", answer("first"))
            .then(400, Do::Post)
            .message("two", answer("second")),
        Script::new("interrupt-with-a-deferred-call")
            .message(
                "one",
                after(vec![Step::Calls(vec![later(1)]), Step::Wait(500)], "never"),
            )
            .then(200, Do::Interrupt)
            .late_answers(),
        Script::new("failure-with-a-deferred-call").message(
            "one",
            vec![Step::Model, Step::Calls(vec![later(1)]), Step::Fail],
        ),
    ]
}
