//! Where the real app-server is, and a home directory that makes it talk to our own [`Model`].

use std::{
    env, fs,
    path::{Path, PathBuf},
};

use tempfile::TempDir;

use crate::{account, model::Model};

/// The versions of codex the live suite runs against.
pub const VERSIONS: [&str; 2] = ["0.163.0", "0.171.0"];

/// Returns the launcher of this version of codex: from the environment ([`launcher_variable`]), else from the
/// workspace's target directory.
///
/// # Panics
///
/// If there is none. `cargo xtask codex` installs it.
pub fn codex(version: &str) -> PathBuf {
    let variable = launcher_variable(version);
    let launcher = match env::var_os(&variable) {
        Some(path) => PathBuf::from(path),
        None => launcher(&target_dir(), version),
    };
    assert!(
        launcher.exists(),
        "codex {version} is not at {}: run `cargo xtask codex`, or set {variable} to its launcher",
        launcher.display(),
    );
    launcher
}

/// The environment variable that names the launcher of a version, such as `TURNKEEP_CODEX_0_171_0`.
pub fn launcher_variable(version: &str) -> String {
    format!("TURNKEEP_CODEX_{}", version.replace(['.', '-'], "_"))
}

/// The place npm gives the launcher when it installs to `target/codex-<version>`.
pub fn launcher(target_dir: &Path, version: &str) -> PathBuf {
    target_dir.join(format!("codex-{version}/node_modules/.bin/codex"))
}

/// The workspace's target directory.
pub fn target_dir() -> PathBuf {
    match env::var_os("CARGO_TARGET_DIR") {
        Some(dir) => PathBuf::from(dir),
        None => workspace_dir().join("target"),
    }
}

/// The top of the workspace.
pub fn workspace_dir() -> PathBuf {
    let tests = Path::new(env!("CARGO_MANIFEST_DIR"));
    tests
        .parent()
        .expect("tests/ lies in the workspace")
        .to_owned()
}

/// Whether the long run was asked for: `cargo xtask live --full`. A test may do more rounds then.
pub fn full_run() -> bool {
    env::var_os("TURNKEEP_LIVE_FULL").is_some()
}

/// A `CODEX_HOME` and an empty working directory, removed on drop.
#[derive(Debug)]
pub struct CodexHome {
    dir: TempDir,
}

impl CodexHome {
    /// Makes a home whose only model is `model`.
    pub fn new(model: &Model) -> Self {
        Self::with_config(model, "")
    }

    /// As [`new`](Self::new), with more lines of `config.toml`: top-level keys first, tables after them.
    ///
    /// `[analytics]` and `[model_providers.mock]` are taken.
    pub fn with_config(model: &Model, extra: &str) -> Self {
        Self::of_config(&config(&model.base_url(), extra))
    }

    /// As [`new`](Self::new), with a model that is asked with the tokens of an account ([`crate::account`]).
    pub fn of_account(model: &Model) -> Self {
        let config = config(&model.base_url(), &account::config(model));
        Self::of_config(&(config + "requires_openai_auth = true\n"))
    }

    fn of_config(config: &str) -> Self {
        let dir = tempfile::Builder::new().prefix("turnkeep-codex-").tempdir();
        let home = CodexHome {
            dir: dir.expect("a temporary directory can be made"),
        };
        for part in [home.path(), home.cwd()] {
            fs::create_dir(part).expect("the temporary directory is ours");
        }
        fs::write(home.path().join("config.toml"), config)
            .expect("the temporary directory is ours");
        home
    }

    /// The directory for `CODEX_HOME`.
    pub fn path(&self) -> PathBuf {
        self.dir.path().join("home")
    }

    /// The environment to start codex with: `CODEX_HOME`, and `HOME` so that it leaves the user's files alone.
    ///
    /// At `thread/start` codex runs a login shell, which would read `.bashrc`, in a process group of its own.
    pub fn env(&self) -> [(&'static str, PathBuf); 2] {
        [
            ("CODEX_HOME", self.path()),
            ("HOME", self.dir.path().to_owned()),
        ]
    }

    /// The directory for the `cwd` of threads.
    pub fn cwd(&self) -> PathBuf {
        self.dir.path().join("workspace")
    }
}

fn config(base_url: &str, extra: &str) -> String {
    format!(
        r#"model = "mock-model"
model_provider = "mock"
check_for_update_on_startup = false
{extra}
[analytics]
enabled = false
[model_providers.mock]
name = "mock"
base_url = "{base_url}"
wire_api = "responses"
request_max_retries = 0
stream_max_retries = 0
supports_websockets = false
"#
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model;

    #[test]
    fn variable_of_a_version_is_a_plain_name() {
        assert_eq!(launcher_variable("0.171.0"), "TURNKEEP_CODEX_0_171_0");
        assert_eq!(
            launcher_variable("0.172.0-alpha.1"),
            "TURNKEEP_CODEX_0_172_0_alpha_1"
        );
    }

    #[test]
    fn home_is_removed_with_its_value() {
        let model = Model::queued([model::text("hello")]);
        let home = CodexHome::with_config(&model, "[features]\nx = true");
        let path = home.path();
        let config = fs::read_to_string(path.join("config.toml")).unwrap();
        assert!(
            config.contains(&format!("http://127.0.0.1:{}/v1", model.port())),
            "{config}"
        );
        assert!(
            config.find("[features]") < config.find("[analytics]"),
            "{config}"
        );
        assert!(home.cwd().is_dir());
        drop(home);
        assert!(!path.exists());
    }
}
