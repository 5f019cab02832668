//! What a refusal means: a closed table of exact shapes. The server tells most refusals apart by
//! their message only (-32600 for nearly all).

use crate::command::{RefusalClass, RpcError};

/// Classes an error answer. `asked` is the thread that the request named: a refusal that names
/// another one says nothing about ours.
pub(crate) fn classify(error: &RpcError, asked: Option<&str>) -> RefusalClass {
    use RefusalClass as C;
    let message = error.message.as_str();
    if error.code == RpcError::OVERLOADED {
        return C::Overloaded;
    }
    if error.code == -32_601 && message == "list_turns is not supported yet" {
        // Both versions say so for a moment after the first turn of a thread was accepted.
        return C::NotMaterialized;
    }
    if error.code == -32_601 {
        return C::UnknownMethod;
    }
    let names_ours = |prefix: &str| {
        message
            .strip_prefix(prefix)
            .is_some_and(|id| asked.is_some_and(|asked| asked == id))
    };
    if names_ours("thread not found: ") {
        return C::ThreadNotFound;
    }
    if names_ours("thread not loaded: ") {
        return C::ThreadNotLoaded;
    }
    if names_ours("no rollout found for thread id ") {
        return C::NoRollout;
    }
    if let Some(rest) = message.strip_prefix("thread ") {
        if let Some((_, rest)) = rest.split_once(' ') {
            if rest == "already has an active writer" {
                return C::ActiveWriterElsewhere;
            }
            if rest.starts_with("is not materialized yet") {
                return C::NotMaterialized;
            }
            if rest == "is closing" || rest.starts_with("is closing;") {
                return C::Closing;
            }
        }
    }
    if message == "no active turn to steer" || message == "no active turn to interrupt" {
        return C::NoActiveTurn;
    }
    if let Some(rest) = message.strip_prefix("expected active turn id ") {
        if let Some((_, found)) = rest.split_once(" but found ") {
            // turn/steer puts both ids in back-ticks, turn/interrupt does not.
            return C::TurnMismatch {
                found: found.trim_matches('`').into(),
            };
        }
    }
    if message.starts_with("cannot steer a ") {
        return C::NotSteerable;
    }
    if message.starts_with("Invalid request: unknown variant `")
        && message.contains("`, expected one of `initialize`")
    {
        return C::UnknownMethod;
    }
    if message == "Not initialized" {
        return C::NotInitialized;
    }
    if message.ends_with("requires experimentalApi capability") {
        return C::MissingCapability;
    }
    if message.starts_with("failed to load configuration: ") {
        return C::BadConfiguration;
    }
    if message.contains("Not logged in") || message.contains("not logged in") {
        return C::NotLoggedIn;
    }
    C::Unclassified
}

#[cfg(test)]
mod tests {
    use super::*;

    fn class(code: i64, message: &str, asked: &str) -> RefusalClass {
        classify(
            &RpcError {
                code,
                message: message.into(),
                data: None,
            },
            Some(asked),
        )
    }

    #[test]
    fn the_table_knows_exact_shapes_and_the_id_that_was_asked() {
        use RefusalClass as C;
        let rows = [
            ("thread not found: thr_1", C::ThreadNotFound),
            ("thread not found: thr_2", C::Unclassified),
            ("thread not loaded: thr_1", C::ThreadNotLoaded),
            ("no rollout found for thread id thr_1", C::NoRollout),
            ("no rollout found for thread id thr_2", C::Unclassified),
            (
                "thread thr_1 already has an active writer",
                C::ActiveWriterElsewhere,
            ),
            (
                "thread thr_1 is not materialized yet; includeTurns is unavailable before first \
                 user message",
                C::NotMaterialized,
            ),
            ("no active turn to steer", C::NoActiveTurn),
            ("no active turn to interrupt", C::NoActiveTurn),
            (
                "expected active turn id `a` but found `b`",
                C::TurnMismatch { found: "b".into() },
            ),
            (
                "expected active turn id a but found b",
                C::TurnMismatch { found: "b".into() },
            ),
            (
                "Invalid request: unknown variant `no/such`, expected one of `initialize`, `x`",
                C::UnknownMethod,
            ),
            ("Not initialized", C::NotInitialized),
            (
                "failed to load configuration: /w/.codex/config.toml:3:1: ...",
                C::BadConfiguration,
            ),
            ("something new", C::Unclassified),
        ];
        for (message, want) in rows {
            assert_eq!(class(-32_600, message, "thr_1"), want, "{message}");
        }
        assert_eq!(
            class(-32_001, "Server overloaded; retry later.", "t"),
            C::Overloaded
        );
        assert_eq!(class(-32_601, "x", "t"), C::UnknownMethod);
        let early = "list_turns is not supported yet";
        assert_eq!(class(-32_601, early, "t"), C::NotMaterialized);
    }
}
