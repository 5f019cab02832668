//! Rule 7: The same inputs give the same effects: a life is played again.

use turnkeep_core::Effects;

use crate::sim::life::{Kept, Origin};

pub(in crate::sim) fn replay(origin: &Origin, first: &Effects, kept: &[Kept]) {
    let (mut machine, effects) = origin.make();
    assert_eq!(&effects, first, "7: a start gives other effects");
    for (at, step) in kept.iter().enumerate() {
        let effects = machine.step(step.at, step.input.clone());
        assert_eq!(
            effects, step.effects,
            "7: step {at} of the life gives other effects"
        );
    }
}
