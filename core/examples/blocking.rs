//! A runtime, all of it: one loop over pipes, a file and a clock. The machine decides, it carries out.
//!
//! `cargo run -p turnkeep-core --example blocking -- [PROGRAM ARG…]` asks PROGRAM, else codex, about
//! the weather, and keeps its journal in `blocking.journal`. What goes on after a crash begins with
//! `codec::journal::decode` and [`Recovery`] in place of [`Machine::new`]; the loop is the same.

#![allow(clippy::disallowed_methods, clippy::disallowed_types)] // Clock, thread and chance are ours.

use std::hash::{BuildHasher as _, RandomState};
use std::io::{self, Read as _, Write as _};
use std::process::{self, ChildStdin, Stdio};
use std::sync::mpsc::{Sender, channel};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use std::{env, error::Error, fs::File, thread};

use turnkeep_core::{codec::journal, event::ConnectionEvent, event::EndReason, *};

fn main() -> Result<(), Box<dyn Error>> {
    let given: Vec<String> = env::args().skip(1).collect();
    let codex = vec!["codex".into(), "app-server".into()];
    let program = if given.is_empty() { codex } else { given };
    // The machine has neither chance nor time of its own: it gets a seed that is never used twice,
    // and the wall clock, which is read once and goes on as a monotonic one.
    let seed = RandomState::new().hash_one("seed");
    let (wall, start) = (SystemTime::now(), Instant::now());
    let wall = wall.duration_since(UNIX_EPOCH)?;
    let now = || Timestamp(0).after(wall + start.elapsed());
    let mut config = Config::default();
    config.authorization = Authorization::None;
    let (mut machine, mut effects) = Machine::new(config, seed, now())?;

    let mut file = File::create("blocking.journal")?;
    let mut stdin: Option<ChildStdin> = None;
    // All that happens comes here, in order, whether we did it or the server.
    let (inputs, happened) = channel();
    let mut commands = (1..).map(CommandId);
    let mut wishes = vec![conversation()?];
    loop {
        // Each effect is carried out before the next.
        for effect in effects.list {
            match effect {
                // The machine keeps a frame back until the record that it needs is confirmed. Where
                // the disk fails we end, so that no frame leaves without its record.
                Effect::Append(batch) => {
                    file.write_all(&journal::encode(&batch))?;
                    file.sync_data()?;
                    let through = batch.through;
                    inputs.send(Input::Appended { through })?;
                }
                Effect::Send(epoch, frame) => {
                    match stdin.as_mut().map(|pipe| pipe.write_all(&frame.bytes)) {
                        Some(Ok(())) => {}
                        // Nobody knows how much of it was written. The server goes, and that is told.
                        Some(Err(_)) => stdin = None,
                        // Not a byte of it was written, so that it may be sent again.
                        None => inputs.send(Input::SendFailed(epoch, frame.seq))?,
                    }
                }
                Effect::Open(epoch, _) => {
                    let (pid, pipe) = open(&program, epoch, inputs.clone())?;
                    stdin = Some(pipe);
                    inputs.send(Input::Opened(epoch, Peer::child(pid, None)))?;
                }
                // The server goes when its stdin ends. Whoever cannot rely on that kills it later.
                Effect::Close(..) => stdin = None,
                Effect::Emit(Event::Connection(event)) => match *event {
                    ConnectionEvent::Ended(EndReason::ClosedByUs) => return Ok(()),
                    ConnectionEvent::Ended(reason) => return Err(reason.into()),
                    _ => {}
                },
                Effect::Emit(event) => wishes.extend(told(event)?),
            }
        }
        for (command, id) in wishes.drain(..).zip(&mut commands) {
            inputs.send(Input::Command { id, command })?;
        }
        io::stdout().flush()?;
        // Whatever happens next. Where nothing does until the deadline, that is it.
        let left = effects.deadline.map(|due| due.at.since(now()));
        let next = happened.recv_timeout(left.unwrap_or(Duration::MAX));
        effects = machine.step(now(), next.unwrap_or(Input::Tick));
    }
}

/// Starts the server, and a thread that reads come what may: a server whose output nobody takes
/// would take no input either.
fn open(args: &[String], epoch: Epoch, to: Sender<Input>) -> io::Result<(u32, ChildStdin)> {
    let mut program = process::Command::new(&args[0]);
    program.args(&args[1..]).stdin(Stdio::piped());
    let child = program.stdout(Stdio::piped()).spawn();
    let mut child = child.map_err(|e| io::Error::new(e.kind(), format!("{}: {e}", args[0])))?;
    let (stdin, stdout) = (child.stdin.take(), child.stdout.take());
    let (stdin, mut stdout) = stdin.zip(stdout).ok_or(io::ErrorKind::BrokenPipe)?;
    let pid = child.id();
    thread::spawn(move || {
        let mut buffer = vec![0; 64 << 10];
        while let Ok(length @ 1..) = stdout.read(&mut buffer) {
            // A whole read, as it came: the machine finds the lines.
            let _ = to.send(Input::Received(epoch, buffer[..length].to_vec()));
        }
        let code = child.wait().ok().and_then(|status| status.code());
        let reason = CloseReason::Exited { code, signal: None };
        let closed = Closed::new(reason, String::new());
        let _ = to.send(Input::Closed(epoch, Box::new(closed)));
    });
    Ok((pid, stdin))
}

/// The application's first wish.
fn conversation() -> Result<Command, Box<dyn Error>> {
    let schema = RawJson::parse(r#"{"type":"object","properties":{"city":{"type":"string"}}}"#)?;
    let tool = Tool::function("weather", "The weather in a city.", schema);
    let settings = Box::new(Settings::new().tool(tool));
    let key = ConversationKey::new("weather").ok_or("no key")?;
    Ok(Command::Open { key, settings })
}

/// The application: it is told what happens, and says what it wants.
fn told(event: Event) -> Result<Vec<Command>, CommandError> {
    match event {
        Event::Delta(delta) => print!("{}", delta.text),
        Event::Answer { answer, .. } => {
            if let Reply::Opened { conversation } = (*answer)? {
                let input = vec!["What is the weather in Oslo?".into()];
                let options = Box::default();
                return Ok(vec![Command::Send {
                    conversation,
                    input,
                    options,
                }]);
            }
        }
        Event::Turn(event) => match event.update {
            TurnUpdate::ToolCall(call) => {
                let (call, result) = (call.id, ToolResult::ok("3 °C, light snow"));
                return Ok(vec![Command::Respond { call, result }]);
            }
            TurnUpdate::Ended(end) => {
                println!("\n{}", end.outcome.name());
                let turn = event.turn;
                return Ok(vec![Command::Acknowledge { turn }, Command::Shutdown]);
            }
            _ => {}
        },
        _ => {}
    }
    Ok(Vec::new())
}
