//! What the application holds. Handles are channels to the driver and know nothing of their own.

pub(crate) mod client;
pub(crate) mod conversation;
pub(crate) mod fork;
#[cfg(feature = "protocol")]
pub(crate) mod inventory;
pub(crate) mod refreshes;
#[cfg(feature = "structured")]
pub(crate) mod structured;
pub(crate) mod turn;
#[cfg(feature = "protocol")]
pub(crate) mod typed;

use std::sync::Arc;

use async_channel::Sender;
use futures_channel::oneshot;
use turnkeep_core::{Command, InputItem, Reply};

use crate::{
    error::RequestError,
    hub::Answered,
    journal::JournalReport,
    life::Life,
    request::{Note, Request},
};

/// A message of the user: texts and other input items, in order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Message(pub Vec<InputItem>);

impl From<&str> for Message {
    fn from(text: &str) -> Self {
        Self(vec![InputItem::text(text)])
    }
}

impl From<String> for Message {
    fn from(text: String) -> Self {
        text.as_str().into()
    }
}

impl From<&String> for Message {
    fn from(text: &String) -> Self {
        text.as_str().into()
    }
}

impl From<InputItem> for Message {
    fn from(item: InputItem) -> Self {
        Self(vec![item])
    }
}

impl From<Vec<InputItem>> for Message {
    fn from(items: Vec<InputItem>) -> Self {
        Self(items)
    }
}

impl<const N: usize> From<[InputItem; N]> for Message {
    fn from(items: [InputItem; N]) -> Self {
        Self(items.into())
    }
}

/// The way to the driver. When the last of it is gone the client shuts down.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) requests: Sender<Request>,
    pub(crate) notes: Sender<Note>,
    pub(crate) life: Arc<Life>,
    pub(crate) report: JournalReport,
}

impl Shared {
    /// Asks the driver, and waits for what it says.
    pub(crate) async fn ask<T>(
        &self,
        request: impl FnOnce(oneshot::Sender<T>) -> Request,
    ) -> Result<T, RequestError> {
        let (reply, answer) = oneshot::channel();
        let sent = self.requests.send(request(reply)).await;
        if sent.is_err() {
            return Err(self.life.refusal());
        }
        answer.await.map_err(|_| self.life.refusal())
    }

    /// Has a command carried out.
    pub(crate) async fn command(&self, command: Command) -> Result<Answered, RequestError> {
        self.ask(|reply| Request::Command(command, reply)).await
    }

    /// Has a command carried out whose answer is all there is to it.
    pub(crate) async fn reply(&self, command: Command) -> Result<Reply, RequestError> {
        Ok(self.command(command).await?.answer?)
    }

    /// Tells the driver, who may be gone. Never waits.
    pub(crate) fn note(&self, note: Note) {
        let _ = self.notes.try_send(note);
    }
}
