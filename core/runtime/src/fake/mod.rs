//! A stand-in for `codex app-server`, for the demo and for tests.
//!
//! Two servers, one loop. [`Engine`] plays a [`Script`]: the faults that clients of this protocol meet, written down as the frames
//! that show them. [`Demo`] makes conversation without a model, in the shapes and the order that a real 0.171.0 uses. Both are pure:
//! bytes in, [`Action`]s out, no clock and no file. [`serve`] gives them pipes, [`run`] the pipes of this process. Blocking
//! standard library IO only, so that a bug of the async runtime under test cannot hide in its own test server.
//!
//! # The script language
//!
//! One step a line. Empty lines and lines that begin with `#` say nothing.
//!
//! | line | step |
//! | --- | --- |
//! | `C {json}` | wait for a client frame that matches the pattern |
//! | `C& {json}` | the client owes this one too, in any order with the `C` line above |
//! | `C? {json}` | from here on such a frame may come, once; `S?` lines below it are its answer |
//! | `C* {json}` | the same, as often as it likes; its own variables are bound afresh each time |
//! | `S {json}` | write the frame and a line feed, keys in the order given |
//! | `S< text` | write raw bytes, no line feed added: `\n \r \t \0 \e \\ \xNN \u{N}`, and `${name}` for the JSON of a variable |
//! | `X sleep MS` | let time pass; frames that come meanwhile are read afterwards |
//! | `X exit CODE` | exit with this code |
//! | `X die` | be killed by signal 9 |
//! | `X close stdout` | the client reads the end of the stream; the process goes on |
//! | `X stderr TEXT` | write a line to stderr (escapes as in `S<`) |
//! | `X stderr-flood BYTES` | write so many bytes to stderr without a line feed |
//! | `X hang` | read and ignore for ever |
//! | `X eof` | wait for the end of stdin, then go on |
//! | `X ignore-eof` | from here on the end of stdin does not end the process |
//! | `X ignore-term` | the whole process ignores SIGTERM |
//! | `X grandchild` | start a process that inherits stdout, ignores SIGTERM and sleeps; its pid goes to stderr |
//! | `X big METHOD BYTES` | a command execution item with so many bytes of output, in writes of 4 KiB |
//! | `X repeat N` … `X end` | do it N times, variable `i` counts from 0 |
//! | `X chunks N` | cut what is written from here on into pieces of N bytes; `X chunks off` ends it |
//! | `X random-chunks SEED` | the same with pieces of 1 to 16 bytes |
//! | `X auto WHAT…` | answer by itself: `threads`, `unsubscribe`, `history`, `names`, or `all` |
//! | `X next life` | what follows is for the next process; see [`Script::parse_life`] |
//! | `X strict` | after the last line a frame is a mismatch too (else it is ignored) |
//! | `X must-finish` | the end of stdin before the last line exits with 96, not 0 |
//!
//! **Patterns.** An object matches if each of its members matches, a list if it has as many elements and each matches. `"*"` is
//! anything, `"$name"` binds a variable or, once bound, compares with it, `"~text"` is a string that contains the text, `"!absent"`
//! is a member that must not be there, `"$$x"` is the string `$x`. Everything else equals itself.
//!
//! **Values.** In `S` lines a string that is `"$name"` as a whole becomes the variable's JSON, so that a numeric id stays a number.
//! `${name}` inside a string becomes its text, `${x*20000}` that many `x`.
//!
//! **What is answered unasked.** Until the script says `C` for them itself: `initialize` (as a 0.171.0 would) and `initialized`.
//! With `X auto`: a started thread is `thr_1`, then `thr_2`, with the settings and the mark that were asked, the list of loaded threads is empty, and `$tool` is the name of
//! the first tool declared; `history` is `thread/resume`, `thread/read` and the lists of turns and items, all of them empty, and `models` a list
//! without any.
//!
//! Any other frame that comes while `C` or `X eof` waits is a mismatch: one line on stderr, `fake-app-server: script line N:
//! expected …, got …`, and exit code 97. A script that uses a variable which was never bound exits with 98. The end of stdin makes the process exit with 0 at once,
//! as the real one does.

mod demo;
mod engine;
mod script;
mod serve;
mod template;

use serde_json::Value;

pub use demo::{Demo, demo};
pub use engine::{Engine, MISMATCH, SCRIPT_FAULT, UNFINISHED};
pub use script::{Script, ScriptError};
pub use serve::{End, run, serve};

/// What a fake server wants done. In order; a line from the client is handed in only when all before it are done.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Action {
    /// Write these bytes to stdout, in one piece.
    Write(Vec<u8>),
    /// Let so many milliseconds pass.
    Sleep(u64),
    /// Write these bytes to stderr.
    Stderr(Vec<u8>),
    /// Exit with this code.
    Exit(i32),
    /// Die of signal 9.
    Die,
    /// Close stdout and go on with the script `rest`.
    CloseStdout {
        /// The script's remaining lines.
        rest: String,
    },
    /// Keep these bytes for the next process, in place of those kept before: in the file that `TURNKEEP_FAKE_STORE` names.
    Keep(Vec<u8>),
    /// Start a process that inherits stdout, ignores SIGTERM and sleeps; its pid goes to stderr.
    SpawnGrandchild,
}

/// A server that [`serve`] can run. Times are milliseconds since its start.
pub trait Server {
    /// A line from the client, without its line feed.
    fn on_line(&mut self, now: u64, line: &[u8]) -> Vec<Action>;
    /// The client closed stdin. If [`Action::Exit`] comes first (but for [`Action::Stderr`]), everything still to be done is dropped.
    fn on_eof(&mut self, now: u64) -> Vec<Action>;
    /// What is to be done at this time without a line from the client.
    fn poll(&mut self, now: u64) -> Vec<Action>;
    /// When `poll` has something to do next.
    fn due(&self) -> Option<u64>;
}

/// The sandbox policy that answers a sandbox mode.
fn sandbox(mode: &Value) -> &'static str {
    match mode.as_str() {
        Some("danger-full-access") => r#"{"type":"dangerFullAccess"}"#,
        Some("workspace-write") => {
            r#"{"type":"workspaceWrite","writableRoots":[],"networkAccess":false,"excludeTmpdirEnvVar":false,"excludeSlashTmp":false}"#
        }
        _ => r#"{"type":"readOnly","networkAccess":false}"#,
    }
}
