//! Typed requests and lists, on both runtimes, against a scripted server that is a process.

#![allow(clippy::unwrap_used, reason = "helpers of tests are tests")]

use turnkeep_protocol::{
    ListError, MAIN_LIMIT, ServerNotification,
    policy::PolicyFinding,
    requests::{ConfigRead, ThreadRead},
    types::{ThreadListParams, ThreadStatus},
};
use turnkeep_runtime::{
    ChildConfig, Client, CommandError, ModelsError, RequestError, Runtime, Typed as _, TypedError,
    TypedFrame, core::event::ConnectionEvent,
};
use turnkeep_tests::{both::soon, on_both};

on_both!(
    answers_are_typed_and_keep_what_they_do_not_know,
    answer_of_another_shape_is_given_as_it_came,
    read_that_answers_for_another_is_an_error,
    list_is_read_page_by_page_as_it_is_asked_for,
    list_that_breaks_its_rules_ends_with_the_reason,
    all_providers_are_meant_where_none_is_named,
    thread_that_is_archived_and_not_is_an_error,
    file_is_bytes,
    several_default_models_are_an_error,
    policy_is_checked_by_two_lists,
    refusal_is_told_with_its_words,
    told_limits_are_merged,
    key_of_a_login_stands_in_no_log,
);

async fn client<R: Runtime + Default>(script: &str) -> Client<R> {
    let program = env!("CARGO_BIN_EXE_fake-app-server");
    let child = ChildConfig::program(program).args(["--script-text", script]);
    let config = turnkeep_tests::client(child).one_connection();
    soon::<R, _>(Client::spawn(config)).await.unwrap()
}

/// A thread with what every server says of it.
fn thread(id: &str, more: &str) -> String {
    format!(
        r#"{{"id":"{id}","sessionId":"{id}","cliVersion":"0","createdAt":1,"updatedAt":2,"cwd":"/w","ephemeral":false,"modelProvider":"mock","preview":"","projectId":null,"source":"cli","status":{{"type":"idle"}},"turns":[]{more}}}"#
    )
}

async fn answers_are_typed_and_keep_what_they_do_not_know<R: Runtime + Default>() {
    let row = thread("thr_9", r#","holograms":3,"status":{"type":"dreaming"}"#);
    let script = format!(
        "C {{\"id\":\"$id\",\"method\":\"thread/read\",\"params\":{{\"threadId\":\"thr_9\"}}}}\n\
         S {{\"id\":\"$id\",\"result\":{{\"thread\":{row}}}}}\nX eof\n"
    );
    let client = client::<R>(&script).await;
    let answer = soon::<R, _>(client.request(ThreadRead::new("thr_9")))
        .await
        .unwrap();
    assert_eq!(answer.thread.unknown["holograms"], 3);
    assert!(matches!(answer.thread.status, ThreadStatus::Unknown(_)));
    assert_eq!(answer.thread.status.word(), Some("dreaming"));
}

async fn answer_of_another_shape_is_given_as_it_came<R: Runtime + Default>() {
    let script = "C {\"id\":\"$id\",\"method\":\"config/read\"}\n\
                  S {\"id\":\"$id\",\"result\":{\"config\":[1,2]}}\nX eof\n";
    let client = client::<R>(script).await;
    match soon::<R, _>(client.request(ConfigRead::new())).await {
        Err(error @ TypedError::Shape { .. }) => {
            let text = error.to_string();
            assert!(
                text.starts_with(
                    "the answer to config/read has another shape: $.config: expected object"
                ),
                "{text}"
            );
            let TypedError::Shape { result, .. } = error else {
                unreachable!()
            };
            assert_eq!(result.get(), r#"{"config":[1,2]}"#);
        }
        other => panic!("{other:?}"),
    }
}

async fn read_that_answers_for_another_is_an_error<R: Runtime + Default>() {
    let script = format!(
        "C {{\"id\":\"$id\",\"method\":\"thread/read\"}}\n\
         S {{\"id\":\"$id\",\"result\":{{\"thread\":{}}}}}\nX eof\n",
        thread("thr_2", "")
    );
    let client = client::<R>(&script).await;
    match soon::<R, _>(client.threads().read("thr_1")).await {
        Err(TypedError::OtherAnswer { asked, told, .. }) => {
            assert_eq!((&*asked, &*told), ("thr_1", "thr_2"));
        }
        other => panic!("{other:?}"),
    }
}

async fn list_is_read_page_by_page_as_it_is_asked_for<R: Runtime + Default>() {
    // The second page is asked for only when the first is used up: the script would not wait else.
    let script = "\
        C {\"id\":\"$a\",\"method\":\"thread/loaded/list\",\"params\":{\"limit\":100,\"cursor\":\"!absent\"}}\n\
        S {\"id\":\"$a\",\"result\":{\"data\":[\"t1\",\"t2\"],\"nextCursor\":\"{\\\"n\\\":1}\"}}\n\
        C {\"id\":\"$x\",\"method\":\"config/read\"}\n\
        S {\"id\":\"$x\",\"result\":{\"config\":{},\"origins\":{}}}\n\
        C {\"id\":\"$b\",\"method\":\"thread/loaded/list\",\"params\":{\"limit\":100,\"cursor\":\"{\\\"n\\\":1}\"}}\n\
        S {\"id\":\"$b\",\"result\":{\"data\":[\"t3\"],\"nextCursor\":null}}\nX eof\n";
    let client = client::<R>(script).await;
    let mut loaded = client.threads().loaded();
    let mut rows = Vec::new();
    for _ in 0..2 {
        rows.push(soon::<R, _>(loaded.next()).await.unwrap().unwrap());
    }
    soon::<R, _>(client.request(ConfigRead::new()))
        .await
        .unwrap();
    rows.extend(soon::<R, _>(loaded.all()).await.unwrap());
    assert_eq!(rows, ["t1", "t2", "t3"]);
}

async fn list_that_breaks_its_rules_ends_with_the_reason<R: Runtime + Default>() {
    let script = "\
        C {\"id\":\"$a\",\"method\":\"thread/loaded/list\"}\n\
        S {\"id\":\"$a\",\"result\":{\"data\":[\"t1\"],\"nextCursor\":\"c\"}}\n\
        C {\"id\":\"$b\",\"method\":\"thread/loaded/list\"}\n\
        S {\"id\":\"$b\",\"result\":{\"data\":[\"t1\"],\"nextCursor\":\"d\"}}\nX eof\n";
    let client = client::<R>(script).await;
    let mut loaded = client.threads().loaded();
    assert_eq!(soon::<R, _>(loaded.next()).await.unwrap().unwrap(), "t1");
    match soon::<R, _>(loaded.next()).await {
        Some(Err(TypedError::List(ListError::RepeatedRow { key, .. }))) => assert_eq!(key, "t1"),
        other => panic!("{other:?}"),
    }
    assert!(soon::<R, _>(loaded.next()).await.is_none());
}

async fn all_providers_are_meant_where_none_is_named<R: Runtime + Default>() {
    let script = "\
        C {\"id\":\"$a\",\"method\":\"thread/list\",\"params\":{\"modelProviders\":[]}}\n\
        S {\"id\":\"$a\",\"result\":{\"data\":[],\"nextCursor\":null}}\n\
        C {\"id\":\"$b\",\"method\":\"thread/list\",\"params\":{\"modelProviders\":null}}\n\
        S {\"id\":\"$b\",\"result\":{\"data\":[],\"nextCursor\":null}}\n\
        C {\"id\":\"$c\",\"method\":\"thread/list\",\"params\":{\"modelProviders\":\"!absent\"}}\n\
        S {\"id\":\"$c\",\"result\":{\"data\":[],\"nextCursor\":null}}\nX eof\n";
    let client = client::<R>(script).await;
    let threads = client.threads();
    soon::<R, _>(threads.list(ThreadListParams::new()).all())
        .await
        .unwrap();
    let null = ThreadListParams {
        model_providers: turnkeep_protocol::Maybe::Null,
        ..ThreadListParams::new()
    };
    soon::<R, _>(threads.list(null).all()).await.unwrap();
    soon::<R, _>(client.list(ThreadListParams::new()).all())
        .await
        .unwrap();
}

async fn thread_that_is_archived_and_not_is_an_error<R: Runtime + Default>() {
    let row = thread("t1", "");
    let page = |archived: bool| {
        format!(
            "C {{\"id\":\"$a{archived}\",\"method\":\"thread/list\",\"params\":{{\"archived\":{archived}}}}}\n\
             S {{\"id\":\"$a{archived}\",\"result\":{{\"data\":[{row}],\"nextCursor\":null}}}}\n"
        )
    };
    let client = client::<R>(&(page(false) + &page(true) + "X eof\n")).await;
    let threads = client.threads();
    match soon::<R, _>(threads.list_all(ThreadListParams::new())).await {
        Err(TypedError::List(ListError::ArchivedAndNot { thread })) => assert_eq!(thread, "t1"),
        other => panic!("{other:?}"),
    }
}

async fn file_is_bytes<R: Runtime + Default>() {
    let script = "\
        C {\"id\":\"$a\",\"method\":\"fs/readFile\",\"params\":{\"path\":\"/w/a\"}}\n\
        S {\"id\":\"$a\",\"result\":{\"dataBase64\":\"AJ+Slg==\"}}\n\
        C {\"id\":\"$b\",\"method\":\"fs/readFile\"}\n\
        S {\"id\":\"$b\",\"result\":{\"dataBase64\":\"no base64\"}}\nX eof\n";
    let client = client::<R>(script).await;
    assert_eq!(
        soon::<R, _>(client.read_file("/w/a")).await.unwrap(),
        [0, 159, 146, 150]
    );
    let other = soon::<R, _>(client.read_file("/w/b")).await;
    assert!(matches!(other, Err(TypedError::Base64 { .. })), "{other:?}");
}

async fn several_default_models_are_an_error<R: Runtime + Default>() {
    let model = |id: &str, hidden: bool| {
        format!(
            r#"{{"id":"{id}","model":"{id}","displayName":"{id}","description":"","hidden":{hidden},"isDefault":true,"defaultReasoningEffort":"low","supportedReasoningEfforts":[]}}"#
        )
    };
    let answer = |name: &str, rows: [String; 2]| {
        format!(
            "C {{\"id\":\"${name}\",\"method\":\"model/list\"}}\n\
             S {{\"id\":\"${name}\",\"result\":{{\"data\":[{},{}],\"nextCursor\":null}}}}\n",
            rows[0], rows[1]
        )
    };
    let one = answer("a", [model("b", false), model("a", true)]);
    let two = answer("c", [model("b", false), model("a", false)]);
    let client = client::<R>(&(one + &two + "X eof\n")).await;
    let models = soon::<R, _>(client.models()).await.unwrap();
    assert_eq!(models.iter().map(|m| &*m.id).collect::<Vec<_>>(), ["b"]);
    match soon::<R, _>(client.models()).await {
        Err(ModelsError::Several(error)) => assert_eq!(error.models, ["a", "b"]),
        other => panic!("{other:?}"),
    }
}

async fn policy_is_checked_by_two_lists<R: Runtime + Default>() {
    let script = "\
        C {\"id\":\"$a\",\"method\":\"mcpServerStatus/list\",\"params\":{\"threadId\":\"thr_1\"}}\n\
        S {\"id\":\"$a\",\"result\":{\"data\":[{\"name\":\"files\",\"authStatus\":\"unsupported\",\"resourceTemplates\":[],\"resources\":[],\"tools\":{}}],\"nextCursor\":null}}\n\
        C {\"id\":\"$b\",\"method\":\"experimentalFeature/list\"}\n\
        S {\"id\":\"$b\",\"result\":{\"data\":[{\"name\":\"multi_agent\",\"enabled\":true,\"defaultEnabled\":true,\"stage\":\"stable\"}],\"nextCursor\":null}}\nX eof\n";
    let client = client::<R>(script).await;
    let findings = soon::<R, _>(client.check_policy(Some("thr_1")))
        .await
        .unwrap();
    assert_eq!(
        findings,
        [
            PolicyFinding::McpServer {
                name: "files".into(),
                thread: Some("thr_1".into())
            },
            PolicyFinding::FeatureOn {
                name: "multi_agent".into()
            },
            PolicyFinding::FeatureUnknown {
                name: "multi_agent_v2".into(),
                listed: 0
            },
        ]
    );
}

async fn refusal_is_told_with_its_words<R: Runtime + Default>() {
    let script = "\
        C {\"id\":\"$a\",\"method\":\"thread/read\"}\n\
        S {\"id\":\"$a\",\"error\":{\"code\":-32600,\"message\":\"thread not loaded: thr_1\"}}\nX eof\n";
    let client = client::<R>(script).await;
    match soon::<R, _>(client.threads().read("thr_1")).await {
        Err(TypedError::Request(RequestError::Command(CommandError::Refused(refusal)))) => {
            use turnkeep_runtime::core::command::RefusalClass;
            assert_eq!(refusal.class, RefusalClass::ThreadNotLoaded);
        }
        other => panic!("{other:?}"),
    }
}

async fn told_limits_are_merged<R: Runtime + Default>() {
    let script = "\
        C {\"id\":\"$a\",\"method\":\"account/rateLimits/read\"}\n\
        S {\"id\":\"$a\",\"result\":{\"rateLimits\":{\"planType\":\"plus\",\"primary\":{\"usedPercent\":1}}}}\n\
        S {\"method\":\"account/rateLimits/updated\",\"params\":{\"rateLimits\":{\"primary\":{\"usedPercent\":2},\"planType\":null}}}\nX eof\n";
    let client = client::<R>(script).await;
    let mut events = client.connection_events();
    let mut limits = soon::<R, _>(client.account().rate_limits()).await.unwrap();
    let told = soon::<R, _>(async {
        loop {
            if let ConnectionEvent::Unrecognized(frame) = events.next().await.unwrap() {
                break frame.typed();
            }
        }
    })
    .await;
    let TypedFrame::Notification(told) = told else {
        panic!("{told:?}");
    };
    let ServerNotification::AccountRateLimitsUpdated(told) = *told else {
        panic!("{told:?}");
    };
    limits.update(&told);
    let now = limits.get(MAIN_LIMIT).unwrap();
    assert_eq!(now.primary.get().unwrap().used_percent, 2);
    assert_eq!(now.plan_type.get().unwrap().as_str(), Some("plus"));
}

async fn key_of_a_login_stands_in_no_log<R: Runtime + Default>() {
    use turnkeep_protocol::types::{LoginAccountParams, LoginAccountParamsApiKey};
    let script = "\
        C {\"id\":\"$a\",\"method\":\"account/login/start\",\"params\":{\"type\":\"apiKey\",\"apiKey\":\"tok-very-secret\"}}\n\
        S {\"id\":\"$a\",\"result\":{\"type\":\"apiKey\"}}\nX eof\n";
    let dir = tempfile::tempdir().unwrap();
    let program = env!("CARGO_BIN_EXE_fake-app-server");
    let child = ChildConfig::program(program).args(["--script-text", script]);
    let mut config = turnkeep_tests::client(child)
        .one_connection()
        .journal(dir.path().join("journal"));
    config.recording = Some(dir.path().join("session.trace"));
    let client: Client<R> = soon::<R, _>(Client::spawn(config)).await.unwrap();
    let how = LoginAccountParams::ApiKey(LoginAccountParamsApiKey::new("tok-very-secret"));
    let answer = soon::<R, _>(client.account().login(how)).await.unwrap();
    assert_eq!(answer.word(), Some("apiKey"));
    soon::<R, _>(client.shutdown()).await.unwrap();
    let mut files = vec![dir.path().join("session.trace")];
    let journal = std::fs::read_dir(dir.path().join("journal")).unwrap();
    files.extend(journal.map(|entry| entry.unwrap().path()));
    assert!(files.len() >= 2, "{files:?}");
    for file in files {
        let text = String::from_utf8_lossy(&std::fs::read(&file).unwrap()).into_owned();
        assert!(
            !text.contains("tok-very-secret"),
            "{}: {text}",
            file.display()
        );
    }
}
