//! `turnkeep show`: a journal or a recording, for people and for programs.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use serde_json::{Value, json};
use turnkeep_tokio::{
    Outcome,
    core::{
        Record, Timestamp,
        attachment::{Attached, Endpoint},
        cleanup::{Action, CleanupChange, Owner},
        codec::{
            journal::{Decoder, Entry, JournalError},
            trace::{Reader, TraceError},
        },
        compaction::{CompactionChange, CompactionEnd},
        event::EndSource,
        naming::NamingChange,
        preflight::PreflightEntry,
        prompt::PromptChange,
        record::RequestEnd,
        remembered::Remembered,
        round::{self, RoundChange},
        selection::Selection,
        thread::CreationChange,
        tools::CallChange,
        transcript::{BoxBody, BoxSet},
    },
    journal_files,
};

use crate::{
    Failure, cli,
    describe::{self, clock, date, since},
    problem::{Exit, Problem},
    replay::recorded_json,
    term::{ALERT, BAD, BOLD, DIM, GOOD, NAME, brief, paint, visible},
};

pub(crate) fn run(args: &cli::Show) -> Result<Exit, Failure> {
    let is_directory = args.path.is_dir();
    let mut shown = Shown {
        path: args.path.clone(),
        json: args.json,
        out: io::BufWriter::new(anstream::stdout().lock()),
    };
    if is_directory {
        let files = journal_files(&args.path).map_err(|error| unreadable(&args.path, &error))?;
        return match files.is_empty() {
            false => shown.journal(&files, Decoder::new()),
            true => {
                let name = args.path.display();
                let hint = "a journal's directory holds journal-….jsonl; or name a recording";
                Err(Problem::usage(format!("{name} holds no journal"))
                    .hint(hint)
                    .into())
            }
        };
    }
    let bytes = read(&args.path)?;
    match Reader::new(&bytes) {
        // One of several files is shown too.
        Err(TraceError::Foreign) => {
            shown.journal(std::slice::from_ref(&args.path), Decoder::anywhere())
        }
        recording => shown.recording(recording),
    }
}

fn read(path: &Path) -> Result<Vec<u8>, Problem> {
    fs::read(path).map_err(|error| unreadable(path, &error))
}

fn unreadable(path: &Path, error: &io::Error) -> Problem {
    Problem::usage(format!("cannot read {}: {error}", path.display()))
}

struct Shown<W: io::Write> {
    path: PathBuf,
    json: bool,
    out: W,
}

impl<W: io::Write> Shown<W> {
    fn journal(&mut self, files: &[PathBuf], mut decoder: Decoder) -> Result<Exit, Failure> {
        let mut day = String::new();
        let mut batches = 0;
        for (at, path) in files.iter().enumerate() {
            self.path.clone_from(path);
            decoder.next_file();
            let bytes = read(path)?;
            let mut rest = &bytes[..];
            while let Some(end) = rest.iter().position(|b| *b == b'\n') {
                let offset = decoder.offset();
                let read = decoder.line(&rest[..end]);
                let entry = read.map_err(|error| self.refused(&error, batches))?;
                batches += 1;
                rest = &rest[end + 1..];
                self.batch(offset, &entry, &mut day)?;
            }
            let tail = decoder.tail(rest);
            tail.map_err(|error| self.refused(&error, batches))?;
            if rest.is_empty() {
                continue;
            }
            if at + 1 < files.len() {
                let error = decoder.damaged("the line has no end".into());
                return Err(self.refused(&error, batches));
            }
            self.torn(decoder.offset())?;
        }
        self.out.flush()?;
        Ok(Exit::Ok)
    }

    /// What stands before the damage is whole, and shown.
    fn refused(&mut self, error: &JournalError, batches: usize) -> Failure {
        if let Err(error) = self.out.flush() {
            return error.into();
        }
        match error {
            JournalError::Foreign => foreign(&self.path).into(),
            JournalError::Damaged { .. } => self.stopped(true, error, batches, "batches"),
            _ => self.stopped(false, error, batches, "batches"),
        }
    }

    fn batch(&mut self, offset: u64, entry: &Entry, day: &mut String) -> io::Result<()> {
        if !self.json {
            return self.entry(entry, day);
        }
        for record in &entry.records {
            let line = json!({
                "batch": entry.seq.0, "offset": offset, "at": entry.at.0, "record": record,
            });
            writeln!(self.out, "{line}")?;
        }
        Ok(())
    }

    fn torn(&mut self, torn: u64) -> io::Result<()> {
        if self.json {
            return writeln!(self.out, "{}", json!({"torn": torn}));
        }
        let text = "torn tail: the last line is cut off at offset";
        let text = format!("{text} {torn}; it was never confirmed");
        writeln!(self.out, "{}", paint(ALERT, text))
    }

    fn entry(&mut self, entry: &Entry, day: &mut String) -> io::Result<()> {
        self.day(entry.at, day)?;
        for record in &entry.records {
            let (kind, text) = describe_record(record);
            if matches!(record, Record::Start { .. }) && entry.seq.0 > 1 {
                // Another life.
                writeln!(self.out)?;
            }
            writeln!(
                self.out,
                "{} {} {} {text}",
                paint(DIM, clock(entry.at)),
                paint(DIM, format!("{:>4}", entry.seq.0)),
                paint(NAME, format!("{kind:<12}")),
            )?;
        }
        Ok(())
    }

    /// A line for each new day.
    fn day(&mut self, at: Timestamp, day: &mut String) -> io::Result<()> {
        let date = date(at);
        let today = date.split(' ').next().unwrap_or_default();
        if today != day {
            today.clone_into(day);
            writeln!(self.out, "{}", paint(BOLD, today))?;
        }
        Ok(())
    }

    fn recording(
        &mut self,
        recording: Result<(Reader<'_>, turnkeep_tokio::core::codec::trace::Header), TraceError>,
    ) -> Result<Exit, Failure> {
        let (reader, header) = match recording {
            Ok(recording) => recording,
            Err(error) => {
                let damaged = matches!(error, TraceError::Damaged { .. });
                return Err(self.stopped(damaged, &error, 0, "steps"));
            }
        };
        if self.json {
            let line = json!({
                "made_by": header.made_by, "at": header.at.0, "seed": header.seed,
                "config": header.config, "effects": recorded_json(&header.effects),
            });
            writeln!(self.out, "{line}")?;
        } else {
            let made = format!(
                "recorded {} by turnkeep {}",
                date(header.at),
                visible(&header.made_by)
            );
            writeln!(self.out, "{}", paint(BOLD, made))?;
            self.effects(&header.effects.effects)?;
        }
        let mut steps = 0_usize;
        for step in reader {
            let step = match step {
                Ok(step) => step,
                Err(error) => {
                    self.out.flush()?;
                    return Err(self.stopped(true, &error, steps, "steps"));
                }
            };
            steps += 1;
            if self.json {
                let line = json!({
                    "step": steps, "at": step.at.0, "input": describe::input_json(&step.input),
                    "effects": recorded_json(&step.effects),
                });
                writeln!(self.out, "{line}")?;
                continue;
            }
            writeln!(
                self.out,
                "{} {} {} {}",
                paint(DIM, format!("{:>9}", since(header.at, step.at))),
                paint(DIM, format!("{steps:>4}")),
                paint(NAME, "▸"),
                describe::input(&step.input),
            )?;
            self.effects(&step.effects.effects)?;
        }
        self.out.flush()?;
        Ok(Exit::Ok)
    }

    fn effects(&mut self, effects: &[String]) -> io::Result<()> {
        for effect in effects {
            let text = describe::effect(effect);
            writeln!(self.out, "{:>14} {} {text}", "", paint(GOOD, "◂"))?;
        }
        Ok(())
    }

    fn stopped(
        &self,
        damaged: bool,
        error: &dyn std::error::Error,
        sound: usize,
        what: &str,
    ) -> Failure {
        let name = self.path.display();
        let is = if damaged {
            "is damaged"
        } else {
            "cannot be shown"
        };
        let problem = Problem::usage(format!("{name} {is}: {error}"));
        match sound {
            0 => problem,
            n => problem.hint(format!("the {n} {what} before it are whole, and shown")),
        }
        .into()
    }
}

fn foreign(path: &Path) -> Problem {
    Problem::usage(format!(
        "{} is neither a journal nor a recording of turnkeep",
        path.display()
    ))
}

/// A record: what it is about, and what it says.
fn describe_record(record: &Record) -> (&'static str, String) {
    match record {
        Record::Start { version, seed, .. } => (
            "start",
            format!("turnkeep {} (seed {seed})", visible(version)),
        ),
        Record::Checkpoint(checkpoint) => (
            "checkpoint",
            format!(
                "after {} lives: {} conversations, {} messages, {} tool calls, {} questions",
                checkpoint.lives(),
                checkpoint.conversations(),
                checkpoint.messages(),
                checkpoint.calls(),
                checkpoint.questions()
            ),
        ),
        Record::Attached(attached) => ("server", attachment(attached)),
        Record::HomeTold { home } => ("server", format!("its home is {}", visible(home))),
        Record::Detached => ("server", "its process is gone".into()),
        Record::ConversationOpened {
            conversation,
            key,
            settings,
            ..
        } => (
            "conversation",
            format!(
                "{conversation} {:?} opened{}",
                key.as_str(),
                if settings.tools.is_empty() {
                    String::new()
                } else {
                    let names: Vec<_> = settings.tools.iter().map(|t| visible(&t.name)).collect();
                    format!(", tools: {}", names.join(", "))
                }
            ),
        ),
        Record::SettingsChanged { conversation, .. } => {
            ("conversation", format!("{conversation} is held otherwise"))
        }
        Record::ConversationClosed { conversation } => {
            ("conversation", format!("{conversation} closed"))
        }
        Record::Arrival {
            conversation,
            first,
            boxes,
            ..
        } => {
            let last = first.0 + (boxes.len() as u64).saturating_sub(1);
            let boxes: Vec<_> = boxes.iter().map(a_box).collect();
            let what = format!("of conversation {conversation}: {}", boxes.join(", "));
            ("arrival", format!("{} {what}", span(first.0, last)))
        }
        Record::Round {
            conversation,
            change,
        } => (
            "round",
            format!("of conversation {conversation}: {}", round_change(change)),
        ),
        Record::Submission {
            conversation,
            message,
            boxes,
        } => (
            "boxes",
            format!(
                "{} of conversation {conversation} go with {}",
                box_set(boxes),
                short(message.as_str())
            ),
        ),
        Record::Preflight {
            conversation,
            entries,
        } => {
            let entries: Vec<_> = entries.iter().map(preflight).collect();
            let what = entries.join(", ");
            (
                "preflight",
                format!("of conversation {conversation}: {what}"),
            )
        }
        Record::Held {
            conversation,
            reason,
        } => (
            "conversation",
            format!("{conversation} is held: {}", brief(reason, 120)),
        ),
        Record::Released { conversation } => {
            ("conversation", format!("{conversation} is released"))
        }
        Record::Forked(forked) => (
            "conversation",
            format!(
                "{} ({}) made of conversation {}",
                forked.conversation,
                visible(forked.key.as_str()),
                forked.from
            ),
        ),
        Record::Naming {
            conversation,
            change,
        } => (
            "thread",
            format!("of conversation {conversation}: {}", naming(change)),
        ),
        Record::Compaction {
            conversation,
            change,
        } => (
            "thread",
            format!("of conversation {conversation}: {}", compaction(change)),
        ),
        Record::ServerTurn { conversation, turn } => (
            "turn",
            format!("{turn} of conversation {conversation}, begun by the server"),
        ),
        Record::ThreadCreation {
            conversation,
            change,
        } => (
            "thread",
            format!("of conversation {conversation}: {}", creation(change)),
        ),
        Record::Prompt { message, change } => (
            "message",
            format!("{}: {}", short(message.as_str()), prompt(change)),
        ),
        Record::Selection { message, after, .. } => (
            "message",
            format!("{}: carries {}", short(message.as_str()), selection(after)),
        ),
        Record::ToolCall { call, change } => (
            "tool call",
            format!("{}: {}", call.sequence, tool_call(change)),
        ),
        Record::QuestionAsked { question, asked } => (
            "question",
            format!("{question}: asked, {}", visible(&asked.method)),
        ),
        Record::QuestionAnswered {
            question,
            result,
            chosen,
        } => {
            let by = if *chosen {
                "answered"
            } else {
                "declined by default"
            };
            (
                "question",
                format!("{question}: {by}, {}", brief(result.get(), 120)),
            )
        }
        Record::QuestionSettled { question, why } => {
            let why = why.map(|why| format!(", {why:?}")).unwrap_or_default();
            ("question", format!("{question}: settled{why}"))
        }
        Record::Cleanup {
            owner,
            action,
            change,
        } => ("clean-up", cleanup(owner, *action, change)),
        Record::Command { id, answer } => ("command", format!("{id}: {}", answered(answer))),
        Record::Request { command, method } => (
            "request",
            format!("{} of command {command}", visible(method)),
        ),
        Record::RequestEnded { command, end } => (
            "request",
            match end {
                RequestEnd::Answered => format!("of command {command}: answered"),
                RequestEnd::Refused { code } => format!("of command {command}: refused ({code})"),
                RequestEnd::NotSent => format!("of command {command}: not sent"),
                RequestEnd::Unknown => format!("of command {command}: its fate is unknown"),
            },
        ),
    }
}

fn attachment(attached: &Attached) -> String {
    let place = match &attached.endpoint {
        Endpoint::Spawn => "spawned".into(),
        Endpoint::Tcp { host, port } => format!("reached at {}:{port}", visible(host)),
        Endpoint::Unix { path } => format!("reached at {}", visible(path)),
        Endpoint::Stream => "reached over streams".into(),
    };
    match attached.child {
        Some(child) => format!("{place}, process {}", child.pid),
        None => place,
    }
}

fn selection(selection: &Selection) -> String {
    let fields = [
        ("model", &selection.model),
        ("effort", &selection.effort),
        ("personality", &selection.personality),
    ];
    let told = fields
        .iter()
        .filter_map(|(name, value)| Some(format!("{name} {}", visible(value.as_ref()?))))
        .collect::<Vec<_>>();
    match told.is_empty() {
        true => "the defaults".into(),
        false => told.join(", "),
    }
}

fn cleanup(owner: &Owner, action: Action, change: &CleanupChange) -> String {
    let owner = describe::owner_text(owner);
    let action = match action {
        Action::Detach => "detach",
        Action::Archive => "archive",
        Action::Delete => "delete",
    };
    let what = match change {
        CleanupChange::Owed { threads, marks } => {
            let all = threads.iter().map(|thread| thread.as_str());
            let all: Vec<_> = all.chain(marks.iter().map(String::as_str)).collect();
            format!("owed for {}", visible(&all.join(", ")))
        }
        CleanupChange::Done { thread } => format!("{} is done", visible(thread)),
        CleanupChange::MarkDone { mark } => format!("{} is done", visible(mark)),
    };
    format!("{action} {owner}: {what}")
}

fn answered(answer: &Remembered) -> String {
    match answer {
        Remembered::Opened { conversation } => format!("opened conversation {conversation}"),
        Remembered::Bound { thread } => format!("made thread {}", visible(thread)),
        Remembered::Accepted { turn, .. } => format!("accepted as turn {turn}"),
        Remembered::Steered { .. } => "taken into the running turn".into(),
        Remembered::Queued { .. } => "goes with the next round".into(),
        Remembered::Arrived { first, last } => format!("arrived, {}", span(first.0, last.0)),
        Remembered::Begun { turn: Some(turn) } => format!("begun as turn {turn}"),
        Remembered::Begun { turn: None } => "nothing to begin with".into(),
        Remembered::Preflighted { calls } => match calls.len() {
            1 => "begun with 1 call".into(),
            n => format!("begun with {n} calls"),
        },
        Remembered::Interrupted => "the turn was stopped".into(),
        Remembered::Done => "done".into(),
    }
}

fn creation(change: &CreationChange) -> String {
    match change {
        CreationChange::Preparing { .. } => "to be made".into(),
        CreationChange::Ready => "ready".into(),
        CreationChange::Dispatched => "thread/start may leave".into(),
        CreationChange::Seen { thread } => format!("seen as {}", visible(thread)),
        CreationChange::Bound { thread } => format!("is {}", visible(thread)),
        CreationChange::Unresolved => "no answer told of it; it is made again".into(),
        CreationChange::Gone => "is gone; another one is made".into(),
        CreationChange::Rejected { refusal } => visible(&format!("refused, {refusal}")),
    }
}

fn naming(change: &NamingChange) -> String {
    match change {
        NamingChange::Asked { name } => format!("to be named {}", visible(name)),
        NamingChange::Given => "has its name".into(),
        NamingChange::Refused => "got no name".into(),
    }
}

fn compaction(change: &CompactionChange) -> String {
    match change {
        CompactionChange::Asked { .. } => "thread/compact/start may leave".into(),
        CompactionChange::Began { turn } => format!("is compacted in {}", visible(turn)),
        CompactionChange::Ended { end } => match end {
            CompactionEnd::Turn(outcome) => format!("its compaction ended {}", outcome.name()),
            CompactionEnd::Request(end) => {
                let end = match end {
                    RequestEnd::Answered => "answered",
                    RequestEnd::Refused { .. } => "refused",
                    RequestEnd::NotSent => "not sent",
                    RequestEnd::Unknown => "its fate is unknown",
                };
                format!("its compaction ended with the request: {end}")
            }
        },
    }
}

fn round_change(change: &RoundChange) -> String {
    match change {
        RoundChange::Begun {
            turn,
            message,
            boxes,
        } => format!(
            "begun as turn {turn}, {} with {}",
            box_set(boxes),
            short(message.as_str())
        ),
        RoundChange::Restarted {
            turn,
            message,
            boxes,
        } => format!(
            "begun again as turn {turn}, {} with {}",
            box_set(boxes),
            short(message.as_str())
        ),
        RoundChange::Staged {
            turn,
            response,
            actions,
            ..
        } => {
            let said = match response.is_empty() {
                true => None,
                false => Some(format!("says {:?}", brief(response, 60))),
            };
            let acts = actions.iter().map(|action| match action {
                round::Action::Call(call) => {
                    let malformed = if call.malformed.is_some() {
                        " (malformed)"
                    } else {
                        ""
                    };
                    let arguments = brief(call.arguments.get(), 100);
                    let (sequence, tool) = (call.sequence, visible(&call.tool));
                    format!("makes call {sequence}, {tool} {arguments}{malformed}")
                }
                round::Action::Message { text, .. } => {
                    format!("sends {:?}", brief(text, 60))
                }
            });
            let all: Vec<_> = said.into_iter().chain(acts).collect();
            match all.is_empty() {
                true => format!("turn {turn} is at a stage"),
                false => format!("turn {turn} {}", all.join(", ")),
            }
        }
        RoundChange::Flushed {
            turn,
            message,
            boxes,
        } => format!(
            "{} go into turn {turn} with {}",
            box_set(boxes),
            short(message.as_str())
        ),
        RoundChange::FlushAnswered { message } => {
            format!("{} is answered", short(message.as_str()))
        }
        RoundChange::FlushGivenUp { message } => {
            format!("{} was not answered in time", short(message.as_str()))
        }
        RoundChange::Completed { turn, resume, .. } => {
            let more = if *resume { ", another one follows" } else { "" };
            format!("turn {turn} {}{more}", paint(GOOD, "completes it"))
        }
        RoundChange::Failed { turn, message, .. } => {
            let stalls = paint(BAD, "stalls it");
            format!("turn {turn} {stalls}: {}", brief(message, 120))
        }
        RoundChange::Dismissed => "the stall is dismissed".into(),
    }
}

fn preflight(entry: &PreflightEntry) -> String {
    match entry {
        PreflightEntry::System(body) => a_box(body),
        PreflightEntry::Call { sequence, offered } => {
            let waits = if offered.blocking { " (blocking)" } else { "" };
            format!("call {sequence} of {}{waits}", visible(&offered.tool))
        }
    }
}

fn a_box(body: &BoxBody) -> String {
    let contents = match body.contents.is_empty() {
        true => &body.hidden_contents,
        false => &body.contents,
    };
    format!("{} {:?}", brief(&body.box_type, 40), brief(contents, 60))
}

fn box_set(boxes: &BoxSet) -> String {
    match (boxes.len(), boxes.first(), boxes.last()) {
        (0, ..) | (_, None, _) | (.., None) => "no box".into(),
        (1, Some(id), _) => format!("box {id}"),
        (n, Some(first), Some(last)) if last.0 - first.0 + 1 == n => {
            format!("boxes {first} to {last}")
        }
        (n, Some(first), Some(last)) => format!("{n} boxes of {first} to {last}"),
    }
}

/// Numbers from one to another.
fn span(first: u64, last: u64) -> String {
    match first == last {
        true => first.to_string(),
        false => format!("{first} to {last}"),
    }
}

fn prompt(change: &PromptChange) -> String {
    match change {
        PromptChange::Prepared(_) => "accepted from the application".into(),
        PromptChange::Dispatched => "may leave".into(),
        PromptChange::Accepted { turn } => format!("the server has it, turn {}", visible(turn)),
        PromptChange::Output { text } => format!("agent says {:?}", brief(text, 80)),
        PromptChange::Unrecorded => "was never recorded by the server".into(),
        PromptChange::Ended {
            outcome, source, ..
        } => match source {
            EndSource::Reconciled => format!("{}, by the history", ended(outcome)),
            _ => ended(outcome),
        },
        PromptChange::CancelRequested => "shall be stopped".into(),
        PromptChange::CancelDispatched { .. } => "turn/interrupt may leave".into(),
        PromptChange::CancelSettled => "the interrupt is settled".into(),
        PromptChange::CancelAmbiguous => "the interrupt was not answered".into(),
        PromptChange::Delivering => "its end is told".into(),
        PromptChange::Delivered => "its end has arrived".into(),
        PromptChange::TimedOut => paint(BAD, "ran past its deadline"),
        PromptChange::Forsaken => "nobody waits for it any more".into(),
        PromptChange::Restarted => "is open again".into(),
    }
}

fn ended(outcome: &Outcome) -> String {
    let style = match outcome {
        Outcome::Completed { .. } => GOOD,
        Outcome::Interrupted => ALERT,
        _ => BAD,
    };
    let why = match outcome {
        Outcome::Failed { error } => format!(": {}", brief(&error.message, 120)),
        Outcome::Rejected { error } => format!(": {}", brief(&error.to_string(), 120)),
        Outcome::Lost { reason } => format!(": {}", brief(&reason.to_string(), 120)),
        Outcome::Unknown { evidence } => format!(": {}", brief(evidence, 120)),
        _ => String::new(),
    };
    format!("{}{why}", paint(style, outcome.name()))
}

fn tool_call(change: &CallChange) -> String {
    match change {
        CallChange::Asked(asked) => {
            let asked: Value = serde_json::to_value(asked).unwrap_or_default();
            let tool = asked["tool"].as_str().unwrap_or("?");
            let arguments = &asked["arguments"];
            format!(
                "asked, {} {}",
                visible(tool),
                brief(&arguments.to_string(), 100)
            )
        }
        CallChange::Launched => "the application is told".into(),
        CallChange::Message { text } => format!("says {:?}", brief(text, 80)),
        CallChange::Deferred => "its native call is gone: the result arrives later".into(),
        CallChange::Given => "its result is given to the native call".into(),
        CallChange::Answered { result, .. } => {
            let ok = if result.success { "ok" } else { "failed" };
            format!("answered, {ok}")
        }
        CallChange::Closed { why, .. } => format!("closed, {why:?}"),
    }
}

/// The beginning of an id that is 32 digits long.
fn short(id: &str) -> String {
    visible(&id.chars().take(12).collect::<String>())
}
