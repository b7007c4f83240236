//! Timestamps that can be compared between processes.

use std::time::Duration;

use rustix::time::{ClockId, Timespec, clock_gettime};
use serde::{Deserialize, Serialize};

/// A time of the machine's monotonic clock, in nanoseconds. All processes share this clock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Moment(u64);

impl Moment {
    /// The zero of the clock.
    pub const ZERO: Self = Self(0);

    /// Returns the current time.
    pub fn now() -> Self {
        Self(nanos(clock_gettime(ClockId::Monotonic)))
    }

    /// Returns the time since `earlier`; zero if that is later.
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }

    /// Returns the time `by` before this one.
    #[must_use]
    pub fn before(self, by: Duration) -> Self {
        Self(self.0.saturating_sub(by.as_nanos() as u64))
    }

    /// Returns the time elapsed since this one.
    pub fn elapsed(self) -> Duration {
        Self::now().since(self)
    }

    pub(super) const fn from_nanos(nanos: u64) -> Self {
        Self(nanos)
    }

    pub(super) const fn as_nanos(self) -> u64 {
        self.0
    }
}

/// Returns the CPU time of this thread.
pub(super) fn thread_time() -> Duration {
    Duration::from_nanos(nanos(clock_gettime(ClockId::ThreadCPUTime)))
}

fn nanos(time: Timespec) -> u64 {
    time.tv_sec.unsigned_abs() * 1_000_000_000 + time.tv_nsec.unsigned_abs()
}
