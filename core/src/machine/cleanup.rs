//! Clean-up: what is owed for threads that are no longer wanted, worked off one obligation after
//! another on each connection until it is settled.
//!
//! A detachment goes in steps, each for all its threads before the next: find the descendants, stop
//! the background terminals, look whether one is left, let the threads go.

use alloc::{
    borrow::ToOwned,
    collections::{BTreeSet, VecDeque},
    string::{String, ToString},
    vec::Vec,
};

use serde::{Deserialize, Serialize, de::IgnoredAny};

use super::{
    Link, Machine,
    out::UNGATED,
    requests::{Kind, Settled},
    threads::ThreadParams,
};
use crate::{
    cleanup::{Action, CleanupChange, Owner},
    command::{CommandError, RefusalClass, Reply},
    effect::{Durability, Effects},
    event::{ConnectionEvent, ProtocolError, Warning},
    hash::hash,
    id::{CommandId, ConversationId, MessageId, ThreadId, is_clean},
    prompt::PromptChange,
    record::Record,
    thread::Creation,
    time::Timestamp,
    timers::Timer,
};

/// How many requests of one step are on their way at once.
const AT_ONCE: u32 = 8;

/// How many pages of a list are read.
const MAX_PAGES: u32 = 1_024;

/// Rows of a page, the most that the server gives.
const PAGE: u32 = 100;

/// Without these, a list of threads leaves out those of sub-agents.
const SOURCE_KINDS: [&str; 10] = [
    "cli",
    "vscode",
    "exec",
    "appServer",
    "subAgent",
    "subAgentReview",
    "subAgentCompact",
    "subAgentThreadSpawn",
    "subAgentOther",
    "unknown",
];

/// What is worked off on this connection.
#[derive(Clone, Debug, Default)]
pub(super) struct Sweeps {
    /// The connection has taken up what was owed before it.
    open: bool,
    queue: VecDeque<(Owner, Action)>,
    running: Option<Sweep>,
    /// One of this round was not settled.
    failed: bool,
    /// How many rounds in a row that happened.
    rounds: u32,
}

/// One obligation at work.
#[derive(Clone, Debug)]
struct Sweep {
    owner: Owner,
    action: Action,
    step: Step,
    todo: VecDeque<ThreadId>,
    on_their_way: u32,
    failed: bool,
    /// The threads that are let go.
    loaded: Vec<ThreadId>,
    /// Those whose terminals are stopped: their descendants too. Where threads are searched by
    /// their marks, those that may be them.
    all: BTreeSet<ThreadId>,
    /// A background terminal was left at the last look.
    left: bool,
    /// When the terminals were first stopped.
    since: Timestamp,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    /// Which threads the server has loaded: one of them may answer to a mark.
    Search,
    /// Whether a loaded thread answers to a mark.
    Read,
    /// Delete or archive.
    Act,
    Descendants,
    Clean,
    Look,
    /// A terminal was left.
    Pause,
    LetGo,
}

/// What a request of a clean-up is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Call {
    step: Step,
    /// The thread that it names.
    pub(super) thread: Option<ThreadId>,
    /// Which page, from 1.
    page: u32,
    /// The hash of the cursor that asked for it.
    cursor: u64,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct ListParams<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    ancestor_thread_id: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    model_providers: Option<[&'a str; 0]>,
    #[serde(skip_serializing_if = "Option::is_none")]
    source_kinds: Option<[&'a str; 10]>,
    limit: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    cursor: Option<&'a str>,
}

impl Machine {
    /// Takes on an obligation: it is durable when this is answered, and settled in its own time.
    pub(super) fn clean_up(
        &mut self,
        fx: &mut Effects,
        id: CommandId,
        owner: Owner,
        action: Action,
    ) -> Result<(), CommandError> {
        owner
            .validate()
            .map_err(|reason| CommandError::BadInput { reason })?;
        let conversations = self.owned_by(&owner);
        for conversation in &conversations {
            if self.is_busy(*conversation) {
                let conversation = *conversation;
                let why = self.busy_with(conversation);
                let why = why.unwrap_or(crate::command::BusyWhy::Turn);
                return Err(CommandError::Busy { conversation, why });
            }
        }
        let (mut threads, mut marks) = (BTreeSet::new(), BTreeSet::new());
        for conversation in &conversations {
            let known = self.durable.conversation(*conversation);
            match known.and_then(|known| known.creation.as_ref()) {
                Some(
                    Creation::Bound { thread, .. }
                    | Creation::MayBeAccepted {
                        thread: Some(thread),
                        ..
                    },
                ) => {
                    threads.insert(thread.clone());
                }
                Some(Creation::MayBeAccepted { mark, thread: None })
                    if action == Action::Delete =>
                {
                    marks.insert(mark.clone());
                }
                Some(
                    Creation::Preparing { .. }
                    | Creation::Ready { .. }
                    | Creation::MayBeAccepted { .. }
                    | Creation::Rejected { .. }
                    | Creation::Unresolved { .. }
                    | Creation::Gone { .. },
                )
                | None => {}
            }
        }
        let owes = !threads.is_empty() || !marks.is_empty();
        if owes {
            let (threads, marks) = (threads.into_iter(), marks.into_iter());
            let change = CleanupChange::Owed {
                threads: threads.collect(),
                marks: marks.collect(),
            };
            self.cleanup_record(&owner, action, change);
        }
        match action {
            Action::Detach => {}
            Action::Archive | Action::Delete => {
                for conversation in conversations {
                    self.forsake_all(conversation);
                    self.closed(fx, conversation, Vec::new());
                }
            }
        }
        let gate = self.gate();
        self.answer_gated(fx, id, gate, Ok(Reply::Done));
        if owes {
            self.sweep(fx, owner, action);
        }
        Ok(())
    }

    fn owned_by(&self, owner: &Owner) -> Vec<ConversationId> {
        let all = self.conversation_ids();
        match owner {
            Owner::Client => all,
            Owner::Conversation(one) => all.into_iter().filter(|id| id == one).collect(),
            Owner::Workspace(label) => {
                let is_in = |id: &ConversationId| {
                    let known = self.durable.conversation(*id);
                    known.is_some_and(|known| known.settings.workspace.as_ref() == Some(label))
                };
                all.into_iter().filter(is_in).collect()
            }
        }
    }

    fn is_busy(&mut self, conversation: ConversationId) -> bool {
        self.conversation(conversation).is_some_and(|c| {
            let on_its_way = matches!(c.link, Link::Starting | Link::Resuming(_));
            c.closing.is_some()
                || c.letting_go
                || on_its_way
                || !c.turns.is_empty()
                || !c.doubts.is_empty()
                || c.errands.is_some()
        })
    }

    /// Nobody waits any more for the ends of a conversation.
    fn forsake_all(&mut self, conversation: ConversationId) {
        let ended = self.durable.ended_prompts(conversation);
        let ended: Vec<MessageId> = ended.cloned().collect();
        for message in ended {
            self.prompt(&message, PromptChange::Forsaken, Durability::Synced);
        }
    }

    pub(super) fn cleanup_record(&mut self, owner: &Owner, action: Action, change: CleanupChange) {
        let durability = match change {
            CleanupChange::Owed { .. } => Durability::Synced,
            // Lost in a crash, it is found settled once more.
            CleanupChange::Done { .. } | CleanupChange::MarkDone { .. } => Durability::Buffered,
        };
        let record = Record::Cleanup {
            owner: owner.clone(),
            action,
            change,
        };
        self.record(record, durability);
    }

    /// A connection is ready: everything that is owed is worked off on it.
    pub(super) fn sweep_all(&mut self, fx: &mut Effects) {
        self.drop_sweeps();
        self.sweeps.open = true;
        let all = self.durable.cleanups();
        let all: Vec<_> = all
            .map(|(owner, action, owed)| {
                let marks: Vec<String> = owed.marks().map(ToOwned::to_owned).collect();
                (owner.clone(), action, marks)
            })
            .collect();
        for (owner, action, marks) in all {
            // A thread without a turn is not stored: it is gone with the process that made it.
            let gone = if self.fresh_process {
                marks
            } else {
                Vec::new()
            };
            for mark in gone {
                self.cleanup_record(&owner, action, CleanupChange::MarkDone { mark });
            }
            match self.durable.cleanup(&owner, action) {
                Some(_) => self.sweeps.queue.push_back((owner, action)),
                None => self.settled_all(fx, owner, action),
            }
        }
        self.next_sweep(fx);
    }

    pub(super) fn sweep(&mut self, fx: &mut Effects, owner: Owner, action: Action) {
        if !self.sweeps.open || !self.connection.is_ready() {
            return;
        }
        let of = (owner, action);
        if !self.sweeps.queue.contains(&of) {
            self.sweeps.queue.push_back(of);
        }
        if self.sweeps.running.is_none() {
            self.next_sweep(fx);
        }
    }

    /// The connection takes nothing more: what is left is for the next one.
    pub(super) fn drop_sweeps(&mut self) {
        self.timers.clear(Timer::CleanUp);
        let sweeps = core::mem::take(&mut self.sweeps);
        let loaded = sweeps.running.map(|sweep| sweep.loaded);
        for thread in loaded.into_iter().flatten() {
            self.hold_again(&thread);
        }
    }

    /// A thread is not being let go any more. Returns its conversation.
    fn hold_again(&mut self, thread: &ThreadId) -> Option<ConversationId> {
        let conversation = self.owner_of(thread)?;
        self.conversation(conversation)?.letting_go = false;
        Some(conversation)
    }

    pub(super) fn clean_up_again(&mut self, fx: &mut Effects) {
        if !self.connection.is_ready() {
            return;
        }
        match &mut self.sweeps.running {
            Some(sweep) if sweep.step == Step::Pause => {
                sweep.begin(Step::Clean);
                self.pump(fx);
            }
            Some(_) => {}
            None => {
                let all = self.durable.cleanups();
                let all = all.map(|(owner, action, _)| (owner.clone(), action));
                self.sweeps.queue = all.collect();
                self.sweeps.failed = false;
                self.next_sweep(fx);
            }
        }
    }

    fn next_sweep(&mut self, fx: &mut Effects) {
        while let Some((owner, action)) = self.sweeps.queue.pop_front() {
            let Some(owed) = self.durable.cleanup(&owner, action) else {
                continue;
            };
            let threads: Vec<ThreadId> = owed.threads().cloned().collect();
            let searches = owed.marks().next().is_some();
            let mut sweep = Sweep {
                owner,
                action,
                step: Step::Act,
                todo: VecDeque::new(),
                on_their_way: 0,
                failed: false,
                loaded: Vec::new(),
                all: BTreeSet::new(),
                left: false,
                since: self.now,
            };
            match action {
                Action::Detach => {
                    sweep.loaded = self.hold_back(&sweep.owner, threads);
                    if sweep.loaded.is_empty() {
                        self.settled_all(fx, sweep.owner, action);
                        continue;
                    }
                    sweep.begin(Step::Descendants);
                }
                Action::Archive | Action::Delete => sweep.todo = threads.into(),
            }
            if searches {
                sweep.step = Step::Search;
                sweep.on_their_way = 1;
                self.sweeps.running = Some(sweep);
                self.search(fx, None, 1);
                return;
            }
            self.sweeps.running = Some(sweep);
            self.pump(fx);
            return;
        }
        self.round_over();
    }

    /// The threads of a detachment that this connection has loaded and nobody uses: nothing begins
    /// on them until they are let go. The others are settled.
    fn hold_back(&mut self, owner: &Owner, threads: Vec<ThreadId>) -> Vec<ThreadId> {
        let mut loaded = Vec::new();
        for thread in threads {
            let conversation = self.owner_of(&thread);
            let holds = conversation
                .and_then(|id| self.conversation(id))
                .filter(|c| {
                    // What was begun since then is the later word.
                    c.link == Link::Loaded(thread.clone())
                        && c.turns.is_empty()
                        && c.errands.is_none()
                        && c.closing.is_none()
                });
            if let Some(c) = holds {
                c.letting_go = true;
                loaded.push(thread);
            } else {
                self.cleanup_record(owner, Action::Detach, CleanupChange::Done { thread });
            }
        }
        loaded
    }

    /// Every obligation has had its turn: those that are left are tried again, but not for ever.
    fn round_over(&mut self) {
        if !self.sweeps.failed {
            self.sweeps.rounds = 0;
            return;
        }
        let limits = &self.config.limits;
        let (first, longest) = (limits.reconnect_first, limits.reconnect_longest);
        if self.sweeps.rounds >= limits.reconnect_tries {
            return;
        }
        let doubled = first.saturating_mul(2u32.saturating_pow(self.sweeps.rounds));
        self.sweeps.rounds += 1;
        let pause = doubled.min(longest);
        let due = self.now.after(pause).after(self.jitter(pause));
        self.timers.set(Timer::CleanUp, due);
    }

    fn settled_all(&mut self, fx: &mut Effects, owner: Owner, action: Action) {
        // Only a thread that nobody knew was owed for a conversation that goes on.
        let goes_on = action == Action::Delete
            && matches!(&owner, Owner::Conversation(id) if self.durable.conversation(*id).is_some());
        if !goes_on && self.durable.cleanup(&owner, action).is_none() {
            self.tell_connection(fx, ConnectionEvent::CleanedUp { owner, action });
        }
    }

    /// Sends what the running obligation wants next.
    fn pump(&mut self, fx: &mut Effects) {
        loop {
            let Some(sweep) = &mut self.sweeps.running else {
                return;
            };
            if sweep.on_their_way < AT_ONCE {
                if let Some(thread) = sweep.todo.pop_front() {
                    sweep.on_their_way += 1;
                    let (step, action) = (sweep.step, sweep.action);
                    self.call(fx, step, action, thread);
                    continue;
                }
            }
            if sweep.on_their_way > 0 || !self.step_over(fx) {
                return;
            }
        }
    }

    /// All threads have taken a step. Returns whether there is another one.
    fn step_over(&mut self, fx: &mut Effects) -> bool {
        let settle = self.config.limits.settle;
        let (now, every) = (self.now, self.config.limits.settle_every);
        let Some(sweep) = &mut self.sweeps.running else {
            return false;
        };
        match sweep.step {
            Step::Search => sweep.begin(Step::Read),
            Step::Read => {
                let (owner, action, failed) = (sweep.owner.clone(), sweep.action, sweep.failed);
                self.searched(&owner, action, failed);
                let owed = self.durable.cleanup(&owner, action);
                let threads = owed.map(|owed| owed.threads().cloned().collect());
                if let Some(sweep) = &mut self.sweeps.running {
                    sweep.step = Step::Act;
                    sweep.todo = threads.unwrap_or_default();
                }
            }
            Step::Descendants if !sweep.failed => {
                let loaded = sweep.loaded.iter().cloned();
                sweep.all.extend(loaded);
                sweep.begin(Step::Clean);
            }
            Step::Clean if !sweep.failed => sweep.begin(Step::Look),
            Step::Look if !sweep.failed && !sweep.left => sweep.begin(Step::LetGo),
            Step::Look if !sweep.failed && now.since(sweep.since) < settle => {
                sweep.step = Step::Pause;
                self.timers.set(Timer::CleanUp, now.after(every));
                return false;
            }
            Step::Pause => return false,
            Step::Look | Step::Act | Step::Descendants | Step::Clean | Step::LetGo => {
                self.sweep_over(fx);
                return false;
            }
        }
        true
    }

    fn sweep_over(&mut self, fx: &mut Effects) {
        let Some(sweep) = self.sweeps.running.take() else {
            return;
        };
        self.sweeps.failed |= sweep.failed || sweep.left;
        for thread in &sweep.loaded {
            if let Some(conversation) = self.hold_again(thread) {
                self.advance(fx, conversation);
            }
        }
        self.settled_all(fx, sweep.owner, sweep.action);
        self.next_sweep(fx);
    }

    fn call(&mut self, fx: &mut Effects, step: Step, action: Action, thread: ThreadId) {
        if step == Step::Descendants {
            self.list(fx, &thread, None, 1);
            return;
        }
        // The obligation is durable before its frames leave.
        let (method, gate) = match (step, action) {
            (Step::Act, Action::Archive) => ("thread/archive", self.gate()),
            (Step::Act, Action::Delete | Action::Detach) => ("thread/delete", self.gate()),
            (Step::Clean, _) => ("thread/backgroundTerminals/clean", self.gate()),
            (Step::Look, _) => ("thread/backgroundTerminals/list", UNGATED),
            (Step::LetGo, _) => ("thread/unsubscribe", UNGATED),
            (Step::Read | Step::Search | Step::Descendants | Step::Pause, _) => {
                ("thread/read", UNGATED)
            }
        };
        let kind = Kind::CleanUp(Call {
            step,
            thread: Some(thread.clone()),
            page: 1,
            cursor: 0,
        });
        let params = ThreadParams { thread_id: &thread };
        self.request(fx, kind, method, &params, gate);
    }

    /// Asks for a page of the threads that the server has loaded.
    fn search(&mut self, fx: &mut Effects, cursor: Option<&str>, page: u32) {
        let params = ListParams {
            ancestor_thread_id: None,
            model_providers: None,
            source_kinds: None,
            limit: PAGE,
            cursor,
        };
        let kind = Kind::CleanUp(Call {
            step: Step::Search,
            thread: None,
            page,
            cursor: cursor.map_or(0, |cursor| hash(cursor.as_bytes())),
        });
        self.request(fx, kind, "thread/loaded/list", &params, UNGATED);
    }

    /// Asks for a page of a thread's descendants, of any depth.
    fn list(&mut self, fx: &mut Effects, thread: &ThreadId, cursor: Option<&str>, page: u32) {
        let params = ListParams {
            ancestor_thread_id: Some(thread),
            model_providers: Some([]),
            source_kinds: Some(SOURCE_KINDS),
            limit: PAGE,
            cursor,
        };
        let kind = Kind::CleanUp(Call {
            step: Step::Descendants,
            thread: Some(thread.clone()),
            page,
            cursor: cursor.map_or(0, |cursor| hash(cursor.as_bytes())),
        });
        self.request(fx, kind, "thread/list", &params, UNGATED);
    }

    pub(super) fn cleanup_settled(
        &mut self,
        fx: &mut Effects,
        call: &Call,
        method: &str,
        how: Settled,
    ) {
        if !self.connection.is_ready() {
            self.drop_sweeps();
            return;
        }
        let Some(sweep) = &mut self.sweeps.running else {
            return;
        };
        sweep.on_their_way = sweep.on_their_way.saturating_sub(1);
        let done = match (&how, call.step) {
            (Settled::Answered(result), _) => match self.took(fx, call, result) {
                Ok(done) => done,
                Err(reason) => {
                    let method = method.to_owned();
                    self.report(fx, ProtocolError::BadResponse { method, reason });
                    false
                }
            },
            (Settled::Refused(refusal), step) => match refusal.class {
                // The server has no such thread: nothing is owed for it.
                RefusalClass::ThreadNotFound
                | RefusalClass::ThreadNotLoaded
                | RefusalClass::NoRollout => true,
                // What the server does not know it has none of.
                RefusalClass::UnknownMethod | RefusalClass::MissingCapability => {
                    matches!(step, Step::Descendants | Step::Clean | Step::Look)
                }
                _ => false,
            },
            (Settled::NotSent | Settled::Unknown(_), _) => false,
        };
        if let (Settled::Unknown(_), Step::LetGo | Step::Act, Some(thread)) =
            (&how, call.step, &call.thread)
        {
            self.detached(thread);
        }
        match (done, &call.thread) {
            (true, Some(thread)) => self.thread_done(call.step, thread),
            (true, None) => {}
            (false, thread) => {
                if let Some(sweep) = &mut self.sweeps.running {
                    sweep.failed = true;
                }
                let warning = Warning::CleanUp {
                    thread: thread.clone(),
                    reason: how.error(method).to_string(),
                };
                self.tell_connection(fx, ConnectionEvent::Warning(warning));
            }
        }
        self.pump(fx);
    }

    /// Takes an answer. Returns whether the thread's step is done.
    fn took(&mut self, fx: &mut Effects, call: &Call, result: &str) -> Result<bool, String> {
        match call.step {
            Step::Search => {
                let page: Page<String> = Page::read(result)?;
                let next = page.next(call)?;
                let ids = page.data.iter().filter_map(|id| ThreadId::new(id));
                let strangers: Vec<ThreadId> =
                    ids.filter(|id| self.owner_of(id).is_none()).collect();
                if let Some(sweep) = &mut self.sweeps.running {
                    sweep.all.extend(strangers);
                    sweep.on_their_way += u32::from(next.is_some());
                }
                if let Some(next) = next {
                    self.search(fx, Some(&next), call.page + 1);
                }
            }
            Step::Descendants => {
                let page: Page<Named> = Page::read(result)?;
                let next = page.next(call)?;
                if let Some(sweep) = &mut self.sweeps.running {
                    let ids = page.data.iter().filter_map(|row| ThreadId::new(&row.id));
                    sweep.all.extend(ids);
                    sweep.on_their_way += u32::from(next.is_some());
                }
                if let (Some(next), Some(thread)) = (next, &call.thread) {
                    self.list(fx, thread, Some(&next), call.page + 1);
                }
            }
            Step::Look => {
                let page: Page<IgnoredAny> = Page::read(result)?;
                if let Some(sweep) = &mut self.sweeps.running {
                    sweep.left |= !page.data.is_empty();
                }
            }
            Step::Read => {
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
                let read: Read = crate::json::from_object(result).map_err(|e| e.to_string())?;
                if let (Some(mark), Some(thread)) = (read.thread.thread_source, &call.thread) {
                    self.answers_to(&mark, thread);
                }
            }
            Step::Act | Step::Clean | Step::LetGo | Step::Pause => {}
        }
        Ok(true)
    }

    fn thread_done(&mut self, step: Step, thread: &ThreadId) {
        let Some(sweep) = &self.sweeps.running else {
            return;
        };
        let (owner, action) = (sweep.owner.clone(), sweep.action);
        match step {
            Step::Act | Step::LetGo => {
                let owed = self.durable.cleanup(&owner, action);
                if owed.is_some_and(|owed| owed.threads().any(|owed| owed == thread)) {
                    let thread = thread.clone();
                    self.cleanup_record(&owner, action, CleanupChange::Done { thread });
                }
            }
            Step::Search
            | Step::Read
            | Step::Descendants
            | Step::Clean
            | Step::Look
            | Step::Pause => {}
        }
        if step == Step::LetGo {
            self.detached(thread);
        }
    }

    /// The server has let a thread go, or may have: it is resumed before it is used.
    fn detached(&mut self, thread: &ThreadId) {
        if let Some(c) = self.owner_of(thread).and_then(|id| self.conversation(id)) {
            if c.link == Link::Loaded(thread.clone()) {
                c.link = Link::Detached(thread.clone());
            }
        }
    }

    /// A thread that the server has loaded answers to a mark: it is owed from now on if that is.
    fn answers_to(&mut self, mark: &str, thread: &ThreadId) {
        let Some(sweep) = &self.sweeps.running else {
            return;
        };
        let (owner, action) = (sweep.owner.clone(), sweep.action);
        let owed = self.durable.cleanup(&owner, action);
        if !owed.is_some_and(|owed| owed.marks().any(|owed| owed == mark)) {
            return;
        }
        let found = CleanupChange::Owed {
            threads: alloc::vec![thread.clone()],
            marks: Vec::new(),
        };
        self.cleanup_record(&owner, action, found);
        let mark = mark.to_owned();
        self.cleanup_record(&owner, action, CleanupChange::MarkDone { mark });
    }

    /// Every loaded thread was looked at: no thread answers to the marks that are left.
    fn searched(&mut self, owner: &Owner, action: Action, failed: bool) {
        if failed {
            return;
        }
        let owed = self.durable.cleanup(owner, action);
        let marks: Vec<String> = owed
            .map(|owed| owed.marks().map(ToOwned::to_owned).collect())
            .unwrap_or_default();
        for mark in marks {
            self.cleanup_record(owner, action, CleanupChange::MarkDone { mark });
        }
    }
}

impl Sweep {
    /// Begins a step for all threads that it is for.
    fn begin(&mut self, step: Step) {
        self.step = step;
        self.left = false;
        self.todo = match step {
            Step::Read | Step::Clean | Step::Look => self.all.iter().cloned().collect(),
            Step::Search | Step::Act | Step::Descendants | Step::Pause | Step::LetGo => {
                self.loaded.iter().cloned().collect()
            }
        };
    }
}

#[derive(Deserialize)]
struct Named {
    id: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Page<T> {
    data: Vec<T>,
    #[serde(default)]
    next_cursor: Option<String>,
}

impl<T: for<'a> Deserialize<'a>> Page<T> {
    fn read(result: &str) -> Result<Self, String> {
        crate::json::from_object(result).map_err(|e| e.to_string())
    }

    /// The cursor of the next page, if there is one.
    fn next(&self, call: &Call) -> Result<Option<String>, String> {
        match &self.next_cursor {
            None => Ok(None),
            Some(next) if !is_clean(next) || hash(next.as_bytes()) == call.cursor => {
                Err("its cursor is malformed or repeated".into())
            }
            Some(_) if call.page >= MAX_PAGES => Err("it has too many pages".into()),
            Some(next) => Ok(Some(next.clone())),
        }
    }
}
