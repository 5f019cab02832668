//! What handles ask of the driver.

use futures_channel::oneshot;
use turnkeep_core::{
    Command, CommandId, ConversationId, Counters, Input, RefreshId, TurnNo, command::TokenAnswer,
};

use crate::{
    driver::{Driver, Stage},
    error::ClaimError,
    hub::{Answered, Claim},
};

/// What a handle asks of the driver, and waits for.
#[derive(Debug)]
pub(crate) enum Request {
    Command(Command, oneshot::Sender<Answered>),
    Claim(
        ConversationId,
        TurnNo,
        oneshot::Sender<Result<Claim, ClaimError>>,
    ),
    ClaimNewest(ConversationId, oneshot::Sender<Option<Claim>>),
    /// `None` where there is no such conversation any more.
    ClaimBegan(ConversationId, oneshot::Sender<Option<Option<Claim>>>),
    ClaimRecovered(ConversationId, oneshot::Sender<Vec<Claim>>),
    Counters(oneshot::Sender<Counters>),
    Shutdown,
}

/// What a handle tells the driver without waiting.
#[derive(Debug)]
pub(crate) enum Note {
    Abandon(TurnNo),
    Acknowledge(TurnNo),
    /// Nobody will answer a request for tokens.
    FailRefresh(RefreshId),
    /// The end of a turn was taken and will be acknowledged by other means, if at all.
    Release(TurnNo),
}

impl Driver {
    fn command(&mut self, command: Command, reply: Option<oneshot::Sender<Answered>>) -> Input {
        self.work.commands += 1;
        let id = CommandId(self.work.commands);
        match command {
            Command::Acknowledge { turn } | Command::Abandon { turn } => self.hub.release(turn),
            _ => {}
        }
        if let Some(reply) = reply {
            self.hub.expect(id, &command, reply);
        }
        Input::Command { id, command }
    }

    pub(crate) fn fail_refresh(&mut self, refresh: RefreshId) -> Input {
        let message = "the application has no tokens".into();
        let answer = TokenAnswer::Failed { message };
        self.command(Command::RefreshToken { refresh, answer }, None)
    }

    pub(crate) fn noted(&mut self, note: Note) -> Option<Input> {
        match note {
            Note::Abandon(turn) => Some(self.command(Command::Abandon { turn }, None)),
            Note::Acknowledge(turn) => Some(self.command(Command::Acknowledge { turn }, None)),
            Note::FailRefresh(refresh) => Some(self.fail_refresh(refresh)),
            Note::Release(turn) => {
                self.hub.release(turn);
                None
            }
        }
    }

    pub(crate) fn requested(&mut self, request: Option<Request>) -> Option<Input> {
        // What a handle said before it asked, or before it was dropped, comes first.
        while let Ok(note) = self.notes.try_recv() {
            let input = self.noted(note);
            self.work.ready.extend(input);
        }
        match request {
            // Its asker is told by the lost channel.
            Some(_) if matches!(self.work.stage, Stage::Halted) => {}
            Some(Request::Command(command, reply)) => {
                let input = self.command(command, Some(reply));
                self.work.ready.push_back(input);
            }
            Some(Request::Claim(conversation, turn, reply)) => {
                let _ = reply.send(self.hub.claim(conversation, turn));
            }
            Some(Request::ClaimNewest(conversation, reply)) => {
                let _ = reply.send(self.hub.claim_newest(conversation));
            }
            Some(Request::ClaimBegan(conversation, reply)) => {
                let _ = reply.send(self.hub.claim_began(conversation));
            }
            Some(Request::ClaimRecovered(conversation, reply)) => {
                let _ = reply.send(self.hub.claim_recovered(conversation));
            }
            Some(Request::Counters(reply)) => {
                let _ = reply.send(self.machine.counters());
            }
            Some(Request::Shutdown) | None => {
                if matches!(self.work.stage, Stage::Serving) {
                    let input = self.command(Command::Shutdown, None);
                    self.work.stage = Stage::Closing(CommandId(self.work.commands));
                    self.work.ready.push_back(input);
                }
            }
        }
        None
    }
}
