//! What is owed for threads that are no longer wanted.

use insta::assert_snapshot;
use turnkeep_core::{
    Durable, Record, ThreadId,
    cleanup::{Cleanup, CleanupChange},
};

use super::{On, table};

#[test]
fn cleanup() {
    use CleanupChange as C;
    let threads = |ids: &[&str]| -> Vec<_> {
        let ids = ids.iter();
        ids.map(|id| ThreadId::new(id).unwrap()).collect()
    };
    let mark = || format!("turnkeep-create-{}", "0".repeat(32));
    let owed = |ids: &[&str], marks: &[String]| Cleanup::Owed {
        threads: threads(ids).into_iter().collect(),
        marks: marks.iter().cloned().collect(),
    };
    let states = [
        ("Settled", Cleanup::Settled),
        ("Owed for a", owed(&["a"], &[])),
        ("Owed for a and b", owed(&["a", "b"], &[])),
        ("Owed for a and a mark", owed(&["a"], &[mark()])),
    ];
    let more = |ids: &[&str], marks: &[String]| C::Owed {
        threads: threads(ids),
        marks: marks.to_vec(),
    };
    let done = |id: &str| C::Done {
        thread: ThreadId::new(id).unwrap(),
    };
    let events = [
        ("owed for a", more(&["a"], &[])),
        ("owed for b", more(&["b"], &[])),
        ("owed for a mark", more(&[], &[mark()])),
        ("done a", done("a")),
        ("done b", done("b")),
        ("mark done", C::MarkDone { mark: mark() }),
    ];
    for (_, change) in &events {
        match change {
            C::Owed { .. } | C::Done { .. } | C::MarkDone { .. } => {}
        }
    }
    let on: On<Cleanup, CleanupChange> = Cleanup::on;
    assert_snapshot!(table(&states, &events, Cleanup::name, on));
}

#[test]
fn a_clean_up_that_cannot_be_is_refused() {
    let refused = |owner: &str, change: &str| {
        let text =
            format!(r#"{{"cleanup":{{"owner":{owner},"action":"delete","change":{change}}}}}"#);
        let Ok(record) = serde_json::from_str::<Record>(&text) else {
            return true;
        };
        let mut durable = Durable::default();
        let applied = durable.apply(&record);
        assert_eq!(applied.is_err(), durable == Durable::default());
        applied.is_err()
    };
    let one = r#"{"owed":{"threads":["a"]}}"#;
    let rows = [
        (r#""client""#, one, false),
        (r#"{"workspace":"w"}"#, one, false),
        (r#"{"workspace":""}"#, one, true),
        (r#"{"workspace":"w "}"#, one, true),
        (r#""client""#, r#"{"owed":{"threads":["a","b"]}}"#, false),
        (r#""client""#, r#"{"owed":{"threads":["b","a"]}}"#, true),
        (r#""client""#, r#"{"owed":{"threads":["a","a"]}}"#, true),
        (r#""client""#, r#"{"owed":{"threads":[" a"]}}"#, true),
        (r#""client""#, r#"{"owed":{}}"#, true),
        (
            r#""client""#,
            r#"{"owed":{"marks":["turnkeep-create-1"]}}"#,
            true,
        ),
        (r#""client""#, r#"{"done":{"thread":"a"}}"#, true),
    ];
    for (owner, change, want) in rows {
        assert_eq!(refused(owner, change), want, "{owner} {change}");
    }
}
