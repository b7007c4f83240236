//! Moments that two processes can compare.

use std::time::Duration;

use rustix::time::{ClockId, Timespec, clock_gettime};
use serde::{Deserialize, Serialize};

/// A moment of the machine's monotonic clock, in nanoseconds: the same for all processes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Moment(u64);

impl Moment {
    /// Before everything.
    pub const ZERO: Self = Self(0);

    /// The present one.
    pub fn now() -> Self {
        Self(nanos(clock_gettime(ClockId::Monotonic)))
    }

    /// Time since `earlier`; zero if that is later.
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }

    /// The moment so long before.
    #[must_use]
    pub fn before(self, by: Duration) -> Self {
        Self(self.0.saturating_sub(by.as_nanos() as u64))
    }

    /// Time since then.
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

/// The time that this thread has had a processor for itself.
pub(super) fn thread_time() -> Duration {
    Duration::from_nanos(nanos(clock_gettime(ClockId::ThreadCPUTime)))
}

fn nanos(time: Timespec) -> u64 {
    time.tv_sec.unsigned_abs() * 1_000_000_000 + time.tv_nsec.unsigned_abs()
}
