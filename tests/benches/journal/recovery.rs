//! Recovery, beside reading the same file line by line with serde_json.

use std::{
    fs::{self, File},
    io::{BufRead as _, BufReader},
    path::{Path, PathBuf},
};

use serde_json::Value;
use turnkeep_core::{Config, Recovery, Timestamp};
use turnkeep_tokio::{BareJournal, JournalConfig, JournalDirectory};

use crate::{
    Size, median, ratio,
    records::{RECORDS_A_TURN, Writer},
    rotate, runtime, seconds,
};

struct Case {
    name: String,
    dir: tempfile::TempDir,
    records: u64,
    megabytes: f64,
}

impl Case {
    fn new(name: String, write: impl FnOnce(&mut Writer)) -> Self {
        let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let mut writer = Writer::default();
        writer.start();
        write(&mut writer);
        let file = dir.path().join("journal-00000000000000000001.jsonl");
        fs::write(&file, &writer.bytes).unwrap();
        // Recovery syncs what it reads; what is not the journal's is not its cost.
        File::open(file).unwrap().sync_all().unwrap();
        Self {
            name,
            dir,
            records: writer.records,
            megabytes: writer.bytes.len() as f64 / 1e6,
        }
    }

    fn file(&self) -> PathBuf {
        self.dir.path().join("journal-00000000000000000001.jsonl")
    }
}

/// Turns of a hundred conversations.
fn records(count: u64) -> Case {
    Case::new(format!("{count} records"), |writer| {
        for n in 1..=100 {
            writer.open(n);
        }
        for n in 0..count / RECORDS_A_TURN {
            writer.turn(u32::try_from(n % 100).unwrap() + 1);
        }
    })
}

/// Conversations with a turn each.
fn conversations(count: u64) -> Case {
    Case::new(format!("{count} conversations"), |writer| {
        for n in 1..=u32::try_from(count).unwrap() {
            writer.open(n);
            writer.turn(n);
        }
    })
}

/// Reads every line as a JSON value.
fn values(file: &Path) -> f64 {
    let (time, _) = seconds(|| {
        let lines = BufReader::with_capacity(64 << 10, File::open(file).unwrap()).lines();
        lines.fold(0, |sum, line| {
            let value: Value = serde_json::from_str(&line.unwrap()).unwrap();
            sum + value["len"].as_u64().unwrap()
        })
    });
    time
}

/// Reads every line and looks at nothing.
fn ignored(file: &Path) -> f64 {
    let (time, _) = seconds(|| {
        let lines = BufReader::with_capacity(64 << 10, File::open(file).unwrap()).lines();
        lines.fold(0, |sum, line| {
            let line = line.unwrap();
            let _: serde::de::IgnoredAny = serde_json::from_str(&line).unwrap();
            sum + line.len()
        })
    });
    time
}

/// From the file to a machine that goes on.
fn recover(directory: &Path) -> f64 {
    let config = JournalConfig::Directory(JournalDirectory::new(directory));
    let (time, (journal, machine)) = seconds(|| {
        let mut recovery = Recovery::new(Config::default(), 7).unwrap();
        let opened = BareJournal::open(&config, |entry| recovery.push(entry));
        let (journal, _) = opened.unwrap();
        (journal, recovery.finish(Timestamp(0)))
    });
    drop(machine);
    assert!(runtime().block_on(journal.finish()));
    time
}

pub(crate) fn run(size: Size) {
    println!("\nrecovery, beside reading every line with serde_json");
    println!(
        "{:<26}{:>9}{:>12}{:>14}{:>10}{:>10}{:>12}",
        "", "MB", "ms", "ns a record", "ratio", "target", "to no value"
    );
    for case in [
        records(size.records / 4),
        records(size.records / 2),
        records(size.records),
        conversations(size.conversations / 4),
        conversations(size.conversations),
    ] {
        let file = case.file();
        let times = rotate(
            size.rounds,
            &mut [&mut || values(&file), &mut || ignored(&file), &mut || {
                recover(case.dir.path())
            }],
        );
        let ours = median(times[2].clone());
        println!(
            "{:<26}{:>9.1}{:>12.1}{:>14.0}{:>10.2}{:>10}{:>12.2}",
            case.name,
            case.megabytes,
            ours * 1e3,
            ours * 1e9 / case.records as f64,
            ratio(&times[2], &times[0]),
            "3",
            ratio(&times[2], &times[1])
        );
    }
}
