//! The clock that all processes of this machine share.

use rustix::time::{ClockId, clock_gettime};

/// Returns the nanoseconds of the machine's monotonic clock.
pub(crate) fn monotonic() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}
