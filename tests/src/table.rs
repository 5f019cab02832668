//! Every state against every event, as a table and as the graph that it draws.

use std::fmt::Write as _;

use turnkeep_core::error::{Change, InvalidTransition};

/// How a state takes an event.
pub type On<S, E> = fn(&mut S, &E) -> Result<Change, InvalidTransition>;

/// A row for each state, a line for each event: `->` where it goes, `same` where nothing changes; what is not told is an error.
///
/// # Panics
///
/// An answer does not agree with what became of the state.
#[must_use]
pub fn table<S: Clone + PartialEq + std::fmt::Debug, E>(
    states: &[(&str, S)],
    events: &[(&str, E)],
    name: fn(&S) -> &'static str,
    on: On<S, E>,
) -> String {
    let mut table = String::new();
    let mut edges: Vec<String> = Vec::new();
    for (label, state) in states {
        let _ = writeln!(table, "{label}");
        let mut refused = Vec::new();
        for (event, change) in events {
            let mut next = state.clone();
            match on(&mut next, change) {
                Ok(Change::Applied) => {
                    assert_ne!(
                        &next, state,
                        "{label} x {event} is applied and changes nothing"
                    );
                    let _ = writeln!(table, "    {event:<24} -> {}", name(&next));
                    let edge = format!("    {} -> {} [label={event:?}];", name(state), name(&next));
                    if !edges.contains(&edge) {
                        edges.push(edge);
                    }
                }
                Ok(Change::NoOp) => {
                    assert_eq!(
                        &next, state,
                        "{label} x {event} is none and changes something"
                    );
                    let _ = writeln!(table, "    {event:<24} same");
                }
                Err(error) => {
                    assert_eq!(
                        &next, state,
                        "{label} x {event} is refused and changes something"
                    );
                    assert_eq!(error.state, name(state));
                    refused.push(*event);
                }
            }
        }
        if !refused.is_empty() {
            let _ = writeln!(table, "    refused: {}", refused.join(", "));
        }
    }
    edges.sort();
    format!("{table}\ndigraph {{\n{}\n}}\n", edges.join("\n"))
}
