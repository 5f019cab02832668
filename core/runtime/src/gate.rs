//! What a task need not look at unless it was woken for it.

use std::{
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll, Wake, Waker},
};

/// Stands before things that a task waits for beside others, which wake it far more often. It is shut
/// once nothing behind it was ready, until one of them wakes the task.
#[derive(Debug)]
pub(crate) struct Gate {
    shared: Arc<Shared>,
    /// The waker of what is behind.
    waker: Waker,
    /// The task, as those behind know it.
    task: Waker,
    is_open: bool,
}

#[derive(Debug)]
struct Shared {
    was_woken: AtomicBool,
    task: Mutex<Waker>,
}

impl Shared {
    fn task(&self) -> MutexGuard<'_, Waker> {
        self.task.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Wake for Shared {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        // A swap, for a store would hide what was made ready before an earlier wake.
        self.was_woken.swap(true, Ordering::AcqRel);
        // Woken with the lock held, a task that runs at once would run into it.
        let task = self.task().clone();
        task.wake();
    }
}

impl Gate {
    /// One that is open.
    pub(crate) fn new() -> Self {
        let task = Waker::noop().clone();
        let shared = Arc::new(Shared {
            was_woken: AtomicBool::new(false),
            task: Mutex::new(task.clone()),
        });
        let waker = Waker::from(Arc::clone(&shared));
        Self {
            shared,
            waker,
            task,
            is_open: true,
        }
    }

    /// Opens it: something was put behind it that nobody has looked at.
    pub(crate) const fn open(&mut self) {
        self.is_open = true;
    }

    /// Looks behind it, if it is open.
    pub(crate) fn poll<T>(
        &mut self,
        cx: &mut Context<'_>,
        look: impl FnOnce(&mut Context<'_>) -> Poll<T>,
    ) -> Poll<T> {
        if !self.task.will_wake(cx.waker()) {
            self.task.clone_from(cx.waker());
            let before = std::mem::replace(&mut *self.shared.task(), cx.waker().clone());
            // Dropped with the lock held, the last of a task might wake this one.
            drop(before);
        }
        // Looked at after the task is known: a wake from here on wakes it.
        if self.shared.was_woken.load(Ordering::Acquire) {
            // A swap, for a store alone would not let us see what was made ready before the wakes.
            self.shared.was_woken.swap(false, Ordering::AcqRel);
            self.is_open = true;
        }
        if !self.is_open {
            return Poll::Pending;
        }
        let seen = look(&mut Context::from_waker(&self.waker));
        // Where something was ready there may be more.
        self.is_open = seen.is_ready();
        seen
    }
}

#[cfg(test)]
mod tests {
    use std::{sync::atomic::AtomicUsize, thread};

    use futures_lite::future::{block_on, poll_fn};

    use super::*;

    /// A task that counts how often it was woken.
    #[derive(Debug, Default)]
    struct Task(AtomicUsize);

    impl Wake for Task {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }

    impl Task {
        fn woken(&self) -> usize {
            self.0.load(Ordering::SeqCst)
        }
    }

    /// Something behind a gate, which tells how often it was looked at.
    #[derive(Debug, Default)]
    struct Source {
        ready: bool,
        looks: usize,
        waker: Option<Waker>,
    }

    impl Source {
        fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
            self.looks += 1;
            self.waker = Some(cx.waker().clone());
            if std::mem::take(&mut self.ready) {
                Poll::Ready(())
            } else {
                Poll::Pending
            }
        }

        fn wake(&self) {
            self.waker.as_ref().unwrap().wake_by_ref();
        }
    }

    #[test]
    fn a_source_is_looked_at_only_when_it_woke_the_task_or_was_ready() {
        let task = Arc::new(Task::default());
        let waker = Waker::from(Arc::clone(&task));
        let mut cx = Context::from_waker(&waker);
        let mut gate = Gate::new();
        let mut source = Source {
            ready: true,
            ..Source::default()
        };
        assert!(gate.poll(&mut cx, |cx| source.poll(cx)).is_ready());
        for _ in 0..3 {
            assert!(gate.poll(&mut cx, |cx| source.poll(cx)).is_pending());
        }
        assert_eq!((source.looks, task.woken()), (2, 0));

        source.ready = true;
        source.wake();
        assert_eq!(task.woken(), 1);
        assert!(gate.poll(&mut cx, |cx| source.poll(cx)).is_ready());
        assert!(gate.poll(&mut cx, |cx| source.poll(cx)).is_pending());
        // A wake for nothing is one look.
        source.wake();
        for _ in 0..3 {
            assert!(gate.poll(&mut cx, |cx| source.poll(cx)).is_pending());
        }
        assert_eq!((source.looks, task.woken()), (5, 2));

        source = Source {
            ready: true,
            ..Source::default()
        };
        assert!(gate.poll(&mut cx, |cx| source.poll(cx)).is_pending());
        gate.open();
        assert!(gate.poll(&mut cx, |cx| source.poll(cx)).is_ready());
    }

    #[test]
    fn the_task_that_looked_last_is_woken_even_where_the_gate_was_shut() {
        let tasks = [Arc::new(Task::default()), Arc::new(Task::default())];
        let wakers = tasks.each_ref().map(|task| Waker::from(Arc::clone(task)));
        let (mut gate, mut source) = (Gate::new(), Source::default());
        for waker in &wakers {
            let mut cx = Context::from_waker(waker);
            assert!(gate.poll(&mut cx, |cx| source.poll(cx)).is_pending());
        }
        source.wake();
        assert_eq!((source.looks, tasks.map(|t| t.woken())), (1, [0, 1]));
    }

    #[test]
    fn no_wake_of_another_thread_is_lost() {
        // Where one is lost this waits for ever.
        const ALL: usize = 20_000;
        let (send, receive) = async_channel::bounded(1);
        let sender = thread::spawn(move || {
            for n in 0..ALL {
                send.send_blocking(n).unwrap();
            }
        });
        let mut receive = Box::pin(receive);
        let mut gate = Gate::new();
        for n in 0..ALL {
            let got = block_on(poll_fn(|cx| {
                gate.poll(cx, |cx| {
                    futures_core::Stream::poll_next(receive.as_mut(), cx)
                })
            }));
            assert_eq!(got, Some(n));
        }
        sender.join().unwrap();
    }
}
