//! Wakers are foreign code: they may use the bulkhead again, and they may panic.

use std::panic::resume_unwind;
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::task::Wake;
use std::thread;

use super::*;

/// The last reference to a task that holds a slot: dropping it gives the slot back.
struct Holder(Arc<Bench>);

impl Wake for Holder {
    fn wake(self: Arc<Self>) {}
}

impl Drop for Holder {
    fn drop(&mut self) {
        self.0.leave();
    }
}

struct Panics;

impl Wake for Panics {
    fn wake(self: Arc<Self>) {
        resume_unwind(Box::new("boom"))
    }
}

fn holder(bench: &Arc<Bench>) -> Waker {
    Waker::from(Arc::new(Holder(bench.clone())))
}

/// Waits with a waker that panics.
fn fragile(bench: &Bench, criticality: Criticality) -> WaiterId {
    let waiter = bench.wait_as(criticality);
    assert!(bench.bulkhead.poll(waiter, &Waker::from(Arc::new(Panics))).is_pending());
    waiter
}

/// Fails instead of hanging for ever.
fn without_deadlock(work: impl FnOnce() + Send + 'static) {
    let (done, over) = channel();
    thread::spawn(move || {
        work();
        let _ = done.send(());
    });
    assert_eq!(over.recv_timeout(Duration::from_secs(20)), Ok(()), "a waker was dropped under the lock of the queue");
}

#[test]
fn the_waker_of_an_earlier_poll_is_dropped_outside_the_lock() {
    without_deadlock(|| {
        let bench = Arc::new(Bench::full(BulkheadSpec::fixed(1).queue(1)));
        let waiter = bench.wait();
        assert!(bench.bulkhead.poll(waiter, &holder(&bench)).is_pending());
        assert!(bench.poll(waiter).is_pending(), "replaces the waker, whose task gives its slot back");
        assert_eq!(bench.poll(waiter), SERVED);
        assert_eq!(bench.view(), (1, 1, 0));
    });
}

#[test]
fn the_waker_of_a_dropped_waiter_is_dropped_outside_the_lock() {
    without_deadlock(|| {
        let bench = Arc::new(Bench::full(BulkheadSpec::fixed(2).queue(2)));
        let (goes, stays) = (bench.wait(), bench.wait());
        assert!(bench.bulkhead.poll(goes, &holder(&bench)).is_pending());
        bench.bulkhead.abandon(goes, &bench.clock);
        assert_eq!(bench.poll(stays), SERVED, "the slot that the dropped task held");
        assert_eq!(bench.view(), (2, 2, 0));
    });
}

#[test]
fn a_waker_that_panics_costs_no_other_waiter_its_slot() {
    let spec = BulkheadSpec::fixed(1).queue(3);
    let bench = Bench::full(spec);
    let fragile = fragile(&bench, Criticality::Normal);
    let (second, third) = (bench.wait(), bench.wait());
    bench.bulkhead.retune(&BulkheadSpec { max_concurrency: 3, ..spec }, &bench.clock);
    assert_eq!([fragile, second, third].map(|waiter| bench.poll(waiter)), [SERVED, SERVED, Poll::Pending]);
}

#[test]
fn a_displaced_waker_that_panics_does_not_affect_the_new_waiter() {
    let bench = Bench::full(BulkheadSpec::fixed(1).queue(1).prioritized());
    let low = fragile(&bench, Criticality::BestEffort);
    let critical = bench.wait_as(Criticality::Critical);
    assert_eq!(bench.poll(low), rejected(RejectionCode::BulkheadQueueShed));
    bench.leave();
    assert_eq!(bench.poll(critical), SERVED);
}

#[test]
fn a_waker_that_panics_leaves_the_fast_path_open() {
    let bench = Bench::full(BulkheadSpec::fixed(1).queue(1).queue_timeout(MS));
    let late = fragile(&bench, Criticality::Normal);
    bench.advance(2 * MS);
    bench.leave();
    assert_eq!(bench.poll(late), rejected(RejectionCode::BulkheadQueueTimeout));
    assert!(bench.bulkhead.try_enter(), "the fast path is open");
}
