//! The frames of 0.171.0, key order as recorded. `$names` are filled in by [`frame`].

use std::fmt::Write as _;

use serde_json::Value;

use super::state::{Item, Thread, Turn, View};
use crate::fake::template::{self, Vars};

/// Seconds since the Unix epoch at which every demo server says that it started: the demo prints the same each time.
const STARTED: u64 = 1_795_961_833;

/// Wall time in milliseconds.
pub(super) fn wall(now: u64) -> u64 {
    STARTED * 1000 + now
}

/// A JSON string.
pub(super) fn quote(text: &str) -> String {
    Value::from(text).to_string()
}

pub(super) fn or_null(number: Option<u64>) -> String {
    number.map_or_else(|| "null".to_owned(), |number| number.to_string())
}

/// Fills a template with JSON texts.
pub(super) fn frame(template: &str, values: &[(&str, &str)]) -> String {
    let vars: Vars = values
        .iter()
        .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
        .collect();
    template::fill(template, &vars).unwrap_or_else(|name| {
        debug_assert!(false, "`{name}` is not given to {template}");
        String::new()
    })
}

pub(super) fn list(parts: impl IntoIterator<Item = String>) -> String {
    let mut out = String::from("[");
    for (index, part) in parts.into_iter().enumerate() {
        let comma = if index == 0 { "" } else { "," };
        let _ = write!(out, "{comma}{part}");
    }
    out.push(']');
    out
}

pub(super) const INITIALIZE: &str = r#"{"id":"$id","result":{"userAgent":"${client}/0.171.0 (Debian 12.0.0; x86_64) xterm (${client}; ${version})","codexHome":"/codex-home","platformFamily":"unix","platformOs":"linux"}}"#;

/// What follows the answer to `thread/start` and `thread/resume`, from `"model"` on.
pub(super) const SESSION: &str = r#""model":"$model","modelProvider":"mock","serviceTier":null,"disabledPluginIds":[],"cwd":"$cwd","runtimeWorkspaceRoots":["$cwd"],"instructionSources":[],"approvalPolicy":"$policy","approvalsReviewer":"user","sandbox":"$sandbox","activePermissionProfile":null,"reasoningEffort":null"#;

pub(super) const RESUMED: &str = r#""collaborationMode":{"mode":"default","settings":{"model":"$model","reasoning_effort":null,"developer_instructions":null}},"multiAgentMode":"explicitRequestOnly","initialTurnsPage":null,"turnsBackwardsCursor":null,"itemsBackwardsCursor":null"#;

const THREAD: &str = r#"{"id":"$thread","environments":[{"environmentId":"local","cwd":"$cwd","runtimeWorkspaceRoots":["$cwd"]}],"extra":null,"sessionId":"$thread","forkedFromId":null,"attachedToThreadId":null,"parentThreadId":null,"preview":"$preview","ephemeral":"$ephemeral","section":null,"sectionEnteredAt":null,"projectId":null,"historyMode":"paginated","modelProvider":"mock","model":"$model","reasoningEffort":null,"createdAt":"$created","updatedAt":"$updated","recencyAt":"$updated","status":"$status","path":"/codex-home/sessions/2026/11/29/rollout-2026-11-29T14-17-13-${thread}.jsonl","cwd":"$cwd","cliVersion":"0.171.0","originator":"$originator","source":"vscode","canAcceptDirectInput":true,"threadSource":"$mark","agentNickname":null,"agentRole":null,"gitInfo":null,"name":"$name","daybreakEnabled":null,"turns":"$turns"}"#;

const TURN: &str = r#"{"id":"$turn","rootTurnId":"$turn","items":"$items","itemsView":"$view","status":"$status","error":"$error","startedAt":"$started","completedAt":"$completed","durationMs":"$duration"}"#;

pub(super) const COMMAND_REQUEST: &str = r#"{"method":"item/commandExecution/requestApproval","id":"$id","params":{"kind":"command","threadId":"$thread","turnId":"$turn","itemId":"$item","startedAtMs":"$at","environmentId":"local","reason":"the user asked for it","command":"$command","cwd":"$cwd","commandActions":[{"type":"unknown","command":"$bare"}],"proposedExecpolicyAmendment":"$words","availableDecisions":["accept",{"acceptWithExecpolicyAmendment":{"execpolicy_amendment":"$words"}},"cancel"]}}"#;

pub(super) const TOOL_CALL: &str = r#"{"method":"item/tool/call","id":"$id","params":{"threadId":"$thread","turnId":"$turn","callId":"$item","namespace":null,"tool":"$tool","arguments":"$arguments"}}"#;

pub(super) const USER_INPUT: &str = r#"{"method":"item/tool/requestUserInput","id":"$id","params":{"threadId":"$thread","turnId":"$turn","itemId":"$item","questions":[{"id":"choice","header":"Choice","question":"$question","isOther":true,"isSecret":false,"options":[{"label":"Yes","description":"go on"},{"label":"No","description":"leave it"}]}],"isBlocking":false,"autoResolutionMs":null}}"#;

pub(super) const RATE_LIMITS: &str = r#"{"rateLimits":{"limitId":"codex","limitName":null,"normalModelSlug":null,"primary":null,"secondary":null,"credits":null,"individualLimit":null,"spendControlReached":null,"planType":null,"rateLimitReachedType":null}}"#;

pub(super) const USAGE: &str = r#"{"threadId":"$thread","turnId":"$turn","tokenUsage":{"total":"$total","last":"$last","modelContextWindow":258400}}"#;

const TOKENS: &str = r#"{"totalTokens":"$total","inputTokens":"$input","cachedInputTokens":0,"cacheWriteInputTokens":0,"outputTokens":"$output","reasoningOutputTokens":0}"#;

pub(super) const CONFIG_WARNING: &str = r#"{"summary":"Codex could not find bubblewrap on PATH. Install bubblewrap with your OS package manager. See the sandbox prerequisites: https://developers.openai.com/codex/concepts/sandboxing#prerequisites. Codex will use the bundled bubblewrap in the meantime.","details":null}"#;

pub(super) const REMOTE_CONTROL: &str = r#"{"status":"disabled","serverName":"host","installationId":"39e015e8-2360-4b8d-87a9-99b712c18178","environmentId":null}"#;

pub(super) const MODEL_WARNING: &str = "Model metadata for `mock-model` not found. Defaulting to fallback metadata; this can degrade performance and cause issues.";

pub(super) const READ_DEPRECATED: &str = r#"{"summary":"Full-history hydration is deprecated for paginated threads; omit `includeTurns` or set it to `false`, then page with `thread/turns/list` and `thread/items/list`.","details":null}"#;

pub(super) const RESUME_DEPRECATED: &str = r#"{"summary":"Full-history hydration is deprecated for paginated threads; use `excludeTurns: true`, then page with `thread/turns/list` and `thread/items/list`.","details":null}"#;

/// The methods that this server knows, for the refusal of one that it does not.
pub(super) const METHODS: &str = "`initialize`, `thread/start`, `thread/resume`, `thread/unsubscribe`, `thread/name/set`, `thread/read`, `thread/list`, `thread/loaded/list`, `thread/turns/list`, `thread/items/list`, `turn/start`, `turn/steer`, `turn/interrupt`, `model/list`, `mcpServerStatus/list`, `thread/backgroundTerminals/list`";

pub(super) fn tokens(input: u64, output: u64) -> String {
    let (total, input, output) = (
        (input + output).to_string(),
        input.to_string(),
        output.to_string(),
    );
    frame(
        TOKENS,
        &[("total", &total), ("input", &input), ("output", &output)],
    )
}

pub(super) fn thread(thread: &Thread, originator: &str, with_turns: bool) -> String {
    let turns = if with_turns {
        list(thread.turns.iter().map(|one| turn(one, View::Full)))
    } else {
        "[]".to_owned()
    };
    frame(
        THREAD,
        &[
            ("thread", &quote(&thread.id)),
            ("cwd", &quote(&thread.cwd)),
            ("preview", &quote(&thread.preview)),
            ("ephemeral", if thread.ephemeral { "true" } else { "false" }),
            ("model", &quote(&thread.model)),
            ("created", &(wall(thread.created) / 1000).to_string()),
            ("updated", &(wall(thread.updated) / 1000).to_string()),
            ("status", &thread.status()),
            ("originator", &quote(originator)),
            ("mark", &thread.mark),
            (
                "name",
                &thread
                    .name
                    .as_deref()
                    .map_or_else(|| "null".to_owned(), quote),
            ),
            ("turns", &turns),
        ],
    )
}

pub(super) fn turn(turn: &Turn, view: View) -> String {
    let last_answer = turn.items.iter().rposition(Item::is_answer);
    let chosen = |(index, item): (usize, &Item)| match view {
        View::None => None,
        View::End => (Some(index) == last_answer).then(|| item.json(true)),
        View::Summary => (Some(index) == last_answer || item.is_user()).then(|| item.json(true)),
        View::Full => Some(item.json(true)),
    };
    let items = list(turn.items.iter().enumerate().filter_map(chosen));
    let view = match view {
        View::None => "notLoaded",
        View::End if turn.status != "completed" => "notLoaded",
        View::End | View::Summary => "summary",
        View::Full => "full",
    };
    let items = if view == "notLoaded" { "[]" } else { &items };
    frame(
        TURN,
        &[
            ("turn", &quote(&turn.id)),
            ("items", items),
            ("view", &quote(view)),
            ("status", &quote(turn.status)),
            ("error", turn.error.as_deref().unwrap_or("null")),
            ("started", &or_null(turn.started.map(|at| wall(at) / 1000))),
            (
                "completed",
                &or_null(turn.completed.map(|at| wall(at) / 1000)),
            ),
            (
                "duration",
                &or_null(
                    turn.completed
                        .zip(turn.started)
                        .map(|(end, start)| end.saturating_sub(start)),
                ),
            ),
        ],
    )
}
