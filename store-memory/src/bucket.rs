//! A token bucket that threads share: the machine of `phalanx-core` in one word and one compare-and-swap.
//!
//! Instead of a level and the moment it was right, the word holds when the bucket would be full again, in units since
//! [`Shape::base`] (the "theoretical arrival time" of GCRA, scaled so that it stays a whole number):
//!
//! ```text
//!   level(now) = capacity - max(0, word - (now - base) × gain)
//! ```
//!
//! Both forms say the same as long as the clock does not step back, which the clock of one process does not; a
//! property test plays them against each other. A change of the rate, or of the base long before a product could
//! overflow, freezes the word and is counted in it, so that nobody reads a word with another's numbers.

use std::time::Duration;

use phalanx_core::clock::{Clock, Time};
use phalanx_core::rate_limit::{Level, MAX_UNITS, Rate, RateLimitSpec, Take};
use phalanx_core::rejection::Source;
use phalanx_core::store::{AcquireRequest, Grant};
use phalanx_core::sync::{AtomicU64, Mutex, Ordering};
use phalanx_core::table::{Entry, Retention};

use phalanx_core::cache_line::CacheLine;

/// Stands in the word while the shape changes.
const FROZEN: u64 = u64::MAX;

/// The word's upper bits count changes of shape, so that a word of the old shape is never taken for one of the new.
const CHANGE_SHIFT: u32 = 61;
const UNITS: u64 = (1 << CHANGE_SHIFT) - 1;

/// The largest product of time and gain before the base is moved.
const HORIZON: u64 = 1 << (CHANGE_SHIFT - 1);

/// One key's bucket.
#[derive(Debug)]
pub struct BucketCell {
    clock: Clock,
    /// On a cache line of its own: threads on one key hand that line to each other, and should hand over only one.
    word: CacheLine<AtomicU64>,
    /// How often the numbers below changed; the word carries the lower bits of it.
    changes: AtomicU64,
    base: AtomicU64,
    gain: AtomicU64,
    price: AtomicU64,
    capacity: AtomicU64,
    reshaping: Mutex<()>,
}

/// The numbers that the word is to be read with.
#[derive(Clone, Copy)]
struct Shape {
    changes: u64,
    base: u64,
    rate: Rate,
}

impl Shape {
    /// Units that time has added since the base; none when the base must be moved first.
    #[inline]
    fn clock(self, now: Time) -> Option<u64> {
        let elapsed = now.as_micros().saturating_sub(self.base);
        elapsed.checked_mul(self.rate.gain).filter(|units| *units < HORIZON)
    }

    /// Whether a word is to be read with these numbers.
    #[inline]
    const fn fits(self, word: u64) -> bool {
        word >> CHANGE_SHIFT == self.changes & (u64::MAX >> CHANGE_SHIFT) && word != FROZEN
    }

    #[inline]
    fn level(self, word: u64, clock: u64) -> Level {
        let units = self.rate.capacity as i64 - (word & UNITS).saturating_sub(clock) as i64;
        Level { units, price: self.rate.price }
    }
}

impl BucketCell {
    /// A full bucket.
    pub fn new(clock: Clock, spec: &RateLimitSpec) -> Self {
        let rate = Rate::of(spec);
        Self {
            word: CacheLine(AtomicU64::new(0)),
            changes: AtomicU64::new(0),
            base: AtomicU64::new(clock.now().as_micros()),
            gain: AtomicU64::new(rate.gain),
            price: AtomicU64::new(rate.price),
            capacity: AtomicU64::new(rate.capacity),
            reshaping: Mutex::new(()),
            clock,
        }
    }

    /// Takes permits, or reserves them if they will be there soon enough.
    #[inline(always)] // its answer is many words, and worth keeping in registers
    pub fn acquire(&self, now: Time, ask: AcquireRequest) -> Grant {
        loop {
            let (shape, clock) = self.shape_at(now);
            let Rate { gain, price, capacity } = shape.rate;
            let need = u64::from(ask.cost).saturating_mul(price);
            // The word last, and as shortly as can be before it is swapped: other threads want it too.
            let word = self.word.0.load(Ordering::Acquire);
            if !shape.fits(word) {
                self.wait_for_shape();
                continue;
            }
            let rejected = |until| {
                let left = shape.level(word, clock);
                Grant { take: Take::Rejected { until }, left, source: Source::Local }
            };
            if need > capacity {
                return rejected(Time::NEVER);
            }
            let full_at = (word & UNITS).max(clock) + need;
            let missing = full_at.saturating_sub(clock + capacity);
            let mut wait = Duration::ZERO;
            if missing > 0 && need > 0 {
                wait = Duration::from_micros(missing.div_ceil(gain));
                if wait > ask.max_wait || missing > MAX_UNITS {
                    return rejected(now.after(wait));
                }
            }
            if self.swap(word, full_at) {
                let left = shape.level(full_at, clock);
                return Grant { take: Take::Granted { wait }, left, source: Source::Local };
            }
        }
    }

    /// Gives back permits that were taken for `due` and not used; a reservation with others behind it lapses.
    pub fn refund(&self, cost: u32, due: Time) {
        let now = self.clock.now();
        loop {
            let (word, shape, clock) = self.look(now);
            let queue = (word & UNITS).saturating_sub(clock + shape.rate.capacity);
            let end = now.after(Duration::from_micros(queue.div_ceil(shape.rate.gain)));
            if queue > 0 && due.after(shape.rate.slack()) < end {
                return;
            }
            let units = u64::from(cost).saturating_mul(shape.rate.price);
            if self.swap(word, (word & UNITS).saturating_sub(units)) {
                return;
            }
        }
    }

    /// Looks without taking.
    pub fn peek(&self, now: Time) -> Level {
        let (word, shape, clock) = self.look(now);
        shape.level(word, clock)
    }

    /// Follows another rate from now on; the permits there are stay, as far as they fit.
    pub fn retune(&self, spec: &RateLimitSpec) {
        let new = Rate::of(spec);
        let reshaping = self.reshaping.lock();
        if self.shape().rate == new {
            return;
        }
        self.reshape(self.clock.now(), new);
        drop(reshaping);
    }

    /// The word and the numbers to read it with, at `now`.
    #[inline]
    fn look(&self, now: Time) -> (u64, Shape, u64) {
        loop {
            let (shape, clock) = self.shape_at(now);
            let word = self.word.0.load(Ordering::Acquire);
            if shape.fits(word) {
                return (word, shape, clock);
            }
            self.wait_for_shape();
        }
    }

    /// Until a change under way is over.
    #[cold]
    fn wait_for_shape(&self) {
        drop(self.reshaping.lock());
    }

    /// The numbers, and the units that time has added.
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

    /// Replaces the word's units, if it is still the one that was looked at.
    #[inline]
    fn swap(&self, old: u64, units: u64) -> bool {
        let new = old & !UNITS | units;
        let swapped = self.word.0.compare_exchange(old, new, Ordering::AcqRel, Ordering::Relaxed);
        swapped.is_ok()
    }

    #[inline]
    fn shape(&self) -> Shape {
        // The count before the numbers, and each of them acquired: whoever sees a new number sees the word frozen, or of
        // another count, afterwards. (Loom found what happens on a machine with weaker order otherwise.)
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

    /// Rewrites the word for another rate, counted from `now` on. Only under the lock.
    fn reshape(&self, now: Time, new: Rate) {
        let word = self.word.0.swap(FROZEN, Ordering::AcqRel);
        let old = self.shape();
        // Beyond the horizon every bucket is full: its capacity, and what it can owe, are far smaller.
        let missing = old.clock(now).map_or(0, |clock| (word & UNITS).saturating_sub(clock));
        let level = old.rate.convert(old.rate.capacity as i64 - missing as i64, new);
        let missing = (new.capacity as i64 - level).unsigned_abs();
        self.base.store(now.as_micros(), Ordering::Release);
        self.gain.store(new.gain, Ordering::Release);
        self.price.store(new.price, Ordering::Release);
        self.capacity.store(new.capacity, Ordering::Release);
        let changes = old.changes.wrapping_add(1);
        self.changes.store(changes, Ordering::Release);
        self.word.0.store(changes << CHANGE_SHIFT | missing, Ordering::Release);
    }
}

impl Entry for BucketCell {
    fn retention(&self) -> Retention {
        let (word, _, clock) = self.look(self.clock.now());
        if word & UNITS <= clock { Retention::Disposable } else { Retention::Relearnable }
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
        Acquire { cost: u32, patience: u64 },
        Refund(u32, u64),
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
            6 => (prop_oneof![9 => 0_u32..25, 1 => Just(u32::MAX)], 0_u64..2_000_000).prop_map(|(cost, patience)| Step::Acquire { cost, patience }),
            1 => (1_u32..5, 0_u64..5_000_000).prop_map(|(cost, ahead)| Step::Refund(cost, ahead)),
            4 => (0_u64..1_000_000).prop_map(Step::Wait),
            1 => (0_u64..100_000_000_000).prop_map(Step::Wait),
            1 => spec().prop_map(Step::Retune),
        ];
        prop::collection::vec(step, 1..100)
    }

    proptest! {
        #[test]
        fn one_word_says_exactly_what_the_machine_says(first in spec(), steps in steps()) {
            let clock = Clock::manual();
            clock.advance(Duration::from_secs(1_000));
            let cell = BucketCell::new(clock.clone(), &first);
            let mut rate = Rate::of(&first);
            let mut machine = Bucket::full(clock.now(), rate);
            for step in steps {
                let now = clock.now();
                match step {
                    Step::Acquire { cost, patience } => {
                        let max_wait = Duration::from_micros(patience);
                        let grant = cell.acquire(now, AcquireRequest { cost, max_wait });
                        prop_assert_eq!(grant.take, machine.take(now, rate, cost, max_wait));
                        prop_assert_eq!(grant.left, machine.level(rate));
                    }
                    Step::Refund(cost, ahead) => {
                        let due = now.after(Duration::from_micros(ahead));
                        cell.refund(cost, due);
                        machine.refund(now, rate, cost, due);
                    }
                    Step::Wait(micros) => clock.advance(Duration::from_micros(micros)),
                    Step::Retune(spec) => {
                        let new = Rate::of(&spec);
                        cell.retune(&spec);
                        if new != rate {
                            machine.retune(now, rate, new);
                        }
                        rate = new;
                    }
                }
                machine.available(clock.now(), rate);
                prop_assert_eq!(cell.peek(clock.now()), machine.level(rate));
            }
        }
    }

    #[test]
    fn threads_take_exactly_what_there_is_also_while_the_rate_changes() {
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
            // Permits count in other units after each change; none may be lost or minted by changing over.
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
