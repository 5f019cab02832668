//! The reference: a conversation as section 2 of the specification has it, with neither records nor frames.
//!
//! It knows what the server does, since the server does what the case says. [`Reference::settle`] does what happens by itself.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::{
    boxes::{Body, Meaning, ahead, brought, call_box, spoken, text_of},
    op::{Brought, Called, How, Op, Outcome, Step},
};

/// What a small mailbox takes.
pub const SMALL: usize = 3;

#[derive(Clone, Debug)]
struct Arrival {
    body: Body,
    trigger: bool,
    /// The native thread has it already.
    submitted: bool,
    /// Because it is what this native call is answered.
    native: Option<usize>,
}

/// What the open request of the server behind a call is answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Given {
    Result {
        ok: bool,
        text: String,
    },
    /// A failure in words that the specification leaves open.
    Failure,
    /// The sentence for deferred calls.
    Deferred,
    /// One of these two: the specification does not say which.
    Either,
    /// The sentence for messages.
    Delivered,
}

#[derive(Clone, Debug, Default)]
pub struct Native {
    pub given: Option<Given>,
    due: Option<Given>,
    /// The steer that is answered before it, among those of its round.
    behind: Option<usize>,
    /// The server does not wait for it any more.
    pub dead: bool,
}

#[derive(Clone, Debug)]
struct Call {
    tool: String,
    arguments: String,
    limited: bool,
    /// The round that it belongs to; none before the first.
    round: Option<u32>,
    blocking: bool,
    /// The server's request that its result answers.
    native: Option<usize>,
    result: Option<Had>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Had {
    Given(Outcome),
    /// Made here: a result that comes now is refused.
    Ours,
}

/// A call that was handed to the application.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Launch {
    pub sequence: u64,
    pub tool: String,
    pub arguments: String,
    pub binding: Option<u8>,
}

/// A message that the server gets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sent {
    pub steer: bool,
    pub boxes: Vec<u64>,
    pub marker: u64,
    pub thread: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reached {
    /// It has not left.
    Unsent,
    /// The server has it and did not answer.
    Silent,
    /// It was answered, or its answer will never come.
    Answered,
}

#[derive(Clone, Debug)]
struct Message {
    sent: Sent,
    reached: Reached,
    recorded: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Completed,
    /// On the application's word.
    Interrupted,
    Failed,
    /// By somebody else.
    Stopped,
    /// A recovered turn, found interrupted with calls that recovery failed.
    CutShort,
    Refused,
}

#[derive(Clone, Debug)]
struct Round {
    job: u32,
    binding: Option<u8>,
    start: Message,
    steers: Vec<Message>,
    text: String,
    /// The model is saying something.
    streaming: bool,
    staged: bool,
    /// A call or a message of it stands.
    acted: bool,
    /// A stage was asked for.
    asked: bool,
    /// Calls that are in no stage yet.
    waiting: Vec<(usize, Called)>,
    first_native: usize,
    stop: bool,
    /// How its turn ended at the server, where that was not taken in yet.
    end: Option<End>,
    stalled: Option<End>,
}

/// A conversation.
#[derive(Clone, Debug)]
pub struct Reference {
    pub how: How,
    pub boxes: Vec<Body>,
    /// Boxes that the native thread has, or that are on their way to it.
    pub carried: BTreeSet<u64>,
    thread: u32,
    mailbox: VecDeque<Arrival>,
    calls: Vec<Call>,
    pub natives: Vec<Native>,
    keys: BTreeMap<u8, Vec<Body>>,
    triggered: bool,
    round: Option<Round>,
    pub jobs: u32,
    binding: Option<u8>,
    held: bool,
    preflighted: bool,
    /// What the server got, in order.
    pub sent: Vec<Sent>,
    /// What the application was given, in order.
    pub launches: Vec<Launch>,
    silence: bool,
    refuse: bool,
    /// No frame of ours leaves.
    offline: bool,
    /// What triggers is of an earlier life, and needs no binding.
    waived: bool,
    marks: u64,
}

/// The words of an answer; several where the specification does not say which comes first.
pub type Answer = Vec<&'static str>;

impl Reference {
    #[must_use]
    pub fn new(how: How) -> Self {
        Self {
            how,
            boxes: Vec::new(),
            carried: BTreeSet::new(),
            thread: 1,
            mailbox: VecDeque::new(),
            calls: Vec::new(),
            natives: Vec::new(),
            keys: BTreeMap::new(),
            triggered: false,
            round: None,
            jobs: 0,
            binding: None,
            held: false,
            preflighted: false,
            sent: Vec::new(),
            launches: Vec::new(),
            silence: false,
            refuse: false,
            offline: false,
            waived: false,
            marks: 0,
        }
    }

    // What can be seen of it.

    /// The words for its status.
    #[must_use]
    pub fn status(&self) -> Answer {
        match &self.round {
            Some(round) if round.stalled.is_some() => vec!["stalled"],
            Some(_) => vec!["running"],
            None if self.held => vec!["held"],
            // About to begin, once somebody lets it.
            None if self.triggered => vec!["running", "quiet"],
            None => vec!["quiet"],
        }
    }

    pub fn uncut(&self, op: &Op) -> bool {
        use crate::conversation_model::known;
        (known(5) && self.how.socket)
            || (known(9) && self.how.bound && self.how.recovered_run)
            || (known(4)
                && (matches!(op, Op::Text { .. } | Op::Stream { .. })
                    || self.open().is_some_and(|r| !r.text.is_empty())))
            || (known(3) && self.calls.iter().any(|c| c.result.is_none()))
    }

    /// What waits in the mailbox.
    #[must_use]
    pub fn waiting(&self) -> Vec<&Body> {
        self.mailbox.iter().map(|arrival| &arrival.body).collect()
    }

    /// What the model said last.
    #[must_use]
    pub fn said(&self) -> String {
        format!("said m{}", self.marks)
    }

    #[must_use]
    pub fn calls(&self) -> usize {
        self.calls.len()
    }

    /// Whether a turn runs at the server.
    #[must_use]
    pub fn runs(&self) -> bool {
        self.open().is_some_and(|round| round.end.is_none())
    }

    fn open(&self) -> Option<&Round> {
        self.round.as_ref().filter(|round| round.stalled.is_none())
    }

    /// Whether an operation is one that the server would do now.
    #[must_use]
    pub fn allows(&self, op: &Op) -> bool {
        if crate::conversation_model::known(2)
            && matches!(op, Op::Interrupt { .. })
            && self.open().is_some_and(|r| !r.start.recorded)
        {
            return false;
        }
        if crate::conversation_model::known(3)
            && matches!(op, Op::Lose | Op::Stop)
            && self.calls.iter().any(|c| c.result.is_none())
        {
            return false;
        }
        if crate::conversation_model::known(4)
            && (matches!(op, Op::Crash | Op::Lose))
            && self.open().is_some_and(|r| !r.text.is_empty())
        {
            return false;
        }
        if crate::conversation_model::known(10)
            && matches!(op, Op::Reset | Op::Change)
            && self.round.is_some()
        {
            return false;
        }
        if crate::conversation_model::known(14) && matches!(op, Op::Stream { .. }) {
            return false;
        }
        if crate::conversation_model::known(13) && matches!(op, Op::Restart { .. }) {
            return false;
        }
        if crate::conversation_model::known(8) && self.how.at_once && matches!(op, Op::Refuse) {
            return false;
        }
        if crate::conversation_model::known(9)
            && self.how.bound
            && self.how.recovered_run
            && matches!(op, Op::Crash)
        {
            return false;
        }
        if crate::conversation_model::known(6) && matches!(op, Op::Expire) && self.silence {
            return false;
        }
        if crate::conversation_model::known(5) && matches!(op, Op::Crash | Op::Lose) && self.silence
        {
            return false;
        }
        if crate::conversation_model::known(7) && matches!(op, Op::Stop) && self.how.socket {
            return false;
        }
        let Some(round) = self.open().filter(|_| self.runs()) else {
            return !matches!(
                op,
                Op::Record
                    | Op::Stream { .. }
                    | Op::Text { .. }
                    | Op::Calls { .. }
                    | Op::Complete { .. }
                    | Op::Fail
                    | Op::Stop
            );
        };
        let mut natives = self.natives.iter().skip(round.first_native);
        // The model waits for the answers of its calls.
        !matches!(op, Op::Stream { .. } | Op::Text { .. } | Op::Calls { .. })
            || natives.all(|n| n.given.is_some())
    }

    /// Whether the model says to its end what it began before an operation.
    #[must_use]
    pub fn says_before(&self, step: &Step) -> bool {
        let ends = matches!(
            step.op,
            Op::Stream { .. } | Op::Calls { .. } | Op::Complete { .. } | Op::Lose | Op::Crash
        );
        self.open().is_some_and(|round| round.streaming) && (ends || step.cut.is_some())
    }

    /// Whether the server speaks before it does an operation.
    #[must_use]
    pub fn speaks_before(&self, op: &Op) -> bool {
        let Some(round) = self.open().filter(|_| self.silence) else {
            return false;
        };
        let unknown = round.start.reached == Reached::Silent;
        let mut natives = self.natives.iter().skip(round.first_native);
        let open = !round.waiting.is_empty() || natives.any(|n| n.given.is_none());
        match op {
            Op::Steer { stale } => !stale && (unknown || round.end.is_some()),
            Op::Interrupt { stale } => !stale && (unknown || open || round.end.is_some()),
            Op::Complete { .. } | Op::Fail | Op::Stop => unknown || open,
            Op::Record | Op::Stream { .. } | Op::Text { .. } | Op::Calls { .. } => unknown,
            _ => false,
        }
    }

    // What the application asks.

    fn authorized(&self, binding: Option<u8>) -> bool {
        match (self.binding, binding) {
            _ if !self.how.bound => true,
            (held, None) => held.is_some(),
            (held, Some(binding)) => held.is_none_or(|held| held == binding),
        }
    }

    fn is_full(&self, more: usize) -> bool {
        let most = if self.how.small { SMALL } else { usize::MAX };
        self.round.is_some() && self.mailbox.len() + more > most
    }

    fn install(&mut self, binding: Option<u8>) {
        if self.how.bound {
            self.binding = binding.or(self.binding);
        }
    }

    /// The boxes of an `accept`: the mark tells them from all others, a key gives the same again.
    pub fn bodies(&mut self, boxes: &[Brought], key: Option<u8>, other: bool) -> Vec<Body> {
        let mark = match key {
            Some(key) => format!("k{key}{}", if other { "'" } else { "" }),
            None => self.mark(),
        };
        let all = boxes.iter().enumerate();
        all.map(|(at, what)| brought(*what, &format!("{mark}.{at}")))
            .collect()
    }

    fn mark(&mut self) -> String {
        self.marks += 1;
        format!("m{}", self.marks)
    }

    pub fn accept(&mut self, bodies: Vec<Body>, key: Option<u8>, binding: Option<u8>) -> Answer {
        let mut refused = Answer::new();
        let ours = ["Agent Response", "Agent Message", "Tool Call", ""];
        if bodies.iter().any(|body| ours.contains(&&*body.box_type)) {
            refused.push("bad_box_type");
        }
        let user = bodies.iter().any(|body| body.box_type.starts_with("User "));
        if (user || binding.is_some()) && !self.authorized(binding) {
            refused.push("unauthorized");
        }
        if self.is_full(bodies.len()) {
            refused.push("mailbox_full");
        }
        match key.and_then(|key| self.keys.get(&key)) {
            Some(same) if *same == bodies => {
                refused.push("arrived");
                return refused;
            }
            Some(_) => refused.push("key_reused"),
            None => {}
        }
        if !refused.is_empty() {
            return refused;
        }
        self.install(binding);
        if let Some(key) = key {
            self.keys.insert(key, bodies.clone());
        }
        for body in bodies {
            let trigger = body.box_type != "Tool Message";
            self.arrive(body, trigger, false);
        }
        vec!["arrived"]
    }

    pub fn send(&mut self, bodies: Vec<Body>, binding: Option<u8>) -> Answer {
        let mut refused = Answer::new();
        if self.round.is_some() || self.triggered || self.held || self.preflight_blocks() {
            refused.push("busy");
        }
        if !self.authorized(binding) {
            refused.push("unauthorized");
        }
        if !refused.is_empty() {
            return refused;
        }
        self.install(binding);
        for body in bodies {
            self.arrive(body, true, false);
        }
        self.begin();
        vec!["accepted"]
    }

    pub fn steer(&mut self, bodies: Vec<Body>, stale: bool) -> Answer {
        let mut refused = Answer::new();
        if stale || !self.runs() {
            refused.extend(["no_active_turn", "unknown_turn"]);
        }
        if self.is_full(bodies.len()) {
            refused.push("mailbox_full");
        }
        if !self.authorized(None) {
            refused.push("unauthorized");
        }
        if !refused.is_empty() {
            return refused;
        }
        for body in bodies {
            self.arrive(body, true, false);
        }
        if let Some(round) = &mut self.round {
            round.asked = true;
        }
        vec!["later"]
    }

    pub fn interrupt(&mut self, stale: bool) -> Answer {
        let runs = self.runs();
        match &mut self.round {
            Some(round) if runs && !stale => {
                round.stop = true;
                if !self.offline {
                    round.end = Some(End::Interrupted);
                }
                vec!["interrupted", "later"]
            }
            _ => vec!["ended", "unknown_turn"],
        }
    }

    pub fn respond(&mut self, call: usize, outcome: Outcome) -> Answer {
        let Some(of) = self.calls.get(call) else {
            return vec!["unknown_call"];
        };
        match of.result {
            Some(Had::Given(same)) if same == outcome => return vec!["done"],
            Some(Had::Given(_)) => return vec!["answered_differently"],
            Some(Had::Ours) => return vec!["call_closed", "answered_differently"],
            None => {}
        }
        if of.native.is_none()
            && self.is_full(if crate::conversation_model::known(12) {
                2
            } else {
                1
            })
        {
            return vec!["mailbox_full"];
        }
        self.result(
            call,
            outcome != Outcome::Failed,
            &text_of(call, outcome),
            true,
        );
        self.calls[call].result = Some(Had::Given(outcome));
        vec!["done"]
    }

    pub fn tool_message(&mut self, call: usize) -> (Answer, String) {
        let Some(of) = self.calls.get(call) else {
            return (vec!["unknown_call"], String::new());
        };
        match of.result {
            Some(Had::Given(_)) => return (vec!["call_answered"], "late".into()),
            Some(Had::Ours) => return (vec!["call_answered", "call_closed"], "late".into()),
            None => {}
        }
        if self.is_full(1) {
            return (vec!["mailbox_full"], "early".into());
        }
        let text = format!("progress {}", self.mark());
        let contents = format!("message of call {}\n{text}", call + 1);
        let body = Body::new("Tool Message", contents).hidden("turnkeep.tool-message/1");
        self.arrive(body, false, false);
        (vec!["done"], text)
    }

    pub fn bind(&mut self, binding: u8) -> Answer {
        if !self.authorized(Some(binding)) {
            return vec!["unauthorized"];
        }
        self.install(Some(binding));
        vec!["done"]
    }

    pub fn unbind(&mut self) -> Answer {
        self.binding = None;
        vec!["done"]
    }

    pub fn hold(&mut self) -> Answer {
        self.held = true;
        vec!["done"]
    }

    pub fn release(&mut self) -> Answer {
        self.held = false;
        vec!["done"]
    }

    pub fn begin_by_hand(&mut self) -> Answer {
        let mut refused = Answer::new();
        match &self.round {
            Some(round) if round.stalled.is_some() => refused.extend(["busy", "nothing"]),
            Some(_) => return vec!["nothing"],
            None => {}
        }
        if self.round.is_none() && (self.held || self.preflight_blocks()) {
            refused.push("busy");
        }
        if !self.authorized(None) {
            refused.push("unauthorized");
        }
        if self.round.is_none() && !self.triggered {
            refused.push("nothing");
        }
        if !refused.is_empty() {
            return refused;
        }
        self.begin();
        vec!["begun"]
    }

    pub fn dismiss(&mut self) -> Answer {
        if self
            .round
            .as_ref()
            .is_none_or(|round| round.stalled.is_none())
        {
            return vec!["not_stalled"];
        }
        self.fail_open_calls("");
        self.complete();
        // What came so far is given up with the round: the next trigger begins another one.
        self.triggered = false;
        vec!["done"]
    }

    pub fn restart(&mut self, binding: Option<u8>) -> Answer {
        let mut refused = Answer::new();
        let Some(round) = self.round.as_ref().filter(|round| round.stalled.is_some()) else {
            return vec!["not_stalled"];
        };
        if round.acted {
            refused.push("provider_action_accepted");
        } else if round.stalled != Some(End::Refused) || round.staged {
            refused.push("may_be_accepted");
        }
        if !self.authorized(binding) {
            refused.push("unauthorized");
        }
        if !refused.is_empty() {
            return refused;
        }
        self.install(binding);
        self.begin();
        vec!["accepted"]
    }

    pub fn preflight(&mut self, system: Body, calls: &[(Called, bool)]) -> Answer {
        let mut refused = Answer::new();
        if self.preflighted || !self.boxes.is_empty() || self.round.is_some() {
            refused.push("not_fresh");
        }
        if calls.iter().any(|(called, _)| *called == Called::Unknown) {
            refused.push("unknown_tool");
        }
        if !refused.is_empty() {
            return refused;
        }
        self.preflighted = true;
        self.append(system, false);
        for (called, blocking) in calls {
            let sequence = self.calls.len() as u64 + 1;
            let (tool, arguments) = ahead(*called, sequence);
            self.append(call_box(sequence, &tool, &arguments), false);
            self.calls.push(Call {
                tool,
                arguments,
                limited: false,
                round: None,
                blocking: *blocking,
                native: None,
                result: None,
            });
            self.launch(self.calls.len() - 1, None);
        }
        vec!["preflighted"]
    }

    /// A new native thread has none of the boxes.
    pub fn reset(&mut self) -> Answer {
        if self.round.is_some() {
            return vec!["busy"];
        }
        self.thread += 1;
        self.carried.clear();
        vec!["done"]
    }

    /// Whether an open call is past its limit then.
    pub fn expire(&mut self) {
        for call in 0..self.calls.len() {
            if self.calls[call].limited && self.calls[call].result.is_none() {
                self.result(call, false, "", true);
                self.calls[call].result = Some(Had::Ours);
            }
        }
    }

    // What the server does.

    pub fn server(&mut self, op: &Op) {
        let (silence, refuse) = (self.silence, self.refuse);
        (self.silence, self.refuse) = match op {
            Op::Silence => (true, refuse),
            Op::Speak => (false, false),
            Op::Refuse => (silence, true),
            _ => (silence, refuse),
        };
        let natives = self.natives.len();
        let Some(round) = &mut self.round else { return };
        match op {
            Op::Speak => round.hear_all(),
            Op::Record => round.record(true),
            Op::Stream { record }
            | Op::Text { record }
            | Op::Calls { record, .. }
            | Op::Complete { record } => {
                round.record(*record);
            }
            Op::Fail | Op::Stop => round.record(false),
            _ => {}
        }
        match op {
            Op::Stream { .. } | Op::Text { .. } => {
                self.marks += 1;
                let begins =
                    !std::mem::replace(&mut round.streaming, matches!(op, Op::Stream { .. }));
                if begins && !round.text.is_empty() {
                    round.text.push('\n');
                }
                round.text += &format!("said m{}", self.marks);
            }
            Op::Calls { calls, .. } => {
                for (at, called) in calls.iter().enumerate() {
                    round.waiting.push((natives + at, *called));
                    self.natives.push(Native::default());
                }
            }
            Op::Complete { .. } => round.end = Some(End::Completed),
            Op::Fail => round.end = Some(End::Failed),
            Op::Stop => round.end = Some(End::Stopped),
            _ => {}
        }
    }

    /// From here on no frame of ours leaves: our process is about to be killed.
    pub fn cut(&mut self) {
        self.offline = true;
    }

    /// The connection is lost, and with it a server that is a child; or our process was killed, and with it the connection.
    pub fn away(&mut self, ours: bool) {
        (self.silence, self.refuse, self.offline) = (false, false, false);
        let lives = self.how.socket;
        if ours {
            self.binding = None;
            self.waived = self.how.recovered_run;
        }
        let job = self.open().map(|round| round.job);
        if let Some(round) = self.round.as_mut().filter(|round| round.stalled.is_none()) {
            round.hear_all();
            if ours {
                round.binding = None;
            }
            if !lives {
                round.waiting.clear();
            } else if round.start.reached != Reached::Unsent {
                // The server goes on without us.
                round.record(false);
            }
        }
        let over = self.round.as_ref().is_some_and(|round| round.end.is_some());
        let over = over || self.round.as_ref().is_some_and(|round| ours && round.stop);
        if lives && !over {
            self.natives
                .iter_mut()
                .for_each(|native| native.behind = None);
        } else {
            self.bury(0);
        }
        let mut failed = false;
        for call in 0..self.calls.len() {
            let of = &self.calls[call];
            if of.result.is_some() {
                continue;
            }
            if of.round.is_none() {
                if ours {
                    self.launch(call, None);
                }
            } else if ours {
                failed |= of.round == job;
                self.result(call, false, "interrupted by shutdown", true);
                self.calls[call].result = Some(Had::Ours);
            }
        }
        if let Some(round) = self.round.as_mut().filter(|_| ours) {
            // Nobody asks for a stage any more.
            round.asked = false;
        }
        self.go_on(lives, ours && failed);
        self.settle();
    }

    /// What becomes of the turn.
    fn go_on(&mut self, lives: bool, failed: bool) {
        let Some(round) = self.round.as_mut().filter(|round| round.stalled.is_none()) else {
            return;
        };
        if round.end.is_some() {
            if round.end == Some(End::Stopped) && failed {
                round.end = Some(End::CutShort);
            }
            return;
        }
        if round.start.recorded {
            round.end = match (round.stop, failed) {
                (true, _) => Some(End::Interrupted),
                _ if lives => None,
                (false, true) => Some(End::CutShort),
                (false, false) => Some(End::Stopped),
            };
        } else if round.stop {
            round.end = Some(End::Interrupted);
        } else {
            // It was never accepted, and is sent again, with what was steered into it.
            let again: Vec<Sent> = [&round.start]
                .into_iter()
                .chain(&round.steers)
                .map(|m| m.sent.clone())
                .collect();
            let reached: Vec<_> = again.iter().map(|sent| self.deliver(sent)).collect();
            if let Some(round) = &mut self.round {
                let all = [&mut round.start].into_iter().chain(&mut round.steers);
                for (message, reached) in all.zip(reached) {
                    message.reached = reached.unwrap_or(message.reached);
                }
            }
        }
    }

    // What happens by itself.

    pub fn settle(&mut self) {
        loop {
            self.give();
            let Some(round) = &mut self.round else {
                let by_itself = !self.how.by_hand && self.triggered && !self.held;
                let bound = self.waived || self.authorized(None);
                self.waived &= self.triggered;
                if by_itself && bound && !self.preflight_blocks() {
                    self.begin();
                    continue;
                }
                return;
            };
            let silent =
                round
                    .steers
                    .iter()
                    .chain([&round.start])
                    .any(|message| match message.reached {
                        Reached::Unsent => self.offline,
                        Reached::Silent => !message.recorded,
                        Reached::Answered => false,
                    });
            let end = round.end;
            if round.stalled.is_some() {
                return;
            } else if end == Some(End::Refused) {
                self.finish(End::Refused);
            } else if silent {
                return;
            } else if !round.waiting.is_empty() {
                let calls = std::mem::take(&mut round.waiting);
                self.stage(&calls);
            } else if let Some(end) = end {
                self.finish(end);
            } else if round.asked {
                self.stage(&[]);
            } else {
                return;
            }
        }
    }

    fn preflight_blocks(&self) -> bool {
        self.calls
            .iter()
            .any(|call| call.blocking && call.result.is_none())
    }

    fn append(&mut self, body: Body, submitted: bool) {
        self.boxes.push(body);
        if submitted {
            self.carried.insert(self.boxes.len() as u64);
        }
    }

    fn arrive(&mut self, body: Body, trigger: bool, submitted: bool) {
        let runs = self.runs();
        if let Some(round) = &mut self.round {
            round.asked |= self.how.at_once && trigger && runs;
            self.mailbox.push_back(Arrival {
                body,
                trigger,
                submitted,
                native: None,
            });
        } else {
            self.triggered |= trigger;
            self.append(body, submitted);
        }
    }

    /// Takes all boxes that the thread lacks into a message.
    fn carry(&mut self, steer: bool) -> Sent {
        let all = 1..=self.boxes.len() as u64;
        let boxes: Vec<u64> = all.filter(|id| !self.carried.contains(id)).collect();
        self.carried.extend(&boxes);
        self.triggered = false;
        let marker = self.boxes.len() as u64 + 1;
        Sent {
            steer,
            boxes,
            marker,
            thread: self.thread,
        }
    }

    /// Hands a message to the server. None: refused.
    fn deliver(&mut self, message: &Sent) -> Option<Reached> {
        if self.offline {
            return Some(Reached::Unsent);
        }
        self.sent.push(message.clone());
        if std::mem::take(&mut self.refuse) {
            return None;
        }
        Some(if self.silence {
            Reached::Silent
        } else {
            Reached::Answered
        })
    }

    fn begin(&mut self) {
        self.waived = false;
        let sent = self.carry(false);
        let reached = self.deliver(&sent);
        self.jobs += 1;
        self.round = Some(Round {
            job: self.jobs,
            binding: self.binding,
            start: Message {
                sent,
                reached: reached.unwrap_or(Reached::Answered),
                recorded: false,
            },
            steers: Vec::new(),
            text: String::new(),
            streaming: false,
            staged: false,
            acted: false,
            asked: false,
            waiting: Vec::new(),
            first_native: self.natives.len(),
            stop: false,
            end: reached.is_none().then_some(End::Refused),
            stalled: None,
        });
    }

    fn stage(&mut self, calls: &[(usize, Called)]) {
        let Some(round) = &mut self.round else { return };
        let text = std::mem::take(&mut round.text);
        (round.staged, round.asked) = (true, false);
        round.acted |= !calls.is_empty();
        let (job, binding) = (round.job, round.binding);
        self.append(Body::new("Agent Response", text), true);
        let mut due = false;
        let first = self.calls.len();
        for (native, called) in calls {
            due |= self.act(*native, *called, job);
        }
        due |= self.mailbox.iter().any(|arrival| arrival.trigger);
        if due {
            self.flush(calls);
        }
        for call in first..self.calls.len() {
            if self.calls[call].result.is_none() {
                self.launch(call, binding);
            }
        }
    }

    /// One action of a stage. Whether it leaves an unsubmitted call.
    fn act(&mut self, native: usize, called: Called, job: u32) -> bool {
        let (_, _, meaning) = spoken(called, native);
        let (tool, arguments, deferred, sound) = match meaning {
            Meaning::Message(text) => {
                self.append(Body::new("Agent Message", text), true);
                self.natives[native].due = Some(Given::Delivered);
                return false;
            }
            Meaning::Call {
                tool,
                arguments,
                deferred,
            } => (tool, arguments, deferred, true),
            Meaning::Malformed {
                tool,
                arguments,
                deferred,
            } => (tool, arguments, deferred, false),
        };
        let sequence = self.calls.len() as u64 + 1;
        self.append(call_box(sequence, &tool, &arguments), !deferred);
        self.calls.push(Call {
            tool,
            arguments,
            limited: matches!(called, Called::Hasty | Called::Await),
            round: Some(job),
            blocking: false,
            native: (!deferred).then_some(native),
            result: None,
        });
        if deferred {
            self.natives[native].due = Some(Given::Deferred);
        }
        if !sound {
            self.result(self.calls.len() - 1, false, "", true);
            self.calls[sequence as usize - 1].result = Some(Had::Ours);
            if let Some(arrival) = self.mailbox.back_mut() {
                arrival.body.hidden = "turnkeep.malformed-call/1";
                arrival.native = None;
            }
            if deferred {
                self.natives[native].due = Some(Given::Either);
            }
        }
        deferred
    }

    fn flush(&mut self, calls: &[(usize, Called)]) {
        for arrival in std::mem::take(&mut self.mailbox) {
            self.append(arrival.body, arrival.submitted);
        }
        if let Some(round) = &mut self.round {
            round.asked = false;
        }
        let sent = self.carry(true);
        if sent.boxes.is_empty() {
            return;
        }
        let Some(reached) = self.deliver(&sent) else {
            self.give_back(&sent);
            self.triggered = true;
            return;
        };
        let Some(round) = &mut self.round else { return };
        for (native, _) in calls {
            self.natives[*native].behind = Some(round.steers.len());
        }
        round.steers.push(Message {
            sent,
            reached,
            recorded: false,
        });
    }

    fn give_back(&mut self, sent: &Sent) {
        for id in &sent.boxes {
            self.carried.remove(id);
        }
    }

    fn launch(&mut self, call: usize, binding: Option<u8>) {
        let of = &self.calls[call];
        if !self.offline {
            self.launches.push(Launch {
                sequence: call as u64 + 1,
                tool: of.tool.clone(),
                arguments: of.arguments.clone(),
                binding,
            });
        }
    }

    /// The result of a call arrives; without a text it is one of ours in words of its own.
    fn result(&mut self, call: usize, ok: bool, text: &str, triggers: bool) {
        let word = if ok { "ok" } else { "failed" };
        let contents = format!("result of call {}: {word}\n{text}", call + 1);
        let mut body = Body::new("Tool Result", contents).hidden("turnkeep.tool-result/1");
        body.begins = text.is_empty();
        let native = self.calls[call]
            .native
            .filter(|native| !self.natives[*native].dead);
        if let Some(native) = native {
            let text = text.to_owned();
            let made = text.is_empty();
            self.natives[native].due = Some(if made {
                Given::Failure
            } else {
                Given::Result { ok, text }
            });
        }
        // What was asked before the first round does not make one.
        let ahead = self.calls[call].round.is_none() && self.jobs == 0;
        let (trigger, submitted) = (triggers && native.is_none() && !ahead, native.is_some());
        self.arrive(body, trigger, submitted);
        if let Some(arrival) = self.mailbox.back_mut() {
            arrival.native = arrival.native.or(native);
        }
    }

    /// The server waits no longer for the answers that it has not got: what they were to bring arrives.
    fn bury(&mut self, first: usize) {
        for (at, native) in self.natives.iter_mut().enumerate().skip(first) {
            native.dead |= native.given.is_none();
            native.behind = None;
            let lost = native.dead && native.given.is_none();
            let arrivals = self.mailbox.iter_mut();
            for arrival in arrivals.filter(|arrival| lost && arrival.native == Some(at)) {
                (arrival.submitted, arrival.trigger, arrival.native) = (false, true, None);
            }
        }
        for call in &mut self.calls {
            call.native = call.native.filter(|native| !self.natives[*native].dead);
        }
    }

    /// Gives the server the answers that it waits for and that nothing holds back.
    fn give(&mut self) {
        let steers = self.round.as_ref().map_or(&[][..], |round| &round.steers);
        for native in &mut self.natives {
            let silent = native.behind.and_then(|at| steers.get(at));
            let silent =
                silent.is_some_and(|steer| steer.reached == Reached::Silent && !steer.recorded);
            if !self.offline && !native.dead && !silent && native.given.is_none() {
                native.given = native.due.clone();
            }
        }
    }

    fn finish(&mut self, end: End) {
        let Some(round) = &mut self.round else { return };
        let steers = std::mem::take(&mut round.steers);
        let start = round.start.clone();
        let first = round.first_native;
        for steer in steers.iter().filter(|steer| !steer.recorded) {
            self.give_back(&steer.sent);
            self.triggered = true;
        }
        let interrupted = end == End::Interrupted;
        if end == End::Refused || (interrupted && !start.recorded) {
            self.give_back(&start.sent);
        }
        let mut natives = self.natives.iter().skip(first);
        let open = natives.any(|native| !native.dead && native.given.is_none());
        self.bury(first);
        match end {
            End::Interrupted => {
                self.fail_open_calls("interrupted");
                self.complete();
            }
            // A completed turn with an open call breaks the protocol.
            End::Completed if !open => self.complete(),
            End::CutShort => self.complete(),
            End::Completed | End::Failed | End::Stopped | End::Refused => {
                self.binding = None;
                self.waived = false;
                if let Some(round) = &mut self.round {
                    round.stalled = Some(end);
                }
            }
        }
    }

    fn fail_open_calls(&mut self, text: &str) {
        let Some(job) = self.round.as_ref().map(|round| round.job) else {
            return;
        };
        for call in 0..self.calls.len() {
            if self.calls[call].round == Some(job) && self.calls[call].result.is_none() {
                self.result(call, false, text, false);
                self.calls[call].result = Some(Had::Ours);
            }
        }
    }

    fn complete(&mut self) {
        let Some(round) = self.round.take() else {
            return;
        };
        // A message that was refused gets no response.
        if round.stalled != Some(End::Refused) {
            self.append(Body::new("Agent Response", round.text), true);
        }
        for arrival in std::mem::take(&mut self.mailbox) {
            self.arrive(arrival.body, arrival.trigger, arrival.submitted);
        }
    }
}

impl Round {
    fn hear_all(&mut self) {
        let all = self.steers.iter_mut().chain([&mut self.start]);
        for message in all.filter(|message| message.reached == Reached::Silent) {
            message.reached = Reached::Answered;
        }
    }

    /// What the server took stands in its history.
    fn record(&mut self, steers: bool) {
        self.start.recorded = true;
        for steer in self
            .steers
            .iter_mut()
            .filter(|steer| steer.reached != Reached::Unsent)
        {
            steer.recorded |= steers;
        }
    }
}
