//! What the application does when its time has come.

use std::time::Duration;

use turnkeep_core::{
    Command, CommandId, ConversationKey, InputItem, RawJson, SendOptions,
    cleanup::{Action, Owner},
    command::{Answer, RequestEffect},
    event::{Question, QuestionKind},
};

use super::{Act, Application, Asked, Said, layer::binding, result_of};

impl Application {
    /// Does what is due.
    pub(crate) fn act(&mut self, now: u64) -> Vec<(CommandId, Command)> {
        self.now = now;
        let mut commands = Vec::new();
        while self.due().is_some_and(|at| at <= now) {
            let Some((_, _, act)) = self.due.pop_first() else {
                break;
            };
            if self.shut && !matches!(act, Act::Acknowledge(_)) {
                continue;
            }
            if let Some((asked, command)) = self.command(act) {
                let id = self.number(asked);
                commands.push((id, command));
            }
        }
        commands
    }

    fn number(&mut self, asked: Asked) -> CommandId {
        self.next_command += 1;
        let id = CommandId(self.next_command);
        self.asked.insert(id, asked);
        id
    }

    fn command(&mut self, act: Act) -> Option<(Asked, Command)> {
        match act {
            Act::Open(at) => {
                let talk = &self.talks[at];
                if talk.open {
                    return None;
                }
                let command = Command::Open {
                    key: ConversationKey::new(&talk.key).expect("a key"),
                    settings: Box::new(talk.settings.clone()),
                };
                Some((Asked::Open(at), command))
            }
            Act::Say(at) => self.say(at),
            Act::Respond(call) => {
                let result = result_of(call, *self.calls.get(&call)?);
                Some((Asked::Respond(call), Command::Respond { call, result }))
            }
            Act::Answer(question) => {
                let (_, asked) = self.questions.get(&question)?;
                let asked = asked.clone();
                let answer = self.choose(&asked);
                let command = Command::Answer { question, answer };
                Some((Asked::Answer(question), command))
            }
            Act::Acknowledge(turn) => {
                let open = self.taken.get(&turn).is_some_and(|t| !t.acknowledged);
                let command = Command::Acknowledge { turn };
                open.then_some((Asked::Acknowledge(turn), command))
            }
            Act::Steer(turn) => {
                self.running.get(&turn)?;
                self.next_steer += 1;
                let text = format!("<s{}.{}>", self.life, self.next_steer);
                let input = vec![InputItem::text(&text)];
                Some((Asked::Steer(turn, text), Command::Steer { turn, input }))
            }
            Act::Interrupt(turn) => {
                self.running.get(&turn)?;
                Some((Asked::Interrupt, Command::Interrupt { turn }))
            }
            Act::Abandon(turn) => {
                self.running.get(&turn)?;
                // Whether its end is told or not: nobody waits for it any more.
                self.let_go.insert(turn);
                Some((Asked::Abandon(turn), Command::Abandon { turn }))
            }
            Act::Close(at) => {
                let talk = &mut self.talks[at];
                if !talk.open || talk.closing {
                    return None;
                }
                let conversation = talk.id?;
                talk.closing = true;
                Some((Asked::Close(at), Command::Close { conversation }))
            }
            Act::CleanUp(at, action) => {
                let talk = &self.talks[at];
                let owner = Owner::Conversation(talk.id.filter(|_| talk.open)?);
                let command = match action {
                    Action::Detach => Command::Detach { owner },
                    Action::Archive => Command::Archive { owner },
                    Action::Delete => Command::Delete { owner },
                };
                Some((Asked::CleanUp, command))
            }
            Act::Raw => Some((Asked::Raw, self.raw())),
            Act::Shutdown => Some((Asked::Shutdown, Command::Shutdown)),
            layer => self.layer_command(layer),
        }
    }

    fn say(&mut self, at: usize) -> Option<(Asked, Command)> {
        let note = &self.notes[at];
        let talk = &self.talks[note.talk];
        let wanted = match note.said {
            Said::Planned => true,
            // The same key again is the same message.
            Said::Confirmed(turn) => note.key.is_some() && !self.let_go.contains(&turn),
            Said::Asked | Said::Unsure => false,
        };
        if !wanted || !talk.open {
            return None;
        }
        let mut options = SendOptions::new();
        if let Some(key) = &note.key {
            options = options.key(key.clone());
        }
        if let Some(deadline) = note.deadline {
            options = options.deadline(Duration::from_micros(deadline));
        }
        if talk.needs() && self.rng.one_in(2) {
            options = options.binding(binding());
        }
        if note.schema {
            let schema = RawJson::parse(r#"{"type":"object"}"#).expect("an object");
            options = options.output_schema(schema);
        }
        let command = Command::Send {
            conversation: talk.id?,
            input: vec![InputItem::text(&note.text)],
            options: Box::new(options),
        };
        if note.said == Said::Planned {
            self.notes[at].said = Said::Asked;
        }
        Some((Asked::Say(at), command))
    }

    fn choose(&mut self, question: &Question) -> Answer {
        let steady = self.habits.steady;
        match &question.kind {
            QuestionKind::UserInput { questions } => Answer::Input(
                questions
                    .iter()
                    .map(|q| (q.id.clone(), vec!["Red".to_owned()]))
                    .collect(),
            ),
            QuestionKind::Command { .. } | QuestionKind::FileChange { .. } if !steady => {
                match self.rng.below(if self.healed { 2 } else { 3 }) {
                    0 => Answer::Accept,
                    1 => Answer::Decline,
                    _ => Answer::Cancel,
                }
            }
            _ => Answer::Accept,
        }
    }

    fn raw(&mut self) -> Command {
        let params = RawJson::parse("{}").expect("an object");
        let which = if self.habits.steady {
            2
        } else {
            self.rng.below(3)
        };
        let (method, effect) = match which {
            0 => ("model/list", RequestEffect::Reads),
            1 => ("thread/loaded/list", RequestEffect::Reads),
            _ => ("news/set", RequestEffect::Changes),
        };
        Command::Request {
            method: method.to_owned(),
            params,
            effect,
        }
    }
}
