//! What a message carries of model, effort and personality, and what its fate makes of it.

#![allow(clippy::unwrap_used, reason = "helpers of tests are tests")]

use turnkeep_core::{
    MessageId,
    command::Models,
    selection::{
        Field, Given, ListedModel, ModelList, Plan, Selection, SelectionChange, SelectionError,
        ThreadSelection, Wanted,
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

fn models() -> ModelList {
    ModelList::Read(vec![
        listed("a", true, Some("low")),
        listed("b", false, Some("high")),
        listed("c", false, None),
    ])
}

fn plan(
    asked: &Selection,
    thread: &ThreadSelection,
    list: &ModelList,
) -> Result<Plan, SelectionError> {
    let (told, models) = (None, Models::Any);
    let wanted = Wanted {
        asked,
        thread,
        told,
        models,
    };
    wanted.plan(list)
}

fn no_default(field: Field) -> Result<Selection, SelectionError> {
    Err(SelectionError::NoDefault { field })
}

fn sent(
    asked: &str,
    thread: &ThreadSelection,
    models: &ModelList,
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
        ("b low -", "b - -", "- high -"),
        ("b high -", "b - -", "- - -"),
        ("a high -", "- - -", "- low -"),
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
    let none = ModelList::Read(Vec::new());
    let two = ModelList::Read(vec![listed("a", true, None), listed("b", true, None)]);
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
    for models in [&models(), &ModelList::default()] {
        assert_eq!(sent("x odd -", &known("- - -"), models), Ok(of("x odd -")));
    }
}

#[test]
fn a_model_that_is_not_listed_is_sent_or_refused() {
    let strict = |asked: &str, has: &str, list: &ModelList| {
        let (asked, thread) = (of(asked), known(has));
        let wanted = Wanted {
            asked: &asked,
            thread: &thread,
            told: None,
            models: Models::Listed,
        };
        wanted.plan(list).map(|plan| plan.unlisted)
    };
    let any = plan(&of("x - -"), &known("- - -"), &models());
    assert_eq!(any.unwrap().unlisted, Some("x".into()));
    let model = "x".to_owned();
    assert_eq!(
        strict("x - -", "- - -", &models()),
        Err(SelectionError::NotListed {
            model: model.clone()
        })
    );
    let reason = "no".to_owned();
    assert_eq!(
        strict("x - -", "- - -", &ModelList::Unreadable(reason.clone())),
        Err(SelectionError::NoList { model, reason })
    );
    assert_eq!(strict("b - -", "- - -", &models()), Ok(None));
    // What a thread has it keeps.
    assert_eq!(
        strict("x high -", "x - -", &models()),
        Ok(Some("x".to_owned()))
    );
}

#[test]
fn a_thread_that_was_given_no_model_has_the_one_that_the_server_tells() {
    let asked = of("- odd -");
    let plan = |told| {
        let wanted = Wanted {
            asked: &asked,
            thread: &known("- - -"),
            told: Some(told),
            models: Models::Any,
        };
        wanted.plan(&models())
    };
    // Not the default of the list, which may be that of another provider.
    let own = plan("mock-model").unwrap();
    assert_eq!(own.sent, of("- odd -"));
    assert_eq!(own.unlisted.as_deref(), Some("mock-model"));
    let (model, effort) = ("b".to_owned(), "odd".to_owned());
    assert_eq!(plan("b"), Err(SelectionError::BadEffort { model, effort }));
}

#[test]
fn the_list_is_read_where_a_rule_needs_it() {
    let needs = |asked: &str, has: &str, models| {
        let (asked, thread) = (of(asked), known(has));
        let wanted = Wanted {
            asked: &asked,
            thread: &thread,
            told: None,
            models,
        };
        wanted.needs_list()
    };
    for (asked, has, any, listed) in [
        ("- - -", "- - -", false, false),
        ("b - p", "- - -", false, true),
        ("b - -", "b - -", false, false),
        ("b high -", "b high -", false, false),
        ("b high -", "b low -", true, true),
        ("b high -", "a high -", true, true),
        ("- high -", "- - -", true, true),
        ("- - -", "b - -", true, true),
        ("b - -", "b high -", true, true),
    ] {
        let found = (
            needs(asked, has, Models::Any),
            needs(asked, has, Models::Listed),
        );
        assert_eq!(found, (any, listed), "{has} -> {asked}");
    }
}

#[test]
fn what_went_back_to_the_default_is_given_and_follows_the_model() {
    let back = plan(&of("b - -"), &known("b low -"), &models()).unwrap();
    assert_eq!(
        (back.sent, back.after.clone()),
        (of("- high -"), of("b high -"))
    );
    let thread = ThreadSelection::Settled(Given::Known(back.after));
    assert_eq!(sent("b - -", &thread, &models()), Ok(of("- - -")));
    // Another model has another default.
    assert_eq!(sent("a - -", &thread, &models()), Ok(of("a low -")));
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
        sent("b - -", &doubted, &ModelList::default()),
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
