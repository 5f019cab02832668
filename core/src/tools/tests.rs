use super::*;
use crate::json::canonical;
use crate::{BoxBody, InputItem};

fn tools() -> Vec<Tool> {
    let schema = || RawJson::parse("{}").unwrap();
    alloc::vec![
        Tool::function("run", "", schema()),
        Tool::function("route", "", schema()).kind(ToolKind::Router),
        Tool::function("say", "", schema()).kind(ToolKind::Message),
    ]
}

fn malformed(tool: &str, arguments: &str) -> MalformedCall {
    let id = ToolCallId {
        nonce: crate::id::Nonce([0; 12]),
        sequence: 7,
    };
    match read(&tools(), tool, canonical(arguments).unwrap()).unwrap() {
        Meaning::Malformed(fault) => fault.numbered(id),
        other => panic!("{tool} {arguments} is well formed: {other:?}"),
    }
}

const ROUTER: &str = "object with exactly name and arguments";
const MESSAGE: &str = "object with exactly message";

/// Tool, arguments; code, path, expected, received, the name that it is recorded under.
const ROWS: [(&str, &str, [&str; 5]); 22] = [
    (
        "other",
        "{}",
        [
            "unknown_tool",
            "$.name",
            "route, run, say",
            "other",
            "other",
        ],
    ),
    // The first hit counts.
    (
        "Run",
        "[1, 2]",
        ["unknown_tool", "$.name", "route, run, say", "Run", "Run"],
    ),
    (
        "run",
        "null",
        ["arguments_not_object", "$", "object", "null", "run"],
    ),
    (
        "run",
        "true",
        ["arguments_not_object", "$", "object", "boolean", "run"],
    ),
    (
        "run",
        "1",
        ["arguments_not_object", "$", "object", "number", "run"],
    ),
    (
        "run",
        "[1]",
        ["arguments_not_object", "$", "object", "array", "run"],
    ),
    (
        "route",
        "\"x\"",
        ["arguments_not_object", "$", "object", "string", "route"],
    ),
    // A wrapper is no list of its members.
    (
        "route",
        r#"["a",{}]"#,
        ["arguments_not_object", "$", "object", "array", "route"],
    ),
    (
        "say",
        r#"["hi"]"#,
        ["arguments_not_object", "$", "object", "array", "say"],
    ),
    (
        "route",
        "{}",
        ["invalid_wrapper_fields", "$", ROUTER, "{}", "route"],
    ),
    (
        "route",
        r#"{"name":"a"}"#,
        [
            "invalid_wrapper_fields",
            "$",
            ROUTER,
            r#"{"name":"a"}"#,
            "a",
        ],
    ),
    (
        "route",
        r#"{"name": "\u0061", "arguments": {"z": 1.0, "b": []}, "more": 1e2}"#,
        [
            "invalid_wrapper_fields",
            "$",
            ROUTER,
            r#"{"arguments":{"b":[],"z":1.0},"more":1e2,"name":"a"}"#,
            "a",
        ],
    ),
    (
        "route",
        r#"{"name":7,"more":1}"#,
        [
            "invalid_wrapper_fields",
            "$",
            ROUTER,
            r#"{"more":1,"name":7}"#,
            "route",
        ],
    ),
    (
        "route",
        r#"{"name":1e2,"arguments":{}}"#,
        ["name_not_string", "$.name", "string", "1e2", "route"],
    ),
    (
        "route",
        r#"{"name": {"b": 1, "a": [ ]}, "arguments":null}"#,
        [
            "name_not_string",
            "$.name",
            "string",
            r#"{"a":[],"b":1}"#,
            "route",
        ],
    ),
    (
        "route",
        r#"{"name":null,"arguments":1}"#,
        ["name_not_string", "$.name", "string", "null", "route"],
    ),
    (
        "say",
        "{}",
        ["invalid_wrapper_fields", "$", MESSAGE, "{}", "say"],
    ),
    (
        "say",
        r#"{"message":"hi","name":"run"}"#,
        [
            "invalid_wrapper_fields",
            "$",
            MESSAGE,
            r#"{"message":"hi","name":"run"}"#,
            "say",
        ],
    ),
    (
        "say",
        r#"{"b":1,"a":2}"#,
        [
            "invalid_wrapper_fields",
            "$",
            MESSAGE,
            r#"{"a":2,"b":1}"#,
            "say",
        ],
    ),
    (
        "say",
        r#"{"message":[]}"#,
        ["message_not_string", "$.message", "string", "[]", "say"],
    ),
    (
        "say",
        r#"{"message": {"b": -0, "a": "\/"}}"#,
        [
            "message_not_string",
            "$.message",
            "string",
            r#"{"a":"/","b":-0}"#,
            "say",
        ],
    ),
    (
        "say",
        r#"{"message":""}"#,
        [
            "message_empty",
            "$.message",
            "non-empty string",
            r#""""#,
            "say",
        ],
    ),
];

#[test]
fn malformed_calls_are_named_by_the_first_hit() {
    for (tool, arguments, want) in ROWS {
        let call = malformed(tool, arguments);
        let is = [
            &call.code,
            &call.path,
            &call.expected,
            &call.received,
            call.recorded_tool(),
        ];
        assert_eq!(is, want, "{tool} {arguments}");
        assert_eq!(call.native_tool, tool);
        assert_eq!(call.arguments, canonical(arguments).unwrap());
        assert_eq!(call.canonical(), canonical(&call.canonical()).unwrap());
    }
}

#[test]
fn arguments_without_a_canonical_form_are_no_call() {
    // Which of the two the model meant cannot be told: the request is undecodable.
    let twice = canonical(r#"{"name":"a","arguments":{},"name":"b"}"#);
    assert_eq!(twice, Err(CanonicalError::DuplicateKey("name".into())));
}

#[test]
fn the_model_reads_what_is_wrong() {
    let facts = [
        ("other", r#"{"b":"\n","a":1.0}"#),
        ("run", "[ 1, \"x\" ]"),
        ("route", r#"{"name":"a\"b"}"#),
        ("route", r#"{"name":7,"arguments":{}}"#),
        ("say", r#"{"message":null}"#),
        ("say", r#"{"message":""}"#),
    ]
    .map(|(tool, arguments)| malformed_result_body(&malformed(tool, arguments)));
    let text = |kind, native, attempted, code, path, expected, received, arguments| {
        format!(
            "result of call 7: failed\nmalformed call\nkind: {kind}\nnative tool: {native}\n\
             attempted tool: {attempted}\ncode: {code}\npath: {path}\nexpected: {expected}\n\
             received: {received}\narguments: {arguments}"
        )
    };
    let none = "absent";
    let wrapper = "invalid_wrapper_fields";
    let want = [
        text(
            none,
            "other",
            none,
            "unknown_tool",
            "$.name",
            "route, run, say",
            "other",
            r#"{"a":1.0,"b":"\n"}"#,
        ),
        text(
            "function",
            "run",
            none,
            "arguments_not_object",
            "$",
            "object",
            "array",
            r#"[1,"x"]"#,
        ),
        text(
            "router",
            "route",
            "a\"b",
            wrapper,
            "$",
            ROUTER,
            r#"{"name":"a\"b"}"#,
            r#"{"name":"a\"b"}"#,
        ),
        text(
            "router",
            "route",
            none,
            "name_not_string",
            "$.name",
            "string",
            "7",
            r#"{"arguments":{},"name":7}"#,
        ),
        text(
            "message",
            "say",
            none,
            "message_not_string",
            "$.message",
            "string",
            "null",
            r#"{"message":null}"#,
        ),
        text(
            "message",
            "say",
            none,
            "message_empty",
            "$.message",
            "non-empty string",
            r#""""#,
            r#"{"message":""}"#,
        ),
    ];
    let hidden = [
        r#"{"arguments":{"a":1.0,"b":"\n"},"attemptedTool":null,"code":"unknown_tool","expected":"route, run, say","kind":null,"nativeTool":"other","path":"$.name","received":"other"}"#,
        r#"{"arguments":[1,"x"],"attemptedTool":null,"code":"arguments_not_object","expected":"object","kind":"function","nativeTool":"run","path":"$","received":"array"}"#,
        r#"{"arguments":{"name":"a\"b"},"attemptedTool":"a\"b","code":"invalid_wrapper_fields","expected":"object with exactly name and arguments","kind":"router","nativeTool":"route","path":"$","received":"{\"name\":\"a\\\"b\"}"}"#,
        r#"{"arguments":{"arguments":{},"name":7},"attemptedTool":null,"code":"name_not_string","expected":"string","kind":"router","nativeTool":"route","path":"$.name","received":"7"}"#,
        r#"{"arguments":{"message":null},"attemptedTool":null,"code":"message_not_string","expected":"string","kind":"message","nativeTool":"say","path":"$.message","received":"null"}"#,
        r#"{"arguments":{"message":""},"attemptedTool":null,"code":"message_empty","expected":"non-empty string","kind":"message","nativeTool":"say","path":"$.message","received":"\"\""}"#,
    ];
    for ((body, want), hidden) in facts.iter().zip(want).zip(hidden) {
        assert_eq!((&*body.box_type, &body.contents), ("Tool Result", &want));
        assert_eq!(body.hidden_type, "turnkeep.malformed-call/1");
        assert_eq!(body.hidden_contents, hidden);
    }
}

#[test]
fn a_call_and_a_message_become_boxes() {
    let call = call_body(3, "lo\"ok", r#"{"a":[1.0]}"#);
    assert_eq!(call.box_type, "Tool Call");
    assert_eq!(call.contents, "call 3: lo\"ok {\"a\":[1.0]}");
    assert_eq!(call.hidden_type, "turnkeep.tool-call/1");
    let hidden = r#"{"arguments":{"a":[1.0]},"name":"lo\"ok","sequence":3}"#;
    assert_eq!(call.hidden_contents, hidden);
    assert_eq!(canonical(hidden).unwrap(), hidden);

    let message = message_body(3, "half\n");
    assert_eq!(message.box_type, "Tool Message");
    assert_eq!(message.contents, "message of call 3\nhalf\n");
    assert_eq!(message.hidden_type, "turnkeep.tool-message/1");
    assert_eq!(message.hidden_contents, r#"{"sequence":3,"text":"half\n"}"#);
    assert!(message.is_inert() && !call.is_inert());

    assert_eq!(
        agent_message_body("hi"),
        BoxBody::new("Agent Message", "hi")
    );
}

#[test]
fn a_result_becomes_boxes() {
    let result = ToolResult::ok("a")
        .with(ToolContent::Image("data:1".into()))
        .with(ToolContent::Text("b\n".into()))
        .with(ToolContent::Text("c".into()))
        .with(ToolContent::Audio("data:2".into()))
        .metadata(crate::command::Metadata {
            metadata_type: "t".into(),
            contents: "\"".into(),
        });
    let bodies = result_bodies(9, &result, None);
    let hidden = concat!(
        r#"{"content":[{"text":"a"},{"image":"data:1"},{"text":"b\n"},{"text":"c"},"#,
        r#"{"audio":"data:2"}],"metadata":{"contents":"\"","type":"t"},"sequence":9,"#,
        r#""success":true}"#
    );
    let of = |item| BoxBody::attachment("Tool Attachment", &item);
    assert_eq!(
        bodies,
        [
            BoxBody::new("Tool Result", "result of call 9: ok\na\nb\nc")
                .hidden("turnkeep.tool-result/1", hidden),
            of(InputItem::image("data:1")),
            of(InputItem::audio("data:2")),
        ]
    );
    assert_eq!(bodies[1].hidden_type, "turnkeep.input/image");
    assert_eq!(canonical(hidden).unwrap(), hidden);
    assert_eq!(
        result_fingerprint(&result),
        hidden.replace(r#""sequence":9,"#, "")
    );
    assert!(is_result_of(&bodies[0], 9, &result) && !is_result_of(&bodies[0], 8, &result));
    assert!(!is_result_of(&bodies[0], 9, &ToolResult::ok("a")));

    let closed = ToolResult::failed("interrupted");
    let why = Some(CallClosedWhy::Interrupted);
    let body = &result_bodies(1, &closed, why)[0];
    assert_eq!(body.contents, "result of call 1: failed\ninterrupted");
    let hidden = concat!(
        r#"{"closed":"interrupted","content":[{"text":"interrupted"}],"metadata":null,"#,
        r#""sequence":1,"success":false}"#
    );
    assert_eq!(body.hidden_contents, hidden);
    assert_eq!(canonical(hidden).unwrap(), hidden);
    assert!(!is_result_of(body, 1, &closed));
    assert_eq!(
        result_bodies(1, &ToolResult::ok(""), None)[0].contents,
        "result of call 1: ok\n"
    );
}

#[test]
fn a_router_records_the_inner_call() {
    let raw: &RawValue =
        serde_json::from_str(r#"{"arguments":{"b":1,"a":2},"name":"inner"}"#).unwrap();
    let Meaning::Call {
        tool,
        via,
        arguments,
    } = read(&tools(), "route", canonical(raw.get()).unwrap()).unwrap()
    else {
        panic!("not a call");
    };
    assert_eq!((tool.as_str(), via.as_deref()), ("inner", Some("route")));
    assert_eq!(arguments.get(), r#"{"a":2,"b":1}"#);
}
