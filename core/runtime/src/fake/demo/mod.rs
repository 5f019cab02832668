//! An app-server without a model, for the demo: conversations in the shapes and the order of frames of 0.171.0.
//!
//! The frames are written from recordings of the real server, not from memory. What the model would say is made from words in the
//! user's text; see [`Demo`].

mod answers;
mod frames;
mod model;
mod state;
mod store;
mod turns;

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use self::frames::{frame, list, quote, wall};
use self::state::{Thread, Tool, View};
use super::{Action, Server};

/// A realistic app-server without a model.
///
/// It answers a message with a sentence that quotes it, streamed word by word. Some words in a message do more:
///
/// - the name of a tool that the thread declares: the tool is called, once for each of the things after ` in `
///   ("the weather in Oslo and in Lima?" calls `weather` twice), and the answers are woven into the reply;
/// - `call: NAME {json}`: that tool is called with these arguments;
/// - `run: COMMAND`: approval for a command is asked, unless the thread's policy is `never`;
/// - `ask: QUESTION`: the user is asked, with the options Yes and No;
/// - `fail:`: the turn fails;
/// - `long`: the reply is thirty sentences longer.
///
/// An output schema gets a sample of what it allows. Steering, folding, interrupting, several threads at once, names, paging
/// through history and the refusals work as recorded. Ids, times and texts are the same in each run, given the same input times.
///
/// It keeps nothing by itself: after its process has ended its threads are gone, unless it is told what it was to keep
/// ([`Demo::keeping`]; [`demo`] keeps it in the file that `TURNKEEP_FAKE_STORE` names).
#[derive(Debug)]
pub struct Demo {
    pace_ms: u64,
    out: Vec<Action>,
    now: u64,
    client: Option<String>,
    experimental: bool,
    silenced: BTreeSet<String>,
    /// Those that this process has loaded.
    threads: BTreeMap<String, Thread>,
    /// Those of earlier processes.
    stored: BTreeMap<String, Thread>,
    /// What was last said to be kept, where anything is.
    keeps: Option<String>,
    ids: u64,
    requests: u64,
    /// Requests to the model so far; item ids are made of it.
    asked: u64,
    calls: u64,
}

/// The demo server with its usual pace: 25 ms between two pieces of text, or as `TURNKEEP_FAKE_PACE_MS` says.
#[must_use]
pub fn demo() -> Demo {
    let pace = std::env::var("TURNKEEP_FAKE_PACE_MS")
        .ok()
        .and_then(|text| text.parse().ok());
    let demo = Demo::new(pace.unwrap_or(25));
    match std::env::var_os(STORE) {
        Some(path) => demo.keeping(&std::fs::read_to_string(path).unwrap_or_default()),
        None => demo,
    }
}

/// Names the file that the demo server keeps its threads in.
pub(super) const STORE: &str = "TURNKEEP_FAKE_STORE";

impl Demo {
    /// A server that lets `pace_ms` pass between two pieces of text.
    #[must_use]
    pub fn new(pace_ms: u64) -> Self {
        Self {
            pace_ms,
            out: Vec::new(),
            now: 0,
            client: None,
            experimental: false,
            silenced: BTreeSet::new(),
            threads: BTreeMap::new(),
            stored: BTreeMap::new(),
            keeps: None,
            ids: 0,
            requests: 0,
            asked: 0,
            calls: 0,
        }
    }

    fn write(&mut self, mut text: String) {
        text.push('\n');
        self.out.push(Action::Write(text.into_bytes()));
    }

    fn notify(&mut self, method: &str, params: &str) {
        if !self.silenced.contains(method) {
            let emitted = wall(self.now);
            self.write(format!(
                r#"{{"method":"{method}","params":{params},"emittedAtMs":{emitted}}}"#
            ));
        }
    }

    fn reply(&mut self, id: &Value, result: &str) {
        self.write(format!(r#"{{"id":{id},"result":{result}}}"#));
    }

    fn refuse(&mut self, id: &Value, message: &str) {
        let message = quote(message);
        self.write(format!(
            r#"{{"error":{{"code":-32600,"message":{message}}},"id":{id}}}"#
        ));
    }

    /// An id that looks like a version 7 UUID and is the same in each run.
    fn uuid(&mut self) -> String {
        self.ids += 1;
        let mut bits = self.ids.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        bits ^= bits >> 31;
        let time = wall(self.now);
        let (low, high) = (bits & 0xffff_ffff_ffff, bits >> 48);
        let (a, b) = (high & 0xfff, 0x8000 | (low >> 34) & 0x3fff);
        format!(
            "{:08x}-{:04x}-7{a:03x}-{b:04x}-{low:012x}",
            time >> 16,
            time & 0xffff
        )
    }

    /// What is to be done, after what is to be kept.
    fn done(&mut self) -> Vec<Action> {
        let mut actions = Vec::new();
        if let Some(before) = &self.keeps {
            let kept = self.kept();
            if kept != *before {
                actions.push(Action::Keep(kept.clone().into_bytes()));
                self.keeps = Some(kept);
            }
        }
        actions.append(&mut self.out);
        actions
    }

    fn frame(&mut self, line: &[u8]) {
        // A line that is no JSON gets no answer.
        let Ok(frame) = serde_json::from_slice::<Value>(line) else {
            return;
        };
        let id = &frame["id"];
        match frame["method"].as_str() {
            None => self.answered(&frame),
            Some("initialized") if id.is_null() => {}
            Some(_) if id.is_null() => {}
            Some("initialize") if self.client.is_some() => self.refuse(id, "Already initialized"),
            Some("initialize") => self.initialize(id, &frame["params"]),
            Some(_) if self.client.is_none() => self.refuse(id, "Not initialized"),
            Some(method) => {
                if let Err(message) = self.request(method, id, &frame["params"]) {
                    self.refuse(id, &message);
                }
            }
        }
    }

    fn initialize(&mut self, id: &Value, params: &Value) {
        let client = params["clientInfo"]["name"]
            .as_str()
            .unwrap_or("client")
            .to_owned();
        let version = params["clientInfo"]["version"].as_str().unwrap_or("0");
        let capabilities = &params["capabilities"];
        self.experimental = capabilities["experimentalApi"].as_bool().unwrap_or(false);
        let silenced = capabilities["optOutNotificationMethods"]
            .as_array()
            .into_iter()
            .flatten();
        self.silenced = silenced
            .filter_map(|method| method.as_str().map(str::to_owned))
            .collect();
        self.write(frame(
            frames::INITIALIZE,
            &[
                ("id", &id.to_string()),
                ("client", &quote(&client)),
                ("version", &quote(version)),
            ],
        ));
        self.client = Some(client);
        self.notify("configWarning", frames::CONFIG_WARNING);
        self.notify("remoteControl/status/changed", frames::REMOTE_CONTROL);
    }

    fn request(&mut self, method: &str, id: &Value, params: &Value) -> Result<(), String> {
        match method {
            "thread/start" => self.thread_start(id, params)?,
            "model/list" | "mcpServerStatus/list" | "thread/backgroundTerminals/list" => {
                self.reply(id, r#"{"data":[],"nextCursor":null}"#);
            }
            "thread/list" => self.thread_list(id),
            "thread/loaded/list" => {
                let ids = list(self.threads.keys().map(|id| quote(id)));
                self.reply(id, &format!(r#"{{"data":{ids},"nextCursor":null}}"#));
            }
            "thread/resume" | "thread/unsubscribe" | "thread/name/set" | "thread/read"
            | "thread/turns/list" | "thread/items/list" | "turn/start" | "turn/steer"
            | "turn/interrupt" => {
                let thread = thread_id(params)?;
                // It is loaded when it is resumed, and not before.
                if method == "thread/resume"
                    && let Some(stored) = self.stored.remove(&thread)
                {
                    self.threads.insert(thread.clone(), stored);
                }
                let Some(mut found) = self.threads.remove(&thread) else {
                    return self.no_such_thread(method, id, &thread);
                };
                let done = self.thread_request(method, &mut found, id, params);
                self.threads.insert(thread, found);
                done?;
            }
            _ => {
                return Err(format!(
                    "Invalid request: unknown variant `{method}`, expected one of {}",
                    frames::METHODS
                ));
            }
        }
        Ok(())
    }

    fn thread_request(
        &mut self,
        method: &str,
        thread: &mut Thread,
        id: &Value,
        params: &Value,
    ) -> Result<(), String> {
        match method {
            "thread/resume" => self.thread_resume(thread, id, params),
            "thread/unsubscribe" => {
                let was = std::mem::replace(&mut thread.subscribed, false);
                self.reply(
                    id,
                    if was {
                        r#"{"status":"unsubscribed"}"#
                    } else {
                        r#"{"status":"notSubscribed"}"#
                    },
                );
                Ok(())
            }
            "thread/name/set" => {
                let name = params["name"]
                    .as_str()
                    .ok_or("Invalid request: missing field `name`")?;
                thread.name = Some(name.to_owned());
                self.reply(id, "{}");
                self.notify(
                    "thread/name/updated",
                    &format!(
                        r#"{{"threadId":"{}","threadName":{}}}"#,
                        thread.id,
                        quote(name)
                    ),
                );
                Ok(())
            }
            "thread/read" => self.thread_read(thread, id, params),
            "thread/turns/list" => self.turns_list(thread, id, params),
            "thread/items/list" => self.items_list(thread, id, params),
            "turn/start" => self.turn_start(thread, id, params),
            "turn/steer" => self.turn_steer(thread, id, params),
            _ => self.turn_interrupt(thread, id, params),
        }
    }

    fn no_such_thread(&mut self, method: &str, id: &Value, thread: &str) -> Result<(), String> {
        match method {
            "thread/unsubscribe" => {
                self.reply(id, r#"{"status":"notLoaded"}"#);
                Ok(())
            }
            "thread/resume" => Err(format!("no rollout found for thread id {thread}")),
            "thread/read" | "thread/turns/list" | "thread/items/list" => {
                Err(format!("thread not loaded: {thread}"))
            }
            _ => Err(format!("thread not found: {thread}")),
        }
    }

    fn originator(&self) -> String {
        self.client.clone().unwrap_or_default()
    }

    fn thread_start(&mut self, id: &Value, params: &Value) -> Result<(), String> {
        let tools = params["dynamicTools"]
            .as_array()
            .cloned()
            .unwrap_or_default();
        if !params["dynamicTools"].is_null() && !self.experimental {
            return Err("thread/start.dynamicTools requires experimentalApi capability".to_owned());
        }
        let thread_id = self.uuid();
        let text = |value: &Value, or: &str| value.as_str().unwrap_or(or).to_owned();
        let thread = Thread {
            id: thread_id.clone(),
            cwd: text(&params["cwd"], "/workspace"),
            model: text(&params["model"], "mock-model"),
            policy: if params["approvalPolicy"].is_null() {
                quote("on-request")
            } else {
                params["approvalPolicy"].to_string()
            },
            sandbox: super::sandbox(&params["sandbox"]).to_owned(),
            tools: tools.iter().filter_map(tool).collect(),
            ephemeral: params["ephemeral"].as_bool().unwrap_or(false),
            name: None,
            mark: params["threadSource"].to_string(),
            preview: String::new(),
            created: self.now,
            updated: self.now,
            turns: Vec::new(),
            input_tokens: 0,
            output_tokens: 0,
            last_usage: None,
            subscribed: true,
            active: None,
        };
        let shown = frames::thread(&thread, &self.originator(), false);
        let session = session(&thread);
        self.reply(
            id,
            &format!(r#"{{"thread":{shown},{session},"multiAgentMode":"explicitRequestOnly"}}"#),
        );
        self.notify("thread/started", &format!(r#"{{"thread":{shown}}}"#));
        self.threads.insert(thread_id, thread);
        Ok(())
    }

    fn thread_resume(
        &mut self,
        thread: &mut Thread,
        id: &Value,
        params: &Value,
    ) -> Result<(), String> {
        if !thread.is_stored() {
            return Err(format!("no rollout found for thread id {}", thread.id));
        }
        let full = !params["excludeTurns"].as_bool().unwrap_or(false);
        if full {
            self.notify("deprecationNotice", frames::RESUME_DEPRECATED);
        }
        thread.subscribed = true;
        let shown = frames::thread(thread, &self.originator(), full);
        let resumed = frame(
            &format!("{{{}}}", frames::RESUMED),
            &[("model", &quote(&thread.model))],
        );
        let (session, resumed) = (session(thread), &resumed[1..resumed.len() - 1]);
        self.reply(id, &format!(r#"{{"thread":{shown},{session},{resumed}}}"#));
        if let Some(usage) = thread.last_usage.clone() {
            self.notify("thread/tokenUsage/updated", &usage);
        }
        self.notify(
            "thread/goal/cleared",
            &format!(r#"{{"threadId":"{}"}}"#, thread.id),
        );
        Ok(())
    }

    fn thread_read(&mut self, thread: &Thread, id: &Value, params: &Value) -> Result<(), String> {
        let full = params["includeTurns"].as_bool().unwrap_or(false);
        if full && thread.turns.is_empty() {
            let message =
                "is not materialized yet; includeTurns is unavailable before first user message";
            return Err(format!("thread {} {message}", thread.id));
        }
        if full {
            self.notify("deprecationNotice", frames::READ_DEPRECATED);
        }
        let shown = frames::thread(thread, &self.originator(), full);
        let read = format!(
            r#"{{"firstUnread":null,"revision":"initial:{}"}}"#,
            thread.id
        );
        self.reply(id, &format!(r#"{{"thread":{shown},"readState":{read}}}"#));
        Ok(())
    }

    fn thread_list(&mut self, id: &Value) {
        let originator = self.originator();
        let shown = self
            .threads
            .values()
            .filter(|thread| thread.is_stored() && !thread.preview.is_empty());
        let data = list(shown.map(|thread| frames::thread(thread, &originator, false)));
        self.reply(
            id,
            &format!(
                r#"{{"data":{data},"readStates":{{}},"nextCursor":null,"backwardsCursor":null}}"#
            ),
        );
    }

    fn turns_list(&mut self, thread: &Thread, id: &Value, params: &Value) -> Result<(), String> {
        let view = match params["itemsView"].as_str() {
            Some("full") => View::Full,
            Some("notLoaded") => View::None,
            _ => View::Summary,
        };
        let mut rows: Vec<String> = thread
            .turns
            .iter()
            .map(|turn| frames::turn(turn, view))
            .collect();
        if params["sortDirection"] != "asc" {
            rows.reverse();
        }
        self.page(id, params, &rows, "turns")
    }

    fn items_list(&mut self, thread: &Thread, id: &Value, params: &Value) -> Result<(), String> {
        let of = params["turnId"].as_str();
        let turns = thread
            .turns
            .iter()
            .filter(|turn| of.is_none_or(|id| id == turn.id));
        let mut rows: Vec<String> = turns
            .flat_map(|turn| {
                turn.items.iter().map(|item| {
                    let (start, end) = (wall(item.started), frames::or_null(item.completed.map(wall)));
                    let shown = item.json(true);
                    format!(r#"{{"turnId":"{}","item":{shown},"startedAtMs":{start},"completedAtMs":{end}}}"#, turn.id)
                })
            })
            .collect();
        if params["sortDirection"] == "desc" {
            rows.reverse();
        }
        self.page(id, params, &rows, "items")
    }

    /// Cursors are JSON texts, as those of the real server; clients must not look into them.
    fn page(
        &mut self,
        id: &Value,
        params: &Value,
        rows: &[String],
        kind: &str,
    ) -> Result<(), String> {
        let from = match params["cursor"].as_str() {
            None => 0,
            Some(cursor) => serde_json::from_str::<Value>(cursor)
                .ok()
                .filter(|cursor| cursor["kind"] == kind)
                .and_then(|cursor| usize::try_from(cursor["from"].as_u64()?).ok())
                .ok_or_else(|| format!("invalid cursor: {cursor}"))?,
        };
        let limit = params["limit"]
            .as_u64()
            .and_then(|limit| usize::try_from(limit).ok())
            .unwrap_or(25)
            .clamp(1, 100);
        let page: Vec<String> = rows.iter().skip(from).take(limit).cloned().collect();
        let cursor = |at: usize| quote(&format!(r#"{{"kind":"{kind}","from":{at}}}"#));
        let next = if from + page.len() < rows.len() {
            cursor(from + page.len())
        } else {
            "null".to_owned()
        };
        let back = if page.is_empty() {
            "null".to_owned()
        } else {
            cursor(from)
        };
        let data = list(page);
        self.reply(
            id,
            &format!(r#"{{"data":{data},"nextCursor":{next},"backwardsCursor":{back}}}"#),
        );
        Ok(())
    }
}

fn thread_id(params: &Value) -> Result<String, String> {
    let Some(id) = params["threadId"].as_str() else {
        return Err("Invalid request: missing field `threadId`".to_owned());
    };
    let hex = id
        .bytes()
        .all(|byte| byte.is_ascii_hexdigit() || byte == b'-');
    if hex && id.len() == 36 {
        Ok(id.to_owned())
    } else {
        Err(format!("invalid thread id: {id}"))
    }
}

fn tool(declared: &Value) -> Option<Tool> {
    let properties = declared["inputSchema"]["properties"].as_object();
    let required = declared["inputSchema"]["required"]
        .as_array()
        .and_then(|names| names.first()?.as_str());
    let property = required
        .or_else(|| properties?.keys().next().map(String::as_str))
        .unwrap_or("query");
    Some(Tool {
        name: declared["name"].as_str()?.to_owned(),
        property: property.to_owned(),
    })
}

fn session(thread: &Thread) -> String {
    let filled = frame(
        &format!("{{{}}}", frames::SESSION),
        &[
            ("model", &quote(&thread.model)),
            ("cwd", &quote(&thread.cwd)),
            ("policy", &thread.policy),
            ("sandbox", &thread.sandbox),
        ],
    );
    filled[1..filled.len() - 1].to_owned()
}

impl Server for Demo {
    fn on_line(&mut self, now: u64, line: &[u8]) -> Vec<Action> {
        self.now = self.now.max(now);
        self.frame(line);
        self.done()
    }

    fn on_eof(&mut self, _: u64) -> Vec<Action> {
        vec![Action::Exit(0)]
    }

    fn poll(&mut self, now: u64) -> Vec<Action> {
        self.now = self.now.max(now);
        self.advance();
        self.done()
    }

    fn due(&self) -> Option<u64> {
        self.threads
            .values()
            .filter_map(|thread| thread.active.as_ref()?.due())
            .min()
    }
}

#[cfg(test)]
mod tests;
