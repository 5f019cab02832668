//! Checkpoints: one is the state that was, whatever made it, and a bad one makes none.

#![allow(clippy::unwrap_used, reason = "helpers of tests are tests")]

use proptest::{
    collection::vec,
    prelude::*,
    sample::{Index, select},
};
use serde_json::{Value, json};
use turnkeep_core::{Durable, Record, error::RecordError};

/// Records that leave something of every kind in the state.
const FULL_STATE: &str = include_str!("records/full-state.jsonl");

fn read(line: &str) -> Record {
    serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"))
}

fn full_state() -> Durable {
    let mut durable = Durable::default();
    for line in FULL_STATE.lines() {
        let applied = durable.apply(&read(line));
        assert_eq!(applied, Ok(()), "{line}");
    }
    durable
}

/// The state that is read back from the checkpoint of another.
fn again(durable: &Durable) -> Durable {
    let written = serde_json::to_string(&durable.checkpoint()).unwrap();
    let mut again = Durable::default();
    let applied = again.apply(&read(&written));
    assert_eq!(applied, Ok(()), "{written}");
    again
}

#[test]
fn a_checkpoint_is_the_state_that_was() {
    let mut durable = Durable::default();
    assert_eq!(again(&durable), durable);
    for line in FULL_STATE.lines() {
        durable.apply(&read(line)).unwrap();
        assert_eq!(again(&durable), durable, "after {line}");
    }
}

#[test]
fn a_checkpoint_stands_first_or_not_at_all() {
    let mut durable = full_state();
    let (before, checkpoint) = (durable.clone(), durable.checkpoint());
    let applied = durable.apply(&checkpoint);
    assert!(
        matches!(applied, Err(RecordError::Exists { .. })),
        "{applied:?}"
    );
    assert_eq!(durable, before);
    // What follows a checkpoint goes on where it stands.
    let mut other = again(&durable);
    let next = read(r#"{"question_settled":{"question":2,"why":null}}"#);
    durable.apply(&next).unwrap();
    other.apply(&next).unwrap();
    assert_eq!(other, durable);
}

/// A checkpoint of the full state, with one place of it changed.
fn spoilt(place: &str, to: Value) -> Result<(), String> {
    let mut value = serde_json::to_value(full_state().checkpoint()).unwrap();
    let at = value
        .pointer_mut(&format!("/checkpoint{place}"))
        .unwrap_or_else(|| panic!("no {place}"));
    assert_ne!(*at, to, "{place} is so already");
    *at = to;
    let record = serde_json::from_value::<Record>(value).map_err(|e| e.to_string())?;
    let mut durable = Durable::default();
    let applied = durable.apply(&record).map_err(|e| e.to_string());
    assert_eq!(applied.is_err(), durable == Durable::default());
    applied
}

/// Each part of a checkpoint is looked at: what fits no record that could have made it is refused.
#[test]
fn a_spoilt_checkpoint_makes_no_state() {
    let value = serde_json::to_value(full_state().checkpoint()).unwrap();
    let part = |place: &str| {
        value
            .pointer(&format!("/checkpoint{place}"))
            .unwrap()
            .clone()
    };
    let twice = |place: &str| {
        let mut list = part(place).as_array().unwrap().clone();
        list.push(list.last().unwrap().clone());
        Value::from(list)
    };
    let turned = |place: &str| {
        let list = part(place).as_array().unwrap().clone();
        Value::from(list.into_iter().rev().collect::<Vec<_>>())
    };
    let rows = [
        (
            "/attachment/attached/to/endpoint",
            json!({"tcp": {"host": "h", "port": 0}}),
        ),
        ("/attachment/attached/to/child/pid", json!(0)),
        ("/attachment/attached/home", json!(" ")),
        ("/last_conversation", json!(2)),
        ("/last_turn", json!(2)),
        ("/last_question", json!(1)),
        ("/conversations", twice("/conversations")),
        ("/conversations", turned("/conversations")),
        ("/conversations/0/0", json!(0)),
        ("/conversations/1/1/key", json!("a")),
        ("/conversations/1/1/key", json!("a ")),
        ("/conversations/0/1/nonce", json!("0".repeat(24))),
        ("/conversations/0/1/settings/model", json!("")),
        (
            "/conversations/0/1/creation/bound/mark",
            json!("turnkeep-create-1"),
        ),
        ("/conversations/0/1/creation/bound/thread", json!("")),
        ("/conversations/0/1/last_call", json!(3)),
        ("/conversations/4/1/selection/sent/after/effort", json!("")),
        (
            "/conversations/4/1/selection/sent/before/known/model",
            json!("m "),
        ),
        (
            "/conversations/5/1/selection/settled/doubtful/touched",
            json!([]),
        ),
        ("/prompts", twice("/prompts")),
        ("/prompts", turned("/prompts")),
        ("/prompts/0/0", json!("")),
        ("/prompts/0/1/fields/conversation", json!(4)),
        ("/prompts/0/1/fields/turn", json!(99)),
        ("/prompts/2/1/fields/turn", json!(1)),
        ("/prompts/0/1/fields/input", json!([])),
        ("/prompts/0/1/attempt", json!(0)),
        ("/prompts/0/1/state", json!("prepared")),
        ("/prompts/0/1/cancellation", json!("unnecessary")),
        (
            "/prompts/1/1/state",
            json!({"terminal": {"outcome": "interrupted"}, "x": 1}),
        ),
        ("/prompts/2/1/delivery", json!("delivered")),
        (
            "/prompts/2/1/state/terminal/outcome",
            json!({"completed": {"text": null, "structured": null}}),
        ),
        ("/prompts/3/1/cancellation", json!("not_requested")),
        ("/calls", twice("/calls")),
        ("/calls", turned("/calls")),
        ("/calls/0/0/nonce", json!("0".repeat(24))),
        ("/calls/0/0/sequence", json!(0)),
        ("/calls/3/0/sequence", json!(5)),
        ("/calls/0/1/conversation", json!(2)),
        ("/calls/0/1/conversation", json!(4)),
        ("/calls/0/1/turn", json!(99)),
        ("/questions", twice("/questions")),
        ("/questions/0/1/turn", json!(99)),
        ("/questions/1/0", json!(3)),
        ("/questions/0/2", json!("accepted")),
        ("/questions/0/2", json!("cancelled")),
        ("/requests", twice("/requests")),
        ("/cleanups", twice("/cleanups")),
        ("/cleanups", turned("/cleanups")),
        ("/cleanups/0/2", json!("settled")),
        ("/cleanups/0/2", json!({"owed": {}})),
        ("/cleanups/0/2/owed/threads/0", json!(" ")),
        ("/cleanups/0/2/owed/marks/0", json!("turnkeep-create-1")),
        ("/cleanups/1/0/workspace", json!("w ")),
        ("/commands", twice("/commands")),
        ("/commands", turned("/commands")),
        ("/keys", twice("/keys")),
        ("/keys/0/conversation", json!(99)),
        ("/keys/0/turn", json!(99)),
        ("/keys/2/arrivals", json!([3, 2])),
        ("/keys/2/conversation", json!(99)),
        ("/conversations/6/1/mailbox/last", json!(0)),
        ("/conversations/6/1/results", json!({"1": 999})),
        (
            "/conversations/6/1/transcript/carried",
            json!({"msg_89": [[999, 999]]}),
        ),
        ("/conversations/7/1/mailbox/queue/0/no", json!(1)),
        (
            "/conversations/7/1/transcript/unsubmitted",
            json!([[999, 999]]),
        ),
        ("/conversations/8/1/held", json!({})),
        ("/calls/4/1/conversation", json!(99)),
    ];
    for (place, to) in rows {
        assert!(spoilt(place, to.clone()).is_err(), "{place} may be {to}");
    }
    // A change that hurts nothing is no error: the rows above are refused for what they are.
    assert_eq!(spoilt("/conversations/0/1/key", json!("other")), Ok(()));
    assert_eq!(spoilt("/lives", json!(2)), Ok(()));
}

/// Whether a thread holds something is told by what ran on it, not by what was accepted.
#[test]
fn a_thread_ran_only_if_something_shows_it() {
    let made = |mark: u8, thread: &str| {
        let change =
            |change: Value| json!({"thread_creation": {"conversation": 1, "change": change}});
        vec![
            change(json!({"preparing": {"mark": format!("turnkeep-create-{mark:032}")}})),
            change(json!("ready")),
            change(json!("dispatched")),
            change(json!({"bound": {"thread": thread}})),
        ]
    };
    let prompt = |change: Value| json!({"prompt": {"message": "msg_1", "change": change}});
    let accepted = [
        prompt(json!({"prepared": {"conversation": 1, "turn": 1, "kind": "start", "input": [{}]}})),
        prompt(json!("dispatched")),
        prompt(json!({"accepted": {"turn": "t"}})),
    ];
    let ended = |outcome: Value| prompt(json!({"ended": {"outcome": outcome}}));
    let call = json!({"tool_call": {"call": {"nonce": "07".repeat(12), "sequence": 1}, "change": {"asked":
        {"conversation": 1, "turn": 1, "native": "c", "tool": "t", "arguments": {}}}}});
    let rows = [
        (None, false),
        (Some(prompt(json!({"output": {"text": "o"}}))), true),
        (Some(call), true),
        (
            Some(ended(
                json!({"completed": {"text": null, "structured": null}}),
            )),
            true,
        ),
        (Some(ended(json!("interrupted"))), true),
        (
            Some(ended(
                json!({"failed": {"error": {"kind": "server", "message": "m", "info": null, "details": null}}}),
            )),
            true,
        ),
        (
            Some(ended(json!({"lost": {"reason": "closed_by_us"}}))),
            true,
        ),
        (Some(ended(json!({"unknown": {"evidence": "e"}}))), true),
        (Some(prompt(json!("unrecorded"))), false),
    ];
    for (shown, ran) in rows {
        let mut durable = Durable::default();
        let apply = |durable: &mut Durable, value: &Value| {
            let record: Record = serde_json::from_value(value.clone()).unwrap();
            assert_eq!(durable.apply(&record), Ok(()), "{value}");
        };
        let open = json!({"conversation_opened":
            {"conversation": 1, "key": "k", "nonce": "07".repeat(12), "settings": {}}});
        apply(&mut durable, &json!({"attached": {"endpoint": "spawn"}}));
        apply(&mut durable, &json!({"home_told": {"home": "/h"}}));
        for value in [&[open][..], &made(1, "thr_1"), &accepted].concat() {
            apply(&mut durable, &value);
        }
        if let Some(shown) = &shown {
            apply(&mut durable, shown);
        }
        let of = |durable: &Durable| {
            let known = durable
                .conversation(turnkeep_core::ConversationId(1))
                .unwrap();
            (known.ran, known.home.as_ref().map(ToString::to_string))
        };
        assert_eq!(of(&durable), (ran, Some("/h".into())), "{shown:?}");
        // Another thread holds nothing, and stands under the home that is told by then.
        apply(
            &mut durable,
            &json!({"thread_creation": {"conversation": 1, "change": "gone"}}),
        );
        assert_eq!(of(&durable), (false, None), "{shown:?}");
        apply(&mut durable, &json!({"home_told": {"home": "/i"}}));
        for value in made(2, "thr_2") {
            apply(&mut durable, &value);
        }
        assert_eq!(of(&durable), (false, Some("/i".into())), "{shown:?}");
    }
}

/// Records of a few conversations, messages, calls and questions, in no order: most do not fit.
fn any_record() -> impl Strategy<Value = Record> {
    let id = || 1..4u32;
    let message = || select(&["msg_1", "msg_2", "msg_3", "msg_4"][..]);
    let turn = || select(&["t1", "t2"][..]);
    let thread = || select(&["thr_1", "thr_2"][..]);
    let nonce = |n: u32| format!("{n:02}").repeat(12);
    let creation = prop_oneof![
        (1..3u8).prop_map(|n| json!({"preparing": {"mark": format!("turnkeep-create-{n:032}")}})),
        Just(json!("ready")),
        Just(json!("dispatched")),
        thread().prop_map(|thread| json!({"seen": {"thread": thread}})),
        thread().prop_map(|thread| json!({"bound": {"thread": thread}})),
        Just(json!("unresolved")),
        Just(json!("gone")),
    ];
    let outcome = select(vec![
        json!({"completed": {"text": "t", "structured": null}}),
        json!({"completed": {"text": "{}", "structured": {}}}),
        json!("interrupted"),
        json!({"lost": {"reason": "closed_by_us"}}),
        json!({"rejected": {"error": {"not_sent": "n"}}}),
        json!({"unknown": {"evidence": "e"}}),
    ]);
    let prepared = (id(), 1..9u32, any::<bool>(), any::<bool>(), any::<bool>());
    let prepared = prepared.prop_map(|(conversation, turn, starts, keyed, schema)| {
        let mut fields = json!({
            "conversation": conversation, "turn": turn, "kind": if starts { "start" } else { "steer" },
            "input": [{"type": "text", "text": "x"}],
        });
        if keyed {
            fields["key"] = json!(format!("k{turn}"));
        }
        if schema {
            fields["output_schema"] = json!({"type": "object"});
        }
        json!({"prepared": fields})
    });
    let change = prop_oneof![
        4 => prepared,
        6 => Just(json!("dispatched")),
        6 => turn().prop_map(|turn| json!({"accepted": {"turn": turn}})),
        2 => Just(json!({"output": {"text": "o"}})),
        1 => Just(json!("unrecorded")),
        4 => (outcome, select(&["live", "reconciled"][..]))
            .prop_map(|(outcome, source)| json!({"ended": {"outcome": outcome, "source": source}})),
        2 => Just(json!("cancel_requested")),
        2 => turn().prop_map(|turn| json!({"cancel_dispatched": {"turn": turn}})),
        2 => select(vec![json!("cancel_settled"), json!("cancel_ambiguous")]),
        4 => select(vec![json!("delivering"), json!("delivered"), json!("timed_out"), json!("forsaken")]),
    ];
    let selection = (
        id(),
        message(),
        select(vec![
            json!({}),
            json!({"effort": "high"}),
            json!({"model": "m"}),
        ]),
    );
    let selection = selection.prop_map(|(conversation, message, after)| {
        json!({"selection":
        {"conversation": conversation, "message": message, "after": after}})
    });
    let owner = select(vec![
        json!("client"),
        json!({"workspace": "w"}),
        json!({"conversation": 1}),
    ]);
    let owed = select(vec![
        json!({"owed": {"threads": ["thr_1"]}}),
        json!({"owed": {"threads": ["thr_1", "thr_2"]}}),
        json!({"owed": {"marks": ["turnkeep-create-00000000000000000000000000000001"]}}),
        json!({"done": {"thread": "thr_1"}}),
        json!({"done": {"thread": "thr_2"}}),
        json!({"mark_done": {"mark": "turnkeep-create-00000000000000000000000000000001"}}),
    ]);
    let call = select(vec![
        json!("launched"),
        json!({"answered": {"result": {"success": true, "content": []}}}),
        json!({"closed": {"why": "time_limit"}}),
    ]);
    let record = prop_oneof![
        2 => Just(json!({"start": {"version": "0.1.0", "seed": 1, "at": 7}})),
        2 => (1..3u32).prop_map(|pid| json!({"attached": {"endpoint": "spawn", "child": {"pid": pid}}})),
        2 => select(&["/a", "/b"][..]).prop_map(|home| json!({"home_told": {"home": home}})),
        1 => Just(json!("detached")),
        4 => (id(), id()).prop_map(move |(n, key)| json!({"conversation_opened":
            {"conversation": n, "key": format!("k{key}"), "nonce": nonce(n), "settings": {}}})),
        3 => (id(), select(vec![json!({}), json!({"effort": "high"}), json!({"cwd": "/w"})])).prop_map(
            |(n, settings)| json!({"settings_changed": {"conversation": n, "settings": settings}})),
        1 => id().prop_map(|n| json!({"conversation_closed": {"conversation": n}})),
        12 => (id(), creation).prop_map(|(n, change)| json!({"thread_creation": {"conversation": n, "change": change}})),
        32 => (message(), change).prop_map(|(message, change)| json!({"prompt": {"message": message, "change": change}})),
        4 => selection,
        4 => (id(), 1..6u32, 1..9u32).prop_map(move |(n, sequence, turn)| json!({"tool_call": {
            "call": {"nonce": nonce(n), "sequence": sequence},
            "change": {"asked": {"conversation": n, "turn": turn, "native": "c", "tool": "t", "arguments": {}}}}})),
        6 => (id(), 1..6u32, call).prop_map(move |(n, sequence, change)| json!({"tool_call": {
            "call": {"nonce": nonce(n), "sequence": sequence}, "change": change}})),
        3 => (id(), 1..6u32, 1..9u32).prop_map(|(n, question, turn)| json!({"question_asked": {"question": question,
            "asked": {"conversation": n, "turn": turn, "method": "m", "item": null, "approval": null}}})),
        2 => (1..6u32).prop_map(|question| json!({"question_answered":
            {"question": question, "result": {"n": question}, "chosen": true}})),
        1 => (1..6u32).prop_map(|question| json!({"question_settled": {"question": question, "why": null}})),
        1 => (1..4u32).prop_map(|command| json!({"request": {"command": command, "method": "m"}})),
        4 => (owner, select(&["detach", "archive", "delete"][..]), owed).prop_map(|(owner, action, change)|
            json!({"cleanup": {"owner": owner, "action": action, "change": change}})),
        1 => (1..9u32).prop_map(|id| json!({"command": {"id": id, "answer": {"opened": {"conversation": id}}}})),
        1 => (1..4u32).prop_map(|command| json!({"request_ended": {"command": command, "end": "answered"}})),
    ];
    record.prop_map(|value| serde_json::from_value(value).expect("a record"))
}

/// Few enough for every run; `PROPTEST_CASES` asks for more.
fn config() -> ProptestConfig {
    let default = ProptestConfig::default();
    let cases = match std::env::var_os("PROPTEST_CASES") {
        Some(_) => default.cases,
        None => 64,
    };
    ProptestConfig { cases, ..default }
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn whatever_records_make_a_checkpoint_makes_it_again(
        records in vec(any_record(), 0..300), cut in any::<Index>(),
    ) {
        let mut durable = Durable::default();
        let mut other: Option<Durable> = None;
        let cut = cut.index(records.len() + 1);
        for (at, record) in records.iter().enumerate() {
            if at == cut {
                other = Some(again(&durable));
            }
            let before = durable.clone();
            let applied = durable.apply(record);
            if applied.is_err() {
                prop_assert_eq!(&durable, &before, "{:?} is refused and changes something", record);
            }
            if let Some(other) = &mut other {
                prop_assert_eq!(other.apply(record), applied, "{:?}", record);
            }
        }
        prop_assert_eq!(&again(&durable), &durable);
        if let Some(other) = other {
            prop_assert_eq!(other, durable);
        }
    }
}
