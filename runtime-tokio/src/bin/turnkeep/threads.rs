//! `turnkeep threads`: what codex remembers.

use std::{
    collections::BTreeSet,
    io::{self, IsTerminal as _, Write as _},
};

use serde_json::{Value, json};
use turnkeep_tokio::{
    Client,
    protocol::{
        Maybe, Wire as _,
        requests::ThreadFork,
        types::{
            Thread, ThreadItem, ThreadListCwdFilter, ThreadListParams, ThreadSearchParams,
            ThreadSourceKind,
        },
    },
};

use crate::{
    Failure,
    cli::{self, ThreadsCommand},
    connect::{self, asked, exit, time, with_client},
    problem::{Exit, Problem},
    signals::{Signal, Signals},
    stdin,
    term::{BOLD, DIM, brief, paint, visible},
};

/// How much of a text stands in a table.
const BRIEF: usize = 60;

/// Every source of threads. Where none is asked for, the server lists those of interactive ones alone.
const SOURCES: [ThreadSourceKind; 10] = [
    ThreadSourceKind::Cli,
    ThreadSourceKind::Vscode,
    ThreadSourceKind::Exec,
    ThreadSourceKind::AppServer,
    ThreadSourceKind::SubAgent,
    ThreadSourceKind::SubAgentReview,
    ThreadSourceKind::SubAgentCompact,
    ThreadSourceKind::SubAgentThreadSpawn,
    ThreadSourceKind::SubAgentOther,
    ThreadSourceKind::UnknownValue,
];

pub(crate) async fn run(args: cli::Threads, mut signals: Signals) -> Result<Exit, Failure> {
    if args.command.is_some() {
        for (option, is_given) in [
            ("--all", args.all),
            ("--archived", args.archived),
            ("--cwd", args.cwd.is_some()),
            ("--search", args.search.is_some()),
            ("--limit", args.limit.is_some()),
        ] {
            if is_given {
                let what = format!("{option} is for the list: it does nothing to one thread");
                return Err(Problem::usage(what).hint("leave it out").into());
            }
        }
    }
    if let Some(ThreadsCommand::Delete { id, yes }) = &args.command {
        let sure = match yes {
            true => Ok(true),
            false => sure(id, &mut signals).await?,
        };
        let sure = match sure {
            Ok(sure) => sure,
            Err(signal) => return Ok(signal.exit()),
        };
        if !sure {
            eprintln!("nothing was deleted");
            return Ok(Exit::Failed);
        }
    }
    let done = with_client(&args.at, &mut signals, async |client| {
        match &args.command {
            None => list(client, &args).await?,
            Some(ThreadsCommand::Show { id }) => show(client, id, args.json).await?,
            Some(command) => {
                let told = change(client, command).await?;
                if args.json {
                    connect::print(&json!(told).to_string(), true)?;
                } else if let Some(fork) = told {
                    writeln!(io::stdout().lock(), "{fork}")?;
                }
            }
        }
        Ok(Exit::Ok)
    })
    .await?;
    Ok(exit(done))
}

/// Asks whether a thread is to be deleted, which takes somebody who can answer.
async fn sure(id: &str, signals: &mut Signals) -> Result<Result<bool, Signal>, Failure> {
    if !io::stdin().is_terminal() {
        let what = "nothing was deleted: stdin is no terminal, so nobody can be asked";
        return Err(Problem::usage(what)
            .hint("to delete it unasked: --yes")
            .into());
    }
    eprint!(
        "delete thread {} and all that was said in it? [y/N] ",
        visible(id)
    );
    io::stderr().flush()?;
    Ok(match stdin::line(signals).await? {
        Ok(line) => {
            if !line.ends_with('\n') {
                // Ctrl-D leaves the cursor behind the question.
                eprintln!();
            }
            Ok(matches!(line.trim(), "y" | "Y" | "yes"))
        }
        Err(signal) => {
            eprintln!();
            Err(signal)
        }
    })
}

/// Changes a thread; a fork has an id of its own.
async fn change(client: &Client, command: &ThreadsCommand) -> Result<Option<String>, Problem> {
    let threads = client.threads();
    let done = match command {
        ThreadsCommand::Show { .. } => Ok(()),
        ThreadsCommand::Name { id, name } => threads.set_name(id, name).await,
        ThreadsCommand::Archive { id } => threads.archive(id).await,
        ThreadsCommand::Unarchive { id } => threads.unarchive(id).await.map(|_| ()),
        ThreadsCommand::Delete { id, .. } => threads.delete(id).await,
        ThreadsCommand::Fork { id } => {
            let forked = threads.fork(ThreadFork::new(id)).await;
            return forked
                .map(|fork| Some(fork.thread.id))
                .map_err(|error| asked(&error));
        }
    };
    done.map(|()| None).map_err(|error| asked(&error))
}

async fn list(client: &Client, args: &cli::Threads) -> Result<(), Failure> {
    let limit = args.limit.unwrap_or(usize::MAX);
    let failed = |error| asked(&error);
    let mut rows: Vec<(Thread, bool)> = Vec::new();
    let kinds: &[bool] = match (args.all, args.archived) {
        (true, _) => &[false, true],
        (false, archived) => {
            if archived {
                &[true]
            } else {
                &[false]
            }
        }
    };
    let sources = match args.all {
        true => Maybe::Some(SOURCES.to_vec()),
        false => Maybe::Absent,
    };
    let mut seen = BTreeSet::new();
    for archived in kinds.iter().copied() {
        if let Some(term) = &args.search {
            let request = ThreadSearchParams {
                archived: archived.into(),
                source_kinds: sources.clone(),
                ..ThreadSearchParams::new(term)
            };
            let mut found = client.threads().search(request);
            while rows.len() < limit {
                let Some(row) = found.next().await else { break };
                rows.push((row.map_err(failed)?.thread, archived));
            }
        } else {
            let filter = ThreadListParams {
                archived: archived.into(),
                cwd: match &args.cwd {
                    Some(cwd) => ThreadListCwdFilter::Text(cwd.clone()).into(),
                    None => Default::default(),
                },
                source_kinds: sources.clone(),
                ..ThreadListParams::new()
            };
            let mut listed = client.threads().list(filter);
            while rows.len() < limit {
                let Some(row) = listed.next().await else {
                    break;
                };
                let row = row.map_err(failed)?;
                if !seen.insert(row.id.clone()) {
                    let what = format!(
                        "thread {} is listed as archived and as not archived",
                        row.id
                    );
                    return Err(Problem::failed(what).into());
                }
                rows.push((row, archived));
            }
        }
    }
    if args.json {
        let mut out = io::stdout().lock();
        for (thread, archived) in &rows {
            let mut row = thread.encode();
            if let Value::Object(members) = &mut row {
                members.insert("archived".into(), Value::Bool(*archived));
            }
            writeln!(out, "{row}")?;
        }
        return Ok(());
    }
    if rows.is_empty() {
        eprintln!("no threads; a thread is listed once something was said in it");
        if !args.all {
            eprintln!("archived ones, and those of every source: turnkeep threads --all");
        }
        return Ok(());
    }
    let row = |(thread, archived): &(Thread, bool)| {
        let name = thread.name.as_deref().unwrap_or(&thread.preview);
        let mut status = thread.status.word().unwrap_or("?").to_owned();
        if status == "notLoaded" {
            status = "stored".into();
        }
        if *archived {
            status = "archived".into();
        }
        vec![
            thread.id.clone(),
            time(thread.updated_at),
            status,
            thread.model_provider.clone(),
            brief(name, BRIEF),
        ]
    };
    let header = ["id", "updated", "status", "provider", "name"];
    connect::table(&header, rows.iter().map(row), &[3, 2, 1])?;
    Ok(())
}

async fn show(client: &Client, id: &str, for_programs: bool) -> Result<(), Failure> {
    let failed = |error| asked(&error);
    let threads = client.threads();
    let thread = threads.read(id).await.map_err(failed)?;
    let mut turns = threads.turns(id).all().await.map_err(failed)?;
    let items = threads.items(id).all().await.map_err(failed)?;
    turns.reverse();
    if for_programs {
        let turns: Vec<Value> = turns.iter().map(|turn| turn.encode()).collect();
        let items: Vec<Value> = items.iter().map(|item| item.encode()).collect();
        let row = json!({ "thread": thread.encode(), "turns": turns, "items": items });
        connect::print(&row.to_string(), true)?;
        return Ok(());
    }
    let mut out = anstream::stdout().lock();
    let name = thread.name.as_deref().unwrap_or("(no name)");
    writeln!(
        out,
        "{}  {}",
        paint(BOLD, visible(name)),
        visible(&thread.id)
    )?;
    let model = thread.model.as_deref().unwrap_or("?");
    for (what, is) in [
        ("directory", thread.cwd.clone()),
        ("model", format!("{model} of {}", thread.model_provider)),
        ("begun", time(thread.created_at)),
        ("updated", time(thread.updated_at)),
        ("codex", thread.cli_version.clone()),
        (
            "forked from",
            thread
                .forked_from_id
                .as_deref()
                .unwrap_or_default()
                .to_owned(),
        ),
    ] {
        if !is.is_empty() {
            writeln!(out, "  {:<12}{}", what, visible(&is))?;
        }
    }
    for turn in &turns {
        let status = turn.status.as_str().unwrap_or("?");
        writeln!(
            out,
            "\n{}",
            paint(
                DIM,
                format!("turn {} ({})", visible(&turn.id), visible(status))
            )
        )?;
        for entry in items.iter().filter(|entry| entry.turn_id == turn.id) {
            let (who, text) = said(&entry.item);
            writeln!(out, "  {:<18}{}", visible(&who), brief(&text, 200))?;
        }
    }
    out.flush()?;
    Ok(())
}

/// Who says what in an item.
fn said(item: &ThreadItem) -> (String, String) {
    let value = item.encode();
    let kind = item.word().unwrap_or("?").to_owned();
    let text = match item {
        ThreadItem::UserMessage(_) => {
            let content = value["content"].as_array().cloned().unwrap_or_default();
            let texts: Vec<&str> = content
                .iter()
                .filter_map(|part| part["text"].as_str())
                .collect();
            return ("you".into(), texts.join(" "));
        }
        ThreadItem::AgentMessage(message) => return ("codex".into(), message.text.clone()),
        _ => ["text", "command", "tool", "query", "path"]
            .iter()
            .find_map(|name| value[*name].as_str())
            .unwrap_or_default()
            .to_owned(),
    };
    (kind, text)
}
