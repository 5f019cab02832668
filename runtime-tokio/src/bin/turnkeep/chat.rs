//! `turnkeep chat`: the real thing.

use std::{
    io::{self, IsTerminal as _},
    path::{Path, PathBuf},
    time::Duration,
};

use serde_json::Value;
use turnkeep_tokio::{
    Authorization, Client, ClientConfig, CommandError, Conversation, OpenError, Outcome, Questions,
    RawJson, RequestError, Settings, Tool, TurnEnd,
    core::{ConversationKey, event::Tokens},
};

use crate::{
    Failure, cli, connect,
    keyboard::Keyboard,
    problem::{Exit, Problem},
    session::{Followed, Said, Session},
    signals::{Signal, Signals},
    state, stdin,
    term::{ALERT, BOLD, DIM, Term, paint, tell},
    toolbox::Toolbox,
    view::{View, tokens},
};

/// How long the server may take to say whether somebody is logged in.
const LOGIN_CHECK: Duration = Duration::from_secs(5);

pub(crate) async fn run(args: cli::Chat, mut signals: Signals) -> Result<Exit, Failure> {
    let server = connect::server(&args.at)?;
    if ConversationKey::new(&args.conversation).is_none() {
        return Err(Problem::usage(format!(
            "the conversation key {:?} is not 1 to 256 bytes without white space at the ends",
            args.conversation
        ))
        .into());
    }
    let (tools, declared) = match &args.tools {
        Some(path) => {
            let here = args.cwd.as_deref().unwrap_or(Path::new("."));
            Toolbox::load(path, here)?
        }
        None => (Toolbox::empty(), Vec::new()),
    };
    let settings = settings(&args, declared)?;
    if let Some(path) = &args.record {
        state::may_record_to(path)?;
    }
    let message = match message(&args, &mut signals).await? {
        Ok(message) => message,
        Err(signal) => return Ok(signal.exit()),
    };
    let (journal, ours) = match &args.journal {
        Some(path) => (path.clone(), false),
        None if args.go_on => (state::newest("chat")?, false),
        None => (state::fresh("chat", "--journal")?, true),
    };
    let mut config = ClientConfig::server(server)
        .journal(&journal)
        .authorization(Authorization::None);
    config.recording.clone_from(&args.record);
    config.machine.any_server_version = args.at.any_server_version;

    let mut term = Term::new();
    term.working(match &args.at.connect {
        Some(_) => "connecting to the server",
        None => "starting the server",
    });
    let client = tokio::select! {
        client = Client::spawn(config) => client,
        signal = signals.next() => {
            // The server ends with the runtime.
            if ours {
                state::discard(&journal);
            }
            return Ok(signal.exit());
        }
    };
    term.rest();
    let client = client.map_err(|error| {
        if ours {
            state::discard(&journal);
        }
        connect::not_started(&error, &args.at)
    })?;
    let opened = open(&client, &args.conversation, settings).await;
    let conversation = match opened {
        Ok(conversation) => conversation,
        Err(problem) => {
            let _ = client.shutdown().await;
            return Err(problem.into());
        }
    };
    let at_terminal = io::stdin().is_terminal();
    let keyboard = at_terminal.then(|| Keyboard::new(&mut term)).transpose();
    let mut session = Session {
        client,
        events: conversation.events(),
        conversation,
        term,
        signals,
        keyboard: keyboard.map_err(|error| Problem::failed(format!("cannot start: {error}")))?,
        tools,
        watch: |_, _| {},
        is_ours: args.at.connect.is_none(),
        struck: false,
    };
    let done = match (login_check(&mut session).await, message) {
        (Some(signal), _) => Ok(signal.exit()),
        (None, Some(message)) => answer(&mut session, &message).await,
        (None, None) => converse(&mut session, &journal).await,
    };
    session.close().await;
    report(&mut session.term, &journal, args.record.as_deref());
    done
}

fn settings(args: &cli::Chat, tools: Vec<Tool>) -> Result<Settings, Problem> {
    let mut settings = Settings::new().questions(if io::stdin().is_terminal() {
        Questions::Ask
    } else {
        Questions::Decline
    });
    if let Some(cwd) = &args.cwd {
        // What runs elsewhere has directories of its own.
        settings = settings.cwd(match (&args.at.connect, cwd.to_str()) {
            (Some(_), Some(theirs)) => theirs.to_owned(),
            _ => directory(cwd)?,
        });
    }
    if let Some(model) = &args.model {
        settings = settings.model(model);
    }
    settings.tools = tools;
    settings.sandbox = args.sandbox.map(Into::into);
    settings.approval_policy = args.approval_policy.map(Into::into);
    let bad = |error| Problem::usage(format!("the settings are refused: {error}"));
    settings.validate().map_err(bad)?;
    Ok(settings)
}

/// The directory as the server, which may have another one, finds it.
fn directory(path: &Path) -> Result<String, Problem> {
    let bad = |why: String| Problem::usage(format!("--cwd {}: {why}", path.display()));
    let whole: PathBuf = path
        .canonicalize()
        .map_err(|error| bad(error.to_string()))?;
    if !whole.is_dir() {
        return Err(bad("not a directory".into()));
    }
    let text = whole.into_os_string().into_string();
    text.map_err(|_| bad("the path is not UTF-8".into()))
}

/// The message of the command line or of stdin, `None` for a conversation.
async fn message(
    args: &cli::Chat,
    signals: &mut Signals,
) -> Result<Result<Option<String>, Signal>, Problem> {
    let from_stdin = match args.message.as_deref() {
        Some("-") => true,
        Some(_) => false,
        None => !io::stdin().is_terminal(),
    };
    let text = match &args.message {
        _ if from_stdin => {
            let text = match stdin::all(signals, "message").await? {
                Ok(text) => text,
                Err(signal) => return Ok(Err(signal)),
            };
            text.trim_end_matches(['\n', '\r']).to_owned()
        }
        Some(text) => text.clone(),
        None => return Ok(Ok(None)),
    };
    if text.trim().is_empty() {
        return Err(Problem::usage("the message is empty")
            .hint("say something: turnkeep chat \"hello\"")
            .hint("or begin a conversation, in a terminal: turnkeep chat"));
    }
    Ok(Ok(Some(text)))
}

async fn open(client: &Client, key: &str, settings: Settings) -> Result<Conversation, Problem> {
    let otherwise = match settings.questions {
        Questions::Ask => Questions::Decline,
        Questions::Decline => Questions::Ask,
    };
    let opened = client.conversation(key).settings(settings.clone()).await;
    let opened = match opened {
        // It was begun at a terminal, and this is none, or the other way round: questions are put
        // as it was said then, and declined where nobody can be asked.
        Err(OpenError::Request(RequestError::Command(CommandError::OpenDifferently {
            ..
        }))) => {
            let settings = settings.questions(otherwise);
            client.conversation(key).settings(settings).await
        }
        opened => opened,
    };
    opened.map_err(|error| Problem::open(&error))
}

/// Tells when nobody is logged in where somebody should be. The turn may work all the same, behind
/// a proxy for example, so it is a warning. Gives back a signal that came meanwhile.
async fn login_check(session: &mut Session) -> Option<Signal> {
    let nothing = RawJson::parse("{}").ok()?;
    let asked = session.client.request_raw("account/read", nothing).reads();
    let answer = tokio::select! {
        answer = tokio::time::timeout(LOGIN_CHECK, asked.into_future()) => answer.ok()?.ok()?,
        signal = session.signals.next() => return Some(signal),
    };
    let answer = answer.read::<Value>().unwrap_or_default();
    if answer["account"].is_null() && answer["requiresOpenaiAuth"] == Value::Bool(true) {
        session.term.note(format!(
            "{} nobody is logged in to codex: run `codex login`",
            paint(ALERT, "warning:")
        ));
    }
    None
}

/// One message, one answer.
async fn answer(session: &mut Session, message: &str) -> Result<Exit, Failure> {
    // Their answers were asked for by another run.
    session.term.aside = true;
    if let Some(signal) = pick_up(session).await? {
        return Ok(signal.exit());
    }
    session.term.aside = false;
    match session.say(message).await? {
        Followed::Left(signal) => Ok(signal.exit()),
        Followed::Ended(mut end, mut view) => {
            show_usage(&view, &mut session.term);
            // What deferred tools bring is part of the answer.
            while matches!(end.outcome, Outcome::Completed { .. }) {
                match session.follow_up().await? {
                    None => break,
                    Some(Followed::Left(signal)) => return Ok(signal.exit()),
                    Some(Followed::Ended(next, seen)) => {
                        show_usage(&seen, &mut session.term);
                        (end, view) = (next, seen);
                    }
                }
            }
            if let Some(problem) = Problem::end(&end) {
                return Err(problem.into());
            }
            match end.outcome {
                Outcome::Interrupted if session.struck => Ok(Signal::Interrupt.exit()),
                Outcome::Interrupted if view.declined => {
                    Err(Problem::failed("the turn was interrupted")
                        .hint("codex asked and was declined: run it in a terminal to be asked")
                        .hint("or let it not ask: --approval-policy never")
                        .into())
                }
                Outcome::Interrupted => Err(Problem::failed("the turn was interrupted").into()),
                _ => Ok(Exit::Ok),
            }
        }
    }
}

/// Follows to their ends the turns that earlier runs left open, and shows ends that nobody saw.
async fn pick_up(session: &mut Session) -> Result<Option<Signal>, Failure> {
    for mut turn in session.picked_up().await? {
        match session.follow(&mut turn).await? {
            Followed::Left(signal) => return Ok(Some(signal)),
            Followed::Ended(end, _) => tell_end(&end, session),
        }
    }
    Ok(None)
}

fn tell_end(end: &TurnEnd, session: &mut Session) {
    match Problem::end(end) {
        Some(problem) => tell(&problem),
        None if matches!(end.outcome, Outcome::Interrupted) => {
            session.term.note(paint(ALERT, "the turn was interrupted"));
        }
        None => {}
    }
}

/// Message by message, until somebody leaves.
async fn converse(session: &mut Session, journal: &Path) -> Result<Exit, Failure> {
    let version = session
        .client
        .server_info()
        .map(|info| info.version.to_string());
    session.term.note(format!(
        "{} {}",
        paint(BOLD, format!("turnkeep {}", turnkeep_tokio::core::VERSION)),
        paint(DIM, format!("with codex {}", version.unwrap_or_default())),
    ));
    session
        .term
        .note(paint(DIM, format!("journal: {}", journal.display())));
    session.term.note(paint(
        DIM,
        "Type a message and Enter; Alt-Enter begins a new line, /help tells more. Ctrl-C interrupts \
         the turn, Ctrl-D leaves.",
    ));
    if let Some(signal) = pick_up(session).await? {
        return Ok(signal.exit());
    }
    let mut all = Tokens::default();
    let exit = loop {
        let followed = match session.prompt().await? {
            Said::Message(message) => session.say(&message).await,
            Said::Retry => session.retry().await,
            Said::Turn(mut turn) => session.follow(&mut turn).await,
            Said::Leave(exit) => break exit,
        };
        match followed {
            Ok(Followed::Left(signal)) => break signal.exit(),
            Ok(Followed::Ended(end, view)) => {
                show_usage(&view, &mut session.term);
                all = view.usage.map_or(all, |usage| usage.thread);
                match Problem::end(&end) {
                    Some(problem) if problem.gone => return Err(problem.into()),
                    _ => tell_end(&end, session),
                }
            }
            // The server said no to this message; the next one may do better.
            Err(Failure::Problem(problem)) if !problem.gone => tell(&problem),
            Err(failure) => return Err(failure),
        }
    };
    if all != Tokens::default() {
        session
            .term
            .note(paint(DIM, format!("in all {}", tokens(&all))));
    }
    Ok(exit)
}

fn show_usage(view: &View, term: &mut Term) {
    if let Some(usage) = view.usage.filter(|usage| usage.turn != Tokens::default()) {
        term.note(paint(DIM, tokens(&usage.turn)));
    }
}

fn report(term: &mut Term, journal: &Path, recording: Option<&Path>) {
    term.note(paint(DIM, format!("journal: {}", journal.display())));
    if let Some(path) = recording {
        term.note(paint(DIM, format!("recording: {}", path.display())));
    }
}
