//! `tower`'s own layers: rate limit, concurrency limit, retry, timeout. It has no circuit breaker, so its stack has one
//! stage less.
//!
//! Its `RateLimit` keeps its count in the service and is not `Clone`. So it has to be outermost, because `Retry` clones its
//! inner service; and callers can share it only through a `Buffer`, a task with a queue, as its documentation says.

use tower::buffer::Buffer;
use tower::retry::Policy;
use tower::{BoxError, ServiceBuilder};

use super::service::{ServiceCaller, serve};
use crate::contender::Caller;
use crate::operation::Operation;
use crate::settings::{ATTEMPTS, FIRST_BACKOFF, LONGEST_BACKOFF, SLOTS, TIMEOUT, UNREACHABLE_RATE};

const RATE: u64 = UNREACHABLE_RATE as u64;
const PERIOD: std::time::Duration = std::time::Duration::from_secs(1);

/// The number of tasks, so that no caller waits for the queue.
const BUFFERED: usize = 64;

pub(crate) fn pass_through(operation: impl Operation) -> impl Caller {
    ServiceCaller(ServiceBuilder::new().service(serve(operation)))
}

pub(crate) fn stack(operation: impl Operation) -> impl Caller {
    ServiceCaller(
        ServiceBuilder::new()
            .rate_limit(RATE, PERIOD)
            .concurrency_limit(SLOTS as usize)
            .retry(Attempts::default())
            .timeout(TIMEOUT)
            .service(serve(operation)),
    )
}

/// Must be called inside a runtime, because the buffer spawns a task.
pub(crate) fn shared_stack(operation: impl Operation) -> impl Caller + Clone {
    let stack = ServiceBuilder::new()
        .rate_limit(RATE, PERIOD)
        .concurrency_limit(SLOTS as usize)
        .retry(Attempts::default())
        .timeout(TIMEOUT)
        .service(serve(operation));
    ServiceCaller(Buffer::new(stack, BUFFERED))
}

pub(crate) fn rate_limit(operation: impl Operation) -> impl Caller {
    ServiceCaller(ServiceBuilder::new().rate_limit(RATE, PERIOD).service(serve(operation)))
}

pub(crate) fn concurrency_limit(operation: impl Operation) -> impl Caller {
    ServiceCaller(ServiceBuilder::new().concurrency_limit(SLOTS as usize).service(serve(operation)))
}

pub(crate) fn retry(operation: impl Operation) -> impl Caller {
    ServiceCaller(ServiceBuilder::new().retry(Attempts::default()).service(serve(operation)))
}

pub(crate) fn timeout(operation: impl Operation) -> impl Caller {
    ServiceCaller(ServiceBuilder::new().timeout(TIMEOUT).service(serve(operation)))
}

/// A retry policy, which users of tower write themselves.
#[derive(Clone, Copy)]
struct Attempts {
    made: u32,
}

impl Default for Attempts {
    fn default() -> Self {
        Self { made: 1 }
    }
}

impl<E: Into<BoxError>> Policy<(), u32, E> for Attempts {
    type Future = tokio::time::Sleep;

    fn retry(&mut self, _request: &mut (), result: &mut Result<u32, E>) -> Option<Self::Future> {
        if result.is_ok() || self.made as usize >= ATTEMPTS {
            return None;
        }
        let pause = FIRST_BACKOFF.saturating_mul(1 << (self.made - 1)).min(LONGEST_BACKOFF);
        self.made += 1;
        Some(tokio::time::sleep(pause))
    }

    fn clone_request(&mut self, (): &()) -> Option<()> {
        Some(())
    }
}
