//! A crash at every operation of a journal's life, and again at every operation of its recovery.

use std::{ops::RangeInclusive, sync::LazyLock};

use turnkeep_core::{
    Batch, ConversationId, ConversationKey, Durability, Durable, JournalSeq, Nonce, Record,
    Settings, Timestamp, codec::journal,
};

use super::disk::{Crash, FaultDisk, Reach, Survives};
use crate::{
    error::OpenJournalError,
    journal::{
        file::FileStore,
        store::{Group, Line, Reader, Store},
    },
};

/// Small enough for a segment a few batches, and for several segments a checkpoint.
const BOUND: u64 = 400;

/// Opens a conversation and closes an older one, so that each batch makes another state and none
/// grows.
pub(super) fn batch(seq: u64, durability: Durability) -> Batch {
    let conversation = ConversationId(u32::try_from(seq).unwrap());
    let mut records = vec![Record::ConversationOpened {
        conversation,
        key: ConversationKey::new(&format!("conversation {seq}")).unwrap(),
        nonce: Nonce([7; 12]),
        settings: Box::new(Settings::new()),
        authorization: turnkeep_core::Authorization::None,
    }];
    if let Some(old) = seq.checked_sub(3).filter(|old| *old > 0) {
        let conversation = ConversationId(u32::try_from(old).unwrap());
        records.push(Record::ConversationClosed { conversation });
    }
    Batch {
        through: JournalSeq(seq),
        durability,
        at: Timestamp(seq),
        records,
    }
}

/// What the batches up to one make.
fn state(through: u64) -> &'static Durable {
    static STATES: LazyLock<Vec<Durable>> = LazyLock::new(|| {
        let mut durable = Durable::default();
        let mut states = vec![durable.clone()];
        for seq in 1..100 {
            for record in &batch(seq, Durability::Synced).records {
                durable.apply(record).unwrap();
            }
            states.push(durable.clone());
        }
        states
    });
    &STATES[usize::try_from(through).unwrap()]
}

/// What a client knows of its journal at the moment of the crash.
#[derive(Clone, Copy, Debug, Default)]
struct Known {
    handed: u64,
    written: u64,
    synced: u64,
}

type Opened = Result<(FileStore<FaultDisk>, u64, Durable), OpenJournalError>;

fn open(disk: &FaultDisk) -> Opened {
    let mut durable = Durable::default();
    let mut sink = |entry: &journal::Entry| {
        let mut records = entry.records.iter();
        records.try_for_each(|record| durable.apply(record))
    };
    let mut store = FileStore::new(disk.clone(), BOUND);
    let mut reader = Reader::new(&mut sink);
    store.open(&mut reader)?;
    let last = reader.last().unwrap_or_default().0;
    Ok((store, last, durable))
}

fn append(
    store: &mut dyn Store,
    seqs: RangeInclusive<u64>,
    durability: Durability,
    known: &mut Known,
) -> Result<(), OpenJournalError> {
    let mut group = Group::new();
    for seq in seqs {
        known.handed = seq;
        group.push(&batch(seq, durability));
    }
    store.append(&group).map_err(failed)?;
    known.written = known.handed;
    if durability == Durability::Synced {
        known.synced = known.handed;
    }
    Ok(())
}

fn checkpoint(store: &mut dyn Store, known: &mut Known) -> Result<(), OpenJournalError> {
    let seq = JournalSeq(known.handed);
    let line = journal::encode(&Batch {
        through: seq,
        durability: Durability::Synced,
        at: Timestamp(known.handed),
        records: vec![state(known.handed).checkpoint()],
    });
    store.checkpoint(Line::new(seq, &line)).map_err(failed)?;
    known.synced = known.handed;
    Ok(())
}

fn failed(source: std::io::Error) -> OpenJournalError {
    OpenJournalError::Io {
        action: "use",
        path: "disk".into(),
        source,
    }
}

/// Goes on with a journal for `batches`, in groups of one to three, of which one in three is synced.
fn live(disk: &FaultDisk, batches: u64, known: &mut Known) -> Result<(), OpenJournalError> {
    let (mut store, last, _) = open(disk)?;
    known.handed = last;
    known.written = last;
    known.synced = last;
    let mut from = last + 1;
    while from <= last + batches {
        let to = from + from % 3;
        let durability = match from % 2 {
            0 => Durability::Synced,
            _ => Durability::Buffered,
        };
        append(&mut store, from..=to, durability, known)?;
        // The second: just after a segment began, whose place it takes.
        if store.wants_checkpoint() || from == 2 {
            checkpoint(&mut store, known)?;
        }
        from = to + 1;
    }
    store.close().map_err(failed)
}

/// Two lives, the second on what the first one left.
fn lives(disk: &FaultDisk, known: &mut Known) -> Result<(), OpenJournalError> {
    live(disk, 24, known)?;
    live(disk, 8, known)
}

const REACHES: [Reach; 3] = [Reach::NotBegun, Reach::Half, Reach::Done];

fn losses() -> impl Iterator<Item = Survives> {
    let seeds = (0..4).map(Survives::Some);
    [Survives::All, Survives::Synced].into_iter().chain(seeds)
}

/// Recovers and checks what is there: all that was confirmed as far as the loss permits, nothing
/// that was never handed in, and a state that is exactly that of a prefix.
fn check(disk: &FaultDisk, known: Known, survives: Survives, what: &str) -> u64 {
    let (mut store, last, durable) = open(disk).unwrap_or_else(|e| panic!("{what}: {e}"));
    let least = match survives {
        Survives::All => known.written,
        Survives::Synced | Survives::Some(_) => known.synced,
    };
    assert!(
        (least..=known.handed).contains(&last),
        "{what}: {last}, {known:?}"
    );
    assert_eq!(&durable, state(last), "{what}");
    let names: Vec<String> = disk.files().into_keys().collect();
    assert!(
        !names.iter().any(|n| n.ends_with(".new")),
        "{what}: {names:?}"
    );
    // It goes on, and a further client reads what this one wrote.
    let mut after = Known {
        handed: last,
        written: last,
        synced: last,
    };
    append(
        &mut store,
        last + 1..=last + 2,
        Durability::Synced,
        &mut after,
    )
    .unwrap();
    store.close().unwrap();
    drop(store);
    let power = disk.after(Survives::Synced);
    let (_, read, durable) = open(&power).unwrap_or_else(|e| panic!("{what}, again: {e}"));
    assert_eq!(read, last + 2, "{what}, again");
    assert_eq!(&durable, state(read), "{what}, again");
    last
}

#[test]
fn a_crash_at_any_operation_loses_nothing_that_was_confirmed() {
    let whole = FaultDisk::default();
    let mut known = Known::default();
    lives(&whole, &mut known).unwrap();
    let operations = whole.operations();
    assert!(operations > 80, "{operations}");
    let mut crashes = 0;
    for at in 0..operations {
        for reach in REACHES {
            let disk = FaultDisk::default();
            disk.crash(Some(Crash { at, reach }));
            let mut known = Known::default();
            lives(&disk, &mut known).unwrap_err();
            for survives in losses() {
                let what = format!("operation {at}, {reach:?}, {survives:?}");
                check(&disk.after(survives), known, survives, &what);
                crashes += 1;
                if reach != Reach::NotBegun {
                    crashes += again(&disk.after(survives), known, survives, &what);
                }
            }
        }
    }
    println!("{operations} operations, {crashes} crashes");
}

/// Crashes once more at every operation of the recovery.
fn again(found: &FaultDisk, known: Known, first: Survives, what: &str) -> u64 {
    let probe = found.after(Survives::All);
    drop(open(&probe).unwrap());
    let mut crashes = 0;
    for at in 0..probe.operations() {
        let disk = found.after(Survives::All);
        let reach = if at % 2 == 0 {
            Reach::Half
        } else {
            Reach::Done
        };
        disk.crash(Some(Crash { at, reach }));
        assert!(
            open(&disk).is_err(),
            "{what}: operation {at} of the recovery"
        );
        for second in [Survives::All, Survives::Synced, Survives::Some(at)] {
            // The second crash may lose what the first one left unsynced.
            let worst = if first == Survives::All {
                second
            } else {
                first
            };
            let what = format!("{what}, then operation {at} of the recovery, {second:?}");
            check(&disk.after(second), known, worst, &what);
            crashes += 1;
        }
    }
    crashes
}

#[test]
fn what_a_recovery_has_read_is_durable_when_it_returns() {
    let disk = FaultDisk::default();
    let (mut store, ..) = open(&disk).unwrap();
    let mut known = Known::default();
    append(&mut store, 1..=9, Durability::Buffered, &mut known).unwrap();
    // We are killed, and the system has written nothing of it yet.
    let found = disk.after(Survives::All);
    let (_, last, _) = open(&found).unwrap();
    assert_eq!(last, 9);
    let (_, last, _) = open(&found.after(Survives::Synced)).unwrap();
    assert_eq!(last, 9);
}

#[test]
fn an_operation_that_fails_is_told_and_nothing_after_it_is_confirmed() {
    let whole = FaultDisk::default();
    lives(&whole, &mut Known::default()).unwrap();
    for at in 0..whole.operations() {
        let disk = FaultDisk::default();
        disk.crash(Some(Crash {
            at,
            reach: Reach::Half,
        }));
        assert!(
            lives(&disk, &mut Known::default()).is_err(),
            "operation {at}"
        );
    }
}

#[test]
fn a_checkpoint_that_never_became_whole_yields_to_the_segments_before_it() {
    let disk = FaultDisk::default();
    let (mut store, ..) = open(&disk).unwrap();
    let mut known = Known::default();
    append(&mut store, 1..=5, Durability::Synced, &mut known).unwrap();
    drop(store);
    let line = journal::encode(&Batch {
        through: JournalSeq(5),
        durability: Durability::Synced,
        at: Timestamp(5),
        records: vec![state(5).checkpoint()],
    });
    let name = "journal-00000000000000000005.jsonl";
    for cut in [0, 1, 90, line.len() - 1] {
        let disk = disk.after(Survives::Synced);
        disk.put(name, &line[..cut]);
        let (mut store, last, durable) = open(&disk).unwrap();
        assert_eq!((last, &durable), (5, state(5)), "cut {cut}");
        append(&mut store, 6..=6, Durability::Synced, &mut Known::default()).unwrap();
        let (_, last, durable) = open(&disk).unwrap();
        assert_eq!((last, &durable), (6, state(6)), "cut {cut}");
        assert!(!disk.files().contains_key(name), "cut {cut}");
    }
}
