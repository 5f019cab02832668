//! Lists, by pages.

use super::{
    Server,
    requests::{Params, Refused},
    thread::{Item, Thread, View, push, quoted},
};

/// The rows of a page, where nothing is asked and at most.
const PAGE: u32 = 25;
const LARGEST: u32 = 100;

/// The refusal of a list whose thread is about to be stored.
pub(super) const NOT_YET: &str = "list_turns is not supported yet";

/// Cuts a page out of rows. The cursor is a JSON text, opaque to a client.
fn page(
    mut rows: impl ExactSizeIterator<Item = String>,
    params: &Params<'_>,
    scope: &str,
) -> Refused {
    let prefix = format!(r#"{{"scope":"{scope}","from":"#);
    let from: usize = match &params.cursor {
        None => 0,
        Some(cursor) => cursor
            .strip_prefix(prefix.as_str())
            .and_then(|rest| rest.strip_suffix('}')?.parse().ok())
            .ok_or_else(|| format!("invalid cursor: {cursor}"))?,
    };
    let limit = params.limit.unwrap_or(PAGE).clamp(1, LARGEST) as usize;
    let mut data = String::new();
    let total = rows.len();
    for row in rows.by_ref().skip(from).take(limit) {
        push(&mut data, &row);
    }
    let to = (from + limit).min(total);
    let next = if to < total {
        quoted(&format!("{prefix}{to}}}"))
    } else {
        "null".to_owned()
    };
    Ok(format!(r#"{{"data":[{data}],"nextCursor":{next}}}"#))
}

impl Server {
    /// Turns, newest first, unless they are wanted the other way round.
    pub(super) fn turns_list(&mut self, pid: u32, params: &Params<'_>) -> Refused {
        let at = self.readable(pid, &params.thread_id)?;
        let thread = &self.threads[at];
        if !thread.stored {
            // In the first moments of a first turn, and before it.
            return Err(match thread.active() {
                Some(_) => NOT_YET.to_owned(),
                None => format!(
                    "thread {} is not materialized yet; thread/turns/list is unavailable before first user message",
                    thread.id
                ),
            });
        }
        let view = match params.items_view.as_deref() {
            None | Some("summary") => View::Summary,
            Some("full") => View::Full,
            Some("notLoaded") => View::NotLoaded,
            Some(other) => {
                return Err(format!("Invalid request: unknown variant `{other}`"));
            }
        };
        if params.sort_direction.as_deref() == Some("asc") {
            page(
                thread.turns.iter().map(|turn| turn.json(view)),
                params,
                "turns",
            )
        } else {
            let turns = thread.turns.iter().rev();
            page(turns.map(|turn| turn.json(view)), params, "turns")
        }
    }

    /// Items, oldest first; of one turn, where one is named.
    pub(super) fn items_list(&mut self, pid: u32, params: &Params<'_>) -> Refused {
        let at = self.readable(pid, &params.thread_id)?;
        let of = |turn: &super::Turn| match &params.turn_id {
            Some(only) => *turn.id == **only,
            None => true,
        };
        let turns = self.threads[at].turns.iter().filter(|turn| of(turn));
        let row = |turn: &super::Turn, item: &Item| {
            format!(r#"{{"turnId":"{}","item":{}}}"#, turn.id, item.json())
        };
        let mut rows: Vec<String> = turns
            .flat_map(|turn| turn.items.iter().map(move |item| row(turn, item)))
            .collect();
        if params.sort_direction.as_deref() == Some("desc") {
            rows.reverse();
        }
        page(rows.into_iter(), params, "items")
    }

    /// Threads with a message, newest first.
    pub(super) fn thread_list(&mut self, pid: u32, params: &Params<'_>) -> String {
        let listed = |thread: &&Thread| {
            let mut items = thread.turns.iter().flat_map(|turn| &turn.items);
            // No thread has a child here.
            params.ancestor_thread_id.is_none()
                && self.by_id.contains_key(&thread.id)
                && thread.stored
                && thread.archived == params.archived
                && items.any(|item| matches!(item, Item::User { .. }))
        };
        let threads = self.threads.iter().rev().filter(listed);
        let rows: Vec<String> = threads.map(|thread| thread.json(pid, None)).collect();
        page(rows.into_iter(), params, "threads")
            .unwrap_or_else(|_| r#"{"data":[],"nextCursor":null}"#.to_owned())
    }

    pub(super) fn loaded_list(&mut self, pid: u32) -> String {
        let mut data = String::new();
        for thread in &self.threads {
            if thread.loaded.as_ref().is_some_and(|l| l.pid == pid) {
                push(&mut data, &quoted(&thread.id));
            }
        }
        format!(r#"{{"data":[{data}],"nextCursor":null}}"#)
    }
}
