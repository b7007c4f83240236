//! Replies that no script returns: every number is checked before anything is computed from it.

#![allow(clippy::unwrap_used)] // a failed expectation panics, in helpers too

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use phalanx_core::breaker::{Admission, BreakerSpec, Phase};
use phalanx_core::clock::{Clock, Time};
use phalanx_core::key::StateKey;
use phalanx_core::rate_limit::{Consistency, RateLimitSpec, Take};
use phalanx_core::rejection::Source;
use phalanx_core::store::{AcquireRequest, BreakerStore, Grant, RateLimitStore, Store};
use phalanx_store_redis::transport::{Boxed, Response};
use phalanx_store_redis::{Failure, Invocation, RedisOptions, RedisStore, Wire};
use redis::Value;

/// Replies with these lists of integers, one after the other.
#[derive(Debug)]
struct Replies(Mutex<VecDeque<Vec<i64>>>);

impl Wire for Replies {
    fn send<'a>(&'a self, calls: &'a [Invocation]) -> Boxed<'a, Result<Vec<Response>, Failure>> {
        let mut replies = self.0.lock();
        let mut next = || Value::Array(replies.pop_front().unwrap_or_default().into_iter().map(Value::Int).collect());
        let all = calls.iter().map(|_| Response::Reply(Ok(next()))).collect();
        Box::pin(std::future::ready(Ok(all)))
    }
}

fn store(replies: impl IntoIterator<Item = Vec<i64>>) -> RedisStore {
    let wire = Replies(Mutex::new(replies.into_iter().collect()));
    RedisStore::over_wire(Arc::new(wire), Clock::manual(), RedisOptions::default())
}

/// Acquires one permit of ten per second: a permit is 100,000 units, the bucket holds a million.
async fn acquire(level: i64, granted: i64) -> (RedisStore, Grant) {
    let store = store([vec![1, level, 0, granted]]);
    let bucket = store.bucket(&StateKey::new("p", ()), &RateLimitSpec::per_second(10));
    let request = AcquireRequest { cost: 1, max_wait: Duration::ZERO };
    let grant = store.acquire(&bucket, Time::ZERO, request).await;
    let cached = store.cached_level(&bucket, Time::ZERO).unwrap();
    assert!(cached.units <= 1_000_000, "{cached:?}");
    (store, grant)
}

#[tokio::test(start_paused = true)]
async fn a_level_near_the_lowest_integer_is_the_deepest_debt() {
    for granted in [0, 1] {
        let (_, grant) = acquire(i64::MIN, granted).await;
        assert_eq!(grant.source, Source::Fleet);
        let wait = match grant.take {
            Take::Granted { wait } => wait,
            Take::Rejected { until } => until.since(Time::ZERO),
        };
        assert_eq!(wait, Duration::from_micros((1 << 52) + 100_000), "{grant:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_level_above_the_capacity_is_a_full_bucket() {
    let (_, grant) = acquire(i64::MAX, 1).await;
    assert_eq!((grant.take, grant.left.permits()), (Take::Granted { wait: Duration::ZERO }, 9));
    let store = store([vec![1, i64::MAX, 0]]);
    let bucket = store.bucket(&StateKey::new("p", ()), &RateLimitSpec::per_second(10));
    assert_eq!(store.peek(&bucket, Time::ZERO).await.permits(), 10);
}

#[tokio::test]
async fn a_block_is_never_larger_than_what_was_asked_for_nor_valid_for_longer_than_a_lease() {
    for [permits, ends, lasts] in [[i64::MAX; 3], [i64::MIN, 0, -1], [100, i64::MAX, 1 << 40], [-1, -1, i64::MAX]] {
        let clock = Clock::manual();
        let granted = || vec![1, 0, 0, 1];
        // The first round trips show the demand of half a lease.
        let replies = (0..200).map(|_| granted()).chain([granted(), vec![1, 0, 0, permits, ends, lasts]]);
        let wire = Replies(Mutex::new(replies.collect()));
        let store = RedisStore::over_wire(Arc::new(wire), clock.clone(), RedisOptions::default());
        let spec = RateLimitSpec::per_second(1_000).consistency(Consistency::Leased);
        let bucket = store.bucket(&StateKey::new("p", ()), &spec);
        let ask = AcquireRequest { cost: 1, max_wait: Duration::ZERO };
        for _ in 0..200 {
            clock.advance(Duration::from_micros(300));
            store.acquire(&bucket, clock.now(), ask).await;
        }
        clock.advance(Duration::from_millis(70));
        store.acquire(&bucket, clock.now(), ask).await;
        assert!(store.leased_permits().held <= 62, "{:?}", store.leased_permits());
        clock.advance(Duration::from_millis(180));
        let grant = store.acquire_now(&bucket, clock.now(), ask);
        assert!(grant.is_none_or(|grant| grant.source != Source::Leased), "{grant:?}");
    }
}

/// Asks a breaker with a ramp, of which this is the whole reply.
async fn admit(reply: Vec<i64>) -> (Admission, Source, Phase) {
    let store = store([reply]);
    let spec = BreakerSpec::consecutive_failures(1).ramp(Duration::from_secs(1), 4);
    let breaker = store.breaker(&StateKey::new("p", ()), &spec);
    let reply = store.admit(&breaker, store.clock().now()).await.0;
    (reply.admission, reply.source, store.cached_phase(&breaker).0)
}

#[tokio::test(start_paused = true)]
async fn a_lease_or_a_ramp_beyond_what_a_script_counts_is_no_reply() {
    for mode in [2, 3] {
        let (admission, source, _) = admit(vec![1, 1, 5, 0, 0, 0, 0, 0, 0, mode, i64::MAX, i64::MAX]).await;
        assert_eq!(source, Source::Degraded, "{admission:?}");
    }
    let (admission, source, _) = admit(vec![1, 1, 5, 0, 0, 1, 0, 0, 0, 3, 3, (1 << 53) - 1]).await;
    assert_eq!(source, Source::Fleet, "{admission:?}");
}

#[tokio::test(start_paused = true)]
async fn an_epoch_or_a_break_that_is_not_exact_in_a_double_is_no_reply() {
    let good = admit(vec![1, 2, 1 << 53, 5, 0, 0, 0, 0, 0, 1, 1, 0]).await;
    assert_eq!((good.1, good.2), (Source::Fleet, Phase::Open));
    for (epoch, left) in [((1 << 53) + 1, 5), (i64::MAX, 5), (5, (1 << 53) + 1), (5, i64::MAX)] {
        let reply = admit(vec![1, 2, epoch, left, 0, 0, 0, 0, 0, 1, 1, 0]).await;
        assert_eq!((reply.1, reply.2), (Source::Degraded, Phase::Closed), "{epoch} {left}");
    }
}
