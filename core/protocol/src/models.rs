//! The models that a server lists.

use alloc::{string::String, vec::Vec};

use crate::types::Model;

/// The list of models breaks its rules.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("several models are the default: {}", models.join(", "))]
#[non_exhaustive]
pub struct SeveralDefaults {
    /// Their ids.
    pub models: Vec<String>,
}

/// Puts a list of models in order: hidden ones left out, by id.
///
/// # Errors
///
/// More than one of them is the default.
pub fn in_order(mut listed: Vec<Model>) -> Result<Vec<Model>, SeveralDefaults> {
    listed.retain(|model| !model.hidden);
    listed.sort_by(|a, b| a.id.cmp(&b.id));
    let defaults = listed.iter().filter(|model| model.is_default);
    let models: Vec<String> = defaults.map(|model| model.id.clone()).collect();
    match models.len() {
        0 | 1 => Ok(listed),
        _ => Err(SeveralDefaults { models }),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::Wire as _;

    fn model(id: &str, hidden: bool, is_default: bool) -> Model {
        let value = json!({
            "id": id, "model": id, "displayName": id, "description": "", "hidden": hidden,
            "isDefault": is_default, "defaultReasoningEffort": "medium",
            "supportedReasoningEfforts": [],
        });
        Model::decode(&value).unwrap()
    }

    #[test]
    fn hidden_models_are_left_out_and_the_rest_is_in_order() {
        let listed = [
            model("b", false, true),
            model("h", true, true),
            model("a", false, false),
        ];
        let models = in_order(listed.into()).unwrap();
        let ids: Vec<_> = models.iter().map(|model| model.id.as_str()).collect();
        assert_eq!(ids, ["a", "b"]);
    }

    #[test]
    fn several_defaults_are_an_error() {
        let error = in_order([model("a", false, true), model("b", false, true)].into());
        assert_eq!(
            error.unwrap_err().to_string(),
            "several models are the default: a, b"
        );
    }
}
