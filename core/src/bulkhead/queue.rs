//! The queue of a bulkhead: which waiter is served next, which is shed, and when.
//!
//! ```text
//!             newest ◄──────────────── oldest
//!   critical    [c2]────[c1]             served first, may wait 2 × as long
//!   normal      [n3]────[n2]────[n1]     1 ×
//!   degraded    [d1]                     0.5 ×
//!   best effort [b2]────[b1]             0.25 ×, displaced first when the queue is full
//!                 │               │
//!                 │               └─ next, while the list is empty from time to time (FIFO)
//!                 └─ next, while it is not (adaptive LIFO)
//! ```
//!
//! Four linked lists in one slab, so that joining, being served, being displaced and leaving from the middle cost the same
//! for ten waiters and for ten thousand. Without priorities all waiters are in one list.
//!
//! **Shedding** follows CoDel by sojourn time, in the form of Facebook's "Fail at Scale" (Maurer, 2015). A queue that
//! has not been empty for an `interval` is congested. Until then a waiter may stay for an `interval`; after that only for
//! a `target`. While a waiter is in the queue it is not empty, so the time of congestion is known when the waiter joins,
//! and with it the time at which it is shed:
//!
//! ```text
//!   due = min(since + interval, max(since + target, queue last empty + interval))
//! ```
//!
//! A waiter whose turn comes after that time is rejected instead of served. It also has a timer of its own, so that calls
//! that hang cannot block the queue.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::task::Waker;
use std::time::Duration;

use slab::Slab;

use super::spec::BulkheadSpec;
use crate::clock::Time;
use crate::context::Criticality;
use crate::rejection::RejectionCode;

/// How long each tier may wait, in quarters of what the spec says: from best effort to critical.
const ALLOWANCE_QUARTERS: [u32; TIERS] = [1, 2, 4, 8];
const TIERS: usize = 4;
const NO_WAITER: usize = usize::MAX;

/// The capacity that an empty queue keeps for the next burst.
const KEPT_CAPACITY: usize = 1_024;

/// Identifies a waiter of a bulkhead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WaiterId(usize);

/// The end of a wait: a slot, or a rejection.
pub(super) type Verdict = Result<(), RejectionCode>;

/// A caller that enters a bulkhead.
#[derive(Clone, Copy, Debug)]
pub struct Arrival {
    /// The time of arrival.
    pub now: Time,
    /// How critical the call is; ignored unless the bulkhead is `prioritized`.
    pub criticality: Criticality,
    /// When the caller stops waiting; [`Time::NEVER`] without a deadline.
    pub deadline: Time,
}

/// The queue, under the lock of its bulkhead.
#[derive(Debug)]
pub(super) struct Queue {
    spec: BulkheadSpec,
    waiters: Slab<Waiter>,
    tiers: [List; TIERS],
    waiting: usize,
    /// When the queue was last seen empty.
    empty_at: Time,
}

#[derive(Debug)]
struct Waiter {
    /// None while it waits.
    verdict: Option<Verdict>,
    waker: Option<Waker>,
    /// When it is rejected, and why.
    due: Time,
    code: RejectionCode,
    tier: usize,
    newer: usize,
    older: usize,
}

#[derive(Clone, Copy, Debug)]
struct List {
    oldest: usize,
    newest: usize,
    /// When it was last seen empty.
    empty_at: Time,
}

/// The waker of a waiter whose wait is over.
#[derive(Debug)]
#[must_use = "a waiter that is not woken never continues"]
pub(super) struct Wake(Option<Waker>);

impl Wake {
    /// Wakes the waiter. Call it outside the lock, because a waker may run code that uses this bulkhead. A panic of the
    /// waker is caught: it must affect neither the call that gave its slot back nor the other waiters.
    pub(super) fn wake(self) {
        if let Some(waker) = self.0 {
            let _ = catch_unwind(AssertUnwindSafe(|| waker.wake()));
        }
    }
}

/// The next waiter that was taken out of the queue.
#[derive(Debug)]
pub(super) enum Next {
    /// It has the slot.
    Served(Wake),
    /// It waited for too long and was rejected; the slot is still free.
    Shed(Wake),
}

impl Queue {
    pub(super) fn new(spec: &BulkheadSpec) -> Self {
        Self {
            spec: *spec,
            waiters: Slab::new(),
            tiers: [List { oldest: NO_WAITER, newest: NO_WAITER, empty_at: Time::ZERO }; TIERS],
            waiting: 0,
            empty_at: Time::ZERO,
        }
    }

    /// Takes over another spec. Waiters keep the times that they were given.
    pub(super) fn retune(&mut self, spec: &BulkheadSpec) {
        self.spec = *spec;
    }

    pub(super) fn is_empty(&self) -> bool {
        self.waiting == 0
    }

    pub(super) fn len(&self) -> usize {
        self.waiting
    }

    /// Adds a waiter. Returns its id, when it will be rejected, and the waiter that it displaced; none if the queue is full.
    pub(super) fn push(&mut self, arrival: Arrival) -> Option<(WaiterId, Time, Option<Wake>)> {
        let tier = if self.spec.prioritized { arrival.criticality as usize } else { Criticality::Normal as usize };
        let displaced = if self.waiting < self.spec.max_queue as usize {
            None
        } else {
            let last = self.last_to_be_served(arrival.now).filter(|last| self.waiters[*last].tier < tier)?;
            Some(self.settle(last, Err(RejectionCode::BulkheadQueueShed)))
        };
        if self.is_empty() {
            self.empty_at = arrival.now;
        }
        let (due, code) = self.due(arrival, tier);
        let older = self.tiers[tier].newest;
        let waiter = Waiter { verdict: None, waker: None, due, code, tier, newer: NO_WAITER, older };
        let index = self.waiters.insert(waiter);
        match self.waiters.get_mut(older) {
            Some(before) => before.newer = index,
            None => {
                self.tiers[tier].oldest = index;
                self.tiers[tier].empty_at = arrival.now;
            }
        }
        self.tiers[tier].newest = index;
        self.waiting += 1;
        Some((WaiterId(index), due, displaced))
    }

    /// Takes the next waiter out: the most critical first, and of those the oldest, or the newest while congested.
    pub(super) fn pop(&mut self, now: Time) -> Option<Next> {
        let list = self.tiers.iter().rev().find(|list| list.oldest != NO_WAITER)?;
        let index = if self.serves_newest_first(list, now) { list.newest } else { list.oldest };
        let Waiter { due, code, .. } = self.waiters[index];
        Some(if due <= now {
            Next::Shed(self.settle(index, Err(code)))
        } else {
            Next::Served(self.settle(index, Ok(())))
        })
    }

    /// Returns the verdict of a waiter and removes it, or stores the waker that is woken with the verdict. Also returns a
    /// waker that is no longer needed.
    pub(super) fn poll(&mut self, WaiterId(index): WaiterId, waker: &Waker) -> (Option<Verdict>, Option<Waker>) {
        let Some(waiter) = self.waiters.get_mut(index) else { return (None, None) };
        if waiter.verdict.is_none() {
            let known = waiter.waker.as_ref().is_some_and(|known| known.will_wake(waker));
            return (None, if known { None } else { waiter.waker.replace(waker.clone()) });
        }
        let waiter = self.forget(index);
        (waiter.verdict, waiter.waker)
    }

    /// Removes a waiter. Returns its verdict, or the rejection that was due if there is none yet; and its waker.
    pub(super) fn leave(&mut self, WaiterId(index): WaiterId) -> (Verdict, Option<Waker>) {
        if !self.waiters.contains(index) {
            return (Err(RejectionCode::BulkheadQueueShed), None);
        }
        if self.waiters[index].verdict.is_none() {
            self.unlink(index);
        }
        let waiter = self.forget(index);
        (waiter.verdict.unwrap_or(Err(waiter.code)), waiter.waker)
    }

    /// Returns whether the list has not been empty for an interval. The list and not the queue: while all critical calls can
    /// be served, none of them must starve because less critical ones cannot.
    fn serves_newest_first(&self, list: &List, now: Time) -> bool {
        self.spec.queue_adaptive_lifo && now >= list.empty_at.after(self.spec.queue_interval)
    }

    /// Returns when a caller will be rejected, and why: whatever comes first.
    fn due(&self, arrival: Arrival, tier: usize) -> (Time, RejectionCode) {
        let spec = &self.spec;
        let timeout = spec.queue_timeout.map_or(Time::NEVER, |timeout| arrival.now.after(timeout));
        let shed = spec.queue_target.map_or(Time::NEVER, |target| {
            let allowed = |wait: Duration| if spec.prioritized { wait * ALLOWANCE_QUARTERS[tier] / 4 } else { wait };
            let congested = arrival.now.after(allowed(target)).max(self.empty_at.after(spec.queue_interval));
            arrival.now.after(allowed(spec.queue_interval)).min(congested)
        });
        let reasons = [
            (arrival.deadline, RejectionCode::DeadlineExceeded),
            (timeout, RejectionCode::BulkheadQueueTimeout),
            (shed, RejectionCode::BulkheadQueueShed),
        ];
        reasons.into_iter().min_by_key(|(due, _)| *due).unwrap_or((Time::NEVER, RejectionCode::BulkheadQueueTimeout))
    }

    /// Returns the least critical waiter that would be served last.
    fn last_to_be_served(&self, now: Time) -> Option<usize> {
        let list = self.tiers.iter().find(|list| list.oldest != NO_WAITER)?;
        Some(if self.serves_newest_first(list, now) { list.oldest } else { list.newest })
    }

    fn settle(&mut self, index: usize, verdict: Verdict) -> Wake {
        self.unlink(index);
        let waiter = &mut self.waiters[index];
        waiter.verdict = Some(verdict);
        Wake(waiter.waker.take())
    }

    fn unlink(&mut self, index: usize) {
        let Waiter { tier, newer, older, .. } = self.waiters[index];
        match self.waiters.get_mut(newer) {
            Some(waiter) => waiter.older = older,
            None => self.tiers[tier].newest = older,
        }
        match self.waiters.get_mut(older) {
            Some(waiter) => waiter.newer = newer,
            None => self.tiers[tier].oldest = newer,
        }
        self.waiting -= 1;
    }

    fn forget(&mut self, index: usize) -> Waiter {
        let waiter = self.waiters.remove(index);
        if self.waiters.is_empty() && self.waiters.capacity() > KEPT_CAPACITY {
            self.waiters = Slab::new();
        }
        waiter
    }
}
