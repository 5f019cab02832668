//! The line in which a message is written: editing, history, several lines, paste.
//!
//! It is read by a thread, which can be told to stop at any time: what happens while a person
//! writes is shown where the line was, and the line comes back below it with all that was written.

use std::{
    borrow::Cow,
    env,
    io::{self, IsTerminal as _, Write as _},
    mem,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
        mpsc as std_mpsc,
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use reedline::{
    Color, EditCommand, Emacs, Highlighter, KeyCode, KeyModifiers, Prompt, PromptEditMode,
    PromptHistorySearch, PromptHistorySearchStatus, Reedline, ReedlineEvent, Signal, StyledText,
    default_emacs_keybindings,
};
use tokio::sync::mpsc;
use unicode_width::UnicodeWidthChar as _;

use crate::{
    history::{History, SharedHistory},
    term,
};

/// What stands before the message.
pub(crate) const PROMPT: &str = "› ";

/// What stands before its further lines.
const MORE: &str = "  ";

/// How long it takes at most until what happens is noticed. The library knows no other way.
const PAUSE: Duration = Duration::from_millis(50);

/// How long the thread may take to give the terminal back.
const PATIENCE: Duration = Duration::from_secs(1);

/// What a person did in the line.
#[derive(Debug)]
pub(crate) enum Written {
    /// A message, complete.
    Message(String),
    /// Ctrl-C in an empty line.
    Struck,
    /// Ctrl-D in an empty line, or the terminal is gone.
    End,
    /// The terminal cannot be used in this way.
    Failed(io::Error),
}

/// What the thread tells.
#[derive(Debug)]
enum Told {
    Written(Written),
    /// It was stopped; the line is gone from the screen.
    Stopped,
}

/// The line in which a message is written.
#[derive(Debug)]
pub(crate) struct Editor {
    ask: Option<std_mpsc::Sender<()>>,
    told: mpsc::UnboundedReceiver<Told>,
    stop: Arc<AtomicBool>,
    /// Whether the line is on the screen.
    open: bool,
    /// What was written just when the line was to be taken away.
    early: Option<Written>,
    thread: Option<JoinHandle<()>>,
}

impl Editor {
    /// An editor, where the terminal can serve one: all three ends are needed, as the answer of the
    /// terminal to where its cursor is would go astray.
    pub(crate) fn new(history: impl FnOnce() -> History) -> io::Result<Option<Self>> {
        let ends =
            io::stdin().is_terminal() && io::stdout().is_terminal() && io::stderr().is_terminal();
        let simple = env::var_os("TERM").is_none_or(|term| term.is_empty() || term == "dumb");
        if !ends || simple {
            return Ok(None);
        }
        let (ask, asked) = std_mpsc::channel();
        let (out, told) = mpsc::unbounded_channel();
        let stop = Arc::new(AtomicBool::new(false));
        let mut line = Line {
            history: SharedHistory::new(history()),
            stop: Arc::clone(&stop),
            draft: String::new(),
            at: 0,
        };
        let thread = thread::Builder::new()
            .name("turnkeep-editor".into())
            .spawn(move || {
                while asked.recv().is_ok() {
                    if out.send(line.write()).is_err() {
                        return;
                    }
                }
            })?;
        Ok(Some(Self {
            ask: Some(ask),
            told,
            stop,
            open: false,
            early: None,
            thread: Some(thread),
        }))
    }

    /// Shows the line, if it is not on the screen.
    pub(crate) fn show(&mut self) {
        if self.open || self.early.is_some() {
            return;
        }
        self.stop.store(false, Ordering::Relaxed);
        self.open = self.ask.as_ref().is_some_and(|ask| ask.send(()).is_ok());
    }

    /// What is written. May be dropped and asked again.
    pub(crate) async fn next(&mut self) -> Written {
        loop {
            if let Some(early) = self.early.take() {
                return early;
            }
            self.show();
            match self.told.recv().await {
                Some(Told::Written(written)) => {
                    self.open = false;
                    return written;
                }
                Some(Told::Stopped) => self.open = false,
                None => return Written::End,
            }
        }
    }

    /// Takes the line from the screen, for something else to be shown. What was written in it is
    /// kept.
    pub(crate) async fn hide(&mut self) {
        if !self.open {
            return;
        }
        self.stop.store(true, Ordering::Relaxed);
        let Ok(told) = tokio::time::timeout(PATIENCE, self.told.recv()).await else {
            // It hangs in the middle of an escape sequence, until the next key.
            return;
        };
        self.open = false;
        if let Some(Told::Written(written)) = told {
            self.early = Some(written);
        }
    }

    /// Expects nothing of the thread any more: where the terminal is gone it runs in a circle.
    /// <https://github.com/crossterm-rs/crossterm/issues/793>
    pub(crate) fn give_up(&mut self) {
        self.open = false;
        self.ask = None;
        self.thread = None;
    }
}

impl Drop for Editor {
    fn drop(&mut self) {
        // The thread gives the terminal back as it was.
        self.stop.store(true, Ordering::Relaxed);
        self.ask = None;
        let late = Instant::now() + PATIENCE;
        while self.thread.as_ref().is_some_and(|t| !t.is_finished()) && Instant::now() < late {
            thread::sleep(PAUSE / 10);
        }
    }
}

/// What Ctrl-C and Ctrl-Z are to the library.
const STRIKE: &str = "strike";
const SUSPEND: &str = "suspend";

/// The thread's part.
struct Line {
    history: SharedHistory,
    stop: Arc<AtomicBool>,
    /// What was written when the line was taken away, and where the cursor stood in it.
    draft: String,
    at: usize,
}

impl Line {
    fn write(&mut self) -> Told {
        loop {
            // A new one each time: one that goes on would paint over what was shown meanwhile.
            let mut editor = self.editor();
            let signal = match editor.read_line(&Arrow) {
                Ok(signal) => signal,
                Err(error) => return Told::Written(Written::Failed(error)),
            };
            match signal {
                Signal::Success(text) => return Told::Written(Written::Message(text)),
                Signal::ExternalBreak(_) => {
                    self.keep(&editor);
                    return Told::Stopped;
                }
                Signal::HostCommand(command) if command == SUSPEND => {
                    self.keep(&editor);
                    suspend();
                }
                // Something was written: it is thrown away, and that is all.
                Signal::HostCommand(_) if !editor.current_buffer_contents().is_empty() => {
                    self.keep(&editor);
                    self.draft.clear();
                }
                Signal::HostCommand(_) | Signal::CtrlC => {
                    self.keep(&editor);
                    return Told::Written(Written::Struck);
                }
                _ => return Told::Written(Written::End),
            }
        }
    }

    fn editor(&mut self) -> Reedline {
        let mut keys = default_emacs_keybindings();
        for (key, command) in [('c', STRIKE), ('z', SUSPEND)] {
            let command = ReedlineEvent::ExecuteHostCommand(command.into());
            keys.add_binding(KeyModifiers::CONTROL, KeyCode::Char(key), command);
        }
        let mut editor = Reedline::create()
            .with_history(Box::new(self.history.clone()))
            // As in shells: what begins with a space is not remembered.
            .with_history_exclusion_prefix(Some(" ".into()))
            .with_edit_mode(Box::new(Emacs::new(keys)))
            .with_highlighter(Box::new(Plain))
            .with_ansi_colors(term::has_colors())
            .use_bracketed_paste(true)
            .with_break_signal(Arc::clone(&self.stop))
            .with_poll_interval(PAUSE);
        let draft = mem::take(&mut self.draft);
        if !draft.is_empty() {
            let position = self.at;
            editor.run_edit_commands(&[
                EditCommand::InsertString(draft),
                EditCommand::MoveToPosition {
                    position,
                    select: false,
                },
            ]);
        }
        editor
    }

    /// Keeps what was written and takes it from the screen.
    fn keep(&mut self, editor: &Reedline) {
        self.draft = editor.current_buffer_contents().to_owned();
        self.at = editor.current_insertion_point();
        let above = rows(&self.draft[..self.at], columns());
        let mut err = io::stderr().lock();
        let _ = err.write_all(b"\r");
        if above > 0 {
            let _ = write!(err, "\x1b[{above}A");
        }
        let _ = err.write_all(b"\x1b[J").and_then(|()| err.flush());
    }
}

/// Stops the process group, as the terminal would have done it.
fn suspend() {
    let _ = rustix::process::kill_current_process_group(rustix::process::Signal::TSTP);
    // The signal may reach another thread first: nothing is to be painted until it has.
    thread::sleep(2 * PAUSE);
}

fn columns() -> usize {
    let size = rustix::termios::tcgetwinsize(io::stderr());
    match size {
        Ok(size) if size.ws_col > 0 => size.ws_col.into(),
        _ => 80,
    }
}

/// How many rows the cursor is below the first one of a text that begins behind the prompt.
fn rows(text: &str, columns: usize) -> usize {
    let mut row = 0;
    let mut column = PROMPT.chars().count();
    for c in text.chars() {
        if c == '\n' {
            row += 1;
            column = MORE.len();
            continue;
        }
        let width = c.width().unwrap_or(0);
        if column + width > columns {
            row += 1;
            column = 0;
        }
        column += width;
    }
    // A full row has the cursor in the next one.
    row + usize::from(column >= columns)
}

/// The prompt.
struct Arrow;

impl Prompt for Arrow {
    fn render_prompt_left(&self) -> Cow<'_, str> {
        Cow::Borrowed("")
    }

    fn render_prompt_right(&self) -> Cow<'_, str> {
        Cow::Borrowed("")
    }

    fn render_prompt_indicator(&self, _mode: PromptEditMode) -> Cow<'_, str> {
        Cow::Borrowed(PROMPT)
    }

    fn render_prompt_multiline_indicator(&self) -> Cow<'_, str> {
        Cow::Borrowed(MORE)
    }

    fn render_prompt_history_search_indicator(&self, search: PromptHistorySearch) -> Cow<'_, str> {
        let failing = match search.status {
            PromptHistorySearchStatus::Passing => "",
            PromptHistorySearchStatus::Failing => "nothing like ",
        };
        Cow::Owned(format!("search: {failing}{} {PROMPT}", search.term))
    }

    fn get_indicator_color(&self) -> Color {
        Color::Cyan
    }
}

/// What is written has the terminal's own colours: the library's white is nothing on white.
struct Plain;

impl Highlighter for Plain {
    fn highlight(&self, line: &str, _cursor: usize) -> StyledText {
        let mut text = StyledText::new();
        text.push((Default::default(), line.to_owned()));
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_counted_as_the_terminal_breaks_them() {
        assert_eq!(rows("", 10), 0);
        assert_eq!(rows("1234567", 10), 0);
        assert_eq!(rows("12345678", 10), 1);
        assert_eq!(rows("12345678901234567", 10), 1);
        assert_eq!(rows("a\nb\n", 10), 2);
        // Two columns each: the fifth does not fit any more.
        assert_eq!(rows("語語語語", 10), 1);
        assert_eq!(rows("語語語語語", 10), 1);
    }
}
