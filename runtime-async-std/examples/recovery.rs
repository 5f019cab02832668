//! A program that is killed in the middle of an answer, and goes on where it was.
//!
//! `cargo run -p turnkeep-async-std --example recovery_async_std`
//!
//! It starts itself as a child, kills that with SIGKILL while the second answer comes, and starts it
//! once more. Both lives run the same code: what the first one has done the journal knows, and what
//! became of the turn that was cut off the server's history tells.

use std::{
    env,
    error::Error,
    fs,
    io::{BufRead as _, BufReader},
    path::Path,
    process::{self, Command, Stdio},
};

use turnkeep_async_std::{
    Authorization, BoxId, ChildConfig, Client, ClientConfig, Outcome, SendError, TurnEvent,
};

/// What is said, each under a key of its own.
const MESSAGES: [(&str, &str); 3] = [
    ("first", "Hello!"),
    ("second", "Tell me a long story."),
    ("third", "We were cut off. Are you still there?"),
];

/// What a life says when it is time to kill it.
const KILL: &str = "second: the answer begins";

fn main() -> Result<(), Box<dyn Error>> {
    async_std::task::block_on(run())
}

async fn run() -> Result<(), Box<dyn Error>> {
    if let Some(journal) = env::args_os().nth(1) {
        return live(Path::new(&journal)).await;
    }
    let journal = env::temp_dir().join(format!("turnkeep-recovery-{}", process::id()));
    let killed = start(&journal)?;
    let completed = killed && !start(&journal)?;
    fs::remove_dir_all(&journal)?;
    match completed {
        true => Ok(()),
        false => Err("a life did not end as it should".into()),
    }
}

/// Runs a life, and kills it when it is time. Says whether it was.
fn start(journal: &Path) -> Result<bool, Box<dyn Error>> {
    let mut life = Command::new(env::current_exe()?)
        .arg(journal)
        .stdout(Stdio::piped())
        .spawn()?;
    let stdout = life.stdout.take().ok_or("no stdout")?;
    for line in BufReader::new(stdout).lines() {
        let line = line?;
        println!("{line}");
        if line == KILL {
            // SIGKILL: from here on it can write nothing down any more.
            life.kill()?;
            println!("-- killed --");
        }
    }
    let status = life.wait()?;
    match status.code() {
        Some(0) => Ok(false),
        Some(code) => Err(format!("a life ended with code {code}").into()),
        None => Ok(true),
    }
}

async fn live(journal: &Path) -> Result<(), Box<dyn Error>> {
    let codex = env::var_os("CODEX").unwrap_or_else(|| "codex".into());
    let server = ChildConfig::program(codex).arg("app-server");
    let config = ClientConfig::child(server).authorization(Authorization::None);
    let client = Client::spawn(config.journal(journal)).await?;
    let conversation = client.conversation("story").await?;
    for (key, text) in MESSAGES {
        // A message that is said again under its key is the same message, and gives the same turn.
        let mut turn = match conversation.send(text).key(key).await {
            // The end counts as told only once we say so, which is after it was printed.
            Ok(turn) => turn.manual_acknowledge(),
            Err(SendError::AlreadyEnded { .. }) => {
                println!("{key}: an earlier life has seen its end");
                continue;
            }
            Err(error) => return Err(error.into()),
        };
        let mut begun = false;
        while let Some(event) = turn.next().await {
            if matches!(event, TurnEvent::Delta(_)) && !begun {
                begun = true;
                println!("{key}: the answer begins");
            }
        }
        let end = turn.outcome().await?;
        match &end.outcome {
            Outcome::Completed { text, .. } => println!("{key}: {}", text.as_deref().unwrap_or("")),
            // It ran, and it is over. Nobody sends it a second time on a guess; what comes next is
            // for the application to say.
            outcome => {
                println!("{key}: {}", outcome.name());
                conversation.dismiss().await?;
            }
        }
        turn.acknowledge().await?;
    }
    let (boxes, _) = conversation.read(BoxId(1), 100).await?;
    for each in boxes {
        println!("box {}: {}", each.id, each.body.box_type);
    }
    client.shutdown().await?;
    Ok(())
}
