//! Many conversations at once, over one server.
//!
//! `cargo run -p turnkeep-async-std --example many_conversations_async_std -- 100`

use std::{env, error::Error};

use turnkeep_async_std::{Authorization, ChildConfig, Client, ClientConfig};

fn main() -> Result<(), Box<dyn Error>> {
    async_std::task::block_on(run())
}

async fn run() -> Result<(), Box<dyn Error>> {
    let count: u32 = env::args().nth(1).map_or(Ok(20), |n| n.parse())?;
    let codex = env::var_os("CODEX").unwrap_or_else(|| "codex".into());
    let server = ChildConfig::program(codex).arg("app-server");
    let config = ClientConfig::child(server).authorization(Authorization::None);
    let client = Client::spawn(config).await?;

    let mut turns = Vec::new();
    for n in 1..=count {
        // The application's own name for it: the same name is the same conversation.
        let conversation = client.conversation(format!("room {n}")).await?;
        turns.push(conversation.send(format!("I am in room {n}")).await?);
    }
    // All of them run. What nobody reads yet waits in the queue of its own conversation, where
    // neighbouring pieces grow together: no other one waits for it, and neither does the server.
    for turn in &mut turns {
        let answer = turn.final_response().await?;
        println!("{}: {answer}", turn.conversation().key());
    }
    let counters = client.counters().await?;
    println!(
        "{count} conversations, {} connection",
        counters.reconnects + 1
    );
    client.shutdown().await?;
    Ok(())
}
