//! `turnkeep request`: any method.

use std::io::{self, IsTerminal as _, Write as _};

use serde_json::json;
use turnkeep_tokio::{
    CommandError, RawJson, RequestError,
    core::command::RefusalClass,
    protocol::{Effect, MethodInfo, Stage, requests::METHODS},
};

use crate::{
    Failure, cli,
    connect::{self, exit, with_client},
    problem::{Exit, Problem},
    signals::{Signal, Signals},
    stdin,
    term::visible,
};

pub(crate) async fn run(args: cli::Request, mut signals: Signals) -> Result<Exit, Failure> {
    let Some(method) = args.method else {
        return list(args.json);
    };
    let params = match params(args.params.as_deref(), &mut signals).await? {
        Ok(params) => params,
        Err(signal) => return Ok(signal.exit()),
    };
    let known = MethodInfo::of(&method);
    let reads = args.reads || known.is_some_and(|known| known.effect == Effect::Reads);
    let done = with_client(&args.at, &mut signals, async |client| {
        let mut request = client.request_raw(&*method, params);
        if reads {
            request = request.reads();
        }
        match request.await {
            Ok(result) => {
                connect::print(result.get(), args.json)?;
                Ok(Exit::Ok)
            }
            Err(RequestError::Command(CommandError::Refused(refusal))) => {
                let mut problem = connect::refused(&refusal);
                if refusal.class == RefusalClass::UnknownMethod {
                    // The server's message names all methods that it knows.
                    problem.what = format!("the server knows no method {:?}", visible(&method));
                    if known.is_some() {
                        problem = problem.hint("another version of codex does: turnkeep doctor");
                    }
                }
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
    let problem = problem.hint(format!(
        "{:?} is no method that turnkeep knows",
        visible(method)
    ));
    let like = like(method);
    let problem = match like.is_empty() {
        true => problem,
        false => problem.hint(format!("like it are: {}", like.join(", "))),
    };
    problem.hint("all that there are: turnkeep request --list")
}

/// The known methods that are like a name, the likest first.
fn like(method: &str) -> Vec<&'static str> {
    let method = method.to_lowercase();
    let last = method.rsplit('/').next().unwrap_or_default();
    let mut found: Vec<(f64, &str)> = METHODS
        .iter()
        .filter_map(|known| {
            let name = known.name.to_lowercase();
            let likeness = strsim::jaro_winkler(&name, &method);
            let wrong = strsim::osa_distance(&name, &method);
            let is_part = last.len() > 2 && name.contains(last);
            (wrong <= 3 || is_part).then_some((likeness, known.name))
        })
        .collect();
    found.sort_by(|(a, _), (b, _)| b.total_cmp(a));
    found.into_iter().map(|(_, name)| name).take(5).collect()
}

/// The parameters of the command line, or those that come on stdin.
async fn params(
    text: Option<&str>,
    signals: &mut Signals,
) -> Result<Result<RawJson, Signal>, Problem> {
    let at_terminal = io::stdin().is_terminal();
    let text = match text {
        Some(text) if text != "-" => text.to_owned(),
        None if at_terminal => String::new(),
        dash => {
            if at_terminal {
                eprintln!("reading the parameters from stdin; Ctrl-D ends them");
            }
            match stdin::all(signals, "JSON").await? {
                Ok(text) if dash.is_some() && text.trim().is_empty() => {
                    return Err(Problem::usage("there are no parameters on stdin"));
                }
                Ok(text) => text,
                Err(signal) => return Ok(Err(signal)),
            }
        }
    };
    let text = match text.trim() {
        "" => "{}",
        text => text,
    };
    RawJson::parse(text).map(Ok).map_err(|error| {
        Problem::usage(format!("the parameters are not JSON: {error}"))
            .hint(r#"quote them for the shell: turnkeep request thread/read '{"threadId":"…"}'"#)
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
    connect::table(&["method", "stage", "effect"], METHODS.iter().map(row), &[])?;
    Ok(Exit::Ok)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_like_a_method_is_found_by_its_letters_and_by_its_end() {
        assert_eq!(like("thread/lsit")[0], "thread/list");
        assert_eq!(like("config/reed")[0], "config/read");
        assert_eq!(like("Thread/List")[0], "thread/list");
        assert!(like("interrupt").contains(&"turn/interrupt"));
        assert!(like("zzz/qqqqqqq").is_empty());
        assert!(like("").is_empty() && like("/").is_empty());
    }
}
