//! Time: the wall clock, read once, and a monotonic one from there on.

use std::{
    sync::Arc,
    task::{Context, Poll},
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use turnkeep_core::Timestamp;

use crate::runtime::{BoxFuture, Runtime};

/// A span that is for ever here, and far from where an instant ends.
pub(crate) const CENTURY: Duration = Duration::from_secs(3_153_600_000);

#[derive(Debug)]
pub(crate) struct Clock {
    wall: Timestamp,
    start: Instant,
}

impl Clock {
    /// Goes on from the wall clock, or from the last moment of an earlier life where that is later:
    /// whoever sets the clock back must not make deadlines come late.
    pub(crate) fn start(last: Option<Timestamp>) -> Self {
        let wall = SystemTime::now().duration_since(UNIX_EPOCH);
        let wall = Timestamp(0).after(wall.unwrap_or_default());
        Self {
            wall: wall.max(last.unwrap_or_default()),
            start: Instant::now(),
        }
    }

    pub(crate) fn now(&self) -> Timestamp {
        self.wall.after(self.start.elapsed())
    }

    fn until(&self, at: Timestamp) -> Duration {
        at.since(self.now()).min(CENTURY)
    }
}

/// The machine's deadline. It moves with almost every step, mostly away: the timer is left where it
/// is then and set anew when it rings too early.
pub(crate) struct Alarm {
    runtime: Arc<dyn Runtime>,
    armed: Option<(Timestamp, BoxFuture<()>)>,
    wanted: Option<Timestamp>,
}

impl Alarm {
    pub(crate) fn new(runtime: Arc<dyn Runtime>) -> Self {
        Self {
            runtime,
            armed: None,
            wanted: None,
        }
    }

    /// Sets it; `true` where it was wound anew and must be waited for anew.
    pub(crate) fn set(&mut self, at: Option<Timestamp>, clock: &Clock) -> bool {
        self.wanted = at;
        let is_sooner = |at: &Timestamp| self.armed.as_ref().is_none_or(|(armed, _)| at < armed);
        let sooner = at.filter(is_sooner);
        if let Some(at) = sooner {
            self.armed = Some((at, self.runtime.sleep(clock.until(at))));
        }
        sooner.is_some()
    }

    pub(crate) fn is_due(&self, now: Timestamp) -> bool {
        self.wanted.is_some_and(|at| at <= now)
    }

    /// Waits until the deadline.
    pub(crate) fn poll_ring(&mut self, clock: &Clock, cx: &mut Context<'_>) -> Poll<()> {
        while let Some((_, sleep)) = &mut self.armed {
            let Poll::Ready(()) = sleep.as_mut().poll(cx) else {
                return Poll::Pending;
            };
            self.armed = None;
            match self.wanted {
                Some(at) if at > clock.now() => {
                    self.set(Some(at), clock);
                }
                Some(_) => return Poll::Ready(()),
                None => {}
            }
        }
        Poll::Pending
    }
}

#[cfg(test)]
mod tests {
    use std::{
        future::{pending, poll_fn},
        process::Command,
        sync::Mutex,
        task::Waker,
    };

    use super::*;
    use crate::runtime::{BoxStream, ChildProcess};

    /// A runtime whose sleeps end when the test says so, and which tells how long they were to be.
    #[derive(Debug, Default)]
    struct Sleeps(Mutex<Vec<(Duration, bool)>>);

    impl Sleeps {
        fn asked(&self) -> Vec<u64> {
            let sleeps = self.0.lock().unwrap();
            // What passed since the alarm was set is less than a second.
            sleeps
                .iter()
                .map(|(span, _)| span.as_secs_f64().round() as u64)
                .collect()
        }

        fn end_last(&self) {
            self.0.lock().unwrap().last_mut().unwrap().1 = true;
        }
    }

    #[derive(Clone, Debug, Default)]
    struct Fake(Arc<Sleeps>);

    impl Runtime for Fake {
        fn spawn(&self, _: BoxFuture<()>) {}

        fn sleep(&self, span: Duration) -> BoxFuture<()> {
            let sleeps = Arc::clone(&self.0);
            let mut all = sleeps.0.lock().unwrap();
            all.push((span, false));
            let n = all.len() - 1;
            drop(all);
            Box::pin(poll_fn(move |_| match sleeps.0.lock().unwrap()[n].1 {
                true => Poll::Ready(()),
                false => Poll::Pending,
            }))
        }

        fn start(&self, _: Command) -> std::io::Result<Box<dyn ChildProcess>> {
            Err(std::io::ErrorKind::Unsupported.into())
        }

        fn connect_tcp(&self, _: String, _: u16) -> BoxFuture<std::io::Result<BoxStream>> {
            Box::pin(pending())
        }

        fn connect_unix(&self, _: std::path::PathBuf) -> BoxFuture<std::io::Result<BoxStream>> {
            Box::pin(pending())
        }
    }

    impl Clock {
        /// Lets time pass.
        fn pass(&mut self, span: Duration) {
            self.wall = self.wall.after(span);
        }
    }

    fn rings(alarm: &mut Alarm, clock: &Clock) -> bool {
        let mut cx = Context::from_waker(Waker::noop());
        alarm.poll_ring(clock, &mut cx).is_ready()
    }

    #[test]
    fn an_alarm_that_was_moved_rings_at_its_last_time_only() {
        let fake = Fake::default();
        let mut clock = Clock::start(None);
        let mut alarm = Alarm::new(Arc::new(fake.clone()));
        assert!(!rings(&mut alarm, &clock));
        let begin = clock.now();
        let at = |seconds| Some(begin.after(Duration::from_secs(seconds)));
        for seconds in [10, 20, 5, 30] {
            alarm.set(at(seconds), &clock);
        }
        // Moved away it is left where it is.
        assert_eq!(fake.0.asked(), [10, 5]);
        assert!(!rings(&mut alarm, &clock));
        clock.pass(Duration::from_secs(6));
        fake.0.end_last();
        assert!(!rings(&mut alarm, &clock));
        assert_eq!(fake.0.asked(), [10, 5, 24]);
        clock.pass(Duration::from_secs(24));
        fake.0.end_last();
        assert!(alarm.is_due(clock.now()) && rings(&mut alarm, &clock));

        alarm.set(at(40), &clock);
        alarm.set(None, &clock);
        clock.pass(Duration::from_secs(60));
        fake.0.end_last();
        assert!(!rings(&mut alarm, &clock) && !alarm.is_due(clock.now()));
    }

    #[test]
    fn time_never_begins_before_the_last_life_ended() {
        let ahead = Clock::start(None).now().after(Duration::from_secs(3_600));
        let clock = Clock::start(Some(ahead));
        assert_eq!(clock.wall, ahead);
        let fake = Fake::default();
        let mut alarm = Alarm::new(Arc::new(fake.clone()));
        alarm.set(Some(ahead.after(Duration::from_secs(9))), &clock);
        assert_eq!(fake.0.asked(), [9]);
        let past = Clock::start(Some(Timestamp(5)));
        assert!(past.now() > Timestamp(5));
    }
}
