//! Items, live and in the history, read alike: what is unknown or has changed its shape is carried.

use alloc::{
    format,
    string::{String, ToString},
};

use serde::Deserialize;
use serde_json::value::RawValue;

use super::CowStr;
use crate::{
    RawJson,
    event::{Item, Phase},
    id::{ItemId, TurnId},
};

#[derive(Deserialize)]
struct Head<'a> {
    #[serde(rename = "type", borrow)]
    kind: CowStr<'a>,
    #[serde(borrow, default)]
    id: Option<CowStr<'a>>,
}

#[derive(Deserialize)]
struct Text<'a> {
    #[serde(borrow)]
    text: CowStr<'a>,
}

#[derive(Deserialize)]
struct Phased<'a> {
    #[serde(borrow, default)]
    phase: Option<CowStr<'a>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Client<'a> {
    #[serde(borrow, default)]
    client_id: Option<CowStr<'a>>,
}

/// All of them at once, for the items that are most of what comes: nothing of it in another shape.
#[derive(Deserialize)]
struct Message<'a> {
    #[serde(rename = "type", borrow)]
    kind: CowStr<'a>,
    #[serde(borrow)]
    id: CowStr<'a>,
    #[serde(borrow)]
    text: CowStr<'a>,
    #[serde(borrow)]
    phase: Option<CowStr<'a>>,
}

/// An agent's message as servers write it.
fn message(raw: &RawValue) -> Option<Item> {
    let text = raw.get();
    if !text.starts_with(r#"{"type":"agentMessage","#) {
        return None;
    }
    let message: Message<'_> = serde_json::from_str(text).ok()?;
    Some(Item {
        id: ItemId::new(&message.id.0)?,
        text: Some(message.text.0.into_owned()),
        phase: message.phase.map(|phase| self::phase(&phase.0)),
        client_id: None,
        kind: message.kind.0.into_owned(),
        raw: RawJson::borrowed(raw),
    })
}

/// Reads an item. `None` where it has no type or no id that names it.
pub(crate) fn read(raw: &RawValue) -> Option<Item> {
    read_or(raw, |_| None)
}

/// Reads an item of the history, of which some have no id: these are named by where they stand.
pub(crate) fn read_past(raw: &RawValue, turn: &TurnId, position: usize) -> Option<Item> {
    read_or(raw, |kind| {
        ItemId::new(&format!("{turn}/{position}/{kind}"))
    })
}

fn read_or(raw: &RawValue, name: impl FnOnce(&str) -> Option<ItemId>) -> Option<Item> {
    if let Some(item) = message(raw) {
        return Some(item);
    }
    let text = raw.get();
    let head: Head<'_> = crate::json::from_object(text).ok()?;
    let kind = head.kind.0;
    let named = head.id.and_then(|id| ItemId::new(&id.0));
    let id = named.or_else(|| name(&kind))?;
    let has_text = matches!(&*kind, "agentMessage" | "plan");
    Some(Item {
        id,
        text: has_text
            .then(|| {
                serde_json::from_str::<Text<'_>>(text)
                    .ok()
                    .map(|t| t.text.0.into_owned())
            })
            .flatten(),
        phase: (&*kind == "agentMessage")
            .then(|| serde_json::from_str::<Phased<'_>>(text).ok()?.phase)
            .flatten()
            .map(|phase| self::phase(&phase.0)),
        client_id: (&*kind == "userMessage")
            .then(|| serde_json::from_str::<Client<'_>>(text).ok()?.client_id)
            .flatten()
            .map(|id| id.0.into_owned()),
        kind: kind.into_owned(),
        raw: RawJson::borrowed(raw),
    })
}

fn phase(word: &str) -> Phase {
    match word {
        "commentary" => Phase::Commentary,
        "partial_answer" => Phase::PartialAnswer,
        "final_answer" => Phase::FinalAnswer,
        other => Phase::Other(String::from(other)),
    }
}

impl Item {
    /// The kind of an item that a turn's text comes from.
    pub(crate) const AGENT_MESSAGE: &'static str = "agentMessage";

    /// The kind of an item that says that the history was made shorter.
    pub(crate) const COMPACTION: &'static str = "contextCompaction";
    /// The kind of an item that a user said.
    pub(crate) const USER_MESSAGE: &'static str = "userMessage";

    /// Whether this is an agent's message.
    #[must_use]
    pub fn is_agent_message(&self) -> bool {
        self.kind == Self::AGENT_MESSAGE
    }

    /// The item's kind and id, for logs.
    #[must_use]
    pub fn label(&self) -> String {
        let mut out = self.kind.to_string();
        out.push(' ');
        out.push_str(&self.id);
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn item(text: &str) -> Option<Item> {
        read(serde_json::from_str(text).unwrap())
    }

    #[test]
    fn unknown_kinds_and_changed_shapes_are_carried() {
        let strange = item(r#"{"type":"holograph","id":"i","beams":3}"#).unwrap();
        assert_eq!((strange.kind.as_str(), strange.text), ("holograph", None));
        let changed = item(r#"{"type":"agentMessage","id":"i","text":5,"phase":{}}"#).unwrap();
        assert_eq!((changed.text, changed.phase), (None, None));
        let newer = item(r#"{"type":"agentMessage","id":"i","text":"a","phase":"epilogue"}"#);
        assert_eq!(newer.unwrap().phase, Some(Phase::Other("epilogue".into())));
        assert!(item(r#"{"type":"agentMessage","id":" "}"#).is_none());
    }

    #[test]
    fn an_agents_message_is_read_at_once_as_bit_by_bit() {
        let text =
            r#"{"type":"agentMessage","id":"i","text":"a\\n","phase":"commentary","x":[{}]}"#;
        let raw = serde_json::from_str(text).unwrap();
        let at_once = message(raw).unwrap();
        let bit_by_bit = item(&text.replacen('{', "{ ", 1)).unwrap();
        assert_eq!(at_once.raw.get(), text);
        assert_eq!(
            Item {
                raw: at_once.raw.clone(),
                ..bit_by_bit
            },
            at_once
        );
        for odd in [
            "\"text\":5",
            "\"text\":\"b\",\"text\":\"c\"",
            "\"text\":\"b\",\"phase\":5",
        ] {
            let text = alloc::format!(r#"{{"type":"agentMessage","id":"i",{odd}}}"#);
            assert!(message(serde_json::from_str(&text).unwrap()).is_none());
        }
    }

    #[test]
    fn an_item_of_the_history_without_an_id_has_the_same_name_each_time() {
        let turn = TurnId::new("t").unwrap();
        let read = |text: &str| {
            let raw = serde_json::from_str(text).unwrap();
            read_past(raw, &turn, 2)
        };
        let text = r#"{"type":"userMessage","clientId":"m"}"#;
        let (first, again) = (read(text).unwrap(), read(text).unwrap());
        assert_eq!(
            (first.id.as_str(), first.client_id.as_deref()),
            ("t/2/userMessage", Some("m"))
        );
        assert_eq!(first, again);
        assert_eq!(
            read(r#"{"type":"plan","id":null}"#).unwrap().id.as_str(),
            "t/2/plan"
        );
        assert_eq!(
            read(r#"{"type":"plan","id":"p"}"#).unwrap().id.as_str(),
            "p"
        );
    }
}
