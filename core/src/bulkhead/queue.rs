//! The queue of a bulkhead: who is served next, who is shed, and when.
//!
//! ```text
//!             newest ◄──────────────── oldest
//!   critical    [c2]────[c1]             served first, may wait 2 × as long
//!   normal      [n3]────[n2]────[n1]     1 ×
//!   degraded    [d1]                     0.5 ×
//!   best effort [b2]────[b1]             0.25 ×, displaced first when the queue is full
//!                 │               │
//!                 │               └─ next, while the list empties now and then (FIFO)
//!                 └─ next, while it does not (adaptive LIFO)
//! ```
//!
//! Four lists through one slab, so that arriving, being served, being displaced and leaving from the middle cost the
//! same for ten waiters and for ten thousand. Without priorities everybody stands in one list.
//!
//! **Shedding** follows CoDel by sojourn time, in the form of Facebook's "Fail at Scale" (Maurer, 2015). A queue that
//! has not been empty for an `interval` is congested. Until then a waiter may stay an `interval`; once it is, only a
//! `target`. As a waiter is in the queue it is not empty, so the moment of congestion is known when he comes, and with it
//! the moment he is shed at:
//!
//! ```text
//!   due = min(since + interval, max(since + target, queue last empty + interval))
//! ```
//!
//! Whoever is taken from the queue after his moment is rejected instead of served; and he holds a timer himself, so that
//! holders that hang cannot freeze the queue.

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
const NOBODY: usize = usize::MAX;

/// Places that are kept for the next rush when the queue has emptied.
const PLACES_KEPT: usize = 1_024;

/// A waiter's place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WaiterId(usize);

/// What became of a waiter: a slot, or a rejection.
pub(super) type Verdict = Result<(), RejectionCode>;

/// Who comes, and until when it makes sense.
#[derive(Clone, Copy, Debug)]
pub struct Arrival {
    /// The moment of arrival.
    pub now: Time,
    /// How much the caller would miss the answer; ignored unless the bulkhead is `prioritized`.
    pub criticality: Criticality,
    /// When the caller stops waiting; [`Time::NEVER`] if he does not.
    pub deadline: Time,
}

/// The queue, under its bulkhead's lock.
#[derive(Debug)]
pub(super) struct Queue {
    rules: BulkheadSpec,
    waiters: Slab<Waiter>,
    tiers: [List; TIERS],
    waiting: usize,
    /// When the queue was last seen empty.
    empty_at: Time,
}

#[derive(Debug)]
struct Waiter {
    /// None as long as he waits. He takes it with him when he goes.
    verdict: Option<Verdict>,
    waker: Option<Waker>,
    /// When he is rejected, and why.
    due: Time,
    why: RejectionCode,
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

/// Somebody has to be told that his wait is over.
#[derive(Debug)]
#[must_use = "whoever is not woken sleeps for ever"]
pub(super) struct Wake(Option<Waker>);

impl Wake {
    /// Outside the lock: a waker may run code that comes back here. One that panics does so at the cost of its own
    /// task: whoever gave a slot back or took a place is none the worse for it, and nor are the others who wait.
    pub(super) fn wake(self) {
        if let Some(waker) = self.0 {
            let _ = catch_unwind(AssertUnwindSafe(|| waker.wake()));
        }
    }
}

/// What taking the next waiter from the queue came to.
#[derive(Debug)]
pub(super) enum Next {
    /// He has the slot.
    Served(Wake),
    /// His time was over; the slot is still free.
    Shed(Wake),
}

impl Queue {
    pub(super) fn new(rules: &BulkheadSpec) -> Self {
        Self {
            rules: *rules,
            waiters: Slab::new(),
            tiers: [List { oldest: NOBODY, newest: NOBODY, empty_at: Time::ZERO }; TIERS],
            waiting: 0,
            empty_at: Time::ZERO,
        }
    }

    /// Follows other rules from now on; whoever waits keeps what he was promised.
    pub(super) fn retune(&mut self, rules: &BulkheadSpec) {
        self.rules = *rules;
    }

    pub(super) fn is_empty(&self) -> bool {
        self.waiting == 0
    }

    pub(super) fn len(&self) -> usize {
        self.waiting
    }

    /// Puts somebody in the queue: his place and when he will be rejected; and whoever he displaced.
    pub(super) fn push(&mut self, who: Arrival) -> Option<(WaiterId, Time, Option<Wake>)> {
        let tier = if self.rules.prioritized { who.criticality as usize } else { Criticality::Normal as usize };
        let displaced = if self.waiting < self.rules.max_queue as usize {
            None
        } else {
            let last = self.last_to_be_served(who.now).filter(|last| self.waiters[*last].tier < tier)?;
            Some(self.settle(last, Err(RejectionCode::BulkheadQueueShed)))
        };
        if self.is_empty() {
            self.empty_at = who.now;
        }
        let (due, why) = self.due(who, tier);
        let older = self.tiers[tier].newest;
        let waiter = Waiter { verdict: None, waker: None, due, why, tier, newer: NOBODY, older };
        let place = self.waiters.insert(waiter);
        match self.waiters.get_mut(older) {
            Some(before) => before.newer = place,
            None => {
                self.tiers[tier].oldest = place;
                self.tiers[tier].empty_at = who.now;
            }
        }
        self.tiers[tier].newest = place;
        self.waiting += 1;
        Some((WaiterId(place), due, displaced))
    }

    /// Takes the next waiter out: the most critical first, of those the oldest, or the newest while congested.
    pub(super) fn pop(&mut self, now: Time) -> Option<Next> {
        let list = self.tiers.iter().rev().find(|list| list.oldest != NOBODY)?;
        let place = if self.serves_newest_first(list, now) { list.newest } else { list.oldest };
        let Waiter { due, why, .. } = self.waiters[place];
        Some(if due <= now {
            Next::Shed(self.settle(place, Err(why)))
        } else {
            Next::Served(self.settle(place, Ok(())))
        })
    }

    /// What became of a waiter; he is woken when that changes. A verdict is given once: his place is gone with it. With
    /// it comes a waker that is not needed any more.
    pub(super) fn poll(&mut self, WaiterId(place): WaiterId, waker: &Waker) -> (Option<Verdict>, Option<Waker>) {
        let Some(waiter) = self.waiters.get_mut(place) else { return (None, None) };
        if waiter.verdict.is_none() {
            let known = waiter.waker.as_ref().is_some_and(|known| known.will_wake(waker));
            return (None, if known { None } else { waiter.waker.replace(waker.clone()) });
        }
        let waiter = self.forget(place);
        (waiter.verdict, waiter.waker)
    }

    /// A waiter goes: with his verdict, if there is one already, else with the reason that is due; and with his waker.
    pub(super) fn leave(&mut self, WaiterId(place): WaiterId) -> (Verdict, Option<Waker>) {
        if !self.waiters.contains(place) {
            return (Err(RejectionCode::BulkheadQueueShed), None);
        }
        if self.waiters[place].verdict.is_none() {
            self.unlink(place);
        }
        let waiter = self.forget(place);
        (waiter.verdict.unwrap_or(Err(waiter.why)), waiter.waker)
    }

    /// Whether the list has not been empty for an interval. The list and not the queue: as long as all of the critical can
    /// be served, none of them is to starve because the others cannot.
    fn serves_newest_first(&self, list: &List, now: Time) -> bool {
        self.rules.queue_adaptive_lifo && now >= list.empty_at.after(self.rules.queue_interval)
    }

    /// When an arrival will be rejected, and why: whatever comes first.
    fn due(&self, who: Arrival, tier: usize) -> (Time, RejectionCode) {
        let rules = &self.rules;
        let timeout = rules.queue_timeout.map_or(Time::NEVER, |timeout| who.now.after(timeout));
        let shed = rules.queue_target.map_or(Time::NEVER, |target| {
            let allowed = |wait: Duration| if rules.prioritized { wait * ALLOWANCE_QUARTERS[tier] / 4 } else { wait };
            let congested = who.now.after(allowed(target)).max(self.empty_at.after(rules.queue_interval));
            who.now.after(allowed(rules.queue_interval)).min(congested)
        });
        let reasons = [
            (who.deadline, RejectionCode::DeadlineExceeded),
            (timeout, RejectionCode::BulkheadQueueTimeout),
            (shed, RejectionCode::BulkheadQueueShed),
        ];
        reasons.into_iter().min_by_key(|(due, _)| *due).unwrap_or((Time::NEVER, RejectionCode::BulkheadQueueTimeout))
    }

    /// Of the least critical, the one who would be served last.
    fn last_to_be_served(&self, now: Time) -> Option<usize> {
        let list = self.tiers.iter().find(|list| list.oldest != NOBODY)?;
        Some(if self.serves_newest_first(list, now) { list.oldest } else { list.newest })
    }

    fn settle(&mut self, place: usize, verdict: Verdict) -> Wake {
        self.unlink(place);
        let waiter = &mut self.waiters[place];
        waiter.verdict = Some(verdict);
        Wake(waiter.waker.take())
    }

    fn unlink(&mut self, place: usize) {
        let Waiter { tier, newer, older, .. } = self.waiters[place];
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

    fn forget(&mut self, place: usize) -> Waiter {
        let waiter = self.waiters.remove(place);
        if self.waiters.is_empty() && self.waiters.capacity() > PLACES_KEPT {
            self.waiters = Slab::new();
        }
        waiter
    }
}
