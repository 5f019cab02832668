//! The server's list of models: read once on a connection, when a rule needs it, before the message
//! that needs it.

use alloc::{borrow::ToOwned, collections::BTreeSet, format, string::String, vec::Vec};

use serde::{Deserialize, Serialize};

use super::{
    Machine,
    out::UNGATED,
    requests::{Kind, Settled},
};
use crate::{
    effect::Effects,
    event::{ConnectionEvent, ProtocolError, Warning},
    hash::hash,
    id::{ConversationId, is_clean},
    selection::{ListedModel, ModelList, Plan, SelectionError, ThreadSelection, Wanted},
};

const METHOD: &str = "model/list";

/// How many pages of the list are read.
const MAX_PAGES: usize = 1_024;

/// Rows of a page, the most that the server gives.
const ROWS: u32 = 100;

/// The list, as far as this connection told it.
#[derive(Clone, Debug, Default)]
pub(super) struct ListedModels {
    list: ModelList,
    reading: Option<Reading>,
}

/// The pages so far.
#[derive(Clone, Debug, Default)]
struct Reading {
    models: Vec<ListedModel>,
    /// The hashes of the cursors so far.
    cursors: BTreeSet<u64>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct ListParams<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    cursor: Option<&'a str>,
    limit: u32,
    include_hidden: bool,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Page {
    data: Vec<Row>,
    #[serde(default)]
    next_cursor: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Row {
    id: String,
    #[serde(default)]
    hidden: bool,
    #[serde(default)]
    is_default: bool,
    #[serde(default)]
    supported_reasoning_efforts: Vec<Effort>,
    #[serde(default)]
    default_reasoning_effort: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Effort {
    reasoning_effort: String,
}

impl Reading {
    /// Takes a page. Returns the cursor of the next one.
    fn take(&mut self, result: &str) -> Result<Option<String>, String> {
        let page: Page = crate::json::from_object(result).map_err(|e| format!("{e}"))?;
        for row in page.data {
            if !is_clean(&row.id) {
                return Err("the id of a model is malformed".into());
            }
            if self.models.iter().any(|model| model.id == row.id) {
                return Err(format!("it has model {:?} twice", row.id));
            }
            if row.hidden {
                continue;
            }
            let efforts = row.supported_reasoning_efforts.into_iter();
            self.models.push(ListedModel {
                id: row.id,
                is_default: row.is_default,
                efforts: efforts.map(|effort| effort.reasoning_effort).collect(),
                default_effort: row.default_reasoning_effort,
            });
        }
        match page.next_cursor {
            None => Ok(None),
            Some(next) if !is_clean(&next) || !self.cursors.insert(hash(next.as_bytes())) => {
                Err("its cursor is malformed or repeated".into())
            }
            Some(_) if self.cursors.len() >= MAX_PAGES => Err("it has too many pages".into()),
            Some(next) => Ok(Some(next)),
        }
    }

    fn finish(mut self) -> Result<Vec<ListedModel>, String> {
        self.models.sort_by(|a, b| a.id.cmp(&b.id));
        let defaults = self.models.iter().filter(|model| model.is_default);
        match defaults.count() {
            0 | 1 => Ok(self.models),
            _ => Err("it has more than one default".into()),
        }
    }
}

impl Machine {
    /// Another connection may tell another list.
    pub(super) fn forget_models(&mut self) {
        self.models = ListedModels::default();
    }

    /// Whether what a conversation asks must wait for the server's list of models, which is then on
    /// its way.
    pub(super) fn awaits_models(&mut self, fx: &mut Effects, conversation: ConversationId) -> bool {
        if self.models.list != ModelList::Unread || !self.needs_models(conversation) {
            return false;
        }
        if self.models.reading.is_none() {
            self.models.reading = Some(Reading::default());
            self.read_models(fx, None);
        }
        true
    }

    fn needs_models(&mut self, conversation: ConversationId) -> bool {
        self.with_wanted(conversation, |wanted, _| wanted.needs_list())
            .unwrap_or(false)
    }

    /// What a message of a conversation must carry of model, effort and personality.
    pub(super) fn plan(&mut self, conversation: ConversationId) -> Result<Plan, SelectionError> {
        self.with_wanted(conversation, |wanted, list| wanted.plan(list))
            .unwrap_or_else(|| Ok(Plan::default()))
    }

    fn with_wanted<T>(
        &mut self,
        conversation: ConversationId,
        ask: impl FnOnce(&Wanted<'_>, &ModelList) -> T,
    ) -> Option<T> {
        let told = self.conversation(conversation)?.told_model.clone();
        let known = self.durable.conversation(conversation)?;
        let asked = known.settings.selection();
        let fresh = ThreadSelection::default();
        let made = known
            .creation
            .as_ref()
            .is_some_and(crate::thread::Creation::has_left);
        let wanted = Wanted {
            asked: &asked,
            thread: if made { &known.selection } else { &fresh },
            told: told.as_deref(),
            models: known.settings.models,
        };
        Some(ask(&wanted, &self.models.list))
    }

    /// The list as far as it is known.
    pub(super) fn model_list(&self) -> &ModelList {
        &self.models.list
    }

    fn read_models(&mut self, fx: &mut Effects, cursor: Option<&str>) {
        let params = ListParams {
            cursor,
            limit: ROWS,
            include_hidden: false,
        };
        self.request(fx, Kind::Models, METHOD, &params, UNGATED);
    }

    /// A page of the list is there, or does not come.
    pub(super) fn models_told(&mut self, fx: &mut Effects, how: Settled) {
        let Some(mut reading) = self.models.reading.take() else {
            return;
        };
        let read = match how {
            Settled::Answered(result) => match reading.take(&result) {
                Ok(Some(next)) => {
                    self.models.reading = Some(reading);
                    self.read_models(fx, Some(&next));
                    return;
                }
                Ok(None) => reading.finish(),
                Err(reason) => Err(reason),
            }
            .inspect_err(|reason| {
                let (method, reason) = (METHOD.to_owned(), reason.clone());
                self.report(fx, ProtocolError::BadResponse { method, reason });
            }),
            Settled::Refused(refusal) => Err(format!("{}", refusal.error)),
            // The next connection is asked again.
            Settled::NotSent => return,
            Settled::Unknown(evidence) => Err(evidence),
        };
        self.models.list = match read {
            Ok(listed) => ModelList::Read(listed),
            Err(reason) => {
                let warning = Warning::ModelList {
                    reason: reason.clone(),
                };
                self.tell_connection(fx, ConnectionEvent::Warning(warning));
                ModelList::Unreadable(reason)
            }
        };
        for conversation in self.conversation_ids() {
            self.advance(fx, conversation);
        }
    }
}
