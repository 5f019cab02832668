//! The server's requests for tokens.

use std::{
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll},
};

use event_listener::EventListener;
use futures_core::Stream;
use turnkeep_core::{Command, CommandError, command::TokenAnswer, event::TokenRefresh};

use super::{Shared, client::Client};
use crate::{error::RequestError, refreshes::Next, request::Note};

impl<R> Client<R> {
    /// The server's requests for tokens
    /// (`account/chatgptAuthTokens/refresh`), where the configuration asks for them
    /// ([`TokenRefreshes::Ask`](turnkeep_core::config::TokenRefreshes)). They wait behind no other
    /// event, and each goes to one stream. Once the last stream is dropped they fail at once.
    #[must_use]
    pub fn token_refreshes(&self) -> TokenRefreshRequests {
        self.shared.life.refreshes.begin_stream();
        TokenRefreshRequests {
            shared: Arc::clone(&self.shared),
            news: None,
        }
    }
}

/// The server's requests for tokens, each for once.
#[derive(Debug)]
pub struct TokenRefreshRequests {
    shared: Arc<Shared>,
    news: Option<Pin<Box<EventListener>>>,
}

impl TokenRefreshRequests {
    /// The next request, `None` when the client has ended.
    pub async fn next(&mut self) -> Option<TokenRefreshRequest> {
        std::future::poll_fn(|cx| self.poll(cx)).await
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Option<TokenRefreshRequest>> {
        loop {
            let mut news = match self.news.take() {
                Some(news) => news,
                None => Box::pin(self.shared.life.refreshes.news.listen()),
            };
            match self.shared.life.refreshes.next() {
                Next::Request(refresh) => {
                    return Poll::Ready(Some(TokenRefreshRequest {
                        shared: Arc::clone(&self.shared),
                        refresh,
                        is_settled: AtomicBool::new(false),
                    }));
                }
                Next::Ended => return Poll::Ready(None),
                Next::None => {}
            }
            if news.as_mut().poll(cx).is_pending() {
                self.news = Some(news);
                return Poll::Pending;
            }
        }
    }
}

impl Stream for TokenRefreshRequests {
    type Item = TokenRefreshRequest;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.get_mut().poll(cx)
    }
}

impl Drop for TokenRefreshRequests {
    fn drop(&mut self) {
        for refresh in self.shared.life.refreshes.end_stream() {
            self.shared.note(Note::FailRefresh(refresh));
        }
    }
}

/// A request of the server for tokens. Dropped without an answer it fails at once.
#[derive(Debug)]
#[must_use = "dropped without an answer it fails"]
pub struct TokenRefreshRequest {
    shared: Arc<Shared>,
    refresh: TokenRefresh,
    is_settled: AtomicBool,
}

impl TokenRefreshRequest {
    /// Why, in the server's word.
    #[must_use]
    pub fn reason(&self) -> &str {
        &self.refresh.reason
    }

    /// The account that the tokens must be of; any, where it is not told.
    #[must_use]
    pub fn previous_account(&self) -> Option<&str> {
        self.refresh.previous_account.as_deref()
    }

    /// Gives the tokens, or says why there are none.
    ///
    /// # Errors
    ///
    /// The tokens are of another account than asked, or malformed: then the request stays open, and
    /// may be answered again until its time is over. Or it is settled.
    pub async fn answer(&self, answer: TokenAnswer) -> Result<(), RequestError> {
        if let TokenAnswer::Tokens { access_token, .. } = &answer {
            // The core does not look at it, since a recording does not have it.
            let token = access_token.expose();
            if token.is_empty() || token.trim() != token {
                let reason = "the access token is empty or has white space at its ends".to_owned();
                return Err(RequestError::Command(CommandError::BadAnswer { reason }));
            }
        }
        let refresh = self.refresh.id;
        let command = Command::RefreshToken { refresh, answer };
        let answered = self.shared.reply(command).await.map(|_| ());
        let is_open = matches!(
            answered,
            Err(RequestError::Command(
                CommandError::OtherAccount { .. } | CommandError::BadAnswer { .. }
            ))
        );
        if !is_open {
            self.is_settled.store(true, Ordering::Relaxed);
        }
        answered
    }
}

impl Drop for TokenRefreshRequest {
    fn drop(&mut self) {
        if !*self.is_settled.get_mut() {
            self.shared.note(Note::FailRefresh(self.refresh.id));
        }
    }
}
