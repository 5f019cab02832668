//! How the server is reached, and by which child.

use insta::assert_snapshot;
use turnkeep_core::{
    CodexHome, Durable, Record,
    attachment::{Attached, Attachment, AttachmentChange, Child, Endpoint},
};

use super::{On, table};

fn attached(endpoint: Endpoint, pid: Option<u32>) -> Box<Attached> {
    Box::new(Attached {
        endpoint,
        child: pid.map(|pid| Child {
            pid,
            start_time: Some(9),
        }),
        instructions: None,
    })
}

#[test]
fn attachment() {
    let home = |text: &str| CodexHome::new(text).unwrap();
    let child = |pid| attached(Endpoint::Spawn, Some(pid));
    let socket = || {
        let (host, port) = ("h".into(), 1);
        attached(Endpoint::Tcp { host, port }, None)
    };
    let states = [
        ("Never", Attachment::Never),
        (
            "Attached to child 1, no home",
            Attachment::Attached {
                to: child(1),
                home: None,
            },
        ),
        (
            "Attached to a socket, home a",
            Attachment::Attached {
                to: socket(),
                home: Some(home("a")),
            },
        ),
        (
            "Detached, home a",
            Attachment::Detached {
                endpoint: Endpoint::Spawn,
                home: Some(home("a")),
            },
        ),
    ];
    let events = [
        ("child 1", AttachmentChange::Attached(child(1))),
        ("child 2", AttachmentChange::Attached(child(2))),
        ("socket", AttachmentChange::Attached(socket())),
        ("home a", AttachmentChange::HomeTold(home("a"))),
        ("home b", AttachmentChange::HomeTold(home("b"))),
        ("detached", AttachmentChange::Detached),
    ];
    for (_, change) in &events {
        match change {
            AttachmentChange::Attached(_)
            | AttachmentChange::HomeTold(_)
            | AttachmentChange::Detached => {}
        }
    }
    let on: On<Attachment, AttachmentChange> = Attachment::on;
    assert_snapshot!(table(&states, &events, Attachment::name, on));
}

#[test]
fn an_attachment_that_cannot_be_is_refused() {
    let tcp = |host: &str, port| Endpoint::Tcp {
        host: host.into(),
        port,
    };
    let unix = |path: &str| Endpoint::Unix { path: path.into() };
    let told = |instructions: &str| {
        let instructions = Some(instructions.into());
        Box::new(Attached {
            instructions,
            ..*attached(Endpoint::Stream, None)
        })
    };
    let rows = [
        (attached(tcp("h", 1), None), true),
        (attached(tcp("h", 0), None), false),
        (attached(tcp("", 1), None), false),
        (attached(tcp(" h", 1), None), false),
        (attached(unix("/s"), None), true),
        (attached(unix(""), None), false),
        (attached(Endpoint::Spawn, Some(1)), true),
        (attached(Endpoint::Spawn, Some(0)), false),
        (told("look there"), true),
        (told(""), false),
        (told("look there\n"), false),
    ];
    for (attached, good) in rows {
        let mut durable = Durable::default();
        let applied = durable.apply(&Record::Attached(attached.clone()));
        assert_eq!(applied.is_ok(), good, "{attached:?}");
        assert_eq!(durable == Durable::default(), !good, "{attached:?}");
    }
    for home in ["\"\"", "\" /h\"", "\"/h \""] {
        let read = serde_json::from_str::<Record>(&format!(r#"{{"home_told":{{"home":{home}}}}}"#));
        assert!(read.is_err(), "{home}");
    }
}

#[test]
fn a_child_is_an_orphan_until_it_is_known_to_be_gone() {
    let mut durable = Durable::default();
    let child = *attached(Endpoint::Spawn, Some(1));
    let mut apply = |record: Record| {
        durable.apply(&record).unwrap();
        (durable.orphan(), durable.home().map(ToString::to_string))
    };
    let of = |home: Option<&str>| (child.child, home.map(str::to_owned));
    assert_eq!(apply(Record::Attached(Box::new(child.clone()))), of(None));
    let home = CodexHome::new("/h").unwrap();
    assert_eq!(apply(Record::HomeTold { home }), of(Some("/h")));
    // The home stays, so that the next one can be told to be another.
    assert_eq!(apply(Record::Detached), (None, Some("/h".into())));
    assert_eq!(
        apply(Record::Attached(Box::new(child.clone()))),
        of(Some("/h"))
    );
    assert_eq!(
        apply(Record::Attached(attached(Endpoint::Stream, None))),
        (None, Some("/h".into()))
    );
}
