//! A request that its caller sends inline, in its own task.

#![allow(clippy::unwrap_used)] // a failed expectation panics, in helpers too

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use phalanx_core::clock::{Clock, Time};
use phalanx_core::key::StateKey;
use phalanx_core::rate_limit::{RateLimitSpec, Take};
use phalanx_core::store::{AcquireRequest, RateLimitStore};
use phalanx_store_redis::transport::{Boxed, Response};
use phalanx_store_redis::{Failure, Invocation, RedisOptions, RedisStore, Wire};
use redis::Value;
use tokio::sync::Notify;

/// Grants one permit when it is notified.
#[derive(Debug, Default)]
struct Granting(Notify);

impl Wire for Granting {
    fn send<'a>(&'a self, calls: &'a [Invocation]) -> Boxed<'a, Result<Vec<Response>, Failure>> {
        Box::pin(async move {
            self.0.notified().await;
            let granted = Value::Array([1, 1_000_000, 0, 1].map(Value::Int).into());
            Ok(calls.iter().map(|_| Response::Reply(Ok(granted.clone()))).collect())
        })
    }
}

#[derive(Default)]
struct Wakes(AtomicUsize);

impl Wake for Wakes {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

/// A task that wakes itself while it runs is scheduled behind all others, on another thread if there is an idle one.
#[tokio::test(start_paused = true)]
async fn a_caller_that_sends_inline_is_woken_by_its_reply_only() {
    let wire = Arc::new(Granting::default());
    let store = RedisStore::over_wire(wire.clone(), Clock::manual(), RedisOptions::default());
    let bucket = store.bucket(&StateKey::new("p", ()), &RateLimitSpec::per_second(10));
    let wakes = Arc::new(Wakes::default());
    let waker = Waker::from(wakes.clone());
    let mut cx = Context::from_waker(&waker);
    let request = AcquireRequest { cost: 1, max_wait: Duration::ZERO };
    let mut acquiring = pin!(store.acquire(&bucket, Time::ZERO, request));
    assert!(acquiring.as_mut().poll(&mut cx).is_pending());
    wire.0.notify_one();
    assert_eq!(wakes.0.load(Ordering::Relaxed), 1);
    let Poll::Ready(grant) = acquiring.as_mut().poll(&mut cx) else { panic!("the reply is there") };
    assert_eq!(grant.take, Take::Granted { wait: Duration::ZERO });
    assert_eq!(wakes.0.load(Ordering::Relaxed), 1);
}
