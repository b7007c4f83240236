//! Differential test of one token bucket.

use std::any::type_name;
use std::sync::Arc;
use std::time::Duration;

use phalanx_core::clock::Time;
use phalanx_core::key::StateKey;
use phalanx_core::rate_limit::{Bucket, Rate, RateLimitSpec};
use phalanx_core::store::{AcquireRequest, Level, RateLimitStore, Store};

use super::{ReplyFuture, Subject};
use crate::bed::{Bed, ORIGIN};
use crate::replies::AcquireOutcome;

/// An operation on a bucket. `by` selects the replica.
#[derive(Clone, Debug)]
pub enum Step {
    /// Acquires permits.
    Acquire {
        /// Which replica.
        by: usize,
        /// How many permits.
        cost: u32,
        /// The longest wait accepted.
        max_wait: Duration,
    },
    /// Refunds permits.
    Refund {
        /// Which replica.
        by: usize,
        /// How many permits.
        cost: u32,
    },
    /// Charges permits.
    Charge {
        /// Which replica.
        by: usize,
        /// How many permits.
        permits: u32,
    },
    /// Reads the level.
    Peek {
        /// Which replica.
        by: usize,
    },
    /// Changes the spec on all replicas.
    Retune(RateLimitSpec),
    /// Advances the clock.
    Wait(Duration),
}

/// The reply to a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reply {
    /// To [`Step::Acquire`].
    Take(AcquireOutcome, Level),
    /// To [`Step::Peek`].
    Level(Level),
    /// To all other steps.
    Done,
}

impl super::Reply for Reply {
    fn agrees_with(&self, reference: &Self) -> bool {
        self == reference
    }
}

/// The state machine of core, as the reference.
#[derive(Debug)]
pub struct Machine {
    bucket: Bucket,
    rate: Rate,
    now: Time,
}

impl Machine {
    /// Creates a full bucket at the initial time of the beds.
    pub fn new(spec: &RateLimitSpec) -> Self {
        let rate = Rate::of(spec);
        Self { bucket: Bucket::full(ORIGIN, rate), rate, now: ORIGIN }
    }

    fn answer(&mut self, step: &Step) -> Reply {
        let Self { bucket, rate, now } = self;
        match step {
            Step::Acquire { cost, max_wait, .. } => {
                let take = bucket.take(*now, *rate, *cost, *max_wait);
                return Reply::Take(AcquireOutcome::new(take, *now), bucket.level(*rate));
            }
            Step::Peek { .. } => {
                bucket.available(*now, *rate);
                return Reply::Level(bucket.level(*rate));
            }
            Step::Refund { cost, .. } => bucket.refund(*now, *rate, *cost, due(*now, *cost)),
            Step::Charge { permits, .. } => bucket.charge(*now, *rate, (*permits).into()),
            Step::Retune(spec) => {
                let old = std::mem::replace(rate, Rate::of(spec));
                // An equal rate is no change; stores do not touch the bucket then either.
                if old != *rate {
                    bucket.retune(*now, old, *rate);
                }
            }
            Step::Wait(by) => *now = now.after(*by),
        }
        Reply::Done
    }
}

impl Subject<Step, Reply> for Machine {
    fn name(&self) -> &'static str {
        "the machine"
    }

    fn apply<'a>(&'a mut self, step: &'a Step) -> ReplyFuture<'a, Reply> {
        Box::pin(async move { self.answer(step) })
    }
}

/// The store of a bed, used through several replicas that each resolved the bucket once.
pub struct BedSubject<B: Bed> {
    bed: B,
    key: StateKey,
    replicas: Vec<Replica<B>>,
}

struct Replica<B: Bed> {
    store: B::Store,
    bucket: Arc<<B::Store as RateLimitStore>::Bucket>,
}

impl<B: Bed> BedSubject<B> {
    /// Creates a bed with this number of replicas.
    pub async fn new(spec: &RateLimitSpec, replicas: usize) -> Self {
        let bed = B::new().await;
        let key = StateKey::new("policy", "route");
        let resolve = |store: B::Store| Replica { bucket: store.bucket(&key, spec), store };
        let replicas = (0..replicas).map(|_| resolve(bed.store())).collect();
        bed.sync_all().await;
        Self { bed, key, replicas }
    }

    fn replica(&self, by: usize) -> &Replica<B> {
        &self.replicas[by % self.replicas.len()]
    }

    async fn answer(&self, step: &Step) -> Reply {
        match step {
            Step::Acquire { by, cost, max_wait } => {
                let Replica { store, bucket } = self.replica(*by);
                let ask = AcquireRequest { cost: *cost, max_wait: *max_wait };
                let now = store.clock().now();
                // What the store decides, not what this replica remembers of it.
                let grant = store.acquire(bucket, now, ask).await;
                return Reply::Take(AcquireOutcome::new(grant.take, now), grant.left);
            }
            Step::Peek { by } => {
                let Replica { store, bucket } = self.replica(*by);
                return Reply::Level(store.peek(bucket, store.clock().now()).await);
            }
            Step::Refund { by, cost } => {
                let Replica { store, bucket } = self.replica(*by);
                store.refund(bucket, *cost, due(self.bed.now(), *cost), B::SOURCE);
            }
            Step::Charge { by, permits } => {
                let Replica { store, bucket } = self.replica(*by);
                store.charge(bucket, *permits);
            }
            Step::Retune(spec) => {
                for replica in &self.replicas {
                    replica.store.bucket(&self.key, spec);
                }
            }
            Step::Wait(by) => self.bed.advance(*by).await,
        }
        self.bed.sync_all().await;
        Reply::Done
    }
}

impl<B: Bed> Subject<Step, Reply> for BedSubject<B> {
    fn name(&self) -> &'static str {
        type_name::<B>()
    }

    fn apply<'a>(&'a mut self, step: &'a Step) -> ReplyFuture<'a, Reply> {
        Box::pin(async move { self.answer(step).await })
    }
}

/// Returns the time for which refunded permits were granted: now or later, so that some places are the last of the queue and
/// some have others behind them, or in the past, so that some of them have been refilled since.
fn due(now: Time, cost: u32) -> Time {
    let step = Duration::from_millis(100) * cost.saturating_sub(1);
    if cost % 4 == 3 {
        Time::from_micros(now.as_micros().saturating_sub(step.as_micros() as u64))
    } else {
        now.after(step)
    }
}
