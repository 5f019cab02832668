//! What can be typed.

use std::path::PathBuf;

use anstyle::{AnsiColor, Style};
use clap::{Args, Parser, Subcommand, ValueEnum, builder::Styles};
use turnkeep_tokio::{ApprovalPolicy, Sandbox};

const STYLES: Styles = Styles::styled()
    .header(Style::new().bold())
    .usage(Style::new().bold())
    .literal(AnsiColor::Cyan.on_default())
    .placeholder(AnsiColor::Green.on_default());

const EXIT_CODES: &str = "\
Exit codes:
  0    all went well
  1    what was asked for failed: the turn, a request, a check of the doctor; or the replay differs
  2    wrong usage, or a file that is damaged, foreign or in use
  3    the server could not be started
  129  ended by SIGHUP
  130  interrupted with Ctrl-C
  143  ended by SIGTERM";

/// Durable conversations with `codex app-server`.
///
/// Try `turnkeep demo` first: it needs nothing else on this machine. `turnkeep chat` talks to the
/// real codex.
#[derive(Debug, Parser)]
#[command(
    name = "turnkeep",
    version,
    styles = STYLES,
    after_help = EXIT_CODES,
    propagate_version = true,
    subcommand_required = true,
    arg_required_else_help = true,
    max_term_width = 100
)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Show a short conversation with a scripted server; needs no codex, account or network
    ///
    /// The server is this program again, as a child process that speaks the protocol of codex
    /// app-server. What you see is real all the same: the child, the journal and the recording,
    /// which stay behind to be replayed and shown; and the kills, of the server and of turnkeep
    /// itself, after which the conversation goes on.
    Demo(Demo),

    /// Talk to codex, or have one message answered
    ///
    /// Without MESSAGE it is a conversation: Enter sends, Alt-Enter begins a new line, Ctrl-D leaves.
    /// With MESSAGE, or with a message on stdin, it is one question and its answer.
    ///
    /// Where stdout is a terminal the answer is shown as it is written. Else stdout gets the text
    /// of the answer alone, once it is complete. All else goes to stderr.
    ///
    /// Ctrl-C interrupts the turn, a second Ctrl-C leaves. What codex asks (may it run this
    /// command?) is asked in the terminal, and only a plain yes is a yes. Where stdin is no
    /// terminal every question is declined.
    #[command(after_long_help = CHAT_EXAMPLES)]
    Chat(Box<Chat>),

    /// Say whether codex works here, and what to do where it does not
    ///
    /// Looks for codex, asks for its version, starts it, begins a thread that is not kept, asks who is
    /// logged in and which MCP servers there are, shows what it wrote to stderr meanwhile, and compares
    /// its protocol with the one that turnkeep knows. Nothing is changed.
    #[command(after_help = DOCTOR_CODES)]
    Doctor(Doctor),

    /// List the threads that codex remembers, or show or change one of them
    #[command(after_help = THREADS_EXAMPLES)]
    Threads(Threads),

    /// List the models that codex offers
    ///
    /// A `*` marks the effort that a model has where none is asked. Models of a custom provider are
    /// not listed by codex.
    #[command(after_help = ASKING_CODES)]
    Models(Models),

    /// Send any request to codex and print its answer
    ///
    /// At a terminal the answer is set out over several lines, else it is one line. What codex refuses
    /// is told with its code and its data.
    #[command(after_help = REQUEST_EXAMPLES)]
    Request(Request),

    /// Run a recording again and compare every effect, byte by byte
    ///
    /// A recording (`turnkeep chat --record FILE`) holds all that came in and all that went out.
    /// The same inputs must give the same outputs: where they do not, the first step that differs
    /// is shown with both sides.
    #[command(after_help = REPLAY_CODES)]
    Replay(Replay),

    /// Show a journal or a recording, one line for each record or step
    #[command(after_help = SHOW_CODES)]
    Show(Show),

    /// Be the scripted server of the demo, also where a client expects `codex app-server`
    #[command(hide = true, alias = "app-server")]
    FakeAppServer {
        /// Ignored, as `app-server` is appended to every server command
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        ignored: Vec<String>,
    },
}

impl Command {
    /// Which server it is to talk to, where it talks to one.
    pub(crate) fn server(&self) -> Option<&ServerArgs> {
        match self {
            Self::Chat(args) => Some(&args.at),
            Self::Doctor(args) => Some(&args.at),
            Self::Threads(args) => Some(&args.at),
            Self::Models(args) => Some(&args.at),
            Self::Request(args) => Some(&args.at),
            Self::Demo(_) | Self::Replay(_) | Self::Show(_) | Self::FakeAppServer { .. } => None,
        }
    }
}

const CHAT_EXAMPLES: &str = "\
Files:
  Each run keeps its journal in a fresh directory below $XDG_STATE_HOME/turnkeep, or
  ~/.local/state/turnkeep. It holds what was said, so only you may read it. What a run leaves
  open, also one that was killed, is picked up by the next one on its journal.
  The file `history` there holds the last 1,000 messages that were typed, for the up arrow and
  Ctrl-R; what begins with a space is left out of it.

Tools:
  `--tools FILE` lets the model call commands of yours. FILE is TOML:

    [[tool]]
    name = \"build\"
    description = \"Builds the project. Takes minutes: go on, the result comes later.\"
    command = [\"sh\", \"-c\", \"make 2>&1 | tail -n 20\"]   # no shell but the one you write
    delivery = \"deferred\"    # \"inline\", the default: the model waits for the result
    # optional: time_limit = 600 (seconds), env = { A = \"b\" },
    # cwd = \"..\" (seen from the file; left out: where codex works),
    # parameters = { type = \"object\", properties = { target = { type = \"string\" } } }

  The command gets the arguments as JSON on stdin, and the names of tool and call as TURNKEEP_TOOL
  and TURNKEEP_CALL. What it writes to stdout is the result, if it exits with 0; else the call has
  failed, and the end of stderr says why. It and all that it started is killed when the call is
  closed, runs out of time, or you leave. The result of a deferred tool that comes after the turn
  begins the next one by itself.

At the prompt:
  /status /boxes /tools /retry /dismiss /quit; /help says what they do

Examples:
  turnkeep chat
  turnkeep chat --continue
  turnkeep chat \"why does the build fail?\" --cwd ~/project --sandbox read-only
  turnkeep chat - < question.md > answer.md
  turnkeep chat --tools tools.toml
  turnkeep chat --connect unix:///run/codex.sock
  turnkeep chat --record session.trace && turnkeep replay session.trace

Exit codes:
  0    all went well
  1    the turn failed
  2    wrong usage, or a journal that cannot be used
  3    the server could not be started
  129, 130, 143  ended by SIGHUP, Ctrl-C, SIGTERM";

const DOCTOR_CODES: &str = "\
Exit codes:
  0    nothing is wrong (warnings are told)
  1    something is wrong
  2    wrong usage
  3    codex could not be found or started
  129, 130, 143  ended by SIGHUP, Ctrl-C, SIGTERM";

const REQUEST_EXAMPLES: &str = "\
Examples:
  turnkeep request --list
  turnkeep request config/read
  turnkeep request thread/read '{\"threadId\":\"…\"}'
  turnkeep request model/list --json | jq -r '.data[].id'

Exit codes:
  0    answered
  1    the server refused it, or did not answer
  2    wrong usage, or parameters that are no JSON
  3    the server could not be started
  129, 130, 143  ended by SIGHUP, Ctrl-C, SIGTERM";

const THREADS_EXAMPLES: &str = "\
Examples:
  turnkeep threads --limit 20
  turnkeep threads --all --json | jq -r .id
  turnkeep threads show ID

Exit codes:
  0    done
  1    the server refused it, or did not answer; or you did not say yes, and nothing was deleted
  2    wrong usage; also a `delete` without --yes where nobody can be asked
  3    the server could not be started
  129, 130, 143  ended by SIGHUP, Ctrl-C, SIGTERM";

const ASKING_CODES: &str = "\
Exit codes:
  0    listed
  1    the server refused it, or did not answer
  2    wrong usage
  3    the server could not be started
  129, 130, 143  ended by SIGHUP, Ctrl-C, SIGTERM";

const REPLAY_CODES: &str = "\
Exit codes:
  0    identical
  1    different
  2    the recording is damaged, foreign, or made by a version whose rules differ";

const SHOW_CODES: &str = "\
Exit codes:
  0    shown to the end (a torn tail of a journal is told)
  2    damaged or foreign; what stands before the damage is shown";

#[derive(Debug, Args)]
pub(crate) struct Demo {
    /// Directory for the journal and the recording; it must be new or empty
    /// [default: a fresh one below $XDG_STATE_HOME/turnkeep or ~/.local/state/turnkeep]
    #[arg(long, value_name = "DIR")]
    pub(crate) dir: Option<PathBuf>,

    /// Which part of the demo to be: it runs itself, so that it can be killed
    #[arg(long, hide = true, requires = "dir")]
    pub(crate) part: Option<u8>,
}

#[derive(Debug, Args)]
pub(crate) struct Chat {
    /// What to say; `-` reads it from stdin, as does a stdin that is no terminal
    pub(crate) message: Option<String>,

    #[command(flatten)]
    pub(crate) at: ServerArgs,

    /// Directory that codex works in; with --connect one of the server's [default: this one]
    #[arg(long, value_name = "DIR")]
    pub(crate) cwd: Option<PathBuf>,

    /// Model that answers [default: as codex is configured]
    #[arg(long, value_name = "NAME")]
    pub(crate) model: Option<String>,

    /// What commands may touch [default: as codex is configured]
    #[arg(long, value_name = "MODE", value_enum)]
    pub(crate) sandbox: Option<SandboxArg>,

    /// When codex asks before it acts [default: as codex is configured]
    #[arg(long, value_name = "POLICY", value_enum)]
    pub(crate) approval_policy: Option<ApprovalArg>,

    /// Go on with the last conversation whose journal is in the state directory
    #[arg(short = 'c', long = "continue", conflicts_with = "journal")]
    pub(crate) go_on: bool,

    /// Directory for the journal; one that holds a conversation is gone on with
    /// [default: a fresh one in the state directory]
    #[arg(long, value_name = "DIR")]
    pub(crate) journal: Option<PathBuf>,

    /// Name of the conversation in the journal
    #[arg(long, value_name = "KEY", default_value = "chat")]
    pub(crate) conversation: String,

    /// File (TOML) that declares tools for the model, each a command of yours; see below
    #[arg(long, value_name = "FILE")]
    pub(crate) tools: Option<PathBuf>,

    /// File to record the session to, for `turnkeep replay`
    #[arg(long, value_name = "FILE")]
    pub(crate) record: Option<PathBuf>,
}

/// Which server. What the options need of each other is looked at in `connect::check`.
#[derive(Clone, Debug, Args)]
pub(crate) struct ServerArgs {
    /// The command that is codex, split like a shell does; `app-server` is appended [default: codex]
    #[arg(global = true, long, value_name = "CMD")]
    pub(crate) server: Option<String>,

    /// Talk to a codex that runs already: ws://HOST:PORT, wss://HOST:PORT or unix:///PATH, as given
    /// to its `app-server --listen`
    #[arg(global = true, long, value_name = "URL")]
    pub(crate) connect: Option<String>,

    /// File with the bearer token that such a codex asks for (its --ws-token-file)
    #[arg(global = true, long, value_name = "FILE")]
    pub(crate) token_file: Option<PathBuf>,

    /// File of certificates (PEM) to trust instead of the system's, for wss://
    #[arg(global = true, long, value_name = "FILE")]
    pub(crate) ca_file: Option<PathBuf>,

    /// Send the token over plain ws:// to another machine, where anybody on the way reads it
    #[arg(global = true, long)]
    pub(crate) token_over_plain_tcp: bool,

    /// Serve a codex of any version, also of one that turnkeep was not tested with
    #[arg(global = true, long)]
    pub(crate) any_server_version: bool,
}

impl ServerArgs {
    /// The command that is codex.
    pub(crate) fn command(&self) -> &str {
        self.server.as_deref().unwrap_or(DEFAULT_SERVER)
    }
}

#[derive(Debug, Args)]
pub(crate) struct Request {
    /// The method, such as thread/list; with --list it is left out
    #[arg(required_unless_present = "list", conflicts_with = "list")]
    pub(crate) method: Option<String>,

    /// The parameters as JSON, `-`, and a stdin that is no terminal, reads them from
    /// stdin; nothing at all is an empty object
    #[arg(value_name = "JSON")]
    pub(crate) params: Option<String>,

    /// The method only reads; known methods say so themselves
    #[arg(long)]
    pub(crate) reads: bool,

    /// List all methods that turnkeep knows
    #[arg(long)]
    pub(crate) list: bool,

    /// Print for programs: one JSON value a line
    #[arg(long)]
    pub(crate) json: bool,

    #[command(flatten)]
    pub(crate) at: ServerArgs,
}

#[derive(Debug, Args)]
#[command(
    args_conflicts_with_subcommands = false,
    subcommand_negates_reqs = true
)]
pub(crate) struct Threads {
    #[command(subcommand)]
    pub(crate) command: Option<ThreadsCommand>,

    /// List archived threads instead
    #[arg(long, conflicts_with = "all")]
    pub(crate) archived: bool,

    /// List archived threads too, and those of every source: also of `codex exec` and of sub-agents
    #[arg(long)]
    pub(crate) all: bool,

    /// List only threads that work in this directory
    #[arg(long, value_name = "DIR")]
    pub(crate) cwd: Option<String>,

    /// List only threads in which this was said
    #[arg(long, value_name = "TEXT", conflicts_with = "cwd")]
    pub(crate) search: Option<String>,

    /// List so many at most
    #[arg(long, value_name = "N")]
    pub(crate) limit: Option<usize>,

    /// Print for programs: one JSON object a line
    #[arg(long, global = true)]
    pub(crate) json: bool,

    #[command(flatten)]
    pub(crate) at: ServerArgs,
}

#[derive(Debug, Subcommand)]
pub(crate) enum ThreadsCommand {
    /// Show a thread: what it is, and what was said in it
    Show {
        /// Its id
        id: String,
    },
    /// Name a thread
    Name {
        /// Its id
        id: String,
        /// The name
        name: String,
    },
    /// Put a thread away
    Archive {
        /// Its id
        id: String,
    },
    /// Take a thread back
    Unarchive {
        /// Its id
        id: String,
    },
    /// Delete a thread for good; asks first
    Delete {
        /// Its id
        id: String,
        /// Do not ask
        #[arg(long)]
        yes: bool,
    },
    /// Make a thread that begins as this one, and print its id
    Fork {
        /// Its id
        id: String,
    },
}

#[derive(Debug, Args)]
pub(crate) struct Models {
    /// List hidden models too
    #[arg(long)]
    pub(crate) hidden: bool,

    /// Print for programs: one JSON object a line
    #[arg(long)]
    pub(crate) json: bool,

    #[command(flatten)]
    pub(crate) at: ServerArgs,
}

#[derive(Debug, Args)]
pub(crate) struct Doctor {
    /// Show every difference from the protocol that turnkeep knows, and more of what is told in part
    #[arg(short, long)]
    pub(crate) verbose: bool,

    /// Print for programs: one JSON object a check
    #[arg(long)]
    pub(crate) json: bool,

    #[command(flatten)]
    pub(crate) at: ServerArgs,
}

pub(crate) const DEFAULT_SERVER: &str = "codex";

#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum SandboxArg {
    /// Nothing may be written
    ReadOnly,
    /// The working directory may be written
    WorkspaceWrite,
    /// Everything
    DangerFullAccess,
}

impl From<SandboxArg> for Sandbox {
    fn from(arg: SandboxArg) -> Self {
        match arg {
            SandboxArg::ReadOnly => Self::ReadOnly,
            SandboxArg::WorkspaceWrite => Self::WorkspaceWrite,
            SandboxArg::DangerFullAccess => Self::DangerFullAccess,
        }
    }
}

#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum ApprovalArg {
    /// Before all but commands known to be safe
    Untrusted,
    /// When the model asks to
    OnRequest,
    /// Never
    Never,
}

impl From<ApprovalArg> for ApprovalPolicy {
    fn from(arg: ApprovalArg) -> Self {
        match arg {
            ApprovalArg::Untrusted => Self::Untrusted,
            ApprovalArg::OnRequest => Self::OnRequest,
            ApprovalArg::Never => Self::Never,
        }
    }
}

#[derive(Debug, Args)]
pub(crate) struct Replay {
    /// The recording
    pub(crate) file: PathBuf,

    /// Stop after so many steps
    #[arg(long, value_name = "N")]
    pub(crate) until: Option<u64>,

    /// Print the result as one JSON object
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct Show {
    /// A journal's directory, a journal or a recording; which is told by what is in it
    #[arg(value_name = "DIR|FILE")]
    pub(crate) path: PathBuf,

    /// Print one JSON object a line
    #[arg(long)]
    pub(crate) json: bool,
}
