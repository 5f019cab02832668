//! Refreshes of the server's tokens: questions of the connection, without a thread, a turn or a
//! record. Tokens go from the command into the frame and stand nowhere else.

use alloc::{
    borrow::ToOwned,
    collections::BTreeMap,
    string::{String, ToString},
    vec::Vec,
};

use serde::Deserialize;
use serde_json::value::RawValue;

use super::{
    Machine,
    calls::{InboundRequest, misplaced},
    out::UNGATED,
};
use crate::{
    command::{CommandError, Reply, RpcError, TokenAnswer},
    config::TokenRefreshes,
    effect::Effects,
    event::{ConnectionEvent, ProtocolError, RefreshClosedWhy, TokenRefresh},
    id::{CommandId, RefreshId, is_clean},
    json::write_string,
    timers::Timer,
    wire::{self, CowStr},
};

/// The request's method.
pub(super) const METHOD: &str = "account/chatgptAuthTokens/refresh";

/// How many may be open at once.
const MOST: usize = 64;

/// A refresh that waits for the application.
#[derive(Clone, Debug)]
struct Open {
    /// The server's request, as raw JSON.
    request: String,
    /// The account that the tokens must be of.
    previous: Option<String>,
}

/// All of them.
#[derive(Clone, Debug, Default)]
pub(super) struct Refreshes {
    last: RefreshId,
    open: BTreeMap<RefreshId, Open>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Params<'a> {
    #[serde(borrow)]
    reason: CowStr<'a>,
    #[serde(borrow, default)]
    previous_account_id: Option<CowStr<'a>>,
}

/// The refusal of a refresh that brought no tokens.
fn unserved(message: &str) -> RpcError {
    RpcError {
        code: -32_603,
        message: message.to_owned(),
        data: None,
    }
}

impl Machine {
    pub(super) fn on_token_refresh(
        &mut self,
        fx: &mut Effects,
        id: &str,
        params: Option<&RawValue>,
    ) {
        if self.config.token_refresh == TokenRefreshes::Refuse {
            self.refuse(fx, id, METHOD, unserved("nobody serves this request"));
            return;
        }
        let text = params.map_or("null", RawValue::get);
        let params = match crate::json::from_object::<Params<'_>>(text) {
            Ok(params) => params,
            Err(error) => {
                self.refuse(fx, id, METHOD, misplaced("undecodable parameters"));
                let (method, reason) = (METHOD.to_owned(), error.to_string());
                self.report(fx, ProtocolError::BadParams { method, reason });
                return;
            }
        };
        let next = self.refreshes.last.next();
        let Some(refresh) = next.filter(|_| self.refreshes.open.len() < MOST) else {
            let error = unserved("too many refreshes are open");
            self.refuse(fx, id, METHOD, error);
            return;
        };
        self.refreshes.last = refresh;
        let previous = params.previous_account_id.map(|id| id.0.into_owned());
        let open = Open {
            request: id.to_owned(),
            previous: previous.clone(),
        };
        self.refreshes.open.insert(refresh, open);
        self.inbound
            .insert(id.into(), InboundRequest::Refresh(refresh));
        let due = self.now.after(self.config.limits.token_refresh);
        self.timers.set(Timer::TokenRefresh(refresh), due);
        let event = TokenRefresh {
            id: refresh,
            reason: params.reason.0.into_owned(),
            previous_account: previous,
        };
        self.tell_connection(fx, ConnectionEvent::TokenRefresh(event));
    }

    /// Answers a refresh, once. An answer that does not fit leaves it open.
    pub(super) fn refresh_token(
        &mut self,
        fx: &mut Effects,
        id: CommandId,
        refresh: RefreshId,
        answer: &TokenAnswer,
    ) -> Result<(), CommandError> {
        let Some(open) = self.refreshes.open.get(&refresh) else {
            return Err(CommandError::UnknownRefresh { refresh });
        };
        match answer {
            TokenAnswer::Tokens {
                access_token,
                account,
                plan,
            } => {
                let texts = [
                    // Not the token itself: a replay does not have it.
                    ("account", Some(account.as_str())),
                    ("plan", plan.as_deref()),
                ];
                for (what, text) in texts {
                    if text.is_some_and(|text| !is_clean(text)) {
                        let reason =
                            alloc::format!("the {what} is empty or has white space at its ends");
                        return Err(CommandError::BadAnswer { reason });
                    }
                }
                if let Some(asked) = open.previous.as_ref().filter(|asked| *asked != account) {
                    return Err(CommandError::OtherAccount {
                        asked: asked.clone(),
                        given: account.clone(),
                    });
                }
                let mut result = String::from(r#"{"accessToken":"#);
                let from = result.len() + 1;
                write_string(access_token.expose(), &mut result);
                let to = result.len() - 1;
                result.push_str(r#","chatgptAccountId":"#);
                write_string(account, &mut result);
                result.push_str(r#","chatgptPlanType":"#);
                match plan {
                    Some(plan) => write_string(plan, &mut result),
                    None => result.push_str("null"),
                }
                result.push('}');
                if let Some(request) = self.close_refresh(refresh) {
                    let bytes = wire::result(&request, &result);
                    // The result stands at the end of its line, before `}` and the line feed.
                    let offset = bytes.len() - result.len() - 2;
                    let span = from + offset..to + offset;
                    self.send_secret(fx, bytes, UNGATED, None, alloc::vec![span]);
                }
            }
            TokenAnswer::Failed { message } => {
                if let Some(request) = self.close_refresh(refresh) {
                    self.refuse(fx, &request, METHOD, unserved(message));
                }
            }
        }
        self.answer(fx, id, Ok(Reply::Done));
        Ok(())
    }

    /// The application took too long: the server is told before it gives up by itself.
    pub(super) fn refresh_timed_out(&mut self, fx: &mut Effects, refresh: RefreshId) {
        if let Some(request) = self.close_refresh(refresh) {
            let error = unserved("the tokens were not refreshed in time");
            self.refuse(fx, &request, METHOD, error);
            self.tell_refresh_closed(fx, refresh, RefreshClosedWhy::TimedOut);
        }
    }

    /// The server takes no answer to a request of its own any more. Whether it was a refresh.
    pub(super) fn refresh_resolved(&mut self, fx: &mut Effects, request: &str) -> bool {
        let Some(InboundRequest::Refresh(refresh)) = self.inbound.get(request) else {
            return false;
        };
        let refresh = *refresh;
        self.close_refresh(refresh);
        self.tell_refresh_closed(fx, refresh, RefreshClosedWhy::Resolved);
        true
    }

    /// No answer can reach the server any more, or we close the connection: then it is refused.
    pub(super) fn end_refreshes(&mut self, fx: &mut Effects, why: RefreshClosedWhy) {
        let open: Vec<RefreshId> = self.refreshes.open.keys().copied().collect();
        for refresh in open {
            let request = self.close_refresh(refresh);
            if let Some(request) = request.filter(|_| why == RefreshClosedWhy::Shutdown) {
                self.refuse(fx, &request, METHOD, unserved("the client shuts down"));
            }
            self.tell_refresh_closed(fx, refresh, why);
        }
    }

    /// Forgets a refresh. Returns the server's request.
    fn close_refresh(&mut self, refresh: RefreshId) -> Option<String> {
        self.timers.clear(Timer::TokenRefresh(refresh));
        let open = self.refreshes.open.remove(&refresh)?;
        self.inbound.remove(open.request.as_str());
        Some(open.request)
    }

    fn tell_refresh_closed(&mut self, fx: &mut Effects, refresh: RefreshId, why: RefreshClosedWhy) {
        let event = ConnectionEvent::TokenRefreshClosed { refresh, why };
        self.tell_connection(fx, event);
    }
}
