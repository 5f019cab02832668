//! A token stands nowhere but in the request.

use std::{
    fmt::Write as _,
    fs,
    path::Path,
    sync::{Mutex, Once, PoisonError},
    time::Duration,
};

use tracing::{
    Event, Metadata, Subscriber,
    field::{Field, Visit},
    span,
};
use turnkeep_runtime::Runtime;
use turnkeep_tests::{
    on_both,
    sockets::{Authority, Door, SocketServer},
};

use crate::{Told, at, not_started, over, script, send, shut_down, start, talk, to_end, turn};

on_both!(a_token_is_in_no_log_no_record_and_no_error);

pub(crate) const TOKEN: &str = "tk-5ecret-0f-7his-test";

/// All that is logged by anybody in this process, by `tracing` and by `log`.
static LOGGED: Mutex<String> = Mutex::new(String::new());

struct Capture;

struct Fields;

fn logged(text: std::fmt::Arguments<'_>) {
    let mut all = LOGGED.lock().unwrap_or_else(PoisonError::into_inner);
    let _ = writeln!(all, "{text}");
}

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        logged(format_args!("{field}={value:?}"));
    }
}

impl Subscriber for Capture {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn new_span(&self, span: &span::Attributes<'_>) -> span::Id {
        span.record(&mut Fields);
        span::Id::from_u64(1)
    }

    fn record(&self, _: &span::Id, values: &span::Record<'_>) {
        values.record(&mut Fields);
    }

    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}

    fn event(&self, event: &Event<'_>) {
        event.record(&mut Fields);
    }

    fn enter(&self, _: &span::Id) {}

    fn exit(&self, _: &span::Id) {}
}

impl log::Log for Capture {
    fn enabled(&self, _: &log::Metadata<'_>) -> bool {
        true
    }

    fn log(&self, record: &log::Record<'_>) {
        // The server of the tests says what it is sent.
        if !record.target().starts_with("tungstenite") {
            logged(format_args!("{}: {}", record.target(), record.args()));
        }
    }

    fn flush(&self) {}
}

/// Takes all that is logged from here on.
pub(crate) fn capture() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        tracing::subscriber::set_global_default(Capture).unwrap();
        log::set_logger(&Capture).unwrap();
        log::set_max_level(log::LevelFilter::Trace);
    });
}

async fn a_token_is_in_no_log_no_record_and_no_error<R: Runtime + Default>() {
    capture();
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("token");
    fs::write(&file, TOKEN).unwrap();
    let mut shown = String::new();
    let authority = Authority::new("localhost");
    let text = script(&[&turn(1, "done")]);
    for (n, server) in [
        SocketServer::tcp(&text),
        SocketServer::tls(&text, &authority),
    ]
    .iter()
    .enumerate()
    {
        let mut config = at(server).token(TOKEN);
        if n == 1 {
            config = at(server).token_file(&file).ca_file(authority.file());
        }
        let config = over(config)
            .journal(dir.path().join(format!("journal-{n}")))
            .record(dir.path().join(format!("recording-{n}")));
        let _ = writeln!(shown, "{config:?}");
        let client = start::<R>(config).await;
        let talk = talk(&client).await;
        let mut turn = send::<R>(&talk, "go").await;
        to_end::<R>(&mut turn, Told::default()).await;
        let _ = writeln!(shown, "{client:?} {talk:?} {turn:?}");
        shut_down(client).await;
        let bearer = format!("Bearer {TOKEN}");
        assert_eq!(server.asked()[0].header("authorization"), Some(&*bearer));
    }
    for door in [
        Door::Status(401),
        Door::Status(500),
        Door::WrongAccept,
        Door::NoHttp,
        Door::HangUp,
        Door::Silent,
    ] {
        let server = SocketServer::tcp(&text).doors([door]);
        let config = at(&server).token(TOKEN).open_limit(Duration::from_secs(1));
        let reason = not_started::<R>(over(config)).await;
        let _ = writeln!(shown, "{reason:?} {reason}");
    }
    let logged = logged_so_far();
    assert!(logged.contains("turn/start"), "nothing is captured");
    assert!(!logged.contains(TOKEN));
    assert!(!shown.contains(TOKEN), "{shown}");
    fs::remove_file(file).unwrap();
    let read = knows_nothing(dir.path());
    assert!(read >= 4, "{read}");
}

pub(crate) fn logged_so_far() -> String {
    LOGGED
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .clone()
}

/// Looks for the token in all files. How many there are.
pub(crate) fn knows_nothing(dir: &Path) -> u32 {
    let mut read = 0;
    let mut dirs = vec![dir.to_owned()];
    while let Some(dir) = dirs.pop() {
        for entry in fs::read_dir(dir).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                dirs.push(path);
                continue;
            }
            read += 1;
            let text = fs::read(&path).unwrap();
            let text = String::from_utf8_lossy(&text);
            assert!(!text.contains(TOKEN), "{path:?}");
        }
    }
    read
}
