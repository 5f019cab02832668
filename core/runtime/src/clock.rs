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

    pub(crate) fn set(&mut self, at: Option<Timestamp>, clock: &Clock) {
        self.wanted = at;
        let is_later = |at: &Timestamp| self.armed.as_ref().is_none_or(|(armed, _)| at < armed);
        if let Some(at) = at.filter(is_later) {
            self.armed = Some((at, self.runtime.sleep(clock.until(at))));
        }
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
                Some(at) if at > clock.now() => self.set(Some(at), clock),
                Some(_) => return Poll::Ready(()),
                None => {}
            }
        }
        Poll::Pending
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn an_alarm_that_was_moved_rings_at_its_last_time_only() {
        let clock = Clock::start(None);
        let mut alarm = Alarm::new();
        let begin = clock.now();
        let at = |seconds| Some(begin.after(Duration::from_secs(seconds)));
        for seconds in [10, 20, 5, 30] {
            alarm.set(at(seconds), &clock);
        }
        alarm.ring(&clock).await;
        let late = clock.now().since(begin).as_millis();
        assert!((30_000..30_010).contains(&late), "{late}");

        alarm.set(at(40), &clock);
        alarm.set(None, &clock);
        let rings = tokio::time::timeout(Duration::from_secs(60), alarm.ring(&clock)).await;
        assert!(rings.is_err());
    }

    #[tokio::test(start_paused = true)]
    async fn time_never_begins_before_the_last_life_ended() {
        let ahead = Clock::start(None).now().after(Duration::from_secs(3_600));
        let clock = Clock::start(Some(ahead));
        assert_eq!(clock.now(), ahead);
        let mut alarm = Alarm::new();
        alarm.set(Some(ahead.after(Duration::from_secs(9))), &clock);
        let begin = Instant::now();
        alarm.ring(&clock).await;
        assert_eq!(begin.elapsed().as_secs(), 9);
        let past = Clock::start(Some(Timestamp(5)));
        assert!(past.now() > Timestamp(5));
    }
}
