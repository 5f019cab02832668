//! The notifications that the core acts on. Every other one, and every one whose parameters have
//! another shape, is carried raw.

use alloc::{borrow::Cow, string::String, string::ToString};

use serde::Deserialize;
use serde_json::value::RawValue;

use super::{CowStr, at_position};
use crate::{event::Tokens, json::from_object};

/// A notification.
#[derive(Debug)]
pub(crate) enum Notification<'a> {
    TurnStarted(TurnFrame<'a>),
    TurnCompleted(TurnFrame<'a>),
    ItemStarted(ItemFrame<'a>),
    ItemCompleted(ItemFrame<'a>),
    Usage(UsageFrame<'a>),
    Diff(DiffFrame<'a>),
    Plan {
        scope: Scope<'a>,
        raw: &'a RawValue,
    },
    Status(StatusFrame<'a>),
    Error(ErrorFrame<'a>),
    Warning {
        method: &'static str,
        frame: WarningFrame<'a>,
    },
    Resolved(ResolvedFrame<'a>),
    ThreadClosed(ThreadFrame<'a>),
    ThreadStarted(ThreadStartedFrame<'a>),
    Rerouted(ReroutedFrame<'a>),
    Other {
        method: Cow<'a, str>,
        params: Option<&'a RawValue>,
        scope: Scope<'a>,
    },
    Bad {
        method: Cow<'a, str>,
        params: Option<&'a RawValue>,
        scope: Scope<'a>,
        reason: String,
    },
}

/// The thread and turn that parameters name, where they name any.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Scope<'a> {
    #[serde(borrow, default)]
    pub(crate) thread_id: Option<CowStr<'a>>,
    #[serde(borrow, default)]
    pub(crate) turn_id: Option<CowStr<'a>>,
}

impl Scope<'_> {
    pub(crate) fn thread(&self) -> Option<&str> {
        self.thread_id.as_ref().map(|t| &*t.0)
    }

    pub(crate) fn turn(&self) -> Option<&str> {
        self.turn_id.as_ref().map(|t| &*t.0)
    }
}

/// `turn/started`, `turn/completed`.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct TurnFrame<'a> {
    #[serde(borrow)]
    pub(crate) thread_id: CowStr<'a>,
    #[serde(borrow, default)]
    pub(crate) turn_id: Option<CowStr<'a>>,
    #[serde(borrow)]
    pub(crate) turn: WireTurn<'a>,
}

impl TurnFrame<'_> {
    /// Whether the frame names two different turns.
    pub(crate) fn names_two(&self) -> bool {
        self.turn_id
            .as_ref()
            .is_some_and(|id| id.0 != self.turn.id.0)
    }
}

/// A turn of the server.
#[derive(Debug, Deserialize)]
pub(crate) struct WireTurn<'a> {
    #[serde(borrow)]
    pub(crate) id: CowStr<'a>,
    #[serde(borrow)]
    pub(crate) status: CowStr<'a>,
    #[serde(borrow, default)]
    pub(crate) error: Option<&'a RawValue>,
    #[serde(borrow, default)]
    pub(crate) items: Option<&'a RawValue>,
}

/// `item/started`, `item/completed`.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ItemFrame<'a> {
    #[serde(borrow)]
    pub(crate) thread_id: CowStr<'a>,
    #[serde(borrow)]
    pub(crate) turn_id: CowStr<'a>,
    #[serde(borrow)]
    pub(crate) item: &'a RawValue,
}

/// `thread/tokenUsage/updated`.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct UsageFrame<'a> {
    #[serde(borrow)]
    pub(crate) thread_id: CowStr<'a>,
    #[serde(borrow)]
    pub(crate) turn_id: CowStr<'a>,
    pub(crate) token_usage: WireUsage,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct WireUsage {
    pub(crate) total: Tokens,
    pub(crate) last: Tokens,
    #[serde(default)]
    pub(crate) model_context_window: Option<u64>,
}

/// `turn/diff/updated`.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct DiffFrame<'a> {
    #[serde(borrow)]
    pub(crate) thread_id: CowStr<'a>,
    #[serde(borrow)]
    pub(crate) turn_id: CowStr<'a>,
    #[serde(borrow)]
    pub(crate) diff: &'a RawValue,
}

/// `thread/status/changed`.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct StatusFrame<'a> {
    #[serde(borrow)]
    pub(crate) thread_id: CowStr<'a>,
    #[serde(borrow)]
    pub(crate) status: &'a RawValue,
}

impl StatusFrame<'_> {
    /// The status' word: `idle`, `active`, `systemError`, `notLoaded`, or a newer one.
    pub(crate) fn word(&self) -> Option<String> {
        #[derive(Deserialize)]
        struct Tagged {
            #[serde(rename = "type")]
            word: String,
        }
        serde_json::from_str::<Tagged>(self.status.get())
            .ok()
            .map(|t| t.word)
    }
}

/// `error`.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ErrorFrame<'a> {
    #[serde(borrow, default)]
    pub(crate) thread_id: Option<CowStr<'a>>,
    #[serde(borrow, default)]
    pub(crate) turn_id: Option<CowStr<'a>>,
    // A missing one is not a true.
    #[serde(default)]
    pub(crate) will_retry: Option<bool>,
    #[serde(borrow)]
    pub(crate) error: &'a RawValue,
}

/// `warning`, `guardianWarning`, `configWarning`, `deprecationNotice`.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct WarningFrame<'a> {
    #[serde(borrow, default)]
    pub(crate) thread_id: Option<CowStr<'a>>,
    #[serde(borrow, default)]
    message: Option<CowStr<'a>>,
    #[serde(borrow, default)]
    summary: Option<CowStr<'a>>,
    #[serde(borrow, default)]
    details: Option<CowStr<'a>>,
}

impl WarningFrame<'_> {
    pub(crate) fn text(&self) -> String {
        let mut out = String::new();
        for part in [&self.message, &self.summary, &self.details]
            .into_iter()
            .flatten()
        {
            if !out.is_empty() {
                out.push('\n');
            }
            out.push_str(&part.0);
        }
        out
    }
}

/// `serverRequest/resolved`.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ResolvedFrame<'a> {
    #[serde(borrow)]
    pub(crate) request_id: &'a RawValue,
}

/// `thread/closed`.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ThreadFrame<'a> {
    #[serde(borrow)]
    pub(crate) thread_id: CowStr<'a>,
}

/// `thread/started`.
#[derive(Debug, Deserialize)]
pub(crate) struct ThreadStartedFrame<'a> {
    #[serde(borrow)]
    pub(crate) thread: WireThread<'a>,
}

/// A thread of the server.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct WireThread<'a> {
    #[serde(borrow)]
    pub(crate) id: CowStr<'a>,
}

/// `model/rerouted`.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ReroutedFrame<'a> {
    #[serde(borrow)]
    pub(crate) thread_id: CowStr<'a>,
    #[serde(borrow)]
    pub(crate) turn_id: CowStr<'a>,
    #[serde(borrow)]
    pub(crate) from_model: CowStr<'a>,
    #[serde(borrow)]
    pub(crate) to_model: CowStr<'a>,
}

impl<'a> Notification<'a> {
    /// Reads the parameters at the beginning of `rest` and tells where they end.
    pub(crate) fn by_position(method: &'a str, rest: &'a str) -> Option<(Self, usize)> {
        macro_rules! typed {
            ($variant:ident) => {{
                let (frame, end) = at_position(rest)?;
                (Self::$variant(frame), end)
            }};
        }
        Some(match method {
            "turn/started" => typed!(TurnStarted),
            "turn/completed" => typed!(TurnCompleted),
            "item/started" => typed!(ItemStarted),
            "item/completed" => typed!(ItemCompleted),
            "thread/tokenUsage/updated" => typed!(Usage),
            "turn/diff/updated" => typed!(Diff),
            "thread/status/changed" => typed!(Status),
            // Everything else is rare: the envelope path carries it raw.
            _ => return None,
        })
    }

    /// Reads the parameters of an envelope.
    pub(crate) fn by_envelope(method: Cow<'a, str>, params: Option<&'a RawValue>) -> Self {
        macro_rules! typed {
            (|$frame:ident| $make:expr) => {
                match params.map(|p| from_object(p.get())) {
                    Some(Ok($frame)) => $make,
                    Some(Err(error)) => {
                        let error: serde_json::Error = error;
                        Self::bad(method, params, error.to_string())
                    }
                    None => Self::bad(method, params, "params are missing".into()),
                }
            };
        }
        match &*method {
            "turn/started" => typed!(|f| Self::TurnStarted(f)),
            "turn/completed" => typed!(|f| Self::TurnCompleted(f)),
            "item/started" => typed!(|f| Self::ItemStarted(f)),
            "item/completed" => typed!(|f| Self::ItemCompleted(f)),
            "thread/tokenUsage/updated" => typed!(|f| Self::Usage(f)),
            "turn/diff/updated" => typed!(|f| Self::Diff(f)),
            "turn/plan/updated" => match params {
                Some(raw) => typed!(|scope| Self::Plan { scope, raw }),
                None => Self::bad(method, params, "params are missing".into()),
            },
            "thread/status/changed" => typed!(|f| Self::Status(f)),
            "error" => typed!(|f| Self::Error(f)),
            "warning" => typed!(|frame| Self::Warning {
                method: "warning",
                frame
            }),
            "guardianWarning" => typed!(|frame| Self::Warning {
                method: "guardianWarning",
                frame
            }),
            "configWarning" => typed!(|frame| Self::Warning {
                method: "configWarning",
                frame
            }),
            "deprecationNotice" => {
                typed!(|frame| Self::Warning {
                    method: "deprecationNotice",
                    frame
                })
            }
            "serverRequest/resolved" => typed!(|f| Self::Resolved(f)),
            "thread/closed" => typed!(|f| Self::ThreadClosed(f)),
            "thread/started" => typed!(|f| Self::ThreadStarted(f)),
            "model/rerouted" => typed!(|f| Self::Rerouted(f)),
            _ => Self::Other {
                scope: scope(params),
                method,
                params,
            },
        }
    }

    /// A notification whose parameters do not have its method's shape.
    pub(crate) fn bad(method: Cow<'a, str>, params: Option<&'a RawValue>, reason: String) -> Self {
        Self::Bad {
            scope: scope(params),
            method,
            params,
            reason,
        }
    }
}

/// The thread and turn that raw parameters name.
pub(crate) fn scope(params: Option<&RawValue>) -> Scope<'_> {
    params
        .and_then(|p| from_object(p.get()).ok())
        .unwrap_or_default()
}
