//! The clock of every stage and store. A test can replace it.
//!
//! There are three sources, with one unit (microseconds since the clock's origin):
//! * **system**: the processor's counter through `quanta`, which costs about half of the operating system's clock;
//! * **tokio**: follows `tokio::time::pause` and `advance`;
//! * **manual**: moves only when a test moves it, also backwards, which the other clocks never do.
//!
//! [`Clock::detect`], the default, follows tokio inside a runtime whose time is paused, and the system otherwise. Timers
//! (timeouts, backoff, waiting for a permit) are always tokio's: a manual clock moves computed times but wakes no sleeping
//! call.

#![allow(clippy::disallowed_methods)] // the one file that may read the real clocks

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// A point in time: microseconds since the origin of its clock. Times of different clocks cannot be compared.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Time(u64);

impl Time {
    /// The clock's origin.
    pub const ZERO: Self = Self(0);

    /// Later than every other time: stands for a time that is unknown or will not come.
    pub const NEVER: Self = Self(u64::MAX);

    /// Creates a time from microseconds since the origin.
    pub const fn from_micros(micros: u64) -> Self {
        Self(micros)
    }

    /// Returns the microseconds since the origin.
    pub const fn as_micros(self) -> u64 {
        self.0
    }

    /// Returns the duration since `earlier`; zero if `earlier` is later.
    pub const fn since(self, earlier: Self) -> Duration {
        Duration::from_micros(self.0.saturating_sub(earlier.0))
    }

    /// Returns the duration from `now` until this time; none for [`Time::NEVER`].
    pub const fn until_from(self, now: Self) -> Option<Duration> {
        match self {
            Self::NEVER => None,
            then => Some(then.since(now)),
        }
    }

    /// Returns the microseconds from `now` until this time; `u64::MAX` for [`Time::NEVER`].
    #[inline]
    pub(crate) const fn micros_from(self, now: Self) -> u64 {
        match self {
            Self::NEVER => u64::MAX,
            then => then.0.saturating_sub(now.0),
        }
    }

    /// Adds a duration; saturates at [`Time::NEVER`].
    #[must_use]
    pub fn after(self, by: Duration) -> Self {
        Self(self.0.saturating_add(micros(by)))
    }
}

/// Converts a duration to whole microseconds, saturating at 584,000 years.
pub(crate) fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

/// A source of time. Clones share the origin and, if manual, the current time.
///
/// # Examples
/// ```
/// use std::time::Duration;
///
/// use phalanx::Clock;
///
/// let clock = Clock::manual();
/// let start = clock.now();
/// clock.clone().advance(Duration::from_secs(5));
/// assert_eq!(clock.now().since(start), Duration::from_secs(5));
/// clock.step_back(Duration::from_secs(1));
/// assert_eq!(clock.now().since(start), Duration::from_secs(4));
/// ```
#[derive(Clone)]
pub struct Clock(Source);

#[derive(Clone)]
enum Source {
    System(SystemClock),
    Tokio(tokio::time::Instant),
    Manual(Arc<AtomicU64>),
    Custom(Arc<dyn Fn() -> Time + Send + Sync>),
}

#[derive(Clone)]
struct SystemClock {
    counter: quanta::Clock,
    origin: u64,
    /// Microseconds in 2^40 ticks of the counter, so that a reading needs one multiplication and no division.
    rate: u64,
}

/// Ticks are multiplied by `rate` and shifted by this.
const RATE_BITS: u32 = 40;

impl Clock {
    /// Returns the monotonic clock of the machine.
    pub fn system() -> Self {
        let counter = quanta::Clock::new();
        let (origin, rate) = (counter.raw(), counter.delta_as_nanos(0, 1 << RATE_BITS) / 1_000);
        Self(Source::System(SystemClock { counter, origin, rate }))
    }

    /// Returns tokio's clock, which is the system's unless the runtime's time is paused.
    pub fn tokio() -> Self {
        Self(Source::Tokio(tokio::time::Instant::now()))
    }

    /// Returns a clock that moves only by [`Clock::advance`], [`Clock::step_back`] and [`Clock::set`].
    pub fn manual() -> Self {
        Self(Source::Manual(Arc::new(AtomicU64::new(0))))
    }

    /// Returns a clock that a function reads: the simulator's, with an offset and a drift for each replica.
    #[doc(hidden)]
    pub fn custom(read: impl Fn() -> Time + Send + Sync + 'static) -> Self {
        Self(Source::Custom(Arc::new(read)))
    }

    /// Returns tokio's clock inside a runtime whose time is paused, and the system's otherwise.
    pub fn detect() -> Self {
        if tokio_time_is_paused() { Self::tokio() } else { Self::system() }
    }

    /// Whether nothing can set it back or stop it: a lease may be measured by it.
    pub const fn is_monotonic(&self) -> bool {
        matches!(self.0, Source::System(_) | Source::Tokio(_))
    }

    /// Returns the current time.
    #[inline]
    pub fn now(&self) -> Time {
        match &self.0 {
            Source::System(system) => {
                let ticks = system.counter.raw().saturating_sub(system.origin);
                Time(((u128::from(ticks) * u128::from(system.rate)) >> RATE_BITS) as u64)
            }
            Source::Tokio(origin) => Time(micros(origin.elapsed())),
            Source::Manual(micros_now) => Time(micros_now.load(Ordering::Acquire)),
            Source::Custom(read) => read(),
        }
    }

    /// Moves a manual clock forward. Does nothing to other clocks.
    pub fn advance(&self, by: Duration) {
        self.update(|now| now.saturating_add(micros(by)));
    }

    /// Moves a manual clock back, as a server's clock may and a monotonic one does not.
    pub fn step_back(&self, by: Duration) {
        self.update(|now| now.saturating_sub(micros(by)));
    }

    /// Sets a manual clock.
    pub fn set(&self, to: Time) {
        self.update(|_| to.0);
    }

    fn update(&self, to: impl Fn(u64) -> u64) {
        if let Source::Manual(micros_now) = &self.0 {
            // Cannot fail: the closure always returns a value.
            let _ = micros_now.fetch_update(Ordering::AcqRel, Ordering::Acquire, |now| Some(to(now)));
        }
    }
}

/// Returns whether tokio's clock stands still while the machine's moves. Tokio has no API for this without its `test-util`
/// feature, which a library must not enable for its users.
fn tokio_time_is_paused() -> bool {
    let started = std::time::Instant::now();
    let frozen_at = tokio::time::Instant::now();
    while started.elapsed() < Duration::from_micros(1) {
        std::hint::spin_loop();
    }
    tokio::time::Instant::now() == frozen_at
}

impl Default for Clock {
    fn default() -> Self {
        Self::detect()
    }
}

impl fmt::Debug for Clock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let source = match self.0 {
            Source::System(_) => "system",
            Source::Tokio(_) => "tokio",
            Source::Manual(_) => "manual",
            Source::Custom(_) => "custom",
        };
        f.debug_tuple("Clock").field(&source).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_system_clock_moves_forward() {
        let clock = Clock::system();
        let first = clock.now();
        while clock.now() == first {}
        assert!(clock.now() > first);
    }

    #[test]
    fn the_system_clock_agrees_with_the_operating_system() {
        let (clock, real) = (Clock::system(), std::time::Instant::now());
        let start = clock.now();
        while real.elapsed() < Duration::from_millis(20) {}
        let measured = clock.now().since(start).as_secs_f64();
        let passed = real.elapsed().as_secs_f64();
        assert!((measured - passed).abs() < 0.001, "{measured} for {passed}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_clock_detected_under_paused_time_follows_it() {
        let clock = Clock::detect();
        let start = clock.now();
        tokio::time::advance(Duration::from_secs(5)).await;
        assert_eq!(clock.now().since(start), Duration::from_secs(5));
    }

    #[test]
    fn a_clock_detected_outside_a_runtime_reads_the_system() {
        assert_eq!(format!("{:?}", Clock::detect()), r#"Clock("system")"#);
    }

    #[test]
    fn a_manual_clock_moves_both_ways_and_never_wraps() {
        let clock = Clock::manual();
        clock.advance(Duration::from_secs(2));
        clock.step_back(Duration::from_secs(1));
        assert_eq!(clock.now(), Time::from_micros(1_000_000));
        clock.step_back(Duration::from_secs(9));
        assert_eq!(clock.now(), Time::ZERO);
        clock.advance(Duration::MAX);
        assert_eq!(clock.now(), Time::from_micros(u64::MAX));
    }
}
