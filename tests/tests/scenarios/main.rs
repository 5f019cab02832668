//! Whole conversations, step by step: each log is a snapshot, and a review of behaviour is a review of its diff.

#![allow(clippy::unwrap_used, reason = "helpers of tests are tests")]

mod attach;
mod authorization;
mod child_calls;
mod children;
mod cleanup;
mod connection;
mod continuity;
mod conversations;
mod deferred;
mod differences;
mod forks;
mod journal;
mod mailbox;
mod malformed;
mod models;
mod pending;
mod plain;
mod preflight;
mod questions;
mod reattach;
mod reconnect;
mod recovery;
mod rounds;
mod server;
mod stalls;
mod steers;
mod stops;
mod talk;
mod texts;
mod threads;
mod tokens;
mod tools;

use std::fmt::Write as _;

/// Builds a script of one thread after the other, in the order of frames that the real server has.
#[derive(Default)]
struct Scene {
    text: String,
    /// Answers so far whose requests have names of their own.
    asked: u32,
}

impl Scene {
    /// Threads and the like are answered by themselves; a frame that the script does not expect is a mistake.
    fn new() -> Self {
        Self {
            text: "X strict\nX auto all\n".into(),
            asked: 0,
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

    /// What follows is for the next connection, or the next process.
    fn next_life(self) -> Self {
        self.line("X next life\nX strict\nX auto threads unsubscribe names")
    }

    /// Waits for a request and answers it.
    fn answer(mut self, method: &str, params: &str, answer: &str) -> Self {
        self.asked += 1;
        let id = format!("q{}", self.asked);
        self.line(&format!(
            r#"C {{"id":"${id}","method":"{method}","params":{{{params}}}}}"#
        ))
        .line(&format!(r#"S {{"id":"${id}",{answer}}}"#))
    }

    /// The thread is resumed, and has this status.
    fn resume(self, status: &str) -> Self {
        self.answer(
            "thread/resume",
            r#""threadId":"thr_1","excludeTurns":true"#,
            &format!(r#""result":{{"thread":{{"id":"thr_1","status":{{"type":"{status}"}}}}}}"#),
        )
    }

    /// The empty turn of a message that is to be sent again is taken back.
    fn revert(self, turn: u32) -> Self {
        self.answer(
            "thread/revert",
            &format!(r#""threadId":"thr_1","beforeTurnId":"trn_{turn}""#),
            r#""result":{"thread":{"id":"thr_1"}}"#,
        )
    }

    /// The thread cannot be resumed.
    fn refuse_resume(self, message: &str) -> Self {
        self.answer(
            "thread/resume",
            r#""threadId":"thr_1""#,
            &format!(r#""error":{{"code":-32600,"message":"{message}"}}"#),
        )
    }

    /// The whole history is read: these turns, newest first.
    fn history(self, turns: &[String]) -> Self {
        self.answer(
            "thread/turns/list",
            r#""threadId":"thr_1","itemsView":"full","cursor":"!absent""#,
            &format!(
                r#""result":{{"data":[{}],"nextCursor":null}}"#,
                turns.join(",")
            ),
        )
    }

    /// The history is read as often as anybody wants to, and has these turns.
    fn histories(self, turns: &[String]) -> Self {
        self.line(r#"C* {"id":"$h","method":"thread/turns/list","params":{"threadId":"thr_1"}}"#)
            .line(&format!(
                r#"S? {{"id":"$h","result":{{"data":[{}],"nextCursor":null}}}}"#,
                turns.join(",")
            ))
    }

    /// Waits for the start of turn `n` once more, with the same message; it is turn `native` now.
    fn accept_again(self, n: u32, native: u32) -> Self {
        self.answer(
            "turn/start",
            &format!(r#""threadId":"thr_1","input":"$i{n}","clientUserMessageId":"$m{n}""#),
            &format!(r#""result":{{"turn":{{"id":"trn_{native}","items":[],"status":"inProgress","error":null}}}}"#),
        )
    }

    /// The history cannot be read, says this answer.
    fn bad_history(self, result: &str) -> Self {
        let params = r#""threadId":"thr_1""#;
        self.answer(
            "thread/turns/list",
            params,
            &format!(r#""result":{result}"#),
        )
    }

    /// The message of turn `n` is sent once more, and its turn, `native` now, runs to its end.
    fn turn_again(self, n: u32, native: u32, text: &str) -> Self {
        let own = format!(
            r#""type":"userMessage","id":"usr_{native}","clientId":"$m{n}","content":"$i{n}""#
        );
        self.accept_again(n, native)
            .started(native)
            .item(native, &own)
            .say(native, text)
            .idle()
            .end(native, "completed")
    }

    fn start(self) -> turnkeep_tests::world::World {
        self.setup().start()
    }

    fn setup(self) -> turnkeep_tests::world::Setup {
        turnkeep_tests::world::Setup::script(&self.text)
    }
}

/// A turn of the history.
fn past(n: u32, status: &str, items: &[String]) -> String {
    let error = match status {
        "failed" => {
            r#"{"message":"the model failed","codexErrorInfo":"serverOverloaded","additionalDetails":null}"#
        }
        _ => "null",
    };
    format!(
        r#"{{"id":"trn_{n}","items":[{}],"itemsView":"full","status":"{status}","error":{error}}}"#,
        items.join(",")
    )
}

/// A message of ours in the history, bound as `$name`.
fn own(name: &str) -> String {
    format!(r#"{{"type":"userMessage","id":"item-1","clientId":"${name}","content":[]}}"#)
}

/// A message of the agent in the history.
fn said(text: &str) -> String {
    format!(r#"{{"type":"agentMessage","id":"item-2","text":{text:?},"phase":"final_answer"}}"#)
}
