//! What the application asks of a conversation beside turns: arrivals, rounds, holds, bindings, the
//! beginning, and what stands in it.

use alloc::{string::String, vec::Vec};

use super::{Link, Machine};
use crate::{
    bug::Bug,
    command::{
        AcceptOptions, Authorization, Binding, BusyWhy, CommandError, InputItem, Reply,
        SendOptions, ToolDelivery,
    },
    durable::{KeyUse, contents_of, contents_of_boxes},
    effect::{Durability, Effects},
    event::{CallClosedWhy, ConversationUpdate, ToolCall},
    id::{BoxId, CommandId, ConversationId, ToolCallId, is_clean},
    preflight::{Offered, PreflightEntry, PreflightItem},
    prompt::is_schema,
    record::Record,
    round::{Round, RoundChange, Wishes},
    timers::Timer,
    tools::CallChange,
    transcript::{BoxBody, TranscriptBox, box_type},
};

type Done = Result<(), CommandError>;

impl Machine {
    /// What a conversation is busy with, so that no round can begin at a word.
    pub(super) fn busy_with(&mut self, conversation: ConversationId) -> Option<BusyWhy> {
        let c = self.conversation(conversation)?;
        if c.closing.is_some() {
            return Some(BusyWhy::Closing);
        }
        let ours = c.turns.iter().any(|turn| turn.message.is_some());
        let compacts = c.compacts();
        let forks = c.forks() || self.is_forked(conversation);
        let known = self.durable.conversation(conversation)?;
        Some(match &known.round {
            Round::Generating(_) | Round::Steering { .. } => BusyWhy::Round,
            Round::Stalled(stall) => BusyWhy::Stalled {
                message: stall.message.clone(),
                restartable: stall.restartable,
            },
            Round::Idle if compacts => BusyWhy::Compacting,
            Round::Idle if forks => BusyWhy::Forking,
            Round::Idle if ours => BusyWhy::Turn,
            Round::Idle => match &known.held {
                Some(reason) => BusyWhy::Held {
                    reason: reason.clone(),
                },
                None if known.is_blocked() => BusyWhy::Preflight,
                None if known.is_triggered() => BusyWhy::Triggered,
                None => return None,
            },
        })
    }

    /// Binds a conversation where a command brings a binding. Tells whether it did.
    fn bind_with(
        &mut self,
        conversation: ConversationId,
        binding: Option<&Binding>,
    ) -> Result<bool, CommandError> {
        let Some(c) = self.conversation(conversation) else {
            return Err(CommandError::UnknownConversation { conversation });
        };
        match (binding, &c.binding) {
            (None, _) => Ok(false),
            (Some(new), Some(had)) if new == had => Ok(false),
            (Some(_), Some(_)) => Err(CommandError::Unauthorized { conversation }),
            (Some(new), None) => {
                c.binding = Some(new.clone());
                Ok(true)
            }
        }
    }

    /// Does something with a binding that goes again where it is refused.
    fn bound<T>(
        &mut self,
        conversation: ConversationId,
        binding: Option<&Binding>,
        does: impl FnOnce(&mut Self) -> Result<T, CommandError>,
    ) -> Result<T, CommandError> {
        let installed = self.bind_with(conversation, binding)?;
        let done = does(self);
        if done.is_err() && installed {
            if let Some(c) = self.conversation(conversation) {
                c.binding = None;
            }
        }
        if done.is_ok() && installed {
            self.touch(conversation);
        }
        done
    }

    pub(super) fn bind(
        &mut self,
        fx: &mut Effects,
        id: CommandId,
        conversation: ConversationId,
        binding: &Binding,
    ) -> Done {
        self.bound(conversation, Some(binding), |_| Ok(()))?;
        self.answer(fx, id, Ok(Reply::Done));
        Ok(())
    }

    pub(super) fn unbind(
        &mut self,
        fx: &mut Effects,
        id: CommandId,
        conversation: ConversationId,
    ) -> Done {
        let Some(c) = self.conversation(conversation) else {
            return Err(CommandError::UnknownConversation { conversation });
        };
        c.binding = None;
        self.touch(conversation);
        self.answer(fx, id, Ok(Reply::Done));
        Ok(())
    }

    /// `send`: a user message, and a round that begins with it.
    pub(super) fn send_message(
        &mut self,
        fx: &mut Effects,
        id: CommandId,
        conversation: ConversationId,
        input: Vec<InputItem>,
        options: SendOptions,
    ) -> Done {
        let SendOptions {
            key,
            output_schema,
            deadline,
            binding,
        } = options;
        // Recorded and sent as it is measured.
        let output_schema = output_schema.map(crate::RawJson::compact);
        if self.conversation(conversation).is_none() {
            return Err(CommandError::UnknownConversation { conversation });
        }
        let said = contents_of(&input, output_schema.as_ref());
        if let Some(key) = &key {
            check_key(key)?;
            match self.durable.key_use(conversation, key) {
                Some(KeyUse::Turn {
                    turn,
                    message,
                    contents,
                }) if *contents == said => {
                    let reply = Reply::Accepted {
                        turn: *turn,
                        message: message.clone(),
                    };
                    let gate = self.gate();
                    self.answer_gated(fx, id, gate, Ok(reply));
                    return Ok(());
                }
                Some(_) => return Err(CommandError::KeyReused { key: key.clone() }),
                None => {}
            }
        }
        self.check_input(&input)?;
        if output_schema
            .as_ref()
            .is_some_and(|schema| !is_schema(schema))
        {
            return Err(CommandError::BadSchema);
        }
        if deadline.is_some_and(|d| d.is_zero()) {
            return Err(CommandError::BadDeadline);
        }
        if let Some(error) = self.ended_error() {
            return Err(error);
        }
        if let Some(why) = self.busy_with(conversation) {
            return Err(CommandError::Busy { conversation, why });
        }
        let wishes = Wishes {
            said: key.is_some().then_some(said),
            key,
            output_schema,
            deadline,
        };
        let boxes = boxes_of(&input)?;
        let accepted = self.bound(conversation, binding.as_ref(), |machine| {
            if !machine.is_bound(conversation) {
                return Err(CommandError::Unauthorized { conversation });
            }
            machine.check_begin(conversation, &boxes)?;
            machine.arrive(conversation, boxes, None)?;
            machine.begin_round(conversation, wishes, None)
        });
        let (turn, message) = accepted?;
        let gate = self.gate();
        self.answer_gated(fx, id, gate, Ok(Reply::Accepted { turn, message }));
        self.advance(fx, conversation);
        Ok(())
    }

    /// Whether a round can begin with these boxes and what is not submitted.
    fn check_begin(&mut self, conversation: ConversationId, boxes: &[BoxBody]) -> Done {
        self.last_turn
            .next()
            .ok_or_else(|| CommandError::exhausted("turn"))?;
        let Some(known) = self.durable.conversation(conversation) else {
            return Err(CommandError::UnknownConversation { conversation });
        };
        let transcript = known.transcript();
        let ids = (transcript.last().0.saturating_add(1)..).map(BoxId);
        let old = transcript.boxes(transcript.unsubmitted());
        let all = old.chain(ids.zip(boxes));
        let marker = BoxId(
            transcript
                .last()
                .0
                .saturating_add(boxes.len() as u64)
                .saturating_add(1),
        );
        let input = crate::transcript::render(all, Some(marker), known.settings.rendering);
        self.check_input(&input)
    }

    pub(super) fn accept_boxes(
        &mut self,
        fx: &mut Effects,
        id: CommandId,
        conversation: ConversationId,
        boxes: Vec<BoxBody>,
        options: AcceptOptions,
    ) -> Done {
        let AcceptOptions { key, binding } = options;
        if self.conversation(conversation).is_none() {
            return Err(CommandError::UnknownConversation { conversation });
        }
        if boxes.is_empty() {
            let reason = "there is no box".into();
            return Err(CommandError::BadInput { reason });
        }
        for body in &boxes {
            body.validate_outside().map_err(|error| match error {
                crate::transcript::BoxError::Type { box_type } => {
                    CommandError::BadBoxType { box_type }
                }
                other => CommandError::BadInput {
                    reason: alloc::format!("{other}"),
                },
            })?;
        }
        if let Some(key) = &key {
            check_key(key)?;
            match self.durable.key_use(conversation, key) {
                Some(KeyUse::Arrival {
                    first,
                    last,
                    contents,
                }) if *contents == contents_of_boxes(&boxes) => {
                    let (first, last) = (*first, *last);
                    let gate = self.gate();
                    self.answer_gated(fx, id, gate, Ok(Reply::Arrived { first, last }));
                    return Ok(());
                }
                Some(_) => return Err(CommandError::KeyReused { key: key.clone() }),
                None => {}
            }
        }
        if self.conversation(conversation).is_some_and(|c| c.forks()) {
            // It would be lost with a fork that is not made.
            let why = BusyWhy::Forking;
            return Err(CommandError::Busy { conversation, why });
        }
        self.check_boxes(&boxes)?;
        let user = |body: &BoxBody| {
            [box_type::USER_MESSAGE, box_type::USER_ATTACHMENT].contains(&&*body.box_type)
        };
        let needs = boxes.iter().any(user);
        let count = boxes.len() as u64;
        let triggers = boxes.iter().any(|body| !body.is_inert());
        self.bound(conversation, binding.as_ref(), |machine| {
            if needs && !machine.is_bound(conversation) {
                return Err(CommandError::Unauthorized { conversation });
            }
            if machine.has_bug(Bug::LosesAnArrival) && machine.has_round(conversation) {
                return Ok(());
            }
            machine.arrive(conversation, boxes, key)
        })?;
        match triggers {
            true => self.trigger_came(conversation),
            false => self.touch(conversation),
        }
        let known = self.durable.conversation(conversation);
        let last = known.map(|known| known.mailbox.last()).unwrap_or_default();
        let first = crate::id::ArrivalNo(last.0.saturating_sub(count - 1));
        let gate = self.gate();
        self.answer_gated(fx, id, gate, Ok(Reply::Arrived { first, last }));
        Ok(())
    }

    /// Begins a round at the application's word, if there is anything that the model has not got.
    pub(super) fn begin_now(
        &mut self,
        fx: &mut Effects,
        id: CommandId,
        conversation: ConversationId,
    ) -> Done {
        if let Some(error) = self.ended_error() {
            return Err(error);
        }
        let Some(known) = self.durable.conversation(conversation) else {
            return Err(CommandError::UnknownConversation { conversation });
        };
        let (open, triggered) = (known.round.open().is_some(), known.is_triggered());
        let turn = match self.busy_with(conversation) {
            // A second one gives nothing.
            _ if open => None,
            Some(BusyWhy::Triggered) | None => {
                if !self.is_bound(conversation) {
                    return Err(CommandError::Unauthorized { conversation });
                }
                match triggered {
                    true => {
                        let begun = self.begin_round(conversation, Wishes::default(), None)?;
                        Some(begun.0)
                    }
                    false => None,
                }
            }
            Some(why) => return Err(CommandError::Busy { conversation, why }),
        };
        let gate = self.gate();
        self.answer_gated(fx, id, gate, Ok(Reply::Begun { turn }));
        if turn.is_some() {
            self.advance(fx, conversation);
        }
        Ok(())
    }

    pub(super) fn restart(
        &mut self,
        fx: &mut Effects,
        id: CommandId,
        conversation: ConversationId,
        binding: Option<&Binding>,
    ) -> Done {
        let Some(known) = self.durable.conversation(conversation) else {
            return Err(CommandError::UnknownConversation { conversation });
        };
        let Round::Stalled(stall) = &known.round else {
            return Err(CommandError::NotStalled { conversation });
        };
        if !stall.restartable {
            return Err(match stall.acted {
                true => CommandError::ProviderActionAccepted { conversation },
                false => CommandError::MayBeAccepted { conversation },
            });
        }
        let wishes = stall.wishes.as_deref().cloned().unwrap_or_default();
        if let Some(error) = self.ended_error() {
            return Err(error);
        }
        if self.must_not_restart(conversation) {
            let why = BusyWhy::Turn;
            return Err(CommandError::Busy { conversation, why });
        }
        let begun = self.bound(conversation, binding, |machine| {
            if !machine.is_bound(conversation) {
                return Err(CommandError::Unauthorized { conversation });
            }
            machine.begin_round(conversation, wishes, Some(()))
        });
        let (turn, message) = begun?;
        let gate = self.gate();
        self.answer_gated(fx, id, gate, Ok(Reply::Accepted { turn, message }));
        self.advance(fx, conversation);
        Ok(())
    }

    fn has_round(&self, conversation: ConversationId) -> bool {
        let known = self.durable.conversation(conversation);
        known.is_some_and(|known| known.round.open().is_some())
    }

    fn must_not_restart(&mut self, conversation: ConversationId) -> bool {
        self.conversation(conversation)
            .is_none_or(|c| c.closing.is_some() || c.letting_go || !c.doubts.is_empty())
    }

    pub(super) fn dismiss(
        &mut self,
        fx: &mut Effects,
        id: CommandId,
        conversation: ConversationId,
    ) -> Done {
        let Some(known) = self.durable.conversation(conversation) else {
            return Err(CommandError::UnknownConversation { conversation });
        };
        let Round::Stalled(stall) = &known.round else {
            return Err(CommandError::NotStalled { conversation });
        };
        let no = stall.turn;
        let why = CallClosedWhy::Dismissed;
        for call in self.open_calls_of(conversation, no) {
            self.timers.clear(Timer::ToolLimit(call));
            let given = false;
            let change = CallChange::Closed { why, given };
            self.record(Record::ToolCall { call, change }, Durability::Synced);
            self.tell_closed(fx, conversation, no, call, why);
        }
        self.round(conversation, RoundChange::Dismissed);
        if let Some(c) = self.conversation(conversation) {
            (c.recovered, c.cannot_begin) = (false, false);
        }
        self.touch(conversation);
        let gate = self.gate();
        self.answer_gated(fx, id, gate, Ok(Reply::Done));
        Ok(())
    }

    pub(super) fn hold_rounds(
        &mut self,
        fx: &mut Effects,
        id: CommandId,
        conversation: ConversationId,
        reason: String,
    ) -> Done {
        let Some(known) = self.durable.conversation(conversation) else {
            return Err(CommandError::UnknownConversation { conversation });
        };
        // The first reason stands.
        if known.held.is_none() {
            let record = Record::Held {
                conversation,
                reason,
            };
            self.record(record, Durability::Synced);
            self.touch(conversation);
        }
        let gate = self.gate();
        self.answer_gated(fx, id, gate, Ok(Reply::Done));
        Ok(())
    }

    pub(super) fn release_rounds(
        &mut self,
        fx: &mut Effects,
        id: CommandId,
        conversation: ConversationId,
    ) -> Done {
        let Some(known) = self.durable.conversation(conversation) else {
            return Err(CommandError::UnknownConversation { conversation });
        };
        if known.held.is_some() {
            self.record(Record::Released { conversation }, Durability::Synced);
            if let Some(c) = self.conversation(conversation) {
                c.cannot_begin = false;
            }
            self.touch(conversation);
        }
        let gate = self.gate();
        self.answer_gated(fx, id, gate, Ok(Reply::Done));
        Ok(())
    }

    pub(super) fn preflight(
        &mut self,
        fx: &mut Effects,
        id: CommandId,
        conversation: ConversationId,
        items: Vec<PreflightItem>,
    ) -> Done {
        let Some(known) = self.durable.conversation(conversation) else {
            return Err(CommandError::UnknownConversation { conversation });
        };
        if !known.is_fresh() {
            return Err(CommandError::NotFresh { conversation });
        }
        let bad = |reason: String| CommandError::BadInput { reason };
        let (nonce, mut sequence) = (known.nonce, known.last_call);
        let mut entries = Vec::new();
        let mut calls = Vec::new();
        for item in items {
            entries.push(match item {
                PreflightItem::System(body) => PreflightEntry::System(body),
                PreflightItem::Call {
                    tool,
                    arguments,
                    blocking,
                } => {
                    if !known.settings.tools.iter().any(|known| known.name == tool) {
                        return Err(CommandError::UnknownTool { name: tool });
                    }
                    if arguments.kind() != crate::json::JsonKind::Object {
                        return Err(bad("the arguments of a call are not an object".into()));
                    }
                    let canonical = crate::json::canonical(arguments.get())
                        .map_err(|error| bad(alloc::format!("{error}")))?;
                    let arguments = crate::RawJson::parse(&canonical)
                        .map_err(|error| bad(alloc::format!("{error}")))?;
                    sequence = sequence
                        .checked_add(1)
                        .ok_or_else(|| CommandError::exhausted("call"))?;
                    calls.push(ToolCallId { nonce, sequence });
                    PreflightEntry::Call {
                        sequence,
                        offered: Offered {
                            tool,
                            arguments,
                            blocking,
                        },
                    }
                }
            });
        }
        crate::preflight::validate(&entries, known.last_call).map_err(bad)?;
        let record = Record::Preflight {
            conversation,
            entries,
        };
        let gate = self.record(record, Durability::Synced);
        for call in &calls {
            self.offer_call(fx, *call);
        }
        self.touch(conversation);
        self.answer_gated(fx, id, gate, Ok(Reply::Preflighted { calls }));
        Ok(())
    }

    /// Hands a call of the preflight to the application, in each life once.
    pub(super) fn offer_call(&mut self, fx: &mut Effects, id: ToolCallId) {
        let Some(call) = self.durable.call(id) else {
            return;
        };
        let Some(offered) = call.offered.clone() else {
            return;
        };
        let conversation = call.conversation;
        let limit = self.time_limit(conversation, &offered.tool);
        if let Some(limit) = limit {
            self.timers.set(Timer::ToolLimit(id), self.now.after(limit));
        }
        let binding = self
            .conversation(conversation)
            .and_then(|c| c.binding.clone());
        let call = ToolCall {
            id,
            tool: offered.tool,
            arguments: offered.arguments,
            via: None,
            time_limit: limit,
            delivery: ToolDelivery::Deferred,
            binding,
        };
        let blocking = offered.blocking;
        let gate = self.gate();
        let update = ConversationUpdate::PreflightCall { call, blocking };
        self.tell_conversation_gated(fx, conversation, gate, update);
    }

    pub(super) fn read(
        &mut self,
        fx: &mut Effects,
        id: CommandId,
        conversation: ConversationId,
        from: BoxId,
        limit: u32,
    ) -> Done {
        let Some(known) = self.durable.conversation(conversation) else {
            return Err(CommandError::UnknownConversation { conversation });
        };
        let transcript = known.transcript();
        let boxes = transcript.range(from, limit);
        let boxes = boxes.map(|(id, body)| TranscriptBox {
            id,
            body: body.clone(),
        });
        let reply = Reply::Boxes {
            boxes: boxes.collect(),
            last: transcript.last(),
        };
        // What is not durable is not shown: a crash could give its number to another box.
        let gate = self.gate();
        self.answer_gated(fx, id, gate, Ok(reply));
        Ok(())
    }

    /// Whether an idle conversation's thread can be let go for another one.
    pub(super) fn check_thread_free(&mut self, conversation: ConversationId) -> Done {
        let Some(c) = self.conversation(conversation) else {
            return Err(CommandError::UnknownConversation { conversation });
        };
        let busy = |why| Err(CommandError::Busy { conversation, why });
        if c.closing.is_some() {
            return busy(BusyWhy::Closing);
        }
        if c.compacts() {
            return busy(BusyWhy::Compacting);
        }
        if c.forks() || self.is_forked(conversation) {
            return busy(BusyWhy::Forking);
        }
        let Some(c) = self.conversation(conversation) else {
            return Err(CommandError::UnknownConversation { conversation });
        };
        let open = c.letting_go
            || c.errands.is_some()
            || !c.turns.is_empty()
            || !c.doubts.is_empty()
            || !c.unanswered.is_empty()
            || matches!(c.link, Link::Starting | Link::Resuming(_));
        match self
            .durable
            .conversation(conversation)
            .map(|known| &known.round)
        {
            Some(Round::Generating(_) | Round::Steering { .. }) => return busy(BusyWhy::Round),
            // What the stalled round holds belongs to the thread that it had.
            Some(Round::Stalled(stall)) => {
                let (message, restartable) = (stall.message.clone(), stall.restartable);
                return busy(BusyWhy::Stalled {
                    message,
                    restartable,
                });
            }
            Some(Round::Idle) | None => {}
        }
        match open {
            true => busy(BusyWhy::Turn),
            false => Ok(()),
        }
    }

    /// Whether a new conversation needs a binding.
    pub(super) fn authorization_of(&self, said: Option<Authorization>) -> Authorization {
        said.unwrap_or(self.config.authorization)
    }
}

fn check_key(key: &str) -> Done {
    match is_clean(key) {
        true => Ok(()),
        false => Err(CommandError::BadInput {
            reason: "the key is empty or has white space at its ends".into(),
        }),
    }
}

/// What a message of the application is in boxes.
pub(super) fn boxes_of(input: &[InputItem]) -> Result<Vec<BoxBody>, CommandError> {
    let boxes: Vec<BoxBody> = input.iter().map(BoxBody::of_input).collect();
    for body in &boxes {
        let kind = body.hidden_type.strip_prefix(crate::transcript::INPUT);
        if let Some(kind) = kind.filter(|kind| !crate::transcript::is_native_kind(kind)) {
            let reason = alloc::format!("an input item of type {kind:?} is not known");
            return Err(CommandError::BadInput { reason });
        }
    }
    Ok(boxes)
}
