//! How a server's life begins and ends.

use std::{collections::BTreeMap, fs};

use serde_json::{Value, json};
use turnkeep_core::{
    Version,
    command::RefusalClass,
    event::{CallClosedWhy, EndReason, EndSource, LostReason, Phasing, Rejection},
};
use turnkeep_runtime::{
    CommandError, Outcome, RequestError, SERVER_MARK, SendError, StartError, Tool, TurnUpdate,
    core::CloseReason,
};
use turnkeep_tests::{
    codex::CodexHome,
    model::{self, Gate, Model},
    processes::{self, Proc},
    session::{PATIENCE, Told, to_end, until_call, until_text, within},
};

use crate::codex::{Codex, child, json as raw, not_started};

/// Without reconnection: runs a turn until its first text, has `kill` kill something of the server and tells how the connection ended.
async fn killed(version: &'static str, kill: impl FnOnce(&Proc, &[Proc])) -> CloseReason {
    let model = Model::queued([model::text("So ").hold(&Gate::new()).text("far.")]);
    let codex = Codex::start(version, model).await;
    let talk = codex.conversation("talk").await;
    let mut turn = talk.send("go").await.unwrap();
    until_text(&mut turn, "So ").await;
    let watch = codex.session.watch();
    assert!(watch.seen.len() >= 2, "{:?}", watch.seen);
    kill(&codex.session.launcher(), &watch.seen);

    let told = to_end(&mut turn).await;
    assert_eq!(told.end.source, EndSource::Local);
    assert_eq!(told.end.text.as_deref(), Some("So "));
    let reason = match lost(&told) {
        LostReason::Connection(reason) => match &**reason {
            EndReason::Closed {
                phase: Phasing::Ready,
                reason,
                ..
            } => reason.clone(),
            other => panic!("{other:?}"),
        },
        other => panic!("{other:?}"),
    };
    assert_eq!(
        processes::wait_gone(&watch.seen, std::time::Duration::ZERO),
        []
    );
    assert_eq!(codex.session.family(), []);

    // What is asked for now ends at once with the same reason.
    let asked = codex
        .client()
        .request_raw("model/list", raw(json!({})))
        .reads();
    match within("answer without a server", asked).await {
        Err(RequestError::Command(CommandError::Disconnected { reason })) => {
            assert!(matches!(*reason, EndReason::Closed { .. }), "{reason:?}");
        }
        other => panic!("{other:?}"),
    }
    match within("answer without a server", async { talk.send("on").await }).await {
        Err(SendError::Request(RequestError::Command(CommandError::Disconnected { .. }))) => {}
        Ok(mut turn) => match turn.outcome().await.unwrap().outcome {
            Outcome::Rejected {
                error: Rejection::NotSent(_),
            } => {}
            other => panic!("{other:?}"),
        },
        other => panic!("{other:?}"),
    }
    codex.end().await;
    reason
}

fn lost(told: &Told) -> &LostReason {
    match &told.end.outcome {
        Outcome::Lost { reason } => reason,
        other => panic!("{other:?}"),
    }
}

pub(crate) async fn killed_family_loses_the_turn_without_reconnection(version: &'static str) {
    let reason = killed(version, |launcher, _| {
        processes::kill_family(launcher.pid);
    })
    .await;
    assert_eq!(
        reason,
        CloseReason::Exited {
            code: None,
            signal: Some(9)
        }
    );
}

pub(crate) async fn killed_launcher_loses_the_turn_without_reconnection(version: &'static str) {
    let reason = killed(version, |launcher, _| processes::kill(launcher)).await;
    assert_eq!(
        reason,
        CloseReason::Exited {
            code: None,
            signal: Some(9)
        }
    );
}

pub(crate) async fn killed_native_server_loses_the_turn_without_reconnection(
    version: &'static str,
) {
    let reason = killed(version, |launcher, family| {
        let native = family
            .iter()
            .find(|p| p.ppid == launcher.pid && p.comm == "codex");
        processes::kill(native.expect("the launcher has started the server"));
    })
    .await;
    println!("{version}: the launcher of a killed server: {reason}");
    assert!(matches!(reason, CloseReason::Exited { .. }), "{reason:?}");
}

fn nine(config: turnkeep_runtime::ClientConfig) -> turnkeep_runtime::ClientConfig {
    config.machine(|machine| {
        machine.oldest_server = Version::new(9, 0, 0);
        machine.first_unsupported_server = Version::new(10, 0, 0);
    })
}

pub(crate) async fn unsupported_version_is_refused(version: &'static str) {
    let model = Model::queued([]);
    let home = CodexHome::new(&model);
    let failed = not_started(child(version, &home), nine).await;
    match &failed.error {
        StartError::Connection(reason) => match &**reason {
            EndReason::UnsupportedVersion {
                version: found,
                oldest,
                first_unsupported,
            } => {
                assert_eq!(found.to_string(), version);
                assert_eq!(oldest.to_string(), "9.0.0");
                assert_eq!(first_unsupported.to_string(), "10.0.0");
            }
            other => panic!("{other:?}"),
        },
        other => panic!("{other:?}"),
    }
    let sent = failed.recording.sent();
    assert_eq!(
        turnkeep_tests::recording::methods(&sent).len(),
        1,
        "{sent:?}"
    );
}

pub(crate) async fn any_version_is_served_where_asked(version: &'static str) {
    let model = Model::queued([model::text("Hello.")]);
    let home = CodexHome::new(&model);
    let codex = Codex::start_in(version, model, home, |config| {
        nine(config).machine(|machine| machine.any_server_version = true)
    })
    .await;
    let talk = codex.conversation("talk").await;
    let mut turn = talk.send("hello").await.unwrap();
    assert_eq!(turn.final_response().await.unwrap(), "Hello.");
    codex.end().await;
}

pub(crate) async fn unusable_home_fails_the_start(version: &'static str) {
    let model = Model::queued([]);
    let home = CodexHome::new(&model);
    let file = home.cwd().join("no-directory");
    fs::write(&file, "").unwrap();
    let failed = not_started(child(version, &home).codex_home(&file), |config| config).await;
    let StartError::Connection(reason) = &failed.error else {
        panic!("{:?}", failed.error);
    };
    match &**reason {
        EndReason::Closed {
            phase,
            reason: CloseReason::Exited { code, signal },
            stderr_tail,
        } => {
            assert_eq!((*phase, *signal), (Phasing::Initialize, None));
            assert_ne!(*code, Some(0));
            assert!(stderr_tail.contains("CODEX_HOME"), "{stderr_tail}");
        }
        other => panic!("{other:?}"),
    }
    let text = failed.error.to_string();
    assert!(
        text.contains("stderr: ") && text.contains("CODEX_HOME"),
        "{text}"
    );
    println!(
        "{version}: {}",
        text.replace(&*file.display().to_string(), "FILE")
    );
}

pub(crate) async fn missing_program_fails_the_start(version: &'static str) {
    let model = Model::queued([]);
    let home = CodexHome::new(&model);
    let mut config = child(version, &home);
    config.program.push("-that-is-not-there");
    let name = config.program.to_string_lossy().into_owned();
    let failed = not_started(config, |config| config).await;
    match &failed.error {
        StartError::Connection(reason) => match &**reason {
            EndReason::Closed {
                phase: Phasing::Open,
                reason: CloseReason::NotFound(names),
                ..
            } => assert_eq!(names, &[name]),
            other => panic!("{other:?}"),
        },
        other => panic!("{other:?}"),
    }
}

pub(crate) async fn shutdown_in_mid_turn_leaves_nothing(version: &'static str) {
    let model = Model::queued([model::text("I look.").call("lookup", "call-1", json!({}))]);
    let codex = Codex::start(version, model).await;
    let lookup = Tool::function("lookup", "Looks up.", raw(json!({ "type": "object" })));
    let talk = codex.open("talk", codex.settings().tool(lookup)).await;
    let mut turn = talk.send("look").await.unwrap();
    let call = until_call(&mut turn).await;
    let Codex { session, home, .. } = codex;
    let ended = session.end().await;
    drop(home);

    let report = ended.summary.report;
    assert_eq!((report.turns, report.calls, report.questions), (1, 1, 0));
    let told = to_end(&mut turn).await;
    assert_eq!(*lost(&told), LostReason::ClosedByUs);
    assert_eq!(told.end.text.as_deref(), Some("I look."));
    let closed = told.updates.iter().any(|u| {
        matches!(u, TurnUpdate::CallClosed { call: of, why: CallClosedWhy::Shutdown } if *of == call.id)
    });
    assert!(closed, "{:?}", told.updates);
    let withdrawn: Vec<Value> = ended
        .recording
        .sent()
        .into_iter()
        .filter(|frame| frame["error"]["code"] == -32800)
        .collect();
    assert_eq!(withdrawn.len(), 1);
    match talk.send("more").await {
        Err(SendError::Request(RequestError::Command(CommandError::ClosedByUs))) => {}
        other => panic!("{other:?}"),
    }
}

pub(crate) async fn dropped_client_leaves_nothing(version: &'static str) {
    let model = Model::queued([model::text("So ").hold(&Gate::new()).text("far.")]);
    let codex = Codex::start(version, model).await;
    let talk = codex.conversation("talk").await;
    let mut turn = talk.send("go").await.unwrap();
    until_text(&mut turn, "So ").await;
    let watch = codex.session.watch();
    assert!(watch.seen.len() >= 2);
    drop((turn, talk));
    let Codex {
        session,
        model,
        home,
        ..
    } = codex;
    drop(session);
    model.wait_for_hangups(1, PATIENCE);
    assert_eq!(watch.wait_gone(), []);
    drop(home);
}

pub(crate) async fn environment_is_passed(version: &'static str) {
    // Cargo sets it for us; the server shall not have it.
    const TAKEN: &str = "CARGO_PKG_NAME";
    assert!(
        std::env::var_os(TAKEN).is_some(),
        "run the tests through cargo"
    );
    let model = Model::queued([]);
    let home = CodexHome::new(&model);
    let config = child(version, &home)
        .env("TURNKEEP_TEST_GIVEN", "given")
        .env_remove(TAKEN);
    let session = turnkeep_tests::session::Session::start(config).await;
    let family = session.family();
    let native = family.iter().find(|p| p.comm == "codex");
    for pid in [session.launcher().pid, native.unwrap().pid] {
        let variables = environment(pid);
        let value = |name: &str| variables.get(name).map(String::as_str);
        let [(_, codex_home), (_, user_home)] = home.env();
        assert_eq!(value("CODEX_HOME"), codex_home.to_str());
        assert_eq!(value("HOME"), user_home.to_str());
        assert_eq!(value("TURNKEEP_TEST_GIVEN"), Some("given"));
        assert_eq!(value(TAKEN), None);
        assert_eq!(value(SERVER_MARK).map(str::len), Some(32));
    }
    session.end().await;
}

fn environment(pid: u32) -> BTreeMap<String, String> {
    let bytes = fs::read(format!("/proc/{pid}/environ")).expect("the process lives");
    String::from_utf8_lossy(&bytes)
        .split('\0')
        .filter_map(|variable| variable.split_once('='))
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .collect()
}

pub(crate) async fn raw_request_is_answered(version: &'static str) {
    let codex = Codex::start(version, Model::queued([])).await;
    let client = codex.client();
    let none = raw(json!({}));
    let answer = client
        .request_raw("thread/loaded/list", none.clone())
        .reads();
    let answer: Value = answer.await.unwrap().read().unwrap();
    assert_eq!(answer["data"], json!([]));
    match client.request_raw("thread/unheardOf", none).await {
        Err(RequestError::Command(CommandError::Refused(refusal))) => {
            assert_eq!(refusal.class, RefusalClass::UnknownMethod);
            assert_eq!(refusal.error.code, -32600);
        }
        other => panic!("{other:?}"),
    }
    codex.end().await;
}
