//! A token bucket that threads share: the bucket of `phalanx-core` as one word, changed by compare-and-swap.
//!
//! Instead of a level and the time of that level, the word holds when the bucket will be full again, in units since
//! [`Shape::base`] (the "theoretical arrival time" of GCRA, scaled to whole numbers):
//!
//! ```text
//!   level(now) = capacity - max(0, word - (now - base) × gain)
//! ```
//!
//! Both forms are equivalent as long as the clock does not step back, which the clock of one process does not; a property
//! test compares them. A change of the rate freezes the word meanwhile and is counted in its upper bits, so that no thread
//! reads a word of one rate with the numbers of another. The base is moved in the same way, long before a product could
//! overflow.

mod set;

use std::time::Duration;

pub use self::set::BucketSet;
use phalanx_core::clock::{Clock, Time};
use phalanx_core::rate_limit::{Abandoned, Level, Line, MAX_UNITS, Rate, RateLimitSpec, Take};
use phalanx_core::rejection::Source;
use phalanx_core::store::{AcquireRequest, Grant};
use phalanx_core::striped::CacheLine;
use phalanx_core::sync::{AtomicU64, Mutex, Ordering};
use phalanx_core::table::{Entry, Retention};

/// The word while the shape changes.
const FROZEN: u64 = u64::MAX;

/// The upper bits of the word count changes of the shape, so that a word of the old shape never matches the new one.
const CHANGE_SHIFT: u32 = 61;
const UNITS: u64 = (1 << CHANGE_SHIFT) - 1;

/// The largest product of time and gain before the base is moved.
const HORIZON: u64 = 1 << (CHANGE_SHIFT - 1);

/// The bucket of one key.
#[derive(Debug)]
pub struct BucketCell {
    clock: Clock,
    /// On a cache line of its own: threads on one key contend for this line only.
    word: CacheLine<AtomicU64>,
    /// The number of changes of the fields below; the word holds its lowest bits.
    changes: AtomicU64,
    base: AtomicU64,
    gain: AtomicU64,
    price: AtomicU64,
    capacity: AtomicU64,
    reshaping: Mutex<()>,
    /// Places that waiters have left, and debt, which only refunds and charges look at.
    unused: Mutex<Unused>,
    /// Held by decisions about several buckets (`set.rs`).
    deciding: parking_lot::Mutex<()>,
}

/// The parts of the queue for which no caller waits, as of a time.
#[derive(Clone, Copy, Debug, Default)]
struct Unused {
    abandoned: Abandoned,
    /// Units at the end of the queue, as long as nothing but time has changed this level since.
    debt: u64,
    level: i64,
    at: Time,
}

impl Unused {
    /// Returns the queue below this level at this time, after `gained` units were added.
    fn line(&self, level: i64, gained: u64) -> Line {
        let units = queue(level);
        let is_last = self.level.saturating_add_unsigned(gained) == level;
        let debt = if is_last { self.debt.min(units) } else { 0 };
        Line { units, debt, abandoned: self.abandoned.advance(gained) }
    }

    /// Returns the units added since.
    fn gained(&self, now: Time, rate: Rate) -> u64 {
        (now.since(self.at).as_micros() as u64).saturating_mul(rate.gain)
    }
}

/// Returns the units below zero.
fn queue(level: i64) -> u64 {
    u64::try_from(-level).unwrap_or(0)
}

/// The numbers that give the word its meaning.
#[derive(Clone, Copy)]
struct Shape {
    changes: u64,
    base: u64,
    rate: Rate,
}

impl Shape {
    /// Returns the units added since the base; none if the base must be moved first.
    #[inline]
    fn clock(self, now: Time) -> Option<u64> {
        let elapsed = now.as_micros().saturating_sub(self.base);
        elapsed.checked_mul(self.rate.gain).filter(|units| *units < HORIZON)
    }

    /// Returns whether a word was written with these numbers.
    #[inline]
    const fn matches(self, word: u64) -> bool {
        word >> CHANGE_SHIFT == self.changes & (u64::MAX >> CHANGE_SHIFT) && word != FROZEN
    }

    #[inline]
    fn level(self, word: u64, clock: u64) -> Level {
        let units = self.rate.capacity as i64 - (word & UNITS).saturating_sub(clock) as i64;
        Level { units, price: self.rate.price }
    }
}

impl BucketCell {
    /// Creates a full bucket.
    pub fn new(clock: Clock, spec: &RateLimitSpec) -> Self {
        let now = clock.now();
        Self::holding(clock, spec, u64::MAX, now)
    }

    /// Creates a bucket that held this many permits at a time in the past.
    pub fn holding(clock: Clock, spec: &RateLimitSpec, permits: u64, at: Time) -> Self {
        let rate = Rate::of(spec);
        let missing = rate.capacity.saturating_sub(permits.saturating_mul(rate.price));
        Self {
            word: CacheLine(AtomicU64::new(missing)),
            changes: AtomicU64::new(0),
            base: AtomicU64::new(at.as_micros()),
            gain: AtomicU64::new(rate.gain),
            price: AtomicU64::new(rate.price),
            capacity: AtomicU64::new(rate.capacity),
            reshaping: Mutex::new(()),
            unused: Mutex::new(Unused::default()),
            deciding: parking_lot::Mutex::new(()),
            clock,
        }
    }

    /// Takes permits, or reserves them if they will be available within the request's `max_wait`.
    #[inline(always)] // keeps the large return value in registers
    pub fn acquire(&self, now: Time, request: AcquireRequest) -> Grant {
        self.acquire_up_to(now, request, 0)
    }

    /// Takes permits like [`acquire`](Self::acquire), and more than the bucket holds if it is full: the debt is refilled
    /// before anything else is granted. For a part of a larger bucket.
    pub fn acquire_with_debt(&self, now: Time, request: AcquireRequest) -> Grant {
        self.acquire_up_to(now, request, MAX_UNITS)
    }

    /// Takes permits, of which the bucket need not be able to hold `debt` units.
    #[inline(always)]
    fn acquire_up_to(&self, now: Time, request: AcquireRequest, debt: u64) -> Grant {
        loop {
            let (shape, clock) = self.shape_at(now);
            let Rate { gain, price, capacity } = shape.rate;
            let need = u64::from(request.cost).saturating_mul(price);
            // Loaded last, right before the swap: the longer the gap, the likelier another thread gets in between.
            let word = self.word.0.load(Ordering::Acquire);
            if !shape.matches(word) {
                self.wait_for_shape();
                continue;
            }
            let rejected = |until| {
                let left = shape.level(word, clock);
                Grant { take: Take::Rejected { until }, left, source: Source::Local, due: now }
            };
            let excess = need.saturating_sub(capacity);
            if excess > debt {
                return rejected(Time::NEVER);
            }
            let full_at = (word & UNITS).max(clock) + need;
            let missing = full_at.saturating_sub(clock + capacity + excess);
            let mut wait = Duration::ZERO;
            if missing > 0 && need > 0 {
                wait = Duration::from_micros(missing.div_ceil(gain));
                if wait > request.max_wait || missing > MAX_UNITS {
                    return rejected(now.after(wait));
                }
            }
            if self.swap(word, full_at) {
                let left = shape.level(full_at, clock);
                return Grant { take: Take::Granted { wait }, left, source: Source::Local, due: now.after(wait) };
            }
        }
    }

    /// Returns what [`acquire`](Self::acquire) would do, with this much debt allowed, and takes nothing.
    pub fn check(&self, now: Time, request: AcquireRequest, debt: u64) -> Grant {
        let (word, shape, clock) = self.load(now);
        let Rate { gain, price, capacity } = shape.rate;
        let need = u64::from(request.cost).saturating_mul(price);
        let excess = need.saturating_sub(capacity);
        let reply = |take, units, due| Grant { take, left: shape.level(units, clock), source: Source::Local, due };
        if excess > debt {
            return reply(Take::Rejected { until: Time::NEVER }, word, now);
        }
        let full_at = (word & UNITS).max(clock) + need;
        let missing = full_at.saturating_sub(clock + capacity + excess);
        let mut wait = Duration::ZERO;
        if missing > 0 && need > 0 {
            wait = Duration::from_micros(missing.div_ceil(gain));
            if wait > request.max_wait || missing > MAX_UNITS {
                return reply(Take::Rejected { until: now.after(wait) }, word, now);
            }
        }
        reply(Take::Granted { wait }, full_at, now.after(wait))
    }

    /// Gives back permits that were due at `due` and not used, as [`Bucket::refund`](phalanx_core::rate_limit::Bucket)
    /// does.
    pub fn refund(&self, cost: u32, due: Time) {
        let now = self.clock.now();
        // One at a time, so that the unused parts belong to the word that they are compared with.
        let mut unused = self.unused.lock();
        loop {
            let (word, shape, clock) = self.load(now);
            let level = shape.level(word, clock).units;
            let line = unused.line(level, unused.gained(now, shape.rate));
            let (credit, line) = shape.rate.refund(line, now, cost, due);
            let units = (word & UNITS).saturating_sub(credit);
            if self.swap(word, units) {
                let level = shape.level(units, clock).units;
                let Line { debt, abandoned, .. } = if level < 0 { line } else { Line::default() };
                *unused = Unused { abandoned, debt, level, at: now };
                return;
            }
        }
    }

    /// Takes permits for work that is done, as [`Bucket::charge`](phalanx_core::rate_limit::Bucket) does.
    pub fn charge(&self, permits: u32) {
        let now = self.clock.now();
        let mut unused = self.unused.lock();
        loop {
            let (word, shape, clock) = self.load(now);
            let Rate { price, capacity, .. } = shape.rate;
            let level = shape.level(word, clock).units;
            let line = unused.line(level, unused.gained(now, shape.rate));
            let units = u64::from(permits).saturating_mul(price).min(2 * MAX_UNITS);
            let level = (level - units as i64).max(-(MAX_UNITS as i64));
            if self.swap(word, clock + (capacity as i64 - level).unsigned_abs()) {
                let debt = (line.debt + units).min(queue(level));
                *unused = Unused { abandoned: line.abandoned, debt, level, at: now };
                return;
            }
        }
    }

    /// Returns the level without taking permits.
    pub fn peek(&self, now: Time) -> Level {
        let (word, shape, clock) = self.load(now);
        shape.level(word, clock)
    }

    /// Takes over another rate. Available permits are kept, as far as they fit.
    pub fn retune(&self, spec: &RateLimitSpec) {
        let new = Rate::of(spec);
        let mut unused = self.unused.lock(); // before the other lock, as in a refund
        let reshaping = self.reshaping.lock();
        if self.shape().rate == new {
            return;
        }
        let (now, old) = (self.clock.now(), self.shape().rate);
        let (before, level) = self.reshape(now, new);
        let line = unused.line(before, unused.gained(now, old));
        let debt = if line.debt > 0 && line.debt == line.units { queue(level) } else { 0 };
        *unused = Unused { abandoned: Abandoned::default(), debt, level, at: now };
        drop(reshaping);
    }

    /// Returns the word, the shape it was written with, and the units that time has added until `now`.
    #[inline]
    fn load(&self, now: Time) -> (u64, Shape, u64) {
        loop {
            let (shape, clock) = self.shape_at(now);
            let word = self.word.0.load(Ordering::Acquire);
            if shape.matches(word) {
                return (word, shape, clock);
            }
            self.wait_for_shape();
        }
    }

    /// Waits until a change in progress is over.
    #[cold]
    fn wait_for_shape(&self) {
        drop(self.reshaping.lock());
    }

    /// Returns the shape and the units that time has added.
    #[inline]
    fn shape_at(&self, now: Time) -> (Shape, u64) {
        loop {
            let shape = self.shape();
            match shape.clock(now) {
                Some(clock) => return (shape, clock),
                None => self.move_base(now),
            }
        }
    }

    /// Replaces the units of the word, if it is still `old`.
    #[inline]
    fn swap(&self, old: u64, units: u64) -> bool {
        let new = old & !UNITS | units;
        let swapped = self.word.0.compare_exchange(old, new, Ordering::AcqRel, Ordering::Relaxed);
        swapped.is_ok()
    }

    #[inline]
    fn shape(&self) -> Shape {
        // The count before the numbers, and each with acquire ordering: a thread that loads a new number then sees the
        // word frozen or with another count. (Loom found the failure that weaker orderings allow.)
        let changes = self.changes.load(Ordering::Acquire);
        Shape {
            changes,
            base: self.base.load(Ordering::Acquire),
            rate: Rate {
                gain: self.gain.load(Ordering::Acquire),
                price: self.price.load(Ordering::Acquire),
                capacity: self.capacity.load(Ordering::Acquire),
            },
        }
    }

    #[cold]
    fn move_base(&self, now: Time) {
        let reshaping = self.reshaping.lock();
        let shape = self.shape();
        if shape.clock(now).is_none() {
            self.reshape(now, shape.rate);
        }
        drop(reshaping);
    }

    /// Rewrites the word for another rate, with `now` as the base. The caller holds the lock. Returns the level before and
    /// after.
    fn reshape(&self, now: Time, new: Rate) -> (i64, i64) {
        let word = self.word.0.swap(FROZEN, Ordering::AcqRel);
        let old = self.shape();
        // Beyond the horizon every bucket is full: its capacity and its reservations are far smaller.
        let missing = old.clock(now).map_or(0, |clock| (word & UNITS).saturating_sub(clock));
        let before = old.rate.capacity as i64 - missing as i64;
        let level = old.rate.convert(before, new);
        let missing = (new.capacity as i64 - level).unsigned_abs();
        self.base.store(now.as_micros(), Ordering::Release);
        self.gain.store(new.gain, Ordering::Release);
        self.price.store(new.price, Ordering::Release);
        self.capacity.store(new.capacity, Ordering::Release);
        let changes = old.changes.wrapping_add(1);
        self.changes.store(changes, Ordering::Release);
        self.word.0.store(changes << CHANGE_SHIFT | missing, Ordering::Release);
        (before, level)
    }
}

impl Entry for BucketCell {
    fn retention(&self) -> Retention {
        let (word, _, clock) = self.load(self.clock.now());
        // A new bucket is full. Forgetting one that is not would hand out its permits a second time.
        if word & UNITS <= clock { Retention::Disposable } else { Retention::Pinned }
    }
}

#[cfg(all(test, phalanx_model))]
mod models;

#[cfg(all(test, not(phalanx_model)))]
mod tests {
    use super::*;
    use phalanx_core::rate_limit::Bucket;
    use proptest::prelude::*;

    #[derive(Clone, Debug)]
    enum Step {
        Acquire { cost: u32, max_wait_micros: u64 },
        Refund(u32, i64),
        Charge(u32),
        Wait(u64),
        Retune(RateLimitSpec),
    }

    fn spec() -> impl Strategy<Value = RateLimitSpec> {
        // Up to rates whose products overflow within hours, so that the base moves on the way.
        let permits = prop_oneof![1_u64..50, 900_000_000_u64..1_000_000_000];
        (permits, 1_u64..3_000_000, 1_u64..20)
            .prop_map(|(permits, per, burst)| RateLimitSpec::new(permits, Duration::from_micros(per)).burst(burst))
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let step = prop_oneof![
            6 => (prop_oneof![9 => 0_u32..25, 1 => Just(u32::MAX)], 0_u64..2_000_000).prop_map(|(cost, max_wait_micros)| Step::Acquire { cost, max_wait_micros }),
            2 => (1_u32..5, -1_000_000_i64..5_000_000).prop_map(|(cost, ahead)| Step::Refund(cost, ahead)),
            2 => prop_oneof![9 => 0_u32..25, 1 => Just(u32::MAX)].prop_map(Step::Charge),
            4 => (0_u64..1_000_000).prop_map(Step::Wait),
            1 => (0_u64..100_000_000_000).prop_map(Step::Wait),
            1 => spec().prop_map(Step::Retune),
        ];
        prop::collection::vec(step, 1..100)
    }

    proptest! {
        #[test]
        fn the_word_decides_exactly_as_the_plain_bucket(first in spec(), steps in steps()) {
            let clock = Clock::manual();
            clock.advance(Duration::from_secs(1_000));
            let cell = BucketCell::new(clock.clone(), &first);
            let mut rate = Rate::of(&first);
            let mut plain = Bucket::full(clock.now(), rate);
            for step in steps {
                let now = clock.now();
                match step {
                    Step::Acquire { cost, max_wait_micros } => {
                        let max_wait = Duration::from_micros(max_wait_micros);
                        let checked = cell.check(now, AcquireRequest { cost, max_wait }, 0);
                        let grant = cell.acquire(now, AcquireRequest { cost, max_wait });
                        prop_assert_eq!(grant.take, plain.take(now, rate, cost, max_wait));
                        prop_assert_eq!(grant.left, plain.level(rate));
                        prop_assert_eq!(grant, checked, "a check that takes nothing");
                    }
                    Step::Refund(cost, ahead) => {
                        let due = Time::from_micros(now.as_micros().saturating_add_signed(ahead));
                        cell.refund(cost, due);
                        plain.refund(now, rate, cost, due);
                    }
                    Step::Charge(permits) => {
                        cell.charge(permits);
                        plain.charge(now, rate, permits.into());
                    }
                    Step::Wait(micros) => clock.advance(Duration::from_micros(micros)),
                    Step::Retune(spec) => {
                        let new = Rate::of(&spec);
                        cell.retune(&spec);
                        if new != rate {
                            plain.retune(now, rate, new);
                        }
                        rate = new;
                    }
                }
                plain.available(clock.now(), rate);
                prop_assert_eq!(cell.peek(clock.now()), plain.level(rate));
            }
        }
    }

    #[test]
    fn a_bucket_is_pinned_until_it_is_full_again() {
        let clock = Clock::manual();
        let cell = BucketCell::new(clock.clone(), &RateLimitSpec::per_second(2));
        assert_eq!(cell.retention(), Retention::Disposable);
        cell.acquire(clock.now(), AcquireRequest { cost: 1, max_wait: Duration::ZERO });
        clock.advance(Duration::from_micros(499_999));
        assert_eq!(cell.retention(), Retention::Pinned);
        clock.advance(Duration::from_micros(1));
        assert_eq!(cell.retention(), Retention::Disposable);
    }

    #[test]
    fn threads_take_exactly_the_available_permits_while_the_rate_changes() {
        let clock = Clock::manual();
        let spec = RateLimitSpec::per_second(1_000).burst(50_000);
        let cell = BucketCell::new(clock.clone(), &spec);
        let taken = AtomicU64::new(0);
        std::thread::scope(|threads| {
            for _ in 0..4 {
                threads.spawn(|| {
                    for _ in 0..20_000 {
                        let grant = cell.acquire(clock.now(), AcquireRequest { cost: 1, max_wait: Duration::ZERO });
                        if matches!(grant.take, Take::Granted { .. }) {
                            taken.fetch_add(1, Ordering::Relaxed);
                        }
                    }
                });
            }
            // Each change counts permits in other units; none may be lost or created by the conversion.
            threads.spawn(|| {
                for i in 0..2_000 {
                    let per = Duration::from_millis(10);
                    cell.retune(&RateLimitSpec::new(1 + i % 7, per).burst(50_000));
                }
            });
        });
        assert_eq!(taken.into_inner(), 50_000);
    }
}
