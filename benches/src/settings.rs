//! The numbers that ours and every peer are set up with, so that a case compares like with like.

use std::time::Duration;

/// Calls a second that no machine makes, so that a limiter counts and never rejects.
pub(crate) const UNREACHABLE_RATE: u32 = 1_000_000_000;

/// Attempts of a retry, the first one included.
pub(crate) const ATTEMPTS: usize = 3;

/// The first pause of a retry, doubling to [`LONGEST_BACKOFF`].
pub(crate) const FIRST_BACKOFF: Duration = Duration::from_millis(100);

/// The longest pause of a retry.
pub(crate) const LONGEST_BACKOFF: Duration = Duration::from_secs(2);

/// Slots of a bulkhead that nobody ever waits for: 64 tasks call at a time at most.
pub(crate) const SLOTS: u32 = 1_000;

/// When a copy of an attempt would be sent: before the timeout, and long after any answer of the operations here.
pub(crate) const HEDGE_DELAY: Duration = Duration::from_millis(500);

/// The timeout of one attempt.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(1);

/// How long an open circuit stays open where it is to reject: longer than any run.
pub(crate) const LONG_BREAK: Duration = Duration::from_secs(2 * 3600);

/// The share of failures at which a closed circuit opens.
pub(crate) const FAILURE_RATIO: f64 = 0.5;

/// Calls below which that share means nothing.
pub(crate) const MIN_CALLS: u32 = 20;
