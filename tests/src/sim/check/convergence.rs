//! Rule 9: Once all is healed everything comes to rest: nothing of the durable state waits for anything.

use serde_json::Value;
use turnkeep_core::{Durable, compaction::Compaction};

/// Whether no message, call, question or request waits for its end.
pub(in crate::sim) fn is_at_rest(durable: &Durable) -> bool {
    durable.prompts().next().is_none() && unsettled(durable).is_empty()
}

/// What waits, in words.
pub(in crate::sim) fn unsettled(durable: &Durable) -> String {
    let record = serde_json::to_value(durable.checkpoint()).expect("a checkpoint can be written");
    let state = &record["checkpoint"];
    let mut out = Vec::new();
    for (id, known) in durable.numbered() {
        if !known.round.is_idle() {
            out.push(format!("the round of {id}: {:?}", known.round));
        } else if known.is_triggered() {
            out.push(format!("{id} is triggered"));
        }
        if known.compaction != Compaction::None {
            out.push(format!("{id} is compacted: {:?}", known.compaction));
        }
    }
    for part in ["prompts", "questions", "requests", "cleanups"] {
        if let Some(list) = state[part].as_array().filter(|list| !list.is_empty()) {
            out.push(format!("{part}: {}", Value::Array(list.clone())));
        }
    }
    out.join(", ")
}
