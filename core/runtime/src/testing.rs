//! Unit tests on both runtimes.

use std::{future::Future, sync::Arc};

use crate::runtime::Runtime;

#[path = "../../../runtime-async-std/src/runtime.rs"]
mod on_async_std;
#[path = "../../../runtime-tokio/src/runtime.rs"]
mod on_tokio;

pub(crate) type Rt = Arc<dyn Runtime>;

pub(crate) fn run_on_tokio<T>(test: impl FnOnce(Rt) -> T) -> T::Output
where
    T: Future,
{
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    let runtime = builder.worker_threads(2).enable_all().build();
    runtime.unwrap().block_on(test(Arc::new(on_tokio::Tokio)))
}

pub(crate) fn run_on_async_std<T>(test: impl FnOnce(Rt) -> T) -> T::Output
where
    T: Future,
{
    async_std::task::block_on(test(Arc::new(on_async_std::AsyncStd)))
}

/// Makes two tests of each function: one on tokio, one on async-std.
#[macro_export]
macro_rules! on_both {
    ($($test:ident),+ $(,)?) => {
        mod on_tokio {
            $(#[test]
            fn $test() {
                $crate::testing::run_on_tokio(super::$test)
            })+
        }

        mod on_async_std {
            $(#[test]
            fn $test() {
                $crate::testing::run_on_async_std(super::$test)
            })+
        }
    };
}
