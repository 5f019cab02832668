//! Commands, as short as a scenario wants them.

use std::time::Duration;

use turnkeep_core::{
    Command, CommandError, CommandId, ConversationId, ConversationKey, Event, InputItem,
    QuestionId, RawJson, Reply, SendOptions, Settings, Tool, ToolCallId, ToolResult, TurnNo,
    TurnUpdate,
    cleanup::{Action, Owner},
    command::{Answer, RequestEffect, ToolKind},
    event::{ConversationUpdate, Origin, Question, ToolCall},
};

use super::World;

/// A tool of this kind without a schema worth the name.
///
/// # Panics
///
/// Never: the schema is JSON.
#[must_use]
pub fn tool(name: &str, kind: ToolKind) -> Tool {
    let schema = RawJson::parse(r#"{"type":"object"}"#).expect("an object");
    Tool::function(name, "", schema).kind(kind)
}

/// A JSON text.
///
/// # Panics
///
/// It is none.
#[must_use]
pub fn json(text: &str) -> RawJson {
    RawJson::parse(text).expect("a JSON text")
}

impl World {
    /// Issues a command under a number of its own.
    pub fn ask(&mut self, command: Command) -> CommandId {
        self.commands += 1;
        let id = CommandId(self.commands);
        self.ask_as(id, command);
        id
    }

    /// Issues a command under a number.
    pub fn ask_as(&mut self, id: CommandId, command: Command) {
        self.input(turnkeep_core::Input::Command { id, command });
    }

    /// Asks for something that changes nothing, and leaves it out of the log.
    ///
    /// # Errors
    ///
    /// As it is answered.
    ///
    /// # Panics
    ///
    /// It is not answered at once.
    pub fn look(&mut self, command: Command) -> Result<Reply, CommandError> {
        let end = self.log.len();
        let answer = self.done(command);
        self.log.cut(end);
        answer
    }

    fn done(&mut self, command: Command) -> Result<Reply, CommandError> {
        let id = self.ask(command);
        let answer = self.answer(id).cloned();
        answer.unwrap_or_else(|| panic!("command {id} is not answered at once"))
    }

    /// Opens a conversation.
    ///
    /// # Panics
    ///
    /// It is not opened at once.
    pub fn open(&mut self, key: &str, settings: Settings) -> ConversationId {
        let command = Self::open_command(key, settings);
        match self.done(command) {
            Ok(Reply::Opened { conversation }) => conversation,
            other => panic!("open: {other:?}"),
        }
    }

    /// The command that opens a conversation.
    ///
    /// # Panics
    ///
    /// The key is none.
    #[must_use]
    pub fn open_command(key: &str, settings: Settings) -> Command {
        Command::Open {
            key: ConversationKey::new(key).expect("a key"),
            settings: Box::new(settings),
        }
    }

    /// Opens a conversation that need not be there at once.
    pub fn open_later(&mut self, key: &str) -> CommandId {
        self.ask(Self::open_command(key, Settings::new()))
    }

    /// Sends a text and gives the turn that begins with it.
    ///
    /// # Panics
    ///
    /// It is not accepted at once.
    pub fn send(&mut self, conversation: ConversationId, text: &str) -> TurnNo {
        self.send_with(conversation, text, SendOptions::new())
    }

    /// Sends a text with options.
    ///
    /// # Panics
    ///
    /// It is not accepted at once.
    pub fn send_with(
        &mut self,
        conversation: ConversationId,
        text: &str,
        options: SendOptions,
    ) -> TurnNo {
        match self.done(Self::send_command(conversation, text, options)) {
            Ok(Reply::Accepted { turn, .. }) => turn,
            other => panic!("send: {other:?}"),
        }
    }

    /// Sends a text that is refused.
    ///
    /// # Panics
    ///
    /// It is accepted.
    pub fn send_refused(&mut self, conversation: ConversationId, text: &str) -> CommandError {
        self.done(Self::send_command(conversation, text, SendOptions::new()))
            .expect_err("it is refused")
    }

    /// Leaves the stall of a conversation, so that the next round can begin.
    ///
    /// # Panics
    ///
    /// It is not stalled.
    pub fn dismiss(&mut self, conversation: ConversationId) {
        match self.done(Command::Dismiss { conversation }) {
            Ok(Reply::Done) => {}
            other => panic!("dismiss: {other:?}"),
        }
    }

    /// Begins the round of a stall again; its turn.
    ///
    /// # Panics
    ///
    /// It cannot be begun again.
    pub fn restart(&mut self, conversation: ConversationId) -> TurnNo {
        let binding = None;
        match self.done(Command::Restart {
            conversation,
            binding,
        }) {
            Ok(Reply::Accepted { turn, .. }) => turn,
            other => panic!("restart: {other:?}"),
        }
    }

    /// Lets time pass until the conversation has begun a round by itself; its turn. Rounds that are
    /// older than a turn do not count.
    ///
    /// # Panics
    ///
    /// It never does.
    pub fn follow_up(&mut self, after: TurnNo) -> TurnNo {
        let told = |world: &Self| {
            world.life().iter().find_map(|event| match event {
                Event::Conversation(event) => match event.update {
                    ConversationUpdate::TurnBegan {
                        turn,
                        origin: Origin::Ours,
                    } if turn > after => Some(turn),
                    _ => None,
                },
                _ => None,
            })
        };
        self.run_until("a round that begins by itself", |world| {
            told(world).is_some()
        });
        told(self).expect("it was just there")
    }

    /// The command that sends a text.
    #[must_use]
    pub fn send_command(conversation: ConversationId, text: &str, options: SendOptions) -> Command {
        Command::Send {
            conversation,
            input: vec![InputItem::text(text)],
            options: Box::new(options),
        }
    }

    /// Steers a text into a turn.
    pub fn steer(&mut self, turn: TurnNo, text: &str) -> CommandId {
        let input = vec![InputItem::text(text)];
        self.ask(Command::Steer { turn, input })
    }

    /// Interrupts a turn.
    pub fn interrupt(&mut self, turn: TurnNo) -> CommandId {
        self.ask(Command::Interrupt { turn })
    }

    /// Abandons a turn.
    pub fn abandon(&mut self, turn: TurnNo) -> CommandId {
        self.ask(Command::Abandon { turn })
    }

    /// Acknowledges the end of a turn.
    pub fn acknowledge(&mut self, turn: TurnNo) -> CommandId {
        self.ask(Command::Acknowledge { turn })
    }

    /// Changes how a conversation is held.
    pub fn change(&mut self, conversation: ConversationId, settings: Settings) -> CommandId {
        let settings = settings.into();
        self.ask(Command::Change {
            conversation,
            settings,
        })
    }

    /// Closes a conversation.
    pub fn close(&mut self, conversation: ConversationId) -> CommandId {
        self.ask(Command::Close { conversation })
    }

    /// Asks for a clean-up.
    pub fn clean_up(&mut self, owner: Owner, action: Action) -> CommandId {
        self.ask(match action {
            Action::Detach => Command::Detach { owner },
            Action::Archive => Command::Archive { owner },
            Action::Delete => Command::Delete { owner },
        })
    }

    /// Ends everything in order.
    pub fn shut_down(&mut self) -> CommandId {
        self.ask(Command::Shutdown)
    }

    /// Sends any request.
    pub fn request(&mut self, method: &str, params: &str, effect: RequestEffect) -> CommandId {
        let (method, params) = (method.to_owned(), json(params));
        self.ask(Command::Request {
            method,
            params,
            effect,
        })
    }

    /// Gives the result of a call.
    pub fn respond(&mut self, call: ToolCallId, result: ToolResult) -> CommandId {
        self.ask(Command::Respond { call, result })
    }

    /// Answers a question.
    pub fn reply(&mut self, question: QuestionId, answer: Answer) -> CommandId {
        self.ask(Command::Answer { question, answer })
    }

    /// The calls that a turn offered to the application.
    #[must_use]
    pub fn calls(&self, turn: TurnNo) -> Vec<ToolCall> {
        let all = self.updates(turn).into_iter();
        all.filter_map(|update| match update {
            TurnUpdate::ToolCall(call) => Some(call.clone()),
            _ => None,
        })
        .collect()
    }

    /// Lets time pass until a turn has offered so many calls; the last of them.
    ///
    /// # Panics
    ///
    /// It never does.
    pub fn call(&mut self, turn: TurnNo, count: usize) -> ToolCall {
        self.run_until(&format!("call {count} of turn {turn}"), |world| {
            world.calls(turn).len() >= count
        });
        self.calls(turn).swap_remove(count - 1)
    }

    /// The questions that a turn asked the application.
    #[must_use]
    pub fn questions(&self, turn: TurnNo) -> Vec<Question> {
        let all = self.updates(turn).into_iter();
        all.filter_map(|update| match update {
            TurnUpdate::Question(question) => Some((**question).clone()),
            _ => None,
        })
        .collect()
    }

    /// Lets time pass until a turn has asked so many questions; the last of them.
    ///
    /// # Panics
    ///
    /// It never does.
    pub fn question(&mut self, turn: TurnNo, count: usize) -> Question {
        self.run_until(&format!("question {count} of turn {turn}"), |world| {
            world.questions(turn).len() >= count
        });
        self.questions(turn).swap_remove(count - 1)
    }

    /// Lets time pass until so many frames of a method have left.
    pub fn sent_times(&mut self, method: &str, count: usize) {
        self.run_until(&format!("{method} leaves {count} times"), |world| {
            world.sent_of(method).len() >= count
        });
    }
}

/// So many milliseconds.
#[must_use]
pub const fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}
