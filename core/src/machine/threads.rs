//! The native thread of a conversation: made, resumed, let go by the server.

use alloc::{
    borrow::ToOwned,
    format,
    string::{String, ToString},
    vec::Vec,
};

use serde::{Deserialize, Serialize};

use super::{
    Activity, Link, Machine,
    out::UNGATED,
    requests::{Kind, Settled},
    turn::TurnState,
};
use crate::{
    RawJson,
    cleanup::{Action, CleanupChange, Owner},
    command::{Differences, RawJsonOr, Settings},
    config::UnresolvedThread,
    difference,
    effect::{Durability, Effects},
    event::{
        CallClosedWhy, ConversationUpdate, EndSource, LostReason, Outcome, ProtocolError,
        QuestionClosedWhy, Rejection,
    },
    id::{ConversationId, ThreadId, TurnNo},
    record::Record,
    thread::{Creation, CreationChange, MARK_PREFIX},
    wire::CowStr,
};

/// How often in a row a thread is made that no answer tells of.
const MAKINGS: u32 = 3;

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct ThreadParams<'a> {
    pub(super) thread_id: &'a str,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct ThreadStartParams<'a> {
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
    service_name: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    base_instructions: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    developer_instructions: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    personality: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    ephemeral: Option<bool>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    dynamic_tools: Vec<ToolSpec<'a>>,
    thread_source: &'a str,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct ToolSpec<'a> {
    #[serde(rename = "type")]
    kind: &'a str,
    name: &'a str,
    description: &'a str,
    input_schema: &'a RawJson,
}

impl<'a> ThreadStartParams<'a> {
    fn new(settings: &'a Settings, mark: &'a str) -> Self {
        Self {
            model: settings.model.as_deref(),
            model_provider: settings.model_provider.as_deref(),
            cwd: settings.cwd.as_deref(),
            approval_policy: settings.approval_policy.as_ref().map(|p| p.wire()),
            sandbox: settings.sandbox.map(|s| s.as_str()),
            config: settings.config.as_ref(),
            service_name: settings.service_name.as_deref(),
            base_instructions: settings.base_instructions.as_deref(),
            developer_instructions: settings.developer_instructions.as_deref(),
            personality: settings.personality.as_deref(),
            ephemeral: settings.ephemeral.then_some(true),
            dynamic_tools: settings
                .tools
                .iter()
                .map(|tool| ToolSpec {
                    kind: "function",
                    name: &tool.name,
                    description: &tool.description,
                    input_schema: &tool.input_schema,
                })
                .collect(),
            thread_source: mark,
        }
    }
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct ResumeParams<'a> {
    thread_id: &'a str,
    exclude_turns: bool,
    // A server that resumes a thread from its file takes these from its own configuration where they
    // are not said again, also where that permits more. All other settings it remembers.
    #[serde(skip_serializing_if = "Option::is_none")]
    approval_policy: Option<RawJsonOr>,
    #[serde(skip_serializing_if = "Option::is_none")]
    sandbox: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    config: Option<&'a RawJson>,
    // These are said only where they have changed: other base instructions than those which the thread
    // was made with are remembered nowhere, and saying them has the server load the thread anew.
    #[serde(skip_serializing_if = "Option::is_none")]
    cwd: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    base_instructions: Option<&'a str>,
}

impl Machine {
    pub(super) fn start_thread(&mut self, fx: &mut Effects, conversation: ConversationId) {
        if self.must_ask(conversation) {
            self.unresolved(fx, conversation, true);
            let text = "nobody can tell whether the thread was made";
            let rejection = Rejection::NotSent(text.to_owned());
            self.reject_waiting(fx, conversation, &rejection);
            return;
        }
        let mark = self.next_mark(fx, conversation);
        for change in [
            CreationChange::Preparing { mark: mark.clone() },
            CreationChange::Ready,
            CreationChange::Dispatched,
        ] {
            self.record(
                Record::ThreadCreation {
                    conversation,
                    change,
                },
                Durability::Synced,
            );
        }
        let gate = self.gate();
        let Some(settings) = self
            .durable
            .conversation(conversation)
            .map(|known| known.settings.clone())
        else {
            return;
        };
        if let Some(c) = self.conversation(conversation) {
            c.link = Link::Starting;
        }
        let params = ThreadStartParams::new(&settings, &mark);
        self.request(
            fx,
            Kind::ThreadStart { conversation },
            "thread/start",
            &params,
            gate,
        );
    }

    /// What the next thread is known by: the mark of a making that stopped before its frame could
    /// leave, else a new one.
    fn next_mark(&mut self, fx: &mut Effects, conversation: ConversationId) -> String {
        let known = self.durable.conversation(conversation);
        match known.and_then(|known| known.creation.as_ref()) {
            Some(Creation::Preparing { mark } | Creation::Ready { mark }) => return mark.clone(),
            // A thread that an earlier connection may have made was never used: a new process has
            // not stored it, and one that lives holds nothing in it.
            Some(Creation::MayBeAccepted { .. }) => {
                self.unresolved(fx, conversation, !self.fresh_process);
            }
            Some(
                Creation::Bound { .. }
                | Creation::Rejected { .. }
                | Creation::Unresolved { .. }
                | Creation::Gone { .. },
            )
            | None => {}
        }
        format!(
            "{MARK_PREFIX}{:016x}{:016x}",
            self.rng.next(),
            self.rng.next()
        )
    }

    /// Whether a thread may have been made by a process that lives, and is not to be made again
    /// unasked.
    fn must_ask(&self, conversation: ConversationId) -> bool {
        let creation = self.durable.conversation(conversation);
        let creation = creation.and_then(|known| known.creation.as_ref());
        self.config.unresolved_thread == UnresolvedThread::Ask
            && !self.fresh_process
            && matches!(creation, Some(Creation::MayBeAccepted { .. }))
    }

    /// Nobody can tell of a thread. Where the process that may have made it lives, the thread is to
    /// be deleted, should it be found: it holds nothing.
    pub(super) fn unresolved(
        &mut self,
        fx: &mut Effects,
        conversation: ConversationId,
        may_be_there: bool,
    ) {
        let creation = self.durable.conversation(conversation);
        let creation = creation.and_then(|known| known.creation.as_ref());
        let mark = creation.map(|creation| creation.mark().to_owned());
        let change = CreationChange::Unresolved;
        let record = Record::ThreadCreation {
            conversation,
            change,
        };
        self.record(record, Durability::Synced);
        if let Some(mark) = mark.filter(|_| may_be_there) {
            let owner = Owner::Conversation(conversation);
            let owed = CleanupChange::Owed {
                threads: Vec::new(),
                marks: alloc::vec![mark],
            };
            self.cleanup_record(&owner, Action::Delete, owed);
            self.sweep(fx, owner, Action::Delete);
        }
    }

    pub(super) fn thread_started(
        &mut self,
        fx: &mut Effects,
        conversation: ConversationId,
        how: Settled,
    ) {
        if self.conversation(conversation).is_none() {
            return;
        }
        let left = !matches!(how, Settled::NotSent);
        let rejection = match how {
            Settled::Answered(result) => match self.bind_thread(conversation, &result) {
                Ok((thread, model)) => {
                    let update = ConversationUpdate::ThreadBound { thread, model };
                    self.tell_conversation(fx, conversation, update);
                    self.tell_differences(fx, conversation, &result);
                    self.advance(fx, conversation);
                    return;
                }
                Err(reason) => {
                    let method = "thread/start".to_owned();
                    self.report(
                        fx,
                        ProtocolError::BadResponse {
                            method,
                            reason: reason.clone(),
                        },
                    );
                    Rejection::NotSent(format!("thread/start: {reason}"))
                }
            },
            Settled::Refused(refusal) => {
                let change = CreationChange::Rejected {
                    refusal: refusal.clone(),
                };
                self.record(
                    Record::ThreadCreation {
                        conversation,
                        change,
                    },
                    Durability::Synced,
                );
                Rejection::Thread(refusal)
            }
            // The connection that did not take it ends; the next one does.
            Settled::NotSent if self.comes_back() => {
                if let Some(c) = self.conversation(conversation) {
                    c.link = Link::None;
                }
                return;
            }
            Settled::NotSent => Rejection::NotSent("thread/start was not sent".into()),
            Settled::Unknown(evidence) => Rejection::NotSent(format!("thread/start: {evidence}")),
        };
        if let Some(c) = self.conversation(conversation) {
            c.link = Link::None;
        }
        if matches!(rejection, Rejection::NotSent(_)) {
            // After the connection's end the thread may still be found by its mark.
            if self.is_alive() {
                self.unresolved(fx, conversation, left);
            }
            if self.made_again(fx, conversation) {
                return;
            }
        }
        self.reject_waiting(fx, conversation, &rejection);
    }

    /// Makes a thread again that no answer told of, but not for ever.
    fn made_again(&mut self, fx: &mut Effects, conversation: ConversationId) -> bool {
        if !self.comes_back() || self.config.unresolved_thread == UnresolvedThread::Ask {
            return false;
        }
        let Some(c) = self.conversation(conversation) else {
            return false;
        };
        c.fails += 1;
        if c.fails >= MAKINGS {
            c.fails = 0;
            return false;
        }
        self.advance(fx, conversation);
        true
    }

    pub(super) fn bind_thread(
        &mut self,
        conversation: ConversationId,
        result: &str,
    ) -> Result<(ThreadId, Option<String>), String> {
        let thread = read_thread_id(result)?;
        self.own_thread(conversation, &thread)
            .map_err(|()| "the thread belongs to another conversation".to_owned())?;
        let change = CreationChange::Bound {
            thread: thread.clone(),
        };
        self.record(
            Record::ThreadCreation {
                conversation,
                change,
            },
            Durability::Synced,
        );
        let model = told_model(result);
        if let Some(c) = self.conversation(conversation) {
            c.link = Link::Loaded(thread.clone());
            c.told_model.clone_from(&model);
            c.usage_total = Some(crate::event::Tokens::default());
        }
        Ok((thread, model))
    }

    pub(super) fn resume_thread(
        &mut self,
        fx: &mut Effects,
        conversation: ConversationId,
        thread: &ThreadId,
    ) {
        if let Some(c) = self.conversation(conversation) {
            c.link = Link::Resuming(thread.clone());
        }
        let (settings, changed) = self
            .durable
            .conversation(conversation)
            .map(|known| (known.settings.clone(), known.made_otherwise))
            .unwrap_or_default();
        let params = ResumeParams {
            thread_id: thread,
            exclude_turns: true,
            approval_policy: settings.approval_policy.as_ref().map(|p| p.wire()),
            sandbox: settings.sandbox.map(|s| s.as_str()),
            config: settings.config.as_ref(),
            cwd: settings.cwd.as_deref().filter(|_| changed),
            base_instructions: settings.base_instructions.as_deref().filter(|_| changed),
        };
        let kind = Kind::ThreadResume { conversation };
        self.request(fx, kind, "thread/resume", &params, UNGATED);
    }

    pub(super) fn thread_resumed(
        &mut self,
        fx: &mut Effects,
        conversation: ConversationId,
        how: Settled,
    ) {
        let now = self.now;
        let Some(c) = self.conversation(conversation) else {
            return;
        };
        let Link::Resuming(thread) = c.link.clone() else {
            return;
        };
        c.link = Link::Detached(thread.clone());
        let rejection = match &how {
            Settled::Answered(result) => match read_thread_id(result) {
                Ok(id) if id == thread => {
                    c.link = Link::Loaded(thread);
                    c.activity = activity(result);
                    c.told_model = told_model(result);
                    c.was_active = (c.activity == Activity::Active).then_some(now);
                    c.idle_since = None;
                    self.await_replay(conversation);
                    self.tell_differences(fx, conversation, result);
                    self.advance(fx, conversation);
                    return;
                }
                answer => {
                    let reason = match answer {
                        Ok(other) => format!("it answers for thread {other}"),
                        Err(reason) => reason,
                    };
                    let method = "thread/resume".to_owned();
                    let rejection = Rejection::NotSent(format!("{method}: {reason}"));
                    self.report(fx, ProtocolError::BadResponse { method, reason });
                    rejection
                }
            },
            Settled::Refused(refusal) => Rejection::Thread(refusal.clone()),
            // The connection that did not take it ends; the next one does.
            Settled::NotSent if self.comes_back() => return,
            Settled::NotSent => Rejection::NotSent("thread/resume was not sent".into()),
            Settled::Unknown(evidence) => Rejection::NotSent(format!("thread/resume: {evidence}")),
        };
        if !self.resume_failed(fx, conversation, &thread, how) {
            self.reject_waiting(fx, conversation, &rejection);
        }
    }

    /// Compares a thread with what was asked, before anything is sent on it.
    pub(super) fn tell_differences(
        &mut self,
        fx: &mut Effects,
        conversation: ConversationId,
        answer: &str,
    ) {
        let Some(known) = self.durable.conversation(conversation) else {
            return;
        };
        let refuses = known.settings.differences == Differences::Refuse;
        let all = difference::of(&known.settings, known.selection.model(), answer);
        for difference in &all {
            let difference = difference.clone();
            let update = ConversationUpdate::Differs { difference };
            self.tell_conversation(fx, conversation, update);
        }
        if refuses && !all.is_empty() {
            self.reject_waiting(fx, conversation, &Rejection::Differs(all));
        }
    }

    /// The thread of a conversation is no more, and held nothing: another one is made.
    pub(super) fn forget_thread(
        &mut self,
        fx: &mut Effects,
        conversation: ConversationId,
        thread: &ThreadId,
    ) {
        self.compaction_forsaken(fx, conversation);
        let change = CreationChange::Gone;
        let record = Record::ThreadCreation {
            conversation,
            change,
        };
        self.record(record, Durability::Synced);
        self.threads.remove(thread);
        if let Some(c) = self.conversation(conversation) {
            c.link = Link::None;
            c.usage_total = None;
            // What was still to be learnt from its history is given up with it.
            c.look = None;
            c.absent_since = None;
            c.corrects = false;
            c.unsure.clear();
        }
        let old = thread.clone();
        self.tell_conversation(fx, conversation, ConversationUpdate::ThreadReplaced { old });
    }

    pub(super) fn reject_waiting(
        &mut self,
        fx: &mut Effects,
        conversation: ConversationId,
        rejection: &Rejection,
    ) {
        let Some(c) = self.conversation(conversation) else {
            return;
        };
        let waiting: Vec<TurnNo> = c
            .turns
            .iter()
            .filter(|turn| matches!(turn.state, TurnState::Waiting))
            .map(|turn| turn.no)
            .collect();
        let source = match rejection {
            Rejection::Refused(_) | Rejection::Thread(_) => EndSource::Live,
            Rejection::NotSent(_) | Rejection::Selection(_) | Rejection::Differs(_) => {
                EndSource::Local
            }
        };
        self.errands_rejected(fx, conversation, rejection);
        for no in waiting {
            let outcome = Outcome::Rejected {
                error: rejection.clone(),
            };
            self.end_turn(fx, conversation, no, outcome, source);
        }
    }

    /// The server let the thread of a running turn go.
    pub(super) fn thread_gone(
        &mut self,
        fx: &mut Effects,
        conversation: ConversationId,
        no: TurnNo,
    ) {
        if self.finish_pending(fx, conversation, no) {
            return;
        }
        self.close_calls(fx, conversation, no, CallClosedWhy::TurnEnded, None);
        self.close_questions(fx, conversation, no, QuestionClosedWhy::TurnEnded, false);
        let Some(turn) = self.turn(no) else { return };
        let outcome = match turn.state {
            TurnState::Sent { .. } => Outcome::Unknown {
                evidence: "the server closed the thread before it named the turn".into(),
            },
            TurnState::Waiting | TurnState::Running { .. } | TurnState::Suspended { .. } => {
                Outcome::Lost {
                    reason: LostReason::ThreadClosed,
                }
            }
        };
        self.end_turn(fx, conversation, no, outcome, EndSource::Local);
    }
}

/// The model that a thread has, says the answer that made or resumed it.
fn told_model(result: &str) -> Option<String> {
    #[derive(Deserialize)]
    struct Told {
        #[serde(default)]
        model: Option<String>,
    }
    serde_json::from_str::<Told>(result).ok()?.model
}

/// What the answer of `thread/resume` says of the thread.
fn activity(result: &str) -> Activity {
    #[derive(Deserialize)]
    struct Resumed<'a> {
        #[serde(borrow)]
        thread: Thread<'a>,
    }
    #[derive(Deserialize)]
    struct Thread<'a> {
        #[serde(borrow)]
        status: Status<'a>,
    }
    #[derive(Deserialize)]
    struct Status<'a> {
        #[serde(rename = "type", borrow)]
        kind: CowStr<'a>,
    }
    match serde_json::from_str::<Resumed<'_>>(result) {
        Ok(resumed) => match &*resumed.thread.status.kind.0 {
            "idle" | "systemError" => Activity::Idle,
            "active" => Activity::Active,
            _ => Activity::Untold,
        },
        Err(_) => Activity::Untold,
    }
}

fn read_thread_id(result: &str) -> Result<ThreadId, String> {
    #[derive(Deserialize)]
    struct Started<'a> {
        #[serde(borrow)]
        thread: Named<'a>,
    }
    #[derive(Deserialize)]
    struct Named<'a> {
        #[serde(borrow)]
        id: CowStr<'a>,
    }
    let started: Started<'_> = crate::json::from_object(result).map_err(|e| e.to_string())?;
    ThreadId::new(&started.thread.id.0).ok_or_else(|| "the thread's id is not clean".to_owned())
}
