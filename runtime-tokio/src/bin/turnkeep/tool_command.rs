//! A tool that is a command of the user's own: its arguments on stdin, its result from stdout.

use std::{
    path::PathBuf,
    process::{ExitStatus, Stdio},
    time::Duration,
};

use rustix::process::{Pid, Signal, kill_process_group};
use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWriteExt as _},
    process,
    sync::oneshot,
};
use turnkeep_tokio::{ToolCall, ToolResult};

/// How much of the output is the result, in bytes.
const OUTPUT: usize = 256 << 10;

/// How much of the end of stderr is told where the command fails.
const TAIL: usize = 4 << 10;

/// How long what the command left running may hold its output open.
const LEFT_BEHIND: Duration = Duration::from_secs(1);

/// A command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Command {
    pub(crate) words: Vec<String>,
    pub(crate) cwd: PathBuf,
    pub(crate) env: Vec<(String, String)>,
}

/// Runs a command for a call. When the future is dropped, or `stopped` fires, its whole process
/// group is killed.
pub(crate) fn run(
    command: &Command,
    call: &ToolCall,
    mut stopped: oneshot::Receiver<()>,
) -> impl Future<Output = ToolResult> + use<> {
    let mut child = process::Command::new(command.words.first().map_or("", String::as_str));
    child
        .args(command.words.iter().skip(1))
        .current_dir(&command.cwd)
        .env("TURNKEEP_TOOL", &call.tool)
        .env("TURNKEEP_CALL", call.id.sequence.to_string())
        .envs(command.env.iter().map(|(name, value)| (name, value)))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .process_group(0)
        .kill_on_drop(true);
    let arguments = format!("{}\n", call.arguments.get());
    let program = command.words.first().cloned().unwrap_or_default();
    async move {
        let mut child = match child.spawn() {
            Ok(child) => child,
            Err(error) => {
                return ToolResult::failed(format!("{program} could not be started: {error}"));
            }
        };
        let group = Group::of(&child);
        let (stdin, stdout, stderr) =
            (child.stdin.take(), child.stdout.take(), child.stderr.take());
        let write = async {
            if let Some(mut stdin) = stdin {
                // A command that wants no arguments does not read them.
                let _ = stdin.write_all(arguments.as_bytes()).await;
            }
        };
        let (mut out, mut err) = (Head::new(OUTPUT), Tail::default());
        let ended = {
            let read = async { tokio::join!(out.read(stdout), err.read(stderr), write) };
            let mut read = std::pin::pin!(read);
            let mut reads = true;
            let status = loop {
                tokio::select! {
                    status = child.wait() => break status,
                    // Output that was closed early says nothing of the end.
                    _ = &mut read, if reads => reads = false,
                    _ = &mut stopped => {
                        drop(group);
                        let _ = child.wait().await;
                        return ToolResult::failed("stopped");
                    }
                }
            };
            // What it left running ends with it.
            drop(group);
            if reads {
                let _ = tokio::time::timeout(LEFT_BEHIND, read).await;
            }
            status
        };
        match ended {
            Ok(status) if status.success() => ToolResult::ok(out.text()),
            Ok(status) => ToolResult::failed(failure(status, &out, &err)),
            Err(error) => ToolResult::failed(format!("{program} was lost: {error}")),
        }
    }
}

fn failure(status: ExitStatus, out: &Head, err: &Tail) -> String {
    let err = err.text();
    let told = if err.is_empty() { out.text() } else { err };
    match told.is_empty() {
        true => status.to_string(),
        false => format!("{status}\n{told}"),
    }
}

/// A process group that is killed when this is dropped.
pub(crate) struct Group(Option<Pid>);

impl Group {
    pub(crate) fn of(child: &process::Child) -> Self {
        let pid = child.id().and_then(|id| i32::try_from(id).ok());
        Self(pid.and_then(Pid::from_raw))
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        if let Some(group) = self.0 {
            // It fails where all of it has ended.
            let _ = kill_process_group(group, Signal::KILL);
        }
    }
}

/// The beginning of an output. The rest is read and forgotten, so that no command waits for it.
struct Head {
    bytes: Vec<u8>,
    limit: usize,
    cut: bool,
}

impl Head {
    fn new(limit: usize) -> Self {
        Self {
            bytes: Vec::new(),
            limit,
            cut: false,
        }
    }

    async fn read(&mut self, from: Option<impl AsyncRead + Unpin>) {
        let Some(mut from) = from else { return };
        let mut buffer = vec![0; 8 << 10];
        while let Ok(n @ 1..) = from.read(&mut buffer).await {
            let left = self.limit - self.bytes.len();
            self.cut |= n > left;
            self.bytes.extend_from_slice(&buffer[..n.min(left)]);
        }
    }

    fn text(&self) -> String {
        let text = String::from_utf8_lossy(&self.bytes);
        let text = text.trim_end_matches(['\n', '\r']);
        match self.cut {
            true => format!("{text}\n[cut here: only {} bytes are kept]", self.limit),
            false => text.to_owned(),
        }
    }
}

/// The end of an output.
#[derive(Default)]
struct Tail(Vec<u8>);

impl Tail {
    async fn read(&mut self, from: Option<impl AsyncRead + Unpin>) {
        let Some(mut from) = from else { return };
        let mut buffer = vec![0; 8 << 10];
        while let Ok(n @ 1..) = from.read(&mut buffer).await {
            self.0.extend_from_slice(&buffer[..n]);
            let over = self.0.len().saturating_sub(TAIL);
            self.0.drain(..over);
        }
    }

    fn text(&self) -> String {
        let text = String::from_utf8_lossy(&self.0);
        text.trim_end_matches(['\n', '\r']).to_owned()
    }
}
