//! What is called through every stack: an operation that does nothing, so that what is left is the stack.
//!
//! Two of them, because a stack may do its expensive work only when the operation has to wait: [`ready`]
//! has its answer at the first poll, [`pending_once`] at the second.

use std::fmt;
use std::future::Future;
use std::hint::black_box;
use std::pin::Pin;
use std::task::{Context, Poll};

/// The answer of an operation. A number and not `()`, so that the answer has to be carried.
pub(crate) type Answer = Result<u32, OperationError>;

/// The error that the operations never return; every stack must be ready to carry one.
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

/// Answers at the first poll.
pub(crate) async fn ready() -> Answer {
    // Opaque, or a stack that inlines well would fold the answer into the caller and be measured as nothing.
    black_box(Ok(1))
}

/// Is pending at the first poll, having woken its task, and answers at the second.
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
        // Not `tokio::task::yield_now`: that one defers its wake to the runtime's next turn of the timers, so
        // the price of a turn would be part of every call.
        context.waker().wake_by_ref();
        Poll::Pending
    }
}
