//! The boxes of a conversation: what they are, which of them the native thread holds, and how they
//! become a message.

use alloc::{borrow::ToOwned, collections::BTreeMap, format, string::String, vec::Vec};

use serde::{Deserialize, Serialize};

use crate::{
    RawJson,
    command::InputItem,
    durable::is_default,
    id::{BoxId, MessageId, is_clean},
    json::{Members, from_object},
};

mod render;
mod set;

pub use self::{render::render, set::BoxSet};

/// What a hidden type begins with whose hidden contents are a part of a message in the words of the
/// schema (`UserInput`); the part's kind follows.
pub const INPUT: &str = "turnkeep.input/";

/// The known types of boxes. An unknown one is carried unchanged.
pub mod box_type {
    /// What the user said.
    pub const USER_MESSAGE: &str = "User Message";
    /// What the application says for itself.
    pub const SYSTEM_MESSAGE: &str = "System Message";
    /// The text of the model, up to an action or the end.
    pub const AGENT_RESPONSE: &str = "Agent Response";
    /// A message that the model sent by a tool of kind `Message`.
    pub const AGENT_MESSAGE: &str = "Agent Message";
    /// A call of the model.
    pub const TOOL_CALL: &str = "Tool Call";
    /// What a tool says before its result.
    pub const TOOL_MESSAGE: &str = "Tool Message";
    /// The result of a call.
    pub const TOOL_RESULT: &str = "Tool Result";
    /// What the user sent beside text.
    pub const USER_ATTACHMENT: &str = "User Attachment";
    /// What the model sent beside text.
    pub const AGENT_ATTACHMENT: &str = "Agent Attachment";
    /// What a tool sent beside text.
    pub const TOOL_ATTACHMENT: &str = "Tool Attachment";
}

/// A box before it has its number. All parts are open texts.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BoxBody {
    /// What it is, such as [`box_type::USER_MESSAGE`].
    pub box_type: String,
    /// What the model reads.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub contents: String,
    /// What the hidden contents are, empty without them.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub hidden_type: String,
    /// What the application or turnkeep keeps with it. Never rendered.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub hidden_contents: String,
}

/// A box of a transcript.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TranscriptBox {
    /// Its number, from 1.
    pub id: BoxId,
    /// What it says.
    pub body: BoxBody,
}

/// Why a box is not taken from outside.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, thiserror::Error)]
#[non_exhaustive]
pub enum BoxError {
    /// The type is empty, has white space at its ends, or is one that only the model makes.
    #[error("box type {box_type:?} does not come from outside")]
    Type {
        /// The type.
        box_type: String,
    },
    /// The hidden type names a part of a message, and the hidden contents are not one of that kind.
    #[error("the hidden contents are no object of type {kind:?}")]
    Input {
        /// The kind that the hidden type names.
        kind: String,
    },
}

#[derive(Deserialize)]
struct Head {
    #[serde(rename = "type")]
    kind: String,
}

impl BoxBody {
    /// A box of any type.
    #[must_use]
    pub fn new(box_type: impl Into<String>, contents: impl Into<String>) -> Self {
        Self {
            box_type: box_type.into(),
            contents: contents.into(),
            ..Self::default()
        }
    }

    /// What the user says.
    #[must_use]
    pub fn user(text: impl Into<String>) -> Self {
        Self::new(box_type::USER_MESSAGE, text)
    }

    /// What the application says for itself.
    #[must_use]
    pub fn system(text: impl Into<String>) -> Self {
        Self::new(box_type::SYSTEM_MESSAGE, text)
    }

    /// Keeps hidden contents with it.
    #[must_use]
    pub fn hidden(
        mut self,
        hidden_type: impl Into<String>,
        hidden_contents: impl Into<String>,
    ) -> Self {
        self.hidden_type = hidden_type.into();
        self.hidden_contents = hidden_contents.into();
        self
    }

    /// An attachment of one of the three types: a part of a message in the schema's words, without
    /// contents of its own.
    #[must_use]
    pub fn attachment(box_type: impl Into<String>, item: &InputItem) -> Self {
        Self::new(box_type, "").input(item)
    }

    /// What a part of a message becomes. A text is a user message; one that has more than its text
    /// keeps the whole part beside it. Everything else is an attachment of the user's.
    #[must_use]
    pub fn of_input(item: &InputItem) -> Self {
        #[derive(Deserialize)]
        struct Text {
            text: String,
        }
        let text = from_object::<Head>(item.json().get())
            .ok()
            .filter(|head| head.kind == "text")
            .and_then(|_| from_object::<Text>(item.json().get()).ok());
        match text {
            None => Self::attachment(box_type::USER_ATTACHMENT, item),
            Some(Text { text }) if is_text_only(item.json()) => Self::user(text),
            Some(Text { text }) => Self::user(text).input(item),
        }
    }

    fn input(self, item: &InputItem) -> Self {
        // An item is an object with a type.
        let kind =
            from_object::<Head>(item.json().get()).map_or_else(|_| String::new(), |h| h.kind);
        self.hidden(format!("{INPUT}{kind}"), item.json().get())
    }

    /// Checks what comes from outside. An unknown type is fine, and so is any hidden type; one that
    /// names a part of a message needs hidden contents that are an object of this kind.
    ///
    /// # Errors
    ///
    /// See [`BoxError`].
    pub fn validate_outside(&self) -> Result<(), BoxError> {
        let by_the_model = [
            box_type::AGENT_RESPONSE,
            box_type::AGENT_MESSAGE,
            box_type::TOOL_CALL,
        ];
        // A line end in it would be read as another box's.
        let forges = self.box_type.chars().any(char::is_control);
        let made = by_the_model.contains(&self.box_type.as_str());
        if !is_clean(&self.box_type) || made || forges {
            return Err(BoxError::Type {
                box_type: self.box_type.clone(),
            });
        }
        match self.hidden_type.strip_prefix(INPUT) {
            Some(kind) if !self.holds(kind) => Err(BoxError::Input {
                kind: kind.to_owned(),
            }),
            Some(_) | None => Ok(()),
        }
    }

    fn holds(&self, kind: &str) -> bool {
        from_object::<Head>(&self.hidden_contents).is_ok_and(|head| head.kind == kind)
    }

    /// Whether the model reads anything of it.
    #[must_use]
    pub fn says_something(&self) -> bool {
        !self.contents.is_empty() || (self.is_attachment() && self.native_input().is_some())
    }

    /// Whether it never starts a round: only a tool's message does not.
    #[must_use]
    pub fn is_inert(&self) -> bool {
        self.box_type == box_type::TOOL_MESSAGE
    }

    /// Whether it is an attachment of one of the three types.
    #[must_use]
    pub fn is_attachment(&self) -> bool {
        matches!(
            self.box_type.as_str(),
            box_type::USER_ATTACHMENT | box_type::AGENT_ATTACHMENT | box_type::TOOL_ATTACHMENT
        )
    }

    /// The part of a message that the hidden contents are, if the server knows its kind. It is
    /// compact: a line of the wire has no line ends in it.
    #[must_use]
    pub fn native_input(&self) -> Option<InputItem> {
        let kind = self.hidden_type.strip_prefix(INPUT)?;
        if !is_native_kind(kind) || !self.holds(kind) {
            return None;
        }
        let raw = RawJson::parse(&self.hidden_contents).ok()?;
        InputItem::raw(raw.compact()).ok()
    }
}

/// Whether the server's schema knows a kind of part of a message (`UserInput`).
#[must_use]
pub fn is_native_kind(kind: &str) -> bool {
    matches!(
        kind,
        "text" | "image" | "localImage" | "audio" | "localAudio" | "skill" | "mention"
    )
}

/// Whether a text part says nothing but its text.
fn is_text_only(item: &RawJson) -> bool {
    item.read::<Members<'_>>().is_ok_and(|Members(members)| {
        members.iter().all(|(key, value)| match &**key {
            "type" | "text" => true,
            "text_elements" => RawJson::borrowed(value).compact().get() == "[]",
            _ => false,
        })
    })
}

/// No number is left: the space never wraps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no box numbers are left")]
pub struct Exhausted;

/// Why boxes do not go with a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CarryError {
    /// One of them is unknown, was submitted, or goes with another message.
    #[error("a box is not unsubmitted")]
    NotUnsubmitted,
    /// The message carries boxes: it is never used for other contents.
    #[error("the message carries boxes")]
    Carries,
}

/// The boxes of a conversation, append only, and which of them its native thread holds.
///
/// A box is *unsubmitted*, or a message *carries* it whose end is not known, or it is submitted.
/// The state is small: ranges of those that are not submitted.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Transcript {
    boxes: Vec<BoxBody>,
    #[serde(skip_serializing_if = "is_default")]
    unsubmitted: BoxSet,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    carried: BTreeMap<MessageId, BoxSet>,
}

impl Transcript {
    /// No box.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Whether there is no box.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.boxes.is_empty()
    }

    /// How many boxes there are.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.boxes.len() as u64
    }

    /// The number of the last box, 0 where there is none.
    #[must_use]
    pub fn last(&self) -> BoxId {
        BoxId(self.len())
    }

    /// The number that the next box gets.
    ///
    /// # Errors
    ///
    /// No number is left.
    pub fn next_id(&self) -> Result<BoxId, Exhausted> {
        self.last().next().ok_or(Exhausted)
    }

    /// Appends a box, unsubmitted or submitted from birth.
    ///
    /// # Errors
    ///
    /// No number is left; nothing has changed.
    pub fn append(&mut self, body: BoxBody, submitted: bool) -> Result<BoxId, Exhausted> {
        let id = self.next_id()?;
        self.boxes.push(body);
        if !submitted {
            self.unsubmitted.insert(id);
        }
        Ok(id)
    }

    /// A box.
    #[must_use]
    pub fn get(&self, id: BoxId) -> Option<&BoxBody> {
        self.boxes.get(usize::try_from(id.0.checked_sub(1)?).ok()?)
    }

    /// At most `limit` boxes from one on, in order. 0 is the first one.
    pub fn range(&self, from: BoxId, limit: u32) -> impl Iterator<Item = (BoxId, &BoxBody)> {
        let from = from.0.max(1);
        let skipped = usize::try_from(from - 1).unwrap_or(usize::MAX);
        let rest = self.boxes.get(skipped..).unwrap_or_default();
        let limit = usize::try_from(limit).unwrap_or(usize::MAX);
        let numbered = rest.iter().take(limit).zip(from..);
        numbered.map(|(body, id)| (BoxId(id), body))
    }

    /// The boxes of a set, in order.
    pub fn boxes<'a>(&'a self, set: &'a BoxSet) -> impl Iterator<Item = (BoxId, &'a BoxBody)> {
        set.iter().filter_map(|id| Some((id, self.get(id)?)))
    }

    /// The boxes that the native thread does not hold and no message carries.
    #[must_use]
    pub fn unsubmitted(&self) -> &BoxSet {
        &self.unsubmitted
    }

    /// The boxes that a message carries whose end is not known.
    #[must_use]
    pub fn carried(&self, message: &MessageId) -> Option<&BoxSet> {
        self.carried.get(message)
    }

    /// Lets a message carry boxes. A message without boxes leaves no trace.
    ///
    /// # Errors
    ///
    /// See [`CarryError`]; nothing has changed.
    pub fn carry(&mut self, message: &MessageId, boxes: &BoxSet) -> Result<(), CarryError> {
        if self.carried.contains_key(message) {
            return Err(CarryError::Carries);
        }
        if !self.unsubmitted.contains_all(boxes) {
            return Err(CarryError::NotUnsubmitted);
        }
        if !boxes.is_empty() {
            self.unsubmitted.subtract(boxes);
            self.carried.insert(message.clone(), boxes.clone());
        }
        Ok(())
    }

    /// The message was accepted, or may have been: what it carried is submitted for good. Whether
    /// there was anything.
    pub fn settle(&mut self, message: &MessageId) -> bool {
        self.carried.remove(message).is_some()
    }

    /// The message was not accepted: what it carried is unsubmitted again. Whether there was
    /// anything.
    pub fn give_back(&mut self, message: &MessageId) -> bool {
        let boxes = self.carried.remove(message);
        if let Some(boxes) = &boxes {
            self.unsubmitted.union(boxes);
        }
        boxes.is_some()
    }

    /// Marks an unsubmitted box as submitted. Whether it was unsubmitted.
    pub fn submit(&mut self, id: BoxId) -> bool {
        self.unsubmitted.remove(id)
    }

    /// Whether a message carries boxes whose fate is not known.
    pub(crate) fn is_carried(&self) -> bool {
        !self.carried.is_empty()
    }

    /// The native thread is another one from here on, which holds nothing: all boxes are
    /// unsubmitted but those that a message carries.
    pub fn forget_thread(&mut self) {
        self.unsubmitted = BoxSet::all(self.last());
        for boxes in self.carried.values() {
            self.unsubmitted.subtract(boxes);
        }
    }

    /// Checks what was read.
    ///
    /// # Errors
    ///
    /// A set names a box that does not exist, two sets name the same one, or a message carries
    /// none.
    pub fn validate(&self) -> Result<(), String> {
        let last = self.last();
        let mut seen = self.unsubmitted.clone();
        if seen.last() > Some(last) {
            return Err(format!("an unsubmitted box is past the last one, {last}"));
        }
        for (message, boxes) in &self.carried {
            if boxes.is_empty() {
                return Err(format!("message {message} carries no box"));
            }
            if boxes.last() > Some(last) {
                return Err(format!(
                    "message {message} carries a box past the last one, {last}"
                ));
            }
            if seen.intersects(boxes) {
                return Err(format!(
                    "message {message} carries a box that is unsubmitted or goes with another"
                ));
            }
            seen.union(boxes);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use alloc::string::ToString;

    use super::*;

    fn item(text: &str) -> InputItem {
        InputItem::raw(RawJson::parse(text).unwrap()).unwrap()
    }

    fn message(n: u8) -> MessageId {
        MessageId::new(&format!("msg_{n:032x}")).unwrap()
    }

    fn ids(ids: impl IntoIterator<Item = u64>) -> BoxSet {
        ids.into_iter().map(BoxId).collect()
    }

    #[test]
    fn empty_parts_are_not_written() {
        let text = serde_json::to_string(&BoxBody::new("Note", "")).unwrap();
        assert_eq!(text, r#"{"box_type":"Note"}"#);
        let full = BoxBody::user("hi").hidden("t", "c");
        let text = serde_json::to_string(&TranscriptBox {
            id: BoxId(3),
            body: full.clone(),
        })
        .unwrap();
        assert_eq!(
            text,
            r#"{"id":3,"body":{"box_type":"User Message","contents":"hi","hidden_type":"t","hidden_contents":"c"}}"#
        );
        let read: TranscriptBox = serde_json::from_str(&text).unwrap();
        assert_eq!(read.body, full);
        assert!(serde_json::from_str::<BoxBody>(r#"{"box_type":"a","more":1}"#).is_err());
    }

    #[test]
    fn parts_of_a_message_become_boxes() {
        let text = |json: &str| BoxBody::of_input(&item(json));
        for json in [
            r#"{"type":"text","text":"hi"}"#,
            r#"{ "text":"hi", "type":"text", "text_elements": [ ] }"#,
        ] {
            assert_eq!(text(json), BoxBody::user("hi"), "{json}");
        }
        for json in [
            r#"{"type":"text","text":"hi","text_elements":[{}]}"#,
            r#"{"type":"text","text":"hi","more":1}"#,
        ] {
            let want = BoxBody::user("hi").hidden("turnkeep.input/text", json);
            assert_eq!(text(json), want);
        }
        for (json, kind) in [
            (r#"{"type":"image","url":"u"}"#, "image"),
            (r#"{"type":"text","text":1}"#, "text"),
            (r#"{"type":"text"}"#, "text"),
            (r#"{"type":"new"}"#, "new"),
        ] {
            let want = BoxBody::new(box_type::USER_ATTACHMENT, "")
                .hidden(format!("turnkeep.input/{kind}"), json);
            assert_eq!(text(json), want);
            assert_eq!(want.validate_outside(), Ok(()));
        }
    }

    #[test]
    fn what_only_the_model_makes_does_not_come_from_outside() {
        for bad in [
            "",
            " ",
            "a ",
            "\u{2003}a",
            "Agent Response",
            "Agent Message",
            "Tool Call",
        ] {
            let refused = BoxError::Type {
                box_type: bad.into(),
            };
            assert_eq!(BoxBody::new(bad, "x").validate_outside(), Err(refused));
        }
        for good in [
            "User Message",
            "System Message",
            "Tool Message",
            "Tool Result",
            "User Attachment",
            "Agent Attachment",
            "Tool Attachment",
            "agent response",
            "Weather",
        ] {
            let body = BoxBody::new(good, "");
            assert_eq!(body.validate_outside(), Ok(()));
            assert_eq!(body.is_inert(), good == "Tool Message");
        }
    }

    #[test]
    fn hidden_input_is_of_the_kind_that_it_says() {
        let body = |hidden: &str, contents: &str| {
            BoxBody::new(box_type::USER_ATTACHMENT, "").hidden(hidden, contents)
        };
        for contents in [
            "",
            "{",
            "[\"image\"]",
            "{}",
            r#"{"type":"audio"}"#,
            r#"{"type":"image","type":"image"}"#,
            r#"{"type":"image"} x"#,
        ] {
            assert_eq!(
                body("turnkeep.input/image", contents).validate_outside(),
                Err(BoxError::Input {
                    kind: "image".to_string()
                }),
                "{contents}"
            );
            assert_eq!(body("turnkeep.input/image", contents).native_input(), None);
        }
        let good = body(
            "turnkeep.input/image",
            "{\n \"type\": \"image\", \"url\": \"a\\nb c\" }",
        );
        assert_eq!(good.validate_outside(), Ok(()));
        assert_eq!(
            good.native_input().unwrap().json().get(),
            r#"{"type":"image","url":"a\nb c"}"#
        );
        let unknown = body("turnkeep.input/video", r#"{"type":"video"}"#);
        assert_eq!(unknown.validate_outside(), Ok(()));
        assert_eq!(unknown.native_input(), None);
        assert_eq!(body("my.own/1", "no json").validate_outside(), Ok(()));
    }

    #[test]
    fn a_box_is_submitted_once() {
        let mut t = Transcript::new();
        assert_eq!((t.last(), t.next_id()), (BoxId(0), Ok(BoxId(1))));
        for n in 1..=5u64 {
            let id = t.append(BoxBody::user(n.to_string()), n == 3);
            assert_eq!(id, Ok(BoxId(n)));
        }
        assert_eq!(t.unsubmitted(), &ids([1, 2, 4, 5]));
        assert_eq!(t.get(BoxId(5)).unwrap().contents, "5");
        assert_eq!((t.get(BoxId(0)), t.get(BoxId(6))), (None, None));

        let (a, b) = (message(1), message(2));
        let before = t.clone();
        for bad in [ids([3]), ids([1, 2, 3]), ids([6])] {
            assert_eq!(t.carry(&a, &bad), Err(CarryError::NotUnsubmitted));
        }
        assert_eq!(t, before);
        assert_eq!(t.carry(&a, &ids([1, 2])), Ok(()));
        assert_eq!(t.carry(&a, &ids([4])), Err(CarryError::Carries));
        assert_eq!(t.carry(&b, &ids([2])), Err(CarryError::NotUnsubmitted));
        assert_eq!(t.carry(&b, &ids([4, 5])), Ok(()));
        assert_eq!(t.carried(&a), Some(&ids([1, 2])));
        assert!(t.unsubmitted().is_empty());

        assert!(t.give_back(&b) && !t.give_back(&b));
        assert!(t.settle(&a) && !t.settle(&a) && !t.give_back(&a));
        assert_eq!(t.unsubmitted(), &ids([4, 5]));
        assert!(t.submit(BoxId(5)) && !t.submit(BoxId(5)));
        assert_eq!(t.unsubmitted(), &ids([4]));
        assert_eq!(t.carry(&message(3), &BoxSet::new()), Ok(()));
        assert_eq!(t.carried(&message(3)), None);

        assert_eq!(t.carry(&message(4), &ids([4])), Ok(()));
        t.forget_thread();
        assert_eq!(t.unsubmitted(), &ids([1, 2, 3, 5]));
        assert_eq!(t.validate(), Ok(()));
    }

    #[test]
    fn a_range_begins_and_ends_anywhere() {
        let mut t = Transcript::new();
        for n in 1..=4u64 {
            t.append(BoxBody::user(n.to_string()), false).unwrap();
        }
        let told = |from, limit| {
            t.range(BoxId(from), limit)
                .map(|(id, body)| {
                    assert_eq!(body.contents, id.to_string());
                    id.0
                })
                .collect::<Vec<_>>()
        };
        assert_eq!(told(0, 2), [1, 2]);
        assert_eq!(told(1, 2), [1, 2]);
        assert_eq!(told(3, u32::MAX), [3, 4]);
        assert!(told(5, 9).is_empty() && told(u64::MAX, 9).is_empty() && told(1, 0).is_empty());
        let some = ids([2, 4, 9]);
        assert!(t.boxes(&some).map(|(id, _)| id.0).eq([2, 4]));
    }

    #[test]
    fn a_transcript_is_read_back_and_checked() {
        let mut t = Transcript::new();
        assert_eq!(serde_json::to_string(&t).unwrap(), r#"{"boxes":[]}"#);
        for n in 1..=3u64 {
            t.append(BoxBody::user(n.to_string()), false).unwrap();
        }
        t.carry(&message(1), &ids([2])).unwrap();
        let text = serde_json::to_string(&t).unwrap();
        assert_eq!(
            text,
            concat!(
                r#"{"boxes":[{"box_type":"User Message","contents":"1"},"#,
                r#"{"box_type":"User Message","contents":"2"},"#,
                r#"{"box_type":"User Message","contents":"3"}],"unsubmitted":[[1,1],[3,3]],"#,
                r#""carried":{"msg_00000000000000000000000000000001":[[2,2]]}}"#
            )
        );
        let read: Transcript = serde_json::from_str(&text).unwrap();
        assert_eq!((read.validate(), &read), (Ok(()), &t));
        for bad in [
            r#"{"boxes":[],"unsubmitted":[[1,1]]}"#,
            r#"{"boxes":[{"box_type":"a"}],"carried":{"m":[[2,2]]}}"#,
            r#"{"boxes":[{"box_type":"a"}],"carried":{"m":[]}}"#,
            r#"{"boxes":[{"box_type":"a"}],"unsubmitted":[[1,1]],"carried":{"m":[[1,1]]}}"#,
            r#"{"boxes":[{"box_type":"a"}],"carried":{"m":[[1,1]],"n":[[1,1]]}}"#,
        ] {
            let read: Transcript = serde_json::from_str(bad).unwrap();
            assert!(read.validate().is_err(), "{bad}");
        }
    }
}
