//! A tool's round trip: with a client and its file journal, and with a loop that does nothing but the
//! same two writes and fdatasyncs. Both speak to the same server, which takes the time.

use std::{
    fs::File,
    io::{BufRead as _, BufReader, Write as _, stdin, stdout},
    process::{Command, Stdio},
    time::Instant,
};

use serde_json::{Value, json};
use turnkeep_core::{RawJson, Settings, Tool, ToolResult, TurnUpdate};
use turnkeep_tokio::{
    ChildConfig, Client, JournalConfig, JournalDirectory, MemoryJournal, TurnEvent,
};

use crate::{Size, median, ratio, rotate, runtime};

/// Makes this program the server.
pub(crate) const SERVE: &str = "serve-tool-calls";

const ASKED: usize = 420;
const ANSWERED: usize = 260;

fn say(line: &Value) {
    let mut out = stdout().lock();
    writeln!(out, "{line}").unwrap();
    out.flush().unwrap();
}

/// One turn that calls a tool so many times; its text says how many nanoseconds that took.
pub(crate) fn serve(calls: u32) {
    let mut lines = stdin().lines();
    let mut heard = move || -> Option<Value> { serde_json::from_str(&lines.next()?.ok()?).ok() };
    while let Some(frame) = heard() {
        let id = &frame["id"];
        match frame["method"].as_str() {
            Some("initialize") => say(&json!({"id":id,"result":{"userAgent":"x/0.171.0 (x)"}})),
            Some("thread/start") => say(&json!({"id":id,"result":{"thread":{"id":"thr_1"}}})),
            Some("turn/start") => {
                let turn = json!({"id":"trn_1","items":[],"status":"inProgress","error":null});
                say(&json!({"id":id,"result":{"turn":turn}}));
                say(&json!({"method":"turn/started","params":{"threadId":"thr_1","turn":turn}}));
                let start = Instant::now();
                for n in 0..calls {
                    say(&json!({"id":n,"method":"item/tool/call","params":{
                        "threadId":"thr_1","turnId":"trn_1","callId":format!("call_{n}"),
                        "namespace":null,"tool":"weather","arguments":{"city":"Oslo"},
                    }}));
                    let answer = heard().unwrap();
                    assert_eq!(
                        (&answer["id"], answer.get("result").is_some()),
                        (&json!(n), true)
                    );
                }
                let time = start.elapsed().as_nanos().to_string();
                say(
                    &json!({"method":"item/completed","params":{"threadId":"thr_1","turnId":"trn_1",
                    "item":{"type":"agentMessage","id":"it_1","text":time,"phase":"final_answer"},
                    "completedAtMs":2}}),
                );
                say(
                    &json!({"method":"turn/completed","params":{"threadId":"thr_1",
                    "turn":{"id":"trn_1","items":[],"status":"completed","error":null}}}),
                );
            }
            _ => {}
        }
    }
}

/// Reads, writes and syncs, and knows nothing.
fn raw(calls: u32) -> f64 {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let path = dir.path().join("raw");
    let mut file = File::options()
        .append(true)
        .create(true)
        .open(path)
        .unwrap();
    let mut server = Command::new(std::env::current_exe().unwrap())
        .args([SERVE, &calls.to_string()])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut to = server.stdin.take().unwrap();
    let mut lines = BufReader::new(server.stdout.take().unwrap()).lines();
    writeln!(to, r#"{{"id":"a","method":"turn/start"}}"#).unwrap();
    let (asked, answered) = ([b'x'; ASKED], [b'x'; ANSWERED]);
    let mut call = 0;
    let time = loop {
        let line = lines.next().unwrap().unwrap();
        if line.contains("agentMessage") {
            let frame: Value = serde_json::from_str(&line).unwrap();
            break frame["params"]["item"]["text"]
                .as_str()
                .unwrap()
                .parse::<f64>()
                .unwrap();
        }
        if line.contains("item/tool/call") {
            for record in [&asked[..], &answered] {
                file.write_all(record).unwrap();
                file.sync_data().unwrap();
            }
            writeln!(
                to,
                r#"{{"id":{call},"result":{{"contentItems":[{{"type":"inputText","text":"found"}}],"success":true}}}}"#
            )
            .unwrap();
            call += 1;
        }
    };
    drop(to);
    server.wait().unwrap();
    time / f64::from(calls)
}

fn client(calls: u32, journal: JournalConfig) -> f64 {
    let program = std::env::current_exe().unwrap();
    let child = ChildConfig::program(program).args([SERVE.to_owned(), calls.to_string()]);
    let mut config = turnkeep_tests::client(child);
    config.journal = journal;
    let talk = async move {
        let client = Client::spawn(config).await.unwrap();
        let schema = RawJson::parse(r#"{"type":"object"}"#).unwrap();
        let settings = Settings::new().tool(Tool::function("weather", "looks up", schema));
        let conversation = client.conversation("one").settings(settings).await.unwrap();
        let mut turn = conversation.send("go").await.unwrap();
        while let Some(event) = turn.next().await {
            if let TurnEvent::Update(TurnUpdate::ToolCall(call)) = event {
                turn.respond(call.id, ToolResult::ok("found"))
                    .await
                    .unwrap();
            }
        }
        let time: f64 = turn.final_response().await.unwrap().parse().unwrap();
        client.shutdown().await.unwrap();
        time / f64::from(calls)
    };
    // As applications do: in a task of the runtime, not in its main thread.
    let runtime = runtime();
    runtime.block_on(runtime.spawn(talk)).unwrap()
}

pub(crate) fn run(size: Size) {
    let calls = size.calls;
    let on_disk = || {
        let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        client(
            calls,
            JournalConfig::Directory(JournalDirectory::new(dir.path())),
        )
    };
    let times = rotate(
        size.rounds,
        &mut [
            &mut || raw(calls),
            &mut || on_disk(),
            &mut || client(calls, MemoryJournal::new().config()),
            &mut || client(calls, JournalConfig::Memory),
        ],
    );
    println!("\na tool's round trip, {calls} in a row");
    println!("{:<44}{:>14}{:>10}{:>10}", "", "µs", "ratio", "target");
    let names = [
        "a raw loop with two fdatasyncs",
        "client, file journal",
        "client, the same without a disk",
        "client, no journal",
    ];
    for (name, of) in names.iter().zip(&times) {
        let target = if name.ends_with("file journal") {
            "1.2"
        } else {
            ""
        };
        let time = median(of.clone()) / 1e3;
        println!(
            "{name:<44}{time:>14.1}{:>10.3}{target:>10}",
            ratio(of, &times[0])
        );
    }
}
