//! Running programs and counting tests.

use std::{
    env,
    ffi::OsString,
    fmt,
    io::{self, BufRead, BufReader, Write},
    iter::Sum,
    path::PathBuf,
    process::{Command, Stdio},
};

use turnkeep_tests::codex;

/// What went wrong, in a sentence for the terminal.
pub(crate) type Result<T = ()> = std::result::Result<T, String>;

/// What libtest counted, summed over test binaries.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    pub(crate) passed: u64,
    pub(crate) failed: u64,
    pub(crate) ignored: u64,
}

impl Counts {
    /// Reads a line such as `test result: ok. 3 passed; 0 failed; 1 ignored; …`.
    fn parse(line: &str) -> Option<Counts> {
        let (_, list) = line.strip_prefix("test result: ")?.split_once(". ")?;
        let count = |name| {
            let mut parts = list.split("; ").filter_map(|part| part.split_once(' '));
            parts.find(|(_, what)| *what == name)?.0.parse().ok()
        };
        Some(Counts {
            passed: count("passed")?,
            failed: count("failed")?,
            ignored: count("ignored")?,
        })
    }
}

impl Counts {
    /// How many there were.
    pub(crate) fn all(self) -> u64 {
        self.passed + self.failed + self.ignored
    }
}

impl Sum for Counts {
    fn sum<I: Iterator<Item = Counts>>(counts: I) -> Counts {
        counts.fold(Counts::default(), |sum, next| Counts {
            passed: sum.passed + next.passed,
            failed: sum.failed + next.failed,
            ignored: sum.ignored + next.ignored,
        })
    }
}

impl fmt::Display for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} passed, {} failed", self.passed, self.failed)
    }
}

/// Cargo, at the top of the workspace.
pub(crate) fn cargo(args: &[&str]) -> Command {
    let cargo = env::var_os("CARGO").unwrap_or_else(|| OsString::from("cargo"));
    let mut command = Command::new(cargo);
    command.args(args).current_dir(codex::workspace_dir());
    command
}

/// The target directory. An absolute path, since the children run elsewhere.
pub(crate) fn target_dir() -> Result<PathBuf> {
    std::path::absolute(codex::target_dir())
        .map_err(|error| format!("no target directory: {error}"))
}

/// Runs a program with our own output.
pub(crate) fn run(command: &mut Command) -> Result {
    let status = command
        .status()
        .map_err(|error| cannot_start(command, &error))?;
    match status.success() {
        true => Ok(()),
        false => Err(format!("{} ended with {status}", shown(command))),
    }
}

/// Runs a program and returns all it wrote to stdout, with stderr behind it.
pub(crate) fn output(command: &mut Command) -> Result<(bool, String)> {
    let output = command
        .output()
        .map_err(|error| cannot_start(command, &error))?;
    let text = [output.stdout, output.stderr].concat();
    Ok((
        output.status.success(),
        String::from_utf8_lossy(&text).into_owned(),
    ))
}

/// Runs `cargo test …`, shows what it says and counts the tests, also where some failed.
pub(crate) fn run_tests(command: &mut Command) -> (Counts, Result) {
    run_tests_seen(command, &mut |_| true)
}

/// The same; `seen` is given every line and says whether it is shown.
pub(crate) fn run_tests_seen(
    command: &mut Command,
    seen: &mut dyn FnMut(&str) -> bool,
) -> (Counts, Result) {
    match tests_of(command, seen) {
        Ok((counts, true)) => (counts, Ok(())),
        Ok((counts, false)) if counts.failed > 0 => {
            (counts, Err(format!("{} tests failed", counts.failed)))
        }
        Ok((counts, false)) => (counts, Err(format!("{} failed", shown(command)))),
        Err(error) => (Counts::default(), Err(error)),
    }
}

fn tests_of(command: &mut Command, seen: &mut dyn FnMut(&str) -> bool) -> Result<(Counts, bool)> {
    let mut child = command
        .stdout(Stdio::piped())
        .spawn()
        .map_err(|error| cannot_start(command, &error))?;
    let stdout = child.stdout.take().expect("stdout is piped");
    let mut counts = Vec::new();
    for line in BufReader::new(stdout).split(b'\n') {
        let line = line.map_err(|error| format!("the tests' output cannot be read: {error}"))?;
        let line = String::from_utf8_lossy(&line);
        counts.extend(Counts::parse(&line));
        if seen(&line) {
            // A closed terminal is no reason to stop the tests.
            let _ = writeln!(io::stdout(), "{line}");
        }
    }
    let status = child
        .wait()
        .map_err(|error| format!("the tests cannot be waited for: {error}"))?;
    Ok((counts.into_iter().sum(), status.success()))
}

fn cannot_start(command: &Command, error: &io::Error) -> String {
    format!(
        "{} does not start: {error}",
        command.get_program().to_string_lossy()
    )
}

// Without the directories of this machine: `cargo test …`.
fn shown(command: &Command) -> String {
    let program = PathBuf::from(command.get_program());
    let name = program
        .file_name()
        .unwrap_or(program.as_os_str())
        .to_string_lossy()
        .into_owned();
    let args = command
        .get_args()
        .map(|arg| arg.to_string_lossy().into_owned());
    std::iter::once(name)
        .chain(args)
        .collect::<Vec<_>>()
        .join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_read_from_result_lines_alone() {
        let line = "test result: FAILED. 12 passed; 3 failed; 4 ignored; 0 measured; 5 filtered out; \
                    finished in 0.12s";
        let counts = Counts::parse(line).unwrap();
        assert_eq!(
            counts,
            Counts {
                passed: 12,
                failed: 3,
                ignored: 4
            }
        );
        assert_eq!(counts.to_string(), "12 passed, 3 failed");
        assert_eq!(Counts::parse("test a ... ok"), None);
        assert_eq!(Counts::parse("test result: "), None);
    }
}
