//! Rounds: what the server and the world do, and what happens by itself.

use super::{
    Arrival, Body, Call, End, Given, Had, Launch, Message, Native, Reached, Reference, Round, Sent,
};
use crate::conversation_model::{
    boxes::{Meaning, call_box, spoken},
    op::{Called, Op},
};

impl Reference {
    pub(crate) fn server(&mut self, op: &Op) {
        let (silence, refuse) = (self.silence, self.refuse);
        (self.silence, self.refuse) = match op {
            Op::Silence => (true, refuse),
            Op::Speak => (false, false),
            Op::Refuse => (silence, true),
            _ => (silence, refuse),
        };
        let natives = self.natives.len();
        let Some(round) = &mut self.round else { return };
        match op {
            Op::Speak => round.hear_all(),
            Op::Record => round.record(true),
            Op::Stream { record }
            | Op::Text { record }
            | Op::Calls { record, .. }
            | Op::Complete { record } => {
                round.record(*record);
            }
            Op::Fail | Op::Stop => round.record(false),
            _ => {}
        }
        match op {
            Op::Stream { .. } | Op::Text { .. } => {
                self.marks += 1;
                let begins =
                    !std::mem::replace(&mut round.streaming, matches!(op, Op::Stream { .. }));
                if begins && !round.text.is_empty() {
                    round.text.push('\n');
                }
                round.text += &format!("said m{}", self.marks);
            }
            Op::Calls { calls, .. } => {
                for (at, called) in calls.iter().enumerate() {
                    round.waiting.push((natives + at, *called));
                    self.natives.push(Native::default());
                }
            }
            Op::Complete { .. } => round.end = Some(End::Completed),
            Op::Fail => round.end = Some(End::Failed),
            Op::Stop => round.end = Some(End::Stopped),
            _ => {}
        }
    }

    /// From here on no frame of ours leaves: our process is about to be killed.
    pub(crate) fn cut(&mut self) {
        self.offline = true;
    }

    /// The connection is lost, and with it a server that is a child; or our process was killed, and with it the connection.
    pub(crate) fn away(&mut self, ours: bool) {
        (self.silence, self.refuse, self.offline) = (false, false, false);
        let lives = self.how.socket;
        if ours {
            self.binding = None;
            self.waived = self.how.recovered_run;
        }
        let job = self.open().map(|round| round.job);
        if let Some(round) = self.round.as_mut().filter(|round| round.stalled.is_none()) {
            round.hear_all();
            for steer in &mut round.steers {
                if steer.reached == Reached::Unsent {
                    steer.reached = Reached::Never;
                }
            }
            if ours {
                round.binding = None;
            }
            if !lives {
                round.waiting.clear();
            } else if round.start.reached > Reached::Never && round.end.is_none() {
                // The server goes on without us.
                round.record(false);
            }
        }
        let over = self.round.as_ref().is_some_and(|round| round.end.is_some());
        if lives && !over {
            self.natives
                .iter_mut()
                .for_each(|native| native.behind = None);
        } else {
            self.bury(0);
        }
        let mut failed = false;
        for call in 0..self.calls.len() {
            let of = &self.calls[call];
            if of.result.is_some() {
                continue;
            }
            if of.round.is_none() {
                if ours {
                    self.launch(call, None);
                }
            } else if ours {
                failed |= of.round == job;
                self.result(call, false, "interrupted by shutdown", true);
                self.calls[call].result = Some(Had::Ours);
            }
        }
        if self.round.as_ref().is_some_and(|round| round.stop) {
            // The interrupt goes ahead of the answers.
            let open = self.natives.iter_mut();
            open.for_each(|native| native.dead |= native.given.is_none());
        }
        let triggers = self.mailbox.iter().any(|arrival| arrival.trigger);
        if let Some(round) = self.round.as_mut().filter(|_| ours) {
            // Who steered is gone; what triggers finds the turn running.
            round.asked = self.how.at_once && triggers;
        }
        self.go_on(lives, ours && failed);
        self.settle();
    }

    /// What becomes of the turn.
    pub(super) fn go_on(&mut self, lives: bool, failed: bool) {
        let Some(round) = self.round.as_mut().filter(|round| round.stalled.is_none()) else {
            return;
        };
        if round.end.is_some() {
            if round.end == Some(End::Stopped) && failed {
                round.end = Some(End::CutShort);
            }
            return;
        }
        if round.start.recorded {
            round.end = match (round.stop, failed) {
                (true, _) => Some(End::Interrupted),
                _ if lives => None,
                (false, true) => Some(End::CutShort),
                (false, false) => Some(End::Stopped),
            };
        } else if round.stop {
            round.end = Some(End::Interrupted);
        } else {
            // It was never accepted, and is sent again, with what was steered into it.
            let again: Vec<Sent> = [&round.start]
                .into_iter()
                .chain(&round.steers)
                .map(|m| m.sent.clone())
                .collect();
            let reached: Vec<_> = again.iter().map(|sent| self.deliver(sent)).collect();
            if let Some(round) = &mut self.round {
                let all = [&mut round.start].into_iter().chain(&mut round.steers);
                for (message, reached) in all.zip(reached) {
                    message.reached = reached.unwrap_or(message.reached);
                }
            }
        }
    }

    // What happens by itself.

    pub(crate) fn settle(&mut self) {
        loop {
            self.give();
            let Some(round) = &mut self.round else {
                let by_itself = !self.how.by_hand && self.triggered && !self.held;
                let bound = self.waived || self.authorized(None);
                self.waived &= self.triggered;
                if by_itself && bound && !self.preflight_blocks() {
                    self.begin();
                    continue;
                }
                return;
            };
            let silent =
                round
                    .steers
                    .iter()
                    .chain([&round.start])
                    .any(|message| match message.reached {
                        Reached::Unsent => self.offline,
                        Reached::Never => false,
                        Reached::Silent => !message.recorded,
                        Reached::Answered => false,
                    });
            let end = round.end;
            if round.stalled.is_some() {
                return;
            } else if end == Some(End::Refused) {
                self.finish(End::Refused);
            } else if silent {
                return;
            } else if !round.waiting.is_empty() {
                let calls = std::mem::take(&mut round.waiting);
                self.stage(&calls);
            } else if let Some(end) = end {
                self.finish(end);
            } else if round.asked {
                self.stage(&[]);
            } else {
                return;
            }
        }
    }

    pub(super) fn preflight_blocks(&self) -> bool {
        self.calls
            .iter()
            .any(|call| call.blocking && call.result.is_none())
    }

    pub(super) fn append(&mut self, body: Body, submitted: bool) {
        self.boxes.push(body);
        if submitted {
            self.carried.insert(self.boxes.len() as u64);
        }
    }

    pub(super) fn arrive(&mut self, body: Body, trigger: bool, submitted: bool) {
        let runs = self.runs();
        if let Some(round) = &mut self.round {
            round.asked |= self.how.at_once && trigger && runs;
            self.mailbox.push_back(Arrival {
                body,
                trigger,
                submitted,
                native: None,
            });
        } else {
            self.triggered |= trigger;
            self.append(body, submitted);
        }
    }

    /// Takes all boxes that the thread lacks into a message.
    pub(super) fn carry(&mut self, steer: bool) -> Sent {
        let all = 1..=self.boxes.len() as u64;
        let boxes: Vec<u64> = all.filter(|id| !self.carried.contains(id)).collect();
        self.carried.extend(&boxes);
        self.triggered = false;
        let marker = self.boxes.len() as u64 + 1;
        Sent {
            steer,
            boxes,
            marker,
            thread: self.thread,
        }
    }

    /// Hands a message to the server. None: refused.
    pub(super) fn deliver(&mut self, message: &Sent) -> Option<Reached> {
        if self.offline {
            return Some(Reached::Unsent);
        }
        self.sent.push(message.clone());
        if std::mem::take(&mut self.refuse) {
            return None;
        }
        Some(if self.silence {
            Reached::Silent
        } else {
            Reached::Answered
        })
    }

    pub(super) fn begin(&mut self) {
        self.waived = false;
        let sent = self.carry(false);
        let reached = self.deliver(&sent);
        self.jobs += 1;
        self.round = Some(Round {
            job: self.jobs,
            binding: self.binding,
            start: Message {
                sent,
                reached: reached.unwrap_or(Reached::Answered),
                recorded: false,
            },
            steers: Vec::new(),
            text: String::new(),
            streaming: false,
            staged: false,
            acted: false,
            asked: false,
            waiting: Vec::new(),
            first_native: self.natives.len(),
            stop: false,
            end: reached.is_none().then_some(End::Refused),
            stalled: None,
        });
    }

    pub(super) fn stage(&mut self, calls: &[(usize, Called)]) {
        let Some(round) = &mut self.round else { return };
        let text = std::mem::take(&mut round.text);
        (round.staged, round.asked) = (true, false);
        round.acted |= !calls.is_empty();
        let (job, binding) = (round.job, round.binding);
        self.append(Body::new("Agent Response", text), true);
        let mut due = false;
        let first = self.calls.len();
        for (native, called) in calls {
            due |= self.act(*native, *called, job);
        }
        due |= self.mailbox.iter().any(|arrival| arrival.trigger);
        if due {
            self.flush(calls);
        }
        for call in first..self.calls.len() {
            if self.calls[call].result.is_none() {
                self.launch(call, binding);
            }
        }
    }

    /// One action of a stage. Whether it leaves an unsubmitted call.
    pub(super) fn act(&mut self, native: usize, called: Called, job: u32) -> bool {
        let (_, _, meaning) = spoken(called, native);
        let (tool, arguments, deferred, sound) = match meaning {
            Meaning::Message(text) => {
                self.append(Body::new("Agent Message", text), true);
                self.natives[native].due = Some(Given::Delivered);
                return false;
            }
            Meaning::Call {
                tool,
                arguments,
                deferred,
            } => (tool, arguments, deferred, true),
            Meaning::Malformed {
                tool,
                arguments,
                deferred,
            } => (tool, arguments, deferred, false),
        };
        let sequence = self.calls.len() as u64 + 1;
        self.append(call_box(sequence, &tool, &arguments), !deferred);
        self.calls.push(Call {
            tool,
            arguments,
            limited: matches!(called, Called::Hasty | Called::Await),
            round: Some(job),
            blocking: false,
            spoken: Some(native),
            native: (!deferred).then_some(native),
            result: None,
        });
        if deferred {
            self.natives[native].due = Some(Given::Deferred);
        }
        if !sound {
            self.result(self.calls.len() - 1, false, "", true);
            self.calls[sequence as usize - 1].result = Some(Had::Ours);
            if let Some(arrival) = self.mailbox.back_mut() {
                arrival.body.hidden = "turnkeep.malformed-call/1";
                arrival.native = None;
            }
            if deferred {
                self.natives[native].due = Some(Given::Either);
            }
        }
        deferred
    }

    pub(super) fn flush(&mut self, calls: &[(usize, Called)]) {
        for arrival in std::mem::take(&mut self.mailbox) {
            self.append(arrival.body, arrival.submitted);
        }
        if let Some(round) = &mut self.round {
            round.asked = false;
        }
        let sent = self.carry(true);
        if sent.boxes.is_empty() {
            return;
        }
        let Some(reached) = self.deliver(&sent) else {
            self.give_back(&sent);
            self.triggered = true;
            return;
        };
        let Some(round) = &mut self.round else { return };
        for (native, _) in calls {
            self.natives[*native].behind = Some(round.steers.len());
        }
        round.steers.push(Message {
            sent,
            reached,
            recorded: false,
        });
    }

    pub(super) fn give_back(&mut self, sent: &Sent) {
        for id in &sent.boxes {
            self.carried.remove(id);
        }
    }

    pub(super) fn launch(&mut self, call: usize, binding: Option<u8>) {
        let of = &self.calls[call];
        if !self.offline {
            self.launches.push(Launch {
                sequence: call as u64 + 1,
                tool: of.tool.clone(),
                arguments: of.arguments.clone(),
                binding,
            });
        }
    }

    /// The result of a call arrives; without a text it is one of ours in words of its own.
    pub(super) fn result(&mut self, call: usize, ok: bool, text: &str, triggers: bool) {
        let word = if ok { "ok" } else { "failed" };
        let contents = format!("result of call {}: {word}\n{text}", call + 1);
        let mut body = Body::new("Tool Result", contents).hidden("turnkeep.tool-result/1");
        body.begins = text.is_empty();
        let native = self.calls[call]
            .native
            .filter(|native| !self.natives[*native].dead);
        if let Some(native) = native {
            let text = text.to_owned();
            let made = text.is_empty();
            self.natives[native].due = Some(if made {
                Given::Failure
            } else {
                Given::Result { ok, text }
            });
        }
        // What was asked before the first round does not make one.
        let ahead = self.calls[call].round.is_none() && self.jobs == 0;
        let (trigger, submitted) = (triggers && native.is_none() && !ahead, native.is_some());
        self.arrive(body, trigger, submitted);
        // The answer is the result, as soon as nothing holds it back.
        let held = native.filter(|native| self.is_behind_a_steer(*native));
        if let Some(arrival) = self.mailbox.back_mut() {
            arrival.native = arrival.native.or(held);
        }
    }

    fn is_behind_a_steer(&self, native: usize) -> bool {
        let steers = self.round.as_ref().map_or(&[][..], |round| &round.steers);
        let steer = self.natives[native].behind.and_then(|at| steers.get(at));
        steer.is_some_and(|steer| steer.reached == Reached::Silent && !steer.recorded)
    }

    /// The server waits no longer for the answers that it has not got: what they were to bring arrives.
    pub(super) fn bury(&mut self, first: usize) {
        for (at, native) in self.natives.iter_mut().enumerate().skip(first) {
            native.dead |= native.given.is_none();
            native.behind = None;
            let lost = native.dead && native.given.is_none();
            let arrivals = self.mailbox.iter_mut();
            for arrival in arrivals.filter(|arrival| lost && arrival.native == Some(at)) {
                (arrival.submitted, arrival.trigger, arrival.native) = (false, true, None);
            }
        }
        for call in &mut self.calls {
            call.native = call.native.filter(|native| !self.natives[*native].dead);
        }
    }

    /// Gives the server the answers that it waits for and that nothing holds back.
    pub(super) fn give(&mut self) {
        for at in 0..self.natives.len() {
            let native = &self.natives[at];
            let waits = !native.dead && native.given.is_none() && native.due.is_some();
            if waits && !self.offline && !self.is_behind_a_steer(at) {
                self.natives[at].given = self.natives[at].due.clone();
            }
        }
    }

    pub(super) fn finish(&mut self, end: End) {
        let Some(round) = &mut self.round else { return };
        let steers = std::mem::take(&mut round.steers);
        let start = round.start.clone();
        let first = round.first_native;
        for steer in steers.iter().filter(|steer| !steer.recorded) {
            self.give_back(&steer.sent);
            self.triggered = true;
        }
        let interrupted = end == End::Interrupted;
        if end == End::Refused || (interrupted && !start.recorded) {
            self.give_back(&start.sent);
        }
        let mut natives = self.natives.iter().skip(first);
        let open = natives.any(|native| !native.dead && native.given.is_none());
        self.bury(first);
        match end {
            End::Interrupted => {
                self.fail_open_calls("interrupted");
                self.complete();
            }
            // A completed turn with an open call breaks the protocol.
            End::Completed if !open => self.complete(),
            End::CutShort => self.complete(),
            End::Completed | End::Failed | End::Stopped | End::Refused => {
                self.binding = None;
                self.waived = false;
                if let Some(round) = &mut self.round {
                    round.stalled = Some(end);
                }
            }
        }
    }

    pub(super) fn fail_open_calls(&mut self, text: &str) {
        let Some(job) = self.round.as_ref().map(|round| round.job) else {
            return;
        };
        for call in 0..self.calls.len() {
            if self.calls[call].round == Some(job) && self.calls[call].result.is_none() {
                self.result(call, false, text, false);
                self.calls[call].result = Some(Had::Ours);
            }
        }
    }

    pub(super) fn complete(&mut self) {
        let Some(round) = self.round.take() else {
            return;
        };
        // A message that was refused gets no response.
        if round.stalled != Some(End::Refused) {
            self.append(Body::new("Agent Response", round.text), true);
        }
        for arrival in std::mem::take(&mut self.mailbox) {
            self.arrive(arrival.body, arrival.trigger, arrival.submitted);
        }
    }
}

impl Round {
    pub(super) fn hear_all(&mut self) {
        let all = self.steers.iter_mut().chain([&mut self.start]);
        for message in all.filter(|message| message.reached == Reached::Silent) {
            message.reached = Reached::Answered;
        }
    }

    /// What the server took stands in its history.
    pub(super) fn record(&mut self, steers: bool) {
        self.start.recorded = true;
        for steer in self
            .steers
            .iter_mut()
            .filter(|steer| steer.reached > Reached::Never)
        {
            steer.recorded |= steers;
        }
    }
}
