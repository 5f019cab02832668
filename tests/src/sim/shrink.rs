//! What a failure needs: what it does without is switched off.

use super::{
    plan::{Fault, Plan},
    world::{Failure, run},
};

/// Switches faults off, one by one, while the run still fails; then makes it smaller.
#[must_use]
pub fn shrink(failure: &Failure) -> Failure {
    let mut best = failure.clone();
    let attempt = |best: &mut Failure, change: &dyn Fn(&mut Plan)| {
        let mut plan = best.plan.clone();
        change(&mut plan);
        if plan == best.plan {
            return;
        }
        if let Err(smaller) = run(best.seed, &plan) {
            if smaller.kind() == best.kind() {
                *best = smaller;
            }
        }
    };
    for fault in Fault::ALL {
        attempt(&mut best, &|plan| plan.set(*fault, 0));
    }
    for conversations in [1, 2] {
        attempt(&mut best, &|plan| {
            plan.conversations = plan.conversations.min(conversations);
        });
    }
    for messages in [1, 2, 3, 5] {
        attempt(&mut best, &|plan| {
            plan.messages = plan.messages.min(messages)
        });
    }
    for blows in [1, 2, 3, 5] {
        attempt(&mut best, &|plan| plan.blows = plan.blows.min(blows));
    }
    best
}
