//! Crashes at random moments: of the server, of our own process, of both. After each the client must go on by itself, and at the end
//! the server's history, what the model was asked and the side effects must say that nothing was lost and nothing ran twice.
//!
//! A run is one home, one journal and one process that is killed, or whose server is, several times. The moment is a phase, as the
//! process tells it (`start`, `text`, `call`, `result`, `question`, `steer`, `end`, `ready`), and a pause after it, both from the seed of the
//! run. The machine's own timing is not in the seed: a run that fails may have to be run again a few times.

use std::{
    collections::BTreeMap,
    env,
    fs::{self, File, OpenOptions},
    io::{BufRead as _, BufReader, Write as _},
    os::unix::process::CommandExt as _,
    path::PathBuf,
    process::{Child, Command, Stdio},
    sync::mpsc::{self, Receiver, RecvTimeoutError},
    thread,
    time::{Duration, Instant},
};

use rustix::process::{Pid, Signal, kill_process};
use turnkeep_tests::{
    chosen::{self, Transport},
    codex::{self, CodexHome},
    crash::{self, Kind, Random, Workload},
    model::{self, Model},
    processes::{self, Proc},
    proxy::Proxy,
    server::{Listening, Server},
};

use crate::{
    codex::child,
    crash_check::{self, Facts},
};

/// How long the client may take to go on after a crash, or to come to its end.
const PATIENCE: Duration = Duration::from_secs(90);

/// How long a phase is waited for before any other moment does.
const PHASE: Duration = Duration::from_secs(4);

/// The longest pause between a phase and the kill.
const SPREAD: u64 = 40_000;

const CONVERSATIONS: u32 = 3;

/// Takes the place of the seed that the clock gives, for one run.
const SEED: &str = "TURNKEEP_CRASH_SEED";

/// What is killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Victim {
    Server,
    Us,
    Both,
    /// The connection between them, where there is one.
    Connection,
}

impl Victim {
    const fn name(self) -> &'static str {
        match self {
            Self::Server => "server_killed",
            Self::Us => "we_are_killed",
            Self::Both => "both_are_killed",
            Self::Connection => "connection_cut",
        }
    }

    /// How many kills in all, for one version, and how many a run.
    fn kills(self) -> (u32, u32) {
        match (self, codex::full_run()) {
            (Self::Server | Self::Us | Self::Connection, false) => (10, 10),
            (Self::Both, false) => (10, 5),
            (Self::Server | Self::Us | Self::Connection, true) => (100, 10),
            (Self::Both, true) => (25, 5),
        }
    }
}

/// All runs of one kind, and what they add up to.
pub(crate) fn crashes(version: &'static str, victim: Victim) {
    let (kills, each) = victim.kills();
    let given = env::var(SEED).ok().map(|seed| seed.parse::<u64>());
    let seeds: Vec<u64> = match given {
        Some(seed) => vec![seed.expect("the seed is a number")],
        None => {
            let clock = std::time::UNIX_EPOCH.elapsed().expect("it is past 1970");
            let mut random = Random(clock.as_nanos() as u64);
            (0..kills / each).map(|_| random.next() >> 16).collect()
        }
    };
    let mut sum = Sum::default();
    for seed in seeds {
        let again = format!(
            "{SEED}={seed} {}cargo xtask live {}-- {}::{}::{}",
            if codex::full_run() {
                "TURNKEEP_LIVE_FULL=1 "
            } else {
                ""
            },
            chosen::options(),
            version.replace(['.', '-'], "_").replacen("", "v", 1),
            if Transport::chosen().is_socket() {
                "sockets"
            } else {
                "stdio"
            },
            victim.name(),
        );
        let outcome = thread::Builder::new()
            .name(format!("{version} {} {seed}", victim.name()))
            .spawn(move || Run::new(version, victim, seed).run(each))
            .expect("a thread can be made")
            .join();
        match outcome {
            Ok(found) => sum.add(&found),
            Err(_) => panic!("seed {seed} failed; run it again: {again}"),
        }
    }
    // Past the test program's capture: the counts are what the suite is for.
    let _ = writeln!(
        std::io::stderr(),
        "crash {version} {}: {sum}",
        victim.name()
    );
}

/// What was found, added up.
#[derive(Debug, Default)]
pub(crate) struct Sum {
    kills: BTreeMap<String, u64>,
    counts: BTreeMap<String, u64>,
    facts: Facts,
}

impl Sum {
    fn add(&mut self, other: &Self) {
        for (into, from) in [
            (&mut self.kills, &other.kills),
            (&mut self.counts, &other.counts),
        ] {
            for (name, count) in from {
                *into.entry(name.clone()).or_default() += count;
            }
        }
        self.facts.add(&other.facts);
    }
}

impl std::fmt::Display for Sum {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let total: u64 = self.kills.values().sum();
        let list = |map: &BTreeMap<String, u64>| {
            let parts = map.iter().map(|(name, count)| format!("{name} {count}"));
            parts.collect::<Vec<_>>().join(", ")
        };
        writeln!(f, "{total} kills ({})", list(&self.kills))?;
        writeln!(f, "  reconciled: {}", list(&self.counts))?;
        write!(f, "  {}", self.facts)
    }
}

struct Run {
    version: &'static str,
    victim: Victim,
    random: Random,
    workload: Workload,
    dir: PathBuf,
    home: CodexHome,
    model: Model,
    /// `None` while it is dead.
    program: Option<Program>,
    /// The server's processes, as they were when it was ready.
    server: Vec<Proc>,
    /// The server and the way to it, where it is not a child of the program.
    socket: Option<(Listening, Proxy)>,
    /// Ends of a dead server's pipes that keep it from noticing that we are gone.
    held: Vec<File>,
    sum: Sum,
}

/// The process that uses the library.
struct Program {
    child: Child,
    lines: Receiver<String>,
    counts: BTreeMap<String, u64>,
    last: Vec<String>,
}

impl Run {
    fn new(version: &'static str, victim: Victim, seed: u64) -> Self {
        println!("seed {seed}");
        let dir = tempfile::Builder::new()
            .prefix("turnkeep-crash-")
            .tempdir()
            .expect("a temporary directory can be made")
            // A failed run leaves it.
            .keep();
        let model = Model::scripted(script);
        let home = CodexHome::new(&model);
        let [(_, codex_home), (_, user_home)] = home.env();
        let traces = dir.join("traces");
        fs::create_dir(&traces).expect("the directory is ours");
        let mark = format!("{}-{seed}", std::process::id());
        let command = child(version, &home).env(crash::MARK, &mark);
        let socket = match Server::new(command) {
            Server::Child(_) => None,
            Server::Socket(server) => {
                let proxy = Proxy::start(server.address().clone());
                Some((server, proxy))
            }
        };
        let workload = Workload {
            seed,
            conversations: CONVERSATIONS,
            url: socket.as_ref().map(|(_, proxy)| proxy.address().url()),
            launcher: codex::codex(version),
            codex_home,
            user_home,
            cwd: home.cwd(),
            mark,
            journal: dir.join("journal"),
            traces,
            log: dir.join("log.jsonl"),
            tool_log: dir.join("tool.log"),
            enough: dir.join("enough"),
        };
        let text = serde_json::to_string_pretty(&workload).expect("it is JSON");
        fs::write(dir.join("workload.json"), text).expect("the directory is ours");
        Run {
            version,
            victim,
            random: Random(seed),
            workload,
            dir,
            home,
            model,
            program: None,
            server: Vec::new(),
            socket,
            held: Vec::new(),
            sum: Sum::default(),
        }
    }

    fn run(mut self, kills: u32) -> Sum {
        self.launch();
        self.wait_ready();
        for _ in 0..kills {
            let phase = self.moment();
            let how = match self.victim {
                Victim::Server => self.kill_server(),
                Victim::Us => self.kill_us(),
                Victim::Both => self.kill_both(),
                Victim::Connection => self.cut(),
            };
            let name = format!("{phase}/{how}");
            println!("killed at {name}");
            *self.sum.kills.entry(name).or_default() += 1;
            self.wait_ready();
        }
        fs::write(&self.workload.enough, "").expect("the directory is ours");
        self.until("done", PATIENCE);
        let mut program = self.program.take().expect("it runs");
        let status = program.child.wait().expect("it is our child");
        self.count(&program);
        assert!(status.success(), "the program ended with {status}");
        let left = match (&self.socket, self.victim) {
            // It was never the program's to stop.
            (Some((server, _)), _) => {
                let native = self.server.iter().find(|p| p.comm == "codex");
                assert!(
                    native.is_some_and(processes::alive),
                    "the server was stopped"
                );
                server.kill()
            }
            (None, Victim::Server | Victim::Connection) => {
                processes::with_variable(crash::MARK, &self.workload.mark)
            }
            // A command that a server ran when it was killed together with us: nobody was there to stop it.
            (None, Victim::Us | Victim::Both) => servers(&self.workload.mark),
        };
        assert_eq!(left, [], "nothing of any server is left");
        let facts = crash_check::check(self.version, &self.workload, &self.home, &self.model);
        self.sum.facts = facts;
        fs::remove_dir_all(&self.dir).expect("the directory is ours");
        std::mem::take(&mut self.sum)
    }

    fn launch(&mut self) {
        let mut child = Command::new(env!("CARGO_BIN_EXE_crash-child"))
            .arg(self.dir.join("workload.json"))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            // Signals of a terminal are for us.
            .process_group(0)
            .spawn()
            .expect("the program starts");
        let stdout = child.stdout.take().expect("stdout is piped");
        let (told, lines) = mpsc::channel();
        thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                if told.send(line).is_err() {
                    return;
                }
            }
        });
        self.program = Some(Program {
            child,
            lines,
            counts: BTreeMap::new(),
            last: Vec::new(),
        });
    }

    /// Waits until a server serves again, and sees which one.
    fn wait_ready(&mut self) {
        self.until("ready", PATIENCE);
        let before = std::mem::take(&mut self.server);
        self.server = servers(&self.workload.mark);
        self.held.clear();
        let same: Vec<&Proc> = before
            .iter()
            .filter(|p| processes::alive(p) && p.comm == "codex")
            .collect();
        match (&self.socket, self.victim) {
            (Some(_), Victim::Us | Victim::Connection) => {
                assert!(
                    before.is_empty() || !same.is_empty(),
                    "the server was stopped"
                );
            }
            _ => assert!(same.is_empty(), "an earlier server lives on: {same:?}"),
        }
    }

    /// Waits for a random phase and a random pause after it.
    fn moment(&mut self) -> &'static str {
        const PHASES: [&str; 9] = [
            "start", "text", "call", "question", "steer", "end", "call", "ready", "result",
        ];
        let phase = PHASES[self.random.below(PHASES.len() as u64) as usize];
        let spread = match self.random.below(3) {
            0 => SPREAD / 20,
            _ => SPREAD,
        };
        let pause = Duration::from_micros(self.random.below(spread));
        // The server is ready just now.
        let phase = match phase {
            "ready" => "ready",
            phase if self.saw(phase, PHASE) => phase,
            _ => "any",
        };
        thread::sleep(pause);
        phase
    }

    fn kill_server(&mut self) -> &'static str {
        if let Some((server, _)) = &self.socket {
            let native = self.server.iter().find(|p| p.comm == "codex");
            let how = match self.random.below(2) {
                0 => {
                    native.into_iter().for_each(processes::kill);
                    "native"
                }
                _ => "group",
            };
            assert_eq!(server.kill(), [], "the server is killed");
            server.start_again();
            return how;
        }
        let launcher = self.server.iter().find(|p| p.comm != "codex").cloned();
        let native = self.server.iter().find(|p| p.comm == "codex").cloned();
        let how = self.random.below(3);
        match (how, launcher, native) {
            (0, Some(launcher), _) => {
                processes::kill(&launcher);
                "launcher"
            }
            (1, _, Some(native)) => {
                processes::kill(&native);
                "native"
            }
            (_, Some(launcher), _) => {
                processes::kill_group(launcher.pgid);
                "group"
            }
            _ => panic!("no server: {:?}", self.server),
        }
    }

    fn kill_us(&mut self) -> &'static str {
        let native = self.server.iter().find(|p| p.comm == "codex").cloned();
        if self.socket.is_some() {
            self.kill_program();
            // It goes on meanwhile.
            thread::sleep(Duration::from_micros(self.random.below(60_000)));
            self.launch();
            return "alone";
        }
        let how = match (self.random.below(3), native) {
            // It does not notice, and goes on.
            (1, Some(native)) => {
                for (fd, write) in [(0, true), (1, false), (2, false)] {
                    let path = format!("/proc/{}/fd/{fd}", native.pid);
                    let open = OpenOptions::new().read(!write).write(write).open(path);
                    self.held.extend(open);
                }
                "orphan"
            }
            // It cannot notice.
            (2, Some(native)) => {
                signal(native.pid, Signal::STOP);
                "stopped orphan"
            }
            _ => "end of input",
        };
        self.kill_program();
        if how == "orphan" {
            // Time for it to do things that nobody hears of.
            thread::sleep(Duration::from_micros(self.random.below(60_000)));
        }
        self.launch();
        how
    }

    fn kill_both(&mut self) -> &'static str {
        let group = self.server.first().map(|p| p.pgid);
        let first = self.random.below(2) == 0;
        if first {
            group.into_iter().for_each(processes::kill_group);
        }
        self.kill_program();
        if !first {
            group.into_iter().for_each(processes::kill_group);
        }
        if let Some((server, _)) = &self.socket {
            assert_eq!(server.kill(), [], "the server is killed");
            server.start_again();
        }
        self.launch();
        "both"
    }

    fn cut(&mut self) -> &'static str {
        let (_, proxy) = self.socket.as_ref().expect("there is a connection");
        let how = match self.random.below(3) {
            0 => "at once",
            _ => {
                proxy.shut();
                "away"
            }
        };
        proxy.cut();
        if how == "away" {
            // It goes on meanwhile.
            thread::sleep(Duration::from_micros(self.random.below(60_000)));
            proxy.open();
        }
        how
    }

    fn kill_program(&mut self) {
        let mut program = self.program.take().expect("it runs");
        program.child.kill().expect("it is our child");
        program.child.wait().expect("it is our child");
        // What it had said before is read to the end, for its counts.
        while let Ok(line) = program.lines.recv_timeout(PATIENCE) {
            program.note(line);
        }
        self.count(&program);
    }

    fn count(&mut self, program: &Program) {
        for (name, count) in &program.counts {
            *self.sum.counts.entry(name.clone()).or_default() += count;
        }
    }

    fn until(&mut self, wanted: &str, patience: Duration) {
        assert!(
            self.saw(wanted, patience),
            "the program did not say {wanted:?} within {patience:?}; it said last\n{}\nits directory: {}",
            self.program
                .as_ref()
                .map_or(String::new(), |p| p.last.join("\n")),
            self.dir.display(),
        );
    }

    fn saw(&mut self, wanted: &str, patience: Duration) -> bool {
        let program = self.program.as_mut().expect("it runs");
        let end = Instant::now() + patience;
        loop {
            let left = end.saturating_duration_since(Instant::now());
            match program.lines.recv_timeout(left) {
                Ok(line) => {
                    let is_it = line.split(' ').next() == Some(wanted);
                    program.note(line);
                    if is_it {
                        return true;
                    }
                }
                Err(RecvTimeoutError::Timeout) => return false,
                Err(RecvTimeoutError::Disconnected) => {
                    let status = program.child.wait();
                    let socket = self.socket.as_ref();
                    panic!(
                        "the program ended with {status:?}; it said last\n{}\nits directory: {}\nthe server: {}",
                        program.last.join("\n"),
                        self.dir.display(),
                        socket.map_or_else(String::new, |(server, proxy)| {
                            format!("{proxy:?} {:?}\n{}", server.family(), server.said())
                        }),
                    );
                }
            }
        }
    }
}

impl Program {
    fn note(&mut self, line: String) {
        if let Some(counts) = line.strip_prefix("counts ") {
            self.counts = serde_json::from_str(counts).expect("counts are JSON");
            return;
        }
        if self.last.len() >= 30 {
            self.last.remove(0);
        }
        self.last.push(line);
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        if let Some(program) = &mut self.program {
            let _ = program.child.kill();
            let _ = program.child.wait();
        }
        let left = processes::with_variable(crash::MARK, &self.workload.mark);
        left.iter().for_each(processes::kill);
    }
}

/// The launcher and the server, without what they run.
fn servers(mark: &str) -> Vec<Proc> {
    let is_server = |process: &Proc| {
        let arguments = fs::read(format!("/proc/{}/cmdline", process.pid)).unwrap_or_default();
        let mut arguments = arguments.split(|byte| *byte == 0);
        arguments.any(|argument| argument == b"app-server")
    };
    let mut found = processes::with_variable(crash::MARK, mark);
    found.retain(is_server);
    found
}

fn signal(pid: u32, signal: Signal) {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw);
    // It may have died meanwhile.
    let _ = kill_process(pid.expect("a process has a pid"), signal);
}

/// What the model says: it looks at the newest of our messages only.
fn script(request: &serde_json::Value) -> model::Reply {
    const PACE: Duration = Duration::from_millis(3);
    let texts = model::user_texts(request);
    let Some((key, kind, told)) = crash::newest(texts) else {
        return model::failed("no_message", "no message of ours is in the request");
    };
    let call = crash_check::call_of(key);
    let answered = model::call_outputs(request)
        .iter()
        .any(|(id, _)| *id == call);
    // A call that a kill cut off is not made again: its result was told.
    let answered = answered || told;
    match kind {
        Kind::Later if !answered => {
            model::text("I note it. ").call(crash::LATER, &call, serde_json::json!({ "key": key }))
        }
        Kind::Tool if !answered => {
            model::text("I note it. ").call(crash::TOOL, &call, serde_json::json!({ "key": key }))
        }
        Kind::Ask if !answered => model::call(
            "exec_command",
            &call,
            serde_json::json!({ "cmd": format!("echo {key} >> {}", crash::COMMAND_LOG) }),
        ),
        Kind::Steer => model::chunks((0..30).map(|n| format!("{n} "))).pace(PACE),
        Kind::Plain | Kind::Tool | Kind::Later | Kind::Ask => {
            model::chunks(["That ", "was ", "it, "])
                .text(key)
                .pace(PACE)
        }
    }
}
