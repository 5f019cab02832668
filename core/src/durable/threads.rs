//! What records of native threads make, beside how they come to be.

use alloc::{format, string::ToString};

use super::{Durable, DurableConversation, apply::Refuse};
use crate::{
    compaction::CompactionChange,
    error::RecordError,
    fork::{ForkOf, Forked},
    id::ConversationId,
    naming::NamingChange,
    selection::{Selection, SelectionChange},
    thread::{Creation, is_mark},
};

impl Durable {
    /// A conversation has a copy of the boxes of another one, and nothing open.
    pub(super) fn forked(&mut self, refuse: Refuse, forked: &Forked) -> Result<(), RecordError> {
        let settings = &forked.settings;
        settings
            .validate()
            .map_err(|e| refuse.invalid(e.to_string()))?;
        let source = self
            .conversations
            .get(&forked.from)
            .ok_or_else(|| refuse.conversation(forked.from))?;
        let (conversation, key) = (forked.conversation, &forked.key);
        if conversation <= self.last_conversation || self.open_keys.contains_key(key) {
            return Err(refuse.exists(format!("conversation {conversation} ({key})")));
        }
        if !source.round.is_idle() || !source.mailbox.is_empty() || source.transcript.is_carried() {
            let reason = format!("something of conversation {} is open", forked.from);
            return Err(refuse.invalid(reason));
        }
        let thread = source.creation.as_ref().and_then(Creation::thread);
        let creation = match (&forked.mark, thread) {
            (None, _) => None,
            (Some(mark), Some(_)) if is_mark(mark) => Some(Creation::MayBeAccepted {
                mark: mark.clone(),
                thread: None,
            }),
            (Some(_), _) => {
                let reason = format!("conversation {} has no thread to fork", forked.from);
                return Err(refuse.invalid(reason));
            }
        };
        let forks = creation.is_some();
        let mut made = DurableConversation {
            settings: settings.clone(),
            authorization: forked.authorization,
            forked: Some(ForkOf {
                conversation: forked.from,
                thread: thread.filter(|_| forks).cloned(),
            }),
            creation,
            // The boxes tell of calls by their numbers: those of its own come behind them.
            last_call: source.last_call,
            accepted: forks,
            ran: forks,
            transcript: source.transcript.clone(),
            resume: source.resume,
            began: source.began,
            ..DurableConversation::new(key.clone(), forked.nonce)
        };
        if forks {
            // `thread/fork` carries the model, and nothing else of it is kept.
            let given = SelectionChange::Made(Selection {
                effort: None,
                personality: None,
                ..settings.selection()
            });
            made.selection
                .on(&given)
                .map_err(|e| refuse.transition(e))?;
        } else {
            made.transcript.forget_thread();
        }
        self.last_conversation = conversation;
        self.open_keys.insert(key.clone(), conversation);
        self.conversations.insert(conversation, made);
        Ok(())
    }

    pub(super) fn naming_changed(
        &mut self,
        refuse: Refuse,
        conversation: ConversationId,
        change: &NamingChange,
    ) -> Result<(), RecordError> {
        change.validate().map_err(|why| refuse.invalid(why))?;
        let known = self.of_thread(refuse, conversation)?;
        known.naming.on(change).map_err(|e| refuse.transition(e))?;
        Ok(())
    }

    pub(super) fn compaction_changed(
        &mut self,
        refuse: Refuse,
        conversation: ConversationId,
        change: &CompactionChange,
    ) -> Result<(), RecordError> {
        let known = self.of_thread(refuse, conversation)?;
        known
            .compaction
            .on(change)
            .map_err(|e| refuse.transition(e))?;
        Ok(())
    }

    /// A conversation that has a native thread.
    fn of_thread(
        &mut self,
        refuse: Refuse,
        conversation: ConversationId,
    ) -> Result<&mut DurableConversation, RecordError> {
        let known = self
            .conversations
            .get_mut(&conversation)
            .ok_or_else(|| refuse.conversation(conversation))?;
        match known.creation.as_ref().and_then(Creation::thread) {
            Some(_) => Ok(known),
            None => Err(refuse.missing(format!("the thread of conversation {conversation}"))),
        }
    }
}
