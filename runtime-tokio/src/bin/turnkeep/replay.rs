//! `turnkeep replay`: a recording, run again.

use std::{
    fs,
    io::{self, Write as _},
};

use serde_json::{Value, json};
use turnkeep_tokio::core::{
    Input,
    codec::trace::{Header, Reader, Recorded, TraceError},
};

use crate::{
    Failure, cli,
    describe::{self, date, since},
    problem::{Exit, Problem},
    term::{BAD, BOLD, DIM, GOOD, paint, thousands, visible},
};

/// How much of a side is shown around the first byte that differs.
const AROUND: usize = 160;

/// How a replay came out.
enum Found {
    Identical {
        steps: u64,
        /// Whether it was stopped before the end.
        stopped: bool,
    },
    Different(Box<Difference>),
    Damaged {
        steps: u64,
        error: TraceError,
    },
}

struct Difference {
    /// 0 is the making of the machine.
    step: u64,
    line: u64,
    when: String,
    input: Option<Input>,
    recorded: Recorded,
    replayed: Recorded,
}

pub(crate) fn run(args: &cli::Replay) -> Result<Exit, Failure> {
    let bytes = fs::read(&args.file).map_err(|error| {
        let problem = Problem::usage(format!("cannot read {}: {error}", args.file.display()));
        match args.file.is_dir() {
            true => problem.hint("name a recording; for a journal there is `turnkeep show`"),
            false => problem,
        }
    })?;
    let (found, header) = match Reader::new(&bytes) {
        Ok((reader, header)) => (replay(reader, &header, args.until)?, Some(header)),
        Err(error) => (Found::Damaged { steps: 0, error }, None),
    };
    if args.json {
        let mut out = io::stdout().lock();
        writeln!(out, "{}", as_json(&found))?;
        out.flush()?;
    } else {
        tell(&found, header.as_ref(), args)?;
    }
    Ok(match found {
        Found::Identical { .. } => Exit::Ok,
        Found::Different(_) => Exit::Failed,
        Found::Damaged { .. } => Exit::Usage,
    })
}

fn replay(reader: Reader<'_>, header: &Header, until: Option<u64>) -> Result<Found, Problem> {
    let made = header.machine();
    let (mut machine, first) =
        made.map_err(|error| Problem::usage(format!("the recording makes no machine: {error}")))?;
    let replayed = Recorded::of(&first);
    if replayed != header.effects {
        return Ok(Found::Different(Box::new(Difference {
            step: 0,
            line: 1,
            when: date(header.at),
            input: None,
            recorded: header.effects.clone(),
            replayed,
        })));
    }
    let mut steps = 0;
    for step in reader {
        if until == Some(steps) {
            return Ok(Found::Identical {
                steps,
                stopped: true,
            });
        }
        let step = match step {
            Ok(step) => step,
            Err(error) => return Ok(Found::Damaged { steps, error }),
        };
        steps += 1;
        let replayed = Recorded::of(&machine.step(step.at, step.input.clone()));
        if replayed != step.effects {
            return Ok(Found::Different(Box::new(Difference {
                step: steps,
                line: steps + 1,
                when: format!("{} s after the start", since(header.at, step.at)),
                input: Some(step.input),
                recorded: step.effects,
                replayed,
            })));
        }
    }
    Ok(Found::Identical {
        steps,
        stopped: false,
    })
}

fn tell(found: &Found, header: Option<&Header>, args: &cli::Replay) -> io::Result<()> {
    let mut out = anstream::stdout().lock();
    match found {
        Found::Identical { steps, stopped } => {
            let count = thousands(*steps);
            let rest = if *stopped {
                "; the rest was not looked at"
            } else {
                ""
            };
            writeln!(
                out,
                "{} {count} steps, every effect byte by byte{rest}",
                paint(GOOD, "identical:")
            )?;
            if let Some(header) = header {
                let made = format!(
                    "recorded {} by turnkeep {}",
                    date(header.at),
                    visible(&header.made_by)
                );
                writeln!(out, "{}", paint(DIM, made))?;
            }
        }
        Found::Different(difference) => tell_difference(&mut out, difference)?,
        Found::Damaged { steps, error } => {
            out.flush()?;
            let compared = match steps {
                0 => "nothing could be compared".to_owned(),
                1 => "the step before it is identical".to_owned(),
                n => format!("the {} steps before it are identical", thousands(*n)),
            };
            let name = args.file.display();
            let problem = match error {
                TraceError::Damaged { .. } => {
                    Problem::usage(format!("{name} is damaged: {error}")).hint(compared)
                }
                TraceError::Foreign => Problem::usage(format!("{name} is {error}"))
                    .hint("a recording is made with: turnkeep chat --record FILE"),
                _ => Problem::usage(format!("{name} cannot be compared: {error}"))
                    .hint("replay it with the turnkeep that made it"),
            };
            crate::term::tell(&problem);
        }
    }
    out.flush()
}

fn tell_difference(out: &mut impl io::Write, found: &Difference) -> io::Result<()> {
    writeln!(
        out,
        "{} at step {} (line {}, {})",
        paint(BAD, "different"),
        found.step,
        found.line,
        found.when
    )?;
    let input = match &found.input {
        Some(input) => describe::input(input),
        None => "the making of the machine".into(),
    };
    writeln!(out, "{} {input}", paint(BOLD, "input:"))?;
    let (a, b) = (&found.recorded.effects, &found.replayed.effects);
    let most = a.len().max(b.len());
    let mut same = 0;
    for at in 0..most {
        match (a.get(at), b.get(at)) {
            (Some(a), Some(b)) if a == b => same += 1,
            (a, b) => sides(out, &format!("effect {} of {most}", at + 1), a, b)?,
        }
    }
    if found.recorded.due != found.replayed.due {
        let (a, b) = (&found.recorded.due, &found.replayed.due);
        sides(out, "deadline", Some(a), Some(b))?;
    }
    if same > 0 {
        let effects = if same == 1 {
            "effect is"
        } else {
            "effects are"
        };
        writeln!(out, "{}", paint(DIM, format!("{same} {effects} the same")))?;
    }
    Ok(())
}

fn sides(
    out: &mut impl io::Write,
    name: &str,
    recorded: Option<&String>,
    replayed: Option<&String>,
) -> io::Result<()> {
    writeln!(out, "{}", paint(BOLD, format!("{name}:")))?;
    let nothing = "(nothing)".to_owned();
    let (a, b) = (recorded.unwrap_or(&nothing), replayed.unwrap_or(&nothing));
    let at = match (recorded, replayed) {
        (Some(a), Some(b)) => first_difference(a, b),
        _ => 0,
    };
    writeln!(out, "  {} {}", paint(BAD, "- recorded"), around(a, at))?;
    writeln!(out, "  {} {}", paint(GOOD, "+ replayed"), around(b, at))
}

/// The first byte that differs, at the boundary of a character.
fn first_difference(a: &str, b: &str) -> usize {
    let same = a.bytes().zip(b.bytes()).take_while(|(a, b)| a == b).count();
    (0..=same)
        .rev()
        .find(|at| a.is_char_boundary(*at))
        .unwrap_or(0)
}

fn around(text: &str, at: usize) -> String {
    let near = |at: usize| {
        (0..=at.min(text.len()))
            .rev()
            .find(|n| text.is_char_boundary(*n))
    };
    let from = near(at.saturating_sub(AROUND / 2)).unwrap_or(0);
    // A short text is shown from its beginning.
    let from = if text.len() <= AROUND { 0 } else { from };
    let to = near(from + AROUND).unwrap_or(text.len());
    let before = if from > 0 { "…" } else { "" };
    let after = if to < text.len() { "…" } else { "" };
    format!("{before}{}{after}", visible(&text[from..to]))
}

fn as_json(found: &Found) -> Value {
    match found {
        Found::Identical { steps, stopped } => {
            json!({"result": "identical", "steps": steps, "stopped": stopped})
        }
        Found::Different(difference) => json!({
            "result": "different",
            "step": difference.step,
            "line": difference.line,
            "input": difference.input.as_ref().map(describe::input_json),
            "recorded": recorded_json(&difference.recorded),
            "replayed": recorded_json(&difference.replayed),
        }),
        Found::Damaged { steps, error } => {
            let result = match error {
                TraceError::Foreign => "foreign",
                TraceError::Rules { .. } | TraceError::Version { .. } => "other_rules",
                _ => "damaged",
            };
            json!({"result": result, "steps": steps, "error": error.to_string()})
        }
    }
}

/// Effects as JSON. Their texts are kept, where they can be: byte by byte is what counts.
pub(crate) fn recorded_json(recorded: &Recorded) -> Value {
    let value = |text: &String| {
        serde_json::from_str::<Value>(text).unwrap_or_else(|_| Value::from(text.as_str()))
    };
    let effects: Vec<Value> = recorded.effects.iter().map(value).collect();
    json!({"effects": effects, "deadline": value(&recorded.due)})
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_differs_is_in_what_is_shown() {
        let a = format!("{}é{}", "x".repeat(300), "y".repeat(300));
        let b = format!("{}è{}", "x".repeat(300), "y".repeat(300));
        let at = first_difference(&a, &b);
        assert_eq!(at, 300);
        assert!(around(&a, at).contains('é') && around(&b, at).contains('è'));
        assert!(around(&a, at).starts_with('…') && around(&a, at).ends_with('…'));
        assert_eq!(around("short", 3), "short");
        assert_eq!(first_difference("ab", "abc"), 2);
        assert_eq!(around("ab", 2), "ab");
    }
}
