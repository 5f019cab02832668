//! Time, as the caller tells it.

use core::time::Duration;

use serde::{Deserialize, Serialize};

/// A moment, in microseconds since the Unix epoch.
///
/// The runtime reads the wall clock once at its start and goes on with a monotonic one, so a
/// `Timestamp` can be stored, compared across restarts and made up in a test.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct Timestamp(pub u64);

impl Timestamp {
    /// Makes a timestamp from milliseconds since the Unix epoch.
    #[must_use]
    pub const fn from_millis(millis: u64) -> Self {
        Self(millis.saturating_mul(1_000))
    }

    /// Adds a duration; stays at the largest moment instead of wrapping.
    #[must_use]
    pub fn after(self, span: Duration) -> Self {
        Self(
            self.0
                .saturating_add(u64::try_from(span.as_micros()).unwrap_or(u64::MAX)),
        )
    }

    /// The duration since an earlier moment, zero when `earlier` is later.
    #[must_use]
    pub const fn since(self, earlier: Self) -> Duration {
        Duration::from_micros(self.0.saturating_sub(earlier.0))
    }
}
