//! Several buckets at once: a request takes the permits of all of them, or of none.
//!
//! Each bucket is one word, and no instruction changes several. So a decision about a set holds a lock of every bucket in it, in
//! the order of their addresses. Only decisions about sets take these locks: a bucket that is decided by itself stays one
//! compare-and-swap.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::MutexGuard;
use phalanx_core::clock::Time;
use phalanx_core::rate_limit::{MAX_LIMITS, Take};
use phalanx_core::rejection::Source;
use phalanx_core::store::{AcquireRequest, Dues, Grant, SetGrant, SetLimit, SetVerdict};

use super::BucketCell;

/// The limits that decide about calls together.
#[derive(Debug)]
pub struct BucketSet {
    limits: Box<[SetLimit<BucketCell>]>,
    /// The order in which they are locked. Of a bucket that is in the set twice, the first only.
    order: Box<[usize]>,
}

impl BucketSet {
    /// Creates the set of these limits; those beyond the first [`MAX_LIMITS`] are left out.
    pub fn new(mut limits: Vec<SetLimit<BucketCell>>) -> Self {
        limits.truncate(MAX_LIMITS);
        let mut order: Vec<_> = (0..limits.len()).collect();
        order.sort_by_key(|index| Arc::as_ptr(&limits[*index].bucket));
        order.dedup_by_key(|index| Arc::as_ptr(&limits[*index].bucket));
        Self { limits: limits.into(), order: order.into() }
    }

    /// Takes the permits of all limits, or reserves them, each within its own longest wait.
    pub fn acquire(&self, now: Time, request: AcquireRequest) -> SetGrant {
        let mut guards: [Option<MutexGuard<'_, ()>>; MAX_LIMITS] = [const { None }; MAX_LIMITS];
        for (guard, index) in guards.iter_mut().zip(&self.order) {
            *guard = Some(self.limits[*index].bucket.deciding.lock());
        }
        let mut verdict = SetVerdict::default();
        for (index, limit) in self.limits.iter().enumerate() {
            let asked = part(limit, request);
            let Grant { take, left, .. } = limit.bucket.check(now, asked, 0);
            verdict.note(index, take, left);
        }
        if verdict.is_rejected() {
            return verdict.grant(Source::Local, Dues::Same(now));
        }
        let mut verdict = SetVerdict::default();
        let mut waits = [Duration::ZERO; MAX_LIMITS];
        for (index, limit) in self.limits.iter().enumerate() {
            let Grant { take, left, .. } = limit.bucket.acquire(now, part(limit, request));
            verdict.note(index, take, left);
            match take {
                Take::Granted { wait } => waits[index] = wait,
                // A caller that does not take the lock was faster.
                Take::Rejected { .. } => {
                    for (taken, wait) in self.limits[..index].iter().zip(waits) {
                        taken.bucket.refund(taken.cost.of(request.cost), now.after(wait));
                    }
                    return verdict.grant(Source::Local, Dues::Same(now));
                }
            }
        }
        verdict.grant(Source::Local, Dues::after(now, waits[..self.limits.len()].iter().copied()))
    }

    /// Gives the permits of all limits back.
    pub fn refund(&self, cost: u32, dues: &Dues) {
        for (index, limit) in self.limits.iter().enumerate() {
            limit.bucket.refund(limit.cost.of(cost), dues.of(index));
        }
    }
}

/// Returns what is asked of one limit.
fn part(limit: &SetLimit<BucketCell>, request: AcquireRequest) -> AcquireRequest {
    AcquireRequest { cost: limit.cost.of(request.cost), max_wait: limit.max_wait.min(request.max_wait) }
}

#[cfg(all(test, not(phalanx_model)))]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use phalanx_core::clock::Clock;
    use phalanx_core::rate_limit::{Bucket, BucketPart, LimitCost, Rate, RateLimitSpec};
    use proptest::prelude::*;

    use super::*;

    fn bucket(clock: &Clock, permits: u64) -> Arc<BucketCell> {
        Arc::new(BucketCell::new(clock.clone(), &RateLimitSpec::per_second(permits)))
    }

    fn limit(bucket: &Arc<BucketCell>) -> SetLimit<BucketCell> {
        SetLimit { bucket: bucket.clone(), cost: LimitCost::Call, max_wait: Duration::ZERO }
    }

    const ONE: AcquireRequest = AcquireRequest { cost: 1, max_wait: Duration::MAX };

    proptest! {
        /// As the machine of core, call by call, over buckets of different rates.
        #[test]
        fn a_set_decides_exactly_as_the_machine(
            limits in prop::collection::vec((1_u64..50, 1_u64..3_000_000, 1_u64..20, 0_u64..2_000_000, any::<bool>()), 1..5),
            steps in prop::collection::vec((0_u32..25, 0_u64..1_000_000, 0_u64..2_000_000, any::<bool>()), 1..60),
        ) {
            let clock = Clock::manual();
            clock.advance(Duration::from_secs(1_000));
            let (mut set, mut plain) = (Vec::new(), Vec::new());
            for (permits, per, burst, max_wait, fixed) in limits {
                let spec = RateLimitSpec::new(permits, Duration::from_micros(per)).burst(burst);
                let bucket = Arc::new(BucketCell::new(clock.clone(), &spec));
                let cost = if fixed { LimitCost::Fixed(1) } else { LimitCost::Call };
                set.push(SetLimit { bucket, cost, max_wait: Duration::from_micros(max_wait) });
                let rate = Rate::of(&spec);
                plain.push((Bucket::full(clock.now(), rate), rate));
            }
            let (parts, set) = (set.clone(), BucketSet::new(set));
            for (cost, passed, max_wait, given_back) in steps {
                clock.advance(Duration::from_micros(passed));
                let (now, request) = (clock.now(), AcquireRequest { cost, max_wait: Duration::from_micros(max_wait) });
                let mut machine: Vec<_> = plain.iter_mut().zip(&parts).map(|((bucket, rate), limit)| {
                    let AcquireRequest { cost, max_wait } = part(limit, request);
                    BucketPart { bucket, rate: *rate, cost, max_wait }
                }).collect();
                let expected = Bucket::take_all(now, &mut machine).grant(Source::Local, Dues::Same(now));
                let grant = set.acquire(now, request);
                prop_assert_eq!((grant.take, grant.limit, grant.left), (expected.take, expected.limit, expected.left));
                if given_back && matches!(grant.take, Take::Granted { .. }) {
                    set.refund(cost, &grant.dues);
                    for (index, ((bucket, rate), limit)) in plain.iter_mut().zip(&parts).enumerate() {
                        bucket.refund(now, *rate, limit.cost.of(cost), grant.dues.of(index));
                    }
                }
                for ((bucket, rate), limit) in plain.iter_mut().zip(&parts) {
                    bucket.available(now, *rate);
                    prop_assert_eq!(limit.bucket.peek(now), bucket.level(*rate));
                }
            }
        }
    }

    #[test]
    fn threads_that_take_from_overlapping_sets_take_all_or_nothing() {
        let clock = Clock::manual();
        let [shared, left, right] = [1_000, 700, 700].map(|permits| bucket(&clock, permits));
        let sets =
            [BucketSet::new(vec![limit(&shared), limit(&left)]), BucketSet::new(vec![limit(&right), limit(&shared)])];
        let granted = [AtomicU64::new(0), AtomicU64::new(0)];
        std::thread::scope(|threads| {
            for (set, granted) in sets.iter().zip(&granted).cycle().take(4) {
                let clock = &clock;
                threads.spawn(move || {
                    for _ in 0..2_000 {
                        if matches!(set.acquire(clock.now(), ONE).take, Take::Granted { .. }) {
                            granted.fetch_add(1, Ordering::Relaxed);
                        }
                    }
                });
            }
        });
        let [one, two] = granted.map(AtomicU64::into_inner);
        assert_eq!(one + two, 1_000, "neither set took what it could not use");
        let permits = |bucket: &BucketCell| bucket.peek(clock.now()).permits();
        assert_eq!([permits(&shared), permits(&left), permits(&right)], [0, 700 - one, 700 - two]);
    }

    #[test]
    fn a_bucket_that_is_in_a_set_twice_is_charged_twice_or_not_at_all() {
        let clock = Clock::manual();
        let only = bucket(&clock, 3);
        let set = BucketSet::new(vec![limit(&only), limit(&only)]);
        assert!(matches!(set.acquire(clock.now(), ONE).take, Take::Granted { .. }));
        let rejected = set.acquire(clock.now(), ONE);
        assert!(matches!(rejected.take, Take::Rejected { .. }), "{rejected:?}");
        assert_eq!(only.peek(clock.now()).permits(), 1, "what the first of the two had taken is back");
    }
}
