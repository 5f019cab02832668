//! The server asks before it acts, and a person at the terminal answers.
//!
//! `cargo run -p turnkeep-tokio --example approvals`
//!
//! Nothing is approved unless somebody says so: without `Questions::Ask` every question gets its
//! negative answer, and an event tells.

use std::{
    env,
    error::Error,
    io::{self, Write as _},
};

use turnkeep_tokio::{
    Answer, ApprovalPolicy, Authorization, ChildConfig, Client, ClientConfig, Outcome, Question,
    Questions, Settings, TurnEvent, TurnUpdate, core::event::QuestionKind,
};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let codex = env::var_os("CODEX").unwrap_or_else(|| "codex".into());
    let server = ChildConfig::program(codex).arg("app-server");
    let config = ClientConfig::child(server).authorization(Authorization::None);
    let client = Client::spawn(config).await?;

    let settings = Settings::new()
        .approval_policy(ApprovalPolicy::Untrusted)
        .questions(Questions::Ask);
    let conversation = client.conversation("careful").settings(settings).await?;
    let mut turn = conversation
        .send("run: touch here\nrun: touch there")
        .await?;
    while let Some(event) = turn.next().await {
        match event {
            TurnEvent::Update(TurnUpdate::Question(question)) => {
                turn.answer(question.id, decide(&question)?).await?;
            }
            // Answered elsewhere, or its turn ended: an answer would be refused now.
            TurnEvent::Update(TurnUpdate::QuestionClosed { question, why }) => {
                println!("question {question} is closed: {why:?}");
            }
            _ => {}
        }
    }
    match turn.outcome().await?.outcome {
        Outcome::Completed { text, .. } => println!("{}", text.unwrap_or_default()),
        // Where no softer no was offered than `cancel`, the turn is over with it.
        outcome => println!("the turn is {}", outcome.name()),
    }
    client.shutdown().await?;
    Ok(())
}

fn decide(question: &Question) -> io::Result<Answer> {
    let yes = match &question.kind {
        QuestionKind::Command { command, cwd, .. } => {
            let (command, cwd) = (command.as_deref(), cwd.as_deref());
            println!("Run {} in {}?", command.unwrap_or("?"), cwd.unwrap_or("?"));
            said_yes()?
        }
        QuestionKind::FileChange { reason, .. } => {
            println!("Change files? {}", reason.as_deref().unwrap_or_default());
            said_yes()?
        }
        // Permissions, forms and questions to a person: not in this example.
        _ => false,
    };
    Ok(if yes { Answer::Accept } else { Answer::Decline })
}

/// Waits for a person, on the thread of `main`: the client works on others.
fn said_yes() -> io::Result<bool> {
    print!("[y/N] ");
    io::stdout().flush()?;
    let mut line = String::new();
    io::stdin().read_line(&mut line)?;
    Ok(line.trim() == "y")
}
