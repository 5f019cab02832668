//! `turnkeep request`: any method.

use std::io::{self, IsTerminal as _, Read as _, Write as _};

use serde_json::{Value, json};
use turnkeep_tokio::{
    CommandError, RawJson, RequestError,
    protocol::{Effect, MethodInfo, Stage, parse, requests::METHODS},
};

use crate::{
    Failure, cli,
    connect::{self, exit, with_client},
    problem::{Exit, Problem},
    signals::Signals,
    term::visible,
};

pub(crate) async fn run(args: cli::Request, mut signals: Signals) -> Result<Exit, Failure> {
    let Some(method) = args.method else {
        return list(args.json);
    };
    let params = params(args.params.as_deref())?;
    let known = MethodInfo::of(&method);
    let reads = args.reads || known.is_some_and(|known| known.effect == Effect::Reads);
    let done = with_client(&args.at, &mut signals, async |client| {
        let mut request = client.request_raw(&*method, params);
        if reads {
            request = request.reads();
        }
        match request.await {
            Ok(result) => {
                let value = parse(result.get()).unwrap_or_else(|_| Value::from(result.get()));
                connect::print(&value, args.json)?;
                Ok(Exit::Ok)
            }
            Err(RequestError::Command(CommandError::Refused(refusal))) => {
                let mut problem = connect::refused(&refusal);
                problem.what += &format!(" (code {})", refusal.error.code);
                if let Some(data) = &refusal.error.data {
                    problem = problem.hint(format!("data: {}", visible(data.get())));
                }
                if known.is_none() {
                    problem = near(problem, &method);
                }
                Err(problem.into())
            }
            Err(error) => Err(Problem::failed(visible(&error.to_string())).into()),
        }
    })
    .await?;
    Ok(exit(done))
}

/// Names what a method that is not known may have meant.
fn near(problem: Problem, method: &str) -> Problem {
    let last = method.rsplit('/').next().unwrap_or(method).to_lowercase();
    // Up to the first letter behind the last slash: what was mistyped comes later as a rule.
    let upto = method.rfind('/').map_or(2, |slash| slash + 2);
    let begin = method.get(..upto).unwrap_or(method);
    let names: Vec<&str> = METHODS
        .iter()
        .map(|known| known.name)
        .filter(|name| name.to_lowercase().contains(&last) || name.starts_with(begin))
        .take(5)
        .collect();
    let problem = problem.hint(format!(
        "{:?} is no method that turnkeep knows",
        visible(method)
    ));
    match names.is_empty() {
        true => problem.hint("all that there are: turnkeep request --list"),
        false => problem.hint(format!("like it are: {}", names.join(", "))),
    }
}

fn params(text: Option<&str>) -> Result<RawJson, Failure> {
    let text = match text {
        Some("-") => {
            if io::stdin().is_terminal() {
                eprintln!("reading the parameters from stdin; Ctrl-D ends them");
            }
            let mut text = String::new();
            io::stdin().read_to_string(&mut text)?;
            text
        }
        Some(text) => text.to_owned(),
        None => return Ok(RawJson::parse("{}").expect("an object is JSON")),
    };
    RawJson::parse(text.trim()).map_err(|error| {
        Problem::usage(format!("the parameters are not JSON: {error}"))
            .hint(r#"quote them for the shell: turnkeep request thread/read '{"threadId":"…"}'"#)
            .into()
    })
}

fn list(for_programs: bool) -> Result<Exit, Failure> {
    let stage = |of: Stage| match of {
        Stage::Stable => "stable",
        Stage::Experimental => "experimental",
    };
    let effect = |of: Effect| match of {
        Effect::Reads => "reads",
        Effect::Changes => "changes",
    };
    if for_programs {
        let mut out = io::stdout().lock();
        for of in METHODS {
            let row = json!({
                "method": of.name, "stage": stage(of.stage), "effect": effect(of.effect),
            });
            writeln!(out, "{row}")?;
        }
        return Ok(Exit::Ok);
    }
    let row = |of: &MethodInfo| {
        vec![
            of.name.into(),
            stage(of.stage).into(),
            effect(of.effect).into(),
        ]
    };
    connect::table(&["method", "stage", "effect"], METHODS.iter().map(row))?;
    Ok(Exit::Ok)
}
