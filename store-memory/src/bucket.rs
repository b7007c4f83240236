//! A token bucket that threads share.

use parking_lot::Mutex;

use phalanx_core::clock::{Clock, Time};
use phalanx_core::rate_limit::{Bucket, Rate, RateLimitSpec};
use phalanx_core::rejection::Source;
use phalanx_core::store::{Ask, Grant, Level};
use phalanx_core::table::{Entry, Worth};

use crate::line::Line;

/// One key's bucket.
///
/// The state has a cache line of its own: threads on one key hand that line to each other, and should hand over only one.
#[derive(Debug)]
pub struct BucketCell {
    clock: Clock,
    state: Line<Mutex<State>>,
}

#[derive(Debug)]
struct State {
    bucket: Bucket,
    rate: Rate,
}

impl BucketCell {
    pub(crate) fn new(clock: Clock, spec: &RateLimitSpec) -> Self {
        let rate = Rate::of(spec);
        let bucket = Bucket::full(clock.now(), rate);
        Self { clock, state: Line(Mutex::new(State { bucket, rate })) }
    }

    pub(crate) fn retune(&self, spec: &RateLimitSpec) {
        let (now, new) = (self.clock.now(), Rate::of(spec));
        let mut state = self.state.0.lock();
        let old = std::mem::replace(&mut state.rate, new);
        if old != new {
            state.bucket.retune(now, old, new);
        }
    }

    #[inline]
    pub(crate) fn acquire(&self, now: Time, ask: Ask) -> Grant {
        let mut state = self.state.0.lock();
        let State { bucket, rate } = &mut *state;
        let take = bucket.take(now, *rate, ask.cost, ask.max_wait);
        let left = bucket.level(*rate);
        Grant { take, left, source: Source::Local }
    }

    pub(crate) fn refund(&self, cost: u32) {
        let mut state = self.state.0.lock();
        let rate = state.rate;
        state.bucket.refund(rate, cost);
    }

    pub(crate) fn peek(&self, now: Time) -> Level {
        let mut state = self.state.0.lock();
        let State { bucket, rate } = &mut *state;
        bucket.available(now, *rate);
        bucket.level(*rate)
    }
}

impl Entry for BucketCell {
    fn worth(&self) -> Worth {
        let mut state = self.state.0.lock();
        let rate = state.rate;
        if state.bucket.is_full(self.clock.now(), rate) { Worth::Nothing } else { Worth::Something }
    }
}
