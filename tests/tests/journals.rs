//! Clients that go on from the journal of an earlier life, with real files and real processes.

#![allow(clippy::unwrap_used, reason = "helpers of tests are tests")]

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use tokio::time::timeout;
use turnkeep_tests::{
    processes,
    recording::{Recording, journal_in},
};
use turnkeep_tokio::{
    ChildConfig, Client, ClientConfig, Group, JournalConfig, JournalDirectory, Line, MemoryJournal,
    OpenJournalError, Opened, Reader, ShutdownError, ShutdownSummary, StartError, Store,
    core::{JournalSeq, Record, codec::journal, event::ConnectionEvent},
    journal_files,
};

const PATIENCE: Duration = Duration::from_secs(30);

fn demo() -> ClientConfig {
    let program = env!("CARGO_BIN_EXE_fake-app-server");
    turnkeep_tests::client(ChildConfig::program(program).arg("demo"))
}

async fn soon<T>(what: impl IntoFuture<Output = T>) -> T {
    timeout(PATIENCE, what).await.expect("it takes too long")
}

async fn start(config: &ClientConfig) -> Client {
    soon(Client::spawn(config.clone())).await.unwrap()
}

/// Talks with a few conversations of a life's own.
async fn talk(client: &Client, life: u32) {
    for n in 0..2 {
        let key = format!("life {life}, conversation {n}");
        let conversation = soon(client.conversation(key)).await.unwrap();
        let mut turn = soon(conversation.send("hello")).await.unwrap();
        let answer = soon(turn.final_response()).await.unwrap();
        assert!(answer.contains("You said: hello"), "{answer}");
    }
}

async fn stop(client: Client) -> ShutdownSummary {
    soon(client.shutdown()).await.unwrap()
}

fn contents(directory: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let files = fs::read_dir(directory).unwrap().map(|e| e.unwrap().path());
    let journal = files.filter(|path| path.extension().is_some_and(|e| e == "jsonl"));
    journal
        .map(|path| (path.clone(), fs::read(path).unwrap()))
        .collect()
}

/// Three lives of a client. Each finds what the last one left, and numbers on.
async fn three_lives(config: &ClientConfig) {
    let mut last = JournalSeq(0);
    for life in 1..=3 {
        let client = start(config).await;
        let report = client.journal_report().clone();
        assert_eq!((report.last, report.torn.as_ref()), (last, None));
        assert_eq!(report.batches > 0, life > 1);
        assert_eq!(report.at.is_some(), life > 1);
        talk(&client, life).await;
        let summary = stop(client).await;
        assert!(summary.journal > last);
        last = summary.journal;
    }
}

#[tokio::test]
async fn a_client_goes_on_from_its_journal_and_its_recording_replays() {
    let dir = tempfile::tempdir().unwrap();
    let config = demo().journal(dir.path());
    three_lives(&config).await;
    let read = journal_in(dir.path());
    let starts = read.entries.iter().flat_map(|(_, entry)| &entry.records);
    let seeds: Vec<u64> = starts
        .filter_map(|record| match record {
            Record::Start { seed, .. } => Some(*seed),
            _ => None,
        })
        .collect();
    assert_eq!(seeds.len(), 3);
    assert!(seeds[0] != seeds[1] && seeds[1] != seeds[2]);
    let stamps: Vec<_> = read.entries.iter().map(|(_, entry)| entry.at).collect();
    assert!(stamps.is_sorted());

    let trace = dir.path().join("session.trace");
    let client = start(&config.record(&trace)).await;
    talk(&client, 4).await;
    stop(client).await;
    let recording = Recording::replay(&trace);
    recording.check_journal(dir.path());
    recording.check_order();
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn a_server_that_dies_is_started_again() {
    let dir = tempfile::tempdir().unwrap();
    let client = start(&demo().journal(dir.path())).await;
    let mut events = client.connection_events();
    talk(&client, 1).await;
    let mut before = client.server_pid().unwrap();
    for life in 2..=3 {
        processes::kill(&processes::Proc::find(before).unwrap());
        let mut told = Vec::new();
        while !matches!(told.last(), Some(ConnectionEvent::Ready { .. })) {
            told.push(soon(events.next()).await.unwrap());
        }
        assert!(
            told.iter()
                .any(|event| matches!(event, ConnectionEvent::Lost { .. })),
            "{told:?}"
        );
        let now = client.server_pid().unwrap();
        assert_ne!(now, before);
        before = now;
        talk(&client, life).await;
    }
    stop(client).await;
}

#[tokio::test]
async fn a_journal_in_memory_serves_one_life_after_the_other() {
    let kept = MemoryJournal::new().checkpoint_after(2_000);
    let mut config = demo();
    config.journal = kept.config();
    three_lives(&config).await;
    assert!(journal::is_checkpoint_line(&kept.bytes()));
    assert!(journal::decode(&kept.bytes()).is_ok());
}

#[tokio::test]
async fn a_client_keeps_its_journal_short() {
    let dir = tempfile::tempdir().unwrap();
    let mut config = demo();
    config.journal =
        JournalConfig::Directory(JournalDirectory::new(dir.path()).segment_bytes(1_500));
    three_lives(&config).await;
    let files = journal_files(dir.path()).unwrap();
    assert_eq!(files, contents(dir.path()).into_keys().collect::<Vec<_>>());
    assert!(journal::is_checkpoint_line(&fs::read(&files[0]).unwrap()));
    let kept = contents(dir.path()).into_values().map(|bytes| bytes.len());
    assert!(kept.sum::<usize>() < 15_000);
}

#[tokio::test]
async fn a_torn_tail_is_reported_to_the_application() {
    let dir = tempfile::tempdir().unwrap();
    let config = demo().journal(dir.path());
    let client = start(&config).await;
    let last = stop(client).await.journal;
    let [file] = &journal_files(dir.path()).unwrap()[..] else {
        panic!("one file");
    };
    let whole = fs::read(file).unwrap();
    fs::write(file, [&whole[..], &whole[..20]].concat()).unwrap();
    let client = start(&config).await;
    let report = client.journal_report();
    let torn = report.torn.as_ref().unwrap();
    assert_eq!(
        (&torn.path, torn.offset, torn.bytes),
        (file, whole.len() as u64, 20)
    );
    assert_eq!(report.last, last);
    stop(client).await;
}

#[tokio::test]
async fn a_damaged_journal_starts_no_server_and_stays_as_it_is() {
    let dir = tempfile::tempdir().unwrap();
    let marker = dir.path().join("started");
    let config = demo().journal(dir.path());
    stop(start(&config).await).await;
    let [file] = &journal_files(dir.path()).unwrap()[..] else {
        panic!("one file");
    };
    let whole = fs::read(file).unwrap();
    let second = whole.iter().position(|b| *b == b'\n').unwrap() + 1;
    // A flipped byte; then a batch that is whole, and opens what is open.
    let mut flipped = whole.clone();
    flipped[second + 70] ^= 1;
    let again = br#"{"seq":2,"at":9,"records":[{"conversation_closed":{"conversation":9}}]}"#;
    let again = format!(
        "{{\"v\":1,\"len\":{},\"crc\":\"{:08x}\",\"body\":{}}}\n",
        again.len(),
        crc32fast::hash(again),
        std::str::from_utf8(again).unwrap()
    );
    let again = [&whole[..second], again.as_bytes()].concat();
    for bytes in [flipped, again] {
        fs::write(file, &bytes).unwrap();
        let mut server = demo().journal(dir.path());
        server = server.change_child(|_| ChildConfig::program("touch").arg(&marker));
        let error = soon(Client::spawn(server)).await.unwrap_err();
        let (path, offset, index) = match error {
            StartError::Journal(OpenJournalError::Unreadable {
                path,
                source: journal::JournalError::Damaged { offset, index, .. },
            })
            | StartError::Journal(OpenJournalError::Record {
                path,
                offset,
                index,
                ..
            }) => (path, offset, index),
            other => panic!("{other}"),
        };
        assert_eq!((&path, offset, index), (file, second as u64, 1));
        assert_eq!(contents(dir.path()), BTreeMap::from([(path, bytes)]));
        assert!(!marker.exists());
    }
}

/// A store that fails with its third group.
struct Fails(u32);

impl Store for Fails {
    fn open(&mut self, _: &mut Reader<'_>) -> Result<Opened, OpenJournalError> {
        Ok(Opened::default())
    }

    fn append(&mut self, group: &Group) -> std::io::Result<()> {
        assert!(group.lines().all(|line| line.bytes.ends_with(b"}\n")));
        self.0 += 1;
        match self.0 {
            3.. => Err(std::io::Error::other("on purpose")),
            _ => Ok(()),
        }
    }

    fn checkpoint(&mut self, _: Line<'_>) -> std::io::Result<()> {
        Ok(())
    }

    fn close(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[tokio::test]
async fn a_store_that_fails_halts_the_client() {
    let mut config = demo();
    config.journal = JournalConfig::store(|| Box::new(Fails(0)));
    // It may come to be ready before the third group.
    let ended = match soon(Client::spawn(config)).await {
        Ok(client) => {
            if let Ok(conversation) = soon(client.conversation("one")).await {
                let _ = soon(conversation.send("hello")).await;
            }
            soon(client.shutdown()).await.unwrap_err()
        }
        Err(StartError::Halted) => ShutdownError::Halted,
        Err(other) => panic!("{other}"),
    };
    assert_eq!(ended, ShutdownError::Halted);
}

/// A store that holds an earlier life, and fails once the server had time to be ready.
struct Stalls(Vec<u8>);

impl Store for Stalls {
    fn open(&mut self, reader: &mut Reader<'_>) -> Result<Opened, OpenJournalError> {
        let mut lines = self.0.split_inclusive(|byte| *byte == b'\n');
        lines.try_for_each(|line| reader.line(line))?;
        Ok(Opened::default())
    }

    fn append(&mut self, _: &Group) -> std::io::Result<()> {
        std::thread::sleep(Duration::from_millis(500));
        Err(std::io::Error::other("on purpose"))
    }

    fn checkpoint(&mut self, _: Line<'_>) -> std::io::Result<()> {
        Ok(())
    }

    fn close(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[tokio::test]
async fn a_life_begins_once_its_own_first_record_is_durable() {
    let kept = MemoryJournal::new();
    let mut config = demo();
    config.journal = kept.config();
    stop(start(&config).await).await;
    let bytes = kept.bytes();
    config.journal = JournalConfig::store(move || Box::new(Stalls(bytes.clone())));
    let error = soon(Client::spawn(config)).await.unwrap_err();
    assert!(matches!(error, StartError::Halted), "{error}");
}

#[tokio::test]
async fn a_store_of_ones_own_may_refuse() {
    struct Refuses;
    impl Store for Refuses {
        fn open(&mut self, _: &mut Reader<'_>) -> Result<Opened, OpenJournalError> {
            let source = "no such table".into();
            Err(OpenJournalError::Store { source })
        }
        fn append(&mut self, _: &Group) -> std::io::Result<()> {
            Ok(())
        }
        fn checkpoint(&mut self, _: Line<'_>) -> std::io::Result<()> {
            Ok(())
        }
        fn close(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }
    let mut config = demo();
    config.journal = JournalConfig::store(|| Box::new(Refuses));
    let error = soon(Client::spawn(config)).await.unwrap_err();
    assert_eq!(error.to_string(), "the journal's store: no such table");
}

/// Says to a process of this test what directory it lives in.
const LIFE: &str = "TURNKEEP_TEST_LIFE";

/// A server that does not end when we do: its launcher waits for something else.
fn stubborn(directory: &Path) -> ClientConfig {
    let server = env!("CARGO_BIN_EXE_fake-app-server");
    let script = format!("trap '' TERM; '{server}' demo; sleep 1000");
    let limit = Duration::from_millis(200);
    let child = ChildConfig::program("sh").args(["-c", &script]);
    turnkeep_tests::client(child.stop_limits(limit, limit)).journal(directory)
}

/// Not a test: the life that is killed.
#[tokio::test]
async fn a_life_that_is_killed() {
    let Some(directory) = std::env::var_os(LIFE) else {
        return;
    };
    let directory = PathBuf::from(directory);
    let client = start(&stubborn(&directory)).await;
    talk(&client, 1).await;
    let pid = client.server_pid().unwrap();
    fs::write(directory.join("pid.new"), pid.to_string()).unwrap();
    fs::rename(directory.join("pid.new"), directory.join("pid")).unwrap();
    std::future::pending().await
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn the_server_of_a_killed_life_is_gone_before_the_next_one_starts() {
    let dir = tempfile::tempdir().unwrap();
    let mut life = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "a_life_that_is_killed", "--nocapture"])
        .env(LIFE, dir.path())
        .stdout(std::process::Stdio::null())
        .spawn()
        .unwrap();
    let orphan: u32 = soon(async {
        loop {
            match fs::read_to_string(dir.path().join("pid")) {
                Ok(pid) => return pid.parse().unwrap(),
                Err(_) => tokio::time::sleep(Duration::from_millis(5)).await,
            }
        }
    })
    .await;
    life.kill().unwrap();
    life.wait().unwrap();
    let orphan = processes::Proc::find(orphan).unwrap();
    let family = processes::family(orphan.pid);
    assert!(processes::alive(&orphan), "it does not end by itself");

    let client = start(&stubborn(dir.path())).await;
    let left: Vec<_> = family
        .iter()
        .filter(|proc| processes::alive(proc))
        .collect();
    assert!(left.is_empty() && !processes::alive(&orphan), "{left:?}");
    assert_ne!(client.server_pid(), Some(orphan.pid));
    assert!(client.journal_report().batches > 0);
    talk(&client, 2).await;
    stop(client).await;
}
