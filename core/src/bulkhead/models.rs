//! Every interleaving of threads on one bulkhead, explored by loom: `make model`.
//!
//! A waiter that is never woken is reported as a deadlock; a slot that is lost or created shows in the view at the end.

use std::future::poll_fn;

use loom::future::block_on;
use loom::sync::Arc;
use loom::thread;

use super::*;
use crate::context::Criticality;

const NOW: Time = Time::ZERO;

struct Shared {
    bulkhead: Bulkhead,
    clock: Clock,
}

fn shared(spec: BulkheadSpec) -> Arc<Shared> {
    Arc::new(Shared { bulkhead: Bulkhead::new(&spec), clock: Clock::manual() })
}

impl Shared {
    fn arrive(&self) -> Result<Entry, RejectionCode> {
        if self.bulkhead.try_enter() {
            return Ok(Entry::Entered);
        }
        self.bulkhead.enter(Arrival { now: NOW, criticality: Criticality::Normal, deadline: Time::NEVER })
    }

    /// Enters, waits for as long as it takes, and leaves.
    fn pass(&self) {
        match self.arrive() {
            Ok(Entry::Entered) => {}
            Ok(Entry::Waiting(waiter, _)) => {
                let verdict = block_on(poll_fn(|cx| self.bulkhead.poll(waiter, cx.waker())));
                assert_eq!(verdict, Ok(()));
            }
            Err(code) => panic!("{code}"),
        }
        self.bulkhead.leave(&self.clock);
    }

    fn assert_empty(&self, limit: u32) {
        assert_eq!(self.bulkhead.view(), BulkheadView { limit, in_use: 0, waiting: 0 });
        assert!(self.bulkhead.try_enter(), "the fast path is open");
    }
}

#[test]
fn the_last_slot_is_taken_exactly_once() {
    loom::model(|| {
        let here = shared(BulkheadSpec::fixed(1));
        let there = here.clone();
        let thread = thread::spawn(move || u32::from(there.bulkhead.try_enter()));
        let taken = u32::from(here.bulkhead.try_enter());
        assert_eq!(taken + thread.join().unwrap(), 1);
    });
}

#[test]
fn a_slot_given_back_while_a_caller_starts_to_wait_goes_to_that_caller() {
    loom::model(|| {
        let here = shared(BulkheadSpec::fixed(1).queue(2));
        let there = here.clone();
        let thread = thread::spawn(move || there.pass());
        here.pass();
        thread.join().unwrap();
        here.assert_empty(1);
    });
}

#[test]
fn three_callers_of_one_slot_all_pass() {
    loom::model(|| {
        let here = shared(BulkheadSpec::fixed(1).queue(2));
        let threads = [here.clone(), here.clone()].map(|there| thread::spawn(move || there.pass()));
        here.pass();
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        here.assert_empty(1);
    });
}

#[test]
fn a_slot_handed_to_a_waiter_that_is_dropped_is_not_lost() {
    loom::model(|| {
        let here = shared(BulkheadSpec::fixed(1).queue(2));
        assert!(here.bulkhead.try_enter());
        let Ok(Entry::Waiting(waiter, _)) = here.arrive() else { panic!("not queued") };
        let there = here.clone();
        let thread = thread::spawn(move || there.bulkhead.leave(&there.clock));
        here.bulkhead.abandon(waiter, &here.clock);
        thread.join().unwrap();
        here.assert_empty(1);
    });
}

#[test]
fn a_timer_and_a_slot_at_the_same_time_give_one_verdict() {
    loom::model(|| {
        let here = shared(BulkheadSpec::fixed(1).queue(1).queue_timeout(Duration::from_millis(1)));
        assert!(here.bulkhead.try_enter());
        let Ok(Entry::Waiting(waiter, _)) = here.arrive() else { panic!("not queued") };
        let there = here.clone();
        let thread = thread::spawn(move || there.bulkhead.leave(&there.clock));
        let verdict = here.bulkhead.give_up(waiter);
        thread.join().unwrap();
        let in_use = here.bulkhead.view().in_use;
        assert_eq!(verdict.is_ok(), in_use == 1, "{verdict:?}");
    });
}

#[test]
fn a_limit_that_grows_while_a_caller_starts_to_wait_serves_that_caller() {
    loom::model(|| {
        let here = shared(BulkheadSpec::fixed(1).queue(1));
        assert!(here.bulkhead.try_enter());
        let there = here.clone();
        let thread = thread::spawn(move || there.bulkhead.retune(&BulkheadSpec::fixed(2).queue(1), &there.clock));
        here.pass();
        thread.join().unwrap();
        here.bulkhead.leave(&here.clock);
        here.assert_empty(2);
    });
}
