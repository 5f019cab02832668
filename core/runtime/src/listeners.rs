//! Those who listen to everything of a conversation, or of the connection: a queue for each.

use std::{
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    task::Waker,
};

use turnkeep_core::Event;

use crate::queue::{Queue, Reader};

/// How many events of the connection wait for a consumer before those that can be spared are not
/// kept any more.
const CONNECTION_EVENTS: usize = 4_096;

/// Those who listen to everything of one kind.
#[derive(Debug)]
pub(crate) struct Listeners {
    /// Read without the lock on the hot path.
    count: AtomicUsize,
    queues: Mutex<Option<Vec<Arc<Queue<Event>>>>>,
    /// How many bytes wait in all of their queues, and in whatever else shares it.
    pub(crate) weight: Arc<AtomicUsize>,
    limit: usize,
    bytes: usize,
}

impl Listeners {
    pub(crate) fn new(limit: usize, bytes: usize) -> Self {
        Self {
            count: AtomicUsize::new(0),
            queues: Mutex::new(Some(Vec::new())),
            weight: Arc::default(),
            limit,
            bytes,
        }
    }

    pub(crate) fn of_connection() -> Self {
        Self::new(CONNECTION_EVENTS, usize::MAX)
    }

    fn lock(&self) -> MutexGuard<'_, Option<Vec<Arc<Queue<Event>>>>> {
        self.queues.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn add(&self) -> Arc<Queue<Event>> {
        let weight = Arc::clone(&self.weight);
        let queue = Arc::new(Queue::new(Reader::Held, weight).at_most(self.limit, self.bytes));
        match &mut *self.lock() {
            Some(queues) => {
                queues.push(Arc::clone(&queue));
                self.count.store(queues.len(), Ordering::Release);
            }
            None => queue.close(),
        }
        queue
    }

    /// Lets go of one that nobody reads any more: it may be long before the next event.
    pub(crate) fn remove(&self, queue: &Arc<Queue<Event>>) {
        queue.abandon();
        if let Some(queues) = &mut *self.lock() {
            queues.retain(|other| !Arc::ptr_eq(other, queue));
            self.count.store(queues.len(), Ordering::Release);
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.count.load(Ordering::Acquire) == 0
    }

    /// Puts an event in for each. They are not woken yet.
    pub(crate) fn push(&self, event: Event, window: u64, wakers: &mut Vec<Waker>) {
        if let Some([queues @ .., last]) = self.lock().as_deref() {
            for queue in queues {
                wakers.extend(queue.push(event.clone(), window));
            }
            wakers.extend(last.push(event, window));
        }
    }

    pub(crate) fn close(&self) {
        if let Some(queues) = self.lock().take() {
            queues.iter().for_each(|queue| queue.close());
        }
    }
}
