//! Asks `codex app-server` one question: `cargo run --example ask -- "why is the sky blue?"`
//!
//! `CODEX` names another program than `codex`.

use std::{env, error::Error, io::Write as _};

use turnkeep_tokio::{Authorization, ChildConfig, Client, ClientConfig, TurnEvent};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let question = env::args().nth(1).unwrap_or_else(|| "hello".into());
    let program = env::var_os("CODEX").unwrap_or_else(|| "codex".into());
    let server = ChildConfig::program(program).arg("app-server");

    let client =
        Client::spawn(ClientConfig::child(server).authorization(Authorization::None)).await?;
    let mut turn = client.conversation("ask").await?.send(question).await?;
    while let Some(event) = turn.next().await {
        if let TurnEvent::Delta(delta) = event {
            print!("{}", delta.text);
            std::io::stdout().flush()?;
        }
    }
    let answer = turn.final_response().await?;
    println!("\n\n{} bytes in all", answer.len());
    client.shutdown().await?;
    Ok(())
}
