//! What has arrived and is not yet a box: first in, first out.

use alloc::{collections::VecDeque, format, string::String};

use serde::{Deserialize, Serialize};

use crate::{durable::is_default, id::ArrivalNo, transcript::BoxBody};

/// What was accepted and is not yet a box.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Arrival {
    /// Its number in the conversation.
    pub no: ArrivalNo,
    /// The box that it becomes.
    pub body: BoxBody,
    /// Whether the model must hear of it: it makes a round.
    #[serde(default, skip_serializing_if = "is_default")]
    pub trigger: bool,
    /// Whether the thread holds it already: the answer of a native call.
    #[serde(default, skip_serializing_if = "is_default")]
    pub submitted: bool,
    /// The call whose result it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub result_of: Option<u64>,
}

/// Arrivals that wait for the end of a round, or for a flush.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Mailbox {
    /// The number of the last arrival, whether it still waits or not.
    #[serde(default, skip_serializing_if = "is_default")]
    last: ArrivalNo,
    #[serde(default, skip_serializing_if = "VecDeque::is_empty")]
    queue: VecDeque<Arrival>,
    /// How many of them trigger.
    #[serde(skip)]
    triggers: usize,
}

impl Mailbox {
    /// The number of the last arrival.
    #[must_use]
    pub const fn last(&self) -> ArrivalNo {
        self.last
    }

    /// How many wait.
    #[must_use]
    pub fn len(&self) -> usize {
        self.queue.len()
    }

    /// Whether none waits.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// Those that wait, oldest first.
    pub fn iter(&self) -> impl Iterator<Item = &Arrival> {
        self.queue.iter()
    }

    /// Whether one that waits triggers.
    #[must_use]
    pub const fn triggers(&self) -> bool {
        self.triggers > 0
    }

    /// The oldest that waits.
    #[must_use]
    pub fn first(&self) -> Option<ArrivalNo> {
        self.queue.front().map(|first| first.no)
    }

    /// Whether an arrival still waits.
    #[must_use]
    pub fn waits(&self, no: ArrivalNo) -> bool {
        self.queue.front().is_some_and(|first| first.no <= no) && no <= self.last
    }

    /// The number that the next arrival gets, whether it waits or not.
    pub(crate) fn number(&mut self) -> ArrivalNo {
        // 2^64 arrivals are out of reach.
        self.last = ArrivalNo(self.last.0.saturating_add(1));
        self.last
    }

    pub(crate) fn push(&mut self, arrival: Arrival) {
        self.triggers += usize::from(arrival.trigger);
        self.queue.push_back(arrival);
    }

    pub(crate) fn pop(&mut self) -> Option<Arrival> {
        let arrival = self.queue.pop_front()?;
        self.triggers -= usize::from(arrival.trigger);
        Some(arrival)
    }

    /// The model has got an arrival by another way: it triggers nothing and need not be submitted.
    pub(crate) fn given(&mut self, no: ArrivalNo) {
        let first = self.queue.front().map_or(0, |first| first.no.0);
        let at =
            no.0.checked_sub(first)
                .and_then(|at| usize::try_from(at).ok());
        if let Some(arrival) = at.and_then(|at| self.queue.get_mut(at)) {
            self.triggers -= usize::from(arrival.trigger);
            arrival.trigger = false;
            arrival.submitted = true;
        }
    }

    /// Checks what was read, and counts what is not written.
    pub(crate) fn restore(&mut self) -> Result<(), String> {
        let count = u64::try_from(self.queue.len()).unwrap_or(u64::MAX);
        let first = self.last.0.checked_sub(count);
        let first = first.ok_or("more arrivals wait than there were")?;
        for (arrival, before) in self.queue.iter().zip(first..) {
            // Below the last one: it does not wrap.
            let at = before + 1;
            if arrival.no.0 != at {
                return Err(format!("arrival {} stands where {at} should", arrival.no));
            }
        }
        self.triggers = self.queue.iter().filter(|a| a.trigger).count();
        Ok(())
    }
}
