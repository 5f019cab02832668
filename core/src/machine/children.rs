//! Threads that no conversation has: those of sub-agents, and those of nobody here.
//!
//! A sub-agent's thread is known by `parentThreadId` in `thread/started`, or by one `thread/read` for
//! a thread that is first seen in another frame. Its frames never touch the turns of its parent: they
//! are told of the parent's conversation, if that asked for them, and of nobody else.

use alloc::{collections::BTreeMap, string::String, vec::Vec};

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::{
    Link, Machine,
    out::UNGATED,
    requests::{Kind, Settled},
};
use crate::{
    RawJson,
    command::Children,
    effect::Effects,
    event::{ConversationUpdate, QuestionClosedWhy},
    id::{ConversationId, QuestionId, ThreadId},
    wire::CowStr,
};

/// How many such threads are told apart. The frames of others are those of nobody.
const MAX_STRANGERS: usize = 1_024;

/// Whose a thread is that no conversation has.
#[derive(Clone, Debug)]
pub(super) enum Stranger {
    /// The server is asked; what it said of the thread meanwhile.
    Asked { held: Vec<Vec<u8>> },
    /// A sub-agent's, which an agent of this conversation began.
    Child { conversation: ConversationId },
    /// Nobody's here.
    Nobody,
}

/// All of them, as far as this connection told.
#[derive(Clone, Debug, Default)]
pub(super) struct Strangers {
    threads: BTreeMap<ThreadId, Stranger>,
    /// What is kept of them, in bytes.
    held: usize,
}

impl Strangers {
    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }

    /// Whether there is no place for another one, those of nobody forgotten.
    fn is_full(&mut self) -> bool {
        if self.threads.len() < MAX_STRANGERS {
            return false;
        }
        let nobody = |(_, stranger): &(&ThreadId, &Stranger)| matches!(stranger, Stranger::Nobody);
        let nobody = self.threads.iter().find(nobody).map(|(id, _)| id.clone());
        nobody.is_none_or(|thread| self.threads.remove(&thread).is_none())
    }
}

/// What becomes of a request that a thread makes that no conversation has.
pub(super) enum Asks {
    /// Its conversation asked for its children.
    Child(ConversationId),
    /// It is taken once it is known whose the thread is.
    Later,
    /// A sub-agent's, and nobody serves it.
    Unserved,
    /// Nobody's.
    Nobody,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Frame<'a> {
    #[serde(borrow)]
    method: CowStr<'a>,
    #[serde(borrow, default)]
    params: Option<&'a RawValue>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Told<'a> {
    #[serde(borrow)]
    thread: ToldThread<'a>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ToldThread<'a> {
    #[serde(borrow)]
    id: CowStr<'a>,
    #[serde(borrow, default)]
    parent_thread_id: Option<CowStr<'a>>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct ReadParams<'a> {
    thread_id: &'a str,
    include_turns: bool,
}

impl Machine {
    /// A frame of a thread that no conversation has: told, kept, or counted.
    pub(super) fn foreign(&mut self, fx: &mut Effects, line: &[u8]) {
        if !self.take_stranger(fx, line) {
            self.counters.foreign_frames += 1;
        }
    }

    /// The same; false where it is nobody's.
    pub(super) fn take_stranger(&mut self, fx: &mut Effects, line: &[u8]) -> bool {
        let Ok(frame) = serde_json::from_slice::<Frame<'_>>(line) else {
            return false;
        };
        let scope = crate::wire::notification::scope(frame.params);
        let Some(thread) = scope.thread().and_then(ThreadId::new) else {
            return false;
        };
        match self.strangers.threads.get(&thread) {
            Some(Stranger::Child { conversation }) => {
                let conversation = *conversation;
                let params = frame.params.map(RawJson::borrowed);
                let method = frame.method.0.into_owned();
                self.child_says(fx, conversation, thread, method, params);
                true
            }
            Some(Stranger::Nobody) => {
                if frame.method.0 == "thread/closed" {
                    self.strangers.threads.remove(&thread);
                }
                false
            }
            Some(Stranger::Asked { .. }) => self.hold(&thread, line),
            None => {
                self.ask_whose(fx, &thread);
                self.hold(&thread, line)
            }
        }
    }

    /// A thread began that no conversation has.
    pub(super) fn stranger_started(&mut self, fx: &mut Effects, line: &[u8]) {
        let told = serde_json::from_slice::<Frame<'_>>(line).ok();
        let params = told.as_ref().and_then(|frame| frame.params);
        let told = params.and_then(|raw| serde_json::from_str::<Told<'_>>(raw.get()).ok());
        let Some(thread) = told.as_ref().and_then(|t| ThreadId::new(&t.thread.id.0)) else {
            self.counters.foreign_frames += 1;
            return;
        };
        let parent = told.and_then(|told| told.thread.parent_thread_id);
        let root = parent.and_then(|parent| self.root_of(&parent.0));
        let now = match root {
            Some(conversation) => Stranger::Child { conversation },
            None => Stranger::Nobody,
        };
        if !self.strangers.is_full() {
            self.strangers.threads.entry(thread.clone()).or_insert(now);
        }
        let Some(conversation) = root else {
            self.counters.foreign_frames += 1;
            return;
        };
        let method = String::from("thread/started");
        self.child_says(
            fx,
            conversation,
            thread,
            method,
            params.map(RawJson::borrowed),
        );
    }

    /// The conversation that a thread belongs to, or the agent that began it.
    fn root_of(&self, thread: &str) -> Option<ConversationId> {
        let known = |id: ThreadId| self.strangers.threads.get(&id);
        let of_child = || match ThreadId::new(thread).and_then(known) {
            Some(Stranger::Child { conversation }) => Some(*conversation),
            Some(Stranger::Asked { .. } | Stranger::Nobody) | None => None,
        };
        self.owner_of(thread).or_else(of_child)
    }

    fn child_says(
        &mut self,
        fx: &mut Effects,
        conversation: ConversationId,
        thread: ThreadId,
        method: String,
        params: Option<RawJson>,
    ) {
        self.counters.child_frames += 1;
        let raw = params.as_ref().and_then(|raw| raw.read().ok());
        self.child_calls_end(fx, &thread, &method, raw);
        if method == "thread/closed" {
            self.strangers.threads.remove(&thread);
        }
        if self.tells_children(conversation) {
            let update = ConversationUpdate::ChildFrame {
                thread,
                method,
                params,
            };
            self.tell_conversation(fx, conversation, update);
        }
    }

    /// Asks the server once whose a thread is.
    fn ask_whose(&mut self, fx: &mut Effects, thread: &ThreadId) {
        let starts = |c: &super::Conversation| c.link == Link::Starting;
        // It may be the thread that one of ours is about to get.
        let ours = self.conversations.iter().flatten().any(|c| starts(c));
        if ours || self.strangers.is_full() || !self.connection.is_ready() {
            return;
        }
        let asked = Stranger::Asked { held: Vec::new() };
        self.strangers.threads.insert(thread.clone(), asked);
        let params = ReadParams {
            thread_id: thread,
            include_turns: false,
        };
        let kind = Kind::WhoseThread {
            thread: thread.clone(),
        };
        self.request(fx, kind, "thread/read", &params, UNGATED);
    }

    /// Keeps a frame until it is known whose it is, where anybody asked for children.
    fn hold(&mut self, thread: &ThreadId, line: &[u8]) -> bool {
        let (limits, anybody) = (&self.config.limits, self.anybody_tells());
        let size = self.strangers.held.saturating_add(line.len());
        let (most, fits) = (limits.early_frames, size <= limits.frame);
        match self.strangers.threads.get_mut(thread) {
            Some(Stranger::Asked { held }) if anybody && fits && held.len() < most => {
                held.push(line.to_vec());
                self.strangers.held = size;
                true
            }
            Some(Stranger::Asked { .. } | Stranger::Child { .. } | Stranger::Nobody) | None => {
                false
            }
        }
    }

    fn anybody_tells(&self) -> bool {
        let mut all = self.durable.conversations();
        all.any(|known| known.settings.children == Children::Tell)
    }

    fn tells_children(&self, conversation: ConversationId) -> bool {
        let known = self.durable.conversation(conversation);
        known.is_some_and(|known| known.settings.children == Children::Tell)
    }

    /// The server told whose a thread is, or would not.
    pub(super) fn whose_told(&mut self, fx: &mut Effects, thread: &ThreadId, how: &Settled) {
        let answer = match how {
            Settled::Answered(answer) => crate::json::from_object::<Told<'_>>(answer).ok(),
            Settled::Refused(_) | Settled::NotSent | Settled::Unknown(_) => None,
        };
        let told = answer.filter(|told| told.thread.id.0 == thread.as_str());
        let parent = told.and_then(|told| told.thread.parent_thread_id);
        let root = parent.and_then(|parent| self.root_of(&parent.0));
        let now = match root {
            Some(conversation) => Stranger::Child { conversation },
            None => Stranger::Nobody,
        };
        // Forgotten meanwhile with its connection, or told by `thread/started`.
        let Some(Stranger::Asked { held }) = self.strangers.threads.get_mut(thread) else {
            return;
        };
        let held = core::mem::take(held);
        let size: usize = held.iter().map(Vec::len).sum();
        self.strangers.held = self.strangers.held.saturating_sub(size);
        self.strangers.threads.insert(thread.clone(), now);
        for line in held {
            self.counters.frames = self.counters.frames.saturating_sub(1);
            self.on_line(fx, &line);
        }
    }

    /// A request of a thread that no conversation has.
    pub(super) fn stranger_asks(
        &mut self,
        fx: &mut Effects,
        id: &str,
        thread: &str,
        line: &[u8],
    ) -> Asks {
        let Some(thread) = ThreadId::new(thread) else {
            return Asks::Nobody;
        };
        // Under an id in use nothing is answered, whosever it is.
        if !self.inbound.contains_key(id) {
            if !self.strangers.threads.contains_key(&thread) {
                self.ask_whose(fx, &thread);
            }
            if self.hold(&thread, line) {
                return Asks::Later;
            }
        }
        match self.strangers.threads.get(&thread) {
            Some(Stranger::Child { conversation }) if self.tells_children(*conversation) => {
                Asks::Child(*conversation)
            }
            Some(Stranger::Child { .. }) => Asks::Unserved,
            Some(Stranger::Asked { .. } | Stranger::Nobody) | None => Asks::Nobody,
        }
    }

    /// Nobody serves the calls of a sub-agent: its tools are none of ours.
    pub(super) fn decline_child_call(
        &mut self,
        fx: &mut Effects,
        id: &str,
        method: &str,
        params: Option<&RawValue>,
    ) {
        self.decline_unserved(fx, id, method, params, &super::child_calls::not_served());
    }

    /// Tells that a question is settled without the application.
    pub(super) fn tell_question_closed(
        &mut self,
        fx: &mut Effects,
        conversation: ConversationId,
        turn: Option<crate::TurnNo>,
        question: QuestionId,
        why: QuestionClosedWhy,
    ) {
        match turn {
            Some(no) => {
                let update = crate::event::TurnUpdate::QuestionClosed { question, why };
                self.tell(fx, conversation, no, update);
            }
            None if self.tells_children(conversation) => {
                let update = ConversationUpdate::ChildQuestionClosed { question, why };
                self.tell_conversation(fx, conversation, update);
            }
            None => {}
        }
    }

    /// Settles the open questions of sub-agents, of one conversation or of all; `answer` gives those
    /// without an answer their negative default. Returns how many had none.
    pub(super) fn close_child_questions(
        &mut self,
        fx: &mut Effects,
        of: Option<ConversationId>,
        why: QuestionClosedWhy,
        answer: bool,
    ) -> u32 {
        let is_it = |asked: &crate::question::QuestionAsked| {
            asked.turn.is_none() && of.is_none_or(|of| of == asked.conversation)
        };
        let all = self.durable.questions().filter(|(_, asked)| is_it(asked));
        let open: Vec<(QuestionId, ConversationId)> = all
            .filter(|(number, _)| self.questions.contains_key(number))
            .map(|(number, asked)| (number, asked.conversation))
            .collect();
        let mut count = 0;
        for (number, conversation) in open {
            let unanswered = self.is_unanswered(number);
            if unanswered {
                count += 1;
                if answer {
                    self.decline(fx, number);
                }
                self.tell_question_closed(fx, conversation, None, number, why);
            }
            self.forget_question(number, unanswered.then_some(why));
        }
        count
    }
}
