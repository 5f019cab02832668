//! `turnkeep models`: which models there are.

use std::io::{self, Write as _};

use turnkeep_tokio::protocol::{
    Wire as _, models,
    types::{Model, ModelListParams},
};

use crate::{
    Failure, cli,
    connect::{self, asked, exit, with_client},
    problem::{Exit, Problem},
    signals::Signals,
    term::brief,
};

pub(crate) async fn run(args: cli::Models, mut signals: Signals) -> Result<Exit, Failure> {
    let done = with_client(&args.at, &mut signals, async |client| {
        let request = ModelListParams {
            include_hidden: args.hidden.into(),
            ..ModelListParams::new()
        };
        let mut listed = client
            .list(request)
            .all()
            .await
            .map_err(|error| asked(&error))?;
        if args.hidden {
            listed.sort_by(|a, b| a.id.cmp(&b.id));
        } else {
            listed =
                models::in_order(listed).map_err(|error| Problem::failed(error.to_string()))?;
        }
        if args.json {
            let mut out = io::stdout().lock();
            for model in &listed {
                writeln!(out, "{}", model.encode())?;
            }
            return Ok(Exit::Ok);
        }
        if listed.is_empty() {
            eprintln!("codex lists no models: those of a custom provider are never listed");
            return Ok(Exit::Ok);
        }
        let header = ["id", "", "name", "efforts", "description"];
        connect::table(&header, listed.iter().map(row), &[2])?;
        Ok(Exit::Ok)
    })
    .await?;
    Ok(exit(done))
}

fn row(model: &Model) -> Vec<String> {
    let mut marks = Vec::new();
    if model.is_default {
        marks.push("default");
    }
    if model.hidden {
        marks.push("hidden");
    }
    let effort = |of: &turnkeep_tokio::protocol::types::ReasoningEffortOption| match of
        .reasoning_effort
        == model.default_reasoning_effort
    {
        true => format!("{}*", of.reasoning_effort),
        false => of.reasoning_effort.clone(),
    };
    let efforts: Vec<String> = model
        .supported_reasoning_efforts
        .iter()
        .map(effort)
        .collect();
    vec![
        model.id.clone(),
        marks.join(", "),
        model.display_name.clone(),
        efforts.join(" "),
        brief(&model.description, 80),
    ]
}
