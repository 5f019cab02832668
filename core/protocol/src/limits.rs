//! Rate limits, as they are told bit by bit.

use alloc::{borrow::ToOwned, collections::BTreeMap, string::String};

use crate::{
    types::{
        AccountRateLimitsUpdatedNotification, GetAccountRateLimitsResponse, RateLimitSnapshot,
        RateLimitWindow,
    },
    wire::Maybe,
};

/// The rate limits of an account, by the id of each.
///
/// `account/rateLimits/updated` is sparse: what it leaves out, or says is null, stays as it was. A full
/// read (`account/rateLimits/read`) replaces everything.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RateLimits {
    limits: BTreeMap<String, RateLimitSnapshot>,
}

/// The id of the limit that the server does not name.
pub const MAIN_LIMIT: &str = "codex";

impl RateLimits {
    /// Nothing is known yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes a full read: what it does not have is gone.
    pub fn read(&mut self, read: &GetAccountRateLimitsResponse) {
        self.limits.clear();
        for (id, limit) in read.rate_limits_by_limit_id.get().into_iter().flatten() {
            self.limits.insert(id.clone(), limit.clone());
        }
        let id = id(&read.rate_limits);
        self.limits
            .entry(id)
            .or_insert_with(|| read.rate_limits.clone());
    }

    /// Takes what was told, and gives the limit as it is now.
    pub fn update(&mut self, told: &AccountRateLimitsUpdatedNotification) -> &RateLimitSnapshot {
        let told = &told.rate_limits;
        let known = self.limits.entry(id(told)).or_default();
        keep(&mut known.credits, &told.credits);
        keep(&mut known.individual_limit, &told.individual_limit);
        keep(&mut known.limit_id, &told.limit_id);
        keep(&mut known.limit_name, &told.limit_name);
        keep(&mut known.normal_model_slug, &told.normal_model_slug);
        keep(&mut known.plan_type, &told.plan_type);
        keep_window(&mut known.primary, &told.primary);
        keep(
            &mut known.rate_limit_reached_type,
            &told.rate_limit_reached_type,
        );
        keep_window(&mut known.secondary, &told.secondary);
        keep(
            &mut known.spend_control_reached,
            &told.spend_control_reached,
        );
        for (name, value) in &told.unknown {
            if !value.is_null() {
                known.unknown.insert(name.clone(), value.clone());
            }
        }
        known
    }

    /// A limit by its id.
    #[must_use]
    pub fn get(&self, id: &str) -> Option<&RateLimitSnapshot> {
        self.limits.get(id)
    }

    /// All of them, by id.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &RateLimitSnapshot)> {
        self.limits.iter().map(|(id, limit)| (id.as_str(), limit))
    }
}

fn id(limit: &RateLimitSnapshot) -> String {
    limit.limit_id.as_deref().unwrap_or(MAIN_LIMIT).to_owned()
}

fn keep<T: Clone>(known: &mut Maybe<T>, told: &Maybe<T>) {
    if let Maybe::Some(told) = told {
        *known = Maybe::Some(told.clone());
    }
}

/// A window that is told without its length or its end has those that it had.
fn keep_window(known: &mut Maybe<RateLimitWindow>, told: &Maybe<RateLimitWindow>) {
    let Maybe::Some(told) = told else { return };
    let mut window = told.clone();
    if let Maybe::Some(had) = known {
        window.resets_at = had.resets_at;
        window.window_duration_mins = had.window_duration_mins;
        keep(&mut window.resets_at, &told.resets_at);
        keep(&mut window.window_duration_mins, &told.window_duration_mins);
    }
    *known = Maybe::Some(window);
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::Wire as _;

    fn told(value: Value) -> AccountRateLimitsUpdatedNotification {
        let value = json!({ "rateLimits": value });
        AccountRateLimitsUpdatedNotification::decode(&value).unwrap()
    }

    #[test]
    fn sparse_update_keeps_what_it_does_not_say() {
        let mut limits = RateLimits::new();
        limits.update(&told(json!({
            "limitId": "codex",
            "planType": "plus",
            "primary": { "usedPercent": 10, "resetsAt": 5 },
            "mood": "calm",
        })));
        let now = limits.update(&told(json!({
            "limitId": "codex",
            "planType": null,
            "primary": { "usedPercent": 20 },
            "mood": null,
        })));
        assert_eq!(now.primary.get().unwrap().used_percent, 20);
        assert_eq!(now.primary.get().unwrap().resets_at.get(), Some(&5));
        assert_eq!(now.plan_type.get().unwrap().as_str(), Some("plus"));
        assert_eq!(now.unknown["mood"], "calm");
    }

    #[test]
    fn limits_are_told_apart_by_id() {
        let mut limits = RateLimits::new();
        limits.update(&told(json!({ "primary": { "usedPercent": 1 } })));
        limits.update(&told(
            json!({ "limitId": "other", "primary": { "usedPercent": 2 } }),
        ));
        let used = |id: &str| limits.get(id).unwrap().primary.get().unwrap().used_percent;
        assert_eq!((used(MAIN_LIMIT), used("other")), (1, 2));
    }

    #[test]
    fn full_read_replaces() {
        let mut limits = RateLimits::new();
        limits.update(&told(
            json!({ "limitId": "gone", "primary": { "usedPercent": 1 } }),
        ));
        let read = json!({
            "rateLimits": { "limitId": "codex", "primary": null },
            "rateLimitsByLimitId": { "codex": { "limitId": "codex" }, "b": { "limitId": "b" } },
        });
        limits.read(&GetAccountRateLimitsResponse::decode(&read).unwrap());
        let ids: alloc::vec::Vec<_> = limits.iter().map(|(id, _)| id).collect();
        assert_eq!(ids, ["b", "codex"]);
    }
}
