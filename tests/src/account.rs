//! An account that there is not: tokens that nobody signed, and a backend that believes them.
//!
//! The real server takes any token that has the form of one, and asks the backend that its configuration names: here
//! the [`Model`], so that nothing leaves the machine.

use serde_json::{Value, json};

use crate::model::Model;

/// The account that is logged in.
pub const ACCOUNT: &str = "acc_1";

/// The app that [`backend`] knows.
pub const APP: &str = "app_1";

/// Where it has its plugin.
pub const REMOTE_PLUGIN: (&str, &str, &str) = ("openai-curated-remote", "plugins_1", "greet");

/// Lines for `config.toml` that make the model the account's backend.
pub fn config(model: &Model) -> String {
    let port = model.port();
    format!("chatgpt_base_url = \"http://127.0.0.1:{port}/backend-api\"\n")
}

/// A token of the account; each number makes another one.
pub fn token(account: &str, number: u32) -> String {
    let head = json!({ "alg": "none", "typ": "JWT" });
    let claims = json!({
        "email": "a@example.com",
        // Far from now.
        "exp": 4_102_444_800_u64,
        "number": number,
        "https://api.openai.com/auth": {
            "chatgpt_account_id": account,
            "chatgpt_user_id": "user_1",
            "chatgpt_plan_type": "plus",
        },
    });
    let [head, claims] = [head, claims].map(|part| base64_url(part.to_string().as_bytes()));
    format!("{head}.{claims}.{}", base64_url(b"nobody"))
}

/// Parameters of the login with a token, `account/login/start`.
pub fn login(token: &str) -> Value {
    json!({
        "type": "chatgptAuthTokens",
        "accessToken": token,
        "chatgptAccountId": ACCOUNT,
        "chatgptPlanType": "plus",
    })
}

/// Has the model answer what the server asks the backend for.
pub fn backend(model: &Model) {
    let (_, plugin, skill) = REMOTE_PLUGIN;
    let window = |percent: u32, seconds: u32| {
        json!({
            "used_percent": percent,
            "limit_window_seconds": seconds,
            "reset_after_seconds": 60,
            "reset_at": 1_900_000_000,
        })
    };
    let apps = json!({ "apps": [{ "id": APP, "name": "An app", "description": "Does things." }] });
    let read = |path: &str, body| model.answer_at(&format!("/backend-api{path}"), body);
    read("/connectors/directory/list", apps.clone());
    read("/ps/apps/batch", apps);
    read(
        "/wham/usage",
        json!({
            "user_id": "user_1",
            "account_id": ACCOUNT,
            "email": "a@example.com",
            "plan_type": "plus",
            "rate_limit": {
                "allowed": true,
                "limit_reached": false,
                "primary_window": window(5, 18_000),
                "secondary_window": window(40, 604_800),
            },
            "credits": { "has_credits": true, "unlimited": false, "balance": "7" },
        }),
    );
    read(
        "/wham/profiles/me",
        json!({
            "stats": {
                "lifetime_tokens": 9_007_199_254_740_993_u64,
                "daily_usage_buckets": [{ "start_date": "2026-01-01", "tokens": 12 }],
            },
        }),
    );
    let message = json!({
        "message_id": "msg_1",
        "message_type": "announcement",
        "message_body": "Hello.",
        "created_at": "2026-01-01T00:00:00Z",
        "archived_at": null,
    });
    read("/wham/workspace-messages", json!({ "messages": [message] }));
    let shared = json!({
        "id": plugin,
        "name": "greeter",
        "scope": "WORKSPACE",
        "discoverability": "PRIVATE",
        "share_principals": [],
        "share_url": "https://chatgpt.invalid/plugins/1",
        "installation_policy": "AVAILABLE",
        "authentication_policy": "ON_USE",
        "release": {
            "version": "1.0.0",
            "display_name": "Greeter",
            "description": "Greets.",
            "interface": {},
        },
    });
    let list = |plugins| json!({ "plugins": plugins, "pagination": { "next_page_token": null } });
    read("/ps/plugins/workspace/created", list(json!([shared])));
    read("/ps/plugins/installed", list(json!([])));
    read(
        &format!("/ps/plugins/{plugin}/skills/{skill}"),
        json!({ "plugin_id": plugin, "name": skill, "skill_md_contents": "Say hello." }),
    );
}

fn base64_url(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    let mut text = String::new();
    for chunk in bytes.chunks(3) {
        let all = chunk
            .iter()
            .fold(0_u32, |all, byte| all << 8 | u32::from(*byte));
        let all = all << (8 * (3 - chunk.len()));
        for digit in 0..=chunk.len() {
            let index = (all >> (18 - 6 * digit)) & 63;
            text.push(char::from(DIGITS[index as usize]));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_have_the_form_of_tokens() {
        let texts = [("", ""), ("f", "Zg"), ("fo", "Zm8"), ("foo", "Zm9v")];
        for (plain, coded) in texts {
            assert_eq!(base64_url(plain.as_bytes()), coded);
        }
        assert_eq!(base64_url(&[0xfb, 0xff]), "-_8");
        assert_ne!(token("a", 1), token("a", 2));
        assert_eq!(token("a", 1).split('.').count(), 3);
    }
}
