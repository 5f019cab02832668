//! Tests that run on both runtimes: functions that are generic over the runtime, and
//! [`on_both`](crate::on_both), which makes two tests of each.

use std::{future::Future, time::Duration};

use futures_channel::oneshot;
pub use turnkeep_async_std::AsyncStd;
use turnkeep_runtime::Runtime;
pub use turnkeep_tokio::Tokio;

/// How long anything may take that takes a moment.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// Runs a test on tokio, with two threads.
pub fn on_tokio<T>(test: impl Future<Output = T>) -> T {
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    let runtime = builder.worker_threads(2).enable_all().build();
    runtime.expect("a runtime can be had").block_on(test)
}

/// Runs a test on async-std.
pub fn on_async_std<T>(test: impl Future<Output = T>) -> T {
    async_std::task::block_on(test)
}

/// Makes two tests of each function that is generic over its runtime.
#[macro_export]
macro_rules! on_both {
    ($($test:ident),+ $(,)?) => {
        mod on_tokio {
            $(#[test]
            fn $test() {
                $crate::both::on_tokio(super::$test::<$crate::both::Tokio>());
            })+
        }

        mod on_async_std {
            $(#[test]
            fn $test() {
                $crate::both::on_async_std(super::$test::<$crate::both::AsyncStd>());
            })+
        }
    };
}

/// Waits, but not for ever.
///
/// # Panics
///
/// If it takes too long.
pub async fn soon<R: Runtime + Default, T>(what: impl IntoFuture<Output = T>) -> T {
    let limit = async {
        R::default().sleep(PATIENCE).await;
        None
    };
    let what = what.into_future();
    let done = futures_lite::future::or(async { Some(what.await) }, limit).await;
    done.expect("it takes too long")
}

/// Runs something in a task of its own and gives the wait for it.
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
