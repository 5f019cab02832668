//! The types of the protocol against what the real server said, and against what it might say.

#![allow(clippy::unwrap_used, reason = "helpers of tests are tests")]

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};
use turnkeep_core::{
    Command, ConversationKey, Event, InputItem, Settings,
    command::{Authorization, SendOptions},
    id::ConversationId,
};
use turnkeep_protocol::{
    ClientRequest, ServerNotification, ServerRequest, ServerRequestAnswer, ServerResponse, parse,
    schema::Surface,
};
use turnkeep_tests::{
    by_hand::ByHand,
    recordings::{self, What},
};

/// A frame, and what its type makes of it.
#[derive(Clone)]
struct Typed {
    place: String,
    /// What it is, such as `notification turn/started`.
    about: String,
    kind: Kind,
    method: String,
    /// Its parameters, or its result.
    value: Option<Value>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Request,
    Answer,
    Notification,
    Asked,
    OurAnswer,
}

/// What a type made of a value.
struct Read {
    /// It had another shape, or its method is not known.
    raw: bool,
    /// What was strange in it.
    strange: Vec<String>,
    /// It, written again.
    written: Option<Value>,
}

impl Typed {
    fn read(&self, value: Option<&Value>) -> Read {
        let method = &self.method;
        macro_rules! read {
            ($of:ident, $decoded:expr, $write:expr) => {{
                let decoded = $decoded;
                Read {
                    raw: matches!(decoded, $of::Unknown(_) | $of::Malformed(_)),
                    strange: decoded.strange().iter().map(ToString::to_string).collect(),
                    written: $write(&decoded),
                }
            }};
        }
        let result = value.cloned().unwrap_or_default();
        match self.kind {
            Kind::Request => read!(
                ClientRequest,
                ClientRequest::decode(method, value),
                ClientRequest::params
            ),
            Kind::Answer => read!(
                ServerResponse,
                ServerResponse::decode(method, &result),
                |read: &ServerResponse| Some(read.result())
            ),
            Kind::Notification => read!(
                ServerNotification,
                ServerNotification::decode(method, value),
                ServerNotification::params
            ),
            Kind::Asked => read!(
                ServerRequest,
                ServerRequest::decode(method, value),
                ServerRequest::params
            ),
            Kind::OurAnswer => read!(
                ServerRequestAnswer,
                ServerRequestAnswer::decode(method, &result),
                |read: &ServerRequestAnswer| Some(read.result())
            ),
        }
    }
}

/// Every frame that was recorded, but refusals, which have a shape of their own.
fn frames() -> Vec<Typed> {
    let mut frames = Vec::new();
    for recording in recordings::all() {
        let mut asked = BTreeMap::new();
        let mut asked_by_server = BTreeMap::new();
        for line in &recording.lines {
            let (frame, is_out) = match &line.what {
                What::Out(frame) => (parse(frame).unwrap(), true),
                What::In(frame) => (parse(frame).unwrap(), false),
                What::Killed | What::Exited | What::Disconnected => continue,
            };
            let id = frame.get("id").map(ToString::to_string);
            let method = frame
                .get("method")
                .and_then(Value::as_str)
                .map(str::to_owned);
            let (kind, method, value) = match (method, id) {
                (Some(method), Some(id)) => {
                    let asked = if is_out {
                        &mut asked
                    } else {
                        &mut asked_by_server
                    };
                    asked.insert(id, method.clone());
                    let kind = if is_out { Kind::Request } else { Kind::Asked };
                    (kind, method, frame.get("params").cloned())
                }
                (Some(method), None) if !is_out => {
                    (Kind::Notification, method, frame.get("params").cloned())
                }
                (None, Some(id)) if frame.get("result").is_some() => {
                    let asked = if is_out { &asked_by_server } else { &asked };
                    let Some(method) = asked.get(&id) else {
                        continue;
                    };
                    let kind = if is_out {
                        Kind::OurAnswer
                    } else {
                        Kind::Answer
                    };
                    (kind, method.clone(), frame.get("result").cloned())
                }
                _ => continue,
            };
            let what = match kind {
                Kind::Request => "request",
                Kind::Answer => "answer to",
                Kind::Notification => "notification",
                Kind::Asked => "server request",
                Kind::OurAnswer => "our answer to",
            };
            frames.push(Typed {
                place: format!("{}/{}:{}", recording.version, recording.name, line.number),
                about: format!("{what} {method}"),
                kind,
                method,
                value,
            });
        }
    }
    frames
}

#[test]
fn every_recorded_frame_is_typed_whole_and_written_again() {
    let frames = frames();
    let mut abouts = BTreeSet::new();
    let mut complaints = Vec::new();
    for frame in &frames {
        // What the recorded client sent wrongly on purpose.
        let is_gone = frame.method == "thread/rollback";
        let is_probe = frame.kind == Kind::Request && (frame.place.contains("/errors:") || is_gone);
        let read = frame.read(frame.value.as_ref());
        abouts.insert(frame.about.clone());
        let as_it_came = frame.value.clone().filter(|value| !value.is_null());
        if read.written != as_it_came {
            complaints.push(format!(
                "{} {}: written otherwise",
                frame.place, frame.about
            ));
        }
        if is_probe {
            continue;
        }
        if read.raw {
            complaints.push(format!("{} {}: not typed", frame.place, frame.about));
        }
        for strange in read.strange {
            complaints.push(format!("{} {}: {strange}", frame.place, frame.about));
        }
    }
    assert!(complaints.is_empty(), "{}", complaints.join("\n"));
    println!("{} frames of {} kinds", frames.len(), abouts.len());
    assert!(abouts.len() > 60, "recordings were lost");
}

/// The table says what each version has; the types have it all.
#[test]
fn types_cover_every_method_of_every_version() {
    let surface = Surface::built_in();
    assert_eq!(surface.versions(), ["0.163.0", "0.171.0"]);
    for (version, requests, asked, told) in [
        ("0.163.0", (105, 172), (10, 11), 85),
        ("0.171.0", (110, 189), (10, 10), 87),
    ] {
        assert_eq!(surface.count("request", version), Some(requests));
        assert_eq!(surface.count("server request", version), Some(asked));
        assert_eq!(surface.count("notification", version), Some((told, told)));
    }
    let mut counts = [0; 3];
    for line in surface.to_string().lines().skip(1) {
        let about = line.split('\t').nth(1).unwrap();
        let unknown = if let Some(method) = about.strip_prefix("request ") {
            counts[0] += 1;
            matches!(
                ClientRequest::decode(method, None),
                ClientRequest::Unknown(_)
            ) || matches!(
                ServerResponse::decode(method, &Value::Null),
                ServerResponse::Unknown(_)
            )
        } else if let Some(method) = about.strip_prefix("server request ") {
            counts[1] += 1;
            matches!(
                ServerRequest::decode(method, None),
                ServerRequest::Unknown(_)
            ) || matches!(
                ServerRequestAnswer::decode(method, &Value::Null),
                ServerRequestAnswer::Unknown(_)
            )
        } else if let Some(method) = about.strip_prefix("notification ") {
            counts[2] += 1;
            matches!(
                ServerNotification::decode(method, None),
                ServerNotification::Unknown(_)
            )
        } else {
            continue;
        };
        assert!(!unknown, "{about} has no type");
    }
    // A method whose parameters differ between the versions stands there twice.
    assert_eq!(counts, [191, 11, 87]);
    let table = include_str!("../../core/protocol/PROTOCOL.md");
    assert!(table.contains("| 0.163.0 | 105/105 | 172/172 | 10/10 | 11/11 | 85/85 |"));
    assert!(table.contains("| 0.171.0 | 110/110 | 189/189 | 10/10 | 10/10 | 87/87 |"));
}

/// A small generator: the tests must play the same mutants each time.
struct Chance(u64);

impl Chance {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, limit: usize) -> usize {
        (self.next() % limit.max(1) as u64) as usize
    }
}

/// How a frame was changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Change {
    Word,
    Extra,
    Missing,
    Kind,
}

const CHANGES: [Change; 4] = [Change::Word, Change::Extra, Change::Missing, Change::Kind];

/// Changes one place of a value; false where there is none for this change.
fn mutate(value: &mut Value, change: Change, chance: &mut Chance) -> bool {
    let mut places = Vec::new();
    pointers(value, String::new(), &mut places);
    let fits = |place: &&String| match (value.pointer(place), change) {
        (Some(Value::String(_)), Change::Word) | (Some(Value::Object(_)), Change::Extra) => true,
        (Some(Value::Object(members)), Change::Missing) => !members.is_empty(),
        (Some(_), Change::Kind) => true,
        _ => false,
    };
    let places: Vec<String> = places.iter().filter(fits).cloned().collect();
    if places.is_empty() {
        return false;
    }
    let place = &places[chance.below(places.len())];
    let at = value.pointer_mut(place).unwrap();
    match (change, at) {
        (Change::Word, at) => *at = json!("a word of tomorrow"),
        (Change::Extra, Value::Object(members)) => {
            let value = random(chance);
            members.insert(format!("ofTomorrow{}", chance.below(3)), value);
        }
        (Change::Missing, Value::Object(members)) => {
            let names: Vec<String> = members.keys().cloned().collect();
            members.remove(&names[chance.below(names.len())]);
        }
        (_, at) => *at = random(chance),
    }
    true
}

fn random(chance: &mut Chance) -> Value {
    match chance.below(9) {
        0 => Value::Null,
        1 => json!(true),
        2 => json!(u64::MAX),
        3 => json!(i64::MIN),
        4 => json!(-1.5),
        5 => json!("text"),
        6 => json!([]),
        7 => json!([{ "type": "holograph", "id": 1 }]),
        _ => json!({ "type": "holograph", "$serde_json::private::RawValue": "[1]" }),
    }
}

fn pointers(value: &Value, at: String, out: &mut Vec<String>) {
    match value {
        Value::Object(members) => {
            for (name, member) in members {
                let name = name.replace('~', "~0").replace('/', "~1");
                pointers(member, format!("{at}/{name}"), out);
            }
        }
        Value::Array(elements) => {
            for (index, element) in elements.iter().enumerate() {
                pointers(element, format!("{at}/{index}"), out);
            }
        }
        _ => {}
    }
    out.push(at);
}

/// Whatever a server of tomorrow says, nothing of it is lost: it is typed, or kept as it came.
#[test]
fn mutants_of_recorded_frames_lose_nothing() {
    const MUTANTS: usize = 100_000;
    let frames = frames();
    let mut chance = Chance(6);
    // By the change: typed and whole, typed with something strange, kept as it came.
    let mut counts: BTreeMap<Change, [usize; 3]> = BTreeMap::new();
    let mut made = 0;
    while made < MUTANTS {
        let frame = &frames[chance.below(frames.len())];
        let Some(mut value) = frame.value.clone() else {
            continue;
        };
        let change = CHANGES[chance.below(CHANGES.len())];
        let mut changed = false;
        for _ in 0..=chance.below(3) {
            changed |= mutate(&mut value, change, &mut chance);
        }
        if !changed {
            continue;
        }
        made += 1;
        let text = value.to_string();
        let value = parse(&text).unwrap();
        let read = frame.read(Some(&value));
        // A request without parameters may write none, null, or an object without members.
        let is_something = |value: &Value| !value.is_null() && *value != json!({});
        let as_it_came = Some(value).filter(is_something);
        let written = read.written.filter(is_something);
        assert_eq!(
            written, as_it_came,
            "{} {}: {text}",
            frame.place, frame.about
        );
        let which = match (read.raw, read.strange.is_empty()) {
            (true, _) => 2,
            (false, true) => 0,
            (false, false) => 1,
        };
        counts.entry(change).or_default()[which] += 1;
        if change == Change::Extra && which == 0 {
            // A map of anything takes any member; an object says that it does not know it.
            let is_map = [
                "config",
                "arguments",
                "schema",
                "properties",
                "requirements",
            ];
            let allowed = is_map.iter().any(|name| text.to_lowercase().contains(name));
            assert!(allowed, "{} {}: {text}", frame.place, frame.about);
        }
    }
    println!("typed, typed with something strange, raw: {counts:?}");
    // A word that is not known never costs more than itself.
    assert!(counts[&Change::Word][2] * 50 < MUTANTS, "{counts:?}");
    for of in CHANGES {
        assert!(counts[&of].iter().sum::<usize>() > MUTANTS / 10);
    }
}

/// A machine in the middle of the recorded session.
struct Middle {
    host: ByHand,
    /// What came out until now.
    seen: Seen,
}

/// What came out of a machine.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Seen {
    events: usize,
    sent: usize,
    counted: u64,
}

impl Middle {
    /// A machine whose conversation has the thread and the turn that a recording names first.
    fn of(thread: &str, turn: &str) -> Self {
        let mut host = ByHand::ready();
        let key = ConversationKey::new("mutants").unwrap();
        let mut settings = Box::new(Settings::new());
        settings.authorization = Some(Authorization::None);
        host.command(Command::Open { key, settings });
        host.command(Command::Send {
            conversation: ConversationId(1),
            input: vec![InputItem::text("go")],
            options: Box::new(SendOptions::new()),
        });
        let id = host.next_sent("thread/start")["id"].clone();
        let thread = json!({ "id": id, "result": { "thread": { "id": thread, "turns": [] } } });
        host.line(&thread.to_string());
        let id = host.next_sent("turn/start")["id"].clone();
        let turn = json!({ "id": id, "result": { "turn": { "id": turn, "items": [], "status": "inProgress" } } });
        host.line(&turn.to_string());
        let seen = Seen::of(&host);
        Self { host, seen }
    }

    /// Takes a line; whether anything came of it.
    fn line(&mut self, line: &str) -> bool {
        self.host.line(line);
        let seen = Seen::of(&self.host);
        seen != std::mem::replace(&mut self.seen, seen.clone())
    }
}

impl Seen {
    fn of(host: &ByHand) -> Self {
        let counters = host.machine.counters();
        Self {
            events: host.events.len(),
            sent: host.sent.len(),
            counted: counters.late_frames
                + counters.duplicate_frames
                + counters.past_epoch_frames
                + counters.noise_lines
                + counters.merged_deltas
                + counters.foreign_frames
                + counters.child_frames
                + counters.dropped_events,
        }
    }
}

/// A machine in the middle of a turn tells of every frame that a server of tomorrow sends: as an event,
/// an answer or a count. Only what it would not have told of unchanged may it keep to itself.
#[test]
fn mutants_in_the_middle_of_a_turn_come_out_of_the_machine() {
    let mut chance = Chance(7);
    let mut made = 0;
    for recording in recordings::all() {
        let lines: Vec<&String> = recording
            .lines
            .iter()
            .filter_map(|line| match &line.what {
                What::In(frame) => Some(frame),
                _ => None,
            })
            .collect();
        let named = |name: &str| {
            let of = |line: &&String| {
                parse(line).ok()?["params"][name]
                    .as_str()
                    .map(str::to_owned)
            };
            lines.iter().find_map(of)
        };
        let (Some(thread), Some(turn)) = (named("threadId"), named("turnId")) else {
            continue;
        };
        for (index, line) in lines.iter().enumerate() {
            let frame = parse(line).unwrap();
            if frame.get("method").is_none() {
                continue;
            }
            for _ in 0..2 {
                let mut mutant = frame.clone();
                let Some(params) = mutant.get_mut("params") else {
                    continue;
                };
                let change = CHANGES[chance.below(CHANGES.len())];
                // Another method would be another frame.
                if !mutate(params, change, &mut chance) {
                    continue;
                }
                let mut plain = Middle::of(&thread, &turn);
                let mut other = Middle::of(&thread, &turn);
                for before in lines[index.saturating_sub(4)..index].iter() {
                    plain.line(before);
                    other.line(before);
                }
                let told_plainly = plain.line(line);
                let text = mutant.to_string();
                let told = other.line(&text);
                made += 1;
                // The usage of a turn that is not known is what the thread had used before: a turn's own
                // is told less that (`CASES` 37).
                let is_baseline = frame["method"] == "thread/tokenUsage/updated";
                assert!(
                    told || !told_plainly || is_baseline,
                    "{}/{}: nothing came of {text}",
                    recording.version,
                    recording.name
                );
                assert!(
                    !other
                        .host
                        .events
                        .iter()
                        .any(|event| matches!(event, Event::Halted))
                );
            }
        }
    }
    println!("{made} mutants");
    assert!(made > 1_000);
}
