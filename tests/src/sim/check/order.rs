//! Rule 1: No frame that changes the server before its record is durable.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use serde::Deserialize;
use serde_json::value::RawValue;
use turnkeep_core::{
    Command, ConversationId, JournalSeq, Record, command::RequestEffect, prompt::PromptChange,
    thread::CreationChange, tools::CallChange,
};

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
    /// A result of a question or a call.
    Result(String),
    /// A clean-up.
    CleanUp,
    /// The end of a call that is refused or withdrawn.
    Nothing,
}

#[derive(Debug, Default)]
pub(super) struct Order {
    through: JournalSeq,
    waiting: VecDeque<(JournalSeq, Intent)>,
    durable: BTreeSet<Intent>,
    marks: BTreeMap<ConversationId, String>,
    /// Methods of raw requests that only read.
    reads: BTreeSet<String>,
}

#[derive(Deserialize)]
struct Ours<'a> {
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
            durable,
            ..Self::default()
        };
    }

    /// A record that a start finds.
    pub(super) fn found(&mut self, record: &Record) {
        let intent = self.intent(record);
        self.take(intent);
    }

    pub(super) fn record(&mut self, through: JournalSeq, record: &Record) {
        let intent = self.intent(record);
        self.waiting.push_back((through, intent));
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
            Intent::Nothing => {}
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

    fn intent(&mut self, record: &Record) -> Intent {
        match record {
            Record::ThreadCreation {
                conversation,
                change,
            } => match change {
                CreationChange::Preparing { mark } => {
                    self.marks.insert(*conversation, mark.clone());
                    Intent::Nothing
                }
                CreationChange::Dispatched => {
                    let mark = self.marks.get(conversation).cloned();
                    mark.map_or(Intent::Nothing, Intent::Thread)
                }
                _ => Intent::Nothing,
            },
            Record::Prompt { message, change } => match change {
                PromptChange::Dispatched => Intent::Message(message.as_str().to_owned()),
                PromptChange::Unrecorded => Intent::Unrecorded(message.as_str().to_owned()),
                PromptChange::CancelDispatched { turn } => {
                    Intent::Interrupt(turn.as_str().to_owned())
                }
                _ => Intent::Nothing,
            },
            Record::Request { method, .. } => Intent::Raw(method.clone()),
            Record::Cleanup { .. } => Intent::CleanUp,
            Record::QuestionAnswered { result, .. } => Intent::Result(result.get().to_owned()),
            Record::ToolCall {
                change: CallChange::Answered { result, .. },
                ..
            } => {
                let text = result.content.iter().find_map(|content| match content {
                    turnkeep_core::command::ToolContent::Text(text) => Some(text.clone()),
                    _ => None,
                });
                text.map_or(Intent::Nothing, Intent::Result)
            }
            _ => Intent::Nothing,
        }
    }

    pub(super) fn send(&mut self, line: &str) {
        let frame: Ours<'_> = serde_json::from_str(line).expect("our frames are JSON objects");
        let params = frame.params.map_or("{}", RawValue::get);
        let Some(method) = frame.method else {
            if let Some(result) = frame.result {
                self.result(line, result.get());
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
            "thread/start" => Intent::Thread(text(read().thread_source)),
            "turn/start" | "turn/steer" => Intent::Message(text(read().client_user_message_id)),
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

    fn result(&mut self, line: &str, result: &str) {
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Call {
            content_items: Vec<Content>,
        }
        #[derive(Deserialize)]
        struct Content {
            text: String,
        }
        let key = match serde_json::from_str::<Call>(result) {
            Ok(call) => call.content_items.into_iter().next().map(|c| c.text),
            Err(_) => Some(result.to_owned()),
        };
        let recorded = key.is_some_and(|key| self.durable.contains(&Intent::Result(key)));
        assert!(
            recorded,
            "1: an answer left before its record was durable: {line}"
        );
    }
}
