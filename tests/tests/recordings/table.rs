//! Which recordings the core drives again, and every difference that is allowed.
//!
//! What is compared: the frames that go out, in order, methods and parameters and answers. Allowed
//! everywhere, because turnkeep is another client than the probe that was recorded:
//!
//! - request ids are ours; ids of threads and turns come from the recorded responses;
//! - `initialize`: the WebSocket probe left `title`, `requestAttestation: false` and
//!   `optOutNotificationMethods: []` out; we always send them;
//! - `initialize`: opt-outs that the core acts on are refused by `Config`, so they are not sent;
//! - `thread/start` carries `threadSource`, our mark;
//! - `turn/start` and `turn/steer` always carry `clientUserMessageId`, and it is ours; the recorded
//!   one is exchanged for it where the server repeats it;
//! - the core begins a thread with its first message, so `turn/start` may leave earlier than the
//!   probe sent it, never in another order;
//! - a method that turnkeep has no command for goes out as a raw request of the application;
//! - a recording is driven up to its first kill, exit or disconnection: what follows is recovery.

/// A recording that is driven again.
#[derive(Debug)]
pub(crate) struct Driven {
    /// Its name, in each version that has it.
    pub(crate) name: &'static str,
    /// Both threads are asked for at once: the probe started both before it sent to either.
    pub(crate) together: bool,
    /// Frames of the client that are dealt with in their own way, by their number from 1.
    pub(crate) special: &'static [(usize, Special)],
    /// How its turns end, by their number: the outcome and the text.
    pub(crate) ends: &'static [(&'static str, Option<&'static str>)],
}

/// How a frame of the probe is dealt with.
#[derive(Debug)]
pub(crate) enum Special {
    /// The application asks for it as a raw request, since no command of ours leads to it.
    Raw(&'static str),
    /// The same wish is answered with this, and nothing is sent.
    NotSent(&'static str, &'static str),
    /// The core sends it by itself when a timer is over.
    AfterTimer(&'static str),
    /// Before it, the core sends this text by itself: a message that it owes an answer.
    AfterFollowUp(&'static str, &'static str),
    /// The probe answered with an error, which is no answer that an application can give; it says
    /// that the tool failed.
    SaysFailed(&'static str),
    /// The probe declined a command although that was not offered; the negative answer is then
    /// `cancel`.
    SaysCancel(&'static str),
}

impl Special {
    pub(crate) const fn reason(&self) -> &'static str {
        match self {
            Self::Raw(reason)
            | Self::NotSent(_, reason)
            | Self::AfterFollowUp(_, reason)
            | Self::AfterTimer(reason)
            | Self::SaysCancel(reason)
            | Self::SaysFailed(reason) => reason,
        }
    }
}

use Special::{AfterFollowUp, AfterTimer, NotSent, Raw, SaysCancel, SaysFailed};

const fn plain(
    name: &'static str,
    ends: &'static [(&'static str, Option<&'static str>)],
) -> Driven {
    driven(name, &[], ends)
}

const fn driven(
    name: &'static str,
    special: &'static [(usize, Special)],
    ends: &'static [(&'static str, Option<&'static str>)],
) -> Driven {
    Driven {
        name,
        together: false,
        special,
        ends,
    }
}

/// All that are driven again.
pub(crate) const DRIVEN: &[Driven] = &[
    driven(
        "command_approval",
        &[(
            6,
            SaysCancel("the server offered accept and cancel, no decline"),
        )],
        &[("completed", Some("ok"))],
    ),
    plain("command_approval_cancel", &[("interrupted", None)]),
    plain("dynamic_tools", &[("completed", Some("done"))]),
    plain("ephemeral_and_optout", &[("completed", Some("x"))]),
    plain("error_will_retry", &[("completed", Some("recovered"))]),
    plain("file_change_approval", &[("completed", Some("ok"))]),
    driven(
        "hello",
        &[(
            10,
            NotSent("Done", "a conversation that is closed is closed"),
        )],
        &[
            ("completed", Some("Hello, world é中😀 \"q\" \\n")),
            ("completed", Some("second")),
        ],
    ),
    plain(
        "history_ops",
        &[
            ("completed", Some("one")),
            ("completed", Some("two")),
            // The compaction, which the application asked for by a raw request.
            ("completed", None),
        ],
    ),
    plain(
        "history_paging",
        &[
            ("completed", Some("one")),
            ("completed", Some("two")),
            ("completed", Some("three")),
        ],
    ),
    driven(
        "interrupt",
        &[
            (6, NotSent("AlreadyEnded", "the turn is known to be over")),
            (
                7,
                NotSent("UnknownTurn", "an application cannot name a turn of nobody"),
            ),
        ],
        &[("interrupted", Some("part"))],
    ),
    plain("kill_mid_turn_resume", &[("lost", Some("part"))]),
    plain(
        "kill_right_after_turn_start_sent",
        &[("completed", Some("x")), ("unknown", None)],
    ),
    plain("kill_with_tool_pending", &[("lost", None)]),
    plain("model_failed", &[("failed", None)]),
    plain("model_http_500", &[("failed", None)]),
    plain("model_stream_drop", &[("failed", Some("par"))]),
    plain("stdin_closed_mid_turn", &[("lost", Some("part"))]),
    driven(
        "steer",
        &[
            (5, Raw("the core never names a turn that does not run")),
            (7, NotSent("NoActiveTurn", "the turn is known to be over")),
        ],
        &[("completed", Some("after steer"))],
    ),
    driven(
        "steer_then_interrupt",
        &[(
            7,
            AfterFollowUp(
                "STEERED",
                "it was answered and never recorded: it goes again",
            ),
        )],
        &[("interrupted", None)],
    ),
    plain("steer_while_tool_pending", &[("completed", Some("mid"))]),
    plain(
        "structured_output",
        &[("completed", Some("{\"answer\": 4}"))],
    ),
    plain("text_then_tool", &[("completed", Some("end"))]),
    driven(
        "tool_never_answered_then_interrupt",
        &[(
            6,
            NotSent("CallClosed", "the call was closed by the interrupt"),
        )],
        &[("interrupted", None)],
    ),
    driven(
        "tool_rejected",
        &[(
            5,
            SaysFailed("an error answer is turnkeep's own, not the application's"),
        )],
        &[("completed", Some("ok"))],
    ),
    driven(
        "turn_while_active",
        &[(5, Raw("a second message while a turn runs is Busy"))],
        &[("completed", Some("two"))],
    ),
    Driven {
        name: "two_threads",
        together: true,
        special: &[],
        ends: &[("completed", Some("a1a2a3")), ("completed", Some("b1b2b3"))],
    },
    plain("unknown_tool", &[("completed", Some("ok"))]),
    driven(
        "unsubscribe_while_active",
        &[
            (
                5,
                Raw("a conversation with an open turn is not closed: Busy"),
            ),
            (7, AfterTimer("the end never came: the history is read")),
        ],
        &[("completed", Some("abc")), ("completed", Some("x"))],
    ),
    plain("user_input", &[("completed", Some("ok"))]),
    plain("ws_reconnect_approval", &[("lost", None)]),
    plain("ws_reconnect_mid_turn", &[("lost", Some("a"))]),
    plain("ws_reconnect_tool_call", &[("lost", None)]),
    plain("ws_turn_ends_while_away", &[("lost", None)]),
];

/// Those that are only read, and why.
pub(crate) const DECODED_ONLY: &[(&str, &str)] = &[
    (
        "errors",
        "the probe breaks the handshake and the frames on purpose: a request before initialize, \
         a second initialize, answers to nothing; turnkeep cannot be made to",
    ),
    (
        "inventory",
        "a thread without a turn: turnkeep makes a thread with its first message only",
    ),
    (
        "kill_before_first_turn",
        "a thread without a turn, and then recovery: turnkeep makes a thread with its first message",
    ),
    (
        "ws_two_clients",
        "two connections in one file, which the rows do not tell apart",
    ),
];
