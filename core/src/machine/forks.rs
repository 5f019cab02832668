//! Forks: a conversation made of another one, with a fork of its thread.
//!
//! The server keeps the source mark on a fork, and lists show no marks (`thread/list`): one that no
//! answer told of is looked for among the loaded threads, then among the newest of the list, each
//! read by itself. A fork is stored from the first, so that a new process may have it too.

use alloc::{
    borrow::ToOwned,
    boxed::Box,
    collections::{BTreeSet, VecDeque},
    format,
    string::{String, ToString},
    vec::Vec,
};

use serde::{Deserialize, Serialize};

use super::{
    Conversation, Link, Machine,
    out::UNGATED,
    requests::{Kind, Settled},
    threads::ThreadParams,
};
use crate::{
    RawJson,
    command::{BusyWhy, CommandError, RawJsonOr, Reply, Settings},
    effect::{Durability, Effects},
    event::{ConversationUpdate, ProtocolError},
    fork::Forked,
    hash::hash,
    id::{CommandId, ConversationId, ConversationKey, Epoch, ThreadId, is_clean},
    record::Record,
    thread::{Creation, CreationChange, MARK_PREFIX},
    time::Timestamp,
    timers::Timer,
};

const FORK: &str = "thread/fork";

/// How many pages of each list are looked through: the newest threads come first.
const MAX_PAGES: u32 = 16;

/// Rows of a page, the most that the server gives.
const PAGE: u32 = 100;

/// A fork that is not bound.
#[derive(Clone, Debug)]
pub(super) struct Fork {
    /// Those that wait for it: none where they waited in an earlier life.
    commands: Vec<CommandId>,
    state: Forking,
    /// The connection on which `thread/fork` was sent: none of this life, where an earlier one did.
    sent_on: Epoch,
    /// Since when no thread answers to its mark.
    absent_since: Option<Timestamp>,
    /// Threads that do not.
    seen: BTreeSet<ThreadId>,
}

impl Fork {
    pub(super) fn is_nobodys(&self) -> bool {
        self.commands.is_empty()
    }
}

/// How far it is on this connection.
#[derive(Clone, Debug)]
enum Forking {
    /// Nothing has left.
    Wanted,
    /// `thread/fork` may have left.
    Sent,
    /// No answer came: it is looked for.
    InDoubt,
    /// It is being looked for.
    Sought(Box<Seek>),
    /// It is looked for again in a moment.
    Absent,
}

/// A search for a thread by its mark.
#[derive(Clone, Debug, Default)]
struct Seek {
    step: SeekStep,
    page: u32,
    cursors: BTreeSet<u64>,
    todo: VecDeque<ThreadId>,
    reading: Option<ThreadId>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum SeekStep {
    #[default]
    Loaded,
    Listed,
    Done,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct ForkParams<'a> {
    thread_id: &'a str,
    exclude_turns: bool,
    thread_source: &'a str,
    // A fork takes these from the server's configuration where they are not said, not from its source.
    #[serde(skip_serializing_if = "Option::is_none")]
    model: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    model_provider: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    cwd: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    approval_policy: Option<RawJsonOr>,
    #[serde(skip_serializing_if = "Option::is_none")]
    sandbox: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    config: Option<&'a RawJson>,
    #[serde(skip_serializing_if = "Option::is_none")]
    base_instructions: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    developer_instructions: Option<&'a str>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct SeekParams<'a> {
    limit: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    model_providers: Option<[&'a str; 0]>,
    #[serde(skip_serializing_if = "Option::is_none")]
    cursor: Option<&'a str>,
}

impl Machine {
    /// Makes a conversation of an idle one.
    pub(super) fn fork(
        &mut self,
        fx: &mut Effects,
        id: CommandId,
        from: ConversationId,
        key: ConversationKey,
        settings: Option<Box<Settings>>,
    ) -> Result<(), CommandError> {
        let Some(known) = self.durable.conversation(from) else {
            return Err(CommandError::UnknownConversation { conversation: from });
        };
        let is_given = settings.is_some();
        let settings = settings.unwrap_or_else(|| known.settings.clone());
        settings.validate().map_err(CommandError::Settings)?;
        if let Some(there) = self.durable.conversation_by_key(&key) {
            let given = is_given.then_some(&*settings);
            return self.forked_before(fx, id, (from, there), key, given);
        }
        let forks = known.creation.as_ref().and_then(Creation::thread).is_some() && known.ran;
        if forks && !known.settings.same_thread(&settings) {
            return Err(CommandError::ThreadIsMade { conversation: from });
        }
        self.check_nothing_open(from)?;
        if let Some(error) = self.ended_error().filter(|_| forks) {
            return Err(error);
        }
        let conversation = self
            .durable
            .last_conversation()
            .next()
            .ok_or_else(|| CommandError::exhausted("conversation"))?;
        let nonce = self.rng.nonce();
        let (first, second) = (self.rng.next(), self.rng.next());
        let mark = forks.then(|| format!("{MARK_PREFIX}{first:016x}{second:016x}"));
        let authorization = self.authorization_of(settings.authorization);
        let forked = Forked {
            conversation,
            key,
            nonce,
            settings,
            authorization,
            from,
            mark,
        };
        let gate = self.record(Record::Forked(Box::new(forked)), Durability::Synced);
        self.conversations
            .push(Some(Box::new(Conversation::new(conversation))));
        if !forks {
            self.answer_gated(fx, id, gate, Ok(Reply::Opened { conversation }));
            self.touch(conversation);
            return Ok(());
        }
        self.set_fork(conversation, alloc::vec![id], Forking::Wanted);
        self.forking.push((from, conversation));
        self.advance(fx, conversation);
        Ok(())
    }

    /// The key stands for a conversation: for the same fork, or for something else.
    fn forked_before(
        &mut self,
        fx: &mut Effects,
        id: CommandId,
        (from, there): (ConversationId, ConversationId),
        key: ConversationKey,
        settings: Option<&Settings>,
    ) -> Result<(), CommandError> {
        let known = self.durable.conversation(there);
        let of = known.and_then(|known| known.forked.as_ref());
        if of.is_none_or(|of| of.conversation != from) {
            return Err(CommandError::KeyTaken { key });
        }
        let other = |settings: &Settings| known.is_some_and(|known| *known.settings != *settings);
        if settings.is_some_and(other) {
            return Err(CommandError::OpenDifferently { key });
        }
        if self.awaits_fork(there, id)? {
            return Ok(());
        }
        let gate = self.gate();
        let conversation = there;
        self.answer_gated(fx, id, gate, Ok(Reply::Opened { conversation }));
        Ok(())
    }

    fn check_nothing_open(&mut self, conversation: ConversationId) -> Result<(), CommandError> {
        self.check_thread_free(conversation)?;
        let busy = |why| Err(CommandError::Busy { conversation, why });
        if self.is_due(conversation) {
            return busy(BusyWhy::Triggered);
        }
        if self
            .durable
            .calls_in(conversation)
            .any(|(_, call)| call.is_open())
        {
            return busy(BusyWhy::Calls);
        }
        Ok(())
    }

    /// Whether a command waits for a fork that is not bound yet. Until it is, nobody has the
    /// conversation: what would be accepted in it could be lost with the fork.
    pub(super) fn awaits_fork(
        &mut self,
        conversation: ConversationId,
        id: CommandId,
    ) -> Result<bool, CommandError> {
        if let Some(fork) = self.fork_mut(conversation) {
            fork.commands.push(id);
            return Ok(true);
        }
        if !self.is_unbound_fork(conversation) {
            return Ok(false);
        }
        // The connection that could tell has ended for good: the next life looks for it.
        Err(self
            .ended_error()
            .unwrap_or_else(|| CommandError::NoThread {
                conversation,
                evidence: "nobody knows yet whether its fork was made".to_owned(),
            }))
    }

    fn is_unbound_fork(&self, conversation: ConversationId) -> bool {
        let known = self.durable.conversation(conversation);
        known.is_some_and(|known| {
            let unbound = matches!(&known.creation, Some(Creation::MayBeAccepted { .. }));
            known.forked.is_some() && known.ran && unbound
        })
    }

    fn set_fork(&mut self, conversation: ConversationId, commands: Vec<CommandId>, state: Forking) {
        if let Some(c) = self.conversation(conversation) {
            c.errands.get_or_insert_default().fork = Some(Fork {
                commands,
                state,
                sent_on: Epoch(0),
                absent_since: None,
                seen: BTreeSet::new(),
            });
        }
    }

    fn fork_mut(&mut self, conversation: ConversationId) -> Option<&mut Fork> {
        let errands = self.conversation(conversation)?.errands.as_deref_mut()?;
        errands.fork.as_mut()
    }

    /// Whether a fork of a conversation may be made any moment: what is sent on its thread until then
    /// would be in the fork's thread, and not in its boxes.
    pub(super) fn is_forked(&self, source: ConversationId) -> bool {
        let mut forks = self.forking.iter().filter(|(from, _)| *from == source);
        forks.any(|(_, fork)| {
            let errands = self.known_conversation(*fork);
            let fork = errands.and_then(|c| c.errands.as_deref()?.fork.as_ref());
            fork.is_some_and(|fork| matches!(fork.state, Forking::Wanted | Forking::Sent))
        })
    }

    /// A fork is made, given up or looked for: its source may go on.
    fn leave_source(&mut self, conversation: ConversationId) {
        let Some(at) = self
            .forking
            .iter()
            .position(|(_, fork)| *fork == conversation)
        else {
            return;
        };
        let (source, _) = self.forking.swap_remove(at);
        self.touch(source);
    }

    fn take_fork(&mut self, conversation: ConversationId) -> Vec<CommandId> {
        self.leave_source(conversation);
        let errands = self
            .conversation(conversation)
            .and_then(|c| c.errands.as_deref_mut());
        let fork = errands.and_then(|errands| errands.fork.take());
        self.tidy_errands(conversation);
        fork.map(|fork| fork.commands).unwrap_or_default()
    }

    /// Sends for the thread of a fork, or looks for it. Tells whether it is not bound yet: nothing
    /// else is done with its thread before.
    pub(super) fn run_fork(&mut self, fx: &mut Effects, conversation: ConversationId) -> bool {
        let waits = self.timers.is_set(Timer::LookAgain(conversation));
        let Some(fork) = self.fork_mut(conversation) else {
            return false;
        };
        match fork.state {
            Forking::Wanted => self.send_fork(fx, conversation),
            Forking::Absent if waits => {}
            Forking::InDoubt | Forking::Absent => {
                let seek = Box::<Seek>::default();
                fork.state = Forking::Sought(seek);
                self.seek_page(fx, conversation, None);
            }
            Forking::Sent | Forking::Sought(_) => {}
        }
        true
    }

    fn send_fork(&mut self, fx: &mut Effects, conversation: ConversationId) {
        let Some(known) = self.durable.conversation(conversation) else {
            return;
        };
        let source = known.forked.as_ref().and_then(|of| of.thread.clone());
        let mark = known.creation.as_ref().map(|made| made.mark().to_owned());
        let (Some(source), Some(mark)) = (source, mark) else {
            return;
        };
        let settings = known.settings.clone();
        let epoch = self.last_epoch;
        if let Some(fork) = self.fork_mut(conversation) {
            fork.state = Forking::Sent;
            fork.sent_on = epoch;
        }
        let params = ForkParams {
            thread_id: &source,
            exclude_turns: true,
            thread_source: &mark,
            model: settings.model.as_deref(),
            model_provider: settings.model_provider.as_deref(),
            cwd: settings.cwd.as_deref(),
            approval_policy: settings.approval_policy.as_ref().map(|p| p.wire()),
            sandbox: settings.sandbox.map(|s| s.as_str()),
            config: settings.config.as_ref(),
            base_instructions: settings.base_instructions.as_deref(),
            developer_instructions: settings.developer_instructions.as_deref(),
        };
        let gate = self.gate();
        self.request(fx, Kind::ThreadFork { conversation }, FORK, &params, gate);
    }

    pub(super) fn thread_forked(
        &mut self,
        fx: &mut Effects,
        conversation: ConversationId,
        how: Settled,
    ) {
        let comes_back = self.comes_back();
        let looks = comes_back || self.connection.is_ready();
        let Some(fork) = self.fork_mut(conversation) else {
            return;
        };
        match how {
            Settled::Answered(result) => match self.bind_thread(conversation, &result) {
                Ok((thread, model)) => {
                    self.fork_bound(fx, conversation, thread, model, Some(&result));
                }
                Err(reason) => {
                    let method = FORK.to_owned();
                    self.report(fx, ProtocolError::BadResponse { method, reason });
                    self.look_for_fork(fx, conversation);
                }
            },
            Settled::NotSent if comes_back => fork.state = Forking::Wanted,
            Settled::Unknown(_) if looks => self.look_for_fork(fx, conversation),
            Settled::Refused(refusal) => {
                let change = CreationChange::Rejected {
                    refusal: refusal.clone(),
                };
                let record = Record::ThreadCreation {
                    conversation,
                    change,
                };
                self.record(record, Durability::Synced);
                self.fork_failed(fx, conversation, &CommandError::Refused(refusal.into()));
            }
            // The next life looks for it.
            Settled::NotSent | Settled::Unknown(_) => {
                let error = self.error_of(how, FORK);
                for id in self.take_fork(conversation) {
                    self.answer(fx, id, Err(error.clone()));
                }
            }
        }
    }

    fn look_for_fork(&mut self, fx: &mut Effects, conversation: ConversationId) {
        self.leave_source(conversation);
        if let Some(fork) = self.fork_mut(conversation) {
            fork.state = Forking::InDoubt;
        }
        self.advance(fx, conversation);
    }

    /// The thread of a fork is ours.
    fn fork_bound(
        &mut self,
        fx: &mut Effects,
        conversation: ConversationId,
        thread: ThreadId,
        model: Option<String>,
        answer: Option<&str>,
    ) {
        if let Some(c) = self.conversation(conversation) {
            // It goes on with the tokens of its source, which nobody told here.
            c.usage_total = None;
        }
        let gate = self.gate();
        for id in self.take_fork(conversation) {
            self.answer_gated(fx, id, gate, Ok(Reply::Opened { conversation }));
        }
        let update = ConversationUpdate::ThreadBound { thread, model };
        let gate = self.gate();
        self.tell_conversation_gated(fx, conversation, gate, update);
        // One that was found is compared when it is resumed.
        if let Some(answer) = answer {
            self.tell_differences(fx, conversation, answer);
        }
        self.advance(fx, conversation);
    }

    /// There is no fork: its key is free.
    fn fork_failed(
        &mut self,
        fx: &mut Effects,
        conversation: ConversationId,
        error: &CommandError,
    ) {
        let commands = self.take_fork(conversation);
        self.closed(fx, conversation, Vec::new());
        let gate = self.gate();
        for id in commands {
            self.answer_gated(fx, id, gate, Err(error.clone()));
        }
    }

    pub(super) fn suspend_fork(&mut self, conversation: ConversationId, left: bool) {
        if left {
            self.leave_source(conversation);
        }
        if let Some(fork) = self.fork_mut(conversation) {
            fork.state = match left {
                true => Forking::InDoubt,
                false => Forking::Wanted,
            };
        }
    }

    /// A search that the connection's end cut off begins anew on the next one.
    pub(super) fn suspend_search(&mut self, conversation: ConversationId) {
        if let Some(fork) = self.fork_mut(conversation) {
            match fork.state {
                Forking::Sought(_) | Forking::Absent => fork.state = Forking::InDoubt,
                Forking::Wanted | Forking::Sent | Forking::InDoubt => {}
            }
        }
    }

    /// A fork that an earlier life asked for.
    pub(super) fn recover_fork(&mut self, conversation: ConversationId) {
        if self.is_unbound_fork(conversation) {
            self.set_fork(conversation, Vec::new(), Forking::InDoubt);
        }
    }

    /// No connection serves it any more: the next life looks for it.
    pub(super) fn end_fork(
        &mut self,
        fx: &mut Effects,
        conversation: ConversationId,
        evidence: &str,
    ) {
        let error = self.error_of(Settled::Unknown(evidence.to_owned()), FORK);
        for id in self.take_fork(conversation) {
            self.answer(fx, id, Err(error.clone()));
        }
    }

    // The search.

    fn seek_page(&mut self, fx: &mut Effects, conversation: ConversationId, cursor: Option<&str>) {
        let Some(Fork {
            state: Forking::Sought(seek),
            ..
        }) = self.fork_mut(conversation)
        else {
            return;
        };
        seek.page += 1;
        let (method, model_providers) = match seek.step {
            SeekStep::Loaded => ("thread/loaded/list", None),
            // Else it lists those of the configured provider only.
            SeekStep::Listed | SeekStep::Done => ("thread/list", Some([])),
        };
        let params = SeekParams {
            limit: PAGE,
            model_providers,
            cursor,
        };
        self.request(fx, Kind::Seek { conversation }, method, &params, UNGATED);
    }

    pub(super) fn sought(&mut self, fx: &mut Effects, conversation: ConversationId, how: Settled) {
        let Some(Fork {
            state: Forking::Sought(seek),
            ..
        }) = self.fork_mut(conversation)
        else {
            return;
        };
        let reading = seek.reading.take();
        let result = match how {
            Settled::Answered(result) => result,
            // It has been deleted meanwhile.
            Settled::Refused(_) if reading.is_some() => {
                // Or it is about to be made.
                if let (Some(thread), Some(fork)) = (&reading, self.fork_mut(conversation)) {
                    fork.seen.remove(thread);
                }
                self.seek_on(fx, conversation);
                return;
            }
            Settled::NotSent if self.comes_back() => {
                self.suspend_search(conversation);
                return;
            }
            other => {
                let evidence = other.error("the search for its thread").to_string();
                self.not_found(fx, conversation, &evidence);
                return;
            }
        };
        match reading {
            Some(thread) if self.has_mark(conversation, &result) => {
                self.fork_found(fx, conversation, thread);
            }
            Some(_) => self.seek_on(fx, conversation),
            None => match self.take_rows(conversation, &result) {
                Ok(Some(next)) => self.seek_page(fx, conversation, Some(&next)),
                Ok(None) => self.seek_on(fx, conversation),
                Err(reason) => self.not_found(fx, conversation, &reason),
            },
        }
    }

    /// Keeps the threads of a page that may be it. Gives the next page's cursor.
    fn take_rows(
        &mut self,
        conversation: ConversationId,
        result: &str,
    ) -> Result<Option<String>, String> {
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Page {
            data: Vec<Row>,
            #[serde(default)]
            next_cursor: Option<String>,
        }
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Row {
            Id(String),
            Thread { id: String },
        }
        let page: Page = crate::json::from_object(result).map_err(|e| e.to_string())?;
        let ids = page.data.into_iter().filter_map(|row| match row {
            Row::Id(id) | Row::Thread { id } => ThreadId::new(&id),
        });
        let strangers: Vec<ThreadId> = ids.filter(|id| self.owner_of(id).is_none()).collect();
        let Some(Fork {
            state: Forking::Sought(seek),
            seen,
            ..
        }) = self.fork_mut(conversation)
        else {
            return Ok(None);
        };
        for thread in strangers {
            if seen.insert(thread.clone()) {
                seek.todo.push_back(thread);
            }
        }
        let next = page.next_cursor.filter(|_| seek.page < MAX_PAGES);
        match &next {
            Some(next) if !is_clean(next) || !seek.cursors.insert(hash(next.as_bytes())) => {
                Err("a cursor is malformed or repeated".to_owned())
            }
            Some(_) | None => Ok(next),
        }
    }

    fn seek_on(&mut self, fx: &mut Effects, conversation: ConversationId) {
        let Some(Fork {
            state: Forking::Sought(seek),
            ..
        }) = self.fork_mut(conversation)
        else {
            return;
        };
        if let Some(thread) = seek.todo.pop_front() {
            seek.reading = Some(thread.clone());
            let params = ThreadParams { thread_id: &thread };
            let kind = Kind::Seek { conversation };
            self.request(fx, kind, "thread/read", &params, UNGATED);
            return;
        }
        match seek.step {
            SeekStep::Loaded => {
                seek.step = SeekStep::Listed;
                seek.page = 0;
                seek.cursors.clear();
                self.seek_page(fx, conversation, None);
            }
            SeekStep::Listed | SeekStep::Done => {
                seek.step = SeekStep::Done;
                self.absent(fx, conversation);
            }
        }
    }

    fn has_mark(&self, conversation: ConversationId, result: &str) -> bool {
        #[derive(Deserialize)]
        struct Read {
            thread: Source,
        }
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Source {
            #[serde(default)]
            thread_source: Option<String>,
        }
        let known = self.durable.conversation(conversation);
        let creation = known.and_then(|known| known.creation.as_ref());
        let read = serde_json::from_str::<Read>(result).ok();
        let source = read.and_then(|read| read.thread.thread_source);
        source.is_some() && source.as_deref() == creation.map(Creation::mark)
    }

    fn fork_found(&mut self, fx: &mut Effects, conversation: ConversationId, thread: ThreadId) {
        if self.own_thread(conversation, &thread).is_err() {
            return;
        }
        let change = CreationChange::Bound {
            thread: thread.clone(),
        };
        let record = Record::ThreadCreation {
            conversation,
            change,
        };
        self.record(record, Durability::Synced);
        if let Some(c) = self.conversation(conversation) {
            // Whether this connection is subscribed to it, nobody knows.
            c.link = Link::Detached(thread.clone());
        }
        self.fork_bound(fx, conversation, thread, None, None);
    }

    /// No thread answers to its mark. The process that was asked for it may make it yet.
    fn absent(&mut self, fx: &mut Effects, conversation: ConversationId) {
        let may_come = self.may_be_made(conversation);
        let (now, limits) = (self.now, &self.config.limits);
        let (settle, again) = (limits.settle, now.after(limits.settle_every));
        let Some(fork) = self.fork_mut(conversation) else {
            return;
        };
        let since = *fork.absent_since.get_or_insert(now);
        if may_come && now.since(since) < settle {
            fork.state = Forking::Absent;
            self.timers.set(Timer::LookAgain(conversation), again);
            return;
        }
        self.not_found(fx, conversation, "no thread answers to its mark");
    }

    /// Whether the process that was asked for a fork lives.
    fn may_be_made(&mut self, conversation: ConversationId) -> bool {
        let (fresh, epoch) = (self.fresh_process, self.last_epoch);
        let fork = self.fork_mut(conversation);
        !(fresh && fork.is_some_and(|fork| fork.sent_on < epoch))
    }

    /// Whether there is a fork cannot be told: it is given up and not made again. Where the process
    /// that may have made it lives, it is to be deleted, should it be found.
    fn not_found(&mut self, fx: &mut Effects, conversation: ConversationId, evidence: &str) {
        let may_be_there = self.may_be_made(conversation);
        self.unresolved(fx, conversation, may_be_there);
        let unknown = Settled::Unknown(evidence.to_owned());
        let error = self.error_of(unknown, FORK);
        self.fork_failed(fx, conversation, &error);
    }
}
