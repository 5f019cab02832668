//! Appends: with group commit, and one after the other with a write and an fdatasync each.

use std::{fs::File, io::Write as _};

use turnkeep_core::{Durability, Record, Timestamp, codec::journal};
use turnkeep_core::{JournalSeq, effect::Batch};
use turnkeep_tokio::{BareJournal, JournalConfig, JournalDirectory};

use crate::{Size, median, ratio, rotate, runtime, seconds};

fn batch(seq: u64) -> Batch {
    Batch {
        through: JournalSeq(seq),
        durability: Durability::Synced,
        at: Timestamp(seq),
        records: vec![Record::Request {
            command: turnkeep_core::CommandId(seq),
            method: "thread/name/set".repeat(10),
        }],
    }
}

/// The same bytes, one write and one sync a batch.
fn plain(batches: u64) -> f64 {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let mut file = File::options()
        .append(true)
        .create(true)
        .open(dir.path().join("plain"))
        .unwrap();
    let lines: Vec<Vec<u8>> = (1..=batches)
        .map(|seq| journal::encode(&batch(seq)))
        .collect();
    let (time, ()) = seconds(|| {
        for line in &lines {
            file.write_all(line).unwrap();
            file.sync_data().unwrap();
        }
    });
    time
}

/// So many of them wait at a time.
fn grouped(batches: u64, waiting: u64) -> f64 {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let config = JournalConfig::Directory(JournalDirectory::new(dir.path()));
    let (mut journal, _) = BareJournal::open(&config, |_| Ok(())).unwrap();
    let made: Vec<Batch> = (1..=batches).map(batch).collect();
    let (time, journal) = seconds(|| {
        runtime().block_on(async {
            let mut confirmed = 0;
            for batch in made {
                if batch.through.0 > confirmed + waiting {
                    confirmed = journal.confirmed().await.0;
                }
                journal.append(batch);
            }
            while confirmed < batches {
                confirmed = journal.confirmed().await.0;
            }
            journal
        })
    });
    assert!(runtime().block_on(journal.finish()));
    time
}

pub(crate) fn run(size: Size) {
    let batches = size.batches;
    // A real client waits for one: 1. For many conversations: 64. All that there is: no limit.
    let times = rotate(
        size.rounds,
        &mut [
            &mut || plain(batches),
            &mut || grouped(batches, 1),
            &mut || grouped(batches, 8),
            &mut || grouped(batches, 64),
            &mut || grouped(batches * 20, u64::MAX) / 20.0,
        ],
    );
    println!(
        "\nsynced appends of {} bytes",
        journal::encode(&batch(9)).len()
    );
    println!("{:<44}{:>14}{:>10}", "", "a second", "ratio");
    let names = [
        "write and fdatasync of each",
        "journal, 1 waits",
        "journal, 8 wait",
        "journal, 64 wait",
        "journal, all wait",
    ];
    for (name, of) in names.iter().zip(&times) {
        let speed = batches as f64 / median(of.clone());
        println!("{name:<44}{speed:>14.0}{:>10.2}", ratio(&times[0], of));
    }
}
