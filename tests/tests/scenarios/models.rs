//! Model and effort, checked against the server's list.

use insta::assert_snapshot;
use turnkeep_core::{
    Command, CommandError, Outcome, Settings,
    command::Models,
    event::{Rejection, TurnEnd},
    selection::{Field, SelectionError},
};
use turnkeep_tests::world::World;

use crate::Scene;

fn model(id: &str, more: &str) -> String {
    format!(
        r#"{{"id":"{id}","model":"{id}","supportedReasoningEfforts":[{{"reasoningEffort":"low","description":""}},{{"reasoningEffort":"high","description":""}}],"defaultReasoningEffort":"low"{more}}}"#
    )
}

const DEFAULT: &str = r#","isDefault":true"#;

/// The list is asked for once, and is this.
fn list(scene: Scene, models: &[String]) -> Scene {
    scene.answer(
        "model/list",
        r#""cursor":"!absent","limit":100,"includeHidden":false"#,
        &format!(
            r#""result":{{"data":[{}],"nextCursor":null}}"#,
            models.join(",")
        ),
    )
}

fn accept_with(scene: Scene, n: u32, fields: &str) -> Scene {
    scene
        .answer(
            "turn/start",
            &format!(r#""threadId":"thr_1","input":"$i{n}","clientUserMessageId":"$m{n}",{fields}"#),
            &format!(r#""result":{{"turn":{{"id":"trn_{n}","items":[],"status":"inProgress","error":null}}}}"#),
        )
        .started(n)
        .recorded(n)
        .say(n, "ok")
        .idle()
        .end(n, "completed")
}

fn refused(end: &TurnEnd) -> &SelectionError {
    match &end.outcome {
        Outcome::Rejected {
            error: Rejection::Selection(error),
        } => error,
        other => panic!("{other:?}"),
    }
}

fn play(world: &mut World, conversation: turnkeep_core::ConversationId, text: &str) -> TurnEnd {
    let turn = world.send(conversation, text);
    world.end_of(turn)
}

#[test]
fn what_is_left_out_goes_back_to_the_listed_default_and_the_list_is_read_once() {
    let scene = list(
        Scene::new(),
        &[
            model("m2", ""),
            model("m1", DEFAULT),
            model("m0", r#","isDefault":true,"hidden":true"#),
        ],
    );
    let scene = accept_with(scene, 1, r#""model":"!absent","effort":"high""#);
    let scene = accept_with(scene, 2, r#""model":"m1","effort":"low""#);
    let scene = accept_with(scene, 3, r#""model":"!absent","effort":"!absent""#);
    let mut world = scene.start();
    let conversation = world.open("a", Settings::new().model("m2").effort("high"));
    play(&mut world, conversation, "one");
    let changed = world.change(conversation, Settings::new());
    world.answer_of(changed).unwrap();
    play(&mut world, conversation, "two");
    play(&mut world, conversation, "three");
    world.note("an effort that no listed model has is refused at once");
    let changed = world.change(conversation, Settings::new().effort("odd"));
    let (model, effort) = ("m1".to_owned(), "odd".to_owned());
    assert_eq!(
        world.answer_of(changed),
        Err(CommandError::Selection(SelectionError::BadEffort {
            model,
            effort
        }))
    );
    assert_eq!(world.sent_of("model/list").len(), 1);
    assert!(world.is_played());
    assert_snapshot!(world.finish());
}

#[test]
fn an_effort_that_the_model_lacks_makes_no_thread() {
    let scene = list(Scene::new(), &[model("m1", DEFAULT)]).turn(1, "ok");
    let mut world = scene.start();
    let conversation = world.open("a", Settings::new().model("m1").effort("odd"));
    let end = play(&mut world, conversation, "one");
    let (model, effort) = ("m1".to_owned(), "odd".to_owned());
    assert_eq!(*refused(&end), SelectionError::BadEffort { model, effort });
    assert!(world.sent_of("thread/start").is_empty());
    world.note("nothing was sent: with other settings the same message goes");
    world.dismiss(conversation);
    let changed = world.change(conversation, Settings::new().model("m1"));
    world.answer_of(changed).unwrap();
    play(&mut world, conversation, "two");
    assert!(world.is_played());
    assert_snapshot!(world.finish());
}

#[test]
fn a_model_that_is_not_listed_is_told_or_refused() {
    let scene = list(Scene::new(), &[model("m1", DEFAULT)]);
    let scene = accept_with(scene, 1, r#""model":"!absent","effort":"odd""#);
    let mut world = scene.start();
    let own = || Settings::new().model("own");
    let any = world.open("any", own().effort("odd"));
    let end = play(&mut world, any, "one");
    assert!(matches!(end.outcome, Outcome::Completed { .. }));
    let strict = world.open("strict", own().models(Models::Listed));
    let end = play(&mut world, strict, "one");
    let model = "own".to_owned();
    assert_eq!(*refused(&end), SelectionError::NotListed { model });
    assert_eq!(world.sent_of("thread/start").len(), 1);
    assert!(world.is_played());
    assert_snapshot!(world.finish());
}

#[test]
fn a_list_of_no_use_is_told_and_checks_nothing() {
    let page = |cursor: &str, next: &str, id: &str| {
        (
            format!(r#""cursor":"{cursor}","limit":100"#),
            format!(
                r#""result":{{"data":[{}],"nextCursor":{next}}}"#,
                model(id, "")
            ),
        )
    };
    let rows = [
        // A row twice, over two pages.
        vec![page("!absent", r#""c1""#, "m1"), page("c1", "null", "m1")],
        // A cursor that comes again.
        vec![
            page("!absent", r#""c1""#, "m1"),
            page("c1", r#""c1""#, "m2"),
        ],
        vec![page("!absent", r#"" c1""#, "m1")],
        vec![(
            r#""limit":100"#.to_owned(),
            format!(
                r#""result":{{"data":[{},{}],"nextCursor":null}}"#,
                model("m1", DEFAULT),
                model("m2", DEFAULT)
            ),
        )],
        vec![(
            r#""limit":100"#.to_owned(),
            r#""error":{"code":-32603,"message":"no list"}"#.to_owned(),
        )],
    ];
    for (at, pages) in rows.iter().enumerate() {
        let scene = pages.iter().fold(Scene::new(), |scene, (params, answer)| {
            scene.answer("model/list", params, answer)
        });
        let scene = accept_with(scene, 1, r#""effort":"high""#);
        let mut world = scene.start();
        let conversation = world.open("a", Settings::new().effort("high"));
        let end = play(&mut world, conversation, "one");
        assert!(matches!(end.outcome, Outcome::Completed { .. }), "row {at}");
        assert!(world.is_played(), "row {at}");
        let told = world.told().join("\n");
        assert!(told.contains("ModelList"), "row {at}: {told}");
        let field = Field::Effort;
        let changed = world.change(conversation, Settings::new());
        assert_eq!(
            world.answer_of(changed),
            Err(CommandError::Selection(SelectionError::NoDefault { field })),
            "row {at}"
        );
        let strict = Settings::new().model("m1").models(Models::Listed);
        let strict = world.open("strict", strict);
        let end = play(&mut world, strict, "one");
        let error = refused(&end);
        assert!(matches!(error, SelectionError::NoList { .. }), "{error:?}");
        let _ = world.finish();
    }
}

#[test]
fn another_connection_is_asked_again_and_what_was_given_stays() {
    let models = || [model("m1", DEFAULT), model("m2", "")];
    let scene = list(Scene::new(), &models());
    let scene = accept_with(scene, 1, r#""effort":"high""#).line("X exit 1");
    let scene = scene.next_life().resume("idle");
    let scene = list(scene, &models());
    let scene = accept_with(scene, 2, r#""model":"!absent","effort":"low""#);
    let mut world = scene.setup().reconnects().start();
    let conversation = world.open("a", Settings::new().model("m2").effort("high"));
    play(&mut world, conversation, "one");
    world.run(0);
    world.note("what the next list decides is not refused before it is read");
    let changed = world.change(conversation, Settings::new().model("m2"));
    world.answer_of(changed).unwrap();
    play(&mut world, conversation, "two");
    assert!(world.is_played());
    assert_snapshot!(world.finish());
}

#[test]
fn a_thread_that_is_made_at_once_has_no_model_that_is_refused() {
    let scene = list(Scene::new(), &[model("m1", DEFAULT)]);
    let mut world = scene.start();
    let settings = Settings::new().model("own").models(Models::Listed);
    let conversation = world.open("a", settings);
    let made = world.ask(Command::Materialise { conversation });
    let model = "own".to_owned();
    assert_eq!(
        world.answer_of(made),
        Err(CommandError::Selection(SelectionError::NotListed { model }))
    );
    assert!(world.sent_of("thread/start").is_empty());
    let _ = world.finish();
}
