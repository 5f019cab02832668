//! What the crash suite and the program that it kills have in common: the workload, and the program's own durable log.
//!
//! The workload has no end of its own. Some conversations each send one message after the other, of five kinds, until a file says
//! that it is enough; then each says a last one. Every text is its message's own, so that it can be counted wherever it went.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Write as _},
    path::{Path, PathBuf},
    sync::{Mutex, PoisonError},
};

use serde::{Deserialize, Serialize};

/// The tool whose side effect is a line with the call's key in [`Workload::tool_log`].
pub const TOOL: &str = "note";

/// The tool whose side effect is such a line too, and whose result comes later.
pub const LATER: &str = "note_later";

/// The file in the threads' working directory that approved commands append their key to.
pub const COMMAND_LOG: &str = "commands.log";

/// A variable of the environment of the server and of all that it starts.
pub const MARK: &str = "TURNKEEP_CRASH_MARK";

/// What the program under test is told.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Workload {
    /// Decides the kinds of messages.
    pub seed: u64,
    /// How many conversations there are.
    pub conversations: u32,
    /// Where a server runs that the program is to reach; it starts none.
    pub url: Option<String>,
    /// The launcher of codex.
    pub launcher: PathBuf,
    /// `CODEX_HOME`.
    pub codex_home: PathBuf,
    /// `HOME` of the server.
    pub user_home: PathBuf,
    /// The working directory of the threads.
    pub cwd: PathBuf,
    /// The value of [`MARK`].
    pub mark: String,
    /// The journal's directory.
    pub journal: PathBuf,
    /// Where each life is recorded.
    pub traces: PathBuf,
    /// The program's own log.
    pub log: PathBuf,
    /// The side effects of the tool.
    pub tool_log: PathBuf,
    /// Once this file is there, no new messages but the last ones are sent.
    pub enough: PathBuf,
}

/// What a message asks of the model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// A text.
    Plain,
    /// A call of [`TOOL`], then a text.
    Tool,
    /// A call of [`LATER`], then a text, without the result or with it.
    Later,
    /// A command that must be approved, then a text.
    Ask,
    /// A long text, so that another message can be steered into it.
    Steer,
}

impl Kind {
    /// The word for it in a message.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Plain => "plain",
            Self::Tool => "tool",
            Self::Later => "later",
            Self::Ask => "ask",
            Self::Steer => "steer",
        }
    }

    fn of(name: &str) -> Option<Self> {
        let kinds = [Self::Plain, Self::Tool, Self::Later, Self::Ask, Self::Steer];
        kinds.into_iter().find(|kind| kind.name() == name)
    }
}

/// The key of a conversation's `n`-th message.
#[must_use]
pub fn key(conversation: u32, n: u32) -> String {
    format!("c{conversation}-{n}")
}

/// The key of a conversation's last message.
#[must_use]
pub fn last_key(conversation: u32) -> String {
    format!("c{conversation}-last")
}

/// The key of the message that is steered into the turn of another one.
#[must_use]
pub fn steered_key(key: &str) -> String {
    format!("{key}-s")
}

/// The conversation that a key belongs to.
#[must_use]
pub fn conversation_of(key: &str) -> &str {
    key.split('-').next().unwrap_or(key)
}

/// The text of a message.
#[must_use]
pub fn text(key: &str, kind: Kind) -> String {
    format!("say {key} {}", kind.name())
}

/// The newest of our messages in texts that hold several, one a line, and whether a result was told after it.
pub fn newest<'a>(texts: impl IntoIterator<Item = &'a str>) -> Option<(&'a str, Kind, bool)> {
    let mut newest = None;
    for line in texts.into_iter().flat_map(str::lines) {
        match (parse(line), &mut newest) {
            (Some((key, kind)), _) => newest = Some((key, kind, false)),
            (None, Some((_, _, told))) => *told |= line.starts_with("result of call "),
            (None, None) => {}
        }
    }
    newest
}

/// Reads the text of a message.
#[must_use]
pub fn parse(text: &str) -> Option<(&str, Kind)> {
    let mut words = text.split(' ');
    match (words.next(), words.next(), words.next(), words.next()) {
        (Some("say"), Some(key), Some(kind), None) => Some((key, Kind::of(kind)?)),
        _ => None,
    }
}

/// The kind of a message, which only the seed and its key decide.
#[must_use]
pub fn kind(seed: u64, key: &str) -> Kind {
    if key.ends_with("-last") || key.ends_with("-s") {
        return Kind::Plain;
    }
    let hash = key
        .bytes()
        .fold(seed, |hash, byte| Random(hash ^ u64::from(byte)).next());
    match hash % 10 {
        0 => Kind::Plain,
        1 | 2 => Kind::Tool,
        3..=5 => Kind::Later,
        6 | 7 => Kind::Ask,
        _ => Kind::Steer,
    }
}

/// Chance from a seed (splitmix64).
#[derive(Clone, Copy, Debug)]
pub struct Random(pub u64);

impl Random {
    /// The next number.
    #[expect(clippy::should_implement_trait, reason = "it has no end")]
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `end`.
    pub fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }
}

/// A line of the program's own log, which is durable before the program goes on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "line", rename_all = "snake_case", deny_unknown_fields)]
pub enum Line {
    /// A life began.
    Life {
        /// The process.
        pid: u32,
        /// What the client says it found, in its own words.
        found: String,
    },
    /// A message is about to be sent, under this key.
    Said {
        /// The key.
        key: String,
    },
    /// It was accepted.
    Accepted {
        /// The key.
        key: String,
        /// Its id.
        message: String,
    },
    /// A message is about to be steered into the turn of another one.
    Steering {
        /// Its key.
        key: String,
    },
    /// What became of that: `taken`, `queued`, or the error.
    Steered {
        /// Its key.
        key: String,
        /// What became of it.
        how: String,
    },
    /// An end was told.
    End {
        /// The key, where it is known.
        key: Option<String>,
        /// The message's id.
        message: String,
        /// The word for the outcome.
        outcome: String,
        /// The text.
        text: Option<String>,
        /// Where it is known from.
        source: String,
        /// The outcome in full.
        detail: String,
    },
    /// Something that must not be.
    Wrong {
        /// What.
        what: String,
    },
    /// The last messages have ended and the client has shut down in order.
    Done,
}

/// A log whose lines are durable when [`write`](Self::write) returns.
#[derive(Debug)]
pub struct Log(Mutex<File>);

impl Log {
    /// Opens a log for appending.
    ///
    /// # Errors
    ///
    /// The system refuses.
    pub fn open(path: &Path) -> io::Result<Self> {
        // A line that a kill cut off must not swallow the next one.
        let whole = read_whole(path)?.len() as u64;
        let file = OpenOptions::new().create(true).append(true).open(path)?;
        file.set_len(whole)?;
        Ok(Self(Mutex::new(file)))
    }

    /// Appends a line.
    ///
    /// # Errors
    ///
    /// The system refuses.
    pub fn write(&self, line: &Line) -> io::Result<()> {
        let line = serde_json::to_string(line).map_err(io::Error::other)?;
        self.write_text(&line)
    }

    /// Appends a line of plain text.
    ///
    /// # Errors
    ///
    /// The system refuses.
    pub fn write_text(&self, line: &str) -> io::Result<()> {
        let mut file = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        file.write_all(format!("{line}\n").as_bytes())?;
        file.sync_data()
    }
}

/// Reads a log. A line that was cut off is left out.
///
/// # Errors
///
/// The file cannot be read, or has a line of another kind.
pub fn read(path: &Path) -> io::Result<Vec<Line>> {
    let text = read_whole(path)?;
    let lines = text.lines().map(serde_json::from_str);
    lines.collect::<Result<_, _>>().map_err(io::Error::other)
}

/// The whole lines of a file, nothing where there is none.
///
/// # Errors
///
/// It cannot be read.
pub fn read_whole(path: &Path) -> io::Result<String> {
    let mut text = match fs::read_to_string(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => String::new(),
        read => read?,
    };
    text.truncate(text.rfind('\n').map_or(0, |end| end + 1));
    Ok(text)
}
