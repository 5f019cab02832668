//! What is answered without the script.

use serde_json::Value;

use crate::fake::template::Vars;

/// What a client asks for, as it is to be told back.
pub(super) fn wishes(params: &Value) -> Vars {
    let text = |value: &Value, or: &str| Value::from(value.as_str().unwrap_or(or)).to_string();
    let policy = match &params["approvalPolicy"] {
        Value::Null => "\"on-request\"".to_owned(),
        policy => policy.to_string(),
    };
    let vars = [
        ("client", text(&params["clientInfo"]["name"], "client")),
        ("version", text(&params["clientInfo"]["version"], "0")),
        ("cwd", text(&params["cwd"], "/w")),
        ("model", text(&params["model"], "mock-model")),
        ("provider", text(&params["modelProvider"], "mock")),
        ("mark", params["threadSource"].to_string()),
        (
            "ephemeral",
            params["ephemeral"].as_bool().unwrap_or(false).to_string(),
        ),
        ("policy", policy),
        (
            "sandbox",
            crate::fake::sandbox(&params["sandbox"]).to_owned(),
        ),
    ];
    vars.into_iter()
        .map(|(name, value)| (name.to_owned(), value))
        .collect()
}

pub(super) const INITIALIZE: &str = r#"{"id":"$id","result":{"userAgent":"${client}/0.171.0 (Debian 12.0.0; x86_64) xterm (${client}; ${version})","codexHome":"/codex-home","platformFamily":"unix","platformOs":"linux"}}"#;

macro_rules! thread {
    () => {
        r#"{"id":"$thread","environments":[{"environmentId":"local","cwd":"$cwd","runtimeWorkspaceRoots":["$cwd"]}],"extra":null,"sessionId":"$thread","forkedFromId":null,"attachedToThreadId":null,"parentThreadId":null,"preview":"","ephemeral":"$ephemeral","section":null,"sectionEnteredAt":null,"projectId":null,"historyMode":"paginated","modelProvider":"$provider","model":"$model","reasoningEffort":null,"createdAt":1795961833,"updatedAt":1795961833,"recencyAt":1795961833,"status":{"type":"idle"},"path":"/codex-home/sessions/rollout-${thread}.jsonl","cwd":"$cwd","cliVersion":"0.171.0","originator":"fake","source":"vscode","canAcceptDirectInput":true,"threadSource":"$mark","agentNickname":null,"agentRole":null,"gitInfo":null,"name":null,"daybreakEnabled":null,"turns":[]}"#
    };
}

macro_rules! session {
    () => {
        r#""model":"$model","modelProvider":"$provider","serviceTier":null,"disabledPluginIds":[],"cwd":"$cwd","runtimeWorkspaceRoots":["$cwd"],"instructionSources":[],"approvalPolicy":"$policy","approvalsReviewer":"user","sandbox":"$sandbox","activePermissionProfile":null,"reasoningEffort":null"#
    };
}

pub(super) const THREAD_START: &str = concat!(
    r#"{"id":"$id","result":{"thread":"#,
    thread!(),
    ",",
    session!(),
    r#","multiAgentMode":"explicitRequestOnly"}}"#,
    "\n",
    r#"{"method":"thread/started","params":{"thread":"#,
    thread!(),
    r#"},"emittedAtMs":1795961833616}"#
);

pub(super) const THREAD_RESUME: &str = concat!(
    r#"{"id":"$id","result":{"thread":"#,
    thread!(),
    ",",
    session!(),
    r#","collaborationMode":{"mode":"default","settings":{"model":"$model","reasoning_effort":null,"developer_instructions":null}},"multiAgentMode":"explicitRequestOnly","initialTurnsPage":null,"turnsBackwardsCursor":null,"itemsBackwardsCursor":null}}"#
);

pub(super) const THREAD_READ: &str = concat!(
    r#"{"id":"$id","result":{"thread":"#,
    thread!(),
    r#","readState":{"firstUnread":null,"revision":"initial:${thread}"}}}"#
);
