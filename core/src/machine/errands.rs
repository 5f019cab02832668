//! What the application asks of a thread itself, beside rounds: that it is made and named, and that
//! it is compacted.

use alloc::{borrow::ToOwned, string::String, vec::Vec};

use serde::Serialize;

use super::{
    Conversation, Link, Machine,
    forks::Fork,
    requests::{Kind, Settled},
};
use crate::{
    command::{BusyWhy, CommandError, Reply},
    compaction::Compaction,
    effect::{Durability, Effects},
    event::Rejection,
    id::{CommandId, ConversationId, Epoch, ThreadId, TurnNo},
    naming::{Naming, NamingChange},
    record::Record,
    thread::Creation,
    timers::Timer,
};

const NAME: &str = "thread/name/set";

/// What waits for the thread of a conversation.
#[derive(Clone, Debug, Default)]
pub(super) struct Errands {
    /// Those that want it made and named.
    materialise: Vec<CommandId>,
    /// `thread/name/set` is on its way.
    naming: bool,
    pub(super) compact: Option<Compact>,
    /// Its thread is being forked from another one.
    pub(super) fork: Option<Fork>,
}

/// A compaction that is not over.
#[derive(Clone, Debug)]
pub(super) struct Compact {
    /// Those that wait for its end: none where they waited in an earlier life.
    pub(super) commands: Vec<CommandId>,
    pub(super) state: Compacting,
    /// The connection that the request left on.
    pub(super) sent_on: Epoch,
}

/// How far a compaction is on this connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Compacting {
    /// It waits for the connection and the thread.
    Wanted,
    /// The thread's last turn is being read: what comes behind it is the compaction.
    Looking,
    /// `thread/compact/start` may have left.
    Sent,
    /// The server said yes. That is not the end: its turn is.
    Taken,
    /// This turn is it.
    Running(TurnNo),
    /// The connection ended, or no answer or no turn came: the history tells.
    InDoubt,
}

impl Errands {
    pub(super) fn compacts(&self) -> bool {
        self.compact.is_some()
    }

    pub(super) fn forks(&self) -> bool {
        self.fork.is_some()
    }
}

impl Compact {
    /// Whether the turn that begins now may be it.
    pub(super) fn awaits_turn(&self) -> bool {
        matches!(
            self.state,
            Compacting::Sent | Compacting::Taken | Compacting::InDoubt
        )
    }
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct NameParams<'a> {
    thread_id: &'a str,
    name: &'a str,
}

impl Machine {
    /// Whether a compaction is under way, so that nothing else may begin on the thread.
    pub(super) fn is_compacting(&self, conversation: ConversationId) -> bool {
        self.errands(conversation)
            .is_some_and(|errands| errands.compact.is_some())
    }

    /// Whether something is asked of the thread that is not done.
    pub(super) fn has_errands(&self, conversation: ConversationId) -> bool {
        self.errands(conversation).is_some()
    }

    /// Whether only the history can tell what became of a compaction.
    pub(super) fn compaction_in_doubt(&self, conversation: ConversationId) -> bool {
        self.errands(conversation)
            .and_then(|errands| errands.compact.as_ref())
            .is_some_and(|compact| compact.state == Compacting::InDoubt)
    }

    /// Whether a turn is a compaction, which takes no messages.
    pub(super) fn is_compaction(&self, conversation: ConversationId, no: TurnNo) -> bool {
        self.errands(conversation)
            .and_then(|errands| errands.compact.as_ref())
            .is_some_and(|compact| compact.state == Compacting::Running(no))
    }

    fn errands(&self, conversation: ConversationId) -> Option<&Errands> {
        self.known_conversation(conversation)?.errands.as_deref()
    }

    pub(super) fn known_conversation(&self, conversation: ConversationId) -> Option<&Conversation> {
        let at = (conversation.0 as usize).checked_sub(1)?;
        self.conversations.get(at)?.as_deref()
    }

    pub(super) fn compact_mut(&mut self, conversation: ConversationId) -> Option<&mut Compact> {
        let errands = self.conversation(conversation)?.errands.as_deref_mut()?;
        errands.compact.as_mut()
    }

    /// Forgets errands of which none is left.
    pub(super) fn tidy_errands(&mut self, conversation: ConversationId) {
        let Some(c) = self.conversation(conversation) else {
            return;
        };
        let empty = |errands: &Errands| {
            errands.materialise.is_empty() && errands.compact.is_none() && errands.fork.is_none()
        };
        if c.errands.as_deref().is_some_and(empty) {
            c.errands = None;
        }
    }

    /// Does what is asked of the thread, as far as it can be done now. Tells whether it waits for the
    /// thread to be loaded.
    pub(super) fn run_errands(&mut self, fx: &mut Effects, conversation: ConversationId) -> bool {
        let Some(errands) = self.errands(conversation) else {
            return false;
        };
        let materialises = !errands.materialise.is_empty() && !errands.naming;
        let compacts = errands
            .compact
            .as_ref()
            .is_some_and(|compact| compact.state == Compacting::Wanted);
        let link = self.conversation(conversation).map(|c| c.link.clone());
        match link {
            Some(Link::Loaded(thread)) => {
                if materialises {
                    self.name_thread(fx, conversation, &thread);
                }
                if compacts {
                    self.read_last_turn(fx, conversation, &thread);
                }
                false
            }
            Some(Link::None | Link::Detached(_)) => materialises || compacts,
            Some(Link::Starting | Link::Resuming(_)) | None => false,
        }
    }

    /// What is asked of a thread that cannot be had ends here.
    pub(super) fn errands_rejected(
        &mut self,
        fx: &mut Effects,
        conversation: ConversationId,
        rejection: &Rejection,
    ) {
        let Some(c) = self.conversation(conversation) else {
            return;
        };
        let Some(errands) = c.errands.as_deref_mut() else {
            return;
        };
        let mut commands = core::mem::take(&mut errands.materialise);
        let waits = |compact: &mut Compact| compact.state == Compacting::Wanted;
        if let Some(compact) = errands.compact.take_if(waits) {
            commands.extend(compact.commands);
        }
        self.tidy_errands(conversation);
        for id in commands {
            let error = match rejection {
                Rejection::Refused(refusal) | Rejection::Thread(refusal) => {
                    CommandError::Refused(refusal.clone().into())
                }
                Rejection::Selection(error) => CommandError::Selection(error.clone()),
                Rejection::Differs(_) => CommandError::NoThread {
                    conversation,
                    evidence: alloc::format!("{rejection}"),
                },
                Rejection::NotSent(evidence) => match self.ended_error() {
                    Some(error) => error,
                    None => CommandError::NoThread {
                        conversation,
                        evidence: evidence.clone(),
                    },
                },
            };
            self.answer(fx, id, Err(error));
        }
        self.touch(conversation);
    }

    /// The conversation is no more.
    pub(super) fn errands_closed(&mut self, fx: &mut Effects, conversation: ConversationId) {
        self.compaction_forsaken(fx, conversation);
        let errands = self
            .conversation(conversation)
            .and_then(|c| c.errands.take());
        for id in errands
            .map(|errands| errands.materialise)
            .unwrap_or_default()
        {
            self.answer(
                fx,
                id,
                Err(CommandError::UnknownConversation { conversation }),
            );
        }
    }

    /// No connection serves them any more.
    pub(super) fn end_errands(
        &mut self,
        fx: &mut Effects,
        conversation: ConversationId,
        evidence: &str,
    ) {
        if !self.has_errands(conversation) {
            return;
        }
        self.end_fork(fx, conversation, evidence);
        let rejection = Rejection::NotSent(evidence.to_owned());
        self.errands_rejected(fx, conversation, &rejection);
        self.compaction_unknown(fx, conversation, evidence);
    }

    /// What was asked on a connection that has ended is asked on the next one, or looked for.
    pub(super) fn suspend_errands(&mut self, conversation: ConversationId) {
        let ended = Epoch(self.last_epoch.0.saturating_sub(1));
        self.timers.clear(Timer::Compaction(conversation));
        self.suspend_search(conversation);
        let Some(errands) = self
            .conversation(conversation)
            .and_then(|c| c.errands.as_deref_mut())
        else {
            return;
        };
        // The same name once more changes nothing.
        errands.naming = false;
        let Some(compact) = &mut errands.compact else {
            return;
        };
        match compact.state {
            Compacting::Wanted | Compacting::Looking => compact.state = Compacting::Wanted,
            Compacting::Sent | Compacting::Taken => {
                compact.state = Compacting::InDoubt;
                compact.sent_on = ended;
            }
            Compacting::InDoubt | Compacting::Running(_) => {}
        }
    }

    /// What an earlier life had asked for: its end is looked for.
    pub(super) fn recover_errands(&mut self, conversation: ConversationId) {
        self.recover_fork(conversation);
        let known = self.durable.conversation(conversation);
        let open = known.is_some_and(|known| known.compaction != Compaction::None);
        if let Some(c) = self.conversation(conversation).filter(|_| open) {
            c.errands.get_or_insert_default().compact = Some(Compact {
                commands: Vec::new(),
                state: Compacting::InDoubt,
                sent_on: Epoch(0),
            });
        }
    }

    /// The life ends before it reached a server: the next one looks.
    pub(super) fn leave_errands(&mut self, conversation: ConversationId) {
        let Some(c) = self.conversation(conversation) else {
            return;
        };
        let nobody = |compact: &mut Compact| {
            compact.commands.is_empty() && compact.state == Compacting::InDoubt
        };
        if let Some(errands) = c.errands.as_deref_mut() {
            errands.compact.take_if(nobody);
            errands.fork.take_if(|fork| fork.is_nobodys());
        }
        self.tidy_errands(conversation);
    }

    // Making and naming.

    /// Makes the native thread now, and names it: then it outlives its server.
    pub(super) fn materialise(
        &mut self,
        fx: &mut Effects,
        id: CommandId,
        conversation: ConversationId,
    ) -> Result<(), CommandError> {
        let Some(c) = self.conversation(conversation) else {
            return Err(CommandError::UnknownConversation { conversation });
        };
        if c.closing.is_some() {
            let why = BusyWhy::Closing;
            return Err(CommandError::Busy { conversation, why });
        }
        if self.answer_bound(fx, id, conversation) {
            return Ok(());
        }
        if let Some(error) = self.ended_error() {
            return Err(error);
        }
        if let Some(c) = self.conversation(conversation) {
            c.errands.get_or_insert_default().materialise.push(id);
        }
        self.advance(fx, conversation);
        Ok(())
    }

    /// The name that the thread is to have. One of which the server keeps no history has none.
    fn wanted_name(&self, conversation: ConversationId) -> Option<String> {
        let known = self.durable.conversation(conversation)?;
        let name = known.settings.name.as_deref();
        let name = name.unwrap_or_else(|| known.key.as_str());
        (!known.settings.ephemeral).then(|| name.to_owned())
    }

    /// Answers where the thread is ours and has its name.
    fn answer_bound(
        &mut self,
        fx: &mut Effects,
        id: CommandId,
        conversation: ConversationId,
    ) -> bool {
        let wanted = self.wanted_name(conversation);
        let Some(known) = self.durable.conversation(conversation) else {
            return false;
        };
        let Some(Creation::Bound { thread, .. }) = &known.creation else {
            return false;
        };
        if wanted.is_some_and(|wanted| !known.naming.is(&wanted)) {
            return false;
        }
        let thread = thread.clone();
        let gate = self.gate();
        self.answer_gated(fx, id, gate, Ok(Reply::Bound { thread }));
        true
    }

    fn name_thread(&mut self, fx: &mut Effects, conversation: ConversationId, thread: &ThreadId) {
        let wanted = self.wanted_name(conversation);
        let known = self.durable.conversation(conversation);
        let is = |wanted: &String| known.is_some_and(|known| known.naming.is(wanted));
        let Some(name) = wanted.filter(|wanted| !is(wanted)) else {
            self.materialised(fx, conversation);
            return;
        };
        let change = NamingChange::Asked { name: name.clone() };
        let record = Record::Naming {
            conversation,
            change,
        };
        let gate = self.record(record, Durability::Synced);
        if let Some(errands) = self
            .conversation(conversation)
            .and_then(|c| c.errands.as_deref_mut())
        {
            errands.naming = true;
        }
        let params = NameParams {
            thread_id: thread,
            name: &name,
        };
        self.request(fx, Kind::Name { conversation }, NAME, &params, gate);
    }

    /// Answers those that wanted the thread made: it is.
    fn materialised(&mut self, fx: &mut Effects, conversation: ConversationId) {
        let Some(c) = self.conversation(conversation) else {
            return;
        };
        let Some(errands) = c.errands.as_deref_mut() else {
            return;
        };
        errands.naming = false;
        let commands = core::mem::take(&mut errands.materialise);
        self.tidy_errands(conversation);
        for id in commands {
            self.answer_bound(fx, id, conversation);
        }
    }

    pub(super) fn named(&mut self, fx: &mut Effects, conversation: ConversationId, how: Settled) {
        let naming = self
            .conversation(conversation)
            .and_then(|c| c.errands.as_deref_mut())
            .is_some_and(|errands| core::mem::take(&mut errands.naming));
        if !naming {
            return;
        }
        let change = match &how {
            Settled::Answered(_) => Some(NamingChange::Given),
            Settled::Refused(_) | Settled::NotSent => Some(NamingChange::Refused),
            // It may have it: asked again, it has it.
            Settled::Unknown(_) => None,
        };
        // A thread that is gone meanwhile took its name along.
        let known = self.durable.conversation(conversation);
        let asked = known.is_some_and(|known| matches!(known.naming, Naming::Asked { .. }));
        if let Some(change) = change.filter(|_| asked) {
            let record = Record::Naming {
                conversation,
                change,
            };
            self.record(record, Durability::Buffered);
        }
        match how {
            Settled::Answered(_) => self.advance(fx, conversation),
            // The connection that did not take it ends; the next one does.
            Settled::NotSent if self.comes_back() => {}
            Settled::Refused(_) | Settled::NotSent | Settled::Unknown(_) => {
                let errands = self
                    .conversation(conversation)
                    .and_then(|c| c.errands.as_deref_mut());
                let commands = errands.map(|errands| core::mem::take(&mut errands.materialise));
                self.tidy_errands(conversation);
                let error = self.error_of(how, NAME);
                for id in commands.unwrap_or_default() {
                    self.answer(fx, id, Err(error.clone()));
                }
            }
        }
    }
}
