//! The types of the protocol, made of the schema that codex writes.

mod rust;
mod table;

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use clap::Parser;
use turnkeep_protocol::schema::{Model, Release, Surface};
use turnkeep_tests::codex::workspace_dir;

use crate::{
    codex,
    run::{self, Result, target_dir},
};

/// The file with all definitions.
const SCHEMA: &str = "codex_app_server_protocol.schemas.json";

/// Makes the types of the protocol of the schemas of installed codex versions, or compares one with
/// them.
#[derive(Clone, Debug, Default, Parser)]
pub(crate) struct Args {
    /// Tells how this version differs from the types, instead of making them. It must be installed
    /// under target/ or named by the environment.
    #[arg(long, value_name = "VERSION")]
    drift: Option<String>,

    /// A version to make the types of; may be given several times, from the oldest to the newest. The
    /// versions of the live suite where left out.
    #[arg(long, value_name = "VERSION")]
    codex: Vec<String>,

    /// Writes nothing: fails where the files differ from what they would be.
    #[arg(long)]
    check: bool,
}

impl Args {
    /// Compares only.
    pub(crate) fn check() -> Self {
        Self {
            check: true,
            ..Self::default()
        }
    }
}

pub(crate) fn run(args: &Args) -> Result {
    if let Some(version) = &args.drift {
        return drift(version);
    }
    let launchers = launchers(&args.codex)?;
    let mut releases = Vec::new();
    for (version, launcher) in &launchers {
        releases.push(release(version, launcher)?);
    }
    let files = files(&releases)?;
    let mut stale = Vec::new();
    for (path, text) in &files {
        let known = fs::read_to_string(path).unwrap_or_default();
        if known == *text {
            continue;
        }
        if args.check {
            stale.push(path.display().to_string());
        } else {
            fs::write(path, text).map_err(|error| format!("{}: {error}", path.display()))?;
            println!("wrote {}", path.display());
        }
    }
    // Of every version that is at hand, what differs from the types.
    for release in &releases {
        let drift = Surface::of(&releases).drift(&release.version, &release.experimental);
        println!(
            "codex {}: {} differences from the types",
            release.version,
            drift.differences.len()
        );
    }
    match stale.as_slice() {
        [] => {
            println!("the types are those of the schemas");
            Ok(())
        }
        _ => Err(format!(
            "these are not what the schemas give: {}\nMake them: cargo xtask protocol",
            stale.join(", ")
        )),
    }
}

fn launchers(versions: &[String]) -> Result<Vec<(String, PathBuf)>> {
    if versions.is_empty() {
        let known = codex::launchers()?;
        return Ok(known
            .into_iter()
            .map(|(v, path)| (v.to_owned(), path))
            .collect());
    }
    let at = |version: &String| Ok((version.clone(), codex::launcher_of(version)?));
    versions.iter().map(at).collect()
}

fn drift(version: &str) -> Result {
    let release = release(version, &codex::launcher_of(version)?)?;
    let drift = Surface::built_in().drift(version, &release.experimental);
    println!(
        "codex {version} against the types of codex {}:",
        drift.compared_with
    );
    drift
        .differences
        .iter()
        .for_each(|difference| println!("{difference}"));
    match drift.differences.len() {
        0 => {
            println!("no difference");
            Ok(())
        }
        some => Err(format!("{some} differences")),
    }
}

fn release(version: &str, launcher: &Path) -> Result<Release> {
    Ok(Release {
        version: version.to_owned(),
        stable: schema(version, launcher, false)?,
        experimental: schema(version, launcher, true)?,
    })
}

fn schema(version: &str, launcher: &Path, experimental: bool) -> Result<Model> {
    let stage = if experimental {
        "experimental"
    } else {
        "stable"
    };
    let dir = target_dir()?.join(format!("schema-{version}-{stage}"));
    let mut command = Command::new(launcher);
    command
        .args(["app-server", "generate-json-schema", "--out"])
        .arg(&dir);
    if experimental {
        command.arg("--experimental");
    }
    run::run(&mut command)?;
    let path = dir.join(SCHEMA);
    let text = fs::read_to_string(&path).map_err(|error| format!("{}: {error}", path.display()))?;
    Model::read(&text).map_err(|error| format!("codex {version}, {stage}: {error}"))
}

/// The files that the releases give.
fn files(releases: &[Release]) -> Result<Vec<(PathBuf, String)>> {
    let mut model = Model::default();
    let mut stable = BTreeSet::new();
    for release in releases {
        for of in [&release.stable, &release.experimental] {
            if model == Model::default() {
                model = of.clone();
            } else {
                model.merge(of).map_err(|error| error.to_string())?;
            }
        }
        stable.extend(release.stable.requests.keys().cloned());
    }
    let sources = rust::write(&model, &stable)?;
    let surface = Surface::of(releases);
    let dir = workspace_dir().join("core/protocol");
    let generated = dir.join("src/generated");
    Ok(vec![
        (generated.join("types.rs"), sources.types),
        (generated.join("requests.rs"), sources.requests),
        (generated.join("messages.rs"), sources.messages),
        (generated.join("surface.txt"), surface.to_string()),
        (dir.join("PROTOCOL.md"), table::write(&model, &surface)),
    ])
}
