//! What machine and reference must agree on after each operation.

use turnkeep_core::{BoxBody, BoxId, Command, CommandId, Effect, Event, Input, Reply};

use super::{Checked, Drive};
use crate::conversation_model::{
    boxes::{self, Body},
    op::{Brought, Op, Outcome},
    reference::{Given, Sent},
};

impl Drive {
    pub(super) fn compare(&mut self) -> Checked {
        self.transcript()?;
        self.mailbox()?;
        self.messages()?;
        if self.launched != self.reference.launches {
            let (is, should) = (&self.launched, &self.reference.launches);
            return Err(format!("launched were\n  {is:?}, not\n  {should:?}"));
        }
        for (at, native) in self.reference.natives.iter().enumerate() {
            let is = self.server.natives.get(at).and_then(Option::as_ref);
            if !native.dead && !fits(is, native.given.as_ref()) {
                let should = &native.given;
                return Err(format!(
                    "native call {at} is answered {is:?}, not {should:?}"
                ));
            }
        }
        let status = self.reference.status();
        if !status.contains(&self.status) {
            return Err(format!(
                "the status is {}, not one of {status:?}",
                self.status
            ));
        }
        if let Some(method) = self.server.unknown.first() {
            return Err(format!("the server was asked {method}"));
        }
        Ok(())
    }

    pub(super) fn transcript(&mut self) -> Checked {
        let (from, limit) = (BoxId(self.boxes as u64 + 1), 10_000);
        let read = Command::Read {
            conversation: self.conversation,
            from,
            limit,
        };
        self.commands += 1;
        let id = CommandId(self.commands);
        let effects = self
            .machine
            .step(self.now, Input::Command { id, command: read });
        let mut boxes = Vec::new();
        for effect in effects.list {
            if let Effect::Emit(Event::Answer { answer, .. }) = effect {
                if let Ok(Reply::Boxes { boxes: some, .. }) = *answer {
                    boxes = some;
                }
            }
        }
        let should = self.reference.boxes.len() - self.boxes.min(self.reference.boxes.len());
        for at in 0..should.max(boxes.len()) {
            let id = self.boxes + at + 1;
            let is = boxes.get(at);
            let Some(should) = self.reference.boxes.get_mut(id - 1) else {
                return Err(format!("box {id} is too much: {is:?}"));
            };
            match is {
                Some(is) if is.id.0 == id as u64 && agrees(&is.body, should) => {
                    should.contents.clone_from(&is.body.contents);
                }
                _ => return Err(format!("box {id} is\n  {is:?}, not\n  {should:?}")),
            }
        }
        self.tally.boxes += boxes.len() as u64;
        self.boxes = self.reference.boxes.len();
        Ok(())
    }

    pub(super) fn mailbox(&self) -> Checked {
        let conversation = self.machine.durable().conversation(self.conversation);
        let waits: Vec<_> = conversation
            .map(|c| c.mailbox.iter().collect())
            .unwrap_or_default();
        let should = self.reference.waiting();
        let same = waits.len() == should.len()
            && waits
                .iter()
                .zip(&should)
                .all(|(is, should)| agrees(&is.body, should));
        if same {
            Ok(())
        } else {
            Err(format!("the mailbox holds\n  {waits:?}, not\n  {should:?}"))
        }
    }

    pub(super) fn messages(&mut self) -> Checked {
        while self.got < self.server.got.len().max(self.reference.sent.len()) {
            let (got, sent) = (
                self.server.got.get(self.got),
                self.reference.sent.get(self.got),
            );
            let (Some(got), Some(sent)) = (got, sent) else {
                return Err(format!("the server got\n  {got:?}, not\n  {sent:?}"));
            };
            let text = self.rendered(sent);
            if got.steer != sent.steer || got.input != text {
                return Err(format!(
                    "the server got\n  {got:?}, not\n  {sent:?}: {text:?}"
                ));
            }
            let same = self
                .carried
                .entry(got.client.clone())
                .or_insert_with(|| sent.clone());
            if same != sent {
                return Err(format!(
                    "{} carries\n  {sent:?}, and before\n  {same:?}",
                    got.client
                ));
            }
            self.tally.messages += 1;
            self.tally.steers += u64::from(got.steer);
            let empty = |at: &usize| self.server.recorded().nth(*at).is_some_and(<[_]>::is_empty);
            let known = self
                .threads
                .get(&sent.thread)
                .filter(|at| !empty(at))
                .copied();
            if known.is_some_and(|at| at != got.thread) {
                return Err(format!("it came to another thread: {got:?}"));
            }
            self.threads.insert(sent.thread, got.thread);
            self.got += 1;
        }
        Ok(())
    }

    /// A message as the server gets it.
    pub(super) fn rendered(&self, sent: &Sent) -> Vec<String> {
        let boxes = sent
            .boxes
            .iter()
            .map(|id| (*id, &self.reference.boxes[*id as usize - 1]));
        let marker = self.how.boxed.then_some(sent.marker);
        boxes::render(boxes, marker)
    }

    /// No box stands twice in what a thread holds; at the end none is missing.
    pub(crate) fn finish(&mut self) -> Checked {
        let mut steps = vec![Op::Speak, Op::Release, Op::Unbind, Op::Bind(0)];
        let respond = |call: u8| Op::Respond {
            call,
            outcome: Outcome::Ok,
        };
        let calls = u8::try_from(self.reference.calls()).unwrap_or(u8::MAX);
        steps.extend((0..calls).map(respond));
        let complete = Op::Complete { record: true };
        let user = Op::Accept {
            boxes: vec![Brought::User],
            key: None,
            other: false,
            binding: None,
        };
        steps.extend([complete.clone(), Op::Dismiss, Op::Bind(0), user, Op::Begin]);
        steps.extend([complete.clone(), complete]);
        for op in steps {
            let unbound = !self.how.bound && matches!(op, Op::Bind(_) | Op::Unbind);
            if !unbound {
                self.run(&op.clone().into())
                    .map_err(|what| format!("at the end, {op:?}: {what}"))?;
            }
        }
        for thread in self.server.recorded() {
            let mut seen = std::collections::BTreeSet::new();
            let messages = thread
                .iter()
                .filter_map(|got| self.carried.get(&got.client));
            for id in messages.flat_map(|sent| &sent.boxes) {
                if !seen.insert(*id) {
                    return Err(format!("box {id} was submitted twice"));
                }
            }
        }
        let all = 1..=self.reference.boxes.len() as u64;
        let missing: Vec<u64> = all
            .filter(|id| !self.reference.carried.contains(id))
            .collect();
        if !missing.is_empty() || self.reference.status() != ["quiet"] {
            return Err(format!("at the end boxes {missing:?} were never submitted"));
        }
        self.tally.rounds += u64::from(self.reference.jobs);
        self.tally.launches += self.launched.len() as u64;
        Ok(())
    }
}

fn agrees(is: &BoxBody, should: &Body) -> bool {
    let contents = match should.begins {
        true => is.contents.starts_with(&should.contents),
        false => is.contents == should.contents,
    };
    contents && is.box_type == should.box_type && is.hidden_type == should.hidden
}

/// Whether a native call was answered as it should.
fn fits(is: Option<&Given>, should: Option<&Given>) -> bool {
    use turnkeep_core::tools::{DEFERRED, MESSAGE_DELIVERED};
    match (is, should) {
        (None, None) => true,
        (Some(Given::Result { ok, text }), Some(should)) => match should {
            Given::Result {
                ok: other,
                text: words,
            } => ok == other && text == words,
            Given::Failure => !ok,
            Given::Either => !ok || text == DEFERRED,
            Given::Deferred => *ok && text == DEFERRED,
            Given::Delivered => *ok && text == MESSAGE_DELIVERED,
        },
        _ => false,
    }
}
