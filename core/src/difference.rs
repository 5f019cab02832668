//! What a thread has that was not asked, says the answer that made or resumed it.
//!
//! Compared is what was asked and what is told, as text: no path is resolved.

use alloc::{borrow::ToOwned, string::String, vec::Vec};

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::settings::{RawJsonOr, Sandbox, Settings};

/// A field of a thread that is not as it was asked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{field} is {told}, not {asked}")]
#[serde(deny_unknown_fields)]
pub struct Difference {
    /// The field, as the server names it, such as `cwd` or `approvalPolicy`.
    pub field: String,
    /// What was asked.
    pub asked: String,
    /// What the server tells.
    pub told: String,
}

/// What is read of it, each field by itself: one of another kind than it should be differs too.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Answer<'a> {
    #[serde(borrow, default)]
    cwd: Option<&'a RawValue>,
    #[serde(borrow, default)]
    model: Option<&'a RawValue>,
    #[serde(borrow, default)]
    model_provider: Option<&'a RawValue>,
    #[serde(borrow, default)]
    sandbox: Option<&'a RawValue>,
    #[serde(borrow, default)]
    approval_policy: Option<&'a RawValue>,
    #[serde(borrow, default)]
    base_instructions: Option<&'a RawValue>,
    #[serde(borrow, default)]
    developer_instructions: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct Kind {
    #[serde(rename = "type")]
    kind: String,
}

/// All that differs. A `model` is that which the thread was given last, where that is known.
pub(crate) fn of(settings: &Settings, model: Option<&str>, answer: &str) -> Vec<Difference> {
    let Ok(told) = serde_json::from_str::<Answer<'_>>(answer) else {
        return Vec::new();
    };
    let mut all = Vec::new();
    let text = |told: Option<&RawValue>| told.map(|raw| plain(raw.get()));
    let mut compare = |field: &str, asked: Option<&str>, told: Option<String>| {
        if let (Some(asked), Some(told)) = (asked, told) {
            if asked != told {
                all.push(Difference {
                    field: field.to_owned(),
                    asked: asked.to_owned(),
                    told,
                });
            }
        }
    };
    compare("cwd", settings.cwd.as_deref(), text(told.cwd));
    compare("model", model, text(told.model));
    let provider = settings.model_provider.as_deref();
    compare("modelProvider", provider, text(told.model_provider));
    let sandbox = told.sandbox.map(sandbox_kind);
    let asked = settings.sandbox.map(Sandbox::as_str);
    compare("sandbox", asked, sandbox);
    let policy = settings.approval_policy.as_ref().map(|p| match p.wire() {
        RawJsonOr::Text(text) => text.to_owned(),
        RawJsonOr::Raw(raw) => plain(raw.get()),
    });
    compare(
        "approvalPolicy",
        policy.as_deref(),
        text(told.approval_policy),
    );
    for (field, asked, told) in [
        (
            "baseInstructions",
            &settings.base_instructions,
            told.base_instructions,
        ),
        (
            "developerInstructions",
            &settings.developer_instructions,
            told.developer_instructions,
        ),
    ] {
        compare(field, asked.as_deref(), text(told));
    }
    all
}

/// A sandbox is asked by the name of its mode and told as a policy, which names its kind in another
/// spelling. What is no such policy is told as it came.
fn sandbox_kind(raw: &RawValue) -> String {
    let kind = serde_json::from_str::<Kind>(raw.get()).map(|policy| policy.kind);
    match kind.as_deref() {
        Ok("readOnly") => Sandbox::ReadOnly.as_str().to_owned(),
        Ok("workspaceWrite") => Sandbox::WorkspaceWrite.as_str().to_owned(),
        Ok("dangerFullAccess") => Sandbox::DangerFullAccess.as_str().to_owned(),
        Ok(other) => other.to_owned(),
        Err(_) => plain(raw.get()),
    }
}

/// A text as it is, another value in canonical form.
fn plain(json: &str) -> String {
    match serde_json::from_str::<String>(json) {
        Ok(text) => text,
        Err(_) => crate::json::canonical(json).unwrap_or_else(|_| json.to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{RawJson, settings::ApprovalPolicy};

    const TOLD: &str = r#"{"thread":{"id":"t"},"model":"m","modelProvider":"p","cwd":"/w","approvalPolicy":"on-request","sandbox":{"type":"workspaceWrite","writableRoots":[],"networkAccess":false}}"#;

    fn asked() -> Settings {
        Settings::new()
            .cwd("/w")
            .model_provider("p")
            .sandbox(Sandbox::WorkspaceWrite)
            .approval_policy(ApprovalPolicy::OnRequest)
    }

    #[test]
    fn what_is_as_asked_or_not_told_or_not_asked_is_no_difference() {
        assert_eq!(of(&asked(), Some("m"), TOLD), []);
        assert_eq!(of(&Settings::new(), None, TOLD), []);
        assert_eq!(of(&asked(), Some("m"), r#"{"thread":{"id":"t"}}"#), []);
        assert_eq!(of(&asked(), Some("m"), "[]"), []);
        let instructions = asked().base_instructions("be brief");
        assert_eq!(of(&instructions, Some("m"), TOLD), []);
        // One of another kind than it should be hides no other.
        let found = of(&asked(), None, r#"{"cwd":7,"modelProvider":"q"}"#);
        let told: Vec<_> = found.iter().map(|d| d.told.as_str()).collect();
        assert_eq!(told, ["7", "q"]);
        let raw = r#"{"granular":{"rules":true,"sandbox_approval":false}}"#;
        let other = ApprovalPolicy::Other(RawJson::parse(raw).unwrap());
        let told = r#"{"approvalPolicy":{"granular":{"sandbox_approval": false,"rules": true}}}"#;
        assert_eq!(of(&asked().approval_policy(other), None, told), []);
    }

    #[test]
    fn every_difference_is_told_with_both_values() {
        let told = r#"{"model":"n","modelProvider":"q","cwd":"/w/","approvalPolicy":"never","sandbox":{"type":"readOnly"},"baseInstructions":"other","developerInstructions":null}"#;
        let asked = asked()
            .base_instructions("be brief")
            .developer_instructions("x");
        let found = of(&asked, Some("m"), told);
        let found: Vec<_> = found
            .iter()
            .map(|d| (d.field.as_str(), d.asked.as_str(), d.told.as_str()))
            .collect();
        assert_eq!(
            found,
            [
                ("cwd", "/w", "/w/"),
                ("model", "m", "n"),
                ("modelProvider", "p", "q"),
                ("sandbox", "workspace-write", "read-only"),
                ("approvalPolicy", "on-request", "never"),
                ("baseInstructions", "be brief", "other"),
            ]
        );
    }
}
