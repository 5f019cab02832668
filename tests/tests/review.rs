//! What a second reader tried to break. Each test names the sentence of the specification that it
//! holds the machine to.

use serde_json::{Value, json};
use turnkeep_core::{
    CloseReason, Closed, Command, CommandError, CommandId, Config, ConversationId, ConversationKey,
    Event, Input, InputItem, Outcome, QuestionId, RawJson, Reply, SendOptions, Settings, Tool,
    ToolCallId, ToolResult, TurnEnd, TurnNo, TurnUpdate,
    command::{Answer, BusyWhy, Questions, RequestEffect, ToolContent},
    event::{ConversationUpdate, FailureKind, ProtocolError, QuestionClosedWhy},
};
use turnkeep_tests::by_hand::{ByHand, EPOCH};

/// A machine with one conversation whose thread is `t1`.
struct One {
    host: ByHand,
    conversation: ConversationId,
}

impl One {
    fn new() -> Self {
        Self::with(turnkeep_tests::one_connection())
    }

    fn with(config: Config) -> Self {
        let mut host = ByHand::ready_with(config);
        let schema = RawJson::parse("{}").expect("JSON");
        let settings = Settings::new()
            .questions(Questions::Ask)
            .tool(Tool::function("look", "", schema));
        let command = host.command(Command::Open {
            key: ConversationKey::new("k").expect("a key"),
            settings: settings.into(),
        });
        let Some(Ok(Reply::Opened { conversation })) = host.answer(command) else {
            panic!("not opened");
        };
        let conversation = *conversation;
        Self { host, conversation }
    }

    fn send(&mut self) -> CommandId {
        self.send_with(SendOptions::new())
    }

    fn send_with(&mut self, options: SendOptions) -> CommandId {
        self.host.command(Command::Send {
            conversation: self.conversation,
            input: vec![InputItem::text("hi")],
            options: options.into(),
        })
    }

    /// Sends, and answers `thread/start`. `turn/start` is out.
    fn sent() -> (Self, Value) {
        let mut one = Self::new();
        let start = one.start();
        (one, start)
    }

    fn start(&mut self) -> Value {
        self.send();
        let start = self.host.next_sent("thread/start");
        self.result(&start, &json!({"thread": {"id": "t1"}}));
        self.host.next_sent("turn/start")
    }

    /// A turn `u1` that runs.
    fn running() -> Self {
        Self::running_with(turnkeep_tests::one_connection())
    }

    fn running_with(config: Config) -> Self {
        let mut one = Self::with(config);
        let start = one.start();
        one.result(&start, &json!({"turn": {"id": "u1"}}));
        one.tell("turn/started", &json!({"turn": turn("u1", "inProgress")}));
        one
    }

    fn result(&mut self, request: &Value, result: &Value) {
        let answer = json!({"id": request["id"], "result": result});
        self.host.line(&answer.to_string());
    }

    fn refuse(&mut self, request: &Value, code: i64, message: &str) {
        let error = json!({"code": code, "message": message});
        let answer = json!({"id": request["id"], "error": error});
        self.host.line(&answer.to_string());
    }

    /// A notification of thread `t1`, and of turn `u1` where the parameters name none.
    fn tell(&mut self, method: &str, params: &Value) {
        let frame = json!({"method": method, "params": self.scoped(params)});
        self.host.line(&frame.to_string());
    }

    fn ask(&mut self, id: &Value, method: &str, params: &Value) {
        let frame = json!({"id": id, "method": method, "params": self.scoped(params)});
        self.host.line(&frame.to_string());
    }

    fn scoped(&self, params: &Value) -> Value {
        let mut params = params.clone();
        let map = params.as_object_mut().expect("parameters are an object");
        map.entry("threadId").or_insert(json!("t1"));
        if !map.contains_key("turn") && !map.contains_key("status") {
            map.entry("turnId").or_insert(json!("u1"));
        }
        params
    }

    fn call(&mut self, id: u64, call: &str) {
        let params = json!({"callId": call, "tool": "look", "arguments": {}});
        self.ask(&json!(id), "item/tool/call", &params);
    }

    fn approval(&mut self, id: u64, item: &str) {
        let params = json!({"itemId": item, "availableDecisions": ["accept", "decline", "cancel"]});
        self.ask(&json!(id), "item/commandExecution/requestApproval", &params);
    }

    fn end(&mut self, native: &str, status: &str) {
        self.tell("turn/completed", &json!({"turn": turn(native, status)}));
    }

    fn close(&mut self) {
        let closed = Closed::new(CloseReason::Eof, String::new());
        self.host.step(Input::Closed(EPOCH, closed.into()));
    }

    fn steer(&mut self, turn: TurnNo) -> CommandId {
        let input = vec![InputItem::text("more")];
        self.host.command(Command::Steer { turn, input })
    }

    fn updates(&self, turn: TurnNo) -> Vec<&TurnUpdate> {
        self.host
            .events
            .iter()
            .filter_map(|event| match event {
                Event::Turn(event) if event.turn == turn => Some(&event.update),
                _ => None,
            })
            .collect()
    }

    fn ends(&self, turn: TurnNo) -> Vec<&TurnEnd> {
        self.updates(turn)
            .into_iter()
            .filter_map(|update| match update {
                TurnUpdate::Ended(end) => Some(&**end),
                _ => None,
            })
            .collect()
    }

    fn only_end(&self, turn: TurnNo) -> &Outcome {
        match &self.ends(turn)[..] {
            [end] => &end.outcome,
            other => panic!("{} ends", other.len()),
        }
    }

    fn last_call(&self, turn: TurnNo) -> ToolCallId {
        self.updates(turn)
            .iter()
            .rev()
            .find_map(|update| match update {
                TurnUpdate::ToolCall(call) => Some(call.id),
                _ => None,
            })
            .expect("a call")
    }

    fn last_question(&self, turn: TurnNo) -> QuestionId {
        self.updates(turn)
            .iter()
            .rev()
            .find_map(|update| match update {
                TurnUpdate::Question(question) => Some(question.id),
                _ => None,
            })
            .expect("a question")
    }

    fn protocol_errors(&self) -> Vec<&ProtocolError> {
        use turnkeep_core::event::ConnectionEvent as C;
        self.host
            .events
            .iter()
            .filter_map(|event| match event {
                Event::Connection(event) => match &**event {
                    C::Protocol(error) => Some(error),
                    _ => None,
                },
                _ => None,
            })
            .collect()
    }

    fn began(&self) -> usize {
        self.host
            .events
            .iter()
            .filter(|event| match event {
                Event::Conversation(event) => {
                    matches!(event.update, ConversationUpdate::TurnBegan { .. })
                }
                _ => false,
            })
            .count()
    }
}

const FIRST: TurnNo = TurnNo(1);

fn turn(id: &str, status: &str) -> Value {
    json!({"id": id, "status": status, "items": []})
}

fn is_answered(one: &One, command: CommandId) -> bool {
    one.host.answer(command).is_some()
}

// 3: "a repeat after -32001"; 5: "Requested before the frame left: it never leaves".
#[test]
fn a_message_that_waits_to_be_tried_again_never_leaves_once_it_is_interrupted() {
    let (mut one, start) = One::sent();
    one.refuse(&start, -32_001, "Server overloaded; retry later.");
    let command = one.host.command(Command::Interrupt { turn: FIRST });
    assert_eq!(one.host.answer(command), Some(&Ok(Reply::Interrupted)));
    assert_eq!(*one.only_end(FIRST), Outcome::Interrupted);
    while one.host.wait_for_timer() {}
    assert!(one.host.sent.is_empty(), "{:?}", one.host.sent);
}

#[test]
fn a_message_that_waits_to_be_tried_again_is_sent_again_and_runs() {
    let (mut one, start) = One::sent();
    one.refuse(&start, -32_001, "Server overloaded; retry later.");
    assert!(one.host.wait_for_timer());
    let again = one.host.next_sent("turn/start");
    assert_ne!(again["id"], start["id"]);
    assert_eq!(again["params"], start["params"]);
    one.result(&again, &json!({"turn": {"id": "u1"}}));
    one.end("u1", "completed");
    assert!(matches!(one.only_end(FIRST), Outcome::Completed { .. }));
}

// 6.2: "Each message id accepted at most once."
#[test]
fn a_message_that_was_seen_is_not_sent_again_whatever_its_response_says() {
    let (mut one, start) = One::sent();
    let message = &start["params"]["clientUserMessageId"];
    let item = json!({"type": "userMessage", "id": "i", "clientId": message});
    one.tell("item/completed", &json!({"item": item}));
    one.refuse(&start, -32_001, "Server overloaded; retry later.");
    one.end("u1", "completed");
    assert!(matches!(one.only_end(FIRST), Outcome::Completed { .. }));
    while one.host.wait_for_timer() {}
    assert!(one.host.sent.is_empty(), "{:?}", one.host.sent);
}

#[test]
fn a_steer_that_was_seen_is_not_sent_again_whatever_its_response_says() {
    let mut one = One::running();
    let command = one.steer(FIRST);
    let steer = one.host.next_sent("turn/steer");
    let message = &steer["params"]["clientUserMessageId"];
    let item = json!({"type": "userMessage", "id": "i", "clientId": message});
    one.tell("item/completed", &json!({"item": item}));
    assert!(matches!(
        one.host.answer(command),
        Some(Ok(Reply::Steered { .. }))
    ));
    one.refuse(&steer, -32_001, "Server overloaded; retry later.");
    one.end("u1", "completed");
    while one.host.wait_for_timer() {}
    assert!(one.host.sent.is_empty(), "{:?}", one.host.sent);
}

// 4: "The connection's end is a state: every wait ends with it".
#[test]
fn a_steer_without_an_answer_is_answered_when_the_connection_ends() {
    let mut one = One::running();
    let command = one.steer(FIRST);
    one.host.next_sent("turn/steer");
    let second = one.steer(FIRST);
    one.close();
    assert!(matches!(
        one.host.answer(command),
        Some(Err(CommandError::Unknown { .. }))
    ));
    assert!(is_answered(&one, second));
}

#[test]
fn a_steer_without_an_answer_is_answered_when_its_turn_is_lost() {
    let mut one = One::running();
    let steer = one.steer(FIRST);
    let frame = one.host.next_sent("turn/steer");
    one.host.command(Command::Interrupt { turn: FIRST });
    one.host.next_sent("turn/interrupt");
    one.host.wait_for_timer();
    assert!(matches!(one.only_end(FIRST), Outcome::Lost { .. }));
    one.result(&frame, &json!({"turnId": "u1"}));
    one.close();
    assert!(is_answered(&one, steer));
}

#[test]
fn a_close_without_an_answer_succeeds_when_the_connection_ends() {
    let mut one = One::running();
    one.end("u1", "completed");
    let conversation = one.conversation;
    let first = one.host.command(Command::Close { conversation });
    let second = one.host.command(Command::Close { conversation });
    one.host.next_sent("thread/unsubscribe");
    one.close();
    for command in [first, second] {
        assert_eq!(one.host.answer(command), Some(&Ok(Reply::Done)));
    }
}

// 3: "`close` is unsubscribing ... afterwards the key is free"; 6.9: no wait without an end.
#[test]
fn a_turn_that_the_server_begins_in_a_closing_conversation_ends_with_it() {
    let mut one = One::running();
    one.end("u1", "completed");
    let conversation = one.conversation;
    let command = one.host.command(Command::Close { conversation });
    let frame = one.host.next_sent("thread/unsubscribe");
    one.tell("turn/started", &json!({"turn": turn("u2", "inProgress")}));
    one.result(&frame, &json!({"status": "unsubscribed"}));
    assert_eq!(one.host.answer(command), Some(&Ok(Reply::Done)));
    assert_eq!(one.ends(TurnNo(2)).len(), 1);
    one.close();
}

// 6.9: what a connection told before its end begins nothing after it.
#[test]
fn frames_that_were_kept_begin_no_turn_after_the_connection() {
    let (mut one, _) = One::sent();
    let item = json!({"type": "agentMessage", "id": "i", "text": ""});
    one.tell("item/started", &json!({"turnId": "other", "item": item}));
    one.close();
    assert!(matches!(one.only_end(FIRST), Outcome::Unknown { .. }));
    assert_eq!(one.began(), 0);
}

#[test]
fn frames_that_were_kept_begin_no_turn_while_we_shut_down() {
    let (mut one, _) = One::sent();
    let item = json!({"type": "agentMessage", "id": "i", "text": ""});
    one.tell("item/started", &json!({"turnId": "other", "item": item}));
    one.host.command(Command::Shutdown);
    assert_eq!(one.began(), 0);
    one.close();
}

// 3: "Frames that come before the response that names their turn are kept (1,024 a turn) ...
// past that ... the turn ends `Failed {Protocol}`; other turns do not notice."
#[test]
fn too_many_early_frames_of_a_refused_turn_do_not_fail_the_next_one() {
    let mut config = turnkeep_tests::one_connection();
    config.limits.early_frames = 2;
    let mut one = One::with(config);
    let start = one.start();
    for _ in 0..4 {
        one.tell("turn/diff/updated", &json!({"diff": ""}));
    }
    one.refuse(&start, -32_600, "no");
    assert!(matches!(one.only_end(FIRST), Outcome::Rejected { .. }));
    one.host.command(Command::Dismiss {
        conversation: ConversationId(1),
    });
    one.send();
    let start = one.host.next_sent("turn/start");
    one.result(&start, &json!({"turn": {"id": "u2"}}));
    one.end("u2", "completed");
    assert!(matches!(one.only_end(TurnNo(2)), Outcome::Completed { .. }));
}

// 6.10: "No input, of any bytes, ... makes it grow without bound."
#[test]
fn early_frames_are_limited_in_bytes_too() {
    let mut config = turnkeep_tests::one_connection();
    config.limits.frame = 100_000;
    let mut one = One::with(config);
    let start = one.start();
    let diff = "x".repeat(60_000);
    one.tell("turn/diff/updated", &json!({"diff": diff}));
    one.tell("turn/diff/updated", &json!({"diff": diff}));
    one.result(&start, &json!({"turn": {"id": "u1"}}));
    let Outcome::Failed { error } = one.only_end(FIRST) else {
        panic!("{:?}", one.only_end(FIRST));
    };
    assert_eq!(error.kind, FailureKind::Protocol);
}

// 3: "A turn id from a response is provisional until `turn/started` or a frame names it."
#[test]
fn a_turn_whose_response_named_a_ghost_is_interrupted_under_its_real_name() {
    let (mut one, start) = One::sent();
    one.result(&start, &json!({"turn": {"id": "ghost"}}));
    let message = &start["params"]["clientUserMessageId"];
    let item = json!({"type": "userMessage", "id": "i", "clientId": message});
    one.tell("item/started", &json!({"turnId": "real", "item": item}));
    one.host.acks = false;
    let command = one.host.command(Command::Interrupt { turn: FIRST });
    assert!(one.host.sent.is_empty(), "sent before its record");
    one.host.acks = true;
    one.host.ack();
    let interrupt = one.host.next_sent("turn/interrupt");
    assert_eq!(interrupt["params"]["turnId"], "real");
    one.result(&interrupt, &json!({}));
    one.end("real", "interrupted");
    assert_eq!(one.host.answer(command), Some(&Ok(Reply::Interrupted)));
    assert_eq!(*one.only_end(FIRST), Outcome::Interrupted);
}

// 4: queues are bounded, past the cap "the turn fails and is interrupted": one that waits has
// nothing to interrupt.
#[test]
fn a_full_queue_ends_a_turn_that_waits_before_it_is_sent() {
    let mut one = One::new();
    one.send();
    let start = one.host.next_sent("thread/start");
    one.host.step(Input::QueueFull(one.conversation));
    assert!(matches!(one.only_end(FIRST), Outcome::Rejected { .. }));
    one.result(&start, &json!({"thread": {"id": "t1"}}));
    assert!(one.host.sent.is_empty());
}

#[test]
fn a_full_queue_fails_the_turn_that_runs_once() {
    let mut one = One::running();
    one.host.step(Input::QueueFull(one.conversation));
    one.host.step(Input::QueueFull(one.conversation));
    let interrupt = one.host.next_sent("turn/interrupt");
    one.result(&interrupt, &json!({}));
    one.end("u1", "interrupted");
    let Outcome::Failed { error } = one.only_end(FIRST) else {
        panic!("{:?}", one.only_end(FIRST));
    };
    assert_eq!(error.kind, FailureKind::QueueFull);
    assert!(one.host.sent.is_empty());
}

// 4: "a second live server request with an id in use: the same key is a replay, another key is a
// protocol error that is not answered".
#[test]
fn a_request_under_an_id_in_use_is_never_answered() {
    let asks: [(&str, Value); 6] = [
        ("no/such", json!({})),
        ("currentTime/read", json!({})),
        ("attestation/generate", json!({})),
        ("item/tool/call", json!({"callId": 5})),
        (
            "item/tool/call",
            json!({"threadId": "nobody", "callId": "c", "tool": "look", "arguments": {}}),
        ),
        (
            "item/fileChange/requestApproval",
            json!({"threadId": "nobody", "itemId": "i"}),
        ),
    ];
    for (method, params) in asks {
        let mut one = One::running();
        one.call(0, "c1");
        one.ask(&json!(0), method, &params);
        assert!(one.host.sent.is_empty(), "{method}: {:?}", one.host.sent);
        let reported = one
            .protocol_errors()
            .iter()
            .any(|error| matches!(error, ProtocolError::IdInUse { .. }));
        assert!(reported, "{method}");
        let call = one.last_call(FIRST);
        let result = ToolResult::ok("v");
        one.host.command(Command::Respond { call, result });
        assert_eq!(
            one.host.sent.pop_front().map(|s| s.json["id"].clone()),
            Some(json!(0))
        );
    }
}

#[test]
fn the_same_request_again_is_the_same_request() {
    let mut one = One::running();
    one.call(0, "c1");
    one.call(0, "c1");
    one.approval(1, "i1");
    one.approval(1, "i1");
    assert!(one.protocol_errors().is_empty());
    let count = |wanted: fn(&TurnUpdate) -> bool| {
        one.updates(FIRST).into_iter().filter(|u| wanted(u)).count()
    };
    assert_eq!(count(|u| matches!(u, TurnUpdate::ToolCall(_))), 1);
    assert_eq!(count(|u| matches!(u, TurnUpdate::Question(_))), 1);
}

// 5, question: an answered question's id may be used again; what is asked then is another thing.
#[test]
fn an_id_that_is_used_again_after_an_answer_names_the_new_request_only() {
    let mut one = One::running();
    one.approval(0, "i1");
    let question = one.last_question(FIRST);
    let answer = Answer::Accept;
    one.host.command(Command::Answer { question, answer });
    assert_eq!(
        one.host.sent.pop_front().map(|s| s.json["result"].clone()),
        Some(json!({"decision": "accept"}))
    );
    // Before serverRequest/resolved.
    one.call(0, "c1");
    one.tell("serverRequest/resolved", &json!({"requestId": 0}));
    let call = one.last_call(FIRST);
    let result = ToolResult::ok("v");
    let command = one.host.command(Command::Respond { call, result });
    assert_eq!(one.host.answer(command), Some(&Ok(Reply::Done)));
    assert_eq!(one.host.sent.len(), 1, "the call is answered");
    let closed = one
        .updates(FIRST)
        .iter()
        .any(|update| matches!(update, TurnUpdate::QuestionClosed { .. }));
    assert!(!closed, "the question had been answered by the application");
}

#[test]
fn an_answered_question_is_not_answered_again_when_its_turn_is_abandoned() {
    let mut one = One::running();
    one.approval(0, "i1");
    let question = one.last_question(FIRST);
    let answer = Answer::Accept;
    one.host.command(Command::Answer { question, answer });
    one.host.sent.clear();
    one.call(0, "c1");
    one.host.command(Command::Abandon { turn: FIRST });
    let sent: Vec<Value> = one.host.sent.iter().map(|s| s.json.clone()).collect();
    assert_eq!(sent.len(), 2, "{sent:?}");
    assert_eq!(sent[0]["error"]["code"], -32_800);
    assert_eq!(sent[1]["method"], "turn/interrupt");
}

// 3: questions "asked and withdrawn" are told.
#[test]
fn an_open_question_is_told_as_closed_when_the_connection_ends() {
    let mut one = One::running();
    one.approval(0, "i1");
    one.call(1, "c1");
    one.close();
    let closed: Vec<_> = one
        .updates(FIRST)
        .into_iter()
        .filter_map(|update| match update {
            TurnUpdate::QuestionClosed { why, .. } => Some(*why),
            _ => None,
        })
        .collect();
    assert_eq!(closed, [QuestionClosedWhy::ConnectionEnded]);
    let closed: Vec<_> = one
        .updates(FIRST)
        .into_iter()
        .filter_map(|update| match update {
            TurnUpdate::CallDeferred { call } => Some(call.sequence),
            _ => None,
        })
        .collect();
    assert_eq!(closed, [1], "it stays with the application");
}

// 3: "Interrupt is bounded".
#[test]
fn an_interrupt_after_a_cancelled_approval_is_bounded() {
    let mut one = One::running();
    one.approval(0, "i1");
    let question = one.last_question(FIRST);
    let answer = Answer::Cancel;
    one.host.command(Command::Answer { question, answer });
    let command = one.host.command(Command::Interrupt { turn: FIRST });
    for _ in 0..20 {
        if is_answered(&one, command) {
            break;
        }
        one.host.wait_for_timer();
    }
    assert!(is_answered(&one, command));
    assert_eq!(one.ends(FIRST).len(), 1);
}

// 4, refusals: "turn mismatch (both spellings)": another turn runs, so ours is over.
#[test]
fn an_interrupt_that_meets_another_turn_finds_out_how_ours_ended() {
    let mut one = One::running();
    one.host.command(Command::Abandon { turn: FIRST });
    let interrupt = one.host.next_sent("turn/interrupt");
    one.refuse(
        &interrupt,
        -32_600,
        "expected active turn id u1 but found u0",
    );
    assert!(one.host.wait_for_timer());
    let list = one.host.next_sent("thread/turns/list");
    one.result(
        &list,
        &json!({"data": [turn("u1", "completed")], "nextCursor": null}),
    );
    assert!(matches!(one.only_end(FIRST), Outcome::Completed { .. }));
}

// 3: "Late and duplicate frames change nothing and are counted."
#[test]
fn a_second_end_does_not_change_the_first_while_a_steer_is_unanswered() {
    let mut one = One::running();
    one.steer(FIRST);
    let steer = one.host.next_sent("turn/steer");
    one.end("u1", "completed");
    one.end("u1", "interrupted");
    one.call(0, "c1");
    one.refuse(&steer, -32_600, "no active turn to steer");
    assert!(matches!(one.only_end(FIRST), Outcome::Completed { .. }));
    let refused = one
        .host
        .sent
        .pop_front()
        .expect("the late call is refused")
        .json;
    assert_eq!(refused["error"]["code"], -32_602);
}

// 4: nothing leaves once the connection is being closed, but what closing it needs.
#[test]
fn nothing_is_sent_on_a_connection_that_we_have_closed() {
    let mut one = One::running();
    one.call(0, "c1");
    for _ in 0..64 {
        one.host.line("noise");
    }
    assert_eq!(one.host.closed.len(), 1);
    let call = one.last_call(FIRST);
    let result = ToolResult::ok("v");
    one.host.command(Command::Respond { call, result });
    one.host.command(Command::Interrupt { turn: FIRST });
    let conversation = one.conversation;
    one.host.command(Command::Close { conversation });
    let raw = one.host.command(Command::Request {
        method: "model/list".into(),
        params: RawJson::parse("{}").expect("JSON"),
        effect: RequestEffect::Reads,
    });
    assert!(one.host.sent.is_empty(), "{:?}", one.host.sent);
    one.close();
    assert_eq!(one.ends(FIRST).len(), 1);
    assert!(is_answered(&one, raw));
}

#[test]
fn a_request_made_while_a_failed_handshake_closes_is_answered_and_not_sent() {
    let mut host = ByHand::new(turnkeep_tests::one_connection());
    host.open();
    let initialize = host.next_sent("initialize");
    host.line(&format!(
        r#"{{"id":{},"result":{{"userAgent":"x/9.0.0"}}}}"#,
        initialize["id"]
    ));
    assert_eq!(host.closed.len(), 1);
    let raw = host.command(Command::Request {
        method: "model/list".into(),
        params: RawJson::parse("{}").expect("JSON"),
        effect: RequestEffect::Changes,
    });
    assert!(host.sent.is_empty());
    let closed = Closed::new(CloseReason::ByUs, String::new());
    host.step(Input::Closed(EPOCH, closed.into()));
    assert!(host.answer(raw).is_some());
}

// 4: "Our own orderly close first withdraws every open native call and answers every open question
// negatively, then ends every wait"; nothing new begins.
#[test]
fn a_shutdown_begins_nothing_new() {
    let mut one = One::running();
    one.steer(FIRST);
    one.host.next_sent("turn/steer");
    let waiting = one.steer(FIRST);
    one.end("u1", "completed");
    let shutdown = one.host.command(Command::Shutdown);
    assert!(one.host.sent.is_empty(), "{:?}", one.host.sent);
    assert!(is_answered(&one, waiting));
    one.close();
    assert!(is_answered(&one, shutdown));
    assert_eq!(one.ends(FIRST).len(), 1);
}

#[test]
fn a_shutdown_is_answered_in_every_state_of_the_connection() {
    let close = |host: &mut ByHand| {
        let closed = Closed::new(CloseReason::ByUs, String::new());
        host.step(Input::Closed(EPOCH, closed.into()));
    };
    let opening = ByHand::new(turnkeep_tests::one_connection());
    let mut initializing = ByHand::new(turnkeep_tests::one_connection());
    initializing.open();
    let ready = ByHand::ready();
    let mut ended = ByHand::ready();
    close(&mut ended);
    for mut host in [opening, initializing, ready, ended] {
        let first = host.command(Command::Shutdown);
        let second = host.command(Command::Shutdown);
        close(&mut host);
        for command in [first, second] {
            assert!(matches!(host.answer(command), Some(Ok(Reply::ShutDown(_)))));
        }
    }
}

// 3: "permissions no wider than asked": a grant that leaves a denial out is wider.
#[test]
fn a_grant_keeps_the_denials_of_what_was_asked() {
    let deny = json!({"access": "deny", "path": {"type": "path", "path": "/w/secret"}});
    let write = json!({"access": "write", "path": {"type": "path", "path": "/w"}});
    let asked = json!({"fileSystem": {"entries": [write, deny]}, "network": {"enabled": true}});
    let cases = [
        (json!({"fileSystem": {"entries": [write]}}), false),
        (json!({"fileSystem": {"entries": [write, deny]}}), true),
        (json!({"fileSystem": {"entries": [deny]}}), true),
        (json!({"fileSystem": {"entries": []}}), true),
        (
            json!({"fileSystem": null, "network": {"enabled": true}}),
            true,
        ),
        (json!({"network": {"enabled": true}}), true),
        (json!({}), true),
    ];
    for (granted, fits) in cases {
        let mut one = One::running();
        let params = json!({"itemId": "i", "cwd": "/w", "permissions": asked});
        one.ask(&json!(0), "item/permissions/requestApproval", &params);
        let question = one.last_question(FIRST);
        let answer = Answer::Permissions(RawJson::of(&granted).expect("JSON"));
        let command = one.host.command(Command::Answer { question, answer });
        let took = matches!(one.host.answer(command), Some(Ok(_)));
        assert_eq!(took, fits, "{granted}");
        assert_eq!(one.host.sent.len(), usize::from(fits));
    }
}

// 4: "frame 128 MiB either way".
#[test]
fn a_result_whose_escapes_make_its_frame_too_large_is_refused() {
    let mut config = turnkeep_tests::one_connection();
    config.limits.frame = 100_000;
    let mut one = One::running_with(config);
    one.call(0, "c1");
    let call = one.last_call(FIRST);
    let result = ToolResult::ok("\u{1}".repeat(50_000));
    let command = one.host.command(Command::Respond { call, result });
    assert!(matches!(
        one.host.answer(command),
        Some(Err(CommandError::FrameTooLarge { .. }))
    ));
    assert!(one.host.sent.is_empty());
    let result = ToolResult::ok("v").with(ToolContent::Text("w".into()));
    one.host.command(Command::Respond { call, result });
    assert_eq!(one.host.sent.len(), 1);
}

// 4: a response "without the id it must carry (`thread.id`, `turn.id`)" is no answer.
#[test]
fn a_resume_that_answers_for_another_thread_is_reported_and_nothing_is_sent_on_it() {
    for answer in [json!({}), json!({"thread": {"id": "t2"}})] {
        let mut one = One::running();
        one.end("u1", "completed");
        one.tell("thread/closed", &json!({}));
        one.send();
        let resume = one.host.next_sent("thread/resume");
        one.result(&resume, &answer);
        assert!(matches!(one.only_end(TurnNo(2)), Outcome::Rejected { .. }));
        assert!(one.host.sent.is_empty());
        let reported = one
            .protocol_errors()
            .iter()
            .any(|error| matches!(error, ProtocolError::BadResponse { .. }));
        assert!(reported);
    }
}

// 2: "the same call again (a replay) is the same call": it has its result.
#[test]
fn a_call_that_comes_again_after_its_result_gets_that_result() {
    let mut one = One::running();
    one.call(0, "c1");
    let call = one.last_call(FIRST);
    let result = ToolResult::ok("v");
    one.host.command(Command::Respond { call, result });
    let first = one.host.sent.pop_front().expect("answered").json;
    one.call(7, "c1");
    let second = one.host.sent.pop_front().expect("answered again").json;
    assert_eq!(
        (&second["id"], &second["result"]),
        (&json!(7), &first["result"])
    );
    let calls = one
        .updates(FIRST)
        .into_iter()
        .filter(|update| matches!(update, TurnUpdate::ToolCall(_)))
        .count();
    assert_eq!(calls, 1);
}

// 3: "while closing it joins the first ... afterwards the key is free".
#[test]
fn a_key_is_not_free_before_its_conversation_is_closed() {
    let mut one = One::running();
    one.end("u1", "completed");
    let conversation = one.conversation;
    one.host.command(Command::Close { conversation });
    one.host.next_sent("thread/unsubscribe");
    let settings = Settings::new()
        .questions(Questions::Ask)
        .tool(Tool::function(
            "look",
            "",
            RawJson::parse("{}").expect("JSON"),
        ));
    let command = one.host.command(Command::Open {
        key: ConversationKey::new("k").expect("a key"),
        settings: settings.into(),
    });
    assert_eq!(
        one.host.answer(command),
        Some(&Err(CommandError::Busy {
            conversation,
            why: BusyWhy::Closing,
        }))
    );
}

// 6.10: no configuration makes a step endless.
#[test]
fn a_quiet_limit_of_nothing_does_not_stop_the_clock() {
    let mut config = turnkeep_tests::one_connection();
    config.limits.quiet = std::time::Duration::ZERO;
    let mut one = One::running_with(config);
    for _ in 0..3 {
        one.host.wait_for_timer();
    }
    let quiet = one
        .updates(FIRST)
        .into_iter()
        .filter(|update| matches!(update, TurnUpdate::Quiet { .. }))
        .count();
    assert!(quiet > 0);
}
