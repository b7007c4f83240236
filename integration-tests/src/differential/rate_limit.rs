//! Histories of one token bucket.

use std::any::type_name;
use std::sync::Arc;
use std::time::Duration;

use phalanx_core::clock::Time;
use phalanx_core::key::StateKey;
use phalanx_core::rate_limit::{Bucket, Rate, RateLimitSpec};
use phalanx_core::store::{AcquireRequest, Level, RateLimitStore, Store};

use super::{Contestant, Playing};
use crate::answer::{Took, acquired};
use crate::bed::{Bed, ORIGIN};

/// What can happen to a bucket. `by` chooses the replica it happens at.
#[derive(Clone, Debug)]
pub enum Step {
    /// A call wants permits.
    Acquire {
        /// Which replica.
        by: usize,
        /// How many permits.
        cost: u32,
        /// How long it would wait.
        max_wait: Duration,
    },
    /// A call gives permits back.
    Refund {
        /// Which replica.
        by: usize,
        /// How many permits.
        cost: u32,
    },
    /// Somebody looks.
    Peek {
        /// Which replica.
        by: usize,
    },
    /// The whole fleet hears of another spec.
    Retune(RateLimitSpec),
    /// Time passes.
    Wait(Duration),
}

/// The answer to a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reply {
    /// To a call that wants permits.
    Take(Took, Level),
    /// To a look.
    Level(Level),
    /// To anything else.
    Done,
}

impl super::Reply for Reply {
    fn agrees_with(&self, judge: &Self) -> bool {
        self == judge
    }
}

/// The bare machine.
#[derive(Debug)]
pub struct Machine {
    bucket: Bucket,
    rate: Rate,
    now: Time,
}

impl Machine {
    /// A full bucket at the beds' first moment.
    pub fn new(spec: &RateLimitSpec) -> Self {
        let rate = Rate::of(spec);
        Self { bucket: Bucket::full(ORIGIN, rate), rate, now: ORIGIN }
    }

    fn answer(&mut self, step: &Step) -> Reply {
        let Self { bucket, rate, now } = self;
        match step {
            Step::Acquire { cost, max_wait, .. } => {
                let take = bucket.take(*now, *rate, *cost, *max_wait);
                return Reply::Take(Took::of(take, *now), bucket.level(*rate));
            }
            Step::Peek { .. } => {
                bucket.available(*now, *rate);
                return Reply::Level(bucket.level(*rate));
            }
            Step::Refund { cost, .. } => bucket.refund(*now, *rate, *cost, due(*now, *cost)),
            Step::Retune(spec) => {
                let old = std::mem::replace(rate, Rate::of(spec));
                // The same rate again is no change; the store does not touch the bucket either.
                if old != *rate {
                    bucket.retune(*now, old, *rate);
                }
            }
            Step::Wait(by) => *now = now.after(*by),
        }
        Reply::Done
    }
}

impl Contestant<Step, Reply> for Machine {
    fn name(&self) -> &'static str {
        "the machine"
    }

    fn play<'a>(&'a mut self, step: &'a Step) -> Playing<'a, Reply> {
        Box::pin(async move { self.answer(step) })
    }
}

/// A bed's store, through several replicas that resolved their buckets once.
pub struct OnBed<B: Bed> {
    bed: B,
    key: StateKey,
    replicas: Vec<Replica<B>>,
}

struct Replica<B: Bed> {
    store: B::Store,
    bucket: Arc<<B::Store as RateLimitStore>::Bucket>,
}

impl<B: Bed> OnBed<B> {
    /// A new bed with so many replicas.
    pub async fn new(spec: &RateLimitSpec, replicas: usize) -> Self {
        let bed = B::new().await;
        let key = StateKey::new("played", "here");
        let resolve = |store: B::Store| Replica { bucket: store.bucket(&key, spec), store };
        let replicas = (0..replicas).map(|_| resolve(bed.store())).collect();
        bed.settle().await;
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
                let grant = acquired(store, bucket, now, ask).await;
                return Reply::Take(Took::of(grant.take, now), grant.left);
            }
            Step::Peek { by } => {
                let Replica { store, bucket } = self.replica(*by);
                return Reply::Level(store.peek(bucket, store.clock().now()).await);
            }
            Step::Refund { by, cost } => {
                let Replica { store, bucket } = self.replica(*by);
                store.refund(bucket, *cost, due(store.clock().now(), *cost), B::SOURCE);
            }
            Step::Retune(spec) => {
                for replica in &self.replicas {
                    replica.store.bucket(&self.key, spec);
                }
            }
            Step::Wait(by) => self.bed.advance(*by).await,
        }
        self.bed.settle().await;
        Reply::Done
    }
}

impl<B: Bed> Contestant<Step, Reply> for OnBed<B> {
    fn name(&self) -> &'static str {
        type_name::<B>()
    }

    fn play<'a>(&'a mut self, step: &'a Step) -> Playing<'a, Reply> {
        Box::pin(async move { self.answer(step).await })
    }
}

/// When the permits that are given back were for: now, or up to a while ahead, so that some are the queue's last and some
/// have others behind them.
fn due(now: Time, cost: u32) -> Time {
    now.after(Duration::from_millis(100) * cost.saturating_sub(1))
}
