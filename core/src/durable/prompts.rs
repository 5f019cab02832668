//! The messages that are not at rest, found by their id, their turn and their conversation: there may
//! be as many as conversations.

use alloc::{
    collections::{BTreeMap, BTreeSet},
    vec::Vec,
};

use crate::{
    id::{ConversationId, MessageId, TurnNo},
    prompt::{Prompt, PromptKind},
};

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Prompts {
    all: BTreeMap<MessageId, Prompt>,
    /// Those that began a turn.
    starts: BTreeMap<TurnNo, MessageId>,
    of: BTreeMap<ConversationId, BTreeSet<MessageId>>,
}

impl Prompts {
    pub(super) fn get(&self, message: &MessageId) -> Option<&Prompt> {
        self.all.get(message)
    }

    /// A message to change. What it is found by is fixed when it is made.
    pub(super) fn get_mut(&mut self, message: &MessageId) -> Option<&mut Prompt> {
        self.all.get_mut(message)
    }

    pub(super) fn start_of(&self, turn: TurnNo) -> Option<(&MessageId, &Prompt)> {
        let message = self.starts.get(&turn)?;
        Some((message, self.all.get(message)?))
    }

    pub(super) fn of(&self, conversation: ConversationId) -> impl Iterator<Item = &MessageId> {
        self.of.get(&conversation).into_iter().flatten()
    }

    pub(super) fn iter(&self) -> impl ExactSizeIterator<Item = (&MessageId, &Prompt)> {
        self.all.iter()
    }

    pub(super) fn values_mut(&mut self) -> impl Iterator<Item = &mut Prompt> {
        self.all.values_mut()
    }

    pub(super) fn insert(&mut self, message: MessageId, prompt: Prompt) {
        let fields = &prompt.fields;
        match fields.kind {
            PromptKind::Start => {
                self.starts.insert(fields.turn, message.clone());
            }
            PromptKind::Steer => {}
        }
        let own = self.of.entry(fields.conversation).or_default();
        own.insert(message.clone());
        self.all.insert(message, prompt);
    }

    pub(super) fn remove(&mut self, message: &MessageId) {
        let Some(prompt) = self.all.remove(message) else {
            return;
        };
        let fields = &prompt.fields;
        if self.starts.get(&fields.turn) == Some(message) {
            self.starts.remove(&fields.turn);
        }
        if let Some(own) = self.of.get_mut(&fields.conversation) {
            own.remove(message);
            if own.is_empty() {
                self.of.remove(&fields.conversation);
            }
        }
    }

    /// Removes all messages of a conversation.
    pub(super) fn remove_of(&mut self, conversation: ConversationId) {
        let own: Vec<MessageId> = self.of(conversation).cloned().collect();
        for message in own {
            self.remove(&message);
        }
    }
}
