//! Rejections while waiting: which waiter, when, and why.

use super::*;

/// Target 5 ms, interval 100 ms.
fn codel() -> BulkheadSpec {
    BulkheadSpec::fixed(1).queue(100).queue_target(5 * MS)
}

#[test]
fn while_the_queue_was_recently_empty_a_waiter_may_stay_an_interval() {
    let bench = Bench::full(codel());
    assert_eq!(bench.due(), 100 * MS);
    bench.wait();
    bench.advance(10 * MS);
    // The queue will be congested 100 ms after it was empty: from then on 5 ms are too long.
    assert_eq!(bench.due(), 90 * MS);
}

#[test]
fn under_sustained_congestion_a_waiter_may_stay_only_the_target() {
    let bench = Bench::full(codel());
    for _ in 0..11 {
        bench.wait();
        bench.advance(10 * MS);
    }
    assert_eq!(bench.due(), 5 * MS);
}

#[test]
fn a_waiter_past_its_time_is_shed_when_its_turn_comes_and_the_next_is_served() {
    let bench = Bench::full(codel());
    let early = bench.wait();
    bench.advance(98 * MS);
    let late = bench.wait();
    bench.advance(2 * MS);
    bench.leave();
    assert_eq!(bench.poll(early), rejected(RejectionCode::BulkheadQueueShed));
    assert_eq!(bench.poll(late), SERVED);
    assert_eq!(bench.view(), (1, 1, 0));
}

#[test]
fn congestion_ends_when_the_queue_is_empty() {
    let bench = Bench::full(codel());
    let waiter = bench.wait();
    bench.advance(90 * MS);
    bench.leave();
    assert_eq!(bench.poll(waiter), SERVED);
    assert_eq!(bench.due(), 100 * MS);
}

#[test]
fn while_congested_the_newest_is_served_first() {
    let bench = Bench::full(BulkheadSpec::fixed(1).queue(9).adaptive_lifo());
    let [first, second, third] = [(); 3].map(|()| bench.wait());
    bench.leave();
    assert_eq!(bench.poll(first), SERVED, "not yet congested");
    bench.advance(100 * MS);
    let newest = bench.wait();
    for next in [newest, third, second] {
        bench.leave();
        assert_eq!(bench.poll(next), SERVED);
    }
}

#[test]
fn critical_waiters_are_served_in_order_while_only_others_are_congested() {
    let bench = Bench::full(BulkheadSpec::fixed(1).queue(9).adaptive_lifo().prioritized());
    let normal = bench.wait();
    bench.advance(100 * MS);
    let newest = bench.wait();
    let [first, second] = [(); 2].map(|()| bench.wait_as(Criticality::Critical));
    for next in [first, second, newest, normal] {
        bench.leave();
        assert_eq!(bench.poll(next), SERVED, "the congestion of other tiers does not matter");
    }
}

#[test]
fn a_full_queue_that_serves_the_newest_first_displaces_the_oldest() {
    let bench = Bench::full(BulkheadSpec::fixed(1).queue(2).adaptive_lifo().prioritized());
    let (old, new) = (bench.wait(), bench.wait());
    bench.advance(100 * MS);
    bench.wait_as(Criticality::Critical);
    assert_eq!((bench.poll(old), bench.poll(new)), (rejected(RejectionCode::BulkheadQueueShed), Poll::Pending));
}

#[test]
fn less_critical_waiters_may_wait_less_long() {
    let bench = Bench::full(codel().prioritized());
    let dues =
        [Criticality::BestEffort, Criticality::Degraded, Criticality::Normal, Criticality::Critical].map(|tier| {
            let Ok(Entry::Waiting(waiter, due)) = bench.arrive_as(tier) else { panic!("not queued") };
            let _ = bench.bulkhead.give_up(waiter);
            due.since(bench.clock.now())
        });
    // With an empty queue, congestion begins after an interval; by then twice the target has passed for every tier.
    assert_eq!(dues, [25 * MS, 50 * MS, 100 * MS, 100 * MS]);
    bench.wait_as(Criticality::Critical);
    bench.advance(100 * MS);
    let dues =
        [Criticality::BestEffort, Criticality::Degraded, Criticality::Normal, Criticality::Critical].map(|tier| {
            let Ok(Entry::Waiting(waiter, due)) = bench.arrive_as(tier) else { panic!("not queued") };
            let _ = bench.bulkhead.give_up(waiter);
            due.since(bench.clock.now())
        });
    assert_eq!(dues, [5 * MS / 4, 5 * MS / 2, 5 * MS, 10 * MS]);
}

#[test]
fn a_waiter_past_its_deadline_is_rejected_when_its_turn_comes() {
    let bench = Bench::full(BulkheadSpec::fixed(1).queue(2));
    let deadline = bench.clock.now().after(30 * MS);
    let late = Arrival { now: bench.clock.now(), criticality: Criticality::Normal, deadline };
    let Ok(Entry::Waiting(late, due)) = bench.bulkhead.enter(late) else { panic!("not queued") };
    assert_eq!(due, deadline);
    let next = bench.wait();
    bench.advance(30 * MS);
    bench.leave();
    assert_eq!((bench.poll(late), bench.poll(next)), (rejected(RejectionCode::DeadlineExceeded), SERVED));
}

#[test]
fn timers_empty_a_queue_while_the_calls_in_flight_hang() {
    let bench = Bench::full(codel().queue_timeout(50 * MS));
    let waiter = bench.wait();
    bench.advance(50 * MS);
    assert_eq!(bench.bulkhead.give_up(waiter), Err(RejectionCode::BulkheadQueueTimeout));
    assert_eq!(bench.view(), (1, 1, 0));
    bench.leave();
    assert!(bench.bulkhead.try_enter());
}

#[test]
fn a_slot_that_arrives_with_the_timer_is_taken() {
    let bench = Bench::full(codel());
    let waiter = bench.wait();
    bench.leave();
    assert_eq!(bench.bulkhead.give_up(waiter), Ok(()));
    assert_eq!(bench.view(), (1, 1, 0));
}
