//! Questions of the server: offered to the application where it asked for them, else declined.

use alloc::{borrow::ToOwned, boxed::Box, string::String};

use serde_json::value::RawValue;

use super::{
    Machine,
    calls::{InboundRequest, misplaced},
    children::Asks,
    turn::{Audience, Stop},
};
use crate::{
    RawJson,
    bug::Bug,
    command::{Answer, Command, CommandError, Questions, Reply, RpcError},
    effect::{Durability, Effects, SECRET_PLACEHOLDER},
    event::{ConversationUpdate, ProtocolError, Question, QuestionClosedWhy, TurnUpdate},
    id::{CommandId, ConversationId, QuestionId, ThreadId, TurnNo},
    input::Input,
    question::{self, NotAQuestion, Outgoing, QuestionAsked, QuestionState},
    record::Record,
    timers::Timer,
    wire,
};

/// A question that is not settled.
#[derive(Clone, Debug)]
pub(super) struct OpenQuestion {
    conversation: ConversationId,
    turn: Option<TurnNo>,
    /// The server's request, as raw JSON; none while no connection has told it.
    request: Option<String>,
    question: Question,
    /// The answer as it was sent, secrets and all.
    answer: Option<Outgoing>,
}

impl OpenQuestion {
    /// Its connection has ended.
    pub(super) fn forget_route(&mut self) {
        self.request = None;
    }
}

impl Machine {
    pub(super) fn on_question(
        &mut self,
        fx: &mut Effects,
        id: &str,
        method: &str,
        params: Option<&RawValue>,
        line: &[u8],
    ) {
        let Some(params) = params else {
            self.refuse(fx, id, method, misplaced("parameters are missing"));
            return;
        };
        let parsed = match question::parse(method, params.get()) {
            Ok(parsed) => parsed,
            Err(NotAQuestion::Unknown | NotAQuestion::UnknownMode) => {
                let message = "this kind of elicitation is not supported by this client";
                let error = RpcError {
                    code: -32_601,
                    message: message.into(),
                    data: None,
                };
                self.refuse(fx, id, method, error);
                return;
            }
            Err(NotAQuestion::BadParams(reason)) => {
                self.refuse(fx, id, method, misplaced("undecodable parameters"));
                let method = method.to_owned();
                self.report(fx, ProtocolError::BadParams { method, reason });
                return;
            }
        };
        let (conversation, child) = match self.owner_of(&parsed.thread) {
            Some(conversation) => (conversation, None),
            None => match self.stranger_asks(fx, id, &parsed.thread, line) {
                Asks::Child(conversation) => (conversation, ThreadId::new(&parsed.thread)),
                Asks::Later => return,
                // The negative default, if there is one.
                Asks::Unserved | Asks::Nobody => {
                    match question::negative(&parsed.kind) {
                        Some(result) => {
                            self.decline_unserved(fx, id, method, Some(params), result.get());
                        }
                        None => self.refuse(fx, id, method, misplaced("unknown thread")),
                    }
                    return;
                }
            },
        };
        let turn = match &parsed.turn {
            // The turns of a sub-agent are none of its parent's.
            _ if child.is_some() => None,
            Some(native) => {
                let native = native.clone();
                match self.turn_of_request(fx, conversation, &native, id, method, line) {
                    Some(no) => Some(no),
                    None => return,
                }
            }
            // Without a turn the thread decides.
            None => None,
        };
        if self.inbound.contains_key(id) {
            self.same_question_again(fx, id, conversation, turn, &parsed);
            return;
        }
        let asked = QuestionAsked {
            conversation,
            turn,
            native: child.as_ref().and(parsed.turn.clone()),
            thread: child.clone(),
            method: method.to_owned(),
            item: parsed.item.clone(),
            approval: parsed.approval.clone(),
        };
        let native = parsed.turn.as_deref().filter(|_| child.is_none());
        if let Some(number) = self.told_before(&asked, native) {
            self.route_again(fx, id, number, &asked, parsed, params, child);
            return;
        }
        let Some(number) = self.durable.last_question().next() else {
            self.refuse(fx, id, method, misplaced("no question numbers are left"));
            return;
        };
        let question = parsed.numbered(number, RawJson::borrowed(params));
        let asked = Record::QuestionAsked {
            question: number,
            asked: Box::new(asked),
        };
        let gate = self.record(asked, Durability::Synced);
        self.offer(fx, id, conversation, turn, child, question, gate, method);
    }

    /// Offers a question to the application, or declines it where nobody serves it.
    #[allow(
        clippy::too_many_arguments,
        reason = "what a question is known by, once"
    )]
    fn offer(
        &mut self,
        fx: &mut Effects,
        id: &str,
        conversation: ConversationId,
        turn: Option<TurnNo>,
        child: Option<ThreadId>,
        question: Question,
        gate: crate::JournalSeq,
        method: &str,
    ) {
        let (number, auto) = (question.id, question.auto_resolution);
        let asks = self
            .durable
            .conversation(conversation)
            .is_some_and(|c| c.settings.questions == Questions::Ask);
        let listens = match turn.and_then(|no| self.turn(no)) {
            Some(turn) => turn.audience == Audience::All,
            // Nobody takes events of a thread without a turn for questions, but for a sub-agent's.
            None => child.is_some(),
        };
        let open = OpenQuestion {
            conversation,
            turn,
            request: Some(id.to_owned()),
            question: question.clone(),
            answer: None,
        };
        self.questions.insert(number, open);
        self.inbound
            .insert(id.into(), InboundRequest::Question(number));
        if let Some(turn) = turn.and_then(|no| self.turn(no)) {
            if !turn.questions.contains(&number) {
                turn.questions.push(number);
            }
        }
        if asks && listens {
            if let Some(span) = auto {
                self.timers
                    .set(Timer::AutoResolution(number), self.now.after(span));
            }
            let question = Box::new(question);
            if let Some(no) = turn {
                self.tell_gated(fx, conversation, no, gate, TurnUpdate::Question(question));
            } else if let Some(thread) = child {
                let update = ConversationUpdate::ChildQuestion { thread, question };
                self.tell_conversation_gated(fx, conversation, gate, update);
            }
            return;
        }
        self.decline(fx, number);
        match turn {
            Some(no) => {
                let update = TurnUpdate::QuestionDeclined(Box::new(question));
                self.tell(fx, conversation, no, update);
            }
            None => {
                let unrecognized = crate::event::Unrecognized {
                    method: method.to_owned(),
                    params: Some(question.raw),
                    request: true,
                };
                let update = ConversationUpdate::Unrecognized(unrecognized);
                self.tell_conversation(fx, conversation, update);
            }
        }
    }

    /// The question of an earlier connection that this is, told again.
    fn told_before(&mut self, asked: &QuestionAsked, native: Option<&str>) -> Option<QuestionId> {
        // A fold gives the server's turn a second one of ours: the question is that of either.
        let turns: alloc::vec::Vec<Option<TurnNo>> = match native {
            Some(native) => {
                let turns = self.conversation(asked.conversation)?.turns.iter();
                let turns = turns.filter(|turn| turn.is_native(native));
                turns.map(|turn| Some(turn.no)).collect()
            }
            None => alloc::vec![None],
        };
        let same = self.durable.questions().filter(|(_, known)| {
            known.conversation == asked.conversation
                && turns.contains(&known.turn)
                && known.thread == asked.thread
                && known.native == asked.native
                && known.method == asked.method
                && known.item == asked.item
                && known.approval == asked.approval
        });
        let mut same = same.map(|(number, _)| number);
        same.find(|number| {
            self.questions
                .get(number)
                .is_none_or(|open| open.request.is_none())
        })
    }

    /// A new connection tells a question again: only the way of its answer changes.
    #[allow(
        clippy::too_many_arguments,
        reason = "what a question is known by, once"
    )]
    fn route_again(
        &mut self,
        fx: &mut Effects,
        id: &str,
        number: QuestionId,
        asked: &QuestionAsked,
        parsed: question::Parsed,
        params: &RawValue,
        child: Option<ThreadId>,
    ) {
        self.counters.duplicate_frames += 1;
        let recorded = match self.durable.question(number) {
            Some((_, QuestionState::Ambiguous { result })) => Some(result.clone()),
            _ => None,
        };
        let gate = self.gate();
        let open = self.questions.get_mut(&number);
        match (open, recorded) {
            (Some(open), None) => {
                open.request = Some(id.to_owned());
                self.inbound
                    .insert(id.into(), InboundRequest::Question(number));
            }
            // The application of this life has not heard of it.
            (None, None) => {
                let question = parsed.numbered(number, RawJson::borrowed(params));
                let (conversation, turn) = (asked.conversation, asked.turn);
                let method = &asked.method;
                self.offer(fx, id, conversation, turn, child, question, gate, method);
            }
            (Some(open), Some(_)) if open.answer.is_some() => {
                open.request = Some(id.to_owned());
                if self.has_bug(Bug::AnswersReplaysTwice) {
                    self.send_answer(fx, number, gate);
                }
                self.send_answer(fx, number, gate);
            }
            (_, Some(result)) if result.get().contains(SECRET_PLACEHOLDER) => {
                // What was answered stands in no record.
                let message = "the answer was secret and is no longer known";
                self.refuse(fx, id, &asked.method, misplaced(message));
            }
            (_, Some(result)) => {
                let question = parsed.numbered(number, RawJson::borrowed(params));
                let open = OpenQuestion {
                    conversation: asked.conversation,
                    turn: asked.turn,
                    request: Some(id.to_owned()),
                    question,
                    answer: Some(result.into()),
                };
                self.questions.insert(number, open);
                self.send_answer(fx, number, gate);
            }
        }
    }

    /// Waits for the questions of a conversation that its new connection has not told again.
    pub(super) fn await_replay(&mut self, conversation: ConversationId) {
        if self.unrouted(conversation).next().is_some() {
            let due = self.now.after(self.config.limits.settle);
            self.timers.set(Timer::Replay(conversation), due);
        }
    }

    fn unrouted(&self, conversation: ConversationId) -> impl Iterator<Item = QuestionId> + '_ {
        self.durable.questions().filter_map(move |(number, asked)| {
            let routed = self
                .questions
                .get(&number)
                .is_some_and(|open| open.request.is_some());
            (asked.conversation == conversation && !routed).then_some(number)
        })
    }

    /// The server did not tell them again: it asks no more.
    pub(super) fn not_replayed(&mut self, fx: &mut Effects, conversation: ConversationId) {
        let gone: alloc::vec::Vec<QuestionId> = self.unrouted(conversation).collect();
        for number in gone {
            let turn = self
                .durable
                .question(number)
                .and_then(|(asked, _)| asked.turn);
            let why = QuestionClosedWhy::ConnectionEnded;
            let unanswered = self.is_unanswered(number);
            // One of a turn of an earlier life that the application was not told of in this one is
            // settled without a word.
            let heard = turn.is_none_or(|no| self.turn(no).is_some());
            self.forget_question(number, unanswered.then_some(why));
            if unanswered && heard {
                self.tell_question_closed(fx, conversation, turn, number, why);
            }
        }
    }

    /// A second request under an id in use: a replay of the same question, or a fault.
    fn same_question_again(
        &mut self,
        fx: &mut Effects,
        id: &str,
        conversation: ConversationId,
        turn: Option<TurnNo>,
        parsed: &question::Parsed,
    ) {
        let same = match self.inbound.get(id) {
            Some(InboundRequest::Question(number)) => {
                self.questions.get(number).is_some_and(|open| {
                    open.conversation == conversation
                        && open.turn == turn
                        && open.question.item == parsed.item
                        && open.question.approval == parsed.approval
                })
            }
            Some(
                InboundRequest::Call { .. }
                | InboundRequest::ChildCall(_)
                | InboundRequest::Refresh(_),
            )
            | None => false,
        };
        if same {
            self.counters.duplicate_frames += 1;
        } else {
            self.report(fx, ProtocolError::IdInUse { id: id.to_owned() });
        }
    }

    /// Gives the negative default, or refuses where none was offered.
    pub(super) fn decline(&mut self, fx: &mut Effects, number: QuestionId) {
        let Some(open) = self.questions.get(&number) else {
            return;
        };
        let negative = match self.has_bug(Bug::ApprovesByDefault) {
            true => RawJson::parse(r#"{"decision":"accept"}"#).ok(),
            false => question::negative(&open.question.kind),
        };
        match negative {
            Some(result) => {
                self.give_answer(fx, number, result, false);
                self.forget_question(number, None);
            }
            None => {
                let error = misplaced("no negative decision was offered");
                if let Some(request) = open.request.clone() {
                    let refusal = wire::refusal(&request, &error);
                    self.send(fx, refusal, super::out::UNGATED, None);
                }
                self.forget_question(number, None);
            }
        }
    }

    fn give_answer(
        &mut self,
        fx: &mut Effects,
        number: QuestionId,
        answer: impl Into<Outgoing>,
        chosen: bool,
    ) -> crate::JournalSeq {
        let answer = answer.into();
        let record = Record::QuestionAnswered {
            question: number,
            result: answer.redacted(),
            chosen,
        };
        let gate = self.record(record, Durability::Synced);
        self.timers.clear(Timer::AutoResolution(number));
        if let Some(open) = self.questions.get_mut(&number) {
            open.answer = Some(answer);
        }
        self.send_answer(fx, number, gate);
        gate
    }

    /// Sends the answer of a question where a connection waits for it.
    fn send_answer(&mut self, fx: &mut Effects, number: QuestionId, gate: crate::JournalSeq) {
        let Some(open) = self.questions.get(&number) else {
            return;
        };
        let (Some(request), Some(answer)) = (open.request.clone(), open.answer.clone()) else {
            return;
        };
        self.inbound.remove(request.as_str());
        let bytes = wire::result(&request, answer.result.get());
        // The result stands at the end of its line, before `}` and the line feed.
        let offset = bytes.len() - answer.result.get().len() - 2;
        let spans = answer.secrets.iter();
        let spans = spans
            .map(|span| span.start + offset..span.end + offset)
            .collect();
        self.send_secret(fx, bytes, gate, None, spans);
    }

    /// The input as a log may hold it, where that is not as it is.
    #[must_use]
    pub fn redacted(&self, input: &Input) -> Option<Input> {
        let Input::Command {
            id,
            command: Command::Answer { question, answer },
        } = input
        else {
            return None;
        };
        let kind = &self.questions.get(question)?.question.kind;
        let answer = question::redacted_answer(kind, answer)?;
        let question = *question;
        Some(Input::Command {
            id: *id,
            command: Command::Answer { question, answer },
        })
    }

    /// Settles a question durably and forgets it.
    pub(super) fn forget_question(&mut self, number: QuestionId, why: Option<QuestionClosedWhy>) {
        let Some((asked, _)) = self.durable.question(number) else {
            return;
        };
        let turn = asked.turn;
        self.timers.clear(Timer::AutoResolution(number));
        let open = self.questions.remove(&number);
        if let Some(request) = open.and_then(|open| open.request) {
            // Once it is answered, the id may be that of another request.
            if self.inbound.get(request.as_str()) == Some(&InboundRequest::Question(number)) {
                self.inbound.remove(request.as_str());
            }
        }
        if let Some(turn) = turn.and_then(|no| self.turn(no)) {
            turn.questions.retain(|q| *q != number);
        }
        self.record(
            Record::QuestionSettled {
                question: number,
                why,
            },
            Durability::Buffered,
        );
    }

    pub(super) fn answer_question(
        &mut self,
        fx: &mut Effects,
        id: CommandId,
        number: QuestionId,
        answer: &Answer,
    ) -> Result<(), CommandError> {
        let unknown = CommandError::UnknownQuestion { question: number };
        let Some(open) = self.questions.get(&number) else {
            return Err(unknown);
        };
        let pending = self
            .durable
            .question(number)
            .is_some_and(|(_, state)| matches!(state, QuestionState::Pending));
        if !pending {
            // First one wins.
            return Err(unknown);
        }
        let result = question::outgoing(&open.question.kind, answer)
            .map_err(|reason| CommandError::BadAnswer { reason })?;
        let cancels = matches!(answer, Answer::Cancel);
        let turn = open.turn;
        let gate = self.give_answer(fx, number, result, true);
        self.answer_gated(fx, id, gate, Ok(Reply::Done));
        if cancels {
            // An approval answered with `cancel` ends its turn on the application's word. Until that
            // end comes an interrupt is an interrupt, with its limit.
            if let Some(turn) = turn.and_then(|no| self.turn(no)) {
                if turn.stop == Stop::No {
                    turn.stop = Stop::Cancelled;
                }
            }
        }
        Ok(())
    }

    pub(super) fn is_unanswered(&self, number: QuestionId) -> bool {
        let state = self.durable.question(number).map(|(_, state)| state);
        matches!(state, Some(QuestionState::Pending))
    }

    /// The server's own time is over: the empty answer, which is nobody's choice.
    pub(super) fn auto_resolve(&mut self, fx: &mut Effects, number: QuestionId) {
        let Some(open) = self.questions.get(&number) else {
            return;
        };
        let (conversation, turn) = (open.conversation, open.turn);
        let Some(result) = question::negative(&open.question.kind) else {
            return;
        };
        self.give_answer(fx, number, result, false);
        let why = QuestionClosedWhy::AutoResolved;
        self.tell_question_closed(fx, conversation, turn, number, why);
    }

    /// `serverRequest/resolved`: nothing is written for it any more.
    pub(super) fn on_resolved(&mut self, fx: &mut Effects, request: &str) {
        if self.refresh_resolved(fx, request) || self.child_call_resolved(fx, request) {
            return;
        }
        let number = self
            .questions
            .iter()
            .find(|(_, open)| open.request.as_deref() == Some(request))
            .map(|(number, _)| *number);
        let Some(number) = number else {
            // Its answer was ours: that of a declined question, for example.
            return;
        };
        let open = &self.questions[&number];
        let (conversation, turn) = (open.conversation, open.turn);
        let unanswered = self.is_unanswered(number);
        let why = unanswered.then_some(QuestionClosedWhy::Resolved);
        self.forget_question(number, why);
        if let Some(why) = why {
            self.tell_question_closed(fx, conversation, turn, number, why);
        }
    }

    /// Settles the questions of a turn; `answer` gives those without an answer their negative
    /// default. Returns how many had none.
    pub(super) fn close_questions(
        &mut self,
        fx: &mut Effects,
        conversation: ConversationId,
        no: TurnNo,
        why: QuestionClosedWhy,
        answer: bool,
    ) -> u32 {
        let Some(turn) = self.turn(no) else { return 0 };
        let mut count = 0;
        for number in turn.questions.clone() {
            let unanswered = self.is_unanswered(number);
            if unanswered {
                count += 1;
                if answer {
                    self.decline(fx, number);
                }
                let update = TurnUpdate::QuestionClosed {
                    question: number,
                    why,
                };
                self.tell(fx, conversation, no, update);
            }
            self.forget_question(number, unanswered.then_some(why));
        }
        count
    }
}
