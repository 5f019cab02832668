//! What the server does with a thread beside rounds, and what the test holds back of it.

use serde_json::{Value, json};
use turnkeep_tests::world::Left;

use super::{Past, Talk, Waiting};

/// The thread of a fork.
pub(crate) const FORK: &str = "thr_f";

impl Talk {
    /// What the server says of a fork, and nothing of anything else.
    pub(super) fn of_fork(&self, method: &str, asked: &Waiting) -> Value {
        let shown = self.fork.is_some() && self.shows_fork;
        match method {
            "thread/fork" => json!({ "thread": { "id": FORK } }),
            "thread/loaded/list" => {
                let ids: Vec<&str> = shown.then_some(FORK).into_iter().chain(["thr_x"]).collect();
                json!({ "data": ids, "nextCursor": null })
            }
            "thread/list" => {
                json!({ "data": [{ "id": "thr_x" }, { "id": "thr_y" }], "nextCursor": null })
            }
            "thread/read" => {
                let is_it = asked.params["threadId"] == FORK;
                let mark = self.fork.clone().filter(|_| is_it);
                json!({ "thread": { "id": asked.params["threadId"], "threadSource": mark } })
            }
            _ => json!({}),
        }
    }

    /// Answers what is held back.
    pub(crate) fn answer_held(&mut self) -> Waiting {
        let held = self.held.pop_front().expect("something is held back");
        self.result(&held, &json!({}));
        self.serve();
        held
    }

    /// The list of turns that was held back shows the last one, which is over.
    pub(crate) fn show_last_turn(&mut self) {
        let held = self.held.pop_front().expect("a list is held back");
        let turn = json!({ "id": self.native(), "items": [], "itemsView": "notLoaded", "status": "completed", "error": null });
        self.result(&held, &json!({ "data": [turn], "nextCursor": null }));
        self.serve();
    }

    /// The server lets the thread go.
    pub(crate) fn let_go(&mut self) {
        self.notify("thread/closed", json!({}));
    }

    /// Refuses what is held back.
    pub(crate) fn refuse_held(&mut self, message: &str) {
        let held = self.held.pop_front().expect("something is held back");
        self.refuse(&held, message);
        self.serve();
    }

    /// Refuses what is held back, under a code.
    pub(crate) fn refuse_held_with(&mut self, code: i64, message: &str) {
        let held = self.held.pop_front().expect("something is held back");
        let frame = json!({ "id": held.id, "error": { "code": code, "message": message } });
        self.world.say(&frame.to_string());
        self.serve();
    }

    /// The turn of a compaction begins.
    pub(crate) fn begin_compaction(&mut self) {
        self.begin_unheard();
        let (id, item) = (
            self.native(),
            json!({ "type": "contextCompaction", "id": "cmp" }),
        );
        let turn = json!({ "id": id, "items": [], "status": "inProgress", "error": null });
        self.notify("turn/started", json!({ "turn": turn }));
        self.notify("item/started", json!({ "turnId": id, "item": item }));
    }

    /// A turn of another client begins.
    pub(crate) fn begin_stranger(&mut self) {
        self.begin_unheard();
        let turn =
            json!({ "id": self.native(), "items": [], "status": "inProgress", "error": null });
        self.notify("turn/started", json!({ "turn": turn }));
        self.item(json!({ "type": "userMessage", "id": "usr_x", "content": [] }));
    }

    /// A turn of the server's own begins, and we do not hear of it.
    pub(crate) fn begin_unheard(&mut self) {
        self.turns += 1;
        self.history.push(Past {
            id: format!("trn_{}", self.turns),
            status: "inProgress",
            items: Vec::new(),
        });
    }

    /// The turn that runs ends, and we do not hear of it.
    pub(crate) fn end_unheard(&mut self, status: &'static str) {
        let turn = self.history.last_mut().unwrap();
        turn.status = status;
        if status == "completed" {
            let item = json!({ "type": "contextCompaction", "id": format!("{}/cmp", turn.id) });
            turn.items.push(item);
        }
    }

    /// The thread is compacted.
    pub(crate) fn end_compaction(&mut self) {
        self.item(json!({ "type": "contextCompaction", "id": "cmp" }));
        self.end("completed");
    }

    /// The end of an old turn is told once more.
    pub(crate) fn end_again(&mut self, native: &str) {
        let turn = json!({ "id": native, "items": [], "status": "completed", "error": null });
        self.notify("turn/completed", json!({ "turn": turn }));
    }

    /// A notification that says nothing but a turn.
    pub(crate) fn tell(&mut self, method: &str, native: &str) {
        self.notify(method, json!({ "turnId": native }));
    }

    /// The same, and nothing has happened since.
    pub(crate) fn crash_before_reading(&mut self, left: Left) {
        self.server_ends();
        self.world.crash(left);
    }
}
