//! Rule 1: No frame that changes the server before its record is durable.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use serde::Deserialize;
use serde_json::value::RawValue;
use turnkeep_core::{
    Command, ConversationId, Epoch, JournalSeq, MessageId, Nonce, Record, ToolCallId, ToolResult,
    command::{RequestEffect, ToolContent, ToolDelivery},
    compaction::CompactionChange,
    event::CallClosedWhy,
    naming::NamingChange,
    prompt::PromptChange,
    round::{Action, RoundChange},
    thread::CreationChange,
    tools::{self, CallChange},
};

use crate::sim::server::Fact;

/// What a frame needs a record of.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Intent {
    /// A thread under this mark.
    Thread(String),
    /// This message.
    Message(String),
    /// That the message is to be sent anew: what was recorded before does not count.
    Unrecorded(String),
    /// An interrupt of this turn.
    Interrupt(String),
    /// A raw request of this method.
    Raw(String),
    /// A result of a question.
    Result(String),
    /// This result of this call, by the server's name for it.
    Call(String, String),
    /// A clean-up.
    CleanUp,
    /// This name of a thread.
    Name(String),
    /// A compaction.
    Compact,
}

#[derive(Debug, Default)]
pub(super) struct Order {
    through: JournalSeq,
    waiting: VecDeque<(JournalSeq, Intent)>,
    durable: BTreeSet<Intent>,
    marks: BTreeMap<ConversationId, String>,
    nonces: BTreeMap<ConversationId, Nonce>,
    /// The server's names for calls.
    names: BTreeMap<ToolCallId, String>,
    /// The calls that requests of the server's processes are for.
    requests: BTreeMap<(u32, u64), String>,
    /// The process behind a connection of this life.
    epochs: BTreeMap<Epoch, u32>,
    /// The calls of the last stage.
    stage: Vec<String>,
    /// Steers without an answer, by what waits for it.
    unanswered: BTreeMap<String, MessageId>,
    /// Methods of raw requests that only read.
    reads: BTreeSet<String>,
}

#[derive(Deserialize)]
struct Ours<'a> {
    #[serde(borrow)]
    id: Option<&'a RawValue>,
    method: Option<&'a str>,
    #[serde(borrow)]
    params: Option<&'a RawValue>,
    #[serde(borrow)]
    result: Option<&'a RawValue>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Params<'a> {
    client_user_message_id: Option<&'a str>,
    thread_source: Option<&'a str>,
    turn_id: Option<&'a str>,
    name: Option<&'a str>,
}

impl Order {
    pub(super) fn life_begins(&mut self, covered: bool) {
        let durable = match covered {
            true => std::mem::take(&mut self.durable),
            false => BTreeSet::new(),
        };
        *self = Self {
            reads: std::mem::take(&mut self.reads),
            marks: std::mem::take(&mut self.marks),
            nonces: std::mem::take(&mut self.nonces),
            names: std::mem::take(&mut self.names),
            requests: std::mem::take(&mut self.requests),
            durable,
            ..Self::default()
        };
    }

    /// A record that a start finds.
    pub(super) fn found(&mut self, record: &Record) {
        for intent in self.intents(record) {
            self.take(intent);
        }
    }

    /// A connection is there.
    pub(super) fn connected(&mut self, epoch: Epoch, pid: u32) {
        self.epochs.insert(epoch, pid);
    }

    pub(super) fn fact(&mut self, fact: &Fact) {
        if let Fact::Called { pid, request, call } = fact {
            self.requests.insert((*pid, *request), call.clone());
        }
    }

    pub(super) fn record(&mut self, through: JournalSeq, record: &Record) {
        for intent in self.intents(record) {
            self.waiting.push_back((through, intent));
        }
        self.steered(record);
    }

    pub(super) fn appended(&mut self, through: JournalSeq) {
        self.through = self.through.max(through);
        while self.waiting.front().is_some_and(|(seq, _)| *seq <= through) {
            if let Some((_, intent)) = self.waiting.pop_front() {
                self.take(intent);
            }
        }
    }

    fn take(&mut self, intent: Intent) {
        match intent {
            Intent::Unrecorded(message) => {
                self.durable.remove(&Intent::Message(message));
            }
            intent => {
                self.durable.insert(intent);
            }
        }
    }

    pub(super) fn command(&mut self, command: &Command) {
        if let Command::Request { method, effect, .. } = command {
            if *effect == RequestEffect::Reads {
                self.reads.insert(method.clone());
            }
        }
    }

    fn intents(&mut self, record: &Record) -> Vec<Intent> {
        let intent = match record {
            Record::ConversationOpened {
                conversation,
                nonce,
                ..
            } => {
                self.nonces.insert(*conversation, *nonce);
                None
            }
            Record::ThreadCreation {
                conversation,
                change,
            } => match change {
                CreationChange::Preparing { mark } => {
                    self.marks.insert(*conversation, mark.clone());
                    None
                }
                CreationChange::Dispatched => {
                    let mark = self.marks.get(conversation).cloned();
                    mark.map(Intent::Thread)
                }
                _ => None,
            },
            Record::Prompt { message, change } => match change {
                PromptChange::Dispatched => Some(Intent::Message(message.as_str().to_owned())),
                PromptChange::Unrecorded => Some(Intent::Unrecorded(message.as_str().to_owned())),
                PromptChange::CancelDispatched { turn } => {
                    Some(Intent::Interrupt(turn.as_str().to_owned()))
                }
                _ => None,
            },
            Record::Request { method, .. } => Some(Intent::Raw(method.clone())),
            Record::Cleanup { .. } => Some(Intent::CleanUp),
            Record::Forked(forked) => {
                self.nonces.insert(forked.conversation, forked.nonce);
                forked.mark.clone().map(Intent::Thread)
            }
            Record::Naming {
                change: NamingChange::Asked { name },
                ..
            } => Some(Intent::Name(name.clone())),
            Record::Compaction {
                change: CompactionChange::Asked { .. },
                ..
            } => Some(Intent::Compact),
            Record::QuestionAnswered { result, .. } => {
                Some(Intent::Result(result.get().to_owned()))
            }
            Record::ToolCall { call, change } => return self.of_call(*call, change),
            Record::Round {
                conversation,
                change: RoundChange::Staged { actions, .. },
            } => return self.of_stage(*conversation, actions),
            _ => None,
        };
        intent.into_iter().collect()
    }

    /// What a stage lets be answered: acknowledgements, and what is wrong with malformed calls.
    fn of_stage(&mut self, conversation: ConversationId, actions: &[Action]) -> Vec<Intent> {
        let nonce = self.nonces[&conversation];
        let mut intents = Vec::new();
        self.stage.clear();
        for action in actions {
            let (native, text) = match action {
                Action::Message { native, .. } => {
                    (native.as_str(), Some(tools::MESSAGE_DELIVERED.to_owned()))
                }
                Action::Call(call) => {
                    let native = call.native.as_str();
                    let sequence = call.sequence;
                    self.names
                        .insert(ToolCallId { nonce, sequence }, native.to_owned());
                    let text = match (call.delivery, &call.malformed) {
                        (ToolDelivery::Deferred, _) => Some(tools::DEFERRED.to_owned()),
                        (_, Some(malformed)) => text_of(&malformed.result()),
                        (_, None) => None,
                    };
                    (native, text)
                }
            };
            self.stage.push(native.to_owned());
            intents.extend(text.map(|text| Intent::Call(native.to_owned(), text)));
        }
        intents
    }

    fn of_call(&mut self, call: ToolCallId, change: &CallChange) -> Vec<Intent> {
        let texts = match change {
            CallChange::Asked(asked) => {
                self.names.insert(call, asked.native.as_str().to_owned());
                Vec::new()
            }
            // One that nobody told again goes to the model as a box, and its native call is acknowledged.
            CallChange::Answered { result, .. } => {
                let deferred = Some(tools::DEFERRED.to_owned());
                text_of(result).into_iter().chain(deferred).collect()
            }
            CallChange::Deferred => vec![tools::DEFERRED.to_owned()],
            CallChange::Closed {
                why: CallClosedWhy::TimeLimit,
                ..
            } => vec![tools::TIME_LIMIT.to_owned()],
            CallChange::Closed { .. }
            | CallChange::Launched
            | CallChange::Message { .. }
            | CallChange::Given => Vec::new(),
        };
        let name = self.names.get(&call).cloned().unwrap_or_default();
        let texts = texts.into_iter();
        texts.map(|text| Intent::Call(name.clone(), text)).collect()
    }

    /// A flush and its stage are of one batch: the calls wait for the answer of the steer.
    fn steered(&mut self, record: &Record) {
        let answered = match record {
            Record::Round {
                change: RoundChange::Flushed { message, .. },
                ..
            } => {
                for call in std::mem::take(&mut self.stage) {
                    self.unanswered.insert(call, message.clone());
                }
                return;
            }
            Record::Round {
                change: RoundChange::FlushGivenUp { message },
                ..
            }
            | Record::Prompt {
                message,
                change: PromptChange::Accepted { .. } | PromptChange::Ended { .. },
            } => message,
            _ => return,
        };
        self.unanswered.retain(|_, waits| waits != answered);
    }

    pub(super) fn send(&mut self, epoch: Epoch, line: &str) {
        let frame: Ours<'_> = serde_json::from_str(line).expect("our frames are JSON objects");
        let params = frame.params.map_or("{}", RawValue::get);
        let Some(method) = frame.method else {
            if let Some(result) = frame.result {
                let pid = self.epochs.get(&epoch).copied().unwrap_or_default();
                let request = frame.id.and_then(|id| id.get().parse().ok());
                let call = request.and_then(|id| self.requests.get(&(pid, id)).cloned());
                self.result(line, result.get(), call);
            }
            return;
        };
        let text = |text: Option<&str>| text.expect("the frame names it").to_owned();
        let read = || serde_json::from_str::<Params<'_>>(params).unwrap_or_default();
        let intent = match method {
            "initialize"
            | "initialized"
            | "thread/resume"
            | "thread/unsubscribe"
            | "thread/list"
            | "thread/loaded/list"
            | "thread/read"
            | "thread/turns/list"
            | "thread/items/list"
            | "thread/backgroundTerminals/list"
            | "model/list" => return,
            "thread/archive" | "thread/delete" | "thread/backgroundTerminals/clean" => {
                Intent::CleanUp
            }
            "thread/start" | "thread/fork" => Intent::Thread(text(read().thread_source)),
            "turn/start" | "turn/steer" => Intent::Message(text(read().client_user_message_id)),
            "thread/name/set" => Intent::Name(text(read().name)),
            "thread/compact/start" => Intent::Compact,
            "turn/interrupt" => Intent::Interrupt(text(read().turn_id)),
            raw if self.reads.contains(raw) => return,
            raw => Intent::Raw(raw.to_owned()),
        };
        let raw = Intent::Raw(method.to_owned());
        let recorded = self.durable.contains(&intent)
            || (method == "turn/interrupt" && self.durable.contains(&raw));
        assert!(
            recorded,
            "1: a frame left before its record was durable: {line}"
        );
    }

    fn result(&mut self, line: &str, result: &str, call: Option<String>) {
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Call {
            content_items: Vec<Content>,
        }
        #[derive(Deserialize)]
        struct Content {
            text: String,
        }
        let intent = match call {
            Some(name) => {
                let steer = self.unanswered.get(&name);
                assert_eq!(
                    steer, None,
                    "1: call {name} is answered before the steer of its stage is: {line}"
                );
                let read: Call = serde_json::from_str(result).expect("the result of a call");
                let text = read.content_items.into_iter().next().map(|c| c.text);
                Intent::Call(name, text.unwrap_or_default())
            }
            None => Intent::Result(result.to_owned()),
        };
        assert!(
            self.durable.contains(&intent),
            "1: an answer left before its record was durable: {line}"
        );
    }
}

/// What the model is told of a result first.
fn text_of(result: &ToolResult) -> Option<String> {
    result.content.iter().find_map(|content| match content {
        ToolContent::Text(text) => Some(text.clone()),
        _ => None,
    })
}
