//! A stand-alone bulkhead.

use std::future::poll_fn;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use phalanx_core::bulkhead::{Arrival, Bulkhead as Hull, BulkheadSpec, BulkheadView, Completion, Entry, WaiterId};
use phalanx_core::clock::{Clock, Time};
use phalanx_core::context::Context;
use phalanx_core::estimate::p2_window::P2Window;
use phalanx_core::kind::Outcome;
use phalanx_core::policy::Policy;
use phalanx_core::policy::validate::ConfigError;
use phalanx_core::rejection::{Rejection, RejectionCode};
use phalanx_core::timeout::timeout;

use super::check;

/// The window of the latency quantile that an adaptive limit is judged by.
const WINDOW: Duration = Duration::from_secs(10);

/// Limits how many calls run at a time. Clones are cheap and share the slots.
///
/// # Examples
///
/// ```
/// use phalanx::BulkheadSpec;
/// use phalanx::standalone::Bulkhead;
///
/// let bulkhead = Bulkhead::new(&BulkheadSpec::fixed(1))?;
/// let slot = bulkhead.try_enter()?;
/// assert!(bulkhead.try_enter().is_err());
/// drop(slot);
/// assert_eq!(bulkhead.available_slots(), 1);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct Bulkhead(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    hull: Hull,
    clock: Clock,
    /// Whether completed calls move the limit.
    adaptive: bool,
    /// Recent latencies, if the limit is judged by a quantile of them.
    recent: Option<Mutex<P2Window>>,
}

impl Bulkhead {
    /// Creates a bulkhead whose slots are all free.
    ///
    /// # Errors
    /// Returns every validation error of the spec.
    pub fn new(spec: &BulkheadSpec) -> Result<Self, ConfigError> {
        Self::with_clock(spec, Clock::detect())
    }

    /// Creates a bulkhead with its own clock.
    ///
    /// # Errors
    /// Returns every validation error of the spec.
    pub fn with_clock(spec: &BulkheadSpec, clock: Clock) -> Result<Self, ConfigError> {
        check(Policy::named("standalone").bulkhead(*spec))?;
        let quantile = spec.adaptive.and_then(|adaptive| adaptive.latency_quantile);
        Ok(Self(Arc::new(Inner {
            hull: Hull::new(spec),
            clock,
            adaptive: spec.adaptive.is_some() || spec.gradient.is_some(),
            recent: quantile.map(|quantile| Mutex::new(P2Window::new(WINDOW, quantile))),
        })))
    }

    /// Takes a slot without waiting.
    ///
    /// # Errors
    /// Rejects with `bulkhead_full` if all slots are taken or other calls are queued.
    #[inline]
    pub fn try_enter(&self) -> Result<BulkheadPermit<'_>, Rejection> {
        if self.0.hull.try_enter() { Ok(self.0.slot()) } else { Err(Rejection::new(RejectionCode::BulkheadFull)) }
    }

    /// Takes a slot, waiting in the queue if the spec has one. Dropping the future leaves the queue.
    ///
    /// The task's [`Context`] provides the criticality and the deadline of the wait.
    ///
    /// # Errors
    /// Rejects with `bulkhead_full`, `bulkhead_queue_shed`, `bulkhead_queue_timeout` or `deadline_exceeded`.
    pub async fn enter(&self) -> Result<BulkheadPermit<'_>, Rejection> {
        let inner = &*self.0;
        if inner.hull.try_enter() {
            return Ok(inner.slot());
        }
        let (now, context) = (inner.clock.now(), Context::current());
        let deadline = context.remaining().map_or(Time::NEVER, |left| now.after(left));
        let arrival = Arrival { now, criticality: context.criticality(), deadline };
        let verdict = match inner.hull.enter(arrival) {
            Ok(Entry::Entered) => Ok(()),
            Ok(Entry::Waiting(place, due)) => inner.wait(place, due.until_from(now)).await,
            Err(code) => Err(code),
        };
        verdict.map(|()| inner.slot()).map_err(Rejection::new)
    }

    /// Returns how many slots there are, how many are taken and how many calls are queued.
    pub fn inspect(&self) -> BulkheadView {
        self.0.hull.view()
    }

    /// Returns the number of free slots.
    pub fn available_slots(&self) -> u32 {
        self.inspect().available_slots()
    }
}

impl Inner {
    #[inline]
    fn slot(&self) -> BulkheadPermit<'_> {
        // A fixed limit does not use the latency, so the clock is not read.
        let entered = if self.adaptive { self.clock.now() } else { Time::ZERO };
        BulkheadPermit { inner: self, entered }
    }

    async fn wait(&self, place: WaiterId, patience: Option<Duration>) -> Result<(), RejectionCode> {
        let mut waiting = Waiting { inner: self, place: Some(place) };
        let verdict = timeout(patience, poll_fn(|cx| self.hull.poll(place, cx.waker()))).await;
        waiting.place = None;
        verdict.unwrap_or_else(|_| self.hull.give_up(place))
    }

    fn adapt(&self, done: &Completion) {
        self.hull.observe(done, &self.clock);
        if let Some(recent) = &self.recent {
            let quantile = {
                let mut recent = recent.lock();
                recent.observe(done.now, done.latency);
                recent.quantile(done.now)
            };
            if self.hull.judge(done.now, quantile, &self.clock).is_some() {
                recent.lock().clear(); // the next judgement must see only latencies under the new limit
            }
        }
    }
}

/// A position in the queue. Dropping it leaves the queue.
struct Waiting<'a> {
    inner: &'a Inner,
    place: Option<WaiterId>,
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        if let Some(place) = self.place {
            self.inner.hull.abandon(place, &self.inner.clock);
        }
    }
}

/// A slot of a bulkhead. Dropping it releases the slot; an adaptive limit uses only permits that were settled.
///
/// # Examples
///
/// ```
/// use phalanx::BulkheadSpec;
/// use phalanx::standalone::Bulkhead;
///
/// let bulkhead = Bulkhead::new(&BulkheadSpec::fixed(2))?;
/// let (first, second) = (bulkhead.try_enter()?, bulkhead.try_enter()?);
/// first.succeeded();
/// assert_eq!(bulkhead.available_slots(), 1);
/// drop(second);
/// assert_eq!(bulkhead.available_slots(), 2);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
#[must_use = "dropping it releases the slot"]
pub struct BulkheadPermit<'a> {
    inner: &'a Inner,
    entered: Time,
}

impl BulkheadPermit<'_> {
    /// Records a success and releases the slot.
    pub fn succeeded(self) {
        self.ended(Outcome::Success);
    }

    /// Records a failure of the dependency and releases the slot.
    pub fn failed(self) {
        self.ended(Outcome::Failure);
    }

    fn ended(self, outcome: Outcome) {
        let Inner { hull, clock, adaptive, .. } = self.inner;
        if *adaptive {
            let now = clock.now();
            self.inner.adapt(&Completion { now, latency: now.since(self.entered), outcome, in_use: hull.in_use() });
        }
    }
}

impl Drop for BulkheadPermit<'_> {
    #[inline]
    fn drop(&mut self) {
        self.inner.hull.leave(&self.inner.clock);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use phalanx_core::context::{Criticality, scope};

    const MS: Duration = Duration::from_millis(1);

    #[tokio::test(start_paused = true)]
    async fn a_released_slot_goes_to_the_waiter_and_a_cancelled_waiter_leaves_the_queue() {
        let bulkhead = Bulkhead::new(&BulkheadSpec::fixed(1).queue(2)).unwrap();
        let slot = bulkhead.try_enter().unwrap();
        assert!(tokio::time::timeout(MS, bulkhead.enter()).await.is_err());
        assert_eq!(bulkhead.inspect().waiting, 0);
        let (entered, ()) = tokio::join!(bulkhead.enter(), async { drop(slot) });
        assert_eq!(bulkhead.available_slots(), 0);
        entered.unwrap().succeeded();
        assert_eq!(bulkhead.available_slots(), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn the_deadline_and_criticality_of_the_task_apply() {
        let bulkhead = Bulkhead::new(&BulkheadSpec::fixed(1).queue(1).prioritized()).unwrap();
        let _slot = bulkhead.try_enter().unwrap();
        let code = |answer: Result<BulkheadPermit<'_>, Rejection>| answer.unwrap_err().code();
        let (low, critical) = tokio::join!(
            scope(Context::EMPTY.with_criticality(Criticality::BestEffort), bulkhead.enter()),
            scope(Context::EMPTY.with_timeout(10 * MS), bulkhead.enter()),
        );
        assert_eq!((code(low), code(critical)), (RejectionCode::BulkheadQueueShed, RejectionCode::DeadlineExceeded));
    }
}
