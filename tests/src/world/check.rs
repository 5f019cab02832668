//! What must hold of every run, checked without a look into the machine.

use std::{
    cell::Cell,
    collections::{BTreeMap, BTreeSet},
};

use serde::Deserialize;
use serde_json::value::RawValue;
use turnkeep_core::{
    Command, CommandError, CommandId, ConversationId, Durable, Effect, Epoch, Event, Input,
    JournalSeq, Outcome, QuestionId, Record, Reply, ToolCallId, ToolDelivery, TurnNo, TurnUpdate,
    cleanup::{Action, CleanupChange},
    codec::{
        journal::{self, Entry},
        trace,
    },
    command::RequestEffect,
    compaction::CompactionChange,
    effect::{Batch, SECRET_PLACEHOLDER},
    event::{ConnectionEvent, ConversationUpdate, Origin},
    naming::NamingChange,
    prompt::PromptChange,
    round::{self, RoundChange},
    thread::CreationChange,
    tools::CallChange,
};

use super::log::json;

/// What was seen of a turn.
#[derive(Debug, Default)]
struct TurnSeen {
    began: bool,
    ended: u32,
    /// It is of an earlier life.
    recovered: bool,
}

#[derive(Debug, Default)]
pub(super) struct Checks {
    /// What the journal makes, record by record.
    replayed: Durable,
    through: JournalSeq,
    records: Vec<(JournalSeq, Record)>,
    turns: BTreeMap<TurnNo, TurnSeen>,
    issued: BTreeMap<CommandId, usize>,
    answers: BTreeMap<CommandId, Vec<Result<Reply, CommandError>>>,
    reads: BTreeSet<String>,
    closed_conversations: BTreeSet<ConversationId>,
    closed: BTreeSet<Epoch>,
    launched: BTreeSet<ToolCallId>,
    asked: BTreeSet<QuestionId>,
    answered_requests: BTreeMap<String, u32>,
    /// How many compactions were asked for on the wire: each has a record of its own.
    compactions: Cell<usize>,
    /// The outcome of each turn whose end was told, in any life.
    ends: BTreeMap<TurnNo, Outcome>,
    /// A connection of this life was ready.
    ready: bool,
    halted: bool,
    ended: bool,
}

/// A frame of ours.
#[derive(Deserialize)]
struct Ours<'a> {
    method: Option<&'a str>,
    #[serde(borrow)]
    id: Option<&'a RawValue>,
    #[serde(borrow)]
    params: Option<&'a RawValue>,
    #[serde(borrow)]
    result: Option<&'a RawValue>,
    #[serde(borrow)]
    error: Option<&'a RawValue>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Params {
    client_user_message_id: Option<String>,
    thread_source: Option<String>,
    turn_id: Option<String>,
    thread_id: Option<String>,
    name: Option<String>,
}

impl Checks {
    pub(super) fn is_halted(&self) -> bool {
        self.halted
    }

    pub(super) fn confirmed(&self) -> JournalSeq {
        self.through
    }

    pub(super) fn input(&mut self, input: &Input) {
        match input {
            Input::Command { id, command } => {
                *self.issued.entry(*id).or_default() += 1;
                if let Command::Request { method, effect, .. }
                | Command::SecretRequest { method, effect, .. } = command
                {
                    if *effect == RequestEffect::Reads {
                        self.reads.insert(method.clone());
                    }
                }
            }
            Input::Appended { through } => self.through = self.through.max(*through),
            Input::Opened(..)
            | Input::Received(..)
            | Input::SendFailed(..)
            | Input::Closed(..)
            | Input::AppendFailed
            | Input::QueueFull(_)
            | Input::Tick => {}
        }
    }

    pub(super) fn effect(&mut self, effect: &Effect) {
        match effect {
            Effect::Append(batch) => self.append(batch),
            Effect::Send(epoch, frame) => {
                assert!(!self.halted, "no frame leaves after the journal failed");
                assert!(!self.closed.contains(epoch), "nothing is sent after Close");
                let line = std::str::from_utf8(&frame.bytes).expect("frames are UTF-8");
                assert_eq!(line.matches('\n').count(), 1, "a frame is one line: {line}");
                self.send(line);
            }
            Effect::Emit(event) => self.event(event),
            Effect::Open(..) => {}
            Effect::Close(epoch, _) => {
                assert!(self.closed.insert(*epoch), "a connection is closed once");
            }
        }
    }

    /// A batch reads back as it was written, and its records make a state.
    fn append(&mut self, batch: &Batch) {
        let first = Batch {
            through: JournalSeq(1),
            ..batch.clone()
        };
        let line = journal::encode(&first);
        let read = journal::decode(&line).expect("a batch reads back");
        assert_eq!(read.entries.len(), 1);
        assert_eq!(
            read.entries[0].1.records, batch.records,
            "records read back as they were"
        );
        for record in &read.entries[0].1.records {
            if let Err(error) = self.replayed.apply(record) {
                panic!("{error}: {}", json(record));
            }
            self.records.push((batch.through, record.clone()));
        }
    }

    /// Our process is killed: what it had not seen confirmed up to here is gone, and so is all that it had in memory.
    pub(super) fn crash(&mut self, left: JournalSeq) {
        self.records.retain(|(seq, _)| *seq <= left);
        self.replayed = Durable::default();
        for (_, record) in &self.records {
            self.replayed.apply(record).expect("it was applied before");
        }
        self.through = left;
        let answered = |id: &CommandId| self.answers.contains_key(id);
        self.issued.retain(|id, _| answered(id));
        // The application of the next life is told of turns and questions anew, but of no call.
        self.turns.clear();
        self.asked.clear();
        self.closed.clear();
        (self.ready, self.halted, self.ended) = (false, false, false);
    }

    /// The same, and the journal holds this alone.
    pub(super) fn crash_as(&mut self, seq: JournalSeq, record: &Record) {
        self.records = vec![(seq, record.clone())];
        self.crash(seq);
    }

    pub(super) fn same(&self, live: &Durable) {
        assert_eq!(&self.replayed, live, "the records make the live state");
    }

    /// Whether a record like this is durable.
    fn durable(&self, is_it: impl Fn(&Record) -> bool) -> bool {
        let all = self.records.iter().rev();
        let mut durable = all.filter(|(seq, _)| *seq <= self.through);
        durable.any(|(_, record)| is_it(record))
    }

    /// No frame that changes the server before its record.
    fn send(&mut self, line: &str) {
        let frame: Ours<'_> = serde_json::from_str(line).expect("our frames are JSON objects");
        let params = frame.params.map(RawValue::get).unwrap_or("{}");
        let params: Params = serde_json::from_str(params).unwrap_or_default();
        let Some(method) = frame.method else {
            let id = frame.id.expect("an answer has an id").get();
            *self.answered_requests.entry(id.to_owned()).or_default() += 1;
            if let Some(result) = frame.result {
                self.result(line, result.get());
            }
            assert!(
                frame.result.is_some() != frame.error.is_some(),
                "an answer is a result or an error: {line}"
            );
            return;
        };
        let message = |wanted: fn(&PromptChange) -> bool| {
            let id = params.client_user_message_id.as_deref();
            self.durable(|record| match record {
                Record::Prompt { message, change } => {
                    Some(message.as_str()) == id && wanted(change)
                }
                _ => false,
            })
        };
        let recorded = match method {
            "initialize" | "initialized" | "thread/resume" | "thread/unsubscribe" => true,
            "thread/turns/list" | "thread/items/list" | "thread/read" | "model/list" => true,
            "thread/list" | "thread/loaded/list" | "thread/backgroundTerminals/list" => true,
            "thread/archive" | "thread/delete" => {
                let thread = params.thread_id.as_deref();
                self.durable(|record| match record {
                    Record::Cleanup {
                        action,
                        change: CleanupChange::Owed { threads, .. },
                        ..
                    } => {
                        *action != Action::Detach
                            && threads.iter().any(|owed| Some(owed.as_str()) == thread)
                    }
                    Record::Request { method: raw, .. } => raw == method,
                    _ => false,
                })
            }
            // Of descendants too, whose ids no record has.
            "thread/backgroundTerminals/clean" => self.durable(|record| {
                matches!(
                    record,
                    Record::Cleanup {
                        action: Action::Detach,
                        change: CleanupChange::Owed { .. },
                        ..
                    }
                )
            }),
            "thread/start" => {
                let mark = params
                    .thread_source
                    .clone()
                    .expect("thread/start has a mark");
                let prepared = self.durable(|record| {
                    matches!(record, Record::ThreadCreation { change: CreationChange::Preparing { mark: of }, .. } if *of == mark)
                });
                let dispatched = self.durable(|record| {
                    matches!(
                        record,
                        Record::ThreadCreation {
                            change: CreationChange::Dispatched,
                            ..
                        }
                    )
                });
                prepared && dispatched
            }
            "thread/fork" => self.durable(
                |record| matches!(record, Record::Forked(of) if of.mark == params.thread_source),
            ),
            "thread/name/set" => {
                let name = params.name.as_deref().expect("it has a name");
                self.durable(|record| {
                    matches!(record, Record::Naming { change: NamingChange::Asked { name: of }, .. } if of == name)
                })
            }
            "thread/compact/start" => {
                let asked = |record: &Record| {
                    matches!(
                        record,
                        Record::Compaction {
                            change: CompactionChange::Asked { .. },
                            ..
                        }
                    )
                };
                let sent = self.compactions.get();
                self.compactions.set(sent + 1);
                let all = self.records.iter();
                let durable = all.filter(|(seq, record)| *seq <= self.through && asked(record));
                durable.count() > sent
            }
            "turn/start" | "turn/steer" => message(|c| matches!(c, PromptChange::Dispatched)),
            "turn/interrupt" => {
                let turn = params.turn_id.clone().expect("turn/interrupt names a turn");
                self.durable(|record| match record {
                    Record::Prompt {
                        change: PromptChange::CancelDispatched { turn: of },
                        ..
                    } => of.as_str() == turn,
                    Record::Request { method, .. } => method == "turn/interrupt",
                    _ => false,
                })
            }
            raw => {
                self.reads.contains(raw)
                    || self.durable(
                        |record| matches!(record, Record::Request { method, .. } if method == raw),
                    )
            }
        };
        assert!(
            recorded,
            "a frame left before its record was durable: {line}"
        );
    }

    /// A result to a request of the server stands in the journal first, and nothing is approved that the application did not.
    fn result(&self, line: &str, result: &str) {
        // Tokens stand in no record.
        if [r#"{"currentTimeAt":"#, r#"{"accessToken":"#]
            .iter()
            .any(|start| result.starts_with(start))
        {
            return;
        }
        let of_question = self.durable(|record| match record {
            Record::QuestionAnswered {
                result: of, chosen, ..
            } => {
                let negative = ["accept", "approved", "\"scope\":\"session\""];
                assert!(
                    *chosen || !negative.iter().any(|word| of.get().contains(word)),
                    "nothing is approved without the application: {}",
                    of.get()
                );
                // A secret stands in no record.
                of.get() == result || of.get().contains(SECRET_PLACEHOLDER)
            }
            _ => false,
        });
        let of_call = || {
            self.durable(|record| match record {
                Record::ToolCall { change, .. } => {
                    matches!(
                        change,
                        CallChange::Answered { .. }
                            | CallChange::Closed { .. }
                            | CallChange::Deferred
                    )
                }
                // What is acknowledged, or malformed, stands in its stage.
                Record::Round {
                    change: RoundChange::Staged { actions, .. },
                    ..
                } => actions.iter().any(|action| match action {
                    round::Action::Call(call) => {
                        call.malformed.is_some() || call.delivery != ToolDelivery::Inline
                    }
                    round::Action::Message { .. } => true,
                }),
                _ => false,
            })
        };
        assert!(
            of_question || (result.starts_with(r#"{"contentItems""#) && of_call()),
            "an answer left before its record was durable: {line}"
        );
    }

    fn event(&mut self, event: &Event) {
        assert!(
            !self.halted || matches!(event, Event::Answer { .. }),
            "after Halted only new commands are answered: {}",
            json(event)
        );
        if let Some(conversation) = event.conversation() {
            assert!(
                !self.closed_conversations.contains(&conversation),
                "nothing follows Closed: {}",
                json(event)
            );
        }
        match event {
            Event::Delta(delta) => {
                self.of_turn(delta.turn, &json(event));
            }
            Event::Turn(turn) => self.update(turn.turn, &turn.update),
            Event::Conversation(conversation) => match &conversation.update {
                ConversationUpdate::TurnBegan { turn, origin } => {
                    self.tell(*turn);
                    if let Some(seen) = self.turns.get_mut(turn) {
                        seen.recovered = *origin == Origin::Recovered;
                    }
                }
                ConversationUpdate::Closed => {
                    self.closed_conversations.insert(conversation.conversation);
                }
                _ => {}
            },
            Event::Connection(connection) => {
                self.ready |= matches!(&**connection, ConnectionEvent::Ready { .. });
                if let ConnectionEvent::Ended(_) = &**connection {
                    assert!(!self.ended, "a connection ends once");
                    self.ended = true;
                }
            }
            Event::Answer { id, answer } => self.answer(*id, answer),
            Event::Halted => self.halted = true,
        }
    }

    fn tell(&mut self, turn: TurnNo) {
        self.turns.entry(turn).or_default();
    }

    /// A turn is told before its events, and nothing follows its end.
    fn of_turn(&mut self, turn: TurnNo, what: &str) -> &mut TurnSeen {
        let seen = self.turns.get_mut(&turn);
        let seen = seen.unwrap_or_else(|| panic!("turn {turn} was never told: {what}"));
        assert_eq!(
            seen.ended, 0,
            "something follows the end of turn {turn}: {what}"
        );
        seen
    }

    fn update(&mut self, turn: TurnNo, update: &TurnUpdate) {
        let what = json(update);
        match update {
            TurnUpdate::Corrected(end) => {
                let told = self.ends.insert(turn, end.outcome.clone());
                assert!(told.is_some(), "only what was told is corrected");
                return;
            }
            TurnUpdate::Started { .. } | TurnUpdate::Folded { .. } => {
                self.of_turn(turn, &what).began = true;
            }
            TurnUpdate::Ended(end) => {
                self.of_turn(turn, &what).ended += 1;
                let before = self.ends.insert(turn, end.outcome.clone());
                assert!(
                    before.is_none_or(|before| before == end.outcome),
                    "a turn has one end in all lives: {what}"
                );
                let Some(id) = &end.message else { return };
                let recorded = self.durable(|record| match record {
                    Record::Prompt { message, change } if message == id => {
                        matches!(change, PromptChange::Ended { .. } | PromptChange::TimedOut)
                    }
                    _ => false,
                });
                assert!(
                    recorded,
                    "an end was told before its record was durable: {what}"
                );
                return;
            }
            // What the client decides of a turn that has not begun.
            TurnUpdate::SteerUnrecorded { .. }
            | TurnUpdate::QuestionClosed { .. }
            | TurnUpdate::Quiet { .. }
            | TurnUpdate::Suspended { .. }
            | TurnUpdate::Resumed
            | TurnUpdate::Resent => {
                self.of_turn(turn, &what);
                return;
            }
            _ => {}
        }
        let began = self.of_turn(turn, &what).began;
        assert!(began, "turn {turn} is told before it began: {what}");
        match update {
            TurnUpdate::ToolCall(call) => {
                let id = call.id;
                assert!(self.launched.insert(id), "a call is offered once: {what}");
                let recorded = self.durable(|record| {
                    match record {
                    Record::ToolCall { call, change } => {
                        *call == id && matches!(change, CallChange::Launched)
                    }
                    // A well-formed call is launched with its stage.
                    Record::Round {
                        change: RoundChange::Staged { actions, .. },
                        ..
                    } => actions.iter().any(|action| {
                        matches!(action, round::Action::Call(call) if call.sequence == id.sequence)
                    }),
                    _ => false,
                }
                });
                assert!(recorded, "a call was offered before its record: {what}");
            }
            TurnUpdate::Question(question) => {
                let id = question.id;
                assert!(self.asked.insert(id), "a question is asked once: {what}");
                let recorded = self.durable(
                    |record| matches!(record, Record::QuestionAsked { question, .. } if *question == id),
                );
                assert!(recorded, "a question was asked before its record: {what}");
            }
            _ => {}
        }
    }

    fn answer(&mut self, id: CommandId, answer: &Result<Reply, CommandError>) {
        let issued = self.issued.get(&id).copied().unwrap_or_default();
        let answers = self.answers.entry(id).or_default();
        answers.push(answer.clone());
        assert!(
            answers.len() <= issued,
            "command {id} is answered again: {}",
            json(answer)
        );
        assert!(
            answers.iter().all(|other| other == answer),
            "command {id} has two answers: {answers:?}"
        );
        match answer {
            Ok(Reply::Accepted { turn, message: id }) => {
                // One that was said again in a later life may have ended in an earlier one.
                if !self.ends.contains_key(turn) {
                    self.tell(*turn);
                }
                let recorded = self.durable(
                    |record| matches!(record, Record::Prompt { message, change: PromptChange::Prepared(_) } if message == id),
                );
                assert!(recorded, "a message was confirmed before its record");
            }
            Ok(Reply::Begun { turn: Some(turn) }) if !self.ends.contains_key(turn) => {
                self.tell(*turn);
            }
            _ => {}
        }
    }

    /// Every wait has ended.
    pub(super) fn at_the_end(&self) {
        if self.halted {
            return;
        }
        for id in self.issued.keys() {
            assert!(
                self.answers.contains_key(id),
                "command {id} was never answered"
            );
        }
        for (turn, seen) in &self.turns {
            // A life that reaches no server leaves what it took over to the next one.
            let left = seen.recovered && !self.ready && seen.ended == 0;
            assert!(
                left || seen.ended == 1,
                "turn {turn} ends {} times",
                seen.ended
            );
        }
        for (id, count) in &self.answered_requests {
            assert!(*count > 0, "{id}");
        }
    }
}

/// The journal reads back as it was written.
pub(super) fn journal_reads(bytes: &[u8], entries: &[Entry]) {
    let read = journal::decode(bytes).expect("the journal reads back");
    assert_eq!(read.torn, None);
    let read: Vec<Entry> = read.entries.into_iter().map(|(_, entry)| entry).collect();
    assert_eq!(read, entries, "the journal reads back as it was written");
}

/// The whole journal makes a state.
pub(super) fn journal_makes(entries: &[Entry], state: &Durable) {
    let mut made = Durable::default();
    for entry in entries {
        for record in &entry.records {
            made.apply(record).expect("the records fit each other");
        }
    }
    assert_eq!(&made, state, "the journal makes the live state");
}

/// A recording, played again, gives the same effects, byte by byte. Reads are given as runtimes give
/// them, where the machine was given its own before.
pub(super) fn replays(text: &str) {
    let (reader, header) = trace::Reader::new(text.as_bytes()).expect("the trace reads back");
    let (mut machine, effects) = header.machine().expect("it was made before");
    assert_eq!(
        trace::Recorded::of(&effects),
        header.effects,
        "making the machine"
    );
    for (at, step) in reader.enumerate() {
        let step = step.expect("the trace reads back");
        let effects = match step.input {
            Input::Received(epoch, bytes) => machine.receive(step.at, epoch, &bytes),
            input => machine.step(step.at, input),
        };
        assert_eq!(
            trace::Recorded::of(&effects),
            step.effects,
            "step {} gives other effects",
            at + 1
        );
    }
}

/// Events as texts, neighbouring deltas of one item joined; the order is kept within each conversation.
pub(super) fn told(events: &[Event]) -> Vec<String> {
    let mut lanes: BTreeMap<Option<ConversationId>, Vec<String>> = BTreeMap::new();
    let mut last: BTreeMap<ConversationId, (String, String)> = BTreeMap::new();
    for event in events {
        let lane = event.conversation();
        if let Event::Delta(delta) = event {
            let head = format!(
                "t{} {:?} {} {}",
                delta.turn, delta.kind, delta.item, delta.part
            );
            match last.get_mut(&delta.conversation) {
                Some((same, text)) if *same == head => text.push_str(&delta.text),
                _ => {
                    if let Some((head, text)) =
                        last.insert(delta.conversation, (head, delta.text.to_string()))
                    {
                        lanes
                            .entry(lane)
                            .or_default()
                            .push(format!("{head} {text}"));
                    }
                }
            }
            continue;
        }
        if let Some((head, text)) = lane.and_then(|conversation| last.remove(&conversation)) {
            lanes
                .entry(lane)
                .or_default()
                .push(format!("{head} {text}"));
        }
        lanes.entry(lane).or_default().push(json(event));
    }
    for (conversation, (head, text)) in last {
        lanes
            .entry(Some(conversation))
            .or_default()
            .push(format!("{head} {text}"));
    }
    let lanes = lanes.into_iter();
    lanes
        .flat_map(|(lane, events)| {
            let lane = lane.map_or_else(|| "-".to_owned(), |c| format!("c{c}"));
            events
                .into_iter()
                .map(move |event| format!("{lane} {event}"))
        })
        .collect()
}
