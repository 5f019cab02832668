//! Whole conversations, step by step: each log is a snapshot, and a review of behaviour is a review of its diff.

#![allow(clippy::unwrap_used, reason = "helpers of tests are tests")]

mod cleanup;
mod connection;
mod conversations;
mod journal;
mod plain;
mod questions;
mod server;
mod steers;
mod stops;
mod tools;

use std::fmt::Write as _;

/// Builds a script of one thread after the other, in the order of frames that the real server has.
#[derive(Default)]
struct Scene {
    text: String,
}

impl Scene {
    /// Threads and the like are answered by themselves; a frame that the script does not expect is a mistake.
    fn new() -> Self {
        Self {
            text: "X strict\nX auto all\n".into(),
        }
    }

    fn line(mut self, line: &str) -> Self {
        let _ = writeln!(self.text, "{line}");
        self
    }

    fn notify(self, method: &str, params: &str) -> Self {
        self.line(&format!(
            r#"S {{"method":"{method}","params":{{"threadId":"thr_1",{params}}}}}"#
        ))
    }

    /// Waits for the start of turn `n` and answers it.
    fn accept(self, n: u32) -> Self {
        self.line(&format!(
            r#"C {{"id":"$a{n}","method":"turn/start","params":{{"threadId":"thr_1","input":"$i{n}","clientUserMessageId":"$m{n}"}}}}"#
        ))
        .line(&format!(
            r#"S {{"id":"$a{n}","result":{{"turn":{{"id":"trn_{n}","items":[],"status":"inProgress","error":null}}}}}}"#
        ))
    }

    /// The server begins turn `n`.
    fn started(self, n: u32) -> Self {
        self.notify(
            "turn/started",
            &format!(r#""turn":{{"id":"trn_{n}","items":[],"status":"inProgress","error":null}}"#),
        )
    }

    /// The message that began turn `n` stands in it.
    fn recorded(self, n: u32) -> Self {
        self.item(
            n,
            &format!(r#""type":"userMessage","id":"usr_{n}","clientId":"$m{n}","content":"$i{n}""#),
        )
    }

    /// Waits for turn `n` and begins it.
    fn begin(self, n: u32) -> Self {
        self.accept(n).started(n).recorded(n)
    }

    /// An item of turn `n` is complete.
    fn item(self, n: u32, item: &str) -> Self {
        self.notify(
            "item/completed",
            &format!(r#""turnId":"trn_{n}","item":{{{item}}}"#),
        )
    }

    /// The agent answers in turn `n`.
    fn say(self, n: u32, text: &str) -> Self {
        self.item(
            n,
            &format!(
                r#""type":"agentMessage","id":"it_{n}","text":{text:?},"phase":"final_answer""#
            ),
        )
    }

    fn idle(self) -> Self {
        self.notify("thread/status/changed", r#""status":{"type":"idle"}"#)
    }

    /// Turn `n` is over.
    fn end(self, n: u32, status: &str) -> Self {
        self.notify(
            "turn/completed",
            &format!(r#""turn":{{"id":"trn_{n}","items":[],"status":"{status}","error":null}}"#),
        )
    }

    /// A whole turn.
    fn turn(self, n: u32, text: &str) -> Self {
        self.begin(n).say(n, text).idle().end(n, "completed")
    }

    /// The model calls a tool in turn `n`; waits for the answer.
    fn call(self, n: u32, id: u32, tool: &str, arguments: &str, answer: &str) -> Self {
        self.line(&format!(
            r#"S {{"id":{id},"method":"item/tool/call","params":{{"threadId":"thr_1","turnId":"trn_{n}","callId":"call_{id}","tool":"{tool}","arguments":{arguments}}}}}"#
        ))
        .line(&format!(r#"C {{"id":{id},{answer}}}"#))
    }

    /// Waits for an interrupt of turn `n` and grants it.
    fn interrupted(self, n: u32) -> Self {
        self.stop(n)
            .line(&format!(r#"S {{"id":"$s{n}","result":{{}}}}"#))
            .end(n, "interrupted")
    }

    /// Waits for an interrupt of turn `n`.
    fn stop(self, n: u32) -> Self {
        self.line(&format!(
            r#"C {{"id":"$s{n}","method":"turn/interrupt","params":{{"threadId":"thr_1","turnId":"trn_{n}"}}}}"#
        ))
    }

    /// Waits for a steer into turn `n`; its message is `$sm`.
    fn steer(self, n: u32) -> Self {
        self.line(&format!(
            r#"C {{"id":"$st","method":"turn/steer","params":{{"threadId":"thr_1","expectedTurnId":"trn_{n}","input":"$si","clientUserMessageId":"$sm"}}}}"#
        ))
    }

    fn start(self) -> turnkeep_tests::world::World {
        self.setup().start()
    }

    fn setup(self) -> turnkeep_tests::world::Setup {
        turnkeep_tests::world::Setup::script(&self.text)
    }
}
