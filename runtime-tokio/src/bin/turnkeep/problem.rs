//! What went wrong, told so that a person can act on it.

use std::fmt;

use turnkeep_tokio::{
    CommandError, OpenError, OpenJournalError, Outcome, RequestError, SendError, StartError,
    TurnEnd, WebSocketConfigError,
    core::{
        CloseReason, TESTED_CODEX,
        command::{Refusal, RefusalClass},
        event::{EndReason, Failure, LostReason, Rejection},
    },
};

use crate::{cli::DEFAULT_SERVER, term::visible};

/// How the process ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Exit {
    Ok,
    /// The turn failed, or the replay differs.
    Failed,
    /// Wrong usage, or an input that is damaged.
    Usage,
    /// The server could not be started.
    NoServer,
    /// Ended by this signal.
    Signal(u8),
}

impl Exit {
    /// How a process ended whose exit code this is; none where a signal killed it.
    pub(crate) fn of(code: Option<i32>) -> Self {
        match code {
            Some(0) => Self::Ok,
            Some(2) => Self::Usage,
            Some(3) => Self::NoServer,
            Some(code @ 129..) => u8::try_from(code - 128).map_or(Self::Failed, Self::Signal),
            Some(_) | None => Self::Failed,
        }
    }

    pub(crate) fn code(self) -> u8 {
        match self {
            Self::Ok => 0,
            Self::Failed => 1,
            Self::Usage => 2,
            Self::NoServer => 3,
            Self::Signal(number) => 128 + number,
        }
    }
}

/// A problem: what it is, what to do, and how the process ends by it.
#[derive(Debug)]
pub(crate) struct Problem {
    pub(crate) exit: Exit,
    pub(crate) what: String,
    pub(crate) hints: Vec<String>,
    /// Whether the client serves nothing any more.
    pub(crate) gone: bool,
}

impl Problem {
    fn new(exit: Exit, what: impl Into<String>) -> Self {
        Self {
            exit,
            what: what.into(),
            hints: Vec::new(),
            gone: false,
        }
    }

    pub(crate) fn usage(what: impl Into<String>) -> Self {
        Self::new(Exit::Usage, what)
    }

    pub(crate) fn failed(what: impl Into<String>) -> Self {
        Self::new(Exit::Failed, what)
    }

    pub(crate) fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hints.push(hint.into());
        self
    }

    /// Why no client was started with `server`.
    pub(crate) fn start(error: &StartError, server: &str) -> Self {
        match error {
            StartError::Journal(error) => Self::journal(error),
            StartError::Connection(reason) => Self::connection(reason, server),
            StartError::Recording { .. } => {
                Self::usage(error.to_string()).hint("name another file: --record FILE")
            }
            StartError::Halted => Self::failed(error.to_string())
                .hint("is the disk full? name a journal elsewhere: --journal DIR"),
            _ => Self::failed(error.to_string()),
        }
    }

    /// What is wrong with what was said of a server that runs already.
    pub(crate) fn web_socket(error: &WebSocketConfigError) -> Self {
        let problem = Self::usage(visible(&error.to_string()));
        match error {
            WebSocketConfigError::TokenOverPlainTcp { .. } => Self::usage(
                "the token would go over plain ws:// to another machine, where anybody on the way \
                 reads it",
            )
            .hint("use wss://, or an SSH tunnel to a ws://127.0.0.1:PORT of this machine")
            .hint("or take the risk: --token-over-plain-tcp"),
            WebSocketConfigError::UserInUrl => {
                problem.hint("name a file that holds the token: --token-file FILE")
            }
            WebSocketConfigError::CaWithoutTls => problem.hint("leave --ca-file out"),
            _ => problem.hint(
                "--connect takes what the server was given: codex app-server --listen \
                 ws://127.0.0.1:4500, or unix:///run/codex.sock",
            ),
        }
    }

    /// Why a server that should run already was not reached at `url`.
    pub(crate) fn connect(error: &StartError, url: &str) -> Self {
        let StartError::Connection(reason) = error else {
            return Self::start(error, url);
        };
        let no_server = |what: String| Self::new(Exit::NoServer, what);
        let url = visible(url);
        match &**reason {
            EndReason::Closed {
                reason: CloseReason::Denied { status: 401 },
                ..
            } => no_server(format!(
                "{url} denied us: its bearer token is missing or wrong"
            ))
            .hint("name the file that its --ws-token-file names: --token-file FILE"),
            EndReason::Closed {
                reason: CloseReason::Denied { status },
                ..
            } => no_server(format!("{url} denied us (HTTP status {status})"))
                .hint("something between us and codex may do that: a proxy, a firewall"),
            EndReason::Closed {
                reason: CloseReason::OpenFailed(why),
                ..
            } => {
                let problem = no_server(visible(why));
                match url.starts_with("wss:") {
                    true => problem,
                    false => problem.hint(format!(
                        "it is started with: codex app-server --listen {url}"
                    )),
                }
            }
            EndReason::Closed { reason, .. } => no_server(format!(
                "{url} ended the connection before it was ready: {}",
                visible(&reason.to_string())
            )),
            EndReason::HandshakeTimeout { limit, .. } => {
                no_server(format!("{url} did not answer within {} s", limit.as_secs()))
                    .hint("is it codex app-server?")
            }
            EndReason::Protocol { error, .. } => no_server(format!(
                "{url} does not speak like codex app-server: {}",
                visible(&error.to_string())
            )),
            other => Self::connection(other, DEFAULT_SERVER),
        }
    }

    fn journal(error: &OpenJournalError) -> Self {
        let fresh = "name a new directory, or leave --journal out for a fresh one";
        match error {
            OpenJournalError::Locked { .. } => Self::usage(format!("the journal {error}"))
                .hint("end the turnkeep that has it, or")
                .hint(fresh),
            OpenJournalError::Unreadable { .. } | OpenJournalError::Record { .. } => {
                Self::usage(format!("the journal cannot be read: {error}"))
                    .hint("nothing in it was changed")
                    .hint(fresh)
            }
            _ => Self::usage(error.to_string()).hint(fresh),
        }
    }

    fn connection(reason: &EndReason, server: &str) -> Self {
        let no_server = |what: String| Self::new(Exit::NoServer, what);
        match reason {
            EndReason::Closed {
                reason: CloseReason::NotFound(names),
                ..
            } => {
                let names = names.join(", ");
                let problem = no_server(format!("{} was not found", visible(&names)));
                if server == DEFAULT_SERVER {
                    problem
                        .hint("install it: npm install -g @openai/codex")
                        .hint("or say where it is: --server PATH")
                        .hint("`turnkeep demo` works without it")
                } else {
                    problem
                        .hint("look at --server: it is the command that starts codex")
                        .hint("to install codex: npm install -g @openai/codex")
                        .hint("`turnkeep demo` works without it")
                }
            }
            EndReason::Closed {
                reason: CloseReason::OpenFailed(why),
                ..
            } => no_server(format!("the server could not be started: {}", visible(why)))
                .hint("look at --server: it is the command that starts codex"),
            EndReason::Closed {
                reason,
                stderr_tail,
                ..
            } => {
                let mut problem = no_server(format!(
                    "the server ended before it was ready: {}",
                    visible(&reason.to_string())
                ));
                problem = problem.with_stderr(stderr_tail);
                problem.hint(format!(
                    "try it by hand: {} app-server --help",
                    visible(server)
                ))
            }
            EndReason::HandshakeTimeout { limit, stderr_tail } => no_server(format!(
                "the server did not answer within {} s",
                limit.as_secs()
            ))
            .with_stderr(stderr_tail)
            .hint("is it codex? look at --server"),
            EndReason::HandshakeRefused {
                message,
                stderr_tail,
            } => no_server(format!("the server refused us: {}", visible(message)))
                .with_stderr(stderr_tail),
            EndReason::UnsupportedVersion {
                version,
                oldest,
                first_unsupported,
            } => {
                let newest = TESTED_CODEX.last().map(ToString::to_string);
                no_server(format!(
                    "codex {} is not supported: this turnkeep serves {oldest} up to, not \
                     including, {first_unsupported}",
                    visible(&version.to_string())
                ))
                .hint(format!(
                    "install one that is: npm install -g @openai/codex@{}",
                    newest.unwrap_or_default()
                ))
                .hint("or take the risk: --any-server-version")
            }
            EndReason::Protocol { error, .. } => no_server(format!(
                "what was started does not speak like codex app-server: {}",
                visible(&error.to_string())
            ))
            .hint("look at --server: it is the command that starts codex"),
            _ => no_server(format!(
                "there is no server: {}",
                visible(&reason.to_string())
            )),
        }
    }

    fn with_stderr(self, tail: &str) -> Self {
        // A backtrace says nothing to a person; its lines are indented.
        let told = |line: &&str| {
            !line.trim().is_empty() && !line.starts_with([' ', '\t']) && *line != "Stack backtrace:"
        };
        let lines: Vec<&str> = tail.lines().rev().filter(told).collect();
        let last = lines.into_iter().take(5).rev();
        let said = last.map(|line| format!("it said: {}", visible(&plain(line))));
        Self {
            hints: self.hints.into_iter().chain(said).collect(),
            ..self
        }
    }

    pub(crate) fn open(error: &OpenError) -> Self {
        match error {
            OpenError::BadKey { .. } => {
                Self::usage(error.to_string()).hint("choose another name: --conversation KEY")
            }
            OpenError::Request(RequestError::Command(CommandError::OpenDifferently { key })) => {
                let key = visible(key.as_str());
                Self::usage(format!(
                    "the conversation {key:?} of this journal is held in another way"
                ))
                .hint("say the same --cwd, --model, --sandbox, --approval-policy and --tools again, or")
                .hint("begin another one in it: --conversation KEY")
            }
            OpenError::Request(RequestError::Command(CommandError::Settings(error))) => {
                Self::usage(format!("the settings are refused: {error}"))
            }
            _ => Self::failed(error.to_string()),
        }
    }

    pub(crate) fn send(error: &SendError) -> Self {
        match error {
            SendError::Request(error) => Self::request(error),
            _ => Self::failed(error.to_string()),
        }
    }

    /// Why the message of a round that failed is not sent again.
    pub(crate) fn restart(error: &SendError) -> Self {
        let SendError::Request(RequestError::Command(why)) = error else {
            return Self::send(error);
        };
        let go_on = "say something else, and the conversation goes on";
        match why {
            CommandError::NotStalled { .. } => {
                Self::failed("nothing failed that could be sent again")
            }
            CommandError::ProviderActionAccepted { .. } => {
                Self::failed("it is not sent again: the model has acted on it already").hint(go_on)
            }
            CommandError::MayBeAccepted { .. } => {
                Self::failed("it is not sent again: codex has it, or may have it").hint(go_on)
            }
            _ => Self::send(error),
        }
    }

    pub(crate) fn request(error: &RequestError) -> Self {
        match error {
            RequestError::Command(CommandError::Refused(refusal)) => Self::refused(refusal),
            RequestError::Command(CommandError::Disconnected { reason }) => Self::lost(reason),
            RequestError::Command(CommandError::FrameTooLarge { .. }) => {
                Self::failed(error.to_string()).hint("the message is too long: shorten it")
            }
            RequestError::Command(CommandError::Halted) => Self::failed(error.to_string())
                .gone()
                .hint("is the disk full? name a journal elsewhere: --journal DIR"),
            RequestError::Stopped => Self::failed(error.to_string()).gone(),
            _ => Self::failed(visible(&error.to_string())),
        }
    }

    fn refused(refusal: &Refusal) -> Self {
        let problem = Self::failed(visible(&refusal.to_string()));
        match refusal.class {
            RefusalClass::NotLoggedIn => problem.hint(LOG_IN),
            RefusalClass::BadConfiguration => {
                problem.hint("mend config.toml in codex's own directory: CODEX_HOME, or ~/.codex")
            }
            RefusalClass::Overloaded => problem.hint("try again in a while"),
            _ => problem,
        }
    }

    /// The connection has ended in the middle of things.
    pub(crate) fn lost(reason: &EndReason) -> Self {
        let (why, tail) = match reason {
            EndReason::Closed {
                reason,
                stderr_tail,
                ..
            } => (reason.to_string(), stderr_tail.as_str()),
            other => (other.to_string(), ""),
        };
        Self::failed(format!("the server is gone: {}", visible(&why)))
            .gone()
            .with_stderr(tail)
            .hint("go on with it: turnkeep chat --continue")
    }

    /// Says that the client serves nothing any more.
    pub(crate) fn gone(self) -> Self {
        Self { gone: true, ..self }
    }

    /// Why a turn ended otherwise than completed; `None` for one that did or that was interrupted.
    pub(crate) fn end(end: &TurnEnd) -> Option<Self> {
        Some(match &end.outcome {
            Outcome::Completed { .. } | Outcome::Interrupted => return None,
            Outcome::Failed { error } => Self::failure(error),
            Outcome::Rejected {
                error: Rejection::Refused(refusal) | Rejection::Thread(refusal),
            } => Self::refused(refusal),
            Outcome::Lost {
                reason: LostReason::Connection(reason),
            } => Self::lost(reason),
            other => {
                let why = match other {
                    Outcome::Rejected { error } => error.to_string(),
                    Outcome::Lost { reason } => reason.to_string(),
                    Outcome::Unknown { evidence } => evidence.clone(),
                    _ => String::new(),
                };
                let colon = if why.is_empty() { "" } else { ": " };
                Self::failed(format!(
                    "the turn ended {}{colon}{}",
                    other.name(),
                    visible(&why)
                ))
            }
        })
    }

    fn failure(error: &Failure) -> Self {
        let mut problem = Self::failed(format!("the turn failed: {}", visible(&error.message)));
        if let Some(details) = &error.details {
            problem = problem.hint(visible(details));
        }
        if error.is_unauthorized() {
            return problem.hint(LOG_IN);
        }
        match error.code().as_deref() {
            Some("usageLimitExceeded") => problem.hint("your plan's limit is used up: wait for it"),
            Some("contextWindowExceeded") => {
                problem.hint("the conversation is too long for the model: begin a new one")
            }
            Some("modelNotFound") => problem.hint("name another model: --model NAME"),
            Some("serverOverloaded" | "rateLimitExceeded") => problem.hint("try again in a while"),
            _ => problem,
        }
    }
}

/// What to do when nobody is logged in.
const LOG_IN: &str =
    "nobody is logged in to codex, or the login is no longer valid: run `codex login`";

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.what)?;
        self.hints.iter().try_for_each(|hint| write!(f, "; {hint}"))
    }
}

/// A line of somebody's log without its colours.
pub(crate) fn plain(line: &str) -> String {
    anstream::adapter::strip_str(line).to_string()
}

/// A text as a shell reads it back.
pub(crate) fn quoted(text: &str) -> String {
    shell_words::quote(text).into_owned()
}
