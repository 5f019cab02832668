//! A conversation that is made of another one.

use std::{future::IntoFuture, sync::Arc};

use turnkeep_core::{Command, ConversationId, ConversationKey, Settings};

use super::{Shared, conversation::Conversation};
use crate::{
    error::{OpenError, RequestError},
    runtime::BoxFuture,
};

/// A conversation about to be made of another one. Await it.
#[derive(Clone, Debug)]
#[must_use = "nothing happens before it is awaited"]
pub struct ForkConversation {
    pub(super) shared: Arc<Shared>,
    pub(super) conversation: ConversationId,
    pub(super) key: String,
    pub(super) settings: Option<Settings>,
}

impl ForkConversation {
    /// Says how the new one is held, else as the other one. What a thread is made with must be the
    /// same.
    pub fn settings(mut self, settings: Settings) -> Self {
        self.settings = Some(settings);
        self
    }

    async fn open(self) -> Result<Conversation, OpenError> {
        let Some(key) = ConversationKey::new(&self.key) else {
            return Err(OpenError::BadKey { key: self.key });
        };
        let command = Command::Fork {
            conversation: self.conversation,
            key,
            settings: self.settings.map(Box::new),
        };
        let opened = self.shared.command(command).await?;
        opened.answer.map_err(RequestError::from)?;
        let talk = opened.talk.ok_or(RequestError::Stopped)?;
        Ok(Conversation::new(self.shared, talk))
    }
}

impl IntoFuture for ForkConversation {
    type Output = Result<Conversation, OpenError>;
    type IntoFuture = BoxFuture<Self::Output>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.open())
    }
}
