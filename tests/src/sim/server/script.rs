//! What the model does in a turn, drawn before it begins.

use std::collections::VecDeque;

use super::Odds;
use crate::sim::rng::Rng;

/// One thing that happens in a turn.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// The model is asked: what was steered meanwhile is recorded now.
    Model,
    /// A message of the agent begins, with its phase.
    Say(Option<&'static str>),
    /// A piece of it.
    Delta(String),
    /// It is complete.
    Said,
    /// A piece of reasoning.
    Reason(String),
    /// The model calls a tool.
    Call {
        /// Its name.
        tool: String,
        /// The arguments, a JSON object.
        arguments: String,
    },
    /// The model calls several tools at once: names and arguments.
    Calls(Vec<(String, String)>),
    /// The server asks whether a command may run.
    Approve,
    /// The server asks a person.
    AskUser,
    /// The history is being made shorter.
    Compacting,
    /// It is shorter.
    Compacted,
    /// What was used is told.
    Usage,
    /// The server tries again.
    Retry,
    /// Nothing for so many milliseconds.
    Wait(u64),
    /// Nothing any more, until the world heals.
    Hang,
    /// The model fails.
    Fail,
    /// The turn is complete.
    Finish,
    /// The turn is complete, and nobody is told.
    FinishUntold,
}

/// A message of the agent in so many pieces.
pub fn say(text: &str, phase: Option<&'static str>, pieces: usize) -> Vec<Step> {
    let mut steps = vec![Step::Say(phase)];
    let size = text.len().div_ceil(pieces.max(1)).max(1);
    let mut rest = text;
    while !rest.is_empty() {
        let cut = size.min(rest.len());
        steps.push(Step::Delta(rest[..cut].to_owned()));
        rest = &rest[cut..];
    }
    steps.push(Step::Said);
    steps.push(Step::Usage);
    steps
}

/// Draws what a tool is called with: nearly always as it wants it, by the tool's name.
fn draw_call(rng: &mut Rng, tool: String, key: &str) -> (String, String) {
    let plain = format!(r#"{{"key":"{key}"}}"#);
    if rng.one_in(6) {
        let wrong = [
            "[1]",
            "{}",
            r#"{"message":""}"#,
            r#"{"name":7,"arguments":{}}"#,
            r#"{"message":3}"#,
        ];
        return match rng.below(4) {
            0 => ("nosuch".to_owned(), plain),
            _ => (tool, (*rng.pick(&wrong)).to_owned()),
        };
    }
    let arguments = match tool.as_str() {
        "tell" => format!(r#"{{"message":"<w{key}> is told"}}"#),
        "route" => format!(r#"{{"name":"inner","arguments":{plain}}}"#),
        _ => plain,
    };
    (tool, arguments)
}

/// Draws a turn.
pub(super) fn draw(
    rng: &mut Rng,
    odds: &Odds,
    tools: &[String],
    approvals: bool,
    serial: u64,
) -> VecDeque<Step> {
    let mut steps = vec![Step::Model];
    for part in 0..rng.below(4) {
        match rng.below(12) {
            0..=3 if !tools.is_empty() => {
                let calls = (0..rng.between(1, 3)).map(|number| {
                    let tool = rng.pick(tools).clone();
                    draw_call(rng, tool, &format!("{serial}.{part}.{number}"))
                });
                let calls: Vec<_> = calls.collect();
                if rng.one_in(2) {
                    steps.push(Step::Calls(calls));
                } else {
                    let calls = calls.into_iter();
                    steps.extend(calls.map(|(tool, arguments)| Step::Call { tool, arguments }));
                }
                steps.push(Step::Usage);
            }
            4 | 5 if approvals => steps.push(Step::Approve),
            6 if approvals => steps.push(Step::AskUser),
            7 => steps.push(Step::Reason(format!("because {serial}"))),
            8 => steps.push(Step::Retry),
            9 => steps.push(Step::Wait(rng.between(10, 3_000))),
            _ => steps.extend(say(
                &format!("<w{serial}.{part}> on it"),
                Some("commentary"),
                2,
            )),
        }
        steps.push(Step::Model);
    }
    if rng.ppm(odds.hang) {
        steps.push(Step::Hang);
    }
    let phase = if rng.one_in(2) {
        Some("final_answer")
    } else {
        None
    };
    let pieces = usize::try_from(rng.between(1, 5)).unwrap_or(1);
    if !rng.one_in(20) {
        steps.extend(say(&format!("<w{serial}> is the answer"), phase, pieces));
    }
    steps.push(match rng.below(16) {
        0 => Step::Fail,
        _ if rng.ppm(odds.untold_end) => Step::FinishUntold,
        _ => Step::Finish,
    });
    steps.into()
}
