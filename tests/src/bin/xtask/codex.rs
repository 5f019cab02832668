//! The real codex, from npm.

use std::{
    env, io,
    path::{Path, PathBuf},
    process::Command,
};

use turnkeep_tests::codex::{VERSIONS, launcher, launcher_variable};

use crate::run::{self, Result, target_dir};

pub(crate) fn run() -> Result {
    for (version, launcher) in launchers()? {
        println!("codex {version}: {}", launcher.display());
    }
    Ok(())
}

/// Returns the launcher of every version, installed where it was missing. One that the environment names is taken.
pub(crate) fn launchers() -> Result<Vec<(&'static str, PathBuf)>> {
    VERSIONS
        .into_iter()
        .map(|version| Ok((version, installed(version)?)))
        .collect()
}

/// Returns the launcher of any version, installed where it was missing.
pub(crate) fn launcher_of(version: &str) -> Result<PathBuf> {
    installed(version)
}

fn installed(version: &str) -> Result<PathBuf> {
    let variable = launcher_variable(version);
    if let Some(path) = env::var_os(&variable) {
        // The tests run in another directory than we do.
        let path =
            std::path::absolute(path).map_err(|error| format!("{variable} is no path: {error}"))?;
        check(&path, version).map_err(|error| format!("{variable} is wrong: {error}"))?;
        return Ok(path);
    }
    let target = target_dir()?;
    let launcher = launcher(&target, version);
    // An interrupted install leaves a launcher that does not run, so being there is not enough.
    if check(&launcher, version).is_err() {
        install(&target, version)?;
        check(&launcher, version)?;
    }
    Ok(launcher)
}

fn install(target: &Path, version: &str) -> Result {
    let package = format!("@openai/codex@{version}");
    eprintln!("xtask: installing {package} (about 400 MB, once)");
    let status = Command::new("npm")
        .args([
            "install",
            "--no-audit",
            "--no-fund",
            "--loglevel=error",
            "--prefix",
        ])
        .arg(target.join(format!("codex-{version}")))
        .arg(&package)
        // What it says ("added 2 packages") would come between our own lines.
        .stdout(io::stderr())
        .status();
    match status {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!(
            "npm could not install {package} ({status}); its messages are above"
        )),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Err(format!(
            "npm is not on PATH, and {package} comes from npm: install Node.js, or set {} to a launcher",
            launcher_variable(version)
        )),
        Err(error) => Err(format!("npm does not start: {error}")),
    }
}

fn check(launcher: &Path, version: &str) -> Result {
    let (_, said) = run::output(Command::new(launcher).arg("--version"))?;
    match said.trim() == format!("codex-cli {version}") {
        true => Ok(()),
        false => Err(format!(
            "{} is not codex {version}; it says: {}",
            launcher.display(),
            said.trim()
        )),
    }
}
