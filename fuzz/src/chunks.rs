//! The same bytes in other reads.

use std::collections::BTreeMap;

use turnkeep_core::{Counters, Event, Record, Timestamp};

use super::{
    Cuts,
    machine::configured,
    play::{Player, Reads, config_of},
    steps::Steps,
};

/// What must not depend on how bytes were cut.
#[derive(Debug, PartialEq)]
struct Told {
    sent: Vec<String>,
    records: Vec<Record>,
    events: BTreeMap<String, Vec<String>>,
    counters: String,
    due: Option<(Timestamp, String)>,
}

/// Plays a case twice, with whole reads and with reads that are cut, and compares frames, records and events.
///
/// Two things may differ: neighbouring deltas are joined where they came in one read, and calls are one stage where they did, for which
/// reason whatever may make a stage ends a read here. A case is that of [`machine_steps`](super::machine_steps).
pub fn chunking(case: &[u8]) {
    let (config, rest) = configured(case);
    let (cuts, steps) = Cuts::read(rest);
    let play = |reads| {
        let mut player = Player::new(config_of(config), reads, true);
        player.play(Steps(steps));
        told(&player)
    };
    let (whole, cut) = (play(Reads::Whole), play(Reads::Cut(cuts)));
    assert_eq!(whole.sent, cut.sent, "frames");
    assert_eq!(whole.records, cut.records, "records");
    assert_eq!(whole.events, cut.events, "events");
    assert_eq!(whole, cut);
}

fn told(player: &Player<'_>) -> Told {
    let sent = player.sent.iter();
    let batches = player.journal.iter();
    let mut counters: Counters = player.machine.counters();
    counters.merged_deltas = 0;
    // It counts reads where nothing is read.
    counters.past_epoch_frames = 0;
    Told {
        sent: sent
            .map(|frame| String::from_utf8_lossy(frame).into_owned())
            .collect(),
        records: batches
            .flat_map(|batch| batch.records.iter().cloned())
            .collect(),
        events: lanes(&player.events),
        counters: format!("{counters:?}"),
        due: player.due.clone(),
    }
}

/// The events of each conversation, and of none, with neighbouring deltas joined.
fn lanes(events: &[Event]) -> BTreeMap<String, Vec<String>> {
    let mut lanes: BTreeMap<String, Vec<Event>> = BTreeMap::new();
    for event in events {
        let lane = format!("{:?}", event.conversation());
        let lane = lanes.entry(lane).or_default();
        if let (Some(Event::Delta(last)), Event::Delta(delta)) = (lane.last_mut(), event) {
            let name = |d: &turnkeep_core::Delta| (d.turn, d.kind, d.part, d.item.clone());
            if name(last) == name(delta) {
                last.text.push_str(&delta.text);
                last.frames += delta.frames;
                continue;
            }
        }
        lane.push(event.clone());
    }
    let text = |events: Vec<Event>| events.iter().map(|e| format!("{e:?}")).collect();
    lanes
        .into_iter()
        .map(|(lane, events)| (lane, text(events)))
        .collect()
}
