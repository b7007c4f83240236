//! Nested retries: three attempts around three attempts do not become nine.
//!
//! When a nested call has used up its attempts or its budget, it marks the attempt of the outer call. If that attempt
//! fails with the same kind, the outer policy does not retry it. The mark is stored with the outer call and is in a
//! thread-local while the attempt is polled, where the nested call finds it; this needs neither a task-local nor an
//! allocation. The last nested call to end decides, so that a failure followed by a success leaves no mark. A nested call
//! in another task is not seen; there the outer policy is bounded by its own attempts and budget.

use std::cell::Cell;
use std::sync::atomic::{AtomicU8, Ordering};

use crate::kind::Kind;

/// A kind as a number; 0 is none.
const NONE: u8 = 0;

const fn number(kind: Kind) -> u8 {
    kind as u8 + 1
}

thread_local! {
    static GAVE_UP: Cell<u8> = const { Cell::new(NONE) };
}

/// The mark of one attempt. Atomic only so that a future that holds it can move between threads.
#[derive(Debug, Default)]
pub(crate) struct Mark(AtomicU8);

impl Mark {
    /// Runs one poll of the attempt with its mark in the thread-local.
    #[inline]
    pub(crate) fn during<T>(&self, work: impl FnOnce() -> T) -> T {
        let outer = GAVE_UP.replace(self.0.load(Ordering::Relaxed));
        let done = work();
        self.0.store(GAVE_UP.replace(outer), Ordering::Relaxed);
        done
    }

    /// Returns whether a nested call gave up on this kind.
    #[inline]
    pub(crate) fn is(&self, kind: Kind) -> bool {
        self.0.load(Ordering::Relaxed) == number(kind)
    }

    /// Clears the mark before another attempt.
    pub(crate) fn wipe(&self) {
        self.0.store(NONE, Ordering::Relaxed);
    }
}

/// Records at the end of a call the kind on which it gave up, if it did.
#[inline(always)]
pub(crate) fn note(gave_up: Option<Kind>) {
    GAVE_UP.set(gave_up.map_or(NONE, number));
}
