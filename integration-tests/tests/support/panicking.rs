//! Panics without output, and guards that panic once.

use std::future::{Future, poll_fn};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Poll;

use phalanx::describe::Outcome;
use phalanx::guard::{CallInfo, Guard};
use phalanx::*;

pub fn panic_quietly<T>() -> T {
    resume_unwind(Box::new("boom"))
}

/// Awaits a call and returns the payload if it panics.
pub async fn caught<T>(call: impl Future<Output = T>) -> Result<T, &'static str> {
    let mut call = pin!(call);
    poll_fn(|cx| match catch_unwind(AssertUnwindSafe(|| call.as_mut().poll(cx))) {
        Ok(poll) => poll.map(Ok),
        Err(panic) => Poll::Ready(Err(*panic.downcast::<&str>().unwrap())),
    })
    .await
}

/// When a guard panics. Otherwise it admits every call.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum When {
    Admit,
    Settle,
}

/// A guard that panics once.
pub struct PanickingGuard {
    order: u16,
    when: When,
    armed: AtomicBool,
}

impl PanickingGuard {
    pub fn at(order: u16, when: When) -> Self {
        Self { order, when, armed: AtomicBool::new(true) }
    }

    fn panic_once(&self, when: When) {
        if self.when == when && self.armed.swap(false, Ordering::Relaxed) {
            panic_quietly()
        }
    }
}

impl Guard for PanickingGuard {
    fn name(&self) -> &str {
        "fragile"
    }

    fn order(&self) -> u16 {
        self.order
    }

    fn admit(&self, _: &CallInfo<'_>) -> Result<(), Rejection> {
        self.panic_once(When::Admit);
        Ok(())
    }

    fn settle(&self, _: &CallInfo<'_>, _: Outcome) {
        self.panic_once(When::Settle);
    }
}
