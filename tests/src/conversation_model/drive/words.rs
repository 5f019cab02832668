//! How a case is set up, and the words for what a command is answered.

use turnkeep_core::{
    Authorization, AutoBegin, BoxBody, CommandError, Config, InputItem, RawJson, Rendering, Reply,
    Settings, SteerWhen, Tool,
    command::{Binding, ToolKind},
    config::{Reconnect, RecoveredRounds},
};

use super::LIMIT;
use crate::{
    conversation_model::{boxes::Body, op::How, reference::SMALL},
    world::ms,
};

pub(super) fn config(how: How) -> Config {
    let mut config = Config::default();
    config.reconnect = Reconnect::On;
    config.recovered_rounds = match how.recovered_run {
        true => RecoveredRounds::Run,
        false => RecoveredRounds::WaitForBinding,
    };
    if how.small {
        config.limits.mailbox = SMALL;
    }
    config.limits.reconnect_first = ms(0);
    config.limits.settle = ms(2);
    config.limits.settle_every = ms(1);
    config.limits.request = ms(1_000_000 * LIMIT);
    config.limits.quiet = ms(1_000_000 * LIMIT);
    config
}

pub(super) fn settings(how: How, instructions: u32) -> Settings {
    let schema = || RawJson::parse(r#"{"type":"object"}"#).expect("an object");
    let tool = |name: &str| Tool::function(name, "", schema());
    let mut settings = Settings::new()
        .rendering(if how.boxed {
            Rendering::Boxed
        } else {
            Rendering::Plain
        })
        .steer(if how.at_once {
            SteerWhen::AtOnce
        } else {
            SteerWhen::AtStage
        })
        .auto_begin(if how.by_hand {
            AutoBegin::Off
        } else {
            AutoBegin::On
        })
        .authorization(if how.bound {
            Authorization::Needed
        } else {
            Authorization::None
        })
        .tool(tool("look"))
        .tool(tool("hasty").time_limit(ms(LIMIT)))
        .tool(tool("fetch").deferred())
        .tool(tool("await").deferred().time_limit(ms(LIMIT)))
        .tool(tool("route").kind(ToolKind::Router))
        .tool(tool("forward").kind(ToolKind::Router).deferred())
        .tool(tool("say").kind(ToolKind::Message));
    if instructions > 0 {
        settings = settings.developer_instructions(format!("instructions {instructions}"));
    }
    settings
}

pub(super) fn binding(which: u8) -> Binding {
    Binding::new(format!("subject {which}"), "profile", "policy")
}

pub(super) fn body(body: &Body, hidden: &str) -> BoxBody {
    let made = BoxBody::new(&*body.box_type, &*body.contents);
    match (&body.native, body.hidden) {
        (Some(native), kind) => made.hidden(kind, native),
        (None, "") => made,
        (None, kind) => made.hidden(kind, hidden),
    }
}

/// The word for an answer.
pub(super) fn word(answer: &Result<Reply, CommandError>) -> &'static str {
    match answer {
        Ok(Reply::Done) => "done",
        Ok(Reply::Accepted { .. }) => "accepted",
        Ok(Reply::Arrived { .. }) => "arrived",
        Ok(Reply::Begun { turn: Some(_) }) => "begun",
        Ok(Reply::Begun { turn: None }) => "nothing",
        Ok(Reply::Preflighted { .. }) => "preflighted",
        Ok(Reply::Steered { .. }) => "steered",
        Ok(Reply::Queued { .. }) => "queued",
        Ok(Reply::Interrupted) => "interrupted",
        Ok(Reply::AlreadyEnded { .. }) => "ended",
        Ok(_) => "something else",
        Err(CommandError::Busy { .. }) => "busy",
        Err(CommandError::BadBoxType { .. }) => "bad_box_type",
        Err(CommandError::Unauthorized { .. }) => "unauthorized",
        Err(CommandError::KeyReused { .. }) => "key_reused",
        Err(CommandError::MailboxFull { .. }) => "mailbox_full",
        Err(CommandError::NoActiveTurn) => "no_active_turn",
        Err(CommandError::UnknownTurn { .. }) => "unknown_turn",
        Err(CommandError::UnknownCall { .. }) => "unknown_call",
        Err(CommandError::AnsweredDifferently { .. }) => "answered_differently",
        Err(CommandError::CallClosed { .. }) => "call_closed",
        Err(CommandError::CallAnswered { .. }) => "call_answered",
        Err(CommandError::NotStalled { .. }) => "not_stalled",
        Err(CommandError::ProviderActionAccepted { .. }) => "provider_action_accepted",
        Err(CommandError::MayBeAccepted { .. }) => "may_be_accepted",
        Err(CommandError::NotFresh { .. }) => "not_fresh",
        Err(CommandError::UnknownTool { .. }) => "unknown_tool",
        Err(_) => "another error",
    }
}

pub(super) fn item(body: &Body) -> InputItem {
    match &body.native {
        Some(native) => InputItem::raw(RawJson::parse(native).expect("JSON")).expect("an item"),
        None => InputItem::text(&body.contents),
    }
}
