//! What waits for one consumer. Putting something in never waits. While the consumer lags, small
//! pieces of text grow together in the queue, larger ones where they are read, and it is told so.

use std::{
    collections::VecDeque,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    task::{Context, Poll, Waker},
};

/// Something that can wait in a queue.
pub(crate) trait Waiting: Clone {
    /// About how many bytes it holds.
    fn weight(&self) -> usize;

    /// Takes `next` in where both are pieces of the same text and no longer than `most` together, else
    /// gives it back.
    fn absorb(&mut self, next: Self, most: usize) -> Option<Self>;

    /// What tells the reader, before it reads `next`, that it lags: so many pieces were merged, and
    /// so many things dropped, since it was told last.
    fn lagged(next: &Self, merged: u64, dropped: u64) -> Option<Self>;

    /// Whether it may be dropped where too many bytes wait.
    fn can_be_spared(&self) -> bool;

    /// Whether it is kept while nobody holds the queue's other end.
    fn outlives_its_reader(&self) -> bool;

    /// Whether it stays open after it was read, until something settles it.
    fn stays_open(&self) -> bool;

    /// Whether it settles something that came earlier.
    fn settles(&self, earlier: &Self) -> bool;
}

/// The queue of one consumer.
#[derive(Debug)]
pub(crate) struct Queue<T> {
    state: Mutex<State<T>>,
    /// What all queues of a conversation hold.
    weight: Arc<AtomicUsize>,
    /// How many things may wait before those are dropped that need no reader.
    limit: usize,
    /// How many bytes may wait before those are dropped that can be spared.
    bytes: usize,
    /// Whether another reader may follow, who must be told again what is open.
    changes_hands: bool,
}

#[derive(Debug)]
struct State<T> {
    waiting: VecDeque<T>,
    /// What was read and is still open: the next reader must be told it too.
    open: Vec<T>,
    waker: Option<Waker>,
    reader: Reader,
    /// Nothing more comes.
    closed: bool,
    /// When the first of what waits was put in, or one that was read since.
    window: u64,
    /// When something was put in last.
    last: u64,
    merged: u64,
    dropped: u64,
    untold: Lag,
}

/// How far behind a reader is.
#[derive(Clone, Copy, Debug, Default)]
struct Lag {
    /// Pieces that were merged into what waited before.
    merged: u64,
    dropped: u64,
}

/// A reader that lags is told so once so many pieces have grown together: some do with every reader
/// that is busy for a moment.
const WORTH_TELLING: u64 = 64;

/// Up to how many bytes pieces of text grow together while they wait. Longer ones are shared with
/// whoever has them too, and would be copied.
const SMALL: usize = 1 << 10;

/// The same where they are read.
const PIECE: usize = 64 << 10;

/// Who reads a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reader {
    /// A handle.
    Held,
    /// Nobody yet: what needs no reader is dropped.
    Parked,
    /// Nobody any more: all is dropped.
    Gone,
}

impl<T: Waiting> Queue<T> {
    pub(crate) fn new(reader: Reader, weight: Arc<AtomicUsize>) -> Self {
        Self {
            state: Mutex::new(State {
                waiting: VecDeque::new(),
                open: Vec::new(),
                waker: None,
                reader,
                closed: false,
                window: 0,
                last: 0,
                merged: 0,
                dropped: 0,
                untold: Lag::default(),
            }),
            weight,
            limit: usize::MAX,
            bytes: usize::MAX,
            changes_hands: true,
        }
    }

    /// The queue of a listener: nobody takes it over.
    pub(crate) fn at_most(self, limit: usize, bytes: usize) -> Self {
        Self {
            limit,
            bytes,
            changes_hands: false,
            ..self
        }
    }

    fn lock(&self) -> MutexGuard<'_, State<T>> {
        // The state is whole between any two statements under the lock.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Puts something in and tells whom to wake for it, if the reader waits. Before the window ends,
    /// whose number is given, the reader is not expected to have read.
    pub(crate) fn push(&self, next: T, window: u64) -> Option<Waker> {
        let mut state = self.lock();
        self.put(&mut state, next, window);
        state.waker.take()
    }

    /// The same for a batch, of which the reader finds all or nothing. It is empty afterwards.
    pub(crate) fn push_all(&self, batch: &mut Vec<T>, window: u64) -> Option<Waker> {
        let mut state = self.lock();
        for next in batch.drain(..) {
            self.put(&mut state, next, window);
        }
        state.waker.take()
    }

    fn put(&self, state: &mut State<T>, next: T, window: u64) {
        state.open.retain(|earlier| !next.settles(earlier));
        match state.reader {
            Reader::Gone => return,
            Reader::Parked => {
                state.waiting.retain(|earlier| {
                    let settled = next.settles(earlier);
                    if settled {
                        self.weight.fetch_sub(earlier.weight(), Ordering::Relaxed);
                    }
                    !settled
                });
                if !next.outlives_its_reader() {
                    return;
                }
            }
            Reader::Held if self.has_room(state, &next) => {}
            Reader::Held => {
                state.dropped += 1;
                state.untold.dropped += 1;
                return;
            }
        }
        state.last = window;
        let weight = next.weight();
        let (left, grown) = match state.waiting.back_mut() {
            Some(last) => {
                let before = last.weight();
                let left = last.absorb(next, SMALL);
                (left, last.weight() - before)
            }
            None => {
                state.window = window;
                (Some(next), 0)
            }
        };
        let added = if left.is_some() { weight } else { grown };
        self.weight.fetch_add(added, Ordering::Relaxed);
        if left.is_none() {
            state.has_merged();
        }
        state.waiting.extend(left);
    }

    fn has_room(&self, state: &State<T>, next: &T) -> bool {
        if state.waiting.len() >= self.limit {
            return next.outlives_its_reader();
        }
        !next.can_be_spared() || self.weight.load(Ordering::Relaxed) <= self.bytes
    }

    /// The next thing, `None` when nothing more comes.
    pub(crate) fn poll_next(&self, cx: &mut Context<'_>) -> Poll<Option<T>> {
        let mut state = self.lock();
        if let Some(lagged) = state.lagged() {
            return Poll::Ready(Some(lagged));
        }
        if let Some(mut next) = state.waiting.pop_front() {
            let mut weight = next.weight();
            // A reader that keeps up gets them as they are: growing copies them.
            while let Some(more) = state.lags().then(|| state.waiting.pop_front()).flatten() {
                let weighs = more.weight();
                if let Some(more) = next.absorb(more, PIECE) {
                    state.waiting.push_front(more);
                    break;
                }
                weight += weighs;
                state.has_merged();
            }
            self.weight.fetch_sub(weight, Ordering::Relaxed);
            if self.changes_hands && next.stays_open() && !state.settles(&next) {
                state.open.push(next.clone());
            }
            return Poll::Ready(Some(next));
        }
        if state.closed {
            return Poll::Ready(None);
        }
        match &mut state.waker {
            Some(waker) => waker.clone_from(cx.waker()),
            none => *none = Some(cx.waker().clone()),
        }
        Poll::Pending
    }

    /// Forgets what was read and is answered now: no next reader is told it again.
    pub(crate) fn answered(&self, is_it: impl Fn(&T) -> bool) {
        self.lock().open.retain(|open| !is_it(open));
    }

    /// Puts back what was just taken.
    pub(crate) fn unread(&self, first: T) {
        self.weight.fetch_add(first.weight(), Ordering::Relaxed);
        let mut state = self.lock();
        if self.changes_hands && first.stays_open() && !state.settles(&first) {
            state.open.pop();
        }
        state.waiting.push_front(first);
    }

    /// Whether something that waits settles what was just taken.
    pub(crate) fn settles(&self, taken: &T) -> bool {
        self.lock().settles(taken)
    }

    /// Says that nothing more comes. What waits can still be read.
    pub(crate) fn close(&self) {
        let mut state = self.lock();
        state.closed = true;
        wake(state);
    }

    /// Takes the reader's end; `false` if somebody else has it.
    pub(crate) fn hold(&self) -> bool {
        let mut state = self.lock();
        let free = state.reader == Reader::Parked;
        if free {
            state.reader = Reader::Held;
        }
        free
    }

    /// Leaves the reader's end to whoever takes it next.
    pub(crate) fn park(&self) {
        let mut state = self.lock();
        state.reader = Reader::Parked;
        state.waker = None;
        state.waiting.retain(|waiting| {
            let kept = waiting.outlives_its_reader();
            if !kept {
                self.weight.fetch_sub(waiting.weight(), Ordering::Relaxed);
            }
            kept
        });
        while let Some(open) = state.open.pop() {
            self.weight.fetch_add(open.weight(), Ordering::Relaxed);
            state.waiting.push_front(open);
        }
    }

    /// Gives the reader's end up for ever.
    pub(crate) fn abandon(&self) {
        let mut state = self.lock();
        state.reader = Reader::Gone;
        state.waker = None;
        let held: usize = state.waiting.iter().map(Waiting::weight).sum();
        self.weight.fetch_sub(held, Ordering::Relaxed);
        state.waiting.clear();
        state.open.clear();
    }

    pub(crate) fn reader(&self) -> Reader {
        self.lock().reader
    }

    /// How many pieces of text were merged because the consumer lagged.
    pub(crate) fn merged(&self) -> u64 {
        self.lock().merged
    }

    /// How many things were dropped because too many waited.
    pub(crate) fn dropped(&self) -> u64 {
        self.lock().dropped
    }
}

impl<T: Waiting> State<T> {
    /// One piece has grown into another.
    fn has_merged(&mut self) {
        self.merged += 1;
        self.untold.merged += u64::from(self.lags());
    }

    /// Whether something came after the reader should have read what came before it.
    const fn lags(&self) -> bool {
        self.window != self.last
    }

    /// What tells the reader that it lags, where that is worth telling.
    fn lagged(&mut self) -> Option<T> {
        let Lag { merged, dropped } = self.untold;
        if merged < WORTH_TELLING && dropped == 0 {
            return None;
        }
        let told = T::lagged(self.waiting.front()?, merged, dropped)?;
        self.untold = Lag::default();
        Some(told)
    }

    fn settles(&self, earlier: &T) -> bool {
        self.waiting.iter().any(|later| later.settles(earlier))
    }
}

fn wake<T>(mut state: MutexGuard<'_, State<T>>) {
    let waker = state.waker.take();
    // Woken with the lock held, the consumer would run into it.
    drop(state);
    if let Some(waker) = waker {
        waker.wake();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Clone, Debug, PartialEq)]
    enum Thing {
        Text(&'static str, String),
        Call(u32),
        Answered(u32),
        Noise(u32),
        Lagged(u64, u64),
    }

    impl Waiting for Thing {
        fn weight(&self) -> usize {
            match self {
                Self::Text(_, text) => text.len(),
                Self::Call(_) | Self::Answered(_) | Self::Noise(_) | Self::Lagged(..) => 1,
            }
        }

        fn absorb(&mut self, next: Self, most: usize) -> Option<Self> {
            match (self, next) {
                (Self::Text(item, text), Self::Text(other, more))
                    if *item == other && text.len() + more.len() <= most =>
                {
                    text.push_str(&more);
                    None
                }
                (_, next) => Some(next),
            }
        }

        fn lagged(_: &Self, merged: u64, dropped: u64) -> Option<Self> {
            Some(Self::Lagged(merged, dropped))
        }

        fn can_be_spared(&self) -> bool {
            matches!(self, Self::Noise(_))
        }

        fn outlives_its_reader(&self) -> bool {
            matches!(self, Self::Call(_))
        }

        fn stays_open(&self) -> bool {
            matches!(self, Self::Call(_))
        }

        fn settles(&self, earlier: &Self) -> bool {
            matches!((self, earlier), (Self::Answered(a), Self::Call(b)) if a == b)
        }
    }

    fn text(item: &'static str, text: &str) -> Thing {
        Thing::Text(item, text.into())
    }

    fn push_all(queue: &Queue<Thing>, things: Vec<Thing>) {
        use std::sync::atomic::AtomicU64;
        static WINDOW: AtomicU64 = AtomicU64::new(0);
        let window = WINDOW.fetch_add(1, Ordering::Relaxed);
        for thing in things {
            queue.push(thing, window).into_iter().for_each(Waker::wake);
        }
    }

    fn drain(queue: &Queue<Thing>) -> Vec<Thing> {
        let mut cx = Context::from_waker(Waker::noop());
        let mut out = Vec::new();
        while let Poll::Ready(Some(thing)) = queue.poll_next(&mut cx) {
            out.push(thing);
        }
        out
    }

    #[test]
    fn text_that_waits_grows_and_nothing_overtakes() {
        let weight = Arc::default();
        let queue = Queue::new(Reader::Held, Arc::clone(&weight));
        push_all(&queue, vec![text("a", "1"), text("a", "2")]);
        push_all(&queue, vec![text("a", "3"), Thing::Call(1), text("a", "4")]);
        push_all(&queue, vec![text("b", "5"), text("b", "6"), text("a", "7")]);
        assert_eq!((queue.merged(), weight.load(Ordering::Relaxed)), (3, 8));
        let want = [
            text("a", "123"),
            Thing::Call(1),
            text("a", "4"),
            text("b", "56"),
            text("a", "7"),
        ];
        assert_eq!(drain(&queue), want);
        assert_eq!(weight.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn what_nobody_reads_is_dropped_but_what_waits_for_an_answer() {
        let weight = Arc::default();
        let queue = Queue::new(Reader::Held, Arc::clone(&weight));
        push_all(&queue, vec![text("a", "1"), Thing::Call(1)]);
        queue.park();
        push_all(
            &queue,
            vec![text("a", "2"), Thing::Call(2), Thing::Answered(1)],
        );
        assert!(queue.hold());
        assert!(!queue.hold());
        push_all(&queue, vec![text("a", "3")]);
        assert_eq!(drain(&queue), [Thing::Call(2), text("a", "3")]);
        push_all(&queue, vec![text("a", "4")]);
        queue.abandon();
        push_all(&queue, vec![Thing::Call(3)]);
        assert_eq!(weight.load(Ordering::Relaxed), 0);
        assert_eq!(drain(&queue), []);
    }

    #[test]
    fn what_was_read_and_is_open_is_told_to_the_next_reader() {
        let weight = Arc::default();
        let queue = Queue::new(Reader::Held, Arc::clone(&weight));
        push_all(&queue, (1..=4).map(Thing::Call).collect());
        let mut cx = Context::from_waker(Waker::noop());
        for n in 1..=3 {
            assert_eq!(queue.poll_next(&mut cx), Poll::Ready(Some(Thing::Call(n))));
        }
        queue.unread(Thing::Call(3));
        queue.answered(|thing| *thing == Thing::Call(7));
        push_all(&queue, vec![Thing::Answered(1)]);
        queue.park();
        assert!(queue.hold());
        let want = [2, 3, 4].map(Thing::Call);
        assert_eq!(drain(&queue), want);
        queue.park();
        push_all(&queue, vec![Thing::Answered(3)]);
        assert!(queue.hold());
        assert_eq!(drain(&queue), [Thing::Call(2), Thing::Call(4)]);
        push_all(&queue, vec![Thing::Call(5), Thing::Answered(5)]);
        assert_eq!(queue.poll_next(&mut cx), Poll::Ready(Some(Thing::Call(5))));
        assert!(queue.settles(&Thing::Call(5)));
        queue.park();
        assert!(queue.hold());
        assert_eq!(drain(&queue), [Thing::Call(2), Thing::Call(4)]);
        queue.abandon();
        assert_eq!(weight.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn a_batch_wakes_once_and_a_closed_queue_ends_after_what_waits() {
        struct Count(AtomicUsize);
        impl std::task::Wake for Count {
            fn wake(self: Arc<Self>) {
                self.0.fetch_add(1, Ordering::Relaxed);
            }
        }
        let count = Arc::new(Count(AtomicUsize::new(0)));
        let waker = Waker::from(Arc::clone(&count));
        let mut cx = Context::from_waker(&waker);
        let queue = Queue::new(Reader::Held, Arc::default());
        assert!(queue.poll_next(&mut cx).is_pending());
        push_all(&queue, vec![Thing::Call(1), Thing::Call(2)]);
        push_all(&queue, vec![Thing::Call(3)]);
        assert_eq!(count.0.load(Ordering::Relaxed), 1);
        queue.close();
        for n in 1..=3 {
            assert_eq!(queue.poll_next(&mut cx), Poll::Ready(Some(Thing::Call(n))));
        }
        assert_eq!(queue.poll_next(&mut cx), Poll::Ready(None));
    }

    #[test]
    fn what_its_reader_answered_is_told_to_nobody_again() {
        let queue = Queue::new(Reader::Held, Arc::default());
        push_all(&queue, vec![Thing::Call(1), Thing::Call(2)]);
        let mut cx = Context::from_waker(Waker::noop());
        for n in 1..=2 {
            assert_eq!(queue.poll_next(&mut cx), Poll::Ready(Some(Thing::Call(n))));
        }
        queue.answered(|thing| *thing == Thing::Call(1));
        queue.park();
        assert!(queue.hold());
        assert_eq!(queue.poll_next(&mut cx), Poll::Ready(Some(Thing::Call(2))));
        assert_eq!(queue.poll_next(&mut cx), Poll::Pending);
    }

    #[test]
    fn a_reader_that_lags_is_told_how_much_grew_together_since_it_was_told_last() {
        let weight = Arc::default();
        let queue = Queue::new(Reader::Held, Arc::clone(&weight));
        // What comes in one piece has kept nobody waiting.
        push_all(&queue, vec![text("a", "x"); 100]);
        assert_eq!(drain(&queue), [text("a", &"x".repeat(100))]);
        for _ in 0..64 {
            push_all(&queue, vec![text("a", "x")]);
        }
        assert_eq!(drain(&queue), [text("a", &"x".repeat(64))]);
        for _ in 0..65 {
            push_all(&queue, vec![text("a", "x")]);
        }
        push_all(&queue, vec![Thing::Call(1)]);
        // 63 before and 64 now.
        let told = Thing::Lagged(127, 0);
        assert_eq!(
            drain(&queue),
            [told, text("a", &"x".repeat(65)), Thing::Call(1)]
        );
        assert_eq!(queue.merged(), 99 + 63 + 64);
        push_all(&queue, vec![text("a", "y")]);
        assert_eq!(drain(&queue), [text("a", "y")]);
        assert_eq!(weight.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn past_the_bytes_only_that_is_dropped_which_can_be_spared_and_the_count_is_told() {
        let weight = Arc::default();
        let queue = Queue::new(Reader::Held, Arc::clone(&weight)).at_most(usize::MAX, 3);
        push_all(
            &queue,
            vec![text("a", "123"), Thing::Noise(1), Thing::Noise(2)],
        );
        push_all(
            &queue,
            vec![Thing::Noise(3), text("b", "4"), Thing::Call(1)],
        );
        let want = [
            Thing::Lagged(0, 2),
            text("a", "123"),
            Thing::Noise(1),
            text("b", "4"),
            Thing::Call(1),
        ];
        assert_eq!(drain(&queue), want);
        push_all(&queue, vec![Thing::Noise(4)]);
        assert_eq!(drain(&queue), [Thing::Noise(4)]);
        assert_eq!((queue.dropped(), weight.load(Ordering::Relaxed)), (2, 0));
    }
}
