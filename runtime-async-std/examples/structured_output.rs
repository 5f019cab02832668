//! An answer that is a value: its JSON schema goes with the message, and it is read into a type.
//!
//! `cargo run -p turnkeep-async-std --example structured_output_async_std`

use std::{env, error::Error};

use serde::Deserialize;
use turnkeep_async_std::{Authorization, ChildConfig, Client, ClientConfig, RawJson};

#[derive(Debug, Deserialize)]
struct Review {
    title: String,
    stars: u32,
    reasons: Vec<String>,
}

const SCHEMA: &str = r#"{
    "type": "object",
    "properties": {
        "title": { "type": "string" },
        "stars": { "type": "integer" },
        "reasons": { "type": "array", "items": { "type": "string" } }
    },
    "required": ["title", "stars", "reasons"],
    "additionalProperties": false
}"#;

fn main() -> Result<(), Box<dyn Error>> {
    async_std::task::block_on(run())
}

async fn run() -> Result<(), Box<dyn Error>> {
    let codex = env::var_os("CODEX").unwrap_or_else(|| "codex".into());
    let server = ChildConfig::program(codex).arg("app-server");
    let config = ClientConfig::child(server).authorization(Authorization::None);
    let client = Client::spawn(config).await?;

    let conversation = client.conversation("reviews").await?;
    let message = conversation.send("Review a book that you like.");
    let mut turn = message.output_schema(RawJson::parse(SCHEMA)?).await?;
    let answer = turn.final_response().await?;
    // The schema is a wish to the model. Whether the answer is a value of it is found out here.
    let review: Review = serde_json::from_str(&answer)
        .map_err(|error| format!("the answer is no review ({error}): {answer}"))?;
    println!("{}: {} of 5", review.title, review.stars);
    for reason in review.reasons {
        println!("- {reason}");
    }
    client.shutdown().await?;
    Ok(())
}
