//! Authorization: where a binding is needed no round begins without one, and a failed round clears it.

use std::collections::BTreeSet;

use turnkeep_core::{
    Authorization, Command, Config, ConversationId, Record, config::RecoveredRounds,
    round::RoundChange,
};

#[derive(Debug)]
pub(super) struct Bindings {
    /// Whether a round of an earlier life may go on without one.
    runs: bool,
    needs: BTreeSet<ConversationId>,
    /// Conversations for which this life was given one, as far as can be told.
    bound: BTreeSet<ConversationId>,
}

impl Bindings {
    pub(super) fn new(config: &Config) -> Self {
        Self {
            runs: config.recovered_rounds == RecoveredRounds::Run,
            needs: BTreeSet::new(),
            bound: BTreeSet::new(),
        }
    }

    pub(super) fn life_begins(&mut self) {
        self.needs.clear();
        self.bound.clear();
    }

    /// Our process has started, with the records of earlier lives.
    pub(super) fn found(&mut self, record: &Record) {
        if let Record::ConversationOpened {
            conversation,
            authorization: Authorization::Needed,
            ..
        } = record
        {
            self.needs.insert(*conversation);
        }
        if let Record::Forked(forked) = record {
            if forked.authorization == Authorization::Needed {
                self.needs.insert(forked.conversation);
            }
        }
    }

    pub(super) fn command(&mut self, command: &Command) {
        match command {
            Command::Bind { conversation, .. }
            | Command::Restart {
                conversation,
                binding: Some(_),
            } => {
                self.bound.insert(*conversation);
            }
            Command::Send {
                conversation,
                options,
                ..
            } if options.binding.is_some() => {
                self.bound.insert(*conversation);
            }
            Command::Accept {
                conversation,
                options,
                ..
            } if options.binding.is_some() => {
                self.bound.insert(*conversation);
            }
            Command::Unbind { conversation } => {
                self.bound.remove(conversation);
            }
            _ => {}
        }
    }

    pub(super) fn record(&mut self, record: &Record) {
        self.found(record);
        let Record::Round {
            conversation,
            change,
        } = record
        else {
            return;
        };
        match change {
            RoundChange::Begun { .. } | RoundChange::Restarted { .. } => assert!(
                self.runs
                    || !self.needs.contains(conversation)
                    || self.bound.contains(conversation),
                "2: a round of {conversation} begins on nobody's behalf"
            ),
            RoundChange::Failed { .. } => {
                self.bound.remove(conversation);
            }
            RoundChange::Staged { .. }
            | RoundChange::Flushed { .. }
            | RoundChange::FlushAnswered { .. }
            | RoundChange::FlushGivenUp { .. }
            | RoundChange::Completed { .. }
            | RoundChange::Dismissed => {}
        }
    }
}
