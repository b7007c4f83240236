//! Time as a value: every stage and store asks a [`Clock`], so that a test can move it.
//!
//! Three sources, one unit (microseconds since the clock's own origin):
//! * **system**: the CPU's counter through `quanta`, about half the price of the operating system's clock;
//! * **tokio**: follows `tokio::time::pause` and `advance`;
//! * **manual**: stands still until somebody moves it, also backwards, which no other clock here ever does.
//!
//! [`Clock::detect`], the default, follows tokio when it is asked inside a runtime whose time is paused and reads the
//! system otherwise. Timers (timeouts, back-off, waiting for a permit) are always tokio's: a manual clock moves what
//! is computed, never what is slept.

#![allow(clippy::disallowed_methods)] // the one file that may read the real clocks

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// A moment: microseconds since its clock's origin. Moments of two different clocks cannot be compared.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Time(u64);

impl Time {
    /// The clock's origin.
    pub const ZERO: Self = Self(0);

    /// Later than anything: stands for a moment that will not come or cannot be known.
    pub const NEVER: Self = Self(u64::MAX);

    /// The moment `micros` microseconds after the origin.
    pub const fn from_micros(micros: u64) -> Self {
        Self(micros)
    }

    /// Microseconds since the origin.
    pub const fn as_micros(self) -> u64 {
        self.0
    }

    /// Time since `earlier`; zero if `earlier` is later.
    pub const fn since(self, earlier: Self) -> Duration {
        Duration::from_micros(self.0.saturating_sub(earlier.0))
    }

    /// Time from now until this moment; none for [`Time::NEVER`].
    pub const fn until_from(self, now: Self) -> Option<Duration> {
        match self {
            Self::NEVER => None,
            then => Some(then.since(now)),
        }
    }

    /// Microseconds from `now` until this moment; `u64::MAX` for [`Time::NEVER`].
    #[inline]
    pub(crate) const fn micros_from(self, now: Self) -> u64 {
        match self {
            Self::NEVER => u64::MAX,
            then => then.0.saturating_sub(now.0),
        }
    }

    /// This moment moved forward, without overflow.
    #[must_use]
    pub fn after(self, by: Duration) -> Self {
        Self(self.0.saturating_add(micros(by)))
    }
}

/// A duration in whole microseconds, saturating: longer than 584,000 years is as good as for ever.
pub(crate) fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

/// Where moments come from. Cheap to clone; clones share the origin (and, if manual, the hand).
#[derive(Clone)]
pub struct Clock(Source);

#[derive(Clone)]
enum Source {
    System(SystemClock),
    Tokio(tokio::time::Instant),
    Manual(Arc<AtomicU64>),
}

#[derive(Clone)]
struct SystemClock {
    counter: quanta::Clock,
    origin: u64,
    /// Microseconds in 2^40 ticks of the counter: one multiplication instead of a scaling and a division.
    rate: u64,
}

/// Ticks are multiplied by `rate` and shifted by this.
const RATE_BITS: u32 = 40;

impl Clock {
    /// The machine's monotonic clock.
    pub fn system() -> Self {
        let counter = quanta::Clock::new();
        let (origin, rate) = (counter.raw(), counter.delta_as_nanos(0, 1 << RATE_BITS) / 1_000);
        Self(Source::System(SystemClock { counter, origin, rate }))
    }

    /// Tokio's clock: the system's, unless the runtime's time is paused.
    pub fn tokio() -> Self {
        Self(Source::Tokio(tokio::time::Instant::now()))
    }

    /// A clock that only moves by [`Clock::advance`], [`Clock::step_back`] and [`Clock::set`].
    pub fn manual() -> Self {
        Self(Source::Manual(Arc::new(AtomicU64::new(0))))
    }

    /// Tokio's clock inside a runtime whose time is paused, the system's otherwise.
    pub fn detect() -> Self {
        if tokio_time_stands_still() { Self::tokio() } else { Self::system() }
    }

    /// The present moment.
    #[inline]
    pub fn now(&self) -> Time {
        match &self.0 {
            Source::System(system) => {
                let ticks = system.counter.raw().saturating_sub(system.origin);
                Time(((u128::from(ticks) * u128::from(system.rate)) >> RATE_BITS) as u64)
            }
            Source::Tokio(origin) => Time(micros(origin.elapsed())),
            Source::Manual(hand) => Time(hand.load(Ordering::Acquire)),
        }
    }

    /// Moves a manual clock forward; other clocks move by themselves.
    pub fn advance(&self, by: Duration) {
        self.turn(|now| now.saturating_add(micros(by)));
    }

    /// Moves a manual clock back: what a server's clock can do and a monotonic one cannot.
    pub fn step_back(&self, by: Duration) {
        self.turn(|now| now.saturating_sub(micros(by)));
    }

    /// Sets a manual clock.
    pub fn set(&self, to: Time) {
        self.turn(|_| to.0);
    }

    fn turn(&self, to: impl Fn(u64) -> u64) {
        if let Source::Manual(hand) = &self.0 {
            // Cannot fail: the closure always names a new value.
            let _ = hand.fetch_update(Ordering::AcqRel, Ordering::Acquire, |now| Some(to(now)));
        }
    }
}

/// Whether tokio's clock is frozen while the machine's moves on. There is no question tokio would answer directly
/// without its `test-util` feature, which a library may not switch on for its users.
fn tokio_time_stands_still() -> bool {
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
    fn the_system_clock_keeps_pace_with_the_operating_systems() {
        let (clock, real) = (Clock::system(), std::time::Instant::now());
        let start = clock.now();
        while real.elapsed() < Duration::from_millis(20) {}
        let told = clock.now().since(start).as_secs_f64();
        let passed = real.elapsed().as_secs_f64();
        assert!((told - passed).abs() < 0.001, "{told} for {passed}");
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
