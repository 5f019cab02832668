use serde_json::{Value, json};

use super::*;

/// A client that answers what the server asks, in virtual time.
struct Client {
    server: Demo,
    now: u64,
    seen: Vec<Value>,
    answer: fn(&Value) -> Option<Value>,
}

impl Client {
    fn new(answer: fn(&Value) -> Option<Value>) -> Self {
        let mut client = Self {
            server: Demo::new(10),
            now: 0,
            seen: Vec::new(),
            answer,
        };
        client.send(json!({"id": 0, "method": "initialize", "params": {"clientInfo": {"name": "probe", "version": "1"}, "capabilities": {"experimentalApi": true}}}));
        client.send(json!({"method": "initialized"}));
        client
    }

    fn send(&mut self, frame: Value) {
        let actions = self.server.on_line(self.now, frame.to_string().as_bytes());
        self.take(actions);
    }

    fn take(&mut self, actions: Vec<Action>) {
        for action in actions {
            let Action::Write(bytes) = action else {
                panic!("{action:?}")
            };
            assert_eq!(bytes.last(), Some(&b'\n'));
            let frame: Value = serde_json::from_slice(&bytes).unwrap();
            self.seen.push(frame.clone());
            let asks = frame.get("method").is_some() && frame.get("id").is_some();
            if let Some(answer) = asks.then(|| (self.answer)(&frame)).flatten() {
                self.send(answer);
            }
        }
    }

    /// Lets time pass until nothing is due, or until `stop`.
    fn run_until(&mut self, stop: impl Fn(&Value) -> bool) {
        while let Some(due) = self.server.due() {
            if self.seen.last().is_some_and(&stop) {
                return;
            }
            self.now = self.now.max(due);
            let actions = self.server.poll(self.now);
            self.take(actions);
        }
    }

    fn run(&mut self) {
        self.run_until(|_| false);
    }

    fn thread(&mut self, params: Value) -> String {
        self.send(json!({"id": 1, "method": "thread/start", "params": params}));
        let frame = self
            .seen
            .iter()
            .rev()
            .find(|frame| frame["id"] == 1)
            .unwrap();
        frame["result"]["thread"]["id"].as_str().unwrap().to_owned()
    }

    fn start(&mut self, thread: &str, text: &str) {
        self.send(json!({"id": 2, "method": "turn/start", "params": {"threadId": thread, "input": [{"type": "text", "text": text}], "clientUserMessageId": "msg-1"}}));
    }

    fn running(&self) -> Value {
        self.seen
            .iter()
            .rev()
            .find(|frame| frame["method"] == "turn/started")
            .unwrap()["params"]["turn"]["id"]
            .clone()
    }

    /// Methods, with the item type where there is one; `=N` for a response; deltas in a row count as one.
    fn methods(&self) -> Vec<String> {
        let mut all: Vec<String> = self.seen.iter().map(name).collect();
        all.dedup_by(|a, b| a == b && a == "item/agentMessage/delta");
        all
    }
}

fn name(frame: &Value) -> String {
    let Some(method) = frame["method"].as_str() else {
        return format!("={}", frame["id"]);
    };
    match frame["params"]["item"]["type"].as_str() {
        Some(kind) => format!("{method} {kind}"),
        None => method.to_owned(),
    }
}

fn silent(_: &Value) -> Option<Value> {
    None
}

fn last<'a>(client: &'a Client, method: &str) -> &'a Value {
    client
        .seen
        .iter()
        .rev()
        .find(|frame| frame["method"] == method)
        .unwrap()
}

/// What the recordings of 0.171.0 begin with: hello.jsonl.
const OPENING: [&str; 5] = [
    "=0",
    "configWarning",
    "remoteControl/status/changed",
    "=1",
    "thread/started",
];
/// A turn's beginning, from hello.jsonl.
const BEGUN: [&str; 6] = [
    "warning",
    "=2",
    "thread/status/changed",
    "turn/started",
    "item/started userMessage",
    "item/completed userMessage",
];
/// A message and a turn's end, from hello.jsonl.
const SAID: [&str; 8] = [
    "item/started agentMessage",
    "item/agentMessage/delta",
    "item/completed agentMessage",
    "thread/tokenUsage/updated",
    "account/rateLimits/updated",
    "thread/readState/changed",
    "thread/status/changed",
    "turn/completed",
];

fn sequence(parts: &[&[&str]]) -> Vec<String> {
    parts.concat().into_iter().map(str::to_owned).collect()
}

#[test]
fn hello_is_as_recorded() {
    let mut client = Client::new(silent);
    let thread = client
        .thread(json!({"cwd": "/workspace", "approvalPolicy": "never", "sandbox": "read-only"}));
    client.start(&thread, "hi");
    client.run();
    client.start(&thread, "again");
    client.run();
    assert_eq!(
        client.methods(),
        sequence(&[&OPENING, &BEGUN, &SAID, &BEGUN, &SAID])
    );
    let end = &last(&client, "turn/completed")["params"]["turn"];
    assert_eq!(end["itemsView"], "summary");
    assert_eq!(
        end["items"][0]["text"],
        "This is answer 2 of our conversation. You said: again"
    );
    assert_eq!(
        last(&client, "thread/status/changed")["params"]["status"]["type"],
        "idle"
    );
    let user = client
        .seen
        .iter()
        .find(|frame| name(frame) == "item/completed userMessage")
        .unwrap();
    assert_eq!(user["params"]["item"]["clientId"], "msg-1");
}

#[test]
fn tool_calls_are_as_recorded() {
    let mut client = Client::new(|request| {
        let city = request["params"]["arguments"]["city"].as_str()?;
        let text = format!("{city} is fine");
        Some(
            json!({"id": request["id"], "result": {"contentItems": [{"type": "inputText", "text": text}], "success": city != "Lima"}}),
        )
    });
    let tool = json!({"type": "function", "name": "weather", "description": "d", "inputSchema": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}});
    let thread = client.thread(json!({"dynamicTools": [tool]}));
    client.start(&thread, "What is the weather in Oslo and in Lima?");
    client.run();
    let call = [
        "item/started dynamicToolCall",
        "item/tool/call",
        "item/completed dynamicToolCall",
    ];
    let usage = ["thread/tokenUsage/updated", "account/rateLimits/updated"];
    assert_eq!(
        client.methods(),
        sequence(&[&OPENING, &BEGUN, &call, &call, &usage, &SAID])
    );
    let text = &last(&client, "turn/completed")["params"]["turn"]["items"][0]["text"];
    assert_eq!(
        text,
        "Here is what I found. Oslo: Oslo is fine. Lima: the tool failed (Lima is fine)."
    );
    let calls: Vec<_> = client
        .seen
        .iter()
        .filter(|frame| name(frame) == "item/completed dynamicToolCall")
        .collect();
    assert_eq!(calls[0]["params"]["item"]["status"], "completed");
    assert_eq!(calls[1]["params"]["item"]["status"], "failed");
    assert_eq!(calls[1]["params"]["item"]["id"], "call_0_1");
}

#[test]
fn approvals_are_as_recorded() {
    let mut client = Client::new(|request| {
        let decision = if request["params"]["command"].as_str()?.contains("rm") {
            "decline"
        } else {
            "accept"
        };
        Some(json!({"id": request["id"], "result": {"decision": decision}}))
    });
    let thread = client.thread(json!({"approvalPolicy": "untrusted"}));
    client.start(&thread, "run: touch f.txt\nrun: rm f.txt");
    client.run();
    let asked = [
        "thread/status/changed",
        "item/started commandExecution",
        "item/commandExecution/requestApproval",
        "serverRequest/resolved",
    ];
    let accepted = [
        "thread/status/changed",
        "item/commandExecution/outputDelta",
        "item/completed commandExecution",
    ];
    let declined = ["item/completed commandExecution", "thread/status/changed"];
    let usage = ["thread/tokenUsage/updated", "account/rateLimits/updated"];
    assert_eq!(
        client.methods(),
        sequence(&[
            &OPENING, &BEGUN, &asked, &accepted, &asked, &declined, &usage, &SAID
        ])
    );
    assert_eq!(client.seen.iter().filter(|frame| frame["params"]["status"]["activeFlags"] == json!(["waitingOnApproval"])).count(), 2);
}

#[test]
fn a_cancelled_approval_interrupts() {
    let mut client =
        Client::new(|request| Some(json!({"id": request["id"], "result": {"decision": "cancel"}})));
    let thread = client.thread(json!({"approvalPolicy": "untrusted"}));
    client.start(&thread, "run: rm x");
    client.run();
    let turn = &last(&client, "turn/completed")["params"]["turn"];
    assert_eq!(
        (&turn["status"], &turn["itemsView"]),
        (&json!("interrupted"), &json!("notLoaded"))
    );
    assert_eq!(client.server.due(), None);
}

#[test]
fn questions_are_as_recorded() {
    let mut client = Client::new(|request| {
        Some(json!({"id": request["id"], "result": {"answers": {"choice": {"answers": ["Yes"]}}}}))
    });
    let thread = client.thread(json!({}));
    client.start(&thread, "ask: Shall we?");
    client.run();
    let asked = [
        "thread/status/changed",
        "item/tool/requestUserInput",
        "serverRequest/resolved",
        "thread/status/changed",
    ];
    let usage = ["thread/tokenUsage/updated", "account/rateLimits/updated"];
    assert_eq!(
        client.methods(),
        sequence(&[&OPENING, &BEGUN, &asked, &usage, &SAID])
    );
    let text = last(&client, "turn/completed")["params"]["turn"]["items"][0]["text"].clone();
    assert_eq!(text, "Here is what I found. Shall we?: you said Yes.");
}

#[test]
fn interrupting_a_stream_is_as_recorded() {
    let mut client = Client::new(silent);
    let thread = client.thread(json!({}));
    client.start(&thread, "a long one");
    client.run_until(|frame| frame["method"] == "item/agentMessage/delta");
    let turn = client.running();
    client.send(json!({"id": 3, "method": "turn/interrupt", "params": {"threadId": thread, "turnId": turn}}));
    client.send(json!({"id": 4, "method": "turn/interrupt", "params": {"threadId": thread, "turnId": turn}}));
    client.run();
    let methods = client.methods();
    let expected = [
        "item/completed agentMessage",
        "account/rateLimits/updated",
        "thread/readState/changed",
        "=3",
        "thread/status/changed",
        "turn/completed",
        "=4",
    ];
    assert_eq!(methods[methods.len() - expected.len()..], expected);
    assert_eq!(
        client.seen.last().unwrap()["error"]["message"],
        "no active turn to interrupt"
    );
    assert_eq!(
        last(&client, "turn/completed")["params"]["turn"]["status"],
        "interrupted"
    );
}

#[test]
fn interrupting_an_open_call_is_as_recorded() {
    let mut client = Client::new(silent);
    let tool = json!({"type": "function", "name": "lookup", "description": "d", "inputSchema": {}});
    let thread = client.thread(json!({"dynamicTools": [tool]}));
    client.start(&thread, r#"call: lookup {"key":"a"}"#);
    client.run();
    let turn = client.running();
    client.send(json!({"id": 3, "method": "turn/interrupt", "params": {"threadId": thread, "turnId": turn}}));
    client.send(json!({"id": 0, "result": {"contentItems": [], "success": true}}));
    let methods = client.methods();
    let expected = [
        "item/tool/call",
        "item/completed dynamicToolCall",
        "thread/tokenUsage/updated",
        "account/rateLimits/updated",
    ];
    let at = methods
        .iter()
        .position(|method| method == "item/tool/call")
        .unwrap();
    assert_eq!(methods[at..at + 4], expected);
    assert_eq!(
        methods.last().unwrap(),
        "turn/completed",
        "a late answer is ignored"
    );
}

#[test]
fn steering_breaks_the_stream_off() {
    let mut client = Client::new(silent);
    let thread = client.thread(json!({}));
    client.start(&thread, "a long one");
    client.run_until(|frame| frame["method"] == "item/agentMessage/delta");
    let turn = client.running();
    let steer = |id: u64, expected: &Value, text: &str| json!({"id": id, "method": "turn/steer", "params": {"threadId": thread, "expectedTurnId": expected, "input": [{"type": "text", "text": text}], "clientUserMessageId": "steer-1"}});
    client.send(steer(
        3,
        &json!("00000000-0000-7000-8000-000000000000"),
        "bad",
    ));
    assert!(
        client.seen.last().unwrap()["error"]["message"]
            .as_str()
            .unwrap()
            .starts_with("expected active turn id `0000")
    );
    client.send(steer(4, &turn, "more"));
    client.run();
    client.send(steer(5, &turn, "late"));
    let methods = client.methods();
    let at = methods.iter().position(|method| method == "=4").unwrap();
    let after = [
        "=4",
        "account/rateLimits/updated",
        "item/started userMessage",
        "item/completed userMessage",
    ];
    assert_eq!(methods[at..], sequence(&[&after, &SAID, &["=5"]]));
    assert_eq!(
        client.seen.last().unwrap()["error"]["message"],
        "no active turn to steer"
    );
    client.send(json!({"id": 6, "method": "thread/items/list", "params": {"threadId": thread}}));
    let items = client.seen.last().unwrap()["result"]["data"]
        .as_array()
        .unwrap()
        .clone();
    let kinds: Vec<_> = items
        .iter()
        .map(|entry| entry["item"]["type"].as_str().unwrap())
        .collect();
    assert_eq!(
        kinds,
        ["userMessage", "userMessage", "agentMessage"],
        "the broken text is in no history"
    );
    assert_eq!(items[1]["item"]["clientId"], "steer-1");
}

#[test]
fn a_second_start_is_folded_in() {
    let mut client = Client::new(silent);
    let thread = client.thread(json!({}));
    client.start(&thread, "one");
    client.start(&thread, "two");
    let turns: Vec<_> = client
        .seen
        .iter()
        .filter(|frame| frame["id"] == 2)
        .map(|frame| frame["result"]["turn"]["id"].clone())
        .collect();
    assert_eq!(turns[0], turns[1]);
    client.run();
    assert_eq!(
        client
            .methods()
            .iter()
            .filter(|method| *method == "turn/completed")
            .count(),
        1
    );
    assert_eq!(
        client
            .methods()
            .iter()
            .filter(|method| *method == "item/completed userMessage")
            .count(),
        2
    );
}

#[test]
fn threads_interleave() {
    let mut client = Client::new(silent);
    let (first, second) = (client.thread(json!({})), client.thread(json!({})));
    assert_ne!(first, second);
    client.start(&first, "one");
    client.start(&second, "two");
    client.run();
    let deltas = client
        .seen
        .iter()
        .filter(|frame| frame["method"] == "item/agentMessage/delta");
    let mut order: Vec<_> = deltas
        .map(|frame| frame["params"]["threadId"].as_str().unwrap())
        .collect();
    let all = order.len();
    order.dedup();
    assert!(order.len() > all / 2, "{order:?}");
}

#[test]
fn history_comes_in_pages() {
    let mut client = Client::new(silent);
    let thread = client.thread(json!({}));
    for text in ["a", "b", "c"] {
        client.start(&thread, text);
        client.run();
    }
    let mut cursor = Value::Null;
    let mut turns = Vec::new();
    loop {
        client.send(json!({"id": 7, "method": "thread/turns/list", "params": {"threadId": thread, "limit": 2, "cursor": cursor}}));
        let page = client.seen.last().unwrap()["result"].clone();
        turns.extend(page["data"].as_array().unwrap().clone());
        cursor = page["nextCursor"].clone();
        if cursor.is_null() {
            break;
        }
    }
    let said: Vec<_> = turns
        .iter()
        .map(|turn| turn["items"][0]["content"][0]["text"].as_str().unwrap())
        .collect();
    assert_eq!(said, ["c", "b", "a"]);
}

#[test]
fn refusals_are_as_recorded() {
    let mut client = Client::new(silent);
    let unknown = "00000000-0000-7000-8000-000000000000";
    let mut refused = |method: &str, params: Value| {
        client.send(json!({"id": "s", "method": method, "params": params}));
        let frame = client.seen.last().unwrap();
        assert_eq!(
            (&frame["id"], &frame["error"]["code"]),
            (&json!("s"), &json!(-32600))
        );
        frame["error"]["message"].as_str().unwrap().to_owned()
    };
    assert!(
        refused("no/such", json!({})).starts_with(
            "Invalid request: unknown variant `no/such`, expected one of `initialize`"
        )
    );
    assert_eq!(refused("initialize", json!({})), "Already initialized");
    assert_eq!(
        refused("turn/start", json!({"threadId": unknown, "input": []})),
        format!("thread not found: {unknown}")
    );
    assert_eq!(
        refused("thread/resume", json!({"threadId": unknown})),
        format!("no rollout found for thread id {unknown}")
    );
    assert!(
        refused("thread/read", json!({"threadId": "not-a-uuid"}))
            .starts_with("invalid thread id: ")
    );
    let thread = client.thread(json!({}));
    client.send(json!({"id": 9, "method": "thread/resume", "params": {"threadId": thread}}));
    assert_eq!(
        client.seen.last().unwrap()["error"]["message"],
        format!("no rollout found for thread id {thread}")
    );
}

#[test]
fn schemas_names_and_opting_out() {
    let mut client = Client::new(silent);
    let thread = client.thread(json!({}));
    client.send(
        json!({"id": 3, "method": "thread/name/set", "params": {"threadId": thread, "name": "n"}}),
    );
    assert_eq!(
        last(&client, "thread/name/updated")["params"]["threadName"],
        "n"
    );
    let schema = json!({"type": "object", "properties": {"answer": {"type": "integer"}}, "required": ["answer"]});
    client.send(json!({"id": 2, "method": "turn/start", "params": {"threadId": thread, "input": [{"type": "text", "text": "2+2"}], "outputSchema": schema}}));
    client.run();
    assert_eq!(
        last(&client, "turn/completed")["params"]["turn"]["items"][0]["text"],
        r#"{"answer":4}"#
    );
    client.send(json!({"id": 4, "method": "thread/unsubscribe", "params": {"threadId": thread}}));
    assert_eq!(
        client.seen.last().unwrap()["result"]["status"],
        "unsubscribed"
    );

    let mut server = Demo::new(0);
    let hello = json!({"id": 0, "method": "initialize", "params": {"clientInfo": {"name": "p", "version": "1"}, "capabilities": {"optOutNotificationMethods": ["configWarning"]}}});
    assert_eq!(server.on_line(0, hello.to_string().as_bytes()).len(), 2);
}

#[test]
fn what_was_kept_is_there_again_after_a_kill() {
    let mut first = Demo::new(1).keeping("");
    let mut kept = String::new();
    let mut told = String::new();
    let mut take = |actions: Vec<Action>| {
        for action in actions {
            match action {
                Action::Keep(bytes) => kept = String::from_utf8(bytes).unwrap(),
                Action::Write(bytes) => told.push_str(&String::from_utf8(bytes).unwrap()),
                _ => {}
            }
        }
    };
    let initialize =
        r#"{"id":1,"method":"initialize","params":{"clientInfo":{"name":"x","version":"1"}}}"#;
    take(first.on_line(0, initialize.as_bytes()));
    take(first.on_line(0, br#"{"id":2,"method":"thread/start","params":{}}"#));
    let thread = first.threads.keys().next().unwrap().clone();
    let start = format!(
        r#"{{"id":3,"method":"turn/start","params":{{"threadId":"{thread}","clientUserMessageId":"m1","input":[{{"type":"text","text":"hello"}}]}}}}"#
    );
    take(first.on_line(0, start.as_bytes()));
    for now in 1..100 {
        take(first.poll(now));
    }
    // In the middle of the answer.
    for now in 300..308 {
        take(first.poll(now));
    }
    assert!(told.contains("item/agentMessage/delta") && !told.contains("turn/completed"));

    let mut second = Demo::new(1).keeping(&kept);
    let resume = format!(
        r#"{{"id":4,"method":"thread/resume","params":{{"threadId":"{thread}","excludeTurns":true}}}}"#
    );
    let list = format!(
        r#"{{"id":5,"method":"thread/turns/list","params":{{"threadId":"{thread}","itemsView":"full"}}}}"#
    );
    let mut answers = String::new();
    for line in [initialize, &start, &resume, &list] {
        for action in second.on_line(0, line.as_bytes()) {
            if let Action::Write(bytes) = action {
                answers.push_str(&String::from_utf8(bytes).unwrap());
            }
        }
    }
    let answers: Vec<Value> = answers
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let answer = |id: u64| answers.iter().find(|answer| answer["id"] == id).unwrap();
    // Not loaded before it is resumed.
    assert!(
        answer(3)["error"]["message"]
            .as_str()
            .unwrap()
            .contains("thread not found")
    );
    let turn = &answer(5)["result"]["data"][0];
    assert_eq!(turn["status"], "interrupted");
    assert_eq!(turn["items"].as_array().unwrap().len(), 1);
    assert_eq!(turn["items"][0]["clientId"], "m1");
}
