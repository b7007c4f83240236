//! Every interleaving of threads on one bucket, explored by loom: `make model`.

use loom::sync::Arc;
use loom::thread;

use super::*;

const ONE: AcquireRequest = AcquireRequest { cost: 1, max_wait: Duration::ZERO };

fn granted(cell: &BucketCell) -> u64 {
    let grant = cell.acquire(cell.clock.now(), ONE);
    u64::from(matches!(grant.take, Take::Granted { .. }))
}

fn spec(permits: u64, burst: u64) -> RateLimitSpec {
    RateLimitSpec::new(permits, Duration::from_millis(10)).burst(burst)
}

#[test]
fn the_last_permit_is_granted_exactly_once() {
    loom::model(|| {
        let cell = Arc::new(BucketCell::new(Clock::manual(), &spec(1, 1)));
        let other = cell.clone();
        let thread = thread::spawn(move || granted(&other));
        let here = granted(&cell);
        assert_eq!(here + thread.join().unwrap(), 1);
    });
}

#[test]
fn a_change_of_the_rate_neither_loses_nor_creates_a_permit() {
    loom::model(|| {
        let cell = Arc::new(BucketCell::new(Clock::manual(), &spec(1, 3)));
        let other = cell.clone();
        let thread = thread::spawn(move || granted(&other));
        // Permits are counted in other units afterwards.
        cell.retune(&spec(4, 3));
        let taken = granted(&cell) + thread.join().unwrap();
        assert_eq!(taken, 2, "two of three");
        assert_eq!(cell.peek(cell.clock.now()).permits(), 1);
    });
}

#[test]
fn a_refunded_permit_is_taken_once_or_left_in_the_bucket() {
    loom::model(|| {
        let cell = Arc::new(BucketCell::new(Clock::manual(), &spec(1, 1)));
        assert_eq!(granted(&cell), 1);
        let other = cell.clone();
        let thread = thread::spawn(move || other.refund(1, Time::ZERO));
        let taken = granted(&cell);
        thread.join().unwrap();
        assert_eq!(taken + cell.peek(cell.clock.now()).permits(), 1);
    });
}
