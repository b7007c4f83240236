//! Nested policies do not multiply: three attempts around three attempts are not nine.
//!
//! When a call inside an attempt gives up after having tried again (or for want of budget), it leaves a mark; when the
//! attempt then fails with the same kind, the policy around it does not try again either. The mark belongs to the
//! attempt: it lives in its ride and visits a thread-local for the time of a poll, which is where the call inside finds
//! it; no task-local, no allocation. The last call inside to end has the word, so one that was made good by another says
//! nothing. (Work handed to another task ends elsewhere and is not seen: there the outer policy's own attempts and
//! budget are the bound.)

use std::cell::Cell;

use crate::kind::Kind;

thread_local! {
    static GAVE_UP: Cell<Option<Kind>> = const { Cell::new(None) };
}

/// Runs one poll of an attempt with its mark in place; returns the mark as the poll left it.
#[inline]
pub(crate) fn poll<T>(mark: Option<Kind>, poll: impl FnOnce() -> T) -> (T, Option<Kind>) {
    let outer = GAVE_UP.replace(mark);
    let done = poll();
    (done, GAVE_UP.replace(outer))
}

/// At the end of a call: whether it gave up, and on what.
#[inline]
pub(crate) fn note(gave_up: Option<Kind>) {
    GAVE_UP.set(gave_up);
}
