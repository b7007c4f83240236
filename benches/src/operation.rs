//! The operation called through every stack. It does nothing, so that only the stack is measured.
//!
//! There are two, because a stack may do expensive work only when the operation waits: [`ready`] is ready at the first
//! poll, [`pending_once`] at the second.

use std::fmt;
use std::future::Future;
use std::hint::black_box;
use std::pin::Pin;
use std::task::{Context, Poll};

/// The result of an operation. A number and not `()`, so that the result has to be moved.
pub(crate) type Answer = Result<u32, OperationError>;

/// The error type of the operations, which they never return.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OperationError;

impl fmt::Display for OperationError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the operation failed")
    }
}

impl std::error::Error for OperationError {}

/// A way to start an operation: [`ready`] or [`pending_once`], as a zero-sized value.
pub(crate) trait Operation: Fn() -> Self::Running + Copy + Send + Sync + 'static {
    type Running: Future<Output = Answer> + Send + 'static;
}

impl<F, Running> Operation for F
where
    F: Fn() -> Running + Copy + Send + Sync + 'static,
    Running: Future<Output = Answer> + Send + 'static,
{
    type Running = Running;
}

/// Is ready at the first poll.
pub(crate) async fn ready() -> Answer {
    // Opaque, or an inlined stack could be optimized away completely.
    black_box(Ok(1))
}

/// Wakes its task and is pending at the first poll, and is ready at the second.
pub(crate) async fn pending_once() -> Answer {
    Yield { polled: false }.await;
    black_box(Ok(1))
}

struct Yield {
    polled: bool,
}

impl Future for Yield {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        if self.polled {
            return Poll::Ready(());
        }
        self.polled = true;
        // Not `tokio::task::yield_now`: it defers the wake-up to the runtime's next pass over its timers, and the cost of
        // that pass would be part of every call.
        context.waker().wake_by_ref();
        Poll::Pending
    }
}
