//! The configuration that Phalanx and all peers share, so that a case compares equal work.

use std::time::Duration;

/// A rate that no machine reaches, so that a limiter counts and never rejects.
pub(crate) const UNREACHABLE_RATE: u32 = 1_000_000_000;

/// Attempts of a retry, the first one included.
pub(crate) const ATTEMPTS: usize = 3;

/// The first backoff of a retry, doubling up to [`LONGEST_BACKOFF`].
pub(crate) const FIRST_BACKOFF: Duration = Duration::from_millis(100);

/// The longest backoff of a retry.
pub(crate) const LONGEST_BACKOFF: Duration = Duration::from_secs(2);

/// Slots of a bulkhead without waiting: at most 64 tasks call at a time.
pub(crate) const SLOTS: u32 = 1_000;

/// The hedge delay: before the timeout, and long after the operations are ready.
pub(crate) const HEDGE_DELAY: Duration = Duration::from_millis(500);

/// The timeout of one attempt.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(1);

/// A break that is longer than any run, for circuits that must stay open.
pub(crate) const LONG_BREAK: Duration = Duration::from_secs(2 * 3600);

/// The failure ratio at which a breaker trips.
pub(crate) const FAILURE_RATIO: f64 = 0.5;

/// The minimum number of calls for that ratio.
pub(crate) const MIN_CALLS: u32 = 20;
