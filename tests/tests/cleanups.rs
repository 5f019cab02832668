//! Clean-up across connections, lives and owners.

#![allow(clippy::unwrap_used, reason = "helpers of tests are tests")]

use serde_json::{Value, json};
use turnkeep_core::{
    CloseReason, Closed, Command, CommandError, ConversationId, ConversationKey, Event, Input,
    InputItem, Peer, Reply, SendOptions, Settings,
    cleanup::{Action, Owner},
    command::BusyWhy,
    event::ConnectionEvent,
};
use turnkeep_tests::life::{Life, plain};

/// A life with a server of its own, `conversations` of them with a thread each and a turn that is over.
struct Rig {
    life: Life,
    threads: u32,
}

fn peer() -> Peer {
    Peer::child(7, Some(9))
}

impl Rig {
    fn new() -> Self {
        let life = Life::after(&turnkeep_tests::unbound(), Vec::new());
        let mut rig = Self { life, threads: 0 };
        rig.connect(peer());
        rig
    }

    fn connect(&mut self, peer: Peer) {
        self.life.open(peer);
        self.serve();
    }

    fn serve(&mut self) -> Vec<Value> {
        let threads = &mut self.threads;
        self.life.serve(|frame| plain(frame, threads))
    }

    fn open(&mut self, key: &str, workspace: Option<&str>) -> ConversationId {
        let mut settings = Settings::new();
        settings.workspace = workspace.map(str::to_owned);
        let command = Command::Open {
            key: ConversationKey::new(key).unwrap(),
            settings: settings.into(),
        };
        match self.life.command(command) {
            Some(Ok(Reply::Opened { conversation })) => conversation,
            other => panic!("{other:?}"),
        }
    }

    fn turn(&mut self, conversation: ConversationId) {
        let command = Command::Send {
            conversation,
            input: vec![InputItem::text("x")],
            options: SendOptions::new().into(),
        };
        let Some(Ok(Reply::Accepted { turn, .. })) = self.life.command(command) else {
            panic!("not accepted");
        };
        let served = self.serve();
        let started = served.iter().find(|frame| frame["method"] == "turn/start");
        let params = &started.unwrap()["params"];
        let native = format!("trn_of_{}", params["clientUserMessageId"]);
        self.life.line(
            &json!({"method": "turn/completed", "params": {"threadId": params["threadId"],
            "turn": {"id": native, "items": [], "status": "completed", "error": null}}}),
        );
        let acknowledged = self.life.command(Command::Acknowledge { turn });
        assert_eq!(acknowledged, Some(Ok(Reply::Done)));
    }

    fn with_thread(&mut self, key: &str, workspace: Option<&str>) -> ConversationId {
        let conversation = self.open(key, workspace);
        self.turn(conversation);
        conversation
    }

    fn clean_up(&mut self, owner: Owner, action: Action) -> Result<Reply, CommandError> {
        let command = match action {
            Action::Detach => Command::Detach { owner },
            Action::Archive => Command::Archive { owner },
            Action::Delete => Command::Delete { owner },
        };
        self.life.command(command).unwrap()
    }

    fn is_owed(&self) -> bool {
        self.life.machine.durable().cleanups().next().is_some()
    }

    /// The owners for whom nothing is owed any more.
    fn cleaned_up(&self) -> Vec<Owner> {
        let told = self.life.events.iter().filter_map(|event| {
            let Event::Connection(event) = event else {
                return None;
            };
            match &**event {
                ConnectionEvent::CleanedUp { owner, .. } => Some(owner.clone()),
                _ => None,
            }
        });
        told.collect()
    }

    fn hang_up(&mut self) {
        let reason = CloseReason::Exited {
            code: None,
            signal: Some(9),
        };
        let closed = Closed::new(reason, String::new());
        self.life
            .input(Input::Closed(self.life.epoch, closed.into()));
        self.life.sent.clear();
    }
}

/// `thread/delete thr_1` and the like, without what every connection begins with.
fn told(frames: &[Value]) -> Vec<String> {
    let told = frames.iter().filter_map(|frame| {
        let method = frame["method"].as_str()?;
        let params = &frame["params"];
        let thread = params["threadId"]
            .as_str()
            .or(params["ancestorThreadId"].as_str());
        (!method.starts_with("init")).then(|| match thread {
            Some(thread) => format!("{method} {thread}"),
            None => method.to_owned(),
        })
    });
    told.collect()
}

#[test]
fn what_is_owed_outlives_the_connection_and_the_process() {
    let mut rig = Rig::new();
    let one = rig.with_thread("a", None);
    let owner = Owner::Conversation(one);
    assert_eq!(rig.clean_up(owner.clone(), Action::Delete), Ok(Reply::Done));
    // The frame left, and its answer never came.
    assert_eq!(told(&rig.life.sent), ["thread/delete thr_1"]);
    rig.hang_up();
    assert!(rig.is_owed());
    while rig.life.epoch.0 < 2 {
        assert!(rig.life.wait(), "it reconnects");
    }
    rig.life.open(peer());
    let first = rig.life.serve(|frame| match frame["method"].as_str() {
        Some("thread/delete") => None,
        _ => plain(frame, &mut 0),
    });
    assert_eq!(told(&first), ["thread/delete thr_1"]);
    rig.life = rig.life.crash();
    assert!(rig.is_owed());
    rig.life.open(peer());
    assert_eq!(told(&rig.serve()), ["thread/delete thr_1"]);
    assert!(!rig.is_owed());
    assert_eq!(rig.cleaned_up(), [owner]);
    rig.life = rig.life.crash();
    rig.life.open(peer());
    assert_eq!(told(&rig.serve()), [""; 0], "nothing is owed any more");
}

#[test]
fn a_workspace_has_its_own_conversations_and_a_client_all() {
    let mut rig = Rig::new();
    let a = rig.with_thread("a", Some("w"));
    let b = rig.with_thread("b", Some("v"));
    let c = rig.with_thread("c", Some("w"));
    let workspace = Owner::Workspace("w".into());
    rig.clean_up(workspace.clone(), Action::Archive).unwrap();
    assert_eq!(
        told(&rig.serve()),
        ["thread/archive thr_1", "thread/archive thr_3"]
    );
    let known = |rig: &Rig, id| rig.life.machine.durable().conversation(id).is_some();
    assert_eq!([a, b, c].map(|id| known(&rig, id)), [false, true, false]);
    rig.clean_up(Owner::Client, Action::Delete).unwrap();
    assert_eq!(told(&rig.serve()), ["thread/delete thr_2"]);
    assert!(!known(&rig, b));
    assert_eq!(rig.cleaned_up(), [workspace, Owner::Client]);
    let bad = rig.clean_up(Owner::Workspace(" ".into()), Action::Delete);
    assert!(matches!(bad, Err(CommandError::BadInput { .. })), "{bad:?}");
}

#[test]
fn an_owner_of_which_one_is_busy_is_left_alone() {
    let mut rig = Rig::new();
    rig.with_thread("a", None);
    let busy = rig.open("b", None);
    let command = Command::Send {
        conversation: busy,
        input: vec![InputItem::text("x")],
        options: SendOptions::new().into(),
    };
    rig.life.command(command).unwrap().unwrap();
    rig.serve();
    let before = rig.life.records();
    for action in [Action::Detach, Action::Archive, Action::Delete] {
        let conversation = busy;
        assert_eq!(
            rig.clean_up(Owner::Client, action),
            Err(CommandError::Busy {
                conversation,
                why: BusyWhy::Round,
            })
        );
    }
    assert_eq!(rig.life.records(), before, "nothing has changed");
    assert_eq!(told(&rig.serve()), [""; 0]);
}

#[test]
fn a_detachment_takes_each_step_for_all_threads_first_and_skips_what_is_not_loaded() {
    let mut rig = Rig::new();
    rig.with_thread("a", None);
    rig.with_thread("b", None);
    rig.with_thread("c", None);
    // The server let one go by itself.
    let closed = json!({"method": "thread/closed", "params": {"threadId": "thr_2"}});
    rig.life.line(&closed);
    rig.clean_up(Owner::Client, Action::Detach).unwrap();
    let steps = [
        "thread/list",
        "thread/backgroundTerminals/clean",
        "thread/backgroundTerminals/list",
        "thread/unsubscribe",
    ];
    let want: Vec<String> = steps
        .iter()
        .flat_map(|step| ["thr_1", "thr_3"].map(|thread| format!("{step} {thread}")))
        .collect();
    assert_eq!(told(&rig.serve()), want);
    assert!(!rig.is_owed());
    // They are taken up again when they are needed.
    rig.life.command(Command::Send {
        conversation: ConversationId(1),
        input: vec![InputItem::text("x")],
        options: SendOptions::new().into(),
    });
    assert_eq!(
        told(&rig.serve()),
        ["thread/resume thr_1", "turn/start thr_1"]
    );
}

#[test]
fn a_detachment_is_settled_by_a_connection_that_has_loaded_nothing() {
    let mut rig = Rig::new();
    let one = rig.with_thread("a", None);
    rig.clean_up(Owner::Conversation(one), Action::Detach)
        .unwrap();
    rig.life.sent.clear();
    rig.life = rig.life.crash();
    assert!(rig.is_owed());
    rig.life.open(peer());
    assert_eq!(told(&rig.serve()), [""; 0]);
    assert!(!rig.is_owed());
}

#[test]
fn many_threads_go_a_few_at_a_time() {
    let mut rig = Rig::new();
    for n in 0..50 {
        rig.with_thread(&format!("k{n}"), None);
    }
    rig.clean_up(Owner::Client, Action::Delete).unwrap();
    assert_eq!(rig.life.sent.len(), 8);
    let served = rig.serve();
    assert_eq!(served.len(), 50);
    assert!(!rig.is_owed());
}

#[test]
fn a_server_without_terminals_has_none_left() {
    let mut rig = Rig::new();
    let one = rig.with_thread("a", None);
    rig.clean_up(Owner::Conversation(one), Action::Detach)
        .unwrap();
    let frames = rig.life.serve(|frame| match frame["method"].as_str() {
        Some("thread/list" | "thread/backgroundTerminals/clean") => Some(json!({"error":
            {"code": -32600, "message": "thread/backgroundTerminals/clean requires experimentalApi capability"}})),
        Some("thread/backgroundTerminals/list") => Some(json!({"error": {"code": -32601, "message": "?"}})),
        _ => plain(frame, &mut 0),
    });
    assert_eq!(told(&frames).last().unwrap(), "thread/unsubscribe thr_1");
    assert!(!rig.is_owed());
}

#[test]
fn a_page_that_makes_no_sense_is_reported_and_tried_again() {
    let mut rig = Rig::new();
    let one = rig.with_thread("a", None);
    rig.clean_up(Owner::Conversation(one), Action::Detach)
        .unwrap();
    for bad in [
        json!({"data": [], "nextCursor": ""}),
        json!({"data": 7}),
        json!({"data": [], "nextCursor": "c"}),
    ] {
        let frames = rig.life.serve(|frame| match frame["method"].as_str() {
            Some("thread/list") => Some(json!({"result": bad})),
            _ => plain(frame, &mut 0),
        });
        let methods = told(&frames);
        assert!(
            methods.iter().all(|told| told.starts_with("thread/list")),
            "{methods:?}"
        );
        assert!(rig.is_owed());
        assert!(rig.life.wait(), "it is tried again");
    }
    rig.serve();
    assert!(!rig.is_owed());
}

/// A thread whose making nobody told of, on a process that lives: it is found by its mark, and deleted.
#[test]
fn a_thread_that_no_answer_told_of_is_deleted_where_it_is_found() {
    let mut rig = Rig::new();
    let conversation = rig.open("a", None);
    let send = Command::Send {
        conversation,
        input: vec![InputItem::text("x")],
        options: SendOptions::new().into(),
    };
    rig.life.command(send).unwrap().unwrap();
    let start = rig.life.sent.remove(0);
    let mark = start["params"]["threadSource"].clone();
    // The server made it, and its answer makes no sense.
    rig.life.line(&json!({"id": start["id"], "result": {}}));
    let mut threads = 0;
    let frames = rig.life.serve(|frame| {
        let params = &frame["params"];
        match (frame["method"].as_str(), params["cursor"].as_str()) {
            (Some("thread/loaded/list"), None) => {
                Some(json!({"result": {"data": ["thr_8", "thr_1"], "nextCursor": "more"}}))
            }
            (Some("thread/loaded/list"), Some("more")) => {
                Some(json!({"result": {"data": ["thr_9"], "nextCursor": null}}))
            }
            (Some("thread/read"), _) => {
                let id = &params["threadId"];
                let source = if *id == "thr_9" {
                    mark.clone()
                } else {
                    Value::Null
                };
                Some(json!({"result": {"thread": {"id": id, "threadSource": source}}}))
            }
            _ => plain(frame, &mut threads),
        }
    });
    let deleted: Vec<_> = told(&frames)
        .into_iter()
        .filter(|told| told.starts_with("thread/delete"))
        .collect();
    assert_eq!(deleted, ["thread/delete thr_9"], "and no other");
    assert!(!rig.is_owed());
    // The message went with a thread that was made again.
    assert!(
        told(&frames)
            .iter()
            .any(|told| told.starts_with("turn/start thr_"))
    );
}

#[test]
fn a_thread_that_no_answer_told_of_is_gone_with_its_process() {
    for fresh in [true, false] {
        let mut rig = Rig::new();
        let conversation = rig.open("a", None);
        let send = Command::Send {
            conversation,
            input: vec![InputItem::text("x")],
            options: SendOptions::new().into(),
        };
        rig.life.command(send).unwrap().unwrap();
        assert_eq!(told(&rig.life.sent), ["thread/start"]);
        rig.life.sent.clear();
        rig.life = rig.life.crash();
        let mut there = Peer::default();
        if fresh {
            there = peer();
        }
        rig.connect_and_tell(there, fresh);
    }
}

impl Rig {
    fn connect_and_tell(&mut self, peer: Peer, fresh: bool) {
        self.life.open(peer);
        let frames = told(&self.serve());
        let searched = frames.iter().any(|told| told == "thread/loaded/list");
        assert_eq!(searched, !fresh, "{frames:?}");
        assert!(!self.is_owed());
    }
}
