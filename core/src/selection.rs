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
pub struct Models {
    /// Those that the server lists; none where it was not asked.
    pub listed: Vec<ListedModel>,
    /// Whether a model that is not listed is refused.
    pub unlisted: Unlisted,
}

/// What is done with a model that the server does not list.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Unlisted {
    /// It is sent unchecked.
    #[default]
    Sent,
    /// It is refused.
    Refused,
}

impl Models {
    fn find(&self, id: &str) -> Option<&ListedModel> {
        self.listed.iter().find(|model| model.id == id)
    }

    /// The default, where there is exactly one.
    fn default(&self) -> Option<&ListedModel> {
        let mut all = self.listed.iter().filter(|model| model.is_default);
        all.next().filter(|_| all.next().is_none())
    }
}

/// What a message carries.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// The fields of `turn/start`; what is left out stays as it is.
    pub sent: Selection,
    /// A model that is sent although the server does not list it.
    pub unlisted: Option<String>,
}

/// Why a selection cannot be had.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, thiserror::Error)]
#[non_exhaustive]
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
    /// The model does not take the effort.
    #[error("the model {model:?} does not take the effort {effort:?}")]
    BadEffort {
        /// The model.
        model: String,
        /// The effort.
        effort: String,
    },
}

/// What a message must carry so that its thread has what is asked.
///
/// # Errors
///
/// See [`SelectionError`].
pub fn plan(
    asked: &Selection,
    thread: &ThreadSelection,
    models: &Models,
) -> Result<Plan, SelectionError> {
    let given = match thread {
        ThreadSelection::Settled(given) => given.clone(),
        ThreadSelection::Sent { before, after, .. } => before.or(after),
    };
    let no_default = |field| SelectionError::NoDefault { field };
    let mut plan = Plan::default();
    if let Some(model) = &asked.model {
        if models.find(model).is_none() {
            match models.unlisted {
                Unlisted::Sent => plan.unlisted = Some(model.clone()),
                Unlisted::Refused => {
                    let model = model.clone();
                    return Err(SelectionError::NotListed { model });
                }
            }
        }
    }
    let effective = match &asked.model {
        Some(model) => models.find(model),
        None => models.default(),
    };
    if let (Some(effort), Some(model)) = (&asked.effort, effective) {
        if !model.efforts.contains(effort) {
            return Err(SelectionError::BadEffort {
                model: model.id.clone(),
                effort: effort.clone(),
            });
        }
    }
    plan.sent.model = difference(
        asked.model.as_deref(),
        given.of(Field::Model, |s| s.model.as_deref()),
        || models.default().map(|model| model.id.clone()),
    )
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
    Ok(plan)
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
        (None, Ok(Some(_)) | Err(())) => default().map(Some).ok_or(()),
    }
}
