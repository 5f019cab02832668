//! The model's tools: those of the demo, and commands of the user's own.

use std::{collections::BTreeMap, path::Path, time::Instant};

use tokio::{sync::oneshot, task::JoinSet};
use turnkeep_tokio::{Tool, ToolCall, ToolCallId, ToolResult};

use crate::{
    problem::Problem,
    tool_command::{Command, run},
    tool_file,
};

/// The tools of a conversation, and the calls of them that run.
pub(crate) struct Toolbox {
    kind: Kind,
    /// What each call has come to. Dropped it stops what runs.
    running: JoinSet<(ToolCallId, ToolResult)>,
    calls: BTreeMap<ToolCallId, Call>,
}

enum Kind {
    Function(fn(&ToolCall) -> ToolResult),
    Commands(BTreeMap<String, Command>),
}

struct Call {
    tool: String,
    since: Instant,
    /// Dropped it stops the call.
    _stop: oneshot::Sender<()>,
}

/// A call that has its result.
pub(crate) struct Done {
    pub(crate) call: ToolCallId,
    pub(crate) tool: String,
    pub(crate) took: std::time::Duration,
    pub(crate) result: ToolResult,
}

impl Toolbox {
    fn new(kind: Kind) -> Self {
        Self {
            kind,
            running: JoinSet::new(),
            calls: BTreeMap::new(),
        }
    }

    /// No tools.
    pub(crate) fn empty() -> Self {
        Self::of(|_| ToolResult::failed("this tool is not served"))
    }

    /// Tools that a function serves.
    pub(crate) fn of(serve: fn(&ToolCall) -> ToolResult) -> Self {
        Self::new(Kind::Function(serve))
    }

    /// The tools that a file declares, and how they are declared to the model. Their commands run
    /// in `here` where it says nothing else.
    pub(crate) fn load(path: &Path, here: &Path) -> Result<(Self, Vec<Tool>), Problem> {
        let declared = tool_file::read(path, here)?;
        let tools = declared.iter().map(|(tool, _)| tool.clone()).collect();
        let commands = declared
            .into_iter()
            .map(|(tool, command)| (tool.name, command))
            .collect();
        Ok((Self::new(Kind::Commands(commands)), tools))
    }

    /// Begins to serve a call. One that runs already runs on.
    pub(crate) fn start(&mut self, call: &ToolCall) {
        if self.calls.contains_key(&call.id) {
            return;
        }
        let (stop, stopped) = oneshot::channel();
        let id = call.id;
        match &self.kind {
            Kind::Function(serve) => {
                let result = serve(call);
                self.running.spawn(async move { (id, result) });
            }
            Kind::Commands(commands) => match commands.get(&call.tool) {
                Some(command) => {
                    let work = run(command, call, stopped);
                    self.running.spawn(async move { (id, work.await) });
                }
                None => {
                    let result = ToolResult::failed("this tool is not served");
                    self.running.spawn(async move { (id, result) });
                }
            },
        }
        let call = Call {
            tool: call.tool.clone(),
            since: Instant::now(),
            _stop: stop,
        };
        self.calls.insert(id, call);
    }

    /// Stops a call whose result nobody wants any more. Gives the tool, if it ran.
    pub(crate) fn stop(&mut self, call: ToolCallId) -> Option<String> {
        self.calls.remove(&call).map(|call| call.tool)
    }

    /// The next call that has its result. Waits for ever where none runs; may be dropped and asked
    /// again.
    pub(crate) async fn next(&mut self) -> Done {
        loop {
            match self.running.join_next().await {
                Some(Ok((call, result))) => {
                    // One that was stopped is not in the list any more.
                    if let Some(of) = self.calls.remove(&call) {
                        return Done {
                            call,
                            tool: of.tool,
                            took: of.since.elapsed(),
                            result,
                        };
                    }
                }
                Some(Err(_)) => {}
                None => std::future::pending().await,
            }
        }
    }

    /// The tools whose calls run, and for how long.
    pub(crate) fn running(&self) -> impl Iterator<Item = (&str, std::time::Duration)> {
        let calls = self.calls.values();
        calls.map(|call| (call.tool.as_str(), call.since.elapsed()))
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.calls.is_empty()
    }
}
