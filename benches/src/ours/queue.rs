//! A bulkhead queue of constant length, driven directly: only the state machine, without tasks, whose scheduling costs the
//! same for every implementation.

use std::collections::VecDeque;
use std::task::{Poll, Waker};
use std::time::Duration;

use phalanx::internal::core::bulkhead::{Arrival, Bulkhead, Entry, WaiterId};
use phalanx::store::{Rng, Time};
use phalanx::{BulkheadSpec, Clock, Criticality, RejectionCode};

type Verdict = Poll<Result<(), RejectionCode>>;

/// A bulkhead with all slots taken and as many waiters, kept in order of arrival.
struct FullQueue {
    bulkhead: Bulkhead,
    clock: Clock,
    waiting: VecDeque<WaiterId>,
}

impl FullQueue {
    /// Fills the queue. The waiters' entries are in random order in memory, as in a running service: consecutive entries
    /// would profit from prefetching.
    fn among(waiters: u32, spec: BulkheadSpec, clock: Clock, criticality: Criticality) -> Result<Self, String> {
        let mut queue = Self { bulkhead: Bulkhead::new(&spec), clock, waiting: VecDeque::new() };
        let all_enqueued =
            (0..waiters).all(|_| queue.bulkhead.try_enter()) && (0..waiters).all(|_| queue.enqueue(criticality));
        (0..waiters).for_each(|_| queue.bulkhead.leave(&queue.clock));
        let mut served = Vec::from(std::mem::take(&mut queue.waiting));
        let rng = Rng::seeded(7);
        while !served.is_empty() {
            let next = served.swap_remove((rng.unit() * served.len() as f64) as usize);
            if queue.answer(next) != Poll::Ready(Ok(())) {
                return Err("a waiter was not served when all slots were released".to_owned());
            }
        }
        if all_enqueued && (0..waiters).all(|_| queue.enqueue(criticality)) {
            Ok(queue)
        } else {
            Err("the queue is too short".into())
        }
    }

    /// Adds a waiter, which finds no slot.
    fn enqueue(&mut self, criticality: Criticality) -> bool {
        let arrival = Arrival { now: self.clock.now(), criticality, deadline: Time::NEVER };
        let Ok(Entry::Waiting(place, _)) = self.bulkhead.enter(arrival) else { return false };
        self.waiting.push_back(place);
        self.answer(place).is_pending()
    }

    fn answer(&self, place: WaiterId) -> Verdict {
        self.bulkhead.poll(place, Waker::noop())
    }

    /// Removes the first waiter and returns its verdict.
    fn first(&mut self) -> Option<Verdict> {
        self.waiting.pop_front().map(|place| self.answer(place))
    }

    /// Removes the last waiter and returns its verdict.
    fn last(&mut self) -> Option<Verdict> {
        self.waiting.pop_back().map(|place| self.answer(place))
    }
}

/// First come, first served.
pub(crate) struct HandOverQueue(FullQueue);

impl HandOverQueue {
    pub(crate) fn among(waiters: u32) -> Result<Self, String> {
        let spec = BulkheadSpec::fixed(waiters).queue(waiters);
        FullQueue::among(waiters, spec, Clock::detect(), Criticality::Normal).map(Self)
    }

    /// Releases a slot, which the next waiter gets, and adds a waiter.
    pub(crate) fn hand_over(&mut self) -> bool {
        let Self(queue) = self;
        queue.bulkhead.leave(&queue.clock);
        queue.first() == Some(Poll::Ready(Ok(()))) && queue.enqueue(Criticality::Normal)
    }
}

/// A full and congested queue with shedding by waiting time, adaptive LIFO and priorities.
pub(crate) struct DisplacingQueue(FullQueue);

const INTERVAL: Duration = Duration::from_millis(100);

impl DisplacingQueue {
    pub(crate) fn among(waiters: u32) -> Result<Self, String> {
        let spec = BulkheadSpec::fixed(waiters).queue(waiters).queue_interval(INTERVAL).queue_target(INTERVAL / 20);
        // A manual clock, because waiters would be shed as time passes.
        let (spec, clock) = (spec.adaptive_lifo().prioritized(), Clock::manual());
        let queue = FullQueue::among(waiters, spec, clock, Criticality::BestEffort)?;
        queue.clock.advance(INTERVAL);
        Ok(Self(queue))
    }

    /// Adds a critical waiter, which displaces the one that would be served last and gets the next slot, and adds another
    /// waiter.
    pub(crate) fn displace(&mut self) -> bool {
        let Self(queue) = self;
        let enqueued = queue.enqueue(Criticality::Critical);
        let displaced = queue.first() == Some(Poll::Ready(Err(RejectionCode::BulkheadQueueShed)));
        queue.bulkhead.leave(&queue.clock);
        let served = queue.last() == Some(Poll::Ready(Ok(())));
        enqueued && displaced && served && queue.enqueue(Criticality::BestEffort)
    }
}
