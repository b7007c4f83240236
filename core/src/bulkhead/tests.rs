//! The guarantees of the bulkhead, on a manual clock.

#![allow(clippy::panic, clippy::unwrap_used)] // a panic is how a test says no, in its helpers too

mod against_a_model;
mod shedding;
mod wakers;

use super::*;
use crate::context::Criticality;

const MS: Duration = Duration::from_millis(1);

/// A bulkhead and its clock.
struct Bench {
    bulkhead: Bulkhead,
    clock: Clock,
}

impl Bench {
    fn new(spec: BulkheadSpec) -> Self {
        Self { bulkhead: Bulkhead::new(&spec), clock: Clock::manual() }
    }

    /// Creates a bulkhead with every slot in use.
    fn full(spec: BulkheadSpec) -> Self {
        let bench = Self::new(spec);
        (0..spec.max_concurrency).for_each(|_| assert!(bench.bulkhead.try_enter()));
        bench
    }

    fn advance(&self, by: Duration) {
        self.clock.advance(by);
    }

    fn arrive_as(&self, criticality: Criticality) -> Result<Entry, RejectionCode> {
        self.bulkhead.enter(Arrival { now: self.clock.now(), criticality, deadline: Time::NEVER })
    }

    /// Lets a caller of normal criticality wait.
    fn wait(&self) -> WaiterId {
        self.wait_as(Criticality::Normal)
    }

    fn wait_as(&self, criticality: Criticality) -> WaiterId {
        match self.arrive_as(criticality) {
            Ok(Entry::Waiting(waiter, _)) => waiter,
            other => panic!("{other:?}"),
        }
    }

    /// Returns when a caller that arrives now would be rejected.
    fn due(&self) -> Duration {
        let entry = self.arrive_as(Criticality::Normal);
        let Ok(Entry::Waiting(waiter, due)) = entry else { panic!("{entry:?}") };
        let _ = self.bulkhead.give_up(waiter);
        due.since(self.clock.now())
    }

    fn leave(&self) {
        self.bulkhead.leave(&self.clock);
    }

    fn poll(&self, waiter: WaiterId) -> Poll<Result<(), RejectionCode>> {
        self.bulkhead.poll(waiter, Waker::noop())
    }

    fn view(&self) -> (u32, u32, u32) {
        let BulkheadView { limit, in_use, waiting } = self.bulkhead.view();
        (limit, in_use, waiting)
    }
}

const SERVED: Poll<Result<(), RejectionCode>> = Poll::Ready(Ok(()));

const fn rejected(code: RejectionCode) -> Poll<Result<(), RejectionCode>> {
    Poll::Ready(Err(code))
}

#[test]
fn no_more_than_the_limit_are_in_flight() {
    let bench = Bench::full(BulkheadSpec::fixed(2));
    assert!(!bench.bulkhead.try_enter());
    assert_eq!(bench.arrive_as(Criticality::Critical), Err(RejectionCode::BulkheadFull));
    bench.leave();
    assert!(bench.bulkhead.try_enter());
    assert_eq!(bench.view(), (2, 2, 0));
}

#[test]
fn waiters_are_served_in_the_order_they_came() {
    let bench = Bench::full(BulkheadSpec::fixed(1).queue(3));
    let [first, second, third] = [(); 3].map(|()| bench.wait());
    assert_eq!(bench.arrive_as(Criticality::Normal), Err(RejectionCode::BulkheadFull));
    bench.leave();
    assert_eq!((bench.poll(first), bench.poll(second)), (SERVED, Poll::Pending));
    bench.leave();
    assert_eq!((bench.poll(second), bench.poll(third)), (SERVED, Poll::Pending));
}

#[test]
fn a_new_caller_does_not_overtake_a_waiter() {
    let bench = Bench::full(BulkheadSpec::fixed(1).queue(2));
    let waiter = bench.wait();
    bench.leave();
    assert!(!bench.bulkhead.try_enter(), "the slot belongs to the waiter, even before it is polled");
    assert_eq!(bench.poll(waiter), SERVED);
    bench.leave();
    assert!(bench.bulkhead.try_enter(), "the queue is empty");
}

#[test]
fn a_waiter_that_leaves_keeps_the_others_in_order() {
    let bench = Bench::full(BulkheadSpec::fixed(1).queue(3));
    let [first, second, third] = [(); 3].map(|()| bench.wait());
    bench.bulkhead.abandon(second, &bench.clock);
    assert_eq!(bench.view(), (1, 1, 2));
    bench.leave();
    assert_eq!(bench.poll(first), SERVED);
    bench.leave();
    assert_eq!(bench.poll(third), SERVED);
}

#[test]
fn a_slot_of_a_dropped_waiter_goes_to_the_next() {
    let bench = Bench::full(BulkheadSpec::fixed(1).queue(2));
    let (first, second) = (bench.wait(), bench.wait());
    bench.leave();
    bench.bulkhead.abandon(first, &bench.clock); // before it was polled
    assert_eq!(bench.poll(second), SERVED);
    assert_eq!(bench.view(), (1, 1, 0));
}

#[test]
fn a_higher_limit_serves_waiters_at_once() {
    let spec = BulkheadSpec::fixed(1).queue(3);
    let bench = Bench::full(spec);
    let [first, second, third] = [(); 3].map(|()| bench.wait());
    bench.bulkhead.retune(&BulkheadSpec { max_concurrency: 3, ..spec }, &bench.clock);
    assert_eq!([first, second, third].map(|waiter| bench.poll(waiter)), [SERVED, SERVED, Poll::Pending]);
    assert_eq!(bench.view(), (3, 3, 1));
}

#[test]
fn a_lower_limit_evicts_no_call_and_admits_none_until_enough_have_left() {
    let spec = BulkheadSpec::fixed(3);
    let bench = Bench::full(spec);
    bench.bulkhead.retune(&BulkheadSpec::fixed(1), &bench.clock);
    assert_eq!(bench.view(), (1, 3, 0));
    bench.leave();
    bench.leave();
    assert!(!bench.bulkhead.try_enter());
    bench.leave();
    assert!(bench.bulkhead.try_enter());
}

#[test]
fn waiters_stay_when_a_new_spec_has_no_queue() {
    let spec = BulkheadSpec::fixed(1).queue(2);
    let bench = Bench::full(spec);
    let waiter = bench.wait();
    bench.bulkhead.retune(&BulkheadSpec::fixed(1), &bench.clock);
    assert_eq!(bench.arrive_as(Criticality::Critical), Err(RejectionCode::BulkheadFull));
    bench.leave();
    assert_eq!(bench.poll(waiter), SERVED);
}

#[test]
fn critical_waiters_are_served_first_and_displace_less_critical_ones() {
    use Criticality::{BestEffort, Critical, Degraded, Normal};
    let bench = Bench::full(BulkheadSpec::fixed(1).queue(3).prioritized());
    let (low, later_low, normal) = (bench.wait_as(BestEffort), bench.wait_as(BestEffort), bench.wait_as(Normal));
    assert_eq!(bench.arrive_as(BestEffort), Err(RejectionCode::BulkheadFull), "it displaces no waiter of its own tier");
    let critical = bench.wait_as(Critical);
    assert_eq!(bench.poll(later_low), rejected(RejectionCode::BulkheadQueueShed), "the last of the least critical");
    let degraded = bench.wait_as(Degraded);
    assert_eq!(bench.poll(low), rejected(RejectionCode::BulkheadQueueShed));
    assert_eq!(bench.view(), (1, 1, 3));
    for next in [critical, normal, degraded] {
        assert_eq!(bench.poll(next), Poll::Pending);
        bench.leave();
        assert_eq!(bench.poll(next), SERVED);
    }
}

#[test]
fn without_priorities_criticality_is_ignored() {
    let bench = Bench::full(BulkheadSpec::fixed(1).queue(1));
    let low = bench.wait_as(Criticality::BestEffort);
    assert_eq!(bench.arrive_as(Criticality::Critical), Err(RejectionCode::BulkheadFull));
    bench.leave();
    assert_eq!(bench.poll(low), SERVED);
}

#[test]
fn a_waiter_is_woken_when_it_is_served_or_rejected_and_not_before() {
    struct Count(std::sync::atomic::AtomicUsize);
    impl std::task::Wake for Count {
        fn wake(self: std::sync::Arc<Self>) {
            self.0.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        }
    }
    let woken = |count: &std::sync::Arc<Count>| count.0.load(std::sync::atomic::Ordering::Relaxed);
    let bench = Bench::full(BulkheadSpec::fixed(1).queue(2).prioritized());
    let counts = [(); 3].map(|()| std::sync::Arc::new(Count(Default::default())));
    let [one, two, three] = counts.clone().map(Waker::from);
    let (first, second) = (bench.wait(), bench.wait());
    assert!(bench.bulkhead.poll(first, &one).is_pending() && bench.bulkhead.poll(second, &two).is_pending());
    let critical = bench.wait_as(Criticality::Critical);
    assert!(bench.bulkhead.poll(critical, &three).is_pending());
    assert_eq!(counts.each_ref().map(woken), [0, 1, 0], "the displaced waiter");
    bench.leave();
    assert_eq!(counts.each_ref().map(woken), [0, 1, 1]);
    bench.leave();
    assert_eq!(counts.each_ref().map(woken), [1, 1, 1]);
}
