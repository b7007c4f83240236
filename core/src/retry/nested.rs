//! Nested policies do not multiply: three attempts around three attempts are not nine.
//!
//! When a pipeline gives up after its last attempt it leaves a mark; the pipeline around it, whose attempt ends in the
//! same poll, finds the mark and does not try again. The mark lives in a thread-local because the two ends meet inside
//! one poll of one task: no task-local, no allocation, two plain stores a poll. It is wiped before every poll of an
//! attempt, so it never speaks of another call. (Work handed to another task reports across a poll and is not seen:
//! there the outer policy's own attempts and budget are the bound.)

use std::cell::Cell;

thread_local! {
    static EXHAUSTED: Cell<bool> = const { Cell::new(false) };
}

/// Before an attempt is polled.
pub(crate) fn wipe() {
    EXHAUSTED.set(false);
}

/// When a call gives up after having tried more than once.
pub(crate) fn mark() {
    EXHAUSTED.set(true);
}

/// Whether a call inside the attempt that has just ended had given up.
pub(crate) fn marked() -> bool {
    EXHAUSTED.get()
}
