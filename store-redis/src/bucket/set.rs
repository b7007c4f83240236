//! Several buckets of one policy, decided together: every limit of a set grants, or none is charged.
//!
//! ```text
//!   acquire_now   all limits leased and all blocks hold the permits: spent here; one block that does not leaves the others as
//!     │           they were. The latch is down: every limit's twin, under all their locks. A limit is known to be exhausted:
//!     │           rejected here. Otherwise:
//!     ▼
//!   acquire       set/requests.rs: the requests of all concurrent callers of the policy in one `rate_limit_acquire_all.lua`
//! ```
//!
//! The buckets are those of single limits (`bucket.rs`), with their refunds, retunes, leases and twins.

mod requests;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use phalanx_core::clock::Time;
use phalanx_core::rate_limit::{MAX_LIMITS, Take};
use phalanx_core::rejection::Source;
use phalanx_core::store::{AcquireRequest, Dues, Grant, SetGrant, SetLimit, SetVerdict};

pub(crate) use self::requests::SharedLimits;
use self::requests::{LimitsCell, SetRequest};
use super::{Shared, SharedBucket};
use crate::batch::PendingRequest;

/// The limits that decide about calls together: this replica's handle to their buckets.
#[derive(Debug)]
pub struct SharedSet {
    cell: Arc<LimitsCell>,
    limits: Box<[SetLimit<SharedBucket>]>,
    /// The order in which their states are locked: the indices of different buckets.
    order: Box<[usize]>,
}

impl SharedSet {
    /// Creates the set of these limits; those beyond the first [`MAX_LIMITS`] are left out.
    pub(crate) fn new(cell: &SharedLimits, mut limits: Vec<SetLimit<SharedBucket>>) -> Self {
        limits.truncate(MAX_LIMITS);
        let mut order: Vec<_> = (0..limits.len()).collect();
        order.sort_by_key(|index| Arc::as_ptr(&limits[*index].bucket.0));
        order.dedup_by_key(|index| Arc::as_ptr(&limits[*index].bucket.0));
        Self { cell: cell.0.clone(), limits: limits.into(), order: order.into() }
    }

    fn buckets(&self) -> impl ExactSizeIterator<Item = (&Arc<Shared>, &SetLimit<SharedBucket>)> + Clone {
        self.limits.iter().map(|limit| (&limit.bucket.0, limit))
    }

    fn slot(&self) -> u16 {
        self.limits.first().map_or(0, |limit| limit.bucket.0.redis_key.slot)
    }

    /// Whether permits of all limits are leased: an exact one asks Redis for every call, and then leases save nothing.
    fn is_leased(&self) -> bool {
        self.buckets().all(|(bucket, _)| bucket.is_leased.load(Ordering::Relaxed))
    }

    /// Decides without a round trip: grants of leased permits, everything while degraded, and rejections by a limit that is known
    /// to be exhausted.
    pub fn acquire_now(&self, now: Time, request: AcquireRequest) -> Option<SetGrant> {
        if self.is_leased()
            && let Some(grant) = self.spend_leased(now, request)
        {
            return Some(grant);
        }
        if self.cell.store.dispatcher(self.slot()).latch.is_down() {
            return Some(self.acquire_degraded(now, now, request));
        }
        self.reject_exhausted(now, request)
    }

    /// Takes permits, in one round trip with all concurrent callers of the policy.
    pub async fn acquire(this: &Arc<Self>, now: Time, request: AcquireRequest) -> SetGrant {
        let store = &this.cell.store;
        store.ensure_background();
        match PendingRequest::new(&this.cell, SetRequest::new(this, request)).await.flatten() {
            Some(granted) => {
                store.dispatcher(this.slot()).latch.count_shared_decision();
                granted.grant
            }
            None => this.acquire_degraded(now, store.clock.now(), request),
        }
    }

    /// Returns permits of all limits in the background.
    pub fn refund(&self, cost: u32, dues: &Dues, source: Source) {
        for (index, limit) in self.limits.iter().enumerate() {
            limit.bucket.refund(limit.cost.of(cost), dues.of(index), source);
        }
    }

    /// Spends permits of every limit's block. If one has too few, what the others gave is put back, and all ask Redis.
    fn spend_leased(&self, now: Time, request: AcquireRequest) -> Option<SetGrant> {
        let mut verdict = SetVerdict::default();
        // Every limit is asked, so that each knows the demand for its permits.
        let spent: Vec<_> =
            self.buckets().map(|(bucket, limit)| bucket.spend_leased(now, limit.cost.of(request.cost))).collect();
        if spent.iter().all(Option::is_some) {
            for (index, grant) in spent.iter().flatten().enumerate() {
                verdict.note(index, grant.take, grant.left);
            }
            let dues = Dues::Each(spent.iter().flatten().map(|grant| grant.due).collect());
            return Some(verdict.grant(Source::Leased, dues));
        }
        for (limit, grant) in self.limits.iter().zip(&spent) {
            if let Some(Grant { due, .. }) = grant {
                limit.bucket.refund(limit.cost.of(request.cost), *due, Source::Leased);
            }
        }
        None
    }

    /// Rejects a call by a limit for which it does not wait, and which is known to be exhausted.
    fn reject_exhausted(&self, now: Time, request: AcquireRequest) -> Option<SetGrant> {
        let mut verdict = SetVerdict::default();
        for (index, (bucket, limit)) in self.buckets().enumerate() {
            let known = now.as_micros() < bucket.exhausted_until.load(Ordering::Relaxed);
            if known
                && limit.max_wait.min(request.max_wait).is_zero()
                && let Some(grant) = bucket.reject_exhausted(now, limit.cost.of(request.cost))
            {
                verdict.note(index, grant.take, grant.left);
            }
        }
        verdict.is_rejected().then(|| verdict.grant(Source::Fleet, Dues::Same(now)))
    }

    /// Lets the twins decide, all or nothing. New ones exist since the call `began`.
    fn acquire_degraded(&self, began: Time, now: Time, request: AcquireRequest) -> SetGrant {
        self.cell.store.dispatcher(self.slot()).count_degraded_decision();
        // In one order everywhere. A set that names a bucket twice locks it once.
        let mut states: Vec<_> = self.order.iter().map(|index| self.limits[*index].bucket.0.state.lock()).collect();
        let position = |bucket: &Arc<Shared>| {
            self.order.iter().position(|index| Arc::ptr_eq(&self.limits[*index].bucket.0, bucket)).unwrap_or(0)
        };
        let part = |limit: &SetLimit<SharedBucket>| AcquireRequest {
            cost: limit.cost.of(request.cost),
            max_wait: limit.max_wait.min(request.max_wait),
        };
        let mut verdict = SetVerdict::default();
        for (index, (bucket, limit)) in self.buckets().enumerate() {
            let state = &mut *states[position(bucket)];
            let rate = state.rate;
            let Grant { take, left, .. } = bucket.twin(state, began).check(now, part(limit), rate);
            verdict.note(index, take, left);
        }
        if verdict.is_rejected() {
            return verdict.grant(Source::Degraded, Dues::Same(now));
        }
        let mut waits = Vec::with_capacity(self.limits.len());
        for (bucket, limit) in self.buckets() {
            let state = &mut *states[position(bucket)];
            let (rate, divisor, seen, part) = (state.rate, bucket.reason().divisor, state.seen, part(limit));
            let grant = bucket.twin(state, began).acquire(now, part, rate);
            if let Take::Granted { wait } = grant.take {
                state.uncharged.add(part.cost, now, seen, rate, divisor);
                waits.push(wait);
            } else {
                waits.push(Duration::ZERO);
            }
        }
        verdict.grant(Source::Degraded, Dues::after(now, waits.into_iter()))
    }
}
