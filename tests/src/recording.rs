//! What a recorded session shows when it is played again: the same effects, and every frame behind its record.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
};

use serde_json::Value;
use turnkeep_core::{
    Batch, Config, Effect, Effects, Input, JournalSeq, Record, Timestamp,
    cleanup::{Action, CleanupChange},
    codec::{
        journal::{self, Journal},
        trace::{Reader, Recorded},
    },
    command::ToolDelivery,
    compaction::CompactionChange,
    naming::NamingChange,
    prompt::PromptChange,
    round::{Action as RoundAction, RoundChange},
    thread::CreationChange,
    tools::CallChange,
};

/// A recording that was played again in this process.
#[derive(Debug)]
pub struct Recording {
    /// The configuration that the machine was made with.
    pub config: Config,
    /// Every step, that of making the machine first, with its input but for that one.
    pub steps: Vec<(Timestamp, Option<Input>, Effects)>,
}

impl Recording {
    /// Reads a recording and plays it again.
    ///
    /// # Panics
    ///
    /// If it cannot be read, or the machine does anything else than was recorded.
    pub fn replay(path: &Path) -> Self {
        let bytes = fs::read(path).expect("the recording is there");
        let (reader, header) = Reader::new(&bytes).unwrap_or_else(|e| panic!("recording: {e}"));
        let (mut machine, first) = header
            .machine()
            .expect("it was made with this configuration before");
        assert_eq!(
            Recorded::of(&first),
            header.effects,
            "replay: the first step differs"
        );
        let mut steps = vec![(header.at, None, first)];
        for (number, step) in reader.enumerate() {
            let step = step.unwrap_or_else(|e| panic!("recording: {e}"));
            let effects = machine.step(step.at, step.input.clone());
            assert_eq!(
                Recorded::of(&effects),
                step.effects,
                "replay: step {number} differs, its input is {:?}",
                step.input
            );
            steps.push((step.at, Some(step.input), effects));
        }
        Recording {
            config: header.config,
            steps,
        }
    }

    /// Every frame that was handed to the connection, in order.
    pub fn sent(&self) -> Vec<Value> {
        let effects = self.steps.iter().flat_map(|(_, _, fx)| &fx.list);
        effects.filter_map(sent).collect()
    }

    /// The params of every frame sent with this method.
    pub fn sent_params(&self, method: &str) -> Vec<Value> {
        let frames = self.sent().into_iter();
        frames
            .filter(|frame| frame["method"] == method)
            .map(|mut frame| frame["params"].take())
            .collect()
    }

    /// Every line that came and is JSON, in order.
    pub fn received(&self) -> Vec<Value> {
        let frames = self.frames().into_iter();
        frames.filter(|(ours, _)| !ours).map(|(_, f)| f).collect()
    }

    /// Every frame either way in the order of the steps, with whether it is ours.
    pub fn frames(&self) -> Vec<(bool, Value)> {
        let mut frames = Vec::new();
        let mut line = Vec::new();
        for (_, input, effects) in &self.steps {
            if let Some(Input::Received(_, read)) = input {
                let mut rest = &read[..];
                while let Some(end) = memchr::memchr(b'\n', rest) {
                    line.extend_from_slice(&rest[..end]);
                    frames.extend(serde_json::from_slice(&line).map(|frame| (false, frame)));
                    line.clear();
                    rest = &rest[end + 1..];
                }
                line.extend_from_slice(rest);
            }
            frames.extend(effects.list.iter().filter_map(sent).map(|f| (true, f)));
        }
        frames
    }

    /// Every record that was made, with the number of its batch.
    pub fn records(&self) -> Vec<(JournalSeq, Record)> {
        self.batches()
            .flat_map(|batch| batch.records.iter().map(|r| (batch.through, r.clone())))
            .collect()
    }

    fn batches(&self) -> impl Iterator<Item = &Batch> {
        let effects = self.steps.iter().flat_map(|(_, _, fx)| &fx.list);
        effects.filter_map(|effect| match effect {
            Effect::Append(batch) => Some(batch),
            _ => None,
        })
    }

    /// Checks that every frame that changes the server left after its record was confirmed, and counts these frames.
    ///
    /// # Panics
    ///
    /// If one left before.
    pub fn check_order(&self) -> usize {
        let requests: BTreeMap<String, Value> = self
            .received()
            .into_iter()
            .filter(|frame| frame.get("method").is_some() && frame.get("id").is_some())
            .map(|frame| (frame["id"].to_string(), frame))
            .collect();
        let mut records: Vec<(JournalSeq, &Record)> = Vec::new();
        let mut confirmed = JournalSeq(0);
        let mut changes = 0;
        for (_, input, effects) in &self.steps {
            if let Some(Input::Appended { through }) = input {
                confirmed = *through;
            }
            for effect in &effects.list {
                if let Effect::Append(batch) = effect {
                    records.extend(batch.records.iter().map(|r| (batch.through, r)));
                }
                let Some(frame) = sent(effect) else { continue };
                let Some(intent) = Intent::of(&frame, &requests) else {
                    continue;
                };
                changes += 1;
                let found = records
                    .iter()
                    .find(|(_, record)| intent.is_of(record, &records));
                match found {
                    Some((seq, _)) if *seq <= confirmed => {}
                    Some((seq, record)) => panic!(
                        "{frame} left when {confirmed} was confirmed, before its record in {seq}: {record:?}"
                    ),
                    None => panic!("{frame} left without a record"),
                }
            }
        }
        changes
    }

    /// Checks that the journal in a directory holds the batches that were handed out, and after them nothing else.
    ///
    /// # Panics
    ///
    /// If it does not.
    pub fn check_journal(&self, directory: &Path) -> Journal {
        let journal = journal_in(directory);
        assert_eq!(journal.torn, None, "the journal's last line is whole");
        let handed: Vec<_> = self.batches().map(|b| (b.through, &b.records)).collect();
        let first = handed.first().map(|(seq, _)| *seq);
        let written = journal.entries.iter().map(|(_, e)| (e.seq, &e.records));
        // What earlier lives wrote stands before it.
        let written: Vec<_> = written.filter(|(seq, _)| Some(*seq) >= first).collect();
        // A checkpoint stands for what was handed out before it.
        let checkpoint = journal.entries.iter().map(|(_, entry)| entry);
        let checkpoint = checkpoint.filter(|entry| entry.is_checkpoint());
        let stands = checkpoint.map(|entry| entry.seq).max();
        let behind = |seq: &JournalSeq| stands.is_none_or(|stands| *seq > stands);
        let written: Vec<_> = written.into_iter().filter(|(seq, _)| behind(seq)).collect();
        let handed: Vec<_> = handed.into_iter().filter(|(seq, _)| behind(seq)).collect();
        assert_eq!(written, handed, "journal and recording");
        journal
    }
}

/// What the files of a directory hold together.
///
/// # Panics
///
/// If they cannot be read.
pub fn journal_in(directory: &Path) -> Journal {
    let files = turnkeep_tokio::journal_files(directory).expect("the journal is there");
    let read = files
        .iter()
        .map(|file| fs::read(file).expect("its files can be read"));
    let bytes: Vec<u8> = read.flatten().collect();
    journal::decode(&bytes).unwrap_or_else(|e| panic!("journal: {e}"))
}

fn sent(effect: &Effect) -> Option<Value> {
    match effect {
        Effect::Send(_, frame) => {
            Some(serde_json::from_slice(&frame.bytes).expect("what we send is JSON"))
        }
        _ => None,
    }
}

/// What a frame must have a record of.
enum Intent {
    Thread {
        mark: String,
    },
    Message {
        id: String,
    },
    Interrupt {
        turn: String,
    },
    Call {
        native: String,
        /// As the call of a sub-agent is recorded.
        of_child: String,
        result: Value,
    },
    Answer {
        result: Value,
    },
    Request {
        method: String,
    },
}

/// Whether a request needs no record: what only reads, and what the contract names beside that.
fn reads(method: &str) -> bool {
    let is_named = [
        "initialize",
        "initialized",
        "thread/resume",
        "thread/unsubscribe",
    ];
    let known = turnkeep_protocol::MethodInfo::of(method);
    is_named.contains(&method)
        || known.is_some_and(|known| known.effect == turnkeep_protocol::Effect::Reads)
}

impl Intent {
    fn of(frame: &Value, requests: &BTreeMap<String, Value>) -> Option<Self> {
        let params = &frame["params"];
        let text = |value: &Value| value.as_str().expect("a text").to_owned();
        let Some(method) = frame["method"].as_str() else {
            let result = frame.get("result")?;
            let request = requests.get(&frame["id"].to_string());
            let request = request.unwrap_or_else(|| panic!("{frame} answers nothing"));
            let params = &request["params"];
            return match request["method"].as_str() {
                Some("item/tool/call") => {
                    let [thread, turn, call] =
                        ["threadId", "turnId", "callId"].map(|id| text(&params[id]));
                    Some(Self::Call {
                        of_child: format!("{thread}/{turn}/{call}"),
                        native: call,
                        result: result.clone(),
                    })
                }
                // Tokens stand in no record.
                Some("currentTime/read" | "account/chatgptAuthTokens/refresh") => None,
                _ => Some(Self::Answer {
                    result: result.clone(),
                }),
            };
        };
        match method {
            method if reads(method) => None,
            // What has no mark of ours was sent raw.
            "thread/start" | "thread/fork" if params["threadSource"].is_string() => {
                Some(Self::Thread {
                    mark: text(&params["threadSource"]),
                })
            }
            "turn/start" | "turn/steer" if params["clientUserMessageId"].is_string() => {
                Some(Self::Message {
                    id: text(&params["clientUserMessageId"]),
                })
            }
            "turn/interrupt" => Some(Self::Interrupt {
                turn: text(&params["turnId"]),
            }),
            method => Some(Self::Request {
                method: method.to_owned(),
            }),
        }
    }

    fn is_of(&self, record: &Record, all: &[(JournalSeq, &Record)]) -> bool {
        match (self, record) {
            (
                Self::Thread { mark },
                Record::ThreadCreation {
                    conversation,
                    change,
                },
            ) => {
                *change == CreationChange::Dispatched
                    && all.iter().any(|(_, other)| {
                        matches!(other, Record::ThreadCreation {
                            conversation: of, change: CreationChange::Preparing { mark: its },
                        } if of == conversation && its == mark)
                    })
            }
            (Self::Thread { mark }, Record::Forked(forked)) => forked.mark.as_ref() == Some(mark),
            (Self::Message { id }, Record::Prompt { message, change }) => {
                message.as_str() == id && *change == PromptChange::Dispatched
            }
            (Self::Interrupt { turn }, Record::Prompt { change, .. }) => {
                matches!(change, PromptChange::CancelDispatched { turn: of } if of.as_str() == turn)
            }
            // One that the application sent raw.
            (Self::Interrupt { .. }, Record::Request { method, .. }) => method == "turn/interrupt",
            // The stage says itself what a deferred or malformed call and a message are answered.
            (Self::Call { native, .. }, Record::Round { change, .. }) => {
                actions(change).iter().any(|action| match action {
                    RoundAction::Message { native: of, .. } => of.as_str() == native,
                    RoundAction::Call(call) => {
                        let is_known =
                            call.delivery == ToolDelivery::Deferred || call.malformed.is_some();
                        is_known && call.native.as_str() == native
                    }
                })
            }
            (
                Self::Call {
                    native, of_child, ..
                },
                Record::ToolCall { call, change },
            ) => {
                let ends = matches!(
                    change,
                    CallChange::Answered { .. } | CallChange::Closed { .. }
                );
                let is_it = |other: &Record| match other {
                    Record::ToolCall {
                        call: of,
                        change: CallChange::Asked(asked),
                    } => {
                        let its = asked.native.as_str();
                        of == call && (its == native || its == of_child)
                    }
                    Record::Round { change, .. } => actions(change).iter().any(|action| {
                        matches!(action, RoundAction::Call(staged)
                            if staged.sequence == call.sequence && staged.native.as_str() == native)
                    }),
                    _ => false,
                };
                ends && all.iter().any(|(_, other)| is_it(other))
            }
            // A sub-agent's that nobody serves.
            (
                Self::Call { result, .. },
                Record::QuestionAnswered {
                    result: of, chosen, ..
                },
            ) => !chosen && of.read::<Value>().is_ok_and(|of| of == *result),
            (Self::Answer { result }, Record::QuestionAnswered { result: of, .. }) => {
                of.read::<Value>().is_ok_and(|of| of == *result)
            }
            (Self::Request { method }, Record::Request { method: of, .. }) => of == method,
            (Self::Request { method }, Record::Naming { change, .. }) => {
                method == "thread/name/set" && matches!(change, NamingChange::Asked { .. })
            }
            (Self::Request { method }, Record::Compaction { change, .. }) => {
                let asked = matches!(change, CompactionChange::Asked { .. });
                asked && method == "thread/compact/start"
            }
            (Self::Request { method }, Record::Cleanup { action, change, .. }) => {
                let owes = matches!(change, CleanupChange::Owed { .. });
                owes && match action {
                    Action::Detach => method == "thread/backgroundTerminals/clean",
                    Action::Archive => method == "thread/archive",
                    Action::Delete => method == "thread/delete",
                }
            }
            _ => false,
        }
    }
}

fn actions(change: &RoundChange) -> &[RoundAction] {
    match change {
        RoundChange::Staged { actions, .. } => actions,
        _ => &[],
    }
}

/// The methods of frames, without those of responses, for a look at what was said.
pub fn methods(frames: &[Value]) -> BTreeSet<&str> {
    frames.iter().filter_map(|f| f["method"].as_str()).collect()
}
