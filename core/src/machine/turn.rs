//! The volatile life of one turn: what was heard of it on this connection.

use alloc::{borrow::ToOwned, boxed::Box, collections::BTreeMap, string::String, vec::Vec};

use super::streamed::Streamed;
use crate::{
    command::{Binding, ToolDelivery},
    event::{DeltaKind, Failure, Item, Origin, Phase, Tokens, Usage},
    hash::hash,
    history::History,
    id::{
        CallId, CommandId, ConversationId, Epoch, ItemId, MessageId, QuestionId, ToolCallId,
        TurnId, TurnNo,
    },
    round::Cut,
    text::Text,
    time::Timestamp,
    tools::Meaning,
    wire::notification::WireUsage,
};

/// How far a turn is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum TurnState {
    /// Its message is durable and waits for the connection, the thread or another turn.
    Waiting,
    /// `turn/start` may have left; the server has not named the turn.
    Sent {
        /// The request.
        request: u64,
    },
    /// The server runs it.
    Running {
        /// The server's name for it; provisional until a frame other than the response names it.
        native: TurnId,
        /// Whether such a frame came.
        confirmed: bool,
    },
    /// The connection ended under it, or its start was not answered: the history tells.
    Suspended {
        /// The server's name for it, where it had told one.
        native: Option<TurnId>,
    },
}

impl TurnState {
    pub(crate) const fn is_waiting(&self) -> bool {
        matches!(self, Self::Waiting)
    }
}

/// Who wants a turn to stop, and how far that is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum Stop {
    /// Nobody.
    #[default]
    No,
    /// The application answered a question with `cancel`: the server ends the turn, or does not.
    Cancelled,
    /// Somebody; nothing has left.
    Wanted {
        /// The commands that wait for it.
        commands: Vec<CommandId>,
    },
    /// `turn/interrupt` may have left.
    Sent {
        /// The request.
        request: u64,
        /// The commands that wait for it.
        commands: Vec<CommandId>,
    },
    /// The server said yes, and the end has not come.
    Granted {
        /// The commands that wait for the end.
        commands: Vec<CommandId>,
    },
}

impl Stop {
    /// Whether `turn/interrupt` is still to be asked for.
    pub(crate) const fn is_unasked(&self) -> bool {
        matches!(self, Self::No | Self::Cancelled)
    }

    pub(crate) fn take_commands(&mut self) -> Vec<CommandId> {
        match self {
            Self::No | Self::Cancelled => Vec::new(),
            Self::Wanted { commands }
            | Self::Sent { commands, .. }
            | Self::Granted { commands } => core::mem::take(commands),
        }
    }
}

/// How much of a turn the application still hears.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Audience {
    /// Everything.
    All,
    /// The end only: the turn was abandoned.
    EndOnly,
    /// Nothing: the end was told before the server's own.
    Told,
}

/// A message that was steered into the turn.
#[derive(Clone, Debug)]
pub(crate) struct Steer {
    pub(crate) message: MessageId,
    /// The connection that it left on.
    pub(crate) sent_on: Epoch,
    pub(crate) state: SteerState,
    /// Those that wait to be told whether the server took it.
    pub(crate) commands: Vec<CommandId>,
}

/// How far a steered message is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SteerState {
    /// It waits for the server to name the turn, or for the steer before it.
    Waiting,
    /// `turn/steer` may have left.
    Sent,
    /// The server said yes; the message is in no item yet.
    Answered,
    /// Its item was seen: the server has it.
    Recorded,
    /// No answer came: its item may still be seen.
    Unknown,
}

/// A native call that waits for us.
#[derive(Clone, Debug)]
pub(crate) struct OpenCall {
    /// Its number; a message has none.
    pub(crate) id: Option<ToolCallId>,
    /// The server's request, as raw JSON; none while no connection has told it.
    pub(crate) request: Option<String>,
    /// The steer of its stage, while that is unanswered: the call is answered after it.
    pub(crate) after: Option<MessageId>,
    /// Whether there is an answer, which waits for that.
    pub(crate) ready: bool,
}

impl OpenCall {
    /// Where it stands among those of its turn.
    pub(crate) fn place(&self) -> u64 {
        self.id.map_or(0, |id| id.sequence)
    }
}

/// A native call that was read and not staged yet.
#[derive(Debug, Clone)]
pub(crate) struct Unstaged {
    /// The server's name for it.
    pub(crate) native: CallId,
    /// The server's request.
    pub(crate) request: String,
    /// The native tool.
    pub(crate) tool: String,
    /// What it means.
    pub(crate) meaning: Meaning,
    /// How its tool delivers.
    pub(crate) delivery: ToolDelivery,
}

/// A native call that its turn knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Known {
    /// It waits to be staged.
    Unstaged,
    /// A call of ours.
    Call(ToolCallId),
    /// A message.
    Message,
}

/// One turn.
#[derive(Clone, Debug)]
// What each delta looks at stands first, and together.
#[repr(C)]
pub(crate) struct Turn {
    pub(crate) state: TurnState,
    pub(crate) no: TurnNo,
    pub(crate) heard: Timestamp,
    pub(crate) audience: Audience,
    pub(crate) started_told: bool,
    pub(crate) text: TurnText,
    pub(crate) conversation: ConversationId,
    pub(crate) origin: Origin,
    pub(crate) message: Option<MessageId>,
    pub(crate) wants_json: bool,
    pub(crate) stop: Stop,
    pub(crate) used: Option<Usage>,
    pub(crate) held_error: Option<Box<Failure>>,
    /// Those that wait for us.
    pub(crate) calls: BTreeMap<CallId, OpenCall>,
    /// All of the turn, by the hash of their name, with the hash of what was called.
    pub(crate) known_calls: BTreeMap<u64, (Known, u64)>,
    /// The requests of calls that were answered on this connection, by the hash of the call's name.
    pub(crate) answered: BTreeMap<u64, String>,
    /// Calls that were read and not staged yet, in the order in which they came.
    pub(crate) unstaged: Vec<Unstaged>,
    /// A stage without actions is wanted, for a flush.
    pub(crate) stage_wanted: bool,
    /// Those that wait to be told whether what they said was steered, and are in no flush yet.
    pub(crate) steer_commands: Vec<CommandId>,
    /// On whose behalf it runs.
    pub(crate) binding: Option<Box<Binding>>,
    /// Calls of it failed with an earlier life: the model is to hear of that.
    pub(crate) calls_failed: bool,
    pub(crate) questions: Vec<QuestionId>,
    pub(crate) steers: Vec<Steer>,
    /// How many messages were ever to be steered into it.
    pub(crate) steered: u32,
    pub(crate) open_items: Vec<ItemId>,
    /// That it is suspended was told, and nothing since.
    pub(crate) suspended_told: bool,
    /// Our own message was seen: what came before it is not the answer to it.
    pub(crate) own_seen: bool,
    /// The connection that its message left on.
    pub(crate) sent_on: Epoch,
    /// When it was first to be stopped.
    pub(crate) stop_since: Option<Timestamp>,
    /// A look into the history for an end that never came.
    pub(crate) history: Option<Box<History>>,
    /// Something of it may have been missed between two connections: the history tells.
    pub(crate) gap: bool,
    /// It is of an earlier life.
    pub(crate) recovered: bool,
    /// How often nobody answered that it was to be taken back.
    pub(crate) reverts: u32,
    /// The end that waits for the answer of a steer.
    pub(crate) pending_end: Option<Box<PendingEnd>>,
}

/// An end of the server that is not told yet.
#[derive(Clone, Debug)]
pub(crate) struct PendingEnd {
    pub(crate) outcome: crate::event::Outcome,
    pub(crate) source: crate::event::EndSource,
}

impl Turn {
    pub(crate) fn new(
        no: TurnNo,
        conversation: ConversationId,
        message: Option<MessageId>,
        wants_json: bool,
        now: Timestamp,
    ) -> Self {
        Self {
            no,
            conversation,
            origin: if message.is_some() {
                Origin::Ours
            } else {
                Origin::Server
            },
            message,
            wants_json,
            state: TurnState::Waiting,
            stop: Stop::No,
            audience: Audience::All,
            text: TurnText::default(),
            used: None,
            held_error: None,
            calls: BTreeMap::new(),
            known_calls: BTreeMap::new(),
            answered: BTreeMap::new(),
            unstaged: Vec::new(),
            stage_wanted: false,
            steer_commands: Vec::new(),
            binding: None,
            calls_failed: false,
            questions: Vec::new(),
            steers: Vec::new(),
            steered: 0,
            open_items: Vec::new(),
            heard: now,
            started_told: false,
            suspended_told: false,
            own_seen: false,
            sent_on: Epoch(0),
            stop_since: None,
            history: None,
            gap: false,
            recovered: false,
            reverts: 0,
            pending_end: None,
        }
    }

    pub(crate) fn native(&self) -> Option<&TurnId> {
        match &self.state {
            TurnState::Running { native, .. } => Some(native),
            TurnState::Waiting | TurnState::Sent { .. } | TurnState::Suspended { .. } => None,
        }
    }

    /// The server's name for a turn that is suspended.
    pub(crate) fn suspended(&self) -> Option<&TurnId> {
        match &self.state {
            TurnState::Suspended { native } => native.as_ref(),
            TurnState::Waiting | TurnState::Sent { .. } | TurnState::Running { .. } => None,
        }
    }

    /// The server's name for it, whether it is suspended or not.
    pub(crate) fn name(&self) -> Option<&TurnId> {
        self.native().or(self.suspended())
    }

    /// Whether its message may have arrived, and no name of its turn is known.
    pub(crate) const fn is_unnamed(&self) -> bool {
        matches!(
            self.state,
            TurnState::Sent { .. } | TurnState::Suspended { native: None }
        )
    }

    /// Whether the history is to be read for it.
    pub(crate) fn is_in_doubt(&self) -> bool {
        self.gap || self.is_suspended()
    }

    /// Whether only the history tells what became of it.
    pub(crate) fn is_suspended(&self) -> bool {
        matches!(self.state, TurnState::Suspended { .. })
    }

    pub(crate) fn is_native(&self, turn: &str) -> bool {
        self.native().is_some_and(|native| native.is(turn))
    }

    /// Whether a steer's answer is still to come.
    pub(crate) fn steer_unanswered(&self) -> bool {
        self.steers
            .iter()
            .any(|s| matches!(s.state, SteerState::Sent))
    }

    pub(crate) fn add_usage(&mut self, usage: &WireUsage, before: Option<Tokens>) {
        let so_far = self.used.unwrap_or_default().turn;
        // A total that falls is a compaction: what was used before stays used.
        let grown = match before {
            Some(before) => usage.total.minus(before).unwrap_or_default(),
            None => usage.last,
        };
        self.used = Some(Usage {
            turn: so_far.plus(grown),
            last: usage.last,
            thread: usage.total,
            context_window: usage.model_context_window,
        });
    }
}

impl Tokens {
    fn plus(self, other: Self) -> Self {
        Self {
            total_tokens: self.total_tokens.saturating_add(other.total_tokens),
            input_tokens: self.input_tokens.saturating_add(other.input_tokens),
            cached_input_tokens: self
                .cached_input_tokens
                .saturating_add(other.cached_input_tokens),
            output_tokens: self.output_tokens.saturating_add(other.output_tokens),
            reasoning_output_tokens: self
                .reasoning_output_tokens
                .saturating_add(other.reasoning_output_tokens),
        }
    }
}

/// The text of a turn, by item: what is complete overrides what was streamed.
#[derive(Clone, Debug, Default)]
// What each delta looks at stands first, and together.
#[repr(C)]
pub(crate) struct TurnText {
    /// The last item of any kind that a delta named: most deltas name it again.
    last: Option<ItemId>,
    /// The item that streams; a turn streams one message at a time but for odd servers.
    current: Option<(ItemId, Streamed)>,
    others: BTreeMap<ItemId, Streamed>,
    answer: Option<String>,
    unphased: Option<String>,
    commentary: Option<String>,
    /// Complete messages since the last stage.
    said: Vec<String>,
    /// How many messages are complete.
    answers: u32,
    /// How much of messages that stream stands in a stage.
    cut: BTreeMap<ItemId, String>,
    /// The same, where an earlier connection or life knew the message by another name.
    cut_before: Option<Cut>,
    /// The hashes of the ids and the texts of complete messages: the end of a turn says the last one
    /// again, and the history says them under other ids.
    done: Vec<u64>,
    /// The hashes of the texts that the history has said and no frame: one of them may yet come, where
    /// the history was read in between.
    only_past: Vec<u64>,
    /// Messages that began since the history was read: they are none of those.
    begun: Vec<ItemId>,
}

impl TurnText {
    /// Takes what was said since the last stage, and how many messages were complete so far.
    pub(crate) fn stage(&mut self) -> (String, u32, Option<Cut>) {
        let mut parts = core::mem::take(&mut self.said);
        let streaming = self
            .others
            .iter()
            .chain(self.current.as_ref().map(|(i, t)| (i, t)));
        for (item, text) in streaming {
            let text = text.whole();
            parts.push(rest(&text, self.cut.get(item)).into());
            self.cut.insert(item.clone(), text.into_owned());
        }
        let current = self.current.as_ref().map(|(_, text)| text.whole());
        let cut = current.and_then(|text| Cut::of(&text));
        (joined(&parts), self.answers, cut)
    }

    /// Takes the complete messages since the last stage.
    pub(crate) fn take_said(&mut self) -> Vec<String> {
        core::mem::take(&mut self.said)
    }

    /// Takes all that the history has said, of which so many messages stand in stages, and what was
    /// heard and is not in it.
    pub(crate) fn said_again(
        &mut self,
        all: &[Item],
        (staged, cut): (u32, Option<Cut>),
        live: Vec<String>,
    ) {
        let texts = all.iter().filter_map(|item| item.text.clone());
        let mut past: Vec<String> = texts.skip(staged as usize).collect();
        let only_past = past.iter().filter(|text| !live.contains(text));
        self.only_past = only_past.map(|text| hash(text.as_bytes())).collect();
        self.begun.clear();
        let rest = past
            .first()
            .and_then(|first| Some(cut?.rest(first)?.to_owned()));
        // Where the history lacks it, it may still be completed.
        self.cut_before = cut.filter(|_| rest.is_none());
        if let (Some(rest), Some(first)) = (rest, past.first_mut()) {
            *first = rest;
        }
        let only_live = live.into_iter().filter(|text| !past.contains(text));
        let only_live: Vec<String> = only_live.collect();
        self.answers = u32::try_from(all.len() + only_live.len()).unwrap_or(u32::MAX);
        self.said = past;
        self.said.extend(only_live);
    }

    /// The item's id, shared with earlier events of it.
    pub(crate) fn item(&mut self, id: &str) -> Option<ItemId> {
        match &self.last {
            Some(last) if last.as_str() == id => Some(last.clone()),
            _ => {
                self.last = Some(ItemId::new(id)?);
                self.last.clone()
            }
        }
    }

    /// What comes next is of an item that a delta has named.
    pub(crate) fn resume(&mut self, item: &ItemId) {
        if self.last.as_ref() != Some(item) {
            self.last = Some(item.clone());
        }
    }

    /// Takes a piece of the item that the last delta named, of which so much was taken before.
    pub(crate) fn stream(&mut self, kind: DeltaKind, text: &Text, taken: usize) {
        if kind != DeltaKind::Agent {
            return;
        }
        let Some(so_far) = self.streamed() else {
            return;
        };
        if taken == 0 && text.is_shared() && text.len() >= Text::LARGE {
            so_far.share(text.clone());
        } else {
            so_far.push(text.get(taken..).unwrap_or_default());
        }
    }

    /// What was streamed of the item that the last delta named, which is the current one from here on.
    fn streamed(&mut self) -> Option<&mut Streamed> {
        let item = self.last.as_ref()?;
        let is_current = matches!(&self.current, Some((current, _)) if current == item);
        if !is_current {
            let so_far = self.others.remove(item).unwrap_or_default();
            let previous = self.current.replace((item.clone(), so_far));
            self.others.extend(previous);
        }
        self.current.as_mut().map(|(_, so_far)| so_far)
    }

    /// A message begins.
    pub(crate) fn begin(&mut self, item: &Item) {
        if !self.only_past.is_empty() {
            self.begun.push(item.id.clone());
        }
    }

    /// Whether a complete message is one that the history has said already.
    fn is_past(&mut self, item: &Item) -> bool {
        let Some(text) = item.text.as_ref().filter(|_| !self.only_past.is_empty()) else {
            return false;
        };
        let text = hash(text.as_bytes());
        let found = self.only_past.iter().position(|past| *past == text);
        let found = found.filter(|_| !self.begun.contains(&item.id));
        found.is_some_and(|at| {
            self.only_past.swap_remove(at);
            true
        })
    }

    /// Takes a complete message. Returns its text where it may be the answer.
    pub(crate) fn complete(&mut self, item: &Item) {
        if self.current.as_ref().is_some_and(|(id, _)| *id == item.id) {
            self.current = None;
        }
        self.others.remove(&item.id);
        if self.is_past(item) {
            self.done.push(hash(item.id.as_bytes()));
            self.cut.remove(&item.id);
            return;
        }
        self.answers = self.answers.saturating_add(1);
        self.done.push(hash(item.id.as_bytes()));
        if let Some(text) = &item.text {
            self.done.push(hash(text.as_bytes()));
        }
        let cut = self.cut.remove(&item.id);
        if let Some(text) = item.text.as_ref().filter(|text| !text.is_empty()) {
            let before = self.cut_before.filter(|_| cut.is_none());
            match before.and_then(|before| before.rest(text)) {
                Some(rest) => {
                    self.cut_before = None;
                    self.said.push(rest.into());
                }
                None => self.said.push(rest(text, cut.as_ref()).into()),
            }
        }
        let Some(text) = item.text.as_ref().filter(|t| !t.trim().is_empty()) else {
            return;
        };
        match &item.phase {
            Some(Phase::FinalAnswer) => self.answer = Some(text.clone()),
            Some(Phase::Commentary | Phase::PartialAnswer) => {
                self.commentary = Some(text.clone());
            }
            // An unknown phase says nothing, just as none.
            Some(Phase::Other(_)) | None => self.unphased = Some(text.clone()),
        }
    }

    /// Takes a message that the end of the turn lists, unless it was heard before.
    pub(crate) fn complete_late(&mut self, item: &Item) {
        let text = item.text.as_ref().map(|text| hash(text.as_bytes()));
        let heard = self.done.contains(&hash(item.id.as_bytes()))
            || text.is_some_and(|text| self.done.contains(&text));
        let (said, answers) = (self.said.clone(), self.answers);
        self.complete(item);
        if heard {
            (self.said, self.answers) = (said, answers);
        }
    }

    /// Takes the last message that an earlier life recorded.
    pub(crate) fn recover(&mut self, text: &str) {
        self.unphased = Some(text.into());
    }

    /// Forgets what came before our own message in a turn that ran already.
    pub(crate) fn restart(&mut self) {
        *self = Self::default();
    }

    /// The last non-blank answer, else the last non-blank message without a known phase.
    pub(crate) fn final_text(&self) -> Option<&String> {
        self.answer.as_ref().or(self.unphased.as_ref())
    }

    /// The final text, else what was streamed.
    pub(crate) fn so_far(&self) -> Option<String> {
        if let Some(text) = self.final_text() {
            return Some(text.clone());
        }
        let streaming = self.current.as_ref().map(|(_, text)| text);
        let streaming = streaming.or_else(|| self.others.values().next_back())?;
        let text = streaming.whole();
        (!text.trim().is_empty()).then(|| text.into_owned())
    }

    /// A guess where no message is the answer.
    pub(crate) fn candidate(&self) -> Option<String> {
        match self.final_text() {
            Some(_) => None,
            None => self.commentary.clone(),
        }
    }
}

/// What follows a beginning that stands in a stage already.
fn rest<'a>(text: &'a str, cut: Option<&String>) -> &'a str {
    cut.and_then(|cut| text.strip_prefix(cut.as_str()))
        .unwrap_or(text)
}

/// Messages one after the other, each on a line of its own.
fn joined(parts: &[String]) -> String {
    let mut all = String::new();
    for part in parts.iter().filter(|part| !part.is_empty()) {
        if !all.is_empty() && !all.ends_with('\n') {
            all.push('\n');
        }
        all.push_str(part);
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::text::Spare;

    fn message(id: &str, text: &str, phase: Option<Phase>) -> Item {
        Item {
            id: ItemId::new(id).unwrap(),
            kind: Item::AGENT_MESSAGE.into(),
            text: Some(text.into()),
            phase,
            client_id: None,
            raw: crate::RawJson::parse("{}").unwrap(),
        }
    }

    #[test]
    fn the_answer_is_chosen_by_phase() {
        let mut text = TurnText::default();
        text.item("it_2").unwrap();
        text.stream(DeltaKind::Agent, &"It is ".into(), 0);
        assert_eq!(text.so_far().as_deref(), Some("It is "));
        text.complete(&message("it_1", "Looking.", Some(Phase::Commentary)));
        text.complete(&message("it_2", "It is 42.", Some(Phase::FinalAnswer)));
        text.complete(&message("it_3", "Bye.", Some(Phase::Commentary)));
        text.complete(&message("it_4", " \n", Some(Phase::FinalAnswer)));
        assert_eq!(text.final_text().map(String::as_str), Some("It is 42."));
        assert_eq!(text.candidate(), None);
    }

    #[test]
    fn a_piece_that_is_shared_is_text_like_any_other() {
        let mut text = TurnText::default();
        let stream = |text: &mut TurnText, piece: &str| {
            let mut piece = Text::from(piece);
            piece.settle(100, &mut Spare::default());
            text.stream(DeltaKind::Agent, &piece, 0);
            piece.is_shared()
        };
        let long = "é".repeat(Text::LARGE);
        text.item("a").unwrap();
        assert!(!stream(&mut text, "1"));
        assert!(stream(&mut text, &long));
        assert_eq!(text.current.as_ref().unwrap().1.pieces(), 2);
        assert!(!stream(&mut text, "2"));
        text.stream(DeltaKind::Agent, &Text::from("23"), 1);
        assert_eq!(text.so_far(), Some(alloc::format!("1{long}23")));
        assert_eq!(text.stage().0, alloc::format!("1{long}23"));
        stream(&mut text, "4");
        text.item("b").unwrap();
        stream(&mut text, "5");
        assert_eq!(text.so_far().as_deref(), Some("5"));
        text.complete(&message("a", &alloc::format!("1{long}234"), None));
        assert_eq!(text.stage().0, "4\n5");
    }

    #[test]
    fn without_a_phase_the_last_message_is_the_answer_and_commentary_is_a_guess() {
        let mut text = TurnText::default();
        text.complete(&message("a", "on it", Some(Phase::Commentary)));
        assert_eq!(
            (text.final_text(), text.candidate().as_deref()),
            (None, Some("on it"))
        );
        text.complete(&message("b", "one", None));
        text.complete(&message("c", "two", Some(Phase::Other("epilogue".into()))));
        assert_eq!(text.final_text().map(String::as_str), Some("two"));
    }

    #[test]
    fn what_the_history_has_said_is_not_said_again_by_its_own_completion() {
        let read = |text: &mut TurnText| {
            let all = ["w1", "w2"].map(|t| message(&alloc::format!("item-{t}"), t, None));
            all.iter().for_each(|item| text.complete(item));
            text.said_again(&all, (0, None), Vec::new());
        };
        let mut text = TurnText::default();
        read(&mut text);
        // The history was read after the message was stored and before its frame came.
        text.complete(&message("msg_1", "w2", None));
        assert_eq!(text.stage().0, "w1\nw2");

        let mut text = TurnText::default();
        read(&mut text);
        // The same words again, in a message that began since.
        let again = message("msg_2", "w2", None);
        text.begin(&again);
        text.complete(&again);
        assert_eq!((text.stage().0.as_str(), text.answers), ("w1\nw2\nw2", 3));
    }

    #[test]
    fn usage_is_the_growth_of_the_total_and_never_negative() {
        let usage = |total, last| WireUsage {
            total: Tokens {
                total_tokens: total,
                ..Tokens::default()
            },
            last: Tokens {
                total_tokens: last,
                ..Tokens::default()
            },
            model_context_window: None,
        };
        let tokens = |n| {
            Some(Tokens {
                total_tokens: n,
                ..Tokens::default()
            })
        };
        let mut turn = Turn::new(TurnNo(1), ConversationId(1), None, false, Timestamp(0));
        turn.add_usage(&usage(1_250, 250), tokens(1_000));
        assert_eq!(turn.used.unwrap().turn.total_tokens, 250);
        turn.add_usage(&usage(300, 40), tokens(1_250));
        turn.add_usage(&usage(340, 40), tokens(300));
        assert_eq!(turn.used.unwrap().turn.total_tokens, 290);
    }
}
