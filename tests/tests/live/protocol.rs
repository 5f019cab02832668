//! The whole protocol, typed, against the real server.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
};

use serde_json::{Value, json};
use turnkeep_core::command::RefusalClass;
use turnkeep_protocol::{
    Effect, ServerResponse, Stage,
    policy::PolicyFinding,
    requests::{self, ThreadFork, ThreadStart},
    schema::Surface,
    types::{ThreadItem, ThreadListParams},
};
use turnkeep_runtime::{CommandError, RequestError, TypedError};
use turnkeep_tests::{
    account,
    codex::{self, CodexHome},
    model::{self, Model},
    session::{to_end, within},
};

use crate::codex::{Codex, json as raw};

/// The name of an MCP server in the configuration.
const NOTES: &str = "notes";

/// Parameters for the methods that need some.
fn params(method: &str, thread: &str, cwd: &str) -> Value {
    let (marketplace, plugin, skill) = account::REMOTE_PLUGIN;
    match method {
        "app/read" => json!({ "appIds": [account::APP] }),
        "fs/getMetadata" | "fs/readFile" => json!({ "path": format!("{cwd}/note.txt") }),
        "fs/readDirectory" => json!({ "path": cwd }),
        "fuzzyFileSearch" => json!({ "query": "note", "roots": [cwd] }),
        "hooks/list" => json!({ "cwds": [cwd] }),
        "mcpServer/resource/read" => json!({ "server": NOTES, "uri": "note://one" }),
        "plugin/read" => {
            json!({ "pluginName": "hello", "marketplacePath": format!("{cwd}/{MARKETPLACE}") })
        }
        "plugin/skill/read" => json!({
            "remoteMarketplaceName": marketplace, "remotePluginId": plugin, "skillName": skill,
        }),
        "thread/attachmentOwner/list" => json!({ "attachmentType": "a", "identityKey": "b" }),
        "thread/attachment/list"
        | "thread/goal/get"
        | "thread/items/list"
        | "thread/read"
        | "thread/turns/list" => json!({ "threadId": thread }),
        // These take none.
        "account/securitySetup/read"
        | "account/workspaceMessages/read"
        | "configRequirements/read"
        | "externalAgentConfig/import/readHistories"
        | "windowsSandbox/readiness" => Value::Null,
        _ => json!({}),
    }
}

/// Where a directory has its marketplace.
const MARKETPLACE: &str = ".agents/plugins/marketplace.json";

/// Writes a marketplace with one plugin that has one skill.
fn write_plugin(cwd: &Path) {
    let plugins = json!([{
        "name": "hello", "source": { "source": "local", "path": "./plugins/hello" },
    }]);
    let plugin = json!({ "name": "hello", "version": "1.0.0", "description": "Says hello." });
    let files = [
        (
            MARKETPLACE,
            json!({ "name": "local", "plugins": plugins }).to_string(),
        ),
        (
            "plugins/hello/.codex-plugin/plugin.json",
            plugin.to_string(),
        ),
        (
            "plugins/hello/skills/greet/SKILL.md",
            "---\nname: greet\ndescription: Greets.\n---\nSay hello.\n".to_owned(),
        ),
    ];
    for (path, text) in files {
        let path = cwd.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
}

/// A server with an account, a plugin and an MCP server, so that no read lacks what it is about.
async fn furnished(version: &'static str) -> Codex {
    let model = Model::queued([model::text("Done.")]);
    account::backend(&model);
    let notes = env!("CARGO_BIN_EXE_notes-server");
    let config = account::config(&model) + &format!("[mcp_servers.{NOTES}]\ncommand = {notes:?}\n");
    let home = CodexHome::with_config(&model, &config);
    fs::write(home.cwd().join("note.txt"), "hello").unwrap();
    write_plugin(&home.cwd());
    let codex = Codex::start_in(version, model, home, |config| config).await;
    let login = raw(account::login(&account::token(account::ACCOUNT, 1)));
    let login = codex.client().request_raw("account/login/start", login);
    within("login", login.secret()).await.unwrap();
    codex
}

/// Runs a turn and gives the id of its thread.
async fn thread_with_a_turn(codex: &Codex) -> String {
    let talk = codex.conversation("talk").await;
    let mut turn = talk.send("go").await.unwrap();
    to_end(&mut turn).await;
    let mut loaded = codex.client().threads().loaded();
    within("the loaded thread", loaded.next())
        .await
        .unwrap()
        .unwrap()
}

pub(crate) async fn every_stable_read_is_answered_and_typed(version: &'static str) {
    let codex = furnished(version).await;
    let thread = thread_with_a_turn(&codex).await;
    let cwd = codex.home.cwd().display().to_string();
    let surface = Surface::built_in();
    let index = surface
        .versions()
        .iter()
        .position(|known| known == version)
        .unwrap();

    let mut answered = BTreeMap::new();
    for method in requests::METHODS {
        let letters = surface.letters(&format!("request {}", method.name));
        let is_there = letters.chars().nth(index) == Some('s');
        if method.effect != Effect::Reads || method.stage != Stage::Stable || !is_there {
            continue;
        }
        let name = method.name;
        let params = raw(params(name, &thread, &cwd));
        let asked = codex.client().request_raw(name, params).reads();
        let result = within(name, asked).await;
        let result = result.unwrap_or_else(|refusal| panic!("{name}: {refusal}"));
        let result: Value = serde_json::from_str(result.get()).unwrap();
        let typed = ServerResponse::decode(name, &result);
        assert!(
            !matches!(
                typed,
                ServerResponse::Unknown(_) | ServerResponse::Malformed(_)
            ),
            "{name}: {typed:?}"
        );
        let strange: Vec<String> = typed.strange().iter().map(ToString::to_string).collect();
        assert!(strange.is_empty(), "{name}: {strange:?}");
        assert_eq!(typed.result(), result, "{name}");
        answered.insert(name, result);
    }
    println!("{version}: {} answered", answered.len());
    let expected = if version == "0.163.0" { 39 } else { 41 };
    assert_eq!(answered.len(), expected, "{:?}", answered.keys());
    // The answers are about what is there, they are not empty forms.
    let contents = [
        (
            "account/rateLimits/read",
            "/rateLimits/primary/usedPercent",
            json!(5),
        ),
        (
            "account/usage/read",
            "/summary/lifetimeTokens",
            json!(9_007_199_254_740_993_u64),
        ),
        (
            "account/workspaceMessages/read",
            "/messages/0/messageBody",
            json!("Hello."),
        ),
        ("app/list", "/data/0/name", json!("An app")),
        ("app/read", "/apps/0/name", json!("An app")),
        (
            "mcpServer/resource/read",
            "/contents/0/text",
            json!("a note"),
        ),
        ("plugin/read", "/plugin/skills/0/name", json!("hello:greet")),
        ("plugin/share/list", "/data/0/plugin/name", json!("greeter")),
        ("plugin/skill/read", "/contents", json!("Say hello.")),
    ];
    for (method, path, expected) in contents {
        let result = &answered[method];
        assert_eq!(result.pointer(path), Some(&expected), "{method}: {result}");
    }
    codex.end().await;
}

pub(crate) async fn thread_lives_by_typed_commands(version: &'static str) {
    let replies = ["One.", "Two.", "A summary."].map(model::text);
    let codex = Codex::start(version, Model::queued(replies)).await;
    let client = codex.client();
    let threads = client.threads();

    let start = ThreadStart {
        cwd: codex.home.cwd().display().to_string().into(),
        ..ThreadStart::new()
    };
    let started = within("start", client.request(start)).await.unwrap();
    let thread = started.thread.id.clone();
    threads.set_name(&thread, "A life").await.unwrap();
    for text in ["first", "second"] {
        let input = raw(json!({
            "threadId": thread, "input": [{ "type": "text", "text": text }],
        }));
        within("turn", client.request_raw("turn/start", input))
            .await
            .unwrap();
        // The turn is nobody's here: it is over when the thread says so.
        within("end of the turn", async {
            loop {
                let turns = threads.turns(&thread).all().await.unwrap();
                let ended = |turn: &turnkeep_protocol::types::Turn| {
                    turn.status.as_str() == Some("completed")
                };
                let count = if text == "first" { 1 } else { 2 };
                if turns.len() == count && turns.iter().all(ended) {
                    break;
                }
                tokio::time::sleep(std::time::Duration::from_millis(20)).await;
            }
        })
        .await;
    }

    let read = threads.read(&thread).await.unwrap();
    assert_eq!(read.name.as_deref(), Some("A life"));
    let listed = threads.list(ThreadListParams::new()).all().await.unwrap();
    assert_eq!(listed.iter().map(|t| &t.id).collect::<Vec<_>>(), [&thread]);
    let items = threads.items(&thread).all().await.unwrap();
    let messages = items
        .iter()
        .filter(|e| matches!(e.item, ThreadItem::AgentMessage(_)));
    assert_eq!(messages.count(), 2);

    let forked = threads.fork(ThreadFork::new(&*thread)).await.unwrap();
    assert_ne!(forked.thread.id, thread);
    assert_eq!(forked.thread.forked_from_id.as_deref(), Some(&*thread));
    let fork = forked.thread.id;

    let turns = threads.turns(&thread).all().await.unwrap();
    // The newest comes first.
    threads.revert(&thread, &*turns[0].id).await.unwrap();
    assert_eq!(threads.turns(&thread).all().await.unwrap().len(), 1);
    assert_eq!(threads.turns(&fork).all().await.unwrap().len(), 2);

    // The answer is not the end: that is the end of a turn of its own.
    threads.begin_compaction(&thread).await.unwrap();
    within("end of the compaction", async {
        loop {
            let items = threads.items(&thread).all().await.unwrap();
            let is_compaction = |entry: &_| matches!(entry, ThreadItem::ContextCompaction(_));
            if items.iter().any(|entry| is_compaction(&entry.item)) {
                break;
            }
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
    })
    .await;

    threads.archive(&fork).await.unwrap();
    let all = threads.list_all(ThreadListParams::new()).await.unwrap();
    let archived: BTreeMap<&str, bool> = all.iter().map(|(t, a)| (&*t.id, *a)).collect();
    assert_eq!(archived, [(&*thread, false), (&*fork, true)].into());
    let back = threads.unarchive(&fork).await.unwrap();
    assert_eq!(back.thread.id, fork);

    threads.delete(&fork).await.unwrap();
    match threads.read(&fork).await {
        Err(TypedError::Request(RequestError::Command(CommandError::Refused(refusal)))) => {
            assert_eq!(refusal.class, RefusalClass::ThreadNotLoaded, "{refusal}");
        }
        other => panic!("{other:?}"),
    }
    codex.end().await;
}

pub(crate) async fn inventories_follow_the_rules_of_lists(version: &'static str) {
    let codex = Codex::start(version, Model::queued([model::text("Done.")])).await;
    let client = codex.client();
    let models = within("models", client.models()).await.unwrap();
    assert!(models.windows(2).all(|pair| pair[0].id < pair[1].id));
    assert!(models.iter().all(|model| !model.hidden));
    let account = within("account", client.account().read()).await.unwrap();
    assert!(!account.requires_openai_auth && account.account.get().is_none());
    let note = codex.home.cwd().join("note.bin");
    fs::write(&note, [0, 159, 146, 150]).unwrap();
    let read = client.read_file(note.display().to_string()).await.unwrap();
    assert_eq!(read, [0, 159, 146, 150]);
    // On a plain installation agents may begin others.
    let findings = within("policy", client.check_policy(None)).await.unwrap();
    println!("{version}: {findings:?}");
    let on = PolicyFinding::FeatureOn {
        name: "multi_agent".into(),
    };
    assert!(findings.contains(&on), "{findings:?}");
    codex.end().await;
}

#[derive(Debug, PartialEq, schemars::JsonSchema, serde::Deserialize)]
struct Weather {
    city: String,
    degrees: i32,
    warning: Option<String>,
}

pub(crate) async fn answer_of_a_type_is_asked_for_and_checked(version: &'static str) {
    use turnkeep_runtime::AnswerError;
    let good = r#"{"city":"Oslo","degrees":-3,"warning":null}"#;
    let bad = r#"{"city":"Oslo","degrees":"cold","warning":null}"#;
    let codex = Codex::start(version, Model::queued([good, bad, "no"].map(model::text))).await;
    let talk = codex.conversation("talk").await;

    let turn = talk.send_typed::<Weather>("weather?").await.unwrap();
    let weather = within("answer", turn.answer()).await.unwrap();
    assert_eq!((&*weather.city, weather.degrees), ("Oslo", -3));
    let request = &codex.model.requests()[0];
    let format = &request["text"]["format"];
    assert_eq!(format["strict"], true, "{format}");
    let required = json!(["city", "degrees", "warning"]);
    assert_eq!(format["schema"]["required"], required);

    let turn = talk.send_typed::<Weather>("weather?").await.unwrap();
    match within("answer", turn.answer()).await {
        Err(AnswerError::Invalid { text, violations }) => {
            assert_eq!(text, bad);
            assert!(violations[0].starts_with("/degrees"), "{violations:?}");
        }
        other => panic!("{other:?}"),
    }
    let turn = talk.send_typed::<Weather>("weather?").await.unwrap();
    match within("answer", turn.answer()).await {
        Err(AnswerError::NotJson { text, .. }) => assert_eq!(text.as_deref(), Some("no")),
        other => panic!("{other:?}"),
    }
    codex.end().await;
}

/// What we send is of the schema of the very server that it is sent to.
pub(crate) async fn sent_frames_are_of_the_servers_schema(version: &'static str) {
    let dir = tempfile::tempdir().unwrap();
    let made = std::process::Command::new(codex::codex(version))
        .args([
            "app-server",
            "generate-json-schema",
            "--experimental",
            "--out",
        ])
        .arg(dir.path())
        .output()
        .unwrap();
    assert!(made.status.success(), "{made:?}");
    let file = dir.path().join("codex_app_server_protocol.schemas.json");
    let mut schema: Value = serde_json::from_slice(&fs::read(file).unwrap()).unwrap();
    let members = schema.as_object_mut().unwrap();
    members.remove("type");
    members.insert("$ref".into(), json!("#/definitions/ClientRequest"));
    let validator = jsonschema::validator_for(&schema).unwrap();
    let wrong = json!({ "id": 1, "method": "thread/read", "params": { "threadId": 7 } });
    assert!(!validator.is_valid(&wrong), "the schema takes anything");

    let calls = [
        model::call("look", "call_1", json!({ "at": "x" })),
        model::text("Seen."),
        model::text("{}"),
    ];
    let codex = Codex::start(version, Model::queued(calls)).await;
    let look = turnkeep_runtime::Tool::function("look", "Looks.", raw(json!({ "type": "object" })));
    let settings = codex.settings().tool(look).model("mock-model");
    let talk = codex.open("talk", settings).await;
    let mut turn = talk.send("go").await.unwrap();
    let call = turnkeep_tests::session::until_call(&mut turn).await;
    let result = turnkeep_runtime::ToolResult::ok("a wall");
    turn.respond(call.id, result).await.unwrap();
    to_end(&mut turn).await;
    let schema = raw(json!({ "type": "object" }));
    let mut turn = talk.send("on").output_schema(schema).await.unwrap();
    to_end(&mut turn).await;
    codex
        .client()
        .threads()
        .list_all(ThreadListParams::new())
        .await
        .unwrap();
    talk.delete().await.unwrap();

    let ended = codex.end().await;
    let mut methods = BTreeSet::new();
    for frame in ended.recording.sent() {
        if frame.get("id").is_none() || frame.get("method").is_none() {
            continue;
        }
        let errors: Vec<String> = validator
            .iter_errors(&frame)
            .map(|error| error.to_string())
            .collect();
        assert!(errors.is_empty(), "{frame}: {errors:?}");
        methods.insert(frame["method"].as_str().unwrap().to_owned());
    }
    println!("{version}: {methods:?}");
    assert!(methods.len() >= 5, "{methods:?}");
}
