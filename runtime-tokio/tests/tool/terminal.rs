//! The tool in a terminal.

use std::{
    fs::File,
    io::{Read as _, Write as _},
    os::fd::OwnedFd,
    process::{Child, Command},
    sync::{Arc, Condvar, Mutex, PoisonError},
    thread,
    time::Duration,
};

use rustix::{
    fs::{Mode, OFlags, open},
    io::{FdFlags, fcntl_setfd},
    process::Signal,
    pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt},
};

use crate::support::{fake, signal, tool};

/// A terminal with the tool in it.
struct Terminal {
    child: Child,
    keyboard: File,
    screen: Arc<(Mutex<String>, Condvar)>,
    /// How much of the screen was looked at.
    seen: usize,
}

impl Terminal {
    fn new(command: &mut Command) -> Self {
        let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
        // The tool shall not hold its own terminal open.
        fcntl_setfd(&master, FdFlags::CLOEXEC).unwrap();
        grantpt(&master).unwrap();
        unlockpt(&master).unwrap();
        let name = ptsname(&master, Vec::new()).unwrap();
        let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC;
        let slave: OwnedFd = open(name.as_c_str(), flags, Mode::empty()).unwrap();
        let end = || slave.try_clone().unwrap();
        let child = command.stdin(end()).stdout(end()).stderr(end());
        let child = child.env("TERM", "xterm-256color").spawn().unwrap();
        let mut glass = File::from(master.try_clone().unwrap());
        let screen: Arc<(Mutex<String>, Condvar)> = Arc::default();
        let shown = Arc::clone(&screen);
        // The command holds the other end open, too.
        *command = Command::new("true");
        drop(slave);
        thread::spawn(move || {
            let mut buffer = [0; 4096];
            while let Ok(n @ 1..) = glass.read(&mut buffer) {
                let text = String::from_utf8_lossy(&buffer[..n]).into_owned();
                let mut screen = shown.0.lock().unwrap_or_else(PoisonError::into_inner);
                screen.push_str(&text);
                shown.1.notify_all();
            }
        });
        Self {
            child,
            keyboard: File::from(master),
            screen,
            seen: 0,
        }
    }

    /// Waits until something new is shown; gives back all up to it.
    #[track_caller]
    fn see(&mut self, text: &str) -> String {
        let mut screen = self.screen.0.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            if let Some(at) = screen[self.seen..].find(text) {
                let from = self.seen;
                self.seen += at + text.len();
                return screen[from..self.seen].to_owned();
            }
            let wait = self.screen.1.wait_timeout(screen, Duration::from_secs(60));
            let (next, late) = wait.unwrap_or_else(PoisonError::into_inner);
            assert!(!late.timed_out(), "{text:?} is not on the screen:\n{next}");
            screen = next;
        }
    }

    fn type_line(&mut self, text: &str) {
        self.keyboard.write_all(text.as_bytes()).unwrap();
        self.keyboard.write_all(b"\n").unwrap();
    }

    #[track_caller]
    fn exits(&mut self, code: i32) {
        let status = self.child.wait().unwrap();
        let screen = self.screen.0.lock().unwrap_or_else(PoisonError::into_inner);
        assert_eq!(status.code(), Some(code), "{screen}");
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
    // Ctrl-D.
    terminal.keyboard.write_all(b"\x04").unwrap();
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
