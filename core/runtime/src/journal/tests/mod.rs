//! Real files and real syncs; in `crash.rs` a disk that loses what it may lose.

mod crash;
mod disk;

use std::{
    collections::BTreeMap,
    fs,
    os::unix::fs::{PermissionsExt as _, symlink},
};

use turnkeep_core::{
    Durability::{Buffered, Synced},
    Durable,
    codec::journal,
};

use self::{
    crash::batch,
    disk::{Crash, FaultDisk, Reach},
};
use super::*;
use crate::config::JournalDirectory;

const FIRST: &str = "journal-00000000000000000001.jsonl";

fn at(directory: &Path) -> JournalConfig {
    JournalConfig::Directory(JournalDirectory::new(directory))
}

type Opened = (Journal, JournalReport, Durable);

/// Opens a journal and makes the state that it holds.
fn open(config: &JournalConfig) -> Result<Opened, OpenJournalError> {
    let mut durable = Durable::default();
    let sink = |entry: &Entry| entry.records.iter().try_for_each(|r| durable.apply(r));
    let (journal, report) = Journal::open(config, sink)?;
    Ok((journal, report, durable))
}

fn refusal(config: &JournalConfig) -> OpenJournalError {
    open(config).map(|_| ()).unwrap_err()
}

/// Appends batches and waits until all are confirmed, with checkpoints where they are wanted.
async fn write(journal: &mut Journal, state: &mut Durable, seqs: std::ops::RangeInclusive<u64>) {
    let last = JournalSeq(*seqs.end());
    for seq in seqs {
        let batch = batch(seq, if seq % 3 == 0 { Synced } else { Buffered });
        for record in &batch.records {
            state.apply(record).unwrap();
        }
        assert_eq!(journal.append(batch), None);
        if journal.wants_checkpoint() {
            let checkpoint = (JournalSeq(seq), state.checkpoint());
            assert_eq!(journal.checkpoint(checkpoint, Timestamp(seq)), None);
        }
        if seq % 5 == 0 {
            confirm(journal, JournalSeq(seq)).await;
        }
    }
    confirm(journal, last).await;
    assert!(journal.is_idle());
}

async fn confirm(journal: &mut Journal, through: JournalSeq) {
    while journal.confirmed() < through {
        assert!(matches!(journal.answer().await, Input::Appended { .. }));
    }
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o777
}

fn contents(directory: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let files = fs::read_dir(directory).unwrap().map(|e| e.unwrap().path());
    let journal = files.filter(|path| !path.ends_with(LOCK_FILE));
    journal
        .map(|path| (path.clone(), fs::read(path).unwrap()))
        .collect()
}

fn lines(seqs: std::ops::RangeInclusive<u64>) -> Vec<u8> {
    seqs.flat_map(|seq| journal::encode(&batch(seq, Synced)))
        .collect()
}

#[tokio::test]
async fn what_was_confirmed_stands_in_private_files() {
    let dir = tempfile::tempdir().unwrap();
    let home = dir.path().join("a/b");
    let (mut journal, report, mut state) = open(&at(&home)).unwrap();
    assert_eq!(report, JournalReport::default());
    assert!(!journal.has_confirmed());
    write(&mut journal, &mut state, 1..=100).await;
    assert!(journal.has_confirmed());
    assert!(journal.finish().await);
    let path = home.join(FIRST);
    assert_eq!((mode(&path), mode(&home)), (0o600, 0o700));
    assert_eq!(mode(&home.join(LOCK_FILE)), 0o600);
    assert_eq!(fs::read(&path).unwrap(), lines(1..=100));
    assert_eq!(journal_files(&home).unwrap(), [path]);
}

#[tokio::test]
async fn a_journal_goes_on_where_the_last_life_left_it() {
    let dir = tempfile::tempdir().unwrap();
    // The one file of a journal that knew no segments, for all to read.
    let old = dir.path().join(JOURNAL_FILE);
    fs::write(&old, lines(1..=4)).unwrap();
    fs::set_permissions(&old, fs::Permissions::from_mode(0o644)).unwrap();
    let (mut journal, report, mut state) = open(&at(dir.path())).unwrap();
    assert_eq!((report.batches, report.last.0), (4, 4));
    assert_eq!(report.at, Some(Timestamp(4)));
    assert_eq!((report.torn, report.removed), (None, vec![]));
    assert!(!journal.has_confirmed());
    assert_eq!(journal.confirmed(), JournalSeq(4));
    write(&mut journal, &mut state, 5..=9).await;
    assert!(journal.finish().await);
    assert_eq!(mode(&old), 0o600);
    assert_eq!(contents(dir.path()), BTreeMap::from([(old, lines(1..=9))]));
    let (_, report, read) = open(&at(dir.path())).unwrap();
    assert_eq!((report.last.0, &read), (9, &state));
}

#[tokio::test]
async fn segments_stay_bounded_and_a_checkpoint_takes_the_place_of_what_was_before() {
    let dir = tempfile::tempdir().unwrap();
    let config = JournalConfig::Directory(JournalDirectory::new(dir.path()).segment_bytes(2_000));
    let mut state = Durable::default();
    for life in 0..4 {
        let (mut journal, report, read) = open(&config).unwrap();
        assert_eq!((report.last.0, &read), (life * 50, &state), "life {life}");
        assert!(report.batches < 50, "{report:?}");
        write(&mut journal, &mut state, life * 50 + 1..=life * 50 + 50).await;
        assert!(journal.finish().await);
        let files = journal_files(dir.path()).unwrap();
        let all: Vec<PathBuf> = contents(dir.path()).into_keys().collect();
        assert_eq!(files, all, "nothing is left of what no longer counts");
        let first = fs::read(&files[0]).unwrap();
        assert!(journal::is_checkpoint_line(&first));
        for file in &files {
            // The bound, a checkpoint and a group.
            assert!(fs::metadata(file).unwrap().len() < 6_000, "{file:?}");
        }
    }
}

#[tokio::test]
async fn a_segment_that_is_full_is_followed_by_the_next_one() {
    let dir = tempfile::tempdir().unwrap();
    let config = JournalConfig::Directory(JournalDirectory::new(dir.path()).segment_bytes(1_000));
    let (mut journal, ..) = open(&config).unwrap();
    for seq in 1..=40 {
        journal.append(batch(seq, Buffered));
        confirm(&mut journal, JournalSeq(seq)).await;
    }
    assert!(journal.finish().await);
    let files: Vec<_> = contents(dir.path()).into_values().collect();
    let longest = lines(40..=40).len();
    assert!(files.len() > 8, "{}", files.len());
    assert!(files.iter().all(|file| file.len() < 1_000 + longest));
    assert_eq!(files.concat(), lines(1..=40));
    // A file that is full is not added to in the next life either.
    let (mut journal, report, _) = open(&config).unwrap();
    assert_eq!(report.last, JournalSeq(40));
    for seq in 41..=50 {
        journal.append(batch(seq, Buffered));
        confirm(&mut journal, JournalSeq(seq)).await;
    }
    assert!(journal.finish().await);
    let files: Vec<_> = contents(dir.path()).into_values().collect();
    assert!(files.iter().all(|file| file.len() < 1_000 + longest));
}

#[tokio::test]
async fn one_checkpoint_is_asked_for_at_a_time() {
    /// A store that is never short enough.
    struct Long;
    impl Store for Long {
        fn open(&mut self, _: &mut Reader<'_>) -> Result<super::Opened, OpenJournalError> {
            Ok(super::Opened::default())
        }
        fn append(&mut self, _: &Group) -> io::Result<()> {
            Ok(())
        }
        fn wants_checkpoint(&self) -> bool {
            true
        }
        fn checkpoint(&mut self, _: Line<'_>) -> io::Result<()> {
            Ok(())
        }
        fn close(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
    let (mut journal, _, state) = open(&JournalConfig::store(|| Box::new(Long))).unwrap();
    journal.append(batch(1, Buffered));
    assert!(!journal.wants_checkpoint());
    confirm(&mut journal, JournalSeq(1)).await;
    assert!(journal.wants_checkpoint());
    journal.append(batch(2, Buffered));
    journal.checkpoint((JournalSeq(2), state.checkpoint()), Timestamp(2));
    assert!(!journal.wants_checkpoint());
    // Answered before the checkpoint was made.
    confirm(&mut journal, JournalSeq(2)).await;
    assert!(!journal.wants_checkpoint());
    journal.append(batch(3, Buffered));
    confirm(&mut journal, JournalSeq(3)).await;
    assert!(journal.wants_checkpoint());
    assert!(journal.finish().await);
}

#[tokio::test]
async fn a_memory_journal_answers_at_once() {
    let (mut journal, ..) = open(&JournalConfig::Memory).unwrap();
    assert!(!journal.has_confirmed());
    let through = JournalSeq(1);
    assert_eq!(
        journal.append(batch(1, Synced)),
        Some(Input::Appended { through })
    );
    assert!(journal.has_confirmed());
    assert!(!journal.wants_checkpoint());
}

#[tokio::test]
async fn a_shared_memory_journal_outlives_its_client() {
    let kept = MemoryJournal::new().checkpoint_after(1_500);
    let config = kept.config();
    let mut state = Durable::default();
    for life in 0..3 {
        let (mut journal, report, read) = open(&config).unwrap();
        assert_eq!((report.last.0, &read), (life * 30, &state));
        assert!(report.batches < 30);
        assert!(matches!(refusal(&config), OpenJournalError::Locked { .. }));
        write(&mut journal, &mut state, life * 30 + 1..=life * 30 + 30).await;
        assert!(journal.finish().await);
    }
    assert!(journal::is_checkpoint_line(&kept.bytes()));
    let torn = MemoryJournal::with_bytes(lines(1..=2)[..50].to_vec());
    assert!(matches!(
        refusal(&torn.config()),
        OpenJournalError::Unreadable { .. }
    ));
}

#[tokio::test]
async fn a_held_journal_names_its_holder_and_is_free_after_the_end() {
    let dir = tempfile::tempdir().unwrap();
    let (mut journal, ..) = open(&at(dir.path())).unwrap();
    match refusal(&at(dir.path())) {
        OpenJournalError::Locked { holder, path } => {
            let holder = holder.unwrap();
            assert_eq!(holder, Holder::us());
            assert_eq!(holder.pid, std::process::id());
            assert_eq!(holder.start_time.is_some(), cfg!(target_os = "linux"));
            assert_eq!(path, dir.path().join(LOCK_FILE));
        }
        other => panic!("{other}"),
    }
    journal.finish().await;
    open(&at(dir.path())).unwrap();
}

#[tokio::test]
async fn a_torn_tail_is_cut_off_and_reported() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join(FIRST);
    let (whole, both) = (lines(1..=1), lines(1..=2));
    let zeros = [&both[..whole.len() + 9], &[0; 300]].concat();
    for (bytes, kept) in [
        (&both[..both.len() - 1], 1),
        (&both[..=whole.len()], 1),
        (&whole[..whole.len() - 5], 0),
        (&whole[..3], 0),
        (&zeros, 1),
        (&[0; 700], 0),
    ] {
        fs::write(&path, bytes).unwrap();
        let (mut journal, report, _) = open(&at(dir.path())).unwrap();
        assert_eq!(report.last.0, kept);
        let offset = kept * whole.len() as u64;
        let torn = TornTail::new(&path, offset, bytes.len() as u64 - offset);
        assert_eq!(report.torn, Some(torn));
        assert_eq!(
            fs::read(&path).unwrap(),
            whole[..usize::try_from(offset).unwrap()]
        );
        journal.finish().await;
        let (mut journal, report, _) = open(&at(dir.path())).unwrap();
        assert_eq!((report.last.0, report.torn), (kept, None));
        journal.finish().await;
    }
}

/// Files of a journal that must be refused, what the refusal says, and of which file.
type Bad = (Vec<(&'static str, Vec<u8>)>, String, &'static str);

fn bad_journals() -> Vec<Bad> {
    const SECOND: &str = "journal-00000000000000000003.jsonl";
    let first = lines(1..=1).len();
    let mut flipped = lines(1..=3);
    flipped[first + 60] ^= 1;
    let newer = lines(1..=3);
    let newer = [&newer[..first], br#"{"v":2"#, &newer[first + 6..]].concat();
    let body = r#"{"seq":1,"at":7,"records":[],"more":1}"#;
    let more = format!(
        "{{\"v\":1,\"len\":{},\"crc\":\"{:08x}\",\"body\":{body}}}\n",
        body.len(),
        crc32fast::hash(body.as_bytes())
    );
    let zeros = [&lines(1..=1)[..], &[0; 20], &lines(2..=2)].concat();
    let again = [
        lines(1..=1),
        journal::encode(&Batch {
            through: JournalSeq(2),
            ..batch(1, Synced)
        }),
    ];
    let torn = lines(1..=2);
    vec![
        (
            vec![(FIRST, flipped)],
            format!("offset {first}, batch 1: the checksum does not fit the body"),
            FIRST,
        ),
        (
            vec![(FIRST, newer)],
            format!("offset {first}: version 2, this turnkeep reads 1"),
            FIRST,
        ),
        (
            vec![(FIRST, more.into_bytes())],
            "offset 0, batch 0: unknown field `more`".into(),
            FIRST,
        ),
        (
            vec![(FIRST, b"hello\n".to_vec())],
            "not a turnkeep journal".into(),
            FIRST,
        ),
        (
            vec![(FIRST, b"hello".to_vec())],
            "not a turnkeep journal".into(),
            FIRST,
        ),
        (
            vec![(FIRST, zeros)],
            format!("offset {first}, batch 1: the envelope is malformed"),
            FIRST,
        ),
        (
            vec![(FIRST, again.concat())],
            format!("offset {first}, batch 1: record conversation_opened makes"),
            FIRST,
        ),
        // A cut end is torn in the last file only.
        (
            vec![
                (FIRST, torn[..torn.len() - 1].to_vec()),
                (SECOND, lines(3..=4)),
            ],
            format!("offset {first}, batch 1: the line has no end"),
            FIRST,
        ),
        (
            vec![(FIRST, lines(1..=1)), (SECOND, lines(3..=4))],
            "offset 0, batch 0: batch 3 is out of order".into(),
            SECOND,
        ),
        (
            vec![(FIRST, lines(1..=1)), (SECOND, vec![])],
            "offset 0, batch 0: batches before it are missing".into(),
            SECOND,
        ),
        (
            vec![(SECOND, lines(3..=4))],
            "offset 0, batch 0: batch 3 is out of order".into(),
            SECOND,
        ),
        (
            vec![(SECOND, vec![])],
            "offset 0, batch 0: batches before it are missing".into(),
            SECOND,
        ),
        (
            vec![(FIRST, lines(1..=1)), (SECOND, lines(2..=2))],
            "batch 1: the file is named after another batch".into(),
            SECOND,
        ),
    ]
}

#[tokio::test]
async fn what_is_damaged_is_refused_with_its_place_and_left_as_it_was() {
    for (files, says, file) in bad_journals() {
        let dir = tempfile::tempdir().unwrap();
        for (name, bytes) in &files {
            fs::write(dir.path().join(name), bytes).unwrap();
        }
        // What a crash left behind stays too.
        fs::write(dir.path().join(format!("{FIRST}.new")), b"unfinished").unwrap();
        let before = contents(dir.path());
        let error = refusal(&at(dir.path())).to_string();
        let path = dir.path().join(file);
        assert!(
            error.starts_with(&format!("{}: ", path.display())),
            "{error}"
        );
        assert!(error.contains(&says), "{error}: {says}");
        assert_eq!(contents(dir.path()), before, "{says}");
        // A refused journal is held by nobody.
        assert_eq!(refusal(&at(dir.path())).to_string(), error);
    }
}

#[tokio::test]
async fn other_files_are_none_of_its_business() {
    let dir = tempfile::tempdir().unwrap();
    for name in ["journal-1.jsonl", "journal-old.jsonl", "notes", "notes.new"] {
        fs::write(dir.path().join(name), b"hello").unwrap();
    }
    let before = contents(dir.path());
    let (mut journal, ..) = open(&at(dir.path())).unwrap();
    journal.finish().await;
    let mut after = contents(dir.path());
    assert_eq!(after.remove(&dir.path().join(FIRST)), Some(vec![]));
    assert_eq!(after, before);
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn a_full_disk_fails_once_and_for_all() {
    let dir = tempfile::tempdir().unwrap();
    symlink("/dev/full", dir.path().join(FIRST)).unwrap();
    let (mut journal, ..) = open(&at(dir.path())).unwrap();
    journal.append(batch(1, Buffered));
    fails_for_good(&mut journal, 0).await;
}

/// It has failed, and what comes now is neither written nor confirmed.
async fn fails_for_good(journal: &mut Journal, confirmed: u64) {
    loop {
        match journal.answer().await {
            Input::Appended { .. } => {}
            Input::AppendFailed => break,
            other => panic!("{other:?}"),
        }
    }
    assert!(journal.is_idle());
    // It says so once.
    let mut cx = Context::from_waker(std::task::Waker::noop());
    assert!(journal.poll_answer(&mut cx).is_pending());
    assert_eq!(journal.append(batch(90, Synced)), None);
    assert!(!journal.wants_checkpoint());
    assert!(!journal.finish().await);
    assert_eq!(journal.confirmed(), JournalSeq(confirmed));
}

fn on(disk: &FaultDisk) -> JournalConfig {
    let disk = disk.clone();
    JournalConfig::store(move || Box::new(FileStore::new(disk.clone(), 1_000)))
}

#[tokio::test]
async fn a_sync_that_fails_is_the_end_and_is_never_tried_again() {
    let disk = FaultDisk::default();
    let (mut journal, ..) = open(&on(&disk)).unwrap();
    // A write is done; the sync behind it fails, once.
    disk.crash(Some(Crash {
        at: 1,
        reach: Reach::NotBegun,
    }));
    journal.append(batch(1, Synced));
    fails_for_good(&mut journal, 0).await;
    assert_eq!(disk.operations(), 2);
}

#[tokio::test]
async fn a_checkpoint_that_fails_is_the_end_too() {
    let disk = FaultDisk::default();
    let (mut journal, _, mut state) = open(&on(&disk)).unwrap();
    let mut seq = 0;
    while !journal.wants_checkpoint() {
        seq += 1;
        write(&mut journal, &mut state, seq..=seq).await;
    }
    disk.crash(Some(Crash {
        at: 3,
        reach: Reach::NotBegun,
    }));
    let checkpoint = (JournalSeq(seq), state.checkpoint());
    assert_eq!(journal.checkpoint(checkpoint, Timestamp(seq)), None);
    fails_for_good(&mut journal, seq).await;
}

#[tokio::test]
async fn a_last_sync_that_fails_is_told() {
    let disk = FaultDisk::default();
    let (mut journal, ..) = open(&on(&disk)).unwrap();
    disk.crash(Some(Crash {
        at: 1,
        reach: Reach::NotBegun,
    }));
    journal.append(batch(1, Buffered));
    confirm(&mut journal, JournalSeq(1)).await;
    assert!(!journal.finish().await);
}

#[tokio::test]
async fn what_waits_together_is_written_together() {
    let disk = FaultDisk::default();
    let (mut journal, ..) = open(&on(&disk)).unwrap();
    disk.crash(None);
    // While the disk is held the writer cannot get far.
    disk.while_held(|| {
        for seq in 1..=40 {
            journal.append(batch(seq, Synced));
        }
    });
    confirm(&mut journal, JournalSeq(40)).await;
    assert!(journal.finish().await);
    // The first batch or more, then the rest: a write and a sync each; perhaps a segment between.
    assert!(disk.operations() <= 8, "{}", disk.operations());
}

#[tokio::test]
async fn the_writer_of_a_store_that_panics_leaves_no_wait() {
    struct Panics;
    impl Store for Panics {
        fn open(&mut self, _: &mut Reader<'_>) -> Result<super::Opened, OpenJournalError> {
            Ok(super::Opened::default())
        }
        fn append(&mut self, _: &Group) -> io::Result<()> {
            panic!("on purpose");
        }
        fn checkpoint(&mut self, _: Line<'_>) -> io::Result<()> {
            Ok(())
        }
        fn close(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
    let (mut journal, ..) = open(&JournalConfig::store(|| Box::new(Panics))).unwrap();
    journal.append(batch(1, Synced));
    fails_for_good(&mut journal, 0).await;
}
