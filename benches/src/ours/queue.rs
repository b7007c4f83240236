//! A bulkhead's queue that stays at its length, driven by hand: the machine alone, without tasks, whose number costs
//! their scheduler the same whoever wakes them.

use std::collections::VecDeque;
use std::task::{Poll, Waker};
use std::time::Duration;

use phalanx::internal::core::bulkhead::{Arrival, Bulkhead, Entry, WaiterId};
use phalanx::store::{Rng, Time};
use phalanx::{BulkheadSpec, Clock, Criticality, RejectionCode};

type Verdict = Poll<Result<(), RejectionCode>>;

/// All slots taken, and as many waiters. They are kept in the order they came.
struct Crowd {
    bulkhead: Bulkhead,
    clock: Clock,
    waiting: VecDeque<WaiterId>,
}

impl Crowd {
    /// The waiters' places are in no order in memory, as they are after a while in which some were quicker than others
    /// to take their slots: places in a row would be fetched before they are needed.
    fn among(waiters: u32, spec: BulkheadSpec, clock: Clock, who: Criticality) -> Result<Self, String> {
        let mut crowd = Self { bulkhead: Bulkhead::new(&spec), clock, waiting: VecDeque::new() };
        let all_came = (0..waiters).all(|_| crowd.bulkhead.try_enter()) && (0..waiters).all(|_| crowd.comes(who));
        (0..waiters).for_each(|_| crowd.bulkhead.leave(&crowd.clock));
        let mut served = Vec::from(std::mem::take(&mut crowd.waiting));
        let rng = Rng::seeded(7);
        while !served.is_empty() {
            let next = served.swap_remove((rng.unit() * served.len() as f64) as usize);
            if crowd.answer(next) != Poll::Ready(Ok(())) {
                return Err("a waiter was not served when all slots were given back".to_owned());
            }
        }
        if all_came && (0..waiters).all(|_| crowd.comes(who)) {
            Ok(crowd)
        } else {
            Err("the queue is too short".into())
        }
    }

    /// Somebody comes, finds no slot, and waits behind the others.
    fn comes(&mut self, criticality: Criticality) -> bool {
        let who = Arrival { now: self.clock.now(), criticality, deadline: Time::NEVER };
        let Ok(Entry::Waiting(place, _)) = self.bulkhead.enter(who) else { return false };
        self.waiting.push_back(place);
        self.answer(place).is_pending()
    }

    fn answer(&self, place: WaiterId) -> Verdict {
        self.bulkhead.poll(place, Waker::noop())
    }

    /// What the one who came first was told, or last.
    fn first(&mut self) -> Option<Verdict> {
        self.waiting.pop_front().map(|place| self.answer(place))
    }

    fn last(&mut self) -> Option<Verdict> {
        self.waiting.pop_back().map(|place| self.answer(place))
    }
}

/// First come, first served.
pub(crate) struct Handing(Crowd);

impl Handing {
    pub(crate) fn among(waiters: u32) -> Result<Self, String> {
        let spec = BulkheadSpec::fixed(waiters).queue(waiters);
        Crowd::among(waiters, spec, Clock::detect(), Criticality::Normal).map(Self)
    }

    /// A slot is given back, the next waiter has it, and another one comes.
    pub(crate) fn hand_over(&mut self) -> bool {
        let Self(crowd) = self;
        crowd.bulkhead.leave(&crowd.clock);
        crowd.first() == Some(Poll::Ready(Ok(()))) && crowd.comes(Criticality::Normal)
    }
}

/// Everything on: shedding by waiting time, newest first while congested, priorities. The queue is full, and congested.
pub(crate) struct Displacing(Crowd);

const INTERVAL: Duration = Duration::from_millis(100);

impl Displacing {
    pub(crate) fn among(waiters: u32) -> Result<Self, String> {
        let spec = BulkheadSpec::fixed(waiters).queue(waiters).queue_interval(INTERVAL).queue_target(INTERVAL / 20);
        // Time stands, or those who wait would have to be shed.
        let (spec, clock) = (spec.adaptive_lifo().prioritized(), Clock::manual());
        let crowd = Crowd::among(waiters, spec, clock, Criticality::BestEffort)?;
        crowd.clock.advance(INTERVAL);
        Ok(Self(crowd))
    }

    /// Somebody critical comes, displaces the one who would be served last, and has the next slot before all others;
    /// and another one comes.
    pub(crate) fn displace(&mut self) -> bool {
        let Self(crowd) = self;
        let comes = crowd.comes(Criticality::Critical);
        let displaced = crowd.first() == Some(Poll::Ready(Err(RejectionCode::BulkheadQueueShed)));
        crowd.bulkhead.leave(&crowd.clock);
        let served = crowd.last() == Some(Poll::Ready(Ok(())));
        comes && displaced && served && crowd.comes(Criticality::BestEffort)
    }
}
