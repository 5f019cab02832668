//! What the corpora grow from: frames of the recordings, and sessions in which everything happens once.

use std::collections::BTreeMap;

use turnkeep_fuzz::{
    journal_of,
    steps::{self, Do},
};
use turnkeep_tests::recordings::{self, What};

/// Records as the first version wrote them, and such that leave something of every kind in the state.
const RECORDS: [&str; 2] = [
    include_str!("../../../../tests/records/first-form.jsonl"),
    include_str!("../../../../tests/records/full-state.jsonl"),
];

/// The longest frame that is a seed: longer ones tell nothing more and take long.
const LONGEST: usize = 2_000;

type Session = &'static [(Do, [u8; 3])];

const READY: Session = &[(Do::Opened, [0, 1, 0]), (Do::Serve, [0, 0, 0])];

const READY_ON_A_SOCKET: Session = &[(Do::Opened, [0, 3, 0]), (Do::Serve, [0, 0, 0])];

/// A turn that runs. Its settings ask questions.
const RUNNING: Session = &[
    (Do::Open, [0, 4, 0]),
    (Do::Send, [0, 0, 0]),
    (Do::Serve, [0, 0, 0]),
    (Do::Notify, [0, 0, 0]),
    (Do::Notify, [7, 0, 0]),
    (Do::Ack, [0, 0, 0]),
];

/// The same; what arrives is steered at once, and boxes have headers.
const RUNNING_AT_ONCE: Session = &[
    (Do::Open, [0, 7, 0]),
    (Do::Send, [0, 0, 0]),
    (Do::Serve, [0, 0, 0]),
    (Do::Notify, [0, 0, 0]),
    (Do::Notify, [7, 0, 0]),
    (Do::Ack, [0, 0, 0]),
];

const END: Session = &[
    (Do::Notify, [14, 0, 0]),
    (Do::Notify, [2, 0, 0]),
    (Do::Serve, [0, 0, 0]),
    (Do::Acknowledge, [1, 0, 0]),
    (Do::Ack, [0, 0, 0]),
];

const TEXT: Session = &[
    (Do::Notify, [10, 0, 0]),
    (Do::Delta, [0, 0, 0]),
    (Do::Delta, [0, 0, 1]),
    (Do::Delta, [8, 0, 2]),
    (Do::Delta, [3, 0, 3]),
    (Do::Delta, [4, 0, 0]),
    (Do::Delta, [16, 0, 5]),
    (Do::Notify, [9, 0, 2]),
    (Do::Notify, [13, 0, 9]),
    (Do::Notify, [19, 0, 0]),
    (Do::Notify, [20, 0, 12]),
];

const CALLS: Session = &[
    (Do::Call, [0, 0, 31]),
    (Do::Ack, [0, 0, 0]),
    (Do::Respond, [0, 0, 0]),
    (Do::Ack, [0, 0, 0]),
    (Do::Call, [2, 0, 31]),
    (Do::Call, [3, 0, 15]),
    (Do::Call, [4, 0, 31]),
    (Do::Call, [5, 0, 31]),
    (Do::Call, [3, 0, 0]),
    (Do::Ack, [0, 0, 0]),
    (Do::ToolMessage, [1, 0, 0]),
    (Do::Respond, [1, 3, 0]),
    (Do::Serve, [0, 0, 0]),
    (Do::Call, [1, 0, 31]),
    (Do::Ack, [0, 0, 0]),
    (Do::Tick, [0, 0, 0]),
    (Do::Serve, [0, 0, 0]),
];

const QUESTIONS: Session = &[
    (Do::Ask, [0, 0, 0]),
    (Do::Ack, [0, 0, 0]),
    (Do::Reply, [0, 0, 0]),
    (Do::Ack, [0, 0, 0]),
    (Do::Ask, [2, 0, 1]),
    (Do::Ask, [3, 0, 2]),
    (Do::Ask, [4, 0, 4]),
    (Do::Ask, [5, 0, 12]),
    (Do::Ask, [6, 0, 0]),
    (Do::Ask, [7, 0, 0]),
    (Do::Ack, [0, 0, 0]),
    (Do::Reply, [0, 7, 0]),
    (Do::Reply, [1, 6, 0]),
    (Do::Notify, [18, 0, 3]),
    (Do::Serve, [0, 0, 0]),
];

const STEERS: Session = &[
    (Do::Steer, [1, 0, 0]),
    (Do::Serve, [0, 0, 0]),
    (Do::Notify, [7, 0, 0]),
    (Do::Accept, [0, 66, 0]),
    (Do::Serve, [0, 0, 0]),
    (Do::Steer, [1, 0, 0]),
    (Do::Ack, [0, 0, 0]),
    (Do::Answer, [0, 1, 0]),
    (Do::Serve, [0, 0, 0]),
];

const STOPS: Session = &[
    (Do::Interrupt, [1, 0, 0]),
    (Do::Serve, [0, 0, 0]),
    (Do::Notify, [4, 0, 0]),
    (Do::Ack, [0, 0, 0]),
    (Do::Send, [0, 0, 1]),
    (Do::Serve, [0, 0, 0]),
    (Do::Notify, [0, 0, 0]),
    (Do::Abandon, [1, 0, 0]),
    (Do::Serve, [0, 0, 0]),
    (Do::Notify, [4, 0, 0]),
    (Do::Send, [0, 0, 1]),
    (Do::Serve, [0, 0, 0]),
    (Do::Tick, [0, 0, 0]),
    (Do::Serve, [0, 0, 0]),
    (Do::Tick, [0, 0, 0]),
    (Do::Notify, [17, 0, 1]),
    (Do::Tick, [0, 0, 0]),
];

const LOST_AND_BACK: Session = &[
    (Do::Call, [0, 0, 31]),
    (Do::Ack, [0, 0, 0]),
    (Do::Closed, [0, 1, 0]),
    (Do::Ack, [0, 0, 0]),
    (Do::Tick, [0, 0, 0]),
    (Do::Opened, [0, 3, 0]),
    (Do::Serve, [0, 0, 1]),
    (Do::Respond, [0, 0, 0]),
    (Do::Serve, [0, 0, 0]),
    (Do::Notify, [2, 0, 0]),
    (Do::Serve, [0, 0, 0]),
    (Do::Send, [0, 0, 0]),
    (Do::Serve, [0, 0, 0]),
    (Do::Closed, [0, 2, 0]),
    (Do::Tick, [0, 0, 0]),
    (Do::Opened, [0, 1, 0]),
    (Do::Serve, [0, 0, 6]),
    (Do::Tick, [0, 0, 0]),
    (Do::Serve, [0, 0, 0]),
];

const MANAGED: Session = &[
    (Do::Manage, [0, 3, 0]),
    (Do::Accept, [0, 0, 1]),
    (Do::Manage, [0, 4, 0]),
    (Do::Manage, [0, 0, 0]),
    (Do::Serve, [0, 0, 0]),
    (Do::Notify, [5, 0, 0]),
    (Do::Ack, [0, 0, 0]),
    (Do::Manage, [0, 1, 0]),
    (Do::Serve, [0, 0, 0]),
    (Do::Notify, [5, 0, 0]),
    (Do::Manage, [0, 2, 0]),
    (Do::Change, [0, 4, 4]),
    (Do::Manage, [0, 7, 0]),
    (Do::Manage, [0, 8, 1]),
    (Do::Manage, [0, 5, 0]),
    (Do::Send, [0, 0, 0]),
    (Do::Serve, [0, 0, 0]),
    (Do::Manage, [0, 6, 0]),
    (Do::Again, [0, 1, 0]),
    (Do::QueueFull, [0, 0, 0]),
    (Do::Request, [0, 12, 0]),
    (Do::Request, [1, 12, 1]),
    (Do::Serve, [0, 0, 0]),
    (Do::Request, [0, 12, 0]),
    (Do::Answer, [0, 0, 0]),
    (Do::Tick, [0, 0, 0]),
    (Do::SendFailed, [0, 0, 0]),
    (Do::Pass, [200, 9, 0]),
];

const CLEANED: Session = &[
    (Do::CleanUp, [0, 0, 0]),
    (Do::Serve, [0, 0, 0]),
    (Do::CleanUp, [0, 0, 2]),
    (Do::Serve, [0, 0, 0]),
    (Do::CleanUp, [0, 3, 4]),
    (Do::Serve, [0, 0, 0]),
    (Do::Close, [1, 0, 0]),
    (Do::Serve, [0, 0, 0]),
    (Do::Shutdown, [7, 0, 0]),
    (Do::Serve, [0, 0, 0]),
    (Do::Closed, [0, 5, 0]),
];

const SECOND: Session = &[
    (Do::Open, [1, 0, 0]),
    (Do::Preflight, [1, 2, 2]),
    (Do::Ack, [0, 0, 0]),
    (Do::Respond, [0, 0, 0]),
    (Do::Respond, [1, 0, 0]),
    (Do::Send, [1, 6, 2]),
    (Do::Serve, [0, 0, 0]),
    (Do::Notify, [0, 1, 0]),
    (Do::Delta, [0, 1, 0]),
    (Do::Delta, [0, 0, 0]),
    (Do::Delta, [0, 1, 0]),
];

/// What makes the conversation go on stands in the middle of a read.
const IN_ONE_READ: Session = &[
    (Do::Accept, [0, 2, 0]),
    (Do::Ack, [0, 0, 0]),
    (Do::Notify, [10, 0, 0]),
    (Do::Delta, [0, 0, 0]),
    (Do::Notify, [9, 0, 2]),
    (Do::Notify, [2, 0, 0]),
    (Do::Recorded, [3, 0, 0]),
    (Do::Notify, [14, 0, 1]),
    (Do::Recorded, [3, 0, 0]),
    (Do::Read, [0, 0, 0]),
    (Do::Serve, [0, 0, 0]),
    (Do::Notify, [0, 0, 0]),
    (Do::Notify, [7, 0, 0]),
    (Do::Recorded, [3, 0, 0]),
    (Do::Notify, [5, 0, 0]),
    (Do::Recorded, [3, 0, 0]),
    (Do::Recorded, [11, 0, 0]),
];

/// Sessions that hold together, by name.
const SESSIONS: [(&str, [u8; 3], &[Session]); 17] = [
    ("one-read", [0, 0, 0], &[READY, RUNNING, IN_ONE_READ, END]),
    ("text", [0, 0, 0], &[READY, RUNNING, TEXT, END]),
    ("calls", [0, 0, 0], &[READY, RUNNING, CALLS, END]),
    (
        "calls-boxed",
        [0, 0, 0],
        &[READY, RUNNING_AT_ONCE, CALLS, END],
    ),
    ("questions", [0, 0, 0], &[READY, RUNNING, QUESTIONS, END]),
    ("steers", [0, 0, 0], &[READY, RUNNING, STEERS, END]),
    (
        "steers-at-once",
        [0, 0, 0],
        &[READY, RUNNING_AT_ONCE, STEERS, CALLS, END],
    ),
    ("stops", [0, 0, 0], &[READY, RUNNING, STOPS]),
    ("lost", [1, 0, 0], &[READY, RUNNING, LOST_AND_BACK]),
    (
        "lost-socket",
        [0, 0, 0],
        &[READY_ON_A_SOCKET, RUNNING, LOST_AND_BACK],
    ),
    (
        "lost-boxed",
        [0, 64, 0],
        &[READY_ON_A_SOCKET, RUNNING_AT_ONCE, CALLS, LOST_AND_BACK],
    ),
    ("managed", [0, 0, 0], &[READY, RUNNING, END, MANAGED]),
    (
        "managed-bound",
        [64, 16, 0],
        &[READY, RUNNING, END, MANAGED, END],
    ),
    ("cleaned", [0, 0, 0], &[READY, RUNNING, TEXT, END, CLEANED]),
    ("second", [0, 0, 0], &[READY, RUNNING, SECOND, END]),
    (
        "second-lost",
        [0, 0, 0],
        &[READY_ON_A_SOCKET, RUNNING, SECOND, QUESTIONS, LOST_AND_BACK],
    ),
    (
        "small",
        [2, 48, 0],
        &[READY, RUNNING, TEXT, CALLS, QUESTIONS, END],
    ),
];

/// The seeds of a target, by names of files.
pub(super) fn of(target: &str) -> BTreeMap<String, Vec<u8>> {
    match target {
        "line_split" => lines(),
        "wire_decode" | "fast_equals_slow" => frames(),
        "machine_steps" => cases(&[]),
        "chunking" => cases(&[]).into_iter().chain(raw_cases()).collect(),
        "recover_prefix" => cases(&[0xff, 0x7f, 0, 3, 1]),
        "journal_decode" => journals(),
        "socket_decode" => sockets(),
        _ => BTreeMap::new(),
    }
}

/// Two frames of each method and shape of the recordings, as they came.
fn frames() -> BTreeMap<String, Vec<u8>> {
    let mut frames = BTreeMap::new();
    let mut seen: BTreeMap<String, u32> = BTreeMap::new();
    for recording in recordings::all() {
        for line in &recording.lines {
            let What::In(frame) = &line.what else {
                continue;
            };
            let count = seen.entry(shape(frame)).or_default();
            if frame.len() > LONGEST || *count == 2 {
                continue;
            }
            *count += 1;
            let name = format!("{}-{}-{}", recording.version, recording.name, line.number);
            frames.insert(name, frame.clone().into_bytes());
        }
    }
    frames
}

/// The keys of a frame, those of its parameters among them, and its method.
fn shape(frame: &str) -> String {
    let frame: serde_json::Value = serde_json::from_str(frame).unwrap_or_default();
    let keys = |value: &serde_json::Value| -> Vec<String> {
        let members = value.as_object().into_iter().flatten();
        members.map(|(key, _)| key.clone()).collect()
    };
    format!(
        "{} {:?} {:?} {:?} {}",
        frame["method"],
        keys(&frame),
        keys(&frame["params"]),
        keys(&frame["result"]),
        frame["params"]["item"]["type"]
    )
}

fn lines() -> BTreeMap<String, Vec<u8>> {
    let frames: Vec<_> = frames().into_iter().collect();
    let pairs = frames.chunks(2).enumerate().step_by(4);
    pairs
        .map(|(at, pair)| {
            let cuts = (at % 5) as u8;
            let mut case = vec![cuts];
            case.extend((0..2 * cuts).map(|n| n.wrapping_mul(37)));
            // Every third has a limit that its lines are too long for.
            case.push(if at % 3 == 0 { 200 } else { 255 });
            for (_, frame) in pair {
                case.extend(frame);
                case.extend(if at % 2 == 0 { &b"\n"[..] } else { b"\r\n" });
            }
            (format!("pair-{at}"), case)
        })
        .collect()
}

/// Messages of every kind, whole, in pieces, with control messages between, and such that break a rule.
fn sockets() -> BTreeMap<String, Vec<u8>> {
    let frame = |first: u8, payload: &[u8]| {
        let mut frame = vec![first];
        match u8::try_from(payload.len()) {
            Ok(short @ ..126) => frame.push(short),
            _ => {
                frame.push(126);
                frame.extend((payload.len() as u16).to_be_bytes());
            }
        }
        frame.extend(payload);
        frame
    };
    let text = |payload: &[u8]| frame(0x81, payload);
    let all: [(&str, Vec<Vec<u8>>); 8] = [
        (
            "text",
            vec![
                text(b"{}"),
                text(b""),
                text(b"a\nb"),
                text("\u{e9}".as_bytes()),
            ],
        ),
        ("long", vec![text(&[b'x'; 130]), text(b"{}")]),
        (
            "pieces",
            vec![frame(1, b"{"), frame(0, b""), frame(0x80, b"}")],
        ),
        (
            "between",
            vec![
                frame(1, b"{"),
                frame(0x89, b"p"),
                frame(0x8a, b""),
                frame(0x80, b"}"),
            ],
        ),
        (
            "binary",
            vec![frame(0x82, b"\0\n"), frame(2, b"a"), frame(0x80, b"b")],
        ),
        (
            "close",
            vec![
                text(b"{}"),
                frame(0x88, &[3, 232, b'b', b'y', b'e']),
                frame(0x88, b""),
            ],
        ),
        (
            "broken",
            vec![
                text(b"{}"),
                frame(0xc1, b""),
                frame(3, b""),
                frame(9, b""),
                frame(0x80, b""),
            ],
        ),
        (
            "longest",
            vec![[&[0x81, 127][..], &[0, 0, 0, 0, 0, 0, 0, 3], b"abc"].concat()],
        ),
    ];
    let cases = all.into_iter().flat_map(|(name, frames)| {
        [9, 255].map(|limit| {
            let case = [&[2, 3, 0, 9, 1, limit][..], &frames.concat()].concat();
            (format!("{name}-{limit}"), case)
        })
    });
    cases.collect()
}

/// As many cuts as there can be, wherever a read is.
fn cuts() -> Vec<u8> {
    let places = (1..16_u16).flat_map(|n| (n * 97).to_le_bytes());
    [15].into_iter().chain(places).collect()
}

fn cases(head: &[u8]) -> BTreeMap<String, Vec<u8>> {
    let sessions = SESSIONS.iter();
    sessions
        .map(|(name, config, parts)| {
            let mut case = head.to_vec();
            case.extend(config);
            case.extend(cuts());
            for (what, by) in parts.iter().copied().flatten() {
                steps::write(*what, *by, &mut case);
            }
            ((*name).to_owned(), case)
        })
        .collect()
}

/// Frames of the recordings as they came, several in one read.
fn raw_cases() -> BTreeMap<String, Vec<u8>> {
    let frames: Vec<_> = frames().into_values().filter(|f| f.len() < 1_000).collect();
    let groups = frames.chunks(6).enumerate().step_by(3);
    groups
        .map(|(at, group)| {
            let mut case = vec![0, 0, 0];
            case.extend(cuts());
            for (what, by) in READY.iter().chain(RUNNING) {
                steps::write(*what, *by, &mut case);
            }
            for frame in group {
                steps::write_raw(frame, &mut case);
            }
            (format!("frames-{at}"), case)
        })
        .collect()
}

fn journals() -> BTreeMap<String, Vec<u8>> {
    let mut journals = BTreeMap::new();
    for (name, records) in ["first", "state"].into_iter().zip(RECORDS) {
        let records: Vec<&str> = records.lines().collect();
        for (at, group) in records.chunks(8).enumerate() {
            let mut case = vec![1];
            let body = format!(r#"{{"seq":1,"at":7,"records":[{}]}}"#, group.join(","));
            case.extend(body.bytes());
            journals.insert(format!("{name}-{at}"), case);
        }
        if name == "state" {
            let mut case = vec![1];
            for (at, record) in records.iter().enumerate() {
                let body = format!("{{\"seq\":{},\"at\":7,\"records\":[{record}]}}\n", at + 1);
                case.extend(body.bytes());
            }
            journals.insert(format!("{name}-whole"), case);
        }
    }
    for (name, case) in cases(&[]) {
        let written = journal_of(&case);
        journals.insert(name.clone(), [&[0][..], &written].concat());
        // The bodies alone, with which a fuzzer gets further.
        let mut bodies = vec![1];
        for line in written
            .split(|b| *b == b'\n')
            .filter(|line| !line.is_empty())
        {
            let at = line.windows(7).position(|w| w == br#""body":"#);
            bodies.extend(&line[at.map_or(0, |at| at + 7)..line.len() - 1]);
            bodies.push(b'\n');
        }
        bodies.pop();
        journals.insert(format!("{name}-bodies"), bodies);
    }
    journals
}
