//! What a journal holds.

use turnkeep_core::{
    Batch, Config, Durability, Durable, Epoch, Input, JournalSeq, Machine, Peer, Recovery,
    Timestamp,
    codec::journal::{self, Entry, Journal, JournalError},
};

use super::{
    Cuts,
    machine::configured,
    play::{Player, Reads, START, config_of},
    steps::Steps,
};

/// The seed of a life after.
const SEED: u64 = 8;

/// Reads bytes as a journal; what can be read makes a machine, or is refused by name.
///
/// A case is a byte that says whether the lines are those of a journal or only the bodies of such lines, to which envelopes are made that
/// fit, and where the first line ends early, if it does; and the lines.
pub fn journal_decode(case: &[u8]) {
    let (how, lines) = case.split_first().map_or((0, case), |(n, rest)| (*n, rest));
    let mut bytes = match how % 2 {
        0 => lines.to_vec(),
        _ => lines.split(|b| *b == b'\n').flat_map(line_of).collect(),
    };
    if let (Some(end), 2..) = (bytes.get_mut(usize::from(how / 2)), how) {
        *end = b'\n';
    }
    let journals = [journal::decode(&bytes), journal::decode_segment(&bytes)];
    for read in journals {
        match read {
            Ok(read) => {
                same_again(&read);
                let _ = life_after(&Config::default(), &read.entries);
            }
            Err(error) => {
                let (JournalError::Damaged { offset, .. } | JournalError::Version { offset, .. }) =
                    error
                else {
                    continue;
                };
                assert!(offset as usize <= bytes.len());
            }
        }
    }
}

/// A line of a journal with this body.
fn line_of(body: &[u8]) -> Vec<u8> {
    let (crc, len) = (crc32fast::hash(body), body.len());
    let mut line = format!(r#"{{"v":1,"len":{len},"crc":"{crc:08x}","body":"#).into_bytes();
    line.extend(body);
    line.extend(b"}\n");
    line
}

fn batch_of(entry: &Entry) -> Batch {
    Batch {
        through: entry.seq,
        durability: Durability::Synced,
        at: entry.at,
        records: entry.records.clone(),
    }
}

/// What was read can be written, and is read again.
fn same_again(read: &Journal) {
    let mut bytes = Vec::new();
    for (_, entry) in &read.entries {
        journal::encode_into(&batch_of(entry), &mut bytes);
    }
    let again = journal::decode_segment(&bytes).expect("it was just written");
    assert_eq!(again.torn, None);
    let entries = |journal: &Journal| -> Vec<Entry> {
        journal
            .entries
            .iter()
            .map(|(_, entry)| entry.clone())
            .collect()
    };
    assert_eq!(entries(&again), entries(read));
}

/// The machine that goes on from these batches, after a first look around. `None` where a record is refused.
fn life_after(config: &Config, entries: &[(u64, Entry)]) -> Option<Durable> {
    let mut recovery = Recovery::new(config.clone(), SEED).expect("a good configuration");
    for (_, entry) in entries {
        recovery.push(entry).ok()?;
    }
    let durable = recovery.durable().clone();
    let mut from_checkpoint = Durable::default();
    let applied = from_checkpoint.apply(&durable.checkpoint());
    assert_eq!(applied, Ok(()), "a checkpoint is a record that fits");
    assert_eq!(
        from_checkpoint, durable,
        "a checkpoint is the state that was"
    );
    let (mut machine, effects) = recovery.finish(START);
    machine.check_invariants();
    let _ = effects;
    look_around(&mut machine);
    Some(durable)
}

/// A connection, its end, and time.
fn look_around(machine: &mut Machine) {
    let mut now = START;
    let hello = br#"{"id":1,"result":{"userAgent":"codex/0.171.0 (x)","codexHome":"/h"}}"#;
    let mut due = None;
    for input in [
        Input::Opened(Epoch(1), Peer::default()),
        Input::Received(Epoch(1), [&hello[..], b"\n"].concat()),
        Input::Appended {
            through: JournalSeq(u64::MAX),
        },
        Input::Tick,
        Input::Tick,
        Input::Appended {
            through: JournalSeq(u64::MAX),
        },
        Input::Tick,
    ] {
        if let (Input::Tick, Some(at)) = (&input, due) {
            now = Timestamp::max(now, at);
        }
        let effects = machine.step(now, input);
        due = effects.deadline.map(|due| due.at);
        machine.check_invariants();
    }
}

/// Cuts the journal of a machine at any place, and changes a byte of it where the case says so; recovers from what is left.
///
/// A case is three bytes for where it is cut, two for the place and the change of a byte (0 changes nothing), and the rest that of
/// [`machine_steps`](super::machine_steps).
pub fn recover_prefix(case: &[u8]) {
    let (head, rest) = match case.split_first_chunk::<5>() {
        Some((head, rest)) => (*head, rest),
        None => ([0; 5], case),
    };
    let (config, rest) = configured(rest);
    let (_, steps) = Cuts::read(rest);
    let config = config_of(config);
    let mut player = Player::new(config.clone(), Reads::Whole, false);
    player.play(Steps(steps));
    let mut bytes = Vec::new();
    let mut ends = vec![0];
    for entry in &player.journal {
        journal::encode_into(&batch_of(entry), &mut bytes);
        ends.push(bytes.len());
    }
    let [low, high, higher, place, change] = head;
    let cut = u32::from_le_bytes([low, high, higher, 0]) as usize % (bytes.len() + 1);
    let whole = ends.partition_point(|end| *end <= cut) - 1;
    let left = &mut bytes[..cut];

    // Whole batches always make a machine, and a torn one is none.
    let read = journal::decode(left).expect("a cut is no damage");
    let entries: Vec<&Entry> = read.entries.iter().map(|(_, entry)| entry).collect();
    assert_eq!(entries, player.journal[..whole].iter().collect::<Vec<_>>());
    assert_eq!(read.torn.is_some(), ends[whole] != cut);
    let durable = life_after(&config, &read.entries).expect("a prefix of a journal is one");
    if whole == player.journal.len() {
        assert_eq!(&durable, player.machine.durable(), "recovered and live");
    }

    if change != 0 && cut > 0 {
        // The places of a long journal are met by the cut, which moves the last of them.
        let at = cut - 1 - (usize::from(place) * cut / 256).min(cut - 1);
        left[at] ^= change;
        if let Ok(read) = journal::decode(left) {
            // A changed byte is noticed, or it was in what was never confirmed, or ended the last line.
            let entries = read.entries.iter().map(|(_, entry)| entry);
            let kept = entries.len();
            assert!(at >= ends[whole.min(kept)], "a changed byte is not noticed");
            assert!(entries.eq(player.journal[..kept].iter()));
            assert!(life_after(&config, &read.entries).is_some());
        }
    }
}

/// The journal of the machine that plays a case of [`machine_steps`](super::machine_steps).
#[must_use]
pub fn journal_of(case: &[u8]) -> Vec<u8> {
    let (config, rest) = configured(case);
    let (_, steps) = Cuts::read(rest);
    let mut player = Player::new(config_of(config), Reads::Whole, false);
    player.play(Steps(steps));
    let mut bytes = Vec::new();
    for entry in &player.journal {
        journal::encode_into(&batch_of(entry), &mut bytes);
    }
    bytes
}
