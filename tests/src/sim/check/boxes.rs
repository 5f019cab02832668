//! Rule 11: Every arrival becomes exactly one box, every box is submitted to a native thread at most once, no arrival is lost, and
//! promised numbers are kept. A round that nobody asked for begins only where something new must be heard.

use std::collections::{BTreeMap, BTreeSet};

use turnkeep_core::{
    BoxId, Command, ConversationId, Durable, MessageId, Outcome, Record,
    command::Rendering,
    durable::DurableConversation,
    prompt::{PromptChange, PromptFields, PromptKind},
    round::{Action, RoundChange},
    tools::CallChange,
    transcript::{BoxBody, BoxSet, box_type},
};

use super::accepted::Accepted;
use crate::sim::{
    application::{Application, Arrived},
    marks::marks,
    server::Fact,
};

#[derive(Debug, Default)]
pub(super) struct Boxes {
    /// What a message carries.
    carried: BTreeMap<MessageId, (ConversationId, BoxSet)>,
    /// The last message that carried a box to the present thread.
    carrier: BTreeMap<(ConversationId, BoxId), MessageId>,
    /// How messages ended.
    ends: BTreeMap<MessageId, Outcome>,
    /// The number that the answer will get.
    promised: BTreeMap<ConversationId, BoxId>,
    /// Whether a stall has a text.
    stalled_with_text: BTreeMap<ConversationId, bool>,
    /// Conversations in which something came since a message was made that the model must hear of.
    news: BTreeSet<ConversationId>,
    /// The conversation in which the application has a round begun, in this step.
    asked: Option<ConversationId>,
    /// What messages of ours say that stand in the history.
    recorded: BTreeMap<String, String>,
    checked: BTreeSet<String>,
}

impl Boxes {
    pub(super) fn life_begins(&mut self) {
        *self = Self {
            recorded: std::mem::take(&mut self.recorded),
            checked: std::mem::take(&mut self.checked),
            ..Self::default()
        };
    }

    pub(super) fn input(&mut self) {
        self.asked = None;
    }

    pub(super) fn command(&mut self, command: &Command) {
        self.asked = match command {
            Command::Send { conversation, .. }
            | Command::Begin { conversation }
            | Command::Restart { conversation, .. } => Some(*conversation),
            _ => None,
        };
    }

    pub(super) fn fact(&mut self, fact: &Fact) {
        if let Fact::Recorded {
            message: Some(message),
            text,
            ..
        } = fact
        {
            self.recorded.insert(message.clone(), text.clone());
        }
    }

    /// A record, and what all of them make up to it.
    pub(super) fn record(&mut self, record: &Record, made: &Durable) {
        match record {
            Record::Arrival {
                conversation,
                boxes,
                ..
            } if boxes.iter().any(|body| !body.is_inert()) => {
                self.news.insert(*conversation);
            }
            // What waits to be heard in the one waits in the other.
            Record::Forked(forked) if self.news.contains(&forked.from) => {
                self.news.insert(forked.conversation);
            }
            Record::Round {
                conversation,
                change,
            } => self.round(*conversation, change, made),
            Record::Submission {
                conversation,
                message,
                boxes,
            } => self.carry(*conversation, message, boxes, made),
            Record::ToolCall { call, change } => {
                let heard = match change {
                    CallChange::Answered { given, .. } | CallChange::Closed { given, .. } => !given,
                    _ => false,
                };
                let of = made.call(*call).map(|call| call.conversation);
                self.news.extend(of.filter(|_| heard));
            }
            Record::ThreadCreation { conversation, .. } => {
                let known = made.conversation(*conversation);
                let thread = known.and_then(|known| known.creation.as_ref()?.thread());
                if thread.is_none() {
                    let ends = &self.ends;
                    self.carrier.retain(|(of, _), message| {
                        of != conversation || !ends.contains_key(message)
                    });
                }
            }
            Record::ConversationClosed { conversation } => {
                self.carrier.retain(|(of, _), _| of != conversation);
                self.promised.remove(conversation);
            }
            Record::Prompt { message, change } => match change {
                PromptChange::Prepared(fields) => self.prepared(message, fields, made),
                PromptChange::Ended { outcome, .. } => {
                    self.ends.insert(message.clone(), outcome.clone());
                    if let (Outcome::Rejected { .. }, Some((of, _))) =
                        (outcome, self.carried.get(message))
                    {
                        self.news.insert(*of);
                    }
                }
                _ => {}
            },
            _ => {}
        }
    }

    fn round(&mut self, conversation: ConversationId, change: &RoundChange, made: &Durable) {
        match change {
            RoundChange::Begun { message, boxes, .. } => {
                let asked = self.asked == Some(conversation);
                assert!(
                    asked || self.news.contains(&conversation),
                    "11: a round of {conversation} begins with {boxes:?}, and nothing has come that the model must hear of"
                );
                self.carry(conversation, message, boxes, made);
            }
            RoundChange::Restarted { message, boxes, .. }
            | RoundChange::Flushed { message, boxes, .. } => {
                self.carry(conversation, message, boxes, made);
            }
            RoundChange::Staged { actions, .. } => {
                self.kept(conversation, made);
                let wrong = |action: &Action| matches!(action, Action::Call(call) if call.malformed.is_some());
                if actions.iter().any(wrong) {
                    self.news.insert(conversation);
                }
            }
            RoundChange::Completed { .. } => self.kept(conversation, made),
            RoundChange::Failed { text, .. } => {
                self.stalled_with_text.insert(conversation, text.is_some());
            }
            RoundChange::Dismissed => {
                if self.stalled_with_text.remove(&conversation) == Some(true) {
                    self.kept(conversation, made);
                }
                self.promised.remove(&conversation);
            }
            RoundChange::FlushAnswered { .. } | RoundChange::FlushGivenUp { .. } => {}
        }
    }

    fn carry(
        &mut self,
        conversation: ConversationId,
        message: &MessageId,
        boxes: &BoxSet,
        made: &Durable,
    ) {
        assert!(
            !boxes.is_empty(),
            "11: message {message} of {conversation} carries nothing"
        );
        // What arrived in a stall stays in the mailbox when its round begins again.
        let waits = made
            .conversation(conversation)
            .is_some_and(|known| known.mailbox.triggers());
        if !waits {
            self.news.remove(&conversation);
        }
        for id in boxes.iter() {
            let before = self.carrier.insert((conversation, id), message.clone());
            let back = before.as_ref().is_none_or(|before| {
                matches!(self.ends.get(before), Some(Outcome::Rejected { .. }))
            });
            // One that was stopped before it was recorded gives back what it carried, and so does a thread that is gone.
            let stands = before
                .as_ref()
                .is_some_and(|before| self.recorded.contains_key(before.as_str()));
            assert!(
                back || !stands,
                "11: box {id} of {conversation} goes with {message}, and {before:?} has carried it"
            );
        }
        let carried = (conversation, boxes.clone());
        self.carried.insert(message.clone(), carried);
    }

    /// A message says what its boxes say, and its marker is the number that comes next.
    fn prepared(&mut self, message: &MessageId, fields: &PromptFields, made: &Durable) {
        let Some((conversation, boxes)) = self.carried.get(message) else {
            panic!("11: message {message} carries no boxes");
        };
        let known = made
            .conversation(*conversation)
            .expect("a message is of a conversation");
        let text = text_of(fields);
        let next = BoxId(known.transcript().last().0 + 1);
        let beside = fields.kind == PromptKind::Steer && known.round.open().is_none();
        let marker = (!beside).then_some(next);
        let expected = rendered(known, boxes, marker);
        assert_eq!(
            text, expected,
            "11: message {message} does not say what its boxes {boxes:?} say"
        );
        if known.settings.rendering == Rendering::Boxed && !beside {
            self.promised.insert(*conversation, next);
        }
    }

    /// The answer has the number that was promised.
    fn kept(&mut self, conversation: ConversationId, made: &Durable) {
        let Some(promised) = self.promised.remove(&conversation) else {
            return;
        };
        let known = made.conversation(conversation);
        let body = known.and_then(|known| known.transcript().get(promised));
        assert_eq!(
            body.map(|body| body.box_type.as_str()),
            Some(box_type::AGENT_RESPONSE),
            "11: box {promised} of {conversation} was promised for the answer"
        );
    }

    pub(super) fn at_the_end(&self, app: &Application, accepted: &Accepted, made: &Durable) {
        for (message, text) in &self.recorded {
            let carried = self.carried.keys().any(|known| known.as_str() == message);
            assert!(
                carried,
                "11: {text:?} stands as {message}, which carries nothing"
            );
        }
        for (id, known) in made.numbered() {
            assert!(
                known.mailbox.is_empty(),
                "11: arrivals of {id} wait at rest: {:?}",
                known.mailbox
            );
            self.each_mark_once(id, known);
            self.each_call_answered(id, known);
            self.each_box_where_it_is(id, known, accepted);
        }
        for arrived in app.arrived() {
            self.arrived(&arrived, made);
        }
    }

    fn each_mark_once(&self, id: ConversationId, known: &DurableConversation) {
        let mut seen = BTreeMap::new();
        for (box_id, body) in known.transcript().range(BoxId(1), u32::MAX) {
            for mark in marks(&body.contents) {
                let before = seen.insert(mark, box_id);
                assert_eq!(
                    before, None,
                    "11: {mark} stands twice in {id}, the second time in box {box_id}: {body:?}"
                );
            }
        }
    }

    fn each_call_answered(&self, id: ConversationId, known: &DurableConversation) {
        let number = |body: &BoxBody, kind: &str, head: &str| -> Option<u64> {
            let rest = body.contents.strip_prefix(head)?;
            let digits = rest.split(':').next()?;
            (body.box_type == kind).then(|| digits.parse().ok())?
        };
        let mut results: BTreeMap<u64, u32> = BTreeMap::new();
        for (_, body) in known.transcript().range(BoxId(1), u32::MAX) {
            if let Some(call) = number(body, box_type::TOOL_CALL, "call ") {
                results.entry(call).or_default();
            }
            if let Some(call) = number(body, box_type::TOOL_RESULT, "result of call ") {
                *results.entry(call).or_default() += 1;
            }
        }
        for (call, count) in results {
            assert_eq!(
                count, 1,
                "11: call {call} of {id} has {count} results at rest"
            );
        }
    }

    /// What is submitted stands in the history, where that can be known, and what is not does not.
    fn each_box_where_it_is(
        &self,
        id: ConversationId,
        known: &DurableConversation,
        accepted: &Accepted,
    ) {
        let Some(thread) = known.creation.as_ref().and_then(|c| c.thread()) else {
            return;
        };
        for (box_id, body) in known.transcript().range(BoxId(1), u32::MAX) {
            let waits = known.transcript().unsubmitted().contains(box_id);
            if waits {
                for mark in marks(&body.contents) {
                    assert!(
                        !accepted.holds(thread.as_str(), mark),
                        "11: box {box_id} of {id} is not submitted, and {mark} stands in {thread}"
                    );
                }
                continue;
            }
            let Some(message) = self.carrier.get(&(id, box_id)) else {
                continue;
            };
            let certain = matches!(
                self.ends.get(message),
                Some(Outcome::Completed { .. } | Outcome::Interrupted)
            );
            assert!(
                !certain || self.recorded.contains_key(message.as_str()),
                "11: box {box_id} of {id} counts as submitted with {message}, which stands nowhere"
            );
        }
    }

    /// What was confirmed to have arrived is in the transcript once, in the order in which it came.
    fn arrived(&self, arrived: &Arrived<'_>, made: &Durable) {
        let Some(known) = made.conversation(arrived.conversation) else {
            return;
        };
        let mut last = BoxId(0);
        for text in &arrived.texts {
            let boxes = known.transcript().range(BoxId(1), u32::MAX);
            let found: Vec<BoxId> = boxes
                .filter(|(_, body)| {
                    marks(text).any(|mark| marks(&body.contents).any(|m| m == mark))
                })
                .map(|(id, _)| id)
                .collect();
            match found.as_slice() {
                [one] if *one > last => last = *one,
                [] if !arrived.certain => {}
                other => panic!(
                    "11: {text:?} arrived in {} and stands in boxes {other:?}, after box {last}",
                    arrived.conversation
                ),
            }
        }
    }
}

/// The text of a message.
fn text_of(fields: &PromptFields) -> String {
    #[derive(serde::Deserialize)]
    struct Text {
        #[serde(default)]
        text: String,
    }
    let texts = fields.input.iter().map(|item| {
        let read = serde_json::from_str::<Text>(item.json().get());
        read.expect("an input item").text
    });
    texts.collect()
}

/// What boxes say to the model: a rendering of our own.
fn rendered(known: &DurableConversation, boxes: &BoxSet, marker: Option<BoxId>) -> String {
    let boxed = known.settings.rendering == Rendering::Boxed;
    let mut sections = Vec::new();
    for (id, body) in known.transcript().boxes(boxes) {
        if body.contents.is_empty() {
            continue;
        }
        let head = if boxed || body.box_type != box_type::USER_MESSAGE {
            format!("[Box {id} | {}]\n", body.box_type)
        } else {
            String::new()
        };
        sections.push(head + &body.contents);
    }
    if let Some(next) = marker.filter(|_| boxed) {
        sections.push(format!("[Box {next} | {}]\n", box_type::AGENT_RESPONSE));
    }
    let mut out = String::new();
    for section in sections {
        if !out.is_empty() && !out.ends_with('\n') {
            out.push('\n');
        }
        out += &section;
    }
    out
}
