//! What a server has: threads, models, files, the account, MCP servers; by the rules of lists and
//! reads.

use std::{collections::BTreeSet, sync::Arc};

use turnkeep_protocol::{
    ListError, Maybe, RateLimits, Request as _, models, policy,
    policy::PolicyFinding,
    requests as ask,
    types::{
        Account, CancelLoginAccountResponse, ExperimentalFeature, FsReadFileParams,
        GetAccountResponse, GetAccountTokenUsageResponse, ListMcpServerStatusParams,
        LoginAccountParams, LoginAccountResponse, McpServerStatus, Model, ModelListParams, Thread,
        ThreadForkParams, ThreadForkResponse, ThreadItemsListParams, ThreadListParams,
        ThreadLoadedListParams, ThreadRevertResponse, ThreadSearchParams, ThreadTurnsListParams,
        ThreadUnarchiveResponse,
    },
};

use super::{
    Shared,
    client::Client,
    typed::{Rows, TypedError, ask},
};

impl<R> Client<R> {
    /// The server's threads, those of no conversation too.
    #[must_use]
    pub fn threads(&self) -> Threads {
        Threads {
            shared: Arc::clone(self.shared()),
        }
    }

    /// The models that the server lists (`model/list`): hidden ones left out, by id. Those of custom
    /// providers are not listed.
    ///
    /// # Errors
    ///
    /// The list cannot be read, or says that several models are the default.
    pub async fn models(&self) -> Result<Vec<Model>, ModelsError> {
        let listed = self.list(ModelListParams::new()).all().await?;
        Ok(models::in_order(listed)?)
    }

    /// Reads a file as the server sees it (`fs/readFile`).
    ///
    /// # Errors
    ///
    /// The server refuses, or its answer is no base64.
    pub async fn read_file(&self, path: impl Into<String>) -> Result<Vec<u8>, TypedError> {
        let read = ask(self.shared(), &FsReadFileParams::new(path)).await?;
        data_encoding::BASE64
            .decode(read.data_base64.as_bytes())
            .map_err(|_| TypedError::Base64 {
                method: FsReadFileParams::METHOD,
            })
    }

    /// The account that the server acts for.
    #[must_use]
    pub fn account(&self) -> AccountHandle {
        AccountHandle {
            shared: Arc::clone(self.shared()),
        }
    }

    /// The MCP servers that are configured, for a thread or without one (`mcpServerStatus/list`).
    ///
    /// # Errors
    ///
    /// The list cannot be read.
    pub async fn mcp_servers(
        &self,
        thread: Option<&str>,
    ) -> Result<Vec<McpServerStatus>, TypedError> {
        let request = ListMcpServerStatusParams {
            thread_id: thread.map_or(Maybe::Absent, Maybe::from),
            ..ListMcpServerStatusParams::new()
        };
        self.list(request).all().await
    }

    /// The server's features (`experimentalFeature/list`).
    ///
    /// # Errors
    ///
    /// The list cannot be read.
    pub async fn features(&self) -> Result<Vec<ExperimentalFeature>, TypedError> {
        self.list(ask::ExperimentalFeatureList::new()).all().await
    }

    /// Checks that no MCP server is configured, and that the server begins no further agents
    /// (`multi_agent` and `multi_agent_v2` both listed and off). Without a thread before one is made,
    /// with it afterwards. On a plain installation both features are on.
    ///
    /// # Errors
    ///
    /// One of the lists cannot be read: then nothing is known.
    pub async fn check_policy(
        &self,
        thread: Option<&str>,
    ) -> Result<Vec<PolicyFinding>, TypedError> {
        let servers = self.mcp_servers(thread).await?;
        let features = self.features().await?;
        let mut findings = policy::no_mcp_servers(&servers, thread);
        findings.extend(policy::features_off(&features, &policy::MULTI_AGENT));
        Ok(findings)
    }
}

/// Why there is no list of models.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ModelsError {
    /// It cannot be read.
    #[error(transparent)]
    Request(#[from] TypedError),
    /// It breaks its rules.
    #[error(transparent)]
    Several(#[from] models::SeveralDefaults),
}

/// The server's threads, by their ids. A conversation's own thread is better changed through the
/// conversation, which knows what is open on it.
#[derive(Clone, Debug)]
pub struct Threads {
    shared: Arc<Shared>,
}

impl Threads {
    /// Lists threads (`thread/list`), those of every model provider unless the request says otherwise:
    /// without a filter the server would list those of its own provider alone.
    pub fn list(&self, mut filter: ThreadListParams) -> Rows<ThreadListParams> {
        if filter.model_providers.is_absent() {
            filter.model_providers = Maybe::Some(Vec::new());
        }
        Rows::new(Arc::clone(&self.shared), filter)
    }

    /// Lists threads, archived ones and others, each with whether it is archived.
    ///
    /// # Errors
    ///
    /// A list cannot be read, or a thread is listed as both.
    pub async fn list_all(
        &self,
        filter: ThreadListParams,
    ) -> Result<Vec<(Thread, bool)>, TypedError> {
        let mut seen = BTreeSet::new();
        let mut all = Vec::new();
        for archived in [false, true] {
            let mut filter = filter.clone();
            filter.archived = Maybe::Some(archived);
            for thread in self.list(filter).all().await? {
                if !seen.insert(thread.id.clone()) {
                    let thread = thread.id;
                    return Err(ListError::ArchivedAndNot { thread }.into());
                }
                all.push((thread, archived));
            }
        }
        Ok(all)
    }

    /// Lists the ids of the threads that the server holds in memory (`thread/loaded/list`).
    pub fn loaded(&self) -> Rows<ThreadLoadedListParams> {
        Rows::new(Arc::clone(&self.shared), ThreadLoadedListParams::new())
    }

    /// Searches threads (`thread/search`, experimental).
    pub fn search(&self, request: ThreadSearchParams) -> Rows<ThreadSearchParams> {
        Rows::new(Arc::clone(&self.shared), request)
    }

    /// Reads a thread, without its turns (`thread/read`).
    ///
    /// # Errors
    ///
    /// The server has no such thread, or answers for another one.
    pub async fn read(&self, thread: impl Into<String>) -> Result<Thread, TypedError> {
        let asked = thread.into();
        let read = ask(&self.shared, &ask::ThreadRead::new(asked.clone())).await?;
        same(ask::ThreadRead::METHOD, asked, &read.thread.id)?;
        Ok(read.thread)
    }

    /// The turns of a thread, the newest first, in short (`thread/turns/list`).
    pub fn turns(&self, thread: impl Into<String>) -> Rows<ThreadTurnsListParams> {
        Rows::new(Arc::clone(&self.shared), ThreadTurnsListParams::new(thread))
    }

    /// The items of a thread (`thread/items/list`).
    pub fn items(&self, thread: impl Into<String>) -> Rows<ThreadItemsListParams> {
        Rows::new(Arc::clone(&self.shared), ThreadItemsListParams::new(thread))
    }

    /// Names a thread (`thread/name/set`), which stores it where it was not stored yet.
    ///
    /// # Errors
    ///
    /// The server refuses.
    pub async fn set_name(
        &self,
        thread: impl Into<String>,
        name: impl Into<String>,
    ) -> Result<(), TypedError> {
        let request = ask::ThreadNameSet::new(name, thread);
        ask(&self.shared, &request).await.map(|_| ())
    }

    /// Puts a thread away (`thread/archive`).
    ///
    /// # Errors
    ///
    /// The server refuses.
    pub async fn archive(&self, thread: impl Into<String>) -> Result<(), TypedError> {
        ask(&self.shared, &ask::ThreadArchive::new(thread))
            .await
            .map(|_| ())
    }

    /// Takes a thread back (`thread/unarchive`).
    ///
    /// # Errors
    ///
    /// The server refuses, or answers for another thread.
    pub async fn unarchive(
        &self,
        thread: impl Into<String>,
    ) -> Result<ThreadUnarchiveResponse, TypedError> {
        let asked = thread.into();
        let answer = ask(&self.shared, &ask::ThreadUnarchive::new(asked.clone())).await?;
        same(ask::ThreadUnarchive::METHOD, asked, &answer.thread.id)?;
        Ok(answer)
    }

    /// Deletes a thread (`thread/delete`).
    ///
    /// # Errors
    ///
    /// The server refuses.
    pub async fn delete(&self, thread: impl Into<String>) -> Result<(), TypedError> {
        ask(&self.shared, &ask::ThreadDelete::new(thread))
            .await
            .map(|_| ())
    }

    /// Makes a thread that begins as another one (`thread/fork`), its turns left out of the answer.
    ///
    /// # Errors
    ///
    /// The server refuses.
    pub async fn fork(
        &self,
        mut request: ThreadForkParams,
    ) -> Result<ThreadForkResponse, TypedError> {
        // All turns at once are deprecated; they can be listed.
        request.exclude_turns = Some(request.exclude_turns.unwrap_or(true));
        ask(&self.shared, &request).await
    }

    /// Takes back a thread to before one of its turns (`thread/revert`).
    ///
    /// # Errors
    ///
    /// The server refuses.
    pub async fn revert(
        &self,
        thread: impl Into<String>,
        before_turn: impl Into<String>,
    ) -> Result<ThreadRevertResponse, TypedError> {
        ask(&self.shared, &ask::ThreadRevert::new(before_turn, thread)).await
    }

    /// Begins to compact a thread (`thread/compact/start`). The answer is not the end of it: that is
    /// the end of a turn of the server's own.
    ///
    /// # Errors
    ///
    /// The server refuses.
    pub async fn begin_compaction(&self, thread: impl Into<String>) -> Result<(), TypedError> {
        ask(&self.shared, &ask::ThreadCompactStart::new(thread))
            .await
            .map(|_| ())
    }
}

fn same(method: &'static str, asked: String, told: &str) -> Result<(), TypedError> {
    if asked == told {
        return Ok(());
    }
    let told = told.to_owned();
    Err(TypedError::OtherAnswer {
        method,
        asked,
        told,
    })
}

/// The account that a server acts for.
#[derive(Clone, Debug)]
pub struct AccountHandle {
    shared: Arc<Shared>,
}

impl AccountHandle {
    /// Who is logged in, and whether anybody need be (`account/read`).
    ///
    /// # Errors
    ///
    /// The server refuses.
    pub async fn read(&self) -> Result<GetAccountResponse, TypedError> {
        ask(&self.shared, &ask::AccountRead::new()).await
    }

    /// Who is logged in.
    ///
    /// # Errors
    ///
    /// The server refuses.
    pub async fn logged_in(&self) -> Result<Option<Account>, TypedError> {
        Ok(self.read().await?.account.into_option())
    }

    /// Begins a login (`account/login/start`). A flow with a person in it ends with the notification
    /// `account/login/completed`, which names the login's id.
    ///
    /// # Errors
    ///
    /// The server refuses.
    pub async fn login(&self, how: LoginAccountParams) -> Result<LoginAccountResponse, TypedError> {
        ask(&self.shared, &how).await
    }

    /// Gives a login up (`account/login/cancel`).
    ///
    /// # Errors
    ///
    /// The server refuses.
    pub async fn cancel_login(
        &self,
        login: impl Into<String>,
    ) -> Result<CancelLoginAccountResponse, TypedError> {
        ask(&self.shared, &ask::AccountLoginCancel::new(login)).await
    }

    /// Logs out (`account/logout`).
    ///
    /// # Errors
    ///
    /// The server refuses.
    pub async fn logout(&self) -> Result<(), TypedError> {
        ask(&self.shared, &ask::AccountLogout).await.map(|_| ())
    }

    /// The rate limits as they are now (`account/rateLimits/read`). What is told later of them is
    /// sparse: give it to [`RateLimits::update`].
    ///
    /// # Errors
    ///
    /// The server refuses, as it does where nobody is logged in.
    pub async fn rate_limits(&self) -> Result<RateLimits, TypedError> {
        let read = ask(&self.shared, &ask::AccountRateLimitsRead::new()).await?;
        let mut limits = RateLimits::new();
        limits.read(&read);
        Ok(limits)
    }

    /// What the account used (`account/usage/read`).
    ///
    /// # Errors
    ///
    /// The server refuses, as it does where nobody is logged in.
    pub async fn usage(&self) -> Result<GetAccountTokenUsageResponse, TypedError> {
        ask(&self.shared, &ask::AccountUsageRead::new()).await
    }
}
