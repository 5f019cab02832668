//! Two tools: one that the model waits for, and one whose result comes when it is there.
//!
//! `cargo run -p turnkeep-tokio --example tools`
//!
//! It also shows for whom a tool acts. A program that serves several people says with each message
//! for whom it is, and every call of that turn carries the same words, so that the tool can decide
//! what this person may have done.

use std::{env, error::Error};

use turnkeep_tokio::{
    Binding, ChildConfig, Client, ClientConfig, RawJson, Settings, Tool, ToolCall, ToolDelivery,
    ToolResult, TurnEvent, TurnUpdate,
};

const QUESTION: &str = "Build it in release.\nWhat is the weather in Oslo?";

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let codex = env::var_os("CODEX").unwrap_or_else(|| "codex".into());
    let server = ChildConfig::program(codex).arg("app-server");
    let client = Client::spawn(ClientConfig::child(server)).await?;

    let city = RawJson::parse(r#"{"type":"object","properties":{"city":{"type":"string"}}}"#)?;
    let what = RawJson::parse(r#"{"type":"object","properties":{"what":{"type":"string"}}}"#)?;
    let settings = Settings::new()
        .tool(Tool::function("weather", "The weather in a city.", city))
        .tool(Tool::function("build", "Builds. Go on: the result comes later.", what).deferred());
    let conversation = client.conversation("tools").settings(settings).await?;

    // Without a binding the message is refused, since no `Authorization::None` was said. The words
    // are this program's own; they are compared, and kept in memory only.
    let alice = Binding::new("alice", "developer", "may build");
    let mut turn = conversation.send(QUESTION).binding(alice).await?;
    let mut later = Vec::new();
    while let Some(event) = turn.next().await {
        let TurnEvent::Update(TurnUpdate::ToolCall(call)) = event else {
            continue;
        };
        match call.delivery {
            // The model was told to go on. The turn may end long before there is a result.
            ToolDelivery::Deferred => later.push(call),
            // The model waits. Whoever never answers has the turn hang: a `time_limit` helps.
            _ => turn.respond(call.id, carry_out(&call)).await?,
        }
    }
    println!("{}", turn.final_response().await?);

    for call in later {
        // No turn runs any more, so that the result begins one by itself.
        conversation.respond(call.id, carry_out(&call)).await?;
        let mut turn = conversation.next_turn().await.ok_or("the client ended")?;
        println!("{}", turn.final_response().await?);
    }
    client.shutdown().await?;
    Ok(())
}

/// Does what is asked, if it may.
fn carry_out(call: &ToolCall) -> ToolResult {
    let who = call.binding.as_ref();
    println!("({} {})", call.tool, call.arguments.get());
    match call.tool.as_str() {
        "weather" => ToolResult::ok("3 °C, light snow"),
        "build" if who.is_some_and(|who| who.policy == "may build") => ToolResult::ok("built"),
        "build" => ToolResult::failed("you may not build"),
        // The model cannot call what was not declared.
        _ => ToolResult::failed("no such tool"),
    }
}
