//! Requests with types, and lists.

use std::{
    fmt,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use futures_core::Stream;
use turnkeep_core::{
    Command, RawJson, Reply, SecretJson, command::RequestEffect, event::Unrecognized,
};
use turnkeep_protocol::{
    Effect, ListError, Listing, Paged, ReadError, Request, ServerNotification, ServerRequest, Wire,
    types::ThreadItem,
};

use super::{Shared, client::Client};
use crate::{error::RequestError, runtime::BoxFuture};

/// Why a typed request has no typed answer.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TypedError {
    /// The request was refused, or its fate is unknown.
    #[error(transparent)]
    Request(#[from] RequestError),
    /// The server answered in a shape that this version does not know. What was asked is done.
    #[error("the answer to {method} has another shape: {source}")]
    Shape {
        /// The method.
        method: &'static str,
        /// The answer, as it came.
        result: RawJson,
        /// What is wrong with it.
        source: ReadError,
    },
    /// The answer is about something else than was asked.
    #[error("{method} was asked about {asked} and answered about {told}")]
    OtherAnswer {
        /// The method.
        method: &'static str,
        /// The id that was asked.
        asked: String,
        /// The id of the answer.
        told: String,
    },
    /// What is said to be base64 is not.
    #[error("the answer to {method} is no base64")]
    Base64 {
        /// The method.
        method: &'static str,
    },
    /// A list breaks its own rules.
    #[error(transparent)]
    List(#[from] ListError),
}

impl<R> Client<R> {
    /// Sends a request of the protocol; await it for its typed answer.
    ///
    /// A request that changes the server is recorded before it is sent, as any other; one that reads
    /// is not. The answer's types keep what they do not know.
    ///
    /// ```no_run
    /// # async fn example<R>(client: turnkeep_runtime::Client<R>) -> Result<(), Box<dyn std::error::Error>> {
    /// use turnkeep_runtime::protocol::requests::ThreadRead;
    ///
    /// let answer = client.request(ThreadRead::new("0199-…")).await?;
    /// println!("{}", answer.thread.preview);
    /// # Ok(())
    /// # }
    /// ```
    pub fn request<Q: Request>(&self, request: Q) -> TypedRequest<Q> {
        TypedRequest {
            shared: Arc::clone(self.shared()),
            request,
        }
    }

    /// Reads a list, page by page, as it is asked for: 100 rows a page unless the request says
    /// otherwise, at most 1,024 pages, no row and no cursor twice.
    pub fn list<Q: Paged>(&self, request: Q) -> Rows<Q> {
        Rows::new(Arc::clone(self.shared()), request)
    }
}

/// A request about to be sent. Await it.
#[must_use = "nothing happens before it is awaited"]
pub struct TypedRequest<Q> {
    shared: Arc<Shared>,
    request: Q,
}

impl<Q: Request> fmt::Debug for TypedRequest<Q> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Parameters may be secret.
        f.debug_struct("TypedRequest")
            .field("method", &Q::METHOD)
            .finish_non_exhaustive()
    }
}

impl<Q: Request + Send + 'static> IntoFuture for TypedRequest<Q>
where
    Q::Response: Send,
{
    type Output = Result<Q::Response, TypedError>;
    type IntoFuture = BoxFuture<Self::Output>;

    fn into_future(self) -> Self::IntoFuture {
        let command = command(&self.request);
        Box::pin(send::<Q>(self.shared, command))
    }
}

fn params<Q: Request>(request: &Q) -> RawJson {
    let text = request.params().map(|params| params.to_string());
    // What serde_json writes it reads.
    RawJson::parse(text.as_deref().unwrap_or("null")).expect("written JSON can be read")
}

pub(super) async fn ask<Q: Request>(
    shared: &Arc<Shared>,
    request: &Q,
) -> Result<Q::Response, TypedError> {
    send::<Q>(Arc::clone(shared), command(request)).await
}

fn command<Q: Request>(request: &Q) -> Command {
    let method = Q::METHOD.to_owned();
    let params = params(request);
    let effect = match Q::EFFECT {
        Effect::Changes => RequestEffect::Changes,
        Effect::Reads => RequestEffect::Reads,
    };
    // Keys and tokens stand in no journal, recording or log.
    match request.is_secret() {
        true => Command::SecretRequest {
            method,
            params: SecretJson::new(params),
            effect,
        },
        false => Command::Request {
            method,
            params,
            effect,
        },
    }
}

async fn send<Q: Request>(
    shared: Arc<Shared>,
    command: Command,
) -> Result<Q::Response, TypedError> {
    let result = match shared.reply(command).await? {
        Reply::Response(result) => result,
        // The machine answers a request with a response.
        _ => return Err(RequestError::Stopped.into()),
    };
    turnkeep_protocol::read(result.get()).map_err(|source| TypedError::Shape {
        method: Q::METHOD,
        result,
        source,
    })
}

type PageAnswer<Q> = BoxFuture<Result<<Q as Request>::Response, TypedError>>;

/// The rows of a list, in order: a stream that asks for a page when the last one is used up. An error
/// is the last thing in it.
#[must_use = "nothing is asked before it is polled"]
pub struct Rows<Q: Paged> {
    shared: Arc<Shared>,
    listing: Listing<Q>,
    rows: std::vec::IntoIter<Q::Row>,
    asked: Option<PageAnswer<Q>>,
    is_over: bool,
}

impl<Q: Paged> Rows<Q> {
    pub(super) fn new(shared: Arc<Shared>, request: Q) -> Self {
        Self {
            shared,
            listing: Listing::new(request),
            rows: Vec::new().into_iter(),
            asked: None,
            is_over: false,
        }
    }
}

impl<Q: Paged> fmt::Debug for Rows<Q> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Rows")
            .field("method", &Q::METHOD)
            .field("is_over", &self.is_over)
            .finish_non_exhaustive()
    }
}

// Nothing in it is pinned: the futures are boxed.
impl<Q: Paged> Unpin for Rows<Q> {}

impl<Q: Paged + Send + 'static> Rows<Q>
where
    Q::Response: Send,
{
    /// The next row; `None` at the end of the list.
    ///
    /// # Errors
    ///
    /// A page was refused, cannot be read, or breaks the rules of a list: then nothing follows.
    pub async fn next(&mut self) -> Option<Result<Q::Row, TypedError>> {
        std::future::poll_fn(|cx| self.poll(cx)).await
    }

    /// All rows that are left.
    ///
    /// # Errors
    ///
    /// As [`next`](Self::next); then there are no rows.
    pub async fn all(mut self) -> Result<Vec<Q::Row>, TypedError> {
        let mut rows = Vec::new();
        while let Some(row) = self.next().await {
            rows.push(row?);
        }
        Ok(rows)
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Q::Row, TypedError>>> {
        loop {
            if let Some(row) = self.rows.next() {
                return Poll::Ready(Some(Ok(row)));
            }
            if self.is_over {
                return Poll::Ready(None);
            }
            let Some(asked) = &mut self.asked else {
                match self.listing.request() {
                    Some(request) => {
                        let command = command(request);
                        let shared = Arc::clone(&self.shared);
                        self.asked = Some(Box::pin(send::<Q>(shared, command)));
                    }
                    None => self.is_over = true,
                }
                continue;
            };
            let answer = match asked.as_mut().poll(cx) {
                Poll::Ready(answer) => answer,
                Poll::Pending => return Poll::Pending,
            };
            self.asked = None;
            let page = answer.and_then(|page| Ok(self.listing.take(page)?));
            match page {
                Ok(rows) => self.rows = rows.into_iter(),
                Err(error) => {
                    self.is_over = true;
                    return Poll::Ready(Some(Err(error)));
                }
            }
        }
    }
}

impl<Q: Paged + Send + 'static> Stream for Rows<Q>
where
    Q::Response: Send,
{
    type Item = Result<Q::Row, TypedError>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.poll(cx)
    }
}

/// A frame of the server as the protocol's types have it.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum TypedFrame {
    /// It tells something.
    Notification(Box<ServerNotification>),
    /// It asks something; it was refused.
    Request(Box<ServerRequest>),
}

/// What events carry as it came, in the types of the protocol.
pub trait Typed {
    /// The type.
    type As;

    /// Reads it. Nothing is lost: what cannot be read is kept in the type's `Unknown` or `Malformed`.
    fn typed(&self) -> Self::As;
}

impl Typed for Unrecognized {
    type As = TypedFrame;

    fn typed(&self) -> TypedFrame {
        let params = self.params.as_ref().map(value);
        let (method, params) = (&self.method, params.as_ref());
        match self.request {
            true => TypedFrame::Request(ServerRequest::decode(method, params).into()),
            false => TypedFrame::Notification(ServerNotification::decode(method, params).into()),
        }
    }
}

impl Typed for turnkeep_core::event::Item {
    type As = ThreadItem;

    fn typed(&self) -> ThreadItem {
        // An enum can always be read: it keeps what it does not have.
        ThreadItem::decode(&value(&self.raw))
            .unwrap_or_else(|_| unreachable!("enums keep anything"))
    }
}

fn value(raw: &RawJson) -> serde_json::Value {
    // Raw JSON is JSON. A number that no type holds is told as the text that it is.
    turnkeep_protocol::parse(raw.get())
        .unwrap_or_else(|_| serde_json::Value::String(raw.get().to_owned()))
}
