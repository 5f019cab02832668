//! The whole durable state as one record, so that what stands before it need not be kept.
//!
//! What follows from the rest is not written: it is made again, and what is written twice would have
//! to agree.

use alloc::{
    collections::{BTreeMap, VecDeque},
    format,
    string::{String, ToString},
    vec::Vec,
};
use core::fmt::Display;

use serde::{Deserialize, Serialize};

use super::{Durable, DurableConversation, KeyUse, REMEMBERED_KEYS, is_default};
use crate::{
    attachment::Attachment,
    cleanup::{Action, Cleanup, Owner},
    compaction::Compaction,
    id::{ArrivalNo, CommandId, ConversationId, MessageId, QuestionId, ToolCallId, TurnNo},
    naming::Naming,
    prompt::{Prompt, PromptKind},
    question::{QuestionAsked, QuestionState},
    record::Record,
    remembered::{REMEMBERED_COMMANDS, Remembered},
    thread::Creation,
    tools::Call,
};

/// All of a [`Durable`] and nothing else. What is empty is left out.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Checkpoint {
    lives: u64,
    #[serde(default, skip_serializing_if = "is_default")]
    attachment: Attachment,
    #[serde(default, skip_serializing_if = "is_default")]
    last_conversation: ConversationId,
    #[serde(default, skip_serializing_if = "is_default")]
    last_turn: TurnNo,
    #[serde(default, skip_serializing_if = "is_default")]
    last_question: QuestionId,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    conversations: Vec<(ConversationId, DurableConversation)>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    prompts: Vec<(MessageId, Prompt)>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    calls: Vec<(ToolCallId, Call)>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    questions: Vec<(QuestionId, QuestionAsked, QuestionState)>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    requests: Vec<(CommandId, String)>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    cleanups: Vec<(Owner, Action, Cleanup)>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    commands: Vec<(CommandId, Remembered)>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    forgotten_command: Option<CommandId>,
    /// Oldest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    keys: Vec<Key>,
}

/// A key of the application and what it stands for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Key {
    conversation: ConversationId,
    key: String,
    /// A message that began a turn: its turn and its id.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    turn: Option<TurnNo>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    message: Option<MessageId>,
    /// Arrivals: the first and the last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    arrivals: Option<(ArrivalNo, ArrivalNo)>,
    contents: u32,
}

impl Key {
    fn new((conversation, key): &(ConversationId, String), used: &KeyUse) -> Self {
        let (turn, message, arrivals, contents) = match used {
            KeyUse::Turn {
                turn,
                message,
                contents,
            } => (Some(*turn), Some(message.clone()), None, *contents),
            KeyUse::Arrival {
                first,
                last,
                contents,
            } => (None, None, Some((*first, *last)), *contents),
        };
        Self {
            conversation: *conversation,
            key: key.clone(),
            turn,
            message,
            arrivals,
            contents,
        }
    }

    fn stands_for(&self) -> Option<KeyUse> {
        let contents = self.contents;
        match (self.turn, &self.message, self.arrivals) {
            (Some(turn), Some(message), None) => Some(KeyUse::Turn {
                turn,
                message: message.clone(),
                contents,
            }),
            (None, None, Some((first, last))) if first <= last => Some(KeyUse::Arrival {
                first,
                last,
                contents,
            }),
            _ => None,
        }
    }
}

impl Checkpoint {
    /// How many lives of the process wrote the records before it.
    #[must_use]
    pub const fn lives(&self) -> u64 {
        self.lives
    }

    /// How many conversations are open.
    #[must_use]
    pub fn conversations(&self) -> usize {
        self.conversations.len()
    }

    /// How many messages are not at rest.
    #[must_use]
    pub fn messages(&self) -> usize {
        self.prompts.len()
    }

    /// How many tool calls are remembered.
    #[must_use]
    pub fn calls(&self) -> usize {
        self.calls.len()
    }

    /// How many questions are not settled.
    #[must_use]
    pub fn questions(&self) -> usize {
        self.questions.len()
    }
}

impl Durable {
    /// The whole state as a record: applied to an empty one it makes this again.
    #[must_use]
    pub fn checkpoint(&self) -> Record {
        let keys = self.key_order.iter().filter_map(|of| {
            let used = self.keys.get(of)?;
            Some(Key::new(of, used))
        });
        let questions = self.questions.iter();
        Record::Checkpoint(
            Checkpoint {
                lives: self.lives,
                attachment: self.attachment.clone(),
                last_conversation: self.last_conversation,
                last_turn: self.last_turn,
                last_question: self.last_question,
                conversations: listed(&self.conversations),
                prompts: {
                    let prompts = self.prompts.iter();
                    prompts
                        .map(|(message, prompt)| (message.clone(), prompt.clone()))
                        .collect()
                },
                calls: listed(&self.calls),
                questions: questions
                    .map(|(id, (asked, state))| (*id, asked.clone(), state.clone()))
                    .collect(),
                requests: listed(&self.requests),
                cleanups: self
                    .cleanups()
                    .map(|(owner, action, cleanup)| (owner.clone(), action, cleanup.clone()))
                    .collect(),
                commands: listed(&self.commands),
                forgotten_command: self.forgotten_command,
                keys: keys.collect(),
            }
            .into(),
        )
    }

    /// The state that a checkpoint holds, once every part of it is good and fits the others.
    pub(super) fn restore(checkpoint: &Checkpoint) -> Result<Self, String> {
        checkpoint.attachment.validate()?;
        let mut made = Self {
            lives: checkpoint.lives,
            attachment: checkpoint.attachment.clone(),
            last_conversation: checkpoint.last_conversation,
            last_turn: checkpoint.last_turn,
            last_question: checkpoint.last_question,
            ..Self::default()
        };
        made.restore_conversations(&checkpoint.conversations)?;
        made.restore_prompts(&checkpoint.prompts)?;
        made.restore_calls(&checkpoint.calls)?;
        made.restore_questions(&checkpoint.questions)?;
        made.requests = unique("request of command", &checkpoint.requests)?;
        made.restore_cleanups(&checkpoint.cleanups)?;
        made.restore_commands(&checkpoint.commands, checkpoint.forgotten_command)?;
        made.restore_keys(&checkpoint.keys)?;
        Ok(made)
    }

    fn restore_conversations(
        &mut self,
        list: &[(ConversationId, DurableConversation)],
    ) -> Result<(), String> {
        self.conversations = unique("conversation", list)?;
        for (id, conversation) in &mut self.conversations {
            let of = |why: String| format!("conversation {id}: {why}");
            conversation
                .settings
                .validate()
                .map_err(|e| of(e.to_string()))?;
            if let Some(creation) = &conversation.creation {
                creation.validate().map_err(|why| of(why.into()))?;
            }
            conversation.naming.validate().map_err(of)?;
            let bound = conversation.creation.as_ref().and_then(Creation::thread);
            let of_thread = conversation.naming != Naming::Unnamed
                || conversation.compaction != Compaction::None;
            if of_thread && bound.is_none() {
                return Err(of("what is asked of its thread is asked of none".into()));
            }
            conversation.selection.validate().map_err(of)?;
            conversation.transcript.validate().map_err(of)?;
            conversation.mailbox.restore().map_err(of)?;
            if conversation
                .results
                .values()
                .any(|id| *id > conversation.transcript.last())
            {
                return Err(of("a result stands in no box".into()));
            }
            if *id > self.last_conversation {
                return Err(of("it comes after the last".into()));
            }
            if conversation.home.as_ref() == self.attachment.home() {
                // One text for all of them.
                conversation.home = self.attachment.home().cloned();
            }
            let key = conversation.key.clone();
            if self.open_keys.insert(key, *id).is_some() {
                return Err(of(format!("the key {} stands twice", conversation.key)));
            }
        }
        Ok(())
    }

    fn restore_prompts(&mut self, list: &[(MessageId, Prompt)]) -> Result<(), String> {
        let prompts = unique("message", list)?;
        for (id, prompt) in prompts {
            let of = |why: &str| format!("message {id}: {why}");
            prompt.fields.validate().map_err(|why| of(&why))?;
            prompt.validate().map_err(of)?;
            if prompt.is_at_rest() {
                return Err(of("it is at rest"));
            }
            if prompt.fields.turn > self.last_turn {
                return Err(of("its turn comes after the last"));
            }
            self.known(prompt.fields.conversation)
                .map_err(|why| of(&why))?;
            let starts = prompt.fields.kind == PromptKind::Start;
            if starts && self.prompts.start_of(prompt.fields.turn).is_some() {
                return Err(of("its turn began with another one"));
            }
            self.prompts.insert(id, prompt);
        }
        Ok(())
    }

    fn restore_calls(&mut self, list: &[(ToolCallId, Call)]) -> Result<(), String> {
        self.calls = unique("call", list)?;
        for (id, call) in &self.calls {
            let of = |why: &str| format!("call {id}: {why}");
            let conversation = self.known(call.conversation).map_err(|why| of(&why))?;
            if id.nonce != conversation.nonce {
                return Err(of("it has a foreign nonce"));
            }
            if id.sequence == 0 || id.sequence > conversation.last_call {
                return Err(of("it is not one of its conversation's numbers"));
            }
            if call.turn > self.last_turn {
                return Err(of("its turn comes after the last"));
            }
        }
        Ok(())
    }

    fn restore_questions(
        &mut self,
        list: &[(QuestionId, QuestionAsked, QuestionState)],
    ) -> Result<(), String> {
        let list: Vec<_> = list
            .iter()
            .map(|(id, asked, state)| (*id, (asked.clone(), state.clone())))
            .collect();
        self.questions = unique("question", &list)?;
        for (id, (asked, state)) in &self.questions {
            let of = |why: &str| format!("question {id}: {why}");
            match state {
                QuestionState::Pending | QuestionState::Ambiguous { .. } => {}
                QuestionState::Accepted | QuestionState::Cancelled => {
                    return Err(of("it is settled"));
                }
            }
            if *id > self.last_question {
                return Err(of("it comes after the last"));
            }
            if asked.turn.is_some_and(|turn| turn > self.last_turn) {
                return Err(of("its turn comes after the last"));
            }
        }
        Ok(())
    }

    fn restore_cleanups(&mut self, list: &[(Owner, Action, Cleanup)]) -> Result<(), String> {
        for (owner, action, cleanup) in list {
            let of = |why: &str| format!("the clean-up {action:?} for {owner:?}: {why}");
            owner.validate().map_err(|why| of(&why))?;
            cleanup.validate().map_err(of)?;
            let key = (owner.clone(), *action);
            if self
                .cleanups
                .last_key_value()
                .is_some_and(|(last, _)| *last >= key)
            {
                return Err(of("it is out of order or stands twice"));
            }
            self.cleanups.insert(key, cleanup.clone());
        }
        Ok(())
    }

    fn restore_commands(
        &mut self,
        list: &[(CommandId, Remembered)],
        forgotten: Option<CommandId>,
    ) -> Result<(), String> {
        if list.len() > REMEMBERED_COMMANDS {
            return Err(format!("more than {REMEMBERED_COMMANDS} commands"));
        }
        self.commands = unique("command", list)?;
        match self.commands.first_key_value() {
            Some((first, _)) if Some(*first) <= forgotten => {
                return Err(format!("command {first} is remembered and forgotten"));
            }
            Some(_) | None => {}
        }
        self.forgotten_command = forgotten;
        Ok(())
    }

    fn restore_keys(&mut self, list: &[Key]) -> Result<(), String> {
        if list.len() > REMEMBERED_KEYS {
            return Err(format!("more than {REMEMBERED_KEYS} keys"));
        }
        let mut order = VecDeque::with_capacity(list.len());
        for used in list {
            let of = |why: &str| {
                let conversation = used.conversation;
                format!(
                    "the key {:?} of conversation {conversation}: {why}",
                    used.key
                )
            };
            if used.conversation > self.last_conversation {
                return Err(of("its conversation comes after the last"));
            }
            if used.turn > Some(self.last_turn) {
                return Err(of("its turn comes after the last"));
            }
            let key = (used.conversation, used.key.clone());
            order.push_back(key.clone());
            let stands_for = used
                .stands_for()
                .ok_or_else(|| of("it stands for nothing, or for two things"))?;
            if self.keys.insert(key, stands_for).is_some() {
                return Err(of("it stands twice"));
            }
        }
        self.key_order = order;
        Ok(())
    }

    fn known(&self, conversation: ConversationId) -> Result<&DurableConversation, String> {
        self.conversations
            .get(&conversation)
            .ok_or_else(|| format!("conversation {conversation} does not exist"))
    }
}

fn listed<K: Clone, V: Clone>(map: &BTreeMap<K, V>) -> Vec<(K, V)> {
    map.iter()
        .map(|(key, value)| (key.clone(), value.clone()))
        .collect()
}

/// The list as a map: it is in order, and nothing stands in it twice.
fn unique<K: Ord + Clone + Display, V: Clone>(
    what: &str,
    list: &[(K, V)],
) -> Result<BTreeMap<K, V>, String> {
    if let Some(pair) = list.windows(2).find(|pair| pair[0].0 >= pair[1].0) {
        return Err(format!(
            "{what} {} is out of order or stands twice",
            pair[1].0
        ));
    }
    Ok(list.iter().cloned().collect())
}
