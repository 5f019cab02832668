//! B: the order of frames. A4, A5, A7, A10, A21: closing, refusals, lag, usage, limits.

use turnkeep_core::{
    CommandError, ConversationId, Event, Input, Outcome, Reply, Settings, ToolResult, TurnUpdate,
    command::{Answer, RefusalClass, RequestEffect, ToolKind},
    event::{CallClosedWhy, ConversationUpdate, LostReason, Warning},
};
use turnkeep_tests::world::{Reads, Setup, ms, tool};

use crate::{asks, in_all_reads_of, script, text};

#[test]
fn case_15_notifications_may_come_before_the_response() {
    in_all_reads_of(script!("15"), |world| {
        let conversation = world.open("a", Settings::new());
        let turn = world.send(conversation, "hi");
        let end = world.end_of(turn);
        assert_eq!(
            (text(&end), end.native.as_deref()),
            ("hello", Some("trn_1"))
        );
        assert!(world.is_played());
    });
}

#[test]
fn case_16_an_early_question_is_held_for_its_turn() {
    in_all_reads_of(script!("16"), |world| {
        let conversation = world.open("a", asks());
        let turn = world.send(conversation, "ls");
        let question = world.question(turn, 1);
        // The deadline of the request ends nothing.
        world.run(61_000);
        let answer = world.reply(question.id, Answer::Accept);
        assert_eq!(world.answer_of(answer), Ok(Reply::Done));
        assert_eq!(text(&world.end_of(turn)), "listed");
        assert!(world.is_played());
    });
}

#[test]
fn case_17_a_conversation_that_nobody_reads_delays_no_other() {
    in_all_reads_of(script!("17"), |world| {
        let first = world.open("a", Settings::new());
        let one = world.send(first, "go");
        // Nobody takes events of the first one; the second is served at once.
        let second = world.open("b", Settings::new());
        let two = world.send(second, "go");
        assert_eq!(text(&world.end_of(two)), "y");
        assert_eq!(text(&world.end_of(one)), "x");
        assert_eq!(world.elapsed(), 0);
    });
}

#[test]
fn case_17_a_full_queue_ends_its_own_turn_only() {
    let script = script!("17").replace(
        r#"C {"id":"$id22","method":"turn/start""#,
        concat!(
            r#"C {"id":"$id23","method":"turn/interrupt","params":{"threadId":"thr_1","turnId":"trn_1"}}"#,
            "\n",
            r#"S {"id":"$id23","result":{}}"#,
            "\n",
            r#"C {"id":"$id22","method":"turn/start""#,
        ),
    );
    in_all_reads_of(&script, |world| {
        let first = world.open("a", Settings::new());
        let one = world.send(first, "go");
        world.input(Input::QueueFull(first));
        assert!(matches!(world.end_of(one).outcome, Outcome::Failed { .. }));
        let second = world.open("b", Settings::new());
        let two = world.send(second, "go");
        assert_eq!(text(&world.end_of(two)), "y");
        world.input(Input::QueueFull(ConversationId(99)));
    });
}

#[test]
fn case_a04_close_ends_every_wait_at_once() {
    in_all_reads_of(script!("A4"), |world| {
        let conversation = world.open("a", Settings::new());
        let turn = world.send(conversation, "go");
        let waits = [
            world.request(
                "thread/read",
                r#"{"threadId":"thr_1"}"#,
                RequestEffect::Reads,
            ),
            world.request("x/change", "{}", RequestEffect::Changes),
            world.steer(turn, "more"),
            world.interrupt(turn),
        ];
        let close = world.shut_down();
        for wait in waits {
            assert_eq!(
                world.answer(wait),
                Some(&Err(CommandError::ClosedByUs)),
                "{wait}"
            );
        }
        assert!(matches!(
            world.ended(turn).unwrap().outcome,
            Outcome::Lost {
                reason: LostReason::ClosedByUs
            }
        ));
        let Some(Ok(Reply::ShutDown(report))) = world.answer(close) else {
            panic!("{:?}", world.answer(close))
        };
        assert_eq!(report.turns, 1);
        assert_eq!(world.elapsed(), 0);
        let late = world.request("x", "{}", RequestEffect::Reads);
        assert_eq!(world.answer(late), Some(&Err(CommandError::ClosedByUs)));
    });
}

#[test]
fn case_a05_an_unknown_method_is_asked_once_a_connection() {
    in_all_reads_of(script!("A5"), |world| {
        for _ in 0..3 {
            let asked = world.request("no/such", "{}", RequestEffect::Reads);
            let Err(CommandError::Refused(refusal)) = world.answer_of(asked) else {
                panic!("{:?}", world.answer(asked))
            };
            assert_eq!(refusal.class, RefusalClass::UnknownMethod);
        }
        assert_eq!(world.sent_of("no/such").len(), 1);
    });
}

#[test]
fn case_a07_a_lag_marker_is_a_warning_and_text_is_lossless() {
    // 4,000 lines: byte by byte is left to shorter ones.
    let want: String = (0..2_000).map(|i| format!("{i} ")).collect();
    let lines: String = (0..2_000).map(|i| format!("line {i}")).collect();
    for reads in [Reads::Writes, Reads::Whole, Reads::Random(4)] {
        let mut world = Setup::script(script!("A7")).reads(reads).start();
        let conversation = world.open("a", Settings::new());
        let turn = world.send(conversation, "go");
        let end = world.end_of(turn);
        assert!(matches!(end.outcome, Outcome::Completed { .. }));
        assert_eq!(world.streamed(turn), lines.clone() + &want);
        assert_eq!(
            end.text.as_deref(),
            Some(want.as_str()),
            "of the message only"
        );
        let warned = world.events().iter().any(|event| {
            matches!(event, Event::Conversation(c) if matches!(&c.update,
                ConversationUpdate::Warning(Warning::Server { message, .. }) if message.contains("dropped 7 events")))
        });
        assert!(warned);
        let _ = world.finish();
    }
}

const USAGE: &str = r#"X auto all
C {"id":"$a","method":"turn/start","params":{"threadId":"thr_1","input":"$i","clientUserMessageId":"$m"}}
S {"id":"$a","result":{"turn":{"id":"trn_1","items":[],"status":"inProgress","error":null}}}
S {"method":"turn/started","params":{"threadId":"thr_1","turn":{"id":"trn_1","items":[],"status":"inProgress","error":null}}}
S {"method":"thread/tokenUsage/updated","params":{"threadId":"thr_1","turnId":"trn_1","tokenUsage":{"total":{"totalTokens":400,"inputTokens":300,"cachedInputTokens":100,"outputTokens":100,"reasoningOutputTokens":20},"last":{"totalTokens":400,"inputTokens":300,"cachedInputTokens":100,"outputTokens":100,"reasoningOutputTokens":20},"modelContextWindow":1000}}}
S {"method":"thread/tokenUsage/updated","params":{"threadId":"thr_1","turnId":"trn_1","tokenUsage":{"total":{"totalTokens":1000,"inputTokens":800,"cachedInputTokens":600,"outputTokens":200,"reasoningOutputTokens":40},"last":{"totalTokens":600,"inputTokens":500,"cachedInputTokens":500,"outputTokens":100,"reasoningOutputTokens":20},"modelContextWindow":1000}}}
S {"method":"turn/completed","params":{"threadId":"thr_1","turn":{"id":"trn_1","items":[],"status":"completed","error":null}}}
C {"id":"$b","method":"turn/start","params":{"threadId":"thr_1","clientUserMessageId":"$n"}}
S {"id":"$b","result":{"turn":{"id":"trn_2","items":[],"status":"inProgress","error":null}}}
S {"method":"turn/started","params":{"threadId":"thr_1","turn":{"id":"trn_2","items":[],"status":"inProgress","error":null}}}
S {"method":"thread/tokenUsage/updated","params":{"threadId":"thr_1","turnId":"trn_2","tokenUsage":{"total":{"totalTokens":1250,"inputTokens":1000,"cachedInputTokens":750,"outputTokens":250,"reasoningOutputTokens":50},"last":{"totalTokens":250,"inputTokens":200,"cachedInputTokens":150,"outputTokens":50,"reasoningOutputTokens":10},"modelContextWindow":1000}}}
S {"method":"thread/tokenUsage/updated","params":{"threadId":"thr_1","turnId":"trn_2","tokenUsage":{"total":{"totalTokens":300,"inputTokens":250,"cachedInputTokens":0,"outputTokens":50,"reasoningOutputTokens":0},"last":{"totalTokens":300,"inputTokens":250,"cachedInputTokens":0,"outputTokens":50,"reasoningOutputTokens":0},"modelContextWindow":1000}}}
S {"method":"thread/tokenUsage/updated","params":{"threadId":"thr_1","turnId":"trn_2","tokenUsage":{"total":{"totalTokens":340,"inputTokens":280,"cachedInputTokens":0,"outputTokens":60,"reasoningOutputTokens":0},"last":{"totalTokens":40,"inputTokens":30,"cachedInputTokens":0,"outputTokens":10,"reasoningOutputTokens":0},"modelContextWindow":1000}}}
S {"method":"turn/completed","params":{"threadId":"thr_1","turn":{"id":"trn_2","items":[],"status":"completed","error":null}}}
"#;

#[test]
fn case_a10_a_turn_used_the_growth_of_the_total_and_the_context_is_the_last_request() {
    in_all_reads_of(USAGE, |world| {
        let conversation = world.open("a", Settings::new());
        let first = world.send(conversation, "go");
        let used = world.end_of(first).usage.unwrap();
        assert_eq!(used.turn.total_tokens, 1_000);
        assert_eq!(
            (used.last.total_tokens, used.context_window),
            (600, Some(1_000))
        );
        let second = world.send(conversation, "go on");
        let used = world.end_of(second).usage.unwrap();
        // 250, then a total that fell counts for nothing, then 40.
        let t = used.turn;
        assert_eq!(
            [
                t.total_tokens,
                t.input_tokens,
                t.cached_input_tokens,
                t.output_tokens,
                t.reasoning_output_tokens
            ],
            [290, 230, 150, 60, 10]
        );
        assert_eq!(
            (used.thread.total_tokens, used.last.total_tokens),
            (340, 40)
        );
    });
}

#[test]
fn case_a21_a_tools_own_limit_answers_once_and_drops_the_late_result() {
    in_all_reads_of(script!("A21"), |world| {
        let slow = tool("slow", ToolKind::Function).time_limit(ms(200));
        let conversation = world.open("a", Settings::new().tool(slow));
        let turn = world.send(conversation, "go");
        let call = world.call(turn, 1);
        assert_eq!(call.time_limit, Some(ms(200)));
        world.run(199);
        assert!(
            !world
                .sent()
                .iter()
                .any(|frame| frame.starts_with(r#"{"id":3,"#))
        );
        world.run(301);
        let late = world.respond(call.id, ToolResult::ok("late"));
        assert_eq!(
            world.answer_of(late),
            Err(CommandError::CallClosed { call: call.id })
        );
        assert!(world.updates(turn).into_iter().any(|update| matches!(
            update,
            TurnUpdate::CallClosed {
                why: CallClosedWhy::TimeLimit,
                ..
            }
        )));
        assert_eq!(text(&world.end_of(turn)), "without it");
        assert!(world.is_played());
    });
}

#[test]
fn case_a21_a_result_in_time_wins_and_the_limit_does_nothing() {
    let script = script!("A21").replace(
        r#"C {"id":3,"result":{"success":false}}"#,
        r#"C {"id":3,"result":{"success":true}}"#,
    );
    in_all_reads_of(&script, |world| {
        let slow = tool("slow", ToolKind::Function).time_limit(ms(200));
        let conversation = world.open("a", Settings::new().tool(slow));
        let turn = world.send(conversation, "go");
        let call = world.call(turn, 1);
        world.run(199);
        let answer = world.respond(call.id, ToolResult::ok("in time"));
        assert_eq!(world.answer_of(answer), Ok(Reply::Done));
        world.run(10_000);
        assert!(matches!(
            world.end_of(turn).outcome,
            Outcome::Completed { .. }
        ));
    });
}
