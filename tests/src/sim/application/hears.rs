//! What the application makes of what it is told.

use turnkeep_core::{
    CommandError, ConversationId, Event, Outcome, Reply, ToolCallId, TurnNo, TurnUpdate,
    cleanup::Action,
    command::{BusyWhy, ToolContent},
    event::{ConversationUpdate, Origin},
};

use super::{Act, Application, Asked, CallOf, Do, Said, Taken, result_of};

impl Application {
    /// It is told something.
    pub(crate) fn hear(&mut self, event: &Event, now: u64) {
        self.now = now;
        match event {
            Event::Answer { id, answer } => {
                if let Some(asked) = self.asked.remove(id) {
                    self.answered(asked, answer);
                }
            }
            Event::Turn(event) => self.hear_turn(event.conversation, event.turn, &event.update),
            Event::Conversation(event) => match &event.update {
                ConversationUpdate::TurnBegan { turn, origin } => {
                    self.known.entry(*turn).or_insert(None);
                    if *origin == Origin::Server {
                        self.foreign.insert(*turn);
                    }
                    self.begins(*turn, event.conversation);
                }
                ConversationUpdate::Closed => self.closed(event.conversation),
                ConversationUpdate::Status(status) => self.is_now(event.conversation, status),
                ConversationUpdate::PreflightCall { call, .. } => {
                    let of = CallOf {
                        conversation: event.conversation,
                        turn: None,
                        boxed: true,
                    };
                    self.take_call(call, of);
                }
                ConversationUpdate::CallClosed { call, .. } => {
                    self.calls.remove(call);
                }
                _ => {}
            },
            Event::Delta(_) | Event::Connection(_) | Event::Halted => {}
        }
    }

    pub(super) fn talk_of(&self, conversation: ConversationId) -> Option<usize> {
        self.talks.iter().position(|t| t.id == Some(conversation))
    }

    /// The conversation of a turn of this life.
    fn conversation_of(&self, turn: TurnNo) -> Option<ConversationId> {
        self.turns.get(&turn).copied()
    }

    fn begins(&mut self, turn: TurnNo, conversation: ConversationId) {
        if self.taken.contains_key(&turn) {
            return;
        }
        self.turns.insert(turn, conversation);
        self.running.insert(turn, conversation);
        self.act_as_scripted(turn);
        let habits = self.habits;
        if self.rarely(habits.steers) {
            for _ in 0..self.rng.between(1, 2) {
                let span = self.span(1_000, 3_000_000);
                self.at(span, Act::Steer(turn));
            }
        }
        if self.rarely(habits.interrupts) {
            let span = self.span(0, 2_000_000);
            self.at(span, Act::Interrupt(turn));
        }
        if self.rarely(habits.abandons) {
            let span = self.span(0, 2_000_000);
            self.at(span, Act::Abandon(turn));
        }
        if self.rarely(habits.raw) {
            let span = self.span(0, 1_000_000);
            self.at(span, Act::Raw);
        }
    }

    fn act_as_scripted(&mut self, turn: TurnNo) {
        let note = self.known.get(&turn).copied().flatten();
        for (of, span, act) in self.acts.clone() {
            if Some(of) != note {
                continue;
            }
            let act = match act {
                Do::Post => Act::Post(self.add_scripted_parcel(self.notes[of].talk)),
                Do::Steer => Act::Steer(turn),
                Do::Interrupt => Act::Interrupt(turn),
                Do::Abandon => Act::Abandon(turn),
                Do::Close => Act::Close(self.notes[of].talk),
                Do::Raw => Act::Raw,
                Do::Shutdown => Act::Shutdown,
            };
            self.at(span, act);
        }
    }

    fn hear_turn(&mut self, conversation: ConversationId, turn: TurnNo, update: &TurnUpdate) {
        let ignores = self.habits.ignores;
        match update {
            TurnUpdate::Started { .. } if !self.running.contains_key(&turn) => {
                self.begins(turn, conversation);
            }
            TurnUpdate::ToolCall(call) => {
                let of = CallOf {
                    conversation,
                    turn: Some(turn),
                    boxed: !self.foreign.contains(&turn),
                };
                self.take_call(call, of);
            }
            TurnUpdate::Question(question) => {
                self.questions
                    .insert(question.id, (turn, (**question).clone()));
                if !self.rarely(ignores) {
                    let span = self.answer_span();
                    self.at(span, Act::Answer(question.id));
                }
            }
            TurnUpdate::CallClosed { call, .. } => {
                self.calls.remove(call);
            }
            TurnUpdate::QuestionClosed { question, .. } => {
                self.questions.remove(question);
            }
            TurnUpdate::SteerUnrecorded { message, .. } => {
                self.steered.remove(message);
            }
            TurnUpdate::Ended(end) => self.ended(turn, &end.outcome),
            _ => {}
        }
    }

    fn ended(&mut self, turn: TurnNo, outcome: &Outcome) {
        let conversation = self.running.remove(&turn);
        self.questions.retain(|_, (of, _)| *of != turn);
        self.known.entry(turn).or_insert(None);
        self.taken.entry(turn).or_insert(Taken {
            outcome: outcome.clone(),
            acknowledged: false,
        });
        let span = if self.rarely(self.habits.late) {
            self.span(1_000_000, 20_000_000)
        } else {
            self.span(0, 2_000)
        };
        self.at(span, Act::Acknowledge(turn));
        if self.rarely(self.habits.closes) {
            let talk = self.rng.at(self.talks.len());
            let span = self.span(0, 500_000);
            self.at(span, Act::Close(talk));
        }
        if self.rarely(self.habits.cleanups) {
            let talk = self.rng.at(self.talks.len());
            let actions = [Action::Detach, Action::Archive, Action::Delete];
            let action = *self.rng.pick(&actions);
            let span = self.span(0, 500_000);
            self.at(span, Act::CleanUp(talk, action));
        }
        let of = conversation.and_then(|of| self.talk_of(of));
        if let Some(talk) = of {
            self.may_begin(talk);
            self.may_disturb(talk);
        }
        if self.rarely(self.habits.shutdowns) {
            let span = self.span(0, 500_000);
            self.at(span, Act::Shutdown);
        }
    }

    /// A conversation is closed: nothing of it is told any more.
    fn closed(&mut self, conversation: ConversationId) {
        let Some(at) = self.talk_of(conversation) else {
            return;
        };
        let talk = &mut self.talks[at];
        talk.begins = false;
        talk.stalled = None;
        talk.held = false;
        talk.alternative = None;
        talk.open = false;
        talk.id = None;
        for (turn, note) in &self.known {
            let of = self.turns.get(turn) == Some(&conversation);
            if of || note.is_some_and(|note| self.notes[note].talk == at) {
                self.let_go.insert(*turn);
            }
        }
        let span = self.span(1_000, 1_000_000);
        self.at(span, Act::Open(at));
    }

    pub(super) fn answered(&mut self, asked: Asked, answer: &Result<Reply, CommandError>) {
        match asked {
            Asked::Open(talk) => match answer {
                Ok(Reply::Opened { conversation }) => {
                    self.talks[talk].id = Some(*conversation);
                    self.talks[talk].open = true;
                    self.talks[talk].alternative = None;
                    self.is_open(talk);
                    if let Some(status) = self.early.remove(conversation) {
                        self.is_now(*conversation, &status);
                    }
                    self.say_all(talk);
                }
                Err(error) => {
                    // A change of it was recorded before the application died.
                    if let CommandError::OpenDifferently { .. } = error {
                        let other = self.talks[talk].alternative.take();
                        self.talks[talk].settings = other.expect("it was opened so");
                    }
                    self.at(500_000, Act::Open(talk));
                }
                Ok(other) => panic!("open is answered {other:?}"),
            },
            Asked::Say(note) => match answer {
                Ok(Reply::Accepted { turn, .. }) => {
                    self.notes[note].said = Said::Confirmed(*turn);
                    self.known.insert(*turn, Some(note));
                    if let Some(id) = self.talks[self.notes[note].talk].id {
                        let text = self.notes[note].text.clone();
                        self.told.push((id, text, true));
                        self.begins(*turn, id);
                    }
                }
                // One that was confirmed before stays so, whatever its repetition is answered.
                Err(_) if self.notes[note].said != Said::Asked => {}
                Err(error) => {
                    self.notes[note].said = Said::Planned;
                    self.not_said(note, error);
                }
                Ok(other) => panic!("send is answered {other:?}"),
            },
            Asked::Acknowledge(turn) => match answer {
                Ok(_) => {
                    if let Some(taken) = self.taken.get_mut(&turn) {
                        taken.acknowledged = true;
                    }
                }
                Err(error) => {
                    // A conversation that was closed has nothing to acknowledge.
                    assert!(
                        matches!(
                            error,
                            CommandError::Halted
                                | CommandError::ClosedByUs
                                | CommandError::UnknownTurn { .. }
                        ),
                        "an acknowledgement is refused: {error:?}"
                    );
                    if matches!(error, CommandError::UnknownTurn { .. }) {
                        self.let_go.insert(turn);
                    }
                }
            },
            Asked::Steer(turn, text) => {
                if let Ok(reply) = answer {
                    if let Some(conversation) = self.conversation_of(turn) {
                        self.told.push((conversation, text.clone(), true));
                    }
                    if let Reply::Steered { message } = reply {
                        self.steered.insert(message.clone(), (turn, text));
                    }
                }
            }
            Asked::Close(talk) => self.talks[talk].closing = false,
            Asked::Shutdown => self.shut = true,
            Asked::Abandon(turn) => {
                if answer.is_ok() {
                    // Its end is told all the same, unless it was told before.
                    self.calls.retain(|_, of| of.turn != Some(turn));
                    self.questions.retain(|_, (of, _)| *of != turn);
                }
            }
            Asked::Respond(call) => self.responded(call, answer),
            Asked::Answer(question) => {
                if !matches!(answer, Err(CommandError::BadAnswer { .. })) {
                    self.questions.remove(&question);
                }
            }
            Asked::Interrupt | Asked::Raw | Asked::CleanUp => {}
            layer => self.layer_answered(layer, answer),
        }
    }

    fn responded(&mut self, call: ToolCallId, answer: &Result<Reply, CommandError>) {
        if let Err(CommandError::MailboxFull { .. }) = answer {
            self.at(1_000_000, Act::Respond(call));
            return;
        }
        let Some(of) = self.calls.remove(&call) else {
            return;
        };
        match answer {
            Ok(_) => {
                self.answered.insert(call, of);
                let result = result_of(call, of);
                if let Some(ToolContent::Text(text)) = result.content.first() {
                    self.told.push((of.conversation, text.clone(), of.boxed));
                }
                if let Some(talk) = self.talk_of(of.conversation) {
                    self.may_begin(talk);
                }
                if !self.habits.steady && self.rng.one_in(5) {
                    let span = self.span(0, 3_000_000);
                    self.at(span, Act::Again(call));
                }
            }
            Err(error) => assert!(
                matches!(
                    error,
                    CommandError::CallClosed { .. }
                        | CommandError::UnknownCall { .. }
                        | CommandError::Halted
                        | CommandError::ClosedByUs
                ),
                "a result is not taken: {error:?}"
            ),
        }
    }

    /// A turn was begun at the application's word.
    pub(super) fn began(&mut self, turn: TurnNo, talk: usize) {
        self.known.entry(turn).or_insert(None);
        if let Some(id) = self.talks[talk].id {
            self.begins(turn, id);
        }
    }

    fn not_said(&mut self, note: usize, error: &CommandError) {
        match error {
            CommandError::Halted | CommandError::ClosedByUs => {}
            CommandError::Busy { .. }
            | CommandError::Unauthorized { .. }
            | CommandError::Disconnected { .. }
            | CommandError::UnknownConversation { .. } => {
                let talk = self.notes[note].talk;
                if self.talks[talk].needs() {
                    self.at(100_000, Act::Bind(talk));
                }
                let why = BusyWhy::Triggered;
                if matches!(error, CommandError::Busy { why: busy, .. } if *busy == why) {
                    self.may_begin(talk);
                }
                let span = self.span(300_000, 2_000_000);
                self.at(span, Act::Say(note));
            }
            other => panic!("a message is not taken: {other:?}"),
        }
    }

    /// Says what is to be said in a conversation.
    fn say_all(&mut self, talk: usize) {
        let planned: Vec<usize> = (0..self.notes.len())
            .filter(|at| {
                let note = &self.notes[*at];
                note.talk == talk && note.said == Said::Planned
            })
            .collect();
        let mut span = 0;
        for note in planned {
            span += self.span(1_000, 3_000_000);
            self.at(span, Act::Say(note));
        }
        // A key that was confirmed may be said again all the same: it is the same message.
        let again: Vec<usize> = (0..self.notes.len())
            .filter(|at| {
                let note = &self.notes[*at];
                note.talk == talk
                    && note.key.is_some()
                    && matches!(note.said, Said::Confirmed(turn) if !self.let_go.contains(&turn))
            })
            .collect();
        for note in again {
            if !self.habits.steady && self.rng.one_in(3) {
                let span = self.span(1_000, 2_000_000);
                self.at(span, Act::Say(note));
            }
        }
    }
}
