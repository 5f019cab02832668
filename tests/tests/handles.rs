//! The handles of the tokio runtime, end to end, against the fake server as a real process.

#![allow(clippy::unwrap_used, reason = "helpers of tests are tests")]

use std::{
    fs,
    future::poll_fn,
    path::Path,
    task::Poll,
    time::{Duration, Instant},
};

use tokio::time::timeout;
use turnkeep_tests::processes;
use turnkeep_tokio::{
    ChildConfig, ClaimError, Client, ClientConfig, ConversationEvent, Interrupted,
    OpenJournalError, Outcome, RawJson, SendError, Settings, ShutdownError, StartError, Tool,
    ToolResult, Turn, TurnError, TurnEvent, TurnUpdate,
    core::{
        CloseReason, Input,
        codec::trace,
        event::{EndReason, FailureKind, LostReason, Phasing, Warning},
    },
};

const PATIENCE: Duration = Duration::from_secs(30);

/// The head of a script in which one turn begins.
const BEGIN: &str = r#"X auto all
C {"id":"$id","method":"turn/start","params":{"threadId":"thr_1","input":"$input","clientUserMessageId":"$msg"}}
S {"id":"$id","result":{"turn":{"id":"trn_1","items":[],"status":"inProgress","error":null}}}
S {"method":"turn/started","params":{"threadId":"thr_1","turn":{"id":"trn_1","items":[],"status":"inProgress","error":null}}}
S {"method":"item/completed","params":{"threadId":"thr_1","turnId":"trn_1","item":{"type":"userMessage","id":"usr_1","clientId":"$msg","content":"$input"},"completedAtMs":1}}
"#;

/// The tail of a script in which that turn completes.
const COMPLETE: &str = r#"S {"method":"item/completed","params":{"threadId":"thr_1","turnId":"trn_1","item":{"type":"agentMessage","id":"it_1","text":"done","phase":"final_answer"},"completedAtMs":2}}
S {"method":"turn/completed","params":{"threadId":"thr_1","turn":{"id":"trn_1","items":[],"status":"completed","error":null}}}
X eof
"#;

const INTERRUPTED: &str = r#"C {"id":"$stop","method":"turn/interrupt","params":{"threadId":"thr_1","turnId":"trn_1"}}
S {"id":"$stop","result":{}}
S {"method":"turn/completed","params":{"threadId":"thr_1","turn":{"id":"trn_1","items":[],"status":"interrupted","error":null}}}
X eof
"#;

fn fake(arguments: &[&str]) -> ClientConfig {
    let program = env!("CARGO_BIN_EXE_fake-app-server");
    turnkeep_tests::client(ChildConfig::program(program).args(arguments)).one_connection()
}

fn script(parts: &[&str]) -> ClientConfig {
    fake(&["--script-text", &parts.concat()])
}

fn demo() -> ClientConfig {
    fake(&["demo"])
}

async fn soon<T>(what: impl IntoFuture<Output = T>) -> T {
    timeout(PATIENCE, what).await.expect("it takes too long")
}

async fn begun(client: &Client, settings: Settings) -> Turn {
    let conversation = soon(client.conversation("one").settings(settings)).await;
    soon(conversation.unwrap().send("go")).await.unwrap()
}

async fn until_started(turn: &mut Turn) {
    while let Some(event) = soon(turn.next()).await {
        if matches!(event, TurnEvent::Update(TurnUpdate::Started { .. })) {
            return;
        }
    }
    panic!("the turn did not start");
}

fn lookup() -> Settings {
    let schema = RawJson::parse(r#"{"type":"object"}"#).unwrap();
    Settings::new().tool(Tool::function("lookup", "looks up", schema))
}

const CALL: &str = r#"S {"id":7,"method":"item/tool/call","params":{"threadId":"thr_1","turnId":"trn_1","callId":"call_1","namespace":null,"tool":"lookup","arguments":{"key":"a"}}}
C {"id":7,"result":{"contentItems":[{"type":"inputText","text":"found"}],"success":true}}
"#;

#[tokio::test]
async fn three_lines_to_a_first_answer() {
    let client = soon(Client::spawn(demo())).await.unwrap();
    let mut turn = client
        .conversation("demo")
        .await
        .unwrap()
        .send("hello")
        .await
        .unwrap();
    let answer = soon(turn.final_response()).await.unwrap();
    assert!(answer.contains("You said: hello"), "{answer}");
    assert_eq!(turn.end().unwrap().outcome.name(), "completed");
    assert!(client.server_info().is_some());

    let mut second = turn.conversation().send("again").await.unwrap();
    let mut text = String::new();
    while let Some(event) = soon(second.next()).await {
        if let TurnEvent::Delta(delta) = event {
            text.push_str(&delta.text);
        }
    }
    assert_eq!(soon(second.final_response()).await.unwrap(), text);
    assert!(client.counters().await.unwrap().frames > 0);
    let summary = soon(client.shutdown()).await.unwrap();
    assert_eq!((summary.report.turns, summary.recording), (0, None));
    assert_eq!(
        soon(client.shutdown()).await.unwrap().journal,
        summary.journal
    );
    let late = client.conversation("demo").await.unwrap_err().to_string();
    assert_eq!(late, "closed by us");
}

#[tokio::test]
async fn a_start_that_fails_tells_phase_status_and_stderr() {
    let config = turnkeep_tests::client(ChildConfig::program("no-such-server")).one_connection();
    let error = soon(Client::spawn(config)).await.unwrap_err();
    assert!(
        error.to_string().contains("no-such-server not found"),
        "{error}"
    );

    let initialize = "C {\"id\":\"$id\",\"method\":\"initialize\",\"params\":\"*\"}\n";
    let config = script(&[initialize, "X stderr no database\nX exit 9\n"]);
    let error = soon(Client::spawn(config)).await;
    let Err(StartError::Connection(reason)) = error else {
        panic!("{error:?}")
    };
    let EndReason::Closed {
        phase,
        reason,
        stderr_tail,
    } = *reason
    else {
        panic!("{reason}")
    };
    let exit = CloseReason::Exited {
        code: Some(9),
        signal: None,
    };
    assert_eq!((phase, reason), (Phasing::Initialize, exit));
    assert!(stderr_tail.contains("no database"), "{stderr_tail}");
}

#[tokio::test]
async fn a_server_that_never_answers_initialize_is_stopped() {
    let initialize = "C {\"id\":\"$id\",\"method\":\"initialize\",\"params\":\"*\"}\n";
    let stubborn = "X ignore-term\nX ignore-eof\nX grandchild\nX stderr no database\n";
    let mut config = script(&[stubborn, initialize, "X hang\n"]);
    config.machine.limits.handshake = Duration::from_millis(500);
    // What is started first writes its pid down and becomes the server.
    let dir = tempfile::tempdir().unwrap();
    let pid_file = dir.path().join("pid");
    let config = config.change_child(|mut child| {
        let mut args = vec!["-c".into(), "echo $$ > \"$0\"; exec \"$@\"".into()];
        args.extend([pid_file.clone().into(), child.program]);
        args.append(&mut child.args);
        (child.program, child.args) = ("sh".into(), args);
        child.stop_limits(Duration::from_millis(100), Duration::from_millis(100))
    });
    let start = tokio::spawn(Client::spawn(config));
    let pid = pid_in(&pid_file).await;
    let family = loop {
        let family = processes::family(pid);
        if family.len() >= 2 || start.is_finished() {
            break family;
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    };
    assert!(family.len() >= 2, "{family:?}");
    let error = soon(start).await.unwrap().unwrap_err().to_string();
    assert!(
        error.starts_with("initialize: no answer within 0.5s; stderr: "),
        "{error}"
    );
    assert!(error.contains("no database"), "{error}");
    assert!(!family.iter().any(processes::alive));
}

#[tokio::test]
async fn a_reader_that_sleeps_delays_nobody_else() {
    let two = r#"X auto all
C {"id":"$a","method":"turn/start","params":{"threadId":"thr_1","input":"*","clientUserMessageId":"*"}}
S {"id":"$a","result":{"turn":{"id":"trn_1","items":[],"status":"inProgress","error":null}}}
C {"id":"$b","method":"turn/start","params":{"threadId":"thr_2","input":"*","clientUserMessageId":"*"}}
S {"id":"$b","result":{"turn":{"id":"trn_2","items":[],"status":"inProgress","error":null}}}
X repeat 20000
S {"method":"item/agentMessage/delta","params":{"threadId":"thr_1","turnId":"trn_1","itemId":"it_1","delta":"${x*100}"}}
X end
S {"method":"item/completed","params":{"threadId":"thr_2","turnId":"trn_2","item":{"type":"agentMessage","id":"it_2","text":"done","phase":"final_answer"},"completedAtMs":2}}
S {"method":"turn/completed","params":{"threadId":"thr_2","turn":{"id":"trn_2","items":[],"status":"completed","error":null}}}
X eof
"#;
    let client = soon(Client::spawn(script(&[two]))).await.unwrap();
    let sleeper = client
        .conversation("a")
        .await
        .unwrap()
        .send("go")
        .await
        .unwrap();
    // Threads are numbered by the fake in the order they are asked for.
    let mut other = client
        .conversation("b")
        .await
        .unwrap()
        .send("go")
        .await
        .unwrap();
    assert_eq!(soon(other.final_response()).await.unwrap(), "done");
    drop(sleeper);
}

#[tokio::test]
async fn a_start_that_is_given_up_leaves_no_process() {
    let dir = tempfile::tempdir().unwrap();
    let pid_file = dir.path().join("pid");
    let line = format!(
        "echo $$ > {}; trap '' TERM; sleep 100 & wait",
        pid_file.display()
    );
    let child = ChildConfig::program("sh").args(["-c", &line]);
    let child = child.stop_limits(Duration::from_millis(50), Duration::from_millis(50));
    let config = turnkeep_tests::client(child).one_connection();
    let start = tokio::spawn(Client::spawn(config));
    let family = processes::family(pid_in(&pid_file).await);
    assert!(!family.is_empty());
    start.abort();
    let left = gone(family).await;
    assert_eq!(left, []);
}

async fn pid_in(file: &Path) -> u32 {
    loop {
        let text = fs::read_to_string(file).unwrap_or_default();
        if text.ends_with('\n') {
            return text.trim().parse().unwrap();
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

async fn gone(family: Vec<processes::Proc>) -> Vec<processes::Proc> {
    let wait = move || processes::wait_gone(&family, PATIENCE);
    tokio::task::spawn_blocking(wait).await.unwrap()
}

#[tokio::test]
async fn dropping_every_handle_stops_the_server() {
    let dir = tempfile::tempdir().unwrap();
    let config = script(&[BEGIN, "X hang"]).journal(dir.path());
    let client = soon(Client::spawn(config)).await.unwrap();
    let turn = begun(&client, Settings::new()).await;
    let family = processes::family(client.server_pid().unwrap());
    assert!(!family.is_empty());
    drop((client, turn));
    assert_eq!(gone(family).await, []);
    let begin = Instant::now();
    while !is_free(dir.path()) {
        assert!(begin.elapsed() < PATIENCE, "the journal is held");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

fn is_free(directory: &Path) -> bool {
    use rustix::fs::{FlockOperation, flock};
    let lock = fs::File::open(directory.join(turnkeep_tokio::LOCK_FILE)).unwrap();
    flock(&lock, FlockOperation::NonBlockingLockExclusive).is_ok()
}

#[test]
fn a_runtime_that_is_shut_down_takes_the_server_along() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let (client, mut turn, family) = runtime.block_on(async {
        let config = script(&[
            "X ignore-term\nX ignore-eof\nX grandchild\n",
            BEGIN,
            "X hang",
        ]);
        let client = soon(Client::spawn(config)).await.unwrap();
        let mut turn = begun(&client, Settings::new()).await;
        until_started(&mut turn).await;
        let family = processes::family(client.server_pid().unwrap());
        (client, turn, family)
    });
    drop(runtime);
    assert!(family.len() >= 2, "{family:?}");
    assert_eq!(processes::wait_gone(&family, PATIENCE), []);
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        assert_eq!(soon(turn.outcome()).await, Err(TurnError::Stopped));
        assert_eq!(soon(client.shutdown()).await, Err(ShutdownError::Stopped));
    });
}

#[tokio::test]
async fn a_turn_without_a_handle_is_the_current_one_and_has_one_reader() {
    let client = soon(Client::spawn(script(&[BEGIN, CALL, COMPLETE])))
        .await
        .unwrap();
    let turn = begun(&client, lookup()).await;
    let conversation = turn.conversation();
    let mut events = conversation.events();
    let _ = turn.detach();
    let call = loop {
        if let ConversationEvent::Turn {
            update: TurnUpdate::ToolCall(call),
            ..
        } = soon(events.next()).await.unwrap()
        {
            break call;
        }
    };
    let mut turn = conversation.current_turn().await.unwrap().unwrap();
    assert!(conversation.current_turn().await.unwrap().is_none());
    let taken = conversation.turn(turn.id()).await.unwrap_err();
    assert_eq!(taken, ClaimError::Taken { turn: turn.id() });
    conversation
        .respond(call.id, ToolResult::ok("found"))
        .await
        .unwrap();
    assert_eq!(soon(turn.final_response()).await.unwrap(), "done");
    let over = loop {
        // The acknowledgement is told without waiting.
        match conversation.turn(turn.id()).await.unwrap_err() {
            ClaimError::Taken { .. } => tokio::task::yield_now().await,
            error => break error,
        }
    };
    assert_eq!(over, ClaimError::Over { turn: turn.id() });
}

#[tokio::test]
async fn a_message_accepted_while_its_sender_went_away_is_not_lost() {
    let client = soon(Client::spawn(script(&[BEGIN, COMPLETE])))
        .await
        .unwrap();
    let conversation = client.conversation("one").await.unwrap();
    let mut events = conversation.events();
    let mut send = conversation.send("go").into_future();
    // One look: the command is on its way, the answer is not there.
    let looked = poll_fn(|cx| Poll::Ready(send.as_mut().poll(cx).is_pending()));
    assert!(looked.await);
    drop(send);
    let ended = loop {
        if let ConversationEvent::Turn {
            turn,
            update: TurnUpdate::Ended(_),
        } = soon(events.next()).await.unwrap()
        {
            break turn;
        }
    };
    let mut turn = conversation.turn(ended).await.unwrap();
    assert_eq!(soon(turn.final_response()).await.unwrap(), "done");
}

#[tokio::test]
async fn a_dropped_turn_is_interrupted_and_the_conversation_goes_on() {
    // A name that is bound once compares from there on.
    let again = ["$id", "$input", "$msg", "trn_", "usr_"]
        .iter()
        .fold(BEGIN.replace("X auto all\n", ""), |script, name| {
            script.replace(name, &format!("{name}2"))
        });
    let done = COMPLETE.replace("trn_", "trn_2");
    let stop = INTERRUPTED.replace("X eof\n", "");
    let client = soon(Client::spawn(script(&[BEGIN, &stop, &again, &done])))
        .await
        .unwrap();
    let mut turn = begun(&client, Settings::new()).await;
    until_started(&mut turn).await;
    let conversation = turn.conversation();
    drop(turn);
    let mut next = loop {
        match conversation.send("next").await {
            Ok(turn) => break turn,
            Err(SendError::Request(error)) => {
                assert!(error.to_string().contains("is busy"), "{error}");
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
            Err(error) => panic!("{error}"),
        }
    };
    assert_eq!(soon(next.final_response()).await.unwrap(), "done");
}

#[tokio::test]
async fn a_limit_around_a_turn_leaves_it_running() {
    let client = soon(Client::spawn(script(&[BEGIN, INTERRUPTED])))
        .await
        .unwrap();
    let mut turn = begun(&client, Settings::new()).await;
    assert!(timeout(Duration::from_millis(50), &mut turn).await.is_err());
    assert_eq!(soon(turn.interrupt()).await.unwrap(), Interrupted::Stopped);
    let end = soon(&mut turn).await.unwrap();
    assert_eq!(end.outcome, Outcome::Interrupted);
    let error = soon(turn.final_response()).await.unwrap_err();
    assert_eq!(error.to_string(), "the turn was interrupted");
    let again = soon(turn.interrupt()).await.unwrap();
    assert!(
        matches!(again, Interrupted::AlreadyEnded { .. }),
        "{again:?}"
    );
}

#[tokio::test]
async fn a_wait_for_the_answer_stops_at_a_call_that_nobody_takes() {
    let client = soon(Client::spawn(script(&[BEGIN, CALL, COMPLETE])))
        .await
        .unwrap();
    let mut turn = begun(&client, lookup()).await;
    let Err(TurnError::CallWaits { call, tool }) = soon(turn.final_response()).await else {
        panic!("the call was passed over")
    };
    assert_eq!(tool, "lookup");
    let next = soon(turn.next()).await;
    let Some(TurnEvent::Update(TurnUpdate::ToolCall(told))) = next else {
        panic!("{next:?}")
    };
    assert_eq!((told.id, told.arguments.get()), (call, r#"{"key":"a"}"#));
    soon(turn.respond(call, ToolResult::ok("found")))
        .await
        .unwrap();
    let other = soon(turn.respond(call, ToolResult::ok("other"))).await;
    assert!(other.is_err());
    assert_eq!(
        soon(turn.finish()).await.unwrap().outcome.name(),
        "completed"
    );
}

#[tokio::test]
async fn a_detached_turn_keeps_its_open_call_and_its_end() {
    let client = soon(Client::spawn(script(&[BEGIN, CALL, COMPLETE])))
        .await
        .unwrap();
    let turn = begun(&client, lookup()).await;
    let conversation = turn.conversation();
    let number = turn.detach();
    let mut events = conversation.events();
    let mut turn = conversation.turn(number).await.unwrap();
    drop(events);
    let call = loop {
        if let TurnEvent::Update(TurnUpdate::ToolCall(call)) = soon(turn.next()).await.unwrap() {
            break call;
        }
    };
    soon(turn.respond(call.id, ToolResult::ok("found")))
        .await
        .unwrap();
    events = conversation.events();
    let number = turn.detach();
    while let Some(event) = soon(events.next()).await {
        if matches!(
            event,
            ConversationEvent::Turn {
                update: TurnUpdate::Ended(_),
                ..
            }
        ) {
            break;
        }
    }
    let mut turn = conversation.turn(number).await.unwrap();
    assert_eq!(soon(turn.final_response()).await.unwrap(), "done");
}

#[tokio::test]
async fn a_server_that_is_killed_ends_the_turn_and_leaves_nobody() {
    let config = script(&[
        "X ignore-term\nX ignore-eof\nX grandchild\n",
        BEGIN,
        "X hang",
    ]);
    let client = soon(Client::spawn(config)).await.unwrap();
    let mut turn = begun(&client, Settings::new()).await;
    until_started(&mut turn).await;
    let pid = client.server_pid().unwrap();
    let family = processes::family(pid);
    assert!(family.len() >= 2, "{family:?}");
    let server = processes::Proc::find(pid).unwrap();
    processes::kill(&server);
    let end = soon(turn.outcome()).await.unwrap();
    let Outcome::Lost {
        reason: LostReason::Connection(reason),
    } = end.outcome
    else {
        panic!("{:?}", end.outcome)
    };
    assert!(
        reason.to_string().contains("killed by signal 9"),
        "{reason}"
    );
    assert!(!family.iter().any(processes::alive));
    assert_eq!(client.server_pid(), None);
}

#[tokio::test]
async fn shutting_down_ends_every_wait() {
    let client = soon(Client::spawn(script(&[BEGIN, "X eof\n"])))
        .await
        .unwrap();
    let mut turn = begun(&client, Settings::new()).await;
    until_started(&mut turn).await;
    let mut connection = client.connection_events();
    let summary = soon(client.shutdown()).await.unwrap();
    assert_eq!(summary.report.turns, 1);
    let end = soon(turn.outcome()).await.unwrap();
    let lost = Outcome::Lost {
        reason: LostReason::ClosedByUs,
    };
    assert_eq!(end.outcome, lost);
    while soon(connection.next()).await.is_some() {}
    assert!(soon(turn.conversation().send("x")).await.is_err());
}

#[tokio::test]
async fn a_journal_serves_one_client_at_a_time() {
    let dir = tempfile::tempdir().unwrap();
    let config = || demo().journal(dir.path().join("state"));
    let client = soon(Client::spawn(config())).await.unwrap();
    let locked = soon(Client::spawn(config())).await.unwrap_err();
    assert!(matches!(
        locked,
        StartError::Journal(OpenJournalError::Locked { holder: Some(holder), .. })
            if holder.pid == std::process::id()
    ));
    let mut turn = client
        .conversation("demo")
        .await
        .unwrap()
        .send("hello")
        .await
        .unwrap();
    soon(turn.final_response()).await.unwrap();
    let summary = soon(client.shutdown()).await.unwrap();
    let read = turnkeep_tests::recording::journal_in(&dir.path().join("state"));
    assert_eq!(read.torn, None);
    assert_eq!(read.entries.last().unwrap().1.seq, summary.journal);
    // A second one takes it after the end.
    let second = soon(Client::spawn(config())).await.unwrap();
    assert_eq!(second.journal_report().last, summary.journal);
    soon(second.shutdown()).await.unwrap();
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn a_journal_that_cannot_be_written_stops_the_start() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join(turnkeep_tokio::JOURNAL_FILE);
    std::os::unix::fs::symlink("/dev/full", path).unwrap();
    let error = soon(Client::spawn(demo().journal(dir.path())))
        .await
        .unwrap_err();
    assert!(matches!(error, StartError::Halted), "{error}");
}

#[tokio::test]
async fn a_recording_replays_to_the_same_effects() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("session.trace");
    let config = script(&[BEGIN, CALL, COMPLETE]).record(&path);
    let client = soon(Client::spawn(config)).await.unwrap();
    let mut turn = begun(&client, lookup()).await;
    let Err(TurnError::CallWaits { call, .. }) = soon(turn.outcome()).await else {
        panic!("the call was passed over")
    };
    soon(turn.next()).await;
    soon(turn.respond(call, ToolResult::ok("found")))
        .await
        .unwrap();
    soon(turn.outcome()).await.unwrap();
    let summary = soon(client.shutdown()).await.unwrap().recording.unwrap();
    assert_eq!(summary.error, None);

    let bytes = fs::read(&path).unwrap();
    assert_eq!(bytes.len() as u64, summary.bytes);
    let (reader, header) = trace::Reader::new(&bytes).unwrap();
    let (mut machine, first) = header.machine().unwrap();
    assert_eq!(trace::Recorded::of(&first), header.effects);
    let (mut steps, mut closed) = (0, 0);
    for step in reader {
        let step = step.unwrap();
        closed += u64::from(matches!(step.input, Input::Closed(..)));
        let effects = machine.step(step.at, step.input);
        assert_eq!(trace::Recorded::of(&effects), step.effects);
        steps += 1;
    }
    assert_eq!((steps, closed), (summary.steps, 1));
}

#[tokio::test]
async fn text_that_nobody_reads_grows_together_and_fails_its_turn_past_the_cap() {
    // Small pieces grow together where they wait, long ones where they are read.
    for size in [500, 1_100] {
        unread(size).await;
    }
}

async fn unread(size: usize) {
    let delta = format!(
        r#"X repeat 400
S {{"method":"item/agentMessage/delta","params":{{"threadId":"thr_1","turnId":"trn_1","itemId":"it_1","delta":"${{x*{size}}}"}}}}
X sleep 1
X end
"#
    );
    let config = script(&[BEGIN, &delta, COMPLETE]);
    let client = soon(Client::spawn(config.clone())).await.unwrap();
    let mut turn = begun(&client, Settings::new()).await;
    let conversation = turn.conversation();
    let mut events = conversation.events();
    while !matches!(
        soon(events.next()).await.unwrap(),
        ConversationEvent::Turn {
            update: TurnUpdate::Ended(_),
            ..
        }
    ) {}
    let (mut pieces, mut frames, mut lagged) = (Vec::new(), 0, 0);
    while let Some(event) = turn.next().await {
        match event {
            TurnEvent::Delta(delta) => {
                pieces.push(delta.text.len());
                frames += delta.frames;
            }
            TurnEvent::Update(TurnUpdate::Warning(Warning::Lagged { merged, .. })) => {
                lagged += merged;
            }
            _ => {}
        }
    }
    assert_eq!((pieces.iter().sum::<usize>(), frames), (size * 400, 400));
    assert!(pieces.windows(2).all(|two| two[0] + two[1] > 64 << 10));
    assert!(turn.merged() > 0);

    assert!(lagged > 300, "{lagged}");

    let mut config = config;
    config.bytes_waiting = 50_000;
    config.machine.limits.interrupt = Duration::from_millis(200);
    let client = soon(Client::spawn(config)).await.unwrap();
    let turn = begun(&client, Settings::new()).await;
    let mut events = turn.conversation().events();
    let end = loop {
        if let ConversationEvent::Turn {
            update: TurnUpdate::Ended(end),
            ..
        } = soon(events.next()).await.unwrap()
        {
            break end;
        }
    };
    let Outcome::Failed { error } = end.outcome else {
        panic!("{:?}", end.outcome)
    };
    assert_eq!(error.kind, FailureKind::QueueFull);
}

#[tokio::test]
async fn a_call_that_was_read_is_told_again_to_the_next_handle_until_it_is_closed() {
    let call = CALL.lines().next().unwrap();
    let call = format!("{call}\nC? {{\"id\":7}}\n");
    let client = soon(Client::spawn(script(&[BEGIN, &call, INTERRUPTED])))
        .await
        .unwrap();
    let mut turn = begun(&client, lookup()).await;
    let conversation = turn.conversation();
    while !matches!(
        soon(turn.next()).await.unwrap(),
        TurnEvent::Update(TurnUpdate::ToolCall(_))
    ) {}
    let mut turn = conversation.turn(turn.detach()).await.unwrap();
    let waits = soon(turn.outcome()).await.unwrap_err();
    assert!(matches!(waits, TurnError::CallWaits { .. }), "{waits}");
    assert_eq!(soon(turn.interrupt()).await.unwrap(), Interrupted::Stopped);
    let end = soon(turn.outcome()).await.unwrap();
    assert_eq!(end.outcome, Outcome::Interrupted);
}
