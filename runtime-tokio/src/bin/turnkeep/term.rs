//! What is written to the terminal, and what to a pipe.

use std::{
    fmt::{self, Write as _},
    io::{self, IsTerminal as _, Write as _},
    time::Duration,
};

use anstyle::{AnsiColor, Style};
use indicatif::{ProgressBar, ProgressStyle};

pub(crate) const BOLD: Style = Style::new().bold();
pub(crate) const DIM: Style = Style::new().dimmed();
pub(crate) const GOOD: Style = AnsiColor::Green.on_default();
pub(crate) const BAD: Style = AnsiColor::Red.on_default().bold();
pub(crate) const ALERT: Style = AnsiColor::Yellow.on_default();
pub(crate) const NAME: Style = AnsiColor::Cyan.on_default();

/// Whether what goes to stderr may be coloured.
pub(crate) fn has_colors() -> bool {
    anstream::stderr().current_choice() != anstream::ColorChoice::Never
}

/// A text in a style.
pub(crate) fn paint(style: Style, text: impl fmt::Display) -> String {
    format!("{style}{text}{style:#}")
}

/// A text that a terminal shows as it is: characters that would move the cursor, change colours or
/// turn the direction of writing are spelt out. Line feeds and tabs stay.
pub(crate) fn visible(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        let turns = matches!(c, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
        if (c.is_control() && c != '\n' && c != '\t') || turns {
            let _ = write!(out, "{}", c.escape_unicode());
        } else {
            out.push(c);
        }
    }
    out
}

/// The first line of a text, cut to so many characters.
pub(crate) fn brief(text: &str, most: usize) -> String {
    let text = text.trim();
    let line = text.lines().next().unwrap_or_default();
    let mut out: String = line.chars().take(most).collect();
    if out.len() < text.len() {
        out.push('…');
    }
    visible(&out)
}

/// Where the answers go, and where all else goes.
pub(crate) struct Term {
    /// Whether answers are shown while they are written.
    pub(crate) live: bool,
    /// Whether answers go where notes go: they are not what was asked for.
    pub(crate) aside: bool,
    /// Whether notes go to stdout too.
    all_to_stdout: bool,
    spinner: Option<ProgressBar>,
    may_spin: bool,
    /// Whether the answer's line has no end yet.
    open_line: bool,
}

impl Term {
    /// Answers to stdout, the rest to stderr.
    pub(crate) fn new() -> Self {
        Self {
            live: io::stdout().is_terminal(),
            aside: false,
            all_to_stdout: false,
            spinner: None,
            may_spin: io::stderr().is_terminal(),
            open_line: false,
        }
    }

    /// Everything to stdout.
    pub(crate) fn to_stdout() -> Self {
        let mut term = Self::new();
        term.live = true;
        term.all_to_stdout = true;
        term.may_spin = false;
        term
    }

    /// Writes a piece of an answer as it comes.
    pub(crate) fn stream(&mut self, text: &str) -> io::Result<()> {
        if text.is_empty() {
            return Ok(());
        }
        self.rest();
        let mut out = anstream::stdout().lock();
        out.write_all(visible(text).as_bytes())?;
        out.flush()?;
        self.open_line = !text.ends_with('\n');
        Ok(())
    }

    /// Writes an answer that is complete, as it is.
    pub(crate) fn answer(&mut self, text: &str) -> io::Result<()> {
        if self.aside || self.live {
            self.note(visible(text));
            return Ok(());
        }
        self.rest();
        let mut out = io::stdout().lock();
        out.write_all(text.as_bytes())?;
        if !text.ends_with('\n') {
            out.write_all(b"\n")?;
        }
        out.flush()
    }

    /// Ends the answer's line.
    pub(crate) fn end_line(&mut self) -> io::Result<()> {
        if std::mem::take(&mut self.open_line) {
            let mut out = io::stdout().lock();
            out.write_all(b"\n")?;
            out.flush()?;
        }
        Ok(())
    }

    /// Writes lines beside the answers.
    pub(crate) fn note(&mut self, text: impl fmt::Display) {
        self.rest();
        let _ = self.end_line();
        // Nobody who could be told reads it any more.
        let _ = if self.all_to_stdout {
            writeln!(anstream::stdout().lock(), "{text}")
        } else {
            writeln!(anstream::stderr().lock(), "{text}")
        };
    }

    /// Writes the beginning of a line that a person goes on with.
    pub(crate) fn prompt(&mut self, text: impl fmt::Display) {
        self.rest();
        let _ = self.end_line();
        let mut err = anstream::stderr().lock();
        let _ = write!(err, "{text}").and_then(|()| err.flush());
    }

    /// Shows that something is going on.
    pub(crate) fn working(&mut self, what: &str) {
        if !self.may_spin || self.open_line {
            return;
        }
        let what = brief(what, 120);
        if let Some(spinner) = &self.spinner {
            spinner.set_message(what);
            return;
        }
        let spinner = ProgressBar::new_spinner();
        if let Ok(style) = ProgressStyle::with_template("{spinner} {wide_msg:.dim}") {
            spinner.set_style(style.tick_chars("⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏ "));
        }
        spinner.set_message(what);
        spinner.enable_steady_tick(Duration::from_millis(120));
        self.spinner = Some(spinner);
    }

    /// Takes what [`working`](Self::working) shows away.
    pub(crate) fn rest(&mut self) {
        if let Some(spinner) = self.spinner.take() {
            spinner.finish_and_clear();
        }
    }
}

impl Drop for Term {
    fn drop(&mut self) {
        self.rest();
    }
}

/// Tells a problem on stderr.
pub(crate) fn tell(problem: &crate::problem::Problem) {
    let mut err = anstream::stderr().lock();
    // Where stderr is gone there is nobody to tell.
    let _ = writeln!(err, "{BAD}error:{BAD:#} {}", problem.what);
    for hint in &problem.hints {
        let _ = writeln!(err, "  {NAME}→{NAME:#} {hint}");
    }
}

/// A number with its thousands apart.
pub(crate) fn thousands(number: u64) -> String {
    let digits = number.to_string();
    let mut out = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at) % 3 == 0 {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_would_steer_the_terminal_is_spelt_out() {
        assert_eq!(
            visible("a\tb\n\u{1b}[2Jrm\r\u{202e}x é 😀"),
            "a\tb\n\\u{1b}[2Jrm\\u{d}\\u{202e}x é 😀"
        );
    }

    #[test]
    fn a_brief_text_says_that_it_is_cut() {
        assert_eq!(brief("  one\ntwo", 10), "one…");
        assert_eq!(brief("äöü", 3), "äöü");
        assert_eq!(brief("äöü!", 3), "äöü…");
    }

    #[test]
    fn thousands_are_apart() {
        assert_eq!(thousands(0), "0");
        assert_eq!(thousands(999), "999");
        assert_eq!(thousands(1_234_567), "1,234,567");
    }
}
