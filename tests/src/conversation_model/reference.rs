//! The reference: a conversation as section 2 of the specification has it, with neither records nor frames.
//!
//! It knows what the server does, since the server does what the case says. [`Reference::settle`] does what happens by itself.

mod asked;
mod rounds;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::{
    boxes::Body,
    op::{Called, How, Op, Outcome, Step},
};

/// What a small mailbox takes.
pub(super) const SMALL: usize = 3;

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
pub(super) enum Given {
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
pub(super) struct Native {
    pub(super) given: Option<Given>,
    due: Option<Given>,
    /// The steer that is answered before it, among those of its round.
    behind: Option<usize>,
    /// The server does not wait for it any more.
    pub(super) dead: bool,
}

#[derive(Clone, Debug)]
struct Call {
    tool: String,
    arguments: String,
    limited: bool,
    /// The round that it belongs to; none before the first.
    round: Option<u32>,
    blocking: bool,
    /// The server's request behind it.
    spoken: Option<usize>,
    /// The same, where its result answers it.
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
pub(super) struct Launch {
    pub(super) sequence: u64,
    pub(super) tool: String,
    pub(super) arguments: String,
    pub(super) binding: Option<u8>,
}

/// A message that the server gets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Sent {
    pub(super) steer: bool,
    pub(super) boxes: Vec<u64>,
    pub(super) marker: u64,
    pub(super) thread: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Reached {
    /// It has not left.
    Unsent,
    /// Our life ended before it left.
    Never,
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
pub(super) struct Reference {
    pub(super) how: How,
    pub(super) boxes: Vec<Body>,
    /// Boxes that the native thread has, or that are on their way to it.
    pub(super) carried: BTreeSet<u64>,
    thread: u32,
    mailbox: VecDeque<Arrival>,
    calls: Vec<Call>,
    pub(super) natives: Vec<Native>,
    keys: BTreeMap<u8, Vec<Body>>,
    triggered: bool,
    round: Option<Round>,
    pub(super) jobs: u32,
    binding: Option<u8>,
    held: bool,
    preflighted: bool,
    /// What the server got, in order.
    pub(super) sent: Vec<Sent>,
    /// What the application was given, in order.
    pub(super) launches: Vec<Launch>,
    silence: bool,
    refuse: bool,
    /// No frame of ours leaves.
    offline: bool,
    /// What triggers is of an earlier life, and needs no binding.
    waived: bool,
    marks: u64,
}

/// The words of an answer; several where the specification does not say which comes first.
pub(super) type Answer = Vec<&'static str>;

impl Reference {
    pub(super) fn new(how: How) -> Self {
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
    pub(super) fn status(&self) -> Answer {
        match &self.round {
            Some(round) if round.stalled.is_some() => vec!["stalled"],
            Some(_) => vec!["running"],
            None if self.held => vec!["held"],
            // About to begin, once somebody lets it.
            None if self.triggered => vec!["running", "quiet"],
            None => vec!["quiet"],
        }
    }

    /// What waits in the mailbox.
    pub(super) fn waiting(&self) -> Vec<&Body> {
        self.mailbox.iter().map(|arrival| &arrival.body).collect()
    }

    /// What the model said last.
    pub(super) fn said(&self) -> String {
        format!("said m{}", self.marks)
    }

    pub(super) fn calls(&self) -> usize {
        self.calls.len()
    }

    /// Whether a turn runs at the server.
    pub(super) fn runs(&self) -> bool {
        self.open().is_some_and(|round| round.end.is_none())
    }

    fn open(&self) -> Option<&Round> {
        self.round.as_ref().filter(|round| round.stalled.is_none())
    }

    /// Whether an operation is one that the server would do now.
    pub(super) fn allows(&self, op: &Op) -> bool {
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
    pub(super) fn says_before(&self, step: &Step) -> bool {
        let ends = matches!(
            step.op,
            Op::Stream { .. } | Op::Calls { .. } | Op::Complete { .. } | Op::Lose | Op::Crash
        );
        self.open().is_some_and(|round| round.streaming) && (ends || step.cut.is_some())
    }

    /// Whether the server speaks before it does an operation.
    pub(super) fn speaks_before(&self, op: &Op) -> bool {
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
}
