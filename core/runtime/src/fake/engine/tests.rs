use super::*;

fn engine(script: &str) -> Engine {
    Engine::new(Script::parse(script).unwrap())
}

/// Everything that is to be done until the script waits.
fn all(engine: &mut Engine, mut actions: Vec<Action>) -> Vec<Action> {
    loop {
        let more = engine.poll();
        if more.is_empty() {
            return actions;
        }
        actions.extend(more);
    }
}

fn written(actions: &[Action]) -> String {
    let bytes = actions.iter().flat_map(|action| match action {
        Action::Write(bytes) => bytes.as_slice(),
        _ => &[],
    });
    String::from_utf8_lossy(&bytes.copied().collect::<Vec<_>>()).into_owned()
}

fn say(engine: &mut Engine, line: &str) -> Vec<Action> {
    let actions = engine.on_line(line.as_bytes());
    all(engine, actions)
}

#[test]
fn answers_with_the_id_as_it_came() {
    let script = "C {\"id\":\"$a\",\"method\":\"turn/start\"}\nS {\"id\":\"$a\",\"result\":{\"x\":\"<${a}>\"}}";
    let mut engine_1 = engine(script);
    assert_eq!(
        written(&say(
            &mut engine_1,
            r#"{"id":7,"method":"turn/start","params":{}}"#
        )),
        "{\"id\":7,\"result\":{\"x\":\"<7>\"}}\n"
    );
    assert!(engine_1.is_finished());
    let mut engine_2 = engine(script);
    assert_eq!(
        written(&say(&mut engine_2, r#"{"id":"s","method":"turn/start"}"#)),
        "{\"id\":\"s\",\"result\":{\"x\":\"<s>\"}}\n"
    );
}

#[test]
fn shakes_hands_unless_the_script_does() {
    let hello =
        r#"{"id":0,"method":"initialize","params":{"clientInfo":{"name":"probe","version":"1"}}}"#;
    let mut quiet = engine("C {\"method\":\"x\"}");
    assert!(written(&say(&mut quiet, hello)).contains(r#""userAgent":"probe/0.171.0 ("#));
    assert_eq!(say(&mut quiet, r#"{"method":"initialized"}"#), []);
    let mut own =
        engine("C {\"method\":\"initialize\",\"id\":\"$i\"}\nS {\"id\":\"$i\",\"error\":{}}");
    assert_eq!(written(&say(&mut own, hello)), "{\"id\":0,\"error\":{}}\n");
}

#[test]
fn a_wrong_frame_is_told_with_its_line() {
    let mut engine = engine("# one\nC {\"method\":\"turn/start\"}");
    let actions = say(&mut engine, r#"{"method":"turn/steer"}"#);
    let [Action::Stderr(text), Action::Exit(97)] = actions.as_slice() else {
        panic!("{actions:?}")
    };
    let text = String::from_utf8_lossy(text);
    assert_eq!(
        text,
        "fake-app-server: script line 2: expected {\"method\":\"turn/start\"}, got {\"method\":\"turn/steer\"}\n"
    );
    assert!(engine.failure().unwrap().contains("script line 2"));
    assert_eq!(say(&mut engine, "{}"), [], "it is over");
}

#[test]
fn an_unbound_variable_is_the_scripts_fault() {
    let mut engine = engine("S {\"id\":\"$nobody\"}");
    assert!(matches!(
        engine.poll().as_slice(),
        [Action::Stderr(_), Action::Exit(98)]
    ));
}

#[test]
fn groups_and_rules() {
    let mut engine = engine(
        "C* {\"method\":\"ping\",\"id\":\"$p\"}\nS? {\"id\":\"$p\",\"result\":1}\nC {\"id\":1}\nC& {\"id\":2}\nS {\"done\":true}\nX strict",
    );
    assert_eq!(written(&say(&mut engine, r#"{"id":2,"result":{}}"#)), "");
    assert_eq!(
        written(&say(&mut engine, r#"{"id":8,"method":"ping"}"#)),
        "{\"id\":8,\"result\":1}\n"
    );
    assert_eq!(
        written(&say(&mut engine, r#"{"id":9,"method":"ping"}"#)),
        "{\"id\":9,\"result\":1}\n"
    );
    assert_eq!(
        written(&say(&mut engine, r#"{"id":1,"result":{}}"#)),
        "{\"done\":true}\n"
    );
    assert!(matches!(
        say(&mut engine, r#"{"method":"more"}"#).last(),
        Some(Action::Exit(97))
    ));
}

#[test]
fn frames_that_come_early_wait_their_turn() {
    let mut engine = engine("X repeat 1000\nS {\"n\":\"$i\"}\nX end\nC {\"id\":1}\nS {\"last\":1}");
    let mut actions = engine.poll();
    assert_eq!(actions.len(), BATCH);
    actions.extend(engine.on_line(b"{\"id\":1}"));
    let text = written(&all(&mut engine, actions));
    assert_eq!(text.lines().count(), 1001);
    assert!(text.starts_with("{\"n\":0}\n{\"n\":1}\n"));
    assert!(text.ends_with("{\"n\":999}\n{\"last\":1}\n"));
}

#[test]
fn repeats_nest_and_may_be_empty() {
    let mut engine = engine(
        "X repeat 2\nX repeat 2\nS {\"a\":\"$i\"}\nX end\nS {\"b\":\"$i\"}\nX end\nX repeat 0\nS {\"c\":1}\nX end",
    );
    let actions = engine.poll();
    assert_eq!(
        written(&actions).replace('\n', ""),
        r#"{"a":0}{"a":1}{"b":0}{"a":0}{"a":1}{"b":1}"#
    );
}

#[test]
fn pieces_add_up() {
    let mut engine = engine(
        "X random-chunks 3\nS {\"a\":\"${x*100}\"}\nX chunks 7\nS< abcdefghij\nX chunks off\nX big item/completed 9000",
    );
    let actions = engine.poll();
    let actions = all(&mut engine, actions);
    let sizes: Vec<_> = actions
        .iter()
        .map(|action| {
            if let Action::Write(bytes) = action {
                bytes.len()
            } else {
                0
            }
        })
        .collect();
    assert!(
        sizes.len() > 10 && sizes.iter().all(|size| (1..=4096).contains(size)),
        "{sizes:?}"
    );
    let text = written(&actions);
    assert!(text.starts_with(&format!(
        "{{\"a\":\"{}\"}}\nabcdefghij{{\"method\"",
        "x".repeat(100)
    )));
    let big: Value = serde_json::from_str(&text[text.find("{\"method\"").unwrap()..]).unwrap();
    assert_eq!(
        big["params"]["item"]["aggregatedOutput"]
            .as_str()
            .unwrap()
            .len(),
        9000
    );
    assert_eq!(big["params"]["threadId"], "thr_1");
}

#[test]
fn the_end_of_stdin() {
    let mut plain = engine("S {}\nX sleep 9\nX exit 3");
    plain.poll();
    assert!(matches!(
        plain.on_eof().as_slice(),
        [Action::Stderr(_), Action::Exit(0)]
    ));
    let mut must = engine("X must-finish\nC {\"id\":1}");
    must.poll();
    assert_eq!(must.on_eof().last(), Some(&Action::Exit(UNFINISHED)));
    let mut stubborn = engine("X ignore-eof\nX hang");
    stubborn.poll();
    assert_eq!(stubborn.on_eof(), []);
    let mut asked = engine("X eof\nX exit 3");
    asked.poll();
    assert_eq!(asked.on_eof(), [Action::Sleep(0)]);
    assert_eq!(asked.poll(), [Action::Exit(3)]);
    let mut done = engine("S {}");
    done.poll();
    assert_eq!(done.on_eof(), [Action::Exit(0)]);
}

#[test]
fn automatic_answers_are_full_frames() {
    let mut engine = engine("X auto all\nC {\"method\":\"turn/start\"}");
    let text = written(&say(
        &mut engine,
        r#"{"id":1,"method":"thread/start","params":{"cwd":"/x","sandbox":"workspace-write"}}"#,
    ));
    let frames: Vec<Value> = text
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert_eq!(frames[0]["result"]["thread"]["id"], "thr_1");
    assert_eq!(frames[0]["result"]["sandbox"]["type"], "workspaceWrite");
    assert_eq!(frames[1]["method"], "thread/started");
    let text = written(&say(
        &mut engine,
        r#"{"id":2,"method":"thread/start","params":{}}"#,
    ));
    assert!(text.contains("thr_2"));
    let text = written(&say(
        &mut engine,
        r#"{"id":3,"method":"thread/unsubscribe","params":{"threadId":"thr_2"}}"#,
    ));
    assert_eq!(
        text,
        "{\"id\":3,\"result\":{\"status\":\"unsubscribed\"}}\n"
    );
    for method in [
        "thread/resume",
        "thread/read",
        "thread/turns/list",
        "thread/items/list",
        "thread/name/set",
    ] {
        let text = written(&say(
            &mut engine,
            &format!(r#"{{"id":4,"method":"{method}","params":{{"threadId":"thr_2"}}}}"#),
        ));
        let frame: Value = serde_json::from_str(text.trim_end()).unwrap();
        assert_eq!(frame["id"], 4, "{method}");
    }
}

#[test]
fn closing_stdout_hands_over_the_rest() {
    let mut engine = engine("X ignore-eof\nX close stdout\nX sleep 5\nX exit 2");
    assert_eq!(
        engine.poll(),
        [Action::CloseStdout {
            rest: "X ignore-eof\nC* {}\nX sleep 5\nX exit 2".to_owned()
        }]
    );
}
