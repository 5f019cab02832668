//! How a conversation is held: its settings and its tools.

use alloc::{string::String, vec::Vec};
use core::time::Duration;

use serde::{Deserialize, Serialize};

use crate::{RawJson, durable::is_default, id::is_clean, json::JsonKind, selection::Selection};

/// How a conversation is held.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
#[non_exhaustive]
pub struct Settings {
    /// The model, else the server's default (`thread/start.model`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// The provider of the model (`thread/start.modelProvider`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model_provider: Option<String>,
    /// The reasoning effort, sent with each turn (`turn/start.effort`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub effort: Option<String>,
    /// The personality (`thread/start.personality`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub personality: Option<String>,
    /// The working directory (`thread/start.cwd`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cwd: Option<String>,
    /// When the server asks before it acts (`thread/start.approvalPolicy`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub approval_policy: Option<ApprovalPolicy>,
    /// What commands may touch (`thread/start.sandbox`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sandbox: Option<Sandbox>,
    /// Replaces the base instructions (`thread/start.baseInstructions`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub base_instructions: Option<String>,
    /// Adds instructions (`thread/start.developerInstructions`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub developer_instructions: Option<String>,
    /// The name that `materialise` gives the thread (`thread/name/set`), else the conversation's key.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// The name of the application's service (`thread/start.serviceName`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub service_name: Option<String>,
    /// Configuration overrides, an object (`thread/start.config`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub config: Option<RawJson>,
    /// The tools of the application (`thread/start.dynamicTools`).
    pub tools: Vec<Tool>,
    /// Whether the server keeps no history (`thread/start.ephemeral`).
    pub ephemeral: bool,
    /// Who answers the server's questions.
    pub questions: Questions,
    /// Who hears of the sub-agents that its agent begins, and answers their questions.
    #[serde(skip_serializing_if = "is_default")]
    pub children: Children,
    /// Which models are wanted.
    #[serde(skip_serializing_if = "is_default")]
    pub models: Models,
    /// What follows where a thread is not as it was asked.
    #[serde(skip_serializing_if = "is_default")]
    pub differences: Differences,
    /// A label that groups conversations to clean up together.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub workspace: Option<String>,
    /// How boxes become the text of a message.
    #[serde(skip_serializing_if = "is_default")]
    pub rendering: Rendering,
    /// When what arrives during a turn is sent into it.
    #[serde(skip_serializing_if = "is_default")]
    pub steer: SteerWhen,
    /// Whether rounds begin by themselves.
    #[serde(skip_serializing_if = "is_default")]
    pub auto_begin: AutoBegin,
    /// Whether user input needs a binding, else as the client's configuration says.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub authorization: Option<Authorization>,
}

macro_rules! setter {
    ($($(#[$doc:meta])* $name:ident: $type:ty,)*) => {
        $($(#[$doc])* #[must_use] pub fn $name(mut self, value: impl Into<$type>) -> Self {
            self.$name = Some(value.into());
            self
        })*
    };
}

impl Settings {
    /// The server's defaults, no tools, questions declined.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    setter! {
        /// Sets the model.
        model: String,
        /// Sets the provider of the model.
        model_provider: String,
        /// Sets the reasoning effort.
        effort: String,
        /// Sets the personality.
        personality: String,
        /// Sets the working directory.
        cwd: String,
        /// Sets the approval policy.
        approval_policy: ApprovalPolicy,
        /// Sets the sandbox.
        sandbox: Sandbox,
        /// Replaces the base instructions.
        base_instructions: String,
        /// Adds developer instructions.
        developer_instructions: String,
        /// Sets the name that `materialise` gives the thread.
        name: String,
        /// Sets the service name.
        service_name: String,
        /// Sets configuration overrides.
        config: RawJson,
        /// Sets the workspace.
        workspace: String,
        /// Says whether user input needs a binding, whatever the client's configuration says.
        authorization: Authorization,
    }

    /// Declares a tool.
    #[must_use]
    pub fn tool(mut self, tool: Tool) -> Self {
        self.tools.push(tool);
        self
    }

    /// Says that the server shall keep no history.
    #[must_use]
    pub fn ephemeral(mut self, ephemeral: bool) -> Self {
        self.ephemeral = ephemeral;
        self
    }

    /// Says who answers questions.
    #[must_use]
    pub fn questions(mut self, questions: Questions) -> Self {
        self.questions = questions;
        self
    }

    /// Says who hears of sub-agents.
    #[must_use]
    pub fn children(mut self, children: Children) -> Self {
        self.children = children;
        self
    }

    /// Says what follows where a thread is not as it was asked.
    #[must_use]
    pub fn differences(mut self, differences: Differences) -> Self {
        self.differences = differences;
        self
    }

    /// Says which models are wanted.
    #[must_use]
    pub fn models(mut self, models: Models) -> Self {
        self.models = models;
        self
    }

    /// Says how boxes become the text of a message.
    #[must_use]
    pub fn rendering(mut self, rendering: Rendering) -> Self {
        self.rendering = rendering;
        self
    }

    /// Says when what arrives during a turn is sent into it.
    #[must_use]
    pub fn steer(mut self, steer: SteerWhen) -> Self {
        self.steer = steer;
        self
    }

    /// Says whether rounds begin by themselves.
    #[must_use]
    pub fn auto_begin(mut self, auto_begin: AutoBegin) -> Self {
        self.auto_begin = auto_begin;
        self
    }

    /// The model, effort and personality that are asked.
    #[must_use]
    pub fn selection(&self) -> Selection {
        Selection {
            model: self.model.clone(),
            effort: self.effort.clone(),
            personality: self.personality.clone(),
        }
    }

    /// Whether a thread that was made with these serves the others too, just as it is: they differ in
    /// nothing but what a message carries and what we do ourselves.
    #[must_use]
    pub fn same_thread(&self, other: &Self) -> bool {
        let like = |settings: &Self| Self {
            model: None,
            effort: None,
            personality: None,
            questions: Questions::default(),
            children: Children::default(),
            name: None,
            models: Models::default(),
            differences: Differences::default(),
            workspace: None,
            rendering: Rendering::default(),
            steer: SteerWhen::default(),
            auto_begin: AutoBegin::default(),
            authorization: None,
            ..settings.clone()
        };
        like(self) == like(other)
    }

    /// Whether a thread that was made with these serves the others too once it is let go and resumed:
    /// beside that which [`same_thread`](Self::same_thread) allows they differ in the working
    /// directory, the approval policy, the sandbox and the base instructions, which the others name.
    ///
    /// A server that has let a thread go takes these from the resume, and no others: it shows developer
    /// instructions to the model only after a compaction, has the overrides in `config` partly ignored,
    /// and refuses another provider or ignores it. What is named no more it keeps. A thread without a
    /// history cannot be resumed.
    #[must_use]
    pub fn same_resumed(&self, other: &Self) -> bool {
        let Self {
            cwd,
            approval_policy,
            sandbox,
            base_instructions,
            ..
        } = other.clone();
        let named = (self.cwd.is_none() || cwd.is_some())
            && (self.approval_policy.is_none() || approval_policy.is_some())
            && (self.sandbox.is_none() || sandbox.is_some())
            && (self.base_instructions.is_none() || base_instructions.is_some());
        let resumed = Self {
            cwd,
            approval_policy,
            sandbox,
            base_instructions,
            ..self.clone()
        };
        named && !self.ephemeral && resumed.same_thread(other)
    }

    /// Checks what types cannot tell.
    ///
    /// # Errors
    ///
    /// See [`SettingsError`].
    pub fn validate(&self) -> Result<(), SettingsError> {
        let texts = [
            ("model", &self.model),
            ("model_provider", &self.model_provider),
            ("effort", &self.effort),
            ("personality", &self.personality),
            ("cwd", &self.cwd),
            ("name", &self.name),
            ("service_name", &self.service_name),
            ("workspace", &self.workspace),
        ];
        for (field, text) in texts {
            if text.as_ref().is_some_and(|t| !is_clean(t)) {
                return Err(SettingsError::Text { field });
            }
        }
        if self
            .config
            .as_ref()
            .is_some_and(|c| c.kind() != JsonKind::Object)
        {
            return Err(SettingsError::Config);
        }
        for (at, tool) in self.tools.iter().enumerate() {
            if !is_clean(&tool.name) {
                return Err(SettingsError::ToolName {
                    name: tool.name.clone(),
                });
            }
            if self.tools[..at].iter().any(|other| other.name == tool.name) {
                return Err(SettingsError::ToolTwice {
                    name: tool.name.clone(),
                });
            }
            if tool.input_schema.kind() != JsonKind::Object {
                return Err(SettingsError::ToolSchema {
                    name: tool.name.clone(),
                });
            }
            let message = tool.kind == ToolKind::Message;
            if message != (tool.delivery() == ToolDelivery::Message) {
                return Err(SettingsError::ToolDelivery {
                    name: tool.name.clone(),
                });
            }
            if tool.time_limit == Some(Duration::ZERO) {
                return Err(SettingsError::ToolTimeLimit {
                    name: tool.name.clone(),
                });
            }
        }
        Ok(())
    }
}

/// Why settings are refused.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, thiserror::Error)]
#[non_exhaustive]
pub enum SettingsError {
    /// A text is empty or has white space at its ends.
    #[error("{field} is empty or has white space at its ends")]
    Text {
        /// The field.
        field: &'static str,
    },
    /// The configuration overrides are no object.
    #[error("config is not a JSON object")]
    Config,
    /// A tool's name is empty or has white space at its ends.
    #[error("tool name {name:?} is empty or has white space at its ends")]
    ToolName {
        /// The name.
        name: String,
    },
    /// Two tools have the same name.
    #[error("tool {name:?} is declared twice")]
    ToolTwice {
        /// The name.
        name: String,
    },
    /// A tool's schema is no object.
    #[error("the input schema of tool {name:?} is not a JSON object")]
    ToolSchema {
        /// The name.
        name: String,
    },
    /// A tool's delivery is not one of its kind: that of messages belongs to the kind of messages,
    /// and to no other.
    #[error("the delivery of tool {name:?} is not one of its kind")]
    ToolDelivery {
        /// The name.
        name: String,
    },
    /// A tool's time limit is zero.
    #[error("the time limit of tool {name:?} is zero")]
    ToolTimeLimit {
        /// The name.
        name: String,
    },
}

/// When the server asks before it acts (`AskForApproval`).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
#[serde(rename_all = "snake_case")]
pub enum ApprovalPolicy {
    /// Before all but commands known to be safe.
    Untrusted,
    /// When the model asks to.
    OnRequest,
    /// Never.
    Never,
    /// A policy in the server's own words.
    Other(RawJson),
}

impl ApprovalPolicy {
    pub(crate) fn wire(&self) -> RawJsonOr {
        match self {
            Self::Untrusted => RawJsonOr::Text("untrusted"),
            Self::OnRequest => RawJsonOr::Text("on-request"),
            Self::Never => RawJsonOr::Text("never"),
            Self::Other(raw) => RawJsonOr::Raw(raw.clone()),
        }
    }
}

/// A fixed text or a raw value, on its way to the wire.
#[derive(Clone, Debug)]
pub(crate) enum RawJsonOr {
    Text(&'static str),
    Raw(RawJson),
}

impl Serialize for RawJsonOr {
    fn serialize<S: serde::Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Text(text) => s.serialize_str(text),
            Self::Raw(raw) => raw.serialize(s),
        }
    }
}

/// What commands may touch (`SandboxMode`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
#[serde(rename_all = "snake_case")]
pub enum Sandbox {
    /// Nothing may be written.
    ReadOnly,
    /// The working directory may be written.
    WorkspaceWrite,
    /// Everything.
    DangerFullAccess,
}

impl Sandbox {
    /// The schema's word.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::ReadOnly => "read-only",
            Self::WorkspaceWrite => "workspace-write",
            Self::DangerFullAccess => "danger-full-access",
        }
    }
}

/// Who answers the server's questions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Questions {
    /// They get their negative default, and an event tells.
    #[default]
    Decline,
    /// The application.
    Ask,
}

/// Who hears of the sub-agents of a conversation's agent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Children {
    /// Nobody: their questions get the negative default.
    #[default]
    Decline,
    /// The application: their frames are told of the conversation as they came, and their questions
    /// are asked where [`Questions::Ask`] is set too. Their calls of its tools are offered to it.
    Tell,
}

/// What follows where the server made or resumed a thread with something else than was asked. It is
/// told in any case, before the first message goes out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Differences {
    /// Nothing more.
    #[default]
    Tell,
    /// The round that waits fails before its message goes out. Restarted, it goes on with the thread
    /// as it is.
    Refuse,
}

/// Which models are wanted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Models {
    /// Any. One that the server's list lacks is sent unchecked, which is told where the list was
    /// read: custom providers are not listed.
    #[default]
    Any,
    /// Only such as the server lists (`model/list`).
    Listed,
}

/// How boxes become the text of a message.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Rendering {
    /// A user message is its contents alone, every other box has its header line: what a person who
    /// just sends text expects.
    #[default]
    Plain,
    /// Every box has its header line, and an open one says where the answer will stand.
    Boxed,
}

/// When what arrives during a turn is sent into it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SteerWhen {
    /// At the next stage: when the model acts.
    #[default]
    AtStage,
    /// At once: what arrives makes a stage without actions.
    AtOnce,
}

/// Whether rounds begin by themselves.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AutoBegin {
    /// As soon as a conversation is triggered and nothing holds it.
    #[default]
    On,
    /// Only when the application says so.
    Off,
}

/// Whether user input and a restart need a binding.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Authorization {
    /// They do.
    #[default]
    Needed,
    /// They never do.
    None,
}

/// A tool that the application offers to the model.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct Tool {
    /// Its name, unique in the conversation.
    pub name: String,
    /// What it does, for the model.
    pub description: String,
    /// The JSON schema of its arguments, an object.
    pub input_schema: RawJson,
    /// How its arguments are read.
    pub kind: ToolKind,
    /// How long the application may take; past it the call is answered with a failure.
    pub time_limit: Option<Duration>,
    /// How the model gets the result, where it was said. Absent in the journals of versions that
    /// knew no deliveries: then the kind tells.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    delivery: Option<ToolDelivery>,
}

impl Tool {
    /// A function with a name, a description and the schema of its arguments.
    #[must_use]
    pub fn function(
        name: impl Into<String>,
        description: impl Into<String>,
        input_schema: RawJson,
    ) -> Self {
        Self {
            name: name.into(),
            description: description.into(),
            input_schema,
            kind: ToolKind::Function,
            time_limit: None,
            delivery: None,
        }
    }

    /// Reads the arguments as those of another kind of tool. A tool of kind
    /// [`Message`](ToolKind::Message) has the delivery of this name.
    #[must_use]
    pub fn kind(mut self, kind: ToolKind) -> Self {
        if kind == ToolKind::Message || self.delivery == Some(ToolDelivery::Message) {
            self.delivery = None;
        }
        self.kind = kind;
        self
    }

    /// Lets the model go on before the result is there: it comes later, as a message.
    #[must_use]
    pub fn deferred(mut self) -> Self {
        self.delivery = Some(ToolDelivery::Deferred);
        self
    }

    /// How the model gets the result.
    #[must_use]
    pub fn delivery(&self) -> ToolDelivery {
        match (self.delivery, self.kind) {
            (Some(delivery), _) => delivery,
            (None, ToolKind::Message) => ToolDelivery::Message,
            (None, ToolKind::Function | ToolKind::Router) => ToolDelivery::Inline,
        }
    }

    /// Limits the time of each call.
    #[must_use]
    pub fn time_limit(mut self, limit: Duration) -> Self {
        self.time_limit = Some(limit);
        self
    }
}

/// How the arguments of a call are read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
#[serde(rename_all = "snake_case")]
pub enum ToolKind {
    /// Called as declared.
    #[default]
    Function,
    /// The arguments are exactly `name` (a string) and `arguments`: the inner call counts.
    Router,
    /// The arguments are exactly `message`, a text that is not empty: a message, no call.
    Message,
}

impl ToolKind {
    /// The kind's name in lower case.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Function => "function",
            Self::Router => "router",
            Self::Message => "message",
        }
    }
}

/// How the model gets the result of a call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
#[serde(rename_all = "snake_case")]
pub enum ToolDelivery {
    /// The native call stays open until the application answers; the answer is the result.
    #[default]
    Inline,
    /// The native call is acknowledged; the result comes later, as a box.
    Deferred,
    /// The native call is acknowledged as delivered; there is no result.
    Message,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tool(name: &str) -> Tool {
        Tool::function(name, "", RawJson::parse("{}").unwrap())
    }

    #[test]
    fn what_is_not_said_is_not_written() {
        assert_eq!(
            serde_json::to_string(&Settings::new()).unwrap(),
            r#"{"tools":[],"ephemeral":false,"questions":"decline"}"#
        );
        assert_eq!(
            serde_json::to_string(&tool("say").kind(ToolKind::Message)).unwrap(),
            r#"{"name":"say","description":"","input_schema":{},"kind":"message","time_limit":null}"#
        );
        let all = Settings::new()
            .rendering(Rendering::Boxed)
            .steer(SteerWhen::AtOnce)
            .auto_begin(AutoBegin::Off)
            .authorization(Authorization::None)
            .tool(tool("run").deferred());
        let text = serde_json::to_string(&all).unwrap();
        assert_eq!(
            text,
            concat!(
                r#"{"tools":[{"name":"run","description":"","input_schema":{},"kind":"function","#,
                r#""time_limit":null,"delivery":"deferred"}],"ephemeral":false,"#,
                r#""questions":"decline","rendering":"boxed","steer":"at_once","#,
                r#""auto_begin":"off","authorization":"none"}"#
            )
        );
        assert_eq!(serde_json::from_str::<Settings>(&text).unwrap(), all);
    }

    #[test]
    fn tools_of_old_journals_have_the_delivery_of_their_kind() {
        for (kind, delivery) in [
            ("function", ToolDelivery::Inline),
            ("router", ToolDelivery::Inline),
            ("message", ToolDelivery::Message),
        ] {
            let text = alloc::format!(
                r#"{{"name":"t","description":"","input_schema":{{}},"kind":"{kind}","time_limit":null}}"#
            );
            let old: Tool = serde_json::from_str(&text).unwrap();
            assert_eq!(old.delivery(), delivery);
            assert_eq!(serde_json::to_string(&old).unwrap(), text);
            assert_eq!(Settings::new().tool(old).validate(), Ok(()));
        }
    }

    #[test]
    fn a_kind_changes_the_delivery_with_it() {
        let say = tool("t").deferred().kind(ToolKind::Message);
        assert_eq!(say.delivery(), ToolDelivery::Message);
        assert_eq!(say.kind(ToolKind::Router).delivery(), ToolDelivery::Inline);
        let run = tool("t").deferred().kind(ToolKind::Router);
        assert_eq!(run.delivery(), ToolDelivery::Deferred);
        assert_eq!(Settings::new().tool(run).validate(), Ok(()));
    }

    #[test]
    fn the_delivery_of_messages_belongs_to_their_kind() {
        let refused = Err(SettingsError::ToolDelivery { name: "t".into() });
        let deferred = tool("t").kind(ToolKind::Message).deferred();
        assert_eq!(Settings::new().tool(deferred).validate(), refused);
        for (kind, delivery) in [
            ("function", "message"),
            ("router", "message"),
            ("message", "inline"),
        ] {
            let text = alloc::format!(
                r#"{{"name":"t","description":"","input_schema":{{}},"kind":"{kind}","time_limit":null,"delivery":"{delivery}"}}"#
            );
            let read: Tool = serde_json::from_str(&text).unwrap();
            assert_eq!(Settings::new().tool(read).validate(), refused);
        }
    }

    #[test]
    fn what_we_do_ourselves_needs_no_other_thread() {
        let one = Settings::new();
        let other = Settings::new()
            .rendering(Rendering::Boxed)
            .steer(SteerWhen::AtOnce)
            .auto_begin(AutoBegin::Off)
            .authorization(Authorization::Needed);
        assert!(one.same_thread(&other));
        assert!(!one.same_thread(&other.ephemeral(true)));
    }

    #[test]
    fn what_a_resume_takes_needs_no_other_thread() {
        let bare = || Settings::new().developer_instructions("be slow");
        let named: [fn(Settings, bool) -> Settings; 4] = [
            |s, other| s.cwd(if other { "/v" } else { "/w" }),
            |s, other| {
                s.approval_policy(match other {
                    true => ApprovalPolicy::Never,
                    false => ApprovalPolicy::Untrusted,
                })
            },
            |s, other| {
                s.sandbox(match other {
                    true => Sandbox::ReadOnly,
                    false => Sandbox::WorkspaceWrite,
                })
            },
            |s, other| s.base_instructions(if other { "b" } else { "a" }),
        ];
        for with in named {
            let (one, other) = (with(bare(), false), with(bare(), true));
            assert!(!one.same_thread(&other));
            assert!(one.same_resumed(&other));
            assert!(one.same_resumed(&other.clone().model("m")));
            assert!(bare().same_resumed(&one));
            assert!(!one.same_resumed(&bare()), "it cannot be taken back");
            assert!(
                !one.clone()
                    .ephemeral(true)
                    .same_resumed(&other.ephemeral(true))
            );
        }
        let config = RawJson::parse("{}").unwrap();
        for other in [
            bare().developer_instructions("be kind"),
            bare().config(config),
            bare().model_provider("p"),
            bare().service_name("s"),
            bare().tool(tool("t")),
            bare().ephemeral(true),
        ] {
            assert!(!bare().same_resumed(&other), "{other:?}");
        }
    }
}
