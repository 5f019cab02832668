//! How boxes become a message.

use alloc::{string::String, vec::Vec};
use core::fmt::Write as _;

use super::{BoxBody, INPUT, box_type};
use crate::{command::InputItem, id::BoxId, settings::Rendering};

/// Renders boxes as the parts of a message: one text with a section a box, then the attachments as
/// the schema has them, in box order.
///
/// - A section is `[Box N | Type]`, a newline, the contents. A box with empty contents has none, and
///   a text without sections is left out.
/// - A newline stands between two sections where the first does not end with one.
/// - The marker is such a section with empty contents, for the answer that is to come. It is the last
///   one, stands only in [`Rendering::Boxed`], and there always.
/// - In [`Rendering::Plain`] the section of a user message is its contents alone. One that was more
///   than a text goes as the part that it was, among the attachments, and has no section.
/// - An attachment goes as a part if its hidden contents are one of a kind that the server knows; its
///   contents, if it has any, are a section all the same.
/// - Nothing else that is hidden is rendered.
#[must_use]
pub fn render<'a>(
    boxes: impl IntoIterator<Item = (BoxId, &'a BoxBody)>,
    marker: Option<BoxId>,
    rendering: Rendering,
) -> Vec<InputItem> {
    let mut text = String::new();
    let mut parts = Vec::new();
    for (id, body) in boxes {
        let as_part = as_part(body, rendering);
        let is_user = body.box_type == box_type::USER_MESSAGE;
        let is_replaced = is_user && as_part.is_some();
        parts.extend(as_part);
        if body.contents.is_empty() || is_replaced {
            continue;
        }
        let has_header = rendering == Rendering::Boxed || !is_user;
        begin(&mut text, has_header.then_some((id, &body.box_type)));
        text.push_str(&body.contents);
    }
    if let Some(id) = marker.filter(|_| rendering == Rendering::Boxed) {
        begin(&mut text, Some((id, box_type::AGENT_RESPONSE)));
    }
    if !text.is_empty() {
        parts.insert(0, InputItem::text(&text));
    }
    parts
}

/// The part of a message that a box is, where it is one.
fn as_part(body: &BoxBody, rendering: Rendering) -> Option<InputItem> {
    let was_text = body.hidden_type.strip_prefix(INPUT) == Some("text");
    let is_user = body.box_type == box_type::USER_MESSAGE;
    let is_plain_text = is_user && was_text && rendering == Rendering::Plain;
    (body.is_attachment() || is_plain_text)
        .then(|| body.native_input())
        .flatten()
}

/// Begins a section.
fn begin(text: &mut String, header: Option<(BoxId, &str)>) {
    if !text.is_empty() && !text.ends_with('\n') {
        text.push('\n');
    }
    if let Some((id, box_type)) = header {
        // Writing to memory cannot fail.
        let _ = writeln!(text, "[Box {id} | {box_type}]");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{RawJson, id::BoxId};

    fn both(bodies: &[BoxBody], marker: Option<u64>) -> (Vec<InputItem>, Vec<InputItem>) {
        let of = |rendering| {
            let boxes = (1..).map(BoxId).zip(bodies);
            render(boxes, marker.map(BoxId), rendering)
        };
        (of(Rendering::Plain), of(Rendering::Boxed))
    }

    fn text(text: &str) -> Vec<InputItem> {
        alloc::vec![InputItem::text(text)]
    }

    #[test]
    fn every_type_has_its_section() {
        let bodies = [
            BoxBody::user("Hello"),
            BoxBody::system("Be kind."),
            BoxBody::new(box_type::AGENT_RESPONSE, "I look."),
            BoxBody::new(box_type::TOOL_CALL, "call 1: look {}").hidden("h", "never"),
            BoxBody::new(box_type::TOOL_RESULT, "result of call 1: ok\nsun"),
            BoxBody::new("Weather | [x]", "für 世界 🌍"),
            BoxBody::user("Go on"),
        ];
        let (plain, boxed) = both(&bodies, Some(8));
        assert_eq!(
            plain,
            text(
                "Hello\n[Box 2 | System Message]\nBe kind.\n[Box 3 | Agent Response]\nI look.\n\
                 [Box 4 | Tool Call]\ncall 1: look {}\n[Box 5 | Tool Result]\n\
                 result of call 1: ok\nsun\n[Box 6 | Weather | [x]]\nfür 世界 🌍\nGo on"
            )
        );
        assert_eq!(
            boxed,
            text(
                "[Box 1 | User Message]\nHello\n[Box 2 | System Message]\nBe kind.\n\
                 [Box 3 | Agent Response]\nI look.\n[Box 4 | Tool Call]\ncall 1: look {}\n\
                 [Box 5 | Tool Result]\nresult of call 1: ok\nsun\n[Box 6 | Weather | [x]]\n\
                 für 世界 🌍\n[Box 7 | User Message]\nGo on\n[Box 8 | Agent Response]\n"
            )
        );
    }

    #[test]
    fn a_newline_is_put_only_where_none_is() {
        let bodies = [
            BoxBody::user("one\n"),
            BoxBody::user("two\n\n"),
            BoxBody::user("\nthree"),
            BoxBody::user("\n"),
            BoxBody::user("five\r\n"),
        ];
        let (plain, boxed) = both(&bodies, Some(6));
        assert_eq!(plain, text("one\ntwo\n\n\nthree\n\nfive\r\n"));
        assert_eq!(
            boxed,
            text(
                "[Box 1 | User Message]\none\n[Box 2 | User Message]\ntwo\n\n\
                 [Box 3 | User Message]\n\nthree\n[Box 4 | User Message]\n\n\
                 [Box 5 | User Message]\nfive\r\n[Box 6 | Agent Response]\n"
            )
        );
    }

    #[test]
    fn empty_contents_have_no_section() {
        let bodies = [
            BoxBody::user("a"),
            BoxBody::new(box_type::AGENT_RESPONSE, ""),
            BoxBody::user(""),
            BoxBody::user("b"),
        ];
        let (plain, boxed) = both(&bodies, None);
        assert_eq!(plain, text("a\nb"));
        assert_eq!(
            boxed,
            text("[Box 1 | User Message]\na\n[Box 4 | User Message]\nb")
        );

        let (plain, boxed) = both(&[BoxBody::user(""), BoxBody::system("")], Some(3));
        assert_eq!(plain, []);
        assert_eq!(boxed, text("[Box 3 | Agent Response]\n"));
        let (plain, boxed) = both(&[BoxBody::user("")], None);
        assert_eq!((plain, boxed), (Vec::new(), Vec::new()));
    }

    #[test]
    fn attachments_go_beside_the_text() {
        let image = InputItem::image("data:1");
        let skill = InputItem::skill("s", "/s");
        let bodies = [
            BoxBody::attachment(box_type::USER_ATTACHMENT, &image),
            BoxBody::user("look"),
            BoxBody::attachment(box_type::TOOL_ATTACHMENT, &skill),
            BoxBody::new(box_type::USER_ATTACHMENT, "page 1").hidden("my.pdf/1", "%PDF"),
            BoxBody::new(box_type::AGENT_ATTACHMENT, "")
                .hidden("turnkeep.input/video", r#"{"type":"video"}"#),
            // No attachment: the hidden part stays hidden.
            BoxBody::new("Weather", "sun").hidden("turnkeep.input/image", image.json().get()),
        ];
        let (plain, boxed) = both(&bodies, Some(7));
        assert_eq!(
            plain,
            [
                InputItem::text("look\n[Box 4 | User Attachment]\npage 1\n[Box 6 | Weather]\nsun"),
                image.clone(),
                skill.clone(),
            ]
        );
        assert_eq!(
            boxed,
            [
                InputItem::text(
                    "[Box 2 | User Message]\nlook\n[Box 4 | User Attachment]\npage 1\n\
                     [Box 6 | Weather]\nsun\n[Box 7 | Agent Response]\n"
                ),
                image.clone(),
                skill,
            ]
        );
        let (plain, boxed) = both(&bodies[..1], None);
        assert_eq!(
            (plain, boxed),
            (alloc::vec![image.clone()], alloc::vec![image])
        );
    }

    #[test]
    fn a_text_that_is_more_goes_as_it_is_where_it_is_plain() {
        let raw = RawJson::parse(r#"{"type":"text","text":"hi","text_elements":[{"a":1}]}"#);
        let item = InputItem::raw(raw.unwrap()).unwrap();
        let bodies = [BoxBody::of_input(&item), BoxBody::user("there")];
        let (plain, boxed) = both(&bodies, None);
        assert_eq!(plain, [InputItem::text("there"), item]);
        assert_eq!(
            boxed,
            text("[Box 1 | User Message]\nhi\n[Box 2 | User Message]\nthere")
        );
    }
}
