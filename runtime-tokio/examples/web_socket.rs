//! A server that runs already, behind a WebSocket, and a connection that may be lost.
//!
//! `codex app-server --listen ws://127.0.0.1:4500 --ws-auth capability-token --ws-token-file token`
//!
//! `cargo run -p turnkeep-tokio --example web_socket -- ws://127.0.0.1:4500 token`
//!
//! `unix:///PATH` is a socket of this machine; `wss://HOST` needs the feature `tls`.

use std::{
    env,
    error::Error,
    io::{self, Write as _},
};

use turnkeep_tokio::{Authorization, Client, ClientConfig, TurnEvent, TurnUpdate, WebSocketConfig};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let mut args = env::args().skip(1);
    let url = args.next().unwrap_or("ws://127.0.0.1:4500".into());
    let mut socket = WebSocketConfig::url(&url)?;
    if let Some(file) = args.next() {
        // The file is read at each opening. What it holds is in no log and no recording, and goes
        // over plain TCP to no other machine. A server that refuses it is not asked again.
        socket = socket.token_file(file);
    }
    let config = ClientConfig::web_socket(socket).authorization(Authorization::None);
    let client = Client::spawn(config).await?;

    let mut turn = client.conversation("remote").await?.send("hello").await?;
    while let Some(event) = turn.next().await {
        match event {
            TurnEvent::Delta(delta) => print!("{}", delta.text),
            // The server's process may go on: what it says meanwhile comes with the next
            // connection, which is opened by itself. If the server began anew, its history tells
            // what became of the turn.
            TurnEvent::Update(TurnUpdate::Suspended { reason }) => println!("\n({reason})"),
            TurnEvent::Update(TurnUpdate::Resumed) => println!("(connected again)"),
            _ => {}
        }
        io::stdout().flush()?;
    }
    // What was streamed may have holes after that. This has none.
    println!("\n{}", turn.final_response().await?);
    // Closes the connection. The server is not ours, and runs on.
    client.shutdown().await?;
    Ok(())
}
