//! What a person types: messages at the prompt, and answers to questions.

use std::io;

use crate::{
    editor::{Editor, PROMPT, Written},
    history::History,
    lines::Lines,
    state,
    term::{ALERT, NAME, Term, paint, visible},
};

/// The keyboard of a terminal.
#[derive(Debug)]
pub(crate) struct Keyboard {
    pub(crate) lines: Lines,
    /// Where messages are written; as lines, where the terminal serves no better.
    editor: Option<Editor>,
    /// Whether the prompt of plain lines is on the screen.
    prompted: bool,
    /// Whether the line at the prompt was typed before it was there.
    ahead: bool,
    /// A line that came just when the prompt was to be taken away.
    early: Option<String>,
}

impl Keyboard {
    pub(crate) fn new(term: &mut Term) -> io::Result<Self> {
        Ok(Self {
            lines: Lines::new()?,
            editor: Editor::new(|| history(term))?,
            prompted: false,
            ahead: false,
            early: None,
        })
    }

    /// Shows the prompt, if it is not on the screen.
    pub(crate) fn show(&mut self, term: &mut Term) {
        term.rest();
        // Nobody reads stdout any more where it fails, and that is told soon enough.
        let _ = term.end_line();
        if let Some(editor) = &mut self.editor {
            editor.show();
        } else if !self.prompted && self.early.is_none() {
            self.ahead = self.lines.is_ahead();
            self.prompted = true;
            term.prompt(paint(NAME, PROMPT));
        }
    }

    /// The next message. May be dropped and asked again.
    pub(crate) async fn next(&mut self, term: &mut Term) -> Written {
        if let Some(editor) = &mut self.editor {
            // The editor does not notice it where the terminal is gone.
            let written = tokio::select! {
                written = editor.next() => written,
                () = self.lines.end() => {
                    editor.give_up();
                    Written::End
                }
            };
            match written {
                Written::Failed(error) => {
                    self.lines.stop().await;
                    self.editor = None;
                    let text = format!("lines cannot be edited in this terminal: {error}");
                    term.note(paint(ALERT, text));
                    self.show(term);
                }
                written => return written,
            }
        }
        if let Some(line) = self.early.take() {
            return Written::Message(line);
        }
        let line = self.lines.next().await;
        self.prompted = false;
        match line {
            Some(line) => {
                if self.ahead {
                    // The terminal showed it where it was typed: in the middle of an answer.
                    term.note(visible(&line));
                }
                Written::Message(line)
            }
            None => {
                term.note("");
                Written::End
            }
        }
    }

    /// Takes the prompt away, for something else to be shown; [`show`](Self::show) brings back what
    /// was written.
    pub(crate) async fn hide(&mut self, term: &mut Term) {
        if let Some(editor) = &mut self.editor {
            self.lines.stop().await;
            editor.hide().await;
        } else if std::mem::take(&mut self.prompted) {
            self.early = self.lines.stop().await;
            term.note("");
        }
    }
}

fn history(term: &mut Term) -> History {
    let Some(path) = state::history() else {
        return History::of_this_run();
    };
    History::of(&path).unwrap_or_else(|error| {
        term.note(paint(
            ALERT,
            format!(
                "what you write is remembered for this run only: {}: {error}",
                path.display()
            ),
        ));
        History::of_this_run()
    })
}
