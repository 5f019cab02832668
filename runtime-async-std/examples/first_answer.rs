//! One question, and the answer as it comes.
//!
//! `cargo run -p turnkeep-async-std --example first_answer_async_std -- "why is the sky blue?"`
//!
//! Each example starts `codex`, or the program that `CODEX` names. The tool of this workspace plays
//! a scripted server: `CODEX=target/debug/turnkeep` needs no login, and no model.

use std::{
    env,
    error::Error,
    io::{self, Write as _},
};

use turnkeep_async_std::{Authorization, ChildConfig, Client, ClientConfig, TurnEvent};

fn main() -> Result<(), Box<dyn Error>> {
    async_std::task::block_on(run())
}

async fn run() -> Result<(), Box<dyn Error>> {
    let question = env::args().nth(1).unwrap_or_else(|| "hello".into());
    let codex = env::var_os("CODEX").unwrap_or_else(|| "codex".into());
    let server = ChildConfig::program(codex).arg("app-server");
    // This program acts for nobody in particular. See the example `tools` for one that does.
    let config = ClientConfig::child(server).authorization(Authorization::None);

    let client = Client::spawn(config).await?;
    let mut turn = client.conversation("first").await?.send(question).await?;
    while let Some(event) = turn.next().await {
        if let TurnEvent::Delta(delta) = event {
            print!("{}", delta.text);
            io::stdout().flush()?;
        }
    }
    // An error where the turn did not complete. The text is the server's last word on it: what was
    // streamed is a preview.
    let answer = turn.final_response().await?;
    println!("\n\n{} bytes in all", answer.len());
    // Waits until the server is gone. A client that is only dropped does the same by itself.
    client.shutdown().await?;
    Ok(())
}
