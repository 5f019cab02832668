//! The file that declares tools: `turnkeep chat --tools FILE`.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    ops::Range,
    path::{Path, PathBuf},
    time::Duration,
};

use serde::Deserialize;
use toml::Spanned;
use turnkeep_tokio::{RawJson, Tool};

use crate::{problem::Problem, tool_command::Command};

/// How long a command may take where the file does not say.
const TIME_LIMIT: u64 = 600;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    #[serde(default)]
    tool: Vec<Entry>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    name: Spanned<String>,
    description: String,
    command: Spanned<Words>,
    #[serde(default)]
    delivery: Delivery,
    parameters: Option<Spanned<toml::Table>>,
    time_limit: Option<Spanned<u64>>,
    cwd: Option<Spanned<PathBuf>>,
    #[serde(default)]
    env: BTreeMap<String, String>,
}

#[derive(Deserialize)]
#[serde(
    untagged,
    expecting = "a list of words, or one text that is split like a shell does"
)]
enum Words {
    List(Vec<String>),
    Line(String),
}

#[derive(Clone, Copy, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Delivery {
    #[default]
    Inline,
    Deferred,
}

/// Reads the tools of a file, with their commands, which run in `here` where the file says nothing
/// else.
pub(crate) fn read(path: &Path, here: &Path) -> Result<Vec<(Tool, Command)>, Problem> {
    let text = fs::read_to_string(path)
        .map_err(|error| Problem::usage(format!("--tools {}: {error}", path.display())))?;
    let at = |span: Option<Range<usize>>, what: String| {
        let line = span.map(|span| {
            let before = text.get(..span.start).unwrap_or_default();
            format!("line {}: ", before.matches('\n').count() + 1)
        });
        let line = line.unwrap_or_default();
        Problem::usage(format!("{}: {line}{what}", path.display()))
            .hint("`turnkeep help chat` shows what such a file looks like")
    };
    let file: File =
        toml::from_str(&text).map_err(|error| at(error.span(), error.message().to_owned()))?;
    if file.tool.is_empty() {
        return Err(at(None, "no [[tool]] stands in it".into()));
    }
    let directory = path.parent().unwrap_or(Path::new("."));
    let mut names = BTreeSet::new();
    let mut tools = Vec::new();
    for entry in file.tool {
        let span = entry.name.span();
        let tool = entry
            .read(directory, here)
            .map_err(|(span, what)| at(Some(span), what))?;
        if !names.insert(tool.0.name.clone()) {
            let what = format!("a second tool {:?}: give it another name", tool.0.name);
            return Err(at(Some(span), what));
        }
        tools.push(tool);
    }
    Ok(tools)
}

type Refused = (Range<usize>, String);

impl Entry {
    fn read(self, directory: &Path, here: &Path) -> Result<(Tool, Command), Refused> {
        let name = self.name.get_ref();
        let fits = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
        if name.is_empty() || name.len() > 64 || !name.chars().all(fits) {
            let what = format!("the name {name:?} is not 1 to 64 letters, digits, _ and -");
            return Err((self.name.span(), what));
        }
        let span = self.command.span();
        let words = match self.command.into_inner() {
            Words::List(words) => words,
            Words::Line(line) => shell_words::split(&line)
                .map_err(|error| (span.clone(), format!("the command: {error}")))?,
        };
        if words.first().is_none_or(String::is_empty) {
            return Err((span, "the command is empty: name a program".into()));
        }
        let schema = match self.parameters {
            None => RawJson::parse(r#"{"type":"object","properties":{}}"#),
            Some(table) => RawJson::of(table.get_ref()),
        };
        let span = self.name.span();
        let schema = schema.map_err(|error| (span, format!("the parameters: {error}")))?;
        let limit = match &self.time_limit {
            Some(limit) if *limit.get_ref() == 0 => {
                let what = "the time limit is 0: give seconds, or leave it out";
                return Err((limit.span(), what.into()));
            }
            Some(limit) => *limit.get_ref(),
            None => TIME_LIMIT,
        };
        let cwd = match self.cwd {
            None => here.to_owned(),
            Some(cwd) => {
                let path = directory.join(cwd.get_ref());
                if !path.is_dir() {
                    let what = format!("{} is no directory", path.display());
                    return Err((cwd.span(), what));
                }
                path
            }
        };
        let tool =
            Tool::function(name, self.description, schema).time_limit(Duration::from_secs(limit));
        let tool = match self.delivery {
            Delivery::Inline => tool,
            Delivery::Deferred => tool.deferred(),
        };
        let env = self.env.into_iter().collect();
        Ok((tool, Command { words, cwd, env }))
    }
}

#[cfg(test)]
mod tests {
    use turnkeep_tokio::ToolDelivery;

    use super::*;

    fn read_text(text: &str) -> Result<Vec<(Tool, Command)>, String> {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("tools.toml");
        fs::write(&path, text).unwrap();
        let place = format!("{}: ", path.display());
        read(&path, Path::new(".")).map_err(|problem| problem.what.replace(&place, ""))
    }

    #[test]
    fn a_tool_says_what_it_is_and_the_rest_has_defaults() {
        let tools = read_text(
            r#"
            [[tool]]
            name = "date"
            description = "Tells the date."
            command = ["date", "-u"]

            [[tool]]
            name = "build"
            description = "Builds."
            command = "sh -c 'make 2>&1'"
            delivery = "deferred"
            time_limit = 5
            env = { A = "b" }
            parameters = { type = "object", properties = { target = { type = "string" } } }
            "#,
        );
        let tools = tools.unwrap();
        let [(date, utc), (build, make)] = &tools[..] else {
            panic!("{tools:?}");
        };
        assert_eq!(
            (date.delivery(), build.delivery()),
            (ToolDelivery::Inline, ToolDelivery::Deferred)
        );
        assert_eq!(date.time_limit, Some(Duration::from_secs(600)));
        assert_eq!(build.time_limit, Some(Duration::from_secs(5)));
        assert_eq!(utc.words, ["date", "-u"]);
        assert_eq!(make.words, ["sh", "-c", "make 2>&1"]);
        assert_eq!(make.env, [("A".to_owned(), "b".to_owned())]);
        assert_eq!(
            build.input_schema.get(),
            r#"{"properties":{"target":{"type":"string"}},"type":"object"}"#
        );
    }

    #[test]
    fn the_example_is_one() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/tools.toml");
        let tools = read(&path, Path::new(".")).unwrap();
        let deliveries = tools.iter().map(|(tool, _)| tool.delivery());
        assert!(deliveries.eq([ToolDelivery::Inline, ToolDelivery::Deferred]));
    }

    #[test]
    fn what_is_wrong_is_told_with_its_line() {
        let of = |text: &str| {
            read_text(&format!(
                "[[tool]]\nname = \"a\"\ndescription = \"\"\n{text}"
            ))
            .unwrap_err()
        };
        assert_eq!(read_text("").unwrap_err(), "no [[tool]] stands in it");
        assert!(
            of("command = [").starts_with("line 4: "),
            "{}",
            of("command = [")
        );
        let unknown = of("command = [\"x\"]\ndelivry = \"deferred\"");
        assert!(
            unknown.starts_with("line 5: unknown field `delivry`, expected one of"),
            "{unknown}"
        );
        let missing = of("");
        assert!(missing.contains("missing field `command`"), "{missing}");
        assert_eq!(
            of("command = []"),
            "line 4: the command is empty: name a program"
        );
        let words = of("command = 7");
        assert!(
            words.starts_with("line 4: ") && words.contains("a list of words"),
            "{words}"
        );
        assert_eq!(
            of("command = \"a 'b\""),
            "line 4: the command: missing closing quote"
        );
        assert_eq!(
            of("command = \"x\"\ntime_limit = 0"),
            "line 5: the time limit is 0: give seconds, or leave it out"
        );
        assert!(of("command = \"x\"\ncwd = \"no/such\"").ends_with("no/such is no directory"));
        let twice =
            of("command = \"x\"\n\n[[tool]]\nname = \"a\"\ndescription = \"\"\ncommand = \"y\"");
        assert_eq!(twice, "line 7: a second tool \"a\": give it another name");
        let name =
            read_text("[[tool]]\nname = \"a b\"\ndescription = \"\"\ncommand = \"x\"").unwrap_err();
        assert_eq!(
            name,
            "line 2: the name \"a b\" is not 1 to 64 letters, digits, _ and -"
        );
    }
}
