//! The history of a thread as the server tells it by pages (`thread/turns/list`), newest turn first:
//! read whole or not at all, and checked. Nothing that contradicts itself is repaired.

use alloc::{
    borrow::ToOwned,
    collections::BTreeSet,
    format,
    string::{String, ToString},
    vec::Vec,
};

use serde::{Deserialize, Deserializer, Serialize, de::IgnoredAny};
use serde_json::value::RawValue;

use crate::{
    event::Item,
    hash::hash,
    id::{MessageId, TurnId, is_clean},
    wire::{CowStr, item},
};

/// How many pages of a list are read.
pub(crate) const MAX_PAGES: u32 = 1_024;

/// How many turns, with all their items, are asked for at once: a page must fit a frame.
pub(crate) const PAGE: u32 = 20;

/// What is wrong with a history.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[non_exhaustive]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum HistoryError {
    /// A page does not have the shape of one.
    #[error("a page of the history cannot be read: {reason}")]
    Shape {
        /// What is wrong.
        reason: String,
    },
    /// A turn's id is empty or has white space at its ends.
    #[error("a turn of the history has no clean id")]
    TurnId,
    /// A turn stands twice.
    #[error("turn {turn} stands in the history twice")]
    TurnTwice {
        /// The turn.
        turn: TurnId,
    },
    /// A message stands twice, in one turn or in two.
    #[error("message {message} stands in the history twice")]
    MessageTwice {
        /// The message (`clientId`).
        message: String,
    },
    /// More than one turn runs.
    #[error("turns {first} and {second} both run, says the history")]
    TwoRunning {
        /// One.
        first: TurnId,
        /// The other.
        second: TurnId,
    },
    /// A turn carries an error and did not fail, or failed and carries none.
    #[error("turn {turn} is {status} and carries {}", if *has_error { "an error" } else { "no error" })]
    Error {
        /// The turn.
        turn: TurnId,
        /// Its status.
        status: String,
        /// Whether it carries an error.
        has_error: bool,
    },
    /// All items were asked for, and not all were given.
    #[error("turn {turn} came with the items view {view}, full was asked for")]
    PartialItems {
        /// The turn.
        turn: TurnId,
        /// What was given.
        view: String,
    },
    /// A cursor is malformed or was given before.
    #[error("the history's cursor is malformed or repeated")]
    Cursor,
    /// There are more pages than are read.
    #[error("the history has more than {limit} pages")]
    TooLong {
        /// The limit.
        limit: u32,
    },
    /// The history tells another end of a turn than the one that was told before.
    #[error("turn {turn} ended {recorded} and is {found} in the history")]
    OtherEnd {
        /// The turn.
        turn: TurnId,
        /// The end that was told.
        recorded: String,
        /// The status in the history.
        found: String,
    },
    /// A turn that was over stands behind one that came after it.
    #[error("turn {older} stands in the history after turn {newer}, which replaced it")]
    Order {
        /// The turn that was over first.
        older: TurnId,
        /// The turn that came after it.
        newer: TurnId,
    },
}

impl HistoryError {
    /// Whether what the history says of its turns can be trusted all the same.
    #[must_use]
    pub const fn is_readable(&self) -> bool {
        match self {
            Self::Error { .. } | Self::OtherEnd { .. } | Self::Order { .. } => true,
            Self::Shape { .. }
            | Self::TurnId
            | Self::TurnTwice { .. }
            | Self::MessageTwice { .. }
            | Self::TwoRunning { .. }
            | Self::PartialItems { .. }
            | Self::Cursor
            | Self::TooLong { .. } => false,
        }
    }
}

/// A turn of the history.
#[derive(Clone, Debug)]
pub(crate) struct PastTurn {
    pub(crate) id: TurnId,
    pub(crate) status: String,
    /// `TurnError`, as raw JSON.
    pub(crate) error: Option<String>,
    /// The server says that it does not know when it ended (`completedAt: null`).
    pub(crate) has_no_end: bool,
    /// The ids of user messages that carry one (`clientId`).
    pub(crate) messages: Vec<String>,
    /// How many messages of the agent stand before each of them.
    before: Vec<usize>,
    /// All messages of the agent.
    answers: Vec<Item>,
    /// How many items there are of any kind.
    pub(crate) items: usize,
    /// How many of them say that the history was made shorter.
    compactions: usize,
}

impl PastTurn {
    /// What the agent said behind a message, or behind the first of those that carry an id: what came
    /// before answers somebody else.
    pub(crate) fn answers_behind(&self, message: Option<&MessageId>) -> &[Item] {
        let own = message.and_then(|own| self.messages.iter().position(|m| own.is(m)));
        let first = self.before.get(own.unwrap_or(0)).copied().unwrap_or(0);
        self.answers.get(first..).unwrap_or_default()
    }

    pub(crate) fn runs(&self) -> bool {
        self.status == "inProgress"
    }

    /// An interrupted turn that holds nothing: the model was never asked.
    pub(crate) fn is_void(&self) -> bool {
        self.status == "interrupted" && self.items == 0
    }

    /// Nobody said anything in it: a compaction, or one that did not come to its end.
    pub(crate) fn only_compacts(&self) -> bool {
        self.items == self.compactions
    }

    pub(crate) fn has(&self, message: &str) -> bool {
        self.messages.iter().any(|m| m == message)
    }
}

/// What was read so far.
#[derive(Clone, Debug, Default)]
pub(crate) struct History {
    /// Whether a summary of a turn is enough.
    summary: bool,
    /// Newest first.
    pub(crate) turns: Vec<PastTurn>,
    pub(crate) warnings: Vec<HistoryError>,
    ids: BTreeSet<TurnId>,
    messages: BTreeSet<String>,
    cursors: BTreeSet<u64>,
    pages: u32,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Page<'a> {
    #[serde(borrow)]
    data: Vec<WireTurn<'a>>,
    #[serde(default)]
    next_cursor: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct WireTurn<'a> {
    #[serde(borrow)]
    id: CowStr<'a>,
    #[serde(borrow)]
    status: CowStr<'a>,
    #[serde(borrow, default)]
    error: Option<&'a RawValue>,
    #[serde(borrow, default)]
    items: Vec<&'a RawValue>,
    #[serde(borrow, default)]
    items_view: Option<CowStr<'a>>,
    /// Said, and not there: `Some(None)`.
    #[serde(default, deserialize_with = "said")]
    completed_at: Option<Option<IgnoredAny>>,
}

/// Tells what is null from what is not said.
fn said<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Option<IgnoredAny>>, D::Error> {
    Deserialize::deserialize(from).map(Some)
}

impl History {
    /// A look for how turns ended, which a summary of them tells too.
    pub(crate) fn of_ends() -> Self {
        Self {
            summary: true,
            ..Self::default()
        }
    }

    /// Takes a page. Returns the cursor of the next one, if there is one.
    pub(crate) fn take(&mut self, page: &str) -> Result<Option<String>, HistoryError> {
        let page: Page<'_> = crate::json::from_object(page).map_err(|e| HistoryError::Shape {
            reason: e.to_string(),
        })?;
        self.pages += 1;
        for turn in page.data {
            let turn = self.read(&turn)?;
            self.turns.push(turn);
        }
        let mut running = self.turns.iter().filter(|turn| turn.runs());
        if let (Some(first), Some(second)) = (running.next(), running.next()) {
            return Err(HistoryError::TwoRunning {
                first: first.id.clone(),
                second: second.id.clone(),
            });
        }
        let Some(next) = page.next_cursor else {
            return Ok(None);
        };
        if !is_clean(&next) || !self.cursors.insert(hash(next.as_bytes())) {
            return Err(HistoryError::Cursor);
        }
        if self.pages >= MAX_PAGES {
            return Err(HistoryError::TooLong { limit: MAX_PAGES });
        }
        Ok(Some(next))
    }

    fn read(&mut self, turn: &WireTurn<'_>) -> Result<PastTurn, HistoryError> {
        let id = TurnId::new(&turn.id.0).ok_or(HistoryError::TurnId)?;
        if !self.ids.insert(id.clone()) {
            return Err(HistoryError::TurnTwice { turn: id });
        }
        let status = turn.status.0.clone().into_owned();
        let error = turn.error.filter(|error| error.get() != "null");
        let fits = match status.as_str() {
            "failed" => error.is_some(),
            "interrupted" => true,
            _ => error.is_none(),
        };
        if !fits {
            self.warnings.push(HistoryError::Error {
                turn: id.clone(),
                status: status.clone(),
                has_error: error.is_some(),
            });
        }
        // A server that does not say gives what it has.
        let view = turn.items_view.as_ref().map_or("full", |view| &*view.0);
        if view != "full" && !self.summary {
            return Err(HistoryError::PartialItems {
                turn: id,
                view: view.to_owned(),
            });
        }
        let mut past = PastTurn {
            id,
            status,
            error: error.map(|e| e.get().to_owned()),
            has_no_end: matches!(turn.completed_at, Some(None)),
            messages: Vec::new(),
            before: Vec::new(),
            answers: Vec::new(),
            items: turn.items.len(),
            compactions: 0,
        };
        let id = past.id.clone();
        let items = turn.items.iter().enumerate();
        for item in items.filter_map(|(at, raw)| item::read_past(raw, &id, at)) {
            past.compactions += usize::from(item.kind == Item::COMPACTION);
            if let Some(message) = &item.client_id {
                if !self.messages.insert(message.clone()) {
                    return Err(HistoryError::MessageTwice {
                        message: message.clone(),
                    });
                }
                past.messages.push(message.clone());
                past.before.push(past.answers.len());
            } else if item.is_agent_message() {
                past.answers.push(item);
            }
        }
        Ok(past)
    }

    /// The turn that a message stands in.
    pub(crate) fn of_message(&self, message: &str) -> Option<&PastTurn> {
        self.turns.iter().find(|turn| turn.has(message))
    }

    pub(crate) fn turn(&self, id: &str) -> Option<&PastTurn> {
        self.turns.iter().find(|turn| turn.id.is(id))
    }

    /// The turn that runs, if one does.
    pub(crate) fn running(&self) -> Option<&PastTurn> {
        self.turns.iter().find(|turn| turn.runs())
    }
}

impl From<HistoryError> for String {
    fn from(error: HistoryError) -> Self {
        format!("{error}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(turns: &str, next: &str) -> String {
        format!(r#"{{"data":[{turns}],"nextCursor":{next}}}"#)
    }

    fn user(id: &str) -> String {
        format!(r#"{{"type":"userMessage","id":"i-{id}","clientId":"{id}","content":[]}}"#)
    }

    fn turn(id: &str, status: &str, items: &str) -> String {
        format!(
            r#"{{"id":"{id}","status":"{status}","error":null,"itemsView":"full","items":[{items}]}}"#
        )
    }

    fn error(turns: &str) -> HistoryError {
        History::default().take(&page(turns, "null")).unwrap_err()
    }

    #[test]
    fn pages_are_read_to_a_null_cursor_and_messages_are_found() {
        let mut history = History::default();
        let agent = r#"{"type":"agentMessage","id":"a","text":"early"}"#;
        let late = r#"{"type":"agentMessage","id":"b","text":"late"}"#;
        let items = format!("{},{agent},{},{late}", user("m1"), user("m2"));
        let first = page(&turn("t2", "inProgress", &items), r#""c1""#);
        assert_eq!(history.take(&first).unwrap().as_deref(), Some("c1"));
        let second = page(&turn("t1", "interrupted", ""), "null");
        assert_eq!(history.take(&second).unwrap(), None);
        let found = history.of_message("m1").unwrap();
        assert!(found.runs() && found.has("m2") && history.running().is_some());
        let said = |message: &str| -> Vec<_> {
            let message = MessageId::new(message);
            let behind = found.answers_behind(message.as_ref()).iter();
            behind.map(|item| item.text.clone().unwrap()).collect()
        };
        assert_eq!(said("m1"), ["early", "late"]);
        assert_eq!(said("m2"), ["late"]);
        assert_eq!(said("m9"), ["early", "late"]);
        assert!(history.turn("t1").unwrap().is_void());
        assert!(history.of_message("m3").is_none());
    }

    #[test]
    fn what_contradicts_itself_is_refused() {
        use HistoryError as E;
        let id = |id: &str| TurnId::new(id).unwrap();
        assert!(matches!(
            History::default().take("[]"),
            Err(E::Shape { .. })
        ));
        assert_eq!(error(&turn(" ", "completed", "")), E::TurnId);
        let twice = format!(
            "{},{}",
            turn("t", "completed", ""),
            turn("t", "completed", "")
        );
        assert_eq!(error(&twice), E::TurnTwice { turn: id("t") });
        let two = format!(
            "{},{}",
            turn("t", "inProgress", ""),
            turn("u", "inProgress", "")
        );
        let (first, second) = (id("t"), id("u"));
        assert_eq!(error(&two), E::TwoRunning { first, second });
        let message = || "m".to_owned();
        let same = turn("t", "completed", &format!("{},{}", user("m"), user("m")));
        assert_eq!(error(&same), E::MessageTwice { message: message() });
        let other = format!(
            "{},{}",
            turn("t", "completed", &user("m")),
            turn("u", "completed", &user("m"))
        );
        assert_eq!(error(&other), E::MessageTwice { message: message() });
        let partial = turn("t", "completed", "").replace("full", "summary");
        let view = "summary".to_owned();
        assert_eq!(
            error(&partial),
            E::PartialItems {
                turn: id("t"),
                view
            }
        );
    }

    #[test]
    fn a_cursor_is_clean_and_new_and_pages_have_an_end() {
        let mut history = History::default();
        assert_eq!(history.take(&page("", r#"" ""#)), Err(HistoryError::Cursor));
        assert!(history.take(&page("", r#""a""#)).is_ok());
        assert!(history.take(&page("", r#""b""#)).is_ok());
        assert_eq!(history.take(&page("", r#""a""#)), Err(HistoryError::Cursor));
        let mut history = History::default();
        let last = (0..2_000).find_map(|n| history.take(&page("", &format!(r#""c{n}""#))).err());
        assert_eq!(last, Some(HistoryError::TooLong { limit: MAX_PAGES }));
    }

    #[test]
    fn an_error_that_does_not_go_with_its_status_is_told() {
        let mut history = History::default();
        let with = |status: &str, error: &str| {
            turn(&format!("t-{status}-{}", error.len()), status, "")
                .replace(r#""error":null"#, &format!(r#""error":{error}"#))
        };
        let turns = [
            with("failed", "null"),
            with("completed", "{}"),
            with("interrupted", "{}"),
            with("interrupted", "null"),
            with("failed", "{}"),
        ];
        history.take(&page(&turns.join(","), "null")).unwrap();
        assert_eq!(history.warnings.len(), 2);
        assert!(history.warnings.iter().all(HistoryError::is_readable));
    }
}
