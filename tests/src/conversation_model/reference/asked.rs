//! What the application asks of a conversation, and what it is answered.

use super::{Answer, Body, Call, End, Had, Reference, SMALL};
use crate::conversation_model::{
    boxes::{ahead, brought, call_box, text_of},
    op::{Brought, Called, Outcome},
};

impl Reference {
    pub(super) fn authorized(&self, binding: Option<u8>) -> bool {
        match (self.binding, binding) {
            _ if !self.how.bound => true,
            (held, None) => held.is_some(),
            (held, Some(binding)) => held.is_none_or(|held| held == binding),
        }
    }

    pub(super) fn is_full(&self, more: usize) -> bool {
        let most = if self.how.small { SMALL } else { usize::MAX };
        self.round.is_some() && self.mailbox.len() + more > most
    }

    pub(super) fn install(&mut self, binding: Option<u8>) {
        if self.how.bound {
            self.binding = binding.or(self.binding);
        }
    }

    /// The boxes of an `accept`: the mark tells them from all others, a key gives the same again.
    pub(crate) fn bodies(&mut self, boxes: &[Brought], key: Option<u8>, other: bool) -> Vec<Body> {
        let mark = match key {
            Some(key) => format!("k{key}{}", if other { "'" } else { "" }),
            None => self.mark(),
        };
        let all = boxes.iter().enumerate();
        all.map(|(at, what)| brought(*what, &format!("{mark}.{at}")))
            .collect()
    }

    pub(super) fn mark(&mut self) -> String {
        self.marks += 1;
        format!("m{}", self.marks)
    }

    pub(crate) fn accept(
        &mut self,
        bodies: Vec<Body>,
        key: Option<u8>,
        binding: Option<u8>,
    ) -> Answer {
        let mut refused = Answer::new();
        let ours = ["Agent Response", "Agent Message", "Tool Call", ""];
        if bodies.iter().any(|body| ours.contains(&&*body.box_type)) {
            refused.push("bad_box_type");
        }
        let user = bodies.iter().any(|body| body.box_type.starts_with("User "));
        if (user || binding.is_some()) && !self.authorized(binding) {
            refused.push("unauthorized");
        }
        if self.is_full(bodies.len()) {
            refused.push("mailbox_full");
        }
        match key.and_then(|key| self.keys.get(&key)) {
            Some(same) if *same == bodies => {
                refused.push("arrived");
                return refused;
            }
            Some(_) => refused.push("key_reused"),
            None => {}
        }
        if !refused.is_empty() {
            return refused;
        }
        self.install(binding);
        if let Some(key) = key {
            self.keys.insert(key, bodies.clone());
        }
        for body in bodies {
            let trigger = body.box_type != "Tool Message";
            self.arrive(body, trigger, false);
        }
        vec!["arrived"]
    }

    pub(crate) fn send(&mut self, bodies: Vec<Body>, binding: Option<u8>) -> Answer {
        let mut refused = Answer::new();
        if self.round.is_some() || self.triggered || self.held || self.preflight_blocks() {
            refused.push("busy");
        }
        if !self.authorized(binding) {
            refused.push("unauthorized");
        }
        if !refused.is_empty() {
            return refused;
        }
        self.install(binding);
        for body in bodies {
            self.arrive(body, true, false);
        }
        self.begin();
        vec!["accepted"]
    }

    pub(crate) fn steer(&mut self, bodies: Vec<Body>, stale: bool) -> Answer {
        let mut refused = Answer::new();
        if stale || !self.runs() {
            refused.extend(["no_active_turn", "unknown_turn"]);
        }
        if self.is_full(bodies.len()) {
            refused.push("mailbox_full");
        }
        if !self.authorized(None) {
            refused.push("unauthorized");
        }
        if !refused.is_empty() {
            return refused;
        }
        for body in bodies {
            self.arrive(body, true, false);
        }
        if let Some(round) = &mut self.round {
            round.asked = true;
        }
        vec!["later"]
    }

    pub(crate) fn interrupt(&mut self, stale: bool) -> Answer {
        let runs = self.runs();
        match &mut self.round {
            Some(round) if runs && !stale => {
                round.stop = true;
                if !self.offline {
                    round.end = Some(End::Interrupted);
                }
                vec!["interrupted", "later"]
            }
            _ => vec!["ended", "unknown_turn"],
        }
    }

    pub(crate) fn respond(&mut self, call: usize, outcome: Outcome) -> Answer {
        let Some(of) = self.calls.get(call) else {
            return vec!["unknown_call"];
        };
        match of.result {
            Some(Had::Given(same)) if same == outcome => return vec!["done"],
            Some(Had::Given(_)) => return vec!["answered_differently"],
            Some(Had::Ours) => return vec!["call_closed", "answered_differently"],
            None => {}
        }
        // The server's request is answered whatever the room.
        let open = of.spoken.map(|native| &self.natives[native]);
        let open = open.is_some_and(|native| !native.dead && native.given.is_none());
        if !open && self.is_full(1) {
            return vec!["mailbox_full"];
        }
        self.result(
            call,
            outcome != Outcome::Failed,
            &text_of(call, outcome),
            true,
        );
        self.calls[call].result = Some(Had::Given(outcome));
        vec!["done"]
    }

    pub(crate) fn tool_message(&mut self, call: usize) -> (Answer, String) {
        let Some(of) = self.calls.get(call) else {
            return (vec!["unknown_call"], String::new());
        };
        match of.result {
            Some(Had::Given(_)) => return (vec!["call_answered"], "late".into()),
            Some(Had::Ours) => return (vec!["call_answered", "call_closed"], "late".into()),
            None => {}
        }
        if self.is_full(1) {
            return (vec!["mailbox_full"], "early".into());
        }
        let text = format!("progress {}", self.mark());
        let contents = format!("message of call {}\n{text}", call + 1);
        let body = Body::new("Tool Message", contents).hidden("turnkeep.tool-message/1");
        self.arrive(body, false, false);
        (vec!["done"], text)
    }

    pub(crate) fn bind(&mut self, binding: u8) -> Answer {
        if !self.authorized(Some(binding)) {
            return vec!["unauthorized"];
        }
        self.install(Some(binding));
        vec!["done"]
    }

    pub(crate) fn unbind(&mut self) -> Answer {
        self.binding = None;
        vec!["done"]
    }

    pub(crate) fn hold(&mut self) -> Answer {
        self.held = true;
        vec!["done"]
    }

    pub(crate) fn release(&mut self) -> Answer {
        self.held = false;
        vec!["done"]
    }

    pub(crate) fn begin_by_hand(&mut self) -> Answer {
        let mut refused = Answer::new();
        match &self.round {
            Some(round) if round.stalled.is_some() => refused.extend(["busy", "nothing"]),
            Some(_) => return vec!["nothing"],
            None => {}
        }
        if self.round.is_none() && (self.held || self.preflight_blocks()) {
            refused.push("busy");
        }
        if !self.authorized(None) {
            refused.push("unauthorized");
        }
        if self.round.is_none() && !self.triggered {
            refused.push("nothing");
        }
        if !refused.is_empty() {
            return refused;
        }
        self.begin();
        vec!["begun"]
    }

    pub(crate) fn dismiss(&mut self) -> Answer {
        if self
            .round
            .as_ref()
            .is_none_or(|round| round.stalled.is_none())
        {
            return vec!["not_stalled"];
        }
        self.fail_open_calls("");
        self.complete();
        // What came so far is given up with the round: the next trigger begins another one.
        self.triggered = false;
        vec!["done"]
    }

    pub(crate) fn restart(&mut self, binding: Option<u8>) -> Answer {
        let mut refused = Answer::new();
        let Some(round) = self.round.as_ref().filter(|round| round.stalled.is_some()) else {
            return vec!["not_stalled"];
        };
        if round.acted {
            refused.push("provider_action_accepted");
        } else if round.stalled != Some(End::Refused) || round.staged {
            refused.push("may_be_accepted");
        }
        if !self.authorized(binding) {
            refused.push("unauthorized");
        }
        if !refused.is_empty() {
            return refused;
        }
        self.install(binding);
        self.begin();
        vec!["accepted"]
    }

    pub(crate) fn preflight(&mut self, system: Body, calls: &[(Called, bool)]) -> Answer {
        let mut refused = Answer::new();
        if self.preflighted || !self.boxes.is_empty() || self.round.is_some() {
            refused.push("not_fresh");
        }
        if calls.iter().any(|(called, _)| *called == Called::Unknown) {
            refused.push("unknown_tool");
        }
        if !refused.is_empty() {
            return refused;
        }
        self.preflighted = true;
        self.append(system, false);
        for (called, blocking) in calls {
            let sequence = self.calls.len() as u64 + 1;
            let (tool, arguments) = ahead(*called, sequence);
            self.append(call_box(sequence, &tool, &arguments), false);
            self.calls.push(Call {
                tool,
                arguments,
                limited: false,
                round: None,
                blocking: *blocking,
                spoken: None,
                native: None,
                result: None,
            });
            self.launch(self.calls.len() - 1, None);
        }
        vec!["preflighted"]
    }

    /// A new native thread has none of the boxes.
    pub(crate) fn reset(&mut self) -> Answer {
        if self.round.is_some() {
            return vec!["busy"];
        }
        self.thread += 1;
        self.carried.clear();
        vec!["done"]
    }

    /// Whether an open call is past its limit then.
    pub(crate) fn expire(&mut self) {
        for call in 0..self.calls.len() {
            if self.calls[call].limited && self.calls[call].result.is_none() {
                self.result(call, false, "", true);
                self.calls[call].result = Some(Had::Ours);
            }
        }
    }
}
