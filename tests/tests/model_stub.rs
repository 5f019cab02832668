//! The model stub against the real app-server: what a script says is what the server makes of it.

use serde_json::{Value, json};
use turnkeep_tests::{
    app_server::{AppServer, PATIENCE},
    codex::{CodexHome, VERSIONS, codex},
    model::{self, Gate, Model, Reply, Usage},
};

/// Runs one turn of one reply and returns the server at its end, with the params of `turn/completed`.
fn one_turn(version: &str, reply: Reply) -> (AppServer, Model, Value) {
    let model = Model::queued([reply]);
    let home = CodexHome::new(&model);
    let mut server = AppServer::initialized(&codex(version), &home);
    let thread = server.start_thread(&home, json!({}));
    let turn = server.start_turn(&thread, "hello");
    let completed = server.until_method("turn/completed")["params"].clone();
    assert_eq!(
        (&completed["threadId"], &completed["turn"]["id"]),
        (&json!(thread), &json!(turn))
    );
    (server, model, completed)
}

fn deltas(server: &AppServer) -> Vec<&str> {
    let deltas = server.notifications("item/agentMessage/delta");
    deltas
        .iter()
        .filter_map(|params| params["delta"].as_str())
        .collect()
}

#[test]
fn initialize_names_the_version() {
    for version in VERSIONS {
        let model = Model::queued([]);
        let home = CodexHome::new(&model);
        let mut server = AppServer::start(&codex(version), &home);
        let client = json!({ "name": "probe", "title": null, "version": "1" });
        let result = server.request("initialize", json!({ "clientInfo": client }));
        let agent = result["userAgent"].as_str().unwrap();
        assert!(agent.starts_with(&format!("probe/{version} ")), "{agent}");
        assert_eq!(result["codexHome"], json!(home.path()));
    }
}

#[test]
fn text_comes_in_the_deltas_of_the_script() {
    for version in VERSIONS {
        let usage = Usage {
            input: 700,
            cached: 300,
            output: 40,
            reasoning: 8,
        };
        let (server, model, completed) =
            one_turn(version, model::chunks(["Hel", "lo", "."]).usage(usage));
        assert_eq!(completed["turn"]["status"], "completed", "{version}");
        assert_eq!(completed["turn"]["items"][0]["text"], "Hello.", "{version}");
        assert_eq!(deltas(&server), ["Hel", "lo", "."], "{version}");

        let asked = model.requests();
        assert_eq!(asked.len(), 1, "{version}: the model is asked once a turn");
        assert_eq!(model::last_user_text(&asked[0]), Some("hello"), "{version}");

        let told = server.notifications("thread/tokenUsage/updated");
        let total = &told.last().unwrap()["tokenUsage"]["total"];
        assert_eq!(total["inputTokens"], 700, "{version}");
        assert_eq!(total["cachedInputTokens"], 300, "{version}");
        assert_eq!(total["outputTokens"], 40, "{version}");
        assert_eq!(total["reasoningOutputTokens"], 8, "{version}");
        assert_eq!(total["totalTokens"], 740, "{version}");
    }
}

#[test]
fn answered_tool_call_comes_back_to_the_model() {
    for version in VERSIONS {
        let model = Model::queued([
            model::text("I look.").call("lookup", "call-7", json!({ "key": "a" })),
            model::text("It is v."),
        ]);
        let home = CodexHome::new(&model);
        let mut server = AppServer::initialized(&codex(version), &home);
        let schema = json!({ "type": "object", "properties": { "key": { "type": "string" } } });
        let tool = json!({
            "type": "function", "name": "lookup", "description": "Looks up.", "inputSchema": schema,
        });
        let thread = server.start_thread(&home, json!({ "dynamicTools": [tool] }));
        server.start_turn(&thread, "look a up");

        let call = server.until_method("item/tool/call");
        assert_eq!(call["params"]["callId"], "call-7", "{version}");
        assert_eq!(call["params"]["tool"], "lookup", "{version}");
        assert_eq!(
            call["params"]["arguments"],
            json!({ "key": "a" }),
            "{version}"
        );
        let content = json!([{ "type": "inputText", "text": "v" }]);
        server.send(
            &json!({ "id": call["id"], "result": { "contentItems": content, "success": true } }),
        );

        let completed = server.until_method("turn/completed");
        assert_eq!(
            completed["params"]["turn"]["status"], "completed",
            "{version}"
        );
        let asked = model.requests();
        assert_eq!(asked.len(), 2, "{version}");
        assert!(
            model::tool_names(&asked[0]).contains(&"lookup"),
            "{version}"
        );
        assert_eq!(model::call_outputs(&asked[0]), [], "{version}");
        assert_eq!(
            model::call_outputs(&asked[1]),
            [("call-7", "v".to_owned())],
            "{version}"
        );
        assert_eq!(deltas(&server).concat(), "I look.It is v.", "{version}");
    }
}

#[test]
fn http_500_fails_the_turn() {
    for version in VERSIONS {
        let (server, model, completed) = one_turn(version, model::status(500));
        assert_eq!(completed["turn"]["status"], "failed", "{version}");
        assert_eq!(
            completed["turn"]["error"]["codexErrorInfo"], "internalServerError",
            "{version}"
        );
        let errors = server.notifications("error");
        assert_eq!(errors.len(), 1, "{version}");
        assert_eq!(errors[0]["willRetry"], false, "{version}");
        assert_eq!(model.requests().len(), 1, "{version}: retries are off");
    }
}

#[test]
fn failed_response_fails_the_turn_by_its_code() {
    for version in VERSIONS {
        let reply = model::failed("context_length_exceeded", "too long");
        let (_, model, completed) = one_turn(version, reply);
        assert_eq!(completed["turn"]["status"], "failed", "{version}");
        assert_eq!(
            completed["turn"]["error"]["codexErrorInfo"], "contextWindowExceeded",
            "{version}"
        );
        assert_eq!(model.requests().len(), 1, "{version}");
    }
}

#[test]
fn cut_stream_fails_the_turn_after_its_text() {
    for version in VERSIONS {
        let (server, model, completed) = one_turn(version, model::chunks(["par", "tial"]).cut());
        assert_eq!(completed["turn"]["status"], "failed", "{version}");
        let message = completed["turn"]["error"]["message"].as_str().unwrap();
        assert!(
            message.contains("stream disconnected before completion"),
            "{version}: {message}"
        );
        assert_eq!(deltas(&server), ["par", "tial"], "{version}");
        assert_eq!(model.requests().len(), 1, "{version}");
    }
}

#[test]
fn script_without_a_reply_says_so_in_the_turn() {
    for version in VERSIONS {
        let model = Model::queued([]);
        let home = CodexHome::new(&model);
        let mut server = AppServer::initialized(&codex(version), &home);
        let thread = server.start_thread(&home, json!({}));
        server.start_turn(&thread, "more than was scripted");
        let completed = server.until_method("turn/completed");
        let message = completed["params"]["turn"]["error"]["message"]
            .as_str()
            .unwrap();
        assert!(
            message.contains("more than was scripted"),
            "{version}: {message}"
        );
    }
}

#[test]
fn held_answers_of_two_threads_keep_apart() {
    for version in VERSIONS {
        let (red, blue) = (Gate::new(), Gate::new());
        let model = Model::keyed([
            ("red", [model::text("red ").hold(&red).text("rose")]),
            ("blue", [model::text("blue ").hold(&blue).text("bell")]),
        ]);
        let home = CodexHome::new(&model);
        let mut server = AppServer::initialized(&codex(version), &home);
        let threads = ["red", "blue"].map(|text| {
            let thread = server.start_thread(&home, json!({}));
            server.start_turn(&thread, text);
            thread
        });
        red.wait_reached(PATIENCE);
        blue.wait_reached(PATIENCE);
        for (gate, thread, text) in [
            (&blue, &threads[1], "blue bell"),
            (&red, &threads[0], "red rose"),
        ] {
            gate.open();
            let completed = server.until_method("turn/completed");
            assert_eq!(&completed["params"]["threadId"], thread, "{version}");
            assert_eq!(
                completed["params"]["turn"]["items"][0]["text"], text,
                "{version}"
            );
        }
    }
}
