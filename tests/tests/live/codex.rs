//! The real server, a home for it and a model behind it.

use serde_json::Value;
use turnkeep_core::RawJson;
use turnkeep_runtime::{
    ApprovalPolicy, ChildConfig, ClientConfig, Conversation, Sandbox, Settings,
};
use turnkeep_tests::{
    Client,
    codex::{self, CodexHome},
    model::Model,
    recording::Recording,
    session::{Ended, NotStarted, Session},
};

/// A client of the real server.
pub(crate) struct Codex {
    pub(crate) model: Model,
    pub(crate) home: CodexHome,
    pub(crate) session: Session,
    pub(crate) version: &'static str,
}

impl Codex {
    pub(crate) async fn start(version: &'static str, model: Model) -> Self {
        let home = CodexHome::new(&model);
        Self::start_in(version, model, home, |config| config).await
    }

    pub(crate) async fn start_in(
        version: &'static str,
        model: Model,
        home: CodexHome,
        change: impl FnOnce(ClientConfig) -> ClientConfig,
    ) -> Self {
        let session = Session::start_with(child(version, &home), change).await;
        Codex {
            model,
            home,
            session,
            version,
        }
    }

    pub(crate) fn client(&self) -> &Client {
        &self.session.client
    }

    /// Settings that ask nobody, in the home's working directory.
    pub(crate) fn settings(&self) -> Settings {
        settings(&self.home)
    }

    pub(crate) async fn open(&self, key: &str, settings: Settings) -> Conversation {
        let opening = self.client().conversation(key).settings(settings);
        opening.await.expect("the conversation opens")
    }

    /// A conversation with plain settings.
    pub(crate) async fn conversation(&self, key: &str) -> Conversation {
        self.open(key, self.settings()).await
    }

    /// Ends the session with all its checks.
    pub(crate) async fn end(self) -> Ended {
        let Codex {
            home,
            session,
            version,
            model,
        } = self;
        let ended = session.end().await;
        check_config(&ended.recording, version);
        drop((home, model));
        ended
    }
}

pub(crate) fn settings(home: &CodexHome) -> Settings {
    Settings::new()
        .cwd(home.cwd().display().to_string())
        .approval_policy(ApprovalPolicy::Never)
        .sandbox(Sandbox::ReadOnly)
}

/// The launcher of a version, as a child.
pub(crate) fn child(version: &str, home: &CodexHome) -> ChildConfig {
    child_with(version, home, ["app-server"])
}

/// The launcher of a version with other arguments.
pub(crate) fn child_with<const N: usize>(
    version: &str,
    home: &CodexHome,
    args: [&str; N],
) -> ChildConfig {
    let child = ChildConfig::program(codex::codex(version))
        .args(args)
        .cwd(home.cwd())
        .codex_home(home.path());
    let [_, (name, value)] = home.env();
    child.env(name, value)
}

pub(crate) fn json(value: Value) -> RawJson {
    RawJson::parse(&value.to_string()).expect("a value is JSON")
}

/// Every test runs with the version it says.
fn check_config(recording: &Recording, version: &str) {
    let agent = recording
        .received()
        .iter()
        .find_map(|frame| frame["result"]["userAgent"].as_str().map(str::to_owned));
    let agent = agent.expect("initialize was answered");
    assert!(
        agent.starts_with(&format!("turnkeep/{version} ")),
        "{agent}"
    );
}

pub(crate) async fn not_started(
    child: ChildConfig,
    change: impl FnOnce(ClientConfig) -> ClientConfig,
) -> NotStarted {
    match Session::try_start(child, change).await {
        Ok(_) => panic!("the client starts"),
        Err(failed) => {
            assert_eq!(failed.left, [], "a failed start leaves nothing");
            *failed
        }
    }
}
