//! What a message carries of model, effort and personality, and what its fate makes of it.

#![allow(clippy::unwrap_used, reason = "helpers of tests are tests")]

use turnkeep_core::{
    MessageId,
    selection::{
        Field, Given, ListedModel, Models, Selection, SelectionChange, SelectionError,
        ThreadSelection, Unlisted, plan,
    },
};

/// `model effort personality`, each `-` where it is left out.
fn of(text: &str) -> Selection {
    let mut parts = text
        .split(' ')
        .map(|part| (part != "-").then(|| part.to_owned()));
    Selection {
        model: parts.next().unwrap(),
        effort: parts.next().unwrap(),
        personality: parts.next().unwrap(),
    }
}

fn known(text: &str) -> ThreadSelection {
    ThreadSelection::Settled(Given::Known(of(text)))
}

fn listed(id: &str, is_default: bool, default_effort: Option<&str>) -> ListedModel {
    ListedModel {
        id: id.into(),
        is_default,
        efforts: vec!["low".into(), "high".into()],
        default_effort: default_effort.map(str::to_owned),
    }
}

fn models() -> Models {
    Models {
        listed: vec![
            listed("a", true, Some("low")),
            listed("b", false, Some("high")),
            listed("c", false, None),
        ],
        unlisted: Unlisted::Sent,
    }
}

fn no_default(field: Field) -> Result<Selection, SelectionError> {
    Err(SelectionError::NoDefault { field })
}

fn sent(
    asked: &str,
    thread: &ThreadSelection,
    models: &Models,
) -> Result<Selection, SelectionError> {
    plan(&of(asked), thread, models).map(|plan| plan.sent)
}

#[test]
fn only_differences_are_sent() {
    for (has, asked, want) in [
        ("- - -", "- - -", "- - -"),
        ("- - -", "b high p", "b high p"),
        ("b high p", "b high p", "- - -"),
        ("b high p", "b low p", "- low -"),
        ("b - -", "c - -", "c - -"),
        // What was set and is left out goes back to the listed default.
        ("b - -", "- - -", "a - -"),
        ("b high -", "b - -", "- high -"),
        ("a high -", "- - -", "a low -"),
        ("b high -", "a - -", "a low -"),
    ] {
        assert_eq!(
            sent(asked, &known(has), &models()),
            Ok(of(want)),
            "{has} -> {asked}"
        );
    }
}

#[test]
fn what_has_no_default_cannot_be_left_out() {
    let none = Models::default();
    let two = Models {
        listed: vec![listed("a", true, None), listed("b", true, None)],
        ..Models::default()
    };
    for (has, asked, models, field) in [
        ("b - -", "- - -", &none, Field::Model),
        ("b - -", "- - -", &two, Field::Model),
        ("- high -", "- - -", &none, Field::Effort),
        // The model that is asked is listed, and has none.
        ("- high -", "c - -", &models(), Field::Effort),
        // What the model that is asked has cannot be told.
        ("- high -", "x - -", &models(), Field::Effort),
        ("- - p", "- - -", &models(), Field::Personality),
    ] {
        assert_eq!(
            sent(asked, &known(has), models),
            no_default(field),
            "{has} -> {asked}"
        );
    }
}

#[test]
fn an_effort_is_checked_against_the_model_that_then_runs() {
    let bad = |model: &str| {
        Err(SelectionError::BadEffort {
            model: model.into(),
            effort: "odd".into(),
        })
    };
    assert_eq!(sent("b odd -", &known("- - -"), &models()), bad("b"));
    assert_eq!(sent("- odd -", &known("- - -"), &models()), bad("a"));
    // Leaving the model out goes back to the default.
    assert_eq!(sent("- odd -", &known("x - -"), &models()), bad("a"));
    // Models that are not listed are not known.
    for models in [&models(), &Models::default()] {
        assert_eq!(sent("x odd -", &known("- - -"), models), Ok(of("x odd -")));
    }
}

#[test]
fn a_model_that_is_not_listed_is_sent_or_refused() {
    let plan_of = |models: &Models| plan(&of("x - -"), &known("- - -"), models);
    assert_eq!(plan_of(&models()).unwrap().unlisted, Some("x".into()));
    let strict = Models {
        unlisted: Unlisted::Refused,
        ..models()
    };
    let model = "x".into();
    assert_eq!(plan_of(&strict), Err(SelectionError::NotListed { model }));
    assert_eq!(
        plan(&of("b - -"), &known("- - -"), &strict)
            .unwrap()
            .unlisted,
        None
    );
}

#[test]
fn in_doubt_everything_is_sent_that_was_ever_named() {
    let message = MessageId::new("msg_1").unwrap();
    let after = |change: SelectionChange| {
        let mut thread = known("b - -");
        let sent = SelectionChange::Sent {
            message: message.clone(),
            after: of("b high -"),
        };
        thread.on(&sent).unwrap();
        thread.on(&change).unwrap();
        thread
    };
    let accepted = after(SelectionChange::Accepted(message.clone()));
    assert_eq!(sent("b high -", &accepted, &models()), Ok(of("- - -")));
    let refused = after(SelectionChange::Refused(message.clone()));
    assert_eq!(sent("b high -", &refused, &models()), Ok(of("- high -")));
    let doubted = after(SelectionChange::Doubted(message.clone()));
    assert_eq!(sent("b high -", &doubted, &models()), Ok(of("b high -")));
    assert_eq!(sent("b - -", &doubted, &models()), Ok(of("b high -")));
    assert_eq!(
        sent("b - -", &doubted, &Models::default()),
        no_default(Field::Effort)
    );
    // Doubt ends with the next message that is accepted.
    let mut thread = doubted;
    let next = MessageId::new("msg_2").unwrap();
    let sent_again = SelectionChange::Sent {
        message: next.clone(),
        after: of("b high -"),
    };
    thread.on(&sent_again).unwrap();
    thread.on(&SelectionChange::Accepted(next)).unwrap();
    assert_eq!(thread, known("b high -"));
}
