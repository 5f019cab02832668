//! The tool in a terminal.

use std::{
    fs::{self, File},
    io::{Read as _, Write as _},
    num::NonZeroU16,
    os::{fd::OwnedFd, unix::fs::PermissionsExt as _},
    process::{Child, Command, ExitStatus},
    sync::{
        Arc, Condvar, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    fs::{Mode, OFlags, open},
    io::{FdFlags, fcntl_setfd},
    process::Signal,
    pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt},
    termios::{LocalModes, Winsize, tcgetattr, tcsetwinsize},
};
use vt100::{Callbacks, Parser, Screen};

use crate::{
    recorded::Codex,
    support::{fake, processes_with, signal, tool},
};

const ROWS: u16 = 30;
const COLUMNS: u16 = 100;

const CTRL_C: &str = "\x03";
const CTRL_D: &str = "\x04";
const UP: &str = "\x1b[A";

/// A terminal with the tool in it.
struct Terminal {
    child: Child,
    keyboard: File,
    screen: Arc<(Mutex<Glass>, Condvar)>,
    /// How much of what was written was looked at.
    seen: usize,
    unplugged: Arc<AtomicBool>,
}

/// All that was written, and what it looks like.
struct Glass {
    written: String,
    parser: Parser<Cursor>,
}

/// Tells where the cursor is when it is asked.
struct Cursor(File);

impl Callbacks for Cursor {
    fn unhandled_csi(
        &mut self,
        screen: &mut Screen,
        _: Option<u8>,
        _: Option<u8>,
        params: &[&[u16]],
        c: char,
    ) {
        if (params, c) == (&[&[6][..]][..], 'n') {
            let (row, column) = screen.cursor_position();
            write!(self.0, "\x1b[{};{}R", row + 1, column + 1).unwrap();
        }
    }
}

impl Terminal {
    fn new(command: &mut Command) -> Self {
        Self::of_kind("xterm-256color", command)
    }

    fn of_kind(kind: &str, command: &mut Command) -> Self {
        let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
        // The tool shall not hold its own terminal open.
        fcntl_setfd(&master, FdFlags::CLOEXEC).unwrap();
        grantpt(&master).unwrap();
        unlockpt(&master).unwrap();
        let size = Winsize {
            ws_row: ROWS,
            ws_col: COLUMNS,
            ws_xpixel: 0,
            ws_ypixel: 0,
        };
        tcsetwinsize(&master, size).unwrap();
        let name = ptsname(&master, Vec::new()).unwrap();
        let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC;
        let slave: OwnedFd = open(name.as_c_str(), flags, Mode::empty()).unwrap();
        let end = || slave.try_clone().unwrap();
        let child = command.stdin(end()).stdout(end()).stderr(end());
        let child = child.env("TERM", kind).spawn().unwrap();
        let mut glass = File::from(master.try_clone().unwrap());
        let cursor = Cursor(glass.try_clone().unwrap());
        let unplugged = Arc::new(AtomicBool::new(false));
        let [rows, columns] = [ROWS, COLUMNS].map(|n| NonZeroU16::new(n).unwrap());
        let screen = Arc::new((
            Mutex::new(Glass {
                written: String::new(),
                parser: Parser::new_with_callbacks(rows, columns, 0, cursor),
            }),
            Condvar::new(),
        ));
        let (shown, off) = (Arc::clone(&screen), Arc::clone(&unplugged));
        // The command holds the other end open, too.
        *command = Command::new("true");
        drop(slave);
        thread::spawn(move || {
            let mut buffer = [0; 4096];
            while !off.load(Ordering::Relaxed) {
                let mut ends = [PollFd::new(&glass, PollFlags::IN)];
                let short = Timespec::try_from(Duration::from_millis(50)).unwrap();
                if poll(&mut ends, Some(&short)).unwrap() == 0 {
                    continue;
                }
                let Ok(n @ 1..) = glass.read(&mut buffer) else {
                    break;
                };
                let text = String::from_utf8_lossy(&buffer[..n]).into_owned();
                let mut screen = shown.0.lock().unwrap_or_else(PoisonError::into_inner);
                screen.written.push_str(&text);
                screen.parser.process(&buffer[..n]);
                shown.1.notify_all();
            }
            shown.0.lock().unwrap().parser.callbacks_mut().0 = File::open("/dev/null").unwrap();
        });
        Self {
            child,
            keyboard: File::from(master),
            screen,
            seen: 0,
            unplugged,
        }
    }

    fn wait(&self, mut done: impl FnMut(&Glass) -> bool) -> Result<(), String> {
        let late = Instant::now() + Duration::from_secs(60);
        let mut glass = self.screen.0.lock().unwrap_or_else(PoisonError::into_inner);
        while !done(&glass) {
            let left = late.saturating_duration_since(Instant::now());
            if left.is_zero() {
                let looks = glass.parser.screen().contents();
                return Err(format!("{looks}\n\n{:?}", glass.written));
            }
            let wait = self.screen.1.wait_timeout(glass, left);
            glass = wait.unwrap_or_else(PoisonError::into_inner).0;
        }
        Ok(())
    }

    /// Waits until something new is written; gives back all up to it.
    #[track_caller]
    fn see(&mut self, text: &str) -> String {
        let from = self.seen;
        let mut found = String::new();
        let seen = self.wait(|glass| {
            let at = glass.written[from..].find(text);
            let to = at.map(|at| from + at + text.len());
            found.push_str(to.map_or("", |to| &glass.written[from..to]));
            to.is_some()
        });
        assert_eq!(seen, Ok(()), "{text:?} is not written");
        self.seen = from + found.len();
        found
    }

    /// Waits until the screen ends with these rows, and the cursor stands behind them.
    #[track_caller]
    fn ends_with(&mut self, rows: &[&str]) {
        let wanted = rows.join("\n");
        let seen = self.wait(|glass| {
            let contents = glass.parser.screen().contents();
            contents.trim_end().ends_with(wanted.trim_end())
        });
        assert_eq!(seen, Ok(()), "the screen does not end with {wanted:?}");
        let glass = self.screen.0.lock().unwrap_or_else(PoisonError::into_inner);
        self.seen = glass.written.len();
    }

    fn press(&mut self, keys: &str) {
        self.keyboard.write_all(keys.as_bytes()).unwrap();
    }

    fn type_line(&mut self, text: &str) {
        self.press(text);
        self.press("\n");
    }

    #[track_caller]
    fn ends(&mut self) -> ExitStatus {
        let late = Instant::now() + Duration::from_secs(60);
        loop {
            match self.child.try_wait().unwrap() {
                Some(status) => return status,
                None if Instant::now() < late => thread::sleep(Duration::from_millis(10)),
                None => panic!("it does not end: {}", self.screen.0.lock().unwrap().written),
            }
        }
    }

    /// Takes the terminal away.
    fn unplug(&mut self) {
        self.keyboard = File::open("/dev/null").unwrap();
        self.unplugged.store(true, Ordering::Relaxed);
    }

    /// Waits for the end; the terminal is as it was.
    #[track_caller]
    fn exits(&mut self, code: i32) {
        let status = self.ends();
        let glass = self.screen.0.lock().unwrap_or_else(PoisonError::into_inner);
        assert_eq!(status.code(), Some(code), "{}", glass.written);
        let modes = tcgetattr(&self.keyboard).unwrap().local_modes;
        assert!(modes.contains(LocalModes::ICANON | LocalModes::ECHO | LocalModes::ISIG));
        assert!(!glass.parser.screen().bracketed_paste());
        assert!(!glass.parser.screen().hide_cursor());
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        // Where a test failed.
        let _ = self.child.kill();
    }
}

#[test]
fn a_conversation_asks_before_it_runs_and_only_yes_is_yes() {
    let state = tempfile::tempdir().unwrap();
    let mut terminal = Terminal::new(tool(&state).args(["chat", "--server", &fake()]));
    terminal.see("turnkeep ");
    terminal.see("› ");
    terminal.type_line("hello");
    terminal.see("You said: hello");
    terminal.see("tokens in");
    for (typed, ran) in [("", false), ("yup", false), ("n", false), ("y", true)] {
        terminal.see("› ");
        terminal.type_line("run: echo 1");
        let asked = terminal.see("[n]");
        for part in [
            "may it run this command?",
            "echo 1",
            "the user asked for it",
            "yes",
        ] {
            assert!(asked.contains(part), "{part}: {asked}");
        }
        terminal.type_line(typed);
        let told = terminal.see("tokens in");
        assert_eq!(!told.contains("it did not run"), ran, "{typed:?}: {told}");
    }
    terminal.see("› ");
    terminal.type_line("ask: tea?");
    terminal.see("tea?");
    terminal.see("or nothing to decline");
    terminal.see("›");
    terminal.type_line("1");
    terminal.see("Yes");
    terminal.see("tokens in");
    terminal.see("› ");
    terminal.press(CTRL_D);
    terminal.see("journal: ");
    terminal.exits(0);
}

#[test]
fn ctrl_c_interrupts_and_a_second_one_leaves() {
    let state = tempfile::tempdir().unwrap();
    let mut command = tool(&state);
    command
        .args(["chat", "--server", &fake()])
        .env("TURNKEEP_FAKE_PACE_MS", "50");
    let mut terminal = Terminal::new(&mut command);
    terminal.see("› ");
    terminal.type_line("a long story");
    terminal.see("sentence 1 ");
    signal(&terminal.child, Signal::INT);
    terminal.see("interrupting");
    terminal.see("the turn was interrupted");
    terminal.see("› ");
    // The conversation goes on, and begins to count anew.
    terminal.type_line("hello");
    terminal.see("You said: hello");
    terminal.see("› ");
    signal(&terminal.child, Signal::INT);
    terminal.see("Ctrl-C again leaves");
    signal(&terminal.child, Signal::INT);
    terminal.exits(130);
}

#[test]
fn what_was_typed_before_a_question_does_not_answer_it() {
    let state = tempfile::tempdir().unwrap();
    let mut command = tool(&state);
    command
        .args(["chat", "--server", &fake(), "a long story\nrun: echo 1"])
        .env("TURNKEEP_FAKE_PACE_MS", "300");
    let mut terminal = Terminal::new(&mut command);
    terminal.type_line("y");
    terminal.see("[n]");
    terminal.type_line("");
    terminal.see("it did not run");
    terminal.exits(1);
}

#[test]
fn ctrl_c_at_the_prompt_clears_the_line_and_in_an_empty_one_leaves() {
    let state = tempfile::tempdir().unwrap();
    let mut terminal = Terminal::new(tool(&state).args(["chat", "--server", &fake()]));
    terminal.ends_with(&["leaves.", "›"]);
    terminal.press("half a thought");
    terminal.ends_with(&["leaves.", "› half a thought"]);
    terminal.press(CTRL_C);
    terminal.ends_with(&["leaves.", "›"]);
    terminal.press(CTRL_C);
    terminal.ends_with(&["Ctrl-C again leaves, and so does Ctrl-D", "›"]);
    // What is typed begins the count anew.
    terminal.type_line("hello");
    terminal.see("You said: hello");
    terminal.see("tokens in");
    terminal.see("› ");
    terminal.press(CTRL_C);
    terminal.see("Ctrl-C again leaves");
    terminal.see("› ");
    terminal.press(CTRL_C);
    terminal.exits(130);
}

#[test]
fn messages_are_remembered_by_later_runs_but_for_those_that_begin_with_a_space() {
    let state = tempfile::tempdir().unwrap();
    let mut terminal = Terminal::new(tool(&state).args(["chat", "--server", &fake()]));
    for message in ["the first", "the second", " the secret"] {
        terminal.see("› ");
        terminal.type_line(message);
        terminal.see("tokens in");
    }
    terminal.see("› ");
    terminal.press(CTRL_D);
    terminal.exits(0);
    let file = state.path().join("turnkeep/history");
    assert_eq!(
        fs::metadata(&file).unwrap().permissions().mode() & 0o777,
        0o600
    );
    assert_eq!(
        fs::read_to_string(&file).unwrap(),
        "the first\nthe second\n"
    );

    let mut terminal = Terminal::new(tool(&state).args(["chat", "--server", &fake()]));
    terminal.see("› ");
    terminal.press(UP);
    terminal.ends_with(&["› the second"]);
    terminal.press(UP);
    terminal.ends_with(&["› the first"]);
    terminal.type_line(" of all");
    terminal.see("You said: the first of all");
    terminal.see("tokens in");
    // Ctrl-R.
    terminal.see("› ");
    terminal.press("\x12sec");
    terminal.ends_with(&["search: sec › the second"]);
    terminal.type_line("");
    terminal.type_line("");
    terminal.see("You said: the second");
    terminal.see("tokens in");
    terminal.see("› ");
    terminal.press(CTRL_D);
    terminal.exits(0);
}

#[test]
fn a_history_that_cannot_be_used_is_told_and_left_as_it_is() {
    let state = tempfile::tempdir().unwrap();
    fs::create_dir(state.path().join("turnkeep")).unwrap();
    let file = state.path().join("turnkeep/history");
    fs::write(&file, b"\xff\xfe").unwrap();
    let mut terminal = Terminal::new(tool(&state).args(["chat", "--server", &fake()]));
    terminal.see("what you write is remembered for this run only");
    terminal.see("› ");
    terminal.type_line("hello");
    terminal.see("tokens in");
    terminal.see("› ");
    terminal.press(UP);
    terminal.ends_with(&["› hello"]);
    terminal.press("\x15");
    terminal.press(CTRL_D);
    terminal.exits(0);
    assert_eq!(fs::read(&file).unwrap(), b"\xff\xfe");
}

#[test]
fn what_is_pasted_is_one_message_also_of_several_lines() {
    let state = tempfile::tempdir().unwrap();
    let mut terminal = Terminal::new(tool(&state).args(["chat", "--server", &fake()]));
    terminal.see("› ");
    terminal.press("\x1b[200~fn main() {\n    todo!()\n}\x1b[201~");
    terminal.ends_with(&["› fn main() {", "      todo!()", "  }"]);
    // Alt-Enter begins one more.
    terminal.press("\x1b\rend");
    terminal.ends_with(&["› fn main() {", "      todo!()", "  }", "  end"]);
    terminal.type_line("");
    // The scripted server repeats the last line.
    terminal.see("answer 1 of our conversation. You said: end");
    terminal.see("tokens in");
    terminal.see("› ");
    terminal.press(CTRL_D);
    terminal.exits(0);
}

#[cfg(target_os = "linux")]
#[test]
fn what_happens_while_somebody_writes_is_shown_above_what_is_written() {
    let state = tempfile::tempdir().unwrap();
    let mark = state.path().to_string_lossy().into_owned();
    let mut command = tool(&state);
    command
        .args(["chat", "--server", &fake()])
        .env("TURNKEEP_FAKE_STORE", state.path().join("server.json"))
        .env("TURNKEEP_TEST_MARK", &mark);
    let mut terminal = Terminal::new(&mut command);
    terminal.see("› ");
    terminal.press("one line\x1b\rand half a second");
    terminal.ends_with(&["leaves.", "› one line", "  and half a second"]);
    let ours = terminal.child.id().to_string();
    for pid in processes_with("TURNKEEP_TEST_MARK", &mark) {
        if pid != ours {
            let killed = Command::new("kill").args(["-9", &pid]).status().unwrap();
            assert!(killed.success());
        }
    }
    terminal.ends_with(&[
        "leaves.",
        "the server is gone: the server was killed by signal 9; another one is started",
        "the server is there again",
        "› one line",
        "  and half a second",
    ]);
    terminal.type_line(" one");
    terminal.see("and half a second one");
    terminal.see("tokens in");
    terminal.see("› ");
    terminal.press(CTRL_D);
    terminal.exits(0);
}

#[test]
fn a_simple_terminal_gets_plain_lines() {
    let state = tempfile::tempdir().unwrap();
    let mut command = tool(&state);
    command.args(["chat", "--server", &fake()]);
    let mut terminal = Terminal::of_kind("dumb", &mut command);
    terminal.see("› ");
    terminal.type_line("hello");
    terminal.see("You said: hello");
    terminal.see("› ");
    terminal.type_line("run: echo 1");
    terminal.see("[n]");
    terminal.type_line("y");
    let told = terminal.see("tokens in");
    assert!(!told.contains("it did not run"), "{told}");
    terminal.see("› ");
    signal(&terminal.child, Signal::INT);
    terminal.see("Ctrl-C again leaves");
    terminal.see("› ");
    terminal.press(CTRL_D);
    terminal.exits(0);
    let glass = terminal.screen.0.lock().unwrap();
    assert!(!glass.written.contains("\x1b[6n"), "{}", glass.written);
}

#[test]
fn it_ends_where_its_terminal_is_gone() {
    let state = tempfile::tempdir().unwrap();
    let mut terminal = Terminal::new(tool(&state).args(["chat", "--server", &fake()]));
    terminal.see("› ");
    terminal.press("half a thought");
    terminal.ends_with(&["› half a thought"]);
    terminal.unplug();
    let status = terminal.ends();
    assert_eq!(status.code(), Some(0));
}

#[test]
fn what_a_slow_tool_brings_begins_a_turn_while_somebody_writes() {
    let state = tempfile::tempdir().unwrap();
    let go = state.path().join("go");
    let tools = state.path().join("tools.toml");
    let waits = format!(
        "until test -e {}; do sleep 0.05; done; echo built",
        go.display()
    );
    let text = format!(
        "[[tool]]\nname = \"build\"\ndescription = \"\"\ndelivery = \"deferred\"\n\
         command = [\"sh\", \"-c\", \"{waits}\"]\n"
    );
    fs::write(&tools, text).unwrap();
    let mut command = tool(&state);
    command
        .args(["chat", "--server", &fake(), "--tools"])
        .arg(&tools);
    let mut terminal = Terminal::new(&mut command);
    terminal.see("› ");
    terminal.type_line("call: build {}");
    terminal.see("tokens in");
    terminal.see("› ");
    terminal.type_line("/tools");
    terminal.see("⚒ build for ");
    terminal.see("› ");
    terminal.press("half a thought");
    terminal.ends_with(&["› half a thought"]);
    fs::write(&go, "").unwrap();
    terminal.see("✓ build");
    terminal.see("codex goes on by itself");
    terminal.see("answer 2 of our conversation");
    terminal.see("tokens in");
    terminal.ends_with(&["› half a thought"]);
    terminal.type_line("");
    terminal.see("answer 3 of our conversation. You said: half a thought");
    terminal.see("tokens in");
    terminal.see("› ");
    terminal.type_line("/boxes");
    terminal.see("| Tool Result]");
    terminal.see("› ");
    terminal.type_line("/status");
    terminal.see("nothing is going on");
    terminal.see("› ");
    terminal.press(CTRL_D);
    terminal.exits(0);
}

#[cfg(target_os = "linux")]
#[test]
fn what_tools_started_ends_with_us() {
    use crate::support::wait_until_gone;
    let state = tempfile::tempdir().unwrap();
    let mark = state.path().to_string_lossy().into_owned();
    let tools = state.path().join("tools.toml");
    let text = "[[tool]]\nname = \"build\"\ndescription = \"\"\ndelivery = \"deferred\"\n\
                command = [\"sh\", \"-c\", \"sleep 301 & sleep 302\"]\n";
    fs::write(&tools, text).unwrap();
    let mut command = tool(&state);
    command
        .args(["chat", "--server", &fake(), "--tools"])
        .arg(&tools);
    command.env("TURNKEEP_TEST_MARK", &mark);
    let mut terminal = Terminal::new(&mut command);
    terminal.see("› ");
    terminal.type_line("call: build {}");
    terminal.see("tokens in");
    terminal.see("› ");
    assert!(processes_with("TURNKEEP_TEST_MARK", &mark).len() >= 5);
    terminal.press(CTRL_D);
    terminal.exits(0);
    wait_until_gone("TURNKEEP_TEST_MARK", &mark);
}

#[test]
fn a_turn_that_failed_is_left_behind_by_the_next_message() {
    let state = tempfile::tempdir().unwrap();
    let mut terminal = Terminal::new(tool(&state).args(["chat", "--server", &fake()]));
    terminal.see("› ");
    terminal.type_line("fail: now");
    terminal.see("the turn failed");
    terminal.see("› ");
    terminal.type_line("/retry");
    terminal.see("it is not sent again");
    terminal.see("› ");
    terminal.type_line("hello");
    terminal.see("You said: hello");
    terminal.see("tokens in");
    terminal.see("› ");
    terminal.type_line("/nonsense");
    terminal.see("/nonsense is no command here");
    terminal.see("› ");
    terminal.press(CTRL_D);
    terminal.exits(0);
}

/// Answers of a codex that lists and deletes.
const ANSWERS: &str = concat!(
    r#"{"to":"initialize","result":{"userAgent":"turnkeep/0.171.0 (x)","codexHome":"/h"}}"#,
    "\n",
    r#"{"to":"config/read","result":{"z":1e999,"a":[18446744073709551616,{}],"a":-0.10}}"#,
    "\n",
    r#"{"to":"thread/delete","result":{}}"#,
    "\n",
);

#[test]
fn an_answer_is_set_out_with_its_numbers_and_its_order_as_they_came() {
    let state = tempfile::tempdir().unwrap();
    let codex = Codex::recorded(&state, "0.171.0", ANSWERS);
    let mut terminal = Terminal::new(codex.tool(&state).args(["request", "config/read"]));
    terminal.ends_with(&[
        "{",
        "  \"z\": 1e999,",
        "  \"a\": [",
        "    18446744073709551616,",
        "    {}",
        "  ],",
        "  \"a\": -0.10",
        "}",
    ]);
    terminal.exits(0);
}

#[test]
fn a_thread_is_deleted_by_a_plain_yes_alone() {
    let state = tempfile::tempdir().unwrap();
    let codex = Codex::recorded(&state, "0.171.0", ANSWERS);
    let deleted = || {
        let heard = codex.heard();
        heard.iter().any(|frame| frame["method"] == "thread/delete")
    };
    for typed in ["n\n", "\n", "of course\n", CTRL_D] {
        let mut terminal = Terminal::new(codex.tool(&state).args(["threads", "delete", "thr_1"]));
        terminal.see("delete thread thr_1 and all that was said in it? [y/N] ");
        terminal.press(typed);
        let told = terminal.see("nothing was deleted\r\n");
        assert!(!told.contains("error"), "{told}");
        terminal.exits(1);
        assert!(!deleted(), "{typed:?}");
    }
    let mut terminal = Terminal::new(codex.tool(&state).args(["threads", "delete", "thr_1"]));
    terminal.see("[y/N] ");
    terminal.type_line("y");
    terminal.exits(0);
    assert!(deleted());
}
