//! One test, two runtimes.

use std::{future::Future, pin::pin, time::Duration};

use futures_channel::oneshot;
use turnkeep_async_std::AsyncStd;
use turnkeep_runtime::Runtime;
use turnkeep_tokio::Tokio;

/// The longest a whole test may take.
const TEST_LIMIT: Duration = Duration::from_secs(300);

/// How long anything may take that must come. A busy machine is slow.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// Runs a test on tokio.
///
/// # Panics
///
/// If the test does, or takes minutes.
pub fn run_on_tokio(test: impl Future<Output = ()>) {
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    let runtime = builder.worker_threads(2).enable_all().build();
    let runtime = runtime.expect("a runtime can be made");
    runtime.block_on(limited::<Tokio>(test));
}

/// Runs a test on async-std.
///
/// # Panics
///
/// If the test does, or takes minutes.
pub fn run_on_async_std(test: impl Future<Output = ()>) {
    futures_lite::future::block_on(limited::<AsyncStd>(test));
}

async fn limited<R: Runtime + Default>(test: impl Future<Output = ()>) {
    let limit = async {
        R::default().sleep(TEST_LIMIT).await;
        panic!("the test took more than {TEST_LIMIT:?}");
    };
    futures_lite::future::or(test, limit).await;
}

/// Waits for what must come.
///
/// # Panics
///
/// If it does not come within [`PATIENCE`].
pub async fn within<R: Runtime + Default, T>(what: &str, future: impl IntoFuture<Output = T>) -> T {
    let limit = async {
        R::default().sleep(PATIENCE).await;
        panic!("no {what} within {PATIENCE:?}");
    };
    futures_lite::future::or(pin!(future.into_future()), limit).await
}

/// Makes two tests of each function, which is generic over its runtime: one on tokio, one on
/// async-std.
#[macro_export]
macro_rules! on_both {
    ($($test:ident),+ $(,)?) => {
        mod on_tokio {
            $(#[test]
            fn $test() {
                $crate::both::run_on_tokio(super::$test::<turnkeep_tokio::Tokio>());
            })+
        }

        mod on_async_std {
            $(#[test]
            fn $test() {
                $crate::both::run_on_async_std(super::$test::<turnkeep_async_std::AsyncStd>());
            })+
        }
    };
}

/// Waits for what must come, whatever it is.
///
/// # Panics
///
/// If it does not come within [`PATIENCE`].
pub async fn soon<R: Runtime + Default, T>(what: impl IntoFuture<Output = T>) -> T {
    within::<R, T>("end", what).await
}

/// Runs something in a task of its own and gives the wait for it.
///
/// # Panics
///
/// The wait does, if the task does.
pub fn spawn<R: Runtime + Default, T: Send + 'static>(
    task: impl Future<Output = T> + Send + 'static,
) -> impl Future<Output = T> + Send + 'static {
    let (done, result) = oneshot::channel();
    R::default().spawn(Box::pin(async move {
        // Nobody may wait any more.
        let _ = done.send(task.await);
    }));
    async { result.await.expect("the task does not panic") }
}
