//! The program that is killed with a call open: it asks the model something, says which calls come, and answers none.
//!
//!     killed-child LAUNCHER CODEX_HOME HOME CWD JOURNAL MARK [URL]
//!
//! With the URL of a server that runs it starts none.

use std::{env, error::Error, path::PathBuf};

use turnkeep_runtime::{ChildConfig, ClientConfig, TurnEvent, TurnUpdate, WebSocketConfig};
use turnkeep_tests::{Client, crash, session};

fn main() -> Result<(), Box<dyn Error>> {
    let paths: Vec<PathBuf> = env::args_os().skip(1).map(PathBuf::from).collect();
    let [launcher, codex_home, home, cwd, journal, mark, url @ ..] = &paths[..] else {
        return Err("six arguments are needed".into());
    };
    let child = ChildConfig::program(launcher)
        .arg("app-server")
        .cwd(cwd)
        .codex_home(codex_home)
        .env("HOME", home)
        .env(crash::MARK, mark);
    let config = match url {
        [url, ..] => ClientConfig::web_socket(WebSocketConfig::url(&url.to_string_lossy())?),
        [] => ClientConfig::child(child),
    };
    let config = session::authorized(config).journal(journal);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime.block_on(async {
        let client = Client::spawn(config).await?;
        let settings = session::slow_tools(&cwd.display().to_string());
        let talk = client.conversation("talk").settings(settings).await?;
        let mut turn = talk.send("look at alpha").await?;
        while let Some(event) = turn.next().await {
            match event {
                TurnEvent::Update(TurnUpdate::ToolCall(call)) => {
                    println!("call {}", serde_json::to_string(&call.id)?);
                }
                TurnEvent::Update(TurnUpdate::Ended(_)) => println!("end"),
                _ => {}
            }
        }
        std::future::pending().await
    })
}
