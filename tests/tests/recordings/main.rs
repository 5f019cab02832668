//! The real app-server, recorded: the core reads every frame, and drives the same sessions again.

mod drive;
mod table;

use std::collections::BTreeMap;

use serde_json::Value;
use turnkeep_core::{Event, TurnUpdate, event::ConnectionEvent, read_again};
use turnkeep_tests::{
    by_hand::ByHand,
    recordings::{self, What},
};

/// Every member of `part` stands in `whole`; an absent member is as good as null.
fn stands_in(part: &Value, whole: &Value) -> bool {
    match (part, whole) {
        (Value::Object(part), Value::Object(whole)) => part.iter().all(|(key, value)| {
            whole
                .get(key)
                .map_or(value.is_null(), |other| stands_in(value, other))
        }),
        _ => part == whole,
    }
}

#[test]
fn every_inward_frame_is_read_and_comes_out_again() {
    let mut counts: BTreeMap<String, (usize, usize)> = BTreeMap::new();
    for recording in recordings::all() {
        for line in &recording.lines {
            let What::In(frame) = &line.what else {
                continue;
            };
            let place = format!("{}/{}:{}", recording.version, recording.name, line.number);
            let again = read_again(frame.as_bytes())
                .unwrap_or_else(|why| panic!("{place}: {why}: {frame}"));
            let mut want: Value = serde_json::from_str(frame).expect("a frame is JSON");
            if want.get("method").is_some() {
                // The server's clock is nothing that the core tells on.
                want.as_object_mut()
                    .map(|frame| frame.remove("emittedAtMs"));
            }
            let got: Value = serde_json::from_str(&again.json).expect("it was just written");
            if again.whole {
                assert_eq!(got, want, "{place}");
            } else {
                assert!(stands_in(&got, &want), "{place}: {got} is not in {want}");
            }
            let (frames, whole) = counts.entry(recording.version.clone()).or_default();
            *frames += 1;
            *whole += usize::from(again.whole);
        }
    }
    for (version, (frames, whole)) in &counts {
        println!("codex {version}: {frames} inward frames, {whole} of them compared whole");
    }
    let counted: Vec<_> = counts.values().map(|(frames, _)| *frames).collect();
    assert_eq!(counted, [1_040, 810], "a recording was added or lost");
}

/// A machine that knows none of the threads takes every frame without a complaint about it.
#[test]
fn no_recorded_frame_is_noise_or_malformed_to_a_machine() {
    for recording in recordings::all() {
        let mut host = ByHand::ready();
        let mut frames = 0;
        for line in &recording.lines {
            if let What::In(frame) = &line.what {
                host.line(frame);
                frames += 1;
            }
        }
        let place = format!("{}/{}", recording.version, recording.name);
        // The answer of our own initialize came first.
        assert_eq!(host.machine.counters().frames, frames + 1, "{place}");
        assert_eq!(host.machine.counters().noise_lines, 0, "{place}");
        for event in &host.events {
            let complaint = match event {
                Event::Connection(event) => match &**event {
                    ConnectionEvent::Protocol(error) => Some(error),
                    _ => None,
                },
                _ => None,
            };
            if let Some(error) = complaint {
                use turnkeep_core::event::ProtocolError as P;
                // Its requests were made by the recorded client, not by this machine.
                let ours = matches!(
                    error,
                    P::UnknownResponse { .. } | P::RequestRefused { .. } | P::BadResponse { .. }
                );
                assert!(ours, "{place}: {error}");
            }
        }
    }
}

#[test]
fn every_recording_is_driven_or_its_reason_is_stated() {
    let names: std::collections::BTreeSet<String> =
        recordings::all().into_iter().map(|r| r.name).collect();
    let mut listed: Vec<&str> = table::DRIVEN.iter().map(|d| d.name).collect();
    for how in table::DRIVEN {
        for (frame, special) in how.special {
            assert!(
                special.reason().len() > 20,
                "{} {frame} has no reason",
                how.name
            );
        }
    }
    for (name, reason) in table::DECODED_ONLY {
        assert!(reason.len() > 20, "{name} has no reason");
        listed.push(name);
    }
    let count = listed.len();
    let set: std::collections::BTreeSet<String> = listed.into_iter().map(String::from).collect();
    assert_eq!(set.len(), count, "a recording is listed twice");
    assert_eq!(set, names);
}

/// The core, asked for the same things at the same points, sends what the recorded client sent,
/// and tells the ends that were recorded; however the bytes are cut.
#[test]
fn the_core_drives_the_recorded_sessions_again() {
    let mut driven = 0;
    let mut failed = Vec::new();
    for recording in recordings::all() {
        let Some(how) = table::DRIVEN.iter().find(|d| d.name == recording.name) else {
            continue;
        };
        driven += 1;
        let place = format!("{}/{}", recording.version, recording.name);
        let result = std::panic::catch_unwind(|| {
            let by_line = drive::run(&recording, how, drive::Cut::Lines);
            let by_byte = drive::run(&recording, how, drive::Cut::Bytes);
            let at_once = drive::run(&recording, how, drive::Cut::Runs);
            drive::check_ends(&recording, how, &by_line);
            assert_eq!(
                drive::flat(&by_line.events),
                drive::flat(&by_byte.events),
                "bytes"
            );
            assert_eq!(
                drive::flat(&by_line.events),
                drive::flat(&at_once.events),
                "runs"
            );
        });
        if result.is_err() {
            failed.push(place);
        }
    }
    assert!(failed.is_empty(), "{failed:#?} of {driven}");
    println!("{driven} recordings driven");
}

/// The text that was streamed is the text that the item has at its end.
#[test]
fn what_was_streamed_is_what_the_items_say() {
    for recording in recordings::all() {
        let Some(how) = table::DRIVEN.iter().find(|d| d.name == recording.name) else {
            continue;
        };
        let host = drive::run(&recording, how, drive::Cut::Lines);
        let mut streamed: BTreeMap<String, String> = BTreeMap::new();
        for event in &host.events {
            match event {
                Event::Delta(delta) => streamed
                    .entry(delta.item.to_string())
                    .or_default()
                    .push_str(&delta.text),
                Event::Turn(event) => {
                    if let TurnUpdate::ItemCompleted(item) = &event.update {
                        if let Some(text) = streamed.remove(&*item.id) {
                            let place = format!("{}/{}", recording.version, recording.name);
                            assert_eq!(Some(text), item.text, "{place}");
                        }
                    }
                }
                _ => {}
            }
        }
    }
}
