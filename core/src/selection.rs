//! Model, effort and personality: what a thread was last given, and what a message must carry so
//! that it has what is asked.
//!
//! The server keeps what a turn was given for the turns after it, so only differences are sent. A
//! message whose fate is not known leaves the thread in doubt: the next one carries everything.

use alloc::{
    boxed::Box,
    collections::BTreeSet,
    format,
    string::{String, ToString},
    vec::Vec,
};

use serde::{Deserialize, Serialize};

use crate::{
    error::{Change, InvalidTransition},
    id::{MessageId, is_clean},
    settings::Models,
};

/// A model, an effort and a personality; what is left out is the server's default.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Selection {
    /// The model.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// The reasoning effort.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub effort: Option<String>,
    /// The personality.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub personality: Option<String>,
}

/// A part of a selection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Field {
    /// The model.
    Model,
    /// The reasoning effort.
    Effort,
    /// The personality.
    Personality,
}

impl Field {
    /// The field's name in lower case.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Model => "model",
            Self::Effort => "effort",
            Self::Personality => "personality",
        }
    }
}

impl Selection {
    /// Whether everything is the server's default.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Checks what types cannot tell.
    ///
    /// # Errors
    ///
    /// In words, what is wrong.
    pub fn validate(&self) -> Result<(), String> {
        match self.fields().find(|(_, text)| !is_clean(text)) {
            Some((field, _)) => Err(format!(
                "the {} is empty or has white space at its ends",
                field.name()
            )),
            None => Ok(()),
        }
    }

    fn fields(&self) -> impl Iterator<Item = (Field, &str)> {
        [
            (Field::Model, &self.model),
            (Field::Effort, &self.effort),
            (Field::Personality, &self.personality),
        ]
        .into_iter()
        .filter_map(|(field, text)| Some((field, text.as_deref()?)))
    }
}

/// What is known of a thread's selection.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "snake_case")]
pub enum Given {
    /// It has this.
    Known(Selection),
    /// It may have one of several.
    Doubtful {
        /// What one of them, at least, says.
        touched: BTreeSet<Field>,
    },
}

impl Default for Given {
    fn default() -> Self {
        Self::Known(Selection::default())
    }
}

impl Given {
    /// What the thread has of a field: `Err` where that is not known.
    fn of<'a>(
        &'a self,
        field: Field,
        pick: fn(&'a Selection) -> Option<&'a str>,
    ) -> Result<Option<&'a str>, ()> {
        match self {
            Self::Known(selection) => Ok(pick(selection)),
            // What no message ever named is as it was made.
            Self::Doubtful { touched } if !touched.contains(&field) => Ok(None),
            Self::Doubtful { .. } => Err(()),
        }
    }

    fn touched(&self) -> BTreeSet<Field> {
        match self {
            Self::Known(selection) => selection.fields().map(|(field, _)| field).collect(),
            Self::Doubtful { touched } => touched.clone(),
        }
    }

    fn or(&self, other: &Selection) -> Self {
        let mut touched = self.touched();
        touched.extend(other.fields().map(|(field, _)| field));
        Self::doubtful(touched)
    }

    /// Where nothing was ever named there is no doubt.
    fn doubtful(touched: BTreeSet<Field>) -> Self {
        if touched.is_empty() {
            return Self::default();
        }
        Self::Doubtful { touched }
    }
}

/// The selection of a thread.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "snake_case")]
pub enum ThreadSelection {
    /// No message that would change it is on its way.
    Settled(Given),
    /// A message that changes it may have been accepted.
    Sent {
        /// The message.
        message: MessageId,
        /// What the thread has if it was not.
        before: Given,
        /// What it has if it was.
        after: Box<Selection>,
    },
}

impl Default for ThreadSelection {
    fn default() -> Self {
        Self::Settled(Given::default())
    }
}

/// A change of a thread's selection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SelectionChange {
    /// The thread was made with it.
    Made(Selection),
    /// A message that gives it may leave from now on.
    Sent {
        /// The message.
        message: MessageId,
        /// What the thread then has.
        after: Selection,
    },
    /// The server has a message.
    Accepted(MessageId),
    /// The server has a message not.
    Refused(MessageId),
    /// Whether the server has a message will never be known.
    Doubted(MessageId),
    /// A message that the server seemed to have was never recorded.
    Unrecorded(MessageId),
}

impl SelectionChange {
    const fn name(&self) -> &'static str {
        match self {
            Self::Made(_) => "made",
            Self::Sent { .. } => "sent",
            Self::Accepted(_) => "accepted",
            Self::Refused(_) => "refused",
            Self::Doubted(_) => "doubted",
            Self::Unrecorded(_) => "unrecorded",
        }
    }
}

impl ThreadSelection {
    /// The state's name.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Settled(Given::Known(_)) => "Known",
            Self::Settled(Given::Doubtful { .. }) => "Doubtful",
            Self::Sent { .. } => "Sent",
        }
    }

    /// The model that the thread has, where one was given to it and no other may have been.
    #[must_use]
    pub fn model(&self) -> Option<&str> {
        match self {
            Self::Settled(Given::Known(selection)) => selection.model.as_deref(),
            Self::Settled(Given::Doubtful { .. }) | Self::Sent { .. } => None,
        }
    }

    /// Takes a change. Unchanged on error; what becomes of a message that carried nothing changes
    /// nothing.
    ///
    /// # Errors
    ///
    /// Another message is on its way.
    pub fn on(&mut self, change: &SelectionChange) -> Result<Change, InvalidTransition> {
        use SelectionChange as C;
        let next = match (&*self, change) {
            (Self::Settled(_) | Self::Sent { .. }, C::Made(selection)) => {
                Self::Settled(Given::Known(selection.clone()))
            }
            (Self::Settled(before), C::Sent { message, after }) => Self::Sent {
                message: message.clone(),
                before: before.clone(),
                after: Box::new(after.clone()),
            },
            (
                Self::Sent { message, after, .. },
                C::Sent {
                    message: same,
                    after: also,
                },
            ) if message == same && **after == *also => return Ok(Change::NoOp),
            (Self::Sent { .. }, C::Sent { .. }) => {
                return Err(InvalidTransition {
                    machine: "selection",
                    state: self.name(),
                    event: change.name(),
                });
            }
            (Self::Sent { message, after, .. }, C::Accepted(of)) if message == of => {
                Self::Settled(Given::Known((**after).clone()))
            }
            (
                Self::Sent {
                    message, before, ..
                },
                C::Refused(of) | C::Unrecorded(of),
            ) if message == of => Self::Settled(before.clone()),
            (
                Self::Sent {
                    message,
                    before,
                    after,
                },
                C::Doubted(of),
            ) if message == of => Self::Settled(before.or(after)),
            // It may be the one that gave the thread what it seemed to have.
            (Self::Settled(had @ Given::Known(_)), C::Unrecorded(_)) => {
                Self::Settled(Given::doubtful(had.touched()))
            }
            (
                Self::Settled(_) | Self::Sent { .. },
                C::Accepted(_) | C::Refused(_) | C::Doubted(_) | C::Unrecorded(_),
            ) => return Ok(Change::NoOp),
        };
        if next == *self {
            return Ok(Change::NoOp);
        }
        *self = next;
        Ok(Change::Applied)
    }

    /// Checks what types cannot tell.
    ///
    /// # Errors
    ///
    /// In words, what is wrong.
    pub fn validate(&self) -> Result<(), String> {
        let (given, after) = match self {
            Self::Settled(given) => (given, None),
            Self::Sent { before, after, .. } => (before, Some(after)),
        };
        if let Some(after) = after {
            after.validate()?;
        }
        match given {
            Given::Known(selection) => selection.validate(),
            Given::Doubtful { touched } if touched.is_empty() => {
                Err("there is doubt of nothing".to_string())
            }
            Given::Doubtful { .. } => Ok(()),
        }
    }
}

/// A model that the server lists (`model/list`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListedModel {
    /// Its id.
    pub id: String,
    /// Whether it is the server's default.
    pub is_default: bool,
    /// The efforts that it takes.
    pub efforts: Vec<String>,
    /// The effort that it has where none is asked.
    pub default_effort: Option<String>,
}

/// What is known of the server's models. Those of custom providers are not listed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum ModelList {
    /// The server was not asked.
    #[default]
    Unread,
    /// It was, and the answer was of no use; why.
    Unreadable(String),
    /// Those that it lists, by id.
    Read(Vec<ListedModel>),
}

impl ModelList {
    fn listed(&self) -> &[ListedModel] {
        match self {
            Self::Unread | Self::Unreadable(_) => &[],
            Self::Read(listed) => listed,
        }
    }

    fn find(&self, id: &str) -> Option<&ListedModel> {
        self.listed().iter().find(|model| model.id == id)
    }

    /// The default, where there is exactly one.
    fn default(&self) -> Option<&ListedModel> {
        let mut all = self.listed().iter().filter(|model| model.is_default);
        all.next().filter(|_| all.next().is_none())
    }
}

/// What a message carries.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// The fields of `turn/start`; what is left out stays as it is.
    pub sent: Selection,
    /// What the thread then has.
    pub after: Selection,
    /// A model that the server does not list: neither it nor an effort is checked.
    pub unlisted: Option<String>,
}

/// Why a selection cannot be had.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[non_exhaustive]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum SelectionError {
    /// A field that was set is left out, and what the server's default is cannot be told.
    #[error("there is no default {} to go back to", field.name())]
    NoDefault {
        /// The field.
        field: Field,
    },
    /// The server does not list the model.
    #[error("the model {model:?} is not listed")]
    NotListed {
        /// The model.
        model: String,
    },
    /// Only listed models are wanted, and the server's list cannot be read.
    #[error("whether the model {model:?} is listed cannot be told: {reason}")]
    NoList {
        /// The model.
        model: String,
        /// Why there is no list.
        reason: String,
    },
    /// The model does not take the effort.
    #[error("the model {model:?} does not take the effort {effort:?}")]
    BadEffort {
        /// The model.
        model: String,
        /// The effort.
        effort: String,
    },
}

/// What is asked of a thread, and what is known of it.
#[derive(Clone, Copy, Debug)]
pub struct Wanted<'a> {
    /// What is asked.
    pub asked: &'a Selection,
    /// What the thread was given.
    pub thread: &'a ThreadSelection,
    /// The model that the server says the thread has, where none was ever given to it.
    pub told: Option<&'a str>,
    /// Which models are wanted.
    pub models: Models,
}

impl Wanted<'_> {
    fn given(&self) -> Given {
        match self.thread {
            ThreadSelection::Settled(given) => given.clone(),
            ThreadSelection::Sent { before, after, .. } => before.or(after),
        }
    }

    /// Whether the rules need the server's list: an effort is to be checked, a model or an effort is
    /// left out that was set, or the model must be a listed one.
    #[must_use]
    pub fn needs_list(&self) -> bool {
        let given = self.given();
        let model = given.of(Field::Model, |s| s.model.as_deref());
        let effort = given.of(Field::Effort, |s| s.effort.as_deref());
        let asked = (self.asked.model.as_deref(), self.asked.effort.as_deref());
        let changes = |asked: Option<&str>, has| asked.is_some() && has != Ok(asked);
        let left_out = |asked: Option<&str>, has| asked.is_none() && has != Ok(None);
        left_out(asked.0, model)
            || left_out(asked.1, effort)
            || (asked.1.is_some() && (changes(asked.0, model) || changes(asked.1, effort)))
            || (self.models == Models::Listed && changes(asked.0, model))
    }

    /// What a message must carry so that its thread has what is asked.
    ///
    /// # Errors
    ///
    /// See [`SelectionError`].
    pub fn plan(&self, list: &ModelList) -> Result<Plan, SelectionError> {
        let (asked, given) = (self.asked, self.given());
        let has_model = given.of(Field::Model, |s| s.model.as_deref());
        let mut plan = Plan::default();
        if let Some(model) = &asked.model {
            if list.find(model).is_none() {
                plan.unlisted = self.unlisted(model, list, has_model)?;
            }
        }
        let effective = match (&asked.model, has_model, self.told) {
            (Some(model), _, _) => list.find(model),
            // Nobody ever named one: the thread has what the server gave it.
            (None, Ok(None), Some(told)) => list.find(told),
            (None, Ok(_) | Err(()), _) => list.default(),
        };
        match (&asked.effort, effective) {
            (Some(effort), Some(model)) if !model.efforts.contains(effort) => {
                return Err(SelectionError::BadEffort {
                    model: model.id.clone(),
                    effort: effort.clone(),
                });
            }
            (Some(_), None) if asked.model.is_none() => {
                plan.unlisted = self.told.map(ToString::to_string);
            }
            (Some(_) | None, _) => {}
        }
        let no_default = |field| SelectionError::NoDefault { field };
        plan.sent.model = difference(asked.model.as_deref(), has_model, || {
            list.default().map(|model| model.id.clone())
        })
        .map_err(|()| no_default(Field::Model))?;
        plan.sent.effort = difference(
            asked.effort.as_deref(),
            given.of(Field::Effort, |s| s.effort.as_deref()),
            || effective.and_then(|model| model.default_effort.clone()),
        )
        .map_err(|()| no_default(Field::Effort))?;
        plan.sent.personality = difference(
            asked.personality.as_deref(),
            given.of(Field::Personality, |s| s.personality.as_deref()),
            || None,
        )
        .map_err(|()| no_default(Field::Personality))?;
        let had = |field, pick: fn(&Selection) -> Option<&str>| {
            given
                .of(field, pick)
                .ok()
                .flatten()
                .map(ToString::to_string)
        };
        plan.after = Selection {
            model: (plan.sent.model.clone()).or_else(|| had(Field::Model, |s| s.model.as_deref())),
            effort: (plan.sent.effort.clone())
                .or_else(|| had(Field::Effort, |s| s.effort.as_deref())),
            personality: (plan.sent.personality.clone())
                .or_else(|| had(Field::Personality, |s| s.personality.as_deref())),
        };
        Ok(plan)
    }

    /// What becomes of a model that the list lacks, or that there is no list for.
    fn unlisted(
        &self,
        model: &str,
        list: &ModelList,
        has: Result<Option<&str>, ()>,
    ) -> Result<Option<String>, SelectionError> {
        let model = model.to_string();
        // A thread that has it keeps it.
        let is_new = has != Ok(Some(&model));
        match (self.models, list) {
            (Models::Listed, ModelList::Read(_)) if is_new => {
                Err(SelectionError::NotListed { model })
            }
            (Models::Listed, ModelList::Unreadable(reason)) if is_new => {
                let reason = reason.clone();
                Err(SelectionError::NoList { model, reason })
            }
            (_, ModelList::Read(_)) => Ok(Some(model)),
            (_, ModelList::Unread | ModelList::Unreadable(_)) => Ok(None),
        }
    }
}

/// What is sent of a field, if anything is.
fn difference(
    asked: Option<&str>,
    has: Result<Option<&str>, ()>,
    default: impl FnOnce() -> Option<String>,
) -> Result<Option<String>, ()> {
    match (asked, has) {
        (None, Ok(None)) => Ok(None),
        (Some(asked), Ok(Some(has))) if asked == has => Ok(None),
        (Some(asked), _) => Ok(Some(asked.to_string())),
        // A field cannot be taken back, only set to what the default is.
        (None, Ok(Some(_)) | Err(())) => match (default(), has) {
            (Some(default), Ok(Some(has))) if default == has => Ok(None),
            (Some(default), _) => Ok(Some(default)),
            (None, _) => Err(()),
        },
    }
}
