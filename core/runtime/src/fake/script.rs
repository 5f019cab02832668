//! Script text to steps.

use serde_json::Value;

/// A parsed script; see the [module documentation](super) for the language.
#[derive(Clone, Debug)]
pub struct Script {
    pub(super) lines: Vec<String>,
    pub(super) steps: Vec<Located>,
    ignore_term: bool,
}

/// A step and the number of its line, from 1.
#[derive(Clone, Debug)]
pub(super) struct Located {
    pub(super) line: usize,
    pub(super) step: Step,
}

#[derive(Clone, Debug)]
pub(super) enum Step {
    Expect(Vec<Value>),
    May(Rule),
    Send(String),
    Raw(String),
    Sleep(u64),
    Exit(i32),
    Die,
    CloseStdout,
    Stderr(String),
    StderrFlood(usize),
    Hang,
    Eof,
    IgnoreEof,
    Grandchild,
    Big {
        method: String,
        bytes: usize,
    },
    /// `end` is the index of the matching [`Step::End`].
    Repeat {
        times: u64,
        end: usize,
    },
    End,
    Chunks(Chunks),
    Auto(Vec<Auto>),
    Strict,
    MustFinish,
}

/// A frame that may come.
#[derive(Clone, Debug)]
pub(super) struct Rule {
    pub(super) pattern: Value,
    pub(super) replies: Vec<String>,
    pub(super) often: bool,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Chunks {
    Off,
    Every(usize),
    Random(u64),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Auto {
    Threads,
    Unsubscribe,
    History,
    Names,
    Models,
}

const NEXT_LIFE: &str = "X next life";

/// A line that is no step.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("script line {line}: {message}")]
pub struct ScriptError {
    /// From 1.
    pub line: usize,
    /// What is wrong with it.
    pub message: String,
}

impl Script {
    /// Reads a script, or the first life of one that has several.
    ///
    /// # Errors
    ///
    /// The first line that is no step.
    pub fn parse(text: &str) -> Result<Self, ScriptError> {
        Self::parse_life(text, 0)
    }

    /// How many lives a script has: one more than its `X next life` lines.
    #[must_use]
    pub fn lives(text: &str) -> usize {
        1 + text
            .split('\n')
            .filter(|line| line.trim() == NEXT_LIFE)
            .count()
    }

    /// Reads one life of a script, counted from 0. After the last one the last one is lived again.
    ///
    /// # Errors
    ///
    /// The first line that is no step.
    pub fn parse_life(text: &str, life: usize) -> Result<Self, ScriptError> {
        let life = life.min(Self::lives(text) - 1);
        let mut script = Self {
            lines: Vec::new(),
            steps: Vec::new(),
            ignore_term: false,
        };
        let mut open = Vec::new();
        // Not `lines()`: a carriage return may belong to what is written.
        let mut reading = 0;
        for (index, line) in text.split('\n').enumerate() {
            let ends = line.trim() == NEXT_LIFE;
            // The lines of other lives are kept empty, so that line numbers are those of the file.
            let line = if reading == life && !ends { line } else { "" };
            reading += usize::from(ends);
            script.lines.push(line.to_owned());
            script
                .read_line(line, index + 1, &mut open)
                .map_err(|message| ScriptError {
                    line: index + 1,
                    message,
                })?;
        }
        match open.pop() {
            Some(start) => Err(ScriptError {
                line: script.steps[start].line,
                message: "repeat without end".to_owned(),
            }),
            None => Ok(script),
        }
    }

    /// Whether the script asks that the process ignore SIGTERM, which only whoever starts it can arrange.
    #[must_use]
    pub fn ignores_term(&self) -> bool {
        self.ignore_term
    }

    /// The lines after `line`, numbered from 1.
    pub(super) fn after(&self, line: usize) -> String {
        self.lines.get(line..).unwrap_or_default().join("\n")
    }

    fn read_line(
        &mut self,
        line: &str,
        number: usize,
        open: &mut Vec<usize>,
    ) -> Result<(), String> {
        let start = line.trim_start();
        if start.trim_end().is_empty() || start.starts_with('#') {
            return Ok(());
        }
        let (word, rest) = start.split_once(' ').unwrap_or((start, ""));
        let step = match word {
            "C" => Step::Expect(vec![pattern(rest)?]),
            "C&" => {
                let wanted = pattern(rest)?;
                match self.steps.last_mut().map(|last| &mut last.step) {
                    Some(Step::Expect(group)) => group.push(wanted),
                    _ => return Err("`C&` does not follow a `C`".to_owned()),
                }
                return Ok(());
            }
            "C?" => Step::May(Rule {
                pattern: pattern(rest)?,
                replies: Vec::new(),
                often: false,
            }),
            "C*" => Step::May(Rule {
                pattern: pattern(rest)?,
                replies: Vec::new(),
                often: true,
            }),
            "S" => Step::Send(frame(rest)?),
            "S?" => {
                let reply = frame(rest)?;
                match self.steps.last_mut().map(|last| &mut last.step) {
                    Some(Step::May(rule)) => rule.replies.push(reply),
                    _ => return Err("`S?` does not follow a `C?` or `C*`".to_owned()),
                }
                return Ok(());
            }
            "S<" => Step::Raw(rest.to_owned()),
            "X" => match self.directive(rest.trim(), open)? {
                Some(step) => step,
                None => return Ok(()),
            },
            _ => return Err(format!("`{word}` is none of C C& C? C* S S? S< X")),
        };
        self.steps.push(Located { line: number, step });
        Ok(())
    }

    fn directive(&mut self, text: &str, open: &mut Vec<usize>) -> Result<Option<Step>, String> {
        let (word, rest) = text.split_once(' ').unwrap_or((text, ""));
        let rest = rest.trim_start();
        Ok(Some(match (word, rest) {
            ("sleep", _) => Step::Sleep(number(rest)?),
            ("exit", _) => Step::Exit(number(rest)?),
            ("die", "") => Step::Die,
            ("close", "stdout") if open.is_empty() => Step::CloseStdout,
            ("close", "stdout") => return Err("not inside a repeat".to_owned()),
            ("stderr", _) => Step::Stderr(rest.to_owned()),
            ("stderr-flood", _) => Step::StderrFlood(number(rest)?),
            ("hang", "") => Step::Hang,
            ("eof", "") => Step::Eof,
            ("ignore-eof", "") => Step::IgnoreEof,
            ("ignore-term", "") => {
                self.ignore_term = true;
                return Ok(None);
            }
            ("grandchild", "") => Step::Grandchild,
            ("big", _) => {
                let (method, bytes) = rest.split_once(' ').ok_or("big METHOD BYTES")?;
                Step::Big {
                    method: method.to_owned(),
                    bytes: number(bytes.trim())?,
                }
            }
            ("repeat", _) => {
                open.push(self.steps.len());
                Step::Repeat {
                    times: number(rest)?,
                    end: 0,
                }
            }
            ("end", "") => {
                let (start, here) = (open.pop().ok_or("end without repeat")?, self.steps.len());
                if let Step::Repeat { end, .. } = &mut self.steps[start].step {
                    *end = here;
                }
                Step::End
            }
            ("chunks", "off") => Step::Chunks(Chunks::Off),
            ("chunks", _) => match number(rest)? {
                0 => return Err("chunks of 0 bytes".to_owned()),
                bytes => Step::Chunks(Chunks::Every(bytes)),
            },
            ("random-chunks", _) => Step::Chunks(Chunks::Random(number(rest)?)),
            ("auto", _) => Step::Auto(autos(rest)?),
            ("strict", "") => Step::Strict,
            ("must-finish", "") => Step::MustFinish,
            _ => return Err(format!("unknown directive `{text}`")),
        }))
    }
}

fn autos(text: &str) -> Result<Vec<Auto>, String> {
    let mut all = Vec::new();
    for word in text.split_whitespace() {
        match word {
            "threads" => all.push(Auto::Threads),
            "unsubscribe" => all.push(Auto::Unsubscribe),
            "history" => all.push(Auto::History),
            "names" => all.push(Auto::Names),
            "models" => all.push(Auto::Models),
            "all" => all.extend([
                Auto::Threads,
                Auto::Unsubscribe,
                Auto::History,
                Auto::Names,
                Auto::Models,
            ]),
            _ => return Err(format!("nothing called `{word}` is automatic")),
        }
    }
    if all.is_empty() {
        Err("auto WHAT".to_owned())
    } else {
        Ok(all)
    }
}

fn number<T: std::str::FromStr>(text: &str) -> Result<T, String> {
    text.parse()
        .map_err(|_| format!("`{text}` is not a number that fits"))
}

fn pattern(text: &str) -> Result<Value, String> {
    let value: Value =
        serde_json::from_str(text.trim()).map_err(|error| format!("not JSON: {error}"))?;
    if value.is_object() {
        Ok(value)
    } else {
        Err("a frame is an object".to_owned())
    }
}

fn frame(text: &str) -> Result<String, String> {
    pattern(text).map(|_| text.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fault(text: &str) -> (usize, String) {
        let error = Script::parse(text).unwrap_err();
        (error.line, error.message)
    }

    #[test]
    fn faults_name_their_line() {
        assert_eq!(fault("# a\n\nC {").0, 3);
        assert_eq!(fault("S 1"), (1, "a frame is an object".to_owned()));
        assert_eq!(
            fault("X sleep 1\nC& {}"),
            (2, "`C&` does not follow a `C`".to_owned())
        );
        assert_eq!(fault("S? {}").0, 1);
        assert_eq!(
            fault("X repeat 2\nS {}"),
            (1, "repeat without end".to_owned())
        );
        assert_eq!(fault("X end").0, 1);
        assert_eq!(fault("X no frame for 60 s").0, 1);
        assert_eq!(fault("X auto everything").0, 1);
        assert_eq!(fault("hello").0, 1);
    }

    #[test]
    fn lives_are_read_one_at_a_time() {
        let text = "S {\"a\":1}\nX die\nX next life\nS {\"b\":1}\nX hang";
        assert_eq!(Script::lives(text), 2);
        let lines = |life| {
            Script::parse_life(text, life)
                .unwrap()
                .steps
                .iter()
                .map(|step| step.line)
                .collect::<Vec<_>>()
        };
        assert_eq!(lines(0), [1, 2]);
        assert_eq!(lines(1), [4, 5]);
        assert_eq!(lines(7), [4, 5]);
    }

    #[test]
    fn term_is_for_whoever_starts_the_process() {
        assert!(Script::parse("X ignore-term").unwrap().ignores_term());
        assert!(!Script::parse("X hang").unwrap().ignores_term());
    }
}
