//! Faults that clients of the app-server met, over real child processes: the scripts of `tests/scripts`, whose first
//! lines tell the right value.

#![allow(clippy::unwrap_used, reason = "helpers of tests are tests")]

use std::{env, fs, process::Command, time::Duration};

use serde_json::{Value, json};
use turnkeep_core::{
    CloseReason, Effect, Event, Input, RawJson, Record,
    event::{
        CallClosedWhy, ConnectionEvent, Delta, EndReason, EndSource, LostReason, NoiseWhy, Phasing,
        ProtocolError, QuestionClosedWhy,
    },
    prompt::PromptChange,
};
use turnkeep_tests::{
    codex::workspace_dir,
    processes,
    recording::Recording,
    session::{
        Ended, NotStarted, Session, Told, run, to_end, until, until_call, until_question, watched,
        within,
    },
};
use turnkeep_tokio::{
    ChildConfig, Client, ClientConfig, CommandError, ConnectionEvents, Conversation, Interrupted,
    Outcome, Questions, RequestError, Settings, StartError, Tool, ToolResult, Turn, TurnEvent,
    TurnUpdate,
};

/// The fake server with a script of its own.
fn text(script: &str) -> ChildConfig {
    fake(["--script-text", script])
}

/// The fake server with a script of `tests/scripts`.
fn case(name: &str) -> ChildConfig {
    fake([&format!("case-{name}")])
}

fn fake<const N: usize>(args: [&str; N]) -> ChildConfig {
    ChildConfig::program(env!("CARGO_BIN_EXE_fake-app-server"))
        .args(args)
        .stop_limits(Duration::from_millis(300), Duration::from_millis(300))
}

fn script(name: &str) -> String {
    let path = workspace_dir().join(format!("tests/scripts/case-{name}.script"));
    fs::read_to_string(path).unwrap()
}

fn same(config: ClientConfig) -> ClientConfig {
    config
}

async fn begin(session: &Session, settings: Settings) -> (Conversation, Turn) {
    let talk = session.client.conversation("talk").settings(settings);
    let talk = talk.await.unwrap();
    let turn = talk.send("go").await.unwrap();
    (talk, turn)
}

async fn until_user_message(turn: &mut Turn) {
    until(turn, "our message", |event| match event {
        TurnEvent::Update(TurnUpdate::ItemCompleted(item)) if item.kind == "userMessage" => {
            Some(())
        }
        _ => None,
    })
    .await;
}

/// Ends a session that the script did not object to.
async fn end(session: Session) -> Ended {
    let ended = session.end().await;
    assert_eq!(objections(&ended.recording), Vec::<String>::new());
    ended
}

/// What the fake server had to say against what we sent.
fn objections(recording: &Recording) -> Vec<String> {
    let closed = closed(recording).into_iter();
    closed
        .map(|closed| closed.1)
        .filter(|tail| tail.contains("fake-app-server: script"))
        .collect()
}

/// How connections ended, and the end of stderr.
fn closed(recording: &Recording) -> Vec<(CloseReason, String)> {
    let inputs = recording
        .steps
        .iter()
        .filter_map(|(_, input, _)| input.as_ref());
    inputs
        .filter_map(|input| match input {
            Input::Closed(_, closed) => Some((closed.reason.clone(), closed.stderr_tail.clone())),
            _ => None,
        })
        .collect()
}

/// Everything that was told of the connection.
fn connection_events(recording: &Recording) -> Vec<ConnectionEvent> {
    let effects = recording.steps.iter().flat_map(|(_, _, fx)| &fx.list);
    effects
        .filter_map(|effect| match effect {
            Effect::Emit(Event::Connection(event)) => Some((**event).clone()),
            _ => None,
        })
        .collect()
}

async fn until_ended(events: &mut ConnectionEvents) -> EndReason {
    let search = async {
        while let Some(event) = events.next().await {
            if let ConnectionEvent::Ended(reason) = event {
                return reason;
            }
        }
        panic!("the client ended before its connection");
    };
    within("end of the connection", search).await
}

fn lost(told: &Told) -> &LostReason {
    match &told.end.outcome {
        Outcome::Lost { reason } => reason,
        other => panic!("{other:?}"),
    }
}

fn lost_connection(told: &Told) -> &EndReason {
    match lost(told) {
        LostReason::Connection(reason) => reason,
        other => panic!("{other:?}"),
    }
}

/// How the server broke the protocol.
fn broken(reason: &EndReason) -> &ProtocolError {
    match reason {
        EndReason::Protocol { error, .. } => error,
        other => panic!("{other:?}"),
    }
}

async fn fails(
    child: ChildConfig,
    change: impl FnOnce(ClientConfig) -> ClientConfig,
) -> NotStarted {
    match Session::try_start(child, change).await {
        Ok(_) => panic!("it starts"),
        Err(failed) => {
            assert_eq!(failed.left, [], "a failed start leaves nothing");
            *failed
        }
    }
}

fn reason(failed: &NotStarted) -> &EndReason {
    match &failed.error {
        StartError::Connection(reason) => reason,
        other => panic!("{other:?}"),
    }
}

#[test]
fn case_01_silent_server_never_answers_the_interrupt() {
    run(async {
        let session = Session::start_with(case("01"), |config| {
            config.machine(|machine| machine.limits.interrupt = Duration::from_millis(300))
        })
        .await;
        let mut connection = session.client.connection_events();
        let (_talk, mut turn) = begin(&session, Settings::new()).await;
        until_user_message(&mut turn).await;
        let watch = session.watch();
        match within("answer to the interrupt", turn.interrupt()).await {
            Err(RequestError::Command(CommandError::InterruptUnanswered)) => {}
            other => panic!("{other:?}"),
        }
        let told = to_end(&mut turn).await;
        assert_eq!(*lost(&told), LostReason::InterruptUnanswered);
        assert_eq!(told.end.source, EndSource::Local);
        // The connection is given up, though the server ignores the end of stdin and SIGTERM.
        assert_eq!(until_ended(&mut connection).await, EndReason::Unfit);
        assert!(!watch.seen.is_empty());
        assert_eq!(watch.wait_gone(), []);
        let ended = end(session).await;
        assert!(connection_events(&ended.recording).contains(&ConnectionEvent::Unfit));
        assert_eq!(ended.recording.sent_params("turn/interrupt").len(), 1);
    });
}

#[test]
fn case_02_second_interrupt_is_answered_here() {
    run(async {
        let session = Session::start(case("02")).await;
        let (_talk, mut turn) = begin(&session, Settings::new()).await;
        until_user_message(&mut turn).await;
        assert_eq!(turn.interrupt().await.unwrap(), Interrupted::Stopped);
        let told = to_end(&mut turn).await;
        assert_eq!(told.end.outcome, Outcome::Interrupted);
        let again = within("answer to the second interrupt", turn.interrupt()).await;
        let outcome = "interrupted".to_owned();
        assert_eq!(again.unwrap(), Interrupted::AlreadyEnded { outcome });
        let ended = end(session).await;
        assert_eq!(ended.recording.sent_params("turn/interrupt").len(), 1);
    });
}

#[test]
fn case_02b_end_settles_an_interrupt_that_is_refused() {
    settled_by_the_end("02b");
}

#[test]
fn case_02c_end_settles_an_interrupt_without_answer() {
    settled_by_the_end("02c");
}

fn settled_by_the_end(name: &str) {
    run(async {
        let session = Session::start(case(name)).await;
        let (_talk, mut turn) = begin(&session, Settings::new()).await;
        until_user_message(&mut turn).await;
        let stopped = within("answer to the interrupt", turn.interrupt()).await;
        assert_eq!(stopped.unwrap(), Interrupted::Stopped);
        assert_eq!(to_end(&mut turn).await.end.outcome, Outcome::Interrupted);
        end(session).await;
    });
}

#[test]
fn case_17_reader_that_sleeps_delays_nobody_else() {
    run(async {
        let session = Session::start(case("17")).await;
        let (_one, mut unread) = begin(&session, Settings::new()).await;
        let two = session.client.conversation("two").await.unwrap();
        let mut turn = two.send("go").await.unwrap();
        assert_eq!(turn.final_response().await.unwrap(), "y");
        let told = to_end(&mut unread).await;
        assert_eq!(told.end.text.as_deref(), Some("x"));
        let completed = told.updates.iter().filter_map(|update| match update {
            TurnUpdate::ItemCompleted(item) => Some(item.kind.as_str()),
            _ => None,
        });
        assert_eq!(
            completed.collect::<Vec<_>>(),
            ["userMessage", "agentMessage"]
        );
        end(session).await;
    });
}

#[test]
fn case_19_answer_of_20_mib_comes_in_small_pieces() {
    run(async {
        let dir = tempfile::tempdir().unwrap();
        let lives = dir.path().join("lives");
        // The second life of the script is the one that matters here.
        fs::write(&lives, "1").unwrap();
        let child = case("19").env("FAKE_APP_SERVER_LIVES", lives);
        let session = Session::start(child).await;
        let params = RawJson::parse(r#"{"threadId":"thr_1"}"#).unwrap();
        let asked = session.client.request_raw("thread/resume", params).reads();
        let answer = within("answer", asked).await.unwrap();
        let answer: Value = answer.read().unwrap();
        let output = &answer["thread"]["turns"][0]["items"][0]["aggregatedOutput"];
        assert!(output.as_str().unwrap().len() >= 20 << 20);
        let ended = session.end().await;
        let frames = ended.recording.received();
        let told = frames
            .iter()
            .rev()
            .find(|frame| frame["method"].is_string());
        assert_eq!(told.unwrap()["method"], "thread/status/changed");
    });
}

#[test]
fn case_19b_item_of_20_mib_comes_whole_in_a_turn() {
    run(async {
        let session = Session::start(case("19b")).await;
        let (_talk, mut turn) = begin(&session, Settings::new()).await;
        let told = to_end(&mut turn).await;
        assert_eq!(told.end.text.as_deref(), Some("after"));
        let big = told.completed("commandExecution");
        assert_eq!(big.len(), 1);
        assert!(big[0].raw.get().len() >= 20 << 20);
        end(session).await;
    });
}

#[test]
fn case_19b_frame_past_the_limit_ends_every_wait() {
    run(async {
        let session = Session::start_with(case("19b"), |config| {
            config.machine(|machine| machine.limits.frame = 1 << 20)
        })
        .await;
        let (_talk, mut turn) = begin(&session, Settings::new()).await;
        let asked = session
            .client
            .request_raw("model/list", RawJson::parse("{}").unwrap());
        let told = to_end(&mut turn).await;
        let expected = ProtocolError::FrameTooLarge { limit: 1 << 20 };
        assert_eq!(*broken(lost_connection(&told)), expected);
        match within("answer", asked.reads()).await {
            Err(RequestError::Command(CommandError::Disconnected { reason })) => {
                assert_eq!(*broken(&reason), expected)
            }
            other => panic!("{other:?}"),
        }
        session.end().await;
    });
}

#[test]
fn case_20_characters_cut_by_reads_come_whole() {
    run(async {
        let session = Session::start(case("20")).await;
        let (_talk, mut turn) = begin(&session, Settings::new()).await;
        let told = to_end(&mut turn).await;
        assert_eq!(told.streamed(), "a中bé中😀é中😀");
        let frames: u32 = told.deltas.iter().map(|Delta { frames, .. }| frames).sum();
        assert_eq!(frames, 3);
        end(session).await;
    });
}

#[test]
fn case_22_noise_is_told_and_the_stream_goes_on() {
    run(async {
        let session = Session::start(case("22")).await;
        let (_talk, mut turn) = begin(&session, Settings::new()).await;
        assert_eq!(turn.final_response().await.unwrap(), "fine");
        let ended = end(session).await;
        let events = connection_events(&ended.recording);
        let noise: Vec<_> = events
            .iter()
            .filter_map(|event| match event {
                ConnectionEvent::Noise { why, line, .. } => Some((*why, line.as_str())),
                _ => None,
            })
            .collect();
        assert_eq!(noise.len(), 2, "{noise:?}");
        assert!(
            noise.iter().all(|(why, _)| *why == NoiseWhy::NotUtf8),
            "{noise:?}"
        );
        assert!(noise[0].1.contains("Der Befehl"), "{noise:?}");
        let warned = events
            .iter()
            .any(|e| matches!(e, ConnectionEvent::Warning(_)));
        assert!(!warned, "what is no UTF-8 says nothing: {events:?}");
    });
}

#[test]
fn case_22b_too_much_noise_ends_the_connection() {
    run(async {
        let session = Session::start(case("22b")).await;
        let mut connection = session.client.connection_events();
        let (_talk, mut turn) = begin(&session, Settings::new()).await;
        let told = to_end(&mut turn).await;
        let expected = ProtocolError::TooMuchNoise { count: 64 };
        assert_eq!(*broken(lost_connection(&told)), expected);
        assert_eq!(*broken(&until_ended(&mut connection).await), expected);
        session.end().await;
    });
}

#[test]
fn case_24_stderr_is_drained_and_its_end_kept() {
    run(async {
        let session = Session::start(case("24")).await;
        let (_talk, mut turn) = begin(&session, Settings::new()).await;
        assert_eq!(turn.final_response().await.unwrap(), "fine");
        let ended = end(session).await;
        let closed = closed(&ended.recording);
        assert_eq!(closed.len(), 1);
        assert_eq!(closed[0].1.len(), 64 << 10, "the last 64 KiB and no more");
    });
}

#[test]
fn case_25_start_that_fails_tells_phase_status_and_stderr() {
    run(async {
        let failed = fails(case("25"), same).await;
        match reason(&failed) {
            EndReason::Closed {
                phase,
                reason,
                stderr_tail,
            } => {
                assert_eq!(*phase, Phasing::Initialize);
                let (code, signal) = (Some(1), None);
                assert_eq!(*reason, CloseReason::Exited { code, signal });
                assert!(stderr_tail.contains("cannot open the state database"));
            }
            other => panic!("{other:?}"),
        }
        let told = failed.error.to_string();
        assert!(
            told.starts_with("initialize: the server exited with code 1"),
            "{told}"
        );
        // Nothing was accepted: one start, no second try behind the caller's back.
        let opens = failed
            .recording
            .steps
            .iter()
            .flat_map(|(_, _, fx)| &fx.list);
        assert_eq!(opens.filter(|e| matches!(e, Effect::Open(..))).count(), 1);
    });
}

#[test]
fn case_25b_start_that_hangs_ends_at_its_limit() {
    run(async {
        let limit = Duration::from_millis(500);
        let failed = fails(case("25b"), |config| {
            config.machine(|machine| machine.limits.handshake = limit)
        })
        .await;
        match reason(&failed) {
            EndReason::HandshakeTimeout {
                limit: of,
                stderr_tail,
            } => {
                assert_eq!(*of, limit);
                assert!(
                    stderr_tail.contains("cannot open the state database"),
                    "{stderr_tail:?}"
                );
            }
            other => panic!("{other:?}"),
        }
    });
}

#[test]
fn case_27_killed_server_ends_turn_and_question() {
    run(async {
        let session = Session::start(case("27")).await;
        let settings = Settings::new().questions(Questions::Ask);
        let (talk, mut turn) = begin(&session, settings).await;
        let question = until_question(&mut turn).await;
        let told = to_end(&mut turn).await;
        let (code, signal) = (None, Some(9));
        match lost_connection(&told) {
            EndReason::Closed {
                phase: Phasing::Ready,
                reason,
                ..
            } => {
                assert_eq!(*reason, CloseReason::Exited { code, signal });
            }
            other => panic!("{other:?}"),
        }
        let withdrawn = told.updates.iter().any(|update| {
            matches!(update, TurnUpdate::QuestionClosed { question: of, why }
                if *of == question.id && *why == QuestionClosedWhy::ConnectionEnded)
        });
        assert!(withdrawn, "{:?}", told.updates);
        match talk
            .answer(question.id, turnkeep_tokio::Answer::Accept)
            .await
        {
            Err(RequestError::Command(CommandError::UnknownQuestion { .. })) => {}
            other => panic!("{other:?}"),
        }
        let ended = end(session).await;
        let lost = ended.recording.records().into_iter().any(|(_, record)| {
            matches!(
                record,
                Record::Prompt {
                    change: PromptChange::Ended {
                        outcome: Outcome::Lost { .. },
                        ..
                    },
                    ..
                }
            )
        });
        assert!(lost, "the journal holds that the turn was open");
    });
}

#[test]
fn case_28_close_takes_the_whole_tree() {
    run(async {
        let session = Session::start(case("28")).await;
        let (_talk, mut turn) = begin(&session, Settings::new()).await;
        assert_eq!(turn.final_response().await.unwrap(), "x");
        assert!(session.family().len() >= 2, "{:?}", session.family());
        end(session).await;
    });
}

#[test]
fn case_28_drop_takes_the_whole_tree() {
    run(async {
        let session = Session::start(case("28")).await;
        let (talk, mut turn) = begin(&session, Settings::new()).await;
        assert_eq!(turn.final_response().await.unwrap(), "x");
        let watch = session.watch();
        assert!(watch.seen.len() >= 2, "{:?}", watch.seen);
        drop((talk, turn, session));
        assert_eq!(watch.wait_gone(), []);
    });
}

/// A server with a grandchild, both deaf to TERM and to the end of stdin; `then` follows `initialize`.
fn stubborn(then: &str) -> ChildConfig {
    let head = "X ignore-term\nX ignore-eof\nX grandchild\n";
    let initialize = r#"C {"id":"$id","method":"initialize"}"#;
    text(&format!("{head}{initialize}\n{then}\n"))
}

#[test]
fn case_28_failed_start_takes_the_whole_tree() {
    run(async {
        let failed = fails(stubborn("X exit 3"), same).await;
        match reason(&failed) {
            EndReason::Closed { reason, .. } => {
                let (code, signal) = (Some(3), None);
                assert_eq!(*reason, CloseReason::Exited { code, signal });
            }
            other => panic!("{other:?}"),
        }
    });
}

#[test]
fn case_28_refused_handshake_takes_the_whole_tree() {
    run(async {
        let answer = r#"S {"id":"$id","result":{"userAgent":"codex/0.1.0 (old)"}}"#;
        let failed = fails(stubborn(&format!("{answer}\nX hang")), same).await;
        let reason = reason(&failed);
        assert!(
            matches!(reason, EndReason::UnsupportedVersion { .. }),
            "{reason:?}"
        );
    });
}

#[test]
fn case_28_cancelled_start_takes_the_whole_tree() {
    run(async {
        let (config, dir, mut watch) = watched(stubborn("X hang"));
        let start = tokio::spawn(Client::spawn(config));
        // The server, its grandchild, and nobody else.
        watch.wait_for(2).await;
        start.abort();
        assert!(start.await.unwrap_err().is_cancelled());
        assert_eq!(watch.wait_gone(), []);
        drop(dir);
    });
}

#[test]
fn case_28_child_that_left_the_group_is_taken_too() {
    run(async {
        let server = env!("CARGO_BIN_EXE_fake-app-server");
        let child = ChildConfig::program("sh")
            .args(["-c", "setsid sleep 600 & exec \"$0\" demo", server])
            .stop_limits(Duration::from_millis(300), Duration::from_millis(300));
        let session = Session::start(child).await;
        let server = session.launcher();
        // The server may be up before its child has left the group.
        within("a child outside the group", async {
            while session.family().iter().all(|p| p.pgid == server.pgid) {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        })
        .await;
        session.end().await;
    });
}

#[test]
fn case_a4_close_ends_every_wait() {
    run(async {
        let session = Session::start(case("A4")).await;
        let (_talk, mut turn) = begin(&session, Settings::new()).await;
        until_user_message(&mut turn).await;
        let client = session.client.clone();
        let ask = |method: &'static str| {
            let request = client.request_raw(method, RawJson::parse("{}").unwrap());
            async { request.reads().await.map(|_| ()) }
        };
        let waits = async {
            tokio::join!(
                ask("model/list"),
                ask("thread/list"),
                async { turn.interrupt().await.map(|_| ()) },
                end(session),
            )
        };
        let (models, threads, interrupt, ended) = within("end of every wait", waits).await;
        for wait in [models, threads, interrupt] {
            match wait {
                Err(RequestError::Command(CommandError::ClosedByUs)) => {}
                other => panic!("{other:?}"),
            }
        }
        for method in ["model/list", "thread/list"] {
            assert_eq!(
                ended.recording.sent_params(method).len(),
                1,
                "{method} was asked"
            );
        }
        let told = to_end(&mut turn).await;
        assert_eq!(*lost(&told), LostReason::ClosedByUs);
        let report = ended.summary.report;
        assert_eq!((report.turns, report.commands), (1, 3), "{report:?}");
    });
}

#[test]
fn case_a11_bad_bytes_on_stderr_hide_no_exit_status() {
    run(async {
        let script = r#"C {"id":"$id","method":"initialize"}
X stderr \xff\xfe no \xe4 text
X exit 3
"#;
        let failed = fails(text(script), same).await;
        match reason(&failed) {
            EndReason::Closed {
                reason,
                stderr_tail,
                ..
            } => {
                let (code, signal) = (Some(3), None);
                assert_eq!(*reason, CloseReason::Exited { code, signal });
                assert!(
                    stderr_tail.contains("\u{fffd} no \u{fffd} text"),
                    "{stderr_tail:?}"
                );
            }
            other => panic!("{other:?}"),
        }
    });
}

#[test]
fn case_a12_server_that_talks_before_it_listens_is_heard() {
    run(async {
        // More than both pipes hold, before the first line is read and before the second.
        let flood = r#"X repeat 64
S {"method":"warning","params":{"message":"${x*65536}"}}
X end
"#;
        let script = format!(
            r#"{flood}C {{"id":"$id1","method":"initialize"}}
S {{"id":"$id1","result":{{"userAgent":"codex/0.171.0 (test)"}}}}
X auto all
{flood}C {{"id":"$id","method":"turn/start","params":{{"threadId":"thr_1","input":"*","clientUserMessageId":"$msg"}}}}
S {{"id":"$id","result":{{"turn":{{"id":"trn_1","items":[],"status":"inProgress","error":null}}}}}}
S {{"method":"turn/completed","params":{{"threadId":"thr_1","turn":{{"id":"trn_1","items":[],"status":"completed","error":null}}}}}}
"#
        )
        .replace("${x*65536}", &"x".repeat(1 << 16));
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a12.script");
        fs::write(&path, script).unwrap();
        let session = Session::start(fake([path.to_str().unwrap()])).await;
        let talk = session.client.conversation("talk").await.unwrap();
        let mut turn = talk.send("y".repeat(4 << 20)).await.unwrap();
        let told = to_end(&mut turn).await;
        assert_eq!(told.end.outcome.name(), "completed");
        let ended = end(session).await;
        let events = connection_events(&ended.recording);
        let warned = events
            .iter()
            .filter(|e| matches!(e, ConnectionEvent::Warning(_)));
        assert_eq!(warned.count(), 128);
    });
}

#[test]
fn case_a21_time_limit_of_a_tool_writes_one_failure() {
    run(async {
        let session = Session::start(case("A21")).await;
        let schema = RawJson::parse(r#"{"type":"object"}"#).unwrap();
        let tool = Tool::function("lookup", "Looks up.", schema);
        let limit = Duration::from_millis(200);
        let settings = Settings::new().tool(tool.time_limit(limit));
        let (_talk, mut turn) = begin(&session, settings).await;
        let call = until_call(&mut turn).await;
        until(&mut turn, "closed call", |event| match event {
            TurnEvent::Update(TurnUpdate::CallClosed { call: of, why }) => {
                assert_eq!((*of, *why), (call.id, CallClosedWhy::TimeLimit));
                Some(())
            }
            _ => None,
        })
        .await;
        match turn.respond(call.id, ToolResult::ok("late")).await {
            Err(RequestError::Command(CommandError::CallClosed { .. })) => {}
            other => panic!("{other:?}"),
        }
        assert_eq!(turn.final_response().await.unwrap(), "without it");
        let ended = end(session).await;
        let answers = ended.recording.sent().into_iter();
        let answers: Vec<_> = answers.filter(|f| f.get("method").is_none()).collect();
        assert_eq!(answers.len(), 1);
        assert_eq!(answers[0]["result"]["success"], json!(false));
    });
}

/// Set in the process whose processor time is measured.
const MEASURED: &str = "TURNKEEP_TEST_MEASURED";

#[test]
fn case_a23_end_of_stdout_is_read_once() {
    // Alone in a process of its own: other tests take processor time too.
    if env::var_os(MEASURED).is_none() {
        let output = Command::new(env::current_exe().unwrap())
            .args([
                "--exact",
                "case_a23_end_of_stdout_is_read_once",
                "--nocapture",
            ])
            .env(MEASURED, "1")
            .output()
            .unwrap();
        let told = String::from_utf8_lossy(&output.stdout);
        assert!(
            output.status.success() && told.contains("ticks of"),
            "{told}{}",
            String::from_utf8_lossy(&output.stderr)
        );
        print!("{told}");
        return;
    }
    run(async {
        // It lives on through the end of its stdout and SIGTERM, for a second and two more.
        let script = format!("X ignore-term\n{}", script("A23"));
        let child = text(&script).stop_limits(Duration::from_secs(2), Duration::from_secs(2));
        let session = Session::start(child).await;
        let mut connection = session.client.connection_events();
        let (_talk, mut turn) = begin(&session, Settings::new()).await;
        until_user_message(&mut turn).await;
        let us = std::process::id();
        let before = processes::ticks(us).unwrap();
        let reason = until_ended(&mut connection).await;
        let used = processes::ticks(us).unwrap() - before;
        assert!(matches!(reason, EndReason::Closed { .. }), "{reason:?}");
        let told = to_end(&mut turn).await;
        lost_connection(&told);
        session.end().await;
        let second = rustix::param::clock_ticks_per_second();
        println!("{used} ticks of {second} a second");
        assert!(used < second / 2, "{used} ticks of {second} a second");
    });
}

#[test]
fn every_case_over_children_has_its_script() {
    for name in [
        "01", "02", "02b", "02c", "17", "19", "19b", "20", "22", "22b", "24", "25", "25b", "27",
        "28", "A4", "A21", "A23",
    ] {
        assert!(script(name).starts_with("# Right: "), "{name}");
    }
}
