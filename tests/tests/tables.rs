//! Every state against every event: the tables and the graphs that they draw, one snapshot a state enum.

#![allow(clippy::unwrap_used, reason = "helpers of tests are tests")]

#[path = "tables/attachment.rs"]
mod attachment;
#[path = "tables/cleanup.rs"]
mod cleanup;
#[path = "tables/threads.rs"]
mod threads;

use std::fmt::Write as _;

use insta::assert_snapshot;
use turnkeep_core::{
    BoxId, CallId, ConversationId, InputItem, MessageId, Outcome, ThreadId, ToolDelivery,
    ToolResult, TurnId, TurnNo,
    command::{Refusal, RefusalClass, RpcError},
    error::{Change, InvalidTransition},
    event::{CallClosedWhy, EndReason, EndSource, Failure, FailureKind, LostReason, Rejection},
    prompt::{Cancellation, Delivery, Prompt, PromptChange, PromptFields, PromptKind, PromptState},
    question::{QuestionChange, QuestionState},
    round::{OpenRound, Round, RoundChange, Stall},
    thread::{Creation, CreationChange},
    tools::{Call, CallAsked, CallChange, CallState},
    transcript::BoxSet,
};
use turnkeep_tests::world::json;

type On<S, E> = fn(&mut S, &E) -> Result<Change, InvalidTransition>;

/// A row for each state, a line for each event: `->` where it goes, `same` where nothing changes; what is not told is an error.
fn table<S: Clone + PartialEq + std::fmt::Debug, E>(
    states: &[(&str, S)],
    events: &[(&str, E)],
    name: fn(&S) -> &'static str,
    on: On<S, E>,
) -> String {
    named_table(states, events, name, name, on)
}

/// The same where the graph shows more of a state than an error names.
fn named_table<S: Clone + PartialEq + std::fmt::Debug, E>(
    states: &[(&str, S)],
    events: &[(&str, E)],
    name: fn(&S) -> &'static str,
    told: fn(&S) -> &'static str,
    on: On<S, E>,
) -> String {
    let mut table = String::new();
    let mut edges: Vec<String> = Vec::new();
    for (label, state) in states {
        let _ = writeln!(table, "{label}");
        let mut refused = Vec::new();
        for (event, change) in events {
            let mut next = state.clone();
            match on(&mut next, change) {
                Ok(Change::Applied) => {
                    assert_ne!(
                        &next, state,
                        "{label} x {event} is applied and changes nothing"
                    );
                    let _ = writeln!(table, "    {event:<24} -> {}", name(&next));
                    let edge = format!("    {} -> {} [label={event:?}];", name(state), name(&next));
                    if !edges.contains(&edge) {
                        edges.push(edge);
                    }
                }
                Ok(Change::NoOp) => {
                    assert_eq!(
                        &next, state,
                        "{label} x {event} is none and changes something"
                    );
                    let _ = writeln!(table, "    {event:<24} same");
                }
                Err(error) => {
                    assert_eq!(
                        &next, state,
                        "{label} x {event} is refused and changes something"
                    );
                    assert_eq!(error.state, told(state));
                    refused.push(*event);
                }
            }
        }
        if !refused.is_empty() {
            let _ = writeln!(table, "    refused: {}", refused.join(", "));
        }
    }
    edges.sort();
    format!("{table}\ndigraph {{\n{}\n}}\n", edges.join("\n"))
}

fn turn(id: &str) -> TurnId {
    TurnId::new(id).unwrap()
}

fn refusal(message: &str) -> Refusal {
    Refusal {
        method: "x".into(),
        class: RefusalClass::Unclassified,
        error: RpcError {
            code: -32_600,
            message: message.into(),
            data: None,
        },
    }
}

fn fields(schema: bool) -> PromptFields {
    PromptFields {
        conversation: ConversationId(1),
        turn: TurnNo(1),
        kind: PromptKind::Start,
        place: 0,
        input: vec![InputItem::text("x")],
        key: None,
        said: None,
        output_schema: schema.then(|| json(r#"{"a":1}"#)),
        deadline: None,
        until: None,
    }
}

/// The label of each outcome: a new one does not build until it stands here.
fn outcomes() -> Vec<(&'static str, Outcome)> {
    let all = vec![
        Outcome::Completed {
            text: Some("t".into()),
            structured: None,
        },
        Outcome::Interrupted,
        Outcome::Failed {
            error: Failure {
                kind: FailureKind::Server,
                message: "m".into(),
                info: None,
                details: None,
            },
        },
        Outcome::Rejected {
            error: Rejection::NotSent("n".into()),
        },
        Outcome::TimedOut,
        Outcome::Lost {
            reason: LostReason::Connection(Box::new(EndReason::ClosedByUs)),
        },
        Outcome::Unknown {
            evidence: "e".into(),
        },
    ];
    all.into_iter()
        .map(|outcome| (outcome.name(), outcome))
        .collect()
}

fn changes() -> Vec<(&'static str, PromptChange)> {
    use PromptChange as C;
    let mut all = vec![
        ("prepared", C::Prepared(Box::new(fields(false)))),
        ("dispatched", C::Dispatched),
        ("accepted a", C::Accepted { turn: turn("a") }),
        ("accepted b", C::Accepted { turn: turn("b") }),
        ("output", C::Output { text: "o".into() }),
        ("unrecorded", C::Unrecorded),
    ];
    for (name, outcome) in outcomes() {
        let name = Box::leak(format!("ended {name}").into_boxed_str());
        let source = EndSource::Live;
        all.push((
            name,
            C::Ended {
                outcome,
                source,
                unrecorded: false,
            },
        ));
    }
    all.extend([
        ("cancel requested", C::CancelRequested),
        (
            "cancel dispatched a",
            C::CancelDispatched { turn: turn("a") },
        ),
        (
            "cancel dispatched b",
            C::CancelDispatched { turn: turn("b") },
        ),
        ("cancel settled", C::CancelSettled),
        ("cancel ambiguous", C::CancelAmbiguous),
        ("delivering", C::Delivering),
        ("delivered", C::Delivered),
        ("timed out", C::TimedOut),
        ("forsaken", C::Forsaken),
        ("restarted", C::Restarted),
    ]);
    // A new change does not build until it stands above.
    for (_, change) in &all {
        match change {
            C::Prepared(_)
            | C::Dispatched
            | C::Accepted { .. }
            | C::Output { .. }
            | C::Unrecorded
            | C::Ended { .. }
            | C::CancelRequested
            | C::CancelDispatched { .. }
            | C::CancelSettled
            | C::CancelAmbiguous
            | C::Delivering
            | C::Delivered
            | C::TimedOut
            | C::Forsaken
            | C::Restarted => {}
        }
    }
    all
}

fn prompt_states() -> Vec<(&'static str, PromptState)> {
    let mut all = vec![
        ("Prepared", PromptState::Prepared),
        ("MayBeAccepted", PromptState::MayBeAccepted),
        (
            "Running in a",
            PromptState::Running {
                turn: turn("a"),
                output: None,
            },
        ),
    ];
    for (name, outcome) in outcomes() {
        if matches!(outcome, Outcome::TimedOut) {
            // The deadline is told, and is no outcome of a message.
            continue;
        }
        if matches!(outcome, Outcome::Unknown { .. } | Outcome::Rejected { .. }) {
            let name = Box::leak(format!("Terminal, {name}").into_boxed_str());
            let outcome = outcome.clone();
            all.push((
                name,
                PromptState::Terminal {
                    turn: None,
                    outcome,
                    source: EndSource::Live,
                    output: None,
                },
            ));
        }
        if matches!(outcome, Outcome::Rejected { .. }) {
            continue;
        }
        let name = Box::leak(format!("Terminal in a, {name}").into_boxed_str());
        all.push((
            name,
            PromptState::Terminal {
                turn: Some(turn("a")),
                outcome,
                source: EndSource::Live,
                output: None,
            },
        ));
    }
    all
}

const CANCELLATIONS: [(&str, Cancellation); 6] = [
    ("NotRequested", Cancellation::NotRequested),
    ("Requested", Cancellation::Requested),
    ("Dispatching", Cancellation::Dispatching),
    ("Settled", Cancellation::Settled),
    ("Ambiguous", Cancellation::Ambiguous),
    ("Unnecessary", Cancellation::Unnecessary),
];

const DELIVERIES: [(&str, Delivery); 5] = [
    ("Waiting", Delivery::Waiting),
    ("Delivering", Delivery::Delivering),
    ("Delivered", Delivery::Delivered),
    ("TimedOut", Delivery::TimedOut),
    ("Lost", Delivery::Lost),
];

#[test]
fn prompt_state() {
    let on: On<PromptState, PromptChange> = PromptState::on;
    assert_snapshot!(table(&prompt_states(), &changes(), PromptState::name, on));
}

#[test]
fn cancellation() {
    let on: On<Cancellation, PromptChange> = Cancellation::on;
    assert_snapshot!(table(&CANCELLATIONS, &changes(), |c| c.name(), on));
}

#[test]
fn delivery() {
    let on: On<Delivery, PromptChange> = Delivery::on;
    assert_snapshot!(table(&DELIVERIES, &changes(), |d| d.name(), on));
}

/// The parts of a message together: which combinations are good, and that no change leads out of them.
#[test]
fn a_prompt_of_parts() {
    let mut good = String::new();
    for (state_name, state) in prompt_states() {
        for (cancellation_name, cancellation) in CANCELLATIONS {
            for (delivery_name, delivery) in DELIVERIES {
                let mut prompt = Prompt::new(fields(false));
                prompt.state = state.clone();
                prompt.cancellation = cancellation;
                prompt.delivery = delivery;
                if prompt.validate().is_err() {
                    continue;
                }
                let rest = if prompt.is_at_rest() { ", at rest" } else { "" };
                let _ = writeln!(
                    good,
                    "{state_name}, {cancellation_name}, {delivery_name}{rest}"
                );
                for (event, change) in changes() {
                    let mut next = prompt.clone();
                    match next.on(&change) {
                        Ok(_) => assert_eq!(next.validate(), Ok(()), "{prompt:?} x {event}"),
                        Err(_) => {
                            assert_eq!(next, prompt, "{event} is refused and changes something")
                        }
                    }
                }
            }
        }
    }
    assert_snapshot!(good);
}

#[test]
fn a_structured_output_goes_with_a_schema() {
    for (schema, structured) in [(false, false), (true, false), (false, true), (true, true)] {
        let mut prompt = Prompt::new(fields(schema));
        prompt.on(&PromptChange::Dispatched).unwrap();
        prompt
            .on(&PromptChange::Accepted { turn: turn("a") })
            .unwrap();
        let outcome = Outcome::Completed {
            text: Some("{}".into()),
            structured: structured.then(|| json("{}")),
        };
        let source = EndSource::Live;
        let ended = prompt.on(&PromptChange::Ended {
            outcome,
            source,
            unrecorded: false,
        });
        assert_eq!(ended.is_ok(), schema == structured, "{schema} {structured}");
    }
}

#[test]
fn creation() {
    use CreationChange as C;
    let mark = |digit: &str| format!("turnkeep-create-{}", digit.repeat(32));
    let thread = |id: &str| ThreadId::new(id).unwrap();
    let states = [
        ("Preparing under 1", Creation::Preparing { mark: mark("1") }),
        ("Ready under 1", Creation::Ready { mark: mark("1") }),
        (
            "MayBeAccepted under 1",
            Creation::MayBeAccepted {
                mark: mark("1"),
                thread: None,
            },
        ),
        (
            "MayBeAccepted under 1, a seen",
            Creation::MayBeAccepted {
                mark: mark("1"),
                thread: Some(thread("a")),
            },
        ),
        (
            "Bound to a",
            Creation::Bound {
                mark: mark("1"),
                thread: thread("a"),
            },
        ),
        (
            "Rejected by r",
            Creation::Rejected {
                mark: mark("1"),
                refusal: refusal("r"),
            },
        ),
        (
            "Unresolved under 1",
            Creation::Unresolved { mark: mark("1") },
        ),
        (
            "Gone, it was a under 1",
            Creation::Gone {
                mark: mark("1"),
                thread: thread("a"),
            },
        ),
    ];
    let events = [
        ("preparing under 1", C::Preparing { mark: mark("1") }),
        ("preparing under 2", C::Preparing { mark: mark("2") }),
        (
            "preparing under none",
            C::Preparing {
                mark: "turnkeep-create-x".into(),
            },
        ),
        ("ready", C::Ready),
        ("dispatched", C::Dispatched),
        (
            "seen a",
            C::Seen {
                thread: thread("a"),
            },
        ),
        (
            "seen b",
            C::Seen {
                thread: thread("b"),
            },
        ),
        (
            "bound to a",
            C::Bound {
                thread: thread("a"),
            },
        ),
        (
            "bound to b",
            C::Bound {
                thread: thread("b"),
            },
        ),
        (
            "rejected by r",
            C::Rejected {
                refusal: refusal("r"),
            },
        ),
        (
            "rejected by q",
            C::Rejected {
                refusal: refusal("q"),
            },
        ),
        ("unresolved", C::Unresolved),
        ("gone", C::Gone),
    ];
    for (name, change) in &events {
        match change {
            C::Preparing { .. }
            | C::Ready
            | C::Dispatched
            | C::Seen { .. }
            | C::Bound { .. }
            | C::Rejected { .. }
            | C::Unresolved
            | C::Gone => {}
        }
        let begins = Creation::begin(change).is_ok();
        assert_eq!(
            begins,
            name.starts_with("preparing") && !name.ends_with("none"),
            "{name}"
        );
    }
    let on: On<Creation, CreationChange> = Creation::on;
    assert_snapshot!(table(&states, &events, Creation::name, on));
}

#[test]
fn call_state() {
    let (one, two) = (ToolResult::ok("1"), ToolResult::ok("2"));
    let (limit, ended) = (CallClosedWhy::TimeLimit, CallClosedWhy::TurnEnded);
    let answered = |result| CallChange::Answered {
        result,
        given: false,
    };
    let closed = |why| CallChange::Closed { why, given: false };
    let states = [
        ("Asked", CallState::Asked),
        ("Launched", CallState::Launched),
        (
            "Answered 1",
            CallState::Answered {
                result: one.clone(),
            },
        ),
        ("Closed by its limit", CallState::Closed { why: limit }),
    ];
    let asked = CallAsked {
        conversation: ConversationId(1),
        turn: TurnNo(1),
        native: CallId::new("c").unwrap(),
        tool: "t".into(),
        via: None,
        arguments: json("{}"),
        malformed: None,
    };
    let events = [
        ("asked", CallChange::Asked(Box::new(asked))),
        ("launched", CallChange::Launched),
        ("answered 1", answered(one)),
        ("answered 2", answered(two)),
        ("closed by its limit", closed(limit)),
        ("closed by the end", closed(ended)),
    ];
    let on: On<CallState, CallChange> = CallState::on;
    assert_snapshot!(table(&states, &events, CallState::name, on));
}

/// A call with its delivery.
#[test]
fn call() {
    let (one, two) = (ToolResult::ok("1"), ToolResult::ok("2"));
    let (limit, ended) = (CallClosedWhy::TimeLimit, CallClosedWhy::TurnEnded);
    let launched = Call {
        conversation: ConversationId(1),
        turn: TurnNo(1),
        native: CallId::new("c").unwrap(),
        state: CallState::Launched,
        delivery: ToolDelivery::Inline,
        boxed: true,
        given: false,
        arrivals: None,
        offered: None,
    };
    let answered = |given| Call {
        state: CallState::Answered {
            result: ToolResult::ok("1"),
        },
        given,
        ..launched.clone()
    };
    let deferred = |call: &Call| Call {
        delivery: ToolDelivery::Deferred,
        ..call.clone()
    };
    let states = [
        ("Launched, inline", launched.clone()),
        ("Launched, deferred", deferred(&launched)),
        (
            "Launched, in no transcript",
            Call {
                boxed: false,
                ..launched.clone()
            },
        ),
        ("Answered 1, given", answered(true)),
        ("Answered 1, not given", answered(false)),
        ("Answered 1, deferred", deferred(&answered(false))),
        (
            "Closed by its limit",
            Call {
                state: CallState::Closed { why: limit },
                ..launched.clone()
            },
        ),
    ];
    let asked = CallAsked {
        conversation: ConversationId(1),
        turn: TurnNo(1),
        native: CallId::new("c").unwrap(),
        tool: "t".into(),
        via: None,
        arguments: json("{}"),
        malformed: None,
    };
    let answered = |result: &ToolResult, given| CallChange::Answered {
        result: result.clone(),
        given,
    };
    let closed = |why| CallChange::Closed { why, given: false };
    let events = [
        ("asked", CallChange::Asked(Box::new(asked))),
        ("launched", CallChange::Launched),
        ("deferred", CallChange::Deferred),
        ("given", CallChange::Given),
        ("answered 1", answered(&one, false)),
        ("answered 1, given", answered(&one, true)),
        ("answered 2", answered(&two, false)),
        ("closed by its limit", closed(limit)),
        ("closed by the end", closed(ended)),
    ];
    for (_, change) in &events {
        match change {
            CallChange::Asked(_)
            | CallChange::Launched
            | CallChange::Message { .. }
            | CallChange::Deferred
            | CallChange::Given
            | CallChange::Answered { .. }
            | CallChange::Closed { .. } => {}
        }
    }
    // A message of a tool leaves its call as it is, and comes only before the result.
    for (label, call) in &states {
        let message = CallChange::Message { text: "m".into() };
        let mut next = call.clone();
        let taken = next.on(&message).is_ok();
        assert_eq!(taken, call.is_open() && call.boxed, "{label}");
        assert_eq!(next, *call, "{label}");
    }
    let way = |call: &Call| match (call.state.name(), call.delivery, call.given) {
        ("Launched", ToolDelivery::Inline, _) => "Launched_Inline",
        ("Launched", _, _) => "Launched_Deferred",
        ("Answered", ToolDelivery::Inline, true) => "Answered_Given",
        ("Answered", ToolDelivery::Inline, false) => "Answered_NotGiven",
        ("Answered", _, _) => "Answered_Deferred",
        _ => "Closed",
    };
    let on: On<Call, CallChange> = Call::on;
    assert_snapshot!(named_table(
        &states,
        &events,
        way,
        |call| call.state.name(),
        on
    ));
}

#[test]
fn round() {
    use RoundChange as C;
    let message = |id: &str| MessageId::new(id).unwrap();
    let boxes = || -> BoxSet { [BoxId(1)].into_iter().collect() };
    let open = |stages, owes| {
        Box::new(OpenRound {
            turn: TurnNo(2),
            message: message("m"),
            stages,
            acted: owes,
            answers: u32::from(owes),
            cut: None,
            owes,
            messages: Vec::new(),
        })
    };
    let stalled = |restartable: bool| {
        Round::Stalled(Box::new(Stall {
            turn: TurnNo(2),
            prompt: message("m"),
            message: "why".into(),
            restartable,
            acted: false,
            text: (!restartable).then(String::new),
            wishes: None,
        }))
    };
    let states = [
        ("Idle", Round::Idle),
        ("Generating 2, no stage", Round::Generating(open(0, false))),
        (
            "Generating 2, staged, owes a flush",
            Round::Generating(open(1, true)),
        ),
        (
            "Steering 2 with f",
            Round::Steering {
                round: open(1, false),
                flush: message("f"),
            },
        ),
        ("Stalled 2, restartable", stalled(true)),
        ("Stalled 2", stalled(false)),
    ];
    let begun = |turn| C::Begun {
        turn: TurnNo(turn),
        message: message("n"),
        boxes: boxes(),
    };
    let restarted = |turn| C::Restarted {
        turn: TurnNo(turn),
        message: message("n"),
        boxes: boxes(),
    };
    let staged = |turn, answers| C::Staged {
        turn: TurnNo(turn),
        response: "r".into(),
        answers,
        cut: None,
        actions: Vec::new(),
    };
    let flushed = |turn| C::Flushed {
        turn: TurnNo(turn),
        message: message("f"),
        boxes: boxes(),
    };
    let answered = |id| C::FlushAnswered {
        message: message(id),
    };
    let given_up = |id| C::FlushGivenUp {
        message: message(id),
    };
    let completed = |turn| C::Completed {
        turn: TurnNo(turn),
        text: "t".into(),
        resume: false,
        after: BoxId(2),
    };
    let failed = |turn, restartable| C::Failed {
        turn: TurnNo(turn),
        message: "why".into(),
        restartable,
        text: None,
    };
    let events = [
        ("begun 2", begun(2)),
        ("begun 3", begun(3)),
        ("restarted 2", restarted(2)),
        ("restarted 3", restarted(3)),
        ("staged 2", staged(2, 1)),
        ("staged 2, answers lost", staged(2, 0)),
        ("staged 1", staged(1, 1)),
        ("flushed 2 with f", flushed(2)),
        ("flushed 1 with f", flushed(1)),
        ("flush f answered", answered("f")),
        ("flush g answered", answered("g")),
        ("flush f given up", given_up("f")),
        ("flush g given up", given_up("g")),
        ("completed 2", completed(2)),
        ("completed 1", completed(1)),
        ("failed 2", failed(2, false)),
        ("failed 2, restartable", failed(2, true)),
        ("failed 1", failed(1, false)),
        ("dismissed", C::Dismissed),
    ];
    for (_, change) in &events {
        match change {
            C::Begun { .. }
            | C::Restarted { .. }
            | C::Staged { .. }
            | C::Flushed { .. }
            | C::FlushAnswered { .. }
            | C::FlushGivenUp { .. }
            | C::Completed { .. }
            | C::Failed { .. }
            | C::Dismissed => {}
        }
    }
    let on: On<Round, RoundChange> = Round::on;
    assert_snapshot!(table(&states, &events, Round::name, on));
}

#[test]
fn question_state() {
    let states = [
        ("Pending", QuestionState::Pending),
        (
            "Ambiguous 1",
            QuestionState::Ambiguous { result: json("1") },
        ),
        ("Accepted", QuestionState::Accepted),
        ("Cancelled", QuestionState::Cancelled),
    ];
    let events = [
        ("answered 1", QuestionChange::Answered(json("1"))),
        ("answered 2", QuestionChange::Answered(json("2"))),
        ("settled", QuestionChange::Settled),
    ];
    for (_, change) in &events {
        match change {
            QuestionChange::Answered(_) | QuestionChange::Settled => {}
        }
    }
    let on: On<QuestionState, QuestionChange> = QuestionState::on;
    assert_snapshot!(table(&states, &events, QuestionState::name, on));
}
