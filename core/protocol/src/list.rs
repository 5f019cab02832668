//! Lists that come in pages.

use alloc::{borrow::ToOwned, collections::BTreeSet, format, string::String, vec::Vec};

use crate::{
    request::Request,
    types::*,
    wire::{Maybe, Wire as _},
};

/// How many rows are asked for at once. The server gives no more of threads, whatever is asked.
pub const ROWS: u32 = 100;

/// How many pages a list may have.
pub const PAGES: usize = 1_024;

/// A request whose answer is a page of a list.
pub trait Paged: Request + Clone {
    /// What the list is of.
    type Row;

    /// Asks for the page that a cursor of the page before names.
    fn at(&mut self, cursor: String);

    /// Limits how many rows come in a page, where the request does not say.
    fn limit(&mut self, rows: u32);

    /// The rows of a page, and where the next one begins.
    fn page(response: Self::Response) -> (Vec<Self::Row>, Maybe<String>);

    /// What tells a row from all others; `None` where rows may be alike.
    fn key(row: &Self::Row) -> Option<String>;
}

/// A list breaks its own rules. What was read until then stands.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ListError {
    /// It has more pages than a list may have.
    #[error("{method} has more than {limit} pages")]
    TooLong {
        /// The method.
        method: &'static str,
        /// How many it may have.
        limit: usize,
    },
    /// A cursor is empty or has white space at its ends.
    #[error("{method} gave a malformed cursor: {cursor:?}")]
    MalformedCursor {
        /// The method.
        method: &'static str,
        /// The cursor.
        cursor: String,
    },
    /// A cursor came twice: the list would have no end.
    #[error("{method} gave the same cursor twice: {cursor:?}")]
    RepeatedCursor {
        /// The method.
        method: &'static str,
        /// The cursor.
        cursor: String,
    },
    /// A row came twice.
    #[error("{method} gave a row twice: {key}")]
    RepeatedRow {
        /// The method.
        method: &'static str,
        /// What tells the row from others.
        key: String,
    },
    /// A thread is listed as archived and as not archived.
    #[error("thread {thread} is listed as archived and as not archived")]
    ArchivedAndNot {
        /// The thread.
        thread: String,
    },
}

/// A list that is read page by page: what is asked next, and whether what comes is a list.
///
/// The first page is asked for at once. Cursors are opaque and good for this list alone.
#[derive(Clone, Debug)]
pub struct Listing<Q> {
    next: Option<Q>,
    pages: usize,
    cursors: BTreeSet<String>,
    keys: BTreeSet<String>,
}

impl<Q: Paged> Listing<Q> {
    /// The list that `request` begins.
    #[must_use]
    pub fn new(mut request: Q) -> Self {
        request.limit(ROWS);
        Self {
            next: Some(request),
            pages: 0,
            cursors: BTreeSet::new(),
            keys: BTreeSet::new(),
        }
    }

    /// What is asked next; `None` where the list is at its end.
    #[must_use]
    pub fn request(&self) -> Option<&Q> {
        self.next.as_ref()
    }

    /// Takes a page.
    ///
    /// # Errors
    ///
    /// It breaks the rules of a list, which is at its end then.
    pub fn take(&mut self, response: Q::Response) -> Result<Vec<Q::Row>, ListError> {
        let method = Q::METHOD;
        let Some(mut request) = self.next.take() else {
            return Ok(Vec::new());
        };
        let (rows, cursor) = Q::page(response);
        self.pages += 1;
        for key in rows.iter().filter_map(Q::key) {
            if !self.keys.insert(key.clone()) {
                return Err(ListError::RepeatedRow { method, key });
            }
        }
        let Some(cursor) = cursor.into_option() else {
            return Ok(rows);
        };
        if cursor.is_empty() || cursor.trim() != cursor {
            return Err(ListError::MalformedCursor { method, cursor });
        }
        if !self.cursors.insert(cursor.clone()) {
            return Err(ListError::RepeatedCursor { method, cursor });
        }
        if self.pages == PAGES {
            return Err(ListError::TooLong {
                method,
                limit: PAGES,
            });
        }
        request.at(cursor);
        self.next = Some(request);
        Ok(rows)
    }
}

macro_rules! paged {
    ($($params:ident => $response:ident, $row:ty, |$of:ident| $key:expr;)*) => {$(
        impl Paged for $params {
            type Row = $row;

            fn at(&mut self, cursor: String) {
                self.cursor = paged!(@cursor $params cursor);
            }

            fn limit(&mut self, rows: u32) {
                if self.limit.is_absent() {
                    self.limit = Maybe::Some(rows);
                }
            }

            fn page(response: $response) -> (Vec<$row>, Maybe<String>) {
                (response.data, response.next_cursor)
            }

            fn key($of: &$row) -> Option<String> {
                $key
            }
        }
    )*};
    (@cursor ThreadItemsListParams $cursor:ident) => {
        Maybe::Some(ThreadItemsListCursor::Text($cursor))
    };
    (@cursor $params:ident $cursor:ident) => { Maybe::Some($cursor) };
}

paged! {
    ThreadListParams => ThreadListResponse, Thread, |row| Some(row.id.clone());
    ThreadTurnsListParams => ThreadTurnsListResponse, Turn, |row| Some(row.id.clone());
    // An item's id is its own within its turn.
    ThreadItemsListParams => ThreadItemsListResponse, ThreadItemEntry, |row| {
        item_id(&row.item).map(|id| format!("{} of turn {}", id, row.turn_id))
    };
    ThreadLoadedListParams => ThreadLoadedListResponse, String, |row| Some(row.clone());
    ThreadSearchParams => ThreadSearchResponse, ThreadSearchResult, |row| {
        Some(row.thread.id.clone())
    };
    ThreadSectionListParams => ThreadSectionListResponse, ThreadSection, |row| Some(row.id.clone());
    ThreadBackgroundTerminalsListParams => ThreadBackgroundTerminalsListResponse,
        ThreadBackgroundTerminal, |row| Some(row.process_id.clone());
    ThreadQueueListParams => ThreadQueueListResponse, QueuedSubmission, |row| Some(row.id.clone());
    ModelListParams => ModelListResponse, Model, |row| Some(row.id.clone());
    ExperimentalFeatureListParams => ExperimentalFeatureListResponse, ExperimentalFeature, |_row| {
        // A feature that is listed twice is a finding of the policy check, not the end of the list.
        None
    };
    // A server may be configured in several environments.
    ListMcpServerStatusParams => ListMcpServerStatusResponse, McpServerStatus, |row| {
        let environment = row.environment_id.as_deref().unwrap_or("-");
        Some(format!("{} in {environment}", row.name))
    };
    AppsListParams => AppsListResponse, AppInfo, |row| Some(row.id.clone());
    PermissionProfileListParams => PermissionProfileListResponse, PermissionProfileSummary, |row| {
        Some(row.id.clone())
    };
    ProjectListParams => ProjectListResponse, Project, |row| Some(row.id.clone());
}

/// The id of an item, whatever its kind.
#[must_use]
pub fn item_id(item: &ThreadItem) -> Option<String> {
    let value = item.encode();
    Some(value.get("id")?.as_str()?.to_owned())
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn page(ids: &[&str], next: impl Into<Value>) -> ThreadLoadedListResponse {
        let value = json!({ "data": ids, "nextCursor": next.into() });
        ThreadLoadedListResponse::decode(&value).unwrap()
    }

    fn list() -> Listing<ThreadLoadedListParams> {
        Listing::new(ThreadLoadedListParams::new())
    }

    #[test]
    fn pages_are_asked_for_to_a_null_cursor() {
        let mut list = list();
        let first = list.request().unwrap();
        assert_eq!(first.params(), Some(json!({ "limit": 100 })));
        assert_eq!(list.take(page(&["a", "b"], "c1")).unwrap(), ["a", "b"]);
        let second = list.request().unwrap();
        assert_eq!(
            second.params(),
            Some(json!({ "limit": 100, "cursor": "c1" }))
        );
        assert_eq!(list.take(page(&["c"], Value::Null)).unwrap(), ["c"]);
        assert!(list.request().is_none());
    }

    #[test]
    fn limit_of_the_caller_stands() {
        let request = ThreadLoadedListParams {
            limit: 7.into(),
            ..ThreadLoadedListParams::new()
        };
        let list = Listing::new(request);
        assert_eq!(
            list.request().unwrap().params(),
            Some(json!({ "limit": 7 }))
        );
    }

    #[test]
    fn row_twice_is_an_error_and_ends_the_list() {
        let mut list = list();
        list.take(page(&["a"], "c1")).unwrap();
        let error = list.take(page(&["b", "a"], "c2")).unwrap_err();
        assert_eq!(error.to_string(), "thread/loaded/list gave a row twice: a");
        assert!(list.request().is_none());
    }

    #[test]
    fn cursors_are_checked() {
        for (cursor, why) in [("", "malformed"), (" c", "malformed"), ("c\n", "malformed")] {
            let error = list().take(page(&[], cursor)).unwrap_err();
            assert!(error.to_string().contains(why), "{error}");
        }
        let mut list = list();
        list.take(page(&[], "c1")).unwrap();
        list.take(page(&[], "c2")).unwrap();
        let error = list.take(page(&[], "c1")).unwrap_err();
        assert!(matches!(error, ListError::RepeatedCursor { .. }), "{error}");
    }

    #[test]
    fn list_without_end_is_given_up() {
        let mut list = list();
        for number in 1..PAGES {
            list.take(page(&[], format!("c{number}"))).unwrap();
        }
        let error = list.take(page(&[], "the last")).unwrap_err();
        assert_eq!(
            error.to_string(),
            "thread/loaded/list has more than 1024 pages"
        );
    }
}
