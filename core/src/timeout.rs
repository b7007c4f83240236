//! A timeout that costs nothing until it is needed: the timer is registered only if the operation is not ready at its
//! first poll, and `timer.rs` keeps it cheap then.
//!
//! The operation is polled before the timer, so a result that is ready always wins.

mod timer;

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::{Context, Poll};
use std::time::Duration;

pub(crate) use self::timer::Timer;

/// The error of an operation that was not ready in time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Elapsed;

/// Polls `operation` until it is ready or `limit` has passed. Without a limit there is no timer.
///
/// # Errors
/// [`Elapsed`] if the limit has passed; the operation is dropped.
pub async fn timeout<F: Future>(limit: Option<Duration>, operation: F) -> Result<F::Output, Elapsed> {
    let mut operation = pin!(operation);
    let mut timer = Timer::default();
    poll_fn(|cx| poll_within(&mut timer, limit, cx, |cx| operation.as_mut().poll(cx))).await
}

/// Polls the operation first, so that a result that is ready always wins, and then the timer.
#[inline]
pub(crate) fn poll_within<T>(
    timer: &mut Timer,
    limit: Option<Duration>,
    cx: &mut Context<'_>,
    operation: impl FnOnce(&mut Context<'_>) -> Poll<T>,
) -> Poll<Result<T, Elapsed>> {
    match (operation(cx), limit) {
        (Poll::Ready(output), _) => Poll::Ready(Ok(output)),
        (Poll::Pending, None) => Poll::Pending,
        (Poll::Pending, Some(limit)) => timer.poll_after(limit, cx).map(|()| Err(Elapsed)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::time::{Instant, sleep};

    #[tokio::test(start_paused = true)]
    async fn a_result_in_time_is_returned() {
        let work = async {
            sleep(Duration::from_millis(9)).await;
            7
        };
        assert_eq!(timeout(Some(Duration::from_millis(10)), work).await, Ok(7));
    }

    #[tokio::test(start_paused = true)]
    async fn the_limit_counts_from_the_first_poll() {
        let start = Instant::now();
        let never = std::future::pending::<()>();
        assert_eq!(timeout(Some(Duration::from_millis(10)), never).await, Err(Elapsed));
        assert_eq!(start.elapsed(), Duration::from_millis(10));
    }

    #[test]
    fn a_ready_operation_needs_no_timer_and_no_runtime() {
        let ready = pin!(timeout(Some(Duration::from_secs(1)), async { 1 }));
        let mut cx = Context::from_waker(std::task::Waker::noop());
        assert_eq!(ready.poll(&mut cx), Poll::Ready(Ok(1)));
    }

    #[tokio::test(start_paused = true)]
    async fn an_operation_that_consumes_the_tasks_budget_still_times_out() {
        let greedy = async {
            loop {
                tokio::task::coop::consume_budget().await;
                tokio::time::advance(Duration::from_millis(1)).await;
            }
        };
        assert_eq!(timeout::<_>(Some(Duration::from_millis(50)), greedy).await, Err::<(), _>(Elapsed));
    }
}
